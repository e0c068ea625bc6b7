/* node_and_net.c -- see node_and_net.h. A message is handed to one of the two under that one's number of the peer.
 *
 * Neither can wake up a sleeper of the other, so with both in use a sleep is a short one of the
 * network between two looks at the shared-memory segment. */
#include "comm/transport/node_and_net.h"

#include <string.h>
#include "base/mem.h"
#include "base/time.h"

enum { LOOK_NS = 50000 };

typedef struct both {
    ls_transport base;
    ls_transport *near, *far;
    int *place;
} both;

static ls_transport *side(both *b, ls_message *message)
{
    int place = b->place[message->peer];

    if (place < 0 || !b->near)
        return b->far;
    message->peer = place;
    return b->near;
}

static ls_status both_send(ls_transport *transport, ls_message *message)
{
    ls_transport *c = side((both *)transport, message);

    return c->table->send(c, message);
}

static ls_status both_receive(ls_transport *transport, ls_message *message)
{
    ls_transport *c = side((both *)transport, message);

    return c->table->receive(c, message);
}

static ls_status both_poll(ls_transport *transport, bool *moved_out)
{
    both *b = (both *)transport;
    bool near = false, far = false;
    ls_status st = LS_OK;

    if (b->near)
        LS_TRY(st, b->near->table->poll(b->near, &near), out);
    if (b->far)
        LS_TRY(st, b->far->table->poll(b->far, &far), out);
    *moved_out = near || far;
out:
    return st;
}

static void both_sleep(ls_transport *transport, int64_t until_ns)
{
    both *b = (both *)transport;

    if (!b->far)
        b->near->table->sleep(b->near, until_ns);
    else if (!b->near)
        b->far->table->sleep(b->far, until_ns);
    else
        b->far->table->sleep(b->far, ls_min_i64(until_ns, ls_time_now_ns() + LOOK_NS));
}

static void both_wake(ls_transport *transport)
{
    both *b = (both *)transport;

    if (b->near)
        b->near->table->wake(b->near);
    if (b->far)
        b->far->table->wake(b->far);
}

static void both_count(const ls_transport *transport, int peer, int64_t *sent_out,
                       int64_t *received_out)
{
    const both *b = (const both *)transport;

    *sent_out = *received_out = 0;
    if (b->near && b->place[peer] >= 0)
        b->near->table->count(b->near, b->place[peer], sent_out, received_out);
    else if (b->far)
        b->far->table->count(b->far, peer, sent_out, received_out);
}

static void both_close(ls_transport *transport)
{
    both *b = (both *)transport;

    if (b->near)
        b->near->table->close(b->near);
    if (b->far)
        b->far->table->close(b->far);
    ls_mem_free(b->place);
    ls_mem_free(b);
}

static const ls_transport_table both_table = {.name = "both",
                                              .send = both_send,
                                              .receive = both_receive,
                                              .poll = both_poll,
                                              .sleep = both_sleep,
                                              .wake = both_wake,
                                              .count = both_count,
                                              .close = both_close};

ls_status ls_node_and_net_open(ls_transport **transport_out, const ls_node_and_net_args *args)
{
    both *b = ls_mem_alloc(sizeof *b);
    int *place = ls_mem_array((size_t)args->ranks, sizeof *place);

    if (!b || !place) {
        ls_mem_free(b);
        ls_mem_free(place);
        if (args->near)
            args->near->table->close(args->near);
        if (args->far)
            args->far->table->close(args->far);
        return ls_fail(LS_ENOMEM, "no memory for the list of %d ranks", args->ranks);
    }
    memcpy(place, args->place, (size_t)args->ranks * sizeof *place);
    *b = (both){.base = {&both_table}, .near = args->near, .far = args->far, .place = place};
    *transport_out = &b->base;
    return LS_OK;
}

void ls_node_and_net_set_far(ls_transport *transport, ls_transport *far)
{
    ((both *)transport)->far = far;
}
