/* cuda_muon.cu -- the momentum of matrices, and what stands between the products that make them
 * orthogonal: one thread for each element, in steps of the grid. */
#include "kernel/cuda/common.cuh"

enum { THREADS = 256, SPAN_BLOCKS = 264 };

__global__ void momentum_kernel(ls_momentum a, const ls_cuda_fault *faults)
{
    ls_optimizer_span span = a.spans[blockIdx.y];
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    float keep = a.state->momentum, factor = a.result->factor;

    if (i >= span.count || a.result->bad_block >= 0 || ls_any_fault(faults))
        return;
    for (; i < span.count; i += step) {
        float *grad = &a.grad[span.w_first + i], g = *grad * factor;
        float m = fmaf(keep, a.m[span.first + i], (1.0f - keep) * g);
        m = fabsf(m) < 0x1p-123f ? 0.0f : m; /* see kernel/cpu/simd/moments.h */
        a.m[span.first + i] = m;
        *grad = fmaf(keep, m - g, g);
    }
}

void ls_cuda_momentum(ls_stream *stream, const ls_momentum *a)
{
    ls_cuda_row row(stream, LS_ROW_MOMENTUM);
    dim3 grid(SPAN_BLOCKS, (unsigned)a->n_spans);

    if (row.on && a->n_spans > 0)
        momentum_kernel<<<grid, THREADS, 0, row.queue()>>>(*a, row.s->faults);
}

__device__ inline float changed(const ls_muon &a, float factor, int64_t r, int64_t c)
{
    int64_t i = r * a.cols + c;

    switch (a.part) {
    case LS_MUON_TAKE:
        return a.from[r * a.ld + c];
    case LS_MUON_SCALE:
        return a.x[i] * factor;
    case LS_MUON_POLY:
        return fmaf(a.b, a.from[i], a.c * a.x[i]) + (r == c ? a.a : 0.0f);
    default:
        return a.x[i];
    }
}

template <typename COPY> __global__ void muon_kernel(ls_muon a, const ls_cuda_fault *faults)
{
    int64_t n = a.rows * a.cols, step = (int64_t)gridDim.x * blockDim.x;
    float factor = a.part == LS_MUON_SCALE ? 1.0f / fmaxf(a.result->norm, LS_MUON_EPS) : 1.0f;

    if (a.part == LS_MUON_STEP && (a.result->bad_block >= 0 || ls_any_fault(faults)))
        return;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        int64_t r = i / a.cols, c = i % a.cols;
        float x = changed(a, factor, r, c);
        if (a.part != LS_MUON_STEP) {
            a.x[i] = x;
            continue;
        }
        float w = a.w[r * a.ld + c];
        w = fmaf(-a.state->lr, fmaf(a.state->weight_decay, w, a.scale * x), w);
        a.w[r * a.ld + c] = w;
        if (a.copy)
            ((COPY *)a.copy)[r * a.ld + c] = ls_put_copy<COPY>(w, a.rounding, r * a.ld + c);
    }
}

void ls_cuda_muon(ls_stream *stream, const ls_muon *a)
{
    ls_cuda_row row(stream, LS_ROW_MUON);
    int64_t n = a->rows * a->cols;

    if (!row.on || n <= 0)
        return;
    unsigned grid = ls_cuda_grid(row.s, n, THREADS);
    if (a->copy && !row.ok(ls_cuda_check_type(LS_ROW_MUON, a->copy_type)))
        return;
    ls_cuda_typed(a->copy ? a->copy_type : LS_F32, [&](auto t) {
        muon_kernel<decltype(t)><<<grid, THREADS, 0, row.queue()>>>(*a, row.s->faults);
    });
}
