/* worlds.h -- ranks on one or several pretended nodes of this machine, for tests of communicators.
 *
 * A world is written as the number of ranks of each node: "3", "1+1", "2+2". Members of one node
 * share a shared-memory segment; between nodes they use TCP on the loopback. */
#pragma once
#include "comm/comm.h"
#include "harness.h"

enum { LS_WORLD_RANKS = 16 };

typedef struct ls_world {
    int ranks, nodes;
    uint64_t generation;
    ls_comm_member members[LS_WORLD_RANKS];
    int segment_fd[LS_WORLD_RANKS]; /* of each node; -1: it has one rank only */
    int listen_fd[LS_WORLD_RANKS];  /* of each rank; -1: one node */
    uint8_t secret[LS_COMM_SECRET_BYTES];
    int pids[LS_WORLD_RANKS]; /* 0: not started, or ended */
    void *context;            /* of the test; shared when ranks are threads */
} ls_world;

typedef void (*ls_world_body)(ls_world *world, ls_comm *comm);
typedef void (*ls_world_rank)(ls_world *world, int rank);

void ls_world_init(ls_world *world, const char *shape, void *context);

/* Closes what is open, kills and reaps who still runs. */
void ls_world_release(ls_world *world);

/* What this rank opens with. */
ls_comm_args ls_world_args(const ls_world *world, int rank);

/* Run body on all ranks, each with an open communicator, as processes or as threads of this one;
 * the test fails when one of them does. */
void ls_world_run(const char *shape, void *context, ls_world_body body);
void ls_world_run_threads(const char *shape, void *context, ls_world_body body);

/* Bytes that this rank's node has sent to others so far, when all ranks have come here. */
int64_t ls_world_sent(ls_comm *comm);

/* Start one rank as a process that opens nothing by itself. */
void ls_world_fork(ls_world *world, int rank, ls_world_rank body);

/* All have been started: their sockets and boards belong to them alone. */
void ls_world_forked(ls_world *world);

/* Until a process has ended, well (status 0) or by this signal. */
void ls_world_join(ls_world *world, int rank, int signal);
