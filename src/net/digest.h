/* digest.h -- SHA-256 of bytes as they come: a name for which no other bytes can be found. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

enum { LS_DIGEST_BYTES = 32, LS_DIGEST_HEX = 65 }; /* 64 digits and the final '\0' */

typedef struct ls_digest {
    void *context; /* owned; NULL: not begun, or released */
} ls_digest;

ls_status ls_digest_begin(ls_digest *digest);
/* A failure is reported by the end. */
void ls_digest_add(ls_digest *digest, const void *bytes, size_t len);
/* The digest; nothing more can be added. LS_EFAIL: libcrypto could not compute it. */
ls_status ls_digest_end(ls_digest *digest, uint8_t digest_out[LS_DIGEST_BYTES]);
/* Safe on a zeroed, ended or released one. */
void ls_digest_release(ls_digest *digest);

/* All at once. */
ls_status ls_digest_bytes(const void *bytes, size_t len, uint8_t digest_out[LS_DIGEST_BYTES]);

void ls_digest_hex(const uint8_t digest[LS_DIGEST_BYTES], char hex_out[LS_DIGEST_HEX]);
/* 64 lower-case hexadecimal digits at text, whatever follows them; false: they are not. */
bool ls_digest_parse(const char *text, uint8_t digest_out[LS_DIGEST_BYTES]);

LS_C_END
