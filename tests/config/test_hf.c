/* test_hf.c -- config.json of Hugging Face folders: each family, both rotary spellings, refusals,
 * the way back, and a run that imports one. */
#include "harness.h"

#include <sys/stat.h>
#include "base/file.h"
#include "base/json.h"
#include "config/explain.h"
#include "config/hf_config.h"
#include "config/model_families.h"
#include "config/runfile.h"
#include "config/unbuilt_families.h"
#include "config/value.h"

#define LLAMA                                                                               \
    "\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":100," \
    "\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":3,"                  \
    "\"num_attention_heads\":4"
#define GPT2 "\"model_type\":\"gpt2\",\"vocab_size\":100,\"n_embd\":32,\"n_layer\":2,\"n_head\":4"
#define MIXTRAL                                                                                 \
    "\"model_type\":\"mixtral\",\"vocab_size\":100,\"hidden_size\":32,\"num_hidden_layers\":2," \
    "\"num_attention_heads\":8,\"intermediate_size\":48"
#define QWEN3_MOE                                                                                 \
    "\"model_type\":\"qwen3_moe\",\"vocab_size\":100,\"hidden_size\":32,\"num_hidden_layers\":2," \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":48,"               \
    "\"moe_intermediate_size\":24,\"num_experts\":6,\"num_experts_per_tok\":2"
#define OLMOE                                                                               \
    "\"model_type\":\"olmoe\",\"architectures\":[\"OlmoeForCausalLM\"],\"vocab_size\":100," \
    "\"hidden_size\":32,\"intermediate_size\":24,\"num_hidden_layers\":2,"                  \
    "\"num_attention_heads\":4"
#define OLMO2                                                                               \
    "\"model_type\":\"olmo2\",\"architectures\":[\"Olmo2ForCausalLM\"],\"vocab_size\":100," \
    "\"hidden_size\":32,\"intermediate_size\":24,\"num_hidden_layers\":2,"                  \
    "\"num_attention_heads\":4"
#define PHI3                                                                              \
    "\"model_type\":\"phi3\",\"architectures\":[\"Phi3ForCausalLM\"],\"vocab_size\":100," \
    "\"hidden_size\":32,\"intermediate_size\":24,\"num_hidden_layers\":2,"                \
    "\"num_attention_heads\":4"
#define QWEN3                                                                                  \
    "\"model_type\":\"qwen3\",\"vocab_size\":100,\"hidden_size\":32,\"intermediate_size\":48," \
    "\"num_hidden_layers\":4,\"num_attention_heads\":4,\"num_key_value_heads\":2"

static ls_status read_text(const char *text, ls_hf_config *config)
{
    return ls_hf_config_read(config, text, strlen(text), "config.json");
}

LS_TEST(hf_reads_llama_with_transformers_defaults)
{
    ls_hf_config c;

    LS_CHECK_OK(read_text("{" LLAMA "}", &c));
    LS_CHECK_EQ(c.model.family, LS_FAMILY_LLAMA);
    LS_CHECK_EQ(c.model.width, 32);
    LS_CHECK_EQ(c.model.kv_heads, 4);
    LS_CHECK_EQ(c.model.head_size, 8);
    LS_CHECK_EQ(c.model.context, 2048);
    LS_CHECK_EQ(c.model.tied, LS_TIED_NO);
    LS_CHECK_EQ(c.model.bias, LS_BIAS_NONE);
    LS_CHECK_NEAR(c.model.norm_eps, 1e-6, 0);
    LS_CHECK_NEAR(c.model.rope_theta, 10000, 0);
    LS_CHECK_EQ(c.bos, -1);
    LS_CHECK_EQ(c.n_eos, 0);
    LS_CHECK_STR(c.dtype, "");
}

LS_TEST(hf_passes_over_numbers_of_python_that_nobody_reads)
{
    ls_hf_config c;

    LS_CHECK_OK(read_text("{" LLAMA ",\"model_max_length\":1000000000000000019884624838656,"
                          "\"limits\":[0.0,Infinity],\"max_position_embeddings\":77}",
                          &c));
    LS_CHECK_EQ(c.model.context, 77);
}

LS_TEST(hf_reads_llama_flags_and_ids)
{
    ls_hf_config c;

    LS_CHECK_OK(read_text("{" LLAMA ",\"num_key_value_heads\":2,\"head_dim\":16,\"bos_token_id\":1,"
                          "\"eos_token_id\":[2,99,5000],\"torch_dtype\":\"torch.bfloat16\","
                          "\"attention_bias\":true,\"mlp_bias\":true,\"tie_word_embeddings\":true,"
                          "\"rms_norm_eps\":1e-5,\"max_position_embeddings\":77}",
                          &c));
    LS_CHECK_EQ(c.model.kv_heads, 2);
    LS_CHECK_EQ(c.model.head_size, 16);
    LS_CHECK_EQ(c.model.bias, LS_BIAS_ALL);
    LS_CHECK_EQ(c.model.tied, LS_TIED_YES);
    LS_CHECK_EQ(c.model.context, 77);
    LS_CHECK_EQ(c.bos, 1);
    LS_CHECK_EQ(c.n_eos, 2); /* 5000 is outside the vocabulary */
    LS_CHECK_EQ(c.eos[1], 99);
    LS_CHECK_STR(c.dtype, "bfloat16");
}

static void check_llama3(const char *text)
{
    ls_hf_config c;

    LS_CHECK_OK(read_text(text, &c));
    LS_CHECK_EQ(c.model.rope_scaling, LS_ROPE_LLAMA3);
    LS_CHECK_NEAR(c.model.rope_theta, 500000, 0);
    LS_CHECK_NEAR(c.model.rope_factor, 8, 0);
    LS_CHECK_NEAR(c.model.rope_low, 1, 0);
    LS_CHECK_NEAR(c.model.rope_high, 4, 0);
    LS_CHECK_EQ(c.model.rope_original, 8192);
}

LS_TEST(hf_reads_both_spellings_of_rotary_settings)
{
    ls_hf_config c;

    check_llama3("{" LLAMA ",\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\","
                 "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                 "\"original_max_position_embeddings\":8192}}");
    check_llama3("{" LLAMA ",\"rope_parameters\":{\"rope_theta\":500000,\"type\":\"llama3\","
                 "\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
                 "\"original_max_position_embeddings\":8192}}");
    LS_CHECK_OK(read_text("{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}}", &c));
    LS_CHECK_EQ(c.model.rope_scaling, LS_ROPE_LINEAR);
    LS_CHECK_NEAR(c.model.rope_factor, 2.5, 0);
    LS_CHECK_OK(read_text("{" LLAMA ",\"rope_scaling\":null,\"rope_theta\":1e6}", &c));
    LS_CHECK_EQ(c.model.rope_scaling, LS_ROPE_PLAIN);
    LS_CHECK_FAILS(read_text("{" LLAMA ",\"rope_theta\":1e6,\"rope_parameters\":"
                             "{\"rope_theta\":1e4}}",
                             &c),
                   LS_EDATA, "\"rope_theta\" is 1000000 in one place and 10000 in another");
}

/* The spelling that wins differs between versions of transformers. */
LS_TEST(hf_asks_both_rotary_spellings_to_agree)
{
    ls_hf_config c;

    LS_CHECK_OK(read_text("{" LLAMA ",\"rope_theta\":77,\"rope_scaling\":{\"type\":\"linear\","
                          "\"factor\":4},\"rope_parameters\":{\"rope_type\":\"linear\","
                          "\"factor\":4.0,\"rope_theta\":77.0}}",
                          &c));
    LS_CHECK_EQ(c.model.rope_scaling, LS_ROPE_LINEAR);
    LS_CHECK_NEAR(c.model.rope_theta, 77, 0);
    LS_CHECK_FAILS(read_text("{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4},"
                             "\"rope_parameters\":{\"rope_type\":\"default\"}}",
                             &c),
                   LS_EDATA, "\"rope_scaling\" and \"rope_parameters\" contradict each other");
    LS_CHECK_FAILS(read_text("{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4},"
                             "\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4,"
                             "\"rope_theta\":500000}}",
                             &c),
                   LS_EDATA, "contradict");
    LS_CHECK_OK(read_text("{" LLAMA ",\"rope_scaling\":{},\"rope_parameters\":"
                          "{\"rope_type\":\"linear\",\"factor\":4}}",
                          &c));
    LS_CHECK_EQ(c.model.rope_scaling, LS_ROPE_LINEAR);
}

/* A name that transformers passes over must not make another model here. */
LS_TEST(hf_passes_over_names_that_transformers_does_not_know)
{
    ls_hf_config c;

    LS_CHECK_OK(read_text("{" GPT2 ",\"hidden_act\":\"relu\",\"layer_norm_eps\":0.5,"
                          "\"intermediate_size\":40,\"n_ctx\":7}",
                          &c));
    LS_CHECK_NEAR(c.model.norm_eps, 1e-5, 0);
    LS_CHECK_EQ(c.model.mlp, 128);
    LS_CHECK_EQ(c.model.context, 1024);
    LS_CHECK_OK(read_text("{" LLAMA ",\"activation_function\":\"relu\",\"norm_eps\":0.5,"
                          "\"rotary_emb_base\":5,\"n_kv_heads\":1}",
                          &c));
    LS_CHECK_NEAR(c.model.norm_eps, 1e-6, 0);
    LS_CHECK_NEAR(c.model.rope_theta, 10000, 0);
    LS_CHECK_EQ(c.model.kv_heads, 4);
    LS_CHECK_FAILS(read_text("{" GPT2 ",\"hidden_act\":\"gelu_new\","
                             "\"activation_function\":\"relu\"}",
                             &c),
                   LS_EUSAGE, "the activation \"relu\"");
    LS_CHECK_OK(read_text("{" GPT2 ",\"num_attention_heads\":2}", &c)); /* the synonym wins */
    LS_CHECK_EQ(c.model.heads, 2);
}

LS_TEST(hf_reads_gpt2_with_its_defaults)
{
    ls_hf_config c;

    LS_CHECK_OK(read_text("{" GPT2 ",\"n_ctx\":7,\"n_positions\":64,\"n_inner\":null,"
                          "\"eos_token_id\":50256}",
                          &c));
    LS_CHECK_EQ(c.model.context, 64);
    LS_CHECK_EQ(c.model.mlp, 128);
    LS_CHECK_EQ(c.model.tied, LS_TIED_YES);
    LS_CHECK_EQ(c.model.bias, LS_BIAS_ALL);
    LS_CHECK_EQ(c.n_eos, 0);
    LS_CHECK_NEAR(c.model.norm_eps, 1e-5, 0);
    LS_CHECK_NEAR(c.model.dropout, 0.1, 0);
}

LS_TEST(hf_reads_windows_of_mistral_and_qwen)
{
    ls_hf_config c;
    static const char mistral[] = "{\"model_type\":\"mistral\",\"vocab_size\":100,"
                                  "\"hidden_size\":32,\"intermediate_size\":48,"
                                  "\"num_hidden_layers\":3,\"num_attention_heads\":8%s}";
    char text[512];

    snprintf(text, sizeof text, mistral, "");
    LS_CHECK_OK(read_text(text, &c));
    LS_CHECK_EQ(c.model.window, 4096);
    LS_CHECK_EQ(c.model.kv_heads, 8);
    snprintf(text, sizeof text, mistral, ",\"sliding_window\":null");
    LS_CHECK_OK(read_text(text, &c));
    LS_CHECK_EQ(c.model.window, 0);
    LS_CHECK_OK(read_text("{" QWEN3 ",\"sliding_window\":16,\"use_sliding_window\":true,"
                          "\"max_window_layers\":3}",
                          &c));
    LS_CHECK_EQ(c.model.window, 16);
    LS_CHECK_EQ(c.model.window_from, 3);
    LS_CHECK_EQ(c.model.head_size, 128);
    LS_CHECK_OK(read_text("{" QWEN3 ",\"sliding_window\":16,\"use_sliding_window\":false}", &c));
    LS_CHECK_EQ(c.model.window, 0);
    LS_CHECK_OK(read_text("{" QWEN3 ",\"sliding_window\":16,\"use_sliding_window\":true,"
                          "\"layer_types\":[\"full_attention\",\"sliding_attention\","
                          "\"sliding_attention\",\"sliding_attention\"]}",
                          &c));
    LS_CHECK_EQ(c.model.window_from, 1);
    LS_CHECK_FAILS(read_text("{" QWEN3 ",\"sliding_window\":16,\"use_sliding_window\":true,"
                             "\"layer_types\":[\"sliding_attention\",\"full_attention\","
                             "\"sliding_attention\",\"full_attention\"]}",
                             &c),
                   LS_EUSAGE, "a full layer after one with a window");
    LS_CHECK_FAILS(
        read_text("{" QWEN3 ",\"layer_types\":[\"chunked_attention\",\"a\",\"b\",3]}", &c),
        LS_EUSAGE, "layers other than");
}

LS_TEST(hf_refuses_other_models_by_name)
{
    static const struct {
        const char *text, *part;
        ls_status status;
    } rows[] = {
        {"{\"model_type\":\"unheard_moe\",\"num_experts\":60}",
         "\"model_type\": the family \"unheard_moe\" is not built (a mixture of 60 experts)",
         LS_EUSAGE},
        {"{\"model_type\":\"unheard_vl\",\"vision_config\":{}}",
         "the family \"unheard_vl\" is not built: it reads images", LS_EUSAGE},
        {"{" OLMOE ",\"clip_qkv\":8.0}", "that are clipped", LS_EUSAGE},
        {"{" PHI3 ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1,1],"
         "\"long_factor\":[2,2,2,2]}}",
         "rotary positions scaled by \"longrope\": not built yet", LS_EUSAGE},
        {"{" PHI3 ",\"rope_scaling\":{\"type\":\"su\"}}", "scaled by \"su\"", LS_EUSAGE},
        {"{" PHI3 ",\"partial_rotary_factor\":0.75}", "only a part of each head", LS_EUSAGE},
        {"{" OLMOE ",\"head_dim\":16}", "heads that fill its width", LS_EUSAGE},
        {"{" LLAMA ",\"num_local_experts\":4}",
         "a llama model with 4 experts is not built; mixtures of experts are mixtral, qwen3_moe "
         "and olmoe",
         LS_EUSAGE},
        {"{" QWEN3_MOE ",\"decoder_sparse_step\":2}", "in some layers only", LS_EUSAGE},
        {"{" QWEN3_MOE ",\"mlp_only_layers\":[1]}", "in some layers only", LS_EUSAGE},
        {"{" MIXTRAL ",\"num_local_experts\":6,\"num_experts_per_tok\":7}",
         "is 7, but there are 6 experts", LS_EDATA},
        {"{\"model_type\":\"bert\"}", "the family \"bert\" is not built", LS_EUSAGE},
        {"{" LLAMA ",\"hidden_act\":\"gelu\"}", "the activation \"gelu\"", LS_EUSAGE},
        {"{" LLAMA ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}", "scaled by \"yarn\"",
         LS_EUSAGE},
        {"{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":4}}", "\"dynamic\"",
         LS_EUSAGE},
        {"{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"longrope\"}}", "\"longrope\"", LS_EUSAGE},
        {"{" LLAMA ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1}}}",
         "differ between layers", LS_EUSAGE},
        {"{" LLAMA ",\"partial_rotary_factor\":0.5}", "a part of each head", LS_EUSAGE},
        {"{" LLAMA ",\"quantization_config\":{\"quant_method\":\"gptq\"}}", "quantized by \"gptq\"",
         LS_EUSAGE},
        {"{" LLAMA ",\"is_causal\":false}", "looks at later tokens", LS_EUSAGE},
        {"{" GPT2 ",\"scale_attn_weights\":false}", "attention without scaling", LS_EUSAGE},
        {"{" GPT2 ",\"reorder_and_upcast_attn\":true}", "reordered", LS_EUSAGE},
        {"{" GPT2 ",\"add_cross_attention\":true}", "another text", LS_EUSAGE},
        {"{" GPT2 ",\"activation_function\":\"gelu\"}", "the activation \"gelu\"", LS_EUSAGE},
        {"{\"model_type\":\"llama\",\"architectures\":[\"LlamaForSequenceClassification\"]}",
         "is not a model that continues text", LS_EUSAGE},
        {"{}", "\"model_type\" is missing", LS_EDATA},
        {"[]", "not a JSON object", LS_EDATA},
        {"{\"a\":1,\"a\":2}", "duplicate", LS_EDATA},
        {"{", "not valid JSON", LS_EDATA},
        {"{\"model_type\":\"llama\"}", "\"vocab_size\" is missing", LS_EDATA},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":100,\"n_embd\":65536,\"n_layer\":1,"
         "\"n_head\":65536}",
         "\"n_head\" is 65536, but must be from 1 to 1024", LS_EDATA},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":1e3}", "not a whole number", LS_EDATA},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":9223372036854775807}", "must be from 2",
         LS_EDATA},
        {"{" GPT2 ",\"n_positions\":-1}", "must be from 1", LS_EDATA},
        {"{\"model_type\":\"gpt2\",\"vocab_size\":100,\"n_embd\":30,\"n_layer\":1,\"n_head\":4}",
         "4 heads do not divide a width of 30", LS_EDATA},
        {"{" LLAMA ",\"num_key_value_heads\":3}", "3 heads of keys and values", LS_EDATA},
        {"{" LLAMA ",\"head_dim\":7}", "cannot be turned in pairs", LS_EDATA},
        {"{" LLAMA ",\"rms_norm_eps\":\"x\"}", "not a number", LS_EDATA},
        {"{" LLAMA ",\"attention_bias\":1}", "neither true nor false", LS_EDATA},
        {"{" LLAMA ",\"rope_theta\":NaN}", "not a number", LS_EDATA},
        {"{" LLAMA ",\"max_position_embeddings\":1000000000000000019884624838656}",
         "not a whole number", LS_EDATA},
    };
    ls_hf_config c;

    for (size_t i = 0; i < LS_COUNT(rows); i++)
        LS_CHECK_FAILS(read_text(rows[i].text, &c), rows[i].status, rows[i].part);
}

/* A family that is not built is refused for what it lacks here, not for having experts. */
LS_TEST(hf_says_what_a_family_lacks)
{
    static const char *const rows[][2] = {
        {"deepseek_v3", "it needs latent attention (MLA), experts that all tokens share"},
        {"gpt_oss", "it needs attention sinks, biases of experts and router"},
        {"qwen3_next", "layers of linear attention (gated delta rule)"},
        {"qwen2_moe", "it needs an expert that all tokens share, with a gate of its own"},
        {"llama4_text", "attention in chunks, layers without rotary positions"},
        {"glm4_moe", "a router that takes sigmoids"},
        {"granitemoe", "its multipliers of embeddings, attention, residuals and logits"},
        {"gemma2", "norms that multiply by 1 + weight"},
    };
    ls_hf_config c;
    char text[160], part[160];

    for (size_t i = 0; i < LS_COUNT(rows); i++) {
        snprintf(text, sizeof text, "{\"model_type\":\"%s\",\"num_local_experts\":8}", rows[i][0]);
        snprintf(part, sizeof part, "the family \"%s\" is not built: ", rows[i][0]);
        LS_CHECK_FAILS(read_text(text, &c), LS_EUSAGE, part);
        LS_CHECK_FAILS(read_text(text, &c), LS_EUSAGE, rows[i][1]);
    }
}

/* The table is of families that are not built: one that gets a row in model_families.c leaves it. */
LS_TEST(hf_lacks_nothing_in_a_family_that_is_built)
{
    for (int i = 0; i < LS_FAMILIES; i++)
        LS_CHECK(!ls_unbuilt_families_lacks(ls_families_row((ls_family)i)->name));
}

/* qwen3_moe has two widths: that of an expert, and that of layers without experts. */
LS_TEST(hf_keeps_the_width_of_layers_without_experts)
{
    ls_hf_config c;
    ls_str out;

    ls_str_init(&out);
    LS_CHECK_OK(read_text("{" QWEN3_MOE "}", &c));
    LS_CHECK_EQ(c.model.mlp, 24);
    ls_hf_config_write(&c, &out);
    LS_CHECK(strstr(out.p, "\"intermediate_size\": 48,"));
    LS_CHECK(strstr(out.p, "\"moe_intermediate_size\": 24,"));
    ls_str_release(&out);
}

/* What is written reads back to the same model. */
static void check_round(const char *text)
{
    ls_hf_config a, b;
    ls_str out;

    ls_str_init(&out);
    LS_CHECK_OK(read_text(text, &a));
    LS_CHECK_OK(ls_hf_config_writable(&a.model));
    ls_hf_config_write(&a, &out);
    LS_CHECK_OK(read_text(out.p, &b));
    if (!*a.dtype)
        memcpy(a.dtype, b.dtype, sizeof a.dtype);
    for (int i = 0; i < ls_option_count; i++) {
        ls_run ra = {.model = a.model}, rb = {.model = b.model};
        ls_str va, vb;
        if (!ls_option_in(&ls_options[i], "model"))
            continue;
        ls_str_init(&va);
        ls_str_init(&vb);
        ls_value_print(&ls_options[i], &ra, &va);
        ls_value_print(&ls_options[i], &rb, &vb);
        LS_CHECK_STR(va.p, vb.p);
        ls_str_release(&va);
        ls_str_release(&vb);
    }
    LS_CHECK_EQ(a.bos, b.bos);
    LS_CHECK_EQ(a.n_eos, b.n_eos);
    LS_CHECK(memcmp(a.eos, b.eos, sizeof a.eos) == 0);
    LS_CHECK_STR(a.dtype, b.dtype);
    ls_str_release(&out);
}

LS_TEST(hf_writes_what_it_reads)
{
    check_round("{" LLAMA "}");
    check_round("{" LLAMA ",\"num_key_value_heads\":1,\"head_dim\":16,\"attention_bias\":true,"
                "\"bos_token_id\":0,\"eos_token_id\":[1,2,3],\"dtype\":\"float16\","
                "\"tie_word_embeddings\":true,\"rope_theta\":12345.678}");
    check_round("{" LLAMA ",\"mlp_bias\":true,\"rope_scaling\":{\"type\":\"linear\","
                "\"factor\":3.5}}");
    check_round("{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":32.0,"
                "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                "\"original_max_position_embeddings\":64}}");
    check_round("{" GPT2 ",\"n_inner\":77,\"eos_token_id\":3,\"tie_word_embeddings\":false}");
    check_round("{" QWEN3 ",\"attention_bias\":true,\"sliding_window\":16,"
                "\"use_sliding_window\":true,\"max_window_layers\":1}");
    check_round("{" MIXTRAL "}");
    check_round("{" MIXTRAL ",\"num_local_experts\":4,\"num_experts_per_tok\":3,"
                "\"sliding_window\":16,\"router_aux_loss_coef\":0.02}");
    check_round("{" OLMOE "}");
    check_round("{" OLMOE
                ",\"num_key_value_heads\":1,\"norm_topk_prob\":true,\"attention_bias\":true}");
    check_round("{" OLMO2 "}");
    check_round("{" OLMO2 ",\"attention_bias\":true,\"num_key_value_heads\":2,\"rope_theta\":5e5}");
    check_round("{" PHI3 "}");
    check_round("{" PHI3 ",\"num_key_value_heads\":2,\"sliding_window\":2047,\"resid_pdrop\":0.1}");
    check_round("{" QWEN3_MOE "}");
    check_round("{" QWEN3_MOE ",\"norm_topk_prob\":true,\"use_sliding_window\":true,"
                "\"sliding_window\":9,\"attention_bias\":true}");
}

LS_TEST(hf_reads_mixtures_with_transformers_defaults)
{
    ls_hf_config c;

    LS_CHECK_OK(read_text("{" MIXTRAL "}", &c));
    LS_CHECK_EQ(c.model.family, LS_FAMILY_MIXTRAL);
    LS_CHECK_EQ(c.model.experts, 8);
    LS_CHECK_EQ(c.model.experts_used, 2);
    LS_CHECK(c.model.experts_norm);
    LS_CHECK_EQ(c.model.window, 0);
    LS_CHECK_EQ(c.model.context, 131072);
    LS_CHECK_NEAR(c.model.rope_theta, 1e6, 0);
    LS_CHECK_NEAR(c.model.norm_eps, 1e-5, 1e-12);
    LS_CHECK_OK(read_text("{" QWEN3_MOE "}", &c));
    LS_CHECK_EQ(c.model.mlp, 24); /* moe_intermediate_size */
    LS_CHECK_EQ(c.model.experts, 6);
    LS_CHECK(!c.model.experts_norm);
    LS_CHECK_OK(read_text("{" OLMOE "}", &c));
    LS_CHECK_EQ(c.model.family, LS_FAMILY_OLMOE);
    LS_CHECK_EQ(c.model.experts, 64);
    LS_CHECK_EQ(c.model.experts_used, 8);
    LS_CHECK_EQ(c.model.kv_heads, c.model.heads);
    LS_CHECK_EQ(c.model.context, 4096);
    LS_CHECK(!c.model.experts_norm && c.model.window == 0);
    LS_CHECK_NEAR(c.model.rope_theta, 1e4, 0);
    LS_CHECK_NEAR(c.model.norm_eps, 1e-5, 1e-12);
    LS_CHECK_OK(read_text("{" OLMO2 "}", &c));
    LS_CHECK_EQ(c.model.family, LS_FAMILY_OLMO2);
    LS_CHECK_EQ(c.model.kv_heads, c.model.heads);
    LS_CHECK_EQ(c.model.context, 2048);
    LS_CHECK_EQ(c.model.bias, LS_BIAS_NONE);
    LS_CHECK_NEAR(c.model.norm_eps, 1e-5, 1e-12);
    LS_CHECK_OK(read_text("{" PHI3 "}", &c));
    LS_CHECK_EQ(c.model.family, LS_FAMILY_PHI3);
    LS_CHECK_EQ(c.model.kv_heads, c.model.heads);
    LS_CHECK_EQ(c.model.context, 4096);
    LS_CHECK_EQ(c.model.window, 0);
    LS_CHECK_NEAR(c.model.dropout, 0, 0);
    LS_CHECK_NEAR(c.model.norm_eps, 1e-5, 1e-12);
}

/* What means nothing here travels along, and what was not said stays unsaid. */
LS_TEST(hf_keeps_what_it_does_not_use)
{
    ls_hf_config c;
    ls_str out;

    ls_str_init(&out);
    LS_CHECK_OK(read_text("{" LLAMA ",\"pad_token_id\":7,\"pretraining_tp\":2,"
                          "\"attention_dropout\":0.25,\"transformers_version\":\"4\","
                          "\"unk_token_id\":\"no\"}",
                          &c));
    ls_hf_config_write(&c, &out);
    LS_CHECK_OK(ls_str_status(&out));
    LS_CHECK(strstr(out.p, "\n  \"pad_token_id\": 7,\n"));
    LS_CHECK(strstr(out.p, "\n  \"pretraining_tp\": 2,\n"));
    LS_CHECK(strstr(out.p, "\n  \"attention_dropout\": 0.25,\n"));
    LS_CHECK(strstr(out.p, "\n  \"rope_theta\": 10000.0,\n"));
    LS_CHECK(!strstr(out.p, "transformers_version"));
    LS_CHECK(!strstr(out.p, "unk_token_id"));
    LS_CHECK(!strstr(out.p, "eos_token_id"));
    ls_str_clear(&out);
    LS_CHECK_OK(read_text("{" GPT2 ",\"pad_token_id\":null,\"eos_token_id\":null,"
                          "\"attn_pdrop\":0,\"resid_pdrop\":0.5}",
                          &c));
    ls_hf_config_write(&c, &out);
    LS_CHECK(strstr(out.p, "\"pad_token_id\": null"));
    LS_CHECK(strstr(out.p, "\"eos_token_id\": null"));
    LS_CHECK(strstr(out.p, "\"attn_pdrop\": 0.0"));
    LS_CHECK(strstr(out.p, "\"embd_pdrop\": 0.5"));
    ls_str_release(&out);
}

LS_TEST(hf_says_what_no_family_has)
{
    ls_hf_config c;

    LS_CHECK_OK(read_text("{" LLAMA "}", &c));
    c.model.bias = LS_BIAS_QKV;
    LS_CHECK_FAILS(ls_hf_config_writable(&c.model), LS_EUSAGE,
                   "no llama model with a bias on queries, keys and values only");
    c.model.bias = LS_BIAS_NONE;
    c.model.window = 5;
    LS_CHECK_FAILS(ls_hf_config_writable(&c.model), LS_EUSAGE, "a sliding window");
    LS_CHECK_OK(read_text("{" PHI3 "}", &c));
    c.model.rope_scaling = LS_ROPE_LINEAR;
    LS_CHECK_FAILS(ls_hf_config_writable(&c.model), LS_EUSAGE, "such a scaling of positions");
}

/* --- a run that imports ----------------------------------------------------------------------- */

static ls_status load(ls_run *run, const char *text)
{
    return ls_runfile_load(run, &(ls_runfile_source){.text = text,
                                                     .len = strlen(text),
                                                     .text_name = "run.yaml",
                                                     .no_environment = true});
}

static void make_folder(const char *folder, const char *config)
{
    char path[64];

    LS_CHECK_EQ(mkdir(folder, 0755), 0);
    snprintf(path, sizeof path, "%s/config.json", folder);
    LS_CHECK_OK(ls_file_write_atomic(path, config, strlen(config)));
}

LS_TEST(hf_import_fills_a_run_and_says_where_from)
{
    ls_run run;
    ls_str table;
    const char *key = "model.width";

    make_folder("m", "{" LLAMA "}");
    LS_CHECK_OK(load(&run, "model: {import: m, context: 16, tied: auto, kv_heads: 4}\n"
                           "data: {text: [builtin:stories]}\n"));
    LS_CHECK_EQ(run.model.family, LS_FAMILY_LLAMA);
    LS_CHECK_EQ(run.model.width, 32);
    LS_CHECK_EQ(run.model.context, 16);
    LS_CHECK_EQ(run.model.tied, LS_TIED_NO);
    LS_CHECK_EQ(run.model.vocab, 100);
    LS_CHECK_STR(run.data.tokenizer, "m");
    LS_CHECK_STR(ls_explain_where(&run, "model.width"), "m/config.json");
    LS_CHECK_STR(ls_explain_where(&run, "model.context"), "run.yaml:1:29");
    ls_str_init(&table);
    LS_CHECK_OK(ls_explain_json(&run, &key, 1, &table));
    LS_CHECK(strstr(table.p, "\"origin\":\"import\",\"where\":\"m/config.json\""));
    ls_str_release(&table);
    ls_runfile_release(&run);
}

LS_TEST(hf_import_refuses_what_disagrees)
{
    ls_run run;

    make_folder("m", "{" LLAMA "}");
    make_folder("g", "{" GPT2 ",\"n_positions\":64}");
    make_folder("x", "{\"model_type\":\"qwen2_moe\"}");
    LS_CHECK_FAILS(
        load(&run, "model: {import: m, width: 64}\ndata: {text: [builtin:stories]}\n"), LS_EUSAGE,
        "run.yaml:1:27: model.width is 64 but the imported model has 32 (m/config.json)");
    LS_CHECK_FAILS(load(&run, "model: {import: g, context: 65}\ndata: {text: [builtin:stories]}\n"),
                   LS_EUSAGE, "model.context is 65 but the imported model learned only 64");
    LS_CHECK_FAILS(
        load(&run, "model: {import: x}\ndata: {text: [builtin:stories]}\n"), LS_EUSAGE,
        "run.yaml:1:17: model.import: x/config.json: \"model_type\": the family \"qwen2_moe\"");
    LS_CHECK_FAILS(load(&run, "model: {import: nowhere}\ndata: {text: [builtin:stories]}\n"),
                   LS_EUSAGE, "run.yaml:1:17: model.import: \"nowhere\" is not a folder");
    LS_CHECK_EQ(mkdir("empty", 0755), 0);
    LS_CHECK_FAILS(load(&run, "model: {import: empty}\ndata: {text: [builtin:stories]}\n"),
                   LS_EUSAGE, "there is no config.json in \"empty\"");
}
