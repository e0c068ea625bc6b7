/* test_gpu_optim.c -- rows of optimizers on the GPU, against the reference; adamw is in
 * test_gpu_rows.c. */
#include "gpu/gpu.h"

#include <math.h>

static const ls_step_state step_state = {.lr = 1e-2f,
                                         .beta1 = 0.9f,
                                         .beta2 = 0.99f,
                                         .eps = 1e-8f,
                                         .weight_decay = 0.1f,
                                         .bias1 = 0.19f,
                                         .bias2 = 0.0199f,
                                         .momentum = 0.95f,
                                         .gain = 0.7f,
                                         .nesterov = true};
static const ls_norm_result good = {.norm = 3, .factor = 0.5f, .bad_block = -1};
static const ls_norm_result bad = {.norm = 3, .bad_block = 2};

/* --- optimizers with one moment ---------------------------------------------------------------
 */

typedef void one_moment_row(const ls_kernels *k, ls_stream *stream, const ls_optimizer_update *a);

static void run_lion(const ls_kernels *k, ls_stream *stream, const ls_optimizer_update *a)
{
    k->lion(stream, a);
}

static void run_sgd(const ls_kernels *k, ls_stream *stream, const ls_optimizer_update *a)
{
    k->sgd(stream, a);
}

typedef struct one_moment_shape {
    one_moment_row *run;
    int64_t n;
    int64_t gap; /* of w before m and the gradient: 4 numbers at a time where it is a multiple */
    bool bad;
} one_moment_shape;

static void one_moment_case(ls_gpu *g, const void *shape)
{
    const one_moment_shape *s = shape;
    const ls_norm_result *result = s->bad ? &bad : &good;
    int64_t half = ls_round_up(s->n / 2, 4);
    const ls_optimizer_span spans[2] = {
        {.count = half, .w_first = s->gap, .decay = 1, .rate = 1},
        {.first = half, .w_first = half + s->gap, .count = s->n - half, .rate = 0.5f}};
    ls_gpu_tensor w = ls_gpu_floats(g, "w", s->n + s->gap, 1);
    ls_gpu_tensor m = ls_gpu_floats(g, "m", s->n, 0.1f), grad = ls_gpu_floats(g, "grad", s->n, 1);
    ls_gpu_tensor copy = ls_gpu_values(g, "copy", s->n + s->gap, 0);
    ls_optimizer_update a = {.n_spans = 2}, r = a;

    a.spans = ls_gpu_bytes(g, "spans", spans, sizeof spans).device;
    a.state = ls_gpu_bytes(g, "state", &step_state, sizeof step_state).device;
    a.result = ls_gpu_bytes(g, "result", result, sizeof *result).device;
    a.w = w.device, a.m = m.device, a.grad = grad.device;
    a.copy = copy.device, a.copy_type = g->type;
    r.spans = spans, r.state = &step_state, r.result = result;
    r.w = w.host, r.m = m.host, r.grad = grad.host;
    s->run(g->k, g->stream, &a);
    s->run(g->reference, g->cpu_stream, &r);
    ls_gpu_near(g, &m, 2e-6);
    ls_gpu_near(g, &w, 2e-6);
    for (int i = 0; i < 2 && !s->bad; i++)
        memcpy(copy.host + spans[i].w_first, w.host + spans[i].w_first,
               (size_t)spans[i].count * sizeof(float));
    ls_gpu_near(g, &copy, g->type == LS_F32 ? 2e-6 : 4e-3);
}

LS_TEST_SECONDS(gpu_one_moment_equals_reference, 60)
{
    static const one_moment_shape shapes[] = {
        {run_lion, 8, 4, false},       {run_lion, 1001, 3, false}, {run_lion, 100003, 64, false},
        {run_lion, 1000, 4, true},     {run_sgd, 8, 4, false},     {run_sgd, 1001, 3, false},
        {run_sgd, 3000001, 64, false}, {run_sgd, 1000, 4, true}};

    ls_gpu_cases(one_moment_case, shapes, LS_COUNT(shapes), sizeof *shapes);
}

/* --- lamb ------------------------------------------------------------------------------------- */

typedef struct lamb_shape {
    int64_t n, piece; /* three tensors, the second a vector */
    bool bad;
} lamb_shape;

enum { TENSORS = 3, MOST_PIECES = 512, W_GAP = 64 };

/* The lists, with everything else left out. */
static ls_lamb cut(const lamb_shape *s, ls_lamb_piece *pieces, ls_lamb_tensor *tensors)
{
    ls_lamb a = {.n = s->n, .n_tensors = TENSORS};

    for (int t = 0; t < TENSORS; t++) {
        int64_t end = t == 0 ? s->n / 2 : t == 1 ? s->n / 2 + s->n / 8 : s->n, next;
        tensors[t] = (ls_lamb_tensor){.first = a.n_pieces, .adapts = t != 1};
        for (int64_t at = t == 0   ? 0
                          : t == 1 ? s->n / 2
                                   : s->n / 2 + s->n / 8;
             at < end; at = next) {
            next = ls_min_i64(end, (at / s->piece + 1) * s->piece);
            LS_CHECK(a.n_pieces < MOST_PIECES);
            pieces[a.n_pieces] = (ls_lamb_piece){.first = at,
                                                 .count = next - at,
                                                 .w_first = at + W_GAP,
                                                 .g_first = at,
                                                 .number = a.n_pieces,
                                                 .tensor = t,
                                                 .decay = t != 1 ? 1.0f : 0.0f};
            a.n_pieces++;
        }
        tensors[t].count = a.n_pieces - tensors[t].first;
    }
    a.n_squares = a.n_pieces;
    return a;
}

static void lamb_case(ls_gpu *g, const void *shape)
{
    static ls_lamb_piece pieces[MOST_PIECES];
    ls_lamb_tensor tensors[TENSORS];
    const lamb_shape *s = shape;
    const ls_norm_result *result = s->bad ? &bad : &good;
    ls_lamb a = cut(s, pieces, tensors), r = a;
    ls_gpu_tensor w = ls_gpu_floats(g, "w", s->n + W_GAP, 1), m = ls_gpu_floats(g, "m", s->n, 0.1f);
    ls_gpu_tensor v = ls_gpu_floats(g, "v", s->n, 0.1f), grad = ls_gpu_floats(g, "grad", s->n, 1);
    ls_gpu_tensor squares = ls_gpu_floats(g, "squares", 2 * a.n_squares, 1);
    ls_gpu_tensor ratios = ls_gpu_floats(g, "ratios", TENSORS, 1);
    ls_gpu_tensor copy = ls_gpu_values(g, "copy", s->n + W_GAP, 0);

    for (int64_t i = 0; i < s->n; i++)
        v.host[i] = fabsf(v.host[i]) + 0.1f;
    ls_gpu_send(g, &v);
    a.pieces = ls_gpu_bytes(g, "pieces", pieces, a.n_pieces * (int64_t)sizeof *pieces).device;
    a.tensors = ls_gpu_bytes(g, "tensors", tensors, sizeof tensors).device;
    a.state = ls_gpu_bytes(g, "state", &step_state, sizeof step_state).device;
    a.result = ls_gpu_bytes(g, "result", result, sizeof *result).device;
    a.w = w.device, a.m = m.device, a.v = v.device, a.grad = grad.device;
    a.squares = squares.device, a.ratios = ratios.device;
    a.copy = copy.device, a.copy_type = g->type;
    r.pieces = pieces, r.tensors = tensors, r.state = &step_state, r.result = result;
    r.w = w.host, r.m = m.host, r.v = v.host, r.grad = grad.host;
    r.squares = squares.host, r.ratios = ratios.host;
    for (int part = 0; part < 2; part++) {
        a.part = r.part = part ? LS_LAMB_STEP : LS_LAMB_DIRECTION;
        g->k->lamb(g->stream, &a);
        g->reference->lamb(g->cpu_stream, &r);
    }
    ls_gpu_near(g, &m, 2e-6);
    ls_gpu_near(g, &v, 2e-6);
    ls_gpu_near(g, &grad, 5e-6);
    ls_gpu_near(g, &squares, 2e-5);
    if (!s->bad) /* the device computes ratios that nobody reads */
        ls_gpu_near(g, &ratios, 1e-5);
    ls_gpu_near(g, &w, 1e-5);
    for (int64_t i = 0; i < s->n && !s->bad; i++)
        copy.host[W_GAP + i] = w.host[W_GAP + i];
    ls_gpu_near(g, &copy, g->type == LS_F32 ? 1e-5 : 4e-3);
}

LS_TEST_SECONDS(gpu_lamb_replicas_reference, 60)
{
    static const lamb_shape shapes[] = {{8, 16384, false},
                                        {1000, 64, false},
                                        {100003, 4096, false},
                                        {3000001, 16384, false},
                                        {1000, 64, true}};

    ls_gpu_cases(lamb_case, shapes, LS_COUNT(shapes), sizeof *shapes);
}

/* --- muon ------------------------------------------------------------------------------------- */

static void momentum_case(ls_gpu *g, const void *shape)
{
    const int64_t n = *(const int64_t *)shape;
    const ls_optimizer_span spans[2] = {
        {.first = 0, .w_first = 0, .count = n / 2},
        {.first = n / 2 + 1, .w_first = n / 2 + 1, .count = n - n / 2 - 1}};
    ls_gpu_tensor m = ls_gpu_floats(g, "m", n, 1), grad = ls_gpu_floats(g, "grad", n, 1);
    ls_momentum a = {.n_spans = 2, .n = n}, r = a;

    a.m = m.device, a.grad = grad.device, r.m = m.host, r.grad = grad.host;
    a.spans = ls_gpu_bytes(g, "spans", spans, sizeof spans).device, r.spans = spans;
    a.state = ls_gpu_bytes(g, "state", &step_state, sizeof step_state).device;
    a.result = ls_gpu_bytes(g, "result", &good, sizeof good).device;
    r.state = &step_state, r.result = &good;
    g->k->momentum(g->stream, &a);
    g->reference->momentum(g->cpu_stream, &r);
    ls_gpu_near(g, &m, 1e-6);
    ls_gpu_near(g, &grad, 1e-6);
}

LS_TEST_SECONDS(gpu_momentum_replicas_reference, 60)
{
    static const int64_t shapes[] = {2, 1000, 1000003};

    ls_gpu_cases(momentum_case, shapes, LS_COUNT(shapes), sizeof *shapes);
}

typedef struct muon_shape {
    ls_muon_part part;
    int64_t rows, cols, ld;
    bool bad;
} muon_shape;

static void muon_case(ls_gpu *g, const void *shape)
{
    const muon_shape *s = shape;
    const ls_norm_result *result = s->bad ? &bad : &good;
    int64_t n = s->rows * s->ld;
    ls_gpu_tensor x = ls_gpu_floats(g, "x", s->rows * s->cols, 1);
    ls_gpu_tensor from = ls_gpu_floats(g, "from", n, 1), w = ls_gpu_floats(g, "w", n, 1);
    ls_gpu_tensor copy = ls_gpu_values(g, "copy", n, 0);
    ls_muon a = {.part = s->part,
                 .rows = s->rows,
                 .cols = s->cols,
                 .ld = s->ld,
                 .a = 3.4445f,
                 .b = -4.775f,
                 .c = 2.0315f,
                 .scale = 0.7f},
            r = a;

    a.x = x.device, a.from = from.device, a.w = w.device;
    a.copy = copy.device, a.copy_type = g->type;
    a.state = ls_gpu_bytes(g, "state", &step_state, sizeof step_state).device;
    a.result = ls_gpu_bytes(g, "result", result, sizeof *result).device;
    r.x = x.host, r.from = from.host, r.w = w.host, r.state = &step_state, r.result = result;
    g->k->muon(g->stream, &a);
    g->reference->muon(g->cpu_stream, &r);
    ls_gpu_near(g, &x, 1e-6);
    ls_gpu_near(g, &w, 1e-6);
    for (int64_t i = 0; i < n && s->part == LS_MUON_STEP && !s->bad; i++)
        if (i % s->ld < s->cols)
            copy.host[i] = w.host[i];
    ls_gpu_near(g, &copy, g->type == LS_F32 ? 1e-6 : 4e-3);
}

LS_TEST_SECONDS(gpu_muon_replicas_reference, 60)
{
    static const muon_shape shapes[] = {
        {LS_MUON_TAKE, 5, 17, 40, false},      {LS_MUON_SCALE, 33, 7, 7, false},
        {LS_MUON_POLY, 17, 17, 17, false},     {LS_MUON_POLY, 768, 768, 768, false},
        {LS_MUON_STEP, 31, 45, 45, false},     {LS_MUON_STEP, 768, 768, 2304, false},
        {LS_MUON_TAKE, 768, 768, 2304, false}, {LS_MUON_STEP, 31, 45, 45, true}};

    ls_gpu_cases(muon_case, shapes, LS_COUNT(shapes), sizeof *shapes);
}
