/* request.c -- how one collective progresses, by one of three ways:
 *
 *   direct   all members on this node: they reach each other's memory (node/shm_coll.h)
 *   exec     a schedule over the transports (exec.h)
 *   levels   a large all-reduce over several nodes with several ranks each (hierarchical.c)
 *
 * The tag of a message between nodes has 64 bits, from the highest to the lowest:
 *
 *       1   send or recv, which count their calls for each pair of ranks
 *      13   the communicator
 *      24   the call, counted in steps of COMM_PIECES: a piece of a request by levels has its own
 *      26   the message of the schedule between two ranks; all ones: the fingerprint
 *
 * So two messages of one pair never share a tag while both can be in flight, and no rank needs to
 * ask another one for a number.
 *
 * States: QUEUED (start_request takes it up, in order) -> ACTIVE (move_request) -> DONE (until a caller
 * waits for it). */
#include "comm/comm_impl.h"

#include <string.h>
#include "comm/node/flight_recorder.h"

enum { ID_SHIFT = 50 };

/* --- choosing ---------------------------------------------------------------------------------*/

ls_way ls_request_way(const ls_comm *comm, const ls_coll *coll)
{
    int64_t bytes = coll->count * ls_dtype_bytes(coll->type);

    if (comm->ranks == 1 || ls_comm_forced(comm, coll->kind))
        return LS_WAY_EXEC;
    if (comm->one_node)
        return LS_WAY_DIRECT;
    return (comm->force_levels || bytes >= comm->links.levels_bytes) &&
                   !ls_hierarchical_refuses(comm, coll)
               ? LS_WAY_LEVELS
               : LS_WAY_EXEC;
}

/* All ranks have agreed on the numbers (tune.h), so all choose the same. */
static ls_status choose_algo(const ls_comm *c, const comm_plan *plan, ls_sched_args *args)
{
    const ls_coll *coll = &plan->coll;
    ls_cost_choice choice;

    ls_tune_choose(c, coll, plan->across, &choice);
    if (choice.best < 0)
        return ls_fail(LS_EUSAGE, "no algorithm does %s of this type",
                       ls_coll_kind_name(coll->kind));
    args->algo = choice.rows[choice.best].algo;
    args->chunk = choice.rows[choice.best].chunk;
    return LS_OK;
}

static bool is_plan(const comm_plan *p, const ls_coll *coll, bool in_place, bool across)
{
    return p->used && !p->once_only && p->in_place == in_place && p->across == across &&
           p->coll.kind == coll->kind && p->coll.op == coll->op && p->coll.type == coll->type &&
           p->coll.count == coll->count && p->coll.peer == coll->peer;
}

/* Build the schedule of a collective with the algorithm and chunk that the tuner chooses for it. */
static ls_status build_plan(ls_comm *c, comm_plan *plan, const ls_coll *coll, bool across)
{
    ls_sched_args args = {.kind = coll->kind,
                          .ranks = across ? c->nodes : c->ranks,
                          .rank = across ? c->node : c->rank,
                          .peer = coll->peer,
                          .count = coll->count,
                          .in_place = coll->in == coll->out,
                          .in_counts = coll->in_counts,
                          .out_counts = coll->out_counts};
    ls_status st;

    ls_sched_release(&plan->sched);
    *plan = (comm_plan){.coll = *coll,
                        .in_place = args.in_place,
                        .across = across,
                        .once_only = coll->in_counts || coll->out_counts};
    LS_TRY(st, choose_algo(c, plan, &args), out);
    if (coll->kind == LS_COLL_GATHER || coll->kind == LS_COLL_ALL_TO_ALL)
        args.chunk = 0;
    LS_TRY(st, ls_sched_build(&plan->sched, &args), out);
    plan->algo = args.algo;
    plan->used = ++c->plans_used;
out:
    return st;
}

/* The schedule of a collective: an old one of the same shape, or a new one in place of the least
 * recently used. NULL without a failure: all are in use. */
static ls_status find_plan(ls_comm *c, const ls_coll *coll, bool across, comm_plan **plan_out)
{
    bool tables = coll->in_counts || coll->out_counts;
    comm_plan *oldest = NULL;

    *plan_out = NULL;
    for (int i = 0; i < COMM_PLANS; i++) {
        comm_plan *p = &c->plans[i];
        if (!tables && is_plan(p, coll, coll->in == coll->out, across)) {
            p->used = ++c->plans_used;
            *plan_out = p;
            return LS_OK;
        }
        if (p->busy == 0 && (!oldest || p->used < oldest->used))
            oldest = p;
    }
    if (oldest) {
        ls_status st = build_plan(c, oldest, coll, across);
        if (st != LS_OK)
            return st;
        *plan_out = oldest;
    }
    return LS_OK;
}

const char *ls_request_algo(ls_comm *comm, const ls_coll *coll)
{
    comm_plan *plan;

    return find_plan(comm, coll, false, &plan) == LS_OK && plan ? plan->algo->name : "none";
}

/* --- starting ---------------------------------------------------------------------------------*/

ls_status ls_request_begin_exec(ls_comm *c, ls_request *f, const ls_coll *coll, bool across,
                                uint64_t tag)
{
    ls_status st;

    LS_TRY(st, find_plan(c, coll, across, &f->plan), out);
    if (!f->plan)
        goto out;
    f->plan->busy++;
    st = ls_exec_begin(&f->exec,
                       &(ls_exec_args){.transport = c->fabric->transport,
                                       .peers = across ? c->across : c->world,
                                       .coll = coll,
                                       .sched = &f->plan->sched,
                                       .ranks = across ? c->nodes : c->ranks,
                                       .rank = across ? c->node : c->rank,
                                       .part = across,
                                       .tag = tag},
                       f->plan->algo->name);
out:
    return st;
}

void ls_request_end_exec(ls_request *f)
{
    f->plan->busy--;
    f->plan = NULL;
}

/* Take it up if there is room; otherwise it stays queued. */
static ls_status start_request(ls_comm *c, ls_request *f)
{
    ls_status st = LS_OK;

    if (f->way == LS_WAY_DIRECT) {
        st = ls_shm_coll_start(c->direct, &f->coll, &f->ticket);
        if (st == LS_EBUSY)
            return LS_OK;
    } else if (f->way == LS_WAY_EXEC) {
        st = ls_request_begin_exec(c, f, &f->coll, false, f->tag);
        if (st == LS_OK && !f->plan)
            return LS_OK;
    } else {
        if (ls_hierarchical_up(c))
            return LS_OK;
        st = ls_hierarchical_start(c, f);
    }
    if (st == LS_OK)
        f->state = LS_REQUEST_ACTIVE;
    return st;
}

/* --- moving -----------------------------------------------------------------------------------*/

static ls_status move_request(ls_comm *c, ls_request *f, bool *done_out)
{
    *done_out = false;
    if (f->way == LS_WAY_DIRECT)
        return ls_shm_coll_poll(c->direct, f->ticket, done_out);
    if (f->way == LS_WAY_LEVELS)
        return ls_hierarchical_move(c, f, done_out);
    ls_status st = ls_exec_poll(&f->exec, done_out);
    if (st == LS_OK && *done_out)
        ls_request_end_exec(f);
    return st;
}

static void note_left(const ls_comm *c, const ls_request *f, ls_flight_recorder_state state)
{
    if (f->way != LS_WAY_DIRECT)
        ls_flight_recorder_leave(c->fabric->recorder, c->fabric->recorder_local, f->record, state);
}

void ls_request_note_failed(ls_comm *comm)
{
    for (const ls_request *f = comm->head; f; f = f->next)
        note_left(comm, f, LS_FLIGHT_RECORDER_FAILED);
}

/* All requests of a communicator, in order; *moved_out is set when one ended or was taken up. */
static ls_status move_comm(ls_comm *c, bool *moved_out)
{
    ls_request *before = NULL;
    bool blocked = false;
    ls_status st = LS_OK;

    for (ls_request *f = c->head, *next; f; f = next) {
        bool done = false;
        next = f->next;
        if (f->state == LS_REQUEST_QUEUED && !blocked) {
            LS_TRY(st, start_request(c, f), out);
            blocked = f->state == LS_REQUEST_QUEUED;
            *moved_out |= !blocked;
        }
        if (f->state == LS_REQUEST_ACTIVE)
            LS_TRY(st, move_request(c, f, &done), out);
        if (!done) {
            before = f;
            continue;
        }
        *(before ? &before->next : &c->head) = next;
        if (c->tail == f)
            c->tail = before;
        f->state = LS_REQUEST_DONE;
        note_left(c, f, LS_FLIGHT_RECORDER_LEFT);
        c->fabric->in_flight--;
        atomic_fetch_sub(&c->up, 1);
        *moved_out = true;
    }
out:
    return st;
}

ls_status ls_request_move_all(ls_fabric *f, bool *moved_out)
{
    bool came = false;
    ls_status st = LS_OK;

    *moved_out = false;
    /* A request that was started just now sends its first messages before the network is polled. */
    for (ls_comm *c = f->comms; c && f->fresh; c = c->next)
        if (c->head)
            LS_TRY(st, move_comm(c, moved_out), out);
    f->fresh = false;
    if (f->transport)
        LS_TRY(st, f->transport->table->poll(f->transport, &came), out);
    *moved_out |= came;
    for (ls_comm *c = f->comms; c; c = c->next)
        if (c->head)
            LS_TRY(st, move_comm(c, moved_out), out);
out:
    return st;
}

ls_status ls_request_explain(ls_fabric *fabric)
{
    ls_err_record last = *ls_err_last();

    if (last.code != LS_EDATA || fabric->in_flight == 0)
        return last.code;
    for (ls_comm *c = fabric->comms; c; c = c->next)
        for (ls_request *f = c->head; f; f = f->next) {
            if (f->state != LS_REQUEST_ACTIVE)
                continue;
            if (f->plan && ls_exec_explain(&f->exec.fingerprint) != LS_OK)
                return LS_EUSAGE;
            if (f->way == LS_WAY_LEVELS && ls_exec_explain(&f->fingerprint) != LS_OK)
                return LS_EUSAGE;
        }
    ls_fail(LS_EUSAGE, "ranks ask for different things: %s", last.text);
    ls_err_hint("All ranks must call the same collectives in the same order.");
    return LS_EUSAGE;
}

/* Messages are counted apart, and their numbers do not say how far a rank is in its collectives. */
static uint64_t note_entered(const ls_comm *c, const ls_request *f, bool message)
{
    return ls_flight_recorder_enter(
        c->fabric->recorder, c->fabric->recorder_local,
        &(ls_flight_recorder_record){
            .kind = f->coll.kind,
            .op = f->coll.op,
            .type = f->coll.type,
            .group = (message ? LS_FLIGHT_RECORDER_MESSAGES : LS_FLIGHT_RECORDER_COMM) + (int)c->id,
            .seq = f->number,
            .bytes = f->coll.count * ls_dtype_bytes(f->coll.type)});
}

void ls_request_start(ls_comm *c, ls_request *f)
{
    bool message = ls_coll_is_message(f->coll.kind);

    /* Each pair of ranks counts its own messages: the other ranks know nothing of them. */
    if (message) {
        uint64_t *n = f->coll.kind == LS_COLL_SEND ? c->sends : c->receives;
        f->tag = (uint64_t)1 << 63 | c->id << ID_SHIFT |
                 (n[f->coll.peer] & 0xffffff) << LS_EXEC_TAG_BITS;
        f->number = ++n[f->coll.peer];
    } else {
        f->tag = c->id << ID_SHIFT | (c->seq & 0xffffff) << LS_EXEC_TAG_BITS;
        c->seq += COMM_PIECES;
        f->number = c->seq / COMM_PIECES;
    }
    if (f->way != LS_WAY_DIRECT)
        f->record = note_entered(c, f, message);
    f->state = LS_REQUEST_QUEUED;
    f->next = NULL;
    *(c->tail ? &c->tail->next : &c->head) = f;
    c->tail = f;
    c->fabric->in_flight++;
    c->fabric->fresh = true;
    atomic_fetch_add(&c->up, 1);
}
