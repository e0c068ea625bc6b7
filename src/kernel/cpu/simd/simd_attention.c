/* simd_attention.c -- causal attention and its gradient, a tile of 64 queries by 64 keys at a time
 * (FlashAttention's way: running softmax, nothing of size T x T in memory).
 *
 * Queries lie in the lanes. A tile of scores is kept turned, one row per key: S'[s][t] = k[s] .
 * q[t] is a product whose left side (keys, as they lie) is read value by value and whose right side
 * (the queries, turned once per tile) is read in vectors. Then the largest score and the sum are
 * per lane and need no sums across lanes, O[t][d] += P[t][s] V[s][d] has the same form with P' read
 * along its columns, and so have all five products of the gradient:
 *
 *     S' = K Q'    dP' = V dO'    dQ += dS K    dV += P' dO    dK += dS' Q
 *
 * (a quote means turned). The other way round, with keys in the lanes, would turn K once per tile
 * of keys and of queries, and reduce across lanes for every score row.
 *
 * Inside, a tile of a tensor is a row of squares, one per 64 values of D, each of 64 rows of 64
 * floats even where D is less: products then have constant strides (see tile.h). Tensors may be
 * bf16; only what packs and what writes them knows.
 *
 * Forward walks the tiles of keys of one tile of queries upwards with the running largest score m
 * and sum l of each query; what was summed under a smaller m is multiplied by 2^(m_old - m_new).
 * Example of one query with scores 1, 3 in two tiles: m = 1, l = 1, o = v0; then m = 3,
 * l = 1/4 + 1, o = v0/4 + v1; at the end o / l. (Scores are in units of ln 2: see attention.h.)
 *
 * What is outside a query's view is skipped by whole tiles, in the tile on the diagonal by blocks
 * of 16 keys and 16 queries, and masked in the rest: a score of -infinity has weight 0. Tile sizes
 * and the order of the sums depend on the position in the sequence only: not on threads, on the
 * instruction set or on other sequences. Tasks are heads (forward: or tiles of queries, when heads
 * are few; backward: key heads, which sum over the query heads that read them).
 *
 * With a past, tiles of queries still lie on multiples of 64 positions: in the first one the lanes
 * before the first query hold zeros and are not written. Few queries go another way with the same
 * bits: see simd_attention_few.c.
 *
 * A pair of chunks (ls_attention_pair) counts queries and keys from the first of each. On the same
 * positions that is attention as ever, on a shorter sequence; where the keys lie before the queries
 * (`far`) there is no diagonal, and every tile of queries walks over all tiles of keys, as far as
 * start and window let it.
 *
 * Long, because forward and backward share the products of tiles, masks and packing above them,
 * which the compiler must see to unroll: two files would compile these twice. */
#include "kernel/cpu/simd/attention.h"
#include "kernel/cpu/simd/transpose.h"

enum {
    TILE = LS_ATTENTION_TILE,
    SLOTS = 128,
    MOST_T = 1 << 24 /* positions are compared as floats */
};
static const float LEAST_SUM = 1e-37f;

/* What both directions share. */
typedef struct problem {
    ls_stream *stream;
    ls_dtype type;
    ls_heads q, k, v;
    const int32_t *start;
    int64_t B, T, H, Hkv, D;
    int64_t squares, floats; /* of a packed tile: [squares][TILE][TILE] */
    int64_t past, end;       /* positions before the first query, and of all keys */
    int64_t window, first_tile, tiles;
    float scale;
    ls_dropout drop;
    ls_attention_pair pair;
    bool far;         /* a pair whose keys lie before its queries */
    int64_t row;      /* of lse and start */
    ls_dtype written; /* the type of what comes out */
} problem;

/* Packed tiles of keys and values of one head, several if they fit. */
typedef struct keys {
    const problem *p;
    int64_t b, hkv;
    float *slots;
    int64_t count;       /* of slots */
    int64_t held[SLOTS]; /* which tile a slot holds, or -1 */
    tile_ahead ahead;    /* what will be read and written soon */
} keys;

/* One tile of queries of head (b, h), and where it is in its walk over the tiles of keys. */
typedef struct queries {
    const problem *p;
    int64_t b, h, t0, n, vectors; /* positions t0 .. t0+n-1 */
    int64_t lo;                   /* first lane with a query: 0 but for a past */
    int64_t least, most;          /* of the first visible positions */
    float first[TILE];            /* that each sees; set where these are not all 0 */
    int64_t s0, keys;             /* tile of keys: positions s0 .. s0+keys-1 */
    bool diagonal;                /* it is the tile of the queries themselves */
    bool ragged;                  /* some query's view begins inside it */
    tile_ahead *ahead;            /* of the task */
} queries;

/* How many values of D square x has. */
static int64_t square_width(const problem *p, int64_t x)
{
    return ls_min_i64(TILE, p->D - x * TILE);
}

static int64_t square_vectors(const problem *p, int64_t x)
{
    return (square_width(p, x) + LS_LANES - 1) / LS_LANES;
}

/* n rows of `width` values, from element `index` of a tensor on. */
LS_INLINE void pack_square(const ls_dtype type, float *to, const ls_heads *from, int64_t index,
                           int64_t n, int64_t width)
{
    for (int64_t i = 0; i < n; i++, index += from->time, to += TILE) {
        if (width == TILE) {
#pragma GCC unroll 4
            for (int d = 0; d < TILE; d += LS_LANES)
                v_store(to + d, v_load_as(type, from->p, index + d));
            continue;
        }
        for (int64_t d = 0; d < width; d += LS_LANES)
            v_store(to + d, v_load_most_as(type, from->p, index + d, width - d));
    }
}

/* n rows of a tensor of heads, as rows `first` and on of a packed tile. */
static void pack_rows(const problem *p, float *to, const ls_heads *from, int64_t index,
                      int64_t first, int64_t n)
{
    for (int64_t x = 0; x < p->squares; x++, index += TILE) {
        float *square = to + x * TILE_FLOATS + first * TILE;
        if (p->type == LS_BF16)
            pack_square(LS_BF16, square, from, index, n, square_width(p, x));
        else
            pack_square(LS_F32, square, from, index, n, square_width(p, x));
    }
}

static void clear_rows(const problem *p, float *to, int64_t first, int64_t end)
{
    for (int64_t x = 0; x < p->squares; x++)
        memset(to + x * TILE_FLOATS + first * TILE, 0, (size_t)((end - first) * TILE) * sizeof *to);
}

/* The tile of a tensor that stands where the queries are, with zeros in the other lanes. */
static void pack_queries(const queries *w, const ls_heads *from, float *to)
{
    const problem *p = w->p;

    clear_rows(p, to, 0, w->lo);
    pack_rows(p, to, from, ls_heads_index(from, w->b, w->t0 + w->lo - p->past, w->h), w->lo,
              w->n - w->lo);
    clear_rows(p, to, w->n, w->vectors * LS_LANES);
}

/* A square of 16 rows by 16 values, times factor, turned. */
LS_INLINE void turn_square(const ls_dtype type, float *to, const void *from, int64_t index,
                           int64_t time, ls_v16 factor)
{
    ls_v16 r[16];

#pragma GCC unroll 16
    for (int x = 0; x < 16; x++)
        r[x] = v_load_as(type, from, index + x * time);
    v_transpose(r);
#pragma GCC unroll 16
    for (int x = 0; x < 16; x++)
        v_store(to + x * TILE, v_mul(factor, r[x]));
}

/* Rows of a packed tile become columns, times scale. */
static void turn_rows(const queries *w, float *to, const float *from, float scale)
{
    for (int64_t d = 0; d < w->p->D; d += LS_LANES)
        for (int64_t i = 0; i < w->n; i += LS_LANES) {
            int64_t square = d / TILE * TILE_FLOATS, x = d % TILE;
            turn_square(LS_F32, to + square + x * TILE + i, from, square + i * TILE + x, TILE,
                        v_set(scale));
        }
}

/* Whole tiles of queries straight from their tensor: nothing else needs them packed. */
LS_INLINE void turn_queries_as(const ls_dtype type, const queries *w, float *to, float scale)
{
    const ls_heads *q = &w->p->q;
    int64_t first = ls_heads_index(q, w->b, w->t0 - w->p->past, w->h);

    for (int64_t i = 0; i < TILE; i += LS_LANES)
        for (int64_t d = 0; d < w->p->D; d += LS_LANES)
            turn_square(type, to + d / TILE * TILE_FLOATS + d % TILE * TILE + i, q->p,
                        first + i * q->time + d, q->time, v_set(scale));
}

static void turn_queries(const queries *w, float *to, float *rows, float scale)
{
    if (w->lo > 0 || w->n < TILE || w->p->D % LS_LANES) {
        pack_queries(w, &w->p->q, rows);
        turn_rows(w, to, rows, scale);
    } else if (w->p->type == LS_BF16) {
        turn_queries_as(LS_BF16, w, to, scale);
    } else {
        turn_queries_as(LS_F32, w, to, scale);
    }
}

/* n rows of `width` values of a square, each times its factor, to element `index` on. */
LS_INLINE void write_square(const ls_dtype type, const ls_heads *to, int64_t index,
                            const float *from, const float *factor, int64_t n, int64_t width)
{
    for (int64_t i = 0; i < n; i++, index += to->time, from += TILE) {
        ls_v16 by = v_set(factor[i]);
        if (width == TILE) {
#pragma GCC unroll 4
            for (int d = 0; d < TILE; d += LS_LANES)
                v_store_as(type, to->p, index + d, v_mul(by, v_load(from + d)));
            continue;
        }
        for (int64_t d = 0; d < width; d += LS_LANES)
            v_store_most_as(type, to->p, index + d, width - d, v_mul(by, v_load(from + d)));
    }
}

/* Rows `first` .. first+n-1 of a packed tile, each times its factor, into a tensor of heads. */
static void write_rows(const problem *p, const ls_heads *to, int64_t index, const float *from,
                       const float *factor, int64_t first, int64_t n)
{
    for (int64_t x = 0; x < p->squares; x++, index += TILE) {
        const float *square = from + x * TILE_FLOATS + first * TILE;
        if (p->written == LS_BF16)
            write_square(LS_BF16, to, index, square, factor + first, n, square_width(p, x));
        else
            write_square(LS_F32, to, index, square, factor + first, n, square_width(p, x));
    }
}

/* The same in fp32, to what is there, of which each row is multiplied by `keep` first. */
static void join_rows(const problem *p, const ls_heads *to, int64_t index, const float *from,
                      const float *factor, const float *keep, int64_t n)
{
    for (int64_t x = 0; x < p->squares; x++, index += TILE) {
        int64_t width = square_width(p, x);
        const float *square = from + x * TILE_FLOATS;
        float *out = (float *)to->p + index;
        for (int64_t i = 0; i < n; i++, out += to->time, square += TILE)
            for (int64_t d = 0; d < width; d += LS_LANES) {
                ls_v16 there = v_mul(v_set(keep[i]), v_load_most(out + d, width - d));
                v_store_most(out + d, width - d,
                             v_fma(v_set(factor[i]), v_load(square + d), there));
            }
    }
}

/* The tile of a tensor that stands where the queries are. */
static void write_queries(const queries *w, const ls_heads *to, const float *from,
                          const float *factor)
{
    write_rows(w->p, to, ls_heads_index(to, w->b, w->t0 + w->lo - w->p->past, w->h), from, factor,
               w->lo, w->n - w->lo);
}

static void keys_begin(keys *k, const problem *p, int64_t b, int64_t hkv, float *memory,
                       const float *end)
{
    k->p = p;
    k->b = b;
    k->hkv = hkv;
    k->slots = memory;
    k->count = ls_min_i64(SLOTS, (end - memory) / (2 * p->floats));
    for (int64_t i = 0; i < k->count; i++)
        k->held[i] = -1;
    k->ahead.next = k->ahead.end = 0;
}

/* The packed keys of a tile; its values follow p->floats later. */
static const float *keys_get(keys *k, int64_t tile)
{
    const problem *p = k->p;
    int64_t slot = tile % k->count, s0 = tile * TILE, n = ls_min_i64(TILE, p->end - s0);
    float *memory = k->slots + slot * 2 * p->floats;

    if (k->held[slot] != tile) {
        pack_rows(p, memory, &p->k, ls_heads_index(&p->k, k->b, s0, k->hkv), 0, n);
        pack_rows(p, memory + p->floats, &p->v, ls_heads_index(&p->v, k->b, s0, k->hkv), 0, n);
        k->held[slot] = tile;
    }
    return memory;
}

/* The first position that each query sees. */
static void queries_first(queries *w)
{
    const problem *p = w->p;

    for (int64_t i = 0; i < TILE; i++) {
        int64_t t = w->t0 + i, first = 0;
        if (p->start && i < w->n)
            first = ls_max_i64(first, p->start[w->b * p->row + t]);
        if (p->window > 0)
            first = ls_max_i64(first, t + p->pair.q_first - p->window + 1);
        first = ls_max_i64(0, ls_min_i64(first - p->pair.k_first, p->end));
        w->first[i] = (float)first; /* exact: see MOST_T */
        if (i >= w->lo && i < w->n) {
            w->least = ls_min_i64(w->least, first);
            w->most = ls_max_i64(w->most, first);
        }
    }
}

static void queries_begin(queries *w, keys *k, int64_t h, int64_t tile)
{
    const problem *p = k->p;

    w->p = p;
    w->b = k->b;
    w->h = h;
    w->ahead = &k->ahead;
    w->t0 = tile * TILE;
    w->n = ls_min_i64(TILE, p->end - w->t0);
    w->lo = ls_max_i64(0, p->past - w->t0);
    w->vectors = (w->n + LS_LANES - 1) / LS_LANES;
    w->least = w->most = 0;
    if (p->start || p->window > 0) {
        w->least = INT64_MAX;
        queries_first(w);
    }
}

/* A tile of one head. */
typedef struct place {
    int64_t b, h, t; /* its first position */
} place;

/* Have a whole tile of a tensor of `rows` rows fetched, if there is one. */
static void queries_fetch(queries *w, const ls_heads *heads, place at, int64_t rows)
{
    tile_ahead *f = w->ahead;
    int64_t bytes = ls_dtype_bytes(w->p->type);
    uint64_t slot = f->end / TILE % TILE_AHEAD;

    if (at.t < 0 || at.t + TILE > rows || f->end - f->next > (TILE_AHEAD - 1) * TILE)
        return;
    f->bytes = w->p->D * bytes;
    f->rows[slot] = (const char *)heads->p + ls_heads_index(heads, at.b, at.t, at.h) * bytes;
    f->stride[slot] = heads->time * bytes;
    f->end += TILE;
}

/* The tile of queries that a worker will do after the next one: of the head, or of the tasks (of
 * `heads` heads each) that will then be free, if all run at the same pace. The next one itself
 * would be too soon: the first tiles of a head take less time than their fetching. */
static bool queries_after(const queries *w, int64_t heads, place *after_out)
{
    const problem *p = w->p;
    int64_t threads = ls_pool_threads(ls_stream_pool(p->stream)), head = w->b * p->H + w->h;
    int64_t tile = w->t0 / TILE - p->first_tile + 2;

    for (; tile >= p->tiles; tile -= p->tiles) {
        head++;
        if (head % heads == 0)
            head += (threads - 1) * heads;
    }
    *after_out = (place){head / p->H, head % p->H, (p->first_tile + tile) * TILE};
    return head < p->B * p->H;
}

/* Go to a tile of keys. */
static void queries_face(queries *w, int64_t tile)
{
    w->s0 = tile * TILE;
    w->keys = ls_min_i64(TILE, w->p->end - w->s0);
    w->diagonal = w->s0 == w->t0 && !w->p->far;
    w->ragged = w->most > w->s0;
}

/* How many keys of the tile the queries of vector c may see; the rest is not computed. */
static int64_t keys_seen(const queries *w, int64_t c)
{
    return w->diagonal ? ls_min_i64(w->keys, (c + 1) * LS_LANES) : w->keys;
}

/* Scores of vector c that its queries do not see become -infinity. */
static void mask_column(const queries *w, float *scores, int64_t c)
{
    static const float limits[2 * LS_LANES - 1] = {
        -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY,
        -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, INFINITY,
        INFINITY,  INFINITY,  INFINITY,  INFINITY,  INFINITY,  INFINITY,  INFINITY,  INFINITY,
        INFINITY,  INFINITY,  INFINITY,  INFINITY,  INFINITY,  INFINITY,  INFINITY};
    float *s = scores + c * LS_LANES;
    int64_t seen = keys_seen(w, c);

    if (w->diagonal) /* key j of the vector's own sixteen: seen by lanes from j on */
        for (int64_t j = c * LS_LANES, x = LS_LANES - 1; j < seen; j++, x--)
            v_store(s + j * TILE, v_min(v_load(s + j * TILE), v_load(limits + x)));
    if (!w->ragged)
        return;
    for (int64_t j = 0; j < seen; j++) { /* twice a whole number and 1: below 0 before `first` */
        ls_v16 at = v_sub(v_set((float)(w->s0 + j)), v_load(w->first + c * LS_LANES));
        ls_v16 limit = v_mul(v_fma(at, v_set(2.0f), v_set(1.0f)), v_set(INFINITY));
        v_store(s + j * TILE, v_min(v_load(s + j * TILE), limit));
    }
}

/* out[j][lane] = dropout factor of key j = 4 * block + (0..3) for sixteen queries from t on:
 * ls_rng_philox() with a query in each lane. */
static void drop_block(const ls_dropout *drop, const uint32_t counter[3], uint32_t t,
                       float out[4 * LS_LANES])
{
    uint32_t k0 = drop->state->key[0], k1 = drop->state->key[1], words[4][16];
    ls_i16 c[4];

    for (uint32_t i = 0; i < 16; i++) {
        words[0][i] = counter[0];
        words[1][i] = t + i;
        words[2][i] = counter[1];
        words[3][i] = counter[2];
    }
    for (int i = 0; i < 4; i++)
        c[i] = u_load(words[i]);
#pragma GCC unroll 16
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        ls_i16 high0, low0, high1, low1;
        u_multiply(c[0], 0xD2511F53u, &high0, &low0);
        u_multiply(c[2], 0xCD9E8D57u, &high1, &low1);
        c[0] = u_xor3(high1, c[1], k0);
        c[1] = low1;
        c[2] = u_xor3(high0, c[3], k1);
        c[3] = low0;
    }
    /* kept where unit / 2^24 >= p; in whole numbers, where unit + 1 - ceil(p 2^24) is 1 or more */
    ls_v16 kept = v_set(1.0f / (1.0f - drop->p)), less = v_set(1 - ceilf(drop->p * 16777216.0f));
    for (int i = 0; i < 4; i++) {
        ls_v16 x = v_min(v_max(v_add(u_unit24(c[i]), less), v_set(0)), v_set(1.0f));
        v_store(out + i * LS_LANES, v_mul(kept, x));
    }
}

/* Dropout factors of vector c of the tile, [seen][LS_LANES]. Of a pair the keys may begin anywhere
 * in a block of four positions: then the first block has some that are not wanted. */
static void drop_column(const queries *w, int64_t c, float *factors)
{
    const ls_dropout *drop = &w->p->drop;
    int64_t begin = w->p->pair.k_first + w->s0, skew = begin % 4, seen = keys_seen(w, c);
    uint32_t t = (uint32_t)(w->p->pair.q_first + w->t0 + c * LS_LANES);

    for (int64_t j = -skew; j < seen; j += 4) {
        uint32_t counter[3] = {(uint32_t)((begin + j) / 4), drop->state->first_seq + (uint32_t)w->b,
                               drop->site << 16 | (drop->first_head + (uint32_t)w->h + 1)};
        float block[4 * LS_LANES];
        int64_t from = ls_max_i64(0, -j), end = ls_min_i64(4, seen - j);
        if (skew == 0) {
            drop_block(drop, counter, t, factors + j * LS_LANES);
            continue;
        }
        drop_block(drop, counter, t, block);
        memcpy(factors + (j + from) * LS_LANES, block + from * LS_LANES,
               (size_t)((end - from) * LS_LANES) * sizeof *block);
    }
}

/* A is read along rows (keys, values, weights of keys) or along columns (weights of queries). */
static void multiply_rows(const tile_product *m)
{
    tile_multiply(m, (tile_strides){.a_row = TILE, .a_k = 1, .b_k = TILE, .c_row = TILE});
}

static void multiply_columns(const tile_product *m)
{
    tile_multiply(m, (tile_strides){.a_row = 1, .a_k = TILE, .b_k = TILE, .c_row = TILE});
}

/* scores[j][t] = rows[j] . turned[.][t], as far as visible: S' from K and Q', dP' from V and dO'.
 */
static void multiply_scores(queries *w, const float *rows, const float *turned, float *scores)
{
    for (int64_t x = 0; x < w->p->squares; x++) {
        tile_product m = {.a = rows + x * TILE_FLOATS,
                          .b = turned + x * TILE_FLOATS,
                          .c = scores,
                          .mode = x ? TILE_ADD : TILE_NEW,
                          .ahead = w->ahead,
                          .rows = w->keys,
                          .vectors = w->vectors,
                          .k = square_width(w->p, x)};
        if (!w->diagonal) {
            multiply_rows(&m);
            continue;
        }
        for (int64_t left = w->keys; left > 0; left -= LS_LANES) { /* sixteen keys: one less */
            m.rows = ls_min_i64(LS_LANES, left);
            multiply_rows(&m);
            m.a += LS_LANES * TILE;
            m.b += LS_LANES;
            m.c += LS_LANES * TILE + LS_LANES;
            m.vectors--;
        }
    }
}

/* out[t][d] = (by mode) + sum over keys of weights[j][t] rows[j][d]: O from V, dQ from K. */
static void multiply_out(queries *w, const float *weights, const float *rows, float *out,
                         tile_mode mode, const float *factor)
{
    for (int64_t x = 0; x < w->p->squares; x++) {
        tile_product m = {.a = weights,
                          .b = rows + x * TILE_FLOATS,
                          .c = out + x * TILE_FLOATS,
                          .factor = factor,
                          .mode = mode,
                          .ahead = w->ahead,
                          .rows = w->n,
                          .vectors = square_vectors(w->p, x),
                          .k = w->keys};
        if (!w->diagonal) {
            multiply_columns(&m);
            continue;
        }
        for (int64_t t = 0; t < w->n; t += LS_LANES) { /* query t: sixteen keys more */
            m.rows = ls_min_i64(LS_LANES, w->n - t);
            m.k = ls_min_i64(w->keys, t + LS_LANES);
            multiply_columns(&m);
            m.a += LS_LANES;
            m.c += LS_LANES * TILE;
            m.factor = m.factor ? m.factor + LS_LANES : NULL;
        }
    }
}

/* --- forward ---------------------------------------------------------------------------------- */

/* A worker's memory for one tile of queries. */
typedef struct forward {
    float *rows;    /* packed queries, where needed */
    float *turned;  /* the same, turned and times scale */
    float *out;     /* packed */
    float *scores;  /* [TILE][TILE], then weights */
    float *factors; /* [TILE][LS_LANES] dropout */
    float *largest, *sum, *shrink;
} forward;

typedef struct forward_job {
    problem p;
    const ls_attention_fwd *a;
    int64_t parts; /* tasks of one head: 1, or its tiles */
} forward_job;

/* The largest score of vector c, and what it makes of the sums so far. A pass of its own over all
 * vectors: no chain of exp then waits for a chain of comparisons. */
static void raise_column(const queries *w, forward *f, int64_t c)
{
    int64_t seen = keys_seen(w, c), j = 0;
    const float *s = f->scores + c * LS_LANES;
    ls_v16 old = v_load(f->largest + c * LS_LANES), m = old, m2 = old;

    for (; j + 4 <= seen; j += 4) {
        m = v_max(m, v_max(v_load(s + j * TILE), v_load(s + (j + 1) * TILE)));
        m2 = v_max(m2, v_max(v_load(s + (j + 2) * TILE), v_load(s + (j + 3) * TILE)));
    }
    for (; j < seen; j++)
        m = v_max(m, v_load(s + j * TILE));
    m = v_max(m, m2);
    v_store(f->largest + c * LS_LANES, m);
    v_store(f->shrink + c * LS_LANES, v_exp2_weight(v_sub(old, m)));
}

/* Scores of vector c -> weights 2^(score - largest). */
static void soften_column(const queries *w, forward *f, int64_t c)
{
    int64_t seen = keys_seen(w, c);
    float *s = f->scores + c * LS_LANES;
    ls_v16 m = v_load(f->largest + c * LS_LANES), shrink = v_load(f->shrink + c * LS_LANES);
    ls_v16 sum = v_mul(v_load(f->sum + c * LS_LANES), shrink);

#pragma GCC unroll 4
    for (int64_t j = 0; j < seen; j++) {
        ls_v16 p = v_exp2_weight(v_sub(v_load(s + j * TILE), m));
        sum = v_add(sum, p);
        v_store(s + j * TILE, p);
    }
    v_store(f->sum + c * LS_LANES, sum);
}

/* The sum above is over all weights; what goes to the output is dropped out. */
static void drop_weights(const queries *w, forward *f, int64_t c)
{
    float *s = f->scores + c * LS_LANES;

    drop_column(w, c, f->factors);
    for (int64_t j = 0; j < keys_seen(w, c); j++)
        v_store(s + j * TILE, v_mul(v_load(s + j * TILE), v_load(f->factors + j * LS_LANES)));
}

/* lse becomes that of what was seen before and now, shrink the new part's share of 1 / sum, and
 * keep the share of what is there. */
static void forward_join(const queries *w, forward *f, const float *lse, float *keep)
{
    float before[TILE] = {0};

    memcpy(before, lse, (size_t)w->n * sizeof *lse);
    for (int64_t at = 0; at < w->vectors * LS_LANES; at += LS_LANES) {
        ls_v16 old = v_load(before + at), new = v_load(f->largest + at), m = v_max(old, new);
        ls_v16 a = v_exp(v_sub(old, m)), b = v_exp(v_sub(new, m)), sum = v_add(a, b);
        v_store(f->largest + at, v_add(m, v_log(sum)));
        v_store(f->shrink + at, v_mul(v_load(f->shrink + at), v_div(b, sum)));
        v_store(keep + at, v_div(a, sum));
    }
}

/* A sum is 1 or more, unless a query of a pair sees nothing: then it weighs nothing. */
static void forward_finish(const queries *w, forward *f, const ls_attention_fwd *a)
{
    const problem *p = w->p;
    int64_t at = (w->b * a->H + w->h) * p->row + w->t0 + w->lo - a->past;

    for (int64_t c = 0; c < w->vectors; c++) {
        ls_v16 sum = v_max(v_set(LEAST_SUM), v_load(f->sum + c * LS_LANES));
        ls_v16 m = v_load(f->largest + c * LS_LANES);
        v_store(f->largest + c * LS_LANES, v_fma(m, v_set(LS_ATTENTION_LN2), v_log(sum)));
        v_store(f->shrink + c * LS_LANES, v_div(v_set(1.0f), sum));
    }
    if (p->pair.join) {
        forward_join(w, f, a->lse + at, f->factors);
        join_rows(p, &a->o, ls_heads_index(&a->o, w->b, w->t0, w->h), f->out, f->shrink, f->factors,
                  w->n);
    } else {
        write_queries(w, &a->o, f->out, f->shrink);
    }
    if (a->lse)
        memcpy(a->lse + at, f->largest + w->lo, (size_t)(w->n - w->lo) * sizeof *a->lse);
}

/* What this tile will write and one soon after will read. */
static void forward_fetch(queries *w, const ls_attention_fwd *a)
{
    int64_t group = a->H / a->Hkv;
    place after;

    queries_fetch(w, &a->o, (place){w->b, w->h, w->t0 - a->past}, a->T);
    if (!queries_after(w, 1, &after))
        return;
    queries_fetch(w, &a->q, (place){after.b, after.h, after.t - a->past}, a->T);
    queries_fetch(w, &a->k, (place){after.b, after.h / group, after.t}, w->p->end);
    queries_fetch(w, &a->v, (place){after.b, after.h / group, after.t}, w->p->end);
}

static void forward_tile(const forward_job *job, keys *k, forward *f, int64_t h, int64_t tile)
{
    const problem *p = &job->p;
    queries w;

    queries_begin(&w, k, h, tile);
    turn_queries(&w, f->turned, f->rows, p->scale * LS_ATTENTION_LOG2E);
    for (int64_t i = 0; i < TILE; i++) {
        f->largest[i] = LS_ATTENTION_LOWEST;
        f->sum[i] = 0;
    }
    int64_t begin = w.least / TILE, last = p->far ? p->tiles - 1 : tile;
    if (begin > last) /* they see nothing */
        clear_rows(p, f->out, 0, TILE);
    for (int64_t s = begin; s <= last; s++) {
        const float *rows = keys_get(k, s);
        queries_face(&w, s);
        if (s == ls_max_i64(begin, last - 2)) /* sooner, it would be evicted again */
            forward_fetch(&w, job->a);
        multiply_scores(&w, rows, f->turned, f->scores);
        for (int64_t c = 0; c < w.vectors; c++) {
            mask_column(&w, f->scores, c);
            raise_column(&w, f, c);
        }
        for (int64_t c = 0; c < w.vectors; c++) {
            soften_column(&w, f, c);
            if (p->drop.p > 0)
                drop_weights(&w, f, c);
        }
        multiply_out(&w, f->scores, rows + p->floats, f->out, s == begin ? TILE_NEW : TILE_SCALE,
                     f->shrink);
    }
    forward_finish(&w, f, job->a);
}

static void forward_task(void *context, int64_t index, int worker)
{
    const forward_job *job = context;
    const problem *p = &job->p;
    float *memory = ls_stream_thread_scratch(p->stream, worker);
    const float *end = memory + LS_STREAM_THREAD_BYTES / (int64_t)sizeof *memory;
    int64_t head = index / job->parts, part = index % job->parts, b = head / p->H, h = head % p->H;
    forward f = {.rows = memory, .turned = memory + p->floats, .out = memory + 2 * p->floats};
    keys k;

    f.scores = f.out + p->floats;
    f.factors = f.scores + TILE * TILE;
    f.largest = f.factors + TILE * LS_LANES;
    f.sum = f.largest + TILE;
    f.shrink = f.sum + TILE;
    keys_begin(&k, p, b, h / (p->H / p->Hkv), f.shrink + TILE, end);
    if (job->parts == 1)
        for (int64_t tile = 0; tile < p->tiles; tile++)
            forward_tile(job, &k, &f, h, p->first_tile + tile);
    else /* later tiles cost more: begin with them, so that no worker ends alone with one */
        forward_tile(job, &k, &f, h, p->first_tile + p->tiles - 1 - part);
}

/* False, with the stream failed, when these shapes cannot be done. */
static bool problem_ready(problem *p)
{
    LS_BUG_IF(p->Hkv < 1 || p->H % p->Hkv, "%lld query heads for %lld key heads", (long long)p->H,
              (long long)p->Hkv);
    p->end = p->past + p->T;
    LS_BUG_IF(p->past < 0 || p->end > MOST_T, "attention over %lld positions", (long long)p->end);
    LS_BUG_IF(p->past && (p->start || p->drop.p > 0),
              "attention with a past, and start or dropout");
    LS_BUG_IF(p->type != LS_F32 && p->type != LS_BF16, "attention of type %d", (int)p->type);
    p->far = p->pair.on && p->pair.k_first != p->pair.q_first;
    LS_BUG_IF(p->pair.on && (p->past || p->pair.k_first > p->pair.q_first ||
                             (p->far && p->pair.k_first + p->T > p->pair.q_first)),
              "a pair of %lld queries from %lld on and keys from %lld on", (long long)p->T,
              (long long)p->pair.q_first, (long long)p->pair.k_first);
    p->row = p->pair.on ? p->pair.row : p->T;
    p->written = p->pair.on ? LS_F32 : p->type;
    p->squares = (p->D + TILE - 1) / TILE;
    p->floats = p->squares * TILE_FLOATS;
    p->first_tile = p->past / TILE;
    p->tiles = (p->end + TILE - 1) / TILE - p->first_tile;
    if (p->D <= LS_ATTENTION_MOST_D)
        return true;
    ls_fail(LS_EUSAGE, "attention heads of %lld values are too large; at most %d are supported",
            (long long)p->D, LS_ATTENTION_MOST_D);
    ls_err_hint("Use more heads, so that width / heads is at most %d.", LS_ATTENTION_MOST_D);
    ls_stream_fail(p->stream);
    return false;
}

void LS_ISA_NAME(ls_attention_fwd_row)(ls_stream *stream, const ls_attention_fwd *a)
{
    forward_job job = {.a = a, .parts = 1};

    job.p = (problem){.stream = stream,
                      .type = a->type,
                      .q = a->q,
                      .k = a->k,
                      .v = a->v,
                      .start = a->start,
                      .B = a->B,
                      .T = a->T,
                      .H = a->H,
                      .Hkv = a->Hkv,
                      .D = a->D,
                      .past = a->past,
                      .window = a->window,
                      .scale = a->scale,
                      .drop = a->drop,
                      .pair = a->pair};
    if (!problem_ready(&job.p))
        return;
    if (a->T <= LS_ATTENTION_FEW && !a->start && a->drop.p <= 0 && !a->pair.on) {
        LS_ISA_NAME(ls_attention_few)(stream, a);
        return;
    }
    int threads = ls_pool_threads(ls_stream_pool(stream));
    if (threads > 1 && a->B * a->H < 8 * threads) /* each tile then packs its keys again */
        job.parts = ls_max_i64(job.p.tiles, 1);
    ls_pool_run(ls_stream_pool(stream), forward_task, &job, a->B * a->H * job.parts);
}

/* --- backward --------------------------------------------------------------------------------- */

/* A worker's memory for one tile of queries. */
typedef struct backward {
    float *q, *q_turned; /* packed queries; turned and times scale */
    float *dout, *dout_turned;
    float *dq;                 /* packed */
    float *weights, *dweights; /* [TILE][TILE]: P', dP' and then dS' */
    float *factors;            /* [TILE][LS_LANES] dropout */
    float *lse, *delta;        /* [TILE]; lse in units of ln 2 */
    float *scales, *ones;      /* [TILE] of the scale, of 1 */
    float *dk, *dv;            /* packed tiles, sums of the whole key head */
} backward;

typedef struct backward_job {
    problem p;
    const ls_attention_bwd *a;
} backward_job;

/* delta[t] = do[t] . o[t], which is the sum of p dp of that query: over 16 lanes, then the sums of
 * 16 queries across lanes at once, as v_sum() would. */
LS_INLINE void backward_deltas_as(const ls_dtype type, const queries *w, backward *f,
                                  const ls_heads *o)
{
    int64_t D = w->p->D;

    for (int64_t i = 0; i < w->n; i += LS_LANES) {
        ls_v16 r[16];
        int64_t index = ls_heads_index(o, w->b, w->t0 + i, w->h), n = w->n - i;
        for (int x = 0; x < 16; x++)
            r[x] = v_set(0);
        for (int64_t d = 0; d < D; d += LS_LANES) {
            const float *dout = f->dout + d / TILE * TILE_FLOATS + i * TILE + d % TILE;
            if (n >= LS_LANES && D - d >= LS_LANES) {
#pragma GCC unroll 16
                for (int x = 0; x < 16; x++)
                    r[x] = v_fma(v_load_as(type, o->p, index + x * o->time + d),
                                 v_load(dout + x * TILE), r[x]);
                continue;
            }
            for (int64_t x = 0; x < ls_min_i64(LS_LANES, n); x++)
                r[x] = v_fma(v_load_most_as(type, o->p, index + x * o->time + d, D - d),
                             v_load(dout + x * TILE), r[x]);
        }
        v_transpose(r);
#pragma GCC unroll 4
        for (int half = 8; half; half /= 2)
#pragma GCC unroll 8
            for (int x = 0; x < half; x++)
                r[x] = v_add(r[x], r[x + half]);
        v_store(f->delta + i, r[0]);
    }
}

static void backward_deltas(const queries *w, backward *f, const ls_attention_bwd *a)
{
    const float *lse = a->lse + (w->b * a->H + w->h) * w->p->row + w->t0;

    for (int64_t i = 0; i < TILE; i++)
        f->lse[i] = i < w->n ? lse[i] * LS_ATTENTION_LOG2E : 0;
    if (w->p->type == LS_BF16)
        backward_deltas_as(LS_BF16, w, f, &a->o);
    else
        backward_deltas_as(LS_F32, w, f, &a->o);
}

/* Scores and dP' of vector c -> weights (dropped out) and dS'. */
LS_INLINE void backward_column_as(const bool drop, const queries *w, const backward *f, int64_t c)
{
    float *s = f->weights + c * LS_LANES, *ds = f->dweights + c * LS_LANES;
    ls_v16 lse = v_load(f->lse + c * LS_LANES), delta = v_load(f->delta + c * LS_LANES);

    for (int64_t j = 0; j < keys_seen(w, c); j++) {
        /* a score beyond lse, by rounding, is not let beyond the limit of the function */
        ls_v16 p = v_exp2_weight(v_min(v_set(0), v_sub(v_load(s + j * TILE), lse)));
        ls_v16 dp = v_load(ds + j * TILE), kept = p;
        if (drop) {
            ls_v16 factor = v_load(f->factors + j * LS_LANES);
            dp = v_mul(dp, factor);
            kept = v_mul(p, factor);
        }
        v_store(s + j * TILE, kept);
        v_store(ds + j * TILE, v_mul(p, v_sub(dp, delta)));
    }
}

static void backward_column(const queries *w, const backward *f, int64_t c)
{
    mask_column(w, f->weights, c);
    if (w->p->drop.p > 0) {
        drop_column(w, c, f->factors);
        backward_column_as(true, w, f, c);
    } else {
        backward_column_as(false, w, f, c);
    }
}

/* sums[j][d] = (by mode) + sum over the queries of weights[j][t] rows[t][d]. */
static void multiply_back(queries *w, const float *weights, const float *rows, float *sums,
                          tile_mode mode)
{
    for (int64_t x = 0; x < w->p->squares; x++) {
        tile_product m = {.a = weights,
                          .b = rows + x * TILE_FLOATS,
                          .c = sums + x * TILE_FLOATS,
                          .mode = mode,
                          .ahead = w->ahead,
                          .rows = w->keys,
                          .vectors = square_vectors(w->p, x),
                          .k = w->n};
        if (!w->diagonal) {
            multiply_rows(&m);
            continue;
        }
        for (int64_t left = w->keys; left > 0; left -= LS_LANES) { /* key j: queries from j on */
            m.rows = ls_min_i64(LS_LANES, left);
            multiply_rows(&m);
            m.a += LS_LANES * TILE + LS_LANES;
            m.b += LS_LANES * TILE;
            m.c += LS_LANES * TILE;
            m.k -= LS_LANES;
        }
    }
}

/* When a walk is the last one of a key head, each step ends a tile of dk and dv. */
static void backward_fetch_keys(queries *w, const ls_attention_bwd *a, int64_t tile, int64_t end)
{
    for (; tile < end; tile++) {
        place at = {w->b, w->h / (a->H / a->Hkv), tile * TILE};
        queries_fetch(w, &a->dk, at, a->T);
        queries_fetch(w, &a->dv, at, a->T);
    }
}

static void backward_fetch(queries *w, const ls_attention_bwd *a)
{
    int64_t group = a->H / a->Hkv;
    place after;

    queries_fetch(w, &a->dq, (place){w->b, w->h, w->t0}, a->T);
    if (!queries_after(w, group, &after))
        return;
    queries_fetch(w, &a->q, after, a->T);
    queries_fetch(w, &a->dout, after, a->T);
    queries_fetch(w, &a->o, after, a->T);
    queries_fetch(w, &a->k, (place){after.b, after.h / group, after.t}, a->T);
    queries_fetch(w, &a->v, (place){after.b, after.h / group, after.t}, a->T);
}

/* The tile of keys is summed up. */
static void write_keys(const problem *p, const keys *k, const backward *f,
                       const ls_attention_bwd *a, int64_t tile)
{
    int64_t t = tile * TILE, n = ls_min_i64(TILE, p->T - t);

    int64_t dk = ls_heads_index(&a->dk, k->b, t, k->hkv);
    int64_t dv = ls_heads_index(&a->dv, k->b, t, k->hkv), at = tile * p->floats;

    if (p->pair.on) {
        join_rows(p, &a->dk, dk, f->dk + at, f->scales, f->ones, n);
        join_rows(p, &a->dv, dv, f->dv + at, f->ones, f->ones, n);
    } else {
        write_rows(p, &a->dk, dk, f->dk + at, f->scales, 0, n);
        write_rows(p, &a->dv, dv, f->dv + at, f->ones, 0, n);
    }
}

/* One step: the tile of queries with one tile of keys; mode: what dk and dv do. */
static void backward_step(queries *w, const backward *f, const float *rows, tile_mode mode,
                          tile_mode dq_mode)
{
    int64_t floats = w->p->floats, at = w->s0 / TILE * floats;

    multiply_scores(w, rows, f->q_turned, f->weights);
    multiply_scores(w, rows + floats, f->dout_turned, f->dweights);
    for (int64_t c = 0; c < w->vectors; c++)
        backward_column(w, f, c);
    multiply_back(w, f->weights, f->dout, f->dv + at, mode);
    multiply_back(w, f->dweights, f->q, f->dk + at, mode);
    multiply_out(w, f->dweights, rows, f->dq, dq_mode, NULL);
}

/* Tile of queries number `tile` of the walk's head h. The first head of a key head meets every tile
 * of keys on the diagonal first; the last tile of the last head is the last to add to any. Far keys
 * have no diagonal: their sums begin as zeros, and are written when all heads are done. */
static void backward_tile(const backward_job *job, keys *k, backward *f, int64_t h, int64_t tile)
{
    const problem *p = &job->p;
    const ls_attention_bwd *a = job->a;
    int64_t group = p->H / p->Hkv;
    bool fresh = h % group == 0 && !p->far;
    bool last = h % group == group - 1 && tile == p->tiles - 1 && !p->far;
    queries w;

    queries_begin(&w, k, h, tile);
    pack_queries(&w, &p->q, f->q);
    turn_rows(&w, f->q_turned, f->q, p->scale * LS_ATTENTION_LOG2E);
    pack_queries(&w, &a->dout, f->dout);
    turn_rows(&w, f->dout_turned, f->dout, 1);
    backward_deltas(&w, f, a);
    int64_t end = p->far ? p->tiles - 1 : tile;
    int64_t begin = w.least / TILE, near = ls_max_i64(begin, end - 2);
    for (int64_t s = 0; last && s < begin; s++)
        write_keys(p, k, f, a, s);
    for (int64_t s = begin; s <= end; s++) {
        const float *rows = keys_get(k, s);
        queries_face(&w, s);
        if (last && s <= near)
            backward_fetch_keys(&w, a, s, s == near ? tile + 1 : s + 1);
        if (s == near) /* sooner, it would be evicted again */
            backward_fetch(&w, a);
        backward_step(&w, f, rows, fresh && s == tile ? TILE_NEW : TILE_ADD,
                      s == begin ? TILE_NEW : TILE_ADD);
        if (last)
            write_keys(p, k, f, a, s);
    }
    if (!p->pair.on)
        write_queries(&w, &a->dq, f->dq, f->scales);
    else if (begin <= end)
        join_rows(p, &a->dq, ls_heads_index(&a->dq, w.b, w.t0, w.h), f->dq, f->scales, f->ones,
                  w.n);
}

static void backward_task(void *context, int64_t index, int worker)
{
    const backward_job *job = context;
    const problem *p = &job->p;
    float *memory = ls_stream_thread_scratch(p->stream, worker);
    const float *end = memory + LS_STREAM_THREAD_BYTES / (int64_t)sizeof *memory;
    int64_t hkv = index % p->Hkv, group = p->H / p->Hkv, n = p->floats;
    backward f = {.q = memory,
                  .q_turned = memory + n,
                  .dout = memory + 2 * n,
                  .dout_turned = memory + 3 * n,
                  .dq = memory + 4 * n,
                  .weights = memory + 5 * n};
    keys k;

    f.dweights = f.weights + TILE_FLOATS;
    f.factors = f.dweights + TILE_FLOATS;
    f.lse = f.factors + TILE * LS_LANES;
    f.delta = f.lse + TILE;
    f.scales = f.delta + TILE;
    f.ones = f.scales + TILE;
    for (int64_t i = 0; i < TILE; i++) {
        f.scales[i] = p->scale;
        f.ones[i] = 1;
    }
    keys_begin(&k, p, index / p->Hkv, hkv, f.ones + TILE, end);
    f.dk = (float *)job->a->scratch + worker * 2 * p->tiles * n;
    f.dv = f.dk + p->tiles * n;
    if (p->far)
        memset(f.dk, 0, (size_t)(2 * p->tiles * n) * sizeof *f.dk);
    for (int64_t x = 0; x < group; x++)
        for (int64_t tile = 0; tile < p->tiles; tile++)
            backward_tile(job, &k, &f, hkv * group + x, tile);
    for (int64_t tile = 0; p->far && tile < p->tiles; tile++)
        write_keys(p, &k, &f, job->a, tile);
}

void LS_ISA_NAME(ls_attention_bwd_row)(ls_stream *stream, const ls_attention_bwd *a)
{
    backward_job job = {.a = a};

    job.p = (problem){.stream = stream,
                      .type = a->type,
                      .q = a->q,
                      .k = a->k,
                      .v = a->v,
                      .start = a->start,
                      .B = a->B,
                      .T = a->T,
                      .H = a->H,
                      .Hkv = a->Hkv,
                      .D = a->D,
                      .window = a->window,
                      .scale = a->scale,
                      .drop = a->drop,
                      .pair = a->pair};
    if (problem_ready(&job.p))
        ls_pool_run(ls_stream_pool(stream), backward_task, &job, a->B * a->Hkv);
}

int64_t LS_ISA_NAME(ls_attention_bwd_scratch)(const ls_attention_bwd *a, int threads)
{
    return threads * 2 * ls_round_up(a->T, TILE) * ls_round_up(a->D, TILE) * (int64_t)sizeof(float);
}
