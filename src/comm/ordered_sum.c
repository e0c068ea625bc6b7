/* ordered_sum.c -- roots by all_to_all, one call for the first root of every rank, one for the
 * second, and so on; then the plan of ordered.h, block by block, so that what is combined stays in
 * a cache. A block of a root is summed into where it arrived; only the last sum goes to out. */
#include "comm/ordered_sum.h"

#include <string.h>
#include "base/mem.h"
#include "kernel/combine.h"

enum { BLOCK = 16384 }; /* elements that are combined at a time */

struct ls_ordered_sum {
    ls_comm *comm;
    ls_ordered_plan plan;
    int ranks, rank, rounds; /* rounds: the most roots that a rank has */
    int64_t own;             /* elements that this rank gets */
    int64_t room;            /* roots of all ranks, at most */
    ls_dtype type;
    int64_t *takes;  /* owned: elements of each rank */
    int *roots;      /* owned: how many each rank has */
    int64_t *places; /* owned: where the root of each step of the plan arrives, in elements */
    int64_t *counts; /* owned: [rounds][out, in][ranks], tables of all_to_all */
    char *arrived;   /* of the communicator: own elements of each root, round by round */
};

static int roots_of(ls_ordered_run run, int64_t leaves)
{
    ls_ordered_node nodes[LS_ORDERED_ROOTS];

    return ls_ordered_roots(run, leaves, nodes);
}

static int64_t all_roots(const ls_ordered_run *runs, int ranks, int64_t leaves)
{
    int64_t roots = 0;

    for (int r = 0; r < ranks; r++)
        roots += roots_of(runs[r], leaves);
    return roots;
}

int64_t ls_ordered_sum_bytes(const ls_ordered_sum_args *args, int ranks, int rank)
{
    int64_t roots = args->roots ? args->roots : all_roots(args->runs, ranks, args->leaves);

    return roots * args->counts[rank] * ls_dtype_bytes(args->type);
}

/* Where root number `round` of rank r arrives: behind those of earlier rounds and ranks. */
static int64_t place_of(const ls_ordered_sum *s, int round, int r)
{
    int64_t n = 0;

    for (int k = 0; k <= round; k++)
        for (int q = 0; q < (k < round ? s->ranks : r); q++)
            n += s->roots[q] > k;
    return n * s->own;
}

static char *arrived_at(const ls_ordered_sum *s, int64_t element)
{
    return s->arrived + element * ls_dtype_bytes(s->type);
}

static int64_t *table(const ls_ordered_sum *s, int round, bool in)
{
    return s->counts + ((int64_t)round * 2 + in) * s->ranks;
}

static ls_status fill_tables(ls_ordered_sum *s, const ls_ordered_run *runs, int64_t leaves)
{
    s->rounds = 0;
    for (int r = 0; r < s->ranks; r++) {
        s->roots[r] = roots_of(runs[r], leaves);
        s->rounds = s->roots[r] > s->rounds ? s->roots[r] : s->rounds;
    }
    s->counts = ls_mem_array((size_t)(s->rounds * 2 + 1) * (size_t)s->ranks, sizeof *s->counts);
    s->places = ls_mem_array((size_t)ls_max_i64(1, s->plan.count), sizeof *s->places);
    if (!s->counts || !s->places)
        return ls_fail(LS_ENOMEM, "no memory for a sum of %d ranks", s->ranks);
    for (int64_t i = 0; i < s->plan.count; i++)
        s->places[i] = place_of(s, s->plan.steps[i].root, s->plan.steps[i].rank);
    for (int k = 0; k < s->rounds; k++)
        for (int r = 0; r < s->ranks; r++) {
            table(s, k, true)[r] = s->roots[s->rank] > k ? s->takes[r] : 0;
            table(s, k, false)[r] = s->roots[r] > k ? s->own : 0;
        }
    return LS_OK;
}

static void release_tables(ls_ordered_sum *s)
{
    ls_ordered_plan_release(&s->plan);
    ls_mem_free(s->counts);
    ls_mem_free(s->places);
    s->counts = s->places = NULL;
}

ls_status ls_ordered_sum_split(ls_ordered_sum *sum, const ls_ordered_run *runs, int64_t leaves)
{
    ls_status st = LS_OK;

    release_tables(sum);
    LS_TRY(st, ls_ordered_plan_init(&sum->plan, runs, sum->ranks, leaves), out);
    if (sum->room && sum->plan.count > sum->room) /* a step of the plan for each root */
        return ls_fail(LS_EUSAGE, "a sum with room for %lld roots cannot have %lld",
                       (long long)sum->room, (long long)sum->plan.count);
    LS_TRY(st, fill_tables(sum, runs, leaves), out);
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
                          .type = args->type};
    s->own = args->counts[s->rank];
    s->room = args->roots;
    s->roots = ls_mem_array((size_t)s->ranks, sizeof *s->roots);
    s->takes = ls_mem_array((size_t)s->ranks, sizeof *s->takes);
    LS_TRY(st,
           s->roots && s->takes ? LS_OK
                                : ls_fail(LS_ENOMEM, "no memory for a sum of %d ranks", s->ranks),
           out);
    memcpy(s->takes, args->counts, (size_t)s->ranks * sizeof *s->takes);
    LS_TRY(st, ls_ordered_sum_split(s, args->runs, args->leaves), out);
    s->room = args->roots ? args->roots : s->plan.count;
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
    release_tables(sum);
    ls_comm_free(sum->comm, sum->arrived);
    ls_mem_free(sum->roots);
    ls_mem_free(sum->takes);
    ls_mem_free(sum);
}

/* left += right, or *out = left + right. */
static void merge(ls_dtype type, void *left, const void *right, void *out, int64_t count)
{
    const void *const from[2] = {left, right};

    ls_combine_run(&(ls_combine){.type = type,
                                 .op = LS_COMBINE_SUM,
                                 .from = from,
                                 .sources = 2,
                                 .to = &out,
                                 .targets = 1,
                                 .scale = 1},
                   count);
}

/* Elements first .. first+count-1 of this rank's, along the plan. */
static void combine_block(const ls_ordered_sum *s, int64_t first, int64_t count, char *out)
{
    int64_t size = ls_dtype_bytes(s->type), at = first * size;
    char *stack[LS_ORDERED_ROOTS];
    int top = 0;

    for (int64_t i = 0; i < s->plan.count; i++) {
        const ls_ordered_step *step = &s->plan.steps[i];
        stack[top++] = arrived_at(s, s->places[i] + first);
        for (int m = 0; m < step->merges; m++) {
            bool last = i == s->plan.count - 1 && m == step->merges - 1;
            top--;
            merge(s->type, stack[top - 1], stack[top], last ? out + at : stack[top - 1], count);
        }
    }
    if (s->plan.count == 1)
        memcpy(out + at, stack[0], (size_t)(count * size));
}

ls_status ls_ordered_sum_run(ls_ordered_sum *sum, void *const *roots, void *out,
                             int64_t deadline_ns)
{
    ls_ordered_sum *s = sum;
    ls_status st = LS_OK;

    for (int k = 0; k < s->rounds; k++)
        LS_TRY(st,
               ls_comm_run(s->comm,
                           &(ls_coll){.kind = LS_COLL_ALL_TO_ALL,
                                      .type = s->type,
                                      .in = k < s->roots[s->rank] ? roots[k] : NULL,
                                      .out = arrived_at(s, place_of(s, k, 0)),
                                      .in_counts = table(s, k, true),
                                      .out_counts = table(s, k, false)},
                           deadline_ns),
               out);
    for (int64_t first = 0; first < s->own && s->plan.count > 0; first += BLOCK)
        combine_block(s, first, ls_min_i64(BLOCK, s->own - first), out);
out:
    return st;
}
