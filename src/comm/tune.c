/* tune.c -- see tune.h.
 *
 * Measuring. On each node the first member is the one that measures; with node i it takes the next
 * one, so that every node's port out and port in are used:
 *
 *     round 0:  0 -> 1   2 -> 3        round 1:  1 -> 2   3 -> 0        round 2, odd: last -> 0
 *
 * and inside each node its first member takes its second. In a pair one side asks: "so often, so
 * many messages of so many bytes"; after each lot the other side answers with one byte. With the
 * letters of cost.h:
 *
 *     1 message of 1 byte      T1 = 2 (alpha + message)
 *     33 messages of 1 byte    T33 - T1 = 32 message
 *     1 message of B bytes     TB - T1 = B ns_per_byte
 *
 * The least of a few lots counts, because whatever disturbs makes it longer. A shaped link lets
 * some bytes pass at once after a rest, so a message that is not counted goes before the long ones;
 * they follow each other without a rest. Then the largest of all pairs counts, in an all-reduce
 * that is chosen by the numbers of before.
 *
 * Nothing here makes ranks differ: who measures follows from the list of members, each decision
 * that depends on a clock or a file is made by one rank and sent to all, or is made by all from
 * numbers that went through an all-reduce. */
#include "comm/tune.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "comm/comm_impl.h"
#include "comm/tune_file.h"

enum { BURST = 32, SHORT_BYTES = 256 << 10, LONG_BYTES = 640 << 10, LOTS = 3, PINGS = 24 };
enum { SLOW_NS = 6000000, SETTLE_CALLS = 4, SETTLE_BYTES = 64 << 20 };

static const double nearly = 1.2, changed = 2.5, FASTEST_NS_PER_BYTE = 0.008;

/* --- what all ranks know ----------------------------------------------------------------------*/

void ls_tune_init(ls_tune *tune)
{
    memset(tune, 0, sizeof *tune); /* it travels as bytes */
    tune->between = (ls_cost_link){.alpha_ns = 25000, .message_ns = 3000, .ns_per_byte = 8.5};
    tune->inside = (ls_cost_link){.alpha_ns = 400, .message_ns = 200, .ns_per_byte = 0.12};
    tune->combine_ns_per_byte = 0.05;
}

const ls_tune *ls_tune_of(const ls_comm *comm)
{
    return &comm->tune;
}

const char *ls_tune_why_name(ls_tune_why why)
{
    static const char *const names[] = {"model", "measured", "remembered", "forced", "rule"};

    return names[why];
}

/* Schedules were made for other numbers. */
static void forget_plans(ls_comm *c)
{
    pthread_mutex_lock(&c->fabric->lock);
    for (int i = 0; i < COMM_PLANS; i++)
        c->plans[i].once_only = true;
    pthread_mutex_unlock(&c->fabric->lock);
}

/* A flight that some ranks take up before numbers change and others behind would go two ways. */
static ls_status check_idle(ls_comm *c)
{
    int up = atomic_load(&c->up);

    return up == 0
               ? LS_OK
               : ls_fail(LS_EUSAGE, "links are measured while %d collectives are in flight", up);
}

/* Rank 0's bytes, for all. */
static ls_status tell(ls_comm *c, void *bytes, int64_t count, int64_t deadline_ns)
{
    return ls_comm_run(
        c,
        &(ls_coll){
            .kind = LS_COLL_BROADCAST, .type = LS_U8, .count = count, .in = bytes, .out = bytes},
        deadline_ns);
}

static ls_status largest(ls_comm *c, ls_dtype type, void *values, int64_t count,
                         int64_t deadline_ns)
{
    return ls_comm_run(c,
                       &(ls_coll){.kind = LS_COLL_ALL_REDUCE,
                                  .op = LS_COLL_MAX,
                                  .type = type,
                                  .count = count,
                                  .in = values,
                                  .out = values},
                       deadline_ns);
}

/* --- choosing ---------------------------------------------------------------------------------*/

static ls_cost_query query_of(const ls_comm *c, const ls_coll *coll, bool across)
{
    const ls_tune *t = &c->tune;
    ls_cost_query q = {.kind = coll->kind,
                       .ranks = across ? c->nodes : c->ranks,
                       .peer = coll->peer,
                       .count = coll->count,
                       .size = ls_dtype_bytes(coll->type),
                       .link = c->near ? t->inside : t->between,
                       .combine_ns_per_byte = t->combine_ns_per_byte,
                       .in_counts = coll->in_counts};

    if (across)
        q.link.ns_per_byte *= c->per_node;
    return q;
}

/* The pick that was made for such a collective, or NULL. */
static const ls_tune_pick *find_pick(const ls_comm *c, const ls_coll *coll)
{
    int64_t size = ls_dtype_bytes(coll->type), bytes = coll->count * size;

    for (int i = 0; i < c->tune.picks; i++) {
        const ls_tune_pick *p = &c->tune.pick[i];
        if (p->kind == (int)coll->kind && p->ranks == c->ranks && p->size == size &&
            bytes >= p->bytes - p->bytes / 8 && bytes <= p->bytes + p->bytes / 8)
            return p;
    }
    return NULL;
}

static int row_of(const ls_cost_choice *choice, const char *name)
{
    for (int i = 0; i < choice->count; i++)
        if (strcmp(choice->rows[i].algo->name, name) == 0 && !choice->rows[i].refuses)
            return i;
    return -1;
}

ls_tune_why ls_tune_choose(const ls_comm *comm, const ls_coll *coll, bool across,
                           ls_cost_choice *choice_out)
{
    const ls_comm *c = comm;
    const ls_algo *forced = c->forced && (c->forced->kinds >> coll->kind & 1) ? c->forced : NULL;
    const ls_cost_query query = query_of(c, coll, across);
    ls_tune_why why = LS_TUNE_BY_MODEL;
    const ls_tune_pick *pick;

    ls_cost_choose(&query, coll, false, choice_out);
    if (forced) {
        choice_out->best = row_of(choice_out, forced->name);
        return LS_TUNE_BY_FORCE;
    }
    if (coll->kind == LS_COLL_GATHER) { /* each rank knows its own count only: none chooses by it */
        choice_out->best = row_of(choice_out, "direct");
        return why;
    }
    pick = across || coll->in_counts || coll->out_counts ? NULL : find_pick(c, coll);
    int row = pick ? row_of(choice_out, pick->way) : -1;
    if (row >= 0) {
        choice_out->best = row;
        why = pick->remembered ? LS_TUNE_BY_MEMORY : LS_TUNE_BY_MEASURE;
    }
    return why;
}

/* --- one pair ---------------------------------------------------------------------------------*/

typedef struct lots {
    int64_t bytes, count, times; /* times 0: that was all */
} lots;

typedef struct pair {
    ls_comm *comm;
    int peer;
    char *memory; /* LONG_BYTES */
    bool shared;  /* it lies in the memory of the node */
    int64_t deadline_ns;
} pair;

/* In the memory of the node, where buffers usually lie; a full one is no reason to fail. */
static ls_status take_memory(pair *p)
{
    p->shared = ls_comm_alloc(p->comm, LONG_BYTES, "messages to measure links",
                              (void **)&p->memory) == LS_OK;
    if (!p->shared) {
        ls_err_clear();
        p->memory = ls_mem_alloc(LONG_BYTES);
    }
    return p->memory ? LS_OK
                     : ls_fail(LS_ENOMEM, "no memory for a message of %d bytes", (int)LONG_BYTES);
}

static void drop_memory(pair *p)
{
    if (p->shared)
        ls_comm_free(p->comm, p->memory);
    else
        ls_mem_free(p->memory);
}

static ls_status move(const pair *p, ls_coll_kind kind, void *memory, int64_t bytes, int64_t count)
{
    ls_coll coll = {.kind = kind, .type = LS_U8, .count = bytes, .in = memory, .peer = p->peer};
    ls_comm_request requests[BURST + 1];
    ls_status st = LS_OK;

    coll.out = memory;
    if (count == 1)
        return ls_comm_run(p->comm, &coll, p->deadline_ns);
    for (int64_t i = 0; i < count; i++)
        LS_TRY(st, ls_comm_start(p->comm, &coll, &requests[i]), out);
    for (int64_t i = 0; i < count; i++)
        LS_TRY(st, ls_comm_wait(p->comm, requests[i], p->deadline_ns), out);
out:
    return st;
}

/* The least time of all lots after the first `warm` ones. */
static ls_status ask(const pair *p, lots order, int64_t warm, double *ns_out)
{
    int64_t least = INT64_MAX;
    ls_status st;

    LS_TRY(st, move(p, LS_COLL_SEND, &order, sizeof order, 1), out);
    for (int64_t i = 0; i < order.times; i++) {
        int64_t begin = ls_time_now_ns();
        LS_TRY(st, move(p, LS_COLL_SEND, p->memory, order.bytes, order.count), out);
        LS_TRY(st, move(p, LS_COLL_RECV, p->memory, 1, 1), out);
        if (i >= warm)
            least = ls_min_i64(least, ls_time_now_ns() - begin);
    }
    *ns_out = (double)least;
out:
    return st;
}

static ls_status answer(const pair *p)
{
    lots order = {0};
    ls_status st = LS_OK;

    for (;;) {
        LS_TRY(st, move(p, LS_COLL_RECV, &order, sizeof order, 1), out);
        if (order.times == 0)
            goto out;
        if (order.bytes < 0 || order.bytes > LONG_BYTES || order.count < 1 ||
            order.count > BURST + 1) {
            st = ls_fail(LS_EDATA, "rank %d wants to measure %lld messages of %lld bytes", p->peer,
                         (long long)order.count, (long long)order.bytes);
            goto out;
        }
        for (int64_t i = 0; i < order.times; i++) {
            LS_TRY(st, move(p, LS_COLL_RECV, p->memory, order.bytes, order.count), out);
            LS_TRY(st, move(p, LS_COLL_SEND, p->memory, 1, 1), out);
        }
    }
out:
    return st;
}

static ls_status finish(const pair *p)
{
    lots order = {0};

    return move(p, LS_COLL_SEND, &order, sizeof order, 1);
}

static double at_least(double x, double least)
{
    return x > least ? x : least;
}

static ls_status measure_pair(const pair *p, ls_cost_link *link_out)
{
    double one, burst, brief, lengthy;
    ls_cost_link link;
    ls_status st;

    LS_TRY(st, ask(p, (lots){1, 1, PINGS}, 2, &one), out);
    LS_TRY(st, ask(p, (lots){1, BURST + 1, LOTS}, 1, &burst), out);
    LS_TRY(st, ask(p, (lots){SHORT_BYTES, 1, 1}, 0, &brief), out);
    /* What follows is sized to take some milliseconds. A fast link lets more pass after a rest. */
    int64_t warm = brief < SLOW_NS / 2, bytes = brief < SLOW_NS ? LONG_BYTES : SHORT_BYTES / 2;
    int64_t times = brief < SLOW_NS ? 2 + warm : 1;
    LS_TRY(st, ask(p, (lots){bytes, 1, times}, warm, &lengthy), out);
    link.ns_per_byte = (lengthy - one) / (double)bytes;
    LS_TRY(st, finish(p), out);
    /* No link carries 1000 Gbit/s: the short messages were disturbed. Half is near enough. */
    if (link.ns_per_byte < FASTEST_NS_PER_BYTE)
        link.ns_per_byte = at_least(lengthy / 2 / (double)bytes, FASTEST_NS_PER_BYTE);
    link.message_ns = at_least((burst - one) / BURST, 10);
    link.message_ns = link.message_ns < one / 2 ? link.message_ns : one / 2;
    link.alpha_ns = at_least(one / 2 - link.message_ns, 10);
    *link_out = link;
out:
    return st;
}

/* --- all pairs --------------------------------------------------------------------------------*/

static int node_at(const ls_comm *c, int member)
{
    return c->fabric->members[c->world[member]].node;
}

/* The i-th member of a rank's node, or -1. */
static int member_of(const ls_comm *c, int node, int i)
{
    for (int r = 0; r < c->ranks; r++)
        if (node_at(c, r) == node && i-- == 0)
            return r;
    return -1;
}

/* First members of all nodes, in order of rank. Returns how many; *own_out is this rank's place, or
 * -1. */
static int first_members(const ls_comm *c, int *list, int *own_out)
{
    int n = 0;

    *own_out = -1;
    for (int r = 0; r < c->ranks; r++) {
        if (member_of(c, node_at(c, r), 0) != r)
            continue;
        if (r == c->rank)
            *own_out = n;
        list[n++] = r;
    }
    return n;
}

static void keep_larger(ls_cost_link *a, const ls_cost_link *b)
{
    a->alpha_ns = at_least(a->alpha_ns, b->alpha_ns);
    a->message_ns = at_least(a->message_ns, b->message_ns);
    a->ns_per_byte = at_least(a->ns_per_byte, b->ns_per_byte);
}

/* One pair, from whichever side this rank is on. */
static ls_status meet(pair *p, int from, int to, ls_cost_link *link)
{
    ls_cost_link one;
    ls_status st = LS_OK;

    if (p->comm->rank == to) {
        p->peer = from;
        st = answer(p);
    } else if (p->comm->rank == from) {
        p->peer = to;
        LS_TRY(st, measure_pair(p, &one), out);
        keep_larger(link, &one);
    }
out:
    return st;
}

static ls_status measure_between(pair *p, const int *firsts, int n, ls_cost_link *link)
{
    ls_status st = LS_OK;

    for (int round = 0; round < 3; round++)
        for (int i = 0; i < n; i++) {
            bool odd_last = n % 2 == 1 && i == n - 1;
            if (round == (odd_last ? 2 : i % 2))
                LS_TRY(st, meet(p, firsts[i], firsts[(i + 1) % n], link), out);
        }
out:
    return st;
}

ls_status ls_tune_agree(ls_comm *comm, const ls_cost_link links[2], int64_t deadline_ns)
{
    ls_tune *t = &comm->tune;
    ls_cost_link both[2] = {links[0], links[1]};
    ls_status st;

    _Static_assert(sizeof both == 6 * sizeof(double), "numbers travel as a row");
    LS_TRY(st, check_idle(comm), out);
    LS_TRY(st, largest(comm, LS_F64, both, 6, deadline_ns), out);
    if (both[0].ns_per_byte > 0) {
        t->between = both[0];
        t->has_between = true;
    }
    if (both[1].ns_per_byte > 0) {
        t->inside = both[1];
        t->has_inside = true;
    }
    t->source = LS_TUNE_MEASURED;
    forget_plans(comm);
out:
    return st;
}

/* Over the carriers, also where all ranks reach each other's memory. */
static ls_status measure_here(ls_comm *c, pair *p, ls_cost_link links[2])
{
    int *firsts = ls_mem_array((size_t)c->ranks, sizeof *firsts), own;
    int first = member_of(c, node_at(c, c->rank), 0);
    int second = member_of(c, node_at(c, c->rank), 1);
    const ls_algo *before = c->forced;
    ls_status st = LS_OK;

    if (!firsts)
        return ls_fail(LS_ENOMEM, "no memory for a list of %d ranks", c->ranks);
    int n = first_members(c, firsts, &own);
    LS_TRY(st, ls_comm_force(c, "direct"), out);
    if (n > 1)
        LS_TRY(st, measure_between(p, firsts, n, &links[0]), out);
    if (second >= 0)
        LS_TRY(st, meet(p, first, second, &links[1]), out);
    LS_TRY(st, ls_comm_force(c, before ? before->name : NULL), out);
out:
    ls_mem_free(firsts);
    return st;
}

ls_status ls_tune_measure(ls_comm *comm, int64_t deadline_ns)
{
    ls_comm *c = comm;
    pair p = {.comm = c, .deadline_ns = deadline_ns};
    ls_cost_link links[2] = {{.alpha_ns = 0}, {.alpha_ns = 0}};
    int64_t took = ls_time_now_ns();
    ls_status st = LS_OK;

    if (c->ranks == 1)
        return LS_OK;
    LS_TRY(st, check_idle(c), out);
    LS_TRY(st, take_memory(&p), out);
    LS_TRY(st, measure_here(c, &p, links), out);
    LS_TRY(st, ls_tune_agree(c, links, deadline_ns), out);
    took = ls_time_now_ns() - took;
    LS_TRY(st, largest(c, LS_I64, &took, 1, deadline_ns), out);
    c->tune.took_ns = took;
out:
    drop_memory(&p);
    return st;
}

/* --- remembering ------------------------------------------------------------------------------*/

/* Rank 0 only. A cache that cannot be written is none: nothing fails for it. */
static void save(const ls_comm *c)
{
    char topology[LS_TUNE_TOPOLOGY];

    if (c->rank != 0 || !c->tune.path[0])
        return;
    if (ls_tune_file_topology(c, topology) != LS_OK ||
        ls_tune_file_write(c->tune.path, topology, &c->tune) != LS_OK) {
        ls_log(LS_LOG_DEBUG, "link numbers are not kept: %s", ls_err_last()->text);
        ls_err_clear();
    }
}

static void recall(const ls_comm *c, ls_tune *t)
{
    const char *word = getenv("LINESHAFT_TUNE");
    char topology[LS_TUNE_TOPOLOGY];

    t->off = word && strcmp(word, "off") == 0;
    if (t->off)
        return;
    ls_status st = ls_tune_file_topology(c, topology);
    if (st == LS_OK)
        ls_tune_file_path(topology, t->path);
    if (t->path[0])
        st = ls_tune_file_read(t->path, topology, t);
    if (st == LS_EDATA)
        ls_log(LS_LOG_WARN, "%s; they are measured anew", ls_err_last()->text);
    if (st != LS_OK)
        ls_err_clear();
}

/* Whether the first link is still what it was, by one message; the rank that sends it knows. */
static ls_status look_again(ls_comm *c, int64_t deadline_ns, bool *changed_out)
{
    pair p = {.comm = c, .deadline_ns = deadline_ns};
    const ls_cost_link *l = &c->tune.between;
    int to = 0;
    double ns, want = 2 * (l->alpha_ns + l->message_ns) + SHORT_BYTES * l->ns_per_byte;
    ls_status st = LS_OK;

    while (to < c->ranks && node_at(c, to) == node_at(c, 0))
        to++;
    if (c->rank == 0 || c->rank == to)
        LS_TRY(st, take_memory(&p), out);
    p.peer = c->rank == 0 ? to : 0;
    if (c->rank == to)
        LS_TRY(st, answer(&p), out);
    if (c->rank == 0) {
        lots order = {SHORT_BYTES, 1, want < SLOW_NS ? LOTS : 1};
        LS_TRY(st, ask(&p, order, order.times > 1, &ns), out);
        LS_TRY(st, finish(&p), out);
        *changed_out = ns > changed * want || ns < want / changed;
    }
    st = tell(c, changed_out, sizeof *changed_out, deadline_ns);
out:
    drop_memory(&p);
    return st;
}

ls_status ls_tune_open(ls_comm *comm, int64_t deadline_ns)
{
    ls_comm *c = comm;
    bool differs = false;
    ls_tune t;
    ls_status st = LS_OK;

    if (c->ranks == 1)
        return LS_OK;
    LS_TRY(st, check_idle(c), out);
    ls_tune_init(&t);
    if (c->rank == 0)
        recall(c, &t);
    LS_TRY(st, tell(c, &t, sizeof t, deadline_ns), out);
    c->tune = t;
    forget_plans(c);
    bool known = c->near ? t.has_inside : t.has_between;
    if (t.off)
        goto out;
    if (known && !c->near) {
        LS_TRY(st, look_again(c, deadline_ns, &differs), out);
        known = !differs;
    }
    if (known)
        goto out;
    c->tune.picks = 0; /* made on another link */
    LS_TRY(st, ls_tune_measure(c, deadline_ns), out);
    save(c);
out:
    return st;
}

/* --- settling ---------------------------------------------------------------------------------*/

static ls_status time_run(void *context, ls_comm *comm, const ls_coll *coll, int64_t deadline_ns,
                          int64_t *ns_out)
{
    ls_status st;

    (void)context;
    int64_t begin = ls_time_now_ns();
    LS_TRY(st, ls_comm_run(comm, coll, deadline_ns), out);
    *ns_out = ls_time_now_ns() - begin;
out:
    return st;
}

/* The two cheapest, if they are near each other. */
static bool is_close(const ls_cost_choice *choice, int two_out[2])
{
    two_out[0] = choice->best;
    two_out[1] = -1;
    for (int i = 0; i < choice->count; i++) {
        const ls_cost_candidate *row = &choice->rows[i];
        if (i != choice->best && !row->refuses &&
            (two_out[1] < 0 || row->time_ns < choice->rows[two_out[1]].time_ns))
            two_out[1] = i;
    }
    return two_out[0] >= 0 && two_out[1] >= 0 && choice->rows[two_out[0]].time_ns > 0 &&
           choice->rows[two_out[1]].time_ns <= nearly * choice->rows[two_out[0]].time_ns;
}

typedef struct settling {
    ls_comm *comm;
    ls_coll coll; /* on scratch buffers */
    ls_tune_timer timer;
    void *context;
    int64_t deadline_ns;
} settling;

/* Calls of both in turn, so that what disturbs, disturbs both. */
static ls_status time_both(settling *s, const ls_algo *const two[2], int64_t least_out[2])
{
    int64_t times[2 * SETTLE_CALLS];
    ls_status st = LS_OK;

    for (int i = 0; i < 2 * SETTLE_CALLS; i++) {
        LS_TRY(st, ls_comm_force(s->comm, NULL), out);
        LS_TRY(st,
               ls_comm_run(s->comm, &(ls_coll){.kind = LS_COLL_BARRIER, .type = LS_U8},
                           s->deadline_ns),
               out);
        LS_TRY(st, ls_comm_force(s->comm, two[i % 2]->name), out);
        LS_TRY(st, s->timer(s->context, s->comm, &s->coll, s->deadline_ns, &times[i]), out);
    }
    LS_TRY(st, ls_comm_force(s->comm, NULL), out);
    LS_TRY(st, largest(s->comm, LS_I64, times, 2 * SETTLE_CALLS, s->deadline_ns), out);
    least_out[0] = least_out[1] = INT64_MAX;
    for (int i = 2; i < 2 * SETTLE_CALLS; i++) /* the first of each warms up */
        least_out[i % 2] = ls_min_i64(least_out[i % 2], times[i]);
out:
    return st;
}

static void keep(ls_comm *c, const ls_coll *coll, const ls_algo *const two[2],
                 const int64_t least[2])
{
    int size = (int)ls_dtype_bytes(coll->type), won = least[1] < least[0];
    ls_tune_pick *p = &c->tune.pick[c->tune.picks++];

    *p = (ls_tune_pick){.kind = (int)coll->kind,
                        .ranks = c->ranks,
                        .size = size,
                        .bytes = coll->count * size,
                        .way_ns = (double)least[won],
                        .other_ns = (double)least[!won]};
    snprintf(p->way, sizeof p->way, "%s", two[won]->name);
    snprintf(p->other, sizeof p->other, "%s", two[!won]->name);
    if (c->rank == 0)
        ls_log(LS_LOG_INFO, "%s of %lld bytes goes by %s: %.0f us, by %s %.0f us",
               ls_coll_kind_name(coll->kind), (long long)p->bytes, p->way, p->way_ns / 1e3,
               p->other, p->other_ns / 1e3);
    forget_plans(c);
    save(c);
}

static int64_t trial_bytes(const ls_comm *c, const ls_coll *coll)
{
    bool parts = coll->kind == LS_COLL_ALL_TO_ALL || coll->kind == LS_COLL_GATHER;

    return ls_round_up(coll->count * ls_dtype_bytes(coll->type), 4096) * (parts ? c->ranks : 1);
}

/* Scratch for one call on all ranks, or on none. */
static ls_status take_scratch(settling *s, int64_t bytes, char **memory_out, bool *all_out)
{
    int64_t lacks;
    char *memory = NULL;
    ls_status st;

    lacks = ls_comm_alloc(s->comm, 2 * bytes, "a trial", (void **)&memory) != LS_OK;
    *memory_out = memory;
    if (lacks)
        ls_err_clear();
    st = largest(s->comm, LS_I64, &lacks, 1, s->deadline_ns);
    *all_out = lacks == 0;
    return st;
}

/* Whether there is something to find out about a collective, between which two, and how long that
 * takes by the model. The same on all ranks. */
static bool is_open(const ls_comm *c, const ls_coll *coll, const ls_algo *two_out[2],
                    double *ns_out)
{
    ls_cost_choice choice;
    int rows[2];

    if (c->forced || c->tune.off || c->ranks == 1 || c->tune.picks == LS_TUNE_PICKS ||
        trial_bytes(c, coll) > SETTLE_BYTES || coll->in_counts || coll->out_counts ||
        coll->kind == LS_COLL_SEND || coll->kind == LS_COLL_RECV ||
        ls_flight_way(c, coll) != WAY_EXEC)
        return false;
    if (ls_tune_choose(c, coll, false, &choice) != LS_TUNE_BY_MODEL || !is_close(&choice, rows))
        return false;
    *ns_out = 0;
    for (int i = 0; i < 2; i++) {
        two_out[i] = choice.rows[rows[i]].algo;
        *ns_out += SETTLE_CALLS * choice.rows[rows[i]].time_ns;
    }
    return true;
}

ls_status ls_tune_settle(ls_comm *comm, const ls_coll *coll, ls_tune_timer timer, void *context,
                         int64_t deadline_ns)
{
    ls_comm *c = comm;
    settling s = {c, *coll, timer ? timer : time_run, context, deadline_ns};
    int64_t bytes = trial_bytes(c, coll), least[2];
    const ls_algo *two[2];
    char *memory = NULL;
    bool all = false;
    double ns;
    ls_status st = LS_OK;

    LS_TRY(st, check_idle(c), out);
    if (!is_open(c, coll, two, &ns))
        return LS_OK;
    LS_TRY(st, take_scratch(&s, bytes, &memory, &all), out);
    if (!all)
        goto out;
    s.coll.out = memory;
    s.coll.in = coll->in == coll->out ? memory : memory + bytes;
    LS_TRY(st, time_both(&s, two, least), out);
    keep(c, coll, two, least);
out:
    if (memory)
        ls_comm_free(c, memory);
    return st;
}

/* Picks do not tell sums from maxima, nor numbers that round from those that do not. */
static bool may_round(const ls_coll *coll)
{
    return coll->kind == LS_COLL_ALL_REDUCE || coll->kind == LS_COLL_REDUCE_SCATTER;
}

ls_status ls_tune_settle_used(ls_comm *comm, bool sums, int64_t budget_ns, int64_t deadline_ns)
{
    ls_comm *c = comm;
    const ls_algo *two[2];
    double left = (double)budget_ns, ns;
    ls_status st = LS_OK;

    LS_TRY(st, check_idle(c), out);
    if (c->seen_enough)
        goto out;
    c->seen_enough = true; /* trials are not noted */
    for (int i = 0; i < c->seen_count; i++) {
        const ls_coll *coll = &c->seen[i].coll;
        if (c->seen[i].uses < 2 || (!sums && may_round(coll)) || !is_open(c, coll, two, &ns) ||
            ns > left)
            continue;
        left -= ns;
        LS_TRY(st, ls_tune_settle(c, coll, NULL, NULL, deadline_ns), out);
    }
out:
    return st;
}

/* --- explaining -------------------------------------------------------------------------------*/

static void add_row(ls_tune_table *t, ls_tune_row row, bool chosen)
{
    if (chosen)
        t->chosen = t->count;
    t->rows[t->count++] = row;
}

static void add_levels(const ls_comm *c, const ls_coll *coll, flight_way way, ls_tune_table *t)
{
    ls_tune_row row = {.way = "levels", .by = "levels", .predicted_ns = -1, .sent = -1};
    const ls_cost_nodes nodes = {.nodes = c->nodes,
                                 .per_node = c->per_node,
                                 .inside = c->tune.inside,
                                 .between = c->tune.between,
                                 .combine_ns_per_byte = c->tune.combine_ns_per_byte};
    ls_cost_levels levels;

    if (coll->kind != LS_COLL_ALL_REDUCE)
        row.refuses = "does not do this collective";
    else if (!c->levels)
        row.refuses = "needs several nodes with equally many ranks, more than one each";
    else {
        ls_cost_hierarchy(&nodes, coll, false, &levels);
        row.predicted_ns = levels.time_ns;
        row.sent = levels.wire / c->per_node;
        if (way != WAY_LEVELS)
            row.refuses = ls_dtype_bytes(coll->type) < 4
                              ? "passes sums on, which rounds 16-bit sums more than once"
                              : "is for longer buffers, or another way was forced";
    }
    add_row(t, row, way == WAY_LEVELS);
}

void ls_tune_explain(const ls_comm *comm, const ls_coll *coll, ls_tune_table *table_out)
{
    flight_way way = ls_flight_way(comm, coll);
    ls_cost_choice choice;

    *table_out = (ls_tune_table){.chosen = -1};
    ls_tune_why why = ls_tune_choose(comm, coll, false, &choice);
    table_out->why = way == WAY_EXEC ? why : LS_TUNE_BY_RULE;
    add_row(table_out,
            (ls_tune_row){.way = "direct",
                          .by = "memory",
                          .predicted_ns = -1,
                          .sent = -1,
                          .refuses = comm->near ? NULL : "needs all ranks on one node"},
            way == WAY_DIRECT);
    add_levels(comm, coll, way, table_out);
    for (int i = 0; i < choice.count; i++) {
        const ls_cost_candidate *row = &choice.rows[i];
        add_row(table_out,
                (ls_tune_row){.way = row->algo->name,
                              .by = "schedule",
                              .refuses = row->refuses,
                              .predicted_ns = row->refuses ? -1 : row->time_ns,
                              .sent = row->refuses ? -1 : row->sent},
                way == WAY_EXEC && i == choice.best);
    }
}
