/* shm_coll_call.c -- compares what the members ask for, and words the failure when they differ.
 *
 * Each member publishes kind, operation, type, count and root in its slot before any data moves.
 * Every member compares its own with those of all others, so all find the same difference:
 *
 *     rank 0 asks for all_reduce 17 (sum of 10 f32), rank 2 for all_reduce 17 (sum of 12 f32)
 *
 * A member whose deadline passes reads the words of the others. It names the one that is furthest
 * behind, says how many more are late, and adds what the flight recorder knows of the named one:
 *
 *     rank 2 (pid 88 on n0) and 1 more did not come to all_reduce (sum of 10 f32), collective 17,
 *     in time: it has not been in a collective for 3.2 s, the last was ... */
#include "base/time.h"
#include "comm/node/shm_coll_impl.h"

enum { CALL_TEXT = 96 };

/* --- whether all ask for the same ------------------------------------------------------------- */

/* "all_reduce (sum of 10 f32)" */
static const char *say(const ls_shm_segment_slot *s, char text[CALL_TEXT])
{
    const char *kind = ls_coll_kind_name((ls_coll_kind)s->kind),
               *type = ls_coll_type_name((ls_dtype)s->type);
    long long count = (long long)s->count;

    if (ls_coll_reduces((ls_coll_kind)s->kind))
        snprintf(text, CALL_TEXT, "%s (%s of %lld %s)", kind, ls_coll_op_name((ls_coll_op)s->op),
                 count, type);
    else if (ls_coll_rooted((ls_coll_kind)s->kind))
        snprintf(text, CALL_TEXT, "%s (%lld %s, root %d)", kind, count, type, s->root);
    else if (s->kind == LS_COLL_BARRIER)
        snprintf(text, CALL_TEXT, "%s", kind);
    else if (s->kind == LS_COLL_ALL_TO_ALL && s->tabled)
        snprintf(text, CALL_TEXT, "%s (%s by a table)", kind, type);
    else
        snprintf(text, CALL_TEXT, "%s (%lld %s)", kind, count, type);
    return text;
}

/* Where counts may differ, what one member gives must be what the other expects. */
static bool same_piece(const ls_shm_coll *d, const ls_shm_coll_op *op, int other)
{
    const ls_coll *c = &op->coll;
    int64_t at, gives = ls_shm_coll_piece(d, op, other, d->me, &at);
    int64_t expected = c->out_counts ? c->out_counts[other] : c->count;

    if (c->kind == LS_COLL_ALL_TO_ALL)
        return gives == expected;
    if (c->kind == LS_COLL_GATHER && c->peer == d->me && other != d->me)
        return gives == expected;
    return true;
}

static bool same_call(const ls_shm_segment_slot *a, const ls_shm_segment_slot *b)
{
    bool counted = a->kind != LS_COLL_ALL_TO_ALL && a->kind != LS_COLL_GATHER;

    return a->kind == b->kind && a->op == b->op && a->type == b->type && a->root == b->root &&
           (!counted || a->count == b->count);
}

ls_status ls_shm_coll_compare(const ls_shm_coll *d, const ls_shm_coll_op *op)
{
    char name[2][LS_SHM_SEGMENT_NAME], call[2][CALL_TEXT];

    for (int i = 1; i < d->n; i++) {
        int other = (d->me + i) % d->n;
        const ls_shm_segment_slot *slot = ls_shm_coll_slot(d, op, other);
        bool same = same_call(op->own, slot);
        if (same && same_piece(d, op, other))
            continue;
        ls_shm_segment_name(d->segment, d->group->local, name[0]);
        ls_shm_segment_name(d->segment, d->group->locals[other], name[1]);
        ls_status st = ls_fail(
            LS_EUSAGE, "ranks ask for different things as collective %llu: %s for %s, %s for %s%s",
            (unsigned long long)op->seq, name[0], say(op->own, call[0]), name[1],
            say(slot, call[1]), same ? ", and the length of their piece is not the same" : "");
        ls_err_hint("All ranks must call the same collectives in the same order.");
        return st;
    }
    return LS_OK;
}

/* --- ranks that did not come ------------------------------------------------------------------ */

ls_status ls_shm_coll_late(const ls_shm_coll *d, const ls_shm_coll_op *op)
{
    char name[LS_SHM_SEGMENT_NAME], call[CALL_TEXT], where[LS_FLIGHT_RECORDER_TEXT];
    uint32_t phase = op->state == LS_SHM_COLL_READY ? op->ready : op->ready + 1;
    uint64_t least = UINT64_MAX;
    int who = -1, late = 0;

    for (int i = 0; i < d->n; i++) {
        uint64_t word =
            atomic_load_explicit(&ls_shm_coll_slot(d, op, i)->word, memory_order_acquire);
        if (i == d->me || word >= ls_shm_coll_word(op, phase))
            continue;
        late++;
        if (word < least)
            who = i;
        least = word < least ? word : least;
    }
    say(op->own, call);
    if (who < 0)
        return ls_fail(LS_EDEADLINE, "%s, collective %llu, was not done in time", call,
                       (unsigned long long)op->seq);
    ls_shm_segment_name(d->segment, d->group->locals[who], name);
    ls_flight_recorder_where(d->segment, d->group->locals[who], where);
    if (late == 1)
        return ls_fail(LS_EDEADLINE, "%s did not %s %s, collective %llu, in time: %s", name,
                       least < ls_shm_coll_word(op, 1) ? "come to" : "finish its part of", call,
                       (unsigned long long)op->seq, where);
    return ls_fail(LS_EDEADLINE, "%s and %d more did not %s %s, collective %llu, in time: %s", name,
                   late - 1, least < ls_shm_coll_word(op, 1) ? "come to" : "finish their part of",
                   call, (unsigned long long)op->seq, where);
}
