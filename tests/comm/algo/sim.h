/* sim.h -- runs the schedules of all ranks of a collective in one process.
 *
 * A message is handed over when its send and its receive may both start, the strictest transport
 * there is; which of all possible steps goes next is drawn at random. Elements are 64-bit numbers
 * that name rank and place, and the sum wraps, so a result is right only when every contribution is
 * in it exactly once. Algorithms that promise rank order are run with a product instead, which is
 * not commutative, and `last` multiplies by a constant, so that it too must happen exactly once. */
#pragma once
#include "harness.h"
#include "comm/algo/algo.h"
#include "comm/cost.h"

typedef struct ls_sim_case {
    const ls_algo *algo;
    ls_coll_kind kind;
    int ranks, root;
    int64_t count, chunk;
    bool in_place;
    bool uneven; /* tables of counts, drawn from the seed */
    uint64_t seed;
} ls_sim_case;

typedef struct ls_sim {
    ls_sim_case c;
    ls_sched *scheds;
    ls_sched_args *args;
    int64_t *counts;  /* uneven: [from][to], then transposed */
    int32_t *base;    /* first global number of each rank's steps; base[ranks]: all */
    int32_t *partner; /* by global number: the other end of a message, -1 */
    int32_t *owner;   /* rank of a global number */
} ls_sim;

/* Build all schedules and check what can be seen without running: ranges inside their buffers,
 * messages that match, hazards, bytes sent as cost.c says. */
void ls_sim_init(ls_sim *s, const ls_sim_case *c);
void ls_sim_release(ls_sim *s);

/* Run with random order and compare all results. window 0: all steps are looked at. */
void ls_sim_run(ls_sim *s, int window);

/* Run while one rank does nothing; how many of the others finish all the same. */
int ls_sim_finish_without(ls_sim *s, int absent);

/* Time under the rules of cost.h. */
double ls_sim_time(ls_sim *s, const ls_cost_query *q);

/* Fail with the case and a schedule in words. */
_Noreturn void ls_sim_fail(const ls_sim *s, int rank, const char *fmt, ...) LS_PRINTF(3, 4);
