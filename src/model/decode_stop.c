/* decode_stop.c -- searching in what was held back and what came.
 *
 * After each piece the longest end of the text that is the beginning of a stop string stays back;
 * it is shorter than the longest stop string, so the search is short however long the text.
 *
 *   stop "\n\nUser", text "Hi.\n" -> "Hi." out, "\n" held; then "\nUse" -> "\n\nUse" held;
 *   then "d" -> "\n\nUsed" out; had it been "r", nothing more would come out. */
#include "model/decode_stop.h"

void ls_decode_stop_init(ls_decode_stop *stop, const char *const *strings, int n)
{
    *stop = (ls_decode_stop){.strings = strings, .n = n, .hit = -1};
    ls_str_init(&stop->held);
    for (int i = 0; i < n; i++)
        LS_BUG_IF(strings[i][0] == '\0', "an empty stop string");
}

void ls_decode_stop_release(ls_decode_stop *stop)
{
    ls_str_release(&stop->held);
}

/* Where the first stop string begins in the held text; false: nowhere. */
static bool find(ls_decode_stop *stop, size_t *at_out)
{
    const char *first = NULL;

    for (int i = 0; i < stop->n; i++) {
        const char *p =
            memmem(stop->held.p, stop->held.len, stop->strings[i], strlen(stop->strings[i]));
        if (p && (!first || p < first)) {
            first = p;
            stop->hit = i;
        }
    }
    if (first)
        *at_out = (size_t)(first - stop->held.p);
    return first != NULL;
}

/* How many bytes at the end of the held text begin a stop string. */
static size_t open_end(const ls_decode_stop *stop)
{
    size_t most = 0;

    for (int i = 0; i < stop->n; i++) {
        size_t n = strlen(stop->strings[i]) - 1;
        if (n > stop->held.len)
            n = stop->held.len;
        while (n > most && memcmp(stop->held.p + stop->held.len - n, stop->strings[i], n) != 0)
            n--;
        if (n > most)
            most = n;
    }
    return most;
}

ls_status ls_decode_stop_feed(ls_decode_stop *stop, const char *text, size_t len, ls_str *out)
{
    ls_status st;
    size_t shown;

    if (stop->hit >= 0)
        return LS_OK;
    ls_str_append_bytes(&stop->held, text, len);
    LS_TRY(st, ls_str_status(&stop->held), out);
    if (!find(stop, &shown))
        shown = stop->held.len - open_end(stop);
    ls_str_append_bytes(out, stop->held.p, shown);
    memmove(stop->held.p, stop->held.p + shown, stop->held.len - shown + 1);
    stop->held.len -= shown;
    st = ls_str_status(out);
out:
    return st;
}

ls_status ls_decode_stop_end(ls_decode_stop *stop, ls_str *out)
{
    if (stop->hit < 0)
        ls_str_append_bytes(out, stop->held.p, stop->held.len);
    ls_str_clear(&stop->held);
    return ls_str_status(out);
}
