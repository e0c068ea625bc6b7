/* test_probe_messages.c -- a node that is silent is asked about: one that hangs, and one that only its
 * coordinator does not hear. This process is the host, its children join. */
#include "harness.h"
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"
#include "base/time.h"
#include "cluster/join/rendezvous_impl.h"

enum { CHILDREN = 3 };

static const uint8_t secret[32] = "0123456789abcdef0123456789abcde";

/* What a child does: attends, or only answers other nodes. */
typedef struct orders {
    atomic_bool mute[CHILDREN];
} orders;

static bool on_join(void *context, int node, const ls_members_node *about, char *why, size_t cap)
{
    (void)context;
    (void)node;
    (void)about;
    (void)why;
    (void)cap;
    return true;
}

static void on_heard(void *context, int node, const uint8_t *bytes, size_t len)
{
    (void)context;
    (void)node;
    (void)bytes;
    (void)len;
}

static void on_lost(void *context, int node, const char *why, int64_t silent_ns)
{
    (void)silent_ns;
    ls_test_fail(__FILE__, __LINE__, "node %d was given up %p: %s", node, context, why);
}

static void on_look(void *context)
{
    (void)context;
}

static bool on_idle(void *context, int node)
{
    (void)context;
    (void)node;
    return true;
}

/* Nobody is given up as long as this test lasts. */
static ls_rendezvous_hooks hooks_of(void)
{
    return (ls_rendezvous_hooks){.heartbeat_ns = 20 * LS_NS_PER_MS,
                                 .suspect_ns = 200 * LS_NS_PER_MS,
                                 .dead_ns = ls_test_ms(100000),
                                 .joins = on_join,
                                 .heard = on_heard,
                                 .lost = on_lost,
                                 .looks = on_look,
                                 .idle = on_idle};
}

static void live(const char *address, orders *o, int child)
{
    const ls_rendezvous_args args = {.address = address, .secret = secret, .ranks = 1};
    const ls_rendezvous_hooks hooks = hooks_of();
    struct pollfd p = {.events = POLLIN};
    ls_rendezvous *r = NULL;

    ls_log_set_sink(NULL, NULL, LS_LOG_ERROR);
    LS_CHECK_OK(ls_rendezvous_open(&r, &args, ls_test_soon()));
    LS_CHECK_OK(ls_rendezvous_attach(r, &hooks));
    LS_CHECK_OK(ls_rendezvous_meet(r, ls_test_soon()));
    /* It says nothing, but answers who asks it: only the way to the coordinator is broken. */
    for (ls_status st = LS_OK; st == LS_OK;) {
        bool mute = atomic_load(&o->mute[child]);
        p.fd = mute ? ls_probe_fd(r->probe) : ls_rendezvous_fd(r);
        poll(&p, 1, 10);
        if (mute)
            ls_rendezvous_attend_probe(r);
        else
            st = ls_rendezvous_attend(r);
    }
    ls_rendezvous_close(r);
    _exit(0);
}

/* Attend until so many have answered yes, or no, about a node. */
static void await(ls_rendezvous *r, const int *number, int least)
{
    struct pollfd p = {.fd = ls_rendezvous_fd(r), .events = POLLIN};
    int64_t soon = ls_test_soon();

    while (*number < least) {
        poll(&p, 1, 20);
        LS_CHECK_OK(ls_rendezvous_attend(r));
        LS_CHECK(ls_time_now_ns() < soon);
    }
}

static pid_t children[CHILDREN];

static ls_rendezvous *open_all(const ls_rendezvous_hooks *hooks, orders *o)
{
    ls_rendezvous *r = NULL;

    LS_CHECK_OK(ls_rendezvous_open(&r,
                                   &(ls_rendezvous_args){.hosts = true,
                                                         .address = "127.0.0.1:0",
                                                         .nodes = CHILDREN + 1,
                                                         .secret = secret,
                                                         .ranks = 1,
                                                         .generation = 1,
                                                         .grace_ns = LS_NS_PER_S},
                                   ls_test_soon()));
    LS_CHECK_OK(ls_rendezvous_attach(r, hooks));
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        LS_CHECK(children[i] >= 0);
        if (children[i] == 0)
            live(ls_rendezvous_address(r), o, i);
    }
    LS_CHECK_OK(ls_rendezvous_meet(r, ls_test_soon()));
    for (int i = 0; i < CHILDREN; i++) {
        int64_t soon = ls_test_soon();
        while (r->peers[i].probe_port == 0) { /* where each of them answers */
            LS_CHECK_OK(ls_rendezvous_attend(r));
            LS_CHECK(ls_time_now_ns() < soon);
        }
    }
    return r;
}

LS_TEST(probe_messages_ask_others_about_a_silent_node)
{
    orders *o = mmap(NULL, sizeof *o, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const ls_rendezvous_hooks hooks = hooks_of();
    char text[80];

    LS_CHECK(o != MAP_FAILED);
    ls_rendezvous *r = open_all(&hooks, o);
    const ls_witness *w = &r->peers[0].witness;
    LS_CHECK(w->yes == 0 && w->no == 0);
    atomic_store(&o->mute[0], true);
    int place = -1;
    int64_t soon = ls_test_soon();
    while (place < 0) { /* which of the peers it is: the one that others are asked about */
        LS_CHECK_OK(ls_rendezvous_attend(r));
        LS_CHECK(ls_time_now_ns() < soon);
        for (int i = 0; i < CHILDREN; i++)
            place = r->peers[i].witness.yes > 0 ? i : place;
        poll(NULL, 0, 5);
    }
    w = &r->peers[place].witness;
    await(r, &w->yes, 2);
    LS_CHECK_EQ(ls_witness_limit(w, hooks.dead_ns, LS_NS_PER_S, w->reached_ns),
                LS_WITNESS_PATIENCE * hooks.dead_ns);
    LS_CHECK(strstr(ls_witness_text(w, ls_time_now_ns(), text, sizeof text), "others reached it"));
    atomic_store(&o->mute[0], false); /* it speaks again */
    while (w->yes > 0) {
        LS_CHECK_OK(ls_rendezvous_attend(r));
        LS_CHECK(ls_time_now_ns() < soon + ls_test_ms(30000));
        poll(NULL, 0, 5);
    }
    kill(children[0], SIGSTOP); /* and now it hangs */
    await(r, &w->no, 2);
    LS_CHECK_EQ(w->yes, 0);
    LS_CHECK_EQ(ls_witness_limit(w, hooks.dead_ns, LS_NS_PER_S, ls_time_now_ns()), hooks.dead_ns);
    for (int i = 0; i < CHILDREN; i++) {
        kill(children[i], SIGKILL);
        LS_CHECK_EQ(waitpid(children[i], NULL, 0), children[i]);
    }
    ls_rendezvous_close(r);
    munmap(o, sizeof *o);
}
