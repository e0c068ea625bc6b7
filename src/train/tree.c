/* tree.c -- a binary counter whose digits are buffers. */
#include "train/tree.h"

void ls_tree_begin(ls_tree *tree, int buffers)
{
    *tree = (ls_tree){.buffers = buffers};
    for (int i = 0; i < LS_TREE_LEVELS; i++)
        tree->held[i] = -1;
}

int ls_tree_take(ls_tree *tree)
{
    for (int i = 0; i < tree->buffers; i++)
        if (!tree->busy[i]) {
            tree->busy[i] = true;
            return i;
        }
    LS_BUG_IF(true, "all %d gradient buffers are in use", tree->buffers);
}

int ls_tree_push(ls_tree *tree, int buffer, ls_tree_add adds_out[LS_TREE_LEVELS])
{
    int n = 0, level = 0;

    for (; tree->held[level] >= 0; level++) { /* carry */
        int left = tree->held[level];
        adds_out[n++] = (ls_tree_add){left, buffer};
        tree->busy[buffer] = false;
        tree->held[level] = -1;
        buffer = left;
    }
    tree->held[level] = buffer;
    return n;
}

int ls_tree_end(ls_tree *tree, ls_tree_add adds_out[LS_TREE_LEVELS], int *root_out)
{
    int n = 0, sum = -1;

    for (int level = 0; level < LS_TREE_LEVELS; level++) {
        int left = tree->held[level];
        if (left < 0)
            continue;
        if (sum >= 0) {
            adds_out[n++] = (ls_tree_add){left, sum};
            tree->busy[sum] = false;
        }
        sum = left;
        tree->held[level] = -1;
    }
    LS_BUG_IF(sum < 0, "the sum of no calls");
    tree->busy[sum] = false;
    *root_out = sum;
    return n;
}
