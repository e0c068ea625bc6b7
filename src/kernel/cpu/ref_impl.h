/* ref_impl.h -- what the reference rows share: dropout of one element, the tree over leaves. */
#pragma once
#include "base/rng.h"
#include "kernel/kernel.h"

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
