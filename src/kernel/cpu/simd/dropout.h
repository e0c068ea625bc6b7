/* dropout.h -- what an element of a tensor is multiplied by, 64 columns at a time.
 *
 * Philox gives four words per counter, and an element's counter is its column / 4. Eight counters
 * go side by side in lanes of 64 bits, which make the words of 32 neighbouring columns; two such
 * sets run interleaved, because one round waits for the one before. A word needs only the lower
 * half of its lane, and so does the multiplier, so the upper halves are left full of rubbish. Lanes
 * hold counters in the order 0 4 1 5 2 6 3 7: then joining the words needs no crossing of
 * registers. */
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
    int64_t T, first_row;
    ls_piece piece;
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
        r.first_row = d->first_row;
        r.piece = d->piece;
    }
    return r;
}

#if defined(__AVX512F__)
typedef __m512i ls_u8; /* eight uint64 */
LS_INLINE ls_u8 drop_set(uint32_t x)
{
    return _mm512_set1_epi64((int64_t)x);
}
LS_INLINE ls_u8 drop_count(uint32_t first)
{
    return _mm512_add_epi64(drop_set(first), _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7));
}
LS_INLINE ls_u8 drop_mul(ls_u8 a, uint32_t m)
{
    return _mm512_mul_epu32(a, drop_set(m));
}
/* (product >> 32) ^ word ^ key */
LS_INLINE ls_u8 drop_mix(ls_u8 product, ls_u8 word, uint32_t key)
{
    return _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(product, 32), word), drop_set(key));
}
LS_INLINE void drop_choose(float *out, ls_u8 words, const ls_drop *d)
{
    __mmask16 keep = _mm512_cmpge_epu32_mask(_mm512_srli_epi32(words, 8),
                                             _mm512_set1_epi32((int32_t)d->threshold));

    _mm512_storeu_ps(out, _mm512_maskz_mov_ps(keep, _mm512_set1_ps(d->scale)));
}
/* Factors of the 32 columns whose words are c[0] .. c[3]. */
LS_INLINE void drop_finish(float *out, const ls_u8 *c, const ls_drop *d)
{
    ls_u8 w01 = _mm512_mask_blend_epi32(0xAAAA, c[0], _mm512_slli_epi64(c[1], 32));
    ls_u8 w23 = _mm512_mask_blend_epi32(0xAAAA, c[2], _mm512_slli_epi64(c[3], 32));

    drop_choose(out, _mm512_unpacklo_epi64(w01, w23), d);
    drop_choose(out + 16, _mm512_unpackhi_epi64(w01, w23), d);
}
#elif defined(__AVX2__)
typedef struct {
    __m256i lo, hi;
} ls_u8;
LS_INLINE ls_u8 drop_set(uint32_t x)
{
    return (ls_u8){_mm256_set1_epi64x((int64_t)x), _mm256_set1_epi64x((int64_t)x)};
}
LS_INLINE ls_u8 drop_count(uint32_t first)
{
    __m256i f = _mm256_set1_epi64x((int64_t)first);

    return (ls_u8){_mm256_add_epi64(f, _mm256_setr_epi64x(0, 4, 1, 5)),
                   _mm256_add_epi64(f, _mm256_setr_epi64x(2, 6, 3, 7))};
}
LS_INLINE ls_u8 drop_mul(ls_u8 a, uint32_t m)
{
    __m256i f = _mm256_set1_epi64x((int64_t)m);

    return (ls_u8){_mm256_mul_epu32(a.lo, f), _mm256_mul_epu32(a.hi, f)};
}
LS_INLINE __m256i drop_mix_half(__m256i product, __m256i word, __m256i key)
{
    return _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product, 32), word), key);
}
LS_INLINE ls_u8 drop_mix(ls_u8 product, ls_u8 word, uint32_t key)
{
    __m256i k = _mm256_set1_epi64x((int64_t)key);

    return (ls_u8){drop_mix_half(product.lo, word.lo, k), drop_mix_half(product.hi, word.hi, k)};
}
LS_INLINE void drop_choose(float *out, __m256i words, const ls_drop *d)
{
    __m256i below = _mm256_set1_epi32((int32_t)d->threshold - 1);
    __m256i keep = _mm256_cmpgt_epi32(_mm256_srli_epi32(words, 8), below); /* both under 2^25 */

    _mm256_storeu_ps(out, _mm256_and_ps(_mm256_castsi256_ps(keep), _mm256_set1_ps(d->scale)));
}
LS_INLINE void drop_finish_half(float *out, __m256i c0, __m256i c1, __m256i c2, __m256i c3,
                                const ls_drop *d)
{
    __m256i w01 = _mm256_blend_epi32(c0, _mm256_slli_epi64(c1, 32), 0xAA);
    __m256i w23 = _mm256_blend_epi32(c2, _mm256_slli_epi64(c3, 32), 0xAA);

    drop_choose(out, _mm256_unpacklo_epi64(w01, w23), d);
    drop_choose(out + 16, _mm256_unpackhi_epi64(w01, w23), d);
}
LS_INLINE void drop_finish(float *out, const ls_u8 *c, const ls_drop *d)
{
    drop_finish_half(out, c[0].lo, c[1].lo, c[2].lo, c[3].lo, d);
    drop_finish_half(out + 8, c[0].hi, c[1].hi, c[2].hi, c[3].hi, d);
}
#else
typedef struct {
    uint64_t u[8];
} ls_u8;
LS_INLINE ls_u8 drop_set(uint32_t x)
{
    return (ls_u8){{x, x, x, x, x, x, x, x}};
}
LS_INLINE ls_u8 drop_count(uint32_t first)
{
    ls_u8 r = {{0, 4, 1, 5, 2, 6, 3, 7}};

    for (int i = 0; i < 8; i++)
        r.u[i] += first;
    return r;
}
LS_INLINE ls_u8 drop_mul(ls_u8 a, uint32_t m)
{
    for (int i = 0; i < 8; i++)
        a.u[i] = (a.u[i] & 0xffffffffu) * m;
    return a;
}
LS_INLINE ls_u8 drop_mix(ls_u8 product, ls_u8 word, uint32_t key)
{
    for (int i = 0; i < 8; i++)
        product.u[i] = product.u[i] >> 32 ^ word.u[i] ^ key;
    return product;
}
LS_INLINE void drop_finish(float *out, const ls_u8 *c, const ls_drop *d)
{
    for (int i = 0; i < 8; i++)
        for (int w = 0; w < 4; w++) {
            int counter = i % 2 * 4 + i / 2;
            bool keep = (uint32_t)c[w].u[i] >> 8 >= d->threshold;
            out[4 * counter + w] = keep ? d->scale : 0.0f;
        }
}
#endif

/* One round of ls_rng_philox() in lanes. */
LS_INLINE void drop_round(ls_u8 *c, uint32_t k0, uint32_t k1)
{
    ls_u8 p0 = drop_mul(c[0], 0xD2511F53u), p1 = drop_mul(c[2], 0xCD9E8D57u);

    c[0] = drop_mix(p1, c[1], k0);
    c[2] = drop_mix(p0, c[3], k1);
    c[1] = p1;
    c[3] = p0;
}

/* The multipliers of columns column .. column + 63 of a row; column is a multiple of 64. */
static LS_UNUSED void drop_tile(const ls_drop *d, int64_t row, int64_t column, float *factor_out)
{
    uint32_t k0 = d->key[0], k1 = d->key[1], first = (uint32_t)(column / 4);
    int64_t number = d->first_row + row;
    int64_t position = ls_piece_position(&d->piece, number % d->T);
    ls_u8 time = drop_set((uint32_t)position), site = drop_set(d->site);
    ls_u8 seq = drop_set(d->first_seq + (uint32_t)(number / d->T));
    ls_u8 a[4] = {drop_count(first), time, seq, site};
    ls_u8 b[4] = {drop_count(first + 8), time, seq, site};

    for (int round = 0; round < 10; round++) {
        drop_round(a, k0, k1);
        drop_round(b, k0, k1);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    drop_finish(factor_out, a, d);
    drop_finish(factor_out + LS_TILE / 2, b, d);
}
