/* halving.c -- recursive halving and doubling: least bytes as the ring, but 2 log2(n) steps.
 *
 *     halving (n = 4): at distance 2 ranks swap halves, at distance 1 quarters
 *
 *     rank     0        1        2        3
 *            abcd     abcd     abcd     abcd        what each still has to sum
 *       d=2   ab...................cd               0 <-> 2, 1 <-> 3: 0 keeps ab, 2 keeps cd
 *       d=1   a <-> b           c <-> d             0 <-> 1, 2 <-> 3
 *             a        b        c        d          rank r owns the sum of range r
 *
 *     doubling is the way back: at distance 1 ranks hand over what they have, then at distance 2.
 *
 * Worked example, n = 4, one number per range, rank r holds r+1 everywhere: after d = 2 ranks 0 and
 * 2 hold 1+3 = 4, ranks 1 and 3 hold 2+4 = 6, each on the half it keeps; after d = 1 each range is
 * 4+6 = 10 at its owner.
 *
 * Any number of ranks: with p the largest power of two <= n, the surplus rank r >= p first hands
 * its buffer to rank r - p, which adds it, and gets its result from there at the end:
 *
 *     n = 6, p = 4:    4 --> 0    5 --> 1    (fold)      0,1,2,3 as above      0 --> 4    1 --> 5
 *
 * In a reduce-scatter rank i < p then works for two owners, i and i + p. The ranges of a block of
 * neighbours lo..hi-1 are one run of elements, and so are those of their surplus partners: two
 * messages at most per step. */
#include "comm/algo/algo_impl.h"
#include "comm/cost_impl.h"

enum { RUNS = 2, LEVELS = 13 }; /* 2^12 ranks at most */

typedef struct work {
    ls_algo_draft *d;
    int p;                      /* ranks that take part */
    int blocks;                 /* ranges: p, or n where every rank owns one */
    int32_t got[RUNS];          /* the step that brought what is sent next */
    int32_t sent[LEVELS][RUNS]; /* sends of each level of halving, or the latest of doubling */
} work;

/* The ranges of ranks lo..hi-1 (run 0), or of their surplus partners (run 1), as one run. */
static ls_algo_range run_of(const work *w, int run, int lo, int hi)
{
    int64_t count = w->d->args->count, first, len, last, last_len;

    lo += run * w->p;
    hi = hi + run * w->p < w->blocks ? hi + run * w->p : w->blocks;
    if (lo >= hi)
        return (ls_algo_range){0, 0};
    ls_coll_range(count, w->blocks, lo, &first, &len);
    ls_coll_range(count, w->blocks, hi - 1, &last, &last_len);
    return (ls_algo_range){first, last + last_len - first};
}

/* Partial sums lie at their place in the whole buffer, in OUT or where that is too short in TMP. */
static ls_algo_place sums_at(const work *w, int64_t at)
{
    return ls_algo_at(w->d->args->kind == LS_COLL_ALL_REDUCE ? LS_SCHED_OUT : LS_SCHED_TMP, at);
}

/* One level: the ranges of give_lo.. go to the partner, those of keep_lo.. are added. */
static void halve(work *w, int level, int mask, bool fresh)
{
    ls_algo_draft *d = w->d;
    int me = d->args->rank, keep = me & ~(mask - 1), give = keep ^ mask;

    for (int run = 0; run < RUNS; run++) {
        ls_algo_range g = run_of(w, run, give, give + mask), k = run_of(w, run, keep, keep + mask);
        ls_algo_place from = fresh ? ls_algo_in(d, k.first) : sums_at(w, k.first);
        ls_algo_place to = sums_at(w, k.first);
        if (mask == 1 && run == 0 && d->args->kind == LS_COLL_REDUCE_SCATTER)
            to = ls_algo_own_out(d);
        w->sent[level][run] = ls_algo_send(
            d, me ^ mask, fresh ? ls_algo_in(d, g.first) : sums_at(w, g.first), g.len, w->got[run]);
        w->got[run] = ls_algo_recv_add(d, me ^ mask, to, from, k.len, w->got[run]);
        if (mask == 1)
            ls_algo_last(d, w->got[run]);
    }
}

/* The surplus rank's contribution, then all levels from far to near. */
static void halve_all(work *w)
{
    ls_algo_draft *d = w->d;
    int me = d->args->rank, level = 0;
    bool fold = me + w->p < d->args->ranks;

    if (fold)
        w->got[0] = w->got[1] =
            ls_algo_recv_add(d, me + w->p, sums_at(w, 0), ls_algo_in(d, 0), d->args->count, -1);
    for (int mask = w->p / 2; mask; mask /= 2, level++)
        halve(w, level, mask, level == 0 && !fold);
}

/* What comes in at a level lies where halving sent it away from: it waits for that send. A send
 * waits for what came last, and for the send before it, which waited for all that came earlier. */
static void double_all(work *w)
{
    ls_algo_draft *d = w->d;
    int me = d->args->rank, level = 0;
    int32_t latest[RUNS] = {-1, -1};

    for (int mask = w->p / 2; mask > 1; mask /= 2)
        level++;
    for (int mask = 1; mask < w->p; mask *= 2, level--)
        for (int run = 0; run < RUNS; run++) {
            int have = me & ~(mask - 1), want = have ^ mask;
            ls_algo_range h = run_of(w, run, have, have + mask);
            ls_algo_range x = run_of(w, run, want, want + mask);
            int32_t send =
                ls_algo_send(d, me ^ mask, ls_algo_at(LS_SCHED_OUT, h.first), h.len, w->got[run]);
            ls_algo_also(d, send, latest[run]);
            w->got[run] = ls_algo_recv(d, me ^ mask, ls_algo_at(LS_SCHED_OUT, x.first), x.len,
                                       w->sent[level][run]);
            latest[run] = send;
        }
    for (int run = 0; run < RUNS; run++)
        w->sent[0][run] = latest[run];
}

/* To the surplus partner, all that it lacks: run 0, and run 1 but for its own range. */
static void unfold_gather(work *w, bool sender)
{
    ls_algo_draft *d = w->d;
    int me = d->args->rank, peer = sender ? me + w->p : me - w->p;
    ls_algo_range own = ls_algo_range_of(d, sender ? peer : me);
    ls_algo_range low = run_of(w, 0, 0, w->p), high = run_of(w, 1, 0, w->p);
    int64_t behind = own.first + own.len;
    ls_algo_range cut[3] = {
        low, {high.first, own.first - high.first}, {behind, high.first + high.len - behind}};

    for (int i = 0; i < 3; i++) {
        ls_algo_place place = ls_algo_at(LS_SCHED_OUT, cut[i].first);
        int run = i > 0;
        if (sender)
            ls_algo_also(d, ls_algo_send(d, peer, place, cut[i].len, w->got[run]), w->sent[0][run]);
        else
            ls_algo_recv(d, peer, place, cut[i].len, -1);
    }
}

/* A surplus rank: hand its values to its partner, and get its result from there. */
static void draft_surplus(work *w)
{
    ls_algo_draft *d = w->d;
    int64_t count = d->args->count;
    int peer = d->args->rank - w->p;
    ls_algo_range own = ls_algo_range_of(d, d->args->rank);

    if (d->args->kind == LS_COLL_ALL_GATHER) {
        ls_algo_send(d, peer, ls_algo_own_in(d), own.len, -1);
        ls_algo_copy(d, ls_algo_own_out(d), ls_algo_own_in(d), own.len, -1);
        unfold_gather(w, false);
        return;
    }
    int32_t given = ls_algo_send(d, peer, ls_algo_in(d, 0), count, -1);
    if (d->args->kind == LS_COLL_ALL_REDUCE)
        ls_algo_recv(d, peer, ls_algo_at(LS_SCHED_OUT, 0), count, given);
    else
        ls_algo_recv(d, peer, ls_algo_own_out(d), own.len, given);
}

static void draft_gather(work *w)
{
    ls_algo_draft *d = w->d;
    int me = d->args->rank;
    bool partner = me + w->p < d->args->ranks;

    if (partner) {
        ls_algo_range r = ls_algo_range_of(d, me + w->p);
        w->got[1] = ls_algo_recv(d, me + w->p, ls_algo_at(LS_SCHED_OUT, r.first), r.len, -1);
    }
    w->got[0] =
        ls_algo_copy(d, ls_algo_own_out(d), ls_algo_own_in(d), ls_algo_range_of(d, me).len, -1);
    double_all(w);
    if (partner)
        unfold_gather(w, true);
}

/* Halving for what is reduced, doubling for what is gathered; an all-reduce is the one after the
 * other. */
static void draft_halving(ls_algo_draft *d)
{
    const ls_sched_args *a = d->args;
    int me = a->rank;
    work w = {.d = d, .p = ls_algo_power(a->ranks), .got = {-1, -1}};
    bool reduce = a->kind == LS_COLL_ALL_REDUCE;

    w.blocks = reduce ? w.p : a->ranks;
    for (int i = 0; i < LEVELS; i++)
        w.sent[i][0] = w.sent[i][1] = -1;
    if (me >= w.p) {
        draft_surplus(&w);
        return;
    }
    if (a->kind == LS_COLL_ALL_GATHER) {
        draft_gather(&w);
        return;
    }
    if (a->kind == LS_COLL_REDUCE_SCATTER)
        d->sched->tmp_count = a->count;
    halve_all(&w);
    if (reduce)
        double_all(&w);
    if (me + w.p >= a->ranks)
        return;
    if (reduce) {
        int32_t send = ls_algo_send(d, me + w.p, ls_algo_at(LS_SCHED_OUT, 0), a->count, w.got[0]);
        ls_algo_also(d, send, w.sent[0][0]);
    } else {
        ls_algo_range r = ls_algo_range_of(d, me + w.p);
        ls_algo_send(d, me + w.p, sums_at(&w, r.first), r.len, w.got[1]);
    }
}

const ls_algo ls_algo_halving = {
    .name = "halving",
    .what = "recursive halving, then doubling; least bytes for 2^k ranks, 2 log2(n) steps",
    .wanders = true,
    .draft = {[LS_COLL_ALL_REDUCE] = draft_halving,
              [LS_COLL_REDUCE_SCATTER] = draft_halving,
              [LS_COLL_ALL_GATHER] = draft_halving},
    .time_ns = ls_cost_time_halving,
    .sent = ls_cost_sent_halving,
};
