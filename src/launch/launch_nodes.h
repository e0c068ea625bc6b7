/* launch_nodes.h -- a job of several nodes, as one of them runs it: meet the others, run the ranks
 * of this node, end with all others.
 *
 *     flags, a lab, or a launcher's tasks --> ls_launch_nodes
 *     ls_launch_nodes_run:  rendezvous -> [told] -> all are here -> [met] -> agent runs -> end
 *
 * In brackets: calls to the caller, which knows what the ranks inherit (job.c). */
#pragma once
#include "cluster/recover/recover_cluster.h"
#include "cluster/member/job_spec.h"
#include "cluster/member/members.h"
#include "cluster/node/agent.h"

LS_C_BEGIN

/* How this node meets the others of a job. */
typedef struct ls_launch_nodes {
    const char *listen; /* one of these two, or none: this node is the whole job */
    const char *join;   /* an address, or several with commas in between; then, which answered */
    const char *secret; /* a file, */
    int secret_fd;      /* or an inherited descriptor; -1: none */
    int64_t nodes, wait_s;
    bool quiet;                       /* no notice of where this node listens */
    void (*notice)(const char *text); /* for the user; NULL: none */
    const char *launcher;  /* that started this and the other nodes as tasks; NULL: none */
    const uint16_t *ports; /* where the ranks listen; NULL: nowhere */
    /* The first node listens at this address, and waits for the others. NULL: nothing. */
    ls_status (*listening)(void *context, const char *address);
    /* An agent: the first node has sent what to run. Sets command and workers of the job, and
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
    const ls_recover_cluster_args *heal; /* the ranks heal, borrowed; NULL: the first failure ends
                                          * the job */
    ls_recover_cluster *recover_cluster; /* then: set before met() is called */
    bool dropped;                        /* afterwards: see ls_rendezvous_was_dropped() */
    char join_list[2048]; /* and where else to look for the job (recover_cluster.h) */
    char at[160];         /* the address of `join` that answered */
} ls_launch_nodes;

/* Meet, run the ranks of this node, and end with all others. */
ls_status ls_launch_nodes_run(ls_launch_nodes *nodes, ls_agent_args *job, ls_agent_result *result);

LS_C_END
