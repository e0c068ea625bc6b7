/* test_lion.c -- the row of Lion: reference, formula, copies, what it must not touch. */
#include "kernel/elements.h"

static void run(const ls_kernels *k, ls_stream *stream, const ls_optimizer_update *a)
{
    k->lion(stream, a);
}

/* Chen et al., 2023, algorithm 2. */
static void rule(const ls_step_state *s, double lr, double decay, double g, double *w, double *m)
{
    double mean = (double)s->beta1 * *m + (1 - (double)s->beta1) * g;

    *w -= lr * ((mean > 0) - (mean < 0) + decay * *w);
    *m = (double)s->beta2 * *m + (1 - (double)s->beta2) * g;
}

static const elements_case lion = {
    .row = LS_ROW_LION,
    .run = run,
    .rule = rule,
    .state = {.lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.99f, .weight_decay = 0.1f}};

LS_TEST_SECONDS(lion_equals_reference, 60)
{
    elements_equal_reference(&lion);
}

LS_TEST(lion_follows_the_formula_over_five_steps)
{
    elements_follow_the_formula(&lion);
}

LS_TEST(lion_touches_nothing_when_it_must_not)
{
    elements_touch_nothing_when_they_must_not(&lion);
}

LS_TEST(lion_copies_the_weights_in_bf16)
{
    elements_copy_the_weights(&lion, false);
    elements_copy_the_weights(&lion, true);
}

LS_TEST(lion_leaves_no_denormal_moment)
{
    elements_leave_no_denormal_moment(&lion);
}

/* Where mean and decay are zero nothing moves; the smallest number there is moves as far as any. */
LS_TEST(lion_knows_the_sign_of_what_is_hardly_there)
{
    enum { N = 19 };
    const ls_kernels *list[8];
    int count = ls_kernel_list(list, 8);

    for (int k = 0; k < count; k++) {
        ls_check c;
        ls_check_begin(&c, 1);
        ls_optimizer_update a = elements_make(&c, &lion, N, 1);
        ((ls_step_state *)(uintptr_t)a.state)->beta1 = 0;
        ((ls_norm_result *)(uintptr_t)a.result)->factor = 1;
        ((ls_optimizer_span *)(uintptr_t)a.spans)->rate = 1;
        for (int i = 0; i < N; i++) {
            a.w[i] = 1;
            ((float *)(uintptr_t)a.grad)[i] = i % 3 == 0 ? 0 : i % 3 == 1 ? 1e-45f : -3e38f;
        }
        list[k]->lion(c.stream, &a);
        for (int i = 0; i < N; i++)
            LS_CHECK_NEAR(a.w[i], i % 3 == 0 ? 1 : i % 3 == 1 ? 0.99 : 1.01, 1e-7);
        ls_check_end(&c);
    }
}
