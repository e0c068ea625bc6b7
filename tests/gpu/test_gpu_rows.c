/* test_gpu_rows.c -- the rows without products on a GPU, each against the reference. */
#include "gpu/gpu.h"

#include <math.h>

static const ls_step_state step_state = {.key = {0x12345678, 0x9abcdef0},
                                         .first_seq = 7,
                                         .grad_scale = 0.25f,
                                         .loss_scale = 8,
                                         .lr = 1e-2f,
                                         .beta1 = 0.9f,
                                         .beta2 = 0.99f,
                                         .eps = 1e-8f,
                                         .weight_decay = 0.1f,
                                         .bias1 = 0.1f,
                                         .bias2 = 0.01f,
                                         .clip = 1};

/* --- activations ---------------------------------------------------------------------------- */

typedef struct act_shape {
    ls_act act;
    bool gated;
    int64_t M, F;
} act_shape;

static void act_case(ls_gpu *g, const void *shape)
{
    const act_shape *s = shape;
    int64_t wide = s->gated ? 2 * s->F : s->F;
    ls_gpu_tensor x = ls_gpu_values(g, "x", s->M * wide, 2),
                  y = ls_gpu_values(g, "y", s->M * s->F, 0);
    ls_gpu_tensor dy = ls_gpu_values(g, "dy", s->M * s->F, 1);
    ls_gpu_tensor dx = ls_gpu_values(g, "dx", s->M * wide, 0);
    ls_act_args a = {.type = g->type, .act = s->act, .gated = s->gated, .M = s->M, .F = s->F};
    ls_act_args r = a;

    r.type = LS_F32;
    a.x = x.device, a.y = y.device, a.dy = dy.device, a.dx = dx.device;
    r.x = x.host, r.y = y.host, r.dy = dy.host, r.dx = dx.host;
    g->k->act_fwd(g->stream, &a);
    g->k->act_bwd(g->stream, &a);
    g->reference->act_fwd(g->cpu_stream, &r);
    g->reference->act_bwd(g->cpu_stream, &r);
    ls_gpu_near(g, &y, ls_gpu_tolerance(g, LS_ROW_ACT_FWD));
    ls_gpu_near(g, &dx, ls_gpu_tolerance(g, LS_ROW_ACT_BWD));
    a.dx = x.device; /* in place */
    g->k->act_bwd(g->stream, &a);
    memcpy(x.host, dx.host, (size_t)x.n * sizeof *x.host);
    ls_gpu_near(g, &x, ls_gpu_tolerance(g, LS_ROW_ACT_BWD));
}

LS_TEST_SECONDS(gpu_act_replicas_reference, 120)
{
    static const act_shape shapes[] = {{LS_ACT_GELU, false, 3, 1},   {LS_ACT_GELU, true, 3, 17},
                                       {LS_ACT_SILU, false, 5, 384}, {LS_ACT_SILU, true, 7, 4096},
                                       {LS_ACT_NONE, true, 2, 24},   {LS_ACT_GELU, true, 300, 520}};

    ls_gpu_cases(act_case, shapes, LS_COUNT(shapes), sizeof *shapes);
}

/* --- norms ---------------------------------------------------------------------------------- */

typedef struct norm_shape {
    ls_norm_kind kind;
    int64_t M, C, T, leaves;
    bool x, bias, add, accumulate;
    float drop;
} norm_shape;

/* What dx_sum should hold. */
static void add_columns(ls_gpu_tensor *sum, const float *dx, const norm_shape *s, bool accumulate)
{
    for (int64_t c = 0; c < s->C; c++) {
        double total = accumulate ? (double)sum->host[c] : 0;
        for (int64_t row = 0; row < s->M; row++)
            total += (double)dx[row * s->C + c];
        sum->host[c] = (float)total;
    }
}

static void norm_case(ls_gpu *g, const void *shape)
{
    const norm_shape *s = shape;
    int64_t n = s->M * s->C;
    bool layer = s->kind == LS_NORM_LAYER;
    ls_step_state state = step_state;
    void *state_device = ls_gpu_bytes(g, "state", &state, sizeof state).device;
    ls_gpu_tensor stream = ls_gpu_values(g, "stream", n, 2), x = ls_gpu_values(g, "x", n, 1);
    ls_gpu_tensor sum = ls_gpu_values(g, "sum", n, 0), y = ls_gpu_values(g, "y", n, 0);
    ls_gpu_tensor w = ls_gpu_values(g, "w", s->C, 1), b = ls_gpu_values(g, "b", s->C, 1);
    ls_gpu_tensor mean = ls_gpu_floats(g, "mean", s->M, 0),
                  rstd = ls_gpu_floats(g, "rstd", s->M, 0);
    ls_norm_fwd f = {.type = g->type, .kind = s->kind, .M = s->M, .C = s->C, .T = s->T};
    f.eps = 1e-5f;
    f.drop = (ls_dropout){.p = s->drop, .site = 3, .state = state_device};
    ls_norm_fwd r = f;
    r.type = LS_F32;
    r.drop.state = &state;
    f.stream = stream.device, f.y = y.device, f.w = w.device, f.rstd = rstd.device;
    r.stream = stream.host, r.y = y.host, r.w = w.host, r.rstd = rstd.host;
    f.mean = layer ? mean.device : NULL, r.mean = layer ? mean.host : NULL;
    if (s->x) {
        f.x = x.device, f.sum = sum.device;
        r.x = x.host, r.sum = sum.host;
    }
    if (s->bias)
        f.b = b.device, r.b = b.host;
    g->k->norm_fwd(g->stream, &f);
    g->reference->norm_fwd(g->cpu_stream, &r);
    double tolerance = ls_gpu_tolerance(g, LS_ROW_NORM_FWD);
    if (s->x)
        ls_gpu_near(g, &sum, tolerance);
    ls_gpu_near(g, &y, tolerance * (g->type == LS_F32 ? 1 : 2));
    if (layer)
        ls_gpu_near(g, &mean, tolerance);
    ls_gpu_near(g, &rstd, tolerance);

    /* The gradient, from numbers that both sides share: the sum as the device rounded it. */
    const ls_gpu_tensor *in = s->x ? &sum : &stream;
    float *seen = ls_gpu_fetch(g, in), *seen_mean = ls_gpu_fetch(g, &mean);
    float *seen_rstd = ls_gpu_fetch(g, &rstd);
    ls_gpu_tensor dy = ls_gpu_values(g, "dy", n, 1), dsum = ls_gpu_values(g, "dsum", n, 1);
    ls_gpu_tensor dx = ls_gpu_values(g, "dx", n, 0);
    ls_gpu_tensor dw = ls_gpu_floats(g, "dw", s->C, s->accumulate ? 1.0f : 0.0f);
    ls_gpu_tensor db = ls_gpu_floats(g, "db", s->C, s->accumulate ? 1.0f : 0.0f);
    ls_gpu_tensor dx_sum = ls_gpu_floats(g, "dx_sum", s->C, s->accumulate ? 1.0f : 0.0f);
    ls_norm_bwd ba = {.type = g->type, .kind = s->kind, .M = s->M, .C = s->C, .T = s->T};
    ba.leaves = s->leaves, ba.add_to_dsum = s->add, ba.accumulate = s->accumulate;
    ls_norm_bwd br = ba;
    ba.drop = f.drop, br.drop = r.drop;
    br.type = LS_F32;
    ba.dy = dy.device, ba.sum = in->device, ba.w = w.device, ba.rstd = rstd.device;
    br.dy = dy.host, br.sum = seen, br.w = w.host, br.rstd = seen_rstd;
    ba.mean = layer ? mean.device : NULL, br.mean = layer ? seen_mean : NULL;
    ba.dsum = dsum.device, ba.dw = dw.device, ba.db = layer ? db.device : NULL;
    br.dsum = dsum.host, br.dw = dw.host, br.db = layer ? db.host : NULL;
    if (s->drop > 0)
        ba.dx = dx.device, br.dx = dx.host;
    if (s->bias)
        ba.dx_sum = dx_sum.device;
    ba.scratch = ls_gpu_scratch(g, LS_ROW_NORM_BWD, &ba);
    g->k->norm_bwd(g->stream, &ba);
    g->reference->norm_bwd(g->cpu_stream, &br);
    tolerance = ls_gpu_tolerance(g, LS_ROW_NORM_BWD);
    ls_gpu_near(g, &dsum, tolerance);
    if (ba.dx)
        ls_gpu_near(g, &dx, tolerance);
    ls_gpu_near(g, &dw, 1e-4);
    if (layer)
        ls_gpu_near(g, &db, 1e-4);
    if (s->bias) {
        add_columns(&dx_sum, ba.dx ? dx.host : dsum.host, s, s->accumulate);
        ls_gpu_near(g, &dx_sum, g->type == LS_F32 ? 1e-4 : 2e-3);
    }
    free(seen);
    free(seen_mean);
    free(seen_rstd);
}

LS_TEST_SECONDS(gpu_norm_replicas_reference, 120)
{
    static const norm_shape shapes[] = {
        {LS_NORM_LAYER, 1, 1, 1, 1, false, true, false, false, 0},
        {LS_NORM_LAYER, 6, 17, 3, 3, true, true, true, false, 0},
        {LS_NORM_RMS, 15, 768, 5, 5, true, false, true, true, 0},
        {LS_NORM_LAYER, 40, 384, 20, 1, true, true, true, false, 0.3f},
        {LS_NORM_RMS, 33, 2048, 11, 1, false, false, false, false, 0},
        {LS_NORM_LAYER, 3, 8200, 3, 1, true, true, true, true, 0.1f},
        {LS_NORM_LAYER, 2500, 48, 500, 5, true, false, true, false, 0},
        {LS_NORM_RMS, 50, 4096, 10, 2, true, false, true, false, 0.1f},
        {LS_NORM_LAYER, 70, 1600, 7, 7, true, true, false, true, 0},
        {LS_NORM_LAYER, 9000, 64, 9, 1, true, true, true, false, 0}};

    ls_gpu_cases(norm_case, shapes, LS_COUNT(shapes), sizeof *shapes);
}

/* --- embedding ------------------------------------------------------------------------------ */

typedef struct embed_shape {
    int64_t M, C, T, V, positions, leaves, past;
    bool wpe, accumulate;
    float drop, noise;
} embed_shape;

static void embed_case(ls_gpu *g, const void *shape)
{
    const embed_shape *s = shape;
    ls_step_state state = step_state;
    void *state_device = ls_gpu_bytes(g, "state", &state, sizeof state).device;
    ls_gpu_tensor tokens = ls_gpu_ints(g, "tokens", s->M, (int32_t)s->V);
    ls_gpu_tensor wte = ls_gpu_values(g, "wte", s->V * s->C, 1),
                  y = ls_gpu_values(g, "y", s->M * s->C, 0);
    ls_gpu_tensor wpe = ls_gpu_values(g, "wpe", (s->past + s->T) * s->C, 1);
    ls_embed_fwd f = {.type = g->type, .M = s->M, .C = s->C, .T = s->T, .V = s->V, .past = s->past};
    f.noise = s->noise;
    ls_embed_fwd r = f;

    r.type = LS_F32;
    f.drop = (ls_dropout){.p = s->drop, .state = state_device};
    r.drop = (ls_dropout){.p = s->drop, .state = &state};
    f.tokens = tokens.device, f.wte = wte.device, f.y = y.device;
    r.tokens = tokens.ints, r.wte = wte.host, r.y = y.host;
    if (s->wpe)
        f.wpe = wpe.device, r.wpe = wpe.host;
    g->k->embed_fwd(g->stream, &f);
    g->reference->embed_fwd(g->cpu_stream, &r);
    ls_gpu_near(g, &y, ls_gpu_tolerance(g, LS_ROW_EMBED_FWD));

    float start = s->accumulate ? 1.0f : 0.0f;
    ls_gpu_tensor dy = ls_gpu_values(g, "dy", s->M * s->C, 1);
    ls_gpu_tensor dwte = ls_gpu_floats(g, "dwte", s->V * s->C, start);
    ls_gpu_tensor dwpe = ls_gpu_floats(g, "dwpe", s->positions * s->C, start);
    ls_embed_bwd ba = {.type = g->type, .M = s->M, .C = s->C, .T = s->T, .V = s->V};
    ba.positions = s->positions, ba.leaves = s->leaves, ba.accumulate = s->accumulate;
    ls_embed_bwd br = ba;
    br.type = LS_F32;
    ba.drop = f.drop, br.drop = r.drop;
    ba.tokens = tokens.device, ba.dy = dy.device, ba.dwte = dwte.device;
    br.tokens = tokens.ints, br.dy = dy.host, br.dwte = dwte.host;
    if (s->wpe)
        ba.dwpe = dwpe.device, br.dwpe = dwpe.host;
    ba.scratch = ls_gpu_scratch(g, LS_ROW_EMBED_BWD, &ba);
    br.scratch = ls_gpu_host_scratch(g, LS_ROW_EMBED_BWD, &br);
    g->k->embed_bwd(g->stream, &ba);
    g->reference->embed_bwd(g->cpu_stream, &br);
    ls_gpu_near(g, &dwte, 2e-5);
    if (s->wpe)
        ls_gpu_near(g, &dwpe, 2e-5);
    if (s->wpe && !s->accumulate) { /* positions alone */
        ls_gpu_tensor alone = ls_gpu_floats(g, "dwpe alone", dwpe.n, 0);
        memcpy(alone.host, dwpe.host, (size_t)dwpe.n * sizeof *alone.host);
        ba.dwte = NULL, ba.dwpe = alone.device;
        g->k->embed_bwd(g->stream, &ba);
        ls_gpu_near(g, &alone, 2e-5);
    }
}

LS_TEST_SECONDS(gpu_embed_replicas_reference, 120)
{
    static const embed_shape shapes[] = {{1, 1, 1, 1, 1, 1, 0, true, false, 0, 0},
                                         {12, 17, 4, 5, 9, 3, 0, true, true, 0, 0},
                                         {60, 64, 20, 7, 20, 5, 3, true, false, 0.25f, 0},
                                         {512, 40, 128, 300, 128, 1, 0, false, false, 0, 0},
                                         {1000, 264, 250, 3, 251, 4, 0, true, true, 0, 0},
                                         {1000, 72, 250, 3, 250, 1, 0, true, true, 0, 0},
                                         {700, 17, 350, 40, 350, 1, 0, true, false, 0.1f, 0},
                                         {320, 8, 64, 5, 64, 1, 0, false, false, 0, 0},
                                         {60, 65, 20, 7, 20, 1, 0, true, false, 0, 0.5f},
                                         {700, 72, 350, 40, 350, 1, 0, true, false, 0.1f, 0.25f}};

    ls_gpu_cases(embed_case, shapes, LS_COUNT(shapes), sizeof *shapes);
}

/* With several leaves the bits are those of one call for each leaf, joined by `add`. */
LS_TEST_SECONDS(gpu_embed_leaves_are_a_tree, 60)
{
    enum { LEAVES = 3, ROWS = 700, C = 72, V = 11, N = V * C };
    ls_gpu g;

    ls_gpu_open(&g);
    for (int t = 0; t < 2; t++) {
        ls_gpu_begin(&g, t ? LS_BF16 : LS_F32, 0);
        ls_gpu_tensor tokens = ls_gpu_ints(&g, "tokens", LEAVES * ROWS, V);
        ls_gpu_tensor dy = ls_gpu_values(&g, "dy", LEAVES * ROWS * C, 1);
        ls_gpu_tensor dwte = ls_gpu_floats(&g, "dwte", N, 0);
        ls_gpu_tensor part = ls_gpu_floats(&g, "part", LEAVES * N, 0);
        for (int64_t i = 0; i < LEAVES * ROWS; i++) /* one common token, one only in one leaf */
            tokens.ints[i] = i % 3 ? 2 : i < ROWS && i % 7 == 0 ? 10 : tokens.ints[i] % 10;
        ls_gpu_send(&g, &tokens);
        ls_embed_bwd a = {.type = g.type, .M = LEAVES * ROWS, .C = C, .T = ROWS, .V = V};
        a.leaves = LEAVES, a.tokens = tokens.device, a.dy = dy.device, a.dwte = dwte.device;
        a.scratch = ls_gpu_scratch(&g, LS_ROW_EMBED_BWD, &a);
        g.k->embed_bwd(g.stream, &a);
        float *p = part.device;
        a.M = ROWS, a.leaves = 1;
        for (int i = 0; i < LEAVES; i++) {
            a.tokens = (int32_t *)tokens.device + i * ROWS;
            a.dy = (char *)dy.device + i * ROWS * C * ls_dtype_bytes(g.type);
            a.dwte = p + i * N;
            g.k->embed_bwd(g.stream, &a);
        }
        g.k->add(g.stream, &(ls_add){.a = p, .b = p + N, .out = p, .n = N});
        g.k->add(g.stream, &(ls_add){.a = p, .b = p + 2 * N, .out = p, .n = N});
        float *got = ls_gpu_fetch(&g, &dwte), *want = ls_gpu_fetch(&g, &part);
        for (int i = 0; i < N; i++)
            LS_CHECK_NEAR(got[i], want[i], 0);
        free(got);
        free(want);
        ls_gpu_end(&g);
    }
    ls_gpu_close(&g);
}

/* --- elements ------------------------------------------------------------------------------- */

static void elements_case(ls_gpu *g, const void *shape)
{
    int64_t n = *(const int64_t *)shape;
    ls_gpu_tensor a = ls_gpu_floats(g, "a", n, 1), b = ls_gpu_floats(g, "b", n, 1);
    ls_gpu_tensor out = ls_gpu_floats(g, "out", n, 0), x = ls_gpu_floats(g, "x", n, 1);
    ls_gpu_tensor filled = ls_gpu_floats(g, "filled", n, 0);

    g->k->add(g->stream, &(ls_add){.a = a.device, .b = b.device, .out = out.device, .n = n});
    g->k->scale(g->stream, &(ls_scale){.x = x.device, .value = 1.7f, .n = n});
    g->k->fill(g->stream, &(ls_fill){.x = filled.device, .value = -3.5f, .n = n});
    g->reference->add(g->cpu_stream, &(ls_add){.a = a.host, .b = b.host, .out = out.host, .n = n});
    g->reference->scale(g->cpu_stream, &(ls_scale){.x = x.host, .value = 1.7f, .n = n});
    g->reference->fill(g->cpu_stream, &(ls_fill){.x = filled.host, .value = -3.5f, .n = n});
    ls_gpu_near(g, &out, 0);
    ls_gpu_near(g, &x, 0);
    ls_gpu_near(g, &filled, 0);
    g->k->add(g->stream, &(ls_add){.a = a.device, .b = b.device, .out = a.device, .n = n});
    g->reference->add(g->cpu_stream, &(ls_add){.a = a.host, .b = b.host, .out = a.host, .n = n});
    ls_gpu_near(g, &a, 0);
}

LS_TEST_SECONDS(gpu_elements_equal_reference, 60)
{
    static const int64_t sizes[] = {1, 3, 4, 1023, 65537, 3000001};

    ls_gpu_cases(elements_case, sizes, LS_COUNT(sizes), sizeof *sizes);
}

LS_TEST(gpu_sums_in_double)
{
    static const int64_t shapes[][2] = {{1, 1}, {700, 7}, {100000, 1}, {65536, 64}};
    ls_gpu g;

    ls_gpu_open(&g);
    for (size_t i = 0; i < LS_COUNT(shapes); i++) {
        double got[64], want[64];
        ls_gpu_begin(&g, LS_F32, 0);
        ls_gpu_tensor x = ls_gpu_floats(&g, "x", shapes[i][0], 1000);
        ls_gpu_tensor out = ls_gpu_bytes(&g, "out", got, (int64_t)sizeof got);
        ls_sum a = {.x = x.device, .out = out.device, .n = shapes[i][0], .segments = shapes[i][1]};
        ls_sum r = {.x = x.host, .out = want, .n = shapes[i][0], .segments = shapes[i][1]};
        g.k->sum(g.stream, &a);
        g.reference->sum(g.cpu_stream, &r);
        ls_stream_copy_out(g.stream, got, out.device, (int64_t)sizeof got);
        ls_gpu_end(&g);
        for (int64_t k = 0; k < shapes[i][1]; k++)
            LS_CHECK_NEAR(got[k], want[k], 1e-9 * (1 + fabs(want[k])));
    }
    ls_gpu_close(&g);
}

/* Two answers of random lengths a sequence, in sequences of a block and more. */
static void preference_case(ls_gpu *g, int64_t B, int64_t T, ls_preference_kind kind)
{
    ls_preference_reference references[4];
    ls_step_state state = {.kl = 0.25f};
    ls_gpu_tensor losses = ls_gpu_floats(g, "losses", B * T, 1);
    ls_gpu_tensor targets = ls_gpu_ints(g, "targets", B * T, 100);
    ls_gpu_tensor start = ls_gpu_ints(g, "start", B * T, 1);
    ls_gpu_tensor weights = ls_gpu_floats(g, "weights", B * T, 0);
    ls_gpu_tensor numbers = ls_gpu_floats(g, "numbers", LS_PREFERENCE_NUMBERS * B, 0);
    ls_preference a = {.objective = {kind, 0.5, 0.1, 1.5, 0.5}, .B = B, .T = T, .stride = B}, r;

    for (int64_t i = 0; i < B * T; i++) {
        int64_t b = i / T, t = i % T, second = T / 3 + b;
        losses.host[i] = fabsf(losses.host[i]);
        start.ints[i] = (int32_t)(t >= second ? second : 0);
        if (t - start.ints[i] < 2 || t + 1 == second)
            targets.ints[i] = -1;
    }
    for (int64_t b = 0; b < B; b++)
        references[b] = (ls_preference_reference){{-1.5f * (float)b, -3.0f}, (float)(b % 2)};
    ls_gpu_send(g, &losses);
    ls_gpu_send(g, &targets);
    ls_gpu_send(g, &start);
    r = a;
    a.losses = losses.device, a.targets = targets.device, a.start = start.device;
    r.losses = losses.host, r.targets = targets.ints, r.start = start.ints;
    a.weights = weights.device, a.numbers = numbers.device;
    r.weights = weights.host, r.numbers = numbers.host;
    a.references = ls_gpu_bytes(g, "references", references, sizeof references).device;
    a.state = ls_gpu_bytes(g, "state", &state, sizeof state).device;
    r.references = references, r.state = &state;
    g->k->preference(g->stream, &a);
    g->reference->preference(g->cpu_stream, &r);
    ls_gpu_near(g, &weights, ls_kernel_rows[LS_ROW_PREFERENCE].tolerance);
    ls_gpu_near(g, &numbers, ls_kernel_rows[LS_ROW_PREFERENCE].tolerance);
}

LS_TEST(gpu_preferences_replicate_the_reference)
{
    static const int64_t shapes[][2] = {{1, 12}, {4, 257}, {3, 2048}};
    ls_gpu g;

    ls_gpu_open(&g);
    for (size_t i = 0; i < LS_COUNT(shapes); i++)
        for (int kind = LS_PREFERENCE_DPO; kind <= LS_PREFERENCE_KTO; kind++) {
            ls_gpu_begin(&g, LS_F32, 0);
            preference_case(&g, shapes[i][0], shapes[i][1], (ls_preference_kind)kind);
            ls_gpu_end(&g);
        }
    ls_gpu_close(&g);
}

/* Every pattern of a 16-bit type, and fp32 around the edges of both, NaN by NaN. */
static void cast_case(ls_gpu *g, ls_dtype from, ls_dtype to, const void *in, int64_t n)
{
    int64_t size = ls_dtype_bytes(to), bytes = n * size;
    unsigned char *got = malloc((size_t)bytes), *want = malloc((size_t)bytes);

    LS_CHECK(got && want);
    ls_gpu_begin(g, LS_F32, 0);
    ls_gpu_tensor x = ls_gpu_bytes(g, "from", in, n * ls_dtype_bytes(from));
    ls_gpu_tensor y = ls_gpu_bytes(g, "to", want, bytes);
    g->k->cast(
        g->stream,
        &(ls_cast){.from_type = from, .to_type = to, .from = x.device, .to = y.device, .n = n});
    g->reference->cast(
        g->cpu_stream,
        &(ls_cast){.from_type = from, .to_type = to, .from = in, .to = want, .n = n});
    ls_stream_copy_out(g->stream, got, y.device, bytes);
    ls_gpu_end(g);
    for (int64_t i = 0; i < bytes; i++)
        if (got[i] != want[i])
            ls_test_fail(__FILE__, __LINE__, "cast %d to %d differs at element %lld", (int)from,
                         (int)to, (long long)(i / size));
    free(got);
    free(want);
}

LS_TEST_SECONDS(gpu_cast_replicas_reference_bit_by_bit, 60)
{
    enum { N = 65536 };
    static uint16_t small[N + 1];
    static uint32_t wide[4 * N + 3];
    ls_gpu g;

    ls_gpu_open(&g);
    for (int i = 0; i < N; i++)
        small[i] = (uint16_t)i;
    for (uint32_t i = 0; i < 4 * N; i++) /* all upper halves, with lower ones around a tie */
        wide[i] = i / 4 << 16 | (const uint32_t[]){0, 0x7fff, 0x8000, 0x8001}[i % 4];
    const ls_dtype types[] = {LS_F32, LS_BF16, LS_F16};
    for (int t = 0; t < 3; t++) {
        cast_case(&g, LS_BF16, types[t], small, N + 1);
        cast_case(&g, LS_F16, types[t], small, N);
        cast_case(&g, LS_F32, types[t], wide, 4 * N + 3);
    }
    ls_gpu_close(&g);
}

/* --- norm2 and adamw ------------------------------------------------------------------------ */

typedef struct step_shape {
    int64_t n, spans;
    float bad; /* put here and there, unless 0 */
} step_shape;

static void step_case(ls_gpu *g, const void *shape)
{
    const step_shape *s = shape;
    int64_t n = s->n, blocks = (n + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;
    ls_step_state state = step_state;
    ls_norm_result want, got;
    ls_optimizer_span spans[8];
    void *state_device = ls_gpu_bytes(g, "state", &state, sizeof state).device;
    void *result = ls_gpu_bytes(g, "result", &want, sizeof want).device;
    ls_gpu_tensor grad = ls_gpu_floats(g, "grad", n, 1),
                  partials = ls_gpu_floats(g, "partials", blocks, 0);

    if (s->bad != 0) {
        grad.host[n / 2] = s->bad;
        grad.host[n - 1] = s->bad;
        ls_gpu_send(g, &grad);
    }
    bool scaled = g->type == LS_F16;
    g->k->norm2(g->stream, &(ls_norm2){.x = grad.device,
                                       .partials = partials.device,
                                       .result = result,
                                       .state = state_device,
                                       .n = n,
                                       .scaled = scaled});
    g->reference->norm2(g->cpu_stream, &(ls_norm2){.x = grad.host,
                                                   .partials = partials.host,
                                                   .result = &want,
                                                   .state = &state,
                                                   .n = n,
                                                   .scaled = scaled});
    ls_stream_copy_out(g->stream, &got, result, sizeof got);
    ls_gpu_sync(g);
    LS_CHECK_EQ(got.bad_block, want.bad_block);
    if (s->bad == 0) {
        ls_gpu_near(g, &partials, 2e-5);
        LS_CHECK_NEAR(got.norm, want.norm, 2e-5 * (double)want.norm);
    }
    LS_CHECK_NEAR(got.factor, want.factor, 2e-5);

    /* w has n elements more in front, for parameters that are not trained; gaps between spans. */
    for (int64_t i = 0; i < s->spans; i++) {
        int64_t first = i * n / s->spans;
        spans[i] = (ls_optimizer_span){.first = first,
                                       .w_first = first + 4 * 16,
                                       .count = (i + 1) * n / s->spans - first - (i + 1 < s->spans),
                                       .decay = (float)(i % 2),
                                       .rate = i % 3 ? 1 : 0.5f};
    }
    ls_gpu_tensor w = ls_gpu_floats(g, "w", n + 64, 1), m = ls_gpu_floats(g, "m", n, 0.1f);
    ls_gpu_tensor v = ls_gpu_floats(g, "v", n, 0.1f), copy = ls_gpu_values(g, "copy", n + 64, 0);
    for (int64_t i = 0; i < n; i++)
        v.host[i] = fabsf(v.host[i]);
    ls_gpu_send(g, &v);
    ls_optimizer_update a = {.n_spans = s->spans}, r = a;
    a.spans = ls_gpu_bytes(g, "spans", spans, s->spans * (int64_t)sizeof *spans).device;
    a.w = w.device, a.m = m.device, a.v = v.device, a.grad = grad.device, a.state = state_device;
    a.result = result, a.copy = copy.device, a.copy_type = g->type;
    r.spans = spans, r.w = w.host, r.m = m.host, r.v = v.host, r.grad = grad.host;
    r.state = &state, r.result = &want;
    g->k->adamw(g->stream, &a);
    g->reference->adamw(g->cpu_stream, &r);
    ls_gpu_near(g, &m, 2e-6);
    ls_gpu_near(g, &v, 2e-6);
    ls_gpu_near(g, &w, 2e-6);
    for (int64_t i = 0; i < s->spans && want.bad_block < 0; i++)
        memcpy(copy.host + spans[i].w_first, w.host + spans[i].w_first,
               (size_t)spans[i].count * sizeof(float));
    ls_gpu_near(g, &copy, g->type == LS_F32 ? 2e-6 : 4e-3);
}

LS_TEST_SECONDS(gpu_step_replicas_reference, 60)
{
    static const step_shape shapes[] = {{1, 1, 0},       {1000, 3, 0},          {100003, 8, 0},
                                        {3000000, 5, 0}, {100003, 2, INFINITY}, {20000, 1, NAN}};

    ls_gpu_cases(step_case, shapes, LS_COUNT(shapes), sizeof *shapes);
}
