/* optimizer_update.h -- the walk over the spans of an update that goes element by element.
 *
 * A task is ELEMENTS_PIECE elements of one span; it finds its span by walking the list, which is
 * short beside the piece. A copy of the weights in bf16, for rows that read them so, is written on
 * the way; where it is rounded stochastically, from what is in the cache when a piece is done.
 * A stream that has failed must not touch the weights, so that the caller can go on from them. */
#pragma once
#include "kernel/cpu/simd/moments.h"

enum { ELEMENTS_PIECE = 16384 };

/* n elements of a span, from its element `from` on; copy: NULL, or where their copies begin. */
typedef void elements_update(const ls_optimizer_update *a, const ls_optimizer_span *span,
                             int64_t from, int64_t n, uint16_t *copy);

LS_INLINE int64_t elements_pieces(const ls_optimizer_span *span)
{
    return (span->count + ELEMENTS_PIECE - 1) / ELEMENTS_PIECE;
}

/* Pieces of all spans. */
LS_INLINE int64_t elements_tasks(const ls_optimizer_span *spans, int64_t n)
{
    int64_t tasks = 0;

    for (int64_t i = 0; i < n; i++)
        tasks += elements_pieces(&spans[i]);
    return tasks;
}

/* The span of a task, and the first of its elements. */
LS_INLINE const ls_optimizer_span *elements_span(const ls_optimizer_span *span, int64_t index,
                                                 int64_t *from_out)
{
    while (index >= elements_pieces(span))
        index -= elements_pieces(span++);
    *from_out = index * ELEMENTS_PIECE;
    return span;
}

LS_INLINE void elements_task(const ls_optimizer_update *a, int64_t index, elements_update *update)
{
    int64_t from;
    const ls_optimizer_span *span = elements_span(a->spans, index, &from);
    int64_t n = ls_min_i64(ELEMENTS_PIECE, span->count - from), place = span->w_first + from;
    uint16_t *copy = a->copy ? (uint16_t *)a->copy + place : NULL;
    if (copy && !a->rounding.stochastic) {
        update(a, span, from, n, copy);
        return;
    }
    update(a, span, from, n, NULL);
    if (copy)
        ls_rounding_piece(&a->rounding, a->w + place, copy, place, n);
}

LS_INLINE void elements_run(ls_stream *stream, const ls_optimizer_update *a, ls_pool_task task)
{
    ls_optimizer_update args = *a;

    LS_BUG_IF(a->copy && a->copy_type != LS_BF16, "an update with a copy of type %d",
              (int)a->copy_type);
    if (a->result->bad_block >= 0 || ls_stream_failed(stream))
        return;
    ls_pool_run(ls_stream_pool(stream), task, &args, elements_tasks(a->spans, a->n_spans));
}

/* The row of an optimizer whose update of a piece is name_piece(). */
#define ELEMENTS_ROW(name)                                                              \
    static void name##_task(void *context, int64_t index, int worker)                   \
    {                                                                                   \
        (void)worker;                                                                   \
        elements_task(context, index, name##_piece);                                    \
    }                                                                                   \
    void LS_ISA_NAME(ls_##name##_row)(ls_stream * stream, const ls_optimizer_update *a) \
    {                                                                                   \
        elements_run(stream, a, name##_task);                                           \
    }

/* Sixteen elements of an optimizer with one moment, which is updated in place; the step is
 * multiplied by the learning rate and taken off the weights. */
typedef ls_v16 elements_step(const void *rule, ls_v16 w, ls_v16 g, ls_v16 *m);

LS_INLINE void elements_one_moment(const ls_optimizer_update *a, const ls_optimizer_span *span,
                                   int64_t from, int64_t n, uint16_t *copy, elements_step *step,
                                   const void *rule)
{
    ls_v16 minus_lr = v_set(-(a->state->lr * span->rate)), factor = v_set(a->result->factor);
    float *w = a->w + span->w_first + from, *m = a->m + span->first + from;
    const float *grad = a->grad + span->first + from;

    for (int64_t i = 0; i < n; i += LS_LANES) {
        int64_t left = n - i;
        ls_v16 vw = v_load_most(w + i, left), vm = v_load_most(m + i, left);
        ls_v16 g = v_mul(v_load_most(grad + i, left), factor);
        vw = v_fma(minus_lr, step(rule, vw, g, &vm), vw);
        v_store_most(w + i, left, vw);
        v_store_most(m + i, left, vm);
        if (copy)
            v_store_most_as(LS_BF16, copy, i, left, vw);
    }
}
