/* ref_act.c -- activations by their formulas, in double. */
#include "kernel/cpu/ref_impl.h"
#include "kernel/cpu/rows_basic.h"

void ls_ref_act_fwd(ls_stream *stream, const ls_act_args *a)
{
    const float *x = a->x;
    float *y = a->y;

    (void)stream;
    LS_BUG_IF(a->type != LS_F32, "activation of type %d", (int)a->type);
    for (int64_t m = 0; m < a->M; m++)
        for (int64_t f = 0; f < a->F; f++) {
            int64_t in = m * a->F * (a->gated ? 2 : 1) + f;
            double v = ls_ref_act_value(a->act, (double)x[in]);
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
                dx[in + a->F] = (float)(d * ls_ref_act_value(a->act, v));
            }
            dx[in] = (float)(d * up * ls_ref_act_slope(a->act, v));
        }
}
