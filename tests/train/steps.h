/* steps.h -- what tests of steps on several ranks share: first weights, a step, and what a
 * line holds. */
#pragma once
#include "train/line_impl.h"

/* The weights that every mesh begins with. */
void ls_steps_start(ls_step *step, const ls_model *model);

/* Step `number` with these tokens, each the target of the one before it; it must be finite. */
ls_step_result ls_steps_run(ls_step *step, int64_t number, const int32_t *tokens, double lr);

/* Bytes of the windows of a line. Pages of a window are taken when they are touched. */
int64_t held_by(const ls_line *line);
