/* shm.c -- the transport between ranks of one node: node/pair.h moves the messages, this file adds
 * a sticky failure, sleeping and waking.
 *
 *      rank 0  --- ring: "tag 7, 1 MiB at heap + 4096" --->  rank 1
 *              <-- ring: "7 is fetched" -------------------  reads or adds it where it lies */
#include "comm/transport/shm.h"

#include <stdatomic.h>
#include "base/mem.h"
#include "base/time.h"
#include "comm/node/pair.h"
#include "comm/node/wait.h"

typedef struct shm {
    ls_transport transport; /* first */
    ls_group *group;
    ls_pair *pair;
    bool failed;
    ls_err_record failure;
    _Atomic bool woken;
} shm;

static shm *of(ls_transport *transport)
{
    return (shm *)(void *)transport;
}

static ls_status broke(shm *s)
{
    s->failed = true;
    s->failure = *ls_err_last();
    ls_shm_segment_give_up(s->group->segment, s->group->local, "gave up: %s", s->failure.text);
    return ls_err_adopt(&s->failure);
}

static ls_status still_whole(shm *s)
{
    if (s->failed)
        return ls_err_adopt(&s->failure);
    if (ls_shm_segment_failure(s->group->segment) != LS_OK)
        return broke(s);
    return LS_OK;
}

static ls_status post(shm *s, ls_message *message,
                      ls_status (*how)(ls_pair *pair, ls_message *message, uint32_t mark))
{
    ls_status st = still_whole(s);

    return st == LS_OK && how(s->pair, message, 0) != LS_OK ? broke(s) : st;
}

static ls_status shm_send(ls_transport *transport, ls_message *message)
{
    return post(of(transport), message, ls_pair_send);
}

static ls_status shm_receive(ls_transport *transport, ls_message *message)
{
    return post(of(transport), message, ls_pair_receive);
}

static ls_status shm_poll(ls_transport *transport, bool *moved_out)
{
    shm *s = of(transport);
    ls_status st = still_whole(s);

    if (st == LS_OK && ls_pair_poll(s->pair, moved_out) != LS_OK)
        st = broke(s);
    return st;
}

static void shm_sleep(ls_transport *transport, int64_t until_ns)
{
    shm *s = of(transport);
    ls_wait wait;

    ls_wait_begin(&wait, s->group->segment, s->group->local, until_ns);
    while (!ls_pair_pending(s->pair) && !atomic_exchange(&s->woken, false) &&
           ls_wait_once(&wait) == LS_WAIT_ON)
        ;
    ls_wait_end(&wait);
}

static void shm_wake(ls_transport *transport)
{
    shm *s = of(transport);

    atomic_store(&s->woken, true);
    ls_wait_wake(s->group->segment, s->group->local);
}

static void shm_count(const ls_transport *transport, int peer, int64_t *sent_out,
                      int64_t *received_out)
{
    ls_pair_count(((const shm *)(const void *)transport)->pair, peer, sent_out, received_out);
}

static void shm_close(ls_transport *transport)
{
    shm *s = of(transport);

    if (!ls_pair_idle(s->pair))
        ls_shm_segment_give_up(s->group->segment, s->group->local,
                               "closed its communicator with messages in flight");
    ls_pair_close(s->pair);
    ls_mem_free(s);
}

static const ls_transport_table table = {
    .name = "shm",
    .send = shm_send,
    .receive = shm_receive,
    .poll = shm_poll,
    .sleep = shm_sleep,
    .wake = shm_wake,
    .count = shm_count,
    .close = shm_close,
};

ls_status ls_shm_open(ls_transport **transport_out, ls_group *group)
{
    shm *s = ls_mem_alloc(sizeof *s);

    if (!s)
        return LS_ENOMEM;
    s->transport.table = &table;
    s->group = group;
    if (ls_pair_open(&s->pair, group, LS_EDATA) != LS_OK) {
        ls_mem_free(s);
        return LS_ENOMEM;
    }
    *transport_out = &s->transport;
    return LS_OK;
}
