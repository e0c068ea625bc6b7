/* test_muon.c -- momentum and the parts of muon against the reference and their formulas. */
#include "kernel/half.h"

#include <math.h>

static const ls_step_state state = {.lr = 1e-2f, .weight_decay = 0.1f, .momentum = 0.95f};
static const ls_norm_result good = {.norm = 3, .factor = 0.5f, .bad_block = -1};
static const ls_norm_result bad = {.norm = 3, .factor = 0, .bad_block = 0};

/* --- momentum --------------------------------------------------------------------------------- */

typedef struct flat_shape {
    int64_t n, spans;
} flat_shape;

static ls_momentum make_momentum(ls_check *c, const flat_shape *s)
{
    ls_momentum a = {.n = s->n, .n_spans = s->spans, .state = &state, .result = &good};
    ls_optimizer_span *spans = ls_check_bytes(c, "spans", s->spans * (int64_t)sizeof *spans);

    for (int64_t i = 0; i < s->spans; i++) { /* a gap of an element between them */
        int64_t first = i * s->n / s->spans, end = (i + 1) * s->n / s->spans;
        spans[i] = (ls_optimizer_span){
            .first = first, .w_first = first + 3, .count = end - first - (i + 1 < s->spans)};
    }
    a.m = ls_check_floats(c, "m", s->n, 1);
    a.grad = ls_check_floats(c, "grad", s->n + 3, 1); /* lies further on */
    a.spans = spans;
    return a;
}

static void run_momentum(ls_check *c, const ls_kernels *k, const void *shape, float *out)
{
    const flat_shape *s = shape;
    ls_momentum a = make_momentum(c, s);

    k->momentum(c->stream, &a);
    out = ls_rows_put(out, a.m, s->n);
    ls_rows_put(out, a.grad + 3, s->n);
}

LS_TEST(momentum_equals_reference)
{
    const flat_shape shapes[] = {{1, 1}, {16, 1}, {17, 3}, {1000, 7}, {40001, 2}};

    for (size_t i = 0; i < LS_COUNT(shapes); i++)
        ls_rows_check(LS_ROW_MOMENTUM, run_momentum, &shapes[i], 2 * shapes[i].n);
}

LS_TEST(momentum_follows_the_formula_and_spares_the_rest)
{
    const flat_shape s = {.n = 100, .spans = 2};
    const ls_kernels *list[8];
    int count = ls_kernel_list(list, 8);

    for (int k = 0; k < count; k++) {
        ls_check c;
        ls_check_begin(&c, 2);
        ls_momentum a = make_momentum(&c, &s);
        float *m = ls_check_copy(&c, "m before", a.m, s.n);
        float *grad = ls_check_copy(&c, "grad before", a.grad + 3, s.n);
        a.result = &bad;
        list[k]->momentum(c.stream, &a);
        ls_check_same("m of a bad gradient", a.m, m, 4 * s.n);
        ls_check_same("a bad gradient", a.grad + 3, grad, 4 * s.n);
        a.result = &good;
        list[k]->momentum(c.stream, &a);
        for (int64_t i = 0; i < s.n; i++) {
            double g = 0.5 * (double)grad[i], keep = (double)0.95f;
            double to = keep * (double)m[i] + (1 - keep) * g;
            bool gap = i == s.n / 2 - 1;
            LS_CHECK_NEAR(a.m[i], gap ? (double)m[i] : to, gap ? 0 : 1e-6);
            LS_CHECK_NEAR(a.grad[3 + i], gap ? (double)grad[i] : (1 - keep) * g + keep * to,
                          gap ? 0 : 1e-6);
        }
        ls_check_end(&c);
    }
}

/* --- muon ------------------------------------------------------------------------------------- */

typedef struct square_shape {
    ls_muon_part part;
    int64_t rows, cols, ld;
} square_shape;

static ls_muon make_muon(ls_check *c, const square_shape *s)
{
    return (ls_muon){.part = s->part,
                     .x = ls_check_floats(c, "x", s->rows * s->cols, 1),
                     .from = ls_check_floats(c, "from", (s->rows - 1) * s->ld + s->cols, 1),
                     .w = ls_check_floats(c, "w", (s->rows - 1) * s->ld + s->cols, 1),
                     .rows = s->rows,
                     .cols = s->cols,
                     .ld = s->ld,
                     .a = 3.4445f,
                     .b = -4.775f,
                     .c = 2.0315f,
                     .scale = 0.7f,
                     .state = &state,
                     .result = &good};
}

static void run_muon(ls_check *c, const ls_kernels *k, const void *shape, float *out)
{
    const square_shape *s = shape;
    ls_muon a = make_muon(c, s);

    k->muon(c->stream, &a);
    out = ls_rows_put(out, a.x, s->rows * s->cols);
    ls_rows_put(out, a.w, (s->rows - 1) * s->ld + s->cols);
}

LS_TEST(muon_equals_reference)
{
    static const square_shape shapes[] = {
        {LS_MUON_TAKE, 1, 1, 1},    {LS_MUON_TAKE, 5, 17, 40},     {LS_MUON_SCALE, 33, 7, 7},
        {LS_MUON_SCALE, 3, 16, 16}, {LS_MUON_POLY, 1, 1, 1},       {LS_MUON_POLY, 17, 17, 17},
        {LS_MUON_POLY, 64, 64, 64}, {LS_MUON_STEP, 1, 1, 1},       {LS_MUON_STEP, 31, 45, 45},
        {LS_MUON_STEP, 9, 20, 60},  {LS_MUON_STEP, 300, 130, 390}, {LS_MUON_TAKE, 300, 130, 390}};

    for (size_t i = 0; i < LS_COUNT(shapes); i++) {
        const square_shape *s = &shapes[i];
        ls_rows_check(LS_ROW_MUON, run_muon, s,
                      s->rows * s->cols + (s->rows - 1) * s->ld + s->cols);
    }
}

/* What lies between the rows of a matrix is another one's. */
LS_TEST(muon_steps_in_its_own_columns_and_copies_them)
{
    const square_shape s = {LS_MUON_STEP, 6, 20, 50};
    ls_kernels list[LS_CHECK_TABLES];
    int count = ls_check_tables(list);

    for (int k = 0; k < count; k++) {
        enum { N = 5 * 50 + 20 };
        ls_check c;
        ls_check_begin(&c, 2);
        ls_muon a = make_muon(&c, &s);
        float *w = ls_check_copy(&c, "w before", a.w, N);
        uint16_t *copy = ls_check_bytes(&c, "copy", 2 * N);
        a.copy = copy;
        a.copy_type = LS_BF16;
        a.result = &bad;
        list[k].muon(c.stream, &a);
        ls_check_same("w of a bad gradient", a.w, w, 4 * N);
        a.result = &good;
        list[k].muon(c.stream, &a);
        for (int i = 0; i < N; i++) {
            bool own = i % 50 < 20;
            double x = own ? (double)a.x[i / 50 * 20 + i % 50] : 0;
            double to = (double)w[i] - 1e-2 * ((double)0.7f * x + 0.1 * (double)w[i]);
            LS_CHECK_NEAR(a.w[i], own ? to : (double)w[i], own ? 1e-6 : 0);
            LS_CHECK_EQ(copy[i], own ? ls_half_of(a.w[i]) : 0xffff);
        }
        ls_check_end(&c);
    }
}

/* A matrix of zeros has no direction: it stays one. */
LS_TEST(muon_scales_nothing_to_nothing)
{
    const square_shape s = {LS_MUON_SCALE, 4, 9, 9};
    static const ls_norm_result none = {.bad_block = -1};
    const ls_kernels *list[8];
    int count = ls_kernel_list(list, 8);

    for (int k = 0; k < count; k++) {
        ls_check c;
        ls_check_begin(&c, 1);
        ls_muon a = make_muon(&c, &s);
        memset(a.x, 0, 36 * sizeof *a.x);
        a.result = &none;
        list[k]->muon(c.stream, &a);
        for (int i = 0; i < 36; i++)
            LS_CHECK(a.x[i] == 0);
        ls_check_end(&c);
    }
}
