/* dot_run.c -- the packed, blocked product around the instructions; see dot.h for what a result is
 * made of, dot_impl.h for how operands lie.
 *
 * For each block of K (gemm_walk.h) a task packs its columns of B as pairs of k, then one panel of
 * rows of A at a time, and takes the panel across all columns. Partial sums stay in the worker's
 * scratch, tile by tile, until the last block of K; then the row's own finish takes them.
 *
 * Packing moves words of 32 bits, never single values: where k runs along memory, words lie there
 * already, and B needs squares of 16 by 16 turned; where it does not, two rows are interleaved, and
 * A needs squares turned. */
#include "kernel/cpu/dot/dot.h"

#include "kernel/cpu/dot/dot_impl.h"
#include "kernel/cpu/simd/gemm_walk.h"
#include "kernel/cpu/simd/transpose.h"

#if defined(__AVX512F__)
enum {
    MR = LS_GEMM_MR,
    NR = LS_GEMM_NR,
    RUN = LS_DOT_RUN,
    NC_MOST = 384,
    FLOATS = LS_STREAM_THREAD_BYTES / 4,
    A_WORDS = LS_DOT_ROWS * LS_DOT_AR,
    B_WORDS = NC_MOST * LS_DOT_WORDS,
    NEAR = 400 << 10 /* words of B and partial sums that stay in L2 */
};
_Static_assert(A_WORDS + B_WORDS + NEAR <= FLOATS, "too little memory");

/* --- packing -----------------------------------------------------------------------------------
 */

/* Words of a block of K, filled up. */
static int64_t words_of(int64_t kc)
{
    return ls_round_up((kc + 1) / 2, RUN);
}

/* The first n of 32 values, or fewer; the others are zero. */
LS_INLINE __m512i load_values(const uint16_t *from, int64_t n)
{
    uint32_t mask = n >= 32 ? UINT32_MAX : n <= 0 ? 0 : (1u << n) - 1;

    return _mm512_maskz_loadu_epi16(mask, from);
}

/* Words of columns 0 to 15 (half 0) or 16 to 31 (half 1) out of two rows of k. */
LS_INLINE __m512i interleave(__m512i even, __m512i odd, const int half)
{
    const __m512i first = _mm512_setr_epi32(
        0x200000, 0x210001, 0x220002, 0x230003, 0x240004, 0x250005, 0x260006, 0x270007, 0x280008,
        0x290009, 0x2a000a, 0x2b000b, 0x2c000c, 0x2d000d, 0x2e000e, 0x2f000f);
    __m512i at = _mm512_add_epi16(first, _mm512_set1_epi16((int16_t)(16 * half)));

    return _mm512_permutex2var_epi16(even, at, odd);
}

/* A square of words: r[i] are 16 words of line i; to[j * row] are the j-th words of all lines. */
LS_INLINE void store_turned(ls_v16 r[16], uint32_t *to, int64_t row)
{
    v_transpose(r);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        _mm512_storeu_si512(to + i * row, _mm512_castps_si512(r[i]));
}

/* Rows of A whose k lies side by side: as they are. */
static void pack_a_along(const uint16_t *from, int64_t row, int64_t rows, int64_t kc, uint32_t *to)
{
    int64_t words = words_of(kc);

    for (int64_t i = 0; i < rows; i++, from += row, to += LS_DOT_AR)
        for (int64_t w = 0; w < words; w += RUN)
            _mm512_storeu_si512(to + w, load_values(from + 2 * w, kc - 2 * w));
}

/* Rows of A that lie side by side: pairs of k are interleaved, then turned. */
static void pack_a_across(const uint16_t *from, int64_t step, int64_t rows, int64_t kc,
                          uint32_t *to)
{
    int64_t words = words_of(kc);
    ls_v16 r[16];

    for (int64_t i = 0; i < rows; i += 16)
        for (int64_t w = 0; w < words; w += RUN) {
#pragma GCC unroll 16
            for (int64_t j = 0; j < 16; j++) {
                int64_t k = 2 * (w + j), n = ls_min_i64(16, rows - i);
                const uint16_t *at = from + i + k * step;
                __m512i even = k < kc ? load_values(at, n) : _mm512_setzero_si512();
                __m512i odd = k + 1 < kc ? load_values(at + step, n) : _mm512_setzero_si512();
                r[j] = _mm512_castsi512_ps(interleave(even, odd, 0));
            }
            store_turned(r, to + i * LS_DOT_AR + w, LS_DOT_AR);
        }
}

/* Rows m .. m+rows-1 of A, block k0 .. k0+kc-1; filled up with zeros to a multiple of step rows. */
static void pack_a(const ls_gemm *g, int64_t m, int64_t rows, int64_t k0, int64_t kc, int64_t step,
                   uint32_t *to)
{
    const uint16_t *from = (const uint16_t *)g->a + m * g->a_m + k0 * g->a_k;

    if (g->a_k == 1)
        pack_a_along(from, g->a_m, rows, kc, to);
    else
        pack_a_across(from, g->a_k, rows, kc, to);
    for (int64_t i = rows; i < ls_round_up(rows, step); i++)
        memset(to + i * LS_DOT_AR, 0, (size_t)words_of(kc) * sizeof *to);
}

/* A panel of columns of B that lie side by side: pairs of k are interleaved. */
static void pack_b_along(const uint16_t *from, int64_t step, int64_t cols, int64_t kc, uint32_t *to)
{
    int64_t words = words_of(kc);

    for (int64_t k = 0; k < 2 * words; k += 2, from += 2 * step, to += NR)
        for (int64_t n = 0; n < NR; n += 32) {
            int64_t left = cols - n;
            __m512i even = k < kc ? load_values(from + n, left) : _mm512_setzero_si512();
            __m512i odd = k + 1 < kc ? load_values(from + step + n, left) : _mm512_setzero_si512();
            _mm512_storeu_si512(to + n, interleave(even, odd, 0));
            _mm512_storeu_si512(to + n + 16, interleave(even, odd, 1));
        }
}

/* A panel of columns of B whose k lies side by side: turned. */
static void pack_b_across(const uint16_t *from, int64_t line, int64_t cols, int64_t kc,
                          uint32_t *to)
{
    int64_t words = words_of(kc);
    ls_v16 r[16];

    for (int64_t n = 0; n < NR; n += 16)
        for (int64_t w = 0; w < words; w += RUN) {
#pragma GCC unroll 16
            for (int64_t j = 0; j < 16; j++)
                r[j] = _mm512_castsi512_ps(
                    n + j < cols ? load_values(from + (n + j) * line + 2 * w, kc - 2 * w)
                                 : _mm512_setzero_si512());
            store_turned(r, to + w * NR + n, NR);
        }
}

static void pack_b(const ls_gemm *g, int64_t n, int64_t cols, int64_t k0, int64_t kc, uint32_t *to)
{
    const uint16_t *from = (const uint16_t *)g->b + k0 * g->b_k + n * g->b_n;

    if (g->b_n == 1)
        pack_b_along(from, g->b_k, cols, kc, to);
    else
        pack_b_across(from, g->b_n, cols, kc, to);
}

/* sums[i] = the sum over kc rows of value i of `n` side by side, in order; or added to that. The
 * bits of gemm.h: an instruction for pairs has no part in it. */
static void add_lines(const uint16_t *from, int64_t step, int64_t n, int64_t kc, float *sums,
                      bool add)
{
    for (int64_t i = 0; i < n; i += LS_LANES) {
        int64_t left = ls_min_i64(LS_LANES, n - i);
        ls_v16 part = kc > 0 ? v_load_most_as(LS_BF16, from, i, left) : v_set(0);
        for (int64_t k = 1; k < kc; k++)
            part = v_add(part, v_load_most_as(LS_BF16, from, i + k * step, left));
        v_store(sums + i, add ? v_add(v_load(sums + i), part) : part);
    }
}

/* --- one block of C ----------------------------------------------------------------------------*/

typedef struct plan {
    const ls_gemm *g;
    const ls_dot_kernel *kernel;
    ls_stream *stream;
    gemm_cut cut;
} plan;

typedef struct block {
    gemm_walk w;
    const plan *p;
    uint32_t *a, *b; /* one packed panel of A; packed columns of B */
    ls_dot_tiles *registers;
} block;

/* A tile may be higher than finish takes at a time. */
static void finish_tile(const gemm_walk *w, const float *tile, int64_t m, int64_t n, int64_t rows)
{
    const ls_gemm *g = w->g;

    for (int64_t i = 0; i < rows; i += MR)
        g->finish(g, tile + i * NR, m + i, n, ls_min_i64(MR, rows - i), ls_min_i64(NR, w->n1 - n));
}

static void finish_tiles(const gemm_walk *w)
{
    int64_t rows = ((const block *)w)->p->kernel->rows;
    const float *tile = w->c;

    for (int64_t m = w->m0; m < w->m1; m += rows)
        for (int64_t n = w->n0; n < w->n1; n += NR, tile += rows * NR)
            finish_tile(w, tile, m, n, ls_min_i64(rows, w->m1 - m));
}

static void block_sums(const gemm_walk *w, int64_t k0, int64_t kc, float *sums, bool add)
{
    const ls_gemm *g = w->g;

    if (g->b_sums)
        add_lines((const uint16_t *)g->b + k0 * g->b_k + w->n0, g->b_k, w->n1 - w->n0, kc, sums,
                  add);
    else
        add_lines((const uint16_t *)g->a + k0 * g->a_k + w->m0, g->a_k, w->m1 - w->m0, kc, sums,
                  add);
}

/* Where the packed block of K at k0 begins. */
static int64_t packed_at(const ls_gemm *g, int64_t k0)
{
    return k0 / LS_GEMM_KC * LS_DOT_WORDS * ls_round_up(g->N, NR);
}

static const uint32_t *block_of_b(const block *x, int64_t k0, int64_t kc)
{
    const gemm_walk *w = &x->w;
    int64_t words = words_of(kc);

    if (w->g->packed)
        return (const uint32_t *)w->g->packed + packed_at(w->g, k0) + w->n0 * words;
    for (int64_t n = w->n0; n < w->n1; n += NR)
        pack_b(w->g, n, ls_min_i64(NR, w->n1 - n), k0, kc, x->b + (n - w->n0) * words);
    return x->b;
}

static void multiply_block(const gemm_walk *w, int64_t k0, int64_t kc, float *c, bool add,
                           bool last)
{
    const block *x = (const block *)w;
    const ls_dot_kernel *kernel = x->p->kernel;
    int64_t words = words_of(kc), size = w->cut->stored ? kernel->rows * NR : 0;
    _Alignas(64) float spare[LS_DOT_ROWS * NR], *tile = w->cut->stored ? c : spare;

    const uint32_t *b = block_of_b(x, k0, kc);

    if (gemm_walk_sums(w, c))
        block_sums(w, k0, kc, gemm_walk_sums(w, c), add);
    for (int64_t m = w->m0; m < w->m1; m += kernel->rows) {
        int64_t rows = ls_min_i64(kernel->rows, w->m1 - m);
        pack_a(w->g, m, rows, k0, kc, kernel->step, x->a);
        for (int64_t n = w->n0; n < w->n1; n += NR, tile += size) {
            kernel->multiply(x->registers, rows, kernel->whole_runs ? words : (kc + 1) / 2, x->a,
                             b + (n - w->n0) * words, tile, add);
            if (last)
                finish_tile(w, tile, m, n, rows);
        }
    }
}

static void run_block(void *context, int64_t index, int worker)
{
    const plan *p = context;
    ls_dot_tiles registers;
    block x = {.w = {.g = p->g, .cut = &p->cut, .multiply = multiply_block, .finish = finish_tiles},
               .p = p,
               .registers = &registers};

    x.a = ls_stream_thread_scratch(p->stream, worker);
    x.b = x.a + A_WORDS;
    x.w.c = (float *)x.b + B_WORDS;
    gemm_walk_begin(&x.w, index, p->kernel->rows);
    p->kernel->begin(&registers);
    gemm_walk_run(&x.w);
    p->kernel->end(&registers);
}

static const ls_dot_kernel *kernel_of(ls_dot dot)
{
    switch (dot) {
    case LS_DOT_AVX512:
        return ls_dot_kernel_avx512();
    case LS_DOT_AMX:
        return ls_dot_kernel_amx();
    case LS_DOT_EMULATE_AVX512:
        return ls_dot_kernel_emulate_avx512();
    case LS_DOT_EMULATE_AMX:
        return ls_dot_kernel_emulate_amx();
    default:
        return NULL;
    }
}

void ls_dot_run(ls_stream *stream, const ls_gemm *g)
{
    plan p = {.g = g, .kernel = kernel_of(ls_dot_chosen()), .stream = stream};
    ls_pool *pool = ls_stream_pool(stream);

    LS_BUG_IF(!p.kernel || g->a_type != LS_BF16 || g->b_type != LS_BF16, "no product of pairs");
    const gemm_costs costs = {.rows = p.kernel->rows,
                              .rate = p.kernel->rate,
                              .pack_a = 0.25,
                              .pack_b = g->packed ? 0.1 : 0.25,
                              .b_floats = LS_DOT_WORDS,
                              .near = NEAR,
                              .room = FLOATS - A_WORDS - B_WORDS,
                              .nc_most = NC_MOST};
    gemm_cut_choose(&p.cut, g, &costs, ls_pool_threads(pool));
    ls_pool_run(pool, run_block, &p, p.cut.tasks);
}

/* --- B for many products -----------------------------------------------------------------------
 */

typedef struct packing {
    const ls_gemm *g;
    uint32_t *to;
    int64_t panels; /* in a block of K */
} packing;

static void pack_panel(void *context, int64_t index, int worker)
{
    const packing *p = context;
    const ls_gemm *g = p->g;
    int64_t k0 = index / p->panels * LS_GEMM_KC, n = index % p->panels * NR;
    int64_t kc = ls_min_i64(LS_GEMM_KC, g->K - k0);

    (void)worker;
    pack_b(g, n, ls_min_i64(NR, g->N - n), k0, kc, p->to + packed_at(g, k0) + n * words_of(kc));
}

int64_t ls_dot_pack_bytes(const ls_gemm *g)
{
    int64_t whole = g->K / LS_GEMM_KC * LS_GEMM_KC;
    int64_t words = packed_at(g, whole) + words_of(g->K - whole) * ls_round_up(g->N, NR);

    return words * (int64_t)sizeof(uint32_t);
}

void ls_dot_pack(ls_stream *stream, const ls_gemm *g, void *to)
{
    packing p = {.g = g, .to = to, .panels = (g->N + NR - 1) / NR};

    ls_pool_run(ls_stream_pool(stream), pack_panel, &p,
                (g->K + LS_GEMM_KC - 1) / LS_GEMM_KC * p.panels);
}
#else
/* Never called: only the avx512 kernels come here. */
void ls_dot_run(ls_stream *stream, const ls_gemm *g)
{
    (void)stream, (void)g;
    LS_BUG_IF(true, "products of pairs are not built for this machine");
}

int64_t ls_dot_pack_bytes(const ls_gemm *g)
{
    (void)g;
    return 0;
}

void ls_dot_pack(ls_stream *stream, const ls_gemm *g, void *to)
{
    (void)to;
    ls_dot_run(stream, g);
}
#endif
