/* ref_lion.c -- Lion by its formula, in double. */
#include "kernel/cpu/ref_impl.h"
#include "kernel/cpu/rows_basic.h"

static void update(const ls_adamw *a, const ls_adamw_span *span, int64_t k)
{
    const ls_step_state *s = a->state;
    float *m = &a->m[span->first + k], *there = &a->w[span->w_first + k];
    double g = (double)a->grad[span->first + k] * (double)a->result->factor;
    double b1 = (double)s->beta1, b2 = (double)s->beta2, w = (double)*there;
    double mean = b1 * (double)*m + (1 - b1) * g;
    double decay = (double)s->weight_decay * (double)span->decay;

    *m = (float)(b2 * (double)*m + (1 - b2) * g);
    *there = (float)(w - (double)s->lr * (double)span->rate *
                             ((mean > 0   ? 1
                               : mean < 0 ? -1
                                          : 0) +
                              decay * w));
    if (a->copy)
        ls_ref_copy(a->copy, a->copy_type, &a->rounding, span->w_first + k, *there);
}

void ls_ref_lion(ls_stream *stream, const ls_adamw *a)
{
    LS_BUG_IF(a->copy && !ls_ref_takes(a->copy_type), "lion with a copy of type %d",
              (int)a->copy_type);
    if (a->result->bad_block >= 0 || ls_stream_failed(stream))
        return;
    for (int64_t k = 0; k < a->n_spans; k++)
        for (int64_t i = 0; i < a->spans[k].count; i++)
            update(a, &a->spans[k], i);
}
