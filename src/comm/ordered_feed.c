/* ordered_feed.c -- the ordered sum in rounds: every round is one all_to_all.
 *
 * In each round a rank sends its node, cut by owner. At the owner the pieces arrive side by side by
 * rank; each is added to the top of its rank's stack or pushed on it (the drawing is in
 * ordered_feed.h). What arrives in the last round is combined from where it arrived, so a sum of
 * one round needs no stacks:
 *
 *     stack of 0: 01 2      stack of 1: 3 45      arrived in the last round: [ - | 6 ]
 *     45 += 6, then the plan: push 01, push 2, push 3, merge 2+3, merge 01+23, push 456, merge
 *
 * Two blocks of memory, of own elements only; here 2 parts, stacks of 2 slots (rank 0) and 1 slot
 * (rank 1), and ahead = 2:
 *
 *     stacks    | part 0:  r0 slot 0 | r0 slot 1 | r1 slot 0 || part 1:  r0 | r0 | r1 |
 *     staging   | turn 0:  from r0 | from r1 || turn 1:  from r0 | from r1 |
 *
 * A part that is started takes the next turn. A rank without a node in a round leaves no gap there:
 * the pieces of the others follow each other. */
#include "comm/ordered_feed.h"

#include <string.h>
#include "base/mem.h"
#include "kernel/combine.h"

enum { BLOCK = 16384 }; /* elements combined at a time */

struct ls_ordered_feed {
    ls_comm *comm;
    ls_ordered_plan plan;
    int ranks, rank, parts, ahead, rounds, slots;
    ls_dtype type;
    int64_t most;              /* own elements of the largest part */
    int64_t *counts;           /* owned: [parts][ranks], then zeros */
    int64_t *received;         /* owned: [ahead][ranks] */
    int64_t *own, *before;     /* owned: own elements of each part, and of those before it */
    int *merges;               /* owned: [rounds][ranks] */
    int *first_slot;           /* owned: of each rank */
    int *heights;              /* owned: [parts][ranks], of the stacks */
    char **tops;               /* owned: of each rank: what came in the last round and is a root */
    ls_comm_request *requests; /* owned: [ahead] */
    int64_t started, ended;
    char *stacks, *staging; /* of the communicator */
};

void ls_ordered_feed_count(ls_ordered_feed_room *room, int merges)
{
    if (merges == 0 && room->height + 1 > room->slots)
        room->slots = room->height + 1;
    room->height += 1 - merges;
}

static int slots_of(const ls_ordered_feed *f, int rank)
{
    ls_ordered_feed_room room = {.slots = 0};

    for (int k = 0; k < f->rounds - 1; k++)
        if (f->merges[(int64_t)k * f->ranks + rank] >= 0)
            ls_ordered_feed_count(&room, f->merges[(int64_t)k * f->ranks + rank]);
    return room.slots;
}

static int64_t most_own(const ls_ordered_feed_args *args, int ranks, int rank, int64_t *all_out)
{
    int64_t most = 0;

    *all_out = 0;
    for (int i = 0; i < args->parts; i++) {
        int64_t own = args->counts[(int64_t)i * ranks + rank];
        most = ls_max_i64(most, own);
        *all_out += own;
    }
    return most;
}

static int64_t page_bytes(int64_t bytes)
{
    return ls_round_up(ls_max_i64(1, bytes), 4096);
}

int64_t ls_ordered_feed_bytes(int64_t own, int64_t most, int ranks, int ahead, int64_t slots,
                              ls_dtype type)
{
    int64_t size = ls_dtype_bytes(type);

    return page_bytes(slots * own * size) + page_bytes(ahead * ranks * most * size);
}

static char *slot(const ls_ordered_feed *f, int part, int rank, int depth)
{
    int64_t at = f->slots * f->before[part] + (f->first_slot[rank] + depth) * f->own[part];

    return f->stacks + at * ls_dtype_bytes(f->type);
}

static char *staged(const ls_ordered_feed *f, int64_t turn)
{
    return f->staging + turn % f->ahead * f->ranks * f->most * ls_dtype_bytes(f->type);
}

/* All tables; a failure leaves those that exist to close(). */
static ls_status alloc_tables(ls_ordered_feed *f)
{
    size_t ranks = (size_t)f->ranks, parts = (size_t)f->parts, ahead = (size_t)f->ahead;

    f->counts = ls_mem_array((parts + 1) * ranks, sizeof *f->counts);
    f->received = ls_mem_array(ahead * ranks, sizeof *f->received);
    f->own = ls_mem_array(parts, sizeof *f->own);
    f->before = ls_mem_array(parts, sizeof *f->before);
    f->merges = ls_mem_array((size_t)f->rounds * ranks, sizeof *f->merges);
    f->first_slot = ls_mem_array(ranks, sizeof *f->first_slot);
    f->heights = ls_mem_array(parts * ranks, sizeof *f->heights);
    f->tops = ls_mem_array(ranks, sizeof *f->tops);
    f->requests = ls_mem_array(ahead, sizeof *f->requests);
    return f->counts && f->received && f->own && f->before && f->merges && f->first_slot &&
                   f->heights && f->tops && f->requests
               ? LS_OK
               : ls_fail(LS_ENOMEM, "no memory for a sum of %d ranks", f->ranks);
}

static void fill_tables(ls_ordered_feed *f, const ls_ordered_feed_args *args)
{
    int64_t before = 0;

    memcpy(f->merges, args->merges, (size_t)f->rounds * (size_t)f->ranks * sizeof *f->merges);
    for (int64_t i = 0; i < (int64_t)(f->parts + 1) * f->ranks; i++)
        f->counts[i] = i < (int64_t)f->parts * f->ranks ? args->counts[i] : 0;
    for (int i = 0; i < f->parts; before += f->own[i], i++) {
        f->own[i] = args->counts[(int64_t)i * f->ranks + f->rank];
        f->before[i] = before;
    }
    memset(f->heights, 0, (size_t)f->parts * (size_t)f->ranks * sizeof *f->heights);
    for (int r = 0; r < f->ranks; r++) {
        f->first_slot[r] = f->slots;
        f->slots += slots_of(f, r);
    }
}

ls_status ls_ordered_feed_open(ls_ordered_feed **feed_out, const ls_ordered_feed_args *args)
{
    ls_ordered_feed *f = ls_mem_alloc(sizeof *f);
    int64_t all, size = ls_dtype_bytes(args->type);
    void *memory;
    ls_status st;

    if (!f)
        return ls_fail(LS_ENOMEM, "no memory for a sum");
    *f = (ls_ordered_feed){.comm = args->comm,
                           .ranks = ls_comm_ranks(args->comm),
                           .rank = ls_comm_rank(args->comm),
                           .parts = args->parts,
                           .ahead = args->ahead,
                           .rounds = args->rounds,
                           .type = args->type};
    f->most = most_own(args, f->ranks, f->rank, &all);
    LS_TRY(st, ls_ordered_plan_init(&f->plan, args->runs, f->ranks, args->leaves), out);
    LS_TRY(st, alloc_tables(f), out);
    fill_tables(f, args);
    LS_TRY(st, ls_comm_alloc(f->comm, f->slots * all * size, "sums of gradients", &memory), out);
    f->stacks = memory;
    LS_TRY(st,
           ls_comm_alloc(f->comm, f->ahead * f->ranks * f->most * size, "gradients on their way",
                         &memory),
           out);
    f->staging = memory;
    *feed_out = f;
out:
    if (st != LS_OK)
        ls_ordered_feed_close(f);
    return st;
}

void ls_ordered_feed_close(ls_ordered_feed *f)
{
    if (!f)
        return;
    ls_ordered_plan_release(&f->plan);
    ls_comm_free(f->comm, f->stacks);
    ls_comm_free(f->comm, f->staging);
    ls_mem_free(f->counts);
    ls_mem_free(f->received);
    ls_mem_free(f->own);
    ls_mem_free(f->before);
    ls_mem_free(f->merges);
    ls_mem_free(f->first_slot);
    ls_mem_free(f->heights);
    ls_mem_free(f->tops);
    ls_mem_free(f->requests);
    ls_mem_free(f);
}

ls_status ls_ordered_feed_start(ls_ordered_feed *f, int part, int round, const void *node)
{
    const int *merges = f->merges + (int64_t)round * f->ranks;
    bool brings = merges[f->rank] >= 0;
    int64_t *received = f->received + f->started % f->ahead * f->ranks;

    LS_BUG_IF(f->started - f->ended >= f->ahead, "%d parts of a sum are on their way", f->ahead);
    for (int r = 0; r < f->ranks; r++)
        received[r] = merges[r] >= 0 ? f->own[part] : 0;
    ls_status st = ls_comm_start(
        f->comm,
        &(ls_coll){.kind = LS_COLL_ALL_TO_ALL,
                   .type = f->type,
                   .in = brings ? node : NULL,
                   .out = staged(f, f->started),
                   .in_counts = f->counts + (int64_t)(brings ? part : f->parts) * f->ranks,
                   .out_counts = received},
        &f->requests[f->started % f->ahead]);
    f->started += st == LS_OK;
    return st;
}

/* Push a node that arrived on the stack of its rank; in the last round it may stay where it is. */
static void push(ls_ordered_feed *f, int part, int rank, int merges, char *node, bool last)
{
    int *height = &f->heights[(int64_t)part * f->ranks + rank];
    int64_t own = f->own[part];
    char *at = node;

    for (; merges > 0; merges--) {
        char *below = slot(f, part, rank, --*height);
        ls_combine_two(f->type, below, at, below, own);
        at = below;
    }
    if (at == node && last) {
        f->tops[rank] = node;
        return;
    }
    if (at == node)
        memcpy(slot(f, part, rank, *height), node, (size_t)(own * ls_dtype_bytes(f->type)));
    ++*height;
}

/* Combine own elements first .. first+count-1 along the plan. */
static void combine_block(const ls_ordered_feed *f, int part, int64_t first, int64_t count,
                          char *out)
{
    int64_t size = ls_dtype_bytes(f->type), at = first * size;
    const int *heights = f->heights + (int64_t)part * f->ranks;
    char *stack[LS_ORDERED_ROOTS];
    int top = 0;

    for (int64_t i = 0; i < f->plan.count; i++) {
        const ls_ordered_step *step = &f->plan.steps[i];
        bool waits = step->root < heights[step->rank];
        stack[top++] = (waits ? slot(f, part, step->rank, step->root) : f->tops[step->rank]) + at;
        for (int m = 0; m < step->merges; m++) {
            top--;
            ls_combine_two(f->type, stack[top - 1], stack[top], stack[top - 1], count);
        }
    }
    if (f->plan.count > 0)
        memcpy(out + at, stack[0], (size_t)(count * size));
}

ls_status ls_ordered_feed_end(ls_ordered_feed *f, int part, int round, void *out,
                              int64_t deadline_ns)
{
    const int *merges = f->merges + (int64_t)round * f->ranks;
    char *node = staged(f, f->ended);
    bool last = round == f->rounds - 1;
    ls_status st = ls_comm_wait(f->comm, f->requests[f->ended % f->ahead], deadline_ns);

    if (st != LS_OK)
        return st;
    f->ended++;
    for (int r = 0; r < f->ranks; r++) {
        if (merges[r] < 0)
            continue;
        push(f, part, r, merges[r], node, last);
        node += f->own[part] * ls_dtype_bytes(f->type);
    }
    if (!last)
        return LS_OK;
    for (int64_t first = 0; first < f->own[part]; first += BLOCK)
        combine_block(f, part, first, ls_min_i64(BLOCK, f->own[part] - first), out);
    memset(f->heights + (int64_t)part * f->ranks, 0, (size_t)f->ranks * sizeof *f->heights);
    return LS_OK;
}
