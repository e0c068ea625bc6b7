/* ref_optimizers.c -- the optimizers that update element by element, by their formulas, in double: one
 * walk over the spans, and a rule each (kernel.h). */
#include "kernel/cpu/ref_impl.h"
#include "kernel/cpu/rows_shared.h"

#include <math.h>

/* What a rule reads of an element; it leaves the new moments here. */
typedef struct element {
    double w, g, m, v, decay;
} element;

/* The step: times the learning rate it is taken off the weight. */
typedef double rule(const ls_step_state *s, element *e);

static double adamw(const ls_step_state *s, element *e)
{
    double b1 = (double)s->beta1, b2 = (double)s->beta2;

    e->m = b1 * e->m + (1 - b1) * e->g;
    e->v = b2 * e->v + (1 - b2) * e->g * e->g;
    return e->m / (double)s->bias1 / (sqrt(e->v / (double)s->bias2) + (double)s->eps) +
           e->decay * e->w;
}

static double lion(const ls_step_state *s, element *e)
{
    double b1 = (double)s->beta1, b2 = (double)s->beta2, mean = b1 * e->m + (1 - b1) * e->g;

    e->m = b2 * e->m + (1 - b2) * e->g;
    return (mean > 0) - (mean < 0) + e->decay * e->w;
}

static double sgd(const ls_step_state *s, element *e)
{
    double g = (double)s->gain * (e->g + e->decay * e->w), keep = (double)s->momentum;

    e->m = keep * e->m + g;
    return s->nesterov ? g + keep * e->m : e->m;
}

/* Element k of a span; v NULL: the rule has one moment. */
static void update(const ls_optimizer_update *a, const ls_optimizer_span *span, int64_t k,
                   rule *step, float *v)
{
    float *m = &a->m[span->first + k], *w = &a->w[span->w_first + k];
    const ls_step_state *s = a->state;
    element e = {.w = (double)*w,
                 .g = (double)a->grad[span->first + k] * (double)a->result->factor,
                 .m = (double)*m,
                 .v = v ? (double)*v : 0,
                 .decay = (double)s->weight_decay * (double)span->decay};

    *w = (float)(e.w - (double)s->lr * (double)span->rate * step(s, &e));
    *m = (float)e.m;
    if (v)
        *v = (float)e.v;
    if (a->copy) /* the weight as it is kept, so that a copy made of it later is the same */
        ls_ref_copy(a->copy, a->copy_type, &a->rounding, span->w_first + k, *w);
}

static void run(ls_stream *stream, const ls_optimizer_update *a, rule *step, bool two_moments)
{
    LS_BUG_IF(a->copy && !ls_ref_takes(a->copy_type), "an update with a copy of type %d",
              (int)a->copy_type);
    if (a->result->bad_block >= 0 || ls_stream_failed(stream))
        return;
    for (const ls_optimizer_span *span = a->spans; span < a->spans + a->n_spans; span++)
        for (int64_t k = 0; k < span->count; k++)
            update(a, span, k, step, two_moments ? &a->v[span->first - span->v_gap + k] : NULL);
}

void ls_ref_adamw(ls_stream *stream, const ls_optimizer_update *a)
{
    run(stream, a, adamw, true);
}

void ls_ref_lion(ls_stream *stream, const ls_optimizer_update *a)
{
    run(stream, a, lion, false);
}

void ls_ref_sgd(ls_stream *stream, const ls_optimizer_update *a)
{
    run(stream, a, sgd, false);
}
