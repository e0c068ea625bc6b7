/* fabric.c -- opening the ways to the other members, the progress thread, and the first failure.
 *
 * Opening goes from near to far: the segment of the node, then TCP, then the transport of the data.
 * A rank of this node that is missing is therefore named by the segment. The result is one
 * transport to every member: over the segment for ranks of this node, over the network for the
 * others.
 *
 *     ls_fabric_open
 *         members, local ranks      take_members
 *         segment, death watch      join the node's segment, wait until all of its ranks are there
 *         flight recorder           in the segment; a rank alone on its node makes one for it
 *         TCP to other nodes        every rank to every other one (large worlds: tcp.h)
 *         transport_choice.c        all ranks agree: TCP or UCX
 *         hybrid.h                  segment and network as one transport
 *
 * The progress thread moves requests in flight while no other thread waits. The first request that
 * nobody waits for at once starts it; between nodes it runs from the beginning, because heartbeats
 * must be answered.
 *
 *     caller            start(A)   computes ............   wait(A): moves all until A is done
 *     another caller                 test(B)
 *     progress thread              moves A and B ......    rests: a caller waits
 *
 * All of them hold `lock` while they move. A thread that wants it while another one sleeps in the
 * transport counts itself in `wanted` and wakes the sleeper (ls_fabric_lock). A thread that waits
 * gives the lock away between two looks (ls_fabric_let_in). */
#include "comm/comm_impl.h"

#include <sched.h>
#include <string.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/pool.h"
#include "base/time.h"
#include "comm/transport/hybrid.h"
#include "comm/transport/shm.h"
#include "comm/transport/tcp.h"

enum {
    PROGRESS_LOOK_NS = 100000,
    PROGRESS_REST_NS = 500000,
    PROGRESS_SLEEP_NS = 1000000,
    IDLE_NS = 20000000,
    LET_IN_TURNS = 1000
};

/* --- failures ---------------------------------------------------------------------------------*/

ls_status ls_fabric_fail(ls_fabric *f)
{
    if (!f->broken) {
        ls_request_explain(f);
        f->broken = true;
        f->why = *ls_err_last();
        for (ls_comm *c = f->comms; c; c = c->next)
            ls_request_note_failed(c);
        if (f->segment && (f->why.code == LS_EUSAGE || f->why.code == LS_EPEER))
            ls_shm_segment_abort(f->segment, f->local, f->why.code, "%s", f->why.text);
        else if (f->segment) /* a shortage on this rank is no shortage of the others */
            ls_shm_segment_give_up(f->segment, f->local, "gave up: %s", f->why.text);
        if (f->network)
            ls_tcp_abort(f->network, f->why.text);
    }
    return ls_err_adopt(&f->why);
}

ls_status ls_fabric_lock_and_fail(ls_fabric *fabric)
{
    ls_fabric_lock(fabric);
    ls_status st = ls_fabric_fail(fabric);
    pthread_mutex_unlock(&fabric->lock);
    return st;
}

/* Whether a rank of this node has failed, or the agent has given the ranks up. The agent writes its
 * reason even where this rank is alone on its node and the segment only holds the flight
 * recorder. */
static bool given_up(void *context)
{
    const ls_fabric *f = context;
    const ls_shm_segment *segment = f->segment ? f->segment : f->recorder;

    return segment && ls_shm_segment_failure(segment) != LS_OK;
}

ls_status ls_fabric_check(ls_fabric *f)
{
    if (f->broken)
        return ls_err_adopt(&f->why);
    if (atomic_load(&f->aborting)) {
        ls_fail(LS_EPEER, "stopped by rank %d: %s", f->rank, f->abort_reason);
        return ls_fabric_fail(f);
    }
    if (given_up(f))
        return ls_fabric_fail(f);
    return LS_OK;
}

/* --- the lock ---------------------------------------------------------------------------------*/

void ls_fabric_lock(ls_fabric *f)
{
    if (pthread_mutex_trylock(&f->lock) == 0)
        return;
    atomic_fetch_add(&f->wanted, 1);
    pthread_mutex_lock(&f->abort_lock);
    if (f->transport)
        f->transport->table->wake(f->transport);
    pthread_mutex_unlock(&f->abort_lock);
    pthread_mutex_lock(&f->lock);
    atomic_fetch_sub(&f->wanted, 1);
}

void ls_fabric_let_in(ls_fabric *f)
{
    pthread_mutex_unlock(&f->lock);
    /* A mutex is not fair: a thread that unlocks and locks again at once mostly wins against
     * waiters. */
    for (int i = 0; atomic_load(&f->wanted) > 0 && i < LET_IN_TURNS; i++)
        sched_yield();
    pthread_mutex_lock(&f->lock);
}

void ls_fabric_close_transport(ls_fabric *f)
{
    pthread_mutex_lock(&f->abort_lock);
    ls_transport *transport = f->transport;
    f->transport = NULL;
    f->network = NULL;
    pthread_mutex_unlock(&f->abort_lock);
    ls_transport_close(transport);
}

/* --- the progress thread ----------------------------------------------------------------------*/

/* Nothing is in flight. Between nodes a rank that computes still answers heartbeats, sends again
 * what a broken connection lost, and learns of deaths: it looks now and then. The last thread that
 * waited does not wake this one when it goes back to its work: this thread looks by itself. */
static void rest(ls_fabric *f)
{
    bool moved;

    if (!f->network || f->broken) {
        pthread_cond_wait(&f->work, &f->lock);
        return;
    }
    if (f->waiting == 0 && ls_fabric_check(f) == LS_OK &&
        f->transport->table->poll(f->transport, &moved) != LS_OK)
        ls_fabric_fail(f);
    int64_t until = ls_time_now_ns() + IDLE_NS;
    const struct timespec at = {.tv_sec = until / LS_NS_PER_S, .tv_nsec = until % LS_NS_PER_S};
    pthread_cond_timedwait(&f->work, &f->lock, &at);
}

/* How long the progress thread sleeps after this much time without any progress: an eighth of it,
 * so that a late message is seen only a little later. Otherwise a rank that computes for long with
 * a receive in flight (a pipeline stage) would give its core away ten thousand times a second. A
 * thread that waits looks itself. */
static long look_ns(int64_t still_ns)
{
    return (long)ls_min_i64(PROGRESS_REST_NS, ls_max_i64(PROGRESS_LOOK_NS, still_ns / 8));
}

/* The progress thread. It rests while nothing is in flight or another thread waits (that one moves
 * everything), and polls otherwise; after a long time without progress it looks less often. */
static void *progress_main(void *arg)
{
    ls_fabric *f = arg;

    pthread_mutex_lock(&f->lock);
    int64_t still_ns = ls_time_now_ns(); /* since when nothing has moved */
    while (!f->closing) {
        bool moved = false;
        if (f->in_flight == 0 || f->waiting > 0 || f->broken) {
            rest(f);
            still_ns = ls_time_now_ns();
            continue;
        }
        if (ls_fabric_check(f) == LS_OK && ls_request_move_all(f, &moved) != LS_OK)
            ls_fabric_fail(f);
        if (f->broken)
            continue;
        if (moved) {
            ls_fabric_let_in(f);
            still_ns = ls_time_now_ns();
            continue;
        }
        if (f->network && atomic_load(&f->wanted) == 0)
            f->transport->table->sleep(f->transport, ls_time_now_ns() + PROGRESS_SLEEP_NS);
        if (!f->network) { /* no writer to the segment wakes this thread: look again soon */
            pthread_mutex_unlock(&f->lock);
            nanosleep(&(struct timespec){.tv_nsec = look_ns(ls_time_now_ns() - still_ns)}, NULL);
            pthread_mutex_lock(&f->lock);
        }
        ls_fabric_let_in(f);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

ls_status ls_fabric_start_progress(ls_fabric *fabric)
{
    int e = fabric->has_progress_thread
                ? 0
                : ls_pool_start_apart(&fabric->progress_thread, progress_main, fabric);

    if (e != 0)
        return ls_pool_start_failed(e, "start the thread that moves collectives");
    fabric->has_progress_thread = true;
    return LS_OK;
}

/* --- opening ----------------------------------------------------------------------------------*/

static ls_status check_args(const ls_comm_args *a)
{
    if (a->ranks < 1 || a->ranks > LS_COMM_RANKS)
        return ls_fail(LS_EUSAGE, "a job of %d ranks (1 to %d are possible)", a->ranks,
                       LS_COMM_RANKS);
    if (a->rank < 0 || a->rank >= a->ranks)
        return ls_fail(LS_EUSAGE, "rank %d of %d", a->rank, a->ranks);
    return LS_OK;
}

/* The local number of each rank on its node; how many nodes there are. */
static ls_status take_members(ls_fabric *f, const ls_comm_args *a)
{
    f->members = ls_mem_array((size_t)a->ranks, sizeof *f->members);
    f->locals = ls_mem_array((size_t)a->ranks, sizeof *f->locals);
    if (!f->members || !f->locals)
        return ls_fail(LS_ENOMEM, "no memory for the list of %d ranks", a->ranks);
    memcpy(f->members, a->members, (size_t)a->ranks * sizeof *f->members);
    for (int r = 0; r < a->ranks; r++) {
        bool first = true;
        f->locals[r] = 0;
        for (int q = 0; q < r; q++)
            if (f->members[q].node == f->members[r].node) {
                f->locals[r]++;
                first = false;
            }
        f->nodes += first;
    }
    f->local = f->locals[f->rank];
    return LS_OK;
}

/* Join the segment of the node, watch its processes, and wait until all ranks of the node are
 * there. A rank alone on its node has none. */
static ls_status open_segment(ls_fabric *f, const ls_comm_args *a, int64_t deadline_ns)
{
    int n = 0, locals[LS_SHM_SEGMENT_RANKS];
    ls_status st = LS_OK;

    for (int r = 0; r < f->ranks; r++)
        n += ls_fabric_is_here(f, r);
    if (n == 1)
        return LS_OK;
    if (a->segment_fd < 0 || n > LS_SHM_SEGMENT_RANKS)
        return ls_fail(LS_EUSAGE, "%d ranks on one node without memory that they share", n);
    for (int i = 0; i < n; i++)
        locals[i] = i;
    LS_TRY(st, ls_shm_segment_open(&f->segment, a->segment_fd, f->generation), out);
    st = ls_shm_segment_join(f->segment, f->local, f->rank, f->members[f->rank].host);
    if (st != LS_OK) { /* another process has this rank: nothing of it is ours to break or leave */
        ls_shm_segment_close(f->segment);
        f->segment = NULL;
        goto out;
    }
    LS_TRY(st, ls_death_watch_open(&f->watch, f->segment, f->local), out);
    LS_TRY(st, ls_shm_segment_meet(f->segment, f->local, deadline_ns), out);
    LS_TRY(
        st,
        ls_group_open(&f->node_group, f->segment,
                      &(ls_group_args){.key = 1, .local = f->local, .locals = locals, .members = n},
                      deadline_ns),
        out);
out:
    return st;
}

/* A rank that is alone on its node shares no segment, but its flight recorder needs one: where its
 * agent can read it, if there is an agent. */
static ls_status open_recorder(ls_fabric *f, const ls_comm_args *a)
{
    const ls_shm_segment_args own = {.generation = f->generation, .ranks = 1, .heap_bytes = 4096};
    int fd = a->segment_fd, made = -1;
    ls_shm_segment *recorder = NULL;
    ls_status st = LS_OK;

    if (f->segment) {
        f->recorder = f->segment;
        f->recorder_local = f->local;
        return LS_OK;
    }
    if (fd < 0) {
        LS_TRY(st, ls_shm_segment_create(&own, &made), out);
        fd = made;
    }
    LS_TRY(st, ls_shm_segment_open(&recorder, fd, f->generation), out);
    LS_TRY(st, ls_shm_segment_join(recorder, 0, f->rank, f->members[f->rank].host), out);
    f->recorder = recorder;
    recorder = NULL;
out:
    ls_shm_segment_close(recorder);
    if (made >= 0)
        close(made);
    return st;
}

static ls_status find_zerocopy(const char *name, ls_tcp_zerocopy *how_out)
{
    static const char *const names[] = {[LS_TCP_ZEROCOPY_AUTO] = "auto",
                                        [LS_TCP_ZEROCOPY_ON] = "on",
                                        [LS_TCP_ZEROCOPY_OFF] = "off"};

    for (size_t i = 0; i < LS_COUNT(names); i++)
        if (!name || strcmp(name, names[i]) == 0) {
            *how_out = (ls_tcp_zerocopy)i;
            return LS_OK;
        }
    return ls_fail(LS_EUSAGE, "zerocopy is \"%.40s\", which is none of auto, on, off", name);
}

/* A rank that does not connect is named after three quarters of the time. Later, ranks that have
 * all connections would give up on this rank first, and no rank would know which one is missing. */
static ls_status open_tcp(ls_fabric *f, const ls_comm_args *a, int64_t deadline_ns)
{
    int64_t now = ls_time_now_ns(), connect_ns = now + (deadline_ns - now) / 4 * 3;
    ls_tcp_zerocopy zerocopy = LS_TCP_ZEROCOPY_AUTO;
    const char **addresses = ls_mem_array((size_t)f->ranks, sizeof *addresses);
    const char **hosts = ls_mem_array((size_t)f->ranks, sizeof *hosts);
    ls_status st = LS_OK;

    if (!addresses || !hosts) {
        st = ls_fail(LS_ENOMEM, "no memory for the addresses of %d ranks", f->ranks);
        goto out;
    }
    LS_TRY(st, find_zerocopy(a->zerocopy, &zerocopy), out);
    for (int r = 0; r < f->ranks; r++) {
        addresses[r] = ls_fabric_is_here(f, r) && r != f->rank ? "" : f->members[r].address;
        hosts[r] = f->members[r].host;
    }
    LS_TRY(
        st,
        ls_tcp_open(&f->network,
                    &(ls_tcp_args){.rank = f->rank,
                                   .ranks = f->ranks,
                                   .generation = f->generation,
                                   .addresses = addresses,
                                   .hosts = hosts,
                                   .listen_fd = a->listen_fd,
                                   .secret = a->secret,
                                   .answer = ls_hang_report_answer,
                                   .answered = ls_hang_report_answered,
                                   .broken = given_up,
                                   .context = f,
                                   .zerocopy = zerocopy,
                                   /* with a segment to look at as well there is no time to spin */
                                   .spin_ns = f->segment ? -1 : 0},
                    connect_ns),
        out);
out:
    ls_mem_free(addresses);
    ls_mem_free(hosts);
    return st;
}

/* One transport to all members: over the segment to ranks of this node, over TCP to the others, and
 * then what transport_choice.c agrees on for the data. */
static ls_status open_transport(ls_fabric *f, const ls_comm_args *a, int64_t deadline_ns)
{
    ls_transport *node = NULL;
    int *place = NULL;
    ls_status st = LS_OK;

    if (!ls_transport_choice_knows(a->transport))
        return ls_fail(LS_EUSAGE, "there is no transport \"%.40s\" (auto, tcp, ucx)", a->transport);
    snprintf(f->between, sizeof f->between, "none: all ranks are on one node");
    if (f->ranks == 1)
        return LS_OK;
    f->hang_answers = ls_mem_array((size_t)f->ranks, sizeof *f->hang_answers);
    place = ls_mem_array((size_t)f->ranks, sizeof *place);
    if (!f->hang_answers || !place) {
        st = ls_fail(LS_ENOMEM, "no memory for the list of %d ranks", f->ranks);
        goto out;
    }
    if (f->nodes > 1 && (!a->secret || a->listen_fd < 0)) {
        st = ls_fail(LS_EUSAGE, "ranks on %d nodes need the job's secret and an address each",
                     f->nodes);
        goto out;
    }
    for (int r = 0; r < f->ranks; r++)
        place[r] = ls_fabric_is_here(f, r) ? f->locals[r] : -1;
    if (f->segment)
        LS_TRY(st, ls_shm_open(&node, &f->node_group), out);
    if (f->nodes > 1)
        LS_TRY(st, open_tcp(f, a, deadline_ns), out);
    const ls_hybrid_args parts = {
        .node = node, .network = f->network, .place = place, .ranks = f->ranks};
    node = NULL;
    LS_TRY(st, ls_hybrid_open(&f->transport, &parts), out);
    if (f->nodes > 1)
        LS_TRY(st, ls_transport_choice_open(f, a, deadline_ns), out);
out:
    ls_transport_close(node);
    if (st != LS_OK && f->network && !f->transport)
        f->network = NULL;
    ls_mem_free(place);
    return st;
}

ls_status ls_fabric_open(ls_fabric **fabric_out, const ls_comm_args *args, int64_t deadline_ns)
{
    ls_fabric *f = NULL;
    pthread_condattr_t by_clock;
    ls_status st;

    LS_TRY(st, check_args(args), out);
    f = ls_mem_alloc(sizeof *f);
    if (!f) {
        st = ls_fail(LS_ENOMEM, "no memory for %d ranks", args->ranks);
        goto out;
    }
    memset(f, 0, sizeof *f);
    f->refs = 1;
    f->rank = args->rank;
    f->ranks = args->ranks;
    f->generation = args->generation;
    f->next_id = 1;
    pthread_mutex_init(&f->lock, NULL);
    pthread_mutex_init(&f->abort_lock, NULL);
    pthread_condattr_init(&by_clock);
    pthread_condattr_setclock(&by_clock, CLOCK_MONOTONIC);
    pthread_cond_init(&f->work, &by_clock);
    pthread_condattr_destroy(&by_clock);
    LS_TRY(st, take_members(f, args), out);
    LS_TRY(st, open_segment(f, args, deadline_ns), out);
    LS_TRY(st, open_recorder(f, args), out);
    LS_TRY(st, open_transport(f, args, deadline_ns), out);
    if (f->network)
        LS_TRY(st, ls_fabric_start_progress(f), out);
    *fabric_out = f;
out:
    if (st != LS_OK && f) {
        st = ls_fabric_fail(f); /* ranks that wait for this one need not wait longer */
        ls_fabric_drop(f);
    }
    return st;
}

void ls_fabric_drop(ls_fabric *f)
{
    pthread_mutex_lock(&f->lock);
    bool last = --f->refs == 0;
    f->closing = last;
    pthread_cond_broadcast(&f->work);
    pthread_mutex_unlock(&f->lock);
    if (!last)
        return;
    if (f->has_progress_thread)
        pthread_join(f->progress_thread, NULL);
    ls_fabric_close_transport(f);
    ls_group_close(&f->node_group);
    ls_death_watch_close(f->watch);
    if (f->segment)
        ls_shm_segment_leave(f->segment, f->local);
    if (f->recorder && f->recorder != f->segment) {
        ls_shm_segment_leave(f->recorder, f->recorder_local);
        ls_shm_segment_close(f->recorder);
    }
    ls_shm_segment_close(f->segment);
    ls_mem_free(f->hang_answers);
    pthread_mutex_destroy(&f->lock);
    pthread_mutex_destroy(&f->abort_lock);
    pthread_cond_destroy(&f->work);
    ls_mem_free(f->members);
    ls_mem_free(f->locals);
    ls_mem_free(f);
}
