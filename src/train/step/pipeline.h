/* pipeline.h -- a step of a rank that has a part of the layers (mesh.pp): a pipeline at work.
 *
 * A line is the ranks that pass micro-batches on to each other; this is what one of them holds and
 * does. step.c, step_update.c and the others ask for `step->line`, and leave to it what a rank with a
 * whole model does otherwise. Weights, moments and gradients lie in windows (base/window.h) with
 * the indices of the whole model, and only the own pages are there. Every call is made by all ranks
 * of the run, at the same place. */
#pragma once
#include "plan/pipeline_memory.h"
#include "train/step/step_impl.h"

LS_C_BEGIN

typedef struct ls_pipeline ls_pipeline;

/* The window of an array of the state that begins there. */
static inline ls_window ls_pipeline_window(const ls_model *model, void *base)
{
    return (ls_window){.base = (char *)base,
                       .bytes = ls_round_up(model->flat * (int64_t)sizeof(float), LS_WINDOW_PAGE)};
}

/* Where the mesh of the step has lines: step->line, and the state. Otherwise nothing. */
ls_status ls_pipeline_open(ls_step *step);
void ls_pipeline_close(ls_step *step);

/* As ls_step_keep(). */
void ls_pipeline_keep(ls_step *step, void *kept_out[3]);

/* As ls_step_split(), when step->now is set. */
ls_status ls_pipeline_split(ls_step *step, const ls_ordered_run *runs);

/* The sum of the gradients of a step, of what this rank has. */
ls_status ls_pipeline_gradients(ls_step *step, ls_step_state *host_state, ls_step_clock *clock);

/* Forward through the whole line, quietly (ls_pass_loss); or, where the call wants to know what was
 * made, as in a step. */
ls_status ls_pipeline_forward(ls_step *step, const ls_pass_call *call);

/* Without a call, while others have one: this rank's experts serve them, or weights come that
 * lines divide. And calls of who has most, where all go through as many. */
void ls_pipeline_serve(ls_step *step);
int64_t ls_pipeline_rounds(const ls_step *step);

/* Whether losses are computed here: the head is. */
bool ls_pipeline_has_losses(const ls_step *step);

/* What this rank updates: of every chunk, or bucket of it (layout/stage_plan.h), one after the other, as
 * ls_step_own(); and where the gradient of its element `first` lies. */
int ls_pipeline_owns(const ls_step *step);
ls_mesh_part ls_pipeline_own(const ls_step *step, int i);
ls_mesh_part ls_pipeline_updated(const ls_step *step, int pipeline, int i); /* by another line */
float *ls_pipeline_gradient(const ls_step *step, int64_t first);

/* The norm of the whole gradient, whose numbers are in `whole`. */
ls_status ls_pipeline_norm(ls_step *step, const ls_norm2 *whole);

/* As ls_step_put(). */
void ls_pipeline_put(ls_step *step, int64_t first, int64_t count, const float *values);

/* The own weights have changed: those in 16 bits are made anew, and packs. */
void ls_pipeline_changed(ls_step *step);

/* After an update: the weights that others have updated. */
ls_status ls_pipeline_spread(ls_step *step);

/* An array of the state (weights, or a moment) as a whole to the first rank (`whole` is NULL
 * elsewhere), and back. */
ls_status ls_pipeline_collect(ls_step *step, const float *array, float *whole);
ls_status ls_pipeline_deal(ls_step *step, const float *whole, float *array);

/* What this rank has of the pipeline; NULL: there is none. */
const ls_stage_plan *ls_pipeline_plan(const ls_step *step);

/* Each rank has read what it would write: the rest of what it keeps, from the others. */
ls_status ls_pipeline_complete(ls_step *step, float *array);

/* Bytes that this rank has sent along its line in steps, as ls_stage_plan_sent_bytes() counts. */
int64_t ls_pipeline_sent(const ls_step *step);

/* With ZeRO 2 and 3: bytes that it has sent to other lines, in steps as ls_stage_plan_across_bytes()
 * counts. */
int64_t ls_pipeline_across(const ls_step *step);

LS_C_END
