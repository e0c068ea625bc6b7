/* pairwise.c -- every rank exchanges with every other one, in rounds; sums are made at the owner of
 * a range, once, in rank order.
 *
 *     n = 4, round d: rank r sends to r + d, receives from r - d
 *
 *     d=1   0 -> 1 -> 2 -> 3 -> 0
 *     d=2   0 <-> 2   1 <-> 3
 *     d=3   0 -> 3 -> 2 -> 1 -> 0
 *
 * all-to-all: the message to r + d is the piece for it. reduce-scatter: it is the range that r + d
 * owns; the n - 1 pieces of the own range arrive in TMP, and are added when all have arrived:
 *
 *     rank 2 of 4, own range:     TMP [ from 0 | from 1 | from 3 ]    sum = p0 + p1 + own + p3
 *
 * Worked example in bf16: 1 + 2^-8 + 2^-8 from ranks 0, 1, 2. Hop by hop 1 + 2^-8 is rounded to 1,
 * twice; here the sum 1 + 2^-7 is made in fp32 and is exact in bf16. A rank sends as many bytes as
 * in a ring, so this is the algorithm for 16-bit types, and wherever a sum must be made in rank
 * order.
 *
 * all-gather: each rank sends its range to all others. all-reduce is the one after the other, chunk
 * by chunk. TMP holds two chunks of each peer: one is filled while the other is added. */
#include "comm/algo/algo_impl.h"
#include "comm/cost_impl.h"

/* The other rank of round `by`, counted from this one. */
static int other(const ls_algo_draft *d, int by)
{
    return ls_algo_turn(d, d->args->rank, by);
}

/* --- reduce-scatter, all-gather, all-reduce -----------------------------------------------------
 * d->mark[rank]: the send to this rank, or the receive from it, of the chunk at hand;
 * d->mark[n], d->mark[n + 1]: the sums of even and of odd chunks. */

/* Where a chunk of a peer's contribution arrives. */
static ls_algo_place slot(const ls_algo_draft *d, int peer, int64_t chunk)
{
    int64_t longest = ls_algo_piece(d, ls_algo_range_of(d, d->args->rank).len);
    int place = peer - (peer > d->args->rank), others = d->args->ranks - 1;

    return ls_algo_at(LS_SCHED_TMP, (chunk % 2 * others + place) * longest);
}

static void send_contributions(ls_algo_draft *d, int64_t i, ls_algo_range own, int32_t *got)
{
    for (int by = 1; by < d->args->ranks; by++) {
        int to = other(d, by), from = other(d, -by);
        ls_algo_range r = ls_algo_range_of(d, to), c = ls_algo_cut(d, r.len, i);
        d->mark[to] = -1;
        if (i < ls_algo_pieces(d, r.len))
            d->mark[to] = ls_algo_send(d, to, ls_algo_in(d, r.first + c.first), c.len, -1);
        if (own.len > 0)
            got[from] =
                ls_algo_recv(d, from, slot(d, from, i), own.len, d->mark[d->args->ranks + i % 2]);
    }
}

/* Combine the chunk of the own range from all peers, which lie in TMP, and from this rank, in rank
 * order. */
static int32_t add_up(ls_algo_draft *d, int64_t i, ls_algo_range own, const int32_t *got)
{
    int n = d->args->ranks, me = d->args->rank;
    int64_t first = ls_algo_range_of(d, me).first;

    if (own.len <= 0)
        return -1;
    int32_t sum = ls_algo_combine(d, ls_algo_at(LS_SCHED_OUT, ls_algo_own_out(d).at + own.first),
                                  own.len, -1);
    for (int r = 0; r < n; r++)
        if (r == me)
            ls_algo_part(d, ls_algo_in(d, first + own.first), -1);
        else
            ls_algo_part(d, slot(d, r, i), got[r]);
    ls_algo_last(d, sum);
    d->mark[n + i % 2] = sum;
    return sum;
}

/* Send the own chunk to all ranks; receive theirs into OUT, once what lay there was sent. */
static void spread(ls_algo_draft *d, int64_t i, ls_algo_place from, int64_t len, int32_t ready)
{
    for (int by = 1; by < d->args->ranks; by++) {
        int peer = other(d, -by);
        ls_algo_range r = ls_algo_range_of(d, peer), c = ls_algo_cut(d, r.len, i);
        if (len > 0)
            ls_algo_send(d, other(d, by), from, len, ready);
        if (i < ls_algo_pieces(d, r.len))
            ls_algo_recv(d, peer, ls_algo_at(LS_SCHED_OUT, r.first + c.first), c.len,
                         d->mark[peer]);
    }
}

/* Reduce-scatter, all-gather, or both chunk by chunk. */
static void draft_ranges(ls_algo_draft *d)
{
    const ls_sched_args *a = d->args;
    ls_algo_range mine = ls_algo_range_of(d, a->rank);
    int64_t pieces = ls_algo_pieces(d, ls_algo_range_of(d, 0).len);
    int64_t own_pieces = ls_algo_pieces(d, mine.len);

    if (!ls_algo_marks(d, 2 * (int64_t)a->ranks + 2))
        return;
    if (a->kind == LS_COLL_ALL_GATHER)
        ls_algo_copy(d, ls_algo_own_out(d), ls_algo_own_in(d), mine.len, -1);
    else
        d->sched->tmp_count =
            (own_pieces > 1 ? 2 : 1) * (a->ranks - 1) * ls_algo_piece(d, mine.len);
    for (int64_t i = 0; i < pieces; i++) {
        ls_algo_range own = i < own_pieces ? ls_algo_cut(d, mine.len, i) : (ls_algo_range){0, 0};
        ls_algo_place from = ls_algo_own_in(d);
        int32_t ready = -1;
        if (a->kind != LS_COLL_ALL_GATHER) {
            int32_t *got = d->mark + a->ranks + 2;
            send_contributions(d, i, own, got);
            ready = add_up(d, i, own, got);
            from = ls_algo_own_out(d);
        }
        if (a->kind != LS_COLL_REDUCE_SCATTER)
            spread(d, i, ls_algo_at(from.buffer, from.at + own.first), own.len, ready);
    }
}

/* --- all-to-all ------------------------------------------------------------------------------- */

/* The piece for, or from, a rank: side by side in order of ranks. */
static ls_algo_range piece_of(const int64_t *counts, int64_t count, int rank)
{
    ls_algo_range r = {0, 0};

    if (!counts)
        return (ls_algo_range){rank * count, count};
    for (int i = 0; i < rank; i++)
        r.first += counts[i];
    r.len = counts[rank];
    return r;
}

/* In place the input is put aside first: piece by piece where each is replaced by one of equal
 * length, else as a whole. Returns where and behind which step the input of each rank is. */
static ls_sched_buffer put_aside(ls_algo_draft *d)
{
    const ls_sched_args *a = d->args;
    ls_algo_range end = piece_of(a->in_counts, a->count, a->ranks - 1);
    int64_t all = end.first + end.len;

    if (!a->in_place)
        return LS_SCHED_IN;
    d->sched->tmp_count = all;
    if (a->in_counts || a->out_counts) {
        int32_t copy =
            ls_algo_copy(d, ls_algo_at(LS_SCHED_TMP, 0), ls_algo_at(LS_SCHED_IN, 0), all, -1);
        for (int r = 0; r < a->ranks; r++)
            d->mark[r] = copy;
        return LS_SCHED_TMP;
    }
    for (int by = 1; by < a->ranks; by++) {
        int r = other(d, by);
        d->mark[r] = ls_algo_copy(d, ls_algo_at(LS_SCHED_TMP, r * a->count),
                                  ls_algo_at(LS_SCHED_IN, r * a->count), a->count, -1);
    }
    return LS_SCHED_TMP;
}

static void exchange(ls_algo_draft *d, ls_sched_buffer in, int by)
{
    const ls_sched_args *a = d->args;
    int to = other(d, by), from = other(d, -by);
    ls_algo_range out = piece_of(a->in_counts, a->count, to);
    ls_algo_range back = piece_of(a->out_counts, a->count, from);
    int64_t sends = ls_algo_pieces(d, out.len), receives = ls_algo_pieces(d, back.len);

    for (int64_t i = 0; i < sends || i < receives; i++) {
        ls_algo_range c = ls_algo_cut(d, out.len, i), b = ls_algo_cut(d, back.len, i);
        if (i < sends)
            ls_algo_send(d, to, ls_algo_at(in, out.first + c.first), c.len, d->mark[to]);
        if (i < receives)
            ls_algo_recv(d, from, ls_algo_at(LS_SCHED_OUT, back.first + b.first), b.len,
                         d->mark[from]);
    }
}

/* All-to-all: in round d the piece for r + d goes out and that of r - d comes in. */
static void draft_exchange(ls_algo_draft *d)
{
    const ls_sched_args *a = d->args;
    ls_algo_range own = piece_of(a->in_counts, a->count, a->rank);
    ls_algo_range to = piece_of(a->out_counts, a->count, a->rank);

    if (own.len != to.len) {
        d->status = ls_fail(LS_EUSAGE, "rank %d sends itself %lld elements but expects %lld",
                            a->rank, (long long)own.len, (long long)to.len);
        return;
    }
    if (!ls_algo_marks(d, a->ranks))
        return;
    ls_sched_buffer in = put_aside(d);
    if (in == LS_SCHED_TMP && !a->in_counts && !a->out_counts)
        own.len = 0; /* stays where it is */
    ls_algo_copy(d, ls_algo_at(LS_SCHED_OUT, to.first), ls_algo_at(in, own.first), own.len,
                 d->mark[a->rank]);
    for (int by = 1; by < a->ranks; by++)
        exchange(d, in, by);
}

const ls_algo ls_algo_pairwise = {
    .name = "pairwise",
    .what = "every pair of ranks in rounds; sums once, in rank order",
    .once = true,
    .cuts = true,
    .uneven = true,
    .wanders = true,
    .draft = {[LS_COLL_ALL_REDUCE] = draft_ranges,
              [LS_COLL_REDUCE_SCATTER] = draft_ranges,
              [LS_COLL_ALL_GATHER] = draft_ranges,
              [LS_COLL_ALL_TO_ALL] = draft_exchange},
    .time_ns = ls_cost_time_pairwise,
    .sent = ls_cost_sent_pairwise,
};
