/* test_ordered_sum.c -- ranks together make the sum that one process would, to the last bit, with
 * any runs of leaves and any parts of the elements. */
#include "base/mem.h"
#include "comm/node/ranks.h"
#include "comm/ordered_sum.h"
#include "comm/worlds.h"

enum { CASES = 14, GUARD = 3 };

static const char *const shapes[] = {"1", "2", "3", "5", "1+1", "2+1", "1+2+1"};

static uint64_t draw(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 33;
}

/* Of different sizes, so that another order of sums has other bits. */
static float value(int64_t leaf, int64_t element, int round)
{
    uint64_t seed = (uint64_t)(leaf * 1000003 + element * 7919 + round * 31);
    float x = (float)(draw(&seed) % 20011) - 10000;

    return draw(&seed) % 3 ? x * 1e-3F : x;
}

/* A node of the tree by its definition (ordered.h). */
static float node(int level, int64_t index, int64_t leaves, int64_t element, int round)
{
    int64_t right = (2 * index + 1) << (level - (level > 0));
    float left;

    if (level == 0)
        return value(index, element, round);
    left = node(level - 1, 2 * index, leaves, element, round);
    return right < leaves ? left + node(level - 1, 2 * index + 1, leaves, element, round) : left;
}

static float whole(int64_t leaves, int64_t element, int round)
{
    int level = 0;

    while (INT64_C(1) << level < leaves)
        level++;
    return node(level, 0, leaves, element, round);
}

/* n numbers that add up to `sum`, many of them 0. */
static void divide(int64_t sum, int n, uint64_t *seed, int64_t *out)
{
    for (int i = 0; i < n; i++) {
        out[i] = i == n - 1 ? sum : (int64_t)(draw(seed) % (uint64_t)(sum + 1));
        if (i < n - 1 && draw(seed) % 4 == 0)
            out[i] = 0;
        sum -= out[i];
    }
}

typedef struct problem {
    ls_ordered_run runs[LS_WORLD_RANKS];
    int64_t counts[LS_WORLD_RANKS];
    int64_t leaves, elements, first; /* first: own elements begin here */
    bool shared, inside;             /* memory of the communicator; out is a part of a root */
} problem;

/* The same on all ranks, but for first. */
static problem make(int number, int ranks, int rank)
{
    static const int64_t elements[] = {40, 1, 2000, 33000, 0, 300, 65};
    uint64_t seed = (uint64_t)number * 97 + (uint64_t)ranks;
    problem p = {.leaves = 1 + (int64_t)(draw(&seed) % 13),
                 .elements = elements[number % 7],
                 .shared = number % 2,
                 .inside = number % 3 == 0};
    int64_t lengths[LS_WORLD_RANKS], next = 0;
    int shift = (int)(draw(&seed) % (uint64_t)ranks); /* runs need not be in the order of ranks */

    divide(p.leaves, ranks, &seed, lengths);
    for (int i = 0; i < ranks; i++) {
        p.runs[(i + shift) % ranks] = (ls_ordered_run){next, lengths[i]};
        next += lengths[i];
    }
    divide(p.elements, ranks, &seed, p.counts);
    for (int r = 0; r < rank; r++)
        p.first += p.counts[r];
    return p;
}

static void *take(ls_comm *comm, const problem *p, size_t floats)
{
    void *memory = NULL;

    if (p->shared)
        LS_CHECK_OK(ls_comm_alloc(comm, (int64_t)(floats * sizeof(float)), "test", &memory));
    else
        memory = ls_mem_array(floats, sizeof(float));
    LS_CHECK(memory);
    return memory;
}

static void give(ls_comm *comm, const problem *p, void *memory)
{
    if (p->shared)
        ls_comm_free(comm, memory);
    else
        ls_mem_free(memory);
}

static void check_once(ls_ordered_sum *sum, const problem *p, int me, void **roots, float *out,
                       int round)
{
    ls_ordered_node nodes[LS_ORDERED_ROOTS];
    int n = ls_ordered_roots(p->runs[me], p->leaves, nodes);

    for (int k = 0; k < n; k++)
        for (int64_t i = 0; i < p->elements; i++)
            ((float *)roots[k])[i] = node(nodes[k].level, nodes[k].index, p->leaves, i, round);
    LS_CHECK_OK(ls_ordered_sum_start(sum, 0, roots));
    LS_CHECK_OK(ls_ordered_sum_end(sum, 0, out, ls_ranks_in_ms(20000)));
    for (int64_t i = 0; i < p->counts[me]; i++) {
        float want = whole(p->leaves, p->first + i, round);
        if (memcmp(out + i, &want, sizeof want) != 0)
            ls_test_fail(__FILE__, __LINE__, "rank %d, element %lld: %.9g, expected %.9g", me,
                         (long long)i, (double)out[i], (double)want);
    }
    /* What belongs to others is as it was. */
    for (int k = 0; k < n; k++)
        for (int64_t i = 0; i < p->elements; i++) {
            bool own = i >= p->first && i < p->first + p->counts[me];
            if (!(p->inside && k == 0 && own))
                LS_CHECK(((float *)roots[k])[i] ==
                         node(nodes[k].level, nodes[k].index, p->leaves, i, round));
        }
}

static void try_problem(ls_comm *comm, const problem *p)
{
    int me = ls_comm_rank(comm);
    ls_ordered_sum *sum = NULL;
    void *roots[LS_ORDERED_ROOTS];
    ls_ordered_node nodes[LS_ORDERED_ROOTS];
    int n = ls_ordered_roots(p->runs[me], p->leaves, nodes);
    float *apart = take(comm, p, (size_t)p->counts[me] + GUARD);

    for (int k = 0; k < n || k == 0; k++)
        roots[k] = take(comm, p, (size_t)p->elements + 1);
    for (int i = 0; i < GUARD; i++)
        apart[p->counts[me] + i] = 77;
    LS_CHECK_OK(ls_ordered_sum_open(&sum, &(ls_ordered_sum_args){.comm = comm,
                                                                 .runs = p->runs,
                                                                 .leaves = p->leaves,
                                                                 .counts = p->counts,
                                                                 .type = LS_F32}));
    for (int round = 0; round < 2; round++)
        check_once(sum, p, me, roots, p->inside ? (float *)roots[0] + p->first : apart, round);
    for (int i = 0; i < GUARD; i++)
        LS_CHECK(apart[p->counts[me] + i] == 77);
    ls_ordered_sum_close(sum);
    for (int k = 0; k < n || k == 0; k++)
        give(comm, p, roots[k]);
    give(comm, p, apart);
}

static void every_problem(ls_world *w, ls_comm *comm)
{
    (void)w;
    for (int i = 0; i < CASES; i++) {
        problem p = make(i, ls_comm_ranks(comm), ls_comm_rank(comm));
        try_problem(comm, &p);
    }
    LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, ls_ranks_in_ms(20000)));
}

LS_TEST_SECONDS(ordered_sum_of_ranks_has_the_bits_of_one_process, 90)
{
    for (size_t i = 0; i < LS_COUNT(shapes); i++)
        ls_world_run(shapes[i], NULL, every_problem);
}

/* --- other splits ------------------------------------------------------------------------------
 */

/* One sum, opened with room for all roots there can be, goes through many splits of its leaves. */
static void every_split(ls_world *w, ls_comm *comm)
{
    enum { LEAVES = 13 };
    int n = ls_comm_ranks(comm), me = ls_comm_rank(comm);
    problem p = make(0, n, me);
    ls_ordered_sum *sum = NULL;
    void *roots[LEAVES];
    float *out = take(comm, &p, (size_t)p.counts[me] + 1);

    (void)w;
    p.inside = false;
    for (int k = 0; k < LEAVES; k++)
        roots[k] = take(comm, &p, (size_t)p.elements + 1);
    ls_ordered_sum_args args = {.comm = comm,
                                .runs = p.runs,
                                .leaves = p.leaves,
                                .counts = p.counts,
                                .type = LS_F32,
                                .roots = LEAVES};
    LS_CHECK_EQ(ls_ordered_sum_bytes(&args, n, me), LEAVES * p.counts[me] * (int64_t)sizeof(float));
    LS_CHECK_OK(ls_ordered_sum_open(&sum, &args));
    for (int i = 0; i < CASES; i++) {
        problem other = make(i, n, me);
        memcpy(p.runs, other.runs, sizeof p.runs);
        p.leaves = other.leaves;
        LS_CHECK_OK(ls_ordered_sum_split(sum, p.runs, p.leaves));
        check_once(sum, &p, me, roots, out, i);
    }
    memset(p.runs, 0, sizeof p.runs);
    p.runs[n - 1] = (ls_ordered_run){1, 3};
    LS_CHECK_FAILS(ls_ordered_sum_split(sum, p.runs, 4), LS_EUSAGE, "leaf 0 has no rank");
    ls_ordered_sum_close(sum);
    for (int k = 0; k < LEAVES; k++)
        give(comm, &p, roots[k]);
    give(comm, &p, out);
    LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, ls_ranks_in_ms(20000)));
}

LS_TEST_SECONDS(ordered_sum_changes_its_split_and_keeps_the_bits, 60)
{
    ls_world_run("3", NULL, every_split);
    ls_world_run("5", NULL, every_split);
    ls_world_run("2+1", NULL, every_split);
}

static void too_many(ls_world *w, ls_comm *comm)
{
    const ls_ordered_run even[2] = {{0, 2}, {2, 2}}, odd[2] = {{0, 3}, {3, 1}};
    const int64_t counts[2] = {3, 4};
    ls_ordered_sum *sum = NULL;

    (void)w;
    LS_CHECK_OK(ls_ordered_sum_open(
        &sum, &(ls_ordered_sum_args){
                  .comm = comm, .runs = even, .leaves = 4, .counts = counts, .type = LS_F32}));
    LS_CHECK_FAILS(ls_ordered_sum_split(sum, odd, 4), LS_EUSAGE, "room for 2 roots cannot have 3");
    ls_ordered_sum_close(sum);
    LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, ls_ranks_in_ms(20000)));
}

LS_TEST(ordered_sum_refuses_a_split_that_it_has_no_room_for)
{
    ls_world_run("2", NULL, too_many);
}

/* --- what is refused ---------------------------------------------------------------------------
 */

static void bad_runs(ls_world *w, ls_comm *comm)
{
    static const struct {
        ls_ordered_run runs[2];
        const char *text;
    } cases[] = {
        {{{0, 2}, {3, 1}}, "leaf 2 has no rank"},
        {{{0, 2}, {2, 1}}, "leaf 3 has no rank"},
        {{{0, 3}, {2, 2}}, "leaf 2 belongs to rank 0 and to rank 1"},
        {{{0, 2}, {2, 3}}, "rank 1 cannot own 3 leaves from 2 on: there are 4"},
        {{{0, 4}, {0, -1}}, "rank 1 cannot own -1 leaves"},
    };
    const int64_t counts[2] = {3, 4};

    (void)w;
    for (size_t i = 0; i < LS_COUNT(cases); i++) {
        ls_ordered_sum *sum = NULL;
        LS_CHECK_FAILS(ls_ordered_sum_open(&sum, &(ls_ordered_sum_args){.comm = comm,
                                                                        .runs = cases[i].runs,
                                                                        .leaves = 4,
                                                                        .counts = counts,
                                                                        .type = LS_F32}),
                       LS_EUSAGE, cases[i].text);
        LS_CHECK(!sum);
    }
    LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, ls_ranks_in_ms(20000)));
}

LS_TEST(ordered_sum_refuses_runs_that_are_not_the_leaves)
{
    ls_world_run("2", NULL, bad_runs);
}
