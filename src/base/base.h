/* base.h -- what every file of the project may assume: fixed-size types, attributes, banned calls.
 *
 * Include order elsewhere: own header, this room, lower rooms, system. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/banned.h"

#ifdef __cplusplus
#define LS_C_BEGIN extern "C" {
#define LS_C_END }
#define _Noreturn [[noreturn]]
#else
#define LS_C_BEGIN
#define LS_C_END
#endif

#define LS_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#define LS_UNUSED __attribute__((unused))
#define LS_COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define LS_KIB (INT64_C(1) << 10)
#define LS_MIB (INT64_C(1) << 20)
#define LS_GIB (INT64_C(1) << 30)

static inline int64_t ls_min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t ls_max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Bytes in LS_MIB or another unit, to a tenth. What is needed is rounded up and what is there down, so
 * that too little never reads like enough: "needs 1.6 MiB, 1.5 MiB free". */
static inline double ls_size_up(int64_t bytes, int64_t unit)
{
    int64_t rest = bytes % unit;

    return (double)(bytes / unit) + (double)((rest * 10 + unit - 1) / unit) / 10;
}

static inline double ls_size_down(int64_t bytes, int64_t unit)
{
    return (double)(bytes / unit) + (double)(bytes % unit * 10 / unit) / 10;
}

/* Smallest multiple of step that is >= n. */
static inline int64_t ls_round_up(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}
