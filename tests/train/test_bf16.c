/* test_bf16.c -- training in bf16: near fp32, equal bits, a copy of the weights that never lags. */
#include <math.h>
#include "base/mem.h"
#include "harness.h"
#include "model/tiny.h"
#include "train/step/step.h"

enum { VOCAB = 19, MOST = 50 };
#define RATE 3e-3

typedef struct rig {
    ls_run run;
    ls_device *device;
    ls_model model;
    ls_step_args args;
    ls_step *step;
    int32_t *tokens; /* owned */
} rig;

static void open_rig(rig *r, const ls_run *run, const char *isa, int threads)
{
    *r = (rig){.run = *run};
    r->args.run = &r->run;
    r->args.model = &r->model;
    LS_CHECK_OK(ls_device_open(&r->device, "cpu", threads));
    LS_CHECK_OK(ls_stream_create(&r->args.stream, r->device));
    LS_CHECK_OK(ls_kernel_pick(isa, &r->args.kernels));
    LS_CHECK_OK(ls_model_init(&r->model, &r->run, VOCAB));
    ls_calls_plan(&r->run, NULL, &r->args.calls);
    LS_CHECK_OK(ls_step_open(&r->step, &r->args));
    for (int i = 0; i < r->model.n_params; i++)
        ls_model_start(&r->model.params[i], 5, 0, r->model.params[i].count,
                       ls_step_state_arrays(r->step).w + r->model.params[i].first);
    ls_step_weights_changed(r->step);
    r->tokens =
        ls_mem_array((size_t)(run->batch.sequences * run->model.context + 1), sizeof *r->tokens);
    LS_CHECK(r->tokens);
}

static void close_rig(rig *r)
{
    ls_step_close(r->step);
    ls_model_release(&r->model);
    ls_stream_free(r->args.stream);
    ls_device_close(r->device);
    ls_mem_free(r->tokens);
}

/* Text with something to learn: each token is one of two that may follow the last. */
static void make_batch(rig *r, uint32_t seed)
{
    int64_t n = r->run.batch.sequences * r->run.model.context + 1;

    ls_tiny_tokens(seed, n, 2, r->tokens);
    for (int64_t i = 1; i < n; i++)
        r->tokens[i] = (3 * r->tokens[i - 1] + 5 + r->tokens[i]) % VOCAB;
}

static double one_step(rig *r, int number)
{
    ls_step_clock clock;
    ls_step_result result;

    make_batch(r, (uint32_t)number);
    ls_step_clock_begin(&clock);
    LS_CHECK_OK(ls_step_run(r->step,
                            &(ls_step_batch){.tokens = r->tokens, .targets = r->tokens + 1}, number,
                            RATE, &clock, &result));
    LS_CHECK(result.finite);
    return result.loss;
}

/* The copy that rows read is the rounded weight, at every place. */
static void check_copy(const rig *r)
{
    ls_step_arrays a = ls_step_state_arrays(r->step);
    uint16_t *want = ls_mem_array((size_t)r->model.flat, sizeof *want);
    const ls_kernels *reference;

    LS_CHECK(want && a.read != a.w);
    LS_CHECK_OK(ls_kernel_pick("reference", &reference));
    reference->cast(
        r->args.stream,
        &(ls_cast){
            .from_type = LS_F32, .to_type = LS_BF16, .from = a.w, .to = want, .n = r->model.flat});
    for (int64_t i = 0; i < r->model.flat; i++)
        LS_CHECK_EQ(((const uint16_t *)a.read)[i], want[i]);
    ls_mem_free(want);
}

typedef struct form {
    const char *name;
    ls_family family;
    int64_t kv_heads, lora;
    double dropout;
} form;

static const form forms[] = {{"gpt2", LS_FAMILY_GPT2, 3, 0, 0},
                             {"gpt2, dropout", LS_FAMILY_GPT2, 3, 0, 0.1},
                             {"llama", LS_FAMILY_LLAMA, 1, 0, 0},
                             {"qwen3, lora", LS_FAMILY_QWEN3, 1, 4, 0}};

static ls_run run_of(const form *f, ls_precision precision)
{
    ls_run run = ls_tiny_run();

    run.model.family = f->family;
    run.model.kv_heads = f->kv_heads;
    run.model.dropout = f->dropout;
    run.model.bias = f->family == LS_FAMILY_GPT2 ? LS_BIAS_ALL : LS_BIAS_NONE;
    run.lora.rank = f->lora;
    run.lora.alpha = 2 * (double)f->lora;
    run.precision = precision;
    return run;
}

/* 50 steps by the reference: the losses of both precisions stay together while they fall. */
LS_TEST_SECONDS(bf16_follows_fp32, 120)
{
    const int steps = ls_test_times(MOST);

    ls_test_one_thread();
    for (size_t k = 0; k < LS_COUNT(forms); k++) {
        ls_run wide = run_of(&forms[k], LS_PRECISION_FP32);
        ls_run narrow = run_of(&forms[k], LS_PRECISION_BF16);
        double first = 0, a = 0, b = 0;
        rig want, got;

        open_rig(&want, &wide, "reference", 1);
        open_rig(&got, &narrow, "reference", 1);
        for (int i = 0; i < steps; i++) {
            a = one_step(&want, i);
            b = one_step(&got, i);
            first = i == 0 ? a : first;
            if (!(fabs(a - b) <= 0.01 * a))
                ls_test_fail(__FILE__, __LINE__, "%s: loss of step %d is %.6f, expected %.6f",
                             forms[k].name, i, b, a);
        }
        check_copy(&got);
        if ((steps == MOST && !(a < 0.9 * first)) || a == b)
            ls_test_fail(__FILE__, __LINE__, "%s: from %.4f to %.4f and %.4f", forms[k].name, first,
                         a, b);
        close_rig(&want);
        close_rig(&got);
    }
}

/* Weights and losses of a few steps, to be compared bit by bit. */
typedef struct outcome {
    float *w; /* owned */
    int64_t n;
    double losses[4];
} outcome;

static outcome train(const ls_run *run, const char *isa, int threads)
{
    outcome o;
    rig r;

    open_rig(&r, run, isa, threads);
    for (int i = 0; i < (int)LS_COUNT(o.losses); i++)
        o.losses[i] = one_step(&r, i);
    check_copy(&r);
    o.n = r.model.flat;
    o.w = ls_mem_array((size_t)o.n, sizeof *o.w);
    LS_CHECK(o.w);
    memcpy(o.w, ls_step_state_arrays(r.step).w, (size_t)o.n * sizeof *o.w);
    close_rig(&r);
    return o;
}

static void check_equal(const outcome *want, outcome got, const char *what)
{
    if (memcmp(got.losses, want->losses, sizeof want->losses) != 0)
        ls_test_fail(__FILE__, __LINE__, "%s: other losses: %.9g, expected %.9g", what,
                     got.losses[3], want->losses[3]);
    if (memcmp(got.w, want->w, (size_t)want->n * sizeof *want->w) != 0)
        ls_test_fail(__FILE__, __LINE__, "%s: other weights", what);
    ls_mem_free(got.w);
}

LS_TEST_SECONDS(bf16_bits_do_not_depend_on_threads_or_instruction_set, 120)
{
    for (size_t k = 1; k < LS_COUNT(forms); k += 2) {
        ls_run run = run_of(&forms[k], LS_PRECISION_BF16);
        outcome want = train(&run, "generic", 1);
        const ls_kernels *list[8];
        int n = ls_kernel_list(list, 8);

        for (int i = 0; i < n; i++)
            for (int threads = 1; threads <= 3; threads += ls_test_stride(2)) {
                char what[80];
                snprintf(what, sizeof what, "%s: %s, %d threads", forms[k].name, list[i]->name,
                         threads);
                if (strcmp(list[i]->name, "reference") != 0)
                    check_equal(&want, train(&run, list[i]->name, threads), what);
            }
        ls_mem_free(want.w);
    }
}

static void check_grouping(const char *isa)
{
    static const int64_t sequences[] = {8, 5};

    for (size_t k = 0; k < LS_COUNT(sequences); k++) {
        ls_run run = run_of(&forms[k + 1], LS_PRECISION_BF16);
        run.batch.sequences = sequences[k];
        outcome want = train(&run, isa, 1);
        for (int64_t group = 2; group <= 8; group *= 2) {
            char what[64];
            snprintf(what, sizeof what, "%s, %lld leaves, group %lld", isa, (long long)sequences[k],
                     (long long)group);
            run.batch.group = group;
            check_equal(&want, train(&run, isa, 2), what);
        }
        ls_mem_free(want.w);
    }
}

LS_TEST_SECONDS(bf16_bits_do_not_depend_on_grouping, 120)
{
    check_grouping("auto");
}

/* The rows of all versions agree as far as bf16 can: the same losses but for roundings. */
LS_TEST(bf16_rows_train_like_the_reference)
{
    for (size_t k = 0; k < LS_COUNT(forms); k++) {
        ls_run run = run_of(&forms[k], LS_PRECISION_BF16);
        outcome want = train(&run, "reference", 1), got = train(&run, "auto", 2);
        for (size_t i = 0; i < LS_COUNT(want.losses); i++)
            LS_CHECK_NEAR(got.losses[i], want.losses[i], 0.01 * want.losses[i]);
        ls_mem_free(want.w);
        ls_mem_free(got.w);
    }
}

/* Products by pairs of bf16, emulated where the CPU lacks the instruction: 30 steps beside fp32. */
LS_TEST_SECONDS(bf16_by_pairs_follows_fp32, 60)
{
    static const char *const ways[] = {"emulate-avx512", "emulate-amx"};
    const int steps = ls_test_times(30);

    if (!__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512bw"))
        ls_test_skip("this CPU lacks AVX-512");
    for (size_t k = 0; k < LS_COUNT(ways) * LS_COUNT(forms); k += (size_t)ls_test_stride(3)) {
        ls_run wide = run_of(&forms[k / 2], LS_PRECISION_FP32);
        ls_run narrow = run_of(&forms[k / 2], LS_PRECISION_BF16);
        double first = 0, a = 0, b = 0;
        rig want, got;

        setenv("LINESHAFT_BF16", ways[k % 2], 1);
        open_rig(&want, &wide, "avx512", 2);
        open_rig(&got, &narrow, "avx512", 2);
        for (int i = 0; i < steps; i++) {
            a = one_step(&want, i);
            b = one_step(&got, i);
            first = i == 0 ? a : first;
            if (!(fabs(a - b) <= 0.02 * a))
                ls_test_fail(__FILE__, __LINE__, "%s, %s: loss of step %d is %.6f, expected %.6f",
                             forms[k / 2].name, ways[k % 2], i, b, a);
        }
        LS_CHECK((steps < 30 || a < 0.95 * first) && a != b);
        close_rig(&want);
        close_rig(&got);
    }
}

static void check_pairs(const char *way)
{
    ls_run run = run_of(&forms[0], LS_PRECISION_BF16);
    outcome widened, want;

    run.batch.sequences = 5;
    widened = train(&run, "avx512", 1);
    setenv("LINESHAFT_BF16", way, 1);
    want = train(&run, "avx512", 1);
    if (memcmp(widened.w, want.w, (size_t)want.n * sizeof *want.w) == 0)
        ls_test_fail(__FILE__, __LINE__, "%s is not used", way);
    for (int threads = 2; threads <= 3; threads++) {
        run.batch.group = threads == 2 ? 2 : 4;
        check_equal(&want, train(&run, "avx512", threads), way);
    }
    setenv("LINESHAFT_BF16", "off", 1);
    ls_mem_free(widened.w);
    ls_mem_free(want.w);
}

/* By pairs the bits are others than widened, but as steady: threads and grouping. */
LS_TEST_SECONDS(bf16_by_pairs_has_equal_bits, 60)
{
    if (!__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512bw"))
        ls_test_skip("this CPU lacks AVX-512");
    check_pairs("emulate-avx512");
    check_pairs("emulate-amx");
}

static double loss_of_6(ls_step *step, const ls_step_batch *windows)
{
    double sums[6], total = 0;

    LS_CHECK_OK(ls_step_loss(step, windows, 6, sums));
    for (int i = 0; i < 6; i++)
        total += sums[i];
    return total;
}

/* Validation reads the copy too, and changing the weights from outside renews it. */
LS_TEST(bf16_losses_are_those_of_rounded_weights)
{
    ls_run run = run_of(&forms[0], LS_PRECISION_BF16);
    rig r;

    open_rig(&r, &run, "reference", 1);
    make_batch(&r, 3);
    ls_step_batch windows = {.tokens = r.tokens, .targets = r.tokens + 1};
    double before = loss_of_6(r.step, &windows);
    /* Less than half a place of bf16: the rounded weights stay. */
    float *w = ls_step_state_arrays(r.step).w;
    for (int64_t i = 0; i < r.model.flat; i++) {
        uint32_t bits = (uint32_t)((const uint16_t *)ls_step_state_arrays(r.step).read)[i] << 16;
        memcpy(&w[i], &bits, sizeof bits);
        w[i] *= 1.001f;
    }
    ls_step_weights_changed(r.step);
    LS_CHECK(loss_of_6(r.step, &windows) == before);
    for (int64_t i = 0; i < r.model.flat; i++)
        w[i] *= 1.5f;
    LS_CHECK(loss_of_6(r.step, &windows) == before);
    ls_step_weights_changed(r.step);
    LS_CHECK(loss_of_6(r.step, &windows) != before);
    close_rig(&r);
}

/* A number that bf16 cannot hold is found where it appears. */
LS_TEST(bf16_blames_the_output_that_overflows)
{
    ls_run run = run_of(&forms[0], LS_PRECISION_BF16);
    ls_step_result result;
    ls_step_clock clock;
    rig r;

    open_rig(&r, &run, "reference", 1);
    float *w = ls_step_state_arrays(r.step).w;
    w[r.model.blocks[0].ln2_w.w] = 3e38f;
    w[r.model.blocks[0].fc_w[0].w] = 3e38f;
    ls_step_weights_changed(r.step);
    make_batch(&r, 0);
    ls_step_clock_begin(&clock);
    LS_CHECK_OK(ls_step_run(r.step, &(ls_step_batch){.tokens = r.tokens, .targets = r.tokens + 1},
                            0, RATE, &clock, &result));
    LS_CHECK(!result.finite);
    check_copy(&r);
    LS_CHECK_FAILS(ls_step_find_nonfinite(r.step, 0), LS_ENUMERIC,
                   "the output of \"transformer.h.0.");
    close_rig(&r);
}
