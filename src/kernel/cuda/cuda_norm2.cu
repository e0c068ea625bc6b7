/* cuda_norm2.cu -- the norm of all gradients, and the factor that clips them.
 *
 * norm2: one block for each LS_NORM_BLOCK elements; then one block joins the partial sums along the
 * perfect binary tree over blocks, in double. Each of its threads sums an aligned subtree, and the
 * subtrees are joined level by level, a missing right sibling skipped, which is the same tree. */
#include "kernel/cuda/common.cuh"

#include <cmath>

enum { NORM_THREADS = 512, JOIN_THREADS = 1024 };

template <int VEC> __global__ void square_kernel(const float *x, int64_t n, float *partials)
{
    __shared__ float part[64];
    int64_t first = (int64_t)blockIdx.x * LS_NORM_BLOCK;
    int64_t end = min(first + (int64_t)LS_NORM_BLOCK, n);
    float sum = 0;

    for (int64_t i = first + threadIdx.x * VEC; i < end; i += NORM_THREADS * VEC) {
        float v[VEC];
        if (i + VEC <= end) {
            ls_load_run<VEC>(x + i, v);
#pragma unroll
            for (int k = 0; k < VEC; k++)
                sum = fmaf(v[k], v[k], sum);
        } else {
            for (int64_t k = i; k < end; k++)
                sum = fmaf(x[k], x[k], sum);
        }
    }
    sum = ls_block_sum(sum, part);
    if (threadIdx.x == 0)
        partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(JOIN_THREADS)
    join_kernel(const float *partials, int64_t blocks, const ls_step_state *state,
                ls_norm_result *result, bool scaled)
{
    __shared__ double sums[JOIN_THREADS];
    __shared__ unsigned long long bad;
    int64_t size = 1;

    while (size * JOIN_THREADS < blocks)
        size *= 2;
    if (threadIdx.x == 0)
        bad = ~0ull;
    __syncthreads();
    int64_t first = threadIdx.x * size;
    sums[threadIdx.x] = first < blocks ? ls_subtree(partials, first, size, blocks) : 0;
    for (int64_t i = first; i < min(first + size, blocks); i++)
        if (!isfinite(partials[i])) {
            atomicMin(&bad, (unsigned long long)i);
            break;
        }
    for (int k = 1; k < JOIN_THREADS; k *= 2) {
        __syncthreads();
        int right = threadIdx.x + k;
        if (threadIdx.x % (2 * k) == 0 && right < JOIN_THREADS && right * size < blocks)
            sums[threadIdx.x] += sums[right];
    }
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    /* The loss scale (optim/loss_scaler.h) is taken out here. */
    float unscale = scaled ? 1.0f / state->loss_scale : 1.0f;
    float norm = (float)sqrt(sums[0]) * unscale;
    result->norm = norm;
    result->bad_block = bad == ~0ull ? -1 : (int64_t)bad;
    result->factor = bad != ~0ull                            ? 0.0f
                     : state->clip > 0 && norm > state->clip ? unscale * (state->clip / norm)
                                                             : unscale;
}

void ls_cuda_norm2(ls_stream *stream, const ls_norm2 *a)
{
    ls_cuda_row row(stream, LS_ROW_NORM2);
    int64_t blocks = (a->n + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;
    bool squares = blocks > 0 && a->part != LS_NORM_JOIN;

    if (!row.on)
        return;
    if (squares && ls_cuda_aligned(a->x, 16))
        square_kernel<4>
            <<<(unsigned)blocks, NORM_THREADS, 0, row.queue()>>>(a->x, a->n, a->partials);
    else if (squares)
        square_kernel<1>
            <<<(unsigned)blocks, NORM_THREADS, 0, row.queue()>>>(a->x, a->n, a->partials);
    if (a->part != LS_NORM_SQUARES)
        join_kernel<<<1, JOIN_THREADS, 0, row.queue()>>>(a->partials, blocks, a->state, a->result,
                                                         a->scaled);
}
