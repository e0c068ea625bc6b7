/* dp.c -- see dp.h. All calls come from the thread that trains; what it started moves while it
 * computes, by the communicator's own thread.
 *
 *   sum_from   the second gradient of all buckets, then bucket after bucket, from the last to the
 * first sum_end    each in the order of its start: wait, combine, tie; zero 0 ordered: start its
 * gather
 *
 * Starts come in the same order on all ranks, as collectives must; hence a gather is started only
 * when all sums were, although its bucket may have arrived long before. */
#include "parallel/dp.h"

#include "base/mem.h"
#include "base/time.h"
#include "comm/ordered_feed.h"
#include "comm/ordered_sum.h"
#include "comm/tune.h"
#include "kernel/combine.h"
#include "kernel/kernel.h"
#include "parallel/narrow.h"

/* A dead rank is noticed at once; this is for one that is alive and does not come. */
enum { WAIT_S = 600 };

/* A bucket is not smaller than this, and so large that n of them take at most MORE times what the
 * whole gradient takes at once. */
enum { LEAST_BYTES = 1 << 20 };
static const double MORE = 1.1;

/* Buckets on their way at a time where ranks keep no whole gradient: each holds memory. */
enum { AHEAD = 4 };

/* A bucket's sum that is on its way. */
typedef struct flight {
    int bucket;
    bool tied; /* of the second gradient */
} flight;

struct ls_dp {
    ls_dp_args args;
    int buckets;
    ls_ordered_sum *sum;  /* of `trained` elements, a part for each bucket; NULL in fast mode */
    ls_ordered_sum *tied; /* of the second gradient; NULL: none */
    float *tied_sum;      /* owned: of the own part of it */
    ls_narrow *narrow;    /* sums in fast mode, where nodes squeeze them; NULL: they do not */
    int64_t *counts; /* owned: [buckets][ranks] elements, as many of the second gradient, zeros */
    ls_ordered_run *runs;                      /* owned: leaves of each rank */
    ls_comm_request requests[LS_MESH_BUCKETS]; /* of each bucket: fast sums, gathers */
    flight up[2 * LS_MESH_BUCKETS];            /* sums of this step, in the order of their start */
    int started, ended;                        /* of those */
    int next;                                  /* the next bucket to start; -1: all are */
    ls_comm_request fetches[LS_MESH_BUCKETS];
    ls_ordered_feed *feed, *tied_feed; /* instead of sum and tied with zero 2 and 3 */
    ls_window *window;                 /* borrowed, as own: of this round */
    float *own;
    int round;
};

/* Whether nobody keeps a whole gradient. */
static bool is_parted(const ls_dp_args *args)
{
    return args->mesh.zero >= 2;
}

static int64_t deadline(void)
{
    return ls_time_now_ns() + WAIT_S * LS_NS_PER_S;
}

/* Elements of the second gradient that belong to a part. */
static int64_t tied_in(const ls_dp_args *args, ls_mesh_part part)
{
    int64_t first = ls_max_i64(part.first, args->tied_first);
    int64_t end = ls_min_i64(part.first + part.count, args->tied_first + args->tied_count);

    return ls_max_i64(0, end - first);
}

static ls_mesh_part own_part(const ls_dp_args *args, int bucket)
{
    return ls_mesh_part_of(&args->mesh, args->trained, bucket, args->mesh.rank);
}

/* Elements of the second gradient that this rank owns, in the buckets before one. */
static int64_t tied_before(const ls_dp_args *args, int bucket)
{
    int64_t n = 0;

    for (int i = 0; i < bucket; i++)
        n += tied_in(args, own_part(args, i));
    return n;
}

static bool has_tied(const ls_dp_args *args)
{
    return args->ordered && args->tied_count > 0;
}

int64_t ls_dp_elements(const ls_dp_args *args)
{
    int last = ls_mesh_buckets(&args->mesh, args->trained) - 1;
    ls_mesh_part bucket = ls_mesh_bucket(&args->mesh, args->trained, last);
    int64_t whole = args->trained + (has_tied(args) ? args->tied_count : 0);

    return ls_max_i64(whole, bucket.first + bucket.each * ls_mesh_ranks(&args->mesh));
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

/* As the communicator gives them out: whole pages, at least one. */
static int64_t page_bytes(int64_t floats)
{
    return ls_round_up(ls_max_i64(1, floats * (int64_t)sizeof(float)), 4096);
}

static bool is_narrow(const ls_dp_args *args)
{
    return args->squeeze.kind != LS_SQUEEZE_NONE && !args->ordered && args->mesh.nodes > 1;
}

static ls_narrow_args narrow_args(const ls_dp_args *args)
{
    return (ls_narrow_args){.comm = args->comm,
                            .mesh = args->mesh,
                            .how = args->squeeze,
                            .trained = args->trained,
                            .spread = args->mesh.zero == 0};
}

int64_t ls_dp_own_elements(const ls_dp_args *args)
{
    int last = ls_mesh_buckets(&args->mesh, args->trained) - 1;
    ls_mesh_part own = own_part(args, last);

    return own.packed + own.each;
}

int64_t ls_dp_ahead_elements(const ls_dp_args *args)
{
    return AHEAD * ls_mesh_bucket(&args->mesh, args->trained, 0).each * ls_mesh_ranks(&args->mesh);
}

/* The most elements of the second gradient that this rank owns in a bucket. */
static int64_t most_tied(const ls_dp_args *args)
{
    int64_t most = 0;

    for (int b = 0; b < ls_mesh_buckets(&args->mesh, args->trained); b++)
        most = ls_max_i64(most, tied_in(args, own_part(args, b)));
    return most;
}

int64_t ls_dp_bytes(const ls_dp_args *args)
{
    int64_t own = ls_mesh_own(&args->mesh, args->trained, args->mesh.rank), bytes;
    int64_t tied = tied_before(args, ls_mesh_buckets(&args->mesh, args->trained));
    int ranks = ls_mesh_ranks(&args->mesh);

    if (is_narrow(args)) {
        ls_narrow_args narrow = narrow_args(args);
        return ls_narrow_bytes(&narrow);
    }
    if (!args->ordered)
        return 0;
    if (is_parted(args)) {
        bytes =
            ls_ordered_feed_bytes(own, own_part(args, 0).count, ranks, AHEAD, args->slots, LS_F32);
        if (has_tied(args))
            bytes += page_bytes(tied) + ls_ordered_feed_bytes(tied, most_tied(args), ranks, AHEAD,
                                                              args->slots, LS_F32);
        return bytes;
    }
    bytes = page_bytes(all_roots(args) * own);
    if (has_tied(args))
        bytes += page_bytes(all_roots(args) * tied) + page_bytes(tied);
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

static void fill_tables(ls_dp *x)
{
    const ls_dp_args *a = &x->args;
    int n = a->mesh.ranks;

    ls_mesh_split(&a->mesh, a->leaves, x->runs);
    for (int r = 0; r < n; r++)
        x->counts[2 * x->buckets * n + r] = 0;
    for (int b = 0; b < x->buckets; b++)
        for (int r = 0; r < n; r++) {
            ls_mesh_part part = ls_mesh_part_of(&a->mesh, a->trained, b, r);
            x->counts[b * n + r] = part.count;
            x->counts[(x->buckets + b) * n + r] = tied_in(a, part);
        }
}

/* The sum of gradients, or of second ones: from roots, or fed call by call. */
static ls_status open_sum(ls_dp *x, const int64_t *counts, ls_ordered_sum **sum,
                          ls_ordered_feed **feed)
{
    const ls_dp_args *a = &x->args;

    if (is_parted(a))
        return ls_ordered_feed_open(feed, &(ls_ordered_feed_args){.comm = a->comm,
                                                                  .runs = x->runs,
                                                                  .leaves = a->leaves,
                                                                  .counts = counts,
                                                                  .parts = x->buckets,
                                                                  .ahead = AHEAD,
                                                                  .rounds = a->rounds,
                                                                  .merges = a->merges,
                                                                  .type = LS_F32});
    return ls_ordered_sum_open(sum, &(ls_ordered_sum_args){.comm = a->comm,
                                                           .runs = x->runs,
                                                           .leaves = a->leaves,
                                                           .counts = counts,
                                                           .parts = x->buckets,
                                                           .type = LS_F32,
                                                           .roots = a->roots});
}

static ls_status open_sums(ls_dp *x)
{
    const ls_dp_args *a = &x->args;
    void *memory;
    ls_status st;

    fill_tables(x);
    if (is_narrow(a)) {
        ls_narrow_args narrow = narrow_args(a);
        return ls_narrow_open(&x->narrow, &narrow, deadline());
    }
    if (!a->ordered)
        return LS_OK;
    LS_TRY(st, open_sum(x, x->counts, &x->sum, &x->feed), out);
    if (!has_tied(a))
        goto out;
    LS_TRY(st, open_sum(x, x->counts + x->buckets * a->mesh.ranks, &x->tied, &x->tied_feed), out);
    LS_TRY(st,
           ls_comm_alloc(a->comm, tied_before(a, x->buckets) * (int64_t)sizeof(float),
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
    x->counts = ls_mem_array((2 * (size_t)x->buckets + 1) * n, sizeof *x->counts);
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

void ls_dp_close(ls_dp *dp)
{
    ls_dp *x = dp;

    if (!x)
        return;
    ls_narrow_close(x->narrow);
    ls_ordered_sum_close(x->sum);
    ls_ordered_sum_close(x->tied);
    ls_ordered_feed_close(x->feed);
    ls_ordered_feed_close(x->tied_feed);
    ls_comm_free(x->args.comm, x->tied_sum);
    ls_mem_free(x->counts);
    ls_mem_free(x->runs);
    ls_mem_free(x);
}

const ls_dp_args *ls_dp_about(const ls_dp *dp)
{
    return &dp->args;
}

int ls_dp_buckets(const ls_dp *dp)
{
    return dp->buckets;
}

ls_mesh_part ls_dp_own(const ls_dp *dp, int bucket)
{
    return own_part(&dp->args, bucket);
}

ls_status ls_dp_split(ls_dp *dp, const ls_ordered_run *runs, int64_t leaves)
{
    ls_dp *x = dp;
    ls_status st = LS_OK;

    memcpy(x->runs, runs, (size_t)x->args.mesh.ranks * sizeof *runs);
    x->args.leaves = leaves;
    if (x->sum)
        LS_TRY(st, ls_ordered_sum_split(x->sum, runs, leaves), out);
    if (x->tied)
        LS_TRY(st, ls_ordered_sum_split(x->tied, runs, leaves), out);
out:
    return st;
}

ls_status ls_dp_alloc(ls_dp *dp, int64_t bytes, const char *what, void **out)
{
    return ls_comm_alloc(dp->args.comm, bytes, what, out);
}

void ls_dp_free(ls_dp *dp, void *memory)
{
    ls_comm_free(dp->args.comm, memory);
}

/* --- sums ---------------------------------------------------------------------------------------
 */

static ls_mesh_part whole_bucket(const ls_dp *x, int bucket)
{
    return ls_mesh_bucket(&x->args.mesh, x->args.trained, bucket);
}

/* left + right -> left */
static void add(float *left, const float *right, int64_t count)
{
    const void *const from[2] = {left, right};
    void *to = left;

    if (count > 0)
        ls_combine_run(&(ls_combine){.type = LS_F32,
                                     .op = LS_COMBINE_SUM,
                                     .from = from,
                                     .sources = 2,
                                     .to = &to,
                                     .targets = 1,
                                     .scale = 1},
                       count);
}

/* Where the second gradient of a bucket begins. */
static int64_t tied_at(const ls_dp_args *a, ls_mesh_part bucket)
{
    return a->trained + ls_max_i64(0, bucket.first - a->tied_first);
}

/* A bucket of this round has gone: keep the own part of its sum, drop its pages. */
static ls_status end_parted(ls_dp *x, flight f)
{
    const ls_dp_args *a = &x->args;
    ls_mesh_part own = own_part(a, f.bucket), bucket = whole_bucket(x, f.bucket);
    float *sum = f.tied ? x->tied_sum + tied_before(a, f.bucket) : x->own + own.packed;
    const int64_t size = sizeof(float);
    ls_status st;

    if (a->ordered) {
        LS_TRY(st,
               ls_ordered_feed_end(f.tied ? x->tied_feed : x->feed, f.bucket, x->round, sum,
                                   deadline()),
               out);
    } else {
        const float *arrived = (float *)(void *)x->window->base + own.first;
        LS_TRY(st, ls_comm_wait(a->comm, x->requests[f.bucket], deadline()), out);
        if (x->round > 0)
            add(sum, arrived, own.count);
        else
            memcpy(sum, arrived, (size_t)(own.count * size));
    }
    if (f.tied)
        ls_window_drop(x->window, tied_at(a, bucket) * size, tied_in(a, bucket) * size);
    else
        ls_window_drop(x->window, bucket.first * size, bucket.count * size);
out:
    return st;
}

/* Wait for a sum that was started: in ordered mode the own part is complete then. */
static ls_status end_flight(ls_dp *x, float *const *buffers, flight f)
{
    const ls_dp_args *a = &x->args;
    float *out =
        f.tied ? x->tied_sum + tied_before(a, f.bucket) : buffers[0] + own_part(a, f.bucket).first;

    if (is_parted(a))
        return end_parted(x, f);
    if (!a->ordered)
        return ls_comm_wait(a->comm, x->requests[f.bucket], deadline());
    return ls_ordered_sum_end(f.tied ? x->tied : x->sum, f.bucket, out, deadline());
}

/* In ordered mode: the bucket's elements of all roots, or of the node of this round. */
static ls_status start_ordered(ls_dp *x, float *const *buffers, flight f)
{
    const ls_dp_args *a = &x->args;
    ls_mesh_part bucket = whole_bucket(x, f.bucket);
    int64_t first = f.tied ? tied_at(a, bucket) : bucket.first;
    ls_ordered_node nodes[LS_ORDERED_ROOTS];
    void *roots[LS_ORDERED_ROOTS];

    if (is_parted(a))
        return ls_ordered_feed_start(f.tied ? x->tied_feed : x->feed, f.bucket, x->round,
                                     buffers[0] + first);
    int n = ls_ordered_roots(x->runs[a->mesh.rank], a->leaves, nodes);
    for (int i = 0; i < n; i++)
        roots[i] = buffers[i] + first;
    return ls_ordered_sum_start(f.tied ? x->tied : x->sum, f.bucket, roots);
}

/* In place; what everybody needs as a whole is summed everywhere at once. */
static ls_status start_fast(ls_dp *x, float *buffer, int b)
{
    ls_mesh_part bucket = whole_bucket(x, b);
    bool all = x->args.mesh.zero == 0;
    float *at = buffer + bucket.first;

    return ls_comm_start(x->args.comm,
                         &(ls_coll){.kind = all ? LS_COLL_ALL_REDUCE : LS_COLL_REDUCE_SCATTER,
                                    .type = LS_F32,
                                    .count = all ? bucket.count : bucket.each * x->args.mesh.ranks,
                                    .in = at,
                                    .out = at},
                         &x->requests[b]);
}

/* Sums that may be on their way at a time: a communicator has so many flights. */
static int room(const ls_dp *x)
{
    if (is_parted(&x->args))
        return AHEAD;
    return LS_COMM_FLIGHTS / (x->sum ? (int)ls_max_i64(1, ls_ordered_sum_flights(x->sum)) : 1);
}

/* Start the sum of a bucket, when there is room for it. */
static ls_status start_flight(ls_dp *x, float *const *buffers, flight f)
{
    ls_status st = LS_OK;

    while (x->started - x->ended >= room(x) && x->ended < x->started)
        LS_TRY(st, end_flight(x, buffers, x->up[x->ended++]), out);
    x->up[x->started++] = f;
    st = x->args.ordered ? start_ordered(x, buffers, f)
         : x->narrow     ? ls_narrow_start(x->narrow, f.bucket, buffers[0])
                         : start_fast(x, buffers[0], f.bucket);
out:
    return st;
}

void ls_dp_round(ls_dp *dp, int round, ls_window *window, float *own)
{
    dp->round = round;
    dp->window = window;
    dp->own = own;
}

ls_status ls_dp_sum_from(ls_dp *dp, float *const *buffers, int64_t from)
{
    ls_dp *x = dp;
    bool first = x->started == 0; /* nothing was told yet, and the second gradient is complete */
    ls_status st = LS_OK;

    for (int b = x->buckets - 1; b >= 0 && has_tied(&x->args) && first; b--)
        if (tied_in(&x->args, whole_bucket(x, b)) > 0)
            LS_TRY(st, start_flight(x, buffers, (flight){.bucket = b, .tied = true}), out);
    for (; x->next >= 0 && whole_bucket(x, x->next).first >= from; x->next--)
        LS_TRY(st, start_flight(x, buffers, (flight){.bucket = x->next}), out);
out:
    return st;
}

/* The second gradient's sum, added to the first's, in a bucket; sums: of the own part. */
static void tie(ls_dp *x, float *sums, int bucket)
{
    const ls_dp_args *a = &x->args;
    ls_mesh_part own = own_part(a, bucket);
    int64_t n = tied_in(a, own);

    if (n > 0)
        add(sums + ls_max_i64(0, a->tied_first - own.first), x->tied_sum + tied_before(a, bucket),
            n);
}

static ls_status start_gather(ls_dp *x, float *buffer, int b)
{
    ls_mesh_part bucket = whole_bucket(x, b);

    return ls_comm_start(x->args.comm,
                         &(ls_coll){.kind = LS_COLL_ALL_GATHER,
                                    .type = LS_F32,
                                    .count = bucket.each * x->args.mesh.ranks,
                                    .in = buffer + bucket.first,
                                    .out = buffer + bucket.first},
                         &x->requests[b]);
}

static ls_status end_gathers(ls_dp *x)
{
    ls_status st = LS_OK;

    for (int b = x->buckets - 1; b >= 0; b--)
        LS_TRY(st, ls_comm_wait(x->args.comm, x->requests[b], deadline()), out);
out:
    return st;
}

ls_status ls_dp_sum_end(ls_dp *dp, float *const *buffers)
{
    ls_dp *x = dp;
    const ls_dp_args *a = &x->args;
    bool spread = a->ordered && a->mesh.zero == 0;
    bool complete = !is_parted(a) || x->round == a->rounds - 1;
    ls_status st = LS_OK;

    if (x->narrow)
        LS_TRY(st, ls_narrow_end(x->narrow, buffers[0], deadline()), out);
    for (int i = 0; i < x->started && !x->narrow; i++) {
        flight f = x->up[i];
        ls_mesh_part own = own_part(a, f.bucket);
        if (i >= x->ended)
            LS_TRY(st, end_flight(x, buffers, f), out);
        if (x->tied_sum && !f.tied && complete)
            tie(x, is_parted(a) ? x->own + own.packed : buffers[0] + own.first, f.bucket);
        if (spread && !f.tied)
            LS_TRY(st, start_gather(x, buffers[0], f.bucket), out);
    }
    if (spread)
        LS_TRY(st, end_gathers(x), out);
    if (is_parted(a)) /* and what lies between buckets, so that all is zeros again */
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
        LS_TRY(st, start_gather(dp, buffer, b), out);
    st = end_gathers(dp);
out:
    return st;
}

ls_status ls_dp_fetch(ls_dp *dp, int bucket, ls_dtype type, const void *own, void *whole)
{
    ls_mesh_part part = own_part(&dp->args, bucket), all = whole_bucket(dp, bucket);
    int64_t size = ls_dtype_bytes(type);

    return ls_comm_start(dp->args.comm,
                         &(ls_coll){.kind = LS_COLL_ALL_GATHER,
                                    .type = type,
                                    .count = all.each * dp->args.mesh.ranks,
                                    .in = (const char *)own + part.packed * size,
                                    .out = (char *)whole + all.first * size},
                         &dp->fetches[bucket]);
}

ls_status ls_dp_fetched(ls_dp *dp, int bucket)
{
    return ls_comm_wait(dp->args.comm, dp->fetches[bucket], deadline());
}

/* --- parts and wholes ---------------------------------------------------------------------------
 */

ls_status ls_dp_collect(ls_dp *dp, const float *part, float *whole)
{
    ls_dp *x = dp;
    ls_status st = LS_OK;

    for (int b = 0; b < x->buckets; b++) {
        ls_mesh_part own = own_part(&x->args, b);
        LS_TRY(st,
               ls_comm_run(x->args.comm,
                           &(ls_coll){.kind = LS_COLL_GATHER,
                                      .type = LS_F32,
                                      .count = own.count,
                                      .in = part + own.packed,
                                      .out = whole ? whole + whole_bucket(x, b).first : NULL,
                                      .out_counts = x->counts + b * x->args.mesh.ranks},
                           deadline()),
               out);
    }
out:
    return st;
}

ls_status ls_dp_deal(ls_dp *dp, const float *whole, float *part)
{
    ls_dp *x = dp;
    int n = x->args.mesh.ranks;
    const int64_t *zeros = x->counts + 2 * x->buckets * n;
    int64_t *from = ls_mem_array((size_t)n, sizeof *from);
    ls_status st = LS_OK;

    if (!from)
        return ls_fail(LS_ENOMEM, "no memory for a table of %d ranks", n);
    for (int b = 0; b < x->buckets; b++) {
        ls_mesh_part own = own_part(&x->args, b);
        for (int r = 0; r < n; r++)
            from[r] = r == 0 ? own.count : 0;
        LS_TRY(
            st,
            ls_comm_run(x->args.comm,
                        &(ls_coll){.kind = LS_COLL_ALL_TO_ALL,
                                   .type = LS_F32,
                                   .in = whole ? whole + whole_bucket(x, b).first : NULL,
                                   .out = part + own.packed,
                                   .in_counts = x->args.mesh.rank == 0 ? x->counts + b * n : zeros,
                                   .out_counts = from},
                        deadline()),
            out);
    }
out:
    ls_mem_free(from);
    return st;
}

int ls_dp_debts(const ls_dp_args *args)
{
    ls_narrow_args narrow = narrow_args(args);

    return is_narrow(args) ? ls_narrow_vectors(&narrow) : 0;
}

ls_status ls_dp_collect_debts(ls_dp *dp, float *debts)
{
    return ls_narrow_collect(dp->narrow, debts, deadline());
}

ls_status ls_dp_deal_debts(ls_dp *dp, float *debts)
{
    ls_narrow_args narrow = narrow_args(&dp->args);

    if (debts)
        ls_narrow_settle(&narrow, debts);
    return ls_narrow_deal(dp->narrow, debts, deadline());
}

ls_status ls_dp_numbers(ls_dp *dp, ls_dtype type, void *numbers, int64_t n)
{
    return ls_comm_run(
        dp->args.comm,
        &(ls_coll){
            .kind = LS_COLL_ALL_REDUCE, .type = type, .count = n, .in = numbers, .out = numbers},
        deadline());
}

ls_status ls_dp_tell(ls_dp *dp, int from, void *bytes, int64_t n)
{
    return ls_comm_run(dp->args.comm,
                       &(ls_coll){.kind = LS_COLL_BROADCAST,
                                  .type = LS_U8,
                                  .count = n,
                                  .in = bytes,
                                  .out = bytes,
                                  .peer = from},
                       deadline());
}
