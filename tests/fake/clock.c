/* clock.c -- a library that is loaded before libc's own and makes the clock on the wall jump: by an
 * hour forwards, an hour backwards and back again, every second, in each process at other times.
 * Monotonic time is left alone. What decides by the time of day waits for an hour, or not at all.
 */
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

enum { HOUR_S = 3600 };

SHOWN int clock_gettime(clockid_t clock, struct timespec *ts);
SHOWN int gettimeofday(struct timeval *restrict tv, void *restrict zone);
SHOWN time_t time(time_t *at);

static int ask(clockid_t clock, struct timespec *ts)
{
    return (int)syscall(SYS_clock_gettime, clock, ts);
}

static time_t jump_s(void)
{
    struct timespec now = {0, 0};

    (void)ask(CLOCK_MONOTONIC, &now);
    return (now.tv_sec + getpid()) % 3 * HOUR_S - HOUR_S;
}

int clock_gettime(clockid_t clock, struct timespec *ts)
{
    int failed = ask(clock, ts);

    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        ts->tv_sec += jump_s();
    return failed;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
    struct timespec now;

    (void)zone;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    *tv = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *at)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}
