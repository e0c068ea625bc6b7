/* moments.h -- the moments of Adam and the step that they ask for, sixteen at a time: what adamw
 * and lamb share.
 *
 * With g = grad * factor:
 *     m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
 *     step = m / bias1 / (sqrt(v / bias2) + eps) + decay w
 * The divisions by bias1 and sqrt(bias2) are turned into factors once per span. */
#pragma once
#include "kernel/kernel.h"
#include "kernel/cpu/simd/vec.h"

typedef struct moments_rule {
    ls_v16 factor, beta1, rest1, beta2, rest2, unbias1, unbias2, eps, decay;
} moments_rule;

LS_INLINE moments_rule moments_make(const ls_step_state *s, const ls_norm_result *result,
                                    float decay)
{
    return (moments_rule){.factor = v_set(result->factor),
                          .beta1 = v_set(s->beta1),
                          .rest1 = v_set(1.0f - s->beta1),
                          .beta2 = v_set(s->beta2),
                          .rest2 = v_set(1.0f - s->beta2),
                          .unbias1 = v_set(1.0f / s->bias1),
                          .unbias2 = v_set(1.0f / sqrtf(s->bias2)),
                          .eps = v_set(s->eps),
                          .decay = v_set(s->weight_decay * decay)};
}

/* x, or 0 where |x| < 2^-123. Without gradients m shrinks by beta1 a step and within a thousand
 * steps falls among the denormal numbers, where it stays for good: the least of them times 0.9 is
 * itself. The row is then 16 times slower, measured, for values that move no weight. */
LS_INLINE ls_v16 moments_dust(ls_v16 x)
{
    ls_v16 size = v_max(x, v_sub(v_set(0), x));

    return v_mul(x, v_min(v_set(1), v_round(v_mul(size, v_set(0x1p122f)))));
}

/* The step; m and v are updated in place. */
LS_INLINE ls_v16 moments_step(const moments_rule *r, ls_v16 w, ls_v16 grad, ls_v16 *m, ls_v16 *v)
{
    ls_v16 g = v_mul(grad, r->factor);

    *m = moments_dust(v_fma(r->beta1, *m, v_mul(r->rest1, g)));
    *v = v_fma(r->beta2, *v, v_mul(v_mul(r->rest2, g), g));
    ls_v16 step = v_div(v_mul(*m, r->unbias1), v_fma(v_sqrt(*v), r->unbias2, r->eps));
    return v_fma(r->decay, w, step);
}
