/* ref_qkv.c -- splitting the packed product into heads, with norm and rotation: the formula in
 * double.
 *
 * The packed row of a token holds H query heads, Hkv key heads and Hkv value heads of D each. The
 * gradient of a rotation is the rotation by the opposite angle; the gradient of the norm is that of
 * simd/simd_norm.c's RMS kind, with one weight for all query heads and one for all key heads. Where
 * other ranks have heads that are normalised together with these, sums come from and go to the
 * caller. */
#include "kernel/cpu/ref_impl.h"
#include "kernel/cpu/rows_shared.h"

#include "base/mem.h"

/* x turned by the angles of one position, sign -1: turned back. */
static void turn(double *x, const float *rope, int64_t D, double sign)
{
    for (int64_t i = 0; i < D / 2; i++) {
        double c = (double)rope[2 * i], s = sign * (double)rope[2 * i + 1];
        double first = x[i], second = x[i + D / 2];
        x[i] = first * c - second * s;
        x[i + D / 2] = second * c + first * s;
    }
}

/* Head n of a token, counted over q, k and v. */
typedef struct place {
    int64_t b, t, n;
    const void *weight; /* of its norm, or NULL */
    const float *rope;  /* of its position, or NULL */
    int64_t at;         /* its first element in packed and product */
    int64_t stat;       /* its element of rstd */
} place;

static place place_of(const ls_qkv *a, int64_t b, int64_t t, int64_t n)
{
    int64_t row = b * a->T + t;
    place w = {.b = b, .t = t, .n = n, .at = row * ls_qkv_ld(a) + n * a->D};

    w.stat = row * (a->H + a->Hkv) + n;
    if (n < a->H + a->Hkv) {
        w.weight = n < a->H ? a->q_norm : a->k_norm;
        w.rope = a->rope ? a->rope + (a->past + t) * (a->D / 2) * 2 : NULL;
    }
    return w;
}

/* The tensor that the head has a place in, and its first element there. */
static void *head_at(const ls_qkv *a, const place *w, int64_t *first_out)
{
    const ls_heads *heads = w->n < a->H ? &a->q : w->n < a->H + a->Hkv ? &a->k : &a->v;
    int64_t before = w->n < a->H ? 0 : w->n < a->H + a->Hkv ? a->H : a->H + a->Hkv;

    *first_out = ls_ref_head_at(heads, w->b, w->t, w->n - before);
    return heads->p;
}

static void head_fwd(const ls_qkv *a, const place *w, double *x)
{
    int64_t first;
    void *to = head_at(a, w, &first);
    double square = 0;

    for (int64_t i = 0; i < a->D; i++) {
        x[i] = ls_ref_load(a->packed, a->type, w->at + i);
        square += x[i] * x[i];
    }
    if (a->part == LS_QKV_SUMS) {
        a->sums[w->stat] = (float)square;
        return;
    }
    if (w->weight) {
        square = a->part == LS_QKV_APPLY ? (double)a->sums[w->stat] : square;
        double rstd = 1 / sqrt(square / (double)ls_qkv_normed(a) + (double)a->eps);
        for (int64_t i = 0; i < a->D; i++)
            x[i] *= rstd * ls_ref_load(w->weight, a->type, i);
        if (a->rstd)
            a->rstd[w->stat] = (float)rstd;
    }
    if (w->rope)
        turn(x, w->rope, a->D, 1);
    for (int64_t i = 0; i < a->D; i++)
        ls_ref_store(to, a->type, first + i, x[i]);
}

/* sums: [2][D] of dq_norm and dk_norm. */
static void head_bwd(const ls_qkv *a, const place *w, double *x, double *sums)
{
    int64_t first;
    const void *from = head_at(a, w, &first);

    for (int64_t i = 0; i < a->D; i++)
        x[i] = ls_ref_load(from, a->type, first + i);
    if (w->rope)
        turn(x, w->rope, a->D, -1);
    if (w->weight) {
        double rstd = (double)a->rstd[w->stat], total = 0;
        double *sum = sums + (w->n < a->H ? 0 : a->D);
        for (int64_t i = 0; i < a->D; i++) {
            double h = ls_ref_load(a->product, a->type, w->at + i) * rstd;
            sum[i] += x[i] * h;
            total += x[i] * ls_ref_load(w->weight, a->type, i) * h;
        }
        if (a->part == LS_QKV_SUMS) {
            a->sums[w->stat] = (float)total;
            return;
        }
        total = a->part == LS_QKV_APPLY ? (double)a->sums[w->stat] : total;
        double mean = total / (double)ls_qkv_normed(a);
        for (int64_t i = 0; i < a->D; i++) {
            double h = ls_ref_load(a->product, a->type, w->at + i) * rstd;
            x[i] = rstd * (x[i] * ls_ref_load(w->weight, a->type, i) - h * mean);
        }
    }
    for (int64_t i = 0; i < a->D; i++)
        ls_ref_store(a->packed, a->type, w->at + i, x[i]);
}

static void add_sums(const ls_qkv *a, const double *sums)
{
    for (int64_t i = 0; i < a->D; i++) {
        a->dq_norm[i] = (float)(sums[i] + (a->accumulate ? (double)a->dq_norm[i] : 0));
        if (a->dk_norm)
            a->dk_norm[i] = (float)(sums[a->D + i] + (a->accumulate ? (double)a->dk_norm[i] : 0));
    }
}

/* Since a sum in double is exact to far below the tolerance, the tree over leaves needs no care. */
static void all_tokens(ls_stream *stream, const ls_qkv *a, bool forward)
{
    int64_t heads = a->H + 2 * a->Hkv;
    double *x = ls_mem_array((size_t)(3 * a->D), sizeof *x);

    ls_qkv_check(a, forward);
    if (!x) {
        ls_stream_fail(stream);
        return;
    }
    for (int64_t i = 0; i < 3 * a->D; i++)
        x[i] = 0;
    for (int64_t i = 0; i < a->B * a->T * heads; i++) {
        place w = place_of(a, i / heads / a->T, i / heads % a->T, i % heads);
        if (forward)
            head_fwd(a, &w, x);
        else
            head_bwd(a, &w, x, x + a->D);
    }
    if (!forward && a->dq_norm)
        add_sums(a, x + a->D);
    ls_mem_free(x);
}

void ls_ref_qkv_fwd(ls_stream *stream, const ls_qkv *a)
{
    all_tokens(stream, a, true);
}

void ls_ref_qkv_bwd(ls_stream *stream, const ls_qkv *a)
{
    all_tokens(stream, a, false);
}
