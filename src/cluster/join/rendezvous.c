/* rendezvous.c -- the host and the nodes that join it; the drawing of messages is in the header.
 *
 * The host's own agent is no peer of itself: its part (ranks, failure, end) is kept in the same
 * struct. A peer goes through
 *
 *   WAITED -> JOINED       take_join(): version, job, generation and ranks are right
 *   JOINED -> WAITED       before all are here: it went away, and another may come
 *   JOINED -> GONE_WELL    take_done(): its ranks have ended
 *   JOINED -> LOST         after that: it went away, which ends the job, unless it heals (hooks)
 *
 * Nodes are numbered in the order in which they came. An agent reports a failure that blames a peer
 * (LS_EPEER) only with its DONE, because the cause itself is on its way from another node. The host
 * holds such a DONE back as a suspicion, for as long as it takes to notice that a node has died: if
 * nothing better comes until then, it is the failure of the job. */
#include "cluster/join/rendezvous_impl.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/member/wire_codec.h"
#include "net/fd_limit.h"

typedef ls_rendezvous_peer peer;

enum { EVENTS = 256, READS = 40 }; /* events at a time, and how often in a row */
enum { MOST_CALLERS = 4096 };      /* most callers that are heard at a time */

/* --- small things ----------------------------------------------------------------------------- */

/* Version and content of this program: nodes with different ones would not understand each other,
 * or worse, nearly. */
void ls_rendezvous_own_version(char version_out[LS_RENDEZVOUS_VERSION])
{
    ls_file_map map;
    char hex[LS_HASH_HEX] = "unknown";

    if (ls_file_map_open(&map, "/proc/self/exe") == LS_OK) {
        ls_hash_hex(ls_hash_bytes(map.bytes, map.len), hex);
        ls_file_map_close(&map);
    }
    snprintf(version_out, LS_RENDEZVOUS_VERSION, "%s %.12s", LS_VERSION, hex);
}

ls_status ls_rendezvous_watch(ls_rendezvous *r, int fd, int token)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)token};

    if (epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        return ls_fail_sys(LS_EIO, "cannot watch a control connection");
    return LS_OK;
}

void ls_rendezvous_drop(peer *p)
{
    if (p->linked)
        ls_frame_release(&p->link); /* closes, which ends the watching */
    p->linked = false;
    ls_mem_free(p->ports);
    p->ports = NULL;
}

void ls_rendezvous_enter(ls_rendezvous *r, peer *p, ls_rendezvous_phase phase)
{
    int change = (phase == JOINED) - (p->phase == JOINED);
    bool listed = p >= r->peers && p < r->peers + r->n_peers;

    r->n_joined += change;
    r->n_ranks += change * p->ranks;
    p->phase = phase;
    if (phase == WAITED && listed && p - r->peers < r->free_from)
        r->free_from = (int)(p - r->peers);
}

/* The token of a peer's events. */
static int token_of(const ls_rendezvous *r, const peer *p)
{
    bool late = p >= r->late && p < r->late + LATE;

    return late ? OF_LATE + (int)(p - r->late) : (int)(p - r->peers);
}

/* Watch for room to send while something waits for it, and no longer. */
static void watch_room(ls_rendezvous *r, peer *p)
{
    bool waits = p->linked && ls_frame_waiting(&p->link);
    struct epoll_event event = {.events = EPOLLIN | (waits ? (uint32_t)EPOLLOUT : 0),
                                .data.u32 = (uint32_t)token_of(r, p)};

    if (!p->linked || waits == p->flushes)
        return;
    if (epoll_ctl(r->epoll_fd, EPOLL_CTL_MOD, p->link.fd, &event) == 0)
        p->flushes = waits;
}

void ls_rendezvous_send(ls_rendezvous *r, peer *p, uint16_t type, const void *bytes, size_t len)
{
    (void)ls_frame_send(&p->link, type, bytes, len); /* LOST is seen */
    watch_room(r, p);
}

void ls_rendezvous_flush(ls_rendezvous *r, peer *p)
{
    if (ls_frame_waiting(&p->link))
        (void)ls_frame_flush(&p->link); /* LOST is seen */
    watch_room(r, p);
}

static int poll_ms(int64_t deadline_ns)
{
    if (deadline_ns == LS_NO_DEADLINE)
        return 1000;
    int64_t ms = (deadline_ns - ls_time_now_ns()) / LS_NS_PER_MS + 1;
    return ms < 0 ? 0 : ms > 1000 ? 1000 : (int)ms;
}

void ls_rendezvous_wait(ls_rendezvous *r, int64_t deadline_ns)
{
    struct pollfd p = {.fd = r->epoll_fd, .events = POLLIN};

    poll(&p, 1, poll_ms(deadline_ns));
}

/* --- records ---------------------------------------------------------------------------------- */

static bool get_record(const ls_frame *frame, int *code_out, ls_err_record *why)
{
    ls_wire_codec in = {.at = frame->payload, .left = frame->bytes};

    *code_out = (int)ls_wire_codec_get(&in, 2);
    *why = (ls_err_record){.file = ""};
    ls_wire_codec_get_fields(&in, why, ls_wire_codec_record, LS_WIRE_RECORD);
    return ls_wire_codec_done(&in) && why->code > LS_OK && why->code <= LS_EINTR && *code_out > 0 &&
           *code_out < 256;
}

void ls_rendezvous_send_record(ls_rendezvous *r, uint16_t type, int code, const ls_err_record *why)
{
    ls_str bytes;

    ls_str_init(&bytes);
    ls_wire_codec_put(&bytes, (uint64_t)code, 2);
    ls_wire_codec_put_fields(&bytes, why, ls_wire_codec_record, LS_WIRE_RECORD);
    for (int i = 0; i < r->n_peers && !bytes.failed; i++)
        if (r->peers[i].linked && (r->peers[i].phase == JOINED || r->peers[i].phase == GONE_WELL))
            ls_rendezvous_send(r, &r->peers[i], type, bytes.p, bytes.len);
    ls_str_release(&bytes);
}

/* The first failure of the job, wherever it was. */
void ls_rendezvous_decide(ls_rendezvous *r, int code, const ls_err_record *why, bool told)
{
    if (r->failed)
        return;
    r->failed = true;
    r->told = told;
    r->code = code;
    r->why = *why;
    ls_rendezvous_send_record(r, r->args.hosts ? STOP : FAILED, code, &r->why);
}

/* The thread's last record, unless a better one comes in time. Example: rank 3 of node 1 dies of signal
 * 9, and rank 0 of node 2 sees its connection end:
 *
 *     0.00 s   node 2: DONE, exit code of LS_EPEER       a suspicion, for ALIVE_S
 *     0.02 s   node 1: FAILED "rank 3 was killed ..."    the failure of the job
 *
 * Without node 1's message the suspicion becomes the failure after 4 s. */
static void suspect(ls_rendezvous *r, int code, bool told)
{
    const struct itimerspec at = {.it_value = {.tv_sec = ALIVE_S}};

    if (r->failed || r->suspected)
        return;
    r->suspected = true;
    r->suspect_told = told;
    r->suspect_code = code;
    r->suspect_why = *ls_err_last();
    r->suspect_ns = ls_time_now_ns() + ALIVE_S * LS_NS_PER_S;
    (void)timerfd_settime(r->timer_fd, 0, &at, NULL);
}

/* over: no node is left that could say more. */
static void settle_suspicion(ls_rendezvous *r, bool over)
{
    uint64_t times;

    if (!r->suspected || (!over && !r->failed && ls_time_now_ns() < r->suspect_ns))
        return;
    (void)!read(r->timer_fd, &times, sizeof times);
    r->suspected = false;
    ls_rendezvous_decide(r, r->suspect_code, &r->suspect_why, r->suspect_told);
}

void ls_rendezvous_decide_lost(ls_rendezvous *r, const peer *p)
{
    char reason[sizeof ls_err_last()->text];

    snprintf(reason, sizeof reason, "%s", ls_err_last()->text);
    if (r->args.hosts)
        ls_fail(LS_EPEER, "node %d (%s, %s) went away: %.300s", p->node, p->host, p->from.text,
                reason);
    else
        ls_fail(LS_EPEER, "the first node (%s) went away: %.300s", r->address.text, reason);
    ls_rendezvous_decide(r, ls_err_exit_code(LS_EPEER), ls_err_last(), false);
}

void ls_rendezvous_send_text(ls_rendezvous *r, peer *p, uint16_t type, const char *text)
{
    ls_str bytes;

    ls_str_init(&bytes);
    ls_wire_codec_put_text(&bytes, text);
    if (!bytes.failed)
        ls_rendezvous_send(r, p, type, bytes.p, bytes.len);
    ls_str_release(&bytes);
}

/* --- joining, the coordinator's part ---------------------------------------------------------- */

void ls_rendezvous_refuse(ls_rendezvous *r, peer *p, const char *why)
{
    ls_rendezvous_send_text(r, p, REFUSED, why);
    ls_acceptor_refuse(r->acceptor, &p->from, why);
    ls_rendezvous_drop(p);
    ls_rendezvous_enter(r, p, WAITED);
}

/* What is wrong with a newcomer; "": nothing. Another program is refused even where the protocol is
 * the same: nodes that differ in code would compute different bits. */
static void check_join(const ls_rendezvous *r, const peer *p, const char *version, const char *job,
                       uint64_t generation, char *why, size_t cap)
{
    const char *ours = r->args.job ? r->args.job : "";

    why[0] = '\0';
    if (strcmp(version, r->version) != 0)
        snprintf(why, cap, "it runs lineshaft %s, the first node runs %s", version, r->version);
    else if (strcmp(job, ours) != 0)
        snprintf(why, cap, "it is of the job \"%s\", this one is \"%s\"", job, ours);
    else if (generation != 0 && generation != r->args.generation)
        snprintf(why, cap, "it asks for generation %llu, this is %llu",
                 (unsigned long long)generation, (unsigned long long)r->args.generation);
    else if (p->ranks < 1 || p->ranks > LS_MEMBERS_RANKS - r->args.ranks - r->n_ranks)
        snprintf(why, cap, "its %d ranks do not fit: a job has at most %d", p->ranks,
                 LS_MEMBERS_RANKS);
}

/* What there is to do, for an agent that came without ranks; its JOIN follows. */
static void send_work(ls_rendezvous *r, peer *p)
{
    const ls_str *work = r->args.work;

    if (work)
        ls_rendezvous_send(r, p, WORK, work->p, work->len);
    else
        ls_rendezvous_refuse(r, p, "the command of this job is too long for agents");
}

static ls_status take_join(ls_rendezvous *r, peer *p, const ls_frame *frame)
{
    ls_wire_codec in = {.at = frame->payload, .left = frame->bytes};
    char version[VERSION], job[JOB], why[256];
    bool speaks = frame->type == JOIN && ls_wire_codec_get(&in, 2) == PROTOCOL;

    ls_wire_codec_get_text(&in, version, sizeof version);
    ls_wire_codec_get_text(&in, job, sizeof job);
    uint64_t generation = ls_wire_codec_get(&in, 8);
    p->ranks = (int)ls_wire_codec_get(&in, 4);
    ls_wire_codec_get_text(&in, p->host, sizeof p->host);
    ls_wire_codec_get_text(&in, p->ip, sizeof p->ip);
    if (!speaks)
        snprintf(why, sizeof why, "it speaks another protocol");
    else if (in.bad || p->ranks < 0 || in.left != 2 * (size_t)p->ranks || !*p->ip)
        snprintf(why, sizeof why, "its message is damaged");
    else
        check_join(r, p, version, job, generation, why, sizeof why);
    if (*why) {
        ls_rendezvous_refuse(r, p, why);
        return LS_OK;
    }
    p->ports = ls_mem_array((size_t)p->ranks, sizeof *p->ports);
    if (!p->ports)
        return LS_ENOMEM;
    for (int i = 0; i < p->ranks; i++)
        p->ports[i] = (uint16_t)ls_wire_codec_get(&in, 2);
    ls_rendezvous_enter(r, p, JOINED);
    ls_log(LS_LOG_INFO, "%s (%s) joins with %d ranks", p->host, p->from.text, p->ranks);
    if (r->met)
        ls_rendezvous_admit(r, p);
    return LS_OK;
}

static peer *free_peer(ls_rendezvous *r)
{
    for (int i = r->free_from; i < r->n_peers; i++) {
        if (!r->peers[i].linked && r->peers[i].phase == WAITED) {
            r->free_from = i;
            return &r->peers[i];
        }
    }
    r->free_from = r->n_peers;
    return NULL;
}

/* Callers that proved the secret. */
static ls_status take_callers(ls_rendezvous *r)
{
    ls_status st = LS_OK;
    const ls_sock_options options = {.user_timeout_ns = ALIVE_S * LS_NS_PER_S,
                                     .keepalive_ns = LS_NS_PER_S};

    for (;;) {
        ls_handshake handshake;
        ls_sock_address from;
        int fd;
        LS_TRY(st, ls_acceptor_next(r->acceptor, &fd, &handshake, &from), out);
        if (fd < 0)
            break;
        peer *p = !r->met ? free_peer(r) : r->hooks ? ls_rendezvous_new_peer(r) : NULL;
        if (!p) {
            p = &r->late[r->next_late++ % LATE];
            ls_rendezvous_drop(p);
        }
        *p = (peer){.from = from, .linked = true};
        ls_frame_init(&p->link, fd, &handshake, LIMIT);
        p->link.ahead = true; /* take_frames() leaves nothing behind */
        ls_handshake_release(&handshake);
        if (ls_sock_tune(fd, &options) != LS_OK ||
            ls_rendezvous_watch(r, fd, token_of(r, p)) != LS_OK)
            ls_rendezvous_refuse(r, p, "it cannot be watched");
    }
out:
    return st;
}

/* --- frames ----------------------------------------------------------------------------------- */

static void say_ended(const peer *p, int code)
{
    if (code == ls_err_exit_code(LS_EINTR))
        ls_fail(LS_EINTR, "stopped on request on node %d (%s)", p->node, p->host);
    else
        ls_fail(LS_EPEER, "node %d (%s) ended with exit code %d", p->node, p->host, code);
}

static void take_done(ls_rendezvous *r, peer *p, const ls_frame *frame)
{
    ls_wire_codec in = {.at = frame->payload, .left = frame->bytes};
    int code = (int)ls_wire_codec_get(&in, 2);

    ls_rendezvous_enter(r, p, GONE_WELL);
    if (code == 0)
        return;
    say_ended(p, code);
    if (code == ls_err_exit_code(LS_EPEER))
        suspect(r, code, false);
    else
        ls_rendezvous_decide(r, code, ls_err_last(), false);
}

/* This node is sent away; the job goes on without it. */
static void take_leave(ls_rendezvous *r, const ls_frame *frame)
{
    ls_wire_codec in = {.at = frame->payload, .left = frame->bytes};
    char why[640];

    ls_wire_codec_get_text(&in, why, sizeof why);
    if (r->failed)
        return;
    ls_fail(LS_EPEER, "the job goes on without this node: %.500s", why);
    r->failed = true;
    r->code = ls_err_exit_code(LS_EPEER);
    r->why = *ls_err_last();
}

/* A frame of a member, at either side. */
static void take_frame(ls_rendezvous *r, peer *p, const ls_frame *frame)
{
    ls_err_record why;
    int code;

    if (r->args.hosts != (frame->type == FAILED || frame->type == DONE))
        return; /* the other side's part */
    switch (frame->type) {
    case FAILED:
        if (get_record(frame, &code, &why))
            ls_rendezvous_decide(r, code, &why, false);
        break;
    case STOP:
        if (get_record(frame, &code, &why) && !r->failed) {
            r->failed = true;
            r->code = code;
            r->why = why;
        }
        break;
    case DONE:
        take_done(r, p, frame);
        break;
    case LEAVE:
        take_leave(r, frame);
        break;
    case END: {
        ls_wire_codec in = {.at = frame->payload, .left = frame->bytes};
        r->code = (int)ls_wire_codec_get(&in, 2);
        r->ended = true;
        break;
    }
    default:
        break;
    }
}

/* All frames of one peer that are here. */
static ls_status take_frames(ls_rendezvous *r, peer *p)
{
    ls_status st = LS_OK;

    while (p->linked) {
        ls_frame frame;
        bool got;
        st = ls_frame_receive(&p->link, &frame, &got);
        if (st == LS_ENOMEM)
            return st;
        if (st != LS_OK) {
            bool lost = p->phase == JOINED && r->met && !r->ended;
            if (lost) {
                ls_rendezvous_lose(r, p, 0);
                return LS_OK;
            }
            ls_rendezvous_drop(p);
            ls_rendezvous_enter(r, p, p->phase == GONE_WELL ? GONE_WELL : WAITED);
            return LS_OK;
        }
        if (!got)
            break;
        if (r->hooks && p->phase == JOINED)
            ls_rendezvous_heard(r, p);
        if (frame.type == HEARTBEAT)
            continue;
        if (frame.type == MESSAGE && r->hooks && p->phase == JOINED)
            r->hooks->heard(r->hooks->context, p->node, frame.payload, frame.bytes);
        else if (r->hooks && p->phase == JOINED && frame.type >= REACH && frame.type <= PROBED)
            ls_rendezvous_take_probe(r, p, &frame);
        else if (p >= r->late && p < r->late + LATE)
            ls_rendezvous_refuse(r, p, "the job has all of its nodes");
        else if (r->args.hosts && p->phase == WAITED && frame.type == ASK)
            send_work(r, p);
        else if (r->args.hosts && p->phase == WAITED && frame.type == BACK)
            ls_rendezvous_take_back(r, p, &frame);
        else if (r->args.hosts && p->phase == WAITED)
            LS_TRY(st, take_join(r, p, &frame), out);
        else
            take_frame(r, p, &frame);
    }
out:
    return st;
}

/* What an event is of. */
static ls_status take_event(ls_rendezvous *r, const struct epoll_event *event)
{
    uint32_t token = event->data.u32;
    peer *p = token < (uint32_t)r->n_peers                 ? &r->peers[token]
              : token >= OF_LATE && token < OF_LATE + LATE ? &r->late[token - OF_LATE]
                                                           : NULL;

    if (token == OF_ACCEPTOR)
        return take_callers(r);
    if (token == OF_HEARTBEAT)
        ls_rendezvous_beat(r);
    if (token == OF_HEARTBEAT || token == OF_PROBE)
        ls_rendezvous_attend_probe(r);
    if (!p || !p->linked)
        return LS_OK; /* no peer, or one that is gone by now */
    if (event->events & EPOLLOUT)
        ls_rendezvous_flush(r, p);
    return take_frames(r, p);
}

/* What has come: only of peers that sent something, which the kernel knows. */
static ls_status take_all(ls_rendezvous *r)
{
    struct epoll_event events[EVENTS];
    ls_status st = LS_OK;
    int n = EVENTS;

    for (int reads = 0; n == EVENTS && reads < READS; reads++) {
        n = epoll_wait(r->epoll_fd, events, EVENTS, 0);
        for (int i = 0; i < n; i++)
            LS_TRY(st, take_event(r, &events[i]), out);
    }
    if (r->hooks && r->met && r->hooks->looks)
        r->hooks->looks(r->hooks->context);
    settle_suspicion(r, false);
out:
    return st;
}

/* --- opening ---------------------------------------------------------------------------------- */

ls_status ls_rendezvous_open_acceptor(ls_rendezvous *r, int nodes)
{
    ls_status st = LS_OK;
    char who[32];

    snprintf(who, sizeof who, "%d nodes", nodes);
    LS_TRY(st, ls_fd_limit_make(nodes, who), out);
    r->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (r->timer_fd < 0) {
        st = ls_fail_sys(LS_EIO, "cannot make a timer for control connections");
        goto out;
    }
    LS_TRY(st, ls_rendezvous_watch(r, r->timer_fd, OF_TIMER), out);
    LS_TRY(st,
           ls_acceptor_open(
               &r->acceptor,
               &(ls_acceptor_args){.listen_fd = r->listen_fd,
                                   .secret = r->args.secret,
                                   .self = {.purpose = LS_HANDSHAKE_CONTROL},
                                   .callers = nodes < MOST_CALLERS ? nodes : MOST_CALLERS}),
           out);
    st = ls_rendezvous_watch(r, ls_acceptor_fd(r->acceptor), OF_ACCEPTOR);
out:
    return st;
}

static ls_status open_host(ls_rendezvous *r)
{
    ls_status st = LS_OK;
    const ls_sock_address at = r->address;

    LS_TRY(st, ls_sock_listen(&at, &r->listen_fd), out);
    LS_TRY(st, ls_sock_local(r->listen_fd, &r->address), out);
    ls_rendezvous_set_ip(r, &r->address);
    st = ls_rendezvous_open_acceptor(r, r->args.nodes);
out:
    return st;
}

ls_status ls_rendezvous_open(ls_rendezvous **rendezvous_out, const ls_rendezvous_args *args,
                             int64_t deadline_ns)
{
    ls_status st = LS_OK;

    if (args->hosts && (args->nodes < 1 || args->nodes > LS_MEMBERS_NODES))
        return ls_fail(LS_EUSAGE, "a job has 1 to %d nodes, not %d", LS_MEMBERS_NODES, args->nodes);
    if (args->hosts || args->ranks != 0)
        st = ls_rendezvous_check_ranks(args->ranks);
    if (st != LS_OK)
        return st;
    ls_rendezvous *r = ls_mem_alloc(sizeof *r);
    if (!r)
        return LS_ENOMEM;
    r->args = *args;
    r->listen_fd = r->heartbeat_fd = r->timer_fd = -1;
    ls_members_init(&r->members);
    ls_str_init(&r->list);
    ls_str_init(&r->work);
    if (args->version)
        snprintf(r->version, sizeof r->version, "%s", args->version);
    else
        ls_rendezvous_own_version(r->version);
    ls_err_clear();
    r->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (r->epoll_fd < 0) {
        st = ls_fail_sys(LS_EIO, "cannot watch control connections");
        goto out;
    }
    r->n_peers = r->peers_room = args->hosts ? args->nodes - 1 : 1;
    r->peers = ls_mem_array((size_t)r->n_peers, sizeof *r->peers);
    LS_TRY(st, r->peers ? LS_OK : LS_ENOMEM, out);
    LS_TRY(st, ls_sock_resolve(args->address, deadline_ns, &r->address), out);
    LS_TRY(st, args->hosts ? open_host(r) : ls_rendezvous_call_in(r, deadline_ns), out);
    *rendezvous_out = r;
out:
    if (st != LS_OK)
        ls_rendezvous_close(r);
    return st;
}

void ls_rendezvous_close(ls_rendezvous *r)
{
    if (!r)
        return;
    for (int i = 0; r->peers && i < r->n_peers; i++)
        ls_rendezvous_drop(&r->peers[i]);
    for (int i = 0; i < LATE; i++)
        ls_rendezvous_drop(&r->late[i]);
    ls_acceptor_close(r->acceptor);
    ls_sock_close(&r->listen_fd);
    ls_sock_close(&r->timer_fd);
    ls_sock_close(&r->heartbeat_fd);
    ls_sock_close(&r->epoll_fd);
    ls_probe_close(r->probe);
    ls_members_release(&r->members);
    ls_str_release(&r->list);
    ls_str_release(&r->work);
    ls_mem_free(r->place_of);
    ls_mem_free(r->peers);
    ls_mem_free(r);
}

const char *ls_rendezvous_address(const ls_rendezvous *r)
{
    return r->address.text;
}

/* --- meeting ---------------------------------------------------------------------------------- */

static ls_status meet_late(const ls_rendezvous *r)
{
    ls_str names;

    ls_str_init(&names);
    for (int i = 0; i < r->n_peers; i++)
        if (r->peers[i].phase == JOINED)
            ls_str_printf(&names, ", %s", r->peers[i].host);
    ls_fail(LS_EDEADLINE, "%d of %d nodes did not join at %s in time; here: this one%s",
            r->n_peers - r->n_joined, r->args.nodes, r->address.text, names.p);
    ls_err_hint("Start \"lineshaft agent --join %s\" with the same secret on each.",
                r->address.text);
    ls_str_release(&names);
    return LS_EDEADLINE;
}

static ls_status meet_host(ls_rendezvous *r, int64_t deadline_ns)
{
    ls_status st = LS_OK;

    for (;;) {
        LS_TRY(st, take_all(r), out);
        if (r->n_joined == r->n_peers)
            break;
        if (ls_time_now_ns() >= deadline_ns)
            return meet_late(r);
        ls_rendezvous_wait(r, deadline_ns);
    }
    st = ls_rendezvous_spread(r);
    r->met = st == LS_OK;
out:
    return st;
}

ls_status ls_rendezvous_meet(ls_rendezvous *r, int64_t deadline_ns)
{
    return r->args.hosts ? meet_host(r, deadline_ns) : ls_rendezvous_meet_join(r, deadline_ns);
}

const ls_members *ls_rendezvous_members(ls_rendezvous *r)
{
    if (r->members.nodes == 0 && r->list.len > 0 &&
        ls_members_decode(&r->members, r->list.p, r->list.len) != LS_OK)
        return NULL;
    return &r->members;
}

ls_status ls_rendezvous_learn(const ls_rendezvous *r, ls_roster *roster)
{
    return ls_roster_learn(roster, 0, r->names.at, r->names.left);
}

int ls_rendezvous_node(const ls_rendezvous *r)
{
    return r->node;
}

/* --- while it runs, and at its end ------------------------------------------------------------ */

int ls_rendezvous_fd(const ls_rendezvous *r)
{
    return r->epoll_fd;
}

ls_status ls_rendezvous_attend(ls_rendezvous *r)
{
    ls_status st = take_all(r);

    if (st == LS_OK && r->hooks && r->ended && r->code == 0 && !r->failed && !r->told) {
        r->told = true; /* it came too late, or was never needed */
        return ls_fail(LS_EPEER, "the job has ended");
    }
    if (st == LS_OK && r->failed && !r->told) {
        ls_err_record why = r->why;
        why.code = why.code == LS_EINTR ? LS_EINTR : LS_EPEER; /* not this node's own failure */
        r->told = true;
        st = ls_err_adopt(&why);
    }
    return st;
}

void ls_rendezvous_fail(ls_rendezvous *r, int code, const ls_err_record *why)
{
    ls_rendezvous_decide(r, code, why, true);
}

static ls_status end_host(ls_rendezvous *r, int code, int64_t *stop_ns)
{
    ls_status st = LS_OK;

    if (code != 0 && !r->failed) {
        ls_fail(code == ls_err_exit_code(LS_EINTR) ? LS_EINTR : LS_EPEER,
                "node 0 ended with exit code %d", code);
        if (code == ls_err_exit_code(LS_EPEER))
            suspect(r, code, true);
        else
            ls_rendezvous_decide(r, code, ls_err_last(), true);
    }
    for (;;) {
        ls_rendezvous_dismiss(r);
        if (r->n_joined == 0)
            break;
        if (r->failed && *stop_ns == LS_NO_DEADLINE)
            *stop_ns = ls_time_now_ns() + r->args.grace_ns + BYE_S * LS_NS_PER_S;
        if (ls_time_now_ns() >= *stop_ns) {
            ls_log(LS_LOG_WARN, "%d nodes did not say that they have ended", r->n_joined);
            break;
        }
        ls_rendezvous_wait(r, *stop_ns);
        LS_TRY(st, take_all(r), out);
    }
    settle_suspicion(r, true);
out:
    return st;
}

/* Tell everybody the code, and see it sent. */
static void say_end(ls_rendezvous *r)
{
    int64_t deadline_ns = ls_time_now_ns() + BYE_S * LS_NS_PER_S;
    uint8_t bytes[2] = {(uint8_t)r->code, 0};

    for (int i = 0; i < r->n_peers; i++) {
        ls_frame_link *link = &r->peers[i].link;
        if (!r->peers[i].linked || ls_frame_send(link, END, bytes, sizeof bytes) != LS_OK)
            continue;
        while (ls_frame_waiting(link) && ls_sock_wait(link->fd, POLLOUT, deadline_ns) == LS_OK &&
               ls_frame_flush(link) == LS_OK)
            ;
    }
}

/* The ranks here failed because of a peer: its own node is about to say why, and that is the cause
 * of the job. */
static ls_status await_cause(ls_rendezvous *r)
{
    int64_t until_ns = ls_time_now_ns() + CAUSE_S * LS_NS_PER_S;
    ls_status st = LS_OK;

    while (st == LS_OK && !r->failed && !r->ended && (!r->args.hosts || r->n_joined > 0) &&
           ls_time_now_ns() < until_ns) {
        ls_rendezvous_wait(r, until_ns);
        st = take_all(r);
    }
    return st;
}

/* A node that joined says DONE and waits for END; the host waits for DONE of all, then says END. After a
 * failure neither waits for longer than the grace time and a few seconds: a node that hangs is not
 * waited for. */
ls_status ls_rendezvous_end(ls_rendezvous *r, int code, int *code_out)
{
    ls_status st = LS_OK;
    int64_t stop_ns = LS_NO_DEADLINE; /* as long as the job runs on other nodes */
    uint8_t bytes[2] = {(uint8_t)code, 0};

    if (code == ls_err_exit_code(LS_EPEER))
        LS_TRY(st, await_cause(r), out);
    peer *p = &r->peers[0];
    if (!r->args.hosts && p->linked)
        ls_rendezvous_send(r, p, DONE, bytes, sizeof bytes);
    while (!r->args.hosts && p->linked && !r->ended) {
        if (r->failed && stop_ns == LS_NO_DEADLINE)
            stop_ns = ls_time_now_ns() + r->args.grace_ns + 3 * BYE_S * LS_NS_PER_S;
        if (ls_time_now_ns() >= stop_ns)
            break;
        ls_rendezvous_wait(r, stop_ns);
        LS_TRY(st, take_all(r), out);
    }
    if (r->args.hosts) { /* perhaps only now */
        stop_ns = LS_NO_DEADLINE;
        LS_TRY(st, end_host(r, code, &stop_ns), out);
        say_end(r);
        *code_out = r->code;
        return LS_OK;
    }
    /* Without the coordinator's word, its loss is the failure of a job that had none. */
    *code_out = r->ended || r->failed ? r->code : code;
out:
    return st;
}
