/* simd_muon.c -- the momentum of matrices, and what stands between the products that make them
 * orthogonal. Element by element: a task is a piece of a span, or some rows of a matrix. */
#include "kernel/cpu/rows_shared.h"
#include "kernel/cpu/simd/optimizer_update.h"

/* --- momentum --------------------------------------------------------------------------------- */

static void momentum_task(void *context, int64_t index, int worker)
{
    const ls_momentum *a = context;
    int64_t from;
    const ls_optimizer_span *span = elements_span(a->spans, index, &from);
    ls_v16 factor = v_set(a->result->factor), keep = v_set(a->state->momentum);
    ls_v16 rest = v_set(1.0f - a->state->momentum);

    (void)worker;
    int64_t n = ls_min_i64(ELEMENTS_PIECE, span->count - from);
    float *m = a->m + span->first + from, *grad = a->grad + span->w_first + from;
    for (int64_t i = 0; i < n; i += LS_LANES) {
        ls_v16 g = v_mul(v_load_most(grad + i, n - i), factor);
        ls_v16 to = moments_dust(v_fma(keep, v_load_most(m + i, n - i), v_mul(rest, g)));
        v_store_most(m + i, n - i, to);
        v_store_most(grad + i, n - i, v_fma(keep, v_sub(to, g), g));
    }
}

void LS_ISA_NAME(ls_momentum_row)(ls_stream *stream, const ls_momentum *a)
{
    ls_momentum args = *a;

    if (a->result->bad_block >= 0 || ls_stream_failed(stream))
        return;
    ls_pool_run(ls_stream_pool(stream), momentum_task, &args, elements_tasks(a->spans, a->n_spans));
}

/* --- muon ------------------------------------------------------------------------------------- */

static int64_t rows_of_task(const ls_muon *a)
{
    return ls_max_i64(1, ELEMENTS_PIECE / a->cols);
}

LS_INLINE void step_row(const ls_muon *a, int64_t row)
{
    const float *x = a->x + row * a->cols;
    float *w = a->w + row * a->ld;
    uint16_t *copy = a->copy ? (uint16_t *)a->copy + row * a->ld : NULL;
    ls_v16 minus_lr = v_set(-a->state->lr), decay = v_set(a->state->weight_decay);
    ls_v16 scale = v_set(a->scale);

    for (int64_t i = 0; i < a->cols; i += LS_LANES) {
        int64_t left = a->cols - i;
        ls_v16 was = v_load_most(w + i, left);
        ls_v16 to = v_fma(minus_lr, v_fma(decay, was, v_mul(scale, v_load_most(x + i, left))), was);
        v_store_most(w + i, left, to);
        if (copy && !a->rounding.stochastic)
            v_store_most_as(LS_BF16, copy, i, left, to);
    }
    if (copy && a->rounding.stochastic)
        ls_rounding_piece(&a->rounding, w, copy, row * a->ld, a->cols);
}

LS_INLINE void scale_row(const ls_muon *a, int64_t row)
{
    float norm = a->result->norm;
    ls_v16 factor = v_set(1.0f / (norm > LS_MUON_EPS ? norm : LS_MUON_EPS));
    float *x = a->x + row * a->cols;

    for (int64_t i = 0; i < a->cols; i += LS_LANES)
        v_store_most(x + i, a->cols - i, v_mul(v_load_most(x + i, a->cols - i), factor));
}

LS_INLINE void poly_row(const ls_muon *a, int64_t row)
{
    float *x = a->x + row * a->cols;
    const float *from = a->from + row * a->cols;
    ls_v16 b = v_set(a->b), c = v_set(a->c);

    for (int64_t i = 0; i < a->cols; i += LS_LANES) {
        int64_t left = a->cols - i;
        v_store_most(x + i, left,
                     v_fma(b, v_load_most(from + i, left), v_mul(c, v_load_most(x + i, left))));
    }
    x[row] += a->a;
}

static void muon_task(void *context, int64_t index, int worker)
{
    const ls_muon *a = context;
    int64_t first = index * rows_of_task(a), end = ls_min_i64(a->rows, first + rows_of_task(a));

    (void)worker;
    for (int64_t row = first; row < end; row++)
        switch (a->part) {
        case LS_MUON_TAKE:
            memcpy(a->x + row * a->cols, a->from + row * a->ld, (size_t)a->cols * sizeof *a->x);
            break;
        case LS_MUON_SCALE:
            scale_row(a, row);
            break;
        case LS_MUON_POLY:
            poly_row(a, row);
            break;
        case LS_MUON_STEP:
            step_row(a, row);
            break;
        }
}

void LS_ISA_NAME(ls_muon_row)(ls_stream *stream, const ls_muon *a)
{
    ls_muon args = *a;

    ls_muon_check(a);
    if (ls_stream_failed(stream) || (a->part == LS_MUON_STEP && a->result->bad_block >= 0))
        return;
    ls_pool_run(ls_stream_pool(stream), muon_task, &args,
                (a->rows + rows_of_task(a) - 1) / rows_of_task(a));
}
