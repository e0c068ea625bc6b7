/* update.c -- the end of a step: the norm of the gradient, the optimizer, the new weights to all.
 *
 * A rank updates the parameters s->own: all of them, or with ZeRO its part. */
#include "train/step_impl.h"

#include "base/mem.h"

/* One span per trained parameter that this rank updates, or the part of it that it does: weight
 * decay differs between matrices and vectors. */
ls_status ls_step_send_spans(ls_step *s)
{
    const ls_model *model = s->args.model;
    ls_adamw_span *spans = ls_mem_array((size_t)model->n_params, sizeof *spans);
    ls_status st;

    if (!spans)
        return LS_ENOMEM;
    for (int i = 0; i < model->n_params; i++) {
        const ls_param *p = &model->params[i];
        int64_t first = ls_max_i64(p->trained, s->own.first);
        int64_t end = ls_min_i64(p->trained + p->count, s->own.first + s->own.count);
        if (p->trained < 0 || first >= end)
            continue;
        spans[s->n_spans++] = (ls_adamw_span){.first = first - s->own.first,
                                              .w_first = p->first + first - p->trained,
                                              .count = end - first,
                                              .decay = p->decay ? 1.0f : 0.0f,
                                              .rate = 1.0f};
    }
    ls_stream_copy_in(s->args.stream, s->spans, spans, s->n_spans * (int64_t)sizeof *spans);
    st = ls_stream_sync(s->args.stream, ls_time_now_ns() + LS_STEP_WAIT_S * LS_NS_PER_S);
    ls_mem_free(spans);
    return st;
}

/* The norm of the whole gradient, of which each rank has the squares of its own part. */
static ls_status norm_with_others(ls_step *s, const ls_norm2 *whole)
{
    int64_t blocks = (whole->n + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;
    ls_norm2 own = *whole, join = *whole;
    ls_status st;

    own.part = LS_NORM_SQUARES;
    own.x += s->own.first;
    own.partials += s->own.first / LS_NORM_BLOCK;
    own.n = s->own.count;
    join.part = LS_NORM_JOIN;
    memset(whole->partials, 0, (size_t)blocks * sizeof *whole->partials);
    s->args.kernels->norm2(s->args.stream, &own);
    st = ls_dp_numbers(s->args.dp, LS_F32, whole->partials, blocks);
    if (st == LS_OK)
        s->args.kernels->norm2(s->args.stream, &join);
    return st;
}

ls_status ls_step_update(ls_step *s, ls_clock *clock)
{
    const ls_kernels *k = s->args.kernels;
    const float *grad = s->grads[0];
    const ls_norm2 norm = {.x = grad,
                           .partials = s->partials,
                           .result = s->norm,
                           .state = s->state,
                           .n = s->args.model->trained};
    ls_status st = LS_OK;

    ls_packs_updated(s->args.packs);
    if (ls_step_divides(s))
        LS_TRY(st, norm_with_others(s, &norm), out);
    else
        k->norm2(s->args.stream, &norm);
    k->adamw(s->args.stream, &(ls_adamw){.w = s->state_memory[0],
                                         .m = s->state_memory[1],
                                         .v = s->state_memory[2],
                                         .grad = grad + s->own.first,
                                         .spans = s->spans,
                                         .n_spans = s->n_spans,
                                         .copy = ls_step_divides(s) ? NULL : s->copy,
                                         .copy_type = s->type,
                                         .state = s->state,
                                         .result = s->norm});
    if (!ls_step_divides(s))
        goto out;
    ls_clock_lap(clock, LS_PART_OPTIMIZER);
    LS_TRY(st, ls_dp_gather(s->args.dp, s->state_memory[0]), out);
    ls_clock_lap(clock, LS_PART_EXCHANGE);
    ls_step_weights_changed(s);
out:
    return st;
}
