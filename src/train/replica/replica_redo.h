/* replica_redo.h -- an update that needs all ranks, made again when one is lost in the middle of it.
 *
 * LAMB and Muon exchange norms and matrices while they update. Who is lost then leaves the others
 * with states that are neither of the step before nor of the one behind it, so the way of AdamW,
 * where everybody ends its update by itself, is closed. Instead each rank keeps, of its own parts
 * and of its ward's, the state from before the last update that was voted, and the gradient of it:
 *
 *   prepare   before an update: the ward's moments make the update before; then both sets are of
 *             now: weights, moments, gradient
 *   (the update: moments and weights of the step change, in place, with other ranks)
 *   restore   after a loss: states and gradients move to who owns them in the new mesh, and its
 *             ranks make the update once more, together
 *
 * Moments depend on nothing but their own elements' gradients, so the ward's follow without other
 * ranks; weights do not, but with mesh.zero: 1, the only stage that these optimizers have,
 * everybody has all of them when the update is over. */
#pragma once
#include "optim/optim.h"
#include "parallel/reshard.h"
#include "train/step/step.h"

LS_C_BEGIN

typedef struct ls_replica_redo_move ls_replica_redo_move;

/* What the moments of a seat are updated with. */
typedef struct ls_replica_redo_work {
    ls_optim *optim;                         /* owned, as the next two: of this seat, with */
    void *lists;                             /* what it works in */
    ls_adamw_span *spans;                    /* of what is updated element by element, */
    int64_t first_span[LS_MESH_BUCKETS + 1]; /* bucket by bucket */
    ls_reshard_cut cut;
    int64_t trained;
    int seat;
    const ls_replica_redo_move *move; /* that is being made */
} ls_replica_redo_work;

/* Whether this run's optimizer needs it. */
bool ls_replica_redo_serves(const ls_run *run);

typedef struct ls_replica_redo_args {
    const ls_run *run; /* borrowed, as all of these */
    const ls_model *model;
    const ls_kernels *kernels;
    ls_stream *stream;
    const ls_reshard_cut *cut;
    int seat;
} ls_replica_redo_args;

/* The work must stay where it is until it is closed. */
ls_status ls_replica_redo_open_work(ls_replica_redo_work *work, const ls_replica_redo_args *args);
void ls_replica_redo_close_work(ls_replica_redo_work *work); /* safe on a zeroed one */

/* An update of the moments of a seat's packed parts; arrays as in replica_copy_impl.h. Weights and
 * gradients are spoiled. */
struct ls_replica_redo_move {
    const ls_kernels *kernels;
    ls_stream *stream;
    const ls_run *run;
    const ls_reshard_cut *cut;
    int64_t trained;
    int seat;
    float *const *arrays;
    const ls_step_state *state;
    const ls_norm_result *norm;
};
ls_status ls_replica_redo_moments(const ls_replica_redo_move *move, ls_replica_redo_work *work);

/* The numbers of the update that is made again. */
typedef struct ls_replica_redo_numbers {
    ls_step_state state;
    ls_norm_result norm;
} ls_replica_redo_numbers;

LS_C_END
