/* replica_copy.h -- a second copy of what a rank has alone, kept while training goes on.
 *
 * With ZeRO, and without twins (layout/replica_peers.h), each rank also has the weights and moments of
 * its ward's parts. In every step:
 *
 *   send     the sums of gradients are there: the own parts to the buddy, the ward's from it
 *   await    both have come and the norm is known; only then this rank tells its loss
 *   vote     all losses were heard, so all have awaited: the step is one that no single death
 * undoes update   the own parts; then the same for the ward's, from the same numbers: the same bits
 *
 * LAMB and Muon need other ranks in the middle of an update, so theirs is made again: replica_redo.h.
 *
 * Who dies after the vote is replaced from its buddy; who has not heard the vote has the gradient
 * and makes the update later (train/replica/replica_zero.h). So nobody ever goes back. */
#pragma once
#include "train/step/step.h"

LS_C_BEGIN

typedef struct ls_replica_copy ls_replica_copy;

typedef struct ls_replica_copy_args {
    const ls_run *run; /* borrowed, as all of these */
    const ls_model *model;
    const ls_kernels *kernels;
    ls_stream *stream;
    ls_device *device;
    ls_dp *dp;
} ls_replica_copy_args;

/* Memory for the copies: what ls_memory_copy_bytes() says. */
ls_status ls_replica_copy_open(ls_replica_copy **buddy_out, const ls_replica_copy_args *args);
void ls_replica_copy_close(ls_replica_copy *buddy); /* NULL is allowed */

/* The state is there, of so many steps: copies of it to all buddies. By all ranks. When this
 * succeeds, every rank has its ward's. */
ls_status ls_replica_copy_begin(ls_replica_copy *buddy, const ls_step *step, int64_t done);

/* By the step, in this order; number: of the step that runs. NULL: there are no copies. */
ls_status ls_replica_copy_send(ls_replica_copy *buddy, const ls_step *step, int64_t number);
ls_status ls_replica_copy_await(ls_replica_copy *buddy);
void ls_replica_copy_vote(ls_replica_copy *buddy, const ls_step_result *result);
ls_status ls_replica_copy_prepare(ls_replica_copy *buddy,
                                  const ls_step *step); /* before the update */
void ls_replica_copy_update(ls_replica_copy *buddy, ls_step *step);

/* Bytes sent to the buddy since it was opened. */
int64_t ls_replica_copy_sent(const ls_replica_copy *buddy);

LS_C_END
