/* norm.c -- residual add, dropout and normalisation of one row while it lies in the first cache.
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
#include "kernel/cpu/rows_basic.h"
#include "kernel/cpu/simd/dropout.h"
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

/* The j-th vector of a tile of n columns; what lies beyond reads as fill and is not written. */
LS_INLINE ls_v16 tile_load(const float *p, int64_t n, int j, float fill)
{
    int64_t left = n - j * LS_LANES;

    return left >= LS_LANES ? v_load(p + j * LS_LANES) : v_load_part(p + j * LS_LANES, left, fill);
}

LS_INLINE void tile_store(float *p, int64_t n, int j, ls_v16 x)
{
    int64_t left = n - j * LS_LANES;

    if (left >= LS_LANES)
        v_store(p + j * LS_LANES, x);
    else
        v_store_part(p + j * LS_LANES, left, x);
}

/* Vectors that hold the n columns of a tile. */
LS_INLINE int tile_parts(int64_t n)
{
    return (int)((n + LS_LANES - 1) / LS_LANES);
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

/* out = stream + x * factor over one tile; adds the values (or squares) to acc. */
LS_INLINE void add_tile(const float *stream, const float *x, float *out, const float *factor,
                        int64_t n, bool square, lanes *acc)
{
    for (int j = 0; j < tile_parts(n); j++) {
        ls_v16 s = tile_load(stream, n, j, 0);
        if (x) {
            ls_v16 t = tile_load(x, n, j, 0);
            s = factor ? v_fma(t, v_load(factor + j * LS_LANES), s) : v_add(s, t);
            tile_store(out, n, j, s);
        }
        acc->part[j] = square ? v_fma(s, s, acc->part[j]) : v_add(acc->part[j], s);
    }
}

/* The first pass over a row; returns its sum (LAYER) or the sum of its squares (RMS). */
LS_INLINE float add_row(const ls_norm_fwd *a, const ls_drop *drop, int64_t row, bool square)
{
    const float *stream = (const float *)a->stream + row * a->C;
    const float *x = a->x ? (const float *)a->x + row * a->C : NULL;
    float *out = x ? (float *)a->sum + row * a->C : NULL;
    lanes acc = lanes_zero();
    float factor[LS_TILE];

#define ADD_PLAIN(c, n) add_tile(stream + (c), x + (c), out + (c), NULL, n, square, &acc)
#define ADD_NOTHING(c, n) add_tile(stream + (c), NULL, NULL, NULL, n, square, &acc)
#define ADD_DROPPED(c, n)                                                    \
    do {                                                                     \
        drop_tile(drop, row, c, factor);                                     \
        add_tile(stream + (c), x + (c), out + (c), factor, n, square, &acc); \
    } while (0)
    if (!x)
        LS_TILES(a->C, ADD_NOTHING);
    else if (!drop->on)
        LS_TILES(a->C, ADD_PLAIN);
    else
        LS_TILES(a->C, ADD_DROPPED);
    return lanes_sum(&acc);
}

LS_INLINE void spread_tile(const float *s, int64_t n, float mean, lanes *acc)
{
    for (int j = 0; j < tile_parts(n); j++) {
        ls_v16 d = v_sub(tile_load(s, n, j, mean), v_set(mean));
        acc->part[j] = v_fma(d, d, acc->part[j]);
    }
}

/* Sum of squared distances from the mean. */
LS_INLINE float spread_row(const float *s, int64_t C, float mean)
{
    lanes acc = lanes_zero();

#define SPREAD(c, n) spread_tile(s + (c), n, mean, &acc)
    LS_TILES(C, SPREAD);
    return lanes_sum(&acc);
}

LS_INLINE void scale_tile(const float *s, const float *w, const float *b, float *y, int64_t n,
                          float mean, float rstd)
{
    for (int j = 0; j < tile_parts(n); j++) {
        ls_v16 h = v_mul(v_sub(tile_load(s, n, j, 0), v_set(mean)), v_set(rstd));
        ls_v16 k = tile_load(w, n, j, 0);
        tile_store(y, n, j, b ? v_fma(h, k, tile_load(b, n, j, 0)) : v_mul(h, k));
    }
}

LS_INLINE void scale_row(const ls_norm_fwd *a, const float *s, float *y, float mean, float rstd)
{
    const float *w = a->w, *b = a->b;

#define SCALE_BIAS(c, n) scale_tile(s + (c), w + (c), b + (c), y + (c), n, mean, rstd)
#define SCALE(c, n) scale_tile(s + (c), w + (c), NULL, y + (c), n, mean, rstd)
    if (b)
        LS_TILES(a->C, SCALE_BIAS);
    else
        LS_TILES(a->C, SCALE);
}

enum { FWD_ROWS = 16 }; /* rows per task */

static void norm_fwd_task(void *context, int64_t index, int worker)
{
    const ls_norm_fwd *a = context;
    ls_drop drop = drop_begin(&a->drop, a->T);
    int64_t end = ls_min_i64((index + 1) * FWD_ROWS, a->M);
    float inverse = 1.0f / (float)a->C;

    (void)worker;
    for (int64_t row = index * FWD_ROWS; row < end; row++) {
        const float *s = (const float *)(a->x ? a->sum : a->stream) + row * a->C;
        float mean = 0, square;
        if (a->kind == LS_NORM_LAYER) {
            mean = add_row(a, &drop, row, false) * inverse;
            square = spread_row(s, a->C, mean);
        } else {
            square = add_row(a, &drop, row, true);
        }
        float rstd = 1.0f / sqrtf(square * inverse + a->eps);
        scale_row(a, s, (float *)a->y + row * a->C, mean, rstd);
        a->rstd[row] = rstd;
        if (a->mean)
            a->mean[row] = mean;
    }
}

void LS_ISA_NAME(ls_norm_fwd_row)(ls_stream *stream, const ls_norm_fwd *a)
{
    ls_norm_fwd args = *a;

    LS_BUG_IF(a->type != LS_F32, "norm_fwd of type %d", (int)a->type);
    ls_pool_run(ls_stream_pool(stream), norm_fwd_task, &args, (a->M + FWD_ROWS - 1) / FWD_ROWS);
}

/* --- backward -----------------------------------------------------------------------------------
 */

typedef struct bwd_row {
    const float *dy, *s, *w;
    float *ds, *dx;
    float *dw, *db; /* this chunk's partial sums, rounded up to full vectors */
    float mean, rstd;
    float mean_g, mean_gh;
} bwd_row;

/* Sums g and g h of a tile, and adds to the chunk's dw and db where these are wanted. */
LS_INLINE void gather_tile(const bwd_row *r, int64_t c, int64_t n, bool sums, lanes *acc_g,
                           lanes *acc_gh)
{
    for (int j = 0; j < tile_parts(n); j++) {
        int64_t at = c + j * LS_LANES;
        ls_v16 dy = tile_load(r->dy + c, n, j, 0);
        ls_v16 h = v_mul(v_sub(tile_load(r->s + c, n, j, r->mean), v_set(r->mean)), v_set(r->rstd));
        ls_v16 g = v_mul(dy, tile_load(r->w + c, n, j, 0));
        if (sums) {
            v_store(r->dw + at, v_fma(dy, h, v_load(r->dw + at)));
            v_store(r->db + at, v_add(dy, v_load(r->db + at)));
        }
        acc_g->part[j] = v_add(acc_g->part[j], g);
        acc_gh->part[j] = v_fma(g, h, acc_gh->part[j]);
    }
}

/* The gradient of a tile; factor is NULL without dropout. */
LS_INLINE void spread_back_tile(const bwd_row *r, int64_t c, int64_t n, bool add,
                                const float *factor)
{
    for (int j = 0; j < tile_parts(n); j++) {
        ls_v16 h = v_mul(v_sub(tile_load(r->s + c, n, j, r->mean), v_set(r->mean)), v_set(r->rstd));
        ls_v16 g = v_mul(tile_load(r->dy + c, n, j, 0), tile_load(r->w + c, n, j, 0));
        ls_v16 t = v_fma(h, v_set(-r->mean_gh), v_sub(g, v_set(r->mean_g)));
        ls_v16 k = v_set(r->rstd);
        ls_v16 ds = add ? v_fma(t, k, tile_load(r->ds + c, n, j, 0)) : v_mul(t, k);
        tile_store(r->ds + c, n, j, ds);
        if (r->dx)
            tile_store(r->dx + c, n, j, factor ? v_mul(ds, v_load(factor + j * LS_LANES)) : ds);
    }
}

LS_INLINE void spread_back_row(const ls_norm_bwd *a, const bwd_row *r, const ls_drop *drop,
                               int64_t row)
{
    float factor[LS_TILE];

#define BACK_ADD(c, n) spread_back_tile(r, c, n, true, NULL)
#define BACK_SET(c, n) spread_back_tile(r, c, n, false, NULL)
#define BACK_DROPPED(c, n)                                 \
    do {                                                   \
        drop_tile(drop, row, c, factor);                   \
        spread_back_tile(r, c, n, a->add_to_dsum, factor); \
    } while (0)
    if (drop->on && r->dx)
        LS_TILES(a->C, BACK_DROPPED);
    else if (a->add_to_dsum)
        LS_TILES(a->C, BACK_ADD);
    else
        LS_TILES(a->C, BACK_SET);
}

/* One chunk of one leaf: all of dsum and dx, and its partial dw and db. */
static void norm_bwd_task(void *context, int64_t index, int worker)
{
    const ls_norm_bwd *a = context;
    ls_drop drop = drop_begin(&a->drop, a->T);
    int64_t chunks = ls_norm_bwd_chunks(a), leaf_rows = a->M / a->leaves;
    int64_t leaf = index / chunks, first = index % chunks * LS_NORM_CHUNK_ROWS;
    int64_t wide = ls_round_up(a->C, LS_LANES);
    bool sums = a->dw || a->db;
    float *partial = sums ? (float *)a->scratch + index * 2 * wide : NULL;
    float inverse = 1.0f / (float)a->C;

    (void)worker;
    if (sums)
        memset(partial, 0, (size_t)(2 * wide) * sizeof *partial);
    for (int64_t i = first; i < ls_min_i64(first + LS_NORM_CHUNK_ROWS, leaf_rows); i++) {
        int64_t row = leaf * leaf_rows + i, at = row * a->C;
        lanes acc_g = lanes_zero(), acc_gh = lanes_zero();
        bwd_row r = {.dy = (const float *)a->dy + at,
                     .s = (const float *)a->sum + at,
                     .w = a->w,
                     .ds = (float *)a->dsum + at,
                     .dx = a->dx ? (float *)a->dx + at : NULL,
                     .dw = partial,
                     .db = sums ? partial + wide : NULL,
                     .mean = a->kind == LS_NORM_LAYER ? a->mean[row] : 0,
                     .rstd = a->rstd[row]};
#define GATHER(c, n) gather_tile(&r, c, n, true, &acc_g, &acc_gh)
#define GATHER_MEANS(c, n) gather_tile(&r, c, n, false, &acc_g, &acc_gh)
        if (sums)
            LS_TILES(a->C, GATHER);
        else
            LS_TILES(a->C, GATHER_MEANS);
        r.mean_g = a->kind == LS_NORM_LAYER ? lanes_sum(&acc_g) * inverse : 0;
        r.mean_gh = lanes_sum(&acc_gh) * inverse;
        spread_back_row(a, &r, &drop, row);
    }
}

/* p[0] = the sum over the perfect binary tree of n vectors that lie stride floats apart. */
LS_INLINE ls_v16 tree_sum(float *p, int64_t n, int64_t stride)
{
    for (int64_t step = 1; step < n; step *= 2)
        for (int64_t i = 0; i + step < n; i += 2 * step) {
            float *left = p + i * stride;
            v_store(left, v_add(v_load(left), v_load(left + step * stride)));
        }
    return v_load(p);
}

/* Sixteen columns of dw, then of db. */
static void norm_bwd_join(void *context, int64_t index, int worker)
{
    const ls_norm_bwd *a = context;
    int64_t wide = ls_round_up(a->C, LS_LANES), chunks = ls_norm_bwd_chunks(a), c = index * 16;
    int64_t n = ls_min_i64(LS_LANES, a->C - c);
    float *out[2] = {a->dw, a->db};

    (void)worker;
    for (int k = 0; k < 2; k++) {
        float *p = (float *)a->scratch + k * wide + c;
        if (!out[k])
            continue;
        for (int64_t leaf = 0; leaf < a->leaves; leaf++)
            tree_sum(p + leaf * chunks * 2 * wide, chunks, 2 * wide);
        ls_v16 sum = tree_sum(p, a->leaves, chunks * 2 * wide);
        if (a->accumulate)
            sum = v_add(tile_load(out[k] + c, n, 0, 0), sum);
        tile_store(out[k] + c, n, 0, sum);
    }
}

void LS_ISA_NAME(ls_norm_bwd_row)(ls_stream *stream, const ls_norm_bwd *a)
{
    ls_norm_bwd args = *a;

    LS_BUG_IF(a->type != LS_F32, "norm_bwd of type %d", (int)a->type);
    LS_BUG_IF(a->leaves < 1 || a->M < 1 || a->M % a->leaves != 0, "%lld rows in %lld leaves",
              (long long)a->M, (long long)a->leaves);
    ls_pool_run(ls_stream_pool(stream), norm_bwd_task, &args, a->leaves * ls_norm_bwd_chunks(a));
    if (a->dw || a->db)
        ls_pool_run(ls_stream_pool(stream), norm_bwd_join, &args, (a->C + LS_LANES - 1) / LS_LANES);
}
