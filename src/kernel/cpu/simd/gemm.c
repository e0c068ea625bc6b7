/* gemm.c -- packed, blocked matrix product; see gemm.h for what a result is made of, gemm_walk.h
 * for how C is cut, gemm_pack.h for how operands lie while it runs.
 *
 * C is cut into blocks of mc x nc, one task each. A task walks over the blocks of K: nc columns of
 * B for a block of K stay in L2; a panel of MR rows of A at a time is copied into L1 and taken
 * across them (of AW rows, MR at a time, where k runs across memory). Meanwhile the next panel of
 * A, the next block of B and the lines of C that will be touched are fetched, so that copying finds
 * them near. Partial sums of a block of C stay in the worker's scratch, tile by tile, until the
 * last block of K; then the row's own finish takes the tile.
 *
 * A weight that many calls read is packed once, by ls_gemm_pack(), in the order in which tasks read
 * it; they take its panels where they lie. Otherwise each task packs its own columns of B, for as
 * many rows as it has: half or a quarter of a call. bench/packed.c measures both ways.
 *
 * The micro-kernel alone, with everything in L2, runs at 99 % of the fma peak with tiles of 6 x 64
 * (at 95 % with 14 x 32 or 8 x 48, which load more often), and at 90 to 95 % beside the lines that
 * it fetches for others; what is lost further is packing, the finish and the uneven end of a call.
 *
 * Few rows (generation) go another way with the same bits, without packing: see gemm_few.c. */
#include "base/tsan.h"
#include "kernel/cpu/dot/dot.h"
#include "kernel/cpu/simd/gemm_pack.h"
#include "kernel/cpu/simd/gemm_walk.h"

enum {
    TILE = MR * NR,
    NC_MOST = 384, /* columns of a block: B_FLOATS, and A, and C stay in L2 */
    FLOATS = LS_STREAM_THREAD_BYTES / 4,
    B_FLOATS = NC_MOST * KC,
    C_FLOATS = FLOATS - A_FLOATS - B_FLOATS - B_PANEL,
    NEAR = 540 << 10, /* floats of B and partial sums: more would leave L2 too often */
    LATE = 4          /* the next block of B is fetched in the last quarter of this one */
};

/* --- the micro-kernel --------------------------------------------------------------------------
 * tile = A panel x B panel over kc steps, or tile + that. rows, and how a panel of A lies, are
 * constants at every call, so the sums live in registers: row i at k is a[i * a_row + k * a_step].
 */
LS_INLINE void step(const int rows, const int a_row, ls_v16 sum[MR][NV], const float *a,
                    const float *b)
{
    ls_v16 right[NV];

#pragma GCC unroll 4
    for (int j = 0; j < NV; j++)
        right[j] = v_load(b + j * LS_LANES);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        ls_v16 left = v_set(a[i * a_row]);
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++)
            sum[i][j] = v_fma(left, right[j], sum[i][j]);
    }
}

/* What will be needed soon: pairs of lines, at and at + side, then `step` bytes further, `count`
 * times; then the next of a list, whose last one never ends. The kernel asks for one pair every
 * four steps: asked for all at once, they would hold up the loads of the product itself. */
typedef struct ahead {
    const char *at;
    int64_t side, step, count;
} ahead;

LS_INLINE void multiply(const int rows, const int a_row, const int a_step, int64_t kc,
                        const float *a, const float *b, float *tile, bool add, const ahead *next)
{
    ls_v16 sum[MR][NV];
    ahead now = *next;

#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++)
            sum[i][j] = v_set(0);
    /* Four steps at a time: a load then meets its own address stride four steps later, which is
     * how far ahead the hardware fetches from L2. Measured: a quarter faster than one step. Only
     * for whole tiles; other heights are few. */
    for (; rows == MR && kc >= 4; kc -= 4, a += 4 * a_step, b += 4 * NR) {
        __builtin_prefetch(now.at, 0, 2);
        __builtin_prefetch(now.at + now.side, 0, 2);
        now.at += now.step;
        if (--now.count == 0)
            now = *++next;
        step(rows, a_row, sum, a, b);
        step(rows, a_row, sum, a + a_step, b + NR);
        step(rows, a_row, sum, a + 2 * a_step, b + 2 * NR);
        step(rows, a_row, sum, a + 3 * a_step, b + 3 * NR);
    }
    for (; kc > 0; kc--, a += a_step, b += NR)
        step(rows, a_row, sum, a, b);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) {
            float *to = tile + i * NR + j * LS_LANES;
            v_store(to, add ? v_add(v_load(to), sum[i][j]) : sum[i][j]);
        }
}

/* Any height, as the even one above. */
LS_INLINE void multiply_height(int64_t rows, const int a_row, const int a_step, int64_t kc,
                               const float *a, const float *b, float *tile, bool add,
                               const ahead *next)
{
#define HEIGHT(n)                                                                 \
    case (n) / 2:                                                                 \
        multiply((n) <= MR ? (n) : MR, a_row, a_step, kc, a, b, tile, add, next); \
        break
    switch ((rows + 1) / 2) {
        HEIGHT(2);
        HEIGHT(4);
#if defined(__AVX2__)
        HEIGHT(6);
#endif
    }
#undef HEIGHT
}

/* What a, b and tile point to are copies and sums of this thread, or weights packed before. */
LS_TSAN_UNWATCHED static __attribute__((noinline)) void multiply_rows(int64_t rows, int64_t kc,
                                                                      const float *a,
                                                                      const float *b, float *tile,
                                                                      bool add, const ahead *next)
{
    multiply_height(rows, AR, 1, kc, a, b, tile, add, next);
}

LS_TSAN_UNWATCHED static __attribute__((noinline)) void
multiply_columns(int64_t rows, int64_t kc, const float *a, const float *b, float *tile, bool add,
                 const ahead *next)
{
    multiply_height(rows, 1, AW, kc, a, b, tile, add, next);
}

/* --- one block of C ----------------------------------------------------------------------------*/

typedef struct plan {
    const ls_gemm *g;
    ls_stream *stream;
    gemm_cut cut;
    int64_t group; /* rows of A that are packed together */
} plan;

typedef struct block {
    gemm_walk w;
    const plan *p;
    int64_t panels;  /* of NR columns */
    float *a;        /* packed rows of A */
    float *b, *wide; /* packed columns of B; room to widen a panel */
} block;

/* --- what a tile fetches for those after it ----------------------------------------------------
 */

enum { AHEAD_MOST = 64 };

typedef struct ahead_list {
    ahead item[AHEAD_MOST];
    int n;
} ahead_list;

LS_INLINE void ahead_add(ahead_list *list, const void *at, int64_t side, int64_t step,
                         int64_t count)
{
    if (count > 0 && list->n < AHEAD_MOST - 1)
        list->item[list->n++] = (ahead){at, side, step, count};
}

/* A matrix that is fetched in shares: lines of memory, `step` bytes apart, `bytes` of each. */
typedef struct coming {
    const char *at;
    int64_t lines, step, bytes;
    int64_t share; /* lines a tile asks for */
} coming;

/* The next share of them. */
LS_INLINE void ahead_lines(ahead_list *list, coming *c)
{
    int64_t n = ls_min_i64(c->share, c->lines);

    if (n <= 0)
        return;
    if (c->bytes <= 8 * LINE)
        ahead_add(list, c->at, c->bytes - 1, c->step, n);
    else
        for (int64_t i = 0; i < n; i++)
            ahead_add(list, c->at + i * c->step, 4 * LINE, 8 * LINE,
                      (c->bytes + 8 * LINE - 1) / (8 * LINE));
    c->at += n * c->step;
    c->lines -= n;
}

/* Rows from m on of A, in the block of K at k0, while the tiles of those before are computed. */
static coming coming_a(const block *x, int64_t m, int64_t k0, int64_t kc)
{
    const ls_gemm *g = x->p->g;
    int64_t group = x->p->group, rows = ls_min_i64(group, x->w.m1 - m),
            bytes = ls_dtype_bytes(g->a_type);
    coming c = {.at = element(g->a_type, g->a, m * g->a_m + k0 * g->a_k)};

    c.lines = rows <= 0 ? 0 : g->a_m == 1 ? kc : rows;
    c.step = (g->a_m == 1 ? g->a_k : g->a_m) * bytes;
    c.bytes = (g->a_m == 1 ? rows : kc) * bytes;
    c.share = (c.lines + group / MR * x->panels - 1) / (group / MR * x->panels);
    return c;
}

/* The block of B after the one at k0, while the last tiles of this one are computed: what comes
 * earlier does not stay in L2. */
static coming coming_b(const block *x, int64_t k0, int64_t kc)
{
    const ls_gemm *g = x->p->g;
    int64_t next = ls_min_i64(kc, g->K - k0 - kc), bytes = ls_dtype_bytes(g->b_type);
    int64_t columns = x->w.n1 - x->w.n0, tiles = x->w.tiles / TILE / LATE + 1;
    coming c = {.at = element(g->b_type, g->b, (k0 + kc) * g->b_k + x->w.n0 * g->b_n)};

    if (g->packed && next > 0) { /* all in one run of memory: pieces of it */
        c.at = (const char *)packed_block(g, k0 + kc, next, x->w.n0);
        c.step = c.bytes = 64 * LINE;
        c.lines = x->panels * NR * next * (int64_t)sizeof(float) / c.step;
        c.share = (c.lines + tiles - 1) / tiles;
        return c;
    }
    c.lines = next <= 0 ? 0 : g->b_n == 1 ? next : columns;
    c.step = (g->b_n == 1 ? g->b_k : g->b_n) * bytes;
    c.bytes = (g->b_n == 1 ? columns : next) * bytes;
    c.share = (c.lines + tiles - 1) / tiles;
    return c;
}

/* The lines of a tile of `from` that finish will touch. */
LS_INLINE void ahead_tile(ahead_list *list, const ls_gemm *g, const void *from, int64_t m,
                          int64_t n, int64_t rows)
{
    int64_t bytes = ls_dtype_bytes(g->out_type), wide = NR * bytes;

    for (int64_t i = 0; i < rows; i++)
        ahead_add(list, element(g->out_type, from, (m + i) * g->ld + n), 4 * LINE, 8 * LINE,
                  (wide + 8 * LINE - 1) / (8 * LINE));
}

/* --- one block of K ----------------------------------------------------------------------------
 */

static void group_of_a(const block *x, int64_t m, int64_t k0, int64_t kc, float *sums, bool add)
{
    const ls_gemm *g = x->p->g;

    pack_a(g, m, ls_min_i64(x->p->group, x->w.m1 - m), k0, kc, x->a);
    if (sums && g->a_sums)
        add_columns(x->a, kc, AW, sums + m - x->w.m0, add);
}

/* All columns of the block for one block of K, panel after panel. */
static const float *block_of_b(const block *x, int64_t k0, int64_t kc, float *sums, bool add)
{
    const ls_gemm *g = x->p->g;

    if (g->packed)
        return packed_block(g, k0, kc, x->w.n0);
    pack_b_block(g, x->w.n0, x->w.n1, k0, kc, x->b, x->wide);
    for (int64_t n = x->w.n0; sums && g->b_sums && n < x->w.n1; n += NR)
        add_columns(x->b + (n - x->w.n0) * kc, kc, NR, sums + n - x->w.n0, add);
    return x->b;
}

static void multiply_block(const gemm_walk *w, int64_t k0, int64_t kc, float *c, bool add,
                           bool last)
{
    const block *x = (const block *)w;
    const plan *p = x->p;
    const ls_gemm *g = p->g;
    bool stored = p->cut.stored;
    float *sums = gemm_walk_sums(w, c);
    const float *b = block_of_b(x, k0, kc, sums, add);
    coming next_a = {0}, next_b = coming_b(x, k0, kc);
    _Alignas(64) float spare[TILE], *tile = stored ? c : spare;
    int64_t late = w->m1 - (w->m1 - w->m0) / LATE;
    ahead_list next;

    for (int64_t m = w->m0; m < w->m1; m += MR) {
        int64_t rows = ls_min_i64(MR, w->m1 - m), in_group = (m - w->m0) % p->group;
        if (in_group == 0) {
            next_a = coming_a(x, m + p->group, k0, kc);
            group_of_a(x, m, k0, kc, sums, add);
        }
        for (int64_t i = 0; i < x->panels; i++, tile += stored ? TILE : 0) {
            int64_t n = w->n0 + i * NR;
            next.n = 0;
            if (last)
                ahead_tile(&next, g, g->out, m, n, rows);
            if (last && g->aside)
                ahead_tile(&next, g, g->aside, m, n, rows);
            if (stored)
                ahead_add(&next, tile + TILE, 4 * LINE, 8 * LINE, TILE / (2 * LINE));
            ahead_lines(&next, &next_a);
            if (m >= late)
                ahead_lines(&next, &next_b);
            next.item[next.n] = (ahead){(const char *)tile, 0, 0, INT64_MAX};
            (g->a_m != 1 ? multiply_rows : multiply_columns)(rows, kc, x->a + in_group,
                                                             b + i * NR * kc, tile, add, next.item);
            if (last)
                g->finish(g, tile, m, n, rows, ls_min_i64(NR, w->n1 - n));
        }
    }
}

static void finish_tiles(const gemm_walk *w)
{
    const ls_gemm *g = w->g;
    const float *tile = w->c;

    for (int64_t m = w->m0; m < w->m1; m += MR)
        for (int64_t n = w->n0; n < w->n1; n += NR, tile += TILE)
            g->finish(g, tile, m, n, ls_min_i64(MR, w->m1 - m), ls_min_i64(NR, w->n1 - n));
}

static void run_block(void *context, int64_t index, int worker)
{
    const plan *p = context;
    block x = {.w = {.g = p->g, .cut = &p->cut, .multiply = multiply_block, .finish = finish_tiles},
               .p = p};

    x.a = ls_stream_thread_scratch(p->stream, worker);
    x.b = x.a + A_FLOATS;
    x.wide = x.b + B_FLOATS;
    x.w.c = x.wide + B_PANEL;
    gemm_walk_begin(&x.w, index, MR);
    x.panels = (x.w.n1 - x.w.n0 + NR - 1) / NR;
    gemm_walk_run(&x.w);
}

/* --- B for many products -----------------------------------------------------------------------
 */

/* Whether pairs of bf16 are multiplied, which is another layout. */
static bool in_pairs(const ls_gemm *g)
{
#if defined(__AVX512F__)
    return g->a_type == LS_BF16 && g->b_type == LS_BF16 && ls_dot_chosen() != LS_DOT_OFF;
#else
    (void)g;
    return false;
#endif
}

static bool is_few(const ls_gemm *g)
{
    return g->M <= LS_GEMM_FEW && g->leaves == 1 && g->a_k == 1 && !g->a_sums && !g->b_sums;
}

bool LS_ISA_NAME(ls_gemm_reads_packed)(const ls_gemm *g)
{
    return in_pairs(g) || !is_few(g);
}

int64_t LS_ISA_NAME(ls_gemm_pack_bytes)(const ls_gemm *g)
{
    if (in_pairs(g))
        return ls_dot_pack_bytes(g);
    return g->K * ls_round_up(g->N, NR) * (int64_t)sizeof(float);
}

typedef struct packing {
    const ls_gemm *g; /* whose packed is NULL */
    ls_stream *stream;
    float *to;
    int64_t parts; /* of NC_MOST columns, in a block of K */
} packing;

/* Some columns of a block of K. */
static void pack_part(void *context, int64_t index, int worker)
{
    const packing *p = context;
    const ls_gemm *g = p->g;
    float *wide = ls_stream_thread_scratch(p->stream, worker);
    int64_t k0 = index / p->parts * KC, n0 = index % p->parts * NC_MOST;
    int64_t kc = ls_min_i64(KC, g->K - k0), n1 = ls_min_i64(g->N, n0 + NC_MOST);

    pack_b_block(g, n0, n1, k0, kc, p->to + k0 * ls_round_up(g->N, NR) + n0 * kc, wide);
}

void LS_ISA_NAME(ls_gemm_pack)(ls_stream *stream, const ls_gemm *g, void *to)
{
    packing p = {.g = g, .stream = stream, .to = to, .parts = (g->N + NC_MOST - 1) / NC_MOST};

    if (in_pairs(g))
        ls_dot_pack(stream, g, to);
    else
        ls_pool_run(ls_stream_pool(stream), pack_part, &p, (g->K + KC - 1) / KC * p.parts);
}

void LS_ISA_NAME(ls_gemm_run)(ls_stream *stream, const ls_gemm *g)
{
    ls_pool *pool = ls_stream_pool(stream);
    plan p = {.g = g, .stream = stream, .group = g->a_m == 1 ? AW : MR};
    /* Cycles an element, measured; the operands of a weight's gradient come from further away. */
    const gemm_costs costs = {.rows = MR,
                              .rate = 32,
                              .pack_a = g->a_m == 1 ? 0.45 : 0.25,
                              .pack_b = g->packed                    ? 0.1
                                        : g->b_n == 1 && g->a_m != 1 ? 0.35
                                                                     : 0.7,
                              .b_floats = KC,
                              .near = NEAR,
                              .room = C_FLOATS,
                              .nc_most = NC_MOST};

    LS_BUG_IF(g->leaves < 1 || g->K % g->leaves != 0, "%lld leaves of %lld rows",
              (long long)g->leaves, (long long)g->K);
    LS_BUG_IF(g->a_sums && (g->a_m != 1 || g->b_sums), "sums of rows that are not packed by k");
    LS_BUG_IF(g->packed && (g->leaves > 1 || g->b_sums), "a packed operand is cut or summed");
    if (g->M <= 0 || g->N <= 0)
        return;
    if (in_pairs(g)) {
        ls_dot_run(stream, g);
        return;
    }
    if (is_few(g)) {
        LS_ISA_NAME(ls_gemm_run_few)(stream, g);
        return;
    }
    gemm_cut_choose(&p.cut, g, &costs, ls_pool_threads(pool));
    ls_pool_run(pool, run_block, &p, p.cut.tasks);
}

/* --- the usual finish ------------------------------------------------------------------------- */

LS_INLINE void store_tile(const ls_gemm *g, const ls_dtype type, const float *tile, int64_t m,
                          int64_t n, int64_t rows, int64_t cols, bool add)
{
    for (int64_t i = 0; i < rows; i++, tile += NR)
        for (int64_t j = 0; j < cols; j += LS_LANES) {
            int64_t at = (m + i) * g->ld + n + j;
            ls_v16 v = v_load(tile + j);
            if (add)
                v = v_add(v_load_most_as(type, g->out, at, cols - j), v);
            v_store_most_as(type, g->out, at, cols - j, v);
        }
}

void LS_ISA_NAME(ls_gemm_store)(const ls_gemm *g, const float *tile, int64_t m, int64_t n,
                                int64_t rows, int64_t cols)
{
    /* Whole tiles, nearly all of them, get loops of fixed length. */
    if (g->out_type == LS_BF16)
        store_tile(g, LS_BF16, tile, m, n, rows, cols, g->accumulate);
    else if (rows == MR && cols == NR && !g->accumulate)
        store_tile(g, LS_F32, tile, m, n, MR, NR, false);
    else if (rows == MR && cols == NR)
        store_tile(g, LS_F32, tile, m, n, MR, NR, true);
    else
        store_tile(g, LS_F32, tile, m, n, rows, cols, g->accumulate);
}
