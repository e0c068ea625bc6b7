/* shm.c -- the table of a carrier over node/pair.h: it adds failing for good, sleeping and waking.
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
    ls_carrier carrier; /* first */
    ls_group *group;
    ls_pair *pair;
    bool failed;
    ls_err_record failure;
    _Atomic bool woken;
} shm;

static shm *of(ls_carrier *carrier)
{
    return (shm *)(void *)carrier;
}

static ls_status broke(shm *s)
{
    char name[LS_BOARD_NAME];

    s->failed = true;
    s->failure = *ls_err_last();
    if (!ls_board_aborted(s->group->board))
        ls_board_abort(s->group->board, s->group->local, LS_EPEER, "%s gave up: %s",
                       ls_board_name(s->group->board, s->group->local, name), s->failure.text);
    return ls_err_adopt(&s->failure);
}

static ls_status still_whole(shm *s)
{
    if (s->failed)
        return ls_err_adopt(&s->failure);
    if (ls_board_failure(s->group->board) != LS_OK)
        return broke(s);
    return LS_OK;
}

static ls_status shm_send(ls_carrier *carrier, ls_message *message)
{
    shm *s = of(carrier);
    ls_status st = still_whole(s);

    if (st == LS_OK && ls_pair_send(s->pair, message, 0) != LS_OK)
        st = broke(s);
    return st;
}

static ls_status shm_receive(ls_carrier *carrier, ls_message *message)
{
    shm *s = of(carrier);
    ls_status st = still_whole(s);

    if (st == LS_OK && ls_pair_receive(s->pair, message, 0) != LS_OK)
        st = broke(s);
    return st;
}

static ls_status shm_poll(ls_carrier *carrier, bool *moved_out)
{
    shm *s = of(carrier);
    ls_status st = still_whole(s);

    if (st == LS_OK && ls_pair_poll(s->pair, moved_out) != LS_OK)
        st = broke(s);
    return st;
}

static void shm_sleep(ls_carrier *carrier, int64_t until_ns)
{
    shm *s = of(carrier);
    ls_wait wait;

    ls_wait_begin(&wait, s->group->board, s->group->local, until_ns);
    while (!ls_pair_has_mail(s->pair) && !atomic_exchange(&s->woken, false) &&
           ls_wait_once(&wait) == LS_WAIT_ON)
        ;
    ls_wait_end(&wait);
}

static void shm_wake(ls_carrier *carrier)
{
    shm *s = of(carrier);

    atomic_store(&s->woken, true);
    ls_wait_wake(s->group->board, s->group->local);
}

static void shm_count(const ls_carrier *carrier, int peer, int64_t *sent_out, int64_t *received_out)
{
    ls_pair_count(((const shm *)(const void *)carrier)->pair, peer, sent_out, received_out);
}

static void shm_close(ls_carrier *carrier)
{
    shm *s = of(carrier);
    char name[LS_BOARD_NAME];

    if (!ls_pair_idle(s->pair) && !ls_board_aborted(s->group->board))
        ls_board_abort(s->group->board, s->group->local, LS_EPEER,
                       "%s closed its communicator with messages in flight",
                       ls_board_name(s->group->board, s->group->local, name));
    ls_pair_close(s->pair);
    ls_mem_free(s);
}

static const ls_carrier_table table = {
    .name = "shm",
    .send = shm_send,
    .receive = shm_receive,
    .poll = shm_poll,
    .sleep = shm_sleep,
    .wake = shm_wake,
    .count = shm_count,
    .close = shm_close,
};

ls_status ls_shm_open(ls_carrier **carrier_out, ls_group *group)
{
    shm *s = ls_mem_alloc(sizeof *s);

    if (!s)
        return LS_ENOMEM;
    s->carrier.table = &table;
    s->group = group;
    if (ls_pair_open(&s->pair, group, LS_EDATA) != LS_OK) {
        ls_mem_free(s);
        return LS_ENOMEM;
    }
    *carrier_out = &s->carrier;
    return LS_OK;
}
