/* tile.h -- products and random bits for tiles in a core's first cache.
 *
 * Every element of a product is one chain of fma over ascending k, so the bits do not depend on how
 * rows and columns are blocked into registers; that choice is free for each instruction set.
 *
 * Two things decide the speed. Loads per fma: a block of 6 rows by 4 vectors does 24 fma with 10
 * loads, one of 8 by 2 does 16 with 10. And strides known to the compiler, so that a step is loads
 * and fma only: packed tiles have rows of TILE_SIDE values whatever they hold (with strides read
 * from memory the same blocks were a sixth slower, and longer loops did not help). */
#pragma once
#include "kernel/cpu/simd/vec.h"

enum { TILE_SIDE = 64, TILE_FLOATS = TILE_SIDE * TILE_SIDE, TILE_VECTORS = TILE_SIDE / LS_LANES };

/* Rows of a block of 4, 3, 2 and 1 vectors: 24 registers of sums of 32 for AVX-512, but 16 where
 * each row has an own load; 12 of 16 for AVX2, where a vector takes two and blocks have one. */
#if defined(__AVX512F__)
enum { TILE_NV = 4, TILE_ROWS_4 = 6, TILE_ROWS_3 = 8, TILE_ROWS_2 = 12, TILE_ROWS_1 = 16 };
#elif defined(__AVX2__)
enum { TILE_NV = 1, TILE_ROWS_4 = 1, TILE_ROWS_3 = 1, TILE_ROWS_2 = 1, TILE_ROWS_1 = 6 };
#else
enum { TILE_NV = 1, TILE_ROWS_4 = 1, TILE_ROWS_3 = 1, TILE_ROWS_2 = 1, TILE_ROWS_1 = 4 };
#endif

/* Rows that will be needed soon, brought near (to the second cache) while products run: with a line
 * for every two steps of a block the waiting is hidden behind the arithmetic, in one go it would
 * not be. */
enum { TILE_AHEAD = 12, TILE_LINE_BYTES = 64 };
typedef struct tile_ahead {
    const char *rows[TILE_AHEAD]; /* a ring; the first of TILE_SIDE rows of `bytes` */
    int64_t stride[TILE_AHEAD], bytes;
    uint64_t next, end; /* rows fetched and to fetch, over all tensors */
} tile_ahead;

LS_INLINE void tile_fetch(tile_ahead *f, int64_t most)
{
    for (int64_t lines = 0; f->next < f->end && lines < most; f->next++) {
        uint64_t tensor = f->next / TILE_SIDE % TILE_AHEAD, row = f->next % TILE_SIDE;
        const char *at = f->rows[tensor] + (int64_t)row * f->stride[tensor];
        for (int64_t i = 0; i < f->bytes; i += TILE_LINE_BYTES, lines++)
            __builtin_prefetch(at + i, 0, 2);
    }
}

/* What a product does with the values that C holds. */
typedef enum tile_mode { TILE_NEW, TILE_ADD, TILE_SCALE } tile_mode;

/* C[i][j] = (0, C[i][j] or factor[i] C[i][j]) + sum over k of A[i][k] B[k][j]. A is read one value
 * at a time; rows of B and C are whole vectors. */
typedef struct tile_product {
    const float *a, *b;
    float *c;
    const float *factor; /* TILE_SCALE only */
    int64_t rows, vectors, k;
    tile_mode mode;
    tile_ahead *ahead;
} tile_product;

/* From element to element of A, and from row to row of B and C: constants where these are inlined,
 * or else slow. */
typedef struct tile_strides {
    int64_t a_row, a_k, b_k, c_row;
} tile_strides;

LS_INLINE void tile_begin(const tile_product *p, ls_v16 sum[24], const float *c, int64_t i, int R,
                          int N, int64_t c_row)
{
    if (p->mode == TILE_NEW) {
#pragma GCC unroll 24
        for (int x = 0; x < R * N; x++)
            sum[x] = v_set(0);
        return;
    }
#pragma GCC unroll 24
    for (int x = 0; x < R * N; x++)
        sum[x] = v_load(c + x / N * c_row + x % N * LS_LANES);
    if (p->mode == TILE_SCALE) {
#pragma GCC unroll 24
        for (int x = 0; x < R * N; x++)
            sum[x] = v_mul(sum[x], v_set(p->factor[i + x / N]));
    }
}

/* Rows i .. i+R-1 of vectors n .. n+N-1; R and N are constants where this is inlined. */
LS_INLINE void tile_block(const tile_product *p, int64_t i, int64_t n, int R, int N,
                          const tile_strides s)
{
    const float *a = p->a + i * s.a_row, *b = p->b + n * LS_LANES;
    float *c = p->c + i * s.c_row + n * LS_LANES;
    ls_v16 sum[24], right[4];

    tile_begin(p, sum, c, i, R, N, s.c_row);
    for (int64_t k = p->k; k > 0; k--, a += s.a_k, b += s.b_k) {
#pragma GCC unroll 4
        for (int v = 0; v < N; v++)
            right[v] = v_load(b + v * LS_LANES);
#pragma GCC unroll 24
        for (int x = 0; x < R; x++) {
            ls_v16 left = v_set(a[x * s.a_row]);
#pragma GCC unroll 4
            for (int v = 0; v < N; v++)
                sum[x * N + v] = v_fma(left, right[v], sum[x * N + v]);
        }
    }
#pragma GCC unroll 24
    for (int x = 0; x < R * N; x++)
        v_store(c + x / N * s.c_row + x % N * LS_LANES, sum[x]);
}

/* All rows of vectors n .. n+N-1. */
LS_INLINE void tile_columns(const tile_product *p, int64_t n, int R, int N, const tile_strides s)
{
    int64_t i = 0;

    for (; i + R <= p->rows; i += R) {
        tile_block(p, i, n, R, N, s);
        tile_fetch(p->ahead, p->k / 2);
    }
    if (R > 4)
        for (; i + 4 <= p->rows; i += 4) {
            tile_block(p, i, n, 4, N, s);
            tile_fetch(p->ahead, p->k / 2);
        }
    if (R > 2)
        for (; i + 2 <= p->rows; i += 2)
            tile_block(p, i, n, 2, N, s);
    for (; i < p->rows; i++)
        tile_block(p, i, n, 1, N, s);
}

LS_INLINE void tile_multiply(const tile_product *p, const tile_strides s)
{
    int64_t n = 0;

    if (TILE_NV == 4) {
        for (; n + 4 <= p->vectors; n += 4)
            tile_columns(p, n, TILE_ROWS_4, 4, s);
        if (n + 3 == p->vectors) {
            tile_columns(p, n, TILE_ROWS_3, 3, s);
            return;
        }
        if (n + 2 == p->vectors) {
            tile_columns(p, n, TILE_ROWS_2, 2, s);
            return;
        }
    }
    for (; n < p->vectors; n++)
        tile_columns(p, n, TILE_ROWS_1, 1, s);
}

/* Sixteen unsigned integers, for random numbers. u_multiply: the halves of the 64-bit products
 * with m. u_unit24: the upper 24 bits as a whole number. */
#if defined(__AVX512F__)
LS_INLINE ls_i16 u_load(const uint32_t *p)
{
    return _mm512_loadu_si512(p);
}
LS_INLINE ls_i16 u_xor3(ls_i16 a, ls_i16 b, uint32_t c)
{
    return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi32((int32_t)c), 0x96);
}
LS_INLINE void u_multiply(ls_i16 a, uint32_t m, ls_i16 *high_out, ls_i16 *low_out)
{
    ls_i16 factor = _mm512_set1_epi32((int32_t)m);
    ls_i16 even = _mm512_mul_epu32(a, factor);
    ls_i16 odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), factor);

    *high_out = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
    *low_out = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}
LS_INLINE ls_v16 u_unit24(ls_i16 a)
{
    return _mm512_cvtepi32_ps(_mm512_srli_epi32(a, 8));
}
#elif defined(__AVX2__)
LS_INLINE ls_i16 u_load(const uint32_t *p)
{
    return (ls_i16){_mm256_loadu_si256((const __m256i *)(const void *)p),
                    _mm256_loadu_si256((const __m256i *)(const void *)(p + 8))};
}
LS_INLINE ls_i16 u_xor3(ls_i16 a, ls_i16 b, uint32_t c)
{
    __m256i all = _mm256_set1_epi32((int32_t)c);

    return (ls_i16){_mm256_xor_si256(_mm256_xor_si256(a.lo, b.lo), all),
                    _mm256_xor_si256(_mm256_xor_si256(a.hi, b.hi), all)};
}
LS_INLINE void u_multiply8(__m256i a, uint32_t m, __m256i *high_out, __m256i *low_out)
{
    __m256i factor = _mm256_set1_epi32((int32_t)m);
    __m256i even = _mm256_mul_epu32(a, factor);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), factor);

    *high_out = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    *low_out = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
LS_INLINE void u_multiply(ls_i16 a, uint32_t m, ls_i16 *high_out, ls_i16 *low_out)
{
    u_multiply8(a.lo, m, &high_out->lo, &low_out->lo);
    u_multiply8(a.hi, m, &high_out->hi, &low_out->hi);
}
LS_INLINE ls_v16 u_unit24(ls_i16 a)
{
    return LS_V2(_mm256_cvtepi32_ps(_mm256_srli_epi32(a.lo, 8)),
                 _mm256_cvtepi32_ps(_mm256_srli_epi32(a.hi, 8)));
}
#else
LS_INLINE ls_i16 u_load(const uint32_t *p)
{
    ls_i16 r;
    memcpy(r.i, p, sizeof r.i);
    return r;
}
LS_INLINE ls_i16 u_xor3(ls_i16 a, ls_i16 b, uint32_t c)
{
    LS_EACH(i) a.i[i] = (int32_t)((uint32_t)a.i[i] ^ (uint32_t)b.i[i] ^ c);
    return a;
}
LS_INLINE void u_multiply(ls_i16 a, uint32_t m, ls_i16 *high_out, ls_i16 *low_out)
{
    LS_EACH(i)
    {
        uint64_t product = (uint64_t)(uint32_t)a.i[i] * m;
        high_out->i[i] = (int32_t)(uint32_t)(product >> 32);
        low_out->i[i] = (int32_t)(uint32_t)product;
    }
}
LS_INLINE ls_v16 u_unit24(ls_i16 a)
{
    ls_v16 r;
    LS_EACH(i) r.f[i] = (float)((uint32_t)a.i[i] >> 8);
    return r;
}
#endif
