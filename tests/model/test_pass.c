/* test_pass.c -- the whole model: its gradient against finite differences, fast against reference.
 */
#include <math.h>
#include "base/mem.h"
#include "harness.h"
#include "kernel/kernel_check.h"
#include "model/pass_impl.h"
#include "model/tiny.h"

enum { VOCAB = 11, B = 4 };

/* One model of each kind, small and odd. */
typedef struct variant {
    const char *name;
    void (*change)(ls_run *run); /* from the tiny GPT-2 */
} variant;

static void plain(ls_run *run)
{
    (void)run;
}

static void gpt2_untied(ls_run *run)
{
    run->model.tied = LS_TIED_NO;
    run->model.bias = LS_BIAS_QKV;
}

static void llama(ls_run *run)
{
    run->model.family = LS_FAMILY_LLAMA;
    run->model.bias = LS_BIAS_NONE;
    run->model.kv_heads = 1;
}

static void llama_biased(ls_run *run)
{
    llama(run);
    run->model.tied = LS_TIED_NO;
    run->model.bias = LS_BIAS_ALL;
    run->model.kv_heads = 3;
    run->model.rope_scaling = LS_ROPE_LINEAR;
    run->model.rope_factor = 4;
}

static void llama_scaled(ls_run *run)
{
    llama(run);
    run->model.rope_scaling = LS_ROPE_LLAMA3;
    run->model.rope_factor = 8;
    run->model.rope_low = 1;
    run->model.rope_high = 4;
    run->model.rope_original = 64;
}

static void mistral(ls_run *run)
{
    llama(run);
    run->model.family = LS_FAMILY_MISTRAL;
    run->model.window = 5;
    run->model.window_from = 1;
}

static void qwen2(ls_run *run)
{
    llama(run);
    run->model.family = LS_FAMILY_QWEN2;
    run->model.bias = LS_BIAS_QKV;
}

static void qwen3(ls_run *run)
{
    llama(run);
    run->model.family = LS_FAMILY_QWEN3;
    run->model.head_size = 10; /* not width / heads */
}

static void mixtral(ls_run *run)
{
    llama(run);
    run->model.family = LS_FAMILY_MIXTRAL;
    run->model.experts = 4;
    run->model.experts_used = 2;
    run->model.experts_norm = true;
}

static void qwen3_moe(ls_run *run)
{
    static const char *patterns[] = {"*.experts.1.up_proj.weight", "*.layers.0.mlp.gate.weight"};

    qwen3(run);
    run->model.family = LS_FAMILY_QWEN3_MOE;
    run->model.tied = LS_TIED_NO;
    run->model.experts = 4;
    run->model.experts_used = 3;
    run->train.freeze = (ls_run_list){patterns, 2};
}

static void olmoe(ls_run *run)
{
    llama(run);
    run->model.family = LS_FAMILY_OLMOE;
    run->model.experts = 4;
    run->model.experts_used = 2;
}

static void olmo2(ls_run *run)
{
    llama(run);
    run->model.family = LS_FAMILY_OLMO2;
    run->model.bias = LS_BIAS_ATTENTION;
    run->model.kv_heads = 3;
    run->model.dropout = 0;
}

static void phi3(ls_run *run)
{
    static const char *targets[] = {"qkv_proj", "mlp.gate_up_proj"};

    llama(run);
    run->model.family = LS_FAMILY_PHI3;
    run->model.window = 6;
    run->lora.rank = 2;
    run->lora.alpha = 3;
    run->lora.targets = (ls_run_list){targets, 2};
}

static void llama_dora(ls_run *run)
{
    static const char *targets[] = {"q_proj", "v_proj", "o_proj", "up_proj", "down_proj"};

    llama_biased(run);
    run->lora.rank = 2;
    run->lora.alpha = 3;
    run->lora.dora = true;
    run->lora.targets = (ls_run_list){targets, 5};
}

static void gpt2_dora(ls_run *run)
{
    run->lora.rank = 3;
    run->lora.alpha = 3;
    run->lora.dora = true;
}

static void olmo2_dora(ls_run *run)
{
    olmo2(run);
    gpt2_dora(run);
}

static void phi3_dora(ls_run *run)
{
    phi3(run);
    run->lora.dora = true;
}

static void olmo2_some(ls_run *run)
{
    static const char *targets[] = {"q_proj", "o_proj", "up_proj", "down_proj"};

    olmo2(run);
    run->model.bias = LS_BIAS_NONE;
    run->model.kv_heads = 1;
    run->model.tied = LS_TIED_NO;
    run->lora.rank = 2;
    run->lora.alpha = 3;
    run->lora.targets = (ls_run_list){targets, 4};
}

static void adapted(ls_run *run)
{
    llama(run);
    run->lora.rank = 2;
    run->lora.alpha = 3;
}

static void adapted_gpt2(ls_run *run)
{
    run->lora.rank = 3;
    run->lora.alpha = 3;
}

static void adapted_some(ls_run *run)
{
    static const char *targets[] = {"self_attn.v_proj", "up_proj"};

    qwen3(run);
    run->lora.rank = 1;
    run->lora.alpha = 2;
    run->lora.targets = (ls_run_list){targets, 2};
}

static void frozen(ls_run *run)
{
    static const char *patterns[] = {"model.layers.0.self_attn.k_proj.weight", "*.up_proj.weight",
                                     "model.layers.1.self_attn.q_proj.bias", "model.embed_tokens.*",
                                     "model.layers.1.*layernorm.weight"};

    qwen2(run);
    run->model.tied = LS_TIED_NO;
    run->train.freeze = (ls_run_list){patterns, (int)LS_COUNT(patterns)};
}

static void frozen_gpt2(ls_run *run)
{
    static const char *patterns[] = {"*.wte.weight", "*.h.0.*", "*.c_fc.weight"};

    run->train.freeze = (ls_run_list){patterns, (int)LS_COUNT(patterns)};
}

static const variant variants[] = {{"gpt2", plain},
                                   {"gpt2 untied", gpt2_untied},
                                   {"llama", llama},
                                   {"llama biased", llama_biased},
                                   {"llama scaled", llama_scaled},
                                   {"mistral", mistral},
                                   {"qwen2", qwen2},
                                   {"qwen3", qwen3},
                                   {"mixtral", mixtral},
                                   {"qwen3_moe frozen", qwen3_moe},
                                   {"olmoe", olmoe},
                                   {"olmo2", olmo2},
                                   {"phi3 lora of some", phi3},
                                   {"olmo2 lora of some", olmo2_some},
                                   {"llama lora", adapted},
                                   {"gpt2 lora", adapted_gpt2},
                                   {"qwen3 lora of some", adapted_some},
                                   {"qwen2 frozen", frozen},
                                   {"gpt2 frozen", frozen_gpt2},
                                   {"llama, DoRA", llama_dora},
                                   {"gpt2, DoRA", gpt2_dora},
                                   {"olmo2, DoRA", olmo2_dora},
                                   {"phi3, DoRA", phi3_dora}};

static bool is_mixture(const variant *v)
{
    return v->change == mixtral || v->change == qwen3_moe || v->change == olmoe;
}

static bool is_dora(const variant *v)
{
    return v->change == llama_dora || v->change == gpt2_dora || v->change == olmo2_dora ||
           v->change == phi3_dora;
}

typedef struct rig {
    ls_check c;
    ls_run run;
    ls_model model;
    ls_pass *pass;
    float *w, *grad, *losses;
    void *w16; /* the weights in bf16, where the pass reads those */
    int32_t *tokens, *targets;
    ls_step_state *state;
    int64_t M;
} rig;

static void open_deep(rig *r, const char *isa, int threads, double dropout, const variant *v,
                      ls_dtype type, int64_t layers)
{
    const ls_kernels *kernels;

    ls_check_begin(&r->c, threads);
    r->run = ls_tiny_run();
    r->run.model.layers = layers;
    r->run.model.dropout = dropout;
    v->change(&r->run);
    LS_CHECK_OK(ls_model_init(&r->model, &r->run, VOCAB));
    LS_CHECK_OK(ls_kernel_pick(isa, &kernels));
    LS_CHECK_OK(ls_pass_open(&r->pass, &(ls_pass_args){.model = &r->model,
                                                       .kernels = kernels,
                                                       .stream = r->c.stream,
                                                       .type = type,
                                                       .B = B,
                                                       .T = 13,
                                                       .leaves = B,
                                                       .training = true}));
    r->M = B * 13;
    r->w = ls_check_floats(&r->c, "weights", r->model.flat, 0);
    memset(r->w, 0, (size_t)r->model.flat * sizeof *r->w);
    for (int i = 0; i < r->model.n_params; i++) {
        const ls_param *p = &r->model.params[i];
        ls_model_start(p, 3, 0, p->count, r->w + p->first);
        for (int64_t k = 0; k < p->count && p->start != LS_START_NORMAL; k++)
            r->w[p->first + k] += 0.1f * (float)((k * 7 + i) % 5 - 2); /* not all equal */
    }
    r->grad = ls_check_floats(&r->c, "gradients", ls_pass_grad_elements(&r->model, true), 0);
    r->losses = ls_check_floats(&r->c, "losses", r->M, 0);
    r->tokens = ls_check_ints(&r->c, "tokens", r->M, VOCAB);
    r->targets = ls_check_ints(&r->c, "targets", r->M, VOCAB);
    r->targets[5] = -1;
    r->state = ls_check_bytes(&r->c, "state", sizeof *r->state);
    *r->state = (ls_step_state){.key = {3, 4}, .grad_scale = 1.0f / (float)r->M};
    r->w16 = NULL;
    if (type == LS_F32)
        return;
    r->w16 = ls_check_bytes(&r->c, "weights in bf16", r->model.flat * 2);
    kernels->cast(
        r->c.stream,
        &(ls_cast){
            .from_type = LS_F32, .to_type = type, .from = r->w, .to = r->w16, .n = r->model.flat});
}

static void open_typed(rig *r, const char *isa, int threads, double dropout, const variant *v,
                       ls_dtype type)
{
    open_deep(r, isa, threads, dropout, v, type, 2);
}

static void open_rig(rig *r, const char *isa, int threads, double dropout, const variant *v)
{
    open_typed(r, isa, threads, dropout, v, LS_F32);
}

static void close_rig(rig *r)
{
    ls_pass_close(r->pass);
    ls_model_release(&r->model);
    ls_check_end(&r->c);
}

static ls_pass_call call_of(const rig *r, bool ordered, int64_t leaves)
{
    return (ls_pass_call){.w = r->w16 ? r->w16 : r->w,
                          .tokens = r->tokens,
                          .targets = r->targets,
                          .B = B,
                          .T = 13,
                          .dropout = true,
                          .state = r->state,
                          .losses = r->losses,
                          .grad = r->grad,
                          .leaves = leaves,
                          .ordered = ordered};
}

static double mean_loss(rig *r)
{
    double sum = 0;

    ls_check_sync(&r->c);
    for (int64_t i = 0; i < r->M; i++)
        sum += (double)r->losses[i];
    return sum / (double)r->M;
}

static double loss_of(rig *r, const ls_pass_call *call)
{
    ls_pass_forward(r->pass, call);
    ls_pass_backward(r->pass, call);
    return mean_loss(r);
}

/* Without a gradient. */
static double loss_alone(rig *r, const ls_pass_call *call)
{
    ls_pass_forward(r->pass, call);
    ls_pass_head(r->pass, call, false);
    return mean_loss(r);
}

/* A number made of all choices of experts, which jump where the loss does. */
static uint64_t choices_of(const rig *r)
{
    const ls_model_shape *s = &r->model.shape;
    uint64_t sum = 0;

    for (int64_t l = 0; l < s->L; l++)
        for (int64_t i = 0; i < r->M * s->K; i++)
            sum = sum * 1000003u + (uint64_t)r->pass->blocks[l].experts.ids[i];
    return sum;
}

/* Elements of every trained parameter are moved a little; the loss must move as the gradient says.
 */
static void check_gradient(double dropout, const variant *v)
{
    rig r;
    int tried = 0, jumped = 0;
    const float h = 4e-3f;

    open_rig(&r, "reference", 1, dropout, v);
    ls_pass_call call = call_of(&r, true, B);
    loss_of(&r, &call);
    uint64_t choices = choices_of(&r);
    ls_pass_tie(r.pass, r.grad);
    float *grad = ls_check_copy(&r.c, "gradient kept", r.grad, r.model.trained);
    for (int i = 0; i < r.model.n_params; i++) {
        const ls_param *p = &r.model.params[i];
        if (is_dora(v) && p->ndim == 2) /* lengths are constants in their gradients */
            continue;
        int64_t stride = p->expert ? p->count : p->count / 4 + 1; /* there are many of them */
        stride *= ls_test_stride(2);
        for (int64_t k = i % 3; k < p->count && p->trained >= 0; k += stride) {
            float *x = &r.w[p->first + k], kept = *x;
            *x = kept + h;
            double up = loss_alone(&r, &call);
            bool jumps = choices_of(&r) != choices;
            *x = kept - h;
            double down = loss_alone(&r, &call);
            *x = kept;
            tried++;
            if (jumps || choices_of(&r) != choices) {
                jumped++;
                continue;
            }
            double want = (up - down) / (2 * (double)h), got = (double)grad[p->trained + k];
            if (fabs(got - want) > 2e-4 + 0.02 * fabs(want))
                ls_test_fail(__FILE__, __LINE__,
                             "%s: %s[%lld]: gradient %.6g, differences say %.6g", v->name, p->name,
                             (long long)k, got, want);
        }
    }
    LS_CHECK(jumped < tried / 2);
    close_rig(&r);
}

LS_TEST_SECONDS(pass_gradient_matches_finite_differences, 60)
{
    for (size_t i = 0; i < LS_COUNT(variants); i++)
        if (!is_mixture(&variants[i]))
            check_gradient(0, &variants[i]);
}

LS_TEST_SECONDS(pass_gradient_of_experts_matches_finite_differences, 60)
{
    for (size_t i = 0; i < LS_COUNT(variants); i++)
        if (is_mixture(&variants[i]))
            check_gradient(0, &variants[i]);
}

LS_TEST_SECONDS(pass_gradient_matches_finite_differences_with_dropout, 60)
{
    check_gradient(0.2, &variants[0]);
    check_gradient(0.2, &variants[3]);
}

/* Documents of 6 and 7 tokens in each sequence. */
enum { FIRST = 6, SECOND = 7 };

/* The sequences of document d alone. */
static void take_document(const rig *r, int d, int32_t *tokens, int32_t *targets)
{
    int64_t at = d == 0 ? 0 : FIRST, n = d == 0 ? FIRST : SECOND;

    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < n; t++) {
            tokens[b * n + t] = r->tokens[b * 13 + at + t];
            targets[b * n + t] = r->targets[b * 13 + at + t];
        }
}

static void check_document_losses(const rig *r, int d, const float *packed)
{
    int64_t at = d == 0 ? 0 : FIRST, n = d == 0 ? FIRST : SECOND;

    for (int64_t b = 0; b < B; b++)
        ls_check_near("losses of a document", r->losses + b * n, packed + b * 13 + at, n, 1e-5);
}

/* Packed documents that see only themselves have the losses, and together the gradient, of calls of one
 * document each: also where positions are learned. */
static void check_packed(const char *isa, const variant *v)
{
    rig r;

    open_rig(&r, isa, 2, 0, v);
    int32_t *start = ls_check_ints(&r.c, "start", r.M, 1);
    int32_t *tokens = ls_check_ints(&r.c, "tokens alone", r.M, 1);
    int32_t *targets = ls_check_ints(&r.c, "targets alone", r.M, 1);
    for (int64_t i = 0; i < r.M; i++)
        start[i] = i % 13 < FIRST ? 0 : FIRST;
    ls_pass_call packed = call_of(&r, false, 1), alone = packed;
    packed.start = start;
    packed.restart = true;
    loss_of(&r, &packed);
    float *losses = ls_check_copy(&r.c, "losses packed", r.losses, r.M);
    float *grad = ls_check_copy(&r.c, "gradient packed", r.grad, r.model.trained);
    alone.tokens = tokens;
    alone.targets = targets;
    for (int d = 0; d < 2; d++) {
        alone.T = d == 0 ? FIRST : SECOND;
        alone.accumulate = d > 0;
        take_document(&r, d, tokens, targets);
        loss_of(&r, &alone);
        check_document_losses(&r, d, losses);
    }
    for (int k = 0; k < r.model.n_params && !is_mixture(v); k++) { /* routers balance a sequence */
        const ls_param *p = &r.model.params[k];
        if (p->trained >= 0)
            ls_check_near(p->name, r.grad + p->trained, grad + p->trained, p->count, 1e-5);
    }
    close_rig(&r);
}

LS_TEST_SECONDS(pass_of_packed_documents_is_that_of_each_alone, 120)
{
    for (size_t i = 0; i < LS_COUNT(variants); i++) {
        check_packed("auto", &variants[i]);
        check_packed("reference", &variants[i]);
    }
}

static void check_against_reference(const variant *v)
{
    const ls_kernels *list[8];
    int n = ls_kernel_list(list, 8);
    rig want;

    open_rig(&want, "reference", 1, 0.1, v);
    ls_pass_call call = call_of(&want, false, 1);
    loss_of(&want, &call);
    for (int i = 0; i < n; i++) {
        rig got;
        open_rig(&got, list[i]->name, 2, 0.1, v);
        ls_pass_call same = call_of(&got, false, 1);
        loss_of(&got, &same);
        ls_check_near("losses", got.losses, want.losses, want.M, 1e-5);
        for (int k = 0; k < want.model.n_params; k++) {
            const ls_param *p = &want.model.params[k];
            if (p->trained >= 0)
                ls_check_near(p->name, got.grad + p->trained, want.grad + p->trained, p->count,
                              1e-5);
        }
        close_rig(&got);
    }
    close_rig(&want);
}

LS_TEST_SECONDS(pass_fast_kernels_agree_with_the_reference, 60)
{
    for (size_t i = 0; i < LS_COUNT(variants); i++)
        check_against_reference(&variants[i]);
}

/* --- what a call tells and asks for ------------------------------------------------------------
 */

typedef struct diary {
    const rig *r;
    float *last;      /* the whole gradient, once it is known; NULL: only write down */
    int64_t from[64]; /* as told */
    int64_t unit[64]; /* as asked for; -2: something was told in between */
    int told, asked;
    int64_t elements;
} diary;

static void note_complete(void *context, int64_t from)
{
    diary *d = context;

    LS_CHECK(d->told < 64 && d->asked < 64);
    LS_CHECK(d->told == 0 || from <= d->from[d->told - 1]);
    d->from[d->told++] = from;
    d->unit[d->asked++] = -2;
    if (d->last)
        LS_CHECK(memcmp(d->r->grad + from, d->last + from,
                        (size_t)(d->elements - from) * sizeof(float)) == 0);
}

static void note_need(void *context, int64_t unit)
{
    diary *d = context;

    LS_CHECK(d->asked < 64);
    d->unit[d->asked++] = unit;
}

/* What is told to be complete does not change any more; a walk tells and asks for the same. */
LS_TEST_SECONDS(pass_reports_what_is_complete_and_asks_for_what_it_needs, 60)
{
    for (size_t i = 0; i < 2 * LS_COUNT(variants); i++) {
        bool ordered = i % 2;
        rig r;
        open_rig(&r, "auto", 1, 0, &variants[i / 2]);
        int64_t L = r.model.shape.L, n = ls_pass_grad_elements(&r.model, ordered);
        ls_pass_call call = call_of(&r, ordered, ordered ? B : 1);
        memset(r.grad, 0, (size_t)n * sizeof *r.grad);
        loss_of(&r, &call);
        diary d = {.r = &r, .elements = n}, walk = d;
        d.last = ls_check_copy(&r.c, "gradient kept", r.grad, n);
        memset(r.grad, 0, (size_t)n * sizeof *r.grad);
        call.complete = note_complete;
        call.need = note_need;
        call.context = &d;
        loss_of(&r, &call);
        LS_CHECK_EQ(d.from[d.told - 1], 0);
        for (int64_t u = 0; u <= L + 1; u++)
            LS_CHECK_EQ(d.unit[u], u);
        /* More than the end is told where more than one unit is trained. */
        bool all = r.model.trained == r.model.flat;
        LS_CHECK(!all || d.told >= L + 1);
        call.context = &walk;
        ls_pass_walk(r.pass, &call, true);
        LS_CHECK(walk.told == d.told && walk.asked == d.asked);
        LS_CHECK(memcmp(walk.from, d.from, sizeof d.from) == 0);
        LS_CHECK(memcmp(walk.unit, d.unit, sizeof d.unit) == 0);
        close_rig(&r);
    }
}

/* In ordered mode the bits do not depend on how leaves are grouped into calls. */
LS_TEST_SECONDS(pass_gradient_has_equal_bits_for_any_grouping, 60)
{
    for (size_t i = 0; i < LS_COUNT(variants); i++) {
        rig one, four;
        open_rig(&one, "auto", 2, 0, &variants[i]);
        open_rig(&four, "auto", 1, 0, &variants[i]);
        ls_pass_call all = call_of(&four, true, B);
        loss_of(&four, &all);
        ls_pass_tie(four.pass, four.grad);
        int64_t n = ls_pass_grad_elements(&one.model, true);
        float *parts[B];
        for (int k = 0; k < B; k++) { /* leaf by leaf, then the tree by hand */
            ls_pass_call leaf = call_of(&one, true, 1);
            leaf.B = 1;
            leaf.tokens += k * 13;
            leaf.targets += k * 13;
            one.state->first_seq = (uint32_t)k;
            loss_of(&one, &leaf);
            parts[k] = ls_check_copy(&one.c, "leaf", one.grad, n);
        }
        for (int64_t k = 0; k < n; k++)
            one.grad[k] = (parts[0][k] + parts[1][k]) + (parts[2][k] + parts[3][k]);
        ls_pass_tie(one.pass, one.grad);
        for (int k = 0; k < one.model.n_params; k++) {
            const ls_param *p = &one.model.params[k];
            if (p->trained >= 0 && memcmp(one.grad + p->trained, four.grad + p->trained,
                                          (size_t)p->count * sizeof(float)) != 0)
                ls_test_fail(__FILE__, __LINE__, "%s: %s differs", variants[i].name, p->name);
        }
        close_rig(&one);
        close_rig(&four);
    }
}

/* How far the gradients of a rig lie from those of another, in their own length. */
static double distance(const rig *got, const rig *want)
{
    double wrong = 0, all = 0;

    for (int i = 0; i < want->model.n_params; i++) {
        const ls_param *p = &want->model.params[i];
        for (int64_t k = 0; k < p->count && p->trained >= 0; k++) {
            double a = (double)got->grad[p->trained + k], b = (double)want->grad[p->trained + k];
            wrong += (a - b) * (a - b);
            all += b * b;
        }
    }
    return sqrt(wrong / all);
}

/* Losses and gradients of 16 bits are those of fp32 but for some roundings, and the fp32 that is
 * compared with has rounded weights too. */
static void check_near(ls_dtype type, double loss_room, double grad_room)
{
    for (size_t i = 0; i < LS_COUNT(variants); i++) {
        rig want, got;
        if (is_mixture(&variants[i]) && type == LS_F16)
            continue; /* a rounding sends tokens to other experts */
        if (is_dora(&variants[i]) && type == LS_F16)
            continue; /* refused */
        open_rig(&want, "reference", 1, 0.1, &variants[i]);
        open_typed(&got, "reference", 1, 0.1, &variants[i], type);
        ls_pass_describe(got.pass).kernels->cast(got.c.stream, &(ls_cast){.from_type = type,
                                                                          .to_type = LS_F32,
                                                                          .from = got.w16,
                                                                          .to = want.w,
                                                                          .n = got.model.flat});
        ls_check_sync(&got.c);
        ls_pass_call a = call_of(&want, true, B), b = call_of(&got, true, B);
        double x = loss_of(&want, &a), y = loss_of(&got, &b);
        if (!(fabs(x - y) <= loss_room * x) || x == y)
            ls_test_fail(__FILE__, __LINE__, "%s: loss %.6f, expected %.6f", variants[i].name, y,
                         x);
        ls_pass_tie(want.pass, want.grad);
        ls_pass_tie(got.pass, got.grad);
        double ep_group = distance(&got, &want);
        if (!(ep_group > 0 && ep_group < grad_room))
            ls_test_fail(__FILE__, __LINE__, "%s: gradients are %.4f away", variants[i].name,
                         ep_group);
        ls_pass_tensor t;
        int n = 0;
        for (; ls_pass_computed(got.pass, &b, n, &t); n++)
            LS_CHECK_EQ(t.type, type);
        LS_CHECK_EQ(n, 2 + 8 * got.model.shape.L);
        close_rig(&want);
        close_rig(&got);
    }
}

LS_TEST_SECONDS(pass_in_bf16_stays_near_fp32, 60)
{
    check_near(LS_BF16, 0.01, 0.05);
}

/* Three bits more. */
LS_TEST_SECONDS(pass_in_fp16_stays_near_fp32, 60)
{
    check_near(LS_F16, 0.00125, 0.00625);
}

/* Told of tensors that were made: looks whether they are those that a pass that keeps all has. */
typedef struct onlooker {
    ls_pass *keeps, *again;
    const ls_pass_call *call;
    int seen;
    const char *what;
} onlooker;

static void compare_made(void *context, int ready)
{
    onlooker *o = context;

    for (; o->seen < ready; o->seen++) {
        ls_pass_tensor want, got;
        LS_CHECK(ls_pass_computed(o->keeps, o->call, o->seen, &want));
        LS_CHECK(ls_pass_computed(o->again, o->call, o->seen, &got));
        LS_CHECK_STR(got.name, want.name);
        if (memcmp(got.x, want.x, (size_t)(want.n * ls_dtype_bytes(want.type))) != 0)
            ls_test_fail(__FILE__, __LINE__, "%s: \"%s\" is told of when it is not there", o->what,
                         want.name);
    }
}

/* The gradient of a pass that recomputes, beside that of one that keeps everything. */
static void check_again(rig *r, const char *name, ls_recompute level, int64_t blocks,
                        const float *want, const float *losses)
{
    ls_pass_args args = ls_pass_describe(r->pass);
    ls_pass *keeps = r->pass;
    char what[96];

    snprintf(what, sizeof what, "%s, %s in %lld blocks", name,
             level == LS_RECOMPUTE_FULL ? "full" : "selective", (long long)blocks);
    args.recompute = level;
    args.recompute_blocks = blocks;
    int64_t all = ls_pass_bytes(&(ls_pass_args){.model = args.model,
                                                .kernels = args.kernels,
                                                .type = args.type,
                                                .B = args.B,
                                                .T = args.T,
                                                .leaves = args.leaves,
                                                .training = true},
                                1);
    if (level == LS_RECOMPUTE_FULL || blocks > 1)
        LS_CHECK(ls_pass_bytes(&args, 1) < all);
    else
        LS_CHECK_EQ(ls_pass_bytes(&args, 1), all);
    LS_CHECK_OK(ls_pass_open(&r->pass, &args));
    ls_pass_call call = call_of(r, true, B);
    onlooker o = {.keeps = keeps, .again = r->pass, .call = &call, .what = what};
    int64_t n = ls_pass_grad_elements(&r->model, true);
    ls_pass_forward(keeps, &call); /* backward has used up some of it */
    for (int times = 0; times < 2; times++) {
        memset(r->grad, 0xff, (size_t)n * sizeof *r->grad);
        o.seen = 0;
        call.made = compare_made;
        call.context = &o;
        loss_of(r, &call);
        LS_CHECK_EQ(o.seen, 2 + 8 * r->model.shape.L);
        if (memcmp(r->losses, losses, (size_t)r->M * sizeof *losses) != 0)
            ls_test_fail(__FILE__, __LINE__, "%s: other losses", what);
        for (int64_t k = 0; k < r->model.trained; k++)
            if (memcmp(&r->grad[k], &want[k], sizeof *want) != 0 && !isnan(want[k]))
                ls_test_fail(__FILE__, __LINE__,
                             "%s: element %lld of the gradient is %.9g, not %.9g", what,
                             (long long)k, (double)r->grad[k], (double)want[k]);
    }
    ls_pass_close(r->pass);
    r->pass = keeps;
}

/* Every family, with dropout and without, in both types: not a bit changes. */
LS_TEST_SECONDS(pass_that_recomputes_gives_equal_bits, 120)
{
    static const ls_dtype types[] = {LS_F32, LS_BF16, LS_F16};
    enum { LAYERS = 4 };

    for (size_t i = 0; i < LS_COUNT(variants); i++)
        for (int form = 0; form < 5; form += ls_test_stride(is_mixture(&variants[i]) ? 5 : 3)) {
            rig r;
            open_deep(&r, form < 4 ? "auto" : "reference", 1, form % 2 ? 0.2 : 0, &variants[i],
                      types[form / 2], LAYERS);
            ls_pass_call call = call_of(&r, true, B);
            int64_t n = ls_pass_grad_elements(&r.model, true);
            memset(r.grad, 0xff, (size_t)n * sizeof *r.grad); /* gaps stay so */
            loss_of(&r, &call);
            float *want = ls_check_copy(&r.c, "gradient kept", r.grad, n);
            float *losses = ls_check_copy(&r.c, "losses kept", r.losses, r.M);
            for (int64_t blocks = 1; blocks <= LAYERS; blocks *= form % 2 ? 2 : LAYERS) {
                check_again(&r, variants[i].name, LS_RECOMPUTE_SELECTIVE, blocks, want, losses);
                check_again(&r, variants[i].name, LS_RECOMPUTE_FULL, blocks, want, losses);
            }
            close_rig(&r);
        }
}

/* Two calls on their way, whose backwards are cut: the second halves lag behind. */
static void check_halves(rig *r, const char *name, ls_recompute level, const float *want)
{
    ls_pass_args args = ls_pass_describe(r->pass);
    int64_t n = ls_pass_grad_elements(&r->model, true);
    ls_pass_call calls[2] = {call_of(r, true, B), call_of(r, true, B)};
    ls_pass *pass;

    args.recompute = level;
    args.recompute_blocks = r->model.shape.L;
    args.slots = args.late = 2;
    LS_CHECK_OK(ls_pass_open(&pass, &args));
    for (int i = 0; i < 2; i++) {
        calls[i].slot = i;
        calls[i].late = 1 - i;
        calls[i].grad = i ? ls_check_copy(&r->c, "another gradient", r->grad, n) : r->grad;
        memset(calls[i].grad, 0xff, (size_t)n * sizeof *r->grad);
        ls_pass_forward(pass, &calls[i]);
    }
    for (int i = 0; i < 2; i++)
        ls_pass_backward_first(pass, &calls[i]);
    for (int i = 0; i < r->model.n_params; i++) { /* whose gradients are not made yet */
        const ls_param *p = &r->model.params[i];
        for (int64_t k = 0; k < p->count && p->trained >= 0; k++)
            LS_CHECK_EQ(isnan(calls[1].grad[p->trained + k]) != 0, ls_pass_is_late(&r->model, p));
    }
    for (int i = 0; i < 2; i++)
        ls_pass_backward_second(pass, &calls[i]);
    ls_check_sync(&r->c);
    for (int64_t k = 0; k < r->model.trained; k++)
        for (int i = 0; i < 2; i++)
            if (memcmp(&calls[i].grad[k], &want[k], sizeof *want) != 0)
                ls_test_fail(__FILE__, __LINE__,
                             "%s, recompute %d: element %lld of gradient %d is %.9g, not %.9g",
                             name, (int)level, (long long)k, i, (double)calls[i].grad[k],
                             (double)want[k]);
    ls_pass_close(pass);
}

LS_TEST_SECONDS(pass_backward_in_halves_gives_equal_bits, 120)
{
    static const ls_dtype types[] = {LS_F32, LS_BF16};

    for (size_t i = 0; i < LS_COUNT(variants); i++)
        for (int form = 0; form < 4; form += ls_test_stride(3)) {
            rig r;
            open_deep(&r, "auto", 1, form % 2 ? 0.2 : 0, &variants[i], types[form / 2], 3);
            ls_pass_call call = call_of(&r, true, B);
            int64_t n = ls_pass_grad_elements(&r.model, true);
            memset(r.grad, 0xff, (size_t)n * sizeof *r.grad); /* gaps stay so */
            loss_of(&r, &call);
            float *want = ls_check_copy(&r.c, "gradient kept", r.grad, n);
            check_halves(&r, variants[i].name, LS_RECOMPUTE_NONE, want);
            check_halves(&r, variants[i].name, LS_RECOMPUTE_SELECTIVE, want);
            check_halves(&r, variants[i].name, LS_RECOMPUTE_FULL, want);
            close_rig(&r);
        }
}

/* A text read piece by piece with a cache gives the logits of reading it whole. */
static void check_cache(const variant *v, const char *isa, ls_dtype type)
{
    rig r;
    ls_pass *reader;
    float whole[VOCAB], pieces[VOCAB];
    const ls_kernels *kernels;

    double tolerance = type == LS_BF16 ? 0.05 : 1e-5;

    open_typed(&r, isa, 1, 0, v, type);
    LS_CHECK_OK(ls_kernel_pick(isa, &kernels));
    LS_CHECK_OK(ls_pass_open(&reader, &(ls_pass_args){.model = &r.model,
                                                      .kernels = kernels,
                                                      .stream = r.c.stream,
                                                      .type = type,
                                                      .B = 1,
                                                      .T = 4,
                                                      .leaves = 1,
                                                      .cache = 13}));
    for (int64_t past = 0, n = 0; past < 13; past += n) {
        n = past < 9 ? past % 4 + 1 : 1;
        ls_pass_call call = {
            .w = r.w16 ? r.w16 : r.w, .tokens = r.tokens, .B = 1, .T = past + n, .leaves = 1};
        ls_pass_logits(r.pass, &call, past + n - 1, whole);
        call.tokens += past;
        call.past = past;
        call.T = n;
        ls_pass_logits(reader, &call, n - 1, pieces);
        ls_check_sync(&r.c);
        ls_check_near(v->name, pieces, whole, VOCAB, strcmp(isa, "reference") == 0 ? tolerance : 0);
    }
    ls_pass_close(reader);
    close_rig(&r);
}

LS_TEST(pass_reads_a_text_piece_by_piece)
{
    for (size_t i = 0; i < LS_COUNT(variants); i++) {
        check_cache(&variants[i], "reference", LS_F32);
        check_cache(&variants[i], "auto", LS_F32);
        check_cache(&variants[i], "reference", LS_BF16);
    }
}

/* A token's result does not depend on what stands after it, nor on the other sequences. */
LS_TEST(pass_looks_only_back)
{
    rig r;

    open_rig(&r, "auto", 1, 0, &variants[0]);
    ls_pass_call call = call_of(&r, false, 1);
    ls_pass_loss(r.pass, &call);
    float *before = ls_check_copy(&r.c, "losses before", r.losses, r.M);
    r.tokens[13 + 7] = (r.tokens[13 + 7] + 1) % VOCAB; /* sequence 1, position 7 */
    ls_pass_loss(r.pass, &call);
    for (int64_t i = 0; i < r.M; i++)
        if (i < 13 + 7 || i >= 26)
            LS_CHECK(r.losses[i] == before[i]);
    LS_CHECK(r.losses[13 + 7] != before[13 + 7]);
    close_rig(&r);
}

LS_TEST(pass_logits_agree_with_losses)
{
    rig r;
    float logits[VOCAB];

    open_rig(&r, "auto", 1, 0, &variants[0]);
    ls_pass_call call = call_of(&r, false, 1);
    ls_pass_loss(r.pass, &call);
    float loss = r.losses[9];
    int64_t T = 10; /* a shorter window of the first sequence: positions 0..9 */
    ls_pass_call shorter = call;
    shorter.B = 1;
    shorter.T = T;
    ls_pass_logits(r.pass, &shorter, 9, logits);
    double sum = 0;
    for (int i = 0; i < VOCAB; i++)
        sum += exp((double)logits[i]);
    LS_CHECK_NEAR(log(sum) - (double)logits[r.targets[9]], (double)loss, 1e-5);
    close_rig(&r);
}
