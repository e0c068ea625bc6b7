/* test_calls.c -- leaves into calls. */
#include "harness.h"
#include "layout/calls.h"

static ls_calls plan_of(const ls_mesh *mesh, int64_t sequences, int64_t leaf, int64_t group,
                        ls_reduce reduce)
{
    ls_run run = {.name = NULL};
    ls_calls calls;

    run.batch.sequences = sequences;
    run.batch.leaf = leaf;
    run.batch.group = group;
    run.train.reduce = reduce;
    ls_calls_plan(&run, mesh, &calls);
    return calls;
}

static ls_calls plan(int64_t sequences, int64_t leaf, int64_t group, ls_reduce reduce)
{
    return plan_of(NULL, sequences, leaf, group, reduce);
}

/* A rank's calls cover its leaves once; each is a whole node of the tree, and the stack ends with
 * the rank's roots. */
static int64_t check_rank(const ls_calls *c, int64_t group)
{
    ls_ordered_node nodes[LS_ORDERED_ROOTS];
    int64_t leaf = c->first, held = 0, most = 1;

    for (int64_t i = 0; i < c->calls; i++) {
        int64_t n = ls_calls_at(c, leaf), size = 1;
        while (size < n)
            size *= 2;
        LS_CHECK(n >= 1 && n <= group);
        LS_CHECK_EQ(leaf % size, 0);
        LS_CHECK(n == size || leaf + n == c->leaves);
        LS_CHECK(++held <= c->buffers);
        held -= ls_calls_merges(c, leaf, n);
        LS_CHECK(held >= 1);
        most = ls_max_i64(most, n);
        leaf += n;
    }
    LS_CHECK_EQ(leaf, c->first + c->own);
    LS_CHECK_EQ(c->most, most);
    LS_CHECK_EQ(held, ls_ordered_roots((ls_ordered_run){c->first, c->own}, c->leaves, nodes));
    return c->own;
}

/* Ranks of a cp group make equally many calls, of equally many leaves, of the same sequences. */
LS_TEST(calls_of_a_cp_are_made_together)
{
    for (int64_t leaves = 1; leaves <= 17; leaves++)
        for (int64_t group = 1; group <= 8; group *= 2)
            for (int cp = 2; cp <= 4; cp++)
                for (int r = 0; r < 2 * cp; r++) {
                    const ls_mesh mesh = {.ranks = 2 * cp, .rank = r, .cp = cp};
                    const ls_mesh first = {.ranks = 2 * cp, .rank = r / cp * cp, .cp = cp};
                    ls_calls c = plan_of(&mesh, leaves * 3, 3, group, LS_REDUCE_ORDERED);
                    ls_calls d = plan_of(&first, leaves * 3, 3, group, LS_REDUCE_ORDERED);
                    LS_CHECK_EQ(c.leaves, leaves * cp);
                    LS_CHECK_EQ(c.calls, d.calls);
                    LS_CHECK_EQ(check_rank(&c, group), d.own);
                    LS_CHECK_EQ(ls_calls_sequence(&c, c.first), ls_calls_sequence(&d, d.first));
                    LS_CHECK_EQ(ls_calls_sequence(&c, c.first), r < cp ? 0 : (leaves + 1) / 2 * 3);
                    for (int64_t i = 0; i < c.own; i += ls_calls_at(&c, c.first + i))
                        LS_CHECK_EQ(ls_calls_at(&c, c.first + i), ls_calls_at(&d, d.first + i));
                }
}

LS_TEST(calls_cover_all_leaves_once_on_any_number_of_ranks)
{
    for (int64_t leaves = 1; leaves <= 33; leaves++)
        for (int64_t group = 1; group <= 64; group *= 2)
            for (int ranks = 1; ranks <= 9; ranks++) {
                int64_t seen = 0;
                for (int r = 0; r < ranks; r++) {
                    const ls_mesh mesh = {.ranks = ranks, .rank = r};
                    ls_calls c = plan_of(&mesh, leaves * 3, 3, group, LS_REDUCE_ORDERED);
                    LS_CHECK_EQ(c.first, seen);
                    seen += check_rank(&c, group);
                }
                LS_CHECK_EQ(seen, leaves);
            }
}

LS_TEST(calls_in_fast_mode_count_sequences)
{
    ls_calls c = plan(12, 4, 2, LS_REDUCE_FAST);

    LS_CHECK_EQ(c.leaves, 12);
    LS_CHECK_EQ(c.most, 8);
    LS_CHECK_EQ(c.calls, 2);
    c = plan_of(&(ls_mesh){.ranks = 5, .rank = 4}, 12, 4, 2, LS_REDUCE_FAST);
    LS_CHECK_EQ(c.first, 10);
    LS_CHECK_EQ(c.own, 2);
}

LS_TEST(calls_need_log2_buffers_in_ordered_mode_only)
{
    LS_CHECK_EQ(plan(8, 1, 1, LS_REDUCE_ORDERED).buffers, 4);
    LS_CHECK_EQ(plan(7, 1, 1, LS_REDUCE_ORDERED).buffers, 3);
    LS_CHECK_EQ(plan(8, 1, 8, LS_REDUCE_ORDERED).buffers, 1);
    LS_CHECK_EQ(plan(8, 1, 1, LS_REDUCE_FAST).buffers, 1);
}

/* Whatever batch a ramp gives and however ranks are balanced, what was planned suffices, and the
 * calls of the step are those of a run of that batch. */
LS_TEST(calls_of_any_step_fit_into_the_plan)
{
    static const double weights[][3] = {{1, 1, 1}, {1, 0.5, 0.25}, {0.1, 1, 3}};

    for (int64_t leaves = 3; leaves <= 26; leaves++)
        for (int64_t group = 1; group <= 8; group *= 2)
            for (int ranks = 1; ranks <= 3; ranks++)
                for (int r = 0; r < ranks; r++) {
                    ls_run run = {.name = NULL};
                    ls_mesh mesh = {.ranks = ranks, .rank = r, .balance = ranks > 1};
                    ls_calls most, now;
                    run.batch.sequences = 2 * leaves;
                    run.batch.leaf = run.batch.ramp_from = 2;
                    run.batch.group = group;
                    run.batch.ramp = leaves;
                    for (size_t k = 0; k < LS_COUNT(weights); k++) {
                        mesh.weights = weights[k];
                        ls_calls_plan(&run, &mesh, &most);
                        for (int64_t step = 0; step <= leaves; step++) {
                            int64_t n = ls_calls_leaves(&run, step);
                            LS_CHECK_EQ(n, ls_min_i64(leaves, 1 + step * (leaves - 1) / leaves));
                            ls_calls_set(&most, ls_mesh_leaves(&mesh, n, r), n, &now);
                            LS_CHECK_EQ(check_rank(&now, group), ls_mesh_leaves(&mesh, n, r).count);
                        }
                    }
                }
}

/* A replica is alone with its leaves, which lie one after the other in the batch of all. */
LS_TEST(calls_of_replicas_divide_the_batch_and_share_no_tree)
{
    static const ls_reduce modes[] = {LS_REDUCE_ORDERED, LS_REDUCE_FAST};

    for (size_t m = 0; m < LS_COUNT(modes); m++)
        for (int64_t leaves = 2; leaves <= 17; leaves++)
            for (int ranks = 2; ranks <= 5 && ranks <= leaves; ranks++) {
                int64_t seen = 0;
                for (int r = 0; r < ranks; r++) {
                    const ls_mesh mesh = {.ranks = ranks, .rank = r, .independent = true};
                    ls_calls c = plan_of(&mesh, leaves * 2, 2, 4, modes[m]);
                    ls_calls alone = plan(c.sequences, modes[m] == LS_REDUCE_FAST ? 1 : 2,
                                          modes[m] == LS_REDUCE_FAST ? 8 : 4, modes[m]);
                    LS_CHECK_EQ(c.before, seen);
                    LS_CHECK_EQ(c.first, 0);
                    LS_CHECK_EQ(c.own, c.leaves);
                    LS_CHECK(c.calls == alone.calls && c.buffers == alone.buffers);
                    LS_CHECK(c.most * c.leaf == alone.most * alone.leaf);
                    seen += c.sequences;
                }
                LS_CHECK_EQ(seen, leaves * 2);
            }
}

/* With divided experts every rank has room for the largest call of all, and leaves are sequences.
 */
LS_TEST(calls_of_ranks_that_divide_experts_know_the_widest)
{
    static const int64_t groups[] = {1, 2, 3, 8};

    for (size_t g = 0; g < LS_COUNT(groups); g++) {
        ls_run run = {.name = NULL};
        int64_t widest = 0, known[4];
        run.batch.sequences = 10;
        run.batch.leaf = 2;
        run.batch.group = groups[g];
        run.mesh.ep = 2;
        LS_CHECK(!ls_calls_ordered(&run) && ls_calls_leaf(&run) == 1);
        for (int r = 0; r < 4; r++) {
            ls_mesh mesh = {.ranks = 4, .rank = r, .ep = 2};
            ls_calls c;
            ls_calls_plan(&run, &mesh, &c);
            LS_CHECK(!c.ordered && c.leaf == 1 && c.leaves == 10 && c.own == (r < 2 ? 3 : 2));
            widest = ls_max_i64(widest, c.most);
            known[r] = c.widest;
        }
        for (int r = 0; r < 4; r++)
            LS_CHECK_EQ(known[r], widest);
    }
}
