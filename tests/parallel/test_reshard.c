/* test_reshard.c -- parts of one mesh become those of another: every element once, and only what
 * changes its place is sent. And which rank holds the copy of which. */
#include "base/mem.h"
#include "comm/node/ranks.h"
#include "comm/worlds.h"
#include "kernel/kernel.h"
#include "parallel/reshard.h"

enum { TRAINED = 11 * LS_NORM_BLOCK + 700 };

/* How it was cut, which rank has each seat now, and how it is to be cut. */
static const struct {
    const char *world;
    ls_reshard_cut from;
    int sources[4];
    int shard, zero;
    int64_t bucket;
} cases[] = {
    {"1", {2, 2, 1}, {0, 0}, 0, 0, 0},       /* one is left */
    {"3", {4, 4, 1}, {0, 0, 1, 2}, 0, 1, 2}, /* fewer, other buckets */
    {"4", {3, 3, 0}, {2, 0, 1}, 0, 3, 1},    /* more */
    {"3", {1, 1, 0}, {1}, 0, 1, 1},          /* one had all */
    {"4", {4, 2, 1}, {3, 2}, 2, 3, 1},       /* groups, which stay */
    {"2+2", {4, 2, 2}, {1, 2}, 0, 2, 1},     /* groups, which go; two nodes */
};

static size_t now; /* the case that runs */

static float value(int64_t element)
{
    return (float)(element % 9973) + 0.25f;
}

/* Elements of a new part that another rank has. */
static int64_t from_others(const ls_reshard_args *a, ls_mesh_part part)
{
    int64_t n = 0;

    for (int seat = 0; seat < a->from.shard; seat++)
        for (int b = 0; b < ls_reshard_buckets(&a->from, TRAINED); b++) {
            ls_mesh_part had = ls_reshard_part(&a->from, TRAINED, b, seat);
            int64_t first = ls_max_i64(part.first, had.first);
            int64_t end = ls_min_i64(part.first + part.count, had.first + had.count);
            if (a->sources[seat] != a->to->rank)
                n += ls_max_i64(0, end - first);
        }
    return n;
}

static void fill(const ls_reshard_cut *cut, int seat, float *x)
{
    for (int b = 0; b < ls_reshard_buckets(cut, TRAINED); b++) {
        ls_mesh_part p = ls_reshard_part(cut, TRAINED, b, seat);
        for (int64_t i = 0; i < p.count; i++)
            x[p.packed + i] = value(p.first + i);
    }
}

static void move(ls_world *world, ls_comm *comm)
{
    int rank = ls_comm_rank(comm), n = ls_comm_ranks(comm);
    ls_mesh mesh = {.ranks = n,
                    .rank = rank,
                    .zero = cases[now].zero,
                    .shard = cases[now].shard,
                    .bucket = cases[now].bucket};
    const ls_reshard_args args = {.comm = comm,
                                  .from = cases[now].from,
                                  .to = &mesh,
                                  .trained = TRAINED,
                                  .sources = cases[now].sources};
    float *held[4] = {NULL}, *own;
    int64_t sent, got = 0;
    double sums[2];

    (void)world;
    for (int seat = 0; seat < args.from.shard; seat++)
        if (args.sources[seat] == rank) {
            held[seat] = ls_mem_array(TRAINED, sizeof(float));
            LS_CHECK(held[seat]);
            fill(&args.from, seat, held[seat]);
        }
    for (int whole = 0; whole < 2; whole++) {
        own = ls_mem_array(TRAINED + 4 * LS_NORM_BLOCK, sizeof *own);
        LS_CHECK(own);
        LS_CHECK_OK(ls_reshard_move(&args, (const float *const *)held, whole, own,
                                    ls_ranks_in_ms(20000), &sent));
        got = 0;
        for (int b = 0; b < ls_mesh_buckets(&mesh, TRAINED); b++) {
            ls_mesh_part p = ls_mesh_part_of(&mesh, TRAINED, b, rank);
            for (int64_t i = 0; i < p.count; i++)
                LS_CHECK(own[(whole ? p.first : p.packed) + i] == value(p.first + i));
            got += from_others(&args, p) * (int64_t)sizeof(float);
        }
        sums[0] = (double)sent;
        sums[1] = (double)got;
        LS_CHECK_OK(ls_comm_run(
            comm,
            &(ls_coll){
                .kind = LS_COLL_ALL_REDUCE, .type = LS_F64, .count = 2, .in = sums, .out = sums},
            ls_ranks_in_ms(20000)));
        LS_CHECK_EQ(sums[0], sums[1]);
        ls_mem_free(own);
    }
    for (int seat = 0; seat < 4; seat++)
        ls_mem_free(held[seat]);
}

LS_TEST(reshard_moves_every_element_once)
{
    for (now = 0; now < LS_COUNT(cases); now++)
        ls_world_run(cases[now].world, NULL, move);
}
