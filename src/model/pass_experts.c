/* pass_experts.c -- the MLP of a block that is a mixture of experts (kernel/experts.h).
 *
 *   logits = y2 router^T -> route -> experts -> next = mid + sum of weight * expert(y2)
 *
 * Backward goes through the experts first, which gives the gradients of the weights that tokens
 * have for them; these and the router's own losses become the gradient of the logits, whose share
 * of y2's gradient is added to the experts'.
 *
 * Where the model is split, every rank routes alike and has some columns of each expert. What comes
 * back to the weights and through the router is then a part of a sum, like the experts' own, and is
 * added up with it; the first rank counts the router's losses. GPUs of a tensor-parallel group may
 * multiply by different algorithms, and a rounding may decide between two experts: there all ranks
 * use the first rank's logits:
 *
 *   3 ranks, logits of a token    rank 0: 0.3 0.7    rank 1: 0 0    rank 2: 0 0     sum: 0.3 0.7 on all
 *
 * Where experts are divided, every rank, or tensor-parallel group, routes its own tokens
 * (pass_expert_parallel.c).
 *
 * The balance loss is that of a sequence. Ranks that share sequences (pass_context.c) add up how often
 * their tokens chose each expert; nothing else of the loss needs the other ranks' tokens. */
#include "model/pass_impl.h"

#include "kernel/experts.h"

bool ls_pass_shares_logits(const ls_pass_args *args)
{
    return ls_pass_is_split(args) && args->model->shape.E > 0 && args->kernels->experts;
}

static ls_route route_of(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_pass_experts *b = &pass->blocks[l].experts;

    return (ls_route){.type = pass->args.type,
                      .logits = b->logits,
                      .probs = b->probs,
                      .lse = b->lse,
                      .weights = b->weights,
                      .ids = b->ids,
                      .rows = b->rows,
                      .slots = b->slots,
                      .first = b->first,
                      .chosen = b->chosen,
                      .M = call->B * call->T,
                      .sequences = call->B,
                      .ranks = pass->args.cp_group.ranks,
                      .E = s->E,
                      .K = s->K,
                      .leaves = pass->args.training && call->leaves > 0 ? call->leaves : 1,
                      .normalized = s->normalized};
}

ls_experts ls_pass_experts_of(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                              const ls_route *route, bool back)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_block_params *p = &pass->args.model->blocks[l];
    const ls_pass_buffers *b = &pass->blocks[l];

    for (int64_t e = 0; e < pass->args.model->split.experts; e++) {
        const ls_expert_params *from = &p->experts[e];
        pass->experts[e] = (ls_expert){.fc = ls_pass_weight(pass, call, from->fc_w[0]),
                                       .out = ls_pass_weight(pass, call, from->out_w),
                                       .dgate = back ? ls_pass_gradient(call, from->fc_w[0]) : NULL,
                                       .dup = back ? ls_pass_gradient(call, from->fc_w[1]) : NULL,
                                       .dout = back ? ls_pass_gradient(call, from->out_w) : NULL};
    }
    return (ls_experts){.kernels = pass->args.kernels,
                        .route = route,
                        .experts = pass->experts,
                        .act = s->act,
                        .C = s->C,
                        .F = s->F,
                        .x = b->y2,
                        .xs = b->experts.xs,
                        .zs = b->z,
                        .acts = b->act,
                        .ys = b->experts.ys};
}

static void make_logits(const ls_pass *pass, const ls_pass_call *call, int64_t l, const void *x,
                        int64_t M)
{
    const ls_model_shape *s = &pass->args.model->shape;

    pass->args.kernels->linear_fwd(
        pass->args.stream,
        &(ls_linear_fwd){.type = pass->args.type,
                         .x = x,
                         .w = ls_pass_weight(pass, call, pass->args.model->blocks[l].router),
                         .y = pass->blocks[l].experts.logits,
                         .M = M,
                         .N = s->E,
                         .K = s->C,
                         .layout = s->layout});
}

/* The first rank's logits to all of the group: a sum to which the others bring zeros. */
static void share_logits(const ls_pass *pass, void *logits, int64_t M)
{
    int64_t n = M * pass->args.model->shape.E, bytes = n * ls_dtype_bytes(pass->args.type);

    if (pass->args.model->split.rank > 0)
        pass->args.kernels->fill(pass->args.stream,
                                 &(ls_fill){.x = logits, .n = (bytes + 3) / 4}); /* of floats */
    pass->args.collectives->run(pass->args.collectives->context, pass->args.stream,
                                &(ls_collectives_ask){.move = LS_COLLECTIVES_SUM,
                                                      .type = pass->args.type,
                                                      .from = logits,
                                                      .to = logits,
                                                      .n = n});
}

/* Which experts each token of x takes. */
static void choose(const ls_pass *pass, const ls_pass_call *call, int64_t l, const void *x,
                   const ls_route *route)
{
    bool shares = ls_pass_shares_logits(&pass->args);

    if (!shares || pass->args.model->split.rank == 0)
        make_logits(pass, call, l, x, route->M);
    if (shares)
        share_logits(pass, pass->blocks[l].experts.logits, route->M);
    ls_experts_route(pass->args.stream, route);
}

void ls_pass_experts_forward(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_pass_buffers *b = &pass->blocks[l];
    bool beside = ls_pass_ends_beside(pass, call, l, SITE_OUT);
    ls_route route = route_of(pass, call, l);
    ls_experts args = ls_pass_experts_of(pass, call, l, &route, false);

    args.x = ls_pass_whole(pass, call, b->y2, pass->whole_x);
    choose(pass, call, l, args.x, &route);
    args.add = beside ? NULL : b->mid;
    args.y = beside ? ls_pass_part(pass, pass->branch) : b->next;
    if (ls_pass_is_ep(&pass->args))
        ls_pass_ep_forward(pass, call, l, &args);
    else
        ls_experts_forward(pass->args.stream, &args);
    if (beside)
        ls_pass_join(pass, call, pass->branch);
}

void ls_pass_experts_again(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                           ls_recompute level)
{
    ls_route route = route_of(pass, call, l);
    ls_experts args = ls_pass_experts_of(pass, call, l, &route, false);

    if (ls_pass_is_ep(&pass->args)) {
        ls_pass_ep_again(pass, call, l);
        return;
    }
    args.x = ls_pass_whole(pass, call, pass->blocks[l].y2, pass->whole_x);
    if (level == LS_RECOMPUTE_FULL)
        choose(pass, call, l, args.x, &route);
    ls_experts_gather(pass->args.stream, &args);
    if (level == LS_RECOMPUTE_FULL)
        ls_experts_apply(pass->args.stream, &args);
    else
        ls_experts_activate(pass->args.stream, &args);
}

void ls_pass_experts_backward(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                              const void *dbranch)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_block_params *p = &pass->args.model->blocks[l];
    const ls_kernels *k = pass->args.kernels;
    ls_route route = route_of(pass, call, l);
    ls_experts args = ls_pass_experts_of(pass, call, l, &route, true);
    float *drouter = ls_pass_gradient(call, p->router);
    bool first = pass->args.model->split.rank == 0;
    int coming;
    void *x = ls_pass_whole_start(pass, call, pass->blocks[l].y2, pass->whole_x, &coming);

    args.dy = dbranch;
    args.dx = ls_pass_part(pass, pass->dy); /* may be where dbranch is: that was read before */
    args.dweights = pass->dweights;
    args.stack = pass->stack;
    args.stack_floats = pass->stack_floats;
    args.accumulate = call->accumulate;
    if (ls_pass_is_ep(&pass->args))
        ls_pass_ep_backward(pass, call, l, &args);
    else
        ls_experts_backward(pass->args.stream, &args);
    if (first)
        ls_pass_cp_count(pass, call, l);
    ls_experts_route_back(pass->args.stream, &(ls_route_back){.route = &route,
                                                              .dweights = pass->dweights,
                                                              .balance = first ? s->balance : 0,
                                                              .z = first ? s->z : 0,
                                                              .state = call->state,
                                                              .dlogits = pass->dlogits});
    ls_pass_wait(pass, coming);
    if (drouter)
        k->linear_bwd_w(pass->args.stream, &(ls_linear_bwd_w){.type = pass->args.type,
                                                              .x = x,
                                                              .dy = pass->dlogits,
                                                              .dw = drouter,
                                                              .M = route.M,
                                                              .N = s->E,
                                                              .K = s->C,
                                                              .layout = s->layout,
                                                              .leaves = route.leaves,
                                                              .accumulate = call->accumulate});
    k->linear_bwd_x(pass->args.stream,
                    &(ls_linear_bwd_x){.type = pass->args.type,
                                       .dy = pass->dlogits,
                                       .w = ls_pass_weight(pass, call, p->router),
                                       .dx = args.dx,
                                       .M = route.M,
                                       .N = s->E,
                                       .K = s->C,
                                       .layout = s->layout,
                                       .accumulate = true});
    ls_pass_join(pass, call, pass->dy);
}
