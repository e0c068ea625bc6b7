/* handshake.h -- the handshake at the start of a connection: both sides prove that they know the job's
 * secret.
 *
 *   connects                                   accepts
 *   hello (64 bytes)            --->
 *                               <---           hello (64 bytes), proof (32)
 *   proof (32)                  --->
 *
 * A hello has a fixed size: magic, version, purpose, generation, sender, intended receiver, a
 * number of the caller's, a nonce. A proof is an HMAC-SHA256 with the secret over a label of the
 * direction and everything said so far, so none can be replayed, sent back or moved to another
 * connection. Only magic and version are used before the other side's proof was checked, and no
 * memory is taken for a stranger but this struct. Both sides then know each other's hello and share
 * two fresh keys, one for each direction. Nothing is encrypted. */
#pragma once
#include "net/mac.h"

LS_C_BEGIN

enum { LS_HANDSHAKE_BYTES = 64, LS_HANDSHAKE_PROOF = LS_MAC_BYTES, LS_HANDSHAKE_KEY = 32 };

typedef enum ls_handshake_purpose {
    LS_HANDSHAKE_DATA = 1,
    LS_HANDSHAKE_CONTROL = 2
} ls_handshake_purpose;

/* What a side says of itself. */
typedef struct ls_handshake_side {
    ls_handshake_purpose purpose;
    uint64_t generation;
    uint32_t from, to; /* members; what they count is the purpose's */
    uint64_t detail;   /* the caller's: which channel, for example */
} ls_handshake_side;

typedef struct ls_handshake_args {
    const uint8_t *secret; /* 32 bytes, borrowed until the hello has ended */
    bool connects;         /* this side has called the other */
    ls_handshake_side
        self; /* the accepting side answers with the other's `detail` instead of its own */
    int64_t deadline_ns; /* for the whole exchange */
} ls_handshake_args;

typedef struct ls_handshake {
    ls_handshake_args args;
    int state;
    size_t at, len;                     /* of the bytes that this state reads or writes */
    uint8_t called[LS_HANDSHAKE_BYTES]; /* hello of the side that connects */
    uint8_t answer[LS_HANDSHAKE_BYTES +
                   LS_HANDSHAKE_PROOF]; /* of the other, with its proof behind it */
    uint8_t proof[LS_HANDSHAKE_PROOF];  /* of the side that connects */
    ls_handshake_side peer;
    uint8_t send_key[LS_HANDSHAKE_KEY], receive_key[LS_HANDSHAKE_KEY]; /* valid when done */
} ls_handshake;

/* Draw a nonce and get ready; nothing is sent yet. */
ls_status ls_handshake_begin(ls_handshake *hello, const ls_handshake_args *args);

/* Go as far as fd allows now. When *done_out is false and nothing failed, call again once fd is
 * ready for ls_handshake_events(). Never reads beyond the hello. LS_EDATA: not ours, another version,
 * another secret, another generation or purpose. LS_EIO: closed. LS_EDEADLINE: too slow. */
ls_status ls_handshake_step(ls_handshake *hello, int fd, bool *done_out);
int ls_handshake_events(const ls_handshake *hello); /* POLLIN or POLLOUT */

/* All steps, waiting. */
ls_status ls_handshake_run(ls_handshake *hello, int fd);

/* Wipe keys. The struct holds nothing else. */
void ls_handshake_release(ls_handshake *hello);

/* Whether the other side has sent anything at all. */
bool ls_handshake_heard(const ls_handshake *hello);

LS_C_END
