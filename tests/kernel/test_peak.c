/* test_peak.c -- ceilings of bytes: plausible, for every kind of traffic and any size. */
#include "check.h"

#include "base/mem.h"
#include "kernel/peak.h"

LS_TEST_SECONDS(peak_bytes_are_plausible_at_any_size, 60)
{
    const int64_t sizes[] = {0, 1, 100 * LS_KIB + 1, 8 * LS_MIB};
    ls_check c;

    ls_check_begin(&c, 3); /* more threads than many machines have cores */
    for (size_t i = 0; i < LS_COUNT(sizes); i++)
        for (int t = LS_PEAK_ADD; t < LS_PEAK_TRAFFICS; t++) {
            double rate = ls_peak_bytes(c.device, "auto", (ls_peak_traffic)t, sizes[i]);
            LS_CHECK(rate > 1e8 && rate < 1e13);
        }
    LS_CHECK(ls_peak_bytes(c.device, "generic", LS_PEAK_ADD, LS_MIB) > 1e7);
    LS_CHECK(ls_peak_bytes(c.device, "reference", LS_PEAK_READ, LS_MIB) > 1e8);
    LS_CHECK(ls_peak_bytes(c.device, "nothing", LS_PEAK_ADD, LS_MIB) == 0);
    LS_CHECK_EQ(ls_device_used_bytes(c.device), 0);
    ls_check_end(&c);
}

LS_TEST(peak_bytes_are_0_without_memory)
{
    ls_check c;

    ls_check_begin(&c, 1);
    for (int64_t n = 1; n <= 3; n++) {
        ls_mem_fail_nth(n);
        double rate = ls_peak_bytes(c.device, "auto", LS_PEAK_ADD, LS_MIB);
        ls_mem_fail_nth(0);
        LS_CHECK(rate == 0 || rate > 1e8);
        LS_CHECK(n > 1 || rate == 0);
        LS_CHECK_EQ(ls_device_used_bytes(c.device), 0);
    }
    ls_check_end(&c);
}

LS_TEST(peak_level_names_where_bytes_stay)
{
    const char *const order[] = {"L1", "L2", "L3", "memory"};
    size_t at = 0;

    if (strcmp(ls_peak_level(1, 1), "cache") == 0)
        ls_test_skip("this machine does not tell the sizes of its caches");
    LS_CHECK_STR(ls_peak_level(1024, 1), "L1");
    LS_CHECK_STR(ls_peak_level(INT64_MAX, 1), "memory");
    for (int64_t bytes = 1024; bytes < INT64_MAX / 2; bytes *= 2) { /* never back up */
        while (strcmp(order[at], ls_peak_level(bytes, 1)) != 0)
            LS_CHECK(++at < LS_COUNT(order));
    }
    LS_CHECK_STR(ls_peak_level(64 * 1024, 64), "L1"); /* each its own part */
}
