/* election.c -- the rules of quorum.h over sockets. A connection to another node goes through
 *
 *   CALLS  -> GREETS    advance(): connected
 *   GREETS -> OPEN      advance(): the handshake has passed; the message that waited is sent
 *   OPEN                from the start when the other node called (take_callers())
 *
 * and is dropped when anything fails: what it should have carried is repeated over the next one.
 * Two nodes may call each other at the same time; then there are two connections, and either
 * serves. */
#include "cluster/elect/election.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/member/wire_codec.h"
#include "cluster/elect/state_file.h"
#include "cluster/elect/vote_store.h"
#include "net/frame.h"
#include "net/acceptor.h"
#include "net/sock.h"

enum {
    OVER = -1,
    MESSAGE = 1,
    LIMIT = 64 << 10,
    LINKS = 4 * LS_QUORUM_NODES,
    CALL_S = 2,
    ALIVE_S = 4
};

typedef enum link_state { CALLS, GREETS, OPEN } link_state;

typedef struct node_link {
    link_state state;
    uint64_t id; /* of the node at its other end; 0: it has said nothing yet */
    int fd;      /* until it is open; then the frames have it */
    ls_handshake handshake;
    ls_frame_link frames;
    int64_t until_ns; /* a call that takes longer is given up */
    ls_str waits;     /* the newest message, to be sent when it is open */
} node_link;

struct ls_election {
    ls_election_args args;
    ls_quorum *quorum;               /* owned */
    ls_vote_store *vote_store;       /* owned */
    ls_state_file file;              /* of the vote store */
    ls_election_endpoint *endpoints; /* owned */
    int n_endpoints;
    int listen_fd, epoll_fd, timer_fd;
    uint16_t port;
    ls_acceptor *acceptor; /* owned */
    node_link **links;     /* owned */
    int n_links;
    ls_str bytes;
    ls_quorum_view heard; /* of the message that is being read */
};

/* --- endpoints -------------------------------------------------------------------------------- */

const ls_election_endpoint *ls_election_find(const ls_election *election, uint64_t id)
{
    for (int i = 0; i < election->n_endpoints && id != 0; i++)
        if (election->endpoints[i].id == id)
            return &election->endpoints[i];
    return NULL;
}

const ls_election_endpoint *ls_election_endpoints(const ls_election *election, int *n_out)
{
    *n_out = election->n_endpoints;
    return election->endpoints;
}

ls_status ls_election_learn(ls_election *election, const ls_election_endpoint *endpoints, int n)
{
    ls_election_endpoint *copy = ls_mem_array((size_t)n, sizeof *copy);

    if (!copy)
        return LS_ENOMEM;
    memcpy(copy, endpoints, (size_t)n * sizeof *copy);
    ls_mem_free(election->endpoints);
    election->endpoints = copy;
    election->n_endpoints = n;
    return LS_OK;
}

#define NUMBER(member, bytes) LS_WIRE_NUMBER(ls_election_endpoint, member, bytes)
static const ls_wire_field endpoint_fields[] = {NUMBER(id, 8),
                                                NUMBER(node, 4),
                                                NUMBER(workers, 2),
                                                NUMBER(port, 2),
                                                NUMBER(join_port, 2),
                                                LS_WIRE_TEXT(ls_election_endpoint, host),
                                                LS_WIRE_TEXT(ls_election_endpoint, ip)};

void ls_election_encode(const ls_election_endpoint *endpoints, int n, ls_str *out)
{
    ls_wire_codec_put(out, (uint64_t)n, 2);
    for (int i = 0; i < n; i++)
        ls_wire_codec_put_fields(out, &endpoints[i], endpoint_fields, LS_COUNT(endpoint_fields));
}

ls_status ls_election_decode(const void *bytes, size_t len, ls_election_endpoint **endpoints_out,
                             int *n_out)
{
    ls_wire_codec in = {.at = bytes, .left = len};
    size_t n = (size_t)ls_wire_codec_get(&in, 2);
    ls_election_endpoint *endpoints = NULL;

    in.bad |= n < 1 || n > LS_QUORUM_NODES;
    if (!in.bad) {
        endpoints = ls_mem_array(n, sizeof *endpoints);
        if (!endpoints)
            return LS_ENOMEM;
    }
    for (size_t i = 0; i < n && !in.bad; i++) {
        ls_wire_codec_get_fields(&in, &endpoints[i], endpoint_fields, LS_COUNT(endpoint_fields));
        in.bad |= endpoints[i].node < 0;
    }
    if (!ls_wire_codec_done(&in)) {
        ls_mem_free(endpoints);
        return ls_fail(LS_EDATA, "a list of endpoints is damaged");
    }
    *endpoints_out = endpoints;
    *n_out = (int)n;
    return LS_OK;
}

/* --- connections ------------------------------------------------------------------------------ */

/* link: NULL: none that is served by its events. */
static ls_status watch(const ls_election *s, int fd, uint32_t events, node_link *link)
{
    struct epoll_event event = {.events = events, .data.ptr = link};

    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0 &&
        (errno != EEXIST || epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, fd, &event) != 0))
        return ls_fail_sys(LS_EIO, "cannot watch the connections of successors");
    return LS_OK;
}

static void free_link(node_link *l)
{
    if (!l)
        return;
    if (l->state == OPEN)
        ls_frame_release(&l->frames);
    else
        ls_sock_close(&l->fd);
    ls_handshake_release(&l->handshake);
    ls_str_release(&l->waits);
    ls_mem_free(l);
}

static void drop_link(ls_election *s, node_link *l)
{
    int i = 0;

    while (s->links[i] != l)
        i++;
    s->links[i] = s->links[--s->n_links];
    /* A process that is just being started may have a copy, with which closing ends no watching. */
    int fd = l->state == OPEN ? l->frames.fd : l->fd;
    if (fd >= 0)
        epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    free_link(l);
}

static node_link *add_link(ls_election *s)
{
    node_link *l = s->n_links < LINKS ? ls_mem_alloc(sizeof *l) : NULL;
    node_link **links =
        l ? ls_mem_resize(s->links, (size_t)(s->n_links + 1) * sizeof *links) : NULL;

    if (!links) {
        ls_mem_free(l);
        return NULL;
    }
    l->fd = -1;
    ls_str_init(&l->waits);
    s->links = links;
    s->links[s->n_links++] = l;
    return l;
}

/* The socket passed the handshake. */
static ls_status open_link(ls_election *s, node_link *l, int fd, const ls_handshake *handshake)
{
    const ls_sock_options options = {.user_timeout_ns = ALIVE_S * LS_NS_PER_S,
                                     .keepalive_ns = LS_NS_PER_S};
    ls_status st = ls_sock_tune(fd, &options);

    ls_frame_init(&l->frames, fd, handshake, LIMIT);
    l->fd = -1;
    l->state = OPEN;
    if (st == LS_OK)
        st = watch(s, fd, EPOLLIN, l);
    if (st == LS_OK && l->waits.len > 0 &&
        ls_frame_send(&l->frames, MESSAGE, l->waits.p, l->waits.len) != LS_OK)
        st = LS_EIO;
    ls_str_clear(&l->waits);
    return st;
}

static ls_status call(ls_election *s, node_link *l, const ls_election_endpoint *endpoint,
                      int64_t now_ns)
{
    char text[LS_SOCK_TEXT];
    ls_sock_address to;
    ls_status st;

    ls_members_format(endpoint->ip, endpoint->port, text, sizeof text);
    l->id = endpoint->id;
    l->until_ns = now_ns + CALL_S * LS_NS_PER_S;
    LS_TRY(st, ls_sock_resolve(text, l->until_ns, &to), out); /* numbers: at once */
    LS_TRY(st, ls_sock_connect_begin(&to, &l->fd), out);
    st = watch(s, l->fd, EPOLLOUT, l);
out:
    return st;
}

/* As far as it goes now. */
static ls_status advance(ls_election *s, node_link *l)
{
    ls_status st = LS_OK;
    bool done = false;

    if (l->state == CALLS) {
        int error = ls_sock_connect_result(l->fd);
        if (error == EINPROGRESS)
            return LS_OK;
        if (error != 0)
            return LS_EIO;
        LS_TRY(st,
               ls_handshake_begin(&l->handshake,
                                  &(ls_handshake_args){.secret = s->args.secret,
                                                       .connects = true,
                                                       .self = {.purpose = LS_HANDSHAKE_CONTROL},
                                                       .deadline_ns = l->until_ns}),
               out);
        l->state = GREETS;
    }
    LS_TRY(st, ls_handshake_step(&l->handshake, l->fd, &done), out);
    if (done)
        st = open_link(s, l, l->fd, &l->handshake);
    else
        st = watch(s, l->fd, ls_handshake_events(&l->handshake) == POLLOUT ? EPOLLOUT : EPOLLIN, l);
out:
    return st;
}

static void take_callers(ls_election *s)
{
    for (;;) {
        ls_handshake handshake;
        ls_sock_address from;
        int fd;
        if (ls_acceptor_next(s->acceptor, &fd, &handshake, &from) != LS_OK || fd < 0)
            return;
        node_link *l = add_link(s);
        if (!l)
            ls_sock_close(&fd);
        else if (open_link(s, l, fd, &handshake) != LS_OK)
            drop_link(s, l);
        ls_handshake_release(&handshake);
    }
}

static void hear(ls_election *s, node_link *l, const ls_frame *frame, int64_t now_ns)
{
    ls_quorum_message m;

    if (frame->type != MESSAGE ||
        ls_quorum_decode_message(&m, &s->heard, frame->payload, frame->bytes) != LS_OK) {
        ls_log(LS_LOG_WARN, "a message about the next coordinator is damaged");
        return;
    }
    l->id = m.from;
    ls_quorum_hear(s->quorum, &m, now_ns);
}

/* What one connection has brought. False: it is over. Hearing may add further connections. */
static bool serve(ls_election *s, node_link *l, int64_t now_ns)
{
    bool got = true;

    if (l->state != OPEN && advance(s, l) != LS_OK)
        return false;
    while (l->state == OPEN && got) {
        ls_frame frame;
        if (ls_frame_flush(&l->frames) != LS_OK ||
            ls_frame_receive(&l->frames, &frame, &got) != LS_OK)
            return false;
        if (got)
            hear(s, l, &frame, now_ns);
    }
    return true;
}

/* Calls that took too long, connections that failed, and what could not be sent at once. */
static void sweep(ls_election *s, int64_t now_ns)
{
    for (int i = s->n_links - 1; i >= 0; i--) {
        node_link *l = s->links[i];
        bool over = l->state == OPEN ? l->until_ns == OVER || ls_frame_flush(&l->frames) != LS_OK
                                     : now_ns > l->until_ns;
        if (over)
            drop_link(s, l);
    }
}

/* --- hooks of the quorum ---------------------------------------------------------------------- */

static bool keep(void *context, const ls_quorum_promise *promise)
{
    return ls_vote_store_keep(((ls_election *)context)->vote_store, promise);
}

/* An open connection if there is one, whichever node has opened it. */
static node_link *link_to(const ls_election *s, uint64_t id)
{
    node_link *best = NULL;

    for (int i = 0; i < s->n_links; i++)
        if (s->links[i]->id == id && (!best || s->links[i]->state == OPEN))
            best = s->links[i];
    return best;
}

/* Only the newest message waits for a connection: each repeats all that an older one would have said. */
static void deliver(void *context, const ls_quorum_message *message)
{
    ls_election *s = context;
    const ls_election_endpoint *endpoint = ls_election_find(s, message->to);
    node_link *l = link_to(s, message->to);

    ls_str_clear(&s->bytes);
    ls_quorum_encode_message(message, &s->bytes);
    if (s->bytes.failed || (!l && !endpoint))
        return;
    if (l && l->state == OPEN) {
        if (ls_frame_send(&l->frames, MESSAGE, s->bytes.p, s->bytes.len) != LS_OK)
            l->until_ns = OVER; /* dropped when the clock is looked at */
        return;
    }
    if (!l) {
        l = add_link(s);
        if (!l)
            return;
        if (call(s, l, endpoint, ls_time_now_ns()) != LS_OK) {
            drop_link(s, l);
            return;
        }
    }
    ls_str_clear(&l->waits);
    ls_str_append_bytes(&l->waits, s->bytes.p, s->bytes.len);
}

/* --- opening ---------------------------------------------------------------------------------- */

static ls_status listen_here(ls_election *s)
{
    char text[LS_SOCK_TEXT];
    ls_sock_address at;
    ls_status st;

    ls_members_format(s->args.ip, 0, text, sizeof text);
    LS_TRY(st, ls_sock_resolve(text, ls_time_now_ns() + LS_NS_PER_S, &at), out);
    LS_TRY(st, ls_sock_listen(&at, &s->listen_fd), out);
    LS_TRY(st, ls_sock_local(s->listen_fd, &at), out);
    s->port = ls_sock_port(&at);
    LS_TRY(st,
           ls_acceptor_open(&s->acceptor,
                            &(ls_acceptor_args){.listen_fd = s->listen_fd,
                                                .secret = s->args.secret,
                                                .self = {.purpose = LS_HANDSHAKE_CONTROL}}),
           out);
    st = watch(s, ls_acceptor_fd(s->acceptor), EPOLLIN, NULL);
out:
    return st;
}

static ls_status open_vote_store(ls_election *s, ls_quorum_promise *promise)
{
    ls_status st = ls_state_file_create(&s->file, ".vote");

    if (st != LS_OK)
        return st;
    st = ls_vote_store_open(&s->vote_store, s->file.path, promise);
    if (st != LS_OK)
        ls_err_hint("Set LINESHAFT_STATE to a folder on a disk of this machine.");
    return st;
}

static ls_status open_clock(ls_election *s)
{
    int64_t every_ns = ls_max_i64(s->args.beat_ns / 5, 10 * LS_NS_PER_MS);
    const struct timespec every = {.tv_sec = every_ns / LS_NS_PER_S,
                                   .tv_nsec = every_ns % LS_NS_PER_S};

    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    s->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (s->epoll_fd < 0 || s->timer_fd < 0 ||
        timerfd_settime(s->timer_fd, 0,
                        &(struct itimerspec){.it_value = every, .it_interval = every}, NULL) != 0)
        return ls_fail_sys(LS_EIO, "cannot watch the connections of successors");
    return watch(s, s->timer_fd, EPOLLIN, NULL);
}

static void begin_quorum(ls_election *s, const ls_quorum_promise *promise, bool leads,
                         int64_t now_ns)
{
    const ls_quorum_hooks hooks = {.keep = keep, .send = deliver, .context = s};
    const ls_quorum_times times = {.beat_ns = s->args.beat_ns,
                                   .suspect_ns = s->args.suspect_ns,
                                   .stop_ns = 2 * s->args.dead_ns};

    ls_quorum_init(s->quorum, promise, leads, &hooks, &times, now_ns);
}

ls_status ls_election_open(ls_election **election_out, const ls_election_args *args)
{
    ls_election *s = ls_mem_alloc(sizeof *s);
    ls_quorum_promise *promise = ls_mem_alloc(sizeof *promise);
    ls_status st = LS_OK;

    if (!s || !promise) {
        ls_mem_free(s);
        ls_mem_free(promise);
        return LS_ENOMEM;
    }
    s->args = *args;
    s->listen_fd = s->epoll_fd = s->timer_fd = -1;
    ls_str_init(&s->bytes);
    s->quorum = ls_mem_alloc(sizeof *s->quorum);
    LS_TRY(st, s->quorum ? LS_OK : LS_ENOMEM, out);
    LS_TRY(st, open_clock(s), out);
    LS_TRY(st, listen_here(s), out);
    LS_TRY(st, open_vote_store(s, promise), out);
    begin_quorum(s, promise, false, ls_time_now_ns());
    *election_out = s;
out:
    ls_mem_free(promise);
    if (st != LS_OK)
        ls_election_close(s);
    return st;
}

void ls_election_close(ls_election *election)
{
    ls_election *s = election;

    if (!s)
        return;
    while (s->n_links > 0)
        drop_link(s, s->links[s->n_links - 1]);
    ls_mem_free(s->links);
    ls_acceptor_close(s->acceptor);
    ls_sock_close(&s->listen_fd);
    ls_sock_close(&s->timer_fd);
    ls_sock_close(&s->epoll_fd);
    ls_state_file_remove(&s->file);
    ls_vote_store_close(s->vote_store);
    ls_mem_free(s->quorum);
    ls_mem_free(s->endpoints);
    ls_str_release(&s->bytes);
    ls_mem_free(s);
}

uint64_t ls_election_id(const ls_election *election)
{
    return election->quorum->promise.self;
}

uint16_t ls_election_port(const ls_election *election)
{
    return election->port;
}

int ls_election_fd(const ls_election *election)
{
    return election->epoll_fd;
}

/* --- views ------------------------------------------------------------------------------------ */

const ls_quorum_view *ls_election_view(const ls_election *election)
{
    return &election->quorum->promise.view;
}

bool ls_election_founded(const ls_election *election)
{
    return election->quorum->promise.view.generation > 0;
}

/* The others are newcomers: they accept what the coordinator of term 1 offers. */
void ls_election_found(ls_election *election, const uint64_t *member, int n, int64_t now_ns)
{
    ls_quorum_promise *p = ls_mem_alloc(sizeof *p);

    if (!p)
        return; /* asked again */
    p->self = ls_election_id(election);
    p->term = 1;
    p->voted = p->self;
    p->view.generation = p->view.made = 1;
    p->view.held = true;
    p->view.n = p->view.n_base = n;
    memcpy(p->view.member, member, (size_t)n * sizeof *member);
    memcpy(p->view.base, member, (size_t)n * sizeof *member);
    begin_quorum(election, p, true, now_ns);
    ls_mem_free(p);
}

static bool holds(const ls_quorum *q, const uint64_t *member, int n, uint64_t above)
{
    const ls_quorum_view *v = &q->promise.view;

    return q->role == LS_QUORUM_LEADS && v->held && v->generation > above && v->n == n &&
           memcmp(v->member, member, (size_t)n * sizeof *member) == 0;
}

uint64_t ls_election_agree(ls_election *election, const uint64_t *member, int n, uint64_t above,
                           int64_t now_ns)
{
    ls_quorum *q = election->quorum;
    const ls_quorum_view *v = &q->promise.view;

    if (q->role != LS_QUORUM_LEADS || !v->held)
        return 0;
    if (!holds(q, member, n, above))
        (void)ls_quorum_offer(q, member, n, now_ns);
    return holds(q, member, n, above) ? v->generation : 0; /* alone it holds at once */
}

void ls_election_attend(ls_election *election, bool lives, int64_t now_ns)
{
    ls_election *s = election;
    struct epoll_event events[64];
    uint64_t times;

    if (lives)
        ls_quorum_assure(s->quorum, now_ns);
    take_callers(s);
    int n = epoll_wait(s->epoll_fd, events, LS_COUNT(events), 0); /* the rest: next time */
    for (int i = 0; i < n; i++) {
        node_link *l = events[i].data.ptr;
        if (l && !serve(s, l, now_ns)) /* nothing else drops one that was there before */
            drop_link(s, l);
    }
    if (read(s->timer_fd, &times, sizeof times) > 0)
        sweep(s, now_ns);
    ls_quorum_look(s->quorum, now_ns);
}

void ls_election_suspect(ls_election *election, int64_t now_ns)
{
    ls_quorum_suspect(election->quorum, now_ns);
}

uint64_t ls_election_leader(const ls_election *election, uint64_t *term_out)
{
    *term_out = election->quorum->promise.term;
    return election->quorum->leader;
}

/* Of two nodes only the first can go on alone (quorum.h): the second need not wait for votes that cannot
 * come. */
bool ls_election_may_elect(const ls_election *election)
{
    const ls_quorum *q = election->quorum;
    const ls_quorum_view *v = &q->promise.view;
    bool in = false;

    for (int i = 0; i < v->n; i++)
        in |= v->member[i] == q->promise.self;
    return in && q->behind == 0 && (v->n > 2 || v->member[0] == q->promise.self);
}
