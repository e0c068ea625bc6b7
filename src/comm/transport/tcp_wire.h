/* tcp_wire.h -- the 64 bytes in front of every payload of the TCP transport.
 *
 *    0 magic    4 kind, channel, flags   8 generation   16 sequence   24 tag      32 offset
 *   40 length  44 CRC32C of the payload 48 ack          56 consumed   60 CRC32C of these 60 bytes
 *
 * `ack` is the last sequence number received on this channel, `consumed` counts the bytes of small
 * messages that were taken out of their place at the receiver; both ride on every frame. */
#pragma once
#include "base/base.h"

enum {
    LS_TCP_WIRE_BYTES = 64,
    LS_TCP_WIRE_FAIL = 640,
    LS_TCP_WIRE_ANSWER = 64,
    LS_TCP_WIRE_CHUNK = 4 << 20
};

typedef enum ls_tcp_wire_kind {
    LS_TCP_WIRE_RESUME = 1, /* first frame of a connection; tag: instance, offset: settings */
    LS_TCP_WIRE_HEARTBEAT,  /* ack, consumed, and the sign of life */
    LS_TCP_WIRE_EAGER,      /* a small message */
    LS_TCP_WIRE_ANNOUNCE,   /* a send waits for its receive; offset: bytes */
    LS_TCP_WIRE_READY,      /* a receive is posted; offset: bytes */
    LS_TCP_WIRE_ASK,        /* where is rank `tag`? offset: the caller's */
    LS_TCP_WIRE_WHERE,      /* payload: there; the caller's bytes */
    LS_TCP_WIRE_CHUNK_OF,   /* bytes [offset, offset + length) of a large message */
    LS_TCP_WIRE_FAILED,     /* payload: why; offset: the rank that failed first */
    LS_TCP_WIRE_BYE,        /* closed on purpose */
    LS_TCP_WIRE_NUDGE,      /* open channel `offset` again: this side has given it up */
    LS_TCP_WIRE_KINDS
} ls_tcp_wire_kind;

enum { LS_TCP_WIRE_ANNOUNCED = 1 }; /* flag of a chunk: an ANNOUNCE was sent before it */

typedef struct ls_tcp_wire {
    uint8_t kind, channel;
    uint16_t flags;
    uint64_t generation, sequence, tag, offset;
    uint32_t length, crc;
    uint64_t ack;
    uint32_t consumed;
} ls_tcp_wire;

void ls_tcp_wire_put(const ls_tcp_wire *wire, uint8_t bytes_out[LS_TCP_WIRE_BYTES]);

/* NULL when the header is sound in itself, else what is wrong with it. */
const char *ls_tcp_wire_get(const uint8_t bytes[LS_TCP_WIRE_BYTES], ls_tcp_wire *wire_out);

/* Whether frames of this kind are counted, kept until confirmed and sent again. */
static inline bool ls_tcp_wire_counted(int kind)
{
    return kind >= LS_TCP_WIRE_EAGER && kind <= LS_TCP_WIRE_CHUNK_OF;
}
