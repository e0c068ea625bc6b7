/* error_channel.c -- one datagram for one record.
 *
 * A seqpacket socket keeps records apart without framing, and all workers share one end, so a
 * thousand ranks cost two descriptors. The pointer to the source file does not travel: it means
 * something in the sender's memory only. */
#include "cluster/node/error_channel.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { MAGIC = 0x4c534331, MOST_RANK = 1 << 24 };

typedef struct wire {
    uint32_t magic;
    uint32_t code;
    int32_t rank;
    char host[64];
    char text[sizeof((ls_err_record *)0)->text];
    char hint[sizeof((ls_err_record *)0)->hint];
    char doing[sizeof((ls_err_record *)0)->doing];
} wire;

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
    wire w = {.magic = MAGIC, .code = (uint32_t)record->code};
    long fd = number_of("LINESHAFT_CAUSE_FD");
    ssize_t n;

    /* A worker leads its session; a command that it runs on its way speaks for itself. */
    if (fd < 3 || getsid(0) != getpid())
        return false;
    w.rank = (int32_t)number_of("LINESHAFT_RANK");
    if (gethostname(w.host, sizeof w.host - 1) != 0)
        w.host[0] = '\0';
    memcpy(w.text, record->text, sizeof w.text);
    memcpy(w.hint, record->hint, sizeof w.hint);
    memcpy(w.doing, record->doing, sizeof w.doing);
    do
        n = send((int)fd, &w, sizeof w, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof w;
}

static bool ends(const char *text, size_t cap)
{
    return memchr(text, '\0', cap) != NULL;
}

bool ls_error_channel_receive(int fd, ls_error_channel *cause_out)
{
    wire w;

    for (;;) {
        ssize_t n = recv(fd, &w, sizeof w, MSG_DONTWAIT | MSG_TRUNC);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        if (n == (ssize_t)sizeof w && w.magic == MAGIC && w.code > LS_OK && w.code <= LS_EINTR &&
            w.rank >= 0 && w.rank <= MOST_RANK && ends(w.host, sizeof w.host) &&
            ends(w.text, sizeof w.text) && ends(w.hint, sizeof w.hint) &&
            ends(w.doing, sizeof w.doing))
            break;
    }
    *cause_out =
        (ls_error_channel){.rank = w.rank, .record = {.code = (ls_status)w.code, .file = ""}};
    memcpy(cause_out->host, w.host, sizeof w.host);
    memcpy(cause_out->record.text, w.text, sizeof w.text);
    memcpy(cause_out->record.hint, w.hint, sizeof w.hint);
    memcpy(cause_out->record.doing, w.doing, sizeof w.doing);
    return true;
}
