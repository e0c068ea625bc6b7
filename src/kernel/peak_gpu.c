/* peak_gpu.c -- what a GPU can do, through the rows that training uses.
 *
 * A card is as fast as its power limit lets it be: a product alone runs at the highest clock for a
 * few milliseconds and then slows down by a tenth or more. So work is queued without a pause for a
 * while, in groups of about 10 ms with an event of the device between them; the best group is the
 * ceiling (a training step, in which products and other rows take turns, comes near it), and the
 * second half of all groups is what the card holds. Numbers must differ, because a product of equal
 * ones takes less power and is faster than any real one. */
#include "kernel/peak.h"

#include "base/mem.h"
#include "base/disk_cache.h"
#include "base/time.h"

enum { GROUPS = 40, GROUP_MS = 10, PATTERN = 1 << 20, WAIT_S = 30 };

/* How large the work is; a test takes less. */
typedef struct extent {
    int64_t bf16, f32; /* M, N and K of the products */
    int64_t copy;      /* bytes */
    int64_t held_ms, short_ms;
} extent;

static const extent large = {8192, 4096, 512 * LS_MIB, 400, 100};

typedef struct lab {
    ls_device *device;
    const ls_kernels *kernels;
    ls_stream *stream;
    ls_event *events[GROUPS + 1];
    void *memory[3];
    ls_linear_fwd product;
    int64_t copy; /* bytes; 0: the product */
} lab;

static void go(const lab *l, int64_t calls)
{
    for (int64_t i = 0; i < calls; i++) {
        if (l->copy)
            ls_stream_copy(l->stream, l->memory[1], l->memory[0], l->copy);
        else
            l->kernels->linear_fwd(l->stream, &l->product);
    }
}

static ls_status wait(const lab *l)
{
    return ls_stream_sync(l->stream, ls_time_now_ns() + WAIT_S * LS_NS_PER_S);
}

/* Seconds between two events. */
static ls_status between(const lab *l, int a, int b, double *seconds_out)
{
    double ms = 0;
    ls_status st = ls_event_between(l->events[a], l->events[b], &ms);

    *seconds_out = ms > 1e-6 ? ms / 1e3 : 1e-9;
    return st;
}

/* Calls per second: of the best group, and of the second half of the time. */
static ls_status rate(const lab *l, int64_t for_ms, double *best_out, double *held_out)
{
    ls_status st = LS_OK;
    double one = 0, seconds = 0;

    *best_out = *held_out = 0;
    go(l, 2); /* what is chosen on first use, then a call to know how long one takes */
    ls_event_record(l->events[0], l->stream);
    go(l, 1);
    ls_event_record(l->events[1], l->stream);
    LS_TRY(st, wait(l), out);
    LS_TRY(st, between(l, 0, 1, &one), out);
    int64_t calls = ls_max_i64(1, ls_min_i64((int64_t)(GROUP_MS / 1e3 / one), 1000));
    double fit = (double)for_ms / 1e3 / ((double)calls * one);
    int groups = (int)ls_max_i64(2, ls_min_i64((int64_t)fit, GROUPS));
    ls_event_record(l->events[0], l->stream);
    for (int i = 1; i <= groups; i++) {
        go(l, calls);
        ls_event_record(l->events[i], l->stream);
    }
    LS_TRY(st, wait(l), out);
    for (int i = 1; i <= groups; i++) {
        LS_TRY(st, between(l, i - 1, i, &seconds), out);
        double each = (double)calls / seconds;
        *best_out = each > *best_out ? each : *best_out;
    }
    LS_TRY(st, between(l, groups / 2, groups, &seconds), out);
    *held_out = (double)(calls * (groups - groups / 2)) / seconds;
out:
    return st;
}

/* Device memory full of numbers between -1 and 1: a pattern from the host, doubled on the card. */
static ls_status fill_numbers(const lab *l, ls_dtype type, void *memory, int64_t n)
{
    int64_t size = ls_dtype_bytes(type), have = ls_min_i64(n, PATTERN);
    unsigned char *pattern = ls_mem_alloc((size_t)(have * size));
    uint32_t state = 1;

    if (!pattern)
        return LS_ENOMEM;
    for (int64_t i = 0; i < have; i++) {
        state = state * 1664525u + 1013904223u;
        float value = (float)(int32_t)state / 2147483648.0f;
        /* bf16 is the upper half of a float; how it is rounded does not matter here. */
        memcpy(pattern + i * size, (char *)&value + (4 - size), (size_t)size);
    }
    ls_stream_copy_in(l->stream, memory, pattern, have * size);
    ls_status st = wait(l);
    ls_mem_free(pattern);
    for (; have < n; have *= 2)
        ls_stream_copy(l->stream, (char *)memory + have * size, memory,
                       ls_min_i64(have, n - have) * size);
    return st;
}

static ls_status take_memory(lab *l, int64_t bytes, int count)
{
    ls_status st = LS_OK;

    for (int i = 0; i < count; i++)
        LS_TRY(st, ls_device_alloc(l->device, bytes, "the ceilings of a GPU", &l->memory[i]), out);
out:
    return st;
}

static void give_memory(lab *l)
{
    for (int i = 0; i < 3; i++) {
        ls_device_free(l->device, l->memory[i]);
        l->memory[i] = NULL;
    }
}

static ls_status measure_product(lab *l, ls_dtype type, int64_t size, int64_t for_ms,
                                 double *best_out, double *held_out)
{
    double flops = 2.0 * (double)size * (double)size * (double)size;
    ls_status st = LS_OK;

    LS_TRY(st, take_memory(l, size * size * ls_dtype_bytes(type), 3), out);
    LS_TRY(st, fill_numbers(l, type, l->memory[0], size * size), out);
    LS_TRY(st, fill_numbers(l, type, l->memory[1], size * size), out);
    l->copy = 0;
    l->product = (ls_linear_fwd){.type = type,
                                 .x = l->memory[0],
                                 .w = l->memory[1],
                                 .y = l->memory[2],
                                 .M = size,
                                 .N = size,
                                 .K = size};
    LS_TRY(st, rate(l, for_ms, best_out, held_out), out);
    *best_out *= flops;
    *held_out *= flops;
out:
    give_memory(l);
    return st;
}

static ls_status measure_copy(lab *l, const extent *s, double *best_out)
{
    ls_status st = LS_OK;
    double held;

    LS_TRY(st, take_memory(l, s->copy, 2), out);
    l->copy = s->copy;
    LS_TRY(st, rate(l, s->short_ms, best_out, &held), out);
    *best_out *= 2 * (double)s->copy;
out:
    give_memory(l);
    return st;
}

static ls_status measure(ls_device *device, const ls_kernels *kernels, const extent *s,
                         ls_peak_gpu *peak_out)
{
    lab l = {.device = device, .kernels = kernels};
    ls_peak_gpu p = {0};
    ls_status st = LS_OK;
    double held;

    LS_TRY(st, ls_stream_create(&l.stream, device), out);
    for (int i = 0; i <= GROUPS; i++)
        LS_TRY(st, ls_event_create(&l.events[i], device), out);
    LS_TRY(st, measure_copy(&l, s, &p.bytes), out);
    LS_TRY(st, measure_product(&l, LS_F32, s->f32, s->short_ms, &p.f32_flops, &held), out);
    LS_TRY(st, measure_product(&l, LS_BF16, s->bf16, s->held_ms, &p.bf16_flops, &p.bf16_held), out);
    *peak_out = p;
out:
    for (int i = 0; i <= GROUPS; i++)
        ls_event_free(l.events[i]);
    ls_stream_free(l.stream);
    return st;
}

/* What was measured before with this card and this driver, or now. */
static ls_peak_gpu remembered(ls_device *device, const ls_kernels *kernels, const extent *s)
{
    ls_device_info info = ls_device_describe(device);
    char driver[256], about[512];
    ls_peak_gpu peak = {0};

    ls_device_driver(driver);
    snprintf(about, sizeof about, "ceilings, %s, %s", info.name, driver);
    if (ls_disk_cache_find(about, s, sizeof *s, &peak, sizeof peak))
        return peak;
    if (measure(device, kernels, s, &peak) == LS_OK)
        ls_disk_cache_add(about, s, sizeof *s, &peak, sizeof peak);
    else
        ls_err_clear();
    return peak;
}

ls_peak_gpu ls_peak_gpu_of(ls_device *device, const ls_kernels *kernels)
{
    return remembered(device, kernels, &large);
}
