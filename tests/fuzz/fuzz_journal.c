/* fuzz_journal.c -- any bytes as the log of a coordinator, and its records as promises and
 * messages.
 *
 * Half of the inputs get a sound header, and a sound checksum for each record whose length fits. */
#include <stdlib.h>
#include <string.h>
#include "base/hash.h"
#include "cluster/elect/journal.h"
#include "cluster/elect/quorum.h"
#include "net/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static ls_status take(void *context, const void *bytes, size_t len)
{
    static ls_quorum_promise promise;
    static ls_quorum_view view;
    ls_quorum_message message;

    *(size_t *)context += len + LS_JOURNAL_HEAD;
    (void)ls_quorum_decode(&promise, bytes, len);
    (void)ls_quorum_decode_message(&message, &view, bytes, len);
    return LS_OK;
}

/* Header and checksums as they would be. */
static void make_sound(uint8_t *bytes, size_t size)
{
    uint64_t number = 1;

    memset(bytes, 0, LS_JOURNAL_HEADER);
    memcpy(bytes, "LSJRNL1\n", 8);
    ls_wire_put64(bytes + 8, number);
    ls_wire_put32(bytes + 16, ls_hash_crc32c(0, bytes, 16));
    for (size_t at = LS_JOURNAL_HEADER; size - at >= LS_JOURNAL_HEAD; number++) {
        uint32_t len = ls_wire_get32(bytes + at) % 200;
        if (len > size - at - LS_JOURNAL_HEAD)
            break;
        ls_wire_put32(bytes + at, len);
        ls_wire_put64(bytes + at + 8, number);
        uint32_t crc = ls_hash_crc32c(0, bytes + at, 4);
        crc = ls_hash_crc32c(crc, bytes + at + 8, 8 + len);
        ls_wire_put32(bytes + at + 4, crc);
        at += LS_JOURNAL_HEAD + len;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ls_journal_found found;
    size_t sum = 0;

    if (size < 1 || size > 1 << 16)
        return 0;
    uint8_t *bytes = malloc(size);
    if (!bytes)
        return 0;
    memcpy(bytes, data, size);
    if ((data[0] & 1) && size >= LS_JOURNAL_HEADER)
        make_sound(bytes, size);
    if (ls_journal_replay(bytes, size, take, &sum, &found) != LS_OK ||
        found.sound_bytes + found.cut_bytes != (int64_t)size ||
        (found.sound_bytes > 0 && found.sound_bytes != (int64_t)sum + LS_JOURNAL_HEADER))
        abort();
    free(bytes);
    return 0;
}
