/* sock_io.h -- exactly len bytes over a socket, for tests and benches that stand for a stranger or
 * a peer without our framing. The program itself never waits for one socket alone. */
#pragma once
#include <errno.h>
#include <poll.h>
#include "net/sock.h"

/* LS_EIO: the other side closed or broke. LS_EDEADLINE: it sent less in time. */
static inline ls_status ls_sock_io_read(int fd, void *bytes, size_t len, int64_t deadline_ns)
{
    size_t at = 0;

    while (at < len) {
        ssize_t n = recv(fd, (char *)bytes + at, len - at, 0);
        if (n > 0)
            at += (size_t)n;
        else if (n == 0)
            return ls_fail(LS_EIO, "the other side closed after %zu of %zu bytes", at, len);
        else if (errno == EAGAIN && ls_sock_wait(fd, POLLIN, deadline_ns) != LS_OK)
            return ls_fail(LS_EDEADLINE, "%zu of %zu bytes came in time", at, len);
        else if (errno != EAGAIN && errno != EINTR)
            return ls_fail_sys(LS_EIO, "cannot read from a socket");
    }
    return LS_OK;
}

static inline ls_status ls_sock_io_write(int fd, const void *bytes, size_t len, int64_t deadline_ns)
{
    size_t at = 0;

    while (at < len) {
        ssize_t n = send(fd, (const char *)bytes + at, len - at, MSG_NOSIGNAL);
        if (n >= 0)
            at += (size_t)n;
        else if (errno == EAGAIN && ls_sock_wait(fd, POLLOUT, deadline_ns) != LS_OK)
            return ls_fail(LS_EDEADLINE, "%zu of %zu bytes went out in time", at, len);
        else if (errno != EAGAIN && errno != EINTR)
            return ls_fail_sys(LS_EIO, "cannot write to a socket");
    }
    return LS_OK;
}
