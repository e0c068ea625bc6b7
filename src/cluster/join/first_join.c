/* first_join.c -- how a node joins, and how all get the list of members.
 *
 * The list goes to every node, so its bytes are made once. They are sent in pieces, the next one
 * when the socket has taken the one before: a queue of whole lists for ten thousand nodes would
 * be a gigabyte here. Example, a list of three pieces and two nodes, of which the second is slow:
 *
 *     node 1   LIST 1, LIST 2, LIST 3, VIEW
 *     node 2   LIST 1, (its socket is full) ........ LIST 2, LIST 3, VIEW
 *
 * The host reads nothing meanwhile; the next attend notices a node that went away. */
#include "cluster/join/rendezvous_impl.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/member/wire_codec.h"
#include "net/handshake.h"
#include "net/secret.h"
#include "net/wire.h"

typedef ls_rendezvous_peer peer;

/* --- a node that joins ------------------------------------------------------------------------ */

static const char *host_name(const ls_rendezvous *r, char *host, size_t cap)
{
    if (r->args.host)
        snprintf(host, cap, "%s", r->args.host);
    else if (gethostname(host, cap - 1) != 0)
        snprintf(host, cap, "?");
    host[cap - 1] = '\0';
    return host;
}

/* "10.0.0.1:40001" without its port. */
void ls_rendezvous_set_ip(ls_rendezvous *r, const ls_sock_address *local)
{
    const char *text = local->text, *colon = strrchr(text, ':');
    int skip = *text == '[', len = (int)(colon - text) - 2 * skip;

    snprintf(r->ip, sizeof r->ip, "%.*s", len, text + skip);
}

ls_status ls_rendezvous_check_ranks(int ranks)
{
    return ranks >= 1 && ranks <= LS_MEMBERS_RANKS
               ? LS_OK
               : ls_fail(LS_EUSAGE, "a job has 1 to %d ranks, not %d", LS_MEMBERS_RANKS, ranks);
}

/* The first message of a node, which the host answers with LIST and VIEW, HOLD or REFUSED:
 *
 *     protocol 2, version, job, generation 8, ranks 4, host, address, a port of 2 for each rank */
static ls_status send_join(ls_rendezvous *r)
{
    const ls_rendezvous_args *a = &r->args;
    char host[LS_MEMBERS_TEXT];
    ls_str bytes;

    ls_str_init(&bytes);
    ls_wire_codec_put(&bytes, PROTOCOL, 2);
    ls_wire_codec_put_text(&bytes, r->version);
    ls_wire_codec_put_text(&bytes, a->job ? a->job : "");
    ls_wire_codec_put(&bytes, a->generation, 8);
    ls_wire_codec_put(&bytes, (uint64_t)a->ranks, 4);
    ls_wire_codec_put_text(&bytes, host_name(r, host, sizeof host));
    ls_wire_codec_put_text(&bytes, r->ip);
    for (int i = 0; i < a->ranks; i++)
        ls_wire_codec_put(&bytes, a->ports ? a->ports[i] : 0, 2);
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
    ls_handshake handshake = {.state = 0};
    int fd = -1;

    LS_TRY(st, ls_sock_connect(&r->address, deadline_ns, &fd), out);
    LS_TRY(st, ls_sock_local(fd, &local), out);
    ls_rendezvous_set_ip(r, &local);
    LS_TRY(st, ls_sock_tune(fd, &options), out);
    LS_TRY(st,
           ls_handshake_begin(&handshake,
                              &(ls_handshake_args){.secret = r->args.secret,
                                                   .connects = true,
                                                   .self = {.purpose = LS_HANDSHAKE_CONTROL},
                                                   .deadline_ns = deadline_ns}),
           out);
    LS_TRY(st, ls_handshake_run(&handshake, fd), out);
    ls_frame_init(&p->link, fd, &handshake, LIMIT);
    fd = -1;
    p->linked = true;
    p->flushes = false;
    ls_rendezvous_enter(r, p, JOINED);
    st = ls_rendezvous_watch(r, p->link.fd, 0);
out:
    ls_handshake_release(&handshake);
    ls_sock_close(&fd);
    return st;
}

ls_status ls_rendezvous_call_in(ls_rendezvous *r, int64_t deadline_ns)
{
    ls_status st = ls_rendezvous_connect(r, deadline_ns);

    if (st != LS_OK)
        return st;
    return r->args.ranks > 0 ? send_join(r) : ls_frame_send(&r->peers[0].link, ASK, "", 0);
}

ls_status ls_rendezvous_bring(ls_rendezvous *r, int ranks, const uint16_t *ports)
{
    ls_status st = ls_rendezvous_check_ranks(ranks);

    r->args.ranks = ranks;
    r->args.ports = ports;
    return st == LS_OK ? send_join(r) : st;
}

/* --- what it hears ---------------------------------------------------------------------------- */

static ls_status take_piece(ls_rendezvous *r, const ls_frame *frame)
{
    if (frame->bytes > LS_MEMBERS_BYTES - r->list.len)
        return ls_fail(LS_EDATA, "%s sent a list of members of more than %d bytes", r->address.text,
                       LS_MEMBERS_BYTES);
    ls_str_append_bytes(&r->list, frame->payload, frame->bytes);
    return ls_str_status(&r->list);
}

/* VIEW comes behind the last piece of LIST, and has this node's number in it. The list is checked, and
 * not made: an agent that needs names only does not pay for 10,000 nodes. */
static ls_status take_view(ls_rendezvous *r, const ls_frame *frame)
{
    ls_wire_codec in = {.at = frame->payload, .left = frame->bytes};
    ls_members_outline outline = {.nodes = 0};

    r->node = (int)ls_wire_codec_get(&in, 4);
    ls_status st = !ls_wire_codec_done(&in)
                       ? ls_fail(LS_EDATA, "a list of members is damaged")
                       : ls_members_check(r->list.p, r->list.len, r->node, &outline);
    if (st == LS_OK && outline.here != r->args.ranks)
        st =
            ls_fail(LS_EDATA, "the list of members of %s does not hold this node", r->address.text);
    r->met = r->peers[0].link.ahead = st == LS_OK; /* from now on all is taken that comes */
    r->names = (ls_wire_codec){.at = outline.names, .left = outline.names_len};
    if (r->met && r->hooks)
        ls_rendezvous_pace(r, outline.nodes);
    return st;
}

static ls_status take_refusal(const ls_rendezvous *r, const ls_frame *frame)
{
    ls_wire_codec in = {.at = frame->payload, .left = frame->bytes};
    char why[256];

    ls_wire_codec_get_text(&in, why, sizeof why);
    ls_fail(LS_EUSAGE, "%s refuses this node: %s", r->address.text, why);
    ls_err_hint("All nodes of a job need the same lineshaft and the same job.");
    return LS_EUSAGE;
}

/* What comes while a node waits for something else. *waits_out: it may take long. */
static ls_status take_aside(ls_rendezvous *r, const ls_frame *frame, bool *got, bool *waits_out)
{
    *got = false;
    switch (frame->type) {
    case HOLD:
        ls_log(LS_LOG_INFO, "%s has taken this node, and will call it", r->address.text);
        *waits_out = true;
        if (r->hooks)
            ls_rendezvous_pace(r, 0); /* the job runs: it is missed when it is silent */
        return LS_OK;
    case LIST:
        return take_piece(r, frame);
    case HEARTBEAT:
        return LS_OK;
    case PROBE:
        ls_rendezvous_take_probe(r, &r->peers[0], frame);
        return LS_OK;
    case MESSAGE: /* a spare hears of the endpoints */
        *got = !r->hooks;
        if (r->hooks)
            r->hooks->heard(r->hooks->context, 0, frame->payload, frame->bytes);
        return LS_OK;
    default:
        *got = true;
        return LS_OK;
    }
}

/* The host's next message to a node that joins: of this type, or a refusal. */
static ls_status hear(ls_rendezvous *r, uint16_t type, ls_frame *frame_out, int64_t deadline_ns)
{
    ls_status st = LS_OK;
    bool got = false, waits = false;

    while (!got) {
        st = ls_frame_receive(&r->peers[0].link, frame_out, &got);
        if (st == LS_EIO) {
            r->dropped = waits; /* a spare may look for it elsewhere */
            st = ls_fail(LS_EPEER, "the first node (%s) went away before all nodes had joined",
                         r->address.text);
        }
        ls_rendezvous_beat(r);
        ls_rendezvous_attend_probe(r);
        bool more = got;
        if (st == LS_OK && got)
            st = take_aside(r, frame_out, &got, &waits);
        deadline_ns = waits ? LS_NO_DEADLINE : deadline_ns;
        if (st != LS_OK || got)
            break;
        if (more)
            continue;
        if (ls_time_now_ns() >= deadline_ns)
            return ls_fail(LS_EDEADLINE, "the other nodes did not join at %s in time",
                           r->address.text);
        ls_rendezvous_flush(r, &r->peers[0]);
        ls_rendezvous_wait(r, deadline_ns);
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

ls_status ls_rendezvous_meet_join(ls_rendezvous *r, int64_t deadline_ns)
{
    ls_frame frame;
    ls_status st = hear(r, VIEW, &frame, deadline_ns);

    return st == LS_OK ? take_view(r, &frame) : st;
}

ls_status ls_rendezvous_ask(ls_rendezvous *r, ls_job_spec *work, int64_t deadline_ns)
{
    ls_frame frame;
    ls_status st = hear(r, WORK, &frame, deadline_ns);

    if (st != LS_OK)
        return st;
    ls_str_append_bytes(&r->work, frame.payload, frame.bytes); /* it may be the host one day */
    st = ls_str_status(&r->work);
    r->args.work = &r->work;
    return st == LS_OK ? ls_job_spec_decode(work, frame.payload, frame.bytes) : st;
}

/* --- the list, at the host -------------------------------------------------------------------- */

/* From a node's number to its peer without a search: numbers of nodes only grow, while places of peers
 * that went away are used again. */
ls_status ls_rendezvous_place(ls_rendezvous *r, peer *p, int node)
{
    if (node >= r->n_places) {
        int n = 2 * node + 8;
        int *places = ls_mem_resize(r->place_of, (size_t)n * sizeof *places);
        if (!places)
            return LS_ENOMEM;
        for (int i = r->n_places; i < n; i++)
            places[i] = -1;
        r->place_of = places;
        r->n_places = n;
    }
    p->node = node;
    r->place_of[node] = (int)(p - r->peers);
    return LS_OK;
}

peer *ls_rendezvous_find(ls_rendezvous *r, int node)
{
    if (!r->args.hosts)
        return r->peers[0].linked ? &r->peers[0] : NULL;
    int place = node >= 0 && node < r->n_places ? r->place_of[node] : -1;
    peer *p = place >= 0 ? &r->peers[place] : NULL;
    return p && p->linked && p->phase == JOINED && p->node == node ? p : NULL;
}

/* A port that is free on this address now, for programs that need one. */
static int free_port(const ls_rendezvous *r)
{
    ls_sock_address got;
    int fd = -1, port = 0;

    if (ls_rendezvous_listen(r, 0, &fd) == LS_OK && ls_sock_local(fd, &got) == LS_OK)
        port = ls_sock_port(&got);
    ls_sock_close(&fd);
    return port;
}

static ls_status encode_list(ls_rendezvous *r)
{
    ls_str_clear(&r->list);
    ls_members_encode(&r->members, &r->list);
    return ls_str_status(&r->list);
}

static ls_status make_list(ls_rendezvous *r)
{
    ls_status st = LS_OK;
    char host[LS_MEMBERS_TEXT];

    r->members.generation = r->args.generation;
    r->members.master_port = free_port(r);
    LS_TRY(st,
           ls_members_add(&r->members, host_name(r, host, sizeof host), r->ip, r->args.ranks,
                          r->args.ports),
           out);
    for (int i = 0; i < r->n_peers; i++) {
        peer *p = &r->peers[i];
        LS_TRY(st, ls_rendezvous_place(r, p, i + 1), out);
        LS_TRY(st, ls_members_add(&r->members, p->host, p->ip, p->ranks, p->ports), out);
    }
    st = encode_list(r);
out:
    return st;
}

static void send_piece(ls_rendezvous *r, peer *p)
{
    size_t left = r->list.len - p->list_at, n = left < PIECE ? left : PIECE;

    ls_rendezvous_send(r, p, LIST, r->list.p + p->list_at, n);
    p->list_at += n;
}

static void send_place(ls_rendezvous *r, peer *p, int node)
{
    uint8_t bytes[4];

    ls_wire_put32(bytes, (uint32_t)node);
    ls_rendezvous_send(r, p, VIEW, bytes, sizeof bytes);
    if (r->hooks)
        ls_rendezvous_heard(r, p);
}

/* What a peer takes now. Whether that was all: it has the list, or cannot get it any more. */
static bool spread_to(ls_rendezvous *r, peer *p)
{
    if (!p->linked)
        return true;
    if (ls_frame_flush(&p->link) != LS_OK)
        return true;
    while (p->list_at < r->list.len && !ls_frame_waiting(&p->link))
        send_piece(r, p);
    if (p->list_at < r->list.len)
        return false;
    send_place(r, p, p->node);
    return true;
}

/* The peers that did not take all of it at once, in an epoll of their own. */
static void spread_slowly(ls_rendezvous *r, int fd, int left)
{
    int64_t until_ns = ls_time_now_ns() + LIST_S * LS_NS_PER_S;
    struct epoll_event events[64];

    while (left > 0 && ls_time_now_ns() < until_ns) {
        int n = epoll_wait(fd, events, (int)LS_COUNT(events), 100);
        for (int i = 0; i < n; i++) {
            peer *p = &r->peers[events[i].data.u32];
            until_ns = ls_time_now_ns() + LIST_S * LS_NS_PER_S;
            if (!spread_to(r, p))
                continue;
            epoll_ctl(fd, EPOLL_CTL_DEL, p->link.fd, NULL);
            left--;
        }
        ls_rendezvous_beat(r); /* peers that have it wait */
    }
}

ls_status ls_rendezvous_spread(ls_rendezvous *r)
{
    ls_status st = LS_OK;
    int left = 0, fd = epoll_create1(EPOLL_CLOEXEC);

    LS_TRY(st, fd < 0 ? ls_fail_sys(LS_EIO, "cannot watch control connections") : LS_OK, out);
    LS_TRY(st, make_list(r), out);
    if (r->hooks)
        ls_rendezvous_pace(r, r->args.nodes);
    for (int i = 0; i < r->n_peers; i++) {
        struct epoll_event event = {.events = EPOLLOUT, .data.u32 = (uint32_t)i};
        bool all = spread_to(r, &r->peers[i]);
        if (!all && epoll_ctl(fd, EPOLL_CTL_ADD, r->peers[i].link.fd, &event) == 0)
            left++;
    }
    spread_slowly(r, fd, left);
    for (int i = 0; i < r->n_peers; i++)
        if (r->peers[i].linked && r->peers[i].list_at < r->list.len) /* it does not read */
            shutdown(r->peers[i].link.fd, SHUT_RDWR);
out:
    ls_sock_close(&fd);
    return st;
}

ls_status ls_rendezvous_send_list(ls_rendezvous *r, peer *p, int node)
{
    ls_status st = encode_list(r);

    p->list_at = 0;
    while (st == LS_OK && p->list_at < r->list.len)
        send_piece(r, p);
    if (st == LS_OK)
        send_place(r, p, node);
    return st;
}
