/* background.c -- a condition variable with a deadline: the thread sleeps until its time, a call,
 * or the end.
 *
 *     caller   start             wake (something to do)             end
 *     thread   work .... sleep .|work .... sleep ......|work .... sleep|returns
 *
 * The clock is CLOCK_MONOTONIC: a date that is set must not end or lengthen a sleep. */
#include "cluster/node/background.h"

#include <signal.h>
#include <time.h>
#include "base/time.h"

void ls_background_init(ls_background *background)
{
    pthread_condattr_t monotonic;

    *background = (ls_background){.runs = false};
    pthread_mutex_init(&background->guard, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&background->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

ls_status ls_background_start(ls_background *background, void *(*work)(void *), void *context,
                              const char *what)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    background->runs = pthread_create(&background->thread, NULL, work, context) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return background->runs ? LS_OK : ls_fail(LS_EIO, "cannot start a thread %s", what);
}

/* pthread_cond_timedwait() takes a point in time with nanoseconds below a second: 1,900 ms at 5.3 s is
 * 7.2 s, as 5 + 1 + 1 s and 0.2 s. */
void ls_background_wait(ls_background *background, int64_t ms)
{
    struct timespec until;

    if (background->stop)
        return;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ms % 1000 * LS_NS_PER_MS;
    until.tv_sec += ms / 1000 + until.tv_nsec / LS_NS_PER_S;
    until.tv_nsec %= LS_NS_PER_S;
    pthread_cond_timedwait(&background->wake, &background->guard, &until);
}

void ls_background_wake(ls_background *background)
{
    pthread_cond_signal(&background->wake);
}

bool ls_background_end(ls_background *background)
{
    if (!background->runs)
        return false;
    pthread_mutex_lock(&background->guard);
    background->stop = true;
    pthread_cond_signal(&background->wake);
    pthread_mutex_unlock(&background->guard);
    pthread_join(background->thread, NULL);
    background->runs = false;
    return true;
}

void ls_background_release(ls_background *background)
{
    pthread_cond_destroy(&background->wake);
    pthread_mutex_destroy(&background->guard);
}
