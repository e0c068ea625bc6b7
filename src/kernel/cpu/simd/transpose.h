/* transpose.h -- squares of floats in registers: rows become columns. */
#pragma once
#include "kernel/cpu/simd/vec.h"

/* Sixteen vectors as the rows of a square: rows become columns. */
#if defined(__AVX512F__)
LS_INLINE void v_transpose(ls_v16 r[16])
{
    __m512d t[16];

#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) { /* pairs */
        t[i] = _mm512_castps_pd(_mm512_unpacklo_ps(r[i], r[i + 1]));
        t[i + 1] = _mm512_castps_pd(_mm512_unpackhi_ps(r[i], r[i + 1]));
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4) { /* fours: row i+q, part L is column 4L+q */
        r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(t[i], t[i + 2]));
        r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(t[i], t[i + 2]));
        r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(t[i + 1], t[i + 3]));
        r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(t[i + 1], t[i + 3]));
    }
#pragma GCC unroll 16
    for (int q = 0; q < 4; q++) { /* and the 4 x 4 parts */
        ls_v16 a = _mm512_shuffle_f32x4(r[q], r[4 + q], 0x88);
        ls_v16 b = _mm512_shuffle_f32x4(r[8 + q], r[12 + q], 0x88);
        ls_v16 c = _mm512_shuffle_f32x4(r[q], r[4 + q], 0xdd);
        ls_v16 d = _mm512_shuffle_f32x4(r[8 + q], r[12 + q], 0xdd);
        r[q] = _mm512_shuffle_f32x4(a, b, 0x88);
        r[4 + q] = _mm512_shuffle_f32x4(c, d, 0x88);
        r[8 + q] = _mm512_shuffle_f32x4(a, b, 0xdd);
        r[12 + q] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
}
#elif defined(__AVX2__)
LS_INLINE void v_transpose8(__m256 r[8])
{
    __m256 t[8], u[8];

#pragma GCC unroll 16
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}
LS_INLINE void v_transpose(ls_v16 r[16])
{
    __m256 quarter[4][8]; /* upper left, upper right, lower left, lower right */

    for (int i = 0; i < 8; i++) {
        quarter[0][i] = r[i].lo;
        quarter[1][i] = r[i].hi;
        quarter[2][i] = r[i + 8].lo;
        quarter[3][i] = r[i + 8].hi;
    }
    for (int q = 0; q < 4; q++)
        v_transpose8(quarter[q]);
    for (int i = 0; i < 8; i++) {
        r[i] = LS_V2(quarter[0][i], quarter[2][i]);
        r[i + 8] = LS_V2(quarter[1][i], quarter[3][i]);
    }
}
#else
LS_INLINE void v_transpose(ls_v16 r[16])
{
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < i; j++) {
            float t = r[i].f[j];
            r[i].f[j] = r[j].f[i];
            r[j].f[i] = t;
        }
}
#endif
