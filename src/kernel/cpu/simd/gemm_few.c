/* gemm_few.c -- products with few rows (generation): B is read once, as it lies, and not packed.
 *
 * The time is that of reading B from memory, so a task is a range of columns, and all rows of A are
 * served by one reading. The bits are those of gemm.c: each element is one chain of fma over a
 * block of LS_GEMM_KC values of k, starting at +0, and the blocks are added in order.
 *
 * Columns side by side (b_n = 1): a task takes GROUP rows of B at a time over all its columns, so
 * that memory is read in long runs; the chains wait in the worker's memory from group to group.
 *
 * k along memory (b_k = 1): a chain over k in order cannot be spread over lanes. So sixteen columns
 * lie in the lanes: squares of 16 columns by 16 k are turned in registers. Sixteen runs at a time
 * are what the hardware fetches by itself; asking for lines ahead was slower.
 *
 * M is a constant in the inner loops, and the block of A is laid out k by k, so that its values
 * have fixed distances. */
#include "kernel/cpu/simd/gemm.h"
#include "kernel/cpu/simd/transpose.h"

enum {
    KC = LS_GEMM_KC,
    NR = LS_GEMM_NR,
    MOST = LS_GEMM_FEW,
    GROUP = 8,      /* rows of B taken together */
    COLUMNS = 2048, /* of a task at most: its chains stay near */
    RUN = 64 * KC   /* values of k whose part of A is laid out at a time */
};

typedef struct few {
    const ls_gemm *g;
    ls_stream *stream;
    int64_t columns; /* of a task */
} few;

/* One task: columns n0 .. n0+n-1. */
typedef struct range {
    const ls_gemm *g;
    int64_t n0, n, wide; /* wide: n in whole tiles */
    float *total;        /* [M][wide] sums of the blocks of k so far */
    float *chain;        /* [M][wide] of the current block, when columns lie side by side */
    float *a;            /* [k][M], values k0 .. k0+k-1 of all rows */
    int64_t k0, k;
} range;

static void turn_a(const range *x)
{
    const ls_gemm *g = x->g;

    for (int64_t k = 0; k < x->k; k++)
        for (int64_t m = 0; m < g->M; m++)
            x->a[k * g->M + m] = v_one_as(g->a_type, g->a, m * g->a_m + x->k0 + k);
}

/* The first n of sixteen values of B from an index on. */
static __attribute__((noinline)) ls_v16 load_most(const ls_gemm *g, int64_t at, int64_t n)
{
    return g->b_type == LS_BF16 ? v_load_most_as(LS_BF16, g->b, at, n)
                                : v_load_most_as(LS_F32, g->b, at, n);
}

/* --- columns side by side ---------------------------------------------------------------------*/

/* chain[m][j..] += a[0..GROUP-1][m] b[0..GROUP-1][j..] for sixteen columns. M is a constant. */
LS_INLINE void along_16(const range *x, const ls_dtype type, const float *a, int64_t b, int64_t j,
                        int M)
{
    ls_v16 right[GROUP];

#pragma GCC unroll 8
    for (int i = 0; i < GROUP; i++)
        right[i] = v_load_as(type, x->g->b, b + i * x->g->b_k + j);
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
        float *to = x->chain + m * x->wide + j;
        ls_v16 sum = v_load(to);
#pragma GCC unroll 8
        for (int i = 0; i < GROUP; i++)
            sum = v_fma(v_set(a[i * M + m]), right[i], sum);
        v_store(to, sum);
    }
}

/* The same for what is left over: the last columns, or fewer than GROUP rows of B. */
static __attribute__((noinline)) void along_rest(const range *x, const float *a, int64_t b,
                                                 int64_t j, int M, int rows)
{
    for (int i = 0; i < rows; i++, a += M, b += x->g->b_k) {
        ls_v16 right = load_most(x->g, b + j, x->n - j);
        for (int m = 0; m < M; m++) {
            float *to = x->chain + m * x->wide + j;
            v_store(to, v_fma(v_set(a[m]), right, v_load(to)));
        }
    }
}

/* One block of k, the first one at k0 of the run. */
LS_INLINE void along_block(const range *x, const ls_dtype type, int64_t k0, int64_t kc, int M)
{
    const float *a = x->a + k0 * M;
    int64_t b = (x->k0 + k0) * x->g->b_k + x->n0; /* index of the first value */
    int64_t whole = x->n / LS_LANES * LS_LANES, k = 0;

    memset(x->chain, 0, (size_t)(M * x->wide) * sizeof *x->chain);
    for (; k + GROUP <= kc; k += GROUP, a += GROUP * M, b += GROUP * x->g->b_k) {
        for (int64_t j = 0; j < whole; j += LS_LANES)
            along_16(x, type, a, b, j, M);
        if (whole < x->n)
            along_rest(x, a, b, whole, M, GROUP);
    }
    for (; k < kc; k++, a += M, b += x->g->b_k)
        for (int64_t j = 0; j < x->n; j += LS_LANES)
            along_rest(x, a, b, j, M, 1);
    for (int64_t i = 0; i < M * x->wide; i += LS_LANES) {
        ls_v16 sum = v_load(x->chain + i);
        v_store(x->total + i, x->k0 + k0 == 0 ? sum : v_add(v_load(x->total + i), sum));
    }
}

LS_INLINE void along_run(const range *x, const ls_dtype type, int M)
{
    for (int64_t k = 0; k < x->k || k == 0; k += KC)
        along_block(x, type, k, ls_min_i64(KC, x->k - k), M);
}

/* --- k along memory ---------------------------------------------------------------------------*/

/* The sums over n values of k of a turned square. Not unrolled over k: the time is that of reading
 * B, and sixteen copies of this for every height take a compiler half a minute. */
LS_INLINE void across_square(const float *a, const ls_v16 *r, int64_t n, int M, ls_v16 sum[MOST])
{
#pragma GCC unroll 1
    for (int64_t i = 0; i < n; i++)
#pragma GCC unroll 8
        for (int m = 0; m < M; m++)
            sum[m] = v_fma(v_set(a[i * M + m]), r[i], sum[m]);
}

/* Sixteen lines of B from an index on, or `cols` of them, `left` values each; turned. */
static __attribute__((noinline)) void turn_square(const range *x, int64_t b, int64_t cols,
                                                  int64_t left, ls_v16 r[16])
{
    const ls_gemm *g = x->g;

    if (cols < LS_LANES || left < LS_LANES)
        for (int64_t i = 0; i < 16; i++)
            r[i] = i < cols ? load_most(g, b + i * g->b_n, left) : v_set(0);
    else if (g->b_type == LS_BF16)
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            r[i] = v_load_as(LS_BF16, g->b, b + i * g->b_n);
    else
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            r[i] = v_load_as(LS_F32, g->b, b + i * g->b_n);
    v_transpose(r);
}

/* One block of k of columns j .. j+15, or `cols` of them; the block at k0 of the run. */
LS_INLINE void across_16(const range *x, int64_t j, int64_t cols, int64_t k0, int64_t kc, int M)
{
    const ls_gemm *g = x->g;
    const float *a = x->a + k0 * M;
    int64_t b = (x->n0 + j) * g->b_n + x->k0 + k0; /* index of the first value */
    ls_v16 sum[MOST], r[16];
    int64_t k = 0;

#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
        sum[m] = v_set(0);
    for (; k < kc; k += LS_LANES, a += LS_LANES * M) {
        int64_t left = ls_min_i64(LS_LANES, kc - k);
        turn_square(x, b + k, cols, left, r);
        across_square(a, r, left, M, sum);
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) {
        float *to = x->total + m * x->wide + j;
        v_store(to, x->k0 + k0 == 0 ? sum[m] : v_add(v_load(to), sum[m]));
    }
}

/* All of k for one group of columns after the other: long runs of memory. */
LS_INLINE void across_run(const range *x, int M)
{
    for (int64_t j = 0; j < x->n; j += LS_LANES)
        for (int64_t k = 0; k < x->k || k == 0; k += KC)
            across_16(x, j, ls_min_i64(LS_LANES, x->n - j), k, ls_min_i64(KC, x->k - k), M);
}

/* --- a task -----------------------------------------------------------------------------------*/

LS_INLINE void multiply_height(const range *x, const ls_dtype type, int M)
{
    if (x->g->b_n == 1)
        along_run(x, type, M);
    else
        across_run(x, M);
}

LS_INLINE void multiply_run(const range *x, const ls_dtype type)
{
#if defined(__AVX512F__) || defined(__AVX2__)
#define HEIGHT(n)                      \
    case n:                            \
        multiply_height(x, type, (n)); \
        break
    switch (x->g->M) {
        HEIGHT(1);
        HEIGHT(2);
        HEIGHT(3);
        HEIGHT(4);
        HEIGHT(5);
        HEIGHT(6);
        HEIGHT(7);
        HEIGHT(8);
    }
#undef HEIGHT
#else /* without vectors there is nothing to keep in registers */
    multiply_height(x, type, (int)x->g->M);
#endif
}

static void finish_range(const range *x)
{
    const ls_gemm *g = x->g;
    _Alignas(64) float tile[MOST * NR];

    for (int64_t j = 0; j < x->n; j += NR) {
        for (int64_t m = 0; m < g->M; m++)
            memcpy(tile + m * NR, x->total + m * x->wide + j, NR * sizeof *tile);
        g->finish(g, tile, 0, x->n0 + j, g->M, ls_min_i64(NR, x->n - j));
    }
}

static void few_task(void *context, int64_t index, int worker)
{
    const few *f = context;
    const ls_gemm *g = f->g;
    range x = {.g = g, .n0 = index * f->columns};

    x.n = ls_min_i64(f->columns, g->N - x.n0);
    x.wide = ls_round_up(x.n, NR);
    x.total = ls_stream_thread_scratch(f->stream, worker);
    x.chain = x.total + MOST * COLUMNS;
    x.a = x.chain + MOST * COLUMNS;
    for (x.k0 = 0; x.k0 < g->K || x.k0 == 0; x.k0 += RUN) {
        x.k = ls_min_i64(RUN, g->K - x.k0);
        turn_a(&x);
        if (g->b_type == LS_BF16)
            multiply_run(&x, LS_BF16);
        else
            multiply_run(&x, LS_F32);
    }
    finish_range(&x);
}

_Static_assert(MOST *(2 * COLUMNS + RUN) * 4 <= LS_STREAM_THREAD_BYTES, "too little memory");
_Static_assert(COLUMNS % NR == 0 && KC % GROUP == 0 && KC % LS_LANES == 0, "sizes of blocks");

void LS_ISA_NAME(ls_gemm_run_few)(ls_stream *stream, const ls_gemm *g)
{
    ls_pool *pool = ls_stream_pool(stream);
    int64_t shares = ls_pool_threads(pool); /* equal, and the longest runs of memory */
    few f = {.g = g, .stream = stream};

    f.columns = ls_min_i64(COLUMNS, ls_round_up((g->N + shares - 1) / shares, NR));
    ls_pool_run(pool, few_task, &f, (g->N + f.columns - 1) / f.columns);
}
