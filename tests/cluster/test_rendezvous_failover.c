/* test_rendezvous_failover.c -- a rendezvous whose host is lost: one of those who joined becomes the host, the
 * other comes back to it, and both end together. This process is the host that is lost. */
#include "harness.h"
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"
#include "base/time.h"
#include "cluster/join/rendezvous.h"
#include "net/sock.h"

static const uint8_t secret[32] = "0123456789abcdef0123456789abcde";

/* What the children tell each other. */
typedef struct segment {
    atomic_int port; /* where the successor listens; 0: not yet */
    atomic_int follower_ended;
} segment;

typedef struct seen {
    ls_rendezvous *r;
    int orphaned, returned, heard, lost;
    char said[16], why[200];
    bool refuses;
} seen;

static bool on_join(void *context, int node, const ls_members_node *about, char *why, size_t cap)
{
    (void)context;
    (void)node;
    (void)about;
    snprintf(why, cap, "nobody is wanted");
    return false;
}

static void on_heard(void *context, int node, const uint8_t *bytes, size_t len)
{
    seen *p = context;

    (void)node;
    p->heard++;
    snprintf(p->said, sizeof p->said, "%.*s", (int)len, (const char *)bytes);
}

static void on_lost(void *context, int node, const char *why, int64_t silent_ns)
{
    (void)node;
    (void)why;
    (void)silent_ns;
    ((seen *)context)->lost++;
}

static void on_look(void *context)
{
    (void)context;
}

static bool on_idle(void *context, int node)
{
    (void)context;
    (void)node;
    return false;
}

static void on_orphaned(void *context, const char *why, int64_t silent_ns)
{
    seen *p = context;

    (void)silent_ns;
    p->orphaned++;
    snprintf(p->why, sizeof p->why, "%s", why);
}

static bool on_returns(void *context, int node, uint64_t id, ls_members_node *about_out)
{
    const seen *p = context;

    *about_out = (ls_members_node){.host = "follower", .ip = "127.0.0.1", .ranks = 1};
    return !p->refuses && node == 7 && id == 1ull << 60;
}

static void on_returned(void *context, int node)
{
    seen *p = context;

    LS_CHECK_EQ(node, 7);
    p->returned++;
    ls_rendezvous_tell(p->r, node, "well", 4);
}

static ls_rendezvous_hooks hooks_of(seen *p)
{
    return (ls_rendezvous_hooks){.heartbeat_ns = 20 * LS_NS_PER_MS,
                                 .suspect_ns = 500 * LS_NS_PER_S,
                                 .dead_ns = 1000 * LS_NS_PER_S,
                                 .joins = on_join,
                                 .heard = on_heard,
                                 .lost = on_lost,
                                 .looks = on_look,
                                 .idle = on_idle,
                                 .orphaned = on_orphaned,
                                 .returns = on_returns,
                                 .returned = on_returned,
                                 .context = p};
}

static void await(ls_rendezvous *r, const int *number)
{
    int64_t soon = ls_test_soon();

    while (*number < 1) {
        LS_CHECK_OK(ls_rendezvous_attend(r));
        LS_CHECK(ls_time_now_ns() < soon);
        (void)ls_sock_wait(ls_rendezvous_fd(r), POLLIN, ls_time_now_ns() + LS_NS_PER_S / 50);
    }
}

/* Join this host, meet, and wait until it is gone. */
static ls_rendezvous *join_and_lose(const char *address, seen *p, const ls_rendezvous_hooks *hooks)
{
    const ls_rendezvous_args args = {
        .address = address, .secret = secret, .ranks = 1, .grace_ns = LS_NS_PER_S};

    ls_log_set_sink(NULL, NULL, LS_LOG_ERROR);
    LS_CHECK_OK(ls_rendezvous_open(&p->r, &args, ls_test_soon()));
    LS_CHECK_OK(ls_rendezvous_attach(p->r, hooks));
    LS_CHECK_OK(ls_rendezvous_meet(p->r, ls_test_soon()));
    return p->r;
}

static _Noreturn void be_successor(const char *address, segment *b, bool refuses)
{
    seen p = {.refuses = refuses};
    const ls_rendezvous_hooks hooks = hooks_of(&p);
    ls_rendezvous *r = join_and_lose(address, &p, &hooks);
    uint16_t port;
    int code;

    LS_CHECK_OK(ls_rendezvous_reserve(r, &port));
    await(r, &p.orphaned);
    LS_CHECK(*p.why && !ls_rendezvous_is_linked(r));
    LS_CHECK_OK(ls_rendezvous_take_over(r, 2, 8));
    atomic_store(&b->port, port);
    if (!refuses) {
        await(r, &p.returned);
        await(r, &p.heard);
        LS_CHECK_STR(p.said, "hello");
    } else {
        while (!atomic_load(&b->follower_ended))
            (void)ls_rendezvous_attend(r);
        LS_CHECK_EQ(p.returned, 0);
    }
    LS_CHECK_OK(ls_rendezvous_end(r, 0, &code));
    LS_CHECK_EQ(code, 0);
    LS_CHECK_EQ(p.lost, 0);
    ls_rendezvous_close(r);
    _exit(0);
}

static _Noreturn void be_follower(const char *address, segment *b, bool refused)
{
    seen p = {.refuses = false};
    const ls_rendezvous_hooks hooks = hooks_of(&p);
    ls_rendezvous *r = join_and_lose(address, &p, &hooks);
    char successor[64];
    int code, port;

    await(r, &p.orphaned);
    ls_rendezvous_tell(r, 0, "lost", 4); /* there is nobody: nothing happens */
    while ((port = atomic_load(&b->port)) == 0)
        poll(NULL, 0, 2);
    snprintf(successor, sizeof successor, "127.0.0.1:%d", port);
    LS_CHECK_OK(ls_rendezvous_follow(r, successor, 7, 1ull << 60, ls_test_soon()));
    p.orphaned = 0;
    if (!refused) {
        ls_rendezvous_tell(r, 0, "hello", 5);
        await(r, &p.heard);
        LS_CHECK_STR(p.said, "well");
        LS_CHECK_OK(ls_rendezvous_end(r, 0, &code));
        LS_CHECK_EQ(code, 0);
    } else {
        await(r, &p.orphaned);
        LS_CHECK_EQ(p.heard, 0);
        ls_fail(LS_EPEER, "nobody is left");
        ls_rendezvous_give_up(r);
        LS_CHECK_FAILS(ls_rendezvous_attend(r), LS_EPEER, "nobody is left");
        LS_CHECK(ls_rendezvous_was_dropped(r));
        LS_CHECK_OK(ls_rendezvous_end(r, 9, &code));
        LS_CHECK_EQ(code, 9);
        atomic_store(&b->follower_ended, 1);
    }
    ls_rendezvous_close(r);
    _exit(0);
}

static void reap(pid_t pid)
{
    int status;

    LS_CHECK_EQ(waitpid(pid, &status, 0), pid);
    LS_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void lose_host(bool refuses)
{
    segment *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    seen p = {.refuses = false};
    const ls_rendezvous_hooks hooks = hooks_of(&p);
    pid_t pids[2];

    LS_CHECK(b != MAP_FAILED);
    LS_CHECK_OK(ls_rendezvous_open(&p.r,
                                   &(ls_rendezvous_args){.hosts = true,
                                                         .address = "127.0.0.1:0",
                                                         .nodes = 3,
                                                         .secret = secret,
                                                         .ranks = 1,
                                                         .generation = 1},
                                   ls_test_soon()));
    LS_CHECK_OK(ls_rendezvous_attach(p.r, &hooks));
    for (int i = 0; i < 2; i++) {
        pids[i] = fork();
        LS_CHECK(pids[i] >= 0);
        if (pids[i] == 0 && i == 0)
            be_successor(ls_rendezvous_address(p.r), b, refuses);
        if (pids[i] == 0)
            be_follower(ls_rendezvous_address(p.r), b, refuses);
    }
    LS_CHECK_OK(ls_rendezvous_meet(p.r, ls_test_soon()));
    ls_rendezvous_close(p.r); /* without a word */
    reap(pids[0]);
    reap(pids[1]);
}

LS_TEST(successor_gets_the_members_of_a_host_that_is_lost)
{
    lose_host(false);
}

LS_TEST(successor_refuses_a_node_that_was_no_member)
{
    lose_host(true);
}
