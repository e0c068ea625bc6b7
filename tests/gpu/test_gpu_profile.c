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
