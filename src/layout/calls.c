/* calls.c -- leaves into calls.
 *
 * In ordered mode a call must be a whole node of the tree of sums, so it begins at a multiple of its
 * size. Example: leaves 3 to 10, group 4:
 *
 *     call      leaf 3     leaves 4-7     leaves 8-9     leaf 10
 *     stack     3          3 4-7          3 4-7 8-9      3 4-7 8-9 10: four buffers at once
 *
 * A sum waits on the stack until its sibling is complete. Leaf 3 waits for leaf 2, which another rank
 * has: such sums are this rank's roots, and leave in the exchange. */
#include "layout/calls.h"

#include "comm/ordered_feed.h"
#include "config/ramp.h"

/* A smaller batch gives a rank no more leaves than a larger one, but where two ranks would end a
 * leaf at the same time, rounding may decide differently. */
enum { ROUNDED = 1 };

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

bool ls_calls_ordered(const ls_run *run)
{
    return run->train.reduce == LS_REDUCE_ORDERED && run->mesh.ep < 2;
}

int64_t ls_calls_leaf(const ls_run *run)
{
    return ls_calls_ordered(run) ? run->batch.leaf : 1;
}

int64_t ls_calls_leaves(const ls_run *run, int64_t step)
{
    return ls_ramp_sequences(run, step) / ls_calls_leaf(run);
}

/* Walk through the calls. */
static void count_calls(ls_calls *c)
{
    int64_t held = 0;

    c->most = 1;
    c->buffers = 1;
    c->calls = 0;
    for (int64_t leaf = c->first, n; leaf < c->first + c->own; leaf += n, c->calls++) {
        n = ls_calls_at(c, leaf);
        c->most = ls_max_i64(c->most, n);
        if (!c->ordered)
            continue;
        c->buffers = ls_max_i64(c->buffers, ++held);
        held -= ls_calls_merges(c, leaf, n);
    }
}

void ls_calls_set(const ls_calls *plan, ls_ordered_run own, int64_t leaves, ls_calls *calls_out)
{
    ls_calls c = *plan;

    c.sequences = leaves * c.leaf;
    c.leaves = leaves;
    c.first = own.first;
    c.own = own.count;
    count_calls(&c);
    LS_BUG_IF(c.own > plan->own || c.most > plan->most || c.buffers > plan->buffers ||
                  c.calls > ls_max_i64(1, plan->calls),
              "a step needs more than was planned: %lld leaves, %lld at once, %lld buffers",
              (long long)c.own, (long long)c.most, (long long)c.buffers);
    *calls_out = c;
}

/* Any run of up to `own` leaves, of up to all leaves. */
static void count_most(ls_calls *c)
{
    int64_t group = 1;

    while (group < c->group)
        group *= 2;
    c->most = ls_max_i64(1, ls_min_i64(c->own, group));
    c->calls = c->own;
    c->buffers = 1;
    if (!c->ordered)
        return;
    if (c->ranks > 1)
        c->buffers = ls_max_i64(1, ls_ordered_most_depth(c->own, group));
    else /* it has whole batches: a binary counter of calls */
        for (int64_t calls = (c->leaves + group - 1) / group; calls > 1; calls /= 2)
            c->buffers++;
}

/* The largest call of any rank, or more. */
static int64_t widest_call(const ls_calls *c, const ls_mesh *mesh)
{
    bool uneven = mesh && (mesh->weights || mesh->balance);
    int64_t pipelines = ls_mesh_pipelines(mesh);
    int64_t each = uneven ? c->leaves : (c->leaves + pipelines - 1) / pipelines;

    return ls_max_i64(c->most, ls_min_i64(c->group, each));
}

/* The most calls that a rank makes, of those that divide experts with this one. */
static int64_t count_rounds(const ls_calls *c, const ls_run *run, const ls_mesh *mesh, bool varies)
{
    int64_t most = c->calls;
    int ep = ls_mesh_ep(mesh);

    for (int i = 0; i < ep && ep > 1; i++) {
        ls_calls other = *c;
        other.own = ls_mesh_most(mesh, c->leaves, mesh->rank / ep * ep + i);
        if (run->batch.ramp > 0)
            other.own = ls_min_i64(c->leaves, other.own + ROUNDED);
        if (varies)
            count_most(&other);
        else
            count_calls(&other);
        most = ls_max_i64(most, other.calls);
    }
    return most;
}

/* Roots of all ranks: as they are, or at most. */
static int64_t count_roots(const ls_calls *c, const ls_mesh *mesh, bool varies)
{
    ls_ordered_node nodes[LS_ORDERED_ROOTS];
    ls_ordered_run runs[LS_MESH_RANKS];
    int64_t n = 0;

    if (!c->ordered)
        return 0;
    ls_mesh_split(mesh, c->leaves, runs);
    for (int r = 0; r < c->ranks; r++) {
        bool moves = mesh && mesh->balance;
        int64_t most = moves ? ls_mesh_most(mesh, c->leaves, r) : runs[r].count + ROUNDED;
        n += varies ? ls_ordered_most_roots(most) : ls_ordered_roots(runs[r], c->leaves, nodes);
    }
    return ls_min_i64(n, c->leaves);
}

/* Leaves of a call with which all ranks of a cp group make the same calls in ordered mode: a power
 * of two that divides all runs. */
static int64_t even_group(const ls_calls *c, const ls_mesh *mesh, bool varies)
{
    ls_ordered_run runs[LS_MESH_RANKS];
    int64_t group = 1;

    if (varies)
        return 1;
    while (group * 2 <= c->group)
        group *= 2;
    ls_mesh_split(mesh, c->leaves, runs);
    for (int r = 0; r < mesh->ranks; r++)
        while (runs[r].first % group != 0 || runs[r].count % group != 0)
            group /= 2;
    return group;
}

void ls_calls_plan(const ls_run *run, const ls_mesh *mesh, ls_calls *calls_out)
{
    ls_calls c = {.leaf = run->batch.leaf, .ranks = ls_mesh_ranks(mesh), .cp = ls_mesh_cp(mesh)};
    bool varies = run->batch.ramp > 0 || (mesh && mesh->balance);
    int rank = mesh ? mesh->rank : 0;

    c.ordered = ls_calls_ordered(run);
    c.sequences = run->batch.sequences;
    c.leaves = c.sequences / c.leaf;
    c.group = ls_min_i64(run->batch.group, c.leaves);
    if (!c.ordered) {
        c.group *= c.leaf;
        c.leaves = c.sequences;
        c.leaf = 1;
    }
    if (c.cp > 1) {
        c.cp_rank = rank % c.cp;
        c.leaves *= c.cp;
        c.sequences *= c.cp;
        if (c.ordered)
            c.group = even_group(&c, mesh, varies);
    }
    if (mesh && mesh->independent) {
        ls_ordered_run own = ls_mesh_leaves(mesh, c.leaves, rank);
        c.before = own.first * c.leaf;
        c.leaves = own.count;
        c.sequences = c.leaves * c.leaf;
        c.group = ls_min_i64(c.group, c.leaves);
        c.ranks = 1;
        mesh = NULL; /* alone with its part */
        rank = 0;
    }
    c.first = ls_mesh_leaves(mesh, c.leaves, rank).first;
    c.own = ls_mesh_most(mesh, c.leaves, rank);
    if (run->batch.ramp > 0)
        c.own = ls_min_i64(c.leaves, c.own + ROUNDED);
    if (varies)
        count_most(&c);
    else
        count_calls(&c);
    c.rounds = count_rounds(&c, run, mesh, varies);
    c.widest = widest_call(&c, mesh);
    c.roots = count_roots(&c, mesh, varies);
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
    ls_mesh batch_mesh = mesh ? *mesh : (ls_mesh){.ranks = 1};
    int64_t rounds = 1;
    ls_calls calls;

    if (run->mesh.ep > 1) {
        batch_mesh.ranks = ls_mesh_ranks(mesh) * (int)run->mesh.ep;
        batch_mesh.cp = (int)run->mesh.cp;
    }
    for (int r = 0; r < ls_mesh_ranks(&batch_mesh); r++) {
        plan_of(run, &batch_mesh, r, &calls);
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
