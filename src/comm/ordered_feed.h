/* ordered_feed.h -- the ordered sum (ordered.h) for ranks that do not keep a whole gradient.
 *
 * ordered_sum.h takes the roots of a rank when all its leaves are done. Here a rank brings its
 * nodes one after the other, in rounds: one node (the sum of some leaves) or none in each round.
 * Each owner keeps the partial sums of its own elements, one stack for each rank, and in the last
 * round combines all of them along the plan of ordered.h. The bits are the same.
 *
 *     rank 0 has leaves 0 1 2, rank 1 has 3 4 5 6; one leaf in a round; at the owner of an element:
 *
 *     round 0   stack of 0: 0         stack of 1: 3
 *     round 1   stack of 0: 01        stack of 1: 3 4          (0 + 1: siblings)
 *     round 2   stack of 0: 01 2      stack of 1: 3 45
 *     round 3                         stack of 1: 3 (45)6      then 01 2 3 456 along the plan
 *
 * Elements come in parts, as in ordered_sum.h. At most `ahead` parts are in flight at a time, and
 * they end in the order in which they started. */
#pragma once
#include "comm/comm.h"
#include "comm/ordered.h"

LS_C_BEGIN

typedef struct ls_ordered_feed ls_ordered_feed;

typedef struct ls_ordered_feed_args {
    ls_comm *comm;              /* borrowed until close */
    const ls_ordered_run *runs; /* leaves of each rank; borrowed while opening, as all tables */
    int64_t leaves;
    const int64_t *counts; /* [parts][ranks]: elements that each rank gets of each part */
    int parts, ahead;
    int rounds;
    const int *merges; /* [rounds][ranks]: sums due when the node of that round is on the rank's
                        * stack (ls_ordered_merges); -1: it brings none */
    ls_dtype type;
} ls_ordered_feed_args;

/* Slots that a rank's stack needs, counted node by node; what comes in the last round needs
 * none. */
typedef struct ls_ordered_feed_room {
    int height, slots;
} ls_ordered_feed_room;
void ls_ordered_feed_count(ls_ordered_feed_room *room, int merges);

/* Bytes that opening allocates on a rank that owns `own` elements of all parts, at most `most` of
 * one part, where the stacks of all ranks need this many slots. */
int64_t ls_ordered_feed_bytes(int64_t own, int64_t most, int ranks, int ahead, int64_t slots,
                              ls_dtype type);

ls_status ls_ordered_feed_open(ls_ordered_feed **feed_out, const ls_ordered_feed_args *args);
void ls_ordered_feed_close(ls_ordered_feed *feed); /* NULL is allowed */

/* node: the elements of this part in the rank's node; read until the part has ended, ignored where
 * the rank brings none. Rounds of one part start in order. */
ls_status ls_ordered_feed_start(ls_ordered_feed *feed, int part, int round, const void *node);

/* End the oldest part that was started. In the last round, out gets this rank's elements of the
 * sum. */
ls_status ls_ordered_feed_end(ls_ordered_feed *feed, int part, int round, void *out,
                              int64_t deadline_ns);

LS_C_END
