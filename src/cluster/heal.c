/* heal.c -- messages and clocks around the rules of view.h.
 *
 * The agent's loop calls in; nothing here waits. A view is revoked by breaking the memory that its
 * ranks share, which wakes all of them up whatever they wait for; they find the way to
 * ls_heal_ask() by themselves. */
#include "cluster/heal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"

enum { MAGIC = 0x4c534831, REPORT = 1, READY = 2, VIEW = 3, END = 4 };
enum { START_S = 300 }; /* for a process to report for the first time */
enum { BUSY = 20 };

typedef struct said { /* by a worker */
    uint32_t magic, kind;
    int32_t pid;
    ls_view_report report;
    char why[LS_HEAL_CAUSE]; /* for which it has lost the others; "": it begins */
} said;

typedef struct told { /* by the agent */
    uint32_t magic, kind;
    int32_t pid;
    ls_heal_view view;
} told;

/* --- a worker's side -------------------------------------------------------------------------- */

static int own_end(void)
{
    const char *text = getenv("LINESHAFT_FD_HEAL");
    char *end;
    long fd = text ? strtol(text, &end, 10) : -1;

    return text && *text && !*end && fd > 2 && fd < 1 << 20 ? (int)fd : -1;
}

bool ls_heal_has_agent(void)
{
    return own_end() >= 0;
}

static bool say(const said *s)
{
    ssize_t n;

    do
        n = send(own_end(), s, sizeof *s, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof *s;
}

/* The next message; fd_out -1: it brought no descriptor. False: the agent is gone. */
static bool hear(told *t, int *fd_out)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = ""};
    struct iovec body = {t, sizeof *t};
    struct msghdr m = {.msg_iov = &body,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof control.bytes};
    ssize_t n;

    *fd_out = -1;
    do
        n = recvmsg(own_end(), &m, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    const struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
        memcpy(fd_out, CMSG_DATA(c), sizeof *fd_out);
    return n == (ssize_t)sizeof *t && t->magic == MAGIC;
}

ls_status ls_heal_ask(const ls_view_report *report, ls_heal_view *view_out, int *board_fd_out)
{
    said s = {.magic = MAGIC, .kind = REPORT, .pid = getpid(), .report = *report};
    ls_err_record lost = *ls_err_last();
    told t;
    int fd;

    snprintf(s.why, sizeof s.why, "%.*s", LS_HEAL_CAUSE - 1, lost.code == LS_OK ? "" : lost.text);
    if (!say(&s))
        return ls_fail_sys(LS_EPEER, "the agent of this rank cannot be reached");
    while (hear(&t, &fd)) {
        bool mine = t.pid == getpid();
        if (mine && t.kind == VIEW && fd >= 0) {
            *view_out = t.view;
            *board_fd_out = fd;
            ls_err_clear();
            return LS_OK;
        }
        if (fd >= 0)
            close(fd); /* for a process that was here before */
        if (mine && t.kind == END)
            return lost.code != LS_OK ? ls_err_adopt(&lost)
                                      : ls_fail(LS_EPEER, "the job is ending");
    }
    return ls_fail(LS_EPEER, "the agent of this rank is gone");
}

void ls_heal_ready(void)
{
    const said s = {.magic = MAGIC, .kind = READY, .pid = getpid()};

    if (ls_heal_has_agent())
        (void)say(&s);
}

/* --- the agent's side ------------------------------------------------------------------------- */

struct ls_heal {
    ls_heal_args args;
    ls_view view;
    int fd;            /* epoll of our ends */
    int *ours;         /* owned: one for each worker, */
    int *ends;         /* owned: and its other end; -1: closed */
    pid_t *pids;       /* owned; 0: nobody */
    long *ticks;       /* owned: CPU time that it had used when last looked at */
    int64_t *since_ns; /* owned: since when it is stopped or waited for; 0: it is not */
    int64_t lost_ns;   /* when the view was given up; 0: it is whole */
    char cause[LS_HEAL_CAUSE];
    bool finished;
};

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

ls_status ls_heal_open(ls_heal **heal_out, const ls_heal_args *args)
{
    size_t n = (size_t)args->workers;
    ls_heal *h = ls_mem_alloc(sizeof *h);
    ls_status st = LS_OK;

    if (!h)
        return LS_ENOMEM;
    h->args = *args;
    ls_view_init(&h->view, args->workers, args->rules);
    h->ours = ls_mem_array(n, sizeof *h->ours);
    h->ends = ls_mem_array(n, sizeof *h->ends);
    h->pids = ls_mem_array(n, sizeof *h->pids);
    h->since_ns = ls_mem_array(n, sizeof *h->since_ns);
    h->ticks = ls_mem_array(n, sizeof *h->ticks);
    for (size_t i = 0; i < n && h->ours && h->ends; i++)
        h->ours[i] = h->ends[i] = -1;
    h->fd = epoll_create1(EPOLL_CLOEXEC);
    if (!h->ours || !h->ends || !h->pids || !h->since_ns || !h->ticks || h->fd < 0)
        st = ls_fail(LS_ENOMEM, "no memory for the membership of %d workers", args->workers);
    for (int i = 0; i < args->workers && st == LS_OK; i++) {
        int pair[2];
        struct epoll_event event = {.events = EPOLLIN};
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
            st = ls_fail_sys(LS_EIO, "cannot make a socket for the membership of workers");
            break;
        }
        h->ours[i] = pair[0];
        h->ends[i] = pair[1];
        event.data.u32 = (uint32_t)i;
        if (epoll_ctl(h->fd, EPOLL_CTL_ADD, pair[0], &event) != 0)
            st = ls_fail_sys(LS_EIO, "cannot watch the membership of workers");
    }
    if (st != LS_OK)
        ls_heal_close(h);
    else
        *heal_out = h;
    return st;
}

void ls_heal_close(ls_heal *heal)
{
    if (!heal)
        return;
    for (int i = 0; i < heal->args.workers && heal->ours && heal->ends; i++) {
        close_fd(&heal->ours[i]);
        close_fd(&heal->ends[i]);
    }
    close_fd(&heal->fd);
    ls_mem_free(heal->ours);
    ls_mem_free(heal->ends);
    ls_mem_free(heal->pids);
    ls_mem_free(heal->since_ns);
    ls_mem_free(heal->ticks);
    ls_mem_free(heal);
}

const int *ls_heal_ends(const ls_heal *heal)
{
    return heal->ends;
}

void ls_heal_close_ends(ls_heal *heal)
{
    for (int i = 0; i < heal->args.workers; i++)
        close_fd(&heal->ends[i]);
}

int ls_heal_fd(const ls_heal *heal)
{
    return heal->fd;
}

void ls_heal_started(ls_heal *heal, int worker, pid_t pid)
{
    heal->pids[worker] = pid;
    heal->since_ns[worker] = 0;
    heal->ticks[worker] = 0;
}

void ls_heal_left(ls_heal *heal, int worker)
{
    heal->pids[worker] = 0;
    ls_view_leaves(&heal->view, worker);
}

/* The view ends here; the first cause is kept. */
static void give_up_view(ls_heal *h, const char *why)
{
    if (h->lost_ns != 0 || h->view.generation == 0) /* there is none */
        return;
    h->lost_ns = ls_time_now_ns();
    snprintf(h->cause, sizeof h->cause, "%s", why);
    for (int i = 0; i < h->args.workers; i++)
        h->since_ns[i] = 0;
    h->args.revoke(h->args.context, why);
}

ls_view_verdict ls_heal_ended(ls_heal *heal, int worker, const ls_view_end *end, const char *why)
{
    ls_heal *h = heal;
    bool was_in = h->view.member[worker].state == LS_VIEW_IN;
    ls_view_verdict verdict = h->finished ? LS_VIEW_STOP : ls_view_loses(&h->view, worker, end);

    h->pids[worker] = 0;
    if (verdict == LS_VIEW_STOP)
        return verdict;
    if (was_in)
        give_up_view(h, why);
    ls_log(LS_LOG_INFO, "%s; %s", why,
           verdict == LS_VIEW_RESTART ? "it is started again" : "the others go on without it");
    return verdict;
}

/* --- messages --------------------------------------------------------------------------------- */

static void take(ls_heal *h, int worker)
{
    said s;

    while (recv(h->ours[worker], &s, sizeof s, MSG_DONTWAIT) == (ssize_t)sizeof s) {
        if (s.magic != MAGIC || s.pid != h->pids[worker])
            continue; /* of a process that is dead by now */
        s.why[sizeof s.why - 1] = '\0';
        if (s.kind == READY) {
            ls_view_readies(&h->view, worker);
        } else if (s.kind == REPORT) {
            if (h->view.member[worker].state == LS_VIEW_IN)
                give_up_view(h, s.why);
            ls_view_reports(&h->view, worker, &s.report);
            h->since_ns[worker] = 0;
        }
    }
}

static void tell(const ls_heal *h, int worker, const told *t, int fd)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = ""};
    told copy = *t;
    struct iovec body = {&copy, sizeof copy};
    struct msghdr m = {.msg_iov = &body, .msg_iovlen = 1};

    if (fd >= 0) {
        m.msg_control = control.bytes;
        m.msg_controllen = sizeof control.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    /* Who does not get it does not come, and is found to be late. */
    (void)sendmsg(h->ours[worker], &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static ls_status announce(ls_heal *h)
{
    told t = {.magic = MAGIC, .kind = VIEW};
    int fd = -1;
    ls_status st;

    LS_TRY(st, ls_view_next(&h->view, &t.view.plan), out);
    LS_TRY(st, h->args.make(h->args.context, t.view.plan.generation, t.view.plan.ranks, &fd), out);
    t.view.begun = h->view.begun;
    t.view.lost_ns = h->lost_ns;
    memcpy(t.view.cause, h->cause, sizeof t.view.cause);
    h->lost_ns = 0;
    h->cause[0] = '\0';
    for (int i = 0; i < h->args.workers; i++) {
        h->since_ns[i] = 0;
        t.pid = (int32_t)h->pids[i];
        t.view.rank = h->view.member[i].rank;
        if (h->view.member[i].state == LS_VIEW_IN)
            tell(h, i, &t, fd);
    }
out:
    return st;
}

/* --- time ------------------------------------------------------------------------------------- */

/* What a process does: whether somebody has stopped it (one that a debugger holds, 't', is let be),
 * and how much it has computed. False: it is gone. */
static bool look_at(pid_t pid, bool *stopped_out, long *ticks_out)
{
    char path[40], text[512], state = 0;
    long user = 0, system = 0;
    ssize_t n;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *end = strrchr(text, ')'); /* the name before may hold anything */
    if (!end || sscanf(end + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &state,
                       &user, &system) != 3)
        return false;
    *stopped_out = state == 'T';
    *ticks_out = user + system;
    return true;
}

/* How long this worker may be as it is; 0: as long as it likes. One that still computes while the
 * others wait for it has not yet heard of the loss: it may do so for BUSY times the patience. */
static int64_t limit_of(ls_heal *h, int worker)
{
    ls_view_state state = h->view.member[worker].state;
    int64_t patience = h->args.patience_ns;
    bool stopped, computes;
    long ticks;

    if (h->pids[worker] == 0 || (state != LS_VIEW_IN && state != LS_VIEW_AWAY) ||
        !look_at(h->pids[worker], &stopped, &ticks))
        return 0;
    computes = ticks > h->ticks[worker];
    h->ticks[worker] = ticks;
    if (stopped)
        return patience;
    if (state == LS_VIEW_IN && h->lost_ns != 0)
        return computes && ls_time_now_ns() - h->lost_ns < BUSY * patience ? 0 : patience;
    return state == LS_VIEW_AWAY ? ls_max_i64(patience, START_S * LS_NS_PER_S) : 0;
}

/* The first who has been away for too long; -1: nobody. */
static int too_late(ls_heal *h)
{
    int64_t now = ls_time_now_ns();

    for (int i = 0; i < h->args.workers; i++) {
        int64_t limit = limit_of(h, i);
        if (limit == 0)
            h->since_ns[i] = 0;
        else if (h->since_ns[i] == 0)
            h->since_ns[i] = now;
        else if (now - h->since_ns[i] > limit)
            return i;
    }
    return -1;
}

ls_heal_order ls_heal_attend(ls_heal *heal)
{
    ls_heal *h = heal;
    struct epoll_event events[64];
    int n;

    if (h->finished)
        return (ls_heal_order){.task = LS_HEAL_NOTHING};
    while ((n = epoll_wait(h->fd, events, LS_COUNT(events), 0)) > 0)
        for (int i = 0; i < n; i++) {
            int worker = (int)events[i].data.u32;
            take(h, worker);
            if (events[i].events & (EPOLLHUP | EPOLLERR)) /* the last holder of its end is gone */
                epoll_ctl(h->fd, EPOLL_CTL_DEL, h->ours[worker], NULL);
        }
    if (ls_view_complete(&h->view) && announce(h) != LS_OK)
        return (ls_heal_order){.task = LS_HEAL_STOP};
    int late = too_late(h);
    if (late < 0)
        return (ls_heal_order){.task = LS_HEAL_NOTHING};
    h->since_ns[late] = 0;
    ls_log(LS_LOG_WARN, "worker %d (pid %d) was stopped or did not come for too long: killed", late,
           (int)h->pids[late]);
    return (ls_heal_order){.task = LS_HEAL_KILL, .worker = late};
}

void ls_heal_finish(ls_heal *heal)
{
    ls_heal *h = heal;

    h->finished = true;
    for (int i = 0; i < h->args.workers; i++) {
        const told t = {.magic = MAGIC, .kind = END, .pid = (int32_t)h->pids[i]};
        if (h->pids[i] > 0)
            tell(h, i, &t, -1);
    }
}
