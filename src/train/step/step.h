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
 * zero 3 also of the weights, and gets those of the others while it computes. With a pipeline
 * (mesh.pp) it has a part of the layers, and its calls go from rank to rank (train/step/pipeline.h).
 *
 * Where ranks have a model together (mesh.tp, mesh.ep: model_groups.c), dp is among those that have the
 * same part of it, and zero divides among them; weights, moments and gradients are those of this
 * part. Where ranks share
 * sequences (mesh.cp), a step computes its piece of each sequence that it gets, and calls count
 * pieces. */
#pragma once
#include "base/hash.h"
#include "model/model.h"
#include "model/pass.h"
#include "parallel/dp.h"
#include "parallel/mp_group.h"
#include "layout/calls.h"
#include "train/step/step_clock.h"

LS_C_BEGIN

typedef struct ls_step ls_step;

typedef struct ls_step_args {
    const ls_run *run; /* borrowed, as all of these */
    const ls_model *model;
    const ls_kernels *kernels;
    ls_stream *stream;
    ls_stream *side; /* for copies beside it, where ranks cannot reach the device's memory */
    ls_calls calls;
    ls_dp *dp;             /* NULL: alone, or alone with this part of the model */
    ls_mp_group *tp_group; /* mesh.tp: the ranks that have parts of tensors; NULL: they are whole */
    ls_mp_group *ep_group; /* mesh.ep: the ranks that divide experts; NULL: nobody does */
    ls_comm *mp_group;     /* with both: all that have the model together, by far ranks */
    ls_mp_group *
        cp_group; /* those that share sequences (train/session/cp_group.h); NULL: it has whole ones */
    ls_dp *batch_dp;          /* mesh.ep: who shares the batch; NULL: those of dp do */
    ls_packed_weights *packs; /* of these weights, told of every change; NULL: none */
    const char *offload_to;   /* device.offload: disk: the folder for the moments */
    void *const *kept;        /* state of an earlier step of the same model, or part of it
                             * (ls_step_keep): weights and moments, the step's own from a success on;
                             * NULL: none */
    struct ls_replica_copy
        *buddy;  /* copies of what ranks divide (train/replica/replica_copy.h); NULL: none */
    int rank;    /* for tests that slow one down */
    bool heals;  /* ranks that die are replaced (train/replica/recover.h) */
    bool pushes; /* servers make the update (sync: ps): a step ends with the gradient */
    bool pack;   /* with a pipeline: it packs its weights, and packs is NULL */
} ls_step_args;

/* What this rank has of the batch of a step, in host memory; with mesh.cp its ring. */
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
                      ls_step_clock *clock, ls_step_result *result_out);

/* With args.pushes: the gradient of the last step, of model->trained elements. */
const float *ls_step_gradient(const ls_step *step);

/* After step `number` (from 0, as it was run) was not finite: where NaN or Inf first appeared (a
 * weight, an output of the forward pass, a gradient), as an error (LS_ENUMERIC) that names it. The
 * message counts steps from 1, as events do. */
ls_status ls_step_find_nonfinite(ls_step *step, int64_t number);

/* The sums of token losses of `sequences` windows (host memory, [sequences, T]), each for itself,
 * so that cutting the windows into calls changes no bit. No gradients. Of the ranks of a pipeline,
 * which all call it with the same windows, the one that has the head gets them, the others zeros.
 */
ls_status ls_step_loss(ls_step *step, const ls_step_batch *windows, int64_t sequences,
                       double *sums_out);

/* Whether this rank is the one that gets them. */
bool ls_step_has_losses(const ls_step *step);

/* With zero 3 and with mesh.ep ranks walk through the model together: a rank that has no windows
 * while another has some calls this instead. Otherwise nothing happens. */
void ls_step_idle(ls_step *step);

/* Elements first .. first+count-1 of the flat weights, from host memory; a rank takes what it
 * keeps. */
void ls_step_put(ls_step *step, int64_t first, int64_t count, const float *values);

/* With zero 1 and 2 the weights that others have updated arrive while the next step computes. Who
 * reads weights outside of a step waits for them first. */
ls_status ls_step_settle(ls_step *step);

/* Pages of moments that lie on disk, and that others than the step have read or written, are given
 * back. */
void ls_step_rest(ls_step *step);

/* Device pointers: weights (model->flat elements; with zero 3 those of the own parts) and the
 * optimizer's moments (NULL with args.pushes): of all trained parameters (model->trained), or with
 * zero 1 to 3 of the own parts, packed (layout/mesh.h). Moments that were offloaded are host
 * pointers. */
typedef struct ls_step_arrays {
    float *w, *m, *v;
    /* The weights as the pass reads them, when they have settled: w itself in fp32; not with zero
     * 3. */
    const void *read;
} ls_step_arrays;
/* What the loss of the next steps is multiplied by (optim/loss_scaler.h); 1 unless told. */
void ls_step_scale_loss(ls_step *step, double scale);

ls_step_arrays ls_step_state_arrays(const ls_step *step);
ls_pass *ls_step_pass(const ls_step *step);

/* As the calls of parallel/dp.h of these names, with a part and memory of the device; whole: host
 * memory where the device has one of its own. */
ls_status ls_step_tell(ls_step *step, int from, void *memory, int64_t bytes);
ls_status ls_step_collect(ls_step *step, const float *part, float *whole);
ls_status ls_step_deal(ls_step *step, const float *whole, float *part);

/* Add these (model->trained elements, host memory, read before it returns) to the sum of gradients
 * of the next step, and only of that one. */
ls_status ls_step_add_residual(ls_step *step, const float *residual);

/* Steps that are in weights and moments, as far as this step has made them: the number of the last
 * one plus 1. -1: none since it was opened; LS_STEP_TORN: some of it is in them. */
enum { LS_STEP_TORN = -2 };
int64_t ls_step_done(const ls_step *step);

/* Take the state out of a step that will be closed, as memory of the device, or in a pipeline as
 * windows of model->flat elements each (base/window.h). Where ranks divide the update (zero 1) it
 * is what this rank has of it, and weights that others update may be old. */
ls_status ls_step_keep(ls_step *step, void *kept_out[3]);

/* Asked once, in the next step, before the first weight or moment changes: who still reads them. */
void ls_step_before_update(ls_step *step, ls_status (*wait)(void *context), void *context);

/* In the next step, on this rank: hash the gradient of the call that begins at this leaf, as it
 * goes into the sum (ordered mode); and the hash, from then on. */
void ls_step_hash_leaf(ls_step *step, int64_t leaf);
ls_hash ls_step_leaf_hash(const ls_step *step);

/* Asked once, in the next step, when the gradients are summed and nothing is updated. Whoever fails
 * there makes the step fail. */
void ls_step_between(ls_step *step, ls_status (*check)(void *context), void *context);

/* The weights were written from outside (start, import, resume): renew the copy that rows read. */
ls_status ls_step_weights_changed(ls_step *step);

/* How weights become those in 16 bits; `gap` is the number of the first one. */
ls_rounding ls_step_rounding(const ls_run *run, int64_t gap);

LS_C_END
