/* profile_impl.h -- what a profile holds; for its own files only. */
#pragma once
#include "base/json.h"
#include "device/cupti.h"
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

/* A kernel, copy or fill that the device did. */
typedef struct ls_profile_inner {
    int64_t begin_ns, end_ns, step;
    int row, phase; /* of the call that it belongs to; LS_ROWS and -1: of none */
    int name;       /* see ls_cupti_name() */
    double work;    /* counted for it: operations or bytes; 0: none */
} ls_profile_inner;

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

    ls_profile_total lap[LS_ROWS]; /* of this lap, whose phase is known at its end */
    ls_profile_total totals[LS_PROFILE_PHASES][LS_ROWS];
    int64_t phase_ns[LS_PROFILE_PHASES];
    int64_t steps, first, last, wall_ns;

    ls_event *anchor;  /* owned; recorded when the step began */
    ls_event **events; /* owned, two per row of a step */
    int n_events, used_events;

    ls_cupti *cupti;         /* owned; NULL: kernels inside of rows are not noted, */
    char no_cupti[160];      /* the reason; "": they were not asked for */
    ls_profile_inner *inner; /* owned, inner_room of them */
    int64_t n_inner, inner_room;
    int64_t inner_full, inner_dropped; /* had no room here; in all */

    ls_pool *pool;              /* borrowed; NULL on a GPU */
    void *worker_memory;        /* owned */
    ls_profile_worker *workers; /* one per thread of the pool, in worker_memory */
    ls_profile_busy *busy;      /* owned, what all workers share */
    int n_workers;
};

/* Whether a phase is part of a step. */
static inline bool ls_profile_counts(const ls_profile *p, int phase)
{
    return !(p->args.aside >> phase & 1);
}

/* What a row is held against; 0: not known. */
static inline double ls_profile_peak(const ls_profile *p, ls_row row)
{
    return ls_cost_in_flops(row) ? p->args.peak_flops : p->args.peak_bytes;
}

/* "640.1 TFLOP/s", "2.8 GB/s   ". */
void ls_profile_put_rate(double rate, bool flops, char text_out[32]);

/* profile_inside.c: opening, around a call, when a step has begun and ended. */
ls_status ls_profile_inside_open(ls_profile *p);
void ls_profile_inside_close(ls_profile *p);
void ls_profile_inside_end(ls_profile *p);

/* Below a row of the table its kernels; behind the table the slowest of all, or why there are none.
 * The same as JSON. */
void ls_profile_inside_row(const ls_profile_kernel *kernels, int n, int row, ls_str *out);
void ls_profile_inside_table(const ls_profile *p, const ls_profile_kernel *kernels, int n,
                             ls_str *out);
void ls_profile_inside_json(const ls_profile *p, const ls_profile_kernel *kernels, int n,
                            ls_json *j);
