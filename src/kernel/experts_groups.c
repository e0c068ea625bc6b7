/* experts_groups.c -- the MLPs of all experts at once, where only the device knows their rows.
 *
 * Each product is one row of the table over groups of rows (ls_groups): of R routed rows in all,
 * which the host knows, and of each expert those that the device counted. Backward leaves each
 * gradient in the place of what it is the gradient of, in the order of experts.c. */
#include "kernel/experts_impl.h"

static ls_groups groups_of(const ls_experts *a)
{
    return (ls_groups){.first = a->route->first,
                       .step = sizeof *a->experts,
                       .n = a->route->E,
                       .leaves = a->route->leaves,
                       .stack = a->stack,
                       .stack_floats = a->stack_floats};
}

static int64_t rows_of(const ls_experts *a)
{
    return a->route->M * a->route->K;
}

/* y = x W^T, by the weight of each row's expert. */
static void multiply(ls_stream *stream, const ls_experts *a, const void *const *w, const void *x,
                     int64_t K, void *y, int64_t N)
{
    ls_groups groups = groups_of(a);

    groups.w = w;
    a->kernels->linear_fwd(stream, &(ls_linear_fwd){.type = a->route->type,
                                                    .x = x,
                                                    .y = y,
                                                    .M = rows_of(a),
                                                    .N = N,
                                                    .K = K,
                                                    .layout = LS_LAYOUT_NK,
                                                    .groups = &groups});
}

void ls_experts_groups_forward(ls_stream *stream, const ls_experts *a)
{
    if (rows_of(a) == 0) /* nobody sent any */
        return;
    multiply(stream, a, &a->experts->fc, a->xs, a->C, a->zs, 2 * a->F);
    a->kernels->act_fwd(stream, &(ls_act_args){.type = a->route->type,
                                               .act = a->act,
                                               .gated = true,
                                               .x = a->zs,
                                               .y = a->acts,
                                               .M = rows_of(a),
                                               .F = a->F});
    multiply(stream, a, &a->experts->out, a->acts, a->F, a->ys, a->C);
}

/* dx = dy W. */
static void multiply_back(ls_stream *stream, const ls_experts *a, const void *const *w,
                          const void *dy, int64_t N, void *dx, int64_t K)
{
    ls_groups groups = groups_of(a);

    groups.w = w;
    a->kernels->linear_bwd_x(stream, &(ls_linear_bwd_x){.type = a->route->type,
                                                        .dy = dy,
                                                        .dx = dx,
                                                        .M = rows_of(a),
                                                        .N = N,
                                                        .K = K,
                                                        .layout = LS_LAYOUT_NK,
                                                        .groups = &groups});
}

/* Gradients of one weight of all experts: x [R, K], dy [R, N] with rows ldy apart. */
typedef struct product {
    const void *x, *dy;
    int64_t N, K, ldy;
} product;

static void weights_back(ls_stream *stream, const ls_experts *a, product p, float *const *dw)
{
    ls_groups groups = groups_of(a);

    groups.dw = dw;
    a->kernels->linear_bwd_w(stream, &(ls_linear_bwd_w){.type = a->route->type,
                                                        .x = p.x,
                                                        .dy = p.dy,
                                                        .M = rows_of(a),
                                                        .N = p.N,
                                                        .K = p.K,
                                                        .ldy = p.ldy,
                                                        .layout = LS_LAYOUT_NK,
                                                        .leaves = a->route->leaves,
                                                        .accumulate = a->accumulate,
                                                        .groups = &groups});
}

/* Whether gate and up are one matrix in the gradients of every expert, as they are in weights. */
static bool gate_meets_up(const ls_experts *a)
{
    for (int64_t e = 0; e < a->route->E; e++) {
        const ls_expert *expert = &a->experts[e];
        if (expert->dgate ? expert->dup != expert->dgate + a->F * a->C : expert->dup != NULL)
            return false;
    }
    return true;
}

static void inner_weights_back(ls_stream *stream, const ls_experts *a)
{
    int64_t F = a->F, C = a->C;
    const char *up = (const char *)a->zs + F * ls_dtype_bytes(a->route->type);

    if (gate_meets_up(a)) {
        weights_back(stream, a, (product){a->xs, a->zs, 2 * F, C, 2 * F}, &a->experts->dgate);
        return;
    }
    weights_back(stream, a, (product){a->xs, a->zs, F, C, 2 * F}, &a->experts->dgate);
    weights_back(stream, a, (product){a->xs, up, F, C, 2 * F}, &a->experts->dup);
}

void ls_experts_groups_back(ls_stream *stream, const ls_experts *a)
{
    weights_back(stream, a, (product){a->acts, a->ys, a->C, a->F, a->C}, &a->experts->dout);
    if (rows_of(a) == 0) {
        inner_weights_back(stream, a);
        return;
    }
    multiply_back(stream, a, &a->experts->out, a->ys, a->C, a->acts, a->F);
    a->kernels->act_bwd(stream, &(ls_act_args){.type = a->route->type,
                                               .act = a->act,
                                               .gated = true,
                                               .x = a->zs,
                                               .dy = a->acts,
                                               .dx = a->zs,
                                               .M = rows_of(a),
                                               .F = a->F});
    inner_weights_back(stream, a);
    multiply_back(stream, a, &a->experts->fc, a->zs, 2 * a->F, a->xs, a->C);
}
