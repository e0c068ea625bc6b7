/* cuda_act.cu -- activations and their gradients, plain and gated, and the same inside the linear rows.
 */
#include "kernel/cuda/common.cuh"

enum { THREADS = 256 };

/* Fixed while a kernel runs, so that the branch on it costs nothing. */
template <ls_act ACT> __device__ inline float value(float x)
{
    return ls_act_value(ACT, x);
}

/* --- the rows ------------------------------------------------------------------------------- */

template <int VEC, typename T, ls_act ACT, bool GATED>
__global__ void fwd_kernel(const T *x, T *y, int64_t vectors, uint32_t per_row, float *max)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    uint32_t most = 0;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < vectors; i += step) {
        float g[VEC], u[VEC];
        if (GATED) {
            int64_t m = i / per_row, at = (m * per_row + i) * VEC;
            ls_load_run<VEC>(x + at, g);
            ls_load_run<VEC>(x + at + (int64_t)per_row * VEC, u);
        } else {
            ls_load_run<VEC>(x + i * VEC, g);
        }
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            g[k] = value<ACT>(g[k]) * (GATED ? u[k] : 1.0f);
            most = ls_larger(most, g[k]);
        }
        ls_store<VEC>(y + i * VEC, g);
    }
    if (max)
        ls_put_max(max, most);
}

template <int VEC, typename T, ls_act ACT, bool GATED>
__global__ void bwd_kernel(const T *x, const T *dy, T *dx, int64_t vectors, uint32_t per_row,
                           float *max)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    uint32_t most = 0;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < vectors; i += step) {
        float d[VEC], g[VEC], u[VEC];
        int64_t at = i * VEC;
        ls_load_run<VEC>(dy + at, d);
        if (GATED) {
            at = (i / per_row * per_row + i) * VEC;
            ls_load_run<VEC>(x + at + (int64_t)per_row * VEC, u);
        }
        ls_load_run<VEC>(x + at, g);
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            float slope = ls_act_slope(ACT, g[k]) * (GATED ? u[k] : 1.0f);
            u[k] = d[k] * value<ACT>(g[k]);
            g[k] = d[k] * slope;
            most = ls_larger(GATED ? ls_larger(most, u[k]) : most, g[k]);
        }
        ls_store<VEC>(dx + at, g);
        if (GATED)
            ls_store<VEC>(dx + at + (int64_t)per_row * VEC, u);
    }
    if (max)
        ls_put_max(max, most);
}

template <int VEC, typename T, ls_act ACT, bool GATED>
static void launch(ls_cuda_stream *s, const ls_act_args *a, bool back)
{
    int64_t vectors = a->M * a->F / VEC;
    uint32_t per_row = (uint32_t)(a->F / VEC);
    unsigned grid = ls_cuda_grid(s, vectors, THREADS);

    if (back)
        bwd_kernel<VEC, T, ACT, GATED><<<grid, THREADS, 0, s->stream>>>(
            (const T *)a->x, (const T *)a->dy, (T *)a->dx, vectors, per_row, a->max);
    else
        fwd_kernel<VEC, T, ACT, GATED>
            <<<grid, THREADS, 0, s->stream>>>((const T *)a->x, (T *)a->y, vectors, per_row, a->max);
}

template <int VEC, typename T, ls_act ACT>
static void launch_form(ls_cuda_stream *s, const ls_act_args *a, bool back)
{
    if (a->gated)
        launch<VEC, T, ACT, true>(s, a, back);
    else
        launch<VEC, T, ACT, false>(s, a, back);
}

template <int VEC, typename T>
static void launch_act(ls_cuda_stream *s, const ls_act_args *a, bool back)
{
    if (a->act == LS_ACT_GELU)
        launch_form<VEC, T, LS_ACT_GELU>(s, a, back);
    else if (a->act == LS_ACT_SILU)
        launch_form<VEC, T, LS_ACT_SILU>(s, a, back);
    else
        launch_form<VEC, T, LS_ACT_NONE>(s, a, back);
}

template <typename T> static void launch_type(ls_cuda_stream *s, const ls_act_args *a, bool back)
{
    constexpr int VEC = ls_vec_of<T>::n;
    bool fits = a->F % VEC == 0 && ls_cuda_aligned(a->x, 16) &&
                (back ? ls_cuda_aligned(a->dy, 16) && ls_cuda_aligned(a->dx, 16)
                      : ls_cuda_aligned(a->y, 16));

    if (fits)
        launch_act<VEC, T>(s, a, back);
    else
        launch_act<1, T>(s, a, back);
}

static void act_row(ls_stream *stream, const ls_act_args *a, ls_row which)
{
    ls_cuda_row row(stream, which);

    if (!row.on || !row.ok(ls_cuda_check_type(which, a->type)) || a->M * a->F == 0)
        return;
    ls_cuda_typed(a->type,
                  [&](auto t) { launch_type<decltype(t)>(row.s, a, which == LS_ROW_ACT_BWD); });
}

void ls_cuda_act_fwd(ls_stream *stream, const ls_act_args *a)
{
    act_row(stream, a, LS_ROW_ACT_FWD);
}

void ls_cuda_act_bwd(ls_stream *stream, const ls_act_args *a)
{
    act_row(stream, a, LS_ROW_ACT_BWD);
}

/* --- inside the linear rows ----------------------------------------------------------------- */

template <int VEC, typename T>
__global__ void rows_kernel(ls_act act, bool slope, const T *z, int64_t ldz, T *y, int64_t ldy,
                            int64_t vectors, uint32_t per_row)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < vectors; i += step) {
        int64_t m = i / per_row, c = (i - m * per_row) * VEC;
        float v[VEC], d[VEC];
        ls_load_run<VEC>(z + m * ldz + c, v);
        if (slope)
            ls_load_run<VEC>(y + m * ldy + c, d);
#pragma unroll
        for (int k = 0; k < VEC; k++)
            v[k] = slope ? d[k] * ls_act_slope(act, v[k]) : ls_act_value(act, v[k]);
        ls_store<VEC>(y + m * ldy + c, v);
    }
}

template <typename T>
static void rows_type(ls_cuda_stream *s, ls_act act, bool slope, const T *z, int64_t ldz, T *y,
                      int64_t ldy, int64_t M, int64_t n)
{
    constexpr int VEC = ls_vec_of<T>::n;

    if (n % VEC == 0 && ldz % VEC == 0 && ldy % VEC == 0 && ls_cuda_aligned(z, 16) &&
        ls_cuda_aligned(y, 16))
        rows_kernel<VEC, T><<<ls_cuda_grid(s, M * n / VEC, THREADS), THREADS, 0, s->stream>>>(
            act, slope, z, ldz, y, ldy, M * n / VEC, (uint32_t)(n / VEC));
    else
        rows_kernel<1, T><<<ls_cuda_grid(s, M * n, THREADS), THREADS, 0, s->stream>>>(
            act, slope, z, ldz, y, ldy, M * n, (uint32_t)n);
}

void ls_cuda_act_rows(ls_cuda_stream *s, ls_dtype type, ls_act act, bool slope, const void *z,
                      int64_t ldz, void *y, int64_t ldy, int64_t M, int64_t n)
{
    ls_cuda_typed(type, [&](auto t) {
        typedef decltype(t) T;
        rows_type<T>(s, act, slope, (const T *)z, ldz, (T *)y, ldy, M, n);
    });
}
