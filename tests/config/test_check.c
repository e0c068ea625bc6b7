/* test_check.c -- working out autos. Contradictions are in tests/golden/runfile-errors.txt. */
#include "harness.h"
#include "config/check.h"
#include "config/runfile.h"

static void load(ls_run *run, const char *path, const char *rest)
{
    char text[600];

    snprintf(text, sizeof text,
             "model: {layers: 2, width: 12, heads: 3, context: 100}\n"
             "data: {text: builtin:stories}\n%s",
             rest);
    LS_CHECK_OK(ls_runfile_load(run, &(ls_runfile_source){.text = text,
                                                          .len = strlen(text),
                                                          .text_name = path,
                                                          .no_environment = true,
                                                          .no_files = true}));
}

LS_TEST(check_names_a_run_after_its_file)
{
    static const struct {
        const char *path, *name;
    } cases[] = {{"tiny.yaml", "tiny"}, {"a/b/c.yml", "c"}, {"x/plain", "plain"},
                 {"v1.2.yaml", "v1.2"}, {"a.txt", "a.txt"}, {NULL, "run"}};
    ls_run run;

    for (size_t i = 0; i < LS_COUNT(cases); i++) {
        char out[64];
        load(&run, cases[i].path, "");
        snprintf(out, sizeof out, "runs/%s", cases[i].name);
        LS_CHECK_STR(run.name, cases[i].name);
        LS_CHECK_STR(run.out, out);
        ls_runfile_release(&run);
    }
    load(&run, "x.yaml", "name: other\n");
    LS_CHECK_STR(run.out, "runs/other");
    ls_runfile_release(&run);
}

LS_TEST(check_picks_leaf_and_group)
{
    static const struct {
        int sequences, leaf, group;
    } cases[] = {
        {1, 1, 1},   {7, 7, 1},   {11, 1, 11}, {12, 6, 2},
        {16, 8, 2},  {13, 1, 13}, {64, 8, 4}, /* 64 x 100 tokens exceed a call: 4 x 8 x 100 fit */
        {41, 1, 32}, /* prime and too long: a power of two of single sequences */
    };
    ls_run run;

    for (size_t i = 0; i < LS_COUNT(cases); i++) {
        char text[64];
        snprintf(text, sizeof text, "batch: {sequences: %d}\n", cases[i].sequences);
        load(&run, NULL, text);
        LS_CHECK_EQ(run.batch.leaf, cases[i].leaf);
        LS_CHECK_EQ(run.batch.group, cases[i].group);
        ls_runfile_release(&run);
    }
    load(&run, NULL, "batch: {sequences: 12, leaf: 2, group: 100}\n"); /* more than all is all */
    ls_runfile_release(&run);
}

LS_TEST(check_counts_tokens_with_a_ramp)
{
    ls_run run;

    /* 100 tokens a sequence; 4 steps of 2 4 6 8 sequences, then 10. */
    load(&run, NULL, "batch: {sequences: 10, leaf: 2, ramp: 4}\ntrain: {tokens: 2001}\n");
    LS_CHECK_EQ(run.batch.ramp_from, 2);
    LS_CHECK_EQ(ls_check_horizon(&run), 5);
    ls_runfile_release(&run);
    load(&run, NULL, "batch: {sequences: 10, leaf: 2, ramp: 4}\ntrain: {tokens: 1200}\n");
    LS_CHECK_EQ(ls_check_horizon(&run), 3);
    ls_runfile_release(&run);
    /* The leaf fits both ends; a ramp that is switched off may stay in the file. */
    load(&run, NULL, "batch: {sequences: 16, ramp: 4, ramp_from: 6}\n");
    LS_CHECK_EQ(run.batch.leaf, 2);
    ls_runfile_release(&run);
    load(&run, NULL, "batch: {sequences: 16, leaf: 8, ramp: 0, ramp_from: 6}\n");
    LS_CHECK_EQ(ls_check_horizon(&run), 1000);
    ls_runfile_release(&run);
}

LS_TEST(check_finds_the_end_of_the_run)
{
    static const struct {
        const char *train;
        int64_t steps, horizon, warmup, decay;
    } cases[] = {
        {"", 1000, 1000, 50, 200},
        {"train: {steps: 30}\n", 30, 30, 1, 6},
        {"train: {tokens: 16000}\n", 0, 10, 0, 2}, /* 16 x 100 tokens a step */
        {"train: {tokens: 16001}\n", 0, 11, 0, 2},
        {"train: {tokens: 16000, steps: 5}\n", 5, 5, 0, 1},
        {"train: {tokens: 16000, steps: 500}\n", 500, 10, 0, 2},
        {"train: {seconds: 5, schedule: constant}\n", 0, 0, 0, 0},
        {"train: {target_loss: 2, steps: 100k}\n", 100000, 100000, 100, 20000},
        {"train: {epochs: 3}\n", 0, 0, LS_RUN_AUTO, LS_RUN_AUTO}, /* the data says */
        {"train: {epochs: 0, steps: 30}\n", 30, 30, 1, 6},
    };
    ls_run run;

    for (size_t i = 0; i < LS_COUNT(cases); i++) {
        load(&run, NULL, cases[i].train);
        LS_CHECK_EQ(run.train.steps, cases[i].steps);
        LS_CHECK_EQ(ls_check_horizon(&run), cases[i].horizon);
        LS_CHECK_EQ(run.train.warmup, cases[i].warmup);
        LS_CHECK_EQ(run.train.decay, cases[i].decay);
        ls_runfile_release(&run);
    }
}

/* Steps after which at least that many samples are used, also where the batch grows. */
LS_TEST(check_counts_the_steps_of_epochs)
{
    static const struct {
        const char *text;
        int64_t windows, steps, warmup;
    } cases[] = {
        {"train: {epochs: 1}\n", 1600, 100, 5}, /* 16 sequences a step */
        {"train: {epochs: 1}\n", 1601, 101, 5}, /* a last step that begins the next epoch */
        {"train: {epochs: 2.5}\n", 1600, 250, 12},
        {"train: {epochs: 0.1}\nbatch: {sequences: 1}\n", 30, 3,
         0}, /* 0.1 x 30 is above 3 in binary */
        {"train: {epochs: 1, warmup: 7}\n", 1600, 100, 7},
        {"train: {epochs: 1}\nbatch: {sequences: 12, leaf: 4, ramp: 5, ramp_from: 4}\n", 28, 5, 0},
        {"train: {epochs: 1}\nbatch: {sequences: 12, leaf: 4, ramp: 5, ramp_from: 4}\n", 29, 6, 0},
        {"train: {epochs: 3}\nbatch: {sequences: 12, leaf: 4, ramp: 5, ramp_from: 4}\n", 20, 8, 0},
    };
    ls_run run;

    for (size_t i = 0; i < LS_COUNT(cases); i++) {
        load(&run, NULL, cases[i].text);
        LS_CHECK_OK(ls_check_epochs(&run, cases[i].windows));
        LS_CHECK_EQ(run.train.steps, cases[i].steps);
        LS_CHECK_EQ(ls_check_horizon(&run), cases[i].steps);
        LS_CHECK_EQ(run.train.warmup, cases[i].warmup);
        ls_runfile_release(&run);
    }
    load(&run, NULL, "train: {epochs: 1, warmup: 101}\n");
    LS_CHECK_FAILS(ls_check_epochs(&run, 1600), LS_EUSAGE, "warm-up must end before the run does");
    ls_runfile_release(&run);
}

/* Of two lengths the one that was written closer to the command counts. */
LS_TEST(check_takes_the_length_of_the_command_line)
{
    const char *const sets[] = {"train.steps=30"}, *const epochs[] = {"train.epochs=2"};
    static const char with_epochs[] = "model: {layers: 1, width: 4, heads: 1, context: 4}\n"
                                      "data: {text: builtin:stories}\ntrain: {epochs: 3}\n";
    static const char with_steps[] = "model: {layers: 1, width: 4, heads: 1, context: 4}\n"
                                     "data: {text: builtin:stories}\ntrain: {steps: 3}\n";
    ls_runfile_source source = {.text = with_epochs,
                                .len = sizeof with_epochs - 1,
                                .no_environment = true,
                                .no_files = true,
                                .sets = sets,
                                .n_sets = 1};
    ls_run run;

    LS_CHECK_OK(ls_runfile_load(&run, &source));
    LS_CHECK_EQ(run.train.steps, 30);
    LS_CHECK(run.train.epochs == 0);
    ls_runfile_release(&run);
    source.text = with_steps;
    source.len = sizeof with_steps - 1;
    source.sets = epochs;
    LS_CHECK_OK(ls_runfile_load(&run, &source));
    LS_CHECK_EQ(run.train.steps, 0);
    LS_CHECK(run.train.epochs == 2);
    ls_runfile_release(&run);
}
