/* test_step_counted.c -- targets of -1 do not count: not in the loss, not in the gradient. */
#include "base/mem.h"
#include "harness.h"
#include "model/tiny.h"
#include "train/step/step.h"

enum { VOCAB = 19 };

/* The first step of a fresh model over the first `sequences` of a fixed batch; those from `silent`
 * on have no targets. counted as it is given to the step. */
static ls_step_result first_step(int64_t sequences, int64_t silent, int64_t counted)
{
    ls_run run = ls_tiny_run();
    ls_step_args args = {.run = &run};
    ls_device *device;
    ls_step *step;
    ls_model model;
    ls_step_clock clock;
    ls_step_result result;

    run.batch.sequences = sequences;
    run.batch.leaf = 1;
    run.batch.group = 1;
    int64_t T = run.model.context, n = sequences * T;
    int32_t *tokens = ls_mem_array(2 * (size_t)n, sizeof *tokens), *targets = tokens + n;
    ls_tiny_tokens(3, n, VOCAB, tokens);
    for (int64_t i = 0; i < n; i++)
        targets[i] = i / T >= silent ? -1 : (tokens[i] * 5 + 1) % VOCAB;
    LS_CHECK_OK(ls_device_open(&device, "cpu", 1));
    LS_CHECK_OK(ls_stream_create(&args.stream, device));
    LS_CHECK_OK(ls_kernel_pick("reference", &args.kernels));
    LS_CHECK_OK(ls_model_init(&model, &run, VOCAB));
    args.model = &model;
    ls_calls_plan(&run, NULL, &args.calls);
    LS_CHECK_OK(ls_step_open(&step, &args));
    for (int i = 0; i < model.n_params; i++)
        ls_model_start(&model.params[i], 5, 0, model.params[i].count,
                       ls_step_state_arrays(step).w + model.params[i].first);
    ls_step_clock_begin(&clock);
    LS_CHECK_OK(ls_step_run(
        step, &(ls_step_batch){.tokens = tokens, .targets = targets, .counted = counted}, 0, 1e-3,
        &clock, &result));
    ls_step_close(step);
    ls_model_release(&model);
    ls_stream_free(args.stream);
    ls_device_close(device);
    ls_mem_free(tokens);
    return result;
}

LS_TEST(step_means_over_targets_that_count)
{
    int64_t T = ls_tiny_run().model.context;
    ls_step_result two = first_step(2, 2, 0), four = first_step(4, 2, 2 * T);

    LS_CHECK(two.finite && four.finite);
    LS_CHECK_NEAR(four.loss, two.loss, 1e-6);
    LS_CHECK_NEAR(four.grad_norm, two.grad_norm, 1e-5 * two.grad_norm);
    /* All of them counted by number is the same bits as by default. */
    ls_step_result counted = first_step(2, 2, 2 * T);
    LS_CHECK(counted.loss == two.loss && counted.grad_norm == two.grad_norm);
}

LS_TEST(step_without_targets_changes_nothing)
{
    ls_step_result none = first_step(2, 0, 0);

    LS_CHECK(none.finite);
    LS_CHECK(none.loss == 0 && none.grad_norm == 0);
}
