/* heartbeat.c -- the largest delay is remembered and decays, so the limit grows at once and shrinks
 * slowly. With heartbeats every 250 ms and dead_ns of 3 s:
 *
 *     it is late by      0     0     0.6 s   0      0    ...  32 heartbeats later
 *     late_ns            0     0     0.6     0.56   0.53      0.08
 *     limit              3 s   3 s   4.8 s   4.5 s  4.2 s     3 s (8 x late_ns is less)
 *
 * MOST bounds the limit: after one very late heartbeat nobody waits for hours. */
#include "cluster/member/heartbeat.h"

enum {
    LATE_TIMES = 8, /* a node may be silent for this many times the largest recent delay */
    FORGET = 16,    /* a delay decays by 1 / FORGET with each heartbeat */
    MOST = 10       /* times dead_ns, in any case */
};

void ls_heartbeat_heard(ls_heartbeat *heartbeat, int64_t every_ns, int64_t now)
{
    int64_t late = heartbeat->heard_ns ? now - heartbeat->heard_ns - every_ns : 0;

    heartbeat->late_ns = ls_max_i64(late, heartbeat->late_ns - heartbeat->late_ns / FORGET);
    heartbeat->heard_ns = now;
    heartbeat->suspected = false;
}

void ls_heartbeat_forgive(ls_heartbeat *heartbeat, int64_t away_ns)
{
    if (heartbeat->heard_ns)
        heartbeat->heard_ns += away_ns;
}

int64_t ls_heartbeat_silent(const ls_heartbeat *heartbeat, int64_t now)
{
    return heartbeat->heard_ns ? now - heartbeat->heard_ns : 0;
}

bool ls_heartbeat_is_dead(const ls_heartbeat *heartbeat, int64_t dead_ns, int64_t now)
{
    int64_t limit =
        ls_min_i64(ls_max_i64(dead_ns, LATE_TIMES * heartbeat->late_ns), MOST * dead_ns);

    return ls_heartbeat_silent(heartbeat, now) > limit;
}
