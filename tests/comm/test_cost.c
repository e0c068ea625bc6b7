/* test_cost.c -- the formulas of cost.c against the schedules themselves, run under the same rules;
 * the choice among them; nodes. */
#include "comm/algo/sched_text.h"
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
            if (ls_algo_does(ls_algos[i], (ls_coll_kind)kind))
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

/* --- memory -----------------------------------------------------------------------------------*/

static const ls_cost_memory node_memory = {
    .meet_ns = 200, .cached_ns_per_byte = 0.1, .ns_per_byte = 0.2, .crowded = false};

/* The example of cost_node.c, at the pace of a buffer between the two lengths. Moves themselves are
 * held against node/shm_coll.h in tests/comm/node/test_moves.c. */
LS_TEST(cost_of_memory_is_meetings_and_bytes)
{
    ls_cost_memory same = node_memory;
    ls_cost_query q = {.kind = LS_COLL_ALL_REDUCE, .ranks = 2, .count = 1 << 18, .size = 4};
    ls_cost_moves m;

    same.ns_per_byte = 0.1;
    ls_cost_memory_moves(&same, &q, &m);
    LS_CHECK_EQ(m.meets, 2);
    LS_CHECK_EQ(m.read, 1 << 20);
    LS_CHECK_EQ(m.written, 1 << 20);
    LS_CHECK_NEAR(ls_cost_memory_time(&same, &q) / 1e3, 210.1, 0.1);
    /* 4 of 7 doublings from 64 KiB to 8 MiB. */
    LS_CHECK_NEAR(ls_cost_memory_time(&node_memory, &q) - 400, (2 << 20) * (0.1 + 0.1 * 4 / 7), 1);
    q.kind = LS_COLL_BARRIER;
    q.count = 0;
    LS_CHECK_NEAR(ls_cost_memory_time(&node_memory, &q), 200, 0);
    q.ranks = 1;
    LS_CHECK_NEAR(ls_cost_memory_time(&node_memory, &q), 0, 0);
}

LS_TEST(cost_of_memory_grows_with_the_buffer)
{
    for (int kind = 0; kind <= LS_COLL_GATHER; kind++) {
        double before = 0;
        for (int64_t count = 1; count <= 1 << 24; count *= 2) {
            const ls_cost_query q = {
                .kind = (ls_coll_kind)kind, .ranks = 4, .peer = 2, .count = count, .size = 4};
            double t = ls_cost_memory_time(&node_memory, &q);
            /* All ranks add everything while it is short: dearer for each byte. */
            LS_CHECK(t >= before * 0.5);
            before = t;
        }
        LS_CHECK(before > 1e6);
    }
}

/* --- nodes ------------------------------------------------------------------------------------*/

static ls_cost_nodes nodes_of(int nodes, int per_node)
{
    return (ls_cost_nodes){.nodes = nodes,
                           .per_node = per_node,
                           .memory = node_memory,
                           .between = links[1],
                           .around = links[1],
                           .combine_ns_per_byte = 0.05};
}

/* 2 nodes of 2 ranks: half the buffer of each rank, over a wire that two share. */
LS_TEST(cost_of_nodes_keeps_bytes_off_the_wire)
{
    ls_coll coll = {.kind = LS_COLL_ALL_REDUCE, .type = LS_F32, .count = 4 << 20};
    ls_cost_nodes nodes = nodes_of(2, 2);
    ls_cost_levels l;

    ls_cost_hierarchy(&nodes, &coll, false, &l);
    LS_CHECK_EQ(l.wire, 16 * LS_MIB);
    LS_CHECK_EQ(l.pieces, 4);
    LS_CHECK_NEAR(4 * l.between_ns / 1e6, 143, 2);
    LS_CHECK_NEAR(l.time_ns, l.scatter_ns + 4 * l.between_ns + l.gather_ns, 1);
    LS_CHECK(l.time_ns < 0.8 * l.flat_ns);
    nodes.nodes = 1;
    ls_cost_hierarchy(&nodes, &coll, false, &l);
    LS_CHECK_EQ(l.wire, 0);
    LS_CHECK_NEAR(l.between_ns, 0, 0);
}

/* One core scatters and gathers: where memory is slower than the wire, it sets the pace. */
LS_TEST(cost_of_nodes_is_that_of_the_slower_side)
{
    ls_coll coll = {.kind = LS_COLL_ALL_REDUCE, .type = LS_F32, .count = 16 << 20};
    ls_cost_nodes nodes = nodes_of(2, 2);
    ls_cost_levels l;

    nodes.memory.ns_per_byte = nodes.memory.cached_ns_per_byte = 100;
    ls_cost_hierarchy(&nodes, &coll, false, &l);
    LS_CHECK_EQ(l.pieces, LS_COST_PIECES);
    LS_CHECK(l.scatter_ns + l.gather_ns > l.between_ns);
    LS_CHECK_NEAR(l.time_ns, 8 * (l.scatter_ns + l.gather_ns) + l.between_ns, 1);
}

/* Bytes that the schedules of all ranks of the first node send, piece by piece. */
static int64_t count_wire(const ls_cost_nodes *nodes, const ls_coll *coll)
{
    int pieces = ls_cost_pieces(coll->count * 4);
    int64_t sum = 0, first, len, own;

    for (int i = 0; i < pieces; i++)
        for (int place = 0; place < nodes->per_node; place++) {
            ls_coll part = *coll;
            ls_cost_query q = {.kind = LS_COLL_ALL_REDUCE, .size = 4};
            ls_cost_choice choice;
            ls_sched sched = {0};
            ls_coll_range(coll->count, pieces, i, &first, &len);
            ls_coll_range(len, nodes->per_node, place, &first, &own);
            part.count = own;
            ls_cost_over_nodes(nodes, true, &q);
            ls_cost_choose(&q, &part, false, &choice);
            LS_CHECK_OK(
                ls_sched_build(&sched, &(ls_sched_args){.algo = choice.rows[choice.best].algo,
                                                        .kind = LS_COLL_ALL_REDUCE,
                                                        .ranks = nodes->nodes,
                                                        .count = own,
                                                        .chunk = choice.rows[choice.best].chunk,
                                                        .in_place = true}));
            sum += 4 * ls_sched_text_sent(&sched);
            ls_sched_release(&sched);
        }
    return sum;
}

LS_TEST(cost_of_nodes_counts_what_the_schedules_send)
{
    static const int64_t lens[] = {1000, 8192, 100003, 3 << 20, 20000003};

    for (int n = 2; n <= 5; n++)
        for (int g = 2; g <= 4; g++)
            for (size_t i = 0; i < LS_COUNT(lens); i += (size_t)ls_test_stride(2)) {
                const ls_coll coll = {.kind = LS_COLL_ALL_REDUCE, .type = LS_F32, .count = lens[i]};
                const ls_cost_nodes nodes = nodes_of(n, g);
                ls_cost_levels l;
                ls_cost_hierarchy(&nodes, &coll, false, &l);
                LS_CHECK_EQ(l.wire, count_wire(&nodes, &coll));
                /* Large buffers: the bound, to a few elements for each piece and rank. */
                if (lens[i] > 1 << 20)
                    LS_CHECK_NEAR((double)l.wire / (8.0 * (n - 1) / n * (double)lens[i]), 1, 1e-3);
            }
}

/* A slow pair that is no neighbour costs a ring nothing, and all others their time. */
LS_TEST(cost_of_a_slow_pair_is_paid_by_schedules_that_use_it)
{
    ls_coll coll = {.kind = LS_COLL_ALL_GATHER, .type = LS_F32, .count = 1 << 20};
    ls_cost_query q = {.ranks = 4, .link = links[1], .around = links[1], .has_around = true};
    ls_cost_choice even, slow;

    ls_cost_choose(&q, &coll, false, &even);
    q.link.ns_per_byte *= 10;
    ls_cost_choose(&q, &coll, false, &slow);
    LS_CHECK_STR(slow.rows[slow.best].algo->name, "ring");
    for (int i = 0; i < even.count; i++) {
        const ls_cost_candidate *row = &slow.rows[i];
        if (row->refuses)
            continue;
        if (row->algo->around)
            LS_CHECK_NEAR(row->time_ns, even.rows[i].time_ns, 0);
        else
            LS_CHECK(row->time_ns > 5 * even.rows[i].time_ns);
    }
}
