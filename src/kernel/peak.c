/* peak.c -- measures, by the wall clock of the whole pool, so that threads beyond the cores do not
 * count twice. Many short bursts, of which the best counts: a neighbour on the machine only ever
 * makes one slower, and takes a core for longer than a burst. */
#include "kernel/peak.h"

#include <stdatomic.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"
#include "kernel/kernel.h"
#include "kernel/peak_impl.h"

enum { BURSTS = 20, BURST_MS = 2 };

typedef int64_t (*pass)(float *a, float *b, int64_t n, float *sink_out);

typedef struct loops {
    const char *name;
    int64_t (*fma)(int64_t rounds, float *sink_out);
    pass passes[LS_PEAK_TRAFFICS]; /* by ls_peak_traffic */
} loops;

#define LOOPS(isa)                                                                          \
    {                                                                                       \
        .name = #isa, .fma = ls_peak_burst_##isa,                                           \
        .passes = {                                                                         \
            [LS_PEAK_ADD] = ls_peak_add_##isa,     [LS_PEAK_READ] = ls_peak_read_##isa,     \
            [LS_PEAK_WRITE] = ls_peak_write_##isa, [LS_PEAK_UPDATE] = ls_peak_update_##isa, \
            [LS_PEAK_COPY] = ls_peak_copy_##isa,                                            \
        },                                                                                  \
    }

static const loops all_loops[] = {
    LOOPS(generic),
#if defined(__x86_64__)
    LOOPS(avx2),
    LOOPS(avx512),
#endif
};

/* The loops of a table of kernels; NULL when this CPU cannot run them. */
static const loops *find_loops(const char *isa)
{
    const ls_kernels *kernels;

    if (strcmp(isa, "reference") == 0)
        isa = "auto";
    if (ls_kernel_pick(isa, &kernels) != LS_OK)
        return NULL;
    for (size_t i = 0; i < LS_COUNT(all_loops); i++)
        if (strcmp(all_loops[i].name, kernels->name) == 0)
            return &all_loops[i];
    return &all_loops[0];
}

/* One burst of every thread: fma, or passes over the thread's own part of the memory. */
typedef struct job {
    const loops *loops;
    pass pass;        /* NULL: fma */
    float *memory;    /* two arrays of n floats for each thread */
    int64_t n, block; /* floats; multiples of 64 */
    int64_t *at;      /* per thread: where the next burst goes on, so that all of it is used */
    int64_t until_ns;
    _Atomic int64_t done; /* operations or bytes */
} job;

/* The next block of a thread's part; the bytes moved. */
static int64_t go_on(const job *j, int64_t index, float *sink)
{
    float *a = j->memory + 2 * j->n * index + j->at[index];
    int64_t count = ls_min_i64(j->block, j->n - j->at[index]);

    j->at[index] = (j->at[index] + count) % j->n;
    return j->pass(a, a + j->n, count, sink);
}

static void task(void *context, int64_t index, int worker)
{
    job *j = context;
    int64_t done = 0;
    float sink = 0;

    (void)worker;
    do
        done += j->pass ? go_on(j, index, &sink) : j->loops->fma(2000, &sink);
    while (ls_time_now_ns() < j->until_ns);
    atomic_fetch_add(&j->done, done);
}

static double best_of(ls_stream *stream, job *j)
{
    ls_pool *pool = ls_stream_pool(stream);
    double best = 0;

    for (int i = 0; i < BURSTS; i++) {
        int64_t start = ls_time_now_ns();
        j->until_ns = start + BURST_MS * LS_NS_PER_MS;
        atomic_store(&j->done, 0);
        ls_pool_run(pool, task, j, ls_pool_threads(pool));
        double rate = (double)atomic_load(&j->done) / (double)(ls_time_now_ns() - start) * 1e9;
        best = rate > best ? rate : best;
    }
    return best;
}

double ls_peak_flops(ls_device *device, const char *isa)
{
    job j = {.loops = find_loops(isa)};
    ls_stream *stream = NULL;

    if (!j.loops || ls_stream_create(&stream, device) != LS_OK)
        return 0;
    double best = best_of(stream, &j);
    ls_stream_free(stream);
    return best;
}

double ls_peak_bytes(ls_device *device, const char *isa, ls_peak_traffic traffic, int64_t bytes)
{
    const int64_t pair = 2 * (int64_t)sizeof(float), most = 192 * LS_MIB, least = 8 * LS_KIB;
    int64_t threads = ls_device_describe(device).threads;
    int64_t each = ls_max_i64(ls_min_i64(bytes, most) / threads, least);
    job j = {.loops = find_loops(isa), .n = each / pair / 64 * 64, .block = 64 * LS_KIB};
    ls_stream *stream = NULL;
    void *memory = NULL;
    double best = 0;

    j.at = ls_mem_array((size_t)threads, sizeof *j.at);
    if (!j.loops || !j.at || ls_stream_create(&stream, device) != LS_OK ||
        ls_device_alloc(device, j.n * pair * threads, "bandwidth test", &memory) != LS_OK)
        goto out;
    j.pass = j.loops->passes[traffic];
    j.memory = memory;
    best = best_of(stream, &j);
out:
    ls_device_free(device, memory);
    ls_stream_free(stream);
    ls_mem_free(j.at);
    return best;
}

double ls_peak_bandwidth(ls_device *device)
{
    return ls_peak_bytes(device, "auto", LS_PEAK_ADD, INT64_MAX);
}

const char *ls_peak_level(int64_t bytes, int threads)
{
    int64_t each = bytes / ls_max_i64(threads, 1);
    int64_t l1 = sysconf(_SC_LEVEL1_DCACHE_SIZE), l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    int64_t l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);

    if (l1 <= 0 && l2 <= 0)
        return "cache";
    if (each <= l1)
        return "L1";
    if (each <= l2)
        return "L2";
    return bytes <= l3 ? "L3" : "memory";
}
