/* direct_sends.c -- the algorithm "direct": every rank sends straight to every rank that needs its
 * data, in one step.
 *
 *     all-reduce, n = 3            broadcast from 0         gather to 0
 *
 *          0 <----> 1                 0 ---> 1                0 <--- 1
 *           \      /                   \                       \
 *            > 2 <                      ---> 2                   <--- 2
 *
 * Worked example, all-reduce, n = 3: rank 1 receives a from rank 0 and c from rank 2 in TMP and
 * computes a + b + c itself. So does every rank, in rank order, so all have the same bits without a
 * second step. Each rank sends n - 1 times the buffer: for small messages among few ranks.
 *
 * In place, the sum overwrites the own values while they may still be in flight, so they are copied
 * to TMP first and sent from there. Send and receive of two ranks are here as well, as schedules of
 * one step. */
#include "comm/algo/algo_impl.h"
#include "comm/cost_impl.h"

/* Send the whole contribution to all others, receive theirs into TMP, and combine all in rank
 * order. */
static void draft_reduce(ls_algo_draft *d)
{
    const ls_sched_args *a = d->args;
    int n = a->ranks, me = a->rank;
    ls_algo_place own = ls_algo_in(d, 0);
    int32_t ready = -1, sum;

    if (a->count == 0 || !ls_algo_marks(d, n))
        return;
    d->sched->tmp_count = (a->in_place ? n : n - 1) * a->count;
    if (a->in_place) {
        own = ls_algo_at(LS_SCHED_TMP, (n - 1) * a->count);
        ready = ls_algo_copy(d, own, ls_algo_in(d, 0), a->count, -1);
    }
    for (int by = 1; by < n; by++) {
        int from = ls_algo_turn(d, me, -by), slot = from - (from > me);
        ls_algo_send(d, ls_algo_turn(d, me, by), own, a->count, ready);
        d->mark[from] =
            ls_algo_recv(d, from, ls_algo_at(LS_SCHED_TMP, slot * a->count), a->count, -1);
    }
    d->mark[me] = ready;
    sum = ls_algo_combine(d, ls_algo_at(LS_SCHED_OUT, 0), a->count, -1);
    for (int r = 0; r < n; r++)
        ls_algo_part(d, r == me ? own : ls_algo_at(LS_SCHED_TMP, (r - (r > me)) * a->count),
                     d->mark[r]);
    ls_algo_last(d, sum);
}

static void draft_broadcast(ls_algo_draft *d)
{
    const ls_sched_args *a = d->args;

    if (a->rank != a->peer) {
        ls_algo_recv(d, a->peer, ls_algo_at(LS_SCHED_OUT, 0), a->count, -1);
        return;
    }
    for (int by = 1; by < a->ranks; by++)
        ls_algo_send(d, ls_algo_turn(d, a->rank, by), ls_algo_in(d, 0), a->count, -1);
    ls_algo_copy(d, ls_algo_at(LS_SCHED_OUT, 0), ls_algo_in(d, 0), a->count, -1);
}

/* Only the root knows how much each rank sends; the others know what they have. */
static void draft_gather(ls_algo_draft *d)
{
    const ls_sched_args *a = d->args;
    int64_t at = 0;

    if (a->rank != a->peer) {
        ls_algo_send(d, a->peer, ls_algo_at(LS_SCHED_IN, 0), a->count, -1);
        return;
    }
    for (int r = 0; r < a->ranks; r++) {
        int64_t len = a->out_counts ? a->out_counts[r] : a->count;
        if (r == a->rank)
            ls_algo_copy(d, ls_algo_at(LS_SCHED_OUT, at),
                         ls_algo_at(LS_SCHED_IN, a->in_place ? at : 0), len, -1);
        else
            ls_algo_recv(d, r, ls_algo_at(LS_SCHED_OUT, at), len, -1);
        at += len;
    }
}

static void draft_send(ls_algo_draft *d)
{
    ls_algo_send(d, d->args->peer, ls_algo_at(LS_SCHED_IN, 0), d->args->count, -1);
}

static void draft_recv(ls_algo_draft *d)
{
    ls_algo_recv(d, d->args->peer, ls_algo_at(LS_SCHED_OUT, 0), d->args->count, -1);
}

const ls_algo ls_algo_direct = {
    .name = "direct",
    .what = "everything at once, straight; one step, for small messages among few",
    .once = true,
    .uneven = true,
    .draft = {[LS_COLL_ALL_REDUCE] = draft_reduce,
              [LS_COLL_BROADCAST] = draft_broadcast,
              [LS_COLL_GATHER] = draft_gather,
              [LS_COLL_SEND] = draft_send,
              [LS_COLL_RECV] = draft_recv},
    .time_ns = ls_cost_time_direct,
    .sent = ls_cost_sent_direct,
};
