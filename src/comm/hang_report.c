/* hang_report.c -- explains a collective that timed out: which rank did not arrive, and where it is.
 * watchdog.c detects the timeout.
 *
 * The rank that times out first is rarely the cause, and which rank waits for which depends on the
 * schedule. So the rank whose deadline has passed reads the flight recorders of all members. Those
 * of its own node lie in the segment. For those of other nodes it asks over TCP, which is open
 * beside whatever moves the data. Each rank answers inside the polls that it makes anyway; a rank
 * that does not poll is silent, and then one of its neighbours on that node is asked about it.
 *
 *     rank 0, late in number 17         node 1:  rank 2         rank 3 (stopped)
 *        | -- ASK 2 ----------------------------> |
 *        | <- WHERE 2: in 17 -------------------- |
 *        | -- ASK 3 (3 is silent) --------------> | reads the recorder of 3 in the segment
 *        | <- WHERE 3: not in one, last 16 ------ |
 *
 * The report blames, in this order: a rank that is silent; a rank that a signal has stopped; the
 * rank that is behind the others in this communicator (in the collective of the lowest number, or
 * in none while others are in one). When all are in the same collective, the report names the rank
 * that this one waits for. */
#include "comm/comm_impl.h"

#include <string.h>
#include "base/time.h"
#include "comm/transport/tcp.h"
#include "net/wire.h"

/* A rank that waits or polls sends something every 100 ms, unless it has no processor. */
#define SILENT_NS (600 * LS_NS_PER_MS)
#define ASK_NS (250 * LS_NS_PER_MS)

enum { ANSWER = 44, STOPPED = 1, NOWHERE = 2 };
_Static_assert((int)ANSWER <= (int)LS_TCP_ANSWER_BYTES, "an answer fits");

/* What the segment holds about a rank of this node. */
static void look_here(const ls_fabric *f, int rank, int group, ls_hang_answer *told_out)
{
    int local = f->recorder == f->segment ? f->locals[rank] : f->recorder_local;

    *told_out =
        (ls_hang_answer){.heard = true, .stopped = ls_flight_recorder_stopped(f->recorder, local)};
    told_out->nowhere = !ls_flight_recorder_find(f->recorder, local, group, &told_out->record);
}

/* --- the side channel -------------------------------------------------------------------------*/

/* Clocks differ between hosts: a time is sent as its age. */
int ls_hang_report_answer(void *fabric, int about, uint64_t what, uint8_t *bytes_out)
{
    const ls_fabric *f = fabric;
    int64_t now = ls_time_now_ns();
    ls_hang_answer t;

    if (!ls_fabric_is_here(f, about) || (about != f->rank && f->recorder != f->segment))
        return 0;
    look_here(f, about, (int)(what & 0xffffff), &t);
    const ls_flight_recorder_record *r = &t.record;
    uint8_t *b = bytes_out;
    memset(b, 0, ANSWER);
    b[0] = (uint8_t)((t.stopped ? STOPPED : 0) | (t.nowhere ? NOWHERE : 0));
    if (!t.nowhere) {
        b[1] = (uint8_t)r->kind;
        b[2] = (uint8_t)r->type;
        b[3] = (uint8_t)r->state;
        ls_wire_put32(b + 4, (uint32_t)r->group);
        ls_wire_put64(b + 8, r->seq);
        ls_wire_put64(b + 16, (uint64_t)r->bytes);
        ls_wire_put64(b + 24, (uint64_t)r->step);
        ls_wire_put64(b + 32,
                      (uint64_t)(now - (r->state == LS_FLIGHT_RECORDER_ENTERED ? r->entered_ns
                                                                               : r->left_ns)));
    }
    return ANSWER;
}

void ls_hang_report_answered(void *fabric, int about, const uint8_t *b, int len)
{
    const ls_fabric *f = fabric;

    if (len != ANSWER || ls_fabric_is_here(f, about))
        return;
    if (!(b[0] & NOWHERE) &&
        (b[1] >= LS_COLL_KINDS || b[2] > LS_I8 || b[3] > LS_FLIGHT_RECORDER_FAILED))
        return; /* from another version: unreadable */
    int64_t at = ls_time_now_ns() - (int64_t)ls_wire_get64(b + 32);
    f->hang_answers[about] = (ls_hang_answer){.heard = true,
                                              .stopped = b[0] & STOPPED,
                                              .nowhere = b[0] & NOWHERE,
                                              .record = {.kind = (ls_coll_kind)b[1],
                                                         .type = (ls_dtype)b[2],
                                                         .state = (ls_flight_recorder_state)b[3],
                                                         .group = (int)ls_wire_get32(b + 4),
                                                         .seq = ls_wire_get64(b + 8),
                                                         .bytes = (int64_t)ls_wire_get64(b + 16),
                                                         .step = (int64_t)ls_wire_get64(b + 24),
                                                         .entered_ns = at,
                                                         .left_ns = at}};
}

static bool is_silent(const ls_fabric *f, int rank)
{
    int64_t heard = ls_tcp_heard(f->network, rank);

    return heard != 0 && ls_time_now_ns() - heard >= SILENT_NS;
}

/* Ask a rank about itself or, when it is silent, a rank of its node. Whether any could be asked. */
static bool ask_about(const ls_fabric *f, int rank, uint64_t group)
{
    if (!is_silent(f, rank))
        return ls_tcp_ask(f->network, rank, rank, group);
    for (int r = 0; r < f->ranks; r++)
        if (r != rank && f->members[r].node == f->members[rank].node && !is_silent(f, r) &&
            ls_tcp_ask(f->network, r, rank, group))
            return true;
    return false;
}

/* Collect the answers of all members on other nodes that come soon. */
static ls_status ask_all(ls_comm *c, uint64_t group)
{
    ls_fabric *f = c->fabric;
    int64_t until = ls_time_now_ns() + ASK_NS;
    bool waits = true, moved;
    ls_status st = LS_OK;

    /* Bytes that have arrived but were not read yet do not count as heard: poll first. */
    LS_TRY(st, f->transport->table->poll(f->transport, &moved), out);
    for (int i = 0; i < c->ranks; i++) {
        int r = c->world[i];
        if (ls_fabric_is_here(f, r))
            look_here(f, r, (int)group, &f->hang_answers[r]);
        else
            f->hang_answers[r] = (ls_hang_answer){.asked = ask_about(f, r, group)};
    }
    while (waits && ls_time_now_ns() < until) {
        LS_TRY(st, f->transport->table->poll(f->transport, &moved), out);
        waits = false;
        for (int i = 0; i < c->ranks; i++)
            waits |= f->hang_answers[c->world[i]].asked; /* the answer takes its place */
        if (waits)
            f->network->table->sleep(f->network,
                                     ls_min_i64(until, ls_time_now_ns() + LS_NS_PER_MS));
    }
out:
    return st;
}

/* --- the verdict ------------------------------------------------------------------------------*/

/* "rank 3 (host1)", with where it is. */
static ls_status report_rank(const ls_comm *c, const ls_request *f, int rank, const char *how)
{
    const ls_hang_answer *t = &c->fabric->hang_answers[rank];
    char where[LS_FLIGHT_RECORDER_TEXT] = "";

    if (t->heard)
        ls_flight_recorder_say(t->nowhere ? NULL : &t->record, where);
    return ls_fail(LS_EDEADLINE, "%s %llu did not end in time: rank %d (%s) %s%s%s%s",
                   ls_coll_kind_name(f->coll.kind), (unsigned long long)f->number, rank,
                   c->fabric->members[rank].host, how, *where ? "; " : "", where,
                   t->heard && t->stopped ? "; it is stopped by a signal" : "");
}

/* How many collectives of this communicator a member has begun, as far as is known. */
static uint64_t reached(const ls_hang_answer *t, int group)
{
    return t->nowhere || t->record.group != group ? 0 : t->record.seq;
}

/* The member that has begun the fewest collectives, if fewer than this rank; -1: none. */
static int furthest_behind(const ls_comm *c, const ls_request *f, int group)
{
    uint64_t least = f->number;
    int who = -1;

    for (int i = 0; i < c->ranks; i++) {
        const ls_hang_answer *t = &c->fabric->hang_answers[c->world[i]];
        if (i != c->rank && t->heard && reached(t, group) < least) {
            least = reached(t, group);
            who = c->world[i];
        }
    }
    return who;
}

static int silent_member(const ls_comm *c, int64_t *since_out)
{
    int64_t oldest = INT64_MAX;
    int who = -1;

    for (int i = 0; i < c->ranks; i++) {
        int r = c->world[i];
        if (!ls_fabric_is_here(c->fabric, r) && is_silent(c->fabric, r) &&
            ls_tcp_heard(c->fabric->network, r) < oldest) {
            oldest = *since_out = ls_tcp_heard(c->fabric->network, r);
            who = r;
        }
    }
    return who;
}

static int stopped_member(const ls_comm *c)
{
    for (int i = 0; i < c->ranks; i++)
        if (i != c->rank && c->fabric->hang_answers[c->world[i]].stopped)
            return c->world[i];
    return -1;
}

/* A member whose message has not come; -1: none. */
static int missing_peer(const ls_request *f)
{
    const ls_exec *x = &f->exec;

    for (int32_t i = x->first; f->plan && i < f->plan->sched.count && i < x->first + LS_EXEC_WINDOW;
         i++)
        if (f->plan->sched.steps[i].act != LS_SCHED_COPY &&
            f->plan->sched.steps[i].act != LS_SCHED_COMBINE)
            return f->plan->sched.steps[i].peer;
    return -1;
}

static ls_status not_in_time(const ls_request *f)
{
    return ls_fail(LS_EDEADLINE, "%s %llu did not end in time", ls_coll_kind_name(f->coll.kind),
                   (unsigned long long)f->number);
}

/* All have come, as far as is known: name the rank that this one waits for. */
static ls_status waits_for(ls_comm *c, ls_request *f)
{
    bool across = f->way == LS_WAY_LEVELS;
    int64_t now = ls_time_now_ns();

    for (int i = 0; across && f->state == LS_REQUEST_ACTIVE && i < f->pieces; i++)
        if (f->part[i].stage == 0 || f->part[i].stage == 2)
            return ls_shm_coll_wait(f->part[i].stage ? c->gather : c->direct, f->part[i].ticket,
                                    now);
    int who = missing_peer(f);
    if (who < 0 && f->plan &&
        f->way == LS_WAY_EXEC) /* all but the fingerprint of the rank before this one */
        who = (c->rank + c->ranks - 1) % c->ranks;
    if (who < 0)
        return not_in_time(f);
    return report_rank(c, f, across ? c->across[who] : c->world[who], "is waited for");
}

ls_status ls_hang_report(ls_comm *c, ls_request *f)
{
    int group = LS_FLIGHT_RECORDER_COMM + (int)c->id, who = -1;
    int64_t since = 0;
    bool message = ls_coll_is_message(f->coll.kind);
    char how[96];
    ls_status st;

    if (f->state == LS_REQUEST_QUEUED && c->head != f) /* it waits for the requests before it */
        return ls_hang_report(c, c->head);
    if (f->state == LS_REQUEST_ACTIVE && f->way == LS_WAY_DIRECT)
        return ls_shm_coll_wait(c->direct, f->ticket, ls_time_now_ns()); /* names the late ranks */
    if (c->ranks == 1)
        return not_in_time(f);
    LS_TRY(st, ask_all(c, (uint64_t)group), out);
    who = silent_member(c, &since);
    if (who >= 0) {
        snprintf(how, sizeof how, "is silent for %.1f s",
                 (double)(ls_time_now_ns() - since) / (double)LS_NS_PER_S);
        return report_rank(c, f, who, how);
    }
    who = stopped_member(c);
    if (who >= 0)
        return report_rank(c, f, who, "did not come");
    who = message ? -1 : furthest_behind(c, f, group); /* other ranks do not count messages */
    st = who >= 0 ? report_rank(c, f, who, "did not come") : waits_for(c, f);
out:
    return st;
}
