/* simd_lion.c -- the row of Lion: steps of one size, towards the sign of a mean of gradients.
 *
 * With g = grad * factor:
 *     w = w - lr (sign(b1 m + (1 - b1) g) + decay w),   m = b2 m + (1 - b2) g
 * The sign of x is x times 2^200, cut at -1 and 1: 0 stays 0, and even the smallest denormal number
 * has its sign. */
#include "kernel/cpu/rows_shared.h"
#include "kernel/cpu/simd/optimizer_update.h"

typedef struct lion_rule {
    ls_v16 beta1, rest1, beta2, rest2, decay;
} lion_rule;

LS_INLINE ls_v16 sign_of(ls_v16 x)
{
    ls_v16 large = v_mul(v_mul(x, v_set(0x1p100f)), v_set(0x1p100f));

    return v_max(v_set(-1), v_min(v_set(1), large));
}

LS_INLINE ls_v16 lion_step(const void *rule, ls_v16 w, ls_v16 g, ls_v16 *m)
{
    const lion_rule *r = rule;
    ls_v16 step = sign_of(v_fma(r->beta1, *m, v_mul(r->rest1, g)));

    *m = moments_dust(v_fma(r->beta2, *m, v_mul(r->rest2, g)));
    return v_fma(r->decay, w, step);
}

LS_INLINE void lion_piece(const ls_optimizer_update *a, const ls_optimizer_span *span, int64_t from,
                          int64_t n, uint16_t *copy)
{
    const ls_step_state *s = a->state;
    const lion_rule rule = {.beta1 = v_set(s->beta1),
                            .rest1 = v_set(1.0f - s->beta1),
                            .beta2 = v_set(s->beta2),
                            .rest2 = v_set(1.0f - s->beta2),
                            .decay = v_set(s->weight_decay * span->decay)};

    elements_one_moment(a, span, from, n, copy, lion_step, &rule);
}

ELEMENTS_ROW(lion)
