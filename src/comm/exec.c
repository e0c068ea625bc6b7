/* exec.c -- runs the steps of a schedule as messages of a transport.
 *
 * A step is IDLE, then POSTED (the transport has a message of its slot), then DONE; copies and
 * combinations go from IDLE to DONE. Step i uses slot i modulo the window. At most a window of
 * steps is under way, so the slot is free when its step starts.
 *
 *     steps   0 1 2 3 4 5 6 7 8 9 ...
 *             D D D P I P I I I I       D done, P posted, I idle
 *                   ^first       ^first + window
 *
 * Worked example: a ring all-reduce of 32 elements on rank 0 of 2; a and b are the values of ranks
 * 0 and 1, out is another buffer than in:
 *
 *     step  act                   waits for
 *     0     SEND in[16..31]       -           the upper half of a leaves
 *     1     RECV_ADD out[0..15]   -           in[0..15] is copied there; b is added as it arrives,
 *                                             and a mean is divided (`last`)
 *     2     SEND out[0..15]       1           the finished lower half leaves
 *     3     RECV out[16..31]      0           the finished upper half arrives
 *
 * Steps 0 and 1 are posted by the first look. In place, step 3 overwrites what step 0 sends: so it
 * waits for that step in every case.
 *
 * Beside the data, a small fingerprint of the call goes around a circle of all ranks: each rank
 * sends its own to the next rank, and is done only when an equal one has come from the rank before.
 * So two ranks that do different things are named even where the lengths of their messages agree by
 * chance. Where the schedule sends to the next rank anyway, the fingerprint rides on that
 * message. */
#include "comm/exec.h"

#include <stdio.h>
#include <string.h>
#include "base/mem.h"

enum { IDLE, POSTED, DONE };
enum { SAY_BYTES = 112 };

static int64_t bytes_of(const ls_exec *x, int64_t count)
{
    return count * ls_dtype_bytes(x->coll.type);
}

/* IN is only read from; where the collective is in place it is OUT. */
static char *place(const ls_exec *x, uint8_t buffer, int64_t at)
{
    const void *base = buffer == LS_SCHED_IN    ? x->coll.in
                       : buffer == LS_SCHED_OUT ? x->coll.out
                                                : x->tmp;

    return (char *)(uintptr_t)base + bytes_of(x, at);
}

static ls_combine_op combine_op(ls_coll_op op)
{
    return op == LS_COLL_MAX ? LS_COMBINE_MAX : op == LS_COLL_MIN ? LS_COMBINE_MIN : LS_COMBINE_SUM;
}

static double scale_of(const ls_exec *x, const ls_sched_step *step)
{
    return step->last && x->coll.op == LS_COLL_MEAN ? 1.0 / x->args.ranks : 1;
}

/* --- beginning --------------------------------------------------------------------------------*/

/* Memory for the states of all steps and for TMP; kept from one schedule to the next, and only ever
 * grown. */
static ls_status make_room(ls_exec *x, const ls_sched *sched)
{
    int64_t tmp = bytes_of(x, sched->tmp_count);

    if (sched->count > x->state_room) {
        ls_mem_free(x->state);
        x->state_room = 0;
        x->state = ls_mem_alloc((size_t)sched->count);
        if (!x->state)
            return ls_fail(LS_ENOMEM, "no memory for %d steps of a collective", sched->count);
        x->state_room = sched->count;
    }
    if (tmp > x->tmp_room) {
        ls_mem_free(x->tmp);
        x->tmp_room = 0;
        x->tmp = ls_mem_alloc((size_t)tmp);
        if (!x->tmp)
            return ls_fail(LS_ENOMEM, "no memory for %.1f MiB that a collective keeps aside",
                           (double)tmp / (double)LS_MIB);
        x->tmp_room = tmp;
    }
    return LS_OK;
}

static bool has_fingerprint(const ls_exec *x)
{
    return x->args.ranks > 1 && !x->args.part && !ls_coll_is_message(x->coll.kind);
}

/* --- what is asked for ------------------------------------------------------------------------*/

/* Ranks may differ in what the operation ignores, and in the count where each rank has its own. */
static void sign(ls_exec_signature *s, const ls_exec_args *a, const char *algo)
{
    const ls_coll c = ls_coll_only_used(a->coll);
    bool own = c.kind == LS_COLL_ALL_TO_ALL || c.kind == LS_COLL_GATHER;

    *s = (ls_exec_signature){.tag = a->tag,
                             .count = own ? 0 : c.count,
                             .kind = (int32_t)c.kind,
                             .op = (int32_t)c.op,
                             .type = (int32_t)c.type,
                             .peer = c.peer,
                             .rank = a->peers[a->rank]};
    snprintf(s->algo, sizeof s->algo, "%s", algo);
}

/* The circle that fingerprints go around. For a power of two it is the Gray code, whose neighbours
 * differ in one bit: these are the partners of recursive doubling and halving, so small data and
 * fingerprint share a frame. Eight ranks: 0 1 3 2 6 7 5 4. */
static int gray(int place)
{
    return place ^ place >> 1;
}

static int place_of(int rank)
{
    int place = 0;

    for (; rank; rank >>= 1)
        place ^= rank;
    return place;
}

static int neighbour(int rank, int ranks, int by)
{
    if (ranks & (ranks - 1))
        return (rank + by + ranks) % ranks;
    return gray((place_of(rank) + by + ranks) % ranks);
}

/* Whether the schedule sends to this rank anyway. */
static bool is_sent_to(const ls_sched *sched, int rank)
{
    for (int32_t i = 0; sched && i < sched->count && i < LS_EXEC_WINDOW; i++)
        if (sched->steps[i].act == LS_SCHED_SEND && sched->steps[i].peer == rank)
            return true;
    return false;
}

/* Send the fingerprint to the next rank, and receive that of the rank before. */
ls_status ls_exec_fingerprint_begin(ls_exec_fingerprint *o, const ls_exec_args *a, const char *algo)
{
    int next = neighbour(a->rank, a->ranks, 1), before = neighbour(a->rank, a->ranks, -1);
    uint64_t tag = a->tag | (((uint64_t)1 << LS_EXEC_TAG_BITS) - 1);
    ls_status st;

    o->checked = false;
    sign(&o->mine, a, algo);
    o->said = (ls_message){.peer = a->peers[next],
                           .tag = tag,
                           .data = &o->mine,
                           .bytes = sizeof o->mine,
                           .rides = is_sent_to(a->sched, next)};
    o->heard = (ls_message){
        .peer = a->peers[before], .tag = tag, .data = &o->theirs, .bytes = sizeof o->theirs};
    LS_TRY(st, a->transport->table->receive(a->transport, &o->heard), out);
    LS_TRY(st, a->transport->table->send(a->transport, &o->said), out);
out:
    return st;
}

/* "all_reduce (sum of 10 f32, ring)" */
static const char *say(const ls_exec_signature *s, char text[SAY_BYTES])
{
    const char *kind = ls_coll_kind_name((ls_coll_kind)s->kind);
    const char *type = ls_coll_type_name((ls_dtype)s->type);

    if (ls_coll_reduces((ls_coll_kind)s->kind))
        snprintf(text, SAY_BYTES, "%s (%s of %lld %s, %.19s)", kind,
                 ls_coll_op_name((ls_coll_op)s->op), (long long)s->count, type, s->algo);
    else if (s->kind == LS_COLL_GATHER)
        snprintf(text, SAY_BYTES, "%s (%s, root %d, %.19s)", kind, type, s->peer, s->algo);
    else if (s->kind == LS_COLL_BROADCAST)
        snprintf(text, SAY_BYTES, "%s (%lld %s, root %d, %.19s)", kind, (long long)s->count, type,
                 s->peer, s->algo);
    else if (s->kind == LS_COLL_ALL_GATHER)
        snprintf(text, SAY_BYTES, "%s (%lld %s, %.19s)", kind, (long long)s->count, type, s->algo);
    else if (s->kind == LS_COLL_ALL_TO_ALL)
        snprintf(text, SAY_BYTES, "%s (%s, %.19s)", kind, type, s->algo);
    else
        snprintf(text, SAY_BYTES, "%s", kind);
    return text;
}

static ls_status compare(const ls_exec_signature *a, const ls_exec_signature *b)
{
    char text[2][SAY_BYTES];

    if (a->count == b->count && a->kind == b->kind && a->op == b->op && a->type == b->type &&
        a->peer == b->peer && strncmp(a->algo, b->algo, sizeof a->algo) == 0)
        return LS_OK;
    ls_fail(LS_EUSAGE, "ranks ask for different things: rank %d for %s, rank %d for %s", a->rank,
            say(a, text[0]), b->rank, say(b, text[1]));
    ls_err_hint("All ranks must call the same collectives in the same order.");
    return LS_EUSAGE;
}

ls_status ls_exec_fingerprint_poll(ls_exec_fingerprint *fingerprint, bool *done_out)
{
    ls_status st = LS_OK;

    if (!fingerprint->checked && fingerprint->heard.done) {
        LS_TRY(st, compare(&fingerprint->mine, &fingerprint->theirs), out);
        fingerprint->checked = true;
    }
    *done_out = fingerprint->checked && fingerprint->said.done;
out:
    return st;
}

ls_status ls_exec_explain(const ls_exec_fingerprint *fingerprint)
{
    return fingerprint->heard.done && !fingerprint->checked
               ? compare(&fingerprint->mine, &fingerprint->theirs)
               : LS_OK;
}

ls_status ls_exec_begin(ls_exec *x, const ls_exec_args *args, const char *algo)
{
    ls_status st;

    x->args = *args;
    x->coll = *args->coll;
    x->first = 0;
    LS_TRY(st, make_room(x, args->sched), out);
    if (args->sched->count > 0)
        memset(x->state, IDLE, (size_t)args->sched->count);
    x->fingerprint.heard.done = x->fingerprint.checked = false;
    if (has_fingerprint(x))
        LS_TRY(st, ls_exec_fingerprint_begin(&x->fingerprint, args, algo), out);
out:
    return st;
}

void ls_exec_release(ls_exec *exec)
{
    ls_mem_free(exec->state);
    ls_mem_free(exec->tmp);
    *exec = (ls_exec){.state = NULL};
}

/* --- steps ------------------------------------------------------------------------------------*/

static bool is_done(const ls_exec *x, int32_t step)
{
    return step < x->first || x->state[step] == DONE;
}

static bool may_start(const ls_exec *x, const ls_sched_step *step)
{
    const ls_sched_part *part = x->args.sched->parts + step->first_part;

    if (!is_done(x, step->after[0]) || !is_done(x, step->after[1]))
        return false;
    for (int32_t i = 0; step->act == LS_SCHED_COMBINE && i < step->parts; i++)
        if (!is_done(x, part[i].after))
            return false;
    return true;
}

/* All parts of a sum at once, in the order of the schedule, rounded once. A mean is scaled here, in
 * its last combination. */
static void combine(const ls_exec *x, const ls_sched_step *step)
{
    const ls_sched_part *part = x->args.sched->parts + step->first_part;
    const void *from[LS_SCHED_RANKS];
    void *to = place(x, step->to, step->to_at);

    LS_BUG_IF(step->parts > LS_SCHED_RANKS, "%d parts of a sum", step->parts);
    for (int32_t i = 0; i < step->parts; i++)
        from[i] = place(x, part[i].buffer, part[i].at);
    ls_combine_run(&(ls_combine){.type = x->coll.type,
                                 .op = combine_op(x->coll.op),
                                 .from = from,
                                 .sources = step->parts,
                                 .to = &to,
                                 .targets = 1,
                                 .scale = scale_of(x, step)},
                   step->count);
}

static ls_status post(ls_exec *x, const ls_sched_step *step, ls_message *m)
{
    ls_transport *transport = x->args.transport;
    bool send = step->act == LS_SCHED_SEND, add = step->act == LS_SCHED_RECV_ADD;
    char *to = send ? NULL : place(x, step->to, step->to_at);

    *m = (ls_message){.peer = x->args.peers[step->peer],
                      .tag = x->args.tag | (uint64_t)(uint32_t)step->number,
                      .data = send ? place(x, step->from, step->from_at) : to,
                      .bytes = bytes_of(x, step->count),
                      .add = add,
                      .op = combine_op(x->coll.op),
                      .type = x->coll.type};
    if (add && place(x, step->from, step->from_at) != to)
        memcpy(to, place(x, step->from, step->from_at), (size_t)m->bytes);
    return send ? transport->table->send(transport, m) : transport->table->receive(transport, m);
}

/* Start a step whose predecessors are done: memory is moved at once, messages go to the
 * transport. */
static ls_status start(ls_exec *x, int32_t i)
{
    const ls_sched_step *step = x->args.sched->steps + i;
    ls_status st = LS_OK;

    switch ((ls_sched_act)step->act) {
    case LS_SCHED_COPY:
        memmove(place(x, step->to, step->to_at), place(x, step->from, step->from_at),
                (size_t)bytes_of(x, step->count));
        x->state[i] = DONE;
        break;
    case LS_SCHED_COMBINE:
        combine(x, step);
        x->state[i] = DONE;
        break;
    case LS_SCHED_SEND:
    case LS_SCHED_RECV:
    case LS_SCHED_RECV_ADD:
        st = post(x, step, &x->message[i % LS_EXEC_WINDOW]);
        x->state[i] = POSTED;
        break;
    }
    return st;
}

void ls_exec_scale(ls_dtype type, void *sums, int64_t count, double scale)
{
    const void *from = sums;

    ls_combine_run(&(ls_combine){.type = type,
                                 .op = LS_COMBINE_SUM,
                                 .from = &from,
                                 .sources = 1,
                                 .to = &sums,
                                 .targets = 1,
                                 .scale = scale},
                   count);
}

/* A message has arrived: divide a sum that is complete. */
static void finish(ls_exec *x, int32_t i)
{
    const ls_sched_step *step = x->args.sched->steps + i;
    double scale = scale_of(x, step);

    x->state[i] = DONE;
    if (scale != 1 && step->act == LS_SCHED_RECV_ADD)
        ls_exec_scale(x->coll.type, place(x, step->to, step->to_at), step->count, scale);
}

/* One look at the window. */
static ls_status look(ls_exec *x, bool *moved_out)
{
    const ls_sched *sched = x->args.sched;
    int32_t end = (int32_t)ls_min_i64(sched->count, (int64_t)x->first + LS_EXEC_WINDOW);

    *moved_out = false;
    for (int32_t i = x->first; i < end; i++) {
        if (x->state[i] == IDLE && may_start(x, &sched->steps[i])) {
            ls_status st = start(x, i);
            if (st != LS_OK)
                return st;
            *moved_out = true;
        }
        if (x->state[i] == POSTED && x->message[i % LS_EXEC_WINDOW].done) {
            finish(x, i);
            *moved_out = true;
        }
    }
    while (x->first < sched->count && x->state[x->first] == DONE)
        x->first++;
    return LS_OK;
}

ls_status ls_exec_poll(ls_exec *x, bool *done_out)
{
    bool moved = true, agreed = true;
    ls_status st = LS_OK;

    if (has_fingerprint(x))
        LS_TRY(st, ls_exec_fingerprint_poll(&x->fingerprint, &agreed), out);
    while (moved && x->first < x->args.sched->count)
        LS_TRY(st, look(x, &moved), out);
    *done_out = x->first == x->args.sched->count && agreed;
out:
    return st;
}
