/* test_tree.c -- the binary counter gives the perfect binary tree for any number of calls. */
#include "harness.h"
#include "train/tree.h"

/* Sums are written as text: "(0+1)" for the sum of calls 0 and 1. */
enum { WIDE = 4096 };
static char sums[LS_TREE_LEVELS][WIDE];

static void do_adds(const ls_tree_add *adds, int n)
{
    static char joined[2 * WIDE + 8];

    for (int i = 0; i < n; i++) {
        snprintf(joined, sizeof joined, "(%s+%s)", sums[adds[i].left], sums[adds[i].right]);
        LS_CHECK(strlen(joined) < WIDE);
        memcpy(sums[adds[i].left], joined, strlen(joined) + 1);
    }
}

/* The definition: leaves [first, first + width) with missing ones skipped. */
static void expected(int first, int width, int n, char *out, size_t cap)
{
    char left[WIDE / 4], right[WIDE / 4];

    if (width == 1) {
        snprintf(out, cap, "%d", first);
        return;
    }
    expected(first, width / 2, n, left, sizeof left);
    if (first + width / 2 >= n) {
        snprintf(out, cap, "%s", left);
        return;
    }
    expected(first + width / 2, width / 2, n, right, sizeof right);
    snprintf(out, cap, "(%s+%s)", left, right);
}

LS_TEST(tree_sums_as_the_perfect_tree_for_any_count)
{
    for (int n = 1; n <= 70; n++) {
        int buffers = 1, width = 1, root;
        ls_tree_add adds[LS_TREE_LEVELS];
        char want[WIDE];
        ls_tree tree;

        for (int k = n; k > 1; k /= 2)
            buffers++;
        while (width < n)
            width *= 2;
        ls_tree_begin(&tree, buffers);
        for (int i = 0; i < n; i++) {
            int b = ls_tree_take(&tree);
            snprintf(sums[b], WIDE, "%d", i);
            do_adds(adds, ls_tree_push(&tree, b, adds));
        }
        do_adds(adds, ls_tree_end(&tree, adds, &root));
        expected(0, width, n, want, sizeof want);
        LS_CHECK_STR(sums[root], want);
    }
}
