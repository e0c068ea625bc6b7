/* sock.h -- TCP sockets that never block and never outlive an exec.
 *
 * Every socket made here is non-blocking and close-on-exec. A call that waits takes a deadline; its
 * error names host, port and reason. Nothing here listens on the wildcard address. */
#pragma once
#include <sys/socket.h>
#include "base/err.h"

LS_C_BEGIN

enum { LS_SOCK_TEXT = 80 }; /* "[IPv6 address%interface]:65535" and the final '\0' */

typedef struct ls_sock_address {
    struct sockaddr_storage storage;
    socklen_t len;
    char text[LS_SOCK_TEXT]; /* numbers: "10.0.0.1:40001", "[::1]:40001" */
} ls_sock_address;

/* Read "10.0.0.1:40001", "[::1]:40001" or "host:40001". Numbers are read at once; a name is looked
 * up by the system's resolver until the deadline. LS_EUSAGE: not an address. LS_EIO: no such name.
 * LS_EDEADLINE: the resolver did not answer. */
ls_status ls_sock_resolve(const char *text, int64_t deadline_ns, ls_sock_address *address_out);

/* The address of this end of a socket. */
ls_status ls_sock_local(int fd, ls_sock_address *address_out);

/* The port of an address, and another one for it; the text stays as it was. */
uint16_t ls_sock_port(const ls_sock_address *address);
void ls_sock_set_port(ls_sock_address *address, uint16_t port);

/* Listen at exactly this address; port 0 lets the kernel choose (ls_sock_local() returns it).
 * NULL means loopback. The wildcard addresses are LS_EUSAGE. */
ls_status ls_sock_listen(const ls_sock_address *at, int *fd_out);

/* Connect, trying again while no process listens there, until the deadline. */
ls_status ls_sock_connect(const ls_sock_address *to, int64_t deadline_ns, int *fd_out);

/* The same in steps: begin, then ask for the result until it is not EINPROGRESS. The result is 0 or
 * an errno; a socket that the kernel connected to itself (nobody listens, and the port it chose is
 * the one asked for) is ECONNREFUSED. */
ls_status ls_sock_connect_begin(const ls_sock_address *to, int *fd_out);
int ls_sock_connect_result(int fd);

/* The next caller of a listening socket. Without one *fd_out is -1 when the deadline is 0 (do not
 * wait), and LS_EDEADLINE otherwise. */
ls_status ls_sock_accept(int listen_fd, int64_t deadline_ns, int *fd_out,
                         ls_sock_address *peer_out);

typedef struct ls_sock_options {
    int64_t user_timeout_ns; /* unconfirmed bytes for this long break it; 0: no limit */
    int64_t keepalive_ns;    /* silence after which the kernels ask each other; 0: never */
} ls_sock_options;

/* Always sets TCP_NODELAY. */
ls_status ls_sock_tune(int fd, const ls_sock_options *options);

/* How long ago the other kernel confirmed anything, while something that was sent waits for that; 0
 * when nothing waits. */
int64_t ls_sock_unanswered_ns(int fd);

/* Until fd is ready for events (POLLIN, POLLOUT). LS_EDEADLINE without a message of its own. */
ls_status ls_sock_wait(int fd, int events, int64_t deadline_ns);

/* Close and set to -1; -1 is allowed. */
void ls_sock_close(int *fd);

LS_C_END
