/* test_balance.c -- times of ranks become slices: to the ideal split, not for little, alike on all.
 */
#include "base/mem.h"
#include "harness.h"
#include "train/session/balance.h"

/* Steps with these times per leaf, each a little off, and one that is far off; true: the weights
 * changed. */
static bool window(ls_balance *b, const ls_mesh *m, int64_t leaves, const double *ns)
{
    ls_ordered_run runs[8];
    double work[8];

    while (b->skip > 0) {
        ls_mesh_split(m, leaves, runs);
        memset(work, 0, sizeof work);
        LS_CHECK(!ls_balance_note(b, m->ranks, runs, work));
    }
    for (int i = 0; i < LS_BALANCE_WINDOW; i++) {
        ls_mesh_split(m, leaves, runs);
        for (int r = 0; r < m->ranks; r++)
            work[r] = (double)runs[r].count * ns[r] * (i == 2 ? 50 : 1 + 0.001 * (double)(i - 4));
        LS_CHECK_EQ(ls_balance_note(b, m->ranks, runs, work), i == LS_BALANCE_WINDOW - 1);
    }
    return ls_balance_decide(b, m, leaves);
}

LS_TEST(balance_gives_a_rank_of_half_the_speed_half_the_leaves)
{
    static const double ns[] = {10e6, 10e6, 20e6};
    ls_mesh m = {.ranks = 3, .balance = true};
    ls_ordered_run runs[3];
    ls_balance b;

    LS_CHECK_OK(ls_balance_init(&b, 3, NULL));
    m.weights = b.weights;
    LS_CHECK(window(&b, &m, 25, ns));
    ls_mesh_split(&m, 25, runs);
    LS_CHECK(runs[0].count == 10 && runs[1].count == 10 && runs[2].count == 5);
    LS_CHECK_NEAR(ls_balance_ratio(&b, 3, 2), 2, 0.01);
    LS_CHECK_NEAR(ls_balance_ratio(&b, 3, 0), 1, 0.01);
    LS_CHECK(!window(&b, &m, 25, ns)); /* it stays */
    /* The rank recovers: equal slices again. */
    static const double equal[] = {10e6, 10e6, 10e6};
    LS_CHECK(window(&b, &m, 24, equal));
    LS_CHECK_EQ(ls_mesh_leaves(&m, 24, 2).count, 8);
    ls_balance_release(&b);
}

LS_TEST(balance_follows_a_rank_three_times_slower_and_then_a_fifth)
{
    static const double third[] = {10e6, 10e6, 30e6}, fifth[] = {10e6, 10e6, 12e6};
    ls_mesh m = {.ranks = 3, .balance = true};
    ls_ordered_run runs[3];
    ls_balance b;

    LS_CHECK_OK(ls_balance_init(&b, 3, NULL));
    m.weights = b.weights;
    LS_CHECK(window(&b, &m, 28, third)); /* one window is enough */
    ls_mesh_split(&m, 28, runs);
    LS_CHECK(runs[0].count == 12 && runs[1].count == 12 && runs[2].count == 4);
    LS_CHECK_NEAR(ls_balance_ratio(&b, 3, 2), 3, 0.01);
    LS_CHECK(window(&b, &m, 28, fifth));
    ls_mesh_split(&m, 28, runs);
    LS_CHECK(runs[0].count == 10 && runs[1].count == 10 && runs[2].count == 8);
    LS_CHECK_NEAR(ls_balance_ratio(&b, 3, 2), 1.2, 0.01);
    ls_balance_release(&b);
}

LS_TEST(balance_does_not_move_leaves_for_little)
{
    static const double ns[] = {10e6, 10.4e6};
    static const double coarse[] = {10e6, 14e6};
    ls_mesh m = {.ranks = 2, .balance = true};
    ls_balance b;

    LS_CHECK_OK(ls_balance_init(&b, 2, NULL));
    m.weights = b.weights;
    LS_CHECK(!window(&b, &m, 1000, ns));
    LS_CHECK(!window(&b, &m, 2, coarse)); /* one leaf each is the best there is */
    LS_CHECK_EQ(ls_mesh_leaves(&m, 1000, 0).count, 500);
    ls_balance_release(&b);
}

LS_TEST(balance_keeps_its_bounds_and_begins_with_weights)
{
    static const double ns[] = {1e6, 1e6, 90e6, 1e6};
    static const double first[] = {1, 2, 1, 1};
    ls_mesh m = {.ranks = 4, .balance = true};
    ls_balance b;

    LS_CHECK_OK(ls_balance_init(&b, 4, first));
    m.weights = b.weights;
    LS_CHECK_EQ(ls_mesh_leaves(&m, 20, 1).count, 8);
    LS_CHECK(window(&b, &m, 20, ns));
    LS_CHECK_EQ(ls_mesh_leaves(&m, 20, 2).count, 1); /* so that its speed stays known */
    LS_CHECK(ls_balance_ratio(&b, 4, 2) > 80);
    /* With fewer leaves than ranks some have none, and no times. */
    static const double equal[] = {1e6, 1e6, 1e6, 1e6};
    (void)window(&b, &m, 2, equal);
    LS_CHECK_EQ(ls_mesh_leaves(&m, 2, 0).count + ls_mesh_leaves(&m, 2, 1).count +
                    ls_mesh_leaves(&m, 2, 2).count + ls_mesh_leaves(&m, 2, 3).count,
                2);
    ls_balance_release(&b);
}

LS_TEST(every_failing_allocation_of_a_balance_is_reported)
{
    ls_balance b;

    for (uint64_t n = 1; n <= 4; n++) {
        ls_mem_fail_nth(n);
        LS_CHECK_EQ(ls_balance_init(&b, 3, NULL), LS_ENOMEM);
        ls_mem_fail_nth(0);
    }
}
