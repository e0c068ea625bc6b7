/* test_cmd_generate.c -- `generate` inside the test's own process. */
#include "base/file.h"
#include "base/mem.h"
#include "cli/capture.h"
#include "harness.h"

/* A model of one step, in the folder m. */
static void train_model(void)
{
    static const char run[] = "model: {family: gpt2, layers: 1, width: 8, heads: 2, context: 16}\n"
                              "data: {text: [builtin:stories], tokenizer: bytes}\n"
                              "batch: {sequences: 2}\n"
                              "train: {steps: 1, lr: 1e-3, warmup: 0}\n"
                              "eval: {every: 0}\n";
    ls_capture c;

    LS_CHECK_OK(ls_file_write_atomic("run.yaml", run, sizeof run - 1));
    LS_CAPTURE(&c, "train", "run.yaml", "--set", "out=m", "--quiet");
    if (c.code != 0)
        ls_test_fail(__FILE__, __LINE__, "training failed: %s", c.err.p);
    ls_capture_release(&c);
}

LS_TEST(generate_survives_every_failing_allocation)
{
    int failed = 0;

    train_model();
    for (uint64_t n = 1;; n += 1 + n / 16) {
        ls_capture c;
        ls_mem_fail_nth(n);
        LS_CAPTURE(&c, "generate", "m", "--prompt", "ab", "--tokens", "3", "--stop", "zzz",
                   "--repetition-penalty", "1.1", "--json");
        ls_mem_fail_nth(0);
        int code = c.code;
        bool told = strstr(c.err.p, "lineshaft: error: ") != NULL;
        ls_capture_release(&c);
        if (code == 0)
            break;
        LS_CHECK_EQ(code, ls_err_exit_code(LS_ENOMEM));
        LS_CHECK(told);
        failed++;
        LS_CHECK(n < 100000);
    }
    LS_CHECK(failed > 10);
}

LS_TEST(generate_refuses_a_prompt_that_does_not_fit_before_it_loads_weights)
{
    ls_capture c;

    train_model();
    LS_CAPTURE(&c, "generate", "m", "--prompt", "seventeen letters");
    LS_CHECK_EQ(c.code, ls_err_exit_code(LS_EUSAGE));
    LS_CHECK(strstr(c.err.p, "the prompt has 17 tokens, but the context holds 16"));
    LS_CHECK_EQ(c.out.len, 0);
    ls_capture_release(&c);
}
