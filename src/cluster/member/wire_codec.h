/* wire_codec.h -- numbers and short texts in a message, written and read in the same order.
 *
 * Reading beyond the end is sticky and gives zeros, so that a row of reads needs one check, and
 * hostile bytes can do nothing worse. */
#pragma once
#include <stddef.h>
#include "base/err.h"
#include "base/str.h"

LS_C_BEGIN

void ls_wire_codec_put(ls_str *out, uint64_t value, int bytes); /* little-endian, 1 to 8 bytes */
void ls_wire_codec_put_text(ls_str *out, const char *text);     /* at most 65535 bytes */
/* A text from anywhere, cut off at cap with its final '\0': control characters, which a reader
 * would refuse, become blanks. */
void ls_wire_codec_put_line(ls_str *out, const char *text, size_t cap);
void ls_wire_codec_put_count(ls_str *out, uint32_t value); /* small ones in one byte */

typedef struct ls_wire_codec {
    const uint8_t *at; /* borrowed */
    size_t left;
    bool bad; /* something was not there */
} ls_wire_codec;

uint64_t ls_wire_codec_get(ls_wire_codec *in, int bytes);
uint32_t ls_wire_codec_get_count(ls_wire_codec *in);
/* A text that fits into cap with its final '\0' and holds no control characters; else bad. */
void ls_wire_codec_get_text(ls_wire_codec *in, char *text_out, size_t cap);

/* The next len bytes; NULL, and bad: there are fewer. */
const void *ls_wire_codec_get_bytes(ls_wire_codec *in, size_t len);

/* A table of the numbers and texts of a struct, which is written and read by the same rows. A
 * number has its width in the message: 2 bytes of an int are 0 to 65535, all 4 include the negative
 * ones. A text is an array of char, and is written as by ls_wire_codec_put_line(). Example:
 *
 *     {.at = offset of port, .size = 4, .bytes = 2}      port 7000  ->  58 1b
 *     {.at = offset of host, .size = 64, .bytes = 0}     host "h1"  ->  02 00 68 31 */
typedef struct ls_wire_field {
    uint16_t at, size; /* in the struct; a size of 1 is a bool */
    uint16_t bytes;    /* in the message; 0: a text */
} ls_wire_field;
#define LS_WIRE_NUMBER(type, member, bytes)                        \
    {                                                              \
        offsetof(type, member), sizeof(((type *)0)->member), bytes \
    }
#define LS_WIRE_TEXT(type, member)                             \
    {                                                          \
        offsetof(type, member), sizeof(((type *)0)->member), 0 \
    }
void ls_wire_codec_put_fields(ls_str *out, const void *from, const ls_wire_field *fields, size_t n);
void ls_wire_codec_get_fields(ls_wire_codec *in, void *to_out, const ls_wire_field *fields,
                              size_t n);

/* The rows of an error record: code, text, hint, doing. A decoded record points at no file. */
enum { LS_WIRE_RECORD = 4 };
extern const ls_wire_field ls_wire_codec_record[LS_WIRE_RECORD];

/* Nothing was missing and nothing is left over. */
bool ls_wire_codec_done(const ls_wire_codec *in);

LS_C_END
