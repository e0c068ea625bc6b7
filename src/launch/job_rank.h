/* job_rank.h -- what a rank of a job does with what its agent lets it inherit: find its place, meet
 * the other ranks, and meet them again after a death.
 *
 * LINESHAFT_CARRIER in the environment (auto, tcp, ucx) says what moves data between machines,
 * LINESHAFT_ZEROCOPY (auto, on, off) whether TCP sends large messages without a copy. */
#pragma once
#include "cluster/member/config_digest.h"
#include "cluster/member/worker_channel.h"
#include "comm/comm.h"

LS_C_BEGIN

/* Whether this process is a rank that ls_job_run() started. */
bool ls_job_rank_here(void);

/* The descriptor in a variable of the environment; -1: none. */
int ls_job_rank_inherited(const char *name);

/* How data moves between nodes, from the environment. LS_EUSAGE: a value that is unknown. */
typedef struct ls_job_rank_movement {
    const char *transport, *zerocopy;
} ls_job_rank_movement;
ls_status ls_job_rank_find_movement(ls_job_rank_movement *movement_out);

/* Let the standard output be the user's, without the rank's number before each line. */
ls_status ls_job_rank_take_output(void);

/* Meet the others, in a job where a death ends all. */
ls_status ls_job_rank_join(ls_comm **comm_out, int64_t deadline_ns);

/* What a rank of a job that heals keeps from one view to the next. */
typedef struct ls_job_rank {
    int listen_fd; /* where ranks of other machines reach it in this view; -1: nowhere */
    ls_config_digest config_digest; /* no rows: nothing is compared */
} ls_job_rank;

/* In a job that heals (ls_worker_channel_has_agent()), at the start and whenever the others are lost: close
 * comm, unless it is NULL, report to the agent, wait for a view, and meet its ranks. */
ls_status ls_job_rank_rejoin(ls_job_rank *rank, const ls_view_report *report,
                             ls_worker_channel_view *view_out, ls_comm **comm);

LS_C_END
