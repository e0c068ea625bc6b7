/* pipeline.h -- what the rest of train/ asks a step that is a stage of a pipeline (mesh.pp).
 *
 * The ranks that pass micro-batches on to each other are one pipeline; each has some layers, in one
 * or several chunks. Weights, moments and gradients lie in windows (base/window.h) with the indices
 * of the whole model, of which only the own pages have memory. Every function is called by all
 * ranks of the run, at the same place. What a step does with a pipeline is a row of step_mode.h
 * (pipeline.c). */
#pragma once
#include "plan/pipeline_memory.h"
#include "train/step/step_impl.h"

LS_C_BEGIN

typedef struct ls_pipeline ls_pipeline;

/* The plan of this rank: its stage, its chunks, the schedule; NULL: there is no pipeline. */
const ls_stage_plan *ls_pipeline_plan(const ls_step *step);

/* Parts of the gradient that a rank of this stage updates, and those of the given pipeline's
 * rank. */
int ls_pipeline_owns(const ls_step *step);
ls_mesh_part ls_pipeline_updated(const ls_step *step, int pipeline, int i);

/* An array of the state (weights, or a moment) as a whole to the first rank (`whole` is NULL
 * elsewhere). */
ls_status ls_pipeline_collect(ls_step *step, const float *array, float *whole);

/* Each rank has read what it would write: the rest of what it keeps of an array, from the
 * others. */
ls_status ls_pipeline_complete(ls_step *step, float *array);

LS_C_END
