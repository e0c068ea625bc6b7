/* steps.c -- see steps.h. */
#include "train/steps.h"

#include "base/mem.h"
#include "harness.h"

void ls_steps_start(ls_step *step, const ls_model *model)
{
    for (int i = 0; i < model->n_params; i++) {
        const ls_param *p = &model->params[i];
        float *x = ls_mem_array((size_t)p->count, sizeof *x);
        LS_CHECK(x);
        ls_model_start(p, 5, 0, p->count, x);
        ls_step_put(step, p->first, p->count, x);
        ls_mem_free(x);
    }
    LS_CHECK_OK(ls_step_weights_changed(step));
}

ls_step_result ls_steps_run(ls_step *step, int64_t number, const int32_t *tokens, double lr)
{
    ls_step_result result;
    ls_step_clock clock;

    ls_step_clock_begin(&clock);
    LS_CHECK_OK(ls_step_run(step, &(ls_step_batch){.tokens = tokens, .targets = tokens + 1}, number,
                            lr, &clock, &result));
    LS_CHECK(result.finite);
    return result;
}

int64_t held_by(const ls_pipeline *pipeline)
{
    int64_t held = ls_window_held(&pipeline->copy) + ls_window_held(&pipeline->flow.head);

    for (int i = 0; i < pipeline->flow.n; i++)
        held += ls_window_held(&pipeline->flow.windows[i]);

    for (int i = 0; i < 3; i++)
        held += ls_window_held(&pipeline->state[i]);
    for (int i = 0; i < LS_ORDERED_ROOTS; i++) {
        held += ls_window_held(&pipeline->head[i]);
        for (int c = 0; c < LS_STAGE_PLAN_CHUNKS; c++)
            held += ls_window_held(&pipeline->grads[c][i]);
    }
    return held;
}

static const ls_kernels *real;
static const ls_step *watched;
static int64_t most_weights, most_gradients;

static void look(void)
{
    if (watched && watched->zero_gather.window.base)
        most_weights = ls_max_i64(most_weights, ls_window_held(&watched->zero_gather.window));
    if (watched && watched->grad_window.base)
        most_gradients = ls_max_i64(most_gradients, ls_window_held(&watched->grad_window));
}

static void watch_fwd(ls_stream *stream, const ls_linear_fwd *a)
{
    real->linear_fwd(stream, a);
    look();
}

static void watch_bwd_w(ls_stream *stream, const ls_linear_bwd_w *a)
{
    real->linear_bwd_w(stream, a);
    look();
}

ls_kernels ls_steps_kernels(void)
{
    LS_CHECK_OK(ls_kernel_pick("auto", &real));
    ls_kernels kernels = *real;
    kernels.linear_fwd = watch_fwd;
    kernels.linear_bwd_w = watch_bwd_w;
    return kernels;
}

void ls_steps_watch(const ls_step *step)
{
    watched = step;
    if (step)
        most_weights = most_gradients = 0;
}

int64_t ls_steps_most_weights(void)
{
    return most_weights;
}

int64_t ls_steps_most_gradients(void)
{
    return most_gradients;
}
