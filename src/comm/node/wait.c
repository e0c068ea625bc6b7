/* wait.c -- spin, then yield, then sleep.
 *
 * Waking a sleeper on another core takes some 25 us on a virtual machine; a cache line travels in a
 * tenth of a microsecond. So a rank spins first, without pauses for as long as an answer normally
 * takes. When there are more ranks than CPUs, spinning steals time from the rank that is waited
 * for, and yielding is the fastest way to let it run (below a microsecond on the same core).
 *
 *                        as many CPUs as ranks             fewer CPUs than ranks
 *     first              400 looks without a pause         a yield before each look
 *     then               a pause before each look, the     the clock is read each time
 *                        clock is read every 16th time
 *     by the clock       asleep after 200 us               asleep after 100 us
 *     asleep             20 ms at a time, or until woken
 *
 * No wakeup is lost:
 *
 *     sleeper   asleep += 1   look at the word again   sleep unless `wakeups` has changed
 *     writer    write the word   look at asleep: > 0   wakeups += 1, wake
 *
 * Both sides are sequentially consistent, so at least one sees the other; a wakeup in between makes
 * the sleep return at once. */
#include "comm/node/wait.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/time.h"
#include "comm/node/shm_segment_impl.h"

enum { HOT_TURNS = 400, CLOCK_TURNS = 16, AWAKE_NS = 200000, CROWDED_NS = 100000 };
#define SLICE_NS (20 * LS_NS_PER_MS)

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void ls_wait_begin(ls_wait *wait, ls_shm_segment *segment, int local, int64_t deadline_ns)
{
    *wait = (ls_wait){.segment = segment, .local = local, .deadline_ns = deadline_ns};
}

static void announce(ls_wait *w)
{
    ls_shm_segment_process *s = &w->segment->process[w->local];

    w->wakeups = atomic_load(&s->wakeups);
    if (w->announced)
        return;
    w->announced = true;
    atomic_fetch_add(&s->asleep, 1);
    atomic_fetch_add(&w->segment->head->sleepers, 1);
}

static void sleep_slice(ls_wait *w, int64_t now)
{
    ls_shm_segment_process *s = &w->segment->process[w->local];
    int64_t ns = ls_min_i64(SLICE_NS, w->deadline_ns - now);
    struct timespec slice = {.tv_sec = 0, .tv_nsec = (long)ns};

    syscall(SYS_futex, &s->wakeups, FUTEX_WAIT, w->wakeups, &slice, NULL, 0);
    announce(w); /* a later ring is for the next look */
}

/* One turn: spin or yield while it is early, then announce the sleep, then sleep for a slice. While
 * spinning, the clock is read once in CLOCK_TURNS turns only. */
ls_wait_turn ls_wait_once(ls_wait *wait)
{
    bool crowded = atomic_load_explicit(&wait->segment->crowded, memory_order_relaxed);

    if (ls_shm_segment_aborted(wait->segment))
        return LS_WAIT_BROKEN;
    if (!crowded && wait->turns < HOT_TURNS && wait->deadline_ns > 0) {
        wait->turns++;
        return LS_WAIT_ON;
    }
    if (crowded)
        sched_yield();
    else
        pause_cpu();
    if (!crowded && !wait->announced && ++wait->turns % CLOCK_TURNS != 0)
        return LS_WAIT_ON;
    int64_t now = ls_time_now_ns();
    if (now >= wait->deadline_ns)
        return LS_WAIT_LATE;
    if (wait->since_ns == 0)
        wait->since_ns = now;
    if (wait->announced)
        sleep_slice(wait, now);
    else if (now - wait->since_ns >= (crowded ? CROWDED_NS : AWAKE_NS))
        announce(wait);
    return LS_WAIT_ON;
}

void ls_wait_end(ls_wait *wait)
{
    if (!wait->announced)
        return;
    atomic_fetch_sub(&wait->segment->process[wait->local].asleep, 1);
    atomic_fetch_sub(&wait->segment->head->sleepers, 1);
    wait->announced = false;
}

void ls_wait_moved(ls_wait *wait)
{
    ls_wait_end(wait);
    wait->since_ns = 0;
    wait->turns = 0;
}

bool ls_wait_anybody(const ls_shm_segment *segment)
{
    return atomic_load(&segment->head->sleepers) != 0;
}

void ls_wait_wake(ls_shm_segment *segment, int local)
{
    ls_shm_segment_process *s = &segment->process[local];

    if (atomic_load(&s->asleep) == 0)
        return;
    atomic_fetch_add(&s->wakeups, 1);
    syscall(SYS_futex, &s->wakeups, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
