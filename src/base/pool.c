/* pool.c -- one shared counter of tasks, workers that spin briefly and then sleep.
 *
 * A run writes its job, sets `left` to the number of tasks and raises `round`. Every awake worker
 * takes tasks by lowering `left`: the value it held, when above 0, names the task. A worker adds
 * what it has done to `done` when nothing is left; the caller waits until its own and theirs make
 * all. So it waits for tasks, never for workers: one that sleeps, or whose core another process
 * holds, and that took nothing, delays no run.
 *
 * What must hold: `job` is read only by a worker that holds a task of it, and is written only when
 * all tasks of the run before are counted in. A latecomer finds `left` at or below 0 and leaves
 * without having looked at `job`, or above 0 and has a task of the newest run; which round it was
 * woken for does not matter. Example with 3 tasks: the caller takes 3 (index 0), worker 1 takes 2
 * (index 1), the caller takes 1 (index 2), worker 1 gets 0 and adds 1 to `done`; the caller, which
 * did 2, waits for done == 1. Worker 2 wakes up late, gets -1, and sleeps again.
 *
 * Runs follow each other within microseconds, and to wake a sleeper costs the caller several and
 * the sleeper about 25 us on a virtual machine, so an idle worker spins first: for LONG_SPIN_NS as
 * long as pauses are shorter than that, which bridges the host's work between two rows of a small
 * model; after longer pauses (nothing to do, or a caller that lost its core) half as long each
 * time. It does not spin when there are more threads than CPUs. The caller, too, sleeps when the
 * others keep it waiting for longer than any fair share of tasks would. On a machine that others
 * use, time spent spinning is time that is missing for work. */
#include "base/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"

enum {
    SHORT_SPIN_NS = 20000,
    LONG_SPIN_NS = 300000,
    PATIENCE_NS = 500000,
    WORD_BITS = 8 * sizeof(unsigned long)
};

struct ls_pool {
    int threads;
    bool crowded;
    uint64_t serial;     /* unique in the process: the pool that pinned a thread */
    uint32_t forks;      /* of the process that has the workers */
    pthread_t *workers;  /* threads - 1 of them */
    ls_pool_mask *masks; /* one per thread; NULL: not pinned */
    int started;
    ls_pool_note note; /* NULL: not watched; read, like the job, only by holders of a task */
    void *note_context;
    struct { /* with `round` in one cache line, so that a worker gets all of it at once */
        _Alignas(64) _Atomic uint32_t round;
        _Atomic int cpu; /* where the caller was when it began the run */
        ls_pool_task task;
        void *context;
        int64_t tasks;
    } job;
    _Alignas(64) _Atomic int64_t left;
    _Alignas(64) _Atomic int64_t done; /* by workers other than the caller */
    _Atomic bool waiting;              /* the caller sleeps, or is about to */
    _Atomic uint32_t finished;         /* what it sleeps on */
    _Alignas(64) _Atomic uint32_t sleepers;
    _Atomic bool ending;
};

typedef struct worker_start {
    ls_pool *pool;
    int worker;
} worker_start;

/* --- masks ------------------------------------------------------------------------------------ */

void ls_pool_mask_add(ls_pool_mask *mask, int cpu)
{
    if (cpu >= 0 && cpu < LS_POOL_CPUS)
        mask->bits[cpu / WORD_BITS] |= 1ul << (cpu % WORD_BITS);
}

bool ls_pool_mask_has(const ls_pool_mask *mask, int cpu)
{
    return cpu >= 0 && cpu < LS_POOL_CPUS && mask->bits[cpu / WORD_BITS] >> (cpu % WORD_BITS) & 1;
}

int ls_pool_mask_count(const ls_pool_mask *mask)
{
    int n = 0;

    for (size_t i = 0; i < LS_COUNT(mask->bits); i++)
        n += __builtin_popcountl(mask->bits[i]);
    return n;
}

/* What pools did to this thread. */
static _Thread_local struct {
    uint64_t serial;     /* of the pool that pinned it last; 0: it is not pinned */
    ls_pool_mask before; /* when serial is not 0 */
} pin;

static _Atomic uint64_t pools;
static _Atomic uint32_t forks;
static pthread_once_t watch_forks = PTHREAD_ONCE_INIT;

static bool mask_set(const ls_pool_mask *mask)
{
    return syscall(SYS_sched_setaffinity, 0, sizeof *mask, mask) == 0;
}

static bool mask_read(ls_pool_mask *mask_out)
{
    *mask_out = (ls_pool_mask){{0}};
    return syscall(SYS_sched_getaffinity, 0, sizeof *mask_out, mask_out) > 0;
}

void ls_pool_mask_get(ls_pool_mask *mask_out)
{
    if (pin.serial)
        *mask_out = pin.before;
    else if (!mask_read(mask_out))
        ls_pool_mask_add(mask_out, 0);
}

static void pin_caller(const ls_pool *pool)
{
    if (!pin.serial && !mask_read(&pin.before))
        return;
    pin.serial = pool->serial; /* even when it is refused: it will not be tried at every run */
    mask_set(&pool->masks[0]);
}

static void unpin(void)
{
    if (pin.serial)
        mask_set(&pin.before);
    pin.serial = 0;
}

/* The child has the caller's mask, but no pool that would explain it. */
static void forked(void)
{
    atomic_fetch_add(&forks, 1);
    unpin();
}

static void watch(void)
{
    pthread_atfork(NULL, NULL, forked);
}

int ls_pool_start_apart(pthread_t *thread_out, void *(*run)(void *), void *arg)
{
    pthread_attr_t attr;
    int rc = EINVAL;

    if (!pin.serial)
        return pthread_create(thread_out, NULL, run, arg);
    if (pthread_attr_init(&attr) != 0)
        return ENOMEM;
    if (pthread_attr_setaffinity_np(&attr, sizeof pin.before, (cpu_set_t *)&pin.before) == 0)
        rc = pthread_create(thread_out, &attr, run, arg);
    pthread_attr_destroy(&attr);
    return rc == EINVAL ? pthread_create(thread_out, NULL, run, arg) : rc;
}

ls_status ls_pool_start_failed(int error, const char *what)
{
    struct rlimit most;

    errno = error;
    ls_fail_sys(LS_EFAIL, "cannot %s", what);
    if (error == EAGAIN && getrlimit(RLIMIT_NPROC, &most) == 0 && most.rlim_cur != RLIM_INFINITY)
        ls_err_hint("This user may have %lld processes and threads: raise the limit with \"ulimit "
                    "-u\", or pids.max of a container.",
                    (long long)most.rlim_cur);
    return LS_EFAIL;
}

/* --- waiting ---------------------------------------------------------------------------------- */

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

/* Wait until the round differs from seen. *spin_ns is how long to spin, learnt from pauses. */
static uint32_t await_round(ls_pool *pool, uint32_t seen, int64_t *spin_ns)
{
    _Atomic uint32_t *word = &pool->job.round;
    int64_t start = pool->crowded ? 0 : ls_time_now_ns(), idle = 0;

    do {
        for (int i = 0; i < 64; i++) {
            uint32_t now = atomic_load_explicit(word, memory_order_acquire);
            if (now != seen)
                return now;
            relax();
        }
        /* The kernel may wake a worker on the caller's core, when the others are busy. */
        if (!pool->crowded && sched_getcpu() == atomic_load(&pool->job.cpu))
            sched_yield();
        idle = pool->crowded ? INT64_MAX : ls_time_now_ns() - start;
    } while (idle < *spin_ns);
    for (;;) {
        atomic_fetch_add(&pool->sleepers, 1);
        if (atomic_load(word) == seen)
            futex_wait(word, seen);
        atomic_fetch_sub(&pool->sleepers, 1);
        uint32_t now = atomic_load_explicit(word, memory_order_acquire);
        if (now == seen)
            continue;
        if (!pool->crowded)
            idle = ls_time_now_ns() - start;
        *spin_ns = idle < LONG_SPIN_NS ? LONG_SPIN_NS : ls_max_i64(*spin_ns / 2, SHORT_SPIN_NS);
        return now;
    }
}

/* The tasks that are left are in the hands of others: worth a spin, and a yield now and then, in
 * case one of them waits for this core. A wait beyond PATIENCE_NS means that one has lost its core
 * (or has a very long task): then sleep, and have a full share of time when it is needed again. */
static void await_done(ls_pool *pool, int64_t tasks)
{
    int64_t start = 0;

    for (int spins = 1; atomic_load_explicit(&pool->done, memory_order_acquire) != tasks; spins++) {
        if (!pool->crowded && spins % 512 != 0) {
            relax();
            continue;
        }
        sched_yield();
        int64_t now = ls_time_now_ns();
        start = start ? start : now;
        if (now - start > PATIENCE_NS)
            break;
    }
    if (atomic_load_explicit(&pool->done, memory_order_acquire) == tasks)
        return;
    uint32_t seen = atomic_load(&pool->finished);
    atomic_store(&pool->waiting, true);
    while (atomic_load(&pool->done) != tasks) {
        futex_wait(&pool->finished, seen);
        seen = atomic_load(&pool->finished);
    }
    atomic_store(&pool->waiting, false);
}

static void count_in(ls_pool *pool, int64_t n)
{
    atomic_fetch_add(&pool->done, n);
    if (atomic_load(&pool->waiting)) {
        atomic_fetch_add(&pool->finished, 1);
        futex_wake_all(&pool->finished);
    }
}

/* --- tasks ------------------------------------------------------------------------------------ */

static int64_t take_tasks(ls_pool *pool, int worker)
{
    int64_t n = 0, begin_ns = 0;

    for (;; n++) {
        int64_t left = atomic_fetch_sub_explicit(&pool->left, 1, memory_order_acquire);
        if (left <= 0)
            break;
        if (n == 0 && pool->note)
            begin_ns = ls_time_now_ns();
        pool->job.task(pool->job.context, pool->job.tasks - left, worker);
    }
    if (n && pool->note)
        pool->note(pool->note_context, worker, begin_ns, ls_time_now_ns(), n);
    return n;
}

static void *work(void *arg)
{
    worker_start *s = arg;
    ls_pool *pool = s->pool;
    int worker = s->worker;
    int64_t spin_ns = LONG_SPIN_NS;
    uint32_t round = 0;

    ls_mem_free(s);
    if (pool->masks)
        mask_set(&pool->masks[worker]);
    for (;;) {
        round = await_round(pool, round, &spin_ns);
        if (atomic_load(&pool->ending))
            return NULL;
        int64_t n = take_tasks(pool, worker);
        if (n)
            count_in(pool, n);
    }
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
    if (pool->masks && pin.serial != pool->serial)
        pin_caller(pool);
    if (pool->threads == 1 || tasks <= 1 ||
        pool->forks != atomic_load_explicit(&forks, memory_order_relaxed)) {
        run_alone(pool, task, context, tasks);
        return;
    }
    atomic_store_explicit(&pool->job.cpu, sched_getcpu(), memory_order_relaxed);
    pool->job.task = task;
    pool->job.context = context;
    pool->job.tasks = tasks;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->left, tasks, memory_order_release);
    atomic_fetch_add(&pool->job.round, 1);
    if (atomic_load(&pool->sleepers))
        futex_wake_all(&pool->job.round);
    await_done(pool, tasks - take_tasks(pool, 0));
}

/* --- the pool --------------------------------------------------------------------------------- */

static ls_status start_worker(ls_pool *pool, int worker)
{
    worker_start *s = ls_mem_alloc(sizeof *s);

    if (!s)
        return LS_ENOMEM;
    *s = (worker_start){pool, worker};
    int rc = ls_pool_start_apart(&pool->workers[worker - 1], work, s);
    if (rc != 0) {
        ls_mem_free(s);
        return ls_pool_start_failed(rc, "start a thread that computes");
    }
    pool->started++;
    return LS_OK;
}

ls_status ls_pool_open(ls_pool **pool_out, const ls_pool_args *args)
{
    size_t threads = (size_t)args->threads;
    ls_status st = LS_OK;
    ls_pool *pool;

    LS_BUG_IF(args->threads < 1, "a pool of %d threads", args->threads);
    pool = aligned_alloc(64, (size_t)ls_round_up((int64_t)sizeof *pool, 64));
    if (!pool)
        return ls_fail(LS_ENOMEM, "cannot allocate a thread pool");
    memset(pool, 0, sizeof *pool);
    pthread_once(&watch_forks, watch);
    pool->threads = args->threads;
    pool->crowded = args->crowded;
    pool->serial = atomic_fetch_add(&pools, 1) + 1;
    pool->forks = atomic_load(&forks);
    pool->workers = ls_mem_array(threads, sizeof *pool->workers);
    if (!pool->workers)
        st = LS_ENOMEM;
    if (st == LS_OK && args->masks) {
        pool->masks = ls_mem_array(threads, sizeof *pool->masks);
        if (pool->masks)
            memcpy(pool->masks, args->masks, threads * sizeof *pool->masks);
        else
            st = LS_ENOMEM;
    }
    for (int i = 1; i < args->threads && st == LS_OK; i++)
        st = start_worker(pool, i);
    if (st == LS_OK)
        *pool_out = pool;
    else
        ls_pool_free(pool);
    return st;
}

ls_status ls_pool_create(ls_pool **pool_out, int threads)
{
    ls_pool_mask mask;

    ls_pool_mask_get(&mask);
    return ls_pool_open(pool_out, &(ls_pool_args){.threads = threads,
                                                  .crowded = threads > ls_pool_mask_count(&mask)});
}

void ls_pool_free(ls_pool *pool)
{
    if (!pool)
        return;
    if (pin.serial == pool->serial)
        unpin();
    atomic_store(&pool->ending, true);
    atomic_fetch_add(&pool->job.round, 1);
    futex_wake_all(&pool->job.round);
    if (pool->forks == atomic_load(&forks)) /* else the threads are the parent's */
        for (int i = 0; i < pool->started; i++)
            pthread_join(pool->workers[i], NULL);
    ls_mem_free(pool->workers);
    ls_mem_free(pool->masks);
    free(pool);
}

int ls_pool_threads(const ls_pool *pool)
{
    return pool->threads;
}

bool ls_pool_pinned(const ls_pool *pool)
{
    return pool->masks != NULL;
}
