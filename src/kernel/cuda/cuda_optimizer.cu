/* cuda_optimizer.cu -- the norm of all gradients, and the steps of AdamW and LAMB.
 *
 * norm2: one block for each LS_NORM_BLOCK elements; then one block joins the partial sums along the
 * perfect binary tree over blocks, in double. Each of its threads sums an aligned subtree, and the
 * subtrees are joined level by level, a missing right sibling skipped, which is the same tree.
 *
 * adamw: the spans lie in device memory, so the grid is a fixed number of blocks for each span that
 * step through it. Nothing is written when a gradient is not finite or a row has found a fault.
 *
 * lamb: a block for each piece, in both parts; between them a thread for each tensor joins the
 * sums of its pieces along the tree. */
#include "kernel/cuda/common.cuh"

#include <cmath>

enum { NORM_THREADS = 512, JOIN_THREADS = 1024, STEP_THREADS = 256, STEP_BLOCKS = 264 };

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

/* The tree over blocks first .. first + size, size a power of two; those from n on are missing. A
 * binary counter, whose levels are joined from the right at the end. */
__device__ double subtree(const float *x, int64_t first, int64_t size, int64_t n)
{
    double level[40], sum = 0;
    int64_t count = min(size, n - first);
    bool any = false;

    for (int64_t i = 0; i < count; i++) {
        double v = (double)x[first + i];
        int k = 0;
        for (; i >> k & 1; k++)
            v = level[k] + v;
        level[k] = v;
    }
    for (int k = 0; k < 40; k++)
        if (count >> k & 1) {
            sum = any ? level[k] + sum : level[k];
            any = true;
        }
    return sum;
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

struct rule {
    float factor, beta1, beta2, unbias1, unbias2, eps, decay, lr;
};

__device__ inline rule make_rule(const ls_step_state *s, const ls_norm_result *result, float decay,
                                 float rate)
{
    return {result->factor,
            s->beta1,
            s->beta2,
            1.0f / s->bias1,
            1.0f / sqrtf(s->bias2),
            s->eps,
            s->weight_decay * decay,
            s->lr * rate};
}

/* The direction of the step, decay included. m below 2^-123 would fall among denormal numbers and
 * stay there; see kernel/cpu/simd/moments.h. */
__device__ inline float direction(const rule &r, float w, float grad, float &m, float &v)
{
    float g = grad * r.factor;

    m = fmaf(r.beta1, m, (1.0f - r.beta1) * g);
    m = fabsf(m) < 0x1p-123f ? 0.0f : m;
    v = fmaf(r.beta2, v, (1.0f - r.beta2) * g * g);
    float step = m * r.unbias1 / fmaf(sqrtf(v), r.unbias2, r.eps);
    return fmaf(r.decay, w, step);
}

template <int VEC, typename COPY>
__device__ inline void update_at(const ls_adamw &a, const rule &r, int64_t i, int64_t vi,
                                 int64_t wi)
{
    float w[VEC], g[VEC], m[VEC], v[VEC];

    ls_load_run<VEC>(a.w + wi, w);
    ls_load_run<VEC>(a.grad + i, g);
    ls_load_run<VEC>(a.m + i, m);
    ls_load_run<VEC>(a.v + vi, v);
#pragma unroll
    for (int k = 0; k < VEC; k++)
        w[k] = fmaf(-r.lr, direction(r, w[k], g[k], m[k], v[k]), w[k]);
    ls_store<VEC>(a.m + i, m);
    ls_store<VEC>(a.v + vi, v);
    ls_store<VEC>(a.w + wi, w);
    if (!a.copy)
        return;
    struct alignas(VEC * sizeof(COPY)) piece {
        COPY v[VEC];
    } out;
#pragma unroll
    for (int k = 0; k < VEC; k++)
        out.v[k] = ls_put_copy<COPY>(w[k], a.rounding, wi + k);
    *reinterpret_cast<piece *>((COPY *)a.copy + wi) = out;
}

template <typename COPY> __global__ void adamw_kernel(ls_adamw a, const ls_cuda_fault *faults)
{
    ls_adamw_span span = a.spans[blockIdx.y];
    int64_t step = (int64_t)gridDim.x * blockDim.x, v_first = span.first - span.v_gap;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i >= span.count || a.result->bad_block >= 0 || ls_any_fault(faults))
        return;
    rule r = make_rule(a.state, a.result, span.decay, span.rate);
    bool fits = span.first % 4 == 0 && v_first % 4 == 0 && span.w_first % 4 == 0 &&
                (uintptr_t)a.w % 16 == 0 && (uintptr_t)a.m % 16 == 0 && (uintptr_t)a.v % 16 == 0 &&
                (uintptr_t)a.grad % 16 == 0 && (uintptr_t)a.copy % 16 == 0;
    int64_t whole = fits ? span.count / 4 : 0;
    for (int64_t k = i; k < whole; k += step)
        update_at<4, COPY>(a, r, span.first + 4 * k, v_first + 4 * k, span.w_first + 4 * k);
    for (int64_t k = 4 * whole + i; k < span.count; k += step)
        update_at<1, COPY>(a, r, span.first + k, v_first + k, span.w_first + k);
}

void ls_cuda_adamw(ls_stream *stream, const ls_adamw *a)
{
    ls_cuda_row row(stream, LS_ROW_ADAMW);
    dim3 grid(STEP_BLOCKS, (unsigned)a->n_spans);

    if (!row.on || a->n_spans <= 0)
        return;
    if (a->copy && !row.ok(ls_cuda_check_type(LS_ROW_ADAMW, a->copy_type)))
        return;
    ls_cuda_typed(a->copy ? a->copy_type : LS_F32, [&](auto t) {
        adamw_kernel<decltype(t)><<<grid, STEP_THREADS, 0, row.queue()>>>(*a, row.s->faults);
    });
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
    rule r = make_rule(a.state, a.result, p.decay, 1);
    for (int64_t i = threadIdx.x; i < p.count; i += NORM_THREADS) {
        int64_t k = p.first + i, at = p.g_first + i;
        float w = a.w[p.w_first + i], u = direction(r, w, a.grad[at], a.m[k], a.v[k]);
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
