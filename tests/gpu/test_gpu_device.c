/* test_gpu_device.c -- memory, streams, events, graphs and failures of a GPU; and what a machine
 * without one says. */
#include "gpu/gpu.h"

#include <sys/mman.h>
#include "base/time.h"

LS_TEST(gpu_absent_is_said)
{
    const char *reason = ls_device_unusable("cuda");
    ls_device *device = NULL;

    if (!reason)
        ls_test_skip("there is a GPU");
    LS_CHECK_FAILS(ls_device_open(&device, "cuda", 0), LS_EUSAGE, reason);
    LS_CHECK(!device);
    LS_CHECK_OK(ls_device_open(&device, "auto", 1));
    LS_CHECK(ls_device_describe(device).host_memory);
    LS_CHECK(!ls_device_plugin(device));
    ls_device_close(device);
}

LS_TEST(gpu_copies_and_counts)
{
    ls_gpu g;
    ls_device_info info;
    unsigned char *a, *host;

    ls_gpu_open(&g);
    info = ls_device_describe(g.device);
    LS_CHECK(strncmp(info.name, "cuda: ", 6) == 0 && !info.host_memory && info.graphs);
    LS_CHECK(info.free_bytes > 0 && info.free_bytes <= info.total_bytes && info.fixed_bytes > 0);
    int64_t before = ls_device_used_bytes(g.device);
    LS_CHECK_OK(ls_device_alloc(g.device, 100001, "a", (void **)&a));
    LS_CHECK(ls_device_used_bytes(g.device) >= before + 100001);
    LS_CHECK_OK(ls_device_host_alloc(g.device, 100001, "host", (void **)&host));
    memset(host, 7, 100001);
    ls_stream_copy_out(g.stream, host, a, 100001); /* zeroed memory */
    ls_gpu_sync(&g);
    for (int i = 0; i < 100001; i++)
        LS_CHECK_EQ(host[i], 0);
    for (int i = 0; i < 100001; i++)
        host[i] = (unsigned char)(i * 31);
    ls_stream_copy_in(g.stream, a, host, 100001);
    ls_stream_copy(g.stream, a + 1, a + 50001, 50000);
    ls_stream_copy_out(g.stream, host, a, 100001);
    ls_gpu_sync(&g);
    for (int i = 1; i <= 50000; i++)
        LS_CHECK_EQ(host[i], (unsigned char)((i + 50000) * 31));
    ls_device_host_free(g.device, host, 100001);
    ls_device_free(g.device, a);
    LS_CHECK_EQ(ls_device_used_bytes(g.device), before);
    ls_gpu_close(&g);
}

LS_TEST(gpu_refuses_what_does_not_fit)
{
    ls_gpu g;
    void *a = NULL;

    ls_gpu_open(&g);
    LS_CHECK_FAILS(ls_device_alloc(g.device, INT64_C(1) << 50, "weights", &a), LS_ENOMEM,
                   "for weights");
    LS_CHECK(!a);
    LS_CHECK_OK(ls_device_alloc(g.device, 1000, "after it", &a)); /* the card is fine */
    ls_device_free(g.device, a);
    ls_gpu_close(&g);
}

LS_TEST(gpu_events_and_graphs)
{
    enum { N = 1 << 20 };
    ls_gpu g;
    ls_event *begin, *end;
    ls_graph *graph = NULL;
    double ms = -1;
    float *x, one[4] = {0};

    ls_gpu_open(&g);
    LS_CHECK_OK(ls_device_alloc(g.device, N * 4, "x", (void **)&x));
    LS_CHECK_OK(ls_event_create(&begin, g.device));
    LS_CHECK_OK(ls_event_create(&end, g.device));
    LS_CHECK_OK(ls_graph_begin(g.stream));
    g.k->add(g.stream, &(ls_add){.a = x, .b = x, .out = x, .n = N});
    LS_CHECK_OK(ls_graph_end(g.stream, &graph));
    g.k->fill(g.stream, &(ls_fill){.x = x, .value = 1, .n = N});
    ls_event_record(begin, g.stream);
    for (int i = 0; i < 5; i++)
        ls_graph_launch(graph, g.stream); /* doubles */
    ls_event_record(end, g.stream);
    LS_CHECK_OK(ls_event_sync(end, ls_time_now_ns() + 10 * LS_NS_PER_S));
    LS_CHECK_OK(ls_event_between(begin, end, &ms));
    LS_CHECK(ms > 0 && ms < 1000);
    ls_stream_copy_out(g.stream, one, x + N - 4, sizeof one);
    ls_gpu_sync(&g);
    for (int i = 0; i < 4; i++)
        LS_CHECK_NEAR(one[i], 32, 0);
    ls_graph_free(graph);
    ls_event_free(begin);
    ls_event_free(end);
    ls_device_free(g.device, x);
    ls_gpu_close(&g);
}

/* A wait ends at its deadline, and work goes on afterwards. */
LS_TEST(gpu_waits_end_at_their_deadline)
{
    enum { N = 1 << 28 };
    ls_gpu g;
    float *x;

    ls_gpu_open(&g);
    LS_CHECK_OK(ls_device_alloc(g.device, (int64_t)N * 4, "x", (void **)&x));
    for (int i = 0; i < 500; i++)
        g.k->scale(g.stream, &(ls_scale){.x = x, .value = 1.5f, .n = N});
    int64_t began = ls_time_now_ns();
    LS_CHECK_FAILS(ls_stream_sync(g.stream, began + 10 * LS_NS_PER_MS), LS_EDEADLINE,
                   "the last rows queued: scale, scale");
    LS_CHECK(ls_time_now_ns() - began < 100 * LS_NS_PER_MS);
    ls_gpu_sync(&g);
    ls_device_free(g.device, x);
    ls_gpu_close(&g);
}

/* A token outside the vocabulary fails the stream; nothing after it touches the weights. */
LS_TEST(gpu_reports_a_bad_token)
{
    ls_gpu g;

    ls_gpu_open(&g);
    ls_gpu_begin(&g, LS_F32, 0);
    ls_gpu_tensor tokens = ls_gpu_ints(&g, "tokens", 8, 10), wte = ls_gpu_floats(&g, "wte", 40, 1);
    ls_gpu_tensor y = ls_gpu_floats(&g, "y", 32, 0), w = ls_gpu_floats(&g, "w", 4, 1);
    ls_gpu_tensor m = ls_gpu_floats(&g, "m", 4, 1);
    ls_step_state state = {.lr = 1, .bias1 = 1, .bias2 = 1};
    ls_norm_result result = {.norm = 1, .factor = 1, .bad_block = -1};
    ls_optimizer_span span = {.count = 4, .rate = 1};
    tokens.ints[5] = 77;
    tokens.ints[6] = -3;
    ls_gpu_send(&g, &tokens);
    ls_optimizer_update step = {
        .w = w.device, .m = m.device, .v = m.device, .grad = m.device, .n_spans = 1};
    step.spans = ls_gpu_bytes(&g, "spans", &span, sizeof span).device;
    step.state = ls_gpu_bytes(&g, "state", &state, sizeof state).device;
    step.result = ls_gpu_bytes(&g, "result", &result, sizeof result).device;
    g.k->embed_fwd(g.stream, &(ls_embed_fwd){.tokens = tokens.device,
                                             .wte = wte.device,
                                             .y = y.device,
                                             .M = 8,
                                             .C = 4,
                                             .T = 8,
                                             .V = 10});
    g.k->adamw(g.stream, &step);
    LS_CHECK_FAILS(ls_stream_sync(g.stream, ls_time_now_ns() + 10 * LS_NS_PER_S), LS_EDATA,
                   "token 77 at position 5");
    LS_CHECK_FAILS(ls_stream_sync(g.stream, 0), LS_EDATA, "token 77"); /* for good */
    ls_stream *other; /* the weights are as they were */
    LS_CHECK_OK(ls_stream_create(&other, g.device));
    float now[4];
    ls_stream_copy_out(other, now, w.device, sizeof now);
    LS_CHECK_OK(ls_stream_sync(other, ls_time_now_ns() + 10 * LS_NS_PER_S));
    for (int i = 0; i < 4; i++)
        LS_CHECK_NEAR(now[i], w.host[i], 0);
    ls_stream_free(other);
    ls_gpu_close(&g);
}

LS_TEST(gpu_refuses_other_kernels)
{
    ls_gpu g;
    const ls_kernels *k = NULL;

    ls_gpu_open(&g);
    LS_CHECK_FAILS(ls_kernel_for(g.device, "avx2", &k), LS_EUSAGE, "do not run on device");
    LS_CHECK_OK(ls_kernel_for(g.device, "cuda", &k));
    LS_CHECK(k == g.k);
    LS_CHECK_OK(ls_kernel_for(g.cpu, "generic", &k));
    LS_CHECK_STR(k->name, "generic");
    ls_gpu_close(&g);
}

/* An error of queued work is told at the next sync, with the rows it may have been; after that the
 * card is lost to this process. */
static void break_the_card(const char *hint)
{
    ls_gpu g;
    float *nowhere = (float *)(uintptr_t)4096;

    ls_gpu_open(&g);
    g.k->fill(g.stream, &(ls_fill){.x = (float *)g.block, .n = 100});
    g.k->scale(g.stream, &(ls_scale){.x = nowhere, .value = 2, .n = 100});
    LS_CHECK_FAILS(ls_stream_sync(g.stream, ls_time_now_ns() + 10 * LS_NS_PER_S), LS_EFAIL,
                   "the last rows queued: fill, scale");
    LS_CHECK(strstr(ls_err_last()->text, "illegal memory access"));
    LS_CHECK(strstr(ls_err_last()->hint, hint));
    g.k->fill(g.stream, &(ls_fill){.x = (float *)g.block, .n = 100}); /* dropped */
    LS_CHECK_FAILS(ls_stream_sync(g.stream, 0), LS_EFAIL, "the last rows queued: fill, scale");
}

LS_TEST(gpu_reports_an_error_of_queued_work)
{
    break_the_card("LINESHAFT_CUDA_SYNC=1");
}

LS_TEST(gpu_finds_the_row_that_failed)
{
    setenv("LINESHAFT_CUDA_SYNC", "1", 1);
    break_the_card("The last row named");
}

/* A library that is no plugin of ours is refused with a sentence. */
LS_TEST(gpu_refuses_a_foreign_plugin)
{
    ls_device *device = NULL;

    if (ls_device_unusable("cuda"))
        ls_test_skip("%s", ls_device_unusable("cuda"));
    setenv("LINESHAFT_CUDA_PLUGIN", "/nowhere/plugin.so", 1);
    LS_CHECK_FAILS(ls_device_open(&device, "cuda", 0), LS_EUSAGE, "/nowhere/plugin.so");
    LS_CHECK(strstr(ls_err_last()->hint, "make cuda"));
    setenv("LINESHAFT_CUDA_PLUGIN", "libm.so.6", 1);
    LS_CHECK_FAILS(ls_device_open(&device, "cuda", 0), LS_EUSAGE, "another version");
    LS_CHECK(!device);
}

/* Memory of somebody else's, shared with other processes as ranks share it, is locked for copies
 * and given back; cards are counted on from the first behind the last. */
LS_TEST(gpu_copies_through_shared_memory_and_counts_cards)
{
    enum { BYTES = 3 << 20 };
    ls_gpu g;
    ls_device *other = NULL;
    ls_stream *side = NULL;
    ls_event *filled = NULL, *copied = NULL;
    void *memory;

    ls_gpu_open(&g);
    ls_device_info info = ls_device_describe(g.device);
    LS_CHECK(info.card == 0 && info.cards >= 1);
    unsigned char *shared =
        mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    LS_CHECK(shared != MAP_FAILED);
    LS_CHECK_OK(ls_device_host_lock(g.device, shared, BYTES, "a test"));
    LS_CHECK_OK(ls_device_alloc(g.device, BYTES, "a test", &memory));
    LS_CHECK_OK(ls_stream_create(&side, g.device));
    LS_CHECK_OK(ls_event_create(&filled, g.device));
    LS_CHECK_OK(ls_event_create(&copied, g.device));
    for (int round = 1; round <= 3; round++) {
        g.k->fill(g.stream,
                  &(ls_fill){.x = memory, .value = (float)round, .n = BYTES / sizeof(float)});
        ls_event_record(filled, g.stream);
        ls_stream_wait(side, filled);
        ls_stream_copy_out(side, shared, memory, BYTES);
        ls_event_record(copied, side);
        LS_CHECK_OK(ls_event_sync(copied, ls_time_now_ns() + 60 * LS_NS_PER_S));
        for (size_t i = 0; i < BYTES / sizeof(float); i += 4095)
            LS_CHECK(((const float *)(const void *)shared)[i] == (float)round);
    }
    ls_gpu_sync(&g);
    ls_device_host_unlock(g.device, shared);
    LS_CHECK_EQ(munmap(shared, BYTES), 0);
    ls_event_free(filled);
    ls_event_free(copied);
    ls_stream_free(side);
    ls_device_free(g.device, memory);
    LS_CHECK_OK(
        ls_device_open_with(&other, &(ls_device_args){.kind = "cuda", .card = info.cards + 1}));
    LS_CHECK_EQ(ls_device_describe(other).card, 1 % info.cards);
    ls_device_close(other);
    LS_CHECK_OK(ls_device_open_with(&other, &(ls_device_args){.kind = "cuda"})); /* as before */
    ls_device_close(other);
    ls_gpu_close(&g);
}
