/* test_device.c -- accounting, refusals, copies and failures of a device and its streams. */
#include "harness.h"
#include "base/mem.h"
#include "base/time.h"
#include "device/cpu/cpus.h"
#include "device/device.h"

#include <sys/wait.h>
#include <unistd.h>

static ls_device *open_cpu(int threads)
{
    ls_device *device;

    LS_CHECK_OK(ls_device_open(&device, "cpu", threads));
    return device;
}

LS_TEST(device_kinds)
{
    ls_device *device = NULL;

    LS_CHECK_OK(ls_device_open(&device, "auto", 1));
    LS_CHECK(strncmp(ls_device_describe(device).name, "cpu: ", 5) == 0);
    ls_device_close(device);
    device = NULL;
    LS_CHECK_FAILS(ls_device_open(&device, "tpu", 1), LS_EUSAGE, "there is no device \"tpu\"");
    LS_CHECK(strstr(ls_err_last()->hint, "cpu"));
    LS_CHECK_FAILS(ls_device_open(&device, "", 1), LS_EUSAGE, "there is no device \"\"");
    LS_CHECK_FAILS(ls_device_open(&device, "CPU", 1), LS_EUSAGE, "there is no device \"CPU\"");
    LS_CHECK(!device);
    ls_device_close(NULL);
}

LS_TEST(device_describes_itself)
{
    ls_device *device = open_cpu(3);
    ls_device_info info = ls_device_describe(device);

    LS_CHECK_EQ(info.threads, 3);
    LS_CHECK(strstr(info.name, "3 threads"));
    LS_CHECK(!strchr(info.name, '\n'));
    LS_CHECK(info.host_memory);
    LS_CHECK(info.free_bytes > 0);
    LS_CHECK(info.free_bytes <= info.total_bytes);
    ls_device_close(device);
    device = open_cpu(0);
    LS_CHECK_EQ(ls_device_describe(device).threads, ls_test_cpu_threads());
    ls_device_close(device);
}

/* Where it is worth it, wherever it is possible, or nowhere. */
LS_TEST(device_pins_its_team_as_asked)
{
    const char *why;
    ls_device *device;
    ls_cpus cpus;

    LS_CHECK_OK(ls_cpus_init(&cpus));
    for (int threads = 0; threads <= cpus.threads + 1; threads++)
        for (int how = 0; how < 3; how++) {
            ls_device_args args = {
                .kind = "cpu", .threads = threads, .pinned = how == 1, .unpinned = how == 2};
            int n = threads ? threads : cpus.threads;
            LS_CHECK_OK(ls_device_open_with(&device, &args));
            LS_CHECK_EQ(ls_device_describe(device).threads, n);
            LS_CHECK_EQ(ls_device_describe(device).pinned,
                        how != 2 && ls_cpus_pins(&cpus, n, how == 1, &why) != NULL);
            ls_device_close(device);
        }
    ls_cpus_release(&cpus);
}

LS_TEST(device_counts_what_is_allocated)
{
    ls_device *device = open_cpu(1);
    unsigned char *a, *b;
    void *c;

    LS_CHECK_EQ(ls_device_used_bytes(device), 0);
    LS_CHECK_OK(ls_device_alloc(device, 100000, "weights", (void **)&a));
    int64_t one = ls_device_used_bytes(device);
    LS_CHECK(one >= 100000 && one < 100000 + 4096);
    LS_CHECK_OK(ls_device_alloc(device, 4096, "gradients", (void **)&b));
    LS_CHECK_EQ(ls_device_used_bytes(device), one + 4096);
    LS_CHECK_EQ((uintptr_t)a % 4096, 0);
    LS_CHECK_EQ((uintptr_t)b % 4096, 0);
    for (int i = 0; i < 100000; i++)
        LS_CHECK_EQ(a[i], 0);
    ls_device_free(device, a);
    LS_CHECK_EQ(ls_device_used_bytes(device), 4096);
    LS_CHECK_EQ(ls_device_peak_bytes(device), one + 4096); /* the most so far stays */
    LS_CHECK_OK(ls_device_alloc(device, 0, "nothing", &c));
    LS_CHECK(c);
    ls_device_free(device, c);
    ls_device_free(device, b);
    ls_device_free(device, NULL);
    LS_CHECK_EQ(ls_device_used_bytes(device), 0);
    ls_device_close(device);
}

LS_TEST(device_memory_is_zeroed_also_when_used_again)
{
    ls_device *device = open_cpu(1);

    for (int round = 0; round < 4; round++) {
        unsigned char *p;
        LS_CHECK_OK(ls_device_alloc(device, 8192, "block", (void **)&p));
        for (int i = 0; i < 8192; i++)
            LS_CHECK_EQ(p[i], 0);
        memset(p, 0xff, 8192);
        ls_device_free(device, p);
    }
    ls_device_close(device);
}

LS_TEST(device_refuses_absurd_sizes_and_says_what_is_free)
{
    static const int64_t sizes[] = {INT64_C(1) << 50, INT64_MAX / 2, INT64_MAX - 4095, INT64_MAX};
    ls_device *device = open_cpu(1);

    for (size_t i = 0; i < LS_COUNT(sizes); i++) {
        void *p = &p;
        char asked[64];
        snprintf(asked, sizeof asked,
                 "cannot allocate %.1f MiB for the optimizer: ", (double)sizes[i] / (double)LS_MIB);
        LS_CHECK_FAILS(ls_device_alloc(device, sizes[i], "the optimizer", &p), LS_ENOMEM, asked);
        LS_CHECK(strstr(ls_err_last()->text, " MiB are free"));
        LS_CHECK(p == &p); /* outputs are set only on success */
    }
    LS_CHECK_EQ(ls_device_used_bytes(device), 0);
    LS_CHECK_EQ(ls_device_peak_bytes(device), 0);
    ls_device_close(device);
}

/* Each thread brings scratch memory; a million of them must be a sentence, not the OOM killer. */
LS_TEST(device_without_windows_says_so)
{
    ls_device *device;
    void *base;

    LS_CHECK_OK(ls_device_open(&device, "cpu", 1));
    LS_CHECK_EQ(ls_device_describe(device).window_page, 0);
    LS_CHECK_FAILS(ls_device_window_open(device, 4096, "gradients", &base), LS_EUSAGE,
                   "page by page, which gradients of a pipeline need");
    ls_device_close(device);
}

LS_TEST(device_refuses_absurd_numbers_of_threads)
{
    ls_device *device = NULL;

    LS_CHECK_FAILS(ls_device_open(&device, "cpu", 1000000), LS_ENOMEM, "1000000 threads");
    LS_CHECK_FAILS(ls_device_open(&device, "cpu", INT32_MAX), LS_ENOMEM, "2147483647 threads");
    LS_CHECK(!device);
}

LS_TEST(device_open_survives_every_failing_allocation)
{
    uint64_t n = 1;

    for (;; n++) {
        ls_device *device = NULL;
        ls_mem_fail_nth(n);
        ls_status st = ls_device_open(&device, "cpu", 3);
        if (st == LS_OK) {
            ls_stream *stream = NULL;
            ls_mem_fail_nth(1);
            LS_CHECK_EQ(ls_stream_create(&stream, device), LS_ENOMEM);
            LS_CHECK(!stream);
            ls_device_close(device);
            break;
        }
        LS_CHECK_EQ(st, LS_ENOMEM);
        LS_CHECK(!device);
    }
    LS_CHECK(n > 2);
}

LS_TEST(device_stream_copies_in_order)
{
    ls_device *device = open_cpu(2);
    ls_stream *stream;
    char in[5001], out[5001];
    void *a, *b;

    LS_CHECK_OK(ls_stream_create(&stream, device));
    LS_CHECK(ls_stream_device(stream) == device);
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (char)(i * 7);
    LS_CHECK_OK(ls_device_alloc(device, sizeof in, "a", &a));
    LS_CHECK_OK(ls_device_alloc(device, sizeof in, "b", &b));
    ls_stream_copy_in(stream, a, in, sizeof in);
    ls_stream_copy(stream, b, a, sizeof in);
    ls_stream_copy_out(stream, out, b, sizeof in);
    LS_CHECK_OK(ls_stream_sync(stream, ls_test_soon()));
    LS_CHECK(memcmp(in, out, sizeof in) == 0);
    ls_stream_copy(stream, NULL, NULL, 0); /* nothing to copy is no mistake */
    LS_CHECK_OK(ls_stream_sync(stream, LS_NO_DEADLINE));
    ls_stream_free(stream);
    ls_stream_free(NULL);
    ls_device_free(device, a);
    ls_device_free(device, b);
    ls_device_close(device);
}

LS_TEST(device_stream_failure_is_sticky_and_drops_later_work)
{
    ls_device *device = open_cpu(1);
    ls_stream *stream, *other;
    char out[4] = "old";
    void *a;

    LS_CHECK_OK(ls_stream_create(&stream, device));
    LS_CHECK_OK(ls_stream_create(&other, device));
    LS_CHECK_OK(ls_device_alloc(device, 4, "a", &a));
    LS_CHECK(!ls_stream_failed(stream));
    ls_fail(LS_ENUMERIC, "first cause");
    ls_err_hint("Look there.");
    ls_stream_fail(stream);
    LS_CHECK(ls_stream_failed(stream) && !ls_stream_failed(other));
    ls_fail(LS_EIO, "second cause");
    ls_stream_fail(stream);
    ls_stream_copy_in(stream, a, "new", 4);
    ls_stream_copy(stream, a, a, 0);
    ls_stream_copy_out(stream, out, a, 4);
    ls_err_clear();
    for (int i = 0; i < 2; i++) { /* also the second time */
        LS_CHECK_FAILS(ls_stream_sync(stream, LS_NO_DEADLINE), LS_ENUMERIC, "first cause");
        LS_CHECK_STR(ls_err_last()->hint, "Look there.");
        ls_err_clear();
    }
    LS_CHECK_STR(out, "old");
    LS_CHECK_EQ(*(char *)a, 0);
    LS_CHECK_OK(ls_stream_sync(other, LS_NO_DEADLINE)); /* streams fail apart */
    ls_stream_free(stream);
    ls_stream_free(other);
    ls_device_free(device, a);
    ls_device_close(device);
}

static void fill_scratch(void *context, int64_t index, int worker)
{
    (void)index;
    memset(ls_stream_thread_scratch(context, worker), worker + 1, LS_STREAM_THREAD_BYTES);
}

LS_TEST(device_stream_scratch_belongs_to_one_worker_each)
{
    ls_device *device = open_cpu(3);
    ls_stream *stream;

    LS_CHECK_OK(ls_stream_create(&stream, device));
    LS_CHECK_EQ(ls_pool_threads(ls_stream_pool(stream)), 3);
    for (int w = 0; w < 3; w++) {
        LS_CHECK_EQ((uintptr_t)ls_stream_thread_scratch(stream, w) % 4096, 0);
        fill_scratch(stream, 0, w);
    }
    for (int w = 0; w < 3; w++) {
        const unsigned char *p = ls_stream_thread_scratch(stream, w);
        LS_CHECK_EQ(p[0], w + 1);
        LS_CHECK_EQ(p[LS_STREAM_THREAD_BYTES - 1], w + 1);
    }
    ls_pool_run(ls_stream_pool(stream), fill_scratch, stream, 30);
    ls_stream_free(stream);
    ls_device_close(device);
}

/* Our own mistakes abort. */
static void misuse(int which)
{
    ls_device *device = open_cpu(1);
    void *p;
    int local;

    LS_CHECK_OK(ls_device_alloc(device, 10, "p", &p));
    switch (which) {
    case 0: /* closed with memory in use */
        ls_device_close(device);
        break;
    case 1: /* freed twice */
        ls_device_free(device, p);
        ls_device_free(device, p);
        break;
    case 2: /* not ours */
        ls_device_free(device, &local);
        break;
    case 3: /* a size that has overflowed */
        ls_device_alloc(device, -1, "p", &p);
        break;
    case 4: /* more buffers than the table holds */
        for (int i = 0; i < 2000; i++)
            LS_CHECK_OK(ls_device_alloc(device, 10, "p", &p));
        break;
    }
}

LS_TEST(device_misuse_aborts)
{
    for (int which = 0; which <= 4; which++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            misuse(which);
            _exit(0);
        }
        LS_CHECK_EQ(waitpid(pid, &status, 0), pid);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
            ls_test_fail(__FILE__, __LINE__, "misuse %d did not abort", which);
    }
}

LS_TEST(device_events_on_the_cpu_are_times)
{
    ls_device *device = open_cpu(1);
    ls_stream *stream;
    ls_event *begin, *end;
    double ms = -1;

    LS_CHECK_OK(ls_stream_create(&stream, device));
    LS_CHECK_OK(ls_event_create(&begin, device));
    LS_CHECK_OK(ls_event_create(&end, device));
    LS_CHECK_FAILS(ls_event_between(begin, end, &ms), LS_EFAIL, "not recorded");
    LS_CHECK_OK(ls_event_sync(begin, 0)); /* never recorded: nothing to wait for */
    ls_event_record(begin, stream);
    int64_t until = ls_time_now_ns() + 2 * LS_NS_PER_MS;
    while (ls_time_now_ns() < until)
        ;
    ls_event_record(end, stream);
    ls_stream_wait(stream, end);
    LS_CHECK_OK(ls_event_between(begin, end, &ms));
    LS_CHECK(ms >= 2 && ms < 10000);
    ls_event_free(begin);
    ls_event_free(end);
    ls_event_free(NULL);
    ls_stream_free(stream);
    ls_device_close(device);
}

LS_TEST(device_host_memory_is_zeroed_and_not_counted)
{
    ls_device *device = open_cpu(1);
    unsigned char *p;

    LS_CHECK_OK(ls_device_host_alloc(device, 5000, "input", (void **)&p));
    for (int i = 0; i < 5000; i++)
        LS_CHECK_EQ(p[i], 0);
    LS_CHECK_EQ(ls_device_used_bytes(device), 0);
    ls_device_host_free(device, p, 5000);
    ls_device_host_free(device, NULL, 0);
    LS_CHECK_FAILS(ls_device_host_alloc(device, INT64_C(1) << 60, "input", (void **)&p), LS_ENOMEM,
                   "host memory for input");
    ls_device_close(device);
}

LS_TEST(device_graphs_are_for_gpus)
{
    ls_device *device = open_cpu(1);
    ls_stream *stream;

    LS_CHECK_OK(ls_stream_create(&stream, device));
    LS_CHECK(!ls_device_describe(device).graphs);
    LS_CHECK_FAILS(ls_graph_begin(stream), LS_EUSAGE, "cannot record graphs");
    LS_CHECK(!ls_stream_native(stream) && !ls_device_plugin(device));
    ls_graph_free(NULL);
    ls_stream_free(stream);
    ls_device_close(device);
}

LS_TEST(device_says_why_a_kind_cannot_be_used)
{
    LS_CHECK(!ls_device_unusable("cpu"));
    LS_CHECK_STR(ls_device_unusable("tpu"), "there is no such device");
}
