/* clock.h -- where a step's time goes; the parts sum to the wall time because every nanosecond is
 * given to exactly one of them. */
#pragma once
#include "base/time.h"

LS_C_BEGIN

typedef enum ls_part {
    LS_PART_DATA, /* waiting for the batch, copying it in */
    LS_PART_FORWARD,
    LS_PART_BACKWARD,
    LS_PART_REDUCE,     /* summing gradients over calls */
    LS_PART_EXCHANGE,   /* with other ranks, as far as it is waited for */
    LS_PART_OPTIMIZER,  /* norm, clipping, update */
    LS_PART_EVAL,       /* validation and text samples */
    LS_PART_CHECKPOINT, /* copying the state, waiting for the writer */
    LS_PART_OTHER,      /* events, bookkeeping */
    LS_PARTS
} ls_part;

extern const char *const ls_part_names[LS_PARTS];

struct ls_profile;
typedef struct ls_clock {
    int64_t begun_ns, mark_ns;
    int64_t parts_ns[LS_PARTS];
    struct ls_profile *profile; /* is told of every lap of this step; NULL: none */
} ls_clock;

void ls_clock_begin(ls_clock *clock);             /* a new step begins now */
void ls_clock_lap(ls_clock *clock, ls_part part); /* the time since the last call was for part */
int64_t ls_clock_wall_ns(const ls_clock *clock);  /* from begin to the last lap: the sum of parts */

LS_C_END
