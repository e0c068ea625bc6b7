/* loader.c -- a ring of batches between one thread that fills and one caller that takes.
 *
 * Steps are numbered; step s lives in slot s % depth. Three numbers under one lock say everything:
 *   asked   steps before it have their slice   (raised by the caller, in ask_slices)
 *   filled  steps before it are ready          (raised by the thread, in fill_ring)
 *   taken   steps before it are given back     (raised by the caller, in ls_loader_next)
 * What must hold: taken <= filled <= asked <= taken + depth. The thread writes only slot filled %
 * depth while filled < asked; the caller reads only slot taken % depth while taken < filled.
 * Example with depth 2: the caller works on step 5 (taken = 5), the thread may have filled 6 and
 * then sleeps (filled = asked = 7); asking for step 6 gives slot 1 back, the caller says what is
 * wanted of step 7, and the thread fills it there. */
#include "data/corpus/loader.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include "base/mem.h"
#include "base/pool.h"
#include "base/time.h"

enum { ALIGN = 64 };

typedef struct slot {
    int32_t *tokens, *targets, *start; /* in the loader's block */
    int64_t *pairs;                    /* likewise, or NULL */
    ls_batch batch;
} slot;

struct ls_loader {
    ls_loader_args args;
    ls_sample_order order;
    void *block; /* owned: all batches */
    slot *slots; /* owned */

    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool lock_ready, changed_ready;

    /* under lock */
    int64_t asked, filled, taken;
    bool out; /* the caller holds the batch of step `taken` */
    bool ending;
    ls_err_record failure; /* of the thread; LS_OK: none */
};

static int depth_of(const ls_loader_args *args)
{
    return args->depth < 2 ? 2 : args->depth;
}

/* Bytes of one array of a batch. */
static int64_t plane_bytes(const ls_loader_args *args)
{
    return ls_round_up(args->sequences * args->T * (int64_t)sizeof(int32_t), ALIGN);
}

/* Of the numbers of pairs. */
static int64_t pair_bytes(const ls_loader_args *args)
{
    return ls_corpus_has_pairs(args->corpus)
               ? ls_round_up(args->sequences * (int64_t)sizeof(int64_t), ALIGN)
               : 0;
}

int64_t ls_loader_bytes(const ls_loader_args *args)
{
    bool isolate = args->isolate || ls_corpus_isolates(args->corpus);

    return (plane_bytes(args) * (isolate ? 3 : 2) + pair_bytes(args)) * depth_of(args) + ALIGN;
}

/* Targets of the windows that are read elsewhere: all of them, unless documents are isolated. */
static int64_t count_elsewhere(const ls_loader *loader, const ls_loader_slice *slice)
{
    const ls_loader_args *a = &loader->args;
    int64_t counted = 0;

    if (ls_corpus_has_pairs(a->corpus))
        return slice->sequences - slice->own;
    if (!a->isolate)
        return (slice->sequences - slice->own) * a->T;
    for (int64_t b = 0; b < slice->sequences; b++) {
        if (b == slice->first)
            b += slice->own;
        if (b == slice->sequences)
            break;
        ls_sample sample = ls_sample_order_at(&loader->order, slice->position + b);
        counted += ls_corpus_window_targets(a->corpus, sample.source, sample.first, a->T, true);
    }
    return counted;
}

static ls_status fill_batch(ls_loader *loader, int64_t step)
{
    const ls_loader_args *a = &loader->args;
    slot *s = &loader->slots[step % depth_of(a)];
    const ls_loader_slice *slice = &s->batch.slice;

    s->batch.counted = count_elsewhere(loader, slice);
    for (int64_t b = 0; b < slice->own; b++) {
        ls_sample sample = ls_sample_order_at(&loader->order, slice->position + slice->first + b);
        ls_status st =
            ls_corpus_window(a->corpus, sample.source, sample.first, a->T, s->tokens + b * a->T,
                             s->targets + b * a->T, a->isolate ? s->start + b * a->T : NULL);
        if (st != LS_OK)
            return st;
        s->batch.counted += s->pairs ? 1 : ls_corpus_counted(s->targets + b * a->T, a->T);
        if (s->pairs)
            s->pairs[b] = ls_corpus_pair_number(a->corpus, sample.source, sample.first);
    }
    s->batch.step = step;
    s->batch.B = slice->own;
    return LS_OK;
}

/* The slices of steps whose slots are free now. Under lock. */
static void ask_slices(ls_loader *l)
{
    const ls_loader_args *a = &l->args;

    for (; l->asked < l->taken + depth_of(a); l->asked++) {
        ls_loader_slice slice = {
            .position = l->asked * a->sequences, .sequences = a->sequences, .own = a->sequences};
        if (a->slice)
            slice = a->slice(a->context, l->asked);
        LS_BUG_IF(slice.first < 0 || slice.own < 0 || slice.own > a->sequences ||
                      slice.first + slice.own > slice.sequences,
                  "sequences %lld + %lld of %lld, with room for %lld", (long long)slice.first,
                  (long long)slice.own, (long long)slice.sequences, (long long)a->sequences);
        l->slots[l->asked % depth_of(a)].batch.slice = slice;
    }
}

static void *fill_ring(void *arg)
{
    ls_loader *l = arg;

    pthread_mutex_lock(&l->lock);
    while (!l->ending && l->failure.code == LS_OK) {
        if (l->filled == l->asked) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        int64_t step = l->filled;
        pthread_mutex_unlock(&l->lock);
        ls_status st = fill_batch(l, step);
        pthread_mutex_lock(&l->lock);
        if (st == LS_OK)
            l->filled++;
        else
            l->failure = *ls_err_last();
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static ls_status make_ring(ls_loader *l)
{
    const ls_loader_args *a = &l->args;
    int64_t plane = plane_bytes(a), pairs = pair_bytes(a), at = 0;
    int depth = depth_of(a);

    l->slots = ls_mem_array((size_t)depth, sizeof *l->slots);
    l->block = ls_mem_alloc((size_t)((plane * (a->isolate ? 3 : 2) + pairs) * depth + ALIGN));
    if (!l->slots || !l->block)
        return LS_ENOMEM;
    char *base = (char *)(((uintptr_t)l->block + ALIGN - 1) / ALIGN * ALIGN);
    for (int i = 0; i < depth; i++) {
        slot *s = &l->slots[i];
        s->tokens = (int32_t *)(void *)(base + at);
        s->targets = (int32_t *)(void *)(base + at + plane);
        at += 2 * plane;
        if (a->isolate) {
            s->start = (int32_t *)(void *)(base + at);
            at += plane;
        }
        if (pairs > 0)
            s->pairs = (int64_t *)(void *)(base + at);
        at += pairs;
        s->batch = (ls_batch){.T = a->T,
                              .tokens = s->tokens,
                              .targets = s->targets,
                              .start = s->start,
                              .pairs = s->pairs};
    }
    return LS_OK;
}

/* Signals are for the main thread: the new one inherits a mask that blocks them all. */
static ls_status start_thread(ls_loader *l)
{
    pthread_condattr_t clock;
    sigset_t all, old;

    if (pthread_mutex_init(&l->lock, NULL) != 0)
        return ls_fail(LS_EFAIL, "cannot create the loader's lock");
    l->lock_ready = true;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    int rc = pthread_cond_init(&l->changed, &clock);
    pthread_condattr_destroy(&clock);
    if (rc != 0)
        return ls_fail(LS_EFAIL, "cannot create the loader's signal");
    l->changed_ready = true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = ls_pool_start_apart(&l->thread, fill_ring, l);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        return ls_pool_start_failed(rc, "start the loader's thread");
    l->started = true;
    return LS_OK;
}

ls_status ls_loader_open(ls_loader **out, const ls_loader_args *args)
{
    ls_status st = LS_OK;
    ls_loader *l = ls_mem_alloc(sizeof *l);

    LS_BUG_IF(args->T < 1 || args->sequences < 1 || args->first_step < 0,
              "a loader of %lld x %lld from step %lld", (long long)args->sequences,
              (long long)args->T, (long long)args->first_step);
    if (!l)
        return LS_ENOMEM;
    l->args = *args;
    l->args.isolate = args->isolate || ls_corpus_isolates(args->corpus);
    l->asked = l->filled = l->taken = args->first_step;
    LS_TRY(st, ls_corpus_order(args->corpus, args->seed, args->T, &l->order), out);
    LS_TRY(st, make_ring(l), out);
    ask_slices(l); /* nobody else is there yet */
    LS_TRY(st, start_thread(l), out);
    *out = l;
out:
    if (st != LS_OK)
        ls_loader_close(l);
    return st;
}

void ls_loader_close(ls_loader *loader)
{
    if (!loader)
        return;
    if (loader->started) {
        pthread_mutex_lock(&loader->lock);
        loader->ending = true;
        pthread_cond_broadcast(&loader->changed);
        pthread_mutex_unlock(&loader->lock);
        pthread_join(loader->thread, NULL);
    }
    if (loader->changed_ready)
        pthread_cond_destroy(&loader->changed);
    if (loader->lock_ready)
        pthread_mutex_destroy(&loader->lock);
    ls_mem_free(loader->block);
    ls_mem_free(loader->slots);
    ls_mem_free(loader);
}

/* Wait for a change, at most until the deadline; false when that has passed. Under lock. */
static bool wait_changed(ls_loader *l, int64_t deadline_ns)
{
    struct timespec until = {deadline_ns / LS_NS_PER_S, deadline_ns % LS_NS_PER_S};

    if (deadline_ns == LS_NO_DEADLINE) {
        pthread_cond_wait(&l->changed, &l->lock);
        return true;
    }
    return pthread_cond_timedwait(&l->changed, &l->lock, &until) != ETIMEDOUT;
}

ls_status ls_loader_next(ls_loader *loader, int64_t deadline_ns, const ls_batch **batch_out)
{
    ls_status st = LS_OK;
    ls_loader *l = loader;
    bool in_time = true;

    pthread_mutex_lock(&l->lock);
    if (l->out) { /* the caller is done with the last batch */
        l->out = false;
        l->taken++;
        ask_slices(l);
        pthread_cond_broadcast(&l->changed);
    }
    while (l->taken == l->filled && l->failure.code == LS_OK && in_time)
        in_time = wait_changed(l, deadline_ns);
    if (l->taken < l->filled) { /* what is ready goes out before a later failure */
        *batch_out = &l->slots[l->taken % depth_of(&l->args)].batch;
        l->out = true;
    } else if (l->failure.code != LS_OK) {
        st = ls_err_adopt(&l->failure);
    } else {
        st = ls_fail(LS_EDEADLINE, "the batch of step %lld was not ready in time",
                     (long long)l->taken);
    }
    pthread_mutex_unlock(&l->lock);
    return st;
}
