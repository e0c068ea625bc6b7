/* step_lamb.c -- LAMB (You et al., 2019): Adam's direction, each tensor's step as long as its weights.
 *
 * A tensor's norms are sums over its pieces, which end where the tensor does and at borders of norm
 * blocks. Parts of ranks end there too, so a piece has one rank, and the sums over pieces along a
 * fixed tree have the same bits however the parameters are divided. Example: blocks of 16384, a
 * tensor from 10000 to 40000: pieces of 6384, 16384 and 7232 elements; the second of two ranks may
 * own the last two.
 *
 *   direction    each piece: m, v, the direction in place of the gradient, two sums of squares
 *   exchange     with ZeRO: zeros where others know the sums, then all sums to all
 *   step         ratios from the sums, by everybody; the weights
 */
#include "train/step/step_impl.h"

#include "base/mem.h"
#include "optim/optim.h"

/* The pieces of parameter number `tensor`: those of this rank to the list, all of them counted. */
static void cut_tensor(ls_step *s, const ls_param *p, ls_lamb_tensor *tensor, ls_lamb_piece *pieces)
{
    int64_t end = p->trained + p->count, next;
    ls_step_piece own;

    *tensor = (ls_lamb_tensor){.first = s->lamb.n_squares, .adapts = p->decay};
    for (int64_t at = p->trained; at < end; at = next) {
        next = ls_min_i64(end, (at / LS_NORM_BLOCK + 1) * LS_NORM_BLOCK);
        if (ls_step_own_piece(s, at, next, &own)) {
            pieces[s->lamb.n_pieces++] = (ls_lamb_piece){.first = own.place,
                                                         .count = own.count,
                                                         .w_first = p->first + at - p->trained,
                                                         .g_first = at,
                                                         .number = s->lamb.n_squares,
                                                         .tensor = s->lamb.n_tensors,
                                                         .decay = p->decay ? 1.0f : 0.0f};
            s->lamb.n += own.count;
        }
        s->lamb.n_squares++;
        tensor->count++;
    }
    s->lamb.n_tensors++;
}

/* Mirrors ls_optim_work_of(). */
ls_status ls_step_open_lamb(ls_step *s)
{
    const ls_model *model = s->args.model;
    ls_optim_work work = ls_optim_work_of(s->args.run, model);
    ls_lamb_piece *pieces = ls_mem_array((size_t)work.pieces, sizeof *pieces);
    ls_lamb_tensor *tensors = ls_mem_array((size_t)work.tensors, sizeof *tensors);
    char *at = s->work;
    ls_lamb_piece *to_pieces = ls_step_cut(&at, work.pieces * (int64_t)sizeof *pieces);
    ls_lamb_tensor *to_tensors = ls_step_cut(&at, work.tensors * (int64_t)sizeof *tensors);
    ls_status st = pieces && tensors ? LS_OK : LS_ENOMEM;

    if (st != LS_OK)
        goto out;
    s->lamb = (ls_lamb){.pieces = to_pieces,
                        .tensors = to_tensors,
                        .squares = ls_step_cut(&at, 2 * work.pieces * (int64_t)sizeof(float)),
                        .ratios = ls_step_cut(&at, work.tensors * (int64_t)sizeof(float)),
                        .w = s->state_memory[0],
                        .m = s->state_memory[1],
                        .v = s->state_memory[2],
                        .grad = s->grads[0],
                        .copy = ls_step_divides(s) ? NULL : s->copy,
                        .copy_type = s->type,
                        .rounding = ls_step_rounding(s->args.run, 0),
                        .state = s->state,
                        .result = s->norm};
    for (int i = 0; i < model->n_params; i++)
        if (model->params[i].trained >= 0)
            cut_tensor(s, &model->params[i], &tensors[s->lamb.n_tensors], pieces);
    LS_TRY(st, ls_step_send(s, to_pieces, pieces, s->lamb.n_pieces * (int64_t)sizeof *pieces), out);
    LS_TRY(st, ls_step_send(s, to_tensors, tensors, work.tensors * (int64_t)sizeof *tensors), out);
out:
    ls_mem_free(pieces);
    ls_mem_free(tensors);
    return st;
}

ls_status ls_step_lamb(ls_step *s, ls_step_clock *clock)
{
    ls_lamb lamb = s->lamb;
    int64_t sums = 2 * lamb.n_squares;
    ls_status st = LS_OK;

    if (ls_step_divides(s))
        s->args.kernels->fill(s->args.stream, &(ls_fill){.x = lamb.squares, .n = sums});
    lamb.part = LS_LAMB_DIRECTION;
    s->args.kernels->lamb(s->args.stream, &lamb);
    if (ls_step_divides(s)) {
        ls_step_clock_lap(clock, LS_TIME_OPTIMIZER);
        LS_TRY(st, ls_step_share(s, lamb.squares, sums), out);
        ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
    }
    lamb.part = LS_LAMB_STEP;
    s->args.kernels->lamb(s->args.stream, &lamb);
out:
    return st;
}
