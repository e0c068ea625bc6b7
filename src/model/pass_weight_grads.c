/* pass_weight_grads.c -- the second half of a backward that was cut: gradients of the weights of products.
 *
 * Backward of a product y = x W + b is two products, dx = dy W^T and dW = x^T dy. Only the first is
 * on the way to the layers below; in a pipeline other ranks wait for it, and for nothing else. So
 * the first half (pass_backward.c) makes dx down the model and keeps each dy, and this half makes all
 * dW and db when the schedule says so (layout/pp_schedule.h, zero-bubble).
 *
 * Kept of a call between the halves, for each block and token, in elements (C: width, F: of the MLP):
 *
 *            elements            dy of                    beside its input
 *   dqkv     (H + 2 Hkv) D       q, k and v               y1, or the stream
 *   dproj    C                   attention's projection   att
 *   dz       F, gated 2 F        the way into the MLP     y2, or the stream
 *   dout     C                   the way out of it        act
 *
 * The rows are those that a whole backward calls, with the same tensors, so the bits are the same.
 * What recomputation shares between calls is made once more. A gated MLP no longer makes its
 * gradients in place of its activations, since these are read later.
 *
 * Rejected: to cut the head as well. Its weight gradient needs those of all logits, V numbers a
 * token, which no pass keeps; making them again costs a product of the head's size. Its share of
 * the last stage's backward stays in the first half, and layout/stage_split.h counts it there. */
#include "model/pass_impl.h"

void ls_pass_take_late(ls_pass *pass, const ls_pass_call *call)
{
    LS_BUG_IF(call->late < 0 || call->late >= pass->args.late, "late place %d of %d", call->late,
              pass->args.late);
    ls_pass_take(pass, call);
    pass->late = pass->lates + call->late * pass->args.model->shape.L;
}

static void block_second(const ls_pass *pass, const ls_pass_call *call, int64_t l)
{
    const ls_pass_buffers *b = &pass->blocks[l];
    const ls_pass_late *late = &pass->late[l];
    ls_fp8 none = {.x_max = NULL};
    ls_pass_layers at;

    ls_pass_layers_of(pass->args.model, l, &at);
    if (pass->args.model->shape.E == 0) {
        ls_pass_parts_back(pass, call, &at.out, b->act, late->dout, &none);
        ls_pass_parts_back(pass, call, &at.fc,
                           ls_pass_whole(pass, call, ls_pass_mlp_input(pass, l), pass->whole_x),
                           late->dz, &none);
    }
    ls_pass_parts_back(pass, call, &at.proj, b->att, late->dproj, &none);
    ls_pass_parts_back(pass, call, &at.qkv,
                       ls_pass_whole(pass, call, ls_pass_attention_input(pass, l), pass->whole_x),
                       late->dqkv, &none);
}

void ls_pass_backward_second(ls_pass *pass, const ls_pass_call *call)
{
    const ls_pass_args *part = &pass->args;

    ls_pass_take_late(pass, call);
    for (int64_t l = ls_pass_end_block(part) - 1; l >= ls_pass_lowest(part); l--) {
        ls_pass_need(call, 1 + l);
        ls_pass_recompute(pass, call, l);
        block_second(pass, call, l);
    }
    pass->late = NULL;
}

bool ls_pass_is_late(const ls_model *model, const ls_param *param)
{
    if (param->unit < 1 || param->unit > model->shape.L || param->trained < 0)
        return false;
    const ls_block_params *p = &model->blocks[param->unit - 1];
    const ls_place all[] = {p->qkv_w[0], p->qkv_w[1], p->qkv_w[2], p->qkv_b[0], p->qkv_b[1],
                            p->qkv_b[2], p->proj_w,   p->proj_b,   p->fc_w[0],  p->fc_w[1],
                            p->fc_b[0],  p->fc_b[1],  p->out_w,    p->out_b};
    for (size_t i = 0; i < LS_COUNT(all); i++)
        if (all[i].g == param->trained)
            return true;
    return false;
}
