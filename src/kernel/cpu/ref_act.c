/* ref_act.c -- activations by their formulas, in double. */
#include "kernel/cpu/rows_basic.h"

#include <math.h>

#define GELU_K 0.79788456080286535588 /* sqrt(2 / pi) */

static double value(ls_act act, double x)
{
    if (act == LS_ACT_GELU)
        return 0.5 * x * (1 + tanh(GELU_K * (x + 0.044715 * x * x * x)));
    return act == LS_ACT_SILU ? x / (1 + exp(-x)) : x;
}

static double slope(ls_act act, double x)
{
    if (act == LS_ACT_GELU) {
        double t = tanh(GELU_K * (x + 0.044715 * x * x * x));
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * GELU_K * (1 + 3 * 0.044715 * x * x);
    }
    if (act == LS_ACT_SILU) {
        double s = 1 / (1 + exp(-x));
        return s * (1 + x * (1 - s));
    }
    return 1;
}

void ls_ref_act_fwd(ls_stream *stream, const ls_act_args *a)
{
    const float *x = a->x;
    float *y = a->y;

    (void)stream;
    LS_BUG_IF(a->type != LS_F32, "activation of type %d", (int)a->type);
    for (int64_t m = 0; m < a->M; m++)
        for (int64_t f = 0; f < a->F; f++) {
            int64_t in = m * a->F * (a->gated ? 2 : 1) + f;
            double v = value(a->act, (double)x[in]);
            y[m * a->F + f] = (float)(a->gated ? v * (double)x[in + a->F] : v);
        }
}

void ls_ref_act_bwd(ls_stream *stream, const ls_act_args *a)
{
    const float *x = a->x, *dy = a->dy;
    float *dx = a->dx;

    (void)stream;
    LS_BUG_IF(a->type != LS_F32, "activation of type %d", (int)a->type);
    for (int64_t m = 0; m < a->M; m++)
        for (int64_t f = 0; f < a->F; f++) {
            int64_t in = m * a->F * (a->gated ? 2 : 1) + f;
            double d = (double)dy[m * a->F + f], v = (double)x[in], up = 1;
            if (a->gated) {
                up = (double)x[in + a->F];
                dx[in + a->F] = (float)(d * value(a->act, v));
            }
            dx[in] = (float)(d * up * slope(a->act, v));
        }
}
