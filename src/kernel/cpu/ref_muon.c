/* ref_muon.c -- the rows of Muon by their formulas, in double. */
#include "kernel/cpu/ref_impl.h"
#include "kernel/cpu/rows_shared.h"

#include <math.h>

void ls_ref_momentum(ls_stream *stream, const ls_momentum *a)
{
    double keep = (double)a->state->momentum;

    if (a->result->bad_block >= 0 || ls_stream_failed(stream))
        return;
    for (const ls_optimizer_span *s = a->spans; s < a->spans + a->n_spans; s++)
        for (int64_t i = 0; i < s->count; i++) {
            float *there = &a->m[s->first + i], *grad = &a->grad[s->w_first + i];
            double g = (double)*grad * (double)a->result->factor;
            double m = keep * (double)*there + (1 - keep) * g;
            *there = (float)m;
            *grad = (float)(g + keep * (m - g));
        }
}

/* Element (r, c) of a part that reads and writes x. */
static double value(const ls_muon *a, int64_t r, int64_t c)
{
    double x = (double)a->x[r * a->cols + c];

    switch (a->part) {
    case LS_MUON_TAKE:
        return (double)a->from[r * a->ld + c];
    case LS_MUON_SCALE:
        return x / fmax((double)a->result->norm, (double)LS_MUON_EPS);
    case LS_MUON_POLY:
        return (r == c ? (double)a->a : 0) + (double)a->b * (double)a->from[r * a->cols + c] +
               (double)a->c * x;
    case LS_MUON_STEP:
        break;
    }
    return x;
}

void ls_ref_muon(ls_stream *stream, const ls_muon *a)
{
    const ls_step_state *s = a->state;

    ls_muon_check(a);
    if (ls_stream_failed(stream) || (a->part == LS_MUON_STEP && a->result->bad_block >= 0))
        return;
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t c = 0; c < a->cols; c++) {
            double x = value(a, r, c);
            if (a->part != LS_MUON_STEP) {
                a->x[r * a->cols + c] = (float)x;
                continue;
            }
            float *w = &a->w[r * a->ld + c];
            double pull = (double)a->scale * x + (double)s->weight_decay * (double)*w;
            *w = (float)((double)*w - (double)s->lr * pull);
            if (a->copy)
                ls_ref_copy(a->copy, a->copy_type, &a->rounding, r * a->ld + c, *w);
        }
}
