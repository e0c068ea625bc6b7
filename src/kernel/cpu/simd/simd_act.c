/* simd_act.c -- the activation of the MLP, plain or gated, and its gradient.
 *
 * The activation and the type are constants in each copy of the loop (the loops are inlined into
 * the switch), so nothing is decided per element. A plain activation is one long row. A task takes
 * PIECE columns of a row, or as many short rows as make PIECE elements. */
#include "kernel/cpu/rows_shared.h"
#include "kernel/cpu/simd/act.h"

enum { PIECE = 8192 };

/* One piece of a row. Without a gate, up and dup are NULL. */
typedef struct piece {
    const void *x, *up, *dy;
    void *y, *dx, *dup;
    int64_t n;
} piece;

LS_INLINE void fwd_at(const ls_dtype type, const piece *p, ls_act act, int64_t i, int64_t n)
{
    ls_v16 y = act_value(act, v_load_most_as(type, p->x, i, n));

    if (p->up)
        y = v_mul(y, v_load_most_as(type, p->up, i, n));
    v_store_most_as(type, p->y, i, n, y);
}

LS_INLINE void fwd_piece(const ls_dtype type, const piece *p, ls_act act)
{
    int64_t i = 0;

    for (; i + LS_LANES <= p->n; i += LS_LANES)
        fwd_at(type, p, act, i, LS_LANES);
    if (i < p->n)
        fwd_at(type, p, act, i, p->n - i);
}

LS_INLINE void bwd_at(const ls_dtype type, const piece *p, ls_act act, int64_t i, int64_t n)
{
    ls_v16 value, slope = act_both(act, v_load_most_as(type, p->x, i, n), &value);
    ls_v16 dy = v_load_most_as(type, p->dy, i, n), up = v_set(1);

    if (p->up) {
        up = v_load_most_as(type, p->up, i, n);
        v_store_most_as(type, p->dup, i, n, v_mul(dy, value));
        dy = v_mul(dy, up);
    }
    v_store_most_as(type, p->dx, i, n, v_mul(dy, slope));
}

LS_INLINE void bwd_piece(const ls_dtype type, const piece *p, ls_act act)
{
    int64_t i = 0;

    for (; i + LS_LANES <= p->n; i += LS_LANES)
        bwd_at(type, p, act, i, LS_LANES);
    if (i < p->n)
        bwd_at(type, p, act, i, p->n - i);
}

/* A plain activation sees its tensor as one row. */
static ls_act_args flatten(const ls_act_args *a)
{
    ls_act_args r = *a;

    LS_BUG_IF(a->type != LS_F32 && a->type != LS_BF16, "activation of type %d", (int)a->type);
    if (!a->gated) {
        r.F = a->M * a->F;
        r.M = 1;
    }
    return r;
}

/* Tasks that one row takes, and rows that one task takes; one of them is 1. */
static int64_t pieces(const ls_act_args *a)
{
    return (a->F + PIECE - 1) / PIECE;
}

static int64_t rows(const ls_act_args *a)
{
    return a->F >= PIECE ? 1 : PIECE / ls_max_i64(a->F, 1);
}

static int64_t tasks(const ls_act_args *a)
{
    return (a->M + rows(a) - 1) / rows(a) * pieces(a);
}

LS_INLINE piece piece_at(const ls_dtype type, const ls_act_args *a, int64_t row, int64_t column)
{
    int64_t size = type == LS_BF16 ? 2 : 4;
    int64_t in = (row * a->F * (a->gated ? 2 : 1) + column) * size;
    int64_t out = (row * a->F + column) * size;
    piece p = {.x = (const char *)a->x + in,
               .dy = a->dy ? (const char *)a->dy + out : NULL,
               .y = a->y ? (char *)a->y + out : NULL,
               .dx = a->dx ? (char *)a->dx + in : NULL,
               .n = ls_min_i64(PIECE, a->F - column)};

    if (a->gated) {
        p.up = (const char *)p.x + a->F * size;
        p.dup = p.dx ? (char *)p.dx + a->F * size : NULL;
    }
    return p;
}

/* One task, in either direction. */
LS_INLINE void run_task(const ls_dtype type, const bool back, const ls_act_args *a, int64_t index)
{
    int64_t first = index / pieces(a) * rows(a), column = index % pieces(a) * PIECE;

    for (int64_t row = first; row < ls_min_i64(first + rows(a), a->M); row++) {
        piece p = piece_at(type, a, row, column);
#define PIECE_OF(act) (back ? bwd_piece(type, &p, act) : fwd_piece(type, &p, act))
        switch (a->act) {
        case LS_ACT_GELU:
            PIECE_OF(LS_ACT_GELU);
            break;
        case LS_ACT_SILU:
            PIECE_OF(LS_ACT_SILU);
            break;
        case LS_ACT_NONE:
            PIECE_OF(LS_ACT_NONE);
            break;
        }
    }
}

LS_TYPED_TASKS(fwd, run_task, false, context, index)
LS_TYPED_TASKS(bwd, run_task, true, context, index)

void LS_ISA_NAME(ls_act_fwd_row)(ls_stream *stream, const ls_act_args *a)
{
    ls_act_args args = flatten(a);

    ls_pool_run(ls_stream_pool(stream), a->type == LS_BF16 ? fwd_bf16 : fwd_f32, &args,
                tasks(&args));
}

void LS_ISA_NAME(ls_act_bwd_row)(ls_stream *stream, const ls_act_args *a)
{
    ls_act_args args = flatten(a);

    ls_pool_run(ls_stream_pool(stream), a->type == LS_BF16 ? bwd_bf16 : bwd_f32, &args,
                tasks(&args));
}
