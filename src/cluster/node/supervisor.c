/* supervisor.c -- start, watch, signal, kill; nothing else, so that there is little to go wrong.
 *
 * The supervisor is a fork of the agent that never executes another program: it has all plans in
 * its memory and needs no message of the agent before it starts them. It allocates nothing and
 * takes no lock. It blocks every signal and sits in a session of its own, so that Ctrl-C reaches
 * the agent only, which decides.
 *
 * To end a tree: kill all children, reap them, and begin again with the orphans that they leave,
 * which a subreaper inherits. A round goes one generation down, so that a tree of depth d needs d
 * rounds, of about a millisecond each:
 *
 *     supervisor -- A -- B -- C      round 1 kills A; B becomes the supervisor's
 *     supervisor -- B -- C           round 2 kills B; C becomes the supervisor's
 *     supervisor -- C                round 3 kills C
 *
 * No process escapes: what a child starts is its own child, and becomes ours when it dies. Children
 * are found by reading the parent of every process in /proc; the list of children that the kernel
 * can offer is a build option that is often off. */
#include "cluster/node/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"
#include "cluster/member/process_stat.h"

enum { END_SECONDS = 5, ROUND_MS = 2, LOST_CODE = 1 };

/* What the agent sends. */
typedef enum order_kind { FINISH, SIGNAL, START } order_kind;
typedef struct order {
    order_kind kind;
    int signal;
    int worker; /* -1: all of them */
} order;

typedef struct reaper { /* the supervisor, in its own process */
    const ls_spawn *spawns;
    pid_t *pids; /* of workers that run; 0: not or no longer */
    int count;
    bool again; /* workers may be started again */
    pid_t agent;
    int fd, agent_fd, child_fd; /* orders and news; the agent's life; SIGCHLD */
} reaper;

/* --- /proc, without the heap ------------------------------------------------------------------ */

typedef struct linux_entry { /* struct linux_dirent64 */
    uint64_t inode;
    int64_t next;
    unsigned short bytes;
    unsigned char type;
    char name[];
} linux_entry;

typedef void (*visit)(void *context, pid_t child, pid_t session);

static void each_child(visit call, void *context)
{
    _Alignas(linux_entry) char block[8192];
    pid_t self = getpid();
    int dir = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long n;

    while (dir >= 0 && (n = syscall(SYS_getdents64, dir, block, sizeof block)) > 0)
        for (long at = 0; at < n;) {
            const linux_entry *entry = (const linux_entry *)(block + at);
            at += entry->bytes;
            if (entry->name[0] < '1' || entry->name[0] > '9')
                continue;
            pid_t pid = (pid_t)strtol(entry->name, NULL, 10);
            ls_process_stat stat;
            if (ls_process_stat_read(pid, &stat) && stat.parent == self)
                call(context, pid, stat.session);
        }
    if (dir >= 0)
        close(dir);
}

/* --- the supervisor's process ----------------------------------------------------------------- */

static void tell(const reaper *h, const ls_supervisor_news *news)
{
    ssize_t n;

    do
        n = send(h->fd, news, sizeof *news, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
}

typedef struct refusal {
    const reaper *reaper;
    int worker;
} refusal;

static void refuse(void *context, ls_spawn_stage stage, int error)
{
    const refusal *r = context;

    tell(r->reaper, &(ls_supervisor_news){.kind = LS_SUPERVISOR_REFUSED,
                                          .worker = r->worker,
                                          .stage = (int)stage,
                                          .error = error});
}

static void start(reaper *h, int i)
{
    refusal r = {h, i};
    pid_t pid = ls_spawn_start(&h->spawns[i], refuse, &r);

    if (pid < 0) {
        refuse(&r, LS_SPAWN_FORK, errno);
        tell(h,
             &(ls_supervisor_news){.kind = LS_SUPERVISOR_ENDED, .worker = i, .status = 127 << 8});
        return;
    }
    h->pids[i] = pid;
    tell(h, &(ls_supervisor_news){.kind = LS_SUPERVISOR_STARTED, .worker = i, .pid = pid});
}

/* Reap all dead children: workers are reported, orphans that we inherited are not. False: there is
 * no child left. */
static bool reap(reaper *h)
{
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid <= 0)
            return pid == 0;
        for (int i = 0; i < h->count; i++)
            if (h->pids[i] == pid) {
                h->pids[i] = 0;
                tell(h, &(ls_supervisor_news){
                            .kind = LS_SUPERVISOR_ENDED, .worker = i, .status = status});
            }
    }
}

static void kill_child(void *context, pid_t pid, pid_t session)
{
    (void)session;
    *(int *)context += 1;
    kill(pid, SIGKILL); /* ours until we reap it, so the number cannot be another's */
}

/* Returns how many could not be killed in time. */
static int end_all(reaper *h)
{
    int64_t deadline_ns = ls_time_now_ns() + END_SECONDS * LS_NS_PER_S;
    struct signalfd_siginfo info;
    int left = 0;

    while (reap(h)) {
        left = 0;
        each_child(kill_child, &left);
        if (left > 0 && ls_time_now_ns() > deadline_ns)
            return left;
        struct pollfd wait = {.fd = h->child_fd, .events = POLLIN};
        if (poll(&wait, 1, ROUND_MS) > 0 && read(h->child_fd, &info, sizeof info) < 0)
            continue;
    }
    return 0;
}

/* A worker that was not reaped still owns its number, and so does its group. */
static void signal_worker(const reaper *h, int i, int signal)
{
    if (h->pids[i] > 0 && kill(-h->pids[i], signal) != 0)
        kill(h->pids[i], signal); /* not yet the leader of its group */
}

/* One order of the agent; false: end. */
static bool obey(reaper *h)
{
    order what = {.kind = FINISH};
    ssize_t n = recv(h->fd, &what, sizeof what, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (n != (ssize_t)sizeof what || what.kind == FINISH)
        return false;
    if (what.kind == START)
        start(h, what.worker);
    for (int i = 0; i < h->count && what.kind == SIGNAL; i++)
        if (what.worker < 0 || what.worker == i)
            signal_worker(h, i, what.signal);
    return true;
}

static void watch(reaper *h)
{
    struct signalfd_siginfo info;

    for (;;) {
        struct pollfd p[3] = {{.fd = h->agent_fd, .events = POLLIN},
                              {.fd = h->child_fd, .events = POLLIN},
                              {.fd = h->fd, .events = POLLIN}};
        if (poll(p, 3, -1) < 0 && errno != EINTR)
            return;
        if (p[0].revents)
            return;
        if (p[1].revents && read(h->child_fd, &info, sizeof info) > 0)
            reap(h);
        if (p[2].revents && !obey(h))
            return;
    }
}

static int watch_agent(pid_t agent)
{
    int fd = (int)syscall(SYS_pidfd_open, agent, 0);

    return fd >= 0 && getppid() == agent ? fd : -1;
}

/* The lowest descriptor from this one on that the supervisor needs; INT_MAX: none. */
static unsigned next_needed(const reaper *h, unsigned from)
{
    const int ours[] = {h->fd, h->agent_fd, h->child_fd};
    unsigned next = INT_MAX;

#define NEEDS(f) next = (unsigned)(f) >= from && (unsigned)(f) < next ? (unsigned)(f) : next
    for (size_t i = 0; i < LS_COUNT(ours); i++)
        NEEDS(ours[i]);
    for (int i = 0; i < h->count && h->again; i++) {
        const ls_spawn *s = &h->spawns[i];
        NEEDS(s->out_fd);
        NEEDS(s->err_fd);
        for (int k = 0; k < s->n_keep; k++)
            NEEDS(s->keep[k]);
    }
#undef NEEDS
    return next;
}

/* Nothing of the agent's stays open here but our three, and what a worker inherits that may be
 * started again: a pipe must end with its last writer. */
static void close_others(const reaper *h)
{
    unsigned from = 3;

    while (from < INT_MAX) {
        unsigned next = next_needed(h, from);
        if (next > from)
            syscall(SYS_close_range, from, next - 1, 0);
        from = next + 1;
    }
}

static _Noreturn void supervisor_main(reaper *h)
{
    sigset_t all, child;

    setsid();
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    signal(SIGCHLD, SIG_DFL); /* an ignored SIGCHLD would reap behind our back */
    prctl(PR_SET_NAME, "ls-supervisor");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    h->child_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    h->agent_fd = watch_agent(h->agent);
    if (h->child_fd < 0 || h->agent_fd < 0)
        _exit(LOST_CODE);
    for (int i = 0; i < h->count; i++)
        start(h, i);
    close_others(h);
    watch(h);
    int left = end_all(h);
    tell(h, &(ls_supervisor_news){.kind = LS_SUPERVISOR_GONE, .left = left});
    _exit(0);
}

/* --- the agent's side ------------------------------------------------------------------------- */

ls_status ls_supervisor_open(ls_supervisor *supervisor, const ls_spawn *spawns, int count,
                             bool again)
{
    ls_status st = LS_OK;
    reaper h = {.spawns = spawns, .count = count, .again = again, .agent = getpid()};
    int was_reaper = 0, pair[2] = {-1, -1};

    *supervisor = (ls_supervisor){.fd = -1};
    h.pids = ls_mem_array((size_t)count, sizeof *h.pids);
    if (!h.pids)
        return LS_ENOMEM;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        st = ls_fail_sys(LS_EIO, "cannot make a socket for the supervisor of the workers");
        goto out;
    }
    int probe = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (probe < 0) {
        st = ls_fail_sys(LS_EIO, "cannot watch processes (pidfd_open)");
        ls_err_hint("Linux 5.3 or later is needed; a container's filter may forbid the call.");
        goto out;
    }
    close(probe);
    prctl(PR_GET_CHILD_SUBREAPER, &was_reaper);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    supervisor->made_reaper = was_reaper == 0;
    supervisor->fd = pair[0];
    pair[0] = -1;
    h.fd = pair[1];
    supervisor->pid = fork();
    if (supervisor->pid == 0) {
        close(supervisor->fd);
        supervisor_main(&h);
    }
    if (supervisor->pid < 0) {
        supervisor->pid = 0;
        st = ls_fail_sys(LS_EIO, "cannot start the supervisor of the workers");
    }
out:
    for (int i = 0; i < 2; i++)
        if (pair[i] >= 0)
            close(pair[i]);
    ls_mem_free(h.pids);
    if (st != LS_OK)
        ls_supervisor_close(supervisor);
    return st;
}

static void send_order(ls_supervisor *supervisor, const order *what)
{
    /* A supervisor that is gone is noticed by ls_supervisor_next(). */
    if (supervisor->fd >= 0)
        (void)send(supervisor->fd, what, sizeof *what, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void ls_supervisor_signal(ls_supervisor *supervisor, int worker, int signal)
{
    send_order(supervisor, &(order){.kind = SIGNAL, .signal = signal, .worker = worker});
}

void ls_supervisor_restart(ls_supervisor *supervisor, int worker)
{
    send_order(supervisor, &(order){.kind = START, .worker = worker});
}

void ls_supervisor_finish(ls_supervisor *supervisor)
{
    send_order(supervisor, &(order){.kind = FINISH});
}

bool ls_supervisor_next(ls_supervisor *supervisor, ls_supervisor_news *news_out)
{
    ssize_t n;

    if (supervisor->fd < 0)
        return false;
    do
        n = recv(supervisor->fd, news_out, sizeof *news_out, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n != (ssize_t)sizeof *news_out)
        *news_out = (ls_supervisor_news){.kind = LS_SUPERVISOR_LOST};
    return true;
}

typedef struct search {
    const pid_t *workers;
    int count;
    const char *mark;
    int found, left; /* seen in this look; those of them that were not yet dead */
} search;

static bool has_mark(pid_t pid, const char *mark)
{
    char path[40], *text = NULL;
    size_t cap = 0;
    bool found = false;

    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && !found && getdelim(&text, &cap, '\0', f) > 0)
        found = strcmp(text, mark) == 0;
    free(text);
    if (f)
        fclose(f);
    return found;
}

static void sweep_child(void *context, pid_t pid, pid_t session)
{
    search *s = context;
    bool ours = false;

    for (int i = 0; i < s->count && !ours; i++)
        ours = s->workers[i] > 0 && (pid == s->workers[i] || session == s->workers[i]);
    if (!ours && !has_mark(pid, s->mark))
        return;
    kill(pid, SIGKILL);
    s->found++;
    s->left += waitpid(pid, NULL, WNOHANG) != pid;
}

/* The end of its socket is seen before the kernel gives a dying process's children to another: on a
 * busy machine much earlier. It stays to be reaped. */
static void await_end(const ls_supervisor *supervisor, int64_t deadline_ns)
{
    siginfo_t info;

    do {
        info.si_pid = 0;
        if (waitid(P_PID, (id_t)supervisor->pid, &info, WEXITED | WNOWAIT | WNOHANG) != 0 &&
            errno != EINTR)
            return;
        if (info.si_pid == 0)
            usleep(500);
    } while (info.si_pid == 0 && ls_time_now_ns() < deadline_ns);
}

int ls_supervisor_sweep(const ls_supervisor *supervisor, const pid_t *workers, int count,
                        const char *mark, int64_t deadline_ns)
{
    search s = {.workers = workers, .count = count, .mark = mark};

    await_end(supervisor, deadline_ns);
    /* Twice nothing: an orphan may change its parent between two looks. */
    for (int quiet = 0; quiet < 2;) {
        s.found = s.left = 0;
        each_child(sweep_child, &s);
        quiet = s.found ? 0 : quiet + 1;
        if (s.left && ls_time_now_ns() > deadline_ns)
            break;
        usleep(ROUND_MS * 1000);
    }
    return s.left;
}

void ls_supervisor_close(ls_supervisor *supervisor)
{
    if (supervisor->fd >= 0)
        close(supervisor->fd); /* a supervisor that still runs takes this as the order to finish */
    supervisor->fd = -1;
    if (supervisor->pid > 0) {
        int64_t deadline_ns = ls_time_now_ns() + 2 * END_SECONDS * LS_NS_PER_S;
        while (waitpid(supervisor->pid, NULL, WNOHANG) == 0) {
            if (ls_time_now_ns() > deadline_ns)
                kill(supervisor->pid, SIGKILL);
            usleep(500);
        }
    }
    if (supervisor->made_reaper)
        prctl(PR_SET_CHILD_SUBREAPER, 0);
    *supervisor = (ls_supervisor){.fd = -1};
}
