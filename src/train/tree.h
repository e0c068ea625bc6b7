/* tree.h -- the binary counter that sums gradients of calls along the perfect binary tree.
 *
 * Pure bookkeeping over buffer numbers; the caller does the additions. Calls arrive in order. After
 * call i the counter holds one buffer per set bit of i + 1. At most log2(calls) + 1 buffers live.
 *
 *   calls 0..4:  0            1            2          3               4            end
 *   held:        {0}          {01}         {01,2}     {0123}          {0123,4}     01234
 *   additions:   -            0+1          -          2+3, 01+23      -            0123+4 */
#pragma once
#include "base/err.h"

LS_C_BEGIN

enum { LS_TREE_LEVELS = 32 };

typedef struct ls_tree {
    int buffers;               /* how many there are */
    int held[LS_TREE_LEVELS];  /* buffer that holds the sum of 2^level calls, -1: none */
    bool busy[LS_TREE_LEVELS]; /* by buffer number */
} ls_tree;

/* out = left + right; left's buffer is out's. */
typedef struct ls_tree_add {
    int left, right;
} ls_tree_add;

void ls_tree_begin(ls_tree *tree, int buffers);

/* A free buffer for the next call's gradient. */
int ls_tree_take(ls_tree *tree);

/* That buffer is full: the additions to do now, in order; returns how many. */
int ls_tree_push(ls_tree *tree, int buffer, ls_tree_add adds_out[LS_TREE_LEVELS]);

/* All calls are in: the last additions; returns how many, and the buffer of the sum. */
int ls_tree_end(ls_tree *tree, ls_tree_add adds_out[LS_TREE_LEVELS], int *root_out);

LS_C_END
