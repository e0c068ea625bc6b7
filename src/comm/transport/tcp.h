/* tcp.h -- a transport between ranks at addresses: several TCP sockets for each pair.
 *
 * Every socket begins with the handshake of net/handshake.h; every frame carries the generation and is
 * checked by CRC32C. A connection that breaks is opened again and goes on after the last frame that
 * arrived; only when that takes longer than resume_ns does the transport fail.
 *
 * What is noticed, and when (by a rank that polls or sleeps in the transport):
 *   a process died          its connections end, and its port no longer answers: about 0.1 s
 *   a link was cut          no confirmation for user_timeout_ns, then no connection: about 0.8 s
 *   a process is stopped    its kernel still answers: silent, not dead. The caller's deadline ends
 *                           the wait; ls_tcp_heard() says since when the rank is silent
 *   a rank failed           it sends its reason to all peers it is connected to; they pass it on
 *   a rank closed           it says so; an error only for a rank that still wants something from it
 *
 * Up to LS_TCP_MESH ranks every pair is connected from the start, so each rank sees each death
 * itself. In larger worlds a rank keeps connections at distances of powers of two and opens others
 * at first use; neighbours see a death and pass it on: a few hops.
 *
 * A small send (up to eager_bytes) is copied and is done when the kernel has it. A large one goes
 * out of the caller's memory when its receive is posted, and is done when the other side has
 * confirmed it. The listening socket must belong to this process alone: one that a parent holds
 * open as well makes a dead rank look alive. */
#pragma once
#include "comm/transport/transport.h"

LS_C_BEGIN

enum { LS_TCP_SOCKETS = 8, LS_TCP_MESH = 64, LS_TCP_POSTS = 65536, LS_TCP_ANSWER_BYTES = 64 };

/* Whether the kernel sends large messages out of the caller's memory (tcp_zerocopy.c). */
typedef enum ls_tcp_zerocopy {
    LS_TCP_ZEROCOPY_AUTO, /* except on loopback, until the kernel says that it copies */
    LS_TCP_ZEROCOPY_ON,
    LS_TCP_ZEROCOPY_OFF
} ls_tcp_zerocopy;

typedef struct ls_tcp_args {
    int rank, ranks;
    uint64_t generation;
    const char *const *addresses; /* where each rank listens; NULL or "": not reached by TCP */
    const char *const *hosts;     /* for messages; may be NULL */
    int listen_fd;                /* borrowed until closed */
    const uint8_t *secret;        /* 32 bytes, borrowed while opening */
    /* Beside the messages: a peer asks about a rank (returns bytes of the answer; 0: nothing is
     * known), and an answer has come. Called inside poll; NULL: questions are ignored. */
    int (*answer)(void *context, int about, uint64_t what, uint8_t bytes_out[LS_TCP_ANSWER_BYTES]);
    void (*answered)(void *context, int about, const uint8_t *bytes, int len);
    /* Whether waiting for others while opening has become pointless, with a record; NULL: never. */
    bool (*broken)(void *context);
    void *context;
    /* Zero takes the default. The first three must be equal on all ranks. */
    int sockets;          /* for large messages of a pair, besides one for small ones: 1 (1 to 8) */
    int64_t eager_bytes;  /* what is sent before the receive is known: 64 KiB, the most there is */
    int64_t chunk_bytes;  /* of large messages: 256 KiB (4 KiB to 4 MiB, a multiple of 64) */
    int64_t spin_ns;      /* how long sleep spins before it sleeps: 50 us; negative: not at all */
    int64_t heartbeat_ns; /* 100 ms */
    int64_t user_timeout_ns;  /* 500 ms */
    int64_t resume_ns;        /* 1 s */
    ls_tcp_zerocopy zerocopy; /* each rank for itself */
} ls_tcp_args;

/* Open with all ranks that this one keeps a connection to; all ranks open at the same time.
 * LS_EDEADLINE names those that did not come. */
ls_status ls_tcp_open(ls_transport **transport_out, const ls_tcp_args *args, int64_t deadline_ns);

/* Break it with a reason that the others will report. */
void ls_tcp_abort(ls_transport *transport, const char *reason);

/* Ask a connected rank about itself or another one; the answer comes by `answered`. Returns whether
 * the question was sent. */
bool ls_tcp_ask(ls_transport *transport, int peer, int about, uint64_t what);

/* When bytes of this rank last arrived (monotonic time); 0: it is not connected. Poll first: bytes
 * that nobody has read yet do not count. */
int64_t ls_tcp_heard(const ls_transport *transport, int peer);

/* Counted for tests and bench/comm_tcp.c: what happened on the wire without the caller noticing. */
typedef struct ls_tcp_stats {
    int64_t breaks;  /* connections that ended unasked */
    int64_t resumed; /* and went on */
    int64_t damaged; /* frames that were not what was sent */
    int64_t refused; /* callers at the listening socket */
    int64_t writes;  /* calls of the kernel that sent something */
    int64_t lent;    /* of them, those without a copy by MSG_ZEROCOPY */
    int64_t copied;  /* of these, those that the kernel copied after all */
} ls_tcp_stats;
void ls_tcp_stats_get(const ls_transport *transport, ls_tcp_stats *stats_out);

LS_C_END
