/* ref_head.c -- the head as the formula says it: row by row, in double.
 *
 * Scratch: one row of logits, and the sum of dw, all in double. */
#include "kernel/cpu/ref_impl.h"
#include "kernel/cpu/rows_linear.h"

#include <math.h>

int64_t ls_ref_head_scratch(const ls_head *a, int threads)
{
    (void)threads;
    return (int64_t)sizeof(double) * (a->V + a->V * a->C);
}

/* logits[v] = h[m] . w[v]; returns the logarithm of the sum of their exp. */
static double row_logits(const ls_head *a, int64_t m, double *logits)
{
    double most = -HUGE_VAL, sum = 0;

    for (int64_t v = 0; v < a->V; v++) {
        logits[v] = 0;
        for (int64_t c = 0; c < a->C; c++)
            logits[v] +=
                ls_ref_load(a->h, a->type, m * a->C + c) * ls_ref_load(a->w, a->type, v * a->C + c);
        most = fmax(most, logits[v]);
    }
    for (int64_t v = 0; v < a->V; v++)
        sum += exp(logits[v] - most);
    return most + log(sum);
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

void ls_ref_head(ls_stream *stream, const ls_head *a)
{
    double *logits = a->scratch, *dw = logits + a->V;

    LS_BUG_IF(!ls_ref_takes(a->type), "head of type %d", (int)a->type);
    if (!ls_head_check_targets(stream, a))
        return;
    for (int64_t i = 0; a->dh && a->dw && i < a->V * a->C; i++)
        dw[i] = 0;
    for (int64_t m = 0; m < a->M; m++) {
        int32_t target = a->targets[m];
        double lse = row_logits(a, m, logits);
        a->losses[m] = target < 0 ? 0 : (float)(lse - logits[target]);
        if (!a->dh)
            continue;
        for (int64_t v = 0; v < a->V; v++)
            logits[v] = target < 0 ? 0
                                   : (exp(logits[v] - lse) - (v == target ? 1 : 0)) *
                                         (double)a->state->grad_scale;
        row_grads(a, m, logits, dw);
    }
    for (int64_t i = 0; a->dh && a->dw && i < a->V * a->C; i++)
        a->dw[i] = (float)(dw[i] + (a->accumulate ? (double)a->dw[i] : 0));
}
