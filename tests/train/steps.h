/* steps.h -- what tests of steps on several ranks share: first weights, a step, what a pipeline
 * stage holds, and what the windows of a step do. */
#pragma once
#include "train/step/pipeline_impl.h"

/* The weights that every mesh begins with. */
void ls_steps_start(ls_step *step, const ls_model *model);

/* Step `number` with these tokens, each the target of the one before it; it must be finite. */
ls_step_result ls_steps_run(ls_step *step, int64_t number, const int32_t *tokens, double lr);

/* Bytes of the windows of a pipeline stage. Pages of a window are taken when they are touched. */
int64_t held_by(const ls_pipeline *pipeline);

/* The kernels that the machine has; each product also looks at the windows of the step that is
 * watched. */
ls_kernels ls_steps_kernels(void);

/* From now on this one, from zero; NULL: none. And the most bytes that its windows held. */
void ls_steps_watch(const ls_step *step);
int64_t ls_steps_most_weights(void);
int64_t ls_steps_most_gradients(void);
