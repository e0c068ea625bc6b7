/* dp_device.c -- sums of whole gradients on the card; dp_device.h has the drawing.
 *
 * Everything is in the order of one stream, so one area for the roots of other ranks does for all
 * buckets: a bucket's roots arrive when those of the one before have been added.
 *
 *     area     | root of rank 0 | root of rank 2 | ...      each as long as the longest own part
 *
 * The second gradient of a tied embedding is complete first. Its sums are made first and kept, and
 * each is added to the sum of its bucket. It lies behind the trained elements, where the padding of
 * the last bucket is gathered to: by then it has been sent. */
#include "parallel/dp_device_impl.h"

#include <string.h>
#include "base/mem.h"

enum { ALIGN = 64 /* elements */ };

bool ls_dp_device_can(const ls_dp_args *args)
{
    return args->codec.kind == LS_CODEC_NONE && args->mesh.servers == 0 && !args->mesh.independent;
}

/* --- sizes -------------------------------------------------------------------------------------- */

static int roots_of(ls_ordered_run run, int64_t leaves)
{
    ls_ordered_node nodes[LS_ORDERED_ROOTS];

    return ls_ordered_roots(run, leaves, nodes);
}

/* Roots of all ranks, at most; of ranks that bring a node in a round, one each. */
static int64_t all_roots(const ls_dp_args *a)
{
    ls_ordered_run runs[LS_MESH_RANKS];
    int64_t n = 0;

    if (ls_dp_parted(a))
        return ls_mesh_ranks(&a->mesh);
    if (a->roots)
        return a->roots;
    ls_mesh_split(&a->mesh, a->leaves, runs);
    for (int r = 0; r < ls_mesh_ranks(&a->mesh); r++)
        n += roots_of(runs[r], a->leaves);
    return n;
}

static int64_t stride_of(const ls_dp_args *a)
{
    return ls_round_up(ls_mesh_piece_of(&a->mesh, a->trained, 0, 0).each, ALIGN);
}

static int64_t area_bytes(const ls_dp_args *a)
{
    return ls_max_i64(1, all_roots(a)) * stride_of(a) * (int64_t)sizeof(float);
}

static int64_t tied_bytes(const ls_dp_args *a)
{
    int buckets = ls_mesh_buckets(&a->mesh, a->trained);

    return ls_dp_has_tied(a) ? ls_max_i64(1, ls_dp_tied_before(a, buckets)) * (int64_t)sizeof(float)
                             : 0;
}

int64_t ls_dp_device_bytes(const ls_dp_args *args)
{
    int64_t bytes = ls_dp_parted(args) ? ls_dp_device_rounds_bytes(args) : 0;

    if (args->ordered)
        bytes += ls_round_up(area_bytes(args), 4096) + ls_round_up(tied_bytes(args), 4096);
    return bytes;
}

/* --- opening ------------------------------------------------------------------------------------ */

static ls_ordered_run run_of(const ls_dp *dp, int rank)
{
    return dp->runs[ls_dp_piece_rank(&dp->args.mesh, rank)];
}

/* The plan for the leaves that ranks have now. */
static ls_status set_plan(ls_dp_device *x)
{
    const ls_dp *dp = x->args.dp;
    bool parted = ls_dp_parted(&dp->args);
    ls_status st;

    ls_ordered_plan_release(&x->plan);
    for (int r = 0; r < x->ranks; r++)
        x->runs[r] = run_of(dp, r);
    x->leaves = dp->args.leaves;
    LS_TRY(st, ls_ordered_plan_init(&x->plan, x->runs, x->ranks, x->leaves), out);
    if (x->plan.count > x->room && !parted)
        return ls_fail(LS_EUSAGE, "a sum with room for %lld roots cannot have %lld",
                       (long long)x->room, (long long)x->plan.count);
    for (int r = 0; r < x->ranks; r++)
        x->roots[r] = roots_of(x->runs[r], x->leaves);
out:
    return st;
}

static bool plan_holds(const ls_dp_device *x)
{
    const ls_dp *dp = x->args.dp;
    bool same = x->leaves == dp->args.leaves;

    for (int r = 0; r < x->ranks && same; r++) {
        ls_ordered_run run = run_of(dp, r);
        same = memcmp(&x->runs[r], &run, sizeof run) == 0;
    }
    return same;
}

static ls_status open_ordered(ls_dp_device *x)
{
    const ls_dp_args *a = &x->args.dp->args;
    ls_device *device = ls_stream_device(x->args.stream);
    void *memory;
    ls_status st;

    x->room = all_roots(a);
    x->stride = stride_of(a);
    LS_TRY(st, ls_device_alloc(device, area_bytes(a), "gradients of other ranks", &memory), out);
    x->area = memory;
    if (ls_dp_has_tied(a)) {
        LS_TRY(st, ls_device_alloc(device, tied_bytes(a), "sums of tied gradients", &memory), out);
        x->tied_sum = memory;
    }
    st = set_plan(x);
out:
    return st;
}

ls_status ls_dp_device_open(ls_dp_device **x_out, const ls_dp_device_args *args)
{
    const ls_dp_args *a = &args->dp->args;
    size_t n = (size_t)ls_mesh_ranks(&a->mesh);
    ls_dp_device *x = ls_mem_alloc(sizeof *x);
    ls_status st = LS_OK;

    if (!x)
        return ls_fail(LS_ENOMEM, "no memory for the exchange of gradients");
    *x = (ls_dp_device){.args = *args, .rank = a->mesh.rank, .ranks = (int)n};
    x->next = x->args.dp->buckets - 1;
    x->runs = ls_mem_array(n, sizeof *x->runs);
    x->roots = ls_mem_array(n, sizeof *x->roots);
    if (!x->runs || !x->roots)
        st = ls_fail(LS_ENOMEM, "no memory for the exchange of %d ranks", x->ranks);
    if (st == LS_OK && a->ordered)
        st = open_ordered(x);
    if (st == LS_OK && ls_dp_parted(a))
        st = ls_dp_device_open_rounds(x);
    if (st == LS_OK)
        *x_out = x;
    else
        ls_dp_device_close(x);
    return st;
}

void ls_dp_device_close(ls_dp_device *x)
{
    if (!x)
        return;
    ls_device *device = ls_stream_device(x->args.stream);
    ls_device_free(device, x->area);
    ls_device_free(device, x->tied_sum);
    ls_dp_device_close_rounds(x);
    ls_ordered_plan_release(&x->plan);
    ls_mem_free(x->runs);
    ls_mem_free(x->roots);
    ls_mem_free(x);
}

/* --- ordered ------------------------------------------------------------------------------------ */

ls_dp_device_share_of ls_dp_device_share_at(const ls_dp_device *x, int bucket, bool tied, int rank)
{
    const ls_dp_args *a = &x->args.dp->args;
    ls_mesh_part part = ls_mesh_piece_of(&a->mesh, a->trained, bucket, rank);

    if (!tied)
        return (ls_dp_device_share_of){.at = part.first, .count = part.count};
    return (ls_dp_device_share_of){.at = a->trained + ls_max_i64(0, part.first - a->tied_first),
                                   .count = ls_dp_tied_in(a, part)};
}

/* Where root i of another rank arrives: behind those of lower ranks. */
static float *place_of(const ls_dp_device *x, int rank, int i)
{
    int64_t n = i;

    for (int r = 0; r < rank; r++)
        n += r == x->rank ? 0 : x->roots[r];
    return x->area + n * x->stride;
}

ls_status ls_dp_device_message(ls_dp_device *x, bool sends, int peer, float *at, int64_t count)
{
    const ls_coll coll = {.kind = sends ? LS_COLL_SEND : LS_COLL_RECV,
                          .type = LS_F32,
                          .count = count,
                          .in = sends ? at : NULL,
                          .out = sends ? NULL : at,
                          .peer = peer};

    return count > 0 ? ls_device_comm_queue(x->args.dc, x->args.stream, &coll) : LS_OK;
}

/* To each owner its share of this rank's roots; from each rank its roots of the own share. */
static ls_status exchange(ls_dp_device *x, int bucket, bool tied, float *const *roots)
{
    int64_t own = ls_dp_device_share_at(x, bucket, tied, x->rank).count;
    ls_status st = LS_OK, end;

    LS_TRY(st, ls_device_comm_begin(x->args.dc), failed);
    for (int k = 1; k < x->ranks; k++) {
        int to = (x->rank + k) % x->ranks, from = (x->rank + x->ranks - k) % x->ranks;
        ls_dp_device_share_of theirs = ls_dp_device_share_at(x, bucket, tied, to);
        for (int i = 0; i < x->roots[x->rank]; i++)
            LS_TRY(st, ls_dp_device_message(x, true, to, roots[i] + theirs.at, theirs.count), out);
        for (int i = 0; i < x->roots[from]; i++)
            LS_TRY(st, ls_dp_device_message(x, false, from, place_of(x, from, i), own), out);
    }
out:
    end = ls_device_comm_end(x->args.dc);
    st = st != LS_OK ? st : end;
failed:
    return st;
}

void ls_dp_device_add(const ls_dp_device *x, const float *a, const float *b, float *out, int64_t n)
{
    x->args.kernels->add(x->args.stream, &(ls_add){.a = a, .b = b, .out = out, .n = n});
}

/* As comm/ordered_sum.c does. */
void ls_dp_device_combine(const ls_dp_device *x, ls_dp_device_node node, const void *context,
                          int64_t count, float *out)
{
    float *stack[LS_ORDERED_ROOTS];
    int top = 0;

    for (int64_t i = 0; i < x->plan.count; i++) {
        const ls_ordered_step *step = &x->plan.steps[i];
        stack[top++] = node(x, context, step);
        for (int m = 0; m < step->merges; m++) {
            bool last = i == x->plan.count - 1 && m == step->merges - 1;
            top--;
            ls_dp_device_add(x, stack[top - 1], stack[top], last ? out : stack[top - 1], count);
        }
    }
    if (x->plan.count == 1 && stack[0] != out)
        ls_stream_copy(x->args.stream, out, stack[0], count * (int64_t)sizeof *out);
}

/* The own part of this rank's roots, and where those of others arrive. */
typedef struct own_roots {
    float *const *roots;
    int64_t at;
} own_roots;

static float *root_of(const ls_dp_device *x, const void *context, const ls_ordered_step *step)
{
    const own_roots *own = context;

    return step->rank == x->rank ? own->roots[step->root] + own->at
                                 : place_of(x, step->rank, step->root);
}

static void combine(const ls_dp_device *x, ls_dp_device_share_of own, float *const *roots,
                    float *out)
{
    ls_dp_device_combine(x, root_of, &(own_roots){.roots = roots, .at = own.at}, own.count, out);
}

static ls_status sum_tied(ls_dp_device *x, int bucket, float *const *roots)
{
    const ls_dp_args *a = &x->args.dp->args;
    ls_dp_device_share_of own = ls_dp_device_share_at(x, bucket, true, x->rank);
    ls_status st = exchange(x, bucket, true, roots);

    if (st == LS_OK && own.count > 0)
        combine(x, own, roots, x->tied_sum + ls_dp_tied_before(a, bucket));
    return st;
}

void ls_dp_device_tie(const ls_dp_device *x, int bucket, float *sums)
{
    const ls_dp_args *a = &x->args.dp->args;
    int64_t n = ls_dp_device_share_at(x, bucket, true, x->rank).count;
    float *at = sums + ls_max_i64(0, a->tied_first - ls_dp_piece(a, bucket).first);

    if (n > 0)
        ls_dp_device_add(x, at, x->tied_sum + ls_dp_tied_before(a, bucket), at, n);
}

/* Fast: each has the sum of its group. Ordered: each has the sum of its piece. */
ls_status ls_dp_device_share_part(ls_dp_device *x, int bucket, float *part)
{
    const ls_dp_args *a = &x->args.dp->args;
    ls_mesh_part own = ls_dp_part(a, bucket);

    if (!x->args.shard_replicas || own.count == 0)
        return LS_OK;
    return ls_device_comm_queue(
        x->args.shard_replicas, x->args.stream,
        &(ls_coll){.kind = a->ordered ? LS_COLL_ALL_GATHER : LS_COLL_ALL_REDUCE,
                   .type = LS_F32,
                   .count = a->ordered ? own.each : own.count,
                   .in = part,
                   .out = part});
}

static ls_status gather_bucket(ls_dp_device *x, int bucket, float *whole)
{
    ls_mesh_part part = ls_dp_bucket(x->args.dp, bucket);
    int ranks = ls_device_comm_ranks(x->args.group);

    return ls_device_comm_queue(x->args.group, x->args.stream,
                                &(ls_coll){.kind = LS_COLL_ALL_GATHER,
                                           .type = LS_F32,
                                           .count = part.each * ranks,
                                           .in = whole + part.first,
                                           .out = whole + part.first});
}

static ls_status sum_ordered(ls_dp_device *x, int bucket, float *const *roots)
{
    const ls_dp_args *a = &x->args.dp->args;
    ls_dp_device_share_of own = ls_dp_device_share_at(x, bucket, false, x->rank);
    ls_status st = exchange(x, bucket, false, roots);

    if (st != LS_OK)
        return st;
    if (own.count > 0) {
        combine(x, own, roots, roots[0] + own.at);
        if (x->tied_sum)
            ls_dp_device_tie(x, bucket, roots[0] + own.at);
    }
    return a->mesh.zero == 0
               ? gather_bucket(x, bucket, roots[0])
               : ls_dp_device_share_part(x, bucket, roots[0] + ls_dp_own_first(a, bucket));
}

/* --- sums --------------------------------------------------------------------------------------- */

static ls_status sum_fast(ls_dp_device *x, int bucket, float *buffer)
{
    const ls_dp_args *a = &x->args.dp->args;
    ls_mesh_part part = ls_dp_bucket(x->args.dp, bucket);
    int ranks = ls_device_comm_ranks(x->args.group);
    bool all = a->mesh.zero == 0;
    const ls_coll coll = {.kind = all ? LS_COLL_ALL_REDUCE : LS_COLL_REDUCE_SCATTER,
                          .type = LS_F32,
                          .count = all ? part.count : part.each * ranks,
                          .in = buffer + part.first,
                          .out = buffer + part.first};
    ls_status st = ls_device_comm_queue(x->args.group, x->args.stream, &coll);

    return st == LS_OK ? ls_dp_device_share_part(x, bucket, buffer + ls_dp_own_first(a, bucket))
                       : st;
}

void ls_dp_device_begin(ls_dp_device *x)
{
    x->next = x->args.dp->buckets - 1;
    x->begun = false;
}

bool ls_dp_device_begun(const ls_dp_device *x)
{
    return x->begun;
}

bool ls_dp_device_has(const ls_dp_device *x, int64_t from)
{
    return x->next >= 0 && ls_dp_bucket(x->args.dp, x->next).first >= from;
}

ls_status ls_dp_device_sum_from(ls_dp_device *x, float *const *roots, int64_t from)
{
    const ls_dp_args *a = &x->args.dp->args;
    bool first = !x->begun;
    ls_status st = LS_OK;

    if (first && a->ordered && !plan_holds(x))
        LS_TRY(st, set_plan(x), out);
    x->begun = true;
    for (int b = x->next; b >= 0 && first && x->tied_sum; b--)
        if (ls_dp_tied_in(a, ls_dp_bucket(x->args.dp, b)) > 0)
            LS_TRY(st, sum_tied(x, b, roots), out);
    for (; ls_dp_device_has(x, from); x->next--)
        LS_TRY(st, a->ordered ? sum_ordered(x, x->next, roots) : sum_fast(x, x->next, roots[0]),
               out);
out:
    return st;
}

ls_status ls_dp_device_gather(ls_dp_device *x, float *whole)
{
    ls_status st = LS_OK;

    for (int b = 0; b < x->args.dp->buckets && st == LS_OK; b++)
        st = gather_bucket(x, b, whole);
    return st;
}

ls_status ls_dp_device_share(ls_dp_device *x, float *numbers, int64_t n)
{
    return ls_device_comm_queue(
        x->args.group, x->args.stream,
        &(ls_coll){
            .kind = LS_COLL_ALL_REDUCE, .type = LS_F32, .count = n, .in = numbers, .out = numbers});
}
