/* heartbeat.h -- how long a node may be silent that gives a sign of life at regular times.
 *
 * A busy machine is late now and then; so the limit grows with how late signs were lately: eight
 * times that, if it is more than what was asked for. Other places where a hang is detected are listed
 * in comm/watchdog.c. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

typedef struct ls_heartbeat {
    int64_t heard_ns; /* the last sign; 0: none yet */
    int64_t late_ns;  /* the largest delay of recent signs; it decays */
    bool suspected;   /* the owner's: since the last sign */
} ls_heartbeat;

/* A sign has come; they are given every every_ns. */
void ls_heartbeat_heard(ls_heartbeat *heartbeat, int64_t every_ns, int64_t now);

/* The listener itself was away for this long, which counts as no silence. */
void ls_heartbeat_forgive(ls_heartbeat *heartbeat, int64_t away_ns);

/* For how long there was no sign; 0: there never was one. */
int64_t ls_heartbeat_silent(const ls_heartbeat *heartbeat, int64_t now);
bool ls_heartbeat_is_dead(const ls_heartbeat *heartbeat, int64_t dead_ns, int64_t now);

LS_C_END
