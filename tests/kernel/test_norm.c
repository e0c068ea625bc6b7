/* test_norm.c -- norm_fwd and norm_bwd against the reference, finite differences and themselves. */
#include "kernel/half.h"

#include <math.h>
#include "base/rng.h"

typedef struct shape {
    ls_norm_kind kind;
    int64_t M, C, T, leaves;
    bool x, bias, in_place, add, accumulate, dx;
    float p;
} shape;

static ls_step_state *new_state(ls_check *c)
{
    ls_step_state *s = ls_check_bytes(c, "state", sizeof *s);

    *s = (ls_step_state){.key = {0x1234567, 0x89abcdef}, .first_seq = 5};
    return s;
}

static ls_norm_fwd fwd_args(ls_check *c, const shape *s)
{
    int64_t n = s->M * s->C;
    bool layer = s->kind == LS_NORM_LAYER;
    ls_norm_fwd a = {.type = LS_F32, .kind = s->kind, .M = s->M, .C = s->C, .T = s->T};
    float *stream = ls_check_floats(c, "stream", n, 2);

    for (int64_t i = 0; i < n; i++)
        stream[i] += 3; /* a mean that must not eat the variance */
    a.stream = stream;
    a.x = s->x ? ls_check_floats(c, "x", n, 1) : NULL;
    a.sum = !s->x ? NULL : s->in_place ? stream : ls_check_floats(c, "sum", n, 0);
    a.y = ls_check_floats(c, "y", n, 0);
    a.w = ls_check_floats(c, "w", s->C, 1);
    a.b = s->bias ? ls_check_floats(c, "b", s->C, 1) : NULL;
    a.mean = layer ? ls_check_floats(c, "mean", s->M, 0) : NULL;
    a.rstd = ls_check_floats(c, "rstd", s->M, 0);
    a.eps = 1e-5f;
    a.drop = (ls_dropout){.p = s->p, .site = 7, .state = new_state(c)};
    return a;
}

static void run_fwd(ls_check *c, const ls_kernels *k, const void *shape_, float *out)
{
    const shape *s = shape_;
    ls_norm_fwd a = fwd_args(c, s);

    k->norm_fwd(c->stream, &a);
    out = ls_rows_put(out, a.y, s->M * s->C);
    out = ls_rows_put(out, s->x ? a.sum : a.stream, s->M * s->C);
    out = ls_rows_put(out, a.rstd, s->M);
    ls_rows_put(out, a.mean ? a.mean : a.rstd, s->M);
}

static ls_norm_bwd bwd_args(ls_check *c, const shape *s)
{
    int64_t n = s->M * s->C;
    ls_norm_fwd f = fwd_args(c, s);
    ls_norm_bwd a = {.type = LS_F32, .kind = s->kind, .M = s->M, .C = s->C, .T = s->T};

    ls_check_reference()->norm_fwd(c->stream, &f);
    a.dy = ls_check_floats(c, "dy", n, 1);
    a.sum = s->x ? f.sum : f.stream;
    a.w = f.w;
    a.mean = f.mean;
    a.rstd = f.rstd;
    a.dsum = ls_check_floats(c, "dsum", n, s->add ? 1 : 0);
    a.add_to_dsum = s->add;
    a.dx = s->dx ? ls_check_floats(c, "dx", n, 0) : NULL;
    a.dw = ls_check_floats(c, "dw", s->C, s->accumulate ? 1 : 0);
    a.db = s->bias ? ls_check_floats(c, "db", s->C, s->accumulate ? 1 : 0) : NULL;
    a.leaves = s->leaves;
    a.accumulate = s->accumulate;
    a.drop = f.drop;
    return a;
}

static void run_bwd(ls_check *c, const ls_kernels *k, const void *shape_, float *out)
{
    const shape *s = shape_;
    ls_norm_bwd a = bwd_args(c, s);

    a.scratch = ls_rows_scratch(c, k, LS_ROW_NORM_BWD, &a);
    k->norm_bwd(c->stream, &a);
    out = ls_rows_put(out, a.dsum, s->M * s->C);
    out = ls_rows_put(out, a.dx ? a.dx : a.dsum, s->M * s->C);
    out = ls_rows_put(out, a.dw, s->C);
    ls_rows_put(out, a.db ? a.db : a.dw, s->C);
}

static void check_shape(const shape *s)
{
    ls_rows_check(LS_ROW_NORM_FWD, run_fwd, s, 2 * s->M * s->C + 2 * s->M);
    ls_rows_check(LS_ROW_NORM_BWD, run_bwd, s, 2 * s->M * s->C + 2 * s->C);
}

LS_TEST_SECONDS(norm_equals_reference_on_odd_shapes, 60)
{
    const int64_t widths[] = {1, 15, 16, 17, 48, 63, 65, 384};

    for (size_t i = 0; i < LS_COUNT(widths); i++) {
        shape s = {.kind = LS_NORM_LAYER, .M = 7, .C = widths[i], .T = 7, .leaves = 1};
        s.x = s.bias = s.dx = true;
        check_shape(&s);
        s.kind = LS_NORM_RMS;
        s.bias = false;
        s.M = 35;
        s.leaves = 5;
        s.accumulate = true;
        check_shape(&s);
    }
}

LS_TEST_SECONDS(norm_equals_reference_in_all_forms, 60)
{
    for (int form = 0; form < 64; form++) {
        shape s = {.kind = form & 1 ? LS_NORM_RMS : LS_NORM_LAYER, .M = 66, .C = 83, .T = 11};
        s.leaves = 1 + form % 3;
        s.x = form & 2;
        s.bias = !(form & 1);
        s.in_place = form & 4;
        s.dx = s.x;
        s.p = form & 8 ? 0.3f : 0;
        s.add = form & 16;
        s.accumulate = form & 32;
        check_shape(&s);
    }
}

/* Without dw, or db, or both: what is asked for has the bits of the call that gives all, and with
 * none of them there is no scratch. */
LS_TEST(norm_bwd_leaves_out_what_is_not_asked_for)
{
    const ls_kernels *list[8];
    int n = ls_kernel_list(list, 8);
    shape s = {.M = 70, .C = 83, .T = 70, .leaves = 2, .x = true, .bias = true, .dx = true};

    for (int i = 0; i < n; i++)
        for (int without = 1; without < 4; without++) {
            ls_check c;
            ls_check_begin(&c, 2);
            ls_norm_bwd a = bwd_args(&c, &s), b = a;
            a.scratch = ls_rows_scratch(&c, list[i], LS_ROW_NORM_BWD, &a);
            list[i]->norm_bwd(c.stream, &a);
            b.dsum = ls_check_floats(&c, "second dsum", s.M * s.C, 0);
            b.dx = ls_check_floats(&c, "second dx", s.M * s.C, 0);
            b.dw = without & 1 ? NULL : ls_check_floats(&c, "second dw", s.C, 0);
            b.db = without & 2 ? NULL : ls_check_floats(&c, "second db", s.C, 0);
            b.scratch = without == 3 ? NULL : a.scratch;
            list[i]->norm_bwd(c.stream, &b);
            ls_check_same("dsum", b.dsum, a.dsum, s.M * s.C * 4);
            ls_check_same("dx", b.dx, a.dx, s.M * s.C * 4);
            if (b.dw)
                ls_check_same("dw", b.dw, a.dw, s.C * 4);
            if (b.db)
                ls_check_same("db", b.db, a.db, s.C * 4);
            ls_check_end(&c);
        }
}

/* dw and db of `leaves` leaves are the tree over calls of one leaf each. */
LS_TEST(norm_sums_leaves_as_a_tree)
{
    const ls_kernels *k;
    const int64_t counts[] = {4, 3, 5}, sizes[] = {7, 70};

    LS_CHECK_OK(ls_kernel_pick("auto", &k));
    for (int i = 0; i < 6; i++) {
        int64_t L = counts[i % 3], rows = sizes[i / 3], C = 19;
        shape s = {.kind = LS_NORM_LAYER, .M = L * rows, .C = C, .T = rows, .leaves = L};
        float *dw[5], *db[5];
        ls_check c;
        s.bias = true;
        ls_check_begin(&c, 2);
        ls_norm_bwd a = bwd_args(&c, &s), one = a;
        a.scratch = ls_rows_scratch(&c, k, LS_ROW_NORM_BWD, &a);
        k->norm_bwd(c.stream, &a);
        one.scratch = a.scratch;
        one.M = rows;
        one.leaves = 1;
        for (int64_t l = 0; l < L; l++) {
            one.dy = (const float *)a.dy + l * rows * C;
            one.sum = (const float *)a.sum + l * rows * C;
            one.dsum = (float *)a.dsum + l * rows * C;
            one.mean = a.mean + l * rows;
            one.rstd = a.rstd + l * rows;
            one.dw = dw[l] = ls_check_floats(&c, "leaf dw", C, 0);
            one.db = db[l] = ls_check_floats(&c, "leaf db", C, 0);
            k->norm_bwd(c.stream, &one);
        }
        ls_rows_tree(&c, k, dw, L, C);
        ls_rows_tree(&c, k, db, L, C);
        ls_check_same("dw", a.dw, dw[0], C * 4);
        ls_check_same("db", a.db, db[0], C * 4);
        ls_check_end(&c);
    }
}

/* sum over elements of dy * y + above * sum: its gradients are what norm_bwd gives. */
static double loss(ls_check *c, const ls_norm_fwd *f, const float *dy, const float *above)
{
    const float *y = f->y, *sum = f->sum;
    double total = 0;

    ls_check_reference()->norm_fwd(c->stream, f);
    for (int64_t i = 0; i < f->M * f->C; i++)
        total += (double)dy[i] * (double)y[i] + (double)above[i] * (double)sum[i];
    return total;
}

static void check_slope(ls_check *c, const ls_norm_fwd *f, const float *dy, const float *above,
                        float *at, double want)
{
    float was = *at, h = 4e-3f;

    *at = was + h;
    double up = loss(c, f, dy, above), width = (double)*at;
    *at = was - h;
    double down = loss(c, f, dy, above);
    width -= (double)*at;
    *at = was;
    LS_CHECK_NEAR((up - down) / width, want, 3e-3 * (1 + fabs(want)));
}

static void check_gradients(ls_norm_kind kind)
{
    shape s = {.kind = kind, .M = 4, .C = 9, .T = 2, .leaves = 2, .x = true, .p = 0.4f};
    ls_check c;

    s.bias = kind == LS_NORM_LAYER;
    s.add = s.dx = true;
    ls_check_begin(&c, 1);
    ls_norm_bwd b = bwd_args(&c, &s);
    float *above = ls_check_copy(&c, "above", b.dsum, s.M * s.C);
    c.seed = 1; /* the same inputs once more, so that they can be moved */
    ls_norm_fwd f = fwd_args(&c, &s);
    b.scratch = ls_rows_scratch(&c, ls_check_reference(), LS_ROW_NORM_BWD, &b);
    ls_check_reference()->norm_bwd(c.stream, &b);
    float *stream = (float *)(uintptr_t)f.stream, *x = (float *)(uintptr_t)f.x;
    for (int64_t i = 0; i < s.M * s.C; i++) {
        check_slope(&c, &f, b.dy, above, stream + i, (double)((float *)b.dsum)[i]);
        check_slope(&c, &f, b.dy, above, x + i, (double)((float *)b.dx)[i]);
    }
    for (int64_t i = 0; i < s.C; i++) {
        check_slope(&c, &f, b.dy, above, (float *)(uintptr_t)f.w + i, (double)b.dw[i]);
        if (s.bias)
            check_slope(&c, &f, b.dy, above, (float *)(uintptr_t)f.b + i, (double)b.db[i]);
    }
    ls_check_end(&c);
}

LS_TEST(norm_gradients_are_finite_differences)
{
    check_gradients(LS_NORM_LAYER);
    check_gradients(LS_NORM_RMS);
}

/* With stream 0 and x 1, sum is the dropout factor itself. */
LS_TEST(norm_drops_what_the_philox_rule_says)
{
    const ls_kernels *list[8];
    int n = ls_kernel_list(list, 8);
    shape s = {.M = 60, .C = 210, .T = 20, .leaves = 1, .x = true, .p = 0.3f};

    for (int i = 0; i < n; i++) {
        ls_check c;
        int64_t kept = 0;
        ls_check_begin(&c, 2);
        ls_norm_fwd a = fwd_args(&c, &s);
        float *stream = (float *)(uintptr_t)a.stream, *x = (float *)(uintptr_t)a.x;
        for (int64_t e = 0; e < s.M * s.C; e++) {
            stream[e] = 0;
            x[e] = 1;
        }
        list[i]->norm_fwd(c.stream, &a);
        for (int64_t e = 0; e < s.M * s.C; e++) {
            uint32_t row = (uint32_t)(e / s.C), column = (uint32_t)(e % s.C);
            ls_rng_block b = ls_rng_philox((ls_rng_key){{0x1234567, 0x89abcdef}}, column / 4,
                                           row % 20, 5 + row / 20, 7u << 16);
            bool keep = ls_rng_uniform(b.v[column % 4]) >= s.p;
            kept += keep;
            LS_CHECK_NEAR(((float *)a.sum)[e], keep ? 1 / 0.7 : 0, 1e-6);
        }
        /* 12600 draws: a standard deviation of 0.0041 */
        LS_CHECK_NEAR((double)kept / (double)(s.M * s.C), 0.7, 0.02);
        ls_check_end(&c);
    }
}

LS_TEST(norm_keeps_variance_under_a_large_mean)
{
    const ls_kernels *list[8];
    int n = ls_kernel_list(list, 8);
    shape s = {.M = 1, .C = 100, .T = 1, .leaves = 1};

    for (int i = 0; i < n; i++) {
        ls_check c;
        ls_check_begin(&c, 1);
        ls_norm_fwd a = fwd_args(&c, &s);
        for (int64_t e = 0; e < s.C; e++) /* variance 1 around 4096 */
            ((float *)(uintptr_t)a.stream)[e] = e & 1 ? 4097 : 4095;
        list[i]->norm_fwd(c.stream, &a);
        LS_CHECK_NEAR(a.mean[0], 4096, 1e-3);
        LS_CHECK_NEAR(a.rstd[0], 1, 1e-4);
        ls_check_end(&c);
    }
}

/* --- bf16 ----------------------------------------------------------------------------------- */

static ls_norm_fwd half_fwd_args(ls_check *c, ls_dtype type, const shape *s)
{
    int64_t n = s->M * s->C;
    ls_norm_fwd a = {.type = type, .kind = s->kind, .M = s->M, .C = s->C, .T = s->T};
    void *stream = ls_half_values(c, type, "stream", n, 2, 3);

    a.stream = stream;
    a.x = s->x ? ls_half_values(c, type, "x", n, 1, 0) : NULL;
    a.sum = !s->x ? NULL : s->in_place ? stream : ls_half_values(c, type, "sum", n, 0, 0);
    a.y = ls_half_values(c, type, "y", n, 0, 0);
    a.w = ls_half_values(c, type, "w", s->C, 1, 0);
    a.b = s->bias ? ls_half_values(c, type, "b", s->C, 1, 0) : NULL;
    a.mean = s->kind == LS_NORM_LAYER ? ls_check_floats(c, "mean", s->M, 0) : NULL;
    a.rstd = ls_check_floats(c, "rstd", s->M, 0);
    a.eps = 1e-5f;
    a.drop = (ls_dropout){.p = s->p, .site = 7, .state = new_state(c)};
    return a;
}

/* What the fast tables normalise is the sum as it was rounded: rounded on the way of the
 * reference as well. Returns what was normalised. */
static void *half_forward(ls_check *c, const ls_kernels *k, ls_norm_fwd *a)
{
    k->norm_fwd(c->stream, a);
    if (a->type == LS_BF16 || !a->x)
        return a->x ? a->sum : (void *)(uintptr_t)a->stream;
    ls_norm_fwd again = *a;

    again.stream = ls_half_copy(c, LS_F32, "rounded sum", a->sum, a->M * a->C);
    again.x = NULL;
    again.sum = NULL;
    k->norm_fwd(c->stream, &again);
    return (void *)(uintptr_t)again.stream;
}

static void run_half_fwd(ls_check *c, const ls_kernels *k, const void *shape_, float *out)
{
    const shape *s = shape_;
    ls_norm_fwd a = half_fwd_args(c, ls_half_type(k), s);
    void *sum = half_forward(c, k, &a);

    out = ls_half_put(out, a.type, a.y, s->M * s->C);
    out = ls_half_put(out, a.type, sum, s->M * s->C);
    out = ls_rows_put(out, a.rstd, s->M);
    ls_rows_put(out, a.mean ? a.mean : a.rstd, s->M);
}

static void run_half_bwd(ls_check *c, const ls_kernels *k, const void *shape_, float *out)
{
    const shape *s = shape_;
    int64_t n = s->M * s->C;
    ls_dtype type = ls_half_type(k);
    ls_norm_fwd f = half_fwd_args(c, LS_F32, s); /* both sides see the reference's statistics */
    float *sum = half_forward(c, ls_check_reference(), &f);
    ls_norm_bwd a = {.type = type, .kind = s->kind, .M = s->M, .C = s->C, .T = s->T};

    a.dy = ls_half_values(c, type, "dy", n, 1, 0);
    a.sum = ls_half_copy(c, type, "sum", sum, n);
    a.w = ls_half_copy(c, type, "w", f.w, s->C);
    a.mean = f.mean;
    a.rstd = f.rstd;
    a.dsum = ls_half_values(c, type, "dsum", n, s->add ? 1 : 0, 0);
    a.add_to_dsum = s->add;
    a.dx = s->dx ? ls_half_values(c, type, "dx", n, 0, 0) : NULL;
    a.dw = ls_check_floats(c, "dw", s->C, s->accumulate ? 1 : 0);
    a.db = s->bias ? ls_check_floats(c, "db", s->C, s->accumulate ? 1 : 0) : NULL;
    a.leaves = s->leaves;
    a.accumulate = s->accumulate;
    a.drop = f.drop;
    a.scratch = ls_rows_scratch(c, k, LS_ROW_NORM_BWD, &a);
    k->norm_bwd(c->stream, &a);
    out = ls_half_put(out, type, a.dsum, n);
    out = ls_half_put(out, type, a.dx ? a.dx : a.dsum, n);
    out = ls_rows_put(out, a.dw, s->C);
    ls_rows_put(out, a.db ? a.db : a.dw, s->C);
}

LS_TEST_SECONDS(norm_in_bf16_is_the_reference_rounded, 60)
{
    const int64_t widths[] = {1, 15, 17, 64, 83, 384};

    for (size_t i = 0; i < LS_COUNT(widths); i++)
        for (int form = 0; form < 4; form++) {
            shape s = {.kind = form & 1 ? LS_NORM_RMS : LS_NORM_LAYER, .M = 35, .C = widths[i]};
            s.T = 5;
            s.leaves = form & 1 ? 5 : 1;
            s.x = s.dx = form & 2;
            s.bias = !(form & 1);
            s.in_place = i & 1;
            s.p = i % 3 ? 0 : 0.3f;
            s.add = i & 1;
            s.accumulate = form & 1;
            ls_half_check(LS_ROW_NORM_FWD, run_half_fwd, &s, 2 * s.M * s.C, 2 * s.M);
            ls_half_check(LS_ROW_NORM_BWD, run_half_bwd, &s, 2 * s.M * s.C, 2 * s.C);
        }
}

/* A narrow tensor has many chunks in a task. */
LS_TEST_SECONDS(norm_takes_narrow_rows_together, 60)
{
    shape s = {.kind = LS_NORM_LAYER, .M = 1503, .C = 17, .T = 501, .leaves = 3, .bias = true};

    check_shape(&s);
    ls_half_check(LS_ROW_NORM_FWD, run_half_fwd, &s, 2 * s.M * s.C, 2 * s.M);
    ls_half_check(LS_ROW_NORM_BWD, run_half_bwd, &s, 2 * s.M * s.C, 2 * s.C);
}

/* Rows that a rank has drop what they drop in the whole tensor. */
LS_TEST(norm_of_some_rows_is_a_part_of_the_whole)
{
    enum { FIRST = 23 };
    const ls_kernels *list[8];
    int n = ls_kernel_list(list, 8);
    shape s = {.M = 60, .C = 70, .T = 20, .leaves = 1, .x = true, .dx = true, .p = 0.3f};

    for (int i = 0; i < n; i++) {
        int64_t rows = s.M - FIRST, at = FIRST * s.C, bytes = rows * s.C * 4;
        ls_check c;
        ls_check_begin(&c, 2);
        ls_norm_fwd f = fwd_args(&c, &s), some = f;
        some.M = rows;
        some.drop.first_row = FIRST;
        some.stream = (const float *)f.stream + at;
        some.x = (const float *)f.x + at;
        some.sum = ls_check_floats(&c, "sum of some", rows * s.C, 0);
        some.y = ls_check_floats(&c, "y of some", rows * s.C, 0);
        some.rstd = ls_check_floats(&c, "rstd of some", rows, 0);
        some.mean = ls_check_floats(&c, "mean of some", rows, 0);
        list[i]->norm_fwd(c.stream, &f);
        list[i]->norm_fwd(c.stream, &some);
        ls_check_same("sum", some.sum, (float *)f.sum + at, bytes);
        ls_check_same("y", some.y, (float *)f.y + at, bytes);
        ls_norm_bwd b = bwd_args(&c, &s), less = b;
        less.M = rows;
        less.drop.first_row = FIRST;
        less.dy = (const float *)b.dy + at;
        less.sum = (const float *)b.sum + at;
        less.mean = b.mean ? b.mean + FIRST : NULL;
        less.rstd = b.rstd + FIRST;
        less.dsum = ls_check_floats(&c, "dsum of some", rows * s.C, 0);
        less.dx = ls_check_floats(&c, "dx of some", rows * s.C, 0);
        less.dw = ls_check_floats(&c, "dw of some", s.C, 0);
        b.scratch = less.scratch = ls_rows_scratch(&c, list[i], LS_ROW_NORM_BWD, &b);
        list[i]->norm_bwd(c.stream, &b);
        list[i]->norm_bwd(c.stream, &less);
        ls_check_same("dx", less.dx, (float *)b.dx + at, bytes);
        ls_check_end(&c);
    }
}
