/* tune.c -- which way each collective takes, from measured link numbers and timed trials.
 * tune_measure.c measures links, tune_explain.c shows all ways.
 *
 * No decision here makes ranks differ. Which ranks measure follows from the list of members; a
 * decision that depends on a clock or a file is made by one rank and sent to all, or by all ranks
 * from numbers that went through an all-reduce.
 *
 * Pairs of nodes. A schedule in which each rank sends to the next one runs at the pace of the
 * slowest link of that circle; every other schedule runs at the pace of the slowest link of all.
 * With one slow pair that is not a neighbour, a ring is therefore cheaper than its bytes suggest. A
 * measured pair counts when it is APART times faster or slower than the links usually are; less is
 * noise.
 *
 * Settling. Where the model expects 212 us for a ring and 234 for halving, the factor is 1.10, less
 * than `nearly`: both are timed, four calls each in turn. The first of each warms up; of the other
 * three the slowest rank of each call counts, and of the calls the fastest. Only then is the choice
 * made, noted for this size an eighth up and down, and written to the file.
 *
 * Levels. From LEVELS_MOST bytes on, levels are the rule: no other way sends fewer bytes between
 * nodes. For shorter buffers the model decides from which size on they are cheaper than one
 * schedule. */
#include "comm/tune.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "comm/tune_file.h"
#include "comm/tune_impl.h"

enum { SETTLE_CALLS = 4, SETTLE_BYTES = 64 << 20 };
enum { LEVELS_LEAST = 1 << 10, LEVELS_MOST = 256 << 10 };

static const double nearly = 1.2, apart = 1.5;

/* --- what all ranks know ----------------------------------------------------------------------*/

void ls_tune_init(ls_tune *tune)
{
    memset(tune, 0, sizeof *tune); /* it travels as bytes */
    tune->between = (ls_cost_link){.alpha_ns = 25000, .message_ns = 3000, .ns_per_byte = 8.5};
    tune->inside = (ls_cost_link){.alpha_ns = 400, .message_ns = 200, .ns_per_byte = 0.12};
    tune->memory = (ls_cost_memory){
        .meet_ns = 400, .cached_ns_per_byte = 0.08, .ns_per_byte = 0.12, .crowded = false};
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

void ls_tune_forget_plans(ls_comm *c)
{
    pthread_mutex_lock(&c->fabric->lock);
    for (int i = 0; i < COMM_PLANS; i++)
        c->plans[i].once_only = true;
    pthread_mutex_unlock(&c->fabric->lock);
}

/* Requests in flight forbid it: some ranks would start them before the numbers change, others
 * after, and go two ways. */
ls_status ls_tune_check_idle(ls_comm *comm)
{
    int up = atomic_load(&comm->up);

    return up == 0
               ? LS_OK
               : ls_fail(LS_EUSAGE, "links are measured while %d collectives are in flight", up);
}

ls_status ls_tune_tell(ls_comm *comm, void *bytes, int64_t count, int64_t deadline_ns)
{
    return ls_comm_run(
        comm,
        &(ls_coll){
            .kind = LS_COLL_BROADCAST, .type = LS_U8, .count = count, .in = bytes, .out = bytes},
        deadline_ns);
}

ls_status ls_tune_largest(ls_comm *comm, ls_dtype type, void *values, int64_t count,
                          int64_t deadline_ns)
{
    return ls_comm_run(comm,
                       &(ls_coll){.kind = LS_COLL_ALL_REDUCE,
                                  .op = LS_COLL_MAX,
                                  .type = type,
                                  .count = count,
                                  .in = values,
                                  .out = values},
                       deadline_ns);
}

/* --- what follows from it ---------------------------------------------------------------------*/

const ls_cost_link *ls_tune_between(const ls_comm *comm, int from, int to)
{
    for (int i = 0; i < comm->tune.pairs; i++)
        if (comm->tune.pair[i].from == from && comm->tune.pair[i].to == to)
            return &comm->tune.pair[i].link;
    return NULL;
}

void ls_tune_keep_larger(ls_cost_link *a, const ls_cost_link *b)
{
    a->alpha_ns = b->alpha_ns > a->alpha_ns ? b->alpha_ns : a->alpha_ns;
    a->message_ns = b->message_ns > a->message_ns ? b->message_ns : a->message_ns;
    a->ns_per_byte = b->ns_per_byte > a->ns_per_byte ? b->ns_per_byte : a->ns_per_byte;
}

static bool are_apart(double a, double b)
{
    return a > apart * b || b > apart * a;
}

/* The usual numbers, unless these are clearly others; zeros: none are known. */
static ls_cost_link or_usual(const ls_cost_link *link, const ls_cost_link *usual)
{
    bool other = link->ns_per_byte > 0 && (are_apart(link->ns_per_byte, usual->ns_per_byte) ||
                                           are_apart(link->alpha_ns, usual->alpha_ns));

    return other ? *link : *usual;
}

static bool has_node(const ls_comm *c, int node)
{
    for (int r = 0; r < c->ranks; r++)
        if (ls_comm_node(c, r) == node)
            return true;
    return false;
}

static ls_cost_link slowest_of_all(const ls_comm *c)
{
    ls_cost_link link = {.alpha_ns = 0};

    for (int i = 0; i < c->tune.pairs; i++) {
        const ls_tune_pair *p = &c->tune.pair[i];
        if (has_node(c, p->from) && has_node(c, p->to))
            ls_tune_keep_larger(&link, &p->link);
    }
    return or_usual(&link, &c->tune.between);
}

/* The slowest link of the circle of members; the usual one when a part of it was not measured. */
static ls_cost_link slowest_around(const ls_comm *c)
{
    ls_cost_link link = {.alpha_ns = 0};

    for (int r = 0; r < c->ranks; r++) {
        int from = ls_comm_node(c, r), to = ls_comm_node(c, (r + 1) % c->ranks);
        const ls_cost_link *one = from != to ? ls_tune_between(c, from, to) : &link;
        if (!one)
            return c->tune.between;
        ls_tune_keep_larger(&link, one);
    }
    return or_usual(&link, &c->tune.between);
}

ls_cost_nodes ls_tune_nodes(const ls_comm *comm)
{
    return (ls_cost_nodes){.nodes = comm->nodes,
                           .per_node = comm->per_node,
                           .memory = comm->tune.memory,
                           .between = comm->links.slowest,
                           .around = comm->links.around,
                           .combine_ns_per_byte = comm->tune.combine_ns_per_byte};
}

static int64_t levels_from(const ls_comm *c)
{
    const ls_cost_nodes nodes = ls_tune_nodes(c);
    int64_t from = LEVELS_MOST;

    for (int64_t bytes = LEVELS_MOST / 2; c->levels && bytes >= LEVELS_LEAST; bytes /= 2) {
        const ls_coll coll = {.kind = LS_COLL_ALL_REDUCE, .type = LS_F32, .count = bytes / 4};
        ls_cost_levels levels;
        ls_cost_hierarchy(&nodes, &coll, false, &levels);
        if (levels.time_ns >= levels.flat_ns)
            break;
        from = bytes;
    }
    return from;
}

void ls_tune_use(ls_comm *comm)
{
    comm->links.slowest = slowest_of_all(comm);
    comm->links.around = slowest_around(comm);
    comm->links.levels_bytes = levels_from(comm);
}

/* --- choosing ---------------------------------------------------------------------------------*/

/* A collective as a question to the model: the links that its messages take, in numbers that all
 * ranks agreed on. */
static ls_cost_query query_of(const ls_comm *c, const ls_coll *coll, bool across)
{
    ls_cost_query q = {.kind = coll->kind,
                       .ranks = c->ranks,
                       .peer = coll->peer,
                       .count = coll->count,
                       .size = ls_dtype_bytes(coll->type),
                       .link = c->one_node ? c->tune.inside : c->links.slowest,
                       .around = c->links.around,
                       .has_around = !c->one_node,
                       .combine_ns_per_byte = c->tune.combine_ns_per_byte,
                       .in_counts = coll->in_counts};

    if (c->levels) {
        const ls_cost_nodes nodes = ls_tune_nodes(c);
        ls_cost_over_nodes(&nodes, across, &q);
    }
    return q;
}

const ls_tune_pick *ls_tune_find_pick(const ls_comm *c, const ls_coll *coll)
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

/* In this order: what ls_comm_force() asks for, what a trial settled, what the model predicts. */
ls_tune_why ls_tune_choose(const ls_comm *c, const ls_coll *coll, bool across,
                           ls_cost_choice *choice_out)
{
    const ls_algo *forced = ls_comm_forced(c, coll->kind);
    const ls_cost_query query = query_of(c, coll, across);
    ls_tune_why why = LS_TUNE_BY_MODEL;

    ls_cost_choose(&query, coll, false, choice_out);
    if (forced) {
        choice_out->best = row_of(choice_out, forced->name);
        return LS_TUNE_BY_FORCE;
    }
    if (coll->kind == LS_COLL_GATHER) { /* each rank knows only its own count: none chooses by it */
        choice_out->best = row_of(choice_out, "direct");
        return why;
    }
    const ls_tune_pick *pick =
        across || coll->in_counts || coll->out_counts ? NULL : ls_tune_find_pick(c, coll);
    int row = pick ? row_of(choice_out, pick->way) : -1;
    if (row >= 0) {
        choice_out->best = row;
        why = pick->remembered ? LS_TUNE_BY_MEMORY : LS_TUNE_BY_MEASURE;
    }
    return why;
}

/* --- remembering ------------------------------------------------------------------------------*/

/* Rank 0 only. A cache that cannot be written is left out: nothing fails for it. */
static void save(const ls_comm *c)
{
    char topology[LS_TUNE_TOPOLOGY];

    if (c->rank != 0 || !c->tune.path[0])
        return;
    ls_tune kept = c->tune;
    if (ls_tune_file_topology(c, topology) != LS_OK ||
        ls_tune_file_number(c, &kept, LS_TUNE_POSITIONS) != LS_OK ||
        ls_tune_file_write(c->tune.path, topology, &kept) != LS_OK) {
        ls_log(LS_LOG_DEBUG, "link numbers are not kept: %s", ls_err_last()->text);
        ls_err_clear();
    }
}

/* Rank 0: what the file of this topology has. A damaged file is reported, and everything is
 * measured anew. */
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
    if (st == LS_OK)
        st = ls_tune_file_number(c, t, LS_TUNE_NODES);
    if (st == LS_EDATA)
        ls_log(LS_LOG_WARN, "%s; they are measured anew", ls_err_last()->text);
    if (st != LS_OK)
        ls_err_clear();
}

ls_status ls_tune_open(ls_comm *c, int64_t deadline_ns)
{
    bool differs = false;
    ls_tune t;
    ls_status st = LS_OK;

    if (c->ranks == 1)
        return LS_OK;
    LS_TRY(st, ls_tune_check_idle(c), out);
    ls_tune_init(&t);
    if (c->rank == 0)
        recall(c, &t);
    LS_TRY(st, ls_tune_tell(c, &t, sizeof t, deadline_ns), out);
    c->tune = t;
    ls_tune_use(c);
    ls_tune_forget_plans(c);
    bool known = c->one_node ? t.has_inside && t.has_memory : t.has_between;
    if (t.off)
        goto out;
    if (known && !c->one_node) {
        LS_TRY(st, ls_tune_look_again(c, deadline_ns, &differs), out);
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

static ls_status time_run(void *context LS_UNUSED, ls_comm *comm, const ls_coll *coll,
                          int64_t deadline_ns, int64_t *ns_out)
{
    int64_t begin = ls_time_now_ns();
    ls_status st = ls_comm_run(comm, coll, deadline_ns);

    if (st == LS_OK)
        *ns_out = ls_time_now_ns() - begin;
    return st;
}

/* The two cheapest, if their times are close. */
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

/* Calls of both in turn, so that a disturbance hits both. */
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
    LS_TRY(st, ls_tune_largest(s->comm, LS_I64, times, 2 * SETTLE_CALLS, s->deadline_ns), out);
    least_out[0] = least_out[1] = INT64_MAX;
    for (int i = 2; i < 2 * SETTLE_CALLS; i++) /* the first of each warms up */
        least_out[i % 2] = ls_min_i64(least_out[i % 2], times[i]);
out:
    return st;
}

/* Note the winner of a trial for collectives of this kind and size, log it, and write the file. */
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
    ls_tune_forget_plans(c);
    save(c);
}

static int64_t trial_bytes(const ls_comm *c, const ls_coll *coll)
{
    bool parts = coll->kind == LS_COLL_ALL_TO_ALL || coll->kind == LS_COLL_GATHER;

    return ls_round_up(coll->count * ls_dtype_bytes(coll->type), 4096) * (parts ? c->ranks : 1);
}

ls_status ls_tune_scratch(ls_comm *comm, int64_t bytes, int64_t deadline_ns, char **memory_out,
                          bool *all_out)
{
    char *memory = NULL;

    int64_t lacks = ls_comm_alloc(comm, bytes, "a trial", (void **)&memory) != LS_OK;
    *memory_out = memory;
    if (lacks)
        ls_err_clear();
    ls_status st = ls_tune_largest(comm, LS_I64, &lacks, 1, deadline_ns);
    *all_out = lacks == 0;
    return st;
}

/* Whether a trial would decide something about a collective, between which two ways, and how long
 * the model expects it to take. The same on all ranks. */
static bool is_open(const ls_comm *c, const ls_coll *coll, const ls_algo *two_out[2],
                    double *ns_out)
{
    ls_cost_choice choice;
    int rows[2];

    if (c->forced || c->force_levels || c->tune.off || c->ranks == 1 ||
        c->tune.picks == LS_TUNE_PICKS || trial_bytes(c, coll) > SETTLE_BYTES || coll->in_counts ||
        coll->out_counts || ls_coll_is_message(coll->kind) ||
        ls_request_way(c, coll) != LS_WAY_EXEC)
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

ls_status ls_tune_settle(ls_comm *c, const ls_coll *coll, ls_tune_timer timer, void *context,
                         int64_t deadline_ns)
{
    settling s = {c, *coll, timer ? timer : time_run, context, deadline_ns};
    int64_t bytes = trial_bytes(c, coll), least[2];
    const ls_algo *two[2];
    char *memory = NULL;
    bool all = false;
    double ns;
    ls_status st = LS_OK;

    LS_TRY(st, ls_tune_check_idle(c), out);
    if (!is_open(c, coll, two, &ns))
        return LS_OK;
    LS_TRY(st, ls_tune_scratch(c, 2 * bytes, deadline_ns, &memory, &all), out);
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

ls_status ls_tune_settle_used(ls_comm *c, bool sums, int64_t budget_ns, int64_t deadline_ns)
{
    const ls_algo *two[2];
    double left = (double)budget_ns, ns;
    ls_status st = LS_OK;

    LS_TRY(st, ls_tune_check_idle(c), out);
    if (c->seen_enough)
        goto out;
    c->seen_enough = true; /* trials are not noted */
    for (int i = 0; i < c->seen_count; i++) {
        const ls_coll *coll = &c->seen[i].coll;
        /* Picks do not distinguish sums from maxima, nor types that round from others. */
        if (c->seen[i].uses < 2 || (!sums && ls_coll_reduces(coll->kind)) ||
            !is_open(c, coll, two, &ns) || ns > left)
            continue;
        left -= ns;
        LS_TRY(st, ls_tune_settle(c, coll, NULL, NULL, deadline_ns), out);
    }
out:
    return st;
}
