/* model.h -- what a model is: its shape, its parameters by their Hugging Face names, their start.
 *
 * A model here is a description without memory. All parameters live in one flat fp32 buffer; each
 * starts on a multiple of LS_PARAM_ALIGN elements, and the gaps hold zeros for ever, so that one
 * pass over the flat buffer (norm, optimizer, hash, checkpoint) needs no list of tensors. Gradients
 * use the same places. Initial values are functions of (seed, tensor name, global element). */
#pragma once
#include "base/err.h"
#include "config/run.h"

LS_C_BEGIN

enum { LS_PARAM_ALIGN = 64, LS_PARAM_NAME = 80 };

/* GPT-2: pre-norm blocks, learned positions, tanh GELU, biases everywhere, head tied to wte. */
typedef struct ls_model_shape {
    int64_t V, T, L, C, H, D, F; /* vocabulary, context, layers, width, heads, head size, MLP */
    float eps;
    float dropout;
    float init_std;
} ls_model_shape;

typedef enum ls_param_start { LS_START_ZERO, LS_START_ONE, LS_START_NORMAL } ls_param_start;

typedef struct ls_param {
    char name[LS_PARAM_NAME]; /* "transformer.h.0.attn.c_attn.weight" */
    char group[24];           /* what is saved together: "embed", "h.0", "final" */
    int ndim;
    int64_t shape[2];
    int64_t first; /* element in the flat buffer */
    int64_t count;
    ls_param_start start;
    float std;  /* of LS_START_NORMAL */
    bool decay; /* weight decay applies: matrices only */
} ls_param;

/* Where one block's parameters lie: element offsets in the flat buffer. */
typedef struct ls_block_params {
    int64_t ln1_w, ln1_b, qkv_w, qkv_b, proj_w, proj_b, ln2_w, ln2_b, fc_w, fc_b, out_w, out_b;
} ls_block_params;

typedef struct ls_model {
    ls_model_shape shape;
    ls_param *params; /* owned */
    int n_params;
    int64_t elements;        /* of all parameters, without gaps */
    int64_t flat;            /* of the flat buffer, with gaps */
    int64_t tokens;          /* of the tokenizer; rows of wte above it are never used */
    ls_block_params *blocks; /* owned, L of them */
    int64_t wte, wpe, lnf_w, lnf_b;
} ls_model;

/* vocab is the tokenizer's size; model.vocab may ask for more, not for less. */
ls_status ls_model_init(ls_model *model, const ls_run *run, int64_t vocab);
void ls_model_release(ls_model *model);

/* Initial values of elements first .. first+count-1 of parameter p, to host memory. Any piece of
 * any tensor can be made alone. */
void ls_model_start(const ls_param *p, uint64_t seed, int64_t first, int64_t count,
                    float *values_out);

/* The parameter that holds element i of the flat buffer, or the one before the gap it lies in. */
const ls_param *ls_model_param_at(const ls_model *model, int64_t element);

/* Arithmetic of one training token, forward and backward, by llm.c's convention: 6 for each
 * parameter plus 6 L C T for causal attention (only the half that is computed). */
double ls_model_flops_per_token(const ls_model *model, int64_t T);

LS_C_END
