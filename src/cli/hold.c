/* hold.c -- see hold.h. */
#include "cli/hold.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
#include "base/log.h"
#include "base/time.h"
#include "cli/job.h"
#include "cluster/places.h"
#include "cluster/tenure.h"

enum { WAIT_S = 30 };

static struct {
    ls_tenure *tenure;
    char run[LS_TENURE_RUN];
    char text[LS_TENURE_ID + LS_TENURE_RUN];
    ls_str urls;
    pid_t pid; /* of the process that holds it, not of one that it forked */
} held;

void ls_hold_end(void)
{
    if (held.pid == getpid())
        ls_tenure_close(held.tenure);
    held.tenure = NULL;
}

const char *ls_hold_tenure(void)
{
    return held.pid == getpid() && held.tenure ? held.text : NULL;
}

const char *ls_hold_etcd(void)
{
    return ls_hold_tenure() ? held.urls.p : NULL;
}

static void on_lost(void *context, const char *why)
{
    (void)context;
    ls_log(LS_LOG_ERROR, "%s: this one stops, and commits nothing any more", why);
    kill(getpid(), SIGTERM);
}

/* Whether this process is on the first machine of the job. */
static bool is_first(const ls_args *args)
{
    const char *lab = getenv("LINESHAFT_LAB_NODE");
    ls_places places;

    if (ls_args_has(args, "join") || (lab && strcmp(lab, "0") != 0))
        return false;
    if (!ls_job_is_task())
        return true;
    return ls_places_find_outer(&places) != LS_OK || places.rank <= 0;
}

ls_status ls_hold_run(const ls_args *args, const ls_run *run)
{
    const ls_run_list *urls = &run->heal.etcd;
    ls_status st;

    if (run->heal.quorum != LS_HEAL_ETCD || ls_job_is_rank() || !is_first(args))
        return LS_OK;
    ls_tenure_run(run->name, run->out, held.run);
    LS_TRY(st,
           ls_tenure_open(
               &held.tenure,
               &(ls_tenure_args){
                   .urls = urls->items, .n_urls = urls->count, .run = held.run, .lost = on_lost},
               ls_time_now_ns() + WAIT_S * LS_NS_PER_S),
           out);
    held.pid = getpid();
    atexit(ls_hold_end);
    ls_str_init(&held.urls);
    for (int i = 0; i < urls->count; i++)
        ls_str_printf(&held.urls, "%s%s", i ? " " : "", urls->items[i]);
    LS_TRY(st, ls_str_status(&held.urls), out);
    snprintf(held.text, sizeof held.text, "%s/%s", ls_tenure_id(held.tenure), held.run);
    if (setenv(LS_TENURE_VARIABLE, held.text, 1) != 0)
        st = ls_fail_sys(LS_ENOMEM, "cannot tell the ranks of the run in etcd");
out:
    return st;
}
