/* simd_codec.c -- packing and unpacking, a block at a time: 256 elements, 4096 for topk.
 *
 * What a block owes (x + residual) is put together in the first cache with zeros behind it up to a
 * multiple of sixteen, packed from there, unpacked again and compared. The second reading costs
 * little beside the memory that x and residual come from, and makes "what the others see" one
 * function instead of two that have to agree.
 *
 * topk finds the smallest size that is kept by its bits, from the highest down: sizes of floats are
 * ordered as their bits are, so that each bit needs one count over the block, which is vectors, and
 * most blocks are done after half of the bits. With keep = 2 and sizes 9 3 7 1 (four bits):
 *
 *     from 8 on: 1, too few    from 4: 2 = keep, done    -> 9 and 7, places 0 and 2
 *
 * Rejected: sorting the block, ten times the work for an order that is not needed. */
#include "kernel/codec_impl.h"
#include "kernel/cpu/simd/bits.h"

#include <string.h>

#define LEAST_SCALED 0x1p-119f /* of a block of int8: below, 127 / max is no number any more */

/* --- sixteen small integers ---------------------------------------------------------------------
 */

#if defined(__AVX512F__)
LS_INLINE ls_v16 load_int8(const char *p)
{
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
LS_INLINE void store_int8(char *p, ls_i16 a)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(a));
}
#elif defined(__AVX2__)
LS_INLINE ls_v16 load_int8(const char *p)
{
    __m128i all = _mm_loadu_si128((const __m128i *)(const void *)p);

    return LS_V2(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(all)),
                 _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(all, 8))));
}
LS_INLINE void store_int8(char *p, ls_i16 a)
{
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xD8);

    _mm_storeu_si128((__m128i *)(void *)p, _mm_packs_epi16(_mm256_castsi256_si128(words),
                                                           _mm256_extracti128_si256(words, 1)));
}
#else
LS_INLINE ls_v16 load_int8(const char *p)
{
    int8_t q[LS_LANES];
    ls_v16 r;

    memcpy(q, p, sizeof q);
    for (int i = 0; i < LS_LANES; i++)
        r.f[i] = (float)q[i];
    return r;
}
LS_INLINE void store_int8(char *p, ls_i16 a)
{
    int8_t q[LS_LANES];

    for (int i = 0; i < LS_LANES; i++)
        q[i] = (int8_t)a.i[i];
    memcpy(p, q, sizeof q);
}
#endif

/* Whether all of them are finite; n is a multiple of sixteen. */
LS_INLINE bool all_finite(const float *y, int64_t n)
{
    ls_v16 bad = v_set(0);

    for (int64_t i = 0; i < n; i += LS_LANES)
        bad = v_fma(v_load(y + i), v_set(0), bad);
    return v_sum(bad) == 0;
}

LS_INLINE int64_t padded(int64_t n)
{
    return (n + LS_LANES - 1) / LS_LANES * LS_LANES;
}

/* --- one block: y has padded(n) elements, those behind n are 0 -----------------------------------
 */

static void pack_bf16(const float *y, int64_t n, char *packed)
{
    char last[2 * LS_LANES];

    for (int64_t i = 0; i < n; i += LS_LANES) {
        bool whole = n - i >= LS_LANES;
        v_store_bf16_any(whole ? packed + 2 * i : last, v_load(y + i));
        if (!whole)
            memcpy(packed + 2 * i, last, (size_t)(2 * (n - i)));
    }
}

static void unpack_bf16(const char *packed, int64_t n, float *u)
{
    char last[2 * LS_LANES] = {0};

    for (int64_t i = 0; i < n; i += LS_LANES) {
        const char *from = packed + 2 * i;
        if (n - i < LS_LANES)
            from = memcpy(last, from, (size_t)(2 * (n - i)));
        v_store(u + i, v_load_bf16_any(from));
    }
}

static void pack_int8(const float *y, int64_t n, char *packed)
{
    ls_v16 most = v_set(0);
    char last[LS_LANES], *q = packed + sizeof(float);

    for (int64_t i = 0; i < n; i += LS_LANES) {
        ls_v16 a = v_load(y + i);
        most = v_max(most, v_max(a, v_sub(v_set(0), a)));
    }
    float top = v_largest(most), scale = top / 127;
    bool good = all_finite(y, padded(n)), zeros = !good || top < LEAST_SCALED;
    if (zeros)
        scale = good ? 0 : from_bits(FLOAT_NAN);
    memcpy(packed, &scale, sizeof scale);
    if (zeros) {
        memset(q, 0, (size_t)n);
        return;
    }
    ls_v16 up = v_set(127 / top);
    for (int64_t i = 0; i < n; i += LS_LANES) {
        bool whole = n - i >= LS_LANES;
        store_int8(whole ? q + i : last, v_to_int(v_round(v_mul(v_load(y + i), up))));
        if (!whole)
            memcpy(q + i, last, (size_t)(n - i));
    }
}

static void unpack_int8(const char *packed, int64_t n, float *u)
{
    char last[LS_LANES] = {0};
    const char *q = packed + sizeof(float);
    float scale;

    memcpy(&scale, packed, sizeof scale);
    for (int64_t i = 0; i < n; i += LS_LANES) {
        const char *from = q + i;
        if (n - i < LS_LANES)
            from = memcpy(last, from, (size_t)(n - i));
        v_store(u + i, v_mul(load_int8(from), v_set(scale)));
    }
}

static int64_t count_from(const int32_t *sizes, int64_t n, int32_t least)
{
    int32_t count = 0;

    for (int64_t i = 0; i < n; i++)
        count += sizes[i] >= least;
    return count;
}

/* The largest size of which at least `keep` elements are as large. */
static int32_t least_kept(const int32_t *sizes, int64_t n, int64_t keep)
{
    int32_t least = 0;
    int64_t count = n;

    for (int bit = 30; bit >= 0 && count > keep; bit--) {
        int32_t tried = least | (int32_t)(1u << bit);
        int64_t found = count_from(sizes, n, tried);
        if (found >= keep) {
            least = tried;
            count = found;
        }
    }
    return least;
}

static void pack_topk(const float *y, int64_t n, int64_t keep, char *packed)
{
    int32_t sizes[LS_CODEC_BLOCK];
    float values[LS_CODEC_BLOCK + LS_LANES];
    int64_t kept = 0;

    for (int64_t i = 0; i < n; i++)
        sizes[i] = (int32_t)(to_bits(y[i]) & 0x7fffffff);
    int32_t least = least_kept(sizes, n, keep);
    int64_t equal = keep - count_from(sizes, n, least + 1); /* of those at the limit, the first */
    for (int64_t i = 0; i < n && kept < keep; i++) {
        uint16_t place = (uint16_t)i;
        if (sizes[i] < least || (sizes[i] == least && equal-- <= 0))
            continue;
        memcpy(packed + 2 * kept, &place, sizeof place);
        values[kept++] = y[i];
    }
    memset(values + kept, 0, LS_LANES * sizeof *values);
    pack_bf16(values, kept, packed + 2 * kept);
}

/* Calls for each kept element; false: a place that is none. */
LS_INLINE bool scatter(const char *packed, int64_t n, int64_t keep, const bool adds, float *to)
{
    float values[LS_CODEC_BLOCK + LS_LANES];
    bool good = true;

    unpack_bf16(packed + 2 * keep, keep, values);
    for (int64_t i = 0; i < keep; i++) {
        uint16_t place;
        memcpy(&place, packed + 2 * i, sizeof place);
        if (place >= n) {
            good = false;
            continue;
        }
        float sum = adds ? to[place] + values[i] : values[i];
        to[place] = from_bits(pick(sum != sum, FLOAT_NAN, to_bits(sum)));
    }
    return good;
}

/* --- any kind -----------------------------------------------------------------------------------
 */

LS_INLINE int64_t block_of(const ls_codec *how)
{
    return how->kind == LS_CODEC_TOPK ? LS_CODEC_BLOCK : LS_CODEC_SCALED;
}

static void pack_block(const ls_codec *how, const float *y, int64_t n, char *packed)
{
    if (how->kind == LS_CODEC_BF16)
        pack_bf16(y, n, packed);
    else if (how->kind == LS_CODEC_INT8)
        pack_int8(y, n, packed);
    else if (how->kind == LS_CODEC_TOPK)
        pack_topk(y, n, ls_codec_kept(how, n), packed);
    else
        memcpy(packed, y, (size_t)n * sizeof *y);
}

/* u: room for padded(n). */
static bool unpack_block(const ls_codec *how, const char *packed, int64_t n, float *u)
{
    if (how->kind == LS_CODEC_BF16) {
        unpack_bf16(packed, n, u);
    } else if (how->kind == LS_CODEC_INT8) {
        unpack_int8(packed, n, u);
    } else if (how->kind == LS_CODEC_TOPK) {
        memset(u, 0, (size_t)padded(n) * sizeof *u);
        return scatter(packed, n, ls_codec_kept(how, n), false, u);
    } else {
        memset(u, 0, (size_t)padded(n) * sizeof *u);
        memcpy(u, packed, (size_t)n * sizeof *u);
    }
    return true;
}

void LS_ISA_NAME(ls_codec_pack)(const ls_codec *how, const float *x, float *residual, int64_t n,
                                char *packed)
{
    _Alignas(64) float y[LS_CODEC_BLOCK], u[LS_CODEC_BLOCK];
    int64_t block = block_of(how);

    for (int64_t at = 0; at < n; at += block) {
        int64_t m = ls_min_i64(block, n - at);
        for (int64_t i = 0; i < m; i += LS_LANES) {
            ls_v16 a = v_load_most(x + at + i, m - i);
            if (residual)
                a = v_add(a, v_load_most(residual + at + i, m - i));
            v_store(y + i, v_one_nan(a));
        }
        pack_block(how, y, m, packed);
        if (residual) {
            unpack_block(how, packed, m, u);
            bool good = all_finite(u, padded(m));
            for (int64_t i = 0; i < m && good; i += LS_LANES)
                v_store_most(residual + at + i, m - i, v_sub(v_load(y + i), v_load(u + i)));
        }
        packed += ls_codec_bytes(how, m);
    }
}

bool LS_ISA_NAME(ls_codec_add)(const ls_codec *how, const char *packed, int64_t n, float *sum)
{
    _Alignas(64) float u[LS_CODEC_BLOCK];
    int64_t block = block_of(how);
    bool good = true;

    for (int64_t at = 0; at < n; at += block) {
        int64_t m = ls_min_i64(block, n - at);
        if (how->kind == LS_CODEC_TOPK) {
            good &= scatter(packed, m, ls_codec_kept(how, m), true, sum + at);
        } else {
            unpack_block(how, packed, m, u);
            for (int64_t i = 0; i < m; i += LS_LANES) {
                ls_v16 a = v_add(v_load_most(sum + at + i, m - i), v_load(u + i));
                v_store_most(sum + at + i, m - i, v_one_nan(a));
            }
        }
        packed += ls_codec_bytes(how, m);
    }
    return good;
}

bool LS_ISA_NAME(ls_codec_unpack)(const ls_codec *how, const char *packed, int64_t n, float *out)
{
    _Alignas(64) float u[LS_CODEC_BLOCK];
    int64_t block = block_of(how);
    bool good = true;

    for (int64_t at = 0; at < n; at += block) {
        int64_t m = ls_min_i64(block, n - at);
        good &= unpack_block(how, packed, m, u);
        memcpy(out + at, u, (size_t)m * sizeof *out);
        packed += ls_codec_bytes(how, m);
    }
    return good;
}
