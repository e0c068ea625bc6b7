/* test_other_names.c -- words of other programs are answered with ours. */
#include "harness.h"
#include "config/other_names.h"

static void expect_at(const char *key, ls_other_names_place place, const char *sentence)
{
    ls_str out;

    ls_str_init(&out);
    bool known = ls_other_names_suggest(key, &place, &out);
    if (sentence)
        LS_CHECK_STR(out.p, sentence);
    LS_CHECK_EQ(known, sentence != NULL);
    ls_str_release(&out);
}

/* In a run file, without a value that can be repeated. */
static void expect(const char *key, const char *sentence)
{
    expect_at(key, (ls_other_names_place){.section = ""}, sentence);
}

static void expect_value(const char *section, const char *key, const char *value,
                         const char *sentence)
{
    expect_at(key, (ls_other_names_place){.section = section, .value = value}, sentence);
}

static void expect_flag(const char *key, const char *value, const char *sentence)
{
    expect_at(key, (ls_other_names_place){.flag = "--set", .value = value}, sentence);
}

LS_TEST(other_names_are_answered_with_ours)
{
    expect("learning_rate", "Here it is called \"train.lr\".");
    expect("model.n_embd", "Here it is called \"model.width\".");
    expect("Max-Steps", "Here it is called \"train.steps\".");
    expect("warmup_ratio", "Here it is called \"train.warmup\". It counts steps.");
    expect("bf16", "Write precision: bf16.");
    expect("training_args", "Settings of training stand in train: {lr: 3e-4, steps: 1000}.");
    expect("wombat", NULL);
    expect("", NULL);
    expect("train.", NULL);
}

LS_TEST(other_names_repeat_the_value)
{
    expect_value("", "learning_rate", "2e-5", "Write train: {lr: 2e-5}.");
    expect_value("train", "learning_rate", "2e-5", "Write lr: 2e-5.");
    expect_value("model", "max_steps", "500", "Write train: {steps: 500}.");
    expect_value("", "num_train_epochs", "3", "Write train: {epochs: 3}.");
    expect_value("", "output_dir", "out/a", "Write out: out/a.");
    expect_value("", "use_cuda", "true", "Write device: {kind: cuda}.");
    expect_value("", "bf16", "false", "Leave it out.");
    expect_value("", "warmup_ratio", "0.1", "Here it is called \"train.warmup\". It counts steps.");
    expect_value("", "lora_dropout", "0.05",
                 "Leave it out: the matrices of LoRA have no dropout of their own.");
    expect_flag("bf16", "", "Write --set precision=bf16.");
    expect_flag("lr", "", "Write --set train.lr=VALUE.");
    expect_flag("learning_rate", "1e-4", "Write --set train.lr=1e-4.");
    expect_flag("bf16", "true", "Write --set precision=bf16.");
    expect_flag(
        "per_device_train_batch_size", "8",
        "Write --set batch.leaf=VALUE. It counts the sequences that are computed at once; "
        "batch.sequences is the whole batch of a step, and lineshaft accumulates what is between "
        "them.");
    expect_at("lr", (ls_other_names_place){.flag = "--override", .value = "1e-4"},
              "Write --override train.lr=1e-4.");
}

LS_TEST(other_names_of_a_section_that_got_one_value)
{
    LS_CHECK_STR(ls_other_names_of_section("model", "gpt2"), "model.family");
    LS_CHECK_STR(ls_other_names_of_section("model", "models/qwen"), "model.import");
    LS_CHECK_STR(ls_other_names_of_section("device", "cuda"), "device.kind");
    LS_CHECK(!ls_other_names_of_section("heal", "1"));
    LS_CHECK(!ls_other_names_of_section("model", "12"));
}
