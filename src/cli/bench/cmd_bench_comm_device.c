/* cmd_bench_comm_device.c -- how long collectives of device memory take.
 *
 * As the programs of NVIDIA's nccl-tests do it: calls are queued one behind the other, a row's time
 * is that of all of them divided by their number, and of the ranks the slowest one counts. Bytes are
 * those of a rank's whole buffer: what all_reduce and broadcast carry, what reduce_scatter reads,
 * what all_gather writes, what all_to_all sends in all. Bus bandwidth is bytes / time times what each
 * link carries of them: 2 (n - 1) / n, (n - 1) / n, or 1. */
#include "cli/bench/cmd_bench_comm_device.h"

#include <inttypes.h>
#include "base/time.h"
#include "comm/bound.h"
#include "comm/device/device_comm.h"

enum { LIMIT_S = 120, WARM_CALLS = 3, LEAST_CALLS = 5, MOST_CALLS = 1000 };

typedef struct device_bench {
    const ls_bench_device_args *args;
    ls_device *device;
    ls_stream *stream;
    ls_device_comm *dc;
    ls_device_comm_choice choice;
    void *in, *out;
} device_bench;

static int64_t soon(void)
{
    return ls_time_now_ns() + LIMIT_S * LS_NS_PER_S;
}

/* The number of this rank among those of its machine: its card. */
static int local_rank(ls_comm *comm)
{
    int n = 0, me = ls_comm_rank(comm);

    for (int r = 0; r < me; r++)
        n += ls_comm_node(comm, r) == ls_comm_node(comm, me);
    return n;
}

static ls_status open_all(device_bench *b)
{
    const ls_bench_device_args *a = b->args;
    int64_t most = 4096;
    ls_status st;

    for (int i = 0; i < a->sizes; i++)
        most = ls_max_i64(most, a->bytes[i]);
    LS_TRY(st,
           ls_device_open_with(&b->device,
                               &(ls_device_args){.kind = a->device, .card = local_rank(a->comm)}),
           out);
    LS_TRY(st, ls_stream_create(&b->stream, b->device), out);
    LS_TRY(st, ls_device_comm_choose(a->comm, b->device, a->provider, soon(), &b->choice), out);
    LS_TRY(st,
           ls_device_comm_open(&b->dc,
                               &(ls_device_comm_args){.comm = a->comm,
                                                      .device = b->device,
                                                      .provider = b->choice.provider,
                                                      .axis = "bench"},
                               soon()),
           out);
    LS_TRY(st, ls_device_alloc(b->device, most, "bench buffer", &b->in), out);
    LS_TRY(st, ls_device_alloc(b->device, most, "bench buffer", &b->out), out);
out:
    return st;
}

static void close_all(device_bench *b)
{
    ls_device_comm_close(b->dc);
    if (b->device) {
        ls_device_free(b->device, b->in);
        ls_device_free(b->device, b->out);
    }
    ls_stream_free(b->stream);
    ls_device_close(b->device);
}

static ls_coll call_of(const device_bench *b, ls_coll_kind kind, int64_t bytes)
{
    int n = ls_comm_ranks(b->args->comm);
    int64_t count = bytes / ls_dtype_bytes(b->args->type), unit = 16 * (int64_t)n;
    bool parts = kind == LS_COLL_REDUCE_SCATTER || kind == LS_COLL_ALL_GATHER;
    bool pieces = kind == LS_COLL_ALL_TO_ALL || kind == LS_COLL_GATHER;

    if (parts && count >= unit) /* equal parts are one call of the library */
        count -= count % unit;
    return (ls_coll){.kind = kind,
                     .op = LS_COLL_SUM,
                     .type = b->args->type,
                     .count = pieces ? count / n : count,
                     .in = b->in,
                     .out = b->out};
}

/* Queue this many calls and wait for them: nanoseconds of one, on this rank. */
static ls_status time_calls(device_bench *b, const ls_coll *coll, int64_t calls, double *ns_out)
{
    int64_t begin;
    ls_status st;

    LS_TRY(st,
           ls_comm_run(b->args->comm, &(ls_coll){.kind = LS_COLL_BARRIER, .type = LS_U8}, soon()),
           out);
    begin = ls_time_now_ns();
    for (int64_t i = 0; i < calls; i++)
        LS_TRY(st, ls_device_comm_queue(b->dc, b->stream, coll), out);
    LS_TRY(st, ls_stream_sync(b->stream, soon()), out);
    LS_TRY(st, ls_device_comm_check(b->dc), out);
    *ns_out = (double)(ls_time_now_ns() - begin) / (double)calls;
out:
    return st;
}

static ls_status slowest(device_bench *b, double *number)
{
    return ls_comm_run(b->args->comm,
                       &(ls_coll){.kind = LS_COLL_ALL_REDUCE,
                                  .op = LS_COLL_MAX,
                                  .type = LS_F64,
                                  .count = 1,
                                  .in = number,
                                  .out = number},
                       soon());
}

static void show(const device_bench *b, const ls_coll *coll, int64_t bytes, int64_t calls,
                 double ns)
{
    const ls_bench_device_args *a = b->args;
    int n = ls_comm_ranks(a->comm);
    double alg = (double)bytes / ns, bus = alg * ls_bound_share(coll->kind, n);
    const char *op = ls_coll_kind_name(coll->kind), *type = ls_coll_type_name(coll->type);

    if (a->json)
        fprintf(a->to,
                "{\"op\":\"%s\",\"ranks\":%d,\"type\":\"%s\",\"bytes\":%" PRId64
                ",\"us\":%.3f,\"alg_gbs\":%.4f,\"bus_gbs\":%.4f,\"calls\":%" PRId64
                ",\"provider\":\"%s\"}\n",
                op, n, type, bytes, ns / 1e3, alg, bus, calls, b->choice.provider);
    else
        fprintf(a->to, "%-14s %14" PRId64 " %6s %12.2f %11.3f %11.3f %6" PRId64 "\n", op, bytes,
                type, ns / 1e3, alg, bus, calls);
    fflush(a->to);
}

static ls_status row(device_bench *b, ls_coll_kind kind, int64_t bytes)
{
    ls_coll coll = call_of(b, kind, bytes);
    int64_t size = ls_dtype_bytes(coll.type), calls;
    bool pieces = kind == LS_COLL_ALL_TO_ALL || kind == LS_COLL_GATHER;
    double ns = 0, warm = 0;
    ls_status st;

    if (coll.count == 0)
        return LS_OK;
    LS_TRY(st, time_calls(b, &coll, WARM_CALLS, &ns), out); /* links are made on first use */
    LS_TRY(st, time_calls(b, &coll, WARM_CALLS, &warm), out);
    LS_TRY(st, slowest(b, &warm), out);
    calls = (int64_t)(b->args->seconds * 1e9 / (warm > 1 ? warm : 1));
    calls = ls_max_i64(LEAST_CALLS, ls_min_i64(MOST_CALLS, calls));
    LS_TRY(st, time_calls(b, &coll, calls, &ns), out);
    LS_TRY(st, slowest(b, &ns), out);
    if (b->args->to)
        show(b, &coll, coll.count * size * (pieces ? ls_comm_ranks(b->args->comm) : 1), calls, ns);
out:
    return st;
}

static void show_head(const device_bench *b)
{
    ls_device_info info = ls_device_describe(b->device);

    fprintf(b->args->to, "%d ranks, %s; %s: %s\n", ls_comm_ranks(b->args->comm), info.name,
            b->choice.provider, b->choice.why);
    fprintf(b->args->to, "%-14s %14s %6s %12s %11s %11s %6s\n", "op", "bytes", "type", "us",
            "algbw GB/s", "busbw GB/s", "calls");
    fflush(b->args->to);
}

ls_status ls_bench_comm_device(const ls_bench_device_args *args)
{
    device_bench b = {.args = args};
    ls_status st = open_all(&b);

    if (st == LS_OK && args->to && !args->json)
        show_head(&b);
    for (int o = 0; o < args->n_ops && st == LS_OK; o++)
        for (int i = 0; i < args->sizes && st == LS_OK; i++)
            st = args->ops[o] == LS_COLL_BARRIER ? LS_OK : row(&b, args->ops[o], args->bytes[i]);
    close_all(&b);
    return st;
}
