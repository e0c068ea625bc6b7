/* test_runfile.c -- loading: precedence, messages with their places, bad files, no memory.
 *
 * Messages live in tests/golden/runfile-errors.txt, one block per case:
 *   === what is wrong
 *   --set key=value        (as many lines as wanted)
 *   the run file
 *   -----
 *   the message */
#include "harness.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/report.h"
#include "config/explain.h"
#include "config/runfile.h"
#include "golden/golden.h"

#define GOOD                                                   \
    "model: {layers: 6, width: 384, heads: 6, context: 256}\n" \
    "data: {text: builtin:stories}\n"

static ls_status load(ls_run *run, const char *text, const char *const *sets, int n_sets)
{
    return ls_runfile_load(run, &(ls_runfile_source){.text = text,
                                                     .len = strlen(text),
                                                     .text_name = "run.yaml",
                                                     .sets = sets,
                                                     .n_sets = n_sets,
                                                     .no_files = true});
}

LS_TEST(runfile_reads_the_example)
{
    static const char text[] =
        "name: shakespeare-10m\n"
        "out: runs/x   # a comment\n"
        "model: {family: gpt2, layers: 6, width: 384, heads: 6, context: 256}\n"
        "data: {text: [corpus/*.txt, more.txt], tokenizer: bytes, validation: 0.1}\n"
        "batch: {sequences: 12, leaf: 4}\n"
        "train: {steps: 500, lr: 1e-3, schedule: cosine, warmup: 50, optimizer: adamw, clip: 1.0,\n"
        "        seed: 1, reduce: ordered}\n"
        "precision: fp32\n"
        "mesh: {dp: auto, tp: 1, pp: 1, cp: 1, ep: 1, zero: 0}\n"
        "sync: allreduce\n"
        "checkpoint:\n"
        "  every: 100\n"
        "  keep: 2\n"
        "eval: {every: 100, sequences: 64, sample: \"To be\"}\n"
        "device:\n";
    ls_run run;

    LS_CHECK_OK(load(&run, text, NULL, 0));
    LS_CHECK_STR(run.name, "shakespeare-10m");
    LS_CHECK_STR(run.out, "runs/x");
    LS_CHECK_EQ(run.model.width, 384);
    LS_CHECK_EQ(run.data.text.count, 2);
    LS_CHECK_STR(run.data.text.items[1], "more.txt");
    LS_CHECK_EQ(run.batch.leaf, 4);
    LS_CHECK_EQ(run.batch.group, 3);
    LS_CHECK_NEAR(run.train.min_lr, 1e-4, 1e-18);
    LS_CHECK_EQ(run.model.mlp, 1536);
    LS_CHECK_EQ(run.model.vocab, LS_RUN_AUTO);
    LS_CHECK_STR(run.eval.sample, "To be");
    LS_CHECK_STR(run.path, "run.yaml");
    ls_runfile_release(&run);
    ls_runfile_release(&run);
}

LS_TEST(runfile_later_sources_win)
{
    const char *sets[] = {"batch.leaf=2", "train.lr=0.5", "train.lr=0.25",
                          "data.text=[a.txt, \"b: c.txt\"]", "eval.sample=To be: or #not"};
    ls_run run;

    setenv("LINESHAFT_BATCH_LEAF", "4", 1);
    setenv("LINESHAFT_BATCH_SEQUENCES", "24", 1);
    setenv("LINESHAFT_TRAIN_SEED", "7", 1);
    setenv("LINESHAFT_FAULT", "none", 1);
    LS_CHECK_OK(load(&run, GOOD "batch: {sequences: 12, leaf: 6}\ntrain: {lr: 1}\n", sets, 5));
    LS_CHECK_EQ(run.batch.sequences, 24);
    LS_CHECK_EQ(run.batch.leaf, 2);
    LS_CHECK_EQ(run.train.seed, 7);
    LS_CHECK_NEAR(run.train.lr, 0.25, 0);
    LS_CHECK_EQ(run.data.text.count, 2);
    LS_CHECK_STR(run.data.text.items[1], "b: c.txt");
    LS_CHECK_STR(run.eval.sample, "To be: or #not");
    LS_CHECK_STR(ls_explain_origin(&run, ls_option_find("batch.sequences"))->where,
                 "LINESHAFT_BATCH_SEQUENCES");
    LS_CHECK_STR(ls_explain_origin(&run, ls_option_find("batch.leaf"))->where, "--set");
    LS_CHECK_STR(ls_explain_origin(&run, ls_option_find("model.heads"))->where, "run.yaml:1:39");
    LS_CHECK_STR(ls_explain_origin(&run, ls_option_find("train.clip"))->where, "default");
    ls_runfile_release(&run);
    LS_CHECK_OK(ls_runfile_load(
        &run, &(ls_runfile_source){
                  .text = GOOD, .len = strlen(GOOD), .no_environment = true, .no_files = true}));
    LS_CHECK_EQ(run.batch.sequences, 16);
    ls_runfile_release(&run);
}

LS_TEST(runfile_refuses_a_wrong_variable)
{
    ls_run run;

    setenv("LINESHAFT_BATCH_LEAF", "many", 1);
    LS_CHECK_FAILS(load(&run, GOOD, NULL, 0), LS_EUSAGE,
                   "LINESHAFT_BATCH_LEAF: batch.leaf must be a whole number");
    setenv("LINESHAFT_BATCH_LEAF", "\xff", 1);
    LS_CHECK_FAILS(load(&run, GOOD, NULL, 0), LS_EUSAGE, "not UTF-8");
}

LS_TEST(runfile_takes_keys_of_earlier_versions)
{
    ls_run run;

    LS_CHECK_OK(load(&run, GOOD "heal: {pulse: 2, dead: 30}\n", NULL, 0));
    LS_CHECK_EQ(run.heal.heartbeat, 2);
    ls_runfile_release(&run);
    LS_CHECK_FAILS(load(&run, GOOD "heal: {pulse: 2, heartbeat: 3, dead: 30}\n", NULL, 0),
                   LS_EUSAGE, "heal.heartbeat is given twice");
}

LS_TEST(runfile_warns_about_a_variable_that_is_nearly_an_option)
{
    ls_run run;

    LS_EXPECT_LOG(1);
    setenv("LINESHAFT_BATCH_SEQUENCE", "24", 1);
    setenv("LINESHAFT_SOMETHING_ELSE", "1", 1);
    LS_CHECK_OK(load(&run, GOOD, NULL, 0));
    LS_CHECK_EQ(run.batch.sequences, 16);
    ls_runfile_release(&run);
}

/* --- messages --------------------------------------------------------------------------------- */

/* The block at *p: title, sets, text. Moves *p to the next block. */
static void run_case(const char **p, ls_str *out)
{
    const ls_term plain = {.width = 80};
    const char *title_end = strchr(*p, '\n') + 1, *text = title_end;
    const char *end = strstr(text, "\n-----\n");
    char sets[8][128];
    const char *list[8];
    int n = 0;
    ls_str yaml;
    ls_run run;

    LS_CHECK(end != NULL);
    while (strncmp(text, "--set ", 6) == 0) {
        int len = (int)strcspn(text + 6, "\n");
        LS_CHECK(n < 8);
        snprintf(sets[n], sizeof sets[n], "%.*s", len, text + 6);
        list[n] = sets[n];
        n++;
        text += 6 + len + 1;
    }
    ls_str_init(&yaml);
    if (end + 1 > text)
        ls_str_append_bytes(&yaml, text, (size_t)(end + 1 - text));
    ls_str_append_bytes(out, *p, (size_t)(end + 7 - *p));
    if (load(&run, yaml.p, list, n) == LS_OK) {
        ls_str_append(out, "valid\n");
        ls_runfile_release(&run);
    } else {
        LS_CHECK_EQ(ls_err_last()->code, LS_EUSAGE);
        ls_report_render(ls_err_last(), &plain, out);
    }
    ls_str_release(&yaml);
    const char *next = strstr(end, "\n=== ");
    *p = next ? next + 1 : end + strlen(end);
    ls_str_append(out, next ? "\n" : "");
}

LS_TEST(runfile_messages_are_as_reviewed)
{
    ls_str want, got;
    int cases = 0;

    ls_str_init(&want);
    ls_str_init(&got);
    ls_golden_read("tests/golden/runfile-errors.txt", &want);
    const char *p = strstr(want.p, "=== ");
    LS_CHECK(p != NULL);
    ls_str_append_bytes(&got, want.p, (size_t)(p - want.p));
    for (; *p; cases++)
        run_case(&p, &got);
    LS_CHECK(cases > 50);
    ls_golden_check("tests/golden/runfile-errors.txt", &got, "LINESHAFT_GOLDEN=write");
    ls_str_release(&want);
    ls_str_release(&got);
}

/* --- bad files -------------------------------------------------------------------------------- */

static void write_file(const char *path, const char *text, size_t len)
{
    LS_CHECK_OK(ls_file_write_atomic(path, text, len));
}

static ls_status load_path(const char *path)
{
    ls_run run;
    ls_status st = ls_runfile_load(&run, &(ls_runfile_source){.path = path});

    if (st == LS_OK)
        ls_runfile_release(&run);
    return st;
}

LS_TEST(runfile_names_a_file_that_cannot_be_read)
{
    static char big[LS_RUNFILE_BYTES + 1];

    LS_CHECK_FAILS(load_path("none.yaml"), LS_EUSAGE,
                   "cannot open run file \"none.yaml\": No such");
    write_file("small.yaml", GOOD, strlen(GOOD));
    LS_CHECK_FAILS(load_path("small"), LS_EUSAGE, "cannot open run file \"small\"");
    LS_CHECK_STR(ls_err_last()->hint, "Did you mean \"small.yaml\"?");
    LS_CHECK_FAILS(load_path("."), LS_EUSAGE, "it is a folder");
    LS_CHECK_FAILS(load_path("small.yaml/x"), LS_EUSAGE, "Not a directory");
    memset(big, '#', sizeof big);
    write_file("big.yaml", big, sizeof big);
    LS_CHECK_FAILS(load_path("big.yaml"), LS_EUSAGE, "longer than 1 MiB");
    write_file("empty.yaml", "", 0);
    LS_CHECK_FAILS(load_path("empty.yaml"), LS_EUSAGE, "empty.yaml: the run file is empty");
    LS_CHECK_OK(load_path("small.yaml"));
    LS_CHECK(!ls_file_exists("runs"));
}

LS_TEST(runfile_points_at_bytes_that_are_no_text)
{
    ls_run run;

    LS_CHECK_FAILS(load(&run, "name: x\nout: a\xff\n", NULL, 0), LS_EUSAGE,
                   "run.yaml:2:7: byte 0xff is not UTF-8");
    LS_CHECK_FAILS(load(&run, "\xff\xfen\0", NULL, 0), LS_EUSAGE, "run.yaml:1:1: byte 0xff");
    LS_CHECK_FAILS(load(&run, "name: \xc3\xa4\x01\n", NULL, 0), LS_EUSAGE,
                   "run.yaml:1:8: not valid YAML: control characters");
    LS_CHECK_FAILS(load(&run, "name: \"a\\0b\"\n", NULL, 0), LS_EUSAGE,
                   "run.yaml:1:7: a text with a zero byte");
    LS_CHECK_FAILS(ls_runfile_load(&run, &(ls_runfile_source){.text = "na\0me: x", .len = 8}),
                   LS_EUSAGE, "<embedded>:1:3: not valid YAML");
    LS_CHECK_OK(load(&run, "\xef\xbb\xbf" GOOD, NULL, 0)); /* a byte order mark is harmless */
    ls_runfile_release(&run);
    LS_CHECK_FAILS(load(&run, GOOD, (const char *[]){"name=\xff"}, 1), LS_EUSAGE, "not UTF-8");
}

LS_TEST(runfile_deep_nesting_is_refused_at_once)
{
    static char text[200000];
    ls_run run;

    memset(text, '[', sizeof text - 1);
    LS_CHECK_FAILS(load(&run, text, NULL, 0), LS_EUSAGE, "run.yaml:1:1: a run file must be");
    memset(text, '{', sizeof text - 1);
    LS_CHECK_FAILS(load(&run, text, NULL, 0), LS_EUSAGE, "run.yaml:1:2: ");
    memcpy(text, "data: ", 6);
    LS_CHECK_FAILS(load(&run, text, NULL, 0), LS_EUSAGE, "run.yaml:1:8: ");
}

LS_TEST(runfile_shortens_a_very_long_path)
{
    char path[600];
    ls_run run;

    memset(path, 'p', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    LS_CHECK_FAILS(
        ls_runfile_load(&run, &(ls_runfile_source){.text = "x: 1", .len = 4, .text_name = path}),
        LS_EUSAGE, "p:1:1: unknown key \"x\"");
}

LS_TEST(runfile_looks_for_the_files_it_names)
{
    static const char one[] = "model: {layers: 1, width: 8, heads: 1, context: 8}\n"
                              "data:\n"
                              "  text:\n"
                              "    - here.txt\n"
                              "    - gone*.txt\n";

    write_file("here.txt", "text", 4);
    write_file("run.yaml", one, sizeof one - 1);
    LS_CHECK_FAILS(load_path("run.yaml"), LS_EUSAGE,
                   "run.yaml:5:7: data.text: no file matches \"gone*.txt\"");
    LS_CHECK(strstr(ls_err_last()->hint, "current folder"));
    write_file("gone1.txt", "text", 4);
    LS_CHECK_OK(load_path("run.yaml"));
    LS_CHECK_OK(ls_file_make_dirs("gone2.txt"));
    LS_CHECK_FAILS(load_path("run.yaml"), LS_EUSAGE, "\"gone2.txt\" is a folder");
    LS_CHECK_EQ(remove("gone2.txt"), 0);
    LS_CHECK_OK(ls_file_make_dirs("runs"));
    write_file("runs/run", "", 0);
    LS_CHECK_FAILS(load_path("run.yaml"), LS_EUSAGE, "run.yaml: out: \"runs/run\" is a file");
}

LS_TEST(runfile_survives_every_failed_allocation)
{
    const char *sets[] = {"data.weights=[1, 2]", "out=somewhere"};
    static const char text[] = "model: {layers: 1, width: 8, heads: 1, context: 8}\n"
                               "data: {text: [a, b]}\n";
    bool done = false;

    for (uint64_t n = 1; !done; n++) {
        ls_run run;
        LS_CHECK(n < 1000);
        ls_mem_fail_nth(n);
        ls_status st = load(&run, text, sets, 2);
        ls_mem_fail_nth(0);
        done = st == LS_OK;
        LS_CHECK(done || (st == LS_ENOMEM && run.arena.chunks == NULL && n > 0));
        ls_runfile_release(&run);
    }
}
