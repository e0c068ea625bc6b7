/* gemm.c -- packed, blocked matrix product; see gemm.h for what a result is made of.
 *
 * C is cut into blocks of mc x nc, one task each. A task walks over the blocks of K: it packs its
 * rows of A (mc x KC, stays in L2) into panels of MR rows, then takes B panel by panel of NR
 * columns, packs one and lets the micro-kernel run down the panels of A; meanwhile the source of
 * the next panel of B and the lines of C that finish will touch are fetched. Both layouts of both
 * operands end up the same way. Partial sums of a block of C stay in the worker's scratch, tile by
 * tile, until the last block of K; then the row's own finish takes the tile.
 *
 * Packed panels are not shared between tasks. Packing costs 0.3 to 0.5 cycles an element, and an
 * element of A serves nc columns, one of B mc rows, at 32 products a cycle: together some 10 % of
 * the time at 384 x 384, less for wider outputs. Packing weights once per step is what would save
 * most of it; a barrier between packing and use inside each call would not.
 *
 * The tree over leaves (leaves.h) is a stack of partial sums per block.
 *
 * Few rows (generation) go another way with the same bits, without packing: see gemm_few.c. */
#include "kernel/cpu/simd/gemm.h"
#include "kernel/cpu/leaves.h"
#include "kernel/cpu/simd/transpose.h"

enum {
    MR = LS_GEMM_MR,
    NR = LS_GEMM_NR,
    KC = LS_GEMM_KC,
    NV = NR / LS_LANES,
    /* Floats from one k to the next in a packed panel of A; room for a transposed square. */
    AS = MR > 8   ? 16
         : MR > 4 ? 8
                  : 4,
    TILE = MR * NR,
    LINE = 16, /* floats of a cache line */
    MC_MOST = (280 + MR - 1) / MR * MR,
    FLOATS = LS_STREAM_THREAD_BYTES / 4,
    A_FLOATS = MC_MOST / MR * AS * KC,
    B_FLOATS = NR * KC,
    C_FLOATS = FLOATS - A_FLOATS - B_FLOATS
};

/* --- the micro-kernel --------------------------------------------------------------------------
 * tile = A panel x B panel over kc steps, or tile + that. rows is a constant at every call, so the
 * sums live in registers. */
LS_INLINE void step(const int rows, ls_v16 sum[MR][NV], const float *a, const float *b)
{
    ls_v16 right[NV];

#pragma GCC unroll 2
    for (int j = 0; j < NV; j++)
        right[j] = v_load(b + j * LS_LANES);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        ls_v16 left = v_set(a[i]);
#pragma GCC unroll 2
        for (int j = 0; j < NV; j++)
            sum[i][j] = v_fma(left, right[j], sum[i][j]);
    }
}

LS_INLINE void multiply(const int rows, int64_t kc, const float *a, const float *b, float *tile,
                        bool add)
{
    ls_v16 sum[MR][NV];

#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < NV; j++)
            sum[i][j] = v_set(0);
    /* Four steps at a time: a load then meets its own address stride four steps later, which is
     * how far ahead the hardware fetches from L2. Measured: a quarter faster than one step. Only
     * for whole tiles; other heights are few. */
    for (; rows == MR && kc >= 4; kc -= 4, a += 4 * AS, b += 4 * NR) {
        step(rows, sum, a, b);
        step(rows, sum, a + AS, b + NR);
        step(rows, sum, a + 2 * AS, b + 2 * NR);
        step(rows, sum, a + 3 * AS, b + 3 * NR);
    }
    for (; kc > 0; kc--, a += AS, b += NR)
        step(rows, sum, a, b);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < NV; j++) {
            float *to = tile + i * NR + j * LS_LANES;
            v_store(to, add ? v_add(v_load(to), sum[i][j]) : sum[i][j]);
        }
}

static __attribute__((noinline)) void multiply_rows(int64_t rows, int64_t kc, const float *a,
                                                    const float *b, float *tile, bool add)
{
#define HEIGHT(n)                                        \
    case n:                                              \
        multiply(n <= MR ? n : MR, kc, a, b, tile, add); \
        break
    switch (rows) {
        HEIGHT(1);
        HEIGHT(2);
        HEIGHT(3);
        HEIGHT(4);
#if defined(__AVX2__)
        HEIGHT(5);
        HEIGHT(6);
#endif
#if defined(__AVX512F__)
        HEIGHT(7);
        HEIGHT(8);
        HEIGHT(9);
        HEIGHT(10);
        HEIGHT(11);
        HEIGHT(12);
        HEIGHT(13);
        HEIGHT(14);
#endif
    }
#undef HEIGHT
}

/* --- packing ---------------------------------------------------------------------------------*/

#if defined(__AVX512F__)
enum { SQUARE = 16 };

/* to[j * to_row + i] = from[i * from_row + j] for i < rows and j < cols; rows up to 16 get zero. */
LS_INLINE void transpose(const float *from, int64_t from_row, int64_t rows, int64_t cols, float *to,
                         int64_t to_row)
{
    ls_v16 r[16];

#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        r[i] = i >= rows    ? v_set(0)
               : cols == 16 ? v_load(from + i * from_row)
                            : v_load_part(from + i * from_row, cols, 0);
    v_transpose(r);
#pragma GCC unroll 16
    for (int j = 0; j < 16; j++)
        if (j < cols)
            v_store(to + j * to_row, r[j]);
}

#elif defined(__AVX2__)
enum { SQUARE = 8 };

LS_INLINE void transpose(const float *from, int64_t from_row, int64_t rows, int64_t cols, float *to,
                         int64_t to_row)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)cols), lane);
    __m256 r[8];

#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        r[i] = i < rows ? _mm256_maskload_ps(from + i * from_row, mask) : _mm256_setzero_ps();
    v_transpose8(r);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++)
        if (j < cols)
            _mm256_storeu_ps(to + j * to_row, r[j]);
}

#else
enum { SQUARE = 4 };

LS_INLINE void transpose(const float *from, int64_t from_row, int64_t rows, int64_t cols, float *to,
                         int64_t to_row)
{
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = 0; i < SQUARE; i++)
            to[j * to_row + i] = i < rows ? from[i * from_row + j] : 0;
}
#endif

static void transpose_part(const float *from, int64_t from_row, int64_t rows, int64_t cols,
                           float *to, int64_t to_row)
{
    transpose(from, from_row, rows, cols, to, to_row);
}

/* A panel whose k runs along memory: `lines` lines (rows of A, columns of B) of kc elements become
 * kc rows of `width`, a multiple of SQUARE; missing lines are zero. */
static void pack_across(const float *from, int64_t line, int64_t lines, int64_t kc, float *to,
                        int64_t width)
{
    for (int64_t i = 0; i < width; i += SQUARE, from += SQUARE * line, to += SQUARE) {
        int64_t here = lines - i, k = 0;
        if (here >= SQUARE)
            for (; k + SQUARE <= kc; k += SQUARE)
                transpose(from + k, line, SQUARE, SQUARE, to + k * width, width);
        else if (here == MR % SQUARE)
            for (; k + SQUARE <= kc; k += SQUARE)
                transpose(from + k, line, MR % SQUARE, SQUARE, to + k * width, width);
        for (; k < kc; k += SQUARE)
            transpose_part(from + k, line, here, ls_min_i64(SQUARE, kc - k), to + k * width, width);
    }
}

/* A panel whose lines lie side by side: row k is copied as it is, and filled up with zeros. */
LS_INLINE void copy_rows(const float *from, int64_t step, int64_t lines, int64_t kc, float *to,
                         const int64_t width)
{
    for (int64_t k = 0; k < kc; k++, from += step, to += width) {
        int64_t i = 0;
        for (; i + LS_LANES <= width; i += LS_LANES)
            v_store(to + i, lines - i >= LS_LANES ? v_load(from + i)
                            : lines > i           ? v_load_part(from + i, lines - i, 0)
                                                  : v_set(0));
        for (; i < width; i++)
            to[i] = i < lines ? from[i] : 0;
    }
}

LS_INLINE void pack_along(const float *from, int64_t step, int64_t lines, int64_t kc, float *to,
                          const int64_t width, const int64_t usual)
{
    if (lines == usual)
        copy_rows(from, step, usual, kc, to, width);
    else
        copy_rows(from, step, lines, kc, to, width);
}

static void pack_a(const ls_gemm *g, int64_t m0, int64_t m1, int64_t k0, int64_t kc, float *to)
{
    for (int64_t m = m0; m < m1; m += MR, to += AS * kc) {
        const float *from = g->a + m * g->a_m + k0 * g->a_k;
        int64_t rows = ls_min_i64(MR, m1 - m);
        if (g->a_k == 1)
            pack_across(from, g->a_m, rows, kc, to, AS);
        else
            pack_along(from, g->a_k, rows, kc, to, AS, MR);
    }
}

static void pack_b(const ls_gemm *g, int64_t n, int64_t cols, int64_t k0, int64_t kc, float *to)
{
    const float *from = g->b + k0 * g->b_k + n * g->b_n;

    if (g->b_n == 1)
        pack_along(from, g->b_k, cols, kc, to, NR, NR);
    else
        pack_across(from, g->b_n, cols, kc, to, NR);
}

/* Fetch a share, `part` of `parts`, of what pack_b will read. */
static void expect_b(const ls_gemm *g, int64_t n, int64_t cols, int64_t k0, int64_t kc,
                     int64_t part, int64_t parts)
{
    const float *from = g->b + k0 * g->b_k + n * g->b_n;
    int64_t lines = g->b_n == 1 ? kc : cols, length = g->b_n == 1 ? cols : kc;
    int64_t step = g->b_n == 1 ? g->b_k : g->b_n;

    for (int64_t i = lines * part / parts; i < lines * (part + 1) / parts; i++)
        for (int64_t j = 0; j < length; j += LINE)
            __builtin_prefetch(from + i * step + j, 0, 2);
}

/* --- one block of C ----------------------------------------------------------------------------*/

typedef struct plan {
    const ls_gemm *g;
    ls_stream *stream;
    int64_t mc, nc;   /* size of a block of C: multiples of MR and NR */
    int64_t m_blocks; /* blocks from top to bottom; tasks go down first */
    int64_t leaf_k;   /* K of one leaf */
    bool stored;      /* partial sums are kept in scratch */
} plan;

typedef struct block {
    const plan *p;
    int64_t m0, m1, n0, n1;
    float *a, *b; /* packed: all panels of A, one group of B */
    float *c;     /* stack of partial sums, `floats` each, tile by tile */
    int64_t floats;
} block;

/* Ask for the lines that finish will touch; they arrive while the products run. */
LS_INLINE void expect_tile(const ls_gemm *g, int64_t m, int64_t n, int64_t rows)
{
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = (m + i) * g->ld + n;
#pragma GCC unroll 2
        for (int j = 0; j < NV; j++) {
            __builtin_prefetch(g->out + at + j * LS_LANES);
            if (g->aside)
                __builtin_prefetch(g->aside + at + j * LS_LANES);
        }
    }
}

/* The products of one block of K, for all tiles; finish them when these were the last. */
static void multiply_block(const block *x, int64_t k0, int64_t kc, float *c, bool add, bool last)
{
    const ls_gemm *g = x->p->g;
    int64_t panels = (x->m1 - x->m0 + MR - 1) / MR;
    _Alignas(64) float spare[TILE];

    pack_a(g, x->m0, x->m1, k0, kc, x->a);
    for (int64_t n = x->n0; n < x->n1; n += NR) {
        int64_t cols = ls_min_i64(NR, x->n1 - n), next = ls_min_i64(NR, x->n1 - n - NR);
        pack_b(g, n, cols, k0, kc, x->b);
        for (int64_t i = 0; i < panels; i++) {
            int64_t m = x->m0 + i * MR, rows = ls_min_i64(MR, x->m1 - m);
            float *tile = x->p->stored ? c : spare;
            if (next > 0)
                expect_b(g, n + NR, next, k0, kc, i, panels);
            if (last)
                expect_tile(g, m, n, rows);
            multiply_rows(rows, kc, x->a + i * AS * kc, x->b, tile, add);
            if (last)
                g->finish(g, tile, m, n, rows, cols);
            c += x->p->stored ? TILE : 0;
        }
    }
}

static void multiply_leaf(const block *x, int64_t leaf, float *c, bool last)
{
    int64_t K = x->p->leaf_k, k = 0;

    do {
        int64_t kc = ls_min_i64(KC, K - k);
        multiply_block(x, leaf * K + k, kc, c, k > 0, last && k + kc == K);
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

static void finish_block(const block *x)
{
    const ls_gemm *g = x->p->g;
    const float *tile = x->c;

    for (int64_t n = x->n0; n < x->n1; n += NR)
        for (int64_t m = x->m0; m < x->m1; m += MR, tile += TILE)
            g->finish(g, tile, m, n, ls_min_i64(MR, x->m1 - m), ls_min_i64(NR, x->n1 - n));
}

static void run_block(void *context, int64_t index, int worker)
{
    const plan *p = context;
    const ls_gemm *g = p->g;
    block x = {.p = p};
    int top = -1;

    x.m0 = index % p->m_blocks * p->mc;
    x.n0 = index / p->m_blocks * p->nc;
    x.m1 = ls_min_i64(g->M, x.m0 + p->mc);
    x.n1 = ls_min_i64(g->N, x.n0 + p->nc);
    x.a = ls_stream_thread_scratch(p->stream, worker);
    x.b = x.a + A_FLOATS;
    x.c = x.b + B_FLOATS;
    x.floats = ls_round_up(x.m1 - x.m0, MR) * ls_round_up(x.n1 - x.n0, NR);
    if (g->leaves == 1) {
        multiply_leaf(&x, 0, x.c, true);
        return;
    }
    for (int64_t leaf = 0; leaf < g->leaves; leaf++) {
        multiply_leaf(&x, leaf, x.c + ++top * x.floats, false);
        for (int i = ls_leaves_merges(leaf, g->leaves, top); i > 0; i--)
            merge_top(&x, top--);
    }
    finish_block(&x);
}

/* --- how C is cut ------------------------------------------------------------------------------
 * The cut decides speed, never bits. Time of a task in cycles per k: mc nc / 32 for the products,
 * and about 0.4 per packed element; tasks come in waves of as many as there are threads. */
static double cut_cost(int64_t mc, int64_t nc, int64_t tasks, int threads)
{
    int64_t waves = (tasks + threads - 1) / threads;

    return (double)waves * ((double)(mc * nc) / 32 + 0.4 * (double)(mc + nc));
}

static void choose_cut(plan *p, int threads)
{
    const ls_gemm *g = p->g;
    int64_t mc_most = MC_MOST, nc_most = ls_round_up(g->N, NR);
    double best = 0;

    if (p->stored) {
        int64_t floats = C_FLOATS / ls_leaves_depth(g->leaves);
        mc_most = ls_min_i64(mc_most, ls_round_up(g->M, MR));
        while (mc_most > 4 * MR && floats / mc_most < mc_most)
            mc_most -= MR;
        nc_most = ls_min_i64(nc_most, floats / mc_most / NR * NR);
    }
    p->mc = 0;
    for (int64_t mb = (g->M + mc_most - 1) / mc_most, i = 0; i < 8; i++, mb++)
        for (int64_t nb = (g->N + nc_most - 1) / nc_most, j = 0; j <= threads; j++, nb++) {
            int64_t mc = ls_round_up((g->M + mb - 1) / mb, MR);
            int64_t nc = ls_round_up((g->N + nb - 1) / nb, NR);
            int64_t tasks = (g->M + mc - 1) / mc * ((g->N + nc - 1) / nc);
            double cost = cut_cost(mc, nc, tasks, threads);
            if (p->mc && cost >= best)
                continue;
            best = cost;
            p->mc = mc;
            p->nc = nc;
        }
}

void LS_ISA_NAME(ls_gemm_run)(ls_stream *stream, const ls_gemm *g)
{
    ls_pool *pool = ls_stream_pool(stream);
    plan p = {.g = g, .stream = stream, .leaf_k = g->K / g->leaves};

    LS_BUG_IF(g->K % g->leaves != 0 || g->leaves < 1, "%lld leaves of %lld rows",
              (long long)g->leaves, (long long)g->K);
    if (g->M <= 0 || g->N <= 0)
        return;
    if (g->M <= LS_GEMM_FEW && g->leaves == 1 && g->a_k == 1) {
        LS_ISA_NAME(ls_gemm_run_few)(stream, g);
        return;
    }
    p.stored = g->leaves > 1 || g->K > KC;
    choose_cut(&p, ls_pool_threads(pool));
    p.m_blocks = (g->M + p.mc - 1) / p.mc;
    ls_pool_run(pool, run_block, &p, p.m_blocks * ((g->N + p.nc - 1) / p.nc));
}

LS_INLINE void store_tile(float *out, int64_t ld, const float *tile, int64_t rows, int64_t cols,
                          bool add)
{
    for (int64_t i = 0; i < rows; i++, tile += NR, out += ld)
        for (int64_t j = 0; j < cols; j += LS_LANES) {
            ls_v16 v = v_load(tile + j);
            v_store_most(out + j, cols - j, add ? v_add(v_load_most(out + j, cols - j), v) : v);
        }
}

void LS_ISA_NAME(ls_gemm_store)(const ls_gemm *g, const float *tile, int64_t m, int64_t n,
                                int64_t rows, int64_t cols)
{
    float *out = g->out + m * g->ld + n;

    /* Whole tiles, nearly all of them, get loops of fixed length. */
    if (rows == MR && cols == NR && !g->accumulate)
        store_tile(out, g->ld, tile, MR, NR, false);
    else if (rows == MR && cols == NR)
        store_tile(out, g->ld, tile, MR, NR, true);
    else
        store_tile(out, g->ld, tile, rows, cols, g->accumulate);
}
