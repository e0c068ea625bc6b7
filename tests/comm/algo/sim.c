/* sim.c -- see sim.h. Steps have global numbers: those of rank 0 first, then those of rank 1, ...
 */
#include "comm/algo/sim.h"
#include "comm/algo/sched_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t scale_factor = UINT64_C(0x9E3779B97F4A7C15); /* what mean does, here */
static const uint64_t order_factor = UINT64_C(0xD1342543DE82EF95);

static void *room(size_t count, size_t size)
{
    void *p = calloc(count + 1, size);

    LS_CHECK(p);
    return p;
}

static uint64_t draw(uint64_t *seed)
{
    uint64_t z = *seed += UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static uint64_t value(int rank, int64_t i)
{
    uint64_t seed = (uint64_t)rank << 40 ^ (uint64_t)i;

    return draw(&seed);
}

void ls_sim_fail(const ls_sim *s, int rank, const char *fmt, ...)
{
    char text[512], line[256];
    va_list list;

    va_start(list, fmt);
    vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    fprintf(stderr, "schedule of rank %d:\n", rank);
    for (int32_t i = 0; i < s->scheds[rank].count && i < 60; i++)
        fprintf(stderr, "  %s\n", ls_sched_text(&s->scheds[rank], i, line, sizeof line));
    ls_test_fail(__FILE__, __LINE__,
                 "%s kind %d, %d ranks, root %d, count %lld, chunk %lld, in place %d, uneven %d: "
                 "rank %d: %s",
                 s->c.algo->name, (int)s->c.kind, s->c.ranks, s->c.root, (long long)s->c.count,
                 (long long)s->c.chunk, s->c.in_place, s->c.uneven, rank, text);
}

/* --- building -----------------------------------------------------------------------------------
 */

static void make_args(ls_sim *s, int r)
{
    const ls_sim_case *c = &s->c;
    int n = c->ranks;
    ls_sched_args *a = &s->args[r];

    *a = (ls_sched_args){.algo = c->algo,
                         .kind = c->kind,
                         .ranks = n,
                         .rank = r,
                         .peer = c->root,
                         .count = c->count,
                         .chunk = c->chunk,
                         .in_place = c->in_place};
    if (!c->uneven)
        return;
    if (c->kind == LS_COLL_GATHER) {
        a->count = s->counts[r];
        a->out_counts = r == c->root ? s->counts : NULL;
    } else {
        a->in_counts = s->counts + r * n;
        a->out_counts = s->counts + n * n + r * n;
    }
}

static void draw_counts(ls_sim *s)
{
    int n = s->c.ranks;
    uint64_t seed = s->c.seed;

    s->counts = room((size_t)(2 * n * n), sizeof *s->counts);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            uint64_t x = draw(&seed);
            int64_t count = x % 4 == 0 ? 0 : (int64_t)(x / 4 % (uint64_t)(s->c.count + 1));
            s->counts[i * n + j] = s->counts[n * n + j * n + i] = count;
        }
}

static int64_t sum_of(const int64_t *counts, int n, int64_t count)
{
    int64_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += counts ? counts[i] : count;
    return sum;
}

static int64_t own_len(const ls_sched_args *a)
{
    int64_t first, len;

    ls_coll_range(a->count, a->ranks, a->rank, &first, &len);
    return len;
}

/* Elements of IN and OUT. */
static void buffer_sizes(const ls_sched_args *a, int64_t *in, int64_t *out)
{
    bool root = a->rank == a->peer;

    *in = *out = a->count;
    switch (a->kind) {
    case LS_COLL_REDUCE_SCATTER:
        *out = a->in_place ? a->count : own_len(a);
        break;
    case LS_COLL_ALL_GATHER:
        *in = a->in_place ? a->count : own_len(a);
        break;
    case LS_COLL_BROADCAST:
        *in = root || a->in_place ? a->count : 0;
        break;
    case LS_COLL_ALL_TO_ALL:
        *in = sum_of(a->in_counts, a->ranks, a->count);
        *out = sum_of(a->out_counts, a->ranks, a->count);
        if (a->in_place)
            *in = *out = ls_max_i64(*in, *out);
        break;
    case LS_COLL_GATHER:
        *out = root ? sum_of(a->out_counts, a->ranks, a->count) : 0;
        *in = root && a->in_place ? *out : a->count;
        break;
    case LS_COLL_BARRIER:
        *in = *out = 0;
        break;
    default:
        break;
    }
}

/* Whether IN and OUT of a rank are the same memory. */
static bool aliased(const ls_sched_args *a)
{
    return a->in_place && (a->kind != LS_COLL_GATHER || a->rank == a->peer);
}

/* --- what can be seen without running -----------------------------------------------------------
 */

typedef struct access {
    int buffer; /* as memory: OUT for IN when they are the same */
    int64_t at, end;
    int32_t step;
    bool writes;
} access;

static int reads_of(const ls_sched *s, int32_t i, access *list, bool same)
{
    const ls_sched_step *x = &s->steps[i];
    int n = 0;

    if (x->act == LS_SCHED_COMBINE) {
        for (int32_t p = 0; p < x->parts; p++) {
            const ls_sched_part *part = &s->parts[x->first_part + p];
            list[n++] = (access){part->buffer, part->at, part->at + x->count, i, false};
        }
    } else if (x->act != LS_SCHED_RECV) {
        list[n++] = (access){x->from, x->from_at, x->from_at + x->count, i, false};
    }
    if (x->act != LS_SCHED_SEND)
        list[n++] = (access){x->to, x->to_at, x->to_at + x->count, i, true};
    for (int k = 0; k < n; k++)
        if (same && list[k].buffer == LS_SCHED_IN)
            list[k].buffer = LS_SCHED_OUT;
    return n;
}

static int by_place(const void *a, const void *b)
{
    const access *x = a, *y = b;

    if (x->buffer != y->buffer)
        return x->buffer < y->buffer ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* ancestors: for each step the set of those it waits for, directly or not. */
static uint64_t *ancestors_of(const ls_sim *s, int rank, size_t words)
{
    const ls_sched *x = &s->scheds[rank];
    uint64_t *set = room((size_t)x->count * words, sizeof *set);

    for (int32_t i = 0; i < x->count; i++) {
        const ls_sched_step *step = &x->steps[i];
        for (int32_t k = -2; k < step->parts; k++) {
            int32_t a = k < 0 ? step->after[k + 2] : x->parts[step->first_part + k].after;
            if (a < 0)
                continue;
            if (a >= i)
                ls_sim_fail(s, rank, "step %d waits for %d", (int)i, (int)a);
            set[(size_t)i * words + (size_t)a / 64] |= UINT64_C(1) << a % 64;
            for (size_t w = 0; w < words; w++)
                set[(size_t)i * words + w] |= set[(size_t)a * words + w];
        }
    }
    return set;
}

/* Two steps that touch the same elements, one of them writing, must wait for each other; one step
 * may read and write a place only when it is the same one. */
static void check_hazards(const ls_sim *s, int rank)
{
    const ls_sched *x = &s->scheds[rank];
    size_t words = (size_t)x->count / 64 + 1;
    uint64_t *before = ancestors_of(s, rank, words);
    access *list = room(2 * (size_t)x->count + (size_t)x->parts_count, sizeof *list);
    int n = 0;

    for (int32_t i = 0; i < x->count; i++)
        if (x->steps[i].count > 0)
            n += reads_of(x, i, list + n, aliased(&s->args[rank]));
    qsort(list, (size_t)n, sizeof *list, by_place);
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++) {
            const access *a = &list[i], *b = &list[j];
            if (b->buffer != a->buffer || b->at >= a->end)
                break;
            if (!a->writes && !b->writes)
                continue;
            int32_t lo = a->step < b->step ? a->step : b->step;
            int32_t hi = a->step < b->step ? b->step : a->step;
            bool ordered = before[(size_t)hi * words + (size_t)lo / 64] >> lo % 64 & 1;
            if (lo == hi ? a->at != b->at : !ordered)
                ls_sim_fail(s, rank, "steps %d and %d may touch the same elements at once", (int)lo,
                            (int)hi);
        }
    free(list);
    free(before);
}

static void check_ranges(const ls_sim *s, int rank)
{
    const ls_sched *x = &s->scheds[rank];
    bool sums = s->c.kind == LS_COLL_ALL_REDUCE || s->c.kind == LS_COLL_REDUCE_SCATTER;
    int64_t size[3];
    access list[4097 + 1];

    buffer_sizes(&s->args[rank], &size[LS_SCHED_IN], &size[LS_SCHED_OUT]);
    size[LS_SCHED_TMP] = x->tmp_count;
    for (int32_t i = 0; i < x->count; i++) {
        int n = reads_of(x, i, list, false);
        for (int k = 0; k < n; k++)
            if (list[k].at < 0 || list[k].end > size[list[k].buffer])
                ls_sim_fail(s, rank, "step %d leaves its buffer", (int)i);
        if (x->steps[i].last && !sums)
            ls_sim_fail(s, rank, "step %d finishes a sum where there is none", (int)i);
        if (x->steps[i].count == 0 && s->c.kind != LS_COLL_BARRIER)
            ls_sim_fail(s, rank, "step %d does nothing", (int)i);
    }
}

static void check_sent(const ls_sim *s, int rank)
{
    ls_cost_query q = {.kind = s->c.kind,
                       .ranks = s->c.ranks,
                       .rank = rank,
                       .peer = s->c.root,
                       .count = s->args[rank].count,
                       .chunk = s->c.chunk,
                       .size = 4,
                       .in_counts = s->args[rank].in_counts};
    int64_t sent = 4 * ls_sched_text_sent(&s->scheds[rank]), want = ls_cost_sent(s->c.algo, &q);

    if (sent != want)
        ls_sim_fail(s, rank, "sends %lld bytes, cost.c says %lld", (long long)sent,
                    (long long)want);
}

/* How many messages go from a to b, as b's list of receives (or a's list of sends) says. */
static int32_t *count_messages(const ls_sim *s, bool sends)
{
    int n = s->c.ranks;
    int32_t *count = room((size_t)(n * n), sizeof *count);

    for (int r = 0; r < n; r++)
        for (int32_t i = 0; i < s->scheds[r].count; i++) {
            const ls_sched_step *x = &s->scheds[r].steps[i];
            if (x->peer < 0 || (x->act == LS_SCHED_SEND) != sends)
                continue;
            if (x->peer == r || x->peer >= n)
                ls_sim_fail(s, r, "step %d is a message to or from rank %d", (int)i, (int)x->peer);
            if (x->number != count[sends ? r * n + x->peer : x->peer * n + r]++)
                ls_sim_fail(s, r, "step %d has the wrong number", (int)i);
        }
    return count;
}

/* The k-th send of a to b and the k-th receive of b from a become partners. */
static void match(ls_sim *s)
{
    int n = s->c.ranks;
    int32_t *sends = count_messages(s, true), *first = count_messages(s, false), at = 0;
    int32_t *table = room((size_t)s->base[n], sizeof *table);

    for (int i = 0; i < n * n; i++) {
        int32_t receives = first[i];
        if (sends[i] != receives)
            ls_sim_fail(s, i / n, "sends %d messages to rank %d, which expects %d", (int)sends[i],
                        i % n, (int)receives);
        first[i] = at;
        at += receives;
    }
    for (int pass = 0; pass < 2; pass++)
        for (int32_t g = 0; g < s->base[n]; g++) {
            int r = s->owner[g];
            const ls_sched_step *x = &s->scheds[r].steps[g - s->base[r]];
            if (x->peer < 0 || (x->act == LS_SCHED_SEND) != (pass == 1))
                continue;
            int32_t *entry = &table[x->number + first[pass ? r * n + x->peer : x->peer * n + r]];
            if (pass == 0) {
                *entry = g;
                continue;
            }
            const ls_sched_step *y = &s->scheds[x->peer].steps[*entry - s->base[x->peer]];
            if (x->count != y->count)
                ls_sim_fail(s, r, "step %d sends %lld elements, rank %d expects %lld",
                            (int)(g - s->base[r]), (long long)x->count, (int)x->peer,
                            (long long)y->count);
            s->partner[g] = *entry;
            s->partner[*entry] = g;
        }
    free(sends);
    free(first);
    free(table);
}

void ls_sim_init(ls_sim *s, const ls_sim_case *c)
{
    int n = c->ranks;

    *s = (ls_sim){.c = *c};
    s->scheds = room((size_t)n, sizeof *s->scheds);
    s->args = room((size_t)n, sizeof *s->args);
    s->base = room((size_t)n + 1, sizeof *s->base);
    if (c->uneven)
        draw_counts(s);
    for (int r = 0; r < n; r++) {
        make_args(s, r);
        LS_CHECK_OK(ls_sched_build(&s->scheds[r], &s->args[r]));
        s->base[r + 1] = s->base[r] + s->scheds[r].count;
    }
    s->owner = room((size_t)s->base[n], sizeof *s->owner);
    s->partner = room((size_t)s->base[n], sizeof *s->partner);
    for (int r = 0; r < n; r++)
        for (int32_t i = s->base[r]; i < s->base[r + 1]; i++) {
            s->owner[i] = r;
            s->partner[i] = -1;
        }
    match(s);
    for (int r = 0; r < n; r++) {
        check_ranges(s, r);
        check_hazards(s, r);
        check_sent(s, r);
    }
}

void ls_sim_release(ls_sim *s)
{
    for (int r = 0; r < s->c.ranks; r++)
        ls_sched_release(&s->scheds[r]);
    free(s->scheds);
    free(s->args);
    free(s->counts);
    free(s->base);
    free(s->partner);
    free(s->owner);
}

/* --- running ------------------------------------------------------------------------------------
 */

typedef struct run {
    ls_sim *s;
    uint64_t **memory[3]; /* by buffer and rank; IN is OUT where they are the same */
    uint64_t *all;        /* what memory points into */
    int32_t *waits;       /* steps each step still waits for */
    int32_t *ready,
        ready_count;        /* steps that may start: local ones, and sends with their receive */
    bool *open, *done;      /* may start; is done */
    int32_t *heads, *links; /* who waits for a step: lists of (step, next) */
    int32_t links_count;
    int32_t *front; /* per rank: the first step that is not done */
    int window, absent;
    uint64_t seed;
    int32_t done_count;
} run;

static const ls_sched_step *step_at(const ls_sim *s, int32_t g)
{
    return &s->scheds[s->owner[g]].steps[g - s->base[s->owner[g]]];
}

static void link_up(run *x, int32_t from, int32_t to)
{
    x->links[2 * x->links_count] = to;
    x->links[2 * x->links_count + 1] = x->heads[from];
    x->heads[from] = x->links_count++;
    x->waits[to]++;
}

static void find_dependents(run *x)
{
    ls_sim *s = x->s;

    for (int r = 0; r < s->c.ranks; r++)
        for (int32_t i = 0; i < s->scheds[r].count; i++) {
            const ls_sched_step *step = &s->scheds[r].steps[i];
            for (int32_t k = -2; k < step->parts; k++) {
                int32_t a =
                    k < 0 ? step->after[k + 2] : s->scheds[r].parts[step->first_part + k].after;
                if (a >= 0)
                    link_up(x, s->base[r] + a, s->base[r] + i);
            }
        }
}

static void may_start(run *x, int32_t g)
{
    int32_t other = x->s->partner[g];

    if (x->s->owner[g] == x->absent)
        return;
    x->open[g] = true;
    if (other < 0)
        x->ready[x->ready_count++] = g;
    else if (x->open[other])
        x->ready[x->ready_count++] = step_at(x->s, g)->act == LS_SCHED_SEND ? g : other;
}

static void finish(run *x, int32_t g)
{
    x->done[g] = true;
    x->done_count++;
    for (int32_t l = x->heads[g]; l >= 0; l = x->links[2 * l + 1])
        if (--x->waits[x->links[2 * l]] == 0)
            may_start(x, x->links[2 * l]);
}

/* Among the first `window` steps of its rank that are not done. */
static bool in_window(run *x, int32_t g)
{
    int r = x->s->owner[g], seen = 0;

    if (x->window == 0)
        return true;
    while (x->front[r] < g && x->done[x->front[r]])
        x->front[r]++;
    for (int32_t i = x->front[r]; i < g; i++)
        if (!x->done[i] && ++seen >= x->window)
            return false;
    return true;
}

static uint64_t *place(run *x, int rank, int buffer, int64_t at)
{
    return x->memory[buffer][rank] + at;
}

static void do_combine(run *x, int rank, const ls_sched_step *t)
{
    const ls_sched *sched = &x->s->scheds[rank];
    uint64_t factor = x->s->c.algo->once ? order_factor : 1;

    for (int64_t i = 0; i < t->count; i++) {
        uint64_t sum = 0;
        for (int32_t p = 0; p < t->parts; p++) {
            const ls_sched_part *part = &sched->parts[t->first_part + p];
            sum = sum * factor + place(x, rank, part->buffer, part->at)[i];
        }
        place(x, rank, t->to, t->to_at)[i] = sum;
    }
}

static void do_step(run *x, int32_t g)
{
    const ls_sched_step *t = step_at(x->s, g);
    int rank = x->s->owner[g];
    const uint64_t *from = NULL;
    uint64_t *to;

    if (t->act == LS_SCHED_SEND) { /* the receiver's side does it all */
        from = place(x, rank, t->from, t->from_at);
        t = step_at(x->s, x->s->partner[g]);
        rank = x->s->owner[x->s->partner[g]];
    } else if (t->act == LS_SCHED_COPY) {
        from = place(x, rank, t->from, t->from_at);
    }
    to = place(x, rank, t->to, t->to_at);
    if (t->act == LS_SCHED_COMBINE)
        do_combine(x, rank, t);
    else if (t->act == LS_SCHED_RECV_ADD)
        for (int64_t i = 0; i < t->count; i++)
            to[i] = place(x, rank, t->from, t->from_at)[i] + from[i];
    else if (t->count > 0)
        memmove(to, from, (size_t)t->count * sizeof *to);
    for (int64_t i = 0; t->last && i < t->count; i++)
        to[i] *= scale_factor;
}

/* Until nothing is left that may start. */
static void go(run *x)
{
    int32_t refused = 0;

    while (refused < x->ready_count) {
        int32_t k = (int32_t)(draw(&x->seed) % (uint64_t)(x->ready_count - refused));
        int32_t g = x->ready[k], other = x->s->partner[g], end;
        if (!in_window(x, g) || (other >= 0 && !in_window(x, other))) {
            end = x->ready_count - ++refused; /* again when something else has moved */
            x->ready[k] = x->ready[end];
            x->ready[end] = g;
            continue;
        }
        refused = 0;
        x->ready[k] = x->ready[--x->ready_count];
        do_step(x, g);
        finish(x, g);
        if (other >= 0)
            finish(x, other);
    }
}

static void run_init(run *x, ls_sim *s, int window, int absent)
{
    size_t n = (size_t)s->c.ranks, steps = (size_t)s->base[n], links = 0;

    *x = (run){.s = s, .window = window, .absent = absent, .seed = s->c.seed};
    for (int r = 0; r < s->c.ranks; r++)
        links += 2 * (size_t)s->scheds[r].count + (size_t)s->scheds[r].parts_count;
    x->waits = room(steps, sizeof *x->waits);
    x->ready = room(steps, sizeof *x->ready);
    x->open = room(steps, sizeof *x->open);
    x->done = room(steps, sizeof *x->done);
    x->heads = room(steps, sizeof *x->heads);
    x->links = room(2 * links, sizeof *x->links);
    x->front = room(n, sizeof *x->front);
    memcpy(x->front, s->base, n * sizeof *x->front);
    memset(x->heads, 0xff, steps * sizeof *x->heads);
    for (int b = 0; b < 3; b++)
        x->memory[b] = room(n, sizeof *x->memory[b]);
    find_dependents(x);
}

static void run_release(run *x)
{
    free(x->waits);
    free(x->ready);
    free(x->open);
    free(x->done);
    free(x->heads);
    free(x->links);
    free(x->front);
    free(x->all);
    for (int b = 0; b < 3; b++)
        free(x->memory[b]);
}

static void start(run *x)
{
    for (int32_t g = 0; g < x->s->base[x->s->c.ranks]; g++)
        if (x->waits[g] == 0 && !x->open[g])
            may_start(x, g);
    go(x);
}

/* --- values and results -------------------------------------------------------------------------
 */

/* Where a rank's contribution begins in IN, and how many elements it has. */
static int64_t contribution(const ls_sched_args *a, int64_t *len)
{
    int64_t first, own, in, out;

    ls_coll_range(a->count, a->ranks, a->rank, &first, &own);
    buffer_sizes(a, &in, &out);
    *len = a->kind == LS_COLL_ALL_TO_ALL ? sum_of(a->in_counts, a->ranks, a->count) : a->count;
    if (a->kind == LS_COLL_ALL_GATHER) {
        *len = own;
        return a->in_place ? first : 0;
    }
    if (a->kind == LS_COLL_GATHER && aliased(a))
        return a->out_counts ? sum_of(a->out_counts, a->rank, 0) : a->rank * a->count;
    if (a->kind == LS_COLL_BROADCAST && a->rank != a->peer)
        *len = 0;
    if (a->kind == LS_COLL_BARRIER)
        *len = 0;
    return 0;
}

static void fill(run *x)
{
    ls_sim *s = x->s;
    int64_t sum = 0, at = 0;

    for (int pass = 0; pass < 2; pass++) {
        for (int r = 0; r < s->c.ranks; r++) {
            int64_t in, out, len, first = contribution(&s->args[r], &len);
            buffer_sizes(&s->args[r], &in, &out);
            if (pass == 0) {
                sum += in + out + s->scheds[r].tmp_count;
                continue;
            }
            x->memory[LS_SCHED_OUT][r] = x->all + at;
            at += out;
            x->memory[LS_SCHED_TMP][r] = x->all + at;
            at += s->scheds[r].tmp_count;
            x->memory[LS_SCHED_IN][r] =
                aliased(&s->args[r]) ? x->memory[LS_SCHED_OUT][r] : x->all + at;
            at += in;
            for (int64_t i = 0; i < len; i++)
                x->memory[LS_SCHED_IN][r][first + i] = value(r, i);
        }
        if (pass == 0) {
            x->all = room((size_t)sum, sizeof *x->all);
            memset(x->all, 0xa5, (size_t)sum * sizeof *x->all);
        }
    }
}

static void expect(const run *x, int r, const uint64_t *got, uint64_t want, int64_t i)
{
    if (*got != want)
        ls_sim_fail(x->s, r, "element %lld of the result is wrong", (long long)i);
}

static uint64_t total(const ls_sim *s, int64_t i)
{
    uint64_t sum = 0, factor = s->c.algo->once ? order_factor : 1;

    for (int r = 0; r < s->c.ranks; r++)
        sum = sum * factor + value(r, i);
    return s->c.ranks > 1 ? sum * scale_factor : sum;
}

static void check_moved(const run *x, int r, const uint64_t *out)
{
    const ls_sim *s = x->s;
    const ls_sched_args *a = &s->args[r];

    if (s->c.kind == LS_COLL_BROADCAST)
        for (int64_t i = 0; i < a->count; i++)
            expect(x, r, out + i, value(a->peer, i), i);
    for (int from = 0; from < s->c.ranks; from++) {
        int64_t first = 0, len = 0, skip = 0;
        if (s->c.kind == LS_COLL_ALL_GATHER)
            ls_coll_range(a->count, s->c.ranks, from, &first, &len);
        if (s->c.kind == LS_COLL_ALL_TO_ALL) {
            first = sum_of(a->out_counts, from, a->count);
            len = a->out_counts ? a->out_counts[from] : a->count;
            skip = sum_of(s->args[from].in_counts, r, a->count);
        }
        if (s->c.kind == LS_COLL_GATHER && r == a->peer) {
            first = sum_of(a->out_counts, from, a->count);
            len = a->out_counts ? a->out_counts[from] : a->count;
        }
        for (int64_t i = 0; i < len; i++)
            expect(x, r, out + first + i, value(from, skip + i), first + i);
    }
}

/* totals: the finished sums, made once for all ranks. */
static void check_result(const run *x, int r, const uint64_t *totals)
{
    const ls_sim *s = x->s;
    const ls_sched_args *a = &s->args[r];
    const uint64_t *out = x->memory[LS_SCHED_OUT][r], *in = x->memory[LS_SCHED_IN][r];
    int64_t first, len, own;

    ls_coll_range(a->count, a->ranks, r, &first, &len);
    if (s->c.kind == LS_COLL_ALL_REDUCE)
        for (int64_t i = 0; i < a->count; i++)
            expect(x, r, out + i, totals[i], i);
    if (s->c.kind == LS_COLL_REDUCE_SCATTER) {
        for (int64_t i = 0; i < len; i++)
            expect(x, r, out + (a->in_place ? first : 0) + i, totals[first + i], i);
        for (int64_t i = 0; a->in_place && i < a->count; i++) /* the rest is left alone */
            if (i < first || i >= first + len)
                expect(x, r, out + i, value(r, i), i);
    }
    check_moved(x, r, out);
    first = contribution(a, &own);
    for (int64_t i = 0; !aliased(a) && i < own; i++)
        if (in[first + i] != value(r, i))
            ls_sim_fail(s, r, "the input was changed at %lld", (long long)i);
}

void ls_sim_run(ls_sim *s, int window)
{
    run x;
    bool sums = s->c.kind == LS_COLL_ALL_REDUCE || s->c.kind == LS_COLL_REDUCE_SCATTER;
    uint64_t *totals = room(sums ? (size_t)s->c.count : 0, sizeof *totals);

    run_init(&x, s, window, -1);
    fill(&x);
    start(&x);
    for (int32_t g = 0; g < s->base[s->c.ranks]; g++)
        if (!x.done[g])
            ls_sim_fail(s, s->owner[g], "stuck before step %d with a window of %d",
                        (int)(g - s->base[s->owner[g]]), window);
    for (int64_t i = 0; sums && i < s->c.count; i++)
        totals[i] = total(s, i);
    for (int r = 0; r < s->c.ranks; r++)
        check_result(&x, r, totals);
    free(totals);
    run_release(&x);
}

int ls_sim_finish_without(ls_sim *s, int absent)
{
    run x;
    int finished = 0;

    run_init(&x, s, 0, absent);
    fill(&x);
    start(&x);
    for (int r = 0; r < s->c.ranks; r++) {
        bool all = true;
        for (int32_t g = s->base[r]; g < s->base[r + 1]; g++)
            all = all && x.done[g];
        finished += r != absent && all;
    }
    run_release(&x);
    return finished;
}

/* --- time ---------------------------------------------------------------------------------------
 */

typedef struct timing {
    run x;
    double *at;              /* when a step may start, then when it was done */
    double *out, *in, *adds; /* when the ports and the adder of a rank are free */
} timing;

static double start_of(const timing *k, int32_t g)
{
    const ls_sim *s = k->x.s;
    int32_t other = s->partner[g];
    int r = s->owner[g];
    double t = k->at[g];

    if (other < 0)
        return step_at(s, g)->act == LS_SCHED_COMBINE && k->adds[r] > t ? k->adds[r] : t;
    t = k->at[other] > t ? k->at[other] : t;
    t = k->out[r] > t ? k->out[r] : t;
    return k->in[s->owner[other]] > t ? k->in[s->owner[other]] : t;
}

/* The one that starts first; the one earlier in its list where two start at once. */
static int32_t pick_first(const timing *k, double *start_out)
{
    const ls_sim *s = k->x.s;
    int32_t best = 0;
    double first = 0;

    for (int32_t i = 0; i < k->x.ready_count; i++) {
        int32_t g = k->x.ready[i], b = k->x.ready[best];
        double t = start_of(k, g);
        if (i == 0 || t < first ||
            (t <= first && g - s->base[s->owner[g]] < b - s->base[s->owner[b]])) {
            best = i;
            first = t;
        }
    }
    *start_out = first;
    return best;
}

/* Steps that were waiting for g may start when it is done. */
static void finish_at(timing *k, int32_t g, double when)
{
    run *x = &k->x;

    k->at[g] = when;
    for (int32_t l = x->heads[g]; l >= 0; l = x->links[2 * l + 1]) {
        int32_t h = x->links[2 * l];
        k->at[h] = when > k->at[h] ? when : k->at[h];
    }
    finish(x, g);
}

static void advance(timing *k, const ls_cost_query *q, int32_t g, double t)
{
    const ls_sim *s = k->x.s;
    const ls_sched_step *step = step_at(s, g);
    double bytes = (double)(step->count * q->size), sum = bytes * q->combine_ns_per_byte;
    int32_t other = s->partner[g];
    int r = s->owner[g], to = other < 0 ? r : s->owner[other];

    if (step->act == LS_SCHED_COMBINE) {
        k->adds[r] = t + sum * (step->parts - 1);
        finish_at(k, g, k->adds[r]);
    } else if (other < 0) {
        finish_at(k, g, t);
    } else {
        double busy = q->link.message_ns + bytes * q->link.ns_per_byte;
        double arrived = t + busy + q->link.alpha_ns;
        k->out[r] = k->in[to] = t + busy;
        if (step_at(s, other)->act == LS_SCHED_RECV_ADD) {
            arrived = (arrived > k->adds[to] ? arrived : k->adds[to]) + sum;
            k->adds[to] = arrived;
        }
        finish_at(k, g, t + busy);
        finish_at(k, other, arrived);
    }
}

double ls_sim_time(ls_sim *s, const ls_cost_query *q)
{
    timing k;
    size_t n = (size_t)s->c.ranks, steps = (size_t)s->base[n];
    double end = 0;

    run_init(&k.x, s, 0, -1);
    k.at = room(steps, sizeof *k.at);
    k.out = room(n, sizeof *k.out);
    k.in = room(n, sizeof *k.in);
    k.adds = room(n, sizeof *k.adds);
    for (int32_t g = 0; g < s->base[n]; g++)
        if (k.x.waits[g] == 0 && !k.x.open[g])
            may_start(&k.x, g);
    while (k.x.ready_count > 0) {
        double t;
        int32_t i = pick_first(&k, &t), g = k.x.ready[i];
        k.x.ready[i] = k.x.ready[--k.x.ready_count];
        advance(&k, q, g, t);
    }
    LS_CHECK_EQ(k.x.done_count, s->base[n]);
    for (size_t g = 0; g < steps; g++)
        end = k.at[g] > end ? k.at[g] : end;
    free(k.at);
    free(k.out);
    free(k.in);
    free(k.adds);
    run_release(&k.x);
    return end;
}
