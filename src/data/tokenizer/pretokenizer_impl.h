/* pretokenizer_impl.h -- the hand-written scanners; for the data room only. */
#pragma once
#include "base/err.h"

/* What a character is for the known patterns. */
typedef enum ls_pretokenizer_class {
    LS_PRETOKENIZER_OTHER = 0,
    LS_PRETOKENIZER_LETTER,  /* \p{L} */
    LS_PRETOKENIZER_NUMBER,  /* \p{N} */
    LS_PRETOKENIZER_SPACE,   /* \s but the two below */
    LS_PRETOKENIZER_NEWLINE, /* \r and \n */
} ls_pretokenizer_class;

enum { LS_PRETOKENIZER_CODES = 0x32400 }; /* every character above is OTHER */

/* Fill the classes of the LS_PRETOKENIZER_CODES first code points. */
void ls_pretokenizer_fill(unsigned char *classes);

/* Class of the character at p and its length; p is valid UTF-8. */
static inline int ls_pretokenizer_class_at(const unsigned char *classes, const unsigned char *p,
                                           size_t *n_out)
{
    uint32_t c = p[0];

    if (c < 0x80) {
        *n_out = 1;
        return classes[c];
    }
    if (c < 0xe0) {
        *n_out = 2;
        return classes[(c & 0x1f) << 6 | (p[1] & 0x3fu)];
    }
    if (c < 0xf0) {
        *n_out = 3;
        return classes[(c & 0x0f) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu)];
    }
    *n_out = 4;
    c = (c & 0x07) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
    return c < LS_PRETOKENIZER_CODES ? classes[c] : LS_PRETOKENIZER_OTHER;
}

/* The end of the piece at `at`; at < len, valid UTF-8. */
typedef size_t ls_pretokenizer_scan(const unsigned char *classes, const unsigned char *text,
                                    size_t len, size_t at);
ls_pretokenizer_scan ls_pretokenizer_scan_gpt2, ls_pretokenizer_scan_llama3,
    ls_pretokenizer_scan_qwen2;
