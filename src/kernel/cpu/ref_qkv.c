/* ref_qkv.c -- splitting the packed product into heads, with rotation: the formula in double.
 *
 * The packed row of a token holds H query heads, Hkv key heads and Hkv value heads of D each. The
 * gradient of a rotation is the rotation by the opposite angle. */
#include "kernel/cpu/rows_attention.h"

/* y = x turned by the angles of one position, sign -1: turned back. */
static void turn(const float *x, float *y, const float *rope, int64_t D, double sign)
{
    for (int64_t i = 0; i < D / 2; i++) {
        double c = (double)rope[2 * i], s = sign * (double)rope[2 * i + 1];
        double first = (double)x[i], second = (double)x[i + D / 2];
        y[i] = (float)(first * c - second * s);
        y[i + D / 2] = (float)(second * c + first * s);
    }
}

static void copy_head(const float *x, float *y, int64_t D)
{
    for (int64_t i = 0; i < D; i++)
        y[i] = x[i];
}

static void one_token(const ls_qkv *a, int64_t b, int64_t t, bool forward)
{
    int64_t heads = a->H + 2 * a->Hkv;
    float *row = (float *)a->packed + (b * a->T + t) * heads * a->D;
    const float *rope = a->rope ? a->rope + t * (a->D / 2) * 2 : NULL;

    for (int64_t n = 0; n < heads; n++, row += a->D) {
        float *head = n < a->H            ? ls_heads_at(&a->q, b, t, n)
                      : n < a->H + a->Hkv ? ls_heads_at(&a->k, b, t, n - a->H)
                                          : ls_heads_at(&a->v, b, t, n - a->H - a->Hkv);
        const float *from = forward ? row : head;
        float *to = forward ? head : row;
        if (rope && n < a->H + a->Hkv)
            turn(from, to, rope, a->D, forward ? 1 : -1);
        else
            copy_head(from, to, a->D);
    }
}

static void all_tokens(const ls_qkv *a, bool forward)
{
    LS_BUG_IF(a->rope && a->D % 2, "rope turns pairs, but D is %lld", (long long)a->D);
    for (int64_t b = 0; b < a->B; b++)
        for (int64_t t = 0; t < a->T; t++)
            one_token(a, b, t, forward);
}

void ls_ref_qkv_fwd(ls_stream *stream, const ls_qkv *a)
{
    (void)stream;
    all_tokens(a, true);
}

void ls_ref_qkv_bwd(ls_stream *stream, const ls_qkv *a)
{
    (void)stream;
    all_tokens(a, false);
}
