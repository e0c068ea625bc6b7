/* ref_attention.c -- attention and its gradient as the textbook writes them, in double.
 *
 * One query at a time: its row of weights is formed over the positions it sees, used and forgotten.
 * The gradient, with p the weights, m the dropout factors (0 or 1 / (1 - drop)) and do the gradient
 * of o: dv[s] += m p do, dp = m (do . v[s]), ds = p (dp - do . o), dq += ds k, dk += ds q, the last
 * two times the scale of the scores. do . o equals the sum of p dp, since o is the sum of m p v. */
#include "kernel/cpu/rows_attention.h"

#include <math.h>
#include "base/mem.h"
#include "base/rng.h"

static double dot(const float *x, const float *y, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

static int64_t first_seen(const int32_t *start, int64_t window, int64_t T, int64_t b, int64_t t)
{
    int64_t first = 0;

    if (start)
        first = ls_max_i64(first, start[b * T + t]);
    if (window > 0)
        first = ls_max_i64(first, t - window + 1);
    return first;
}

/* What weight (b, h, t, s) is multiplied by. */
static double drop_factor(const ls_dropout *drop, int64_t b, int64_t h, int64_t t, int64_t s)
{
    if (drop->p <= 0)
        return 1;
    ls_rng_key key = {{drop->state->key[0], drop->state->key[1]}};
    ls_rng_block block =
        ls_rng_philox(key, (uint32_t)(s / 4), (uint32_t)t, drop->state->first_seq + (uint32_t)b,
                      drop->site << 16 | (uint32_t)(h + 1));
    return ls_rng_uniform(block.v[s % 4]) >= drop->p ? 1 / (1 - (double)drop->p) : 0;
}

/* Without a past, position and row are the same; with one there is neither start nor dropout. */
static void one_query(const ls_attention_fwd *a, int64_t b, int64_t h, int64_t t, double *p)
{
    int64_t hkv = h / (a->H / a->Hkv), last = a->past + t;
    int64_t first = first_seen(a->start, a->window, a->T, b, last);
    const float *q = ls_heads_at(&a->q, b, t, h);
    float *o = ls_heads_at(&a->o, b, t, h);
    double most = -(double)INFINITY, sum = 0;

    for (int64_t s = first; s <= last; s++) {
        p[s] = (double)a->scale * dot(q, ls_heads_at(&a->k, b, s, hkv), a->D);
        most = fmax(most, p[s]);
    }
    for (int64_t s = first; s <= last; s++) {
        p[s] = exp(p[s] - most);
        sum += p[s];
    }
    if (a->lse)
        a->lse[(b * a->H + h) * a->T + t] = (float)(most + log(sum));
    for (int64_t s = first; s <= last; s++)
        p[s] = p[s] / sum * drop_factor(&a->drop, b, h, t, s);
    for (int64_t d = 0; d < a->D; d++) {
        double out = 0;
        for (int64_t s = first; s <= last; s++)
            out += p[s] * (double)ls_heads_at(&a->v, b, s, hkv)[d];
        o[d] = (float)out;
    }
}

void ls_ref_attention_fwd(ls_stream *stream, const ls_attention_fwd *a)
{
    double *p = ls_mem_array((size_t)(a->past + a->T), sizeof *p); /* the weights of one query */

    LS_BUG_IF(a->past && (a->start || a->drop.p > 0),
              "attention with a past, and start or dropout");
    if (!p) {
        ls_stream_fail(stream);
        return;
    }
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t h = 0; h < a->H; h++)
            for (int64_t t = 0; t < a->T; t++)
                one_query(a, b, h, t, p);
    ls_mem_free(p);
}

/* Adds to dk and dv, [T, D] each, of the key head; writes dq, of which the row is a buffer. */
static void one_query_back(const ls_attention_bwd *a, int64_t b, int64_t h, int64_t t, double *dk,
                           double *dv, double *dq)
{
    int64_t hkv = h / (a->H / a->Hkv), D = a->D;
    const float *q = ls_heads_at(&a->q, b, t, h), *dout = ls_heads_at(&a->dout, b, t, h);
    double scale = (double)a->scale, lse = (double)a->lse[(b * a->H + h) * a->T + t];
    double delta = dot(dout, ls_heads_at(&a->o, b, t, h), D);

    for (int64_t d = 0; d < D; d++)
        dq[d] = 0;
    for (int64_t s = first_seen(a->start, a->window, a->T, b, t); s <= t; s++) {
        const float *k = ls_heads_at(&a->k, b, s, hkv), *v = ls_heads_at(&a->v, b, s, hkv);
        double p = exp(scale * dot(q, k, D) - lse);
        double m = drop_factor(&a->drop, b, h, t, s);
        double ds = p * (m * dot(dout, v, D) - delta) * scale;
        for (int64_t d = 0; d < D; d++) {
            dv[s * D + d] += m * p * (double)dout[d];
            dk[s * D + d] += ds * (double)q[d];
            dq[d] += ds * (double)k[d];
        }
    }
    for (int64_t d = 0; d < D; d++)
        ls_heads_at(&a->dq, b, t, h)[d] = (float)dq[d];
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
            ls_heads_at(&a->dk, b, t, hkv)[d] = (float)dk[t * a->D + d];
            ls_heads_at(&a->dv, b, t, hkv)[d] = (float)dv[t * a->D + d];
        }
}

void ls_ref_attention_bwd(ls_stream *stream, const ls_attention_bwd *a)
{
    double *sums = ls_mem_array((size_t)((2 * a->T + 1) * a->D), sizeof *sums);

    if (!sums) {
        ls_stream_fail(stream);
        return;
    }
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t hkv = 0; hkv < a->Hkv; hkv++)
            one_key_head(a, b, hkv, sums);
    ls_mem_free(sums);
}
