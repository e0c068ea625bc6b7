/* optim.c -- see optim.h. */
#include "optim/optim.h"

#include "plan/memory.h"

bool ls_optim_is_matrix(const ls_run *run, const ls_param *p)
{
    return run->train.optimizer == LS_OPTIMIZER_MUON && p->parts > 0 && p->trained >= 0;
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

int64_t ls_optim_seconds(const ls_run *run, const ls_model *model)
{
    if (run->train.optimizer != LS_OPTIMIZER_MUON)
        return model->trained;
    return ls_max_i64(LS_PARAM_ALIGN, close_together(run, model, model->n_params));
}

int64_t ls_optim_second(const ls_run *run, const ls_model *model, int i)
{
    const ls_param *p = &model->params[i];

    if (run->train.optimizer != LS_OPTIMIZER_MUON || p->trained < 0)
        return p->trained;
    return ls_optim_is_matrix(run, p) ? -1 : close_together(run, model, i);
}

/* Mirrored by train/step/step_lamb.c. */
static ls_optim_work lamb(const ls_model *model)
{
    ls_optim_work w = {.pieces = 0};

    for (int i = 0; i < model->n_params; i++) {
        const ls_param *p = &model->params[i];
        if (p->trained < 0)
            continue;
        w.tensors++;
        w.pieces += (p->trained + p->count - 1) / LS_NORM_BLOCK - p->trained / LS_NORM_BLOCK + 1;
    }
    w.bytes = ls_round_up(w.pieces * (int64_t)sizeof(ls_lamb_piece), 256) +
              ls_round_up(w.tensors * (int64_t)sizeof(ls_lamb_tensor), 256) +
              ls_round_up(2 * w.pieces * (int64_t)sizeof(float), 256) +
              ls_round_up(w.tensors * (int64_t)sizeof(float), 256);
    return w;
}

/* Mirrored by train/step/step_muon.c. */
static ls_optim_work muon(const ls_run *run, const ls_model *model)
{
    ls_optim_work w = {.pieces = 0};

    for (int i = 0; i < model->n_params; i++) {
        const ls_param *p = &model->params[i];
        if (!ls_optim_is_matrix(run, p))
            continue;
        int64_t cols = p->shape[1] / p->parts, side = ls_min_i64(p->shape[0], cols);
        w.matrix = ls_max_i64(w.matrix, p->shape[0] * cols);
        w.square = ls_max_i64(w.square, side * side);
    }
    w.bytes = ls_round_up(ls_memory_spans(model) * (int64_t)sizeof(ls_adamw_span), 256) +
              2 * ls_round_up(w.matrix * (int64_t)sizeof(float), 256) +
              2 * ls_round_up(w.square * (int64_t)sizeof(float), 256) +
              ls_round_up(sizeof(ls_norm_result), 256);
    return w;
}

ls_optim_work ls_optim_work_of(const ls_run *run, const ls_model *model)
{
    switch (run->train.optimizer) {
    case LS_OPTIMIZER_LAMB:
        return lamb(model);
    case LS_OPTIMIZER_MUON:
        return muon(run, model);
    case LS_OPTIMIZER_ADAMW:
        break;
    }
    return (ls_optim_work){.bytes = 0};
}
