/* job_flags.h -- the flags that say how many ranks a command has, and on which machines. */
#pragma once
#include "cli/command.h"
#include "launch/job.h"

/* For the table of a command whose ranks are this program again (launch/job.h). */
#define LS_JOB_FLAGS                                                                           \
    {"ranks", 'n', "N", false, "Processes to start on this machine."},                         \
        {"nodes", 0, "N", false,                                                               \
         "On the first of several machines: how many take part; 2 unless given."},             \
        {"listen", 0, "ADDRESS:PORT", false, "On the first machine: where the others join."},  \
        {"join", 0, "ADDRESS:PORT", false, "On the other machines: the first one's address."}, \
        {"secret", 0, "FILE", false,                                                           \
         "With several machines: a file of 32 random bytes that all of them have, and nobody " \
         "else."},                                                                             \
    {                                                                                          \
        "wait", 0, "SECONDS", false,                                                           \
            "How long machines wait for each other at the start; 300 unless given."            \
    }

/* From --ranks (ranks, when it was not given), --nodes, --listen, --join, --secret, --wait and
 * --quiet. */
ls_status ls_job_flags_read(const ls_args *args, int ranks, ls_job_args *job_out);

/* The part of the above that says how machines meet. */
ls_status ls_job_flags_nodes(const ls_args *args, ls_launch_nodes *nodes_out);

/* From --ranks, --log-dir and --grace, for a command that runs any program. */
ls_status ls_job_flags_agent(const ls_args *args, int64_t ranks, ls_agent_args *agent);

/* Tell the user something that is no error, on standard error: `notice` of ls_launch_nodes. */
void ls_job_flags_notice(const char *text);
