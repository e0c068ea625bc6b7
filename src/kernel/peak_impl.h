/* peak_impl.h -- the inner loops behind peak.h, one per instruction set. */
#pragma once
#include "base/base.h"

/* rounds times a fixed number of independent fma; returns the operations done. *sink_out is
 * written so that the work cannot be left out. */
int64_t ls_peak_burst_generic(int64_t rounds, float *sink_out);
int64_t ls_peak_burst_avx2(int64_t rounds, float *sink_out);
int64_t ls_peak_burst_avx512(int64_t rounds, float *sink_out);
