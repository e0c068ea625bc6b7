/* clock.c -- laps. */
#include "train/clock.h"

#include "kernel/profile.h"

const char *const ls_part_names[LS_PARTS] = {
    [LS_PART_DATA] = "data",         [LS_PART_FORWARD] = "forward",
    [LS_PART_BACKWARD] = "backward", [LS_PART_REDUCE] = "reduce",
    [LS_PART_EXCHANGE] = "exchange", [LS_PART_OPTIMIZER] = "optimizer",
    [LS_PART_EVAL] = "eval",         [LS_PART_CHECKPOINT] = "checkpoint",
    [LS_PART_OTHER] = "other",
};

void ls_clock_begin(ls_clock *clock)
{
    *clock = (ls_clock){.begun_ns = ls_time_now_ns()};
    clock->mark_ns = clock->begun_ns;
}

void ls_clock_lap(ls_clock *clock, ls_part part)
{
    int64_t now = ls_time_now_ns();

    if (clock->profile)
        ls_profile_lap(clock->profile, (int)part, clock->mark_ns, now);
    clock->parts_ns[part] += now - clock->mark_ns;
    clock->mark_ns = now;
}

int64_t ls_clock_wall_ns(const ls_clock *clock)
{
    return clock->mark_ns - clock->begun_ns;
}
