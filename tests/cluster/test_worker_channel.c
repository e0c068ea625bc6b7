/* test_worker_channel.c -- membership with real processes: this one is the agent, its children are workers.
 *
 * A worker asks for a view, writes down what it got, and does what a byte tells it: 'l' it has lost
 * the others and asks again, 'r' it is ready, 'e' it ends well. */
#include "harness.h"
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/time.h"
#include "cluster/member/worker_channel.h"

enum { MOST = 4 };

typedef struct note { /* what a worker got */
    ls_status st;
    ls_worker_channel_view view;
    char segment[16]; /* what lies in the memory of its view */
} note;

typedef struct agent {
    ls_worker_channel *channel;
    int workers;
    int lines[MOST]; /* to each worker, and from it */
    pid_t pids[MOST];
    int segment_fd, revoked;
    char why[LS_WORKER_CHANNEL_CAUSE];
} agent;

static ls_status make(void *context, uint64_t generation, int ranks, int *fd_out)
{
    agent *a = context;
    char text[16];

    if (a->segment_fd >= 0)
        close(a->segment_fd);
    a->segment_fd = memfd_create("view", MFD_CLOEXEC);
    snprintf(text, sizeof text, "%d of %d", (int)generation, ranks);
    LS_CHECK_EQ(pwrite(a->segment_fd, text, sizeof text, 0), sizeof text);
    *fd_out = a->segment_fd;
    return LS_OK;
}

static void give_up(void *context, const char *why)
{
    agent *a = context;

    a->revoked++;
    snprintf(a->why, sizeof a->why, "%s", why);
}

static _Noreturn void worker(int line, int64_t have)
{
    ls_view_report report = {.have = -1, .reached = -1};
    char order = 'l';

    do {
        note n = {.st = LS_OK};
        ls_worker_channel_fds fds = {-1, -1};
        if (order == 'r') {
            ls_worker_channel_ready();
            continue;
        }
        n.st = ls_worker_channel_ask(&report, NULL, &n.view, &fds);
        if (n.st == LS_OK && !n.view.dismissed &&
            pread(fds.segment, n.segment, sizeof n.segment, 0) != sizeof n.segment)
            _exit(2);
        if (fds.members >= 0)
            close(fds.members);
        if (fds.segment >= 0)
            close(fds.segment);
        if (write(line, &n, sizeof n) != sizeof n)
            _exit(3);
        report = (ls_view_report){.have = have, .reached = have, .met = have};
        ls_fail(LS_EPEER, "lost the others");
    } while (read(line, &order, 1) == 1 && order != 'e');
    _exit(0);
}

/* The process runs, and its agent has not heard of that. */
static void start_late(agent *a, int i, int64_t have)
{
    char number[16];
    int pair[2];

    LS_CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    snprintf(number, sizeof number, "%d", ls_worker_channel_ends(a->channel)[i]);
    a->pids[i] = fork();
    if (a->pids[i] == 0) {
        setenv("LINESHAFT_FD_HEAL", number, 1);
        close(pair[0]);
        worker(pair[1], have);
    }
    close(pair[1]);
    if (a->lines[i] >= 0)
        close(a->lines[i]);
    a->lines[i] = pair[0];
}

static void start(agent *a, int i, int64_t have)
{
    start_late(a, i, have);
    ls_worker_channel_started(a->channel, i, a->pids[i]);
}

static void open_agent(agent *a, int workers, ls_view_rules rules, int64_t patience_ns)
{
    *a = (agent){.workers = workers, .segment_fd = -1};
    LS_CHECK_OK(
        ls_worker_channel_open(&a->channel, &(ls_worker_channel_args){.workers = workers,
                                                                      .patience_ns = patience_ns,
                                                                      .make = make,
                                                                      .revoke = give_up,
                                                                      .context = a,
                                                                      .rules = rules}));
    for (int i = 0; i < workers; i++)
        a->lines[i] = -1;
    for (int i = 0; i < workers; i++)
        start(a, i, 10 + i);
}

static void tell(const agent *a, int i, char order)
{
    LS_CHECK_EQ(write(a->lines[i], &order, 1), 1);
}

/* Attend until this worker has written something down. */
static note await(agent *a, int i)
{
    int64_t soon = ls_test_soon();
    note n;

    while (recv(a->lines[i], &n, sizeof n, MSG_DONTWAIT) != sizeof n) {
        LS_CHECK_EQ(ls_worker_channel_attend(a->channel).task, LS_WORKER_CHANNEL_NOTHING);
        LS_CHECK(ls_time_now_ns() < soon);
        usleep(500);
    }
    return n;
}

static ls_view_verdict end(agent *a, int i, int signal)
{
    kill(a->pids[i], signal);
    LS_CHECK_EQ(waitpid(a->pids[i], NULL, 0), a->pids[i]);
    a->pids[i] = 0;
    return ls_worker_channel_ended(a->channel, i, &(ls_view_end){.signal = signal},
                                   "worker was killed");
}

static void close_agent(agent *a)
{
    for (int i = 0; i < a->workers; i++) {
        if (a->pids[i] > 0) {
            kill(a->pids[i], SIGKILL);
            waitpid(a->pids[i], NULL, 0);
        }
        close(a->lines[i]);
    }
    ls_worker_channel_close(a->channel);
    close(a->segment_fd);
}

LS_TEST(worker_channel_gives_all_a_view_and_a_new_one_after_a_death)
{
    agent a;

    open_agent(&a, 3, (ls_view_rules){.restarts = 1, .least = 1}, ls_test_ms(60000));
    for (int i = 0; i < 3; i++) {
        note n = await(&a, i);
        LS_CHECK_OK(n.st);
        LS_CHECK_EQ(n.view.rank, i);
        LS_CHECK_STR(n.segment, "1 of 3");
        LS_CHECK(!n.view.begun);
        LS_CHECK_STR(n.view.cause, "");
    }
    tell(&a, 0, 'r');
    LS_CHECK_EQ(end(&a, 1, SIGKILL), LS_VIEW_RESTART);
    LS_CHECK_EQ(a.revoked, 1);
    tell(&a, 0, 'l');
    tell(&a, 2, 'l');
    start(&a, 1, 11);
    for (int i = 0; i < 3; i++) {
        note n = await(&a, i);
        LS_CHECK_OK(n.st);
        LS_CHECK_EQ(n.view.plan.generation, 2);
        LS_CHECK_EQ(n.view.plan.base, 12);
        LS_CHECK_EQ(n.view.plan.source, 2);
        LS_CHECK(n.view.plan.spread);
        LS_CHECK(n.view.begun);
        LS_CHECK_STR(n.segment, "2 of 3");
        LS_CHECK_STR(n.view.cause, "worker was killed");
        LS_CHECK(n.view.lost_ns > 0);
    }
    LS_CHECK_EQ(a.revoked, 1);
    close_agent(&a);
}

/* What was said to the process that was here before, or by it, is nobody's. */
/* A process that is quicker than the news of its start is not forgotten. */
LS_TEST(worker_channel_takes_reports_before_the_start_is_known)
{
    struct pollfd readable;
    agent a;

    open_agent(&a, 1, (ls_view_rules){.restarts = 1, .least = 1}, ls_test_ms(60000));
    LS_CHECK_OK(await(&a, 0).st);
    LS_CHECK_EQ(end(&a, 0, SIGKILL), LS_VIEW_RESTART);
    start_late(&a, 0, 10);
    readable = (struct pollfd){.fd = ls_worker_channel_fd(a.channel), .events = POLLIN};
    LS_CHECK_EQ(poll(&readable, 1, 60000), 1);
    LS_CHECK_EQ(ls_worker_channel_attend(a.channel).task, LS_WORKER_CHANNEL_NOTHING);
    ls_worker_channel_started(a.channel, 0, a.pids[0]);
    note n = await(&a, 0);
    LS_CHECK_OK(n.st);
    LS_CHECK_EQ(n.view.plan.generation, 2);
    close_agent(&a);
}

LS_TEST(worker_channel_drops_messages_of_dead_processes)
{
    agent a;

    open_agent(&a, 2, (ls_view_rules){.restarts = 3, .least = 1}, ls_test_ms(60000));
    await(&a, 0);
    await(&a, 1);
    /* The report of 1 is in its socket, and its process is dead when it is read. */
    tell(&a, 1, 'l');
    usleep(50000);
    LS_CHECK_EQ(end(&a, 1, SIGKILL), LS_VIEW_RESTART);
    tell(&a, 0, 'l');
    start(&a, 1, 30);
    note n = await(&a, 0);
    LS_CHECK_EQ(n.view.plan.base, 10); /* not 11, which died with it */
    LS_CHECK_EQ(n.view.plan.generation, 2);
    LS_CHECK_EQ(await(&a, 1).view.plan.generation, 2);
    /* A view is in the socket of 1, which is killed before it reads it. */
    kill(a.pids[1], SIGSTOP);
    tell(&a, 1, 'l');
    tell(&a, 0, 'l');
    LS_CHECK_EQ(end(&a, 1, SIGKILL), LS_VIEW_RESTART);
    start(&a, 1, 31);
    LS_CHECK_EQ(await(&a, 0).view.plan.generation, 3);
    LS_CHECK_EQ(await(&a, 1).view.plan.generation, 3);
    close_agent(&a);
}

LS_TEST(worker_channel_kills_a_stopped_or_missing_worker)
{
    agent a;
    note said;

    LS_EXPECT_LOG(2);
    open_agent(&a, 3, (ls_view_rules){.restarts = 0, .least = 1}, ls_test_ms(50));
    for (int i = 0; i < 3; i++)
        await(&a, i);
    for (int late = 2; late >= 1; late--) { /* 2 is stopped; 1 never reports */
        ls_worker_channel_order order = {.task = LS_WORKER_CHANNEL_NOTHING};
        int64_t soon = ls_test_soon();
        if (late == 2)
            kill(a.pids[2], SIGSTOP);
        else
            tell(&a, 0, 'l');
        while (order.task == LS_WORKER_CHANNEL_NOTHING && ls_time_now_ns() < soon) {
            order = ls_worker_channel_attend(a.channel);
            usleep(500);
        }
        LS_CHECK_EQ(order.task, LS_WORKER_CHANNEL_KILL);
        LS_CHECK_EQ(order.worker, late);
        LS_CHECK_EQ(end(&a, late, SIGKILL), LS_VIEW_DROP);
        if (late == 2) { /* the others come */
            tell(&a, 0, 'l');
            tell(&a, 1, 'l');
            LS_CHECK(strstr(await(&a, 0).view.cause, ", because it had been stopped for "));
            await(&a, 1);
        }
    }
    said = await(&a, 0);
    LS_CHECK_STR(said.segment, "3 of 1");
    LS_CHECK(strstr(said.view.cause, ", because it had not come to meet the others for "));
    close_agent(&a);
}

LS_TEST(worker_channel_lets_nobody_wait_when_the_job_ends)
{
    agent a;

    open_agent(&a, 2, (ls_view_rules){.restarts = 1, .least = 1}, ls_test_ms(60000));
    await(&a, 0);
    await(&a, 1);
    tell(&a, 0, 'l');
    while (a.revoked == 0)
        LS_CHECK_EQ(ls_worker_channel_attend(a.channel).task, LS_WORKER_CHANNEL_NOTHING);
    LS_CHECK_STR(a.why, "lost the others");
    ls_worker_channel_finish(a.channel);
    LS_CHECK_EQ(await(&a, 0).st, LS_EPEER);
    tell(&a, 1, 'l'); /* also who asks later */
    LS_CHECK_EQ(await(&a, 1).st, LS_EPEER);
    LS_CHECK_EQ(end(&a, 0, SIGKILL), LS_VIEW_STOP);
    close_agent(&a);
}

/* A worker dies when all have done their work, and the others end well before it is there again: it
 * is let go, whether it comes before or after they have left. */
LS_TEST(worker_channel_dismisses_a_worker_that_returns_after_the_end)
{
    for (int early = 0; early < 2; early++) {
        agent a;

        open_agent(&a, 2, (ls_view_rules){.restarts = 1, .least = 1}, ls_test_ms(60000));
        for (int i = 0; i < 2; i++)
            LS_CHECK_OK(await(&a, i).st);
        tell(&a, 0, 'r');
        LS_CHECK_EQ(end(&a, 1, SIGKILL), LS_VIEW_RESTART);
        if (early) {
            start(&a, 1, 11);
            for (int i = 0; i < 20; i++) { /* it is heard */
                LS_CHECK_EQ(ls_worker_channel_attend(a.channel).task, LS_WORKER_CHANNEL_NOTHING);
                usleep(2000);
            }
        }
        tell(&a, 0, 'e');
        LS_CHECK_EQ(waitpid(a.pids[0], NULL, 0), a.pids[0]);
        a.pids[0] = 0;
        ls_worker_channel_left(a.channel, 0);
        if (!early)
            start(&a, 1, 11);
        note n = await(&a, 1);
        LS_CHECK_OK(n.st);
        LS_CHECK(n.view.dismissed);
        close_agent(&a);
    }
}
