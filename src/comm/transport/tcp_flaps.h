/* tcp_flaps.h -- how often a link has broken lately.
 *
 * A connection that breaks is opened again and nothing is lost, so a bad cable would go unnoticed
 * all day. A link that breaks too often is logged, once in a while. The channels of a link break
 * together; breaks within a second of each other count once. */
#pragma once
#include "base/base.h"

LS_C_BEGIN

enum { LS_TCP_FLAPS = 6, LS_TCP_FLAPS_S = 600 }; /* this many breaks within this time */

typedef struct ls_tcp_flaps {
    int64_t at_ns[LS_TCP_FLAPS]; /* the latest, in a circle; 0: none */
    int64_t told_ns;
    int next;
} ls_tcp_flaps;

/* The link has broken now. True: often enough that a warning is due. */
bool ls_tcp_flaps_add(ls_tcp_flaps *flaps, int64_t now_ns);

LS_C_END
