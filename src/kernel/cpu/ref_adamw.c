/* ref_adamw.c -- the optimizer step by its formula, in double. */
#include "kernel/cpu/ref_impl.h"
#include "kernel/cpu/rows_basic.h"

#include <math.h>

static void update(const ls_adamw *a, const ls_adamw_span *span, int64_t k)
{
    int64_t i = span->first + k, vi = i - span->v_gap;
    float *there = &a->w[span->w_first + k];
    const ls_step_state *s = a->state;
    double g = (double)a->grad[i] * (double)a->result->factor;
    double b1 = (double)s->beta1, b2 = (double)s->beta2, w = (double)*there;
    double m = b1 * (double)a->m[i] + (1 - b1) * g;
    double v = b2 * (double)a->v[vi] + (1 - b2) * g * g;
    double step = m / (double)s->bias1 / (sqrt(v / (double)s->bias2) + (double)s->eps);
    double decay = (double)s->weight_decay * (double)span->decay;

    a->m[i] = (float)m;
    a->v[vi] = (float)v;
    *there = (float)(w - (double)s->lr * (double)span->rate * (step + decay * w));
    if (a->copy) /* the weight as it is kept, so that a copy made of it later is the same */
        ls_ref_copy(a->copy, a->copy_type, &a->rounding, span->w_first + k, *there);
}

void ls_ref_adamw(ls_stream *stream, const ls_adamw *a)
{
    LS_BUG_IF(a->copy && !ls_ref_takes(a->copy_type), "adamw with a copy of type %d",
              (int)a->copy_type);
    if (a->result->bad_block >= 0 || ls_stream_failed(stream))
        return;
    for (int64_t k = 0; k < a->n_spans; k++)
        for (int64_t i = 0; i < a->spans[k].count; i++)
            update(a, &a->spans[k], i);
}
