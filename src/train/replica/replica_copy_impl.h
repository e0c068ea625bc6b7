/* replica_copy_impl.h -- what replica_copy.c and replica_zero.c share. */
#pragma once
#include "base/fault.h"
#include "layout/replica_peers.h"
#include "parallel/reshard.h"
#include "train/replica/replica_copy.h"
#include "train/replica/replica_redo.h"
#include "train/step/step_impl.h"

LS_C_BEGIN

/* Weights, moments and the gradient of a seat's parts, packed. */
enum {
    LS_REPLICA_COPY_W,
    LS_REPLICA_COPY_M,
    LS_REPLICA_COPY_V,
    LS_REPLICA_COPY_G,
    LS_REPLICA_COPY_ARRAYS
};

struct ls_replica_copy {
    ls_replica_copy_args args;
    ls_mesh mesh;
    bool sends;                              /* there are no twins */
    int to, ward;                            /* the buddy, and who is kept here */
    float *copy[LS_REPLICA_COPY_ARRAYS];     /* owned: of the ward */
    ls_adamw_span *spans;                    /* owned: of the ward's parts, */
    int64_t first_span[LS_MESH_BUCKETS + 1]; /* bucket by bucket */
    ls_comm_request requests[2 * LS_MESH_BUCKETS];
    int n_requests;
    int64_t number;        /* of the step that runs */
    int64_t done;          /* steps in the own parts and in the copies */
    bool ready;            /* the gradient of step `done` has come, and its norm */
    int64_t voted;         /* steps that all ranks can make */
    bool begun;            /* the copies are there here, */
    bool confirmed;        /* and everywhere */
    ls_step_result result; /* of the step that was voted last */
    int64_t sent;          /* bytes */
    struct {
        bool on;      /* the optimizer needs it (replica_redo.h); then `done` counts updates */
        bool pending; /* that are to be made again, of which there is one: */
        float *old[LS_REPLICA_COPY_ARRAYS]; /* owned: the own parts before it, and its gradient */
        float *next; /* owned: the gradient of the step that runs, of the ward */
        ls_replica_redo_numbers numbers; /* of the pending one */
        ls_replica_redo_work work;       /* of the ward */
    } redo;
};

/* The elements of a seat. */
int64_t ls_replica_copy_elements(const ls_reshard_cut *cut, int64_t trained, int seat);

/* The spans of a seat's packed parts, bucket by bucket; owned by the caller. */
ls_status ls_replica_copy_spans(const ls_run *run, const ls_model *model, const ls_reshard_cut *cut,
                                int seat, ls_adamw_span **spans_out,
                                int64_t first[LS_MESH_BUCKETS + 1]);

/* The update of a seat's packed parts: arrays, the numbers of the step, the norm. */
typedef struct ls_replica_copy_move {
    const ls_run *run;
    const ls_kernels *kernels;
    ls_stream *stream;
    const ls_reshard_cut *cut;
    int64_t trained;
    int seat;
    float *const *arrays;
    const ls_adamw_span *spans;
    const int64_t *first_span;
    const ls_step_state *state;
    const ls_norm_result *norm;
} ls_replica_copy_move;
void ls_replica_copy_make_update(const ls_replica_copy_move *move);

/* For tests: this rank comes to a named point of a recovery, where it may be killed
 * (LINESHAFT_FAULT=train.recover.POINT.RANK=kill). */
void ls_replica_copy_point(const char *name, int rank);

/* The sum of gradients of an own part, where the step has it. */
const float *ls_replica_copy_gradient(const ls_step *step, ls_mesh_part own);

LS_C_END
