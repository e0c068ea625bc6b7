/* step.h -- one training step: leaves, the tree of their gradients, the norm, the update.
 *
 * The step owns the state of training on the device (weights, two moments, gradient buffers) and
 * the small buffers around it. It does not know where batches come from or what happens between
 * steps.
 *
 * In bf16 the weights exist twice: the fp32 ones that are trained and saved, and a rounded copy
 * that the model reads. The update writes both; who writes the weights from outside calls
 * ls_step_weights_changed().
 *
 * With other ranks (parallel/dp.h) a step runs the calls of its own leaves, sums gradients with the
 * others, and updates everything (zero 0) or its own parts, which the others then get (zero 1).
 * With zero 2 the sum is made for every call, and a rank keeps that of its own parts only; with
 * zero 3 also of the weights, and gets those of the others while it computes. */
#pragma once
#include "model/model.h"
#include "model/pass.h"
#include "parallel/dp.h"
#include "plan/calls.h"
#include "train/clock.h"

LS_C_BEGIN

typedef struct ls_step ls_step;

typedef struct ls_step_args {
    const ls_run *run; /* borrowed, as all of these */
    const ls_model *model;
    const ls_kernels *kernels;
    ls_stream *stream;
    ls_calls calls;
    ls_dp *dp;       /* NULL: alone */
    ls_packs *packs; /* of these weights, told of every change; NULL: none */
} ls_step_args;

/* What this rank has of the batch of a step, in host memory. */
typedef struct ls_step_batch {
    const int32_t *tokens, *targets; /* [sequences of the own leaves, T] */
    const int32_t *start;            /* likewise, or NULL */
    int64_t counted; /* targets of the whole batch that are not -1: the mean is over them; 0: all */
} ls_step_batch;

typedef struct ls_step_result {
    double loss;      /* mean over tokens, summed along the tree of leaves */
    double grad_norm; /* before clipping */
    double lr;
    bool finite; /* false: gradient or loss is not; the update was not made */
} ls_step_result;

ls_status ls_step_open(ls_step **step_out, const ls_step_args *args);
void ls_step_close(ls_step *step); /* NULL is allowed */

/* From the next step on the batch has so many leaves, shared by ranks like this; all ranks alike.
 * What was planned (ls_step_args.calls) must suffice for it. */
ls_status ls_step_split(ls_step *step, const ls_ordered_run *runs, int64_t leaves);

/* How long each rank computed in the last step, forward and backward of its own leaves, in
 * nanoseconds; the same numbers on every rank. */
const double *ls_step_work_ns(const ls_step *step);

/* Run step number `number` (from 0). Leaves the weights alone when the result is not finite. */
ls_status ls_step_run(ls_step *step, const ls_step_batch *batch, int64_t number, double lr,
                      ls_clock *clock, ls_step_result *result_out);

/* After step `number` (from 0, as it was run) was not finite: where NaN or Inf first appeared (a
 * weight, an output of the forward pass, a gradient), as an error (LS_ENUMERIC) that names it. The
 * message counts steps from 1, as events do. */
ls_status ls_step_blame(ls_step *step, int64_t number);

/* The sums of token losses of `sequences` windows (host memory, [sequences, T]), each for itself,
 * so that cutting the windows into calls changes no bit. No gradients. */
ls_status ls_step_loss(ls_step *step, const ls_step_batch *windows, int64_t sequences,
                       double *sums_out);

/* With zero 3 all ranks walk through the model together: a rank that has no windows while another
 * has some calls this instead. Otherwise nothing happens. */
void ls_step_idle(ls_step *step);

/* Elements first .. first+count-1 of the flat weights, from host memory; a rank takes what it
 * keeps. */
void ls_step_put(ls_step *step, int64_t first, int64_t count, const float *values);

/* Device pointers: weights (model->flat elements; with zero 3 those of the own parts) and the
 * optimizer's moments: of all trained parameters (model->trained), or with zero 1 to 3 of the own
 * parts, packed (parallel/mesh.h). */
typedef struct ls_step_arrays {
    float *w, *m, *v;
    const void *read; /* the weights as the pass reads them: w itself in fp32; not with zero 3 */
} ls_step_arrays;
/* What the loss of the next steps is multiplied by (train/scaler.h); 1 unless told. */
void ls_step_scale_loss(ls_step *step, double scale);

ls_step_arrays ls_step_state_arrays(const ls_step *step);
ls_pass *ls_step_pass(const ls_step *step);

/* Add these (model->trained elements, host memory, read before it returns) to the sum of gradients
 * of the next step, and only of that one. */
ls_status ls_step_owe(ls_step *step, const float *owed);

/* The weights were written from outside (start, import, resume): renew the copy that rows read. */
ls_status ls_step_weights_changed(ls_step *step);

LS_C_END
