/* mp_device.c -- moves become calls of a device communicator; mp_device.h has the drawing.
 *
 *     move      call
 *     sum       all-reduce
 *     gather    all-gather
 *     scatter   reduce-scatter
 *     shift     a send and a receive, as one call
 *     deal      all-to-all, by counts that the host knows
 *
 * All ranks queue the same calls in the same order, some on the stream of the pass and some on the
 * side: the library keeps the order of calls of a communicator over streams, too.
 *
 * Two events for each move under way: the side waits for the first, the stream for the second. A
 * number is used again after three others, and two are under way at most (collectives.h); recording
 * an event again does not change a wait that was queued before. */
#include "parallel/mp_device.h"

#include "base/mem.h"

enum { UNDER_WAY = 4, PACKED = 64 * 1024, LONG = 16 * 1024 /* elements */ };

struct ls_mp_device {
    ls_mp_device_args args;
    ls_device_comm *dc;            /* owned: of the group, */
    ls_device_comm *shared;        /* owned: of args.shared; NULL: none */
    ls_stream *side;               /* owned: of moves that are started */
    ls_event *complete[UNDER_WAY]; /* owned, by number: what moves is there; */
    ls_event *moved[UNDER_WAY];    /* and it has moved */
    int next;                      /* the number of the next one */
    float *packed;                 /* owned, device: PACKED of them */
};

int64_t ls_mp_device_bytes(void)
{
    return PACKED * (int64_t)sizeof(float);
}

/* --- opening ------------------------------------------------------------------------------------ */

static ls_status open_comm(const ls_mp_device *x, ls_comm *comm, ls_device_comm **dc_out,
                           int64_t deadline_ns)
{
    return ls_device_comm_open(dc_out,
                               &(ls_device_comm_args){.comm = comm,
                                                      .device = ls_stream_device(x->args.stream),
                                                      .provider = x->args.provider,
                                                      .axis = x->args.axis},
                               deadline_ns);
}

static ls_status open_all(ls_mp_device *x, int64_t deadline_ns)
{
    ls_device *device = ls_stream_device(x->args.stream);
    void *memory;
    ls_status st;

    LS_TRY(st, ls_stream_create(&x->side, device), out);
    for (int i = 0; i < UNDER_WAY; i++) {
        LS_TRY(st, ls_event_create(&x->complete[i], device), out);
        LS_TRY(st, ls_event_create(&x->moved[i], device), out);
    }
    LS_TRY(st,
           ls_device_alloc(device, ls_mp_device_bytes(), "small sums of a model-parallel group",
                           &memory),
           out);
    x->packed = memory;
    LS_TRY(st, open_comm(x, x->args.comm, &x->dc, deadline_ns), out);
    if (x->args.shared)
        st = open_comm(x, x->args.shared, &x->shared, deadline_ns);
out:
    return st;
}

ls_status ls_mp_device_open(ls_mp_device **x_out, const ls_mp_device_args *args,
                            int64_t deadline_ns)
{
    ls_mp_device *x = ls_mem_alloc(sizeof *x);
    ls_status st;

    if (!x)
        return ls_fail(LS_ENOMEM, "no memory for the moves of a model-parallel group");
    *x = (ls_mp_device){.args = *args};
    st = open_all(x, deadline_ns);
    if (st == LS_OK)
        *x_out = x;
    else
        ls_mp_device_close(x);
    return st;
}

void ls_mp_device_close(ls_mp_device *x)
{
    if (!x)
        return;
    ls_device_comm_close(x->shared); /* what is queued ends before its stream goes */
    ls_device_comm_close(x->dc);
    for (int i = 0; i < UNDER_WAY; i++) {
        ls_event_free(x->complete[i]);
        ls_event_free(x->moved[i]);
    }
    ls_device_free(ls_stream_device(x->args.stream), x->packed);
    ls_stream_free(x->side);
    ls_mem_free(x);
}

void ls_mp_device_set_step(ls_mp_device *x, int64_t step)
{
    ls_device_comm_set_step(x->dc, step);
    if (x->shared)
        ls_device_comm_set_step(x->shared, step);
}

/* --- moves -------------------------------------------------------------------------------------- */

/* To the next rank and from the one before. */
static ls_status shift(ls_mp_device *x, ls_stream *stream, const ls_collectives_ask *ask)
{
    int rank = ls_device_comm_rank(x->dc), ranks = ls_device_comm_ranks(x->dc);
    ls_coll send = {.kind = LS_COLL_SEND,
                    .type = ask->type,
                    .count = ask->n,
                    .in = ask->from,
                    .peer = (rank + 1) % ranks};
    ls_coll recv = {.kind = LS_COLL_RECV,
                    .type = ask->type,
                    .count = ask->n,
                    .out = ask->to,
                    .peer = (rank + ranks - 1) % ranks};
    ls_status st = ls_device_comm_begin(x->dc);

    if (st != LS_OK)
        return st;
    st = ls_device_comm_queue(x->dc, stream, &send);
    if (st == LS_OK)
        st = ls_device_comm_queue(x->dc, stream, &recv);
    ls_err_record first = *ls_err_last();
    ls_status end = ls_device_comm_end(x->dc);
    return st != LS_OK ? ls_err_adopt(&first) : end;
}

static ls_status queue(ls_mp_device *x, ls_stream *stream, const ls_collectives_ask *ask)
{
    static const ls_coll_kind kinds[] = {[LS_COLLECTIVES_SUM] = LS_COLL_ALL_REDUCE,
                                         [LS_COLLECTIVES_GATHER] = LS_COLL_ALL_GATHER,
                                         [LS_COLLECTIVES_SCATTER] = LS_COLL_REDUCE_SCATTER};
    bool parts = ask->move == LS_COLLECTIVES_GATHER || ask->move == LS_COLLECTIVES_SCATTER;

    LS_BUG_IF(parts && ask->n % LS_COLLECTIVES_UNIT != 0, "a move of %lld elements",
              (long long)ask->n);
    if (ask->move == LS_COLLECTIVES_SHIFT)
        return shift(x, stream, ask);
    return ls_device_comm_queue(
        x->dc, stream,
        &(ls_coll){.kind = kinds[ask->move],
                   .op = LS_COLL_SUM,
                   .type = ask->type,
                   .count = parts ? ask->n * ls_device_comm_ranks(x->dc) : ask->n,
                   .in = ask->from,
                   .out = ask->to});
}

void ls_mp_device_run(ls_mp_device *x, ls_stream *stream, const ls_collectives_ask *ask)
{
    if (!ls_stream_failed(stream) && queue(x, stream, ask) != LS_OK)
        ls_stream_fail(stream);
}

int ls_mp_device_start(ls_mp_device *x, ls_stream *stream, const ls_collectives_ask *ask)
{
    int number = x->next;

    if (ls_stream_failed(stream))
        return -1;
    x->next = (x->next + 1) % UNDER_WAY;
    ls_event_record(x->complete[number], stream);
    ls_stream_wait(x->side, x->complete[number]);
    if (queue(x, x->side, ask) != LS_OK || ls_stream_failed(x->side)) {
        ls_stream_fail(stream);
        return -1;
    }
    ls_event_record(x->moved[number], x->side);
    return number;
}

void ls_mp_device_wait(ls_mp_device *x, ls_stream *stream, int number)
{
    if (number >= 0)
        ls_stream_wait(stream, x->moved[number]);
}

void ls_mp_device_deal(ls_mp_device *x, ls_stream *stream, const ls_collectives_deal *deal)
{
    const ls_coll coll = {.kind = LS_COLL_ALL_TO_ALL,
                          .type = deal->type,
                          .count = deal->n,
                          .in = deal->from,
                          .out = deal->to,
                          .in_counts = deal->sent,
                          .out_counts = deal->received};

    if (!ls_stream_failed(stream) && ls_device_comm_queue(x->dc, stream, &coll) != LS_OK)
        ls_stream_fail(stream);
}

/* --- sums of copies ----------------------------------------------------------------------------- */

static ls_status sum(const ls_mp_device *x, ls_device_comm *dc, float *at, int64_t n)
{
    const ls_coll coll = {
        .kind = LS_COLL_ALL_REDUCE, .type = LS_F32, .count = n, .in = at, .out = at};

    return ls_device_comm_queue(dc, x->args.stream, &coll);
}

/* Whether ranks of this communicator, and no others, have the elements alike. */
static bool wanted(const ls_mp_device *x, const ls_collectives_span *span, bool shared)
{
    bool some = span->copies < ls_device_comm_ranks(x->dc);

    return span->copies > 1 && span->count > 0 && some == shared;
}

static bool packs(const ls_mp_device *x, const ls_collectives_span *span, bool shared)
{
    return wanted(x, span, shared) && span->count <= LONG;
}

/* The short ones of spans from .. end-1, side by side; n: elements of all. */
static ls_status sum_packed(const ls_mp_device *x, float *at, const ls_collectives_span *spans,
                            int from, int end, int64_t n, bool shared)
{
    ls_stream *stream = x->args.stream;
    ls_status st = LS_OK;

    for (int back = 0; back < 2 && n > 0 && st == LS_OK; back++) {
        float *packed = x->packed;
        for (int i = from; i < end; i++) {
            const ls_collectives_span *span = &spans[i];
            if (!packs(x, span, shared))
                continue;
            ls_stream_copy(stream, back ? at + span->first : packed,
                           back ? packed : at + span->first, span->count * (int64_t)sizeof *at);
            packed += span->count;
        }
        if (!back)
            st = sum(x, shared ? x->shared : x->dc, x->packed, n);
    }
    return st;
}

static ls_status sum_kind(const ls_mp_device *x, float *at, const ls_collectives_span *spans, int n,
                          bool shared)
{
    int64_t used = 0;
    int from = 0;
    ls_status st = LS_OK;

    for (int i = 0; i < n; i++) {
        const ls_collectives_span *span = &spans[i];
        if (!wanted(x, span, shared))
            continue;
        if (!packs(x, span, shared)) {
            LS_TRY(st, sum(x, shared ? x->shared : x->dc, at + span->first, span->count), out);
            continue;
        }
        if (used + span->count > PACKED) {
            LS_TRY(st, sum_packed(x, at, spans, from, i, used, shared), out);
            from = i;
            used = 0;
        }
        used += span->count;
    }
    st = sum_packed(x, at, spans, from, n, used, shared);
out:
    return st;
}

ls_status ls_mp_device_sum(ls_mp_device *x, float *at, const ls_collectives_span *spans, int n)
{
    ls_status st = sum_kind(x, at, spans, n, false);

    return st == LS_OK && x->shared ? sum_kind(x, at, spans, n, true) : st;
}
