/* bits.h -- floats as their bits, and a choice without a branch: behind one, the compiler may not
 * make vectors of a loop. bf16 of any alignment, and one NaN for all: where a NaN comes from
 * decides its sign and payload, and the compiler may exchange the operands of a sum. */
#pragma once
#include "kernel/cpu/simd/vec.h"

enum { FLOAT_NAN = 0x7fc00000u }; /* what every NaN becomes */

LS_INLINE float from_bits(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

LS_INLINE uint32_t to_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    return u;
}

LS_INLINE uint32_t pick(bool yes, uint32_t a, uint32_t b)
{
    uint32_t mask = 0u - (uint32_t)yes;

    return (a & mask) | (b & ~mask);
}

LS_INLINE ls_v16 v_load_bf16_any(const char *p)
{
#if defined(__AVX2__)
    return v_load_bf16((const uint16_t *)(const void *)p);
#else
    uint16_t h[LS_LANES];

    memcpy(h, p, sizeof h);
    return v_load_bf16(h);
#endif
}

LS_INLINE void v_store_bf16_any(char *p, ls_v16 a)
{
#if defined(__AVX2__)
    v_store_bf16((uint16_t *)(void *)p, a);
#else
    uint16_t h[LS_LANES];

    v_store_bf16(h, a);
    memcpy(p, h, sizeof h);
#endif
}

/* Every NaN becomes the same one. */
LS_INLINE ls_v16 v_one_nan(ls_v16 a)
{
#if defined(__AVX512F__)
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);

    return _mm512_castsi512_ps(
        _mm512_mask_mov_epi32(_mm512_castps_si512(a), nan, _mm512_set1_epi32(FLOAT_NAN)));
#elif defined(__AVX2__)
    __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(FLOAT_NAN));

    a.lo = _mm256_blendv_ps(a.lo, quiet, _mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q));
    a.hi = _mm256_blendv_ps(a.hi, quiet, _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q));
    return a;
#else
    for (int i = 0; i < LS_LANES; i++)
        a.f[i] = from_bits(pick(a.f[i] != a.f[i], FLOAT_NAN, to_bits(a.f[i])));
    return a;
#endif
}
