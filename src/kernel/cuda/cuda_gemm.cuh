/* cuda_gemm.cuh -- matrix products through cuBLASLt, with the algorithm of each shape found once.
 *
 * D = A B (+ C or D), column-major as cuBLAS counts: D is m x n, the sum runs over k. A row-major
 * matrix of ours is the transpose of one there. fp32 is full fp32 unless tf32 is allowed; 16 bits
 * and fp8 are summed in fp32. fp8 takes A transposed and B not, and no epilogue of GELU. */
#pragma once
#include "kernel/cuda/common.cuh"

typedef enum ls_epilogue {
    LS_EPILOGUE_NONE,
    LS_EPILOGUE_BIAS,     /* + bias[m] */
    LS_EPILOGUE_GELU_AUX, /* gelu(. + bias), what was before it into aux; bias may be NULL */
    LS_EPILOGUE_DGELU     /* . * gelu'(aux) */
} ls_epilogue;

typedef struct ls_product {
    ls_dtype a_type, b_type; /* LS_F32, LS_BF16 or LS_F16 both; or fp8, not both LS_E5M2 */
    ls_dtype out;            /* of D; the bias has it too (bf16 where D is fp32 and A is not) */
    int64_t m, n, k;
    bool transpose_a, transpose_b; /* A is k x m, B is n x k */
    int64_t lda, ldb, ldd, ld_aux;
    bool add;  /* D += */
    bool tf32; /* of fp32: what is multiplied may be rounded to tf32 */
    ls_epilogue epilogue;
    const void *a, *b, *bias;
    const float *a_scale, *b_scale; /* of fp8: device memory, what an element is multiplied by */
    const void *c; /* with add: D = A B + C, where C lies as D does; NULL: D itself */
    void *d, *aux;
} ls_product;

/* Queue it. The first call of a shape times several algorithms; while recording the heuristics'
 * first answer is taken instead, and kept. */
ls_status ls_product_queue(ls_cuda_stream *s, const ls_product *p);

/* Whether cuBLASLt's GELU epilogues can be used: they want 16-byte rows of aux. */
static inline bool ls_product_gelu_fits(ls_dtype type, const void *aux, int64_t ld)
{
    return ls_dtype_bytes(type) == 2 && ld % 8 == 0 && ls_cuda_aligned(aux, 16);
}
