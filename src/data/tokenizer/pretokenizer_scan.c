/* pretokenizer_scan.c -- the patterns of GPT-2, Llama-3 and Qwen2 as code.
 *
 * Each pattern is a list of alternatives over four sets of characters: letters, numbers, white
 * space and all others. Which alternative applies is decided by the first two or three characters,
 * and each of them is a run of one set, so a piece costs one look at each of its characters and no
 * backtracking. The two places where an expression goes back are computed:
 *
 *   \s+(?!\S)    white space up to, but without, its last character when text follows; so in
 *                "a   b" the pieces are "a", two spaces, and " b"
 *   \s*[\r\n]+   white space up to the last line end in it
 *
 * The sets are tables of code points: those of the `tokenizers` package, whose ids must be matched,
 * and not those of whatever Unicode version a library on this machine has. */
#include "data/tokenizer/pretokenizer_impl.h"

#include "data/tokenizer/pretokenizer_table.h"

static void fill_runs(unsigned char *classes, const uint16_t *runs, size_t n, int class)
{
    uint32_t at = 0;

    for (size_t i = 0; i < n; at += runs[i], i++) {
        LS_BUG_IF(at + runs[i] > LS_PRETOKENIZER_CODES, "U+%X is outside the table", at + runs[i]);
        if (i % 2)
            memset(classes + at, class, runs[i]);
    }
}

void ls_pretokenizer_fill(unsigned char *classes)
{
    static const uint16_t spaces[][2] = {
        {0x09, 0x0d},     {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680},
        {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};

    memset(classes, LS_PRETOKENIZER_OTHER, LS_PRETOKENIZER_CODES);
    fill_runs(classes, letter_runs, LS_COUNT(letter_runs), LS_PRETOKENIZER_LETTER);
    fill_runs(classes, number_runs, LS_COUNT(number_runs), LS_PRETOKENIZER_NUMBER);
    for (size_t i = 0; i < LS_COUNT(spaces); i++)
        memset(classes + spaces[i][0], LS_PRETOKENIZER_SPACE, spaces[i][1] - spaces[i][0] + 1u);
    classes['\r'] = classes['\n'] = LS_PRETOKENIZER_NEWLINE;
}

/* The end of the run of one class that goes on at i. */
static inline size_t run(const unsigned char *classes, const unsigned char *text, size_t len,
                         size_t i, int class)
{
    size_t n;

    for (;;) {
        while (i < len && text[i] < 0x80) {
            if (classes[text[i]] != class)
                return i;
            i++;
        }
        if (i >= len || ls_pretokenizer_class_at(classes, text + i, &n) != class)
            return i;
        i += n;
    }
}

/* White space at `at`: its last line end when newlines is true and there is one, else everything
 * but the last character, else (a single one, or the end of the text) everything. */
static size_t white_space(const unsigned char *classes, const unsigned char *text, size_t len,
                          size_t at, bool newlines)
{
    size_t i = at, last = at, after_newline = at, n;

    while (i < len) {
        int class = ls_pretokenizer_class_at(classes, text + i, &n);
        if (class < LS_PRETOKENIZER_SPACE)
            break;
        last = i;
        i += n;
        if (class == LS_PRETOKENIZER_NEWLINE)
            after_newline = i;
    }
    if (newlines && after_newline > at)
        return after_newline;
    return i == len || last == at ? i : last;
}

/* Bytes of 's 't 're 've 'm 'll 'd at p, which is an apostrophe; 0: something else. Without regard
 * to case, U+017F is an s too. */
static size_t contraction(const unsigned char *p, size_t left, bool any_case)
{
    unsigned char a = left > 1 ? p[1] : 0, b = left > 2 ? p[2] : 0;

    if (any_case) {
        if (a == 0xc5 && b == 0xbf)
            return 3;
        a = a >= 'A' && a <= 'Z' ? a | 0x20 : a;
        b = b >= 'A' && b <= 'Z' ? b | 0x20 : b;
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    return (b == 'e' && (a == 'r' || a == 'v')) || (a == 'l' && b == 'l') ? 3 : 0;
}

/* '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
size_t ls_pretokenizer_scan_gpt2(const unsigned char *classes, const unsigned char *text,
                                 size_t len, size_t at)
{
    size_t n;
    int class = ls_pretokenizer_class_at(classes, text + at, &n);

    if (text[at] == ' ' && at + 1 < len) {
        int next = ls_pretokenizer_class_at(classes, text + at + 1, &n);
        if (next < LS_PRETOKENIZER_SPACE)
            return run(classes, text, len, at + 1 + n, next);
    }
    if (text[at] == '\'') {
        size_t bytes = contraction(text + at, len - at, false);
        if (bytes)
            return at + bytes;
    }
    if (class < LS_PRETOKENIZER_SPACE)
        return run(classes, text, len, at + n, class);
    return white_space(classes, text, len, at, false);
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|
 * \s*[\r\n]+|\s+(?!\S)|\s+ */
static inline size_t scan_llama(const unsigned char *classes, const unsigned char *text, size_t len,
                                size_t at, int digits)
{
    size_t n, m, i;
    int class = ls_pretokenizer_class_at(classes, text + at, &n);
    int next = LS_PRETOKENIZER_NEWLINE;

    i = at + n;
    if (class == LS_PRETOKENIZER_LETTER)
        return run(classes, text, len, i, LS_PRETOKENIZER_LETTER);
    if (class == LS_PRETOKENIZER_NUMBER) {
        for (int k = 1; k < digits && i < len; k++, i += n)
            if (ls_pretokenizer_class_at(classes, text + i, &n) != LS_PRETOKENIZER_NUMBER)
                break;
        return i;
    }
    if (text[at] == '\'') {
        size_t bytes = contraction(text + at, len - at, true);
        if (bytes)
            return at + bytes;
    }
    if (i < len)
        next = ls_pretokenizer_class_at(classes, text + i, &m);
    if (class != LS_PRETOKENIZER_NEWLINE && next == LS_PRETOKENIZER_LETTER)
        return run(classes, text, len, i + m, LS_PRETOKENIZER_LETTER);
    if (class == LS_PRETOKENIZER_OTHER || (text[at] == ' ' && next == LS_PRETOKENIZER_OTHER)) {
        i = run(classes, text, len, i, LS_PRETOKENIZER_OTHER);
        while (i < len && (text[i] == '\r' || text[i] == '\n'))
            i++;
        return i;
    }
    return white_space(classes, text, len, at, true);
}

size_t ls_pretokenizer_scan_llama3(const unsigned char *classes, const unsigned char *text,
                                   size_t len, size_t at)
{
    return scan_llama(classes, text, len, at, 3);
}

size_t ls_pretokenizer_scan_qwen2(const unsigned char *classes, const unsigned char *text,
                                  size_t len, size_t at)
{
    return scan_llama(classes, text, len, at, 1);
}
