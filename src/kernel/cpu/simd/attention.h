/* attention.h -- what the two files of the attention row share. */
#pragma once
#include "kernel/cpu/rows_shared.h"
#include "kernel/cpu/simd/tile.h"

enum {
    LS_ATTENTION_TILE = TILE_SIDE, /* keys whose scores share a largest one: makes the bits */
    LS_ATTENTION_MOST_D = 1024,
    LS_ATTENTION_FEW = 16 /* positions of queries up to which a call counts as few */
};

/* Scores are in units of ln 2, so that a weight is a power of 2: queries are multiplied by the
 * scale times this. */
#define LS_ATTENTION_LOG2E 1.44269504088896341f
#define LS_ATTENTION_LN2 0.693147180559945309f

/* Below every score; finite, so that differences with it are not NaN. */
#define LS_ATTENTION_LOWEST (-3.0e38f)

/* The lowest nine bits of each lane as sign and exponent of a float. */
LS_INLINE ls_v16 v_exponent(ls_v16 a)
{
#if defined(__AVX512F__)
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 23));
#elif defined(__AVX2__)
    return LS_V2(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.lo), 23)),
                 _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.hi), 23)));
#else
    uint32_t bits[LS_LANES];

    memcpy(bits, a.f, sizeof bits);
    LS_EACH(i) bits[i] <<= 23;
    memcpy(a.f, bits, sizeof bits);
    return a;
#endif
}

/* 2^x for x <= 0: exactly 1 at 0, exactly 0 from -127 down; NaN stays NaN. x = n + r, |r| <= 1/2:
 * adding 1.5 2^23 + 127 leaves n + 127 in the lowest bits of the sum, which are the exponent of
 * 2^n. 2^r = 1 + r times a polynomial of degree 4, minimax for the relative error. Largest error
 * seen: 2.1 units in the last place. v_exp takes half as many instructions again. */
LS_INLINE ls_v16 v_exp2_weight(ls_v16 x)
{
    const ls_v16 magic = v_set(12583039.0f);
    x = v_max(v_set(-127.0f), x); /* this order keeps NaN */
    ls_v16 n = v_add(x, magic), r = v_sub(x, v_sub(n, magic));
    ls_v16 p = v_set(1.326472720e-03f);
    p = v_fma(p, r, v_set(9.671512640e-03f));
    p = v_fma(p, r, v_set(5.550733743e-02f));
    p = v_fma(p, r, v_set(2.402224209e-01f));
    p = v_fma(p, r, v_set(6.931469776e-01f));
    p = v_fma(p, r, v_set(1.0f));
    return v_mul(p, v_exponent(n));
}

/* attention_fwd for T up to LS_ATTENTION_FEW, without start and dropout: equal bits. */
void LS_ISA_NAME(ls_attention_few)(ls_stream *stream, const ls_attention_fwd *a);
