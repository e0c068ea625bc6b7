/* cost.c -- the formulas of cost.h's model, one pair for each algorithm, and the choice among them.
 *
 * Letters: n ranks, B bytes of the buffer, m bytes of a message, k messages that a range is cut
 * into, and P, L, C as in cost.h. A pipeline of s stages takes k pieces. A piece needs X until it
 * can be passed on, and Y of a port. The pipeline takes (s - 1) max(X, k Y) + X + (k - 1) Y when
 * the pieces return to the same port at every stage (a ring), and s X + (k - 1) Y when every stage
 * is another rank (a chain).
 *
 *     chain, s = 3, k = 4:   stage 0   | X | Y | Y | Y |
 *                            stage 1       | X | Y | Y | Y |
 *                            stage 2           | X | Y | Y | Y |     3 X + 3 Y */
#include "comm/cost.h"

#include "comm/algo/algo_impl.h"
#include "comm/cost_impl.h"

static double port(const ls_cost_query *q, int64_t elements)
{
    return q->link.message_ns + (double)(elements * q->size) * q->link.ns_per_byte;
}

static double arrive(const ls_cost_query *q, int64_t elements)
{
    return q->link.alpha_ns + port(q, elements);
}

static double add(const ls_cost_query *q, int64_t elements)
{
    return (double)(elements * q->size) * q->combine_ns_per_byte;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* ceil(log2 n) */
static int levels_of(int n)
{
    int levels = 0;

    while (1 << levels < n)
        levels++;
    return levels;
}

/* How many pieces a length is cut into, and the longest of them. */
static int64_t pieces_of(const ls_cost_query *q, int64_t len)
{
    return q->chunk > 0 && len > 0 ? (len + q->chunk - 1) / q->chunk : 1;
}

static int64_t piece_of(const ls_cost_query *q, int64_t len)
{
    return q->chunk > 0 ? ls_min_i64(q->chunk, len) : len;
}

/* k P(m) for a length in pieces of any size. */
static double port_all(const ls_cost_query *q, int64_t len)
{
    return q->link.message_ns * (double)pieces_of(q, len) +
           (double)(len * q->size) * q->link.ns_per_byte;
}

/* --- ring ---------------------------------------------------------------------------------------
 * reduce-scatter: a piece is passed on after X = L + C, and takes Y = max(P, C) of a rank's port or
 * adder; all-gather: X = L, Y = P. Both have n - 1 stages, on the same ports. Chain: n - 1 stages.
 */

typedef struct stage {
    double pass, busy; /* X, and k Y */
    double tail;       /* X + (k - 1) Y */
} stage;

static stage stage_of(const ls_cost_query *q, int64_t len, bool adds)
{
    int64_t m = piece_of(q, len);
    double c = adds ? add(q, m) : 0, x = arrive(q, m) + c;
    double busy = larger(port_all(q, len), adds ? add(q, len) : 0);

    return (stage){x, busy, x + busy - larger(port(q, m), c)};
}

double ls_cost_time_ring(const ls_cost_query *q)
{
    int64_t len = ls_coll_range_len(q->count, q->ranks, 0);
    stage s = stage_of(q, len, true), g = stage_of(q, len, false);
    int n = q->ranks;

    if (q->kind == LS_COLL_BROADCAST) {
        g = stage_of(q, q->count, false);
        return (n - 2) * g.pass + g.tail;
    }
    if (q->kind == LS_COLL_REDUCE_SCATTER)
        return (n - 2) * larger(s.pass, s.busy) + s.tail;
    if (q->kind == LS_COLL_ALL_GATHER)
        return (n - 2) * larger(g.pass, g.busy) + g.tail;
    return (n - 1) * larger(s.pass, s.busy) + (n - 2) * larger(g.pass, g.busy) + g.tail;
}

/* All ranges but the own one, then all but the next rank's. */
int64_t ls_cost_sent_ring(const ls_cost_query *q)
{
    int n = q->ranks, place = (q->rank - q->peer + n) % n;
    int64_t scatter = q->count - ls_coll_range_len(q->count, n, q->rank);
    int64_t gather = q->count - ls_coll_range_len(q->count, n, (q->rank + 1) % n);

    if (q->kind == LS_COLL_BROADCAST)
        return place < n - 1 ? q->count * q->size : 0;
    return ((q->kind != LS_COLL_ALL_GATHER) * scatter +
            (q->kind != LS_COLL_REDUCE_SCATTER) * gather) *
           q->size;
}

/* --- halving ------------------------------------------------------------------------------------
 * Level with d ranges on either side: L(d B/p) + C(d B/p); doubling the same without C. 2^k ranks:
 * 2 alpha log2(n) + 2 (n - 1) / n B in all. Surplus ranks: L(B) + C(B) before, L of the result
 * behind. Everything is seen from rank 0, which has most to do. */

/* Elements of ranges lo..hi-1, and of their surplus partners. */
static int64_t runs_len(int64_t count, int blocks, int p, int lo, int hi)
{
    int64_t sum = 0, first, len, last, last_len;

    for (int run = 0; run < 2; run++) {
        int a = lo + run * p, b = hi + run * p < blocks ? hi + run * p : blocks;
        if (a >= b)
            continue;
        ls_coll_range(count, blocks, a, &first, &len);
        ls_coll_range(count, blocks, b - 1, &last, &last_len);
        sum += last + last_len - first;
    }
    return sum;
}

/* One message each way at every level; a second one where the surplus ranks own ranges of their
 * own. Then the fold of the surplus, and its results. */
double ls_cost_time_halving(const ls_cost_query *q)
{
    int p = ls_algo_power(q->ranks), blocks = q->kind == LS_COLL_ALL_REDUCE ? p : q->ranks;
    bool surplus = q->ranks > p, scatters = q->kind != LS_COLL_ALL_GATHER;
    double t = 0;

    for (int mask = p / 2; mask; mask /= 2) {
        int64_t near = runs_len(q->count, blocks, p, 0, mask);
        double second = blocks > p ? q->link.message_ns : 0; /* two runs, two messages */
        if (scatters)
            t += arrive(q, near) + second + add(q, near);
        if (q->kind != LS_COLL_REDUCE_SCATTER)
            t += arrive(q, near) + second;
    }
    if (surplus && scatters)
        t += arrive(q, q->count) + add(q, q->count);
    if (surplus && q->kind == LS_COLL_ALL_REDUCE)
        t += arrive(q, q->count);
    if (surplus && q->kind == LS_COLL_REDUCE_SCATTER)
        t += arrive(q, ls_coll_range_len(q->count, q->ranks, p));
    if (surplus && q->kind == LS_COLL_ALL_GATHER)
        t += q->link.alpha_ns + arrive(q, q->count) + 2 * q->link.message_ns;
    return t;
}

/* Reduce-scatter sends all but the own range; doubling what it has at every level. */
int64_t ls_cost_sent_halving(const ls_cost_query *q)
{
    int n = q->ranks, p = ls_algo_power(n), r = q->rank;
    int blocks = q->kind == LS_COLL_ALL_REDUCE ? p : n;
    bool partner = r + p < n;
    int64_t sum = 0;

    if (r >= p)
        return q->size *
               (q->kind == LS_COLL_ALL_GATHER ? ls_coll_range_len(q->count, n, r) : q->count);
    if (q->kind != LS_COLL_ALL_GATHER)
        sum += q->count - ls_coll_range_len(q->count, blocks, r);
    if (q->kind != LS_COLL_REDUCE_SCATTER)
        for (int mask = 1; mask < p; mask *= 2)
            sum += runs_len(q->count, blocks, p, r & ~(mask - 1), (r & ~(mask - 1)) + mask);
    if (partner && q->kind == LS_COLL_ALL_REDUCE)
        sum += q->count;
    if (partner && q->kind == LS_COLL_ALL_GATHER)
        sum += q->count - ls_coll_range_len(q->count, n, r + p);
    return sum * q->size;
}

/* --- doubling -----------------------------------------------------------------------------------
 * log2(p) (L(B) + C(B)); surplus ranks add L(B) + C(B) before and L(B) behind. */

double ls_cost_time_doubling(const ls_cost_query *q)
{
    int p = ls_algo_power(q->ranks);
    double swap = arrive(q, q->count) + add(q, q->count);

    return swap * levels_of(p) + (q->ranks > p ? swap + arrive(q, q->count) : 0);
}

int64_t ls_cost_sent_doubling(const ls_cost_query *q)
{
    int p = ls_algo_power(q->ranks);
    int64_t messages = q->rank >= p ? 1 : levels_of(p) + (q->rank + p < q->ranks);

    return messages * q->count * q->size;
}

/* --- binomial tree ------------------------------------------------------------------------------
 * The first piece goes up and down as the tree says: for 2^D ranks D (L + C) and D L. Then the
 * root's ports, which carry D messages for each piece, set the pace of the others: D P. An
 * all-reduce needs a quarter more of them, because messages up and messages down wait for each
 * other's ports (found by simulation; between 1.1 and 1.5 for up to 64 ranks). */

/* Time until a rank has the values of a subtree of this many ranks, added up or side by side
 * (grows). It takes one child after the other. */
static double climb(const ls_cost_query *q, int ranks, int64_t m, bool grows)
{
    double done = 0;

    for (int bit = 1; bit < ranks; bit *= 2) {
        int child = bit < ranks - bit ? bit : ranks - bit;
        int64_t len = grows ? child * m : m;
        done = larger(done, climb(q, child, m, grows)) + arrive(q, len);
        done += grows ? 0 : add(q, len);
    }
    return done;
}

/* Time until the last rank of a subtree has what its root has: the largest part is served first. */
static double descend(const ls_cost_query *q, int ranks, int64_t m)
{
    double t = 0, busy = 0;

    for (int bit = ls_algo_power(ranks); bit; bit /= 2) {
        if (bit >= ranks)
            continue;
        busy += port(q, m);
        t = larger(t,
                   busy + q->link.alpha_ns + descend(q, bit < ranks - bit ? bit : ranks - bit, m));
    }
    return t;
}

double ls_cost_time_tree(const ls_cost_query *q)
{
    int64_t m = piece_of(q, q->count);
    double more = levels_of(q->ranks) * (port_all(q, q->count) - port(q, m));

    if (q->kind == LS_COLL_GATHER)
        return climb(q, q->ranks, q->count, true);
    if (q->kind == LS_COLL_BROADCAST)
        return descend(q, q->ranks, m) + more;
    return climb(q, q->ranks, m, false) + descend(q, q->ranks, m) +
           (q->ranks > 3 ? 1.25 : 1) * more;
}

int64_t ls_cost_sent_tree(const ls_cost_query *q)
{
    int n = q->ranks, v = (q->rank - q->peer + n) % n, low, children = 0;

    if (q->kind == LS_COLL_ALL_REDUCE)
        v = q->rank;
    low = v ? v & -v : 2 * ls_algo_power(n);
    for (int bit = 1; bit < low && v + bit < n; bit *= 2)
        children++;
    if (q->kind == LS_COLL_GATHER)
        return v ? (v + low < n ? low : n - v) * q->count * q->size : 0;
    return (children + (q->kind == LS_COLL_ALL_REDUCE && v)) * q->count * q->size;
}

/* --- two trees ----------------------------------------------------------------------------------
 * A level takes alpha + 2 P where two children share a port, and C on the way up. A piece of each
 * tree is on its way at once. Of two pieces, one for each tree, the busiest rank sends (and
 * receives) W messages, 4 from four ranks on: W / 2 P is the pace of the others, 2 B in all, and a
 * sixth more where ports wait for each other (found by simulation). */

static int64_t tree2_chunk(const ls_cost_query *q)
{
    int64_t half = ls_round_up((q->count + 1) / 2, 16);

    return q->chunk > 0 ? ls_min_i64(q->chunk, half) : half;
}

static int tree2_width(int ranks)
{
    int most = 0;

    for (int r = 0; r < ranks; r++) {
        int w = ls_algo_tree2_sends(ranks, r, 0) + ls_algo_tree2_sends(ranks, r, 1);
        most = w > most ? w : most;
    }
    return most;
}

double ls_cost_time_tree2(const ls_cost_query *q)
{
    int64_t m = tree2_chunk(q), k = m ? (q->count + m - 1) / m : 1;
    int depth = levels_of(q->ranks), width = tree2_width(q->ranks);
    double level = q->link.alpha_ns + (q->ranks > 3 ? 2 : 1) * port(q, m);
    double pace = larger(width / 2.0 * port(q, m), add(q, m)) * (k > 2 ? 7.0 / 6 : 1);

    return depth * (2 * level + add(q, m)) + (k > 2 ? (double)(k - 2) * pace : 0);
}

int64_t ls_cost_sent_tree2(const ls_cost_query *q)
{
    int64_t m = tree2_chunk(q), sum = 0;
    int sends[2] = {ls_algo_tree2_sends(q->ranks, q->rank, 0),
                    ls_algo_tree2_sends(q->ranks, q->rank, 1)};

    for (int64_t i = 0; m && i * m < q->count; i++)
        sum += sends[i % 2] * ls_min_i64(m, q->count - i * m);
    return sum * q->size;
}

/* --- pairwise, direct ---------------------------------------------------------------------------
 * A port is busy with n - 1 messages for each piece and never waits: alpha + (n - 1) k P, then the
 * last piece is added from n - 1 sources. All-reduce does both halves: 2 alpha + 2 (n - 1) k P + (n
 * - 1) C. When adding takes longer than the wire, it sets the pace. */

double ls_cost_time_pairwise(const ls_cost_query *q)
{
    bool moves = q->kind == LS_COLL_ALL_TO_ALL;
    int64_t len = moves ? q->count : ls_coll_range_len(q->count, q->ranks, 0);
    int64_t m = piece_of(q, len);
    double others = q->ranks - 1, wire = others * port_all(q, len);
    double sums = others * add(q, len), piece_wire = others * port(q, m);
    double piece_sum = others * add(q, m);

    if (moves || q->kind == LS_COLL_ALL_GATHER)
        return q->link.alpha_ns + wire;
    if (q->kind == LS_COLL_REDUCE_SCATTER)
        return q->link.alpha_ns + larger(wire + piece_sum, piece_wire + sums);
    return 2 * q->link.alpha_ns + larger(2 * wire + piece_sum, 2 * piece_wire + sums);
}

int64_t ls_cost_sent_pairwise(const ls_cost_query *q)
{
    int64_t own = ls_coll_range_len(q->count, q->ranks, q->rank), sum = 0;

    if (q->kind == LS_COLL_ALL_TO_ALL) {
        for (int r = 0; r < q->ranks; r++)
            if (r != q->rank)
                sum += q->in_counts ? q->in_counts[r] : q->count;
        return sum * q->size;
    }
    if (q->kind != LS_COLL_ALL_GATHER)
        sum += q->count - own;
    if (q->kind != LS_COLL_REDUCE_SCATTER)
        sum += (q->ranks - 1) * own;
    return sum * q->size;
}

double ls_cost_time_direct(const ls_cost_query *q)
{
    double others = ls_coll_is_message(q->kind) ? 1 : q->ranks - 1;
    double sums = q->kind == LS_COLL_ALL_REDUCE ? others * add(q, q->count) : 0;

    return q->link.alpha_ns + others * port(q, q->count) + sums;
}

int64_t ls_cost_sent_direct(const ls_cost_query *q)
{
    int64_t messages = q->ranks - 1;

    if (q->kind == LS_COLL_BROADCAST)
        messages = q->rank == q->peer ? messages : 0;
    else if (q->kind == LS_COLL_GATHER)
        messages = q->rank != q->peer;
    else if (q->kind != LS_COLL_ALL_REDUCE)
        messages = q->kind == LS_COLL_SEND;
    return messages * q->count * q->size;
}

/* --- dissemination: ceil(log2 n) (alpha + message) -------------------------------------------- */

double ls_cost_time_dissemination(const ls_cost_query *q)
{
    return levels_of(q->ranks) * arrive(q, 0);
}

int64_t ls_cost_sent_dissemination(const ls_cost_query *q LS_UNUSED)
{
    return 0;
}

/* --- choice ----------------------------------------------------------------------------------- */

double ls_cost_time(const ls_algo *algo, const ls_cost_query *query)
{
    bool empty = query->count == 0 && query->kind != LS_COLL_BARRIER;

    return query->ranks == 1 || empty ? 0 : algo->time_ns(query);
}

int64_t ls_cost_sent(const ls_algo *algo, const ls_cost_query *query)
{
    return query->ranks == 1 && !ls_coll_is_message(query->kind) ? 0 : algo->sent(query);
}

/* A stream to a new peer begins slowly, and peers that take turns wait for each other: bytes cost a
 * tenth more. Measured between 4 hosts at 1 Gbit/s, 16 MiB: a ring takes 212 ms, halving 234 and
 * pairwise 246, where the formulas see no difference. */
static double of_wandering(const ls_cost_query *q, const ls_cost_candidate *c)
{
    return c->algo->wanders && q->ranks > 2 ? 0.1 * (double)c->sent * q->link.ns_per_byte : 0;
}

static const int64_t chunk_bytes[] = {0, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216};

/* Try each length of a chunk, and keep the one with the least time; an algorithm that does not cut
 * has one time only. */
static void best_chunk(const ls_cost_query *query, ls_cost_candidate *c)
{
    ls_cost_query own = *query, *q = &own;

    if (q->has_around && c->algo->around)
        q->link = q->around;
    for (size_t i = 0; i < LS_COUNT(chunk_bytes); i++) {
        q->chunk = chunk_bytes[i] / q->size;
        double t = ls_cost_time(c->algo, q);
        if (i == 0 || t < c->time_ns) {
            c->time_ns = t;
            c->chunk = q->chunk;
        }
        if (!c->algo->cuts)
            break;
    }
    q->chunk = c->chunk;
    c->sent = ls_cost_sent(c->algo, q);
    c->time_ns += of_wandering(q, c);
}

void ls_cost_choose(const ls_cost_query *query, const ls_coll *coll, bool once,
                    ls_cost_choice *choice_out)
{
    ls_cost_choice choice = {.best = -1};
    ls_cost_query q = *query;

    q.kind = coll->kind;
    q.count = coll->count;
    q.size = ls_dtype_bytes(coll->type);
    LS_BUG_IF(ls_algos_count > LS_COST_CANDIDATES, "%d algorithms", ls_algos_count);
    choice.count = ls_algos_count;
    for (int i = 0; i < choice.count; i++) {
        ls_cost_candidate *c = &choice.rows[i];
        *c = (ls_cost_candidate){.algo = ls_algos[i]};
        c->refuses = ls_algo_refuses(ls_algos[i], coll, q.ranks, once);
        if (c->refuses)
            continue;
        best_chunk(&q, c);
        if (choice.best < 0 || c->time_ns < choice.rows[choice.best].time_ns)
            choice.best = i;
    }
    *choice_out = choice;
}
