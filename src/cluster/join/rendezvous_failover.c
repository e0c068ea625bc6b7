/* rendezvous_failover.c -- a rendezvous that has lost its host: one of the nodes becomes the host,
 * the others come back to it. Which one that is, is decided elsewhere (election.h).
 *
 *     orphan: no link      take_over() -> host      listens again, has no peers yet
 *                          follow()    -> joined    BACK: I am node 2; the host: hooks->returns()
 *                          give_up()   -> the job ends here
 *
 * The descriptor that the agent watches stays the same. */
#include "cluster/join/rendezvous_impl.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/member/wire_codec.h"

ls_status ls_rendezvous_listen(const ls_rendezvous *r, uint16_t port, int *fd_out)
{
    char text[LS_SOCK_TEXT];
    ls_sock_address at;
    ls_status st;

    ls_members_format(r->ip, port, text, sizeof text);
    LS_TRY(st, ls_sock_resolve(text, ls_time_now_ns() + LS_NS_PER_S, &at), out);
    st = ls_sock_listen(&at, fd_out);
out:
    return st;
}

/* At the same port, so that newcomers find it when they know one of the machines. */
ls_status ls_rendezvous_reserve(ls_rendezvous *r, uint16_t *port_out)
{
    ls_sock_address at = r->address;
    ls_status st = LS_OK;

    if (r->args.hosts) {
        *port_out = ls_sock_port(&at);
        return LS_OK;
    }
    if (r->listen_fd < 0 && ls_rendezvous_listen(r, ls_sock_port(&at), &r->listen_fd) != LS_OK)
        LS_TRY(st, ls_rendezvous_listen(r, 0, &r->listen_fd), out);
    ls_err_clear();
    LS_TRY(st, ls_sock_local(r->listen_fd, &at), out);
    *port_out = ls_sock_port(&at);
out:
    return st;
}

/* The one peer that this node had, its host, is gone; its list of peers begins anew and is filled by
 * those who come BACK. The command and the list of members are what the old host had sent. */
ls_status ls_rendezvous_take_over(ls_rendezvous *r, int nodes, int next_node)
{
    ls_status st;

    LS_BUG_IF(r->args.hosts || r->listen_fd < 0, "a node that cannot take over");
    ls_rendezvous_drop(&r->peers[0]);
    ls_rendezvous_enter(r, &r->peers[0], LOST);
    /* Newcomers get the list that this node had got, with themselves at its end. */
    LS_TRY(st, ls_rendezvous_members(r) ? LS_OK : LS_EDATA, out);
    LS_TRY(st, ls_rendezvous_open_acceptor(r, nodes), out);
    LS_TRY(st, ls_sock_local(r->listen_fd, &r->address), out);
    ls_probe_close(r->probe); /* a host asks others to ask */
    r->probe = NULL;
    r->n_peers = r->free_from = 0;
    r->next_node = next_node;
    r->args.hosts = true;
    r->args.generation = 1;
    ls_rendezvous_pace(r, nodes);
out:
    return st;
}

ls_status ls_rendezvous_follow(ls_rendezvous *r, const char *address, int node, uint64_t id,
                               int64_t deadline_ns)
{
    ls_rendezvous_peer *p = &r->peers[0];
    ls_sock_address to;
    ls_str bytes;
    ls_status st;

    ls_str_init(&bytes);
    ls_rendezvous_drop(p);
    ls_rendezvous_enter(r, p, LOST);
    LS_TRY(st, ls_sock_resolve(address, deadline_ns, &to), out);
    r->address = to;
    LS_TRY(st, ls_rendezvous_connect(r, deadline_ns), out);
    p->link.ahead = true;
    p->heartbeat = (ls_heartbeat){.heard_ns = 0};
    ls_rendezvous_heard(r, p);
    ls_wire_codec_put(&bytes, PROTOCOL, 2);
    ls_wire_codec_put(&bytes, (uint64_t)node, 4);
    ls_wire_codec_put(&bytes, id, 8);
    LS_TRY(st, ls_str_status(&bytes), out);
    ls_rendezvous_send(r, p, BACK, bytes.p, bytes.len);
    ls_rendezvous_say_probe(r);
out:
    if (st != LS_OK) {
        ls_rendezvous_drop(p);
        ls_rendezvous_enter(r, p, LOST);
    }
    ls_str_release(&bytes);
    return st;
}

/* A member says which node it is, and its random number, which a process that was started again does not
 * have: so an agent that lost its ranks cannot come back as if it still had them. */
void ls_rendezvous_take_back(ls_rendezvous *r, ls_rendezvous_peer *p, const ls_frame *frame)
{
    ls_wire_codec in = {.at = frame->payload, .left = frame->bytes};
    ls_members_node about = {.ranks = 0};
    int protocol = (int)ls_wire_codec_get(&in, 2),
        node = (int)(ls_wire_codec_get(&in, 4) & INT32_MAX);
    uint64_t id = ls_wire_codec_get(&in, 8);

    if (!ls_wire_codec_done(&in) || protocol != PROTOCOL || !r->hooks || !r->hooks->returns ||
        !r->hooks->returns(r->hooks->context, node, id, &about) ||
        ls_rendezvous_place(r, p, node) != LS_OK) {
        ls_acceptor_refuse(r->acceptor, &p->from, "it comes back to a job that goes on without it");
        ls_rendezvous_drop(p); /* no answer: it joins as a new node */
        ls_rendezvous_enter(r, p, WAITED);
        return;
    }
    p->ranks = about.ranks;
    memcpy(p->host, about.host, sizeof p->host);
    memcpy(p->ip, about.ip, sizeof p->ip);
    ls_rendezvous_enter(r, p, JOINED);
    ls_rendezvous_heard(r, p);
    r->hooks->returned(r->hooks->context, node);
    if (r->failed) /* it was not there when the others were told */
        ls_rendezvous_send_record(r, STOP, r->code, &r->why);
}

void ls_rendezvous_give_up(ls_rendezvous *r)
{
    if (r->failed)
        return;
    r->dropped = true; /* an agent may join as a newcomer */
    for (int i = 0; i < r->n_peers; i++) {
        ls_rendezvous_drop(&r->peers[i]);
        ls_rendezvous_enter(r, &r->peers[i], LOST);
    }
    r->failed = true;
    r->told = false;
    r->code = ls_err_exit_code(LS_EPEER);
    r->why = *ls_err_last();
}

bool ls_rendezvous_is_linked(const ls_rendezvous *r)
{
    return !r->args.hosts && r->peers[0].linked;
}
