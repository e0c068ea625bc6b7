/* profile_impl.h -- what a profile holds; for its own files only. */
#pragma once
#include "kernel/profile.h"

typedef enum ls_profile_kind { /* in the order in which they enclose each other */
                               LS_PROFILE_STEP,
                               LS_PROFILE_LAP,
                               LS_PROFILE_CALL
} ls_profile_kind;

/* A span of time: a step, a lap or a call of a row. */
typedef struct ls_profile_span {
    int64_t begin_ns, end_ns;
    ls_profile_kind kind;
    int row;                    /* of a call */
    int phase;                  /* of a lap, or the one that the call was in */
    int64_t step;               /* its number */
    int64_t dims[LS_COST_DIMS]; /* of a call, as the next */
    double work;                /* operations or bytes */
    int events;                 /* on a device that works later: first of its two; else -1 */
} ls_profile_span;

typedef struct ls_profile_total {
    int64_t calls, ns;
    double work;
} ls_profile_total;

/* One run of the pool as a worker saw it. */
typedef struct ls_profile_busy {
    int64_t begin_ns, end_ns, tasks;
} ls_profile_busy;

/* Written by its worker alone during a run of the pool, read by the caller between runs. */
typedef struct ls_profile_worker {
    _Alignas(64) ls_profile_busy *spans; /* owned by the profile */
    int64_t n, room;
    int64_t dropped, busy_ns;
} ls_profile_worker;

struct ls_profile {
    ls_profile_args args;
    ls_kernels table;
    ls_device_info device;
    bool later;  /* the device works later: rows are timed by its events */
    bool active; /* inside of a step */

    ls_profile_span *spans; /* owned, args.room of them */
    int64_t n, dropped;
    int64_t step_first, lap_first; /* first span of this step, of this lap */
    int64_t number, begin_ns;      /* of this step */

    ls_profile_total lap[LS_ROWS]; /* of this lap: what it was is told at its end */
    ls_profile_total totals[LS_PROFILE_PHASES][LS_ROWS];
    int64_t phase_ns[LS_PROFILE_PHASES];
    int64_t steps, first, last, wall_ns;

    ls_event *anchor;  /* owned; recorded when the step began */
    ls_event **events; /* owned, two per row of a step */
    int n_events, used_events;

    ls_pool *pool;              /* borrowed; NULL on a GPU */
    void *worker_memory;        /* owned */
    ls_profile_worker *workers; /* one per thread of the pool, in worker_memory */
    ls_profile_busy *busy;      /* owned, what all workers share */
    int n_workers;
};
