/* algo_impl.h -- how an algorithm writes its steps down.
 *
 * A draft is a schedule in the making. Steps of no elements are left out (except in a barrier) and
 * stand for "nothing to wait for", -1. A failure is remembered and later calls do nothing, so that
 * an algorithm reads as a list of what happens. */
#pragma once
#include "comm/algo/algo.h"

struct ls_algo_draft {
    const ls_sched_args *args;
    ls_sched *sched;
    int32_t *numbers; /* messages so far: to each rank, then from each rank */
    int32_t *mark;    /* scratch: steps that later ones wait for, by whatever the algorithm likes */
    int64_t marks;
    ls_status status;
};

typedef struct ls_algo_place {
    ls_sched_buffer buffer;
    int64_t at;
} ls_algo_place;

static inline ls_algo_place ls_algo_at(ls_sched_buffer buffer, int64_t at)
{
    return (ls_algo_place){buffer, at};
}

/* Each appends a step and returns its place in the list. */
int32_t ls_algo_send(ls_algo_draft *d, int peer, ls_algo_place from, int64_t count, int32_t after);
int32_t ls_algo_recv(ls_algo_draft *d, int peer, ls_algo_place to, int64_t count, int32_t after);
int32_t ls_algo_recv_add(ls_algo_draft *d, int peer, ls_algo_place to, ls_algo_place from,
                         int64_t count, int32_t after);
int32_t ls_algo_copy(ls_algo_draft *d, ls_algo_place to, ls_algo_place from, int64_t count,
                     int32_t after);
/* Then its parts, in order of combining. */
int32_t ls_algo_combine(ls_algo_draft *d, ls_algo_place to, int64_t count, int32_t after);
void ls_algo_part(ls_algo_draft *d, ls_algo_place from, int32_t after);

/* A second step to wait for; step or after may be -1. */
void ls_algo_also(ls_algo_draft *d, int32_t step, int32_t after);
/* The step leaves finished sums. */
void ls_algo_last(ls_algo_draft *d, int32_t step);

/* Marks 0 .. count-1, all -1. false: no memory, which is remembered. */
bool ls_algo_marks(ls_algo_draft *d, int64_t count);

/* IN, or OUT when it is in place, where they are the same memory: the own contribution of a rank in
 * a collective whose IN has its full length. */
ls_algo_place ls_algo_in(const ls_algo_draft *d, int64_t at);

/* The range of a rank, and where OUT (reduce_scatter) or IN (all_gather) holds the own one. */
typedef struct ls_algo_range {
    int64_t first, len;
} ls_algo_range;
ls_algo_range ls_algo_range_of(const ls_algo_draft *d, int rank);
ls_algo_place ls_algo_own_out(const ls_algo_draft *d);
ls_algo_place ls_algo_own_in(const ls_algo_draft *d);

/* A length in pieces of at most args->chunk: how many, how long the longest is, and one of them. */
int64_t ls_algo_pieces(const ls_algo_draft *d, int64_t len);
int64_t ls_algo_piece(const ls_algo_draft *d, int64_t len);
ls_algo_range ls_algo_cut(const ls_algo_draft *d, int64_t len, int64_t piece);

/* r + by on the circle of ranks; by >= -ranks. */
static inline int ls_algo_turn(const ls_algo_draft *d, int r, int by)
{
    int n = d->args->ranks;

    return (r + by % n + n) % n;
}

/* Largest power of two that is <= n. */
static inline int ls_algo_power(int n)
{
    int p = 1;

    while (2 * p <= n)
        p *= 2;
    return p;
}

/* Messages that a rank sends for one piece in one of the two trees of tree2.c (0 or 1). */
int ls_algo_tree2_sends(int ranks, int rank, int tree);

extern const ls_algo ls_algo_ring, ls_algo_halving, ls_algo_doubling, ls_algo_tree, ls_algo_tree2,
    ls_algo_pairwise, ls_algo_direct, ls_algo_dissemination;
