/* replica_send.h -- a copy of what one rank alone updates, kept at another one while training goes on.
 *
 * Where ZeRO leaves a part of the state with one rank, its owner, another rank is its holder
 * (layout/replicas.h). Copies are there before the first step of a view; from then on the step calls
 *
 *   start     the sums of gradients are there: the own ones go to the holder, the owner's arrive
 *   wait      both have arrived, and the norm is known. Only then this rank sends its losses
 *   prepare   LAMB and Muon: what the last update started from (replica_repeat.c)
 *   update    own pieces are updated; the same for the copy, from the same numbers: the same bits
 *
 * So a rank that has received the losses of all ranks knows that two ranks can make the update of
 * every part. Nothing happens in a step that has no copies. */
#pragma once
#include "train/step/step.h"

LS_C_BEGIN

/* When the step knows what it updates, before its state is there; memory for copies of a whole
 * model is what ls_memory_copy_bytes() says. And its end. */
ls_status ls_replica_send_open(ls_step *step);
void ls_replica_send_close(ls_step *step);

/* The step holds the state after `done` steps: send copies of it to all holders. By all ranks. When
 * it succeeds, every rank has the copy that it holds. */
ls_status ls_replica_send_begin(ls_step *step, int64_t done);

/* By the step, in this order. */
ls_status ls_replica_send_start(ls_step *step);
ls_status ls_replica_send_wait(ls_step *step);
ls_status ls_replica_send_prepare(ls_step *step);
void ls_replica_send_update(ls_step *step);

/* Bytes sent to the holder since the step was opened; step: NULL is allowed. */
int64_t ls_replica_send_bytes(const ls_step *step);

LS_C_END
