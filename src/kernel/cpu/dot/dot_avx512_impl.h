/* dot_avx512_impl.h -- a tile of C by vdpbf16ps, written over DOT_PAIRS(sum, a, b): the instruction
 * or its emulation, as the file says that includes this.
 *
 * As the fp32 micro-kernel: up to 6 rows by 64 columns of sums in registers, per pair of k four
 * vectors of B and a broadcast word of A for each row. */
#pragma once
#include "kernel/cpu/dot/dot_impl.h"

#if defined(DOT_PAIRS) /* else the includer has not defined the instruction */
enum { DOT_WIDE = LS_GEMM_NR / LS_LANES };

/* rows is a constant, so the sums live in registers. */
LS_INLINE void dot_rows(const int rows, int64_t words, const uint32_t *a, const uint32_t *b,
                        float *tile, bool add)
{
    ls_v16 sum[LS_GEMM_MR][DOT_WIDE];

#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < DOT_WIDE; j++)
            sum[i][j] = v_set(0);
    for (int64_t k = 0; k < words; k++, b += LS_GEMM_NR) {
        __m512i right[DOT_WIDE];
#pragma GCC unroll 4
        for (int j = 0; j < DOT_WIDE; j++)
            right[j] = _mm512_loadu_si512(b + j * LS_LANES);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            __m512i word = _mm512_set1_epi32((int32_t)a[i * LS_DOT_AR + k]);
#pragma GCC unroll 4
            for (int j = 0; j < DOT_WIDE; j++)
                sum[i][j] = DOT_PAIRS(sum[i][j], word, right[j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < DOT_WIDE; j++) {
            float *to = tile + i * LS_GEMM_NR + j * LS_LANES;
            v_store(to, add ? v_add(v_load(to), sum[i][j]) : sum[i][j]);
        }
}

static void dot_multiply(ls_dot_tiles *tiles, int64_t rows, int64_t words, const uint32_t *a,
                         const uint32_t *b, float *tile, bool add)
{
    (void)tiles;
#define HEIGHT(n)                            \
    case (n) / 2:                            \
        dot_rows(n, words, a, b, tile, add); \
        break
    switch ((rows + 1) / 2) {
        HEIGHT(2);
        HEIGHT(4);
        HEIGHT(6);
    }
#undef HEIGHT
}

static void dot_nothing(ls_dot_tiles *tiles)
{
    (void)tiles;
}

static const ls_dot_kernel dot_kernel = {
    .rows = LS_GEMM_MR,
    .step = 2,
    .rate = 64,
    .begin = dot_nothing,
    .end = dot_nothing,
    .multiply = dot_multiply,
};
#endif
