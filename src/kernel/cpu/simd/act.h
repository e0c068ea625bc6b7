/* act.h -- the activations and their slopes, one definition for the plain row and the fused ones.
 *
 * Both are z s with s = 1 / (1 + e^-w): w = z gives SiLU, and since (1 + tanh u) / 2 =
 * 1 / (1 + e^-2u), w = 2 sqrt(2 / pi) (z + 0.044715 z^3) gives GELU's tanh form. So small values
 * keep their digits, which 1 + tanh would lose. The slope is s + z s (1 - s) w', with
 * 1 - s = e^-w s. act is a constant where these are inlined. */
#pragma once
#include "kernel/cpu/simd/vec.h"
#include "kernel/kernel.h"

#define LS_GELU_1 1.5957691216057308f /* 2 sqrt(2 / pi) */
#define LS_GELU_3 (float)(1.5957691216057308 * 0.044715)

/* e^-w */
LS_HELPER ls_v16 act_exp(ls_act act, ls_v16 z)
{
    ls_v16 minus_slope = v_set(-1);

    if (act == LS_ACT_GELU)
        minus_slope = v_fma(v_mul(z, z), v_set(-LS_GELU_3), v_set(-LS_GELU_1));
    return v_exp(v_mul(z, minus_slope));
}

LS_HELPER ls_v16 act_value(ls_act act, ls_v16 z)
{
    if (act == LS_ACT_NONE)
        return z;
    return v_div(z, v_add(v_set(1), act_exp(act, z)));
}

LS_HELPER ls_v16 act_slope(ls_act act, ls_v16 z)
{
    if (act == LS_ACT_NONE)
        return v_set(1);
    /* Beyond, GELU's slope is 0 or 1 to far below the last digit; without the limit z^3 overflows
     * and meets a zero, and s falls among the slow denormal numbers. NaN passes: the second operand
     * wins. */
    if (act == LS_ACT_GELU)
        z = v_min(v_set(9.9f), v_max(v_set(-9.9f), z));
    ls_v16 e = act_exp(act, z), s = v_div(v_set(1), v_add(v_set(1), e));
    ls_v16 bend = v_mul(v_mul(z, s), v_mul(e, s));
    if (act == LS_ACT_GELU)
        bend = v_mul(bend, v_fma(v_mul(z, z), v_set(3 * LS_GELU_3), v_set(LS_GELU_1)));
    return v_add(s, bend);
}
