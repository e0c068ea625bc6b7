/* test_comm.c -- communicators over one node and several: every collective against a plain loop,
 * many in flight, parts of a communicator, memory, bytes. Failures are in test_comm_faults.c. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"
#include "comm/algo/algo.h"
#include "comm/coll_case.h"
#include "comm/comm.h"
#include "comm/node/ranks.h"
#include "comm/transport/tcp_world.h"
#include "comm/worlds.h"

#define SOON ls_test_soon()

static const char *const shapes[] = {"1", "2", "3", "4", "1+1", "1+1+1", "2+2", "1+2"};

static const int64_t counts[] = {0, 1, 17, 1000, 70001};

/* --- every kind, type and operation ----------------------------------------------------------- */

static void try_call(ls_comm *comm, const ls_call *c)
{
    int n = ls_comm_ranks(comm), me = ls_comm_rank(comm);
    size_t bytes = (size_t)ls_call_bytes(c, n, me);
    void *in = ls_mem_alloc(bytes), *out = c->in_place ? in : ls_mem_alloc(bytes);

    LS_CHECK(in && out);
    ls_coll coll = ls_call_fill(c, n, me, in, out);
    if (ls_comm_run(comm, &coll, SOON) != LS_OK)
        ls_test_fail(__FILE__, __LINE__, "%s of %lld (type %d) by %s: %s",
                     ls_coll_kind_name(c->kind), (long long)c->count, (int)c->type,
                     ls_comm_way(comm, &coll), ls_err_last()->text);
    ls_call_check(c, n, me, out);
    if (!c->in_place)
        ls_mem_free(out);
    ls_mem_free(in);
}

static bool has_op(ls_coll_kind kind)
{
    return kind == LS_COLL_ALL_REDUCE || kind == LS_COLL_REDUCE_SCATTER;
}

static void every_call(ls_world *w, ls_comm *comm)
{
    (void)w;
    for (int kind = 0; kind <= LS_COLL_GATHER; kind++)
        for (int type = LS_F32; type <= LS_I8; type++)
            for (int op = LS_COLL_SUM; op <= LS_COLL_MEAN; op++)
                for (size_t i = 0; i < 2 * LS_COUNT(counts); i++) {
                    ls_call c = {.kind = (ls_coll_kind)kind,
                                 .op = (ls_coll_op)op,
                                 .type = (ls_dtype)type,
                                 .count = counts[i / 2],
                                 .in_place = i & 1,
                                 .root = (type + (int)i) % ls_comm_ranks(comm)};
                    if ((op == LS_COLL_MEAN && type >= LS_I32) || (op && !has_op(c.kind)))
                        continue;
                    if (i / 2 == 4 && type != LS_F32 && type != LS_BF16) /* large: these will do */
                        continue;
                    try_call(comm, &c);
                }
    LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, SOON));
}

LS_TEST_SECONDS(comm_does_every_kind_type_and_operation, 240)
{
    size_t stride = (size_t)ls_test_stride(2);

    for (size_t i = stride - 1; i < LS_COUNT(shapes); i += stride)
        ls_world_run(shapes[i], NULL, every_call);
}

/* --- every algorithm -------------------------------------------------------------------------- */

static void every_algo(ls_world *w, ls_comm *comm)
{
    (void)w;
    for (int a = 0; a < ls_algos_count; a++) {
        LS_CHECK_OK(ls_comm_force(comm, ls_algos[a]->name));
        for (int kind = 0; kind <= LS_COLL_GATHER; kind++)
            for (size_t i = 0; i < 2 * LS_COUNT(counts); i++) {
                ls_call c = {.kind = (ls_coll_kind)kind,
                             .op = (ls_coll_op)(i % 4),
                             .type = LS_F32,
                             .count = counts[i / 2],
                             .in_place = i & 1,
                             .root = (a + (int)i) % ls_comm_ranks(comm)};
                if (!(ls_algo_does(ls_algos[a], (ls_coll_kind)kind)))
                    continue;
                ls_coll coll = {.kind = c.kind, .type = c.type, .op = c.op, .count = c.count};
                coll.peer = c.root;
                if (ls_comm_ranks(comm) > 1)
                    LS_CHECK_STR(ls_comm_way(comm, &coll), ls_algos[a]->name);
                try_call(comm, &c);
            }
        LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, SOON));
    }
    LS_CHECK_FAILS(ls_comm_force(comm, "rings"), LS_EUSAGE, "no algorithm \"rings\"");
    LS_CHECK_OK(ls_comm_force(comm, NULL));
    LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, SOON));
}

LS_TEST_SECONDS(comm_takes_the_algorithm_it_is_given, 240)
{
    size_t stride = (size_t)ls_test_stride(2);

    for (size_t i = stride - 1; i < LS_COUNT(shapes); i += stride)
        ls_world_run(shapes[i], NULL, every_algo);
}

static void bad_force(ls_world *w, ls_comm *comm)
{
    uint16_t x[4] = {0};

    (void)w;
    LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, SOON)); /* all are open */
    LS_CHECK_OK(ls_comm_force(comm, "ring"));
    LS_CHECK_FAILS(
        ls_comm_run(comm, &(ls_coll){.type = LS_BF16, .count = 4, .in = x, .out = x}, SOON),
        LS_EUSAGE, "rounds 16-bit sums more than once");
}

LS_TEST(comm_says_what_an_algorithm_cannot_do)
{
    ls_world_run("1+1+1", NULL, bad_force);
}

/* --- the same bits on all ranks --------------------------------------------------------------- */

enum { BITS = 20003 };

static float odd_number(int rank, int i)
{
    return (float)((i * 7919 + rank * 104729) % 10007) * (rank % 2 ? 1e-4F : 1.37F) - 3.3F;
}

static void same_bits(ls_world *w, ls_comm *comm)
{
    int n = ls_comm_ranks(comm);
    float *x = ls_mem_array(BITS, sizeof *x), *all = ls_mem_array((size_t)n * BITS, sizeof *all);

    (void)w;
    LS_CHECK(x && all);
    for (int a = -1; a < ls_algos_count; a++) {
        if (a >= 0 && !(ls_algo_does(ls_algos[a], LS_COLL_ALL_REDUCE)))
            continue;
        LS_CHECK_OK(ls_comm_force(comm, a < 0 ? NULL : ls_algos[a]->name));
        for (int i = 0; i < BITS; i++)
            x[i] = odd_number(ls_comm_rank(comm), i);
        LS_CHECK_OK(ls_comm_run(
            comm, &(ls_coll){.op = LS_COLL_MEAN, .count = BITS, .in = x, .out = x}, SOON));
        LS_CHECK_OK(ls_comm_run(
            comm, &(ls_coll){.kind = LS_COLL_GATHER, .count = BITS, .in = x, .out = all}, SOON));
        for (int r = 1; ls_comm_rank(comm) == 0 && r < n; r++)
            LS_CHECK(memcmp(all, all + (size_t)r * BITS, BITS * sizeof *x) == 0);
    }
    ls_mem_free(x);
    ls_mem_free(all);
}

LS_TEST(comm_gives_all_ranks_the_same_bits)
{
    ls_world_run("3", NULL, same_bits);
    ls_world_run("1+1+1", NULL, same_bits);
    ls_world_run("2+2", NULL, same_bits);
    ls_world_run("1+2", NULL, same_bits);
}

/* --- uneven pieces ---------------------------------------------------------------------------- */

static int64_t uneven(int from, int to)
{
    return (from * 7 + to * 1013) % 5000 * (from != to + 1);
}

static void uneven_pieces(ls_world *w, ls_comm *comm)
{
    int64_t gives[LS_WORLD_RANKS], takes[LS_WORLD_RANKS], in_len = 0, out_len = 0, at = 0;
    int n = ls_comm_ranks(comm), me = ls_comm_rank(comm);

    (void)w;
    for (int i = 0; i < n; i++) {
        in_len += gives[i] = uneven(me, i);
        out_len += takes[i] = uneven(i, me);
    }
    int32_t *in = ls_mem_array((size_t)in_len + 5000, 4);
    int32_t *out = ls_mem_array((size_t)out_len + 40000, 4);
    LS_CHECK(in && out);
    for (int to = 0; to < n; to++)
        for (int64_t i = 0; i < gives[to]; i++)
            in[at++] = (int32_t)(me * 1000000 + to * 10000 + i);
    ls_coll coll = {.kind = LS_COLL_ALL_TO_ALL,
                    .type = LS_I32,
                    .in = in,
                    .out = out,
                    .in_counts = gives,
                    .out_counts = takes};
    LS_CHECK_OK(ls_comm_run(comm, &coll, SOON));
    at = 0;
    for (int from = 0; from < n; from++)
        for (int64_t i = 0; i < takes[from]; i++)
            LS_CHECK_EQ(out[at++], from * 1000000 + me * 10000 + i);
    for (int root = 0; root < n; root++) { /* gather, as much as each has; only the root knows */
        for (int i = 0; i < n; i++)
            takes[i] = uneven(i, root);
        for (int64_t i = 0; i < takes[me]; i++)
            in[i] = (int32_t)(me * 10000 + i);
        coll = (ls_coll){.kind = LS_COLL_GATHER,
                         .type = LS_I32,
                         .count = takes[me],
                         .peer = root,
                         .in = in,
                         .out = me == root ? out : NULL,
                         .out_counts = me == root ? takes : NULL};
        LS_CHECK_OK(ls_comm_run(comm, &coll, SOON));
        at = 0;
        for (int from = 0; me == root && from < n; from++)
            for (int64_t i = 0; i < takes[from]; i++)
                LS_CHECK_EQ(out[at++], from * 10000 + i);
    }
    ls_mem_free(in);
    ls_mem_free(out);
}

LS_TEST(comm_moves_uneven_pieces)
{
    for (size_t i = 0; i < LS_COUNT(shapes); i++)
        ls_world_run(shapes[i], NULL, uneven_pieces);
}

/* --- messages --------------------------------------------------------------------------------- */

enum { MESSAGES = 120 };

static int64_t message_len(int i)
{
    return i % 40 == 7 ? 70001 : i * 37 % 900;
}

/* Many around the ring, sends first or receives first by turns, waited for from the last on. */
static void pass_many(ls_world *w, ls_comm *comm)
{
    int n = ls_comm_ranks(comm), me = ls_comm_rank(comm), from = (me + n - 1) % n;
    ls_comm_request sent[MESSAGES], got[MESSAGES];
    int32_t *in[MESSAGES], *out[MESSAGES];

    (void)w;
    for (int i = 0; i < MESSAGES; i++) {
        int64_t len = message_len(i);
        in[i] = ls_mem_array((size_t)len + 1, 4);
        out[i] = ls_mem_array((size_t)len + 1, 4);
        LS_CHECK(in[i] && out[i]);
        for (int64_t k = 0; k < len; k++)
            in[i][k] = (int32_t)(me * 1000000 + i * 1000 + k);
        ls_coll send = {.kind = LS_COLL_SEND, .type = LS_I32, .count = len, .in = in[i]};
        ls_coll recv = {.kind = LS_COLL_RECV, .type = LS_I32, .count = len, .out = out[i]};
        send.peer = (me + 1) % n;
        recv.peer = from;
        if ((i + me) % 2)
            LS_CHECK_OK(ls_comm_start(comm, &recv, &got[i]));
        LS_CHECK_OK(ls_comm_start(comm, &send, &sent[i]));
        if ((i + me) % 2 == 0)
            LS_CHECK_OK(ls_comm_start(comm, &recv, &got[i]));
    }
    for (int i = MESSAGES - 1; i >= 0; i--) {
        LS_CHECK_OK(ls_comm_wait(comm, got[i], SOON));
        LS_CHECK_OK(ls_comm_wait(comm, sent[i], SOON));
        for (int64_t k = 0; k < message_len(i); k++)
            LS_CHECK_EQ(out[i][k], from * 1000000 + i * 1000 + k);
        ls_mem_free(in[i]);
        ls_mem_free(out[i]);
    }
}

/* Two by two, one call after the other, while collectives go on between. */
static void ping_pong(ls_world *w, ls_comm *comm)
{
    int me = ls_comm_rank(comm), other = me ^ 1;
    int64_t x, sum;

    (void)w;
    for (int i = 0; i < 60 && other < ls_comm_ranks(comm); i++)
        for (int turn = 0; turn < 2; turn++) {
            bool sends = (me + turn) % 2 == 0;
            x = sends ? 1000 * me + i : 0;
            ls_coll coll = {
                .kind = sends ? LS_COLL_SEND : LS_COLL_RECV, .type = LS_I64, .count = 1};
            coll.peer = other;
            coll.in = coll.out = &x;
            LS_CHECK_OK(ls_comm_run(comm, &coll, SOON));
            LS_CHECK_EQ(x, 1000 * (sends ? me : other) + i);
        }
    x = me;
    LS_CHECK_OK(
        ls_comm_run(comm, &(ls_coll){.type = LS_I64, .count = 1, .in = &x, .out = &sum}, SOON));
    LS_CHECK_EQ(sum, ls_comm_ranks(comm) * (ls_comm_ranks(comm) - 1) / 2);
}

enum { HELD = 100 };

/* The first rank listens to all others at a time, with more receives than there can be collectives;
 * they come in any order, and nothing comes twice. */
static void listen_to_all(ls_world *w, ls_comm *comm)
{
    int n = ls_comm_ranks(comm), me = ls_comm_rank(comm), each = HELD / (n - 1), which;
    ls_comm_request requests[HELD];
    int64_t got[HELD], x[HELD];
    int left = 0;

    (void)w;
    for (int i = 0; i < (me == 0 ? each * (n - 1) : each); i++, left++) {
        ls_coll coll = {.kind = me == 0 ? LS_COLL_RECV : LS_COLL_SEND, .type = LS_I64, .count = 1};
        coll.peer = me == 0 ? 1 + i % (n - 1) : 0;
        coll.in = coll.out = me == 0 ? &got[i] : &x[i];
        x[i] = 1000 * me + i;
        LS_CHECK_OK(ls_comm_start(comm, &coll, &requests[i]));
    }
    while (left > 0) {
        LS_CHECK_OK(ls_comm_test_any(comm, requests, left, &which));
        LS_CHECK(which < left);
        if (which >= 0)
            requests[which] = requests[--left];
    }
    LS_CHECK_OK(ls_comm_test_any(comm, requests, 0, &which));
    LS_CHECK_EQ(which, -1);
    for (int i = 0; i < each * (n - 1) && me == 0; i++)
        LS_CHECK_EQ(got[i], 1000 * (1 + i % (n - 1)) + i / (n - 1));
}

LS_TEST(comm_listens_to_all_ranks_at_a_time)
{
    for (size_t i = 1; i < LS_COUNT(shapes); i++)
        ls_world_run(shapes[i], NULL, listen_to_all);
}

LS_TEST(comm_sends_and_receives)
{
    for (size_t i = 1; i < LS_COUNT(shapes); i++) {
        ls_world_run(shapes[i], NULL, pass_many);
        ls_world_run(shapes[i], NULL, ping_pong);
    }
}

/* --- in flight -------------------------------------------------------------------------------- */

enum { FLIGHTS = 100 };

static ls_call flight_call(ls_comm *comm, int i)
{
    static const ls_dtype types[] = {LS_F32, LS_I64, LS_BF16};

    return (ls_call){.kind = (ls_coll_kind)(i % (LS_COLL_GATHER + 1)),
                     .type = types[i % 3],
                     .count = i % 50 == 18 ? 70001 : i * 29 % 1500,
                     .in_place = i % 4 == 1,
                     .root = i % ls_comm_ranks(comm)};
}

static void many_in_flight(ls_world *w, ls_comm *comm)
{
    int n = ls_comm_ranks(comm), me = ls_comm_rank(comm);
    ls_comm_request request[FLIGHTS];
    void *in[FLIGHTS], *out[FLIGHTS];

    (void)w;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < FLIGHTS; i++) {
            ls_call c = flight_call(comm, i);
            size_t bytes = (size_t)ls_call_bytes(&c, n, me);
            in[i] = ls_mem_alloc(bytes);
            out[i] = c.in_place ? in[i] : ls_mem_alloc(bytes);
            LS_CHECK(in[i] && out[i]);
            ls_coll coll = ls_call_fill(&c, n, me, in[i], out[i]);
            LS_CHECK_OK(ls_comm_start(comm, &coll, &request[i]));
        }
        LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, SOON));
        for (int k = 0; k < FLIGHTS; k++) { /* each rank waits in another order */
            int i = (k * 37 + me * 11) % FLIGHTS;
            ls_call c = flight_call(comm, i);
            bool done = false;
            int64_t until = SOON;
            while (i % 5 == 0 && !done && ls_time_now_ns() < until)
                LS_CHECK_OK(ls_comm_test(comm, request[i], &done));
            if (!done)
                LS_CHECK_OK(ls_comm_wait(comm, request[i], until));
            LS_CHECK_FAILS(ls_comm_wait(comm, request[i], until), LS_EUSAGE, "under number");
            ls_call_check(&c, n, me, out[i]);
            if (!c.in_place)
                ls_mem_free(out[i]);
            ls_mem_free(in[i]);
        }
    }
}

LS_TEST_SECONDS(comm_keeps_100_in_flight, 40)
{
    for (size_t i = 0; i < LS_COUNT(shapes); i++)
        ls_world_run(shapes[i], NULL, many_in_flight);
    ls_world_run_threads("1+1+1", NULL, many_in_flight);
}

static void too_many(ls_world *w, ls_comm *comm)
{
    ls_comm_request request[LS_COMM_REQUESTS], more;
    ls_coll barrier = {.kind = LS_COLL_BARRIER};

    (void)w;
    for (int i = 0; i < LS_COMM_REQUESTS; i++)
        LS_CHECK_OK(ls_comm_start(comm, &barrier, &request[i]));
    LS_CHECK_FAILS(ls_comm_start(comm, &barrier, &more), LS_EBUSY, "256 collectives");
    LS_CHECK_OK(ls_comm_wait(comm, request[200], SOON));
    LS_CHECK_OK(ls_comm_start(comm, &barrier, &more));
    LS_CHECK_OK(ls_comm_run(comm, &barrier, SOON)); /* needs none of their places */
    LS_CHECK_FAILS(ls_comm_start(comm, &barrier, &request[200]), LS_EBUSY, "256 collectives");
    for (int i = 0; i < LS_COMM_REQUESTS; i++)
        if (i != 200)
            LS_CHECK_OK(ls_comm_wait(comm, request[i], SOON));
    LS_CHECK_OK(ls_comm_wait(comm, more, SOON));
}

LS_TEST(comm_says_when_too_many_are_in_flight)
{
    ls_world_run("1", NULL, too_many);
    ls_world_run("3", NULL, too_many);
    ls_world_run("1+2", NULL, too_many);
}

/* Rank 0 starts and computes; the others get what they wait for all the same. */
static void in_background(ls_world *w, ls_comm *comm)
{
    atomic_int *ended = w->context;
    int n = ls_comm_ranks(comm);
    ls_comm_request request;
    enum { LEN = 70001 };
    float *x = ls_mem_array(LEN, sizeof *x);

    LS_CHECK(x);
    for (int i = 0; i < LEN; i++)
        x[i] = 1;
    ls_coll coll = {.count = LEN, .in = x, .out = x};
    LS_CHECK_OK(ls_comm_start(comm, &coll, &request));
    if (ls_comm_rank(comm) > 0) {
        LS_CHECK_OK(ls_comm_wait(comm, request, SOON));
        atomic_fetch_add(ended, 1);
    } else {
        int64_t until = SOON;
        while (atomic_load(ended) < n - 1 && ls_time_now_ns() < until)
            usleep(1000);
        LS_CHECK_EQ(atomic_load(ended), n - 1);
        LS_CHECK_OK(ls_comm_wait(comm, request, SOON));
        atomic_store(ended, 0);
    }
    LS_CHECK(x[0] == (float)n && x[LEN - 1] == (float)n);
    ls_mem_free(x);
}

LS_TEST(comm_moves_while_nobody_waits)
{
    atomic_int *ended = ls_ranks_shared(sizeof *ended);

    for (size_t i = 1; i < LS_COUNT(shapes); i++)
        ls_world_run(shapes[i], ended, in_background);
}

/* --- two threads ------------------------------------------------------------------------------ */

typedef struct user {
    ls_comm *comm;
    int rounds;
    bool starts;
} user;

static void *use(void *arg)
{
    user *u = arg;
    int n = ls_comm_ranks(u->comm);
    int64_t x[33];

    for (int k = 0; k < u->rounds; k++) {
        ls_comm_request request;
        for (int i = 0; i < 33; i++)
            x[i] = ls_comm_rank(u->comm) + k + i;
        ls_coll coll = {.type = LS_I64, .count = 33, .in = x, .out = x};
        if (u->starts) {
            LS_CHECK_OK(ls_comm_start(u->comm, &coll, &request));
            LS_CHECK_OK(ls_comm_wait(u->comm, request, SOON));
        } else {
            LS_CHECK_OK(ls_comm_run(u->comm, &coll, SOON));
        }
        for (int i = 0; i < 33; i++)
            LS_CHECK_EQ(x[i], n * (n - 1) / 2 + n * (k + i));
    }
    return NULL;
}

static void two_threads(ls_world *w, ls_comm *comm)
{
    int all[LS_WORLD_RANKS];
    ls_comm *twin = NULL;
    pthread_t thread;

    (void)w;
    for (int i = 0; i < ls_comm_ranks(comm); i++)
        all[i] = i;
    LS_CHECK_OK(ls_comm_sub(comm, all, ls_comm_ranks(comm), SOON, &twin));
    for (int starts = 0; starts < 2; starts++) {
        user a = {comm, 150, starts}, b = {twin, 150, true};
        LS_CHECK_EQ(pthread_create(&thread, NULL, use, &a), 0);
        use(&b);
        pthread_join(thread, NULL);
    }
    ls_comm_close(twin);
}

LS_TEST_SECONDS(comm_serves_two_threads_with_one_communicator_each, 30)
{
    ls_world_run("2", NULL, two_threads);
    ls_world_run("1+1", NULL, two_threads);
    ls_world_run("2+2", NULL, two_threads);
    ls_world_run_threads("1+1", NULL, two_threads);
}

/* --- parts ------------------------------------------------------------------------------------ */

/* The sum of the world's ranks over a part, with what each way moves. */
static void check_part(ls_comm *part, const int *list, int count, int self)
{
    enum { LEN = 9001 };
    int64_t *x = ls_mem_array(LEN, sizeof *x), want = 0;

    LS_CHECK(x);
    LS_CHECK_EQ(ls_comm_ranks(part), count);
    LS_CHECK_EQ(list[ls_comm_rank(part)], self);
    for (int i = 0; i < count; i++)
        want += list[i];
    for (int len = 1; len <= LEN; len *= 9001)
        for (int way = 0; way < 3; way++) {
            LS_CHECK_OK(ls_comm_force(part, way == 2 && count > 1 ? "ring" : NULL));
            for (int i = 0; i < len; i++)
                x[i] = self + i;
            LS_CHECK_OK(ls_comm_run(
                part, &(ls_coll){.type = LS_I64, .count = len, .in = x, .out = x}, SOON));
            LS_CHECK_EQ(x[len - 1], want + (int64_t)count * (len - 1));
        }
    x[0] = self;
    LS_CHECK_OK(ls_comm_force(part, NULL));
    LS_CHECK_OK(ls_comm_run(part,
                            &(ls_coll){.kind = LS_COLL_BROADCAST,
                                       .type = LS_I64,
                                       .count = 1,
                                       .peer = count - 1,
                                       .in = x,
                                       .out = x},
                            SOON));
    LS_CHECK_EQ(x[0], list[count - 1]);
    ls_mem_free(x);
}

static void parts(ls_world *w, ls_comm *comm)
{
    static const int rows[2][2] = {{0, 1}, {3, 2}}, columns[2][2] = {{0, 2}, {1, 3}};
    static const int three[3] = {3, 0, 1};
    int me = ls_comm_rank(comm), place;
    ls_comm *row = NULL, *column = NULL, *most = NULL, *inner = NULL;

    (void)w;
    LS_CHECK_OK(ls_comm_sub(comm, rows[me / 2], 2, SOON, &row));
    LS_CHECK_OK(ls_comm_sub(comm, columns[me % 2], 2, SOON, &column));
    LS_CHECK_OK(ls_comm_sub(comm, three, me == 2 ? 0 : 3, SOON, &most));
    LS_CHECK((most == NULL) == (me == 2));
    check_part(row, rows[me / 2], 2, me);
    check_part(column, columns[me % 2], 2, me);
    if (most) {
        static const int ends[2] = {2, 0}, world_ends[2] = {1, 3};
        check_part(most, three, 3, me);
        place = ls_comm_rank(most);
        LS_CHECK_OK(ls_comm_sub(most, ends, place == 1 ? 0 : 2, SOON, &inner));
        if (inner)
            check_part(inner, world_ends, 2, me);
    }
    ls_comm_close(inner);
    place = ls_comm_rank(row);
    LS_CHECK_OK(ls_comm_sub(row, &place, 1, SOON, &inner)); /* alone */
    check_part(inner, &me, 1, me);
    ls_comm_close(inner);
    ls_comm_close(row);
    check_part(column, columns[me % 2], 2, me);
    for (int i = 0; i < 100; i++) { /* more than there are groups at a time */
        LS_CHECK_OK(ls_comm_sub(comm, rows[me / 2], 2, SOON, &row));
        if (i % 25 == 0)
            check_part(row, rows[me / 2], 2, me);
        ls_comm_close(row);
    }
    ls_comm_close(most);
    ls_comm_close(column);
    LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, SOON));
}

LS_TEST(comm_is_divided_into_parts)
{
    ls_world_run("4", NULL, parts);
    ls_world_run("2+2", NULL, parts);
    ls_world_run("1+1+2", NULL, parts);
}

/* The world goes first; its parts live on. */
static void outlives(ls_world *w, ls_comm *comm)
{
    ls_comm_args args = ls_world_args(w, ls_comm_rank(comm));
    static const int all[2] = {0, 1};
    ls_comm *first = NULL, *part = NULL;

    args.generation = w->generation;
    LS_CHECK_OK(ls_comm_sub(comm, all, 2, SOON, &first));
    LS_CHECK_OK(ls_comm_sub(first, all, 2, SOON, &part));
    ls_comm_close(first);
    check_part(part, all, 2, args.rank);
    ls_comm_close(part);
}

LS_TEST(comm_part_outlives_what_it_was_made_from)
{
    ls_world_run("2", NULL, outlives);
    ls_world_run("1+1", NULL, outlives);
}

static void wrong_lists(ls_world *w, ls_comm *comm)
{
    int me = ls_comm_rank(comm), other = 1 - me;
    int twice[2] = {me, me}, far[2] = {me, 2}, low[2] = {-1, me};
    ls_comm *part = NULL;

    (void)w;
    LS_CHECK_FAILS(ls_comm_sub(comm, twice, 2, SOON, &part), LS_EUSAGE, "is twice in a list");
    LS_CHECK_FAILS(ls_comm_sub(comm, far, 2, SOON, &part), LS_EUSAGE, "rank 2 is not in");
    LS_CHECK_FAILS(ls_comm_sub(comm, low, 2, SOON, &part), LS_EUSAGE, "rank -1 is not in");
    LS_CHECK_FAILS(ls_comm_sub(comm, &other, 1, SOON, &part), LS_EUSAGE, "without itself");
    LS_CHECK_FAILS(ls_comm_sub(comm, &other, -1, SOON, &part), LS_EUSAGE, "a list of -1 ranks");
    LS_CHECK(!part);
    LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, SOON));
}

LS_TEST(comm_refuses_wrong_lists)
{
    ls_world_run("2", NULL, wrong_lists);
    ls_world_run("1+1", NULL, wrong_lists);
}

/* --- asked for wrongly ------------------------------------------------------------------------ */

static void bad_calls(ls_world *w, ls_comm *comm)
{
    int64_t table[3] = {1, -1, 1};
    float x[64] = {0};
    const ls_coll bad[] = {
        {.kind = (ls_coll_kind)77},
        {.type = (ls_dtype)99, .count = 1, .in = x, .out = x},
        {.op = (ls_coll_op)9, .count = 1, .in = x, .out = x},
        {.count = -1, .in = x, .out = x},
        {.count = INT64_MAX, .in = x, .out = x},
        {.count = 1, .out = x},
        {.count = 1, .in = x},
        {.count = 8, .in = x, .out = x + 4},
        {.kind = LS_COLL_BROADCAST, .count = 1, .in = x, .out = x, .peer = 3},
        {.kind = LS_COLL_BROADCAST, .count = 1, .in = x, .out = x, .peer = -1},
        {.kind = LS_COLL_SEND, .count = 1, .in = x, .peer = ls_comm_rank(comm)},
        {.op = LS_COLL_MEAN, .type = LS_I32, .count = 1, .in = x, .out = x},
        {.kind = LS_COLL_ALL_TO_ALL,
         .in = x,
         .out = x + 9,
         .in_counts = table,
         .out_counts = table},
    };

    (void)w;
    for (size_t i = 0; i < LS_COUNT(bad); i++) {
        ls_comm_request request;
        LS_CHECK_FAILS(ls_comm_run(comm, &bad[i], SOON), LS_EUSAGE, "");
        LS_CHECK_FAILS(ls_comm_start(comm, &bad[i], &request), LS_EUSAGE, "");
    }
    /* and nothing is broken by it */
    LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.count = 64, .in = x, .out = x}, SOON));
}

LS_TEST(comm_refuses_what_cannot_be_meant)
{
    ls_world_run("3", NULL, bad_calls);
    ls_world_run("1+1+1", NULL, bad_calls);
    ls_world_run("1+2", NULL, bad_calls);
}

/* --- memory and bytes ------------------------------------------------------------------------- */

/* Four at a time, then one after the other; nobody begins the next step before all ended this. */
static void one_step(ls_comm *comm, void **in, void **out)
{
    int n = ls_comm_ranks(comm), me = ls_comm_rank(comm);
    ls_comm_request request[4];

    for (int i = 0; i < 24; i++) {
        ls_call c = flight_call(comm, i % 12 + 7); /* one of them is large */
        void *to = c.in_place ? in[i % 12] : out[i % 12];
        ls_coll coll = ls_call_fill(&c, n, me, in[i % 12], to);
        if (i >= 12)
            LS_CHECK_OK(ls_comm_run(comm, &coll, SOON));
        else
            LS_CHECK_OK(ls_comm_start(comm, &coll, &request[i % 4]));
        for (int k = 0; i < 12 && i % 4 == 3 && k < 4; k++)
            LS_CHECK_OK(ls_comm_wait(comm, request[k], SOON));
    }
    LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, SOON));
}

static void no_heap(ls_world *w, ls_comm *comm)
{
    void *in[12], *out[12];
    bool free_of_it = false;
    uint64_t before;

    (void)w;
    for (int i = 0; i < 12; i++) {
        ls_call c = flight_call(comm, i + 7);
        int64_t bytes = ls_call_bytes(&c, ls_comm_ranks(comm), ls_comm_rank(comm));
        LS_CHECK_OK(ls_comm_alloc(comm, bytes, "a test", &in[i]));
        LS_CHECK_OK(ls_comm_alloc(comm, bytes, "a test", &out[i]));
        LS_CHECK((uintptr_t)in[i] % 4096 == 0 && ((char *)in[i])[bytes - 1] == 0);
    }
    /* What was needed at most is kept, and a late rank may need a little more once: so four steps
     * in a row, sooner or later. All ranks go through the same number of steps. */
    for (int window = 0; window < 6; window++) {
        before = ls_mem_calls();
        for (int step = 0; step < 4; step++)
            one_step(comm, in, out);
        free_of_it |= ls_mem_calls() == before;
    }
    LS_CHECK(free_of_it);
    for (int i = 0; i < 12; i++) {
        ls_comm_free(comm, in[i]);
        ls_comm_free(comm, out[i]);
    }
    ls_comm_free(comm, NULL);
}

LS_TEST(comm_takes_no_memory_after_the_second_step)
{
    for (size_t i = 0; i < LS_COUNT(shapes); i++)
        ls_world_run(shapes[i], NULL, no_heap);
}

/* Open and close, again and again, in one process. */
static void nothing(ls_world *w, ls_comm *comm)
{
    int64_t x = 1;
    ls_comm_request request;

    LS_CHECK_OK(
        ls_comm_start(comm, &(ls_coll){.type = LS_I64, .count = 1, .in = &x, .out = &x}, &request));
    LS_CHECK_OK(ls_comm_wait(comm, request, SOON));
    LS_CHECK_EQ(x, w->ranks);
}

static long mapped_mib(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    long pages = 0;

    LS_CHECK(f && fscanf(f, "%ld", &pages) == 1);
    fclose(f);
    return pages * sysconf(_SC_PAGESIZE) / (long)LS_MIB;
}

LS_TEST_SECONDS(comm_opens_200_times_without_a_leak, 240)
{
    static const char *const cycles[] = {"1", "2", "1+1", "1+2"};

    for (size_t i = 0; i < LS_COUNT(cycles); i++) {
        int fds = 0;
        long mib = 0;
        for (int k = 0; k < ls_test_times(200); k++) {
            ls_world_run_threads(cycles[i], NULL, nothing);
            if (k == 20) {
                fds = world_open_fds();
                mib = mapped_mib();
            }
        }
        LS_CHECK_EQ(world_open_fds(), fds);
        LS_CHECK(mapped_mib() - mib < 512); /* each shared-memory segment is 64 and more */
    }
}

enum { LEVELS_LEN = 1000003 };

static void by_levels(ls_world *w, ls_comm *comm)
{
    int64_t sent[2], received, *bytes = w->context;
    int n = ls_comm_ranks(comm);
    float *x = ls_mem_array(LEVELS_LEN, sizeof *x);

    LS_CHECK(x);
    for (int i = 0; i < LEVELS_LEN; i++)
        x[i] = (float)(i % 1000 + ls_comm_rank(comm));
    ls_coll coll = {.op = LS_COLL_MEAN, .count = LEVELS_LEN, .in = x, .out = x};
    LS_CHECK_STR(ls_comm_way(comm, &coll), "levels");
    LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, SOON));
    ls_comm_traffic(comm, &sent[0], &received);
    LS_CHECK_OK(ls_comm_run(comm, &coll, SOON));
    ls_comm_traffic(comm, &sent[1], &received);
    bytes[ls_comm_rank(comm)] = sent[1] - sent[0];
    for (int i = 0; i < LEVELS_LEN; i++)
        LS_CHECK(x[i] == (float)(i % 1000) + (float)(n - 1) / 2);
    ls_mem_free(x);
}

LS_TEST(comm_sends_each_byte_between_nodes_once)
{
    static const char *const worlds[] = {"2+2", "2+2+2", "3+3"};
    int64_t *bytes = ls_ranks_shared(LS_WORLD_RANKS * 8);

    for (int k = 0; k < 3; k++) {
        int nodes = k == 1 ? 3 : 2, per_node = k == 2 ? 3 : 2;
        ls_world_run(worlds[k], bytes, by_levels);
        for (int node = 0; node < nodes; node++) {
            double sum = 0, want = 2.0 * (nodes - 1) / nodes * 4.0 * LEVELS_LEN;
            for (int i = 0; i < per_node; i++)
                sum += (double)bytes[node * per_node + i];
            LS_CHECK_NEAR(sum / want, 1.005, 0.005);
        }
    }
}

/* In eight pieces, one flight right after the other, with smaller ones between. */
static void in_pieces(ls_world *w, ls_comm *comm)
{
    enum { LEN = 8400001, SMALL = 9001, ROUNDS = 4 };
    const int rounds = ROUNDS / ls_test_stride(2);
    float *x = ls_mem_array(LEN, sizeof *x), small[ROUNDS][SMALL];
    int n = ls_comm_ranks(comm);
    ls_comm_request request[ROUNDS];

    (void)w;
    LS_CHECK(x);
    for (int i = 0; i < LEN; i++)
        x[i] = (float)(i % 1000 + ls_comm_rank(comm));
    for (int k = 0; k < rounds; k++) {
        ls_coll large = {.op = k ? LS_COLL_MAX : LS_COLL_MEAN, .count = LEN, .in = x, .out = x};
        ls_coll more = {.count = SMALL, .in = small[k], .out = small[k]};
        for (int i = 0; i < SMALL; i++)
            small[k][i] = (float)(i + k);
        LS_CHECK_OK(ls_comm_start(comm, &more, &request[k]));
        LS_CHECK_OK(ls_comm_run(comm, &large, SOON));
    }
    for (int i = 0; i < LEN; i++)
        LS_CHECK(x[i] == (float)(i % 1000) + (float)(n - 1) / 2);
    for (int k = 0; k < rounds; k++) {
        LS_CHECK_OK(ls_comm_wait(comm, request[k], SOON));
        for (int i = 0; i < SMALL; i++)
            LS_CHECK(small[k][i] == (float)(n * (i + k)));
    }
    ls_mem_free(x);
}

LS_TEST_SECONDS(comm_sums_large_buffers_in_pieces, 40)
{
    ls_world_run("2+2", NULL, in_pieces);
}
