/* shm_coll.c -- collectives inside a node, from the call to the last flag.
 *
 * Each member of a group has 16 slots in shared memory; operation number s uses slot s mod 16. A
 * slot's word holds the turn of the operation and the phase its owner is in. It only grows, so a
 * slot that is already used for a later operation counts as past every phase of this one.
 *
 *      rank 0   publish 1 ----- all at 1? compare, move, 2 ----- all at 2? done
 *      rank 1        publish 1 ----------- compare, move, 2 ---- done
 *
 * Example: operation 17 uses slot 1. Its word is 17 / 16 << 24 | phase: 0x1000001 in phase 1 and
 * 0x1000002 in phase 2. A rank that has gone on to operation 33 shows 0x2000001 in the same slot,
 * which is larger than both, so nobody waits for it any more.
 *
 * When all data lies in the slots themselves, no rank touches a buffer of another one, and the
 * second wait is left out: one flag is enough. Then a slot must stay unchanged until all have read
 * it. That is checked 16 operations later, when the slot is used again: each member publishes up to
 * which operation it has completed everything, and operation s starts when all have completed s -
 * 16. In a series of blocking calls that is true long before, so it is looked up once in 16 calls.
 *
 * Phases of an operation that goes over a stage (shm_coll_move.c) in windows w: 2 w + 1 means "my
 * stage holds window w", 2 w + 2 "I have fetched it". */
#include "comm/node/shm_coll.h"

#include "base/mem.h"
#include "base/time.h"
#include "comm/node/shm_coll_impl.h"
#include "comm/node/wait.h"

enum { WARM_BYTES = 2048 };
#define REASON_NS (20 * LS_NS_PER_MS)

/* --- opening ---------------------------------------------------------------------------------- */

ls_status ls_shm_coll_open(ls_shm_coll **direct_out, ls_group *group)
{
    ls_shm_coll *d = ls_mem_alloc(sizeof *d);

    if (!d)
        return LS_ENOMEM;
    d->group = group;
    d->segment = group->segment;
    d->n = group->members;
    d->me = group->me;
    for (int i = 0; i < d->n; i++)
        d->member[i] = ls_shm_segment_member_at(d->segment, group->number, group->locals[i]);
    d->sent = ls_mem_array((size_t)d->n, sizeof *d->sent);
    d->received = ls_mem_array((size_t)d->n, sizeof *d->received);
    if (!d->sent || !d->received) {
        ls_shm_coll_close(d);
        return LS_ENOMEM;
    }
    *direct_out = d;
    return LS_OK;
}

void ls_shm_coll_close(ls_shm_coll *direct)
{
    if (!direct)
        return;
    if (direct->completed < direct->seq)
        ls_shm_segment_give_up(direct->segment, direct->group->local,
                               "closed its communicator with collective %llu in flight",
                               (unsigned long long)direct->completed + 1);
    else if (direct->pair && !ls_pair_idle(direct->pair))
        ls_shm_segment_give_up(direct->segment, direct->group->local,
                               "closed its communicator with messages in flight");
    for (int i = 0; i < LS_SHM_COLL_OPS; i++)
        ls_shm_segment_free(direct->segment, direct->group->local, direct->op[i].stage);
    while (direct->idle_stages > 0)
        ls_shm_segment_free(direct->segment, direct->group->local,
                            direct->idle_stage[--direct->idle_stages]);
    ls_pair_close(direct->pair);
    ls_mem_free(direct->scratch);
    ls_mem_free(direct->sent);
    ls_mem_free(direct->received);
    ls_mem_free(direct);
}

/* --- failing ---------------------------------------------------------------------------------- */

/* Memory of a rank that died cannot be read: the death watch will report in a moment how it
 * died. */
static void await_reason(ls_shm_coll *d)
{
    ls_err_record record = *ls_err_last();
    ls_wait wait;

    ls_wait_begin(&wait, d->segment, d->group->local, ls_time_now_ns() + REASON_NS);
    while (ls_wait_once(&wait) == LS_WAIT_ON)
        ;
    ls_wait_end(&wait);
    if (ls_shm_segment_failure(d->segment) == LS_OK)
        ls_err_adopt(&record);
}

/* Keep the failure, and break the segment with it. */
static ls_status broke(ls_shm_coll *d, ls_status st)
{
    if (d->failed)
        return ls_err_adopt(&d->failure);
    if (st == LS_EPEER)
        await_reason(d);
    d->failed = true;
    d->failure = *ls_err_last();
    for (int i = 0; i < LS_SHM_COLL_OPS; i++)
        if (d->op[i].state != LS_SHM_COLL_DONE)
            ls_flight_recorder_leave(d->segment, d->group->local, d->op[i].record,
                                     LS_FLIGHT_RECORDER_FAILED);
    if (st != LS_EUSAGE)
        ls_shm_segment_give_up(d->segment, d->group->local, "gave up: %s", d->failure.text);
    else if (!ls_shm_segment_aborted(d->segment)) /* all ranks contributed to it */
        ls_shm_segment_abort(d->segment, d->group->local, st, "%s", d->failure.text);
    return ls_err_adopt(&d->failure);
}

static ls_status still_whole(ls_shm_coll *d)
{
    if (d->failed)
        return ls_err_adopt(&d->failure);
    if (ls_shm_segment_aborted(d->segment))
        return broke(d, ls_shm_segment_failure(d->segment));
    return LS_OK;
}

/* --- words ------------------------------------------------------------------------------------ */

static void wake_others(ls_shm_coll *d)
{
    for (int i = 0; i < d->n; i++)
        if (i != d->me)
            ls_wait_wake(d->segment, d->group->locals[i]);
}

static void post(ls_shm_coll *d, ls_shm_coll_op *op, uint32_t phase)
{
    atomic_store(&op->own->word, ls_shm_coll_word(op, phase));
    op->met = 1;
    d->done.posts++;
    if (ls_wait_anybody(d->segment))
        wake_others(d);
}

static bool all_at(const ls_shm_coll *d, ls_shm_coll_op *op, uint32_t phase)
{
    uint64_t word = ls_shm_coll_word(op, phase);

    while (op->met < d->n) {
        int i = d->me + op->met;
        const ls_shm_segment_slot *slot = ls_shm_coll_slot(d, op, i < d->n ? i : i - d->n);
        if (atomic_load(&slot->word) < word)
            return false;
        op->met++;
    }
    return true;
}

/* --- one operation ---------------------------------------------------------------------------- */

/* An operation is done: give back its stage, leave the flight recorder, and publish up to where all
 * operations are complete, which lets others reuse their slots. */
static void finish(ls_shm_coll *d, ls_shm_coll_op *op)
{
    op->state = LS_SHM_COLL_DONE;
    if (op->stage)
        d->idle_stage[d->idle_stages++] = op->stage;
    op->stage = NULL;
    ls_flight_recorder_leave(d->segment, d->group->local, op->record, LS_FLIGHT_RECORDER_LEFT);
    while (d->completed < d->seq &&
           d->op[(d->completed + 1) % LS_SHM_COLL_OPS].state == LS_SHM_COLL_DONE)
        d->completed++;
    atomic_store_explicit(&d->member[d->me]->completed, d->completed, memory_order_release);
    /* A relaxed look, to be cheap: a rank that waits for a slot and is missed here looks again
     * after a slice of its sleep. */
    if (ls_wait_anybody(d->segment))
        wake_others(d);
}

/* All have moved the window: the next one, or the end. */
static void go_on(ls_shm_coll *d, ls_shm_coll_op *op)
{
    if (op->window + 1 == op->windows && op->pass + 1 == op->passes) {
        finish(d, op);
        return;
    }
    ls_shm_coll_next(d, op);
    op->ready++;
    op->state = LS_SHM_COLL_MOVE;
    if (op->staged) {
        post(d, op, ++op->ready);
        op->state = LS_SHM_COLL_READY;
    }
}

/* As far as it goes without waiting. */
static ls_status advance(ls_shm_coll *d, ls_shm_coll_op *op, int64_t budget)
{
    bool moved = false;
    ls_status st = LS_OK;

    while (st == LS_OK && op->state != LS_SHM_COLL_DONE) {
        switch (op->state) {
        case LS_SHM_COLL_READY:
            if (!all_at(d, op, op->ready))
                return LS_OK;
            if (!op->checked) {
                LS_TRY(st, ls_shm_coll_compare(d, op), out);
                op->checked = true;
                ls_shm_coll_plan(d, op);
            }
            op->state = LS_SHM_COLL_MOVE;
            break;
        case LS_SHM_COLL_MOVE:
            moved = false;
            LS_TRY(st, ls_shm_coll_move(d, op, budget, &moved), out);
            if (!moved) {
                d->busy = true;
                return LS_OK;
            }
            if (op->closing) {
                post(d, op, op->ready + 1);
                op->state = LS_SHM_COLL_MOVED;
            } else {
                finish(d, op);
            }
            break;
        default:
            if (!all_at(d, op, op->ready + 1))
                return LS_OK;
            go_on(d, op);
        }
    }
out:
    return st;
}

/* --- many operations -------------------------------------------------------------------------- */

/* Whether slot s mod 16 is free here and was read by all. */
static bool slot_is_free(ls_shm_coll *d, uint64_t seq)
{
    uint64_t least = UINT64_MAX;

    if (seq <= LS_SHM_COLL_OPS)
        return true;
    if (d->completed < seq - LS_SHM_COLL_OPS)
        return false;
    if (d->peers_completed >= seq - LS_SHM_COLL_OPS)
        return true;
    for (int i = 0; i < d->n; i++) {
        uint64_t c = atomic_load_explicit(&d->member[i]->completed, memory_order_acquire);
        least = c < least ? c : least;
    }
    d->peers_completed = least;
    return least >= seq - LS_SHM_COLL_OPS;
}

/* While waiting anyway: fetch the cache lines that the next small operation will write, which the
 * others have read. */
static void warm_next(const ls_shm_coll *d, const ls_shm_coll_op *op)
{
    ls_shm_segment_slot *next = &d->member[d->me]->slot[(op->seq + 1) % LS_SHM_SEGMENT_SLOTS];
    int64_t bytes = op->coll.count * op->size;

    __builtin_prefetch(next, 1, 3);
    for (int64_t at = 0; bytes <= WARM_BYTES && at < bytes; at += LS_SHM_SEGMENT_LINE)
        __builtin_prefetch(next->data + at, 1, 3);
}

/* Fill the slot of this rank for the next operation, enter the flight recorder, and raise the word
 * to phase 1. */
static ls_status begin(ls_shm_coll *d, const ls_coll *coll)
{
    ls_shm_coll_op *op = &d->op[(d->seq + 1) % LS_SHM_COLL_OPS];
    ls_flight_recorder_record what = {.group = d->group->number, .seq = d->seq + 1};

    op->coll = ls_coll_only_used(coll);
    op->seq = ++d->seq;
    op->size = ls_dtype_bytes(op->coll.type);
    op->own = ls_shm_coll_slot(d, op, d->me);
    op->state = LS_SHM_COLL_READY;
    op->checked = false;
    op->ready = 1;
    op->pass = 0;
    op->window = 0;
    what.kind = op->coll.kind;
    what.op = op->coll.op;
    what.type = op->coll.type;
    what.bytes = op->coll.count * op->size;
    op->record = ls_flight_recorder_enter(d->segment, d->group->local, &what);
    ls_status st = ls_shm_coll_publish(d, op);
    if (st == LS_OK) {
        post(d, op, 1);
        warm_next(d, op);
    }
    return st;
}

ls_status ls_shm_coll_start(ls_shm_coll *direct, const ls_coll *coll,
                            ls_shm_coll_ticket *ticket_out)
{
    ls_status st = LS_OK;

    LS_TRY(st, still_whole(direct), out);
    LS_TRY(st, ls_coll_check(coll, direct->n, direct->me), out);
    if (ls_coll_is_message(coll->kind)) {
        st = ls_shm_coll_message_start(direct, coll, ticket_out);
        return st == LS_OK || st == LS_EBUSY ? st : broke(direct, st);
    }
    if (!slot_is_free(direct, direct->seq + 1))
        return ls_fail(LS_EBUSY, "%d collectives are in flight", LS_SHM_COLL_OPS);
    st = begin(direct, coll);
    if (st != LS_OK)
        return broke(direct, st);
    *ticket_out = direct->seq;
out:
    return st;
}

static bool is_done(const ls_shm_coll *d, ls_shm_coll_ticket ticket)
{
    if (ticket & LS_SHM_COLL_MESSAGE)
        return ls_shm_coll_message_done(d, ticket);
    const ls_shm_coll_op *op = &d->op[ticket % LS_SHM_COLL_OPS];
    return op->seq != ticket || op->state == LS_SHM_COLL_DONE;
}

/* Everything in flight, oldest first. */
static ls_status advance_all(ls_shm_coll *d)
{
    ls_status st = LS_OK;

    d->busy = false;
    for (uint64_t seq = d->completed + 1; seq <= d->seq; seq++)
        LS_TRY(st, advance(d, &d->op[seq % LS_SHM_COLL_OPS], LS_SHM_COLL_BITE), out);
    if (d->pair)
        st = ls_shm_coll_message_poll(d);
out:
    return st;
}

/* An operation that is complete counts as done even if the segment broke right after: so moving
 * comes first. */
ls_status ls_shm_coll_poll(ls_shm_coll *direct, ls_shm_coll_ticket ticket, bool *done_out)
{
    ls_status st = LS_OK;

    if (!is_done(direct, ticket)) {
        if (direct->failed)
            return ls_err_adopt(&direct->failure);
        st = advance_all(direct);
        if (st != LS_OK)
            return broke(direct, st);
    }
    if (!is_done(direct, ticket))
        LS_TRY(st, still_whole(direct), out);
    *done_out = is_done(direct, ticket);
out:
    return st;
}

/* Between two looks: this rank moved something, or waits. */
static ls_wait_turn take_turn(const ls_shm_coll *d, ls_wait *wait)
{
    if (!d->busy)
        return ls_wait_once(wait);
    ls_wait_moved(wait);
    if (ls_shm_segment_aborted(d->segment))
        return LS_WAIT_BROKEN;
    return ls_time_now_ns() < wait->deadline_ns ? LS_WAIT_ON : LS_WAIT_LATE;
}

ls_status ls_shm_coll_wait(ls_shm_coll *direct, ls_shm_coll_ticket ticket, int64_t deadline_ns)
{
    ls_wait_turn turn = LS_WAIT_ON;
    ls_status st = LS_OK;
    ls_wait wait;

    if (is_done(direct, ticket))
        return LS_OK;
    if (direct->failed)
        return ls_err_adopt(&direct->failure);
    ls_wait_begin(&wait, direct->segment, direct->group->local, deadline_ns);
    for (;;) {
        st = advance_all(direct);
        if (st != LS_OK || is_done(direct, ticket) || turn != LS_WAIT_ON)
            break;
        turn = take_turn(direct, &wait);
    }
    ls_wait_end(&wait);
    if (st == LS_OK && is_done(direct, ticket))
        return LS_OK;
    if (st == LS_OK && turn != LS_WAIT_LATE)
        st = ls_shm_segment_failure(direct->segment);
    else if (st == LS_OK)
        st = ticket & LS_SHM_COLL_MESSAGE
                 ? ls_shm_coll_message_late(direct, ticket)
                 : ls_shm_coll_late(direct, &direct->op[ticket % LS_SHM_COLL_OPS]);
    return broke(direct, st);
}

/* Until an operation can be started. */
static ls_status await_slot(ls_shm_coll *d, int64_t deadline_ns)
{
    uint64_t seq = d->seq + 1;
    ls_wait_turn turn = LS_WAIT_ON;
    ls_wait wait;

    if (slot_is_free(d, seq))
        return LS_OK;
    ls_status st = ls_shm_coll_wait(d, seq - LS_SHM_COLL_OPS, deadline_ns);
    if (st != LS_OK)
        return st;
    /* Others have not read it yet; they will, or the operation itself will miss them. */
    ls_wait_begin(&wait, d->segment, d->group->local, deadline_ns);
    while (!slot_is_free(d, seq) && turn == LS_WAIT_ON) {
        st = advance_all(d);
        turn = st == LS_OK ? take_turn(d, &wait) : LS_WAIT_BROKEN;
    }
    ls_wait_end(&wait);
    if (slot_is_free(d, seq))
        return LS_OK;
    if (st == LS_OK && turn == LS_WAIT_BROKEN)
        st = ls_shm_segment_failure(d->segment);
    else if (st == LS_OK)
        st = ls_fail(LS_EDEADLINE, "other ranks did not finish collective %llu in time",
                     (unsigned long long)(seq - LS_SHM_COLL_OPS));
    return broke(d, st);
}

ls_status ls_shm_coll_run(ls_shm_coll *direct, const ls_coll *coll, int64_t deadline_ns)
{
    ls_shm_coll_ticket ticket;
    ls_status st = LS_OK;

    LS_TRY(st, still_whole(direct), out);
    LS_TRY(st, await_slot(direct, deadline_ns), out);
    LS_TRY(st, ls_shm_coll_start(direct, coll, &ticket), out);
    st = ls_shm_coll_wait(direct, ticket, deadline_ns);
out:
    return st;
}
