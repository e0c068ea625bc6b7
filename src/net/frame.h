/* frame.h -- control messages over a connection whose handshake has passed.
 *
 * A frame is a type, a payload of limited length, a number that counts up by one, and an
 * HMAC-SHA256 of all of it with the key of its direction. A frame that is longer than the limit,
 * out of sequence or not of the key is LS_EDATA, and the link is over: nothing of it is handed out.
 * The socket does not block; what cannot be sent at once waits in a queue of limited size. */
#pragma once
#include "net/handshake.h"

LS_C_BEGIN

enum { LS_FRAME_HEADER = 16, LS_FRAME_MAC = 32 };

typedef struct ls_frame {
    uint16_t type;          /* the caller's */
    const uint8_t *payload; /* borrowed until the next receive or release */
    uint32_t bytes;
} ls_frame;

typedef struct ls_frame_link {
    int fd; /* owned; -1 when released */
    uint8_t send_key[LS_HANDSHAKE_KEY], receive_key[LS_HANDSHAKE_KEY];
    uint64_t sent, received;      /* frames so far */
    uint64_t sent_bytes;          /* of these, on the wire */
    uint32_t limit;               /* longest payload */
    uint8_t *in, *out;            /* owned */
    size_t in_at, in_len, in_cap; /* handed out; there; allocated */
    bool ahead;                   /* the owner's: read beyond a frame; it takes all that is there */
    bool drained;                 /* the socket had no more when it was last read */
    size_t out_at, out_len, out_cap;
} ls_frame_link;

/* Takes fd and the keys of handshake. Payloads may have limit_bytes; the queue holds four of them. */
void ls_frame_init(ls_frame_link *link, int fd, const ls_handshake *handshake,
                   uint32_t limit_bytes);
void ls_frame_release(ls_frame_link *link);

/* Queue a frame and send what can be sent now. LS_EBUSY: the queue is full, the other side does not
 * read. LS_EUSAGE: longer than the limit. */
ls_status ls_frame_send(ls_frame_link *link, uint16_t type, const void *payload, size_t bytes);

/* Send what waits. */
ls_status ls_frame_flush(ls_frame_link *link);
bool ls_frame_waiting(const ls_frame_link *link); /* whether something waits to be sent */

/* The next whole frame, if there is one now. None: wait until fd is readable before the next call.
 * LS_EIO: the connection is over. */
ls_status ls_frame_receive(ls_frame_link *link, ls_frame *frame_out, bool *got_out);

LS_C_END
