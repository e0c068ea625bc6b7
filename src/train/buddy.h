/* buddy.h -- a second copy of what a rank has alone, kept while training goes on.
 *
 * With ZeRO, and without twins (parallel/buddies.h), each rank also has the weights and moments of
 * its ward's parts. In every step:
 *
 *   send     the sums of gradients are there: the own parts to the buddy, the ward's from it
 *   await    both have come and the norm is known; only then this rank tells its loss
 *   vote     all losses were heard, so all have awaited: the step is one that no single death
 * undoes update   the own parts; then the same for the ward's, from the same numbers: the same bits
 *
 * LAMB and Muon need other ranks in the middle of an update, so theirs is made again: redo.h.
 *
 * Who dies after the vote is replaced from its buddy; who has not heard the vote has the gradient
 * and makes the update later (train/hoard.h). So nobody ever goes back. */
#pragma once
#include "train/step.h"

LS_C_BEGIN

typedef struct ls_buddy ls_buddy;

typedef struct ls_buddy_args {
    const ls_run *run; /* borrowed, as all of these */
    const ls_model *model;
    ls_device *device;
    ls_dp *dp;
} ls_buddy_args;

/* Memory for the copies: what ls_memory_buddy_bytes() says. */
ls_status ls_buddy_open(ls_buddy **buddy_out, const ls_buddy_args *args);
void ls_buddy_close(ls_buddy *buddy); /* NULL is allowed */

/* The state is there, of so many steps: copies of it to all buddies. By all ranks. When this
 * succeeds, every rank has its ward's. */
ls_status ls_buddy_begin(ls_buddy *buddy, const ls_step *step, int64_t done);

/* By the step, in this order; number: of the step that runs. NULL: there are no copies. */
ls_status ls_buddy_send(ls_buddy *buddy, const ls_step *step, int64_t number);
ls_status ls_buddy_await(ls_buddy *buddy);
void ls_buddy_vote(ls_buddy *buddy, const ls_step_result *result);
ls_status ls_buddy_prepare(ls_buddy *buddy, const ls_step *step); /* before the update */
void ls_buddy_update(ls_buddy *buddy, ls_step *step);

/* Bytes sent to the buddy since it was opened. */
int64_t ls_buddy_sent(const ls_buddy *buddy);

LS_C_END
