/* dp.c -- the exchange of data-parallel ranks: how it is opened, and everything but a step's sums.
 *
 * One thread trains and makes all calls here. A communicator's own thread moves what was started,
 * while the trainer computes. What a bucket goes through in a step, ZeRO 1, two ranks, fast mode:
 *
 *     backward      bucket 2 complete      bucket 1            bucket 0
 *     dp_sum.c      reduce-scatter 2 ...   ... 1 ...           ... 0     each owner has its sums
 *     update                                                   own parts of 0 1 2
 *     here          gather 0, 1, 2: the next forward waits for a bucket when it reads it
 *
 * A bucket is small enough to start early, and large enough that the latency of its messages does
 * not count: ls_dp_bucket_blocks() takes the smallest size with which the predicted time of all of
 * them is at most a tenth above that of one message (comm/cost.h). */
#include "parallel/dp_impl.h"

#include "base/mem.h"
#include "comm/tune.h"
#include "kernel/kernel.h"
#include "parallel/shared_pages.h"
#include "parallel/blocking.h"

/* A bucket is not smaller than this, and so large that n of them take at most MORE times what the
 * whole gradient takes at once. */
enum { LEAST_BYTES = 1 << 20 };
static const double MORE = 1.1;

int64_t ls_dp_tied_in(const ls_dp_args *args, ls_mesh_part part)
{
    int64_t first = ls_max_i64(part.first, args->tied_first);
    int64_t end = ls_min_i64(part.first + part.count, args->tied_first + args->tied_count);

    return ls_max_i64(0, end - first);
}

int64_t ls_dp_tied_before(const ls_dp_args *args, int bucket)
{
    int64_t n = 0;

    for (int i = 0; i < bucket; i++)
        n += ls_dp_tied_in(args, ls_dp_piece(args, i));
    return n;
}

int64_t ls_dp_elements(const ls_dp_args *args)
{
    int last = ls_mesh_buckets(&args->mesh, args->trained) - 1;
    ls_mesh_part bucket = ls_mesh_bucket(&args->mesh, args->trained, last);
    int64_t whole = args->trained + (ls_dp_has_tied(args) ? args->tied_count : 0);

    return ls_max_i64(whole, bucket.first + bucket.each * ls_mesh_shard_ranks(&args->mesh));
}

/* Roots of all ranks. */
static int64_t all_roots(const ls_dp_args *args)
{
    ls_ordered_node nodes[LS_ORDERED_ROOTS];
    ls_ordered_run runs[LS_MESH_RANKS];
    int64_t n = 0;

    if (args->roots)
        return args->roots;
    ls_mesh_split(&args->mesh, args->leaves, runs);
    for (int r = 0; r < ls_mesh_ranks(&args->mesh); r++)
        n += ls_ordered_roots(runs[r], args->leaves, nodes);
    return n;
}

static bool is_compressed(const ls_dp_args *args)
{
    return args->codec.kind != LS_CODEC_NONE && !args->ordered && args->mesh.nodes > 1;
}

static ls_compressed_args compressed_args(const ls_dp_args *args)
{
    return (ls_compressed_args){.comm = args->comm,
                                .mesh = args->mesh,
                                .how = args->codec,
                                .trained = args->trained,
                                .spread = args->mesh.zero == 0};
}

int64_t ls_dp_own_elements(const ls_dp_args *args)
{
    int last = ls_mesh_buckets(&args->mesh, args->trained) - 1;
    ls_mesh_part own = ls_dp_part(args, last);

    return own.packed + own.each;
}

int64_t ls_dp_sum_elements(const ls_dp_args *args)
{
    return ls_mesh_shard_groups(&args->mesh) > 1
               ? ls_dp_own_elements(args) /* shard replicas exchange padding too */
               : ls_mesh_own(&args->mesh, args->trained, args->mesh.rank);
}

int64_t ls_dp_ahead_elements(const ls_dp_args *args)
{
    return LS_DP_AHEAD * ls_mesh_bucket(&args->mesh, args->trained, 0).each *
           ls_mesh_shard_ranks(&args->mesh);
}

/* Elements that this rank sums in ordered mode. */
static int64_t own_pieces(const ls_dp_args *args)
{
    int64_t n = 0;

    for (int b = 0; b < ls_mesh_buckets(&args->mesh, args->trained); b++)
        n += ls_dp_piece(args, b).count;
    return n;
}

/* The most elements of the second gradient that this rank sums in a bucket. */
static int64_t most_tied(const ls_dp_args *args)
{
    int64_t most = 0;

    for (int b = 0; b < ls_mesh_buckets(&args->mesh, args->trained); b++)
        most = ls_max_i64(most, ls_dp_tied_in(args, ls_dp_piece(args, b)));
    return most;
}

int64_t ls_dp_bytes(const ls_dp_args *args)
{
    const int64_t size = sizeof(float), own = own_pieces(args);
    int64_t bytes;
    int64_t tied = ls_dp_tied_before(args, ls_mesh_buckets(&args->mesh, args->trained));
    int ranks = ls_mesh_ranks(&args->mesh);

    if (is_compressed(args)) {
        ls_compressed_args compressed = compressed_args(args);
        return ls_compressed_bytes(&compressed);
    }
    if (!args->ordered || args->by_device)
        return 0;
    if (ls_dp_parted(args)) {
        bytes = ls_ordered_feed_bytes(own, ls_dp_piece(args, 0).count, ranks, LS_DP_AHEAD,
                                      args->slots, LS_F32);
        if (ls_dp_has_tied(args))
            bytes += ls_shared_pages(tied * size) + ls_ordered_feed_bytes(tied, most_tied(args),
                                                                          ranks, LS_DP_AHEAD,
                                                                          args->slots, LS_F32);
        return bytes;
    }
    bytes = ls_shared_pages((all_roots(args) * own) * size);
    if (ls_dp_has_tied(args))
        bytes += ls_shared_pages((all_roots(args) * tied) * size) + ls_shared_pages(tied * size);
    return bytes;
}

/* The link that decides, as all ranks agreed on it; inside a node nothing is measured, and a
 * collective costs some microseconds. */
static double exchange_ns(const ls_comm *comm, int64_t count)
{
    const ls_coll coll = {.kind = LS_COLL_REDUCE_SCATTER, .type = LS_F32, .count = count};
    ls_cost_choice choice;

    ls_tune_choose(comm, &coll, false, &choice);
    return choice.best < 0 ? 0 : choice.rows[choice.best].time_ns;
}

int64_t ls_dp_bucket_blocks(const ls_comm *comm, const ls_mesh *mesh, int64_t trained,
                            int64_t bytes)
{
    int64_t unit = ls_mesh_ranks(mesh) * LS_NORM_BLOCK;
    double whole = exchange_ns(comm, ls_round_up(trained, unit));
    int64_t blocks = ls_mesh_bucket_blocks(mesh, LEAST_BYTES);

    if (bytes != LS_RUN_AUTO)
        return ls_mesh_bucket_blocks(mesh, bytes);
    while (blocks * unit < trained) {
        double n = (double)trained / (double)(blocks * unit);
        if (n * exchange_ns(comm, blocks * unit) <= MORE * whole)
            break;
        blocks *= 2;
    }
    return blocks;
}

/* Leaves of each rank, by piece ranks. */
static void set_runs(ls_dp *x, const ls_ordered_run *runs)
{
    for (int r = 0; r < x->args.mesh.ranks; r++)
        x->runs[ls_dp_piece_rank(&x->args.mesh, r)] = runs[r];
}

static void fill_tables(ls_dp *x)
{
    const ls_dp_args *a = &x->args;
    int n = a->mesh.ranks, shard = ls_mesh_shard_ranks(&a->mesh);
    int64_t *group = x->counts + 2 * x->buckets * n;
    ls_ordered_run runs[LS_MESH_RANKS];

    ls_mesh_split(&a->mesh, a->leaves, runs);
    set_runs(x, runs);
    for (int r = 0; r < shard; r++)
        group[x->buckets * shard + r] = 0;
    for (int b = 0; b < x->buckets; b++)
        for (int r = 0; r < n; r++) {
            ls_mesh_part piece = ls_mesh_piece_of(&a->mesh, a->trained, b, r);
            int at = ls_dp_piece_rank(&a->mesh, r);
            x->counts[b * n + at] = piece.count;
            x->counts[(x->buckets + b) * n + at] = ls_dp_tied_in(a, piece);
            if (ls_mesh_shard_group(&a->mesh, r) == 0)
                group[b * shard + ls_mesh_shard_rank(&a->mesh, r)] =
                    ls_mesh_part_of(&a->mesh, a->trained, b, r).count;
        }
}

/* The sum of gradients, or of second ones: from roots, or fed call by call. */
static ls_status open_sum(ls_dp *x, const int64_t *counts, ls_ordered_sum **sum,
                          ls_ordered_feed **feed)
{
    const ls_dp_args *a = &x->args;

    if (ls_dp_parted(a))
        return ls_ordered_feed_open(feed, &(ls_ordered_feed_args){.comm = x->piece_comm,
                                                                  .runs = x->runs,
                                                                  .leaves = a->leaves,
                                                                  .counts = counts,
                                                                  .parts = x->buckets,
                                                                  .ahead = LS_DP_AHEAD,
                                                                  .rounds = a->rounds,
                                                                  .merges = x->merges,
                                                                  .type = LS_F32});
    return ls_ordered_sum_open(sum, &(ls_ordered_sum_args){.comm = x->piece_comm,
                                                           .runs = x->runs,
                                                           .leaves = a->leaves,
                                                           .counts = counts,
                                                           .parts = x->buckets,
                                                           .type = LS_F32,
                                                           .roots = a->roots});
}

/* args.merges, by piece ranks. */
static ls_status turn_merges(ls_dp *x)
{
    const ls_dp_args *a = &x->args;
    int n = a->mesh.ranks;

    x->merges = ls_mem_array((size_t)a->rounds * (size_t)n + 1, sizeof *x->merges);
    if (!x->merges)
        return ls_fail(LS_ENOMEM, "no memory for a table of %d ranks", n);
    for (int k = 0; k < a->rounds && a->merges; k++)
        for (int r = 0; r < n; r++)
            x->merges[k * n + ls_dp_piece_rank(&a->mesh, r)] = a->merges[k * n + r];
    return LS_OK;
}

/* A communicator of ranks that have something in common, in the order of their pieces. */
static ls_status open_some(ls_dp *x, bool by_seat, bool by_group, ls_comm **comm_out)
{
    const ls_mesh *mesh = &x->args.mesh;
    int n = mesh->ranks, count = 0, me = mesh->rank;
    int *by_piece = ls_mem_array(2 * (size_t)n, sizeof *by_piece), *list = by_piece + n;
    ls_status st;

    if (!by_piece)
        return ls_fail(LS_ENOMEM, "no memory for a table of %d ranks", n);
    for (int r = 0; r < n; r++)
        by_piece[ls_dp_piece_rank(mesh, r)] = r;
    for (int i = 0; i < n; i++) {
        int r = by_piece[i];
        if ((!by_seat || ls_mesh_shard_rank(mesh, r) == ls_mesh_shard_rank(mesh, me)) &&
            (!by_group || ls_mesh_shard_group(mesh, r) == ls_mesh_shard_group(mesh, me)))
            list[count++] = r;
    }
    st = ls_comm_sub(x->args.comm, list, count, ls_dp_deadline(), comm_out);
    ls_mem_free(by_piece);
    return st;
}

static ls_status open_comms(ls_dp *x)
{
    ls_status st = LS_OK;

    x->piece_rank = ls_dp_piece_rank(&x->args.mesh, x->args.mesh.rank);
    if (ls_mesh_shard_groups(&x->args.mesh) == 1) {
        x->group = x->piece_comm = x->args.comm;
        return LS_OK;
    }
    LS_TRY(st, open_some(x, false, true, &x->group), out);
    LS_TRY(st, open_some(x, true, false, &x->shard_replicas), out);
    if (x->args.ordered)
        LS_TRY(st, open_some(x, false, false, &x->piece_comm), out);
out:
    return st;
}

static ls_status open_sums(ls_dp *x)
{
    const ls_dp_args *a = &x->args;
    void *memory;
    ls_status st;

    LS_TRY(st, open_comms(x), out);
    fill_tables(x);
    if (is_compressed(a)) {
        ls_compressed_args compressed = compressed_args(a);
        return ls_compressed_open(&x->compressed, &compressed, ls_dp_deadline());
    }
    if (!a->ordered)
        return LS_OK;
    LS_TRY(st, turn_merges(x), out);
    if (a->by_device)
        return LS_OK;
    LS_TRY(st, open_sum(x, x->counts, &x->sum, &x->feed), out);
    if (!ls_dp_has_tied(a))
        goto out;
    LS_TRY(st, open_sum(x, x->counts + x->buckets * a->mesh.ranks, &x->tied, &x->tied_feed), out);
    LS_TRY(st,
           ls_comm_alloc(a->comm, ls_dp_tied_before(a, x->buckets) * (int64_t)sizeof(float),
                         "sums of tied gradients", &memory),
           out);
    x->tied_sum = memory;
out:
    return st;
}

ls_status ls_dp_open(ls_dp **dp_out, const ls_dp_args *args)
{
    ls_dp *x = ls_mem_alloc(sizeof *x);
    size_t n = (size_t)args->mesh.ranks;
    ls_status st;

    if (!x)
        return ls_fail(LS_ENOMEM, "no memory for the exchange of gradients");
    *x = (ls_dp){.args = *args, .buckets = ls_mesh_buckets(&args->mesh, args->trained)};
    x->next = x->buckets - 1;
    x->counts = ls_mem_array((3 * (size_t)x->buckets + 1) * n, sizeof *x->counts);
    x->runs = ls_mem_array(n, sizeof *x->runs);
    st = x->counts && x->runs
             ? open_sums(x)
             : ls_fail(LS_ENOMEM, "no memory for the exchange of %d ranks", args->mesh.ranks);
    if (st == LS_OK)
        *dp_out = x;
    else
        ls_dp_close(x);
    return st;
}

void ls_dp_close(ls_dp *x)
{
    if (!x)
        return;
    ls_compressed_close(x->compressed);
    ls_ordered_sum_close(x->sum);
    ls_ordered_sum_close(x->tied);
    ls_ordered_feed_close(x->feed);
    ls_ordered_feed_close(x->tied_feed);
    ls_comm_free(x->args.comm, x->tied_sum);
    if (x->group != x->args.comm) {
        ls_comm_close(x->piece_comm);
        ls_comm_close(x->shard_replicas);
        ls_comm_close(x->group);
    }
    ls_mem_free(x->counts);
    ls_mem_free(x->runs);
    ls_mem_free(x->merges);
    ls_mem_free(x);
}

const ls_dp_args *ls_dp_args_of(const ls_dp *dp)
{
    return &dp->args;
}

ls_comm *ls_dp_group(const ls_dp *dp)
{
    return dp->group;
}

ls_comm *ls_dp_shard_replicas(const ls_dp *dp)
{
    return dp->shard_replicas;
}

int ls_dp_buckets(const ls_dp *dp)
{
    return dp->buckets;
}

ls_mesh_part ls_dp_own(const ls_dp *dp, int bucket)
{
    return ls_dp_part(&dp->args, bucket);
}

ls_status ls_dp_split(ls_dp *x, const ls_ordered_run *runs, int64_t leaves)
{
    ls_status st = LS_OK;

    set_runs(x, runs);
    x->args.leaves = leaves;
    if (x->sum)
        LS_TRY(st, ls_ordered_sum_split(x->sum, x->runs, leaves), out);
    if (x->tied)
        LS_TRY(st, ls_ordered_sum_split(x->tied, x->runs, leaves), out);
out:
    return st;
}

/* --- parts and wholes ---------------------------------------------------------------------------
 */

/* By the first group: the others have the same. */
ls_status ls_dp_collect(ls_dp *x, const float *part, float *whole)
{
    bool first = ls_mesh_shard_group(&x->args.mesh, x->args.mesh.rank) == 0;
    ls_status st = LS_OK;

    for (int b = 0; b < x->buckets && first && st == LS_OK; b++) {
        ls_mesh_part own = ls_dp_part(&x->args, b);
        st = ls_comm_run(x->group,
                         &(ls_coll){.kind = LS_COLL_GATHER,
                                    .type = LS_F32,
                                    .count = own.count,
                                    .in = part + own.packed,
                                    .out = whole ? whole + ls_dp_bucket(x, b).first : NULL,
                                    .out_counts = ls_dp_group_counts(x, b)},
                         ls_dp_deadline());
    }
    return st;
}

/* In the first group, to each its part. */
static ls_status deal_in_group(ls_dp *x, const float *whole, float *part)
{
    int n = ls_mesh_shard_ranks(&x->args.mesh);
    int64_t *from = ls_mem_array((size_t)n, sizeof *from);
    ls_status st = LS_OK;

    if (!from)
        return ls_fail(LS_ENOMEM, "no memory for a table of %d ranks", n);
    for (int b = 0; b < x->buckets; b++) {
        ls_mesh_part own = ls_dp_part(&x->args, b);
        for (int r = 0; r < n; r++)
            from[r] = r == 0 ? own.count : 0;
        LS_TRY(st,
               ls_comm_run(x->group,
                           &(ls_coll){.kind = LS_COLL_ALL_TO_ALL,
                                      .type = LS_F32,
                                      .in = whole ? whole + ls_dp_bucket(x, b).first : NULL,
                                      .out = part + own.packed,
                                      .in_counts = ls_dp_group_counts(
                                          x, x->args.mesh.rank == 0 ? b : x->buckets), /* zeros */
                                      .out_counts = from},
                           ls_dp_deadline()),
               out);
    }
out:
    ls_mem_free(from);
    return st;
}

ls_status ls_dp_scatter(ls_dp *dp, const float *whole, float *part)
{
    const ls_mesh *mesh = &dp->args.mesh;
    int64_t own = ls_mesh_own(mesh, dp->args.trained, mesh->rank);
    ls_status st = LS_OK;

    if (ls_mesh_shard_group(mesh, mesh->rank) == 0)
        LS_TRY(st, deal_in_group(dp, whole, part), out);
    if (dp->shard_replicas && own > 0)
        st = ls_blocking_broadcast(dp->shard_replicas, 0, part, own * (int64_t)sizeof *part,
                                   ls_dp_deadline());
out:
    return st;
}

int ls_dp_residuals(const ls_dp_args *args)
{
    ls_compressed_args compressed = compressed_args(args);

    return is_compressed(args) ? ls_compressed_vectors(&compressed) : 0;
}

ls_status ls_dp_collect_residuals(ls_dp *dp, float *feedbacks)
{
    return ls_compressed_collect(dp->compressed, feedbacks, ls_dp_deadline());
}

ls_status ls_dp_scatter_residuals(ls_dp *dp, float *feedbacks)
{
    ls_compressed_args compressed = compressed_args(&dp->args);

    if (feedbacks)
        ls_compressed_settle(&compressed, feedbacks);
    return ls_compressed_scatter(dp->compressed, feedbacks, ls_dp_deadline());
}

ls_status ls_dp_sum_numbers(ls_dp *dp, ls_dtype type, void *numbers, int64_t n)
{
    return ls_blocking_reduce(dp->args.comm, LS_COLL_SUM, type, numbers, n, ls_dp_deadline());
}

ls_status ls_dp_sum_in_group(ls_dp *dp, float *numbers, int64_t n)
{
    return ls_blocking_reduce(dp->group, LS_COLL_SUM, LS_F32, numbers, n, ls_dp_deadline());
}

ls_status ls_dp_broadcast(ls_dp *dp, int from, void *bytes, int64_t n)
{
    return ls_blocking_broadcast(dp->args.comm, from, bytes, n, ls_dp_deadline());
}
