/* ordered.h -- a sum over the leaves of a batch whose bits do not depend on how the leaves are
 * divided among ranks.
 *
 * Leaves 0 .. n-1 are summed along the perfect binary tree over their numbers: node (level, index)
 * is the sum of leaves index * 2^level .. (index + 1) * 2^level - 1, left child plus right child.
 * Where n cuts a node off, a missing right child is left out. This is the tree of
 * kernel/cpu/leaves.h. Each rank computes a run of leaves, of any length and anywhere, and sums the
 * largest nodes that lie inside its run: its roots, at most two per level. Only roots are sent. The
 * rank that combines them follows the plan and gets the bits that one process would get.
 *
 *     7 leaves, rank 0 has 0 1 2, rank 1 has 3 4 5 6:
 *
 *               (0123)+(456)                       roots of rank 0:  01   2
 *              /            \                      roots of rank 1:  3   (45)6
 *           0123            456
 *           /   \          /   \                   plan: push 01, push 2, push 3, merge 2+3,
 *         01     23      45     6                        merge 01+23, push 456, merge
 *
 * At most 2^60 leaves. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

typedef struct ls_ordered_run {
    int64_t first, count; /* leaves of a rank; count may be 0 */
} ls_ordered_run;

typedef struct ls_ordered_node {
    int level;
    int64_t index;
} ls_ordered_node;

enum { LS_ORDERED_ROOTS = 128 }; /* of a rank, at most: two for each of 61 levels */

/* How many times to add the top partial sum to the one below it, when `leaf` was just pushed by a
 * rank whose run begins at `first`, of `leaves` in all. With first = 0 the same as
 * ls_leaves_merges(). */
int ls_ordered_merges(int64_t leaf, int64_t first, int64_t leaves);

/* The roots of a run, from left to right; returns how many. They are what is left on the rank's
 * stack after its last leaf, bottom first. */
int ls_ordered_roots(ls_ordered_run run, int64_t leaves,
                     ls_ordered_node roots_out[LS_ORDERED_ROOTS]);

/* Upper bounds for runs of at most `count` leaves, wherever they lie in a batch of any size: of
 * their roots, and of the partial sums held at a time when leaves are pushed as nodes of up to
 * `group` (a power of two). */
int ls_ordered_most_roots(int64_t count);
int ls_ordered_most_depth(int64_t count, int64_t group);

/* Push a root of a rank, then do this many merges. */
typedef struct ls_ordered_step {
    int rank, root; /* root: its index among those of the rank */
    int merges;
} ls_ordered_step;

typedef struct ls_ordered_plan {
    ls_ordered_step *steps; /* owned */
    int64_t count;
    int depth; /* partial sums held at most at a time */
} ls_ordered_plan;

/* runs[rank] for all ranks: leaves 0 .. leaves-1, each once, in any order of ranks. LS_EUSAGE: some
 * leaf is missing or appears twice; the message says which. */
ls_status ls_ordered_plan_init(ls_ordered_plan *plan, const ls_ordered_run *runs, int ranks,
                               int64_t leaves);
void ls_ordered_plan_release(ls_ordered_plan *plan);

LS_C_END
