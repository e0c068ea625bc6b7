/* lr_schedule.c -- learning-rate schedules as pure functions of the step. */
#include "optim/lr_schedule.h"

#include <math.h>

double ls_lr_schedule_factor(const ls_run *run)
{
    double times = (double)run->batch.sequences / (double)ls_max_i64(1, run->train.lr_base_batch);

    switch (run->train.lr_rule) {
    case LS_LR_LINEAR:
        return times;
    case LS_LR_SQRT:
        return sqrt(times);
    case LS_LR_NONE:
        break;
    }
    return 1;
}

double ls_lr_schedule_lr(const ls_run *run, int64_t step, int64_t total)
{
    double factor = ls_lr_schedule_factor(run);
    double lr = factor * run->train.lr, low = factor * run->train.min_lr;
    int64_t warmup = run->train.warmup, begin = warmup;

    if (step < warmup)
        return lr * (double)(step + 1) / (double)warmup;
    if (total <= 0 || run->train.schedule == LS_LR_SCHEDULE_CONSTANT)
        return lr;
    if (run->train.schedule == LS_LR_SCHEDULE_WSD) {
        begin = ls_max_i64(warmup, total - run->train.decay);
        if (step < begin)
            return lr;
    }
    double span = (double)ls_max_i64(1, total - 1 - begin);
    double done = fmin(1.0, (double)(step - begin) / span);
    if (run->train.schedule == LS_LR_SCHEDULE_COSINE)
        return low + 0.5 * (lr - low) * (1 + cos(3.14159265358979323846 * done));
    return lr + (low - lr) * done;
}
