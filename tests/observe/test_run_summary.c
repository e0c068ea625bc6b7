/* test_run_summary.c -- runs in a few numbers, and the search for their folders. */
#include "harness.h"
#include "base/file.h"
#include "observe/run_summary.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

static void write_events(const char *folder, const char *lines)
{
    char path[256];
    FILE *f;

    LS_CHECK_OK(ls_file_make_dirs(folder));
    snprintf(path, sizeof path, "%s/events.jsonl", folder);
    f = fopen(path, "we");
    LS_CHECK(f);
    LS_CHECK(fputs(lines, f) >= 0);
    LS_CHECK(fclose(f) == 0);
}

static ls_run_summary read_run(const char *folder)
{
    ls_run_store *store = NULL;
    ls_run_summary run;

    LS_CHECK_OK(ls_run_store_open(folder, &store));
    LS_CHECK_OK(ls_run_summary_read(store, folder, &run));
    ls_run_store_close(store);
    return run;
}

#define STEP(n, loss, time)                                                       \
    "{\"event\":\"step\",\"step\":" #n ",\"loss\":" #loss ",\"tokens\":" #n "00," \
    "\"tokens_per_s\":50,\"ms\":2,\"time\":" #time "}\n"
#define EVAL(n, loss) "{\"event\":\"eval\",\"step\":" #n ",\"val_loss\":" #loss "}\n"

LS_TEST(run_summary_has_the_last_and_the_best)
{
    write_events(
        "a",
        "{\"event\":\"start\",\"name\":\"demo\",\"first_step\":0,\"total_steps\":9,"
        "\"time\":1000}\n" STEP(1, 3.5, 1001) EVAL(1, 3.25) STEP(2, 3, 1002) EVAL(2, 2.5)
            STEP(3, 2.75, 1003) EVAL(
                3, 2.625) "{\"event\":\"incident\",\"step\":3,\"kind\":\"lost\",\"text\":\"x\"}\n"
                          "{\"event\":\"summary\",\"steps\":3,\"tokens_per_s\":60,\"stopped_by\":"
                          "\"interrupt\",\"weights_hash\":\"abc\",\"time\":1004.5}\n");
    ls_run_summary r = read_run("a");

    LS_CHECK_STR(r.name, "demo");
    LS_CHECK_STR(r.state, "stopped");
    LS_CHECK_STR(r.weights_hash, "abc");
    LS_CHECK_EQ(r.steps, 3);
    LS_CHECK_EQ(r.total_steps, 9);
    LS_CHECK_EQ(r.tokens, 300);
    LS_CHECK_EQ(r.attempts, 1);
    LS_CHECK_EQ(r.incidents, 1);
    LS_CHECK_EQ(r.best_step, 2);
    LS_CHECK_EQ(r.began_ms, 1000000);
    LS_CHECK_EQ(r.updated_ms, 1004500);
    LS_CHECK(r.loss == 2.75 && r.val_loss == 2.625 && r.best_val_loss == 2.5);
    LS_CHECK(r.tokens_per_s == 60);
}

LS_TEST(run_summary_of_a_run_without_a_step_has_no_numbers)
{
    write_events("a", "{\"event\":\"rank\",\"rank\":0,\"pid\":1,\"host\":\"a\"}\n");
    ls_run_summary r = read_run("a");

    LS_CHECK_STR(r.name, "");
    LS_CHECK_EQ(r.steps, 0);
    LS_CHECK_EQ(r.attempts, 0);
    LS_CHECK_EQ(r.best_step, -1);
    LS_CHECK(isnan(r.loss) && isnan(r.val_loss) && isnan(r.best_val_loss));
    LS_CHECK(r.updated_ms > 0); /* of the file */
}

static void check_found(const char *folder, const char *want)
{
    const char *at;
    ls_str paths, text;
    int count;

    ls_str_init(&paths);
    ls_str_init(&text);
    LS_CHECK_OK(ls_run_summary_find(folder, &paths, &count));
    at = paths.p;
    for (int i = 0; i < count; i++, at += strlen(at) + 1)
        ls_str_printf(&text, "%s ", at);
    LS_CHECK_STR(text.p, want);
    ls_str_release(&paths);
    ls_str_release(&text);
}

LS_TEST(run_summary_finds_runs_below_a_folder)
{
    write_events("t/b", "");
    write_events("t/a", "");
    write_events("t/a/inside", ""); /* a folder of a run is not searched */
    write_events("t/x/y/z", "");
    write_events("t/x/y/z2/too_deep", "");
    write_events("t/.hidden", "");
    LS_CHECK(symlink("b", "t/link") == 0);
    LS_CHECK_OK(ls_file_make_dirs("empty"));
    check_found("t", "t/a t/b t/x/y/z ");
    check_found("t//", "t/a t/b t/x/y/z ");
    check_found("t/a", "t/a ");
    check_found("empty", "");

    ls_str paths;
    int count;
    ls_str_init(&paths);
    LS_CHECK_FAILS(ls_run_summary_find("not/there", &paths, &count), LS_EIO, "cannot read");
    ls_str_release(&paths);
}
