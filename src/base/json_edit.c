/* json_edit.c -- a walk over the outermost object, which skips what it holds.
 *
 *   {"a": {"b": 1}, "c": [2, "}"]}
 *    key   value     key  value         brackets inside of texts do not count
 *
 * The text need not be checked before: where it is no JSON the walk ends with an error or at some
 * other place of the text, never behind it. */
#include "base/json_edit.h"

#include <string.h>

static size_t skip_space(const char *p, size_t at, size_t len)
{
    while (at < len && (p[at] == ' ' || p[at] == '\n' || p[at] == '\t' || p[at] == '\r'))
        at++;
    return at;
}

/* Behind the text that begins at `at` with a quote. */
static size_t skip_text(const char *p, size_t at, size_t len)
{
    for (at++; at < len && p[at] != '"'; at++)
        at += p[at] == '\\';
    return at < len ? at + 1 : len;
}

/* Behind the value that begins at `at`: a comma or a bracket that was not opened in it. */
static size_t skip_value(const char *p, size_t at, size_t len)
{
    int64_t depth = 0;

    while (at < len) {
        char c = p[at];
        if (c == '"') {
            at = skip_text(p, at, len);
            continue;
        }
        if (depth == 0 && (c == ',' || c == '}' || c == ']'))
            break;
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        at++;
    }
    while (at > 0 && skip_space(p, at - 1, at) == at) /* the space in front of what follows */
        at--;
    return at;
}

/* Where the value under key lies; at the closing bracket (begin == end) when there is none. */
typedef struct place {
    size_t begin, end;
    bool found, empty; /* empty: an object without keys */
} place;

static bool find_place(const ls_str *text, const char *key, place *out)
{
    const char *p = text->p;
    size_t len = text->len, n = strlen(key), at = skip_space(p, 0, len);

    if (at >= len || p[at] != '{')
        return false;
    at = skip_space(p, at + 1, len);
    *out = (place){.empty = at < len && p[at] == '}'};
    while (at < len && p[at] == '"') {
        size_t name = at + 1, end = skip_text(p, at, len);
        bool same = end - name == n + 1 && memcmp(p + name, key, n) == 0;
        at = skip_space(p, end, len);
        if (at >= len || p[at] != ':')
            return false;
        out->begin = skip_space(p, at + 1, len);
        out->end = skip_value(p, out->begin, len);
        out->found = same;
        if (same)
            return out->end > out->begin;
        at = skip_space(p, out->end, len);
        if (at < len && p[at] == ',')
            at = skip_space(p, at + 1, len);
    }
    if (at >= len || p[at] != '}')
        return false;
    if (out->empty)
        out->end = at;
    out->begin = out->end; /* behind the last value */
    return true;
}

ls_status ls_json_edit_set(ls_str *text, const char *key, const char *value)
{
    place at;
    ls_str made;
    ls_status st;

    if (!find_place(text, key, &at))
        return ls_fail(LS_EDATA, "cannot set \"%s\": the text is not a JSON object", key);
    ls_str_init(&made);
    ls_str_append_bytes(&made, text->p, at.begin);
    if (!at.found)
        ls_str_printf(&made, "%s\n  \"%s\": ", at.empty ? "" : ",", key);
    ls_str_append(&made, value);
    if (!at.found && at.empty)
        ls_str_append_char(&made, '\n');
    ls_str_append_bytes(&made, text->p + at.end, text->len - at.end);
    LS_TRY(st, ls_str_status(&made), out);
    ls_str_clear(text);
    ls_str_append_bytes(text, made.p, made.len);
    st = ls_str_status(text);
out:
    ls_str_release(&made);
    return st;
}
