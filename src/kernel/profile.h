/* profile.h -- where the time of some steps goes, row by row.
 *
 * A profile stands between a model and its kernels: its table has the same rows, each of which
 * notes when the real one began and ended. Code that runs steps uses that table instead of the real
 * one, marks when a step begins and ends, and names each part of a step (a lap) after it. Between
 * steps nothing is noted. What was noted becomes a trace for Perfetto or chrome://tracing, and a
 * table by row.
 *
 * Everything is allocated on opening. A trace that is full drops what comes later, counts it and
 * says so; the table stays complete on a device that works at once. On one that works later (a GPU)
 * rows are timed by events of the device, read when a step has ended, which the caller must have
 * waited for; rows replayed from a recorded graph are not seen. There the kernels inside the rows
 * can be noted too (device/cupti.h); where that cannot be, the table says why and has all the rest.
 * One thread; the workers of the device's pool note their own times. */
#pragma once
#include "base/str.h"
#include "kernel/row_cost.h"

LS_C_BEGIN

typedef struct ls_profile ls_profile;

enum { LS_PROFILE_PHASES = 9 };

typedef struct ls_profile_args {
    ls_stream *stream;             /* whose rows are noted; borrowed until closed */
    const ls_kernels *kernels;     /* what does the work; borrowed for ever */
    const char *const *phases;     /* names of the parts of a step; borrowed for ever */
    int n_phases;                  /* at most LS_PROFILE_PHASES */
    uint32_t aside;                /* bit i: phase i happens now and then and is not in the table */
    int64_t updated;               /* elements that adamw changes, for ls_cost_of() */
    int64_t room;                  /* rows and laps that the trace can hold */
    double peak_flops, peak_bytes; /* per second, measured; 0: not known */
    double peak_held;              /* operations per second for a while; 0: not known */
    bool inside;                   /* on a GPU: note the kernels inside of rows */
} ls_profile_args;

ls_status ls_profile_open(ls_profile **profile_out, const ls_profile_args *args);
void ls_profile_close(ls_profile *profile); /* NULL is allowed; before its stream is freed */

/* The table to use instead of args.kernels, on args.stream only. Name and scratch are the same. */
const ls_kernels *ls_profile_kernels(const ls_profile *profile);

/* Step `number` begins. Then laps, in order and without gaps, from its begin to its end; then the
 * end. Laps outside of a step are ignored. LS_EFAIL when a device has no clock for it. */
void ls_profile_begin(ls_profile *profile, int64_t number, int64_t begin_ns);
void ls_profile_lap(ls_profile *profile, int phase, int64_t begin_ns, int64_t end_ns);
ls_status ls_profile_end(ls_profile *profile, int64_t end_ns);

/* No step will follow: what the device records for the profile ends. What was noted stays. */
void ls_profile_stop(ls_profile *profile);

/* Peaks measured once more: the larger ones count, because a neighbour on the machine only ever
 * makes a measurement smaller. */
void ls_profile_raise_peaks(ls_profile *profile, double flops, double bytes);

/* One row of the table: all its calls in the phases that count. */
typedef struct ls_profile_row {
    ls_row row;
    double calls, ms;  /* per step */
    double share;      /* of a step, 0 to 1 */
    double rate;       /* operations or bytes per second, see ls_cost_in_flops() */
    double peak_share; /* of the measured peak; above 1: from a cache. 0: not known */
} ls_profile_row;

typedef struct ls_profile_figures {
    int64_t steps, first, last;   /* how many, and their numbers */
    double step_ms;               /* of one step, without what is aside */
    double aside_ms;              /* of all steps together */
    ls_profile_row rows[LS_ROWS]; /* slowest first; only rows that were called */
    int n_rows;
    double none_ms, none_share;   /* of one step, in no row; with the rows it sums to the step */
    double busy_mean, busy_least; /* of a worker in the time of rows, 0 to 1; 0: not known */
    int64_t dropped;              /* rows and laps that the trace does not hold */
} ls_profile_figures;

/* All zero before the first step has ended. */
void ls_profile_sum(const ls_profile *profile, ls_profile_figures *figures_out);

/* One kernel inside of a row, or of none (copies, for example), over all calls that count. */
typedef struct ls_profile_kernel {
    int row;           /* LS_ROWS: in no row */
    const char *name;  /* borrowed from the profile */
    double calls, ms;  /* per step */
    double share;      /* of a step, 0 to 1 */
    double rate;       /* as in ls_profile_row; see below. Of copies, bytes. 0: not known */
    double peak_share; /* of the measured peak; 0: not known */
} ls_profile_kernel;

enum { LS_PROFILE_KERNELS = 192 };

/* The kernels inside of rows, slowest first; how many there are. What a call must compute or move
 * is counted for the longest of its kernels, and a kernel that never is has no rate. */
int ls_profile_inside(const ls_profile *profile, ls_profile_kernel kernels_out[LS_PROFILE_KERNELS]);

/* What was noted, appended: for people, as JSON, as a trace in the Chrome trace event format. The
 * string reports when memory runs out. */
void ls_profile_table(const ls_profile *profile, ls_str *text_out);
void ls_profile_json(const ls_profile *profile, ls_str *text_out);
void ls_profile_trace(ls_profile *profile, ls_str *text_out);

LS_C_END
