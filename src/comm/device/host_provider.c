/* host_provider.c -- device collectives by the host communicator.
 *
 *     device memory is host memory      the calls of a group start, and all are waited for
 *     a GPU                             copy out | wait for the stream | the same | copy in
 *
 * Places in page-locked memory grow to what the largest group needs, and stay. The call returns when
 * the copies in are queued; the places are written again only behind them, because the next copies
 * out are queued on the same stream and waited for. Another stream is waited for first. */
#include "base/mem.h"
#include "comm/device/device_comm_impl.h"

enum { CALL_S = 600, PLACE = 256 };

typedef struct host_call {
    ls_coll coll;
    int64_t in, out; /* elements */
    int64_t in_at, out_at;
} host_call;

typedef struct host_comm {
    host_call calls[LS_DEVICE_COMM_GROUP];
    ls_comm_request requests[LS_DEVICE_COMM_GROUP];
    int n;
    ls_stream *stream; /* of the group; and of the last one */
    bool direct;       /* device memory is host memory */
    char *places;      /* owned */
    int64_t bytes, needed;
} host_comm;

static const char *host_unusable(ls_device *device, int *version_out, char text_out[160])
{
    (void)device;
    (void)text_out;
    *version_out = 0;
    return NULL;
}

static ls_status host_open(ls_device_comm *dc, const void *id, int64_t deadline_ns)
{
    host_comm *h = ls_mem_alloc(sizeof *h);

    (void)id;
    (void)deadline_ns;
    if (!h)
        return ls_fail(LS_ENOMEM, "no memory for a communicator");
    h->direct = ls_device_describe(dc->args.device).host_memory;
    dc->native = h;
    return LS_OK;
}

static void host_close(ls_device_comm *dc)
{
    host_comm *h = dc->native;

    if (!h)
        return;
    if (h->places) {
        (void)ls_stream_sync(h->stream, ls_time_now_ns() + LS_NS_PER_S); /* it may still be read */
        ls_device_host_free(dc->args.device, h->places, h->bytes);
    }
    ls_mem_free(h);
    dc->native = NULL;
}

static ls_status host_begin(ls_device_comm *dc)
{
    host_comm *h = dc->native;

    h->n = 0;
    h->needed = 0;
    return LS_OK;
}

/* Bytes of a place; in place: one for both. */
static int64_t take_place(host_comm *h, int64_t elements, const ls_coll *coll)
{
    int64_t at = h->needed;

    h->needed += ls_round_up(elements * ls_dtype_bytes(coll->type), PLACE);
    return at;
}

static ls_status host_queue(ls_device_comm *dc, ls_stream *stream, const ls_coll *coll)
{
    host_comm *h = dc->native;
    host_call *call = &h->calls[h->n];
    ls_status st = LS_OK;

    if (h->n == LS_DEVICE_COMM_GROUP)
        return ls_fail(LS_EUSAGE, "more than %d device collectives in a group through the host",
                       LS_DEVICE_COMM_GROUP);
    h->n++;
    *call = (host_call){.coll = *coll};
    ls_coll_spans(coll, dc->ranks, dc->rank, &call->in, &call->out);
    call->in_at = call->out_at =
        take_place(h, coll->in == coll->out ? ls_max_i64(call->in, call->out) : call->in, coll);
    if (coll->in != coll->out)
        call->out_at = take_place(h, call->out, coll);
    if (h->stream && h->stream != stream && !h->direct)
        st = ls_stream_sync(h->stream, ls_time_now_ns() + CALL_S * LS_NS_PER_S);
    h->stream = stream;
    return st;
}

static ls_status grow(ls_device_comm *dc, host_comm *h)
{
    void *memory;
    ls_status st = LS_OK;

    if (h->needed <= h->bytes)
        return LS_OK;
    if (h->places) {
        LS_TRY(st, ls_stream_sync(h->stream, ls_time_now_ns() + CALL_S * LS_NS_PER_S), out);
        ls_device_host_free(dc->args.device, h->places, h->bytes);
        h->places = NULL;
        h->bytes = 0;
    }
    LS_TRY(st, ls_device_host_alloc(dc->args.device, h->needed, "tensors on their way", &memory),
           out);
    h->places = memory;
    h->bytes = h->needed;
out:
    return st;
}

/* In place only the own range is read of a gather, and written of a scatter. */
static void own_range(const ls_device_comm *dc, const ls_coll *c, int64_t *first, int64_t *count)
{
    ls_coll_range(c->count, dc->ranks, dc->rank, first, count);
}

static void copy_out(const ls_device_comm *dc, const host_comm *h, const host_call *call)
{
    const ls_coll *c = &call->coll;
    int64_t size = ls_dtype_bytes(c->type), first = 0, count = call->in;

    if (c->kind == LS_COLL_ALL_GATHER && c->in == c->out)
        own_range(dc, c, &first, &count);
    if (count > 0)
        ls_stream_copy_out(h->stream, h->places + call->in_at + first * size,
                           (const char *)c->in + first * size, count * size);
}

static void copy_in(const ls_device_comm *dc, const host_comm *h, const host_call *call)
{
    const ls_coll *c = &call->coll;
    int64_t size = ls_dtype_bytes(c->type), first = 0, count = call->out;

    if (c->kind == LS_COLL_REDUCE_SCATTER && c->in == c->out)
        own_range(dc, c, &first, &count);
    if (c->kind == LS_COLL_BROADCAST && c->peer == dc->rank && (!c->out || c->in == c->out))
        return;
    if (count > 0)
        ls_stream_copy_in(h->stream, (char *)c->out + first * size,
                          h->places + call->out_at + first * size, count * size);
}

/* Start all, then wait for all: a rank may send and receive in any order. */
static ls_status run_calls(ls_device_comm *dc, host_comm *h)
{
    int64_t deadline_ns =
        ls_time_now_ns() + (dc->args.limit_ns ? dc->args.limit_ns : CALL_S * LS_NS_PER_S);
    ls_status st = LS_OK;

    for (int i = 0; i < h->n; i++) {
        ls_coll coll = h->calls[i].coll;
        if (!h->direct) {
            coll.in = h->places + h->calls[i].in_at;
            coll.out = h->places + h->calls[i].out_at;
        }
        LS_TRY(st, ls_comm_start(dc->args.comm, &coll, &h->requests[i]), out);
    }
    for (int i = 0; i < h->n; i++)
        LS_TRY(st, ls_comm_wait(dc->args.comm, h->requests[i], deadline_ns), out);
out:
    return st;
}

static ls_status host_end(ls_device_comm *dc)
{
    host_comm *h = dc->native;
    ls_status st = LS_OK;

    if (h->n == 0)
        return LS_OK;
    if (!h->direct) {
        LS_TRY(st, grow(dc, h), out);
        for (int i = 0; i < h->n; i++)
            copy_out(dc, h, &h->calls[i]);
    }
    LS_TRY(st, ls_stream_sync(h->stream, ls_time_now_ns() + CALL_S * LS_NS_PER_S), out);
    LS_TRY(st, run_calls(dc, h), out);
    for (int i = 0; i < h->n && !h->direct; i++)
        copy_in(dc, h, &h->calls[i]);
out:
    return st;
}

const ls_device_provider ls_device_comm_host = {.name = "host",
                                                .unusable = host_unusable,
                                                .open = host_open,
                                                .close = host_close,
                                                .begin = host_begin,
                                                .queue = host_queue,
                                                .end = host_end};
