/* tcp_zerocopy.c -- chunks that the kernel sends out of the caller's memory (MSG_ZEROCOPY).
 *
 * The kernel borrows the pages and reports through the socket's error queue when it has given them
 * back, and whether it copied the bytes after all. No code here waits for that notice: a chunk and
 * its header stay as they are until the other side has confirmed them (tcp_send.c), and what is
 * confirmed is never sent again. Notices are read only so that the queue does not fill. A control
 * note is not kept that long, so a write that contains one is copied.
 *
 * Where it pays: a core that copies 10 GB/s spends a tenth of itself on each GB/s of the link.
 * Where it does not: on loopback, and on veth, which hands the pages to the receiver of the same
 * kernel, the kernel copies all the same, and the notices cost a tenth to a half of the goodput
 * (bench/comm_tcp.c). So `auto` leaves loopback alone, tries it elsewhere, and ends it for a
 * connection at the first notice that says "copied". Pages count as locked memory (ulimit -l):
 * where that is used up, the bytes are copied from then on, too. */
#include "comm/transport/tcp_impl.h"

#include <linux/errqueue.h>
#include <netinet/in.h>

/* Writes shorter than this are copied sooner than their pages are found. Notices are read at the
 * latest when this many are due. */
enum { LEAST_BYTES = 64 << 10, MOST_LENT = 32 };

static bool is_same_host(int fd)
{
    struct sockaddr_storage own = {0}, peer = {0};
    socklen_t own_len = sizeof own, peer_len = sizeof peer;
    const struct sockaddr_in *a = (const void *)&own, *b = (const void *)&peer;
    const struct sockaddr_in6 *a6 = (const void *)&own, *b6 = (const void *)&peer;

    if (getsockname(fd, (struct sockaddr *)&own, &own_len) != 0 ||
        getpeername(fd, (struct sockaddr *)&peer, &peer_len) != 0)
        return true; /* a peer on this host: nothing is gained there */
    if (own.ss_family == AF_INET)
        return a->sin_addr.s_addr == b->sin_addr.s_addr;
    return memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof a6->sin6_addr) == 0;
}

void ls_tcp_zerocopy_begin(ls_tcp_channel *channel)
{
    ls_tcp_zerocopy how = channel->link->tcp->args.zerocopy;
    int on = 1;

    channel->lends = false;
    channel->lent = 0;
    if (channel->index == 0 || how == LS_TCP_ZEROCOPY_OFF ||
        (how == LS_TCP_ZEROCOPY_AUTO && is_same_host(channel->fd)))
        return;
    /* Kernels before 4.14 and some containers refuse it. */
    channel->lends = setsockopt(channel->fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0;
}

int ls_tcp_zerocopy_flag(const ls_tcp_channel *channel, const struct iovec *vectors, size_t count)
{
    size_t bytes = 0;

    if (!channel->lends || channel->note_left > 0)
        return 0;
    for (size_t i = 0; i < count; i++)
        bytes += vectors[i].iov_len;
    return bytes >= LEAST_BYTES ? MSG_ZEROCOPY : 0;
}

/* One notice of the queue; false: there is none. */
static bool take_notice(ls_tcp_channel *channel)
{
    _Alignas(struct cmsghdr) char control[256];
    struct msghdr notice = {.msg_control = control, .msg_controllen = sizeof control};
    ls_tcp *tcp = channel->link->tcp;
    struct sock_extended_err error;

    if (recvmsg(channel->fd, &notice, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
        return false;
    const struct cmsghdr *head = CMSG_FIRSTHDR(&notice);
    if (!head || head->cmsg_len < CMSG_LEN(sizeof error))
        return true;
    memcpy(&error, CMSG_DATA(head), sizeof error);
    if (error.ee_origin != SO_EE_ORIGIN_ZEROCOPY)
        return true;
    uint32_t writes = error.ee_data - error.ee_info + 1;
    channel->lent -= (int64_t)writes < channel->lent ? (int64_t)writes : channel->lent;
    if (error.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) {
        tcp->stats.copied += writes;
        if (tcp->args.zerocopy == LS_TCP_ZEROCOPY_AUTO)
            channel->lends = false;
    }
    return true;
}

void ls_tcp_zerocopy_reap(ls_tcp_channel *channel)
{
    while (channel->lent > 0 && take_notice(channel))
        ;
}

void ls_tcp_zerocopy_lent(ls_tcp_channel *channel)
{
    channel->link->tcp->stats.lent++;
    if (++channel->lent >= MOST_LENT)
        ls_tcp_zerocopy_reap(channel);
}

void ls_tcp_zerocopy_refused(ls_tcp_channel *channel)
{
    int64_t before = channel->lent;

    ls_tcp_zerocopy_reap(channel);
    channel->lends = channel->lends && channel->lent < before;
}
