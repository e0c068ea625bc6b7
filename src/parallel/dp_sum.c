/* dp_sum.c -- sums of gradients, bucket by bucket, and what brings parts back together.
 *
 *   sum_from   start the second gradient of all buckets, then the buckets from last to first
 *   sum_end    each in the order of its start: wait; combine; add the second gradient; with shard
 *              groups share the sum with the ranks that own the same part; ZeRO 0 ordered: start its
 *              gather
 *
 * Worked example: 4 leaves with gradients g0..g3, two ranks, one bucket of parts A and B.
 *
 *     fast       rank 0 has g0+g1, rank 1 has g2+g3. Reduce-scatter: rank 0 gets A of both, rank 1 B.
 *     ordered    rank 0's root is the node (g0 g1) of the tree, rank 1's (g2 g3). Each owner gets its
 *                part of all roots and adds them along the tree: ((g0+g1)+(g2+g3)), whoever ran what.
 *     3 ranks    rank 0 has the node (g0 g1), rank 1 g2, rank 2 g3: the owner adds (g2+g3) first. The
 *                bits are those of one process.
 *
 * Starts come in the same order on all ranks, as collectives must. Hence a gather starts only when
 * all sums were started, although its bucket may have arrived long before. Ranks that own the same
 * part have a communicator of their own: what arrived is shared with them at once, in the same order
 * on all of them. */
#include "parallel/dp_impl.h"

#include "kernel/combine.h"

/* Where the second gradient of a bucket begins. */
static int64_t tied_at(const ls_dp_args *a, ls_mesh_part bucket)
{
    return a->trained + ls_max_i64(0, bucket.first - a->tied_first);
}

/* Where the gradient of this call begins that a flight brings. */
static float *made_at(const ls_dp *x, float *const *buffers, ls_dp_flight f)
{
    ls_mesh_part bucket = ls_dp_bucket(x, f.bucket);

    if (x->places)
        return x->places[f.place];
    return buffers[0] + (f.tied ? tied_at(&x->args, bucket) : bucket.first);
}

/* What a group exchanges of a bucket: equal parts, padding included. */
static int64_t group_elements(const ls_dp *x, int bucket)
{
    return ls_dp_bucket(x, bucket).each * ls_mesh_shard_ranks(&x->args.mesh);
}

/* Where this rank's sum of a bucket goes: fast all of its part, ordered its piece of that. */
static float *own_sum(const ls_dp *x, float *const *buffers, int bucket)
{
    const ls_dp_args *a = &x->args;
    ls_mesh_part own = ls_dp_part(a, bucket), sum = a->ordered ? ls_dp_piece(a, bucket) : own;

    return ls_dp_parted(a) ? x->own + own.packed + sum.first - own.first : buffers[0] + sum.first;
}

/* The second gradient's sum, added to the first's, in a bucket; sums: of the own piece. */
static void tie(ls_dp *x, float *sums, int bucket)
{
    const ls_dp_args *a = &x->args;
    ls_mesh_part piece = ls_dp_piece(a, bucket);
    int64_t n = ls_dp_tied_in(a, piece);
    float *first = sums + ls_max_i64(0, a->tied_first - piece.first);

    ls_combine_two(LS_F32, first, x->tied_sum + ls_dp_tied_before(a, bucket), first, n);
}

/* The own part of a bucket, which is complete in this group (fast) or of which each owner has a
 * piece (ordered): the sum of all groups, on each of them. */
static ls_status start_share(ls_dp *x, float *const *buffers, int bucket)
{
    const ls_dp_args *a = &x->args;
    ls_mesh_part own = ls_dp_part(a, bucket);
    float *at = ls_dp_parted(a) ? x->own + own.packed : buffers[0] + ls_dp_own_first(a, bucket);
    ls_status st;

    if (!x->shard_replicas || own.count == 0)
        return LS_OK;
    st = ls_comm_start(x->shard_replicas,
                       &(ls_coll){.kind = a->ordered ? LS_COLL_ALL_GATHER : LS_COLL_ALL_REDUCE,
                                  .type = LS_F32,
                                  .count = a->ordered ? own.each : own.count,
                                  .in = at,
                                  .out = at},
                       &x->shares[bucket]);
    x->shared[bucket] = st == LS_OK;
    return st;
}

static ls_status end_shares(ls_dp *x)
{
    ls_status st = LS_OK;

    for (int b = x->buckets - 1; b >= 0 && st == LS_OK; b--) {
        if (!x->shared[b])
            continue;
        x->shared[b] = false;
        st = ls_comm_wait(x->shard_replicas, x->shares[b], ls_dp_deadline());
    }
    return st;
}

static ls_status wait_fast(ls_dp *x, ls_dp_flight f)
{
    return f.arrived ? LS_OK : ls_comm_wait(x->group, x->requests[f.bucket], ls_dp_deadline());
}

/* A bucket of this round has gone: keep the own part of its sum, drop its pages. */
static ls_status end_parted(ls_dp *x, ls_dp_flight f)
{
    const ls_dp_args *a = &x->args;
    ls_mesh_part own = ls_dp_part(a, f.bucket), bucket = ls_dp_bucket(x, f.bucket);
    float *sum = f.tied ? x->tied_sum + ls_dp_tied_before(a, f.bucket) : own_sum(x, NULL, f.bucket);
    const int64_t size = sizeof(float);
    ls_status st;

    if (a->ordered) {
        LS_TRY(st,
               ls_ordered_feed_end(f.tied ? x->tied_feed : x->feed, f.bucket, x->round, sum,
                                   ls_dp_deadline()),
               out);
    } else {
        float *const window[] = {x->window ? (float *)(void *)x->window->base : NULL};
        const float *arrived = made_at(x, window, f) + own.first - bucket.first;
        LS_TRY(st, wait_fast(x, f), out);
        if (x->round > 0)
            ls_combine_two(LS_F32, sum, arrived, sum, own.count);
        else
            memcpy(sum, arrived, (size_t)(own.count * size));
    }
    if (!x->window)
        goto out;
    if (f.tied)
        ls_window_drop(x->window, tied_at(a, bucket) * size, ls_dp_tied_in(a, bucket) * size);
    else /* a fast sum has touched padding too; in ordered mode the second gradient lies there */
        ls_window_drop(x->window, bucket.first * size,
                       (a->ordered ? bucket.count : group_elements(x, f.bucket)) * size);
out:
    return st;
}

static ls_status end_whole(ls_dp *x, float *const *buffers, ls_dp_flight f)
{
    const ls_dp_args *a = &x->args;
    float *out =
        f.tied ? x->tied_sum + ls_dp_tied_before(a, f.bucket) : own_sum(x, buffers, f.bucket);

    if (!a->ordered)
        return wait_fast(x, f);
    return ls_ordered_sum_end(f.tied ? x->tied : x->sum, f.bucket, out, ls_dp_deadline());
}

/* Wait for a sum that was started. Second gradients were started first, so that they are there when
 * the sum of a bucket is tied. */
static ls_status end_flight(ls_dp *x, float *const *buffers, ls_dp_flight f)
{
    const ls_dp_args *a = &x->args;
    bool complete = !f.tied && (!ls_dp_parted(a) || x->round == a->rounds - 1);
    ls_status st = ls_dp_parted(a) ? end_parted(x, f) : end_whole(x, buffers, f);

    if (st != LS_OK || !complete)
        return st;
    if (x->tied_sum)
        tie(x, own_sum(x, buffers, f.bucket), f.bucket);
    return start_share(x, buffers, f.bucket);
}

/* In ordered mode: the bucket's elements of all roots, or of the node of this round. */
static ls_status start_ordered(ls_dp *x, float *const *buffers, ls_dp_flight f)
{
    const ls_dp_args *a = &x->args;
    ls_mesh_part bucket = ls_dp_bucket(x, f.bucket);
    int64_t first = f.tied ? tied_at(a, bucket) : bucket.first;
    ls_ordered_node nodes[LS_ORDERED_ROOTS];
    void *roots[LS_ORDERED_ROOTS];

    if (ls_dp_parted(a))
        return ls_ordered_feed_start(f.tied ? x->tied_feed : x->feed, f.bucket, x->round,
                                     made_at(x, buffers, f));
    int n = ls_ordered_roots(x->runs[x->piece_rank], a->leaves, nodes);
    for (int i = 0; i < n; i++)
        roots[i] = buffers[i] + first;
    return ls_ordered_sum_start(f.tied ? x->tied : x->sum, f.bucket, roots);
}

/* In place, in the group; with ZeRO 0 all ranks get the whole sum at once. */
static ls_status start_fast(ls_dp *x, float *const *buffers, ls_dp_flight f)
{
    int b = f.bucket;
    ls_mesh_part bucket = ls_dp_bucket(x, b);
    bool all = x->args.mesh.zero == 0;
    float *at = made_at(x, buffers, f);

    return ls_comm_start(x->group,
                         &(ls_coll){.kind = all ? LS_COLL_ALL_REDUCE : LS_COLL_REDUCE_SCATTER,
                                    .type = LS_F32,
                                    .count = all ? bucket.count : group_elements(x, b),
                                    .in = at,
                                    .out = at},
                         &x->requests[b]);
}

/* Sums that may be on their way at a time: a communicator has LS_COMM_FLIGHTS of them. */
static int room(const ls_dp *x)
{
    if (ls_dp_parted(&x->args))
        return LS_DP_AHEAD;
    return LS_COMM_REQUESTS / (x->sum ? (int)ls_max_i64(1, ls_ordered_sum_requests(x->sum)) : 1);
}

/* With shard groups what has arrived in this one goes on to the others while backward goes on. */
static ls_status pass_on(ls_dp *x, float *const *buffers)
{
    ls_status st = LS_OK;
    bool goes_on = x->shard_replicas && !x->args.ordered;

    while (goes_on && x->ended < x->started) {
        ls_dp_flight *f = &x->up[x->ended];
        LS_TRY(st, ls_comm_test(x->group, x->requests[f->bucket], &f->arrived), out);
        goes_on = f->arrived;
        if (goes_on)
            LS_TRY(st, end_flight(x, buffers, x->up[x->ended++]), out);
    }
out:
    return st;
}

/* Start the sum of a bucket, when there is room for it. */
static ls_status start_flight(ls_dp *x, float *const *buffers, ls_dp_flight f)
{
    ls_status st = LS_OK;

    LS_TRY(st, pass_on(x, buffers), out);
    while (x->started - x->ended >= room(x) && x->ended < x->started)
        LS_TRY(st, end_flight(x, buffers, x->up[x->ended++]), out);
    f.place = x->started % LS_DP_AHEAD;
    x->up[x->started++] = f;
    st = x->args.ordered ? start_ordered(x, buffers, f)
         : x->compressed ? ls_compressed_start(x->compressed, f.bucket, buffers[0])
                         : start_fast(x, buffers, f);
out:
    return st;
}

void ls_dp_round(ls_dp *dp, int round, ls_window *window, float *own)
{
    dp->round = round;
    dp->window = window;
    dp->places = NULL;
    dp->own = own;
}

/* --- transfers --- */

int64_t ls_dp_place_elements(const ls_dp_args *args)
{
    return ls_mesh_bucket(&args->mesh, args->trained, 0).each * ls_mesh_shard_ranks(&args->mesh);
}

static int tied_transfers(const ls_dp *x)
{
    int n = 0;

    for (int b = 0; b < x->buckets && ls_dp_has_tied(&x->args); b++)
        n += ls_dp_tied_in(&x->args, ls_dp_bucket(x, b)) > 0;
    return n;
}

int ls_dp_transfers(const ls_dp *dp)
{
    return dp->buckets + tied_transfers(dp);
}

ls_dp_transfer ls_dp_transfer_at(const ls_dp *dp, int i)
{
    int tied = tied_transfers(dp), b = dp->buckets - 1;
    ls_mesh_part bucket;

    if (i >= tied) {
        bucket = ls_dp_bucket(dp, b - (i - tied));
        return (ls_dp_transfer){
            .bucket = b - (i - tied), .first = bucket.first, .count = bucket.count};
    }
    for (; ls_dp_tied_in(&dp->args, ls_dp_bucket(dp, b)) == 0 || i > 0; b--)
        i -= ls_dp_tied_in(&dp->args, ls_dp_bucket(dp, b)) > 0;
    bucket = ls_dp_bucket(dp, b);
    return (ls_dp_transfer){.bucket = b,
                            .first = tied_at(&dp->args, bucket),
                            .count = ls_dp_tied_in(&dp->args, bucket),
                            .tied = true};
}

void ls_dp_round_of_places(ls_dp *dp, int round, float *const *places, float *own)
{
    ls_dp_round(dp, round, NULL, own);
    dp->places = places;
}

ls_status ls_dp_start_transfer(ls_dp *dp)
{
    ls_dp_transfer transfer = ls_dp_transfer_at(dp, dp->started);

    return start_flight(dp, NULL, (ls_dp_flight){.bucket = transfer.bucket, .tied = transfer.tied});
}

ls_status ls_dp_end_transfers(ls_dp *x, int below)
{
    ls_status st = LS_OK;

    while (x->ended < below && x->ended < x->started && st == LS_OK)
        st = end_flight(x, NULL, x->up[x->ended++]);
    return st;
}

ls_status ls_dp_sum_from(ls_dp *x, float *const *buffers, int64_t from)
{
    bool first =
        x->started == 0; /* no bucket was started yet, and the second gradient is complete */
    ls_status st = LS_OK;

    for (int b = x->buckets - 1; b >= 0 && ls_dp_has_tied(&x->args) && first; b--)
        if (ls_dp_tied_in(&x->args, ls_dp_bucket(x, b)) > 0)
            LS_TRY(st, start_flight(x, buffers, (ls_dp_flight){.bucket = b, .tied = true}), out);
    for (; x->next >= 0 && ls_dp_bucket(x, x->next).first >= from; x->next--)
        LS_TRY(st, start_flight(x, buffers, (ls_dp_flight){.bucket = x->next}), out);
out:
    return st;
}

ls_status ls_dp_fetch_to(ls_dp *x, int bucket, ls_dtype type, const void *own, void *at)
{
    const ls_coll coll = {.kind = LS_COLL_ALL_GATHER,
                          .type = type,
                          .count = group_elements(x, bucket),
                          .in = own,
                          .out = at};

    return ls_comm_start(x->group, &coll, &x->fetches[bucket]);
}

ls_status ls_dp_gather_start(ls_dp *x, int bucket, float *buffer)
{
    float *at = buffer + ls_dp_bucket(x, bucket).first;

    return ls_dp_fetch_to(x, bucket, LS_F32, at, at);
}

static ls_status end_gathers(ls_dp *x)
{
    ls_status st = LS_OK;

    for (int b = x->buckets - 1; b >= 0 && st == LS_OK; b--)
        st = ls_dp_fetched(x, b);
    return st;
}

ls_status ls_dp_sum_end(ls_dp *x, float *const *buffers)
{
    const ls_dp_args *a = &x->args;
    bool spread = a->ordered && a->mesh.zero == 0;
    ls_status st = LS_OK;

    if (x->compressed)
        LS_TRY(st, ls_compressed_end(x->compressed, buffers[0], ls_dp_deadline()), out);
    for (int i = 0; i < x->started && !x->compressed; i++) {
        ls_dp_flight f = x->up[i];
        if (i >= x->ended)
            LS_TRY(st, end_flight(x, buffers, f), out);
        if (spread && !f.tied)
            LS_TRY(st, ls_dp_gather_start(x, f.bucket, buffers[0]), out);
    }
    LS_TRY(st, end_shares(x), out);
    if (spread)
        LS_TRY(st, end_gathers(x), out);
    if (ls_dp_parted(a) &&
        x->window) /* and what lies between buckets, so that all is zeros again */
        ls_window_drop(x->window, 0, x->window->bytes);
    x->started = x->ended = 0;
    x->next = x->buckets - 1;
out:
    return st;
}

ls_status ls_dp_gather(ls_dp *dp, float *buffer)
{
    ls_status st = LS_OK;

    for (int b = dp->buckets - 1; b >= 0; b--)
        LS_TRY(st, ls_dp_gather_start(dp, b, buffer), out);
    st = end_gathers(dp);
out:
    return st;
}

ls_status ls_dp_fetch(ls_dp *dp, int bucket, ls_dtype type, const void *own, void *whole)
{
    ls_mesh_part part = ls_dp_part(&dp->args, bucket), all = ls_dp_bucket(dp, bucket);
    int64_t size = ls_dtype_bytes(type);

    return ls_dp_fetch_to(dp, bucket, type, (const char *)own + part.packed * size,
                          (char *)whole + all.first * size);
}

ls_status ls_dp_fetched(ls_dp *dp, int bucket)
{
    return ls_comm_wait(dp->group, dp->fetches[bucket], ls_dp_deadline());
}
