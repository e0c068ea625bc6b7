/* acceptor.h -- accepts callers at a listening socket that prove that they know the job's secret.
 *
 * An acceptor runs the handshake with each caller at its own pace, and hands over the sockets of
 * those that passed. A stranger costs a few hundred bytes for at most the time of a handshake; when
 * the table is full, the oldest caller makes room. A refused caller leaves one line in the log
 * (warn), at most LS_ACCEPTOR_LINES a second; the rest is counted. A caller that says nothing and
 * leaves is not a refusal. */
#pragma once
#include "net/handshake.h"
#include "net/sock.h"

LS_C_BEGIN

enum { LS_ACCEPTOR_CALLERS = 128, LS_ACCEPTOR_LINES = 10 };

typedef struct ls_acceptor ls_acceptor;

typedef struct ls_acceptor_args {
    int listen_fd;          /* borrowed until the acceptor is closed */
    const uint8_t *secret;  /* borrowed until the acceptor is closed */
    ls_handshake_side self; /* `to` is ignored */
    int64_t handshake_ns;   /* time of a caller for its handshake; 0: 10 s */
    int callers;            /* to hear at a time; at least LS_ACCEPTOR_CALLERS, which 0 means */
} ls_acceptor_args;

ls_status ls_acceptor_open(ls_acceptor **acceptor_out, const ls_acceptor_args *args);
void ls_acceptor_close(ls_acceptor *acceptor); /* NULL is allowed */

/* A descriptor that is readable (for poll or epoll) when ls_acceptor_next() has something to do. */
int ls_acceptor_fd(const ls_acceptor *acceptor);

/* Do what can be done now. The next caller that passed: its socket (the caller's now), its handshake
 * with keys (to be released), its address. *fd_out is -1 when there is none. */
ls_status ls_acceptor_next(ls_acceptor *acceptor, int *fd_out, ls_handshake *handshake_out,
                           ls_sock_address *peer_out);

/* Write the audit line for a caller that passed the handshake but is not wanted. */
void ls_acceptor_refuse(ls_acceptor *acceptor, const ls_sock_address *peer, const char *why);

/* Callers refused so far. */
uint64_t ls_acceptor_refused(const ls_acceptor *acceptor);

LS_C_END
