/* recover_cluster.c -- passes messages on between the workers of a node, the other nodes and the
 * coordinator; decides nothing.
 *
 *     on the coordinator's node                          on another node
 *     workers -> ls_recover_cluster_say -> coordinator   workers -> ls_recover_cluster_say -> host
 *     node -> on_heard                  -> coordinator   host -> on_heard                  -> workers
 *     coordinator -> on_tell            -> node, or workers */
#include "cluster/recover/recover_cluster_impl.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/join/rendezvous_impl.h"

/* --- the coordinator speaks ------------------------------------------------------------------- */

/* To the workers of this node. */
static void take_message(ls_recover_cluster *l, const void *bytes, size_t len)
{
    ls_member_message message;

    if (ls_member_message_decode(&message, bytes, len) != LS_OK ||
        ls_member_message_unpack(&message, &l->roster) != LS_OK)
        ls_log(LS_LOG_WARN, "%s", ls_err_last()->text);
    else if (l->channel)
        ls_worker_channel_hear(l->channel, &message);
    ls_member_message_release(&message);
}

/* What the coordinator decides. Its own agent knows of its workers by their verdicts, so a STOP for
 * one of them is this node's own failure. */
static void on_act(void *context, const ls_coordinator_log_event *event)
{
    const ls_coordinator_log_event *e = event;
    ls_recover_cluster *l = context;

    switch (e->kind) {
    case LS_COORDINATOR_LOG_TELL:
        if (e->node != l->self)
            ls_rendezvous_tell(l->rendezvous, e->node, e->bytes, e->len);
        else
            take_message(l, e->bytes, e->len);
        break;
    case LS_COORDINATOR_LOG_CALL:
        ls_rendezvous_call(l->rendezvous, e->node);
        break;
    case LS_COORDINATOR_LOG_EXPEL:
        ls_rendezvous_expel(l->rendezvous, e->node, e->why);
        ls_failover_lose_node(l, e->node);
        break;
    case LS_COORDINATOR_LOG_STOP:
        ls_fail(e->status, "%s", e->why);
        ls_err_hint("%s", e->hint);
        ls_rendezvous_decide(l->rendezvous, e->code, ls_err_last(), e->node == l->self);
        break;
    case LS_COORDINATOR_LOG_REMEMBER:
        ls_failover_remembers(l, e->bytes, e->len);
        break;
    case LS_COORDINATOR_LOG_DIED:
        if (l->channel)
            ls_worker_channel_tell(l->channel, e->why, e->noticed_ns);
        break;
    default:
        break;
    }
}

/* --- the hooks -------------------------------------------------------------------------------- */

static bool on_join(void *context, int node, const ls_members_node *about, char *why, size_t cap)
{
    ls_recover_cluster *l = context;

    if (ls_coordinator_process_excludes(l->coordinator_process, about->host, why, cap))
        return false;
    ls_status st = ls_failover_joins(l, node, about);
    if (st == LS_OK)
        st = ls_recover_cluster_joins(l, node, about, false);
    if (st == LS_OK)
        return true;
    snprintf(why, cap, "%.200s", ls_err_last()->text);
    ls_failover_lose_node(l, node);
    return false;
}

/* What the workers of a node say, to the coordinator here. */
static void give_message(ls_recover_cluster *l, int node, const void *bytes, size_t len)
{
    ls_coordinator_process_send(
        l->coordinator_process,
        &(ls_coordinator_log_event){
            .kind = LS_COORDINATOR_LOG_TAKES, .node = node, .bytes = bytes, .len = len});
}

/* What another node says: about failover; from the coordinator; or to it, and then as it came. */
static void on_heard(void *context, int node, const uint8_t *bytes, size_t len)
{
    ls_recover_cluster *l = context;

    if (ls_failover_hears(l, node, bytes, len))
        return;
    if (l->coordinator_process)
        give_message(l, node, bytes, len);
    else
        take_message(l, bytes, len);
}

static void on_lost(void *context, int node, const char *why, int64_t silent_ns)
{
    ls_recover_cluster *l = context;

    ls_log(LS_LOG_INFO, "%s", why);
    ls_recover_cluster_lose_node(l, node, why, silent_ns);
}

static void on_look(void *context)
{
    ls_recover_cluster *l = context;

    ls_failover_looks(l);
    if (l->coordinator_process && !l->over &&
        ls_coordinator_process_attend(l->coordinator_process) != LS_OK)
        ls_rendezvous_decide(l->rendezvous, ls_err_exit_code(LS_ENORETRY), ls_err_last(), false);
}

static bool on_idle(void *context, int node)
{
    return ls_coordinator_process_is_idle(((ls_recover_cluster *)context)->coordinator_process,
                                          node);
}

/* --- both ------------------------------------------------------------------------------------- */

ls_status ls_recover_cluster_open_coordinator_process(ls_recover_cluster *l, int self)
{
    const ls_recover_cluster_args *a = &l->args;
    const ls_coordinator_process_args args = {
        .rules = {.rules = a->rules,
                  .min_nodes = a->min_nodes,
                  .max_nodes = a->max_nodes,
                  .grow_wait_ns = a->grow_wait_ns,
                  .quarantine = a->quarantine,
                  .cool_ns = a->cool_ns,
                  .self = self,
                  .agree = a->failover ? ls_failover_agrees : NULL},
        .program = a->program,
        .act = on_act,
        .context = l};

    l->self = self;
    return ls_coordinator_process_open(&l->coordinator_process, &args);
}

ls_status ls_recover_cluster_joins(ls_recover_cluster *l, int node, const ls_members_node *about,
                                   bool begins)
{
    return ls_coordinator_process_joins(
        l->coordinator_process, &(ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_JOINS,
                                                            .node = node,
                                                            .workers = about->ranks,
                                                            .begins = begins,
                                                            .host = about->host,
                                                            .ip = about->ip});
}

void ls_recover_cluster_lose_node(ls_recover_cluster *l, int node, const char *why,
                                  int64_t noticed_ns)
{
    ls_failover_lose_node(l, node);
    ls_coordinator_process_send(
        l->coordinator_process,
        &(ls_coordinator_log_event){
            .kind = LS_COORDINATOR_LOG_LOSES, .node = node, .why = why, .noticed_ns = noticed_ns});
}

ls_status ls_recover_cluster_watch_coordinator_process(ls_recover_cluster *l)
{
    return ls_rendezvous_watch(l->rendezvous, ls_coordinator_process_fd(l->coordinator_process),
                               OF_ELECTION);
}

ls_status ls_recover_cluster_open(ls_recover_cluster **recover_cluster_out,
                                  const ls_recover_cluster_args *args, bool hosts,
                                  ls_rendezvous *rendezvous)
{
    ls_recover_cluster *l = ls_mem_alloc(sizeof *l);
    ls_status st = LS_OK;

    if (!l)
        return LS_ENOMEM;
    l->args = *args;
    l->rendezvous = rendezvous;
    ls_roster_init(&l->roster);
    ls_str_init(&l->memory);
    l->hooks = (ls_rendezvous_hooks){.heartbeat_ns = args->heartbeat_ns,
                                     .suspect_ns = args->suspect_ns,
                                     .dead_ns = args->dead_ns,
                                     .joins = on_join,
                                     .heard = on_heard,
                                     .lost = on_lost,
                                     .looks = on_look,
                                     .idle = on_idle,
                                     .context = l};
    LS_TRY(st, ls_failover_open(l), out);
    if (hosts)
        LS_TRY(st, ls_recover_cluster_open_coordinator_process(l, 0), out);
    LS_TRY(st, ls_rendezvous_attach(rendezvous, &l->hooks), out);
    *recover_cluster_out = l;
out:
    if (st != LS_OK)
        ls_recover_cluster_close(l);
    return st;
}

void ls_recover_cluster_close(ls_recover_cluster *recover_cluster)
{
    if (!recover_cluster)
        return;
    ls_failover_close(recover_cluster);
    ls_coordinator_process_close(recover_cluster->coordinator_process);
    ls_roster_release(&recover_cluster->roster);
    ls_str_release(&recover_cluster->memory);
    ls_mem_free(recover_cluster);
}

/* The coordinator's own node: the others have the list of the rendezvous. */
static ls_status join_all(ls_recover_cluster *l)
{
    const ls_members *m = ls_rendezvous_members(l->rendezvous);
    ls_status st = LS_OK;

    for (int i = 0; i < m->nodes && st == LS_OK; i++) {
        const ls_members_node *n = &m->node[i];
        LS_TRY(st, ls_roster_add(&l->roster, n->host, n->ip), out);
        st = ls_recover_cluster_joins(l, i, n, true);
    }
    LS_TRY(st, st, out);
    ls_coordinator_process_send(l->coordinator_process,
                                &(ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_NAMED});
    st = ls_recover_cluster_watch_coordinator_process(l);
out:
    return st;
}

ls_status ls_recover_cluster_begin(ls_recover_cluster *recover_cluster)
{
    ls_status st = ls_failover_begin(recover_cluster);

    if (st != LS_OK)
        return st;
    return recover_cluster->coordinator_process
               ? join_all(recover_cluster)
               : ls_rendezvous_learn(recover_cluster->rendezvous, &recover_cluster->roster);
}

void ls_recover_cluster_say(void *recover_cluster, const ls_member_message *message)
{
    ls_recover_cluster *l = recover_cluster;
    ls_str bytes;

    ls_str_init(&bytes);
    ls_member_message_encode(message, &bytes);
    if (ls_str_status(&bytes) != LS_OK)
        ls_log(LS_LOG_ERROR, "a message to the coordinator is lost: %s", ls_err_last()->text);
    else if (l->coordinator_process)
        give_message(l, l->self, bytes.p, bytes.len);
    else
        ls_rendezvous_tell(l->rendezvous, 0, bytes.p, bytes.len);
    ls_str_release(&bytes);
}

void ls_recover_cluster_bind(ls_recover_cluster *recover_cluster, ls_worker_channel *channel)
{
    recover_cluster->channel = channel;
    if (channel && recover_cluster->etcd_leader)
        ls_worker_channel_set_run_lease(channel, recover_cluster->etcd_args.run_lease);
}
