/* ordered_sum.h -- the ordered sum (ordered.h) as a collective.
 *
 * Every rank brings the roots of its leaves, each a buffer of the same length. The elements are
 * divided by owner: rank r owns counts[r] of them, side by side. A root is sent once, cut by owner;
 * each owner combines what it received along the tree, so its result has the bits that one process
 * would compute, however the leaves were divided.
 *
 *   roots of rank 0:  [aaaa|bbbb]  [cccc|dddd]        rank 0 gets aaaa cccc eeee
 *   root of rank 1:   [eeee|ffff]                     rank 1 gets bbbb dddd ffff
 *
 * The elements may come in parts (gradient buckets), each divided by owner for itself: a part
 * starts when its roots are ready and ends later, so that it is sent meanwhile.
 *
 * The memory in which roots arrive is allocated when opening. */
#pragma once
#include "comm/comm.h"
#include "comm/ordered.h"

LS_C_BEGIN

typedef struct ls_ordered_sum ls_ordered_sum;

typedef struct ls_ordered_sum_args {
    ls_comm *comm;              /* borrowed until close */
    const ls_ordered_run *runs; /* leaves of each rank; borrowed while opening, as counts */
    int64_t leaves;
    const int64_t *counts; /* [parts][ranks]: elements that each rank gets of each part */
    int parts;             /* 0: one */
    ls_dtype type;
    int64_t roots; /* room for this many roots in all; 0: for those of the runs */
} ls_ordered_sum_args;

/* Bytes that opening allocates on rank `rank` of `ranks`; the communicator may be missing. */
int64_t ls_ordered_sum_bytes(const ls_ordered_sum_args *args, int ranks, int rank);

/* All ranks, with the same arguments. LS_EUSAGE: the runs are not all leaves, each once. */
ls_status ls_ordered_sum_open(ls_ordered_sum **sum_out, const ls_ordered_sum_args *args);
void ls_ordered_sum_close(ls_ordered_sum *sum); /* NULL is allowed */

/* From the next sum on the leaves are divided like this; by all ranks alike. Allocates only small
 * tables. LS_EUSAGE as above, or there is no room for that many roots. After a failure the sum can
 * only be closed. */
ls_status ls_ordered_sum_split(ls_ordered_sum *sum, const ls_ordered_run *runs, int64_t leaves);

/* Start a part; all ranks start the same parts in the same order. roots: as many as
 * ls_ordered_roots() gives for this rank, each where the part's elements begin; they are read until
 * the part has ended. Takes ls_ordered_sum_requests() of the communicator's requests. */
ls_status ls_ordered_sum_start(ls_ordered_sum *sum, int part, void *const *roots);
int ls_ordered_sum_requests(const ls_ordered_sum *sum);

/* Wait for a part that was started, and combine it. out: this rank's elements of the part; may lie
 * inside a root, at their own place. */
ls_status ls_ordered_sum_end(ls_ordered_sum *sum, int part, void *out, int64_t deadline_ns);

LS_C_END
