/* test_tcp.c -- messages of all sizes in any order, added or not, between ranks on loopback. */
#include "harness.h"

#include <sys/socket.h>
#include <unistd.h>
#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/time.h"
#include "comm/transport/tcp_impl.h"
#include "comm/transport/tcp_world.h"

LS_TEST_SECONDS(tcp_carries_any_size_in_any_order, 60)
{
    int before = world_open_fds();
    world w;

    world_init(&w, 2);
    world_run(&w, world_traffic);
    world_release(&w);
    LS_CHECK_EQ(world_open_fds(), before);
}

LS_TEST_SECONDS(tcp_stripes_over_many_sockets, 60)
{
    world w;

    world_init(&w, 2);
    w.args.sockets = 8;
    w.args.chunk_bytes = 64 << 10;
    w.args.eager_bytes = 1024;
    world_run(&w, world_traffic);
    world_release(&w);
}

/* --- without a copy --- */

static _Atomic int64_t lent, copied;

static void traffic_and_loans(world *w, int rank, ls_transport *transport)
{
    ls_tcp_stats stats;

    world_traffic(w, rank, transport);
    ls_tcp_stats_get(transport, &stats);
    atomic_fetch_add(&lent, stats.lent);
    atomic_fetch_add(&copied, stats.copied);
    LS_CHECK(stats.lent <= stats.writes && stats.copied <= stats.lent);
}

static void run_with(ls_tcp_zerocopy zerocopy)
{
    world w;

    atomic_store(&lent, 0);
    atomic_store(&copied, 0);
    world_init(&w, 2);
    w.args.sockets = 2;
    w.args.zerocopy = zerocopy;
    world_run(&w, traffic_and_loans);
    world_release(&w);
}

static bool can_lend(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    bool can = setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0;

    close(fd);
    return can;
}

/* Loopback: "auto" leaves it alone. Kernels that do not know it copy, and nothing is lent. */
LS_TEST_SECONDS(tcp_sends_out_of_the_callers_memory, 60)
{
    bool can = can_lend();

    run_with(LS_TCP_ZEROCOPY_OFF);
    LS_CHECK_EQ(atomic_load(&lent), 0);
    run_with(LS_TCP_ZEROCOPY_AUTO);
    LS_CHECK_EQ(atomic_load(&lent), 0);
    run_with(LS_TCP_ZEROCOPY_ON);
    LS_CHECK_EQ(atomic_load(&lent) > 0, can);
}

/* The kernel copies on loopback, and says so: "auto" believes it for this connection. */
static void lend_and_stop(world *w, int rank, ls_transport *transport)
{
    const ls_tcp *tcp = (const ls_tcp *)transport;
    const ls_tcp_channel *bulk = &tcp->links[1 - rank].channels[1];
    int64_t until = ls_time_now_ns() + WORLD_SOON;
    bool moved;

    world_traffic(w, rank, transport);
    while (bulk->lends && ls_time_now_ns() < until)
        LS_CHECK_OK(transport->table->poll(transport, &moved));
    LS_CHECK(!bulk->lends);
    atomic_fetch_add(&lent, tcp->stats.lent);
    atomic_fetch_add(&copied, tcp->stats.copied);
}

LS_TEST_SECONDS(tcp_lends_no_more_where_the_kernel_copies, 60)
{
    ls_sock_address at;
    world w;

    if (!can_lend())
        ls_test_skip("this kernel knows no MSG_ZEROCOPY");
    world_init(&w, 2);
    ls_sock_close(&w.listen_fd[1]);
    LS_CHECK_OK(ls_sock_resolve("127.0.0.2:0", ls_test_soon(), &at)); /* not the other's address */
    LS_CHECK_OK(ls_sock_listen(&at, &w.listen_fd[1]));
    LS_CHECK_OK(ls_sock_local(w.listen_fd[1], &at));
    snprintf(w.address[1], sizeof w.address[1], "%.63s", at.text);
    world_run(&w, lend_and_stop);
    world_release(&w);
    LS_CHECK(atomic_load(&lent) > 0 && atomic_load(&copied) > 0);
}

/* --- add --- */

enum { ADD_COUNT = 600000 };

static void add_values(world *w, int rank, ls_transport *transport)
{
    static const int counts[] = {0, 1, 100, 5000, ADD_COUNT};
    int32_t *mine = ls_mem_array(ADD_COUNT, sizeof *mine);
    int32_t *sum = ls_mem_array(ADD_COUNT, sizeof *sum);

    (void)w;
    LS_CHECK(mine && sum);
    for (size_t c = 0; c < LS_COUNT(counts); c++) {
        for (int i = 0; i < ADD_COUNT; i++) {
            mine[i] = i * (rank + 1);
            sum[i] = 7;
        }
        ls_message out = {.peer = 1 - rank, .tag = c, .data = mine, .bytes = counts[c] * 4};
        ls_message in = {.peer = 1 - rank,
                         .tag = c,
                         .data = sum,
                         .bytes = counts[c] * 4,
                         .add = true,
                         .op = LS_COMBINE_SUM,
                         .type = LS_I32};
        ls_message *both[] = {&out, &in};
        if (rank == 0) /* the other side's receive is late */
            LS_CHECK_OK(transport->table->receive(transport, &in));
        LS_CHECK_OK(transport->table->send(transport, &out));
        if (rank == 1) {
            ls_message *one[] = {&out};
            (void)world_wait(transport, one, 1, 30 * LS_NS_PER_MS);
            LS_CHECK_OK(transport->table->receive(transport, &in));
        }
        LS_CHECK_OK(world_wait(transport, both, 2, WORLD_SOON));
        for (int i = 0; i < ADD_COUNT; i++)
            if (sum[i] != (i < counts[c] ? 7 + i * (2 - rank) : 7))
                ls_test_fail(__FILE__, __LINE__, "element %d of %d is %d", i, counts[c], sum[i]);
    }
    ls_mem_free(mine);
    ls_mem_free(sum);
}

/* The sender changes its memory as soon as a message is done, whoever read it. */
LS_TEST(tcp_adds_what_arrives)
{
    static const ls_tcp_zerocopy ways[] = {LS_TCP_ZEROCOPY_OFF, LS_TCP_ZEROCOPY_ON};
    world w;

    for (size_t i = 0; i < LS_COUNT(ways); i++) {
        world_init(&w, 2);
        w.args.sockets = 3;
        w.args.zerocopy = ways[i];
        world_run(&w, add_values);
        world_release(&w);
    }
}

/* --- one write --- */

static int64_t writes_of(const ls_transport *transport)
{
    ls_tcp_stats stats;

    ls_tcp_stats_get(transport, &stats);
    return stats.writes;
}

/* Two small messages of one moment are one write; one that rides waits for the next to the same
 * rank, but not for ever. */
static void write_once(world *w, int rank, ls_transport *transport)
{
    char bytes[4][8] = {"a", "b", "c", "d"}, got[4][8] = {{0}};
    ls_message out[4], in[4], *outs[4], *ins[4];

    (void)w;
    for (uint64_t i = 0; i < 4; i++) {
        out[i] = (ls_message){
            .peer = 1 - rank, .tag = i, .data = bytes[i], .bytes = 8, .rides = i == 0 || i == 3};
        in[i] = (ls_message){.peer = 1 - rank, .tag = i, .data = got[i], .bytes = 8};
        outs[i] = &out[i];
        ins[i] = &in[i];
    }
    if (rank == 1) {
        for (int i = 0; i < 4; i++)
            LS_CHECK_OK(transport->table->receive(transport, ins[i]));
        LS_CHECK_OK(world_wait(transport, ins, 4, WORLD_SOON));
        for (int i = 0; i < 4; i++)
            LS_CHECK_STR(got[i], bytes[i]);
        return;
    }
    int64_t before = writes_of(transport);
    bool moved;
    LS_CHECK_OK(transport->table->send(transport, outs[0]));
    LS_CHECK_OK(transport->table->send(transport, outs[1]));
    LS_CHECK_OK(transport->table->send(transport, outs[2]));
    LS_CHECK_EQ(writes_of(transport), before);
    LS_CHECK_OK(transport->table->poll(transport, &moved));
    LS_CHECK(out[0].done && out[1].done && out[2].done);
    LS_CHECK(writes_of(transport) <= before + 2); /* the other may be a heartbeat */
    LS_CHECK_OK(transport->table->send(transport, outs[3]));
    LS_CHECK_OK(world_wait(transport, outs, 4, WORLD_SOON));
}

LS_TEST(tcp_sends_small_messages_of_one_moment_together)
{
    world w;

    world_init(&w, 2);
    world_run(&w, write_once);
    world_release(&w);
}

/* --- more ranks --- */

static void all_to_all(world *w, int rank, ls_transport *transport)
{
    ls_message messages[2 * WORLD_RANKS], *list[2 * WORLD_RANKS];
    int n = 0;

    for (int round = 0; round < 20; round++, n = 0) {
        for (int peer = 0; peer < w->ranks; peer++) {
            if (peer == rank)
                continue;
            uint64_t out = (uint64_t)round << 16 | (uint64_t)rank << 8 | (uint64_t)peer;
            uint64_t in = (uint64_t)round << 16 | (uint64_t)peer << 8 | (uint64_t)rank;
            messages[n] = (ls_message){.peer = peer,
                                       .tag = out,
                                       .data = (uint8_t *)(uintptr_t)world_bytes(out),
                                       .bytes = world_size(out) % (200 << 10)};
            list[n] = &messages[n];
            LS_CHECK_OK(transport->table->send(transport, list[n++]));
            messages[n] =
                (ls_message){.peer = peer, .tag = in, .bytes = world_size(in) % (200 << 10)};
            messages[n].data = ls_mem_alloc((size_t)messages[n].bytes);
            LS_CHECK(messages[n].data);
            list[n] = &messages[n];
            LS_CHECK_OK(transport->table->receive(transport, list[n++]));
        }
        LS_CHECK_OK(world_wait(transport, list, n, WORLD_SOON));
        for (int i = 1; i < n; i += 2) {
            LS_CHECK(memcmp(messages[i].data, world_bytes(messages[i].tag),
                            (size_t)messages[i].bytes) == 0);
            ls_mem_free(messages[i].data);
        }
    }
}

LS_TEST(tcp_joins_many_ranks)
{
    world w;

    world_init(&w, 6);
    world_run(&w, all_to_all);
    world_release(&w);
}

/* Many small messages that nobody asks for yet: they wait within the credit, others pass them. */
static void flood_then_ask(world *w, int rank, ls_transport *transport)
{
    enum { MANY = 3000, BYTES = 1000 };
    ls_message *messages = ls_mem_array(MANY, sizeof *messages);
    ls_message **list = ls_mem_array(MANY, sizeof *list);
    uint8_t *memory = ls_mem_array(MANY, BYTES), big[1] = {0};

    (void)w;
    LS_CHECK(messages && list && memory);
    for (int i = 0; i < MANY; i++) {
        list[i] = &messages[i];
        messages[i] = (ls_message){.peer = 1 - rank, .tag = (uint64_t)i, .bytes = BYTES};
    }
    if (rank == 0) {
        for (int i = 0; i < MANY; i++) {
            messages[i].data = (uint8_t *)(uintptr_t)world_bytes((uint64_t)i);
            LS_CHECK_OK(transport->table->send(transport, &messages[i]));
        }
        ls_message last = {.peer = 1, .tag = MANY, .data = big, .bytes = 1}, *one[] = {&last};
        LS_CHECK_OK(transport->table->send(transport, &last));
        LS_CHECK_OK(world_wait(transport, one, 1, WORLD_SOON));
        LS_CHECK_OK(world_wait(transport, list, MANY, WORLD_SOON));
    } else {
        ls_message last = {.peer = 0, .tag = MANY, .data = big, .bytes = 1}, *one[] = {&last};
        LS_CHECK_OK(transport->table->receive(transport, &last)); /* the last one first */
        LS_CHECK_OK(world_wait(transport, one, 1, WORLD_SOON));
        for (int i = MANY - 1; i >= 0; i--) {
            messages[i].data = memory + (size_t)i * BYTES;
            LS_CHECK_OK(transport->table->receive(transport, &messages[i]));
        }
        LS_CHECK_OK(world_wait(transport, list, MANY, WORLD_SOON));
        for (int i = 0; i < MANY; i++)
            LS_CHECK(memcmp(messages[i].data, world_bytes((uint64_t)i), BYTES) == 0);
    }
    ls_mem_free(messages);
    ls_mem_free(list);
    ls_mem_free(memory);
}

LS_TEST(tcp_early_messages_block_nobody)
{
    world w;

    world_init(&w, 2);
    world_run(&w, flood_then_ask);
    world_release(&w);
}

/* --- disagreement --- */

static const int64_t pairs_of_sizes[][2] = {
    {10, 11}, {0, 1}, {100, 100000}, {100000, 100}, {100000, 100001}};
static int which_pair;

static void disagree(world *w, int rank, ls_transport *transport)
{
    ls_message message = {.peer = 1 - rank, .tag = 5, .bytes = pairs_of_sizes[which_pair][rank]};
    ls_message *one[] = {&message};
    uint8_t *memory = ls_mem_alloc(200000);
    char text[64];

    (void)w;
    LS_CHECK(memory);
    message.data = memory;
    ls_status st = rank == 0 ? transport->table->send(transport, &message)
                             : transport->table->receive(transport, &message);
    if (st == LS_OK)
        st = world_wait(transport, one, 1, WORLD_SOON);
    if (st == LS_OK) { /* a small send is done before anybody looked at it */
        message = (ls_message){.peer = 1, .tag = 6, .data = memory, .bytes = 1};
        st = transport->table->receive(transport, &message);
        st = st == LS_OK ? world_wait(transport, one, 1, WORLD_SOON) : st;
    }
    LS_CHECK(st == LS_EDATA || st == LS_EPEER);
    snprintf(text, sizeof text, "sends %lld bytes", (long long)pairs_of_sizes[which_pair][0]);
    LS_CHECK(strstr(ls_err_last()->text, text));
    snprintf(text, sizeof text, "expects %lld", (long long)pairs_of_sizes[which_pair][1]);
    LS_CHECK(strstr(ls_err_last()->text, text));
    LS_CHECK_EQ(transport->table->send(transport, &message), (int)st); /* it stays broken */
    ls_mem_free(memory);
}

LS_TEST(tcp_different_sizes_are_named_on_both_sides)
{
    for (which_pair = 0; which_pair < (int)LS_COUNT(pairs_of_sizes); which_pair++) {
        world w;
        world_init(&w, 2);
        world_run(&w, disagree);
        world_release(&w);
    }
}

/* --- opening and closing --- */

static void do_nothing(world *w, int rank, ls_transport *transport)
{
    (void)w;
    (void)rank;
    (void)transport;
}

static void one_large(world *w, int rank, ls_transport *transport)
{
    uint8_t *memory = ls_mem_alloc(300000);
    ls_message message = {.peer = 1 - rank, .tag = 1, .data = memory, .bytes = 300000};
    ls_message *one[] = {&message};

    (void)w;
    LS_CHECK(memory);
    LS_CHECK_OK(rank == 0 ? transport->table->send(transport, &message)
                          : transport->table->receive(transport, &message));
    LS_CHECK_OK(world_wait(transport, one, 1, WORLD_SOON));
    ls_mem_free(memory);
}

LS_TEST(tcp_open_and_close_leave_nothing)
{
    world w;

    world_init(&w, 2);
    world_run(&w, one_large);
    int before = world_open_fds();
    for (int i = 0; i < ls_test_times(200); i++) {
        world_run(&w, i % 4 == 0 ? one_large : do_nothing);
        LS_CHECK_EQ(world_open_fds(), before);
    }
    world_release(&w);
}

LS_TEST(tcp_every_failing_allocation_is_an_error)
{
    world w;

    world_init(&w, 1);
    for (uint64_t n = 1;; n++) {
        ls_transport *transport = NULL;
        ls_mem_fail_nth(n);
        ls_status st = world_open(&w, 0, &transport);
        ls_mem_fail_nth(0);
        if (st == LS_OK) {
            LS_CHECK(n > 3);
            transport->table->close(transport);
            break;
        }
        LS_CHECK_EQ(st, LS_ENOMEM);
    }
    world_release(&w);
}

/* Memory ends in the middle of messages: an error on one rank or both, or none; nothing else. */
static uint64_t failing;

static void run_short_of_memory(world *w, int rank, ls_transport *transport)
{
    static const int64_t sizes[] = {100, 30000, 400000, 400000};
    ls_message messages[8], *list[8];
    uint8_t *memory = calloc(8, 400000); /* not the memory that ends */
    ls_status st = LS_OK;

    (void)w;
    LS_CHECK(memory);
    if (rank == 0)
        ls_mem_fail_nth(failing);
    for (int i = 0; i < 8 && st == LS_OK; i++) {
        messages[i] = (ls_message){.peer = 1 - rank,
                                   .tag = (uint64_t)(i % 4),
                                   .data = memory + 400000 * i,
                                   .bytes = sizes[i % 4],
                                   .add = i > 4,
                                   .type = LS_F32};
        list[i] = &messages[i];
        st = i < 4 ? transport->table->send(transport, list[i])
                   : transport->table->receive(transport, list[i]);
    }
    if (st == LS_OK)
        st = world_wait(transport, list, 8, WORLD_SOON);
    if (st != LS_OK && st != LS_ENOMEM && st != LS_EPEER)
        ls_test_fail(__FILE__, __LINE__, "%s", ls_err_last()->text);
    free(memory);
}

LS_TEST(tcp_running_out_of_memory_is_an_error)
{
    for (failing = 1; failing < 40; failing++) {
        world w;
        world_init(&w, 2);
        world_run(&w, run_short_of_memory);
        ls_mem_fail_nth(0);
        world_release(&w);
    }
}

LS_TEST(tcp_names_the_missing_rank)
{
    ls_tcp_args args = {0};
    ls_transport *transport = NULL;
    world w;

    world_init(&w, 3);
    ls_sock_close(&w.listen_fd[2]);
    args = (ls_tcp_args){.rank = 0,
                         .ranks = 3,
                         .addresses = w.addresses,
                         .listen_fd = w.listen_fd[0],
                         .secret = w.secret};
    LS_CHECK_FAILS(ls_tcp_open(&transport, &args, ls_time_now_ns() + 200 * LS_NS_PER_MS),
                   LS_EDEADLINE, "2 ranks did not connect to rank 0");
    LS_CHECK(strstr(ls_err_last()->text, w.address[2]));
    LS_CHECK_EQ(ls_err_last()->unreached, 1 + 1); /* the first of them */
    LS_CHECK_FAILS(ls_tcp_open(&transport, &args, 0), LS_EDEADLINE, "did not connect");
    args.sockets = 9;
    LS_CHECK_FAILS(ls_tcp_open(&transport, &args, 0), LS_EUSAGE, "9 sockets");
    args.sockets = 1;
    args.chunk_bytes = 5000;
    LS_CHECK_FAILS(ls_tcp_open(&transport, &args, 0), LS_EUSAGE, "chunks of 5000");
    world_release(&w);
}

/* Closing is an error only for a rank that still wants something. */
static void close_early(world *w, int rank, ls_transport *transport)
{
    ls_message message = {.peer = 1 - rank, .tag = 1, .data = w, .bytes = 8}, *one[] = {&message};
    char got[8];

    if (rank == 0) {
        LS_CHECK_OK(transport->table->send(transport, &message));
        LS_CHECK_OK(world_wait(transport, one, 1, WORLD_SOON));
        return;
    }
    /* Rank 0 may be closed by now; its message is here all the same. */
    usleep(100000);
    message.data = got;
    LS_CHECK_OK(world_wait(transport, one, 0, 0));
    LS_CHECK_OK(transport->table->receive(transport, &message));
    LS_CHECK_OK(world_wait(transport, one, 1, WORLD_SOON));
    LS_CHECK(memcmp(got, w, 8) == 0);
}

typedef struct closer {
    world *w;
    int rank;
} closer;

static atomic_bool zero_closed;

static void *run_and_close(void *context)
{
    closer *c = context;
    ls_transport *transport = NULL;
    bool moved;

    LS_CHECK_OK(world_open(c->w, c->rank, &transport));
    close_early(c->w, c->rank, transport);
    if (c->rank == 1) {
        ls_message more = {.peer = 0, .tag = 2, .data = transport, .bytes = 8};
        for (int i = 0; i < 50; i += atomic_load(&zero_closed)) {
            LS_CHECK_OK(transport->table->poll(transport, &moved));
            usleep(1000);
        }
        LS_CHECK_FAILS(transport->table->send(transport, &more), LS_EPEER, "has closed");
    }
    transport->table->close(transport);
    if (c->rank == 0)
        atomic_store(&zero_closed, true);
    return NULL;
}

LS_TEST(tcp_a_closed_rank_is_missed_only_when_needed)
{
    pthread_t threads[2];
    closer closers[2];
    world w;

    world_init(&w, 2);
    for (int r = 0; r < 2; r++) {
        closers[r] = (closer){&w, r};
        LS_CHECK_EQ(pthread_create(&threads[r], NULL, run_and_close, &closers[r]), 0);
    }
    for (int r = 0; r < 2; r++)
        pthread_join(threads[r], NULL);
    world_release(&w);
}

/* --- headers --- */

LS_TEST(tcp_wire_survives_and_is_judged)
{
    ls_tcp_wire wire = {.kind = LS_TCP_WIRE_CHUNK_OF,
                        .channel = 3,
                        .flags = 1,
                        .generation = UINT64_C(0x1122334455667788),
                        .sequence = UINT64_MAX,
                        .tag = UINT64_MAX - 1,
                        .offset = UINT64_C(1) << 40,
                        .length = LS_TCP_WIRE_CHUNK,
                        .crc = 0xdeadbeef,
                        .ack = 77,
                        .consumed = 99},
                got;
    uint8_t bytes[64], again[64];

    ls_tcp_wire_put(&wire, bytes);
    LS_CHECK(ls_tcp_wire_get(bytes, &got) == NULL);
    ls_tcp_wire_put(&got, again);
    LS_CHECK(memcmp(again, bytes, sizeof bytes) == 0 && got.tag == wire.tag);
    for (int i = 0; i < 64; i++) { /* no single changed byte passes */
        bytes[i] ^= 0x40;
        LS_CHECK(ls_tcp_wire_get(bytes, &got) != NULL);
        bytes[i] ^= 0x40;
    }
    wire.length++;
    ls_tcp_wire_put(&wire, bytes);
    LS_CHECK_STR(ls_tcp_wire_get(bytes, &got), "an absurd length");
    wire.length = 1;
    wire.offset = UINT64_MAX;
    ls_tcp_wire_put(&wire, bytes);
    LS_CHECK_STR(ls_tcp_wire_get(bytes, &got), "an absurd offset");
    wire.offset = 0;
    wire.kind = 200;
    ls_tcp_wire_put(&wire, bytes);
    LS_CHECK_STR(ls_tcp_wire_get(bytes, &got), "a frame of an unknown kind");
}

/* Chunks of a message of more than 4 GiB cover it exactly, with offsets that fit the header. */
LS_TEST(tcp_cuts_messages_beyond_4_gib)
{
    int64_t bytes = 5 * LS_GIB + 12345, chunk = 256 * LS_KIB, offset = 0, chunks = 0;

    while (offset < bytes) {
        uint32_t n = (uint32_t)ls_min_i64(chunk, bytes - offset);
        ls_tcp_wire wire = {.kind = LS_TCP_WIRE_CHUNK_OF,
                            .sequence = (uint64_t)++chunks,
                            .offset = (uint64_t)offset,
                            .length = n},
                    got;
        uint8_t header[64];
        LS_CHECK(n > 0 && n <= chunk);
        if (offset > 4 * LS_GIB && chunks % 64 == 0) {
            ls_tcp_wire_put(&wire, header);
            LS_CHECK(ls_tcp_wire_get(header, &got) == NULL);
            LS_CHECK_EQ(got.offset, offset);
        }
        offset += n;
    }
    LS_CHECK_EQ(offset, bytes);
    LS_CHECK_EQ(chunks, (bytes + chunk - 1) / chunk);
}

LS_TEST(tcp_large_worlds_are_joined_by_neighbours)
{
    enum { RANKS = 300 };
    int far[RANKS], at = 0, n = 1;

    /* Which ranks hear of rank 0, hop by hop: all, in a few hops. */
    for (int i = 0; i < RANKS; i++)
        far[i] = -1;
    int queue[RANKS] = {0};
    far[0] = 0;
    while (at < n) {
        int a = queue[at++];
        for (int b = 0; b < RANKS; b++) {
            LS_CHECK(a == b ||
                     ls_tcp_is_neighbour(a, b, RANKS) == ls_tcp_is_neighbour(b, a, RANKS));
            if (a != b && far[b] < 0 && ls_tcp_is_neighbour(a, b, RANKS)) {
                far[b] = far[a] + 1;
                queue[n++] = b;
            }
        }
    }
    LS_CHECK_EQ(n, RANKS);
    LS_CHECK(far[queue[n - 1]] <= 5);
}
