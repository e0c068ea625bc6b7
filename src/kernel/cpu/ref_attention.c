/* ref_attention.c -- attention and its gradient as the textbook writes them, in double.
 *
 * One query at a time: its row of weights is formed over the positions it sees, used and forgotten.
 * The gradient, with p the weights, m the dropout factors (0 or 1 / (1 - drop)) and do the gradient
 * of o: dv[s] += m p do, dp = m (do . v[s]), ds = p (dp - do . o), dq += ds k, dk += ds q, the last
 * two times the scale of the scores. do . o equals the sum of p dp, since o is the sum of m p v. */
#include "kernel/cpu/ref_impl.h"
#include "kernel/cpu/rows_shared.h"

#include "base/mem.h"

#define LOWEST (-2e38) /* the logarithm of a sum over nothing */

/* One head at one position. */
typedef struct head {
    void *p;
    int64_t first;
    ls_dtype type;
} head;

static head head_at(ls_dtype type, const ls_heads *heads, int64_t b, int64_t t, int64_t h)
{
    return (head){heads->p, ls_ref_head_at(heads, b, t, h), type};
}

static double get(head x, int64_t d)
{
    return ls_ref_load(x.p, x.type, x.first + d);
}

static void put(head x, int64_t d, double value)
{
    ls_ref_store(x.p, x.type, x.first + d, value);
}

static double dot(head x, head y, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += get(x, i) * get(y, i);
    return sum;
}

/* The keys that a query sees, as numbers in their tensor; first > last: none. */
typedef struct view {
    int64_t first, last;
} view;

static view view_of(const int32_t *start, int64_t window, int64_t position, int64_t k_first,
                    int64_t keys)
{
    int64_t first = start ? ls_max_i64(0, *start) : 0;

    if (window > 0)
        first = ls_max_i64(first, position - window + 1);
    return (view){ls_max_i64(0, first - k_first), ls_min_i64(keys - 1, position - k_first)};
}

/* What weight (b, h, t, s) is multiplied by. */
static double drop_factor(const ls_dropout *drop, int64_t b, int64_t h, int64_t t, int64_t s)
{
    if (drop->p <= 0)
        return 1;
    ls_rng_key key = {{drop->state->key[0], drop->state->key[1]}};
    ls_rng_block block =
        ls_rng_philox(key, (uint32_t)(s / 4), (uint32_t)t, drop->state->first_seq + (uint32_t)b,
                      drop->site << 16 | (drop->first_head + (uint32_t)h + 1));
    return ls_rng_uniform(block.v[s % 4]) >= drop->p ? 1 / (1 - (double)drop->p) : 0;
}

/* The result of one query and the logarithm of its sum, there or joined with what is. */
static void settle(const ls_attention_fwd *a, head o, float *lse, double now, double *out)
{
    double old = a->pair.join ? (double)*lse : -(double)INFINITY, most = fmax(old, now);
    double x = exp(old - most), y = exp(now - most);

    for (int64_t d = 0; d < a->D; d++)
        put(o, d, (a->pair.join ? x * get(o, d) : 0) / (x + y) + out[d] * (y / (x + y)));
    if (lse)
        *lse = (float)(most + log(x + y));
}

/* Without a past, position and row are the same; with one there is neither start nor dropout. */
static void one_query(const ls_attention_fwd *a, int64_t b, int64_t h, int64_t t, double *p,
                      double *out)
{
    const ls_attention_pair *pair = &a->pair;
    int64_t hkv = h / (a->H / a->Hkv), row = pair->on ? pair->row : a->T;
    view v = view_of(a->start ? a->start + b * row + t : NULL, a->window,
                     pair->q_first + a->past + t, pair->k_first, a->past + a->T);
    int64_t first = v.first, last = v.last;
    head q = head_at(a->type, &a->q, b, t, h);
    head o = head_at(pair->on ? LS_F32 : a->type, &a->o, b, t, h);
    double most = -(double)INFINITY, sum = 0, now = LOWEST;

    for (int64_t s = first; s <= last; s++) {
        p[s] = (double)a->scale * dot(q, head_at(a->type, &a->k, b, s, hkv), a->D);
        most = fmax(most, p[s]);
    }
    for (int64_t s = first; s <= last; s++) {
        p[s] = exp(p[s] - most);
        sum += p[s];
    }
    if (first <= last)
        now = most + log(sum);
    for (int64_t s = first; s <= last; s++)
        p[s] = p[s] / sum * drop_factor(&a->drop, b, h, pair->q_first + t, pair->k_first + s);
    for (int64_t d = 0; d < a->D; d++) {
        out[d] = 0;
        for (int64_t s = first; s <= last; s++)
            out[d] += p[s] * get(head_at(a->type, &a->v, b, s, hkv), d);
    }
    settle(a, o, a->lse ? a->lse + (b * a->H + h) * row + t : NULL, now, out);
}

void ls_ref_attention_fwd(ls_stream *stream, const ls_attention_fwd *a)
{
    /* the weights of one query, and its result */
    double *p = ls_mem_array((size_t)(a->past + a->T + a->D), sizeof *p);

    LS_BUG_IF(!ls_ref_takes(a->type), "attention_fwd of type %d", (int)a->type);
    LS_BUG_IF(a->past && (a->start || a->drop.p > 0),
              "attention with a past, and start or dropout");
    if (!p) {
        ls_stream_fail(stream);
        return;
    }
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t h = 0; h < a->H; h++)
            for (int64_t t = 0; t < a->T; t++)
                one_query(a, b, h, t, p, p + a->past + a->T);
    ls_mem_free(p);
}

/* A head of a sequence at a position. */
typedef struct place {
    int64_t b, t, h;
} place;

/* Of a pair, added to what is there. */
static void put_gradient(const ls_attention_bwd *a, const ls_heads *to, place at, int64_t d,
                         double value)
{
    head x = head_at(a->pair.on ? LS_F32 : a->type, to, at.b, at.t, at.h);

    put(x, d, value + (a->pair.on ? get(x, d) : 0));
}

/* Adds to dk and dv, [T, D] each, of the key head; writes dq, of which the row is a buffer. */
static void one_query_back(const ls_attention_bwd *a, int64_t b, int64_t h, int64_t t, double *dk,
                           double *dv, double *dq)
{
    int64_t hkv = h / (a->H / a->Hkv), D = a->D;
    head q = head_at(a->type, &a->q, b, t, h), dout = head_at(a->type, &a->dout, b, t, h);
    const ls_attention_pair *pair = &a->pair;
    int64_t row = pair->on ? pair->row : a->T;
    double scale = (double)a->scale, lse = (double)a->lse[(b * a->H + h) * row + t];
    view seen = view_of(a->start ? a->start + b * row + t : NULL, a->window, pair->q_first + t,
                        pair->k_first, a->T);
    double delta = dot(dout, head_at(a->type, &a->o, b, t, h), D);

    for (int64_t d = 0; d < D; d++)
        dq[d] = 0;
    for (int64_t s = seen.first; s <= seen.last; s++) {
        head k = head_at(a->type, &a->k, b, s, hkv), v = head_at(a->type, &a->v, b, s, hkv);
        double p = exp(scale * dot(q, k, D) - lse);
        double m = drop_factor(&a->drop, b, h, pair->q_first + t, pair->k_first + s);
        double ds = p * (m * dot(dout, v, D) - delta) * scale;
        for (int64_t d = 0; d < D; d++) {
            dv[s * D + d] += m * p * get(dout, d);
            dk[s * D + d] += ds * get(q, d);
            dq[d] += ds * get(k, d);
        }
    }
    for (int64_t d = 0; d < D; d++)
        put_gradient(a, &a->dq, (place){b, t, h}, d, dq[d]);
}

/* One key head with all query heads that read it. */
static void one_key_head(const ls_attention_bwd *a, int64_t b, int64_t hkv, double *sums)
{
    int64_t group = a->H / a->Hkv, n = a->T * a->D;
    double *dk = sums, *dv = sums + n, *dq = sums + 2 * n;

    for (int64_t i = 0; i < 2 * n; i++)
        sums[i] = 0;
    for (int64_t h = hkv * group; h < (hkv + 1) * group; h++)
        for (int64_t t = 0; t < a->T; t++)
            one_query_back(a, b, h, t, dk, dv, dq);
    for (int64_t t = 0; t < a->T; t++)
        for (int64_t d = 0; d < a->D; d++) {
            put_gradient(a, &a->dk, (place){b, t, hkv}, d, dk[t * a->D + d]);
            put_gradient(a, &a->dv, (place){b, t, hkv}, d, dv[t * a->D + d]);
        }
}

void ls_ref_attention_bwd(ls_stream *stream, const ls_attention_bwd *a)
{
    double *sums = ls_mem_array((size_t)((2 * a->T + 1) * a->D), sizeof *sums);

    LS_BUG_IF(!ls_ref_takes(a->type), "attention_bwd of type %d", (int)a->type);
    if (!sums) {
        ls_stream_fail(stream);
        return;
    }
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t hkv = 0; hkv < a->Hkv; hkv++)
            one_key_head(a, b, hkv, sums);
    ls_mem_free(sums);
}
