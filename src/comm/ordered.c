/* ordered.c -- which partial sums of leaves are merged, and when.
 *
 * A pushed node (level, index) with an odd index is a right child. It is merged with the node below
 * it on the stack, if that is its sibling, and becomes (level + 1, index / 2), which may be a right
 * child again. A node with an even index is a left child and waits for its sibling, except behind
 * the last leaf: no sibling comes there, and the node stands for its parent.
 *
 *     leaves 0 .. 6 pushed one by one, stack bottom to top:
 *
 *     0 | 01 | 01 2 | 0123 | 0123 4 | 0123 45 | 0123 456 -> (0123)+(456)
 *
 * On a rank, the sibling is on the stack when the rank's run reaches far enough to the left. In the
 * plan it always is: all leaves to the left were pushed, and they form exactly the nodes that the
 * binary digits of their number name, the lowest digit on top. Example: 6 = 110b leaves are nodes
 * of 4 and of 2 leaves; a root of 2 leaves pushed next has index 3, is odd, and finds its sibling
 * of 2. */
#include "comm/ordered.h"

#include <stdlib.h>
#include "base/mem.h"

/* Merges due after a node that ends before leaf `end`, when everything from leaf `first` to that
 * node is on the stack. node_out: the node that results. */
static int climb(ls_ordered_node *node, int64_t end, int64_t first, int64_t leaves)
{
    int merges = 0;

    for (;;) {
        if (node->index % 2) {
            if ((node->index - 1) << node->level < first)
                return merges;
            merges++;
        } else if (end < leaves || node->index == 0) {
            return merges;
        }
        node->index /= 2;
        node->level++;
    }
}

int ls_ordered_merges(int64_t leaf, int64_t first, int64_t leaves)
{
    ls_ordered_node node = {0, leaf};

    return climb(&node, leaf + 1, first, leaves);
}

/* Number of leaves left of a node's end, when n cuts the last one off. */
static int64_t end_of(ls_ordered_node node, int64_t leaves)
{
    return ls_min_i64((node.index + 1) << node.level, leaves);
}

/* The largest node that begins at a leaf and ends inside the run. */
static ls_ordered_node largest_at(int64_t leaf, int64_t end, int64_t leaves)
{
    ls_ordered_node node = {0, leaf};

    while (node.index % 2 == 0 && end_of(node, leaves) < end) {
        ls_ordered_node parent = {node.level + 1, node.index / 2};
        if (end_of(parent, leaves) > end)
            break;
        node = parent;
    }
    return node;
}

int ls_ordered_roots(ls_ordered_run run, int64_t leaves,
                     ls_ordered_node roots_out[LS_ORDERED_ROOTS])
{
    int64_t end = run.first + run.count;
    int n = 0;

    for (int64_t leaf = run.first; leaf < end;) {
        roots_out[n] = largest_at(leaf, end, leaves);
        leaf = end_of(roots_out[n++], leaves);
    }
    return n;
}

/* The roots of a run grow and then shrink, each size at most once on either side: 1 2 4 4 2 1 are
 * the most for their sum. */
int ls_ordered_most_roots(int64_t count)
{
    int roots = 0;
    int64_t size = 1;

    for (; count >= size; roots++) {
        count -= size;
        size <<= roots % 2;
    }
    return roots;
}

/* Either the roots of the whole run, or growing roots (1 2 4 ...: `left` leaves in all) and behind
 * them a node that is being built out of nodes of `group`. */
int ls_ordered_most_depth(int64_t count, int64_t group)
{
    int depth = ls_ordered_most_roots(count), parts = 1;

    for (int64_t node = group; node <= count; node *= 2, parts++)
        for (int left = 0; (INT64_C(1) << left) - 1 + node <= count; left++)
            depth = left + parts > depth ? left + parts : depth;
    return depth;
}

/* --- the plan --------------------------------------------------------------------------------- */

typedef struct placed {
    ls_ordered_run run;
    int rank;
} placed;

static int by_first(const void *a, const void *b)
{
    const placed *x = a, *y = b;

    if (x->run.first != y->run.first)
        return x->run.first < y->run.first ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* Runs that are not empty, in order of leaves; every leaf once. */
static ls_status sort_runs(const ls_ordered_run *runs, int ranks, int64_t leaves, placed *sorted,
                           int *used_out)
{
    int64_t next = 0;
    int used = 0;

    if (leaves < 0 || leaves > INT64_C(1) << 60)
        return ls_fail(LS_EUSAGE, "cannot sum %lld leaves", (long long)leaves);
    for (int r = 0; r < ranks; r++) {
        if (runs[r].count < 0 || runs[r].first < 0 || runs[r].count > leaves ||
            runs[r].first > leaves - runs[r].count)
            return ls_fail(LS_EUSAGE, "rank %d cannot own %lld leaves from %lld on: there are %lld",
                           r, (long long)runs[r].count, (long long)runs[r].first,
                           (long long)leaves);
        if (runs[r].count > 0)
            sorted[used++] = (placed){runs[r], r};
    }
    qsort(sorted, (size_t)used, sizeof *sorted, by_first);
    for (int i = 0; i < used; i++) {
        if (sorted[i].run.first > next)
            return ls_fail(LS_EUSAGE, "leaf %lld has no rank", (long long)next);
        if (sorted[i].run.first < next)
            return ls_fail(LS_EUSAGE, "leaf %lld belongs to rank %d and to rank %d",
                           (long long)sorted[i].run.first, sorted[i - 1].rank, sorted[i].rank);
        next += sorted[i].run.count;
    }
    if (next < leaves)
        return ls_fail(LS_EUSAGE, "leaf %lld has no rank", (long long)next);
    *used_out = used;
    return LS_OK;
}

static void add_steps(ls_ordered_plan *plan, const placed *p, int64_t leaves, int *held)
{
    ls_ordered_node roots[LS_ORDERED_ROOTS];
    int n = ls_ordered_roots(p->run, leaves, roots);

    for (int i = 0; i < n; i++) {
        ls_ordered_node node = roots[i];
        int merges = climb(&node, end_of(roots[i], leaves), 0, leaves);
        plan->steps[plan->count++] = (ls_ordered_step){p->rank, i, merges};
        plan->depth = *held + 1 > plan->depth ? *held + 1 : plan->depth;
        *held += 1 - merges;
    }
}

ls_status ls_ordered_plan_init(ls_ordered_plan *plan, const ls_ordered_run *runs, int ranks,
                               int64_t leaves)
{
    ls_ordered_node roots[LS_ORDERED_ROOTS];
    ls_status st = LS_OK;
    int64_t count = 0;
    int used = 0, held = 0;
    placed *sorted = ls_mem_array((size_t)ranks, sizeof *sorted);

    *plan = (ls_ordered_plan){0};
    if (!sorted) {
        st = LS_ENOMEM;
        goto out;
    }
    LS_TRY(st, sort_runs(runs, ranks, leaves, sorted, &used), out);
    for (int i = 0; i < used; i++)
        count += ls_ordered_roots(sorted[i].run, leaves, roots);
    plan->steps = ls_mem_array((size_t)count, sizeof *plan->steps);
    if (!plan->steps) {
        st = LS_ENOMEM;
        goto out;
    }
    for (int i = 0; i < used; i++)
        add_steps(plan, &sorted[i], leaves, &held);
    LS_BUG_IF(held != (leaves > 0), "%d sums are left of %lld leaves", held, (long long)leaves);
out:
    ls_mem_free(sorted);
    if (st != LS_OK)
        ls_ordered_plan_release(plan);
    return st;
}

void ls_ordered_plan_release(ls_ordered_plan *plan)
{
    ls_mem_free(plan->steps);
    *plan = (ls_ordered_plan){0};
}
