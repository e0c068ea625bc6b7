/* cuda_qkv.cu -- the packed product split into heads, with norms of q and k and rotation, and back.
 *
 * A warp owns one head of one token: its lanes own pairs (i, i + D/2), which is what a rotation
 * turns, so that every element is read and written by the same lane and q, k, v may be views of the
 * packed tensor itself. Without norms nothing is shared between lanes and the work is laid out as
 * pairs of 16-byte vectors instead.
 *
 * Gradient with norms: turned back to g, then as in cuda_norm.cu with h = x rstd: dx = rstd (g w -
 * h mean(g w h)), dw = sum of g h over tokens and heads. A block walks a chunk of a leaf's tokens;
 * each warp adds in shared memory of its own, warps are added in order, chunks and leaves by
 * ls_cuda_tree_finish(). */
#include "kernel/cuda/cuda_qkv_wide.cuh"

enum { THREADS = 256, WARPS = 8, NORM_CHUNKS = 128, NORM_TOKENS = 4 };

typedef struct places {
    char *packed;
    const char *product;
    ls_heads q, k, v;
    const float *rope;
    int64_t past, B, T, H, Hkv, D;
    const void *q_norm, *k_norm;
    float eps;
    float *rstd;
} places;

static places places_of(const ls_qkv *a)
{
    places p = {(char *)a->packed,
                (const char *)a->product,
                a->q,
                a->k,
                a->v,
                a->rope,
                a->past,
                a->B,
                a->T,
                a->H,
                a->Hkv,
                a->D,
                a->q_norm,
                a->k_norm,
                a->eps,
                a->rstd};

    return p;
}

/* Where head n of the packed order (q heads, k heads, v heads) lies for token (b, t). */
template <typename T> __device__ inline T *head_at(const places &a, int64_t b, int64_t t, int64_t n)
{
    const ls_heads &h = n < a.H ? a.q : n < a.H + a.Hkv ? a.k : a.v;
    int64_t at = n < a.H ? n : n < a.H + a.Hkv ? n - a.H : n - a.H - a.Hkv;

    return (T *)h.p + b * h.batch + t * h.time + at * h.head;
}

/* --- without norms -------------------------------------------------------------------------- */

/* One thread: VEC pairs of one head. sign -1 turns back. */
template <int VEC, typename T, bool FORWARD>
__global__ void split_kernel(places a, int64_t items, uint32_t per_head)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x, heads = a.H + 2 * a.Hkv, half = a.D / 2;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < items; i += step) {
        int64_t head = i / per_head, c = (i - head * per_head) * VEC;
        int64_t row = head / heads, n = head - row * heads, b = row / a.T, t = row - b * a.T;
        T *packed = (T *)a.packed + head * a.D, *apart = head_at<T>(a, b, t, n);
        const T *from = FORWARD ? packed : apart;
        T *to = FORWARD ? apart : packed;
        bool turns = a.rope && n < a.H + a.Hkv;
        float x[VEC], y[VEC];
        if (!turns && from == to)
            continue; /* values in their place */
        ls_load_run<VEC>(from + c, x);
        ls_load_run<VEC>(from + c + half, y);
        if (turns) {
            const float *turn = a.rope + ((a.past + t) * half + c) * 2;
#pragma unroll
            for (int k = 0; k < VEC; k++) {
                float cosine = turn[2 * k], sine = FORWARD ? turn[2 * k + 1] : -turn[2 * k + 1];
                float first = x[k];
                x[k] = first * cosine - y[k] * sine;
                y[k] = y[k] * cosine + first * sine;
            }
        }
        ls_store<VEC>(to + c, x);
        ls_store<VEC>(to + c + half, y);
    }
}

/* Odd heads cannot be turned; they are copied element by element. */
template <typename T, bool FORWARD> __global__ void copy_kernel(places a, int64_t items)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x, heads = a.H + 2 * a.Hkv;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < items; i += step) {
        int64_t head = i / a.D, c = i - head * a.D, row = head / heads, n = head - row * heads;
        T *packed = (T *)a.packed + i, *apart = head_at<T>(a, row / a.T, row % a.T, n) + c;
        if (FORWARD)
            *apart = *packed;
        else
            *packed = *apart;
    }
}

template <typename T> static bool heads_fit(const ls_heads *h)
{
    constexpr int64_t VEC = ls_vec_of<T>::n;

    return ls_cuda_aligned(h->p, 16) && h->batch % VEC == 0 && h->time % VEC == 0 &&
           h->head % VEC == 0;
}

template <typename T, bool FORWARD> static void split(ls_cuda_stream *s, const ls_qkv *a)
{
    constexpr int VEC = ls_vec_of<T>::n;
    int64_t elements = a->B * a->T * (a->H + 2 * a->Hkv) * a->D;
    places p = places_of(a);

    if (a->D % 2)
        copy_kernel<T, FORWARD>
            <<<ls_cuda_grid(s, elements, THREADS), THREADS, 0, s->stream>>>(p, elements);
    else if (a->D % (2 * VEC) == 0 && ls_cuda_aligned(a->packed, 16) && heads_fit<T>(&a->q) &&
             heads_fit<T>(&a->k) && heads_fit<T>(&a->v))
        split_kernel<VEC, T, FORWARD>
            <<<ls_cuda_grid(s, elements / 2 / VEC, THREADS), THREADS, 0, s->stream>>>(
                p, elements / 2 / VEC, (uint32_t)(a->D / 2 / VEC));
    else
        split_kernel<1, T, FORWARD>
            <<<ls_cuda_grid(s, elements / 2, THREADS), THREADS, 0, s->stream>>>(
                p, elements / 2, (uint32_t)(a->D / 2));
}

/* --- with norms ----------------------------------------------------------------------------- */

/* Lane's pairs i = lane, lane + 32, ... below D/2; the last element of an odd head is its own pair
 * and is not turned (rope demands an even D). */
template <typename T> __global__ void norm_fwd_kernel(places a)
{
    int64_t heads = a.H + 2 * a.Hkv, half = a.D / 2, lane = threadIdx.x % 32;
    int64_t warp = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;

    if (warp >= a.B * a.T * heads)
        return;
    int64_t row = warp / heads, n = warp - row * heads, b = row / a.T, t = row - b * a.T;
    const T *from = (const T *)a.packed + warp * a.D;
    T *to = head_at<T>(a, b, t, n);
    if (n >= a.H + a.Hkv) {
        for (int64_t i = lane; i < a.D; i += 32)
            to[i] = from[i];
        return;
    }
    const T *w = (const T *)(n < a.H ? a.q_norm : a.k_norm);
    float square = 0;
    for (int64_t i = lane; i < a.D; i += 32)
        square = fmaf(ls_get(from[i]), ls_get(from[i]), square);
    float rstd = 1.0f / sqrtf(ls_warp_sum(square) / (float)a.D + a.eps);
    if (lane == 0 && a.rstd)
        a.rstd[row * (a.H + a.Hkv) + n] = rstd;
    for (int64_t i = lane; i < half; i += 32) {
        float x = ls_get(from[i]) * rstd * ls_get(w[i]);
        float y = ls_get(from[i + half]) * rstd * ls_get(w[i + half]);
        float cosine = 1, sine = 0;
        if (a.rope) {
            cosine = a.rope[((a.past + t) * half + i) * 2];
            sine = a.rope[((a.past + t) * half + i) * 2 + 1];
        }
        to[i] = ls_put<T>(x * cosine - y * sine);
        to[i + half] = ls_put<T>(y * cosine + x * sine);
    }
    if (a.D % 2 && lane == 0)
        to[a.D - 1] = ls_put<T>(ls_get(from[a.D - 1]) * rstd * ls_get(w[a.D - 1]));
}

/* The gradient of pair i before the rotation. */
template <typename T>
__device__ inline void turned_back(const places &a, const T *d, int64_t t, int64_t i, float &x,
                                   float &y)
{
    int64_t half = a.D / 2;
    float cosine = 1, sine = 0, first = ls_get(d[i]), second = ls_get(d[i + half]);

    if (a.rope) {
        cosine = a.rope[((a.past + t) * half + i) * 2];
        sine = a.rope[((a.past + t) * half + i) * 2 + 1];
    }
    x = first * cosine + second * sine;
    y = second * cosine - first * sine;
}

/* One head of q or k: dx into packed, and g h added to sums [D] of this warp. */
template <typename T>
__device__ void norm_head_back(const places &a, int64_t row, int64_t t, int64_t n, const T *d,
                               float *sums)
{
    int64_t heads = a.H + 2 * a.Hkv, half = a.D / 2, lane = threadIdx.x % 32;
    const T *x = (const T *)a.product + (row * heads + n) * a.D;
    T *to = (T *)a.packed + (row * heads + n) * a.D;
    const T *w = (const T *)(n < a.H ? a.q_norm : a.k_norm);
    float rstd = a.rstd[row * (a.H + a.Hkv) + n], mean = 0, g0, g1;

    for (int64_t i = lane; i < half; i += 32) {
        turned_back(a, d, t, i, g0, g1);
        float h0 = ls_get(x[i]) * rstd, h1 = ls_get(x[i + half]) * rstd;
        mean += g0 * ls_get(w[i]) * h0 + g1 * ls_get(w[i + half]) * h1;
        sums[i] += g0 * h0;
        sums[i + half] += g1 * h1;
    }
    if (a.D % 2 && lane == 0) {
        float g = ls_get(d[a.D - 1]), h = ls_get(x[a.D - 1]) * rstd;
        mean += g * ls_get(w[a.D - 1]) * h;
        sums[a.D - 1] += g * h;
    }
    mean = ls_warp_sum(mean) / (float)a.D;
    for (int64_t i = lane; i < half; i += 32) {
        turned_back(a, d, t, i, g0, g1);
        float h0 = ls_get(x[i]) * rstd, h1 = ls_get(x[i + half]) * rstd;
        to[i] = ls_put<T>(rstd * (g0 * ls_get(w[i]) - h0 * mean));
        to[i + half] = ls_put<T>(rstd * (g1 * ls_get(w[i + half]) - h1 * mean));
    }
    if (a.D % 2 && lane == 0) {
        float g = ls_get(d[a.D - 1]), h = ls_get(x[a.D - 1]) * rstd;
        to[a.D - 1] = ls_put<T>(rstd * (g * ls_get(w[a.D - 1]) - h * mean));
    }
}

/* Block: one chunk of a leaf's tokens; warp w takes heads w, w + WARPS, ... of all its tokens. */
template <typename T>
__global__ void norm_bwd_kernel(places a, int64_t leaf_rows, int64_t chunk_rows, int64_t chunks,
                                float *part)
{
    extern __shared__ float sums[]; /* [WARPS][2][D]: q, k */
    int64_t heads = a.H + 2 * a.Hkv, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t leaf = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
    int64_t first = leaf * leaf_rows + chunk * chunk_rows;
    int64_t end = first + min(chunk_rows, leaf_rows - chunk * chunk_rows);

    for (int64_t i = threadIdx.x; i < WARPS * 2 * a.D; i += THREADS)
        sums[i] = 0;
    __syncthreads();
    for (int64_t item = first * heads + warp; item < end * heads; item += WARPS) {
        int64_t row = item / heads, n = item - row * heads, b = row / a.T, t = row - b * a.T;
        const T *d = head_at<T>(a, b, t, n);
        if (n < a.H + a.Hkv) {
            norm_head_back<T>(a, row, t, n, d, sums + (2 * warp + (n < a.H ? 0 : 1)) * a.D);
        } else {
            T *to = (T *)a.packed + item * a.D;
            for (int64_t i = lane; i < a.D; i += 32)
                to[i] = d[i];
        }
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < 2 * a.D; i += THREADS) {
        float sum = sums[i];
        for (int w = 1; w < WARPS; w++)
            sum += sums[w * 2 * a.D + i];
        part[blockIdx.x * 2 * a.D + i] = sum;
    }
}

static int64_t norm_chunk_rows(int64_t leaf_rows)
{
    return ls_max_i64(NORM_TOKENS, (leaf_rows + NORM_CHUNKS - 1) / NORM_CHUNKS);
}

int64_t ls_cuda_qkv_scratch(const ls_qkv *a)
{
    int64_t leaves = ls_max_i64(a->leaves, 1), rows = a->B * a->T / leaves;
    int64_t each = norm_chunk_rows(rows);

    return leaves * ((rows + each - 1) / each) * 2 * a->D * (int64_t)sizeof(float);
}

template <typename T> static void norm_bwd(ls_cuda_stream *s, const ls_qkv *a)
{
    int64_t leaves = ls_max_i64(a->leaves, 1), rows = a->B * a->T / leaves;
    int64_t each = norm_chunk_rows(rows), chunks = (rows + each - 1) / each;
    float *part = (float *)a->scratch;

    norm_bwd_kernel<T>
        <<<(unsigned)(leaves * chunks), THREADS, (size_t)(WARPS * 2 * a->D) * sizeof(float),
           s->stream>>>(places_of(a), rows, each, chunks, part);
    ls_cuda_tree_finish(s, part, leaves, chunks, a->D, 2 * a->D, {{a->dq_norm, a->dk_norm, NULL}},
                        a->accumulate);
}

/* --- the rows ------------------------------------------------------------------------------- */

template <typename T> static void fwd(ls_cuda_stream *s, const ls_qkv *a)
{
    int64_t warps = a->B * a->T * (a->H + 2 * a->Hkv);

    if (a->q_norm)
        norm_fwd_kernel<T>
            <<<(unsigned)((warps + WARPS - 1) / WARPS), THREADS, 0, s->stream>>>(places_of(a));
    else
        split<T, true>(s, a);
}

template <typename T> static void bwd(ls_cuda_stream *s, const ls_qkv *a)
{
    if (a->q_norm)
        norm_bwd<T>(s, a);
    else
        split<T, false>(s, a);
}

static ls_status check(ls_row row, const ls_qkv *a)
{
    LS_BUG_IF(a->rope && a->D % 2, "rope turns pairs, but D is %lld", (long long)a->D);
    LS_BUG_IF(a->part != LS_QKV_WHOLE && !a->ld, "a part of a norm over one head");
    if (a->ld)
        return ls_cuda_check_type(row, a->type);
    LS_BUG_IF(a->Hkv == 0, "a part of a packed product");
    if (a->D > 768)
        return ls_fail(LS_EUSAGE, "a head of %lld is larger than 768", (long long)a->D);
    return ls_cuda_check_type(row, a->type);
}

void ls_cuda_qkv_fwd(ls_stream *stream, const ls_qkv *a)
{
    ls_cuda_row row(stream, LS_ROW_QKV_FWD);

    if (!row.on || !row.ok(check(LS_ROW_QKV_FWD, a)) || a->B * a->T == 0)
        return;
    if (a->ld)
        row.ok(ls_qkv_wide_fwd(row.s, a));
    else
        ls_cuda_typed(a->type, [&](auto t) { fwd<decltype(t)>(row.s, a); });
}

void ls_cuda_qkv_bwd(ls_stream *stream, const ls_qkv *a)
{
    ls_cuda_row row(stream, LS_ROW_QKV_BWD);

    if (!row.on || !row.ok(check(LS_ROW_QKV_BWD, a)) || a->B * a->T == 0)
        return;
    if (a->ld)
        row.ok(ls_qkv_wide_bwd(row.s, a, norm_chunk_rows(a->B * a->T / ls_max_i64(a->leaves, 1))));
    else
        ls_cuda_typed(a->type, [&](auto t) { bwd<decltype(t)>(row.s, a); });
}
