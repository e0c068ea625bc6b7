/* job.h -- a command of lineshaft as several ranks.
 *
 * The process that the user started becomes the agent of its machine. It runs this program once
 * more for each rank, with the same command line; a rank finds what it needs in what it inherits
 * (job_rank.h). */
#pragma once
#include "cluster/recover/recover_cluster.h"
#include "comm/node_memory.h"
#include "launch/launch_nodes.h"

LS_C_BEGIN

typedef struct ls_job_args {
    int ranks;       /* to start on this machine: 1 .. LS_NODE_MEMORY_RANKS */
    int64_t grace_s; /* for ranks that are asked to stop; 0: as launch gives */
    /* For ranks that know how to meet again (ls_job_rank_rejoin()), borrowed; NULL: a rank that
     * dies ends the job. */
    const ls_recover_cluster_args *heal;
    ls_launch_nodes
        nodes; /* how machines meet, as the user says; the hooks are set by ls_job_run().
                            * In a lab, and in tasks of a launcher, it may say nothing */
} ls_job_args;

/* Run this process's command line as ranks. Returns when all have ended, well or not. */
ls_status ls_job_run(const ls_job_args *args, ls_agent_result *result_out);

/* As an agent: run what the first machine of nodes->join says, a command of lineshaft or any
 * program. agent->workers 0: as many ranks as there. A machine that the job lost and went on
 * without asks to join it again. */
ls_status ls_job_run_agent(ls_launch_nodes *nodes, const ls_agent_args *agent,
                           ls_agent_result *result_out);

LS_C_END
