/* chunk_tree.h -- sums of chunks, joined along the binary tree over the chunks of a leaf and then over
 * leaves: what norm and qkv do with their partial gradients. */
#pragma once
#include "kernel/cpu/simd/vec.h"

/* p[0] = the sum over the perfect binary tree of n vectors that lie stride floats apart. */
LS_INLINE ls_v16 tree_sum(float *p, int64_t n, int64_t stride)
{
    for (int64_t step = 1; step < n; step *= 2)
        for (int64_t i = 0; i + step < n; i += 2 * step) {
            float *left = p + i * stride;
            v_store(left, v_add(v_load(left), v_load(left + step * stride)));
        }
    return v_load(p);
}

/* out (+)= the sum of `leaves` leaves of `chunks` partial sums each, which lie stride floats apart from
 * p on; sixteen columns, or the n that are left. */
LS_INLINE void tree_join(float *p, int64_t leaves, int64_t chunks, int64_t stride, bool accumulate,
                         float *out, int64_t n)
{
    for (int64_t leaf = 0; leaf < leaves; leaf++)
        tree_sum(p + leaf * chunks * stride, chunks, stride);
    ls_v16 sum = tree_sum(p, leaves, chunks * stride);
    if (accumulate)
        sum = v_add(v_load_most(out, n), sum);
    v_store_most(out, n, sum);
}
