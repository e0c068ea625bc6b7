/* optim.h -- what the optimizer of a run keeps, what it works in, and the update.
 *
 * Facts about each optimizer are in config/optimizer.h; what it computes is a row of optim_impl.h
 * and a file of this room. This header is what all of them look like from outside.
 *
 * All optimizers have a first moment of every trained parameter. Those that keep two have a second
 * one as well; Muon has none for the matrices of blocks, which are most of a model, so the second
 * moments of the others lie close together (each begins on a multiple of LS_PARAM_ALIGN). Where
 * ranks divide the moments, each keeps those of its part in the order of the gradients, gaps
 * included. */
#pragma once
#include "config/run.h"
#include "layout/mesh.h"
#include "model/model.h"

LS_C_BEGIN

/* --- what it keeps: pure arithmetic ------------------------------------------------------------- */

/* Arrays of the state: weights and moments. A kind of state is 0 for weights, 1 for first moments,
 * 2 for second ones; a loop over kinds ends before those that the run does not keep. */
enum { LS_OPTIM_KINDS = 1 + LS_OPTIMIZER_MOMENTS };
int ls_optim_kinds(const ls_run *run);
bool ls_optim_keeps(const ls_run *run, int kind);

/* The name of a kind of a parameter's state in a checkpoint: "param", "adam.m" ... */
const char *ls_optim_kind_name(const ls_run *run, const ls_param *p, int kind);

/* Whether Muon updates this parameter: a trained matrix of a block. */
bool ls_optim_is_matrix(const ls_run *run, const ls_param *p);

/* Elements of the second moments where one rank has all of them. */
int64_t ls_optim_seconds(const ls_run *run, const ls_model *model);

/* Element of parameter i there; -1: it has none. */
int64_t ls_optim_second(const ls_run *run, const ls_model *model, int i);

/* Elements that are updated one by one, where one rank updates all of them: not those of Muon's
 * matrices. */
int64_t ls_optim_elementwise(const ls_run *run, const ls_model *model);

/* What an optimizer needs beside the moments; 0 bytes for those that update element by element. */
typedef struct ls_optim_work {
    const char *what;        /* its name in the memory ledger */
    int64_t pieces, tensors; /* lamb: of all parameters, whoever updates them */
    int64_t matrix, square;  /* muon: elements of the largest matrix, and of the largest square */
    int64_t list_bytes;      /* of `bytes` what ls_optim_redo() needs, which lies first */
    int64_t bytes;
} ls_optim_work;
ls_optim_work ls_optim_work_of(const ls_run *run, const ls_model *model);

/* --- updates element by element ----------------------------------------------------------------- */

/* What rows read on the device after this many steps (fractions of one count), for an update by a
 * share of a step: it moves as far, and forgets as much, as that share of a whole step would. */
ls_step_state ls_optim_numbers(const ls_run *run, double steps, double share, double lr);

/* What the row reads about the elements of an own part: one span for each parameter that is updated
 * element by element, or the piece of it that lies there. packed: the weights lie as the moments
 * do, otherwise in their own places. whole: this is all there is, and moments that a parameter
 * lacks leave no gap. Returns how many: a parameter or the end of the part ends each. */
int64_t ls_optim_spans(const ls_run *run, const ls_model *model, ls_mesh_part own, bool packed,
                       bool whole, ls_optimizer_span *spans_out);

/* The update of these spans. v is NULL where the run keeps one moment. */
void ls_optim_elements(const ls_run *run, const ls_kernels *kernels, ls_stream *stream,
                       const ls_optimizer_update *spans);

/* --- a whole update ----------------------------------------------------------------------------- */

typedef struct ls_optim ls_optim;

/* Elements without a gap, and where they lie in an array that has those of this rank only. */
typedef struct ls_optim_piece {
    int64_t first, count, packed;
} ls_optim_piece;

/* The first piece of these n parts (ascending) among elements first .. end-1; false: none, count is 0.
 * Parts 0..9 and 20..29, packed: of 5..24 it is 5..9, then of 10..24 it is 20..24, which lies at 10. */
bool ls_optim_find_piece(const ls_mesh_part *parts, int n, int64_t first, int64_t end,
                         ls_optim_piece *piece_out);

/* What an update asks of the ranks that share it. */
typedef struct ls_optim_ranks {
    void *context;
    int rank, ranks; /* 0, 1: it is alone */
    bool divides;    /* each updates a part of the weights */

    /* The first piece among elements first .. end-1 that this rank updates; false: none. */
    bool (*piece)(const void *context, int64_t first, int64_t end, ls_optim_piece *piece_out);
    void (*elements)(void *context); /* what is updated element by element: ls_optim_elements() */

    /* With others; not for ls_optim_redo(). Numbers of all ranks added, everywhere; an array of
     * which each has the parts that it updates, everywhere; memory of one rank, to all. */
    ls_status (*sum)(void *context, float *numbers, int64_t n);
    ls_status (*gather)(void *context, float *whole);
    ls_status (*broadcast)(void *context, int from, void *memory, int64_t bytes);
} ls_optim_ranks;

/* What an update reads and writes. */
typedef struct ls_optim_arrays {
    float *w, *m, *v; /* where moments are offloaded only ls_optim_ranks.elements knows them */
    float *grad;      /* an update may change it */
    const ls_step_state *state;
    const ls_norm_result *norm; /* of the whole gradient */
} ls_optim_arrays;

typedef struct ls_optim_args {
    const ls_run *run; /* borrowed, as all of these */
    const ls_model *model;
    const ls_kernels *kernels;
    ls_stream *stream;
    ls_optim_arrays arrays;
    bool redoes; /* for ls_optim_redo() alone: arrays come later, packed as moments are */
    void *copy;  /* the weights once more, in 16 bits; NULL: not needed now */
    ls_dtype copy_type;
    ls_rounding rounding;
    float *partials; /* for norm2 */
    void *work;      /* device memory: ls_optim_work.bytes, or where it redoes list_bytes */
    ls_optim_ranks ranks;
} ls_optim_args;

ls_status ls_optim_open(ls_optim **optim_out, const ls_optim_args *args);
void ls_optim_close(ls_optim *optim); /* NULL is allowed */

/* An update, by all ranks. Where they divide it each has the new weights of its part afterwards;
 * Muon gives all weights to all. */
ls_status ls_optim_update(ls_optim *optim);

/* The moments that an update leaves, by one rank without the others: weights and gradients are
 * spoiled. */
void ls_optim_redo(ls_optim *optim, const ls_optim_arrays *arrays);

LS_C_END
