/* pp_schedule.c -- the tables: first what each rank computes, in order, then the messages between.
 *
 * The order of a rank's work is a rule of its kind, below. Micro-batches always go forward and
 * backward in ascending order, even in GPipe (whose paper goes back in descending order): sums of
 * gradients follow the tree over leaf numbers, and ascending leaves need the fewest buffers.
 *
 * Messages: all ranks are run by a clock on which a forward takes 1 and each half of a backward 1.
 * A message gets its place in the sender's order and in the receiver's at the moment when its
 * content is ready. So all operations of all ranks lie in one order, of which each rank has its
 * own: the first operation that is not yet done can always be done, and no ranks wait in a circle,
 * even where a send waits for its receive. Both ends of a channel see its messages in one order. */
#include "layout/pp_schedule.h"

#include "base/mem.h"

const char *const ls_pp_schedule_names[LS_PP_SCHEDULE_KINDS] = {"gpipe", "1f1b", "interleaved",
                                                                "zero-bubble"};

/* --- what a rank computes ---------------------------------------------------------------------
 */

typedef struct order {
    ls_pp_schedule_op *ops; /* [ranks][each] */
    int each;               /* of a rank: forward and backward of all, or three halves */
    int *n;                 /* [ranks] */
} order;

static void put(order *o, int rank, ls_pp_schedule_what what, int micro, int chunk)
{
    o->ops[(int64_t)rank * o->each + o->n[rank]++] =
        (ls_pp_schedule_op){.what = what, .micro = micro, .chunk = chunk, .peer = -1};
}

/* The k-th of a rank's forwards (or backwards) of chunks: groups of micro-batches, and in a group
 * chunk by chunk. Groups hold `ranks` micro-batches, so that the first one is back for the next
 * chunk when the last one has gone; where that does not divide, nearly equal groups of more. */
static void place_of(const ls_pp_schedule *p, int k, bool back, int *micro_out, int *chunk_out)
{
    int groups = p->micros > p->ranks ? p->micros / p->ranks : 1, first = 0, size = 0;

    for (int g = 0; g < groups; g++) {
        size = p->micros / groups + (g < p->micros % groups);
        if (k < size * p->chunks)
            break;
        k -= size * p->chunks;
        first += size;
    }
    *micro_out = first + k % size;
    *chunk_out = back ? p->chunks - 1 - k / size : k / size;
}

/* Forwards before the first backward, not counting the one right before it. GPipe: all of them (Huang et
 * al., arXiv:1811.06965). Narayanan et al., arXiv:2104.04473, as in Megatron: 1F1B ranks - 1 - rank;
 * interleaved twice that, and all chunks but the last of a group. */
static int warm_up(ls_pp_schedule_kind kind, int ranks, int micros, int chunks, int rank)
{
    int groups = micros > ranks ? micros / ranks : 1, group = (micros + groups - 1) / groups;
    int n = kind == LS_PP_SCHEDULE_INTERLEAVED ? 2 * (ranks - 1 - rank) + (chunks - 1) * group
                                               : ranks - 1 - rank;

    return n < micros * chunks && kind != LS_PP_SCHEDULE_GPIPE ? n : micros * chunks;
}

static void put_kth(const ls_pp_schedule *p, order *o, int rank, int k, ls_pp_schedule_what what)
{
    int micro, chunk;

    place_of(p, k, what == LS_PP_SCHEDULE_BACKWARD, &micro, &chunk);
    put(o, rank, what, micro, chunk);
}

/* Warm up, one forward and one backward in turn, drain. With one chunk this is plain 1F1B
 * (Narayanan et al., PipeDream-Flush, arXiv:2006.09503); where the warm-up is everything, GPipe. */
static void order_1f1b(const ls_pp_schedule *p, order *o, int rank)
{
    int all = p->micros * p->chunks;
    int warm = warm_up(p->kind, p->ranks, p->micros, p->chunks, rank);

    for (int k = 0; k < warm; k++)
        put_kth(p, o, rank, k, LS_PP_SCHEDULE_FORWARD);
    for (int k = 0; k < all; k++) {
        if (k + warm < all)
            put_kth(p, o, rank, k + warm, LS_PP_SCHEDULE_FORWARD);
        put_kth(p, o, rank, k, LS_PP_SCHEDULE_BACKWARD);
    }
}

/* ZB-H1 of Qi et al., Zero Bubble Pipeline Parallelism, arXiv:2401.10241: 1F1B whose backwards make
 * only the gradient of the input, which is what the rank before waits for. Gradients of weights lag
 * behind by `rank` micro-batches, and are what the later ranks do while the last backwards run. */
static void order_zero_bubble(const ls_pp_schedule *p, order *o, int rank)
{
    int warm = warm_up(p->kind, p->ranks, p->micros, 1, rank), m = p->micros;
    int lag = rank < m ? rank : m;

    for (int i = 0; i < warm; i++)
        put(o, rank, LS_PP_SCHEDULE_FORWARD, i, 0);
    for (int i = 0; i < m; i++) {
        if (i + warm < m)
            put(o, rank, LS_PP_SCHEDULE_FORWARD, i + warm, 0);
        put(o, rank, LS_PP_SCHEDULE_BACKWARD_INPUT, i, 0);
        if (i >= lag)
            put(o, rank, LS_PP_SCHEDULE_BACKWARD_WEIGHT, i - lag, 0);
    }
    for (int i = m - lag; i < m; i++)
        put(o, rank, LS_PP_SCHEDULE_BACKWARD_WEIGHT, i, 0);
}

static void order_rank(const ls_pp_schedule *p, order *o, int rank)
{
    if (p->kind == LS_PP_SCHEDULE_ZERO_BUBBLE)
        order_zero_bubble(p, o, rank);
    else
        order_1f1b(p, o, rank);
}

/* --- messages ---------------------------------------------------------------------------------
 */

/* What is ready when on the clock; -1: not yet. */
typedef struct clock {
    int *there[2]; /* [stages][micros]: forward done, gradient of the input done */
    int *free;     /* [ranks] */
    int *next;     /* [ranks], of the order */
    int *kept;     /* [ranks], operations in the table so far */
    struct message {
        int ready; /* -1: none */
        bool back;
        int micro, stage; /* that made it */
    } * waits;            /* [ranks]: a rank's last result until its time has come */
} clock;

static int64_t cell(const ls_pp_schedule *p, int stage, int micro)
{
    return (int64_t)stage * p->micros + micro;
}

/* When an operation can start; -1: that is not known yet. */
static int start_of(const ls_pp_schedule *p, const clock *c, int rank, const ls_pp_schedule_op *op)
{
    int stage = op->chunk * p->ranks + rank, last = ls_pp_schedule_stages(p) - 1, needs = 0;

    if (op->what == LS_PP_SCHEDULE_FORWARD && stage > 0)
        needs = c->there[0][cell(p, stage - 1, op->micro)];
    else if ((op->what == LS_PP_SCHEDULE_BACKWARD || op->what == LS_PP_SCHEDULE_BACKWARD_INPUT) &&
             stage < last)
        needs = c->there[1][cell(p, stage + 1, op->micro)];
    return needs < 0 ? -1 : needs > c->free[rank] ? needs : c->free[rank];
}

static void keep(ls_pp_schedule *p, clock *c, int rank, ls_pp_schedule_op op)
{
    p->ops[p->first[rank] + c->kept[rank]++] = op;
}

/* The message of a rank's last result, to both its ends. */
static void deliver(ls_pp_schedule *p, clock *c, int rank)
{
    struct message *m = &c->waits[rank];
    int to = m->back ? m->stage - 1 : m->stage + 1, peer = to % p->ranks;
    ls_pp_schedule_op op = {.what = LS_PP_SCHEDULE_SEND,
                            .micro = m->micro,
                            .chunk = m->stage / p->ranks,
                            .peer = peer,
                            .back = m->back};

    keep(p, c, rank, op);
    op.what = LS_PP_SCHEDULE_RECV;
    op.chunk = to / p->ranks;
    op.peer = rank;
    keep(p, c, peer, op);
    m->ready = -1;
}

/* All messages that are ready at `now`, the earliest first. */
static void deliver_until(ls_pp_schedule *p, clock *c, int now)
{
    for (;;) {
        int best = -1;
        for (int r = 0; r < p->ranks; r++)
            if (c->waits[r].ready >= 0 && c->waits[r].ready <= now &&
                (best < 0 || c->waits[r].ready < c->waits[best].ready))
                best = r;
        if (best < 0)
            return;
        deliver(p, c, best);
    }
}

static void compute(ls_pp_schedule *p, clock *c, int rank, const ls_pp_schedule_op *op, int start)
{
    int stage = op->chunk * p->ranks + rank, last = ls_pp_schedule_stages(p) - 1;
    bool back = op->what != LS_PP_SCHEDULE_FORWARD;
    int end = start + (op->what == LS_PP_SCHEDULE_BACKWARD ? 2 : 1);

    deliver_until(p, c, start);
    keep(p, c, rank, *op);
    c->free[rank] = end;
    c->next[rank]++;
    if (op->what == LS_PP_SCHEDULE_BACKWARD_WEIGHT)
        return;
    c->there[back][cell(p, stage, op->micro)] = end;
    if (p->ranks > 1 && (back ? stage > 0 : stage < last))
        c->waits[rank] = (struct message){end, back, op->micro, stage};
}

/* All operations of all ranks in the order in which they start on the clock. */
static void weave(ls_pp_schedule *p, const order *o, clock *c)
{
    for (;;) {
        const ls_pp_schedule_op *best = NULL;
        int rank = 0, soonest = 0;
        bool left = false;
        for (int r = 0; r < p->ranks; r++) {
            if (c->next[r] == o->n[r])
                continue;
            const ls_pp_schedule_op *op = &o->ops[(int64_t)r * o->each + c->next[r]];
            int start = start_of(p, c, r, op);
            left = true;
            if (start >= 0 && (!best || start < soonest)) {
                best = op;
                rank = r;
                soonest = start;
            }
        }
        if (!left)
            break;
        LS_BUG_IF(!best, "the order of a %s pipeline of %d ranks has a circle",
                  ls_pp_schedule_names[p->kind], p->ranks);
        compute(p, c, rank, best, soonest);
    }
    deliver_until(p, c, INT32_MAX);
}

/* Messages of a rank: of each chunk one in and one out, forward and backward, but for the ends. */
static int messages_of(const ls_pp_schedule *p, int rank)
{
    int ends = (rank == 0) + (rank == p->ranks - 1);

    return p->ranks > 1 ? p->micros * (4 * p->chunks - 2 * ends) : 0;
}

static ls_status make_table(ls_pp_schedule *p, order *o, clock *c)
{
    int64_t cells = (int64_t)ls_pp_schedule_stages(p) * p->micros;
    int n = 0;

    for (int r = 0; r < p->ranks; r++) {
        order_rank(p, o, r);
        p->first[r] = n;
        n += o->n[r] + messages_of(p, r);
        c->waits[r].ready = -1;
    }
    p->first[p->ranks] = n;
    p->ops = ls_mem_array((size_t)n, sizeof *p->ops);
    if (!p->ops)
        return LS_ENOMEM;
    for (int64_t i = 0; i < cells; i++)
        c->there[0][i] = c->there[1][i] = -1;
    weave(p, o, c);
    for (int r = 0; r < p->ranks; r++)
        LS_BUG_IF(c->kept[r] != p->first[r + 1] - p->first[r], "rank %d has %d operations", r,
                  c->kept[r]);
    return LS_OK;
}

static ls_status check(ls_pp_schedule_kind kind, int ranks, int micros, int chunks)
{
    ls_status st;

    if (ranks < 1 || micros < 1 || chunks < 1)
        return ls_fail(LS_EUSAGE, "a pipeline needs a stage, a micro-batch and a chunk at least");
    if (kind != LS_PP_SCHEDULE_INTERLEAVED && chunks > 1) {
        st = ls_fail(LS_EUSAGE, "a %s schedule has one chunk of layers for each rank, not %d",
                     ls_pp_schedule_names[kind], chunks);
        ls_err_hint("Only interleaved schedules have several.");
        return st;
    }
    if ((int64_t)ranks * micros > LS_PP_SCHEDULE_MOST / chunks) {
        st = ls_fail(LS_EUSAGE, "%d stages x %d chunks x %d micro-batches are too many for a table",
                     ranks, chunks, micros);
        ls_err_hint("Their product may be %d at most.", (int)LS_PP_SCHEDULE_MOST);
        return st;
    }
    return LS_OK;
}

ls_status ls_pp_schedule_init(ls_pp_schedule *pipeline, ls_pp_schedule_kind kind, int ranks,
                              int micros, int chunks)
{
    ls_pp_schedule p = {.kind = kind, .ranks = ranks, .micros = micros, .chunks = chunks};
    order o = {.ops = NULL};
    clock c = {.free = NULL};
    ls_status st;

    *pipeline = (ls_pp_schedule){.kind = kind};
    LS_TRY(st, check(kind, ranks, micros, chunks), out);
    size_t n = (size_t)ranks, cells = n * (size_t)micros * (size_t)chunks;
    o.each = (kind == LS_PP_SCHEDULE_ZERO_BUBBLE ? 3 : 2) * micros * chunks;
    o.ops = ls_mem_array(n * (size_t)o.each, sizeof *o.ops);
    o.n = ls_mem_array(n, sizeof *o.n);
    c.there[0] = ls_mem_array(2 * cells, sizeof *c.there[0]);
    c.free = ls_mem_array(3 * n, sizeof *c.free);
    c.waits = ls_mem_array(n, sizeof *c.waits);
    p.first = ls_mem_array(n + 1, sizeof *p.first);
    if (!o.ops || !o.n || !c.there[0] || !c.free || !c.waits || !p.first) {
        st = LS_ENOMEM;
        goto out;
    }
    c.there[1] = c.there[0] + cells;
    c.next = c.free + n;
    c.kept = c.next + n;
    LS_TRY(st, make_table(&p, &o, &c), out);
    *pipeline = p;
out:
    ls_mem_free(o.ops);
    ls_mem_free(o.n);
    ls_mem_free(c.there[0]);
    ls_mem_free(c.free);
    ls_mem_free(c.waits);
    if (st != LS_OK)
        ls_pp_schedule_release(&p);
    return st;
}

void ls_pp_schedule_release(ls_pp_schedule *pipeline)
{
    ls_mem_free(pipeline->ops);
    ls_mem_free(pipeline->first);
    *pipeline = (ls_pp_schedule){.kind = pipeline->kind};
}

/* --- formulas ---------------------------------------------------------------------------------
 */

/* p ranks, m micro-batches, v chunks; F, I, W: forward, gradients of input and weights.
 * gpipe, 1f1b: (p - 1)(F + I + W), arXiv:2104.04473, 2.2.1. Interleaved: the v-th part, 2.2.2; with
 * less than p micro-batches each further chunk waits for the first of them to come round, p - m
 * times. Zero-bubble (ZB-H1): (p - 1)(F + I - W), arXiv:2401.10241, table 2; with less than p
 * micro-batches only m - 1 gradients of weights fill gaps: (p - 1)(F + I) - (m - 1) W. */
double ls_pp_schedule_idle(const ls_pp_schedule_ask *ask)
{
    int p = ask->ranks, missing = ask->micros < p ? p - ask->micros : 0;
    double once = ask->forward + ask->backward;

    if (ask->kind == LS_PP_SCHEDULE_ZERO_BUBBLE)
        return (p - 1) * (once - ask->weight) - (p - missing - 1) * ask->weight;
    return (p - 1 + (ask->chunks - 1) * missing) * once / ask->chunks;
}

bool ls_pp_schedule_is_known(const ls_pp_schedule_ask *ask)
{
    return ask->kind != LS_PP_SCHEDULE_ZERO_BUBBLE ||
           (ask->weight <= ask->forward && 2 * ask->weight <= ask->backward);
}
