/* fuzz_shard.c -- any bytes as a shard: open, verify, read windows and documents.
 *
 * The first byte says whether the header's checksum is made right, because a fuzzer does not guess
 * a CRC, and a hostile file would carry a right one. */
#include <stdlib.h>
#include "data/corpus/token_shard_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_windows(const ls_token_shard *shard)
{
    int32_t ids[17];
    int64_t step = shard->tokens / 8 + 1;

    for (int64_t at = 0; at < shard->tokens; at += step) {
        int64_t n = ls_min_i64((int64_t)LS_COUNT(ids), shard->tokens - at);
        if (ls_token_shard_read(shard, at, n, ids) != LS_OK)
            continue;
        for (int64_t i = 0; i < n; i++)
            if (ids[i] < 0 || ids[i] >= shard->vocab)
                abort();
        int64_t document = ls_token_shard_document_at(shard, at);
        int64_t start = ls_token_shard_start(shard, document);
        if (document < 0 || document >= shard->documents || start < 0 || start > shard->tokens)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ls_token_shard shard;
    unsigned char *copy;

    if (size == 0)
        return 0;
    copy = malloc(size);
    if (!copy)
        return 0;
    memcpy(copy, data + 1, size - 1);
    if (data[0] % 2 == 0 && size - 1 >= LS_TOKEN_SHARD_HEADER) {
        uint32_t crc = ls_hash_crc32c(0, copy, offsetof(ls_token_shard_header, crc));
        memcpy(copy + offsetof(ls_token_shard_header, crc), &crc, sizeof crc);
    }
    if (ls_token_shard_view(&shard, copy, size - 1, "fuzz") == LS_OK) {
        ls_status st = ls_token_shard_verify(&shard);
        if (st != LS_OK && st != LS_EDATA)
            abort();
        read_windows(&shard);
        ls_token_shard_close(&shard);
    }
    free(copy);
    return 0;
}
