/* hybrid.c -- hands each message to one of two transports, under the number that its peer has
 * there.
 *
 *     4 ranks on 2 nodes, seen from rank 2:    peer 0, 1 -> network 0, 1      peer 3 -> node 1
 *
 * Neither transport can wake a sleeper of the other. So with both in use, a sleep is a short one of
 * the network between two looks at the segment:
 *
 *     in use         sleep                                       count
 *     node           of the segment, which other ranks wake      of the segment
 *     network        of the network                              of the network
 *     both           50 us of the network, then a look at both   of the one that has the peer */
#include "comm/transport/hybrid.h"

#include <string.h>
#include "base/mem.h"
#include "base/time.h"

enum { LOOK_NS = 50000 };

typedef struct hybrid {
    ls_transport base;
    ls_transport *node, *network;
    int *place;
} hybrid;

static ls_transport *side(hybrid *b, ls_message *message)
{
    int place = b->place[message->peer];

    if (place < 0 || !b->node)
        return b->network;
    message->peer = place;
    return b->node;
}

static ls_status hybrid_send(ls_transport *transport, ls_message *message)
{
    ls_transport *c = side((hybrid *)transport, message);

    return c->table->send(c, message);
}

static ls_status hybrid_receive(ls_transport *transport, ls_message *message)
{
    ls_transport *c = side((hybrid *)transport, message);

    return c->table->receive(c, message);
}

static ls_status hybrid_poll(ls_transport *transport, bool *moved_out)
{
    hybrid *b = (hybrid *)transport;
    bool node = false, network = false;
    ls_status st = LS_OK;

    if (b->node)
        LS_TRY(st, b->node->table->poll(b->node, &node), out);
    if (b->network)
        LS_TRY(st, b->network->table->poll(b->network, &network), out);
    *moved_out = node || network;
out:
    return st;
}

static void hybrid_sleep(ls_transport *transport, int64_t until_ns)
{
    hybrid *b = (hybrid *)transport;

    if (!b->network)
        b->node->table->sleep(b->node, until_ns);
    else if (!b->node)
        b->network->table->sleep(b->network, until_ns);
    else
        b->network->table->sleep(b->network, ls_min_i64(until_ns, ls_time_now_ns() + LOOK_NS));
}

static void hybrid_wake(ls_transport *transport)
{
    hybrid *b = (hybrid *)transport;

    if (b->node)
        b->node->table->wake(b->node);
    if (b->network)
        b->network->table->wake(b->network);
}

static void hybrid_count(const ls_transport *transport, int peer, int64_t *sent_out,
                         int64_t *received_out)
{
    const hybrid *b = (const hybrid *)transport;

    *sent_out = *received_out = 0;
    if (b->node && b->place[peer] >= 0)
        b->node->table->count(b->node, b->place[peer], sent_out, received_out);
    else if (b->network)
        b->network->table->count(b->network, peer, sent_out, received_out);
}

static void hybrid_close(ls_transport *transport)
{
    hybrid *b = (hybrid *)transport;

    ls_transport_close(b->node);
    ls_transport_close(b->network);
    ls_mem_free(b->place);
    ls_mem_free(b);
}

static const ls_transport_table hybrid_table = {.name = "hybrid",
                                                .send = hybrid_send,
                                                .receive = hybrid_receive,
                                                .poll = hybrid_poll,
                                                .sleep = hybrid_sleep,
                                                .wake = hybrid_wake,
                                                .count = hybrid_count,
                                                .close = hybrid_close};

ls_status ls_hybrid_open(ls_transport **transport_out, const ls_hybrid_args *args)
{
    hybrid *b = ls_mem_alloc(sizeof *b);
    int *place = ls_mem_array((size_t)args->ranks, sizeof *place);

    if (!b || !place) {
        ls_mem_free(b);
        ls_mem_free(place);
        ls_transport_close(args->node);
        ls_transport_close(args->network);
        return ls_fail(LS_ENOMEM, "no memory for the list of %d ranks", args->ranks);
    }
    memcpy(place, args->place, (size_t)args->ranks * sizeof *place);
    *b = (hybrid){
        .base = {&hybrid_table}, .node = args->node, .network = args->network, .place = place};
    *transport_out = &b->base;
    return LS_OK;
}

void ls_hybrid_set_network(ls_transport *transport, ls_transport *network)
{
    ((hybrid *)transport)->network = network;
}
