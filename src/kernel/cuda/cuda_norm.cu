/* cuda_norm.cu -- residual sum, dropout and norm in one pass over memory, and its gradient.
 *
 * With x = stream + dropout(x) as rounded to its type, h = (x - mean) rstd and g = dy w:
 *     y = h w + b
 *     dx = rstd (g - mean(g) - h mean(g h)),  mean(g) only for LayerNorm
 *     dw = sum dy h,  db = sum dy,  dx_sum = sum of what goes down to the layer below
 * Mean and variance take two passes, so that a large mean does not eat the variance; the row is
 * read once and kept: in registers where it can be read 16 bytes at a time, by one warp for each
 * row up to 1024 columns of bf16 and by a block beyond that; in shared memory for any other width
 * (odd).
 *
 * Backward walks a chunk of rows of one leaf in each block and adds dw, db and, where it is asked
 * for, dx_sum (which would cost a pass of its own elsewhere) on the way, where each column belongs
 * to one thread of a warp; warps are added in order, chunks and leaves joined by
 * ls_cuda_tree_finish(). How rows are cut into chunks depends on the rows of a leaf only. */
#include "kernel/cuda/common.cuh"

enum {
    BACK_CHUNKS = 1056, /* of a leaf at most: eight blocks for each multiprocessor of an H200 */
    BACK_ROWS = 16,     /* of a chunk at least */
    KEPT = 4,           /* vectors of a row that a thread keeps at most */
    ROW_WARPS = 4,      /* of a block whose warps take a row each */
    SUMS = 3,           /* that backward makes of the columns */
    MOST_WARPS = 8      /* of a block that takes a row together */
};

/* --- rows in registers ------------------------------------------------------------------------
 */

/* How a row of `vectors` 16-byte pieces is spread: NV pieces for each thread, one warp or a block
 * of several; `fits` is false when it is too wide for registers. */
typedef struct spread {
    int NV, warps;
    bool fits;
} spread;

static spread spread_for(int64_t vectors)
{
    int64_t warps = 1;

    while (vectors > 32 * KEPT * warps)
        warps *= 2;
    spread s = {(int)((vectors + 32 * warps - 1) / (32 * warps)), (int)warps, warps <= MOST_WARPS};
    return s;
}

/* Sums over the threads of a row: a warp, or the whole block. */
template <bool BLOCK> __device__ inline void row_sum2(float &a, float &b, float *part)
{
    if (BLOCK) {
        ls_block_sum2(a, b, part);
    } else {
        a = ls_warp_sum(a);
        b = ls_warp_sum(b);
    }
}

/* --- forward -------------------------------------------------------------------------------- */

template <typename T> struct fwd_args {
    const T *stream, *x, *w, *b;
    T *sum, *y;
    float *mean, *rstd;
    int64_t M, C, tokens;
    float eps;
    ls_drop drop;
    float *y_max;
};

/* stream (+ dropout(x), written to sum): VEC elements of what is normalised. */
template <int VEC, typename T>
__device__ inline void take_sum(const fwd_args<T> &a, int64_t row, int64_t c, float (&v)[VEC])
{
    float x[VEC], factor[VEC];

    ls_load_run<VEC>(a.stream + row * a.C + c, v);
    if (!a.x)
        return;
    ls_load_run<VEC>(a.x + row * a.C + c, x);
    if (a.drop.p > 0)
        ls_keep<VEC>(a.drop, row, c, a.tokens, factor);
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        v[k] += a.drop.p > 0 ? x[k] * factor[k] : x[k];
        v[k] = ls_get(ls_put<T>(v[k]));
    }
    ls_store<VEC>(a.sum + row * a.C + c, v);
}

template <int NV, bool BLOCK, typename T, bool LAYER>
__global__ void __launch_bounds__(BLOCK ? 32 * MOST_WARPS : 32 * ROW_WARPS)
    fwd_rows_kernel(fwd_args<T> a)
{
    constexpr int VEC = ls_vec_of<T>::n;
    __shared__ float part[64];
    int64_t row = BLOCK ? blockIdx.x : (int64_t)blockIdx.x * ROW_WARPS + threadIdx.x / 32;
    int first = BLOCK ? threadIdx.x : threadIdx.x % 32, step = BLOCK ? blockDim.x : 32;
    float v[NV][VEC], total = 0, square = 0, none = 0;
    uint32_t most = 0;

    if (row >= a.M)
        return; /* whole warps only */
#pragma unroll
    for (int j = 0; j < NV; j++) {
        int64_t c = (int64_t)(first + j * step) * VEC;
        if (c < a.C)
            take_sum<VEC, T>(a, row, c, v[j]);
#pragma unroll
        for (int k = 0; k < VEC; k++)
            total += c < a.C ? v[j][k] : 0.0f;
    }
    if (LAYER)
        row_sum2<BLOCK>(total, none, part);
    float mean = LAYER ? total / (float)a.C : 0.0f;
#pragma unroll
    for (int j = 0; j < NV; j++)
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            float d = (int64_t)(first + j * step) * VEC < a.C ? v[j][k] - mean : 0.0f;
            square = fmaf(d, d, square);
        }
    row_sum2<BLOCK>(square, none, part);
    float rstd = 1.0f / sqrtf(square / (float)a.C + a.eps);
#pragma unroll
    for (int j = 0; j < NV; j++) {
        int64_t c = (int64_t)(first + j * step) * VEC;
        float w[VEC], b[VEC];
        if (c >= a.C)
            break;
        ls_load_run<VEC>(a.w + c, w);
        if (a.b)
            ls_load_run<VEC>(a.b + c, b);
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            v[j][k] = (v[j][k] - mean) * rstd * w[k] + (a.b ? b[k] : 0.0f);
            most = ls_larger(most, v[j][k]);
        }
        ls_store<VEC>(a.y + row * a.C + c, v[j]);
    }
    if (a.y_max)
        ls_put_max(a.y_max, most);
    if (first == 0) {
        a.rstd[row] = rstd;
        if (a.mean)
            a.mean[row] = mean;
    }
}

/* Any width: one block for each row, one element at a time, the row in shared memory. */
template <typename T, bool LAYER>
__global__ void __launch_bounds__(1024) fwd_any_kernel(fwd_args<T> a)
{
    extern __shared__ float kept[];
    __shared__ float part[64];
    int64_t row = blockIdx.x, C = a.C;
    float total = 0, square = 0, none = 0, v[1];
    uint32_t most = 0;

    for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
        take_sum<1, T>(a, row, c, v);
        kept[c] = v[0];
        total += v[0];
    }
    float mean = LAYER ? ls_block_sum(total, part) / (float)C : 0.0f;
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x)
        square = fmaf(kept[c] - mean, kept[c] - mean, square);
    ls_block_sum2(square, none, part);
    float rstd = 1.0f / sqrtf(square / (float)C + a.eps);
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
        float y = (kept[c] - mean) * rstd * ls_get(a.w[c]) + (a.b ? ls_get(a.b[c]) : 0.0f);
        most = ls_larger(most, y);
        a.y[row * C + c] = ls_put<T>(y);
    }
    if (a.y_max)
        ls_put_max(a.y_max, most);
    if (threadIdx.x == 0) {
        a.rstd[row] = rstd;
        if (a.mean)
            a.mean[row] = mean;
    }
}

/* Threads of a block for C columns: whole warps, at most 1024. */
static unsigned threads_for(int64_t C)
{
    return (unsigned)ls_min_i64(1024, ls_round_up(C, 32));
}

/* A kernel may ask for up to 48 KiB of shared memory, less the little it has of its own; for more
 * it needs leave. */
template <typename K> static ls_status allow_shared(ls_cuda_stream *s, K kernel, int64_t bytes)
{
    if (bytes <= 47 * 1024)
        return LS_OK;
    if (bytes > s->device->shared_bytes - 1024)
        return ls_fail(LS_EUSAGE,
                       "a norm of this width needs %lld KiB of shared memory; the GPU "
                       "has %d",
                       (long long)(bytes / 1024), s->device->shared_bytes / 1024);
    return ls_cuda_ok(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
        "ask for shared memory");
}

template <int NV, typename T, bool LAYER>
static void fwd_rows(ls_cuda_stream *s, const fwd_args<T> &k, int warps)
{
    if (warps == 1)
        fwd_rows_kernel<NV, false, T, LAYER>
            <<<(unsigned)((k.M + ROW_WARPS - 1) / ROW_WARPS), 32 * ROW_WARPS, 0, s->stream>>>(k);
    else
        fwd_rows_kernel<NV, true, T, LAYER>
            <<<(unsigned)k.M, 32 * (unsigned)warps, 0, s->stream>>>(k);
}

template <typename T, bool LAYER>
static ls_status fwd(ls_cuda_stream *s, const fwd_args<T> &k, bool fits)
{
    spread w = spread_for(k.C / ls_vec_of<T>::n);
    int64_t bytes = k.C * (int64_t)sizeof(float);

    if (fits && w.fits) {
        if (w.NV == 1)
            fwd_rows<1, T, LAYER>(s, k, w.warps);
        else if (w.NV == 2)
            fwd_rows<2, T, LAYER>(s, k, w.warps);
        else if (w.NV == 3)
            fwd_rows<3, T, LAYER>(s, k, w.warps);
        else
            fwd_rows<4, T, LAYER>(s, k, w.warps);
        return LS_OK;
    }
    ls_status st = allow_shared(s, fwd_any_kernel<T, LAYER>, bytes);
    if (st == LS_OK)
        fwd_any_kernel<T, LAYER><<<(unsigned)k.M, threads_for(k.C), (size_t)bytes, s->stream>>>(k);
    return st;
}

/* Whether all of these may be read 16 bytes at a time, rows of C elements. */
template <typename T> static bool all_fit(int64_t C, const void *const *pointers, size_t count)
{
    bool fits = C % ls_vec_of<T>::n == 0;

    for (size_t i = 0; i < count; i++)
        fits = fits && ls_cuda_aligned(pointers[i], 16);
    return fits;
}

template <typename T> static ls_status fwd_type(ls_cuda_stream *s, const ls_norm_fwd *a)
{
    const void *const used[] = {a->stream, a->x, a->sum, a->y, a->w, a->b};
    bool fits = all_fit<T>(a->C, used, LS_COUNT(used));
    fwd_args<T> k = {(const T *)a->stream,
                     (const T *)a->x,
                     (const T *)a->w,
                     (const T *)a->b,
                     (T *)a->sum,
                     (T *)a->y,
                     a->mean,
                     a->rstd,
                     a->M,
                     a->C,
                     a->T,
                     a->eps,
                     ls_drop_of(a->drop),
                     a->y_max};

    return a->kind == LS_NORM_LAYER ? fwd<T, true>(s, k, fits) : fwd<T, false>(s, k, fits);
}

void ls_cuda_norm_fwd(ls_stream *stream, const ls_norm_fwd *a)
{
    ls_cuda_row row(stream, LS_ROW_NORM_FWD);

    if (row.on && row.ok(ls_cuda_check_type(LS_ROW_NORM_FWD, a->type)) && a->M > 0)
        row.ok(ls_cuda_typed(a->type, [&](auto t) { return fwd_type<decltype(t)>(row.s, a); }));
}

/* --- backward ------------------------------------------------------------------------------- */

template <typename T> struct bwd_args {
    const T *dy, *sum, *w;
    const float *mean, *rstd;
    T *dsum, *dx;
    bool add;
    int64_t C, tokens, leaf_rows, chunk_rows, chunks;
    ls_drop drop;
    float *part; /* [leaves * chunks][SUMS][C]: dw, db, dx_sum */
    float *dx_max;
};

/* The rows of this block's chunk. */
template <typename T>
__device__ inline void chunk_of(const bwd_args<T> &a, int64_t &first, int64_t &end)
{
    int64_t leaf = blockIdx.x / a.chunks, chunk = blockIdx.x % a.chunks;

    first = leaf * a.leaf_rows + chunk * a.chunk_rows;
    end = first + min(a.chunk_rows, a.leaf_rows - chunk * a.chunk_rows);
}

/* dsum (+)= d, then dx; VEC elements. d becomes what the layer below gets. */
template <int VEC, typename T>
__device__ inline void give_dx(const bwd_args<T> &a, int64_t row, int64_t c, float (&d)[VEC])
{
    float factor[VEC];

    ls_store<VEC>(a.dsum + row * a.C + c, d);
    if (!a.dx)
        return;
    if (a.drop.p > 0) {
        ls_keep<VEC>(a.drop, row, c, a.tokens, factor);
#pragma unroll
        for (int k = 0; k < VEC; k++)
            d[k] *= factor[k];
    }
    ls_store<VEC>(a.dx + row * a.C + c, d);
}

/* Columns of one block's chunk, warp after warp, each into its own columns: sums[i] of a thread
 * into row i of joined, the last warp's turn to out. */
template <int NV, int N, int VEC>
__device__ inline void put_columns(float (&sums)[N][NV][VEC], float *joined, float *out, int64_t C,
                                   int first, int step, bool begins, bool ends)
{
#pragma unroll
    for (int j = 0; j < NV; j++) {
        int64_t c = (int64_t)(first + j * step) * VEC;
        if (c >= C)
            break;
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int k = 0; k < VEC; k++) {
                float sum = begins ? sums[i][j][k] : joined[i * C + c + k] + sums[i][j][k];
                (ends ? out : joined)[i * C + c + k] = sum;
            }
    }
}

/* Blocks of a multiprocessor for a kernel that keeps N sums of NV vectors: what registers allow. */
constexpr int blocks_for(int NV, int N)
{
    return NV > 3 ? 1 : NV == 3 && N == SUMS ? 3 : 4;
}

/* A row in registers: NV vectors for each thread of a warp, or of the block. N sums: dw, db, and
 * dx_sum. */
template <int NV, bool BLOCK, typename T, bool LAYER, int N>
__global__ void __launch_bounds__(BLOCK ? 32 * MOST_WARPS : 32 * ROW_WARPS,
                                  BLOCK ? 1 : blocks_for(NV, N)) bwd_rows_kernel(bwd_args<T> a)
{
    constexpr int VEC = ls_vec_of<T>::n;
    extern __shared__ float joined[]; /* [N][C], warps of rows of their own only */
    __shared__ float part[64];
    int first = BLOCK ? threadIdx.x : threadIdx.x % 32, step = BLOCK ? blockDim.x : 32;
    int warp = BLOCK ? 0 : threadIdx.x / 32, warps = BLOCK ? 1 : ROW_WARPS;
    float sums[N][NV][VEC];
    int64_t begin, end;
    uint32_t most = 0;

#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int j = 0; j < NV; j++)
#pragma unroll
            for (int k = 0; k < VEC; k++)
                sums[i][j][k] = 0;
    chunk_of(a, begin, end);
    for (int64_t row = begin + warp; row < end; row += warps) {
        float mean = LAYER ? a.mean[row] : 0.0f, rstd = a.rstd[row], sum_g = 0, sum_gh = 0;
        float dy[VEC], h[VEC], w[VEC], d[VEC];
        uint4 raw_dy[NV], raw_x[NV], raw_d[NV]; /* all loads first, kept as they are */
#pragma unroll
        for (int j = 0; j < NV; j++) {
            int64_t c = (int64_t)(first + j * step) * VEC;
            if (c < a.C) {
                raw_dy[j] = *reinterpret_cast<const uint4 *>(a.dy + row * a.C + c);
                raw_x[j] = *reinterpret_cast<const uint4 *>(a.sum + row * a.C + c);
                if (a.add)
                    raw_d[j] = *reinterpret_cast<const uint4 *>(a.dsum + row * a.C + c);
            }
        }
#pragma unroll
        for (int j = 0; j < NV; j++) {
            int64_t c = (int64_t)(first + j * step) * VEC;
            if (c < a.C) {
                ls_load_run<VEC>(reinterpret_cast<const T *>(&raw_dy[j]), dy);
                ls_load_run<VEC>(reinterpret_cast<const T *>(&raw_x[j]), h);
                ls_load_run<VEC>(a.w + c, w);
#pragma unroll
                for (int k = 0; k < VEC; k++) {
                    h[k] = (h[k] - mean) * rstd;
                    sums[0][j][k] = fmaf(dy[k], h[k], sums[0][j][k]);
                    sums[1][j][k] += dy[k];
                    sum_g = fmaf(dy[k], w[k], sum_g);
                    sum_gh = fmaf(dy[k] * w[k], h[k], sum_gh);
                }
            }
        }
        row_sum2<BLOCK>(sum_g, sum_gh, part);
        sum_g = LAYER ? sum_g / (float)a.C : 0.0f;
        sum_gh /= (float)a.C;
#pragma unroll
        for (int j = 0; j < NV; j++) {
            int64_t c = (int64_t)(first + j * step) * VEC;
            if (c >= a.C)
                break;
            ls_load_run<VEC>(reinterpret_cast<const T *>(&raw_dy[j]), dy);
            ls_load_run<VEC>(reinterpret_cast<const T *>(&raw_x[j]), h);
            ls_load_run<VEC>(a.w + c, w);
            if (a.add)
                ls_load_run<VEC>(reinterpret_cast<const T *>(&raw_d[j]), d);
#pragma unroll
            for (int k = 0; k < VEC; k++) {
                float g = rstd * (dy[k] * w[k] - sum_g - (h[k] - mean) * rstd * sum_gh);
                d[k] = a.add ? d[k] + g : g;
            }
            give_dx<VEC, T>(a, row, c, d);
#pragma unroll
            for (int k = 0; k < VEC; k++) {
                most = ls_larger(most, d[k]);
                if constexpr (N == SUMS)
                    sums[2][j][k] += d[k];
            }
        }
    }
    if (a.dx_max)
        ls_put_max(a.dx_max, most);
    float *out = a.part + (int64_t)blockIdx.x * SUMS * a.C;
    for (int turn = 0; turn < warps; turn++) {
        __syncthreads();
        if (turn == warp)
            put_columns<NV, N, VEC>(sums, joined, out, a.C, first, step, turn == 0,
                                    turn + 1 == warps);
    }
}

/* Any width: one block for each chunk, one element at a time, the sums in shared memory. */
template <typename T, bool LAYER>
__global__ void __launch_bounds__(1024) bwd_any_kernel(bwd_args<T> a)
{
    extern __shared__ float grads[]; /* dw [C], db [C], dx_sum [C] */
    __shared__ float part[64];
    float *dw = grads, *db = grads + a.C, *dx_sum = grads + 2 * a.C;
    int64_t C = a.C, begin, end;
    uint32_t most = 0;

    chunk_of(a, begin, end);
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x)
        dw[c] = db[c] = dx_sum[c] = 0;
    for (int64_t row = begin; row < end; row++) {
        float mean = LAYER ? a.mean[row] : 0.0f, rstd = a.rstd[row], sum_g = 0, sum_gh = 0;
        for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
            float dy = ls_get(a.dy[row * C + c]), g = dy * ls_get(a.w[c]);
            float h = (ls_get(a.sum[row * C + c]) - mean) * rstd;
            sum_g += g;
            sum_gh = fmaf(g, h, sum_gh);
            dw[c] = fmaf(dy, h, dw[c]);
            db[c] += dy;
        }
        ls_block_sum2(sum_g, sum_gh, part);
        sum_g = LAYER ? sum_g / (float)C : 0.0f;
        sum_gh /= (float)C;
        for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
            float g = ls_get(a.dy[row * C + c]) * ls_get(a.w[c]), d[1];
            float h = (ls_get(a.sum[row * C + c]) - mean) * rstd;
            d[0] = rstd * (g - sum_g - h * sum_gh);
            if (a.add)
                d[0] += ls_get(a.dsum[row * C + c]);
            give_dx<1, T>(a, row, c, d);
            dx_sum[c] += d[0];
            most = ls_larger(most, d[0]);
        }
    }
    if (a.dx_max)
        ls_put_max(a.dx_max, most);
    float *out = a.part + (int64_t)blockIdx.x * SUMS * C;
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
        out[c] = dw[c];
        out[C + c] = db[c];
        out[2 * C + c] = dx_sum[c];
    }
}

/* Rows of a chunk: a function of the leaf alone. */
static int64_t chunk_rows(int64_t leaf_rows)
{
    return ls_max_i64(BACK_ROWS, (leaf_rows + BACK_CHUNKS - 1) / BACK_CHUNKS);
}

int64_t ls_cuda_norm_scratch(const ls_norm_bwd *a)
{
    int64_t rows = a->M / a->leaves, each = chunk_rows(rows);

    return a->leaves * ((rows + each - 1) / each) * SUMS * a->C * (int64_t)sizeof(float);
}

template <int NV, typename T, bool LAYER, int N>
static ls_status bwd_rows(ls_cuda_stream *s, const bwd_args<T> &k, unsigned blocks, int warps)
{
    size_t bytes = (size_t)(N * k.C) * sizeof(float);

    if (warps == 1)
        bwd_rows_kernel<NV, false, T, LAYER, N><<<blocks, 32 * ROW_WARPS, bytes, s->stream>>>(k);
    else
        bwd_rows_kernel<NV, true, T, LAYER, N><<<blocks, 32 * (unsigned)warps, 0, s->stream>>>(k);
    return LS_OK;
}

template <typename T, bool LAYER, int N>
static ls_status bwd(ls_cuda_stream *s, const bwd_args<T> &k, unsigned blocks, bool fits)
{
    spread w = spread_for(k.C / ls_vec_of<T>::n);
    int64_t bytes = SUMS * k.C * (int64_t)sizeof(float);

    if (fits && w.fits)
        return w.NV == 1   ? bwd_rows<1, T, LAYER, N>(s, k, blocks, w.warps)
               : w.NV == 2 ? bwd_rows<2, T, LAYER, N>(s, k, blocks, w.warps)
               : w.NV == 3 ? bwd_rows<3, T, LAYER, N>(s, k, blocks, w.warps)
                           : bwd_rows<4, T, LAYER, N>(s, k, blocks, w.warps);
    ls_status st = allow_shared(s, bwd_any_kernel<T, LAYER>, bytes);
    if (st == LS_OK)
        bwd_any_kernel<T, LAYER><<<blocks, threads_for(k.C), (size_t)bytes, s->stream>>>(k);
    return st;
}

template <typename T, int N>
static ls_status bwd_kind(ls_cuda_stream *s, const bwd_args<T> &k, unsigned blocks, bool fits,
                          ls_norm_kind kind)
{
    return kind == LS_NORM_LAYER ? bwd<T, true, N>(s, k, blocks, fits)
                                 : bwd<T, false, N>(s, k, blocks, fits);
}

template <typename T> static ls_status bwd_type(ls_cuda_stream *s, const ls_norm_bwd *a)
{
    const void *const used[] = {a->dy, a->sum, a->w, a->dsum, a->dx};
    bool fits = all_fit<T>(a->C, used, LS_COUNT(used));
    int64_t rows = a->M / a->leaves, each = chunk_rows(rows), chunks = (rows + each - 1) / each;
    bwd_args<T> k = {(const T *)a->dy,
                     (const T *)a->sum,
                     (const T *)a->w,
                     a->mean,
                     a->rstd,
                     (T *)a->dsum,
                     (T *)a->dx,
                     a->add_to_dsum,
                     a->C,
                     a->T,
                     rows,
                     each,
                     chunks,
                     ls_drop_of(a->drop),
                     (float *)a->scratch,
                     a->dx_max};
    unsigned blocks = (unsigned)(a->leaves * chunks);
    ls_status st = a->dx_sum ? bwd_kind<T, SUMS>(s, k, blocks, fits, a->kind)
                             : bwd_kind<T, SUMS - 1>(s, k, blocks, fits, a->kind);

    if (st == LS_OK)
        ls_cuda_tree_finish(s, k.part, a->leaves, chunks, a->C, SUMS * a->C,
                            {{a->dw, a->db, a->dx_sum}}, a->accumulate);
    return st;
}

void ls_cuda_norm_bwd(ls_stream *stream, const ls_norm_bwd *a)
{
    ls_cuda_row row(stream, LS_ROW_NORM_BWD);

    if (row.on && row.ok(ls_cuda_check_type(LS_ROW_NORM_BWD, a->type)) && a->M > 0)
        row.ok(ls_cuda_typed(a->type, [&](auto t) { return bwd_type<decltype(t)>(row.s, a); }));
}
