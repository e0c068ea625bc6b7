/* str.h -- a growing string of bytes.
 *
 * p is never NULL after init and always ends in '\0', which is not counted in len. Running out of
 * memory is sticky: later appends do nothing and ls_str_status() says so, so that a long row of
 * appends needs one check. Clearing keeps the capacity, so a string that is reused each step does
 * not touch the heap. */
#pragma once
#include "base/err.h"
#include <stdarg.h>

LS_C_BEGIN

typedef struct ls_str {
    char *p;     /* owned, unless cap is 0: then the shared empty string */
    size_t len;  /* bytes before the final '\0' */
    size_t cap;  /* bytes allocated */
    bool failed; /* an append found no memory */
} ls_str;

void ls_str_init(ls_str *s);
void ls_str_release(ls_str *s); /* leaves s empty and usable */
void ls_str_clear(ls_str *s);   /* len = 0, capacity kept, failure forgotten */

/* Make room for cap bytes in all. */
void ls_str_reserve(ls_str *s, size_t cap);

void ls_str_append(ls_str *s, const char *text);
void ls_str_append_bytes(ls_str *s, const void *bytes, size_t len);
void ls_str_append_char(ls_str *s, char c);
void ls_str_printf(ls_str *s, const char *fmt, ...) LS_PRINTF(2, 3);

/* Text of unknown origin as one line that a terminal may get: control characters, line ends among them,
 * and what is not UTF-8 as \n, \t or \x1b. */
void ls_str_append_visible(ls_str *s, const char *text, size_t len);

/* Bytes of the valid UTF-8 character at p, of which left >= 1 are there; 0 when there is none. */
size_t ls_str_utf8_len(const unsigned char *p, size_t left);

/* LS_ENOMEM when an append was lost since init or clear. */
ls_status ls_str_status(const ls_str *s);

/* "" for one, else "s": the end of a noun behind a number. */
static inline const char *ls_str_plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

/* Edit distance between two names with case ignored: the base of "did you mean". */
int ls_str_distance(const char *a, const char *b);

LS_C_END
