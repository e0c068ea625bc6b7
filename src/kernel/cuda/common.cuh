/* common.cuh -- what the CUDA rows share: types, 16-byte loads, sums over a block, dropout, the
 * tree over leaves, and the frame of a row.
 *
 * Numbers are loaded as `type`, computed in fp32, stored rounded to nearest. A kernel is a template
 * over the type T and the number VEC of elements in one access: 16 bytes' worth where pointers,
 * widths and strides allow it, else 1. Sums have a fixed order that depends on shapes only.
 *
 * bf16: products are in cuda_gemm.cu and cuda_linear.cu, the row `cast` in cuda_elementwise.cu, the
 * conversions of single numbers below (ls_get(), ls_put()). */
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>
#include "base/rng.h"
#include "device/cuda/native.cuh"
#include "kernel/kernel.h"

typedef __nv_bfloat16 ls_bf16;
typedef __half ls_f16;

/* --- rows ----------------------------------------------------------------------------------- */

/* The frame of a row: `s` is what is behind the stream. Nothing happens on a failed stream; what
 * went wrong while queueing is reported to it at the end. */
struct ls_cuda_row {
    ls_stream *stream;
    ls_cuda_stream *s;
    bool on;

    ls_cuda_row(ls_stream *stream_, ls_row row);
    ls_cuda_row(ls_stream *stream_, const char *name); /* work that is no row of the table */
    ~ls_cuda_row();
    /* Inside a row: what a call raised goes to the stream. */
    bool ok(ls_status st)
    {
        if (st == LS_OK)
            return true;
        ls_stream_fail(stream);
        on = false;
        return false;
    }
    cudaStream_t queue() const
    {
        return s->stream;
    }
};

const char *ls_cuda_row_name(ls_row row);
ls_status ls_cuda_fault_text(int row, uint32_t place, int32_t value);

/* Raises "linear_fwd of type f64 ..." unless the type is one that the rows know. */
ls_status ls_cuda_check_type(ls_row row, ls_dtype type);

/* Blocks that cover n items of this many each, at most a few for each multiprocessor: kernels go on
 * in steps of the grid. */
static inline unsigned ls_cuda_grid(const ls_cuda_stream *s, int64_t n, int64_t each)
{
    return (unsigned)ls_max_i64(
        1, ls_min_i64((n + each - 1) / each, (int64_t)s->device->multiprocessors * 16));
}

static inline bool ls_cuda_aligned(const void *p, int64_t bytes)
{
    return (uintptr_t)p % (uintptr_t)bytes == 0;
}

/* --- values --------------------------------------------------------------------------------- */

template <typename T> struct ls_vec_of { /* elements in 16 bytes */
    static constexpr int n = 16 / (int)sizeof(T);
};

__device__ inline float ls_get(float x)
{
    return x;
}
__device__ inline float ls_get(ls_bf16 x)
{
    return __bfloat162float(x);
}
__device__ inline float ls_get(ls_f16 x)
{
    return __half2float(x);
}
template <typename T> __device__ inline T ls_put(float x);
template <> __device__ inline float ls_put<float>(float x)
{
    return x;
}
template <> __device__ inline ls_bf16 ls_put<ls_bf16>(float x)
{
    return __float2bfloat16_rn(x);
}
template <> __device__ inline ls_f16 ls_put<ls_f16>(float x)
{
    return __float2half_rn(x);
}

/* A weight as its copy has it at `place`, rounded as the row says. */
template <typename T>
__device__ inline T ls_put_copy(float x, const ls_rounding &rounding, int64_t place)
{
    if constexpr (std::is_same<T, ls_bf16>::value)
        if (rounding.stochastic)
            return __ushort_as_bfloat16(ls_rounding_bf16(&rounding, place, __float_as_uint(x)));
    return ls_put<T>(x);
}

/* f of a zero of that type, which the rows know (ls_cuda_check_type): a template for each. */
template <typename F> static inline auto ls_cuda_typed(ls_dtype type, F f)
{
    return type == LS_F32 ? f(float()) : type == LS_BF16 ? f(ls_bf16()) : f(ls_f16());
}

/* VEC elements at p as floats; VEC * sizeof(T) is 16, or VEC is 1. */
template <int VEC, typename T> __device__ inline void ls_load_run(const T *p, float (&x)[VEC])
{
    if constexpr (VEC == 1) {
        x[0] = ls_get(*p);
    } else {
        uint4 raw = *reinterpret_cast<const uint4 *>(p);
        const T *t = reinterpret_cast<const T *>(&raw);
#pragma unroll
        for (int i = 0; i < VEC; i++)
            x[i] = ls_get(t[i]);
    }
}

/* Two values side by side, as 32 bits. */
template <typename T> __device__ inline uint32_t ls_put2(float x, float y)
{
    union {
        T pair[2];
        uint32_t bits;
    } u;

    if constexpr (std::is_same<T, ls_bf16>::value)
        *reinterpret_cast<__nv_bfloat162 *>(u.pair) = __floats2bfloat162_rn(x, y);
    else
        *reinterpret_cast<__half2 *>(u.pair) = __floats2half2_rn(x, y);
    return u.bits;
}

template <int VEC, typename T> __device__ inline void ls_store(T *p, const float (&x)[VEC])
{
    if constexpr (VEC == 1) {
        *p = ls_put<T>(x[0]);
    } else if constexpr (VEC == 8) {
        *reinterpret_cast<uint4 *>(p) = make_uint4(ls_put2<T>(x[0], x[1]), ls_put2<T>(x[2], x[3]),
                                                   ls_put2<T>(x[4], x[5]), ls_put2<T>(x[6], x[7]));
    } else {
        static_assert(VEC == 4 && sizeof(T) == 4, "16 bytes");
        *reinterpret_cast<float4 *>(p) = make_float4(x[0], x[1], x[2], x[3]);
    }
}

/* --- sums over a block ------------------------------------------------------------------------
 */

__device__ inline float ls_warp_sum(float x)
{
#pragma unroll
    for (int k = 16; k > 0; k /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, k);
    return x;
}

__device__ inline float ls_warp_max(float x)
{
#pragma unroll
    for (int k = 16; k > 0; k /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, k));
    return x;
}

/* Sum of a and of b over a block of whole warps, to all threads; part is shared, [64]. */
__device__ inline void ls_block_sum2(float &a, float &b, float *part)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = (blockDim.x + 31) / 32;

    a = ls_warp_sum(a);
    b = ls_warp_sum(b);
    __syncthreads(); /* part may still be read from the last time */
    if (lane == 0) {
        part[2 * warp] = a;
        part[2 * warp + 1] = b;
    }
    __syncthreads();
    a = lane < warps ? part[2 * lane] : 0;
    b = lane < warps ? part[2 * lane + 1] : 0;
    a = ls_warp_sum(a);
    b = ls_warp_sum(b);
}

__device__ inline float ls_block_sum(float a, float *part)
{
    float none = 0;

    ls_block_sum2(a, none, part);
    return a;
}

/* --- largest magnitudes ----------------------------------------------------------------------- */

/* Magnitudes are compared as bits, so that infinity and NaN are the largest. */
__device__ inline uint32_t ls_larger(uint32_t most, float x)
{
    return max(most, __float_as_uint(fabsf(x)));
}

/* By all threads of whole warps: the largest of theirs into a cell. */
__device__ inline void ls_put_max(float *cell, uint32_t most)
{
    most = __reduce_max_sync(0xffffffffu, most);
    if (threadIdx.x % 32 == 0 && most > *reinterpret_cast<volatile uint32_t *>(cell))
        atomicMax(reinterpret_cast<uint32_t *>(cell), most);
}

/* --- dropout -------------------------------------------------------------------------------- */

/* The position of token t of a sequence, as ls_piece_position(). */
__device__ inline int64_t ls_position(const ls_piece &piece, int64_t t)
{
    if (piece.chunk == 0)
        return t;
    return t < piece.chunk ? piece.first[0] + t : piece.first[1] + t - piece.chunk;
}

/* What VEC elements from (row, column) on are multiplied by; the rule of ls_dropout. */
struct ls_drop {
    float p, scale;
    uint32_t site, first_head;
    const ls_step_state *state;
    int64_t first_row;
    ls_piece piece;
};

static inline ls_drop ls_drop_of(const ls_dropout &d)
{
    ls_drop out = {
        d.p,    d.p > 0 ? 1.0f / (1.0f - d.p) : 1.0f, d.site, d.first_head, d.state, d.first_row,
        d.piece};

    return out;
}

/* Of the words of four columns that of the k-th; with VEC 1 that of `column` itself. */
template <int VEC> __device__ inline uint32_t ls_word(const ls_rng_block &b, int k, int64_t column)
{
    if constexpr (VEC == 1) {
        int at = (int)(column % 4);
        return at == 0 ? b.v[0] : at == 1 ? b.v[1] : at == 2 ? b.v[2] : b.v[3];
    }
    return b.v[k];
}

template <int VEC>
__device__ inline void ls_keep(const ls_drop &d, int64_t row, int64_t column, int64_t T,
                               float (&factor)[VEC])
{
    ls_rng_key key = {{d.state->key[0], d.state->key[1]}};
    int64_t number = d.first_row + row;
    uint32_t t = (uint32_t)ls_position(d.piece, number % T);
    uint32_t seq = d.state->first_seq + (uint32_t)(number / T);

#pragma unroll
    for (int i = 0; i < VEC; i += 4) {
        ls_rng_block b = ls_rng_philox(key, (uint32_t)((column + i) / 4), t, seq, d.site << 16);
#pragma unroll
        for (int k = 0; k < 4 && i + k < VEC; k++) {
            uint32_t word = ls_word<VEC>(b, k, column);
            factor[i + k] = ls_rng_uniform(word) >= d.p ? d.scale : 0.0f;
        }
    }
}

/* --- activations ---------------------------------------------------------------------------- */

/* GELU in its tanh form is x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). */
__device__ inline float ls_act_value(ls_act act, float x)
{
    if (act == LS_ACT_GELU) {
        float u2 = 1.5957691216057308f * (x + 0.044715f * x * x * x);
        float s = 1.0f / (1.0f + expf(-u2));
        return s == 0.0f ? 0.0f : x * s;
    }
    if (act == LS_ACT_SILU) {
        float s = 1.0f / (1.0f + expf(-x));
        return s == 0.0f ? 0.0f : x * s;
    }
    return x;
}

__device__ inline float ls_act_slope(ls_act act, float x)
{
    if (act == LS_ACT_GELU) {
        float u2 = 1.5957691216057308f * (x + 0.044715f * x * x * x);
        float s = 1.0f / (1.0f + expf(-u2)), rest = s * (1.0f - s);
        float slope = 1.5957691216057308f * (1.0f + 3.0f * 0.044715f * x * x);
        return rest == 0.0f ? s : s + x * rest * slope; /* rest 0 meets an infinite slope */
    }
    if (act == LS_ACT_SILU) {
        float s = 1.0f / (1.0f + expf(-x)), rest = s * (1.0f - s);
        return rest == 0.0f ? s : s + x * rest;
    }
    return 1.0f;
}

/* --- the tree over leaves ------------------------------------------------------------------- */

/* Up to three results of n columns each, any of which may be NULL. */
struct ls_tree_outs {
    float *p[3];
};

/* outs.p[i][n] (+)= tree over leaves of (sum over chunks in order of part[leaf][chunk][i][n]);
 * part's chunks are `pitch` floats apart. Queues one kernel. */
void ls_cuda_tree_finish(ls_cuda_stream *s, const float *part, int64_t leaves, int64_t chunks,
                         int64_t n, int64_t pitch, ls_tree_outs outs, bool accumulate);

/* sums over the perfect binary tree in registers: push leaf by leaf, then total. */
template <typename V> struct ls_tree {
    V level[40];
    uint64_t count;

    __device__ void push(V v)
    {
        int k = 0;
        for (; count >> k & 1; k++)
            v = level[k] + v;
        level[k] = v;
        count++;
    }
    __device__ V total() const
    {
        V sum = 0;
        bool any = false;
        for (int k = 0; k < 40; k++)
            if (count >> k & 1) {
                sum = any ? level[k] + sum : level[k];
                any = true;
            }
        return sum;
    }
};

/* Leaves first .. first + size of such a tree, size a power of two; those from n on are missing. */
__device__ inline double ls_subtree(const float *x, int64_t first, int64_t size, int64_t n)
{
    ls_tree<double> tree = {};

    for (int64_t i = first; i < min(first + size, n); i++)
        tree.push((double)x[i]);
    return tree.total();
}

/* A rejected value: the smallest place of each row is kept. */
__device__ inline void ls_fault(ls_cuda_fault *faults, ls_row row, int64_t place, int32_t value)
{
    atomicMin(&faults[row], (unsigned long long)place << 32 | (uint32_t)value);
}

__device__ inline bool ls_any_fault(const ls_cuda_fault *faults)
{
    for (int i = 0; i < LS_ROWS; i++)
        if (faults[i] != LS_CUDA_NO_FAULT)
            return true;
    return false;
}

/* --- the rows ------------------------------------------------------------------------------- */

#define LS_CUDA_ROW(upper, lower, args) void ls_cuda_##lower(ls_stream *stream, const args *a);
LS_KERNEL_ROWS(LS_CUDA_ROW)
#undef LS_CUDA_ROW

/* Bytes of scratch, by row. */
int64_t ls_cuda_qkv_scratch(const ls_qkv *a);
int64_t ls_cuda_attention_scratch(const ls_attention_bwd *a);
int64_t ls_cuda_norm_scratch(const ls_norm_bwd *a);
int64_t ls_cuda_embed_scratch(const ls_embed_bwd *a);
int64_t ls_cuda_head_scratch(const ls_head *a);

/* Inside rows: y = act(z) or dx *= act'(z) over rows of n elements, ld apart; z may be y. */
void ls_cuda_act_rows(ls_cuda_stream *s, ls_dtype type, ls_act act, bool slope, const void *z,
                      int64_t ldz, void *y, int64_t ldy, int64_t M, int64_t n);
/* out = a + b, n floats. */
void ls_cuda_add_floats(ls_cuda_stream *s, const float *a, const float *b, float *out, int64_t n);

/* Sums that the tree over leaves keeps at a time. */
static inline int64_t ls_cuda_levels(int64_t leaves)
{
    int64_t n = 1;

    while (leaves >> n)
        n++;
    return n;
}

/* out (+)= the tree over leaves of sums of n floats each; leaf(i, to) queues that of leaf i. A stack
 * of ls_cuda_levels() sums, `room` floats apart: leaf i is pushed, then the top joins the one below as
 * often as i + 1 is divisible by two; at the end all join. Its first is out itself where nothing is
 * added to. */
template <typename F>
static ls_status ls_cuda_leaf_tree(ls_cuda_stream *s, float *out, bool accumulate, float *stack,
                                   int64_t room, int64_t leaves, int64_t n, F leaf)
{
    float *sums[64];
    int top = 0;

    for (int64_t i = 0; i < ls_cuda_levels(leaves); i++)
        sums[i] = i == 0 && !accumulate ? out : stack + i * room;
    for (int64_t i = 0; i < leaves; i++) {
        ls_status st = leaf(i, sums[top]);
        if (st != LS_OK)
            return st;
        top++;
        int merges = i + 1 == leaves ? top - 1 : __builtin_ctzll((uint64_t)i + 1);
        for (; merges > 0; merges--, top--)
            ls_cuda_add_floats(s, sums[top - 2], sums[top - 1], sums[top - 2], n);
    }
    if (accumulate)
        ls_cuda_add_floats(s, out, sums[0], out, n);
    return LS_OK;
}
