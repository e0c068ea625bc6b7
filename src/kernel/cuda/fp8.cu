/* fp8.cu -- see fp8.cuh.
 *
 * The tensor cores of fp8 sum along memory in both operands, so that a linear layer needs
 *     y  = x W      x as rows,            W as [N, K]
 *     dx = dy W^T   dy as rows,           W as [K, N]
 *     dW = x^T dy   x and dy as columns   (the sum runs over tokens)
 * dy is read once for both of its uses; W is rounded in every call, which is little beside the
 * product. Scratch of a row, in this order (the largest of the three counts):
 *     cells | dy rows | dy columns | x columns       linear_bwd_w
 *     cells | dy rows | W                            linear_bwd_x
 *     cells | x rows  | W                            linear_fwd
 *
 * Rounding turns tiles of 128 x 128 in shared memory: a thread reads 8 columns of 4 rows, packs the
 * 4 rows of a column into a word, and writes words where (by an exclusive or with the column) no
 * two threads of a warp meet in a bank, neither writing nor reading. */
#include "kernel/cuda/fp8.cuh"

#include <cfloat>
#include <cuda_fp8.h>

enum { TILE = 128, WORDS = TILE / 4, THREADS = 256, CELLS = 256 /* bytes */ };

/* Cells of a row's scratch; cuBLASLt wants 16 bytes between scales. */
enum { W_MAX = 0, X_SCALE = 16, W_SCALE = 32, DY_SCALE = 48 };

/* --- largest magnitudes ----------------------------------------------------------------------- */

__global__ void __launch_bounds__(THREADS) max_kernel(const ls_bf16 *x, int64_t vectors, float *max)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    uint32_t most = 0;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < vectors; i += step) {
        float v[8];
        ls_load_run<8>(x + i * 8, v);
#pragma unroll
        for (int k = 0; k < 8; k++)
            most = ls_larger(most, v[k]);
    }
    ls_put_max(max, most);
}

/* The largest magnitude of n elements into a cell that holds 0; NaN counts as the largest of all.
 * n is a multiple of 8. */
static void find_max(ls_cuda_stream *s, const ls_bf16 *x, int64_t n, float *max)
{
    max_kernel<<<ls_cuda_grid(s, n / 8, THREADS), THREADS, 0, s->stream>>>(x, n / 8, max);
}

/* --- rounding ------------------------------------------------------------------------------- */

/* Where a rounded tensor goes: rows [R, C] as it lies, columns [C, R] transposed; either may be
 * NULL. scale: what its elements are to be multiplied by. */
typedef struct rounded {
    uint8_t *rows, *columns;
    float *scale;
} rounded;

/* 8 elements times factor, as bytes. */
__device__ inline uint2 bytes_of(const ls_bf16 *x, float factor, __nv_fp8_interpretation_t type)
{
    float v[8];
    uint32_t pair[4];

    ls_load_run<8>(x, v);
#pragma unroll
    for (int k = 0; k < 4; k++)
        pair[k] = __nv_cvt_float2_to_fp8x2(make_float2(v[2 * k] * factor, v[2 * k + 1] * factor),
                                           __NV_SATFINITE, type);
    return make_uint2(pair[0] | pair[1] << 16, pair[2] | pair[3] << 16);
}

/* Bytes i of four words as word i. */
__device__ inline void turn(uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t *out)
{
    uint32_t ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
    out[0] = __byte_perm(ab, cd, 0x5410);
    out[1] = __byte_perm(ab, cd, 0x7632);
    ab = __byte_perm(a, b, 0x7362);
    cd = __byte_perm(c, d, 0x7362);
    out[2] = __byte_perm(ab, cd, 0x5410);
    out[3] = __byte_perm(ab, cd, 0x7632);
}

template <__nv_fp8_interpretation_t TYPE, bool ROWS, bool COLUMNS>
__global__ void __launch_bounds__(THREADS)
    round_kernel(const ls_bf16 *x, int64_t R, int64_t C, const float *max, rounded to)
{
    __shared__ uint32_t tile[COLUMNS ? TILE * WORDS : 1]; /* [column][four rows] */
    const float top = TYPE == __NV_E4M3 ? 448.0f : 57344.0f;
    int64_t r0 = (int64_t)blockIdx.y * TILE, c0 = (int64_t)blockIdx.x * TILE;
    int group = threadIdx.x % 16, quad = threadIdx.x / 16; /* of 8 columns, of 4 rows */
    float largest = *max, factor = largest > 0 ? fminf(top / largest, FLT_MAX) : 1.0f;

    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
        *to.scale = 1.0f / factor;
#pragma unroll
    for (int half = 0; half < 2; half++, quad += 16) {
        int64_t r = r0 + quad * 4, c = c0 + group * 8;
        bool inside = r < R && c < C;
        uint2 four[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            four[i] = inside ? bytes_of(x + (r + i) * C + c, factor, TYPE) : make_uint2(0, 0);
        if (ROWS && inside)
#pragma unroll
            for (int i = 0; i < 4; i++)
                *reinterpret_cast<uint2 *>(to.rows + (r + i) * C + c) = four[i];
        if (COLUMNS) {
            uint32_t words[8];
            turn(four[0].x, four[1].x, four[2].x, four[3].x, words);
            turn(four[0].y, four[1].y, four[2].y, four[3].y, words + 4);
#pragma unroll
            for (int k = 0; k < 8; k++)
                tile[(group * 8 + k) * WORDS + (quad ^ 2 * group)] = words[k];
        }
    }
    if (!COLUMNS)
        return;
    __syncthreads();
    int lane = threadIdx.x % 32;
    for (int k = threadIdx.x / 32; k < TILE; k += THREADS / 32) {
        int64_t r = r0 + lane * 4;
        if (c0 + k < C && r < R)
            *reinterpret_cast<uint32_t *>(to.columns + (c0 + k) * R + r) =
                tile[k * WORDS + (lane ^ 2 * (k / 8))];
    }
}

template <__nv_fp8_interpretation_t TYPE>
static void round_as(ls_cuda_stream *s, const ls_bf16 *x, int64_t R, int64_t C, const float *max,
                     rounded to)
{
    dim3 grid((unsigned)((C + TILE - 1) / TILE), (unsigned)((R + TILE - 1) / TILE));

    if (to.rows && to.columns)
        round_kernel<TYPE, true, true><<<grid, THREADS, 0, s->stream>>>(x, R, C, max, to);
    else if (to.rows)
        round_kernel<TYPE, true, false><<<grid, THREADS, 0, s->stream>>>(x, R, C, max, to);
    else
        round_kernel<TYPE, false, true><<<grid, THREADS, 0, s->stream>>>(x, R, C, max, to);
}

/* Round x [R, C] (R a multiple of 4, C of 8) so that *max becomes the largest number of the type.
 * What is not finite makes everything of its tensor that is multiplied with it not a number. */
static void round_to(ls_cuda_stream *s, const ls_bf16 *x, int64_t R, int64_t C, ls_dtype type,
                     const float *max, rounded to)
{
    if (type == LS_E4M3)
        round_as<__NV_E4M3>(s, x, R, C, max, to);
    else
        round_as<__NV_E5M2>(s, x, R, C, max, to);
}

/* --- linear layers -------------------------------------------------------------------------- */

int64_t ls_cuda_linear_scratch(int64_t M, int64_t N, int64_t K)
{
    return CELLS + ls_max_i64(2 * M * N + M * K, ls_max_i64(M * N, M * K) + N * K);
}

static float *cells_of(const ls_fp8 *fp8)
{
    return (float *)fp8->scratch;
}

static uint8_t *behind_cells(const ls_fp8 *fp8)
{
    return (uint8_t *)fp8->scratch + CELLS;
}

/* W as A of a product: [N, K] for y, [K, N] for dx. */
static ls_status round_w(ls_cuda_stream *s, const ls_fp8 *fp8, const void *w, ls_layout layout,
                         int64_t N, int64_t K, bool for_y, uint8_t *to, ls_product *p)
{
    float *cells = cells_of(fp8);
    bool nk = layout == LS_LAYOUT_NK, as_it_lies = nk == for_y;
    rounded out = {as_it_lies ? to : NULL, as_it_lies ? NULL : to, cells + W_SCALE};
    ls_status st = ls_cuda_ok(cudaMemsetAsync(cells + W_MAX, 0, sizeof(float), s->stream),
                              "prepare a product of fp8");

    if (st != LS_OK)
        return st;
    find_max(s, (const ls_bf16 *)w, N * K, cells + W_MAX);
    round_to(s, (const ls_bf16 *)w, nk ? N : K, nk ? K : N, LS_E4M3, cells + W_MAX, out);
    p->a_type = LS_E4M3;
    p->a = to;
    p->transpose_a = true;
    p->lda = for_y ? K : N;
    p->a_scale = out.scale;
    return LS_OK;
}

ls_status ls_fp8_linear_fwd(ls_cuda_stream *s, const ls_linear_fwd *a, ls_product *p)
{
    uint8_t *x = behind_cells(&a->fp8);
    float *scale = cells_of(&a->fp8) + X_SCALE;

    if (!a->fp8.x_known)
        find_max(s, (const ls_bf16 *)a->x, a->M * a->K, a->fp8.x_max);
    round_to(s, (const ls_bf16 *)a->x, a->M, a->K, LS_E4M3, a->fp8.x_max, {x, NULL, scale});
    p->b_type = LS_E4M3;
    p->b = x;
    p->b_scale = scale;
    return round_w(s, &a->fp8, a->w, a->layout, a->N, a->K, true, x + a->M * a->K, p);
}

/* dy in both of its layouts, where linear_bwd_w leaves it; rows only where that has not run. */
static void round_dy(ls_cuda_stream *s, const ls_fp8 *fp8, const void *dy, int64_t M, int64_t N,
                     bool columns)
{
    uint8_t *rows = behind_cells(fp8);

    if (!fp8->dy_known)
        find_max(s, (const ls_bf16 *)dy, M * N, fp8->dy_max);
    round_to(s, (const ls_bf16 *)dy, M, N, LS_E5M2, fp8->dy_max,
             {rows, columns ? rows + M * N : NULL, cells_of(fp8) + DY_SCALE});
}

ls_status ls_fp8_linear_bwd_x(ls_cuda_stream *s, const ls_linear_bwd_x *a, ls_product *p)
{
    uint8_t *dy = behind_cells(&a->fp8);

    if (!a->fp8.dy_kept)
        round_dy(s, &a->fp8, a->dy, a->M, a->N, false);
    p->b_type = LS_E5M2;
    p->b = dy;
    p->b_scale = cells_of(&a->fp8) + DY_SCALE;
    return round_w(s, &a->fp8, a->w, a->layout, a->N, a->K, false, dy + a->M * a->N, p);
}

ls_status ls_fp8_linear_bwd_w(ls_cuda_stream *s, const ls_linear_bwd_w *a, ls_product *p)
{
    uint8_t *dy = behind_cells(&a->fp8) + a->M * a->N, *x = dy + a->M * a->N;
    float *cells = cells_of(&a->fp8);
    bool kn = a->layout == LS_LAYOUT_KN;

    round_dy(s, &a->fp8, a->dy, a->M, a->N, true);
    round_to(s, (const ls_bf16 *)a->x, a->M, a->K, LS_E4M3, a->fp8.x_max,
             {NULL, x, cells + X_SCALE});
    p->a_type = kn ? LS_E5M2 : LS_E4M3;
    p->a = kn ? dy : x;
    p->a_scale = cells + (kn ? DY_SCALE : X_SCALE);
    p->b_type = kn ? LS_E4M3 : LS_E5M2;
    p->b = kn ? x : dy;
    p->b_scale = cells + (kn ? X_SCALE : DY_SCALE);
    p->transpose_a = true;
    p->transpose_b = false;
    p->lda = p->ldb = a->M;
    return LS_OK;
}
