/* test_loop.c -- whole runs in this process: stopping, resuming, in bf16, on a device with a memory
 * of its own, and with memory that runs out. */
#include <math.h>
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "config/runfile.h"
#include "fake/fake.h"
#include "train/discrete_device.h"
#include "train/loop.h"

/* What a run told. */
typedef struct told {
    volatile sig_atomic_t stop;
    uint64_t fail_nth, calls; /* let this allocation of the run fail; how many it made */
    int64_t stop_after;       /* ask to stop when this step is told; 0: never */
    bool discrete;            /* on a device whose memory the host cannot touch */
    int64_t first_step, steps_here;
    int64_t waits, most_waits; /* for the device: so far, between two steps */
    int evals, samples, saved, incidents;
    int64_t last_eval_step, last_saved_step;
    char stopped_by[32], hash[40], sample[64];
    double loss, val_loss; /* of the last step and validation */
    double scales[8];      /* of the loss, by step; 0: none */
    int skipped;           /* steps whose update was not made */
    int64_t overflows;
    int64_t peak_bytes, ledger_bytes;
    double energy_j, power_w, joules_per_token;
} told;

static void on_event(void *context, const ls_event *event)
{
    told *t = context;

    switch (event->kind) {
    case LS_EVENT_START:
        t->first_step = event->start.first_step;
        break;
    case LS_EVENT_STEP:
        t->stop = t->stop_after && event->step.step >= t->stop_after;
        t->loss = event->step.loss;
        if (event->step.step > 1 && event->step.tokens_left > 0) /* the last is followed by more */
            t->most_waits = ls_max_i64(t->most_waits, ls_discrete_device_waits() - t->waits);
        t->waits = ls_discrete_device_waits();
        t->scales[event->step.step % 8] = event->step.loss_scale;
        t->skipped += event->step.skipped;
        t->overflows = event->step.overflows;
        break;
    case LS_EVENT_EVAL:
        t->evals++;
        t->last_eval_step = event->eval.step;
        t->val_loss = event->eval.val_loss;
        break;
    case LS_EVENT_SAMPLE:
        t->samples++;
        snprintf(t->sample, sizeof t->sample, "%.*s", (int)event->sample.text_len,
                 event->sample.text);
        break;
    case LS_EVENT_CHECKPOINT:
        t->saved++;
        t->last_saved_step = event->checkpoint.step;
        break;
    case LS_EVENT_INCIDENT:
        t->incidents++;
        break;
    case LS_EVENT_BALANCE:
        break;
    case LS_EVENT_SUMMARY:
        t->steps_here = event->summary.steps_here;
        snprintf(t->stopped_by, sizeof t->stopped_by, "%s", event->summary.stopped_by);
        snprintf(t->hash, sizeof t->hash, "%s", event->summary.weights_hash);
        t->peak_bytes = event->summary.peak_bytes;
        t->ledger_bytes = event->summary.ledger_bytes;
        t->energy_j = event->summary.energy_j;
        t->power_w = event->summary.power_w;
        t->joules_per_token = event->summary.joules_per_token;
        break;
    case LS_EVENT_MESH:
    case LS_EVENT_RANK:
    case LS_EVENT_PROFILE:
        break;
    }
}

enum { MOST_SETS = 12 };

/* A run of a few milliseconds with these settings (NULL ends them) in the folder "run". */
static ls_status run_with(told *t, const char *const *more)
{
    static const char text[] = "model: {layers: 1, width: 8, heads: 1, context: 8}\n"
                               "data: {text: [text.txt], validation: 20%}\n"
                               "batch: {sequences: 2, leaf: 1, group: 1}\n"
                               "train: {steps: 6, warmup: 1}\n"
                               "checkpoint: {every: 2, keep: 3}\n"
                               "eval: {every: 3, sequences: 4, sample: \"ab\", sample_tokens: 2}\n"
                               "device: {threads: 1}\n";
    const char *sets[MOST_SETS] = {"out=run"};
    ls_runfile_source source = {
        .text = text, .len = sizeof text - 1, .sets = sets, .n_sets = 1, .no_environment = true};
    ls_run run;
    ls_session_args args = {.run = &run, .sink = on_event, .sink_context = t, .stop = &t->stop};

    while (*more)
        sets[source.n_sets++] = *more++;
    LS_CHECK_OK(ls_runfile_load(&run, &source));
    if (t->discrete)
        args.device = ls_discrete_device_open(
            run.device.isa == LS_ISA_REFERENCE ? "reference" : "auto", 2, &args.kernels);
    uint64_t before = ls_mem_calls();
    ls_mem_fail_nth(t->fail_nth);
    ls_status st = ls_loop_run(&args);
    ls_mem_fail_nth(0);
    t->calls = ls_mem_calls() - before;
    if (t->discrete)
        ls_discrete_device_close(args.device);
    ls_runfile_release(&run);
    return st;
}

static void write_text(const char *sentence)
{
    FILE *f = fopen("text.txt", "w");

    LS_CHECK(f);
    for (int i = 0; i < 40; i++)
        fprintf(f, "%d %s\n", i, sentence);
    LS_CHECK_EQ(fclose(f), 0);
}

static const char *const nothing[] = {NULL};

LS_TEST(loop_resumes_a_stopped_run_to_the_same_weights)
{
    told straight = {.stop = 0}, first = {.stop_after = 4}, second = {.stop = 0};

    write_text("a text to learn");
    LS_CHECK_OK(run_with(&straight, (const char *const[]){"out=straight", NULL}));
    LS_CHECK_STR(straight.stopped_by, "steps");
    LS_CHECK_FAILS(run_with(&first, nothing), LS_EINTR, "step 5 is saved");
    LS_CHECK_STR(first.stopped_by, "interrupt");
    LS_CHECK_EQ(first.last_saved_step, 5);
    LS_CHECK_OK(run_with(&second, nothing));
    LS_CHECK_EQ(second.first_step, 5);
    LS_CHECK_EQ(second.steps_here, 1);
    LS_CHECK_STR(second.hash, straight.hash);
}

/* Validation that nobody planned would keep the user waiting; and its result, in the checkpoint,
 * could end the resumed run where one that never stopped goes on. */
LS_TEST(loop_does_not_validate_because_it_was_stopped)
{
    told first = {.stop_after = 4}, second = {.stop = 0};
    const char *const target[] = {"train.target_loss=100", "eval.every=6", NULL};

    write_text("a text to learn");
    LS_CHECK_FAILS(run_with(&first, target), LS_EINTR, "step 5 is saved");
    LS_CHECK_EQ(first.evals, 0);
    LS_CHECK_EQ(first.samples, 1); /* the one before the first step */
    LS_CHECK_OK(run_with(&second, target));
    LS_CHECK_EQ(second.steps_here, 1);
    LS_CHECK_EQ(second.last_eval_step, 6);
}

LS_TEST(loop_stopped_before_its_first_step_begins_there_again)
{
    told first = {.stop = 1}, second = {.stop = 0}, straight = {.stop = 0};

    write_text("a text to learn");
    LS_CHECK_FAILS(run_with(&first, nothing), LS_EINTR, "step 0 is saved");
    LS_CHECK_OK(run_with(&second, nothing));
    LS_CHECK_EQ(second.steps_here, 6);
    LS_CHECK_OK(run_with(&straight, (const char *const[]){"out=straight", NULL}));
    LS_CHECK_STR(second.hash, straight.hash);
}

LS_TEST(loop_samples_only_tokens_of_the_tokenizer)
{
    told t = {.stop = 0};

    write_text("a text to learn");
    LS_CHECK_OK(
        run_with(&t, (const char *const[]){"model.vocab=5000", "eval.sample_tokens=20", NULL}));
    LS_CHECK_EQ(t.samples, 3);
}

LS_TEST(loop_refuses_settings_that_cannot_work_before_it_makes_anything)
{
    told t = {.stop = 0};

    write_text("a text to learn");
    LS_CHECK_FAILS(run_with(&t, (const char *const[]){"model.vocab=10", NULL}), LS_EUSAGE,
                   "--set: model.vocab is 10");
}

LS_TEST(loop_refuses_to_resume_on_other_text)
{
    told t = {.stop = 0};

    write_text("a text to learn");
    LS_CHECK_OK(run_with(&t, nothing));
    write_text("a text to learn"); /* written anew, but the same */
    LS_CHECK_OK(run_with(&t, (const char *const[]){"train.steps=8", NULL}));
    LS_CHECK_EQ(t.steps_here, 2);
    write_text("a text that is new");
    LS_CHECK_FAILS(run_with(&t, (const char *const[]){"train.steps=9", NULL}), LS_EDATA,
                   "trained on other text");
}

/* The writer reads the snapshot until it has ended: while it does, the next save is left out. */
LS_TEST(loop_leaves_a_save_out_while_the_one_before_is_running)
{
    told t = {.stop = 0};

    LS_EXPECT_LOG(1);
    write_text("a text to learn");
    ls_fault_arm("train.writer_wait@1");
    LS_CHECK_OK(
        run_with(&t, (const char *const[]){"checkpoint.every=1", "checkpoint.keep=9", NULL}));
    LS_CHECK_EQ(t.incidents, 1);
    LS_CHECK_EQ(t.saved, 5);
    LS_CHECK(ls_file_exists("run/checkpoints/step-0000000001.json"));
    LS_CHECK(!ls_file_exists("run/checkpoints/step-0000000002.json"));
    LS_CHECK_EQ(t.last_saved_step, 6);
}

/* A device with a memory of its own gives the same bits, also where a run changes between the two;
 * every wrong look at its memory would end the test. */
LS_TEST_SECONDS(loop_runs_where_the_host_cannot_touch_the_weights, 180)
{
    static const char *const settings[][6] = {
        {"checkpoint.every=2", NULL},
        {"checkpoint.every=0", NULL},
        {"device.offload=host", NULL},
        /* Moments of several chunks. */
        {"device.offload=host", "model.width=256", "model.layers=3", "eval.every=0",
         "checkpoint.every=0", NULL},
        {"train.reduce=fast", "batch.group=2", NULL},
        {"model.family=llama", "train.freeze=[model.embed*]", "model.dropout=0.1", NULL},
        {"precision=bf16", "device.isa=reference", NULL},
        {"precision=bf16", "device.isa=reference", "model.family=qwen3",
         "train.freeze=[model.layers.0.mlp*]", NULL}};

    write_text("a text to learn");
    for (size_t i = 0; i < LS_COUNT(settings); i += (size_t)ls_test_stride(3)) {
        told here = {.stop = 0}, there = {.discrete = true, .stop_after = 4},
             again = {.discrete = i % 2};
        char straight[32], folder[32];
        const char *sets[8] = {straight};
        snprintf(straight, sizeof straight, "out=here-%d", (int)i);
        snprintf(folder, sizeof folder, "out=there-%d", (int)i);
        for (int k = 0; settings[i][k]; k++)
            sets[k + 1] = settings[i][k];
        LS_CHECK_OK(run_with(&here, sets));
        sets[0] = folder;
        LS_CHECK_FAILS(run_with(&there, sets), LS_EINTR, "step 5 is saved");
        LS_CHECK_OK(run_with(&again, sets));
        LS_CHECK_EQ(again.first_step, 5);
        LS_CHECK_STR(again.hash, here.hash);
        LS_CHECK(again.loss == here.loss && again.val_loss == here.val_loss);
        LS_CHECK_STR(again.sample, here.sample);
        /* All there is was predicted. */
        LS_CHECK_EQ(there.peak_bytes, there.ledger_bytes);
    }
}

/* Moments that lie in a file: the same bits, also where a run changes between the two. */
LS_TEST_SECONDS(loop_runs_with_moments_on_disk, 180)
{
    static const char *const settings[][6] = {
        {"checkpoint.every=2", NULL},
        {"checkpoint.every=0", NULL},
        {"model.family=llama", "train.freeze=[model.embed*]", NULL},
        /* Of several chunks. */
        {"model.width=256", "model.layers=3", "eval.every=0", "checkpoint.every=0", NULL}};

    write_text("a text to learn");
    for (size_t i = 0; i < LS_COUNT(settings); i++) {
        told here = {.stop = 0}, there = {.stop_after = 4}, again = {.stop = 0};
        char straight[32], folder[32];
        const char *sets[8] = {straight};
        int n = 1;
        snprintf(straight, sizeof straight, "out=here-%d", (int)i);
        snprintf(folder, sizeof folder, "out=there-%d", (int)i);
        for (int k = 0; settings[i][k]; k++)
            sets[n++] = settings[i][k];
        LS_CHECK_OK(run_with(&here, sets));
        sets[0] = folder;
        sets[n] = i % 2 ? "device.offload=disk" : NULL;
        LS_CHECK_FAILS(run_with(&there, sets), LS_EINTR, "step 5 is saved");
        sets[n] = i % 2 ? NULL : "device.offload=disk";
        LS_CHECK_OK(run_with(&again, sets));
        LS_CHECK_EQ(again.first_step, 5);
        LS_CHECK_STR(again.hash, here.hash);
        LS_CHECK(again.loss == here.loss && again.val_loss == here.val_loss);
    }
}

LS_TEST(loop_says_where_moments_cannot_lie)
{
    told t = {.stop = 0};

    write_text("a text to learn");
    LS_CHECK_FAILS(run_with(&t, (const char *const[]){"device.offload=disk",
                                                      "device.offload_to=nowhere", NULL}),
                   LS_EIO, "cannot make a file in \"nowhere\" for first moments");
    LS_CHECK(strstr(ls_err_last()->hint, "device.offload_to"));
    ls_fault_arm("base.spill.full@2");
    LS_CHECK_FAILS(run_with(&t, (const char *const[]){"device.offload=disk", NULL}), LS_EIO,
                   "for second moments");
    LS_CHECK(strstr(ls_err_last()->text, "No space left"));
    t = (told){.discrete = true};
    LS_CHECK_FAILS(run_with(&t, (const char *const[]){"device.offload=disk", NULL}), LS_EUSAGE,
                   "device.offload cannot be disk");
}

/* The host waits for the device once in a step: before the update, which it leaves queued. Also
 * where a step is dropped: nothing of it was queued. */
LS_TEST(loop_waits_once_in_a_step)
{
    const char *const sets[] = {"checkpoint.every=0", "eval.every=0", "batch.sequences=4",
                                "batch.group=2", NULL};
    told t = {.discrete = true};

    write_text("a text to learn");
    LS_CHECK_OK(run_with(&t, sets));
    LS_CHECK_EQ(t.most_waits, 1);
}

/* Nothing is lost by looking at numbers before the update: what was skipped changes no bit. */
LS_TEST(loop_skips_same_part_where_the_host_cannot_touch_the_weights)
{
    const char *sets[] = {"out=here", "train.nonfinite=skip", NULL};
    told here = {.stop = 0}, there = {.discrete = true};

    LS_EXPECT_LOG(2);
    write_text("a text to learn");
    ls_fault_arm("train.nonfinite@3");
    LS_CHECK_OK(run_with(&here, sets));
    sets[0] = "out=there";
    ls_fault_arm("train.nonfinite@3");
    LS_CHECK_OK(run_with(&there, sets));
    LS_CHECK(here.incidents == 1 && there.incidents == 1);
    LS_CHECK_STR(there.hash, here.hash);
}

/* precision: fp8 on a device that lacks it is refused before anything large is taken. */
LS_TEST(loop_refuses_fp8_on_a_card_without)
{
    const char *const sets[] = {"precision=fp8", "train.reduce=fast", "device.kind=cuda", NULL};
    told t = {.discrete = true};

    write_text("a text to learn");
    LS_CHECK_FAILS(run_with(&t, sets), LS_EUSAGE, "precision cannot be fp8: \"cpu");
    LS_CHECK(strstr(ls_err_last()->hint, "fp8 begins with compute capability 8.9"));
    LS_CHECK(!ls_file_exists("run"));
}

/* A GPU's energy is in the summary where its driver counts it, and only there. */
LS_TEST(loop_reports_the_energy_of_a_gpu)
{
    told t = {.discrete = true}, here = {.stop = 0};
    unsigned long long *reasons =
        dlsym(ls_fake_use("LINESHAFT_NVML", "libfake_nvml.so"), "fake_nvml_reasons");

    LS_CHECK(reasons);
    *reasons = 0x4; /* the power limit: as it should be */
    write_text("a text to learn");
    LS_CHECK_OK(run_with(&t, nothing));
    LS_CHECK_NEAR(t.energy_j, 250, 1e-9); /* the library's counter grows by that between readings */
    LS_CHECK(t.power_w > 0);
    LS_CHECK_NEAR(t.joules_per_token, 250.0 / (6 * 2 * 8), 1e-9);
    LS_CHECK_OK(run_with(&here, (const char *const[]){"out=cpu", NULL}));
    LS_CHECK(isnan(here.energy_j));
    LS_CHECK_EQ(setenv("LINESHAFT_NVML", "libnothing-ml.so.1", 1), 0);
    t = (told){.discrete = true};
    LS_CHECK_OK(run_with(&t, (const char *const[]){"out=silent", NULL}));
    LS_CHECK(isnan(t.energy_j));
}

/* An XID and heat are incidents and warnings, once each, and training goes on. */
LS_TEST(loop_reports_what_befell_a_gpu)
{
    void *library = ls_fake_use("LINESHAFT_NVML", "libfake_nvml.so");
    unsigned long long *xids = dlsym(library, "fake_nvml_xids");
    char line[1024];
    int errors = 0, heat = 0, others = 0;
    told t = {.discrete = true};

    LS_CHECK(xids);
    xids[0] = 31, xids[1] = 79;
    write_text("a text to learn");
    LS_EXPECT_LOG(3); /* two incidents, and at the end the XIDs of the whole run */
    LS_CHECK_OK(run_with(&t, nothing));
    LS_CHECK_STR(t.stopped_by, "steps");
    FILE *f = fopen("run/events.jsonl", "re");
    LS_CHECK(f);
    while (fgets(line, sizeof line, f)) {
        if (!strstr(line, "\"incident\""))
            continue;
        bool gpu = strstr(line, "\"kind\":\"gpu\",\"action\":\"training goes on\"") != NULL;
        if (gpu && strstr(line, "reported 2 errors before step 1 was done, the last is XID 79"))
            errors++;
        else if (gpu &&
                 strstr(line, "at step 1 the GPU's clocks are held back by power limit, heat"))
            heat++;
        else
            others++;
    }
    fclose(f);
    LS_CHECK(errors == 1 && heat == 1 && others == 0);
}

/* What is not a number is found by looking at what the device holds. */
LS_TEST(loop_blames_what_the_host_cannot_touch)
{
    told t = {.discrete = true};

    write_text("a text to learn");
    ls_fault_arm("train.nonfinite@3");
    LS_CHECK_FAILS(run_with(&t, nothing), LS_ENUMERIC, "gradient of");
    t = (told){.discrete = true};
    ls_fault_arm("train.nonfinite@3");
    LS_CHECK_FAILS(run_with(&t, (const char *const[]){"out=other", "precision=bf16",
                                                      "device.isa=reference", NULL}),
                   LS_ENUMERIC, "gradient of");
}

LS_TEST(loop_resumes_in_bf16_to_the_same_weights)
{
    told straight = {.stop = 0}, first = {.stop_after = 3}, second = {.stop = 0},
         other = {.stop = 0};
    const char *sets[] = {"out=straight", "precision=bf16", "device.isa=reference", NULL};

    write_text("a text to learn");
    LS_CHECK_OK(run_with(&straight, sets));
    sets[0] = "out=run";
    LS_CHECK_FAILS(run_with(&first, sets), LS_EINTR, "step 4 is saved");
    LS_CHECK_OK(run_with(&second, sets));
    LS_CHECK_EQ(second.first_step, 4);
    LS_CHECK_STR(second.hash, straight.hash);
    LS_CHECK(second.loss == straight.loss && second.val_loss == straight.val_loss);
    LS_CHECK_STR(second.sample, straight.sample);
    /* Another precision is another run. */
    sets[1] = "precision=fp32";
    LS_CHECK_FAILS(run_with(&other, sets), LS_EUSAGE, "precision");
}

/* Two overflows, and a scale that has grown in between: a run that stopped between them goes on
 * with the scale, and the good steps, that it had. */
LS_TEST(loop_resumes_in_fp16_with_its_loss_scale)
{
    for (int discrete = 0; discrete < 2; discrete++) {
        told straight = {.discrete = discrete}, first = {.stop_after = 3, .discrete = discrete},
             second = {.discrete = discrete};
        const char *sets[] = {"out=straight",
                              "precision=fp16",
                              "device.isa=reference",
                              "train.loss_scale=1024",
                              "train.loss_scale_interval=2",
                              "train.steps=7",
                              "checkpoint.every=0",
                              NULL};
        static const double want[] = {0, 1024, 512, 512, 1024, 1024, 512, 512};
        write_text("a text to learn");
        ls_fault_arm("train.nonfinite@1,train.nonfinite@5");
        sets[0] = discrete ? "out=straight2" : "out=straight";
        LS_CHECK_OK(run_with(&straight, sets));
        for (int i = 1; i < 8; i++)
            LS_CHECK_EQ(straight.scales[i], want[i]);
        LS_CHECK_EQ(straight.skipped, 2);
        LS_CHECK_EQ(straight.overflows, 2);
        LS_CHECK_EQ(straight.incidents, 0);
        sets[0] = discrete ? "out=two2" : "out=two";
        ls_fault_arm("train.nonfinite@1");
        LS_CHECK_FAILS(run_with(&first, sets), LS_EINTR, "step 4 is saved");
        ls_fault_arm("train.nonfinite@1"); /* of this process: step 5 */
        LS_CHECK_OK(run_with(&second, sets));
        LS_CHECK_EQ(second.first_step, 4);
        LS_CHECK_EQ(second.scales[5], 1024);
        LS_CHECK_EQ(second.scales[6], 512);
        LS_CHECK_EQ(second.overflows, 2);
        LS_CHECK_STR(second.hash, straight.hash);
        LS_CHECK(second.loss == straight.loss && second.val_loss == straight.val_loss);
    }
    ls_fault_arm("");
}

LS_TEST(loop_says_why_there_is_no_gpu)
{
    const char *why = ls_device_unusable("cuda");
    told t = {.stop = 0};

    if (!why)
        ls_test_skip("there is a GPU");
    write_text("a text to learn");
    LS_CHECK_FAILS(run_with(&t, (const char *const[]){"device.kind=cuda", NULL}), LS_EUSAGE, why);
}

/* Runs with the 1st, 2nd ... allocation failing until one needs none of those that are left. Each
 * ends well or says that memory is short; never a crash, a leak or another error. */
static void fail_each(bool resume, bool discrete)
{
    bool hit = true;
    int ended_well = 0, ended_badly = 0;

    /* Opening takes them one by one; of a save's hundreds, all alike, every ninth will do. */
    uint64_t stride = (uint64_t)ls_test_stride(4);
    for (uint64_t n = 1; hit; n += stride * (discrete ? 5 : n < 150 ? 1 : 9)) {
        char folder[32], steps[32];
        told t = {.fail_nth = n, .discrete = discrete};
        snprintf(folder, sizeof folder, resume ? "out=run" : "out=fresh-%d", (int)n);
        snprintf(steps, sizeof steps, "train.steps=%d", resume ? 7 + ended_well : 3);
        ls_err_clear();
        ls_status st = run_with(
            &t, (const char *const[]){folder, steps, "checkpoint.every=2", "eval.every=3", NULL});
        if (st != LS_OK && (st != LS_ENOMEM || !ls_err_last()->text[0]))
            ls_test_fail(__FILE__, __LINE__, "allocation %d failing: status %d, \"%s\"", (int)n,
                         (int)st, ls_err_last()->text);
        ended_badly += st != LS_OK;
        ended_well += st == LS_OK;
        hit = t.calls >= n;
    }
    LS_CHECK(ended_badly > (discrete ? 10 : 50) / (int)stride);
}

LS_TEST_SECONDS(loop_survives_every_failing_allocation, 120)
{
    write_text("a text to learn");
    fail_each(false, false);
    ls_test_expect_log((int)ls_log_count(LS_LOG_WARN)); /* saves that failed, told */
}

LS_TEST_SECONDS(loop_resumes_through_every_failing_allocation, 120)
{
    told t = {.stop = 0};

    write_text("a text to learn");
    LS_CHECK_OK(run_with(&t, nothing));
    fail_each(true, false);
    ls_test_expect_log((int)ls_log_count(LS_LOG_WARN));
}

LS_TEST_SECONDS(loop_survives_failing_allocations_on_a_device_discrete, 120)
{
    write_text("a text to learn");
    fail_each(false, true);
    ls_test_expect_log((int)ls_log_count(LS_LOG_WARN));
}
