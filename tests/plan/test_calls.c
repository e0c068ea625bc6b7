/* test_calls.c -- leaves into calls. */
#include "harness.h"
#include "plan/calls.h"

static ls_calls plan(int64_t sequences, int64_t leaf, int64_t group, int64_t context,
                     ls_reduce reduce)
{
    ls_run run = {.name = NULL};
    ls_calls calls;

    run.batch.sequences = sequences;
    run.batch.leaf = leaf;
    run.batch.group = group;
    run.model.context = context;
    run.train.reduce = reduce;
    ls_calls_plan(&run, &calls);
    return calls;
}

LS_TEST(calls_cover_all_leaves_once)
{
    for (int64_t leaves = 1; leaves <= 33; leaves++)
        for (int64_t group = 1; group <= 32; group *= 2) {
            ls_calls c = plan(leaves * 3, 3, group, 64, LS_REDUCE_ORDERED);
            int64_t seen = 0;
            for (int64_t i = 0; i < c.calls; i++) {
                LS_CHECK_EQ(ls_calls_first(&c, i), seen);
                LS_CHECK(ls_calls_leaves(&c, i) >= 1);
                seen += ls_calls_leaves(&c, i);
            }
            LS_CHECK_EQ(seen, leaves);
        }
}

LS_TEST(calls_need_log2_buffers_in_ordered_mode_only)
{
    LS_CHECK_EQ(plan(8, 1, 1, 64, LS_REDUCE_ORDERED).buffers, 4);
    LS_CHECK_EQ(plan(7, 1, 1, 64, LS_REDUCE_ORDERED).buffers, 3);
    LS_CHECK_EQ(plan(8, 1, 8, 64, LS_REDUCE_ORDERED).buffers, 1);
    LS_CHECK_EQ(plan(8, 1, 1, 64, LS_REDUCE_FAST).buffers, 1);
}
