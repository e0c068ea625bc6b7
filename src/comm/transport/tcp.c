/* tcp.c -- the TCP transport: open, poll, sleep, close.
 *
 * One epoll watches all sockets, the acceptor and the eventfd of wake(). poll() handles what is
 * ready. A tick, a few times per heartbeat, does what is due by time: heartbeats, confirmations
 * that found no frame to ride on, the next try of a broken connection, the end of its time. sleep()
 * spins for spin_ns first, because waking a sleeper costs ten times what the message does; but when
 * a whole sleep brought nothing, the next one begins at once, and the core is free.
 *
 *     poll(): expected socket or epoll -> tcp_receive.c -> tcp_send.c (pump) -> tick
 *
 * Rejected: a thread of the transport's own. The waiting thread is there anyway, and handing a
 * message from one thread to another costs what the network does. */
#include "comm/transport/tcp_impl.h"

#include <errno.h>
#include <sched.h>
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"

enum { EVENTS = 64, FEW_LINKS = 8, ALL_POLLS = 8 };
/* An event names its socket by a number: peer << 8 | channel, peer << 8 | 0xff for the probe of a
 * link, and two numbers that no peer has. */
static const uint64_t KEY_ACCEPTOR = UINT64_MAX, KEY_WAKE = UINT64_MAX - 1;
static const int64_t TICK_TROUBLED_NS = 5 * LS_NS_PER_MS;
/* A waiting rank polls every millisecond, a rank that computes every 20 (fabric.c). */
static const int64_t AWAY_NS = 50 * LS_NS_PER_MS;
static const int64_t LAST_BYTES_NS = LS_NS_PER_S, LAST_WORDS_NS = 100 * LS_NS_PER_MS;

/* --- failing --- */

bool ls_tcp_failed(const ls_tcp *tcp)
{
    return tcp->failure.code != LS_OK;
}

void ls_tcp_fail_as(ls_tcp *tcp, int said_first)
{
    if (ls_tcp_failed(tcp))
        return;
    tcp->failure = *ls_err_last();
    for (int i = 0; i < tcp->used_count; i++)
        ls_tcp_last_words(&tcp->links[tcp->used[i]].channels[0], LS_TCP_WIRE_FAILED, said_first,
                          tcp->failure.text);
}

void ls_tcp_fail(ls_tcp *tcp)
{
    ls_tcp_fail_as(tcp, tcp->args.rank);
}

void ls_tcp_abort(ls_transport *transport, const char *reason)
{
    ls_fail(LS_EPEER, "%s", reason);
    ls_tcp_fail((ls_tcp *)transport);
}

/* --- messages --- */

/* What send and receive have in common. LS_EBUSY breaks nothing: the caller may wait for some
 * messages to end. */
static ls_status post(ls_tcp *tcp, ls_message *message, bool sends)
{
    if (ls_tcp_failed(tcp))
        return ls_err_adopt(&tcp->failure);
    LS_BUG_IF(message->peer < 0 || message->peer >= tcp->args.ranks ||
                  message->peer == tcp->args.rank || message->bytes < 0,
              "a message of %lld bytes with rank %d", (long long)message->bytes, message->peer);
    ls_tcp_link *link = &tcp->links[message->peer];
    ls_status st = LS_OK;
    message->done = false;
    tcp->no_spin = false;
    if (link->leaving && (sends || !ls_tcp_find(link, LS_TCP_EARLY, message->tag)))
        st = ls_fail(LS_EPEER, "%s has closed its connections", link->name);
    else if (!link->reached)
        st = ls_fail(LS_EUSAGE, "rank %d has no address", link->peer);
    if (st == LS_OK) {
        ls_tcp_want(link, false);
        st = sends ? ls_tcp_send(link, message) : ls_tcp_receive(link, message);
    }
    if (st == LS_EBUSY)
        return st;
    if (st != LS_OK)
        ls_tcp_fail(tcp);
    return ls_tcp_failed(tcp) ? ls_err_adopt(&tcp->failure) : LS_OK;
}

static ls_status send_tcp(ls_transport *transport, ls_message *message)
{
    return post((ls_tcp *)transport, message, true);
}

static ls_status receive_tcp(ls_transport *transport, ls_message *message)
{
    return post((ls_tcp *)transport, message, false);
}

/* --- moving --- */

static void tick(ls_tcp *tcp)
{
    int64_t now = ls_time_now_ns();

    if (now < tcp->tick_ns)
        return;
    for (int i = 0; i < tcp->used_count && !ls_tcp_failed(tcp); i++)
        ls_tcp_tick_link(&tcp->links[tcp->used[i]], now);
    ls_tcp_pump_held(tcp, true);
    tcp->tick_ns =
        now + (tcp->troubled ? TICK_TROUBLED_NS
                             : ls_min_i64(tcp->args.heartbeat_ns / 4, 20 * LS_NS_PER_MS));
}

static void handle(ls_tcp *tcp, const struct epoll_event *event)
{
    uint64_t key = event->data.u64;

    if (key == KEY_ACCEPTOR) {
        ls_tcp_admit(tcp);
    } else if (key == KEY_WAKE) {
        uint64_t count;
        (void)!read(tcp->wake_fd, &count, sizeof count);
        tcp->moved = true;
    } else if ((key & 0xff) == 0xff) {
        ls_tcp_probe_event(&tcp->links[key >> 8]);
    } else {
        ls_tcp_event(&tcp->links[key >> 8].channels[key & 0xff], event->events);
    }
}

/* The link whose socket is worth reading without asking epoll: the only one from which small
 * messages are expected. NULL: none, or several. */
static ls_tcp_link *expected(const ls_tcp *tcp)
{
    ls_tcp_link *found = NULL;

    for (int i = 0; i < tcp->used_count; i++) {
        ls_tcp_link *link = &tcp->links[tcp->used[i]];
        if (link->posted > link->small) /* large ones are under way */
            return NULL;
        if (link->small == 0)
            continue;
        if (found || link->channels[0].state != LS_TCP_OPEN)
            return NULL;
        found = link;
    }
    return found;
}

/* Try the expected socket, which costs half of asking epoll first; all others have their turn every
 * few polls. */
static bool read_expected(ls_tcp *tcp)
{
    ls_tcp_link *link = tcp->used_count <= FEW_LINKS ? expected(tcp) : NULL;

    if (!link || ++tcp->polls % ALL_POLLS == 0)
        return false;
    ls_tcp_read(&link->channels[0]);
    return true;
}

static void look_at_all(ls_tcp *tcp)
{
    struct epoll_event events[EVENTS];
    int n = epoll_wait(tcp->epoll_fd, events, EVENTS, 0);

    for (int i = 0; i < n && !ls_tcp_failed(tcp); i++)
        handle(tcp, &events[i]);
}

/* A process that was stopped or had no core could not hear its peers meanwhile. */
static void look_at_clock(ls_tcp *tcp)
{
    int64_t now = ls_time_now_ns(), away = now - tcp->looked_ns;

    if (tcp->looked_ns && away > AWAY_NS)
        ls_tcp_forgive(tcp, away);
    tcp->looked_ns = now;
}

static ls_status poll_tcp(ls_transport *transport, bool *moved_out)
{
    ls_tcp *tcp = (ls_tcp *)transport;

    tcp->moved = false;
    if (!ls_tcp_failed(tcp)) {
        look_at_clock(tcp);
        ls_tcp_pump_held(tcp, false);
        if (!read_expected(tcp))
            look_at_all(tcp);
        if (!ls_tcp_failed(tcp))
            tick(tcp);
    }
    tcp->no_spin &= !tcp->moved;
    *moved_out = tcp->moved;
    return ls_tcp_failed(tcp) ? ls_err_adopt(&tcp->failure) : LS_OK;
}

/* Send what is held back, spin for a moment unless the last sleep brought nothing, then sleep until
 * a socket is ready, the next tick or the deadline. */
static void sleep_tcp(ls_transport *transport, int64_t until_ns)
{
    ls_tcp *tcp = (ls_tcp *)transport;
    struct epoll_event event;
    int64_t now = ls_time_now_ns(), spin_until = now + (tcp->no_spin ? 0 : tcp->args.spin_ns);

    if (ls_tcp_failed(tcp))
        return;
    ls_tcp_pump_held(tcp, true);
    until_ns = ls_min_i64(until_ns, tcp->tick_ns);
    while (now < until_ns && now < spin_until) {
        if (epoll_wait(tcp->epoll_fd, &event, 1, 0) > 0)
            return;
        sched_yield(); /* the peer that is waited for may need this core */
        now = ls_time_now_ns();
    }
    if (now >= until_ns)
        return;
    int64_t ns = ls_min_i64(until_ns - now, LS_NS_PER_S);
    struct timespec nap = {.tv_sec = ns / LS_NS_PER_S, .tv_nsec = ns % LS_NS_PER_S};
    int n = epoll_pwait2(tcp->epoll_fd, &event, 1, &nap, NULL);
    if (n < 0 && errno == ENOSYS) /* Linux 5.11 */
        n = epoll_wait(tcp->epoll_fd, &event, 1, (int)(ns / LS_NS_PER_MS + 1));
    tcp->no_spin = n == 0;
}

static void wake_tcp(ls_transport *transport)
{
    uint64_t one = 1;

    (void)!write(((ls_tcp *)transport)->wake_fd, &one, sizeof one);
}

static void count_tcp(const ls_transport *transport, int peer, int64_t *sent_out,
                      int64_t *received_out)
{
    const ls_tcp_link *link = &((const ls_tcp *)transport)->links[peer];

    *sent_out = link->sent_bytes;
    *received_out = link->received_bytes;
}

/* --- closing --- */

/* Drop unread bytes: closing a socket that has unread bytes, or gets some afterwards, resets it,
 * and what its kernel has not delivered yet is lost. */
static void drain(int fd)
{
    char rest[4096];

    for (int i = 0; i < 64 && recv(fd, rest, sizeof rest, MSG_DONTWAIT) > 0; i++)
        ;
}

/* Whether the other kernel has everything, the end included. */
static bool is_delivered(int fd)
{
    int left = 0;

    drain(fd);
    return ioctl(fd, SIOCOUTQ, &left) != 0 || left == 0;
}

/* Small messages are done when the kernel has them: wait until the other kernel has them, too. It
 * answers within a round trip unless its process does not read for long, or is gone. */
static void see_through(ls_tcp *tcp)
{
    int64_t until = ls_time_now_ns() + (ls_tcp_failed(tcp) ? LAST_WORDS_NS : LAST_BYTES_NS);
    bool all = false;

    while (!all) {
        all = true;
        for (int i = 0; i < tcp->used_count; i++) {
            const ls_tcp_link *link = &tcp->links[tcp->used[i]];
            for (int c = 0; link->channels && c < tcp->channels; c++) {
                const ls_tcp_channel *channel = &link->channels[c];
                bool open = channel->fd >= 0 && channel->state == LS_TCP_OPEN;
                all &= !open || is_delivered(channel->fd);
            }
        }
        if (!all && ls_time_now_ns() >= until)
            return;
        if (!all)
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

/* Say BYE on every channel, let the kernels deliver what was sent, then close. */
static void close_tcp(ls_transport *transport)
{
    ls_tcp *tcp = (ls_tcp *)transport;

    /* On every channel: the end of each is then known to be intended, and nothing sent before it on
     * any of them is lost. */
    for (int i = 0; i < tcp->used_count && !ls_tcp_failed(tcp); i++)
        for (int c = 0; c < tcp->channels; c++)
            ls_tcp_last_words(&tcp->links[tcp->used[i]].channels[c], LS_TCP_WIRE_BYE,
                              tcp->args.rank, "");
    for (int i = 0; i < tcp->used_count; i++) {
        const ls_tcp_link *link = &tcp->links[tcp->used[i]];
        for (int c = 0; link->channels && c < tcp->channels; c++)
            if (link->channels[c].fd >= 0)
                shutdown(link->channels[c].fd, SHUT_WR);
    }
    see_through(tcp);
    for (int r = 0; tcp->links && r < tcp->args.ranks; r++) {
        ls_tcp_link *link = &tcp->links[r];
        for (int c = 0; link->channels && c < tcp->channels; c++) {
            ls_tcp_channel *channel = &link->channels[c];
            ls_sock_close(&channel->fd);
            if (channel->handshake)
                ls_handshake_release(channel->handshake);
        }
        ls_sock_close(&link->probe_fd);
    }
    ls_acceptor_close(tcp->acceptor);
    ls_sock_close(&tcp->epoll_fd);
    ls_sock_close(&tcp->wake_fd);
    ls_secret_release(&tcp->secret);
    ls_tcp_free_all(tcp);
    ls_mem_free(tcp);
}

/* --- opening --- */

static const ls_transport_table table = {.name = "tcp",
                                         .send = send_tcp,
                                         .receive = receive_tcp,
                                         .poll = poll_tcp,
                                         .sleep = sleep_tcp,
                                         .wake = wake_tcp,
                                         .count = count_tcp,
                                         .close = close_tcp};

/* Replace zeros by defaults, and refuse what is out of range. */
static ls_status set_defaults(ls_tcp_args *args)
{
    args->sockets = args->sockets ? args->sockets : 1;
    args->eager_bytes = args->eager_bytes ? args->eager_bytes : 64 * LS_KIB;
    args->chunk_bytes = args->chunk_bytes ? args->chunk_bytes : 256 * LS_KIB;
    args->spin_ns = args->spin_ns ? args->spin_ns : 50000;
    args->heartbeat_ns = args->heartbeat_ns ? args->heartbeat_ns : 100 * LS_NS_PER_MS;
    args->user_timeout_ns = args->user_timeout_ns ? args->user_timeout_ns : 500 * LS_NS_PER_MS;
    args->resume_ns = args->resume_ns ? args->resume_ns : LS_NS_PER_S;
    if (args->sockets < 1 || args->sockets > LS_TCP_SOCKETS)
        return ls_fail(LS_EUSAGE, "%d sockets for each pair of ranks: 1 to %d are possible",
                       args->sockets, LS_TCP_SOCKETS);
    if (args->eager_bytes < 0 || args->eager_bytes > 64 * LS_KIB)
        return ls_fail(LS_EUSAGE, "small messages of %lld bytes: at most 65536 are possible",
                       (long long)args->eager_bytes);
    if (args->chunk_bytes < 4096 || args->chunk_bytes > LS_TCP_WIRE_CHUNK ||
        args->chunk_bytes % 64 != 0)
        return ls_fail(LS_EUSAGE, "chunks of %lld bytes: 4096 to %d in steps of 64 are possible",
                       (long long)args->chunk_bytes, LS_TCP_WIRE_CHUNK);
    return LS_OK;
}

/* The link to a peer: its address, its name in messages, and its channels, none of which is open
 * yet. */
static ls_status init_link(ls_tcp *tcp, int peer, const ls_tcp_args *args, int64_t deadline_ns)
{
    ls_tcp_link *link = &tcp->links[peer];
    const char *address = args->addresses ? args->addresses[peer] : NULL;
    const char *host = args->hosts ? args->hosts[peer] : NULL;
    ls_status st = LS_OK;

    link->tcp = tcp;
    link->peer = peer;
    link->reached = peer != args->rank && address && address[0];
    if (link->reached)
        LS_TRY(st, ls_sock_resolve(address, deadline_ns, &link->address), out);
    snprintf(link->name, sizeof link->name,
             host && host[0] ? "rank %d (%.60s, %s)" : "rank %d (%s%s)", peer,
             host && host[0] ? host : link->address.text,
             host && host[0] ? link->address.text : "");
    link->channels = ls_mem_array((size_t)tcp->channels, sizeof *link->channels);
    if (!link->channels) {
        st = LS_ENOMEM;
        goto out;
    }
    for (int c = 0; c < tcp->channels; c++) {
        link->channels[c].link = link;
        link->channels[c].index = c;
        link->channels[c].fd = -1;
    }
out:
    return st;
}

static ls_status watch(ls_tcp *tcp, int fd, uint64_t key)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = key};

    if (epoll_ctl(tcp->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        return ls_fail_sys(LS_EIO, "cannot watch a descriptor");
    return LS_OK;
}

static ls_status open_acceptor(ls_tcp *tcp)
{
    ls_acceptor_args args = {.listen_fd = tcp->args.listen_fd,
                             .secret = tcp->secret.bytes,
                             .self = {.purpose = LS_HANDSHAKE_DATA,
                                      .generation = tcp->args.generation,
                                      .from = (uint32_t)tcp->args.rank}};
    ls_status st = ls_acceptor_open(&tcp->acceptor, &args);

    return st == LS_OK ? watch(tcp, ls_acceptor_fd(tcp->acceptor), KEY_ACCEPTOR) : st;
}

ls_status ls_tcp_make(ls_tcp **tcp_out, const ls_tcp_args *args, int64_t deadline_ns)
{
    ls_status st = LS_OK;
    ls_tcp *tcp = ls_mem_alloc(sizeof *tcp);

    if (!tcp)
        return LS_ENOMEM;
    *tcp = (ls_tcp){.transport = {&table}, .args = *args, .epoll_fd = -1, .wake_fd = -1};
    LS_TRY(st, set_defaults(&tcp->args), out);
    tcp->channels = tcp->args.sockets + 1;
    tcp->links = ls_mem_array((size_t)args->ranks, sizeof *tcp->links);
    tcp->used = ls_mem_array((size_t)args->ranks, sizeof *tcp->used);
    tcp->held = ls_mem_array((size_t)args->ranks, sizeof *tcp->held);
    if (!tcp->links || !tcp->used || !tcp->held) {
        st = LS_ENOMEM;
        goto out;
    }
    for (int r = 0; r < args->ranks; r++)
        tcp->links[r].probe_fd = -1;
    for (int r = 0; r < args->ranks; r++)
        LS_TRY(st, init_link(tcp, r, args, deadline_ns), out);
    LS_TRY(st, ls_secret_random(&tcp->instance, sizeof tcp->instance), out);
    LS_TRY(st, ls_secret_hold(&tcp->secret, args->secret), out);
    tcp->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    tcp->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (tcp->epoll_fd < 0 || tcp->wake_fd < 0) {
        st = ls_fail_sys(LS_EIO, "cannot make descriptors for the network");
        goto out;
    }
    LS_TRY(st, watch(tcp, tcp->wake_fd, KEY_WAKE), out);
    if (args->listen_fd >= 0)
        LS_TRY(st, open_acceptor(tcp), out);
    *tcp_out = tcp;
    tcp = NULL;
out:
    if (tcp)
        close_tcp(&tcp->transport);
    return st;
}

/* The ranks that did not connect, by name; there may be many. */
static ls_status tell_missing(const ls_tcp *tcp)
{
    char names[400] = "";
    size_t len = 0;
    int missing = 0, unreached = -1;

    for (int i = 0; i < tcp->used_count; i++) {
        const ls_tcp_link *link = &tcp->links[tcp->used[i]];
        const char *why = link->channels[0].why;
        if (link->channels[0].state == LS_TCP_OPEN)
            continue;
        if (unreached < 0 &&
            link->channels[0].state != LS_TCP_OVER) /* it has not closed by itself */
            unreached = link->peer;
        if (missing++ < 3)
            len += (size_t)snprintf(names + len, sizeof names - len, "%s%.80s%s%.40s",
                                    missing > 1 ? ", " : "", link->name, why[0] ? ": " : "", why);
    }
    if (missing > 3)
        ls_fail(LS_EDEADLINE, "%d ranks did not connect to rank %d in time: %s and %d more",
                missing, tcp->args.rank, names, missing - 3);
    else
        ls_fail(LS_EDEADLINE, "%d rank%s did not connect to rank %d in time: %s", missing,
                missing == 1 ? "" : "s", tcp->args.rank, names);
    if (unreached >= 0)
        ls_err_unreached(unreached);
    return LS_EDEADLINE;
}

static bool all_open(const ls_tcp *tcp)
{
    for (int i = 0; i < tcp->used_count; i++) {
        const ls_tcp_link *link = &tcp->links[tcp->used[i]];
        if (link->channels[0].state != LS_TCP_OPEN && !link->known)
            return false;
    }
    return true;
}

ls_status ls_tcp_open(ls_transport **transport_out, const ls_tcp_args *args, int64_t deadline_ns)
{
    ls_status st = LS_OK;
    ls_tcp *tcp = NULL;
    bool moved;

    LS_TRY(st, ls_tcp_make(&tcp, args, deadline_ns), out);
    tcp->opening = true;
    for (int r = 0; r < args->ranks; r++)
        if (tcp->links[r].reached && ls_tcp_is_neighbour(args->rank, r, args->ranks))
            ls_tcp_want(&tcp->links[r], false);
    while (!all_open(tcp)) {
        LS_TRY(st, poll_tcp(&tcp->transport, &moved), out);
        if (args->broken && args->broken(args->context)) {
            st = ls_err_last()->code;
            goto out;
        }
        if (!moved && ls_time_now_ns() >= deadline_ns) {
            st = tell_missing(tcp);
            goto out;
        }
        if (!moved)
            sleep_tcp(&tcp->transport, deadline_ns);
    }
    tcp->opening = false;
    *transport_out = &tcp->transport;
    tcp = NULL;
out:
    if (tcp)
        close_tcp(&tcp->transport);
    return st;
}

/* --- looking --- */

bool ls_tcp_ask(ls_transport *transport, int peer, int about, uint64_t what)
{
    ls_tcp *tcp = (ls_tcp *)transport;
    ls_tcp_link *link = &tcp->links[peer];

    if (ls_tcp_failed(tcp) || !link->used || link->channels[0].state != LS_TCP_OPEN)
        return false;
    ls_tcp_say(link, LS_TCP_WIRE_ASK, (uint64_t)about, (int64_t)what);
    return true;
}

int64_t ls_tcp_heard(const ls_transport *transport, int peer)
{
    const ls_tcp_link *link = &((const ls_tcp *)transport)->links[peer];

    return link->used && !link->bye ? link->heard_ns : 0;
}

void ls_tcp_stats_get(const ls_transport *transport, ls_tcp_stats *stats_out)
{
    const ls_tcp *tcp = (const ls_tcp *)transport;

    *stats_out = tcp->stats;
    stats_out->refused = tcp->acceptor ? (int64_t)ls_acceptor_refused(tcp->acceptor) : 0;
}
