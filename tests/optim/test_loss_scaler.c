/* test_loss_scaler.c -- the loss scale: when it changes, what it must not change, how it is kept. */
#include <math.h>
#include "base/mem.h"
#include "harness.h"
#include "kernel/kernel.h"
#include "model/tiny.h"
#include "optim/loss_scaler.h"
#include "train/step/step.h"

static ls_loss_scaler scaler_of(int64_t scale, int64_t interval)
{
    ls_run run = ls_tiny_run();
    ls_loss_scaler s;

    run.precision = LS_PRECISION_FP16;
    run.train.loss_scale = scale;
    run.train.loss_scale_interval = interval;
    ls_loss_scaler_init(&s, &run);
    return s;
}

LS_TEST(scaler_halves_on_overflow_and_doubles_after_good_steps)
{
    /* The example of loss_scaler.h: u is an update that was made, o an overflow. */
    static const char steps[] = "ouuuouuuu";
    static const int scales[] = {64, 32, 32, 32, 64, 32, 32, 32, 64};
    ls_loss_scaler s = scaler_of(64, 3);

    for (int i = 0; steps[i]; i++) {
        LS_CHECK_EQ(s.scale, scales[i]);
        LS_CHECK_EQ(ls_loss_scaler_step(&s, true, steps[i] == 'u'), steps[i] == 'o');
    }
    LS_CHECK_EQ(s.overflows, 2);
    LS_CHECK_EQ(s.good, 1);
}

LS_TEST(scaler_knows_what_rescaling_cannot_fix)
{
    ls_loss_scaler s = scaler_of(2, 1), off;
    ls_run run = ls_tiny_run();

    /* A loss that is not finite, and an overflow where the scale can go no lower. */
    LS_CHECK(!ls_loss_scaler_step(&s, false, false));
    LS_CHECK_EQ(s.scale, 2);
    LS_CHECK(ls_loss_scaler_step(&s, true, false));
    LS_CHECK_EQ(s.scale, 1);
    LS_CHECK(!ls_loss_scaler_step(&s, true, false));
    LS_CHECK_EQ(s.scale, 1);
    LS_CHECK_EQ(s.overflows, 1);
    /* Nor does it grow for ever. */
    for (int i = 0; i < 40; i++)
        LS_CHECK(!ls_loss_scaler_step(&s, true, true));
    LS_CHECK_EQ(s.scale, LS_LOSS_SCALER_MOST);
    /* Other precisions have none. */
    run.train.loss_scale = 64;
    run.precision = LS_PRECISION_BF16;
    ls_loss_scaler_init(&off, &run);
    LS_CHECK(!ls_loss_scaler_step(&off, true, false));
    LS_CHECK_EQ(off.scale, 1);
}

LS_TEST(scaler_is_kept_as_text)
{
    static const char *const bad[] = {" loss_scale=",
                                      " loss_scale=3 good=1 overflows=0",
                                      " loss_scale=4 good=-1 overflows=0",
                                      " loss_scale=4 good=1",
                                      " loss_scale=0 good=0 overflows=0",
                                      " loss_scale=4 good=1 overflows=2 and more"};
    ls_loss_scaler s = scaler_of(1024, 5), back = scaler_of(64, 5), off = {.scale = 1};
    char text[LS_LOSS_SCALER_TEXT], all[200];

    ls_loss_scaler_step(&s, true, false);
    ls_loss_scaler_step(&s, true, true);
    ls_loss_scaler_write(&s, text);
    LS_CHECK_STR(text, " loss_scale=512 good=1 overflows=1");
    snprintf(all, sizeof all, "0123abcd%s", text);
    LS_CHECK_OK(ls_loss_scaler_read(&back, all));
    LS_CHECK(back.scale == s.scale && back.good == s.good && back.overflows == s.overflows);
    LS_CHECK_OK(ls_loss_scaler_read(&back, "0123abcd")); /* of a run without */
    LS_CHECK_EQ(back.scale, 512);
    for (size_t i = 0; i < LS_COUNT(bad); i++)
        LS_CHECK_FAILS(ls_loss_scaler_read(&back, bad[i]), LS_EDATA, "loss scale cannot be read");
    ls_loss_scaler_write(&off, text);
    LS_CHECK_STR(text, "");
}

/* The weights after three steps of this run, whose loss is scaled like this, and the norms of their
 * gradients. */
static float *train(const ls_run *run, double scale, const char *isa, int64_t *n_out,
                    double norms[3])
{
    ls_step_args args = {.run = run};
    int32_t tokens[6 * 13 + 1];
    ls_device *device;
    ls_step *step;
    ls_model model;

    LS_CHECK_OK(ls_device_open(&device, "cpu", 2));
    LS_CHECK_OK(ls_stream_create(&args.stream, device));
    LS_CHECK_OK(ls_kernel_pick(isa, &args.kernels));
    LS_CHECK_OK(ls_model_init(&model, run, 19));
    args.model = &model;
    ls_calls_plan(run, NULL, &args.calls);
    LS_CHECK_OK(ls_step_open(&step, &args));
    float *w = ls_step_state_arrays(step).w;
    for (int i = 0; i < model.n_params; i++)
        ls_model_start(&model.params[i], 5, 0, model.params[i].count, w + model.params[i].first);
    LS_CHECK_OK(ls_step_weights_changed(step));
    ls_tiny_tokens(1, 6 * 13 + 1, 19, tokens);
    ls_step_scale_loss(step, scale);
    for (int i = 0; i < 3; i++) {
        ls_step_clock clock;
        ls_step_result r;
        ls_step_clock_begin(&clock);
        LS_CHECK_OK(ls_step_run(step, &(ls_step_batch){.tokens = tokens, .targets = tokens + 1}, i,
                                1e-2, &clock, &r));
        if (!r.finite)
            ls_test_fail(__FILE__, __LINE__, "step %d, scale %.0f, optimizer %d: loss %g, norm %g",
                         i, scale, (int)run->train.optimizer, r.loss, r.grad_norm);
        norms[i] = r.grad_norm;
    }
    float *out = ls_mem_array((size_t)model.flat, sizeof *out);
    LS_CHECK(out);
    memcpy(out, w, (size_t)model.flat * sizeof *out);
    *n_out = model.flat;
    ls_step_close(step);
    ls_model_release(&model);
    ls_stream_free(args.stream);
    ls_device_close(device);
    return out;
}

/* In fp32, where nothing vanishes, a scaled loss gives the same bits: with clipping, with every
 * optimizer, by all rows. */
LS_TEST(scaler_changes_no_bit_of_fp32)
{
    for (int form = 0; form < 8; form++) {
        ls_run run = ls_tiny_run();
        int64_t n;
        run.train.clip = form % 2 ? 0.01 : 0;
        run.train.optimizer = (ls_optimizer)(form / 2 % 3);
        run.train.momentum = 0.95;
        const char *isa = form < 6 ? "auto" : "reference";
        double norms[2][3];
        float *want = train(&run, 1, isa, &n, norms[0]);
        float *got = train(&run, 4096, isa, &n, norms[1]);
        LS_CHECK(memcmp(norms[0], norms[1], sizeof norms[0]) == 0);
        if (memcmp(want, got, (size_t)n * sizeof *want) != 0)
            ls_test_fail(__FILE__, __LINE__, "form %d: other weights", form);
        ls_mem_free(want);
        ls_mem_free(got);
    }
}

/* In fp16 it is what lets small gradients count: near fp32 with it, further away without. */
LS_TEST(scaler_keeps_fp16_near_fp32)
{
    ls_run run = ls_tiny_run();
    double far[2] = {0, 0}, norms[3];
    int64_t n;

    run.train.loss_scale = 1;
    run.train.eps = 1e-12; /* so that small gradients move weights as much as large ones */
    float *want = train(&run, 1, "reference", &n, norms);
    run.precision = LS_PRECISION_FP16;
    float *scaled = train(&run, 4096, "reference", &n, norms);
    float *plain = train(&run, 0x1p-10, "reference", &n, norms);
    for (int64_t i = 0; i < n; i++) {
        far[0] += fabs((double)scaled[i] - (double)want[i]);
        far[1] += fabs((double)plain[i] - (double)want[i]);
    }
    if (!(far[0] > 0 && far[0] < 0.5 * far[1]))
        ls_test_fail(__FILE__, __LINE__, "scaled %.4g away, unscaled %.4g", far[0], far[1]);
    ls_mem_free(want);
    ls_mem_free(scaled);
    ls_mem_free(plain);
}
