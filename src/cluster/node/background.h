/* background.h -- a thread beside the caller that repeats a task, and sleeps in between.
 *
 * All signals are blocked in it: they are for the threads of the caller. */
#pragma once
#include <pthread.h>
#include "base/err.h"

typedef struct ls_background {
    pthread_mutex_t guard; /* of what the caller and the thread share */
    bool stop;             /* under the guard: the thread is to end */
    pthread_t thread;
    pthread_cond_t wake;
    bool runs;
} ls_background;

void ls_background_init(ls_background *background);

/* what: for the message, "that renews a lease". */
ls_status ls_background_start(ls_background *background, void *(*work)(void *), void *context,
                              const char *what);

/* For the thread, which has the guard: until it is woken, or ms have passed; not at all when it is
 * to end. */
void ls_background_wait(ls_background *background, int64_t ms);

/* For the caller, with the guard or without. */
void ls_background_wake(ls_background *background);

/* Until the thread has ended; false: there was none. */
bool ls_background_end(ls_background *background);

/* After ls_background_end(). */
void ls_background_release(ls_background *background);
