/* sched.c -- builds a schedule: checks the arguments, calls the algorithm, which appends its steps,
 * and numbers the messages.
 *
 * Steps and parts grow by doubling. While steps are appended, one array of 2 x ranks counts the
 * messages for each peer and direction; so two ranks give the same message the same number without
 * talking:
 *
 *     rank 0:  send to 1 (#0)   recv from 1 (#0)   send to 1 (#1)
 *     rank 1:  recv from 0 (#0)  send to 0 (#0)    recv from 0 (#1)
 *
 * A step waits for at most two others (`after`), a combination for each of its parts as well. Two
 * are enough, because waiting carries over: a send that waits for the send before it waits for all
 * that this one waited for (halving.c and dissemination.c rely on it). */
#include "comm/sched.h"

#include "base/mem.h"
#include "comm/algo/algo_impl.h"

/* --- appending -------------------------------------------------------------------------------- */

static const ls_algo_place nowhere = {LS_SCHED_IN, 0};

static ls_status too_many(const ls_sched_args *a)
{
    ls_status st =
        ls_fail(LS_EUSAGE, "cannot cut %lld elements into messages of %lld: more than %d steps",
                (long long)a->count, (long long)a->chunk, LS_SCHED_STEPS);

    ls_err_hint("Use a larger chunk.");
    return st;
}

/* Room for more steps or parts, twice as many; the schedule is limited to LS_SCHED_STEPS. */
static bool grow(ls_algo_draft *d, void **array, int32_t *room, size_t size)
{
    int32_t more = *room ? 2 * *room : 64;

    if (*room >= LS_SCHED_STEPS) {
        d->status = too_many(d->args);
        return false;
    }
    void *bigger = ls_mem_resize(*array, (size_t)more * size);
    if (!bigger) {
        d->status = LS_ENOMEM;
        return false;
    }
    *array = bigger;
    *room = more;
    return true;
}

/* Append a step; its number in the list, or -1 when it could not be made. A place that the act does
 * not name is anything. */
static int32_t append(ls_algo_draft *d, ls_sched_act act, ls_algo_place to, ls_algo_place from,
                      int64_t count, int32_t after)
{
    ls_sched *s = d->sched;

    if (d->status != LS_OK)
        return -1;
    if (s->count == s->steps_room) {
        void *steps = s->steps;
        if (!grow(d, &steps, &s->steps_room, sizeof *s->steps))
            return -1;
        s->steps = steps;
    }
    LS_BUG_IF(after >= s->count, "step %d waits for step %d", (int)s->count, (int)after);
    s->steps[s->count] = (ls_sched_step){.act = (uint8_t)act,
                                         .to = (uint8_t)to.buffer,
                                         .to_at = to.at,
                                         .from = (uint8_t)from.buffer,
                                         .from_at = from.at,
                                         .peer = -1,
                                         .count = count,
                                         .after = {after, -1}};
    return s->count++;
}

/* Give the step that was just appended its peer, and its number among the messages with that peer
 * in this direction. */
static int32_t address(ls_algo_draft *d, int32_t step, int peer)
{
    if (step >= 0) {
        ls_sched_step *s = &d->sched->steps[step];
        s->peer = peer;
        s->number = d->numbers[(s->act == LS_SCHED_SEND ? 0 : d->args->ranks) + peer]++;
    }
    return step;
}

/* Only the messages of a barrier are empty; others of no elements are left out. */
static bool is_left_out(const ls_algo_draft *d, int64_t count)
{
    return count == 0 && d->args->kind != LS_COLL_BARRIER;
}

int32_t ls_algo_send(ls_algo_draft *d, int peer, ls_algo_place from, int64_t count, int32_t after)
{
    return is_left_out(d, count)
               ? -1
               : address(d, append(d, LS_SCHED_SEND, nowhere, from, count, after), peer);
}

int32_t ls_algo_recv(ls_algo_draft *d, int peer, ls_algo_place to, int64_t count, int32_t after)
{
    return is_left_out(d, count)
               ? -1
               : address(d, append(d, LS_SCHED_RECV, to, nowhere, count, after), peer);
}

int32_t ls_algo_recv_add(ls_algo_draft *d, int peer, ls_algo_place to, ls_algo_place from,
                         int64_t count, int32_t after)
{
    return is_left_out(d, count)
               ? -1
               : address(d, append(d, LS_SCHED_RECV_ADD, to, from, count, after), peer);
}

int32_t ls_algo_copy(ls_algo_draft *d, ls_algo_place to, ls_algo_place from, int64_t count,
                     int32_t after)
{
    bool same = to.buffer == from.buffer ||
                (d->args->in_place && to.buffer != LS_SCHED_TMP && from.buffer != LS_SCHED_TMP);

    if (count == 0 || (same && to.at == from.at))
        return after;
    return append(d, LS_SCHED_COPY, to, from, count, after);
}

int32_t ls_algo_combine(ls_algo_draft *d, ls_algo_place to, int64_t count, int32_t after)
{
    int32_t step = append(d, LS_SCHED_COMBINE, to, nowhere, count, after);

    LS_BUG_IF(count == 0, "a combination of nothing");
    if (step >= 0)
        d->sched->steps[step].first_part = d->sched->parts_count;
    return step;
}

void ls_algo_part(ls_algo_draft *d, ls_algo_place from, int32_t after)
{
    ls_sched *s = d->sched;

    if (d->status != LS_OK)
        return;
    if (s->parts_count == s->parts_room) {
        void *parts = s->parts;
        if (!grow(d, &parts, &s->parts_room, sizeof *s->parts))
            return;
        s->parts = parts;
    }
    s->parts[s->parts_count++] =
        (ls_sched_part){.buffer = (uint8_t)from.buffer, .after = after, .at = from.at};
    s->steps[s->count - 1].parts++;
}

void ls_algo_also(ls_algo_draft *d, int32_t step, int32_t after)
{
    if (d->status != LS_OK || step < 0 || after < 0)
        return;
    ls_sched_step *s = &d->sched->steps[step];
    if (s->after[0] < 0) {
        s->after[0] = after;
        return;
    }
    LS_BUG_IF(s->after[1] >= 0, "step %d would wait for three", (int)step);
    s->after[1] = after;
}

void ls_algo_last(ls_algo_draft *d, int32_t step)
{
    if (d->status == LS_OK && step >= 0)
        d->sched->steps[step].last = true;
}

bool ls_algo_marks(ls_algo_draft *d, int64_t count)
{
    if (d->status != LS_OK)
        return false;
    ls_mem_free(d->mark);
    d->mark = ls_mem_array((size_t)count + 1, sizeof *d->mark);
    d->marks = count;
    if (!d->mark) {
        d->status = LS_ENOMEM;
        return false;
    }
    for (int64_t i = 0; i < count; i++)
        d->mark[i] = -1;
    return true;
}

/* --- ranges ----------------------------------------------------------------------------------- */

ls_algo_place ls_algo_in(const ls_algo_draft *d, int64_t at)
{
    return ls_algo_at(d->args->in_place ? LS_SCHED_OUT : LS_SCHED_IN, at);
}

ls_algo_range ls_algo_range_of(const ls_algo_draft *d, int rank)
{
    ls_algo_range r;

    ls_coll_range(d->args->count, d->args->ranks, rank, &r.first, &r.len);
    return r;
}

ls_algo_place ls_algo_own_out(const ls_algo_draft *d)
{
    int64_t first = ls_algo_range_of(d, d->args->rank).first;
    bool whole = d->args->in_place || d->args->kind != LS_COLL_REDUCE_SCATTER;

    return ls_algo_at(LS_SCHED_OUT, whole ? first : 0);
}

ls_algo_place ls_algo_own_in(const ls_algo_draft *d)
{
    int64_t first = ls_algo_range_of(d, d->args->rank).first;
    bool whole = d->args->in_place || d->args->kind != LS_COLL_ALL_GATHER;

    return ls_algo_in(d, whole ? first : 0);
}

int64_t ls_algo_pieces(const ls_algo_draft *d, int64_t len)
{
    int64_t chunk = d->args->chunk;

    return chunk > 0 ? (len + chunk - 1) / chunk : len > 0;
}

int64_t ls_algo_piece(const ls_algo_draft *d, int64_t len)
{
    return d->args->chunk > 0 ? ls_min_i64(len, d->args->chunk) : len;
}

ls_algo_range ls_algo_cut(const ls_algo_draft *d, int64_t len, int64_t piece)
{
    int64_t chunk = d->args->chunk > 0 ? d->args->chunk : len;

    return (ls_algo_range){piece * chunk, ls_min_i64(chunk, len - piece * chunk)};
}

/* One rank alone: IN to OUT where the kind has both. */
static void draft_alone(ls_algo_draft *d)
{
    const ls_sched_args *a = d->args;
    int64_t count = a->count;

    if (a->kind == LS_COLL_BARRIER)
        return;
    if (a->kind == LS_COLL_GATHER && a->out_counts)
        count = a->out_counts[0];
    if (a->kind == LS_COLL_ALL_TO_ALL && a->in_counts)
        count = a->in_counts[0];
    ls_algo_copy(d, ls_algo_at(LS_SCHED_OUT, 0), ls_algo_at(LS_SCHED_IN, 0), count, -1);
}

/* --- building --------------------------------------------------------------------------------- */

/* Whether there can be such a schedule; the algorithm says whether it can do the kind. */
static ls_status check_args(const ls_sched_args *a)
{
    ls_coll coll = {.kind = a->kind,
                    .type = LS_F32,
                    .count = a->count,
                    .in_counts = a->in_counts,
                    .out_counts = a->out_counts};

    if (a->ranks < 1 || a->ranks > LS_SCHED_RANKS || a->rank < 0 || a->rank >= a->ranks)
        return ls_fail(LS_EUSAGE, "cannot plan a collective for rank %d of %d", a->rank, a->ranks);
    if (a->peer < 0 || a->peer >= a->ranks)
        return ls_fail(LS_EUSAGE, "cannot plan a collective with rank %d among %d", a->peer,
                       a->ranks);
    if (a->count < 0 || a->count > INT64_MAX / 16 / a->ranks || a->chunk < 0)
        return ls_fail(LS_EUSAGE, "cannot plan a collective of %lld elements in chunks of %lld",
                       (long long)a->count, (long long)a->chunk);
    if (a->algo->cuts && a->chunk > 0 && a->count / a->chunk >= LS_SCHED_STEPS)
        return too_many(a); /* before the steps fill memory in vain */
    const char *refuses = ls_algo_refuses(a->algo, &coll, a->ranks, false);
    if (refuses)
        return ls_fail(LS_EUSAGE, "algorithm \"%s\" %s", a->algo->name, refuses);
    return LS_OK;
}

ls_status ls_sched_build(ls_sched *sched, const ls_sched_args *args)
{
    ls_algo_draft d = {.args = args, .sched = sched};

    *sched = (ls_sched){0};
    LS_TRY(d.status, check_args(args), out);
    d.numbers = ls_mem_array(2 * (size_t)args->ranks, sizeof *d.numbers);
    if (!d.numbers) {
        d.status = LS_ENOMEM;
        goto out;
    }
    if (args->ranks == 1 && args->kind != LS_COLL_SEND && args->kind != LS_COLL_RECV)
        draft_alone(&d);
    else
        args->algo->draft[args->kind](&d);
out:
    ls_mem_free(d.numbers);
    ls_mem_free(d.mark);
    if (d.status != LS_OK)
        ls_sched_release(sched);
    return d.status;
}

void ls_sched_release(ls_sched *sched)
{
    ls_mem_free(sched->steps);
    ls_mem_free(sched->parts);
    *sched = (ls_sched){0};
}
