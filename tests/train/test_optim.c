/* test_optim.c -- optimizers in whole steps: what their steps look like, equal bits, memory. */
#include <math.h>
#include "base/mem.h"
#include "harness.h"
#include "model/tiny.h"
#include "plan/ledger_bytes.h"
#include "plan/memory.h"
#include "optim/optim.h"
#include "train/step/step.h"

enum { VOCAB = 19 };

typedef struct trainer {
    ls_run run;
    ls_device *device;
    ls_step_args args;
    ls_model model;
    ls_step *step;
    int64_t done;
    double loss;
} trainer;

static ls_run run_of(ls_optimizer optimizer, ls_family family)
{
    ls_run run = ls_tiny_run();

    run.train.optimizer = optimizer;
    run.train.momentum = ls_optimizer_of(optimizer)->momentum;
    run.train.weight_decay = fmin(run.train.weight_decay, ls_optimizer_of(optimizer)->weight_decay);
    run.train.nesterov = true;
    run.train.adamw_lr = run.train.lr;
    run.model.family = family;
    if (family != LS_FAMILY_GPT2) {
        run.model.bias = LS_BIAS_NONE;
        run.model.kv_heads = 1;
        run.model.tied = LS_TIED_NO;
    }
    return run;
}

static void begin(trainer *t, const ls_run *run, const char *isa, int threads)
{
    *t = (trainer){.run = *run};
    t->args.run = &t->run;
    LS_CHECK_OK(ls_device_open(&t->device, "cpu", threads));
    LS_CHECK_OK(ls_stream_create(&t->args.stream, t->device));
    LS_CHECK_OK(ls_kernel_pick(isa, &t->args.kernels));
    LS_CHECK_OK(ls_model_init(&t->model, &t->run, VOCAB));
    t->args.model = &t->model;
    ls_calls_plan(&t->run, NULL, &t->args.calls);
    LS_CHECK_OK(ls_step_open(&t->step, &t->args));
    for (int i = 0; i < t->model.n_params; i++)
        ls_model_start(&t->model.params[i], 5, 0, t->model.params[i].count,
                       ls_step_state_arrays(t->step).w + t->model.params[i].first);
    ls_step_weights_changed(t->step);
}

static void end(trainer *t)
{
    ls_step_close(t->step);
    ls_model_release(&t->model);
    ls_stream_free(t->args.stream);
    ls_device_close(t->device);
}

/* One step on tokens of number `text`. */
static void train(trainer *t, uint32_t text)
{
    int32_t tokens[6 * 13 + 1];
    ls_step_result r;
    ls_step_clock clock;

    ls_tiny_tokens(text, (int64_t)LS_COUNT(tokens), VOCAB, tokens);
    ls_step_clock_begin(&clock);
    LS_CHECK_OK(ls_step_run(t->step, &(ls_step_batch){.tokens = tokens, .targets = tokens + 1},
                            t->done++, t->run.train.lr, &clock, &r));
    LS_CHECK(r.finite);
    t->loss = r.loss;
}

static float *copy_weights(const trainer *t)
{
    float *w = ls_mem_array((size_t)t->model.flat, sizeof *w);

    LS_CHECK(w);
    memcpy(w, ls_step_state_arrays(t->step).w, (size_t)t->model.flat * sizeof *w);
    return w;
}

static const ls_family families[] = {LS_FAMILY_GPT2, LS_FAMILY_LLAMA};

/* Every optimizer but AdamW, which is everywhere else. */
static const struct {
    ls_optimizer optimizer;
    double lr;          /* that learns one batch by heart */
    double least, most; /* of the memory that AdamW's moments take */
} optimizers[] = {
    {LS_OPTIMIZER_LAMB, 3e-2, 1, 1},
    {LS_OPTIMIZER_MUON, 1e-2, 0.5, 0.6},
    {LS_OPTIMIZER_LION, 3e-3, 0.5, 0.5},
    {LS_OPTIMIZER_SGD, 0.1, 0.5, 0.5},
};
enum { OPTIMIZERS = (int)LS_COUNT(optimizers) };

LS_TEST_SECONDS(optim_bits_do_not_depend_on_threads_or_instruction_set, 60)
{
    const ls_kernels *list[8];
    int n = ls_kernel_list(list, 8);

    for (int form = 0; form < 2 * OPTIMIZERS; form++) {
        ls_run run = run_of(optimizers[form / 2].optimizer, families[form % 2]);
        float *want = NULL;
        run.train.clip = 0.3;
        run.model.dropout = 0.1;
        for (int i = 0; i < n; i++)
            for (int threads = 1; threads <= 3; threads += 2) {
                trainer t;
                if (strcmp(list[i]->name, "reference") == 0)
                    continue;
                begin(&t, &run, list[i]->name, threads);
                for (uint32_t k = 0; k < 3; k++)
                    train(&t, k);
                if (!want)
                    want = copy_weights(&t);
                LS_CHECK(memcmp(want, ls_step_state_arrays(t.step).w,
                                (size_t)t.model.flat * sizeof *want) == 0);
                end(&t);
            }
        ls_mem_free(want);
    }
}

LS_TEST(optim_learns_one_batch_by_heart)
{
    ls_test_one_thread();
    for (int form = 0; form < 4 * OPTIMIZERS; form += ls_test_stride(3)) {
        ls_run run = run_of(optimizers[form / 4].optimizer, families[form / 2 % 2]);
        trainer t;
        run.precision = form % 2 ? LS_PRECISION_BF16 : LS_PRECISION_FP32;
        run.train.lr = run.train.adamw_lr = optimizers[form / 4].lr;
        begin(&t, &run, "auto", 1);
        for (int i = 0; i < 120; i++)
            train(&t, 1);
        if (!(t.loss < 0.5))
            ls_test_fail(__FILE__, __LINE__, "form %d ends at loss %g", form, t.loss);
        end(&t);
    }
}

/* LAMB: a tensor with weight decay moves by lr of its own length, whatever its gradient. */
LS_TEST(optim_lamb_moves_a_tensor_by_a_share_of_its_length)
{
    ls_run run = run_of(LS_OPTIMIZER_LAMB, LS_FAMILY_LLAMA);
    trainer t;
    int moved = 0;

    begin(&t, &run, "auto", 2);
    float *before = copy_weights(&t), *w = ls_step_state_arrays(t.step).w;
    train(&t, 1);
    for (int i = 0; i < t.model.n_params; i++) {
        const ls_param *p = &t.model.params[i];
        double length = 0, step = 0;
        for (int64_t e = p->first; e < p->first + p->count; e++) {
            length += pow((double)before[e], 2);
            step += pow((double)w[e] - (double)before[e], 2);
        }
        if (p->decay)
            LS_CHECK_NEAR(sqrt(step / length), 1e-2, 1e-5);
        else /* as AdamW: the first step is lr for each element with a gradient */
            LS_CHECK_NEAR(sqrt(step / (double)p->count), 1e-2, 1e-4);
        moved += p->decay;
    }
    LS_CHECK(moved > 5);
    ls_mem_free(before);
    end(&t);
}

/* Muon: the step of a matrix, over lr and its scale, has rows (or columns) that are nearly of
 * length 1 and nearly at right angles; so has each of q, k and v that lie in one weight. */
static void check_orthogonal(const ls_param *p, int part, const float *before, const float *w,
                             double lr)
{
    int64_t rows = p->shape[0], ld = p->shape[1], cols = ld / p->parts;
    int64_t side = ls_min_i64(rows, cols), along = ls_max_i64(rows, cols);
    double unit = lr * 0.2 * sqrt((double)along);

    for (int64_t a = 0; a < side; a++)
        for (int64_t b = 0; b <= a; b++) {
            double sum = 0;
            for (int64_t e = 0; e < along; e++) {
                int64_t i = p->first + part * cols + (rows > cols ? e * ld + a : a * ld + e);
                int64_t j = p->first + part * cols + (rows > cols ? e * ld + b : b * ld + e);
                sum += ((double)w[i] - (double)before[i]) * ((double)w[j] - (double)before[j]);
            }
            sum /= unit * unit;
            if (a == b ? sum < 0.3 || sum > 1.6 : fabs(sum) > 0.45)
                ls_test_fail(__FILE__, __LINE__, "%s, part %d: rows %d and %d: %g", p->name, part,
                             (int)a, (int)b, sum);
        }
}

LS_TEST(optim_muon_makes_orthogonal_steps_of_each_matrix)
{
    for (int f = 0; f < 2; f++) {
        ls_run run = run_of(LS_OPTIMIZER_MUON, families[f]);
        trainer t;
        int matrices = 0;
        run.train.weight_decay = 0;
        run.train.adamw_lr = 5e-3;
        begin(&t, &run, "auto", 2);
        float *before = copy_weights(&t), *w = ls_step_state_arrays(t.step).w;
        train(&t, 1);
        for (int i = 0; i < t.model.n_params; i++) {
            const ls_param *p = &t.model.params[i];
            for (int part = 0; part < p->parts; part++, matrices++)
                check_orthogonal(p, part, before, w, 1e-2);
            if (p->parts == 0 && p->ndim == 1) /* AdamW's, at a rate of its own */
                LS_CHECK_NEAR(fabs((double)w[p->first] - (double)before[p->first]), 5e-3, 1e-4);
        }
        LS_CHECK_EQ(matrices, f == 0 ? 2 * 6 : 2 * 7);
        ls_mem_free(before);
        end(&t);
    }
}

/* A step that is not finite changes nothing, and moments go on from where they were. */
LS_TEST(optim_passes_over_a_bad_step)
{
    for (int form = 0; form < OPTIMIZERS; form++) {
        ls_run run = run_of(optimizers[form].optimizer, LS_FAMILY_GPT2);
        int32_t tokens[6 * 13 + 1];
        ls_step_result r;
        ls_step_clock clock;
        trainer t;
        begin(&t, &run, "auto", 2);
        train(&t, 1);
        ls_step_arrays live = ls_step_state_arrays(t.step);
        float *w = copy_weights(&t), kept = live.w[t.model.blocks[1].fc_b[0].w];
        float m = live.m[t.model.blocks[0].fc_w[0].g];
        ls_tiny_tokens(2, (int64_t)LS_COUNT(tokens), VOCAB, tokens);
        live.w[t.model.blocks[1].fc_b[0].w] = NAN;
        ls_step_clock_begin(&clock);
        LS_CHECK_OK(ls_step_run(t.step, &(ls_step_batch){.tokens = tokens, .targets = tokens + 1},
                                1, 1e-2, &clock, &r));
        LS_CHECK(!r.finite);
        LS_CHECK_FAILS(ls_step_find_nonfinite(t.step, 1), LS_ENUMERIC, "mlp.c_fc.bias\" holds NaN");
        live.w[t.model.blocks[1].fc_b[0].w] = kept;
        LS_CHECK(memcmp(w, live.w, (size_t)t.model.flat * sizeof *w) == 0);
        LS_CHECK(live.m[t.model.blocks[0].fc_w[0].g] == m && m != 0);
        ls_mem_free(w);
        end(&t);
    }
}

/* Each keeps its share of the moments; all that is taken is in the ledger. */
LS_TEST(optim_memory_is_what_the_ledger_says)
{
    for (int form = 0; form < 4 * OPTIMIZERS; form++) {
        ls_run run = run_of(optimizers[form / 4].optimizer, families[form / 2 % 2]);
        ls_ledger ledger, adamw;
        trainer t;
        run.precision = form % 2 ? LS_PRECISION_BF16 : LS_PRECISION_FP32;
        run.model.width = 96;
        run.model.head_size = 32;
        run.model.mlp = 200;
        begin(&t, &run, "auto", 2);
        const ls_memory_args memory = {
            .run = &t.run, .model = &t.model, .kernels = t.args.kernels, .threads = 2};
        ls_memory_predict(&memory, &ledger);
        LS_CHECK_EQ(ls_device_used_bytes(t.device),
                    ls_ledger_total(&ledger) - ledger_bytes(&ledger, "threads") -
                        ledger_bytes(&ledger, "batch") - 4096); /* logits of a sample */
        t.run.train.optimizer = LS_OPTIMIZER_ADAMW;
        ls_memory_predict(&memory, &adamw);
        LS_CHECK_EQ(ledger_bytes(&adamw, "optimizer work"), 0);
        double share =
            (double)ledger_bytes(&ledger, "optimizer") / (double)ledger_bytes(&adamw, "optimizer");
        LS_CHECK(share >= optimizers[form / 4].least && share <= optimizers[form / 4].most);
        t.run.train.optimizer = optimizers[form / 4].optimizer;
        end(&t);
    }
}

/* --- shares of a step (sync: ps) ---------------------------------------------------------------
 */

enum { NUMBERS = 3 };

typedef struct state {
    float w[NUMBERS], m[NUMBERS], v[NUMBERS];
} state;

static const float grad[NUMBERS] = {0.5F, -2, 0.1F};

static void move(const trainer *t, state *s, double steps, double share)
{
    const ls_optimizer_span span = {.count = NUMBERS, .decay = 1, .rate = 1};
    const ls_norm_result norm = {.factor = 1, .bad_block = -1};
    const ls_step_state numbers = ls_optim_numbers(&t->run, steps, share, 0.01);

    ls_optim_elements(&t->run, t->args.kernels, t->args.stream,
                      &(ls_optimizer_update){.w = s->w,
                                             .m = s->m,
                                             .v = s->v,
                                             .grad = grad,
                                             .spans = &span,
                                             .n_spans = 1,
                                             .state = &numbers,
                                             .result = &norm});
}

/* Pushes that make a step together move as far as the step, and leave the moments that it leaves.
 */
static void add_shares(ls_optimizer optimizer)
{
    static const double shares[] = {0.25, 0.5, 0.125, 0.125};
    ls_run run = run_of(optimizer, LS_FAMILY_GPT2);
    trainer t;

    bool sums = optimizer == LS_OPTIMIZER_SGD; /* what has come to rest stays at it */
    run.train.weight_decay = sums ? 0 : 0.1;
    begin(&t, &run, "auto", 1);
    state whole = {.w = {1, 2, 3}};
    for (int i = 0; i < NUMBERS && sums; i++)
        whole.m[i] = grad[i] / (1 - (float)run.train.momentum);
    state parts = whole;
    for (int step = 0; step < 5; step++) {
        double done = step;
        move(&t, &whole, step + 1, 1);
        for (size_t k = 0; k < LS_COUNT(shares); k++)
            move(&t, &parts, done += shares[k], shares[k]);
    }
    for (int i = 0; i < NUMBERS; i++) {
        LS_CHECK_NEAR(parts.w[i], whole.w[i], 1e-4); /* 1 - beta in fp32, of betas close to 1 */
        LS_CHECK_NEAR(parts.m[i] / whole.m[i], 1, 1e-4);
        if (ls_optim_keeps(&run, 2))
            LS_CHECK_NEAR(parts.v[i] / whole.v[i], 1, 1e-3);
        LS_CHECK(fabs((double)whole.w[i] - (i + 1)) > 0.03); /* five steps of 0.01, and decay */
    }
    end(&t);
}

LS_TEST(optim_shares_of_a_step_add_up_to_it)
{
    for (int kind = 0; kind < LS_OPTIMIZER_COUNT; kind++)
        if (ls_optimizer_is_elementwise((ls_optimizer)kind))
            add_shares((ls_optimizer)kind);
}
