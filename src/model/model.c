/* model.c -- the table of a model's parameters.
 *
 * Order in the flat buffer: embeddings, blocks from first to last, each with the small matrices of
 * LoRA behind its own, if any, final norm, head. So a run of units is a run of elements, of the
 * weights and of what is trained. Matrices keep the memory order of the Hugging Face checkpoint
 * ([inputs, outputs] for GPT-2's Conv1D, [outputs, inputs] for the others), so import, export and
 * the hash of weights are plain copies. Names and shapes of a block are two lists, GPT-2's and the
 * Llama family's; what a family has beyond its list is a matter of flags in the shape. */
#include "model/model.h"

#include <fnmatch.h>
#include <math.h>
#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "config/explain.h"

/* Most parameters: 16 of a block (qkv with biases, norms of q and k ...) and a pair per adapter. */
enum { PER_BLOCK = 18 + 2 * LS_ADAPTERS, OUTSIDE = 5 };

/* A parameter about to be added. */
typedef struct spec {
    const char *name;   /* behind the prefix of the block */
    int64_t rows, cols; /* rows 0: a vector */
    ls_param_start start;
    float std;
    bool joined;            /* lies directly behind the one before: one product reads both */
    int parts;              /* see ls_param */
    ls_flight_recorder box; /* shape[dim] of the whole; where dim is -1 nothing of it is divided */
} spec;

typedef struct builder {
    ls_model *model;
    const ls_run *run;
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

/* The same where ranks divide experts: names of all of them count, also of those that other ranks
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
static ls_flight_recorder undivided(const builder *b)
{
    return (ls_flight_recorder){.dim = -1, .parts = 1, .copies = b->model->split.ranks};
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

static spec side_by_side(spec s, int parts)
{
    s.parts = parts;
    return s;
}

/* Projections into the residual stream start smaller, so that its variance does not grow with depth
 * (GPT-2). */
static float std_into_stream(const ls_model_shape *s)
{
    return s->init_std / sqrtf(2.0f * (float)s->L);
}

static void add_block_gpt2(builder *b, ls_block_params *p)
{
    const ls_model_shape *s = &b->model->shape;
    float std = s->init_std, into = std_into_stream(s);
    int64_t A = s->H * s->D; /* width of all heads together */
    bool qkv = s->bias_qkv, proj = s->bias_proj, mlp = s->bias_mlp;
    cut heads = by_heads(b), inner = by_inner(b);
    spec qkv_w = side_by_side(matrix(b, "attn.c_attn.weight", s->C, 3 * A, std), 3);
    spec qkv_b = divided(b, vector(b, "attn.c_attn.bias", 3 * A, LS_START_ZERO), 0, heads, 3);
    spec fc_b = vector(b, "mlp.c_fc.bias", s->F, LS_START_ZERO);

    p->ln1_w = add(b, stream_norm(b, "ln_1.weight", LS_START_ONE), false);
    p->ln1_b = add(b, stream_norm(b, "ln_1.bias", LS_START_ZERO), false);
    p->qkv_w[0] = add(b, outputs(b, qkv_w, heads), false);
    p->qkv_b[0] = add_if(b, qkv, qkv_b);
    p->proj_w = add(b, inputs(b, matrix(b, "attn.c_proj.weight", A, s->C, into), heads), false);
    p->proj_b = add_if(b, proj, vector(b, "attn.c_proj.bias", s->C, LS_START_ZERO));
    p->ln2_w = add(b, stream_norm(b, "ln_2.weight", LS_START_ONE), false);
    p->ln2_b = add(b, stream_norm(b, "ln_2.bias", LS_START_ZERO), false);
    p->fc_w[0] = add(b, outputs(b, matrix(b, "mlp.c_fc.weight", s->C, s->F, std), inner), false);
    p->fc_b[0] = add_if(b, mlp, outputs(b, fc_b, inner));
    p->out_w = add(b, inputs(b, matrix(b, "mlp.c_proj.weight", s->F, s->C, into), inner), false);
    p->out_b = add_if(b, mlp, vector(b, "mlp.c_proj.bias", s->C, LS_START_ZERO));
}

/* The parts of a packed product, divided by outputs: their weights, side by side, and their biases.
 */
typedef struct column_part {
    const char *name; /* "self_attn.q_proj" */
    int64_t width;
    cut by;
} column_part;

static void add_columns(builder *b, const column_part *parts, int n, bool bias, ls_place *w,
                        ls_place *bias_out)
{
    const ls_model_shape *s = &b->model->shape;
    char name[64];

    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s.weight", parts[i].name);
        spec m = outputs(b, matrix(b, name, s->C, parts[i].width, s->init_std), parts[i].by);
        w[i] = add(b, i > 0 ? joined(m) : m, false);
    }
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s.bias", parts[i].name);
        spec v = outputs(b, vector(b, name, parts[i].width, LS_START_ZERO), parts[i].by);
        bias_out[i] = add_if(b, bias, i > 0 ? joined(v) : v);
    }
}

static void add_attention_llama(builder *b, ls_block_params *p)
{
    const ls_model_shape *s = &b->model->shape;
    int64_t A = s->H * s->D, Akv = s->Hkv * s->D;
    const column_part parts[] = {{"self_attn.q_proj", A, by_heads(b)},
                                 {"self_attn.k_proj", Akv, by_kv_heads(b)},
                                 {"self_attn.v_proj", Akv, by_kv_heads(b)}};
    spec proj = matrix(b, "self_attn.o_proj.weight", A, s->C, std_into_stream(s));
    spec q_norm = vector(b, "self_attn.q_norm.weight", s->qk_wide ? A : s->D, LS_START_ONE);
    spec k_norm = vector(b, "self_attn.k_norm.weight", s->qk_wide ? Akv : s->D, LS_START_ONE);

    add_columns(b, parts, 3, s->bias_qkv, p->qkv_w, p->qkv_b);
    q_norm = s->qk_wide ? divided(b, q_norm, 0, by_heads(b), 1) : partial(b, q_norm);
    k_norm = s->qk_wide ? divided(b, k_norm, 0, by_kv_heads(b), 1) : partial(b, k_norm);
    p->q_norm = add_if(b, s->qk_norm, q_norm);
    p->k_norm = add_if(b, s->qk_norm, k_norm);
    p->proj_w = add(b, inputs(b, proj, by_heads(b)), false);
    p->proj_b = add_if(b, s->bias_proj, vector(b, "self_attn.o_proj.bias", s->C, LS_START_ZERO));
}

/* The router and the experts that this rank has, gate and up of each side by side. */
static void add_experts(builder *b, ls_block_params *p)
{
    static const char *const names[2][5] = {
        {"block_sparse_moe.gate.weight", "block_sparse_moe.experts", "w1", "w3", "w2"},
        {"mlp.gate.weight", "mlp.experts", "gate_proj", "up_proj", "down_proj"}};
    const ls_model_shape *s = &b->model->shape;
    const char *const *n = names[s->family != LS_FAMILY_MIXTRAL];
    char name[64];

    p->router = add(b, partial(b, matrix(b, n[0], s->C, s->E, s->init_std)), false);
    for (int64_t e = 0; e < b->model->split.experts; e++) {
        ls_expert_params *to = &p->experts[e];
        long long number = (long long)(b->model->split.expert + e);
        int first = b->model->n_params;
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "%s.%lld.%s.weight", n[1], number, n[2 + i]);
            spec m = i < 2 ? matrix(b, name, s->C, s->F, s->init_std)
                           : matrix(b, name, s->F, s->C, std_into_stream(s));
            m = i < 2 ? outputs(b, m, by_inner(b)) : inputs(b, m, by_inner(b));
            ls_place place = add(b, i == 1 ? joined(m) : m, false);
            *(i < 2 ? &to->fc_w[i] : &to->out_w) = place;
        }
        for (int i = first; i < b->model->n_params; i++)
            b->model->params[i].expert = true;
    }
}

static void add_block_llama(builder *b, ls_block_params *p)
{
    const ls_model_shape *s = &b->model->shape;
    const column_part parts[] = {{"mlp.gate_proj", s->F, by_inner(b)},
                                 {"mlp.up_proj", s->F, by_inner(b)}};

    p->ln1_w = add(b, stream_norm(b, "input_layernorm.weight", LS_START_ONE), false);
    add_attention_llama(b, p);
    p->ln2_w = add(b, stream_norm(b, "post_attention_layernorm.weight", LS_START_ONE), false);
    if (s->E > 0) {
        add_experts(b, p);
        return;
    }
    spec out = matrix(b, "mlp.down_proj.weight", s->F, s->C, std_into_stream(s));
    add_columns(b, parts, 2, s->bias_mlp, p->fc_w, p->fc_b);
    p->out_w = add(b, inputs(b, out, by_inner(b)), false);
    p->out_b = add_if(b, s->bias_mlp, vector(b, "mlp.down_proj.bias", s->C, LS_START_ZERO));
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
        p->adapters[i] = (ls_adapter){.a = nowhere, .b = nowhere};
}

/* --- LoRA ------------------------------------------------------------------------------------- */

/* What can have small matrices, by the names that targets are given by. */
typedef struct lora_site {
    const char *module; /* "self_attn.q_proj" */
    int64_t K, N, first;
    int parts;      /* of its outputs, as in ls_flight_recorder */
    bool by_inputs; /* that is how the layer is divided; else by outputs */
} lora_site;

static void lora_sites(const ls_model_shape *s, lora_site sites[LS_ADAPTERS])
{
    int64_t C = s->C, F = s->F, A = s->H * s->D, Akv = s->Hkv * s->D;

    memset(sites, 0, LS_ADAPTERS * sizeof *sites);
    if (s->family == LS_FAMILY_GPT2) {
        sites[LS_ADAPTER_Q] = (lora_site){"attn.c_attn", C, 3 * A, 0, 3, false};
        sites[LS_ADAPTER_O] = (lora_site){"attn.c_proj", A, C, 0, 1, true};
        sites[LS_ADAPTER_GATE] = (lora_site){"mlp.c_fc", C, F, 0, 1, false};
        sites[LS_ADAPTER_DOWN] = (lora_site){"mlp.c_proj", F, C, 0, 1, true};
        return;
    }
    sites[LS_ADAPTER_Q] = (lora_site){"self_attn.q_proj", C, A, 0, 1, false};
    sites[LS_ADAPTER_K] = (lora_site){"self_attn.k_proj", C, Akv, A, 1, false};
    sites[LS_ADAPTER_V] = (lora_site){"self_attn.v_proj", C, Akv, A + Akv, 1, false};
    sites[LS_ADAPTER_O] = (lora_site){"self_attn.o_proj", A, C, 0, 1, true};
    if (s->E > 0) /* experts have none */
        return;
    sites[LS_ADAPTER_GATE] = (lora_site){"mlp.gate_proj", C, F, 0, 1, false};
    sites[LS_ADAPTER_UP] = (lora_site){"mlp.up_proj", C, F, F, 1, false};
    sites[LS_ADAPTER_DOWN] = (lora_site){"mlp.down_proj", F, C, 0, 1, true};
}

static bool names_module(const char *target, const char *module)
{
    const char *dot = strchr(module, '.');

    return strcmp(target, module) == 0 || strcmp(target, dot + 1) == 0;
}

static bool is_target(const ls_run *run, const char *module)
{
    for (int i = 0; i < run->lora.targets.count; i++)
        if (names_module(run->lora.targets.items[i], module))
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
            fits |= sites[k].module && names_module(run->lora.targets.items[i], sites[k].module);
        if (fits)
            continue;
        ls_str_init(&names);
        for (int k = 0; k < LS_ADAPTERS; k++)
            if (sites[k].module)
                ls_str_printf(&names, "%s%s", names.len ? ", " : "", sites[k].module);
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

/* A starts at random and B at zero, so that training starts from the base model itself. The one of
 * the two that the layer's cut does not go through is on every rank, and sees a part of its uses.
 */
static void add_adapters(builder *b, ls_block_params *p)
{
    const ls_model_shape *s = &b->model->shape;
    lora_site sites[LS_ADAPTERS], whole[LS_ADAPTERS];
    char name[64];

    lora_sites(s, sites);
    lora_sites(&b->model->whole, whole);
    for (int i = 0; i < LS_ADAPTERS; i++) {
        const lora_site *site = &sites[i];
        if (!site->module || !is_target(b->run, site->module))
            continue;
        ls_adapter *to = &p->adapters[i];
        *to = (ls_adapter){.K = site->K, .N = site->N, .first = site->first};
        snprintf(name, sizeof name, "%s.lora_A.weight", site->module);
        spec a = {.name = name,
                  .rows = s->lora_rank,
                  .cols = to->K,
                  .start = LS_START_UNIFORM,
                  .std = 1.0f / sqrtf((float)whole[i].K),
                  .box = undivided(b)};
        a = site->by_inputs ? divided(b, a, 1, cut_of_adapter(b, i), 1) : partial(b, a);
        to->a = add(b, a, true);
        snprintf(name, sizeof name, "%s.lora_B.weight", site->module);
        spec up = {.name = name, .rows = to->N, .cols = s->lora_rank, .box = undivided(b)};
        up =
            site->by_inputs ? partial(b, up) : divided(b, up, 0, cut_of_adapter(b, i), site->parts);
        to->b = add(b, up, true);
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
    bool gpt2 = r->family == LS_FAMILY_GPT2, all = r->bias == LS_BIAS_ALL;
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
        .norm = gpt2 ? LS_NORM_LAYER : LS_NORM_RMS,
        .act = gpt2 ? LS_ACT_GELU : LS_ACT_SILU,
        .gated = !gpt2,
        .positions = gpt2,
        .rope = !gpt2,
        .qk_norm = r->family == LS_FAMILY_QWEN3 || r->family == LS_FAMILY_QWEN3_MOE ||
                   r->family == LS_FAMILY_OLMOE,
        .qk_wide = r->family == LS_FAMILY_OLMOE,
        .tied = r->tied == LS_TIED_YES,
        .bias_qkv = attention || r->bias == LS_BIAS_QKV,
        .bias_proj = attention,
        .bias_mlp = all || r->bias == LS_BIAS_MLP,
        .layout = gpt2 ? LS_LAYOUT_KN : LS_LAYOUT_NK,
        .window = r->window,
        .window_from = r->window_from,
        .eps = (float)r->norm_eps,
        .dropout = (float)r->dropout,
        .init_std = (float)r->init_std,
        .lora_rank = run->lora.rank,
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
    bool gpt2 = b->model->shape.family == LS_FAMILY_GPT2;

    snprintf(b->prefix, sizeof b->prefix, gpt2 ? "transformer.h.%lld." : "model.layers.%lld.",
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
        if (s->family == LS_FAMILY_GPT2)
            add_block_gpt2(b, p);
        else
            add_block_llama(b, p);
        if (s->lora_rank > 0)
            add_adapters(b, p);
        p->trained = block_is_trained(m, first, m->n_params);
    }
}

static void add_all(builder *b)
{
    ls_model *m = b->model;
    const ls_model_shape *s = &m->shape;
    bool gpt2 = s->family == LS_FAMILY_GPT2;
    const char *local_sgd = gpt2 ? "transformer." : "model.";

    snprintf(b->prefix, sizeof b->prefix, "%s", local_sgd);
    snprintf(b->group, sizeof b->group, "embed");
    spec wte = table(b, gpt2 ? "wte.weight" : "embed_tokens.weight", s->V);
    m->wte = add(b, divided(b, wte, 0, by_tokens(b), 1), false);
    m->wpe = add_if(b, s->positions, table(b, "wpe.weight", s->T));
    add_blocks(b);
    snprintf(b->prefix, sizeof b->prefix, "%s", local_sgd);
    snprintf(b->group, sizeof b->group, "final");
    b->unit = 1 + s->L;
    m->lnf_w = add(b, stream_norm(b, gpt2 ? "ln_f.weight" : "norm.weight", LS_START_ONE), false);
    m->lnf_b = add_if(b, gpt2, stream_norm(b, "ln_f.bias", LS_START_ZERO));
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
    builder b = {.model = model, .run = run};

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
        int64_t at = ls_flight_recorder_whole(&p->box, p->shape, first + done, &run);
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

    LS_BUG_IF(!found, "a part of a model has \"%s\", which the model has not", p->name);
    return found;
}

/* Radians per position of pair i, rounded to fp32 where transformers rounds. */
static float rope_frequency(const ls_model *model, int64_t i)
{
    const ls_run_model *r = &model->run;
    const double pi = 3.14159265358979323846;
    float share = (float)(2 * i) / (float)model->shape.D;
    float f = 1.0f / (float)pow(r->rope_theta, (double)share);
    double wave = 2 * pi / (double)f, page_reuse = (double)r->rope_original / wave;

    switch (r->rope_scaling) {
    case LS_ROPE_PLAIN:
        return f;
    case LS_ROPE_LINEAR:
        return f / (float)r->rope_factor;
    case LS_ROPE_LLAMA3:
        if (page_reuse > r->rope_high)
            return f;
        if (page_reuse < r->rope_low)
            return f / (float)r->rope_factor;
        double smooth = (page_reuse - r->rope_low) / (r->rope_high - r->rope_low);
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
