/* test_other_names.c -- words of other programs are answered with ours. */
#include "harness.h"
#include "config/other_names.h"

static void expect(const char *key, const char *set, const char *sentence)
{
    ls_str out;

    ls_str_init(&out);
    bool known = ls_other_names_suggest(key, set, &out);
    if (sentence)
        LS_CHECK_STR(out.p, sentence);
    LS_CHECK_EQ(known, sentence != NULL);
    ls_str_release(&out);
}

LS_TEST(other_names_are_answered_with_ours)
{
    expect("learning_rate", NULL, "Here it is called \"train.lr\".");
    expect("model.n_embd", NULL, "Here it is called \"model.width\".");
    expect("Max-Steps", NULL, "Here it is called \"train.steps\".");
    expect("warmup_ratio", NULL, "Here it is called \"train.warmup\". It counts steps.");
    expect("bf16", NULL, "Write precision: bf16.");
    expect("bf16", "", "Write --set precision=bf16.");
    expect("lr", "", "Write --set train.lr=VALUE.");
    expect("learning_rate", "1e-4", "Write --set train.lr=1e-4.");
    expect("bf16", "true", "Write --set precision=bf16.");
    expect(
        "per_device_train_batch_size", "8",
        "Write --set batch.leaf=VALUE. It counts the sequences that are computed at once; "
        "batch.sequences is the whole batch of a step, and lineshaft accumulates what is between "
        "them.");
    expect("training_args", NULL, "Settings of training stand in train: {lr: 3e-4, steps: 1000}.");
    expect("wombat", NULL, NULL);
    expect("", NULL, NULL);
    expect("train.", NULL, NULL);
}

LS_TEST(other_names_of_a_section_that_got_one_value)
{
    LS_CHECK_STR(ls_other_names_of_section("model", "gpt2"), "model.family");
    LS_CHECK_STR(ls_other_names_of_section("model", "models/qwen"), "model.import");
    LS_CHECK_STR(ls_other_names_of_section("device", "cuda"), "device.kind");
    LS_CHECK(!ls_other_names_of_section("heal", "1"));
    LS_CHECK(!ls_other_names_of_section("model", "12"));
}
