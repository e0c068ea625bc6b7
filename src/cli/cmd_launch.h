/* cmd_launch.h -- what `launch` shares with other commands that start workers. */
#pragma once
#include "cli/command.h"
#include "cluster/node/agent.h"
#include "cluster/elect/recover_cluster.h"
#include "cluster/member/members.h"
#include "cluster/member/job_spec.h"

/* Show how a job ended: the first cause, the last lines of who it was, and the others in one line.
 * Then end this process with the job's exit code, or return LS_OK when all went well. */
ls_status ls_launch_end(const ls_agent_result *result, const ls_args *args);

/* A flag that holds a whole number; fallback when it was not given. LS_EUSAGE otherwise. */
ls_status ls_launch_number(const ls_args *args, const char *flag, int64_t fallback, int64_t least,
                           int64_t most, int64_t *number_out);

/* How this machine meets the others of a job. */
typedef struct ls_launch_nodes {
    const char *listen; /* one of these two, or none: this machine is alone */
    const char *join;   /* an address, or several with commas in between; then, who answered */
    const char *secret; /* a file, */
    int secret_fd;      /* or an inherited descriptor; -1: none */
    int64_t nodes, wait_s;
    bool quiet;
    const char *launcher;  /* that started this and the other nodes as tasks; NULL: none */
    const uint16_t *ports; /* where the ranks listen; NULL: nowhere */
    /* The first machine listens at this address, and waits for the others. NULL: nothing. */
    ls_status (*listening)(void *context, const char *address);
    /* An agent: the first machine has said what to run. Sets command and workers of the job, and
     * what follows here. NULL: the job is known. */
    ls_status (*told)(void *context, const ls_job_spec *work, int64_t deadline_ns,
                      ls_agent_args *job);
    /* When all are known, before ranks are started: may add to what they inherit. NULL: nothing.
     * node: this one. */
    ls_status (*met)(void *context, const ls_members *members, int node, const uint8_t *secret,
                     ls_agent_args *job);
    /* The ranks run, and have what they inherit. NULL: nothing. */
    void (*started)(void *context);
    void *context;
    const ls_recover_cluster_args
        *heal; /* the ranks heal, borrowed; NULL: the first failure ends the job */
    ls_recover_cluster *recover_cluster; /* then: set before met() is called */
    bool dropped;                        /* afterwards: see ls_rendezvous_was_dropped() */
    char refuges[2048]; /* and where else to look for the job (recover_cluster.h) */
    char at[160];       /* the address of `join` that answered */
} ls_launch_nodes;

/* From the flags --nodes, --listen, --join, --secret, --wait, --quiet. */
ls_status ls_launch_find_nodes(const ls_args *args, ls_launch_nodes *nodes);

/* Meet, run the ranks of this machine, and end with all others. */
ls_status ls_launch_run_nodes(ls_launch_nodes *nodes, ls_agent_args *job, ls_agent_result *result);

/* How many ranks, the folder of logs and the grace time, from --ranks, --log-dir and --grace. */
ls_status ls_launch_find_job(const ls_args *args, int64_t fallback_ranks, ls_agent_args *job);
