/* test_hybrid.c -- one transport made of two: which one gets what, and what each says. */
#include "base/mem.h"
#include "base/time.h"
#include "comm/transport/hybrid.h"
#include "harness.h"

/* A transport that notes what it was asked. */
typedef struct noter {
    ls_transport base;
    int sends, receives, polls, wakes, closes;
    int peer; /* of the last message */
    int64_t until_ns;
    bool moves;
    ls_status fails;
} noter;

static ls_status note_send(ls_transport *transport, ls_message *message)
{
    noter *n = (noter *)transport;

    n->sends++;
    n->peer = message->peer;
    return n->fails ? ls_fail(n->fails, "this one is broken") : LS_OK;
}

static ls_status note_receive(ls_transport *transport, ls_message *message)
{
    noter *n = (noter *)transport;

    n->receives++;
    n->peer = message->peer;
    return n->fails ? ls_fail(n->fails, "this one is broken") : LS_OK;
}

static ls_status note_poll(ls_transport *transport, bool *moved_out)
{
    noter *n = (noter *)transport;

    n->polls++;
    *moved_out = n->moves;
    return n->fails ? ls_fail(n->fails, "this one is broken") : LS_OK;
}

static void note_sleep(ls_transport *transport, int64_t until_ns)
{
    ((noter *)transport)->until_ns = until_ns;
}

static void note_wake(ls_transport *transport)
{
    ((noter *)transport)->wakes++;
}

static void note_count(const ls_transport *transport, int peer, int64_t *sent_out,
                       int64_t *received_out)
{
    *sent_out = 100 + peer;
    *received_out = 200 + ((const noter *)transport)->sends;
}

static void note_close(ls_transport *transport)
{
    ((noter *)transport)->closes++;
}

static const ls_transport_table table = {.name = "noter",
                                         .send = note_send,
                                         .receive = note_receive,
                                         .poll = note_poll,
                                         .sleep = note_sleep,
                                         .wake = note_wake,
                                         .count = note_count,
                                         .close = note_close};

/* Ranks 1 and 3 are node, at places 0 and 1. */
static const int places[] = {-1, 0, -1, 1};

static ls_transport *join(noter *node, noter *network)
{
    ls_transport *c = NULL;
    ls_hybrid_args args = {.place = places, .ranks = 4};

    if (node) {
        *node = (noter){.base = {&table}};
        args.node = &node->base;
    }
    if (network) {
        *network = (noter){.base = {&table}};
        args.network = &network->base;
    }
    LS_CHECK_OK(ls_hybrid_open(&c, &args));
    return c;
}

LS_TEST(hybrid_hands_each_message_to_one)
{
    noter node, network;
    ls_transport *c = join(&node, &network);
    int64_t sent, received;

    ls_message m = {.peer = 3};
    LS_CHECK_OK(c->table->send(c, &m));
    LS_CHECK_EQ(node.sends, 1);
    LS_CHECK_EQ(node.peer, 1);
    m = (ls_message){.peer = 2};
    LS_CHECK_OK(c->table->receive(c, &m));
    LS_CHECK_EQ(network.receives, 1);
    LS_CHECK_EQ(network.peer, 2);
    m = (ls_message){.peer = 1};
    LS_CHECK_OK(c->table->receive(c, &m));
    LS_CHECK_EQ(node.receives, 1);
    LS_CHECK_EQ(node.peer, 0);
    LS_CHECK_EQ(network.sends, 0);
    c->table->count(c, 3, &sent, &received);
    LS_CHECK_EQ(sent, 101);
    LS_CHECK_EQ(received, 201);
    c->table->count(c, 2, &sent, &received);
    LS_CHECK_EQ(sent, 102);
    LS_CHECK_EQ(received, 200);
    c->table->close(c);
    LS_CHECK_EQ(node.closes, 1);
    LS_CHECK_EQ(network.closes, 1);
}

LS_TEST(hybrid_moves_wakes_and_sleeps_for_the_two)
{
    noter node, network;
    ls_transport *c = join(&node, &network);
    int64_t late = ls_time_now_ns() + 10 * LS_NS_PER_S;
    bool moved = true;

    LS_CHECK_OK(c->table->poll(c, &moved));
    LS_CHECK(!moved);
    node.moves = true;
    LS_CHECK_OK(c->table->poll(c, &moved));
    LS_CHECK(moved);
    node.moves = false;
    network.moves = true;
    LS_CHECK_OK(c->table->poll(c, &moved));
    LS_CHECK(moved);
    LS_CHECK_EQ(node.polls, 3);
    LS_CHECK_EQ(network.polls, 3);
    c->table->wake(c);
    LS_CHECK_EQ(node.wakes, 1);
    LS_CHECK_EQ(network.wakes, 1);
    c->table->sleep(c, late); /* the node one must be looked at again soon */
    LS_CHECK(network.until_ns > 0 && network.until_ns < ls_time_now_ns() + LS_NS_PER_S);
    c->table->sleep(c, 5);
    LS_CHECK_EQ(network.until_ns, 5);
    LS_CHECK_EQ(node.until_ns, 0);
    c->table->close(c);
}

LS_TEST(hybrid_passes_on_what_broke)
{
    noter node, network;
    ls_transport *c = join(&node, &network);
    ls_message m = {.peer = 0};
    bool moved;

    network.fails = LS_EPEER;
    LS_CHECK_FAILS(c->table->send(c, &m), LS_EPEER, "broken");
    LS_CHECK_FAILS(c->table->poll(c, &moved), LS_EPEER, "broken");
    network.fails = LS_OK;
    node.fails = LS_EDATA;
    LS_CHECK_FAILS(c->table->poll(c, &moved), LS_EDATA, "broken");
    m.peer = 1;
    LS_CHECK_FAILS(c->table->receive(c, &m), LS_EDATA, "broken");
    c->table->close(c);
}

LS_TEST(hybrid_may_be_one)
{
    noter one;
    ls_transport *c = join(&one, NULL);
    ls_message m = {.peer = 3};
    int64_t sent, received;
    bool moved;

    LS_CHECK_OK(c->table->send(c, &m));
    LS_CHECK_OK(c->table->poll(c, &moved));
    c->table->wake(c);
    c->table->sleep(c, 77);
    LS_CHECK_EQ(one.until_ns, 77);
    c->table->count(c, 0, &sent, &received); /* nobody reaches it */
    LS_CHECK_EQ(sent + received, 0);
    c->table->close(c);
    LS_CHECK_EQ(one.closes, 1);
    c = join(NULL, &one);
    m.peer = 3; /* at a place, but there is no node one */
    LS_CHECK_OK(c->table->send(c, &m));
    LS_CHECK_EQ(one.peer, 3);
    LS_CHECK_OK(c->table->poll(c, &moved));
    c->table->wake(c);
    c->table->sleep(c, 78);
    LS_CHECK_EQ(one.until_ns, 78);
    c->table->close(c);
    LS_CHECK_EQ(one.closes, 1);
}

LS_TEST(hybrid_without_memory_closes_the_two)
{
    for (uint64_t n = 1; n <= 2; n++) {
        noter node = {.base = {&table}}, network = {.base = {&table}};
        ls_hybrid_args args = {
            .node = &node.base, .network = &network.base, .place = places, .ranks = 4};
        ls_transport *c = NULL;
        ls_mem_fail_nth(n);
        LS_CHECK_FAILS(ls_hybrid_open(&c, &args), LS_ENOMEM, "no memory");
        ls_mem_fail_nth(0);
        LS_CHECK(!c && node.closes == 1 && network.closes == 1);
    }
}
