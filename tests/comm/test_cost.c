/* test_cost.c -- the formulas of cost.c against the schedules themselves, run under the same rules;
 * the choice among them; nodes. */
#include "comm/algo/sim.h"

static const ls_cost_link links[] = {
    {1000, 300, 0.1},     /* shared memory */
    {30000, 2000, 8.5},   /* 1 Gbit/s */
    {10000, 1000, 0.085}, /* 100 Gbit/s */
};
static const int worlds[] = {2, 3, 4, 5, 7, 8, 13, 16};
static const int64_t counts[] = {16, 4096, 100000, 1 << 20};

typedef struct spread {
    double low, high; /* of formula / simulation */
    int cases;
} spread;

static void compare(spread *w, const ls_algo *algo, const ls_cost_query *q)
{
    ls_sim_case c = {.algo = algo,
                     .kind = q->kind,
                     .ranks = q->ranks,
                     .count = q->count,
                     .chunk = q->chunk,
                     .in_place = true};
    ls_sim s;

    if (q->count < 16 * q->ranks)
        return; /* some ranks own nothing, and messages are missing */
    ls_sim_init(&s, &c);
    double ratio = ls_cost_time(algo, q) / ls_sim_time(&s, q);
    w->low = w->cases == 0 || ratio < w->low ? ratio : w->low;
    w->high = w->cases == 0 || ratio > w->high ? ratio : w->high;
    w->cases++;
    ls_sim_release(&s);
}

static spread measure(const ls_algo *algo, ls_coll_kind kind, double combine)
{
    size_t stride = (size_t)ls_test_stride(4);
    spread w = {0};

    for (size_t l = 0; l < LS_COUNT(links); l++)
        for (size_t r = 0; r < LS_COUNT(worlds); r++)
            for (size_t i = (l + r) % stride; i < LS_COUNT(counts); i += stride) {
                ls_cost_query q = {.kind = kind,
                                   .ranks = worlds[r],
                                   .count = counts[i],
                                   .size = 4,
                                   .link = links[l],
                                   .combine_ns_per_byte = combine};
                compare(&w, algo, &q);
                q.chunk = 16384;
                if (algo->cuts && q.count > 4096)
                    compare(&w, algo, &q);
            }
    return w;
}

/* How far a formula may be off. Exact where one message follows the other. Otherwise: surplus ranks
 * of halving overlap with other messages; two trees meet at ports; in pairwise exchange a port that
 * serves one message at a time stands idle when rounds of unequal length drift apart, which wires
 * that share do not. */
static const struct {
    const char *name;
    ls_coll_kind kind;
    double low, high;
} rows[] = {
    {"ring", LS_COLL_ALL_REDUCE, 0.99, 1.01},     {"ring", LS_COLL_REDUCE_SCATTER, 0.99, 1.05},
    {"ring", LS_COLL_ALL_GATHER, 0.99, 1.01},     {"ring", LS_COLL_BROADCAST, 0.99, 1.01},
    {"halving", LS_COLL_ALL_REDUCE, 0.99, 1.01},  {"halving", LS_COLL_REDUCE_SCATTER, 0.99, 1.20},
    {"halving", LS_COLL_ALL_GATHER, 0.92, 1.55},  {"doubling", LS_COLL_ALL_REDUCE, 0.99, 1.25},
    {"tree", LS_COLL_ALL_REDUCE, 0.85, 1.15},     {"tree", LS_COLL_BROADCAST, 0.99, 1.01},
    {"tree", LS_COLL_GATHER, 0.99, 1.01},         {"tree2", LS_COLL_ALL_REDUCE, 0.75, 1.55},
    {"pairwise", LS_COLL_ALL_REDUCE, 0.78, 1.16}, {"pairwise", LS_COLL_REDUCE_SCATTER, 0.68, 1.16},
    {"pairwise", LS_COLL_ALL_GATHER, 0.75, 1.01}, {"pairwise", LS_COLL_ALL_TO_ALL, 0.99, 1.01},
    {"direct", LS_COLL_ALL_REDUCE, 0.99, 1.01},   {"direct", LS_COLL_BROADCAST, 0.99, 1.01},
    {"direct", LS_COLL_GATHER, 0.99, 1.01},       {"dissemination", LS_COLL_BARRIER, 0.99, 1.01},
};

LS_TEST_SECONDS(cost_formulas_agree_with_the_schedules, 60)
{
    for (size_t i = 0; i < LS_COUNT(rows); i++) {
        spread w = measure(ls_algo_find(rows[i].name), rows[i].kind, 0.05);
        if (w.cases < ls_test_times(60) || w.low < rows[i].low || w.high > rows[i].high)
            ls_test_fail(__FILE__, __LINE__,
                         "%s, kind %d: the formula is %.3f to %.3f of the simulation, %d cases",
                         rows[i].name, (int)rows[i].kind, w.low, w.high, w.cases);
    }
}

LS_TEST(cost_rows_cover_every_algorithm)
{
    for (int i = 0; i < ls_algos_count; i++)
        for (int kind = 0; kind < LS_COLL_KINDS; kind++) {
            bool found = kind == LS_COLL_SEND || kind == LS_COLL_RECV;
            for (size_t j = 0; j < LS_COUNT(rows); j++)
                found = found || (rows[j].kind == (ls_coll_kind)kind &&
                                  ls_algo_find(rows[j].name) == ls_algos[i]);
            if (ls_algos[i]->kinds >> kind & 1)
                LS_CHECK(found);
        }
}

/* The example of cost.h. */
LS_TEST(cost_of_a_ring_between_four_hosts)
{
    ls_cost_query q = {.kind = LS_COLL_ALL_REDUCE,
                       .ranks = 4,
                       .count = 16 << 20,
                       .chunk = 65536,
                       .size = 4,
                       .link = {30000, 2000, 8.5},
                       .combine_ns_per_byte = 0.05};

    LS_CHECK_NEAR(ls_cost_time(ls_algo_find("ring"), &q) / 1e6, 856, 1);
    LS_CHECK_EQ(ls_cost_sent(ls_algo_find("ring"), &q), 96 * LS_MIB);
    q.ranks = 1;
    LS_CHECK_NEAR(ls_cost_time(ls_algo_find("ring"), &q), 0, 0);
    LS_CHECK_EQ(ls_cost_sent(ls_algo_find("ring"), &q), 0);
}

static const char *choose(int link, ls_dtype type, int64_t count, int ranks, bool once)
{
    ls_coll coll = {.kind = LS_COLL_ALL_REDUCE, .type = type, .count = count};
    ls_cost_query q = {.ranks = ranks, .link = links[link], .combine_ns_per_byte = 0.05};
    ls_cost_choice choice;

    ls_cost_choose(&q, &coll, once, &choice);
    LS_CHECK(choice.best >= 0);
    LS_CHECK_EQ(choice.count, ls_algos_count);
    for (int i = 0; i < choice.count; i++)
        if (!choice.rows[i].refuses)
            LS_CHECK(choice.rows[i].time_ns >= choice.rows[choice.best].time_ns);
    return choice.rows[choice.best].algo->name;
}

LS_TEST(cost_choice_goes_from_few_steps_to_few_bytes)
{
    LS_CHECK_STR(choose(1, LS_F32, 1, 4, false), "direct");
    LS_CHECK_STR(choose(1, LS_F32, 256, 64, false), "doubling");
    LS_CHECK_STR(choose(0, LS_F32, 16384, 64, false), "halving");
    LS_CHECK_STR(choose(1, LS_F32, 64 << 20, 5, false), "ring");
    LS_CHECK_STR(choose(1, LS_BF16, 64 << 20, 5, false), "pairwise");
    LS_CHECK_STR(choose(1, LS_F32, 64 << 20, 5, true), "pairwise");
    LS_CHECK_STR(choose(1, LS_BF16, 1, 64, false), "direct");
}

LS_TEST(cost_says_why_an_algorithm_is_refused)
{
    ls_coll coll = {.kind = LS_COLL_ALL_REDUCE, .type = LS_BF16, .count = 1};

    LS_CHECK(ls_algo_refuses(ls_algo_find("ring"), &coll, 3, false));
    LS_CHECK(!ls_algo_refuses(ls_algo_find("ring"), &coll, 2, false));
    LS_CHECK(!ls_algo_refuses(ls_algo_find("pairwise"), &coll, 3, false));
    coll.op = LS_COLL_MAX;
    LS_CHECK(!ls_algo_refuses(ls_algo_find("ring"), &coll, 3, true));
    coll.op = LS_COLL_MEAN;
    LS_CHECK(ls_algo_refuses(ls_algo_find("ring"), &coll, 2, false));
    coll.type = LS_F32;
    LS_CHECK(!ls_algo_refuses(ls_algo_find("ring"), &coll, 3, false));
    LS_CHECK_STR(ls_algo_refuses(ls_algo_find("ring"), &coll, 3, true),
                 "adds hop by hop, not in rank order");
    coll.kind = LS_COLL_BARRIER;
    LS_CHECK_STR(ls_algo_refuses(ls_algo_find("ring"), &coll, 3, false),
                 "does not do this collective");
    LS_CHECK(!ls_algo_find("rings"));
}

/* 2 nodes of 2 ranks: half the buffer of each rank, over a wire that two share. */
LS_TEST(cost_of_nodes_keeps_bytes_off_the_wire)
{
    ls_coll coll = {.kind = LS_COLL_ALL_REDUCE, .type = LS_F32, .count = 4 << 20};
    ls_cost_nodes nodes = {2, 2, links[0], links[1], 0.05};
    ls_cost_levels l;

    ls_cost_hierarchy(&nodes, &coll, false, &l);
    LS_CHECK_EQ(l.wire, 16 * LS_MIB);
    LS_CHECK_NEAR(l.between_ns / 1e6, 143, 2);
    LS_CHECK_NEAR(l.time_ns, l.scatter_ns + l.between_ns + l.gather_ns, 1);
    LS_CHECK(l.time_ns < 0.8 * l.flat_ns);
    nodes.nodes = 1;
    ls_cost_hierarchy(&nodes, &coll, false, &l);
    LS_CHECK_EQ(l.wire, 0);
    LS_CHECK_NEAR(l.between_ns, 0, 0);
}
