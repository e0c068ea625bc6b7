/* ref_impl.h -- what the reference rows share: elements of any type as doubles, activations,
 * dropout of one element, the tree over leaves. */
#pragma once
#include "base/rng.h"
#include "kernel/kernel.h"
#include <math.h>

/* Whether rows take tensors of this type. */
static inline bool ls_ref_takes(ls_dtype type)
{
    return type == LS_F32 || type == LS_BF16 || type == LS_F16;
}

static inline double ls_ref_wide_f16(uint16_t x)
{
    int exponent = x >> 10 & 31;
    double fraction = (double)(x & 1023), sign = x & 0x8000 ? -1 : 1;

    if (exponent == 31)
        return fraction > 0 ? (double)NAN : sign * (double)INFINITY;
    return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

/* Element i of a tensor. */
static inline double ls_ref_load(const void *p, ls_dtype type, int64_t i)
{
    uint32_t bits;
    float x;

    if (type == LS_F32)
        return (double)((const float *)p)[i];
    if (type == LS_F16)
        return ls_ref_wide_f16(((const uint16_t *)p)[i]);
    bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

/* The bf16 nearest to x, ties to even, without a stop at fp32 on the way, which could round twice.
 */
static inline uint16_t ls_ref_bf16(double x)
{
    enum { CUT = 52 - 7 }; /* bits of a double's fraction that bf16 lacks */
    uint32_t sign = signbit(x) ? 0x8000 : 0, bits;
    uint64_t wide;
    float f;

    if (isnan(x))
        return (uint16_t)(sign | 0x7fc0);
    if (fabs(x) < 0x1p-126) /* denormal: the last place is 2^-133; a carry gives the first normal */
        return (uint16_t)(sign | (uint32_t)nearbyint(fabs(x) * 0x1p133));
    memcpy(&wide, &x, sizeof wide);
    wide += ((uint64_t)1 << (CUT - 1)) - 1 + (wide >> CUT & 1);
    wide &= ~(((uint64_t)1 << CUT) - 1);
    memcpy(&x, &wide, sizeof x);
    f = (float)x; /* exact, or infinite */
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* The fp16 nearest to x, likewise. */
static inline uint16_t ls_ref_f16(double x)
{
    enum { CUT = 52 - 10, GAP = 1023 - 15 }; /* bits of the fraction; exponents are counted from */
    uint32_t sign = signbit(x) ? 0x8000 : 0;
    uint64_t wide;

    if (isnan(x))
        return (uint16_t)(sign | 0x7e00);
    x = fabs(x);
    if (x < 0x1p-14) /* denormal: the last place is 2^-24; a carry gives the first normal */
        return (uint16_t)(sign | (uint32_t)nearbyint(x * 0x1p24));
    memcpy(&wide, &x, sizeof wide);
    wide += ((uint64_t)1 << (CUT - 1)) - 1 + (wide >> CUT & 1);
    wide = (wide >> CUT) - ((uint64_t)GAP << 10);
    return (uint16_t)(sign | (uint32_t)(wide < 0x7c00 ? wide : 0x7c00));
}

/* Element i of a tensor becomes x, rounded once. */
static inline void ls_ref_store(void *p, ls_dtype type, int64_t i, double x)
{
    if (type == LS_F32)
        ((float *)p)[i] = (float)x;
    else
        ((uint16_t *)p)[i] = type == LS_F16 ? ls_ref_f16(x) : ls_ref_bf16(x);
}

/* A weight into its copy, rounded as the row says. */
static inline void ls_ref_copy(void *copy, ls_dtype type, const ls_rounding *rounding, int64_t i,
                               float w)
{
    if (rounding->stochastic)
        ls_rounding_piece(rounding, &w, (uint16_t *)copy + i, i, 1);
    else
        ls_ref_store(copy, type, i, (double)w);
}

/* The number of the element where head h at position t of sequence b begins. */
static inline int64_t ls_ref_head_at(const ls_heads *heads, int64_t b, int64_t t, int64_t h)
{
    return b * heads->batch + t * heads->time + h * heads->head;
}

#define LS_REF_GELU 0.79788456080286535588 /* sqrt(2 / pi) */

static inline double ls_ref_act_value(ls_act act, double x)
{
    if (act == LS_ACT_GELU)
        return 0.5 * x * (1 + tanh(LS_REF_GELU * (x + 0.044715 * x * x * x)));
    return act == LS_ACT_SILU ? x / (1 + exp(-x)) : x;
}

static inline double ls_ref_act_slope(ls_act act, double x)
{
    if (act == LS_ACT_GELU) {
        double t = tanh(LS_REF_GELU * (x + 0.044715 * x * x * x));
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * LS_REF_GELU * (1 + 3 * 0.044715 * x * x);
    }
    if (act == LS_ACT_SILU) {
        double s = 1 / (1 + exp(-x));
        return s * (1 + x * (1 - s));
    }
    return 1;
}

/* What element (row, column) of an [M, C] tensor is multiplied by; the rule of ls_dropout, word by
 * word. */
static inline double ls_ref_keep(const ls_dropout *d, int64_t row, int64_t column, int64_t T)
{
    if (d->p <= 0)
        return 1;
    row += d->first_row;
    ls_rng_key key = {{d->state->key[0], d->state->key[1]}};
    ls_rng_block b =
        ls_rng_philox(key, (uint32_t)(column / 4), (uint32_t)ls_piece_position(&d->piece, row % T),
                      d->state->first_seq + (uint32_t)(row / T), d->site << 16);

    return ls_rng_uniform(b.v[column % 4]) >= d->p ? 1 / (1 - (double)d->p) : 0;
}

/* The sum over the perfect binary tree of leaves first .. first + size, size a power of two; those
 * from n on are missing. leaf_sum gives the sum of one leaf. */
typedef double (*ls_ref_leaf)(const void *context, int64_t leaf);
static inline double ls_ref_tree(ls_ref_leaf leaf_sum, const void *context, int64_t first,
                                 int64_t size, int64_t n)
{
    if (size == 1)
        return leaf_sum(context, first);
    double left = ls_ref_tree(leaf_sum, context, first, size / 2, n);

    if (first + size / 2 >= n)
        return left;
    return left + ls_ref_tree(leaf_sum, context, first + size / 2, size / 2, n);
}

/* The whole tree over n leaves. */
static inline double ls_ref_tree_sum(ls_ref_leaf leaf_sum, const void *context, int64_t n)
{
    int64_t size = 1;

    while (size < n)
        size *= 2;
    return ls_ref_tree(leaf_sum, context, 0, size, n);
}
