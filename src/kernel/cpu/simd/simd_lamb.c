/* simd_lamb.c -- Adam's direction, its length beside that of the weights, and the step.
 *
 * The direction takes the place of the gradient, which is not read again, so that the second part
 * neither keeps another buffer nor computes roots and quotients twice. A task is one piece, in both
 * parts; its squares go over CHAINS vectors of sums that are joined at the end, always in the same
 * order, so a piece has the same squares whoever computes them. */
#include "kernel/cpu/rows_shared.h"
#include "kernel/cpu/simd/moments.h"

enum { CHAINS = 4 };

/* Sums of squares of weights and directions, in turn over the chains. */
typedef struct sums {
    ls_v16 w[CHAINS], u[CHAINS];
} sums;

LS_INLINE float join(ls_v16 *chains)
{
    for (int half = CHAINS / 2; half; half /= 2)
        for (int j = 0; j < half; j++)
            chains[j] = v_add(chains[j], chains[j + half]);
    return v_sum(chains[0]);
}

/* The direction of sixteen elements at i, or of the `left` that are there. */
LS_INLINE ls_v16 direct(const moments_rule *r, const ls_lamb *a, const ls_lamb_piece *p, int64_t i,
                        int64_t left, ls_v16 *w_out)
{
    float *m = a->m + p->first + i, *v = a->v + p->first + i, *g = a->grad + p->g_first + i;
    const float *w = a->w + p->w_first + i;
    ls_v16 vm = v_load_most(m, left), vv = v_load_most(v, left);

    *w_out = v_load_most(w, left);
    ls_v16 u = moments_step(r, *w_out, v_load_most(g, left), &vm, &vv);
    v_store_most(m, left, vm);
    v_store_most(v, left, vv);
    v_store_most(g, left, u);
    return u;
}

static void direction_task(void *context, int64_t index, int worker)
{
    const ls_lamb *a = context;
    const ls_lamb_piece *p = &a->pieces[index];
    moments_rule r = moments_make(a->state, a->result, p->decay);
    sums s;

    (void)worker;
    for (int j = 0; j < CHAINS; j++)
        s.w[j] = s.u[j] = v_set(0);
    for (int64_t i = 0; i < p->count; i += CHAINS * LS_LANES)
        for (int j = 0; j < CHAINS && i + j * LS_LANES < p->count; j++) {
            int64_t at = i + j * LS_LANES;
            ls_v16 w, u = direct(&r, a, p, at, p->count - at, &w);
            s.w[j] = v_fma(w, w, s.w[j]);
            s.u[j] = v_fma(u, u, s.u[j]);
        }
    a->squares[p->number] = join(s.w);
    a->squares[a->n_squares + p->number] = join(s.u);
}

static void step_task(void *context, int64_t index, int worker)
{
    const ls_lamb *a = context;
    const ls_lamb_piece *p = &a->pieces[index];
    ls_v16 minus_rate = v_set(-(a->state->lr * a->ratios[p->tensor]));
    float *w = a->w + p->w_first;
    const float *u = a->grad + p->g_first;
    uint16_t *copy = a->copy ? (uint16_t *)a->copy + p->w_first : NULL;

    (void)worker;
    for (int64_t i = 0; i < p->count; i += LS_LANES) {
        int64_t left = p->count - i;
        ls_v16 to = v_fma(minus_rate, v_load_most(u + i, left), v_load_most(w + i, left));
        v_store_most(w + i, left, to);
        if (copy && !a->rounding.stochastic)
            v_store_most_as(LS_BF16, copy, i, left, to);
    }
    if (copy && a->rounding.stochastic)
        ls_rounding_piece(&a->rounding, w, copy, p->w_first, p->count);
}

void LS_ISA_NAME(ls_lamb_row)(ls_stream *stream, const ls_lamb *a)
{
    ls_lamb args = *a;

    LS_BUG_IF(a->copy && a->copy_type != LS_BF16, "lamb with a copy of type %d", (int)a->copy_type);
    if (a->result->bad_block >= 0 || ls_stream_failed(stream))
        return;
    if (a->part == LS_LAMB_STEP)
        ls_lamb_ratios(a);
    ls_pool_run(ls_stream_pool(stream), a->part == LS_LAMB_STEP ? step_task : direction_task, &args,
                a->n_pieces);
}
