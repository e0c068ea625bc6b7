/* test_ucx.c -- two processes talk through UCX, over loopback and between network namespaces.
 *
 * UCX_TLS=tcp everywhere: left alone, UCX would join processes and namespaces of one kernel by
 * shared memory, and the test would prove nothing about a network. */
#include "harness.h"
#include "comm/transport/ucx_here.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/time.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Before its library is opened for the first time: UCX reads the environment only then. */
static void need_ucx(void)
{
    ls_err_record why;

    setenv("UCX_TLS", "tcp", 1);
    setenv("UCX_MEM_EVENTS", "no", 1); /* ThreadSanitizer does not survive its patches of libc */
    if (!ucx_is_here(&why))
        ls_test_skip("%s", why.text);
}

/* --- two ranks ------------------------------------------------------------------------------ */

enum { RANKS = 2 };

typedef struct segment { /* shared by both ranks */
    char address[RANKS][LS_UCX_ADDRESS_BYTES];
    size_t len[RANKS];
    pid_t pid[RANKS];
    _Atomic int arrived[16]; /* meetings */
    _Atomic int64_t when_ns; /* of what a test measures from */
} segment;

typedef struct rank {
    int rank, other;
    segment *b;
    ls_transport *transport;
} rank;

typedef struct setting {
    void (*run)(rank *r);
    ls_ucx_args args;
    bool namespaces;
    void (*bend)(rank *r); /* changes addresses before connecting */
    bool killed;           /* rank 1 may end by a signal */
} setting;

static int64_t in_ms(int64_t ms)
{
    return ls_time_now_ns() + ms * LS_NS_PER_MS;
}

/* Both ranks come to meeting i. */
static void meet(rank *r, int i)
{
    int64_t until = ls_test_soon();

    r->b->arrived[i]++;
    while (r->b->arrived[i] < RANKS) {
        if (ls_time_now_ns() > until)
            ls_test_fail(__FILE__, __LINE__, "rank %d waited for the other at %d", r->rank, i);
        usleep(200);
    }
}

static ls_status wait_until(ls_transport *c, ls_message *m, int count, int64_t until_ns)
{
    for (;;) {
        ls_status st;
        bool moved, all = true;

        st = c->table->poll(c, &moved);
        if (st != LS_OK)
            return st;
        for (int i = 0; i < count; i++)
            all = all && m[i].done;
        if (all)
            return LS_OK;
        if (ls_time_now_ns() > until_ns)
            return ls_fail(LS_EDEADLINE, "messages are not done");
        if (!moved)
            c->table->sleep(c, until_ns);
    }
}

static ls_status wait_all(ls_transport *c, ls_message *m, int count)
{
    return wait_until(c, m, count, ls_test_soon());
}

static void shell(const char *fmt, ...) LS_PRINTF(1, 2);
static void shell(const char *fmt, ...)
{
    char line[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (system(line) != 0)
        ls_test_fail(__FILE__, __LINE__, "failed: %s", line);
}

/* A namespace without a name for each rank, joined by a pair of virtual links; the kernel takes
 * both back when the ranks end, however they do. */
static void enter_namespace(rank *r)
{
    /* UCX looks for interfaces in /sys, which shows those of the namespace it was mounted in. */
    if (unshare(CLONE_NEWNET | CLONE_NEWNS) != 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("sysfs", "/sys", "sysfs", 0, NULL) != 0)
        ls_test_fail(__FILE__, __LINE__, "cannot make a namespace: %s", strerror(errno));
    meet(r, 14);
    if (r->rank == 0)
        shell("ip link add lsux0 type veth peer name lsux0 netns %d", (int)r->b->pid[1]);
    meet(r, 15);
    shell("ip addr add 10.213.7.%d/24 dev lsux0 && ip link set lo up && ip link set lsux0 up",
          r->rank + 1);
    shell("for i in $(seq 100); do ip link show lsux0 | grep -q 'state UP' && exit; sleep 0.02; "
          "done; "
          "exit 1");
    meet(r, 11);
}

static void open_rank(rank *r, const setting *s)
{
    ls_ucx_args args = s->args;
    ls_ucx_peer peers[RANKS];
    const void *bytes;

    args.rank = r->rank;
    args.ranks = RANKS;
    if (!args.silence_ns) /* on a busy machine a rank may not be let for a second */
        args.silence_ns = 5 * LS_NS_PER_S;
    LS_CHECK_OK(ls_ucx_open(&args, &r->transport));
    LS_CHECK_STR(r->transport->table->name, "ucx");
    ls_ucx_address(r->transport, &bytes, &r->b->len[r->rank]);
    LS_CHECK(r->b->len[r->rank] <= LS_UCX_ADDRESS_BYTES);
    memcpy(r->b->address[r->rank], bytes, r->b->len[r->rank]);
    meet(r, 12);
    if (s->bend)
        s->bend(r);
    for (int i = 0; i < RANKS; i++)
        peers[i] = (ls_ucx_peer){r->b->address[i], r->b->len[i]};
    LS_CHECK_OK(ls_ucx_connect(r->transport, peers));
    meet(r, 13);
}

static void be_rank(int i, segment *b, const setting *s)
{
    rank r = {.rank = i, .other = 1 - i, .b = b};

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("UCX_NET_DEVICES", s->namespaces ? "lsux0" : "lo", 1);
    b->pid[i] = getpid();
    if (s->namespaces)
        enter_namespace(&r);
    open_rank(&r, s);
    s->run(&r);
    if (r.transport)
        r.transport->table->close(r.transport);
    exit(0); /* the leak checker runs here */
}

static void run_pair(const setting *s)
{
    segment *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid[RANKS];
    int bad = 0;

    need_ucx();
    LS_CHECK(b != MAP_FAILED);
    for (int i = 0; i < RANKS; i++) {
        pid[i] = fork();
        LS_CHECK(pid[i] >= 0);
        if (pid[i] == 0)
            be_rank(i, b, s);
    }
    for (int n = 0; n < RANKS; n++) {
        int status, who;
        pid_t p = wait(&status);

        who = p == pid[1];
        if (status == 0 || (s->killed && who == 1 && WIFSIGNALED(status)))
            continue;
        bad++;
        if (WIFSIGNALED(status))
            fprintf(stderr, "    rank %d ended by signal %d\n", who, WTERMSIG(status));
        kill(pid[1 - who], SIGKILL); /* it would wait for this one */
    }
    LS_CHECK_EQ(bad, 0);
}

/* --- moving --------------------------------------------------------------------------------- */

static unsigned char byte_of(int from, uint64_t tag, int64_t i)
{
    return (unsigned char)((uint64_t)i * 31 + tag * 7 + (uint64_t)from * 101 + (uint64_t)(i >> 9));
}

static void fill(unsigned char *data, int64_t bytes, int from, uint64_t tag)
{
    for (int64_t i = 0; i < bytes; i++)
        data[i] = byte_of(from, tag, i);
}

static void check_bytes(const unsigned char *data, int64_t bytes, int from, uint64_t tag)
{
    for (int64_t i = 0; i < bytes; i++)
        if (data[i] != byte_of(from, tag, i))
            ls_test_fail(__FILE__, __LINE__, "byte %lld of tag %llx differs", (long long)i,
                         (unsigned long long)tag);
}

enum { BIGGEST = (8 << 20) + 5, GUARD = 64 };

static void every_size(rank *r)
{
    static const int64_t sizes[] = {0,
                                    1,
                                    3,
                                    64,
                                    16384,
                                    16385,
                                    100000,
                                    LS_UCX_CHUNK_BYTES - 1,
                                    LS_UCX_CHUNK_BYTES,
                                    LS_UCX_CHUNK_BYTES + 1,
                                    (2 << 20) + 7,
                                    8 << 20,
                                    BIGGEST};
    unsigned char *out = malloc(BIGGEST), *in = malloc(BIGGEST + GUARD);
    int64_t sent, received;

    LS_CHECK(out && in);
    for (int late = 0; late < RANKS; late++) /* posts its receive late */
        for (size_t i = 0; i < LS_COUNT(sizes); i++) {
            uint64_t tag = (uint64_t)late << 60 | (i + 1);
            ls_message m[2] = {{.peer = r->other, .tag = tag, .data = out, .bytes = sizes[i]},
                               {.peer = r->other, .tag = tag, .data = in, .bytes = sizes[i]}};

            fill(out, sizes[i], r->rank, tag);
            memset(in, 0xee, (size_t)sizes[i] + GUARD);
            if (late == r->rank) {
                LS_CHECK_OK(r->transport->table->send(r->transport, &m[0]));
                for (int k = 0; k < 20; k++) { /* what comes, comes too early */
                    bool moved;
                    LS_CHECK_OK(r->transport->table->poll(r->transport, &moved));
                    usleep(50);
                }
                LS_CHECK_OK(r->transport->table->receive(r->transport, &m[1]));
            } else {
                LS_CHECK_OK(r->transport->table->receive(r->transport, &m[1]));
                LS_CHECK_OK(r->transport->table->send(r->transport, &m[0]));
            }
            LS_CHECK_OK(wait_all(r->transport, m, 2));
            check_bytes(in, sizes[i], r->other, tag);
            for (int g = 0; g < GUARD; g++)
                LS_CHECK_EQ(in[sizes[i] + g], 0xee);
        }
    r->transport->table->count(r->transport, r->other, &sent, &received);
    LS_CHECK(sent > 2 * BIGGEST && received > 2 * BIGGEST);
    free(out);
    free(in);
}

LS_TEST_SECONDS(ucx_moves_every_size_both_ways, 40)
{
    run_pair(&(setting){.run = every_size, .args = {.generation = 7, .key = 99}});
}

enum { TAGS = 300 };

static void shuffle(int *order, int count, uint64_t seed)
{
    for (int i = 0; i < count; i++)
        order[i] = i;
    for (int i = count - 1; i > 0; i--) {
        int j, t;

        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        j = (int)((seed >> 33) % (uint64_t)(i + 1));
        t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}

static int64_t size_of_tag(int i)
{
    return i % 7 == 0 ? i * 1009 : i % 50 == 1 ? (1 << 20) + i : i;
}

static void many_tags(rank *r)
{
    static ls_message m[2 * TAGS];
    int order[2 * TAGS];

    shuffle(order, 2 * TAGS, (uint64_t)r->rank + 5);
    for (int k = 0; k < 2 * TAGS; k++) { /* sends and receives mixed */
        int i = order[k] % TAGS;
        bool sends = order[k] < TAGS;
        uint64_t tag = UINT64_C(0xabcdef0000000000) + (uint64_t)i;
        int64_t bytes = size_of_tag(i);

        m[order[k]] = (ls_message){.peer = r->other, .tag = tag, .bytes = bytes};
        m[order[k]].data = malloc((size_t)bytes + 1);
        LS_CHECK(m[order[k]].data);
        if (sends) {
            fill(m[order[k]].data, bytes, r->rank, tag);
            LS_CHECK_OK(r->transport->table->send(r->transport, &m[order[k]]));
        } else {
            LS_CHECK_OK(r->transport->table->receive(r->transport, &m[order[k]]));
        }
    }
    LS_CHECK_OK(wait_all(r->transport, m, 2 * TAGS));
    for (int i = 0; i < TAGS; i++)
        check_bytes(m[TAGS + i].data, size_of_tag(i), r->other, m[TAGS + i].tag);
    for (int i = 0; i < 2 * TAGS; i++)
        free(m[i].data);
}

LS_TEST(ucx_meets_tags_in_any_order)
{
    run_pair(&(setting){.run = many_tags, .args = {.generation = 3}});
}

enum { ADDS = 5, MOST_FLOATS = (3 << 20) / 4 + 3 }; /* more chunks than stages */

static void adds(rank *r)
{
    static const int64_t counts[ADDS] = {0, 1, 4097, 300001, MOST_FLOATS};
    ls_message m[2 * ADDS];

    for (int i = 0; i < ADDS; i++) {
        float *out = malloc((size_t)(counts[i] + 1) * 4), *in = malloc((size_t)(counts[i] + 1) * 4);

        LS_CHECK(out && in);
        for (int64_t k = 0; k < counts[i]; k++) {
            out[k] = (float)(k % 1000 + r->rank);
            in[k] = (float)(k % 77);
        }
        m[i] =
            (ls_message){.peer = r->other, .tag = (uint64_t)i, .data = out, .bytes = 4 * counts[i]};
        m[ADDS + i] = (ls_message){.peer = r->other,
                                   .tag = (uint64_t)i,
                                   .data = in,
                                   .bytes = 4 * counts[i],
                                   .add = true,
                                   .op = i == 3 ? LS_COMBINE_MAX : LS_COMBINE_SUM,
                                   .type = LS_F32};
        LS_CHECK_OK(r->transport->table->send(r->transport, &m[i]));
    }
    for (int i = ADDS - 1; i >= 0; i--)
        LS_CHECK_OK(r->transport->table->receive(r->transport, &m[ADDS + i]));
    LS_CHECK_OK(wait_all(r->transport, m, 2 * ADDS));
    for (int i = 0; i < ADDS; i++) {
        const float *in = m[ADDS + i].data;

        for (int64_t k = 0; k < counts[i]; k++) {
            float a = (float)(k % 77), b = (float)(k % 1000 + r->other);
            LS_CHECK(in[k] == (i == 3 ? (a > b ? a : b) : a + b));
        }
        free(m[i].data);
        free(m[ADDS + i].data);
    }
}

LS_TEST(ucx_adds_what_arrives)
{
    run_pair(&(setting){.run = adds, .args = {.generation = 3}});
}

static int64_t cpu_us(const struct rusage *u)
{
    return (int64_t)(u->ru_utime.tv_sec + u->ru_stime.tv_sec) * 1000000 + u->ru_utime.tv_usec +
           u->ru_stime.tv_usec;
}

/* A rank that computes calls nothing for longer than silence is allowed. */
static void compute(rank *r)
{
    char data[100] = {0};
    ls_message m = {.peer = r->other, .tag = 5, .data = data, .bytes = sizeof data};
    struct rusage before, used;

    if (r->rank == 0) {
        getrusage(RUSAGE_SELF, &before);
        LS_CHECK_OK(r->transport->table->receive(r->transport, &m));
        LS_CHECK_OK(wait_all(r->transport, &m, 1));
        LS_CHECK_EQ(data[7], 42);
        /* it slept, and did not spin */
        getrusage(RUSAGE_SELF, &used);
        LS_CHECK(cpu_us(&used) - cpu_us(&before) < 1500000);
    } else {
        ls_message first = {.peer = r->other, .tag = 4, .data = data, .bytes = 1};

        LS_CHECK_OK(r->transport->table->send(r->transport, &first));
        LS_CHECK_OK(wait_all(r->transport, &first, 1));
        usleep(3500 * 1000);
        memset(data, 42, sizeof data);
        LS_CHECK_OK(r->transport->table->send(r->transport, &m));
        LS_CHECK_OK(wait_all(r->transport, &m, 1));
    }
}

LS_TEST(ucx_hears_a_peer_that_computes)
{
    run_pair(
        &(setting){.run = compute, .args = {.generation = 3, .silence_ns = 3 * LS_NS_PER_S / 2}});
}

static void *wake_later(void *arg)
{
    ls_transport *c = arg;

    usleep(100 * 1000);
    c->table->wake(c);
    return NULL;
}

static void sleeps(rank *r)
{
    int64_t begin = ls_time_now_ns();
    pthread_t t;
    bool moved;

    if (r->rank == 1)
        return;
    /* Sleep may return early; it may not return never. */
    r->transport->table->sleep(r->transport, begin - 1);
    LS_CHECK_WITHIN(begin, 5000);
    LS_CHECK_EQ(pthread_create(&t, NULL, wake_later, r->transport), 0);
    LS_CHECK_OK(r->transport->table->poll(r->transport, &moved));
    r->transport->table->sleep(r->transport, ls_test_soon());
    LS_CHECK_WITHIN(begin, 15000);
    pthread_join(t, NULL);
}

LS_TEST(ucx_wakes_a_sleeper)
{
    run_pair(&(setting){.run = sleeps, .args = {.generation = 3}});
}

/* --- failing -------------------------------------------------------------------------------- */

static void size_differs(rank *r)
{
    char data[64] = {0};
    ls_message m = {.peer = r->other, .tag = 9, .data = data, .bytes = r->rank ? 40 : 24};

    if (r->rank == 1) {
        LS_CHECK_OK(r->transport->table->send(r->transport, &m));
        wait_all(r->transport, &m, 1);
        meet(r, 0);
        return;
    }
    LS_CHECK_OK(r->transport->table->receive(r->transport, &m));
    LS_CHECK_FAILS(wait_all(r->transport, &m, 1), LS_EDATA,
                   "rank 1 sent 40 bytes where rank 0 expects 24 (tag 0000000000000009)");
    /* broken for good, with the same reason */
    LS_CHECK_FAILS(r->transport->table->send(r->transport, &m), LS_EDATA, "rank 1 sent 40 bytes");
    LS_CHECK_FAILS(r->transport->table->receive(r->transport, &m), LS_EDATA,
                   "rank 1 sent 40 bytes");
    meet(r, 0);
}

LS_TEST(ucx_names_both_sizes_that_differ)
{
    run_pair(&(setting){.run = size_differs, .args = {.generation = 3}});
}

enum { BIG_BYTES = 32 << 20 };

/* Rank 1 dies with kill -9, rank 0 waits for it: idle, or in the middle of 32 MiB. */
static void dies(rank *r, int64_t bytes, bool sends)
{
    char *big = calloc(1, BIG_BYTES);
    ls_message hello = {.peer = r->other, .tag = 1, .data = big, .bytes = 1};
    ls_message m = {.peer = r->other, .tag = 2, .data = big, .bytes = bytes};

    LS_CHECK(big);
    if (r->rank == 1) {
        LS_CHECK_OK(r->transport->table->receive(r->transport, &hello));
        LS_CHECK_OK(wait_all(r->transport, &hello, 1));
        if (sends) /* rank 0 is in the middle of it */
            LS_CHECK_OK(r->transport->table->receive(r->transport, &m));
        meet(r, 0);
        usleep(20 * 1000);
        r->b->when_ns = ls_time_now_ns();
        kill(getpid(), SIGKILL);
    }
    LS_CHECK_OK(r->transport->table->send(r->transport, &hello));
    LS_CHECK_OK(wait_all(r->transport, &hello, 1));
    if (sends)
        LS_CHECK_OK(r->transport->table->send(r->transport, &m));
    else
        LS_CHECK_OK(r->transport->table->receive(r->transport, &m));
    meet(r, 0);
    LS_CHECK_FAILS(wait_all(r->transport, &m, 1), LS_EPEER, "rank 1 is gone");
    LS_CHECK(r->b->when_ns != 0);
    LS_CHECK_WITHIN(r->b->when_ns, 5000);
    free(big);
}

static void dies_idle(rank *r)
{
    dies(r, 100, false);
}

static void dies_receiving(rank *r)
{
    dies(r, BIG_BYTES, true);
}

LS_TEST(ucx_reports_a_killed_peer)
{
    run_pair(&(setting){.run = dies_idle, .args = {.generation = 3}, .killed = true});
}

LS_TEST(ucx_reports_a_peer_killed_in_the_middle)
{
    run_pair(&(setting){.run = dies_receiving, .args = {.generation = 3}, .killed = true});
}

/* Longer than a rank that is alive is not let on a busy machine. */
#define SILENCE_NS (2 * LS_NS_PER_S)

static void falls_silent(rank *r, const char *command)
{
    char data[8] = {0};
    ls_message hello = {.peer = r->other, .tag = 1, .data = data, .bytes = 1};
    ls_message m = {.peer = r->other, .tag = 2, .data = data, .bytes = 8};

    if (r->rank == 1) {
        LS_CHECK_OK(r->transport->table->receive(r->transport, &hello));
        LS_CHECK_OK(wait_all(r->transport, &hello, 1));
        LS_CHECK_OK(r->transport->table->send(r->transport, &m));
        LS_CHECK_OK(wait_all(r->transport, &m, 1));
        meet(r, 0);
        r->b->when_ns = ls_time_now_ns();
        if (command) {
            shell("%s", command);
            meet(r, 1);
        } else {
            kill(getpid(), SIGSTOP);
        }
        _exit(0);
    }
    LS_CHECK_OK(r->transport->table->send(r->transport, &hello));
    LS_CHECK_OK(r->transport->table->receive(r->transport, &m));
    LS_CHECK_OK(wait_all(r->transport, &m, 1));
    m.tag = 3;
    LS_CHECK_OK(r->transport->table->receive(r->transport, &m));
    meet(r, 0);
    LS_CHECK_FAILS(wait_all(r->transport, &m, 1), LS_EPEER, "rank 1 has been silent for");
    LS_CHECK(ls_time_now_ns() - r->b->when_ns > SILENCE_NS / 2);
    LS_CHECK_WITHIN(r->b->when_ns, 10000);
    if (command)
        meet(r, 1);
    else
        kill(r->b->pid[1], SIGKILL);
}

static void stops(rank *r)
{
    falls_silent(r, NULL);
}

LS_TEST(ucx_reports_a_stopped_peer)
{
    run_pair(&(setting){
        .run = stops, .args = {.generation = 3, .silence_ns = SILENCE_NS}, .killed = true});
}

static void closes(rank *r)
{
    char data[5000] = {0};
    ls_message m = {.peer = r->other, .tag = 1, .data = data, .bytes = sizeof data};
    ls_message never = {.peer = r->other, .tag = 2, .data = data, .bytes = sizeof data};
    bool moved;

    if (r->rank == 1) { /* sent, done, closed at once: it still arrives */
        memset(data, 9, sizeof data);
        LS_CHECK_OK(r->transport->table->send(r->transport, &m));
        LS_CHECK_OK(wait_all(r->transport, &m, 1));
        r->transport->table->close(r->transport);
        r->transport = NULL;
        meet(r, 0);
        return;
    }
    meet(r, 0);
    for (int i = 0; i < 100; i++) { /* a goodbye with nothing in flight breaks nothing */
        LS_CHECK_OK(r->transport->table->poll(r->transport, &moved));
        usleep(1000);
    }
    LS_CHECK_OK(r->transport->table->receive(r->transport, &m));
    LS_CHECK_OK(wait_all(r->transport, &m, 1));
    LS_CHECK_EQ(data[4999], 9);
    LS_CHECK_FAILS(r->transport->table->receive(r->transport, &never), LS_EPEER,
                   "rank 1 is gone: it closed");
}

LS_TEST(ucx_delivers_what_was_done_before_a_close)
{
    run_pair(&(setting){.run = closes, .args = {.generation = 3}});
}

static void closes_in_flight(rank *r)
{
    char data[64] = {0};
    ls_message m = {.peer = r->other, .tag = 1, .data = data, .bytes = sizeof data};
    ls_message n = {.peer = r->other, .tag = 2, .data = data, .bytes = sizeof data};

    LS_CHECK_OK(r->transport->table->send(r->transport, &n));
    LS_CHECK_OK(wait_all(r->transport, &n, 1));
    LS_CHECK_OK(r->transport->table->receive(r->transport, &m));
    meet(r, 0);
    if (r->rank == 1)
        return; /* closes */
    LS_CHECK_FAILS(wait_all(r->transport, &m, 1), LS_EPEER,
                   "rank 1 is gone: it closed while messages were in flight");
}

LS_TEST(ucx_reports_a_peer_that_closes_in_flight)
{
    run_pair(&(setting){.run = closes_in_flight, .args = {.generation = 3}});
}

/* --- strays --------------------------------------------------------------------------------- */

typedef struct head { /* what ucx.c puts before UCX's bytes */
    uint32_t magic, crc;
    uint64_t generation;
    uint32_t rank, len;
} head;

static void rewrite(char *address, size_t len, uint64_t generation, uint32_t rank_of)
{
    head h;

    memcpy(&h, address, sizeof h);
    h.generation = generation;
    h.rank = rank_of;
    memcpy(address, &h, sizeof h);
    h.crc = ls_hash_crc32c(0, address + 8, len - 8);
    memcpy(address, &h, sizeof h);
}

/* The same job in two generations: rank 1 is of the one before, and talks to an address that
 * became that of the next. */
static void bend_generation(rank *r)
{
    ls_ucx_args old = {.rank = 1, .ranks = RANKS, .generation = 6};
    const void *bytes;

    if (r->rank == 1) {
        r->transport->table->close(r->transport);
        LS_CHECK_OK(ls_ucx_open(&old, &r->transport));
        ls_ucx_address(r->transport, &bytes, &r->b->len[1]);
        memcpy(r->b->address[1], bytes, r->b->len[1]);
    }
    meet(r, 10);
    if (r->rank == 0) { /* it believes that rank 1 is of generation 7 */
        rewrite(r->b->address[1], r->b->len[1], 7, 1);
        return;
    }
    /* each connects with a table of its own */
    static segment mine;
    usleep(50 * 1000);
    memcpy(&mine, r->b, sizeof mine);
    for (int i = 0; i < RANKS; i++)
        rewrite(mine.address[i], mine.len[i], 6, (uint32_t)i);
    ls_ucx_peer peers[RANKS] = {{mine.address[0], mine.len[0]}, {mine.address[1], mine.len[1]}};
    ls_message m = {.peer = 0, .tag = 5, .data = &(char){3}, .bytes = 1};
    LS_CHECK_OK(ls_ucx_connect(r->transport, peers));
    LS_CHECK_OK(r->transport->table->send(r->transport, &m));
    LS_CHECK_OK(wait_all(r->transport, &m, 1));
    r->b->arrived[13]++; /* rank 0 goes on */
    while (r->b->arrived[0] < 1) {
        bool moved;
        if (r->transport->table->poll(r->transport, &moved) != LS_OK)
            break;
        usleep(1000);
    }
    r->transport->table->close(r->transport);
    exit(0);
}

static void hears_nothing(rank *r)
{
    char data[1] = {0};
    ls_message m = {.peer = 1, .tag = 5, .data = data, .bytes = 1};
    int64_t sent, received;

    LS_CHECK_OK(r->transport->table->receive(r->transport, &m));
    LS_CHECK_FAILS(wait_all(r->transport, &m, 1), LS_EPEER, "since it was first called");
    r->transport->table->count(r->transport, 1, &sent, &received);
    LS_CHECK_EQ(received, 0);
    LS_CHECK(!m.done);
    r->b->arrived[0]++;
}

LS_TEST(ucx_drops_frames_of_another_generation)
{
    run_pair(&(setting){.run = hears_nothing,
                        .args = {.generation = 7, .first_ns = LS_NS_PER_S},
                        .bend = bend_generation});
}

LS_TEST(ucx_refuses_addresses_that_do_not_fit)
{
    ls_ucx_args args = {.rank = 0, .ranks = 2, .generation = 7};
    char own[LS_UCX_ADDRESS_BYTES], other[LS_UCX_ADDRESS_BYTES];
    ls_ucx_peer peers[2] = {{own, 0}, {other, 0}};
    const void *bytes;
    ls_transport *c;
    size_t len;

    need_ucx();
    LS_CHECK_OK(ls_ucx_open(&args, &c));
    ls_ucx_address(c, &bytes, &len);
    memcpy(own, bytes, len);
    peers[0].len = len;
    LS_CHECK_FAILS(ls_ucx_connect(c, peers), LS_EDATA, "the UCX address of rank 1 has 0 bytes");
    memcpy(other, bytes, len);
    peers[1].len = len;
    LS_CHECK_FAILS(ls_ucx_connect(c, peers), LS_EDATA, "of rank 1 is that of rank 0");
    rewrite(other, len, 8, 1);
    LS_CHECK_FAILS(ls_ucx_connect(c, peers), LS_EDATA, "is of generation 8, this is 7");
    for (size_t i = 0; i < len; i++) { /* any byte */
        rewrite(other, len, 7, 1);
        other[i] = (char)(other[i] ^ 4);
        LS_CHECK_FAILS(ls_ucx_connect(c, peers), LS_EDATA, "of rank 1 is");
    }
    rewrite(other, len, 7, 1);
    peers[1].len = len - 1;
    LS_CHECK_FAILS(ls_ucx_connect(c, peers), LS_EDATA, "of rank 1 is damaged");
    c->table->close(c);
}

/* --- the library ---------------------------------------------------------------------------- */

LS_TEST(ucx_says_that_its_library_is_missing)
{
    ls_ucx_args args = {.rank = 0, .ranks = 1, .library = "/nowhere/libucp.so.0"};
    ls_transport *c;

    need_ucx();
    LS_CHECK_FAILS(ls_ucx_open(&args, &c), LS_EUSAGE,
                   "cannot open the UCX library \"/nowhere/libucp.so.0\"");
    LS_CHECK(strstr(ls_err_last()->hint, "libucx0"));
    args.library = "libm.so.6";
    LS_CHECK_FAILS(ls_ucx_open(&args, &c), LS_EUSAGE, "\"libm.so.6\" is not a UCX library");
    ls_err_clear();
    setenv("LINESHAFT_UCX_LIBRARY", "/nowhere/else.so", 1);
    args.library = NULL;
    LS_CHECK_FAILS(ls_ucx_open(&args, &c), LS_EUSAGE, "\"/nowhere/else.so\"");
}

static void make_library(const char *name, const char *body)
{
    FILE *f = fopen("fake.c", "w");

    LS_CHECK(f);
    fprintf(f, "%s\n", body);
    fclose(f);
    shell("cc -shared -fPIC -o %s fake.c", name);
}

LS_TEST(ucx_says_that_its_library_is_of_another_version)
{
    ls_ucx_args args = {.rank = 0, .ranks = 1, .library = "./libfake2.so"};
    ls_transport *c;

    need_ucx();
    if (system("command -v cc >/dev/null") != 0)
        ls_test_skip("no compiler to make a library of another version with");
    make_library("libfake2.so", "void ucp_get_version(unsigned *a, unsigned *b, unsigned *c);"
                                "void ucp_get_version(unsigned *a, unsigned *b, unsigned *c)"
                                "{ *a = 2; *b = 1; *c = 0; }");
    LS_CHECK_FAILS(ls_ucx_open(&args, &c), LS_EUSAGE, "is of version 2.1, this program is built");
    make_library("libfake1.so", "void ucp_get_version(unsigned *a, unsigned *b, unsigned *c);"
                                "void ucp_get_version(unsigned *a, unsigned *b, unsigned *c)"
                                "{ *a = 1; *b = 99; *c = 0; }");
    args.library = "./libfake1.so";
    LS_CHECK_FAILS(ls_ucx_open(&args, &c), LS_EUSAGE, "lacks the function ucp_init_version");
}

static void handler(int s)
{
    (void)s;
}

LS_TEST(ucx_leaves_signals_alone)
{
    struct sigaction mine = {.sa_handler = handler}, before, now;
    ls_ucx_args args = {.rank = 0, .ranks = 1};
    ls_transport *c;

    need_ucx();
    LS_CHECK_EQ(sigaction(SIGBUS, &mine, NULL), 0);
    LS_CHECK_EQ(sigaction(SIGHUP, NULL, &before), 0); /* nohup has it ignored */
    LS_CHECK_OK(ls_ucx_open(&args, &c));
    LS_CHECK_EQ(sigaction(SIGBUS, NULL, &now), 0);
    LS_CHECK(now.sa_handler == handler);
    LS_CHECK_EQ(sigaction(SIGHUP, NULL, &now), 0);
    LS_CHECK(now.sa_handler == before.sa_handler);
    c->table->close(c);
}

static int open_files(void)
{
    int n = 0;

    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

LS_TEST_SECONDS(ucx_opens_or_says_why_when_memory_fails, 60)
{
    ls_ucx_args args = {.rank = 0, .ranks = 3, .generation = 1};
    ls_transport *c;
    int n, files;

    need_ucx();
    LS_CHECK_OK(ls_ucx_open(&args, &c)); /* what UCX opens once for all */
    c->table->close(c);
    files = open_files();
    for (n = 1;; n++) {
        ls_status st;

        ls_mem_fail_nth((uint64_t)n);
        st = ls_ucx_open(&args, &c);
        ls_mem_fail_nth(0);
        if (st == LS_OK)
            break;
        LS_CHECK_EQ(st, LS_ENOMEM);
        LS_CHECK_EQ(open_files(), files);
    }
    LS_CHECK(n > 2);
    c->table->close(c);
    LS_CHECK_EQ(open_files(), files);
}

static void make_port(const char *device, const char *state)
{
    char path[128];
    FILE *f;

    snprintf(path, sizeof path, "class/%s/ports/1", device);
    shell("mkdir -p %s", path);
    snprintf(path, sizeof path, "class/%s/ports/1/state", device);
    f = fopen(path, "w");
    LS_CHECK(f);
    fprintf(f, "%s\n", state);
    fclose(f);
}

LS_TEST(ucx_finds_a_port_that_is_active)
{
    char device[64] = "";

    LS_CHECK(!ls_ucx_find_port("class", device));
    LS_CHECK_EQ(mkdir("class", 0700), 0);
    LS_CHECK(!ls_ucx_find_port("class", device));
    make_port("mlx5_0", "1: DOWN");
    LS_CHECK(!ls_ucx_find_port("class", device));
    make_port("mlx5_1", "4: ACTIVE");
    LS_CHECK(ls_ucx_find_port("class", device));
    LS_CHECK_STR(device, "mlx5_1");
    if (!ls_ucx_find_port("/sys/class/infiniband", device))
        LS_CHECK(!ls_ucx_has_rdma());
}

/* --- between namespaces --------------------------------------------------------------------- */

/* Tried in a process of its own, which takes the namespace with it. */
static void skip_without_namespaces(void)
{
    pid_t pid = fork();
    int status;

    LS_CHECK(pid >= 0);
    if (pid == 0) {
        if (unshare(CLONE_NEWNET | CLONE_NEWNS) != 0)
            _exit(1);
        _exit(system("ip link add lsux0 type veth peer name lsux1 2>/dev/null") == 0 ? 0 : 2);
    }
    LS_CHECK_EQ(waitpid(pid, &status, 0), pid);
    if (status != 0)
        ls_test_skip(WEXITSTATUS(status) == 1 ? "network namespaces are not allowed here"
                                              : "\"ip\" cannot make a pair of virtual links here");
}

static void all_of_it(rank *r)
{
    many_tags(r);
    meet(r, 0);
    every_size(r);
    meet(r, 1);
    adds(r);
}

LS_TEST_SECONDS(ucx_talks_between_namespaces, 60)
{
    skip_without_namespaces();
    run_pair(&(setting){.run = all_of_it, .args = {.generation = 12}, .namespaces = true});
}

static void is_cut(rank *r)
{
    falls_silent(r, "ip link set lsux0 down");
}

LS_TEST(ucx_reports_a_link_that_was_cut)
{
    skip_without_namespaces();
    run_pair(&(setting){
        .run = is_cut, .args = {.generation = 12, .silence_ns = SILENCE_NS}, .namespaces = true});
}

/* The case in which UCX itself says nothing for a minute: cut in the middle of sending. */
static void is_cut_sending(rank *r)
{
    char *big = calloc(1, BIG_BYTES);
    ls_message hello = {.peer = r->other, .tag = 1, .data = big, .bytes = 1};
    ls_message m = {.peer = r->other, .tag = 2, .data = big, .bytes = BIG_BYTES};

    LS_CHECK(big);
    if (r->rank == 1) {
        LS_CHECK_OK(r->transport->table->receive(r->transport, &hello));
        LS_CHECK_OK(wait_all(r->transport, &hello, 1));
        meet(r, 0);
        LS_CHECK_OK(r->transport->table->receive(r->transport, &m));
        wait_until(r->transport, &m, 1, in_ms(10));
        r->b->when_ns = ls_time_now_ns();
        shell("ip link set lsux0 down");
        meet(r, 1);
        _exit(0);
    }
    LS_CHECK_OK(r->transport->table->send(r->transport, &hello));
    LS_CHECK_OK(wait_all(r->transport, &hello, 1));
    meet(r, 0);
    LS_CHECK_OK(r->transport->table->send(r->transport, &m));
    while (wait_all(r->transport, &m, 1) == LS_OK) { /* it may have been faster than the knife */
        m.tag++;
        LS_CHECK_OK(r->transport->table->send(r->transport, &m));
    }
    LS_CHECK_EQ(ls_err_last()->code, LS_EPEER);
    LS_CHECK(strstr(ls_err_last()->text, "rank 1 has been silent"));
    LS_CHECK_WITHIN(r->b->when_ns, 10000);
    meet(r, 1);
    free(big);
}

LS_TEST(ucx_reports_a_link_that_was_cut_while_sending)
{
    skip_without_namespaces();
    run_pair(&(setting){.run = is_cut_sending,
                        .args = {.generation = 12, .silence_ns = SILENCE_NS},
                        .namespaces = true});
}
