/* both.h -- one carrier made of two: shared memory for the ranks of this node, a network for the
 * others. Its peers are ranks of the world. */
#pragma once
#include "comm/transport/carrier.h"

LS_C_BEGIN

typedef struct ls_both_args {
    ls_carrier *near, *far; /* given away; either may be NULL */
    const int *place;       /* for each rank: its peer number of near, or -1 for far; copied */
    int ranks;
} ls_both_args;

/* Closes both when it fails. */
ls_status ls_both_open(ls_carrier **carrier_out, const ls_both_args *args);

/* Another carrier to the other nodes from now on, given away; what it was is the caller's again (or
 * part of the new one). Nothing may be in flight. */
void ls_both_set_far(ls_carrier *carrier, ls_carrier *far);

LS_C_END
