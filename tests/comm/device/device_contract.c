/* device_contract.c -- see device_contract.h. */
#include "comm/device/device_contract.h"

#include "base/mem.h"
#include "comm/coll_case.h"
#include "harness.h"

typedef struct fixture {
    ls_device *device;
    ls_stream *stream;
    ls_device_comm *dc;
    int n, me;
} fixture;

static void *on_device(fixture *f, int64_t bytes)
{
    void *memory;

    LS_CHECK_OK(ls_device_alloc(f->device, ls_max_i64(bytes, 1), "test", &memory));
    return memory;
}

/* One call: numbers to the device, the call, numbers back. */
static void check_call(fixture *f, const ls_call *c)
{
    int64_t bytes = ls_call_bytes(c, f->n, f->me);
    char *in = ls_mem_alloc((size_t)bytes), *out = c->in_place ? in : ls_mem_alloc((size_t)bytes);
    char *din = on_device(f, bytes), *dout = c->in_place ? din : on_device(f, bytes);
    ls_coll coll = ls_call_fill(c, f->n, f->me, in, out);

    ls_stream_copy_in(f->stream, din, in, bytes);
    if (!c->in_place)
        ls_stream_copy_in(f->stream, dout, out, bytes);
    if (coll.in)
        coll.in = din + ((const char *)coll.in - in);
    if (coll.out)
        coll.out = dout + ((char *)coll.out - out);
    LS_CHECK_OK(ls_device_comm_queue(f->dc, f->stream, &coll));
    ls_stream_copy_out(f->stream, out, dout, bytes);
    LS_CHECK_OK(ls_stream_sync(f->stream, ls_test_soon()));
    ls_call_check(c, f->n, f->me, out);
    ls_device_free(f->device, din);
    if (!c->in_place) {
        ls_device_free(f->device, dout);
        ls_mem_free(out);
    }
    ls_mem_free(in);
}

static void all_kinds(fixture *f)
{
    static const ls_coll_kind kinds[] = {LS_COLL_ALL_REDUCE, LS_COLL_REDUCE_SCATTER,
                                         LS_COLL_ALL_GATHER, LS_COLL_BROADCAST,
                                         LS_COLL_ALL_TO_ALL, LS_COLL_GATHER};
    static const int64_t counts[] = {1, 17, 1000, 16 * 3 * 4 * 8, 40000};
    static const ls_dtype types[] = {LS_F32, LS_BF16, LS_F16, LS_U8, LS_I32, LS_F64, LS_I64};

    for (size_t k = 0; k < LS_COUNT(kinds); k++)
        for (size_t i = 0; i < LS_COUNT(counts); i++)
            for (int in_place = 0; in_place < 2; in_place++) {
                const ls_call c = {.kind = kinds[k],
                                   .op = LS_COLL_SUM,
                                   .type = types[(k + i + (size_t)in_place) % 2 ? 0 : i % 7],
                                   .count = counts[i],
                                   .in_place = in_place,
                                   .root = f->n - 1};
                if (kinds[k] == LS_COLL_ALL_TO_ALL && in_place)
                    continue;
                check_call(f, &c);
            }
}

static void all_types_and_operations(fixture *f)
{
    static const ls_dtype types[] = {LS_F32, LS_BF16, LS_F16, LS_F64, LS_I32, LS_I64};
    static const ls_coll_op ops[] = {LS_COLL_SUM, LS_COLL_MAX, LS_COLL_MIN, LS_COLL_MEAN};

    for (size_t t = 0; t < LS_COUNT(types); t++)
        for (size_t o = 0; o < LS_COUNT(ops); o++)
            if (ops[o] != LS_COLL_MEAN || types[t] == LS_F32)
                check_call(f, &(ls_call){.kind = LS_COLL_ALL_REDUCE,
                                         .op = ops[o],
                                         .type = types[t],
                                         .count = 333});
}

/* Every rank sends to every other one and receives, in one group, in an order that would deadlock
 * call by call. */
static void groups(fixture *f)
{
    enum { N = 5000 };
    float *host = ls_mem_array(N, sizeof *host);
    float *out = on_device(f, N * (int64_t)sizeof *out);
    float *in = on_device(f, (int64_t)f->n * N * (int64_t)sizeof *in);

    for (int i = 0; i < N; i++)
        host[i] = (float)(f->me * N + i);
    ls_stream_copy_in(f->stream, out, host, N * (int64_t)sizeof *host);
    LS_CHECK_OK(ls_device_comm_begin(f->dc));
    for (int r = 0; r < f->n; r++)
        if (r != f->me)
            LS_CHECK_OK(ls_device_comm_queue(
                f->dc, f->stream,
                &(ls_coll){
                    .kind = LS_COLL_SEND, .type = LS_F32, .count = N, .in = out, .peer = r}));
    for (int r = f->n - 1; r >= 0; r--)
        if (r != f->me)
            LS_CHECK_OK(ls_device_comm_queue(f->dc, f->stream,
                                             &(ls_coll){.kind = LS_COLL_RECV,
                                                        .type = LS_F32,
                                                        .count = N,
                                                        .out = in + (int64_t)r * N,
                                                        .peer = r}));
    LS_CHECK_OK(ls_device_comm_end(f->dc));
    for (int r = 0; r < f->n; r++) {
        if (r == f->me)
            continue;
        ls_stream_copy_out(f->stream, host, in + (int64_t)r * N, N * (int64_t)sizeof *host);
        LS_CHECK_OK(ls_stream_sync(f->stream, ls_test_soon()));
        for (int i = 0; i < N; i++)
            LS_CHECK_EQ(host[i], (float)(r * N + i));
    }
    ls_device_free(f->device, out);
    ls_device_free(f->device, in);
    ls_mem_free(host);
}

/* Queued in a row without a wait: each reads what the one before has written. */
static void in_order(fixture *f)
{
    enum { N = 4096, TIMES = 12 };
    float *host = ls_mem_array(N, sizeof *host), want = 1;
    float *x = on_device(f, N * (int64_t)sizeof *x);

    for (int i = 0; i < N; i++)
        host[i] = 1;
    ls_stream_copy_in(f->stream, x, host, N * (int64_t)sizeof *host);
    for (int k = 0; k < TIMES; k++, want *= (float)f->n) {
        ls_device_comm_set_step(f->dc, k);
        LS_CHECK_OK(ls_device_comm_queue(
            f->dc, f->stream,
            &(ls_coll){.kind = LS_COLL_ALL_REDUCE, .type = LS_F32, .count = N, .in = x, .out = x}));
    }
    ls_stream_copy_out(f->stream, host, x, N * (int64_t)sizeof *host);
    LS_CHECK_OK(ls_stream_sync(f->stream, ls_test_soon()));
    for (int i = 0; i < N; i++)
        LS_CHECK_EQ(host[i], want);
    ls_device_free(f->device, x);
    ls_mem_free(host);
}

static void refusals(fixture *f)
{
    float *x = on_device(f, 4096);
    ls_coll coll = {.kind = LS_COLL_BARRIER, .type = LS_F32};

    LS_CHECK_FAILS(ls_device_comm_queue(f->dc, f->stream, &coll), LS_EUSAGE, "has no barrier");
    coll = (ls_coll){.kind = LS_COLL_ALL_TO_ALL, .type = LS_F32, .count = 1, .in = x, .out = x};
    if (f->n > 1)
        LS_CHECK_FAILS(ls_device_comm_queue(f->dc, f->stream, &coll), LS_EUSAGE, "in place");
    coll = (ls_coll){.kind = LS_COLL_BROADCAST, .type = LS_F32, .count = 1, .out = x, .peer = f->n};
    LS_CHECK_FAILS(ls_device_comm_queue(f->dc, f->stream, &coll), LS_EUSAGE, "no rank");
    LS_CHECK_OK(ls_device_comm_check(f->dc));
    ls_device_free(f->device, x);
}

void ls_device_contract(ls_comm *comm, ls_device *device, const char *provider)
{
    fixture f = {.device = device, .n = ls_comm_ranks(comm), .me = ls_comm_rank(comm)};
    ls_device_comm_choice choice;

    LS_CHECK_OK(ls_device_comm_choose(comm, device, provider, ls_test_soon(), &choice));
    LS_CHECK_STR(choice.provider, provider);
    LS_CHECK_OK(ls_stream_create(&f.stream, device));
    LS_CHECK_OK(ls_device_comm_open(
        &f.dc,
        &(ls_device_comm_args){
            .comm = comm, .device = device, .provider = choice.provider, .axis = "dp"},
        ls_test_soon()));
    LS_CHECK_STR(ls_device_comm_provider(f.dc), provider);
    LS_CHECK_EQ(ls_device_comm_ranks(f.dc), f.n);
    LS_CHECK_EQ(ls_device_comm_rank(f.dc), f.me);
    all_kinds(&f);
    all_types_and_operations(&f);
    groups(&f);
    in_order(&f);
    refusals(&f);
    ls_device_comm_close(f.dc);
    ls_stream_free(f.stream);
}
