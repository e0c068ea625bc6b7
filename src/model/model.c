/* model.c -- the table of a model's parameters.
 *
 * Order in the flat buffer: embeddings, blocks from first to last, each with the small matrices of
 * LoRA behind its own, if any, final norm, head. So a run of units is a run of elements, of the
 * weights and of what is trained. Matrices keep the memory order of the Hugging Face checkpoint
 * ([inputs, outputs] for GPT-2's Conv1D, [outputs, inputs] for the others), so import, export and
 * the hash of weights are plain copies. One list serves all families: their names, and what of it
 * they have, are facts of the family's row (config/model_families.h). */
#include "model/model.h"

#include <fnmatch.h>
#include <math.h>
#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "config/explain.h"
#include "config/model_families.h"

/* Most parameters: 16 of a block (qkv with biases, norms of q and k ...) and three per adapter. */
enum { PER_BLOCK = 18 + 3 * LS_ADAPTERS, OUTSIDE = 5 };

/* A parameter about to be added. */
typedef struct spec {
    const char *name;   /* behind the prefix of the block */
    int64_t rows, cols; /* rows 0: a vector */
    ls_param_start start;
    float std;
    bool joined;      /* lies directly behind the one before: one product reads both */
    int parts;        /* see ls_param */
    ls_param_box box; /* shape[dim] of the whole; where dim is -1 nothing of it is divided */
} spec;

typedef struct builder {
    ls_model *model;
    const ls_run *run;
    const ls_family_names *names;
    char name[96];
    char prefix[64]; /* "model.layers.3." */
    char group[24];
    int64_t unit;
} builder;

/* --- what is trained -------------------------------------------------------------------------- */

static bool is_frozen(const ls_run *run, const ls_param *p)
{
    if (run->lora.rank > 0)
        return !p->lora;
    for (int i = 0; i < run->train.freeze.count; i++)
        if (fnmatch(run->train.freeze.items[i], p->name, 0) == 0)
            return true;
    return false;
}

/* A pattern that fits nothing is a mistake that would otherwise train what was to be kept. */
static ls_status check_freeze(const ls_model *m, const ls_run *run)
{
    int64_t trained = 0;

    for (int i = 0; i < run->train.freeze.count; i++) {
        bool fits = false;
        for (int k = 0; k < m->n_params && !fits; k++)
            fits = fnmatch(run->train.freeze.items[i], m->params[k].name, 0) == 0;
        if (fits)
            continue;
        ls_status st = ls_fail(LS_EUSAGE, "%s: train.freeze: no parameter is called \"%s\"",
                               ls_explain_where(run, "train.freeze"), run->train.freeze.items[i]);
        ls_err_hint("Names are like \"%s\"; * stands for any text.", m->params[0].name);
        return st;
    }
    for (int k = 0; k < m->n_params; k++)
        trained += m->params[k].trained >= 0 ? m->params[k].count : 0;
    if (trained == 0)
        return ls_fail(LS_EUSAGE, "%s: train.freeze leaves nothing to train",
                       ls_explain_where(run, "train.freeze"));
    return LS_OK;
}

/* The same where ranks divide experts: names of all of them count, even of those that other ranks
 * have. And a gradient must reach a block on all ranks where one of them trains an expert of it,
 * since they meet there. */
static ls_status check_freeze_ep(ls_model *m, const ls_run *run)
{
    ls_model whole = {.params = NULL};
    ls_status st = LS_OK;

    LS_TRY(st, ls_model_init(&whole, run, m->tokens), out);
    for (int64_t l = 0; l < m->shape.L; l++)
        m->blocks[l].trained = whole.blocks[l].trained;
    if (m->trained == 0) {
        st = ls_fail(LS_EUSAGE,
                     "%s: train.freeze leaves a rank nothing to train that has experts %lld to "
                     "%lld (mesh.ep)",
                     ls_explain_where(run, "train.freeze"), (long long)m->split.expert,
                     (long long)(m->split.expert + m->split.experts - 1));
        ls_err_hint("Freeze the same of every expert, or set mesh.ep: 1.");
    }
out:
    ls_model_release(&whole);
    return st;
}

/* --- adding ----------------------------------------------------------------------------------- */

/* Add one parameter and return where it lies. */
static ls_place add(builder *b, spec s, bool lora)
{
    ls_model *m = b->model;
    ls_param *p = &m->params[m->n_params++];

    snprintf(p->name, sizeof p->name, "%s%s", b->prefix, s.name);
    snprintf(p->group, sizeof p->group, "%s", b->group);
    p->unit = b->unit;
    p->ndim = s.rows ? 2 : 1;
    p->shape[0] = s.rows ? s.rows : s.cols;
    p->shape[1] = s.rows ? s.cols : 1;
    p->count = p->shape[0] * p->shape[1];
    p->start = s.start;
    p->std = s.std;
    p->decay = s.rows > 0;
    p->lora = lora;
    p->parts = s.parts;
    p->box = s.box;
    for (int i = 0; i < 2; i++)
        p->box.shape[i] = i == s.box.dim ? s.box.shape[i] : p->shape[i];
    p->first = s.joined ? m->flat : ls_round_up(m->flat, LS_PARAM_ALIGN);
    m->flat = p->first + p->count;
    m->elements += p->count;
    p->trained = -1;
    if (!is_frozen(b->run, p)) {
        const ls_param *before = p - 1;
        bool side_by_side = s.joined && before->trained >= 0;
        p->trained = side_by_side ? m->trained : ls_round_up(m->trained, LS_PARAM_ALIGN);
        m->trained = p->trained + p->count;
    }
    return (ls_place){p->first, p->trained};
}

static const ls_place nowhere = {-1, -1};

static ls_place add_if(builder *b, bool wanted, spec s)
{
    return wanted ? add(b, s, false) : nowhere;
}

/* A box that is the whole, on every rank. */
static ls_param_box undivided(const builder *b)
{
    return (ls_param_box){.dim = -1, .parts = 1, .copies = b->model->split.ranks};
}

static spec vector(const builder *b, const char *name, int64_t n, ls_param_start start)
{
    return (spec){.name = name, .cols = n, .start = start, .box = undivided(b)};
}

/* The gradients of its copies are parts of a sum. */
static spec partial(const builder *b, spec s)
{
    s.box.partial = b->model->split.ranks > 1;
    return s;
}

/* A norm of the stream: each rank sees its own rows. */
static spec stream_norm(const builder *b, const char *name, ls_param_start start)
{
    spec s = vector(b, name, b->model->shape.C, start);

    s.box.partial = b->model->split.sequence;
    return s;
}

/* How one dimension is divided: its length in the whole, and where the part begins. */
typedef struct cut {
    int64_t whole, from;
    int copies;
} cut;

static cut by_heads(const builder *b)
{
    const ls_model *m = b->model;

    return (cut){m->whole.H * m->whole.D, m->split.head * m->whole.D, 1};
}

static cut by_kv_heads(const builder *b)
{
    const ls_model *m = b->model;

    return (cut){m->whole.Hkv * m->whole.D, m->split.kv_head * m->whole.D, m->split.kv_copies};
}

static cut by_inner(const builder *b)
{
    return (cut){b->model->whole.F, b->model->split.inner, 1};
}

static cut by_tokens(const builder *b)
{
    return (cut){b->model->whole.V, b->model->split.token, 1};
}

/* Divided along a dimension, as each of `parts` stretches is. */
static spec divided(const builder *b, spec s, int dim, cut by, int parts)
{
    if (b->model->split.ranks == 1)
        return s;
    s.box.dim = dim;
    s.box.parts = parts;
    s.box.shape[dim] = by.whole * parts;
    s.box.from = by.from;
    s.box.copies = by.copies;
    s.box.partial = by.copies > 1; /* each copy serves other queries */
    return s;
}

/* A layer's weight or bias, divided by its outputs; a weight by its inputs. */
static spec outputs(const builder *b, spec s, cut by)
{
    bool last = s.rows > 0 && b->model->shape.layout == LS_LAYOUT_KN;

    return divided(b, s, last ? 1 : 0, by, (int)ls_max_i64(s.parts, 1));
}

static spec inputs(const builder *b, spec s, cut by)
{
    return divided(b, s, b->model->shape.layout == LS_LAYOUT_KN ? 0 : 1, by, 1);
}

/* A matrix of K inputs and N outputs in the layout of the family. */
static spec matrix(const builder *b, const char *name, int64_t K, int64_t N, float std)
{
    bool kn = b->model->shape.layout == LS_LAYOUT_KN;

    return (spec){.name = name,
                  .rows = kn ? K : N,
                  .cols = kn ? N : K,
                  .start = LS_START_NORMAL,
                  .std = std,
                  .parts = 1,
                  .box = undivided(b)};
}

/* A row of the model's width for each token or position. */
static spec table(const builder *b, const char *name, int64_t rows)
{
    const ls_model_shape *s = &b->model->shape;

    return (spec){.name = name,
                  .rows = rows,
                  .cols = s->C,
                  .start = LS_START_NORMAL,
                  .std = s->init_std,
                  .box = undivided(b)};
}

static spec joined(spec s)
{
    s.joined = true;
    return s;
}

/* Projections into the residual stream start smaller, so that its variance does not grow with depth
 * (GPT-2). */
static float std_into_stream(const ls_model_shape *s)
{
    return s->init_std / sqrtf(2.0f * (float)s->L);
}

/* "self_attn.q_proj" and a suffix, as a name that lives as long as the next call's. */
static const char *named(builder *b, const char *module, const char *name, const char *suffix)
{
    snprintf(b->name, sizeof b->name, "%s%s%s%s", module, *module ? "." : "", name, suffix);
    return b->name;
}

/* A layer: K inputs, N outputs, and how it is divided. */
typedef struct layer {
    const char *module, *name; /* "self_attn", "q_proj" */
    int64_t K, N;
    cut by;
    int parts; /* of its outputs, as in ls_param */
} layer;

/* The layers of a packed product, divided by outputs: their weights, side by side, and their
 * biases. */
static void add_columns(builder *b, const layer *parts, int n, bool bias, ls_place *w,
                        ls_place *bias_out)
{
    float std = b->model->shape.init_std;

    for (int i = 0; i < n; i++) {
        const layer *p = &parts[i];
        spec m = matrix(b, named(b, p->module, p->name, ".weight"), p->K, p->N, std);
        m.parts = p->parts;
        m = outputs(b, m, p->by);
        w[i] = add(b, i > 0 ? joined(m) : m, false);
    }
    for (int i = 0; i < n; i++) {
        const layer *p = &parts[i];
        spec v = vector(b, named(b, p->module, p->name, ".bias"), p->N, LS_START_ZERO);
        v = divided(b, v, 0, p->by, p->parts);
        bias_out[i] = add_if(b, bias, i > 0 ? joined(v) : v);
    }
}

/* A layer back to the stream, divided by inputs; its bias is whole on every rank. */
static void add_rows(builder *b, layer l, bool bias, ls_place *w, ls_place *bias_out)
{
    float std = std_into_stream(&b->model->shape);

    *w = add(b, inputs(b, matrix(b, named(b, l.module, l.name, ".weight"), l.K, l.N, std), l.by),
             false);
    *bias_out = add_if(b, bias, vector(b, named(b, l.module, l.name, ".bias"), l.N, LS_START_ZERO));
}

/* A norm of the stream, or of what joins it. */
static void add_norm(builder *b, const char *name, ls_place *w, ls_place *bias_out)
{
    bool bias = b->model->shape.norm == LS_NORM_LAYER;

    *w = add(b, stream_norm(b, named(b, "", name, ".weight"), LS_START_ONE), false);
    *bias_out = add_if(b, bias, stream_norm(b, named(b, "", name, ".bias"), LS_START_ZERO));
}

/* The norm of queries or of keys: one head's, which all heads share, or that of all of them. */
static ls_place add_qk_norm(builder *b, const char *name, int64_t width, cut by)
{
    const ls_model_shape *s = &b->model->shape;
    spec v = vector(b, named(b, b->names->attention, name, ".weight"), s->qk_wide ? width : s->D,
                    LS_START_ONE);

    return add_if(b, s->qk_norm, s->qk_wide ? divided(b, v, 0, by, 1) : partial(b, v));
}

static void add_attention(builder *b, ls_block_params *p)
{
    const ls_family_names *n = b->names;
    const ls_model_shape *s = &b->model->shape;
    int64_t C = s->C, A = s->H * s->D, Akv = s->Hkv * s->D; /* A: of all heads together */
    cut q = by_heads(b), kv = by_kv_heads(b);
    const layer parted[] = {{n->attention, n->qkv[0], C, A, q, 1},
                            {n->attention, n->qkv[1], C, Akv, kv, 1},
                            {n->attention, n->qkv[2], C, Akv, kv, 1}};
    const layer one[] = {{n->attention, n->qkv[0], C, 3 * A, q, 3}};

    add_columns(b, n->qkv[1] ? parted : one, n->qkv[1] ? 3 : 1, s->bias_qkv, p->qkv_w, p->qkv_b);
    p->q_norm = add_qk_norm(b, "q_norm", A, q);
    p->k_norm = add_qk_norm(b, "k_norm", Akv, kv);
    add_rows(b, (layer){n->attention, n->proj, A, C, q, 1}, s->bias_proj, &p->proj_w, &p->proj_b);
}

/* The router and the experts that this rank has, gate and up of each side by side. */
static void add_experts(builder *b, ls_block_params *p)
{
    const ls_family_names *n = b->names;
    const ls_model_shape *s = &b->model->shape;
    cut by = by_inner(b);
    char expert[64];
    ls_place none[2];

    spec router = matrix(b, named(b, n->mlp, n->router, ".weight"), s->C, s->E, s->init_std);
    p->router = add(b, partial(b, router), false);
    for (int64_t e = 0; e < b->model->split.experts; e++) {
        ls_expert_params *to = &p->experts[e];
        int first = b->model->n_params;
        snprintf(expert, sizeof expert, "%s.%s.%lld", n->mlp, n->experts,
                 (long long)(b->model->split.expert + e));
        const layer in[] = {{expert, n->fc[0], s->C, s->F, by, 1},
                            {expert, n->fc[1], s->C, s->F, by, 1}};
        add_columns(b, in, 2, false, to->fc_w, none);
        add_rows(b, (layer){expert, n->out, s->F, s->C, by, 1}, false, &to->out_w, none);
        for (int i = first; i < b->model->n_params; i++)
            b->model->params[i].expert = true;
    }
}

static void add_mlp(builder *b, ls_block_params *p)
{
    const ls_family_names *n = b->names;
    const ls_model_shape *s = &b->model->shape;
    cut by = by_inner(b);
    const layer in[] = {{n->mlp, n->fc[0], s->C, s->F, by, 1},
                        {n->mlp, n->fc[1], s->C, s->F, by, 1}};

    add_columns(b, in, s->gated ? 2 : 1, s->bias_mlp, p->fc_w, p->fc_b);
    add_rows(b, (layer){n->mlp, n->out, s->F, s->C, by, 1}, s->bias_mlp, &p->out_w, &p->out_b);
}

static void add_block(builder *b, ls_block_params *p)
{
    add_norm(b, b->names->norm1, &p->ln1_w, &p->ln1_b);
    add_attention(b, p);
    add_norm(b, b->names->norm2, &p->ln2_w, &p->ln2_b);
    if (b->model->shape.E > 0)
        add_experts(b, p);
    else
        add_mlp(b, p);
}

static void set_nowhere(ls_block_params *p)
{
    ls_place *const places[] = {
        &p->ln1_w,    &p->ln1_b,    &p->qkv_w[0], &p->qkv_w[1], &p->qkv_w[2], &p->qkv_b[0],
        &p->qkv_b[1], &p->qkv_b[2], &p->q_norm,   &p->k_norm,   &p->proj_w,   &p->proj_b,
        &p->ln2_w,    &p->ln2_b,    &p->fc_w[0],  &p->fc_w[1],  &p->fc_b[0],  &p->fc_b[1],
        &p->out_w,    &p->out_b,    &p->router};

    for (size_t i = 0; i < LS_COUNT(places); i++)
        *places[i] = nowhere;
    for (int i = 0; i < LS_ADAPTERS; i++)
        p->adapters[i] = (ls_adapter){.a = nowhere, .b = nowhere, .d = nowhere};
}

/* --- LoRA ------------------------------------------------------------------------------------- */

/* What can have small matrices, by the names that targets are given by. */
typedef struct lora_site {
    const char *module, *name; /* "self_attn", "q_proj"; NULL: the model has no such layer */
    const char *fused;         /* "qkv_proj": a folder's name for it and others, or NULL */
    int64_t K, N, first;
    int parts;      /* of its outputs, as in ls_param_box */
    bool by_inputs; /* that is how the layer is divided; else by outputs */
} lora_site;

static void lora_sites(const ls_model_shape *s, lora_site sites[LS_ADAPTERS])
{
    const ls_family_names *n = &ls_families_row(s->family)->names;
    int64_t C = s->C, F = s->F, A = s->H * s->D, Akv = s->Hkv * s->D;
    bool parted = n->qkv[1] != NULL;

    memset(sites, 0, LS_ADAPTERS * sizeof *sites);
    sites[LS_ADAPTER_Q] = (lora_site){n->attention,       n->qkv[0], n->fused_qkv,   C,
                                      parted ? A : 3 * A, 0,         parted ? 1 : 3, false};
    sites[LS_ADAPTER_K] = (lora_site){n->attention, n->qkv[1], n->fused_qkv, C, Akv, A, 1, false};
    sites[LS_ADAPTER_V] =
        (lora_site){n->attention, n->qkv[2], n->fused_qkv, C, Akv, A + Akv, 1, false};
    sites[LS_ADAPTER_O] = (lora_site){n->attention, n->proj, NULL, A, C, 0, 1, true};
    if (s->E > 0) /* experts have none */
        return;
    sites[LS_ADAPTER_GATE] = (lora_site){n->mlp, n->fc[0], n->fused_fc, C, F, 0, 1, false};
    sites[LS_ADAPTER_UP] = (lora_site){n->mlp, n->fc[1], n->fused_fc, C, F, F, 1, false};
    sites[LS_ADAPTER_DOWN] = (lora_site){n->mlp, n->out, NULL, F, C, 0, 1, true};
}

static bool names_layer(const char *target, const char *module, const char *name)
{
    size_t n = strlen(module);

    return name &&
           (strcmp(target, name) == 0 || (strncmp(target, module, n) == 0 && target[n] == '.' &&
                                          strcmp(target + n + 1, name) == 0));
}

static bool names_site(const char *target, const lora_site *site)
{
    return site->name && (names_layer(target, site->module, site->name) ||
                          names_layer(target, site->module, site->fused));
}

static bool is_target(const ls_run *run, const lora_site *site)
{
    for (int i = 0; i < run->lora.targets.count; i++)
        if (names_site(run->lora.targets.items[i], site))
            return true;
    return run->lora.targets.count == 0;
}

static ls_status check_targets(const ls_model *m, const ls_run *run)
{
    lora_site sites[LS_ADAPTERS];

    lora_sites(&m->shape, sites);
    for (int i = 0; i < run->lora.targets.count; i++) {
        bool fits = false;
        ls_str names;
        for (int k = 0; k < LS_ADAPTERS; k++)
            fits |= names_site(run->lora.targets.items[i], &sites[k]);
        if (fits)
            continue;
        ls_str_init(&names);
        for (int k = 0; k < LS_ADAPTERS; k++)
            if (sites[k].name)
                ls_str_printf(&names, "%s%s.%s", names.len ? ", " : "", sites[k].module,
                              sites[k].name);
        ls_status st = ls_fail(LS_EUSAGE, "%s: lora.targets: this model has no layer \"%s\"",
                               ls_explain_where(run, "lora.targets"), run->lora.targets.items[i]);
        ls_err_hint("Its layers are %s; the part before the dot may be left out.", names.p);
        ls_str_release(&names);
        return st;
    }
    return LS_OK;
}

/* How the layer of adapter i is divided. */
static cut cut_of_adapter(const builder *b, int i)
{
    if (i == LS_ADAPTER_K || i == LS_ADAPTER_V)
        return by_kv_heads(b);
    return i == LS_ADAPTER_Q || i == LS_ADAPTER_O ? by_heads(b) : by_inner(b);
}

/* A starts at random and B at zero, and so does what DoRA adds to lengths, so that training starts from the
 * base model itself. The one of
 * the two that the layer's cut does not go through is on every rank, and sees a part of its uses.
 */
static void add_adapters(builder *b, ls_block_params *p)
{
    const ls_model_shape *s = &b->model->shape;
    lora_site sites[LS_ADAPTERS], whole[LS_ADAPTERS];

    lora_sites(s, sites);
    lora_sites(&b->model->whole, whole);
    for (int i = 0; i < LS_ADAPTERS; i++) {
        const lora_site *site = &sites[i];
        if (!site->name || !is_target(b->run, site))
            continue;
        ls_adapter *to = &p->adapters[i];
        *to = (ls_adapter){.K = site->K, .N = site->N, .first = site->first, .d = nowhere};
        spec a = {.name = named(b, site->module, site->name, ".lora_A.weight"),
                  .rows = s->lora_rank,
                  .cols = to->K,
                  .start = LS_START_UNIFORM,
                  .std = 1.0f / sqrtf((float)whole[i].K),
                  .box = undivided(b)};
        a = site->by_inputs ? divided(b, a, 1, cut_of_adapter(b, i), 1) : partial(b, a);
        to->a = add(b, a, true);
        spec up = {.name = named(b, site->module, site->name, ".lora_B.weight"),
                   .rows = to->N,
                   .cols = s->lora_rank,
                   .box = undivided(b)};
        up =
            site->by_inputs ? partial(b, up) : divided(b, up, 0, cut_of_adapter(b, i), site->parts);
        to->b = add(b, up, true);
        if (s->dora)
            to->d = add(b,
                        (spec){.name = named(b, site->module, site->name, LS_MODEL_DORA),
                               .cols = to->N,
                               .box = undivided(b)},
                        true);
    }
}

/* --- the whole -------------------------------------------------------------------------------- */

static ls_status check_vocab(const ls_run *run, int64_t vocab)
{
    if (run->model.vocab == LS_RUN_AUTO || run->model.vocab >= vocab)
        return LS_OK;
    ls_status st = ls_fail(LS_EUSAGE, "%s: model.vocab is %lld, but the tokenizer has %lld tokens",
                           ls_explain_where(run, "model.vocab"), (long long)run->model.vocab,
                           (long long)vocab);
    if (*run->model.import)
        ls_err_hint("The tokenizer (data.tokenizer) must be the one that the model was made with.");
    else
        ls_err_hint("Leave model.vocab out: then the tokenizer settles it.");
    return st;
}

static ls_model_shape shape_of(const ls_run *run, int64_t vocab)
{
    const ls_run_model *r = &run->model;
    const ls_family_row *row = ls_families_row(r->family);
    bool all = r->bias == LS_BIAS_ALL, gated = ls_families_is_gated(row);
    bool learned = ls_families_learns_positions(row);
    bool attention = all || r->bias == LS_BIAS_ATTENTION;

    return (ls_model_shape){
        .family = r->family,
        .V = r->vocab == LS_RUN_AUTO ? vocab : r->vocab,
        .T = r->context,
        .L = r->layers,
        .C = r->width,
        .F = r->mlp,
        .H = r->heads,
        .Hkv = r->kv_heads,
        .D = r->head_size,
        .E = r->experts,
        .K = r->experts > 0 ? r->experts_used : 0,
        .normalized = r->experts_norm,
        .balance = (float)run->train.balance_loss,
        .z = (float)run->train.z_loss,
        .norm = row->layer_norm ? LS_NORM_LAYER : LS_NORM_RMS,
        .post_norm = row->post_norm,
        .act = gated ? LS_ACT_SILU : LS_ACT_GELU,
        .gated = gated,
        .positions = learned ? ls_max_i64(r->positions, r->context) : 0,
        .rope = !learned,
        .qk_norm = row->qk_norm != LS_QK_NORM_NONE,
        .qk_wide = row->qk_norm == LS_QK_NORM_WHOLE,
        .tied = r->tied == LS_TIED_YES,
        .bias_qkv = attention || r->bias == LS_BIAS_QKV,
        .bias_proj = attention,
        .bias_mlp = all || r->bias == LS_BIAS_MLP,
        .layout = row->in_out ? LS_LAYOUT_KN : LS_LAYOUT_NK,
        .window = r->window,
        .window_from = r->window_from,
        .eps = (float)r->norm_eps,
        .dropout = (float)r->dropout,
        .noise = (float)(run->train.neftune / sqrt((double)r->context * (double)r->width)),
        .init_std = (float)r->init_std,
        .lora_rank = run->lora.rank,
        .dora = run->lora.rank > 0 && run->lora.dora,
        .lora_scale = run->lora.rank ? (float)(run->lora.alpha / (double)run->lora.rank) : 0,
    };
}

static bool block_is_trained(const ls_model *m, int first_param, int end_param)
{
    for (int i = first_param; i < end_param; i++)
        if (m->params[i].trained >= 0)
            return true;
    return false;
}

static void begin_block(builder *b, int64_t l)
{
    snprintf(b->prefix, sizeof b->prefix, "%s%s.%lld.", b->names->prefix, b->names->blocks,
             (long long)l);
    snprintf(b->group, sizeof b->group, "h.%lld", (long long)l);
    b->unit = 1 + l;
}

static void add_blocks(builder *b)
{
    ls_model *m = b->model;
    const ls_model_shape *s = &m->shape;

    for (int64_t l = 0; l < s->L; l++) {
        ls_block_params *p = &m->blocks[l];
        int first = m->n_params;
        begin_block(b, l);
        set_nowhere(p);
        p->experts = m->experts + l * s->E;
        p->window = l >= s->window_from ? s->window : 0;
        add_block(b, p);
        if (s->lora_rank > 0)
            add_adapters(b, p);
        p->trained = block_is_trained(m, first, m->n_params);
    }
}

static void add_all(builder *b)
{
    ls_model *m = b->model;
    const ls_model_shape *s = &m->shape;
    const ls_family_names *n = b->names;

    snprintf(b->prefix, sizeof b->prefix, "%s", n->prefix);
    snprintf(b->group, sizeof b->group, "embed");
    spec wte = table(b, named(b, "", n->embedding, ".weight"), s->V);
    m->wte = add(b, divided(b, wte, 0, by_tokens(b), 1), false);
    m->wpe = nowhere;
    if (s->positions)
        m->wpe = add(b, table(b, named(b, "", n->positions, ".weight"), s->positions), false);
    add_blocks(b);
    snprintf(b->prefix, sizeof b->prefix, "%s", n->prefix);
    snprintf(b->group, sizeof b->group, "final");
    b->unit = 1 + s->L;
    add_norm(b, n->final_norm, &m->lnf_w, &m->lnf_b);
    b->prefix[0] = '\0';
    m->head = m->wte;
    if (!s->tied)
        m->head = add(b, divided(b, table(b, "lm_head.weight", s->V), 0, by_tokens(b), 1), false);
    m->flat = ls_round_up(m->flat, LS_PARAM_ALIGN);
    m->trained = ls_round_up(m->trained, LS_PARAM_ALIGN);
}

ls_status ls_model_init(ls_model *model, const ls_run *run, int64_t vocab)
{
    return ls_model_init_split(model, run, vocab, (ls_model_split){.ranks = 1});
}

ls_status ls_model_init_split(ls_model *model, const ls_run *run, int64_t vocab,
                              ls_model_split split)
{
    ls_status st = LS_OK;
    builder b = {.model = model, .run = run, .names = &ls_families_row(run->model.family)->names};

    *model = (ls_model){.tokens = vocab, .run = run->model};
    LS_TRY(st, check_vocab(run, vocab), out);
    model->shape = model->whole = shape_of(run, vocab);
    model->split = split;
    LS_TRY(st, ls_model_split_make(&model->split, run, &model->shape), out);
    int64_t L = model->shape.L, E = model->shape.E, most = PER_BLOCK + (E > 0 ? 1 + 3 * E : 0);
    model->params = ls_mem_array((size_t)(L * most + OUTSIDE), sizeof *model->params);
    model->blocks = ls_mem_array((size_t)L, sizeof *model->blocks);
    model->experts = ls_mem_array((size_t)(L * E), sizeof *model->experts);
    if (!model->params || !model->blocks || !model->experts) {
        st = LS_ENOMEM;
        goto out;
    }
    LS_TRY(st, check_targets(model, run), out);
    add_all(&b);
    if (model->split.ep_ranks > 1 && run->train.freeze.count > 0)
        LS_TRY(st, check_freeze_ep(model, run), out);
    else
        LS_TRY(st, check_freeze(model, run), out);
out:
    if (st != LS_OK)
        ls_model_release(model);
    return st;
}

void ls_model_release(ls_model *model)
{
    ls_mem_free(model->params);
    ls_mem_free(model->blocks);
    ls_mem_free(model->experts);
    *model = (ls_model){.params = NULL};
}

/* Values in [0, 1) number first .. first+count-1 of the stream that key names. */
static void uniform_values(ls_rng_key key, int64_t first, int64_t count, float *values_out)
{
    for (int64_t k = 0; k < count; k++) {
        uint64_t i = (uint64_t)(first + k);
        ls_rng_block block = ls_rng_philox(key, (uint32_t)(i / 4), (uint32_t)(i / 4 >> 32), 0, 0);
        values_out[k] = ls_rng_uniform(block.v[i % 4]);
    }
}

/* Elements first .. first+count-1 of the whole tensor. */
static void start_whole(const ls_param *p, uint64_t seed, int64_t first, int64_t count,
                        float *values_out)
{
    bool normal = p->start == LS_START_NORMAL, uniform = p->start == LS_START_UNIFORM;

    if (normal || uniform) {
        ls_hash name = ls_hash_bytes(p->name, strlen(p->name));
        ls_rng_key key = ls_rng_derive(seed, name.hi, name.lo);
        if (normal)
            ls_rng_normal(key, (uint64_t)first, (uint64_t)count, values_out);
        else
            uniform_values(key, first, count, values_out);
    }
    for (int64_t k = 0; k < count; k++)
        values_out[k] = normal                     ? values_out[k] * p->std
                        : uniform                  ? (2.0f * values_out[k] - 1.0f) * p->std
                        : p->start == LS_START_ONE ? 1.0f
                                                   : 0.0f;
}

void ls_model_start(const ls_param *p, uint64_t seed, int64_t first, int64_t count,
                    float *values_out)
{
    for (int64_t done = 0, run; done < count; done += run) {
        int64_t at = ls_param_box_whole(&p->box, p->shape, first + done, &run);
        run = ls_min_i64(run, count - done);
        start_whole(p, seed, at, run, values_out + done);
    }
}

int64_t ls_model_complete(const ls_model *model, int64_t unit)
{
    int64_t from = 0;

    for (int i = 0; i < model->n_params; i++) {
        const ls_param *p = &model->params[i];
        if (p->unit < unit && p->trained >= 0)
            from = ls_max_i64(from, p->trained + p->count);
    }
    return from;
}

int64_t ls_model_below(const ls_model *model, int64_t unit)
{
    int64_t from = 0;

    for (int i = 0; i < model->n_params; i++)
        if (model->params[i].unit < unit)
            from = ls_max_i64(from, model->params[i].first + model->params[i].count);
    return from;
}

int ls_model_partials(const ls_model *model, ls_collectives_span *spans_out)
{
    int n = 0;

    for (int i = 0; i < model->n_params; i++) {
        const ls_param *p = &model->params[i];
        if (p->box.partial && p->trained >= 0)
            spans_out[n++] = (ls_collectives_span){p->trained, p->count, p->box.copies};
    }
    return n;
}

int ls_model_common(const ls_model *model, int64_t first, int64_t count,
                    ls_collectives_span *spans_out)
{
    int n = 0;

    for (int i = 0; i < model->n_params; i++) {
        const ls_param *p = &model->params[i];
        int64_t from = ls_max_i64(p->trained, first);
        int64_t end = ls_min_i64(p->trained + p->count, first + count);
        if (!p->expert && p->trained >= 0 && from < end)
            spans_out[n++] = (ls_collectives_span){from, end - from, model->split.ep_ranks};
    }
    return n;
}

bool ls_model_counts(const ls_model *model, const ls_param *p)
{
    const ls_model_split *split = &model->split;

    return split->rank % p->box.copies == 0 && (p->expert || split->ep_rank == 0);
}

const ls_param *ls_model_find(const ls_model *model, const char *name)
{
    for (int i = 0; i < model->n_params; i++)
        if (strcmp(model->params[i].name, name) == 0)
            return &model->params[i];
    return NULL;
}

const ls_param *ls_model_same(const ls_model *whole, const ls_param *p)
{
    const ls_param *found = ls_model_find(whole, p->name);

    LS_BUG_IF(!found, "a part of a model has \"%s\", which the model lacks", p->name);
    return found;
}

/* Radians per position of pair i, rounded to fp32 where transformers rounds. */
static float rope_frequency(const ls_model *model, int64_t i)
{
    const ls_run_model *r = &model->run;
    const double pi = 3.14159265358979323846;
    float share = (float)(2 * i) / (float)model->shape.D;
    float f = 1.0f / (float)pow(r->rope_theta, (double)share);
    double wave = 2 * pi / (double)f, turns = (double)r->rope_original / wave;

    switch (r->rope_scaling) {
    case LS_ROPE_PLAIN:
        return f;
    case LS_ROPE_LINEAR:
        return f / (float)r->rope_factor;
    case LS_ROPE_LLAMA3:
        if (turns > r->rope_high)
            return f;
        if (turns < r->rope_low)
            return f / (float)r->rope_factor;
        double smooth = (turns - r->rope_low) / (r->rope_high - r->rope_low);
        return (float)((1 - smooth) * (double)f / r->rope_factor + smooth * (double)f);
    }
    return f;
}

void ls_model_rope(const ls_model *model, int64_t first, int64_t n, float *table_out)
{
    int64_t pairs = model->shape.D / 2;

    for (int64_t i = 0; i < pairs; i++) {
        float f = rope_frequency(model, i);
        for (int64_t t = 0; t < n; t++) {
            float angle = (float)(first + t) * f;
            table_out[(t * pairs + i) * 2] = (float)cos((double)angle);
            table_out[(t * pairs + i) * 2 + 1] = (float)sin((double)angle);
        }
    }
}

double ls_model_flops_per_token(const ls_model *model, int64_t T)
{
    const ls_model_shape *s = &model->shape;
    double parameters = 0;

    for (int i = 0; i < model->n_params; i++)
        parameters += (model->params[i].trained >= 0 ? 6.0 : 4.0) * (double)model->params[i].count *
                      ls_model_active(model, &model->params[i]);
    return parameters + 6.0 * (double)s->L * (double)(s->H * s->D) * (double)T;
}
