/* test_gpu_profile.c -- a profile on a device that works later: times come from its own events. */
#include "gpu/gpu.h"

#include "base/time.h"
#include "kernel/profile.h"
#include "kernel/trace.h"

LS_TEST_SECONDS(gpu_profile_times_rows_by_events, 120)
{
    enum { M = 4096, STEPS = 3, CALLS = 4 };
    static const char *const phases[] = {"forward"};
    ls_profile_figures figures;
    ls_profile *profile = NULL;
    ls_trace trace;
    ls_str text;
    void *x, *w, *y;
    ls_gpu g;

    ls_gpu_open(&g);
    LS_CHECK_OK(ls_device_alloc(g.device, (int64_t)M * M * 4, "x", &x));
    LS_CHECK_OK(ls_device_alloc(g.device, (int64_t)M * M * 4, "w", &w));
    LS_CHECK_OK(ls_device_alloc(g.device, (int64_t)M * M * 4, "y", &y));
    const ls_profile_args args = {
        .stream = g.stream, .kernels = g.k, .phases = phases, .n_phases = 1, .room = 100};
    const ls_linear_fwd linear = {.x = x, .w = w, .y = y, .M = M, .N = M, .K = M};
    g.k->linear_fwd(g.stream, &linear); /* what is chosen on first use */
    ls_gpu_sync(&g);
    LS_CHECK_OK(ls_profile_open(&profile, &args));
    for (int step = 1; step <= STEPS; step++) {
        int64_t begin = ls_time_now_ns();
        ls_profile_begin(profile, step, begin);
        for (int i = 0; i < CALLS; i++)
            ls_profile_kernels(profile)->linear_fwd(g.stream, &linear);
        ls_gpu_sync(&g);
        int64_t end = ls_time_now_ns();
        ls_profile_lap(profile, 0, begin, end);
        LS_CHECK_OK(ls_profile_end(profile, end));
    }
    ls_profile_sum(profile, &figures);
    LS_CHECK_EQ(figures.n_rows, 1);
    LS_CHECK_NEAR(figures.rows[0].calls, CALLS, 0);
    LS_CHECK(figures.rows[0].share > 0.5 && figures.rows[0].share <= 1); /* a step is these calls */
    LS_CHECK(figures.rows[0].rate > 1e12);                               /* not the time to queue */
    ls_str_init(&text);
    ls_profile_trace(profile, &text);
    ls_trace_read(&trace, text.p, text.len);
    LS_CHECK_STR(trace.tracks[1], "device");
    LS_CHECK_EQ(ls_trace_count(&trace, "kernel", "linear_fwd"), STEPS * CALLS);
    LS_CHECK_EQ(ls_trace_find(&trace, "kernel", NULL, 0)->track, 1);
    ls_trace_release(&trace);
    ls_str_release(&text);
    ls_profile_close(profile);
    ls_device_free(g.device, x);
    ls_device_free(g.device, w);
    ls_device_free(g.device, y);
    ls_gpu_close(&g);
}

/* The kernels of two rows, launched by us and by cuBLASLt: each belongs to its row, lies inside of
 * the step, and takes no longer than the row. Where CUPTI is not to be had, this says why. */
LS_TEST_SECONDS(gpu_profile_shows_kernels_inside_of_rows, 120)
{
    enum { M = 2048, STEPS = 3, CALLS = 4 };
    static const char *const phases[] = {"forward"};
    ls_profile_kernel inside[LS_PROFILE_KERNELS];
    ls_profile_figures figures;
    ls_profile *profile = NULL;
    ls_trace trace;
    ls_str text;
    void *x, *w, *y;
    ls_gpu g;

    ls_gpu_open(&g);
    LS_CHECK_OK(ls_device_alloc(g.device, (int64_t)M * M * 4, "x", &x));
    LS_CHECK_OK(ls_device_alloc(g.device, (int64_t)M * M * 4, "w", &w));
    LS_CHECK_OK(ls_device_alloc(g.device, (int64_t)M * M * 4, "y", &y));
    const ls_profile_args args = {.stream = g.stream,
                                  .kernels = g.k,
                                  .phases = phases,
                                  .n_phases = 1,
                                  .room = 1000,
                                  .inside = true};
    const ls_linear_fwd linear = {.x = x, .w = w, .y = y, .M = M, .N = M, .K = M, .type = LS_BF16};
    const ls_fill fill = {.x = y, .value = 1, .n = (int64_t)M * M};
    LS_CHECK_OK(ls_profile_open(&profile, &args));
    const ls_kernels *k = ls_profile_kernels(profile);
    k->linear_fwd(g.stream, &linear); /* what is chosen on first use */
    k->fill(g.stream, &fill);
    ls_gpu_sync(&g);
    for (int step = 1; step <= STEPS; step++) {
        int64_t begin = ls_time_now_ns();
        ls_profile_begin(profile, step, begin);
        for (int i = 0; i < CALLS; i++) {
            k->linear_fwd(g.stream, &linear);
            k->fill(g.stream, &fill);
        }
        ls_gpu_sync(&g);
        int64_t end = ls_time_now_ns();
        ls_profile_lap(profile, 0, begin, end);
        LS_CHECK_OK(ls_profile_end(profile, end));
    }
    ls_profile_stop(profile);
    ls_str_init(&text);
    ls_profile_table(profile, &text);
    printf("%s", text.p);
    if (strstr(text.p, "the kernels inside of rows are not known"))
        ls_test_skip("%s", strstr(text.p, "the kernels inside of rows"));
    ls_profile_sum(profile, &figures);
    LS_CHECK_EQ(figures.n_rows, 2);
    int n = ls_profile_inside(profile, inside);
    for (int r = 0; r < 2; r++) {
        double ms = 0, calls = 0;
        for (int i = 0; i < n; i++)
            if (inside[i].row == (int)figures.rows[r].row) {
                ms += inside[i].ms;
                calls += inside[i].calls;
            }
        LS_CHECK(calls >= CALLS);
        LS_CHECK(ms > 0 && ms <= 1.05 * figures.rows[r].ms);
    }
    ls_str_clear(&text);
    ls_profile_trace(profile, &text);
    ls_trace_read(&trace, text.p, text.len);
    LS_CHECK_STR(trace.tracks[2], "kernels");
    int64_t all = ls_trace_count(&trace, "device", NULL);
    LS_CHECK(all >= 2 * STEPS * CALLS);
    int64_t last = 0;
    for (int i = 0; i < STEPS; i++)
        last = ls_max_i64(last, ls_trace_find(&trace, "step", NULL, i)->end_ns);
    for (int i = 0; i < all; i++) /* clocks agree: nothing after the end, to 0.2 ms */
        LS_CHECK(ls_trace_find(&trace, "device", NULL, i)->end_ns <= last + 200000);
    ls_trace_release(&trace);
    ls_str_release(&text);
    ls_profile_close(profile);
    ls_device_free(g.device, x);
    ls_device_free(g.device, w);
    ls_device_free(g.device, y);
    ls_gpu_close(&g);
}
