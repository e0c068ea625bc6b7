/* test_decode_cache.c -- a decoder with a cache says what reading everything again would say. */
#include <math.h>
#include "base/mem.h"
#include "harness.h"
#include "kernel/kernel_check.h"
#include "model/decode.h"
#include "model/tiny.h"

enum { VOCAB = 11, TOKENS = 9, CONTEXT = 13, CACHE = 9, LONG = 40 };

typedef struct shape {
    const char *name;
    ls_family family;
    int64_t kv_heads, window, window_from;
} shape;

static const shape shapes[] = {
    {"gpt2", LS_FAMILY_GPT2, 3, 0, 0},          {"llama", LS_FAMILY_LLAMA, 3, 0, 0},
    {"llama gqa", LS_FAMILY_LLAMA, 1, 0, 0},    {"mistral", LS_FAMILY_MISTRAL, 1, 4, 0},
    {"qwen2 window", LS_FAMILY_QWEN2, 3, 3, 1}, {"qwen3", LS_FAMILY_QWEN3, 1, 0, 0},
    {"olmo2", LS_FAMILY_OLMO2, 1, 0, 0},        {"phi3", LS_FAMILY_PHI3, 3, 5, 0},
};

typedef struct rig {
    ls_check c;
    ls_run run;
    ls_model model;
    ls_pass *whole_pass, *cached_pass;
    ls_decode *whole, *cached;
    float *w;
    int32_t history[LONG];
    double tolerance;
} rig;

static void start_weights(rig *r)
{
    r->w = ls_check_floats(&r->c, "weights", r->model.flat, 0);
    memset(r->w, 0, (size_t)r->model.flat * sizeof *r->w);
    for (int i = 0; i < r->model.n_params; i++) {
        const ls_param *p = &r->model.params[i];
        ls_model_start(p, 3, 0, p->count, r->w + p->first);
        for (int64_t k = 0; k < p->count && p->start != LS_START_NORMAL; k++)
            r->w[p->first + k] += 0.1f * (float)((k * 7 + i) % 5 - 2); /* not all equal */
    }
}

static void open_rig(rig *r, const shape *v, const char *isa)
{
    const ls_kernels *kernels;

    ls_check_begin(&r->c, 2);
    r->run = ls_tiny_run();
    r->run.model.family = v->family;
    r->run.model.kv_heads = v->kv_heads;
    r->run.model.window = v->window;
    r->run.model.window_from = v->window_from;
    r->run.model.vocab = VOCAB;
    if (v->family != LS_FAMILY_GPT2)
        r->run.model.bias = v->family == LS_FAMILY_QWEN2 ? LS_BIAS_QKV : LS_BIAS_NONE;
    LS_CHECK_OK(ls_model_init(&r->model, &r->run, TOKENS));
    LS_CHECK_OK(ls_kernel_pick(isa, &kernels));
    ls_pass_args args = {.model = &r->model,
                         .kernels = kernels,
                         .stream = r->c.stream,
                         .B = 1,
                         .T = CONTEXT,
                         .leaves = 1};
    LS_CHECK_OK(ls_pass_open(&r->whole_pass, &args));
    args.T = 4;
    args.cache = CACHE;
    LS_CHECK_OK(ls_pass_open(&r->cached_pass, &args));
    LS_CHECK_OK(ls_decode_open(&r->whole, &r->model, r->whole_pass, r->c.stream));
    LS_CHECK_OK(ls_decode_open(&r->cached, &r->model, r->cached_pass, r->c.stream));
    start_weights(r);
    ls_tiny_tokens(8, LONG, TOKENS, r->history);
    /* The fast kernels promise equal bits for any cut of a text; the reference sums in doubles. */
    r->tolerance = strcmp(isa, "reference") == 0 ? 1e-5 : 0;
}

static void close_rig(rig *r)
{
    ls_decode_close(r->whole);
    ls_decode_close(r->cached);
    ls_pass_close(r->whole_pass);
    ls_pass_close(r->cached_pass);
    ls_model_release(&r->model);
    ls_check_end(&r->c);
}

static const ls_sampling warm = {
    .temperature = 1.5, .top_p = 0.97, .min_p = 0.01, .repetition = 1.2, .seed = 4};

/* Both decoders continue history[0..n-1] alike. */
static void check_same_part(rig *r, const char *what, const int32_t *history, int64_t n)
{
    int64_t first = ls_decode_first(n, CACHE);
    ls_sampling plain = warm;
    int32_t a, b;

    plain.repetition = 1; /* the two see different histories where first > 0 */
    LS_CHECK_OK(ls_decode_next(r->cached, r->w, history, n, &plain, (uint64_t)n, &b));
    LS_CHECK_OK(
        ls_decode_next(r->whole, r->w, history + first, n - first, &plain, (uint64_t)n, &a));
    ls_check_near(what, ls_decode_logits(r->cached), ls_decode_logits(r->whole), VOCAB,
                  r->tolerance);
    LS_CHECK_EQ(b, a);
    LS_CHECK(b >= 0 && b < TOKENS);
}

/* Growing, again the same, shorter, another text, longer than the cache, read ahead. */
static void check_shape(const shape *v, const char *isa)
{
    rig r;
    int32_t other[LONG];

    open_rig(&r, v, isa);
    ls_tiny_tokens(9, LONG, TOKENS, other);
    for (int64_t n = 1; n <= LONG; n++)
        check_same_part(&r, v->name, r.history, n);
    for (int64_t n = CACHE; n > 0; n--)
        check_same_part(&r, v->name, r.history, n);
    check_same_part(&r, v->name, r.history, 7);
    check_same_part(&r, v->name, r.history, 7);
    check_same_part(&r, v->name, other, 7);
    memcpy(other, r.history, 5 * sizeof *other); /* a common beginning */
    check_same_part(&r, v->name, other, 8);
    check_same_part(&r, v->name, r.history, 23);
    for (int64_t n = 0; n <= CACHE; n++)
        LS_CHECK_OK(ls_decode_read(r.cached, r.w, other, n));
    check_same_part(&r, v->name, other, CACHE);
    LS_CHECK_OK(ls_decode_read(r.cached, r.w, other, 30));
    check_same_part(&r, v->name, other, 30);
    close_rig(&r);
}

LS_TEST_SECONDS(decode_with_a_cache_agrees_with_reading_everything, 60)
{
    for (size_t i = 0; i < LS_COUNT(shapes); i++) {
        check_shape(&shapes[i], "reference");
        check_shape(&shapes[i], "generic");
        check_shape(&shapes[i], "auto");
    }
}

LS_TEST(decode_window_depends_on_the_length_alone)
{
    for (int64_t cache = 1; cache < 20; cache++)
        for (int64_t n = 1; n < 100; n++) {
            int64_t first = ls_decode_first(n, cache), before = ls_decode_first(n - 1, cache);
            LS_CHECK(n - first >= 1 && n - first <= cache);
            LS_CHECK(n <= cache ? first == 0 : n - first > cache - ls_max_i64(cache / 2, 1));
            LS_CHECK(first >= before);
        }
}

LS_TEST(decode_forgets_what_older_weights_computed)
{
    rig r;

    open_rig(&r, &shapes[1], "auto");
    check_same_part(&r, "before", r.history, 6);
    for (int64_t i = 0; i < r.model.flat; i++)
        r.w[i] *= 1.1f;
    ls_decode_forget(r.cached);
    check_same_part(&r, "after", r.history, 7);
    close_rig(&r);
}

LS_TEST(decode_says_when_logits_are_not_numbers)
{
    rig r;
    int32_t token = 77;

    open_rig(&r, &shapes[0], "auto");
    r.w[r.model.lnf_w.w] = NAN;
    LS_CHECK_FAILS(ls_decode_next(r.cached, r.w, r.history, 3, &warm, 0, &token), LS_ENUMERIC,
                   "not a number");
    LS_CHECK_EQ(token, 77);
    close_rig(&r);
}

LS_TEST(decode_refuses_a_token_outside_the_vocabulary_and_goes_on)
{
    rig r;
    int32_t token, bad[3] = {1, VOCAB, 2};

    open_rig(&r, &shapes[1], "auto");
    LS_CHECK_FAILS(ls_decode_next(r.cached, r.w, bad, 3, &warm, 0, &token), LS_EUSAGE,
                   "token 11 is outside the model's vocabulary of 11");
    LS_CHECK_FAILS(ls_decode_next(r.whole, r.w, bad, 3, &warm, 0, &token), LS_EUSAGE, "token 11");
    check_same_part(&r, "afterwards", r.history, 5);
    close_rig(&r);
}

LS_TEST(decode_open_survives_every_failing_allocation)
{
    rig r;

    open_rig(&r, &shapes[2], "auto");
    for (uint64_t n = 1;; n++) {
        ls_decode *d = NULL;
        ls_mem_fail_nth(n);
        ls_status st = ls_decode_open(&d, &r.model, r.cached_pass, r.c.stream);
        ls_mem_fail_nth(0);
        LS_CHECK(n < 50);
        if (st == LS_OK) {
            ls_decode_close(d);
            break;
        }
        LS_CHECK_EQ(st, LS_ENOMEM);
        LS_CHECK(!d);
    }
    close_rig(&r);
}
