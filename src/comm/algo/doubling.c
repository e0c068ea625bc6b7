/* doubling.c -- recursive doubling: each rank swaps its whole sum with a partner at distance 1, 2,
 * 4, ...; log2(n) steps, for messages that are all latency.
 *
 *     rank   0     1     2     3
 *            a     b     c     d
 *      d=1   a+b   a+b   c+d   c+d          0 <-> 1, 2 <-> 3
 *      d=2   a+b+c+d everywhere             0 <-> 2, 1 <-> 3
 *
 * Worked example, n = 4, rank r holds r+1: after d = 1 there are 3, 3, 7, 7; after d = 2 four times
 * 10. Both partners add the same two numbers, so all ranks have the same bits.
 *
 * Surplus ranks beyond the largest power of two hand their values to rank r - p first and get the
 * sum at the end, as in halving.c. A sum cannot be received into memory that is being sent, so it
 * arrives in TMP, in two slots by turns: a fast partner may be one level ahead. */
#include "comm/algo/algo_impl.h"
#include "comm/cost_impl.h"

static void draft_surplus(ls_algo_draft *d, int peer)
{
    int64_t count = d->args->count;
    int32_t given = ls_algo_send(d, peer, ls_algo_in(d, 0), count, -1);

    ls_algo_recv(d, peer, ls_algo_at(LS_SCHED_OUT, 0), count, given);
}

/* Fold the surplus, swap at every distance, hand the surplus its result. */
static void draft_doubling(ls_algo_draft *d)
{
    int n = d->args->ranks, me = d->args->rank, p = ls_algo_power(n), level = 0;
    int64_t count = d->args->count;
    ls_algo_place held = ls_algo_in(d, 0), out = ls_algo_at(LS_SCHED_OUT, 0);
    int32_t ready = -1, before = -1; /* the latest sum, and what its slot waits for */

    if (me >= p) {
        draft_surplus(d, me - p);
        return;
    }
    if (count == 0)
        return;
    d->sched->tmp_count = p > 2 ? 2 * count : count;
    if (me + p < n) {
        ready = ls_algo_recv_add(d, me + p, out, held, count, -1);
        held = out;
        before = ready; /* the surplus goes first: nothing can be done with the other before */
    }
    for (int mask = 1; mask < p; mask *= 2, level++) {
        ls_algo_place slot = ls_algo_at(LS_SCHED_TMP, level % 2 * count);
        int32_t send = ls_algo_send(d, me ^ mask, held, count, ready);
        int32_t recv = ls_algo_recv(d, me ^ mask, slot, count, level == 1 ? -1 : before);
        int32_t sum = ls_algo_combine(d, out, count, send);
        bool lower = me < (me ^ mask);
        ls_algo_part(d, lower ? held : slot, lower ? ready : recv);
        ls_algo_part(d, lower ? slot : held, lower ? recv : ready);
        if (2 * mask == p)
            ls_algo_last(d, sum);
        before = ready;
        ready = sum;
        held = out;
    }
    if (me + p < n)
        ls_algo_send(d, me + p, out, count, ready);
}

const ls_algo ls_algo_doubling = {
    .name = "doubling",
    .what = "recursive doubling of whole buffers; log2(n) steps, for small messages",
    .wanders = true,
    .draft = {[LS_COLL_ALL_REDUCE] = draft_doubling},
    .time_ns = ls_cost_time_doubling,
    .sent = ls_cost_sent_doubling,
};
