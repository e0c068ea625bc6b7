/* act.c -- the activation of the MLP, plain or gated, and its gradient.
 *
 *     GELU: y = x/2 (1 + tanh(u)) = x s(2 u),  u = k (x + 0.044715 x^3),  k = sqrt(2 / pi)
 *     SiLU: y = x s(x)
 *
 * Both are x times a sigmoid s(z) = 1 / (1 + e) with e = exp(-z), whose slope is z' e s^2. Written
 * so, nothing cancels: small results far below zero keep their relative accuracy, which 1 - tanh^2
 * would lose.
 *
 * The activation is a constant in each copy of the loop (the loops are inlined into the switch), so
 * nothing is decided per element. Work is cut into pieces of PIECE columns of a row; a plain
 * activation is one long row. */
#include "kernel/cpu/rows_basic.h"
#include "kernel/cpu/simd/vec.h"

enum { PIECE = 8192 };

#define GELU_K 0.79788456080286536f
#define GELU_CUBE 0.044715f

/* What goes into the sigmoid, with its sign turned. */
LS_INLINE ls_v16 minus_z(ls_v16 x, ls_act act)
{
    if (act == LS_ACT_SILU)
        return v_sub(v_set(0.0f), x);
    return v_mul(v_mul(v_set(-2 * GELU_K), x), v_fma(v_set(GELU_CUBE), v_mul(x, x), v_set(1.0f)));
}

LS_INLINE ls_v16 act_value(ls_v16 x, ls_act act)
{
    if (act == LS_ACT_NONE)
        return x;
    return v_div(x, v_add(v_set(1.0f), v_exp(minus_z(x, act))));
}

/* s + x z' e s^2 */
LS_INLINE ls_v16 act_slope(ls_v16 x, ls_act act)
{
    ls_v16 one = v_set(1.0f), rise = x; /* x z' */

    if (act == LS_ACT_NONE)
        return one;
    if (act == LS_ACT_GELU) {
        /* Beyond +-16 the slope is 0 or 1; without the limit x^3 may overflow and meet a zero. NaN
         * passes: the limits come first, and the second operand wins. */
        x = v_min(v_set(16.0f), v_max(v_set(-16.0f), x));
        rise = v_mul(v_mul(v_set(2 * GELU_K), x), v_fma(v_set(3 * GELU_CUBE), v_mul(x, x), one));
    }
    ls_v16 e = v_exp(minus_z(x, act)), s = v_div(one, v_add(one, e));
    return v_fma(rise, v_mul(v_mul(e, s), s), s);
}

LS_INLINE ls_v16 load(const float *p, int64_t n)
{
    return n >= LS_LANES ? v_load(p) : v_load_part(p, n, 0);
}

LS_INLINE void store(float *p, int64_t n, ls_v16 x)
{
    if (n >= LS_LANES)
        v_store(p, x);
    else
        v_store_part(p, n, x);
}

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
        ls_v16 y = act_value(load(p->x + i, left), act);
        if (p->up)
            y = v_mul(y, load(p->up + i, left));
        store(p->y + i, left, y);
    }
}

LS_INLINE void bwd_piece(const piece *p, ls_act act)
{
    for (int64_t i = 0; i < p->n; i += LS_LANES) {
        int64_t left = p->n - i;
        ls_v16 x = load(p->x + i, left), dy = load(p->dy + i, left);
        if (p->up) {
            ls_v16 up = load(p->up + i, left);
            store(p->dup + i, left, v_mul(dy, act_value(x, act)));
            dy = v_mul(dy, up);
        }
        store(p->dx + i, left, v_mul(dy, act_slope(x, act)));
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
