/* token_shard_impl.h -- the header of a shard as it lies in the file; for the data room only.
 *
 * Little endian, no padding. The tokens follow at tokens_at, the document starts (8 bytes each) at
 * starts_at, the next multiple of 8. In version 1 the file ends right after them; in version 2 the
 * marks follow, one bit per token, lowest bit first, and then it ends. */
#pragma once
#include "data/corpus/token_shard.h"
#include <assert.h>

#define LS_TOKEN_SHARD_MAGIC "LSTOKENS"

typedef struct ls_token_shard_header {
    char magic[8];
    uint32_t version, header_bytes, width, vocab;
    uint64_t tokens, documents, tokens_at, starts_at;
    ls_hash tokenizer_hash, source_hash, tokens_hash, starts_hash, key;
    int32_t separator;
    uint32_t reserved0; /* 0 */
    char tokenizer[LS_TOKEN_SHARD_TOKENIZER];
    char source[LS_TOKEN_SHARD_SOURCE];
    /* version 2 only, 0 in version 1 */
    uint64_t marks_at, window, marked;
    ls_hash marks_hash;
    uint32_t reserved1; /* 0 */
    uint32_t crc;       /* CRC32C of everything before it */
} ls_token_shard_header;

static_assert(sizeof(ls_token_shard_header) == LS_TOKEN_SHARD_HEADER, "the header has no padding");
static_assert(offsetof(ls_token_shard_header, crc) == LS_TOKEN_SHARD_HEADER - 4,
              "the checksum comes last");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shards are mapped as they are");

static inline uint64_t ls_token_shard_starts_at(uint64_t tokens, uint64_t width)
{
    return (LS_TOKEN_SHARD_HEADER + tokens * width + 7) / 8 * 8;
}

static inline uint64_t ls_token_shard_mark_bytes(uint64_t tokens)
{
    return tokens / 8 + (tokens % 8 != 0);
}
