/* tcp_link.c -- connections: opening, breaking, resuming, and deciding that a rank is gone.
 *
 * The lower rank connects, the higher one accepts. States of a channel, and the function of each
 * arrow:
 *
 *   IDLE --want()--> WAITING --connect()--> CONNECTING --event()--> HELLO --event()--> RESUMING
 *                      ^  |                                                              ^   |
 *              break() |  +----------- admit() (accepting side) ------------------------+   |
 *                      |                                                           resume() |
 *                      +---------------- from every state <---------- OPEN <----------------+
 *
 *   any state --bye()--> OVER
 *
 * RESUME is the first frame on a connection in both directions: it says what arrived before, so
 * each side forgets what is confirmed and writes the rest again. A second process that answers at
 * the same address has another instance number and is not taken for the first.
 *
 * When is a rank gone? A connection that ends is no proof: networks reset connections. So the other
 * kernel is asked by connecting again: the connecting side does so as its next try, the accepting
 * side as a probe that says nothing:
 *   refused, REFUSALS times        no process listens there: the rank has ended
 *   no answer until resume_ns      the link is cut
 *   accepted, then silence         the process is there but does not run (stopped, or busy for
 *                                  long): not a failure, the caller's deadline decides
 *   accepted, then nonsense        another program listens there: as no answer
 *
 * A cut link with the default times, by the clock of the rank that notices:
 *
 *     ms after the cut
 *       0 .. 100    the next heartbeat leaves, and no kernel confirms it
 *     200           nothing was heard for 150 ms and something unanswered for 100: quiet begins
 *     550           quiet for 0.7 of user_timeout_ns: the connection counts as broken
 *     550 .. 750    it is tried again; as TCP gave up, LAST_TRY_NS is all that is left of resume_ns
 *     750           no answer: the rank is gone
 *
 * The times count from the break; where TCP itself gave up, from when the rank was last heard. Time
 * in which this process itself did not run (ls_tcp_forgive) does not count: while it does not
 * listen, no peer can answer. */
#include "comm/transport/tcp_impl.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"

enum { REFUSALS = 3 };
static const int64_t FIRST_PAUSE_NS = 2 * LS_NS_PER_MS;
static const int64_t LONGEST_PAUSE_NS = 50 * LS_NS_PER_MS;
static const int64_t PROBE_NS = 20 * LS_NS_PER_MS;
/* A cut link: after the next heartbeat (100 ms), data waits for a confirmation of the other kernel
 * that does not come. 0.7 of the user timeout later (350 ms; TCP itself counts from its first
 * retransmission, 200 ms and more too late for us) the connection counts as broken, and one more
 * try is left. In all 0.8 s at most. A rank that is only stopped or busy has a kernel that
 * answers. */
static const int64_t QUIET_NS = 150 * LS_NS_PER_MS, ANSWER_NS = 100 * LS_NS_PER_MS;
static const int64_t LAST_TRY_NS = 200 * LS_NS_PER_MS;

static bool connects(const ls_tcp_link *link)
{
    return link->tcp->args.rank < link->peer;
}

bool ls_tcp_is_neighbour(int a, int b, int ranks)
{
    int up = (b - a + ranks) % ranks, down = ranks - up;

    return ranks <= LS_TCP_MESH || (up & (up - 1)) == 0 || (down & (down - 1)) == 0;
}

/* --- epoll --- */

static uint64_t key_of(const ls_tcp_channel *channel)
{
    return (uint64_t)channel->link->peer << 8 | (uint64_t)channel->index;
}

void ls_tcp_watch(ls_tcp_channel *channel, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.u64 = key_of(channel)};
    ls_tcp *tcp = channel->link->tcp;
    int operation = channel->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;

    if (channel->watched == events || channel->fd < 0)
        return;
    if (epoll_ctl(tcp->epoll_fd, operation, channel->fd, &event) != 0) {
        ls_fail_sys(LS_EIO, "cannot watch the connection to %s", channel->link->name);
        ls_tcp_fail(tcp);
        return;
    }
    channel->watched = events;
}

static void close_probe(ls_tcp_link *link)
{
    ls_sock_close(&link->probe_fd);
    link->probe_done = false;
}

/* --- breaking --- */

static void drop_handshake(ls_tcp_channel *channel)
{
    if (channel->handshake)
        ls_handshake_release(channel->handshake);
    ls_mem_free(channel->handshake);
    channel->handshake = NULL;
}

static void close_channel(ls_tcp_channel *channel)
{
    ls_sock_close(&channel->fd); /* leaves the epoll by itself */
    channel->watched = 0;
    drop_handshake(channel);
    ls_tcp_reset_input(channel);
    channel->unsent = channel->first;
    channel->sent_of = 0;
    channel->note_left = 0;
    channel->note_wanted = false;
}

static void note_trouble(ls_tcp_channel *channel, int64_t since_ns)
{
    ls_tcp *tcp = channel->link->tcp;

    if (channel->broken_ns == 0) {
        channel->broken_ns = since_ns;
        channel->refusals = 0;
        channel->answers = false;
        channel->pause_ns = FIRST_PAUSE_NS;
        channel->retry_ns = 0;
        tcp->troubled++;
    }
    tcp->tick_ns = 0;
}

static void end_trouble(ls_tcp_channel *channel)
{
    if (channel->broken_ns != 0)
        channel->link->tcp->troubled--;
    channel->broken_ns = 0;
    close_probe(channel->link);
}

/* TCP's error for a timeout; where routers or the own kernel reported something meanwhile, it
 * returns that instead. */
static bool gave_up(const char *why)
{
    return strcmp(why, strerror(ETIMEDOUT)) == 0 || strcmp(why, strerror(EHOSTUNREACH)) == 0 ||
           strcmp(why, strerror(ENETUNREACH)) == 0;
}

void ls_tcp_break(ls_tcp_channel *channel, const char *why)
{
    ls_tcp_link *link = channel->link;
    int64_t now = ls_time_now_ns(), since = now;

    if (channel->state == LS_TCP_OPEN) {
        link->tcp->stats.breaks++;
        ls_log(LS_LOG_DEBUG, "the connection %d to %s broke: %s", channel->index, link->name, why);
        snprintf(channel->why, sizeof channel->why, "%s", why);
        if (!link->leaving && ls_tcp_flaps_add(&link->flaps, now))
            ls_log(LS_LOG_WARN,
                   "the link to %s has broken %d times within %d minutes, last because of: %s; it "
                   "was opened again each time, but look at cables, cards and switches",
                   link->name, LS_TCP_FLAPS, LS_TCP_FLAPS_S / 60, why);
    } else if (channel->why[0] == '\0') {
        snprintf(channel->why, sizeof channel->why, "%s", why);
    }
    /* TCP has waited already: the rest of the time is one more try. Not so where another channel
     * has been heard meanwhile. */
    if (gave_up(why) && now - link->heard_ns >= link->tcp->args.user_timeout_ns / 2)
        since = now - link->tcp->args.resume_ns + LAST_TRY_NS;
    close_channel(channel);
    if (link->leaving) {
        ls_tcp_bye(channel);
        return;
    }
    channel->state = LS_TCP_WAITING;
    channel->answers = false;
    note_trouble(channel, ls_max_i64(1, ls_min_i64(since, now)));
}

void ls_tcp_damage(ls_tcp_channel *channel, const char *why)
{
    ls_tcp_link *link = channel->link;

    link->tcp->stats.damaged++;
    channel->damages++;
    if (channel->damages >= LS_TCP_DAMAGES) {
        ls_fail(LS_EPEER, "the link to %s is unsound: %s, %d times in a row", link->name, why,
                channel->damages);
        ls_err_hint("Check cables, network cards and switches between the two hosts.");
        ls_err_unreached(link->peer);
        ls_tcp_fail(link->tcp);
        return;
    }
    ls_tcp_break(channel, why);
}

static void fail_as_gone(ls_tcp_channel *channel, const char *reason)
{
    ls_tcp_link *link = channel->link;

    ls_fail(LS_EPEER, "%s is gone: %s%s%s", link->name, channel->why[0] ? channel->why : "",
            channel->why[0] ? ", and " : "", reason);
    ls_tcp_fail(link->tcp);
}

/* The other side has said BYE on this channel. What it sent before on other channels may still be
 * in flight: the link is over when all channels are. */
void ls_tcp_bye(ls_tcp_channel *channel)
{
    ls_tcp_link *link = channel->link;
    ls_tcp *tcp = link->tcp;
    bool over = true;

    link->leaving = true;
    end_trouble(channel);
    close_channel(channel);
    channel->state = LS_TCP_OVER;
    for (int c = 0; c < tcp->channels; c++) {
        ls_tcp_channel *other = &link->channels[c];
        if (other->state == LS_TCP_OPEN) {
            over = false;
        } else if (other->state != LS_TCP_OVER) {
            end_trouble(other);
            close_channel(other);
            other->state = LS_TCP_OVER;
        }
    }
    if (!over || link->bye)
        return;
    link->bye = true;
    if (link->posted > 0) {
        ls_fail(LS_EPEER, "%s has closed its connections while %d messages were under way",
                link->name, link->posted);
        ls_tcp_fail(tcp);
    }
}

/* --- connecting --- */

static ls_status tune(const ls_tcp_channel *channel, int fd)
{
    const ls_tcp_args *args = &channel->link->tcp->args;
    /* Large messages may find a full window at a rank that computes: that is no cut link, so they
     * wait longer. The heartbeat of channel 0 finds a cut for all. */
    ls_sock_options options = {.user_timeout_ns =
                                   args->user_timeout_ns * (channel->index == 0 ? 1 : 4),
                               .keepalive_ns = args->user_timeout_ns};

    return ls_sock_tune(fd, &options);
}

/* The next try comes after a pause that doubles. */
static void wait_for_retry(ls_tcp_channel *channel)
{
    close_channel(channel);
    channel->state = LS_TCP_WAITING;
    channel->retry_ns = ls_time_now_ns() + channel->pause_ns;
    channel->pause_ns = ls_min_i64(2 * channel->pause_ns, LONGEST_PAUSE_NS);
}

/* A try failed for this errno. */
static void try_later(ls_tcp_channel *channel, int why)
{
    ls_tcp *tcp = channel->link->tcp;

    if (channel->why[0] == '\0' || tcp->opening)
        snprintf(channel->why, sizeof channel->why, "%s", strerror(why));
    wait_for_retry(channel);
    if (why == ECONNREFUSED)
        channel->refusals++;
    if (!tcp->opening && channel->refusals >= REFUSALS)
        fail_as_gone(channel, "nobody listens there any more");
}

static void try_connect(ls_tcp_channel *channel)
{
    channel->state = LS_TCP_CONNECTING;
    channel->retry_ns = ls_time_now_ns() + channel->link->tcp->args.resume_ns / 3;
    if (ls_sock_connect_begin(&channel->link->address, &channel->fd) != LS_OK) {
        try_later(channel, errno);
        return;
    }
    if (tune(channel, channel->fd) != LS_OK) {
        ls_tcp_fail(channel->link->tcp);
        return;
    }
    ls_tcp_watch(channel, EPOLLOUT);
}

/* CONNECTING -> HELLO: the connection exists, the handshake begins. */
static void begin_handshake(ls_tcp_channel *channel)
{
    ls_tcp *tcp = channel->link->tcp;
    ls_handshake_args args = {.secret = tcp->secret.bytes,
                              .connects = true,
                              .self = {.purpose = LS_HANDSHAKE_DATA,
                                       .generation = tcp->args.generation,
                                       .from = (uint32_t)tcp->args.rank,
                                       .to = (uint32_t)channel->link->peer,
                                       .detail = (uint64_t)channel->index},
                              .deadline_ns = LS_NO_DEADLINE}; /* the caller's deadline bounds it */

    channel->handshake = ls_mem_alloc(sizeof *channel->handshake);
    if (!channel->handshake || ls_handshake_begin(channel->handshake, &args) != LS_OK) {
        ls_tcp_fail(tcp);
        return;
    }
    channel->state = LS_TCP_HELLO;
    channel->answers = true;
    channel->refusals = 0;
}

/* What must be equal on all ranks, as RESUME says it. */
static uint64_t settings_of(const ls_tcp_args *args)
{
    return (uint64_t)args->eager_bytes << 32 | (uint64_t)(args->chunk_bytes / 64) << 8 |
           (uint64_t)args->sockets;
}

void ls_tcp_adopt(ls_tcp_channel *channel, int fd)
{
    ls_tcp *tcp = channel->link->tcp;

    if (channel->fd != fd) {
        close_channel(channel);
        channel->fd = fd;
    }
    drop_handshake(channel);
    channel->state = LS_TCP_RESUMING;
    ls_tcp_zerocopy_begin(channel);
    channel->answers = true;
    channel->link->heard_ns = ls_time_now_ns();
    ls_tcp_watch(channel, EPOLLIN);
    ls_tcp_note(channel, LS_TCP_WIRE_RESUME, tcp->instance, settings_of(&tcp->args));
}

/* HELLO -> RESUMING when the handshake has passed. A peer with another secret or generation fails
 * the transport; any other failure is tried again after a pause that doubles. */
static void step_handshake(ls_tcp_channel *channel)
{
    ls_tcp_link *link = channel->link;
    ls_handshake *handshake = channel->handshake;
    bool done;
    ls_status st = ls_handshake_step(handshake, channel->fd, &done);

    if (st == LS_OK && done && (handshake->peer.from != (uint32_t)link->peer))
        st = ls_fail(LS_EDATA, "rank %u answers there", handshake->peer.from);
    if (st == LS_OK && !done) {
        ls_tcp_watch(channel, (uint32_t)ls_handshake_events(handshake)); /* POLLIN is EPOLLIN */
        return;
    }
    if (st == LS_OK) {
        ls_tcp_adopt(channel, channel->fd);
        return;
    }
    channel->answers = false;
    snprintf(channel->why, sizeof channel->why, "%.95s", ls_err_last()->text);
    /* A wrong secret or generation does not go away by itself. */
    if (st == LS_EDATA) {
        ls_fail(LS_EPEER, "%s refuses the connection: %s", link->name, channel->why);
        ls_tcp_fail(link->tcp);
        return;
    }
    wait_for_retry(channel);
}

void ls_tcp_resume(ls_tcp_channel *channel, const ls_tcp_wire *wire)
{
    ls_tcp_link *link = channel->link;
    ls_tcp *tcp = link->tcp;

    if (channel->state != LS_TCP_RESUMING || wire->kind != LS_TCP_WIRE_RESUME) {
        ls_tcp_damage(channel, "a connection that does not begin where it should");
        return;
    }
    if (link->known && link->instance != wire->tag) {
        ls_fail(LS_EPEER, "%s was started again: it is another process now", link->name);
        ls_tcp_fail(tcp);
        return;
    }
    if (wire->offset != settings_of(&tcp->args)) {
        ls_fail(LS_EUSAGE, "%s was opened with other settings than rank %d", link->name,
                tcp->args.rank);
        ls_tcp_fail(tcp);
        return;
    }
    link->known = true;
    link->instance = wire->tag;
    ls_tcp_confirm(channel, wire->ack);
    if (channel->state != LS_TCP_RESUMING)
        return;
    if (channel->broken_ns && channel->counted + channel->received > 0) {
        tcp->stats.resumed++;
        ls_log(LS_LOG_DEBUG, "the connection %d to %s goes on", channel->index, link->name);
    }
    end_trouble(channel);
    channel->why[0] = '\0';
    channel->state = LS_TCP_OPEN;
    tcp->moved = true;
    ls_tcp_pump(channel);
}

void ls_tcp_event(ls_tcp_channel *channel, uint32_t events)
{
    if (channel->state == LS_TCP_CONNECTING) {
        int why = ls_sock_connect_result(channel->fd);
        if (why == EINPROGRESS)
            return;
        if (why != 0) {
            try_later(channel, why);
            return;
        }
        begin_handshake(channel);
        if (ls_tcp_failed(channel->link->tcp))
            return;
    }
    if (channel->state == LS_TCP_HELLO) {
        step_handshake(channel);
        return;
    }
    if (channel->state != LS_TCP_OPEN && channel->state != LS_TCP_RESUMING)
        return;
    if (events & EPOLLERR)
        ls_tcp_zerocopy_reap(channel);
    if (events & (EPOLLIN | EPOLLERR | EPOLLHUP))
        ls_tcp_read(channel);
    if (events & EPOLLOUT)
        ls_tcp_pump(channel);
}

/* --- accepting --- */

/* The accepting side: a socket whose handshake has passed becomes the connection of its channel, or
 * is refused with a reason. */
static void admit_one(ls_tcp *tcp, int fd, const ls_handshake *handshake,
                      const ls_sock_address *peer)
{
    uint32_t from = handshake->peer.from;
    const char *why = NULL;

    if (from >= (uint32_t)tcp->args.rank || !tcp->links[from].reached)
        why = "it says to be a rank that does not connect here";
    else if (handshake->peer.to != (uint32_t)tcp->args.rank)
        why = "it wants another rank";
    else if (handshake->peer.detail >= (uint64_t)tcp->channels)
        why = "it was opened with more sockets";
    else if (tcp->links[from].leaving)
        why = "it has closed before";
    if (why) {
        ls_acceptor_refuse(tcp->acceptor, peer, why);
        ls_sock_close(&fd);
        return;
    }
    ls_tcp_link *link = &tcp->links[from];
    ls_tcp_channel *channel = &link->channels[handshake->peer.detail];
    if (tune(channel, fd) != LS_OK) {
        ls_sock_close(&fd); /* it is broken already; the peer will connect again */
        return;
    }
    ls_tcp_want(link, false);
    if (channel->state == LS_TCP_OPEN) /* the peer has noticed a break that this side has not */
        ls_tcp_break(channel, "the other side connected again");
    ls_tcp_adopt(channel, fd);
}

void ls_tcp_admit(ls_tcp *tcp)
{
    for (;;) {
        ls_sock_address peer;
        ls_handshake handshake;
        int fd;
        if (ls_acceptor_next(tcp->acceptor, &fd, &handshake, &peer) != LS_OK) {
            ls_tcp_fail(tcp);
            return;
        }
        if (fd < 0)
            return;
        admit_one(tcp, fd, &handshake, &peer);
        ls_handshake_release(&handshake);
    }
}

/* Connect to the peer without a word, to see whether its kernel and its process still answer. */
static void probe(ls_tcp_link *link, int64_t now_ns)
{
    struct epoll_event event = {.events = EPOLLOUT | EPOLLIN,
                                .data.u64 = (uint64_t)link->peer << 8 | 0xff};

    if (link->probe_fd >= 0 && !link->probe_done && now_ns >= link->probe_late_ns)
        close_probe(link); /* no answer: the question may be lost */
    if (link->probe_fd >= 0 || now_ns < link->probe_ns)
        return;
    link->probe_ns = now_ns + PROBE_NS;
    link->probe_late_ns = now_ns + link->tcp->args.resume_ns / 3;
    if (ls_sock_connect_begin(&link->address, &link->probe_fd) != LS_OK)
        return;
    link->probe_done = false;
    if (tune(&link->channels[0], link->probe_fd) != LS_OK ||
        epoll_ctl(link->tcp->epoll_fd, EPOLL_CTL_ADD, link->probe_fd, &event) != 0)
        close_probe(link);
}

/* What the probe found holds for every channel that is waited for. */
static void probe_found(ls_tcp_link *link, bool answers, bool refused)
{
    ls_tcp *tcp = link->tcp;

    for (int c = 0; c < tcp->channels && !ls_tcp_failed(tcp); c++) {
        ls_tcp_channel *channel = &link->channels[c];
        if (!channel->broken_ns || channel->state != LS_TCP_WAITING)
            continue;
        channel->answers = answers;
        channel->refusals = refused ? channel->refusals + 1 : answers ? 0 : channel->refusals;
        if (channel->refusals >= REFUSALS && !tcp->opening)
            fail_as_gone(channel, "nobody listens there any more");
    }
}

void ls_tcp_probe_event(ls_tcp_link *link)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)link->peer << 8 | 0xff};

    if (link->probe_fd < 0)
        return;
    if (link->probe_done) { /* it ended: ask again */
        close_probe(link);
        probe_found(link, false, false);
        return;
    }
    int why = ls_sock_connect_result(link->probe_fd);
    if (why == EINPROGRESS)
        return;
    if (why == 0) { /* a process is there; kept open, so that its end is seen */
        link->probe_done = true;
        (void)epoll_ctl(link->tcp->epoll_fd, EPOLL_CTL_MOD, link->probe_fd, &event);
    } else {
        close_probe(link);
    }
    probe_found(link, why == 0, why == ECONNREFUSED);
}

/* --- time --- */

void ls_tcp_want(ls_tcp_link *link, bool bulk)
{
    ls_tcp *tcp = link->tcp;
    int last = bulk && connects(link) ? tcp->channels : 1;

    if (!link->used) {
        link->used = true;
        tcp->used[tcp->used_count++] = link->peer;
    }
    for (int c = 0; c < last; c++) {
        ls_tcp_channel *channel = &link->channels[c];
        if (channel->state != LS_TCP_IDLE)
            continue;
        channel->state = LS_TCP_WAITING;
        note_trouble(channel, ls_time_now_ns());
        if (connects(link))
            try_connect(channel);
    }
}

/* A channel that should be open and is not: connect again, ask for a connection over channel 0, or
 * probe; after resume_ns without any answer the peer is gone. */
static void tick_troubled(ls_tcp_channel *channel, int64_t now_ns)
{
    ls_tcp_link *link = channel->link;
    ls_tcp *tcp = link->tcp;

    if (connects(link)) {
        /* TCP repeats its first packet only after a second: connect anew when it was lost. */
        if (channel->state == LS_TCP_CONNECTING && now_ns >= channel->retry_ns && !tcp->opening) {
            close_channel(channel);
            channel->state = LS_TCP_WAITING;
        }
        if (channel->state == LS_TCP_WAITING && now_ns >= channel->retry_ns)
            try_connect(channel);
    } else if (channel->state == LS_TCP_WAITING && !tcp->opening) {
        if (channel->index > 0 && link->channels[0].state == LS_TCP_OPEN) {
            /* Channel 0 works, so the rank lives: ask it to connect this one again. */
            channel->answers = true;
            if (now_ns >= channel->retry_ns) {
                channel->retry_ns = now_ns + PROBE_NS;
                ls_tcp_note(&link->channels[0], LS_TCP_WIRE_NUDGE, 0, (uint64_t)channel->index);
            }
        } else {
            probe(link, now_ns);
        }
    }
    if (!tcp->opening && channel->broken_ns && !channel->answers && !ls_tcp_failed(tcp) &&
        now_ns - channel->broken_ns > tcp->args.resume_ns)
        fail_as_gone(channel, "no connection could be made in time");
}

/* Break channel 0 when the other kernel was silent for too long. Checked twice: when this rank had
 * no processor, what it sent just now has not waited yet. */
static void tick_quiet(ls_tcp_link *link, int64_t now_ns)
{
    ls_tcp_channel *channel = &link->channels[0];

    if (channel->state != LS_TCP_OPEN || now_ns - link->heard_ns < QUIET_NS ||
        ls_sock_unanswered_ns(channel->fd) < ANSWER_NS)
        link->quiet_ns = 0;
    else if (link->quiet_ns == 0)
        link->quiet_ns = now_ns;
    else if (now_ns - link->quiet_ns >= link->tcp->args.user_timeout_ns * 7 / 10)
        ls_tcp_break(channel, strerror(ETIMEDOUT));
}

void ls_tcp_forgive(ls_tcp *tcp, int64_t away_ns)
{
    for (int i = 0; i < tcp->used_count; i++) {
        ls_tcp_link *link = &tcp->links[tcp->used[i]];
        link->quiet_ns += link->quiet_ns ? away_ns : 0;
        for (int c = 0; c < tcp->channels; c++)
            link->channels[c].broken_ns += link->channels[c].broken_ns ? away_ns : 0;
    }
}

void ls_tcp_tick_link(ls_tcp_link *link, int64_t now_ns)
{
    ls_tcp *tcp = link->tcp;

    tick_quiet(link, now_ns);

    for (int c = 0; c < tcp->channels && !ls_tcp_failed(tcp); c++) {
        ls_tcp_channel *channel = &link->channels[c];
        if (channel->broken_ns)
            tick_troubled(channel, now_ns);
        else if (channel->state == LS_TCP_OPEN &&
                 (channel->received != channel->told ||
                  (c == 0 && now_ns - link->said_ns >= tcp->args.heartbeat_ns)))
            ls_tcp_note(channel, LS_TCP_WIRE_HEARTBEAT, 0, 0);
    }
    if (link->waiting_first && !ls_tcp_failed(tcp))
        ls_tcp_announce_old(link, now_ns);
}
