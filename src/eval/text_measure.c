/* text_measure.c -- see text_measure.h. */
#include "eval/text_measure.h"

#include "data/tokenizer/utf8.h"

/* What Python's \s and str.isspace() have. */
static bool is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

/* The character at p; returns its bytes. */
static size_t read_character(const unsigned char *p, size_t left, uint32_t *c_out)
{
    int n = ls_utf8_next(p, left);

    *c_out = p[0];
    if (n <= 1)
        return 1;
    *c_out = p[0] & (0x7fu >> n);
    for (int i = 1; i < n; i++)
        *c_out = *c_out << 6 | (p[i] & 0x3f);
    return (size_t)n;
}

int64_t ls_text_measure_words(const char *text, size_t len)
{
    const unsigned char *p = (const unsigned char *)text;
    bool before = false;
    int64_t n = 1;

    for (size_t i = 0; i < len;) {
        uint32_t c;
        i += read_character(p + i, len - i, &c);
        n += is_space(c) && !before;
        before = is_space(c);
    }
    return n;
}

int64_t ls_text_measure_characters(const char *text, size_t len)
{
    int64_t n = 0;
    uint32_t c;

    for (size_t i = 0; i < len; n++)
        i += read_character((const unsigned char *)text + i, len - i, &c);
    return n;
}

size_t ls_text_measure_trimmed(const char *text, size_t len)
{
    size_t end = 0;
    uint32_t c;

    for (size_t i = 0; i < len;) {
        i += read_character((const unsigned char *)text + i, len - i, &c);
        if (!is_space(c))
            end = i;
    }
    return end;
}
