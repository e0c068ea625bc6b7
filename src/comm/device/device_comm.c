/* device_comm.c -- device communicators: which provider, opening, and the thread that ends what hangs.
 *
 *     trainer     queue 1, 2, 3              queue 4, 5            waits for the stream
 *     thread      mark behind 3 | looks ... reached | mark behind 5 | looks ... a rank died: abort
 *     stream      1 2 3 ........................ 4 5 (hangs)                        ends
 *
 * The thread sleeps while nothing is queued. It records an event behind the calls so far, looks
 * every few milliseconds whether the device has come to it, and meanwhile asks the host communicator
 * (which hears of deaths) and the provider for failures. An error of the provider is often the echo
 * of a death; so both threads give the host communicator two seconds to name the cause first. */
#include "comm/device/device_comm_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"

enum { LOOK_NS = 5000000, IDLE_NS = 1000000, LIMIT_S = 600, CAUSE_S = 2 };

static const ls_device_provider *const providers[] = {&ls_device_comm_nccl, &ls_device_comm_host};

static const ls_device_provider *find(const char *name)
{
    for (size_t i = 0; i < LS_COUNT(providers); i++)
        if (strcmp(providers[i]->name, name) == 0)
            return providers[i];
    return NULL;
}

/* --- choosing ----------------------------------------------------------------------------------- */

/* What each rank reports. */
typedef struct facts {
    char host[64], bus_id[24];
    int version;   /* of NCCL; 0: it cannot be used, because */
    char why[136]; /* beside rank and host in a reason */
} facts;

static ls_status meet(ls_comm *comm, const facts *own, facts *all, int64_t deadline_ns)
{
    int n = ls_comm_ranks(comm);
    ls_status st;

    LS_TRY(st,
           ls_comm_run(comm,
                       &(ls_coll){.kind = LS_COLL_GATHER,
                                  .type = LS_U8,
                                  .count = sizeof *own,
                                  .in = own,
                                  .out = ls_comm_rank(comm) == 0 ? all : NULL},
                       deadline_ns),
           out);
    st = ls_comm_run(comm,
                     &(ls_coll){.kind = LS_COLL_BROADCAST,
                                .type = LS_U8,
                                .count = n * (int64_t)sizeof *own,
                                .in = all,
                                .out = all},
                     deadline_ns);
out:
    return st;
}

static bool share_cards(const facts *all, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (strcmp(all[i].host, all[k].host) == 0 && strcmp(all[i].bus_id, all[k].bus_id) == 0)
                return true;
    return false;
}

static bool one_host(const facts *all, int n)
{
    for (int i = 1; i < n; i++)
        if (strcmp(all[i].host, all[0].host) != 0)
            return false;
    return true;
}

/* NCCL refuses two ranks of a machine on one card. Ranks that say they are machines of their own
 * it takes; then they reach each other over the network, on one machine over the loopback. A process
 * keeps its name for as long as it lives, whatever rank it is, so the name is that of the process. */
static ls_status count_as_hosts(bool loopback)
{
    char name[96] = "", host[64] = "";

    gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, "%s-%d", host, (int)getpid());
    if (setenv("NCCL_HOSTID", name, 0) != 0 ||
        (loopback && setenv("NCCL_SOCKET_IFNAME", "lo", 0) != 0))
        return ls_fail_sys(LS_ENOMEM, "cannot set an environment variable");
    return LS_OK;
}

static void say_version(int version, char text_out[16])
{
    snprintf(text_out, 16, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

/* The first reason why these ranks cannot use NCCL together; false: they can. */
static bool cannot(const facts *all, int n, char text_out[240])
{
    char first[16], other[16];

    for (int r = 0; r < n; r++)
        if (all[r].version == 0) {
            snprintf(text_out, 240, "rank %d on \"%s\" has no NCCL: %s", r, all[r].host,
                     all[r].why);
            return true;
        }
    for (int r = 1; r < n; r++)
        if (all[r].version != all[0].version) {
            say_version(all[0].version, first);
            say_version(all[r].version, other);
            snprintf(text_out, 240, "rank 0 on \"%s\" has NCCL %s and rank %d on \"%s\" has %s",
                     all[0].host, first, r, all[r].host, other);
            return true;
        }
    return false;
}

/* The same on all ranks, from the same facts. */
static ls_status decide(const facts *all, int n, const char *wish, ls_device_comm_choice *choice)
{
    bool asked = strcmp(wish, "nccl") == 0;
    char version[16];

    choice->provider = "host";
    choice->shared_cards = share_cards(all, n);
    if (cannot(all, n, choice->why)) {
        if (!asked)
            return LS_OK;
        ls_fail(LS_EUSAGE, "exchange.device cannot be nccl: %s", choice->why);
        ls_err_hint("Install the same NCCL (2.18 or later) on all machines, name it in "
                    "LINESHAFT_NCCL, or set exchange.device: host.");
        return LS_EUSAGE;
    }
    say_version(all[0].version, version);
    if (choice->shared_cards && !asked) {
        snprintf(choice->why, sizeof choice->why, "ranks share a card");
        return LS_OK;
    }
    choice->provider = "nccl";
    snprintf(choice->why, sizeof choice->why, "NCCL %s, %s", version,
             choice->shared_cards ? "ranks share a card: over the loopback or the network"
                                  : "every rank has a card of its own");
    return LS_OK;
}

ls_status ls_device_comm_choose(ls_comm *comm, ls_device *device, const char *wish,
                                int64_t deadline_ns, ls_device_comm_choice *choice_out)
{
    int n = ls_comm_ranks(comm);
    ls_device_info info = ls_device_describe(device);
    ls_device_comm_choice choice = {.provider = "host"};
    facts own = {.version = 0}, *all;
    ls_status st;

    if (strcmp(wish, "host") == 0) {
        snprintf(choice.why, sizeof choice.why, "as asked for");
        *choice_out = choice;
        return LS_OK;
    }
    all = ls_mem_array((size_t)n, sizeof *all);
    if (!all)
        return ls_fail(LS_ENOMEM, "no memory for a table of %d ranks", n);
    gethostname(own.host, sizeof own.host - 1);
    snprintf(own.bus_id, sizeof own.bus_id, "%s", info.bus_id);
    char reason[160] = "";
    if (ls_device_comm_nccl.unusable(device, &own.version, reason))
        own.version = 0;
    snprintf(own.why, sizeof own.why, "%.135s", reason);
    LS_TRY(st, meet(comm, &own, all, deadline_ns), out);
    LS_TRY(st, decide(all, n, wish, &choice), out);
    if (choice.shared_cards && strcmp(choice.provider, "nccl") == 0)
        LS_TRY(st, count_as_hosts(one_host(all, n)), out);
    *choice_out = choice;
out:
    ls_mem_free(all);
    return st;
}

/* --- failing ------------------------------------------------------------------------------------ */

const char *ls_device_comm_last(ls_device_comm *dc, char text_out[160])
{
    pthread_mutex_lock(&dc->lock);
    snprintf(text_out, 160, "device %s %" PRId64 " of %" PRId64 " bytes (%s, step %" PRId64 ")",
             ls_coll_kind_name(dc->last_kind), (int64_t)atomic_load(&dc->queued), dc->last_bytes,
             dc->args.axis, dc->step);
    pthread_mutex_unlock(&dc->lock);
    return text_out;
}

ls_status ls_device_comm_check(ls_device_comm *dc)
{
    if (atomic_load(&dc->broken))
        return ls_err_adopt(&dc->why);
    return ls_comm_check(dc->args.comm);
}

ls_status ls_device_comm_still(ls_device_comm *dc, int64_t deadline_ns, const char *what)
{
    char text[160];
    ls_status st = ls_device_comm_check(dc);

    if (st == LS_OK && ls_time_now_ns() > deadline_ns)
        st = ls_fail(LS_EDEADLINE, "rank %d waited in vain to %s; last call: %s", dc->rank, what,
                     ls_device_comm_last(dc, text));
    return st;
}

/* This thread's last error becomes that of the communicator; the others hear it. */
static void fail(ls_device_comm *dc)
{
    if (atomic_load(&dc->broken))
        return;
    dc->why = *ls_err_last();
    atomic_store(&dc->broken, true);
    ls_comm_abort(dc->args.comm, dc->why.text);
    if (dc->provider->abort)
        dc->provider->abort(dc);
}

/* --- the thread --------------------------------------------------------------------------------- */

static void nap(int64_t ns)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

/* A failure of the provider, unless the host communicator names the cause in time. */
static ls_status find_cause(ls_device_comm *dc)
{
    ls_err_record first = *ls_err_last();
    int64_t until_ns = ls_time_now_ns() + CAUSE_S * LS_NS_PER_S;

    while (ls_time_now_ns() < until_ns && !atomic_load(&dc->closing)) {
        ls_status st = ls_comm_check(dc->args.comm);
        if (st != LS_OK)
            return st;
        nap(LOOK_NS);
    }
    return ls_err_adopt(&first);
}

static ls_status look(ls_device_comm *dc, int64_t since_ns)
{
    int64_t limit_ns = dc->args.limit_ns ? dc->args.limit_ns : LIMIT_S * LS_NS_PER_S;
    char text[160];
    ls_status st = ls_comm_check(dc->args.comm);

    if (st != LS_OK)
        return st;
    st = dc->provider->poll(dc);
    if (st != LS_OK)
        return find_cause(dc);
    if (ls_time_now_ns() - since_ns > limit_ns)
        st = ls_fail(LS_EDEADLINE, "rank %d: queued work has not ended for %lld s; last call: %s",
                     dc->rank, (long long)(limit_ns / LS_NS_PER_S), ls_device_comm_last(dc, text));
    return st;
}

/* Whether the device has come to the mark. A failure of the device is its own stream's to report. */
static bool reached(ls_device_comm *dc)
{
    bool there = ls_event_sync(dc->mark, ls_time_now_ns()) != LS_EDEADLINE;

    ls_err_clear();
    return there;
}

static void *watch(void *arg)
{
    ls_device_comm *dc = arg;
    int64_t marked = 0, since_ns = 0;
    bool waits = false;

    if (ls_device_enter(dc->args.device) != LS_OK) {
        fail(dc);
        return NULL;
    }
    while (!atomic_load(&dc->closing) && !atomic_load(&dc->broken)) {
        int64_t queued = atomic_load(&dc->queued);
        if (!waits && queued > marked) {
            ls_event_record(dc->mark, atomic_load(&dc->stream));
            marked = queued;
            since_ns = ls_time_now_ns();
            waits = true;
        }
        if (!waits) {
            nap(IDLE_NS);
            continue;
        }
        if (look(dc, since_ns) != LS_OK)
            fail(dc);
        else if (reached(dc))
            waits = false;
        if (waits)
            nap(LOOK_NS);
    }
    return NULL;
}

/* --- opening ------------------------------------------------------------------------------------ */

static ls_status share_id(ls_device_comm *dc, void *id, int64_t deadline_ns)
{
    ls_status st = LS_OK;

    if (dc->provider->id_bytes == 0)
        return LS_OK;
    if (dc->rank == 0)
        st = dc->provider->make_id(id);
    if (st != LS_OK)
        return st;
    return ls_comm_run(dc->args.comm,
                       &(ls_coll){.kind = LS_COLL_BROADCAST,
                                  .type = LS_U8,
                                  .count = dc->provider->id_bytes,
                                  .in = id,
                                  .out = id},
                       deadline_ns);
}

static ls_status start_thread(ls_device_comm *dc)
{
    ls_status st = ls_event_create(&dc->mark, dc->args.device);

    if (st != LS_OK)
        return st;
    int e = ls_pool_start_apart(&dc->thread, watch, dc);
    if (e != 0) {
        errno = e;
        return ls_fail_sys(LS_EFAIL, "cannot start the thread that watches device collectives");
    }
    dc->has_thread = true;
    return LS_OK;
}

ls_status ls_device_comm_open(ls_device_comm **dc_out, const ls_device_comm_args *args,
                              int64_t deadline_ns)
{
    ls_device_comm *dc = ls_mem_alloc(sizeof *dc);
    char id[256] = {0};
    ls_status st;

    if (!dc)
        return ls_fail(LS_ENOMEM, "no memory for a communicator");
    memset(dc, 0, sizeof *dc);
    dc->args = *args;
    dc->provider = find(args->provider);
    dc->rank = ls_comm_rank(args->comm);
    dc->ranks = ls_comm_ranks(args->comm);
    dc->grouped = -1;
    pthread_mutex_init(&dc->lock, NULL);
    LS_BUG_IF(!dc->provider || dc->provider->id_bytes > (int64_t)sizeof id,
              "there is no provider \"%s\"", args->provider);
    LS_TRY(st, share_id(dc, id, deadline_ns), out);
    LS_TRY(st, dc->provider->open(dc, id, deadline_ns), out);
    if (dc->provider->watched)
        LS_TRY(st, start_thread(dc), out);
    *dc_out = dc;
out:
    if (st != LS_OK) {
        ls_comm_abort(args->comm, ls_err_last()->text); /* else the others wait for this rank */
        ls_device_comm_close(dc);
    }
    return st;
}

void ls_device_comm_close(ls_device_comm *dc)
{
    if (!dc)
        return;
    atomic_store(&dc->closing, true);
    if (dc->has_thread)
        pthread_join(dc->thread, NULL);
    dc->provider->close(dc);
    ls_event_free(dc->mark);
    pthread_mutex_destroy(&dc->lock);
    ls_mem_free(dc);
}

int ls_device_comm_rank(const ls_device_comm *dc)
{
    return dc->rank;
}

int ls_device_comm_ranks(const ls_device_comm *dc)
{
    return dc->ranks;
}

const char *ls_device_comm_provider(const ls_device_comm *dc)
{
    return dc->provider->name;
}

void ls_device_comm_set_step(ls_device_comm *dc, int64_t step)
{
    pthread_mutex_lock(&dc->lock);
    dc->step = step;
    pthread_mutex_unlock(&dc->lock);
}

/* --- calls -------------------------------------------------------------------------------------- */

static ls_status check_call(const ls_device_comm *dc, const ls_coll *coll)
{
    if (coll->kind == LS_COLL_BARRIER)
        return ls_fail(LS_EUSAGE, "a device communicator has no barrier");
    if (coll->kind == LS_COLL_ALL_TO_ALL && coll->in == coll->out && dc->ranks > 1)
        return ls_fail(LS_EUSAGE, "all_to_all of device memory cannot be in place");
    return ls_coll_check(coll, dc->ranks, dc->rank);
}

static void note(ls_device_comm *dc, ls_stream *stream, const ls_coll *coll)
{
    int64_t in, out;

    ls_coll_spans(coll, dc->ranks, dc->rank, &in, &out);
    pthread_mutex_lock(&dc->lock);
    dc->last_kind = coll->kind;
    dc->last_bytes = ls_max_i64(in, out) * ls_dtype_bytes(coll->type);
    pthread_mutex_unlock(&dc->lock);
    atomic_store(&dc->stream, stream);
}

ls_status ls_device_comm_begin(ls_device_comm *dc)
{
    ls_status st = ls_device_comm_check(dc);

    LS_BUG_IF(dc->grouped >= 0, "a group of calls inside of another one");
    if (st == LS_OK)
        st = dc->provider->begin(dc);
    dc->grouped = st == LS_OK ? 0 : -1;
    return st;
}

ls_status ls_device_comm_end(ls_device_comm *dc)
{
    int calls = dc->grouped;

    LS_BUG_IF(calls < 0, "the end of a group of calls that has not begun");
    dc->grouped = -1;
    ls_status st = dc->provider->end(dc);
    if (calls > 0)
        atomic_fetch_add(&dc->queued, 1);
    return st == LS_EFAIL ? find_cause(dc) : st;
}

ls_status ls_device_comm_queue(ls_device_comm *dc, ls_stream *stream, const ls_coll *coll)
{
    ls_status st = check_call(dc, coll);
    bool alone = dc->grouped < 0;

    if (st != LS_OK)
        return st;
    if (alone)
        LS_TRY(st, ls_device_comm_begin(dc), out);
    dc->grouped++;
    note(dc, stream, coll);
    st = dc->provider->queue(dc, stream, coll);
    if (alone) {
        ls_err_record first = *ls_err_last();
        ls_status end = ls_device_comm_end(dc);
        st = st != LS_OK ? ls_err_adopt(&first) : end;
    }
out:
    return st;
}
