/* ordered_sum.c -- the ordered sum in one go: one all_to_all sends the first root of every rank to
 * the owners, the next one the second root, and so on; then each owner combines along the plan of
 * ordered.h.
 *
 *     rank 0 has roots A B, rank 1 has C; ranks own halves 0 and 1; rank 1 receives and combines:
 *
 *     round 0   A1 from 0, C1 from 1      plan: push A1, push B1, push C1, merge, merge
 *     round 1   B1 from 0                 out = A1 + (B1 + C1)
 *
 *     arrived   | part 0: A1 from 0 | C1 from 1 | B1 from 0 || part 1: A1' | C1' | B1' || ...
 *
 * The roots of a round lie side by side, because one all_to_all writes them; `places` finds the one
 * that a step of the plan takes.
 *
 * The sum runs block by block, so that a block of all roots stays in a cache. A block is summed
 * into the place where a root arrived; only the last sum goes to out. Any number of parts can be in
 * flight. */
#include "comm/ordered_sum.h"

#include <string.h>
#include "base/mem.h"
#include "kernel/combine.h"

enum { BLOCK = 16384 }; /* elements combined at a time */

struct ls_ordered_sum {
    ls_comm *comm;
    ls_ordered_plan plan;
    int ranks, rank, parts, rounds; /* rounds: the most roots that a rank has */
    ls_dtype type;
    int *roots;                /* owned: how many each rank has */
    int64_t all_roots;         /* roots of all ranks */
    int64_t room;              /* room for this many roots */
    int64_t *places;           /* owned: which arrived root each step of the plan takes */
    int64_t *counts;           /* owned: [parts][ranks], then zeros: what a round sends */
    int64_t *received;         /* owned: [parts][rounds][ranks]: what a round receives */
    int64_t *own;              /* owned: elements of each part that this rank gets, */
    int64_t *before;           /* and those of the parts before it */
    ls_comm_request *requests; /* owned: [parts][rounds] */
    char *arrived;             /* of the communicator: own elements of each root, part by part */
};

static int roots_of(ls_ordered_run run, int64_t leaves)
{
    ls_ordered_node nodes[LS_ORDERED_ROOTS];

    return ls_ordered_roots(run, leaves, nodes);
}

int64_t ls_ordered_sum_bytes(const ls_ordered_sum_args *args, int ranks, int rank)
{
    int64_t roots = args->roots, own = 0;

    for (int r = 0; r < ranks && args->roots == 0; r++)
        roots += roots_of(args->runs[r], args->leaves);
    for (int i = 0; i < (args->parts ? args->parts : 1); i++)
        own += args->counts[i * ranks + rank];
    return roots * own * ls_dtype_bytes(args->type);
}

/* The index of root `round` of rank r: behind those of earlier rounds, and of lower ranks. */
static int64_t place_of(const ls_ordered_sum *s, int round, int r)
{
    int64_t n = 0;

    for (int k = 0; k <= round; k++)
        for (int q = 0; q < (k < round ? s->ranks : r); q++)
            n += s->roots[q] > k;
    return n;
}

/* Where the own elements of a root arrive, for one part, from element `first` on. */
static char *arrived_at(const ls_ordered_sum *s, int part, int64_t place, int64_t first)
{
    int64_t element = s->all_roots * s->before[part] + place * s->own[part] + first;

    return s->arrived + element * ls_dtype_bytes(s->type);
}

/* What each rank sends and receives in a round. */
static const int64_t *sent(const ls_ordered_sum *s, int part, int round)
{
    return s->counts + (int64_t)(s->roots[s->rank] > round ? part : s->parts) * s->ranks;
}

static int64_t *received(const ls_ordered_sum *s, int part, int round)
{
    return s->received + ((int64_t)part * s->rounds + round) * s->ranks;
}

/* Tables that do not depend on the split. */
static ls_status fill_parts(ls_ordered_sum *s, const int64_t *counts)
{
    size_t ranks = (size_t)s->ranks, parts = (size_t)s->parts;
    int64_t before = 0;

    s->roots = ls_mem_array(ranks, sizeof *s->roots);
    s->counts = ls_mem_array((parts + 1) * ranks, sizeof *s->counts);
    s->own = ls_mem_array(parts, sizeof *s->own);
    s->before = ls_mem_array(parts, sizeof *s->before);
    if (!s->roots || !s->counts || !s->own || !s->before)
        return ls_fail(LS_ENOMEM, "no memory for a sum of %d ranks", s->ranks);
    memcpy(s->counts, counts, parts * ranks * sizeof *counts);
    for (int i = 0; i < s->parts; before += s->own[i], i++) {
        s->own[i] = counts[i * s->ranks + s->rank];
        s->before[i] = before;
    }
    return LS_OK;
}

/* Tables that do. */
static ls_status fill_split(ls_ordered_sum *s, const ls_ordered_run *runs, int64_t leaves)
{
    size_t ranks = (size_t)s->ranks, parts = (size_t)s->parts, rounds;

    s->rounds = 0;
    s->all_roots = s->plan.count; /* each root is pushed once */
    for (int r = 0; r < s->ranks; r++) {
        s->roots[r] = roots_of(runs[r], leaves);
        s->rounds = s->roots[r] > s->rounds ? s->roots[r] : s->rounds;
    }
    rounds = (size_t)s->rounds;
    s->received = ls_mem_array(parts * rounds * ranks + 1, sizeof *s->received);
    s->places = ls_mem_array((size_t)ls_max_i64(1, s->plan.count), sizeof *s->places);
    s->requests = ls_mem_array(parts * rounds + 1, sizeof *s->requests);
    if (!s->received || !s->places || !s->requests)
        return ls_fail(LS_ENOMEM, "no memory for a sum of %d ranks", s->ranks);
    for (int64_t i = 0; i < s->plan.count; i++)
        s->places[i] = place_of(s, s->plan.steps[i].root, s->plan.steps[i].rank);
    for (int i = 0; i < s->parts; i++)
        for (int k = 0; k < s->rounds; k++)
            for (int r = 0; r < s->ranks; r++)
                received(s, i, k)[r] = s->roots[r] > k ? s->own[i] : 0;
    return LS_OK;
}

static void release_split(ls_ordered_sum *s)
{
    ls_ordered_plan_release(&s->plan);
    ls_mem_free(s->received);
    ls_mem_free(s->places);
    ls_mem_free(s->requests);
    s->received = s->places = NULL;
    s->requests = NULL;
}

ls_status ls_ordered_sum_split(ls_ordered_sum *sum, const ls_ordered_run *runs, int64_t leaves)
{
    ls_status st = LS_OK;

    release_split(sum);
    LS_TRY(st, ls_ordered_plan_init(&sum->plan, runs, sum->ranks, leaves), out);
    if (sum->room && sum->plan.count > sum->room)
        return ls_fail(LS_EUSAGE, "a sum with room for %lld roots cannot have %lld",
                       (long long)sum->room, (long long)sum->plan.count);
    LS_TRY(st, fill_split(sum, runs, leaves), out);
out:
    return st;
}

ls_status ls_ordered_sum_open(ls_ordered_sum **sum_out, const ls_ordered_sum_args *args)
{
    ls_ordered_sum *s = ls_mem_alloc(sizeof *s);
    int64_t bytes;
    void *memory;
    ls_status st;

    if (!s)
        return ls_fail(LS_ENOMEM, "no memory for a sum");
    *s = (ls_ordered_sum){.comm = args->comm,
                          .ranks = ls_comm_ranks(args->comm),
                          .rank = ls_comm_rank(args->comm),
                          .parts = args->parts ? args->parts : 1,
                          .type = args->type};
    s->room = args->roots;
    LS_TRY(st, fill_parts(s, args->counts), out);
    LS_TRY(st, ls_ordered_sum_split(s, args->runs, args->leaves), out);
    s->room = args->roots ? args->roots : s->all_roots;
    bytes = ls_ordered_sum_bytes(args, s->ranks, s->rank);
    LS_TRY(st, ls_comm_alloc(s->comm, bytes, "sums of gradients", &memory), out);
    s->arrived = memory;
    *sum_out = s;
out:
    if (st != LS_OK)
        ls_ordered_sum_close(s);
    return st;
}

void ls_ordered_sum_close(ls_ordered_sum *sum)
{
    if (!sum)
        return;
    release_split(sum);
    ls_comm_free(sum->comm, sum->arrived);
    ls_mem_free(sum->roots);
    ls_mem_free(sum->counts);
    ls_mem_free(sum->own);
    ls_mem_free(sum->before);
    ls_mem_free(sum);
}

/* Combine own elements first .. first+count-1 of a part along the plan. */
static void combine_block(const ls_ordered_sum *s, int part, int64_t first, int64_t count,
                          char *out)
{
    int64_t size = ls_dtype_bytes(s->type), at = first * size;
    char *stack[LS_ORDERED_ROOTS];
    int top = 0;

    for (int64_t i = 0; i < s->plan.count; i++) {
        const ls_ordered_step *step = &s->plan.steps[i];
        stack[top++] = arrived_at(s, part, s->places[i], first);
        for (int m = 0; m < step->merges; m++) {
            bool last = i == s->plan.count - 1 && m == step->merges - 1;
            top--;
            ls_combine_two(s->type, stack[top - 1], stack[top], last ? out + at : stack[top - 1],
                           count);
        }
    }
    if (s->plan.count == 1)
        memcpy(out + at, stack[0], (size_t)(count * size));
}

int ls_ordered_sum_requests(const ls_ordered_sum *sum)
{
    return sum->rounds;
}

ls_status ls_ordered_sum_start(ls_ordered_sum *s, int part, void *const *roots)
{
    ls_status st = LS_OK;

    for (int k = 0; k < s->rounds; k++)
        LS_TRY(st,
               ls_comm_start(s->comm,
                             &(ls_coll){.kind = LS_COLL_ALL_TO_ALL,
                                        .type = s->type,
                                        .in = k < s->roots[s->rank] ? roots[k] : NULL,
                                        .out = arrived_at(s, part, place_of(s, k, 0), 0),
                                        .in_counts = sent(s, part, k),
                                        .out_counts = received(s, part, k)},
                             &s->requests[part * s->rounds + k]),
               out);
out:
    return st;
}

ls_status ls_ordered_sum_end(ls_ordered_sum *s, int part, void *out, int64_t deadline_ns)
{
    int64_t own = s->own[part];
    ls_status st = LS_OK;

    for (int k = 0; k < s->rounds; k++)
        LS_TRY(st, ls_comm_wait(s->comm, s->requests[part * s->rounds + k], deadline_ns), failed);
    for (int64_t first = 0; first < own && s->plan.count > 0; first += BLOCK)
        combine_block(s, part, first, ls_min_i64(BLOCK, own - first), out);
failed:
    return st;
}
