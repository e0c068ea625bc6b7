/* shm_coll_messages.c -- send and recv of two members of a group.
 *
 * Messages are not numbered with the collectives, because the other members do not take part: the
 * k-th send of a rank to another one meets the k-th recv there. The rings of pair.h carry them:
 *
 *     rank 0   send to 1 (its 1st)      all_reduce 5    send to 1 (its 2nd)
 *     rank 1   recv from 0 (its 1st)    all_reduce 5    recv from 0 (its 2nd)
 *
 * The 1st recv gets the 1st send, whatever collectives either rank does in between. */
#include "base/time.h"
#include "comm/node/shm_coll_impl.h"

ls_status ls_shm_coll_message_start(ls_shm_coll *d, const ls_coll *coll,
                                    ls_shm_coll_ticket *ticket_out)
{
    bool sends = coll->kind == LS_COLL_SEND;
    uint64_t *calls = sends ? &d->sent[coll->peer] : &d->received[coll->peer];
    ls_shm_coll_message *m = d->message;
    ls_status st = LS_OK;

    while (m < d->message + LS_SHM_COLL_MESSAGES && m->used && !m->message.done)
        m++;
    if (m == d->message + LS_SHM_COLL_MESSAGES)
        return ls_fail(LS_EBUSY, "%d sends and receives are in flight", LS_SHM_COLL_MESSAGES);
    if (!d->pair)
        LS_TRY(st, ls_pair_open(&d->pair, d->group, LS_EUSAGE), out);
    *m = (ls_shm_coll_message){.used = true, .ticket = LS_SHM_COLL_MESSAGE | ++d->messages};
    m->message = (ls_message){.peer = coll->peer,
                              .tag = ++*calls,
                              .data = sends ? (void *)(uintptr_t)coll->in : coll->out,
                              .bytes = coll->count * ls_dtype_bytes(coll->type)};
    m->record = ls_flight_recorder_enter(d->segment, d->group->local,
                                         &(ls_flight_recorder_record){.kind = coll->kind,
                                                                      .type = coll->type,
                                                                      .group = d->group->number,
                                                                      .seq = *calls,
                                                                      .bytes = m->message.bytes});
    st = sends ? ls_pair_send(d->pair, &m->message, 1 + (uint32_t)coll->type)
               : ls_pair_receive(d->pair, &m->message, 1 + (uint32_t)coll->type);
    *ticket_out = m->ticket;
out:
    return st;
}

ls_status ls_shm_coll_message_poll(ls_shm_coll *d)
{
    bool moved;
    ls_status st = ls_pair_poll(d->pair, &moved);

    for (int i = 0; i < LS_SHM_COLL_MESSAGES; i++) {
        ls_shm_coll_message *m = &d->message[i];
        if (!m->used || !m->message.done)
            continue;
        m->used = false;
        ls_flight_recorder_leave(d->segment, d->group->local, m->record, LS_FLIGHT_RECORDER_LEFT);
    }
    return st;
}

static const ls_shm_coll_message *in_flight(const ls_shm_coll *d, ls_shm_coll_ticket ticket)
{
    for (int i = 0; i < LS_SHM_COLL_MESSAGES; i++)
        if (d->message[i].used && d->message[i].ticket == ticket && !d->message[i].message.done)
            return &d->message[i];
    return NULL;
}

bool ls_shm_coll_message_done(const ls_shm_coll *d, ls_shm_coll_ticket ticket)
{
    return !in_flight(d, ticket);
}

ls_status ls_shm_coll_message_late(const ls_shm_coll *d, ls_shm_coll_ticket ticket)
{
    const ls_shm_coll_message *m = in_flight(d, ticket);
    char name[LS_SHM_SEGMENT_NAME], where[LS_FLIGHT_RECORDER_TEXT];

    LS_BUG_IF(!m, "a message that is done is late");
    int local = d->group->locals[m->message.peer];
    return ls_fail(LS_EDEADLINE, "%s did not take part in a message of %lld bytes in time: %s",
                   ls_shm_segment_name(d->segment, local, name), (long long)m->message.bytes,
                   ls_flight_recorder_where(d->segment, local, where));
}
