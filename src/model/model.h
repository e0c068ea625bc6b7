/* model.h -- what a model is: its shape, its parameters by their Hugging Face names, their start.
 *
 * A model here is a description without memory. All parameters live in one flat fp32 buffer; each
 * starts on a multiple of LS_PARAM_ALIGN elements, and the gaps hold zeros for ever, so that one
 * pass over the flat buffer (norm, optimizer, hash, checkpoint) needs no list of tensors. Only
 * parameters that one product reads together (q, k, v; gate, up) lie side by side without a gap.
 *
 * Parameters that are trained have a second place, in the buffers of gradients and moments, laid
 * out by the same rules. When all are trained the two places are equal. Initial values are
 * functions of (seed, tensor name, global element).
 *
 * Where ranks split a model (model_split.h), each describes its own part: sizes are those of the part,
 * and each parameter has a box in the whole tensor. */
#pragma once
#include "base/err.h"
#include "config/run.h"
#include "model/collectives.h"
#include "kernel/kernel.h"
#include "model/model_split.h"

LS_C_BEGIN

enum { LS_PARAM_ALIGN = 64, LS_PARAM_NAME = 112 };

/* The transformer: blocks of attention and MLP around one residual stream, with norms before them,
 * or behind them. */
typedef struct ls_model_shape {
    ls_family family;
    int64_t V, T, L, C, F; /* vocabulary, context, layers, width, MLP */
    int64_t H, Hkv, D;     /* query heads, key/value heads, head size */
    int64_t E, K;          /* experts of a block, of a token; E is 0: one MLP for all */
    bool normalized;       /* weights of a token's experts are divided by their sum */
    float balance, z;      /* how much the router's losses count beside a token's own */
    ls_norm_kind norm;     /* LayerNorm has a bias, RMSNorm none */
    bool post_norm;        /* stream + norm(layer(stream)) instead of stream + layer(norm(stream));
                            * without experts and dropout */
    ls_act act;            /* gelu, or silu where gated */
    bool gated;            /* MLP: act(gate) * up instead of act(fc) */
    int64_t positions;     /* learned ones, which are added to the embedding: rows of their table,
                            * T or more; 0: none */
    bool rope;             /* queries and keys are turned by their position */
    bool qk_norm;          /* q and k are normalised first: each head, */
    bool qk_wide;          /* or all heads of q together, and all of k */
    bool tied;             /* the head reads the embedding's weights */
    bool bias_qkv, bias_proj, bias_mlp;
    ls_layout layout;    /* of all matrices of the blocks */
    int64_t window;      /* 0: none */
    int64_t window_from; /* first layer that has it */
    float eps, dropout, init_std;
    float noise;       /* on embeddings while training: alpha / sqrt(T C) of train.neftune */
    int64_t lora_rank; /* 0: none */
    float lora_scale;  /* alpha / rank */
    bool dora;         /* outputs of adapted weights have trained lengths (kernel/dora.h) */
} ls_model_shape;

typedef enum ls_param_start {
    LS_START_ZERO,
    LS_START_ONE,
    LS_START_NORMAL,
    LS_START_UNIFORM /* between -std and std */
} ls_param_start;

typedef struct ls_param {
    char name[LS_PARAM_NAME]; /* "model.layers.0.self_attn.q_proj.weight" */
    char group[24];           /* what is saved together: "embed", "h.0", "final" */
    int64_t unit;             /* which part of the model reads it: 0 the embedding, 1 + l block l,
                               * L + 1 the final norm and a head of its own */
    int ndim;
    int64_t shape[2];
    ls_param_box box; /* where it lies in the tensor of the whole model */
    int64_t first;    /* element in the flat buffer of weights */
    int64_t trained;  /* element in the buffers of gradients and moments; -1: frozen */
    int64_t count;
    ls_param_start start;
    float std;   /* of LS_START_NORMAL and LS_START_UNIFORM */
    bool decay;  /* weight decay applies: matrices only */
    bool expert; /* read by K of E tokens only */
    bool lora;   /* a small matrix beside another: not part of the base model */
    int parts;   /* a weight of a block: matrices side by side in its columns (GPT-2 has q, k and v
                  * in one weight); 0 for everything else */
} ls_param;

/* Where a parameter lies: element of the weights (-1: the model has no such parameter) and of the
 * gradients (-1: no gradient is wanted). */
typedef struct ls_place {
    int64_t w, g;
} ls_place;

#define LS_MODEL_DORA ".lora_magnitude_delta" /* how the name of a parameter of DoRA ends */

/* A pair of small matrices beside a weight of K inputs and N outputs: y[first ..] += scale B A x.
 * a is [rank, K], b is [N, rank]. */
typedef struct ls_adapter {
    ls_place a, b;       /* a.w is -1: none */
    ls_place d;          /* DoRA: [N], what is added to the lengths of the weight's outputs */
    int64_t K, N, first; /* first column of the packed output */
} ls_adapter;

/* gpt2 has one matrix for q, k and v, and one for the way into the MLP: the first of each. */
enum {
    LS_ADAPTER_Q,
    LS_ADAPTER_K,
    LS_ADAPTER_V,
    LS_ADAPTER_O,
    LS_ADAPTER_GATE,
    LS_ADAPTER_UP,
    LS_ADAPTER_DOWN,
    LS_ADAPTERS
};

/* One expert: gate and up side by side, and down. */
typedef struct ls_expert_params {
    ls_place fc_w[2], out_w;
} ls_expert_params;

/* Where one block's parameters lie. A packed product has parts (q, k, v; gate, up), which lie side
 * by side in the weights; among the gradients only those that are trained have a place. GPT-2 has
 * one part each. */
typedef struct ls_block_params {
    ls_place ln1_w, ln1_b, qkv_w[3], qkv_b[3], q_norm, k_norm, proj_w, proj_b;
    ls_place ln2_w, ln2_b, fc_w[2], fc_b[2], out_w, out_b;
    ls_place router;           /* with experts; then fc and out are nowhere */
    ls_expert_params *experts; /* those that this rank has, of the model's */
    ls_adapter adapters[LS_ADAPTERS];
    int64_t window;
    bool trained; /* some parameter of this block is, here or on a rank with other experts */
} ls_block_params;

typedef struct ls_model {
    ls_model_shape shape; /* of this part, */
    ls_model_shape whole; /* and of the whole */
    ls_model_split split;
    ls_param *params; /* owned */
    int n_params;
    int64_t elements;          /* of all parameters, without gaps */
    int64_t flat;              /* of the flat buffer of weights, with gaps */
    int64_t trained;           /* of the buffers of gradients and moments, with gaps */
    int64_t tokens;            /* of the tokenizer; rows of wte above it are never used */
    ls_block_params *blocks;   /* owned, L of them */
    ls_expert_params *experts; /* owned, L E of them */
    ls_place wte, wpe, lnf_w, lnf_b, head; /* head.w is wte.w when tied */
    ls_run_model run; /* the settings that made it; strings borrowed from the run */
} ls_model;

/* vocab is the tokenizer's size; model.vocab may ask for more, not for less. LS_EUSAGE: a pattern
 * of train.freeze or a target of lora.targets that fits nothing. */
ls_status ls_model_init(ls_model *model, const ls_run *run, int64_t vocab);

/* The part of split.rank and split.ep_rank; sequence: rows of streams are divided too. LS_EUSAGE
 * also: it cannot be divided so. */
ls_status ls_model_init_split(ls_model *model, const ls_run *run, int64_t vocab,
                              ls_model_split split);
void ls_model_release(ls_model *model);

/* Initial values of elements first .. first+count-1 of parameter p, to host memory. Any piece of
 * any tensor can be made alone; a part of a tensor starts as it would in the whole. */
void ls_model_start(const ls_param *p, uint64_t seed, int64_t first, int64_t count,
                    float *values_out);

/* The parameter of that name, or NULL. */
const ls_param *ls_model_find(const ls_model *model, const char *name);

/* The trained parameters whose copies on several ranks have parts of a gradient (model_split.h), in the
 * order of the gradients: at most n_params of them; returns how many. */
int ls_model_partials(const ls_model *model, ls_collectives_span *spans_out);

/* Likewise of ranks that divide experts: what is no expert, of these elements of the gradients. */
int ls_model_common(const ls_model *model, int64_t first, int64_t count,
                    ls_collectives_span *spans_out);

/* Whether this rank is the first of those that have a parameter alike. */
bool ls_model_counts(const ls_model *model, const ls_param *p);

/* The first element of the gradients from which on all belong to unit `unit` and those above it:
 * what backward has completed when it has gone through that unit. */
int64_t ls_model_complete(const ls_model *model, int64_t unit);

/* Likewise the first element of the weights. */
int64_t ls_model_below(const ls_model *model, int64_t unit);

/* Cosine and sine of each pair of each of n positions from first on: [n, D / 2, 2], to host
 * memory. The angles are rounded as transformers rounds them (fp32), since weights were trained
 * with those. */
void ls_model_rope(const ls_model *model, int64_t first, int64_t n, float *table_out);

/* The parameter of the whole model that has this one's name: it is, or is a part of, that one. */
const ls_param *ls_model_same(const ls_model *whole, const ls_param *p);

/* Share of a parameter that works on a token: 1, or K / E of an expert's. */
static inline double ls_model_active(const ls_model *model, const ls_param *p)
{
    return p->expert ? (double)model->shape.K / (double)model->shape.E : 1;
}

/* Arithmetic of one training token, forward and backward, by llm.c's convention: 6 for each
 * parameter that works on it (4 for a frozen one: it has no gradient of its own) plus 6 L H D T for
 * causal attention (only the half that is computed). */
double ls_model_flops_per_token(const ls_model *model, int64_t T);

LS_C_END
