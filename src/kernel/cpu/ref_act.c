/* ref_act.c -- activations by their formulas, in double. */
#include "kernel/cpu/ref_impl.h"
#include "kernel/cpu/rows_shared.h"

void ls_ref_act_fwd(ls_stream *stream, const ls_act_args *a)
{
    (void)stream;
    LS_BUG_IF(!ls_ref_takes(a->type), "activation of type %d", (int)a->type);
    for (int64_t m = 0; m < a->M; m++)
        for (int64_t f = 0; f < a->F; f++) {
            int64_t in = m * a->F * (a->gated ? 2 : 1) + f;
            double v = ls_ref_act_value(a->act, ls_ref_load(a->x, a->type, in));
            if (a->gated)
                v *= ls_ref_load(a->x, a->type, in + a->F);
            ls_ref_store(a->y, a->type, m * a->F + f, v);
        }
}

void ls_ref_act_bwd(ls_stream *stream, const ls_act_args *a)
{
    (void)stream;
    LS_BUG_IF(!ls_ref_takes(a->type), "activation of type %d", (int)a->type);
    for (int64_t m = 0; m < a->M; m++)
        for (int64_t f = 0; f < a->F; f++) {
            int64_t in = m * a->F * (a->gated ? 2 : 1) + f;
            double d = ls_ref_load(a->dy, a->type, m * a->F + f);
            double v = ls_ref_load(a->x, a->type, in), up = 1;
            if (a->gated) {
                up = ls_ref_load(a->x, a->type, in + a->F);
                ls_ref_store(a->dx, a->type, in + a->F, d * ls_ref_act_value(a->act, v));
            }
            ls_ref_store(a->dx, a->type, in, d * up * ls_ref_act_slope(a->act, v));
        }
}
