/* test_adamw.c -- five steps against a loop in double, spans, bad blocks, failed streams. */
#include "kernel/half.h"

#include <math.h>
#include "base/time.h"

enum { STEPS = 5 };

static ls_optimizer_update make(ls_check *c, int64_t n, int64_t spans)
{
    ls_optimizer_update a = {.n_spans = spans};
    ls_step_state *state = ls_check_bytes(c, "state", sizeof *state);
    ls_norm_result *result = ls_check_bytes(c, "result", sizeof *result);
    ls_optimizer_span *list = ls_check_bytes(c, "spans", spans * (int64_t)sizeof *list);

    *state = (ls_step_state){.lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f};
    state->weight_decay = 0.1f;
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
    a.w = ls_check_floats(c, "w", n, 1);
    a.m = ls_check_floats(c, "m", n, 0);
    a.v = ls_check_floats(c, "v", n, 0);
    a.grad = ls_check_floats(c, "grad", n, 1);
    memset(a.m, 0, (size_t)n * sizeof *a.m);
    memset(a.v, 0, (size_t)n * sizeof *a.v);
    a.spans = list;
    a.state = state;
    a.result = result;
    return a;
}

/* Gradients that change from step to step, and the state of step t (1 is the first). */
static void prepare(ls_optimizer_update *a, int64_t n, int t)
{
    ls_step_state *s = (ls_step_state *)(uintptr_t)a->state;

    for (int64_t i = 0; i < n && t > 1; i++)
        ((float *)(uintptr_t)a->grad)[i] *= i % 2 ? -0.7f : 1.1f;
    s->bias1 = (float)(1 - pow((double)s->beta1, t));
    s->bias2 = (float)(1 - pow((double)s->beta2, t));
}

typedef struct shape {
    int64_t n, spans;
} shape;

static void run(ls_check *c, const ls_kernels *k, const void *shape_, float *out)
{
    const shape *s = shape_;
    ls_optimizer_update a = make(c, s->n, s->spans);

    for (int t = 1; t <= STEPS; t++) {
        prepare(&a, s->n, t);
        k->adamw(c->stream, &a);
    }
    out = ls_rows_put(out, a.w, s->n);
    out = ls_rows_put(out, a.m, s->n);
    ls_rows_put(out, a.v, s->n);
}

LS_TEST_SECONDS(adamw_equals_reference, 60)
{
    const shape shapes[] = {{1, 1}, {15, 2}, {16, 1}, {17, 3}, {1000, 7}, {40001, 2}};

    for (size_t i = 0; i < LS_COUNT(shapes); i++)
        ls_rows_check(LS_ROW_ADAMW, run, &shapes[i], 3 * shapes[i].n);
}

/* The published update, written down again: all in double, moments never rounded. */
LS_TEST(adamw_follows_the_formula_over_five_steps)
{
    enum { N = 37 };
    const ls_kernels *list[8];
    int count = ls_kernel_list(list, 8);

    for (int k = 0; k < count; k++) {
        double w[N], m[N] = {0}, v[N] = {0};
        ls_check c;
        ls_check_begin(&c, 2);
        ls_optimizer_update a = make(&c, N, 2);
        for (int i = 0; i < N; i++)
            w[i] = (double)a.w[i];
        for (int t = 1; t <= STEPS; t++) {
            prepare(&a, N, t);
            list[k]->adamw(c.stream, &a);
            for (int i = 0; i < N; i++) {
                double g = 0.5 * (double)a.grad[i], b1 = (double)0.9f, b2 = (double)0.99f;
                bool second = i >= N / 2;
                if (i == N / 2 - 1)
                    continue; /* the gap */
                m[i] = b1 * m[i] + (1 - b1) * g;
                v[i] = b2 * v[i] + (1 - b2) * g * g;
                double hat = m[i] / (1 - pow(b1, t)) / (sqrt(v[i] / (1 - pow(b2, t))) + 1e-8);
                double lr = second ? 1e-2 : 0.5e-2, decay = second ? 0.1 : 0;
                w[i] -= lr * (hat + decay * w[i]);
            }
        }
        for (int i = 0; i < N; i++)
            LS_CHECK_NEAR(a.w[i], w[i], 2e-6 * (1 + fabs(w[i])));
        ls_check_end(&c);
    }
}

LS_TEST(adamw_touches_nothing_when_it_must_not)
{
    enum { N = 100 };
    const ls_kernels *list[8];
    int count = ls_kernel_list(list, 8);

    for (int k = 0; k < count; k++) {
        ls_check c;
        ls_check_begin(&c, 2);
        ls_optimizer_update a = make(&c, N, 2);
        ls_norm_result *result = (ls_norm_result *)(uintptr_t)a.result;
        float *w = ls_check_copy(&c, "w before", a.w, N), *zero = ls_check_copy(&c, "0", a.m, N);
        prepare(&a, N, 1);
        result->bad_block = 0;
        list[k]->adamw(c.stream, &a);
        ls_check_same("w of a bad gradient", a.w, w, sizeof(float) * N);
        ls_check_same("m of a bad gradient", a.m, zero, sizeof(float) * N);
        ls_check_same("v of a bad gradient", a.v, zero, sizeof(float) * N);
        result->bad_block = -1;
        list[k]->adamw(c.stream, &a);
        LS_CHECK(a.w[N / 2] != w[N / 2]);
        ls_check_same("w between spans", &a.w[N / 2 - 1], &w[N / 2 - 1], sizeof(float));
        memcpy(w, a.w, sizeof(float) * N);
        ls_fail(LS_EDATA, "made to fail");
        ls_stream_fail(c.stream);
        list[k]->adamw(c.stream, &a);
        ls_check_same("w after a failed stream", a.w, w, sizeof(float) * N);
        LS_CHECK_FAILS(ls_stream_sync(c.stream, ls_test_soon()), LS_EDATA, "made");
        ls_stream_free(c.stream);
        LS_CHECK_OK(ls_stream_create(&c.stream, c.device));
        ls_check_end(&c);
    }
}

/* A moment that only shrinks ends at zero, not among the denormal numbers that slow a CPU down. */
LS_TEST(adamw_leaves_no_denormal_first_moment)
{
    enum { N = 21 };
    ls_kernels list[LS_CHECK_TABLES];
    int count = ls_check_tables(list);

    for (int k = 0; k < count; k++) {
        ls_check c;
        ls_check_begin(&c, 1);
        ls_optimizer_update a = make(&c, N, 1);
        prepare(&a, N, 1);
        memset((float *)(uintptr_t)a.grad, 0, N * sizeof *a.grad);
        for (int i = 0; i < N; i++) {
            a.m[i] = i % 2 ? -1e-41f : 1e-36f;
            a.v[i] = 1e-8f;
        }
        list[k].adamw(c.stream, &a);
        for (int i = 0; i < N; i++)
            LS_CHECK(i % 2 ? a.m[i] == 0 : a.m[i] == 0.9f * 1e-36f);
        for (int step = 0; step < 100; step++)
            list[k].adamw(c.stream, &a);
        for (int i = 0; i < N; i++)
            LS_CHECK(a.m[i] == 0);
        ls_check_end(&c);
    }
}

/* Parameters that are not trained have a place in w only: three spans, dense in m, v and grad, are
 * updated with the bits that they have when all is trained, and what lies between stays. */
LS_TEST(adamw_passes_over_what_is_not_trained)
{
    enum { N = 400, TRAINED = 17 + 16 + 5 };
    const ls_optimizer_span spans[3] = {
        {0, 17, 3, 1, 1, 0}, {17, 16, 150, 0, 0.5f, 0}, {33, 5, N - 5, 1, 1, 0}};
    const ls_kernels *list[8];
    int count = ls_kernel_list(list, 8);

    for (int k = 0; k < count; k++) {
        ls_check c;
        ls_check_begin(&c, 3);
        ls_optimizer_update dense = make(&c, TRAINED, 3), a = dense;
        ls_optimizer_span *same = ls_check_bytes(&c, "dense spans", sizeof spans);
        ls_optimizer_span *gaps = ls_check_bytes(&c, "spans with gaps", sizeof spans);
        float *w = ls_check_floats(&c, "w with gaps", N, 1);
        for (int i = 0; i < 3; i++) {
            gaps[i] = same[i] = spans[i];
            same[i].w_first = same[i].first;
            memcpy(w + spans[i].w_first, dense.w + spans[i].first,
                   (size_t)spans[i].count * sizeof *w);
        }
        float *was = ls_check_copy(&c, "w before", w, N);
        dense.spans = same;
        a.spans = gaps;
        a.w = w;
        a.m = ls_check_copy(&c, "m", dense.m, TRAINED);
        a.v = ls_check_copy(&c, "v", dense.v, TRAINED);
        for (int t = 1; t <= STEPS; t++) {
            prepare(&dense, TRAINED, t); /* both read the same gradient and state */
            list[k]->adamw(c.stream, &dense);
            list[k]->adamw(c.stream, &a);
        }
        ls_check_same("m", a.m, dense.m, TRAINED * 4);
        ls_check_same("v", a.v, dense.v, TRAINED * 4);
        for (int i = 0; i < 3; i++) {
            LS_CHECK(w[spans[i].w_first] != was[spans[i].w_first]);
            ls_check_same("w", w + spans[i].w_first, dense.w + spans[i].first, spans[i].count * 4);
            memcpy(w + spans[i].w_first, was + spans[i].w_first,
                   (size_t)spans[i].count * sizeof *w);
        }
        ls_check_same("w that is not trained", w, was, N * 4);
        ls_check_end(&c);
    }
}

/* The copy holds the new weights rounded to bf16, at their places in w, and nothing else; the
 * update has the bits that it has without one. */
LS_TEST(adamw_copies_the_weights_in_bf16)
{
    enum { N = 40001, GAP = 7 };
    ls_kernels list[LS_CHECK_TABLES];
    int count = ls_check_tables(list);

    for (int k = 0; k < count; k++) {
        ls_check c;
        ls_check_begin(&c, 3);
        ls_optimizer_update plain = make(&c, N, 3), a = plain;
        ls_optimizer_span *spans = (ls_optimizer_span *)(uintptr_t)a.spans;
        a.w = ls_check_floats(&c, "w of the copy", N + GAP, 0);
        memcpy(a.w + GAP, plain.w, N * sizeof *a.w);
        a.m = ls_check_copy(&c, "m", plain.m, N);
        a.v = ls_check_copy(&c, "v", plain.v, N);
        uint16_t *copy = ls_check_bytes(&c, "copy", (N + GAP) * 2);
        a.copy = copy;
        a.copy_type = LS_BF16;
        for (int t = 1; t <= 2; t++) {
            prepare(&plain, N, t);
            list[k].adamw(c.stream, &plain);
            for (int i = 0; i < 3; i++)
                spans[i].w_first += GAP;
            list[k].adamw(c.stream, &a);
            for (int i = 0; i < 3; i++)
                spans[i].w_first -= GAP;
        }
        ls_check_same("w", a.w + GAP, plain.w, N * 4);
        ls_check_same("m", a.m, plain.m, N * 4);
        ls_check_same("v", a.v, plain.v, N * 4);
        for (int i = 0; i < 3; i++) {
            uint16_t *at = copy + GAP + spans[i].first;
            for (int64_t e = 0; e < spans[i].count; e++)
                LS_CHECK_EQ(at[e], ls_half_of(plain.w[spans[i].first + e]));
            memset(at, 0xff, (size_t)spans[i].count * sizeof *at);
        }
        for (int i = 0; i < N + GAP; i++)
            LS_CHECK_EQ(copy[i], 0xffff);
        ls_check_end(&c);
    }
}

/* Second moments may lie closer together than the rest: the same bits, in fewer places. */
LS_TEST(adamw_finds_second_moments_that_lie_close_together)
{
    enum { N = 100, FIRST = 17, SECOND = 60, COUNT = 23 };
    ls_kernels list[LS_CHECK_TABLES + 1];
    int count = ls_check_tables(list);

    list[count++] = *ls_check_reference();
    for (int k = 0; k < count; k++) {
        ls_check c;
        ls_check_begin(&c, 2);
        ls_optimizer_update far = make(&c, N, 2), near = far;
        ls_optimizer_span *spans = (ls_optimizer_span *)(uintptr_t)far.spans;
        ls_optimizer_span *gaps = ls_check_bytes(&c, "spans with gaps", 2 * sizeof *gaps);
        spans[0] = (ls_optimizer_span){.first = FIRST, .w_first = FIRST, .count = COUNT, .rate = 1};
        spans[1] =
            (ls_optimizer_span){.first = SECOND, .w_first = SECOND, .count = COUNT, .rate = 1};
        gaps[0] = spans[0], gaps[1] = spans[1];
        gaps[0].v_gap = FIRST;
        gaps[1].v_gap = SECOND - COUNT;
        near.spans = gaps;
        near.w = ls_check_copy(&c, "w", far.w, N);
        near.m = ls_check_copy(&c, "m", far.m, N);
        near.v = ls_check_floats(&c, "close v", 2 * COUNT, 0);
        memset(near.v, 0, 2 * COUNT * sizeof *near.v);
        for (int t = 1; t <= STEPS; t++) {
            prepare(&far, N, t);
            list[k].adamw(c.stream, &far);
            list[k].adamw(c.stream, &near);
        }
        ls_check_same("w", near.w, far.w, 4 * N);
        ls_check_same("v of the first", near.v, far.v + FIRST, 4 * COUNT);
        ls_check_same("v of the second", near.v + COUNT, far.v + SECOND, 4 * COUNT);
        ls_check_end(&c);
    }
}
