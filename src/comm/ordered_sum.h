/* ordered_sum.h -- the ordered sum (ordered.h) as an operation of all ranks of a communicator.
 *
 * Every rank comes with the roots of its leaves, each a buffer of the same length. The elements are
 * divided by owner: rank r gets counts[r] of them, side by side. A root travels once, cut by owner;
 * each owner combines what it got along the tree, so that its result has the bits that one process
 * would have computed, whoever computed the leaves.
 *
 *   roots of rank 0:  [aaaa|bbbb]  [cccc|dddd]        rank 0 gets aaaa cccc eeee
 *   root of rank 1:   [eeee|ffff]                     rank 1 gets bbbb dddd ffff
 *
 * The elements may come in parts (buckets of a gradient), each divided by owner for itself: a part
 * is started when its roots are there and ended later, so that it travels meanwhile.
 *
 * The memory in which roots meet is taken when opening. */
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
    int64_t roots; /* room for so many in all; 0: for those of the runs */
} ls_ordered_sum_args;

/* Bytes that opening takes on rank `rank` of `ranks`; the communicator may be missing. */
int64_t ls_ordered_sum_bytes(const ls_ordered_sum_args *args, int ranks, int rank);

/* All ranks with the same arguments. LS_EUSAGE: the runs are not the leaves, each once. */
ls_status ls_ordered_sum_open(ls_ordered_sum **sum_out, const ls_ordered_sum_args *args);
void ls_ordered_sum_close(ls_ordered_sum *sum); /* NULL is allowed */

/* From the next sum on the leaves are shared like this; by all ranks alike. Takes no memory but for
 * small tables. LS_EUSAGE as above, or there is no room for so many roots. A sum whose split has
 * failed can only be closed. */
ls_status ls_ordered_sum_split(ls_ordered_sum *sum, const ls_ordered_run *runs, int64_t leaves);

/* Start a part, the same ones in the same order on all ranks. roots: as many as ls_ordered_roots()
 * says for this rank, each where the part's elements begin; they are only read, until the part has
 * ended. Takes ls_ordered_sum_requests() of the communicator's flights. */
ls_status ls_ordered_sum_start(ls_ordered_sum *sum, int part, void *const *roots);
int ls_ordered_sum_requests(const ls_ordered_sum *sum);

/* Wait for a part that was started, and combine it. out: this rank's elements of the part; may lie
 * in a root, where they are. */
ls_status ls_ordered_sum_end(ls_ordered_sum *sum, int part, void *out, int64_t deadline_ns);

LS_C_END
