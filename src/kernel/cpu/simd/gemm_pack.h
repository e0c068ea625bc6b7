/* gemm_pack.h -- how the operands of a product lie while it runs.
 *
 * A, whose values are broadcast one at a time: a panel of MR rows for one block of K. Where k runs
 * along memory the rows are copied as they are, AR floats apart (so that they do not fall into the
 * same lines of the first cache); else AW rows are taken together, AW floats for each k,
 * and a panel is some of their columns. Nothing is turned.
 * B, which is loaded in vectors: a panel of NR columns, NR floats for each k; where k runs along
 * memory, squares are turned in registers.
 *
 * What copying and turning cost is in gemm.c, where C is cut. */
#pragma once
#include "kernel/cpu/simd/gemm.h"
#include "kernel/cpu/simd/transpose.h"

enum {
    MR = LS_GEMM_MR,
    NR = LS_GEMM_NR,
    KC = LS_GEMM_KC,
    NV = NR / LS_LANES,
    AR = KC + 16,
    AW = 48, /* a multiple of MR and of LS_LANES */
    A_FLOATS = MR * AR > AW *KC ? MR *AR : AW *KC,
    B_PANEL = NR * KC,
    LINE = 16 /* floats of a cache line */
};

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

/* `lines` lines of kc elements, k along memory, become kc rows of NR; missing lines are zero. */
static void pack_across(const float *from, int64_t line, int64_t lines, int64_t kc, float *to)
{
    for (int64_t i = 0; i < NR; i += SQUARE, from += SQUARE * line, to += SQUARE) {
        int64_t here = lines - i, k = 0;
        if (here >= SQUARE)
            for (; k + SQUARE <= kc; k += SQUARE)
                transpose(from + k, line, SQUARE, SQUARE, to + k * NR, NR);
        for (; k < kc; k += SQUARE)
            transpose_part(from + k, line, here, ls_min_i64(SQUARE, kc - k), to + k * NR, NR);
    }
}

/* Row k, of `lines` values side by side, is copied as it is and filled up with zeros to width, a
 * multiple of LS_LANES. */
LS_INLINE void copy_rows(const ls_dtype type, const void *from, int64_t step, int64_t lines,
                         int64_t kc, float *to, const int64_t width)
{
    for (int64_t k = 0, at = 0; k < kc; k++, at += step, to += width)
#pragma GCC unroll 4
        for (int64_t i = 0; i < width; i += LS_LANES)
            v_store(to + i, v_load_most_as(type, from, at + i, ls_max_i64(lines - i, 0)));
}

LS_INLINE void pack_along(const ls_dtype type, const void *from, int64_t step, int64_t lines,
                          int64_t kc, float *to, const int64_t width, const int64_t usual)
{
    if (lines == usual)
        copy_rows(type, from, step, usual, kc, to, width);
    else
        copy_rows(type, from, step, lines, kc, to, width);
}

LS_INLINE void copy_line(const ls_dtype type, const void *from, int64_t at, int64_t n, float *to)
{
    int64_t i = 0;

    for (; i + LS_LANES <= n; i += LS_LANES)
        v_store(to + i, v_load_as(type, from, at + i));
    if (i < n)
        v_store_part(to + i, n - i, v_load_most_as(type, from, at + i, n - i));
}

/* The address of an element. */
LS_INLINE const void *element(ls_dtype type, const void *x, int64_t i)
{
    return (const char *)x + i * ls_dtype_bytes(type);
}

LS_INLINE void pack_a_group(const ls_gemm *g, const ls_dtype type, int64_t m, int64_t rows,
                            int64_t k0, int64_t kc, float *to)
{
    if (g->a_m == 1) {
        pack_along(type, element(type, g->a, m + k0 * g->a_k), g->a_k, rows, kc, to, AW, AW);
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        copy_line(type, g->a, (m + i) * g->a_m + k0, kc, to + i * AR);
    if (rows % 2) /* odd heights are computed as the even one above */
        memset(to + rows * AR, 0, (size_t)kc * sizeof *to);
}

/* Rows m .. m+rows-1 of A, block k0 .. k0+kc-1: at most MR of them, or AW where k runs across
 * memory. */
static void pack_a(const ls_gemm *g, int64_t m, int64_t rows, int64_t k0, int64_t kc, float *to)
{
    if (g->a_type == LS_BF16)
        pack_a_group(g, LS_BF16, m, rows, k0, kc, to);
    else
        pack_a_group(g, LS_F32, m, rows, k0, kc, to);
}

/* Columns n .. n+cols-1 (at most NR) of B, block k0 .. k0+kc-1. wide: room for B_PANEL floats. */
static void pack_b(const ls_gemm *g, int64_t n, int64_t cols, int64_t k0, int64_t kc, float *to,
                   float *wide)
{
    const void *from = element(g->b_type, g->b, k0 * g->b_k + n * g->b_n);

    if (g->b_n == 1 && g->b_type == LS_BF16) {
        pack_along(LS_BF16, from, g->b_k, cols, kc, to, NR, NR);
    } else if (g->b_n == 1) {
        pack_along(LS_F32, from, g->b_k, cols, kc, to, NR, NR);
    } else if (g->b_type == LS_BF16) {
        for (int64_t i = 0; i < cols; i++)
            copy_line(LS_BF16, from, i * g->b_n, kc, wide + i * KC);
        pack_across(wide, KC, cols, kc, to);
    } else {
        pack_across(from, g->b_n, cols, kc, to);
    }
}

/* Columns n0 .. n1-1 of B where they lie side by side, panel after panel. A few rows at a time:
 * memory is read nearly in order, and panels are written in runs (one row at a time, panels a power
 * of two apart would fight for the same lines of the first cache). */
LS_INLINE void copy_b_rows(const ls_gemm *g, const ls_dtype type, int64_t n0, int64_t n1,
                           int64_t k0, int64_t kc, float *to)
{
    for (int64_t k = 0; k < kc; k += 16) {
        int64_t rows = ls_min_i64(16, kc - k);
        for (int64_t n = n0; n < n1; n += NR)
            pack_along(type, element(type, g->b, (k0 + k) * g->b_k + n), g->b_k,
                       ls_min_i64(NR, n1 - n), rows, to + (n - n0) * kc + k * NR, NR, NR);
    }
}

static void pack_b_rows(const ls_gemm *g, int64_t n0, int64_t n1, int64_t k0, int64_t kc, float *to)
{
    if (g->b_type == LS_BF16)
        copy_b_rows(g, LS_BF16, n0, n1, k0, kc, to);
    else
        copy_b_rows(g, LS_F32, n0, n1, k0, kc, to);
}

/* Columns n0 .. n1-1 of a block of K, panel after panel. wide: room for B_PANEL floats. */
static void pack_b_block(const ls_gemm *g, int64_t n0, int64_t n1, int64_t k0, int64_t kc,
                         float *to, float *wide)
{
    if (g->b_n == 1)
        pack_b_rows(g, n0, n1, k0, kc, to);
    else
        for (int64_t n = n0; n < n1; n += NR)
            pack_b(g, n, ls_min_i64(NR, n1 - n), k0, kc, to + (n - n0) * kc, wide);
}

/* The same where B was packed before: columns from n0, a multiple of NR, on. */
LS_INLINE const float *packed_block(const ls_gemm *g, int64_t k0, int64_t kc, int64_t n0)
{
    return (const float *)g->packed + k0 * ls_round_up(g->N, NR) + n0 * kc;
}

/* sums[i] = the sum over k of column i of a panel of kc rows of `width`; or added to that. width is
 * a constant: the columns' chains of additions run side by side. */
LS_INLINE void add_columns(const float *panel, int64_t kc, const int width, float *sums, bool add)
{
    ls_v16 part[4];

#pragma GCC unroll 4
    for (int i = 0; i < width / LS_LANES; i++)
        part[i] = kc > 0 ? v_load(panel + i * LS_LANES) : v_set(0);
    for (int64_t k = 1; k < kc; k++)
#pragma GCC unroll 4
        for (int i = 0; i < width / LS_LANES; i++)
            part[i] = v_add(part[i], v_load(panel + k * width + i * LS_LANES));
#pragma GCC unroll 4
    for (int i = 0; i < width / LS_LANES; i++) {
        float *to = sums + i * LS_LANES;
        v_store(to, add ? v_add(v_load(to), part[i]) : part[i]);
    }
}
_Static_assert(AW % LS_LANES == 0 && AW % MR == 0 && AW <= 4 * LS_LANES && NR <= 4 * LS_LANES,
               "sizes of panels");
