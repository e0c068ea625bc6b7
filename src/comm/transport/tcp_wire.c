/* tcp_wire.c -- writes and reads the 64-byte header (drawn in tcp_wire.h). All lengths and kinds
 * are checked here, before any other code uses them.
 *
 * Example: the second chunk (256 KiB) of a message with tag 7, the 5th counted frame of channel 1,
 * in generation 2, when 3 frames have come the other way (bytes in hexadecimal, low byte first):
 *
 *      0  4c 73 74 31  "Lst1"          4  08 01 00 00  CHUNK_OF, channel 1, no flags
 *      8  02 00 ...    generation     16  05 00 ...    sequence      24  07 00 ...  tag
 *     32  00 00 04 00 ...  offset 262144                40  00 00 04 00  length 262144
 *     44  its CRC32C                  48  03 00 ...    ack           56  consumed    60  CRC32C
 *
 * A header without a payload has length 0 and no checksum of one. */
#include "comm/transport/tcp_wire.h"

#include "base/hash.h"
#include "net/wire.h"

static const uint8_t magic[4] = {'L', 's', 't', '1'};

void ls_tcp_wire_put(const ls_tcp_wire *wire, uint8_t bytes_out[LS_TCP_WIRE_BYTES])
{
    memcpy(bytes_out, magic, sizeof magic);
    bytes_out[4] = wire->kind;
    bytes_out[5] = wire->channel;
    ls_wire_put16(bytes_out + 6, wire->flags);
    ls_wire_put64(bytes_out + 8, wire->generation);
    ls_wire_put64(bytes_out + 16, wire->sequence);
    ls_wire_put64(bytes_out + 24, wire->tag);
    ls_wire_put64(bytes_out + 32, wire->offset);
    ls_wire_put32(bytes_out + 40, wire->length);
    ls_wire_put32(bytes_out + 44, wire->crc);
    ls_wire_put64(bytes_out + 48, wire->ack);
    ls_wire_put32(bytes_out + 56, wire->consumed);
    ls_wire_put32(bytes_out + 60, ls_hash_crc32c(0, bytes_out, 60));
}

const char *ls_tcp_wire_get(const uint8_t bytes[LS_TCP_WIRE_BYTES], ls_tcp_wire *wire_out)
{
    ls_tcp_wire wire = {.kind = bytes[4],
                        .channel = bytes[5],
                        .flags = ls_wire_get16(bytes + 6),
                        .generation = ls_wire_get64(bytes + 8),
                        .sequence = ls_wire_get64(bytes + 16),
                        .tag = ls_wire_get64(bytes + 24),
                        .offset = ls_wire_get64(bytes + 32),
                        .length = ls_wire_get32(bytes + 40),
                        .crc = ls_wire_get32(bytes + 44),
                        .ack = ls_wire_get64(bytes + 48),
                        .consumed = ls_wire_get32(bytes + 56)};
    uint32_t most = 0;

    if (memcmp(bytes, magic, sizeof magic) != 0)
        return "not a frame of this program";
    if (ls_wire_get32(bytes + 60) != ls_hash_crc32c(0, bytes, 60))
        return "the header's checksum is wrong";
    if (wire.kind == 0 || wire.kind >= LS_TCP_WIRE_KINDS)
        return "a frame of an unknown kind";
    if (wire.kind == LS_TCP_WIRE_EAGER || wire.kind == LS_TCP_WIRE_CHUNK_OF)
        most = LS_TCP_WIRE_CHUNK;
    else if (wire.kind == LS_TCP_WIRE_FAILED)
        most = LS_TCP_WIRE_FAIL;
    else if (wire.kind == LS_TCP_WIRE_WHERE)
        most = LS_TCP_WIRE_ANSWER;
    if (wire.length > most)
        return "an absurd length";
    if (wire.offset > (uint64_t)INT64_MAX - LS_TCP_WIRE_CHUNK)
        return "an absurd offset";
    if ((wire.sequence != 0) != ls_tcp_wire_counted(wire.kind))
        return "a sequence number where there is none, or none where there must be one";
    *wire_out = wire;
    return NULL;
}
