/* test_step_packs.c -- packed weights: packed once after each change, never stale, equal bits. */
#include "base/mem.h"
#include "harness.h"
#include "kernel/cpu/dot/dot.h"
#include "model/decode.h"
#include "model/tiny.h"
#include "plan/ledger_bytes.h"
#include "plan/memory.h"
#include "train/step/step.h"

enum { VOCAB = 19, STEPS = 3 };

typedef struct rig {
    ls_run run;
    ls_device *device;
    ls_model model;
    ls_step_args args;
    ls_step *step;
    int32_t *tokens; /* owned */
    int64_t packed_bytes;
} rig;

static void open_rig(rig *r, const ls_run *run, const char *isa, bool pack)
{
    int64_t n = run->batch.sequences * run->model.context;
    ls_packed_weights_args packs;

    *r = (rig){.run = *run};
    r->args.run = &r->run;
    r->args.model = &r->model;
    LS_CHECK_OK(ls_device_open(&r->device, "cpu", 2));
    LS_CHECK_OK(ls_stream_create(&r->args.stream, r->device));
    LS_CHECK_OK(ls_kernel_pick(isa, &r->args.kernels));
    LS_CHECK_OK(ls_model_init(&r->model, &r->run, VOCAB));
    ls_calls_plan(&r->run, NULL, &r->args.calls);
    const ls_memory_args memory = {
        .run = &r->run, .model = &r->model, .kernels = r->args.kernels, .pack = pack};
    LS_CHECK_EQ(ls_memory_packs(&memory, &packs), pack);
    if (pack) {
        packs.stream = r->args.stream;
        r->packed_bytes = ls_packed_weights_bytes(&packs);
        LS_CHECK_OK(ls_packed_weights_open(&r->args.packs, &packs));
        LS_CHECK_EQ(ls_device_used_bytes(r->device), r->packed_bytes);
    }
    LS_CHECK_OK(ls_step_open(&r->step, &r->args));
    for (int i = 0; i < r->model.n_params; i++)
        ls_model_start(&r->model.params[i], 5, 0, r->model.params[i].count,
                       ls_step_state_arrays(r->step).w + r->model.params[i].first);
    ls_step_weights_changed(r->step);
    r->tokens = ls_mem_array((size_t)n + 1, sizeof *r->tokens);
    ls_tiny_tokens(3, n + 1, VOCAB, r->tokens);
}

static void close_rig(rig *r)
{
    ls_step_close(r->step);
    ls_packed_weights_close(r->args.packs);
    ls_model_release(&r->model);
    ls_stream_free(r->args.stream);
    ls_device_close(r->device);
    ls_mem_free(r->tokens);
}

static double one_step(rig *r, int number)
{
    ls_step_result result;
    ls_step_clock clock;

    ls_step_clock_begin(&clock);
    LS_CHECK_OK(ls_step_run(r->step,
                            &(ls_step_batch){.tokens = r->tokens, .targets = r->tokens + 1}, number,
                            1e-2, &clock, &result));
    return result.loss;
}

static double validate(rig *r)
{
    double sums[4];

    LS_CHECK_OK(ls_step_loss(
        r->step, &(ls_step_batch){.tokens = r->tokens, .targets = r->tokens + 1}, 4, sums));
    return sums[0] + sums[1] + sums[2] + sums[3];
}

/* Training, validation, weights from outside: the same numbers with packs and without. */
static void check_same_run(const ls_run *run, const char *isa)
{
    rig a, b;

    open_rig(&a, run, isa, false);
    open_rig(&b, run, isa, true);
    float *wa = ls_step_state_arrays(a.step).w, *wb = ls_step_state_arrays(b.step).w;
    for (int i = 0; i < STEPS; i++) {
        LS_CHECK(one_step(&a, i) == one_step(&b, i));
        LS_CHECK(validate(&a) == validate(&b));
        LS_CHECK(memcmp(wa, wb, (size_t)a.model.flat * sizeof *wa) == 0);
    }
    for (int64_t i = 0; i < a.model.flat; i++)
        wa[i] *= 0.5f, wb[i] *= 0.5f;
    ls_step_weights_changed(a.step);
    ls_step_weights_changed(b.step);
    LS_CHECK(validate(&a) == validate(&b));
    LS_CHECK(one_step(&a, STEPS) == one_step(&b, STEPS));
    LS_CHECK(ls_packed_weights_count(b.args.packs) > 0);
    close_rig(&a);
    close_rig(&b);
}

static ls_run many_calls(void)
{
    ls_run run = ls_tiny_run();

    run.batch.group = 1;
    run.model.dropout = 0.1;
    return run;
}

LS_TEST_SECONDS(packs_change_no_bit, 60)
{
    const ls_kernels *list[8];
    int n = ls_kernel_list(list, 8);
    ls_run run = many_calls();

    for (int i = 0; i < n; i++) {
        if (!list[i]->pack_bytes)
            continue;
        run.precision = LS_PRECISION_FP32;
        check_same_run(&run, list[i]->name);
        run.precision = LS_PRECISION_BF16;
        check_same_run(&run, list[i]->name);
    }
}

LS_TEST_SECONDS(packs_change_no_bit_of_other_families, 60)
{
    ls_run run = many_calls();

    run.model.family = LS_FAMILY_LLAMA;
    run.model.bias = LS_BIAS_NONE;
    run.model.kv_heads = 1;
    check_same_run(&run, "auto");
    run.model.tied = LS_TIED_NO;
    check_same_run(&run, "auto");
    run.lora.rank = 4;
    run.lora.alpha = 8;
    check_same_run(&run, "auto");
    run = many_calls();
    run.train.reduce = LS_REDUCE_FAST;
    check_same_run(&run, "auto");
}

/* How often: every matrix once per direction after an update, whatever the number of calls; after
 * that validation finds them forward, until the next update. */
LS_TEST(packs_are_made_once_after_each_change)
{
    ls_run run = many_calls();
    rig r;

    open_rig(&r, &run, "auto", true);
    int64_t each = 4 * r.model.shape.L + 1;
    LS_CHECK(r.args.calls.calls > 2);
    LS_CHECK_EQ(ls_packed_weights_count(r.args.packs), 0);
    one_step(&r, 0);
    LS_CHECK_EQ(ls_packed_weights_count(r.args.packs), 2 * each);
    validate(&r);
    LS_CHECK_EQ(ls_packed_weights_count(r.args.packs), 3 * each);
    validate(&r);
    LS_CHECK_EQ(ls_packed_weights_count(r.args.packs), 3 * each);
    one_step(&r, 1); /* forward is there already */
    LS_CHECK_EQ(ls_packed_weights_count(r.args.packs), 4 * each);
    ls_step_weights_changed(r.step);
    validate(&r);
    LS_CHECK_EQ(ls_packed_weights_count(r.args.packs), 5 * each);
    close_rig(&r);
}

/* What is frozen stays packed for the whole run. */
LS_TEST(packs_of_frozen_weights_are_made_once)
{
    ls_run run = many_calls();
    rig r;

    run.lora.rank = 4;
    run.lora.alpha = 8;
    open_rig(&r, &run, "auto", true);
    one_step(&r, 0);
    int64_t first = ls_packed_weights_count(r.args.packs);
    one_step(&r, 1);
    validate(&r);
    LS_CHECK(first > 0);
    LS_CHECK_EQ(ls_packed_weights_count(r.args.packs), first);
    close_rig(&r);
}

LS_TEST(packs_are_chosen_when_they_pay_and_fit)
{
    ls_run run = many_calls();
    const ls_kernels *kernels, *reference;
    ls_ledger ledger;
    ls_model model;

    LS_CHECK_OK(ls_kernel_pick("auto", &kernels));
    LS_CHECK_OK(ls_kernel_pick("reference", &reference));
    LS_CHECK_OK(ls_model_init(&model, &run, VOCAB));
    ls_memory_args args = {.run = &run, .model = &model, .kernels = kernels, .threads = 1};
    ls_memory_predict(&args, &ledger);
    int64_t without = ls_ledger_total(&ledger);
    LS_CHECK_EQ(ledger_bytes(&ledger, "packed weights"), 0);

    LS_CHECK_OK(ls_memory_choose_packs(&args, 1LL << 40));
    LS_CHECK(args.pack);
    ls_memory_predict(&args, &ledger);
    int64_t total = ls_ledger_total(&ledger);
    LS_CHECK_EQ(total - without, ledger_bytes(&ledger, "packed weights"));
    LS_CHECK(total > without);
    LS_CHECK_OK(ls_memory_choose_packs(&args, total)); /* a quarter must be left */
    LS_CHECK(!args.pack);
    run.batch.group = run.batch.sequences / run.batch.leaf; /* one call packs once anyway */
    LS_CHECK_OK(ls_memory_choose_packs(&args, 1LL << 40));
    LS_CHECK(!args.pack);

    run.device.pack = LS_PACKING_ON;
    LS_CHECK_OK(ls_memory_choose_packs(&args, 1));
    LS_CHECK(args.pack);
    ls_memory_predict(&args, &ledger);
    LS_CHECK_FAILS(ls_memory_check(&args, &ledger, ls_ledger_total(&ledger) - 1), LS_ENOMEM,
                   "this run needs");
    LS_CHECK(strstr(ls_err_last()->hint, "It fits with device.pack: off"));
    run.device.pack = LS_PACKING_OFF;
    LS_CHECK_OK(ls_memory_choose_packs(&args, 1LL << 40));
    LS_CHECK(!args.pack);

    args.kernels = reference;
    run.batch.group = 1;
    run.device.pack = LS_PACKING_AUTO;
    LS_CHECK_OK(ls_memory_choose_packs(&args, 1LL << 40));
    LS_CHECK(!args.pack);
    run.device.pack = LS_PACKING_ON;
    LS_CHECK_FAILS(ls_memory_choose_packs(&args, 1LL << 40), LS_EUSAGE, "device.pack is on");
    ls_model_release(&model);
}

LS_TEST(packs_open_survives_every_failing_allocation)
{
    ls_run run = many_calls();
    rig r;

    open_rig(&r, &run, "auto", true);
    ls_packed_weights_args args = {.model = &r.model,
                                   .kernels = r.args.kernels,
                                   .stream = r.args.stream,
                                   .M = 64,
                                   .training = true};
    int64_t used = ls_device_used_bytes(r.device);
    ls_packed_weights *packs = NULL;
    uint64_t n = 1;
    for (;; n++) {
        ls_mem_fail_nth(n);
        ls_status st = ls_packed_weights_open(&packs, &args);
        if (st == LS_OK)
            break;
        LS_CHECK_EQ(st, LS_ENOMEM);
        LS_CHECK_EQ(ls_device_used_bytes(r.device), used);
    }
    ls_mem_fail_nth(0);
    LS_CHECK(n > 2); /* itself, its places, the buffer's book-keeping */
    ls_packed_weights_close(packs);
    ls_packed_weights_close(NULL);
    LS_CHECK_EQ(ls_device_used_bytes(r.device), used);
    close_rig(&r);
}
