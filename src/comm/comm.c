/* comm.c -- communicators: opening, starting requests, waiting for them.
 *
 * comm.h has the contract, comm_impl.h the nouns, request.c how a collective progresses. Three
 * paths lead through this file:
 *
 *     ls_comm_run(), all members on one node, nothing in flight
 *         -> node/shm_coll.h at once, without the lock: no other thread touches a communicator
 *            that has no request in flight
 *     ls_comm_run(), anything else
 *         -> a request in slot RUN_SLOT; ls_watchdog_wait() (watchdog.c) moves everything in flight until it is done
 *     ls_comm_start() ... ls_comm_wait()
 *         -> a request in one of the other slots; any thread that waits moves it, else the
 *            progress thread does */
#include "comm/comm_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/str.h"
#include "base/time.h"
#include "comm/node/flight_recorder.h"
#include "comm/tune_impl.h"

/* The last slot belongs to ls_comm_run(). Whether a slot is free must not depend on how far started
 * requests are: each rank would see that at another time. */
enum { SLOT_BITS = 8, RUN_SLOT = LS_COMM_REQUESTS, SLOTS };
enum { USED = 8 }; /* requests in flight that most callers need */
_Static_assert(LS_COMM_REQUESTS == 1 << SLOT_BITS, "a request names its place");

/* --- members ----------------------------------------------------------------------------------*/

/* How many members each node has, if they are listed node after node and equally many on each; else
 * 0. */
static int even_nodes(const ls_comm *c)
{
    int per_node = 0;

    while (per_node < c->ranks && ls_comm_node(c, per_node) == ls_comm_node(c, 0))
        per_node++;
    if (c->ranks % per_node != 0)
        return 0;
    for (int i = 0; i < c->ranks; i++) {
        int first = i / per_node * per_node;
        if (ls_comm_node(c, i) != ls_comm_node(c, first))
            return 0;
        for (int q = 0; q < first; q += per_node)
            if (ls_comm_node(c, q) == ls_comm_node(c, i))
                return 0;
    }
    return per_node;
}

/* The members of this node as a group, and collectives over it. part: a communicator with levels
 * has two groups, one to scatter (1) and one to gather (2). The members find each other by a key;
 * that of communicator 5, to gather, whose first member here is rank 2 of the world: 5, 2 and 3, as
 * 32, 16 and 16 bits. */
static ls_status open_direct(ls_comm *c, ls_group *group, ls_shm_coll **direct, uint64_t part,
                             int64_t deadline_ns)
{
    int locals[LS_SHM_SEGMENT_RANKS], n = 0, first = -1;
    ls_status st;

    for (int i = 0; i < c->ranks; i++)
        if (ls_comm_node(c, i) == ls_comm_node(c, c->rank)) {
            first = first < 0 ? i : first;
            locals[n++] = c->fabric->locals[c->world[i]];
        }
    /* The groups that one call makes share an id; the world rank of the first member makes keys
     * differ. */
    const ls_group_args args = {.key = c->id << 32 | part << 16 | (uint64_t)(c->world[first] + 1),
                                .local = c->fabric->local,
                                .locals = locals,
                                .members = n};
    LS_TRY(st, ls_group_open(group, c->fabric->segment, &args, deadline_ns), out);
    LS_TRY(st, ls_shm_coll_open(direct, group), out);
out:
    return st;
}

/* How the members reach each other. */
static ls_status arrange(ls_comm *c, int64_t deadline_ns)
{
    int per_node = even_nodes(c);
    ls_status st = LS_OK;

    c->one_node = true;
    for (int i = 0; i < c->ranks; i++)
        c->one_node &= ls_comm_node(c, i) == ls_comm_node(c, c->rank);
    if (c->ranks == 1)
        goto out;
    if (c->one_node) {
        st = open_direct(c, &c->group, &c->direct, 1, deadline_ns);
    } else if (per_node > 1) {
        c->levels = true;
        c->per_node = per_node;
        c->nodes = c->ranks / per_node;
        c->node = c->rank / per_node;
        c->across = ls_mem_array((size_t)c->nodes, sizeof *c->across);
        if (!c->across)
            return ls_fail(LS_ENOMEM, "no memory for a list of %d nodes", c->nodes);
        for (int i = 0; i < c->nodes; i++)
            c->across[i] = c->world[i * per_node + c->rank % per_node];
        LS_TRY(st, open_direct(c, &c->group, &c->direct, 1, deadline_ns), out);
        LS_TRY(st, open_direct(c, &c->gather_group, &c->gather, 2, deadline_ns), out);
    }
out:
    return st;
}

static void free_comm(ls_comm *c)
{
    ls_shm_coll_close(c->direct);
    ls_shm_coll_close(c->gather);
    ls_group_close(&c->group);
    ls_group_close(&c->gather_group);
    for (int i = 0; i < COMM_PLANS; i++)
        ls_sched_release(&c->plans[i].sched);
    for (int i = 0; c->request_table && i < SLOTS; i++)
        ls_exec_release(&c->request_table[i].exec);
    ls_mem_free(c->request_table);
    ls_mem_free(c->world);
    ls_mem_free(c->across);
    ls_mem_free(c->sends);
    ls_mem_free(c->receives);
    ls_mem_free(c);
}

/* A communicator of these members of `whole`, or (whole NULL) of all ranks of the world; takes one
 * reference of the fabric. */
static ls_status make_comm(ls_comm **comm_out, ls_fabric *fabric, uint64_t id, const ls_comm *whole,
                           const int *members, int ranks, int64_t deadline_ns)
{
    ls_comm *c = ls_mem_alloc(sizeof *c);
    ls_status st = LS_OK;

    if (!c)
        return ls_fail(LS_ENOMEM, "no memory for a communicator");
    c->fabric = fabric;
    c->id = id;
    c->ranks = ranks;
    ls_tune_init(&c->tune);
    c->world = ls_mem_array((size_t)ranks, sizeof *c->world);
    c->sends = ls_mem_array((size_t)ranks, sizeof *c->sends);
    c->receives = ls_mem_array((size_t)ranks, sizeof *c->receives);
    c->request_table = ls_mem_array(SLOTS, sizeof *c->request_table);
    if (!c->world || !c->sends || !c->receives || !c->request_table) {
        st = ls_fail(LS_ENOMEM, "no memory for a communicator of %d ranks", ranks);
        goto out;
    }
    for (int i = 0; i < ranks; i++) {
        c->world[i] = whole ? whole->world[members[i]] : i;
        if (c->world[i] == fabric->rank)
            c->rank = i;
    }
    LS_TRY(st, arrange(c, deadline_ns), out);
    ls_tune_use(c);
    ls_fabric_lock(fabric);
    c->next = fabric->comms;
    fabric->comms = c;
    pthread_mutex_unlock(&fabric->lock);
    *comm_out = c;
out:
    if (st != LS_OK)
        free_comm(c);
    return st;
}

ls_status ls_comm_open(ls_comm **comm_out, const ls_comm_args *args, int64_t deadline_ns)
{
    ls_fabric *fabric = NULL;
    ls_comm *c = NULL;
    ls_status st;

    LS_TRY(st, ls_fabric_open(&fabric, args, deadline_ns), out);
    LS_TRY(st, make_comm(&c, fabric, fabric->next_id++, NULL, NULL, args->ranks, deadline_ns), out);
    fabric = NULL; /* the communicator's from here on */
    if (!c->one_node) {
        LS_TRY(st, ls_tune_open(c, deadline_ns), out);
        c->seen_count = 0; /* that was no use */
        ls_fabric_lock(c->fabric);
        st = ls_transport_choice_inject_faults(c->fabric);
        if (st != LS_OK)
            st = ls_fabric_fail(c->fabric);
        pthread_mutex_unlock(&c->fabric->lock);
    }
    if (st == LS_OK)
        *comm_out = c;
out:
    if (st != LS_OK)
        ls_comm_close(c);
    if (st != LS_OK && fabric) {
        st = ls_fabric_lock_and_fail(fabric);
        ls_fabric_drop(fabric);
    }
    return st;
}

void ls_comm_close(ls_comm *c)
{
    if (!c)
        return;
    ls_fabric *fabric = c->fabric;
    ls_fabric_lock(fabric);
    ls_comm **link = &fabric->comms;
    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
    fabric->in_flight -= atomic_load(&c->up);
    /* Messages that a transport still holds lie in the requests: the transport drops them first. */
    if (atomic_load(&c->up) > 0 && !fabric->broken) {
        ls_fail(LS_EPEER, "rank %d closed a communicator with %d collectives in flight",
                fabric->rank, atomic_load(&c->up));
        ls_fabric_fail(fabric);
    }
    if (atomic_load(&c->up) > 0)
        ls_fabric_close_transport(fabric);
    pthread_mutex_unlock(&fabric->lock);
    free_comm(c);
    ls_fabric_drop(fabric);
}

int64_t ls_comm_bytes(void)
{
    return (int64_t)sizeof(ls_comm) + USED * (int64_t)sizeof(ls_request);
}

int ls_comm_rank(const ls_comm *comm)
{
    return comm->rank;
}

int ls_comm_ranks(const ls_comm *comm)
{
    return comm->ranks;
}

int ls_comm_node(const ls_comm *comm, int rank)
{
    return comm->fabric->members[comm->world[rank]].node;
}

const char *ls_comm_host(const ls_comm *comm, int rank)
{
    return comm->fabric->members[comm->world[rank]].host;
}

/* --- parts of a communicator ------------------------------------------------------------------*/

static uint64_t hash_list(const int *ranks, int count)
{
    uint64_t h = 1469598103934665603U;

    for (int i = 0; i < count; i++)
        h = (h ^ (uint64_t)(ranks[i] + 1)) * 1099511628211U;
    return h;
}

static ls_status check_list(const ls_comm *c, const int *ranks, int count)
{
    bool here = count == 0;

    if (count < 0 || count > c->ranks)
        return ls_fail(LS_EUSAGE, "a list of %d ranks, of a communicator of %d", count, c->ranks);
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= c->ranks)
            return ls_fail(LS_EUSAGE, "rank %d is not in a communicator of %d", ranks[i], c->ranks);
        for (int q = 0; q < i; q++)
            if (ranks[q] == ranks[i])
                return ls_fail(LS_EUSAGE, "rank %d is twice in a list", ranks[i]);
        here |= ranks[i] == c->rank;
    }
    return here ? LS_OK : ls_fail(LS_EUSAGE, "rank %d gave a list without itself", c->rank);
}

/* All ranks exchange the id that each would take and a hash of the list it means. *id_out: the
 * highest id. The exchange is an all_to_all, because the ranges of an all_gather begin at multiples
 * of sixteen elements. Example: 4 ranks make {0, 1} and {2, 3}, and each would take id 5:
 *
 *     rank 0 receives   (5, h01) from 0   (5, h01) from 1   (5, h23) from 2   (5, h23) from 3
 *
 * It compares h01 with what rank 1 sent, because that rank is in its list; the lists of others are
 * not its business. A rank that has made a communicator more than the others, in which they had no
 * part, brings a higher id, and all go on from there. */
static ls_status agree_on_list(ls_comm *c, const int *ranks, int count, int64_t deadline_ns,
                               int64_t *id_out)
{
    ls_fabric *fabric = c->fabric;
    int64_t mine[2], n = c->ranks, highest = 0;
    int64_t *send = ls_mem_array((size_t)(4 * n), sizeof *send);
    ls_status st = LS_OK;

    if (!send)
        return ls_fail(LS_ENOMEM, "no memory for a list of %d ranks", c->ranks);
    int64_t *all = send + 2 * n;
    ls_fabric_lock(fabric);
    mine[0] = (int64_t)fabric->next_id;
    pthread_mutex_unlock(&fabric->lock);
    mine[1] = count ? (int64_t)hash_list(ranks, count) : 0;
    for (int64_t i = 0; i < n; i++)
        memcpy(send + 2 * i, mine, sizeof mine);
    LS_TRY(st,
           ls_comm_run(
               c,
               &(ls_coll){
                   .kind = LS_COLL_ALL_TO_ALL, .type = LS_I64, .count = 2, .in = send, .out = all},
               deadline_ns),
           out);
    for (int64_t i = 0; i < n; i++)
        highest = ls_max_i64(highest, all[2 * i]);
    for (int i = 0; i < count; i++)
        if (all[2 * ranks[i] + 1] != mine[1]) {
            ls_fail(LS_EUSAGE, "ranks %d and %d mean different lists of a communicator's ranks",
                    c->world[c->rank], c->world[ranks[i]]);
            st = ls_fabric_lock_and_fail(fabric);
            goto out;
        }
    *id_out = highest;
out:
    ls_mem_free(send);
    return st;
}

/* The part uses the same link numbers; settled choices and the cache file belong to the whole. */
static void inherit(ls_comm *sub, const ls_comm *c)
{
    sub->tune = c->tune;
    sub->tune.picks = 0;
    sub->tune.path[0] = '\0';
    ls_tune_use(sub);
    sub->forced = sub->ranks == c->ranks ? c->forced : NULL;
    sub->force_levels = sub->ranks == c->ranks && c->force_levels;
}

ls_status ls_comm_sub(ls_comm *c, const int *ranks, int count, int64_t deadline_ns,
                      ls_comm **sub_out)
{
    ls_fabric *fabric = c->fabric;
    int64_t id = 0;
    ls_status st;

    LS_TRY(st, check_list(c, ranks, count), out);
    LS_TRY(st, agree_on_list(c, ranks, count, deadline_ns, &id), out);
    if (id >= COMM_IDS) { /* the same for all ranks, and nothing was begun */
        st = ls_fail(LS_EBUSY, "%d communicators have been made already", COMM_IDS - 1);
        goto out;
    }
    ls_fabric_lock(fabric);
    fabric->next_id = (uint64_t)id + 1;
    fabric->refs += count > 0;
    pthread_mutex_unlock(&fabric->lock);
    *sub_out = NULL;
    if (count == 0)
        goto out;
    st = make_comm(sub_out, fabric, (uint64_t)id, c, ranks, count, deadline_ns);
    if (st != LS_OK) {
        st = ls_fabric_lock_and_fail(fabric);
        ls_fabric_drop(fabric);
        goto out;
    }
    inherit(*sub_out, c);
out:
    return st;
}

/* --- memory -----------------------------------------------------------------------------------*/

ls_status ls_comm_alloc(ls_comm *comm, int64_t bytes, const char *what, void **memory_out)
{
    ls_fabric *f = comm->fabric;

    if (f->segment)
        return ls_shm_segment_alloc(f->segment, f->local, bytes, what, memory_out);
    void *p = aligned_alloc(4096, (size_t)ls_round_up(ls_max_i64(bytes, 1), 4096));
    if (!p)
        return ls_fail(LS_ENOMEM, "no memory for %.1f MiB of %s", (double)bytes / (double)LS_MIB,
                       what);
    memset(p, 0, (size_t)ls_round_up(ls_max_i64(bytes, 1), 4096));
    *memory_out = p;
    return LS_OK;
}

void ls_comm_free(ls_comm *comm, void *memory)
{
    ls_fabric *f = comm->fabric;

    if (f->segment)
        ls_shm_segment_free(f->segment, f->local, memory);
    else
        free(memory);
}

/* --- asking and waiting -----------------------------------------------------------------------*/

static ls_status check_coll(const ls_comm *c, const ls_coll *coll)
{
    ls_status st = ls_coll_check(coll, c->ranks, c->rank);

    if (st != LS_OK || !ls_comm_forced(c, coll->kind))
        return st;
    const char *refuses = ls_algo_refuses(c->forced, coll, c->ranks, false);
    return refuses ? ls_fail(LS_EUSAGE, "%s by algorithm \"%s\": it %s",
                             ls_coll_kind_name(coll->kind), c->forced->name, refuses)
                   : LS_OK;
}

static ls_request *find(ls_comm *c, ls_comm_request request)
{
    ls_request *f = &c->request_table[request & (LS_COMM_REQUESTS - 1)];

    return f->state != LS_REQUEST_FREE && f->request == request ? f : NULL;
}

/* For ls_tune_settle_used(). */
static void note_seen(ls_comm *c, const ls_coll *coll)
{
    if (c->seen_enough || ls_coll_is_message(coll->kind) || c->ranks == 1 || coll->in_counts ||
        coll->out_counts)
        return;
    for (int i = 0; i < c->seen_count; i++) {
        const ls_coll *s = &c->seen[i].coll;
        if (s->kind == coll->kind && s->count == coll->count && s->type == coll->type &&
            s->op == coll->op && s->peer == coll->peer &&
            (s->in == s->out) == (coll->in == coll->out)) {
            c->seen[i].uses++;
            return;
        }
    }
    if (c->seen_count < COMM_SEEN)
        c->seen[c->seen_count++] = (comm_seen){.coll = *coll, .uses = 1};
}

/* Take the first free slot in slot .. end-1. Under the lock. */
static ls_status start(ls_comm *c, const ls_coll *coll, int slot, int end, ls_request **request_out)
{
    ls_status st;

    LS_TRY(st, ls_fabric_check(c->fabric), out);
    while (slot < end && c->request_table[slot].state != LS_REQUEST_FREE)
        slot++;
    if (slot == end) {
        if (end > RUN_SLOT)
            st = ls_fail(LS_EBUSY, "another thread runs a collective of this communicator");
        else
            st = ls_fail(LS_EBUSY, "%d collectives are in flight", end);
        ls_err_hint("Wait for one of them first.");
        goto out;
    }
    ls_request *f = &c->request_table[slot];
    f->request = ++c->requests << SLOT_BITS | (uint64_t)slot;
    f->coll = ls_coll_only_used(coll);
    f->way = ls_request_way(c, coll);
    f->plan = NULL;
    if (f->way == LS_WAY_EXEC)
        note_seen(c, &f->coll);
    ls_request_start(c, f);
    *request_out = f;
out:
    return st;
}

ls_status ls_comm_start(ls_comm *c, const ls_coll *coll, ls_comm_request *request_out)
{
    ls_fabric *fabric = c->fabric;
    ls_request *f = NULL;
    bool moved;
    ls_status st;

    LS_TRY(st, check_coll(c, coll), out);
    ls_fabric_lock(fabric);
    st = ls_fabric_start_progress(fabric);
    if (st == LS_OK)
        st = start(c, coll, 0, LS_COMM_REQUESTS, &f);
    if (st == LS_OK && ls_request_move_all(fabric, &moved) != LS_OK)
        st = ls_fabric_fail(fabric);
    if (st == LS_OK)
        *request_out = f->request;
    pthread_cond_broadcast(&fabric->work);
    pthread_mutex_unlock(&fabric->lock);
out:
    return st;
}

static ls_status wait_and_free(ls_comm *c, ls_request *f, int64_t deadline_ns)
{
    ls_fabric *fabric = c->fabric;

    fabric->waiting++;
    ls_status st = ls_watchdog_wait(c, f, deadline_ns);
    fabric->waiting--;
    if (st == LS_OK)
        f->state = LS_REQUEST_FREE;
    if (fabric->in_flight > 0 && fabric->waiting == 0)
        pthread_cond_broadcast(&fabric->work);
    return st;
}

ls_status ls_comm_wait(ls_comm *c, ls_comm_request request, int64_t deadline_ns)
{
    ls_fabric_lock(c->fabric);
    ls_request *f = find(c, request);
    ls_status st = f ? wait_and_free(c, f, deadline_ns)
                     : ls_fail(LS_EUSAGE, "no collective is in flight under number %llu",
                               (unsigned long long)request);
    pthread_mutex_unlock(&c->fabric->lock);
    return st;
}

ls_status ls_comm_test_any(ls_comm *c, const ls_comm_request *requests, int n, int *done_out)
{
    bool moved;
    int done = -1;
    ls_status st = LS_OK;

    ls_fabric_lock(c->fabric);
    LS_TRY(st, ls_fabric_check(c->fabric), out);
    if (ls_request_move_all(c->fabric, &moved) != LS_OK) {
        st = ls_fabric_fail(c->fabric);
        goto out;
    }
    for (int i = 0; i < n && done < 0; i++) {
        ls_request *f = find(c, requests[i]);
        if (!f) {
            st = ls_fail(LS_EUSAGE, "no collective is in flight under number %llu",
                         (unsigned long long)requests[i]);
            goto out;
        }
        if (f->state != LS_REQUEST_DONE)
            continue;
        f->state = LS_REQUEST_FREE;
        done = i;
    }
    *done_out = done;
out:
    pthread_mutex_unlock(&c->fabric->lock);
    return st;
}

ls_status ls_comm_test(ls_comm *comm, ls_comm_request request, bool *done_out)
{
    int which;
    ls_status st = ls_comm_test_any(comm, &request, 1, &which);

    if (st == LS_OK)
        *done_out = which == 0;
    return st;
}

ls_status ls_comm_run(ls_comm *c, const ls_coll *coll, int64_t deadline_ns)
{
    ls_fabric *fabric = c->fabric;
    ls_request *f = NULL;
    ls_status st;

    if (c->one_node && c->direct && !c->forced && atomic_load(&c->up) == 0) {
        st = ls_shm_coll_run(c->direct, coll, deadline_ns);
        if (st == LS_OK || (st == LS_EUSAGE && !ls_shm_segment_aborted(fabric->segment)))
            return st;
        return ls_fabric_lock_and_fail(fabric);
    }
    LS_TRY(st, check_coll(c, coll), out);
    ls_fabric_lock(fabric);
    st = start(c, coll, RUN_SLOT, SLOTS, &f);
    if (st == LS_OK)
        st = wait_and_free(c, f, deadline_ns);
    pthread_mutex_unlock(&fabric->lock);
out:
    return st;
}

void ls_comm_abort(ls_comm *comm, const char *reason)
{
    ls_fabric *f = comm->fabric;
    bool first = false;

    /* The reason is complete before the flag that other threads read. */
    if (!atomic_load(&f->aborting)) {
        pthread_mutex_lock(&f->abort_lock);
        first = !atomic_load(&f->aborting);
        if (first) {
            snprintf(f->abort_reason, sizeof f->abort_reason, "%s", reason);
            atomic_store(&f->aborting, true);
        }
        if (first && f->transport)
            f->transport->table->wake(f->transport);
        pthread_mutex_unlock(&f->abort_lock);
    }
    if (first && f->segment)
        ls_shm_segment_abort(f->segment, f->local, LS_EPEER, "stopped by rank %d: %s", f->rank,
                             reason);
}

/* --- about it ---------------------------------------------------------------------------------*/

const char *ls_comm_way(ls_comm *c, const ls_coll *coll)
{
    const ls_coll used = ls_coll_only_used(coll);
    ls_way way = ls_request_way(c, &used);
    const char *name = way == LS_WAY_DIRECT ? "direct" : way == LS_WAY_LEVELS ? "levels" : "alone";

    if (way == LS_WAY_EXEC && c->ranks > 1) {
        ls_fabric_lock(c->fabric);
        name = ls_request_algo(c, &used);
        pthread_mutex_unlock(&c->fabric->lock);
    }
    return name;
}

ls_status ls_comm_force(ls_comm *comm, const char *algo)
{
    const ls_algo *found = algo ? ls_algo_find(algo) : NULL;
    bool levels = algo && strcmp(algo, "levels") == 0;
    ls_str names;

    if (!algo || found || levels) {
        ls_fabric_lock(comm->fabric);
        comm->forced = found;
        comm->force_levels = levels;
        for (int i = 0; i < COMM_PLANS; i++)
            comm->plans[i].once_only = true; /* made for another choice */
        pthread_mutex_unlock(&comm->fabric->lock);
        return LS_OK;
    }
    ls_fail(LS_EUSAGE, "there is no algorithm \"%s\"", algo);
    ls_str_init(&names);
    for (int i = 0; i < ls_algos_count; i++)
        ls_str_printf(&names, "%s, ", ls_algos[i]->name);
    ls_err_hint("There are %slevels.", names.p);
    ls_str_release(&names);
    return LS_EUSAGE;
}

ls_status ls_comm_check(ls_comm *comm)
{
    ls_fabric_lock(comm->fabric);
    ls_status st = ls_fabric_check(comm->fabric);
    pthread_mutex_unlock(&comm->fabric->lock);
    return st;
}

void ls_comm_traffic(ls_comm *comm, int64_t *sent_out, int64_t *received_out)
{
    ls_fabric *f = comm->fabric;

    *sent_out = *received_out = 0;
    ls_fabric_lock(f);
    for (int r = 0; f->network && r < f->ranks; r++) {
        int64_t sent = 0, received = 0;
        if (!ls_fabric_is_here(f, r))
            f->transport->table->count(f->transport, r, &sent, &received);
        *sent_out += sent;
        *received_out += received;
    }
    pthread_mutex_unlock(&f->lock);
}

int64_t ls_comm_foreign_bytes(const ls_comm *comm)
{
    const ls_fabric *f = comm->fabric;

    return f->segment ? ls_shm_segment_foreign_bytes(f->segment, f->local) : 0;
}

const char *ls_comm_transport(const ls_comm *comm)
{
    return comm->fabric->between;
}

void ls_comm_set_step(ls_comm *comm, int64_t step)
{
    ls_flight_recorder_set_step(comm->fabric->recorder, comm->fabric->recorder_local, step);
}
