/* hash.h -- content names and checksums.
 *
 * XXH3 with 128 bits names content and finds damage; it does not stop a deliberate change. CRC32C
 * guards blocks inside files and frames. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

typedef struct ls_hash {
    uint64_t hi, lo;
} ls_hash;

enum { LS_HASH_HEX = 33 }; /* 32 digits and the final '\0' */

/* A hash in progress; holds no resources. */
typedef struct ls_hash_stream {
    unsigned char state[640] __attribute__((aligned(64)));
} ls_hash_stream;

ls_hash ls_hash_bytes(const void *bytes, size_t len);

void ls_hash_begin(ls_hash_stream *stream);
void ls_hash_add(ls_hash_stream *stream, const void *bytes, size_t len);
ls_hash ls_hash_end(const ls_hash_stream *stream);

bool ls_hash_equal(ls_hash a, ls_hash b);
void ls_hash_hex(ls_hash hash, char hex_out[LS_HASH_HEX]);
/* LS_EDATA unless text is exactly 32 lower-case hexadecimal digits. */
ls_status ls_hash_parse(const char *text, ls_hash *hash_out);

/* CRC32C (Castagnoli) of bytes, continued from crc (0 at the start). */
uint32_t ls_hash_crc32c(uint32_t crc, const void *bytes, size_t len);

LS_C_END
