/* pass_dora.c -- layers whose adapted weights have trained lengths (kernel/dora.h).
 *
 * Such a layer makes z = x W + scale B A x in a buffer of its own, without bias and without what is added
 * to it, then y = f z + bias + add. Columns without an adapter (k, where only q and v have one) have f = 1.
 * z is kept for the gradient of the lengths. f follows from the weights: it is measured in every call, but
 * for those that go on with a text (past > 0), whose weights are those of the call before. */
#include "model/pass_impl.h"

#include "kernel/dora.h"

bool ls_pass_is_dora(const ls_pass_args *args, int64_t l, const ls_pass_layer *at)
{
    return args->model->shape.dora && ls_pass_has_adapter(&args->model->blocks[l], at);
}

/* Columns of the product that belong to adapter i, wherever one lies: a part of the packed ones. */
static void measure(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                    const ls_pass_layer *at)
{
    const ls_model_shape *s = &pass->args.model->shape;
    const ls_pass_dora *to = &pass->blocks[l].dora[at->which];

    for (int64_t c = 0; c < at->N; c++)
        to->factor[c] = 1;
    for (int i = 0; i < at->n_adapters; i++) {
        const ls_adapter *a = &pass->args.model->blocks[l].adapters[at->adapter + i];
        if (a->d.w < 0)
            continue;
        ls_dora_measure(pass->args.stream,
                        &(ls_dora_lengths){.type = pass->args.type,
                                           .w = ls_pass_weight(pass, call, at->w[i]),
                                           .a = ls_pass_weight(pass, call, a->a),
                                           .b = ls_pass_weight(pass, call, a->b),
                                           .d = ls_pass_weight(pass, call, a->d),
                                           .scale = s->lora_scale,
                                           .N = a->N,
                                           .K = a->K,
                                           .rank = s->lora_rank,
                                           .layout = s->layout,
                                           .factor = to->factor + a->first,
                                           .inverse = to->inverse + a->first});
    }
}

void ls_pass_dora_forward(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                          const ls_pass_layer *at, const void *add, void *y)
{
    const ls_pass_dora *d = &pass->blocks[l].dora[at->which];

    if (call->past == 0)
        measure(pass, call, l, at);
    ls_dora_forward(pass->args.stream, &(ls_dora_fwd){.type = pass->args.type,
                                                      .z = d->z,
                                                      .factor = d->factor,
                                                      .bias = ls_pass_weight(pass, call, at->b[0]),
                                                      .add = add,
                                                      .y = y,
                                                      .M = call->B * call->T,
                                                      .N = at->N});
}

void *ls_pass_dora_backward(const ls_pass *pass, const ls_pass_call *call, int64_t l,
                            const ls_pass_layer *at, const void *dy)
{
    const ls_pass_dora *d = &pass->blocks[l].dora[at->which];
    const ls_dora_bwd back = {.type = pass->args.type,
                              .dy = dy,
                              .z = d->z,
                              .factor = d->factor,
                              .inverse = d->inverse,
                              .dz = pass->dora_dz,
                              .M = call->B * call->T,
                              .N = at->N};

    for (int i = 0; i < at->n_adapters; i++) {
        const ls_adapter *a = &pass->args.model->blocks[l].adapters[at->adapter + i];
        float *dd = ls_pass_gradient(call, a->d);
        if (dd)
            ls_dora_backward_lengths(pass->args.stream, &back, a->first, a->N, call->leaves,
                                     call->accumulate, dd);
    }
    ls_dora_backward(pass->args.stream, &back);
    return pass->dora_dz;
}
