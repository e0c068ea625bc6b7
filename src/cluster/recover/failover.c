/* failover.c -- a job of several nodes that loses its coordinator.
 *
 * While the coordinator lives, all nodes know each other's endpoints (election.h), and enough of
 * them accept every view before it is announced. When it is lost, a node goes through
 *
 *   joined     on_orphaned()    -> orphaned    its connection ended or is silent; its ranks have
 *                                              lost those of that node, and wait for a view
 *   orphaned   it is elected: take_over()
 *                               -> leads       a coordinator of the last view's nodes, without the
 *                                              lost one; the view is revoked
 *   orphaned   another one is: follow()
 *                               -> joined      as the node it was; it says again what its workers
 *                                              had said
 *   orphaned   check_end()      -> over        too few are left, or the others went on without it
 *   leads      all that came back have reported: the next view
 *   leads      give_up()        -> over        it hears of a later coordinator, or of too few
 *                                              nodes: it sends nothing any more, because its STOP
 *                                              would end workers of a job that goes on */
#include "cluster/recover/recover_cluster_impl.h"

#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/member/growing_array.h"
#include "cluster/join/rendezvous_impl.h"
#include "net/fd_limit.h"

enum { HERE = 64, ENDPOINTS = 65, MEMORY = 66, LEASE = 67 }; /* above the kinds of messages */
enum { FOLLOW_S = 1, GIVE_UP = 4, BACK_S = 5, STUCK_S = 10, ETCD_LEADER_S = 20 };

/* --- the votes of the nodes decide, or etcd --------------------------------------------------- */

static const ls_quorum_view *last_view(const ls_recover_cluster *l)
{
    return l->etcd_leader ? ls_etcd_leader_view(l->etcd_leader) : ls_election_view(l->election);
}

static uint64_t leader_of(const ls_recover_cluster *l, uint64_t *term_out)
{
    return l->etcd_leader ? ls_etcd_leader_leader(l->etcd_leader, term_out)
                          : ls_election_leader(l->election, term_out);
}

static bool may_elect(const ls_recover_cluster *l)
{
    return l->etcd_leader || ls_election_may_elect(l->election);
}

static bool is_founded(const ls_recover_cluster *l)
{
    return l->etcd_leader ? l->founded : ls_election_founded(l->election);
}

static ls_status open_etcd_leader(ls_recover_cluster *l, bool first)
{
    ls_status st;

    l->etcd_args.self = ls_election_id(l->election);
    l->etcd_args.first = first;
    LS_TRY(st, ls_etcd_leader_open(&l->etcd_leader, &l->etcd_args), out);
    if (l->channel)
        ls_worker_channel_set_run_lease(l->channel, l->etcd_args.run_lease);
    st = ls_rendezvous_watch(l->rendezvous, ls_etcd_leader_fd(l->etcd_leader), OF_ELECTION);
out:
    return st;
}

/* node: -1: to all. */
static void tell_lease(ls_recover_cluster *l, int node)
{
    ls_str bytes;

    ls_str_init(&bytes);
    ls_wire_codec_put(&bytes, LEASE, 1);
    ls_wire_codec_put_text(&bytes, l->etcd_args.run_lease);
    ls_wire_codec_put_text(&bytes, l->etcd_args.etcd);
    for (int i = 0; i < l->n_endpoints && l->etcd_leader && !bytes.failed; i++)
        if (l->endpoints[i].node != l->self && (node < 0 || node == l->endpoints[i].node))
            ls_rendezvous_tell(l->rendezvous, l->endpoints[i].node, bytes.p, bytes.len);
    ls_str_release(&bytes);
}

static void hear_lease(ls_recover_cluster *l, ls_wire_codec *in)
{
    ls_etcd_leader_args etcd_args = {.self = 0};

    ls_wire_codec_get_text(in, etcd_args.run_lease, sizeof etcd_args.run_lease);
    ls_wire_codec_get_text(in, etcd_args.etcd, sizeof etcd_args.etcd);
    if (!ls_wire_codec_done(in) || l->etcd_leader || l->coordinator_process)
        return;
    l->etcd_args = etcd_args;
    if (open_etcd_leader(l, false) != LS_OK)
        ls_log(LS_LOG_WARN, "this machine cannot succeed the first one: %s", ls_err_last()->text);
}

/* --- endpoints -------------------------------------------------------------------------------- */

static ls_election_endpoint *endpoint_of(const ls_recover_cluster *l, int node)
{
    for (int i = 0; i < l->n_endpoints; i++)
        if (l->endpoints[i].node == node)
            return &l->endpoints[i];
    return NULL;
}

static ls_status add_endpoint(ls_recover_cluster *l, const ls_election_endpoint *endpoint)
{
    if (l->n_endpoints >= LS_QUORUM_NODES)
        return ls_fail(LS_EUSAGE, "the job has %d nodes; more than %d cannot replace the first one",
                       l->n_endpoints, LS_QUORUM_NODES);
    if (!ls_growing_array_add((void **)&l->endpoints, l->n_endpoints, &l->endpoints_room,
                              sizeof *l->endpoints))
        return LS_ENOMEM;
    l->endpoints[l->n_endpoints++] = *endpoint;
    l->told = false;
    return LS_OK;
}

static ls_status add_node(ls_recover_cluster *l, int node, const ls_members_node *about)
{
    ls_election_endpoint endpoint = {.node = node, .workers = about->ranks};

    memcpy(endpoint.host, about->host, sizeof endpoint.host);
    memcpy(endpoint.ip, about->ip, sizeof endpoint.ip);
    return add_endpoint(l, &endpoint);
}

void ls_failover_lose_node(ls_recover_cluster *l, int node)
{
    ls_election_endpoint *endpoint = l->election ? endpoint_of(l, node) : NULL;

    if (!endpoint)
        return;
    memmove(endpoint, endpoint + 1,
            (size_t)(&l->endpoints[--l->n_endpoints] - endpoint) * sizeof *endpoint);
    l->told = false;
}

/* Those whose number is known. node: -1: to all. */
static void tell_endpoints(ls_recover_cluster *l, int node)
{
    ls_election_endpoint *known = ls_mem_array((size_t)l->n_endpoints, sizeof *known);
    int n = 0;
    ls_str bytes;

    ls_str_init(&bytes);
    for (int i = 0; i < l->n_endpoints && known; i++)
        if (l->endpoints[i].id != 0)
            known[n++] = l->endpoints[i];
    ls_wire_codec_put(&bytes, ENDPOINTS, 1);
    if (known)
        ls_election_encode(known, n, &bytes);
    if (!known || ls_str_status(&bytes) != LS_OK ||
        (node < 0 && ls_election_learn(l->election, known, n)))
        ls_log(LS_LOG_WARN, "cannot send the endpoints of the nodes: %s", ls_err_last()->text);
    else
        for (int i = 0; i < l->n_endpoints; i++)
            if (l->endpoints[i].node != l->self && (node < 0 || node == l->endpoints[i].node))
                ls_rendezvous_tell(l->rendezvous, l->endpoints[i].node, bytes.p, bytes.len);
    ls_str_release(&bytes);
    ls_mem_free(known);
}

ls_status ls_failover_joins(ls_recover_cluster *l, int node, const ls_members_node *about)
{
    ls_status st = l->election ? add_node(l, node, about) : LS_OK;

    if (l->election && st == LS_OK) {
        tell_lease(l, node);
        tell_endpoints(l, node);
    }
    return st;
}

static void hear_endpoint(ls_recover_cluster *l, int node, ls_wire_codec *in)
{
    ls_election_endpoint *endpoint = l->coordinator_process ? endpoint_of(l, node) : NULL;
    uint64_t id = ls_wire_codec_get(in, 8);
    uint16_t port = (uint16_t)ls_wire_codec_get(in, 2),
             join_port = (uint16_t)ls_wire_codec_get(in, 2);

    if (!endpoint || !ls_wire_codec_done(in) || id == 0)
        return;
    endpoint->id = id;
    endpoint->port = port;
    endpoint->join_port = join_port;
    l->told = false;
}

static void hear_endpoints(ls_recover_cluster *l, const ls_wire_codec *in)
{
    ls_election_endpoint *endpoints = NULL;
    int n;

    if (l->coordinator_process)
        return;
    if (ls_election_decode(in->at, in->left, &endpoints, &n) != LS_OK ||
        ls_election_learn(l->election, endpoints, n) != LS_OK)
        ls_log(LS_LOG_WARN, "%s", ls_err_last()->text);
    ls_mem_free(endpoints);
}

bool ls_failover_hears(ls_recover_cluster *l, int node, const uint8_t *bytes, size_t len)
{
    ls_wire_codec in = {.at = bytes, .left = len};
    uint64_t kind = ls_wire_codec_get(&in, 1);

    l->unconfirmed = false;
    if (kind < HERE || kind > LEASE)
        return false;
    if (l->election && kind == LEASE)
        hear_lease(l, &in);
    if (l->election && kind == HERE) {
        hear_endpoint(l, node, &in);
    } else if (kind == MEMORY && !l->coordinator_process) {
        ls_str_clear(&l->memory);
        ls_str_append_bytes(&l->memory, in.at, in.left);
    }
    if (l->election && kind == ENDPOINTS)
        hear_endpoints(l, &in);
    return true;
}

void ls_failover_remembers(ls_recover_cluster *l, const void *bytes, size_t len)
{
    ls_str message;

    ls_str_init(&message);
    ls_wire_codec_put(&message, MEMORY, 1);
    ls_str_append_bytes(&message, bytes, len);
    for (int i = 0; i < l->n_endpoints && l->election && !message.failed; i++)
        if (l->endpoints[i].node != l->self)
            ls_rendezvous_tell(l->rendezvous, l->endpoints[i].node, message.p, message.len);
    ls_str_release(&message);
}

/* --- while the coordinator lives -------------------------------------------------------------- */

/* Numbers of nodes in the job become numbers among the votes. Above `floor`, because a coordinator
 * before may have announced generations that this one has not seen. */
uint64_t ls_failover_agrees(void *recover_cluster, const int *nodes, int n, uint64_t above)
{
    ls_recover_cluster *l = recover_cluster;
    uint64_t ids[LS_QUORUM_NODES];
    int64_t now = ls_time_now_ns();

    if (!l->election)
        return above + 1; /* too many nodes for successors: nobody needs to be asked */
    LS_BUG_IF(n > LS_QUORUM_NODES, "a view of %d nodes", n);
    for (int i = 0; i < n; i++) {
        const ls_election_endpoint *endpoint = endpoint_of(l, nodes[i]);
        if (!endpoint || endpoint->id == 0)
            return 0; /* its endpoint is on its way */
        ids[i] = endpoint->id;
    }
    if (!l->told)
        tell_endpoints(l, -1);
    l->told = true;
    above = above > l->floor ? above : l->floor;
    if (!l->etcd_leader && !ls_election_founded(l->election))
        ls_election_found(l->election, ids, n, now);
    uint64_t generation = l->etcd_leader ? ls_etcd_leader_agree(l->etcd_leader, ids, n, above)
                                         : ls_election_agree(l->election, ids, n, above, now);
    l->founded |= generation > 0;
    l->wants_ns = generation ? 0 : l->wants_ns ? l->wants_ns : now;
    return generation;
}

/* --- it is lost ------------------------------------------------------------------------------- */

static void on_orphaned(void *context, const char *why, int64_t silent_ns)
{
    ls_recover_cluster *l = context;

    l->orphan_ns = ls_time_now_ns();
    l->silent_ns = silent_ns;
    l->refused = l->unconfirmed;
    snprintf(l->why, sizeof l->why, "%s", why);
    ls_log(LS_LOG_INFO, "the coordinator (%s) was lost: %s", ls_rendezvous_address(l->rendezvous),
           why);
    if (l->etcd_leader)
        ls_etcd_leader_seek(l->etcd_leader, true);
    else
        ls_election_suspect(l->election, l->orphan_ns);
}

static void give_up(ls_recover_cluster *l)
{
    l->over = true;
    ls_rendezvous_give_up(l->rendezvous);
}

static ls_members_node node_of(const ls_election_endpoint *endpoint)
{
    ls_members_node node = {.ranks = endpoint->workers};

    memcpy(node.host, endpoint->host, sizeof node.host);
    memcpy(node.ip, endpoint->ip, sizeof node.ip);
    return node;
}

/* The nodes of the last view, in its order, as the new coordinator sees them. */
static ls_status add_endpoints(ls_recover_cluster *l)
{
    const ls_quorum_view *v = last_view(l);
    ls_status st = LS_OK;

    l->n_endpoints = 0;
    l->told = false;
    for (int i = 0; i < v->n && st == LS_OK; i++) {
        const ls_election_endpoint *endpoint = ls_election_find(l->election, v->member[i]);
        if (!endpoint)
            continue; /* then it cannot be reached either */
        LS_TRY(st, add_endpoint(l, endpoint), out);
        l->endpoints[l->n_endpoints - 1].away = endpoint->id != ls_election_id(l->election);
        const ls_members_node about = node_of(endpoint);
        st = ls_recover_cluster_joins(l, endpoint->node, &about, true);
    }
out:
    return st;
}

static int next_node(const ls_recover_cluster *l)
{
    int n, next = 0;
    const ls_election_endpoint *endpoints = ls_election_endpoints(l->election, &n);

    for (int i = 0; i < n; i++)
        next = endpoints[i].node >= next ? endpoints[i].node + 1 : next;
    return next;
}

/* Of a new coordinator: the one before is lost with all its workers. */
static void lose_coordinator(ls_recover_cluster *l, const ls_election_endpoint *self, int64_t now)
{
    const ls_quorum_view *v = last_view(l);
    const ls_election_endpoint *lost =
        ls_election_find(l->election, l->leader ? l->leader : v->member[0]);
    ls_view_past past = {.reached = -1};
    int64_t noticed_ns = l->orphan_ns ? now - l->orphan_ns + l->silent_ns : 0;
    char why[LS_MEMBER_MESSAGE_TEXT];

    if (l->channel)
        past = ls_worker_channel_recall(l->channel);
    snprintf(why, sizeof why,
             "node %d (%s), the coordinator, was lost: %.200s; node %d (%s) took over",
             lost ? lost->node : -1, lost ? lost->host : "?", *l->why ? l->why : "cut off",
             self->node, self->host);
    ls_log(LS_LOG_WARN, "%s, at %s", why, ls_rendezvous_address(l->rendezvous));
    ls_coordinator_process_send(l->coordinator_process,
                                &(ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_RESTORES,
                                                            .past = past,
                                                            .why = why,
                                                            .noticed_ns = noticed_ns});
    if (lost && lost->id != self->id)
        ls_recover_cluster_lose_node(l, lost->node, why, noticed_ns);
}

/* The order matters: a coordinator must be there before nodes can come back to it, and it must know all
 * nodes of the last view before it learns which are lost.
 *
 *     node 1, elected       coordinator opened -> listens -> joins 0, 1, 2 -> recalls what node 0 had
 *                           learned -> restores generation 4 -> loses node 0 -> own workers report
 *     node 2                BACK -> returns: REVOKE -> its workers report -> generation 5 of 1 and 2 */
static ls_status take_over(ls_recover_cluster *l, int64_t now)
{
    const ls_election_endpoint *self = ls_election_find(l->election, ls_election_id(l->election));
    ls_status st;

    if (!self)
        return ls_fail(LS_EPEER, "this node was elected, and does not know its place");
    LS_TRY(st, ls_recover_cluster_open_coordinator_process(l, self->node), out);
    LS_TRY(st, ls_recover_cluster_watch_coordinator_process(l), out);
    LS_TRY(st, ls_rendezvous_take_over(l->rendezvous, last_view(l)->n, next_node(l)), out);
    LS_TRY(st, add_endpoints(l), out);
    if (l->memory.len > 0)
        ls_coordinator_process_send(l->coordinator_process,
                                    &(ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_RECALLS,
                                                                .bytes = l->memory.p,
                                                                .len = l->memory.len});
    l->floor = last_view(l)->generation;
    l->founded = true;
    l->patience_ns = now + ls_max_i64(l->args.dead_ns, BACK_S * LS_NS_PER_S);
    lose_coordinator(l, self, now);
    l->orphan_ns = 0;
    if (l->etcd_leader)
        ls_etcd_leader_seek(l->etcd_leader, false);
    if (l->channel)
        ls_worker_channel_restate(l->channel);
out:
    return st;
}

static void follow(ls_recover_cluster *l, uint64_t leader, uint64_t term, int64_t now)
{
    const ls_election_endpoint *endpoint = ls_election_find(l->election, leader),
                               *self = ls_election_find(l->election, ls_election_id(l->election));
    char address[LS_SOCK_TEXT];

    if (!endpoint || !self)
        return; /* the list is on its way */
    ls_members_format(endpoint->ip, endpoint->join_port, address, sizeof address);
    if (ls_rendezvous_follow(l->rendezvous, address, self->node, self->id,
                             now + FOLLOW_S * LS_NS_PER_S) != LS_OK) {
        l->orphan_ns = l->orphan_ns ? l->orphan_ns : now;
        return;
    }
    ls_log(LS_LOG_INFO, "node %d (%s) coordinates the job now", endpoint->node, endpoint->host);
    l->leader = leader;
    l->term = term;
    l->orphan_ns = 0;
    l->unconfirmed = true;
    if (l->etcd_leader)
        ls_etcd_leader_seek(l->etcd_leader, false);
    if (l->channel)
        ls_worker_channel_restate(l->channel);
}

/* Without a coordinator: whether there may be one for this node yet. */
static void check_end(ls_recover_cluster *l, int64_t now)
{
    int64_t wait_ns = GIVE_UP * l->args.dead_ns;

    if (l->etcd_leader) /* until its lease has run out */
        wait_ns = ls_max_i64(wait_ns, ETCD_LEADER_S * LS_NS_PER_S);
    if (may_elect(l) && !l->refused && now - l->orphan_ns < wait_ns)
        return;
    ls_fail(LS_EPEER, "the first node (%s) went away: %s", ls_rendezvous_address(l->rendezvous),
            l->why);
    ls_err_hint(l->etcd_leader
                    ? "Another machine takes over where etcd gives it the run."
                    : "Another machine takes over where more than half of those of the last "
                      "view are left.");
    give_up(l);
}

static void look_as_member(ls_recover_cluster *l, int64_t now)
{
    uint64_t term, leader = leader_of(l, &term);

    if (leader == ls_election_id(l->election)) {
        if (take_over(l, now) != LS_OK)
            give_up(l);
        return;
    }
    if (leader != 0 && l->orphan_ns == 0 && (l->leader == 0 || leader == l->leader)) {
        l->leader = leader;
        l->term = term;
    } else if (leader != 0 && (leader != l->leader || term != l->term)) {
        follow(l, leader, term, now);
    }
    if (l->orphan_ns != 0)
        check_end(l, now);
}

/* --- the new coordinator ---------------------------------------------------------------------- */

static bool on_returns(void *context, int node, uint64_t id, ls_members_node *about_out)
{
    const ls_recover_cluster *l = context;
    const ls_election_endpoint *endpoint =
        l->coordinator_process && l->election ? endpoint_of(l, node) : NULL;

    if (!endpoint || !endpoint->away || endpoint->id != id)
        return false;
    *about_out = node_of(endpoint);
    return true;
}

static void on_returned(void *context, int node)
{
    ls_recover_cluster *l = context;

    endpoint_of(l, node)->away = false;
    tell_endpoints(l, node);
    ls_coordinator_process_send(
        l->coordinator_process,
        &(ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_RETURNS, .node = node});
}

/* Nodes that do not come back are lost, too. */
static void lose_absent(ls_recover_cluster *l, int64_t now)
{
    for (int i = 0; i < l->n_endpoints && now > l->patience_ns; i++) {
        const ls_election_endpoint endpoint = l->endpoints[i];
        char why[200];
        if (!endpoint.away)
            continue;
        snprintf(why, sizeof why, "node %d (%s) was lost: it did not come to the new coordinator",
                 endpoint.node, endpoint.host);
        ls_log(LS_LOG_INFO, "%s", why);
        ls_recover_cluster_lose_node(l, endpoint.node, why, l->args.dead_ns);
        i = -1;
    }
}

static void look_as_coordinator(ls_recover_cluster *l, int64_t now)
{
    uint64_t term, leader = leader_of(l, &term);
    const ls_election_endpoint *other = ls_election_find(l->election, leader);

    if (!is_founded(l) || ls_coordinator_process_is_idle(l->coordinator_process, -1))
        return; /* not yet, or no more */
    bool leads = leader == ls_election_id(l->election);
    if (leads)
        lose_absent(l, now);
    /* Nobody needs a majority while nothing changes. */
    if ((leads || leader == 0) &&
        (l->wants_ns == 0 ||
         now - l->wants_ns < ls_max_i64(2 * l->args.dead_ns, STUCK_S * LS_NS_PER_S)))
        return;
    if (leader != 0 && !leads)
        ls_fail(LS_EPEER, "the job goes on without this node: it was cut off, and %s took over",
                other ? other->host : "another one");
    else
        ls_fail(LS_EPEER, l->etcd_leader
                              ? "etcd does not answer this node, and a view is needed"
                              : "this node has lost more than half of the nodes of the job");
    ls_err_hint(
        l->etcd_leader
            ? "Another machine of the job goes on, if it reaches etcd."
            : "The side with more than half of the nodes goes on; the run folder has its events.");
    give_up(l);
}

/* --- both ------------------------------------------------------------------------------------- */

void ls_failover_looks(ls_recover_cluster *l)
{
    int64_t now = ls_time_now_ns();
    uint64_t term;

    if (!l->election || l->over || l->rendezvous->failed || l->rendezvous->ended)
        return; /* nobody is needed for a job that ends */
    bool lives = ls_rendezvous_is_linked(l->rendezvous) &&
                 ls_election_leader(l->election, &term) == l->leader;
    ls_election_attend(l->election, lives, now);
    l->hooks.successors = may_elect(l);
    if (l->coordinator_process)
        look_as_coordinator(l, now);
    else
        look_as_member(l, now);
}

ls_status ls_failover_open(ls_recover_cluster *l)
{
    const ls_rendezvous *r = l->rendezvous;
    ls_status st = LS_OK;

    if (!l->args.failover)
        return LS_OK;
    LS_TRY(st,
           ls_election_open(&l->election, &(ls_election_args){.ip = r->ip,
                                                              .secret = r->args.secret,
                                                              .beat_ns = l->args.heartbeat_ns,
                                                              .suspect_ns = l->args.suspect_ns,
                                                              .dead_ns = l->args.dead_ns}),
           out);
    l->hooks.orphaned = on_orphaned;
    l->hooks.returns = on_returns;
    l->hooks.returned = on_returned;
out:
    return st;
}

void ls_recover_cluster_join_list(const ls_recover_cluster *l, char *text_out, size_t cap)
{
    int n = 0;
    const ls_election_endpoint *endpoints =
        l->election ? ls_election_endpoints(l->election, &n) : NULL;
    char address[LS_SOCK_TEXT];
    size_t len = 0;

    *text_out = '\0';
    for (int i = 0; i < n; i++) {
        ls_members_format(endpoints[i].ip, endpoints[i].join_port, address, sizeof address);
        if (endpoints[i].id == ls_election_id(l->election) || len + strlen(address) + 2 > cap)
            continue;
        len += (size_t)snprintf(text_out + len, cap - len, "%s%s", len ? "," : "", address);
    }
}

void ls_failover_close(ls_recover_cluster *l)
{
    ls_etcd_leader_close(l->etcd_leader);
    l->etcd_leader = NULL;
    ls_election_close(l->election);
    ls_mem_free(l->endpoints);
    l->election = NULL;
    l->endpoints = NULL;
}

/* The coordinator: the nodes that the job begins with. More than can vote: it ends with this one,
 * and the others see that they have no part in any view that was agreed. */
static ls_status list_endpoints(ls_recover_cluster *l)
{
    const ls_members *m = ls_rendezvous_members(l->rendezvous);
    ls_status st = LS_OK;

    if (m->nodes > LS_QUORUM_NODES) {
        ls_log(LS_LOG_INFO, "a job of %d nodes ends with its first one: at most %d replace it",
               m->nodes, LS_QUORUM_NODES);
        ls_failover_close(l);
        return LS_OK;
    }
    LS_TRY(st, ls_fd_limit_make(m->nodes, "nodes that may succeed the first one"), out);
    for (int i = 0; i < m->nodes && st == LS_OK; i++)
        st = add_node(l, i, &m->node[i]);
out:
    return st;
}

ls_status ls_failover_begin(ls_recover_cluster *l)
{
    uint16_t join_port;
    ls_str bytes;
    ls_status st = l->election && l->coordinator_process ? list_endpoints(l) : LS_OK;

    if (!l->election || st != LS_OK)
        return st;
    ls_str_init(&bytes);
    LS_TRY(st, ls_rendezvous_watch(l->rendezvous, ls_election_fd(l->election), OF_ELECTION), out);
    LS_TRY(st, ls_rendezvous_reserve(l->rendezvous, &join_port), out);
    ls_wire_codec_put(&bytes, HERE, 1);
    ls_wire_codec_put(&bytes, ls_election_id(l->election), 8);
    ls_wire_codec_put(&bytes, ls_election_port(l->election), 2);
    ls_wire_codec_put(&bytes, join_port, 2);
    LS_TRY(st, ls_str_status(&bytes), out);
    if (l->coordinator_process && l->args.run_lease) {
        snprintf(l->etcd_args.run_lease, sizeof l->etcd_args.run_lease, "%s", l->args.run_lease);
        snprintf(l->etcd_args.etcd, sizeof l->etcd_args.etcd, "%s", l->args.etcd);
        LS_TRY(st, open_etcd_leader(l, true), out);
        tell_lease(l, -1);
    }
    if (l->coordinator_process)
        (void)ls_failover_hears(l, l->self, (const uint8_t *)bytes.p, bytes.len);
    else
        ls_rendezvous_tell(l->rendezvous, 0, bytes.p, bytes.len);
out:
    ls_str_release(&bytes);
    return st;
}
