/* model_families.c -- the rows.
 *
 * Most families are Llama with a difference, so names and keys of Llama are macros, and a row says
 * what differs. Defaults are those of the family's class in transformers: a config.json without the
 * key means exactly that. What a run file leaves out is settled by config/check.c instead, alike for
 * all families of a kind. */
#include "config/model_families.h"

#define LLAMA_SIZES                                                                        \
    .width = "hidden_size", .layers = "num_hidden_layers", .heads = "num_attention_heads", \
    .context = "max_position_embeddings", .act = "hidden_act", .eps = "rms_norm_eps"
#define LLAMA_KEYS LLAMA_SIZES, .mlp = "intermediate_size"

/* Outside of blocks, and attention. */
#define LLAMA_FRAME                                                                            \
    .prefix = "model.", .embedding = "embed_tokens", .blocks = "layers", .final_norm = "norm", \
    .attention = "self_attn", .qkv = {"q_proj", "k_proj", "v_proj"}, .proj = "o_proj"
#define PRE_NORMS .norm1 = "input_layernorm", .norm2 = "post_attention_layernorm"
#define LLAMA_MLP .mlp = "mlp", .fc = {"gate_proj", "up_proj"}, .out = "down_proj"
#define LLAMA_NAMES LLAMA_FRAME, PRE_NORMS, LLAMA_MLP
#define EXPERTS .router = "gate", .experts = "experts"

#define SILU "silu|swish"

static const ls_family_refused gpt2_refused[] = {
    {"scale_attn_weights", LS_REFUSED_UNLESS_TRUE, "attention without scaling is not built"},
    {"scale_attn_by_inverse_layer_idx", LS_REFUSED_UNLESS_FALSE,
     "attention scaled by layer is not built"},
    {"reorder_and_upcast_attn", LS_REFUSED_UNLESS_FALSE, "reordered attention is not built"},
    {"add_cross_attention", LS_REFUSED_UNLESS_FALSE, "attention to another text is not built"},
    {.key = NULL}};

static const ls_family_refused olmoe_refused[] = {
    {"clip_qkv", LS_REFUSED_UNLESS_NULL, "queries, keys and values that are clipped are not built"},
    {.key = NULL}};

/* A row: its value of ls_family, its name, its classes in transformers (with the head, and without),
 * and whatever model_families.h lists that is not zero. */
#define FAMILY(id, name_, causal_, base_, ...) \
    [LS_FAMILY_##id] = {.name = name_, .causal = causal_, .base = base_, __VA_ARGS__}

static const ls_family_row rows[LS_FAMILIES] = {
    FAMILY(GPT2, "gpt2", "GPT2LMHeadModel", "GPT2Model",
           .keys = {.width = "hidden_size|n_embd",
                    .layers = "num_hidden_layers|n_layer",
                    .heads = "num_attention_heads|n_head",
                    .context = "max_position_embeddings|n_positions",
                    .mlp = "n_inner",
                    .act = "activation_function",
                    .eps = "layer_norm_epsilon",
                    .dropout = "resid_pdrop"},
           .names = {.prefix = "transformer.",
                     .embedding = "wte",
                     .positions = "wpe",
                     .blocks = "h",
                     .final_norm = "ln_f",
                     .norm1 = "ln_1",
                     .norm2 = "ln_2",
                     .attention = "attn",
                     .qkv = {"c_attn"},
                     .proj = "c_proj",
                     .mlp = "mlp",
                     .fc = {"c_fc"},
                     .out = "c_proj"},
           .layer_norm = true, .in_out = true, .act = "gelu_new|gelu_pytorch_tanh", .context = 1024,
           .eps = 1e-5, .theta = 10000, .dropout = 0.1, .tied = true, .head_sizes = LS_HEADS_FILL,
           .kv_is_heads = true, .bias = LS_BIAS_ALL, .other_bias = "layers without bias",
           .refused = gpt2_refused),
    FAMILY(LLAMA, "llama", "LlamaForCausalLM", "LlamaModel", .keys = {LLAMA_KEYS},
           .names = {LLAMA_NAMES}, .act = SILU, .context = 2048, .eps = 1e-6, .theta = 10000,
           .head_sizes = LS_HEADS_DIVIDE, .bias = LS_BIAS_NONE, .attention_bias_key = true,
           .mlp_bias_key = true, .other_bias = "a bias on queries, keys and values only"),
    FAMILY(MISTRAL, "mistral", "MistralForCausalLM", "MistralModel", .keys = {LLAMA_KEYS},
           .names = {LLAMA_NAMES}, .act = SILU, .context = 131072, .kv_heads = 8, .eps = 1e-6,
           .theta = 10000, .bias = LS_BIAS_NONE, .other_bias = "biases", .window = LS_WINDOW_PLAIN,
           .window_size = 4096),
    FAMILY(QWEN2, "qwen2", "Qwen2ForCausalLM", "Qwen2Model", .keys = {LLAMA_KEYS},
           .names = {LLAMA_NAMES}, .act = SILU, .context = 32768, .kv_heads = 32, .eps = 1e-6,
           .theta = 10000, .bias = LS_BIAS_QKV,
           .other_bias = "biases elsewhere than queries, keys and values",
           .window = LS_WINDOW_LAYERS, .window_size = 4096),
    FAMILY(QWEN3, "qwen3", "Qwen3ForCausalLM", "Qwen3Model", .keys = {LLAMA_KEYS},
           .names = {LLAMA_NAMES}, .qk_norm = LS_QK_NORM_HEAD, .act = SILU, .context = 32768,
           .kv_heads = 32, .head_size = 128, .eps = 1e-6, .theta = 10000, .bias = LS_BIAS_NONE,
           .attention_bias_key = true, .other_bias = "such biases", .window = LS_WINDOW_LAYERS,
           .window_size = 4096),
    FAMILY(MIXTRAL, "mixtral", "MixtralForCausalLM", "MixtralModel", .keys = {LLAMA_KEYS},
           .names = {LLAMA_FRAME, PRE_NORMS, EXPERTS, .mlp = "block_sparse_moe", .fc = {"w1", "w3"},
                     .out = "w2"},
           .act = SILU, .context = 131072, .kv_heads = 8, .eps = 1e-5, .theta = 1000000,
           .bias = LS_BIAS_NONE, .other_bias = "biases", .window = LS_WINDOW_PLAIN,
           .experts = {.key = "num_local_experts", .n = 8, .used = 2}),
    FAMILY(
        QWEN3_MOE, "qwen3_moe", "Qwen3MoeForCausalLM", "Qwen3MoeModel",
        .keys = {LLAMA_SIZES, .mlp = "moe_intermediate_size"}, .names = {LLAMA_NAMES, EXPERTS},
        .qk_norm = LS_QK_NORM_HEAD, .act = SILU, .context = 32768, .kv_heads = 4, .eps = 1e-6,
        .theta = 10000, .bias = LS_BIAS_NONE, .attention_bias_key = true,
        .other_bias = "such biases", .window = LS_WINDOW_SWITCH, .window_size = 4096,
        .experts = {.key = "num_experts", .n = 128, .used = 8, .norm_key = true, .step_key = true}),
    FAMILY(OLMOE, "olmoe", "OlmoeForCausalLM", "OlmoeModel", .keys = {LLAMA_KEYS},
           .names = {LLAMA_NAMES, EXPERTS}, .qk_norm = LS_QK_NORM_WHOLE, .act = SILU,
           .context = 4096, .eps = 1e-5, .theta = 10000, .head_sizes = LS_HEADS_FILL,
           .bias = LS_BIAS_NONE, .attention_bias_key = true, .other_bias = "such biases",
           .experts = {.key = "num_experts", .n = 64, .used = 8, .norm_key = true},
           .refused = olmoe_refused),
    FAMILY(OLMO2, "olmo2", "Olmo2ForCausalLM", "Olmo2Model", .keys = {LLAMA_KEYS},
           .names = {LLAMA_FRAME, LLAMA_MLP, .norm1 = "post_attention_layernorm",
                     .norm2 = "post_feedforward_layernorm"},
           .post_norm = true, .qk_norm = LS_QK_NORM_WHOLE, .act = SILU, .context = 2048,
           .eps = 1e-5, .theta = 10000, .bias = LS_BIAS_NONE, .attention_bias_key = true,
           .other_bias = "such biases"),
    FAMILY(PHI3, "phi3", "Phi3ForCausalLM", "Phi3Model",
           .keys = {LLAMA_KEYS, .dropout = "resid_pdrop"},
           .names = {LLAMA_NAMES, .fused_qkv = "qkv_proj", .fused_fc = "gate_up_proj"}, .act = SILU,
           .context = 4096, .eps = 1e-5, .theta = 10000, .plain_rope = true, .bias = LS_BIAS_NONE,
           .other_bias = "biases", .window = LS_WINDOW_PLAIN),
};

const ls_family_row *ls_families_row(ls_family family)
{
    LS_BUG_IF((unsigned)family >= LS_FAMILIES, "family %d", (int)family);
    return &rows[family];
}

void ls_families_list(bool mixtures, char *out, size_t cap)
{
    const char *names[LS_FAMILIES];
    size_t at = 0;
    int n = 0;

    for (int i = 0; i < LS_FAMILIES; i++)
        if (!mixtures || rows[i].experts.n > 0)
            names[n++] = rows[i].name;
    for (int i = 0; i < n && at < cap; i++)
        at += (size_t)snprintf(out + at, cap - at, "%s%s",
                               i == 0      ? ""
                               : i < n - 1 ? ", "
                                           : " and ",
                               names[i]);
}
