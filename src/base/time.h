/* time.h -- monotonic time in nanoseconds, deadlines made of it, and the clock on the wall. */
#pragma once
#include "base/base.h"
#include <time.h>

LS_C_BEGIN

#define LS_NS_PER_S INT64_C(1000000000)
#define LS_NS_PER_MS INT64_C(1000000)
#define LS_NO_DEADLINE INT64_MAX /* only for waits that another deadline already bounds */

static inline int64_t ls_time_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * LS_NS_PER_S + t.tv_nsec;
}

/* Milliseconds since 1970. For people and for comparing hosts, never for a deadline: it may jump. */
static inline int64_t ls_time_wall_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / LS_NS_PER_MS;
}

/* Nanoseconds since this process was started (by the kernel's record, not by our first call). */
int64_t ls_time_since_start_ns(void);

/* A span of time as people read it, in three digits or so: "850 us", "43.7 s", "12.2 min", "3.1 h";
 * "0" where it is less than a nanosecond. Returns out. */
enum { LS_TIME_TEXT = 24 };
const char *ls_time_text(double ns, char out[LS_TIME_TEXT]);

LS_C_END
