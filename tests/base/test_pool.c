/* test_pool.c -- every task exactly once, whatever the number of threads. */
#include "harness.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/time.h"

#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

enum { MOST_TASKS = 1009, MOST_THREADS = 64 };

typedef struct board {
    _Atomic int visits[MOST_TASKS];
    _Atomic int64_t bad; /* index or worker out of range */
    int64_t tasks;
    int threads;
} board;

static void visit(void *context, int64_t index, int worker)
{
    board *b = context;

    if (index < 0 || index >= b->tasks || worker < 0 || worker >= b->threads)
        b->bad++;
    else
        b->visits[index]++;
}

static void check_once_each(ls_pool *pool, int64_t tasks)
{
    static board b;

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
    board b = {.tasks = 0, .threads = 2};

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

/* Workers spin for 60 us and then sleep: pauses on both sides of that must not lose a wake-up. */
LS_TEST(pool_wakes_sleepers_after_pauses_of_any_length)
{
    int64_t sums[5] = {0};
    ls_pool *pool;
    int runs = 0;

    LS_CHECK_OK(ls_pool_create(&pool, 3));
    for (useconds_t pause = 0; pause < 400; pause += 4, runs++) {
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
LS_TEST(pool_tells_a_watcher_who_was_busy)
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

LS_TEST(pool_cores_is_at_least_one_and_follows_affinity)
{
    cpu_set_t all, one;
    int first = 0;

    LS_CHECK(ls_pool_cores() >= 1);
    LS_CHECK_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    while (!CPU_ISSET(first, &all))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    LS_CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    LS_CHECK_EQ(ls_pool_cores(), 1);
}
