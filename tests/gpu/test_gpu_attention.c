/* test_gpu_attention.c -- attention and qkv rows on a GPU. Aligned bf16 heads of a multiple of 8 go
 * to cuDNN, everything else to our own kernels; both meet the same reference. */
#include "gpu/gpu.h"

#include <math.h>
#include "base/time.h"

typedef struct shape {
    int64_t B, T, H, Hkv, D, window;
    bool start;
    float drop;
} shape;

/* q, k and v inside one [B, T, (H + 2 Hkv) D]. */
static void views(const shape *s, int64_t T, void *base, int64_t bytes, ls_heads out[3])
{
    int64_t width = (s->H + 2 * s->Hkv) * s->D;
    int64_t first[3] = {0, s->H * s->D, (s->H + s->Hkv) * s->D};

    for (int i = 0; i < 3; i++)
        out[i] = (ls_heads){(char *)base + first[i] * bytes, T * width, width, s->D};
}

static ls_heads heads(const shape *s, int64_t T, void *p)
{
    return (ls_heads){p, T * s->H * s->D, s->H * s->D, s->D};
}

/* A document begins at a token with probability 1/4. */
static ls_gpu_tensor starts(ls_gpu *g, const shape *s)
{
    ls_gpu_tensor t = ls_gpu_ints(g, "start", s->B * s->T, 4);

    for (int64_t i = 0; i < s->B * s->T; i++) {
        int64_t at = i % s->T;
        t.ints[i] = at == 0 ? 0 : t.ints[i] == 0 ? (int32_t)at : t.ints[i - 1];
    }
    ls_gpu_send(g, &t);
    return t;
}

static void attention_case(ls_gpu *g, const void *shape_)
{
    const shape *s = shape_;
    int64_t rows = s->B * s->T, width = (s->H + 2 * s->Hkv) * s->D, bytes = ls_dtype_bytes(g->type);
    ls_step_state state = {.key = {0x12345678, 0x9abcdef0}, .first_seq = 7};
    void *state_device = ls_gpu_bytes(g, "state", &state, sizeof state).device;
    ls_gpu_tensor qkv = ls_gpu_values(g, "qkv", rows * width, 1);
    ls_gpu_tensor o = ls_gpu_values(g, "o", rows * s->H * s->D, 0);
    ls_gpu_tensor lse = ls_gpu_floats(g, "lse", rows * s->H, 0);
    ls_gpu_tensor dout = ls_gpu_values(g, "dout", o.n, 1),
                  dqkv = ls_gpu_values(g, "dqkv", qkv.n, 0);
    ls_gpu_tensor start = starts(g, s);
    ls_attention_fwd a = {
        .type = g->type, .B = s->B, .T = s->T, .H = s->H, .Hkv = s->Hkv, .D = s->D};
    ls_heads q[3], d[3], hq[3], hd[3];

    views(s, s->T, qkv.device, bytes, q);
    views(s, s->T, qkv.host, 4, hq);
    views(s, s->T, dqkv.device, bytes, d);
    views(s, s->T, dqkv.host, 4, hd);
    a.window = s->window;
    a.scale = 1 / sqrtf((float)s->D);
    ls_attention_fwd r = a;
    r.type = LS_F32;
    a.q = q[0], a.k = q[1], a.v = q[2], a.o = heads(s, s->T, o.device), a.lse = lse.device;
    r.q = hq[0], r.k = hq[1], r.v = hq[2], r.o = heads(s, s->T, o.host), r.lse = lse.host;
    a.drop = (ls_dropout){.p = s->drop, .site = 3, .state = state_device};
    r.drop = (ls_dropout){.p = s->drop, .site = 3, .state = &state};
    if (s->start)
        a.start = start.device, r.start = start.ints;
    g->k->attention_fwd(g->stream, &a);
    g->reference->attention_fwd(g->cpu_stream, &r);
    ls_gpu_near(g, &o, ls_gpu_tolerance(g, LS_ROW_ATTENTION_FWD));
    ls_gpu_near(g, &lse, g->type == LS_F32 ? 4e-5 : 1e-3);

    ls_attention_bwd ba = {.type = g->type, .B = s->B, .T = s->T, .H = s->H, .Hkv = s->Hkv};
    ba.D = s->D, ba.window = s->window, ba.scale = a.scale;
    ls_attention_bwd br = ba;
    br.type = LS_F32;
    ba.q = a.q, ba.k = a.k, ba.v = a.v, ba.o = a.o, ba.dout = heads(s, s->T, dout.device);
    br.q = r.q, br.k = r.k, br.v = r.v, br.o = r.o, br.dout = heads(s, s->T, dout.host);
    ba.dq = d[0], ba.dk = d[1], ba.dv = d[2], ba.lse = lse.device, ba.start = a.start;
    br.dq = hd[0], br.dk = hd[1], br.dv = hd[2], br.lse = lse.host, br.start = r.start;
    ba.drop = a.drop, br.drop = r.drop;
    ba.scratch = ls_gpu_scratch(g, LS_ROW_ATTENTION_BWD, &ba);
    g->k->attention_bwd(g->stream, &ba);
    g->reference->attention_bwd(g->cpu_stream, &br);
    ls_gpu_near(g, &dqkv, g->type == LS_F32 ? 1e-4 : 2.5e-2);

    /* Twice the same bits, on top of what the first run left. */
    float *first = ls_gpu_fetch(g, &dqkv);
    g->k->attention_bwd(g->stream, &ba);
    float *second = ls_gpu_fetch(g, &dqkv);
    LS_CHECK(memcmp(first, second, (size_t)dqkv.n * sizeof *first) == 0);
    free(first);
    free(second);

    /* In any order: the same numbers, on top of what is there, with scratch of its own. */
    ba.any_order = true;
    ba.scratch = ls_gpu_scratch(g, LS_ROW_ATTENTION_BWD, &ba);
    g->k->attention_bwd(g->stream, &ba);
    ls_gpu_near(g, &dqkv, g->type == LS_F32 ? 1e-4 : 2.5e-2);
}

LS_TEST_SECONDS(gpu_attention_replicas_reference, 300)
{
    static const shape shapes[] = {
        {1, 1, 1, 1, 2, 0, false, 0},    {2, 17, 3, 3, 64, 0, false, 0},
        {3, 5, 4, 2, 20, 0, false, 0},   {2, 130, 4, 1, 64, 0, false, 0},
        {2, 77, 2, 2, 128, 0, false, 0}, {1, 200, 4, 2, 32, 0, true, 0},
        {2, 100, 2, 1, 48, 7, false, 0}, {1, 90, 3, 3, 40, 33, true, 0.2f},
        {1, 33, 2, 1, 200, 0, false, 0}, {1, 65, 1, 1, 96, 0, false, 0.1f}};

    ls_gpu_cases(attention_case, shapes, LS_COUNT(shapes), sizeof *shapes);
}

/* Queries with a past: the values of the same queries in a call over all positions; the bits too,
 * where our own kernels do both. */
static void past_case(ls_gpu *g, const void *shape_)
{
    const shape *s = shape_;
    int64_t past = s->T / 2 + 1, rest = s->T - past, width = (s->H + 2 * s->Hkv) * s->D;
    int64_t bytes = ls_dtype_bytes(g->type);
    ls_gpu_tensor qkv = ls_gpu_values(g, "qkv", s->B * s->T * width, 1);
    ls_gpu_tensor all = ls_gpu_values(g, "o of all", s->B * s->T * s->H * s->D, 0);
    ls_gpu_tensor some = ls_gpu_values(g, "o with a past", s->B * rest * s->H * s->D, 0);
    ls_attention_fwd a = {
        .type = g->type, .B = s->B, .T = s->T, .H = s->H, .Hkv = s->Hkv, .D = s->D};
    ls_heads q[3];

    views(s, s->T, qkv.device, bytes, q);
    a.q = q[0], a.k = q[1], a.v = q[2], a.o = heads(s, s->T, all.device);
    a.window = s->window;
    a.scale = 1 / sqrtf((float)s->D);
    g->k->attention_fwd(g->stream, &a);
    a.T = rest;
    a.past = past;
    a.q.p = (char *)a.q.p + past * width * bytes;
    a.o = heads(s, rest, some.device);
    g->k->attention_fwd(g->stream, &a);
    float *want = ls_gpu_fetch(g, &all), *got = ls_gpu_fetch(g, &some);
    bool own = g->type == LS_F32 || g->shift || s->D % 8 || s->window;
    for (int64_t b = 0; b < s->B; b++)
        for (int64_t i = 0; i < rest * s->H * s->D; i++) {
            float x = got[b * rest * s->H * s->D + i];
            float y = want[(b * s->T + past) * s->H * s->D + i];
            LS_CHECK_NEAR(x, y, own ? 0 : 1.6e-2 * (1 + fabs((double)y)));
        }
    free(want);
    free(got);
}

LS_TEST_SECONDS(gpu_attention_with_a_past, 60)
{
    static const shape shapes[] = {{2, 70, 4, 2, 64, 0, false, 0},
                                   {1, 100, 2, 2, 36, 11, false, 0},
                                   {1, 3, 1, 1, 8, 0, false, 0}};

    ls_gpu_cases(past_case, shapes, LS_COUNT(shapes), sizeof *shapes);
}

/* --- qkv ------------------------------------------------------------------------------------ */

typedef struct qkv_shape {
    int64_t B, T, H, Hkv, D, past, leaves;
    bool rope, norms, accumulate;
} qkv_shape;

/* One head by its formula, in double: norm, then rotation. */
static void head_forward(const qkv_shape *s, const float *x, const float *w, const float *rope,
                         double *y, double *rstd_out)
{
    double square = 0, rstd = 1;

    for (int64_t i = 0; i < s->D; i++)
        square += (double)x[i] * (double)x[i];
    if (w)
        rstd = 1 / sqrt(square / (double)s->D + 1e-6);
    for (int64_t i = 0; i < s->D; i++)
        y[i] = (double)x[i] * (w ? rstd * (double)w[i] : 1);
    for (int64_t i = 0; rope && i < s->D / 2; i++) {
        double c = (double)rope[2 * i], sine = (double)rope[2 * i + 1];
        double a = y[i], b = y[i + s->D / 2];
        y[i] = a * c - b * sine;
        y[i + s->D / 2] = b * c + a * sine;
    }
    *rstd_out = rstd;
}

/* Its gradient: dx, and g h for the norm's weight. */
static void head_backward(const qkv_shape *s, const float *x, const float *w, const float *rope,
                          const float *d, double rstd, double *dx, double *dw)
{
    double g[256], mean = 0;

    for (int64_t i = 0; i < s->D; i++)
        g[i] = (double)d[i];
    for (int64_t i = 0; rope && i < s->D / 2; i++) {
        double c = (double)rope[2 * i], sine = (double)rope[2 * i + 1];
        double a = g[i], b = g[i + s->D / 2];
        g[i] = a * c + b * sine;
        g[i + s->D / 2] = b * c - a * sine;
    }
    for (int64_t i = 0; i < s->D; i++) {
        if (w) {
            mean += g[i] * (double)w[i] * (double)x[i] * rstd / (double)s->D;
            dw[i] += g[i] * (double)x[i] * rstd;
        }
        dx[i] = g[i];
    }
    for (int64_t i = 0; w && i < s->D; i++)
        dx[i] = rstd * (g[i] * (double)w[i] - (double)x[i] * rstd * mean);
}

static void qkv_case(ls_gpu *g, const void *shape_)
{
    const qkv_shape *s = shape_;
    int64_t n = s->H + 2 * s->Hkv, rows = s->B * s->T, D = s->D, half = D / 2;
    float start = s->accumulate ? 1.0f : 0.0f;
    ls_gpu_tensor packed = ls_gpu_values(g, "packed", rows * n * D, 1);
    ls_gpu_tensor q = ls_gpu_values(g, "q", rows * s->H * D, 0);
    ls_gpu_tensor k = ls_gpu_values(g, "k", rows * s->Hkv * D, 0);
    ls_gpu_tensor v = ls_gpu_values(g, "v", rows * s->Hkv * D, 0);
    ls_gpu_tensor rope = ls_gpu_floats(g, "rope", (s->past + s->T) * (half ? half : 1) * 2, 1);
    ls_gpu_tensor wq = ls_gpu_values(g, "q_norm", D, 1), wk = ls_gpu_values(g, "k_norm", D, 1);
    ls_gpu_tensor rstd = ls_gpu_floats(g, "rstd", rows * (s->H + s->Hkv), 0);
    ls_gpu_tensor dq = ls_gpu_floats(g, "dq_norm", D, start),
                  dk = ls_gpu_floats(g, "dk_norm", D, start);
    ls_gpu_tensor dheads = ls_gpu_values(g, "dheads", rows * n * D, 1);
    ls_gpu_tensor back = ls_gpu_values(g, "back", rows * n * D, 0);
    ls_qkv a = {.type = g->type, .packed = packed.device, .B = s->B, .T = s->T, .H = s->H};
    double *sums = calloc((size_t)(2 * D), sizeof *sums);

    LS_CHECK(sums);
    for (int64_t i = 0; i < rope.n / 2; i++) {
        double angle = 3 * (double)rope.host[2 * i];
        rope.host[2 * i] = (float)cos(angle);
        rope.host[2 * i + 1] = (float)sin(angle);
    }
    ls_gpu_send(g, &rope);
    a.Hkv = s->Hkv, a.D = D, a.past = s->past, a.eps = 1e-6f;
    a.rope = s->rope ? rope.device : NULL;
    if (s->norms)
        a.q_norm = wq.device, a.k_norm = wk.device, a.rstd = rstd.device;
    a.q = (ls_heads){q.device, s->H * s->T * D, D, s->T * D}; /* heads before tokens */
    a.k = (ls_heads){k.device, s->T * s->Hkv * D, s->Hkv * D, D};
    a.v = (ls_heads){v.device, s->T * s->Hkv * D, s->Hkv * D, D};
    g->k->qkv_fwd(g->stream, &a);

    ls_qkv b = a; /* gradients lie in the packed order themselves */
    int64_t bytes = ls_dtype_bytes(g->type);
    b.packed = back.device, b.product = packed.device;
    b.q = (ls_heads){dheads.device, s->T * n * D, n * D, D};
    b.k = (ls_heads){(char *)dheads.device + s->H * D * bytes, s->T * n * D, n * D, D};
    b.v = (ls_heads){(char *)dheads.device + (s->H + s->Hkv) * D * bytes, s->T * n * D, n * D, D};
    b.leaves = s->leaves, b.accumulate = s->accumulate;
    if (s->norms)
        b.dq_norm = dq.device, b.dk_norm = dk.device;
    b.scratch = ls_gpu_scratch(g, LS_ROW_QKV_BWD, &b);
    g->k->qkv_bwd(g->stream, &b);

    for (int64_t row = 0; row < rows; row++)
        for (int64_t h = 0; h < n; h++) {
            int64_t at = row * n * D + h * D, batch = row / s->T, t = row % s->T;
            bool turned = h < s->H + s->Hkv;
            const float *w = !s->norms || !turned ? NULL : h < s->H ? wq.host : wk.host;
            const float *angles = s->rope && turned ? rope.host + (s->past + t) * half * 2 : NULL;
            float *to = h < s->H ? q.host + ((batch * s->H + h) * s->T + t) * D
                        : turned ? k.host + (row * s->Hkv + h - s->H) * D
                                 : v.host + (row * s->Hkv + h - s->H - s->Hkv) * D;
            double y[256], dx[256], r;
            head_forward(s, packed.host + at, w, angles, y, &r);
            if (w)
                rstd.host[row * (s->H + s->Hkv) + h] = (float)r;
            head_backward(s, packed.host + at, w, angles, dheads.host + at, r, dx,
                          sums + (h < s->H ? 0 : D));
            for (int64_t i = 0; i < D; i++) {
                to[i] = (float)y[i];
                back.host[at + i] = (float)dx[i];
            }
        }
    double tolerance = g->type == LS_F32 ? 4e-6 : 1.6e-2;
    ls_gpu_near(g, &q, tolerance);
    ls_gpu_near(g, &k, tolerance);
    ls_gpu_near(g, &v, tolerance);
    ls_gpu_near(g, &back, tolerance);
    if (s->norms) {
        ls_gpu_near(g, &rstd, 4e-6);
        for (int64_t i = 0; i < D; i++) {
            dq.host[i] = (float)(sums[i] + (s->accumulate ? (double)dq.host[i] : 0));
            dk.host[i] = (float)(sums[D + i] + (s->accumulate ? (double)dk.host[i] : 0));
        }
        ls_gpu_near(g, &dq, 5e-5);
        ls_gpu_near(g, &dk, 5e-5);
    }
    free(sums);
}

LS_TEST_SECONDS(gpu_qkv_replicas_its_formula, 120)
{
    static const qkv_shape shapes[] = {
        {1, 1, 1, 1, 2, 0, 1, true, false, false},  {2, 17, 3, 3, 64, 0, 1, true, false, false},
        {3, 5, 4, 2, 20, 3, 1, true, false, false}, {2, 9, 2, 1, 33, 0, 1, false, false, false},
        {2, 15, 4, 2, 64, 0, 3, true, true, false}, {1, 100, 4, 1, 128, 5, 5, true, true, true},
        {2, 7, 2, 2, 35, 0, 2, false, true, false}};

    ls_gpu_cases(qkv_case, shapes, LS_COUNT(shapes), sizeof *shapes);
}

/* Views of the packed tensor itself are a valid target. */
LS_TEST(gpu_qkv_page_reuse_in_place)
{
    enum { B = 2, T = 5, H = 4, HKV = 2, D = 16, W = (H + 2 * HKV) * D };
    ls_gpu g;

    ls_gpu_open(&g);
    for (int type = 0; type < 2; type++) {
        ls_gpu_begin(&g, type ? LS_BF16 : LS_F32, 0);
        int64_t bytes = ls_dtype_bytes(g.type);
        ls_gpu_tensor packed = ls_gpu_values(&g, "packed", B * T * W, 1);
        ls_gpu_tensor discrete = ls_gpu_values(&g, "apart", B * T * W, 0);
        ls_gpu_tensor rope = ls_gpu_floats(&g, "rope", T * D, 1);
        ls_qkv a = {.type = g.type, .B = B, .T = T, .H = H, .Hkv = HKV, .D = D};
        a.packed = packed.device, a.rope = rope.device;
        for (int in_place = 0; in_place < 2; in_place++) {
            char *to = in_place ? packed.device : discrete.device;
            a.q = (ls_heads){to, T * W, W, D};
            a.k = (ls_heads){to + H * D * bytes, T * W, W, D};
            a.v = (ls_heads){to + (H + HKV) * D * bytes, T * W, W, D};
            g.k->qkv_fwd(g.stream, &a);
        }
        float *x = ls_gpu_fetch(&g, &packed), *y = ls_gpu_fetch(&g, &discrete);
        LS_CHECK(memcmp(x, y, B * T * W * sizeof *x) == 0);
        free(x);
        free(y);
        ls_gpu_end(&g);
    }
    ls_gpu_close(&g);
}
