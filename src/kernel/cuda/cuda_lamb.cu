/* cuda_lamb.cu -- LAMB: a block for each piece, in both parts; between them a thread for each tensor
 * joins the sums of its pieces along the tree. */
#include "kernel/cuda/cuda_adamw.cuh"

#include <cmath>

enum { LAMB_THREADS = 512 };

__global__ void __launch_bounds__(LAMB_THREADS)
    direction_kernel(ls_lamb a, const ls_cuda_fault *faults)
{
    __shared__ float part[64];
    ls_lamb_piece p = a.pieces[blockIdx.x];
    float w2 = 0, u2 = 0;

    if (a.result->bad_block >= 0 || ls_any_fault(faults))
        return;
    ls_adamw_rule r(a.state, p.decay);
    float factor = a.result->factor;
    for (int64_t i = threadIdx.x; i < p.count; i += LAMB_THREADS) {
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
    double w = sqrt(ls_subtree(a.squares + t.first, 0, size, t.count));
    double u = sqrt(ls_subtree(a.squares + a.n_squares + t.first, 0, size, t.count));
    a.ratios[i] = t.adapts && w > 0 && u > 0 ? (float)(w / u) : 1.0f;
}

template <typename COPY>
__global__ void __launch_bounds__(LAMB_THREADS) lamb_kernel(ls_lamb a, const ls_cuda_fault *faults)
{
    ls_lamb_piece p = a.pieces[blockIdx.x];

    if (a.result->bad_block >= 0 || ls_any_fault(faults))
        return;
    float rate = a.state->lr * a.ratios[p.tensor];
    for (int64_t i = threadIdx.x; i < p.count; i += LAMB_THREADS) {
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
        direction_kernel<<<pieces, LAMB_THREADS, 0, row.queue()>>>(*a, row.s->faults);
        return;
    }
    if (a->copy && !row.ok(ls_cuda_check_type(LS_ROW_LAMB, a->copy_type)))
        return;
    ratio_kernel<<<(tensors + 31) / 32, 32, 0, row.queue()>>>(*a);
    ls_cuda_typed(a->copy ? a->copy_type : LS_F32, [&](auto t) {
        lamb_kernel<decltype(t)><<<pieces, LAMB_THREADS, 0, row.queue()>>>(*a, row.s->faults);
    });
}
