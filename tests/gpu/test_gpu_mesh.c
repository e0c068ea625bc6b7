/* test_gpu_mesh.c -- what ranks with parts of a model, or of sequences, ask of a GPU: rows that
 * know some tokens, some heads, some positions; long arrays of which some parts are there. */
#include "gpu/gpu.h"

#include <math.h>
#include "base/time.h"
#include "kernel/experts.h"

static const ls_step_state step_state = {.key = {0x12345678, 0x9abcdef0}, .first_seq = 7};

/* --- embedding: some tokens, pieces of sequences ------------------------------------------------
 */

typedef struct embed_shape {
    int64_t B, T, C, V, first, vocab, leaves;
    int rank, ranks; /* that share sequences; ranks 1: nobody does */
    bool accumulate;
    float drop;
    int64_t document; /* tokens of each, from which positions begin anew; 0: they do not */
} embed_shape;

static ls_piece piece_of(int64_t T, int rank, int ranks)
{
    if (ranks == 1)
        return (ls_piece){.chunk = 0};
    return (ls_piece){.chunk = T / 2, .first = {rank * (T / 2), (2 * ranks - 1 - rank) * (T / 2)}};
}

static void embed_case(ls_gpu *g, const void *shape)
{
    const embed_shape *s = shape;
    int64_t M = s->B * s->T, positions = s->T * s->ranks + 3;
    ls_step_state state = step_state;
    void *state_device = ls_gpu_bytes(g, "state", &state, sizeof state).device;
    ls_gpu_tensor tokens = ls_gpu_ints(g, "tokens", M, (int32_t)s->vocab);
    ls_gpu_tensor wte = ls_gpu_values(g, "wte", s->V * s->C, 1);
    ls_gpu_tensor wpe = ls_gpu_values(g, "wpe", positions * s->C, 1);
    ls_gpu_tensor y = ls_gpu_values(g, "y", M * s->C, 0), dy = ls_gpu_values(g, "dy", M * s->C, 1);
    float start = s->accumulate ? 1.0f : 0.0f;
    ls_gpu_tensor dwte = ls_gpu_floats(g, "dwte", s->V * s->C, start);
    ls_gpu_tensor dwpe = ls_gpu_floats(g, "dwpe", positions * s->C, start);
    ls_embed_fwd a = {.type = g->type,
                      .M = M,
                      .C = s->C,
                      .T = s->T,
                      .V = s->V,
                      .first = s->first,
                      .vocab = s->vocab,
                      .piece = piece_of(s->T, s->rank, s->ranks),
                      .drop = {.p = s->drop, .piece = piece_of(s->T, s->rank, s->ranks)}};
    ls_embed_fwd r = a;

    ls_gpu_tensor starts = ls_gpu_ints(g, "start", M, 1);
    if (s->document > 0) { /* as a rank that shares sequences has them */
        for (int64_t i = 0; i < M; i++) {
            int64_t t = ls_piece_position(&a.piece, i % s->T);
            starts.ints[i] = (int32_t)(t - t % s->document);
        }
        ls_gpu_send(g, &starts);
        a.start = starts.device, r.start = starts.ints;
    }
    r.type = LS_F32;
    a.drop.state = state_device, r.drop.state = &state;
    a.tokens = tokens.device, a.wte = wte.device, a.wpe = wpe.device, a.y = y.device;
    r.tokens = tokens.ints, r.wte = wte.host, r.wpe = wpe.host, r.y = y.host;
    g->k->embed_fwd(g->stream, &a);
    g->reference->embed_fwd(g->cpu_stream, &r);
    ls_gpu_near(g, &y, ls_gpu_tolerance(g, LS_ROW_EMBED_FWD));

    ls_embed_bwd ba = {.type = g->type,
                       .M = M,
                       .C = s->C,
                       .T = s->T,
                       .V = s->V,
                       .positions = positions,
                       .leaves = s->leaves,
                       .first = s->first,
                       .vocab = s->vocab,
                       .piece = a.piece,
                       .start = a.start,
                       .accumulate = s->accumulate,
                       .drop = a.drop};
    ls_embed_bwd br = ba;
    br.type = LS_F32;
    br.drop = r.drop;
    br.start = r.start;
    ba.tokens = tokens.device, ba.dy = dy.device, ba.dwte = dwte.device, ba.dwpe = dwpe.device;
    br.tokens = tokens.ints, br.dy = dy.host, br.dwte = dwte.host, br.dwpe = dwpe.host;
    ba.scratch = ls_gpu_scratch(g, LS_ROW_EMBED_BWD, &ba);
    br.scratch = ls_gpu_host_scratch(g, LS_ROW_EMBED_BWD, &br);
    g->k->embed_bwd(g->stream, &ba);
    g->reference->embed_bwd(g->cpu_stream, &br);
    ls_gpu_near(g, &dwte, 2e-5);
    ls_gpu_near(g, &dwpe, 2e-5);
}

LS_TEST_SECONDS(gpu_embed_of_parts_replicas_reference, 120)
{
    static const embed_shape shapes[] = {
        {2, 6, 17, 5, 3, 11, 1, 0, 1, false, 0, 0},
        {3, 20, 64, 7, 0, 30, 3, 0, 1, true, 0.25f, 0},
        {2, 8, 40, 13, 13, 26, 1, 1, 2, false, 0.1f, 0},
        {4, 32, 72, 9, 9, 9 + 9, 2, 2, 3, true, 0, 0},
        {5, 64, 16, 3, 1, 5, 1, 0, 4, false, 0, 0},
        {3, 20, 64, 7, 0, 7, 1, 0, 1, false, 0.25f, 7},
        {4, 32, 72, 9, 0, 9, 2, 1, 2, true, 0, 5},
        {40, 64, 24, 9, 0, 9, 4, 0, 1, false, 0, 3},
        {40, 64, 24, 9, 0, 9, 1, 1, 2, true, 0, 2},
    };

    ls_gpu_cases(embed_case, shapes, LS_COUNT(shapes), sizeof *shapes);
}

/* --- norms of some rows, with the dropout of the whole ------------------------------------------
 */

typedef struct norm_shape {
    int64_t M, C, T, first_row;
    int rank, ranks;
} norm_shape;

static void norm_case(ls_gpu *g, const void *shape)
{
    const norm_shape *s = shape;
    int64_t n = s->M * s->C;
    ls_step_state state = step_state;
    void *state_device = ls_gpu_bytes(g, "state", &state, sizeof state).device;
    ls_gpu_tensor stream = ls_gpu_values(g, "stream", n, 1), x = ls_gpu_values(g, "x", n, 1);
    ls_gpu_tensor w = ls_gpu_values(g, "w", s->C, 1), sum = ls_gpu_values(g, "sum", n, 0);
    ls_gpu_tensor y = ls_gpu_values(g, "y", n, 0), rstd = ls_gpu_floats(g, "rstd", s->M, 0);
    ls_norm_fwd a = {.type = g->type, .kind = LS_NORM_RMS, .M = s->M, .C = s->C, .T = s->T};
    a.eps = 1e-5f;
    a.drop = (ls_dropout){.p = 0.3f,
                          .site = 5,
                          .first_row = s->first_row,
                          .piece = piece_of(s->T, s->rank, s->ranks)};
    ls_norm_fwd r = a;

    r.type = LS_F32;
    a.drop.state = state_device, r.drop.state = &state;
    a.stream = stream.device, a.x = x.device, a.w = w.device, a.sum = sum.device, a.y = y.device;
    r.stream = stream.host, r.x = x.host, r.w = w.host, r.sum = sum.host, r.y = y.host;
    a.rstd = rstd.device, r.rstd = rstd.host;
    g->k->norm_fwd(g->stream, &a);
    g->reference->norm_fwd(g->cpu_stream, &r);
    ls_gpu_near(g, &sum, ls_gpu_tolerance(g, LS_ROW_NORM_FWD));
    ls_gpu_near(g, &y, 2 * ls_gpu_tolerance(g, LS_ROW_NORM_FWD));
}

LS_TEST_SECONDS(gpu_norm_of_some_rows_drops_as_all_do, 60)
{
    static const norm_shape shapes[] = {
        {5, 64, 4, 3, 0, 1}, {7, 33, 10, 25, 1, 2}, {12, 128, 6, 6, 0, 3}};

    ls_gpu_cases(norm_case, shapes, LS_COUNT(shapes), sizeof *shapes);
}

/* --- the head by ranks that have parts of the vocabulary ----------------------------------------
 */

typedef struct head_shape {
    int64_t M, C, V;
    int ranks;
    bool grad, accumulate;
} head_shape;

static void head_case(ls_gpu *g, const void *shape)
{
    const head_shape *s = shape;
    int64_t size = ls_dtype_bytes(g->type), discrete = 3 * s->M + 5;
    ls_step_state state = {.grad_scale = 0.25f};
    void *state_device = ls_gpu_bytes(g, "state", &state, sizeof state).device;
    ls_gpu_tensor h = ls_gpu_values(g, "h", s->M * s->C, 1);
    ls_gpu_tensor w = ls_gpu_values(g, "w", s->V * s->C, 1 / sqrtf((float)s->C));
    ls_gpu_tensor targets = ls_gpu_ints(g, "targets", s->M, (int32_t)s->V);
    ls_gpu_tensor losses = ls_gpu_floats(g, "losses", s->M, 0);
    ls_gpu_tensor scores = ls_gpu_floats(g, "scores", s->ranks * discrete, 0);
    ls_gpu_tensor dw = ls_gpu_floats(g, "dw", s->V * s->C, s->accumulate ? 1.0f : 0.0f);
    ls_gpu_tensor whole = ls_gpu_values(g, "dh", s->M * s->C, 0);
    float *sum = calloc((size_t)whole.n, sizeof *sum);
    ls_head a[4], r = {.M = s->M, .C = s->C, .V = s->V, .leaves = 1};

    LS_CHECK(sum && s->ranks <= 4);
    for (int64_t i = 2; i < s->M; i += 5)
        targets.ints[i] = -1;
    ls_gpu_send(g, &targets);
    r.accumulate = s->accumulate;
    r.h = h.host, r.w = w.host, r.targets = targets.ints, r.losses = losses.host, r.state = &state;
    if (s->grad)
        r.dh = whole.host, r.dw = dw.host;
    r.scratch = ls_gpu_host_scratch(g, LS_ROW_HEAD, &r);
    for (int k = 0; k < s->ranks; k++) {
        int64_t first = s->V * k / s->ranks, end = s->V * (k + 1) / s->ranks;
        a[k] = (ls_head){.type = g->type,
                         .part = LS_HEAD_SCORES,
                         .h = h.device,
                         .w = (char *)w.device + first * s->C * size,
                         .targets = targets.device,
                         .losses = losses.device,
                         .state = state_device,
                         .M = s->M,
                         .C = s->C,
                         .V = end - first,
                         .leaves = 1,
                         .first = first,
                         .vocab = s->V,
                         .scores = (float *)scores.device + k * discrete,
                         .all = scores.device,
                         .ranks = s->ranks,
                         .rank = k,
                         .rank_stride = discrete,
                         .accumulate = s->accumulate};
        if (s->grad)
            a[k].dh = whole.device, a[k].dw = (float *)dw.device + first * s->C;
        a[k].scratch = ls_gpu_scratch(g, LS_ROW_HEAD, &a[k]);
        g->k->head(g->stream, &a[k]);
    }
    for (int k = 0; k < s->ranks; k++) {
        a[k].part = LS_HEAD_JOIN;
        g->k->head(g->stream, &a[k]);
        float *share = ls_gpu_fetch(g, &whole);
        for (int64_t i = 0; i < whole.n && s->grad; i++)
            sum[i] += share[i];
        free(share);
    }
    g->reference->head(g->cpu_stream, &r);
    ls_gpu_near(g, &losses, ls_gpu_tolerance(g, LS_ROW_HEAD));
    double tolerance = ls_gpu_tolerance(g, LS_ROW_HEAD) / 2;
    for (int64_t i = 0; i < whole.n && s->grad; i++)
        LS_CHECK(fabs((double)sum[i] - (double)whole.host[i]) <=
                 tolerance * (1 + fabs((double)whole.host[i])));
    if (s->grad)
        ls_gpu_near(g, &dw, tolerance);
    free(sum);
}

LS_TEST_SECONDS(gpu_head_in_parts_replicas_reference, 120)
{
    static const head_shape shapes[] = {{1, 1, 2, 2, true, false},
                                        {7, 17, 33, 3, true, true},
                                        {30, 64, 1001, 2, true, false},
                                        {40, 24, 513, 4, false, false},
                                        {130, 16, 20003, 2, true, true}};

    ls_gpu_cases(head_case, shapes, LS_COUNT(shapes), sizeof *shapes);
}

/* --- attention of chunks ------------------------------------------------------------------------
 */

typedef struct pair_shape {
    int64_t B, T, H, Hkv, D, window; /* T: of a chunk */
    int64_t q, k, other;             /* chunks: of queries, of keys, of keys that came before */
    bool start;
    float drop;
} pair_shape;

static ls_heads dense(void *p, int64_t T, int64_t H, int64_t D)
{
    return (ls_heads){p, T * H * D, H * D, D};
}

/* Queries of chunk q meet the keys of their own chunk first, then others. */
static void pair_case(ls_gpu *g, const void *shape)
{
    const pair_shape *s = shape;
    int64_t row = 2 * s->T, n = s->B * s->T * s->H * s->D, nkv = s->B * s->T * s->Hkv * s->D;
    ls_step_state state = step_state;
    void *state_device = ls_gpu_bytes(g, "state", &state, sizeof state).device;
    ls_gpu_tensor q = ls_gpu_values(g, "q", n, 1), o = ls_gpu_floats(g, "o", n, 0);
    ls_gpu_tensor lse = ls_gpu_floats(g, "lse", s->B * s->H * row, 0);
    ls_gpu_tensor start = ls_gpu_ints(g, "start", s->B * row, (int32_t)(s->q * s->T + 1));
    ls_gpu_tensor dq = ls_gpu_floats(g, "dq", n, 1), done = ls_gpu_values(g, "dout", n, 1);
    ls_gpu_tensor whole = ls_gpu_values(g, "o of the type", n, 1);
    const int64_t chunks[3] = {s->q, s->k, s->other};

    for (int i = 0; i < 3; i++) {
        ls_gpu_tensor k = ls_gpu_values(g, "k", nkv, 1), v = ls_gpu_values(g, "v", nkv, 1);
        ls_gpu_tensor dk = ls_gpu_floats(g, "dk", nkv, 1), dv = ls_gpu_floats(g, "dv", nkv, 1);
        ls_attention_fwd a = {.type = g->type,
                              .B = s->B,
                              .T = s->T,
                              .H = s->H,
                              .Hkv = s->Hkv,
                              .D = s->D,
                              .window = s->window,
                              .scale = 1 / sqrtf((float)s->D),
                              .drop = {.p = s->drop, .site = 3, .first_head = 2},
                              .pair = {.on = true,
                                       .join = i > 0,
                                       .q_first = s->q * s->T,
                                       .k_first = chunks[i] * s->T,
                                       .row = row}};
        ls_attention_fwd r = a;
        if (i > 0 && chunks[i] >= s->q)
            continue;
        r.type = LS_F32;
        a.q = dense(q.device, s->T, s->H, s->D), r.q = dense(q.host, s->T, s->H, s->D);
        a.k = dense(k.device, s->T, s->Hkv, s->D), r.k = dense(k.host, s->T, s->Hkv, s->D);
        a.v = dense(v.device, s->T, s->Hkv, s->D), r.v = dense(v.host, s->T, s->Hkv, s->D);
        a.o = dense(o.device, s->T, s->H, s->D), r.o = dense(o.host, s->T, s->H, s->D);
        a.lse = lse.device, r.lse = lse.host;
        a.drop.state = state_device, r.drop.state = &state;
        if (s->start)
            a.start = start.device, r.start = start.ints;
        g->k->attention_fwd(g->stream, &a);
        g->reference->attention_fwd(g->cpu_stream, &r);
        ls_gpu_near(g, &o, 1e-4);
        ls_gpu_near(g, &lse, 1e-4);

        ls_attention_bwd ba = {.type = g->type,
                               .B = s->B,
                               .T = s->T,
                               .H = s->H,
                               .Hkv = s->Hkv,
                               .D = s->D,
                               .window = s->window,
                               .scale = a.scale,
                               .drop = a.drop,
                               .pair = a.pair,
                               .start = a.start,
                               .lse = lse.device,
                               .q = a.q,
                               .k = a.k,
                               .v = a.v,
                               .o = dense(whole.device, s->T, s->H, s->D),
                               .dout = dense(done.device, s->T, s->H, s->D),
                               .dq = dense(dq.device, s->T, s->H, s->D),
                               .dk = dense(dk.device, s->T, s->Hkv, s->D),
                               .dv = dense(dv.device, s->T, s->Hkv, s->D)};
        ls_attention_bwd br = ba;
        br.type = LS_F32, br.drop = r.drop, br.start = r.start, br.lse = lse.host;
        br.q = r.q, br.k = r.k, br.v = r.v, br.o = dense(whole.host, s->T, s->H, s->D);
        br.dout = dense(done.host, s->T, s->H, s->D), br.dq = dense(dq.host, s->T, s->H, s->D);
        br.dk = dense(dk.host, s->T, s->Hkv, s->D), br.dv = dense(dv.host, s->T, s->Hkv, s->D);
        ba.scratch = ls_gpu_scratch(g, LS_ROW_ATTENTION_BWD, &ba);
        g->k->attention_bwd(g->stream, &ba);
        g->reference->attention_bwd(g->cpu_stream, &br);
        ls_gpu_near(g, &dq, 5e-4);
        ls_gpu_near(g, &dk, 5e-4);
        ls_gpu_near(g, &dv, 5e-4);
    }
}

LS_TEST_SECONDS(gpu_attention_of_chunks_replicas_reference, 120)
{
    static const pair_shape shapes[] = {{2, 17, 4, 2, 16, 0, 3, 1, 0, false, 0},
                                        {1, 40, 2, 1, 64, 25, 2, 1, 0, false, 0},
                                        {2, 33, 3, 3, 40, 0, 1, 0, 5, true, 0.2f},
                                        {1, 64, 2, 2, 128, 90, 4, 3, 2, true, 0},
                                        {1, 5, 1, 1, 200, 0, 1, 0, 5, false, 0.1f}};

    ls_gpu_cases(pair_case, shapes, LS_COUNT(shapes), sizeof *shapes);
}

/* --- norms over the heads of several ranks ------------------------------------------------------
 */

typedef struct wide_shape {
    int64_t B, T, D; /* D: elements of a row that a rank has */
    int ranks;
    int64_t wider; /* what rows of the product have beside it */
} wide_shape;

/* Ranks have columns of the same rows; their sums are added up between the two parts. */
static void wide_parts(ls_gpu *g, const wide_shape *s, ls_qkv *rows, ls_gpu_tensor *sums, bool back)
{
    int64_t M = s->B * s->T;
    void (*row)(ls_stream *, const ls_qkv *) = back ? g->k->qkv_bwd : g->k->qkv_fwd;
    float *all = sums->device;

    for (int k = 0; k < s->ranks; k++) {
        ls_qkv own = rows[k];
        own.part = LS_QKV_SUMS;
        own.sums = all + k * M;
        own.dq_norm = NULL;
        row(g->stream, &own);
    }
    for (int k = 1; k < s->ranks; k++)
        g->k->add(g->stream, &(ls_add){.a = all, .b = all + k * M, .out = all, .n = M});
    for (int k = 0; k < s->ranks; k++) {
        rows[k].part = LS_QKV_APPLY;
        rows[k].sums = all;
        row(g->stream, &rows[k]);
    }
}

static void wide_case(ls_gpu *g, const void *shape)
{
    const wide_shape *s = shape;
    int64_t M = s->B * s->T, D = s->D * s->ranks, ld = D + s->wider;
    int64_t size = ls_dtype_bytes(g->type);
    ls_gpu_tensor x = ls_gpu_values(g, "product", M * ld, 1), y = ls_gpu_values(g, "y", M * D, 0);
    ls_gpu_tensor w = ls_gpu_values(g, "w", D, 1), dy = ls_gpu_values(g, "dy", M * D, 1);
    ls_gpu_tensor dx = ls_gpu_values(g, "dx", M * ld, 0), dw = ls_gpu_floats(g, "dw", D, 0);
    ls_gpu_tensor rstd = ls_gpu_floats(g, "rstd", M, 0);
    ls_gpu_tensor sums = ls_gpu_floats(g, "sums", M * s->ranks, 0);
    ls_qkv rows[4], r = {.B = s->B, .T = s->T, .H = 1, .D = D, .ld = ld, .leaves = 1};

    LS_CHECK(s->ranks <= 4);
    r.eps = 1e-5f;
    r.packed = x.host, r.q_norm = w.host, r.rstd = rstd.host;
    r.q = (ls_heads){y.host, s->T * D, D, D};
    g->reference->qkv_fwd(g->cpu_stream, &r);
    for (int k = 0; k < s->ranks; k++) {
        rows[k] = r;
        rows[k].type = g->type;
        rows[k].D = s->D;
        rows[k].ranks = s->ranks;
        rows[k].packed = (char *)x.device + k * s->D * size;
        rows[k].q_norm = (char *)w.device + k * s->D * size;
        rows[k].q.p = (char *)y.device + k * s->D * size;
        rows[k].rstd = rstd.device;
    }
    wide_parts(g, s, rows, &sums, false);
    ls_gpu_near(g, &rstd, 1e-5);
    ls_gpu_near(g, &y, 2 * ls_gpu_tolerance(g, LS_ROW_QKV_FWD));

    r.product = x.host, r.packed = dx.host, r.q.p = dy.host, r.dq_norm = dw.host;
    r.scratch = ls_gpu_host_scratch(g, LS_ROW_QKV_BWD, &r);
    g->reference->qkv_bwd(g->cpu_stream, &r);
    for (int k = 0; k < s->ranks; k++) {
        rows[k].product = rows[k].packed;
        rows[k].packed = (char *)dx.device + k * s->D * size;
        rows[k].q.p = (char *)dy.device + k * s->D * size;
        rows[k].dq_norm = (float *)dw.device + k * s->D;
        rows[k].scratch = ls_gpu_scratch(g, LS_ROW_QKV_BWD, &rows[k]);
    }
    wide_parts(g, s, rows, &sums, true);
    ls_gpu_near(g, &dx, 4 * ls_gpu_tolerance(g, LS_ROW_QKV_BWD));
    ls_gpu_near(g, &dw, 5e-4);
}

LS_TEST_SECONDS(gpu_norm_over_heads_of_ranks_replicas_reference, 60)
{
    static const wide_shape shapes[] = {
        {2, 5, 32, 2, 0}, {1, 33, 100, 3, 60}, {3, 16, 512, 2, 512}, {1, 1, 8, 4, 8}};

    ls_gpu_cases(wide_case, shapes, LS_COUNT(shapes), sizeof *shapes);
}

/* --- rows for experts of other ranks ------------------------------------------------------------
 */

typedef struct regroup_shape {
    int64_t sources, experts, C;
    int32_t rows[8]; /* of each stretch, by source */
} regroup_shape;

static void regroup_case(ls_gpu *g, const void *shape)
{
    const regroup_shape *s = shape;
    int64_t n = s->sources * s->experts, size = ls_dtype_bytes(g->type);
    int32_t by_source[9] = {0}, by_expert[9] = {0};

    for (int64_t i = 0; i < n; i++) {
        by_source[i + 1] = by_source[i] + s->rows[i];
        by_expert[i + 1] = by_expert[i] + s->rows[i % s->sources * s->experts + i / s->sources];
    }
    const void *tables[2] = {ls_gpu_bytes(g, "by source", by_source, sizeof by_source).device,
                             ls_gpu_bytes(g, "by expert", by_expert, sizeof by_expert).device};
    ls_gpu_tensor from = ls_gpu_values(g, "from", by_source[n] * s->C, 1);
    ls_gpu_tensor to = ls_gpu_values(g, "to", by_source[n] * s->C, 0);
    for (int back = 0; back < 2; back++) {
        ls_regroup a = {.by_source = tables[0],
                        .by_expert = tables[1],
                        .sources = s->sources,
                        .experts = s->experts,
                        .row_bytes = s->C * size,
                        .from = from.device,
                        .to = to.device,
                        .back = back};
        ls_regroup r = a;
        r.by_source = by_source, r.by_expert = by_expert;
        r.row_bytes = s->C * (int64_t)sizeof(float), r.from = from.host, r.to = to.host;
        ls_experts_regroup(g->stream, &a);
        ls_experts_regroup(g->cpu_stream, &r);
        ls_gpu_near(g, &to, 1e-7);
    }
}

LS_TEST_SECONDS(gpu_rows_are_regrouped_as_on_the_host, 60)
{
    static const regroup_shape shapes[] = {{2, 2, 64, {3, 0, 5, 2}},
                                           {2, 4, 33, {1, 0, 0, 7, 200, 31, 0, 1}},
                                           {4, 2, 1, {0, 0, 9, 4, 0, 1, 2, 0}},
                                           {3, 1, 1024, {100, 0, 57}}};

    ls_gpu_cases(regroup_case, shapes, LS_COUNT(shapes), sizeof *shapes);
}

/* --- windows ------------------------------------------------------------------------------------
 */

/* Addresses for much more than the card has, and two parts that are memory. */
LS_TEST_SECONDS(gpu_window_is_memory_where_it_is_backed, 60)
{
    ls_gpu g;
    void *base = NULL;
    int64_t before, page;

    ls_gpu_open(&g);
    page = ls_device_describe(g.device).window_page;
    before = ls_device_used_bytes(g.device);
    LS_CHECK(page > 0);
    LS_CHECK_OK(ls_device_window_open(g.device, INT64_C(1) << 42, "test", &base));
    LS_CHECK_EQ(ls_device_used_bytes(g.device), before);
    LS_CHECK_OK(ls_device_window_back(g.device, base, 100, page, "test"));
    LS_CHECK_OK(ls_device_window_back(g.device, base, page + 5, 2 * page, "test")); /* overlaps */
    LS_CHECK_OK(ls_device_window_back(g.device, base, INT64_C(1) << 41, 1, "test"));
    LS_CHECK_EQ(ls_device_used_bytes(g.device) - before, 5 * page);
    float *x = base, *ep_group = (float *)(void *)((char *)base + (INT64_C(1) << 41));
    int64_t n = page; /* floats: across what was backed at different times */
    g.k->fill(g.stream, &(ls_fill){.x = x + 64, .value = 3, .n = n - 64});
    g.k->add(g.stream, &(ls_add){.a = x, .b = x + n / 2, .out = ep_group, .n = 1000});
    float seen[1000];
    ls_stream_copy_out(g.stream, seen, ep_group, sizeof seen);
    ls_gpu_sync(&g);
    for (int i = 0; i < 1000; i++)
        LS_CHECK_NEAR(seen[i], i < 64 ? 3 : 6, 0);
    ls_device_window_close(g.device, base);
    LS_CHECK_EQ(ls_device_used_bytes(g.device), before);
    ls_gpu_close(&g);
}

/* The same memory at many addresses: what is written through one is read through the next. */
LS_TEST_SECONDS(gpu_window_takes_page_reuse, 60)
{
    ls_gpu g;
    void *base = NULL;

    ls_gpu_open(&g);
    int64_t page = ls_device_describe(g.device).window_page,
            before = ls_device_used_bytes(g.device);
    int64_t period = 3 * page / (int64_t)sizeof(float); /* in floats */
    LS_CHECK_OK(ls_device_window_open(g.device, 16 * page, "test", &base));
    LS_CHECK_OK(ls_device_window_back(g.device, base, 0, page, "test"));
    LS_CHECK_OK(ls_device_window_turn(g.device, base, page, 14 * page, 3 * page, "test"));
    LS_CHECK_OK(ls_device_window_back(g.device, base, 15 * page, page, "test"));
    LS_CHECK_EQ(ls_device_used_bytes(g.device) - before, 5 * page);
    float *x = base, *page_reuse = x + page / (int64_t)sizeof(float), seen[4];
    g.k->fill(g.stream, &(ls_fill){.x = x, .value = 1, .n = page / (int64_t)sizeof(float)});
    g.k->fill(g.stream, &(ls_fill){.x = page_reuse + period - 2, .value = 2, .n = 4});
    g.k->fill(g.stream, &(ls_fill){.x = page_reuse + 2 * period + 1, .value = 3, .n = 1});
    for (int64_t turn = 0; turn < 4; turn++) {
        ls_stream_copy_out(g.stream, seen, page_reuse + turn * period, sizeof seen);
        ls_gpu_sync(&g);
        LS_CHECK_NEAR(seen[0], 2, 0);
        LS_CHECK_NEAR(seen[1], 3, 0);
        LS_CHECK_NEAR(seen[2], 0, 0);
    }
    ls_stream_copy_out(g.stream, seen, page_reuse + 4 * period - 2, sizeof seen);
    ls_gpu_sync(&g);
    LS_CHECK_NEAR(seen[0], 2, 0); /* the last turn is shorter */
    LS_CHECK_NEAR(seen[2], 2, 0);
    ls_device_window_close(g.device, base);
    LS_CHECK_EQ(ls_device_used_bytes(g.device), before);
    ls_gpu_close(&g);
}
