/* calls.c -- leaves into calls. */
#include "plan/calls.h"

int64_t ls_calls_at(const ls_calls *calls, int64_t leaf)
{
    int64_t end = calls->first + calls->own, size = 1;

    if (!calls->ordered)
        return ls_min_i64(calls->group, end - leaf);
    /* The largest node that begins here, ends in the run and is not larger than a group. A node
     * that the last leaf cuts off is smaller than its size says. */
    while (size < calls->group && leaf % (2 * size) == 0 &&
           ls_min_i64(leaf + 2 * size, calls->leaves) <= end)
        size *= 2;
    return ls_min_i64(leaf + size, calls->leaves) - leaf;
}

int ls_calls_merges(const ls_calls *calls, int64_t first, int64_t count)
{
    int64_t last = first + count - 1;

    /* Those of the last leaf, but for the ones inside the call. */
    return ls_ordered_merges(last, calls->first, calls->leaves) -
           ls_ordered_merges(last, first, calls->leaves);
}

void ls_calls_plan(const ls_run *run, const ls_mesh *mesh, ls_calls *calls_out)
{
    ls_calls c = {.sequences = run->batch.sequences, .leaf = run->batch.leaf};
    int64_t held = 0;

    c.ordered = run->train.reduce == LS_REDUCE_ORDERED;
    c.leaves = c.sequences / c.leaf;
    c.group = ls_min_i64(run->batch.group, c.leaves);
    if (!c.ordered) {
        c.group *= c.leaf;
        c.leaves = c.sequences;
        c.leaf = 1;
    }
    ls_ordered_run own = ls_mesh_leaves(mesh, c.leaves, mesh ? mesh->rank : 0);
    if (mesh && mesh->replicas) {
        c.before = own.first * c.leaf;
        c.leaves = own.count;
        c.sequences = c.leaves * c.leaf;
        c.group = ls_min_i64(c.group, c.leaves);
        own.first = 0;
    }
    c.first = own.first;
    c.own = own.count;
    c.most = 1;
    c.buffers = 1;
    for (int64_t leaf = c.first, n; leaf < c.first + c.own; leaf += n, c.calls++) {
        n = ls_calls_at(&c, leaf);
        c.most = ls_max_i64(c.most, n);
        if (!c.ordered)
            continue;
        c.buffers = ls_max_i64(c.buffers, ++held);
        held -= ls_calls_merges(&c, leaf, n);
    }
    *calls_out = c;
}
