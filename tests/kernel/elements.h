/* elements.h -- what every row that updates element by element must hold: the reference, spans with
 * gaps between them, bad gradients and failed streams, copies in bf16.
 *
 * A case is the row and its published rule in double; `tests` run it over odd shapes, with guard
 * bytes on both sides of every tensor (check.h). */
#pragma once
#include "kernel/half.h"
#include "kernel/rows.h"

#include <math.h>

enum { ELEMENTS_STEPS = 5 };

/* Numbers of an update, and the rule: w and m of one element, for a gradient that is scaled. */
typedef struct elements_case {
    ls_row row;
    void (*run)(const ls_kernels *k, ls_stream *stream, const ls_optimizer_update *a);
    void (*rule)(const ls_step_state *s, double lr, double decay, double g, double *w, double *m);
    ls_step_state state;
} elements_case;

/* An update without second moments. */
static inline ls_optimizer_update elements_make(ls_check *c, const elements_case *e, int64_t n,
                                                int64_t spans)
{
    ls_step_state *state = ls_check_bytes(c, "state", sizeof *state);
    ls_norm_result *result = ls_check_bytes(c, "result", sizeof *result);
    ls_optimizer_span *list = ls_check_bytes(c, "spans", spans * (int64_t)sizeof *list);

    *state = e->state;
    *result = (ls_norm_result){.norm = 2, .factor = 0.5f, .bad_block = -1};
    /* Spans with a gap of one element between them, alternating decay and rate. */
    for (int64_t i = 0; i < spans; i++) {
        int64_t first = i * n / spans;
        list[i] = (ls_optimizer_span){.first = first,
                                      .w_first = first,
                                      .count = (i + 1) * n / spans - first - (i + 1 < spans),
                                      .decay = (float)(i % 2),
                                      .rate = i % 3 ? 1 : 0.5f};
    }
    ls_optimizer_update a = {.w = ls_check_floats(c, "w", n, 1),
                             .m = ls_check_floats(c, "m", n, 0),
                             .grad = ls_check_floats(c, "grad", n, 1),
                             .spans = list,
                             .n_spans = spans,
                             .state = state,
                             .result = result};
    memset(a.m, 0, (size_t)n * sizeof *a.m);
    return a;
}

/* Gradients that change from step to step (1 is the first). */
static inline void elements_prepare(const ls_optimizer_update *a, int64_t n, int t)
{
    for (int64_t i = 0; i < n && t > 1; i++)
        ((float *)(uintptr_t)a->grad)[i] *= i % 2 ? -0.7f : 1.1f;
}

typedef struct elements_shape {
    const elements_case *of;
    int64_t n, spans;
} elements_shape;

static inline void elements_run_shape(ls_check *c, const ls_kernels *k, const void *shape,
                                      float *out)
{
    const elements_shape *s = shape;
    ls_optimizer_update a = elements_make(c, s->of, s->n, s->spans);

    for (int t = 1; t <= ELEMENTS_STEPS; t++) {
        elements_prepare(&a, s->n, t);
        s->of->run(k, c->stream, &a);
    }
    out = ls_rows_put(out, a.w, s->n);
    ls_rows_put(out, a.m, s->n);
}

/* All instruction sets and numbers of threads have the same bits, near the reference. */
static inline void elements_equal_reference(const elements_case *e)
{
    const elements_shape shapes[] = {{e, 1, 1},  {e, 15, 2},   {e, 16, 1},
                                     {e, 17, 3}, {e, 1000, 7}, {e, 40001, 2}};

    for (size_t i = 0; i < LS_COUNT(shapes); i++)
        ls_rows_check(e->row, elements_run_shape, &shapes[i], 2 * shapes[i].n);
}

/* The published rule over several steps, all in double, what is kept never rounded. */
static inline void elements_follow_the_formula(const elements_case *e)
{
    enum { N = 37 };
    const ls_kernels *list[8];
    int count = ls_kernel_list(list, 8);

    for (int k = 0; k < count; k++) {
        double w[N], m[N] = {0};
        ls_check c;
        ls_check_begin(&c, 2);
        ls_optimizer_update a = elements_make(&c, e, N, 2);
        for (int i = 0; i < N; i++)
            w[i] = (double)a.w[i];
        for (int t = 1; t <= ELEMENTS_STEPS; t++) {
            elements_prepare(&a, N, t);
            e->run(list[k], c.stream, &a);
            for (int i = 0; i < N; i++) {
                bool second = i >= N / 2;
                double lr = (double)e->state.lr * (second ? 1 : 0.5);
                double decay = second ? (double)e->state.weight_decay : 0;
                if (i != N / 2 - 1) /* the gap */
                    e->rule(&e->state, lr, decay, 0.5 * (double)a.grad[i], &w[i], &m[i]);
            }
        }
        for (int i = 0; i < N; i++) {
            LS_CHECK_NEAR(a.w[i], w[i], 2e-6 * (1 + fabs(w[i])));
            LS_CHECK_NEAR(a.m[i], m[i], 2e-6 * (1 + fabs(m[i])));
        }
        ls_check_end(&c);
    }
}

static inline void elements_touch_nothing_when_they_must_not(const elements_case *e)
{
    enum { N = 100 };
    const ls_kernels *list[8];
    int count = ls_kernel_list(list, 8);

    for (int k = 0; k < count; k++) {
        ls_check c;
        ls_check_begin(&c, 2);
        ls_optimizer_update a = elements_make(&c, e, N, 2);
        ls_norm_result *result = (ls_norm_result *)(uintptr_t)a.result;
        float *w = ls_check_copy(&c, "w before", a.w, N), *zero = ls_check_copy(&c, "0", a.m, N);
        result->bad_block = 0;
        e->run(list[k], c.stream, &a);
        ls_check_same("w of a bad gradient", a.w, w, sizeof(float) * N);
        ls_check_same("m of a bad gradient", a.m, zero, sizeof(float) * N);
        result->bad_block = -1;
        e->run(list[k], c.stream, &a);
        LS_CHECK(a.w[N / 2] != w[N / 2]);
        ls_check_same("w between spans", &a.w[N / 2 - 1], &w[N / 2 - 1], sizeof(float));
        memcpy(w, a.w, sizeof(float) * N);
        ls_fail(LS_EDATA, "made to fail");
        ls_stream_fail(c.stream);
        e->run(list[k], c.stream, &a);
        ls_check_same("w after a failed stream", a.w, w, sizeof(float) * N);
        LS_CHECK_FAILS(ls_stream_sync(c.stream, ls_test_soon()), LS_EDATA, "made");
        ls_stream_free(c.stream);
        LS_CHECK_OK(ls_stream_create(&c.stream, c.device));
        ls_check_end(&c);
    }
}

/* The copy holds the new weights in bf16, rounded as asked, at their places in w, which lie GAP
 * further on than those of m and the gradient; the update has the bits that it has without one. */
static inline void elements_copy_the_weights(const elements_case *e, bool stochastic)
{
    enum { N = 40001, GAP = 7 };
    ls_kernels list[LS_CHECK_TABLES];
    int count = ls_check_tables(list);

    for (int k = 0; k < count; k++) {
        ls_check c;
        ls_check_begin(&c, 3);
        ls_optimizer_update plain = elements_make(&c, e, N, 3), a = plain;
        ls_optimizer_span *spans = ls_check_bytes(&c, "spans of the copy", 3 * sizeof *spans);
        uint16_t *copy = ls_check_bytes(&c, "copy", (N + GAP) * 2);
        memset(copy, 0xff, (N + GAP) * sizeof *copy);
        memcpy(spans, plain.spans, 3 * sizeof *spans);
        for (int i = 0; i < 3; i++)
            spans[i].w_first += GAP;
        a.w = ls_check_floats(&c, "w of the copy", N + GAP, 0);
        memcpy(a.w + GAP, plain.w, N * sizeof *a.w);
        a.m = ls_check_copy(&c, "m", plain.m, N);
        a.spans = spans;
        a.copy = copy;
        a.copy_type = LS_BF16;
        a.rounding = (ls_rounding){.stochastic = stochastic, .key = {3, 4}, .gap = 11};
        e->run(&list[k], c.stream, &plain);
        e->run(&list[k], c.stream, &a);
        ls_check_same("w", a.w + GAP, plain.w, N * 4);
        ls_check_same("m", a.m, plain.m, N * 4);
        for (int i = 0; i < 3; i++)
            for (int64_t at = spans[i].w_first; at < spans[i].w_first + spans[i].count; at++) {
                union {
                    float f;
                    uint32_t u;
                } bits = {.f = a.w[at]};
                LS_CHECK_EQ(copy[at], stochastic ? ls_rounding_bf16(&a.rounding, at, bits.u)
                                                 : ls_half_of(a.w[at]));
                copy[at] = 0xffff;
            }
        for (int i = 0; i < N + GAP; i++)
            LS_CHECK_EQ(copy[i], 0xffff);
        ls_check_end(&c);
    }
}

/* A moment that only shrinks ends at zero, not among the denormal numbers that slow a CPU down. */
static inline void elements_leave_no_denormal_moment(const elements_case *e)
{
    enum { N = 21 };
    ls_kernels list[LS_CHECK_TABLES];
    int count = ls_check_tables(list);

    for (int k = 0; k < count; k++) {
        ls_check c;
        ls_check_begin(&c, 1);
        ls_optimizer_update a = elements_make(&c, e, N, 1);
        memset((float *)(uintptr_t)a.grad, 0, N * sizeof *a.grad);
        for (int i = 0; i < N; i++)
            a.m[i] = i % 2 ? -1e-41f : 1e-36f;
        for (int step = 0; step < 3000; step++)
            e->run(&list[k], c.stream, &a);
        for (int i = 0; i < N; i++)
            LS_CHECK(a.m[i] == 0);
        ls_check_end(&c);
    }
}
