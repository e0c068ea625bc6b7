/* adamw.c -- one pass over weights, moments and gradients, at the speed of memory.
 *
 * w = w - lr step, with the step of moments.h. A task is PIECE elements of one span; it finds its
 * span by walking the list, which is short beside the piece.
 * A copy of the weights in bf16, for rows that read them so, is written on the way; where it is
 * rounded stochastically, from what is in the cache when a piece is done.
 * A stream that has failed must not touch the weights, so that the caller can go on from them. */
#include "kernel/cpu/rows_basic.h"
#include "kernel/cpu/simd/moments.h"

enum { PIECE = 16384 };

LS_INLINE void update_piece(const ls_adamw *a, const ls_adamw_span *span, int64_t from, int64_t n,
                            uint16_t *copy)
{
    moments_rule r = moments_make(a->state, a->result, span->decay);
    ls_v16 minus_lr = v_set(-(a->state->lr * span->rate));
    float *w = a->w + span->w_first + from, *m = a->m + span->first + from;
    float *v = a->v + span->first - span->v_gap + from;
    const float *g = a->grad + span->first + from;
    int64_t i = 0;

    for (; i + LS_LANES <= n; i += LS_LANES) {
        ls_v16 vm = v_load(m + i), vv = v_load(v + i);
        ls_v16 vw = v_load(w + i);
        vw = v_fma(minus_lr, moments_step(&r, vw, v_load(g + i), &vm, &vv), vw);
        v_store(w + i, vw);
        v_store(m + i, vm);
        v_store(v + i, vv);
        if (copy)
            v_store_bf16(copy + i, vw);
    }
    if (i < n) {
        int64_t left = n - i;
        ls_v16 vm = v_load_part(m + i, left, 0), vv = v_load_part(v + i, left, 0);
        ls_v16 vw = v_load_part(w + i, left, 0), vg = v_load_part(g + i, left, 0);
        vw = v_fma(minus_lr, moments_step(&r, vw, vg, &vm, &vv), vw);
        v_store_part(w + i, left, vw);
        v_store_part(m + i, left, vm);
        v_store_part(v + i, left, vv);
        if (copy)
            v_store_most_as(LS_BF16, copy, i, left, vw);
    }
}

static int64_t pieces(const ls_adamw_span *span)
{
    return (span->count + PIECE - 1) / PIECE;
}

static void adamw_task(void *context, int64_t index, int worker)
{
    const ls_adamw *a = context;
    const ls_adamw_span *span = a->spans;

    (void)worker;
    while (index >= pieces(span))
        index -= pieces(span++);
    int64_t from = index * PIECE, n = ls_min_i64(PIECE, span->count - from);
    int64_t place = span->w_first + from;
    uint16_t *copy = a->copy ? (uint16_t *)a->copy + place : NULL;
    if (copy && !a->rounding.stochastic) {
        update_piece(a, span, from, n, copy);
        return;
    }
    update_piece(a, span, from, n, NULL);
    if (copy)
        ls_rounding_piece(&a->rounding, a->w + place, copy, place, n);
}

void LS_ISA_NAME(ls_adamw_row)(ls_stream *stream, const ls_adamw *a)
{
    ls_adamw args = *a;
    int64_t tasks = 0;

    LS_BUG_IF(a->copy && a->copy_type != LS_BF16, "adamw with a copy of type %d",
              (int)a->copy_type);
    if (a->result->bad_block >= 0 || ls_stream_failed(stream))
        return;
    for (int64_t i = 0; i < a->n_spans; i++)
        tasks += pieces(&a->spans[i]);
    ls_pool_run(ls_stream_pool(stream), adamw_task, &args, tasks);
}
