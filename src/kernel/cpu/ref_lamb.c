/* ref_lamb.c -- LAMB by its formula, in double. */
#include "kernel/cpu/ref_impl.h"
#include "kernel/cpu/rows_shared.h"

#include <math.h>

static void direction(const ls_lamb *a, const ls_lamb_piece *p)
{
    const ls_step_state *s = a->state;
    double b1 = (double)s->beta1, b2 = (double)s->beta2, w2 = 0, u2 = 0;

    for (int64_t k = 0; k < p->count; k++) {
        int64_t i = p->first + k;
        float *grad = &a->grad[p->g_first + k];
        double g = (double)*grad * (double)a->result->factor;
        double w = (double)a->w[p->w_first + k];
        double m = b1 * (double)a->m[i] + (1 - b1) * g;
        double v = b2 * (double)a->v[i] + (1 - b2) * g * g;
        double u = m / (double)s->bias1 / (sqrt(v / (double)s->bias2) + (double)s->eps) +
                   (double)s->weight_decay * (double)p->decay * w;
        a->m[i] = (float)m;
        a->v[i] = (float)v;
        *grad = (float)u;
        w2 += w * w;
        u2 += u * u;
    }
    a->squares[p->number] = (float)w2;
    a->squares[a->n_squares + p->number] = (float)u2;
}

static void step(const ls_lamb *a, const ls_lamb_piece *p)
{
    double rate = (double)a->state->lr * (double)a->ratios[p->tensor];

    for (int64_t i = 0; i < p->count; i++) {
        float *w = &a->w[p->w_first + i];
        *w = (float)((double)*w - rate * (double)a->grad[p->g_first + i]);
        if (a->copy)
            ls_ref_copy(a->copy, a->copy_type, &a->rounding, p->w_first + i, *w);
    }
}

void ls_ref_lamb(ls_stream *stream, const ls_lamb *a)
{
    LS_BUG_IF(a->copy && !ls_ref_takes(a->copy_type), "lamb with a copy of type %d",
              (int)a->copy_type);
    if (a->result->bad_block >= 0 || ls_stream_failed(stream))
        return;
    if (a->part == LS_LAMB_STEP)
        ls_lamb_ratios(a);
    for (int64_t k = 0; k < a->n_pieces; k++)
        if (a->part == LS_LAMB_STEP)
            step(a, &a->pieces[k]);
        else
            direction(a, &a->pieces[k]);
}
