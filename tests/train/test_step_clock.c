/* test_step_clock.c -- parts sum to the wall time, to the nanosecond. */
#include <unistd.h>
#include "harness.h"
#include "train/step/step_clock.h"

LS_TEST(clock_parts_sum_to_the_wall)
{
    ls_step_clock clock;
    int64_t sum = 0;

    ls_step_clock_begin(&clock);
    for (int i = 0; i < 3 * LS_STEP_TIMES; i++) {
        usleep(200);
        ls_step_clock_lap(&clock, (ls_step_time)(i % LS_STEP_TIMES));
    }
    for (int i = 0; i < LS_STEP_TIMES; i++) {
        LS_CHECK(clock.parts_ns[i] >= 3 * 200000);
        sum += clock.parts_ns[i];
    }
    LS_CHECK_EQ(sum, ls_step_clock_wall_ns(&clock));
}
