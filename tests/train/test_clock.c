/* test_clock.c -- parts sum to the wall time, to the nanosecond. */
#include <unistd.h>
#include "harness.h"
#include "train/clock.h"

LS_TEST(clock_parts_sum_to_the_wall)
{
    ls_clock clock;
    int64_t sum = 0;

    ls_clock_begin(&clock);
    for (int i = 0; i < 3 * LS_PARTS; i++) {
        usleep(200);
        ls_clock_lap(&clock, (ls_part)(i % LS_PARTS));
    }
    for (int i = 0; i < LS_PARTS; i++) {
        LS_CHECK(clock.parts_ns[i] >= 3 * 200000);
        sum += clock.parts_ns[i];
    }
    LS_CHECK_EQ(sum, ls_clock_wall_ns(&clock));
}
