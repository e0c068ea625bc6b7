/* str.c -- growing strings, and the edit distance behind "did you mean". */
#include "base/str.h"

#include <ctype.h>
#include "base/mem.h"

static char empty[1];

void ls_str_init(ls_str *s)
{
    *s = (ls_str){.p = empty};
}

void ls_str_release(ls_str *s)
{
    if (s->cap)
        ls_mem_free(s->p);
    ls_str_init(s);
}

void ls_str_clear(ls_str *s)
{
    s->len = 0;
    s->failed = false;
    if (s->cap)
        s->p[0] = '\0';
}

void ls_str_reserve(ls_str *s, size_t cap)
{
    if (cap <= s->cap || s->failed)
        return;
    size_t want = s->cap * 2 > cap ? s->cap * 2 : cap;
    if (want < 64)
        want = 64;
    char *p = ls_mem_resize(s->cap ? s->p : NULL, want);
    if (!p) {
        s->failed = true;
        return;
    }
    if (!s->cap)
        p[0] = '\0';
    s->p = p;
    s->cap = want;
}

void ls_str_append_bytes(ls_str *s, const void *bytes, size_t len)
{
    if (len == 0)
        return;
    ls_str_reserve(s, s->len + len + 1);
    if (s->failed)
        return;
    memcpy(s->p + s->len, bytes, len);
    s->len += len;
    s->p[s->len] = '\0';
}

void ls_str_append(ls_str *s, const char *text)
{
    ls_str_append_bytes(s, text, strlen(text));
}

void ls_str_append_char(ls_str *s, char c)
{
    ls_str_append_bytes(s, &c, 1);
}

static void LS_PRINTF(2, 0) append_va(ls_str *s, const char *fmt, va_list ap)
{
    va_list again;

    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    if (n < 0) /* a character that the locale lacks: lost as an append without memory is */
        s->failed = true;
    if (n <= 0)
        return;
    ls_str_reserve(s, s->len + (size_t)n + 1);
    if (s->failed)
        return;
    vsnprintf(s->p + s->len, (size_t)n + 1, fmt, ap);
    s->len += (size_t)n;
}

void ls_str_printf(ls_str *s, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    append_va(s, fmt, ap);
    va_end(ap);
}

size_t ls_str_utf8_len(const unsigned char *p, size_t left)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = p[0] < 0x80 ? 1 : p[0] >> 5 == 6 ? 2 : p[0] >> 4 == 14 ? 3 : p[0] >> 3 == 30 ? 4 : 0;

    if (n <= 1)
        return n;
    if (n > left)
        return 0;
    uint32_t code = p[0] & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if (p[i] >> 6 != 2)
            return 0;
        code = code << 6 | (p[i] & 0x3fu);
    }
    return code < least[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : n;
}

void ls_str_append_visible(ls_str *s, const char *text, size_t len)
{
    const unsigned char *p = (const unsigned char *)text;

    for (size_t i = 0, n; i < len; i += n) {
        size_t valid = ls_str_utf8_len(p + i, len - i);
        bool c1 = valid == 2 && p[i] == 0xc2 && p[i + 1] < 0xa0; /* U+0080 .. U+009F */
        n = valid ? valid : 1;
        if (p[i] == '\n')
            ls_str_append(s, "\\n");
        else if (p[i] == '\t')
            ls_str_append(s, "\\t");
        else if (c1)
            ls_str_printf(s, "\\x%02x\\x%02x", p[i], p[i + 1]);
        else if (!valid || p[i] < 0x20 || p[i] == 0x7f)
            ls_str_printf(s, "\\x%02x", p[i]);
        else
            ls_str_append_bytes(s, p + i, n);
    }
}

ls_status ls_str_status(const ls_str *s)
{
    return s->failed ? ls_fail(LS_ENOMEM, "cannot grow a string beyond %zu bytes", s->len) : LS_OK;
}

/* Two rows of the usual table; a swap of neighbours ("bacth") counts as two edits, which the
 * caller's threshold allows for. Names longer than the row are compared by their first part. */
int ls_str_distance(const char *a, const char *b)
{
    enum { LONGEST = 96 };
    int rows[2][LONGEST + 1];
    int na = (int)strnlen(a, LONGEST), nb = (int)strnlen(b, LONGEST);

    for (int j = 0; j <= nb; j++)
        rows[0][j] = j;
    for (int i = 1; i <= na; i++) {
        int *row = rows[i & 1], *above = rows[(i - 1) & 1];
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            int same = tolower((unsigned char)a[i - 1]) == tolower((unsigned char)b[j - 1]);
            int best = above[j - 1] + !same;
            best = above[j] + 1 < best ? above[j] + 1 : best;
            row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
        }
    }
    return rows[na & 1][nb];
}
