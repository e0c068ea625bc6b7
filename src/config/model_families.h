/* model_families.h -- the model families: one row of facts each.
 *
 * A family is an architecture that transformers knows under a name (model_type). What sets one apart
 * from another is written down here once, and everybody reads it: the checks of a run file, the
 * reader and the writer of config.json (hf_config*.c), the model's description and its passes
 * (model/), import and export (hf/). To add a family is to add a row; CONTRIBUTING.md has the
 * recipe. */
#pragma once
#include "base/err.h"
#include "config/run.h"

LS_C_BEGIN

/* Names of sizes in config.json: synonyms "a|b" in the order in which they are looked for, of which
 * the last is written. NULL: the family has no such key. */
typedef struct ls_family_keys {
    const char *width, *layers, *heads, *context, *mlp, *act, *eps;
    const char *dropout; /* of the two branches of a block */
} ls_family_keys;

/* Names of tensors, ".weight" and ".bias" left out. Parameter names here are those of a Hugging
 * Face folder:
 *
 *   prefix  blocks  l   attention  qkv[0]                 prefix  embedding
 *   model.  layers. 3 . self_attn. q_proj  .weight        model.  embed_tokens .weight
 *
 * A family with fused projections is the exception: here q, k and v (gate and up) are parameters of
 * their own, which lie side by side in memory as the fused tensor does, and only folders know that
 * one (hf/hf_fused.h). */
typedef struct ls_family_names {
    const char *prefix, *embedding, *blocks, *final_norm;
    const char *positions;     /* learned ones; NULL: they are rotary */
    const char *norm1, *norm2; /* of attention and of the MLP, before or behind it */
    const char *attention;     /* and inside it: */
    const char *qkv[3], *proj; /* qkv[1] NULL: one matrix of [inputs, 3 outputs] holds all three */
    const char *fused_qkv;     /* in folders; NULL: as here */
    const char *mlp;           /* and inside it, or of a mixture inside each expert: */
    const char *fc[2], *out;   /* fc[1] NULL: the MLP is not gated */
    const char *fused_fc;      /* in folders; NULL: as here */
    const char *router, *experts; /* of a mixture, inside its MLP */
} ls_family_names;

typedef enum ls_family_qk_norm {
    LS_QK_NORM_NONE,
    LS_QK_NORM_HEAD, /* each head of queries and of keys */
    LS_QK_NORM_WHOLE /* all heads of the queries together, and all of the keys */
} ls_family_qk_norm;

/* Which sizes of heads transformers takes. */
typedef enum ls_family_heads {
    LS_HEADS_FREE,   /* any: config.json says head_dim */
    LS_HEADS_DIVIDE, /* any, while the number of heads divides the width */
    LS_HEADS_FILL    /* width / heads */
} ls_family_heads;

/* How config.json describes a sliding window. */
typedef enum ls_family_window {
    LS_WINDOW_NONE,
    LS_WINDOW_PLAIN,  /* sliding_window; in all layers */
    LS_WINDOW_SWITCH, /* and use_sliding_window */
    LS_WINDOW_LAYERS  /* and the layers that have it */
} ls_family_window;

/* A key that must have one value, since another makes a model that is not built. */
typedef struct ls_family_refused {
    const char *key;
    enum { LS_REFUSED_UNLESS_NULL, LS_REFUSED_UNLESS_FALSE, LS_REFUSED_UNLESS_TRUE } unless;
    const char *what; /* "attention without scaling is not built" */
} ls_family_refused;

/* A mixture of experts; n 0: none. Numbers are what holds where config.json is silent. */
typedef struct ls_family_experts {
    const char *key; /* for their number, as it is written */
    int64_t n, used;
    bool norm_key; /* config.json says whether weights are divided by their sum; else they are */
    bool step_key; /* and writes that all layers have experts */
} ls_family_experts;

typedef struct ls_family_row {
    const char *name;          /* model_type, and the value of model.family */
    const char *causal, *base; /* its classes in transformers: with the head, and without */
    ls_family_keys keys;
    ls_family_names names;

    /* What it computes. */
    bool layer_norm; /* LayerNorm with biases; else RMSNorm */
    bool post_norm;  /* norms behind attention and MLP, before their results join the stream; else
                      * before attention and MLP */
    ls_family_qk_norm qk_norm;
    bool in_out; /* matrices are [inputs, outputs] */

    /* What its config.json may say, and what holds where it is silent. */
    const char *act; /* names of its activation, the first of which is written */
    int64_t context;
    int64_t kv_heads;  /* 0: as many as heads */
    int64_t head_size; /* 0: width / heads */
    double eps, theta, dropout;
    bool plain_rope; /* transformers takes no scaling of rotary positions that is built here */
    bool tied;
    ls_family_heads head_sizes;
    bool kv_is_heads; /* keys and values have as many heads as queries */
    ls_bias bias;     /* unless a key says otherwise: */
    bool attention_bias_key, mlp_bias_key;
    const char *other_bias; /* "biases": what a bias that no key can say would be */
    ls_family_window window;
    int64_t window_size; /* where the key is absent, not null; 0: none */
    ls_family_experts experts;
    const ls_family_refused *refused; /* ends with a key that is NULL; may be NULL */
} ls_family_row;

/* As model.family names them, in the order of ls_family. */
#define LS_FAMILY_NAMES \
    "gpt2", "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "olmoe", "olmo2", "phi3"

enum { LS_FAMILIES = LS_FAMILY_PHI3 + 1 };

const ls_family_row *ls_families_row(ls_family family);

static inline bool ls_families_is_mixture(ls_family family)
{
    return ls_families_row(family)->experts.n > 0;
}

/* Whether a family's MLP is gated; learns its positions. */
static inline bool ls_families_is_gated(const ls_family_row *row)
{
    return row->names.fc[1] != NULL;
}
static inline bool ls_families_learns_positions(const ls_family_row *row)
{
    return row->names.positions != NULL;
}

/* "gpt2, llama and olmoe": all names, or those of mixtures. */
void ls_families_list(bool mixtures, char *out, size_t cap);

LS_C_END
