/* simd_adamw.c -- one pass over weights, moments and gradients, at the speed of memory: w = w - lr step,
 * with the step of moments.h, over the spans of optimizer_update.h. */
#include "kernel/cpu/rows_shared.h"
#include "kernel/cpu/simd/optimizer_update.h"

LS_INLINE void adamw_piece(const ls_optimizer_update *a, const ls_optimizer_span *span,
                           int64_t from, int64_t n, uint16_t *copy)
{
    moments_rule r = moments_make(a->state, a->result, span->decay);
    ls_v16 minus_lr = v_set(-(a->state->lr * span->rate));
    float *w = a->w + span->w_first + from, *m = a->m + span->first + from;
    float *v = a->v + span->first - span->v_gap + from;
    const float *g = a->grad + span->first + from;
    int64_t i = 0;

    for (; i + LS_LANES <= n; i += LS_LANES) {
        ls_v16 vm = v_load(m + i), vv = v_load(v + i);
        ls_v16 vw = v_load(w + i);
        vw = v_fma(minus_lr, moments_step(&r, vw, v_load(g + i), &vm, &vv), vw);
        v_store(w + i, vw);
        v_store(m + i, vm);
        v_store(v + i, vv);
        if (copy)
            v_store_bf16(copy + i, vw);
    }
    if (i < n) {
        int64_t left = n - i;
        ls_v16 vm = v_load_part(m + i, left, 0), vv = v_load_part(v + i, left, 0);
        ls_v16 vw = v_load_part(w + i, left, 0), vg = v_load_part(g + i, left, 0);
        vw = v_fma(minus_lr, moments_step(&r, vw, vg, &vm, &vv), vw);
        v_store_part(w + i, left, vw);
        v_store_part(m + i, left, vm);
        v_store_part(v + i, left, vv);
        if (copy)
            v_store_most_as(LS_BF16, copy, i, left, vw);
    }
}

ELEMENTS_ROW(adamw)
