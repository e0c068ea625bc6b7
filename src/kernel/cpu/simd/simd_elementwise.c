/* simd_elementwise.c -- sum, add, cast, fill, and the norm of a gradient.
 *
 * Everything is cut into blocks of fixed size, one task each. Casts are integer code, that of vec.h
 * or such as the compiler turns into vectors, because AVX2 alone has no conversion to 16 bits and
 * the bits must be the same everywhere. The norm adds squares in float within a block (16 lanes, 8
 * accumulators) and blocks in double along the perfect binary tree, so that ranks which hold whole
 * subtrees can later join them with the same bits. */
#include "kernel/cpu/simd/bits.h"
#include "kernel/cpu/rows_shared.h"
#include "kernel/cpu/simd/vec.h"

enum { BLOCK = 16384 }; /* elements per task: 64 KiB of float */

static int64_t blocks(int64_t n)
{
    return (n + BLOCK - 1) / BLOCK;
}

/* --- sum ----------------------------------------------------------------------------------------
 */

static void sum_task(void *context, int64_t index, int worker)
{
    const ls_sum *a = context;
    int64_t n = a->n / a->segments, i = 0;
    const float *x = a->x + index * n;
    double lane[LS_LANES] = {0};

    (void)worker;
    for (; i + LS_LANES <= n; i += LS_LANES)
        for (int j = 0; j < LS_LANES; j++)
            lane[j] += (double)x[i + j];
    for (int j = 0; i < n; i++, j++)
        lane[j] += (double)x[i];
    for (int half = LS_LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++)
            lane[j] += lane[j + half];
    a->out[index] = lane[0];
}

void LS_ISA_NAME(ls_sum_row)(ls_stream *stream, const ls_sum *a)
{
    ls_sum args = *a;

    LS_BUG_IF(a->segments < 1 || a->n % a->segments != 0, "%lld elements in %lld segments",
              (long long)a->n, (long long)a->segments);
    ls_pool_run(ls_stream_pool(stream), sum_task, &args, a->segments);
}

/* --- preference: the reference is exact and quick enough ------------------------------------- */

void LS_ISA_NAME(ls_preference_row)(ls_stream *stream, const ls_preference *a)
{
    ls_ref_preference(stream, a);
}

/* --- add, scale, fill
 * ----------------------------------------------------------------------------------
 */

static void add_task(void *context, int64_t index, int worker)
{
    const ls_add *a = context;
    int64_t i = index * BLOCK, end = ls_min_i64(i + BLOCK, a->n);

    (void)worker;
    for (; i + LS_LANES <= end; i += LS_LANES)
        v_store(a->out + i, v_add(v_load(a->a + i), v_load(a->b + i)));
    for (; i < end; i++)
        a->out[i] = a->a[i] + a->b[i];
}

void LS_ISA_NAME(ls_add_row)(ls_stream *stream, const ls_add *a)
{
    ls_add args = *a;

    ls_pool_run(ls_stream_pool(stream), add_task, &args, blocks(a->n));
}

static void scale_task(void *context, int64_t index, int worker)
{
    const ls_scale *a = context;
    int64_t i = index * BLOCK, end = ls_min_i64(i + BLOCK, a->n);

    (void)worker;
    for (; i + LS_LANES <= end; i += LS_LANES)
        v_store(a->x + i, v_mul(v_set(a->value), v_load(a->x + i)));
    for (; i < end; i++)
        a->x[i] *= a->value;
}

void LS_ISA_NAME(ls_scale_row)(ls_stream *stream, const ls_scale *a)
{
    ls_scale args = *a;

    ls_pool_run(ls_stream_pool(stream), scale_task, &args, blocks(a->n));
}

static void fill_task(void *context, int64_t index, int worker)
{
    const ls_fill *a = context;
    int64_t i = index * BLOCK, end = ls_min_i64(i + BLOCK, a->n);
    ls_v16 value = v_set(a->value);

    (void)worker;
    for (; i + LS_LANES <= end; i += LS_LANES)
        v_store(a->x + i, value);
    for (; i < end; i++)
        a->x[i] = a->value;
}

void LS_ISA_NAME(ls_fill_row)(ls_stream *stream, const ls_fill *a)
{
    ls_fill args = *a;

    ls_pool_run(ls_stream_pool(stream), fill_task, &args, blocks(a->n));
}

/* --- cast ---------------------------------------------------------------------------------------
 * NaN stays NaN with its sign and upper bits, made quiet where bits are cut off. */

LS_INLINE uint16_t bf16_of(float x)
{
    uint32_t u = to_bits(x), even = u + 0x7fff + (u >> 16 & 1);

    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? u >> 16 | 0x40 : even >> 16);
}

LS_INLINE float bf16_value(uint16_t h)
{
    return from_bits((uint32_t)h << 16);
}

/* Normal results: move the exponent and round in integers; a carry runs into the exponent and ends
 * at infinity, as it must. Below 2^-14 the adder rounds: 0.5 has the unit 2^-24 of the result. */
LS_INLINE uint16_t f16_of(float x)
{
    uint32_t u = to_bits(x), a = u & 0x7fffffff;
    uint32_t normal = (a + 0xfff + (a >> 13 & 1) - (112u << 23)) >> 13;
    uint32_t tiny = to_bits(from_bits(a) + 0.5f) - 0x3f000000u;
    uint32_t r = pick(a < 0x38800000u, tiny, normal);

    r = pick(a >= 0x47800000u, 0x7c00u, r);
    r = pick(a > 0x7f800000u, 0x7e00u | (a >> 13 & 0x3ff), r);
    return (uint16_t)(u >> 16 & 0x8000u) | (uint16_t)r;
}

LS_INLINE float f16_value(uint16_t h)
{
    uint32_t a = h & 0x7fffu, sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t normal = (a << 13) + (112u << 23);
    uint32_t tiny = to_bits((float)(int32_t)a * 0x1p-24f);
    uint32_t r = pick(a < 0x400u, tiny, normal);

    r = pick(a >= 0x7c00u, (a << 13) + (224u << 23), r);
    r = pick(a > 0x7c00u, r | 0x400000u, r);
    return from_bits(r | sign);
}

#define CAST_LOOP(to_t, from_t, expression)                 \
    do {                                                    \
        to_t *restrict to = (to_t *)a->to + at;             \
        const from_t *from_ = (const from_t *)a->from + at; \
        for (int64_t i = 0; i < n; i++) {                   \
            from_t x = from_[i];                            \
            to[i] = (expression);                           \
        }                                                   \
    } while (0)

/* Between F32 and BF16, which training does with every weight: the vectors' own way. */
static void cast_to_bf16(const float *from, uint16_t *to, int64_t n)
{
    int64_t i = 0;

    for (; i + LS_LANES <= n; i += LS_LANES)
        v_store_bf16(to + i, v_load(from + i));
    for (; i < n; i++)
        to[i] = bf16_of(from[i]);
}

static void cast_from_bf16(const uint16_t *from, float *to, int64_t n)
{
    int64_t i = 0;

    for (; i + LS_LANES <= n; i += LS_LANES)
        v_store(to + i, v_load_bf16(from + i));
    for (; i < n; i++)
        to[i] = bf16_value(from[i]);
}

enum { PAIR_OF = 8 };
#define PAIR(to_type, from_type) ((int)(to_type)*PAIR_OF + (int)(from_type))

static void cast_task(void *context, int64_t index, int worker)
{
    const ls_cast *a = context;
    int64_t at = index * BLOCK, n = ls_min_i64(BLOCK, a->n - at);

    (void)worker;
    switch (PAIR(a->to_type, a->from_type)) {
    case PAIR(LS_BF16, LS_F32):
        if (a->rounding.stochastic)
            ls_rounding_piece(&a->rounding, (const float *)a->from + at, (uint16_t *)a->to + at, at,
                              n);
        else
            cast_to_bf16((const float *)a->from + at, (uint16_t *)a->to + at, n);
        break;
    case PAIR(LS_F16, LS_F32):
        CAST_LOOP(uint16_t, float, f16_of(x));
        break;
    case PAIR(LS_F32, LS_BF16):
        cast_from_bf16((const uint16_t *)a->from + at, (float *)a->to + at, n);
        break;
    case PAIR(LS_F32, LS_F16):
        CAST_LOOP(float, uint16_t, f16_value(x));
        break;
    case PAIR(LS_BF16, LS_F16):
        CAST_LOOP(uint16_t, uint16_t, bf16_of(f16_value(x)));
        break;
    case PAIR(LS_F16, LS_BF16):
        CAST_LOOP(uint16_t, uint16_t, f16_of(bf16_value(x)));
        break;
    default: { /* the same type */
        int64_t size = ls_dtype_bytes(a->to_type);
        memcpy((char *)a->to + at * size, (const char *)a->from + at * size, (size_t)(n * size));
    }
    }
}

void LS_ISA_NAME(ls_cast_row)(ls_stream *stream, const ls_cast *a)
{
    ls_cast args = *a;

    LS_BUG_IF((unsigned)a->from_type > LS_F16 || (unsigned)a->to_type > LS_F16,
              "cast from type %d to type %d", (int)a->from_type, (int)a->to_type);
    ls_pool_run(ls_stream_pool(stream), cast_task, &args, blocks(a->n));
}

/* --- norm2 --------------------------------------------------------------------------------------
 */

enum { CHAINS = 8 };

static void norm2_task(void *context, int64_t index, int worker)
{
    const ls_norm2 *a = context;
    int64_t n = ls_min_i64(LS_NORM_BLOCK, a->n - index * LS_NORM_BLOCK), i = 0;
    const float *x = a->x + index * LS_NORM_BLOCK;
    ls_v16 acc[CHAINS];

    (void)worker;
    for (int j = 0; j < CHAINS; j++)
        acc[j] = v_set(0);
    for (; i + CHAINS * LS_LANES <= n; i += CHAINS * LS_LANES)
        for (int j = 0; j < CHAINS; j++) {
            ls_v16 v = v_load(x + i + j * LS_LANES);
            acc[j] = v_fma(v, v, acc[j]);
        }
    for (int j = 0; i < n; i += LS_LANES, j++) {
        ls_v16 v = v_load_part(x + i, ls_min_i64(LS_LANES, n - i), 0);
        acc[j] = v_fma(v, v, acc[j]);
    }
    for (int half = CHAINS / 2; half; half /= 2)
        for (int j = 0; j < half; j++)
            acc[j] = v_add(acc[j], acc[j + half]);
    a->partials[index] = v_sum(acc[0]);
}

void LS_ISA_NAME(ls_norm2_row)(ls_stream *stream, const ls_norm2 *a)
{
    ls_norm2 args = *a;

    if (a->part != LS_NORM_JOIN)
        ls_pool_run(ls_stream_pool(stream), norm2_task, &args,
                    (a->n + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK);
    if (a->part != LS_NORM_SQUARES)
        ls_norm2_finish(a);
}
