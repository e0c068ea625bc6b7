/* grouped.cuh -- the linear rows over groups of rows, each with a weight of its own (ls_groups).
 *
 * How many rows a group has is known on the device only, so cuBLASLt cannot be asked: these are
 * products of our own, in tiles of 128 x 256, that look up there which rows they have. */
#pragma once
#include "kernel/cuda/common.cuh"

ls_status ls_grouped_fwd(ls_cuda_stream *s, const ls_linear_fwd *a);
ls_status ls_grouped_bwd_x(ls_cuda_stream *s, const ls_linear_bwd_x *a);
ls_status ls_grouped_bwd_w(ls_cuda_stream *s, const ls_linear_bwd_w *a);

/* Floats of ls_groups.stack. */
int64_t ls_grouped_stack(int64_t leaves);
