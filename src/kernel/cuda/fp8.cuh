/* fp8.cuh -- tensors of bf16 as 8-bit ones with a scale, in the layouts that fp8 products want. */
#pragma once
#include "kernel/cuda/cuda_gemm.cuh"

/* Whether a linear row of these sizes, whose product reads a and b, can be computed in fp8. */
static inline bool ls_fp8_fits(const ls_fp8 *fp8, ls_dtype type, int64_t M, int64_t N, int64_t K,
                               const void *a, const void *b)
{
    return fp8->x_max && type == LS_BF16 && M % 16 == 0 && N % 16 == 0 && K % 16 == 0 &&
           ls_cuda_aligned(a, 16) && ls_cuda_aligned(b, 16);
}

/* Bytes of ls_fp8.scratch for the linear rows, any of the three. */
int64_t ls_cuda_linear_scratch(int64_t M, int64_t N, int64_t K);

/* Inside a row: the products of a linear layer in fp8. d, bias and epilogue are the caller's. */
ls_status ls_fp8_linear_fwd(ls_cuda_stream *s, const ls_linear_fwd *a, ls_product *p);
ls_status ls_fp8_linear_bwd_x(ls_cuda_stream *s, const ls_linear_bwd_x *a, ls_product *p);
ls_status ls_fp8_linear_bwd_w(ls_cuda_stream *s, const ls_linear_bwd_w *a, ls_product *p);
