/* step_access.c -- the state of a step for other rooms: its arrays, parts of it to and from whole
 * arrays, weights that were written from outside. The mode's row answers where it has its own way,
 * then the exchange's row, else parallel/dp.h.
 *
 *     collect    own part of each rank  ->  the whole array on every rank
 *     scatter    the whole array        ->  own part of each rank
 *
 * With tp or ep groups a rank has slices of tensors: group_step.c wraps both. */
#include "train/step/step_impl.h"

#include "optim/optim.h"

const float *ls_step_gradient(const ls_step *step)
{
    return step->grads[0];
}

void ls_step_scale_loss(ls_step *step, double scale)
{
    step->loss_scale = scale;
}

int64_t ls_step_numbers(const ls_step *step)
{
    return ls_step_has_pairs(step) ? LS_PREFERENCE_NUMBERS : 1;
}

bool ls_step_has_losses(const ls_step *step)
{
    return step->has_losses;
}

ls_step_arrays ls_step_state_arrays(const ls_step *step)
{
    return (ls_step_arrays){.w = step->state_memory[0],
                            .m = step->state_memory[1],
                            .v = step->state_memory[2],
                            .read = step->copy ? step->copy : step->state_memory[0]};
}

ls_pass *ls_step_pass(const ls_step *step)
{
    return step->pass;
}

void ls_step_renew_copy(ls_step *s, ls_mesh_part part)
{
    if (s->copy)
        s->args.kernels->cast(
            s->args.stream,
            &(ls_cast){.from_type = LS_F32,
                       .to_type = s->type,
                       .from = (float *)s->state_memory[0] + part.packed,
                       .to = (char *)s->copy + part.packed * ls_dtype_bytes(s->type),
                       .n = part.count,
                       .rounding = ls_step_rounding(s->args.run, part.first)});
}

ls_status ls_step_weights_changed(ls_step *s)
{
    ls_packed_weights_changed(s->args.packs);
    if (s->mode->changed)
        s->mode->changed(s);
    for (int i = 0; i < s->parts.weights.n; i++)
        ls_step_renew_copy(s, s->parts.weights.at[i]);
    return ls_step_forget(s);
}

void ls_step_idle(ls_step *s)
{
    if (s->mode->idle)
        s->mode->idle(s);
}

void ls_step_put(ls_step *s, int64_t first, int64_t count, const float *values)
{
    ls_optim_piece own;

    for (int i = 0; i < s->parts.weights.n; i++)
        if (ls_optim_find_piece(&s->parts.weights.at[i], 1, first, first + count, &own))
            ls_stream_copy_in(s->args.stream, (float *)s->state_memory[0] + own.packed,
                              values + own.first - first, own.count * (int64_t)sizeof *values);
}

ls_status ls_step_complete(ls_step *s)
{
    return s->mode->complete ? s->mode->complete(s) : LS_OK;
}

ls_status ls_step_keep(ls_step *s, void *kept_out[3])
{
    return s->mode->keep ? s->mode->keep(s, kept_out) : ls_step_keep_state(s, kept_out);
}

ls_status ls_step_slice_collect(ls_step *s, const float *part, float *whole)
{
    return s->mode->collect       ? s->mode->collect(s, part, whole)
           : s->exchange->collect ? s->exchange->collect(s, part, whole)
                                  : ls_dp_collect(s->args.dp, part, whole);
}

ls_status ls_step_slice_scatter(ls_step *s, const float *whole, float *part)
{
    return s->mode->scatter       ? s->mode->scatter(s, whole, part)
           : s->exchange->scatter ? s->exchange->scatter(s, whole, part)
                                  : ls_dp_scatter(s->args.dp, whole, part);
}

ls_status ls_step_collect(ls_step *s, const float *part, float *whole)
{
    return ls_step_has_mp_group(s) ? ls_step_group_collect(s, part, whole)
                                   : ls_step_slice_collect(s, part, whole);
}

ls_status ls_step_scatter(ls_step *s, const float *whole, float *part)
{
    return ls_step_has_mp_group(s) ? ls_step_group_scatter(s, whole, part)
                                   : ls_step_slice_scatter(s, whole, part);
}

ls_status ls_step_sum_in_group(ls_step *s, float *numbers, int64_t n)
{
    return s->exchange->sum_in_group ? s->exchange->sum_in_group(s, numbers, n)
                                     : ls_dp_sum_in_group(s->args.dp, numbers, n);
}

ls_status ls_step_gather(ls_step *s, float *whole)
{
    return s->exchange->gather ? s->exchange->gather(s, whole) : ls_dp_gather(s->args.dp, whole);
}

ls_status ls_step_broadcast(ls_step *s, int from, void *memory, int64_t bytes)
{
    return s->exchange->broadcast ? s->exchange->broadcast(s, from, memory, bytes)
                                  : ls_dp_broadcast(s->args.dp, from, memory, bytes);
}
