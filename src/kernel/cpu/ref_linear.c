/* ref_linear.c -- the linear layer as the formula says it: one thread, sums in double.
 *
 * Slow and plain on purpose; every other version is compared with this one. Since a sum in double
 * is exact to far below the tolerance, the tree over leaves needs no care here. */
#include "kernel/cpu/ref_impl.h"
#include "kernel/cpu/rows_linear.h"

static double weight(const float *w, ls_layout layout, int64_t N, int64_t K, int64_t k, int64_t n)
{
    return (double)(layout == LS_LAYOUT_KN ? w[k * N + n] : w[n * K + k]);
}

void ls_ref_linear_fwd(ls_stream *stream, const ls_linear_fwd *a)
{
    const float *x = a->x;
    float *y = a->y, *z = a->z;
    int64_t ld = ls_linear_ld(a->ldy, a->N);

    (void)stream;
    ls_linear_fwd_check(a);
    for (int64_t m = 0; m < a->M; m++)
        for (int64_t n = 0; n < a->N; n++) {
            double sum = 0;
            for (int64_t k = 0; k < a->K; k++)
                sum += (double)x[m * a->K + k] * weight(a->w, a->layout, a->N, a->K, k, n);
            if (a->b)
                sum += (double)((const float *)a->b)[n];
            if (z)
                z[m * a->N + n] = (float)sum;
            if (a->accumulate)
                sum += (double)y[m * ld + n];
            y[m * ld + n] = (float)ls_ref_act_value(a->act, sum);
        }
}

void ls_ref_linear_bwd_x(ls_stream *stream, const ls_linear_bwd_x *a)
{
    const float *dy = a->dy, *z = a->z;
    float *dx = a->dx;
    int64_t ld = ls_linear_ld(a->ldy, a->N);

    (void)stream;
    ls_linear_bwd_x_check(a);
    for (int64_t m = 0; m < a->M; m++)
        for (int64_t k = 0; k < a->K; k++) {
            double sum = 0;
            for (int64_t n = 0; n < a->N; n++)
                sum += (double)dy[m * ld + n] * weight(a->w, a->layout, a->N, a->K, k, n);
            if (a->act != LS_ACT_NONE)
                sum *= ls_ref_act_slope(a->act, (double)z[m * a->K + k]);
            if (a->accumulate)
                sum += (double)dx[m * a->K + k];
            dx[m * a->K + k] = (float)sum;
        }
}

void ls_ref_linear_bwd_w(ls_stream *stream, const ls_linear_bwd_w *a)
{
    const float *x = a->x, *dy = a->dy;
    int64_t ld = ls_linear_ld(a->ldy, a->N);

    (void)stream;
    LS_BUG_IF(a->type != LS_F32, "linear_bwd_w of type %d", (int)a->type);
    for (int64_t k = 0; a->dw && k < a->K; k++)
        for (int64_t n = 0; n < a->N; n++) {
            float *dw = &a->dw[a->layout == LS_LAYOUT_KN ? k * a->N + n : n * a->K + k];
            double sum = 0;
            for (int64_t m = 0; m < a->M; m++)
                sum += (double)x[m * a->K + k] * (double)dy[m * ld + n];
            *dw = (float)(sum + (a->accumulate ? (double)*dw : 0));
        }
    for (int64_t n = 0; a->db && n < a->N; n++) {
        double sum = 0;
        for (int64_t m = 0; m < a->M; m++)
            sum += (double)dy[m * ld + n];
        a->db[n] = (float)(sum + (a->accumulate ? (double)a->db[n] : 0));
    }
}
