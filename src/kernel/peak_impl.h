/* peak_impl.h -- the inner loops behind peak.h, one set per instruction set. */
#pragma once
#include "base/base.h"

/* burst: rounds times a fixed number of independent fma; returns the operations done. *sink_out is
 * written so that the work cannot be left out.
 * add, read, write, update, copy: one pass over two arrays of n floats, n a multiple of 64: a += b;
 * sums of both into *sink_out; both filled; both scaled; a = b. Each returns the bytes that the
 * program asked to move. */
#define LS_PEAK_DECLARE(isa)                                                      \
    int64_t ls_peak_burst_##isa(int64_t rounds, float *sink_out);                 \
    int64_t ls_peak_add_##isa(float *a, float *b, int64_t n, float *sink_out);    \
    int64_t ls_peak_read_##isa(float *a, float *b, int64_t n, float *sink_out);   \
    int64_t ls_peak_write_##isa(float *a, float *b, int64_t n, float *sink_out);  \
    int64_t ls_peak_update_##isa(float *a, float *b, int64_t n, float *sink_out); \
    int64_t ls_peak_copy_##isa(float *a, float *b, int64_t n, float *sink_out);
LS_PEAK_DECLARE(generic)
LS_PEAK_DECLARE(avx2)
LS_PEAK_DECLARE(avx512)
#undef LS_PEAK_DECLARE
