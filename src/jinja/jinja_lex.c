/* jinja_lex.c -- a template's text as tokens.
 *
 * Between tags there is text, which becomes one DATA token; inside there are words, strings,
 * numbers and operators. White space around tags is decided here, once:
 *   -  beside a tag drops all white space on that side,
 *   +  keeps it,
 *   neither: blanks between the start of a line and a block or comment tag are dropped, and so is
 *   one line end right after such a tag; a {{ print }} keeps both.
 * One line end at the end of the whole text is dropped; "\r\n" and "\r" are line ends like "\n". */
#include "jinja/jinja_impl.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include "base/mem.h"

typedef struct lexer {
    ls_jinja *tpl;
    const char *p, *end; /* what is left of the text */
    int line;
    bool line_starts; /* p stands at the start of a line */
    ls_jinja_token *tokens;
    int count;
    ls_jinja_token nowhere; /* what push() gives after a failure */
    ls_status st;
} lexer;

static ls_status fail(lexer *x, int line, const char *what)
{
    if (x->st == LS_OK)
        x->st = ls_fail(LS_EDATA, "%s line %d: %s", x->tpl->name, line, what);
    return x->st;
}

static ls_jinja_token *push(lexer *x, int type)
{
    ls_jinja_token *more =
        x->st == LS_OK ? ls_mem_one_more(x->tokens, (size_t)x->count, sizeof *more) : NULL;

    if (!more) {
        x->st = x->st == LS_OK ? LS_ENOMEM : x->st;
        return &x->nowhere;
    }
    x->tokens = more;
    ls_jinja_token *t = &x->tokens[x->count++];
    *t = (ls_jinja_token){.type = type, .line = x->line};
    return t;
}

/* Move on to q, counting lines. */
static void advance(lexer *x, const char *q)
{
    for (; x->p < q; x->p++)
        x->line += *x->p == '\n';
    x->line_starts = q[-1] == '\n';
}

static bool at(const lexer *x, const char *p, const char *text)
{
    size_t n = strlen(text);

    return (size_t)(x->end - p) >= n && memcmp(p, text, n) == 0;
}

static const char *skip_space(const lexer *x, const char *p)
{
    int n;

    while (p < x->end && ls_jinja_is_space(ls_jinja_char(p, x->end, &n)))
        p += n;
    return p;
}

/* The tag that begins at or after p; NULL: none. */
static const char *find_tag(const lexer *x, const char *p)
{
    for (; p && p + 1 < x->end; p++) {
        p = memchr(p, '{', (size_t)(x->end - p));
        if (!p || p + 1 == x->end)
            return NULL;
        if (p[1] == '{' || p[1] == '%' || p[1] == '#')
            return p;
    }
    return NULL;
}

/* The text before a tag, shortened as its sign says; prints keep their blanks. */
static void push_data(lexer *x, const char *tag, char sign, bool keeps)
{
    size_t len = (size_t)(tag - x->p);

    if (sign == '-') {
        len = ls_jinja_strip(ls_jinja_view(x->p, len), (ls_jinja_value){.kind = LS_JINJA_ABSENT},
                             false, true)
                  .u.s.len;
    } else if (sign != '+' && !keeps) {
        const char *line = memrchr(x->p, '\n', len);
        size_t from = line ? (size_t)(line - x->p) + 1 : 0;
        ls_jinja_value rest = ls_jinja_view(x->p + from, len - from);
        if ((from || x->line_starts) &&
            ls_jinja_strip(rest, (ls_jinja_value){.kind = LS_JINJA_ABSENT}, true, false).u.s.len ==
                0)
            len = from;
    }
    if (len) {
        ls_jinja_token *t = push(x, LS_JINJA_DATA);
        t->p = x->p;
        t->len = len;
    }
}

/* Past the two characters that end a tag, and what they take along. */
static const char *after_end(const lexer *x, const char *p, char sign, bool trims)
{
    p += 2 + (sign != 0);
    if (sign == '-')
        return skip_space(x, p);
    if (!sign && trims && p < x->end && *p == '\n')
        p++;
    return p;
}

/* The end of a tag ("%}" and the like) at p, with or without sign; *sign_out 0 when there is none.
 */
static bool ends_here(const lexer *x, const char *p, const char *end, bool plus, char *sign_out)
{
    *sign_out = 0;
    if (at(x, p, end))
        return true;
    if ((*p == '-' || (plus && *p == '+')) && at(x, p + 1, end)) {
        *sign_out = *p;
        return true;
    }
    return false;
}

static void lex_comment(lexer *x, const char *p)
{
    char sign;

    for (; p < x->end; p++)
        if (ends_here(x, p, "#}", true, &sign)) {
            advance(x, after_end(x, p, sign, true));
            return;
        }
    fail(x, x->line, "the comment does not end");
}

/* --- inside tags ------------------------------------------------------------------------------
 */

/* The character of a \ escape at *p (behind the backslash); -1: it is none, *p stays. */
static int64_t escape(const lexer *x, const char **p)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *found = strchr(from, **p);
    int digits = **p == 'x' ? 2 : **p == 'u' ? 4 : **p == 'U' ? 8 : 0;
    int64_t c = 0;

    if (**p && found) {
        (*p)++;
        return to[found - from];
    }
    if (**p >= '0' && **p <= '7') {
        for (int i = 0; i < 3 && *p < x->end && **p >= '0' && **p <= '7'; i++)
            c = 8 * c + *(*p)++ - '0';
        return c;
    }
    if (!digits || x->end - *p <= digits)
        return -1;
    for (int i = 1; i <= digits; i++) {
        int d = (*p)[i];
        if (!isxdigit((unsigned char)d))
            return -1;
        c = 16 * c + (isdigit(d) ? d - '0' : (d | 32) - 'a' + 10);
    }
    *p += digits + 1;
    return c;
}

static void lex_string(lexer *x)
{
    const char *p = x->p + 1, quote = *x->p;
    int line = x->line;
    ls_str text;

    ls_str_init(&text);
    while (p < x->end && *p != quote) {
        if (*p != '\\') {
            ls_str_append_char(&text, *p++);
            continue;
        }
        if (++p == x->end)
            break;
        if (*p == '\n') { /* a line end behind a backslash is not there */
            p++;
            continue;
        }
        const char *from = p;
        int64_t c = escape(x, &p);
        if (c < 0 && (*from == 'x' || *from == 'u' || *from == 'U' || *from == 'N'))
            fail(x, line, "a string has an escape that is not supported");
        else if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
            fail(x, line, "a string has an escape that is no character");
        else if (c < 0) /* not an escape: the backslash stays */
            ls_str_append_char(&text, '\\');
        else
            ls_jinja_put_char(&text, (uint32_t)c);
    }
    ls_jinja_token *t = push(x, LS_JINJA_STRING);
    char *copy = ls_arena_alloc(&x->tpl->arena, text.len + 1);
    if (!copy || ls_str_status(&text) != LS_OK) {
        x->st = LS_ENOMEM;
    } else if (p == x->end) {
        fail(x, line, "a string does not end");
    } else {
        memcpy(copy, text.p, text.len + 1);
        t->p = copy;
        t->len = text.len;
        advance(x, p + 1);
    }
    ls_str_release(&text);
}

static void lex_word(lexer *x)
{
    const char *p = x->p;

    while (p < x->end && (isalnum((unsigned char)*p) || *p == '_'))
        p++;
    size_t len = (size_t)(p - x->p);
    char *word = ls_arena_alloc(&x->tpl->arena, len + 1);
    if (!word) {
        x->st = LS_ENOMEM;
        return;
    }
    memcpy(word, x->p, len);
    ls_jinja_token *t = push(x, LS_JINJA_WORD);
    t->p = word;
    t->len = len;
    advance(x, p);
}

/* Digits with or without a fraction and an exponent. */
static void lex_number(lexer *x)
{
    char digits[64];
    size_t n = 0;
    bool real = false;
    const char *p = x->p;

    for (; p < x->end && n + 1 < sizeof digits; p++) {
        bool digit = isdigit((unsigned char)*p);
        bool point = *p == '.' && !real && p + 1 < x->end && isdigit((unsigned char)p[1]);
        bool power =
            (*p == 'e' || *p == 'E') && p + 1 < x->end &&
            (isdigit((unsigned char)p[1]) ||
             ((p[1] == '-' || p[1] == '+') && p + 2 < x->end && isdigit((unsigned char)p[2])));
        if (*p == '_' && p + 1 < x->end && isdigit((unsigned char)p[1]))
            continue;
        if (!digit && !point && !power)
            break;
        digits[n++] = *p;
        real |= point || power;
        if (power && n + 1 < sizeof digits)
            digits[n++] = *++p;
    }
    digits[n] = '\0';
    ls_jinja_token *t = push(x, real ? LS_JINJA_REAL : LS_JINJA_WHOLE);
    errno = 0;
    t->whole = real ? 0 : strtoll(digits, NULL, 10);
    t->real = real ? strtod(digits, NULL) : 0;
    if (errno || n + 1 == sizeof digits ||
        (p < x->end && (isalnum((unsigned char)*p) || *p == '_')))
        fail(x, x->line, "a number is too large or not written in decimal");
    else
        advance(x, p);
}

static void lex_operator(lexer *x)
{
    static const struct {
        const char *text;
        int type;
    } doubles[] = {{"==", LS_JINJA_EQ}, {"!=", LS_JINJA_NE},       {"<=", LS_JINJA_LE},
                   {">=", LS_JINJA_GE}, {"//", LS_JINJA_FLOORDIV}, {"**", LS_JINJA_POW}};
    char text[64];

    for (size_t i = 0; i < LS_COUNT(doubles); i++)
        if (at(x, x->p, doubles[i].text)) {
            push(x, doubles[i].type);
            advance(x, x->p + 2);
            return;
        }
    if (*x->p && strchr("+-*/%~()[]{}|,.:=<>", *x->p)) {
        push(x, *x->p);
        advance(x, x->p + 1);
        return;
    }
    unsigned char c = (unsigned char)*x->p;
    snprintf(text, sizeof text,
             c > 32 && c < 127 ? "\"%c\" has no meaning here" : "byte %d has no meaning here", c);
    fail(x, x->line, text);
}

/* From behind the opening of a tag to behind its end. */
static void lex_inside(lexer *x, const char *end, int end_type)
{
    char sign, open[LS_JINJA_NESTING];
    int depth = 0, line = x->line;

    while (x->st == LS_OK) {
        const char *p = skip_space(x, x->p);
        if (p > x->p)
            advance(x, p);
        if (p == x->end) {
            fail(x, line, "the tag does not end");
        } else if (depth == 0 && ends_here(x, p, end, *end == '%', &sign)) {
            push(x, end_type);
            advance(x, after_end(x, p, sign, *end == '%'));
            return;
        } else if (*p == '"' || *p == '\'') {
            lex_string(x);
        } else if (isdigit((unsigned char)*p)) {
            lex_number(x);
        } else if (isalpha((unsigned char)*p) || *p == '_') {
            lex_word(x);
        } else if (strchr("([{", *p) && *p) {
            if (depth == LS_JINJA_NESTING)
                fail(x, x->line, "brackets are nested too deeply");
            else
                open[depth++] = *p == '(' ? ')' : *p == '[' ? ']' : '}';
            lex_operator(x);
        } else if (strchr(")]}", *p) && *p) {
            if (depth == 0 || open[--depth] != *p)
                fail(x, x->line, "a bracket is closed that was not opened");
            lex_operator(x);
        } else {
            lex_operator(x);
        }
    }
}

/* Behind "{%" and its sign: whether the word stands there and the tag ends; where it ends. */
static const char *bare_word(const lexer *x, const char *p, const char *word, char *sign_out)
{
    p = skip_space(x, p);
    if (!at(x, p, word))
        return NULL;
    p = skip_space(x, p + strlen(word));
    return p < x->end && ends_here(x, p, "%}", true, sign_out) ? p : NULL;
}

/* Text that is not read, up to {% endraw %}. p is the end of the raw tag. */
static void lex_raw(lexer *x, const char *p, char sign)
{
    int line = x->line;

    advance(x, after_end(x, p, sign, false));
    for (p = x->p; (p = find_tag(x, p)); p++) {
        char before = p[1] == '%' && p + 2 < x->end && (p[2] == '-' || p[2] == '+') ? p[2] : 0;
        const char *end = p[1] == '%' ? bare_word(x, p + 2 + (before != 0), "endraw", &sign) : NULL;
        if (end) {
            push_data(x, p, before, false);
            advance(x, after_end(x, end, sign, true));
            return;
        }
    }
    fail(x, line, "the raw block does not end");
}

static void lex_tag(lexer *x, const char *p)
{
    char kind = p[1], sign = p + 2 < x->end && (p[2] == '-' || p[2] == '+') ? p[2] : 0, end_sign;
    const char *inside = p + 2 + (sign != 0);

    push_data(x, p, sign, kind == '{');
    advance(x, p + 2);
    if (kind == '#') {
        lex_comment(x, inside);
        return;
    }
    const char *raw = kind == '%' ? bare_word(x, inside, "raw", &end_sign) : NULL;
    if (raw) {
        lex_raw(x, raw, end_sign);
        return;
    }
    push(x, kind == '%' ? LS_JINJA_BLOCK_BEGIN : LS_JINJA_PRINT_BEGIN);
    advance(x, inside);
    lex_inside(x, kind == '%' ? "%}" : "}}", kind == '%' ? LS_JINJA_BLOCK_END : LS_JINJA_PRINT_END);
}

/* A copy of the text with "\n" for every kind of line end, and without the last one. */
static char *copy_text(ls_jinja *tpl, const char *text, size_t len, size_t *len_out)
{
    char *copy = ls_arena_alloc(&tpl->arena, len + 1);
    size_t n = 0;

    for (size_t i = 0; copy && i < len; i++) {
        if (text[i] == '\r' && i + 1 < len && text[i + 1] == '\n')
            continue;
        copy[n++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (n && copy[n - 1] == '\n')
        n--;
    *len_out = n;
    return copy;
}

ls_status ls_jinja_lex(ls_jinja *tpl, const char *text, size_t len, ls_jinja_token **out)
{
    lexer x = {.tpl = tpl, .line = 1, .line_starts = true};
    size_t n;

    x.p = copy_text(tpl, text, len, &n);
    if (!x.p)
        return LS_ENOMEM;
    x.end = x.p + n;
    while (x.st == LS_OK && x.p < x.end) {
        const char *tag = find_tag(&x, x.p);
        if (tag) {
            lex_tag(&x, tag);
        } else {
            push_data(&x, x.end, '+', true);
            x.p = x.end;
        }
    }
    push(&x, LS_JINJA_END);
    if (x.st == LS_OK) {
        size_t bytes = (size_t)x.count * sizeof *x.tokens;
        *out = ls_arena_alloc(&tpl->arena, bytes);
        if (*out)
            memcpy(*out, x.tokens, bytes);
        else
            x.st = LS_ENOMEM;
    }
    ls_mem_free(x.tokens);
    return x.st;
}
