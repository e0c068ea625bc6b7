/* unclosed.c -- follows the brackets and quotes of a run file.
 *
 * In a block, a bracket or quote opens something only where a value begins: `sample: it's {` is text. Inside of brackets
 * every bracket counts. What is open is not closed when
 *   - the text ends:                        data: {text: a.txt
 *   - another kind of bracket closes:       data: {text: [a.txt, b.txt}
 *   - a line begins with a key in column 1: model: {layers: 6        <- this one
 *                                           data: {text: a.txt}
 * Texts of several lines (| and >) are passed over. */
#include "config/unclosed.h"

#include <ctype.h>

enum { DEEPEST = 64 };

typedef struct scan {
    const char *text;
    size_t len, at;
    size_t open[DEEPEST]; /* where each bracket stands */
    int depth;
    bool value; /* a value may begin here */
} scan;

static bool report(ls_unclosed *out, const scan *s, size_t offset, bool extra)
{
    *out = (ls_unclosed){.what = s->text[offset], .extra = extra, .offset = offset};
    return true;
}

static bool blank_at(const scan *s, size_t i)
{
    return i >= s->len || isspace((unsigned char)s->text[i]);
}

/* Whether a key stands in the first column of the line that begins here. */
static bool key_at(const scan *s, size_t i)
{
    size_t from = i;

    while (i < s->len && (isalnum((unsigned char)s->text[i]) || s->text[i] == '_'))
        i++;
    return i > from && i < s->len && s->text[i] == ':' && blank_at(s, i + 1);
}

/* Past the quoted text that begins here; false: it is not closed. */
static bool pass_quoted(scan *s)
{
    char quote = s->text[s->at++];

    for (; s->at < s->len; s->at++) {
        char c = s->text[s->at];
        if (c == '\n' && key_at(s, s->at + 1))
            return false;
        if (c == '\\' && quote == '"' && s->at + 1 < s->len)
            s->at++;
        else if (c == quote && quote == '\'' && s->at + 1 < s->len && s->text[s->at + 1] == quote)
            s->at++;
        else if (c == quote)
            return s->at++, true;
    }
    return false;
}

static size_t end_of_line(const scan *s, size_t i)
{
    while (i < s->len && s->text[i] != '\n')
        i++;
    return i;
}

static size_t indent_of(const scan *s, size_t i)
{
    size_t n = 0;

    while (i + n < s->len && s->text[i + n] == ' ')
        n++;
    return n;
}

/* Past the lines of a | or > text: those that are indented more than the line of its key, and empty ones. */
static void pass_lines(scan *s)
{
    size_t begin = s->at;

    while (begin > 0 && s->text[begin - 1] != '\n')
        begin--;
    size_t own = indent_of(s, begin);
    for (s->at = end_of_line(s, s->at); s->at < s->len; s->at = end_of_line(s, s->at + 1)) {
        size_t line = s->at + 1, n = indent_of(s, line);
        bool empty = line + n >= s->len || s->text[line + n] == '\n';
        if (!empty && n <= own)
            return;
    }
}

static bool is_opening(char c)
{
    return c == '{' || c == '[';
}

/* One character that is neither quoted nor a comment. true: something is wrong, and reported. */
static bool take(scan *s, ls_unclosed *out)
{
    char c = s->text[s->at];
    bool flow = s->depth > 0;

    if (is_opening(c) && (flow || s->value)) {
        if (s->depth == DEEPEST)
            return false;
        s->open[s->depth++] = s->at;
        s->value = true;
    } else if ((c == '}' || c == ']') && flow) {
        char opened = s->text[s->open[s->depth - 1]];
        if ((opened == '{') != (c == '}'))
            return report(out, s, s->open[s->depth - 1], false);
        s->depth--;
        s->value = false;
        size_t next =
            s->at + 1; /* only a comment or the end of the line may follow the outermost */
        while (next < s->len && s->text[next] == ' ')
            next++;
        if (s->depth == 0 && next < s->len && (s->text[next] == '}' || s->text[next] == ']'))
            return report(out, s, next, true);
    } else if (c == '\n') {
        if (flow && key_at(s, s->at + 1))
            return report(out, s, s->open[s->depth - 1], false);
        s->value = true;
    } else if (c == ':' || c == '-' || c == '?') {
        s->value |= blank_at(s, s->at + 1);
    } else if (c == ',' && flow) {
        s->value = true;
    } else if (!isspace((unsigned char)c)) {
        s->value = false;
    }
    s->at++;
    return false;
}

bool ls_unclosed_find(const char *text, size_t len, ls_unclosed *found_out)
{
    scan s = {.text = text, .len = len, .value = true};

    while (s.at < len) {
        char c = text[s.at];
        size_t from = s.at;
        if (c == '#' && (s.at == 0 || blank_at(&s, s.at - 1))) {
            s.at = end_of_line(&s, s.at);
        } else if (s.value && (c == '"' || c == '\'')) {
            if (!pass_quoted(&s))
                return report(found_out, &s, from, false);
            s.value = false;
        } else if (s.value && s.depth == 0 && (c == '|' || c == '>')) {
            pass_lines(&s);
        } else if (take(&s, found_out)) {
            return true;
        } else if (s.at == from) { /* deeper than anybody writes */
            return false;
        }
    }
    return s.depth > 0 && report(found_out, &s, s.open[s.depth - 1], false);
}
