/* step_clock.c -- each nanosecond of a step goes to one of its parts, at the next lap. */
#include "train/step/step_clock.h"

#include "kernel/profile.h"

const char *const ls_step_time_names[LS_STEP_TIMES] = {
    [LS_TIME_DATA] = "data",         [LS_TIME_FORWARD] = "forward",
    [LS_TIME_BACKWARD] = "backward", [LS_TIME_REDUCE] = "reduce",
    [LS_TIME_EXCHANGE] = "exchange", [LS_TIME_OPTIMIZER] = "optimizer",
    [LS_TIME_EVAL] = "eval",         [LS_TIME_CHECKPOINT] = "checkpoint",
    [LS_TIME_OTHER] = "other",
};

void ls_step_clock_begin(ls_step_clock *clock)
{
    *clock = (ls_step_clock){.begun_ns = ls_time_now_ns()};
    clock->mark_ns = clock->begun_ns;
}

void ls_step_clock_lap(ls_step_clock *clock, ls_step_time part)
{
    int64_t now = ls_time_now_ns();

    if (clock->profile)
        ls_profile_lap(clock->profile, (int)part, clock->mark_ns, now);
    clock->parts_ns[part] += now - clock->mark_ns;
    clock->mark_ns = now;
}

int64_t ls_step_clock_wall_ns(const ls_step_clock *clock)
{
    return clock->mark_ns - clock->begun_ns;
}
