/* test_ordered.c -- the ordered sum has the bits of one process, however leaves are placed. */
#include "harness.h"

#include <string.h>
#include "base/mem.h"
#include "base/rng.h"
#include "comm/ordered.h"
#include "kernel/cpu/leaves.h"

enum { WIDTH = 3, MOST_LEAVES = 40, MOST_RANKS = 9, DEPTH = 64 };

static float values[MOST_LEAVES][WIDTH];

static uint64_t draw(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 33;
}

/* One process, with plain additions, as the training step does it. */
static void sum_alone(int leaves, float out[WIDTH])
{
    float stack[DEPTH][WIDTH];
    int top = -1;

    for (int leaf = 0; leaf < leaves; leaf++) {
        memcpy(stack[++top], values[leaf], sizeof stack[0]);
        for (int m = ls_leaves_merges(leaf, leaves, top); m > 0; m--, top--)
            for (int i = 0; i < WIDTH; i++)
                stack[top - 1][i] += stack[top][i];
    }
    memcpy(out, stack[0], sizeof stack[0]);
}

typedef struct side { /* a rank, or the owner of the range */
    float memory[DEPTH][WIDTH];
    int top; /* partial sums in use */
} side;

static void side_init(side *s)
{
    memset(s->memory, 0xff, sizeof s->memory);
    s->top = 0;
}

/* Push a leaf or a root, then add the top partial sum to the one below it, this many times. */
static void push(side *s, const float *value, int merges)
{
    memcpy(s->memory[s->top++], value, sizeof s->memory[0]);
    LS_CHECK(merges < s->top);
    for (; merges > 0; merges--, s->top--)
        for (int i = 0; i < WIDTH; i++)
            s->memory[s->top - 2][i] += s->memory[s->top - 1][i];
}

static void work(side *s, ls_ordered_run run, int leaves)
{
    ls_ordered_node roots[LS_ORDERED_ROOTS];
    int most = 0;

    side_init(s);
    for (int64_t leaf = run.first; leaf < run.first + run.count; leaf++) {
        most = s->top + 1 > most ? s->top + 1 : most;
        push(s, values[leaf], ls_ordered_merges(leaf, run.first, leaves));
    }
    LS_CHECK_EQ(s->top, ls_ordered_roots(run, leaves, roots));
    LS_CHECK(most <= ls_ordered_most_depth(run.count, 1));
}

/* A random split in runs, some empty, given to ranks in order or shuffled. */
static void split(ls_ordered_run *runs, int ranks, int leaves, uint64_t *seed)
{
    int cut[MOST_RANKS + 1] = {0}, order[MOST_RANKS];
    bool shuffled = draw(seed) % 2;

    for (int r = 1; r < ranks; r++)
        cut[r] = (int)(draw(seed) % (uint64_t)(leaves + 1));
    cut[ranks] = leaves;
    for (int i = 1; i < ranks; i++) /* sort the cuts */
        for (int j = i; j > 1 && cut[j] < cut[j - 1]; j--) {
            int t = cut[j];
            cut[j] = cut[j - 1];
            cut[j - 1] = t;
        }
    for (int r = 0; r < ranks; r++)
        order[r] = r;
    for (int r = ranks - 1; shuffled && r > 0; r--) {
        int j = (int)(draw(seed) % (uint64_t)(r + 1)), t = order[r];
        order[r] = order[j];
        order[j] = t;
    }
    for (int r = 0; r < ranks; r++)
        runs[order[r]] = (ls_ordered_run){cut[r], cut[r + 1] - cut[r]};
}

static void check_split(const ls_ordered_run *runs, int ranks, int leaves)
{
    static side sides[MOST_RANKS], owner;
    ls_ordered_plan plan;
    float want[WIDTH];
    int depth = 0, roots = 0;

    for (int r = 0; r < ranks; r++) {
        work(&sides[r], runs[r], leaves);
        roots += sides[r].top;
    }
    LS_CHECK_OK(ls_ordered_plan_init(&plan, runs, ranks, leaves));
    LS_CHECK_EQ(plan.count, roots);
    side_init(&owner);
    for (int64_t i = 0; i < plan.count; i++) {
        const ls_ordered_step *s = &plan.steps[i];
        LS_CHECK(s->root < sides[s->rank].top);
        depth = owner.top + 1 > depth ? owner.top + 1 : depth;
        push(&owner, sides[s->rank].memory[s->root], s->merges);
    }
    LS_CHECK_EQ(owner.top, 1);
    LS_CHECK_EQ(depth, plan.depth);
    sum_alone(leaves, want);
    LS_CHECK(memcmp(owner.memory[0], want, sizeof want) == 0);
    ls_ordered_plan_release(&plan);
}

LS_TEST(ordered_sum_has_the_bits_of_one_process)
{
    uint64_t seed = 7;
    ls_ordered_run runs[MOST_RANKS];

    ls_rng_normal(ls_rng_derive(1, 2, 3), 0, MOST_LEAVES * WIDTH, &values[0][0]);
    for (int leaves = 1; leaves <= MOST_LEAVES; leaves++)
        for (int ranks = 1; ranks <= MOST_RANKS; ranks++)
            for (int i = 0; i < 30; i++) {
                split(runs, ranks, leaves, &seed);
                check_split(runs, ranks, leaves);
            }
}

/* The values are such that the order shows: otherwise the test above proves nothing. */
LS_TEST(ordered_sum_differs_from_a_plain_chain)
{
    float alone[WIDTH], chain[WIDTH] = {0};
    int differ = 0;

    ls_rng_normal(ls_rng_derive(1, 2, 3), 0, MOST_LEAVES * WIDTH, &values[0][0]);
    for (int leaves = 1; leaves <= MOST_LEAVES; leaves++) {
        sum_alone(leaves, alone);
        for (int i = 0; i < WIDTH; i++)
            chain[i] += values[leaves - 1][i];
        differ += memcmp(alone, chain, sizeof alone) != 0;
    }
    LS_CHECK(differ > 20);
}

LS_TEST(ordered_merges_of_all_leaves_are_those_of_the_kernel)
{
    for (int64_t leaves = 1; leaves <= 300; leaves++)
        for (int64_t leaf = 0, top = 0; leaf < leaves; leaf++, top++) {
            int merges = ls_leaves_merges(leaf, leaves, (int)top);
            LS_CHECK_EQ(ls_ordered_merges(leaf, 0, leaves), merges);
            top -= merges;
        }
}

LS_TEST(ordered_roots_of_an_aligned_run_are_one)
{
    ls_ordered_node roots[LS_ORDERED_ROOTS];

    LS_CHECK_EQ(ls_ordered_roots((ls_ordered_run){8, 8}, 64, roots), 1);
    LS_CHECK_EQ(roots[0].level, 3);
    LS_CHECK_EQ(roots[0].index, 1);
    LS_CHECK_EQ(ls_ordered_roots((ls_ordered_run){1, 14}, 64, roots), 6); /* 1 2 4 | 4 2 1 */
    LS_CHECK_EQ(ls_ordered_roots((ls_ordered_run){0, 0}, 64, roots), 0);
    LS_CHECK_EQ(ls_ordered_roots((ls_ordered_run){4, 3}, 7, roots),
                1);                  /* all there is of its node */
    int64_t most = INT64_C(1) << 60; /* 1 2 4 .. 2^58 | .. 4 2 1 */
    LS_CHECK_EQ(ls_ordered_roots((ls_ordered_run){1, most - 2}, most, roots), 118);
}

/* The most partial sums that a run holds when its leaves come as nodes of up to `group`. */
static int held_by_groups(ls_ordered_run run, int64_t leaves, int64_t group)
{
    int64_t end = run.first + run.count;
    int held = 0, most = 0;

    for (int64_t leaf = run.first, size; leaf < end; leaf += size) {
        for (size = 1;
             size < group && leaf % (2 * size) == 0 && ls_min_i64(leaf + 2 * size, leaves) <= end;)
            size *= 2;
        size = ls_min_i64(leaf + size, leaves) - leaf;
        int64_t last = leaf + size - 1;
        most = ++held > most ? held : most;
        held -= ls_ordered_merges(last, run.first, leaves) - ls_ordered_merges(last, leaf, leaves);
    }
    return most;
}

/* Both bounds hold everywhere, and somewhere they are met. */
LS_TEST(ordered_bounds_hold_for_every_run_and_are_met)
{
    ls_ordered_node nodes[LS_ORDERED_ROOTS];

    for (int64_t count = 0; count <= 24; count++)
        for (int64_t group = 1; group <= 32; group *= 2) {
            int roots = 0, depth = 0;
            for (int64_t leaves = 1; leaves <= 72; leaves++)
                for (int64_t first = 0; first + count <= leaves; first++) {
                    ls_ordered_run run = {first, count};
                    int n = ls_ordered_roots(run, leaves, nodes);
                    int held = held_by_groups(run, leaves, group);
                    roots = n > roots ? n : roots;
                    depth = held > depth ? held : depth;
                }
            LS_CHECK(roots <= ls_ordered_most_roots(count));
            LS_CHECK(depth <= ls_ordered_most_depth(count, group));
            if (count == 1 || count == 2 || count == 4 || count == 6 || count == 10 || count == 22)
                LS_CHECK_EQ(roots, ls_ordered_most_roots(count));
            if (group == 1 && count == 22)
                LS_CHECK_EQ(depth, ls_ordered_most_depth(count, group));
        }
    LS_CHECK_EQ(ls_ordered_most_roots(0), 0);
    LS_CHECK(ls_ordered_most_roots(INT64_C(1) << 60) <= LS_ORDERED_ROOTS);
}

LS_TEST(ordered_plan_refuses_gaps_and_overlaps)
{
    ls_ordered_plan plan;

    LS_CHECK_FAILS(ls_ordered_plan_init(&plan, (ls_ordered_run[]){{0, 3}, {4, 2}}, 2, 6), LS_EUSAGE,
                   "leaf 3 has no rank");
    LS_CHECK_FAILS(ls_ordered_plan_init(&plan, (ls_ordered_run[]){{0, 3}, {2, 4}}, 2, 6), LS_EUSAGE,
                   "leaf 2 belongs to rank 0 and to rank 1");
    LS_CHECK_FAILS(ls_ordered_plan_init(&plan, (ls_ordered_run[]){{0, 3}, {3, 2}}, 2, 6), LS_EUSAGE,
                   "leaf 5 has no rank");
    LS_CHECK_FAILS(ls_ordered_plan_init(&plan, (ls_ordered_run[]){{0, 3}, {3, 9}}, 2, 6), LS_EUSAGE,
                   "rank 1 cannot own 9 leaves from 3 on");
    LS_CHECK_FAILS(ls_ordered_plan_init(&plan, (ls_ordered_run[]){{-1, 3}}, 1, 3), LS_EUSAGE,
                   "cannot own");
    LS_CHECK_FAILS(ls_ordered_plan_init(&plan, (ls_ordered_run[]){{0, 3}}, 1, INT64_MAX), LS_EUSAGE,
                   "cannot sum 9223372036854775807 leaves");
    LS_CHECK_OK(ls_ordered_plan_init(&plan, (ls_ordered_run[]){{0, 0}}, 1, 0));
    LS_CHECK_EQ(plan.count, 0);
    ls_ordered_plan_release(&plan);
    for (uint64_t n = 1; n <= 2; n++) {
        ls_mem_fail_nth(n);
        LS_CHECK_FAILS(ls_ordered_plan_init(&plan, (ls_ordered_run[]){{0, 3}}, 1, 3), LS_ENOMEM,
                       "");
    }
    ls_mem_fail_nth(0);
}
