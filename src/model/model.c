/* model.c -- the table of a GPT-2's parameters.
 *
 * Order in the flat buffer: embeddings, blocks from first to last, final norm. Matrices keep the
 * memory order of the Hugging Face checkpoint ([inputs, outputs] for Conv1D), so import, export and
 * the hash of weights are plain copies. */
#include "model/model.h"

#include <math.h>
#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "config/explain.h"

enum { PER_BLOCK = 12, OUTSIDE = 4 };

/* Add one parameter and return where it begins. */
static int64_t add(ls_model *m, const char *group, const char *name, int64_t rows, int64_t cols,
                   ls_param_start start, float std)
{
    ls_param *p = &m->params[m->n_params++];

    snprintf(p->name, sizeof p->name, "transformer.%s", name);
    snprintf(p->group, sizeof p->group, "%s", group);
    p->ndim = rows ? 2 : 1;
    p->shape[0] = rows ? rows : cols;
    p->shape[1] = rows ? cols : 1;
    p->count = p->shape[0] * p->shape[1];
    p->first = m->flat;
    p->start = start;
    p->std = std;
    p->decay = rows > 0;
    m->elements += p->count;
    m->flat = ls_round_up(p->first + p->count, LS_PARAM_ALIGN);
    return p->first;
}

static int64_t add_in_block(ls_model *m, int64_t layer, const char *name, int64_t rows,
                            int64_t cols, ls_param_start start, float std)
{
    char group[24], full[64];

    snprintf(group, sizeof group, "h.%lld", (long long)layer);
    snprintf(full, sizeof full, "%s.%s", group, name);
    return add(m, group, full, rows, cols, start, std);
}

static void add_block(ls_model *m, int64_t l)
{
    const ls_model_shape *s = &m->shape;
    ls_block_params *b = &m->blocks[l];
    float std = s->init_std;
    /* Projections into the residual stream start smaller, so that its variance does not grow with
     * depth (GPT-2). */
    float into = std / sqrtf(2.0f * (float)s->L);

    b->ln1_w = add_in_block(m, l, "ln_1.weight", 0, s->C, LS_START_ONE, 0);
    b->ln1_b = add_in_block(m, l, "ln_1.bias", 0, s->C, LS_START_ZERO, 0);
    b->qkv_w = add_in_block(m, l, "attn.c_attn.weight", s->C, 3 * s->C, LS_START_NORMAL, std);
    b->qkv_b = add_in_block(m, l, "attn.c_attn.bias", 0, 3 * s->C, LS_START_ZERO, 0);
    b->proj_w = add_in_block(m, l, "attn.c_proj.weight", s->C, s->C, LS_START_NORMAL, into);
    b->proj_b = add_in_block(m, l, "attn.c_proj.bias", 0, s->C, LS_START_ZERO, 0);
    b->ln2_w = add_in_block(m, l, "ln_2.weight", 0, s->C, LS_START_ONE, 0);
    b->ln2_b = add_in_block(m, l, "ln_2.bias", 0, s->C, LS_START_ZERO, 0);
    b->fc_w = add_in_block(m, l, "mlp.c_fc.weight", s->C, s->F, LS_START_NORMAL, std);
    b->fc_b = add_in_block(m, l, "mlp.c_fc.bias", 0, s->F, LS_START_ZERO, 0);
    b->out_w = add_in_block(m, l, "mlp.c_proj.weight", s->F, s->C, LS_START_NORMAL, into);
    b->out_b = add_in_block(m, l, "mlp.c_proj.bias", 0, s->C, LS_START_ZERO, 0);
}

static ls_status check_vocab(const ls_run *run, int64_t vocab)
{
    if (run->model.vocab == LS_RUN_AUTO || run->model.vocab >= vocab)
        return LS_OK;
    return ls_fail(LS_EUSAGE, "%s: model.vocab is %lld, but the tokenizer has %lld tokens",
                   ls_explain_where(run, "model.vocab"), (long long)run->model.vocab,
                   (long long)vocab);
}

ls_status ls_model_init(ls_model *model, const ls_run *run, int64_t vocab)
{
    ls_status st = LS_OK;
    ls_model_shape *s = &model->shape;

    *model = (ls_model){.tokens = vocab};
    LS_TRY(st, check_vocab(run, vocab), out);
    *s = (ls_model_shape){
        .V = run->model.vocab == LS_RUN_AUTO ? vocab : run->model.vocab,
        .T = run->model.context,
        .L = run->model.layers,
        .C = run->model.width,
        .H = run->model.heads,
        .D = run->model.width / run->model.heads,
        .F = run->model.mlp,
        .eps = 1e-5f,
        .dropout = (float)run->model.dropout,
        .init_std = (float)run->model.init_std,
    };
    model->params = ls_mem_array((size_t)(s->L * PER_BLOCK + OUTSIDE), sizeof *model->params);
    model->blocks = ls_mem_array((size_t)s->L, sizeof *model->blocks);
    if (!model->params || !model->blocks) {
        st = LS_ENOMEM;
        goto out;
    }
    model->wte = add(model, "embed", "wte.weight", s->V, s->C, LS_START_NORMAL, s->init_std);
    model->wpe = add(model, "embed", "wpe.weight", s->T, s->C, LS_START_NORMAL, s->init_std);
    for (int64_t l = 0; l < s->L; l++)
        add_block(model, l);
    model->lnf_w = add(model, "final", "ln_f.weight", 0, s->C, LS_START_ONE, 0);
    model->lnf_b = add(model, "final", "ln_f.bias", 0, s->C, LS_START_ZERO, 0);
out:
    if (st != LS_OK)
        ls_model_release(model);
    return st;
}

void ls_model_release(ls_model *model)
{
    ls_mem_free(model->params);
    ls_mem_free(model->blocks);
    *model = (ls_model){.params = NULL};
}

void ls_model_start(const ls_param *p, uint64_t seed, int64_t first, int64_t count,
                    float *values_out)
{
    if (p->start == LS_START_NORMAL) {
        ls_hash name = ls_hash_bytes(p->name, strlen(p->name));
        ls_rng_normal(ls_rng_derive(seed, name.hi, name.lo), (uint64_t)first, (uint64_t)count,
                      values_out);
    }
    for (int64_t k = 0; k < count; k++)
        values_out[k] = p->start == LS_START_NORMAL ? values_out[k] * p->std
                        : p->start == LS_START_ONE  ? 1.0f
                                                    : 0.0f;
}

const ls_param *ls_model_param_at(const ls_model *model, int64_t element)
{
    int low = 0, high = model->n_params - 1;

    while (low < high) { /* the last parameter that begins at or before element */
        int middle = (low + high + 1) / 2;
        if (model->params[middle].first <= element)
            low = middle;
        else
            high = middle - 1;
    }
    return &model->params[low];
}

double ls_model_flops_per_token(const ls_model *model, int64_t T)
{
    const ls_model_shape *s = &model->shape;

    return 6.0 * (double)model->elements + 6.0 * (double)s->L * (double)s->C * (double)T;
}
