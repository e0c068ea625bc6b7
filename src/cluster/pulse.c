/* pulse.c -- see pulse.h. */
#include "cluster/pulse.h"

enum { FLOOR = 8, FORGET = 16, MOST = 10 };

void ls_pulse_heard(ls_pulse *pulse, int64_t every_ns, int64_t now)
{
    int64_t late = pulse->heard_ns ? now - pulse->heard_ns - every_ns : 0;

    pulse->late_ns = ls_max_i64(late, pulse->late_ns - pulse->late_ns / FORGET);
    pulse->heard_ns = now;
    pulse->suspected = false;
}

void ls_pulse_forgive(ls_pulse *pulse, int64_t away_ns)
{
    if (pulse->heard_ns)
        pulse->heard_ns += away_ns;
}

int64_t ls_pulse_silent(const ls_pulse *pulse, int64_t now)
{
    return pulse->heard_ns ? now - pulse->heard_ns : 0;
}

bool ls_pulse_is_dead(const ls_pulse *pulse, int64_t dead_ns, int64_t now)
{
    int64_t limit = ls_min_i64(ls_max_i64(dead_ns, FLOOR * pulse->late_ns), MOST * dead_ns);

    return ls_pulse_silent(pulse, now) > limit;
}
