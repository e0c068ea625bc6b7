/* test_gpu_model.c -- whole models, forward and backward, on a GPU and on the CPU, in fp32,
 * bf16 and fp16. */
#include "gpu/gpu.h"

#include <math.h>
#include "base/mem.h"
#include "base/rng.h"
#include "base/time.h"
#include "model/decode.h"
#include "model/pass.h"
#include "model/tiny.h"

enum { B = 4, T = 33, V = 259, LEAVES = 4 };

/* What a device computed. */
typedef struct outcome {
    float *losses, *grad;
    int64_t elements;
} outcome;

static void *put(ls_device *d, ls_stream *s, const void *from, int64_t bytes)
{
    void *p = NULL;

    LS_CHECK_OK(ls_device_alloc(d, bytes, "test", &p));
    if (from)
        ls_stream_copy_in(s, p, from, bytes);
    LS_CHECK_OK(ls_stream_sync(s, ls_time_now_ns() + 60 * LS_NS_PER_S));
    return p;
}

static outcome run_with(const ls_model *model, const float *weights, const int32_t *tokens,
                        ls_device *d, ls_stream *s, const ls_kernels *k, ls_dtype type,
                        bool ordered, ls_recompute recompute, int64_t blocks)
{
    outcome out = {.elements = ls_pass_grad_elements(model, ordered)};
    ls_step_state state = {.key = {1, 2}, .grad_scale = 1.0f / (B * T)};
    ls_pass_args args = {.model = model,
                         .kernels = k,
                         .stream = s,
                         .type = type,
                         .B = B,
                         .T = T,
                         .leaves = LEAVES,
                         .training = true,
                         .recompute = recompute,
                         .recompute_blocks = blocks};
    ls_pass_call call = {.B = B, .T = T, .dropout = true, .leaves = ordered ? LEAVES : 1};
    ls_pass *pass = NULL;
    void *w = put(d, s, weights, model->flat * 4), *in = put(d, s, tokens, B * T * 4);
    void *next = put(d, s, tokens + 1, B * T * 4), *st = put(d, s, &state, sizeof state);
    void *losses = put(d, s, NULL, B * T * 4), *grad = put(d, s, NULL, out.elements * 4);

    void *w16 = put(d, s, NULL, model->flat * 2);
    ls_dtype narrow = type == LS_F32 ? LS_BF16 : type;

    LS_CHECK_OK(ls_pass_open(&pass, &args));
    k->cast(s, &(ls_cast){
                   .from_type = LS_F32, .to_type = narrow, .from = w, .to = w16, .n = model->flat});
    call.w = type == LS_F32 ? w : w16, call.tokens = in, call.targets = next, call.state = st;
    call.losses = losses, call.grad = grad, call.ordered = ordered;
    ls_pass_forward(pass, &call);
    ls_pass_backward(pass, &call);
    out.losses = malloc(B * T * sizeof(float));
    out.grad = malloc((size_t)out.elements * sizeof(float));
    LS_CHECK(out.losses && out.grad);
    ls_stream_copy_out(s, out.losses, losses, B * T * 4);
    ls_stream_copy_out(s, out.grad, grad, out.elements * 4);
    LS_CHECK_OK(ls_stream_sync(s, ls_time_now_ns() + 60 * LS_NS_PER_S));
    ls_pass_close(pass);
    void *const all[] = {w, w16, in, next, st, losses, grad};
    for (size_t i = 0; i < LS_COUNT(all); i++)
        ls_device_free(d, all[i]);
    return out;
}

static outcome run_model(const ls_model *model, const float *weights, const int32_t *tokens,
                         ls_device *d, ls_stream *s, const ls_kernels *k, ls_dtype type,
                         bool ordered)
{
    return run_with(model, weights, tokens, d, s, k, type, ordered, LS_RECOMPUTE_NONE, 0);
}

/* The kinds of model whose calls differ. */
typedef struct kind {
    const char *name;
    ls_family family;
    int64_t kv_heads, window, lora;
    double dropout;
    int64_t experts, used;
} kind;

static const kind kinds[] = {{"gpt2", LS_FAMILY_GPT2, 3, 0, 0, 0, 0, 0},
                             {"gpt2, dropout", LS_FAMILY_GPT2, 3, 0, 0, 0.2, 0, 0},
                             {"llama", LS_FAMILY_LLAMA, 1, 0, 0, 0, 0, 0},
                             {"mistral, window", LS_FAMILY_MISTRAL, 3, 5, 0, 0, 0, 0},
                             {"qwen3", LS_FAMILY_QWEN3, 1, 0, 0, 0, 0, 0},
                             {"llama, lora", LS_FAMILY_LLAMA, 3, 0, 4, 0, 0, 0},
                             {"mixtral", LS_FAMILY_MIXTRAL, 1, 0, 0, 0, 4, 2},
                             {"qwen3_moe, all experts", LS_FAMILY_QWEN3_MOE, 1, 0, 0, 0, 4, 4},
                             {"olmoe, all experts", LS_FAMILY_OLMOE, 3, 0, 0, 0, 3, 3},
                             {"olmo2", LS_FAMILY_OLMO2, 1, 0, 0, 0, 0, 0},
                             {"phi3, window", LS_FAMILY_PHI3, 3, 7, 0, 0.1, 0, 0}};

/* A rounding to 16 bits sends tokens to other experts, unless all are taken. */
static bool chooses(const kind *k)
{
    return k->used < k->experts;
}

static void make_model(ls_model *model, const kind *k)
{
    ls_run run = ls_tiny_run();

    run.model.family = k->family;
    run.model.layers = 3;
    run.model.width = 72;
    run.model.head_size = 24;
    run.model.kv_heads = k->kv_heads;
    run.model.context = 64;
    run.model.mlp = 200;
    run.model.dropout = k->dropout;
    run.model.init_std = 0.05;
    run.model.window = k->window;
    run.model.bias = k->family == LS_FAMILY_GPT2 ? LS_BIAS_ALL : LS_BIAS_NONE;
    run.model.experts = k->experts;
    run.model.experts_used = k->used;
    run.model.experts_norm = k->family == LS_FAMILY_MIXTRAL;
    run.train.balance_loss = 0.02;
    run.train.z_loss = 0.01;
    run.lora.rank = k->lora;
    run.lora.alpha = 2 * (double)k->lora;
    LS_CHECK_OK(ls_model_init(model, &run, V));
}

/* Within this much of the largest. */
static void compare(const kind *k, const outcome *got, const outcome *want, double tolerance)
{
    double most = 0, wrong = 0;

    for (int i = 0; i < B * T; i++)
        LS_CHECK_NEAR(got->losses[i], want->losses[i], tolerance);
    for (int64_t i = 0; i < want->elements; i++) {
        most = fmax(most, fabs((double)want->grad[i]));
        wrong = fmax(wrong, fabs((double)got->grad[i] - (double)want->grad[i]));
    }
    if (!(most > 0 && wrong <= tolerance * most))
        ls_test_fail(__FILE__, __LINE__, "%s: gradients differ by %.3g of %.3g", k->name, wrong,
                     most);
}

static void drop(outcome *o)
{
    free(o->losses);
    free(o->grad);
}

static float *make_weights(const ls_model *model)
{
    float *w = calloc((size_t)model->flat, sizeof *w);

    LS_CHECK(w);
    for (int i = 0; i < model->n_params; i++)
        ls_model_start(&model->params[i], 11, 0, model->params[i].count,
                       w + model->params[i].first);
    return w;
}

/* The first element in which two gradients differ; -1: none. */
static int64_t first_unlike(const outcome *a, const outcome *b)
{
    for (int64_t i = 0; i < a->elements; i++)
        if (memcmp(&a->grad[i], &b->grad[i], sizeof(float)) != 0)
            return i;
    return -1;
}

/* A pass that recomputes, in ordered mode: losses and gradients of one that keeps everything. */
LS_TEST_SECONDS(gpu_recompute_has_equal_bits, 120)
{
    static const struct {
        ls_recompute level;
        int64_t blocks;
        const char *name;
    } levels[] = {{LS_RECOMPUTE_SELECTIVE, 3, "selective"},
                  {LS_RECOMPUTE_FULL, 3, "full"},
                  {LS_RECOMPUTE_FULL, 1, "full in one block"}};
    ls_gpu g;
    int32_t tokens[B * T + 1];

    ls_gpu_open(&g);
    ls_tiny_tokens(3, B * T + 1, V, tokens);
    for (size_t form = 0; form < 3 * LS_COUNT(kinds); form++) {
        static const ls_dtype types[] = {LS_F32, LS_BF16, LS_F16};
        const kind *k = &kinds[form / 3];
        ls_dtype type = types[form % 3];
        ls_model model;
        make_model(&model, k);
        float *w = make_weights(&model);
        outcome want = run_model(&model, w, tokens, g.device, g.stream, g.k, type, true);
        for (size_t i = 0; i < LS_COUNT(levels); i++) {
            outcome got = run_with(&model, w, tokens, g.device, g.stream, g.k, type, true,
                                   levels[i].level, levels[i].blocks);
            int64_t at = first_unlike(&got, &want);
            if (at >= 0)
                ls_test_fail(__FILE__, __LINE__,
                             "%s in %s, recompute %s: gradient %lld is %.9g, not %.9g", k->name,
                             type == LS_F32   ? "fp32"
                             : type == LS_F16 ? "fp16"
                                              : "bf16",
                             levels[i].name, (long long)at, (double)got.grad[at],
                             (double)want.grad[at]);
            LS_CHECK(memcmp(got.losses, want.losses, sizeof(float) * B * T) == 0);
            drop(&got);
        }
        drop(&want);
        free(w);
        ls_model_release(&model);
    }
    ls_gpu_close(&g);
}

LS_TEST_SECONDS(gpu_models_equal_cpu, 240)
{
    ls_gpu g;
    int32_t tokens[B * T + 1];
    const ls_kernels *cpu = NULL;

    ls_gpu_open(&g);
    LS_CHECK_OK(ls_kernel_pick("auto", &cpu));
    ls_tiny_tokens(3, B * T + 1, V, tokens);
    for (size_t form = 0; form < 6 * LS_COUNT(kinds); form++) {
        static const ls_dtype types[] = {LS_F32, LS_BF16, LS_F16};
        const kind *k = &kinds[form / 6];
        bool ordered = form % 2;
        ls_dtype type = types[form % 6 / 2];
        /* Two ways of rounding after every row differ like 16 bits from fp32. */
        double tolerance = type == LS_F32 ? 1e-4 : type == LS_F16 ? 0.0125 : 0.05;
        ls_model model;
        make_model(&model, k);
        float *w = make_weights(&model);
        outcome want = run_model(&model, w, tokens, g.cpu, g.cpu_stream,
                                 type == LS_F32 ? cpu : g.reference, type, ordered);
        outcome got = run_model(&model, w, tokens, g.device, g.stream, g.k, type, ordered);
        outcome again = run_model(&model, w, tokens, g.device, g.stream, g.k, type, ordered);
        if (type == LS_F32 || !chooses(k))
            compare(k, &got, &want, tolerance);
        LS_CHECK(memcmp(got.grad, again.grad, (size_t)got.elements * sizeof(float)) == 0);
        LS_CHECK(memcmp(got.losses, again.losses, sizeof(float) * B * T) == 0);
        drop(&want);
        drop(&got);
        drop(&again);
        free(w);
        ls_model_release(&model);
    }
    ls_gpu_close(&g);
}

/* A text continued on one device, with a cache. */
typedef struct speaker {
    ls_device *device;
    ls_pass *pass;
    ls_decode *decode;
    void *w;
} speaker;

static speaker open_speaker(const ls_model *model, const float *weights, ls_device *d, ls_stream *s,
                            const ls_kernels *k)
{
    speaker out = {.device = d, .w = put(d, s, weights, model->flat * 4)};
    ls_pass_args args = {
        .model = model, .kernels = k, .stream = s, .B = 1, .T = 8, .cache = 48, .leaves = 1};

    LS_CHECK_OK(ls_pass_open(&out.pass, &args));
    LS_CHECK_OK(ls_decode_open(&out.decode, model, out.pass, s));
    return out;
}

static void close_speaker(speaker *s)
{
    ls_decode_close(s->decode);
    ls_pass_close(s->pass);
    ls_device_free(s->device, s->w);
}

LS_TEST_SECONDS(gpu_mixtures_talk_as_on_the_cpu, 60)
{
    enum { TOLD = 20, ALL = 40 };
    const ls_sampling most_likely = {.top_p = 1, .repetition = 1};
    const ls_kernels *cpu = NULL;
    ls_gpu g;
    int32_t text[ALL];

    ls_gpu_open(&g);
    LS_CHECK_OK(ls_kernel_pick("auto", &cpu));
    for (size_t i = 0; i < LS_COUNT(kinds); i++) {
        ls_model model;
        if (kinds[i].experts == 0)
            continue;
        make_model(&model, &kinds[i]);
        float *w = make_weights(&model);
        speaker here = open_speaker(&model, w, g.cpu, g.cpu_stream, cpu);
        speaker there = open_speaker(&model, w, g.device, g.stream, g.k);
        ls_tiny_tokens(7, TOLD, V, text);
        for (int n = TOLD; n < ALL; n++) {
            int32_t token;
            LS_CHECK_OK(ls_decode_next(there.decode, there.w, text, n, &most_likely, 0, &token));
            LS_CHECK_OK(ls_decode_next(here.decode, here.w, text, n, &most_likely, 0, &text[n]));
            for (int v = 0; v < V; v++)
                LS_CHECK_NEAR(ls_decode_logits(there.decode)[v], ls_decode_logits(here.decode)[v],
                              1e-4);
        }
        close_speaker(&here);
        close_speaker(&there);
        free(w);
        ls_model_release(&model);
    }
    ls_gpu_close(&g);
}
