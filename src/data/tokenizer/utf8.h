/* utf8.h -- reading UTF-8 one character at a time, even when it is broken or cut off.
 *
 * One function decides what the next bytes are; text sources and the streaming decoder of the
 * tokenizer both build on it, so they agree on what is invalid and how much of it one U+FFFD
 * replaces (the longest beginning of a character, as the Unicode standard advises). */
#pragma once
#include "base/str.h"
#include "config/run.h"

LS_C_BEGIN

#define LS_UTF8_REPLACEMENT "\xef\xbf\xbd"

/* What stands at p, of which left >= 1 bytes are there:
 *   1 to 4    a valid character of that many bytes
 *   0         the beginning of a character that the end of the bytes cuts off
 *   -1 to -3  invalid: this many bytes make one U+FFFD */
int ls_utf8_next(const unsigned char *p, size_t left);

/* Bytes at the front that are whole valid characters; stops at the first that is not. */
size_t ls_utf8_valid(const void *bytes, size_t len);

/* Append bytes with each invalid part replaced, a cut-off character at the end included. */
void ls_utf8_append_clean(ls_str *out, const void *bytes, size_t len);

/* "strict", "replace" or "bytes"; LS_EUSAGE for anything else. */
ls_status ls_utf8_parse_policy(const char *text, ls_utf8_policy *policy_out);

LS_C_END
