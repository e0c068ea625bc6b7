/* cuda_head.cu -- logits, softmax, loss and their gradients, a chunk of rows at a time.
 *
 * For each leaf, for each chunk of its rows: logits = h W^T into scratch; one kernel finds maximum
 * and sum of exp of each row and writes dlogits = (softmax - onehot) * grad_scale, times the row's
 * weight, in their place;
 * dh = dlogits W; dw += dlogits^T h in fp32. That kernel is one of three: with two rows of bf16 in
 * shared memory a block walks rows, the next one on its way while it computes (so that memory never
 * waits for arithmetic); with one row there, two blocks take turns; a longer row is read twice, the
 * second time from the cache, which holds a row for each multiprocessor.
 * Logits have the type of h. Their rows are padded to 16 bytes, so that a vocabulary of odd size
 * costs nothing. A chunk never crosses a leaf and its length depends only on V and the leaf.
 *
 * The chunks of a leaf are added to dw one after the other. Several leaves need a stack of [V, C]
 * sums behind the logits in scratch, joined by ls_cuda_leaf_tree().
 *
 * Where ranks have parts of the vocabulary, the row is called twice for rows whose logits are all
 * in scratch: first maximum, sum of exp and the target's logit of the own tokens, then the rest,
 * out of those of all ranks. */
#include "kernel/cuda/cuda_gemm.cuh"

#include <cuda_pipeline.h>
#include <math_constants.h>

enum {
    THREADS = 1024,
    WALK_LEAST = 2 * THREADS, /* vectors of a row that is worth walking */
    AHEAD = 4                 /* vectors of a longer row that a thread loads at once */
};
/* Each chunk reads and writes all of dw: a GPT-2's 65,536 rows in 4 chunks instead of 7 save 1 GB.
 */
static const int64_t LOGIT_BYTES = (int64_t)1600 << 20, CHUNK_STEP = 128;

/* --- softmax, loss and gradient ------------------------------------------------------------- */

template <typename T> struct row_args {
    T *logits;
    int64_t ld, V, first; /* first: row of the whole tensor that this chunk begins with */
    const int32_t *targets;
    float *losses;
    const ls_step_state *state; /* NULL: losses only */
    ls_cuda_fault *faults;
    const float *weights; /* of rows; NULL: 1 */
};

template <typename T> __device__ inline float exp_of(float x)
{
    return sizeof(T) == 4 ? expf(x) : __expf(x);
}

/* Maximum and sum of exp over a block, to all threads. */
__device__ inline void join(float &most, float &sum, float *part)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;

    for (int round = 0; round < 2; round++) {
        float top = ls_warp_max(most);
        sum = ls_warp_sum(top == -CUDART_INF_F ? 0.0f : sum * expf(most - top));
        most = top;
        if (round == 1)
            return;
        if (lane == 0) {
            part[2 * warp] = most;
            part[2 * warp + 1] = sum;
        }
        __syncthreads();
        most = lane < warps ? part[2 * lane] : -CUDART_INF_F;
        sum = lane < warps ? part[2 * lane + 1] : 0.0f;
    }
}

/* The row's target as it was read, or -1; a value outside is reported once. */
template <typename T>
__device__ inline int32_t target_of(const row_args<T> &a, int64_t row, int32_t target)
{
    if (target >= -1 && target < a.V)
        return target;
    if (threadIdx.x == 0)
        ls_fault(a.faults, LS_ROW_HEAD, row, target);
    return -1;
}

/* VEC logits join the running maximum and sum; only the first `count` of them are in the row. */
template <int VEC, typename T>
__device__ inline void add_logits(float (&v)[VEC], int count, float &most, float &sum)
{
    if (count < VEC) /* the row's last, in one thread */
#pragma unroll
        for (int k = 0; k < VEC; k++)
            v[k] = k < count ? v[k] : -CUDART_INF_F;
    float top = most;
#pragma unroll
    for (int k = 0; k < VEC; k++)
        top = fmaxf(top, v[k]);
    if (top > most) {
        sum *= exp_of<T>(most - top); /* from minus infinity: 0 times 0 */
        most = top;
    }
#pragma unroll
    for (int k = 0; k < VEC; k++)
        sum += exp_of<T>(v[k] - most);
}

/* dlogits of VEC columns, in place of the logits; `hit` is the target's place among them. */
template <int VEC, typename T>
__device__ inline void put_grads(T *x, float (&v)[VEC], int hit, float lse, float scale)
{
#pragma unroll
    for (int k = 0; k < VEC; k++)
        v[k] = scale == 0.0f ? 0.0f : exp_of<T>(v[k] - lse) * scale; /* 0 even for a NaN */
    if (hit >= 0 && hit < VEC)
#pragma unroll
        for (int k = 0; k < VEC; k++)
            v[k] -= k == hit ? scale : 0.0f;
    ls_store<VEC>(x, v);
}

/* A row without a target has no gradient. */
template <typename T>
__device__ inline float scale_of(const row_args<T> &a, int64_t row, int32_t target)
{
    return target < 0 ? 0.0f : a.state->grad_scale * (a.weights ? a.weights[row] : 1.0f);
}

/* --- rows of bf16, walked ------------------------------------------------------------------- */

static constexpr float LOG2_E = 1.4426950408889634f;

__device__ inline float exp2_of(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* A row into this thread's slots, in the background. */
__device__ inline void fetch_row(uint4 *to, const ls_bf16 *x, int vectors)
{
    for (int i = threadIdx.x; i < vectors; i += THREADS)
        __pipeline_memcpy_async(&to[i], reinterpret_cast<const uint4 *>(x) + i, sizeof *to);
    __pipeline_commit();
}

/* Elements of a vector from `count` on become minus infinity. */
__device__ inline void cut_vector(uint4 &raw, int count)
{
    uint16_t *x = reinterpret_cast<uint16_t *>(&raw);

#pragma unroll
    for (int k = 0; k < 8; k++)
        x[k] = k < count ? x[k] : (uint16_t)0xff80;
}

/* Maximum and sum of exp over this thread's slots. */
__device__ inline void sum_slots(const uint4 *slots, int vectors, float &most, float &sum)
{
    __nv_bfloat162 top = __floats2bfloat162_rn(-CUDART_INF_F, -CUDART_INF_F);
    float v[8];

    for (int i = threadIdx.x; i < vectors; i += THREADS) {
        uint4 raw = slots[i];
        const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int k = 0; k < 4; k++)
            top = __hmax2(top, *reinterpret_cast<const __nv_bfloat162 *>(&words[k]));
    }
    most = fmaxf(__low2float(top), __high2float(top));
    sum = 0;
    for (int i = threadIdx.x; i < vectors; i += THREADS) {
        ls_load_run<8>(reinterpret_cast<const ls_bf16 *>(&slots[i]), v);
#pragma unroll
        for (int k = 0; k < 8; k++)
            sum += exp2_of(fmaf(v[k], LOG2_E, -most * LOG2_E));
    }
}

/* dlogits of eight columns out of their logits: 2^(v log2 e + bias), where bias is log2 |scale| - lse
 * log2 e, with the sign of scale, less scale at the target, whose place among them is `hit`. */
__device__ inline void give_vector(ls_bf16 *x, const uint4 &raw, int hit, float bias, float scale)
{
    float v[8];

    ls_load_run<8>(reinterpret_cast<const ls_bf16 *>(&raw), v);
#pragma unroll
    for (int k = 0; k < 8; k++)
        v[k] = copysignf(exp2_of(fmaf(v[k], LOG2_E, bias)), scale);
    if (hit >= 0 && hit < 8)
#pragma unroll
        for (int k = 0; k < 8; k++)
            v[k] -= k == hit ? scale : 0.0f;
    /* The compiler takes a store of 16 bytes apart here, and four of 4 bytes, 16 apart from thread
     * to thread, take twice the time. */
    asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(x), "r"(ls_put2<ls_bf16>(v[0], v[1])),
                 "r"(ls_put2<ls_bf16>(v[2], v[3])), "r"(ls_put2<ls_bf16>(v[4], v[5])),
                 "r"(ls_put2<ls_bf16>(v[6], v[7]))
                 : "memory");
}

/* A row that counts for nothing, even where its logits are not numbers. */
__device__ inline void give_zeros(ls_bf16 *x, int vectors)
{
    for (int i = threadIdx.x; i < vectors; i += THREADS)
        reinterpret_cast<uint4 *>(x)[i] = make_uint4(0, 0, 0, 0);
}

/* Blocks walk rows a grid apart. A thread reads in shared memory only what it fetched itself, so
 * one wait for all in each row is enough: that of join(), whose numbers have two places in turn. */
__global__ void __launch_bounds__(THREADS, 1) walk_kernel(row_args<ls_bf16> a, int64_t rows)
{
    extern __shared__ uint4 kept[]; /* two rows */
    __shared__ float part[2][64];
    int V = (int)a.V, vectors = (V + 7) / 8, turn = 0;

    fetch_row(kept, a.logits + blockIdx.x * a.ld, vectors);
    for (int64_t at = blockIdx.x; at < rows; at += gridDim.x, turn ^= 1) {
        int64_t row = a.first + at, next = at + gridDim.x;
        uint4 *slots = kept + turn * vectors;
        ls_bf16 *x = a.logits + at * a.ld;
        int32_t target = a.targets[row];
        float most, sum;
        if (next < rows)
            fetch_row(kept + (turn ^ 1) * vectors, a.logits + next * a.ld, vectors);
        else
            __pipeline_commit();
        __pipeline_wait_prior(1);
        if (V % 8 != 0 && (vectors - 1) % THREADS == threadIdx.x)
            cut_vector(slots[vectors - 1], V % 8);
        sum_slots(slots, vectors, most, sum);
        join(most, sum, part[turn]);
        float lse = most + logf(sum);
        target = target_of(a, row, target);
        if (target < 0 ? threadIdx.x == 0 : target / 8 % THREADS == threadIdx.x)
            a.losses[row] =
                target < 0 ? 0.0f : lse - ls_get(reinterpret_cast<const ls_bf16 *>(slots)[target]);
        if (!a.state)
            continue;
        float scale = scale_of(a, row, target), bias = log2f(fabsf(scale)) - lse * LOG2_E;
        if (scale == 0.0f)
            give_zeros(x, vectors);
        else
            for (int i = threadIdx.x; i < vectors; i += THREADS)
                give_vector(x + i * 8, slots[i], target - i * 8, bias, scale);
    }
}

/* --- longer rows of bf16 -------------------------------------------------------------------- */

/* AHEAD vectors of a thread, from number i on; behind the row's end minus infinity. */
__device__ inline void take_ahead(const ls_bf16 *x, int i, int V, uint4 (&raw)[AHEAD])
{
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
        int at = i + j * THREADS;
        raw[j] = make_uint4(0xff80ff80u, 0xff80ff80u, 0xff80ff80u, 0xff80ff80u);
        if (at * 8 < V)
            raw[j] = reinterpret_cast<const uint4 *>(x)[at];
    }
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
        int left = V - (i + j * THREADS) * 8;
        if (left > 0 && left < 8)
            cut_vector(raw[j], left);
    }
}

/* They join the running maximum and sum. */
__device__ inline void add_ahead(const uint4 (&raw)[AHEAD], float &most, float &sum)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(most, most);
    float v[8];

#pragma unroll
    for (int j = 0; j < AHEAD; j++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            pair = __hmax2(pair, reinterpret_cast<const __nv_bfloat162 *>(&raw[j])[k]);
    float top = fmaxf(__low2float(pair), __high2float(pair));
    if (top > most) {
        sum *= exp2_of((most - top) * LOG2_E); /* from minus infinity: 0 times 0 */
        most = top;
    }
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
        ls_load_run<8>(reinterpret_cast<const ls_bf16 *>(&raw[j]), v);
#pragma unroll
        for (int k = 0; k < 8; k++)
            sum += exp2_of(fmaf(v[k], LOG2_E, -most * LOG2_E));
    }
}

/* A row for each block, read twice with AHEAD loads on their way; one block on a multiprocessor, so
 * that the cache keeps what is read again. */
__global__ void __launch_bounds__(THREADS, 1) long_kernel(row_args<ls_bf16> a)
{
    __shared__ float part[64];
    int64_t row = a.first + blockIdx.x;
    ls_bf16 *x = a.logits + blockIdx.x * a.ld;
    int32_t target = target_of(a, row, a.targets[row]);
    int V = (int)a.V, vectors = (V + 7) / 8;
    float most = -CUDART_INF_F, sum = 0;
    uint4 raw[AHEAD];

    for (int i = threadIdx.x; i < vectors; i += AHEAD * THREADS) {
        take_ahead(x, i, V, raw);
        add_ahead(raw, most, sum);
    }
    join(most, sum, part);
    float lse = most + logf(sum);
    if (threadIdx.x == 0)
        a.losses[row] = target < 0 ? 0.0f : lse - ls_get(x[target]);
    if (!a.state)
        return;
    __syncthreads(); /* the target's logit is read before it is overwritten */
    float scale = scale_of(a, row, target), bias = log2f(fabsf(scale)) - lse * LOG2_E;
    if (scale == 0.0f) {
        give_zeros(x, vectors);
        return;
    }
    for (int i = threadIdx.x; i < vectors; i += AHEAD * THREADS) {
        take_ahead(x, i, V, raw);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            int at = i + j * THREADS;
            if (at < vectors)
                give_vector(x + at * 8, raw[j], target - at * 8, bias, scale);
        }
    }
}

/* --- other rows ----------------------------------------------------------------------------- */

/* A row that fits into shared memory: read once. A thread reads there only what it put there, so
 * no thread waits; two blocks on a multiprocessor load and compute in turn. */
template <typename T> __global__ void __launch_bounds__(THREADS, 2) kept_kernel(row_args<T> a)
{
    constexpr int VEC = ls_vec_of<T>::n;
    extern __shared__ uint4 kept[];
    __shared__ float part[64];
    int64_t row = a.first + blockIdx.x;
    T *x = a.logits + blockIdx.x * a.ld;
    int32_t target = target_of(a, row, a.targets[row]);
    int V = (int)a.V, vectors = (V + VEC - 1) / VEC;
    float most = -CUDART_INF_F, sum = 0, v[VEC];

#pragma unroll 4
    for (int i = threadIdx.x; i < vectors; i += THREADS)
        kept[i] = reinterpret_cast<const uint4 *>(x)[i];
    float hit = target >= 0 && threadIdx.x == 0 ? ls_get(x[target]) : 0.0f;
    for (int i = threadIdx.x; i < vectors; i += THREADS) {
        ls_load_run<VEC>(reinterpret_cast<const T *>(&kept[i]), v);
        add_logits<VEC, T>(v, V - i * VEC, most, sum);
    }
    join(most, sum, part); /* waits for all: the target's logit has been read */
    float lse = most + logf(sum);
    if (threadIdx.x == 0)
        a.losses[row] = target < 0 ? 0.0f : lse - hit;
    if (!a.state)
        return;
    float scale = scale_of(a, row, target);
    for (int i = threadIdx.x; i < vectors; i += THREADS) {
        ls_load_run<VEC>(reinterpret_cast<const T *>(&kept[i]), v);
        put_grads<VEC, T>(x + i * VEC, v, target - i * VEC, lse, scale);
    }
}

/* A row of any length: read twice, the second time from the cache. */
template <int VEC, typename T> __global__ void __launch_bounds__(THREADS) row_kernel(row_args<T> a)
{
    __shared__ float part[64];
    int64_t row = a.first + blockIdx.x;
    T *x = a.logits + blockIdx.x * a.ld;
    int32_t target = target_of(a, row, a.targets[row]);
    int V = (int)a.V;
    float most = -CUDART_INF_F, sum = 0, v[VEC];

    for (int c = threadIdx.x * VEC; c < V; c += THREADS * VEC) {
        ls_load_run<VEC>(x + c, v); /* rows are padded: reading past V is reading our own scratch */
        add_logits<VEC, T>(v, V - c, most, sum);
    }
    join(most, sum, part);
    float lse = most + logf(sum);
    if (threadIdx.x == 0)
        a.losses[row] = target < 0 ? 0.0f : lse - ls_get(x[target]);
    if (!a.state)
        return;
    __syncthreads(); /* the target's logit is read before it is overwritten */
    float scale = scale_of(a, row, target);
    for (int c = threadIdx.x * VEC; c < V; c += THREADS * VEC) {
        ls_load_run<VEC>(x + c, v);
        put_grads<VEC, T>(x + c, v, target - c, lse, scale);
    }
}

/* --- a part of the vocabulary --------------------------------------------------------------- */

template <typename T> struct part_args {
    T *logits;
    int64_t ld, V, first, vocab; /* tokens first .. first + V - 1 of this many */
    const int32_t *targets;
    float *scores;    /* [M, 3] */
    const float *all; /* those of each rank, `rank_stride` floats from rank to rank */
    int64_t ranks, rank_stride;
    float *losses;
    const ls_step_state *state; /* NULL: losses only */
    ls_cuda_fault *faults;
    const float *weights; /* of rows; NULL: 1 */
};

/* The place of the row's target among the own tokens; -1: it is another rank's, or there is none.
 */
template <typename T> __device__ inline int64_t own_target(const part_args<T> &a, int64_t row)
{
    int64_t target = a.targets[row], here = target - a.first;

    if ((target < -1 || target >= a.vocab) && threadIdx.x == 0)
        ls_fault(a.faults, LS_ROW_HEAD, row, (int32_t)target);
    return target >= 0 && here >= 0 && here < a.V ? here : -1;
}

template <int VEC, typename T>
__global__ void __launch_bounds__(THREADS) scores_kernel(part_args<T> a)
{
    __shared__ float part[64];
    int64_t row = blockIdx.x, target = own_target(a, row);
    const T *x = a.logits + row * a.ld;
    int V = (int)a.V;
    float most = -CUDART_INF_F, sum = 0, v[VEC];

    for (int c = threadIdx.x * VEC; c < V; c += THREADS * VEC) {
        ls_load_run<VEC>(x + c, v); /* rows are padded: reading past V is reading our own scratch */
        add_logits<VEC, T>(v, V - c, most, sum);
    }
    join(most, sum, part);
    if (threadIdx.x != 0)
        return;
    a.scores[3 * row] = most;
    a.scores[3 * row + 1] = sum;
    a.scores[3 * row + 2] = target < 0 ? 0.0f : ls_get(x[target]);
}

/* The same sums on all ranks, in the order of ranks. */
template <int VEC, typename T>
__global__ void __launch_bounds__(THREADS) joined_kernel(part_args<T> a)
{
    int64_t row = blockIdx.x, target = own_target(a, row);
    bool counts = a.targets[row] >= 0 && a.targets[row] < a.vocab;
    T *x = a.logits + row * a.ld;
    int V = (int)a.V;
    float most = -CUDART_INF_F, sum = 0, hit = 0, v[VEC];

    for (int64_t r = 0; r < a.ranks; r++)
        most = fmaxf(most, a.all[r * a.rank_stride + 3 * row]);
    for (int64_t r = 0; r < a.ranks; r++) {
        const float *scores = a.all + r * a.rank_stride + 3 * row;
        sum = fmaf(scores[1], expf(scores[0] - most), sum);
        hit += scores[2];
    }
    float lse = most + logf(sum), scale = counts && a.state ? a.state->grad_scale : 0.0f;
    if (a.weights)
        scale *= a.weights[row];
    if (threadIdx.x == 0)
        a.losses[row] = counts ? lse - hit : 0.0f;
    for (int c = threadIdx.x * VEC; a.state && c < V; c += THREADS * VEC) {
        int64_t at = target < 0 ? -1 : target - c;
        ls_load_run<VEC>(x + c, v);
        put_grads<VEC, T>(x + c, v, at >= 0 && at < VEC ? (int)at : -1, lse, scale);
    }
}

/* --- chunks and leaves ---------------------------------------------------------------------- */

static int64_t padded(const ls_head *a)
{
    return ls_round_up(a->V, 16 / ls_dtype_bytes(a->type));
}

/* Rows of a chunk: as many as LOGIT_BYTES allow, evenly over the leaf; of a part of the vocabulary
 * all. */
static int64_t chunk_rows(const ls_head *a)
{
    if (a->part != LS_HEAD_WHOLE)
        return a->M;
    int64_t leaf = ls_max_i64(a->M / a->leaves, 1);
    int64_t most = LOGIT_BYTES / (padded(a) * ls_dtype_bytes(a->type));
    int64_t chunks = (leaf + ls_max_i64(most, 1) - 1) / ls_max_i64(most, 1);

    return ls_min_i64(leaf, ls_round_up((leaf + chunks - 1) / chunks, CHUNK_STEP));
}

static int64_t logit_bytes(const ls_head *a)
{
    return ls_round_up(chunk_rows(a) * padded(a) * ls_dtype_bytes(a->type), 256);
}

int64_t ls_cuda_head_scratch(const ls_head *a)
{
    int64_t sums =
        a->leaves > 1 ? ls_cuda_levels(a->leaves) * ls_round_up(a->V * a->C * 4, 256) : 0;

    return logit_bytes(a) + sums;
}

/* Shared memory beyond 48 KiB must be asked for. */
template <typename K> static ls_status allow_shared(ls_cuda_stream *s, K kernel)
{
    return ls_cuda_ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           s->device->shared_bytes - 1024),
                      "ask for shared memory");
}

/* Rows that walk_kernel() takes; false: another kernel must. */
static bool walk(ls_cuda_stream *s, const row_args<ls_bf16> &k, int64_t n, ls_status *st_out)
{
    int64_t vectors = (k.V + 7) / 8, bytes = 2 * vectors * (int64_t)sizeof(uint4);

    if (vectors < WALK_LEAST || bytes > s->device->shared_bytes - 1024)
        return false;
    *st_out = allow_shared(s, walk_kernel);
    if (*st_out == LS_OK)
        walk_kernel<<<(unsigned)ls_min_i64(n, s->device->multiprocessors), THREADS, (size_t)bytes,
                      s->stream>>>(k, n);
    return true;
}
template <typename T> static bool walk(ls_cuda_stream *, const row_args<T> &, int64_t, ls_status *)
{
    return false;
}

/* Rows that do not fit into shared memory but can be read 16 bytes at a time. */
static void read_twice(ls_cuda_stream *s, const row_args<ls_bf16> &k, int64_t n)
{
    long_kernel<<<(unsigned)n, THREADS, 0, s->stream>>>(k);
}
template <typename T> static void read_twice(ls_cuda_stream *s, const row_args<T> &k, int64_t n)
{
    row_kernel<ls_vec_of<T>::n, T><<<(unsigned)n, THREADS, 0, s->stream>>>(k);
}

template <typename T>
static ls_status rows(ls_cuda_stream *s, const ls_head *a, int64_t first, int64_t n)
{
    row_args<T> k = {(T *)a->scratch,         padded(a), a->V,      first, a->targets, a->losses,
                     a->dh ? a->state : NULL, s->faults, a->weights};
    int64_t bytes = k.ld * (int64_t)sizeof(T);
    bool aligned = ls_cuda_aligned(a->scratch, 16);
    ls_status st = LS_OK;

    if (aligned && walk(s, k, n, &st))
        return st;
    if (aligned && bytes <= s->device->shared_bytes - 1024) {
        st = allow_shared(s, kept_kernel<T>);
        if (st == LS_OK)
            kept_kernel<T><<<(unsigned)n, THREADS, (size_t)bytes, s->stream>>>(k);
        return st;
    }
    if (aligned)
        read_twice(s, k, n);
    else
        row_kernel<1, T><<<(unsigned)n, THREADS, 0, s->stream>>>(k);
    return LS_OK;
}

template <typename T> static void part_rows(ls_cuda_stream *s, const ls_head *a)
{
    constexpr int VEC = ls_vec_of<T>::n;
    part_args<T> k = {(T *)a->scratch, padded(a),      a->V,      a->first,
                      a->vocab,        a->targets,     a->scores, a->all,
                      a->ranks,        a->rank_stride, a->losses, a->dh ? a->state : NULL,
                      s->faults,       a->weights};
    unsigned n = (unsigned)a->M;
    bool aligned = ls_cuda_aligned(a->scratch, 16);

    if (a->part == LS_HEAD_SCORES && aligned)
        scores_kernel<VEC, T><<<n, THREADS, 0, s->stream>>>(k);
    else if (a->part == LS_HEAD_SCORES)
        scores_kernel<1, T><<<n, THREADS, 0, s->stream>>>(k);
    else if (aligned)
        joined_kernel<VEC, T><<<n, THREADS, 0, s->stream>>>(k);
    else
        joined_kernel<1, T><<<n, THREADS, 0, s->stream>>>(k);
}

/* The kernel between the products. */
static ls_status middle(ls_cuda_stream *s, const ls_head *a, int64_t first, int64_t n)
{
    if (a->part == LS_HEAD_WHOLE)
        return ls_cuda_typed(a->type, [&](auto t) { return rows<decltype(t)>(s, a, first, n); });
    ls_cuda_typed(a->type, [&](auto t) { part_rows<decltype(t)>(s, a); });
    return LS_OK;
}

/* One chunk; dw NULL: not wanted. */
static ls_status chunk(ls_cuda_stream *s, const ls_head *a, int64_t first, int64_t n, float *dw,
                       bool add)
{
    int64_t bytes = ls_dtype_bytes(a->type);
    const char *h = (const char *)a->h + first * a->C * bytes;
    ls_product logits = {}, dh = {}, grad = {};

    logits.a_type = logits.b_type = logits.out = a->type;
    dh.a_type = dh.b_type = dh.out = grad.a_type = grad.b_type = a->type;
    grad.out = LS_F32;
    logits.tf32 = dh.tf32 = grad.tf32 = a->tf32;
    logits.m = grad.n = dh.k = a->V;
    logits.n = grad.k = dh.n = n;
    logits.k = grad.m = dh.m = a->C;
    logits.a = dh.a = a->w;
    logits.b = grad.a = h;
    logits.d = a->scratch;
    dh.b = grad.b = a->scratch;
    logits.transpose_a = grad.transpose_b = true;
    logits.lda = logits.ldb = dh.lda = dh.ldd = grad.lda = grad.ldd = a->C;
    logits.ldd = dh.ldb = grad.ldb = padded(a);
    grad.d = dw;
    grad.add = add;
    ls_status st = a->part == LS_HEAD_JOIN ? LS_OK : ls_product_queue(s, &logits);
    if (st == LS_OK)
        st = middle(s, a, first, n);
    if (st != LS_OK || !a->dh || a->part == LS_HEAD_SCORES)
        return st;
    dh.d = (char *)a->dh + first * a->C * bytes;
    st = ls_product_queue(s, &dh);
    return st == LS_OK && dw ? ls_product_queue(s, &grad) : st;
}

/* All chunks of a leaf; their dw go into dw one after the other. */
static ls_status leaf(ls_cuda_stream *s, const ls_head *a, int64_t number, float *dw, bool add)
{
    int64_t n = a->M / a->leaves, each = chunk_rows(a);
    ls_status st = LS_OK;

    for (int64_t at = 0; at < n && st == LS_OK; at += each)
        st = chunk(s, a, number * n + at, ls_min_i64(each, n - at), dw, add || at > 0);
    return st;
}

static ls_status all_leaves(ls_cuda_stream *s, const ls_head *a)
{
    int64_t n = a->V * a->C, room = ls_round_up(n * 4, 256) / 4;
    float *behind = (float *)((char *)a->scratch + logit_bytes(a));

    return ls_cuda_leaf_tree(s, a->dw, a->accumulate, behind, room, a->leaves, n,
                             [&](int64_t i, float *to) { return leaf(s, a, i, to, false); });
}

void ls_cuda_head(ls_stream *stream, const ls_head *a)
{
    ls_cuda_row row(stream, LS_ROW_HEAD);
    bool tree = a->leaves > 1 && a->dh && a->dw;

    if (!row.on || !row.ok(ls_cuda_check_type(LS_ROW_HEAD, a->type)) || a->M == 0)
        return;
    if (tree) {
        row.ok(all_leaves(row.s, a));
        return;
    }
    for (int64_t i = 0; i < a->leaves && row.on; i++)
        row.ok(leaf(row.s, a, i, a->dh ? a->dw : NULL, a->accumulate));
}
