/* wire_codec.h -- numbers and short texts in a message, written and read in the same order.
 *
 * Reading beyond the end is sticky and gives zeros, so that a row of reads needs one check, and
 * hostile bytes can do nothing worse. */
#pragma once
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

/* Nothing was missing and nothing is left over. */
bool ls_wire_codec_done(const ls_wire_codec *in);

LS_C_END
