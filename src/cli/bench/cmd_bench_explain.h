/* cmd_bench_explain.h -- `bench comm --explain` on paper: links, places of ranks, and every way of
 * a collective with its predicted and its measured time. */
#pragma once
#include <stdio.h>
#include "comm/tune.h"

typedef struct ls_bench_ways {
    ls_tune_table table;
    double measured_us[LS_COST_CANDIDATES + 2]; /* -1: not timed */
    const ls_cpus_place *places;                /* of each rank; borrowed */
} ls_bench_ways;

/* Above the first table. */
void ls_bench_explain_head(FILE *to, const ls_comm *comm, const ls_cpus_place *places);

void ls_bench_explain_show(FILE *to, const ls_coll *coll, int64_t bytes, const ls_bench_ways *ways);

/* One line. */
ls_status ls_bench_explain_json(FILE *to, const ls_comm *comm, const ls_coll *coll, int64_t bytes,
                                const ls_bench_ways *ways);
