/* test_gpu_fp8.c -- linear rows in fp8 on a GPU, against the reference on numbers rounded here. */
#include "gpu/gpu.h"

#include <math.h>

typedef struct fp8_shape {
    int64_t M, N, K;
    ls_layout layout;
    ls_act act;
    bool accumulate;
} fp8_shape;

/* Whole tiles, parts of tiles, both layouts. */
static const fp8_shape shapes[] = {{128, 128, 128, LS_LAYOUT_NK, LS_ACT_NONE, false},
                                   {16, 16, 16, LS_LAYOUT_KN, LS_ACT_NONE, false},
                                   {144, 272, 208, LS_LAYOUT_NK, LS_ACT_NONE, true},
                                   {400, 80, 336, LS_LAYOUT_KN, LS_ACT_GELU, false},
                                   {256, 384, 128, LS_LAYOUT_NK, LS_ACT_SILU, false}};

/* To a type with so many bits behind the point, whose largest number is top and whose smallest
 * normal one is 2^least; ties to even. */
static float rounded(float x, float top, int bits, int least)
{
    int e;

    if (x == 0)
        return x;
    frexpf(x, &e);
    float unit = ldexpf(1, (e - 1 > least ? e - 1 : least) - bits);
    return copysignf(fminf(fabsf(rintf(x / unit) * unit), top), x);
}

/* What the GPU multiplies instead of a tensor. */
static void round_all(float *x, int64_t n, bool gradient)
{
    float top = gradient ? 57344.0f : 448.0f, most = 0;

    for (int64_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(x[i]));
    float factor = top / most, scale = 1.0f / factor;
    for (int64_t i = 0; i < n; i++)
        x[i] = scale * (gradient ? rounded(x[i] * factor, top, 2, -14)
                                 : rounded(x[i] * factor, top, 3, -6));
}

/* Cells for x and dy, 0; or filled by an earlier row where `known`. */
static ls_fp8 cells(ls_gpu *g, const ls_linear_fwd *sizes)
{
    const float zeros[2] = {0, 0};
    float *cell = ls_gpu_bytes(g, "cells", zeros, sizeof zeros).device;
    ls_linear_fwd all = *sizes;

    all.fp8 = (ls_fp8){.x_max = cell, .dy_max = cell + 1};
    all.fp8.scratch = ls_gpu_scratch(g, LS_ROW_LINEAR_FWD, &all);
    return all.fp8;
}

static void fp8_case(ls_gpu *g, const fp8_shape *s)
{
    int64_t M = s->M, N = s->N, K = s->K;
    float start = s->accumulate ? 1.0f : 0.0f;
    ls_gpu_tensor x = ls_gpu_values(g, "x", M * K, 1), w = ls_gpu_values(g, "w", K * N, 0.05f);
    ls_gpu_tensor b = ls_gpu_values(g, "b", N, 1), y = ls_gpu_values(g, "y", M * N, 0);
    ls_gpu_tensor z = ls_gpu_values(g, "z", M * N, 0), dy = ls_gpu_values(g, "dy", M * N, 1e-4f);
    ls_gpu_tensor dx = ls_gpu_values(g, "dx", M * K, 0);
    ls_gpu_tensor dw = ls_gpu_floats(g, "dw", K * N, start);
    ls_linear_fwd f = {.type = LS_BF16, .M = M, .N = N, .K = K, .layout = s->layout};
    ls_fp8 fp8 = cells(g, &f);

    f.x = x.device, f.w = w.device, f.b = b.device, f.y = y.device;
    f.act = s->act;
    f.z = s->act == LS_ACT_NONE ? NULL : z.device;
    f.fp8 = fp8;
    g->k->linear_fwd(g->stream, &f);
    fp8.x_known = true;
    ls_linear_bwd_w bw = {.type = LS_BF16, .x = x.device, .dy = dy.device, .dw = dw.device};
    bw.M = M, bw.N = N, bw.K = K, bw.layout = s->layout, bw.leaves = 1;
    bw.accumulate = s->accumulate, bw.fp8 = fp8;
    g->k->linear_bwd_w(g->stream, &bw);
    fp8.dy_known = fp8.dy_kept = true;
    ls_linear_bwd_x bx = {.type = LS_BF16, .dy = dy.device, .w = w.device, .dx = dx.device};
    bx.M = M, bx.N = N, bx.K = K, bx.layout = s->layout, bx.fp8 = fp8;
    g->k->linear_bwd_x(g->stream, &bx);

    round_all(x.host, x.n, false);
    round_all(w.host, w.n, false);
    round_all(dy.host, dy.n, true);
    f.type = bw.type = bx.type = LS_F32;
    f.x = x.host, f.w = w.host, f.b = b.host, f.y = y.host, f.z = f.z ? z.host : NULL;
    bw.x = x.host, bw.dy = dy.host, bw.dw = dw.host;
    bx.dy = dy.host, bx.w = w.host, bx.dx = dx.host;
    g->reference->linear_fwd(g->cpu_stream, &f);
    g->reference->linear_bwd_w(g->cpu_stream, &bw);
    g->reference->linear_bwd_x(g->cpu_stream, &bx);
    ls_gpu_near(g, &y, 1e-2);
    ls_gpu_near(g, &dw, s->accumulate ? 1e-3 : 1e-4);
    ls_gpu_near(g, &dx, 1e-5);
}

LS_TEST_SECONDS(gpu_fp8_products_equal_reference, 60)
{
    ls_gpu g;

    ls_gpu_open(&g);
    if (!ls_device_describe(g.device).fp8)
        ls_test_skip("the GPU does not multiply in fp8");
    for (size_t i = 0; i < LS_COUNT(shapes); i++) {
        ls_gpu_begin(&g, LS_BF16, 0);
        fp8_case(&g, &shapes[i]);
        ls_gpu_end(&g);
    }
    ls_gpu_close(&g);
}

/* The row that makes a tensor leaves its largest magnitude: what a pass over it would find. */
LS_TEST_SECONDS(gpu_fp8_rows_leave_their_largest, 60)
{
    enum { M = 48, C = 160, F = 96 };
    const float zeros[4] = {0, 0, 0, 0};
    ls_gpu g;

    ls_gpu_open(&g);
    ls_gpu_begin(&g, LS_BF16, 0);
    ls_gpu_tensor x = ls_gpu_values(&g, "x", M * C, 1), w = ls_gpu_values(&g, "w", C, 1);
    ls_gpu_tensor y = ls_gpu_values(&g, "y", M * C, 0), dsum = ls_gpu_values(&g, "dsum", M * C, 0);
    ls_gpu_tensor rstd = ls_gpu_floats(&g, "rstd", M, 0), z = ls_gpu_values(&g, "z", M * 2 * F, 1);
    ls_gpu_tensor act = ls_gpu_values(&g, "act", M * F, 0),
                  dz = ls_gpu_values(&g, "dz", 2 * M * F, 0);
    ls_gpu_tensor cell = ls_gpu_bytes(&g, "cells", zeros, sizeof zeros);
    float *at = cell.device, found[4];
    ls_norm_fwd nf = {.type = LS_BF16, .kind = LS_NORM_RMS, .stream = x.device, .y = y.device};
    nf.w = w.device, nf.rstd = rstd.device, nf.y_max = at, nf.M = M, nf.C = C, nf.T = M;
    nf.eps = 1e-6f;
    g.k->norm_fwd(g.stream, &nf);
    ls_norm_bwd nb = {.type = LS_BF16, .kind = LS_NORM_RMS, .dy = y.device, .sum = x.device};
    nb.w = w.device, nb.rstd = rstd.device, nb.dsum = dsum.device, nb.dx_max = at + 1;
    nb.M = M, nb.C = C, nb.T = M, nb.leaves = 1;
    nb.scratch = ls_gpu_scratch(&g, LS_ROW_NORM_BWD, &nb);
    g.k->norm_bwd(g.stream, &nb);
    ls_act_args a = {.type = LS_BF16, .act = LS_ACT_SILU, .gated = true, .x = z.device};
    a.y = act.device, a.M = M, a.F = F, a.max = at + 2;
    g.k->act_fwd(g.stream, &a);
    a.dy = act.device, a.dx = dz.device, a.max = at + 3;
    g.k->act_bwd(g.stream, &a);
    ls_stream_copy_out(g.stream, found, at, sizeof found);
    ls_gpu_sync(&g);
    const ls_gpu_tensor *const made[4] = {&y, &dsum, &act, &dz};
    for (int i = 0; i < 4; i++) {
        float *values = ls_gpu_fetch(&g, made[i]), most = 0;
        for (int64_t k = 0; k < made[i]->n; k++)
            most = fmaxf(most, fabsf(values[k]));
        LS_CHECK(most > 0 && fabsf(found[i] / most - 1) < 1.0f / 256); /* before it is rounded */
        free(values);
    }
    ls_gpu_end(&g);
    ls_gpu_close(&g);
}
