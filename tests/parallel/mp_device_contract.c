/* mp_device_contract.c -- see mp_device_contract.h. */
#include "parallel/mp_device_contract.h"

#include <signal.h>
#include "base/mem.h"
#include "base/time.h"
#include "harness.h"

enum { MOST = 70000, RANKS = 8 }; /* elements of a rank in a move; ranks */

typedef struct fixture {
    ls_stream *stream;
    ls_mp_group *group;
    const ls_collectives *moves;
    int n, me;
    float *from, *to;         /* on the device: MOST x ranks each */
    float *brought, *arrived; /* the same on the host */
} fixture;

static float *on_device(fixture *f)
{
    void *memory;

    LS_CHECK_OK(
        f->moves->alloc(f->moves->context, MOST * f->n * (int64_t)sizeof(float), "test", &memory));
    return memory;
}

static void open_fixture(fixture *f, ls_comm *comm, ls_stream *stream, const char *provider)
{
    ls_device *device = ls_stream_device(stream);
    int64_t before = ls_device_used_bytes(device);

    *f = (fixture){.stream = stream, .n = ls_comm_ranks(comm), .me = ls_comm_rank(comm)};
    LS_CHECK(f->n <= RANKS);
    LS_CHECK_OK(ls_mp_group_open(&f->group, comm, f->n % 2 == 0 ? 2 : 1));
    LS_CHECK_OK(ls_mp_group_by_device(
        f->group, &(ls_mp_group_device){
                      .stream = stream, .provider = provider, .axis = "tp", .halves = true}));
    LS_CHECK_EQ(ls_device_used_bytes(device) - before, ls_mp_group_device_bytes());
    f->moves = ls_mp_group_collectives(f->group);
    LS_CHECK(f->moves->overlaps);
    f->from = on_device(f);
    f->to = on_device(f);
    f->brought = ls_mem_array((size_t)(MOST * f->n), sizeof *f->brought);
    f->arrived = ls_mem_array((size_t)(MOST * f->n), sizeof *f->arrived);
    LS_CHECK(f->brought && f->arrived);
}

static void close_fixture(fixture *f)
{
    f->moves->free(f->moves->context, f->from);
    f->moves->free(f->moves->context, f->to);
    ls_mp_group_close(f->group);
    ls_mem_free(f->brought);
    ls_mem_free(f->arrived);
}

static void copy_in(fixture *f, float *to, const float *x, int64_t n)
{
    ls_stream_copy_in(f->stream, to, x, n * (int64_t)sizeof *x);
}

static void copy_out(fixture *f, const float *from, int64_t n)
{
    ls_stream_copy_out(f->stream, f->arrived, from, n * (int64_t)sizeof *from);
    LS_CHECK_OK(ls_stream_sync(f->stream, ls_test_soon()));
}

/* Element i of what a rank brings: small numbers, whose sums are exact. */
static float brought(int rank, int64_t i)
{
    return (float)((i * 7 + rank * 3) % 16);
}

/* --- moves -------------------------------------------------------------------------------------- */

/* Element i of what this rank should have then. */
static float due(const fixture *f, ls_collectives_move move, int64_t n, int64_t i)
{
    float sum = 0;

    if (move == LS_COLLECTIVES_GATHER)
        return brought((int)(i / n), i % n);
    if (move == LS_COLLECTIVES_SHIFT)
        return brought((f->me + f->n - 1) % f->n, i);
    for (int r = 0; r < f->n; r++)
        sum += brought(r, move == LS_COLLECTIVES_SCATTER ? f->me * n + i : i);
    return sum;
}

static void check_move(fixture *f, ls_collectives_move move, int64_t n, bool starts)
{
    int64_t in = move == LS_COLLECTIVES_SCATTER ? n * f->n : n;
    int64_t out = move == LS_COLLECTIVES_GATHER ? n * f->n : n, all = MOST * f->n;
    int64_t sent = ls_mp_group_sent(f->group);
    bool in_place = move == LS_COLLECTIVES_SUM;
    const ls_collectives_ask ask = {
        .move = move, .type = LS_F32, .from = f->from, .to = in_place ? f->from : f->to, .n = n};

    for (int64_t i = 0; i < all; i++) {
        f->brought[i] = i < in ? brought(f->me, i) : -1;
        f->arrived[i] = -1;
    }
    copy_in(f, f->from, f->brought, all);
    copy_in(f, f->to, f->arrived, all);
    if (starts)
        f->moves->wait(f->moves->context, f->stream,
                       f->moves->start(f->moves->context, f->stream, &ask));
    else
        f->moves->run(f->moves->context, f->stream, &ask);
    LS_CHECK_OK(ls_stream_sync(f->stream, ls_test_soon()));
    copy_out(f, ask.to, all);
    for (int64_t i = 0; i < all; i++)
        LS_CHECK_EQ(f->arrived[i], i < out ? due(f, move, n, i) : -1);
    LS_CHECK_EQ(ls_mp_group_sent(f->group) - sent,
                ls_collectives_sent(move, f->n, n * (int64_t)sizeof(float)));
}

static void all_moves(fixture *f)
{
    static const int64_t whole[] = {1, 17, 1000, MOST}, parts[] = {16, 16 * 7, 16 * 1001};

    for (int starts = 0; starts < 2; starts++) {
        for (size_t i = 0; i < LS_COUNT(whole); i++) {
            check_move(f, LS_COLLECTIVES_SUM, whole[i], starts);
            check_move(f, LS_COLLECTIVES_SHIFT, whole[i], starts);
        }
        for (size_t i = 0; i < LS_COUNT(parts); i++) {
            check_move(f, LS_COLLECTIVES_GATHER, parts[i], starts);
            check_move(f, LS_COLLECTIVES_SCATTER, parts[i], starts);
        }
    }
}

/* Two are under way at a time, in turn with moves of the stream itself, and are waited for in either
 * order: what each reads is written on the stream just before. */
static void two_under_way(fixture *f)
{
    enum { N = 3000, TIMES = 9 };

    for (int k = 0; k < TIMES; k++) {
        int going[2];
        for (int i = 0; i < 2; i++) {
            for (int e = 0; e < N; e++)
                f->brought[i * N + e] = brought(f->me, e + k + i);
            copy_in(f, f->from + i * N, f->brought + i * N, N);
            going[i] = f->moves->start(f->moves->context, f->stream,
                                       &(ls_collectives_ask){.move = LS_COLLECTIVES_SHIFT,
                                                             .type = LS_F32,
                                                             .from = f->from + i * N,
                                                             .to = f->to + i * N,
                                                             .n = N});
            LS_CHECK(going[i] >= 0);
        }
        LS_CHECK(going[0] != going[1]);
        for (int i = 0; i < 2; i++)
            f->moves->wait(f->moves->context, f->stream, going[(i + k) % 2]);
        f->moves->run(f->moves->context, f->stream,
                      &(ls_collectives_ask){.move = LS_COLLECTIVES_SHIFT,
                                            .type = LS_F32,
                                            .from = f->to,
                                            .to = f->to + 2 * N,
                                            .n = 2 * N});
        copy_out(f, f->to, 4 * N);
        for (int e = 0; e < 4 * N; e++)
            LS_CHECK_EQ(f->arrived[e], brought((f->me + 2 * f->n - 1 - e / (2 * N)) % f->n,
                                               e % N + k + e / N % 2));
    }
}

/* --- deals -------------------------------------------------------------------------------------- */

/* What rank r gives rank q: some, many or nothing. */
static int64_t given(int r, int q, int round)
{
    return (r * 5 + q * 3 + round) % 4 == 0 ? 0 : (r + 2 * q + round) % 5 * 111 + q;
}

static void check_deal(fixture *f, int round)
{
    int64_t sent[RANKS], received[RANKS], at = 0;
    const ls_collectives_deal deal = {
        .type = LS_F32, .from = f->from, .to = f->to, .sent = sent, .received = received};

    for (int r = 0; r < f->n; r++) {
        sent[r] = given(f->me, r, round);
        received[r] = given(r, f->me, round);
        for (int64_t i = 0; i < sent[r]; i++)
            f->brought[at++] = brought(f->me * f->n + r, i);
    }
    copy_in(f, f->from, f->brought, at);
    f->moves->deal(f->moves->context, f->stream, &deal);
    copy_out(f, f->to, MOST);
    at = 0;
    for (int r = 0; r < f->n; r++)
        for (int64_t i = 0; i < received[r]; i++)
            LS_CHECK_EQ(f->arrived[at++], brought(r * f->n + f->me, i));
}

/* Counts in the memory of the host go by the host's communicator. */
static void check_counts(fixture *f)
{
    int32_t own[RANKS], come[RANKS];

    for (int r = 0; r < f->n; r++)
        own[r] = f->me * 100 + r;
    f->moves->deal(
        f->moves->context, f->stream,
        &(ls_collectives_deal){.type = LS_I32, .from = own, .to = come, .n = 1, .host = true});
    for (int r = 0; r < f->n; r++)
        LS_CHECK_EQ(come[r], r * 100 + f->me);
}

/* --- sums of copies ----------------------------------------------------------------------------- */

enum { SPANS = 602, EACH = 100 };

/* Long and short ones in turn, more than is packed at a time: of all ranks, of pairs, of one. */
static int64_t make_spans(const fixture *f, ls_collectives_span spans[SPANS])
{
    int64_t at = 0;

    for (int i = 0; i < SPANS; i++) {
        int kind = i % 3, pair = f->n % 2 == 0 ? 2 : 1;
        spans[i] = (ls_collectives_span){.first = at,
                                         .count = i % 300 == 7 ? 20000 : EACH,
                                         .copies = kind == 0   ? f->n
                                                   : kind == 1 ? pair
                                                               : 1};
        at += spans[i].count;
    }
    LS_CHECK(at <= MOST * f->n);
    return at;
}

static void sums(fixture *f)
{
    ls_collectives_span spans[SPANS];
    int64_t n = make_spans(f, spans);

    for (int by_host = 0; by_host < 2; by_host++) {
        for (int64_t i = 0; i < n; i++)
            f->brought[i] = brought(f->me, i);
        copy_in(f, f->from, f->brought, n);
        LS_CHECK_OK((by_host ? ls_mp_group_sum_by_host : ls_mp_group_sum)(f->group, f->from, spans,
                                                                          SPANS, NULL));
        copy_out(f, f->from, n);
        for (int i = 0; i < SPANS; i++)
            for (int64_t e = spans[i].first; e < spans[i].first + spans[i].count; e++) {
                int first = f->me / spans[i].copies * spans[i].copies;
                float want = 0;
                for (int r = first; r < first + spans[i].copies; r++)
                    want += brought(r, e);
                LS_CHECK_EQ(f->arrived[e], want);
            }
    }
}

void mp_device_contract(ls_comm *comm, ls_stream *stream, const char *provider)
{
    fixture f;

    open_fixture(&f, comm, stream, provider);
    all_moves(&f);
    two_under_way(&f);
    for (int round = 0; round < 8; round++) {
        check_counts(&f);
        check_deal(&f, round);
    }
    sums(&f);
    close_fixture(&f);
}

/* --- a rank that dies --------------------------------------------------------------------------- */

void mp_device_loses_rank_1(ls_comm *comm, ls_stream *stream, const char *provider)
{
    int64_t begin, soon = 20 * LS_NS_PER_S;
    fixture f;

    open_fixture(&f, comm, stream, provider);
    ls_mp_group_set_step(f.group, 3);
    begin = ls_time_now_ns();
    for (int i = 0; !ls_stream_failed(stream); i++) {
        const ls_collectives_ask ask = {.move =
                                            i % 2 ? LS_COLLECTIVES_SHIFT : LS_COLLECTIVES_GATHER,
                                        .type = LS_F32,
                                        .from = f.from,
                                        .to = f.to,
                                        .n = 4096};
        if (f.me == 1 && i == 20)
            raise(SIGKILL);
        f.moves->wait(f.moves->context, stream, f.moves->start(f.moves->context, stream, &ask));
        f.moves->run(f.moves->context, stream, &ask);
        LS_CHECK(ls_time_now_ns() - begin < soon);
    }
    LS_CHECK_FAILS(ls_stream_sync(stream, ls_test_soon()), LS_EPEER, "rank 1");
    ls_stream_revive(stream, ls_test_soon());
    copy_in(&f, f.from, f.brought, 100);
    copy_out(&f, f.from, 100);
    close_fixture(&f);
}
