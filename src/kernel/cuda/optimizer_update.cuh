/* optimizer_update.cuh -- updates element by element: a row of an optimizer is a rule,
 *
 *     struct rule { static constexpr bool two = ...; // it has a second moment, v
 *                   __device__ rule(const ls_step_state *, float decay);
 *                   __device__ float step(float w, float g, float &m, float &v) const; };
 *
 * whose step, times the learning rate, is taken off the weights. The spans lie in device memory, so
 * the grid is a fixed number of blocks for each span that step through it. Nothing is written when a
 * gradient is not finite or a row has found a fault. */
#pragma once
#include "kernel/cuda/common.cuh"

enum { ELEMENT_THREADS = 256, ELEMENT_BLOCKS = 264 };

/* x, or 0 where it would fall among denormal numbers and stay there; see
 * kernel/cpu/simd/moments.h. */
__device__ inline float ls_dust(float x)
{
    return fabsf(x) < 0x1p-123f ? 0.0f : x;
}

template <typename RULE, int VEC, typename COPY>
__device__ inline void ls_element_step(const ls_optimizer_update &a, const RULE &r, float lr,
                                       int64_t i, int64_t vi, int64_t wi)
{
    float w[VEC], g[VEC], m[VEC], v[VEC];
    float factor = a.result->factor;

    ls_load_run<VEC>(a.w + wi, w);
    ls_load_run<VEC>(a.grad + i, g);
    ls_load_run<VEC>(a.m + i, m);
    if constexpr (RULE::two)
        ls_load_run<VEC>(a.v + vi, v);
#pragma unroll
    for (int k = 0; k < VEC; k++)
        w[k] = fmaf(-lr, r.step(w[k], g[k] * factor, m[k], v[k]), w[k]);
    ls_store<VEC>(a.m + i, m);
    if constexpr (RULE::two)
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

template <typename RULE, typename COPY>
__global__ void ls_element_kernel(ls_optimizer_update a, const ls_cuda_fault *faults)
{
    ls_optimizer_span span = a.spans[blockIdx.y];
    int64_t step = (int64_t)gridDim.x * blockDim.x, v_first = span.first - span.v_gap;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i >= span.count || a.result->bad_block >= 0 || ls_any_fault(faults))
        return;
    RULE r(a.state, span.decay);
    float lr = a.state->lr * span.rate;
    bool fits = span.first % 4 == 0 && span.w_first % 4 == 0 && (uintptr_t)a.w % 16 == 0 &&
                (uintptr_t)a.m % 16 == 0 && (uintptr_t)a.grad % 16 == 0 &&
                (uintptr_t)a.copy % 16 == 0 &&
                (!RULE::two || (v_first % 4 == 0 && (uintptr_t)a.v % 16 == 0));
    int64_t whole = fits ? span.count / 4 : 0;
    for (int64_t k = i; k < whole; k += step)
        ls_element_step<RULE, 4, COPY>(a, r, lr, span.first + 4 * k, v_first + 4 * k,
                                       span.w_first + 4 * k);
    for (int64_t k = 4 * whole + i; k < span.count; k += step)
        ls_element_step<RULE, 1, COPY>(a, r, lr, span.first + k, v_first + k, span.w_first + k);
}

template <typename RULE>
void ls_cuda_elements(ls_stream *stream, ls_row which, const ls_optimizer_update *a)
{
    ls_cuda_row row(stream, which);
    dim3 grid(ELEMENT_BLOCKS, (unsigned)a->n_spans);

    if (!row.on || a->n_spans <= 0)
        return;
    if (a->copy && !row.ok(ls_cuda_check_type(which, a->copy_type)))
        return;
    ls_cuda_typed(a->copy ? a->copy_type : LS_F32, [&](auto t) {
        ls_element_kernel<RULE, decltype(t)>
            <<<grid, ELEMENT_THREADS, 0, row.queue()>>>(*a, row.s->faults);
    });
}
