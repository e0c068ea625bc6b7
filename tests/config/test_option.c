/* test_option.c -- the table itself: what every row must hold so that all views of it are right. */
#include "harness.h"
#include "config/option.h"
#include "config/value.h"

LS_TEST(option_rows_are_complete)
{
    for (int i = 0; i < ls_option_count; i++) {
        const ls_option *row = &ls_options[i];
        size_t n = strlen(row->doc);

        LS_CHECK(ls_option_find(row->key) == row); /* also: no key twice */
        LS_CHECK_EQ(ls_option_index(row), i);
        LS_CHECK(n > 10 && row->doc[n - 1] == '.');
        if (row->type == LS_OPTION_INT || row->type == LS_OPTION_FLOAT)
            LS_CHECK(row->least <= row->most);
        if (row->type == LS_OPTION_ENUM)
            LS_CHECK(row->names[0] && !row->names[LS_OPTION_NAMES - 1]);
        for (int k = 0; k < i; k++)
            LS_CHECK(ls_options[k].offset != row->offset);
    }
}

LS_TEST(option_sections_stand_together)
{
    for (int i = 0; i < ls_option_count; i++) {
        const char *dot = strchr(ls_options[i].key, '.');
        char section[64];

        if (!dot)
            continue;
        snprintf(section, sizeof section, "%.*s", (int)(dot - ls_options[i].key),
                 ls_options[i].key);
        LS_CHECK(ls_option_find_section(section) != NULL);
        LS_CHECK(!strchr(dot + 1, '.'));
        for (int k = 0; k + 1 < i; k++) /* a row of this section, then another one, then this */
            LS_CHECK(!(ls_option_in(&ls_options[k], section) &&
                       !ls_option_in(&ls_options[k + 1], section)));
    }
}

LS_TEST(option_defaults_pass_their_own_check)
{
    ls_run run = {.path = NULL};

    for (int i = 0; i < ls_option_count; i++)
        LS_CHECK_OK(ls_value_preset(&ls_options[i], &run));
    LS_CHECK_EQ(run.batch.sequences, 16);
    LS_CHECK_EQ(run.batch.leaf, LS_RUN_AUTO);
    LS_CHECK_NEAR(run.data.validation, 0.1, 0);
    LS_CHECK_STR(run.eval.sample, "");
    LS_CHECK(run.name == NULL);
    LS_CHECK_EQ(run.train.schedule, LS_LR_SCHEDULE_COSINE);
    ls_arena_release(&run.arena);
}

LS_TEST(option_enum_names_match_their_enums)
{
    static const struct {
        const char *key, *name;
        int value;
    } cases[] = {
        {"model.family", "gpt2", LS_FAMILY_GPT2},
        {"model.family", "llama", LS_FAMILY_LLAMA},
        {"model.family", "mistral", LS_FAMILY_MISTRAL},
        {"model.family", "qwen2", LS_FAMILY_QWEN2},
        {"model.family", "qwen3", LS_FAMILY_QWEN3},
        {"model.bias", "auto", LS_BIAS_AUTO},
        {"model.bias", "none", LS_BIAS_NONE},
        {"model.bias", "qkv", LS_BIAS_QKV},
        {"model.bias", "attention", LS_BIAS_ATTENTION},
        {"model.bias", "mlp", LS_BIAS_MLP},
        {"model.bias", "all", LS_BIAS_ALL},
        {"model.tied", "auto", LS_TIED_AUTO},
        {"model.tied", "true", LS_TIED_YES},
        {"model.tied", "false", LS_TIED_NO},
        {"model.rope_scaling", "none", LS_ROPE_PLAIN},
        {"model.rope_scaling", "linear", LS_ROPE_LINEAR},
        {"model.rope_scaling", "llama3", LS_ROPE_LLAMA3},
        {"data.utf8", "strict", LS_UTF8_STRICT},
        {"data.utf8", "replace", LS_UTF8_REPLACE},
        {"data.utf8", "bytes", LS_UTF8_BYTES},
        {"train.objective", "lm", LS_OBJECTIVE_LM},
        {"train.objective", "dpo", LS_OBJECTIVE_DPO},
        {"train.objective", "orpo", LS_OBJECTIVE_ORPO},
        {"train.objective", "kto", LS_OBJECTIVE_KTO},
        {"train.lr_rule", "none", LS_LR_NONE},
        {"train.lr_rule", "linear", LS_LR_LINEAR},
        {"model.family", "mixtral", LS_FAMILY_MIXTRAL},
        {"model.family", "qwen3_moe", LS_FAMILY_QWEN3_MOE},
        {"model.family", "olmoe", LS_FAMILY_OLMOE},
        {"model.family", "olmo2", LS_FAMILY_OLMO2},
        {"model.family", "phi3", LS_FAMILY_PHI3},
        {"train.lr_rule", "sqrt", LS_LR_SQRT},
        {"train.schedule", "constant", LS_LR_SCHEDULE_CONSTANT},
        {"train.schedule", "linear", LS_LR_SCHEDULE_LINEAR},
        {"train.schedule", "cosine", LS_LR_SCHEDULE_COSINE},
        {"train.schedule", "wsd", LS_LR_SCHEDULE_WSD},
#define OPTIMIZER(id, name, doc, ...) {"train.optimizer", #name, LS_OPTIMIZER_##id},
        LS_OPTIMIZERS(OPTIMIZER)
#undef OPTIMIZER
            {"train.reduce", "ordered", LS_REDUCE_ORDERED},
        {"train.reduce", "fast", LS_REDUCE_FAST},
        {"train.rounding", "nearest", LS_ROUND_NEAREST},
        {"train.rounding", "stochastic", LS_ROUND_STOCHASTIC},
        {"train.nonfinite", "stop", LS_NONFINITE_STOP},
        {"train.nonfinite", "skip", LS_NONFINITE_SKIP},
        {"train.recompute", "none", LS_RECOMPUTE_NONE},
        {"train.recompute", "selective", LS_RECOMPUTE_SELECTIVE},
        {"train.recompute", "full", LS_RECOMPUTE_FULL},
        {"train.recompute", "auto", LS_RECOMPUTE_AUTO},
        {"checkpoint.best", "auto", LS_KEEP_BEST_AUTO},
        {"checkpoint.best", "true", LS_KEEP_BEST_ON},
        {"checkpoint.best", "false", LS_KEEP_BEST_OFF},
        {"heal.mode", "on", LS_HEAL_ON},
        {"heal.mode", "off", LS_HEAL_OFF},
        {"heal.buddies", "auto", LS_REPLICA_PEERS_AUTO},
        {"heal.buddies", "on", LS_REPLICA_PEERS_ON},
        {"heal.buddies", "off", LS_REPLICA_PEERS_OFF},
        {"heal.quorum", "embedded", LS_HEAL_EMBEDDED},
        {"heal.quorum", "etcd", LS_HEAL_ETCD},
        {"precision", "fp32", LS_PRECISION_FP32},
        {"precision", "tf32", LS_PRECISION_TF32},
        {"precision", "bf16", LS_PRECISION_BF16},
        {"precision", "fp16", LS_PRECISION_FP16},
        {"precision", "fp8", LS_PRECISION_FP8},
        {"exchange.compress", "none", LS_COMPRESS_NONE},
        {"exchange.compress", "bf16", LS_COMPRESS_BF16},
        {"exchange.compress", "int8", LS_COMPRESS_INT8},
        {"exchange.compress", "topk", LS_COMPRESS_TOPK},
        {"exchange.device", "auto", LS_EXCHANGE_AUTO},
        {"exchange.device", "nccl", LS_EXCHANGE_NCCL},
        {"exchange.device", "host", LS_EXCHANGE_HOST},
        {"sync", "allreduce", LS_SYNC_ALLREDUCE},
        {"sync", "local", LS_SYNC_LOCAL},
        {"sync", "ps", LS_SYNC_PS},
        {"local.compress", "none", LS_COMPRESS_NONE},
        {"local.compress", "bf16", LS_COMPRESS_BF16},
        {"local.compress", "int8", LS_COMPRESS_INT8},
        {"device.kind", "auto", LS_DEVICE_AUTO},
        {"device.kind", "cpu", LS_DEVICE_CPU},
        {"device.kind", "cuda", LS_DEVICE_CUDA},
        {"device.pin", "auto", LS_PIN_AUTO},
        {"device.pin", "on", LS_PIN_ON},
        {"device.pin", "off", LS_PIN_OFF},
        {"mesh.schedule", "gpipe", LS_PP_GPIPE},
        {"mesh.schedule", "1f1b", LS_PP_1F1B},
        {"mesh.schedule", "interleaved", LS_PP_INTERLEAVED},
        {"mesh.schedule", "zero-bubble", LS_PP_ZERO_BUBBLE},
        {"mesh.keys", "ring", LS_KEYS_RING},
        {"mesh.keys", "gather", LS_KEYS_GATHER},
        {"mesh.balance", "off", LS_BALANCE_OFF},
        {"mesh.balance", "auto", LS_BALANCE_AUTO},
        {"device.isa", "auto", LS_ISA_AUTO},
        {"device.isa", "reference", LS_ISA_REFERENCE},
        {"device.isa", "generic", LS_ISA_GENERIC},
        {"device.isa", "avx2", LS_ISA_AVX2},
        {"device.isa", "avx512", LS_ISA_AVX512},
        {"device.pack", "auto", LS_PACKING_AUTO},
        {"device.pack", "on", LS_PACKING_ON},
        {"device.pack", "off", LS_PACKING_OFF},
        {"device.offload", "none", LS_OFFLOAD_NONE},
        {"device.offload", "host", LS_OFFLOAD_HOST},
        {"device.offload", "disk", LS_OFFLOAD_DISK},
        {"device.graphs", "auto", LS_GRAPHS_AUTO},
        {"device.graphs", "on", LS_GRAPHS_ON},
        {"device.graphs", "off", LS_GRAPHS_OFF},
    };
    size_t names = 0;

    for (size_t i = 0; i < LS_COUNT(cases); i++)
        LS_CHECK_STR(ls_option_find(cases[i].key)->names[cases[i].value], cases[i].name);
    for (int i = 0; i < ls_option_count; i++)
        for (int k = 0; ls_options[i].type == LS_OPTION_ENUM && ls_options[i].names[k]; k++)
            names++;
    LS_CHECK_EQ(names, LS_COUNT(cases)); /* a new name needs a line above */
}

static void check_hint(const char *section, const char *key, const char *want)
{
    ls_str hint;

    ls_str_init(&hint);
    ls_option_suggest(section, key, &hint);
    LS_CHECK_STR(hint.p, want);
    ls_str_release(&hint);
}

LS_TEST(option_suggests_the_nearest_key)
{
    check_hint("", "steps", "Did you mean \"train.steps\" or \"local.steps\"?");
    check_hint("train", "every", "Did you mean \"checkpoint.every\" or \"eval.every\"?");
    check_hint("batch", "sequence", "Did you mean \"batch.sequences\"?");
    check_hint("", "modle", "Did you mean \"model\"?");
    check_hint("model", "sead", "Did you mean \"train.seed\"?");
    check_hint("batch", "zzzzzzzz",
               "The keys of \"batch\" are sequences, leaf, group, ramp, ramp_from.");
}

LS_TEST(option_names_its_variable)
{
    char name[96];

    ls_option_variable(ls_option_find("train.min_lr"), name, sizeof name);
    LS_CHECK_STR(name, "LINESHAFT_TRAIN_MIN_LR");
}
