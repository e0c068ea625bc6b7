/* job.h -- a command of lineshaft as several ranks: started here, and joined by each rank.
 *
 * The process that the user started becomes the agent. It runs this program once more for each
 * rank, with the same command line; a rank finds its place, the node's shared memory, the list of
 * members, its listening socket and the secret in what it inherits. LINESHAFT_TRANSPORT in the
 * environment (auto, tcp, ucx) says what moves data between machines, LINESHAFT_ZEROCOPY (auto, on,
 * off) whether TCP sends large messages without a copy. */
#pragma once
#include "cli/cmd_launch.h"
#include "cluster/elect/recover_cluster.h"
#include "comm/comm.h"

/* The flags that say how many ranks there are, for the table of a command. */
#define LS_JOB_FLAGS                                                                              \
    {"ranks", 'n', "N", false, "Processes to start on this machine."},                            \
        {"nodes", 0, "N", false, "On the first of several machines: how many there are; 2."},     \
        {"listen", 0, "ADDRESS:PORT", false, "On the first machine: where the others join."},     \
        {"join", 0, "ADDRESS:PORT", false, "On the other machines: the first one's address."},    \
        {"secret", 0, "FILE", false,                                                              \
         "With several machines: 32 bytes that all of them have in this file, and nobody else."}, \
    {                                                                                             \
        "wait", 0, "SECONDS", false, "How long machines wait for each other at the start; 300."   \
    }

/* Whether this process is a rank that ls_job_run() started. */
bool ls_job_is_rank(void);

/* Whether srun, mpirun or torchrun started several of this process. Each becomes the agent of its
 * own ranks (task_rendezvous.h). */
bool ls_job_is_task(void);

/* In a rank: how many such tasks are on this machine; 1 where there are none. */
int ls_job_local_tasks(void);

/* And which of them has started this rank; 0 where there are none. */
int ls_job_local_task(void);

/* Run this command line as ranks, as many on this machine as the flags say, or `ranks`; who is
 * asked to stop has grace_s seconds for it (0: as launch gives). heal: for commands whose ranks
 * know how to meet again (ls_job_rejoin); NULL: a rank that dies ends the job. Returns when all
 * have ended well, else ends the process as launch does. Inside a lab the flags for several
 * machines may be left out. */
ls_status ls_job_run(const ls_args *args, int ranks, int64_t grace_s,
                     const ls_recover_cluster_args *heal);

/* In a rank: let the standard output be the user's, without the rank's number before each line. */
ls_status ls_job_take_output(void);

/* As an agent: run what the first machine of nodes->join says, a command of lineshaft or any
 * program. ranks 0: as many as there. Ends as ls_job_run() does. */
ls_status ls_job_run_agent(const ls_args *args, ls_launch_nodes *nodes, ls_agent_args *agent);

/* In a rank: meet the others. */
ls_status ls_job_join(ls_comm **comm_out, int64_t deadline_ns);

/* What a rank of a job that heals keeps from one view to the next. */
typedef struct ls_job_seat {
    int listen_fd; /* where ranks of other machines reach it in this view; -1: nowhere */
    ls_config_digest config_digest; /* no rows: nothing is compared */
} ls_job_seat;

/* In a rank of a job that heals (ls_heal_has_agent()), instead, and again whenever it has lost the
 * others: close comm, unless it is NULL, report, and meet those who are left. */
ls_status ls_job_rejoin(ls_job_seat *seat, const ls_view_report *report, ls_heal_view *view_out,
                        ls_comm **comm);
