/* cuda_qkv_wide.cuh -- norms over all heads together; see cuda_qkv_wide.cu. */
#pragma once
#include "kernel/cuda/common.cuh"

ls_status ls_qkv_wide_fwd(ls_cuda_stream *s, const ls_qkv *a);
/* chunk_rows: rows of a leaf that a block sums; scratch has D floats for each chunk. */
ls_status ls_qkv_wide_bwd(ls_cuda_stream *s, const ls_qkv *a, int64_t chunk_rows);
