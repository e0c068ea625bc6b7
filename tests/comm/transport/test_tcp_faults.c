/* test_tcp_faults.c -- the TCP transport when networks and ranks misbehave: resets, flipped bits,
 * cut links, strangers, killed and stopped processes. */
#include "harness.h"
#include "net/sock_io.h"

#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "comm/transport/tcp_impl.h"
#include "comm/transport/tcp_world.h"

/* --- resets and flipped bits --- */

static atomic_long breaks, resumed, damaged;

static void traffic_and_stats(world *w, int rank, ls_transport *transport)
{
    ls_tcp_stats stats;

    world_traffic(w, rank, transport);
    ls_tcp_stats_get(transport, &stats);
    atomic_fetch_add(&breaks, stats.breaks);
    atomic_fetch_add(&resumed, stats.resumed);
    atomic_fetch_add(&damaged, stats.damaged);
}

static void run_through_proxy(long cut_after, long flip_after, int messages)
{
    proxy p;
    world w;

    world_init(&w, 2);
    w.messages = messages;
    w.args.sockets = 2;
    w.args.chunk_bytes = 64 << 10; /* else a chunk is hit five times in a row now and then */
    w.args.zerocopy = cut_after && flip_after ? LS_TCP_ZEROCOPY_ON : LS_TCP_ZEROCOPY_OFF;
    proxy_start(&p, w.address[1]);
    atomic_store(&p.cut_after, cut_after);
    atomic_store(&p.flip_after, flip_after);
    w.addresses[1] = p.address; /* rank 0 connects to rank 1 */
    world_run(&w, traffic_and_stats);
    proxy_stop(&p);
    world_release(&w);
    /* Where the machine is so slow that this takes six seconds, each rank tells of the link. */
    uint64_t told = ls_log_count(LS_LOG_WARN);
    LS_CHECK(told <= (cut_after ? 2 : 0));
    LS_EXPECT_LOG((int)told);
    if (cut_after)
        LS_CHECK(atomic_load(&p.cuts) > 10);
    if (flip_after)
        LS_CHECK(atomic_load(&p.flips) > 5);
}

LS_TEST_SECONDS(tcp_goes_on_in_a_storm_of_resets, 60)
{
    run_through_proxy(1 << 20, 0, 800);
    LS_CHECK(atomic_load(&breaks) > 10);
    LS_CHECK(atomic_load(&resumed) > 10);
}

LS_TEST_SECONDS(tcp_asks_again_for_damaged_frames, 60)
{
    run_through_proxy(0, 3 << 20, 600);
    LS_CHECK(atomic_load(&damaged) > 3);
}

LS_TEST_SECONDS(tcp_survives_resets_and_flips_together, 60)
{
    run_through_proxy(1 << 20, 700 << 10, 800);
}

/* A link that damages every chunk is given up, by name. */
static void send_large_through_noise(world *w, int rank, ls_transport *transport)
{
    uint8_t *memory = ls_mem_alloc(4 << 20);
    ls_message message = {.peer = 1 - rank, .tag = 1, .data = memory, .bytes = 4 << 20};
    ls_message *one[] = {&message};

    (void)w;
    LS_CHECK(memory);
    ls_status st = rank == 0 ? transport->table->send(transport, &message)
                             : transport->table->receive(transport, &message);
    if (st == LS_OK)
        st = world_wait(transport, one, 1, WORLD_SOON);
    LS_CHECK_EQ(st, LS_EPEER); /* no mistake of the user's: others may go on without one of them */
    if (rank == 1)
        LS_CHECK_EQ(ls_err_last()->unreached, 1 + 0);
    LS_CHECK(strstr(ls_err_last()->text, "the link to rank"));
    LS_CHECK(strstr(ls_err_last()->text, "5 times in a row"));
    ls_mem_free(memory);
}

LS_TEST(tcp_gives_up_a_link_that_damages_everything)
{
    proxy p;
    world w;

    world_init(&w, 2);
    w.args.chunk_bytes = 1 << 20;
    proxy_start(&p, w.address[1]);
    atomic_store(&p.flip_after, 100 << 10);
    w.addresses[1] = p.address;
    world_run(&w, send_large_through_noise);
    proxy_stop(&p);
    world_release(&w);
}

/* --- strangers --- */

static void *bother(void *context)
{
    world *w = context;
    ls_sock_address at;
    uint8_t noise[4096];

    memset(noise, 0xa5, sizeof noise);
    for (int i = 0; i < 40; i++) {
        int fd = -1;
        LS_CHECK_OK(ls_sock_resolve(w->address[i % 2], 0, &at));
        if (ls_sock_connect(&at, ls_test_soon(), &fd) != LS_OK)
            continue;
        (void)ls_sock_io_write(fd, noise, (size_t)(i % 5) * 1000 + 70, ls_test_soon());
        usleep(1000);
        ls_sock_close(&fd);
    }
    return NULL;
}

LS_TEST_SECONDS(tcp_strangers_are_refused_and_disturb_nobody, 30)
{
    pthread_t thread;
    world w;

    world_init(&w, 2);
    w.messages = 600;
    LS_CHECK_EQ(pthread_create(&thread, NULL, bother, &w), 0);
    world_run(&w, world_traffic);
    pthread_join(thread, NULL);
    world_release(&w);
    LS_CHECK(ls_log_count(LS_LOG_WARN) > 0);
    LS_EXPECT_LOG((int)ls_log_count(LS_LOG_WARN));
}

typedef struct opener {
    world *w;
    int rank;
    ls_tcp_args args;
    int64_t wait_ns;
    ls_status st;
    char text[400];
} opener;

static void *run_open(void *context)
{
    opener *o = context;
    ls_transport *transport = NULL;
    ls_tcp_args args = o->args;

    args.rank = o->rank;
    args.ranks = 2;
    args.addresses = o->w->addresses;
    args.listen_fd = o->w->listen_fd[o->rank];
    o->st = ls_tcp_open(&transport, &args, ls_time_now_ns() + o->wait_ns);
    snprintf(o->text, sizeof o->text, "%.399s", ls_err_last()->text);
    if (transport)
        transport->table->close(transport);
    return NULL;
}

static void open_two(opener *both)
{
    pthread_t threads[2];

    for (int r = 0; r < 2; r++)
        LS_CHECK_EQ(pthread_create(&threads[r], NULL, run_open, &both[r]), 0);
    for (int r = 0; r < 2; r++)
        pthread_join(threads[r], NULL);
}

LS_TEST(tcp_refuses_another_secret_generation_or_setting)
{
    static const uint8_t secrets[2][32] = {"one", "two"};
    static const char *const says[] = {"does not know the secret of this job",
                                       "it is of generation 4, this side of 3", "other settings"};

    for (int what = 0; what < 3; what++) {
        opener both[2];
        world w;

        world_init(&w, 2);
        for (int r = 0; r < 2; r++) {
            both[r] = (opener){.w = &w, .rank = r, .wait_ns = 1500 * LS_NS_PER_MS};
            both[r].args.secret = secrets[what == 0 ? r : 0];
            both[r].args.generation = what == 1 ? 3 + (uint64_t)r : 3;
            both[r].args.sockets = 2;
            both[r].args.chunk_bytes = what == 2 ? (r + 1) * 65536 : 65536;
        }
        open_two(both);
        LS_CHECK(both[0].st == LS_EPEER || both[0].st == LS_EUSAGE);
        LS_CHECK(both[1].st != LS_OK);
        if (!strstr(both[0].text, says[what]) && what != 2)
            ls_test_fail(__FILE__, __LINE__, "case %d said \"%s\"", what, both[0].text);
        if (what == 2)
            LS_CHECK(strstr(both[0].text, says[2]) || strstr(both[1].text, says[2]));
        world_release(&w);
    }
    LS_CHECK_EQ(ls_log_count(LS_LOG_WARN), 2); /* one audit line for each refusal */
    LS_EXPECT_LOG(2);
}

/* --- reasons travel --- */

static void abort_from_zero(world *w, int rank, ls_transport *transport)
{
    char byte;
    ls_message never = {.peer = rank == 2 ? 1 : 2, .tag = 1, .data = &byte, .bytes = 1};
    ls_message *one[] = {&never};

    (void)w;
    if (rank == 0) {
        ls_tcp_abort(transport, "the data on rank 0 ended early");
        LS_CHECK_FAILS(world_wait(transport, one, 1, 0), LS_EPEER, "ended early");
        return;
    }
    LS_CHECK_OK(transport->table->receive(transport, &never));
    int64_t began = ls_time_now_ns();
    LS_CHECK_FAILS(world_wait(transport, one, 1, WORLD_SOON), LS_EPEER,
                   "the data on rank 0 ended early (said rank 0)");
    LS_CHECK_WITHIN(began, 5000);
}

LS_TEST(tcp_a_reason_reaches_every_rank)
{
    world w;

    world_init(&w, 4);
    world_run(&w, abort_from_zero);
    world_release(&w);
}

static atomic_int through; /* ranks that have what they need */

/* More ranks than are joined pair by pair: connections are made at first use, reasons hop. */
static void far_away(world *w, int rank, ls_transport *transport)
{
    int to = (rank + w->ranks / 2) % w->ranks, from = (rank + w->ranks - w->ranks / 2) % w->ranks;
    int number = rank, got = -1;
    uint8_t *memory = ls_mem_alloc(200000);
    ls_message send = {.peer = to, .tag = 1, .data = &number, .bytes = sizeof number};
    ls_message receive = {.peer = from, .tag = 1, .data = &got, .bytes = sizeof got};
    ls_message large = {.peer = to, .tag = 2, .data = memory, .bytes = 100000};
    ls_message large_in = {.peer = from, .tag = 2, .data = memory + 100000, .bytes = 100000};
    ls_message never = {.peer = (rank + 1) % w->ranks, .tag = 3, .data = memory, .bytes = 1};
    ls_message *four[] = {&send, &receive, &large, &large_in}, *one[] = {&never};

    LS_CHECK(memory);
    LS_CHECK(!ls_tcp_is_neighbour(rank, to, w->ranks));
    LS_CHECK_OK(transport->table->send(transport, &send));
    LS_CHECK_OK(transport->table->receive(transport, &receive));
    LS_CHECK_OK(transport->table->send(transport, &large));
    LS_CHECK_OK(transport->table->receive(transport, &large_in));
    LS_CHECK_OK(world_wait(transport, four, 4, WORLD_SOON));
    LS_CHECK_EQ(got, from);
    LS_CHECK_OK(transport->table->receive(transport, &never));
    atomic_fetch_add(&through, 1);
    if (rank == 0) {
        for (int64_t until = ls_test_soon();
             atomic_load(&through) < w->ranks && ls_time_now_ns() < until;)
            (void)world_wait(transport, one, 1, 10 * LS_NS_PER_MS);
        ls_tcp_abort(transport, "rank 0 has had enough");
    }
    LS_CHECK_FAILS(world_wait(transport, one, 1, WORLD_SOON), LS_EPEER, "rank 0 has had enough");
    ls_mem_free(memory);
}

LS_TEST_SECONDS(tcp_large_worlds_connect_at_first_use, 60)
{
    struct rlimit files;
    world w;

    LS_CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0);
    if (files.rlim_max < 4096)
        ls_test_skip("only %ld descriptors are allowed", (long)files.rlim_max);
    files.rlim_cur = 4096;
    LS_CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
    world_init(&w, 70);
    w.args.resume_ns = ls_test_ms(10000); /* 70 threads: a rank may not be let for a second */
    world_run(&w, far_away);
    world_release(&w);
}

/* --- processes --- */

typedef struct shared {
    atomic_int ready;
    atomic_int answered; /* ranks that have their error */
    _Atomic int64_t failed_ns[WORLD_RANKS];
    char text[WORLD_RANKS][300];
    atomic_int code[WORLD_RANKS];
} shared;

static shared *share(void)
{
    void *p = mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    LS_CHECK(p != MAP_FAILED);
    return p;
}

/* Send and receive with the next rank in a ring until something fails. */
static void stream(world *w, int rank, shared *s, bool busy)
{
    static uint8_t out[1 << 20], in[1 << 20];
    ls_transport *transport = NULL;
    ls_status st = world_open(w, rank, &transport);
    int next = (rank + 1) % w->ranks, before = (rank + w->ranks - 1) % w->ranks;

    for (uint64_t tag = 1; st == LS_OK; tag++) {
        int64_t bytes = busy ? (int64_t)sizeof out : 8;
        ls_message send = {.peer = next, .tag = tag, .data = out, .bytes = bytes};
        ls_message receive = {.peer = before, .tag = tag, .data = in, .bytes = bytes};
        ls_message *both[] = {&send, &receive};
        if (tag == 3)
            atomic_fetch_add(&s->ready, 1);
        if (!busy && tag > 3 && rank == 0) /* everybody else waits for what never comes */
            st = world_wait(transport, both, 0, 0);
        else
            st = transport->table->send(transport, &send);
        if (st == LS_OK)
            st = transport->table->receive(transport, &receive);
        if (st == LS_OK)
            st = world_wait(transport, both, 2, WORLD_SOON);
    }
    atomic_store(&s->failed_ns[rank], ls_time_now_ns());
    snprintf(s->text[rank], sizeof s->text[rank], "%.299s", ls_err_last()->text);
    atomic_store(&s->code[rank], (int)st);
    if (transport)
        transport->table->close(transport);
}

static pid_t start_rank(world *w, int rank, shared *s, bool busy)
{
    pid_t pid = fork();

    LS_CHECK(pid >= 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int r = 0; r < w->ranks; r++) /* a listening socket belongs to its rank alone */
        if (r != rank)
            ls_sock_close(&w->listen_fd[r]);
    stream(w, rank, s, busy);
    _exit(0);
}

/* How many of the others were told later than after a second. */
static int kill_one(int victim, bool busy)
{
    enum { RANKS = 4 };
    shared *s = share();
    pid_t pids[RANKS];
    char name[32];
    int late = 0;
    world w;

    world_init(&w, RANKS);
    for (int r = 0; r < RANKS; r++)
        pids[r] = start_rank(&w, r, s, busy);
    world_release(&w); /* the parent's copies */
    int64_t until = ls_test_soon();
    while (atomic_load(&s->ready) < RANKS && ls_time_now_ns() < until)
        usleep(1000);
    LS_CHECK_EQ(atomic_load(&s->ready), RANKS);
    usleep(50000);
    int64_t killed = ls_time_now_ns();
    kill(pids[victim], SIGKILL);
    for (int r = 0; r < RANKS; r++)
        waitpid(pids[r], NULL, 0);
    snprintf(name, sizeof name, "rank %d (", victim);
    for (int r = 0; r < RANKS; r++) {
        if (r == victim)
            continue;
        LS_CHECK_EQ(atomic_load(&s->code[r]), LS_EPEER);
        if (!strstr(s->text[r], name) || !strstr(s->text[r], "is gone"))
            ls_test_fail(__FILE__, __LINE__, "rank %d said \"%s\"", r, s->text[r]);
        int64_t took_ns = atomic_load(&s->failed_ns[r]) - killed;
        late += took_ns > ls_test_ms(1000);
        if (took_ns > ls_test_ms(5000))
            ls_test_fail(__FILE__, __LINE__, "rank %d took %.2f s", r, (double)took_ns / 1e9);
    }
    munmap(s, sizeof *s);
    return late;
}

LS_TEST_SECONDS(tcp_a_killed_rank_is_named_by_all_within_a_second, 40)
{
    int late = 0;

    for (int round = 0; round < 3; round++)
        for (int victim = 0; victim < 4; victim += 3)
            late += kill_one(victim, true) + kill_one(victim, false);
    LS_CHECK(late < 18); /* of 36: the machine may be busy elsewhere */
}

/* A rank is stopped in the middle of a large message, for longer than every time limit of TCP; the
 * other's deadline passes, it is named as silent, and when it goes on everything arrives. */
static void stop_one(int stopped)
{
    enum { BYTES = 48 << 20 };
    ls_transport *transport = NULL;
    uint8_t *memory = ls_mem_alloc(BYTES);
    ls_message message = {.peer = stopped, .tag = 1, .data = memory, .bytes = BYTES},
               *one[] = {&message};
    bool moved;
    world w;

    LS_CHECK(memory);
    for (size_t i = 0; i < BYTES; i += 4096)
        memory[i] = (uint8_t)(i >> 12);
    world_init(&w, 2);
    w.args.user_timeout_ns = 150 * LS_NS_PER_MS;
    w.args.resume_ns = 300 * LS_NS_PER_MS;
    pid_t pid = fork();
    LS_CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        ls_sock_close(&w.listen_fd[1 - stopped]);
        message.peer = 1 - stopped;
        memset(memory, 0, BYTES);
        if (world_open(&w, stopped, &transport) != LS_OK ||
            transport->table->receive(transport, &message) != LS_OK)
            _exit(1);
        for (int i = 0; i < 3; i++) {
            (void)transport->table->poll(transport, &moved);
            usleep(2000);
        }
        raise(SIGSTOP);
        if (world_wait(transport, one, 1, WORLD_SOON) != LS_OK) {
            fprintf(stderr, "the stopped rank: %s\n", ls_err_last()->text);
            _exit(2);
        }
        for (size_t i = 0; i < BYTES; i += 4096)
            if (memory[i] != (uint8_t)(i >> 12))
                _exit(3);
        _exit(0);
    }
    ls_sock_close(&w.listen_fd[stopped]);
    LS_CHECK_OK(world_open(&w, 1 - stopped, &transport));
    LS_CHECK_OK(transport->table->send(transport, &message));
    LS_CHECK_EQ(world_wait(transport, one, 1, 2500 * LS_NS_PER_MS), LS_EDEADLINE);
    int64_t heard = ls_tcp_heard(transport, stopped);
    LS_CHECK(heard > 0 && ls_time_now_ns() - heard > LS_NS_PER_S);
    kill(pid, SIGCONT);
    LS_CHECK_OK(world_wait(transport, one, 1, WORLD_SOON));
    int status = -1;
    waitpid(pid, &status, 0);
    LS_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    transport->table->close(transport);
    world_release(&w);
    ls_mem_free(memory);
}

LS_TEST_SECONDS(tcp_a_stopped_rank_is_silent_not_dead, 30)
{
    stop_one(1); /* the side that accepts */
}

LS_TEST_SECONDS(tcp_a_stopped_rank_that_connects_is_not_dead, 30)
{
    stop_one(0);
}

/* A rank that is stopped right after a connection broke, for longer than it would wait for the next
 * one, has missed nothing: what counts is the time in which it looked. */
static void stop_observer(int stopped)
{
    ls_transport *transport = NULL;
    char byte = 'x';
    ls_message message = {.peer = 1 - stopped, .tag = 1, .data = &byte, .bytes = 1},
               *one[] = {&message};
    int status = -1;
    world w;

    world_init(&w, 2);
    w.args.resume_ns = 100 * LS_NS_PER_MS;
    pid_t pid = fork();
    LS_CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        ls_sock_close(&w.listen_fd[1 - stopped]);
        if (world_open(&w, stopped, &transport) != LS_OK)
            _exit(1);
        ls_tcp_break(&((ls_tcp *)transport)->links[1 - stopped].channels[0], "for a test");
        raise(SIGSTOP);
        if (transport->table->send(transport, &message) != LS_OK ||
            world_wait(transport, one, 1, WORLD_SOON) != LS_OK) {
            fprintf(stderr, "the stopped rank: %s\n", ls_err_last()->text);
            _exit(2);
        }
        transport->table->close(transport);
        _exit(0);
    }
    message.peer = stopped;
    ls_sock_close(&w.listen_fd[stopped]);
    LS_CHECK_OK(world_open(&w, 1 - stopped, &transport));
    LS_CHECK_OK(transport->table->receive(transport, &message));
    LS_CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    LS_CHECK(WIFSTOPPED(status));
    LS_CHECK_EQ(world_wait(transport, one, 1, 400 * LS_NS_PER_MS), LS_EDEADLINE);
    kill(pid, SIGCONT);
    LS_CHECK_OK(world_wait(transport, one, 1, WORLD_SOON));
    waitpid(pid, &status, 0);
    LS_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    transport->table->close(transport);
    world_release(&w);
}

LS_TEST_SECONDS(tcp_an_observer_that_was_stopped_calls_nobody_gone, 60)
{
    stop_observer(0);
    stop_observer(1);
}

/* --- a cut link --- */

static void set_loopback(bool up)
{
    struct ifreq request = {.ifr_flags = 0};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    memcpy(request.ifr_name, "lo", 3);
    LS_CHECK(fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &request) == 0);
    request.ifr_flags = (short)(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
    LS_CHECK(ioctl(fd, SIOCSIFFLAGS, &request) == 0);
    close(fd);
}

static _Atomic int64_t cut_ns, noticed_ns;

static void wait_for_the_cut(world *w, int rank, ls_transport *transport)
{
    char byte;
    ls_message never = {.peer = 1 - rank, .tag = 1, .data = &byte, .bytes = 1}, *one[] = {&never};

    (void)w;
    LS_CHECK_OK(transport->table->receive(transport, &never));
    if (rank == 0) {
        LS_CHECK_EQ(world_wait(transport, one, 1, 300 * LS_NS_PER_MS), LS_EDEADLINE);
        atomic_store(&cut_ns, ls_time_now_ns());
        set_loopback(false);
    }
    ls_status st = world_wait(transport, one, 1, WORLD_SOON);
    if (rank == 0)
        atomic_store(&noticed_ns, ls_time_now_ns());
    LS_CHECK_EQ(st, LS_EPEER);
    LS_CHECK(strstr(ls_err_last()->text, rank == 0 ? "rank 1 (" : "rank 0 ("));
}

LS_TEST(tcp_a_cut_link_is_noticed_while_idle)
{
    int64_t best = INT64_MAX;

    if (unshare(CLONE_NEWNET) != 0)
        ls_test_skip("no network namespace for this test: %s", strerror(errno));
    for (int i = 0; i < 10 && best >= LS_NS_PER_S; i++) { /* the machine may be busy elsewhere */
        world w;
        set_loopback(true);
        world_init(&w, 2);
        world_run(&w, wait_for_the_cut);
        world_release(&w);
        best = ls_min_i64(best, atomic_load(&noticed_ns) - atomic_load(&cut_ns));
    }
    if (best >= ls_test_ms(1000))
        ls_test_fail(__FILE__, __LINE__, "noticed after %.2f s", (double)best / 1e9);
}
