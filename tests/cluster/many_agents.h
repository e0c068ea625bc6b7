/* many_agents.h -- many agents at one coordinator, with the code that jobs use: rendezvous, cluster recovery,
 * coordinator and heal on the coordinator's side, which is the calling process; rendezvous, words and
 * roster on the side of the agents, of which a few processes play thousands over loopback. For a
 * test and for bench/agents.c.
 *
 * What is not played: workers (each agent reports for one that is not there), and the list of
 * members that an agent makes of a view for its workers: that is each machine's own work, and all
 * of it on one machine would be the only thing measured. */
#pragma once
#include "base/err.h"

typedef struct many_agents_args {
    int agents, processes;
    bool silent;   /* the agent that is lost stops to answer, instead of hanging up */
    bool failover; /* of the coordinator; with more than can vote there is none */
    int64_t heartbeat_ns, suspect_ns, dead_ns;
    int64_t wait_ns; /* for everything */
} many_agents_args;

typedef struct many_agents_result {
    double join_s;       /* until all agents have joined and have the list of members */
    double first_view_s; /* from then until all have the first view */
    double change_s;     /* from the loss of one until all others have the next view */
    double cpu_s;        /* of the coordinator, in all */
    double change_cpu_s; /* and for the change */
    double peak_mb;      /* memory of its process at most, */
    double before_mb;    /* and before anybody came */
    uint64_t joined_bytes,
        changed_bytes; /* sent by the coordinator until the first view, after it */
} many_agents_result;

/* LS_EDEADLINE, or what went wrong on either side. */
ls_status many_agents_run(const many_agents_args *args, many_agents_result *result_out);
