/* unbuilt_families.c -- one sentence a family, taken from its modelling file in transformers.
 *
 * Only what is missing is named: a family that is qwen2 with one addition has that addition here. */
#include "config/unbuilt_families.h"

#define SIGMOID_ROUTER "a router that takes sigmoids, a bias for the choice and groups of experts"
#define SHARED_EXPERTS "experts that all tokens share"
#define DENSE_FIRST "first layers without experts"
#define MULTIPLIERS "its multipliers of embeddings, attention, residuals and logits"
#define GEMMA "norms that multiply by 1 + weight, scaled embeddings and a gated GELU"
#define WINDOW_TURNS "layers with and without a window in turn"
#define LLAMA4                                                                                 \
    "attention in chunks, layers without rotary positions, a router that takes sigmoids, and " \
    "an expert that all tokens share"
#define GEMMA3 GEMMA ", norms on both sides of attention and MLP, and " WINDOW_TURNS
#define STATE_SPACE "state-space layers, which stand where attention does here"
#define PART_OF_HEAD "rotary positions on a part of each head"

static const struct {
    const char *model_type, *lacks;
} rows[] = {
    {"deepseek_v2", "latent attention (MLA), " SHARED_EXPERTS " and " DENSE_FIRST},
    {"deepseek_v3",
     "latent attention (MLA), " SHARED_EXPERTS ", " SIGMOID_ROUTER ", and " DENSE_FIRST},
    {"gpt_oss",
     "attention sinks, biases of experts and router, a clamped activation, and " WINDOW_TURNS},
    {"qwen3_next",
     "layers of linear attention (gated delta rule), gated attention, "
     "an expert that all tokens share, norms that multiply by 1 + weight, and " PART_OF_HEAD},
    {"qwen2_moe", "an expert that all tokens share, with a gate of its own"},
    {"llama4", LLAMA4},
    {"llama4_text", LLAMA4},
    {"glm4_moe", SHARED_EXPERTS ", " SIGMOID_ROUTER ", " DENSE_FIRST ", and " PART_OF_HEAD},
    {"granitemoe", MULTIPLIERS ", and files that hold all experts in one tensor"},
    {"granite", MULTIPLIERS},
    {"phimoe", "a router of its own (sparse mixer), and LayerNorm with rotary positions"},
    {"flex_olmo", "norms behind attention and MLP together with experts"},
    {"gemma", GEMMA},
    {"gemma2",
     GEMMA ", norms on both sides of attention and MLP, capped logits, and " WINDOW_TURNS},
    {"gemma3", GEMMA3},
    {"gemma3_text", GEMMA3},
    {"olmo", "LayerNorm without weights"},
    {"olmo3", WINDOW_TURNS},
    {"smollm3", "layers without rotary positions"},
    {"phi", "attention and MLP side by side behind one norm, and " PART_OF_HEAD},
    {"gpt_neox",
     "attention and MLP side by side, LayerNorm with rotary positions, and " PART_OF_HEAD},
    {"starcoder2", "LayerNorm with rotary positions"},
    {"stablelm", "LayerNorm with rotary positions, and " PART_OF_HEAD},
    {"opt", "ReLU, and learned positions that begin at 2"},
    {"bloom", "positions as a bias of attention (ALiBi)"},
    {"mamba", STATE_SPACE},
    {"mamba2", STATE_SPACE},
    {"falcon_mamba", STATE_SPACE},
};

const char *ls_unbuilt_families_lacks(const char *model_type)
{
    for (size_t i = 0; i < LS_COUNT(rows); i++)
        if (strcmp(rows[i].model_type, model_type) == 0)
            return rows[i].lacks;
    return NULL;
}
