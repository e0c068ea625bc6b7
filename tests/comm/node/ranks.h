/* ranks.h -- several ranks on a shared-memory segment of their own, as processes or as threads, for
 * tests of comm. */
#pragma once
#include "comm/node/shm_coll.h"
#include "comm/node/flight_recorder.h"
#include "comm/node/death_watch.h"
#include "harness.h"

typedef struct ls_ranks {
    ls_shm_segment *segment;
    int fd, me, ranks;
    ls_group group;
    ls_shm_coll *direct; /* NULL when the test asked for none */
    void *context;       /* of the test; shared when ranks are threads */
} ls_ranks;

typedef struct ls_ranks_args {
    int ranks;
    bool threads;  /* ranks are threads of this process, on one view of the shared-memory segment */
    bool no_reads; /* memory of other processes cannot be read */
    bool no_direct;
    _Atomic int *gate; /* shared; ranks of ls_ranks_start() join when it is not 0 any more */
    void *context;
} ls_ranks_args;

typedef void (*ls_ranks_body)(ls_ranks *rank);

/* Run body on all ranks at the same time; the test fails when one of them does. */
void ls_ranks_run(const ls_ranks_args *args, ls_ranks_body body);

/* For tests that end some ranks themselves: start them as processes, and wait for all. */
void ls_ranks_start(const ls_ranks_args *args, int fd, ls_ranks_body body, int *pids_out);
void ls_ranks_make(const ls_ranks_args *args, int *fd_out);

/* A deadline this many milliseconds from now, for what shall not come in time. What shall come gets
 * ls_test_soon(). */
int64_t ls_ranks_in_ms(int64_t ms);

/* Memory of a rank: in the shared heap, or its own. Freed by ls_ranks_free(). */
void *ls_ranks_alloc(ls_ranks *rank, bool shared, int64_t bytes);
void ls_ranks_free(ls_ranks *rank, bool shared, void *memory);

/* Zeroed memory that this process shares with children that it makes later. */
void *ls_ranks_shared(int64_t bytes);
