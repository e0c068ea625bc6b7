/* order_proof.h -- the proof that each sample is used exactly once per epoch.
 *
 * It does not trust the arithmetic of data/corpus/sample_order.c: it walks positions, marks every
 * window in a bitmap per source and epoch, and finds what is missing or used twice. A second walk,
 * by an order made anew and started in the middle, must meet the same samples: seeking equals
 * walking. */
#pragma once
#include "data/corpus/sample_order.h"

LS_C_BEGIN

typedef struct ls_order_proof_source {
    int64_t windows; /* of one epoch */
    int64_t epochs;  /* proven whole: each window exactly once */
    int64_t samples; /* used in the walk */
} ls_order_proof_source;

typedef struct ls_order_proof {
    bool passed;
    char fault[240];   /* the first thing that is wrong, or "" */
    int64_t positions; /* walked */
    int64_t cut;       /* where the second walk began */
    int n_sources;
    ls_order_proof_source sources[LS_SAMPLE_ORDER_SOURCES];
} ls_order_proof;

/* Positions after which every source has finished at least one epoch. */
int64_t ls_order_proof_positions(const ls_sample_order *order);

/* Walk positions 0 .. positions-1. progress is called now and then; NULL: no progress is reported.
 * Fails only for lack of memory: a broken order is a result. */
ls_status ls_order_proof_order(const ls_sample_order *order, int64_t positions,
                               void (*progress)(void *context, int64_t done, int64_t all),
                               void *context, ls_order_proof *proof_out);

LS_C_END
