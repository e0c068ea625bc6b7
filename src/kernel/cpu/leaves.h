/* leaves.h -- the perfect binary tree over leaves as a stack of partial sums.
 *
 * Each leaf's sum is pushed; then the top is merged into the one below as often as
 * ls_leaves_merges() says. Five leaves: 0 | 0 1 -> 01 | 01 2 | 01 2 3 -> 01 23 -> 0123 |
 * 0123 4 -> (0123)4. */
#pragma once
#include "base/base.h"

/* How many partial sums of this many leaves exist at most at a time. */
static inline int ls_leaves_depth(int64_t leaves)
{
    int depth = 1;

    while (leaves >>= 1)
        depth++;
    return depth;
}

/* Merges due after this leaf was pushed to stack[top]: as often as leaf + 1 is divisible by two,
 * and down to one sum after the last. */
static inline int ls_leaves_merges(int64_t leaf, int64_t leaves, int top)
{
    return leaf + 1 == leaves ? top : __builtin_ctzll((uint64_t)leaf + 1);
}
