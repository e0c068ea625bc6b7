/* test_transport_choice.c -- the transport between nodes: chosen by all ranks, broken on purpose.
 *
 * Ranks are processes; which of them share a node is a string with a digit for each ("001": two on
 * node 0, one on node 1). They reach each other over loopback, or each in a network namespace of
 * its own. UCX_TLS=tcp, so that UCX takes a network and not the memory of one kernel. */
#include "harness.h"
#include "comm/comm_impl.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"
#include "comm/node/shm_segment.h"
#include "comm/transport/ucx_here.h"
#include "net/sock.h"

/* NTH_MS: of opening where memory ends; before a rank has come there is no way to tell that it will
 * not. */
enum { MOST = 8, NODES = 10, COUNT = 2 << 20, NTH_MS = 300 };

typedef struct place { /* shared by all ranks */
    ls_comm_member members[MOST];
    pid_t pid[MOST];
    _Atomic int arrived[8];
    _Atomic int64_t when_ns;
    _Atomic int noted; /* by a test, for run_world() to return */
} place;

typedef struct rank {
    int rank, ranks;
    place *p;
    ls_comm_args args;
    ls_comm *comm;
    bool in_time; /* opening ended, well or not, long before its deadline */
} rank;

typedef struct world {
    const char *nodes;     /* "01" */
    const char *transport; /* of all, unless */
    const char *of_last;   /* that of the last rank; NULL: the same */
    const char *wrap;      /* LINESHAFT_WRAP of the last rank */
    bool namespaces;
    int nth;        /* this allocation of the last rank fails */
    bool last_dies; /* by a signal, on purpose */
    void (*before)(rank *r);
    void (*run)(rank *r); /* with the communicator open; NULL: `opened` looks at the result */
    void (*opened)(rank *r, ls_status st);
} world;

static int64_t in_ms(int64_t ms)
{
    return ls_time_now_ns() + ms * LS_NS_PER_MS;
}

static void meet(rank *r, int i)
{
    int64_t until = ls_test_soon();

    r->p->arrived[i]++;
    while (r->p->arrived[i] < r->ranks) {
        if (ls_time_now_ns() > until)
            ls_test_fail(__FILE__, __LINE__, "rank %d waited for the others at %d", r->rank, i);
        usleep(200);
    }
}

/* A namespace each, joined by a pair of virtual links; the kernel takes them back by itself. */
static void enter_namespace(rank *r)
{
    char line[256];

    if (unshare(CLONE_NEWNET | CLONE_NEWNS) != 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("sysfs", "/sys", "sysfs", 0, NULL) != 0)
        ls_test_fail(__FILE__, __LINE__, "cannot make a namespace: %s", strerror(errno));
    meet(r, 0);
    snprintf(line, sizeof line, "ip link add lsbt0 type veth peer name lsbt0 netns %d",
             (int)r->p->pid[1]);
    LS_CHECK(r->rank != 0 || system(line) == 0);
    meet(r, 1);
    snprintf(line, sizeof line,
             "ip addr add 10.213.8.%d/24 dev lsbt0 && ip link set lo up && ip link set lsbt0 up && "
             "for i in $(seq 100); do ip link show lsbt0 | grep -q 'state UP' && exit; sleep 0.02; "
             "done; exit 1",
             r->rank + 1);
    LS_CHECK_EQ(system(line), 0);
    meet(r, 2);
}

static void listen_here(rank *r, bool namespaces)
{
    char text[64] = "127.0.0.1:0";
    ls_sock_address at;

    if (namespaces)
        snprintf(text, sizeof text, "10.213.8.%d:0", r->rank + 1);
    LS_CHECK_OK(ls_sock_resolve(text, ls_test_soon(), &at));
    LS_CHECK_OK(ls_sock_listen(&at, &r->args.listen_fd));
    LS_CHECK_OK(ls_sock_local(r->args.listen_fd, &at));
    snprintf(r->p->members[r->rank].address, sizeof r->p->members[0].address, "%.63s", at.text);
    snprintf(r->p->members[r->rank].host, sizeof r->p->members[0].host, "host%d",
             r->p->members[r->rank].node);
    meet(r, 3);
}

static void be_rank(rank *r, const world *w)
{
    static const uint8_t secret[LS_COMM_SECRET_BYTES] = {1, 2, 3};
    bool last = r->rank == r->ranks - 1;
    ls_status st;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    r->p->pid[r->rank] = getpid();
    setenv("LINESHAFT_TUNE", "off", 1); /* what a wrapper counts begins after opening */
    setenv("UCX_NET_DEVICES", w->namespaces ? "lsbt0" : "lo", 1);
    if (w->wrap && last)
        setenv("LINESHAFT_WRAP", w->wrap, 1);
    if (w->before)
        w->before(r);
    if (w->namespaces)
        enter_namespace(r);
    listen_here(r, w->namespaces);
    r->args.rank = r->rank;
    r->args.ranks = r->ranks;
    r->args.generation = 3;
    r->args.members = r->p->members;
    r->args.secret = secret;
    r->args.transport = last && w->of_last ? w->of_last : w->transport;
    if (last && w->nth)
        ls_mem_fail_nth((uint64_t)w->nth);
    int64_t began = ls_time_now_ns();
    st = ls_comm_open(&r->comm, &r->args, w->nth ? in_ms(NTH_MS) : ls_test_soon());
    ls_mem_fail_nth(0);
    r->in_time = ls_time_now_ns() - began < NTH_MS * LS_NS_PER_MS / 2;
    if (w->opened) {
        w->opened(r, st);
    } else {
        LS_CHECK_OK(st);
        w->run(r);
    }
    ls_comm_close(r->comm);
    close(r->args.listen_fd);
    exit(0);
}

/* Any rank that fails ends the others; the test fails then. */
static void collect(const world *w, const pid_t *pid, int n)
{
    int bad = 0;

    for (int i = 0; i < n; i++) {
        int status, who = 0;
        pid_t p = wait(&status);
        while (who < n - 1 && pid[who] != p)
            who++;
        if (status == 0 || (w->last_dies && who == n - 1 && WIFSIGNALED(status)))
            continue;
        bad++;
        if (WIFSIGNALED(status))
            fprintf(stderr, "    rank %d ended by signal %d\n", who, WTERMSIG(status));
        for (int k = 0; k < n; k++)
            if (k != who && kill(pid[k], 0) == 0)
                kill(pid[k], SIGKILL);
    }
    LS_CHECK_EQ(bad, 0);
}

static int run_world(const world *w)
{
    place *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int n = (int)strlen(w->nodes), boards[NODES], count[NODES] = {0};
    pid_t pid[MOST];

    LS_CHECK(p != MAP_FAILED && n <= MOST);
    for (int r = 0; r < n; r++)
        count[p->members[r].node = w->nodes[r] - '0']++;
    for (int i = 0; i < NODES; i++) {
        boards[i] = -1;
        if (count[i] > 1)
            LS_CHECK_OK(ls_shm_segment_create(
                &(ls_shm_segment_args){.generation = 3, .ranks = count[i]}, &boards[i]));
    }
    for (int i = 0; i < n; i++) {
        rank r = {.rank = i, .ranks = n, .p = p};
        r.args.segment_fd = boards[p->members[i].node];
        pid[i] = fork();
        LS_CHECK(pid[i] >= 0);
        if (pid[i] == 0)
            be_rank(&r, w);
    }
    for (int i = 0; i < NODES; i++)
        if (boards[i] >= 0)
            close(boards[i]);
    collect(w, pid, n);
    n = p->noted;
    munmap(p, sizeof *p);
    return n;
}

static void need_ucx(void)
{
    ls_err_record why;

    setenv("UCX_TLS", "tcp", 1);
    setenv("UCX_MEM_EVENTS", "no", 1); /* ThreadSanitizer does not survive its patches of libc */
    if (!ucx_is_here(&why))
        ls_test_skip("%s", why.text);
}

static void need_namespaces(void)
{
    pid_t pid = fork();
    int status = 0;

    if (pid == 0)
        _exit(unshare(CLONE_NEWNET | CLONE_NEWNS) != 0 ? 1 : system("ip link >/dev/null") ? 2 : 0);
    LS_CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    if (status != 0)
        ls_test_skip(WEXITSTATUS(status) == 1 ? "network namespaces are not allowed here"
                                              : "no ip (iproute2) here");
}

/* The sum over all ranks of r + i, checked; some odd counts. */
static void sums(rank *r, int64_t most)
{
    const int64_t counts[] = {1, 77, ls_min_i64(most, 5003), most};
    int32_t *data = malloc((size_t)most * sizeof *data);

    LS_CHECK(data);
    for (size_t c = 0; c < LS_COUNT(counts); c++) {
        for (int64_t i = 0; i < counts[c]; i++)
            data[i] = (int32_t)(r->rank + i);
        LS_CHECK_OK(ls_comm_run(r->comm,
                                &(ls_coll){.kind = LS_COLL_ALL_REDUCE,
                                           .type = LS_I32,
                                           .count = counts[c],
                                           .in = data,
                                           .out = data},
                                ls_test_soon()));
        for (int64_t i = 0; i < counts[c]; i++)
            if (data[i] != (int32_t)(r->ranks * (r->ranks - 1) / 2 + r->ranks * i))
                ls_test_fail(__FILE__, __LINE__, "element %lld is %d", (long long)i, data[i]);
    }
    free(data);
}

static ls_status barrier(rank *r, int64_t deadline_ns)
{
    return ls_comm_run(r->comm, &(ls_coll){.kind = LS_COLL_BARRIER, .type = LS_U8}, deadline_ns);
}

/* --- choosing ---------------------------------------------------------------------------------*/

static void takes_what_fits(rank *r)
{
    const char *name =
        ls_ucx_has_rdma() ? "ucx: every rank has" : "tcp: rank 0 (host0) has no RDMA";

    LS_CHECK(strncmp(ls_comm_transport(r->comm), name, strlen(name)) == 0);
    sums(r, 100001);
    LS_CHECK_OK(barrier(r, ls_test_soon()));
}

LS_TEST(between_takes_tcp_without_rdma)
{
    run_world(&(world){.nodes = "01", .transport = "auto", .run = takes_what_fits});
    run_world(&(world){.nodes = "00112", .transport = "auto", .run = takes_what_fits});
    run_world(&(world){.nodes = "0123456", .transport = NULL, .run = takes_what_fits});
}

static void needs_none(rank *r)
{
    LS_CHECK_STR(ls_comm_transport(r->comm), "none: all ranks are on one node");
    sums(r, 1000);
}

LS_TEST(between_needs_nothing_on_one_node)
{
    run_world(&(world){.nodes = "000", .transport = "ucx", .run = needs_none});
}

/* TCP has carried the addresses and nothing else. */
static void goes_by_ucx(rank *r)
{
    int64_t tcp_sent = 0, tcp_received = 0, sent, received;
    ls_fabric *f = r->comm->fabric;

    LS_CHECK_STR(ls_comm_transport(r->comm), "ucx, as asked for");
    sums(r, COUNT);
    LS_CHECK_OK(barrier(r, ls_test_soon()));
    for (int o = 0; o < r->ranks; o++) {
        if (f->members[o].node == f->members[r->rank].node)
            continue;
        f->network->table->count(f->network, o, &sent, &received);
        tcp_sent += sent;
        tcp_received += received;
    }
    ls_comm_traffic(r->comm, &sent, &received);
    LS_CHECK(tcp_sent > 0 && tcp_sent < 64 << 10 && tcp_received < 64 << 10);
    if (r->ranks == 2)
        LS_CHECK(sent >= COUNT * 4 && received >= COUNT * 4);
    LS_CHECK_OK(
        barrier(r, ls_test_soon())); /* a rank that closes while others count would be gone */
}

LS_TEST(between_moves_data_by_ucx)
{
    need_ucx();
    run_world(&(world){.nodes = "01", .transport = "ucx", .run = goes_by_ucx});
    run_world(&(world){.nodes = "001", .transport = "ucx", .run = goes_by_ucx});
    run_world(&(world){.nodes = "01234", .transport = "ucx", .run = goes_by_ucx});
}

LS_TEST(between_moves_data_by_ucx_between_namespaces)
{
    need_ucx();
    need_namespaces();
    run_world(&(world){.nodes = "01", .transport = "ucx", .namespaces = true, .run = goes_by_ucx});
}

static void both_named(rank *r LS_UNUSED, ls_status st)
{
    LS_CHECK(st == LS_EUSAGE || st == LS_EPEER);
    LS_CHECK(strstr(ls_err_last()->text, "asks for the transport"));
    LS_CHECK(strstr(ls_err_last()->text, "\"auto\"") && strstr(ls_err_last()->text, "\"tcp\""));
}

LS_TEST(between_names_ranks_that_ask_for_different_transports)
{
    run_world(
        &(world){.nodes = "012", .transport = "tcp", .of_last = "auto", .opened = both_named});
}

static void unknown(rank *r LS_UNUSED, ls_status st)
{
    LS_CHECK_FAILS(st, LS_EUSAGE, "there is no transport \"pigeon\" (auto, tcp, ucx)");
}

LS_TEST(between_refuses_an_unknown_transport)
{
    run_world(&(world){.nodes = "01", .transport = "pigeon", .opened = unknown});
}

static void lose_library(rank *r)
{
    if (r->rank == r->ranks - 1)
        setenv("LINESHAFT_UCX_LIBRARY", "/nonexistent/libucp.so", 1);
}

static void library_missed(rank *r, ls_status st)
{
    if (r->rank == r->ranks - 1)
        LS_CHECK_FAILS(st, LS_EUSAGE, "cannot open the UCX library \"/nonexistent/libucp.so\"");
    else
        LS_CHECK_FAILS(st, LS_EPEER, "cannot open the UCX library \"/nonexistent/libucp.so\"");
}

LS_TEST(between_says_where_ucx_is_missing)
{
    need_ucx();
    run_world(&(world){
        .nodes = "01", .transport = "ucx", .before = lose_library, .opened = library_missed});
}

/* All other ranks hear of it, or their time is over; nothing is lost or freed twice. */
static void runs_out(rank *r, ls_status st)
{
    bool last = r->rank == r->ranks - 1;

    if (last && st == LS_OK)
        r->p->noted = 1;
    if (last && !r->in_time) /* the machine is busy: whatever it is, it is no crash */
        return;
    LS_CHECK(st == LS_OK || st == (last ? LS_ENOMEM : LS_EPEER) || (!last && st == LS_EDEADLINE));
    /* Not with UCX: its TCP falls over an own assertion when a peer closes while it connects. */
    if (st == LS_OK && strcmp(r->args.transport, "tcp") == 0)
        barrier(r, in_ms(300));
}

LS_TEST_SECONDS(between_survives_every_failed_allocation, 60)
{
    int n = 1;

    while (n < 500 &&
           !run_world(&(world){.nodes = "01", .transport = "tcp", .nth = n, .opened = runs_out}))
        n += ls_test_stride(3);
    LS_CHECK(n > 5 && n < 500);
}

LS_TEST_SECONDS(between_survives_every_failed_allocation_with_ucx, 60)
{
    int n = 1;

    need_ucx();
    while (n < 500 &&
           !run_world(&(world){.nodes = "01", .transport = "ucx", .nth = n, .opened = runs_out}))
        n += ls_test_stride(3);
    LS_CHECK(n > 5 && n < 500);
}

/* --- with UCX, TCP still tells who is gone and why ---------------------------------------------*/

static void dies(rank *r)
{
    ls_status st;

    sums(r, 5003);
    LS_CHECK_OK(barrier(r, ls_test_soon()));
    meet(r, 4);
    if (r->rank == r->ranks - 1) {
        r->p->when_ns = ls_time_now_ns();
        raise(SIGKILL);
    }
    st = barrier(r, ls_test_soon());
    LS_CHECK_EQ(st, LS_EPEER);
    LS_CHECK(strstr(ls_err_last()->text, "rank 1"));
    LS_CHECK_WITHIN(r->p->when_ns, 5000);
    LS_CHECK_FAILS(barrier(r, ls_test_soon()), LS_EPEER, "rank 1"); /* and stays so, at once */
}

LS_TEST(between_sees_a_killed_rank_behind_ucx)
{
    need_ucx();
    run_world(&(world){.nodes = "01", .transport = "ucx", .last_dies = true, .run = dies});
}

LS_TEST(between_sees_a_killed_rank_behind_ucx_between_namespaces)
{
    need_ucx();
    need_namespaces();
    run_world(&(world){
        .nodes = "01", .transport = "ucx", .namespaces = true, .last_dies = true, .run = dies});
}

static void gives_up(rank *r)
{
    sums(r, 5003);
    LS_CHECK_OK(barrier(r, ls_test_soon()));
    meet(r, 4); /* one who aborts in the barrier's last moment breaks it for the other */
    if (r->rank == 1) {
        ls_comm_abort(r->comm, "the loss is not a number");
        LS_CHECK_FAILS(barrier(r, ls_test_soon()), LS_EPEER, "the loss is not a number");
    } else {
        LS_CHECK_FAILS(barrier(r, ls_test_soon()), LS_EPEER, "the loss is not a number");
    }
}

LS_TEST(between_carries_a_reason_beside_ucx)
{
    need_ucx();
    for (int i = 0; i < 3; i++)
        run_world(&(world){.nodes = "01", .transport = "ucx", .run = gives_up});
}

static void stops(rank *r)
{
    sums(r, 77);
    LS_CHECK_OK(barrier(r, ls_test_soon()));
    meet(r, 4);
    if (r->rank == 1)
        raise(SIGSTOP);
    LS_CHECK_FAILS(barrier(r, in_ms(1500)), LS_EDEADLINE, " did not end in time: rank 1 (host1)");
    kill(r->p->pid[1], SIGKILL);
}

LS_TEST(between_names_a_stopped_rank)
{
    run_world(&(world){.nodes = "01", .transport = "tcp", .last_dies = true, .run = stops});
}

LS_TEST(between_names_a_stopped_rank_behind_ucx)
{
    need_ucx();
    run_world(&(world){.nodes = "01", .transport = "ucx", .last_dies = true, .run = stops});
}

/* --- LINESHAFT_WRAP ----------------------------------------------------------------------------*/

static void all_right(rank *r)
{
    sums(r, 100001);
    LS_CHECK_OK(barrier(r, ls_test_soon()));
}

LS_TEST(between_works_with_delays)
{
    int64_t began = ls_time_now_ns();

    run_world(&(world){.nodes = "01", .transport = "tcp", .wrap = "delay=20ms", .run = all_right});
    LS_CHECK(ls_time_now_ns() - began > 100 * LS_NS_PER_MS); /* five operations, 20 ms each */
    run_world(&(world){.nodes = "001", .transport = "tcp", .wrap = "delay=2ms", .run = all_right});
}

/* The operation, and the rank that is waited for. */
static void misses(rank *r)
{
    int32_t x[64] = {0};
    ls_coll sum = {.kind = LS_COLL_ALL_REDUCE, .type = LS_I32, .count = 64, .in = x, .out = x};
    ls_status st = ls_comm_run(r->comm, &sum, r->rank == 0 ? in_ms(500) : ls_test_soon());

    if (r->rank == 0)
        LS_CHECK_FAILS(st, LS_EDEADLINE,
                       " did not end in time: rank 1 (host1) is waited for; it has ");
    else
        LS_CHECK_FAILS(st, LS_EPEER, " did not end in time: rank 1 (host1) is waited for");
}

LS_TEST(between_names_the_awaited_rank_when_messages_are_lost)
{
    run_world(&(world){.nodes = "01", .transport = "tcp", .wrap = "drop@2", .run = misses});
    run_world(&(world){.nodes = "01", .transport = "tcp", .wrap = "drop=1", .run = misses});
}

LS_TEST(between_names_the_awaited_rank_behind_ucx)
{
    need_ucx();
    run_world(&(world){.nodes = "01", .transport = "ucx", .wrap = "drop@2", .run = misses});
}

/* What is changed above the transport arrives as it was sent: checksums of frames cannot see it,
 * and nothing in comm looks at values. The first message of an operation says what the rank asks
 * for: a change there is seen (or hits a field that nobody needs). */
static void is_one_bit_off(rank *r)
{
    uint8_t in[4096], out[8192];
    int wrong = 0;

    memset(in, r->rank + 1, sizeof in);
    LS_CHECK_OK(ls_comm_run(
        r->comm,
        &(ls_coll){
            .kind = LS_COLL_ALL_GATHER, .type = LS_U8, .count = sizeof out, .in = in, .out = out},
        ls_test_soon()));
    for (size_t i = 0; i < sizeof out; i++)
        wrong += __builtin_popcount((unsigned)(out[i] ^ (i < sizeof in ? 1 : 2)));
    LS_CHECK_EQ(wrong, r->rank == 0 ? 1 : 0);
}

LS_TEST(between_cannot_see_a_bit_that_changed_above_the_transport)
{
    run_world(
        &(world){.nodes = "01", .transport = "tcp", .wrap = "corrupt@2", .run = is_one_bit_off});
}

static void asks_nonsense(rank *r)
{
    int32_t x[64] = {0};
    ls_coll sum = {.kind = LS_COLL_ALL_REDUCE, .type = LS_I32, .count = 64, .in = x, .out = x};
    ls_status st = ls_comm_run(r->comm, &sum, ls_test_soon());

    if (r->rank == 0 && st != LS_OK)
        LS_CHECK_FAILS(st, LS_EUSAGE, "ranks ask for different things: rank 0 for all_reduce");
    if (r->rank == 0 && st != LS_OK)
        r->p->noted++;
}

/* One bit of the first message, at several places: no crash, no hang, and mostly seen. */
LS_TEST(between_sees_what_was_asked_for_change)
{
    int seen = 0;

    for (int seed = 1; seed <= 12; seed++) {
        char plan[64];
        snprintf(plan, sizeof plan, "corrupt@1,seed=%d", seed);
        seen += run_world(
            &(world){.nodes = "01", .transport = "tcp", .wrap = plan, .run = asks_nonsense});
    }
    LS_CHECK(seen >= 3);
}

static void ends_alone(rank *r)
{
    ls_status st = LS_OK;

    for (int i = 0; i < 100 && st == LS_OK; i++)
        st = barrier(r, ls_test_soon());
    LS_CHECK_FAILS(st, LS_EPEER, "rank 1 (host1");
}

LS_TEST(between_sees_a_rank_that_kills_itself_while_sending)
{
    run_world(&(world){
        .nodes = "01", .transport = "tcp", .wrap = "kill@9", .last_dies = true, .run = ends_alone});
}

static void unread(rank *r, ls_status st)
{
    if (r->rank == 1)
        LS_CHECK_FAILS(st, LS_EUSAGE, "cannot be read at \"fly@7\"");
    else /* it may have been through already */
        LS_CHECK_FAILS(st == LS_OK ? barrier(r, ls_test_soon()) : st, LS_EPEER,
                       "cannot be read at");
}

LS_TEST(between_says_where_a_plan_cannot_be_read)
{
    run_world(
        &(world){.nodes = "01", .transport = "tcp", .wrap = "delay=1ms,fly@7", .opened = unread});
}
