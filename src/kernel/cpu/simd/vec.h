/* vec.h -- sixteen floats at a time, with the same bits on every instruction set.
 *
 * The files of this folder are written once over ls_v16 and compiled once per instruction set
 * (LS_ISA is generic, avx2 or avx512). AVX-512 holds a value in one register, AVX2 in two, generic
 * in an array. Every operation is one IEEE operation per lane, fma included, and a horizontal sum
 * is always the same tree, so the three versions agree to the last bit. */
#pragma once
#include "base/base.h"
#include "base/dtype.h"
#include <math.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

/* The name under which a file of this folder exports its part of the table. */
#define LS_ISA_JOIN2(name, isa) name##_##isa
#define LS_ISA_JOIN(name, isa) LS_ISA_JOIN2(name, isa)
#define LS_ISA_NAME(name) LS_ISA_JOIN(name, LS_ISA)

/* The generic version is for machines without these instructions and for comparing bits: leaving
 * the decision to the compiler there, and calling what has an exp inside, keeps sanitizer builds
 * from taking minutes per file. */
#if defined(__AVX512F__) || defined(__AVX2__)
#define LS_INLINE static inline __attribute__((always_inline, unused))
#define LS_HELPER LS_INLINE /* has an exp inside */
#else
#define LS_INLINE static inline __attribute__((unused))
#define LS_HELPER static __attribute__((noinline, unused))
#endif
enum { LS_LANES = 16 };

#if defined(__AVX512F__)

typedef __m512 ls_v16;
typedef __m512i ls_i16; /* sixteen int32 */

#define LS_OF_TWO(name, op512, op256, value)  \
    LS_INLINE ls_v16 name(ls_v16 a, ls_v16 b) \
    {                                         \
        return op512(a, b);                   \
    }

LS_INLINE ls_v16 v_set(float x)
{
    return _mm512_set1_ps(x);
}
LS_INLINE ls_v16 v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
LS_INLINE void v_store(float *p, ls_v16 a)
{
    _mm512_storeu_ps(p, a);
}
LS_INLINE ls_v16 v_fma(ls_v16 a, ls_v16 b, ls_v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}
LS_INLINE ls_v16 v_sqrt(ls_v16 a)
{
    return _mm512_sqrt_ps(a);
}
LS_INLINE ls_v16 v_round(ls_v16 a)
{
    return _mm512_roundscale_ps(a, 8);
} /* nearest even */
LS_INLINE ls_i16 v_to_int(ls_v16 a)
{
    return _mm512_cvttps_epi32(a);
}
LS_INLINE ls_v16 v_pow2(ls_i16 n) /* 2^n for -126 <= n <= 127 */
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}

/* The first n of 16 elements (0 <= n <= 16); the others read as fill, or are not written. */
LS_INLINE ls_v16 v_load_part(const float *p, int64_t n, float fill)
{
    return _mm512_mask_loadu_ps(v_set(fill), (__mmask16)((1u << n) - 1u), p);
}
LS_INLINE void v_store_part(float *p, int64_t n, ls_v16 a)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), a);
}

/* Sixteen bf16 values: exact on the way in, to nearest even on the way out, NaN stays NaN. */
LS_INLINE ls_v16 v_load_bf16(const uint16_t *p)
{
    __m512i to_odd = _mm512_slli_epi32(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 16);
    __m512i half = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)p));

    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xAAAAAAAAu, to_odd, half));
}
LS_INLINE void v_store_bf16(uint16_t *p, ls_v16 a)
{
    __m512i odd_words = _mm512_setr_epi32(0x30001, 0x70005, 0xb0009, 0xf000d, 0x130011, 0x170015,
                                          0x1b0019, 0x1f001d, 0, 0, 0, 0, 0, 0, 0, 0);
    __m512i bits = _mm512_castps_si512(a), near = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);

    near = _mm512_mask_add_epi32(near, odd, near, _mm512_set1_epi32(1));
    near = _mm512_mask_or_epi32(near, nan, bits, _mm512_set1_epi32(0x400000));
    near = _mm512_permutexvar_epi16(odd_words, near);
    _mm256_storeu_si256((__m256i *)p, _mm512_castsi512_si256(near));
}

#elif defined(__AVX2__)

typedef struct {
    __m256 lo, hi;
} ls_v16;
typedef struct {
    __m256i lo, hi;
} ls_i16;

#define LS_V2(expr_lo, expr_hi) ((ls_v16){(expr_lo), (expr_hi)})
#define LS_OF_TWO(name, op512, op256, value)                \
    LS_INLINE ls_v16 name(ls_v16 a, ls_v16 b)               \
    {                                                       \
        return LS_V2(op256(a.lo, b.lo), op256(a.hi, b.hi)); \
    }
LS_INLINE ls_v16 v_set(float x)
{
    return LS_V2(_mm256_set1_ps(x), _mm256_set1_ps(x));
}
LS_INLINE ls_v16 v_load(const float *p)
{
    return LS_V2(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
LS_INLINE void v_store(float *p, ls_v16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
LS_INLINE ls_v16 v_fma(ls_v16 a, ls_v16 b, ls_v16 c)
{
    return LS_V2(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}
LS_INLINE ls_v16 v_sqrt(ls_v16 a)
{
    return LS_V2(_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi));
}
LS_INLINE ls_v16 v_round(ls_v16 a)
{
    return LS_V2(_mm256_round_ps(a.lo, 8), _mm256_round_ps(a.hi, 8));
}
LS_INLINE ls_i16 v_to_int(ls_v16 a)
{
    return (ls_i16){_mm256_cvttps_epi32(a.lo), _mm256_cvttps_epi32(a.hi)};
}
LS_INLINE ls_v16 v_pow2(ls_i16 n)
{
    __m256i bias = _mm256_set1_epi32(127);
    return LS_V2(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.lo, bias), 23)),
                 _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.hi, bias), 23)));
}
LS_INLINE ls_v16 v_load_part(const float *p, int64_t n, float fill)
{
    float t[16];

    for (int i = 0; i < 16; i++)
        t[i] = fill;
    memcpy(t, p, (size_t)n * sizeof *t);
    return v_load(t);
}
LS_INLINE void v_store_part(float *p, int64_t n, ls_v16 a)
{
    float t[16];

    v_store(t, a);
    memcpy(p, t, (size_t)n * sizeof *t);
}

LS_INLINE ls_v16 v_load_bf16(const uint16_t *p)
{
    __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    __m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 8)));

    return LS_V2(_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
                 _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16)));
}
LS_INLINE __m256i v_near_bf16(__m256 a)
{
    __m256i bits = _mm256_castps_si256(a), one = _mm256_set1_epi32(1);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
    __m256i near = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));

    return _mm256_srli_epi32(_mm256_blendv_epi8(near, quiet, nan), 16);
}
LS_INLINE void v_store_bf16(uint16_t *p, ls_v16 a)
{
    __m256i both = _mm256_packus_epi32(v_near_bf16(a.lo), v_near_bf16(a.hi));

    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(both, 0xD8));
}

#else

typedef struct {
    float f[16];
} ls_v16;
typedef struct {
    int32_t i[16];
} ls_i16;

#define LS_EACH(i) for (int i = 0; i < 16; i++)
#define LS_OF_TWO(name, op512, op256, value)  \
    LS_INLINE ls_v16 name(ls_v16 a, ls_v16 b) \
    {                                         \
        LS_EACH(i)                            \
        {                                     \
            float x = a.f[i], y = b.f[i];     \
            a.f[i] = (value);                 \
        }                                     \
        return a;                             \
    }
LS_INLINE ls_v16 v_set(float x)
{
    ls_v16 r;
    LS_EACH(i) r.f[i] = x;
    return r;
}
LS_INLINE ls_v16 v_load(const float *p)
{
    ls_v16 r;
    memcpy(r.f, p, sizeof r.f);
    return r;
}
LS_INLINE void v_store(float *p, ls_v16 a)
{
    memcpy(p, a.f, sizeof a.f);
}
LS_INLINE ls_v16 v_fma(ls_v16 a, ls_v16 b, ls_v16 c)
{
    LS_EACH(i) a.f[i] = fmaf(a.f[i], b.f[i], c.f[i]);
    return a;
}
LS_INLINE ls_v16 v_sqrt(ls_v16 a)
{
    LS_EACH(i) a.f[i] = sqrtf(a.f[i]);
    return a;
}
LS_INLINE ls_v16 v_round(ls_v16 a)
{
    LS_EACH(i) a.f[i] = nearbyintf(a.f[i]);
    return a;
}
LS_INLINE ls_i16 v_to_int(ls_v16 a)
{
    ls_i16 r;
    LS_EACH(i)
    r.i[i] = a.f[i] >= -2147483648.0f && a.f[i] < 2147483648.0f ? (int32_t)a.f[i] : INT32_MIN;
    return r;
}
LS_INLINE ls_v16 v_pow2(ls_i16 n)
{
    ls_v16 r;
    LS_EACH(i)
    {
        uint32_t bits = (uint32_t)(n.i[i] + 127) << 23;
        memcpy(&r.f[i], &bits, 4);
    }
    return r;
}
LS_INLINE ls_v16 v_load_part(const float *p, int64_t n, float fill)
{
    ls_v16 r = v_set(fill);
    memcpy(r.f, p, (size_t)n * sizeof(float));
    return r;
}
LS_INLINE void v_store_part(float *p, int64_t n, ls_v16 a)
{
    memcpy(p, a.f, (size_t)n * sizeof(float));
}

#endif

/* Operations of two vectors, for each instruction set; of max and min the result is the second operand
 * when either is NaN. */
LS_OF_TWO(v_add, _mm512_add_ps, _mm256_add_ps, x + y)
LS_OF_TWO(v_sub, _mm512_sub_ps, _mm256_sub_ps, x - y)
LS_OF_TWO(v_mul, _mm512_mul_ps, _mm256_mul_ps, x *y)
LS_OF_TWO(v_div, _mm512_div_ps, _mm256_div_ps, x / y)
LS_OF_TWO(v_max, _mm512_max_ps, _mm256_max_ps, x > y ? x : y)
LS_OF_TWO(v_min, _mm512_min_ps, _mm256_min_ps, x < y ? x : y)
#undef LS_OF_TWO

#if !defined(__AVX2__)
LS_INLINE ls_v16 v_load_bf16(const uint16_t *p)
{
    uint32_t bits[16];
    float t[16];

    for (int i = 0; i < 16; i++)
        bits[i] = (uint32_t)p[i] << 16;
    memcpy(t, bits, sizeof t);
    return v_load(t);
}
LS_INLINE void v_store_bf16(uint16_t *p, ls_v16 a)
{
    uint32_t bits[16];
    float t[16];

    v_store(t, a);
    memcpy(bits, t, sizeof bits);
    for (int i = 0; i < 16; i++) {
        uint32_t near = bits[i] + 0x7fff + (bits[i] >> 16 & 1), quiet = bits[i] | 0x400000;
        p[i] = (uint16_t)(((bits[i] & 0x7fffffff) > 0x7f800000 ? quiet : near) >> 16);
    }
}
#endif

/* As many of sixteen elements as there are left; n may be larger, and is 16 nearly always. */
LS_INLINE ls_v16 v_load_most(const float *p, int64_t n)
{
    return n >= LS_LANES ? v_load(p) : v_load_part(p, n, 0);
}
LS_INLINE void v_store_most(float *p, int64_t n, ls_v16 a)
{
    if (n >= LS_LANES)
        v_store(p, a);
    else
        v_store_part(p, n, a);
}

/* Elements i .. i+15 of a tensor of a type (LS_F32 or LS_BF16), as floats; or as many of them as
 * there are left. The type is a constant wherever these are used, so no test is left in a loop. */
LS_INLINE ls_v16 v_load_as(const ls_dtype type, const void *x, int64_t i)
{
    return type == LS_BF16 ? v_load_bf16((const uint16_t *)x + i) : v_load((const float *)x + i);
}
LS_INLINE void v_store_as(const ls_dtype type, void *x, int64_t i, ls_v16 a)
{
    if (type == LS_BF16)
        v_store_bf16((uint16_t *)x + i, a);
    else
        v_store((float *)x + i, a);
}
LS_INLINE ls_v16 v_load_most_as(const ls_dtype type, const void *x, int64_t i, int64_t n)
{
    uint16_t t[16] = {0};

    if (type != LS_BF16)
        return v_load_most((const float *)x + i, n);
    if (n >= LS_LANES)
        return v_load_bf16((const uint16_t *)x + i);
    memcpy(t, (const uint16_t *)x + i, (size_t)n * sizeof *t);
    return v_load_bf16(t);
}
LS_INLINE void v_store_most_as(const ls_dtype type, void *x, int64_t i, int64_t n, ls_v16 a)
{
    uint16_t t[16];

    if (type != LS_BF16) {
        v_store_most((float *)x + i, n, a);
        return;
    }
    v_store_bf16(n >= LS_LANES ? (uint16_t *)x + i : t, a);
    if (n < LS_LANES)
        memcpy((uint16_t *)x + i, t, (size_t)n * sizeof *t);
}

/* One of them. */
LS_INLINE float v_one_as(const ls_dtype type, const void *x, int64_t i)
{
    uint32_t bits;
    float f;

    if (type == LS_F32)
        return ((const float *)x)[i];
    bits = (uint32_t)((const uint16_t *)x)[i] << 16;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* The sum of all lanes: lane i + lane i+8, then +4, +2, +1. */
#if defined(__AVX2__)
LS_INLINE float v_sum(ls_v16 a)
{
#if defined(__AVX512F__)
    __m256 lo = _mm512_castps512_ps256(a), hi = _mm512_extractf32x8_ps(a, 1);
#else
    __m256 lo = a.lo, hi = a.hi;
#endif
    __m256 eight = _mm256_add_ps(lo, hi);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));

    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
#else
LS_INLINE float v_sum(ls_v16 a)
{
    float t[16];

    v_store(t, a);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++)
            t[i] += t[i + half];
    return t[0];
}
#endif

LS_INLINE float v_largest(ls_v16 a)
{
    float t[16];

    v_store(t, a);
    for (int i = 1; i < 16; i++)
        t[0] = t[i] > t[0] ? t[i] : t[0];
    return t[0];
}

/* e^x. Below -87.3 the result is e^-87.3, about 1e-38, which callers treat as zero by masking;
 * above 88.3 it is e^88.3. x = n ln 2 + r with |r| <= ln 2 / 2; then a polynomial of degree 6 (the
 * minimax coefficients of Cephes' expf). Largest error seen: 2 units in the last place. */
LS_INLINE ls_v16 v_exp(ls_v16 x)
{
    x = v_min(v_set(88.37626f), v_max(v_set(-87.33654f), x)); /* this order keeps NaN */
    ls_v16 n = v_round(v_mul(x, v_set(1.44269504088896341f)));
    ls_v16 r = v_fma(n, v_set(-0.693359375f), x);
    r = v_fma(n, v_set(2.12194440e-4f), r);
    ls_v16 p = v_set(1.9875691500e-4f);
    p = v_fma(p, r, v_set(1.3981999507e-3f));
    p = v_fma(p, r, v_set(8.3334519073e-3f));
    p = v_fma(p, r, v_set(4.1665795894e-2f));
    p = v_fma(p, r, v_set(1.6666665459e-1f));
    p = v_fma(p, r, v_set(5.0000001201e-1f));
    p = v_fma(p, v_mul(r, r), v_add(r, v_set(1.0f)));
    return v_mul(p, v_pow2(v_to_int(n)));
}

/* ln x for normal x > 0; NaN stays NaN. x = m 2^e with m in [sqrt(1/2), sqrt(2)], ln m =
 * 2 atanh(s) with s = (m - 1) / (m + 1), |s| < 0.172: the odd series to s^9 is exact to float. */
LS_INLINE ls_v16 v_log(ls_v16 x)
{
    float whole[16], parts[16];

    v_store(parts, x);
    for (int i = 0; i < 16; i++) {
        uint32_t bits;
        memcpy(&bits, &parts[i], 4);
        /* adding the distance from sqrt(1/2) to 1 carries into the exponent from sqrt(2) on */
        int32_t e = (int32_t)((bits + 0x004afb0du) >> 23) - 127;
        bits -= (uint32_t)e << 23;
        memcpy(&parts[i], &bits, 4);
        whole[i] = (float)e;
    }
    ls_v16 m = v_load(parts), e = v_load(whole), one = v_set(1.0f);
    ls_v16 s = v_div(v_sub(m, one), v_add(m, one)), s2 = v_mul(s, s);
    ls_v16 series = v_set(2.0f / 9);
    series = v_fma(series, s2, v_set(2.0f / 7));
    series = v_fma(series, s2, v_set(2.0f / 5));
    series = v_fma(series, s2, v_set(2.0f / 3));
    series = v_mul(v_mul(series, s2), s);
    ls_v16 small = v_fma(e, v_set(-2.12194440e-4f), v_fma(v_set(2.0f), s, series));
    return v_add(v_fma(e, v_set(0.693359375f), small), v_sub(x, x));
}
