/* restart.h -- a job of one node whose ranks cannot replace each other: when one fails, all are
 * started again. */
#pragma once
#include "cluster/node/agent.h"

LS_C_BEGIN

/* Run the job, and run it again when it fails, at most this often. Each attempt finds its number in
 * LINESHAFT_RESTARTS and TORCHELASTIC_RESTART_COUNT, and the most that there can be in
 * TORCHELASTIC_MAX_RESTARTS. The same exit code with the same last line twice in a row ends the job
 * with the exit code of LS_ENORETRY, unless a signal from outside was the cause. */
ls_status ls_restart_run(ls_agent_args *job, int64_t restarts, ls_agent_result *result);

LS_C_END
