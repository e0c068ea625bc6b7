/* test_dp_device.c -- sums of gradients by collectives of device memory: the bits of one process in
 * ordered mode, whole gradients and call by call, with shard groups; weights from their owners; the
 * memory that is taken. On the CPU, whose provider is the host's. */
#include "base/mem.h"
#include "comm/ordered_feed.h"
#include "comm/worlds.h"
#include "kernel/kernel.h"
#include "parallel/dp_device.h"

enum { SMALL = 2 * LS_NORM_BLOCK + 700, MANY = 7 * LS_NORM_BLOCK + 701, LEAVES = 7 };

static const struct {
    const char *nodes;
    int shard; /* ranks of a shard group; 0: all */
} shapes[] = {{"2", 0}, {"3", 0}, {"5", 0}, {"2+1", 0}, {"4", 2}, {"3+3", 3}};

static int shard; /* of the world that runs */

/* tied: the second gradient reaches over the border between two ranks' parts. */
static const struct {
    bool ordered;
    int64_t leaves, trained, tied_first, tied_count;
    int64_t bucket;
    int zero;
} cases[] = {
    {true, LEAVES, MANY, LS_NORM_BLOCK / 2, 4 * LS_NORM_BLOCK, 1, 3},
    {true, 2, 500, 10, 300, 0, 2}, /* ranks without leaves, and without parameters */
    {true, 1, SMALL, 0, 0, 1, 3},
    {false, LEAVES, MANY, 0, 0, 1, 2},
    {false, 2, 500, 0, 0, 0, 3},
    {true, LEAVES, MANY, LS_NORM_BLOCK / 2, 4 * LS_NORM_BLOCK, 1, 1},
    {false, LEAVES, SMALL, 0, 0, 1, 1},
    {true, 5, SMALL, 0, 0, 1, 0},
};

/* Of different sizes, so that another order of sums has other bits; exact in any order where the
 * order is not promised. */
static float value(bool ordered, int64_t leaf, int64_t element)
{
    float x = (float)((leaf * 104729 + element * 7919) % 10007 - 5000);

    return !ordered ? (float)((element + leaf) % 64) : (leaf + element) % 3 ? x * 1e-3F : x;
}

/* A node of the tree of sums (comm/ordered.h). */
static float node(const ls_dp_args *a, int level, int64_t index, int64_t element)
{
    int64_t right = (2 * index + 1) << (level - (level > 0));
    float left;

    if (level == 0)
        return value(a->ordered, index, element);
    left = node(a, level - 1, 2 * index, element);
    return right < a->leaves ? left + node(a, level - 1, 2 * index + 1, element) : left;
}

/* The gradient that one process would have. */
static float want(const ls_dp_args *a, int64_t i)
{
    int64_t second = i - a->tied_first;
    int level = 0;

    while (INT64_C(1) << level < a->leaves)
        level++;
    float sum = node(a, level, 0, i);
    bool tied = a->ordered && second >= 0 && second < a->tied_count;
    return tied ? sum + node(a, level, 0, a->trained + second) : sum;
}

static void check_range(const ls_dp_args *a, const float *x, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        float w = want(a, first + i);
        if (memcmp(&x[i], &w, sizeof w) != 0)
            ls_test_fail(__FILE__, __LINE__, "rank %d of %d, element %lld: %.9g, expected %.9g",
                         a->mesh.rank, a->mesh.ranks, (long long)(first + i), (double)x[i],
                         (double)w);
    }
}

/* Each leaf is a call; partial sums that wait for others need a place. */
static void table_of(ls_dp_args *a, int *merges)
{
    int n = a->mesh.ranks;

    a->rounds = 1;
    a->slots = 0;
    for (int r = 0; r < n; r++) {
        int count = (int)ls_mesh_leaves(&a->mesh, a->leaves, r).count;
        a->rounds = count > a->rounds ? count : a->rounds;
    }
    for (int r = 0; r < n; r++) {
        ls_ordered_run run = ls_mesh_leaves(&a->mesh, a->leaves, r);
        ls_ordered_feed_room room = {.slots = 0};
        for (int k = 0; k < a->rounds; k++) {
            int m = k < run.count ? ls_ordered_merges(run.first + k, run.first, a->leaves) : -1;
            merges[k * n + r] = m;
            if (m >= 0 && k < a->rounds - 1)
                ls_ordered_feed_count(&room, m);
        }
        a->slots += room.slots;
    }
    a->merges = merges;
}

/* What a rank has open. */
typedef struct rank {
    ls_dp_args a;
    ls_dp *dp;
    ls_device *device;
    ls_stream *stream;
    ls_device_comm *all, *group, *shard_replicas;
    ls_dp_device *x;
} rank;

static ls_device_comm *open_comm(const rank *r, ls_comm *comm)
{
    ls_device_comm *dc;

    LS_CHECK_OK(ls_device_comm_open(
        &dc,
        &(ls_device_comm_args){.comm = comm, .device = r->device, .provider = "host", .axis = "dp"},
        ls_test_soon()));
    return dc;
}

static void open_rank(rank *r, ls_device *device)
{
    const ls_kernels *kernels;

    r->device = device;
    LS_CHECK_OK(ls_dp_open(&r->dp, &r->a));
    LS_CHECK_OK(ls_stream_create(&r->stream, r->device));
    LS_CHECK_OK(ls_kernel_for(r->device, "auto", &kernels));
    r->all = open_comm(r, r->a.comm);
    r->group = r->all;
    if (ls_dp_shard_replicas(r->dp)) {
        r->group = open_comm(r, ls_dp_group(r->dp));
        r->shard_replicas = open_comm(r, ls_dp_shard_replicas(r->dp));
    }
    int64_t before = ls_device_used_bytes(r->device);
    LS_CHECK_OK(ls_dp_device_open(&r->x, &(ls_dp_device_args){.dp = r->dp,
                                                              .dc = r->all,
                                                              .group = r->group,
                                                              .shard_replicas = r->shard_replicas,
                                                              .stream = r->stream,
                                                              .kernels = kernels}));
    LS_CHECK_EQ(ls_device_used_bytes(r->device) - before, ls_dp_device_bytes(&r->a));
}

static void close_rank(rank *r)
{
    if (r->group != r->all)
        ls_device_comm_close(r->group);
    ls_device_comm_close(r->shard_replicas);
    ls_device_comm_close(r->all);
    ls_dp_device_close(r->x);
    ls_stream_free(r->stream);
    ls_dp_close(r->dp);
}

/* All roots at once, as backward of the last call completes them. */
static void sum_whole(rank *r, float *const *buffers)
{
    const ls_dp_args *a = &r->a;
    ls_ordered_run run = ls_mesh_leaves(&a->mesh, a->leaves, a->mesh.rank);
    ls_ordered_node nodes[LS_ORDERED_ROOTS];
    int64_t n = a->trained + (a->ordered ? a->tied_count : 0);
    int roots = a->ordered ? ls_ordered_roots(run, a->leaves, nodes) : 1;

    LS_CHECK(roots <= LEAVES);
    for (int k = 0; k < roots && a->ordered; k++)
        for (int64_t i = 0; i < n; i++)
            buffers[k][i] = node(a, nodes[k].level, nodes[k].index, i);
    for (int64_t i = 0; i < n && !a->ordered; i++) {
        buffers[0][i] = 0;
        for (int64_t k = run.first; k < run.first + run.count; k++)
            buffers[0][i] += value(false, k, i);
    }
    ls_dp_device_begin(r->x);
    for (int64_t from = a->trained; from > 0; from -= LS_NORM_BLOCK * 2 / 3)
        LS_CHECK_OK(ls_dp_device_sum_from(r->x, buffers, from));
    LS_CHECK_OK(ls_dp_device_sum_from(r->x, buffers, 0));
    for (int b = 0; b < ls_dp_buckets(r->dp); b++) {
        ls_mesh_part part = ls_dp_own(r->dp, b);
        check_range(a, buffers[0] + part.first, part.first, part.count);
    }
    if (a->mesh.zero > 0)
        LS_CHECK_OK(ls_dp_device_gather(r->x, buffers[0]));
    check_range(a, buffers[0], 0, a->trained);
}

/* One leaf of each rank in a round. */
static void sum_rounds(rank *r, float *own)
{
    const ls_dp_args *a = &r->a;
    ls_ordered_run run = ls_mesh_leaves(&a->mesh, a->leaves, a->mesh.rank);

    for (int round = 0; round < a->rounds; round++)
        for (int i = 0; i < ls_dp_transfers(r->dp); i++) {
            ls_dp_transfer t = ls_dp_transfer_at(r->dp, i);
            float *place = ls_dp_device_place(r->x, i);
            for (int64_t k = 0; k < t.count; k++)
                place[k] =
                    round < run.count ? value(a->ordered, run.first + round, t.first + k) : 0;
            LS_CHECK_OK(ls_dp_device_sum_transfer(r->x, i, round, own));
        }
    for (int b = 0; b < ls_dp_buckets(r->dp); b++) {
        ls_mesh_part part = ls_dp_own(r->dp, b);
        check_range(a, own + part.packed, part.first, part.count);
    }
}

static void fetch_all(rank *r, const float *own)
{
    const ls_dp_args *a = &r->a;
    int64_t n = ls_dp_elements(a);
    float *whole = ls_mem_array((size_t)n, sizeof *whole);

    LS_CHECK(whole);
    for (int b = ls_dp_buckets(r->dp) - 1; b >= 0; b--)
        LS_CHECK_OK(ls_dp_device_fetch(r->x, b, LS_F32, own, whole));
    check_range(a, whole, 0, a->trained); /* the sums, as weights */
    ls_mem_free(whole);
}

static void run_case(rank *r)
{
    const ls_dp_args *a = &r->a;
    int64_t n = ls_dp_elements(a);
    float *memory = ls_mem_array((size_t)(LEAVES * n), sizeof *memory), *buffers[LEAVES];
    float known[LS_WORLD_RANKS] = {0};
    int size = ls_mesh_shard_ranks(&a->mesh), seat = ls_mesh_shard_rank(&a->mesh, a->mesh.rank);

    LS_CHECK(memory);
    for (int k = 0; k < LEAVES; k++)
        buffers[k] = memory + k * n;
    for (int again = 0; again < 2; again++)
        if (a->mesh.zero >= 2)
            sum_rounds(r, memory);
        else
            sum_whole(r, buffers);
    if (a->mesh.zero == 3)
        fetch_all(r, memory);
    known[seat] = (float)(10 + seat); /* by one of each group */
    LS_CHECK_OK(ls_dp_device_share(r->x, known, size));
    for (int i = 0; i < size; i++)
        LS_CHECK_EQ(known[i], 10 + i);
    ls_mem_free(memory);
}

static void body(ls_world *w, ls_comm *comm)
{
    ls_device *device;

    (void)w;
    LS_CHECK_OK(ls_device_open(&device, "cpu", 1));
    for (size_t c = 0; c < LS_COUNT(cases); c += (size_t)ls_test_stride(2)) {
        int merges[LEAVES * LS_WORLD_RANKS];
        rank r = {.a = {.comm = comm,
                        .mesh = {.ranks = ls_comm_ranks(comm),
                                 .rank = ls_comm_rank(comm),
                                 .local = ls_comm_ranks(comm),
                                 .zero = cases[c].zero,
                                 .shard = cases[c].zero ? shard : 0,
                                 .bucket = cases[c].bucket},
                        .ordered = cases[c].ordered,
                        .by_device = true,
                        .leaves = cases[c].leaves,
                        .trained = cases[c].trained,
                        .tied_first = cases[c].tied_first,
                        .tied_count = cases[c].tied_count}};
        if (r.a.mesh.zero >= 2)
            table_of(&r.a, merges);
        LS_CHECK_EQ(ls_dp_bytes(&r.a), 0);
        open_rank(&r, device);
        run_case(&r);
        close_rank(&r);
    }
    ls_device_close(device);
}

LS_TEST_SECONDS(dp_device_sums_have_the_bits_of_one_process, 240)
{
    for (size_t i = 0; i < LS_COUNT(shapes); i += (size_t)ls_test_stride(2)) {
        shard = shapes[i].shard;
        ls_world_run(shapes[i].nodes, NULL, body);
    }
}

/* --- a rank that is lost ------------------------------------------------------------------------ */

static void lose(ls_world *w, ls_comm *comm)
{
    int merges[LEAVES * LS_WORLD_RANKS];
    rank r = {.a = {.comm = comm,
                    .mesh = {.ranks = 4,
                             .rank = ls_comm_rank(comm),
                             .local = 4,
                             .zero = 3,
                             .shard = shard,
                             .bucket = 1},
                    .ordered = true,
                    .by_device = true,
                    .leaves = LEAVES,
                    .trained = MANY}};
    float *own;
    ls_device *device;
    ls_status st = LS_OK;

    (void)w;
    LS_CHECK_OK(ls_device_open(&device, "cpu", 1));
    table_of(&r.a, merges);
    open_rank(&r, device);
    own = ls_mem_array((size_t)ls_dp_sum_elements(&r.a), sizeof *own);
    LS_CHECK(own);
    /* When rank 3 has the first round, all ranks have opened; another one may lose it in there. */
    for (int i = 0; i < ls_dp_transfers(r.dp) && st == LS_OK; i++)
        st = ls_dp_device_sum_transfer(r.x, i, 0, own);
    if (r.a.mesh.rank == 3) {
        LS_CHECK_OK(st);
        ls_comm_abort(comm, "it has had enough");
    }
    for (int i = 0; i < ls_dp_transfers(r.dp) && st == LS_OK; i++)
        st = ls_dp_device_sum_transfer(r.x, i, 1, own);
    LS_CHECK_FAILS(st, LS_EPEER, "it has had enough");
    LS_CHECK_FAILS(ls_dp_device_fetch(r.x, 0, LS_F32, own, own), LS_EPEER, "it has had enough");
    ls_mem_free(own);
    close_rank(&r);
    ls_device_close(device);
}

/* Also of another shard group. */
LS_TEST_SECONDS(dp_device_ends_when_a_rank_is_lost, 60)
{
    ls_world_run("4", NULL, lose);
    shard = 2;
    ls_world_run("4", NULL, lose);
}
