/* test_shm_coll.c -- every collective against a plain loop, on memory of every sort. */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"
#include "comm/coll_case.h"
#include "comm/node/flight_recorder.h"
#include "comm/node/ranks.h"

#define SOON ls_test_soon()

/* --- one call, checked -------------------------------------------------------------------------
 */

static void try_call(ls_ranks *r, const ls_call *c)
{
    int64_t bytes = ls_call_bytes(c, r->ranks, r->me);
    char *in = ls_ranks_alloc(r, c->shared_in, bytes);
    char *out = c->in_place ? in : ls_ranks_alloc(r, c->shared_out, bytes);

    ls_coll coll = ls_call_fill(c, r->ranks, r->me, in, out);
    LS_CHECK_OK(ls_shm_coll_run(r->direct, &coll, SOON));
    ls_call_check(c, r->ranks, r->me, out);
    /* Nobody reads this rank's memory any more: its owner may change it now. */
    memset(in, 0, (size_t)bytes);
    if (!c->in_place)
        ls_ranks_free(r, c->shared_out, out);
    ls_ranks_free(r, c->shared_in, in);
}

static void all_types(ls_ranks *r)
{
    static const int64_t counts[] = {1, 17, 2111};

    for (int type = LS_F32; type <= LS_I8; type++)
        for (int op = LS_COLL_SUM; op <= LS_COLL_MEAN; op++)
            for (size_t i = 0; i < LS_COUNT(counts); i++)
                for (int kind = 0; kind < 2; kind++) {
                    ls_call c = {.kind = (ls_coll_kind)kind,
                                 .op = (ls_coll_op)op,
                                 .type = (ls_dtype)type,
                                 .count = counts[i],
                                 .shared_in = i & 1,
                                 .shared_out = i & 1,
                                 .in_place = op & 1};
                    if (op != LS_COLL_MEAN || type < LS_I32)
                        try_call(r, &c);
                }
}

static void all_kinds(ls_ranks *r)
{
    static const int64_t counts[] = {0, 1, 5, 16, 31, 1000, 2049, 20011};

    for (size_t i = 0; i < LS_COUNT(counts); i++)
        for (int way = 0; way < 8; way++)
            for (int kind = 0; kind <= LS_COLL_GATHER; kind++) {
                ls_call c = {.kind = (ls_coll_kind)kind,
                             .type = way & 1 ? LS_F32 : LS_I64,
                             .count = counts[i],
                             .in_place = way & 1,
                             .shared_in = way & 2,
                             .shared_out = way & 4,
                             .root = (way + (int)i) % r->ranks};
                if (way == 6 && r->me % 2) /* some ranks have other memory */
                    c.shared_in = c.shared_out = false;
                try_call(r, &c);
            }
    LS_CHECK_OK(ls_shm_coll_run(r->direct, &(ls_coll){.kind = LS_COLL_BARRIER}, SOON));
}

static void kinds_and_types(ls_ranks *r)
{
    all_kinds(r);
    all_types(r);
}

LS_TEST_SECONDS(direct_does_every_kind_type_and_operation, 240)
{
    for (int ranks = 1; ranks <= 8; ranks += ranks < 3 ? 1 : ls_test_stride(4))
        ls_ranks_run(&(ls_ranks_args){.ranks = ranks}, kinds_and_types);
}

LS_TEST_SECONDS(direct_does_it_without_reads_of_other_processes, 240)
{
    for (int ranks = 1; ranks <= 5; ranks += 2)
        ls_ranks_run(&(ls_ranks_args){.ranks = ranks, .no_reads = true}, all_kinds);
}

LS_TEST_SECONDS(direct_does_it_among_threads, 60)
{
    ls_ranks_run(&(ls_ranks_args){.ranks = 3, .threads = true}, kinds_and_types);
}

/* --- the same bits everywhere ------------------------------------------------------------------
 */

enum { BITS_COUNT = 700001 };

static void same_bits(ls_ranks *r)
{
    float *sum = ls_mem_array(BITS_COUNT, sizeof *sum);
    bool shared = r->context != NULL;
    float *in = ls_ranks_alloc(r, shared, BITS_COUNT * 4);

    LS_CHECK(sum);
    for (int k = 0; k < r->ranks; k++)
        for (int i = 0; i < BITS_COUNT; i++) {
            float x = sinf((float)(i % 9973) * 0.37f + (float)k) * (k % 2 ? 1e-4f : 1e3f);
            sum[i] = k ? sum[i] + x : x;
            if (k == r->me)
                in[i] = x;
        }
    ls_coll coll = {.type = LS_F32, .count = BITS_COUNT, .in = in, .out = in};
    LS_CHECK_OK(ls_shm_coll_run(r->direct, &coll, SOON));
    LS_CHECK(memcmp(in, sum, BITS_COUNT * 4) == 0);
    ls_ranks_free(r, shared, in);
    ls_mem_free(sum);
}

LS_TEST(direct_sums_in_the_order_of_ranks_on_every_way)
{
    int yes;

    ls_ranks_run(&(ls_ranks_args){.ranks = 5, .context = &yes}, same_bits);
    ls_ranks_run(&(ls_ranks_args){.ranks = 5}, same_bits);
    ls_ranks_run(&(ls_ranks_args){.ranks = 3, .no_reads = true}, same_bits);
}

/* --- uneven ------------------------------------------------------------------------------------
 */

static int64_t uneven(int from, int to)
{
    return (from * 7 + to * 1013) % 5000 * (from != to + 1);
}

static void uneven_all_to_all(ls_ranks *r)
{
    int64_t gives[LS_SHM_SEGMENT_RANKS], receives[LS_SHM_SEGMENT_RANKS], in_len = 0, out_len = 0,
                                                                         at = 0;

    for (int i = 0; i < r->ranks; i++) {
        in_len += gives[i] = uneven(r->me, i);
        out_len += receives[i] = uneven(i, r->me);
    }
    int32_t *in = ls_ranks_alloc(r, r->context != NULL, in_len * 4 + 4);
    int32_t *out = ls_ranks_alloc(r, false, out_len * 4 + 4);
    for (int to = 0; to < r->ranks; to++)
        for (int64_t i = 0; i < gives[to]; i++)
            in[at++] = (int32_t)(r->me * 1000000 + to * 10000 + i);
    ls_coll coll = {.kind = LS_COLL_ALL_TO_ALL,
                    .type = LS_I32,
                    .in = in,
                    .out = out,
                    .in_counts = gives,
                    .out_counts = receives};
    LS_CHECK_OK(ls_shm_coll_run(r->direct, &coll, SOON));
    at = 0;
    for (int from = 0; from < r->ranks; from++)
        for (int64_t i = 0; i < receives[from]; i++)
            LS_CHECK_EQ(out[at++], from * 1000000 + r->me * 10000 + i);
    /* gather, as much as each has */
    for (int i = 0; i < r->ranks; i++)
        receives[i] = uneven(i, 1);
    coll = (ls_coll){.kind = LS_COLL_GATHER,
                     .type = LS_I32,
                     .count = receives[r->me],
                     .peer = r->ranks - 1,
                     .in = in,
                     .out = r->me == r->ranks - 1 ? ls_ranks_alloc(r, false, 40000 * 4) : NULL,
                     .out_counts = receives};
    in[0] = r->me;
    LS_CHECK_OK(ls_shm_coll_run(r->direct, &coll, SOON));
    at = 0;
    for (int i = 0; coll.out && i < r->ranks; at += receives[i++])
        if (receives[i] > 0)
            LS_CHECK_EQ(((int32_t *)coll.out)[at], i);
    ls_ranks_free(r, false, coll.out);
    ls_ranks_free(r, r->context != NULL, in);
    ls_ranks_free(r, false, out);
}

LS_TEST(direct_moves_uneven_pieces)
{
    int yes;

    ls_ranks_run(&(ls_ranks_args){.ranks = 4}, uneven_all_to_all);
    ls_ranks_run(&(ls_ranks_args){.ranks = 7, .context = &yes}, uneven_all_to_all);
    ls_ranks_run(&(ls_ranks_args){.ranks = 4, .no_reads = true}, uneven_all_to_all);
    ls_ranks_run(&(ls_ranks_args){.ranks = 3, .threads = true}, uneven_all_to_all);
}

/* --- beyond 4 GiB ------------------------------------------------------------------------------
 */

/* Many views of the same 2 MiB in a row: large in addresses only. */
static char *long_memory(int64_t bytes)
{
    int64_t step = 2 * LS_MIB, room = ls_round_up(bytes, step);
    int fd = memfd_create("test", MFD_CLOEXEC);
    char *p =
        mmap(NULL, (size_t)room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    LS_CHECK(fd >= 0 && p != MAP_FAILED && ftruncate(fd, step) == 0);
    for (int64_t at = 0; at < room; at += step)
        LS_CHECK(mmap(p + at, (size_t)step, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                      0) == p + at);
    close(fd);
    return p;
}

static void long_broadcast(ls_ranks *r)
{
    int64_t count = 4 * LS_GIB + 3 * LS_MIB + 5;
    char *memory = long_memory(count);

    if (r->me == 0)
        for (int64_t i = 0; i < 2 * LS_MIB; i++)
            memory[i] = (char)(i * 31 % 251);
    ls_coll coll = {
        .kind = LS_COLL_BROADCAST, .type = LS_I8, .count = count, .in = memory, .out = memory};
    LS_CHECK_OK(ls_shm_coll_run(r->direct, &coll, SOON));
    for (int64_t i = count - 7; i < count; i++)
        LS_CHECK_EQ(memory[i], (char)(i % (2 * LS_MIB) * 31 % 251));
    munmap(memory, (size_t)ls_round_up(count, 2 * LS_MIB));
}

LS_TEST_SECONDS(direct_counts_beyond_4_gib, 240)
{
#if defined(__SANITIZE_THREAD__)
    ls_test_skip("4 GiB take minutes with a sanitizer");
#endif
    ls_ranks_run(&(ls_ranks_args){.ranks = 2}, long_broadcast);
}

/* --- in flight ---------------------------------------------------------------------------------
 */

static void many_in_flight(ls_ranks *r)
{
    enum { FLIGHTS = 16, LEN = 3001 };
    bool shared = r->context != NULL;
    ls_shm_coll_ticket ticket[FLIGHTS], more;
    float *memory[FLIGHTS];

    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < FLIGHTS; i++) {
            int64_t count = i % 3 ? LEN : 9;
            memory[i] = ls_ranks_alloc(r, shared, LEN * 4);
            for (int k = 0; k < LEN; k++)
                memory[i][k] = (float)(r->me + i);
            ls_coll coll = {.type = LS_F32, .count = count, .in = memory[i], .out = memory[i]};
            ls_status st = ls_shm_coll_start(r->direct, &coll, &ticket[i]);
            while (st == LS_EBUSY) { /* the slowest of the others is a round behind */
                bool done;
                LS_CHECK_OK(ls_shm_coll_poll(r->direct, ticket[0], &done));
                st = ls_shm_coll_start(r->direct, &coll, &ticket[i]);
            }
            LS_CHECK_OK(st);
        }
        if (r->ranks > 1 && r->me == 0 && round == 0) /* the others have 16, too: none is free */
            LS_CHECK_FAILS(ls_shm_coll_start(r->direct, &(ls_coll){.kind = LS_COLL_BARRIER}, &more),
                           LS_EBUSY, "in flight");
        for (int k = 0; k < FLIGHTS; k++) { /* each rank waits in another order */
            int i = (k * 5 + r->me * 3) % FLIGHTS;
            LS_CHECK_OK(ls_shm_coll_wait(r->direct, ticket[i], SOON));
            LS_CHECK_EQ(memory[i][i % 3 ? LEN - 1 : 8],
                        r->ranks * (r->ranks - 1) / 2 + r->ranks * i);
        }
        for (int i = 0; i < FLIGHTS; i++)
            ls_ranks_free(r, shared, memory[i]);
    }
}

LS_TEST(direct_keeps_16_in_flight)
{
    int yes;

    ls_ranks_run(&(ls_ranks_args){.ranks = 4}, many_in_flight);
    ls_ranks_run(&(ls_ranks_args){.ranks = 3, .context = &yes}, many_in_flight);
    ls_ranks_run(&(ls_ranks_args){.ranks = 3, .no_reads = true}, many_in_flight);
    ls_ranks_run(&(ls_ranks_args){.ranks = 3, .threads = true}, many_in_flight);
}

static void one_after_another(ls_ranks *r)
{
    int64_t x;

    for (int i = 0; i < 3000; i++) {
        x = r->me + i;
        ls_coll coll = {.type = LS_I64, .count = 1, .in = &x, .out = &x};
        LS_CHECK_OK(ls_shm_coll_run(r->direct, &coll, SOON));
        LS_CHECK_EQ(x, r->ranks * (r->ranks - 1) / 2 + r->ranks * i);
    }
}

LS_TEST_SECONDS(direct_runs_thousands_in_a_row, 240)
{
    ls_ranks_run(&(ls_ranks_args){.ranks = 2}, one_after_another);
    ls_ranks_run(&(ls_ranks_args){.ranks = 5}, one_after_another);
    ls_ranks_run(&(ls_ranks_args){.ranks = 2, .threads = true}, one_after_another);
}

/* --- send and recv -----------------------------------------------------------------------------
 */

static void pass_round(ls_ranks *r)
{
    static const int64_t counts[] = {0, 1, 100, 5000, 100003};
    int to = (r->me + 1) % r->ranks, from = (r->me + r->ranks - 1) % r->ranks;

    for (size_t k = 0; k < LS_COUNT(counts); k++) {
        int64_t count = counts[k];
        int32_t *in = ls_ranks_alloc(r, k & 1, count * 4 + 4);
        int32_t *out = ls_ranks_alloc(r, k & 1, count * 4 + 4);
        ls_shm_coll_ticket sent, got;
        for (int64_t i = 0; i < count; i++)
            in[i] = (int32_t)(r->me * 1000 + i);
        ls_coll send = {.kind = LS_COLL_SEND, .type = LS_I32, .count = count, .in = in, .peer = to};
        ls_coll recv = {
            .kind = LS_COLL_RECV, .type = LS_I32, .count = count, .out = out, .peer = from};
        LS_CHECK_OK(ls_shm_coll_start(r->direct, &send, &sent));
        LS_CHECK_OK(ls_shm_coll_start(r->direct, &recv, &got));
        LS_CHECK_OK(ls_shm_coll_wait(r->direct, got, SOON));
        LS_CHECK_OK(ls_shm_coll_wait(r->direct, sent, SOON));
        for (int64_t i = 0; i < count; i++)
            LS_CHECK_EQ(out[i], from * 1000 + i);
        ls_ranks_free(r, k & 1, in);
        ls_ranks_free(r, k & 1, out);
    }
}

LS_TEST(direct_sends_and_receives)
{
    ls_ranks_run(&(ls_ranks_args){.ranks = 3}, pass_round);
    ls_ranks_run(&(ls_ranks_args){.ranks = 2, .no_reads = true}, pass_round);
    ls_ranks_run(&(ls_ranks_args){.ranks = 4, .threads = true}, pass_round);
}

/* --- asked for wrongly -------------------------------------------------------------------------
 */

static void refuse(ls_ranks *r, ls_coll coll, const char *why)
{
    LS_CHECK_FAILS(ls_shm_coll_run(r->direct, &coll, SOON), LS_EUSAGE, why);
}

static void bad_calls(ls_ranks *r)
{
    int64_t counts[2] = {1, -1};
    float x[64] = {0};

    refuse(r, (ls_coll){.kind = (ls_coll_kind)77}, "there is no collective number 77");
    refuse(r, (ls_coll){.type = (ls_dtype)99, .count = 1, .in = x, .out = x}, "there is no type");
    refuse(r, (ls_coll){.count = -1, .in = x, .out = x}, "of -1 elements");
    refuse(r, (ls_coll){.count = INT64_MAX, .in = x, .out = x}, "elements");
    refuse(r, (ls_coll){.count = 1, .in = NULL, .out = x}, "without memory");
    refuse(r, (ls_coll){.count = 8, .in = x, .out = x + 4}, "overlap");
    refuse(r, (ls_coll){.kind = LS_COLL_BROADCAST, .count = 1, .in = x, .out = x, .peer = 2},
           "no rank 2");
    refuse(r, (ls_coll){.kind = LS_COLL_SEND, .count = 1, .in = x, .peer = r->me}, "itself");
    refuse(r, (ls_coll){.op = LS_COLL_MEAN, .type = LS_I32, .count = 1, .in = x, .out = x},
           "mean of i32");
    refuse(r,
           (ls_coll){.kind = LS_COLL_ALL_TO_ALL,
                     .in = x,
                     .out = x + 32,
                     .in_counts = counts,
                     .out_counts = counts},
           "below 0");
    /* and nothing is broken by it */
    LS_CHECK_OK(ls_shm_coll_run(r->direct, &(ls_coll){.count = 64, .in = x, .out = x}, SOON));
}

LS_TEST(direct_refuses_what_cannot_be_meant)
{
    ls_ranks_run(&(ls_ranks_args){.ranks = 2}, bad_calls);
}

typedef struct clash {
    ls_coll call[2];
    const char *says[2];
} clash;

static void ask_differently(ls_ranks *r)
{
    const clash *c = r->context;
    ls_coll coll = c->call[r->me == 1];
    float *memory = ls_ranks_alloc(r, true, 100000);

    coll.in = memory;
    coll.out = (char *)memory + 50000;
    memset(memory, 0x11, 100000);
    ls_status st = ls_shm_coll_run(r->direct, &coll, SOON);
    /* A rank without a part in a piece whose length is in dispute may be done before it is found. */
    if (st == LS_OK && strstr(c->says[1], "piece"))
        while (!ls_shm_segment_aborted(r->segment))
            usleep(1000);
    if (st == LS_OK && strstr(c->says[1], "piece"))
        st = ls_shm_coll_run(r->direct, &(ls_coll){.kind = LS_COLL_BARRIER}, SOON);
    LS_CHECK_FAILS(st, LS_EUSAGE, c->says[0]);
    LS_CHECK(strstr(ls_err_last()->text, c->says[1]));
    if (!coll.in_counts) /* where tables differ, any two ranks may find it */
        LS_CHECK(strstr(ls_err_last()->text, "rank 11 (pid"));
    LS_CHECK(strstr(ls_err_last()->text, "on testhost"));
    for (int i = 0; i < 12500; i++) /* nothing moved */
        LS_CHECK_EQ(((unsigned char *)coll.out)[i], 0x11);
    LS_CHECK_FAILS(ls_shm_coll_run(r->direct, &(ls_coll){.kind = LS_COLL_BARRIER}, SOON), LS_EUSAGE,
                   c->says[0]);
}

LS_TEST(direct_finds_calls_that_differ)
{
    int64_t table[3] = {3, 4, 5}, other[3] = {3, 4, 6};
    clash clashes[] = {
        {{{.count = 10}, {.count = 11}}, {"all_reduce (sum of 10 f32)", "(sum of 11 f32)"}},
        {{{.count = 9000}, {.count = 9001}}, {"(sum of 9000 f32)", "(sum of 9001 f32)"}},
        {{{.count = 10}, {.count = 10, .op = LS_COLL_MAX}}, {"(sum of 10", "(max of 10"}},
        {{{.count = 10}, {.count = 10, .type = LS_I32}}, {"10 f32", "10 i32"}},
        {{{.count = 10}, {.kind = LS_COLL_BARRIER}}, {"all_reduce (sum of 10 f32)", "barrier"}},
        {{{.kind = LS_COLL_BROADCAST, .count = 10}, {.kind = LS_COLL_ALL_GATHER, .count = 10}},
         {"broadcast (10 f32, root 0)", "all_gather (10 f32)"}},
        {{{.kind = LS_COLL_BROADCAST, .count = 10},
          {.kind = LS_COLL_BROADCAST, .count = 10, .peer = 2}},
         {"root 0", "root 2"}},
        {{{.kind = LS_COLL_GATHER, .count = 10}, {.kind = LS_COLL_GATHER, .count = 9}},
         {"gather (10 f32", "length of their piece"}},
        {{{.kind = LS_COLL_ALL_TO_ALL, .in_counts = table, .out_counts = table},
          {.kind = LS_COLL_ALL_TO_ALL, .in_counts = other, .out_counts = other}},
         {"by a table", "length of their piece"}},
    };

    for (size_t i = 0; i < LS_COUNT(clashes); i++)
        ls_ranks_run(&(ls_ranks_args){.ranks = 3, .context = &clashes[i]}, ask_differently);
}

static void message_lengths_differ(ls_ranks *r)
{
    float x[2000] = {0};
    ls_coll coll = {.kind = r->me ? LS_COLL_RECV : LS_COLL_SEND,
                    .count = r->me ? 2000 : 1999,
                    .in = x,
                    .out = x,
                    .peer = !r->me};

    LS_CHECK_FAILS(ls_shm_coll_run(r->direct, &coll, SOON), LS_EUSAGE, "sends 7996 bytes where");
}

LS_TEST(direct_finds_messages_that_differ)
{
    ls_ranks_run(&(ls_ranks_args){.ranks = 2}, message_lengths_differ);
}

/* --- somebody does not come --------------------------------------------------------------------
 */

static void deadline_passes(ls_ranks *r)
{
    float x = 1;
    ls_coll coll = {.count = 1, .in = &x, .out = &x};

    LS_CHECK_OK(ls_shm_coll_run(r->direct, &coll, SOON));
    if (r->me == 1) { /* comes to nothing, and learns of it */
        while (!ls_shm_segment_aborted(r->segment))
            usleep(1000);
        LS_CHECK_FAILS(ls_shm_coll_run(r->direct, &coll, SOON), LS_EPEER, "rank 10 (pid");
        LS_CHECK(strstr(ls_err_last()->text, "gave up"));
        return;
    }
    char where[LS_FLIGHT_RECORDER_TEXT];
    for (int64_t until = SOON; ls_time_now_ns() < until; usleep(1000)) /* it is out of the first */
        if (strncmp(ls_flight_recorder_where(r->segment, 1, where), "it has not been", 15) == 0)
            break;
    int64_t start = ls_time_now_ns(), wait_ms = r->context ? 0 : 150;
    LS_CHECK_FAILS(ls_shm_coll_run(r->direct, &coll, r->context ? 0 : ls_ranks_in_ms(wait_ms)),
                   LS_EDEADLINE, "rank 11 (pid");
    LS_CHECK(ls_time_now_ns() - start >= wait_ms * LS_NS_PER_MS);
    LS_CHECK_WITHIN(start, wait_ms + 3000);
    LS_CHECK(
        strstr(ls_err_last()->text, "did not come to all_reduce (sum of 1 f32), collective 2"));
    LS_CHECK(strstr(ls_err_last()->text, "it has not been in a collective for"));
    LS_CHECK(strstr(ls_err_last()->text, "the last was all_reduce 1"));
    start = ls_time_now_ns(); /* broken for good, at once */
    LS_CHECK_FAILS(ls_shm_coll_run(r->direct, &coll, SOON), LS_EDEADLINE, "rank 11");
    LS_CHECK_WITHIN(start, 3000);
}

LS_TEST(direct_names_the_rank_that_came_too_late)
{
    int yes;

    ls_ranks_run(&(ls_ranks_args){.ranks = 2}, deadline_passes);
    ls_ranks_run(&(ls_ranks_args){.ranks = 2, .context = &yes}, deadline_passes); /* deadline 0 */
    ls_ranks_run(&(ls_ranks_args){.ranks = 2, .threads = true}, deadline_passes);
}

static void *abort_soon(void *arg)
{
    ls_ranks *r = arg;

    usleep(30000);
    ls_shm_segment_abort(r->segment, r->me, LS_EPEER, "the run was stopped by a test");
    return NULL;
}

static void aborted_from_a_thread(ls_ranks *r)
{
    int64_t start = ls_time_now_ns();
    pthread_t thread;
    float x = 0;
    ls_coll coll = {.count = 1, .in = &x, .out = &x};

    if (r->me == 0)
        LS_CHECK_EQ(pthread_create(&thread, NULL, abort_soon, r), 0);
    if (r->me < 2)
        LS_CHECK_FAILS(ls_shm_coll_run(r->direct, &coll, SOON), LS_EPEER, "stopped by a test");
    LS_CHECK_WITHIN(start, 5000);
    if (r->me == 0)
        pthread_join(thread, NULL);
}

LS_TEST(direct_ends_when_another_thread_aborts)
{
    ls_ranks_run(&(ls_ranks_args){.ranks = 3}, aborted_from_a_thread);
    ls_ranks_run(&(ls_ranks_args){.ranks = 3, .threads = true}, aborted_from_a_thread);
}

static void closes_too_early(ls_ranks *r)
{
    ls_shm_coll_ticket ticket;
    float x = 0;
    ls_coll coll = {.count = 1, .in = &x, .out = &x};

    LS_CHECK_OK(ls_shm_coll_run(r->direct, &(ls_coll){.kind = LS_COLL_BARRIER}, SOON));
    if (r->me == 1) {
        LS_CHECK_OK(ls_shm_coll_start(r->direct, &coll, &ticket));
        return; /* closes */
    }
    if (r->me == 0)
        LS_CHECK_FAILS(ls_shm_coll_run(r->direct, &coll, SOON), LS_EPEER,
                       "closed its communicator with collective 2 in flight");
    else
        while (!ls_shm_segment_aborted(r->segment))
            usleep(1000);
}

LS_TEST(direct_closed_in_flight_is_a_failure_for_others)
{
    ls_ranks_run(&(ls_ranks_args){.ranks = 3}, closes_too_early);
}

/* --- groups within ------------------------------------------------------------------------------
 */

static void halves(ls_ranks *r)
{
    int evens[] = {0, 2, 4}, odds[] = {3, 1};
    bool odd = r->me % 2;

    for (int round = 0; round < 100; round++) { /* more than there are numbers */
        ls_group_args args = {.key = 1000 + (uint64_t)round * 2 + odd,
                              .local = r->me,
                              .locals = odd ? odds : evens,
                              .members = odd ? 2 : 3};
        int32_t x = r->me, all[64] = {0};
        ls_shm_coll *direct;
        ls_group group;
        LS_CHECK_OK(ls_group_open(&group, r->segment, &args, SOON));
        LS_CHECK_OK(ls_shm_coll_open(&direct, &group));
        ls_coll sum = {.type = LS_I32, .count = 1, .in = &x, .out = &x};
        LS_CHECK_OK(ls_shm_coll_run(direct, &sum, SOON));
        LS_CHECK_EQ(x, odd ? 4 : 6);
        x = r->me; /* places are those of the list */
        ls_coll to_first = {
            .kind = LS_COLL_GATHER, .type = LS_I32, .count = 1, .in = &x, .out = all};
        LS_CHECK_OK(ls_shm_coll_run(direct, &to_first, SOON));
        if (group.me == 0)
            LS_CHECK_EQ(all[1], odd ? 1 : 2);
        ls_shm_coll_close(direct);
        ls_group_close(&group);
    }
}

LS_TEST(direct_works_in_groups_that_come_and_go)
{
    ls_ranks_run(&(ls_ranks_args){.ranks = 5}, halves);
    ls_ranks_run(&(ls_ranks_args){.ranks = 5, .threads = true}, halves);
}

/* --- no memory ---------------------------------------------------------------------------------
 */

static void nth_allocation_fails(ls_ranks *r)
{
    float *x = ls_ranks_alloc(r, false, 400000);
    ls_coll coll = {.count = 100000, .in = x, .out = x};

    if (r->me == 0)
        ls_mem_fail_nth(1); /* the scratch for what is read of the other process */
    LS_CHECK_FAILS(ls_shm_coll_run(r->direct, &coll, SOON), r->me ? LS_EPEER : LS_ENOMEM,
                   "cannot allocate");
    ls_mem_fail_nth(0);
    ls_ranks_free(r, false, x);
}

LS_TEST(direct_without_memory_fails_on_all_ranks)
{
    ls_ranks_run(&(ls_ranks_args){.ranks = 2}, nth_allocation_fails);
}

static void opening_fails(ls_ranks *r)
{
    ls_shm_coll *direct = NULL;
    int n = 1;

    for (;; n++) {
        ls_mem_fail_nth((uint64_t)n);
        ls_status st = ls_shm_coll_open(&direct, &r->group);
        ls_mem_fail_nth(0);
        if (st == LS_OK)
            break;
        LS_CHECK_EQ(st, LS_ENOMEM);
    }
    LS_CHECK(n > 1);
    ls_shm_coll_close(direct);
}

LS_TEST(direct_opens_or_says_that_memory_is_short)
{
    ls_ranks_run(&(ls_ranks_args){.ranks = 1, .no_direct = true}, opening_fails);
}
