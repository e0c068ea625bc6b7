/* test_sgd.c -- the row of SGD: reference, formula, copies, what it must not touch. */
#include "kernel/elements.h"

static void run(const ls_kernels *k, ls_stream *stream, const ls_optimizer_update *a)
{
    k->sgd(stream, a);
}

/* torch.optim.SGD with dampening 0, and a share of a gradient. */
static void rule(const ls_step_state *s, double lr, double decay, double g, double *w, double *m)
{
    double added = (double)s->gain * (g + decay * *w);

    *m = (double)s->momentum * *m + added;
    *w -= lr * (s->nesterov ? added + (double)s->momentum * *m : *m);
}

static const elements_case plain = {
    .row = LS_ROW_SGD,
    .run = run,
    .rule = rule,
    .state = {.lr = 1e-2f, .momentum = 0.9f, .gain = 1, .weight_decay = 0.1f}};
static const elements_case ahead = {
    .row = LS_ROW_SGD,
    .run = run,
    .rule = rule,
    .state = {.lr = 1e-2f, .momentum = 0.9f, .gain = 0.6f, .weight_decay = 0.1f, .nesterov = true}};

LS_TEST_SECONDS(sgd_equals_reference, 60)
{
    elements_equal_reference(&plain);
    elements_equal_reference(&ahead);
}

LS_TEST(sgd_follows_the_formula_over_five_steps)
{
    elements_follow_the_formula(&plain);
    elements_follow_the_formula(&ahead);
}

LS_TEST(sgd_touches_nothing_when_it_must_not)
{
    elements_touch_nothing_when_they_must_not(&ahead);
}

LS_TEST(sgd_copies_the_weights_in_bf16)
{
    elements_copy_the_weights(&plain, false);
    elements_copy_the_weights(&ahead, true);
}

LS_TEST(sgd_leaves_no_denormal_moment)
{
    elements_case still = ahead; /* weights that decay are a gradient too */

    still.state.weight_decay = 0;
    elements_leave_no_denormal_moment(&still);
}
