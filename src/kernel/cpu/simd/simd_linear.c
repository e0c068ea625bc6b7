/* simd_linear.c -- the three products of a linear layer; bias, activation and its gradient are applied
 * to each tile as it is finished.
 *
 *   forward   y[M, N]  = x[M, K]  W[K, N]       then + b, + add, keep z, activate
 *   bwd_x     dx[M, K] = dy[M, N] W^T[N, K]     then * act'(z), or added to dx
 *   bwd_w     dw[K, N] = x^T dy, or dw[N, K] = dy^T x: the weight's own layout, so that nothing is
 *             ever transposed on the way out; db is summed while dy is packed
 *
 * The layouts of W differ only in two strides, which packing evens out; so does the distance
 * between rows of dy. */
#include "kernel/cpu/rows_shared.h"
#include "kernel/cpu/simd/act.h"
#include "kernel/cpu/simd/gemm.h"

enum { MR = LS_GEMM_MR, NR = LS_GEMM_NR };

/* act and type are constants: one loop each. Down the columns, so that the bias is loaded once. */
LS_INLINE void finish_fwd_tile(const ls_gemm *g, const ls_act act, const ls_dtype type,
                               const float *tile, int64_t m, int64_t n, int64_t rows, int64_t cols)
{
    const ls_linear_fwd *a = g->args;

    for (int64_t j = 0; j < cols; j += LS_LANES) {
        int64_t at = m * g->ld + n + j, left = cols - j; /* z and add have rows of N, as y then */
        ls_v16 bias = a->b ? v_load_most_as(type, a->b, n + j, left) : v_set(0);
        for (int64_t i = 0; i < rows; i++, at += g->ld) {
            ls_v16 v = v_load(tile + i * NR + j);
            if (a->b)
                v = v_add(v, bias);
            if (a->add)
                v = v_add(v_load_most_as(type, a->add, at, left), v);
            if (a->z)
                v_store_most_as(type, a->z, at, left, v);
            v_store_most_as(type, a->y, at, left, act_value(act, v));
        }
    }
}

/* Whole tiles, nearly all of them, get loops of fixed length. */
LS_INLINE void finish_fwd_size(const ls_gemm *g, const ls_act act, const ls_dtype type,
                               const float *tile, int64_t m, int64_t n, int64_t rows, int64_t cols)
{
    if (rows == MR && cols == NR)
        finish_fwd_tile(g, act, type, tile, m, n, MR, NR);
    else
        finish_fwd_tile(g, act, type, tile, m, n, rows, cols);
}

LS_INLINE void finish_fwd_type(const ls_gemm *g, const ls_dtype type, const float *tile, int64_t m,
                               int64_t n, int64_t rows, int64_t cols)
{
    const ls_linear_fwd *a = g->args;

    switch (a->act) {
    case LS_ACT_NONE:
        finish_fwd_size(g, LS_ACT_NONE, type, tile, m, n, rows, cols);
        break;
    case LS_ACT_GELU:
        finish_fwd_size(g, LS_ACT_GELU, type, tile, m, n, rows, cols);
        break;
    case LS_ACT_SILU:
        finish_fwd_size(g, LS_ACT_SILU, type, tile, m, n, rows, cols);
        break;
    }
}

static void finish_fwd(const ls_gemm *g, const float *tile, int64_t m, int64_t n, int64_t rows,
                       int64_t cols)
{
    if (g->out_type == LS_BF16)
        finish_fwd_type(g, LS_BF16, tile, m, n, rows, cols);
    else
        finish_fwd_type(g, LS_F32, tile, m, n, rows, cols);
}

/* The weight as the right side of the product, forward: [K, N]. */
static void weight_fwd(ls_gemm *g, ls_dtype type, const void *w, int64_t K, int64_t N,
                       ls_layout layout)
{
    g->b_type = type;
    g->b = w;
    g->b_k = layout == LS_LAYOUT_KN ? N : 1;
    g->b_n = layout == LS_LAYOUT_KN ? 1 : K;
    g->N = N;
    g->K = K;
}

/* Backward the roles of N and K are exchanged: the product sums over outputs. */
static void weight_bwd(ls_gemm *g, ls_dtype type, const void *w, int64_t K, int64_t N,
                       ls_layout layout)
{
    weight_fwd(g, type, w, N, K, layout == LS_LAYOUT_KN ? LS_LAYOUT_NK : LS_LAYOUT_KN);
}

void LS_ISA_NAME(ls_linear_fwd_row)(ls_stream *stream, const ls_linear_fwd *a)
{
    ls_gemm g = {.a_type = a->type, .a = a->x, .a_m = a->K, .a_k = 1, .leaves = 1, .args = a};

    ls_linear_fwd_check(a);
    weight_fwd(&g, a->type, a->w, a->K, a->N, a->layout);
    g.packed = a->packed;
    g.M = a->M;
    g.finish = a->accumulate ? LS_ISA_NAME(ls_gemm_store) : finish_fwd;
    g.out_type = a->type;
    g.out = a->y;
    g.aside = a->z ? a->z : a->add;
    g.ld = ls_linear_ld(a->ldy, a->N);
    g.accumulate = a->accumulate;
    LS_ISA_NAME(ls_gemm_run)(stream, &g);
}

LS_INLINE void finish_bwd_x_tile(const ls_gemm *g, const ls_act act, const ls_dtype type,
                                 const float *tile, int64_t m, int64_t n, int64_t rows,
                                 int64_t cols)
{
    const ls_linear_bwd_x *a = g->args;

    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j += LS_LANES) {
            int64_t at = (m + i) * a->K + n + j, left = cols - j;
            ls_v16 slope = act_slope(act, v_load_most_as(type, a->z, at, left));
            v_store_most_as(type, a->dx, at, left, v_mul(v_load(tile + i * NR + j), slope));
        }
}

LS_INLINE void finish_bwd_x_size(const ls_gemm *g, const ls_act act, const ls_dtype type,
                                 const float *tile, int64_t m, int64_t n, int64_t rows,
                                 int64_t cols)
{
    if (rows == MR && cols == NR)
        finish_bwd_x_tile(g, act, type, tile, m, n, MR, NR);
    else
        finish_bwd_x_tile(g, act, type, tile, m, n, rows, cols);
}

static void finish_bwd_x(const ls_gemm *g, const float *tile, int64_t m, int64_t n, int64_t rows,
                         int64_t cols)
{
    const ls_linear_bwd_x *a = g->args;

    if (a->act == LS_ACT_GELU && a->type == LS_BF16)
        finish_bwd_x_size(g, LS_ACT_GELU, LS_BF16, tile, m, n, rows, cols);
    else if (a->act == LS_ACT_GELU)
        finish_bwd_x_size(g, LS_ACT_GELU, LS_F32, tile, m, n, rows, cols);
    else if (a->type == LS_BF16)
        finish_bwd_x_size(g, LS_ACT_SILU, LS_BF16, tile, m, n, rows, cols);
    else
        finish_bwd_x_size(g, LS_ACT_SILU, LS_F32, tile, m, n, rows, cols);
}

void LS_ISA_NAME(ls_linear_bwd_x_row)(ls_stream *stream, const ls_linear_bwd_x *a)
{
    ls_gemm g = {.a_type = a->type, .a = a->dy, .a_k = 1, .leaves = 1, .args = a};

    ls_linear_bwd_x_check(a);
    weight_bwd(&g, a->type, a->w, a->K, a->N, a->layout);
    g.packed = a->packed;
    g.a_m = ls_linear_ld(a->ldy, a->N);
    g.M = a->M;
    g.finish = a->act == LS_ACT_NONE ? LS_ISA_NAME(ls_gemm_store) : finish_bwd_x;
    g.out_type = a->type;
    g.out = a->dx;
    g.aside = a->act == LS_ACT_NONE ? NULL : a->z;
    g.ld = a->K;
    g.accumulate = a->accumulate;
    LS_ISA_NAME(ls_gemm_run)(stream, &g);
}

/* The product that will read the weight, without its other side. */
static ls_gemm product_of(const ls_pack *a)
{
    ls_gemm g = {.a_type = a->use == LS_PACK_HEAD ? LS_F32 : a->type, .a_k = 1, .leaves = 1};

    if (a->use == LS_PACK_FORWARD)
        weight_fwd(&g, a->type, a->w, a->K, a->N, a->layout);
    else
        weight_bwd(&g, a->type, a->w, a->K, a->N, a->layout);
    g.M = a->M;
    return g;
}

int64_t LS_ISA_NAME(ls_pack_bytes)(const ls_pack *a)
{
    ls_gemm g = product_of(a);

    return LS_ISA_NAME(ls_gemm_reads_packed)(&g) ? LS_ISA_NAME(ls_gemm_pack_bytes)(&g) : 0;
}

void LS_ISA_NAME(ls_pack_row)(ls_stream *stream, const ls_pack *a)
{
    ls_gemm g = product_of(a);

    LS_ISA_NAME(ls_gemm_pack)(stream, &g, a->packed);
}

/* db alone, of a layer whose weight is not trained: one row or column of dw goes along, unseen. */
static void forget(const ls_gemm *g, const float *tile, int64_t m, int64_t n, int64_t rows,
                   int64_t cols)
{
    (void)g, (void)tile, (void)m, (void)n, (void)rows, (void)cols;
}

void LS_ISA_NAME(ls_linear_bwd_w_row)(ls_stream *stream, const ls_linear_bwd_w *a)
{
    bool kn = a->layout == LS_LAYOUT_KN;
    int64_t ld = ls_linear_ld(a->ldy, a->N);
    ls_gemm g = {.a_m = 1, .b_n = 1, .K = a->M, .leaves = a->leaves, .out = a->dw};

    LS_BUG_IF(a->type != LS_F32 && a->type != LS_BF16, "linear_bwd_w of type %d", (int)a->type);
    g.a_type = g.b_type = a->type;
    g.a = kn ? a->x : a->dy;
    g.b = kn ? a->dy : a->x;
    g.a_k = kn ? a->K : ld;
    g.b_k = kn ? ld : a->K;
    g.M = kn ? a->K : a->N;
    g.N = g.ld = kn ? a->N : a->K;
    g.accumulate = a->accumulate;
    g.finish = LS_ISA_NAME(ls_gemm_store);
    if (kn)
        g.b_sums = a->db;
    else
        g.a_sums = a->db;
    if (!a->dw) {
        g.finish = forget;
        *(kn ? &g.M : &g.N) = a->db ? 1 : 0;
    }
    LS_ISA_NAME(ls_gemm_run)(stream, &g);
}
