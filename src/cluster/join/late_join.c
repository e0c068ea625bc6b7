/* late_join.c -- the connections of a job that heals: nodes that come later, nodes that go away.
 * heartbeat_watch.c finds the nodes that are silent. The caller's hooks (recover_cluster.h) decide
 * what follows.
 *
 *     a node comes      admit(): HOLD, hooks->joins -> it waits as a spare, or is refused
 *     it is needed      call(): LIST, VIEW          -> it starts its ranks
 *     it is sent away   expel(): LEAVE
 *     it is lost        lose(): on the host hooks->lost; on a node that lost its host hooks->orphaned
 *     the job is over   dismiss(): a node without a part in it need not be waited for */
#include "cluster/join/rendezvous_impl.h"

#include <sys/timerfd.h>
#include "base/log.h"
#include "cluster/member/growing_array.h"

/* A peer went away, or is silent: the thread's last record says why. */
void ls_rendezvous_lose(ls_rendezvous *r, ls_rendezvous_peer *p, int64_t silent_ns)
{
    char why[640];
    int node = p->node;

    if (r->hooks && r->hooks->orphaned && !r->args.hosts && !r->failed && r->met) {
        snprintf(why, sizeof why, "%.600s", ls_err_last()->text);
        ls_rendezvous_drop(p);
        ls_rendezvous_enter(r, p, LOST);
        r->hooks->orphaned(r->hooks->context, why, silent_ns);
        return;
    }
    if (!r->hooks || !r->args.hosts) {
        r->dropped = !r->args.hosts && !r->failed;
        ls_rendezvous_decide_lost(r, p);
        ls_rendezvous_drop(p);
        ls_rendezvous_enter(r, p, LOST);
        return;
    }
    snprintf(why, sizeof why, "node %d (%s) was lost: %.300s", node, p->host, ls_err_last()->text);
    ls_rendezvous_drop(p);
    ls_rendezvous_enter(r, p, LOST);
    r->hooks->lost(r->hooks->context, node, why, silent_ns);
}

ls_status ls_rendezvous_attach(ls_rendezvous *r, const ls_rendezvous_hooks *hooks)
{
    ls_status st = LS_OK;

    r->heartbeat_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (r->heartbeat_fd < 0)
        return ls_fail_sys(LS_EIO, "cannot make a timer for heartbeats");
    LS_TRY(st, ls_rendezvous_watch(r, r->heartbeat_fd, OF_HEARTBEAT), out);
    r->next_node = r->args.nodes;
    r->hooks = hooks; /* the first sign of life is due when the nodes have met */
    if (!r->args.hosts)
        ls_rendezvous_open_probe(r);
out:
    return st;
}

/* A place for a node that comes while the job runs; NULL: there is none. */
ls_rendezvous_peer *ls_rendezvous_new_peer(ls_rendezvous *r)
{
    for (int i = 0; i < r->n_peers; i++)
        if (!r->peers[i].linked && r->peers[i].phase != GONE_WELL)
            return &r->peers[i];
    if (r->n_peers >= LS_MEMBERS_NODES)
        return NULL;
    if (!ls_growing_array_add((void **)&r->peers, r->n_peers, &r->peers_room, sizeof *r->peers))
        return NULL;
    r->peers[r->n_peers] = (ls_rendezvous_peer){.phase = WAITED};
    return &r->peers[r->n_peers++];
}

bool ls_rendezvous_was_dropped(const ls_rendezvous *r)
{
    return r->dropped;
}

bool ls_rendezvous_did_without(const ls_rendezvous *r)
{
    return r->ended && !r->met;
}

void ls_rendezvous_tell(ls_rendezvous *r, int node, const void *bytes, size_t len)
{
    ls_rendezvous_peer *p = ls_rendezvous_find(r, node);

    if (p)
        ls_rendezvous_send(r, p, MESSAGE, bytes, len);
}

void ls_rendezvous_expel(ls_rendezvous *r, int node, const char *why)
{
    ls_rendezvous_peer *p = ls_rendezvous_find(r, node);

    if (!p)
        return;
    ls_log(LS_LOG_WARN, "node %d (%s) is sent away: %s", node, p->host, why);
    ls_rendezvous_send_text(r, p, LEAVE, why);
    ls_rendezvous_drop(p);
    ls_rendezvous_enter(r, p, LOST);
}

/* A newcomer of a job that runs; it is called when it is needed. */
void ls_rendezvous_admit(ls_rendezvous *r, ls_rendezvous_peer *p)
{
    ls_members_node about = {.ranks = p->ranks};
    char why[256];

    memcpy(about.host, p->host, sizeof about.host);
    memcpy(about.ip, p->ip, sizeof about.ip);
    if (ls_rendezvous_place(r, p, r->next_node) != LS_OK) {
        ls_rendezvous_refuse(r, p, "there is no memory for it");
        return;
    }
    r->next_node++;
    ls_rendezvous_heard(r, p);
    ls_rendezvous_send(r, p, HOLD, "", 0);
    if (!r->hooks->joins(r->hooks->context, p->node, &about, why, sizeof why))
        ls_rendezvous_refuse(r, p, why);
}

/* Its place in the list is for numbers and variables of its ranks; a view has a list of its own. */
void ls_rendezvous_call(ls_rendezvous *r, int node)
{
    ls_rendezvous_peer *p = ls_rendezvous_find(r, node);

    if (!p)
        return;
    if (ls_members_add(&r->members, p->host, p->ip, p->ranks, p->ports) != LS_OK) {
        ls_rendezvous_send_text(r, p, LEAVE, "the job has had too many ranks");
        ls_rendezvous_lose(r, p, 0);
    } else if (ls_rendezvous_send_list(r, p, r->members.nodes - 1) != LS_OK) {
        ls_rendezvous_lose(r, p, 0);
    }
}

/* Nodes that have no part in the job need not be waited for when it is over. */
void ls_rendezvous_dismiss(ls_rendezvous *r)
{
    for (int i = 0; i < r->n_peers && r->hooks; i++)
        if (r->peers[i].phase == JOINED && r->hooks->idle(r->hooks->context, r->peers[i].node))
            ls_rendezvous_enter(r, &r->peers[i], GONE_WELL);
}
