/* launch_nodes.c -- a job of several nodes, from the first connection to the common exit code.
 *
 *     first node                              a node that joins
 *     read_secret: made when it is missing    read_secret
 *     open_any: listens                       open_any: each address of its list in turn, because
 *                                               another node may have taken over
 *     describe_work: what agents are to run   an agent asks for it: told()
 *     meet_all: all are here                  meet_all
 *     met(): what the ranks inherit           met()
 *     run_job: the agent runs                 run_job
 *       a rank fails -> ls_rendezvous_fail    STOP: attend() ends the agent's job
 *     ls_rendezvous_end: one exit code        ls_rendezvous_end: the same
 *
 * A rank that failed because of a peer (LS_EPEER) reports nothing to other nodes: the peer's own
 * node does. Where ranks heal, the coordinator decides what a failure means. */
#include "launch/launch_nodes.h"

#include <signal.h>
#include <unistd.h>
#include "base/file.h"
#include "base/log.h"
#include "base/time.h"
#include "cluster/join/rendezvous.h"
#include "net/secret.h"

enum { TRY_S = 2 }; /* for each of several addresses */

typedef struct stage {
    ls_rendezvous *r;
    const ls_launch_nodes *nodes;
} stage;

/* Report what all nodes must know. */
static void on_event(void *context, const ls_agent_event *event)
{
    const stage *s = context;

    if (event->kind == LS_AGENT_STARTED && s->nodes->started) {
        s->nodes->started(s->nodes->context);
    } else if (event->kind == LS_AGENT_ENDED && event->code != 0 && event->why->code != LS_EPEER &&
               !s->nodes->recover_cluster) {
        ls_rendezvous_fail(s->r, event->code, event->why);
    } else if (event->kind == LS_AGENT_ASKED) {
        char host[64] = "?";
        gethostname(host, sizeof host - 1);
        ls_fail(LS_EINTR, "stopped on request on %s", host);
        ls_rendezvous_fail(s->r, ls_err_exit_code(LS_EINTR), ls_err_last());
    }
}

static ls_status on_attend(void *context)
{
    return ls_rendezvous_attend(((const stage *)context)->r);
}

/* A notice for the user: what happened, to what, and how it goes on. */
static void notify(const ls_launch_nodes *nodes, const char *begin, const char *of, const char *end)
{
    char text[512];

    snprintf(text, sizeof text, "%s%.300s%s", begin, of, end);
    if (nodes->notice)
        nodes->notice(text);
}

/* The first node makes the secret when there is none yet. */
static ls_status read_secret(const ls_launch_nodes *nodes, bool hosts, ls_secret *secret)
{
    const char *path = nodes->secret;
    ls_status st = LS_OK;

    if (!path) {
        ls_fail(LS_EUSAGE, "several nodes need --secret FILE");
        ls_err_hint("The first node makes the file when it is missing; copy it to the others.");
        return LS_EUSAGE;
    }
    if (hosts && !ls_file_exists(path)) {
        LS_TRY(st, ls_secret_make(path), out);
        notify(nodes, "made the secret \"", path, "\"; the other nodes need a copy");
    }
    st = ls_secret_read(secret, path);
out:
    return st;
}

static ls_status run_job(ls_rendezvous *r, const ls_launch_nodes *nodes, ls_agent_args job,
                         ls_agent_result *result)
{
    stage s = {r, nodes};
    const ls_members *m = ls_rendezvous_members(r);
    int node = ls_rendezvous_node(r), code = 0;

    job.node = node;
    job.nodes = m->nodes;
    job.first_rank = m->node[node].first_rank;
    job.world = m->ranks;
    job.generation = m->generation;
    job.master_addr = m->node[0].ip;
    job.master_port = m->master_port;
    job.hook = on_event;
    job.attend = on_attend;
    job.watch_fd = ls_rendezvous_fd(r);
    job.context = &s;
    ls_status st = ls_agent_run(&job, result);
    ls_err_record own = *ls_err_last();
    int here = st == LS_OK ? result->exit_code : ls_err_exit_code(st);
    if (ls_rendezvous_end(r, here, &code) != LS_OK)
        code = here ? here : ls_err_exit_code(LS_EPEER);
    if (st != LS_OK)
        return ls_err_adopt(&own);
    if (result->cause.code != LS_EUNSAVED) /* which only this node may know */
        result->exit_code = code;
    if (code == 0 && nodes->recover_cluster) /* a node that the job has done without */
        result->cause.code = LS_OK;
    bool blames = result->cause.code == LS_EPEER;
    if (code != 0 && (result->cause.code == LS_OK || blames)) { /* it went wrong elsewhere */
        bool known = ls_rendezvous_attend(r) != LS_OK;
        if (!known && !blames)
            ls_fail(LS_EPEER, "the job ended with exit code %d on another node", code);
        if (known || !blames)
            result->cause = *ls_err_last();
    }
    return LS_OK;
}

/* What agents that join must know. */
static ls_status describe_work(const ls_launch_nodes *nodes, const ls_agent_args *job, ls_str *out)
{
    const ls_recover_cluster_args *h = nodes->heal;
    ls_job_spec_heal heal = {.patience_ms = 0};

    if (h)
        heal = (ls_job_spec_heal){.patience_ms = (uint32_t)(h->patience_ns / LS_NS_PER_MS),
                                  .heartbeat_ms = (uint32_t)(h->heartbeat_ns / LS_NS_PER_MS),
                                  .suspect_ms = (uint32_t)(h->suspect_ns / LS_NS_PER_MS),
                                  .dead_ms = (uint32_t)(h->dead_ns / LS_NS_PER_MS),
                                  .failover = h->failover,
                                  .restarts = (uint32_t)h->rules.restarts,
                                  .least = (uint32_t)h->rules.least,
                                  .unit = (uint32_t)h->rules.unit,
                                  .min_nodes = (uint32_t)h->min_nodes,
                                  .max_nodes = (uint32_t)h->max_nodes,
                                  .grow_wait_ms = (uint32_t)(h->grow_wait_ns / LS_NS_PER_MS),
                                  .quarantine = (uint32_t)h->quarantine,
                                  .cool_ms = (uint32_t)(h->cool_ns / LS_NS_PER_MS)};
    return ls_job_spec_encode(job->command, job->workers, nodes->met != NULL, h ? &heal : NULL,
                              out);
}

/* Of several addresses the first where somebody answers; each is tried for TRY_S, again and again
 * until the deadline. "10.0.0.1:7077,10.0.0.2:7077": the first node may be lost, and the second one
 * may have taken over its part. */
static ls_status open_any(ls_rendezvous **r, ls_rendezvous_args how, ls_launch_nodes *nodes,
                          int64_t deadline_ns)
{
    const char *list = how.address;

    if (!nodes->join || !strchr(list, ','))
        return ls_rendezvous_open(r, &how, deadline_ns);
    ls_status st = ls_fail(LS_EDEADLINE, "there was no time to join %s", list);
    do {
        for (size_t len; *list && ls_time_now_ns() < deadline_ns;
             list += len + (list[len] == ',')) {
            len = strcspn(list, ",");
            snprintf(nodes->at, sizeof nodes->at, "%.*s", (int)len, list);
            how.address = nodes->at;
            st = ls_rendezvous_open(
                r, &how, ls_min_i64(deadline_ns, ls_time_now_ns() + TRY_S * LS_NS_PER_S));
            if (st != LS_EIO && st != LS_EDEADLINE) {
                nodes->join = nodes->at;
                return st;
            }
        }
        list = nodes->join;
    } while (ls_time_now_ns() < deadline_ns);
    return st;
}

/* Join the others, and learn their names. */
static ls_status meet(ls_rendezvous *r, ls_launch_nodes *nodes, int64_t deadline_ns)
{
    ls_status st = LS_OK;

    if (nodes->heal)
        LS_TRY(st, ls_recover_cluster_open(&nodes->recover_cluster, nodes->heal, !nodes->join, r),
               out);
    LS_TRY(st, ls_rendezvous_meet(r, deadline_ns), out);
    LS_TRY(st, ls_rendezvous_members(r) ? LS_OK : LS_ENOMEM, out);
    if (nodes->recover_cluster)
        st = ls_recover_cluster_begin(nodes->recover_cluster);
out:
    return st;
}

/* *without_out: the others began without this node, which is no failure of it. */
static ls_status meet_all(ls_rendezvous *r, ls_launch_nodes *nodes, int64_t deadline_ns,
                          bool *without_out)
{
    ls_status st = meet(r, nodes, deadline_ns);

    if (st == LS_EDEADLINE && !nodes->join && nodes->launcher)
        ls_err_hint("See whether all %lld tasks of %s run this command and can reach %s; --wait "
                    "gives them more time than %lld s.",
                    (long long)nodes->nodes, nodes->launcher, ls_rendezvous_address(r),
                    (long long)nodes->wait_s);
    *without_out = st != LS_OK && ls_rendezvous_did_without(r);
    if (!*without_out)
        return st;
    ls_log(LS_LOG_INFO, "%s", ls_err_last()->text);
    return LS_OK;
}

ls_status ls_launch_nodes_run(ls_launch_nodes *nodes, ls_agent_args *job, ls_agent_result *result)
{
    ls_status st = LS_OK;
    const char *join = nodes->join;
    ls_rendezvous *r = NULL;
    ls_secret secret = {NULL};
    bool without = false;
    ls_job_spec work;
    ls_str told;

    ls_job_spec_init(&work);
    ls_str_init(&told);
    if (nodes->secret_fd >= 0)
        LS_TRY(st, ls_secret_read_fd(&secret, nodes->secret_fd), out);
    else
        LS_TRY(st, read_secret(nodes, !join, &secret), out);
    int64_t deadline_ns = ls_time_now_ns() + nodes->wait_s * LS_NS_PER_S;
    if (!nodes->told && (st = describe_work(nodes, job, &told)) != LS_OK)
        ls_log(LS_LOG_INFO, "no agent can join: %s", ls_err_last()->text);
    const ls_rendezvous_args how = {.hosts = !join,
                                    .address = join ? join : nodes->listen,
                                    .nodes = (int)nodes->nodes,
                                    .secret = secret.bytes,
                                    .ranks = nodes->told ? 0 : job->workers,
                                    .ports = nodes->ports,
                                    .generation = join ? 0 : 1,
                                    .work = st == LS_OK ? &told : NULL,
                                    .grace_ns = job->grace_ns};
    LS_TRY(st, open_any(&r, how, nodes, deadline_ns), out);
    if (!join && nodes->listening)
        LS_TRY(st, nodes->listening(nodes->context, ls_rendezvous_address(r)), out);
    if (!join && !nodes->quiet)
        notify(nodes, "waiting for nodes that join ", ls_rendezvous_address(r), "");
    if (nodes->told) {
        LS_TRY(st, ls_rendezvous_ask(r, &work, deadline_ns), out);
        LS_TRY(st, nodes->told(nodes->context, &work, deadline_ns, job), out);
        LS_TRY(st, ls_rendezvous_bring(r, job->workers, nodes->ports), out);
    }
    LS_TRY(st, meet_all(r, nodes, deadline_ns, &without), out);
    if (without)
        goto out;
    if (nodes->met)
        LS_TRY(st,
               nodes->met(nodes->context, ls_rendezvous_members(r), ls_rendezvous_node(r),
                          secret.bytes, job),
               out);
    st = run_job(r, nodes, *job, result);
out:
    nodes->dropped = nodes->recover_cluster && ls_rendezvous_was_dropped(r);
    if (nodes->recover_cluster)
        ls_recover_cluster_join_list(nodes->recover_cluster, nodes->join_list,
                                     sizeof nodes->join_list);
    ls_recover_cluster_close(nodes->recover_cluster);
    nodes->recover_cluster = NULL;
    ls_rendezvous_close(r);
    ls_secret_release(&secret);
    ls_job_spec_release(&work);
    ls_str_release(&told);
    return st;
}
