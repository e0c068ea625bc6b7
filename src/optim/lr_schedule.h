/* lr_schedule.h -- the learning rate of each step. */
#pragma once
#include "config/run.h"

LS_C_BEGIN

/* Step numbers count from 0. Warm-up rises linearly: step s has lr (s + 1) / warmup, so that step
 * warmup - 1 reaches lr; then
 *   constant  lr
 *   linear    straight down to min_lr at the last step
 *   cosine    half a cosine down to min_lr
 *   wsd       lr, then straight down to min_lr over the last `decay` steps
 * total is the planned number of steps; 0 (no limit on steps) keeps lr after the warm-up.
 * All of it is multiplied by ls_lr_schedule_factor(): how the rates of the run file, which were chosen
 * for a batch of train.lr_base_batch sequences, are carried over to the batch of this run. */
double ls_lr_schedule_factor(const ls_run *run);
double ls_lr_schedule_lr(const ls_run *run, int64_t step, int64_t total);

LS_C_END
