/* algo.h -- the algorithms: one row each, which the tuner, the bench, the tests and the cost model
 * share.
 *
 * An algorithm adds hop by hop (each rank adds what arrives to what it has and passes the sum on)
 * or at once (`once`: all contributions meet at one rank and are added there in rank order). Sums
 * of 16-bit types are made in fp32 and rounded once, so only the second kind is offered for them:
 * hop by hop they would be rounded at every rank, or sent as fp32 at twice the bytes. Max, min and
 * integer sums are the same in any order. */
#pragma once
#include "comm/sched.h"

LS_C_BEGIN

typedef struct ls_algo_draft ls_algo_draft; /* algo_impl.h */
typedef struct ls_cost_query ls_cost_query; /* comm/cost.h */

struct ls_algo {
    const char *name; /* "ring": on the command line, in tables and in the tuner's file */
    const char *what; /* one line */
    bool once;        /* sums in rank order, rounded once; equal bits on all ranks */
    bool cuts;        /* uses `chunk` */
    bool uneven;      /* all_to_all and gather with tables of counts */
    bool wanders;     /* a rank sends to one peer after the other rather than to one all along */
    bool around;      /* each rank sends to the next one of the circle, and to no other */
    void (*draft[LS_COLL_KINDS])(ls_algo_draft *draft); /* NULL: it does not do this kind */
    double (*time_ns)(const ls_cost_query *query);      /* comm/cost.h */
    int64_t (*sent)(const ls_cost_query *query);        /* bytes that query->rank sends, exactly */
};

static inline bool ls_algo_does(const ls_algo *algo, ls_coll_kind kind)
{
    return algo->draft[kind] != NULL;
}

/* All of them, in the order in which tables show them. */
extern const ls_algo *const ls_algos[];
extern const int ls_algos_count;

/* NULL when there is none of this name. */
const ls_algo *ls_algo_find(const char *name);

/* Why the algorithm cannot do this, as the rest of a sentence ("adds hop by hop, which rounds
 * 16-bit sums more than once"), or NULL when it can. `once` asks for sums in rank order. */
const char *ls_algo_refuses(const ls_algo *algo, const ls_coll *coll, int ranks, bool once);

LS_C_END
