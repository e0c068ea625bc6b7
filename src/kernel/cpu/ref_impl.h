/* ref_impl.h -- what the reference rows share: activations, dropout of one element, the tree over
 * leaves. */
#pragma once
#include "base/rng.h"
#include "kernel/kernel.h"
#include <math.h>

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
    ls_rng_key key = {{d->state->key[0], d->state->key[1]}};
    ls_rng_block b = ls_rng_philox(key, (uint32_t)(column / 4), (uint32_t)(row % T),
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
