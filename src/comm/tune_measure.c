/* tune_measure.c -- measures the links between nodes and the memory of a node.
 *
 * Links. On each node the first member measures. Node i takes node i + d, so that every node's port
 * out and port in are used. These pairs form circles of nodes; in each circle the pairs take turns,
 * and a circle with an odd number of nodes needs a third turn for its last pair:
 *
 *     d = 1:   0 -> 1   2 -> 3        1 -> 2   3 -> 0        odd: last -> 0
 *     d = 2:   0 -> 2   1 -> 3        2 -> 0   3 -> 1
 *
 * d = 1 is measured with care, and its slowest pair is the number that stands for all. The other
 * distances (all of them up to EVERY_NODES nodes, then powers of two, as long as LS_TUNE_PAIRS
 * holds the pairs) are measured briefly, to find pairs that differ. So a start takes 3 turns for
 * each of at most EVERY_NODES distances, however many nodes there are.
 *
 * Inside each node, the first member measures with the member farthest from it, as hwloc sees their
 * cores. In a pair one side asks for a number of series, and for the count and length of the
 * messages in one; after each series the other side answers with one byte. In the terms of cost.h:
 *
 *     1 message of 1 byte      T1 = 2 (alpha + message)
 *     33 messages of 1 byte    T33 - T1 = 32 message
 *     1 message of B bytes     TB - T1 = B ns_per_byte
 *
 * The least of a few series counts, because every disturbance makes one longer. A shaped link lets
 * some bytes pass at once after a rest, so a message that is not counted goes before the long ones,
 * which follow each other without a rest. Then the largest value of all pairs counts; an all-reduce
 * that still uses the earlier numbers finds it.
 *
 * Memory. All ranks of a node call what node/shm_coll.h does: barriers, which are one meeting, then
 * all-reduces of two lengths, whose meetings and bytes cost.h counts. Of each call the slowest rank
 * of all nodes counts, and of the calls the fastest. */
#include "comm/tune.h"

#include <string.h>
#include "base/mem.h"
#include "base/time.h"
#include "comm/node/shm_segment_impl.h"
#include "comm/tune_impl.h"

enum { BURST = 32, SHORT_BYTES = 256 << 10, LONG_BYTES = 640 << 10, REPEATS = 3, PINGS = 24 };
enum { SLOW_NS = 6000000, BRIEF_PINGS = 8, EVERY_NODES = 8, MEMORY_CALLS = 9, MEMORY_WARM = 2 };

static const double changed = 2.5, fastest = 0.008; /* ns for a byte */

/* --- one pair ---------------------------------------------------------------------------------*/

typedef struct series {
    int64_t bytes, count, times; /* times 0: that was all */
} series;

typedef struct pair {
    ls_comm *comm;
    int peer;
    char *memory; /* LONG_BYTES */
    bool shared;  /* it lies in the memory of the node */
    int64_t deadline_ns;
} pair;

/* In the memory of the node, where buffers usually lie; when it is full, in the heap. */
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

/* The least time of all series after the first `warm` ones. */
static ls_status ask(const pair *p, series order, int64_t warm, double *ns_out)
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

/* The side that is asked: receive each series as it was ordered, and answer with one byte, until an
 * empty order ends it. What an order may ask for is limited. */
static ls_status answer(const pair *p)
{
    series order = {0};
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
    series order = {0};

    return move(p, LS_COLL_SEND, &order, sizeof order, 1);
}

static double at_least(double x, double least)
{
    return x > least ? x : least;
}

/* The time of a byte; one: a message of one byte, there and back. */
static ls_status time_bytes(const pair *p, bool brief, double one, double *ns_per_byte_out)
{
    int64_t short_bytes = brief ? SHORT_BYTES / 2 : SHORT_BYTES,
            slow_ns = brief ? SLOW_NS / 2 : SLOW_NS;
    int64_t long_bytes = brief ? SHORT_BYTES : LONG_BYTES;
    double first, lengthy;
    ls_status st;

    LS_TRY(st, ask(p, (series){short_bytes, 1, 1}, 0, &first), out);
    /* The series that follow are sized to take some milliseconds. A fast link lets more pass after
     * a rest. */
    bool slow = first >= (double)slow_ns;
    int64_t warm = first < (double)slow_ns / 2, bytes = slow ? short_bytes / 2 : long_bytes;
    int64_t times = slow ? 1 : 2 - brief + warm;
    LS_TRY(st, ask(p, (series){bytes, 1, times}, warm, &lengthy), out);
    double ns = (lengthy - one) / (double)bytes;
    /* No link carries 1000 Gbit/s: the short messages were disturbed. Half is close enough. */
    *ns_per_byte_out = ns < fastest ? at_least(lengthy / 2 / (double)bytes, fastest) : ns;
out:
    return st;
}

static ls_status measure_pair(const pair *p, bool brief, ls_cost_link *link_out)
{
    double one, burst;
    ls_cost_link link;
    ls_status st;

    LS_TRY(st, ask(p, (series){1, 1, brief ? BRIEF_PINGS : PINGS}, 2, &one), out);
    LS_TRY(st, ask(p, (series){1, BURST + 1, brief ? REPEATS - 1 : REPEATS}, 1, &burst), out);
    LS_TRY(st, time_bytes(p, brief, one, &link.ns_per_byte), out);
    LS_TRY(st, finish(p), out);
    link.message_ns = at_least((burst - one) / BURST, 10);
    link.message_ns = link.message_ns < one / 2 ? link.message_ns : one / 2;
    link.alpha_ns = at_least(one / 2 - link.message_ns, 10);
    *link_out = link;
out:
    return st;
}

/* --- all pairs --------------------------------------------------------------------------------*/

/* First members of all nodes, in order of rank. Returns how many. */
static int first_members(const ls_comm *c, int *list)
{
    int n = 0;

    for (int r = 0; r < c->ranks; r++) {
        bool known = false;
        for (int i = 0; i < n && !known; i++)
            known = ls_comm_node(c, list[i]) == ls_comm_node(c, r);
        if (!known)
            list[n++] = r;
    }
    return n;
}

/* One pair, from whichever side this rank is on; *link is set on the side that asks. */
static ls_status meet(pair *p, int from, int to, bool brief, ls_cost_link *link)
{
    if (p->comm->rank == to) {
        p->peer = from;
        return answer(p);
    }
    if (p->comm->rank != from)
        return LS_OK;
    p->peer = to;
    return measure_pair(p, brief, link);
}

int ls_tune_distance(int n, int k)
{
    int d = n <= EVERY_NODES ? k + 1 : k < 30 ? 1 << k : n;

    return d < n && (k == 0 || (k + 1) * n <= LS_TUNE_PAIRS) ? d : 0;
}

int ls_tune_turn(int n, int d, int i)
{
    int a = n, circles = d;

    while (a % circles) { /* their greatest common divisor */
        int rest = a % circles;
        a = circles;
        circles = rest;
    }
    int length = n / circles, at = i % circles, place = 0;
    for (; at != i; place++)
        at = (at + d) % n;
    return length % 2 == 1 && place == length - 1 ? 2 : place % 2;
}

/* links: of the pairs, k n + i from node i at the k-th distance. */
static ls_status measure_between(pair *p, const int *firsts, int n, ls_cost_link *links)
{
    ls_status st = LS_OK;

    for (int k = 0, d; (d = ls_tune_distance(n, k)) > 0; k++)
        for (int turn = 0; turn < 3; turn++)
            for (int i = 0; i < n; i++)
                if (ls_tune_turn(n, d, i) == turn)
                    LS_TRY(st, meet(p, firsts[i], firsts[(i + d) % n], k > 0, &links[k * n + i]),
                           out);
out:
    return st;
}

/* The member of this node that is farthest from this rank, its first one; -1: there is no other.
 * places NULL: the next one. */
static int farthest(const ls_comm *c, int first, const ls_cpus_place *places)
{
    int other = -1, most = -1;

    for (int r = first + 1; r < c->ranks; r++) {
        int away = places ? (int)ls_cpus_between(&places[first], &places[r]) : 0;
        if (ls_comm_node(c, r) == ls_comm_node(c, first) && away > most) {
            other = r;
            most = away;
        }
    }
    return other;
}

ls_status ls_tune_places(ls_comm *comm, int64_t deadline_ns, ls_cpus_place *places_out)
{
    _Static_assert(sizeof *places_out == 4 * sizeof(int32_t), "places travel as a row");
    for (int r = 0; r < comm->ranks; r++)
        places_out[r] = (ls_cpus_place){-1, -1, -1, -1};
    places_out[comm->rank] = ls_cpus_here();
    return ls_tune_largest(comm, LS_I32, places_out, 4 * (int64_t)comm->ranks, deadline_ns);
}

/* Whether a node has more than two members: then it matters which two measure. */
static bool has_three(const ls_comm *c, const int *firsts, int n)
{
    for (int i = 0; i < n; i++) {
        int members = 0;
        for (int r = 0; r < c->ranks; r++)
            members += ls_comm_node(c, r) == ls_comm_node(c, firsts[i]);
        if (members > 2)
            return true;
    }
    return false;
}

/* On each node its first member with the one farthest from it. Where cores lie matters from three
 * members on. */
static ls_status measure_inside(pair *p, const int *firsts, int n, ls_cost_link *link)
{
    ls_comm *c = p->comm;
    ls_cpus_place *places = NULL;
    ls_status st = LS_OK;

    if (has_three(c, firsts, n)) {
        places = ls_mem_array((size_t)c->ranks, sizeof *places);
        if (!places)
            return ls_fail(LS_ENOMEM, "no memory for the places of %d ranks", c->ranks);
        LS_TRY(st, ls_tune_places(c, p->deadline_ns, places), out);
    }
    for (int i = 0; i < n; i++) {
        int other = farthest(c, firsts[i], places);
        if (other >= 0)
            LS_TRY(st, meet(p, firsts[i], other, false, link), out);
    }
out:
    ls_mem_free(places);
    return st;
}

ls_status ls_tune_agree(ls_comm *comm, const ls_cost_link links[2], int64_t deadline_ns)
{
    ls_tune *t = &comm->tune;
    ls_cost_link both[2] = {links[0], links[1]};
    ls_status st;

    _Static_assert(sizeof both == 6 * sizeof(double), "numbers travel as a row");
    LS_TRY(st, ls_tune_check_idle(comm), out);
    LS_TRY(st, ls_tune_largest(comm, LS_F64, both, 6, deadline_ns), out);
    if (both[0].ns_per_byte > 0) {
        t->between = both[0];
        t->has_between = true;
    }
    if (both[1].ns_per_byte > 0) {
        t->inside = both[1];
        t->has_inside = true;
    }
    t->source = LS_TUNE_MEASURED;
    ls_tune_use(comm);
    ls_tune_forget_plans(comm);
out:
    return st;
}

/* Every pair was measured by one rank; those of others are zero there. */
static ls_status agree_on_pairs(ls_comm *c, const int *firsts, int n, ls_cost_link *links,
                                int64_t deadline_ns)
{
    ls_tune *t = &c->tune;
    int distances = 0;
    ls_status st = LS_OK;

    t->pairs = 0;
    while (ls_tune_distance(n, distances) > 0)
        distances++;
    if (distances == 0 || distances * n > LS_TUNE_PAIRS)
        goto out;
    LS_TRY(st, ls_tune_largest(c, LS_F64, links, 3 * (int64_t)distances * n, deadline_ns), out);
    for (int i = 0; i < distances * n; i++)
        t->pair[t->pairs++] =
            (ls_tune_pair){.from = ls_comm_node(c, firsts[i % n]),
                           .to = ls_comm_node(c, firsts[(i + ls_tune_distance(n, i / n)) % n]),
                           .link = links[i]};
    ls_tune_use(c);
    ls_tune_forget_plans(c);
out:
    return st;
}

/* The numbers of the circle of nodes stand for all. */
static ls_cost_link largest_of(const ls_cost_link *links, int n)
{
    ls_cost_link most = {.alpha_ns = 0};

    for (int i = 0; i < n; i++)
        ls_tune_keep_larger(&most, &links[i]);
    return most;
}

/* Over the transports, even where all ranks reach each other's memory. */
static ls_status measure_links(ls_comm *c, pair *p)
{
    int *firsts = ls_mem_array((size_t)c->ranks, sizeof *firsts);
    size_t room = (size_t)ls_max_i64(LS_TUNE_PAIRS, c->ranks);
    ls_cost_link *links = ls_mem_array(room, sizeof *links), both[2] = {{.alpha_ns = 0}};
    const ls_algo *before = c->forced;
    const char *forced = c->force_levels ? "levels" : before ? before->name : NULL;
    ls_status st = LS_OK;

    if (!firsts || !links) {
        st = ls_fail(LS_ENOMEM, "no memory for a list of %d ranks", c->ranks);
        goto out;
    }
    memset(links, 0, room * sizeof *links);
    int n = first_members(c, firsts);
    LS_TRY(st, ls_comm_force(c, "direct"), out);
    LS_TRY(st, measure_between(p, firsts, n, links), out);
    LS_TRY(st, measure_inside(p, firsts, n, &both[1]), out);
    LS_TRY(st, ls_comm_force(c, forced), out);
    both[0] = largest_of(links, n);
    LS_TRY(st, ls_tune_agree(c, both, p->deadline_ns), out);
    st = agree_on_pairs(c, firsts, n, links, p->deadline_ns);
out:
    ls_mem_free(links);
    ls_mem_free(firsts);
    return st;
}

/* --- memory -----------------------------------------------------------------------------------*/

/* The same on all ranks. */
static ls_status time_direct(ls_comm *c, const ls_coll *coll, int64_t deadline_ns, double *ns_out)
{
    const ls_coll barrier = {.kind = LS_COLL_BARRIER, .type = LS_U8};
    int64_t times[MEMORY_CALLS];
    ls_status st = LS_OK;

    for (int i = -MEMORY_WARM; i < MEMORY_CALLS && st == LS_OK; i++) {
        st = ls_shm_coll_run(c->direct, &barrier, deadline_ns);
        int64_t begin = ls_time_now_ns();
        if (st == LS_OK)
            st = ls_shm_coll_run(c->direct, coll, deadline_ns);
        if (i >= 0)
            times[i] = ls_time_now_ns() - begin;
    }
    if (st != LS_OK) /* the segment is broken: other nodes must know */
        return ls_fabric_lock_and_fail(c->fabric);
    LS_TRY(st, ls_tune_largest(c, LS_I64, times, MEMORY_CALLS, deadline_ns), out);
    for (int i = 1; i < MEMORY_CALLS; i++)
        times[0] = ls_min_i64(times[0], times[i]);
    *ns_out = (double)times[0];
out:
    return st;
}

/* ns per byte, from an all-reduce of this many bytes. */
static ls_status time_memory(ls_comm *c, char *memory, int64_t bytes, int64_t deadline_ns,
                             double *ns_per_byte_out)
{
    const ls_coll coll = {.kind = LS_COLL_ALL_REDUCE,
                          .type = LS_F32,
                          .count = bytes / 4,
                          .in = memory,
                          .out = memory};
    ls_cost_query q = {.kind = coll.kind,
                       .ranks = c->levels ? c->per_node : c->ranks,
                       .count = coll.count,
                       .size = 4};
    const ls_cost_memory *m = &c->tune.memory;
    ls_cost_moves moves;
    double ns = 0;
    ls_status st = time_direct(c, &coll, deadline_ns, &ns);

    ls_cost_memory_moves(m, &q, &moves);
    double meets = (double)moves.meets * m->meet_ns;
    meets = meets < ns / 2 ? meets : ns / 2; /* else the meetings were disturbed */
    *ns_per_byte_out = at_least((ns - meets) / (double)(moves.read + moves.written), 0.001);
    return st;
}

/* Where nodes have several ranks, equally many; without memory for a trial the assumption stays. */
static ls_status measure_memory(ls_comm *c, int64_t deadline_ns)
{
    ls_cost_memory *m = &c->tune.memory;
    const ls_coll barrier = {.kind = LS_COLL_BARRIER, .type = LS_U8};
    int64_t crowded = c->direct && atomic_load(&c->fabric->segment->crowded);
    char *memory = NULL;
    bool all = false;
    ls_status st = LS_OK;

    if (!c->direct)
        return LS_OK;
    LS_TRY(st, ls_tune_scratch(c, LS_COST_UNCACHED, deadline_ns, &memory, &all), out);
    if (!all)
        goto out;
    memset(memory, 0, LS_COST_UNCACHED);
    LS_TRY(st, ls_tune_largest(c, LS_I64, &crowded, 1, deadline_ns), out);
    m->crowded = crowded;
    LS_TRY(st, time_direct(c, &barrier, deadline_ns, &m->meet_ns), out);
    LS_TRY(st, time_memory(c, memory, LS_COST_CACHED, deadline_ns, &m->cached_ns_per_byte), out);
    LS_TRY(st, time_memory(c, memory, LS_COST_UNCACHED, deadline_ns, &m->ns_per_byte), out);
    c->tune.has_memory = true;
    ls_tune_use(c);
    ls_tune_forget_plans(c);
out:
    if (memory)
        ls_comm_free(c, memory);
    return st;
}

ls_status ls_tune_measure(ls_comm *c, int64_t deadline_ns)
{
    pair p = {.comm = c, .deadline_ns = deadline_ns};
    int64_t took = ls_time_now_ns();
    ls_status st = LS_OK;

    if (c->ranks == 1)
        return LS_OK;
    LS_TRY(st, ls_tune_check_idle(c), out);
    LS_TRY(st, take_memory(&p), out);
    LS_TRY(st, measure_links(c, &p), out);
    LS_TRY(st, measure_memory(c, deadline_ns), out);
    took = ls_time_now_ns() - took;
    LS_TRY(st, ls_tune_largest(c, LS_I64, &took, 1, deadline_ns), out);
    c->tune.took_ns = took;
out:
    drop_memory(&p);
    return st;
}

ls_status ls_tune_look_again(ls_comm *c, int64_t deadline_ns, bool *changed_out)
{
    pair p = {.comm = c, .deadline_ns = deadline_ns};
    int to = 0;
    double ns;
    ls_status st = LS_OK;

    while (to < c->ranks && ls_comm_node(c, to) == ls_comm_node(c, 0))
        to++;
    const ls_cost_link *own = ls_tune_between(c, ls_comm_node(c, 0), ls_comm_node(c, to));
    const ls_cost_link *l = own ? own : &c->tune.between;
    double want = 2 * (l->alpha_ns + l->message_ns) + SHORT_BYTES * l->ns_per_byte;
    if (c->rank == 0 || c->rank == to)
        LS_TRY(st, take_memory(&p), out);
    p.peer = c->rank == 0 ? to : 0;
    if (c->rank == to)
        LS_TRY(st, answer(&p), out);
    if (c->rank == 0) {
        series order = {SHORT_BYTES, 1, want < SLOW_NS ? REPEATS : 1};
        LS_TRY(st, ask(&p, order, order.times > 1, &ns), out);
        LS_TRY(st, finish(&p), out);
        *changed_out = ns > changed * want || ns < want / changed;
    }
    st = ls_tune_tell(c, changed_out, sizeof *changed_out, deadline_ns);
out:
    drop_memory(&p);
    return st;
}
