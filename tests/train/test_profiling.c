/* test_profiling.c -- which steps of a run are noted, what is written, and that the run is the same
 * run. */
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "config/runfile.h"
#include "harness.h"
#include "kernel/trace.h"
#include "train/loop.h"

typedef struct told {
    volatile sig_atomic_t stop;
    int64_t stop_after;       /* steps; 0: never */
    uint64_t fail_nth, calls; /* which allocation of the run fails, 0: none; how many it made */
    int profiles;
    int64_t last, steps; /* of the profile */
    double ms;
    char path[64], hash[40], table[4096];
} told;

static void on_event(void *context, const ls_event *event)
{
    told *t = context;

    if (event->kind == LS_EVENT_STEP)
        t->stop = t->stop_after && event->step.step >= t->stop_after;
    if (event->kind == LS_EVENT_SUMMARY)
        snprintf(t->hash, sizeof t->hash, "%s", event->summary.weights_hash);
    if (event->kind != LS_EVENT_PROFILE)
        return;
    t->profiles++;
    t->last = event->profile.step;
    t->steps = event->profile.steps;
    t->ms = event->profile.step_ms;
    snprintf(t->path, sizeof t->path, "%s", event->profile.path);
    snprintf(t->table, sizeof t->table, "%s", event->profile.table);
}

/* A run of 10 steps in the folder out, with one more setting or NULL. */
static ls_status run_with(told *t, int64_t profile_steps, const char *out, const char *set)
{
    static const char text[] =
        "model: {layers: 2, width: 16, heads: 2, context: 16, dropout: 0.1}\n"
        "data: {text: [builtin:stories]}\n"
        "batch: {sequences: 6, leaf: 2, group: 1}\n"
        "train: {steps: 10, warmup: 1}\n"
        "checkpoint: {every: 4, keep: 2}\n"
        "eval: {every: 5, sequences: 4, sample: \"ab\", sample_tokens: 3}\n"
        "device: {threads: 1}\n";
    char folder[32];
    const char *sets[] = {folder, set};
    ls_run run;

    snprintf(folder, sizeof folder, "out=%s", out);
    LS_CHECK_OK(ls_runfile_load(&run, &(ls_runfile_source){.text = text,
                                                           .len = sizeof text - 1,
                                                           .sets = sets,
                                                           .n_sets = set ? 2 : 1,
                                                           .no_environment = true}));
    uint64_t before = ls_mem_calls();
    ls_mem_fail_nth(t->fail_nth);
    ls_status st = ls_loop_run(&(ls_session_args){.run = &run,
                                                  .sink = on_event,
                                                  .sink_context = t,
                                                  .stop = &t->stop,
                                                  .profile_steps = profile_steps});
    ls_mem_fail_nth(0);
    t->calls = ls_mem_calls() - before;
    ls_runfile_release(&run);
    return st;
}

static void read_trace(const char *folder, ls_trace *trace, ls_str *text)
{
    char path[96];

    snprintf(path, sizeof path, "%s/trace.json", folder);
    ls_str_init(text);
    LS_CHECK_OK(ls_file_read(path, 64 * LS_MIB, text));
    ls_trace_read(trace, text->p, text->len);
}

/* How long all events of a category and name lasted. */
static double ms_of(const ls_trace *t, const char *category, const char *name)
{
    double ns = 0;

    for (int i = ls_trace_count(t, category, name) - 1; i >= 0; i--) {
        const ls_trace_event *e = ls_trace_find(t, category, name, i);
        ns += (double)(e->end_ns - e->begin_ns);
    }
    return ns / 1e6;
}

/* Steps 3 to 6 of 10: after two others, through a save (4) and a validation (5). */
LS_TEST(profiling_notes_steps_and_changes_nothing)
{
    told plain = {0}, t = {0};
    ls_trace trace;
    ls_str text;

    LS_CHECK_OK(run_with(&plain, 0, "plain", NULL));
    LS_CHECK(plain.profiles == 0 && !ls_file_exists("plain/profile"));
    LS_CHECK_OK(run_with(&t, 4, "run", "device.threads=2"));
    LS_CHECK_STR(t.hash, plain.hash);
    LS_CHECK(t.profiles == 1 && t.last == 6 && t.steps == 4);
    LS_CHECK_STR(t.path, "run/profile");
    read_trace(t.path, &trace, &text);
    LS_CHECK_EQ(ls_trace_count(&trace, "step", NULL), 4);
    for (int i = 0; i < 4; i++) {
        char name[24];
        snprintf(name, sizeof name, "step %d", 3 + i);
        LS_CHECK_EQ(ls_trace_count(&trace, "step", name), 1);
    }
    LS_CHECK_EQ(ls_trace_count(&trace, "phase", "forward"), 4 * 3); /* three leaves, a call each */
    LS_CHECK_EQ(ls_trace_count(&trace, "phase", "backward"), 4 * 3);
    LS_CHECK(ls_trace_count(&trace, "phase", "sum over leaves") >= 4);
    LS_CHECK_EQ(ls_trace_count(&trace, "phase", "batch wait"), 4);
    LS_CHECK_EQ(ls_trace_count(&trace, "phase", "update"),
                4 + 1); /* one has a wait inside of it: */
    LS_CHECK_EQ(ls_trace_count(&trace, "phase", "evaluation"), 1);
    /* the beginning of the save, and the next update, which waits for the copy */
    LS_CHECK_EQ(ls_trace_count(&trace, "phase", "checkpoint"), 2);
    LS_CHECK_EQ(ls_trace_count(&trace, "kernel", "adamw"), 4);
    LS_CHECK_EQ(ls_trace_count(&trace, "kernel", "attention_bwd"), 4 * 3 * 2);
    const ls_trace_event *adamw = ls_trace_find(&trace, "kernel", "adamw", 0);
    LS_CHECK_STR(ls_trace_around(&trace, adamw, "phase")->name, "update");
    LS_CHECK(json_integer_value(json_object_get(adamw->args, "n")) > 1000);
    /* The laps of a step fill it, and the table's step is a step without what is aside. */
    double steps = ms_of(&trace, "step", NULL);
    LS_CHECK_NEAR(ms_of(&trace, "phase", NULL), steps, 1e-4);
    double aside = ms_of(&trace, "phase", "evaluation") + ms_of(&trace, "phase", "checkpoint");
    LS_CHECK_NEAR(t.ms, (steps - aside) / 4, 1e-4);
    ls_trace_release(&trace);
    ls_str_clear(&text);
    LS_CHECK_OK(ls_file_read("run/profile/table.txt", LS_MIB, &text));
    LS_CHECK_STR(text.p, t.table);
    ls_str_release(&text);
}

/* The first and the last step that are noted, by what the run asks for and has left. */
LS_TEST(profiling_warms_up_as_ep_as_the_run_allows)
{
    static const struct {
        int64_t ask, first;
    } cases[] = {{1, 3}, {8, 3}, {9, 2}, {10, 1}};
    char out[32];

    for (size_t i = 0; i < LS_COUNT(cases); i++) {
        told t = {0};
        snprintf(out, sizeof out, "run%zu", i);
        LS_CHECK_OK(run_with(&t, cases[i].ask, out, NULL));
        LS_CHECK_EQ(t.profiles, 1);
        LS_CHECK_EQ(t.steps, cases[i].ask);
        LS_CHECK_EQ(t.last, cases[i].first + cases[i].ask - 1);
    }
}

/* A resumed run warms up again; one that ends before leaves what there was; a finished one says
 * that there is nothing. */
LS_TEST(profiling_of_resumed_and_stopped_runs)
{
    told first = {.stop_after = 4}, second = {.stop_after = 7}, third = {0}, done = {0};

    LS_CHECK_FAILS(run_with(&first, 9, "run", NULL), LS_EINTR, "saved");
    LS_CHECK(first.profiles == 1 && first.last == 5 && first.steps == 4); /* 2 to 5 */
    LS_CHECK_FAILS(run_with(&second, 1, "run", NULL), LS_EINTR, "saved");
    LS_CHECK(second.profiles == 1 && second.last == 8 && second.steps == 1);
    LS_CHECK_OK(run_with(&third, 5, "run", NULL)); /* two are left: no time to warm up */
    LS_CHECK(third.profiles == 1 && third.last == 10 && third.steps == 2);
    LS_EXPECT_LOG(1);
    LS_CHECK_OK(run_with(&done, 5, "run", NULL));
    LS_CHECK_EQ(done.profiles, 0);
}

/* A file where the folder should be: training goes on. */
LS_TEST(profiling_that_cannot_be_written_is_a_warning)
{
    told t = {0};

    LS_CHECK_OK(ls_file_make_dirs("run"));
    LS_CHECK_OK(ls_file_write_atomic("run/profile", "x", 1));
    LS_EXPECT_LOG(1);
    LS_CHECK_OK(run_with(&t, 2, "run", NULL));
    LS_CHECK_EQ(t.profiles, 0);
    LS_CHECK(*t.hash);
}

/* Without memory a run ends with LS_ENOMEM or, while writing, goes on without its profile. */
LS_TEST_SECONDS(profiling_survives_failing_allocations, 90)
{
    told t = {0};

    LS_CHECK_OK(run_with(&t, 3, "whole", NULL));
    for (uint64_t n = 1; n <= t.calls;
         n += 61 * (uint64_t)ls_test_stride(4)) { /* opening a profile has its own test */
        told again = {.fail_nth = n};
        char out[32];
        snprintf(out, sizeof out, "run%d", (int)n);
        ls_status st = run_with(&again, 3, out, NULL);
        if (st == LS_OK)
            LS_CHECK_STR(again.hash, t.hash);
        else
            LS_CHECK_EQ(st, LS_ENOMEM);
    }
    ls_test_expect_log((int)ls_log_count(LS_LOG_WARN)); /* saves and profiles that failed, told */
}
