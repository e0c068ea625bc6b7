/* lamb.c -- LAMB (You et al., 2019): Adam's direction, each tensor's step as long as its weights.
 *
 * A tensor's norms are sums over its pieces, which end where the tensor does and at borders of norm
 * blocks. Parts of ranks end there too, so a piece has one rank, and the sums over pieces along a
 * fixed tree have the same bits however the parameters are divided. Example: blocks of 16384, a
 * tensor from 10000 to 40000, two ranks:
 *
 *     element   10000       16384          32768   40000
 *               |  piece 0  |    piece 1     | piece 2 |
 *     rank 0       squares         0              0
 *     rank 1          0         squares        squares        sum of all three, on both
 *
 *   direction    each piece: m, v, the direction in place of the gradient, two sums of squares
 *   exchange     where ranks divide the update: zeros where others know the sums, then all sums to
 *                all
 *   step         each rank computes the ratios from the sums, then the weights
 */
#include "optim/optim_impl.h"

#include "base/mem.h"

static ls_optim_work work_of(const ls_run *run, const ls_model *model)
{
    ls_optim_work w = {.what = "lists of pieces and their squares"};

    (void)run;
    for (int i = 0; i < model->n_params; i++) {
        const ls_param *p = &model->params[i];
        if (p->trained < 0)
            continue;
        w.tensors++;
        w.pieces += (p->trained + p->count - 1) / LS_NORM_BLOCK - p->trained / LS_NORM_BLOCK + 1;
    }
    w.list_bytes = ls_round_up(w.pieces * (int64_t)sizeof(ls_lamb_piece), 256) +
                   ls_round_up(2 * w.pieces * (int64_t)sizeof(float), 256);
    w.bytes = w.list_bytes + ls_round_up(w.tensors * (int64_t)sizeof(ls_lamb_tensor), 256) +
              ls_round_up(w.tensors * (int64_t)sizeof(float), 256);
    return w;
}

/* The pieces of parameter number `tensor`: those of this rank to the list, all of them counted. */
static void cut_tensor(const ls_optim_args *args, const ls_param *p, ls_lamb *lamb,
                       ls_lamb_tensor *tensor, ls_lamb_piece *pieces)
{
    int64_t end = p->trained + p->count, next;
    ls_optim_piece own;

    *tensor = (ls_lamb_tensor){.first = lamb->n_squares, .adapts = p->decay};
    for (int64_t at = p->trained; at < end; at = next) {
        next = ls_min_i64(end, (at / LS_NORM_BLOCK + 1) * LS_NORM_BLOCK);
        if (args->ranks.piece(args->ranks.context, at, next, &own)) {
            bool packed = args->redoes;
            pieces[lamb->n_pieces++] =
                (ls_lamb_piece){.first = own.packed,
                                .count = own.count,
                                .w_first = packed ? own.packed : p->first + at - p->trained,
                                .g_first = packed ? own.packed : at,
                                .number = lamb->n_squares,
                                .tensor = lamb->n_tensors,
                                .decay = p->decay ? 1.0f : 0.0f};
            lamb->n += own.count;
        }
        lamb->n_squares++;
        tensor->count++;
    }
    lamb->n_tensors++;
}

/* Mirrors work_of(): what a redo needs lies first. */
static void lay_out(const ls_optim *o, const ls_optim_work *work, ls_lamb *lamb)
{
    const ls_optim_args *a = &o->args;
    char *at = a->work;

    *lamb = (ls_lamb){.pieces = ls_optim_cut(&at, work->pieces * (int64_t)sizeof(ls_lamb_piece)),
                      .squares = ls_optim_cut(&at, 2 * work->pieces * (int64_t)sizeof(float)),
                      .copy = a->copy,
                      .copy_type = a->copy_type,
                      .rounding = a->rounding};
    if (a->redoes)
        return;
    lamb->tensors = ls_optim_cut(&at, work->tensors * (int64_t)sizeof(ls_lamb_tensor));
    lamb->ratios = ls_optim_cut(&at, work->tensors * (int64_t)sizeof(float));
}

static ls_status open_lamb(ls_optim *o)
{
    const ls_model *model = o->args.model;
    ls_optim_work work = ls_optim_work_of(o->args.run, model);
    ls_lamb_piece *pieces = ls_mem_array((size_t)work.pieces, sizeof *pieces);
    ls_lamb_tensor *tensors = ls_mem_array((size_t)work.tensors, sizeof *tensors);
    ls_lamb *lamb = o->own = ls_mem_alloc(sizeof *lamb);
    ls_status st = pieces && tensors && lamb ? LS_OK : LS_ENOMEM;

    if (st != LS_OK)
        goto out;
    lay_out(o, &work, lamb);
    for (int i = 0; i < model->n_params; i++)
        if (model->params[i].trained >= 0)
            cut_tensor(&o->args, &model->params[i], lamb, &tensors[lamb->n_tensors], pieces);
    int64_t bytes = lamb->n_pieces * (int64_t)sizeof *pieces;
    LS_TRY(st, ls_optim_send(o, (void *)(uintptr_t)lamb->pieces, pieces, bytes), out);
    if (lamb->tensors)
        st = ls_optim_send(o, (void *)(uintptr_t)lamb->tensors, tensors,
                           work.tensors * (int64_t)sizeof *tensors);
out:
    ls_mem_free(pieces);
    ls_mem_free(tensors);
    return st;
}

static void close_lamb(ls_optim *o)
{
    ls_mem_free(o->own);
}

static void run_part(const ls_optim *o, ls_lamb_part part)
{
    const ls_optim_arrays *arrays = &o->args.arrays;
    ls_lamb lamb = *(const ls_lamb *)o->own;

    lamb.part = part;
    lamb.w = arrays->w;
    lamb.m = arrays->m;
    lamb.v = arrays->v;
    lamb.grad = arrays->grad;
    lamb.state = arrays->state;
    lamb.result = arrays->norm;
    o->args.kernels->lamb(o->args.stream, &lamb);
}

/* Moments, directions and the squares of the own pieces. */
static void direct(ls_optim *o)
{
    run_part(o, LS_LAMB_DIRECTION);
}

static ls_status update(ls_optim *o)
{
    const ls_optim_ranks *ranks = &o->args.ranks;
    const ls_lamb *lamb = o->own;
    int64_t sums = 2 * lamb->n_squares;
    ls_status st = LS_OK;

    if (ranks->divides)
        o->args.kernels->fill(o->args.stream, &(ls_fill){.x = lamb->squares, .n = sums});
    direct(o);
    if (ranks->divides)
        LS_TRY(st, ranks->sum(ranks->context, lamb->squares, sums), out);
    run_part(o, LS_LAMB_STEP);
out:
    return st;
}

const ls_optim_row ls_optim_lamb = {
    .work = work_of, .open = open_lamb, .close = close_lamb, .update = update, .redo = direct};
