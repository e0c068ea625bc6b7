/* dp.c -- see dp.h. One collective after the other, by the thread that trains. */
#include "parallel/dp.h"

#include "base/mem.h"
#include "base/time.h"
#include "comm/ordered_sum.h"
#include "kernel/combine.h"

/* A dead rank is noticed at once; this is for one that is alive and does not come. */
enum { WAIT_S = 600 };

struct ls_dp {
    ls_dp_args args;
    ls_mesh_part own;
    ls_ordered_sum *sum;  /* of `trained` elements; NULL in fast mode */
    ls_ordered_sum *tied; /* of the second gradient; NULL: none */
    float *tied_sum;      /* owned: of the own part of it */
    int64_t *counts;      /* owned: [sum, tied, zeros][ranks] */
    ls_ordered_run *runs; /* owned: leaves of each rank */
};

static int64_t deadline(void)
{
    return ls_time_now_ns() + WAIT_S * LS_NS_PER_S;
}

/* Elements of the second gradient that belong to a shard. */
static int64_t tied_in(const ls_dp_args *args, ls_mesh_part shard)
{
    int64_t first = ls_max_i64(shard.first, args->tied_first);
    int64_t end = ls_min_i64(shard.first + shard.count, args->tied_first + args->tied_count);

    return ls_max_i64(0, end - first);
}

static bool has_tied(const ls_dp_args *args)
{
    return args->ordered && args->tied_count > 0;
}

int64_t ls_dp_elements(const ls_dp_args *args)
{
    ls_mesh_part shard = ls_mesh_part_of(&args->mesh, args->trained, args->mesh.rank);
    int64_t whole = args->trained + (has_tied(args) ? args->tied_count : 0);

    return ls_max_i64(whole, shard.each * ls_mesh_ranks(&args->mesh));
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

int64_t ls_dp_bytes(const ls_dp_args *args)
{
    ls_mesh_part own = ls_mesh_part_of(&args->mesh, args->trained, args->mesh.rank);
    int64_t tied = tied_in(args, own), bytes;

    if (!args->ordered)
        return 0;
    bytes = page_bytes(all_roots(args) * own.count);
    if (has_tied(args))
        bytes += page_bytes(all_roots(args) * tied) + page_bytes(tied);
    return bytes;
}

static ls_status open_sums(ls_dp *x)
{
    const ls_dp_args *a = &x->args;
    int n = a->mesh.ranks;
    ls_ordered_sum_args sum = {.comm = a->comm,
                               .runs = x->runs,
                               .leaves = a->leaves,
                               .counts = x->counts,
                               .type = LS_F32,
                               .roots = a->roots};
    void *memory;
    ls_status st;

    ls_mesh_split(&a->mesh, a->leaves, x->runs);
    for (int r = 0; r < n; r++) {
        ls_mesh_part shard = ls_mesh_part_of(&a->mesh, a->trained, r);
        x->counts[r] = shard.count;
        x->counts[n + r] = tied_in(a, shard);
        x->counts[2 * n + r] = 0;
    }
    if (!a->ordered)
        return LS_OK;
    LS_TRY(st, ls_ordered_sum_open(&x->sum, &sum), out);
    if (!has_tied(a))
        goto out;
    sum.counts = x->counts + n;
    LS_TRY(st, ls_ordered_sum_open(&x->tied, &sum), out);
    LS_TRY(st,
           ls_comm_alloc(a->comm, sum.counts[a->mesh.rank] * (int64_t)sizeof(float),
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
    *x = (ls_dp){.args = *args,
                 .own = ls_mesh_part_of(&args->mesh, args->trained, args->mesh.rank),
                 .counts = ls_mem_array(3 * n, sizeof *x->counts),
                 .runs = ls_mem_array(n, sizeof *x->runs)};
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
    ls_ordered_sum_close(x->sum);
    ls_ordered_sum_close(x->tied);
    ls_comm_free(x->args.comm, x->tied_sum);
    ls_mem_free(x->counts);
    ls_mem_free(x->runs);
    ls_mem_free(x);
}

const ls_dp_args *ls_dp_about(const ls_dp *dp)
{
    return &dp->args;
}

ls_mesh_part ls_dp_own(const ls_dp *dp)
{
    return dp->own;
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

/* The second gradient's sum, added to the first's. */
static ls_status tie(ls_dp *x, float *const *buffers)
{
    const ls_dp_args *a = &x->args;
    int64_t n = tied_in(a, x->own);
    void *behind[LS_ORDERED_ROOTS];
    ls_ordered_node nodes[LS_ORDERED_ROOTS];
    int roots = ls_ordered_roots(x->runs[a->mesh.rank], a->leaves, nodes);
    ls_status st;

    for (int i = 0; i < roots; i++)
        behind[i] = buffers[i] + a->trained;
    LS_TRY(st, ls_ordered_sum_run(x->tied, behind, x->tied_sum, deadline()), out);
    float *first = buffers[0] + ls_max_i64(x->own.first, a->tied_first);
    const void *const from[2] = {first, x->tied_sum};
    void *to = first;
    if (n > 0)
        ls_combine_run(&(ls_combine){.type = LS_F32,
                                     .op = LS_COMBINE_SUM,
                                     .from = from,
                                     .sources = 2,
                                     .to = &to,
                                     .targets = 1,
                                     .scale = 1},
                       n);
out:
    return st;
}

ls_status ls_dp_sum(ls_dp *dp, float *const *buffers)
{
    ls_dp *x = dp;
    void *roots[LS_ORDERED_ROOTS];
    ls_ordered_node nodes[LS_ORDERED_ROOTS];
    ls_status st;

    if (!x->args.ordered)
        return ls_comm_run(x->args.comm,
                           &(ls_coll){.kind = LS_COLL_REDUCE_SCATTER,
                                      .type = LS_F32,
                                      .count = x->own.each * x->args.mesh.ranks,
                                      .in = buffers[0],
                                      .out = buffers[0]},
                           deadline());
    int n = ls_ordered_roots(x->runs[x->args.mesh.rank], x->args.leaves, nodes);
    for (int i = 0; i < n; i++)
        roots[i] = buffers[i];
    LS_TRY(st, ls_ordered_sum_run(x->sum, roots, buffers[0] + x->own.first, deadline()), out);
    if (x->tied)
        LS_TRY(st, tie(x, buffers), out);
out:
    return st;
}

ls_status ls_dp_gather(ls_dp *dp, float *buffer)
{
    return ls_comm_run(dp->args.comm,
                       &(ls_coll){.kind = LS_COLL_ALL_GATHER,
                                  .type = LS_F32,
                                  .count = dp->own.each * dp->args.mesh.ranks,
                                  .in = buffer,
                                  .out = buffer},
                       deadline());
}

ls_status ls_dp_collect(ls_dp *dp, const float *part, float *whole)
{
    ls_dp *x = dp;

    return ls_comm_run(x->args.comm,
                       &(ls_coll){.kind = LS_COLL_GATHER,
                                  .type = LS_F32,
                                  .count = x->own.count,
                                  .in = part,
                                  .out = whole,
                                  .out_counts = x->counts},
                       deadline());
}

ls_status ls_dp_deal(ls_dp *dp, const float *whole, float *part)
{
    ls_dp *x = dp;
    int n = x->args.mesh.ranks;
    const int64_t *zeros = x->counts + 2 * n;
    int64_t *from = ls_mem_array((size_t)n, sizeof *from);
    ls_status st;

    if (!from)
        return ls_fail(LS_ENOMEM, "no memory for a table of %d ranks", n);
    for (int r = 0; r < n; r++)
        from[r] = r == 0 ? x->own.count : 0;
    st = ls_comm_run(x->args.comm,
                     &(ls_coll){.kind = LS_COLL_ALL_TO_ALL,
                                .type = LS_F32,
                                .in = whole,
                                .out = part,
                                .in_counts = x->args.mesh.rank == 0 ? x->counts : zeros,
                                .out_counts = from},
                     deadline());
    ls_mem_free(from);
    return st;
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
