/* pool.c -- one shared counter of tasks, workers that spin briefly and then sleep.
 *
 * A run publishes a job by raising `round`; each worker that sees a new round takes indices from
 * `next` until none are left, then counts itself out of `busy`. Kernels follow each other within
 * microseconds, and waking a sleeper costs about 25 us on a virtual machine, so an idle worker
 * first spins for SPIN_NS; it does not spin when there are more threads than cores.
 *
 * What must hold: `job` and `note` are written only while busy == 0, and are published by the store
 * to `round`.
 */
#include "base/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"

enum { SPIN_NS = 60000 };

struct ls_pool {
    int threads;
    int64_t spin_ns;
    pthread_t *workers; /* threads - 1 of them */
    int started;
    struct {
        ls_pool_task task;
        void *context;
        int64_t tasks;
    } job;
    ls_pool_note note; /* NULL: nobody watches */
    void *note_context;
    _Alignas(64) _Atomic int64_t next;
    _Alignas(64) _Atomic uint32_t round;
    _Atomic uint32_t sleepers;
    _Alignas(64) _Atomic uint32_t busy;
    _Atomic bool ending;
};

typedef struct seat {
    ls_pool *pool;
    int worker;
} seat;

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Wait until *word differs from seen. */
static uint32_t await_change(ls_pool *pool, _Atomic uint32_t *word, uint32_t seen)
{
    int64_t until = ls_time_now_ns() + pool->spin_ns;

    for (;;) {
        for (int i = 0; i < 64; i++) {
            uint32_t now = atomic_load_explicit(word, memory_order_acquire);
            if (now != seen)
                return now;
            relax();
        }
        if (ls_time_now_ns() > until)
            break;
    }
    for (;;) {
        atomic_fetch_add(&pool->sleepers, 1);
        if (atomic_load(word) == seen)
            futex_wait(word, seen);
        atomic_fetch_sub(&pool->sleepers, 1);
        uint32_t now = atomic_load_explicit(word, memory_order_acquire);
        if (now != seen)
            return now;
    }
}

static void take_tasks(ls_pool *pool, int worker)
{
    int64_t begin_ns = pool->note ? ls_time_now_ns() : 0, done = 0;

    for (;; done++) {
        int64_t i = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (i >= pool->job.tasks)
            break;
        pool->job.task(pool->job.context, i, worker);
    }
    if (pool->note && done)
        pool->note(pool->note_context, worker, begin_ns, ls_time_now_ns(), done);
}

static void *work(void *arg)
{
    seat *s = arg;
    ls_pool *pool = s->pool;
    int worker = s->worker;
    uint32_t round = 0;

    ls_mem_free(s);
    for (;;) {
        round = await_change(pool, &pool->round, round);
        if (atomic_load(&pool->ending))
            return NULL;
        take_tasks(pool, worker);
        atomic_fetch_sub_explicit(&pool->busy, 1, memory_order_release);
    }
}

ls_status ls_pool_create(ls_pool **pool_out, int threads)
{
    ls_status st = LS_OK;
    ls_pool *pool;

    LS_BUG_IF(threads < 1, "a pool of %d threads", threads);
    pool = aligned_alloc(64, (size_t)ls_round_up((int64_t)sizeof *pool, 64));
    if (!pool)
        return ls_fail(LS_ENOMEM, "cannot allocate a thread pool");
    memset(pool, 0, sizeof *pool);
    pool->threads = threads;
    pool->spin_ns = threads <= ls_pool_cores() ? SPIN_NS : 0;
    pool->workers = ls_mem_array((size_t)threads, sizeof *pool->workers);
    if (!pool->workers) {
        st = LS_ENOMEM;
        goto out;
    }
    for (int i = 1; i < threads; i++) {
        seat *s = ls_mem_alloc(sizeof *s);
        if (!s) {
            st = LS_ENOMEM;
            goto out;
        }
        *s = (seat){pool, i};
        int rc = pthread_create(&pool->workers[i - 1], NULL, work, s);
        if (rc != 0) {
            ls_mem_free(s);
            st = ls_fail(LS_EFAIL, "cannot start thread %d of %d: %s", i, threads, strerror(rc));
            goto out;
        }
        pool->started++;
    }
    *pool_out = pool;
out:
    if (st != LS_OK)
        ls_pool_free(pool);
    return st;
}

void ls_pool_free(ls_pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->ending, true);
    atomic_fetch_add(&pool->round, 1);
    futex_wake_all(&pool->round);
    for (int i = 0; i < pool->started; i++)
        pthread_join(pool->workers[i], NULL);
    ls_mem_free(pool->workers);
    free(pool);
}

int ls_pool_threads(const ls_pool *pool)
{
    return pool->threads;
}

void ls_pool_watch(ls_pool *pool, ls_pool_note note, void *context)
{
    pool->note = note;
    pool->note_context = context;
}

static void run_alone(const ls_pool *pool, ls_pool_task task, void *context, int64_t tasks)
{
    int64_t begin_ns = pool->note ? ls_time_now_ns() : 0;

    for (int64_t i = 0; i < tasks; i++)
        task(context, i, 0);
    if (pool->note && tasks > 0)
        pool->note(pool->note_context, 0, begin_ns, ls_time_now_ns(), tasks);
}

void ls_pool_run(ls_pool *pool, ls_pool_task task, void *context, int64_t tasks)
{
    if (pool->threads == 1 || tasks <= 1) {
        run_alone(pool, task, context, tasks);
        return;
    }
    pool->job.task = task;
    pool->job.context = context;
    pool->job.tasks = tasks;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->busy, (uint32_t)pool->threads - 1, memory_order_relaxed);
    atomic_fetch_add(&pool->round, 1);
    if (atomic_load(&pool->sleepers))
        futex_wake_all(&pool->round);
    take_tasks(pool, 0);
    /* The rest is in its last task: worth a spin, never a sleep. Yield when cores are short. */
    for (int spins = 0; atomic_load_explicit(&pool->busy, memory_order_acquire); spins++) {
        if (pool->spin_ns == 0 || (spins & 1023) == 1023)
            sched_yield();
        else
            relax();
    }
}

/* cgroup v2 ("max 100000" or "200000 100000") or v1 (two files). 0 when there is no limit. */
static double quota_cores(void)
{
    double quota = -1, period = 0;
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");

    if (f) {
        if (fscanf(f, "%lf %lf", &quota, &period) != 2)
            quota = -1;
        fclose(f);
        return quota > 0 && period > 0 ? quota / period : 0;
    }
    f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "re");
    if (f) {
        if (fscanf(f, "%lf", &quota) != 1)
            quota = -1;
        fclose(f);
    }
    f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "re");
    if (f) {
        if (fscanf(f, "%lf", &period) != 1)
            period = 0;
        fclose(f);
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

int ls_pool_cores(void)
{
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    double quota = quota_cores();

    if (quota > 0 && quota < cores)
        cores = quota < 1 ? 1 : (int)quota;
    return cores < 1 ? 1 : cores;
}
