/* test_explain.c -- values with their origins, and the run file that loads back to the same run. */
#include "harness.h"
#include <jansson.h>
#include "base/mem.h"
#include "config/explain.h"
#include "config/runfile.h"
#include "golden/golden.h"

#define TEXT                                                     \
    "name: \"a \\\"b\\\" \\u00e4\"\n"                            \
    "model: {layers: 2, width: 12, heads: 3, context: 16}\n"     \
    "data: {text: [\"*.txt\", 'it''s'], weights: [0.7, 1e-3]}\n" \
    "batch: {sequences: 12}\n"                                   \
    "train: {steps: 300, lr: 0.1, seconds: 1h}\n"                \
    "eval: {sample: \"line\\nnext\\tx: #y\"}\n"

static void load(ls_run *run, const char *text, const char *const *sets, int n)
{
    LS_CHECK_OK(ls_runfile_load(run, &(ls_runfile_source){.text = text,
                                                          .len = strlen(text),
                                                          .text_name = "run.yaml",
                                                          .sets = sets,
                                                          .n_sets = n,
                                                          .no_files = true}));
}

LS_TEST(explain_table_is_as_reviewed)
{
    const char *sets[] = {"train.lr=0.25"};
    ls_run run;
    ls_str text;

    setenv("LINESHAFT_TRAIN_SEED", "5", 1);
    ls_str_init(&text);
    load(&run, TEXT, sets, 1);
    LS_CHECK_OK(ls_explain_table(&run, NULL, 0, &text));
    ls_golden_check("tests/golden/explain.txt", &text, "LINESHAFT_GOLDEN=write");
    ls_str_release(&text);
    ls_runfile_release(&run);
}

/* 0.003 / 10 is 0.00030000000000000003 to the last bit; what was written is shown as it is. */
LS_TEST(explain_shows_a_worked_out_number_without_its_rounding)
{
    const char *keys[] = {"train.min_lr"},
               *sets[] = {"train.lr=3e-3", "train.min_lr=0.00030000000000000003"};
    ls_run run;
    ls_str text;

    ls_str_init(&text);
    for (int n = 1; n <= 2; n++) {
        load(&run, TEXT, sets, n);
        ls_str_clear(&text);
        LS_CHECK_OK(ls_explain_table(&run, keys, 1, &text));
        LS_CHECK_STR(text.p, n == 1 ? "train.min_lr  0.0003  default (auto: a tenth of train.lr)\n"
                                    : "train.min_lr  0.00030000000000000003  --set\n");
        ls_runfile_release(&run);
    }
    ls_str_release(&text);
}

LS_TEST(explain_shows_only_the_keys_asked_for)
{
    const char *keys[] = {"batch", "train.lr"}, *wrong[] = {"batch.laef"}, *other[] = {"steps"};
    ls_run run;
    ls_str text;

    ls_str_init(&text);
    load(&run, TEXT, NULL, 0);
    LS_CHECK_OK(ls_explain_table(&run, keys, 2, &text));
    LS_CHECK_STR(
        text.p,
        "batch.sequences  12    run.yaml:4:20\n"
        "batch.leaf       6     default (auto: the largest divisor of batch.sequences (and "
        "batch.ramp_from) up to 8)\n"
        "batch.group      2     default (auto: as many leaves as make up to 4096 tokens; on a GPU "
        "up to 65536, or what fits)\n"
        "batch.ramp       0     default\n"
        "batch.ramp_from  auto  default (auto: one leaf)\n"
        "train.lr         0.1   run.yaml:5:25\n");
    LS_CHECK_FAILS(ls_explain_table(&run, wrong, 1, &text), LS_EUSAGE, "no option \"batch.laef\"");
    LS_CHECK_STR(ls_err_last()->hint, "Did you mean \"batch.leaf\"?");
    LS_CHECK_FAILS(ls_explain_json(&run, other, 1, &text), LS_EUSAGE, "no option \"steps\"");
    LS_CHECK_STR(ls_err_last()->hint, "Did you mean \"train.steps\" or \"local.steps\"?");
    ls_str_release(&text);
    ls_runfile_release(&run);
}

LS_TEST(explain_json_can_be_read)
{
    ls_run run;
    ls_str text;
    json_error_t error;

    ls_str_init(&text);
    load(&run, TEXT, NULL, 0);
    LS_CHECK_OK(ls_explain_json(&run, NULL, 0, &text));
    json_t *root = json_loads(text.p, 0, &error);
    LS_CHECK(root != NULL);
    json_t *settings = json_object_get(root, "settings");
    LS_CHECK_EQ(json_object_size(settings), ls_option_count);
    json_t *leaf = json_object_get(settings, "batch.leaf");
    LS_CHECK_EQ(json_integer_value(json_object_get(leaf, "value")), 6);
    LS_CHECK_STR(json_string_value(json_object_get(leaf, "origin")), "default");
    LS_CHECK(json_is_true(json_object_get(leaf, "auto")));
    json_t *text_row = json_object_get(settings, "data.text");
    LS_CHECK_STR(json_string_value(json_array_get(json_object_get(text_row, "value"), 1)), "it's");
    LS_CHECK_STR(json_string_value(json_object_get(text_row, "where")), "run.yaml:3:14");
    json_decref(root);
    ls_str_release(&text);
    ls_runfile_release(&run);
}

LS_TEST(explain_yaml_loads_back_to_the_same_run)
{
    const char *sets[] = {"data.weights=[0.3333333333333333, 7e-12]", "name=auto-x"};
    ls_run first, second;
    ls_str yaml, again, diff;
    ls_hash a, b;

    ls_str_init(&yaml);
    ls_str_init(&again);
    ls_str_init(&diff);
    for (int n = 0; n <= 2; n++) {
        load(&first, TEXT, sets, n);
        ls_str_clear(&yaml);
        ls_explain_yaml(&first, &yaml);
        load(&second, yaml.p, NULL, 0);
        LS_CHECK_EQ(ls_explain_diff(&first, &second, &diff), 0);
        LS_CHECK_STR(diff.p, "");
        LS_CHECK_STR(second.eval.sample, "line\nnext\tx: #y");
        LS_CHECK_OK(ls_explain_hash(&first, &a));
        LS_CHECK_OK(ls_explain_hash(&second, &b));
        LS_CHECK(ls_hash_equal(a, b));
        ls_str_clear(&again);
        ls_explain_yaml(&second, &again);
        LS_CHECK_STR(again.p, yaml.p);
        ls_runfile_release(&first);
        ls_runfile_release(&second);
    }
    ls_str_release(&yaml);
    ls_str_release(&again);
    ls_str_release(&diff);
}

LS_TEST(explain_yaml_keeps_odd_characters)
{
    static const char *const texts[] = {
        "eval.sample=\xc2\x80 \xc2\x85 \xc2\xa0", /* C1 controls, next line, hard space */
        "eval.sample=\xe2\x80\xa8x\xe2\x80\xa9",  /* line and paragraph separator */
        "eval.sample=\xef\xbb\xbf \xef\xbf\xbe \xef\xbf\xbf", /* byte order mark, no characters */
        "eval.sample=\x01\x1b[31m\x7f\r\n\t",
        "eval.sample=\xf0\x9f\x98\x80 \xe2\x82\xac \xc3\xa4",
        "eval.sample= spaces around ",
        "eval.sample=auto",
        "eval.sample='quotes\" and \\ strokes",
    };

    for (size_t i = 0; i < LS_COUNT(texts); i++) {
        ls_run first, second;
        ls_str yaml;
        ls_str_init(&yaml);
        load(&first, TEXT, &texts[i], 1);
        ls_explain_yaml(&first, &yaml);
        load(&second, yaml.p, NULL, 0);
        LS_CHECK_STR(second.eval.sample, strchr(texts[i], '=') + 1);
        ls_str_release(&yaml);
        ls_runfile_release(&first);
        ls_runfile_release(&second);
    }
}

LS_TEST(explain_diff_shows_what_may_change_on_resume)
{
    const char *sets[] = {"train.steps=600", "train.lr=0.2", "batch.sequences=24"};
    ls_run a, b;
    ls_str diff;
    ls_hash before, after;

    ls_str_init(&diff);
    load(&a, TEXT, NULL, 0);
    load(&b, TEXT, sets, 1);
    LS_CHECK_EQ(ls_explain_diff(&a, &b, &diff), 0); /* a longer run is no different run */
    LS_CHECK_STR(diff.p, "  train.steps: 300 -> 600\n"
                         "  train.warmup: 15 -> 30\n"
                         "  train.decay: 60 -> 120\n");
    LS_CHECK_OK(ls_explain_hash(&a, &before));
    LS_CHECK_OK(ls_explain_hash(&b, &after));
    LS_CHECK(ls_hash_equal(before, after));
    ls_runfile_release(&b);
    load(&b, TEXT, sets, 3);
    ls_str_clear(&diff);
    LS_CHECK_EQ(ls_explain_diff(&a, &b, &diff), 4);
    LS_CHECK(strstr(diff.p, "batch.sequences: 12 -> 24 (cannot change on resume)\n"));
    LS_CHECK(strstr(diff.p, "train.lr: 0.1 -> 0.2 (changes on resume only with --override "
                            "train.lr=0.2)\n"));
    LS_CHECK(strstr(diff.p, "train.min_lr: 0.01 -> 0.02 (it follows from another setting)\n"));
    LS_CHECK_OK(ls_explain_hash(&b, &after));
    LS_CHECK(!ls_hash_equal(before, after));
    ls_str_release(&diff);
    ls_mem_fail_nth(1);
    LS_CHECK_EQ(ls_explain_diff(&a, &b, &diff), -1);
    ls_runfile_release(&a);
    ls_runfile_release(&b);
}

/* What --override names may differ, and what follows from it; nothing else may. */
LS_TEST(explain_diff_takes_what_is_overridden)
{
    const char *const sets[] = {"train.clip=2"}, *const overrides[] = {"train.lr=0.2"};
    ls_runfile_source source = {.text = TEXT,
                                .len = strlen(TEXT),
                                .no_environment = true,
                                .no_files = true,
                                .overrides = overrides,
                                .n_overrides = 1};
    ls_run a, b;
    ls_str text;

    ls_str_init(&text);
    load(&a, TEXT, NULL, 0);
    LS_CHECK_OK(ls_runfile_load(&b, &source));
    LS_CHECK_EQ(ls_explain_diff(&a, &b, &text), 0);
    ls_str_clear(&text);
    ls_explain_overridden(&a, &b, &text);
    LS_CHECK_STR(text.p, "train.lr 0.1 -> 0.2, train.min_lr 0.01 -> 0.02");
    ls_runfile_release(&b);
    source.sets = sets;
    source.n_sets = 1;
    LS_CHECK_OK(ls_runfile_load(&b, &source));
    LS_CHECK_EQ(ls_explain_diff(&a, &b, &text), 1); /* --set is no such word */
    ls_runfile_release(&b);
    source.overrides = (const char *const[]){"batch.sequences=24"};
    LS_CHECK_FAILS(ls_runfile_load(&b, &source), LS_EUSAGE,
                   "batch.sequences cannot change in a run that has begun");
    ls_str_release(&text);
    ls_runfile_release(&a);
}
