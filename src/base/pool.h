/* pool.h -- a fixed pool of threads that runs numbered tasks.
 *
 * ls_pool_run() calls task(context, index, worker) for every index in [0, tasks), spread over the
 * workers, and returns when all are done. Which worker runs which index is not fixed, so a task
 * must write only what belongs to its index; then the result does not depend on the number of
 * threads. The calling thread is worker 0. One run at a time; not for blocking work.
 *
 * A pool may be pinned: worker i stays on the CPUs of masks[i]. The caller is pinned too, from its
 * first run until it frees the pool, because a caller that strays onto a worker's core holds that
 * worker up for milliseconds. Threads inherit the mask of their maker, so code that starts a thread
 * that is no worker uses ls_pool_start_apart().
 *
 * In a child made by fork() there are no workers: the caller does all tasks itself. */
#pragma once
#include "base/err.h"
#include <pthread.h>

LS_C_BEGIN

enum { LS_POOL_CPUS = 4096 }; /* most CPUs of a machine */

/* A set of CPUs, by the numbers of the operating system. */
typedef struct ls_pool_mask {
    unsigned long bits[LS_POOL_CPUS / (8 * sizeof(unsigned long))];
} ls_pool_mask;

void ls_pool_mask_add(ls_pool_mask *mask, int cpu);
bool ls_pool_mask_has(const ls_pool_mask *mask, int cpu);
int ls_pool_mask_count(const ls_pool_mask *mask);

/* The CPUs that the calling thread may use; when a pool has pinned it, those from before. */
void ls_pool_mask_get(ls_pool_mask *mask_out);

typedef struct ls_pool ls_pool;
typedef void (*ls_pool_task)(void *context, int64_t index, int worker);

typedef struct ls_pool_args {
    int threads;               /* >= 1, the caller included */
    const ls_pool_mask *masks; /* one per thread, copied; NULL: not pinned */
    bool crowded;              /* fewer CPUs than threads: workers sleep at once, they never spin */
} ls_pool_args;

/* LS_ENOMEM or LS_EFAIL when threads cannot be started. A mask that the system refuses is left
 * out: pinning changes speed only. */
ls_status ls_pool_open(ls_pool **pool_out, const ls_pool_args *args);

/* The same, not pinned; crowded when there are more threads than CPUs. */
ls_status ls_pool_create(ls_pool **pool_out, int threads);
void ls_pool_free(ls_pool *pool); /* NULL is allowed; gives the caller its CPUs back */

int ls_pool_threads(const ls_pool *pool);
bool ls_pool_pinned(const ls_pool *pool);
void ls_pool_run(ls_pool *pool, ls_pool_task task, void *context, int64_t tasks);

/* Call `watch` for every run and each worker that had tasks in it: from when to when, and how many.
 * Called by the workers themselves, at the same time. Not during a run; NULL: tell nobody. */
typedef void (*ls_pool_note)(void *context, int worker, int64_t begin_ns, int64_t end_ns,
                             int64_t tasks);
void ls_pool_watch(ls_pool *pool, ls_pool_note note, void *context);

/* pthread_create() for a thread that is no worker: it may use the CPUs of ls_pool_mask_get().
 * Returns 0 or an errno. */
int ls_pool_start_apart(pthread_t *thread_out, void *(*run)(void *), void *arg);

/* Fail, because a thread could not be started for this reason: "cannot WHAT: ...", with the limit of
 * processes in the hint where that is it. */
ls_status ls_pool_start_failed(int error, const char *what);

LS_C_END
