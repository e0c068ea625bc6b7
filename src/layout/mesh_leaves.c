/* mesh_leaves.c -- which leaves of a batch each rank takes.
 *
 * A rank that does w leaves in a second ends n leaves at time n / w. With weights a step ends when the
 * last rank does, so the leaves are given out by time: 24 leaves, weights 1 1 0.5:
 *
 *     time 9      9 + 9 + 4 = 22 leaves are done; at time 10 more than 24 would be
 *     leaf 23     rank 0 would end it at 10, rank 1 at 10, rank 2 at 10: to rank 0
 *     leaf 24     to rank 1
 *
 * Only whole leaves are given out, because a leaf is what ordered sums count in. */
#include "layout/mesh.h"

#include <math.h>

/* The least and the most leaves of a rank. */
static int64_t least_of(const ls_mesh *mesh, int64_t leaves)
{
    return mesh->balance && leaves >= mesh->ranks;
}

static int64_t most_of(const ls_mesh *mesh, int64_t leaves)
{
    return mesh->balance ? ls_min_i64(leaves, 2 * ((leaves + mesh->ranks - 1) / mesh->ranks))
                         : leaves;
}

/* The whole leaves that each rank has done at a time; returns their sum. */
static int64_t done_at(const ls_mesh *mesh, int64_t leaves, double time, ls_ordered_run *runs)
{
    int64_t least = least_of(mesh, leaves), most = most_of(mesh, leaves), sum = 0;

    for (int r = 0; r < mesh->ranks; r++) {
        double done = floor(mesh->weights[r] * time);
        runs[r].count = done >= (double)most ? most : ls_max_i64(least, (int64_t)done);
        sum += runs[r].count;
    }
    return sum;
}

/* The latest time at which no more than all leaves are done, then one leaf after the other to the rank
 * that would end it first. No other way ends earlier. */
static void split_by_weights(const ls_mesh *mesh, int64_t leaves, ls_ordered_run *runs)
{
    double low = 0, high = 1;
    int64_t most = most_of(mesh, leaves);

    while (leaves > 0 && done_at(mesh, leaves, high, runs) <= leaves)
        high *= 2; /* all ranks together can do more than all leaves */
    for (int i = 0; i < 100; i++) {
        double middle = low + (high - low) / 2;
        if (done_at(mesh, leaves, middle, runs) <= leaves)
            low = middle;
        else
            high = middle;
    }
    for (int64_t left = leaves - done_at(mesh, leaves, low, runs); left > 0; left--) {
        int next = -1;
        for (int r = 0; r < mesh->ranks; r++)
            if (runs[r].count < most &&
                (next < 0 || (double)(runs[r].count + 1) / mesh->weights[r] <
                                 (double)(runs[next].count + 1) / mesh->weights[next]))
                next = r;
        runs[next].count++;
    }
}

/* In pieces: all ranks of a cp group have as many. */
static void split_cp_groups(const ls_mesh *mesh, int64_t pieces, ls_ordered_run *runs)
{
    int cp = mesh->cp, pipelines = ls_mesh_pipelines(mesh), cp_groups = pipelines / cp;
    int64_t leaves = pieces / cp;

    LS_BUG_IF(pieces % cp != 0, "%lld pieces of leaves for %d ranks each", (long long)pieces, cp);
    for (int r = 0; r < pipelines; r++)
        runs[r].count = leaves / cp_groups + (r / cp < leaves % cp_groups);
}

void ls_mesh_split(const ls_mesh *mesh, int64_t leaves, ls_ordered_run *runs_out)
{
    int n = ls_mesh_pipelines(mesh);
    int64_t first = 0;

    if (ls_mesh_cp(mesh) > 1)
        split_cp_groups(mesh, leaves, runs_out);
    else if (n > 1 && mesh->weights)
        split_by_weights(mesh, leaves, runs_out);
    else
        for (int r = 0; r < n; r++)
            runs_out[r].count = leaves / n + (r < leaves % n);
    for (int r = 0; r < n; r++) {
        runs_out[r].first = first;
        first += runs_out[r].count;
    }
    for (int r = n; r < ls_mesh_ranks(mesh); r++)
        runs_out[r] = runs_out[ls_mesh_pipeline(mesh, r)];
}

ls_ordered_run ls_mesh_leaves(const ls_mesh *mesh, int64_t leaves, int rank)
{
    ls_ordered_run runs[LS_MESH_RANKS];

    ls_mesh_split(mesh, leaves, runs);
    return runs[rank];
}

int64_t ls_mesh_most(const ls_mesh *mesh, int64_t leaves, int rank)
{
    return mesh && mesh->balance ? most_of(mesh, leaves) : ls_mesh_leaves(mesh, leaves, rank).count;
}
