/* tcp_flaps.h -- how often a link has broken lately.
 *
 * A connection that breaks is opened again and nothing is lost, so nobody would hear of a cable
 * that does so all day: who has broken too often is told, once in a while. The channels of a link
 * break together; what follows a break within a second belongs to it. */
#pragma once
#include "base/base.h"

LS_C_BEGIN

enum { LS_TCP_FLAPS = 6, LS_TCP_FLAPS_S = 600 }; /* so often in so many seconds */

typedef struct ls_tcp_flaps {
    int64_t at_ns[LS_TCP_FLAPS]; /* the latest, in a circle; 0: none */
    int64_t told_ns;
    int next;
} ls_tcp_flaps;

/* The link has broken, now. True: so often that it is time to tell. */
bool ls_tcp_flaps_add(ls_tcp_flaps *flaps, int64_t now_ns);

LS_C_END
