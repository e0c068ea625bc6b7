/* simd_combine.c -- sum, max and min over the buffers of several ranks, each byte read once and written
 * once.
 *
 * Sums of fp32, bf16 and fp16 run over registers: four vectors of sixteen elements of every source
 * in turn, then a store to every target. Nothing is written before all sources of the turn were
 * read, so a target may be a source. Everything else runs over blocks that fit the first cache.
 *
 * Max and min are found among integers: the bits of a float, with the lower ones inverted when it
 * is negative, are ordered as its value is, -0 below +0. So they need no conversion, and the result
 * does not depend on the order of the sources. Min inverts all bits and takes the largest. NaN
 * becomes the largest key of all. bf16, as an example, for the maximum of -2, 1 and NaN:
 *
 *     bits    c000    3f80    7fc1
 *     key    -4001    3f80    7fff (NaN)   -> 7fff -> 7fc0
 *
 * Bits are the same on every instruction set. Where a NaN comes from decides its sign and payload,
 * and the compiler may exchange the operands of a sum: so the result of a combination that is NaN
 * is always the same one, positive and quiet. One source, not scaled, is copied as it is. */
#include "kernel/combine_impl.h"
#include "kernel/cpu/simd/bits.h"

#include <string.h>

enum { TURN = 4 * LS_LANES }; /* elements */
enum { BLOCK_BYTES = 4096 };  /* of one array of a block */
enum { BF16_NAN = 0x7fc0, F16_NAN = 0x7e00 };

/* --- sixteen elements of any alignment, as floats -----------------------------------------------
 */

#if !defined(__AVX2__)
LS_INLINE float f16_value(uint16_t h)
{
    uint32_t a = h & 0x7fffu, sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t tiny = to_bits((float)(int32_t)a * 0x1p-24f);
    uint32_t r = pick(a < 0x400u, tiny, (a << 13) + (112u << 23));

    return from_bits(pick(a >= 0x7c00u, (a << 13) + (224u << 23), r) | sign);
}

/* To nearest even: below 2^-14 the adder rounds (0.5 has the unit 2^-24 of the result), above it a
 * carry runs into the exponent and ends at infinity. */
LS_INLINE uint16_t f16_of(float x)
{
    uint32_t u = to_bits(x), a = u & 0x7fffffff;
    uint32_t normal = (a + 0xfff + (a >> 13 & 1) - (112u << 23)) >> 13;
    uint32_t tiny = to_bits(from_bits(a) + 0.5f) - 0x3f000000u;
    uint32_t r = pick(a < 0x38800000u, tiny, normal);

    r = pick(a >= 0x47800000u, 0x7c00u, r);
    r = pick(a > 0x7f800000u, F16_NAN, r);
    return (uint16_t)((u >> 16 & 0x8000u) | r);
}
#endif

#if defined(__AVX512F__)
LS_INLINE ls_v16 load_f16(const char *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

LS_INLINE void store_f16(char *p, ls_v16 a)
{
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#elif defined(__AVX2__)
/* f16_value() and f16_of(), eight at a time: the instruction for it is not part of AVX2. */
LS_INLINE __m256 f16_values(__m256i h)
{
    __m256i a = _mm256_and_si256(h, _mm256_set1_epi32(0x7fff));
    __m256i sign = _mm256_slli_epi32(_mm256_andnot_si256(_mm256_set1_epi32(0x7fff), h), 16);
    __m256 tiny = _mm256_mul_ps(_mm256_cvtepi32_ps(a), _mm256_set1_ps(0x1p-24f));
    __m256i moved = _mm256_slli_epi32(a, 13);
    __m256i r = _mm256_add_epi32(moved, _mm256_set1_epi32(112 << 23));

    r = _mm256_blendv_epi8(r, _mm256_castps_si256(tiny),
                           _mm256_cmpgt_epi32(_mm256_set1_epi32(0x400), a));
    r = _mm256_blendv_epi8(r, _mm256_add_epi32(moved, _mm256_set1_epi32(224 << 23)),
                           _mm256_cmpgt_epi32(a, _mm256_set1_epi32(0x7bff)));
    return _mm256_castsi256_ps(_mm256_or_si256(r, sign));
}

LS_INLINE __m256i f16s_of(__m256 x)
{
    __m256i u = _mm256_castps_si256(x), a = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(a, 13), _mm256_set1_epi32(1));
    __m256i sum =
        _mm256_add_epi32(_mm256_add_epi32(a, odd), _mm256_set1_epi32(0xfff - (112 << 23)));
    __m256 tiny = _mm256_add_ps(_mm256_castsi256_ps(a), _mm256_set1_ps(0.5f));
    __m256i r = _mm256_srli_epi32(sum, 13);

    r = _mm256_blendv_epi8(
        r, _mm256_sub_epi32(_mm256_castps_si256(tiny), _mm256_set1_epi32(0x3f000000)),
        _mm256_cmpgt_epi32(_mm256_set1_epi32(0x38800000), a));
    r = _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7c00),
                           _mm256_cmpgt_epi32(a, _mm256_set1_epi32(0x477fffff)));
    r = _mm256_blendv_epi8(r, _mm256_set1_epi32(F16_NAN),
                           _mm256_cmpgt_epi32(a, _mm256_set1_epi32(0x7f800000)));
    return _mm256_or_si256(r,
                           _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x8000)));
}

LS_INLINE ls_v16 load_f16(const char *p)
{
    const __m128i *halves = (const __m128i *)(const void *)p;

    return LS_V2(f16_values(_mm256_cvtepu16_epi32(_mm_loadu_si128(halves))),
                 f16_values(_mm256_cvtepu16_epi32(_mm_loadu_si128(halves + 1))));
}

LS_INLINE void store_f16(char *p, ls_v16 a)
{
    __m256i both = _mm256_packus_epi32(f16s_of(a.lo), f16s_of(a.hi));

    _mm256_storeu_si256((__m256i *)(void *)p, _mm256_permute4x64_epi64(both, 0xD8));
}
#else
LS_INLINE ls_v16 load_f16(const char *p)
{
    uint16_t h[LS_LANES];
    float f[LS_LANES];

    memcpy(h, p, sizeof h);
    for (int i = 0; i < LS_LANES; i++)
        f[i] = f16_value(h[i]);
    return v_load(f);
}

LS_INLINE void store_f16(char *p, ls_v16 a)
{
    uint16_t h[LS_LANES];
    float f[LS_LANES];

    v_store(f, a);
    for (int i = 0; i < LS_LANES; i++)
        h[i] = f16_of(f[i]);
    memcpy(p, h, sizeof h);
}
#endif

LS_INLINE ls_v16 load(const ls_dtype type, const char *p)
{
    if (type == LS_F16)
        return load_f16(p);
    if (type == LS_F32)
        return v_load((const float *)(const void *)p);
    return v_load_bf16_any(p);
}

LS_INLINE void store(const ls_dtype type, char *p, ls_v16 a)
{
    if (type == LS_F16) {
        store_f16(p, a);
    } else if (type == LS_F32) {
        v_store((float *)(void *)p, a);
    } else {
        v_store_bf16_any(p, a);
    }
}

/* --- sums in fp32 -------------------------------------------------------------------------------
 */

enum { ROOM = TURN * (int)sizeof(float) }; /* bytes of a turn at most */

/* A turn of a source, or the bytes that are left of it and zeros. */
LS_INLINE const char *turn_of(const char *p, int64_t bytes, const bool whole, char part[ROOM])
{
    if (whole)
        return p;
    memcpy(part, p, (size_t)bytes);
    return part;
}

/* `sources` and `targets` are constants where the compiler is to unroll. */
LS_INLINE void sum_turn(const ls_dtype type, const int sources, const int targets,
                        const ls_combine *combine, int64_t at, int64_t bytes, const bool whole)
{
    int64_t vector = LS_LANES * ls_dtype_bytes(type);
    char part[ROOM];
    if (!whole)
        memset(part, 0, sizeof part);
    const char *p = turn_of((const char *)combine->from[0] + at, bytes, whole, part);
    ls_v16 a = load(type, p), b = load(type, p + vector);
    ls_v16 c = load(type, p + 2 * vector), d = load(type, p + 3 * vector);
    float scale = (float)combine->scale;

    for (int s = 1; s < sources; s++) {
        p = turn_of((const char *)combine->from[s] + at, bytes, whole, part);
        a = v_add(a, load(type, p));
        b = v_add(b, load(type, p + vector));
        c = v_add(c, load(type, p + 2 * vector));
        d = v_add(d, load(type, p + 3 * vector));
    }
    if (scale != 1) {
        ls_v16 factor = v_set(scale);
        a = v_mul(a, factor);
        b = v_mul(b, factor);
        c = v_mul(c, factor);
        d = v_mul(d, factor);
    }
    a = v_one_nan(a);
    b = v_one_nan(b);
    c = v_one_nan(c);
    d = v_one_nan(d);
    for (int t = 0; t < targets; t++) {
        char *to = whole ? (char *)combine->to[t] + at : part;
        store(type, to, a);
        store(type, to + vector, b);
        store(type, to + 2 * vector, c);
        store(type, to + 3 * vector, d);
        if (!whole)
            memcpy((char *)combine->to[t] + at, part, (size_t)bytes);
    }
}

LS_INLINE void sum_turns(const ls_dtype type, const int sources, const int targets,
                         const ls_combine *combine, int64_t count)
{
    int64_t turn = TURN * ls_dtype_bytes(type), end = count / TURN * turn;

    for (int64_t at = 0; at < end; at += turn)
        sum_turn(type, sources, targets, combine, at, turn, true);
}

/* Two sources are the common case: a hop of a ring, two ranks on a node. */
LS_INLINE void sum(const ls_dtype type, const ls_combine *c, int64_t count)
{
    int64_t size = ls_dtype_bytes(type), rest = count % TURN;

    if (c->sources == 2 && c->targets == 1)
        sum_turns(type, 2, 1, c, count);
    else if (c->sources == 2 && c->targets == 2)
        sum_turns(type, 2, 2, c, count);
    else if (c->sources == 4 && c->targets == 4)
        sum_turns(type, 4, 4, c, count);
    else
        sum_turns(type, c->sources, c->targets, c, count);
    if (rest)
        sum_turn(type, c->sources, c->targets, c, (count - rest) * size, rest * size, false);
}

static void sum_f32(const ls_combine *c, int64_t count)
{
    sum(LS_F32, c, count);
}

static void sum_bf16(const ls_combine *c, int64_t count)
{
    sum(LS_BF16, c, count);
}

static void sum_f16(const ls_combine *c, int64_t count)
{
    sum(LS_F16, c, count);
}

/* --- blocks: everything else --------------------------------------------------------------------
 * A function of a block combines the elements `at` .. `at + n - 1` of all sources into result. */

typedef void block_fn(const ls_combine *c, int64_t at, int64_t n, void *result);

LS_INLINE int64_t smallest_of(int64_t bits)
{
    return (int64_t)(UINT64_MAX << (bits - 1));
}

/* Floats by their bits; INF: bits of infinity, which only NaN exceeds. */
#define BEST_FLOAT(name, signed_type, unsigned_type, INF, QUIET)                       \
    static void name(const ls_combine *c, int64_t at, int64_t n, void *result)         \
    {                                                                                  \
        const signed_type least = (signed_type)smallest_of(8 * (int64_t)sizeof least); \
        const signed_type most = (signed_type)~least;                                  \
        signed_type flip = c->op == LS_COMBINE_MIN ? -1 : 0, *best = result;           \
                                                                                       \
        for (int64_t i = 0; i < n; i++)                                                \
            best[i] = least;                                                           \
        for (int s = 0; s < c->sources; s++) {                                         \
            const char *from = (const char *)c->from[s] + at * (int64_t)sizeof least;  \
            for (int64_t i = 0; i < n; i++) {                                          \
                signed_type x, key;                                                    \
                memcpy(&x, from + i * (int64_t)sizeof x, sizeof x);                    \
                key = (signed_type)((x < 0 ? x ^ most : x) ^ flip);                    \
                key = (signed_type)(x & most) > (signed_type)(INF) ? most : key;       \
                best[i] = key > best[i] ? key : best[i];                               \
            }                                                                          \
        }                                                                              \
        for (int64_t i = 0; i < n; i++) {                                              \
            signed_type key = (signed_type)(best[i] ^ flip);                           \
            key = (signed_type)(key < 0 ? key ^ most : key);                           \
            best[i] = best[i] == most ? (signed_type)(QUIET) : key;                    \
        }                                                                              \
    }
BEST_FLOAT(best_f32, int32_t, uint32_t, 0x7f800000, FLOAT_NAN)
BEST_FLOAT(best_bf16, int16_t, uint16_t, 0x7f80, BF16_NAN)
BEST_FLOAT(best_f16, int16_t, uint16_t, 0x7c00, F16_NAN)
BEST_FLOAT(best_f64, int64_t, uint64_t, INT64_C(0x7ff0000000000000), INT64_C(0x7ff8000000000000))

/* Integers; `bias` makes unsigned ones signed. */
#define BEST_INT(name, signed_type, bias)                                            \
    static void name(const ls_combine *c, int64_t at, int64_t n, void *result)       \
    {                                                                                \
        signed_type *best = result, flip = (bias);                                   \
                                                                                     \
        flip = (signed_type)(c->op == LS_COMBINE_MIN ? ~flip : flip);                \
        for (int64_t i = 0; i < n; i++)                                              \
            best[i] = (signed_type)smallest_of(8 * (int64_t)sizeof flip);            \
        for (int s = 0; s < c->sources; s++) {                                       \
            const char *from = (const char *)c->from[s] + at * (int64_t)sizeof flip; \
            for (int64_t i = 0; i < n; i++) {                                        \
                signed_type x;                                                       \
                memcpy(&x, from + i * (int64_t)sizeof x, sizeof x);                  \
                x = (signed_type)(x ^ flip);                                         \
                best[i] = x > best[i] ? x : best[i];                                 \
            }                                                                        \
        }                                                                            \
        for (int64_t i = 0; i < n; i++)                                              \
            best[i] = (signed_type)(best[i] ^ flip);                                 \
    }
BEST_INT(best_i8, int8_t, 0)
BEST_INT(best_u8, int8_t, -128)
BEST_INT(best_i32, int32_t, 0)
BEST_INT(best_i64, int64_t, 0)

/* Wraps, signed or not. */
#define SUM_INT(name, unsigned_type)                                                  \
    static void name(const ls_combine *c, int64_t at, int64_t n, void *result)        \
    {                                                                                 \
        unsigned_type *sums = result;                                                 \
                                                                                      \
        memset(sums, 0, (size_t)n * sizeof *sums);                                    \
        for (int s = 0; s < c->sources; s++) {                                        \
            const char *from = (const char *)c->from[s] + at * (int64_t)sizeof *sums; \
            for (int64_t i = 0; i < n; i++) {                                         \
                unsigned_type x;                                                      \
                memcpy(&x, from + i * (int64_t)sizeof x, sizeof x);                   \
                sums[i] = (unsigned_type)(sums[i] + x);                               \
            }                                                                         \
        }                                                                             \
    }
SUM_INT(sum_8, uint8_t)
SUM_INT(sum_32, uint32_t)
SUM_INT(sum_64, uint64_t)

static void finish_f64(double *x, int64_t n, double scale)
{
    for (int64_t i = 0; i < n; i++) {
        double y = scale != 1 ? x[i] * scale : x[i];
        uint64_t u, nan = 0u - (uint64_t)(y != y);
        memcpy(&u, &y, sizeof u);
        u = (u & ~nan) | (UINT64_C(0x7ff8000000000000) & nan);
        memcpy(&x[i], &u, sizeof u);
    }
}

static void sum_f64(const ls_combine *c, int64_t at, int64_t n, void *result)
{
    double *sums = result;

    memcpy(sums, (const char *)c->from[0] + at * 8, (size_t)n * 8);
    for (int s = 1; s < c->sources; s++) {
        const char *from = (const char *)c->from[s] + at * 8;
        for (int64_t i = 0; i < n; i++) {
            double x;
            memcpy(&x, from + i * 8, sizeof x);
            sums[i] += x;
        }
    }
    finish_f64(sums, n, c->scale);
}

static block_fn *const block_fns[][2] = {
    /* sum, max or min */
    [LS_F32] = {NULL, best_f32},    [LS_BF16] = {NULL, best_bf16}, [LS_F16] = {NULL, best_f16},
    [LS_F64] = {sum_f64, best_f64}, [LS_I32] = {sum_32, best_i32}, [LS_I64] = {sum_64, best_i64},
    [LS_U8] = {sum_8, best_u8},     [LS_I8] = {sum_8, best_i8},
};

/* A sum in fp32 of one source does nothing but scale. */
static void sum_small_floats(const ls_combine *c, int64_t count)
{
    if (c->type == LS_F32)
        sum_f32(c, count);
    else if (c->type == LS_BF16)
        sum_bf16(c, count);
    else
        sum_f16(c, count);
}

/* The largest of a block, scaled in place. */
static void scale_best(const ls_combine *c, void *result, int64_t n)
{
    const void *from[1] = {result};
    void *to[1] = {result};
    ls_combine one = {
        .type = c->type, .from = from, .sources = 1, .to = to, .targets = 1, .scale = c->scale};

    if (c->type == LS_F64)
        finish_f64(result, n, c->scale);
    else if (c->type == LS_F32 || c->type == LS_BF16 || c->type == LS_F16)
        sum_small_floats(&one, n);
}

static void run_blocks(const ls_combine *c, int64_t count)
{
    _Alignas(64) char result[BLOCK_BYTES];
    int64_t size = ls_dtype_bytes(c->type), block = BLOCK_BYTES / size;
    block_fn *combine = block_fns[c->type][c->op != LS_COMBINE_SUM];

    for (int64_t at = 0; at < count; at += block) {
        int64_t n = ls_min_i64(block, count - at);
        combine(c, at, n, result);
        if (c->op != LS_COMBINE_SUM && c->scale != 1)
            scale_best(c, result, n);
        for (int t = 0; t < c->targets; t++)
            memcpy((char *)c->to[t] + at * size, result, (size_t)(n * size));
    }
}

static bool is_integer(ls_dtype type)
{
    return type == LS_I8 || type == LS_U8 || type == LS_I32 || type == LS_I64;
}

void LS_ISA_NAME(ls_combine_run)(const ls_combine *c, int64_t count)
{
    bool sums = c->op == LS_COMBINE_SUM;

    if (c->sources == 1 && (c->scale == 1 || is_integer(c->type))) {
        for (int t = 0; t < c->targets; t++)
            if (c->to[t] != c->from[0])
                memcpy(c->to[t], c->from[0], (size_t)(count * ls_dtype_bytes(c->type)));
        return;
    }
    if (sums && block_fns[c->type][0] == NULL)
        sum_small_floats(c, count);
    else
        run_blocks(c, count);
}
