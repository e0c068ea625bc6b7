/* rows.h -- runs one case of a row with every table and several numbers of threads.
 *
 * The first fast result must lie within the row's tolerance of the reference; the others (more
 * threads, other instruction sets) must have the bits of the first. Inputs come from the check's
 * seed, so every run sees the same ones. */
#pragma once
#include "kernel/kernel_check.h"

/* Runs the row for one shape and copies its n results to out. */
typedef void (*ls_rows_run)(ls_check *c, const ls_kernels *k, const void *shape, float *out);

static inline float *ls_rows_once(ls_rows_run run, const void *shape, const ls_kernels *k,
                                  int threads, int64_t n)
{
    float *out = malloc((size_t)n * sizeof *out);
    ls_check c;

    LS_CHECK(out);
    ls_check_begin(&c, threads);
    run(&c, k, shape, out);
    ls_check_end(&c);
    return out;
}

static inline void ls_rows_check(ls_row row, ls_rows_run run, const void *shape, int64_t n)
{
    const ls_kernels *list[8];
    int count = ls_kernel_list(list, 8);
    const char *name = ls_kernel_rows[row].name;
    float *want = ls_rows_once(run, shape, ls_check_reference(), 1, n), *first = NULL;

    for (int i = 0; i < count; i++) {
        if (list[i] == ls_check_reference())
            continue;
        for (int threads = first ? 3 : 1; threads <= 3; threads++) {
            float *got = ls_rows_once(run, shape, list[i], threads, n);
            if (!first) {
                ls_check_near(name, got, want, n, ls_kernel_rows[row].tolerance);
                first = got;
                continue;
            }
            ls_check_same(name, got, first, n * (int64_t)sizeof *got);
            free(got);
        }
    }
    LS_CHECK(first);
    free(first);
    free(want);
}

/* Appends n floats to the results. */
static inline float *ls_rows_put(float *out, const float *from, int64_t n)
{
    memcpy(out, from, (size_t)n * sizeof *out);
    return out + n;
}

/* Room for the scratch of a row with these arguments. */
static inline void *ls_rows_scratch(ls_check *c, const ls_kernels *k, ls_row row, const void *args)
{
    int threads = ls_device_describe(c->device).threads;

    return ls_check_bytes(c, "scratch", k->scratch(row, args, threads));
}

/* part[0] = the sum over the perfect binary tree of n vectors of size floats, by the add row. */
static inline void ls_rows_tree(ls_check *c, const ls_kernels *k, float **part, int64_t n,
                                int64_t size)
{
    for (int64_t step = 1; step < n; step *= 2)
        for (int64_t i = 0; i + step < n; i += 2 * step)
            k->add(c->stream,
                   &(ls_add){.a = part[i], .b = part[i + step], .out = part[i], .n = size});
}
