/* step_clock.h -- where a step's time goes. The parts sum to the wall time, because every
 * nanosecond counts for exactly one of them. */
#pragma once
#include "base/time.h"

LS_C_BEGIN

typedef enum ls_step_time {
    LS_TIME_DATA, /* waiting for the batch, copying it in */
    LS_TIME_FORWARD,
    LS_TIME_BACKWARD,
    LS_TIME_REDUCE,     /* summing gradients over calls */
    LS_TIME_EXCHANGE,   /* with other ranks, as far as it is waited for */
    LS_TIME_OPTIMIZER,  /* norm, clipping, update */
    LS_TIME_EVAL,       /* validation and text samples */
    LS_TIME_CHECKPOINT, /* copying the state, waiting for the writer */
    LS_TIME_OTHER,      /* events, bookkeeping */
    LS_STEP_TIMES
} ls_step_time;

extern const char *const ls_step_time_names[LS_STEP_TIMES];

struct ls_profile;
typedef struct ls_step_clock {
    int64_t begun_ns, mark_ns;
    int64_t parts_ns[LS_STEP_TIMES];
    struct ls_profile *profile; /* records every lap of this step; NULL: none */
} ls_step_clock;

void ls_step_clock_begin(ls_step_clock *clock); /* a new step begins now */
void ls_step_clock_lap(ls_step_clock *clock,
                       ls_step_time part); /* the time since the last call was for part */
int64_t ls_step_clock_wall_ns(
    const ls_step_clock *clock); /* from begin to the last lap: the sum of parts */

LS_C_END
