/* update.c -- the end of a step: the norm of the gradient, the optimizer, the new weights to all.
 *
 * A rank updates all parameters, or with ZeRO its part: what ls_step_own_piece() says, which
 * everything here goes by. AdamW is one row; lamb.c and muon.c have the others. */
#include "train/step_impl.h"

#include "base/mem.h"
#include "plan/optim.h"

bool ls_step_own_piece(const ls_step *s, int64_t first, int64_t end, ls_step_piece *piece_out)
{
    first = ls_max_i64(first, s->own.first);
    end = ls_min_i64(end, s->own.first + s->own.count);
    *piece_out =
        (ls_step_piece){.first = first, .count = end - first, .place = first - s->own.first};
    return first < end;
}

ls_status ls_step_send(ls_step *s, void *to, const void *from, int64_t bytes)
{
    ls_stream_copy_in(s->args.stream, to, from, bytes);
    return ls_stream_sync(s->args.stream, ls_time_now_ns() + LS_STEP_WAIT_S * LS_NS_PER_S);
}

/* Where a piece of parameter i lies in m, v, gradient and weights. */
static ls_adamw_span span_of(const ls_step *s, int i, const ls_step_piece *piece)
{
    const ls_run *run = s->args.run;
    const ls_param *p = &s->args.model->params[i];
    int64_t inside = piece->first - p->trained;
    int64_t second =
        ls_step_divides(s) ? piece->place : ls_optim_second(run, s->args.model, i) + inside;

    return (ls_adamw_span){
        .first = piece->place,
        .w_first = p->first + inside,
        .count = piece->count,
        .decay = p->decay ? 1.0f : 0.0f,
        .rate = run->train.adamw_lr > 0 ? (float)(run->train.adamw_lr / run->train.lr) : 1.0f,
        .v_gap = piece->place - second};
}

/* One span per trained parameter that this rank updates by AdamW, or the part of it that it does:
 * weight decay differs between matrices and vectors. */
static ls_status open_adamw(ls_step *s)
{
    const ls_model *model = s->args.model;
    ls_adamw_span *spans = ls_mem_array((size_t)model->n_params, sizeof *spans);
    ls_step_piece piece;
    ls_status st;

    if (!spans)
        return LS_ENOMEM;
    for (int i = 0; i < model->n_params; i++) {
        const ls_param *p = &model->params[i];
        if (p->trained >= 0 && !ls_optim_is_matrix(s->args.run, p) &&
            ls_step_own_piece(s, p->trained, p->trained + p->count, &piece))
            spans[s->n_spans++] = span_of(s, i, &piece);
    }
    st = ls_step_send(s, s->spans, spans, s->n_spans * (int64_t)sizeof *spans);
    ls_mem_free(spans);
    return st;
}

ls_status ls_step_open_optimizer(ls_step *s)
{
    ls_optimizer optimizer = s->args.run->train.optimizer;
    ls_status st;

    if (optimizer == LS_OPTIMIZER_LAMB)
        return ls_step_open_lamb(s);
    st = open_adamw(s);
    return st == LS_OK && optimizer == LS_OPTIMIZER_MUON ? ls_step_open_muon(s) : st;
}

void ls_step_adamw(ls_step *s)
{
    s->args.kernels->adamw(s->args.stream,
                           &(ls_adamw){.w = s->state_memory[0],
                                       .m = s->state_memory[1],
                                       .v = s->state_memory[2],
                                       .grad = (const float *)s->grads[0] + s->own.first,
                                       .spans = s->spans,
                                       .n_spans = s->n_spans,
                                       .copy = ls_step_shares(s) ? NULL : s->copy,
                                       .copy_type = s->type,
                                       .state = s->state,
                                       .result = s->norm});
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
    const ls_norm2 norm = {.x = s->grads[0],
                           .partials = s->partials,
                           .result = s->norm,
                           .state = s->state,
                           .n = s->args.model->trained};
    ls_optimizer optimizer = s->args.run->train.optimizer;
    ls_status st = LS_OK;

    ls_packs_updated(s->args.packs);
    if (ls_step_divides(s))
        LS_TRY(st, norm_with_others(s, &norm), out);
    else
        s->args.kernels->norm2(s->args.stream, &norm);
    if (optimizer == LS_OPTIMIZER_MUON)
        return ls_step_muon(s, clock);
    if (optimizer == LS_OPTIMIZER_LAMB)
        LS_TRY(st, ls_step_lamb(s, clock), out);
    else
        ls_step_adamw(s);
    if (!ls_step_divides(s))
        goto out;
    ls_clock_lap(clock, LS_PART_OPTIMIZER);
    LS_TRY(st, ls_dp_gather(s->args.dp, s->state_memory[0]), out);
    ls_clock_lap(clock, LS_PART_EXCHANGE);
    ls_step_weights_changed(s);
out:
    return st;
}
