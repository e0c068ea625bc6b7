/* half.h -- runs one case of a row in bf16 with every table, against the reference in fp32.
 *
 * A case draws its inputs with ls_half_values(): the reference gets floats that are bf16 values,
 * the fast tables the same values as bf16. The reference is never asked for bf16, so that the check
 * does not depend on how it rounds. Results of type bf16 must be what rounding makes of a number
 * within the row's tolerance of the reference; all fast results have equal bits. */
#pragma once
#include "kernel/rows.h"
#include <math.h>

/* Nearest even, NaN made quiet: the definition, bit by bit. */
static inline uint16_t ls_half_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    if (isnan(x))
        return (uint16_t)(u >> 16 | 0x40);
    uint32_t cut = u & 0xffff, up = cut > 0x8000 || (cut == 0x8000 && (u >> 16 & 1));
    return (uint16_t)((u >> 16) + up);
}

static inline float ls_half_value(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

/* The type in which a table runs a case of bf16. */
static inline ls_dtype ls_half_type(const ls_kernels *k)
{
    return k == ls_check_reference() ? LS_F32 : LS_BF16;
}

/* The values of a tensor, rounded to bf16, as the type asks for them. */
static inline void *ls_half_copy(ls_check *c, ls_dtype type, const char *name, const float *from,
                                 int64_t n)
{
    void *p = ls_check_bytes(c, name, n * ls_dtype_bytes(type));

    for (int64_t i = 0; i < n; i++)
        if (type == LS_BF16)
            ((uint16_t *)p)[i] = ls_half_of(from[i]);
        else
            ((float *)p)[i] = ls_half_value(ls_half_of(from[i]));
    return p;
}

/* n normal values times scale, plus shift; scale 0: an output, filled with NaN. */
static inline void *ls_half_values(ls_check *c, ls_dtype type, const char *name, int64_t n,
                                   float scale, float shift)
{
    if (scale == 0)
        return ls_check_bytes(c, name, n * ls_dtype_bytes(type));
    float *x = ls_check_floats(c, name, n, scale);

    for (int64_t i = 0; i < n; i++)
        x[i] += shift;
    return ls_half_copy(c, type, name, x, n);
}

/* Appends n values of a type to the results. */
static inline float *ls_half_put(float *out, ls_dtype type, const void *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] =
            type == LS_BF16 ? ls_half_value(((const uint16_t *)from)[i]) : ((const float *)from)[i];
    return out + n;
}

/* got is what rounding makes of a number within the tolerance of want. */
static inline void ls_half_near(const char *what, const float *got, const float *want, int64_t n,
                                double tolerance)
{
    for (int64_t i = 0; i < n; i++) {
        double g = (double)got[i], w = (double)want[i];
        double room = tolerance * (1 + fabs(w));
        double half_unit = ldexp(1, ilogb(fabs(w) + room) - 8);
        if (!(fabs(g - w) <= room + half_unit))
            ls_test_fail(__FILE__, __LINE__, "%s[%lld of %lld] is %.9g, expected %.9g in bf16",
                         what, (long long)i, (long long)n, g, w);
    }
}

/* The results of run() are `halves` values of bf16, then `floats` of fp32. */
static inline void ls_half_check(ls_row row, ls_rows_run run, const void *shape, int64_t halves,
                                 int64_t floats)
{
    ls_kernels list[LS_CHECK_TABLES];
    int count = ls_check_tables(list);
    const char *name = ls_kernel_rows[row].name;
    double tolerance = ls_kernel_rows[row].tolerance;
    int64_t n = halves + floats;
    float *want = ls_rows_once(run, shape, ls_check_reference(), 1, n), *first = NULL;

    for (int i = 0; i < count; i++)
        for (int threads = first ? 3 : 1; threads <= 3; threads += 2) {
            float *got = ls_rows_once(run, shape, &list[i], threads, n);
            if (!first) {
                ls_half_near(name, got, want, halves, tolerance);
                ls_check_near(name, got + halves, want + halves, floats, tolerance);
                first = got;
                continue;
            }
            ls_check_same(name, got, first, n * (int64_t)sizeof *got);
            free(got);
        }
    LS_CHECK(first);
    free(first);
    free(want);
}
