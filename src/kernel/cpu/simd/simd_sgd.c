/* simd_sgd.c -- the row of SGD: a sum of gradients that fades, and if wanted a look ahead along it.
 *
 * With g = gain (grad * factor + decay w):
 *     m = momentum m + g,   w = w - lr m,   or with Nesterov's look ahead   w - lr (g + momentum m) */
#include "kernel/cpu/rows_shared.h"
#include "kernel/cpu/simd/optimizer_update.h"

typedef struct sgd_rule {
    ls_v16 momentum, gain, decay;
    bool nesterov;
} sgd_rule;

LS_INLINE ls_v16 sgd_step(const void *rule, ls_v16 w, ls_v16 grad, ls_v16 *m)
{
    const sgd_rule *r = rule;
    ls_v16 g = v_mul(r->gain, v_fma(r->decay, w, grad));

    *m = moments_dust(v_fma(r->momentum, *m, g));
    return r->nesterov ? v_fma(r->momentum, *m, g) : *m;
}

LS_INLINE void sgd_piece(const ls_optimizer_update *a, const ls_optimizer_span *span, int64_t from,
                         int64_t n, uint16_t *copy)
{
    const ls_step_state *s = a->state;
    const sgd_rule rule = {.momentum = v_set(s->momentum),
                           .gain = v_set(s->gain),
                           .decay = v_set(s->weight_decay * span->decay),
                           .nesterov = s->nesterov};

    elements_one_moment(a, span, from, n, copy, sgd_step, &rule);
}

ELEMENTS_ROW(sgd)
