/* ramp.h -- how many sequences each step of a run has.
 *
 * Without a ramp every step has batch.sequences. With one (batch.ramp steps long) the batch grows
 * in a straight line from batch.ramp_from to batch.sequences, a leaf at a time; samples are used
 * one after the other all the same, so a step begins at the sample where the one before it ended.
 * Pure arithmetic, so that a resumed run, any rank and the planner know it without asking.
 * Example: ramp_from 4, sequences 12, leaf 4, ramp 5: steps have 4 4 4 8 8, then 12 sequences; step
 * 5 begins at sample 28. */
#pragma once
#include "config/run.h"

LS_C_BEGIN

/* Sequences of step number `step` (from 0). */
int64_t ls_ramp_sequences(const ls_run *run, int64_t step);

/* Samples that the first `steps` steps use: where the next one begins. */
int64_t ls_ramp_samples(const ls_run *run, int64_t steps);

/* Steps after which at least this many samples are used. */
int64_t ls_ramp_steps(const ls_run *run, int64_t samples);

/* Whether this many steps use more samples than can be counted. */
bool ls_ramp_overflows(const ls_run *run, int64_t steps);

LS_C_END
