/* calls.c -- leaves into calls. */
#include "plan/calls.h"

void ls_calls_plan(const ls_run *run, ls_calls *calls_out)
{
    ls_calls c = {.sequences = run->batch.sequences, .leaf = run->batch.leaf};

    c.ordered = run->train.reduce == LS_REDUCE_ORDERED;
    c.leaves = c.sequences / c.leaf;
    c.group = ls_min_i64(run->batch.group, c.leaves);
    c.calls = (c.leaves + c.group - 1) / c.group;
    c.buffers = 1;
    if (c.ordered)
        for (int64_t n = c.calls; n > 1; n /= 2)
            c.buffers++;
    *calls_out = c;
}

int64_t ls_calls_first(const ls_calls *calls, int64_t i)
{
    return i * calls->group;
}

int64_t ls_calls_leaves(const ls_calls *calls, int64_t i)
{
    return ls_min_i64(calls->group, calls->leaves - i * calls->group);
}
