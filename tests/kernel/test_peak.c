/* test_peak.c -- ceilings of bytes: plausible, for every kind of traffic and any size. */
#include "kernel/kernel_check.h"

#include "base/mem.h"
#include "kernel/peak.h"

/* Once more, so that a test can take smaller sizes. */
#define ls_peak_gpu_of peak_gpu_again
ls_peak_gpu peak_gpu_again(ls_device *device, const ls_kernels *kernels);
#include "kernel/peak_gpu.c"
#undef ls_peak_gpu_of

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

static const ls_kernels *counted_inner;
static int counted;

static void count_linear(ls_stream *stream, const ls_linear_fwd *args)
{
    counted++;
    counted_inner->linear_fwd(stream, args);
}

/* The way a GPU is measured, on a CPU and with less work; the second time it is remembered. */
LS_TEST_SECONDS(peak_gpu_is_measured_once, 60)
{
    const extent small = {96, 64, 3 * LS_MIB + 16, 30, 20};
    ls_kernels counting;
    ls_check c;

    ls_check_begin(&c, 2);
    LS_CHECK_OK(ls_kernel_pick("generic", &counted_inner));
    counting = *counted_inner;
    counting.linear_fwd = count_linear;
    ls_peak_gpu first = remembered(c.device, &counting, &small);
    LS_CHECK(first.bf16_flops > 1e6 && first.bf16_flops < 1e14);
    LS_CHECK(first.f32_flops > 1e6 && first.f32_flops < 1e14);
    LS_CHECK(first.bytes > 1e6 && first.bytes < 1e13);
    LS_CHECK(first.bf16_held > 0 && first.bf16_held <= first.bf16_flops * 1.000001);
    LS_CHECK(counted > 0);
    LS_CHECK_EQ(ls_device_used_bytes(c.device), 0);
    counted = 0;
    ls_peak_gpu again = remembered(c.device, &counting, &small);
    LS_CHECK_EQ(counted, 0);
    LS_CHECK(memcmp(&first, &again, sizeof first) == 0);
    ls_check_end(&c);
}

LS_TEST(peak_gpu_is_0_without_memory)
{
    const extent small = {16, 16, 4096, 0, 0};
    ls_check c;

    LS_CHECK_EQ(setenv("XDG_CACHE_HOME", "/proc/nothing", 1), 0); /* nothing can be remembered */
    ls_check_begin(&c, 1);
    for (uint64_t n = 1; n <= 3; n++) {
        ls_mem_fail_nth(n);
        ls_peak_gpu peak = remembered(c.device, ls_check_reference(), &small);
        ls_mem_fail_nth(0);
        LS_CHECK(peak.bytes == 0 && peak.bf16_flops == 0 && peak.f32_flops == 0);
        LS_CHECK_EQ(ls_device_used_bytes(c.device), 0);
    }
    ls_check_end(&c);
}
