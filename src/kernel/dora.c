/* dora.c -- lengths of an adapted weight's outputs, and columns of a product times these.
 *
 * A task has some outputs, or some rows, and walks all of the other dimension in order, so no bit depends
 * on the number of threads. */
#include "kernel/dora.h"

#include <math.h>
#include "base/pool.h"

enum { OUTPUTS = 32, PIECE = 256, ROWS = 16, COLUMNS = 64 };

typedef union word {
    float f;
    uint32_t u;
} word;

static inline float get(const void *x, ls_dtype type, int64_t i)
{
    word w;

    if (type == LS_F32)
        return ((const float *)x)[i];
    w.u = (uint32_t)((const uint16_t *)x)[i] << 16;
    return w.f;
}

/* In bf16 to the nearest, ties to even; NaN stays NaN. */
static inline void put(void *x, ls_dtype type, int64_t i, float value)
{
    word w = {.f = value};

    if (type == LS_F32)
        ((float *)x)[i] = value;
    else if (isnan(value))
        ((uint16_t *)x)[i] = (uint16_t)(w.u >> 16 | 0x40);
    else
        ((uint16_t *)x)[i] = (uint16_t)((w.u + 0x7fff + (w.u >> 16 & 1)) >> 16);
}

/* --- lengths ----------------------------------------------------------------------------------- */

/* Inputs k .. k + n of v_j, and of w_j in w. */
static void take_piece(const ls_dora_lengths *a, int64_t j, int64_t k, int64_t n, float *w,
                       float *v)
{
    int64_t step = a->layout == LS_LAYOUT_NK ? 1 : a->N;
    int64_t first = a->layout == LS_LAYOUT_NK ? j * a->K + k : k * a->N + j;

    for (int64_t i = 0; i < n; i++)
        w[i] = v[i] = get(a->w, a->type, first + i * step);
    for (int64_t r = 0; r < a->rank; r++) {
        float factor = a->scale * get(a->b, a->type, j * a->rank + r);
        for (int64_t i = 0; i < n; i++)
            v[i] += factor * get(a->a, a->type, r * a->K + k + i);
    }
}

static void measure_task(void *context, int64_t index, int worker)
{
    const ls_dora_lengths *a = context;
    int64_t end = ls_min_i64((index + 1) * OUTPUTS, a->N);
    float w[PIECE], v[PIECE];

    (void)worker;
    for (int64_t j = index * OUTPUTS; j < end; j++) {
        double own = 0, adapted = 0;
        for (int64_t k = 0; k < a->K; k += PIECE) {
            int64_t n = ls_min_i64(PIECE, a->K - k);
            take_piece(a, j, k, n, w, v);
            for (int64_t i = 0; i < n; i++) {
                own += (double)w[i] * (double)w[i];
                adapted += (double)v[i] * (double)v[i];
            }
        }
        double inverse = adapted > 0 ? 1 / sqrt(adapted) : 0;
        a->inverse[j] = (float)inverse;
        a->factor[j] = (float)((sqrt(own) + (double)get(a->d, a->type, j)) * inverse);
    }
}

void ls_dora_measure(ls_stream *stream, const ls_dora_lengths *a)
{
    ls_dora_lengths args = *a;

    ls_pool_run(ls_stream_pool(stream), measure_task, &args, (a->N + OUTPUTS - 1) / OUTPUTS);
}

/* --- columns ----------------------------------------------------------------------------------- */

static void forward_task(void *context, int64_t index, int worker)
{
    const ls_dora_fwd *a = context;
    int64_t end = ls_min_i64((index + 1) * ROWS, a->M);

    (void)worker;
    for (int64_t row = index * ROWS; row < end; row++)
        for (int64_t c = 0; c < a->N; c++) {
            int64_t at = row * a->N + c;
            float y = a->factor[c] * get(a->z, a->type, at);
            y += a->bias ? get(a->bias, a->type, c) : 0;
            put(a->y, a->type, at, a->add ? y + get(a->add, a->type, at) : y);
        }
}

void ls_dora_forward(ls_stream *stream, const ls_dora_fwd *a)
{
    ls_dora_fwd args = *a;

    ls_pool_run(ls_stream_pool(stream), forward_task, &args, (a->M + ROWS - 1) / ROWS);
}

static void backward_task(void *context, int64_t index, int worker)
{
    const ls_dora_bwd *a = context;
    int64_t end = ls_min_i64((index + 1) * ROWS, a->M);

    (void)worker;
    for (int64_t row = index * ROWS; row < end; row++)
        for (int64_t c = 0; c < a->N; c++)
            put(a->dz, a->type, row * a->N + c, a->factor[c] * get(a->dy, a->type, row * a->N + c));
}

void ls_dora_backward(ls_stream *stream, const ls_dora_bwd *a)
{
    ls_dora_bwd args = *a;

    ls_pool_run(ls_stream_pool(stream), backward_task, &args, (a->M + ROWS - 1) / ROWS);
}

/* The gradient of lengths. */
typedef struct sums {
    ls_dora_bwd a;
    int64_t first, n, leaf_rows, leaves;
    bool accumulate;
    float *dd;
} sums;

/* Columns c .. c + n of the sum over `leaves` leaves from `leaf` on, along their tree. */
static void tree_sum(const sums *s, int64_t leaf, int64_t leaves, int64_t c, int64_t n, float *out)
{
    const ls_dora_bwd *a = &s->a;
    int64_t left = 1, from = leaf * s->leaf_rows;
    float right[COLUMNS];

    if (leaves == 1) {
        for (int64_t i = 0; i < n; i++)
            out[i] = 0;
        for (int64_t row = from; row < from + s->leaf_rows; row++)
            for (int64_t i = 0; i < n; i++) {
                int64_t at = row * a->N + c + i;
                out[i] += get(a->dy, a->type, at) * get(a->z, a->type, at) * a->inverse[c + i];
            }
        return;
    }
    while (left * 2 < leaves)
        left *= 2;
    tree_sum(s, leaf, left, c, n, out);
    tree_sum(s, leaf + left, leaves - left, c, n, right);
    for (int64_t i = 0; i < n; i++)
        out[i] += right[i];
}

static void lengths_task(void *context, int64_t index, int worker)
{
    const sums *s = context;
    int64_t from = index * COLUMNS, n = ls_min_i64(COLUMNS, s->n - from);
    float sum[COLUMNS];

    (void)worker;
    tree_sum(s, 0, s->leaves, s->first + from, n, sum);
    for (int64_t i = 0; i < n; i++)
        s->dd[from + i] = s->accumulate ? s->dd[from + i] + sum[i] : sum[i];
}

void ls_dora_backward_lengths(ls_stream *stream, const ls_dora_bwd *a, int64_t first, int64_t n,
                              int64_t leaves, bool accumulate, float *dd)
{
    sums s = {.a = *a,
              .first = first,
              .n = n,
              .leaf_rows = a->M / leaves,
              .leaves = leaves,
              .accumulate = accumulate,
              .dd = dd};

    LS_BUG_IF(leaves < 1 || a->M % leaves != 0, "%lld rows in %lld leaves", (long long)a->M,
              (long long)leaves);
    ls_pool_run(ls_stream_pool(stream), lengths_task, &s, (n + COLUMNS - 1) / COLUMNS);
}
