/* tree.c -- binomial tree: broadcast, gather, and all-reduce as a sum up to rank 0 and a broadcast.
 *
 *     n = 8; v counts ranks from the root         broadcast, in steps
 *
 *                0                                1:  0 -> 4
 *              / | \                              2:  0 -> 2   4 -> 6
 *             4  2  1                             3:  0 -> 1   2 -> 3   4 -> 5   6 -> 7
 *            / \  \
 *           6   5  3       the parent of v is v without its lowest bit; its children are v + 2^k
 *          /               for every 2^k below that bit
 *         7
 *
 * Worked example, n = 5, root 2: v of rank 3 is 1, its parent is v 0 = rank 2; rank 1 has v = 4,
 * which is sent first, as the largest subtree; ranks 4 and 0 (v = 2, 3) come through rank 4.
 *
 * Long buffers go in chunks, so that the levels of the tree work at the same time. In a gather a
 * rank collects its whole subtree v .. v + 2^k - 1 in TMP and passes it on at once; where ranks
 * wrap from n-1 to 0 that is two messages, since the root wants them at two places. */
#include "comm/algo/algo_impl.h"
#include "comm/cost_impl.h"

/* 2^k of the edge from v to its parent; beyond all ranks for the root. */
static int low_bit(const ls_algo_draft *d, int v)
{
    return v ? v & -v : 2 * ls_algo_power(d->args->ranks);
}

static int rank_of(const ls_algo_draft *d, int root, int v)
{
    return ls_algo_turn(d, v, root);
}

/* A piece from the parent to the children, behind `ready`. Returns the step that brought it. */
static int32_t pass_down(ls_algo_draft *d, int root, ls_algo_range c, ls_algo_place from,
                         int32_t ready)
{
    int n = d->args->ranks, v = ls_algo_turn(d, d->args->rank, -root), low = low_bit(d, v);

    if (v)
        ready = ls_algo_recv(d, rank_of(d, root, v - low), from, c.len, ready);
    for (int bit = low / 2; bit; bit /= 2)
        if (v + bit < n)
            ls_algo_send(d, rank_of(d, root, v + bit), from, c.len, ready);
    return ready;
}

static void draft_broadcast(ls_algo_draft *d)
{
    int64_t count = d->args->count;
    int root = d->args->peer;
    bool is_root = d->args->rank == root;

    for (int64_t i = 0; i < ls_algo_pieces(d, count); i++) {
        ls_algo_range c = ls_algo_cut(d, count, i);
        pass_down(d, root, c, is_root ? ls_algo_in(d, c.first) : ls_algo_at(LS_SCHED_OUT, c.first),
                  -1);
    }
    if (is_root)
        ls_algo_copy(d, ls_algo_at(LS_SCHED_OUT, 0), ls_algo_in(d, 0), count, -1);
}

/* Children in the order in which they are ready, then the parent. Returns the last step. */
static int32_t add_up(ls_algo_draft *d, ls_algo_range c)
{
    int n = d->args->ranks, v = d->args->rank, low = low_bit(d, v);
    ls_algo_place held = ls_algo_in(d, c.first), out = ls_algo_at(LS_SCHED_OUT, c.first);
    int32_t ready = -1;

    for (int bit = 1; bit < low; bit *= 2)
        if (v + bit < n) {
            ready = ls_algo_recv_add(d, v + bit, out, held, c.len, ready);
            held = out;
        }
    if (v == 0)
        ls_algo_last(d, ready);
    else
        ready = ls_algo_send(d, v - low, held, c.len, ready);
    return ready;
}

static void draft_reduce(ls_algo_draft *d)
{
    int64_t count = d->args->count;

    for (int64_t i = 0; i < ls_algo_pieces(d, count); i++) {
        ls_algo_range c = ls_algo_cut(d, count, i);
        pass_down(d, 0, c, ls_algo_at(LS_SCHED_OUT, c.first), add_up(d, c));
    }
}

/* The values of v = first .. first+size-1, from a child or to the parent; one message behind the
 * other, so that whoever waits for the last one waits for all. Returns the last one. */
static int32_t pass_subtree(ls_algo_draft *d, int peer, bool sends, int first, int size,
                            int32_t after)
{
    const ls_sched_args *a = d->args;
    int n = a->ranks, root = a->peer, wrap = n - root, v = ls_algo_turn(d, a->rank, -root);
    int cut[3] = {first, first + size, first + size};

    if (first < wrap && wrap < first + size)
        cut[1] = wrap;
    for (int i = 0; i < 2; i++) {
        int64_t len = (cut[i + 1] - cut[i]) * a->count;
        ls_algo_place place = ls_algo_at(LS_SCHED_TMP, (cut[i] - v) * a->count);
        if (v == 0)
            place = ls_algo_at(LS_SCHED_OUT, rank_of(d, root, cut[i]) * a->count);
        if (len == 0)
            continue;
        if (sends && size == 1)
            place = ls_algo_at(LS_SCHED_IN, 0); /* a leaf: nothing was collected */
        after = sends ? ls_algo_send(d, peer, place, len, after)
                      : ls_algo_recv(d, peer, place, len, after);
    }
    return after;
}

/* Collect the subtree from all children, then send it to the parent in one piece, or two where
 * ranks wrap. */
static void draft_gather(ls_algo_draft *d)
{
    const ls_sched_args *a = d->args;
    int n = a->ranks, root = a->peer, v = ls_algo_turn(d, a->rank, -root), low = low_bit(d, v);
    int size = v + low < n ? low : n - v;
    ls_algo_place own = ls_algo_at(LS_SCHED_TMP, 0), in = ls_algo_at(LS_SCHED_IN, 0);
    int32_t ready = -1;

    if (v == 0) {
        own = ls_algo_at(LS_SCHED_OUT, root * a->count);
        in.at = a->in_place ? own.at : 0;
    } else if (size > 1) {
        d->sched->tmp_count = size * a->count;
    }
    if (v == 0 || size > 1)
        ready = ls_algo_copy(d, own, in, a->count, -1);
    for (int bit = 1; bit < low; bit *= 2)
        if (v + bit < n)
            ready = pass_subtree(d, rank_of(d, root, v + bit), false, v + bit,
                                 bit < n - v - bit ? bit : n - v - bit, ready);
    if (v)
        pass_subtree(d, rank_of(d, root, v - low), true, v, size, ready);
}

const ls_algo ls_algo_tree = {
    .name = "tree",
    .what = "binomial tree, in chunks; log2(n) steps each way",
    .cuts = true,
    .draft = {[LS_COLL_ALL_REDUCE] = draft_reduce,
              [LS_COLL_BROADCAST] = draft_broadcast,
              [LS_COLL_GATHER] = draft_gather},
    .time_ns = ls_cost_time_tree,
    .sent = ls_cost_sent_tree,
};
