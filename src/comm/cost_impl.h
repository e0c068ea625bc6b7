/* cost_impl.h -- time and bytes of each algorithm, for the rows of algo/. */
#pragma once
#include "comm/cost.h"

#define LS_COST_DECLARE(name)                               \
    double ls_cost_time_##name(const ls_cost_query *query); \
    int64_t ls_cost_sent_##name(const ls_cost_query *query);
LS_COST_DECLARE(ring)
LS_COST_DECLARE(halving)
LS_COST_DECLARE(doubling)
LS_COST_DECLARE(tree)
LS_COST_DECLARE(tree2)
LS_COST_DECLARE(pairwise)
LS_COST_DECLARE(direct)
LS_COST_DECLARE(dissemination)
#undef LS_COST_DECLARE
