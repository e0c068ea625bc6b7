/* test_ramp.c -- how many sequences each step has, against counting. */
#include "config/ramp.h"
#include "harness.h"

static ls_run ramp_of(int64_t from, int64_t sequences, int64_t leaf, int64_t steps)
{
    ls_run run = {.name = NULL};

    run.batch.ramp_from = from;
    run.batch.sequences = sequences;
    run.batch.leaf = leaf;
    run.batch.ramp = steps;
    return run;
}

static void check(const ls_run *run)
{
    int64_t samples = 0, before = 0;

    for (int64_t step = 0; step < run->batch.ramp + 5; step++) {
        int64_t n = ls_ramp_sequences(run, step);
        LS_CHECK_EQ(ls_ramp_samples(run, step), samples);
        LS_CHECK(n >= before && n <= run->batch.sequences && n % run->batch.leaf == 0);
        LS_CHECK(step > 0 || run->batch.ramp == 0 || n == run->batch.ramp_from);
        LS_CHECK(step < run->batch.ramp || n == run->batch.sequences);
        LS_CHECK_EQ(ls_ramp_steps(run, samples), step);
        LS_CHECK_EQ(ls_ramp_steps(run, samples + 1), step + 1);
        LS_CHECK_EQ(ls_ramp_steps(run, samples + n), step + 1);
        samples += n;
        before = n;
    }
}

LS_TEST(ramp_counts_every_sample_once)
{
    for (int64_t leaf = 1; leaf <= 3; leaf++)
        for (int64_t from = 1; from <= 7; from++)
            for (int64_t more = 0; more <= 9; more++)
                for (int64_t steps = 0; steps <= 23; steps++) {
                    ls_run run = ramp_of(from * leaf, (from + more) * leaf, leaf, steps);
                    check(&run);
                }
}

LS_TEST(ramp_of_the_header)
{
    static const int64_t sequences[] = {4, 4, 4, 8, 8, 12, 12};
    ls_run run = ramp_of(4, 12, 4, 5);

    for (size_t i = 0; i < LS_COUNT(sequences); i++)
        LS_CHECK_EQ(ls_ramp_sequences(&run, (int64_t)i), sequences[i]);
    LS_CHECK_EQ(ls_ramp_samples(&run, 5), 28);
}

LS_TEST(ramp_of_a_large_run_is_exact)
{
    ls_run run = ramp_of(8, 1048576, 8, 1000000000);
    int64_t at = 123456789, samples = ls_ramp_samples(&run, at);

    LS_CHECK_EQ(ls_ramp_samples(&run, at + 1) - samples, ls_ramp_sequences(&run, at));
    LS_CHECK_EQ(ls_ramp_samples(&run, run.batch.ramp + 1) - ls_ramp_samples(&run, run.batch.ramp),
                1048576);
    /* A straight line: half of what the whole batch would be, and a little. */
    LS_CHECK_NEAR((double)ls_ramp_samples(&run, run.batch.ramp), 0.5 * (1048576.0 + 8) * 1e9,
                  8 * 1e9);
    LS_CHECK_EQ(ls_ramp_steps(&run, samples), at);
    LS_CHECK(ls_ramp_overflows(&run, INT64_MAX / 2));
    LS_CHECK(!ls_ramp_overflows(&run, 1000));
}
