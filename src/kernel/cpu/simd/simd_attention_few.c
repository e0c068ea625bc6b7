/* simd_attention_few.c -- attention of a few last positions over all that came before (decoding).
 *
 * Time goes into reading keys and values once, so nothing is packed, and all query heads that read
 * a key head are taken together as the rows of a task (a few, when heads are many; rows are parted
 * when threads would be idle). Here keys lie in the lanes: squares of 16 keys by 16 values are
 * turned in registers and serve every row; values are read as they lie, since the output runs along
 * them.
 *
 * The bits are those of simd_attention.c, because per query it is the same sequence of operations: a
 * score is one chain of fma over d; the largest score, the sum of weights (in order of keys) and
 * the output (one chain of fma over keys) move on per tile of LS_ATTENTION_TILE positions. Keys
 * that a query does not see weigh 0 there and add nothing. */
#include "kernel/cpu/simd/attention.h"
#include "kernel/cpu/simd/transpose.h"

enum { TILE = LS_ATTENTION_TILE, MOST_ROWS = 16 };

typedef struct few {
    ls_stream *stream;
    const ls_attention_fwd *a;
    int64_t Dp, group;   /* D rounded up; query heads of a key head */
    int64_t rows, parts; /* rows of a task, tasks of a key head */
} few;

/* One task: rows (head, position) of one key head. */
typedef struct rows {
    const few *job;
    int64_t b, hkv, first, n;
    float *q, *out; /* [n][Dp]; q times scale */
    float *weights; /* [n][TILE] scores, then weights */
    float *values;  /* [TILE][Dp], used for bf16 and when D is not whole vectors */
    float largest[MOST_ROWS], sum[MOST_ROWS];
    int64_t s0, keys; /* tile of keys: positions s0 .. s0+keys-1 */
} rows;

static int64_t row_head(const rows *w, int64_t r)
{
    return w->hkv * w->job->group + (w->first + r) / w->job->a->T;
}

static int64_t row_time(const rows *w, int64_t r)
{
    return (w->first + r) % w->job->a->T;
}

/* First position that query t of the call may see. */
static int64_t first_seen(const ls_attention_fwd *a, int64_t t)
{
    return a->window > 0 ? ls_max_i64(0, a->past + t - a->window + 1) : 0;
}

/* sum += q[0..n-1] . columns of the turned square, in order. */
LS_INLINE ls_v16 dot_square(const float *q, const ls_v16 square[16], ls_v16 sum)
{
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        sum = v_fma(square[i], v_set(q[i]), sum);
    return sum;
}

/* Scores of 16 keys from j on (or `count` of them) with values d .. d+15 (or the last ones). */
LS_INLINE void score_square(const ls_dtype type, const rows *w, int64_t j, int64_t count, int64_t d,
                            const bool whole)
{
    const ls_attention_fwd *a = w->job->a;
    int64_t k = ls_heads_index(&a->k, w->b, w->s0 + j, w->hkv) + d, left = a->D - d;
    ls_v16 r[16];

#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        r[i] = whole       ? v_load_as(type, a->k.p, k + i * a->k.time)
               : i < count ? v_load_most_as(type, a->k.p, k + i * a->k.time, left)
                           : v_set(0);
    v_transpose(r);
    for (int64_t x = 0; x < w->n; x++) {
        float *to = w->weights + x * TILE + j;
        const float *q = w->q + x * w->job->Dp + d;
        ls_v16 sum = d == 0 ? v_set(0) : v_load(to);
        if (whole)
            sum = dot_square(q, r, sum);
        else
            for (int64_t i = 0; i < ls_min_i64(LS_LANES, left); i++)
                sum = v_fma(r[i], v_set(q[i]), sum);
        v_store(to, sum);
    }
}

static void score_part(const rows *w, int64_t j, int64_t count, int64_t d)
{
    if (w->job->a->type == LS_BF16)
        score_square(LS_BF16, w, j, count, d, false);
    else
        score_square(LS_F32, w, j, count, d, false);
}

LS_INLINE void score_tile_as(const ls_dtype type, const rows *w)
{
    int64_t D = w->job->a->D;

    for (int64_t j = 0; j < w->keys; j += LS_LANES) {
        int64_t count = ls_min_i64(LS_LANES, w->keys - j), d = 0;
        if (count == LS_LANES)
            for (; d + LS_LANES <= D; d += LS_LANES)
                score_square(type, w, j, LS_LANES, d, true);
        for (; d < D; d += LS_LANES)
            score_part(w, j, count, d);
    }
}

static void score_tile(const rows *w)
{
    if (w->job->a->type == LS_BF16)
        score_tile_as(LS_BF16, w);
    else
        score_tile_as(LS_F32, w);
}

static void set_range(float *x, int64_t from, int64_t to, float value)
{
    for (int64_t i = from; i < to; i++)
        x[i] = value;
}

/* Scores of row x -> weights 2^(score - largest), with largest, sum and output moved on. */
static void soften_row(rows *w, int64_t x)
{
    const ls_attention_fwd *a = w->job->a;
    int64_t t = row_time(w, x), Dp = w->job->Dp;
    int64_t from = ls_max_i64(0, first_seen(a, t) - w->s0);
    int64_t to = ls_min_i64(w->keys, a->past + t + 1 - w->s0);
    float *s = w->weights + x * TILE, *out = w->out + x * Dp;
    ls_v16 m = v_set(w->largest[x]);

    if (from >= to) { /* sees nothing here */
        set_range(s, 0, TILE, 0);
        return;
    }
    set_range(s, 0, from, -INFINITY);
    set_range(s, to, TILE, -INFINITY);
    for (int64_t j = 0; j < TILE; j += LS_LANES)
        m = v_max(m, v_load(s + j));
    m = v_set(v_largest(m));
    ls_v16 shrink = v_exp2_weight(v_sub(v_set(w->largest[x]), m));
    for (int64_t j = 0; j < TILE; j += LS_LANES)
        v_store(s + j, v_exp2_weight(v_sub(v_load(s + j), m)));
    for (int64_t d = 0; d < Dp; d += LS_LANES)
        v_store(out + d, v_mul(v_load(out + d), shrink));

    float first[LS_LANES], sum;
    v_store(first, v_mul(v_set(w->sum[x]), shrink));
    sum = first[0];
    for (int64_t j = from; j < to; j++)
        sum += s[j];
    w->sum[x] = sum;
    v_store(first, m);
    w->largest[x] = first[0];
}

LS_INLINE void widen_values(const ls_dtype type, const rows *w)
{
    const ls_attention_fwd *a = w->job->a;
    int64_t Dp = w->job->Dp, v = ls_heads_index(&a->v, w->b, w->s0, w->hkv);

    for (int64_t j = 0; j < w->keys; j++, v += a->v.time)
        for (int64_t d = 0; d < Dp; d += LS_LANES)
            v_store(w->values + j * Dp + d, v_load_most_as(type, a->v.p, v + d, a->D - d));
}

/* out[x][d] += sum over keys of weights[x][j] v[j][d]. */
static void add_values(rows *w)
{
    const ls_attention_fwd *a = w->job->a;
    int64_t Dp = w->job->Dp, b_k = Dp;
    tile_ahead none = {.next = 0};
    tile_product m = {.a = w->weights,
                      .b = w->values,
                      .c = w->out,
                      .mode = TILE_ADD,
                      .rows = w->n,
                      .vectors = Dp / LS_LANES,
                      .k = w->keys,
                      .ahead = &none};

    if (a->type == LS_BF16) {
        widen_values(LS_BF16, w);
    } else if (Dp != a->D) {
        widen_values(LS_F32, w);
    } else { /* as they lie */
        m.b = ls_heads_at(&a->v, w->b, w->s0, w->hkv);
        b_k = a->v.time;
    }
    tile_multiply(&m, (tile_strides){.a_row = TILE, .a_k = 1, .b_k = b_k, .c_row = Dp});
}

LS_INLINE void rows_begin(const ls_dtype type, rows *w)
{
    const ls_attention_fwd *a = w->job->a;
    ls_v16 scale = v_set(a->scale * LS_ATTENTION_LOG2E);
    int64_t Dp = w->job->Dp;

    for (int64_t x = 0; x < w->n; x++) {
        int64_t q = ls_heads_index(&a->q, w->b, row_time(w, x), row_head(w, x));
        for (int64_t d = 0; d < Dp; d += LS_LANES)
            v_store(w->q + x * Dp + d, v_mul(scale, v_load_most_as(type, a->q.p, q + d, a->D - d)));
        w->largest[x] = LS_ATTENTION_LOWEST;
        w->sum[x] = 0;
    }
    memset(w->out, 0, (size_t)(w->n * Dp) * sizeof *w->out);
}

LS_INLINE void rows_finish(const ls_dtype type, const rows *w)
{
    const ls_attention_fwd *a = w->job->a;

    for (int64_t x = 0; x < w->n; x++) {
        int64_t h = row_head(w, x), t = row_time(w, x), o = ls_heads_index(&a->o, w->b, t, h);
        float lse[LS_LANES];
        ls_v16 sum = v_set(w->sum[x]), factor = v_div(v_set(1.0f), sum);
        for (int64_t d = 0; d < a->D; d += LS_LANES)
            v_store_most_as(type, a->o.p, o + d, a->D - d,
                            v_mul(factor, v_load(w->out + x * w->job->Dp + d)));
        if (!a->lse)
            continue;
        v_store(lse, v_fma(v_set(w->largest[x]), v_set(LS_ATTENTION_LN2), v_log(sum)));
        a->lse[(w->b * a->H + h) * a->T + t] = lse[0];
    }
}

static void few_task(void *context, int64_t index, int worker)
{
    const few *job = context;
    const ls_attention_fwd *a = job->a;
    int64_t head = index / job->parts, part = index % job->parts, end = a->past + a->T;
    float *memory = ls_stream_thread_scratch(job->stream, worker);
    rows w = {.job = job, .b = head / a->Hkv, .hkv = head % a->Hkv, .first = part * job->rows};

    w.n = ls_min_i64(job->rows, job->group * a->T - w.first);
    w.q = memory;
    w.out = w.q + MOST_ROWS * job->Dp;
    w.weights = w.out + MOST_ROWS * job->Dp;
    w.values = w.weights + MOST_ROWS * TILE;
    if (a->type == LS_BF16)
        rows_begin(LS_BF16, &w);
    else
        rows_begin(LS_F32, &w);
    for (w.s0 = first_seen(a, 0) / TILE * TILE; w.s0 < end; w.s0 += TILE) {
        w.keys = ls_min_i64(TILE, end - w.s0);
        score_tile(&w);
        for (int64_t x = 0; x < w.n; x++)
            soften_row(&w, x);
        add_values(&w);
    }
    if (a->type == LS_BF16)
        rows_finish(LS_BF16, &w);
    else
        rows_finish(LS_F32, &w);
}

_Static_assert((2 * MOST_ROWS + TILE) * LS_ATTENTION_MOST_D + MOST_ROWS * TILE <=
                   LS_STREAM_THREAD_BYTES / 4,
               "a task's memory does not fit");

void LS_ISA_NAME(ls_attention_few)(ls_stream *stream, const ls_attention_fwd *a)
{
    few job = {.stream = stream, .a = a, .group = a->H / a->Hkv};
    int64_t all = job.group * a->T, heads = a->B * a->Hkv;
    int64_t share = (ls_pool_threads(ls_stream_pool(stream)) + heads - 1) / ls_max_i64(heads, 1);

    job.Dp = ls_round_up(a->D, LS_LANES);
    job.rows = ls_max_i64(1, ls_min_i64(MOST_ROWS, (all + share - 1) / ls_max_i64(share, 1)));
    job.parts = (all + job.rows - 1) / job.rows;
    ls_pool_run(ls_stream_pool(stream), few_task, &job, heads * job.parts);
}
