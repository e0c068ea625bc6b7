/* calls.h -- how the sequences of a global batch become leaves, and leaves become calls.
 *
 * batch.sequences = leaves * leaf. A rank has a run of the leaves (layout/mesh.h). A call takes up
 * to `group` of them at once. In ordered mode a call is a whole node of the tree of sums over leaf
 * numbers (comm/ordered.h), and the sums of calls wait on a stack of `buffers` gradient buffers
 * until their sibling comes. Grouping changes memory and speed, never a bit. Example: 12 sequences,
 * leaf 2: 6 leaves; group 4: calls of leaves 0-3 and 4-5; on the second of two ranks, which has
 * leaves 3-5: calls of leaf 3 and leaves 4-5.
 *
 * In fast mode leaves have no meaning: each sequence counts as one leaf.
 *
 * The leaves of a step, and of this rank, may change from step to step: with a batch ramp, or where
 * slices follow the speed of ranks. The plan is for the largest step; the calls of a step are then
 * set (ls_calls_set).
 *
 * With mesh.cp a rank has a piece of each sequence of its cp group's leaves: leaves and sequences
 * are counted in pieces (layout/mesh.h). Ranks of a cp group make the same calls together, so in
 * ordered mode the number of leaves of a call divides all of their runs, and where these begin.
 * With mesh.ep sums are those of fast mode: an expert adds up rows of all ranks' tokens at once.
 * Ranks that divide experts go through equally many rounds, even those that have fewer calls.
 *
 * A worker (sync: local) trains with its leaves only: they are its batch, and `before` says where
 * that begins in the batch of all workers. */
#pragma once
#include "config/run.h"
#include "layout/mesh.h"

LS_C_BEGIN

typedef struct ls_calls {
    int64_t sequences, leaf, leaves; /* of the global batch */
    int64_t first, own;              /* leaves of this rank */
    int64_t before;                  /* sequences of other workers before this one's batch */
    int64_t group;                   /* leaves of a call, at most */
    int64_t most;                    /* of the largest call that is made here; at least 1 */
    int64_t widest; /* of the largest call of any rank, or more; equal on all ranks */
    int64_t calls;  /* per step */
    int64_t rounds; /* of the plan: the most calls of any rank that divides experts with this one */
    int64_t buffers; /* gradient buffers alive at once; at least 1 */
    int64_t roots;   /* of all ranks, in ordered mode */
    int ranks;
    int cp,
        cp_rank; /* ranks that share each sequence, and this one's number among them; 0 counts as one */
    bool ordered;
} ls_calls;

/* What any step needs at most: of all numbers, but for `first`, the largest. run is loaded: leaf
 * and group are numbers, never auto. mesh may be NULL: one rank. */
void ls_calls_plan(const ls_run *run, const ls_mesh *mesh, ls_calls *calls_out);

/* Tokens that this rank has of each sequence of T. */
static inline int64_t ls_calls_tokens(const ls_calls *calls, int64_t T)
{
    return T / ls_max_i64(1, calls->cp);
}

/* The number in the global batch of the first sequence of a leaf of this rank's run. */
static inline int64_t ls_calls_sequence(const ls_calls *calls, int64_t leaf)
{
    int64_t pieces = calls->first - calls->cp_rank * calls->own; /* before those of its cp group */

    return calls->before + (pieces / ls_max_i64(1, calls->cp) + leaf - calls->first) * calls->leaf;
}

/* Whether gradients are summed along the tree over leaves; sequences of a leaf. */
bool ls_calls_ordered(const ls_run *run);
int64_t ls_calls_leaf(const ls_run *run);

/* Leaves of the batch of step `step` (from 0), whole ones. */
int64_t ls_calls_leaves(const ls_run *run, int64_t step);

/* The calls of a step whose batch has `leaves` leaves, of which this rank has `own`. */
void ls_calls_set(const ls_calls *plan, ls_ordered_run own, int64_t leaves, ls_calls *calls_out);

/* Sequences that a step or a call of validation needs room for at a time. */
static inline int64_t ls_calls_held(const ls_calls *calls)
{
    return ls_max_i64(calls->own, calls->most) * calls->leaf;
}

/* Leaves of the call that begins at a leaf of this rank's run. */
int64_t ls_calls_at(const ls_calls *calls, int64_t leaf);

/* Sums to make when the call of these leaves is on the stack: each adds the top to the one below.
 * Ordered mode only. */
int ls_calls_merges(const ls_calls *calls, int64_t first, int64_t count);

/* --- calls of all ranks, where every call is exchanged (zero 2 and 3) ------------------------- */

/* Rounds: calls of the rank that makes most of them; at least 1. The mesh is that of the ranks that
 * sum with each other; where experts are divided (mesh: of replicas) all ranks that share the batch
 * make equally many. */
int ls_calls_rounds(const ls_run *run, const ls_mesh *mesh);

/* Ordered: merges_out[rounds][ranks] is what ls_calls_merges() says of each rank's call in each
 * round, -1 where it makes none; NULL: only count. Returns the places that their stacks need
 * (comm/ordered_feed.h). */
int64_t ls_calls_feed(const ls_run *run, const ls_mesh *mesh, int rounds, int *merges_out);

LS_C_END
