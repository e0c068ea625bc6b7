/* simd_norm.c -- residual add, dropout and normalisation of one row while it lies in the first cache.
 *
 * Forward: one pass adds and sums, a second sums squared distances from the mean (so that a large
 * mean does not eat the variance), a third writes. RMS needs no mean and skips the second. Sums go
 * over four accumulators of 16 lanes: vector number i of a row belongs to accumulator i % 4.
 *
 * Backward, with h = (s - mean) rstd and g = dy w:
 *     ds = rstd (g - mean(g) - h mean(g h)),  dw = sum dy h,  db = sum dy;  RMS has no mean(g).
 * dw and db are sums over rows. Each chunk of LS_NORM_CHUNK_ROWS rows of a leaf makes a partial
 * vector in scratch, row after row; then chunks are added along a binary tree, then leaves:
 *
 *     leaf 0: chunk 0 + chunk 1, then + (chunk 2)     leaf 1: the same      leaf 0 + leaf 1
 *
 * Which thread makes which chunk does not matter, so the bits do not depend on threads. When
 * neither is asked for, nothing is summed. */
#include "kernel/cpu/rows_shared.h"
#include "kernel/cpu/simd/dropout.h"
#include "kernel/cpu/simd/chunk_tree.h"
#include "kernel/cpu/simd/vec.h"

enum { PARTS = LS_TILE / LS_LANES };

typedef struct lanes {
    ls_v16 part[PARTS];
} lanes;

LS_INLINE lanes lanes_zero(void)
{
    lanes r;

    for (int j = 0; j < PARTS; j++)
        r.part[j] = v_set(0);
    return r;
}

LS_INLINE float lanes_sum(const lanes *a)
{
    return v_sum(v_add(v_add(a->part[0], a->part[1]), v_add(a->part[2], a->part[3])));
}

/* Vector j of the tile of n columns that begins at column c of p; what lies beyond reads as fill
 * and is not written. */
LS_INLINE ls_v16 tile_load(const ls_dtype type, const void *p, int64_t c, int64_t n, int j,
                           float fill)
{
    int64_t at = c + j * LS_LANES, left = n - j * LS_LANES;
    float t[LS_LANES];

    if (left >= LS_LANES)
        return v_load_as(type, p, at);
    if (type == LS_F32)
        return v_load_part((const float *)p + at, left, fill);
    v_store(t, v_load_most_as(type, p, at, left));
    return v_load_part(t, left, fill);
}

LS_INLINE void tile_store(const ls_dtype type, void *p, int64_t c, int64_t n, int j, ls_v16 x)
{
    v_store_most_as(type, p, c + j * LS_LANES, n - j * LS_LANES, x);
}

/* Where a row of C elements begins; NULL stays NULL. */
LS_INLINE const void *row_in(const ls_dtype type, const void *p, int64_t row, int64_t C)
{
    return p ? (const char *)p + row * C * (type == LS_BF16 ? 2 : 4) : NULL;
}

LS_INLINE void *row_out(const ls_dtype type, void *p, int64_t row, int64_t C)
{
    return p ? (char *)p + row * C * (type == LS_BF16 ? 2 : 4) : NULL;
}

/* Calls body(c, n) for every tile of a row: full ones with a constant n, so that the compiler
 * unrolls them, then the short one. */
#define LS_TILES(C, body)                          \
    do {                                           \
        int64_t c_ = 0;                            \
        for (; c_ + LS_TILE <= (C); c_ += LS_TILE) \
            body(c_, LS_TILE);                     \
        if (c_ < (C))                              \
            body(c_, (C)-c_);                      \
    } while (0)

/* --- forward ------------------------------------------------------------------------------------
 */

/* out = stream + x * factor over one tile, and adds the values (or squares) to acc: those that out
 * holds, rounded to its type, since the gradient will see nothing else. */
LS_INLINE void add_tile(const ls_dtype type, const void *stream, const void *x, void *out,
                        const float *factor, int64_t c, int64_t n, bool square, lanes *acc)
{
    for (int j = 0; j < PARTS && j * LS_LANES < n; j++) {
        ls_v16 s = tile_load(type, stream, c, n, j, 0);
        if (x) {
            ls_v16 t = tile_load(type, x, c, n, j, 0);
            s = factor ? v_fma(t, v_load(factor + j * LS_LANES), s) : v_add(s, t);
            tile_store(type, out, c, n, j, s);
            if (type != LS_F32)
                s = tile_load(type, out, c, n, j, 0);
        }
        acc->part[j] = square ? v_fma(s, s, acc->part[j]) : v_add(acc->part[j], s);
    }
}

/* The first pass over a row; returns its sum (LAYER) or the sum of its squares (RMS). */
LS_INLINE float add_row(const ls_dtype type, const ls_norm_fwd *a, const ls_drop *drop, int64_t row,
                        bool square)
{
    const void *stream = row_in(type, a->stream, row, a->C), *x = row_in(type, a->x, row, a->C);
    void *out = row_out(type, a->sum, row, a->C);
    int64_t C = a->C;
    lanes acc = lanes_zero();
    float factor[LS_TILE];

#define ADD_PLAIN(c, n) add_tile(type, stream, x, out, NULL, c, n, square, &acc)
#define ADD_NOTHING(c, n) add_tile(type, stream, NULL, NULL, NULL, c, n, square, &acc)
#define ADD_DROPPED(c, n)                                           \
    do {                                                            \
        drop_tile(drop, row, c, factor);                            \
        add_tile(type, stream, x, out, factor, c, n, square, &acc); \
    } while (0)
    if (!x)
        LS_TILES(C, ADD_NOTHING);
    else if (!drop->on)
        LS_TILES(C, ADD_PLAIN);
    else
        LS_TILES(C, ADD_DROPPED);
    return lanes_sum(&acc);
}

LS_INLINE void spread_tile(const ls_dtype type, const void *s, int64_t c, int64_t n, float mean,
                           lanes *acc)
{
    for (int j = 0; j < PARTS && j * LS_LANES < n; j++) {
        ls_v16 d = v_sub(tile_load(type, s, c, n, j, mean), v_set(mean));
        acc->part[j] = v_fma(d, d, acc->part[j]);
    }
}

/* Sum of squared distances from the mean. */
LS_INLINE float spread_row(const ls_dtype type, const void *s, int64_t C, float mean)
{
    lanes acc = lanes_zero();

#define SPREAD(c, n) spread_tile(type, s, c, n, mean, &acc)
    LS_TILES(C, SPREAD);
    return lanes_sum(&acc);
}

LS_INLINE void scale_tile(const ls_dtype type, const void *s, const void *w, const void *b, void *y,
                          int64_t c, int64_t n, float mean, float rstd)
{
    for (int j = 0; j < PARTS && j * LS_LANES < n; j++) {
        ls_v16 h = v_mul(v_sub(tile_load(type, s, c, n, j, 0), v_set(mean)), v_set(rstd));
        ls_v16 k = tile_load(type, w, c, n, j, 0);
        h = b ? v_fma(h, k, tile_load(type, b, c, n, j, 0)) : v_mul(h, k);
        tile_store(type, y, c, n, j, h);
    }
}

LS_INLINE void scale_row(const ls_dtype type, const ls_norm_fwd *a, const void *s, void *y,
                         float mean, float rstd)
{
    const void *w = a->w, *b = a->b;
    int64_t C = a->C;

#define SCALE_BIAS(c, n) scale_tile(type, s, w, b, y, c, n, mean, rstd)
#define SCALE(c, n) scale_tile(type, s, w, NULL, y, c, n, mean, rstd)
    if (b)
        LS_TILES(C, SCALE_BIAS);
    else
        LS_TILES(C, SCALE);
}

LS_INLINE void fwd_row(const ls_dtype type, const ls_norm_fwd *a, const ls_drop *drop, int64_t row)
{
    const void *s = row_in(type, a->x ? a->sum : a->stream, row, a->C);
    float inverse = 1.0f / (float)a->C, mean = 0, square;

    if (a->kind == LS_NORM_LAYER) {
        mean = add_row(type, a, drop, row, false) * inverse;
        square = spread_row(type, s, a->C, mean);
    } else {
        square = add_row(type, a, drop, row, true);
    }
    float rstd = 1.0f / sqrtf(square * inverse + a->eps);
    scale_row(type, a, s, row_out(type, a->y, row, a->C), mean, rstd);
    a->rstd[row] = rstd;
    if (a->mean)
        a->mean[row] = mean;
}

/* Rows of one task: what makes TASK elements, so that a narrow tensor does not pay for tasks. */
enum { TASK = 8192 };

static int64_t fwd_rows(const ls_norm_fwd *a)
{
    return ls_max_i64(1, TASK / a->C);
}

LS_INLINE void fwd_task(const ls_dtype type, const ls_norm_fwd *a, int64_t index)
{
    ls_drop drop = drop_begin(&a->drop, a->T);
    int64_t first = index * fwd_rows(a), end = ls_min_i64(first + fwd_rows(a), a->M);

    for (int64_t row = first; row < end; row++)
        fwd_row(type, a, &drop, row);
}

LS_TYPED_TASKS(fwd, fwd_task, context, index)

void LS_ISA_NAME(ls_norm_fwd_row)(ls_stream *stream, const ls_norm_fwd *a)
{
    ls_norm_fwd args = *a;
    int64_t rows = fwd_rows(a);

    LS_BUG_IF(a->type != LS_F32 && a->type != LS_BF16, "norm_fwd of type %d", (int)a->type);
    ls_pool_run(ls_stream_pool(stream), a->type == LS_BF16 ? fwd_bf16 : fwd_f32, &args,
                (a->M + rows - 1) / rows);
}

/* --- backward -----------------------------------------------------------------------------------
 */

typedef struct bwd_row {
    const void *dy, *s, *w;
    void *ds, *dx;
    float *dw, *db; /* this chunk's partial sums, rounded up to full vectors */
    float mean, rstd;
    float mean_g, mean_gh;
} bwd_row;

LS_INLINE ls_v16 tile_h(const ls_dtype type, const bwd_row *r, int64_t c, int64_t n, int j)
{
    ls_v16 s = tile_load(type, r->s, c, n, j, r->mean);

    return v_mul(v_sub(s, v_set(r->mean)), v_set(r->rstd));
}

/* Sums g and g h of a tile, and adds to the chunk's dw and db where these are wanted. */
LS_INLINE void gather_tile(const ls_dtype type, const bwd_row *r, int64_t c, int64_t n, bool sums,
                           lanes *acc_g, lanes *acc_gh)
{
    for (int j = 0; j < PARTS && j * LS_LANES < n; j++) {
        int64_t at = c + j * LS_LANES;
        ls_v16 dy = tile_load(type, r->dy, c, n, j, 0), h = tile_h(type, r, c, n, j);
        ls_v16 g = v_mul(dy, tile_load(type, r->w, c, n, j, 0));
        if (sums) {
            v_store(r->dw + at, v_fma(dy, h, v_load(r->dw + at)));
            v_store(r->db + at, v_add(dy, v_load(r->db + at)));
        }
        acc_g->part[j] = v_add(acc_g->part[j], g);
        acc_gh->part[j] = v_fma(g, h, acc_gh->part[j]);
    }
}

/* The gradient of a tile; factor is NULL without dropout. */
LS_INLINE void spread_back_tile(const ls_dtype type, const bwd_row *r, int64_t c, int64_t n,
                                bool add, const float *factor)
{
    for (int j = 0; j < PARTS && j * LS_LANES < n; j++) {
        ls_v16 h = tile_h(type, r, c, n, j), k = v_set(r->rstd);
        ls_v16 g = v_mul(tile_load(type, r->dy, c, n, j, 0), tile_load(type, r->w, c, n, j, 0));
        ls_v16 t = v_fma(h, v_set(-r->mean_gh), v_sub(g, v_set(r->mean_g)));
        ls_v16 ds = add ? v_fma(t, k, tile_load(type, r->ds, c, n, j, 0)) : v_mul(t, k);
        tile_store(type, r->ds, c, n, j, ds);
        if (r->dx)
            tile_store(type, r->dx, c, n, j,
                       factor ? v_mul(ds, v_load(factor + j * LS_LANES)) : ds);
    }
}

LS_INLINE void spread_back_row(const ls_dtype type, const ls_norm_bwd *a, const bwd_row *r,
                               const ls_drop *drop, int64_t row)
{
    int64_t C = a->C;
    float factor[LS_TILE];

#define BACK_ADD(c, n) spread_back_tile(type, r, c, n, true, NULL)
#define BACK_SET(c, n) spread_back_tile(type, r, c, n, false, NULL)
#define BACK_DROPPED(c, n)                                       \
    do {                                                         \
        drop_tile(drop, row, c, factor);                         \
        spread_back_tile(type, r, c, n, a->add_to_dsum, factor); \
    } while (0)
    if (drop->on && r->dx)
        LS_TILES(C, BACK_DROPPED);
    else if (a->add_to_dsum)
        LS_TILES(C, BACK_ADD);
    else
        LS_TILES(C, BACK_SET);
}

LS_INLINE void back_row(const ls_dtype type, const ls_norm_bwd *a, const ls_drop *drop, int64_t row,
                        float *dw, float *db)
{
    lanes acc_g = lanes_zero(), acc_gh = lanes_zero();
    int64_t C = a->C;
    float inverse = 1.0f / (float)C;
    bwd_row r = {.dy = row_in(type, a->dy, row, a->C),
                 .s = row_in(type, a->sum, row, a->C),
                 .w = a->w,
                 .ds = row_out(type, a->dsum, row, a->C),
                 .dx = row_out(type, a->dx, row, a->C),
                 .dw = dw,
                 .db = db,
                 .mean = a->kind == LS_NORM_LAYER ? a->mean[row] : 0,
                 .rstd = a->rstd[row]};

#define GATHER(c, n) gather_tile(type, &r, c, n, true, &acc_g, &acc_gh)
#define GATHER_MEANS(c, n) gather_tile(type, &r, c, n, false, &acc_g, &acc_gh)
    if (dw)
        LS_TILES(C, GATHER);
    else
        LS_TILES(C, GATHER_MEANS);
    r.mean_g = a->kind == LS_NORM_LAYER ? lanes_sum(&acc_g) * inverse : 0;
    r.mean_gh = lanes_sum(&acc_gh) * inverse;
    spread_back_row(type, a, &r, drop, row);
}

/* One chunk of one leaf: all of dsum and dx, and its partial dw and db. */
LS_INLINE void back_chunk(const ls_dtype type, const ls_norm_bwd *a, const ls_drop *drop,
                          int64_t index)
{
    int64_t chunks = ls_norm_bwd_chunks(a), leaf_rows = a->M / a->leaves;
    int64_t leaf = index / chunks, first = index % chunks * LS_NORM_CHUNK_ROWS;
    int64_t wide = ls_round_up(a->C, LS_LANES);
    bool sums = a->dw || a->db;
    float *partial = sums ? (float *)a->scratch + index * 2 * wide : NULL;

    if (sums)
        memset(partial, 0, (size_t)(2 * wide) * sizeof *partial);
    for (int64_t i = first; i < ls_min_i64(first + LS_NORM_CHUNK_ROWS, leaf_rows); i++)
        back_row(type, a, drop, leaf * leaf_rows + i, partial, sums ? partial + wide : NULL);
}

/* Chunks of one task. */
static int64_t back_chunks(const ls_norm_bwd *a)
{
    return ls_max_i64(1, TASK / (a->C * LS_NORM_CHUNK_ROWS));
}

LS_INLINE void back_task(const ls_dtype type, const ls_norm_bwd *a, int64_t index)
{
    ls_drop drop = drop_begin(&a->drop, a->T);
    int64_t all = a->leaves * ls_norm_bwd_chunks(a), first = index * back_chunks(a);

    for (int64_t i = first; i < ls_min_i64(first + back_chunks(a), all); i++)
        back_chunk(type, a, &drop, i);
}

LS_TYPED_TASKS(back, back_task, context, index)

/* Sixteen columns of dw, then of db. */
static void join_columns(const ls_norm_bwd *a, int64_t c)
{
    int64_t wide = ls_round_up(a->C, LS_LANES), chunks = ls_norm_bwd_chunks(a);
    float *out[2] = {a->dw, a->db};

    for (int k = 0; k < 2; k++)
        if (out[k])
            tree_join((float *)a->scratch + k * wide + c, a->leaves, chunks, 2 * wide,
                      a->accumulate, out[k] + c, a->C - c);
}

/* Columns of one task: all, where there is little to add. */
static int64_t join_width(const ls_norm_bwd *a)
{
    int64_t vectors = a->leaves * ls_norm_bwd_chunks(a) * 2;

    return vectors * a->C <= 2 * TASK ? ls_round_up(a->C, LS_TILE) : LS_TILE;
}

static void join_task(void *context, int64_t index, int worker)
{
    const ls_norm_bwd *a = context;
    int64_t first = index * join_width(a), end = ls_min_i64(first + join_width(a), a->C);

    (void)worker;
    for (int64_t c = first; c < end; c += LS_LANES)
        join_columns(a, c);
}

void LS_ISA_NAME(ls_norm_bwd_row)(ls_stream *stream, const ls_norm_bwd *a)
{
    ls_norm_bwd args = *a;
    int64_t per = back_chunks(a), tasks, width;

    LS_BUG_IF(a->type != LS_F32 && a->type != LS_BF16, "norm_bwd of type %d", (int)a->type);
    LS_BUG_IF(a->dx_sum, "norm_bwd of the CPU does not sum dx");
    LS_BUG_IF(a->leaves < 1 || a->M < 1 || a->M % a->leaves != 0, "%lld rows in %lld leaves",
              (long long)a->M, (long long)a->leaves);
    tasks = (a->leaves * ls_norm_bwd_chunks(a) + per - 1) / per;
    ls_pool_run(ls_stream_pool(stream), a->type == LS_BF16 ? back_bf16 : back_f32, &args, tasks);
    width = join_width(a);
    if (a->dw || a->db)
        ls_pool_run(ls_stream_pool(stream), join_task, &args, (a->C + width - 1) / width);
}
