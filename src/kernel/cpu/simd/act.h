/* act.h -- the activations and their slopes, one definition for the plain row and the fused ones.
 *
 * Both are z s with s = 1 / (1 + e^-w): w = z gives SiLU, and since (1 + tanh u) / 2 =
 * 1 / (1 + e^-2u), w = 2 sqrt(2 / pi) (z + 0.044715 z^3) gives GELU's tanh form. So small values
 * keep their digits, which 1 + tanh would lose. The slope is s + z s (1 - s) w', with
 * 1 - s = e^-w s. act is a constant where these are inlined.
 *
 * These are bound by the number of instructions, so e^-w is made as 2^t with the factor of t folded
 * into the constants of w, and t = n + f is parted by adding 1.5 2^23, in whose sum the lowest bits
 * are n: that is six instructions less than an exp of e, and its error is of the same size. */
#pragma once
#include "kernel/cpu/simd/vec.h"
#include "kernel/kernel.h"

#define LS_GELU_1 1.5957691216057308 /* 2 sqrt(2 / pi) */
#define LS_GELU_3 (LS_GELU_1 * 0.044715)
#define LS_LOG2_E 1.4426950408889634

/* p 2^n with n from the lowest bits of biased = 1.5 2^23 + n; p in [1/2, 2], |n| <= 126. */
#if defined(__AVX512F__)
LS_INLINE ls_v16 act_raise(ls_v16 p, ls_v16 biased)
{
    __m512i n = _mm512_slli_epi32(_mm512_castps_si512(biased), 23);

    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), n));
}
#elif defined(__AVX2__)
LS_INLINE __m256 act_raise_half(__m256 p, __m256 biased)
{
    __m256i n = _mm256_slli_epi32(_mm256_castps_si256(biased), 23);

    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), n));
}
LS_INLINE ls_v16 act_raise(ls_v16 p, ls_v16 biased)
{
    return LS_V2(act_raise_half(p.lo, biased.lo), act_raise_half(p.hi, biased.hi));
}
#else
LS_INLINE ls_v16 act_raise(ls_v16 p, ls_v16 biased)
{
    uint32_t a[16], n[16];

    memcpy(a, p.f, sizeof a);
    memcpy(n, biased.f, sizeof n);
    LS_EACH(i) a[i] += n[i] << 23;
    memcpy(p.f, a, sizeof a);
    return p;
}
#endif

/* 2^t for |t| <= 126. The polynomial is the best of degree 5 for the relative error on
 * [-1/2, 1/2] that begins with 1; with its roundings it is within 1.5 units in the last place.
 * A NaN may come out as anything: callers multiply by z, which is NaN as well. */
LS_INLINE ls_v16 act_exp2(ls_v16 t)
{
    ls_v16 shift = v_set(0x1.8p23f), biased = v_add(t, shift);
    ls_v16 f = v_sub(t, v_sub(biased, shift)), p = v_set(1.326472731e-3f);

    p = v_fma(p, f, v_set(9.671512991e-3f));
    p = v_fma(p, f, v_set(5.550733581e-2f));
    p = v_fma(p, f, v_set(2.402224243e-1f));
    p = v_fma(p, f, v_set(6.931470037e-1f));
    p = v_fma(p, f, v_set(1));
    return act_raise(p, biased);
}

/* -w / ln 2. */
LS_INLINE ls_v16 act_power(ls_act act, ls_v16 z)
{
    ls_v16 slope = v_set((float)-LS_LOG2_E);

    if (act == LS_ACT_GELU)
        slope = v_fma(v_mul(z, z), v_set((float)(-LS_GELU_3 * LS_LOG2_E)),
                      v_set((float)(-LS_GELU_1 * LS_LOG2_E)));
    return v_mul(z, slope);
}

/* The limits of act_exp2(); NaN passes: the second operand wins. */
LS_INLINE ls_v16 act_limit(ls_v16 t, float most)
{
    return v_min(v_set(most), v_max(v_set(-most), t));
}

LS_HELPER ls_v16 act_value(ls_act act, ls_v16 z)
{
    if (act == LS_ACT_NONE)
        return z;
    return v_div(z, v_add(v_set(1), act_exp2(act_limit(act_power(act, z), 126))));
}

/* The slope at z; value_out becomes z s. */
LS_HELPER ls_v16 act_both(ls_act act, ls_v16 z, ls_v16 *value_out)
{
    ls_v16 at = z, one = v_set(1);

    *value_out = z;
    if (act == LS_ACT_NONE)
        return one;
    /* Beyond 9.9 GELU's slope is 0 or 1 to far below the last digit; without the limit z^3
     * overflows and meets a zero. It also keeps t below 123. */
    if (act == LS_ACT_GELU)
        at = act_limit(z, 9.9f);
    ls_v16 t = act_power(act, at);
    ls_v16 e = act_exp2(act == LS_ACT_GELU ? t : act_limit(t, 126));
    ls_v16 s = v_div(one, v_add(one, e)), bend = v_mul(v_mul(at, s), v_mul(e, s));
    *value_out = v_mul(z, s);
    if (act == LS_ACT_SILU)
        return v_add(s, bend);
    ls_v16 turn = v_fma(v_mul(at, at), v_set((float)(3 * LS_GELU_3)), v_set((float)LS_GELU_1));
    return v_fma(bend, turn, s);
}

LS_HELPER ls_v16 act_slope(ls_act act, ls_v16 z)
{
    ls_v16 value;

    return act_both(act, z, &value);
}
