/* test_act.c -- activations against the reference and finite differences. */
#include "kernel/rows.h"

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
        for (int form = 0; form < 12; form++) {
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
