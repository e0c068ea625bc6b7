/* test_late_join.c -- connections of a job that heals: newcomers, bytes to and fro, those who go away,
 * are silent or sent away. This process is the host, its children join. */
#include "harness.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"
#include "base/time.h"
#include "cluster/jobs.h"
#include "cluster/join/rendezvous.h"
#include "net/sock.h"

static const uint8_t secret[32] = "0123456789abcdef0123456789abcde";

enum { MOST = 8 };

/* What the hooks of the host have seen. */
typedef struct seen {
    int joined, heard, lost, last; /* last: the node that joined last */
    char said[MOST][16], why[MOST][200];
    int64_t silent_ns;
    bool refuses, over;
} seen;

static bool on_join(void *context, int node, const ls_members_node *about, char *why, size_t cap)
{
    seen *p = context;

    LS_CHECK(about->ranks == 2 && *about->host && *about->ip);
    snprintf(why, cap, "nobody is wanted");
    p->joined++;
    p->last = node;
    return !p->refuses;
}

static void on_heard(void *context, int node, const uint8_t *bytes, size_t len)
{
    seen *p = context;

    LS_CHECK(node < MOST);
    snprintf(p->said[node], sizeof p->said[node], "%.*s", (int)len, (const char *)bytes);
    p->heard++;
}

static void on_lost(void *context, int node, const char *why, int64_t silent_ns)
{
    seen *p = context;

    snprintf(p->why[node], sizeof p->why[node], "%s", why);
    p->silent_ns = silent_ns;
    p->lost++;
}

static void on_look(void *context)
{
    (void)context;
}

static bool on_idle(void *context, int node)
{
    (void)node;
    return ((const seen *)context)->over;
}

static ls_rendezvous_hooks hooks_of(seen *p, int64_t dead_ns)
{
    return (ls_rendezvous_hooks){.heartbeat_ns = 20 * LS_NS_PER_MS,
                                 .suspect_ns = dead_ns / 2,
                                 .dead_ns = dead_ns,
                                 .joins = on_join,
                                 .heard = on_heard,
                                 .lost = on_lost,
                                 .looks = on_look,
                                 .idle = on_idle,
                                 .context = p};
}

/* How a child ended. */
typedef struct fate {
    ls_status met, attended;
    bool called, dropped, without;
    int node, code;
    char text[200], heard[16];
} fate;

static fate *fates(void)
{
    fate *f =
        mmap(NULL, MOST * sizeof *f, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    LS_CHECK(f != MAP_FAILED);
    return f;
}

/* Join, say where from, answer nothing, and stay until the host ends it. */
static pid_t join_as(const char *address, const char *word, fate *f)
{
    pid_t pid = fork();

    LS_CHECK(pid >= 0);
    if (pid != 0)
        return pid;
    const ls_rendezvous_args args = {.address = address, .secret = secret, .ranks = 2};
    seen p = {.joined = 0};
    const ls_rendezvous_hooks hooks = hooks_of(&p, 1000 * LS_NS_PER_S);
    ls_rendezvous *r = NULL;
    ls_log_set_sink(NULL, NULL, LS_LOG_ERROR);
    LS_CHECK_OK(ls_rendezvous_open(&r, &args, ls_test_soon()));
    LS_CHECK_OK(ls_rendezvous_attach(r, &hooks));
    f->met = ls_rendezvous_meet(r, ls_test_soon());
    f->called = f->met == LS_OK;
    f->without = ls_rendezvous_did_without(r);
    if (f->called) {
        f->node = ls_rendezvous_node(r);
        ls_rendezvous_tell(r, 0, word, strlen(word));
        while ((f->attended = ls_rendezvous_attend(r)) == LS_OK)
            (void)ls_sock_wait(ls_rendezvous_fd(r), 1 /* POLLIN */,
                               ls_time_now_ns() + LS_NS_PER_S / 20);
        f->dropped = ls_rendezvous_was_dropped(r);
        snprintf(f->heard, sizeof f->heard, "%s", p.said[0]);
    }
    snprintf(f->text, sizeof f->text, "%.199s", ls_err_last()->text);
    ls_rendezvous_close(r);
    _exit(0);
}

static ls_rendezvous *open_host(const ls_rendezvous_hooks *hooks, int nodes)
{
    ls_rendezvous *r = NULL;

    LS_CHECK_OK(ls_rendezvous_open(&r,
                                   &(ls_rendezvous_args){.hosts = true,
                                                         .address = "127.0.0.1:0",
                                                         .nodes = nodes,
                                                         .secret = secret,
                                                         .ranks = 1,
                                                         .generation = 1,
                                                         .grace_ns = LS_NS_PER_S},
                                   ls_test_soon()));
    LS_CHECK_OK(ls_rendezvous_attach(r, hooks));
    return r;
}

/* Attend until a number in seen is so large. */
static void await(ls_rendezvous *r, const int *number, int least)
{
    int64_t soon = ls_test_soon();

    while (*number < least) {
        LS_CHECK_OK(ls_rendezvous_attend(r));
        LS_CHECK(ls_time_now_ns() < soon);
        (void)ls_sock_wait(ls_rendezvous_fd(r), 1 /* POLLIN */,
                           ls_time_now_ns() + LS_NS_PER_S / 50);
    }
}

static void reap(pid_t pid)
{
    int status;

    LS_CHECK_EQ(waitpid(pid, &status, 0), pid);
    LS_CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
}

LS_TEST(late_join_takes_newcomers_and_survives_a_lost_node)
{
    seen p = {.joined = 0};
    const ls_rendezvous_hooks hooks = hooks_of(&p, ls_test_ms(60000));
    int files = jobs_files(), code;
    fate *f = fates();
    ls_rendezvous *r = open_host(&hooks, 2);
    pid_t first = join_as(ls_rendezvous_address(r), "one", &f[0]);

    LS_CHECK_OK(ls_rendezvous_meet(r, ls_test_soon()));
    await(r, &p.heard, 1);
    LS_CHECK_STR(p.said[1], "one");
    pid_t second = join_as(ls_rendezvous_address(r), "two", &f[1]);
    await(r, &p.joined, 1);
    LS_CHECK_EQ(p.last, 2);
    LS_CHECK(!f[1].called); /* a spare, until it is wanted */
    ls_rendezvous_call(r, 2);
    await(r, &p.heard, 2);
    LS_CHECK_STR(p.said[2], "two");
    kill(first, SIGKILL); /* nobody else ends for it */
    await(r, &p.lost, 1);
    LS_CHECK(strstr(p.why[1], "node 1 (") && strstr(p.why[1], "was lost: "));
    reap(first);
    ls_rendezvous_tell(r, 1, "x", 1); /* it is gone: nothing happens */
    ls_rendezvous_tell(r, 2, "hello", 5);
    pid_t third = join_as(ls_rendezvous_address(r), "three", &f[2]);
    await(r, &p.joined, 2);
    LS_CHECK_EQ(p.last, 3); /* a number that nobody had before */
    LS_EXPECT_LOG(1);
    ls_rendezvous_expel(r, 2, "it is not like the others");
    reap(second);
    LS_CHECK_EQ(f[1].attended, LS_EPEER);
    LS_CHECK(strstr(f[1].text, "the job goes on without this node: it is not like the others"));
    LS_CHECK_STR(f[1].heard, "hello");
    LS_CHECK(!f[1].dropped);
    p.over = true; /* a node that was never needed goes home */
    LS_CHECK_OK(ls_rendezvous_end(r, 0, &code));
    LS_CHECK_EQ(code, 0);
    reap(third);
    LS_CHECK(!f[2].called && f[2].without);
    ls_rendezvous_close(r);
    LS_CHECK_EQ(jobs_files(), files);
}

LS_TEST(late_join_gives_up_a_silent_node)
{
    seen p = {.joined = 0};
    const ls_rendezvous_hooks hooks = hooks_of(&p, ls_test_ms(1500));
    fate *f = fates();
    ls_rendezvous *r = open_host(&hooks, 2);
    pid_t child = join_as(ls_rendezvous_address(r), "one", &f[0]);

    LS_CHECK_OK(ls_rendezvous_meet(r, ls_test_soon()));
    await(r, &p.heard, 1);
    LS_CHECK_EQ(p.lost, 0);
    kill(child, SIGSTOP);
    await(r, &p.lost, 1);
    LS_CHECK(strstr(p.why[1], "no sign of life for"));
    LS_CHECK(p.silent_ns > ls_test_ms(1500));
    kill(child, SIGCONT); /* it finds that it was given up */
    reap(child);
    LS_CHECK(f[0].dropped);
    LS_CHECK(strstr(f[0].text, "went away"));
    ls_rendezvous_close(r);
}

LS_TEST(late_join_refuses_with_a_reason)
{
    seen p = {.refuses = true};
    const ls_rendezvous_hooks hooks = hooks_of(&p, ls_test_ms(60000));
    fate *f = fates();
    ls_rendezvous *r = open_host(&hooks, 1);

    LS_CHECK_OK(ls_rendezvous_meet(r, ls_test_soon()));
    LS_EXPECT_LOG(1);
    pid_t child = join_as(ls_rendezvous_address(r), "one", &f[0]);
    await(r, &p.joined, 1);
    reap(child);
    LS_CHECK_EQ(f[0].met, LS_EUSAGE);
    LS_CHECK(strstr(f[0].text, "refuses this node: nobody is wanted"));
    ls_rendezvous_close(r);
}
