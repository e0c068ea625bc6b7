/* packs.h -- the weights of a model in the order in which products read them.
 *
 * A product packs the columns of a weight that it needs, in every call, unless somebody did it
 * before. Packs do it once after each change of the weights, at the first call that reads them, and
 * every call until the next change takes what is there: leaves, validation, a prompt. It costs one
 * copy of the matrices for each direction: forward, and with training towards the input.
 *
 * One set belongs to one buffer of weights; several passes may share it. Whoever changes weights
 * tells. Values and bits stay those of the weights themselves. Not thread-safe: for the thread that
 * queues the calls. */
#pragma once
#include "model/model.h"

LS_C_BEGIN

typedef struct ls_packs ls_packs;

typedef struct ls_packs_args {
    const ls_model *model;     /* borrowed, as the next two */
    const ls_kernels *kernels; /* whose products will read; a table without pack has no packs */
    ls_stream *stream;
    ls_dtype type;       /* of the weights */
    int64_t M;           /* rows of the largest call */
    bool training;       /* also towards the input */
    int64_t unit, units; /* the part of the model whose matrices are read, as in ls_pass_args */
} ls_packs_args;

/* The matrices of a block, and the head of the model. */
typedef enum ls_layer {
    LS_LAYER_QKV,
    LS_LAYER_PROJ,
    LS_LAYER_FC,
    LS_LAYER_OUT,
    LS_LAYERS,
    LS_LAYER_HEAD = LS_LAYERS
} ls_layer;

/* Bytes of device memory (the stream may be NULL); 0 where products read weights as they are. */
int64_t ls_packs_bytes(const ls_packs_args *args);

ls_status ls_packs_open(ls_packs **packs_out, const ls_packs_args *args);
void ls_packs_close(ls_packs *packs); /* NULL is allowed, here and below */

/* The weights that are trained have changed; all weights have. */
void ls_packs_updated(ls_packs *packs);
void ls_packs_changed(ls_packs *packs);

/* The packed form of a matrix of block l (0 for the head) for a product of M rows that reads the
 * weights w; back: towards its input. Packed now when it is not there yet; NULL: to be read as it
 * lies. */
const void *ls_packs_find(ls_packs *packs, const void *w, int64_t l, ls_layer of, bool back,
                          int64_t M);

/* How often a matrix was packed so far. */
int64_t ls_packs_count(const ls_packs *packs);

LS_C_END
