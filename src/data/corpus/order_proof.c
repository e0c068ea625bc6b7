/* order_proof.c -- walking the order with a bitmap.
 *
 * A sample of a source is bit epoch * windows + window of that source's map, so "twice" is a bit
 * that is already set and "never" a bit that is missing at the end. How many epochs must be whole
 * by then follows from the number of positions alone: without weights every `windows` positions are
 * an epoch of all sources; with weights a source has used blocks * quota samples after this many
 * blocks. Memory is one bit per position walked. */
#include "data/corpus/order_proof.h"

#include <stdarg.h>
#include "base/hash.h"
#include "base/mem.h"

enum { PROGRESS_EVERY = 1 << 16 };

typedef struct map {
    unsigned char *bits; /* owned */
    int64_t epochs;      /* room for this many */
} map;

typedef struct walk {
    const ls_sample_order *order;
    map maps[LS_SAMPLE_ORDER_SOURCES];
    ls_order_proof *proof;
    int64_t done, all; /* for progress: positions of both walks */
    void (*progress)(void *context, int64_t done, int64_t all);
    void *context;
} walk;

int64_t ls_order_proof_positions(const ls_sample_order *order)
{
    int64_t blocks = 0;

    if (!order->weighted)
        return order->windows;
    for (int i = 0; i < order->n_sources; i++) {
        const ls_sample_order_source *s = &order->sources[i];
        blocks = ls_max_i64(blocks, (s->windows + s->quota - 1) / s->quota);
    }
    return blocks * LS_SAMPLE_ORDER_BLOCK;
}

/* Epochs of a source that are whole, and that can have begun, after this many positions. */
static int64_t epochs_whole(const ls_sample_order *order, int source, int64_t positions)
{
    const ls_sample_order_source *s = &order->sources[source];

    if (!order->weighted)
        return positions / order->windows;
    return positions / LS_SAMPLE_ORDER_BLOCK * s->quota / s->windows;
}

static int64_t epochs_begun(const ls_sample_order *order, int source, int64_t positions)
{
    return epochs_whole(order, source, positions + LS_SAMPLE_ORDER_BLOCK - 1 + order->windows) + 1;
}

/* Note the first fault only. */
static void LS_PRINTF(2, 3) fault(ls_order_proof *proof, const char *fmt, ...)
{
    va_list ap;

    if (proof->fault[0])
        return;
    va_start(ap, fmt);
    vsnprintf(proof->fault, sizeof proof->fault, fmt, ap);
    va_end(ap);
}

static void mark(walk *w, int64_t position, ls_sample s)
{
    const ls_sample_order *order = w->order;
    long long at = (long long)position;

    if (s.source < 0 || s.source >= order->n_sources) {
        fault(w->proof, "position %lld names source %d", at, s.source + 1);
        return;
    }
    const ls_sample_order_source *from = &order->sources[s.source];
    map *m = &w->maps[s.source];
    if (s.window < 0 || s.window >= from->windows || s.epoch < 0 || s.epoch >= m->epochs) {
        fault(w->proof, "position %lld names window %lld of epoch %lld of source %d", at,
              (long long)s.window, (long long)s.epoch, s.source + 1);
        return;
    }
    if (s.first < 0 || s.first + order->T + !from->aligned > from->tokens ||
        s.first != ls_sample_order_shift(order, s.source, s.epoch) + s.window * order->T)
        fault(w->proof, "position %lld begins at token %lld, outside its window", at,
              (long long)s.first);
    int64_t bit = s.epoch * from->windows + s.window;
    if (m->bits[bit / 8] >> (bit % 8) & 1)
        fault(w->proof, "window %lld of epoch %lld of source %d is used twice, again at %lld",
              (long long)s.window, (long long)s.epoch, s.source + 1, at);
    m->bits[bit / 8] |= (unsigned char)(1u << (bit % 8));
    w->proof->sources[s.source].samples++;
    if (ls_sample_order_find(order, s.source, s.epoch, s.window) != position)
        fault(w->proof, "the sample of position %lld is found elsewhere", at);
}

/* A number for (position, sample) whose sum over positions does not depend on their order. */
static uint64_t print_of(int64_t position, ls_sample s)
{
    int64_t words[5] = {position, s.source, s.epoch, s.window, s.first};

    return ls_hash_bytes(words, sizeof words).lo;
}

static void tick(walk *w)
{
    if (++w->done % PROGRESS_EVERY == 0 && w->progress)
        w->progress(w->context, w->done, w->all);
}

static uint64_t walk_range(walk *w, const ls_sample_order *order, int64_t from, int64_t to,
                           bool marks)
{
    uint64_t sum = 0;

    for (int64_t p = from; p < to && !w->proof->fault[0]; p++) {
        ls_sample s = ls_sample_order_at(order, p);
        if (marks)
            mark(w, p, s);
        sum += print_of(p, s);
        tick(w);
    }
    return sum;
}

static void count_epochs(walk *w)
{
    for (int i = 0; i < w->order->n_sources; i++) {
        int64_t n = w->order->sources[i].windows;
        int64_t must = epochs_whole(w->order, i, w->proof->positions);
        for (int64_t bit = 0; bit < must * n; bit++)
            if (!(w->maps[i].bits[bit / 8] >> (bit % 8) & 1)) {
                fault(w->proof, "window %lld of epoch %lld of source %d is never used",
                      (long long)(bit % n), (long long)(bit / n), i + 1);
                return;
            }
        w->proof->sources[i].epochs = must;
    }
}

/* The same order made anew, as a run that resumes makes it. */
static ls_status make_again(const ls_sample_order *order, ls_sample_order **again_out)
{
    int64_t tokens[LS_SAMPLE_ORDER_SOURCES];
    double weights[LS_SAMPLE_ORDER_SOURCES];
    bool aligned[LS_SAMPLE_ORDER_SOURCES];
    ls_sample_order *again = ls_mem_alloc(sizeof *again);

    if (!again)
        return LS_ENOMEM;
    for (int i = 0; i < order->n_sources; i++) {
        tokens[i] = order->sources[i].tokens;
        weights[i] = (double)order->sources[i].quota;
        aligned[i] = order->sources[i].aligned;
    }
    ls_status st = ls_sample_order_init(
        again, &(ls_sample_order_args){.seed = order->seed,
                                       .T = order->T,
                                       .shuffle = order->shuffle,
                                       .n_sources = order->n_sources,
                                       .tokens = tokens,
                                       .aligned = aligned,
                                       .weights = order->weighted ? weights : NULL});
    if (st != LS_OK)
        ls_mem_free(again);
    else
        *again_out = again;
    return st;
}

static ls_status make_maps(walk *w)
{
    for (int i = 0; i < w->order->n_sources; i++) {
        map *m = &w->maps[i];
        m->epochs = epochs_begun(w->order, i, w->proof->positions);
        m->bits = ls_mem_alloc((size_t)(m->epochs * w->order->sources[i].windows / 8 + 1));
        if (!m->bits)
            return LS_ENOMEM;
        w->proof->sources[i].windows = w->order->sources[i].windows;
    }
    return LS_OK;
}

ls_status ls_order_proof_order(const ls_sample_order *order, int64_t positions,
                               void (*progress)(void *context, int64_t done, int64_t all),
                               void *context, ls_order_proof *proof_out)
{
    ls_status st = LS_OK;
    ls_sample_order *again = NULL;
    walk *w = ls_mem_alloc(sizeof *w);

    if (!w)
        return LS_ENOMEM;
    *proof_out = (ls_order_proof){.positions = positions, .n_sources = order->n_sources};
    *w = (walk){.order = order,
                .proof = proof_out,
                .all = 2 * positions,
                .progress = progress,
                .context = context};
    LS_TRY(st, make_maps(w), out);
    LS_TRY(st, make_again(order, &again), out);
    ls_rng_block draw = ls_rng_philox(ls_rng_derive(order->seed, 0x637574u, 0), 0, 0, 0, 0);
    proof_out->cut = (int64_t)((uint64_t)draw.v[0] % (uint64_t)ls_max_i64(1, positions));
    uint64_t whole = walk_range(w, order, 0, positions, true);
    count_epochs(w);
    uint64_t parts = walk_range(w, again, proof_out->cut, positions, false);
    parts += walk_range(w, again, 0, proof_out->cut, false);
    if (whole != parts)
        fault(proof_out, "a walk that starts at position %lld meets other samples",
              (long long)proof_out->cut);
    proof_out->passed = proof_out->fault[0] == '\0';
out:
    for (int i = 0; i < order->n_sources; i++)
        ls_mem_free(w->maps[i].bits);
    ls_mem_free(again);
    ls_mem_free(w);
    return st;
}
