/* test_act.c -- activations against the reference and finite differences. */
#include "kernel/half.h"

#include <math.h>

typedef struct shape {
    ls_act act;
    bool gated, in_place;
    int64_t M, F;
    float scale;
} shape;

static ls_act_args make(ls_check *c, const shape *s)
{
    int64_t wide = s->gated ? 2 * s->F : s->F;
    ls_act_args a = {.type = LS_F32, .act = s->act, .gated = s->gated, .M = s->M, .F = s->F};
    float *x = ls_check_floats(c, "x", s->M * wide, s->scale);

    a.x = x;
    a.y = ls_check_floats(c, "y", s->M * s->F, 0);
    a.dy = ls_check_floats(c, "dy", s->M * s->F, 1);
    a.dx = s->in_place ? x : ls_check_floats(c, "dx", s->M * wide, 0);
    return a;
}

static void run_fwd(ls_check *c, const ls_kernels *k, const void *shape_, float *out)
{
    const shape *s = shape_;
    ls_act_args a = make(c, s);

    k->act_fwd(c->stream, &a);
    ls_rows_put(out, a.y, s->M * s->F);
}

static void run_bwd(ls_check *c, const ls_kernels *k, const void *shape_, float *out)
{
    const shape *s = shape_;
    ls_act_args a = make(c, s);

    k->act_bwd(c->stream, &a);
    ls_rows_put(out, a.dx, s->M * s->F * (s->gated ? 2 : 1));
}

LS_TEST_SECONDS(act_equals_reference_on_odd_shapes, 60)
{
    const int64_t widths[] = {1, 15, 16, 17, 48, 384, 8209};
    const ls_act acts[] = {LS_ACT_NONE, LS_ACT_GELU, LS_ACT_SILU};

    for (size_t i = 0; i < LS_COUNT(widths); i++)
        for (int form = 0; form < 12; form += ls_test_stride(5)) {
            shape s = {.act = acts[form % 3], .M = 3, .F = widths[i], .scale = 2};
            s.gated = form / 3 & 1;
            s.in_place = form / 6;
            ls_rows_check(LS_ROW_ACT_FWD, run_fwd, &s, s.M * s.F);
            ls_rows_check(LS_ROW_ACT_BWD, run_bwd, &s, s.M * s.F * (s.gated ? 2 : 1));
        }
}

/* The ends of the range: no NaN from 0 * Inf, slopes of 0 and 1. */
LS_TEST(act_is_exact_far_from_zero)
{
    const ls_kernels *list[8];
    int n = ls_kernel_list(list, 8);
    const float at[] = {-1e30f, -1e5f, -50, 50, 1e5f, 1e30f};

    for (int i = 0; i < 2 * n; i++) {
        if (strcmp(list[i / 2]->name, "reference") == 0)
            continue;
        shape s = {.act = i & 1 ? LS_ACT_SILU : LS_ACT_GELU, .M = 1, .F = 6, .scale = 1};
        ls_check c;
        ls_check_begin(&c, 1);
        ls_act_args a = make(&c, &s);
        memcpy((float *)(uintptr_t)a.x, at, sizeof at);
        for (int k = 0; k < 6; k++)
            ((float *)(uintptr_t)a.dy)[k] = 1;
        list[i / 2]->act_fwd(c.stream, &a);
        list[i / 2]->act_bwd(c.stream, &a);
        for (int k = 0; k < 6; k++) {
            LS_CHECK_NEAR(((float *)a.y)[k], at[k] > 0 ? at[k] : 0, 1e-6);
            LS_CHECK_NEAR(((float *)a.dx)[k], at[k] > 0 ? 1 : 0, 1e-6);
        }
        ((float *)(uintptr_t)a.x)[1] = NAN;
        list[i / 2]->act_fwd(c.stream, &a);
        list[i / 2]->act_bwd(c.stream, &a);
        LS_CHECK(isnan(((float *)a.y)[1]) && isnan(((float *)a.dx)[1]));
        ls_check_end(&c);
    }
}

static double loss(ls_check *c, const ls_act_args *a)
{
    double total = 0;

    ls_check_reference()->act_fwd(c->stream, a);
    for (int64_t i = 0; i < a->M * a->F; i++)
        total += (double)((const float *)a->dy)[i] * (double)((const float *)a->y)[i];
    return total;
}

LS_TEST(act_gradients_are_finite_differences)
{
    for (int form = 0; form < 4; form++) {
        shape s = {.act = form & 1 ? LS_ACT_SILU : LS_ACT_GELU, .M = 3, .F = 7, .scale = 1.5f};
        ls_check c;
        s.gated = form / 2;
        ls_check_begin(&c, 1);
        ls_act_args a = make(&c, &s);
        ls_check_reference()->act_bwd(c.stream, &a);
        float *x = (float *)(uintptr_t)a.x;
        for (int64_t i = 0; i < s.M * s.F * (s.gated ? 2 : 1); i++) {
            float was = x[i];
            x[i] = was + 4e-3f;
            double up = loss(&c, &a), width = (double)x[i];
            x[i] = was - 4e-3f;
            double down = loss(&c, &a);
            width -= (double)x[i];
            x[i] = was;
            double want = (double)((float *)a.dx)[i];
            LS_CHECK_NEAR((up - down) / width, want, 1e-3 * (1 + fabs(want)));
        }
        ls_check_end(&c);
    }
}

/* --- bf16 ----------------------------------------------------------------------------------- */

static ls_act_args half_args(ls_check *c, const ls_kernels *k, const shape *s)
{
    int64_t wide = s->gated ? 2 * s->F : s->F;
    ls_act_args a = {.type = ls_half_type(k), .act = s->act, .gated = s->gated, .M = s->M};
    void *x = ls_half_values(c, a.type, "x", s->M * wide, s->scale, 0);

    a.F = s->F;
    a.x = x;
    a.y = ls_half_values(c, a.type, "y", s->M * s->F, 0, 0);
    a.dy = ls_half_values(c, a.type, "dy", s->M * s->F, 1, 0);
    a.dx = s->in_place ? x : ls_half_values(c, a.type, "dx", s->M * wide, 0, 0);
    return a;
}

static void run_half_fwd(ls_check *c, const ls_kernels *k, const void *shape_, float *out)
{
    const shape *s = shape_;
    ls_act_args a = half_args(c, k, s);

    k->act_fwd(c->stream, &a);
    ls_half_put(out, a.type, a.y, s->M * s->F);
}

static void run_half_bwd(ls_check *c, const ls_kernels *k, const void *shape_, float *out)
{
    const shape *s = shape_;
    ls_act_args a = half_args(c, k, s);

    k->act_bwd(c->stream, &a);
    ls_half_put(out, a.type, a.dx, s->M * s->F * (s->gated ? 2 : 1));
}

LS_TEST_SECONDS(act_in_bf16_is_the_reference_rounded, 60)
{
    const int64_t widths[] = {1, 15, 17, 384, 8209};
    const ls_act acts[] = {LS_ACT_NONE, LS_ACT_GELU, LS_ACT_SILU};

    for (size_t i = 0; i < LS_COUNT(widths); i++)
        for (int form = 0; form < 6; form++) {
            shape s = {.act = acts[form % 3], .M = 3, .F = widths[i], .scale = 2};
            s.gated = form / 3 & 1;
            s.in_place = i & 1;
            ls_half_check(LS_ROW_ACT_FWD, run_half_fwd, &s, s.M * s.F, 0);
            ls_half_check(LS_ROW_ACT_BWD, run_half_bwd, &s, s.M * s.F * (s.gated ? 2 : 1), 0);
        }
}

/* Many short rows go in one task, and none is left out. */
LS_TEST(act_takes_short_rows_together)
{
    shape s = {.act = LS_ACT_SILU, .gated = true, .M = 4001, .F = 5, .scale = 2};

    ls_rows_check(LS_ROW_ACT_FWD, run_fwd, &s, s.M * s.F);
    ls_rows_check(LS_ROW_ACT_BWD, run_bwd, &s, 2 * s.M * s.F);
    ls_half_check(LS_ROW_ACT_FWD, run_half_fwd, &s, s.M * s.F, 0);
}

/* The value and the slope of the gated gradient are those of the plain rows: dy = up = 1. */
LS_TEST(act_gated_gradient_agrees_with_the_plain_rows)
{
    enum { N = 4001 };
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);

    for (int i = 0; i < 2 * n; i++) {
        shape s = {.act = i & 1 ? LS_ACT_SILU : LS_ACT_GELU, .M = 1, .F = N, .scale = 1};
        ls_check c;
        ls_check_begin(&c, 1);
        ls_act_args plain = make(&c, &s), gated;
        s.gated = true;
        gated = make(&c, &s);
        float *x = (float *)(uintptr_t)gated.x, *z = (float *)(uintptr_t)plain.x;
        for (int e = 0; e < N; e++) {
            x[e] = z[e] = (float)(e - N / 2) / 100; /* -20 .. 20 */
            x[N + e] = ((float *)(uintptr_t)gated.dy)[e] = 1;
            ((float *)(uintptr_t)plain.dy)[e] = 1;
        }
        list[i / 2].act_fwd(c.stream, &plain);
        list[i / 2].act_bwd(c.stream, &plain);
        list[i / 2].act_bwd(c.stream, &gated);
        ls_check_same("slope", gated.dx, plain.dx, N * 4);
        ls_check_near("value", (float *)gated.dx + N, plain.y, N, 2e-6);
        ls_check_end(&c);
    }
}

/* Without an activation every pattern of bf16 passes through; a NaN is made quiet. */
LS_TEST(act_none_keeps_every_bf16_value)
{
    enum { N = 65536 };
    ls_kernels list[LS_CHECK_TABLES];
    int n = ls_check_tables(list);

    for (int i = 0; i < n; i++) {
        ls_check c;
        ls_check_begin(&c, 1);
        uint16_t *x = ls_check_bytes(&c, "x", N * 2), *y = ls_check_bytes(&c, "y", N * 2);
        for (int e = 0; e < N; e++)
            x[e] = (uint16_t)e;
        list[i].act_fwd(c.stream, &(ls_act_args){.type = LS_BF16, .x = x, .y = y, .M = 1, .F = N});
        for (int e = 0; e < N; e++)
            LS_CHECK_EQ(y[e], (e & 0x7fff) > 0x7f80 ? e | 0x40 : e);
        ls_check_end(&c);
    }
}
