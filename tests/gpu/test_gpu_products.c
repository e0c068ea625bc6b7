/* test_gpu_products.c -- linear rows and head on a GPU against the reference. */
#include "gpu/gpu.h"

#include <math.h>
#include <unistd.h>
#include "base/file.h"
#include "base/time.h"

typedef struct linear_shape {
    int64_t M, N, K, leaves;
    ls_act act;
    ls_layout layout;
    bool bias, keep, accumulate;
    int64_t wider; /* columns that rows of y are longer by */
    bool stream;   /* forward adds to another tensor */
} linear_shape;

/* The dense reference of a product into some columns: gaps stay NaN. */
static void spread(const float *dense, int64_t M, int64_t N, float *out, int64_t ld)
{
    for (int64_t m = 0; m < M; m++)
        memcpy(out + m * ld, dense + m * N, (size_t)N * sizeof *out);
}

static void gather(const float *in, int64_t ld, int64_t M, int64_t N, float *dense)
{
    for (int64_t m = 0; m < M; m++)
        memcpy(dense + m * N, in + m * ld, (size_t)N * sizeof *dense);
}

static void forward_case(ls_gpu *g, const void *shape)
{
    const linear_shape *s = shape;
    int64_t M = s->M, N = s->N, K = s->K, ld = N + s->wider;
    ls_gpu_tensor x = ls_gpu_values(g, "x", M * K, 1), w = ls_gpu_values(g, "w", K * N, 0.5f);
    ls_gpu_tensor b = ls_gpu_values(g, "b", N, 1), z = ls_gpu_values(g, "z", M * N, 0);
    ls_gpu_tensor y = ls_gpu_values(g, "y", M * ld, s->accumulate ? 1.0f : 0.0f);
    float *dense = malloc((size_t)(M * N) * sizeof *dense);
    ls_linear_fwd a = {.type = g->type, .M = M, .N = N, .K = K, .layout = s->layout, .act = s->act};
    ls_linear_fwd r = a;

    LS_CHECK(dense);
    r.type = LS_F32;
    a.x = x.device, a.w = w.device, a.y = y.device;
    r.x = x.host, r.w = w.host, r.y = dense;
    a.ldy = s->wider ? ld : 0;
    a.accumulate = s->accumulate;
    if (s->bias)
        a.b = b.device, r.b = s->accumulate ? NULL : b.host;
    if (s->keep)
        a.z = z.device, r.z = z.host;
    if (s->accumulate)
        r.act = LS_ACT_NONE;
    if (s->stream) {
        ls_gpu_tensor add = ls_gpu_values(g, "add", M * N, 3);
        a.add = add.device, r.add = add.host;
    }
    g->k->linear_fwd(g->stream, &a);
    g->reference->linear_fwd(g->cpu_stream, &r);
    for (int64_t i = 0; s->accumulate && i < M * N; i++)
        dense[i] += y.host[i / N * ld + i % N];
    spread(dense, M, N, y.host, ld);
    ls_gpu_near(g, &y, ls_gpu_tolerance(g, LS_ROW_LINEAR_FWD));
    if (s->keep)
        ls_gpu_near(g, &z, ls_gpu_tolerance(g, LS_ROW_LINEAR_FWD));
    free(dense);
}

static void input_case(ls_gpu *g, const void *shape)
{
    const linear_shape *s = shape;
    int64_t M = s->M, N = s->N, K = s->K, ld = N + s->wider;
    ls_gpu_tensor dy = ls_gpu_values(g, "dy", M * ld, 1), w = ls_gpu_values(g, "w", K * N, 0.5f);
    ls_gpu_tensor z = ls_gpu_values(g, "z", M * K, 2);
    ls_gpu_tensor dx = ls_gpu_values(g, "dx", M * K, s->accumulate ? 1.0f : 0.0f);
    float *dense = malloc((size_t)(M * N) * sizeof *dense);
    ls_linear_bwd_x a = {.type = g->type, .M = M, .N = N, .K = K, .layout = s->layout};
    a.act = s->accumulate ? LS_ACT_NONE : s->act;
    a.accumulate = s->accumulate;
    ls_linear_bwd_x r = a;

    LS_CHECK(dense);
    gather(dy.host, ld, M, N, dense);
    r.type = LS_F32;
    a.ldy = s->wider ? ld : 0;
    a.dy = dy.device, a.w = w.device, a.z = z.device, a.dx = dx.device;
    r.dy = dense, r.w = w.host, r.z = z.host, r.dx = dx.host;
    g->k->linear_bwd_x(g->stream, &a);
    g->reference->linear_bwd_x(g->cpu_stream, &r);
    ls_gpu_near(g, &dx, ls_gpu_tolerance(g, LS_ROW_LINEAR_BWD_X));
    free(dense);
}

static void weight_case(ls_gpu *g, const void *shape)
{
    const linear_shape *s = shape;
    int64_t M = s->M, N = s->N, K = s->K, ld = N + s->wider;
    float start = s->accumulate ? 1.0f : 0.0f;
    ls_gpu_tensor x = ls_gpu_values(g, "x", M * K, 1), dy = ls_gpu_values(g, "dy", M * ld, 0.5f);
    ls_gpu_tensor dw = ls_gpu_floats(g, "dw", K * N, start), db = ls_gpu_floats(g, "db", N, start);
    float *dense = malloc((size_t)(M * N) * sizeof *dense);
    ls_linear_bwd_w a = {.type = g->type, .M = M, .N = N, .K = K, .layout = s->layout};
    a.leaves = s->leaves;
    a.accumulate = s->accumulate;
    ls_linear_bwd_w r = a;

    LS_CHECK(dense);
    gather(dy.host, ld, M, N, dense);
    r.type = LS_F32;
    a.ldy = s->wider ? ld : 0;
    a.x = x.device, a.dy = dy.device, a.dw = dw.device;
    r.x = x.host, r.dy = dense, r.dw = dw.host;
    if (s->bias)
        a.db = db.device, r.db = db.host;
    g->k->linear_bwd_w(g->stream, &a);
    g->reference->linear_bwd_w(g->cpu_stream, &r);
    ls_gpu_near(g, &dw, 5e-5);
    if (s->bias)
        ls_gpu_near(g, &db, 5e-5);
    if (s->bias && !s->accumulate) { /* db alone */
        ls_gpu_tensor alone = ls_gpu_floats(g, "db alone", N, 0);
        memcpy(alone.host, db.host, (size_t)N * sizeof *alone.host);
        a.dw = NULL, a.db = alone.device;
        g->k->linear_bwd_w(g->stream, &a);
        ls_gpu_near(g, &alone, 5e-5);
    }
    free(dense);
}

static const linear_shape linear_shapes[] = {
    {1, 1, 1, 1, LS_ACT_NONE, LS_LAYOUT_KN, true, false, false, 0, false},
    {3, 5, 7, 3, LS_ACT_GELU, LS_LAYOUT_NK, true, true, false, 0, false},
    {17, 33, 65, 1, LS_ACT_SILU, LS_LAYOUT_KN, false, true, false, 0, false},
    {20, 64, 48, 5, LS_ACT_GELU, LS_LAYOUT_KN, true, true, false, 0, false},
    {20, 64, 48, 4, LS_ACT_GELU, LS_LAYOUT_NK, false, true, false, 0, false},
    {128, 96, 384, 1, LS_ACT_GELU, LS_LAYOUT_NK, true, false, false, 16, false},
    {64, 40, 72, 2, LS_ACT_NONE, LS_LAYOUT_KN, true, false, true, 24, false},
    {50, 31, 17, 1, LS_ACT_SILU, LS_LAYOUT_NK, true, false, false, 3, false},
    {400, 256, 128, 1, LS_ACT_NONE, LS_LAYOUT_NK, true, true, false, 0, false},
    {1, 200, 801, 1, LS_ACT_NONE, LS_LAYOUT_NK, false, false, true, 0, false},
    {128, 96, 384, 1, LS_ACT_NONE, LS_LAYOUT_KN, true, false, false, 0, true},
    {17, 33, 65, 1, LS_ACT_NONE, LS_LAYOUT_NK, false, false, false, 0, true},
};

LS_TEST_SECONDS(gpu_linear_fwd_replicas_reference, 120)
{
    ls_gpu_cases(forward_case, linear_shapes, LS_COUNT(linear_shapes), sizeof *linear_shapes);
}

LS_TEST_SECONDS(gpu_linear_bwd_x_replicas_reference, 120)
{
    ls_gpu_cases(input_case, linear_shapes, LS_COUNT(linear_shapes), sizeof *linear_shapes);
}

LS_TEST_SECONDS(gpu_linear_bwd_w_replicas_reference, 120)
{
    ls_gpu_cases(weight_case, linear_shapes, LS_COUNT(linear_shapes), sizeof *linear_shapes);
}

/* --- head ----------------------------------------------------------------------------------- */

typedef struct head_shape {
    int64_t M, C, V, leaves;
    bool grad, dw, accumulate;
    bool weighted; /* rows of both signs */
} head_shape;

static void head_case(ls_gpu *g, const void *shape)
{
    const head_shape *s = shape;
    ls_step_state state = {.grad_scale = 0.25f};
    ls_gpu_tensor h = ls_gpu_values(g, "h", s->M * s->C, 1);
    ls_gpu_tensor w = ls_gpu_values(g, "w", s->V * s->C, 1 / sqrtf((float)s->C));
    ls_gpu_tensor targets = ls_gpu_ints(g, "targets", s->M, (int32_t)s->V);
    ls_gpu_tensor losses = ls_gpu_floats(g, "losses", s->M, 0);
    ls_gpu_tensor dh = ls_gpu_values(g, "dh", s->M * s->C, 0);
    ls_gpu_tensor dw = ls_gpu_floats(g, "dw", s->V * s->C, s->accumulate ? 1.0f : 0.0f);
    ls_head a = {.type = g->type, .M = s->M, .C = s->C, .V = s->V, .leaves = s->leaves}, r;

    for (int64_t i = 2; i < s->M; i += 5)
        targets.ints[i] = -1;
    ls_gpu_send(g, &targets);
    if (s->V > 10000) { /* weights around 1, exact in bf16: dh shows whether softmax sums to 1 */
        for (int64_t i = 0; i < w.n; i++)
            w.host[i] = 1 + rintf(8 * w.host[i]) / 8;
        ls_gpu_send(g, &w);
    }
    a.accumulate = s->accumulate;
    ls_gpu_tensor weights = ls_gpu_floats(g, "weights", s->M, 1);
    r = a;
    r.type = LS_F32;
    if (s->weighted)
        a.weights = weights.device, r.weights = weights.host;
    a.h = h.device, a.w = w.device, a.targets = targets.device, a.losses = losses.device;
    r.h = h.host, r.w = w.host, r.targets = targets.ints, r.losses = losses.host;
    a.state = ls_gpu_bytes(g, "state", &state, sizeof state).device, r.state = &state;
    if (s->grad)
        a.dh = dh.device, r.dh = dh.host;
    if (s->dw)
        a.dw = dw.device, r.dw = dw.host;
    a.scratch = ls_gpu_scratch(g, LS_ROW_HEAD, &a);
    r.scratch = ls_gpu_host_scratch(g, LS_ROW_HEAD, &r);
    g->k->head(g->stream, &a);
    g->reference->head(g->cpu_stream, &r);
    ls_gpu_near(g, &losses, ls_gpu_tolerance(g, LS_ROW_HEAD));
    if (s->grad)
        ls_gpu_near(g, &dh, ls_gpu_tolerance(g, LS_ROW_HEAD) / 4);
    if (s->dw)
        ls_gpu_near(g, &dw, ls_gpu_tolerance(g, LS_ROW_HEAD) / 2);
}

LS_TEST_SECONDS(gpu_head_replicas_reference, 120)
{
    static const head_shape shapes[] = {
        {1, 1, 2, 1, true, true, false, false},
        {7, 17, 33, 1, true, true, true, false},
        {30, 64, 1001, 5, true, true, true, false},
        {24, 40, 50, 3, true, true, false, false},
        {40, 96, 2050, 1, true, false, false, false},
        {9, 24, 513, 1, false, false, false, false},
        {300, 64, 5000, 1, true, true, false, false},
        {3, 8, 60001, 1, true, true, false, false},   /* in fp32 more than shared memory holds */
        {300, 8, 16387, 1, true, true, false, false}, /* in bf16 two rows of these fit there */
        {40, 16, 50304, 2, true, true, true, false},
        {1, 16, 20000, 1, false, false, false, false},
        {5, 8, 128259, 1, true, true, false, false}, /* no row fits there */
        {24, 40, 50, 3, true, true, false, true},
        {40, 96, 2050, 1, true, true, true, true},
        {300, 8, 16387, 1, true, true, false, true},
        {5, 8, 128259, 1, true, true, false, true},
    };

    ls_gpu_cases(head_case, shapes, LS_COUNT(shapes), sizeof *shapes);
}

LS_TEST(gpu_head_reports_a_bad_target)
{
    ls_gpu g;

    ls_gpu_open(&g);
    ls_gpu_begin(&g, LS_F32, 0);
    ls_gpu_tensor h = ls_gpu_values(&g, "h", 4 * 8, 1), w = ls_gpu_values(&g, "w", 10 * 8, 1);
    ls_gpu_tensor targets = ls_gpu_ints(&g, "targets", 4, 10),
                  losses = ls_gpu_floats(&g, "l", 4, 0);
    ls_head a = {.M = 4, .C = 8, .V = 10, .leaves = 1};
    targets.ints[2] = 10;
    ls_gpu_send(&g, &targets);
    a.h = h.device, a.w = w.device, a.targets = targets.device, a.losses = losses.device;
    a.scratch = ls_gpu_scratch(&g, LS_ROW_HEAD, &a);
    g.k->head(g.stream, &a);
    LS_CHECK_FAILS(ls_stream_sync(g.stream, ls_time_now_ns() + 10 * LS_NS_PER_S), LS_EDATA,
                   "target 10 of row 2");
    ls_gpu_close(&g);
}

/* With several leaves the bits are those of one call for each leaf, joined by `add`. */
LS_TEST_SECONDS(gpu_leaves_are_a_tree, 60)
{
    enum { LEAVES = 5, ROWS = 24, N = 64, K = 48 };
    ls_gpu g;
    float *got, *want;

    ls_gpu_open(&g);
    for (int t = 0; t < 2; t++) {
        ls_gpu_begin(&g, t ? LS_BF16 : LS_F32, 0);
        ls_gpu_tensor x = ls_gpu_values(&g, "x", LEAVES * ROWS * K, 1);
        ls_gpu_tensor dy = ls_gpu_values(&g, "dy", LEAVES * ROWS * N, 1);
        ls_gpu_tensor dw = ls_gpu_floats(&g, "dw", K * N, 0), db = ls_gpu_floats(&g, "db", N, 0);
        ls_gpu_tensor part = ls_gpu_floats(&g, "part", LEAVES * (K * N + N), 0);
        ls_linear_bwd_w a = {.type = g.type, .M = LEAVES * ROWS, .N = N, .K = K, .leaves = LEAVES};
        a.x = x.device, a.dy = dy.device, a.dw = dw.device, a.db = db.device;
        g.k->linear_bwd_w(g.stream, &a);
        float *p = part.device;
        int64_t bytes = ls_dtype_bytes(g.type);
        a.M = ROWS;
        a.leaves = 1;
        for (int i = 0; i < LEAVES; i++, p += K * N + N) {
            a.x = (char *)x.device + i * ROWS * K * bytes;
            a.dy = (char *)dy.device + i * ROWS * N * bytes;
            a.dw = p, a.db = p + K * N;
            g.k->linear_bwd_w(g.stream, &a);
        }
        p = part.device;
        for (int step = 1; step < LEAVES; step *= 2)
            for (int i = 0; i + step < LEAVES; i += 2 * step)
                g.k->add(g.stream, &(ls_add){.a = p + i * (K * N + N),
                                             .b = p + (i + step) * (K * N + N),
                                             .out = p + i * (K * N + N),
                                             .n = K * N + N});
        got = ls_gpu_fetch(&g, &dw);
        want = ls_gpu_fetch(&g, &part);
        LS_CHECK(memcmp(got, want, K * N * sizeof *got) == 0);
        free(got);
        got = ls_gpu_fetch(&g, &db);
        LS_CHECK(memcmp(got, want + K * N, N * sizeof *got) == 0);
        free(got);
        free(want);
        ls_gpu_end(&g);
    }
    ls_gpu_close(&g);
}

/* dw of one product, from a device that was just opened. */
static float *fresh_product(void)
{
    enum { M = 4096, N = 256, K = 192 };
    ls_gpu g;

    ls_gpu_open(&g);
    ls_gpu_begin(&g, LS_BF16, 0);
    g.seed = 77;
    ls_gpu_tensor x = ls_gpu_values(&g, "x", M * K, 1), dy = ls_gpu_values(&g, "dy", M * N, 1);
    ls_gpu_tensor dw = ls_gpu_floats(&g, "dw", K * N, 0);
    ls_linear_bwd_w a = {.type = LS_BF16, .M = M, .N = N, .K = K, .leaves = 1};
    a.x = x.device, a.dy = dy.device, a.dw = dw.device;
    g.k->linear_bwd_w(g.stream, &a);
    float *got = ls_gpu_fetch(&g, &dw);
    ls_gpu_end(&g);
    ls_gpu_close(&g);
    return got;
}

/* What was raced once is written down, and the next process has its bits. */
LS_TEST_SECONDS(gpu_products_remember_their_algorithms, 60)
{
    char here[2048], cache[2200];
    ls_str names;
    int files = 0;

    LS_CHECK(getcwd(here, sizeof here));
    snprintf(cache, sizeof cache, "%s/cache", here);
    LS_CHECK_EQ(setenv("XDG_CACHE_HOME", cache, 1), 0);
    unsetenv("LINESHAFT_CUDA_ALGORITHMS");
    ls_str_init(&names);
    float *first = fresh_product(), *second = fresh_product();
    LS_CHECK(memcmp(first, second, 256 * 192 * sizeof *first) == 0);
    LS_CHECK_OK(ls_file_glob("cache/lineshaft/memo/*", &names, &files));
    LS_CHECK_EQ(files, 1);
    ls_str_release(&names);
    free(first);
    free(second);
}

/* tf32 rounds what is multiplied to 10 bits of fraction: near fp32, and not equal to it; where it
 * is not allowed, fp32 is full. */
LS_TEST_SECONDS(gpu_tf32_is_near_fp32_and_only_where_allowed, 60)
{
    enum { M = 256, N = 192, K = 512 };
    ls_gpu g;

    ls_gpu_open(&g);
    ls_gpu_begin(&g, LS_F32, 0);
    ls_gpu_tensor x = ls_gpu_values(&g, "x", M * K, 1), w = ls_gpu_values(&g, "w", K * N, 0.05f);
    ls_gpu_tensor dy = ls_gpu_values(&g, "dy", M * N, 1);
    const char *const names[] = {"linear_fwd", "linear_bwd_x", "linear_bwd_w"};
    const int64_t sizes[] = {M * N, M * K, K * N};
    float *of[2][3];
    for (int t = 0; t < 2; t++) {
        ls_gpu_tensor y = ls_gpu_floats(&g, "y", M * N, 0), dx = ls_gpu_floats(&g, "dx", M * K, 0);
        ls_gpu_tensor dw = ls_gpu_floats(&g, "dw", K * N, 0);
        ls_linear_fwd f = {.x = x.device, .w = w.device, .y = y.device, .M = M, .N = N, .K = K};
        ls_linear_bwd_x bx = {.dy = dy.device, .w = w.device, .dx = dx.device, .M = M, .N = N};
        ls_linear_bwd_w bw = {.x = x.device, .dy = dy.device, .dw = dw.device, .M = M, .N = N};
        f.tf32 = bx.tf32 = bw.tf32 = t;
        f.layout = bx.layout = bw.layout = LS_LAYOUT_NK;
        bx.K = bw.K = K;
        bw.leaves = 1;
        g.k->linear_fwd(g.stream, &f);
        g.k->linear_bwd_x(g.stream, &bx);
        g.k->linear_bwd_w(g.stream, &bw);
        of[t][0] = ls_gpu_fetch(&g, &y);
        of[t][1] = ls_gpu_fetch(&g, &dx);
        of[t][2] = ls_gpu_fetch(&g, &dw);
    }
    double farthest = 0;
    for (int i = 0; i < 3; i++) {
        double ep_group = 0, most = 0;
        for (int64_t k = 0; k < sizes[i]; k++) {
            ep_group = fmax(ep_group, fabs((double)of[0][i][k] - (double)of[1][i][k]));
            most = fmax(most, fabs((double)of[0][i][k]));
        }
        if (!(ep_group < 4e-3 * most))
            ls_test_fail(__FILE__, __LINE__, "%s: tf32 is %.3g away of %.3g", names[i], ep_group,
                         most);
        farthest = fmax(farthest, ep_group / most);
        free(of[0][i]);
        free(of[1][i]);
    }
    LS_CHECK(farthest > 1e-6); /* of some it is the faster one; the others may stay fp32 */
    ls_gpu_end(&g);
    ls_gpu_close(&g);
}
