/* calls.h -- how the sequences of a global batch become leaves, and leaves become calls.
 *
 * batch.sequences = leaves * leaf. A call runs `group` leaves at once; in ordered mode a group is a
 * power of two (or all leaves), so that it is a whole subtree of the tree of sums, and gradients of
 * calls are combined by a binary counter of `buffers` buffers. Grouping changes memory and speed,
 * never a bit. Example: 12 sequences, leaf 2: 6 leaves; group 4: calls of leaves 0-3 and 4-5. */
#pragma once
#include "config/run.h"

LS_C_BEGIN

typedef struct ls_calls {
    int64_t sequences, leaf, leaves; /* of the global batch */
    int64_t group, calls;            /* leaves per call, calls per step */
    int64_t buffers;                 /* gradient buffers alive at once */
    bool ordered;
} ls_calls;

/* run is loaded: leaf and group are numbers, never auto. */
void ls_calls_plan(const ls_run *run, ls_calls *calls_out);

/* First leaf and number of leaves of call i. */
int64_t ls_calls_first(const ls_calls *calls, int64_t i);
int64_t ls_calls_leaves(const ls_calls *calls, int64_t i);

LS_C_END
