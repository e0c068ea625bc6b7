/* cuda_optimizer.cu -- the norm of all gradients, and the steps of AdamW and LAMB.
 *
 * norm2: one block for each LS_NORM_BLOCK elements; then one block joins the partial sums along the
 * perfect binary tree over blocks, in double. Each of its threads sums an aligned subtree, and the
 * subtrees are joined level by level, a missing right sibling skipped, which is the same tree.
 *
 * adamw: a rule of elements.cuh, which lamb's direction follows too.
 *
 * lamb: a block for each piece, in both parts; between them a thread for each tensor joins the
 * sums of its pieces along the tree. */
#include "kernel/cuda/elements.cuh"

#include <cmath>

enum { NORM_THREADS = 512, JOIN_THREADS = 1024 };

/* --- norm2 ---------------------------------------------------------------------------------- */

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

/* The tree over blocks first .. first + size, size a power of two; those from n on are missing. */
__device__ double subtree(const float *x, int64_t first, int64_t size, int64_t n)
{
    ls_tree<double> tree = {};

    for (int64_t i = first; i < min(first + size, n); i++)
        tree.push((double)x[i]);
    return tree.total();
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
    sums[threadIdx.x] = first < blocks ? subtree(partials, first, size, blocks) : 0;
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

/* --- adamw ---------------------------------------------------------------------------------- */

namespace
{
struct adamw_rule {
    static constexpr bool two = true;
    float beta1, beta2, unbias1, unbias2, eps, decay;

    __device__ adamw_rule(const ls_step_state *s, float span_decay)
        : beta1(s->beta1), beta2(s->beta2), unbias1(1.0f / s->bias1),
          unbias2(1.0f / sqrtf(s->bias2)), eps(s->eps), decay(s->weight_decay * span_decay)
    {
    }

    /* The direction of the step, decay included. */
    __device__ float step(float w, float g, float &m, float &v) const
    {
        m = ls_dust(fmaf(beta1, m, (1.0f - beta1) * g));
        v = fmaf(beta2, v, (1.0f - beta2) * g * g);
        float step = m * unbias1 / fmaf(sqrtf(v), unbias2, eps);
        return fmaf(decay, w, step);
    }
};
} // namespace

void ls_cuda_adamw(ls_stream *stream, const ls_adamw *a)
{
    ls_cuda_elements<adamw_rule>(stream, LS_ROW_ADAMW, a);
}

/* --- lamb ----------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(NORM_THREADS)
    direction_kernel(ls_lamb a, const ls_cuda_fault *faults)
{
    __shared__ float part[64];
    ls_lamb_piece p = a.pieces[blockIdx.x];
    float w2 = 0, u2 = 0;

    if (a.result->bad_block >= 0 || ls_any_fault(faults))
        return;
    adamw_rule r(a.state, p.decay);
    float factor = a.result->factor;
    for (int64_t i = threadIdx.x; i < p.count; i += NORM_THREADS) {
        int64_t k = p.first + i, at = p.g_first + i;
        float w = a.w[p.w_first + i], u = r.step(w, a.grad[at] * factor, a.m[k], a.v[k]);
        a.grad[at] = u;
        w2 = fmaf(w, w, w2);
        u2 = fmaf(u, u, u2);
    }
    ls_block_sum2(w2, u2, part);
    if (threadIdx.x == 0) {
        a.squares[p.number] = w2;
        a.squares[a.n_squares + p.number] = u2;
    }
}

/* A thread for each tensor: even the largest has a few thousand pieces. */
__global__ void ratio_kernel(ls_lamb a)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, size = 1;

    if (i >= a.n_tensors)
        return;
    ls_lamb_tensor t = a.tensors[i];
    while (size < t.count)
        size *= 2;
    double w = sqrt(subtree(a.squares + t.first, 0, size, t.count));
    double u = sqrt(subtree(a.squares + a.n_squares + t.first, 0, size, t.count));
    a.ratios[i] = t.adapts && w > 0 && u > 0 ? (float)(w / u) : 1.0f;
}

template <typename COPY>
__global__ void __launch_bounds__(NORM_THREADS) lamb_kernel(ls_lamb a, const ls_cuda_fault *faults)
{
    ls_lamb_piece p = a.pieces[blockIdx.x];

    if (a.result->bad_block >= 0 || ls_any_fault(faults))
        return;
    float rate = a.state->lr * a.ratios[p.tensor];
    for (int64_t i = threadIdx.x; i < p.count; i += NORM_THREADS) {
        int64_t wi = p.w_first + i;
        float w = fmaf(-rate, a.grad[p.g_first + i], a.w[wi]);
        a.w[wi] = w;
        if (a.copy)
            ((COPY *)a.copy)[wi] = ls_put_copy<COPY>(w, a.rounding, wi);
    }
}

void ls_cuda_lamb(ls_stream *stream, const ls_lamb *a)
{
    ls_cuda_row row(stream, LS_ROW_LAMB);
    unsigned pieces = (unsigned)a->n_pieces, tensors = (unsigned)a->n_tensors;

    if (!row.on || a->n_pieces <= 0)
        return;
    if (a->part == LS_LAMB_DIRECTION) {
        direction_kernel<<<pieces, NORM_THREADS, 0, row.queue()>>>(*a, row.s->faults);
        return;
    }
    if (a->copy && !row.ok(ls_cuda_check_type(LS_ROW_LAMB, a->copy_type)))
        return;
    ratio_kernel<<<(tensors + 31) / 32, 32, 0, row.queue()>>>(*a);
    ls_cuda_typed(a->copy ? a->copy_type : LS_F32, [&](auto t) {
        lamb_kernel<decltype(t)><<<pieces, NORM_THREADS, 0, row.queue()>>>(*a, row.s->faults);
    });
}
