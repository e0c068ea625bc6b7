/* test_step_counted.c -- targets of -1 do not count: not in the loss, not in the gradient. */
#include "base/mem.h"
#include "harness.h"
#include "model/tiny.h"
#include "train/step/step.h"

enum { VOCAB = 19 };

/* A fresh model and its step, of `sequences`. */
typedef struct fresh {
    ls_run run;
    ls_step_args args;
    ls_device *device;
    ls_step *step;
    ls_model model;
} fresh;

static void open_fresh(fresh *f, int64_t sequences)
{
    f->run = ls_tiny_run();
    f->args = (ls_step_args){.run = &f->run, .model = &f->model};
    f->run.batch.sequences = sequences;
    f->run.batch.leaf = 1;
    f->run.batch.group = 1;
    LS_CHECK_OK(ls_device_open(&f->device, "cpu", 1));
    LS_CHECK_OK(ls_stream_create(&f->args.stream, f->device));
    LS_CHECK_OK(ls_kernel_pick("reference", &f->args.kernels));
    LS_CHECK_OK(ls_model_init(&f->model, &f->run, VOCAB));
    ls_calls_plan(&f->run, NULL, &f->args.calls);
    LS_CHECK_OK(ls_step_open(&f->step, &f->args));
    for (int i = 0; i < f->model.n_params; i++)
        ls_model_start(&f->model.params[i], 5, 0, f->model.params[i].count,
                       ls_step_state_arrays(f->step).w + f->model.params[i].first);
}

static void close_fresh(fresh *f)
{
    ls_step_close(f->step);
    ls_model_release(&f->model);
    ls_stream_free(f->args.stream);
    ls_device_close(f->device);
}

/* The first step of a fresh model over the first `sequences` of a fixed batch; those from `silent`
 * on have no targets. counted as it is given to the step. */
static ls_step_result first_step(int64_t sequences, int64_t silent, int64_t counted)
{
    int64_t T = ls_tiny_run().model.context, n = sequences * T;
    int32_t *tokens = ls_mem_array(2 * (size_t)n, sizeof *tokens), *targets = tokens + n;
    ls_step_clock clock;
    ls_step_result result;
    fresh f;

    ls_tiny_tokens(3, n, VOCAB, tokens);
    for (int64_t i = 0; i < n; i++)
        targets[i] = i / T >= silent ? -1 : (tokens[i] * 5 + 1) % VOCAB;
    open_fresh(&f, sequences);
    ls_step_clock_begin(&clock);
    LS_CHECK_OK(ls_step_run(
        f.step, &(ls_step_batch){.tokens = tokens, .targets = targets, .counted = counted}, 0, 1e-3,
        &clock, &result));
    close_fresh(&f);
    ls_mem_free(tokens);
    return result;
}

/* The loss of the second half of a window, before any step; `first` is the token that the first half
 * is made of. */
static double second_document(int32_t first)
{
    int64_t T = ls_tiny_run().model.context, half = T / 2;
    int32_t *tokens = ls_mem_array(3 * (size_t)T, sizeof *tokens), *targets = tokens + T;
    int32_t *start = targets + T;
    double sum;
    fresh f;

    for (int64_t t = 0; t < T; t++) {
        tokens[t] = t < half ? first : (int32_t)(t % VOCAB);
        targets[t] = t < half ? -1 : (int32_t)((t + 1) % VOCAB);
        start[t] = (int32_t)(t < half ? 0 : half);
    }
    open_fresh(&f, 1);
    LS_CHECK_OK(ls_step_loss(
        f.step, &(ls_step_batch){.tokens = tokens, .targets = targets, .start = start}, 1, &sum));
    close_fresh(&f);
    ls_mem_free(tokens);
    return sum;
}

LS_TEST(step_loss_isolates_documents_before_the_first_step)
{
    double one = second_document(2), other = second_document(7);

    LS_CHECK(one > 0 && one == other);
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
