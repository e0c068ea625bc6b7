/* mp_group.c -- how tensors move between the ranks of a model-parallel group.
 *
 * A linear layer y = x W of 2 ranks, W cut by columns and the next layer's U by rows:
 *
 *     rank 0    x W0 = y0     y0 U0 = z0 --.
 *                                          +-- sum: z = z0 + z1 on both: one move for two layers
 *     rank 1    x W1 = y1     y1 U1 = z1 --'
 *
 *     moves     sum (tp), gather and scatter of rows (mesh.sp), shift to the next rank (cp),
 *               deal rows to the ranks of their experts, and back (ep)
 *
 * Between nodes a move that was started goes on while the rank computes. Inside a node it would be
 * the cores that compute which move the bytes: nothing to hide behind, and handing it over costs
 * more than it saves; so it is done at once. A shift is two messages, which are always started: a
 * rank that waited for its neighbours in turn would wait for all of them.
 *
 * Gradients of what several ranks have are many small vectors, scattered over the model: as many as
 * fit are packed into one buffer, and one collective sums them.
 *
 * On a device with a memory of its own moves are collectives of device memory (mp_device.h), or every
 * move passes through the host's memory (staging.h): what is started is copied out in the order of the
 * stream, and exchanged when it is waited for, while the device goes on with what was queued in
 * between. */
#include "parallel/mp_group.h"

#include "base/mem.h"
#include "base/time.h"
#include "parallel/blocking.h"
#include "parallel/mp_device.h"
#include "parallel/staging.h"

/* A dead rank is noticed at once; this is for one that is alive and does not come. */
enum { WAIT_S = 600, PACKED = 64 * 1024, UNDER_WAY = 4, PLACES = 2 };

struct ls_mp_group {
    ls_comm *comm;   /* borrowed */
    ls_comm *shared; /* owned: of the ranks that share a key/value head; NULL: none do */
    ls_collectives collectives;
    ls_comm_request requests[UNDER_WAY][2]; /* by number; */
    bool shifts[UNDER_WAY];                 /* the second is there too */
    int next;                               /* the number of the next one */
    float *packed;                          /* owned, PACKED of them */
    ls_stream *stream;    /* of the device on which tensors lie; NULL: ranks reach them, and */
    ls_staging *staging;  /* owned: they pass through the host, */
    ls_mp_device *device; /* owned: or collectives take them; one of the two */
    ls_collectives_ask staged[PLACES]; /* by place: what is under way */
    int place;                         /* the next one's */
    bool packed_locked;
    int64_t allocated; /* bytes given out, so far */
    int64_t sent, waited_ns;
};

static int64_t deadline(void)
{
    return ls_time_now_ns() + WAIT_S * LS_NS_PER_S;
}

/* 0 .. n-1 in turn. A run has more moves than an int can count. */
static int in_turn(int *next, int n)
{
    int now = *next;

    *next = (now + 1) % n;
    return now;
}

/* Whether ranks are on several nodes. */
static bool overlaps(const ls_comm *comm)
{
    for (int i = 1; i < ls_comm_ranks(comm); i++)
        if (ls_comm_node(comm, i) != ls_comm_node(comm, 0))
            return true;
    return false;
}

static void count_move(ls_mp_group *t, const ls_collectives_ask *ask)
{
    t->sent +=
        ls_collectives_sent(ask->move, ls_comm_ranks(t->comm), ask->n * ls_dtype_bytes(ask->type));
}

/* The collective of a move; counts what it sends. */
static ls_coll coll_of(ls_mp_group *t, const ls_collectives_ask *ask)
{
    static const ls_coll_kind kinds[] = {[LS_COLLECTIVES_SUM] = LS_COLL_ALL_REDUCE,
                                         [LS_COLLECTIVES_GATHER] = LS_COLL_ALL_GATHER,
                                         [LS_COLLECTIVES_SCATTER] = LS_COLL_REDUCE_SCATTER};
    int64_t ranks = ls_comm_ranks(t->comm);
    bool parts = ask->move != LS_COLLECTIVES_SUM;

    LS_BUG_IF(ask->move == LS_COLLECTIVES_SHIFT, "a shift as a collective");
    LS_BUG_IF(parts && ask->n % LS_COLLECTIVES_UNIT != 0, "a move of %lld elements",
              (long long)ask->n);
    count_move(t, ask);
    return (ls_coll){.kind = kinds[ask->move],
                     .op = LS_COLL_SUM,
                     .type = ask->type,
                     .count = parts ? ask->n * ranks : ask->n,
                     .in = ask->from,
                     .out = ask->to};
}

/* To the next rank and from the one before, both on their way. */
static int start_shift(ls_mp_group *t, ls_stream *stream, const ls_collectives_ask *ask)
{
    int rank = ls_comm_rank(t->comm), ranks = ls_comm_ranks(t->comm),
        number = in_turn(&t->next, UNDER_WAY);
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

    t->shifts[number] = false;
    if (ls_comm_start(t->comm, &send, &t->requests[number][0]) != LS_OK) {
        ls_stream_fail(stream);
        return -1;
    }
    count_move(t, ask);
    t->shifts[number] = ls_comm_start(t->comm, &recv, &t->requests[number][1]) == LS_OK;
    if (!t->shifts[number])
        ls_stream_fail(stream);
    return number;
}

/* Also after a failure: no other thread may use the memory when this returns. A communicator that is
 * broken answers at once. */
static void wait_for(ls_mp_group *t, ls_stream *stream, int number)
{
    int64_t begun_ns = ls_time_now_ns();

    for (int i = 0; number >= 0 && i <= t->shifts[number]; i++)
        if (ls_comm_wait(t->comm, t->requests[number][i], deadline()) != LS_OK)
            ls_stream_fail(stream);
    t->waited_ns += ls_time_now_ns() - begun_ns;
}

/* A collective that is made at once. */
static void run_timed(ls_mp_group *t, ls_stream *stream, const ls_coll *coll)
{
    int64_t begun_ns = ls_time_now_ns();

    if (!ls_stream_failed(stream) && ls_comm_run(t->comm, coll, deadline()) != LS_OK)
        ls_stream_fail(stream);
    t->waited_ns += ls_time_now_ns() - begun_ns;
}

/* --- through the host ------------------------------------------------------------------------- */

/* Queue the copy of what this rank brings; a place is free again when its move was waited for. */
static int take_out(ls_mp_group *t, const ls_collectives_ask *ask)
{
    int ranks = ls_comm_ranks(t->comm), place = in_turn(&t->place, PLACES);
    int64_t own = ask->n * ls_dtype_bytes(ask->type);
    int64_t at = ask->move == LS_COLLECTIVES_GATHER ? ls_comm_rank(t->comm) * own : 0;

    t->staged[place] = *ask;
    ls_staging_take(t->staging, place, at, ask->from,
                    ask->move == LS_COLLECTIVES_SCATTER ? ranks * own : own);
    ls_staging_mark(t->staging, place);
    return place;
}

/* The exchange itself, in host memory. */
static void exchange(ls_mp_group *t, ls_stream *stream, const ls_collectives_ask *ask, char *memory)
{
    ls_collectives_ask here = *ask;

    here.from = memory;
    if (ask->move == LS_COLLECTIVES_SHIFT) {
        here.to = memory + ask->n * ls_dtype_bytes(ask->type);
        wait_for(t, stream, start_shift(t, stream, &here));
        return;
    }
    here.to = memory; /* in place: own ranges are where they belong */
    ls_coll coll = coll_of(t, &here);
    run_timed(t, stream, &coll);
}

/* Make the move, and queue the copy of what has come. */
static void bring_in(ls_mp_group *t, ls_stream *stream, int place)
{
    const ls_collectives_ask *ask = &t->staged[place];
    int64_t own = ask->n * ls_dtype_bytes(ask->type);
    int64_t at = ask->move == LS_COLLECTIVES_SCATTER ? ls_comm_rank(t->comm) * own
                 : ask->move == LS_COLLECTIVES_SHIFT ? own
                                                     : 0;

    if (ls_staging_wait(t->staging, place, deadline()) != LS_OK)
        ls_stream_fail(stream);
    if (ls_stream_failed(stream))
        return;
    exchange(t, stream, ask, ls_staging_at(t->staging, place));
    ls_staging_give(t->staging, place, at, ask->to,
                    ask->move == LS_COLLECTIVES_GATHER ? ls_comm_ranks(t->comm) * own : own);
}

/* Tensors lie on the device of this stream from now on. */
static void leave_host(ls_mp_group *t, ls_stream *stream)
{
    const int64_t packed = PACKED * (int64_t)sizeof *t->packed;

    t->stream = stream;
    t->packed_locked = ls_device_host_lock(ls_stream_device(stream), t->packed, packed,
                                           "small sums of a model-parallel group") == LS_OK;
    if (!t->packed_locked)
        ls_err_clear(); /* copies of it are right, too */
}

ls_status ls_mp_group_stage(ls_mp_group *t, ls_stream *stream, int64_t bytes)
{
    ls_status st = ls_staging_open(&t->staging, t->comm, stream, PLACES, bytes,
                                   "tensors on their way to other ranks");

    if (st != LS_OK)
        return st;
    t->collectives.overlaps =
        false; /* one half of a product would wait for the copy of the other */
    leave_host(t, stream);
    return LS_OK;
}

ls_status ls_mp_group_by_device(ls_mp_group *t, const ls_mp_group_device *how)
{
    ls_status st = ls_mp_device_open(&t->device,
                                     &(ls_mp_device_args){.comm = t->comm,
                                                          .shared = t->shared,
                                                          .stream = how->stream,
                                                          .provider = how->provider,
                                                          .axis = how->axis},
                                     deadline());

    if (st != LS_OK)
        return st;
    t->collectives.overlaps = how->halves;
    leave_host(t, how->stream);
    return LS_OK;
}

void ls_mp_group_unstage(ls_mp_group *t)
{
    if (!t || !t->stream)
        return;
    if (t->packed_locked)
        ls_device_host_unlock(ls_stream_device(t->stream), t->packed);
    ls_staging_close(t->staging);
    ls_mp_device_close(t->device);
    t->staging = NULL;
    t->device = NULL;
    t->stream = NULL;
    t->packed_locked = false;
    t->collectives.overlaps = overlaps(t->comm);
}

int64_t ls_mp_group_device_bytes(void)
{
    return ls_mp_device_bytes();
}

void ls_mp_group_set_step(ls_mp_group *t, int64_t step)
{
    if (t && t->device)
        ls_mp_device_set_step(t->device, step);
}

int64_t ls_mp_group_stage_bytes(int64_t bytes)
{
    return ls_staging_bytes(PLACES, bytes);
}

/* --- the table -------------------------------------------------------------------------------- */

static void wait_number(void *context, ls_stream *stream, int number)
{
    ls_mp_group *t = context;

    if (t->device)
        ls_mp_device_wait(t->device, stream, number);
    else if (t->staging && number >= 0)
        bring_in(t, stream, number);
    else
        wait_for(t, stream, number);
}

static void run(void *context, ls_stream *stream, const ls_collectives_ask *ask)
{
    ls_mp_group *t = context;

    if (t->device) {
        count_move(t, ask);
        ls_mp_device_run(t->device, stream, ask);
        return;
    }
    if (t->staging) {
        if (!ls_stream_failed(stream))
            bring_in(t, stream, take_out(t, ask));
        return;
    }
    if (ask->move == LS_COLLECTIVES_SHIFT) {
        if (!ls_stream_failed(stream))
            wait_for(t, stream, start_shift(t, stream, ask));
        return;
    }
    ls_coll coll = coll_of(t, ask);
    run_timed(t, stream, &coll);
}

static int start(void *context, ls_stream *stream, const ls_collectives_ask *ask)
{
    ls_mp_group *t = context;

    if (ls_stream_failed(stream))
        return -1;
    if (t->device) {
        count_move(t, ask);
        return ls_mp_device_start(t->device, stream, ask);
    }
    if (t->staging)
        return take_out(t, ask);
    if (ask->move == LS_COLLECTIVES_SHIFT)
        return start_shift(t, stream, ask);
    if (!t->collectives.overlaps) {
        run(t, stream, ask);
        return -1;
    }
    ls_coll coll = coll_of(t, ask);
    int number = in_turn(&t->next, UNDER_WAY);
    t->shifts[number] = false;
    if (ls_comm_start(t->comm, &coll, &t->requests[number][0]) == LS_OK)
        return number;
    ls_stream_fail(stream);
    return -1;
}

static void count_deal(ls_mp_group *t, const ls_collectives_deal *deal)
{
    int64_t away = 0;

    for (int i = 0; i < ls_comm_ranks(t->comm); i++)
        if (i != ls_comm_rank(t->comm))
            away += deal->sent ? deal->sent[i] : deal->n;
    t->sent += away * ls_dtype_bytes(deal->type);
}

/* Where other ranks reach the memory. */
static void deal_here(ls_mp_group *t, ls_stream *stream, const ls_collectives_deal *deal)
{
    const ls_coll coll = {.kind = LS_COLL_ALL_TO_ALL,
                          .type = deal->type,
                          .count = deal->n,
                          .in = deal->from,
                          .out = deal->to,
                          .in_counts = deal->sent,
                          .out_counts = deal->received};

    count_deal(t, deal);
    run_timed(t, stream, &coll);
}

/* What is dealt out of one array, or into it, without what stays with the rank: where that lies,
 * and where the rest ends. */
typedef struct deal_split {
    int64_t counts[LS_COMM_RANKS];
    int64_t before, own, behind; /* bytes: of ranks before this one, its own, of those behind */
} deal_split;

static void split_deal(const ls_mp_group *t, const ls_collectives_deal *deal, const int64_t *counts,
                       deal_split *out)
{
    int64_t size = ls_dtype_bytes(deal->type);
    int me = ls_comm_rank(t->comm);

    out->before = out->own = out->behind = 0;
    for (int i = 0; i < ls_comm_ranks(t->comm); i++) {
        int64_t *part = i < me ? &out->before : i > me ? &out->behind : &out->own;
        *part += counts[i] * size;
        out->counts[i] = i == me ? 0 : counts[i];
    }
}

/* Tensors of a device: out of the first place, into the second one, which the communicator writes
 * when the stream has come past everything that read it. What a rank keeps stays on the device. */
static void deal_staged(ls_mp_group *t, ls_stream *stream, const ls_collectives_deal *deal)
{
    const char *from = deal->from;
    char *to = deal->to;
    deal_split out, in;

    LS_BUG_IF(!deal->sent, "a deal of as many elements to each rank, on a device");
    split_deal(t, deal, deal->sent, &out);
    split_deal(t, deal, deal->received, &in);
    ls_staging_take(t->staging, 0, 0, from, out.before);
    ls_staging_take(t->staging, 0, out.before, from + out.before + out.own, out.behind);
    ls_staging_mark(t->staging, 0);
    ls_stream_copy(stream, to + in.before, from + out.before, out.own);
    if (ls_staging_wait(t->staging, 0, deadline()) != LS_OK)
        ls_stream_fail(stream);
    if (ls_stream_failed(stream))
        return;
    deal_here(t, stream,
              &(ls_collectives_deal){.type = deal->type,
                                     .from = ls_staging_at(t->staging, 0),
                                     .to = ls_staging_at(t->staging, 1),
                                     .sent = out.counts,
                                     .received = in.counts});
    ls_staging_give(t->staging, 1, 0, to, in.before);
    ls_staging_give(t->staging, 1, in.before, to + in.before + in.own, in.behind);
}

static void deal_out(void *context, ls_stream *stream, const ls_collectives_deal *deal)
{
    ls_mp_group *t = context;

    if (ls_stream_failed(stream))
        return;
    if (!t->device || deal->host) {
        (t->staging && !deal->host ? deal_staged : deal_here)(t, stream, deal);
        return;
    }
    count_deal(t, deal);
    ls_mp_device_deal(t->device, stream, deal);
}

static ls_status alloc(void *context, int64_t bytes, const char *what, void **memory_out)
{
    ls_mp_group *t = context;

    if (t->stream) /* moves reach any memory of the device */
        return ls_device_alloc(ls_stream_device(t->stream), bytes, what, memory_out);
    t->allocated += bytes;
    return ls_comm_alloc(t->comm, bytes, what, memory_out);
}

static void free_memory(void *context, void *memory)
{
    ls_mp_group *t = context;

    if (t->stream)
        ls_device_free(ls_stream_device(t->stream), memory);
    else
        ls_comm_free(t->comm, memory);
}

/* Ranks that share a key/value head lie side by side. */
static ls_status open_shared(ls_mp_group *t, int copies)
{
    int ranks[LS_COMM_RANKS], n = ls_comm_ranks(t->comm);
    int first = ls_comm_rank(t->comm) / copies * copies;

    LS_BUG_IF(copies < 1 || n % copies != 0, "%d ranks, %d copies", n, copies);
    if (copies == 1 || copies == n)
        return LS_OK;
    for (int i = 0; i < copies; i++)
        ranks[i] = first + i;
    return ls_comm_sub(t->comm, ranks, copies, deadline(), &t->shared);
}

ls_status ls_mp_group_open(ls_mp_group **group_out, ls_comm *comm, int copies)
{
    ls_status st = LS_OK;
    ls_mp_group *t = ls_mem_alloc(sizeof *t);
    void *memory;

    if (!t)
        return LS_ENOMEM;
    *t = (ls_mp_group){.comm = comm,
                       .collectives = {.context = t,
                                       .overlaps = overlaps(comm),
                                       .run = run,
                                       .start = start,
                                       .wait = wait_number,
                                       .deal = deal_out,
                                       .alloc = alloc,
                                       .free = free_memory}};
    LS_TRY(st,
           ls_comm_alloc(comm, PACKED * (int64_t)sizeof *t->packed,
                         "small sums of a model-parallel group", &memory),
           out);
    t->packed = memory;
    LS_TRY(st, open_shared(t, copies), out);
    *group_out = t;
out:
    if (st != LS_OK)
        ls_mp_group_close(t);
    return st;
}

void ls_mp_group_close(ls_mp_group *group)
{
    if (!group)
        return;
    ls_mp_group_unstage(group);
    ls_comm_close(group->shared);
    ls_comm_free(group->comm, group->packed);
    ls_mem_free(group);
}

ls_comm *ls_mp_group_comm(const ls_mp_group *group)
{
    return group->comm;
}

int64_t ls_mp_group_waited_ns(const ls_mp_group *group)
{
    return group->waited_ns;
}

const ls_collectives *ls_mp_group_collectives(const ls_mp_group *group)
{
    return &group->collectives;
}

int64_t ls_mp_group_bytes(void)
{
    return (int64_t)sizeof(float) * PACKED + (int64_t)sizeof(ls_mp_group);
}

int64_t ls_mp_group_allocated(const ls_mp_group *group)
{
    return group->allocated;
}

int64_t ls_mp_group_sent(const ls_mp_group *group)
{
    return group->sent;
}

/* --- sums of copies --------------------------------------------------------------------------- */

/* Where a walk through spans of one kind stands. */
typedef struct walk {
    const ls_collectives_span *spans;
    int n, at;
    int64_t done; /* elements of span `at` */
    bool shared;  /* only those that some ranks share, or only those that all have */
} walk;

/* The next stretch of at most `most` elements; 0: there is none. */
static int64_t next(walk *w, const ls_mp_group *t, int64_t most, int64_t *first_out)
{
    int ranks = ls_comm_ranks(t->comm);

    for (; w->at < w->n; w->at++, w->done = 0) {
        const ls_collectives_span *s = &w->spans[w->at];
        bool wanted = s->copies > 1 && (s->copies < ranks) == w->shared;
        int64_t len = wanted ? ls_min_i64(most, s->count - w->done) : 0;
        if (len == 0)
            continue;
        *first_out = s->first + w->done;
        w->done += len;
        return len;
    }
    return 0;
}

/* Pack what fits, or put it back; the walk stands behind it then. */
static int64_t pack(ls_mp_group *t, walk *w, const ls_mp_group_storage *x, bool back)
{
    int64_t used = 0, first;

    for (int64_t len; used < PACKED && (len = next(w, t, PACKED - used, &first)) > 0; used += len)
        x->copy(x->context, first, len, t->packed + used, back);
    return used;
}

/* An array in which elements lie at their places. */
typedef struct plain {
    const ls_mp_group *group;
    float *x;
} plain;

/* ls_mp_group_storage.copy; on a device it is queued. */
static void copy_plain(void *context, int64_t first, int64_t n, float *packed, bool back)
{
    const plain *p = context;
    float *x = p->x + first;
    int64_t bytes = n * (int64_t)sizeof *x;

    if (!p->group->stream)
        memcpy(back ? x : packed, back ? packed : x, (size_t)bytes);
    else if (back)
        ls_stream_copy_in(p->group->stream, x, packed, bytes);
    else
        ls_stream_copy_out(p->group->stream, packed, x, bytes);
}

static ls_status sum_kind(ls_mp_group *t, const ls_mp_group_storage *x, walk w, ls_comm *divided)
{
    ls_comm *comm = w.shared ? t->shared : t->comm;
    ls_status st = LS_OK;

    for (;;) {
        walk back = w;
        int64_t n = pack(t, &w, x, false);
        if (n == 0)
            return LS_OK;
        if (t->stream)
            LS_TRY(st, ls_stream_sync(t->stream, deadline()), out);
        if (divided)
            LS_TRY(st, ls_blocking_reduce(divided, LS_COLL_SUM, LS_F32, t->packed, n, deadline()),
                   out);
        LS_TRY(st, ls_blocking_reduce(comm, LS_COLL_SUM, LS_F32, t->packed, n, deadline()), out);
        t->sent += ls_collectives_sent(LS_COLLECTIVES_SUM, ls_comm_ranks(comm),
                                       n * (int64_t)sizeof(float));
        pack(t, &back, x, true);
    }
out:
    return st;
}

ls_status ls_mp_group_sum_kept(ls_mp_group *group, const ls_mp_group_storage *storage,
                               const ls_collectives_span *spans, int n, ls_comm *divided)
{
    ls_status st = sum_kind(group, storage, (walk){.spans = spans, .n = n}, divided);

    if (st == LS_OK && group->shared)
        st = sum_kind(group, storage, (walk){.spans = spans, .n = n, .shared = true}, divided);
    return st;
}

/* Bytes as by the host: of all elements, whatever is packed together. */
static void count_sums(ls_mp_group *t, const ls_collectives_span *spans, int n)
{
    for (int i = 0; i < n; i++)
        if (spans[i].copies > 1)
            t->sent += ls_collectives_sent(LS_COLLECTIVES_SUM, spans[i].copies,
                                           spans[i].count * (int64_t)sizeof(float));
}

ls_status ls_mp_group_sum(ls_mp_group *group, float *x, const ls_collectives_span *spans, int n,
                          ls_comm *divided)
{
    if (!group->device || divided)
        return ls_mp_group_sum_by_host(group, x, spans, n, divided);
    count_sums(group, spans, n);
    return ls_mp_device_sum(group->device, x, spans, n);
}

ls_status ls_mp_group_sum_by_host(ls_mp_group *group, float *x, const ls_collectives_span *spans,
                                  int n, ls_comm *divided)
{
    plain all = {.group = group, .x = x};

    return ls_mp_group_sum_kept(group, &(ls_mp_group_storage){.copy = copy_plain, .context = &all},
                                spans, n, divided);
}
