/* train_job.c -- see train_job.h.
 *
 *     agent                                rank
 *     ls_train_job_run                     ls_train_job_join
 *       rules from heal.* of the run         heals:  ls_job_rank_rejoin() now and after each loss
 *       ls_job_run                           else:   ls_job_rank_join() once
 *
 * The first rank of a view writes what the run reports, to the standard output of the command that
 * the user started. Another rank may become the first one after a loss: from then on it writes. */
#include "launch/train_job.h"

#include <limits.h>
#include "base/time.h"
#include "cluster/node/launcher_env.h"
#include "launch/run_digest.h"
#include "launch/run_holder.h"
#include "launch/task_rendezvous.h"
#include "layout/replicas.h"
#include "net/sock.h"

/* How long a run may take to finish its step and save, before its ranks are killed; replicas and
 * workers, which train on their own, first go on until they meet. */
enum { SAVE_GRACE_S = 300, MEET_GRACE_S = 86400, JOIN_S = 300 };

/* --- the agent's side ------------------------------------------------------------------------- */

bool ls_train_job_is_needed(const ls_run *run, bool flags)
{
    const char *hosts = getenv("LINESHAFT_LAB_NODES");

    if (ls_job_rank_here())
        return false;
    if (flags || ls_task_rendezvous_is_task())
        return true;
    return run->mesh.dp > 1 || run->mesh.tp > 1 || run->mesh.pp > 1 || run->mesh.cp > 1 ||
           run->mesh.ep > 1 || (hosts && strcmp(hosts, "1") != 0);
}

int ls_train_job_ranks(const ls_run *run)
{
    int64_t sharers = ls_max_i64(1, run->mesh.dp) * run->mesh.cp;
    int64_t all = ls_max_i64(run->mesh.ep, sharers) * run->mesh.tp * run->mesh.pp;

    return all > 1 && !ls_task_rendezvous_is_task() ? (int)ls_min_i64(all, INT_MAX) : 1;
}

ls_status ls_train_job_run(const ls_run *run, ls_job_args *args, ls_agent_result *result_out)
{
    const ls_recover_cluster_args heal = {.rules = {.restarts = (int)run->heal.restarts,
                                                    .least = (int)run->heal.min_ranks,
                                                    .most = LS_COMM_RANKS,
                                                    .unit = ls_replicas_unit(run)},
                                          .min_nodes = (int)run->heal.min_nodes,
                                          .max_nodes = (int)run->heal.max_nodes,
                                          .grow_wait_ns = (int64_t)(run->heal.grow_wait * 1e9),
                                          .quarantine = (int)run->heal.quarantine,
                                          .cool_ns = (int64_t)(run->heal.cool_down * 1e9),
                                          .patience_ns = run->heal.wait * LS_NS_PER_S,
                                          .heartbeat_ns = (int64_t)(run->heal.heartbeat * 1e9),
                                          .suspect_ns = (int64_t)(run->heal.suspect * 1e9),
                                          .dead_ns = (int64_t)(run->heal.dead * 1e9),
                                          .failover = true,
                                          .run_lease = ls_run_holder_lease(),
                                          .etcd = ls_run_holder_etcd(),
                                          .program = LS_AGENT_SELF};
    bool discrete = run->sync != LS_SYNC_ALLREDUCE; /* ranks notice no loss for long */

    args->grace_s = discrete ? MEET_GRACE_S : SAVE_GRACE_S;
    args->heal = run->heal.mode == LS_HEAL_ON && !discrete ? &heal : NULL;
    return ls_job_run(args, result_out);
}

/* --- a rank's side ---------------------------------------------------------------------------- */

static ls_status take_place(ls_train_job_rank *at, int rank)
{
    ls_status st = LS_OK;

    if (rank > 0 || at->first)
        return LS_OK;
    at->first = true;
    LS_TRY(st, ls_job_rank_take_output(), out);
    at->leads(at->context);
out:
    return st;
}

static ls_status rejoin(void *context, const ls_view_report *report, ls_worker_channel_view *view,
                        ls_comm **comm)
{
    ls_train_job_rank *at = context;
    ls_status st = ls_job_rank_rejoin(&at->rank, report, view, comm);

    at->comm = *comm;
    return st == LS_OK && !view->dismissed ? take_place(at, view->rank) : st;
}

ls_status ls_train_job_join(ls_train_job_rank *at, ls_session_args *session)
{
    const ls_view_report nothing = {.have = -1, .reached = -1};
    ls_launcher_env env;
    ls_status st;

    at->rank.listen_fd = -1;
    if (!ls_job_rank_here())
        return LS_OK;
    if (ls_worker_channel_has_agent()) {
        session->rejoin = rejoin;
        session->rejoin_context = at;
        ls_run_digest(session->run, &at->rank.config_digest);
        LS_TRY(st, rejoin(at, &nothing, &session->view, &session->comm), out);
        session->local_ranks = session->view.local_ranks;
        session->local_rank = session->view.local_rank;
        goto out;
    }
    LS_TRY(st, ls_job_rank_join(&at->comm, ls_time_now_ns() + JOIN_S * LS_NS_PER_S), out);
    session->comm = at->comm;
    LS_TRY(st, ls_launcher_env_find(&env), out);
    session->local_ranks = env.local_world;
    session->local_rank = env.local_rank;
    ls_task_rendezvous_widen(&session->local_rank, &session->local_ranks);
    st = take_place(at, env.rank);
out:
    return st;
}

void ls_train_job_leave(ls_train_job_rank *at, ls_status st)
{
    if (st != LS_OK && st != LS_EINTR && st != LS_EUNSAVED && at->comm)
        ls_comm_abort(at->comm, ls_err_last()->text);
    ls_comm_close(at->comm);
    ls_sock_close(&at->rank.listen_fd);
}
