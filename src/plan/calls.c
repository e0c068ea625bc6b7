/* calls.c -- leaves into calls. */
#include "plan/calls.h"

#include "comm/ordered_feed.h"

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

/* The plan of another rank. */
static void plan_of(const ls_run *run, const ls_mesh *mesh, int rank, ls_calls *calls_out)
{
    ls_mesh other = mesh ? *mesh : (ls_mesh){.ranks = 1};

    other.rank = rank;
    ls_calls_plan(run, &other, calls_out);
}

int ls_calls_rounds(const ls_run *run, const ls_mesh *mesh)
{
    int64_t rounds = 1;
    ls_calls calls;

    for (int r = 0; r < ls_mesh_ranks(mesh); r++) {
        plan_of(run, mesh, r, &calls);
        rounds = ls_max_i64(rounds, calls.calls);
    }
    return (int)rounds;
}

int64_t ls_calls_feed(const ls_run *run, const ls_mesh *mesh, int rounds, int *merges_out)
{
    int ranks = ls_mesh_ranks(mesh);
    int64_t slots = 0;
    ls_calls calls;

    for (int r = 0; r < ranks; r++) {
        ls_ordered_feed_room room = {.slots = 0};
        plan_of(run, mesh, r, &calls);
        int64_t leaf = calls.first;
        for (int k = 0; k < rounds; k++) {
            int64_t n = k < calls.calls ? ls_calls_at(&calls, leaf) : 0;
            int merges = n > 0 ? ls_calls_merges(&calls, leaf, n) : -1;
            if (n > 0 && k < rounds - 1)
                ls_ordered_feed_count(&room, merges);
            if (merges_out)
                merges_out[(int64_t)k * ranks + r] = merges;
            leaf += n;
        }
        slots += room.slots;
    }
    return slots;
}
