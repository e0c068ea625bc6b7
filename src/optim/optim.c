/* optim.c -- the table of optimizers, and what follows from its rows for all of them.
 *
 * To add one: a row of LS_OPTIMIZERS (config/optimizer.h) and a file that defines the ls_optim_row
 * of that name; nothing here knows it. The rule itself is a row of kernels (CONTRIBUTING.md has the recipe). */
#include "optim/optim_impl.h"

#include <math.h>
#include "base/mem.h"
#include "base/time.h"
#include "layout/range.h"

enum { WAIT_S = 3600 };

static const ls_optim_row *const rows[LS_OPTIMIZER_COUNT] = {
#define ROW(id, name, doc, ...) [LS_OPTIMIZER_##id] = &ls_optim_##name,
    LS_OPTIMIZERS(ROW)
#undef ROW
};

static const ls_optim_row *row_of(const ls_run *run)
{
    return rows[run->train.optimizer];
}

static const ls_optimizer_facts *facts_of(const ls_run *run)
{
    return ls_optimizer_of(run->train.optimizer);
}

/* --- what it keeps ---------------------------------------------------------------------------- */

int ls_optim_kinds(const ls_run *run)
{
    return 1 + facts_of(run)->moments;
}

bool ls_optim_keeps(const ls_run *run, int kind)
{
    return kind < ls_optim_kinds(run);
}

const char *ls_optim_kind_name(const ls_run *run, const ls_param *p, int kind)
{
    if (kind == 0)
        return "param";
    if (kind == 1 && ls_optim_is_matrix(run, p))
        return facts_of(run)->matrix_kind;
    return facts_of(run)->kinds[kind - 1];
}

bool ls_optim_is_matrix(const ls_run *run, const ls_param *p)
{
    return facts_of(run)->reach == LS_REACH_MATRIX && p->parts > 0 && p->trained >= 0;
}

/* The place of parameter `which` among the second moments that lie close together, or behind the
 * last one. */
static int64_t close_together(const ls_run *run, const ls_model *model, int which)
{
    int64_t at = 0;

    for (int i = 0; i < which; i++) {
        const ls_param *p = &model->params[i];
        if (p->trained >= 0 && !ls_optim_is_matrix(run, p))
            at += ls_round_up(p->count, LS_PARAM_ALIGN);
    }
    return at;
}

int64_t ls_optim_elementwise(const ls_run *run, const ls_model *model)
{
    if (facts_of(run)->reach != LS_REACH_MATRIX)
        return model->trained;
    return ls_max_i64(LS_PARAM_ALIGN, close_together(run, model, model->n_params));
}

int64_t ls_optim_seconds(const ls_run *run, const ls_model *model)
{
    return ls_optim_keeps(run, 2) ? ls_optim_elementwise(run, model) : 0;
}

int64_t ls_optim_second(const ls_run *run, const ls_model *model, int i)
{
    const ls_param *p = &model->params[i];

    if (!ls_optim_keeps(run, 2) || ls_optim_is_matrix(run, p))
        return -1;
    return facts_of(run)->reach == LS_REACH_MATRIX && p->trained >= 0
               ? close_together(run, model, i)
               : p->trained;
}

ls_optim_work ls_optim_work_of(const ls_run *run, const ls_model *model)
{
    return row_of(run)->work ? row_of(run)->work(run, model) : (ls_optim_work){.bytes = 0};
}

/* --- updates element by element --------------------------------------------------------------- */

ls_step_state ls_optim_numbers(const ls_run *run, double steps, double share, double lr)
{
    double momentum = pow(run->train.momentum, share);

    return (ls_step_state){
        .loss_scale = 1,
        .lr = (float)(lr * share),
        .beta1 = (float)pow(run->train.beta1, share),
        .beta2 = (float)pow(run->train.beta2, share),
        .eps = (float)run->train.eps,
        .weight_decay = (float)run->train.weight_decay,
        .bias1 = (float)(1 - pow(run->train.beta1, steps)),
        .bias2 = (float)(1 - pow(run->train.beta2, steps)),
        .clip = (float)run->train.clip,
        .momentum = (float)momentum,
        .gain = (float)((1 - momentum) / (1 - run->train.momentum)),
        .nesterov = run->train.nesterov,
    };
}

/* Weight decay differs between matrices and vectors. */
int64_t ls_optim_spans(const ls_run *run, const ls_model *model, ls_mesh_part own, bool packed,
                       bool whole, ls_optimizer_span *spans_out)
{
    double rate = run->train.adamw_lr > 0 ? run->train.adamw_lr / run->train.lr : 1;
    int64_t n = 0;

    for (int i = 0; i < model->n_params; i++) {
        const ls_param *p = &model->params[i];
        int64_t first = ls_max_i64(p->trained, own.first);
        int64_t end = ls_min_i64(p->trained + p->count, own.first + own.count);
        if (p->trained < 0 || first >= end || ls_optim_is_matrix(run, p))
            continue;
        bool gap = whole && ls_optim_keeps(run, 2);
        spans_out[n++] = (ls_optimizer_span){
            .first = first - own.first,
            .w_first = packed ? own.packed + first - own.first : p->first + first - p->trained,
            .count = end - first,
            .decay = p->decay ? 1.0f : 0.0f,
            .rate = (float)rate,
            .v_gap = gap ? p->trained - ls_optim_second(run, model, i) : 0};
    }
    return n;
}

void ls_optim_elements(const ls_run *run, const ls_kernels *kernels, ls_stream *stream,
                       const ls_optimizer_update *spans)
{
    row_of(run)->elements(kernels, stream, spans);
}

bool ls_optim_find_piece(const ls_mesh_part *parts, int n, int64_t first, int64_t end,
                         ls_optim_piece *piece_out)
{
    *piece_out = (ls_optim_piece){.first = end};
    for (int i = 0; i < n && piece_out->count == 0; i++) {
        ls_range both = ls_range_common((ls_range){parts[i].first, parts[i].count},
                                        (ls_range){first, end - first});
        *piece_out =
            (ls_optim_piece){both.first, both.count, parts[i].packed + both.first - parts[i].first};
    }
    return piece_out->count > 0;
}

/* --- a whole update --------------------------------------------------------------------------- */

ls_status ls_optim_send(const ls_optim *o, void *to, const void *from, int64_t bytes)
{
    ls_stream_copy_in(o->args.stream, to, from, bytes);
    return ls_stream_sync(o->args.stream, ls_time_now_ns() + WAIT_S * LS_NS_PER_S);
}

ls_status ls_optim_open(ls_optim **optim_out, const ls_optim_args *args)
{
    ls_optim *o = ls_mem_alloc(sizeof *o);
    ls_status st = LS_OK;

    if (!o)
        return LS_ENOMEM;
    *o = (ls_optim){.args = *args, .row = row_of(args->run)};
    if (o->row->open)
        st = o->row->open(o);
    if (st == LS_OK)
        *optim_out = o;
    else
        ls_optim_close(o);
    return st;
}

void ls_optim_close(ls_optim *optim)
{
    if (!optim)
        return;
    if (optim->row->close)
        optim->row->close(optim);
    ls_mem_free(optim);
}

ls_status ls_optim_update(ls_optim *optim)
{
    if (optim->row->update)
        return optim->row->update(optim);
    optim->args.ranks.elements(optim->args.ranks.context);
    return LS_OK;
}

void ls_optim_redo(ls_optim *optim, const ls_optim_arrays *arrays)
{
    optim->args.arrays = *arrays;
    if (optim->row->redo)
        optim->row->redo(optim);
    else
        optim->args.ranks.elements(optim->args.ranks.context);
}
