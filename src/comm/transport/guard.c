/* guard.c -- messages go through `data`; `watch` is polled for deaths.
 *
 * The watch is polled once in a millisecond: often enough for deaths, without a system call for
 * each message. A sleeper sleeps in `data`, and in slices, because the watch cannot wake it.
 *
 *   both well --(data fails because of a peer)--> doubtful --(watch fails, or 0.1 s)--> broken
 *        '-----(watch fails, or data for another reason)------------------------------>---'
 *
 * look() takes all arrows; nothing is sent or received while doubtful. */
#include "comm/transport/guard.h"

#include "base/mem.h"
#include "base/time.h"

static const int64_t LOOK_NS = LS_NS_PER_MS;
static const int64_t SLEEP_NS = 5 * LS_NS_PER_MS;
static const int64_t DOUBT_NS = 100 * LS_NS_PER_MS;

typedef struct guard {
    ls_transport transport; /* first */
    ls_transport_table table;
    ls_transport *data, *watch; /* owned */
    int64_t spin_ns;
    int64_t look_ns;  /* when the watch is polled next */
    int64_t doubt_ns; /* until when a failure of data waits for the watch; 0: none */
    ls_err_record why;
    bool broken;
} guard;

static ls_status broken(guard *g)
{
    g->broken = true;
    g->why = *ls_err_last();
    return g->why.code;
}

static bool in_doubt(const guard *g)
{
    return g->doubt_ns != 0;
}

/* The outcome of a failure of data: LS_OK while the watch may still say more. */
static ls_status doubt(guard *g)
{
    if (ls_err_last()->code != LS_EPEER)
        return broken(g);
    g->why = *ls_err_last();
    g->doubt_ns = ls_time_now_ns() + DOUBT_NS;
    g->look_ns = 0;
    return LS_OK;
}

/* Look at the watch, if it is time to. */
static ls_status look(guard *g)
{
    int64_t now = ls_time_now_ns();
    bool moved;

    if (now >= g->look_ns || in_doubt(g)) {
        g->look_ns = now + LOOK_NS;
        if (g->watch->table->poll(g->watch, &moved) != LS_OK)
            return broken(g);
    }
    if (in_doubt(g) && now >= g->doubt_ns) {
        ls_err_adopt(&g->why);
        return broken(g);
    }
    return LS_OK;
}

static ls_status post(guard *g, ls_message *message,
                      ls_status (*how)(ls_transport *transport, ls_message *message))
{
    message->done = false;
    if (g->broken)
        return ls_err_adopt(&g->why);
    if (in_doubt(g))
        return LS_OK; /* nothing moves any more; the next polls say why */
    return how(g->data, message) == LS_OK ? LS_OK : doubt(g);
}

static ls_status guard_send(ls_transport *transport, ls_message *message)
{
    return post((guard *)transport, message, ((guard *)transport)->data->table->send);
}

static ls_status guard_receive(ls_transport *transport, ls_message *message)
{
    return post((guard *)transport, message, ((guard *)transport)->data->table->receive);
}

static ls_status guard_poll(ls_transport *transport, bool *moved_out)
{
    guard *g = (guard *)transport;
    bool moved = false;
    ls_status st = LS_OK;

    if (g->broken)
        return ls_err_adopt(&g->why);
    if (!in_doubt(g) && g->data->table->poll(g->data, &moved) != LS_OK)
        LS_TRY(st, doubt(g), out);
    LS_TRY(st, look(g), out);
    *moved_out = moved;
out:
    return st;
}

/* Whether looking again and again found something to do. */
static bool spin(guard *g, int64_t until_ns)
{
    bool moved = false;

    until_ns = ls_min_i64(until_ns, ls_time_now_ns() + g->spin_ns);
    while (!moved && ls_time_now_ns() < until_ns)
        if (g->data->table->poll(g->data, &moved) != LS_OK)
            return true; /* it fails again when it is polled */
    return moved;
}

static void guard_sleep(ls_transport *transport, int64_t until_ns)
{
    guard *g = (guard *)transport;

    until_ns = ls_min_i64(until_ns, ls_time_now_ns() + SLEEP_NS);
    if (g->broken)
        return;
    if (in_doubt(g))
        g->watch->table->sleep(g->watch, until_ns);
    else if (!g->spin_ns || !spin(g, until_ns))
        g->data->table->sleep(g->data, until_ns);
}

static void guard_wake(ls_transport *transport)
{
    guard *g = (guard *)transport;

    g->data->table->wake(g->data);
    g->watch->table->wake(g->watch);
}

static void guard_count(const ls_transport *transport, int peer, int64_t *sent_out,
                        int64_t *received_out)
{
    const guard *g = (const guard *)transport;
    int64_t sent = 0, received = 0;

    g->data->table->count(g->data, peer, sent_out, received_out);
    g->watch->table->count(g->watch, peer, &sent, &received);
    *sent_out += sent;
    *received_out += received;
}

/* The watch goes last: while it is open, no peer takes this rank for dead. */
static void guard_close(ls_transport *transport)
{
    guard *g = (guard *)transport;

    ls_transport_close(g->data);
    ls_transport_close(g->watch);
    ls_mem_free(g);
}

ls_status ls_guard_open(ls_transport **transport_out, const ls_guard_args *args)
{
    guard *g = ls_mem_alloc(sizeof *g);

    if (!g)
        return ls_fail(LS_ENOMEM, "no memory for a pair of transports");
    *g = (guard){.table = {.name = args->data->table->name,
                           .send = guard_send,
                           .receive = guard_receive,
                           .poll = guard_poll,
                           .sleep = guard_sleep,
                           .wake = guard_wake,
                           .count = guard_count,
                           .close = guard_close},
                 .data = args->data,
                 .watch = args->watch,
                 .spin_ns = args->spin_ns};
    g->transport.table = &g->table;
    *transport_out = &g->transport;
    return LS_OK;
}
