/* test_algos.c -- every algorithm, kind, world and count near the edges: the right result on every
 * rank, no deadlock, no hazard, bytes as the formulas say. See sim.h for how it is known. */
#include "comm/algo/sim.h"

#include <stdio.h>

static const int worlds[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                             12, 13, 14, 15, 16, 17, 24, 32, 33, 64};
static const int64_t counts[] = {0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 1000, 4097};

static int cases;

static void run_case(ls_sim_case c)
{
    ls_sim s;

    c.seed = (uint64_t)++cases;
    ls_sim_init(&s, &c);
    ls_sim_run(&s, 0);
    if (cases % 3 == 0)
        ls_sim_run(&s, LS_SCHED_WINDOW);
    ls_sim_release(&s);
}

/* Chunks: none, one that cuts a range into a few uneven pieces, and one that is not round. */
static void run_chunks(ls_sim_case c)
{
    run_case(c);
    if (!c.algo->cuts)
        return;
    c.chunk = c.count / (c.kind == LS_COLL_ALL_TO_ALL ? 1 : c.ranks) / 3 + 1;
    run_case(c);
    if (c.count > 64 && c.ranks <= 17) {
        c.chunk = c.count / 7 + 1;
        run_case(c);
    }
}

static bool has_root(ls_coll_kind kind)
{
    return kind == LS_COLL_BROADCAST || kind == LS_COLL_GATHER;
}

static void run_world(const ls_algo *algo, ls_coll_kind kind, int n)
{
    size_t stride = (size_t)ls_test_stride(3);

    for (size_t i = (size_t)n % stride; i < LS_COUNT(counts); i += stride) {
        ls_sim_case c = {.algo = algo, .kind = kind, .ranks = n, .count = counts[i]};
        if (n > 17 && i % 3 != (size_t)n % 3 && counts[i] != 1000)
            continue;
        if (n > 17 && counts[i] == 4097 && (kind == LS_COLL_ALL_TO_ALL || algo->once))
            continue; /* n^2 times as much */
        run_chunks(c);
        c.in_place = true;
        run_chunks(c);
        if (has_root(kind) && n > 1) {
            c.root = n / 2;
            run_chunks(c);
            c.in_place = false;
            c.root = n - 1;
            run_chunks(c);
        }
        if (algo->uneven && has_root(kind) + (kind == LS_COLL_ALL_TO_ALL) > 0 &&
            kind != LS_COLL_BROADCAST && counts[i] <= 65) {
            c.uneven = true;
            run_chunks(c);
            c.in_place = !c.in_place;
            run_chunks(c);
        }
    }
}

static void run_algo(const char *name)
{
    const ls_algo *algo = ls_algo_find(name);

    LS_CHECK(algo);
    for (int kind = 0; kind < LS_COLL_KINDS; kind++)
        for (size_t w = 0; w < LS_COUNT(worlds); w++)
            if (kind != LS_COLL_SEND && kind != LS_COLL_RECV && kind != LS_COLL_BARRIER &&
                ls_algo_does(algo, (ls_coll_kind)kind))
                run_world(algo, (ls_coll_kind)kind, worlds[w]);
    printf("%s: %d cases\n", name, cases);
}

LS_TEST_SECONDS(ring_is_right_for_all_worlds, 120)
{
    run_algo("ring");
}

LS_TEST_SECONDS(halving_is_right_for_all_worlds, 120)
{
    run_algo("halving");
}

LS_TEST_SECONDS(doubling_is_right_for_all_worlds, 120)
{
    run_algo("doubling");
}

LS_TEST_SECONDS(tree_is_right_for_all_worlds, 120)
{
    run_algo("tree");
}

LS_TEST_SECONDS(tree2_is_right_for_all_worlds, 120)
{
    run_algo("tree2");
}

LS_TEST_SECONDS(pairwise_is_right_for_all_worlds, 120)
{
    run_algo("pairwise");
}

LS_TEST_SECONDS(direct_is_right_for_all_worlds, 120)
{
    run_algo("direct");
}

/* Nobody leaves a barrier that somebody has not entered. */
LS_TEST(barrier_waits_for_everybody)
{
    for (int n = 1; n <= 33; n++) {
        ls_sim_case c = {
            .algo = ls_algo_find("dissemination"), .kind = LS_COLL_BARRIER, .ranks = n};
        ls_sim s;
        ls_sim_init(&s, &c);
        ls_sim_run(&s, 0);
        ls_sim_run(&s, LS_SCHED_WINDOW);
        for (int absent = 0; absent < n; absent++)
            LS_CHECK_EQ(ls_sim_finish_without(&s, absent), 0);
        ls_sim_release(&s);
    }
}
