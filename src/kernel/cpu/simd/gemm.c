/* gemm.c -- packed, blocked matrix product; see gemm.h for what a result is made of, gemm_pack.h
 * for how operands lie while it runs.
 *
 * C is cut into blocks of mc x nc, one task each. A task walks over the blocks of K: nc columns of
 * B for a block of K stay in L2; a panel of MR rows of A at a time is copied into L1 and taken
 * across them. Meanwhile the next panel of A, the next block of B and the lines of C that will be
 * touched are fetched, so that copying finds them near. Partial sums of a block of C stay in the
 * worker's scratch, tile by tile, until the last block of K; then the row's own finish takes the
 * tile.
 *
 * Each task packs its own columns of B, for as many rows as it has: half or a quarter of a call.
 * Packing a weight once for all tasks, or once a step, is slower on two cores: 75 to 79 instead of
 * 82 to 84 % of the peak. Lines that one core has written or that both read at the same time do not
 * stay in the caches of both.
 *
 * The micro-kernel alone, with everything in L2, runs at 97 % of the fma peak; what is lost beside
 * it is packing, the finish and the uneven end of a call.
 *
 * The tree over leaves (leaves.h) is a stack of partial sums per block. A leaf of one block of K
 * whose sum would be merged at once is added to the top of the stack instead.
 *
 * Few rows (generation) go another way with the same bits, without packing: see gemm_few.c. */
#include "kernel/cpu/dot/dot.h"
#include "kernel/cpu/leaves.h"
#include "kernel/cpu/simd/gemm_pack.h"

enum {
    TILE = MR * NR,
    NC_MOST = 384, /* columns of a block: B_FLOATS, and A, and C stay in L2 */
    FLOATS = LS_STREAM_THREAD_BYTES / 4,
    B_FLOATS = NC_MOST * KC,
    C_FLOATS = FLOATS - A_PANEL - B_FLOATS - B_PANEL,
    NEAR = 400 << 10 /* floats of B and partial sums that stay in L2 */
};

/* --- the micro-kernel --------------------------------------------------------------------------
 * tile = A panel x B panel over kc steps, or tile + that. rows, and how a panel of A lies, are
 * constants at every call, so the sums live in registers: row i at k is a[i * a_row + k * a_step].
 */
LS_INLINE void step(const int rows, const int a_row, ls_v16 sum[MR][NV], const float *a,
                    const float *b)
{
    ls_v16 right[NV];

#pragma GCC unroll 2
    for (int j = 0; j < NV; j++)
        right[j] = v_load(b + j * LS_LANES);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        ls_v16 left = v_set(a[i * a_row]);
#pragma GCC unroll 2
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
#pragma GCC unroll 2
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
#pragma GCC unroll 2
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
#if defined(__AVX512F__)
        HEIGHT(8);
        HEIGHT(10);
        HEIGHT(12);
        HEIGHT(14);
#endif
    }
#undef HEIGHT
}

static __attribute__((noinline)) void multiply_rows(int64_t rows, int64_t kc, const float *a,
                                                    const float *b, float *tile, bool add,
                                                    const ahead *next)
{
    multiply_height(rows, AR, 1, kc, a, b, tile, add, next);
}

static __attribute__((noinline)) void multiply_columns(int64_t rows, int64_t kc, const float *a,
                                                       const float *b, float *tile, bool add,
                                                       const ahead *next)
{
    multiply_height(rows, 1, AS, kc, a, b, tile, add, next);
}

/* --- one block of C ----------------------------------------------------------------------------*/

typedef struct plan {
    const ls_gemm *g;
    ls_stream *stream;
    int64_t mc, nc;   /* size of a block of C: multiples of MR and NR */
    int64_t m_blocks; /* blocks from top to bottom; tasks go down first */
    int64_t leaf_k;   /* K of one leaf */
    int levels;       /* of the stack of partial sums */
    bool stored;      /* partial sums are kept in scratch */
} plan;

typedef struct block {
    const plan *p;
    int64_t m0, m1, n0, n1, panels; /* panels: of NR columns */
    float *a;                       /* one packed panel of A */
    float *b, *wide;                /* packed columns of B; room to widen a panel */
    float *c; /* stack of partial sums, `floats` each: tile by tile, then sums over k */
    int64_t tiles, floats;
} block;

/* --- what a tile fetches for those after it ----------------------------------------------------
 */

enum { AHEAD_MOST = 3 * MR + 2 };

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

/* Rows from m on of A, in the block of K at k0, while one row of tiles is computed. */
static coming coming_a(const block *x, int64_t m, int64_t k0, int64_t kc)
{
    const ls_gemm *g = x->p->g;
    int64_t rows = ls_min_i64(MR, x->m1 - m), bytes = ls_dtype_bytes(g->a_type);
    coming c = {.at = element(g->a_type, g->a, m * g->a_m + k0 * g->a_k)};

    c.lines = rows <= 0 ? 0 : g->a_m == 1 ? kc : rows;
    c.step = (g->a_m == 1 ? g->a_k : g->a_m) * bytes;
    c.bytes = (g->a_m == 1 ? rows : kc) * bytes;
    c.share = (c.lines + x->panels - 1) / x->panels;
    return c;
}

/* The block of B after the one at k0, while all tiles of this one are computed. */
static coming coming_b(const block *x, int64_t k0, int64_t kc)
{
    const ls_gemm *g = x->p->g;
    int64_t next = ls_min_i64(kc, g->K - k0 - kc), bytes = ls_dtype_bytes(g->b_type);
    int64_t columns = x->n1 - x->n0, tiles = x->tiles / TILE;
    coming c = {.at = element(g->b_type, g->b, (k0 + kc) * g->b_k + x->n0 * g->b_n)};

    c.lines = next <= 0 ? 0 : g->b_n == 1 ? next : columns;
    c.step = (g->b_n == 1 ? g->b_k : g->b_n) * bytes;
    c.bytes = (g->b_n == 1 ? columns : next) * bytes;
    c.share = (c.lines + tiles - 1) / tiles;
    return c;
}

/* The lines that finish will touch. */
LS_INLINE void ahead_out(ahead_list *list, const ls_gemm *g, int64_t m, int64_t n, int64_t rows)
{
    int64_t bytes = ls_dtype_bytes(g->out_type);

    ahead_add(list, element(g->out_type, g->out, m * g->ld + n), NR * bytes - 1, g->ld * bytes,
              rows);
    if (g->aside)
        ahead_add(list, element(g->out_type, g->aside, m * g->ld + n), NR * bytes - 1,
                  g->ld * bytes, rows);
}

/* --- one block of K ----------------------------------------------------------------------------
 */

static void panel_of_a(const block *x, int64_t m, int64_t k0, int64_t kc, float *sums, bool add)
{
    const ls_gemm *g = x->p->g;

    pack_a(g, m, ls_min_i64(MR, x->m1 - m), k0, kc, x->a);
    if (sums && g->a_sums) {
        float part[AS];
        add_columns(x->a, kc, AS, part, false);
        for (int64_t i = 0; i < MR; i++)
            sums[m - x->m0 + i] = add ? sums[m - x->m0 + i] + part[i] : part[i];
    }
}

/* All columns of the block for one block of K, panel after panel. */
static const float *block_of_b(const block *x, int64_t k0, int64_t kc, float *sums, bool add)
{
    const ls_gemm *g = x->p->g;

    if (g->b_n == 1)
        pack_b_rows(g, x->n0, x->n1, k0, kc, x->b);
    else
        for (int64_t n = x->n0; n < x->n1; n += NR)
            pack_b(g, n, ls_min_i64(NR, x->n1 - n), k0, kc, x->b + (n - x->n0) * kc, x->wide);
    for (int64_t n = x->n0; sums && g->b_sums && n < x->n1; n += NR)
        add_columns(x->b + (n - x->n0) * kc, kc, NR, sums + n - x->n0, add);
    return x->b;
}

/* The products of one block of K, for all tiles; finish them when these were the last. */
static void multiply_block(const block *x, int64_t k0, int64_t kc, float *c, bool add, bool last)
{
    const plan *p = x->p;
    const ls_gemm *g = p->g;
    float *sums = x->floats > x->tiles ? c + x->tiles : NULL;
    const float *b = block_of_b(x, k0, kc, sums, add);
    coming next_b = coming_b(x, k0, kc);
    _Alignas(64) float spare[TILE], *tile = p->stored ? c : spare;
    ahead_list next;

    for (int64_t m = x->m0; m < x->m1; m += MR) {
        int64_t rows = ls_min_i64(MR, x->m1 - m);
        coming next_a = coming_a(x, m + MR, k0, kc);
        panel_of_a(x, m, k0, kc, sums, add);
        for (int64_t i = 0; i < x->panels; i++, tile += p->stored ? TILE : 0) {
            int64_t n = x->n0 + i * NR;
            next.n = 0;
            if (last)
                ahead_out(&next, g, m, n, rows);
            if (p->stored)
                ahead_add(&next, tile + TILE, 4 * LINE, 8 * LINE, TILE / (2 * LINE));
            ahead_lines(&next, &next_a);
            ahead_lines(&next, &next_b);
            next.item[next.n] = (ahead){(const char *)tile, 0, 0, INT64_MAX};
            (g->a_m != 1 ? multiply_rows : multiply_columns)(rows, kc, x->a, b + i * NR * kc, tile,
                                                             add, next.item);
            if (last)
                g->finish(g, tile, m, n, rows, ls_min_i64(NR, x->n1 - n));
        }
    }
}

/* All blocks of K of a leaf; add: to what is in c, which a leaf of one block may be. */
static void multiply_leaf(const block *x, int64_t leaf, float *c, bool add, bool last)
{
    int64_t K = x->p->leaf_k, k = 0;

    do {
        int64_t kc = ls_min_i64(KC, K - k);
        multiply_block(x, leaf * K + k, kc, c, add || k > 0, last && k + kc == K);
        k += kc;
    } while (k < K);
}

/* Sum the top of the stack into the one below. */
static void merge_top(const block *x, int top)
{
    float *into = x->c + (top - 1) * x->floats;
    const float *from = into + x->floats;

    for (int64_t i = 0; i < x->floats; i += LS_LANES)
        v_store(into + i, v_add(v_load(into + i), v_load(from + i)));
}

static void finish_tiles(const block *x)
{
    const ls_gemm *g = x->p->g;
    const float *tile = x->c;

    for (int64_t m = x->m0; m < x->m1; m += MR)
        for (int64_t n = x->n0; n < x->n1; n += NR, tile += TILE)
            g->finish(g, tile, m, n, ls_min_i64(MR, x->m1 - m), ls_min_i64(NR, x->n1 - n));
}

static void finish_sums(const block *x)
{
    const ls_gemm *g = x->p->g;
    const float *sums = x->c + x->tiles;
    float *to = g->b_sums ? g->b_sums + x->n0 : g->a_sums + x->m0;
    int64_t n = g->b_sums ? x->n1 - x->n0 : x->m1 - x->m0;

    for (int64_t i = 0; i < n; i++)
        to[i] = g->accumulate ? to[i] + sums[i] : sums[i];
}

static void run_leaves(const block *x)
{
    const ls_gemm *g = x->p->g;
    bool one_block = x->p->leaf_k <= KC;
    int top = -1;

    for (int64_t leaf = 0; leaf < g->leaves; leaf++) {
        int merges = ls_leaves_merges(leaf, g->leaves, top + 1);
        if (one_block && merges > 0) {
            multiply_leaf(x, leaf, x->c + top * x->floats, true, false);
            merges--;
        } else {
            multiply_leaf(x, leaf, x->c + ++top * x->floats, false, false);
        }
        for (; merges > 0; merges--)
            merge_top(x, top--);
    }
    finish_tiles(x);
}

static void run_block(void *context, int64_t index, int worker)
{
    const plan *p = context;
    const ls_gemm *g = p->g;
    block x = {.p = p};
    bool sums;

    x.m0 = index % p->m_blocks * p->mc;
    x.n0 = index / p->m_blocks * p->nc;
    x.m1 = ls_min_i64(g->M, x.m0 + p->mc);
    x.n1 = ls_min_i64(g->N, x.n0 + p->nc);
    x.panels = (x.n1 - x.n0 + NR - 1) / NR;
    x.a = ls_stream_thread_scratch(p->stream, worker);
    x.b = x.a + A_PANEL;
    x.wide = x.b + B_FLOATS;
    x.c = x.wide + B_PANEL;
    x.tiles = ls_round_up(x.m1 - x.m0, MR) * ls_round_up(x.n1 - x.n0, NR);
    /* The blocks at one edge of C see each value of the other operand once: they sum it. */
    sums = (g->b_sums && x.m0 == 0) || (g->a_sums && x.n0 == 0);
    x.floats = x.tiles + (sums ? ls_round_up(g->b_sums ? p->nc : p->mc + AS, LS_LANES) : 0);
    if (g->leaves == 1)
        multiply_leaf(&x, 0, x.c, false, true);
    else
        run_leaves(&x);
    if (sums)
        finish_sums(&x);
}

/* --- how C is cut ------------------------------------------------------------------------------
 * The cut decides speed, never bits. Time of a task in cycles per k: mc nc / 32 for the products,
 * and about 0.1 per element copied, 0.5 per element turned; tasks come in waves of as many as
 * there are threads, and part of one task is lost at the end. */
static double cut_cost(const ls_gemm *g, int64_t mc, int64_t nc, int64_t tasks, int threads)
{
    int64_t waves = (tasks + threads - 1) / threads;
    double pack_a = 0.5, pack_b = g->b_n == 1 ? 0.3 : 0.6;
    double task = (double)(mc * nc) / 32;

    task += pack_a * (double)mc + pack_b * (double)nc;
    return ((double)waves + (threads > 1 ? 0.1 : 0)) * task;
}

/* Rows of a block at most, for so many columns. */
static int64_t most_rows(const plan *p, int64_t nc)
{
    int64_t all = ls_round_up(p->g->M, MR), near = NEAR - nc * ls_min_i64(KC, p->leaf_k);

    return p->stored ? ls_max_i64(MR, ls_min_i64(all, near / p->levels / nc / MR * MR)) : all;
}

static void choose_cut(plan *p, int threads)
{
    const ls_gemm *g = p->g;
    int64_t nb_least = (g->N + NC_MOST - 1) / NC_MOST, nb_most = nb_least + 4 * threads;
    double best = 0;

    p->mc = 0;
    for (int64_t nb = nb_least; nb <= nb_most; nb++) {
        int64_t nc = ls_round_up((g->N + nb - 1) / nb, NR), most = most_rows(p, nc);
        for (int64_t mb = (g->M + most - 1) / most, i = 0; i < 32; i++, mb++) {
            int64_t mc = ls_round_up((g->M + mb - 1) / mb, MR);
            int64_t tasks = (g->M + mc - 1) / mc * ((g->N + nc - 1) / nc);
            double cost = cut_cost(g, mc, nc, tasks, threads);
            if (p->mc && cost >= best)
                continue;
            best = cost;
            p->mc = mc;
            p->nc = nc;
        }
    }
}

void LS_ISA_NAME(ls_gemm_run)(ls_stream *stream, const ls_gemm *g)
{
    ls_pool *pool = ls_stream_pool(stream);
    plan p = {.g = g, .stream = stream, .leaf_k = g->K / g->leaves};

    bool sums = g->a_sums || g->b_sums;

    LS_BUG_IF(g->K % g->leaves != 0 || g->leaves < 1, "%lld leaves of %lld rows",
              (long long)g->leaves, (long long)g->K);
    LS_BUG_IF(g->a_sums && (g->a_m != 1 || g->b_sums), "sums of rows that are not packed by k");
    if (g->M <= 0 || g->N <= 0)
        return;
#if defined(__AVX512F__)
    if (g->a_type == LS_BF16 && g->b_type == LS_BF16 && ls_dot_chosen() != LS_DOT_OFF) {
        ls_dot_run(stream, g);
        return;
    }
#endif
    if (g->M <= LS_GEMM_FEW && g->leaves == 1 && g->a_k == 1 && !sums) {
        LS_ISA_NAME(ls_gemm_run_few)(stream, g);
        return;
    }
    p.stored = g->leaves > 1 || g->K > KC || sums;
    p.levels = ls_leaves_depth(g->leaves) - (g->leaves > 1 && p.leaf_k <= KC);
    choose_cut(&p, ls_pool_threads(pool));
    p.m_blocks = (g->M + p.mc - 1) / p.mc;
    ls_pool_run(pool, run_block, &p, p.m_blocks * ((g->N + p.nc - 1) / p.nc));
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
