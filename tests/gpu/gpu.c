/* gpu.c -- see gpu.h. */
#include "gpu/gpu.h"

#include <math.h>
#include "base/mem.h"
#include "base/rng.h"
#include "base/time.h"
#include "kernel/cpu/ref_impl.h"

enum { GUARD = 256, GUARD_BYTE = 0xA5 };
#define BLOCK_BYTES (INT64_C(1) << 30)

void ls_gpu_open(ls_gpu *g)
{
    bool must = getenv("LINESHAFT_GPU_TEST") != NULL;
    const char *reason = ls_device_unusable("cuda");

    *g = (ls_gpu){.seed = 1};
    if (reason && !must)
        ls_test_skip("%s", reason);
    if (ls_device_open(&g->device, "cuda", 0) != LS_OK) {
        if (!must)
            ls_test_skip("%s", ls_err_last()->text);
        ls_test_fail(__FILE__, __LINE__, "%s", ls_err_last()->text);
    }
    LS_CHECK_OK(ls_stream_create(&g->stream, g->device));
    LS_CHECK_OK(ls_kernel_for(g->device, "auto", &g->k));
    LS_CHECK_OK(ls_device_open(&g->cpu, "cpu", 2));
    LS_CHECK_OK(ls_stream_create(&g->cpu_stream, g->cpu));
    LS_CHECK_OK(ls_kernel_pick("reference", &g->reference));
    LS_CHECK_OK(ls_device_alloc(g->device, BLOCK_BYTES, "tests", (void **)&g->block));
}

void ls_gpu_close(ls_gpu *g)
{
    ls_device_free(g->device, g->block);
    ls_stream_free(g->stream);
    ls_device_close(g->device);
    ls_stream_free(g->cpu_stream);
    ls_device_close(g->cpu);
}

void ls_gpu_sync(ls_gpu *g)
{
    LS_CHECK_OK(ls_stream_sync(g->stream, ls_time_now_ns() + 60 * LS_NS_PER_S));
}

void ls_gpu_begin(ls_gpu *g, ls_dtype type, int64_t shift)
{
    g->type = type;
    g->shift = shift;
    g->used = 0;
    g->count = 0;
}

static void *in_device(ls_gpu *g, int64_t bytes, int64_t shift_bytes)
{
    static unsigned char guard[2 * GUARD];
    int64_t at = ls_round_up(g->used + GUARD, 256) + shift_bytes;

    memset(guard, GUARD_BYTE, sizeof guard);
    LS_CHECK(at + bytes + GUARD <= BLOCK_BYTES);
    ls_stream_copy_in(g->stream, g->block + at - GUARD, guard, GUARD);
    ls_stream_copy_in(g->stream, g->block + at + bytes, guard, GUARD);
    ls_gpu_sync(g);
    g->used = at + bytes + GUARD;
    return g->block + at;
}

static void check_guard(ls_gpu *g, const ls_gpu_tensor *t, const char *at, const char *side)
{
    unsigned char seen[GUARD];

    ls_stream_copy_out(g->stream, seen, at, GUARD);
    ls_gpu_sync(g);
    for (int i = 0; i < GUARD; i++)
        if (seen[i] != GUARD_BYTE)
            ls_test_fail(__FILE__, __LINE__, "bytes %s \"%s\" were overwritten", side, t->name);
}

void ls_gpu_end(ls_gpu *g)
{
    ls_gpu_sync(g);
    for (int i = 0; i < g->count; i++) {
        const ls_gpu_tensor *t = &g->all[i];
        check_guard(g, t, (char *)t->device - GUARD, "before");
        check_guard(g, t, (char *)t->device + t->n * ls_dtype_bytes(t->type), "after");
        free(t->host);
        free(t->ints);
    }
}

static ls_gpu_tensor *add(ls_gpu *g, const char *name, ls_dtype type, int64_t n, int64_t shift)
{
    LS_CHECK(g->count < LS_GPU_TENSORS);
    ls_gpu_tensor *t = &g->all[g->count++];
    int64_t bytes = n * ls_dtype_bytes(type);

    *t = (ls_gpu_tensor){.name = name, .type = type, .n = n};
    t->device = in_device(g, bytes, shift * ls_dtype_bytes(type));
    return t;
}

void ls_gpu_send(ls_gpu *g, const ls_gpu_tensor *t)
{
    uint16_t *small = malloc((size_t)t->n * 2 + 1);

    LS_CHECK(small);
    if (t->ints) {
        ls_stream_copy_in(g->stream, t->device, t->ints, t->n * 4);
    } else if (t->type == LS_F32) {
        ls_stream_copy_in(g->stream, t->device, t->host, t->n * 4);
    } else {
        for (int64_t i = 0; i < t->n; i++) {
            ls_ref_store(small, t->type, i, (double)t->host[i]);
            t->host[i] = (float)ls_ref_load(small, t->type, i);
        }
        ls_stream_copy_in(g->stream, t->device, small, t->n * 2);
    }
    ls_gpu_sync(g);
    free(small);
}

static ls_gpu_tensor values(ls_gpu *g, const char *name, int64_t n, float scale, ls_dtype type)
{
    ls_gpu_tensor *t = add(g, name, type, n, g->shift);

    t->host = malloc((size_t)n * sizeof *t->host + 1);
    LS_CHECK(t->host);
    if (scale != 0) {
        ls_rng_normal(ls_rng_derive(g->seed++, 7, 7), 0, (uint64_t)n, t->host);
        for (int64_t i = 0; i < n; i++)
            t->host[i] *= scale;
        ls_gpu_send(g, t);
    } else {
        memset(t->host, 0xff, (size_t)n * sizeof *t->host);
        ls_stream_copy_in(g->stream, t->device, t->host, n * ls_dtype_bytes(type));
        ls_gpu_sync(g);
    }
    return *t;
}

ls_gpu_tensor ls_gpu_values(ls_gpu *g, const char *name, int64_t n, float scale)
{
    return values(g, name, n, scale, g->type);
}

ls_gpu_tensor ls_gpu_floats(ls_gpu *g, const char *name, int64_t n, float scale)
{
    return values(g, name, n, scale, LS_F32);
}

ls_gpu_tensor ls_gpu_ints(ls_gpu *g, const char *name, int64_t n, int32_t below)
{
    ls_gpu_tensor *t = add(g, name, LS_I32, n, 0);
    ls_rng_key key = ls_rng_derive(g->seed++, 9, 9);

    t->ints = malloc((size_t)n * sizeof *t->ints + 1);
    LS_CHECK(t->ints);
    for (int64_t i = 0; i < n; i++)
        t->ints[i] = (int32_t)(ls_rng_philox(key, (uint32_t)i, 0, 0, 0).v[0] % (uint32_t)below);
    ls_gpu_send(g, t);
    return *t;
}

ls_gpu_tensor ls_gpu_bytes(ls_gpu *g, const char *name, const void *bytes, int64_t n)
{
    ls_gpu_tensor *t = add(g, name, LS_U8, n, 0);

    ls_stream_copy_in(g->stream, t->device, bytes, n);
    ls_gpu_sync(g);
    return *t;
}

void *ls_gpu_scratch(ls_gpu *g, ls_row row, const void *args)
{
    return add(g, "scratch", LS_U8, g->k->scratch(row, args, 1), 0)->device;
}

void *ls_gpu_host_scratch(ls_gpu *g, ls_row row, const void *args)
{
    ls_gpu_tensor *t = add(g, "scratch of the reference", LS_U8, 1, 0);

    t->host = malloc((size_t)g->reference->scratch(row, args, 2) + 1);
    LS_CHECK(t->host);
    return t->host;
}

float *ls_gpu_fetch(ls_gpu *g, const ls_gpu_tensor *t)
{
    float *out = malloc((size_t)t->n * sizeof *out + 1);
    uint16_t *small = malloc((size_t)t->n * 2 + 1);

    LS_CHECK(out && small);
    ls_stream_copy_out(g->stream, t->type == LS_F32 ? (void *)out : (void *)small, t->device,
                       t->n * ls_dtype_bytes(t->type));
    ls_gpu_sync(g);
    for (int64_t i = 0; t->type != LS_F32 && i < t->n; i++)
        out[i] = (float)ls_ref_load(small, t->type, i);
    free(small);
    return out;
}

void ls_gpu_near(ls_gpu *g, const ls_gpu_tensor *t, double tolerance)
{
    float *got = ls_gpu_fetch(g, t);

    for (int64_t i = 0; i < t->n; i++) {
        double a = (double)got[i], b = (double)t->host[i];
        bool unwritten = isnan(b) && isnan(a); /* on both sides: gaps between rows */
        if (!unwritten && !(fabs(a - b) <= tolerance * (1 + fabs(b))))
            ls_test_fail(__FILE__, __LINE__,
                         "%s[%lld of %lld] is %.9g, expected %.9g within %.2g (%s, shift %lld)",
                         t->name, (long long)i, (long long)t->n, a, b, tolerance,
                         g->type == LS_F32   ? "fp32"
                         : g->type == LS_F16 ? "fp16"
                                             : "bf16",
                         (long long)g->shift);
    }
    free(got);
}

double ls_gpu_tolerance(const ls_gpu *g, ls_row row)
{
    return g->type == LS_F32   ? 2 * ls_kernel_rows[row].tolerance
           : g->type == LS_F16 ? 8e-3
                               : 1.6e-2;
}

void ls_gpu_cases(ls_gpu_case run, const void *shapes, size_t count, size_t size)
{
    ls_gpu g;

    ls_gpu_open(&g);
    for (size_t i = 0; i < count; i++)
        for (int form = 0; form < 6; form++) {
            static const ls_dtype types[] = {LS_F32, LS_BF16, LS_F16};
            ls_gpu_begin(&g, types[form % 3], form / 3);
            run(&g, (const char *)shapes + i * size);
            ls_gpu_end(&g);
        }
    ls_gpu_close(&g);
}
