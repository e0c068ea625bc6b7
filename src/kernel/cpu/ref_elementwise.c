/* ref_elementwise.c -- sum, add, scale, cast, fill and norm2, one element after the other, in
 * double. */
#include "kernel/cpu/rows_shared.h"

#include <math.h>

void ls_ref_sum(ls_stream *stream, const ls_sum *a)
{
    int64_t n = a->n / a->segments;

    (void)stream;
    for (int64_t g = 0; g < a->segments; g++) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += (double)a->x[g * n + i];
        a->out[g] = sum;
    }
}

void ls_ref_add(ls_stream *stream, const ls_add *a)
{
    (void)stream;
    for (int64_t i = 0; i < a->n; i++)
        a->out[i] = (float)((double)a->a[i] + (double)a->b[i]);
}

void ls_ref_scale(ls_stream *stream, const ls_scale *a)
{
    (void)stream;
    for (int64_t i = 0; i < a->n; i++)
        a->x[i] = (float)((double)a->value * (double)a->x[i]);
}

void ls_ref_fill(ls_stream *stream, const ls_fill *a)
{
    (void)stream;
    for (int64_t i = 0; i < a->n; i++)
        a->x[i] = a->value;
}

/* A small binary format: exponent bits, fraction bits. */
typedef struct format {
    int exponent, fraction;
} format;

static format format_of(ls_dtype type)
{
    if (type == LS_BF16)
        return (format){8, 7};
    return type == LS_F16 ? (format){5, 10} : (format){8, 23};
}

/* The value that a bit pattern stands for; NaN is handled by the caller. */
static double decode(uint32_t bits, format f)
{
    int bias = (1 << (f.exponent - 1)) - 1;
    int e = (int)(bits >> f.fraction & ((1u << f.exponent) - 1));
    double fraction = (double)(bits & ((1u << f.fraction) - 1));
    bool negative = bits >> (f.exponent + f.fraction) & 1;
    double x = e == (1 << f.exponent) - 1 ? (double)INFINITY
               : e == 0                   ? ldexp(fraction, 1 - bias - f.fraction)
                        : ldexp(fraction + ldexp(1, f.fraction), e - bias - f.fraction);

    return negative ? -x : x;
}

/* The nearest pattern, ties to even: scale so that the last place is 1, and round. */
static uint32_t encode(double x, format f)
{
    int bias = (1 << (f.exponent - 1)) - 1, e;
    uint32_t sign = (uint32_t) !!signbit(x) << (f.exponent + f.fraction);
    uint32_t infinity = ((1u << f.exponent) - 1) << f.fraction;
    double a = fabs(x);

    if (a == 0 || isinf(a))
        return sign | (a == 0 ? 0 : infinity);
    frexp(a, &e); /* a in [2^(e-1), 2^e) */
    e = e - 1 < 1 - bias ? 1 - bias : e - 1;
    double units = nearbyint(ldexp(a, f.fraction - e));       /* with the leading one */
    double pattern = units + ldexp(e + bias - 1, f.fraction); /* a carry raises the exponent */
    return sign | (pattern >= infinity ? infinity : (uint32_t)pattern);
}

static uint32_t load_bits(const void *p, ls_dtype type, int64_t i)
{
    return type == LS_F32 ? ((const uint32_t *)p)[i] : ((const uint16_t *)p)[i];
}

/* NaN keeps its sign and upper bits; it is made quiet, but for bf16 to f32, which only widens. */
static uint32_t cast_nan(uint32_t bits, format from, format to, bool widen_only)
{
    uint32_t sign = bits >> (from.exponent + from.fraction) & 1;
    uint32_t fraction = bits & ((1u << from.fraction) - 1);
    uint32_t quiet = widen_only ? 0 : 1u << (to.fraction - 1);

    fraction = to.fraction >= from.fraction ? fraction << (to.fraction - from.fraction)
                                            : fraction >> (from.fraction - to.fraction);
    return sign << (to.exponent + to.fraction) | ((1u << to.exponent) - 1) << to.fraction |
           fraction | quiet;
}

static bool is_nan(uint32_t bits, format f)
{
    uint32_t infinity = ((1u << f.exponent) - 1) << f.fraction;

    return (bits & ((1u << (f.exponent + f.fraction)) - 1)) > infinity;
}

void ls_ref_cast(ls_stream *stream, const ls_cast *a)
{
    format from = format_of(a->from_type), to = format_of(a->to_type);
    bool widen = a->from_type == LS_BF16 && a->to_type == LS_F32;

    (void)stream;
    if (a->rounding.stochastic && a->from_type == LS_F32 && a->to_type == LS_BF16) {
        ls_rounding_piece(&a->rounding, a->from, a->to, 0, a->n);
        return;
    }
    for (int64_t i = 0; i < a->n; i++) {
        uint32_t bits = load_bits(a->from, a->from_type, i), out = bits;
        if (a->from_type != a->to_type)
            out = is_nan(bits, from) ? cast_nan(bits, from, to, widen)
                                     : encode(decode(bits, from), to);
        if (a->to_type == LS_F32)
            ((uint32_t *)a->to)[i] = out;
        else
            ((uint16_t *)a->to)[i] = (uint16_t)out;
    }
}

void ls_ref_norm2(ls_stream *stream, const ls_norm2 *a)
{
    (void)stream;
    for (int64_t first = 0; first < a->n && a->part != LS_NORM_JOIN; first += LS_NORM_BLOCK) {
        double sum = 0;
        for (int64_t i = first; i < ls_min_i64(first + LS_NORM_BLOCK, a->n); i++)
            sum += (double)a->x[i] * (double)a->x[i];
        a->partials[first / LS_NORM_BLOCK] = (float)sum;
    }
    if (a->part != LS_NORM_SQUARES)
        ls_norm2_finish(a);
}
