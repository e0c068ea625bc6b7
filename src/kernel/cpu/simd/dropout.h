/* dropout.h -- what an element of a tensor is multiplied by, 64 columns at a time.
 *
 * Philox gives four words per counter, and an element's counter is its column / 4. Sixteen counters
 * go side by side in the lanes, which makes the words of 64 neighbouring columns. */
#pragma once
#include "base/rng.h"
#include "kernel/cpu/simd/vec.h"
#include "kernel/kernel.h"

enum { LS_TILE = 64 }; /* columns per call, the step of all loops over a row */

typedef struct ls_drop {
    bool on;
    uint32_t key[2], first_seq, site;
    uint32_t threshold; /* kept when the upper 24 bits of the word are >= this */
    float scale;        /* of kept elements: 1 / (1 - p) */
    int64_t T;
} ls_drop;

LS_INLINE ls_drop drop_begin(const ls_dropout *d, int64_t T)
{
    ls_drop r = {.on = d->p > 0};

    if (r.on) {
        r.key[0] = d->state->key[0];
        r.key[1] = d->state->key[1];
        r.first_seq = d->state->first_seq;
        r.site = d->site << 16;
        /* uniform >= p, exactly: both sides times 2^24 are exact. */
        r.threshold = (uint32_t)ceilf(d->p * 16777216.0f);
        r.scale = 1.0f / (1.0f - d->p);
        r.T = T;
    }
    return r;
}

#if defined(__AVX512F__)
LS_INLINE ls_i16 drop_set(uint32_t x)
{
    return _mm512_set1_epi32((int32_t)x);
}
LS_INLINE ls_i16 drop_xor(ls_i16 a, ls_i16 b)
{
    return _mm512_xor_si512(a, b);
}
/* All 64 bits of the products with m, upper and lower halves apart. */
LS_INLINE ls_i16 drop_mul(ls_i16 a, uint32_t m, ls_i16 *low_out)
{
    ls_i16 f = drop_set(m);
    ls_i16 even = _mm512_mul_epu32(a, f), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), f);

    *low_out = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
    return _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
}
LS_INLINE ls_i16 drop_count(uint32_t first)
{
    return _mm512_add_epi32(
        drop_set(first), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}
LS_INLINE void drop_store(uint32_t *p, ls_i16 a)
{
    _mm512_storeu_si512(p, a);
}
#elif defined(__AVX2__)
LS_INLINE ls_i16 drop_set(uint32_t x)
{
    return (ls_i16){_mm256_set1_epi32((int32_t)x), _mm256_set1_epi32((int32_t)x)};
}
LS_INLINE ls_i16 drop_xor(ls_i16 a, ls_i16 b)
{
    return (ls_i16){_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
LS_INLINE __m256i drop_mul_half(__m256i a, __m256i f, __m256i *low_out)
{
    __m256i even = _mm256_mul_epu32(a, f), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), f);

    *low_out = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
    return _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
}
LS_INLINE ls_i16 drop_mul(ls_i16 a, uint32_t m, ls_i16 *low_out)
{
    __m256i f = _mm256_set1_epi32((int32_t)m);
    ls_i16 r;

    r.lo = drop_mul_half(a.lo, f, &low_out->lo);
    r.hi = drop_mul_half(a.hi, f, &low_out->hi);
    return r;
}
LS_INLINE ls_i16 drop_count(uint32_t first)
{
    __m256i f = _mm256_set1_epi32((int32_t)first);

    return (ls_i16){_mm256_add_epi32(f, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
                    _mm256_add_epi32(f, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15))};
}
LS_INLINE void drop_store(uint32_t *p, ls_i16 a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, a.lo);
    _mm256_storeu_si256((__m256i *)(void *)(p + 8), a.hi);
}
#else
LS_INLINE ls_i16 drop_set(uint32_t x)
{
    ls_i16 r;
    LS_EACH(i) r.i[i] = (int32_t)x;
    return r;
}
LS_INLINE ls_i16 drop_xor(ls_i16 a, ls_i16 b)
{
    LS_EACH(i) a.i[i] ^= b.i[i];
    return a;
}
LS_INLINE ls_i16 drop_mul(ls_i16 a, uint32_t m, ls_i16 *low_out)
{
    LS_EACH(i)
    {
        uint64_t p = (uint64_t)(uint32_t)a.i[i] * m;
        low_out->i[i] = (int32_t)(uint32_t)p;
        a.i[i] = (int32_t)(uint32_t)(p >> 32);
    }
    return a;
}
LS_INLINE ls_i16 drop_count(uint32_t first)
{
    ls_i16 r;
    LS_EACH(i) r.i[i] = (int32_t)(first + (uint32_t)i);
    return r;
}
LS_INLINE void drop_store(uint32_t *p, ls_i16 a)
{
    memcpy(p, a.i, sizeof a.i);
}
#endif

/* The multipliers of columns column .. column + 63 of a row; column is a multiple of 64. */
static LS_UNUSED void drop_tile(const ls_drop *d, int64_t row, int64_t column, float *factor_out)
{
    uint32_t k0 = d->key[0], k1 = d->key[1];
    uint32_t word[4][LS_LANES];
    ls_i16 c0 = drop_count((uint32_t)(column / 4));
    ls_i16 c1 = drop_set((uint32_t)(row % d->T));
    ls_i16 c2 = drop_set(d->first_seq + (uint32_t)(row / d->T));
    ls_i16 c3 = drop_set(d->site);

    for (int round = 0; round < 10; round++) { /* ls_rng_philox(), in lanes */
        ls_i16 low0, low1;
        ls_i16 high0 = drop_mul(c0, 0xD2511F53u, &low0);
        ls_i16 high1 = drop_mul(c2, 0xCD9E8D57u, &low1);
        c0 = drop_xor(drop_xor(high1, c1), drop_set(k0));
        c2 = drop_xor(drop_xor(high0, c3), drop_set(k1));
        c1 = low1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    drop_store(word[0], c0);
    drop_store(word[1], c1);
    drop_store(word[2], c2);
    drop_store(word[3], c3);
    for (int i = 0; i < LS_LANES; i++)
        for (int w = 0; w < 4; w++)
            factor_out[4 * i + w] = (word[w][i] >> 8) >= d->threshold ? d->scale : 0.0f;
}
