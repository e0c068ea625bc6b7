/* linear.c -- the three products of a linear layer; bias, activation and its gradient are applied
 * to each tile as it is finished.
 *
 *   forward   y[M, N]  = x[M, K]  W[K, N]       then + b, keep z, activate
 *   bwd_x     dx[M, K] = dy[M, N] W^T[N, K]     then * act'(z), or added to dx
 *   bwd_w     dw[K, N] = x^T dy, or dw[N, K] = dy^T x: the weight's own layout, so that nothing is
 *             ever transposed on the way out
 *
 * The layouts of W differ only in two strides, which packing evens out; so does the distance
 * between rows of dy. */
#include "kernel/cpu/leaves.h"
#include "kernel/cpu/rows_linear.h"
#include "kernel/cpu/simd/act.h"
#include "kernel/cpu/simd/gemm.h"

enum { NR = LS_GEMM_NR };

/* Sixteen outputs of the forward product, or the first n of them. */
LS_INLINE void finish_fwd_16(const ls_linear_fwd *a, ls_act act, const float *tile, int64_t at,
                             int64_t column, int64_t n)
{
    float *y = (float *)a->y + at, *z = a->z ? (float *)a->z + at : NULL;
    ls_v16 v = v_load(tile);

    if (a->b)
        v = v_add(v, v_load_most((const float *)a->b + column, n));
    if (z)
        v_store_most(z, n, v);
    v_store_most(y, n, act_value(act, v));
}

LS_INLINE void finish_fwd_tile(const ls_gemm *g, ls_act act, const float *tile, int64_t m,
                               int64_t n, int64_t rows, int64_t cols)
{
    const ls_linear_fwd *a = g->args;

    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j += LS_LANES) {
            int64_t at = (m + i) * g->ld + n + j; /* z has rows of N, and so has y with z */
            if (cols - j >= LS_LANES)
                finish_fwd_16(a, act, tile + i * NR + j, at, n + j, LS_LANES);
            else
                finish_fwd_16(a, act, tile + i * NR + j, at, n + j, cols - j);
        }
}

static void finish_fwd(const ls_gemm *g, const float *tile, int64_t m, int64_t n, int64_t rows,
                       int64_t cols)
{
    const ls_linear_fwd *a = g->args;

    switch (a->act) {
    case LS_ACT_NONE:
        finish_fwd_tile(g, LS_ACT_NONE, tile, m, n, rows, cols);
        break;
    case LS_ACT_GELU:
        finish_fwd_tile(g, LS_ACT_GELU, tile, m, n, rows, cols);
        break;
    case LS_ACT_SILU:
        finish_fwd_tile(g, LS_ACT_SILU, tile, m, n, rows, cols);
        break;
    }
}

void LS_ISA_NAME(ls_linear_fwd_row)(ls_stream *stream, const ls_linear_fwd *a)
{
    bool kn = a->layout == LS_LAYOUT_KN;
    ls_gemm g = {.a = a->x, .a_m = a->K, .a_k = 1, .b = a->w, .leaves = 1, .args = a};

    ls_linear_fwd_check(a);
    g.b_k = kn ? a->N : 1;
    g.b_n = kn ? 1 : a->K;
    g.M = a->M;
    g.N = a->N;
    g.K = a->K;
    g.finish = a->accumulate ? LS_ISA_NAME(ls_gemm_store) : finish_fwd;
    g.out = a->y;
    g.aside = a->z;
    g.ld = ls_linear_ld(a->ldy, a->N);
    g.accumulate = a->accumulate;
    LS_ISA_NAME(ls_gemm_run)(stream, &g);
}

LS_INLINE void finish_bwd_x_tile(const ls_gemm *g, ls_act act, const float *tile, int64_t m,
                                 int64_t n, int64_t rows, int64_t cols)
{
    const ls_linear_bwd_x *a = g->args;

    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j += LS_LANES) {
            int64_t at = (m + i) * a->K + n + j;
            const float *z = (const float *)a->z + at;
            float *dx = (float *)a->dx + at;
            ls_v16 slope = act_slope(act, v_load_most(z, cols - j));
            v_store_most(dx, cols - j, v_mul(v_load(tile + i * NR + j), slope));
        }
}

static void finish_bwd_x(const ls_gemm *g, const float *tile, int64_t m, int64_t n, int64_t rows,
                         int64_t cols)
{
    const ls_linear_bwd_x *a = g->args;

    if (a->act == LS_ACT_GELU)
        finish_bwd_x_tile(g, LS_ACT_GELU, tile, m, n, rows, cols);
    else
        finish_bwd_x_tile(g, LS_ACT_SILU, tile, m, n, rows, cols);
}

void LS_ISA_NAME(ls_linear_bwd_x_row)(ls_stream *stream, const ls_linear_bwd_x *a)
{
    bool kn = a->layout == LS_LAYOUT_KN;
    ls_gemm g = {.a = a->dy, .a_k = 1, .b = a->w, .leaves = 1, .args = a};

    ls_linear_bwd_x_check(a);
    g.a_m = ls_linear_ld(a->ldy, a->N);
    /* The roles of N and K are exchanged: the product sums over outputs. */
    g.b_k = kn ? 1 : a->K;
    g.b_n = kn ? a->N : 1;
    g.M = a->M;
    g.N = a->K;
    g.K = a->N;
    g.finish = a->act == LS_ACT_NONE ? LS_ISA_NAME(ls_gemm_store) : finish_bwd_x;
    g.out = a->dx;
    g.aside = a->act == LS_ACT_NONE ? NULL : a->z;
    g.ld = a->K;
    g.accumulate = a->accumulate;
    LS_ISA_NAME(ls_gemm_run)(stream, &g);
}

/* --- the bias ----------------------------------------------------------------------------------
 * db is a sum over rows: a chain of additions inside a block of KC rows, blocks in order, then the
 * tree over leaves. A task has STRIP columns; its partial sums fit on the stack. */
enum { STRIP_V = 4, STRIP = STRIP_V * LS_LANES, LEVELS = 40 };

typedef struct strip {
    ls_v16 v[STRIP_V];
} strip;

LS_INLINE void strip_add(strip *into, const strip *from)
{
    for (int j = 0; j < STRIP_V; j++)
        into->v[j] = v_add(into->v[j], from->v[j]);
}

/* The first n of STRIP columns of a row. */
LS_INLINE void strip_load(strip *s, const float *row, int64_t n)
{
    for (int j = 0; j < STRIP_V; j++, row += LS_LANES, n -= LS_LANES)
        s->v[j] = n > 0 ? v_load_most(row, n) : v_set(0);
}

LS_INLINE void strip_sum_rows(strip *sum, const float *dy, int64_t ld, int64_t rows, int64_t n)
{
    for (int64_t r = 0; r < rows; r++, dy += ld) {
        strip row;
        strip_load(&row, dy, n);
        if (r == 0)
            *sum = row;
        else
            strip_add(sum, &row);
    }
}

/* The columns' sums over the rows of one leaf. */
static void strip_sum_leaf(strip *sum, const float *dy, int64_t ld, int64_t rows, int64_t n)
{
    for (int j = 0; j < STRIP_V; j++)
        sum->v[j] = v_set(0);
    for (int64_t r = 0; r < rows; r += LS_GEMM_KC) {
        int64_t count = ls_min_i64(LS_GEMM_KC, rows - r);
        strip part = {{v_set(0)}};
        if (n >= STRIP)
            strip_sum_rows(&part, dy + r * ld, ld, count, STRIP);
        else
            strip_sum_rows(&part, dy + r * ld, ld, count, n);
        if (r == 0)
            *sum = part;
        else
            strip_add(sum, &part);
    }
}

static void bias_task(void *context, int64_t index, int worker)
{
    const ls_linear_bwd_w *a = context;
    int64_t rows = a->M / a->leaves, first = index * STRIP, n = ls_min_i64(STRIP, a->N - first);
    int64_t ld = ls_linear_ld(a->ldy, a->N);
    strip stack[LEVELS];
    float *db = a->db + first;
    int top = -1;

    (void)worker;
    for (int64_t leaf = 0; leaf < a->leaves; leaf++) {
        strip_sum_leaf(&stack[++top], (const float *)a->dy + leaf * rows * ld + first, ld, rows, n);
        for (int i = ls_leaves_merges(leaf, a->leaves, top); i > 0; i--, top--)
            strip_add(&stack[top - 1], &stack[top]);
    }
    if (a->accumulate) {
        strip there;
        strip_load(&there, db, n);
        strip_add(&there, &stack[0]);
        stack[0] = there;
    }
    for (int j = 0; j < STRIP_V && n > 0; j++, db += LS_LANES, n -= LS_LANES)
        v_store_most(db, n, stack[0].v[j]);
}

void LS_ISA_NAME(ls_linear_bwd_w_row)(ls_stream *stream, const ls_linear_bwd_w *a)
{
    bool kn = a->layout == LS_LAYOUT_KN;
    int64_t ld = ls_linear_ld(a->ldy, a->N);
    ls_gemm g = {.a_m = 1, .b_n = 1, .K = a->M, .leaves = a->leaves, .out = a->dw};
    ls_linear_bwd_w copy = *a;

    LS_BUG_IF(a->type != LS_F32, "linear_bwd_w of type %d", (int)a->type);
    g.a = kn ? a->x : a->dy;
    g.b = kn ? a->dy : a->x;
    g.a_k = kn ? a->K : ld;
    g.b_k = kn ? ld : a->K;
    g.M = kn ? a->K : a->N;
    g.N = g.ld = kn ? a->N : a->K;
    g.accumulate = a->accumulate;
    g.finish = LS_ISA_NAME(ls_gemm_store);
    if (a->dw)
        LS_ISA_NAME(ls_gemm_run)(stream, &g);
    if (a->db)
        ls_pool_run(ls_stream_pool(stream), bias_task, &copy, (a->N + STRIP - 1) / STRIP);
}
