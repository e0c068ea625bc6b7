/* act.c -- the activation of the MLP, plain or gated, and its gradient.
 *
 * The activation is a constant in each copy of the loop (the loops are inlined into the switch), so
 * nothing is decided per element. Work is cut into pieces of PIECE columns of a row; a plain
 * activation is one long row. */
#include "kernel/cpu/rows_basic.h"
#include "kernel/cpu/simd/act.h"

enum { PIECE = 8192 };

/* One piece of a row. Without a gate, up and dup are NULL. */
typedef struct piece {
    const float *x, *up, *dy;
    float *y, *dx, *dup;
    int64_t n;
} piece;

LS_INLINE void fwd_piece(const piece *p, ls_act act)
{
    for (int64_t i = 0; i < p->n; i += LS_LANES) {
        int64_t left = p->n - i;
        ls_v16 y = act_value(act, v_load_most(p->x + i, left));
        if (p->up)
            y = v_mul(y, v_load_most(p->up + i, left));
        v_store_most(p->y + i, left, y);
    }
}

LS_INLINE void bwd_piece(const piece *p, ls_act act)
{
    for (int64_t i = 0; i < p->n; i += LS_LANES) {
        int64_t left = p->n - i;
        ls_v16 x = v_load_most(p->x + i, left), dy = v_load_most(p->dy + i, left);
        if (p->up) {
            ls_v16 up = v_load_most(p->up + i, left);
            v_store_most(p->dup + i, left, v_mul(dy, act_value(act, x)));
            dy = v_mul(dy, up);
        }
        v_store_most(p->dx + i, left, v_mul(dy, act_slope(act, x)));
    }
}

/* A plain activation sees its tensor as one row. */
static ls_act_args flatten(const ls_act_args *a)
{
    ls_act_args r = *a;

    LS_BUG_IF(a->type != LS_F32, "activation of type %d", (int)a->type);
    if (!a->gated) {
        r.F = a->M * a->F;
        r.M = 1;
    }
    return r;
}

static int64_t pieces(const ls_act_args *a)
{
    return (a->F + PIECE - 1) / PIECE;
}

static piece piece_at(const ls_act_args *a, int64_t index)
{
    int64_t row = index / pieces(a), column = index % pieces(a) * PIECE;
    int64_t in = row * a->F * (a->gated ? 2 : 1) + column, out = row * a->F + column;
    piece p = {.x = (const float *)a->x + in,
               .dy = a->dy ? (const float *)a->dy + out : NULL,
               .y = a->y ? (float *)a->y + out : NULL,
               .dx = a->dx ? (float *)a->dx + in : NULL,
               .n = ls_min_i64(PIECE, a->F - column)};

    if (a->gated) {
        p.up = p.x + a->F;
        p.dup = p.dx ? p.dx + a->F : NULL;
    }
    return p;
}

static void act_fwd_task(void *context, int64_t index, int worker)
{
    const ls_act_args *a = context;
    piece p = piece_at(a, index);

    (void)worker;
    switch (a->act) {
    case LS_ACT_GELU:
        fwd_piece(&p, LS_ACT_GELU);
        break;
    case LS_ACT_SILU:
        fwd_piece(&p, LS_ACT_SILU);
        break;
    case LS_ACT_NONE:
        fwd_piece(&p, LS_ACT_NONE);
        break;
    }
}

static void act_bwd_task(void *context, int64_t index, int worker)
{
    const ls_act_args *a = context;
    piece p = piece_at(a, index);

    (void)worker;
    switch (a->act) {
    case LS_ACT_GELU:
        bwd_piece(&p, LS_ACT_GELU);
        break;
    case LS_ACT_SILU:
        bwd_piece(&p, LS_ACT_SILU);
        break;
    case LS_ACT_NONE:
        bwd_piece(&p, LS_ACT_NONE);
        break;
    }
}

void LS_ISA_NAME(ls_act_fwd_row)(ls_stream *stream, const ls_act_args *a)
{
    ls_act_args args = flatten(a);

    ls_pool_run(ls_stream_pool(stream), act_fwd_task, &args, args.M * pieces(&args));
}

void LS_ISA_NAME(ls_act_bwd_row)(ls_stream *stream, const ls_act_args *a)
{
    ls_act_args args = flatten(a);

    ls_pool_run(ls_stream_pool(stream), act_bwd_task, &args, args.M * pieces(&args));
}
