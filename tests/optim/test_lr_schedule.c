/* test_lr_schedule.c -- learning rates at the places where they turn. */
#include "harness.h"
#include "optim/lr_schedule.h"

static ls_run run_with(ls_lr_schedule schedule)
{
    ls_run run = {.name = NULL};

    run.train.lr = 1.0;
    run.train.min_lr = 0.1;
    run.train.warmup = 10;
    run.train.decay = 20;
    run.train.schedule = schedule;
    return run;
}

LS_TEST(schedule_warms_up_in_a_straight_line)
{
    ls_run run = run_with(LS_LR_SCHEDULE_COSINE);

    LS_CHECK_NEAR(ls_lr_schedule_lr(&run, 0, 100), 0.1, 1e-12);
    LS_CHECK_NEAR(ls_lr_schedule_lr(&run, 4, 100), 0.5, 1e-12);
    LS_CHECK_NEAR(ls_lr_schedule_lr(&run, 10, 100), 1.0, 1e-12);
}

LS_TEST(schedule_ends_at_the_lowest_rate)
{
    static const ls_lr_schedule falling[] = {LS_LR_SCHEDULE_COSINE, LS_LR_SCHEDULE_LINEAR,
                                             LS_LR_SCHEDULE_WSD};

    for (size_t i = 0; i < LS_COUNT(falling); i++) {
        ls_run run = run_with(falling[i]);
        double before = 2;
        for (int64_t step = 10; step < 100; step++) {
            double lr = ls_lr_schedule_lr(&run, step, 100);
            LS_CHECK(lr <= before && lr >= 0.1 - 1e-12);
            before = lr;
        }
        LS_CHECK_NEAR(ls_lr_schedule_lr(&run, 99, 100), 0.1, 1e-12);
        LS_CHECK_NEAR(ls_lr_schedule_lr(&run, 500, 100), 0.1, 1e-12);
    }
}

LS_TEST(schedule_wsd_stays_high_until_its_decay)
{
    ls_run run = run_with(LS_LR_SCHEDULE_WSD);

    LS_CHECK_NEAR(ls_lr_schedule_lr(&run, 79, 100), 1.0, 1e-12);
    LS_CHECK(ls_lr_schedule_lr(&run, 85, 100) < 1.0);
}

LS_TEST(schedule_without_an_end_stays_constant)
{
    ls_run run = run_with(LS_LR_SCHEDULE_COSINE);

    LS_CHECK_NEAR(ls_lr_schedule_lr(&run, 123456, 0), 1.0, 1e-12);
    run.train.schedule = LS_LR_SCHEDULE_CONSTANT;
    LS_CHECK_NEAR(ls_lr_schedule_lr(&run, 99, 100), 1.0, 1e-12);
    run.train.warmup = 0;
    LS_CHECK_NEAR(ls_lr_schedule_lr(&run, 0, 100), 1.0, 1e-12);
}

LS_TEST(schedule_follows_the_batch_by_a_rule)
{
    ls_run run = run_with(LS_LR_SCHEDULE_LINEAR);

    run.batch.sequences = 64;
    LS_CHECK_NEAR(ls_lr_schedule_factor(&run), 1.0, 0);
    run.train.lr_base_batch = 4;
    run.train.lr_rule = LS_LR_LINEAR;
    LS_CHECK_NEAR(ls_lr_schedule_factor(&run), 16.0, 0);
    LS_CHECK_NEAR(ls_lr_schedule_lr(&run, 0, 100), 1.6, 1e-12); /* warm-up too */
    LS_CHECK_NEAR(ls_lr_schedule_lr(&run, 10, 100), 16.0, 1e-12);
    LS_CHECK_NEAR(ls_lr_schedule_lr(&run, 99, 100), 1.6, 1e-12);
    run.train.lr_rule = LS_LR_SQRT;
    LS_CHECK_NEAR(ls_lr_schedule_lr(&run, 10, 100), 4.0, 1e-12);
    run.batch.sequences = 1; /* a smaller batch takes smaller steps */
    LS_CHECK_NEAR(ls_lr_schedule_lr(&run, 10, 100), 0.5, 1e-12);
}
