/* death_watch.c -- a thread that polls the pidfds of the other processes of this node.
 *
 * A pidfd becomes readable when its process has ended. It cannot mean a later process with the same
 * number, provided that it was opened while the first one was alive: so after opening, the start
 * time is compared with the one in the segment.
 *
 *     not joined --(looked at every 20 ms)--> pidfd open --(readable)--> report how it ended
 *                                                 '----(it has left)--> nothing to report
 *
 * Example: local rank 3 has joined as process 4711, started at tick 8812345. It dies, and the
 * kernel gives the number to another program, started at 8899001, before this thread has opened a
 * pidfd. The start times differ, so the rank "is gone", and the other program is not watched.
 *
 * How the process ended stands in the last field of /proc/PID/stat until its parent collects it;
 * after that, newer kernels still report it through the pidfd. */
#include "comm/node/death_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/pool.h"
#include "comm/node/shm_segment_impl.h"

enum { SCAN_MS = 20, UNKNOWN = -1, GONE = -2, OURS = -3 };

struct ls_death_watch {
    ls_shm_segment *segment;
    int local, stop;
    bool started;
    pthread_t thread;
    int fd[LS_SHM_SEGMENT_RANKS]; /* pidfd; UNKNOWN before it joined; or as above */
};

/* --- how it ended ----------------------------------------------------------------------------- */

static void say_end(char *text, size_t cap, int status)
{
    if (status == UNKNOWN)
        snprintf(text, cap, "is gone");
    else if (WIFSIGNALED(status))
        snprintf(text, cap, "died: killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(text, cap, "ended with code %d without having left", WEXITSTATUS(status));
}

/* As waitpid() would return it; UNKNOWN when it cannot be known any more. */
static int zombie_status(int pid)
{
    char text[LS_SHM_SEGMENT_STAT];
    const char *state = ls_shm_segment_stat(pid, text), *last = strrchr(text, ' ');

    if (!state || !last || (state[2] != 'Z' && state[2] != 'X'))
        return UNKNOWN;
    return (int)strtol(last, NULL, 10);
}

/* The kernel's record behind a pidfd, since 6.15: its layout is part of the system's interface. */
static int pidfd_status(int fd)
{
    struct {
        uint64_t mask, cgroup;
        uint32_t ids[11];
        int32_t exit_code;
        uint32_t rest[4];
    } info = {.mask = 8 /* the exit code is wanted */};

    _Static_assert(sizeof info == 80, "the size is part of the number of the call");
    if (ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, 0xff, 11, sizeof info), &info) != 0 ||
        !(info.mask & 8))
        return UNKNOWN;
    return info.exit_code;
}

static void report(ls_shm_segment *segment, int by, int local, int status)
{
    char name[LS_SHM_SEGMENT_NAME], end[96];

    if (atomic_load_explicit(&segment->process[local].state, memory_order_acquire) ==
        LS_SHM_SEGMENT_LEFT)
        return;
    say_end(end, sizeof end, status);
    ls_shm_segment_abort(segment, by, LS_EPEER, "%s %s", ls_shm_segment_name(segment, local, name),
                         end);
}

/* --- the thread ------------------------------------------------------------------------------- */

/* A pidfd for the process of a local rank, if it has joined. The start time proves that the number
 * was not reused; otherwise the rank has died before it could be watched. */
static int open_process(const ls_death_watch *w, int local)
{
    const ls_shm_segment_process *s = &w->segment->process[local];
    uint32_t state = atomic_load_explicit(&s->state, memory_order_acquire);

    if (state < LS_SHM_SEGMENT_JOINED)
        return UNKNOWN;
    if (state == LS_SHM_SEGMENT_LEFT)
        return GONE;
    if (s->pid == getpid())
        return OURS;
    int fd = (int)syscall(SYS_pidfd_open, s->pid, 0);
    if (fd < 0 && errno != ESRCH)
        return UNKNOWN; /* no descriptors left: tried again */
    if (fd >= 0 && ls_shm_segment_started(s->pid, NULL) == s->started)
        return fd;
    if (fd >= 0)
        close(fd);
    report(w->segment, w->local, local, UNKNOWN);
    return GONE;
}

static void ended(ls_death_watch *w, int local)
{
    int pid = w->segment->process[local].pid, status = zombie_status(pid);

    if (status == UNKNOWN)
        status = pidfd_status(w->fd[local]);
    report(w->segment, w->local, local, status);
    close(w->fd[local]);
    w->fd[local] = GONE;
}

/* Poll all pidfds. While some rank has not joined yet, look for it every SCAN_MS. */
static void *watch_thread(void *arg)
{
    struct pollfd fds[LS_SHM_SEGMENT_RANKS + 1];
    int local[LS_SHM_SEGMENT_RANKS + 1];
    ls_death_watch *w = arg;

    for (;;) {
        int n = 1;
        bool scan = false;
        fds[0] = (struct pollfd){.fd = w->stop, .events = POLLIN};
        for (int i = 0; i < w->segment->ranks; i++) {
            if (w->fd[i] == UNKNOWN)
                w->fd[i] = open_process(w, i);
            scan |= w->fd[i] == UNKNOWN;
            local[n] = i;
            if (w->fd[i] >= 0)
                fds[n++] = (struct pollfd){.fd = w->fd[i], .events = POLLIN};
        }
        if (poll(fds, (nfds_t)n, scan ? SCAN_MS : -1) < 0)
            continue;
        if (fds[0].revents)
            return NULL;
        for (int i = 1; i < n; i++)
            if (fds[i].revents)
                ended(w, local[i]);
    }
}

/* Signals belong to the other threads. */
static int start_thread(ls_death_watch *w)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = ls_pool_start_apart(&w->thread, watch_thread, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

ls_status ls_death_watch_open(ls_death_watch **watch_out, ls_shm_segment *segment, int local)
{
    ls_death_watch *w = ls_mem_alloc(sizeof *w);

    if (!w)
        return LS_ENOMEM;
    w->segment = segment;
    w->local = local;
    for (int i = 0; i < LS_SHM_SEGMENT_RANKS; i++)
        w->fd[i] = UNKNOWN;
    w->stop = eventfd(0, EFD_CLOEXEC);
    int error = w->stop < 0 ? errno : start_thread(w);
    w->started = error == 0;
    if (!w->started) {
        ls_status st = ls_pool_start_failed(error, "watch the other ranks of this node");
        ls_death_watch_close(w);
        return st;
    }
    *watch_out = w;
    return LS_OK;
}

void ls_death_watch_close(ls_death_watch *watch)
{
    uint64_t one = 1;

    if (!watch)
        return;
    if (watch->started) {
        while (write(watch->stop, &one, sizeof one) < 0 && errno == EINTR)
            ;
        pthread_join(watch->thread, NULL);
    }
    if (watch->stop >= 0)
        close(watch->stop);
    for (int i = 0; i < watch->segment->ranks; i++)
        if (watch->fd[i] >= 0)
            close(watch->fd[i]);
    ls_mem_free(watch);
}
