/* ref_norm.c -- norm rows by their formulas, in double. See simd/simd_norm.c for the formulas. */
#include "kernel/cpu/ref_impl.h"
#include "kernel/cpu/rows_shared.h"

#include <math.h>

/* Mean (0 for RMS) and 1 / sqrt(variance + eps) of the row of s that begins at element `first`. */
static double row_mean(const ls_norm_fwd *a, const void *s, int64_t first)
{
    double sum = 0;

    for (int64_t c = 0; c < a->C; c++)
        sum += ls_ref_load(s, a->type, first + c);
    return sum / (double)a->C;
}

static double row_rstd(const ls_norm_fwd *a, const void *s, int64_t first, double mean)
{
    double sum = 0;

    for (int64_t c = 0; c < a->C; c++) {
        double x = ls_ref_load(s, a->type, first + c) - mean;
        sum += x * x;
    }
    return 1 / sqrt(sum / (double)a->C + (double)a->eps);
}

void ls_ref_norm_fwd(ls_stream *stream, const ls_norm_fwd *a)
{
    (void)stream;
    LS_BUG_IF(!ls_ref_takes(a->type), "norm_fwd of type %d", (int)a->type);
    for (int64_t row = 0; row < a->M; row++) {
        const void *s = a->x ? a->sum : a->stream; /* the sum as it is kept: bwd reads that too */
        int64_t first = row * a->C;
        for (int64_t c = 0; a->x && c < a->C; c++)
            ls_ref_store(a->sum, a->type, first + c,
                         ls_ref_load(a->stream, a->type, first + c) +
                             ls_ref_load(a->x, a->type, first + c) *
                                 ls_ref_keep(&a->drop, row, c, a->T));
        double mean = a->kind == LS_NORM_LAYER ? row_mean(a, s, first) : 0;
        double rstd = row_rstd(a, s, first, mean);
        for (int64_t c = 0; c < a->C; c++) {
            double h = (ls_ref_load(s, a->type, first + c) - mean) * rstd;
            ls_ref_store(a->y, a->type, first + c,
                         h * ls_ref_load(a->w, a->type, c) +
                             (a->b ? ls_ref_load(a->b, a->type, c) : 0));
        }
        a->rstd[row] = (float)rstd;
        if (a->mean)
            a->mean[row] = (float)mean;
    }
}

/* The normalised value of one element. */
static double h_of(const ls_norm_bwd *a, int64_t row, int64_t c)
{
    double mean = a->kind == LS_NORM_LAYER ? (double)a->mean[row] : 0;

    return (ls_ref_load(a->sum, a->type, row * a->C + c) - mean) * (double)a->rstd[row];
}

static double dy_of(const ls_norm_bwd *a, int64_t row, int64_t c)
{
    return ls_ref_load(a->dy, a->type, row * a->C + c);
}

static void bwd_row(const ls_norm_bwd *a, int64_t row)
{
    int64_t first = row * a->C;
    double mean_g = 0, mean_gh = 0;

    for (int64_t c = 0; c < a->C; c++) {
        double g = dy_of(a, row, c) * ls_ref_load(a->w, a->type, c);
        mean_g += g / (double)a->C;
        mean_gh += g * h_of(a, row, c) / (double)a->C;
    }
    if (a->kind == LS_NORM_RMS)
        mean_g = 0;
    for (int64_t c = 0; c < a->C; c++) {
        double g = dy_of(a, row, c) * ls_ref_load(a->w, a->type, c);
        double d = (double)a->rstd[row] * (g - mean_g - h_of(a, row, c) * mean_gh);
        if (a->add_to_dsum)
            d += ls_ref_load(a->dsum, a->type, first + c);
        ls_ref_store(a->dsum, a->type, first + c, d);
        if (a->dx)
            ls_ref_store(a->dx, a->type, first + c, d * ls_ref_keep(&a->drop, row, c, a->T));
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
    LS_BUG_IF(!ls_ref_takes(a->type), "norm_bwd of type %d", (int)a->type);
    LS_BUG_IF(a->dx_sum, "norm_bwd of the CPU does not sum dx");
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
