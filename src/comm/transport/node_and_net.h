/* node_and_net.h -- one transport made of two: shared memory for the ranks of this node, a network for the
 * others. Its peers are ranks of the world. */
#pragma once
#include "comm/transport/transport.h"

LS_C_BEGIN

typedef struct ls_node_and_net_args {
    ls_transport *near, *far; /* given away; either may be NULL */
    const int *place;         /* for each rank: its peer number of near, or -1 for far; copied */
    int ranks;
} ls_node_and_net_args;

/* Closes both when it fails. */
ls_status ls_node_and_net_open(ls_transport **transport_out, const ls_node_and_net_args *args);

/* Another transport to the other nodes from now on, given away; what it was is the caller's again (or
 * part of the new one). Nothing may be in flight. */
void ls_node_and_net_set_far(ls_transport *transport, ls_transport *far);

LS_C_END
