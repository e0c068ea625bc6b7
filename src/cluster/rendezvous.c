/* rendezvous.c -- the coordinator and those who join it; the drawing is in the header.
 *
 * The coordinator's own agent is no peer of itself: its part (ranks, failure, end) is kept in the
 * same struct. A peer goes through
 *
 *   WAITED -> JOINED    take_join(): version, job, generation and ranks are right
 *   JOINED -> WAITED    before the view is complete: it went away, another may come
 *   JOINED -> DONE      take_frame(): its ranks have ended
 *   JOINED -> LOST      after the view: it went away, which ends the job, unless it heals (door)
 *
 * Nodes are numbered in the order in which they came. A failure because of a peer (LS_EPEER) is
 * reported by an agent only with its DONE: the cause itself is on its way from another node. The
 * coordinator holds such a DONE back as a suspicion, for as long as it takes to see that a node has
 * died: only when nothing better came until then, it is the failure of the job. */
#include "cluster/rendezvous_impl.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/parcel.h"
#include "net/hello.h"
#include "net/secret.h"

typedef ls_rendezvous_peer peer;

/* --- small things ----------------------------------------------------------------------------- */

static const char *host_name(char *host, size_t cap)
{
    if (gethostname(host, cap - 1) != 0)
        snprintf(host, cap, "?");
    host[cap - 1] = '\0';
    return host;
}

void ls_rendezvous_ip(const ls_sock_address *address, char *ip, size_t cap)
{
    const char *text = address->text, *colon = strrchr(text, ':');
    int skip = *text == '[', len = (int)(colon - text) - 2 * skip;

    snprintf(ip, cap, "%.*s", len, text + skip);
}

/* Version and content of this program: nodes with different ones would not understand each other,
 * or worse, nearly. */
static void set_version(char *version)
{
    ls_file_map map;
    char hex[LS_HASH_HEX] = "unknown";

    if (ls_file_map_open(&map, "/proc/self/exe") == LS_OK) {
        ls_hash_hex(ls_hash_bytes(map.bytes, map.len), hex);
        ls_file_map_close(&map);
    }
    snprintf(version, VERSION, "%s %.12s", LS_VERSION, hex);
}

ls_status ls_rendezvous_watch(ls_rendezvous *r, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};

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

static int poll_ms(int64_t deadline_ns)
{
    if (deadline_ns == LS_NO_DEADLINE)
        return 1000;
    int64_t ms = (deadline_ns - ls_time_now_ns()) / LS_NS_PER_MS + 1;
    return ms < 0 ? 0 : ms > 1000 ? 1000 : (int)ms;
}

static void wait_for_news(ls_rendezvous *r, int64_t deadline_ns)
{
    struct pollfd p = {.fd = r->epoll_fd, .events = POLLIN};

    poll(&p, 1, poll_ms(deadline_ns));
}

/* --- records ---------------------------------------------------------------------------------- */

static void put_record(ls_str *out, int code, const ls_err_record *why)
{
    ls_parcel_put(out, (uint64_t)code, 2);
    ls_parcel_put(out, (uint64_t)why->code, 2);
    ls_parcel_put_text(out, why->text);
    ls_parcel_put_text(out, why->hint);
    ls_parcel_put_text(out, why->doing);
}

static bool get_record(const ls_frame *frame, int *code_out, ls_err_record *why)
{
    ls_parcel in = {.at = frame->payload, .left = frame->bytes};

    *code_out = (int)ls_parcel_get(&in, 2);
    uint64_t status = ls_parcel_get(&in, 2);
    *why = (ls_err_record){.code = (ls_status)status, .file = ""};
    ls_parcel_get_text(&in, why->text, sizeof why->text);
    ls_parcel_get_text(&in, why->hint, sizeof why->hint);
    ls_parcel_get_text(&in, why->doing, sizeof why->doing);
    return ls_parcel_done(&in) && status > LS_OK && status <= LS_EINTR && *code_out > 0 &&
           *code_out < 256;
}

/* Texts of records may come from anywhere; control characters would be refused by the reader. */
static void clean(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 127)
            *text = ' ';
}

static ls_err_record cleaned(const ls_err_record *why)
{
    ls_err_record copy = *why;

    clean(copy.text);
    clean(copy.hint);
    clean(copy.doing);
    return copy;
}

void ls_rendezvous_send_record(ls_rendezvous *r, uint16_t type, int code, const ls_err_record *why)
{
    ls_str bytes;

    ls_str_init(&bytes);
    put_record(&bytes, code, why);
    for (int i = 0; i < r->n_peers && !bytes.failed; i++)
        if (r->peers[i].linked && (r->peers[i].phase == JOINED || r->peers[i].phase == GONE_WELL))
            (void)ls_frame_send(&r->peers[i].link, type, bytes.p, bytes.len); /* LOST is seen */
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
    r->why = cleaned(why);
    ls_rendezvous_send_record(r, r->args.hosts ? STOP : FAILED, code, &r->why);
}

/* The thread's last record, unless a better one comes in time. */
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

/* `over`: nobody is left who could say more. */
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

void ls_rendezvous_send_text(peer *p, uint16_t type, const char *text)
{
    ls_str bytes;

    ls_str_init(&bytes);
    ls_parcel_put_text(&bytes, text);
    if (!bytes.failed)
        (void)ls_frame_send(&p->link, type, bytes.p, bytes.len);
    ls_str_release(&bytes);
}

/* --- joining, the coordinator's part ---------------------------------------------------------- */

void ls_rendezvous_refuse(ls_rendezvous *r, peer *p, const char *why)
{
    ls_rendezvous_send_text(p, REFUSED, why);
    ls_gate_refuse(r->gate, &p->from, why);
    ls_rendezvous_drop(p);
    p->phase = WAITED;
}

static int joined_ranks(const ls_rendezvous *r)
{
    int n = r->args.ranks;

    for (int i = 0; i < r->n_peers; i++)
        n += r->peers[i].phase == JOINED ? r->peers[i].ranks : 0;
    return n;
}

/* What is wrong with a newcomer; false: nothing. */
static bool is_wrong(const ls_rendezvous *r, const peer *p, const char *version, const char *job,
                     uint64_t generation, char *why, size_t cap)
{
    const char *ours = r->args.job ? r->args.job : "";

    if (strcmp(version, r->version) != 0)
        snprintf(why, cap, "it runs lineshaft %s, the first node runs %s", version, r->version);
    else if (strcmp(job, ours) != 0)
        snprintf(why, cap, "it is of the job \"%s\", this one is \"%s\"", job, ours);
    else if (generation != 0 && generation != r->args.generation)
        snprintf(why, cap, "it asks for generation %llu, this is %llu",
                 (unsigned long long)generation, (unsigned long long)r->args.generation);
    else if (p->ranks < 1 || p->ranks > LS_MEMBERS_RANKS - joined_ranks(r))
        snprintf(why, cap, "its %d ranks do not fit: a job has at most %d", p->ranks,
                 LS_MEMBERS_RANKS);
    else
        return false;
    return true;
}

/* What there is to do, for an agent that came without ranks; its JOIN follows. */
static void send_work(ls_rendezvous *r, peer *p)
{
    const ls_str *work = r->args.work;

    if (work)
        (void)ls_frame_send(&p->link, WORK, work->p, work->len); /* LOST is seen */
    else
        ls_rendezvous_refuse(r, p, "the command of this job is too long for agents");
}

static ls_status take_join(ls_rendezvous *r, peer *p, const ls_frame *frame)
{
    ls_parcel in = {.at = frame->payload, .left = frame->bytes};
    char version[VERSION], job[JOB], why[256];
    int protocol = (int)ls_parcel_get(&in, 2);

    if (frame->type != JOIN || in.bad || protocol != PROTOCOL) {
        ls_rendezvous_refuse(r, p, "it speaks another protocol");
        return LS_OK;
    }
    ls_parcel_get_text(&in, version, sizeof version);
    ls_parcel_get_text(&in, job, sizeof job);
    uint64_t generation = ls_parcel_get(&in, 8);
    p->ranks = (int)ls_parcel_get(&in, 2);
    ls_parcel_get_text(&in, p->host, sizeof p->host);
    ls_parcel_get_text(&in, p->ip, sizeof p->ip);
    if (in.bad || in.left != 2 * (size_t)p->ranks || !*p->ip) {
        ls_rendezvous_refuse(r, p, "its message is damaged");
        return LS_OK;
    }
    if (is_wrong(r, p, version, job, generation, why, sizeof why)) {
        ls_rendezvous_refuse(r, p, why);
        return LS_OK;
    }
    p->ports = ls_mem_array((size_t)p->ranks, sizeof *p->ports);
    if (!p->ports)
        return LS_ENOMEM;
    for (int i = 0; i < p->ranks; i++)
        p->ports[i] = (uint16_t)ls_parcel_get(&in, 2);
    p->phase = JOINED;
    ls_log(LS_LOG_INFO, "%s (%s) joins with %d ranks", p->host, p->from.text, p->ranks);
    if (r->met)
        ls_rendezvous_admit(r, p);
    return LS_OK;
}

static peer *free_peer(ls_rendezvous *r)
{
    for (int i = 0; i < r->n_peers; i++)
        if (!r->peers[i].linked && r->peers[i].phase == WAITED)
            return &r->peers[i];
    return NULL;
}

/* Callers that proved the secret. */
static ls_status take_callers(ls_rendezvous *r)
{
    ls_status st = LS_OK;
    const ls_sock_options options = {.user_timeout_ns = ALIVE_S * LS_NS_PER_S,
                                     .keepalive_ns = LS_NS_PER_S};

    for (;;) {
        ls_hello hello;
        ls_sock_address from;
        int fd;
        LS_TRY(st, ls_gate_next(r->gate, &fd, &hello, &from), out);
        if (fd < 0)
            break;
        peer *p = !r->met ? free_peer(r) : r->door ? ls_rendezvous_new_peer(r) : NULL;
        if (!p) {
            p = &r->late[r->next_late++ % LATE];
            ls_rendezvous_drop(p);
        }
        *p = (peer){.from = from, .linked = true};
        ls_frame_init(&p->link, fd, &hello, LIMIT);
        ls_hello_release(&hello);
        if (ls_sock_tune(fd, &options) != LS_OK || ls_rendezvous_watch(r, fd) != LS_OK)
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
    ls_parcel in = {.at = frame->payload, .left = frame->bytes};
    int code = (int)ls_parcel_get(&in, 2);

    p->phase = GONE_WELL;
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
    ls_parcel in = {.at = frame->payload, .left = frame->bytes};
    char why[640];

    ls_parcel_get_text(&in, why, sizeof why);
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
        ls_parcel in = {.at = frame->payload, .left = frame->bytes};
        r->code = (int)ls_parcel_get(&in, 2);
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
        ls_frame_flush(&p->link);
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
            p->phase = p->phase == GONE_WELL ? GONE_WELL : WAITED;
            return LS_OK;
        }
        if (!got)
            break;
        if (r->door && p->phase == JOINED)
            ls_pulse_heard(&p->pulse, r->door->pulse_ns, ls_time_now_ns());
        if (frame.type == PULSE)
            continue;
        if (frame.type == WORD && r->door && p->phase == JOINED)
            r->door->heard(r->door->context, p->node, frame.payload, frame.bytes);
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

static ls_status take_all(ls_rendezvous *r)
{
    ls_status st = LS_OK;

    if (r->gate)
        LS_TRY(st, take_callers(r), out);
    for (int i = 0; i < r->n_peers; i++)
        LS_TRY(st, take_frames(r, &r->peers[i]), out);
    for (int i = 0; i < LATE; i++)
        LS_TRY(st, take_frames(r, &r->late[i]), out);
    ls_rendezvous_beat(r);
    if (r->door && r->met)
        r->door->looks(r->door->context);
    settle_suspicion(r, false);
out:
    return st;
}

/* --- opening ---------------------------------------------------------------------------------- */

ls_status ls_rendezvous_open_gate(ls_rendezvous *r)
{
    ls_status st = ls_gate_open(&r->gate, &(ls_gate_args){.listen_fd = r->listen_fd,
                                                          .secret = r->args.secret,
                                                          .self = {.purpose = LS_HELLO_CONTROL}});

    return st == LS_OK ? ls_rendezvous_watch(r, ls_gate_fd(r->gate)) : st;
}

static ls_status open_host(ls_rendezvous *r)
{
    ls_status st = LS_OK;
    const ls_sock_address at = r->address;

    LS_TRY(st, ls_sock_listen(&at, &r->listen_fd), out);
    LS_TRY(st, ls_sock_local(r->listen_fd, &r->address), out);
    ls_rendezvous_ip(&r->address, r->ip, sizeof r->ip);
    st = ls_rendezvous_open_gate(r);
out:
    return st;
}

static ls_status send_join(ls_rendezvous *r)
{
    const ls_rendezvous_args *a = &r->args;
    char host[LS_MEMBERS_TEXT];
    ls_str bytes;

    ls_str_init(&bytes);
    ls_parcel_put(&bytes, PROTOCOL, 2);
    ls_parcel_put_text(&bytes, r->version);
    ls_parcel_put_text(&bytes, a->job ? a->job : "");
    ls_parcel_put(&bytes, a->generation, 8);
    ls_parcel_put(&bytes, (uint64_t)a->ranks, 2);
    ls_parcel_put_text(&bytes, host_name(host, sizeof host));
    ls_parcel_put_text(&bytes, r->ip);
    for (int i = 0; i < a->ranks; i++)
        ls_parcel_put(&bytes, a->ports ? a->ports[i] : 0, 2);
    ls_status st = ls_str_status(&bytes);
    if (st == LS_OK)
        st = ls_frame_send(&r->peers[0].link, JOIN, bytes.p, bytes.len);
    ls_str_release(&bytes);
    return st;
}

ls_status ls_rendezvous_connect(ls_rendezvous *r, int64_t deadline_ns)
{
    ls_status st = LS_OK;
    peer *p = &r->peers[0];
    const ls_sock_options options = {.user_timeout_ns = ALIVE_S * LS_NS_PER_S,
                                     .keepalive_ns = LS_NS_PER_S};
    ls_sock_address local;
    ls_hello hello = {.state = 0};
    int fd = -1;

    LS_TRY(st, ls_sock_connect(&r->address, deadline_ns, &fd), out);
    LS_TRY(st, ls_sock_local(fd, &local), out);
    ls_rendezvous_ip(&local, r->ip, sizeof r->ip);
    LS_TRY(st, ls_sock_tune(fd, &options), out);
    LS_TRY(st,
           ls_hello_begin(&hello, &(ls_hello_args){.secret = r->args.secret,
                                                   .connects = true,
                                                   .self = {.purpose = LS_HELLO_CONTROL},
                                                   .deadline_ns = deadline_ns}),
           out);
    LS_TRY(st, ls_hello_run(&hello, fd), out);
    ls_frame_init(&p->link, fd, &hello, LIMIT);
    fd = -1;
    p->linked = true;
    p->phase = JOINED;
    st = ls_rendezvous_watch(r, p->link.fd);
out:
    ls_hello_release(&hello);
    ls_sock_close(&fd);
    return st;
}

static ls_status open_join(ls_rendezvous *r, int64_t deadline_ns)
{
    ls_status st = ls_rendezvous_connect(r, deadline_ns);

    if (st != LS_OK)
        return st;
    return r->args.ranks > 0 ? send_join(r) : ls_frame_send(&r->peers[0].link, ASK, "", 0);
}

static ls_status check_ranks(int ranks)
{
    return ranks >= 1 && ranks <= LS_MEMBERS_RANKS
               ? LS_OK
               : ls_fail(LS_EUSAGE, "a job has 1 to %d ranks, not %d", LS_MEMBERS_RANKS, ranks);
}

ls_status ls_rendezvous_open(ls_rendezvous **rendezvous_out, const ls_rendezvous_args *args,
                             int64_t deadline_ns)
{
    ls_status st = LS_OK;

    if (args->hosts && (args->nodes < 1 || args->nodes > LS_MEMBERS_NODES))
        return ls_fail(LS_EUSAGE, "a job has 1 to %d nodes, not %d", LS_MEMBERS_NODES, args->nodes);
    if (args->hosts || args->ranks != 0)
        st = check_ranks(args->ranks);
    if (st != LS_OK)
        return st;
    ls_rendezvous *r = ls_mem_alloc(sizeof *r);
    if (!r)
        return LS_ENOMEM;
    r->args = *args;
    r->listen_fd = r->pulse_fd = -1;
    r->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    ls_members_init(&r->members);
    ls_str_init(&r->work);
    set_version(r->version);
    ls_err_clear();
    r->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (r->epoll_fd < 0 || r->timer_fd < 0) {
        st = ls_fail_sys(LS_EIO, "cannot watch control connections");
        goto out;
    }
    LS_TRY(st, ls_rendezvous_watch(r, r->timer_fd), out);
    r->n_peers = args->hosts ? args->nodes - 1 : 1;
    r->peers = ls_mem_array((size_t)r->n_peers, sizeof *r->peers);
    LS_TRY(st, r->peers ? LS_OK : LS_ENOMEM, out);
    LS_TRY(st, ls_sock_resolve(args->address, deadline_ns, &r->address), out);
    LS_TRY(st, args->hosts ? open_host(r) : open_join(r, deadline_ns), out);
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
    ls_gate_close(r->gate);
    ls_sock_close(&r->listen_fd);
    ls_sock_close(&r->timer_fd);
    ls_sock_close(&r->pulse_fd);
    ls_sock_close(&r->epoll_fd);
    ls_members_release(&r->members);
    ls_str_release(&r->work);
    ls_mem_free(r->peers);
    ls_mem_free(r);
}

const char *ls_rendezvous_address(const ls_rendezvous *r)
{
    return r->address.text;
}

/* --- meeting ---------------------------------------------------------------------------------- */

static int count_joined(const ls_rendezvous *r)
{
    int n = 0;

    for (int i = 0; i < r->n_peers; i++)
        n += r->peers[i].phase == JOINED;
    return n;
}

/* A port that is free on this address now, for programs that need one. */
static int free_port(const ls_rendezvous *r)
{
    char text[LS_MEMBERS_TEXT + 8];
    ls_sock_address at, got;
    int fd = -1, port = 0;

    if (strchr(r->ip, ':'))
        snprintf(text, sizeof text, "[%s]:0", r->ip);
    else
        snprintf(text, sizeof text, "%s:0", r->ip);
    if (ls_sock_resolve(text, ls_time_now_ns() + LS_NS_PER_S, &at) == LS_OK &&
        ls_sock_listen(&at, &fd) == LS_OK && ls_sock_local(fd, &got) == LS_OK)
        port = (int)strtol(strrchr(got.text, ':') + 1, NULL, 10);
    ls_sock_close(&fd);
    return port;
}

static ls_status send_view(ls_rendezvous *r)
{
    ls_status st = LS_OK;
    char host[LS_MEMBERS_TEXT];
    ls_str bytes;

    ls_str_init(&bytes);
    r->members.generation = r->args.generation;
    r->members.master_port = free_port(r);
    LS_TRY(st,
           ls_members_add(&r->members, host_name(host, sizeof host), r->ip, r->args.ranks,
                          r->args.ports),
           out);
    for (int i = 0; i < r->n_peers; i++) {
        peer *p = &r->peers[i];
        p->node = i + 1;
        LS_TRY(st, ls_members_add(&r->members, p->host, p->ip, p->ranks, p->ports), out);
    }
    for (int i = 0; i < r->n_peers; i++) {
        ls_str_clear(&bytes);
        ls_parcel_put(&bytes, (uint64_t)r->peers[i].node, 2);
        ls_members_encode(&r->members, &bytes);
        LS_TRY(st, ls_str_status(&bytes), out);
        /* One that is gone by now is noticed by the next attend. */
        (void)ls_frame_send(&r->peers[i].link, VIEW, bytes.p, bytes.len);
        if (r->door)
            ls_pulse_heard(&r->peers[i].pulse, r->door->pulse_ns, ls_time_now_ns());
    }
    r->met = true;
out:
    ls_str_release(&bytes);
    return st;
}

static ls_status meet_late(const ls_rendezvous *r)
{
    ls_str names;

    ls_str_init(&names);
    for (int i = 0; i < r->n_peers; i++)
        if (r->peers[i].phase == JOINED)
            ls_str_printf(&names, ", %s", r->peers[i].host);
    ls_fail(LS_EDEADLINE, "%d of %d nodes did not join at %s in time; here: this one%s",
            r->n_peers - count_joined(r), r->args.nodes, r->address.text, names.p);
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
        if (count_joined(r) == r->n_peers)
            break;
        if (ls_time_now_ns() >= deadline_ns)
            return meet_late(r);
        wait_for_news(r, deadline_ns);
    }
    st = send_view(r);
out:
    return st;
}

static ls_status take_view(ls_rendezvous *r, const ls_frame *frame)
{
    ls_parcel in = {.at = frame->payload, .left = frame->bytes};

    r->node = (int)ls_parcel_get(&in, 2);
    ls_status st = in.bad ? ls_fail(LS_EDATA, "a list of members is damaged")
                          : ls_members_decode(&r->members, in.at, in.left);
    if (st == LS_OK &&
        (r->node >= r->members.nodes || r->members.node[r->node].ranks != r->args.ranks))
        st =
            ls_fail(LS_EDATA, "the list of members of %s does not hold this node", r->address.text);
    r->met = st == LS_OK;
    return st;
}

static ls_status take_refusal(const ls_rendezvous *r, const ls_frame *frame)
{
    ls_parcel in = {.at = frame->payload, .left = frame->bytes};
    char why[256];

    ls_parcel_get_text(&in, why, sizeof why);
    ls_fail(LS_EUSAGE, "%s refuses this node: %s", r->address.text, why);
    ls_err_hint("All nodes of a job need the same lineshaft and the same job.");
    return LS_EUSAGE;
}

/* The coordinator's next word to who joins, which is of this type or a refusal. */
static ls_status hear(ls_rendezvous *r, uint16_t type, ls_frame *frame_out, int64_t deadline_ns)
{
    ls_status st = LS_OK;
    bool got = false;

    while (!got) {
        st = ls_frame_receive(&r->peers[0].link, frame_out, &got);
        if (st == LS_EIO) {
            r->dropped = deadline_ns == LS_NO_DEADLINE; /* a spare may look for it elsewhere */
            st = ls_fail(LS_EPEER, "the first node (%s) went away before all nodes had joined",
                         r->address.text);
        }
        ls_rendezvous_beat(r);
        if (got && frame_out->type == HOLD) {
            ls_log(LS_LOG_INFO, "%s has taken this node, and will call it", r->address.text);
            deadline_ns = LS_NO_DEADLINE;
        }
        bool word = got && frame_out->type == WORD && r->door;
        if (word)
            r->door->heard(r->door->context, 0, frame_out->payload, frame_out->bytes);
        got = got && frame_out->type != HOLD && frame_out->type != PULSE && !word;
        if (st != LS_OK || got)
            break;
        if (ls_time_now_ns() >= deadline_ns)
            return ls_fail(LS_EDEADLINE, "the other nodes did not join at %s in time",
                           r->address.text);
        wait_for_news(r, deadline_ns);
    }
    if (st == LS_OK && frame_out->type == REFUSED)
        return take_refusal(r, frame_out);
    if (st == LS_OK && (frame_out->type == STOP || frame_out->type == END)) {
        r->ended = frame_out->type == END && frame_out->bytes > 0 && frame_out->payload[0] == 0;
        return ls_fail(LS_EPEER, "the job at %s ended before it needed this node", r->address.text);
    }
    if (st == LS_OK && frame_out->type != type)
        return ls_fail(LS_EDATA, "%s sent something else than the %s", r->address.text,
                       type == WORK ? "command to run" : "list of members");
    return st;
}

static ls_status meet_join(ls_rendezvous *r, int64_t deadline_ns)
{
    ls_frame frame;
    ls_status st = hear(r, VIEW, &frame, deadline_ns);

    return st == LS_OK ? take_view(r, &frame) : st;
}

ls_status ls_rendezvous_ask(ls_rendezvous *r, ls_work *work, int64_t deadline_ns)
{
    ls_frame frame;
    ls_status st = hear(r, WORK, &frame, deadline_ns);

    if (st != LS_OK)
        return st;
    ls_str_append_bytes(&r->work, frame.payload, frame.bytes); /* for who may ask it one day */
    st = ls_str_status(&r->work);
    r->args.work = &r->work;
    return st == LS_OK ? ls_work_decode(work, frame.payload, frame.bytes) : st;
}

ls_status ls_rendezvous_bring(ls_rendezvous *r, int ranks, const uint16_t *ports)
{
    ls_status st = check_ranks(ranks);

    r->args.ranks = ranks;
    r->args.ports = ports;
    return st == LS_OK ? send_join(r) : st;
}

ls_status ls_rendezvous_meet(ls_rendezvous *r, int64_t deadline_ns)
{
    return r->args.hosts ? meet_host(r, deadline_ns) : meet_join(r, deadline_ns);
}

const ls_members *ls_rendezvous_members(const ls_rendezvous *r)
{
    return &r->members;
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

    if (st == LS_OK && r->door && r->ended && r->code == 0 && !r->failed && !r->told) {
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
        if (count_joined(r) == 0)
            break;
        if (r->failed && *stop_ns == LS_NO_DEADLINE)
            *stop_ns = ls_time_now_ns() + r->args.grace_ns + BYE_S * LS_NS_PER_S;
        if (ls_time_now_ns() >= *stop_ns) {
            ls_log(LS_LOG_WARN, "%d nodes did not say that they have ended", count_joined(r));
            break;
        }
        wait_for_news(r, *stop_ns);
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

    while (st == LS_OK && !r->failed && !r->ended && (!r->args.hosts || count_joined(r) > 0) &&
           ls_time_now_ns() < until_ns) {
        wait_for_news(r, until_ns);
        st = take_all(r);
    }
    return st;
}

ls_status ls_rendezvous_end(ls_rendezvous *r, int code, int *code_out)
{
    ls_status st = LS_OK;
    int64_t stop_ns = LS_NO_DEADLINE; /* as long as the job runs on other nodes */
    uint8_t bytes[2] = {(uint8_t)code, 0};

    if (code == ls_err_exit_code(LS_EPEER))
        LS_TRY(st, await_cause(r), out);
    peer *p = &r->peers[0];
    if (!r->args.hosts && p->linked)
        (void)ls_frame_send(&p->link, DONE, bytes, sizeof bytes);
    while (!r->args.hosts && p->linked && !r->ended) {
        if (r->failed && stop_ns == LS_NO_DEADLINE)
            stop_ns = ls_time_now_ns() + r->args.grace_ns + 3 * BYE_S * LS_NS_PER_S;
        if (ls_time_now_ns() >= stop_ns)
            break;
        wait_for_news(r, stop_ns);
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
