/* ref_norm.c -- norm rows by their formulas, in double. See simd/norm.c for the formulas. */
#include "kernel/cpu/ref_impl.h"
#include "kernel/cpu/rows_basic.h"

#include <math.h>

/* Mean (0 for RMS) and 1 / sqrt(variance + eps) of a row. */
static double row_mean(const float *s, int64_t C)
{
    double sum = 0;

    for (int64_t c = 0; c < C; c++)
        sum += (double)s[c];
    return sum / (double)C;
}

static double row_rstd(const float *s, int64_t C, double mean, double eps)
{
    double sum = 0;

    for (int64_t c = 0; c < C; c++)
        sum += ((double)s[c] - mean) * ((double)s[c] - mean);
    return 1 / sqrt(sum / (double)C + eps);
}

void ls_ref_norm_fwd(ls_stream *stream, const ls_norm_fwd *a)
{
    (void)stream;
    LS_BUG_IF(a->type != LS_F32, "norm_fwd of type %d", (int)a->type);
    for (int64_t row = 0; row < a->M; row++) {
        const float *s = (const float *)a->stream + row * a->C;
        float *y = (float *)a->y + row * a->C;
        if (a->x) {
            const float *x = (const float *)a->x + row * a->C;
            float *sum = (float *)a->sum + row * a->C;
            for (int64_t c = 0; c < a->C; c++)
                sum[c] = (float)((double)s[c] + (double)x[c] * ls_ref_keep(&a->drop, row, c, a->T));
            s = sum;
        }
        double mean = a->kind == LS_NORM_LAYER ? row_mean(s, a->C) : 0;
        double rstd = row_rstd(s, a->C, mean, (double)a->eps);
        for (int64_t c = 0; c < a->C; c++)
            y[c] = (float)(((double)s[c] - mean) * rstd * (double)((const float *)a->w)[c] +
                           (a->b ? (double)((const float *)a->b)[c] : 0));
        a->rstd[row] = (float)rstd;
        if (a->mean)
            a->mean[row] = (float)mean;
    }
}

/* The normalised value of one element. */
static double h_of(const ls_norm_bwd *a, int64_t row, int64_t c)
{
    double mean = a->kind == LS_NORM_LAYER ? (double)a->mean[row] : 0;

    return ((double)((const float *)a->sum)[row * a->C + c] - mean) * (double)a->rstd[row];
}

static double dy_of(const ls_norm_bwd *a, int64_t row, int64_t c)
{
    return (double)((const float *)a->dy)[row * a->C + c];
}

static void bwd_row(const ls_norm_bwd *a, int64_t row)
{
    float *ds = (float *)a->dsum + row * a->C;
    double mean_g = 0, mean_gh = 0;

    for (int64_t c = 0; c < a->C; c++) {
        double g = dy_of(a, row, c) * (double)((const float *)a->w)[c];
        mean_g += g / (double)a->C;
        mean_gh += g * h_of(a, row, c) / (double)a->C;
    }
    if (a->kind == LS_NORM_RMS)
        mean_g = 0;
    for (int64_t c = 0; c < a->C; c++) {
        double g = dy_of(a, row, c) * (double)((const float *)a->w)[c];
        double d = (double)a->rstd[row] * (g - mean_g - h_of(a, row, c) * mean_gh);
        if (a->add_to_dsum)
            d += (double)ds[c];
        ds[c] = (float)d;
        if (a->dx)
            ((float *)a->dx)[row * a->C + c] = (float)(d * ls_ref_keep(&a->drop, row, c, a->T));
    }
}

typedef struct column {
    const ls_norm_bwd *a;
    int64_t c;
} column;

static double leaf_dw(const void *context, int64_t leaf)
{
    const column *k = context;
    int64_t rows = k->a->M / k->a->leaves;
    double sum = 0;

    for (int64_t row = leaf * rows; row < (leaf + 1) * rows; row++)
        sum += dy_of(k->a, row, k->c) * h_of(k->a, row, k->c);
    return sum;
}

static double leaf_db(const void *context, int64_t leaf)
{
    const column *k = context;
    int64_t rows = k->a->M / k->a->leaves;
    double sum = 0;

    for (int64_t row = leaf * rows; row < (leaf + 1) * rows; row++)
        sum += dy_of(k->a, row, k->c);
    return sum;
}

void ls_ref_norm_bwd(ls_stream *stream, const ls_norm_bwd *a)
{
    (void)stream;
    LS_BUG_IF(a->type != LS_F32, "norm_bwd of type %d", (int)a->type);
    for (int64_t row = 0; row < a->M; row++)
        bwd_row(a, row);
    for (int64_t c = 0; c < a->C; c++) {
        column k = {a, c};
        if (a->dw) {
            double dw = ls_ref_tree_sum(leaf_dw, &k, a->leaves);
            a->dw[c] = (float)(dw + (a->accumulate ? (double)a->dw[c] : 0));
        }
        if (a->db) {
            double db = ls_ref_tree_sum(leaf_db, &k, a->leaves);
            a->db[c] = (float)(db + (a->accumulate ? (double)a->db[c] : 0));
        }
    }
}
