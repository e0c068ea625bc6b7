/* pool.h -- a fixed team of threads that runs numbered tasks.
 *
 * ls_pool_run() calls task(context, index, worker) for every index in [0, tasks), spread over the
 * workers, and returns when all are done. Which worker runs which index is not fixed, so a task
 * must write only what belongs to its index; then the result does not depend on the number of
 * threads. The calling thread is worker 0. One run at a time; not for blocking work. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

typedef struct ls_pool ls_pool;
typedef void (*ls_pool_task)(void *context, int64_t index, int worker);

/* threads >= 1, the caller included. LS_ENOMEM or LS_EFAIL when threads cannot be started. */
ls_status ls_pool_create(ls_pool **pool_out, int threads);
void ls_pool_free(ls_pool *pool); /* NULL is allowed */

int ls_pool_threads(const ls_pool *pool);
void ls_pool_run(ls_pool *pool, ls_pool_task task, void *context, int64_t tasks);

/* Be told of every run by each worker that had tasks in it: from when to when, and how many. Called
 * by the workers themselves, at the same time. Not during a run; NULL: tell nobody. */
typedef void (*ls_pool_note)(void *context, int worker, int64_t begin_ns, int64_t end_ns,
                             int64_t tasks);
void ls_pool_watch(ls_pool *pool, ls_pool_note note, void *context);

/* Cores this process may use, by affinity and cgroup quota; at least 1. */
int ls_pool_cores(void);

LS_C_END
