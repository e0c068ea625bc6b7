/* error_channel.c -- one datagram for one record.
 *
 *     rank 0 --+
 *     rank 1 --+-- shared end [1] ==== [0] agent      each datagram: magic, record, rank, host
 *     rank 2 --+
 *
 * A seqpacket socket keeps records apart without framing, and all workers share one end, so a
 * thousand ranks cost two descriptors. The pointer to the source file does not travel: it means
 * something in the sender's memory only. */
#include "cluster/node/error_channel.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { MAGIC = 0x4c534332, MOST_RANK = 1 << 24 };

typedef struct datagram {
    uint32_t magic;
    ls_error_channel cause;
} datagram;

/* A whole number of a variable; -1 when it is none. */
static long number_of(const char *variable)
{
    const char *text = getenv(variable);
    char *end;

    if (!text || *text < '0' || *text > '9')
        return -1;
    errno = 0;
    long n = strtol(text, &end, 10);
    return *end == '\0' && errno == 0 && n <= MOST_RANK ? n : -1;
}

ls_status ls_error_channel_pair(int fds_out[2])
{
    const struct timeval second = {.tv_sec = 1};

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds_out) != 0)
        return ls_fail_sys(LS_EIO, "cannot make a socket for errors of workers");
    setsockopt(fds_out[1], SOL_SOCKET, SO_SNDTIMEO, &second, sizeof second);
    return LS_OK;
}

bool ls_error_channel_send(const ls_err_record *record)
{
    datagram d = {.magic = MAGIC, .cause.record = *record};
    long fd = number_of("LINESHAFT_CAUSE_FD");
    ssize_t n;

    /* A worker leads its session; a command that it runs on its way speaks for itself. */
    if (fd < 3 || getsid(0) != getpid())
        return false;
    d.cause.record.file = "";
    d.cause.rank = (int)number_of("LINESHAFT_RANK");
    if (gethostname(d.cause.host, sizeof d.cause.host - 1) != 0)
        d.cause.host[0] = '\0';
    do
        n = send((int)fd, &d, sizeof d, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof d;
}

static bool ends(const char *text, size_t cap)
{
    return memchr(text, '\0', cap) != NULL;
}

bool ls_error_channel_receive(int fd, ls_error_channel *cause_out)
{
    const ls_err_record *r = &cause_out->record;
    datagram d;

    for (;;) {
        ssize_t n = recv(fd, &d, sizeof d, MSG_DONTWAIT | MSG_TRUNC);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        if (n != (ssize_t)sizeof d || d.magic != MAGIC)
            continue;
        *cause_out = d.cause;
        cause_out->record.file = ""; /* a pointer into the sender's memory */
        if (r->code > LS_OK && r->code <= LS_EINTR && cause_out->rank >= 0 &&
            cause_out->rank <= MOST_RANK && ends(cause_out->host, sizeof cause_out->host) &&
            ends(r->text, sizeof r->text) && ends(r->hint, sizeof r->hint) &&
            ends(r->doing, sizeof r->doing))
            return true;
    }
}
