/* adamw.c -- one pass over weights, moments and gradients, at the speed of memory.
 *
 * With g = grad * factor:
 *     m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
 *     w = w - lr (m / bias1 / (sqrt(v / bias2) + eps) + decay w)
 * The divisions by bias1 and sqrt(bias2) are turned into factors once per span. A task is PIECE
 * elements of one span; it finds its span by walking the list, which is short beside the piece.
 * A copy of the weights in bf16, for rows that read them so, is written on the way.
 * A stream that has failed must not touch the weights, so that the caller can go on from them. */
#include "kernel/cpu/rows_basic.h"
#include "kernel/cpu/simd/vec.h"

enum { PIECE = 16384 };

typedef struct rule {
    ls_v16 factor, beta1, rest1, beta2, rest2, unbias1, unbias2, eps, decay, minus_lr;
} rule;

LS_INLINE rule make_rule(const ls_adamw *a, const ls_adamw_span *span)
{
    const ls_step_state *s = a->state;

    return (rule){.factor = v_set(a->result->factor),
                  .beta1 = v_set(s->beta1),
                  .rest1 = v_set(1.0f - s->beta1),
                  .beta2 = v_set(s->beta2),
                  .rest2 = v_set(1.0f - s->beta2),
                  .unbias1 = v_set(1.0f / s->bias1),
                  .unbias2 = v_set(1.0f / sqrtf(s->bias2)),
                  .eps = v_set(s->eps),
                  .decay = v_set(s->weight_decay * span->decay),
                  .minus_lr = v_set(-(s->lr * span->rate))};
}

/* x, or 0 where |x| < 2^-123. Without gradients m shrinks by beta1 a step and within a thousand
 * steps falls among the denormal numbers, where it stays for good: the least of them times 0.9 is
 * itself. The row is then 16 times slower, measured, for values that move no weight. */
LS_INLINE ls_v16 without_dust(ls_v16 x)
{
    ls_v16 size = v_max(x, v_sub(v_set(0), x));

    return v_mul(x, v_min(v_set(1), v_round(v_mul(size, v_set(0x1p122f)))));
}

/* New w; m and v are updated in place. */
LS_INLINE ls_v16 update(const rule *r, ls_v16 w, ls_v16 grad, ls_v16 *m, ls_v16 *v)
{
    ls_v16 g = v_mul(grad, r->factor);

    *m = without_dust(v_fma(r->beta1, *m, v_mul(r->rest1, g)));
    *v = v_fma(r->beta2, *v, v_mul(v_mul(r->rest2, g), g));
    ls_v16 step = v_div(v_mul(*m, r->unbias1), v_fma(v_sqrt(*v), r->unbias2, r->eps));
    return v_fma(r->minus_lr, v_fma(r->decay, w, step), w);
}

LS_INLINE void update_piece(const ls_adamw *a, const ls_adamw_span *span, int64_t from, int64_t n,
                            uint16_t *copy)
{
    rule r = make_rule(a, span);
    float *w = a->w + span->w_first + from, *m = a->m + span->first + from;
    float *v = a->v + span->first + from;
    const float *g = a->grad + span->first + from;
    int64_t i = 0;

    for (; i + LS_LANES <= n; i += LS_LANES) {
        ls_v16 vm = v_load(m + i), vv = v_load(v + i);
        ls_v16 vw = update(&r, v_load(w + i), v_load(g + i), &vm, &vv);
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
        vw = update(&r, vw, vg, &vm, &vv);
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
    if (a->copy)
        update_piece(a, span, from, n, (uint16_t *)a->copy + span->w_first + from);
    else
        update_piece(a, span, from, n, NULL);
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
