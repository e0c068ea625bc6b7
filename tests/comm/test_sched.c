/* test_sched.c -- schedules at the edges: large worlds and counts, bad arguments, no memory. */
#include "harness.h"

#include <string.h>
#include "base/mem.h"
#include "comm/algo/algo.h"
#include "comm/algo/sched_text.h"
#include "comm/cost.h"

static void build(ls_sched *s, ls_sched_args a, const char *name)
{
    a.algo = ls_algo_find(name);
    LS_CHECK(a.algo);
    LS_CHECK_OK(ls_sched_build(s, &a));
}

LS_TEST(sched_describes_its_steps)
{
    ls_sched s;
    char text[160];

    build(&s, (ls_sched_args){.kind = LS_COLL_ALL_REDUCE, .ranks = 2, .rank = 0, .count = 32},
          "ring");
    LS_CHECK_EQ(s.count, 4);
    LS_CHECK_STR(ls_sched_text(&s, 0, text, sizeof text), "0: send in[16+16] to 1#0");
    LS_CHECK_STR(ls_sched_text(&s, 1, text, sizeof text),
                 "1: recv_add out[0+16] = in[0+16] from 1#0 (last)");
    LS_CHECK_STR(ls_sched_text(&s, 2, text, sizeof text), "2: send out[0+16] to 1#1 after 1");
    LS_CHECK_STR(ls_sched_text(&s, 3, text, sizeof text), "3: recv out[16+16] = from 1#1 after 0");
    ls_sched_release(&s);
    ls_sched_release(&s);
}

LS_TEST(sched_refuses_what_cannot_be)
{
    const ls_algo *ring = ls_algo_find("ring"), *pairwise = ls_algo_find("pairwise");
    ls_sched_args good = {.algo = ring, .kind = LS_COLL_ALL_REDUCE, .ranks = 4, .count = 100}, a;
    int64_t in[2] = {1, 2}, out[2] = {3, 2};
    ls_sched s;

    for (int i = 0; i < 4; i++) {
        static const int pairs[][2] = {{0, 0}, {4097, 0}, {4, 4}, {4, -1}};
        a = good;
        a.ranks = pairs[i][0];
        a.rank = pairs[i][1];
        LS_CHECK_FAILS(ls_sched_build(&s, &a), LS_EUSAGE, "cannot plan a collective for rank");
    }
    a = good;
    a.peer = 4;
    LS_CHECK_FAILS(ls_sched_build(&s, &a), LS_EUSAGE, "with rank 4 among 4");
    a = good;
    a.count = -1;
    LS_CHECK_FAILS(ls_sched_build(&s, &a), LS_EUSAGE, "-1 elements");
    a = good;
    a.kind = LS_COLL_GATHER;
    LS_CHECK_FAILS(ls_sched_build(&s, &a), LS_EUSAGE,
                   "algorithm \"ring\" does not do this collective");
    a = (ls_sched_args){.algo = pairwise,
                        .kind = LS_COLL_ALL_TO_ALL,
                        .ranks = 2,
                        .in_counts = in,
                        .out_counts = out};
    LS_CHECK_FAILS(ls_sched_build(&s, &a), LS_EUSAGE, "sends itself 1 elements but expects 3");
    a = good;
    a.count = INT64_C(1) << 40;
    a.chunk = 1;
    a.kind = LS_COLL_BROADCAST;
    LS_CHECK_FAILS(ls_sched_build(&s, &a), LS_EUSAGE, "into messages of 1: more than");
}

/* Every algorithm with every allocation failing once. */
LS_TEST(sched_survives_no_memory)
{
    for (int i = 0; i < ls_algos_count; i++)
        for (int kind = 0; kind < LS_COLL_KINDS; kind++) {
            ls_sched_args a = {.algo = ls_algos[i],
                               .kind = (ls_coll_kind)kind,
                               .ranks = 12,
                               .rank = 5,
                               .count = 5000,
                               .chunk = 100};
            ls_sched s;
            ls_status st = LS_ENOMEM;
            if (!(ls_algo_does(ls_algos[i], (ls_coll_kind)kind)))
                continue;
            for (uint64_t n = 1; st != LS_OK; n++) {
                ls_mem_fail_nth(n);
                st = ls_sched_build(&s, &a);
                if (st != LS_OK) {
                    LS_CHECK_EQ(st, LS_ENOMEM);
                    LS_CHECK(!s.steps && !s.parts && s.count == 0);
                }
            }
            ls_mem_fail_nth(0);
            ls_sched_release(&s);
        }
}

/* The lengths of all messages from a to b are the same in both lists. */
static void check_pair(const ls_sched *a, const ls_sched *b, int rank_a, int rank_b)
{
    int32_t i = 0, j = 0;

    for (;; i++, j++) {
        while (i < a->count && !(a->steps[i].act == LS_SCHED_SEND && a->steps[i].peer == rank_b))
            i++;
        while (j < b->count &&
               !((b->steps[j].act == LS_SCHED_RECV || b->steps[j].act == LS_SCHED_RECV_ADD) &&
                 b->steps[j].peer == rank_a))
            j++;
        if (i >= a->count || j >= b->count)
            break;
        LS_CHECK_EQ(a->steps[i].count, b->steps[j].count);
        LS_CHECK_EQ(a->steps[i].number, b->steps[j].number);
    }
    LS_CHECK_EQ(i >= a->count, true);
    LS_CHECK_EQ(j >= b->count, true);
}

static const struct {
    const char *name;
    ls_coll_kind kind;
    int chunks; /* of the buffer; 0: not cut */
} large[] = {
    {"ring", LS_COLL_ALL_REDUCE, 0},      {"ring", LS_COLL_REDUCE_SCATTER, 0},
    {"ring", LS_COLL_ALL_GATHER, 0},      {"ring", LS_COLL_BROADCAST, 1000},
    {"halving", LS_COLL_ALL_REDUCE, 0},   {"halving", LS_COLL_REDUCE_SCATTER, 0},
    {"halving", LS_COLL_ALL_GATHER, 0},   {"doubling", LS_COLL_ALL_REDUCE, 0},
    {"tree", LS_COLL_ALL_REDUCE, 1000},   {"tree", LS_COLL_BROADCAST, 1000},
    {"tree2", LS_COLL_ALL_REDUCE, 1000},  {"pairwise", LS_COLL_ALL_REDUCE, 0},
    {"pairwise", LS_COLL_ALL_TO_ALL, 10}, {"direct", LS_COLL_ALL_REDUCE, 0},
    {"direct", LS_COLL_BROADCAST, 0},     {"dissemination", LS_COLL_BARRIER, 0},
};

/* 3 * 2^33 + 5 elements; a rank and those it talks to. */
static void check_large(int row, int ranks, int rank)
{
    int64_t count = (INT64_C(3) << 33) + 5, all = count;
    ls_sched_args a = {.kind = large[row].kind, .ranks = ranks, .rank = rank, .count = count};
    int near[] = {rank ^ 1, (rank + 1) % ranks, (rank + ranks - 1) % ranks, rank ^ 2048, rank / 2};
    ls_sched mine, other;

    if (large[row].kind == LS_COLL_BARRIER)
        count = 0;
    if (large[row].kind == LS_COLL_ALL_TO_ALL)
        a.count = count / ranks;
    a.chunk = large[row].chunks ? a.count / large[row].chunks : 0;
    build(&mine, a, large[row].name);
    ls_cost_query q = {.kind = a.kind,
                       .ranks = ranks,
                       .rank = rank,
                       .count = a.count,
                       .chunk = a.chunk,
                       .size = 1};
    LS_CHECK_EQ(ls_sched_text_sent(&mine), ls_cost_sent(ls_algo_find(large[row].name), &q));
    for (size_t i = 0; i < LS_COUNT(near); i++) {
        if (near[i] >= ranks || near[i] == rank)
            continue;
        a.rank = near[i];
        build(&other, a, large[row].name);
        check_pair(&mine, &other, rank, near[i]);
        check_pair(&other, &mine, near[i], rank);
        ls_sched_release(&other);
    }
    for (int32_t i = 0; i < mine.count; i++)
        if (mine.steps[i].act != LS_SCHED_SEND && mine.steps[i].to == LS_SCHED_OUT)
            LS_CHECK(mine.steps[i].to_at >= 0 && mine.steps[i].to_at + mine.steps[i].count <= all);
    ls_sched_release(&mine);
}

LS_TEST(sched_of_large_worlds_and_counts)
{
    for (size_t row = 0; row < LS_COUNT(large); row++) {
        check_large((int)row, 4096, 0);
        check_large((int)row, 4096, 1025);
        check_large((int)row, 4095, 2047);
        check_large((int)row, 3, 1);
        check_large((int)row, 3, 2);
    }
}

LS_TEST(sched_of_a_message)
{
    ls_sched s;

    build(&s, (ls_sched_args){.kind = LS_COLL_SEND, .ranks = 3, .rank = 0, .peer = 2, .count = 7},
          "direct");
    LS_CHECK_EQ(s.count, 1);
    LS_CHECK_EQ(s.steps[0].peer, 2);
    LS_CHECK_EQ(s.steps[0].count, 7);
    ls_sched_release(&s);
    build(&s, (ls_sched_args){.kind = LS_COLL_RECV, .ranks = 3, .rank = 2, .peer = 0, .count = 7},
          "direct");
    LS_CHECK_EQ(s.steps[0].act, LS_SCHED_RECV);
    ls_sched_release(&s);
}
