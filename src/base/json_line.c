/* json_line.c -- lines that jansson refuses are rewritten and read once more.
 *
 * The rewriting is a walk over tokens. It leaves everything alone but
 *   123456789012345678901234567890, 1e999   0
 *   NaN, Infinity, -Infinity                null
 *   the same in a field that is used        {"U+FDD0":"NaN"}
 *   "a\ud800b"                              "a\ufffdb"
 *   "\u0000" as a key                       "\ufffd"
 * and notes which of them stand in a field that is used. What is no JSON stays none. In a file numbers
 * become texts instead: "123456789012345678901234567890", "NaN". */
#include "base/json_line.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include "base/json.h"

enum { DEPTH = 2048, LONGEST_REAL = 400 }; /* DEPTH is jansson's own limit */

typedef struct walk {
    const char *p, *end;
    const char *const *used;
    ls_json_line_found found;
    ls_str out;
    int depth;
    bool object[DEPTH + 1]; /* by depth: an object, not an array */
    bool key;               /* a key comes next */
    bool in_used;           /* inside a field that is used */
    bool as_text;           /* numbers become texts */
} walk;

static bool at(const walk *w, const char *text)
{
    size_t n = strlen(text);

    return (size_t)(w->end - w->p) >= n && memcmp(w->p, text, n) == 0;
}

/* The code of "\uXXXX" at p; -1: there is none. */
static int unit_at(const char *p, const char *end)
{
    int code = 0;

    if (end - p < 6 || p[0] != '\\' || p[1] != 'u')
        return -1;
    for (int i = 2; i < 6; i++) {
        if (!isxdigit((unsigned char)p[i]))
            return -1;
        code = 16 * code + (isdigit((unsigned char)p[i]) ? p[i] - '0' : (p[i] | 32) - 'a' + 10);
    }
    return code;
}

static void put_escape(walk *w, bool key)
{
    int code = unit_at(w->p, w->end);
    size_t n = code >= 0 ? 6 : w->end - w->p > 1 ? 2 : 1;

    if (code >= 0xd800 && code < 0xdc00) {
        int second = unit_at(w->p + 6, w->end);
        n = second >= 0xdc00 && second < 0xe000 ? 12 : 6;
    }
    bool half = n == 6 && code >= 0xd800 && code < 0xe000;
    if (half || (key && code == 0))
        ls_str_append(&w->out, "\\ufffd");
    else
        ls_str_append_bytes(&w->out, w->p, n);
    w->found.surrogate |= half && w->in_used;
    w->p += n;
}

/* A text from quote to quote. A key of the outermost object says whether its value is used. */
static void put_text(walk *w)
{
    const char *begin = w->p + 1;
    bool key = w->key;

    ls_str_append_char(&w->out, *w->p++);
    while (w->p < w->end && *w->p != '"') {
        if (*w->p == '\\')
            put_escape(w, key);
        else
            ls_str_append_char(&w->out, *w->p++);
    }
    if (key && w->depth == 1) {
        size_t n = (size_t)(w->p - begin);
        w->in_used = false;
        for (const char *const *name = w->used; *name; name++)
            w->in_used |= strlen(*name) == n && memcmp(*name, begin, n) == 0;
    }
    if (w->p < w->end)
        ls_str_append_char(&w->out, *w->p++);
}

/* A number that jansson does not read; otherwise: what stands for it where nobody asks. */
static void put_unread(walk *w, const char *p, size_t n, const char *otherwise)
{
    if (w->as_text)
        ls_str_printf(&w->out, "\"%.*s\"", (int)n, p);
    else if (w->in_used)
        ls_str_printf(&w->out, "{\"%s\":\"%.*s\"}", LS_JSON_NUMBER, (int)n, p);
    else
        ls_str_append(&w->out, otherwise);
}

static bool all_digits(const char *p, size_t n)
{
    size_t i = 0;

    while (i < n && isdigit((unsigned char)p[i]))
        i++;
    return i == n;
}

/* Whether a number is more than jansson reads. */
static bool too_large(const char *p, size_t n)
{
    static const char most[] = "9223372036854775807";
    char text[LONGEST_REAL + 1];
    size_t sign = *p == '-', digits = n - sign;

    if (memchr(p, '.', n) || memchr(p, 'e', n) || memchr(p, 'E', n)) {
        if (n > LONGEST_REAL)
            return false;
        snprintf(text, sizeof text, "%.*s", (int)n, p);
        return isinf(strtod(text, NULL));
    }
    if (digits == 0 || p[sign] == '0' || !all_digits(p + sign, digits))
        return false; /* no JSON */
    int order = digits == sizeof most - 1 ? memcmp(p + sign, most, digits) : 0;
    return digits > sizeof most - 1 || order > (int)sign; /* the lowest number ends in one more */
}

static void put_number(walk *w)
{
    size_t n = 1;

    while (n < (size_t)(w->end - w->p) && w->p[n] && strchr("0123456789+-.eE", w->p[n]))
        n++;
    if (too_large(w->p, n))
        put_unread(w, w->p, n, "0");
    else
        ls_str_append_bytes(&w->out, w->p, n);
    w->p += n;
}

static bool put_name(walk *w)
{
    static const char *const names[] = {"NaN", "Infinity", "-Infinity"};

    for (size_t i = 0; i < LS_COUNT(names); i++)
        if (at(w, names[i])) {
            put_unread(w, names[i], strlen(names[i]), "null");
            w->p += strlen(names[i]);
            return true;
        }
    return false;
}

static void put_other(walk *w)
{
    char c = *w->p++;

    if ((c == '{' || c == '[') && w->depth < DEPTH)
        w->object[++w->depth] = c == '{';
    else if ((c == '}' || c == ']') && w->depth)
        w->depth--;
    if (strchr("{}[],:", c) && c)
        w->key = w->object[w->depth] && (c == '{' || c == ',');
    ls_str_append_char(&w->out, c);
}

static void rewrite(walk *w)
{
    while (w->p < w->end) {
        if (*w->p == '"')
            put_text(w);
        else if (put_name(w))
            continue;
        else if (*w->p == '-' || isdigit((unsigned char)*w->p))
            put_number(w);
        else
            put_other(w);
    }
}

/* Read it as it is, else rewritten. */
static json_t *parse(walk *w, size_t flags, json_error_t *error_out)
{
    const char *text = w->p;
    size_t len = (size_t)(w->end - w->p);
    json_t *value = json_loadb(text, len, flags, error_out);

    if (value)
        return value;
    ls_str_init(&w->out);
    rewrite(w);
    if (ls_str_status(&w->out) == LS_OK && (w->out.len != len || memcmp(w->out.p, text, len) != 0))
        value = json_loadb(w->out.p, w->out.len, flags, error_out);
    ls_str_release(&w->out);
    return value;
}

json_t *ls_json_line_parse(const char *line, size_t len, const char *const *used,
                           ls_json_line_found *found_out, json_error_t *error_out)
{
    walk w = {.p = line, .end = line + len, .used = used};
    json_t *value = parse(&w, JSON_ALLOW_NUL, error_out);

    *found_out = w.found;
    return value;
}

json_t *ls_json_line_parse_file(const char *text, size_t len, size_t flags, json_error_t *error_out)
{
    static const char *const none[] = {NULL};
    walk w = {.p = text, .end = text + len, .used = none, .as_text = true};

    return parse(&w, flags, error_out);
}
