/* aide.h -- a thread beside the caller that does something again and again, and waits in between.
 *
 * All signals are blocked in it: they are for the threads of the caller. */
#pragma once
#include <pthread.h>
#include "base/err.h"

typedef struct ls_aide {
    pthread_mutex_t guard; /* of what the caller and the thread share */
    bool stop;             /* under the guard: the thread is to end */
    pthread_t thread;
    pthread_cond_t wake;
    bool runs;
} ls_aide;

void ls_aide_init(ls_aide *aide);

/* what: for the message, "that renews a lease". */
ls_status ls_aide_start(ls_aide *aide, void *(*work)(void *), void *context, const char *what);

/* For the thread, which has the guard: until it is woken, or ms have passed; not at all when it is
 * to end. */
void ls_aide_wait(ls_aide *aide, int64_t ms);

/* For the caller, with the guard or without. */
void ls_aide_wake(ls_aide *aide);

/* Until the thread has ended; false: there was none. */
bool ls_aide_end(ls_aide *aide);

/* After ls_aide_end(). */
void ls_aide_release(ls_aide *aide);
