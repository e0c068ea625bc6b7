/* tcp_flaps.c -- keeps the times of the latest breaks in a ring; a warning is due when the oldest
 * one is recent. */
#include "comm/transport/tcp_flaps.h"

#include "base/time.h"

static bool within(int64_t since_ns, int64_t now_ns, int64_t seconds)
{
    return since_ns > 0 && now_ns - since_ns < seconds * LS_NS_PER_S;
}

bool ls_tcp_flaps_add(ls_tcp_flaps *f, int64_t now_ns)
{
    int last = (f->next + LS_TCP_FLAPS - 1) % LS_TCP_FLAPS;

    if (within(f->at_ns[last], now_ns, 1))
        return false;
    f->at_ns[f->next] = now_ns;
    f->next = (f->next + 1) % LS_TCP_FLAPS;
    /* The next slot has the oldest of them. */
    if (!within(f->at_ns[f->next], now_ns, LS_TCP_FLAPS_S) ||
        within(f->told_ns, now_ns, LS_TCP_FLAPS_S))
        return false;
    f->told_ns = now_ns;
    return true;
}
