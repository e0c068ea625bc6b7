/* kernel_check.c -- see check.h. */
#include "kernel/kernel_check.h"

#include <math.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/rng.h"
#include "base/time.h"

enum { GUARD = 128, GUARD_BYTE = 0xA5 };

const ls_kernels *ls_check_reference(void)
{
    const ls_kernels *k = NULL;

    LS_CHECK_OK(ls_kernel_pick("reference", &k));
    return k;
}

int ls_check_tables(ls_kernels tables_out[LS_CHECK_TABLES])
{
    const ls_kernels *list[LS_CHECK_TABLES + 1];
    int count = ls_kernel_list(list, LS_CHECK_TABLES + 1) - 1; /* the reference is the last */

    LS_CHECK(count >= 1 && list[count] == ls_check_reference());
    for (int i = 0; i < count; i++)
        tables_out[i] = *list[count - 1 - i];
    return count;
}

void ls_check_begin(ls_check *c, int threads)
{
    *c = (ls_check){.seed = 1};
    LS_CHECK_OK(ls_device_open(&c->device, "cpu", threads));
    LS_CHECK_OK(ls_stream_create(&c->stream, c->device));
}

static void check_guards(const ls_check *c, int i)
{
    const unsigned char *p = c->buffers[i].base;

    for (int k = 0; k < GUARD; k++)
        if (p[k] != GUARD_BYTE)
            ls_test_fail(__FILE__, __LINE__, "bytes before \"%s\" were overwritten",
                         c->buffers[i].name);
}

void ls_check_end(ls_check *c)
{
    ls_check_sync(c);
    for (int i = 0; i < c->count; i++) {
        check_guards(c, i);
        munmap((void *)((uintptr_t)c->buffers[i].base & ~((uintptr_t)getpagesize() - 1)),
               c->buffers[i].mapped);
    }
    ls_stream_free(c->stream);
    ls_device_close(c->device);
}

void *ls_check_bytes(ls_check *c, const char *name, int64_t bytes)
{
    int64_t page = getpagesize(), room = ls_round_up(bytes + GUARD, page);
    unsigned char *map = mmap(NULL, (size_t)(room + page), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char *base = map + room - bytes - GUARD;

    LS_CHECK(map != MAP_FAILED && c->count < LS_CHECK_BUFFERS);
    LS_CHECK(mprotect(map + room, (size_t)page, PROT_NONE) == 0);
    memset(base, GUARD_BYTE, GUARD);
    memset(base + GUARD, 0xff, (size_t)bytes);
    c->buffers[c->count].base = base;
    c->buffers[c->count].mapped = (size_t)(room + page);
    c->buffers[c->count].bytes = (size_t)bytes;
    c->buffers[c->count].name = name;
    c->count++;
    return base + GUARD;
}

float *ls_check_floats(ls_check *c, const char *name, int64_t n, float scale)
{
    float *p = ls_check_bytes(c, name, n * (int64_t)sizeof *p);

    if (scale != 0) {
        ls_rng_normal(ls_rng_derive(c->seed++, 7, 7), 0, (uint64_t)n, p);
        for (int64_t i = 0; i < n; i++)
            p[i] *= scale;
    }
    return p;
}

int32_t *ls_check_ints(ls_check *c, const char *name, int64_t n, int32_t below)
{
    int32_t *p = ls_check_bytes(c, name, n * (int64_t)sizeof *p);
    ls_rng_key key = ls_rng_derive(c->seed++, 9, 9);

    for (int64_t i = 0; i < n; i++)
        p[i] = (int32_t)(ls_rng_philox(key, (uint32_t)i, 0, 0, 0).v[0] % (uint32_t)below);
    return p;
}

float *ls_check_copy(ls_check *c, const char *name, const float *from, int64_t n)
{
    float *p = ls_check_bytes(c, name, n * (int64_t)sizeof *p);

    memcpy(p, from, (size_t)n * sizeof *p);
    return p;
}

void ls_check_near(const char *what, const float *got, const float *want, int64_t n,
                   double tolerance)
{
    for (int64_t i = 0; i < n; i++) {
        double g = (double)got[i], w = (double)want[i];
        if (!(fabs(g - w) <= tolerance * (1 + fabs(w))))
            ls_test_fail(__FILE__, __LINE__, "%s[%lld of %lld] is %.9g, expected %.9g", what,
                         (long long)i, (long long)n, g, w);
    }
}

void ls_check_same(const char *what, const void *got, const void *want, int64_t bytes)
{
    const unsigned char *g = got, *w = want;

    for (int64_t i = 0; i < bytes; i++)
        if (g[i] != w[i])
            ls_test_fail(__FILE__, __LINE__, "%s differs at byte %lld of %lld", what, (long long)i,
                         (long long)bytes);
}

void ls_check_sync(ls_check *c)
{
    LS_CHECK_OK(ls_stream_sync(c->stream, ls_test_soon()));
}
