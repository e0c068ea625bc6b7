/* ref_sgd.c -- SGD with momentum by its formula, in double. */
#include "kernel/cpu/ref_impl.h"
#include "kernel/cpu/rows_basic.h"

static void update(const ls_adamw *a, const ls_adamw_span *span, int64_t k)
{
    const ls_step_state *s = a->state;
    float *m = &a->m[span->first + k], *there = &a->w[span->w_first + k];
    double w = (double)*there, keep = (double)s->momentum;
    double decay = (double)s->weight_decay * (double)span->decay;
    double grad = (double)a->grad[span->first + k] * (double)a->result->factor;
    double g = (double)s->gain * (grad + decay * w), sum = keep * (double)*m + g;

    *m = (float)sum;
    *there = (float)(w - (double)s->lr * (double)span->rate * (s->nesterov ? g + keep * sum : sum));
    if (a->copy)
        ls_ref_copy(a->copy, a->copy_type, &a->rounding, span->w_first + k, *there);
}

void ls_ref_sgd(ls_stream *stream, const ls_adamw *a)
{
    LS_BUG_IF(a->copy && !ls_ref_takes(a->copy_type), "sgd with a copy of type %d",
              (int)a->copy_type);
    if (a->result->bad_block >= 0 || ls_stream_failed(stream))
        return;
    for (int64_t k = 0; k < a->n_spans; k++)
        for (int64_t i = 0; i < a->spans[k].count; i++)
            update(a, &a->spans[k], i);
}
