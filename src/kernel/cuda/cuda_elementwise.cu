/* cuda_elementwise.cu -- sum, add, scale, cast and fill; and what all rows share on the host side.
 *
 * These rows move memory and nothing else: 16 bytes a thread where the pointers allow it, a grid
 * of a few blocks for each multiprocessor. `sum` is done by one block for each segment, in double,
 * with lanes that step over the segment and a fixed tree at the end. */
#include "kernel/cuda/common.cuh"

enum { THREADS = 256 };

ls_cuda_row::ls_cuda_row(ls_stream *stream_, const char *name)
{
    stream = stream_;
    s = (ls_cuda_stream *)ls_stream_native(stream_);
    s->fault_text = ls_cuda_fault_text;
    on = ls_cuda_row_begin(s, stream_, name);
}

ls_cuda_row::ls_cuda_row(ls_stream *stream_, ls_row row)
    : ls_cuda_row(stream_, ls_cuda_row_name(row))
{
}

ls_cuda_row::~ls_cuda_row()
{
    ls_cuda_row_end(s, stream);
}

ls_status ls_cuda_check_type(ls_row row, ls_dtype type)
{
    if (type == LS_F32 || type == LS_BF16 || type == LS_F16)
        return LS_OK;
    return ls_fail(LS_EUSAGE, "%s: a GPU computes in fp32, bf16 or fp16 here, not in type %d",
                   ls_cuda_row_name(row), (int)type);
}

/* --- float arrays --------------------------------------------------------------------------- */

struct add_op {
    const float *a, *b;
    float *out;
    bool aligned() const
    {
        return ls_cuda_aligned(a, 16) && ls_cuda_aligned(b, 16) && ls_cuda_aligned(out, 16);
    }
    template <int VEC> __device__ void at(int64_t i, float (&y)[VEC]) const
    {
        float x[VEC];
        ls_load_run<VEC>(a + i, x);
        ls_load_run<VEC>(b + i, y);
#pragma unroll
        for (int k = 0; k < VEC; k++)
            y[k] = x[k] + y[k];
    }
};

struct scale_op {
    float *out;
    float value;
    bool aligned() const
    {
        return ls_cuda_aligned(out, 16);
    }
    template <int VEC> __device__ void at(int64_t i, float (&y)[VEC]) const
    {
        ls_load_run<VEC>(out + i, y);
#pragma unroll
        for (int k = 0; k < VEC; k++)
            y[k] = value * y[k];
    }
};

struct fill_op {
    float *out;
    float value;
    bool aligned() const
    {
        return ls_cuda_aligned(out, 16);
    }
    template <int VEC> __device__ void at(int64_t, float (&y)[VEC]) const
    {
#pragma unroll
        for (int k = 0; k < VEC; k++)
            y[k] = value;
    }
};

/* out[i] = op(i) for all i below n; VEC 4 reads and writes 16 bytes at a time. */
template <int VEC, typename OP> __global__ void map_kernel(OP op, int64_t n)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x * VEC;

    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * VEC; i < n; i += step) {
        if (i + VEC <= n) {
            float y[VEC];
            op.template at<VEC>(i, y);
            ls_store<VEC>(op.out + i, y);
        } else {
            for (int k = 0; i + k < n; k++) {
                float y[1];
                op.template at<1>(i + k, y);
                op.out[i + k] = y[0];
            }
        }
    }
}

template <typename OP> static void map(ls_cuda_stream *s, const OP &op, int64_t n)
{
    if (n <= 0)
        return;
    if (op.aligned())
        map_kernel<4><<<ls_cuda_grid(s, n, 4 * THREADS), THREADS, 0, s->stream>>>(op, n);
    else
        map_kernel<1><<<ls_cuda_grid(s, n, THREADS), THREADS, 0, s->stream>>>(op, n);
}

void ls_cuda_add_floats(ls_cuda_stream *s, const float *a, const float *b, float *out, int64_t n)
{
    map(s, add_op{a, b, out}, n);
}

void ls_cuda_add(ls_stream *stream, const ls_add *a)
{
    ls_cuda_row row(stream, LS_ROW_ADD);

    if (row.on)
        map(row.s, add_op{a->a, a->b, a->out}, a->n);
}

void ls_cuda_scale(ls_stream *stream, const ls_scale *a)
{
    ls_cuda_row row(stream, LS_ROW_SCALE);

    if (row.on)
        map(row.s, scale_op{a->x, a->value}, a->n);
}

void ls_cuda_fill(ls_stream *stream, const ls_fill *a)
{
    ls_cuda_row row(stream, LS_ROW_FILL);

    if (row.on)
        map(row.s, fill_op{a->x, a->value}, a->n);
}

/* --- cast ----------------------------------------------------------------------------------- */

/* A value on its way between formats: NaN keeps its sign and upper bits and is made quiet, but for
 * bf16 to f32, which only widens; the hardware would make all NaN alike. */
struct wide {
    float value;
    uint32_t nan; /* f32 pattern of a NaN, or 0 */
};

__device__ inline wide widen(float x)
{
    return {x, x != x ? __float_as_uint(x) : 0u};
}

__device__ inline wide widen(ls_bf16 x)
{
    return widen(__uint_as_float((uint32_t)__bfloat16_as_ushort(x) << 16));
}

__device__ inline wide widen(__half x)
{
    uint32_t bits = __half_as_ushort(x);

    if ((bits & 0x7fff) > 0x7c00)
        return {0, (bits & 0x8000) << 16 | 0x7f800000 | (bits & 0x3ff) << 13};
    return {__half2float(x), 0};
}

template <typename T> __device__ inline T narrow(wide w, bool quiet);
template <> __device__ inline float narrow<float>(wide w, bool quiet)
{
    return w.nan ? __uint_as_float(w.nan | (quiet ? 0x00400000u : 0u)) : w.value;
}
template <> __device__ inline ls_bf16 narrow<ls_bf16>(wide w, bool)
{
    return w.nan ? __ushort_as_bfloat16((unsigned short)(w.nan >> 16 | 0x40))
                 : __float2bfloat16_rn(w.value);
}
template <> __device__ inline __half narrow<__half>(wide w, bool)
{
    return w.nan ? __ushort_as_half(
                       (unsigned short)((w.nan >> 16 & 0x8000) | 0x7e00 | (w.nan >> 13 & 0x3ff)))
                 : __float2half_rn(w.value);
}

template <int VEC, typename FROM, typename TO>
__global__ void cast_kernel(const FROM *from, TO *to, int64_t n, bool quiet)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x * VEC;

    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * VEC; i < n; i += step) {
        if (VEC > 1 && i + VEC <= n) {
            struct alignas(VEC * sizeof(FROM)) in_vec {
                FROM v[VEC];
            } in = *reinterpret_cast<const in_vec *>(from + i);
            struct alignas(VEC * sizeof(TO)) out_vec {
                TO v[VEC];
            } out;
#pragma unroll
            for (int k = 0; k < VEC; k++)
                out.v[k] = narrow<TO>(widen(in.v[k]), quiet);
            *reinterpret_cast<out_vec *>(to + i) = out;
        } else {
            for (int k = 0; k < VEC && i + k < n; k++)
                to[i + k] = narrow<TO>(widen(from[i + k]), quiet);
        }
    }
}

template <typename FROM, typename TO> static void cast(ls_cuda_stream *s, const ls_cast *a)
{
    const FROM *from = (const FROM *)a->from;
    TO *to = (TO *)a->to;
    bool quiet = !(a->from_type == LS_BF16 && a->to_type == LS_F32);

    if (ls_cuda_aligned(from, 4 * sizeof(FROM)) && ls_cuda_aligned(to, 4 * sizeof(TO)))
        cast_kernel<4>
            <<<ls_cuda_grid(s, a->n, 4 * THREADS), THREADS, 0, s->stream>>>(from, to, a->n, quiet);
    else
        cast_kernel<1>
            <<<ls_cuda_grid(s, a->n, THREADS), THREADS, 0, s->stream>>>(from, to, a->n, quiet);
}

template <typename FROM> static void cast_from(ls_cuda_stream *s, const ls_cast *a)
{
    if (a->to_type == LS_F32)
        cast<FROM, float>(s, a);
    else if (a->to_type == LS_BF16)
        cast<FROM, ls_bf16>(s, a);
    else
        cast<FROM, __half>(s, a);
}

/* From fp32 to bf16, stochastically. */
__global__ void round_kernel(ls_cast a)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += step)
        ((ls_bf16 *)a.to)[i] = ls_put_copy<ls_bf16>(((const float *)a.from)[i], a.rounding, i);
}

void ls_cuda_cast(ls_stream *stream, const ls_cast *a)
{
    ls_cuda_row row(stream, LS_ROW_CAST);

    if (!row.on || a->n <= 0)
        return;
    if (a->from_type == a->to_type)
        row.ok(ls_cuda_ok(cudaMemcpyAsync(a->to, a->from,
                                          (size_t)(a->n * ls_dtype_bytes(a->from_type)),
                                          cudaMemcpyDeviceToDevice, row.queue()),
                          "copy"));
    else if (a->rounding.stochastic && a->from_type == LS_F32 && a->to_type == LS_BF16)
        round_kernel<<<ls_cuda_grid(row.s, a->n, THREADS), THREADS, 0, row.queue()>>>(*a);
    else if (a->from_type == LS_F32)
        cast_from<float>(row.s, a);
    else if (a->from_type == LS_BF16)
        cast_from<ls_bf16>(row.s, a);
    else
        cast_from<__half>(row.s, a);
}

/* --- sum ------------------------------------------------------------------------------------ */

__global__ void sum_kernel(const float *x, double *out, int64_t n)
{
    __shared__ double part[THREADS];
    const float *at = x + blockIdx.x * n;
    double sum = 0;

    for (int64_t i = threadIdx.x; i < n; i += THREADS)
        sum += (double)at[i];
    part[threadIdx.x] = sum;
    for (int k = THREADS / 2; k > 0; k /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < k)
            part[threadIdx.x] += part[threadIdx.x + k];
    }
    if (threadIdx.x == 0)
        out[blockIdx.x] = part[0];
}

void ls_cuda_sum(ls_stream *stream, const ls_sum *a)
{
    ls_cuda_row row(stream, LS_ROW_SUM);

    if (row.on && a->segments > 0)
        sum_kernel<<<(unsigned)a->segments, THREADS, 0, row.queue()>>>(a->x, a->out,
                                                                       a->n / a->segments);
}

/* --- the tree over leaves ------------------------------------------------------------------- */

enum { TREE_COLUMNS = 32, TREE_LANES = 32 };

/* A block owns 32 columns. Lane y adds chunks y, y + 32, ... of a leaf; the lanes are added in
 * order; the leaves climb the tree. */
__global__ void __launch_bounds__(TREE_COLUMNS *TREE_LANES)
    tree_kernel(const float *part, int64_t leaves, int64_t chunks, int64_t n, int64_t pitch,
                ls_tree_outs outs, bool accumulate)
{
    __shared__ float lane_sum[TREE_LANES][TREE_COLUMNS];
    int64_t column = (int64_t)blockIdx.x * TREE_COLUMNS + threadIdx.x;
    float *out = blockIdx.y == 0 ? outs.p[0] : blockIdx.y == 1 ? outs.p[1] : outs.p[2];
    ls_tree<float> tree;

    if (!out)
        return;
    part += blockIdx.y * n;
    tree.count = 0;
    for (int64_t leaf = 0; leaf < leaves; leaf++) {
        float sum = 0;
        for (int64_t k = threadIdx.y; column < n && k < chunks; k += TREE_LANES)
            sum += part[(leaf * chunks + k) * pitch + column];
        lane_sum[threadIdx.y][threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.y == 0) {
            int lanes = chunks < TREE_LANES ? (int)chunks : TREE_LANES;
            sum = lane_sum[0][threadIdx.x];
            for (int y = 1; y < lanes; y++)
                sum += lane_sum[y][threadIdx.x];
            tree.push(sum);
        }
        __syncthreads();
    }
    if (threadIdx.y == 0 && column < n)
        out[column] = accumulate ? out[column] + tree.total() : tree.total();
}

void ls_cuda_tree_finish(ls_cuda_stream *s, const float *part, int64_t leaves, int64_t chunks,
                         int64_t n, int64_t pitch, ls_tree_outs outs, bool accumulate)
{
    unsigned last = outs.p[2] ? 3 : outs.p[1] ? 2 : outs.p[0] ? 1 : 0;
    dim3 grid((unsigned)((n + TREE_COLUMNS - 1) / TREE_COLUMNS), last);

    if (last)
        tree_kernel<<<grid, dim3(TREE_COLUMNS, TREE_LANES), 0, s->stream>>>(
            part, leaves, chunks, n, pitch, outs, accumulate);
}
