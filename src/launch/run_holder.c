/* run_holder.c -- the process that the user started holds the run in etcd, for as long as it lives.
 *
 *     launcher, first machine     ls_run_lease_open: lineshaft/RUN/leader, renewed by a thread
 *       |  LINESHAFT_RUN_LEASE    its name, in the environment of the ranks
 *       |                         and in what is sent to other machines (recover_cluster.h)
 *     first rank                  claims a generation, gets a commit token for each checkpoint
 *
 * A process that forked from it (an agent's supervisor) must not give the run back: so what is held
 * belongs to one pid. */
#include "launch/run_holder.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/log.h"
#include "base/time.h"
#include "cluster/node/launcher_env.h"
#include "cluster/elect/run_lease.h"
#include "launch/job_rank.h"
#include "launch/task_rendezvous.h"

enum { WAIT_S = 30 };

static struct {
    ls_run_lease *run_lease;
    char run[LS_RUN_LEASE_RUN];
    char text[LS_RUN_LEASE_ID + LS_RUN_LEASE_RUN];
    ls_str urls;
    pid_t pid; /* of the process that holds it, not of one that it forked */
} held;

void ls_run_holder_end(void)
{
    if (held.pid == getpid())
        ls_run_lease_close(held.run_lease);
    held.run_lease = NULL;
}

const char *ls_run_holder_lease(void)
{
    return held.pid == getpid() && held.run_lease ? held.text : NULL;
}

const char *ls_run_holder_etcd(void)
{
    return ls_run_holder_lease() ? held.urls.p : NULL;
}

static void on_lost(void *context LS_UNUSED, const char *why)
{
    ls_log(LS_LOG_ERROR, "%s: this one stops, and commits nothing any more", why);
    kill(getpid(), SIGTERM);
}

/* Whether this process is on the first machine of the job. */
static bool is_first(bool joins)
{
    const char *lab = getenv("LINESHAFT_LAB_NODE");
    ls_launcher_env env;

    if (joins || (lab && strcmp(lab, "0") != 0))
        return false;
    if (!ls_task_rendezvous_is_task())
        return true;
    return ls_launcher_env_find(&env) != LS_OK || env.rank <= 0;
}

ls_status ls_run_holder_run(const ls_run *run, bool joins)
{
    const ls_run_list *urls = &run->heal.etcd;
    ls_status st;

    if (run->heal.quorum != LS_HEAL_ETCD || ls_job_rank_here() || !is_first(joins))
        return LS_OK;
    ls_run_lease_run(run->name, run->out, held.run);
    LS_TRY(st,
           ls_run_lease_open(
               &held.run_lease,
               &(ls_run_lease_args){
                   .urls = urls->items, .n_urls = urls->count, .run = held.run, .lost = on_lost},
               ls_time_now_ns() + WAIT_S * LS_NS_PER_S),
           out);
    held.pid = getpid();
    atexit(ls_run_holder_end);
    ls_str_init(&held.urls);
    for (int i = 0; i < urls->count; i++)
        ls_str_printf(&held.urls, "%s%s", i ? " " : "", urls->items[i]);
    LS_TRY(st, ls_str_status(&held.urls), out);
    snprintf(held.text, sizeof held.text, "%s/%s", ls_run_lease_id(held.run_lease), held.run);
    if (setenv(LS_RUN_LEASE_VARIABLE, held.text, 1) != 0)
        st = ls_fail_sys(LS_ENOMEM, "cannot report the run in etcd to the ranks");
out:
    return st;
}
