/* packed_weights.h -- the weights of a model in the order in which products read them.
 *
 * A product packs the columns of a weight that it needs, in every call, unless that was done
 * before. Packs do it once after each change of the weights, at the first call that reads them, and
 * every call until the next change takes what is there: leaves, validation, a prompt. It costs one
 * copy of the matrices for each direction: forward, and with training towards the input.
 *
 * One set belongs to one buffer of weights; several passes may share it. The code that changes
 * weights says so (`_updated`, `_changed`). Values and bits stay those of the weights themselves.
 * Not thread-safe: for the thread that queues the calls. */
#pragma once
#include "model/model.h"

LS_C_BEGIN

typedef struct ls_packed_weights ls_packed_weights;

typedef struct ls_packed_weights_args {
    const ls_model *model;     /* borrowed, as the next two */
    const ls_kernels *kernels; /* whose products will read; a table without pack has no packs */
    ls_stream *stream;
    ls_dtype type;       /* of the weights */
    int64_t M;           /* rows of the largest call */
    bool training;       /* also towards the input */
    int64_t unit, units; /* the part of the model whose matrices are read, as in ls_pass_args */
} ls_packed_weights_args;

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
int64_t ls_packed_weights_bytes(const ls_packed_weights_args *args);

ls_status ls_packed_weights_open(ls_packed_weights **packs_out, const ls_packed_weights_args *args);
void ls_packed_weights_close(ls_packed_weights *packs); /* NULL is allowed, here and below */

/* The weights that are trained have changed; all weights have. */
void ls_packed_weights_updated(ls_packed_weights *packs);
void ls_packed_weights_changed(ls_packed_weights *packs);

/* The packed form of a matrix of block l (0 for the head) for a product of M rows that reads the
 * weights w; back: towards its input. Packed now when it is not there yet; NULL: to be read as it
 * lies. */
const void *ls_packed_weights_find(ls_packed_weights *packs, const void *w, int64_t l, ls_layer of,
                                   bool back, int64_t M);

/* How often a matrix was packed so far. */
int64_t ls_packed_weights_count(const ls_packed_weights *packs);

LS_C_END
