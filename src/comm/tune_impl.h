/* tune_impl.h -- what the files of the tuner share. Calls that say "all ranks" are collective. */
#pragma once
#include "comm/comm_impl.h"
#include "comm/tune.h"

/* tune.c */
/* comm->tune has new numbers: derive what depends on them (comm_impl.h). */
void ls_tune_use(ls_comm *comm);
/* The same, and drop schedules that were made for the old numbers. */
void ls_tune_forget_plans(ls_comm *comm);
/* LS_EUSAGE: something is in flight. */
ls_status ls_tune_check_idle(ls_comm *comm);
/* Rank 0's bytes, and the largest of each number: all ranks. */
ls_status ls_tune_tell(ls_comm *comm, void *bytes, int64_t count, int64_t deadline_ns);
ls_status ls_tune_largest(ls_comm *comm, ls_dtype type, void *values, int64_t count,
                          int64_t deadline_ns);
/* Memory of the node for all ranks, or for none: then *all_out is false. All ranks. *memory_out
 * belongs to the caller in any case; NULL where there was none. */
ls_status ls_tune_scratch(ls_comm *comm, int64_t bytes, int64_t deadline_ns, char **memory_out,
                          bool *all_out);
/* The larger of each of two links' numbers, in the first one. */
void ls_tune_keep_larger(ls_cost_link *a, const ls_cost_link *b);
/* Nodes with several ranks each, as cost.h sees them. */
ls_cost_nodes ls_tune_nodes(const ls_comm *comm);
/* The pick that was made for such a collective, or NULL. */
const ls_tune_pick *ls_tune_find_pick(const ls_comm *comm, const ls_coll *coll);

/* tune_measure.c: the k-th distance at which n nodes measure (0: there are no more), and in which
 * of three turns the pair that begins at node i does. */
int ls_tune_distance(int n, int k);
int ls_tune_turn(int n, int d, int i);

/* tune_measure.c: whether the first link is still what it was, by one message; the rank that sends
 * it knows. All ranks. */
ls_status ls_tune_look_again(ls_comm *comm, int64_t deadline_ns, bool *changed_out);
