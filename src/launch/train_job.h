/* train_job.h -- a training run as ranks: how many, how they heal, and how a rank's session meets
 * the others. */
#pragma once
#include "config/run.h"
#include "launch/job.h"
#include "launch/job_rank.h"
#include "train/loop.h"

LS_C_BEGIN

/* Whether this process must start ranks instead of training itself. flags: the user has said how
 * many, or how machines meet. */
bool ls_train_job_is_needed(const ls_run *run, bool flags);

/* How many ranks the mesh of the run asks for on one machine. */
int ls_train_job_ranks(const ls_run *run);

/* Start this command's ranks and see them to their end. */
ls_status ls_train_job_run(const ls_run *run, ls_job_args *args, ls_agent_result *result_out);

/* In a process that trains: its place among the ranks, kept for the life of the session. */
typedef struct ls_train_job_rank {
    ls_job_rank rank;
    ls_comm *comm; /* owned; NULL: there are no other ranks */
    bool first;    /* this rank reports what the run does */
    /* Called when this rank becomes the first one: the standard output is the user's now. */
    void (*leads)(void *context);
    void *context;
} ls_train_job_rank;

/* Where this process is a rank: meet the others, and let the session meet them again after each
 * loss. session->run is set; at must outlive the session. */
ls_status ls_train_job_join(ls_train_job_rank *at, ls_session_args *session);

/* Close what join opened. st: how the session ended; when it failed, the ranks that wait for this
 * one learn it. */
void ls_train_job_leave(ls_train_job_rank *at, ls_status st);

LS_C_END
