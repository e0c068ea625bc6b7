/* mem.c -- malloc with a counter and a planned failure. */
#include "base/mem.h"

#include <stdatomic.h>

static atomic_uint_fast64_t calls;
static atomic_int_fast64_t fail_after; /* 0: off; n: fail the n-th call from now */

static bool must_fail(void)
{
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
    if (atomic_load_explicit(&fail_after, memory_order_relaxed) == 0)
        return false;
    return atomic_fetch_sub_explicit(&fail_after, 1, memory_order_relaxed) == 1;
}

static void *checked(void *p, size_t bytes)
{
    if (!p)
        ls_fail(LS_ENOMEM, "cannot allocate %zu bytes", bytes);
    return p;
}

void *ls_mem_alloc(size_t bytes)
{
    return checked(must_fail() ? NULL : calloc(1, bytes ? bytes : 1), bytes);
}

void *ls_mem_array(size_t count, size_t size)
{
    size_t bytes;

    if (__builtin_mul_overflow(count, size, &bytes)) {
        ls_fail(LS_ENOMEM, "cannot allocate %zu times %zu bytes", count, size);
        return NULL;
    }
    return ls_mem_alloc(bytes);
}

void *ls_mem_resize(void *p, size_t bytes)
{
    return checked(must_fail() ? NULL : realloc(p, bytes ? bytes : 1), bytes);
}

void *ls_mem_one_more(void *items, size_t n, size_t size)
{
    size_t bytes;

    if (items && n && (n < 4 || (n & (n - 1))))
        return items;
    if (__builtin_mul_overflow(n < 4 ? 4 : 2 * n, size, &bytes))
        bytes = SIZE_MAX;
    return ls_mem_resize(items, bytes);
}

char *ls_mem_strdup(const char *text)
{
    size_t n = strlen(text) + 1;
    char *copy = ls_mem_alloc(n);

    if (copy)
        memcpy(copy, text, n);
    return copy;
}

void ls_mem_free(void *p)
{
    free(p);
}

uint64_t ls_mem_calls(void)
{
    return atomic_load_explicit(&calls, memory_order_relaxed);
}

void ls_mem_fail_nth(uint64_t n)
{
    atomic_store_explicit(&fail_after, (int_fast64_t)n, memory_order_relaxed);
}
