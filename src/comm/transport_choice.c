/* transport_choice.c -- all ranks agree on the transport that moves the data between nodes.
 *
 * TCP is open already: it is authenticated, sees deaths and carries abort reasons. Over it (and
 * over the segment inside a node) every rank learns what all others ask for and whether they can
 * use UCX. UCX is taken when all can. Only then do ranks exchange UCX addresses; from then on the
 * data goes by UCX, with TCP as the watch (transport/guard.h). A last round confirms that all are
 * ready, so no rank sends by UCX to one that failed here and closes.
 *
 * All rounds are an all-gather at distances 1, 2, 4, ..., at which ranks are connected by TCP also
 * in large worlds. Slots lie in the order of distance from the own rank; 5 ranks, rank 0:
 *
 *     have 0        to 4: 0       from 1: 1
 *     have 01       to 3: 01      from 2: 23
 *     have 0123     to 1: 0       from 4: 4         (4 places up is 1 place down)
 *
 * Tags: communicators count from 1, so number 0 is free for these messages. */
#include "comm/comm_impl.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/time.h"
#include "comm/transport/hybrid.h"
#include "comm/transport/guard.h"
#include "comm/transport/ucx.h"
#include "comm/transport/wrap.h"
#include "net/mac.h"

enum { WISH_TAG = 1 << 8, ADDRESS_TAG = 2 << 8, READY_TAG = 3 << 8 };

/* TCP sees deaths; this is for a network that carries nothing any more, or a stopped process. */
static const int64_t SILENCE_NS = 10 * LS_NS_PER_S;
static const int64_t SPIN_NS = 50000;

typedef enum wish_kind { WISH_AUTO, WISH_TCP, WISH_UCX, WISHES } wish_kind;
static const char *const wish_names[] = {
    [WISH_AUTO] = "auto", [WISH_TCP] = "tcp", [WISH_UCX] = "ucx"};

/* What each rank sends to all others first. */
typedef struct wish {
    int32_t kind;
    int32_t address_bytes; /* of UCX; 0: this rank cannot use it */
    uint64_t kernel;       /* the kernel it runs on, which "hosts" may share; 0: not known */
    int64_t cpus;          /* cores that it may use there */
} wish;

/* WISHES: there is no such transport. */
static wish_kind find_wish(const char *transport)
{
    int kind = WISH_AUTO;

    while (transport && kind < WISHES && strcmp(transport, wish_names[kind]) != 0)
        kind++;
    return (wish_kind)kind;
}

bool ls_transport_choice_knows(const char *transport)
{
    return find_wish(transport) < WISHES;
}

/* --- all to all -------------------------------------------------------------------------------*/

/* Until both messages of a round are done, or the deadline names the rank that is late. */
static ls_status wait_for(ls_fabric *f, const ls_message *sent, const ls_message *awaited, int from,
                          int64_t deadline_ns)
{
    ls_status st = LS_OK;

    while (!sent->done || !awaited->done) {
        bool moved = false;
        LS_TRY(st, f->transport->table->poll(f->transport, &moved), out);
        LS_TRY(st, ls_fabric_check(f), out);
        if (ls_time_now_ns() > deadline_ns) {
            st = ls_fail(LS_EDEADLINE, "rank %d (%s) did not say in time how it can be reached",
                         from, f->members[from].host);
            goto out;
        }
        if (!moved)
            f->transport->table->sleep(
                f->transport, ls_min_i64(deadline_ns, ls_time_now_ns() + 10 * LS_NS_PER_MS));
    }
out:
    return st;
}

/* The transport still holds messages that die with this call: report the failure, then close it. */
static ls_status give_up(ls_fabric *f)
{
    ls_fabric_fail(f);
    ls_transport_close(f->transport);
    f->transport = f->network = NULL;
    return ls_err_adopt(&f->why);
}

/* slots: one of `bytes` for each rank, the own one first; filled in the order of distance. */
static ls_status exchange(ls_fabric *f, char *slots, int64_t bytes, uint64_t tag,
                          int64_t deadline_ns)
{
    ls_message send, receive; /* outlive the loop: the transport may hold them until it is closed */
    ls_status st = LS_OK;

    for (int d = 1, step = 0; d < f->ranks; d *= 2, step++) {
        int count = (int)ls_min_i64(d, f->ranks - d), from = (f->rank + d) % f->ranks;
        send = (ls_message){.peer = (f->rank - d + f->ranks) % f->ranks,
                            .tag = tag + (uint64_t)step,
                            .data = slots,
                            .bytes = count * bytes};
        receive = (ls_message){.peer = from,
                               .tag = tag + (uint64_t)step,
                               .data = slots + d * bytes,
                               .bytes = count * bytes};
        LS_TRY(st, f->transport->table->receive(f->transport, &receive), out);
        LS_TRY(st, f->transport->table->send(f->transport, &send), out);
        LS_TRY(st, wait_for(f, &send, &receive, from, deadline_ns), out);
    }
out:
    return st == LS_OK ? LS_OK : give_up(f);
}

/* --- UCX --------------------------------------------------------------------------------------*/

static ls_status derive_key(const ls_comm_args *a, uint64_t *key_out)
{
    static const char info[] = "lineshaft ucx frames";
    uint8_t bytes[8];
    ls_status st = ls_mac_derive((ls_mac_part){&a->generation, sizeof a->generation},
                                 (ls_mac_part){a->secret, LS_COMM_SECRET_BYTES},
                                 (ls_mac_part){info, sizeof info - 1}, bytes, sizeof bytes);

    if (st == LS_OK)
        memcpy(key_out, bytes, sizeof *key_out);
    return st;
}

/* With "auto", a reason against UCX is no failure. */
static ls_status open_ucx(const ls_comm_args *a, wish_kind kind, ls_transport **ucx_out)
{
    ls_ucx_args args = {
        .rank = a->rank, .ranks = a->ranks, .generation = a->generation, .silence_ns = SILENCE_NS};
    ls_err_record before = *ls_err_last();
    ls_status st = LS_OK;

    *ucx_out = NULL;
    if (kind == WISH_TCP || (kind == WISH_AUTO && !ls_ucx_has_rdma()))
        return LS_OK;
    LS_TRY(st, derive_key(a, &args.key), out);
    st = ls_ucx_open(&args, ucx_out);
    if (st != LS_OK && kind == WISH_AUTO) {
        ls_err_adopt(&before);
        st = LS_OK;
    }
out:
    return st;
}

/* The addresses of all, and the links. */
static ls_status connect_ucx(ls_fabric *f, ls_transport *ucx, const wish *wishes,
                             int64_t deadline_ns)
{
    int64_t most = 0;
    const void *own;
    size_t own_len;
    ls_ucx_peer *peers = ls_mem_array((size_t)f->ranks, sizeof *peers);
    char *slots = NULL;
    ls_status st = LS_OK;

    for (int i = 0; i < f->ranks; i++)
        most = ls_max_i64(most, wishes[i].address_bytes);
    if (peers)
        slots = ls_mem_array((size_t)f->ranks, (size_t)most);
    if (!slots) {
        st = ls_fail(LS_ENOMEM, "no memory for the UCX addresses of %d ranks", f->ranks);
        goto out;
    }
    ls_ucx_address(ucx, &own, &own_len);
    memcpy(slots, own, own_len);
    LS_TRY(st, exchange(f, slots, most, ADDRESS_TAG, deadline_ns), out);
    for (int i = 0; i < f->ranks; i++)
        peers[(f->rank + i) % f->ranks] =
            (ls_ucx_peer){slots + i * most, (size_t)wishes[i].address_bytes};
    LS_TRY(st, ls_ucx_connect(ucx, peers), out);
out:
    ls_mem_free(slots);
    ls_mem_free(peers);
    return st;
}

/* --- crowds ------------------------------------------------------------------------------------*/

static uint64_t own_kernel(void)
{
    char id[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, id, sizeof id);

    if (fd >= 0)
        close(fd);
    return n > 0 ? ls_hash_bytes(id, (size_t)n).lo : 0;
}

static int64_t own_cpus(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                       : sysconf(_SC_NPROCESSORS_ONLN);
}

/* Whether more ranks wait on this kernel than it has cores for: namespaces of one machine. */
static bool is_crowded(const ls_fabric *f, const wish *wishes)
{
    int64_t ranks = 0, cpus = 0;

    for (int i = 0; i < f->ranks; i++)
        if (wishes[i].kernel == wishes[0].kernel) {
            ranks++;
            cpus = ls_max_i64(cpus, wishes[i].cpus);
        }
    return ranks > cpus;
}

/* --- choosing ---------------------------------------------------------------------------------*/

/* Whether all can use UCX; the log names a rank that cannot. wishes: in the order of distance. */
static ls_status compare(ls_fabric *f, const wish *wishes, bool *ucx_out)
{
    int without = -1;

    for (int i = 0; i < f->ranks; i++) {
        int r = (f->rank + i) % f->ranks, kind = wishes[i].kind, bytes = wishes[i].address_bytes;
        if (kind < 0 || kind >= WISHES || bytes < 0 || bytes > LS_UCX_ADDRESS_BYTES)
            return ls_fail(LS_EDATA,
                           "rank %d (%s) says how it can be reached in a way that cannot "
                           "be understood",
                           r, f->members[r].host);
        if (kind != wishes[0].kind) {
            ls_fail(LS_EUSAGE,
                    "rank %d (%s) asks for the transport \"%s\", rank %d (%s) for \"%s\"", f->rank,
                    f->members[f->rank].host, wish_names[wishes[0].kind], r, f->members[r].host,
                    wish_names[kind]);
            ls_err_hint("Set LINESHAFT_CARRIER to the same on every machine, or nowhere.");
            return LS_EUSAGE;
        }
        if (bytes == 0 && (without < 0 || r < without))
            without = r;
    }
    *ucx_out = without < 0;
    if (wishes[0].kind != WISH_AUTO)
        snprintf(f->between, sizeof f->between, "%s, as asked for", wish_names[wishes[0].kind]);
    else if (*ucx_out)
        snprintf(f->between, sizeof f->between, "ucx: every rank has an RDMA device");
    else
        snprintf(f->between, sizeof f->between,
                 "tcp: rank %d (%s) has no RDMA device that UCX can use", without,
                 f->members[without].host);
    return LS_OK;
}

ls_status ls_transport_choice_inject_faults(ls_fabric *f)
{
    const char *plan = NULL;
    ls_transport *wrapped;

#ifdef LS_FAULTS
    plan = getenv("LINESHAFT_WRAP");
#endif
    if (!f->data || (!(plan && *plan) && !ls_fault_expects(LS_FAULT_AT_LINK)))
        return LS_OK;
    ls_status st = ls_wrap_open(&wrapped, f->data, plan ? plan : "", (uint64_t)f->rank);
    if (st == LS_OK)
        ls_hybrid_set_network(f->transport, wrapped);
    return st;
}

/* Open UCX if it is wanted and possible, exchange wishes, and take it when all ranks can: connect,
 * confirm that all are ready, then put it in place of TCP for the data. */
static ls_status choose(ls_fabric *f, const ls_comm_args *a, wish *wishes, int64_t deadline_ns)
{
    wish_kind kind = find_wish(a->transport);
    ls_transport *ucx = NULL, *data = f->network;
    size_t len = 0;
    const void *own;
    bool all = false;
    ls_status st;

    LS_TRY(st, open_ucx(a, kind, &ucx), out);
    if (ucx)
        ls_ucx_address(ucx, &own, &len);
    wishes[0] = (wish){.kind = (int32_t)kind,
                       .address_bytes = (int32_t)len,
                       .kernel = own_kernel(),
                       .cpus = own_cpus()};
    LS_TRY(st, exchange(f, (char *)wishes, sizeof *wishes, WISH_TAG, deadline_ns), out);
    LS_TRY(st, compare(f, wishes, &all), out);
    f->crowded = is_crowded(f, wishes);
    if (all) {
        ls_guard_args guard = {
            .data = ucx, .watch = f->network, .spin_ns = f->segment ? 0 : SPIN_NS};
        LS_TRY(st, connect_ucx(f, ucx, wishes, deadline_ns), out);
        LS_TRY(st, exchange(f, (char *)wishes, sizeof *wishes, READY_TAG, deadline_ns), out);
        LS_TRY(st, ls_guard_open(&data, &guard), out);
        ucx = NULL;
        ls_hybrid_set_network(f->transport, data);
    }
    f->data = data;
out:
    ls_transport_close(ucx);
    return st;
}

ls_status ls_transport_choice_open(ls_fabric *f, const ls_comm_args *args, int64_t deadline_ns)
{
    wish *wishes = ls_mem_array((size_t)f->ranks, sizeof *wishes);
    ls_status st;

    if (!wishes)
        st = ls_fail(LS_ENOMEM, "no memory for the list of %d ranks", f->ranks);
    else
        st = choose(f, args, wishes, deadline_ns);
    if (st != LS_OK)
        st = ls_fabric_fail(f); /* the others wait for this rank: report why it does not come */
    ls_mem_free(wishes);
    return st;
}
