/* pool.c -- what it costs to hand tasks to a team of threads.
 *
 *   make build/release/bench-pool && build/release/bench-pool [THREADS] [pin]
 *
 * Each line is the median and the 99th percentile of 2000 runs of one empty task per thread (the
 * pool's cost alone), with the caller busy for a while between two runs, as the host is between the
 * rows of a small model. The last line is the time of a run of tasks of 20 us each. */
#include "base/pool.h"
#include "base/time.h"
#include "device/cpu/cpus.h"

enum { RUNS = 2000 };

static void empty(void *context, int64_t index, int worker)
{
    (void)context;
    (void)index;
    (void)worker;
}

static void busy_for(int64_t ns)
{
    int64_t until = ls_time_now_ns() + ns;

    while (ls_time_now_ns() < until)
        ;
}

static void busy_task(void *context, int64_t index, int worker)
{
    (void)index;
    (void)worker;
    busy_for(*(int64_t *)context);
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static void measure(ls_pool *pool, ls_pool_task task, int64_t task_ns, int64_t gap_ns)
{
    static int64_t times[RUNS];

    for (int i = 0; i < RUNS; i++) {
        busy_for(gap_ns);
        int64_t start = ls_time_now_ns();
        ls_pool_run(pool, task, &task_ns, ls_pool_threads(pool));
        times[i] = ls_time_now_ns() - start;
    }
    qsort(times, RUNS, sizeof *times, by_size);
    printf("task %5.1f us, gap %6.1f us: median %8.2f us, 99 %% %8.2f us\n", (double)task_ns / 1000,
           (double)gap_ns / 1000, (double)times[RUNS / 2] / 1000,
           (double)times[RUNS * 99 / 100] / 1000);
}

int main(int argc, char **argv)
{
    static const int64_t gaps[] = {0, 5000, 20000, 50000, 100000, 250000, 500000, 1000000};
    const char *why = "not asked for";
    ls_cpus cpus;
    ls_pool *pool;

    if (ls_cpus_init(&cpus) != LS_OK)
        return 1;
    int threads = argc > 1 ? (int)strtol(argv[1], NULL, 10) : cpus.threads;
    const ls_pool_mask *masks = argc > 2 ? ls_cpus_pins(&cpus, threads, true, &why) : NULL;
    ls_pool_args args = {
        .threads = threads, .masks = masks, .crowded = ls_cpus_crowded(&cpus, threads)};
    if (threads < 1 || ls_pool_open(&pool, &args) != LS_OK)
        return 1;
    printf("%d threads, %s: %s\n", threads, masks ? "pinned" : "not pinned", why);
    for (size_t i = 0; i < LS_COUNT(gaps); i++)
        measure(pool, empty, 0, gaps[i]);
    measure(pool, busy_task, 20000, 0);
    ls_pool_free(pool);
    ls_cpus_release(&cpus);
    return 0;
}
