/* ref_linear.c -- the linear layer as the formula says it: one thread, sums in double.
 *
 * Slow and plain on purpose; every other version is compared with this one. Since a sum in double
 * is exact to far below the tolerance, the tree over leaves needs no care here. */
#include "kernel/cpu/ref_impl.h"
#include "kernel/cpu/rows_shared.h"

/* Where the weight from input k to output n lies. */
static int64_t place(ls_layout layout, int64_t N, int64_t K, int64_t k, int64_t n)
{
    return layout == LS_LAYOUT_KN ? k * N + n : n * K + k;
}

void ls_ref_linear_fwd(ls_stream *stream, const ls_linear_fwd *a)
{
    ls_dtype type = a->type;
    int64_t ld = ls_linear_ld(a->ldy, a->N);

    (void)stream;
    ls_linear_fwd_check(a);
    for (int64_t m = 0; m < a->M; m++)
        for (int64_t n = 0; n < a->N; n++) {
            double sum = 0;
            for (int64_t k = 0; k < a->K; k++)
                sum += ls_ref_load(a->x, type, m * a->K + k) *
                       ls_ref_load(a->w, type, place(a->layout, a->N, a->K, k, n));
            if (a->b)
                sum += ls_ref_load(a->b, type, n);
            if (a->z)
                ls_ref_store(a->z, type, m * a->N + n, sum);
            if (a->accumulate || a->add)
                sum += ls_ref_load(a->add ? a->add : a->y, type, m * ld + n);
            ls_ref_store(a->y, type, m * ld + n, ls_ref_act_value(a->act, sum));
        }
}

void ls_ref_linear_bwd_x(ls_stream *stream, const ls_linear_bwd_x *a)
{
    ls_dtype type = a->type;
    int64_t ld = ls_linear_ld(a->ldy, a->N);

    (void)stream;
    ls_linear_bwd_x_check(a);
    for (int64_t m = 0; m < a->M; m++)
        for (int64_t k = 0; k < a->K; k++) {
            double sum = 0;
            for (int64_t n = 0; n < a->N; n++)
                sum += ls_ref_load(a->dy, type, m * ld + n) *
                       ls_ref_load(a->w, type, place(a->layout, a->N, a->K, k, n));
            if (a->act != LS_ACT_NONE)
                sum *= ls_ref_act_slope(a->act, ls_ref_load(a->z, type, m * a->K + k));
            if (a->accumulate)
                sum += ls_ref_load(a->dx, type, m * a->K + k);
            ls_ref_store(a->dx, type, m * a->K + k, sum);
        }
}

void ls_ref_linear_bwd_w(ls_stream *stream, const ls_linear_bwd_w *a)
{
    int64_t ld = ls_linear_ld(a->ldy, a->N);

    (void)stream;
    LS_BUG_IF(!ls_ref_takes(a->type), "linear_bwd_w of type %d", (int)a->type);
    for (int64_t k = 0; a->dw && k < a->K; k++)
        for (int64_t n = 0; n < a->N; n++) {
            float *dw = &a->dw[place(a->layout, a->N, a->K, k, n)];
            double sum = 0;
            for (int64_t m = 0; m < a->M; m++)
                sum += ls_ref_load(a->x, a->type, m * a->K + k) *
                       ls_ref_load(a->dy, a->type, m * ld + n);
            *dw = (float)(sum + (a->accumulate ? (double)*dw : 0));
        }
    for (int64_t n = 0; a->db && n < a->N; n++) {
        double sum = 0;
        for (int64_t m = 0; m < a->M; m++)
            sum += ls_ref_load(a->dy, a->type, m * ld + n);
        a->db[n] = (float)(sum + (a->accumulate ? (double)a->db[n] : 0));
    }
}
