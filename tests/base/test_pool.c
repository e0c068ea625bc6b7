/* test_pool.c -- every task exactly once, whatever the number of threads. */
#include "harness.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/time.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_TASKS = 1009, MOST_THREADS = 64 };

typedef struct segment {
    _Atomic int visits[MOST_TASKS];
    _Atomic int64_t bad; /* index or worker out of range */
    int64_t tasks;
    int threads;
} segment;

static void visit(void *context, int64_t index, int worker)
{
    segment *b = context;

    if (index < 0 || index >= b->tasks || worker < 0 || worker >= b->threads)
        b->bad++;
    else
        b->visits[index]++;
}

static void check_once_each(ls_pool *pool, int64_t tasks)
{
    static segment b;

    memset(&b, 0, sizeof b);
    b.tasks = tasks;
    b.threads = ls_pool_threads(pool);
    ls_pool_run(pool, visit, &b, tasks);
    LS_CHECK_EQ(b.bad, 0);
    for (int64_t i = 0; i < MOST_TASKS; i++)
        LS_CHECK_EQ(b.visits[i], i < tasks);
}

LS_TEST(pool_runs_each_index_exactly_once)
{
    static const int64_t counts[] = {0, 1, 2, 3, 4, 5, 7, 31, 64, 100, 997, MOST_TASKS};

    for (int threads = 1; threads <= 5; threads++) {
        ls_pool *pool;
        LS_CHECK_OK(ls_pool_create(&pool, threads));
        LS_CHECK_EQ(ls_pool_threads(pool), threads);
        for (size_t i = 0; i < LS_COUNT(counts); i++)
            check_once_each(pool, counts[i]);
        ls_pool_free(pool);
    }
}

LS_TEST(pool_ignores_a_negative_count)
{
    ls_pool *pool;
    segment b = {.tasks = 0, .threads = 2};

    LS_CHECK_OK(ls_pool_create(&pool, 2));
    ls_pool_run(pool, visit, &b, -3);
    LS_CHECK_EQ(b.bad, 0);
    ls_pool_free(pool);
}

static void add_one(void *context, int64_t index, int worker)
{
    int64_t *sums = context;

    (void)worker;
    sums[index]++; /* plain: no two tasks of a run share an index, and runs are ordered */
}

LS_TEST_SECONDS(pool_many_small_runs_see_each_other, 60)
{
    enum { RUNS = 3000 };

    for (int threads = 2; threads <= 3; threads++) {
        int64_t sums[7] = {0};
        ls_pool *pool;
        LS_CHECK_OK(ls_pool_create(&pool, threads));
        for (int i = 0; i < RUNS; i++)
            ls_pool_run(pool, add_one, sums, LS_COUNT(sums));
        for (size_t i = 0; i < LS_COUNT(sums); i++)
            LS_CHECK_EQ(sums[i], RUNS);
        ls_pool_free(pool);
    }
}

/* Workers spin for 20 to 300 us and then sleep: pauses on both sides of that must not lose a
 * wake-up. */
LS_TEST(pool_wakes_sleepers_after_pauses_of_any_length)
{
    int64_t sums[5] = {0};
    ls_pool *pool;
    int runs = 0;

    LS_CHECK_OK(ls_pool_create(&pool, 3));
    for (useconds_t pause = 0; pause < 800; pause += 8, runs++) {
        usleep(pause);
        ls_pool_run(pool, add_one, sums, LS_COUNT(sums));
    }
    for (size_t i = 0; i < LS_COUNT(sums); i++)
        LS_CHECK_EQ(sums[i], runs);
    ls_pool_free(pool);
}

LS_TEST(pool_with_more_threads_than_cores)
{
    int64_t sums[MOST_THREADS * 3] = {0};
    ls_pool *pool;

    LS_CHECK_OK(ls_pool_create(&pool, MOST_THREADS));
    for (int i = 0; i < 50; i++)
        ls_pool_run(pool, add_one, sums, LS_COUNT(sums));
    for (size_t i = 0; i < LS_COUNT(sums); i++)
        LS_CHECK_EQ(sums[i], 50);
    ls_pool_free(pool);
}

LS_TEST(pool_that_never_ran_can_be_freed)
{
    for (int i = 0; i < 50; i++) {
        ls_pool *pool;
        LS_CHECK_OK(ls_pool_create(&pool, 1 + i % 5));
        ls_pool_free(pool);
    }
    ls_pool_free(NULL);
}

/* Unequal tasks: a worker that is done early takes what is left, and nobody returns too soon. */
static void slow_first(void *context, int64_t index, int worker)
{
    (void)worker;
    if (index == 0)
        usleep(20000);
    ((int64_t *)context)[index] = index + 1;
}

LS_TEST(pool_returns_only_when_the_slowest_task_is_done)
{
    int64_t done[9] = {0};
    ls_pool *pool;

    LS_CHECK_OK(ls_pool_create(&pool, 4));
    ls_pool_run(pool, slow_first, done, LS_COUNT(done));
    for (size_t i = 0; i < LS_COUNT(done); i++)
        LS_CHECK_EQ(done[i], (int64_t)i + 1);
    ls_pool_free(pool);
}

typedef struct watched {
    int64_t tasks[4], runs[4]; /* by worker */
    int64_t from_ns;
} watched;

static void on_run(void *context, int worker, int64_t begin_ns, int64_t end_ns, int64_t tasks)
{
    watched *w = context;

    LS_CHECK(worker >= 0 && worker < 4 && tasks > 0);
    LS_CHECK(w->from_ns <= begin_ns && begin_ns <= end_ns);
    w->tasks[worker] += tasks;
    w->runs[worker]++;
}

static void nothing(void *context, int64_t index, int worker)
{
    (void)context;
    (void)index;
    (void)worker;
}

static int64_t all_of(const int64_t *n)
{
    return n[0] + n[1] + n[2] + n[3];
}

/* Every task is told once, by the worker that ran it; without a watcher nothing is. */
LS_TEST(pool_shows_a_watcher_which_threads_were_busy)
{
    for (int threads = 1; threads <= 4; threads += 3) {
        watched w = {.from_ns = ls_time_now_ns()};
        ls_pool *pool = NULL;
        LS_CHECK_OK(ls_pool_create(&pool, threads));
        ls_pool_watch(pool, on_run, &w);
        for (int i = 0; i < 100; i++)
            ls_pool_run(pool, nothing, NULL, 37);
        LS_CHECK_EQ(all_of(w.tasks), 3700);
        LS_CHECK(all_of(w.runs) >= 100 && all_of(w.runs) <= 100 * threads);
        ls_pool_run(pool, nothing, NULL, 0);
        LS_CHECK_EQ(all_of(w.tasks), 3700);
        ls_pool_run(pool, nothing, NULL, 1); /* one task is the caller's */
        LS_CHECK_EQ(all_of(w.tasks), 3701);
        ls_pool_watch(pool, NULL, NULL);
        ls_pool_run(pool, nothing, NULL, 37);
        LS_CHECK_EQ(all_of(w.tasks), 3701);
        ls_pool_free(pool);
    }
}

/* Tasks of 0 to 1.4 ms: the caller spins, gives up spinning and sleeps, and never misses the end.
 */
static void slow_for_others(void *context, int64_t index, int worker)
{
    int64_t *sums = context;

    if (worker != 0)
        usleep((useconds_t)sums[7]);
    sums[index]++;
}

LS_TEST_SECONDS(pool_caller_sleeps_through_long_waits_and_wakes, 60)
{
    int64_t sums[8] = {0};
    ls_pool *pool;
    int runs = 0;

    LS_CHECK_OK(ls_pool_create(&pool, 3));
    for (sums[7] = 0; sums[7] < 1400; sums[7] += 7, runs++)
        ls_pool_run(pool, slow_for_others, sums, 7);
    for (int i = 0; i < 7; i++)
        LS_CHECK_EQ(sums[i], runs);
    ls_pool_free(pool);
}

LS_TEST(pool_create_survives_every_failing_allocation)
{
    uint64_t n = 1;

    for (;; n++) {
        ls_pool *pool = NULL;
        ls_mem_fail_nth(n);
        ls_status st = ls_pool_create(&pool, 4);
        if (st == LS_OK) {
            ls_mem_fail_nth(0);
            ls_pool_free(pool);
            break;
        }
        LS_CHECK_EQ(st, LS_ENOMEM);
        LS_CHECK(!pool);
    }
    LS_CHECK_EQ(n, 5); /* the table and a seat for each of three workers failed in turn */
}

/* --- late workers ----------------------------------------------------------------------------- */

typedef struct gate {
    _Atomic int64_t done; /* tasks that are finished */
    int64_t visits[64];
} gate;

/* A worker other than the caller keeps its first task until all others are done. */
static void hold_others(void *context, int64_t index, int worker)
{
    gate *g = context;

    while (worker != 0 && g->done < (int64_t)LS_COUNT(g->visits) - 1)
        usleep(100);
    g->visits[index]++;
    g->done++;
}

/* Tasks do not queue up behind a worker that is held up: if they did, this would never end. */
LS_TEST(pool_goes_on_without_a_worker_that_is_held_up)
{
    ls_pool *pool;

    LS_CHECK_OK(ls_pool_create(&pool, 2));
    for (int round = 0; round < 5; round++) {
        gate g = {.done = 0};
        ls_pool_run(pool, hold_others, &g, LS_COUNT(g.visits));
        for (size_t i = 0; i < LS_COUNT(g.visits); i++)
            LS_CHECK_EQ(g.visits[i], 1);
    }
    ls_pool_free(pool);
}

/* Jobs of changing context and size, so that a latecomer which took its job from the wrong run
 * would write past the end of a smaller one. */
LS_TEST_SECONDS(pool_latecomers_never_mix_up_two_runs, 60)
{
    enum { RUNS = 4000 };
    ls_pool *pool;

    LS_CHECK_OK(ls_pool_create(&pool, 4));
    for (int i = 0; i < RUNS; i++) {
        int64_t n = 2 + i % 5, *sums = ls_mem_array((size_t)n, sizeof *sums);
        LS_CHECK(sums);
        ls_pool_run(pool, add_one, sums, n);
        for (int64_t k = 0; k < n; k++)
            LS_CHECK_EQ(sums[k], 1);
        ls_mem_free(sums);
        if (i % 64 == 0)
            usleep(400); /* let them fall asleep */
    }
    ls_pool_free(pool);
}

/* --- masks ------------------------------------------------------------------------------------ */

LS_TEST(pool_masks_hold_any_cpu)
{
    static const int cpus[] = {0, 1, 63, 64, 1023, 1024, LS_POOL_CPUS - 1};
    ls_pool_mask m = {{0}};

    for (size_t i = 0; i < LS_COUNT(cpus); i++) {
        LS_CHECK(!ls_pool_mask_has(&m, cpus[i]));
        ls_pool_mask_add(&m, cpus[i]);
        LS_CHECK(ls_pool_mask_has(&m, cpus[i]));
        LS_CHECK_EQ(ls_pool_mask_count(&m), i + 1);
    }
    ls_pool_mask_add(&m, -1);
    ls_pool_mask_add(&m, LS_POOL_CPUS);
    LS_CHECK(!ls_pool_mask_has(&m, -1) && !ls_pool_mask_has(&m, LS_POOL_CPUS));
    LS_CHECK_EQ(ls_pool_mask_count(&m), LS_COUNT(cpus));
}

/* CPUs that the calling thread may use now, as the kernel says. */
static cpu_set_t now_allowed(void)
{
    cpu_set_t set;

    LS_CHECK_EQ(sched_getaffinity(0, sizeof set, &set), 0);
    return set;
}

static void first_two(int cpus_out[2])
{
    cpu_set_t all = now_allowed();
    int n = 0;

    for (int cpu = 0; cpu < CPU_SETSIZE && n < 2; cpu++)
        if (CPU_ISSET(cpu, &all))
            cpus_out[n++] = cpu;
    if (n < 2)
        ls_test_skip("needs two CPUs");
}

typedef struct places {
    _Atomic int wrong; /* tasks that ran with another mask than their worker's */
    int cpu[2];
} places;

static void check_place(void *context, int64_t index, int worker)
{
    places *p = context;
    cpu_set_t set;

    (void)index;
    if (sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) != 1 ||
        !CPU_ISSET(p->cpu[worker], &set))
        p->wrong++;
    usleep(100);
}

static void *count_cpus(void *arg)
{
    cpu_set_t set = now_allowed();

    *(int *)arg = CPU_COUNT(&set);
    return NULL;
}

LS_TEST(pool_pins_each_worker_and_gives_the_caller_its_cpus_back)
{
    places p = {.wrong = 0};
    ls_pool_mask masks[2] = {{{0}}, {{0}}}, seen;
    cpu_set_t before = now_allowed(), after;
    int counted = 0;
    pthread_t thread;
    ls_pool *pool;

    first_two(p.cpu);
    ls_pool_mask_add(&masks[0], p.cpu[0]);
    ls_pool_mask_add(&masks[1], p.cpu[1]);
    LS_CHECK_OK(ls_pool_open(&pool, &(ls_pool_args){.threads = 2, .masks = masks}));
    LS_CHECK(ls_pool_pinned(pool));
    after = now_allowed();
    LS_CHECK(CPU_EQUAL(&before, &after)); /* a pool that never ran has pinned nobody */
    ls_pool_run(pool, check_place, &p, 40);
    LS_CHECK_EQ(p.wrong, 0);
    after = now_allowed();
    LS_CHECK_EQ(CPU_COUNT(&after), 1);
    ls_pool_mask_get(&seen); /* what was ours stays known */
    LS_CHECK_EQ(ls_pool_mask_count(&seen), CPU_COUNT(&before));
    LS_CHECK_EQ(ls_pool_start_apart(&thread, count_cpus, &counted), 0);
    pthread_join(thread, NULL);
    LS_CHECK_EQ(counted, CPU_COUNT(&before)); /* others do not inherit the one core */
    ls_pool_free(pool);
    after = now_allowed();
    LS_CHECK(CPU_EQUAL(&before, &after));
}

LS_TEST(pool_two_pinned_pools_of_one_thread_end_in_any_order)
{
    cpu_set_t before = now_allowed(), after;
    int cpu[2];

    first_two(cpu);
    for (int order = 0; order < 2; order++) {
        ls_pool *pools[2];
        for (int i = 0; i < 2; i++) {
            places p = {.cpu = {cpu[i], cpu[1 - i]}};
            ls_pool_mask masks[2] = {{{0}}, {{0}}};
            ls_pool_mask_add(&masks[0], p.cpu[0]);
            ls_pool_mask_add(&masks[1], p.cpu[1]);
            LS_CHECK_OK(ls_pool_open(&pools[i], &(ls_pool_args){.threads = 2, .masks = masks}));
            for (int k = 0; k < 5; k++)
                ls_pool_run(pools[i], check_place, &p, 4);
            LS_CHECK_EQ(p.wrong, 0);
        }
        ls_pool_free(pools[order]);
        ls_pool_free(pools[1 - order]);
        after = now_allowed();
        LS_CHECK(CPU_EQUAL(&before, &after));
    }
}

LS_TEST(pool_leaves_out_a_mask_that_the_system_refuses)
{
    ls_pool_mask masks[2] = {{{0}}, {{0}}};
    int64_t sums[5] = {0};
    ls_pool *pool;

    ls_pool_mask_add(&masks[0], LS_POOL_CPUS - 1);
    ls_pool_mask_add(&masks[1], LS_POOL_CPUS - 1);
    LS_CHECK_OK(ls_pool_open(&pool, &(ls_pool_args){.threads = 2, .masks = masks}));
    for (int i = 0; i < 10; i++)
        ls_pool_run(pool, add_one, sums, LS_COUNT(sums));
    for (size_t i = 0; i < LS_COUNT(sums); i++)
        LS_CHECK_EQ(sums[i], 10);
    ls_pool_free(pool);
}

/* --- fork ------------------------------------------------------------------------------------- */

LS_TEST(pool_in_a_forked_child_works_alone_and_unpinned)
{
    cpu_set_t before = now_allowed();
    ls_pool_mask masks[2] = {{{0}}, {{0}}};
    int64_t sums[7] = {0};
    int cpu[2], status = 0;
    ls_pool *pool;

    first_two(cpu);
    ls_pool_mask_add(&masks[0], cpu[0]);
    ls_pool_mask_add(&masks[1], cpu[1]);
    LS_CHECK_OK(ls_pool_open(&pool, &(ls_pool_args){.threads = 2, .masks = masks}));
    ls_pool_run(pool, add_one, sums, LS_COUNT(sums));
    pid_t child = fork();
    LS_CHECK(child >= 0);
    if (child == 0) {
        cpu_set_t now = now_allowed();
        bool good = CPU_EQUAL(&before, &now) != 0;
        for (int i = 0; i < 3; i++)
            ls_pool_run(pool, add_one, sums, LS_COUNT(sums));
        for (size_t i = 0; i < LS_COUNT(sums); i++)
            good &= sums[i] == 4;
        ls_pool_free(pool);
        _exit(good ? 0 : 1);
    }
    LS_CHECK_EQ(waitpid(child, &status, 0), child);
    LS_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ls_pool_run(pool, add_one, sums, LS_COUNT(sums)); /* the parent's team is as it was */
    LS_CHECK_EQ(sums[0], 2);
    ls_pool_free(pool);
}

LS_TEST(pool_thread_that_cannot_start_names_the_limit)
{
    struct rlimit limit;

    LS_CHECK_EQ(getrlimit(RLIMIT_NPROC, &limit), 0);
    limit.rlim_cur = limit.rlim_max < 1000 ? limit.rlim_max : 1000;
    LS_CHECK_EQ(setrlimit(RLIMIT_NPROC, &limit), 0);
    LS_CHECK_FAILS(ls_pool_start_failed(EAGAIN, "start a thread"), LS_EFAIL,
                   "cannot start a thread: Resource temporarily unavailable");
    LS_CHECK(strstr(ls_err_last()->hint, "processes and threads: raise the limit"));
    LS_CHECK_FAILS(ls_pool_start_failed(ENOMEM, "start a thread"), LS_EFAIL, "Cannot allocate");
    LS_CHECK(!strstr(ls_err_last()->hint, "ulimit -u"));
}
