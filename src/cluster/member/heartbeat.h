/* heartbeat.h -- how long a node may send no heartbeat before it counts as dead.
 *
 * A busy machine sends some heartbeats late. So the limit is dead_ns, or eight times the largest
 * recent delay where that is longer (at most ten times dead_ns). Other places where a hang is
 * detected are listed in comm/watchdog.c. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

typedef struct ls_heartbeat {
    int64_t heard_ns; /* the last heartbeat; 0: none yet */
    int64_t late_ns;  /* the largest delay of recent heartbeats; it decays */
    bool suspected;   /* the owner's: since the last heartbeat */
} ls_heartbeat;

/* A heartbeat has come; the node sends one every every_ns. */
void ls_heartbeat_heard(ls_heartbeat *heartbeat, int64_t every_ns, int64_t now);

/* The listener itself did not run for this long: that time is not silence of the node. */
void ls_heartbeat_forgive(ls_heartbeat *heartbeat, int64_t away_ns);

/* Time since the last heartbeat; 0: there never was one. */
int64_t ls_heartbeat_silent(const ls_heartbeat *heartbeat, int64_t now);
bool ls_heartbeat_is_dead(const ls_heartbeat *heartbeat, int64_t dead_ns, int64_t now);

LS_C_END
