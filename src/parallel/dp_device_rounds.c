/* dp_device_rounds.c -- ZeRO 2 and 3: sums of the calls' gradients, round by round, on the card.
 *
 * A rank keeps the sums of its own parts only, so what the ranks compute is summed call by call. A
 * transfer is a bucket of this round, or the second gradient of one; its gradient lies in a place.
 *
 *   fast      reduce-scatter in the place; the own part is added to the sums
 *   ordered   each rank sends every owner its piece of the node it has in this round. The owner has
 *             a stack for each rank (comm/ordered_feed.h has the drawing), and in the last round
 *             adds what is on all of them along the plan of comm/ordered.h
 *
 *     two ranks, three leaves each, one in a round; at the owner of an element:
 *     round 0   arrived 0, 3     stacks: 0 | 3
 *     round 1   arrived 1, 4     stacks: 01 | 3 4
 *     round 2   arrived 2, 5     01, 2 | 3, (4 5) along the plan: ((01)(23))(45)
 *
 * Everything is in the order of one stream, so one area for arrivals does for all transfers. How
 * high the stacks are before each round is the same for all buckets, and known when it is opened. */
#include "parallel/dp_device_impl.h"

#include "base/mem.h"

enum { ALIGN = 64 /* elements */ };

/* --- sizes -------------------------------------------------------------------------------------- */

/* Elements of a node of the own pieces, or of their second gradients. */
static int64_t node_elements(const ls_dp_args *a, bool tied)
{
    int buckets = ls_mesh_buckets(&a->mesh, a->trained);
    int64_t n = 0;

    if (tied && !ls_dp_has_tied(a))
        return 0;
    for (int b = 0; b < buckets && !tied; b++)
        n += ls_dp_piece(a, b).count;
    return ls_round_up(tied ? ls_dp_tied_before(a, buckets) : n, ALIGN);
}

static int64_t places_bytes(const ls_dp_args *a)
{
    return LS_DP_AHEAD * ls_round_up(ls_dp_place_elements(a), ALIGN) * (int64_t)sizeof(float);
}

static int64_t stack_bytes(const ls_dp_args *a, bool tied)
{
    return a->ordered ? a->slots * node_elements(a, tied) * (int64_t)sizeof(float) : 0;
}

int64_t ls_dp_device_rounds_bytes(const ls_dp_args *a)
{
    return ls_round_up(places_bytes(a), 4096) + ls_round_up(stack_bytes(a, false), 4096) +
           ls_round_up(stack_bytes(a, true), 4096);
}

/* --- opening ------------------------------------------------------------------------------------ */

/* Sums that are due when the node of a rank in this round is on its stack; -1: it has none. */
static int merges_of(const ls_dp_device *x, int round, int rank)
{
    const ls_dp *dp = x->args.dp;

    return dp->merges[round * x->ranks + ls_dp_piece_rank(&dp->args.mesh, rank)];
}

static int height_of(const ls_dp_device *x, int round, int rank)
{
    return x->rounds.heights[round * x->ranks + rank];
}

/* Stacks begin empty; the places of all of them lie side by side. */
static void fill_tables(ls_dp_device *x)
{
    const ls_dp_args *a = &x->args.dp->args;
    ls_dp_device_rounds *t = &x->rounds;
    int64_t before = 0;

    for (int b = 0; b < x->args.dp->buckets; b++) {
        t->before[b] = before;
        before += ls_dp_piece(a, b).count;
    }
    for (int r = 0; r < x->ranks; r++) {
        ls_ordered_feed_room room = {.slots = 0};
        for (int k = 0; k < a->rounds; k++) {
            t->heights[k * x->ranks + r] = room.height;
            if (merges_of(x, k, r) >= 0 && k < a->rounds - 1)
                ls_ordered_feed_count(&room, merges_of(x, k, r));
        }
        t->first_slot[r] = (int)t->slots;
        t->slots += room.slots;
    }
    LS_BUG_IF(t->slots > a->slots, "%lld partial sums of %lld", (long long)t->slots,
              (long long)a->slots);
}

static ls_status open_tables(ls_dp_device *x)
{
    const ls_dp *dp = x->args.dp;
    ls_dp_device_rounds *t = &x->rounds;
    size_t ranks = (size_t)x->ranks;

    t->before = ls_mem_array((size_t)dp->buckets, sizeof *t->before);
    t->heights = ls_mem_array((size_t)dp->args.rounds * ranks + 1, sizeof *t->heights);
    t->first_slot = ls_mem_array(ranks, sizeof *t->first_slot);
    t->tops = ls_mem_array(ranks, sizeof *t->tops);
    if (!t->before || !t->heights || !t->first_slot || !t->tops)
        return ls_fail(LS_ENOMEM, "no memory for a sum of %d ranks", x->ranks);
    fill_tables(x);
    return LS_OK;
}

ls_status ls_dp_device_open_rounds(ls_dp_device *x)
{
    const ls_dp_args *a = &x->args.dp->args;
    ls_device *device = ls_stream_device(x->args.stream);
    ls_dp_device_rounds *t = &x->rounds;
    const char *what = "partial sums of gradients";
    void *memory;
    ls_status st;

    t->place_elements = ls_round_up(ls_dp_place_elements(a), ALIGN);
    LS_TRY(st, ls_device_alloc(device, places_bytes(a), "gradients on their way", &memory), out);
    t->places = memory;
    if (!a->ordered)
        goto out;
    LS_TRY(st, open_tables(x), out);
    t->own = node_elements(a, false);
    t->tied = node_elements(a, true);
    if (stack_bytes(a, false) > 0) {
        LS_TRY(st, ls_device_alloc(device, stack_bytes(a, false), what, &memory), out);
        t->stacks = memory;
    }
    if (stack_bytes(a, true) > 0) {
        LS_TRY(st, ls_device_alloc(device, stack_bytes(a, true), what, &memory), out);
        t->tied_stacks = memory;
    }
out:
    return st;
}

void ls_dp_device_close_rounds(ls_dp_device *x)
{
    ls_device *device = ls_stream_device(x->args.stream);
    ls_dp_device_rounds *t = &x->rounds;

    ls_device_free(device, t->places);
    ls_device_free(device, t->stacks);
    ls_device_free(device, t->tied_stacks);
    ls_mem_free(t->before);
    ls_mem_free(t->heights);
    ls_mem_free(t->first_slot);
    ls_mem_free(t->tops);
}

/* --- fast --------------------------------------------------------------------------------------- */

float *ls_dp_device_place(const ls_dp_device *x, int i)
{
    return x->rounds.places + i % LS_DP_AHEAD * x->rounds.place_elements;
}

static ls_status sum_fast(ls_dp_device *x, ls_dp_transfer transfer, int round, float *place,
                          float *own)
{
    const ls_dp_args *a = &x->args.dp->args;
    ls_mesh_part part = ls_dp_part(a, transfer.bucket);
    const float *arrived = place + part.first - transfer.first;
    float *sum = own + part.packed;
    const ls_coll coll = {.kind = LS_COLL_REDUCE_SCATTER,
                          .type = LS_F32,
                          .count = part.each * ls_device_comm_ranks(x->args.group),
                          .in = place,
                          .out = place};
    ls_status st = ls_device_comm_queue(x->args.group, x->args.stream, &coll);

    if (st != LS_OK)
        return st;
    if (part.count > 0 && round > 0)
        ls_dp_device_add(x, sum, arrived, sum, part.count);
    else if (part.count > 0)
        ls_stream_copy(x->args.stream, sum, arrived, part.count * (int64_t)sizeof *sum);
    return round == a->rounds - 1 ? ls_dp_device_share_part(x, transfer.bucket, sum) : LS_OK;
}

/* --- ordered ------------------------------------------------------------------------------------ */

/* A transfer at its owner. */
typedef struct arrival {
    const ls_dp_device *x;
    ls_dp_transfer transfer;
    int round;
    bool last; /* round */
    float *place;
    ls_dp_device_share_of own;
} arrival;

/* Where the node of a rank has arrived; the own one lies in the place. */
static float *node_at(const arrival *v, int rank)
{
    const ls_dp_device *x = v->x;

    if (rank == x->rank)
        return v->place + v->own.at - v->transfer.first;
    return x->area + (rank < x->rank ? rank : rank - 1) * x->stride;
}

static float *slot_of(const arrival *v, int rank, int depth)
{
    const ls_dp_device_rounds *t = &v->x->rounds;
    int64_t slot = t->first_slot[rank] + depth;

    if (v->transfer.tied)
        return t->tied_stacks + slot * t->tied +
               ls_dp_tied_before(&v->x->args.dp->args, v->transfer.bucket);
    return t->stacks + slot * t->own + t->before[v->transfer.bucket];
}

/* To each owner its piece of this rank's node; from each rank the own piece of its node. */
static ls_status exchange(ls_dp_device *x, const arrival *v)
{
    bool brings = merges_of(x, v->round, x->rank) >= 0;
    ls_status st = LS_OK, end;

    LS_TRY(st, ls_device_comm_begin(x->args.dc), failed);
    for (int k = 1; k < x->ranks; k++) {
        int to = (x->rank + k) % x->ranks, from = (x->rank + x->ranks - k) % x->ranks;
        ls_dp_device_share_of theirs =
            ls_dp_device_share_at(x, v->transfer.bucket, v->transfer.tied, to);
        if (brings)
            LS_TRY(st,
                   ls_dp_device_message(x, true, to, v->place + theirs.at - v->transfer.first,
                                        theirs.count),
                   out);
        if (merges_of(x, v->round, from) >= 0)
            LS_TRY(st, ls_dp_device_message(x, false, from, node_at(v, from), v->own.count), out);
    }
out:
    end = ls_device_comm_end(x->args.dc);
    st = st != LS_OK ? st : end;
failed:
    return st;
}

/* A node goes on the stack of its rank; in the last round it may stay where it is. */
static void push(const arrival *v, int rank, int merges)
{
    int height = height_of(v->x, v->round, rank);
    float *node = node_at(v, rank), *at = node;

    for (; merges > 0; merges--) {
        float *below = slot_of(v, rank, --height);
        ls_dp_device_add(v->x, below, at, below, v->own.count);
        at = below;
    }
    v->x->rounds.tops[rank] = v->last ? at : NULL;
    if (at == node && !v->last)
        ls_stream_copy(v->x->args.stream, slot_of(v, rank, height), node,
                       v->own.count * (int64_t)sizeof *node);
}

/* A root of a rank: on its stack, below what came in the last round. */
static float *root_of(const ls_dp_device *x, const void *context, const ls_ordered_step *step)
{
    const arrival *v = context;
    int merges = merges_of(x, v->round, step->rank);
    int height = height_of(x, v->round, step->rank) - (merges > 0 ? merges : 0);

    return step->root < height ? slot_of(v, step->rank, step->root) : x->rounds.tops[step->rank];
}

static ls_status sum_ordered(ls_dp_device *x, const arrival *v, float *own)
{
    const ls_dp_args *a = &x->args.dp->args;
    int bucket = v->transfer.bucket;
    ls_mesh_part part = ls_dp_part(a, bucket), piece = ls_dp_piece(a, bucket);
    bool tied = v->transfer.tied;
    float *sum = tied ? x->tied_sum + ls_dp_tied_before(a, bucket)
                      : own + part.packed + piece.first - part.first;
    ls_status st = exchange(x, v);

    if (st != LS_OK)
        return st;
    for (int r = 0; r < x->ranks && v->own.count > 0; r++)
        if (merges_of(x, v->round, r) >= 0)
            push(v, r, merges_of(x, v->round, r));
    if (!v->last)
        return LS_OK;
    if (v->own.count > 0) {
        ls_dp_device_combine(x, root_of, v, v->own.count, sum);
        if (!tied && x->tied_sum)
            ls_dp_device_tie(x, bucket, sum);
    }
    return tied ? LS_OK : ls_dp_device_share_part(x, bucket, own + part.packed);
}

ls_status ls_dp_device_sum_transfer(ls_dp_device *x, int i, int round, float *own)
{
    const ls_dp_args *a = &x->args.dp->args;
    ls_dp_transfer transfer = ls_dp_transfer_at(x->args.dp, i);
    float *place = ls_dp_device_place(x, i);

    if (!a->ordered)
        return sum_fast(x, transfer, round, place, own);
    return sum_ordered(
        x,
        &(arrival){.x = x,
                   .transfer = transfer,
                   .round = round,
                   .last = round == a->rounds - 1,
                   .place = place,
                   .own = ls_dp_device_share_at(x, transfer.bucket, transfer.tied, x->rank)},
        own);
}

/* --- weights ------------------------------------------------------------------------------------ */

ls_status ls_dp_device_fetch(ls_dp_device *x, int bucket, ls_dtype type, const void *own,
                             void *whole)
{
    ls_mesh_part part = ls_dp_part(&x->args.dp->args, bucket),
                 all = ls_dp_bucket(x->args.dp, bucket);
    int64_t size = ls_dtype_bytes(type);

    return ls_device_comm_queue(x->args.group, x->args.stream,
                                &(ls_coll){.kind = LS_COLL_ALL_GATHER,
                                           .type = type,
                                           .count = part.each * ls_device_comm_ranks(x->args.group),
                                           .in = (const char *)own + part.packed * size,
                                           .out = (char *)whole + all.first * size});
}
