/* ref_head.c -- the head as the formula says it: row by row, in double.
 *
 * Scratch: the logits of one row (of all rows, where the head is made in parts), and the sum of dw,
 * all in double. */
#include "kernel/cpu/ref_impl.h"
#include "kernel/cpu/rows_shared.h"

#include <math.h>

int64_t ls_ref_head_scratch(const ls_head *a, int threads)
{
    (void)threads;
    return (int64_t)sizeof(double) * (a->V * (a->part == LS_HEAD_WHOLE ? 1 : a->M) + a->V * a->C);
}

/* What the loss of a row needs to know of its logits. */
typedef struct scores {
    double most, sum, hit; /* the largest, the sum of exp(logit - most), the target's */
} scores;

static double lse_of(scores s)
{
    return s.most + log(s.sum);
}

/* logits[v] = h[m] . w[v], and their scores. */
static scores row_logits(const ls_head *a, int64_t m, double *logits)
{
    scores s = {.most = -HUGE_VAL};
    int64_t target = a->targets[m] - a->first;

    for (int64_t v = 0; v < a->V; v++) {
        logits[v] = 0;
        for (int64_t c = 0; c < a->C; c++)
            logits[v] +=
                ls_ref_load(a->h, a->type, m * a->C + c) * ls_ref_load(a->w, a->type, v * a->C + c);
        s.most = fmax(s.most, logits[v]);
    }
    for (int64_t v = 0; v < a->V; v++)
        s.sum += exp(logits[v] - s.most);
    if (a->targets[m] >= 0 && target >= 0 && target < a->V)
        s.hit = logits[target];
    return s;
}

/* The scores of a row over the tokens of all ranks. */
static scores row_joined(const ls_head *a, int64_t m)
{
    scores s = {.most = -HUGE_VAL};

    for (int64_t r = 0; r < a->ranks; r++)
        s.most = fmax(s.most, (double)a->all[r * a->rank_stride + 3 * m]);
    for (int64_t r = 0; r < a->ranks; r++) {
        const float *x = a->all + r * a->rank_stride + 3 * m;
        s.sum += (double)x[1] * exp((double)x[0] - s.most);
        s.hit += (double)x[2];
    }
    return s;
}

static void row_grads(const ls_head *a, int64_t m, const double *dlogits, double *dw)
{
    for (int64_t c = 0; c < a->C; c++) {
        double sum = 0, h = ls_ref_load(a->h, a->type, m * a->C + c);
        for (int64_t v = 0; v < a->V; v++) {
            sum += dlogits[v] * ls_ref_load(a->w, a->type, v * a->C + c);
            if (a->dw)
                dw[v * a->C + c] += dlogits[v] * h;
        }
        ls_ref_store(a->dh, a->type, m * a->C + c, sum);
    }
}

/* The loss of a row, and its gradients where they are wanted. */
static void row_finish(const ls_head *a, int64_t m, scores s, double *logits, double *dw)
{
    int32_t target = a->targets[m];
    double lse = lse_of(s);

    a->losses[m] = target < 0 ? 0 : (float)(lse - s.hit);
    if (!a->dh)
        return;
    for (int64_t v = 0; v < a->V; v++)
        logits[v] = target < 0 ? 0
                               : (exp(logits[v] - lse) - (v + a->first == target ? 1 : 0)) *
                                     (double)a->state->grad_scale *
                                     (a->weights ? (double)a->weights[m] : 1);
    row_grads(a, m, logits, dw);
}

void ls_ref_head(ls_stream *stream, const ls_head *a)
{
    bool whole = a->part == LS_HEAD_WHOLE;
    double *logits = a->scratch, *dw = logits + a->V * (whole ? 1 : a->M);

    LS_BUG_IF(!ls_ref_takes(a->type), "head of type %d", (int)a->type);
    if (!ls_head_check_targets(stream, a))
        return;
    for (int64_t m = 0; a->part == LS_HEAD_SCORES && m < a->M; m++) {
        scores s = row_logits(a, m, logits + m * a->V);
        a->scores[3 * m] = (float)s.most;
        a->scores[3 * m + 1] = (float)s.sum;
        a->scores[3 * m + 2] = (float)s.hit;
    }
    if (a->part == LS_HEAD_SCORES)
        return;
    for (int64_t i = 0; a->dh && a->dw && i < a->V * a->C; i++)
        dw[i] = 0;
    for (int64_t m = 0; m < a->M; m++) {
        double *x = whole ? logits : logits + m * a->V;
        scores s = whole ? row_logits(a, m, x) : row_joined(a, m);
        row_finish(a, m, s, x, dw);
    }
    for (int64_t i = 0; a->dh && a->dw && i < a->V * a->C; i++)
        a->dw[i] = (float)(dw[i] + (a->accumulate ? (double)a->dw[i] : 0));
}
