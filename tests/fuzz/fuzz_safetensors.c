/* fuzz_safetensors.c -- bytes as the JSON header of a safetensors file with 64 bytes of data: the
 * length in front is always right, so that the fuzzer gets past it. */
#include "checkpoint/safetensors.h"

#include "base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { DATA = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ls_safetensors file;
    uint64_t n = size;
    unsigned char *bytes = ls_mem_alloc(8 + size + DATA);

    if (!bytes)
        return 0;
    memcpy(bytes, &n, 8);
    if (size)
        memcpy(bytes + 8, data, size);
    if (ls_safetensors_parse(&file, bytes, 8 + size + DATA, "fuzz") == LS_OK) {
        int64_t sum = 0;
        for (int i = 0; i < file.count; i++)
            sum += file.entries[i].end - file.entries[i].begin;
        LS_BUG_IF(sum != DATA, "%lld bytes of tensors in %d bytes", (long long)sum, DATA);
    }
    ls_safetensors_close(&file);
    ls_mem_free(bytes);
    return 0;
}
