/* step.h -- one training step: gradients of the leaves of a batch, their sum, the norm, the update.
 *
 * The step owns the state of training on the device (weights, two moments, gradient buffers) and
 * the small buffers around it. It does not know where batches come from or what happens between
 * steps.
 *
 * In bf16 and fp16 the weights exist twice: the fp32 ones that are trained and saved, and a rounded
 * copy that the model reads. The update writes both; after writing weights from outside call
 * ls_step_weights_changed().
 *
 * With other ranks (parallel/dp.h) a step computes the calls of its own leaves, sums gradients with
 * the others, and updates everything, or with ZeRO its own parts (zero_step.c). In a pipeline
 * (mesh.pp) it has some of the layers, and its calls go from rank to rank (pipeline.c). README.md
 * names the files in reading order.
 *
 * Where several ranks compute one model (mesh.tp, mesh.ep: group_step.c), dp is among the
 * ranks that hold the same slice of it, and ZeRO divides among these; weights, moments and
 * gradients are those of the slice. Where ranks share sequences (mesh.cp), a step computes its
 * chunks of each sequence. */
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
    const char *collectives; /* provider of those of device memory (comm/device); NULL: none */
    ls_calls calls;
    ls_dp *dp;                /* the ranks with the same slice of the model; NULL: there is one */
    ls_mp_group *tp_group;    /* mesh.tp: the ranks that divide tensors; NULL: they are whole */
    ls_mp_group *ep_group;    /* mesh.ep: the ranks that divide experts; NULL: none do */
    ls_comm *mp_group;        /* with both: all ranks of one model, by ep rank */
    ls_mp_group *cp_group;    /* mesh.cp: the ranks that share sequences; NULL: they are whole */
    ls_dp *batch_dp;          /* mesh.ep: the ranks that share the batch; NULL: those of dp */
    ls_packed_weights *packs; /* of these weights, renewed with every change; NULL: none */
    const char *offload_to;   /* device.offload: disk: the folder for the moments */
    void *const *kept;        /* what ls_step_keep() took out of an earlier step of the same model:
                               * weights and moments, the step's own if it opens; NULL: none */
    int rank;                 /* for tests that slow one down */
    bool heals;               /* ranks that die are replaced (train/replica/recover.h) */
    bool pushes; /* servers make the update (sync: ps): a step ends with the gradient */
    bool pack;   /* with a pipeline: it packs its weights, and packs is NULL */
} ls_step_args;

/* The sequences of this rank in the batch of a step, in host memory; with mesh.cp those of its
 * group. */
typedef struct ls_step_batch {
    const int32_t *tokens, *targets; /* [sequences of the own leaves, T] */
    const int32_t *start;            /* likewise, or NULL */
    bool restart;                    /* learned positions count from there (model/pass.h) */
    int64_t counted; /* targets of the whole batch that are not -1: the mean is over them; 0: all.
                      * Of pairs: how many pairs it has */
    const ls_preference_reference *references; /* [sequences of the own leaves], where sequences are
                                                * pairs (train.objective); NULL: all zero */
} ls_step_batch;

typedef struct ls_step_result {
    double loss;      /* mean over tokens, summed along the tree of leaves */
    double grad_norm; /* before clipping */
    double lr;
    double numbers[LS_PREFERENCE_NUMBERS]; /* of pairs: sums over the batch */
    bool finite; /* false: gradient or loss is not; the update was not made */
} ls_step_result;

ls_status ls_step_open(ls_step **step_out, const ls_step_args *args);
void ls_step_close(ls_step *step); /* NULL is allowed */

/* From the next step on the batch has `leaves` leaves, of which each rank has a run; called by all
 * ranks. ls_step_args.calls must have planned room for it. */
ls_status ls_step_split(ls_step *step, const ls_ordered_run *runs, int64_t leaves);

/* How long each rank computed in the last step, forward and backward of its own leaves, in
 * nanoseconds; the same numbers on every rank. */
const double *ls_step_work_ns(const ls_step *step);

/* Run step number `number` (from 0). Leaves the weights alone when the result is not finite. */
ls_status ls_step_run(ls_step *step, const ls_step_batch *batch, int64_t number, double lr,
                      ls_step_clock *clock, ls_step_result *result_out);

/* With args.pushes: the gradient of the last step, of model->trained elements. */
const float *ls_step_gradient(const ls_step *step);

/* After step `number` (from 0) was not finite: where NaN or Inf first appeared (a weight, an output
 * of the forward pass, a gradient), as an error (LS_ENUMERIC) that names it. The message counts
 * steps from 1, as events do. */
ls_status ls_step_find_nonfinite(ls_step *step, int64_t number);

/* How many numbers a step reports of each sequence: one, the sum of its token losses, or of pairs
 * those of kernel/preference.h. */
int64_t ls_step_numbers(const ls_step *step);

/* The numbers of each of `sequences` windows (host memory, [sequences, T]), to sums_out[numbers,
 * sequences]: each is that of one window, so that cutting them into calls changes no bit. No
 * gradients. The ranks of a pipeline all call it with the same windows; the rank that has the head
 * gets the numbers, the others zeros. */
ls_status ls_step_loss(ls_step *step, const ls_step_batch *windows, int64_t sequences,
                       double *sums_out);

/* Whether this rank is the one that gets the sums. */
bool ls_step_has_losses(const ls_step *step);

/* With ZeRO 3, mesh.ep and pipelines all ranks walk through the model at the same time: a rank that
 * has no windows while another has some calls this instead. Otherwise nothing happens. */
void ls_step_idle(ls_step *step);

/* Write elements first .. first+count-1 of the flat weights, from host memory; a rank takes those
 * that it keeps. */
void ls_step_put(ls_step *step, int64_t first, int64_t count, const float *values);

/* With ZeRO 1 and 2 the weights that others have updated arrive while the next step computes. Call
 * this before reading weights outside of a step. */
ls_status ls_step_settle(ls_step *step);

/* Give back the pages of moments on disk that were read or written outside of a step. */
void ls_step_rest(ls_step *step);

/* Device pointers: weights (model->flat elements; with ZeRO 3 those of the own parts) and the
 * optimizer's moments (NULL with args.pushes): of all trained parameters (model->trained), or with
 * ZeRO of the own parts, packed (layout/mesh.h). Offloaded moments are host pointers. */
typedef struct ls_step_arrays {
    float *w, *m, *v;
    /* The weights as the pass reads them, after ls_step_settle(): w itself in fp32; not with ZeRO
     * 3. */
    const void *read;
} ls_step_arrays;
ls_step_arrays ls_step_state_arrays(const ls_step *step);
ls_pass *ls_step_pass(const ls_step *step);

/* What the loss of the next steps is multiplied by (optim/loss_scaler.h); 1 at first. */
void ls_step_scale_loss(ls_step *step, double scale);

/* As the functions of parallel/dp.h with these names. part and memory are of the device; whole is
 * host memory where the device has a memory of its own. */
ls_status ls_step_broadcast(ls_step *step, int from, void *memory, int64_t bytes);
ls_status ls_step_collect(ls_step *step, const float *part, float *whole);
ls_status ls_step_scatter(ls_step *step, const float *whole, float *part);

/* Add a residual (model->trained elements, host memory, read before it returns) to the sum of
 * gradients of the next step, and of no other. */
ls_status ls_step_add_residual(ls_step *step, const float *residual);

/* Take the state out of a step that will be closed, as memory of the device, or in a pipeline as
 * windows of model->flat elements each (base/window.h). With ZeRO 1 it is the part that this rank
 * updates; weights that others update may be old. */
ls_status ls_step_keep(ls_step *step, void *kept_out[3]);

/* In the next step, on this rank: hash the gradient of the call that begins at this leaf, as it
 * goes into the sum (ordered mode), into step->hasher.hash. */
void ls_step_hash_leaf(ls_step *step, int64_t leaf);

/* Points of a step at which a hook of another room runs. A hook runs once, in the next step; an error
 * that it returns makes the step fail. */
typedef enum ls_step_point {
    LS_STEP_SUMMED,  /* the gradients are summed; no weight has changed yet */
    LS_STEP_UPDATES, /* the first weight or moment is about to change; a saver may still read it */
    LS_STEP_POINTS
} ls_step_point;
void ls_step_set_hook(ls_step *step, ls_step_point point, ls_status (*hook)(void *context),
                      void *context);

/* The weights were written from outside (start, import, resume): renew the copy in 16 bits. */
ls_status ls_step_weights_changed(ls_step *step);

/* How weights are rounded to 16 bits; `gap` is the number of the first one. */
ls_rounding ls_step_rounding(const ls_run *run, int64_t gap);

/* For tests: whether their point "train.WHAT.RANK" is reached, or with a step (from 1; -1: none)
 * "train.WHAT.RANK.STEP" (base/fault.h). Never in a release build. */
bool ls_step_test_point(const char *what, int rank, int64_t step);

LS_C_END
