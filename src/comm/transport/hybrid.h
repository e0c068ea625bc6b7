/* hybrid.h -- one transport made of two: shared memory for the ranks of this node, a network for
 * the others. Its peers are ranks of the world. */
#pragma once
#include "comm/transport/transport.h"

LS_C_BEGIN

typedef struct ls_hybrid_args {
    ls_transport *node, *network; /* given away; either may be NULL */
    const int *place; /* for each rank: its peer number in `node`, or -1: in `network`; copied */
    int ranks;
} ls_hybrid_args;

/* Closes both parts when it fails. */
ls_status ls_hybrid_open(ls_transport **transport_out, const ls_hybrid_args *args);

/* Replace the network from now on by another one, given away; the old one is the caller's again (or
 * part of the new one). Nothing may be in flight. */
void ls_hybrid_set_network(ls_transport *transport, ls_transport *network);

LS_C_END
