/* kernel_check.h -- buffers with guard bytes, and comparison, for the tests of kernel rows. */
#pragma once
#include "harness.h"
#include "device/device.h"
#include "kernel/kernel.h"

enum { LS_CHECK_BUFFERS = 64 };

/* A set of buffers that lives for one case. Each has guard bytes before it, and ends where a page
 * ends that nobody may touch, so that reading too far is found as well. */
typedef struct ls_check {
    ls_device *device;
    ls_stream *stream;
    struct {
        unsigned char *base;
        size_t mapped, bytes;
        const char *name;
    } buffers[LS_CHECK_BUFFERS];
    int count;
    uint32_t seed;
} ls_check;

/* The fast tables that this CPU can run, the plainest first; returns how many. */
enum { LS_CHECK_TABLES = 3 };
int ls_check_tables(ls_kernels tables_out[LS_CHECK_TABLES]);
const ls_kernels *ls_check_reference(void);

void ls_check_begin(ls_check *c, int threads);
void ls_check_end(ls_check *c); /* checks all guards, frees all */

/* n floats, normal values times scale (scale 0: filled with NaN, for outputs). */
float *ls_check_floats(ls_check *c, const char *name, int64_t n, float scale);
int32_t *ls_check_ints(ls_check *c, const char *name, int64_t n, int32_t below); /* in [0, below) */
void *ls_check_bytes(ls_check *c, const char *name, int64_t bytes);              /* 0xff bytes */
float *ls_check_copy(ls_check *c, const char *name, const float *from, int64_t n);

/* |got - want| <= tolerance * (1 + |want|) for all; says the first index that is not. */
void ls_check_near(const char *what, const float *got, const float *want, int64_t n,
                   double tolerance);
/* Equal to the last bit. */
void ls_check_same(const char *what, const void *got, const void *want, int64_t bytes);

void ls_check_sync(ls_check *c);
