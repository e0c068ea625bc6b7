/* peak.c -- measures, by the wall clock of the whole team, so that threads beyond the cores do not
 * count twice. The best of three: a neighbour on the machine only ever makes a burst slower. */
#include "kernel/peak.h"

#include <stdatomic.h>
#include "base/time.h"
#include "kernel/kernel.h"
#include "kernel/peak_impl.h"

enum { REPEATS = 3, BURST_MS = 20 };

typedef int64_t (*burst)(int64_t rounds, float *sink_out);

static burst burst_of(const char *name)
{
#if defined(__x86_64__)
    if (strcmp(name, "avx512") == 0)
        return ls_peak_burst_avx512;
    if (strcmp(name, "avx2") == 0)
        return ls_peak_burst_avx2;
#endif
    (void)name;
    return ls_peak_burst_generic;
}

typedef struct fma_job {
    burst run;
    int64_t until_ns;
    _Atomic int64_t flops;
} fma_job;

static void fma_task(void *context, int64_t index, int worker)
{
    fma_job *job = context;
    int64_t flops = 0;
    float sink = 0;

    (void)index;
    (void)worker;
    do
        flops += job->run(2000, &sink);
    while (ls_time_now_ns() < job->until_ns);
    atomic_fetch_add(&job->flops, flops);
}

double ls_peak_flops(ls_device *device, const char *isa)
{
    const ls_kernels *kernels;
    ls_stream *stream = NULL;
    double best = 0;

    if (strcmp(isa, "reference") == 0)
        isa = "auto";
    if (ls_kernel_pick(isa, &kernels) != LS_OK || ls_stream_create(&stream, device) != LS_OK)
        return 0;
    ls_pool *pool = ls_stream_pool(stream);
    for (int i = 0; i < REPEATS; i++) {
        int64_t start = ls_time_now_ns();
        fma_job job = {.run = burst_of(kernels->name), .until_ns = start + BURST_MS * LS_NS_PER_MS};
        ls_pool_run(pool, fma_task, &job, ls_pool_threads(pool));
        double rate = (double)atomic_load(&job.flops) / (double)(ls_time_now_ns() - start) * 1e9;
        best = rate > best ? rate : best;
    }
    ls_stream_free(stream);
    return best;
}

double ls_peak_bandwidth(ls_device *device)
{
    const int64_t n = 24 * LS_MIB; /* floats; two buffers of 96 MiB, beyond any cache of a core */
    const ls_kernels *kernels;
    ls_stream *stream = NULL;
    void *a = NULL, *b = NULL;
    double best = 0;

    if (ls_kernel_pick("auto", &kernels) != LS_OK || ls_stream_create(&stream, device) != LS_OK ||
        ls_device_alloc(device, n * 4, "bandwidth test", &a) != LS_OK ||
        ls_device_alloc(device, n * 4, "bandwidth test", &b) != LS_OK)
        goto out;
    /* In place: a buffer that is only written would be read as well, without being counted. */
    ls_add args = {.a = a, .b = b, .out = a, .n = n};
    for (int i = 0; i < REPEATS; i++) {
        int64_t start = ls_time_now_ns();
        kernels->add(stream, &args);
        if (ls_stream_sync(stream, start + 10 * LS_NS_PER_S) != LS_OK)
            goto out;
        double rate = 12.0 * (double)n / (double)(ls_time_now_ns() - start) * 1e9;
        best = rate > best ? rate : best;
    }
out:
    ls_device_free(device, a);
    ls_device_free(device, b);
    ls_stream_free(stream);
    return best;
}
