/* test_step.c -- equal bits for threads, instruction sets and grouping; the ledger is exact. */
#include <math.h>
#include "base/mem.h"
#include "harness.h"
#include "model/decode.h"
#include "model/tiny.h"
#include "plan/ledger_bytes.h"
#include "plan/memory.h"
#include "train/step/step.h"

enum { VOCAB = 19, STEPS = 4 };

typedef struct outcome {
    float *w; /* owned */
    int64_t n;
    double losses[STEPS];
} outcome;

/* Train a few steps from scratch and hand back weights and losses. */
static outcome train(const ls_run *run, const char *isa, int threads)
{
    outcome result = {.w = NULL};
    ls_step_args args = {.run = run};
    ls_device *device;
    ls_step *step;
    ls_model model;
    int64_t n = run->batch.sequences * run->model.context;
    int32_t *tokens = ls_mem_array((size_t)n + 1, sizeof *tokens);

    LS_CHECK_OK(ls_device_open(&device, "cpu", threads));
    LS_CHECK_OK(ls_stream_create(&args.stream, device));
    LS_CHECK_OK(ls_kernel_pick(isa, &args.kernels));
    LS_CHECK_OK(ls_model_init(&model, run, VOCAB));
    args.model = &model;
    ls_calls_plan(run, NULL, &args.calls);
    LS_CHECK_OK(ls_step_open(&step, &args));
    float *w = ls_step_state_arrays(step).w;
    for (int i = 0; i < model.n_params; i++)
        ls_model_start(&model.params[i], 5, 0, model.params[i].count, w + model.params[i].first);
    for (int i = 0; i < STEPS; i++) {
        ls_step_clock clock;
        ls_step_result r;
        ls_tiny_tokens((uint32_t)i, n + 1, VOCAB, tokens);
        ls_step_clock_begin(&clock);
        LS_CHECK_OK(ls_step_run(step, &(ls_step_batch){.tokens = tokens, .targets = tokens + 1}, i,
                                1e-2, &clock, &r));
        LS_CHECK(r.finite);
        result.losses[i] = r.loss;
    }
    result.n = model.flat;
    result.w = ls_mem_array((size_t)result.n, sizeof *result.w);
    memcpy(result.w, w, (size_t)result.n * sizeof *result.w);
    ls_step_close(step);
    ls_model_release(&model);
    ls_stream_free(args.stream);
    ls_device_close(device);
    ls_mem_free(tokens);
    return result;
}

static void check_equal(const outcome *want, outcome got, const char *what)
{
    for (int i = 0; i < STEPS; i++)
        if (got.losses[i] != want->losses[i])
            ls_test_fail(__FILE__, __LINE__, "%s: loss of step %d is %.17g, expected %.17g", what,
                         i, got.losses[i], want->losses[i]);
    for (int64_t i = 0; i < want->n; i++)
        if (memcmp(&got.w[i], &want->w[i], sizeof got.w[i]) != 0)
            ls_test_fail(__FILE__, __LINE__, "%s: weight %lld is %.9g, expected %.9g", what,
                         (long long)i, (double)got.w[i], (double)want->w[i]);
    ls_mem_free(got.w);
}

static ls_run hard_run(void)
{
    ls_run run = ls_tiny_run();

    run.model.dropout = 0.1;
    run.train.clip = 0.3; /* below the norm, so that clipping is at work */
    return run;
}

LS_TEST_SECONDS(step_bits_do_not_depend_on_threads_or_instruction_set, 60)
{
    ls_run run = hard_run();
    outcome want = train(&run, "generic", 1);
    const ls_kernels *list[8];
    int n = ls_kernel_list(list, 8);

    for (int i = 0; i < n; i++)
        for (int threads = 1; threads <= 3; threads++) {
            char what[64];
            snprintf(what, sizeof what, "%s, %d threads", list[i]->name, threads);
            if (strcmp(list[i]->name, "reference") != 0)
                check_equal(&want, train(&run, list[i]->name, threads), what);
        }
    ls_mem_free(want.w);
}

LS_TEST_SECONDS(step_bits_do_not_depend_on_grouping, 60)
{
    static const int64_t sequences[] = {8, 6, 5, 7, 1};

    for (size_t k = 0; k < LS_COUNT(sequences); k++) {
        ls_run run = hard_run();
        run.batch.sequences = sequences[k];
        outcome want = train(&run, "auto", 1);
        for (int64_t group = 2; group <= 8; group *= 2) {
            char what[64];
            snprintf(what, sizeof what, "%lld leaves, group %lld", (long long)sequences[k],
                     (long long)group);
            run.batch.group = group;
            check_equal(&want, train(&run, "auto", 2), what);
        }
        ls_mem_free(want.w);
    }
}

LS_TEST(step_fast_mode_stays_close_to_ordered)
{
    ls_run run = ls_tiny_run();
    outcome ordered = train(&run, "auto", 1);

    run.train.reduce = LS_REDUCE_FAST;
    for (int64_t group = 1; group <= 4; group += 3) {
        run.batch.group = group;
        outcome fast = train(&run, "auto", 2);
        for (int i = 0; i < STEPS; i++)
            LS_CHECK_NEAR(fast.losses[i], ordered.losses[i], 1e-4 * ordered.losses[i]);
        ls_mem_free(fast.w);
    }
    ls_mem_free(ordered.w);
}

LS_TEST(step_learns_one_batch_by_heart)
{
    ls_run run = ls_tiny_run();
    int32_t tokens[6 * 13 + 1];
    ls_step_args args = {.run = &run};
    ls_device *device;
    ls_model model;
    ls_step *step;
    ls_step_result r;

    ls_test_one_thread();
    LS_CHECK_OK(ls_device_open(&device, "cpu", 1));
    LS_CHECK_OK(ls_stream_create(&args.stream, device));
    LS_CHECK_OK(ls_kernel_pick("auto", &args.kernels));
    LS_CHECK_OK(ls_model_init(&model, &run, VOCAB));
    args.model = &model;
    ls_calls_plan(&run, NULL, &args.calls);
    LS_CHECK_OK(ls_step_open(&step, &args));
    for (int i = 0; i < model.n_params; i++)
        ls_model_start(&model.params[i], 5, 0, model.params[i].count,
                       ls_step_state_arrays(step).w + model.params[i].first);
    ls_tiny_tokens(1, 6 * 13 + 1, VOCAB, tokens);
    for (int i = 0; i < 120; i++) {
        ls_step_clock clock;
        ls_step_clock_begin(&clock);
        LS_CHECK_OK(ls_step_run(step, &(ls_step_batch){.tokens = tokens, .targets = tokens + 1}, i,
                                1e-2, &clock, &r));
    }
    LS_CHECK(r.loss < 0.3);

    /* Weights that are not numbers: the update is not made, and the first bad tensor is named. */
    float *w = ls_step_state_arrays(step).w, kept = w[0];
    ls_step_clock clock;
    ls_step_clock_begin(&clock);
    w[model.blocks[1].fc_b[0].w] = NAN;
    LS_CHECK_OK(ls_step_run(step, &(ls_step_batch){.tokens = tokens, .targets = tokens + 1}, 120,
                            1e-2, &clock, &r));
    LS_CHECK(!r.finite && w[0] == kept);
    LS_CHECK_FAILS(ls_step_find_nonfinite(step, 120), LS_ENUMERIC,
                   "the weight of \"transformer.h.1.mlp.c_fc.bias\" holds NaN at element 0");
    w[model.blocks[1].fc_b[0].w] = 0;

    /* Weights so large that a product overflows: the output that did is named, not its victims. */
    w[model.blocks[0].ln2_w.w] = 3e38f;
    w[model.blocks[0].fc_w[0].w] = 3e38f;
    ls_step_clock_begin(&clock);
    LS_CHECK_OK(ls_step_run(step, &(ls_step_batch){.tokens = tokens, .targets = tokens + 1}, 121,
                            1e-2, &clock, &r));
    LS_CHECK(!r.finite);
    LS_CHECK_FAILS(ls_step_find_nonfinite(step, 121), LS_ENUMERIC,
                   "the output of \"transformer.h.0.");
    ls_step_close(step);
    ls_model_release(&model);
    ls_stream_free(args.stream);
    ls_device_close(device);
}

LS_TEST(step_uses_the_bytes_that_the_ledger_predicts)
{
    for (int64_t form = 0; form < 6; form++) {
        int64_t group = (int64_t)1 << form % 3;
        ls_run run = hard_run();
        ls_step_args args = {.run = &run};
        ls_ledger ledger;
        ls_device *device;
        ls_pass *sample = NULL;
        ls_pass_args sample_args;
        ls_decode *decode;
        ls_model model;
        ls_step *step;

        run.batch.group = group;
        run.eval.sample = form % 2 ? "once" : "";
        run.eval.sample_tokens = 7;
        run.precision = form < 3 ? LS_PRECISION_FP32 : LS_PRECISION_BF16;
        run.lora.rank = form % 2 ? 4 : 0;
        run.train.recompute = (ls_recompute)(form % 3); /* none, selective, full */
        run.train.recompute_blocks = form < 3 ? LS_RUN_AUTO : 1;
        LS_CHECK_OK(ls_device_open(&device, "cpu", 2));
        LS_CHECK_OK(ls_stream_create(&args.stream, device));
        LS_CHECK_OK(ls_kernel_pick("auto", &args.kernels));
        LS_CHECK_OK(ls_model_init(&model, &run, VOCAB));
        args.model = &model;
        ls_calls_plan(&run, NULL, &args.calls);
        const ls_memory_args memory = {
            .run = &run, .model = &model, .kernels = args.kernels, .threads = 2};
        ls_memory_predict(&memory, &ledger);
        LS_CHECK_OK(ls_step_open(&step, &args));
        LS_CHECK_EQ(ls_memory_sample_pass(&memory, &sample_args), form % 2 == 1);
        if (form % 2) {
            sample_args.stream = args.stream;
            LS_CHECK_OK(ls_pass_open(&sample, &sample_args));
        }
        LS_CHECK_OK(
            ls_decode_open(&decode, &model, sample ? sample : ls_step_pass(step), args.stream));
        LS_CHECK_EQ(ls_device_used_bytes(device), ls_ledger_total(&ledger) -
                                                      ledger_bytes(&ledger, "threads") -
                                                      ledger_bytes(&ledger, "batch"));
        ls_decode_close(decode);
        ls_pass_close(sample);
        ls_step_close(step);
        ls_model_release(&model);
        ls_stream_free(args.stream);
        ls_device_close(device);
    }
}

LS_TEST(step_refuses_what_does_not_fit_and_says_what_would)
{
    ls_run run = ls_tiny_run();
    const ls_kernels *kernels;
    ls_ledger ledger;
    ls_model model;

    run.batch.group = 4;
    run.checkpoint.every = 10;
    LS_CHECK_OK(ls_kernel_pick("auto", &kernels));
    LS_CHECK_OK(ls_model_init(&model, &run, VOCAB));
    ls_memory_args args = {.run = &run, .model = &model, .kernels = kernels, .threads = 1};
    ls_memory_predict(&args, &ledger);
    int64_t total = ls_ledger_total(&ledger);
    LS_CHECK_OK(ls_memory_check(&args, &ledger, total));
    LS_CHECK_FAILS(ls_memory_check(&args, &ledger, total - 1), LS_ENOMEM, "MiB are free");
    LS_CHECK(strstr(ls_err_last()->hint, "It fits with batch.group: 1"));
    LS_CHECK_FAILS(ls_memory_check(&args, &ledger, 1), LS_ENOMEM, "this run needs");
    LS_CHECK(strstr(ls_err_last()->hint, "smaller model"));
    /* Half of what does not fit by a byte; one when nothing does. */
    LS_CHECK_EQ(ls_memory_fit_group(&args, total), 4);
    LS_CHECK_EQ(ls_memory_fit_group(&args, total - 1), 2);
    LS_CHECK_EQ(ls_memory_fit_group(&args, 1), 1);
    ls_model_release(&model);
}

/* A change that costs more than it saves is not advised, and does not spoil what comes after it. */
LS_TEST(step_advises_only_what_helps)
{
    ls_run run = ls_tiny_run();
    const ls_kernels *kernels;
    ls_ledger ledger;
    ls_model model;

    run.model.head_size = 32;
    run.model.width = 96; /* gradients weigh more than activations */
    run.batch.group = 8;
    run.batch.sequences = 8;
    run.train.recompute = LS_RECOMPUTE_FULL; /* there is nothing more to gain */
    run.train.recompute_blocks = LS_RUN_AUTO;
    run.checkpoint.every = 10;
    LS_CHECK_OK(ls_kernel_pick("auto", &kernels));
    LS_CHECK_OK(ls_model_init(&model, &run, VOCAB));
    ls_memory_args args = {.run = &run, .model = &model, .kernels = kernels, .threads = 1};
    ls_memory_predict(&args, &ledger);
    int64_t without = ls_ledger_total(&ledger) - ledger_bytes(&ledger, "snapshot");
    LS_CHECK_FAILS(ls_memory_check(&args, &ledger, without), LS_ENOMEM, "MiB are free");
    LS_CHECK(strstr(ls_err_last()->hint, "It fits with checkpoint.every: 0"));
    ls_model_release(&model);
}

/* Where calls are as small as they can be, recomputation is advised, no more of it than it takes;
 * auto takes as little as fits. */
LS_TEST(step_recomputes_as_little_as_fits)
{
    ls_run run = ls_tiny_run(), fitted;
    int64_t need[7]; /* none; selective in 1 .. 3 blocks; full in 1 .. 3 */
    const ls_kernels *kernels;
    ls_ledger ledger;
    ls_model model;

    run.model.layers = 3;
    run.train.recompute_blocks = LS_RUN_AUTO;
    LS_CHECK_OK(ls_kernel_pick("auto", &kernels));
    LS_CHECK_OK(ls_model_init(&model, &run, VOCAB));
    ls_memory_args args = {.run = &run, .model = &model, .kernels = kernels, .threads = 1};
    for (int i = 0; i < 7; i++) {
        run.train.recompute = (ls_recompute)((i + 2) / 3);
        run.train.recompute_blocks = i == 0 ? LS_RUN_AUTO : (i - 1) % 3 + 1;
        ls_memory_predict(&args, &ledger);
        need[i] = ls_ledger_total(&ledger);
        LS_CHECK(i == 0 || (i % 3 == 1 ? need[i] <= need[i - 1] : need[i] < need[i - 1]));
    }
    run.train.recompute = LS_RECOMPUTE_NONE;
    run.train.recompute_blocks = LS_RUN_AUTO;
    for (int i = 0; i < 7; i++) {
        ls_memory_fit_recompute(&args, need[i], &fitted);
        ls_memory_args after = args;
        after.run = &fitted;
        ls_memory_predict(&after, &ledger);
        LS_CHECK_EQ(ls_ledger_total(&ledger), need[i]);
    }
    ls_memory_fit_recompute(&args, 1, &fitted);
    LS_CHECK(fitted.train.recompute == LS_RECOMPUTE_FULL && fitted.train.recompute_blocks == 3);

    ls_memory_predict(&args, &ledger);
    LS_CHECK_FAILS(ls_memory_check(&args, &ledger, need[3]), LS_ENOMEM, "MiB are free");
    LS_CHECK(strstr(ls_err_last()->hint, "It fits with train.recompute: selective (saves"));
    LS_CHECK(!strstr(ls_err_last()->hint, "full"));
    LS_CHECK_FAILS(ls_memory_check(&args, &ledger, need[3] - 1), LS_ENOMEM, "MiB are free");
    LS_CHECK(strstr(ls_err_last()->hint, "It fits with train.recompute: full (saves"));
    LS_CHECK(!strstr(ls_err_last()->hint, "selective"));
    ls_model_release(&model);
}

/* The output that overflowed is named also where blocks share the memory of their outputs. */
LS_TEST(step_that_recomputes_blames_the_same_output)
{
    char text[2][sizeof ls_err_last()->text];

    for (int form = 0; form < 2; form++) {
        ls_run run = ls_tiny_run();
        ls_step_args args = {.run = &run};
        ls_device *device;
        ls_step *step;
        ls_model model;
        ls_step_result r;
        ls_step_clock clock;
        int32_t tokens[6 * 13 + 1];
        run.model.layers = 4;
        run.train.recompute = form ? LS_RECOMPUTE_FULL : LS_RECOMPUTE_NONE;
        run.train.recompute_blocks = LS_RUN_AUTO;
        LS_CHECK_OK(ls_device_open(&device, "cpu", 2));
        LS_CHECK_OK(ls_stream_create(&args.stream, device));
        LS_CHECK_OK(ls_kernel_pick("auto", &args.kernels));
        LS_CHECK_OK(ls_model_init(&model, &run, VOCAB));
        args.model = &model;
        ls_calls_plan(&run, NULL, &args.calls);
        LS_CHECK_OK(ls_step_open(&step, &args));
        float *w = ls_step_state_arrays(step).w;
        for (int i = 0; i < model.n_params; i++)
            ls_model_start(&model.params[i], 5, 0, model.params[i].count,
                           w + model.params[i].first);
        ls_tiny_tokens(1, 6 * 13 + 1, VOCAB, tokens);
        w[model.blocks[1].ln2_w.w] = 3e38f;
        w[model.blocks[1].fc_w[0].w] = 3e38f;
        ls_step_clock_begin(&clock);
        LS_CHECK_OK(ls_step_run(step, &(ls_step_batch){.tokens = tokens, .targets = tokens + 1}, 0,
                                1e-2, &clock, &r));
        LS_CHECK(!r.finite);
        LS_CHECK_FAILS(ls_step_find_nonfinite(step, 0), LS_ENUMERIC,
                       "the output of \"transformer.h.1.");
        memcpy(text[form], ls_err_last()->text, sizeof text[form]);
        ls_step_close(step);
        ls_model_release(&model);
        ls_stream_free(args.stream);
        ls_device_close(device);
    }
    LS_CHECK_STR(text[1], text[0]);
}

/* Every setting at its highest: more than 2^63 bytes, and still a number that is refused. */
LS_TEST(step_refuses_what_no_number_can_count)
{
    ls_run run = ls_tiny_run();
    const ls_kernels *kernels;
    ls_ledger ledger;
    ls_model model;

    run.model.layers = 1000;
    run.model.width = 65536;
    run.model.heads = run.model.kv_heads = 1024;
    run.model.head_size = 64;
    run.model.mlp = run.model.context = 1048576;
    run.batch.sequences = run.batch.leaf = 1048576;
    LS_CHECK_OK(ls_kernel_pick("auto", &kernels));
    LS_CHECK_OK(ls_model_init(&model, &run, VOCAB));
    ls_memory_args args = {.run = &run, .model = &model, .kernels = kernels, .threads = 1};
    ls_memory_predict(&args, &ledger);
    LS_CHECK(ls_ledger_total(&ledger) > INT64_MAX / 8);
    LS_CHECK_FAILS(ls_memory_check(&args, &ledger, 1LL << 50), LS_ENOMEM, "this run needs");
    ls_model_release(&model);
}
