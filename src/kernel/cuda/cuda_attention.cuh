/* cuda_attention.cuh -- the two ways of attention on a GPU: cuDNN's and our own.
 *
 * cuDNN takes bf16, head sizes that are multiples of 8 up to 128, no documents, no window, no
 * dropout, no past; and only what its engines accept. Our kernels take everything else. */
#pragma once
#include "kernel/cuda/common.cuh"

/* Queue it with cuDNN; *done_out is false when it is not for cuDNN. */
ls_status ls_cudnn_attention_fwd(ls_cuda_stream *s, const ls_attention_fwd *a, bool *done_out);
ls_status ls_cudnn_attention_bwd(ls_cuda_stream *s, const ls_attention_bwd *a, bool *done_out);

/* Bytes of scratch that the gradient wants of cuDNN for this shape, fp32 sums of rows included. */
int64_t ls_cudnn_attention_scratch(const ls_attention_bwd *a);
