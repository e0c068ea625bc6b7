/* ring.c -- every rank talks to its two neighbours only; all links are busy all the time.
 *
 *          range 0..3 of each rank's buffer, n = 4; rank r sends to rank r + 1
 *
 *     +---> 0 ---> 1 ---> 2 ---> 3 ---+         reduce-scatter, step t = 0 .. n-2:
 *     |                               |           rank r sends range r-t-1 and adds range r-t-2
 *     +-------------------------------+         all-gather, step t = 0 .. n-2:
 *                                                 rank r sends range r-t and receives range r-t-1
 *
 * Worked example, n = 3, the range that rank 0 will own (a, b, c are the contributions of 0, 1, 2):
 *
 *     step 0   rank 1 sends b to rank 2         rank 2 has b + c
 *     step 1   rank 2 sends b + c to rank 0     rank 0 has a + b + c: its range is done
 *     step 2   rank 0 sends the sum to rank 1   (all-gather from here)
 *     step 3   rank 1 sends the sum to rank 2
 *
 * Ranges 1 and 2 travel the same way, turned by one and two places, on the links that are free. A
 * rank sends 2 (n - 1) / n of the buffer, which is the least possible. Ranges are cut into chunks
 * that follow each other at a chunk's distance, so that adding one hides behind the transfer of the
 * next. Sums are made hop by hop, in an order that differs from range to range but is the same in
 * every run, and all ranks get the same bits, because each range is summed once.
 *
 * A broadcast goes along the ring as a chain: root, root + 1, ... in chunks. With many chunks its
 * time is that of one transfer.
 *
 *     chunk  0 1 2 3 4
 *     root   > > > > >            at time i the root sends chunk i, rank root + 1 chunk i - 1, ...
 *     +1       > > > > >
 *     +2         > > > > >
 *
 * A reduce-scatter leaves its input as it was, so partial sums travel through two slots of TMP: one
 * is filled while the other is sent. */
#include "comm/algo/algo_impl.h"
#include "comm/cost_impl.h"

/* Which step a piece of a range was last sent or received in; "ranges" n and n + 1 are the slots of
 * TMP, marked with the send that frees them. */
static int32_t *mark_of(const ls_algo_draft *d, int range, int64_t piece)
{
    int64_t pieces = ls_algo_pieces(d, ls_algo_range_of(d, 0).len); /* range 0 is the longest */

    return &d->mark[range * pieces + piece];
}

/* Where the partial sum of a range lies after step t. */
static ls_algo_place partial(const ls_algo_draft *d, int t, int64_t first, int64_t piece_at)
{
    int64_t slot = ls_algo_range_of(d, 0).len;

    if (d->args->kind == LS_COLL_ALL_REDUCE)
        return ls_algo_at(LS_SCHED_OUT, first + piece_at);
    if (t == d->args->ranks - 2)
        return ls_algo_at(LS_SCHED_OUT, ls_algo_own_out(d).at + piece_at);
    return ls_algo_at(LS_SCHED_TMP, t % 2 * slot + piece_at);
}

/* The piece of one step of the reduce-scatter that goes out, and the one that comes in. */
static void scatter_send(ls_algo_draft *d, int t, int64_t piece)
{
    int range = ls_algo_turn(d, d->args->rank, -t - 1);
    ls_algo_range r = ls_algo_range_of(d, range);
    ls_algo_range c = ls_algo_cut(d, r.len, piece);
    int32_t *mark = mark_of(d, range, piece);
    ls_algo_place from =
        t == 0 ? ls_algo_in(d, r.first + c.first) : partial(d, t - 1, r.first, c.first);

    if (piece >= ls_algo_pieces(d, r.len))
        return;
    *mark = ls_algo_send(d, ls_algo_turn(d, d->args->rank, 1), from, c.len, *mark);
    if (from.buffer == LS_SCHED_TMP)
        *mark_of(d, d->args->ranks + (t - 1) % 2, piece) = *mark;
}

/* One step of the reduce-scatter for one piece: send the partial sum of the step before, receive
 * the neighbour's and add to it. */
static void scatter_add(ls_algo_draft *d, int t, int64_t piece)
{
    int range = ls_algo_turn(d, d->args->rank, -t - 2);
    ls_algo_range r = ls_algo_range_of(d, range);
    ls_algo_range c = ls_algo_cut(d, r.len, piece);
    ls_algo_place to = partial(d, t, r.first, c.first);
    int32_t step, free_slot = -1;

    if (piece >= ls_algo_pieces(d, r.len))
        return;
    if (to.buffer == LS_SCHED_TMP)
        free_slot = *mark_of(d, d->args->ranks + t % 2, piece);
    step = ls_algo_recv_add(d, ls_algo_turn(d, d->args->rank, -1), to,
                            ls_algo_in(d, r.first + c.first), c.len, free_slot);
    if (t == d->args->ranks - 2)
        ls_algo_last(d, step);
    *mark_of(d, range, piece) = step;
}

/* One step of the all-gather for one piece: pass on what the step before brought. */
static void gather_step(ls_algo_draft *d, int t, int64_t piece)
{
    int me = d->args->rank, out = ls_algo_turn(d, me, -t), in = ls_algo_turn(d, me, -t - 1);
    ls_algo_range r = ls_algo_range_of(d, out), s = ls_algo_range_of(d, in);
    ls_algo_range c = ls_algo_cut(d, r.len, piece);
    ls_algo_place from = ls_algo_at(LS_SCHED_OUT, r.first + c.first);

    if (t == 0 && d->args->kind == LS_COLL_ALL_GATHER)
        from = ls_algo_at(ls_algo_own_in(d).buffer, ls_algo_own_in(d).at + c.first);
    if (piece < ls_algo_pieces(d, r.len))
        ls_algo_send(d, ls_algo_turn(d, me, 1), from, c.len, *mark_of(d, out, piece));
    if (piece <
        ls_algo_pieces(d, s.len)) { /* not before the partial sum that lies there was sent */
        int32_t *mark = mark_of(d, in, piece);
        c = ls_algo_cut(d, s.len, piece);
        *mark = ls_algo_recv(d, ls_algo_turn(d, me, -1),
                             ls_algo_at(LS_SCHED_OUT, s.first + c.first), c.len, *mark);
    }
}

/* A broadcast: chunk by chunk from the rank before to the rank behind. */
static void draft_chain(ls_algo_draft *d)
{
    const ls_sched_args *a = d->args;
    int place = ls_algo_turn(d, a->rank, -a->peer);

    for (int64_t i = 0; i < ls_algo_pieces(d, a->count); i++) {
        ls_algo_range c = ls_algo_cut(d, a->count, i);
        ls_algo_place from = ls_algo_at(LS_SCHED_OUT, c.first);
        int32_t got = -1;
        if (place > 0)
            got = ls_algo_recv(d, ls_algo_turn(d, a->rank, -1), from, c.len, -1);
        else
            from = ls_algo_in(d, c.first);
        if (place < a->ranks - 1)
            ls_algo_send(d, ls_algo_turn(d, a->rank, 1), from, c.len, got);
    }
    if (place == 0)
        ls_algo_copy(d, ls_algo_at(LS_SCHED_OUT, 0), ls_algo_in(d, 0), a->count, -1);
}

/* Step by step, and in each step piece by piece, so that the window holds neighbouring pieces of
 * one step. */
static void draft_ring(ls_algo_draft *d)
{
    const ls_sched_args *a = d->args;
    int64_t longest = ls_algo_range_of(d, 0).len, pieces = ls_algo_pieces(d, longest);

    if (!ls_algo_marks(d, pieces * (a->ranks + 2)))
        return;
    if (a->kind == LS_COLL_REDUCE_SCATTER)
        d->sched->tmp_count = a->ranks > 2 ? 2 * longest : 0;
    if (a->kind != LS_COLL_ALL_GATHER)
        for (int t = 0; t < a->ranks - 1; t++)
            for (int64_t i = 0; i < pieces; i++) {
                scatter_send(d, t, i);
                scatter_add(d, t, i);
            }
    if (a->kind == LS_COLL_ALL_GATHER)
        ls_algo_copy(d, ls_algo_own_out(d), ls_algo_own_in(d), ls_algo_range_of(d, a->rank).len,
                     -1);
    if (a->kind != LS_COLL_REDUCE_SCATTER)
        for (int t = 0; t < a->ranks - 1; t++)
            for (int64_t i = 0; i < pieces; i++)
                gather_step(d, t, i);
}

const ls_algo ls_algo_ring = {
    .name = "ring",
    .what = "neighbours only, in chunks; least bytes, 2 (n - 1) steps",
    .cuts = true,
    .around = true,
    .draft = {[LS_COLL_ALL_REDUCE] = draft_ring,
              [LS_COLL_REDUCE_SCATTER] = draft_ring,
              [LS_COLL_ALL_GATHER] = draft_ring,
              [LS_COLL_BROADCAST] = draft_chain},
    .time_ns = ls_cost_time_ring,
    .sent = ls_cost_sent_ring,
};
