/* cuda_attention.cu -- attention of our own: any type, any head size up to 256, documents, windows,
 * dropout, queries with a past (FlashAttention's way: nothing of size T x T in memory).
 *
 * A block owns 32 queries of one head and walks tiles of 32 keys; both lie in shared memory as
 * fp32. A warp owns 8 queries. In the products with keys a lane is a key, in the products with
 * values a lane is a column, and weights go from one to the other by shuffles. The softmax is the
 * running kind: a maximum, a sum and the output so far, rescaled when the maximum grows;
 * log-sum-exp is kept for the gradient. A tile that a query does not see changes none of its bits,
 * so a query has the same bits with a past or without.
 *
 * The gradient makes weights again from log-sum-exp, twice: once with queries in blocks for dq,
 * once with keys in blocks for dk and dv, where a block walks all query heads that share its key
 * head. No atomic adds, one order. delta = do . o for each query is computed first, into scratch.
 *
 * A pair of chunks of one sequence (ls_attention_pair) goes the same way: queries and keys have
 * positions from q_first and k_first on, numbers in between are fp32, and the results are joined
 * with what is there, forward by log-sum-exp, backward by adding. */
#include "kernel/cuda/cuda_attention.cuh"

#include <math_constants.h>

enum { TILE = 32, ROWS = 8, WARPS = TILE / ROWS, THREADS = 32 * WARPS };

/* DJ: columns of 32 that cover a head; a row of a tile in shared memory is 4 floats longer, so that
 * lanes reading 16 bytes of their rows use different banks. */
template <int DJ> struct tile_of {
    static constexpr int D = 32 * DJ, LD = D + 4;
};

typedef struct view {
    const char *p;
    int64_t batch, time, head;
} view;

static view view_of(const ls_heads *h)
{
    view v = {(const char *)h->p, h->batch, h->time, h->head};

    return v;
}

/* Rows first .. first + 32 of a head into shared memory; rows and columns outside are zero. */
template <int DJ, typename T>
__device__ void fetch(float *tile, const view &v, int64_t b, int64_t h, int64_t first, int64_t end,
                      int64_t D)
{
    const T *base = (const T *)v.p + b * v.batch + h * v.head;

    for (int i = threadIdx.x; i < TILE * tile_of<DJ>::D; i += THREADS) {
        int r = i / tile_of<DJ>::D, d = i % tile_of<DJ>::D;
        bool inside = first + r < end && d < D;
        tile[r * tile_of<DJ>::LD + d] = inside ? ls_get(base[(first + r) * v.time + d]) : 0.0f;
    }
}

/* out[r] = row (8 warp + r) of x times row lane of y. */
template <int DJ>
__device__ inline void products(const float *x, const float *y, float (&out)[ROWS])
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float *mine = y + lane * tile_of<DJ>::LD, *rows = x + warp * ROWS * tile_of<DJ>::LD;

#pragma unroll
    for (int r = 0; r < ROWS; r++)
        out[r] = 0;
#pragma unroll 4
    for (int d = 0; d < tile_of<DJ>::D; d += 4) {
        float4 k = *reinterpret_cast<const float4 *>(mine + d);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float4 q = *reinterpret_cast<const float4 *>(rows + r * tile_of<DJ>::LD + d);
            out[r] = fmaf(q.x, k.x, fmaf(q.y, k.y, fmaf(q.z, k.z, fmaf(q.w, k.w, out[r]))));
        }
    }
}

/* acc[r][j] += sum over lanes s of weight[r] of lane s times column (lane + 32 j) of row s of y. */
template <int DJ>
__device__ inline void add_rows(const float (&weight)[ROWS], const float *y, float (&acc)[ROWS][DJ])
{
    int lane = threadIdx.x % 32;

    for (int s = 0; s < TILE; s++) {
        float v[DJ];
#pragma unroll
        for (int j = 0; j < DJ; j++)
            v[j] = y[s * tile_of<DJ>::LD + lane + 32 * j];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float p = __shfl_sync(0xffffffffu, weight[r], s);
#pragma unroll
            for (int j = 0; j < DJ; j++)
                acc[r][j] = fmaf(p, v[j], acc[r][j]);
        }
    }
}

/* T queries, which stand at q_first and behind it, and `keys` keys from k_first on. */
typedef struct seen {
    const int32_t *start;
    int64_t T, keys, window, q_first, k_first;
    int64_t row;     /* from head to head of lse, from sequence to sequence of start */
    bool pair, join; /* see ls_attention_pair */
    float scale;
    ls_drop drop;
} seen;

/* The first key that query t of sequence b sees, by its number; the last is last_seen(). */
__device__ inline int64_t first_seen(const seen &a, int64_t b, int64_t t)
{
    int64_t first = a.window > 0 ? a.q_first + t - a.window + 1 : 0;

    if (a.start)
        first = max(first, (int64_t)a.start[b * a.row + t]);
    return max((int64_t)0, first - a.k_first);
}

__device__ inline int64_t last_seen(const seen &a, int64_t t)
{
    return min(a.keys - 1, a.q_first + t - a.k_first);
}

/* What the weight of query t and key s is multiplied by. */
__device__ inline float drop_factor(const seen &a, int64_t b, int64_t h, int64_t t, int64_t s)
{
    const ls_drop &d = a.drop;

    if (d.p <= 0)
        return 1.0f;
    t += a.q_first;
    s += a.k_first;
    ls_rng_key key = {{d.state->key[0], d.state->key[1]}};
    ls_rng_block block =
        ls_rng_philox(key, (uint32_t)(s / 4), (uint32_t)t, d.state->first_seq + (uint32_t)b,
                      d.site << 16 | (d.first_head + (uint32_t)h + 1));
    int at = (int)(s % 4);
    uint32_t word = at == 0 ? block.v[0] : at == 1 ? block.v[1] : at == 2 ? block.v[2] : block.v[3];
    return ls_rng_uniform(word) >= d.p ? d.scale : 0.0f;
}

/* The smallest first_seen() of queries t .. t + 32: where a block begins. Every warp finds it. */
__device__ inline int64_t block_first(const seen &a, int64_t b, int64_t t)
{
    int64_t at = t + threadIdx.x % 32;
    int first = at < a.T ? (int)first_seen(a, b, at) : INT32_MAX;

    return (int64_t)__reduce_min_sync(0xffffffffu, first);
}

/* --- forward -------------------------------------------------------------------------------- */

typedef struct fwd_args {
    view q, k, v, o;
    float *lse;
    int64_t H, group, D;
    seen see;
} fwd_args;

/* The logarithm of a sum over nothing. */
#define LOWEST (-2e38f)

/* The result of a query of a pair, there or joined with what is; all lanes of its warp. */
template <int DJ>
__device__ inline void settle(const fwd_args &a, float *o, float *lse, const float (&acc)[DJ],
                              float most, float sum)
{
    int lane = threadIdx.x % 32;
    float now = sum > 0 ? most + logf(sum) : LOWEST, old = a.see.join ? *lse : -CUDART_INF_F;
    float top = fmaxf(old, now), x = expf(old - top), y = expf(now - top);
    float keep = x / (x + y), add = sum > 0 ? y / (x + y) / sum : 0.0f;

#pragma unroll
    for (int j = 0; j < DJ; j++)
        if (lane + 32 * j < a.D) {
            float there = a.see.join ? o[lane + 32 * j] * keep : 0.0f;
            o[lane + 32 * j] = fmaf(acc[j], add, there);
        }
    __syncwarp(); /* all have read it */
    if (lane == 0)
        *lse = top + logf(x + y);
}

template <int DJ, typename T> __global__ void __launch_bounds__(THREADS) fwd_kernel(fwd_args a)
{
    extern __shared__ float shared[];
    constexpr int SIZE = TILE * tile_of<DJ>::LD;
    float *q = shared, *k = shared + SIZE, *v = shared + 2 * SIZE;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t b = blockIdx.z, h = blockIdx.y, tokens = a.see.T, from = (int64_t)blockIdx.x * TILE;
    int64_t keys = last_seen(a.see, min(tokens, from + TILE) - 1) + 1, t0 = from + warp * ROWS;
    float acc[ROWS][DJ], most[ROWS], sum[ROWS], p[ROWS];

#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        most[r] = -CUDART_INF_F;
        sum[r] = 0;
#pragma unroll
        for (int j = 0; j < DJ; j++)
            acc[r][j] = 0;
    }
    fetch<DJ, T>(q, a.q, b, h, from, tokens, a.D);
    int64_t s0 = block_first(a.see, b, from) / TILE * TILE;
    for (; s0 < keys; s0 += TILE) {
        __syncthreads();
        fetch<DJ, T>(k, a.k, b, h / a.group, s0, keys, a.D);
        fetch<DJ, T>(v, a.v, b, h / a.group, s0, keys, a.D);
        __syncthreads();
        products<DJ>(q, k, p);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            int64_t t = t0 + r, s = s0 + lane;
            bool sees = t < tokens && s <= last_seen(a.see, t) && s >= first_seen(a.see, b, t);
            float x = sees ? p[r] * a.see.scale : -CUDART_INF_F;
            float top = fmaxf(most[r], ls_warp_max(x));
            float e = sees ? expf(x - top) : 0.0f;
            float keep = top == most[r] ? 1.0f : expf(most[r] - top); /* exp(-inf) is 0 */
            sum[r] = sum[r] * keep + ls_warp_sum(e);
            most[r] = top;
#pragma unroll
            for (int j = 0; j < DJ; j++)
                acc[r][j] *= keep;
            p[r] = sees ? e * drop_factor(a.see, b, h, t, s) : 0.0f;
        }
        add_rows<DJ>(p, v, acc);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int64_t t = t0 + r;
        if (t >= tokens)
            break;
        int64_t at = b * a.o.batch + t * a.o.time + h * a.o.head;
        float *lse = a.lse ? a.lse + (b * a.H + h) * a.see.row + t : NULL;
        if (a.see.pair) {
            settle<DJ>(a, (float *)const_cast<char *>(a.o.p) + at, lse, acc[r], most[r], sum[r]);
            continue;
        }
        T *o = (T *)const_cast<char *>(a.o.p) + at;
#pragma unroll
        for (int j = 0; j < DJ; j++)
            if (lane + 32 * j < a.D)
                o[lane + 32 * j] = ls_put<T>(acc[r][j] / sum[r]);
        if (lane == 0 && lse)
            *lse = most[r] + logf(sum[r]);
    }
}

/* --- backward ------------------------------------------------------------------------------- */

typedef struct bwd_args {
    view q, k, v, o, dout, dq, dk, dv;
    const float *lse;
    float *delta; /* [B, H, T] */
    int64_t H, group, D;
    seen see;
} bwd_args;

/* A gradient to its place; of a pair it is fp32, and added to what is there. */
template <int DJ, typename T>
__device__ inline void give(const bwd_args &a, const view &to, int64_t at, const float (&x)[DJ])
{
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int j = 0; j < DJ; j++) {
        int64_t d = lane + 32 * j;
        if (d >= a.D)
            break;
        if (a.see.pair)
            ((float *)const_cast<char *>(to.p))[at + d] += x[j];
        else
            ((T *)const_cast<char *>(to.p))[at + d] = ls_put<T>(x[j]);
    }
}

/* A warp for each query. */
template <typename T> __global__ void delta_kernel(bwd_args a, int64_t rows)
{
    int64_t row = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t t = row % a.see.T, h = row / a.see.T % a.H, b = row / a.see.T / a.H;
    float sum = 0;

    if (row >= rows)
        return;
    const T *o = (const T *)a.o.p + b * a.o.batch + t * a.o.time + h * a.o.head;
    const T *d = (const T *)a.dout.p + b * a.dout.batch + t * a.dout.time + h * a.dout.head;
    for (int64_t i = lane; i < a.D; i += 32)
        sum = fmaf(ls_get(o[i]), ls_get(d[i]), sum);
    sum = ls_warp_sum(sum);
    if (lane == 0)
        a.delta[row] = sum;
}

template <int DJ, typename T> __global__ void __launch_bounds__(THREADS) dq_kernel(bwd_args a)
{
    extern __shared__ float shared[];
    constexpr int SIZE = TILE * tile_of<DJ>::LD;
    float *q = shared, *d = q + SIZE, *k = d + SIZE, *v = k + SIZE;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t b = blockIdx.z, h = blockIdx.y, tokens = a.see.T, from = (int64_t)blockIdx.x * TILE;
    int64_t keys = last_seen(a.see, min(tokens, from + TILE) - 1) + 1, t0 = from + warp * ROWS;
    const float *lse = a.lse + (b * a.H + h) * a.see.row, *delta = a.delta + (b * a.H + h) * tokens;
    float acc[ROWS][DJ], p[ROWS], dp[ROWS];

#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int j = 0; j < DJ; j++)
            acc[r][j] = 0;
    fetch<DJ, T>(q, a.q, b, h, from, tokens, a.D);
    fetch<DJ, T>(d, a.dout, b, h, from, tokens, a.D);
    int64_t s0 = block_first(a.see, b, from) / TILE * TILE;
    for (; s0 < keys; s0 += TILE) {
        __syncthreads();
        fetch<DJ, T>(k, a.k, b, h / a.group, s0, keys, a.D);
        fetch<DJ, T>(v, a.v, b, h / a.group, s0, keys, a.D);
        __syncthreads();
        products<DJ>(q, k, p);
        products<DJ>(d, v, dp);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            int64_t t = t0 + r, s = s0 + lane;
            bool sees = t < tokens && s <= last_seen(a.see, t) && s >= first_seen(a.see, b, t);
            float w = sees ? expf(p[r] * a.see.scale - lse[t]) : 0.0f;
            float m = sees ? drop_factor(a.see, b, h, t, s) : 0.0f;
            p[r] = sees ? w * (m * dp[r] - delta[t]) * a.see.scale : 0.0f;
        }
        add_rows<DJ>(p, k, acc);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (t0 + r >= tokens)
            break;
        give<DJ, T>(a, a.dq, b * a.dq.batch + (t0 + r) * a.dq.time + h * a.dq.head, acc[r]);
    }
}

/* Here a warp owns 8 keys, and a lane is a query. */
template <int DJ, typename T> __global__ void __launch_bounds__(THREADS) dkv_kernel(bwd_args a)
{
    extern __shared__ float shared[];
    constexpr int SIZE = TILE * tile_of<DJ>::LD;
    float *q = shared, *d = q + SIZE, *k = d + SIZE, *v = k + SIZE;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t b = blockIdx.z, hkv = blockIdx.y, tokens = a.see.T;
    int64_t from = (int64_t)blockIdx.x * TILE, s0 = from + warp * ROWS;
    int64_t before = a.see.q_first - a.see.k_first; /* keys before the first query */
    int64_t begin = max((int64_t)0, from - before) / TILE * TILE;
    int64_t last = a.see.window > 0 ? min(tokens, from + TILE + a.see.window - 1 - before) : tokens;
    float dk[ROWS][DJ], dv[ROWS][DJ], p[ROWS], dp[ROWS];

#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int j = 0; j < DJ; j++)
            dk[r][j] = dv[r][j] = 0;
    fetch<DJ, T>(k, a.k, b, hkv, from, tokens, a.D);
    fetch<DJ, T>(v, a.v, b, hkv, from, tokens, a.D);
    for (int64_t h = hkv * a.group; h < (hkv + 1) * a.group; h++)
        for (int64_t q0 = begin; q0 < last; q0 += TILE) {
            int64_t t = q0 + lane, head = b * a.H + h;
            float lse = t < tokens ? a.lse[head * a.see.row + t] : 0.0f;
            float delta = t < tokens ? a.delta[head * tokens + t] : 0.0f;
            int64_t first = t < tokens ? first_seen(a.see, b, t) : 0;
            __syncthreads();
            fetch<DJ, T>(q, a.q, b, h, q0, tokens, a.D);
            fetch<DJ, T>(d, a.dout, b, h, q0, tokens, a.D);
            __syncthreads();
            products<DJ>(k, q, p);
            products<DJ>(v, d, dp);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                int64_t s = s0 + r;
                bool sees = t < tokens && s <= last_seen(a.see, t) && s >= first;
                float w = sees ? expf(p[r] * a.see.scale - lse) : 0.0f;
                float m = sees ? drop_factor(a.see, b, h, t, s) : 0.0f;
                p[r] = w * m;
                dp[r] = sees ? w * (m * dp[r] - delta) * a.see.scale : 0.0f;
            }
            add_rows<DJ>(p, d, dv);
            add_rows<DJ>(dp, q, dk);
        }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (s0 + r >= tokens)
            break;
        give<DJ, T>(a, a.dk, b * a.dk.batch + (s0 + r) * a.dk.time + hkv * a.dk.head, dk[r]);
        give<DJ, T>(a, a.dv, b * a.dv.batch + (s0 + r) * a.dv.time + hkv * a.dv.head, dv[r]);
    }
}

/* --- the rows ------------------------------------------------------------------------------- */

template <int DJ> static size_t shared_for(int tiles)
{
    return (size_t)(tiles * TILE * tile_of<DJ>::LD) * sizeof(float);
}

template <typename K> static ls_status allow(K kernel, size_t bytes)
{
    return ls_cuda_ok(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
        "ask for shared memory");
}

template <int DJ, typename T>
static ls_status own_fwd(ls_cuda_stream *s, const ls_attention_fwd *a, const fwd_args *k)
{
    dim3 grid((unsigned)((a->T + TILE - 1) / TILE), (unsigned)a->H, (unsigned)a->B);
    ls_status st = allow(fwd_kernel<DJ, T>, shared_for<DJ>(3));

    if (st == LS_OK)
        fwd_kernel<DJ, T><<<grid, THREADS, shared_for<DJ>(3), s->stream>>>(*k);
    return st;
}

template <int DJ, typename T>
static ls_status own_bwd(ls_cuda_stream *s, const ls_attention_bwd *a, const bwd_args *k)
{
    unsigned tiles = (unsigned)((a->T + TILE - 1) / TILE);
    int64_t rows = a->B * a->H * a->T;
    ls_status st = allow(dq_kernel<DJ, T>, shared_for<DJ>(4));

    if (st == LS_OK)
        st = allow(dkv_kernel<DJ, T>, shared_for<DJ>(4));
    if (st != LS_OK)
        return st;
    delta_kernel<T>
        <<<(unsigned)((rows + THREADS / 32 - 1) / (THREADS / 32)), THREADS, 0, s->stream>>>(*k,
                                                                                            rows);
    dq_kernel<DJ, T>
        <<<dim3(tiles, (unsigned)a->H, (unsigned)a->B), THREADS, shared_for<DJ>(4), s->stream>>>(
            *k);
    dkv_kernel<DJ, T>
        <<<dim3(tiles, (unsigned)a->Hkv, (unsigned)a->B), THREADS, shared_for<DJ>(4), s->stream>>>(
            *k);
    return LS_OK;
}

/* f of the number of columns of 32 that cover a head: of up to 32, 64, 96, 128 or 256. */
template <typename F> static ls_status by_size(int64_t D, F f)
{
    switch ((D + 31) / 32) {
    case 1:
        return f(std::integral_constant<int, 1>());
    case 2:
        return f(std::integral_constant<int, 2>());
    case 3:
        return f(std::integral_constant<int, 3>());
    case 4:
        return f(std::integral_constant<int, 4>());
    default:
        return f(std::integral_constant<int, 8>());
    }
}

static ls_status check(ls_row row, ls_dtype type, int64_t B, int64_t H, int64_t D)
{
    if (D > 256)
        return ls_fail(LS_EUSAGE, "attention on a GPU: a head of %lld is larger than 256",
                       (long long)D);
    if (B > 65535 || H > 65535)
        return ls_fail(LS_EUSAGE, "attention on a GPU: %lld sequences of %lld heads are too many",
                       (long long)B, (long long)H);
    return ls_cuda_check_type(row, type);
}

/* Which keys a query sees: all from the first on, or those of a pair. */
static seen seen_of(const ls_attention_pair *pair, const int32_t *start, int64_t T, int64_t past,
                    int64_t window, float scale, const ls_dropout *drop)
{
    bool on = pair->on;
    seen see = {start,
                T,
                past + T,
                window,
                on ? pair->q_first : past,
                on ? pair->k_first : 0,
                on ? pair->row : T,
                on,
                on && pair->join,
                scale,
                ls_drop_of(*drop)};

    return see;
}

int64_t ls_cuda_attention_scratch(const ls_attention_bwd *a)
{
    int64_t delta = ls_round_up(a->B * a->H * a->T * (int64_t)sizeof(float), 256);

    return ls_max_i64(delta, ls_cudnn_attention_scratch(a));
}

void ls_cuda_attention_fwd(ls_stream *stream, const ls_attention_fwd *a)
{
    ls_cuda_row row(stream, LS_ROW_ATTENTION_FWD);
    bool done = false;

    if (!row.on || !row.ok(check(LS_ROW_ATTENTION_FWD, a->type, a->B, a->H, a->D)) ||
        a->B * a->T == 0)
        return;
    if (!a->pair.on && (!row.ok(ls_cudnn_attention_fwd(row.s, a, &done)) || done))
        return;
    fwd_args k = {view_of(&a->q),
                  view_of(&a->k),
                  view_of(&a->v),
                  view_of(&a->o),
                  a->lse,
                  a->H,
                  a->H / a->Hkv,
                  a->D,
                  seen_of(&a->pair, a->start, a->T, a->past, a->window, a->scale, &a->drop)};
    row.ok(ls_cuda_typed(a->type, [&](auto t) {
        return by_size(a->D, [&](auto dj) { return own_fwd<dj.value, decltype(t)>(row.s, a, &k); });
    }));
}

void ls_cuda_attention_bwd(ls_stream *stream, const ls_attention_bwd *a)
{
    ls_cuda_row row(stream, LS_ROW_ATTENTION_BWD);
    bool done = false;

    if (!row.on || !row.ok(check(LS_ROW_ATTENTION_BWD, a->type, a->B, a->H, a->D)) ||
        a->B * a->T == 0)
        return;
    if (!a->pair.on && (!row.ok(ls_cudnn_attention_bwd(row.s, a, &done)) || done))
        return;
    bwd_args k = {view_of(&a->q),
                  view_of(&a->k),
                  view_of(&a->v),
                  view_of(&a->o),
                  view_of(&a->dout),
                  view_of(&a->dq),
                  view_of(&a->dk),
                  view_of(&a->dv),
                  a->lse,
                  (float *)a->scratch,
                  a->H,
                  a->H / a->Hkv,
                  a->D,
                  seen_of(&a->pair, a->start, a->T, 0, a->window, a->scale, &a->drop)};
    row.ok(ls_cuda_typed(a->type, [&](auto t) {
        return by_size(a->D, [&](auto dj) { return own_bwd<dj.value, decltype(t)>(row.s, a, &k); });
    }));
}
