/* aide.c -- see aide.h. */
#include "cluster/aide.h"

#include <signal.h>
#include <time.h>
#include "base/time.h"

void ls_aide_init(ls_aide *aide)
{
    pthread_condattr_t monotonic;

    *aide = (ls_aide){.runs = false};
    pthread_mutex_init(&aide->guard, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&aide->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

ls_status ls_aide_start(ls_aide *aide, void *(*work)(void *), void *context, const char *what)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    aide->runs = pthread_create(&aide->thread, NULL, work, context) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return aide->runs ? LS_OK : ls_fail(LS_EIO, "cannot start a thread %s", what);
}

void ls_aide_wait(ls_aide *aide, int64_t ms)
{
    struct timespec until;

    if (aide->stop)
        return;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += ms % 1000 * LS_NS_PER_MS;
    until.tv_sec += ms / 1000 + until.tv_nsec / LS_NS_PER_S;
    until.tv_nsec %= LS_NS_PER_S;
    pthread_cond_timedwait(&aide->wake, &aide->guard, &until);
}

void ls_aide_wake(ls_aide *aide)
{
    pthread_cond_signal(&aide->wake);
}

bool ls_aide_end(ls_aide *aide)
{
    if (!aide->runs)
        return false;
    pthread_mutex_lock(&aide->guard);
    aide->stop = true;
    pthread_cond_signal(&aide->wake);
    pthread_mutex_unlock(&aide->guard);
    pthread_join(aide->thread, NULL);
    aide->runs = false;
    return true;
}

void ls_aide_release(ls_aide *aide)
{
    pthread_cond_destroy(&aide->wake);
    pthread_mutex_destroy(&aide->guard);
}
