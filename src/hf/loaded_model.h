/* loaded_model.h -- a model with its weights in memory, ready to compute on the CPU. */
#pragma once
#include "device/device.h"
#include "hf/hf_folder.h"
#include "kernel/kernel.h"

LS_C_BEGIN

typedef struct ls_loaded_model {
    ls_run run; /* describes the model; strings borrowed from the folder, not to be released */
    ls_model model;
    ls_device *device;
    ls_stream *stream;
    const ls_kernels *kernels;
    float *w; /* flat parameters; device memory, which is host memory on the CPU */
} ls_loaded_model;

/* Rows of a model's embedding: a run of ours may have left model.vocab to its tokenizer. */
ls_status ls_loaded_model_vocab(const ls_hf_folder *folder, int64_t *vocab_out);

/* Check the folder against its own model and load all of it. The folder must stay open as long.
 * vocab of the model becomes known: rows of the embedding. */
ls_status ls_loaded_model_open(ls_loaded_model *model, const ls_hf_folder *folder);
void ls_loaded_model_close(ls_loaded_model *model); /* safe on a half-opened one */

/* A product of two small matrices, beside a weight of N outputs and K inputs. */
typedef struct ls_low_rank {
    const float *a, *b; /* [rank, K], [N, rank] */
    int64_t N, K, rank;
    double scale; /* of the product */
} ls_low_rank;

/* Add a product to the weight that begins with element first of the model's weights. */
void ls_loaded_model_add(ls_loaded_model *model, int64_t first, const ls_low_rank *product);

/* The lengths of the outputs of the weight that begins with element first, to [N]; and give them others. An
 * output without a length keeps its zeros. */
void ls_loaded_model_lengths(const ls_loaded_model *model, int64_t first, int64_t N, int64_t K,
                             float *lengths_out);
void ls_loaded_model_set_lengths(ls_loaded_model *model, int64_t first, int64_t N, int64_t K,
                                 const float *lengths);

/* Add the product of each pair of small matrices to the weight beside it, with DoRA give it its lengths, and
 * make the product zero. Afterwards the parameters that are not of LoRA are the whole model. */
ls_status ls_loaded_model_merge(ls_loaded_model *model);

/* The weight beside which adapter i of a block lies. */
ls_place ls_loaded_model_beside(const ls_block_params *block, int i);

/* The parameters as rows of a checkpoint, without those of LoRA; *rows_out is owned by the caller
 * (ls_mem_free). */
ls_status ls_loaded_model_rows(const ls_loaded_model *model, ls_ckpt_tensor **rows_out, int *n_out);

LS_C_END
