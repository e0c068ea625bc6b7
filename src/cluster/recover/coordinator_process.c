/* coordinator_process.c -- the coordinator's process as its agent sees it; coordinator_serve.c is
 * the other side.
 *
 *   state of the process   leaves it
 *   none                   start() -> greeted
 *   greeted                on_have() -> ready
 *   ready                  the end of its socket, or killed as too slow: replace() -> none, start()
 *
 * What the kernel still has of a dead process's messages is read: only a frame that is not whole
 * was not sent.
 *
 * Which frames are kept: those that are not in its log. Example, it dies after it has logged frame 4:
 *
 *     said    1 2 3 4 5 6      kept 4 5 6 (ACK was for 3), heard 7 frames of its own
 *     HELLO   heard 7     ->   it replays 1 to 4, and skips its first 7 frames
 *     HAVE 4              <-   4 is forgotten; 5 and 6 are sent again */
#include "cluster/recover/coordinator_process.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/node/worker_env.h"
#include "cluster/node/spawn.h"
#include "cluster/elect/state_file.h"

enum { SLOW_S = 20, END_MS = 2000, WORKED_S = 5, EARLY_DEATHS = 10, READ_BYTES = 64 << 10 };

struct ls_coordinator_process {
    ls_coordinator_process_args args;
    ls_coordinator_log *coordinator_log; /* owned; NULL: it is a process of its own */
    bool pumps;
    ls_state_file file; /* its log */
    pid_t pid;
    int fd, epoll_fd;
    bool writes;      /* watched for room to send */
    bool ready;       /* HAVE has come */
    ls_str first;     /* HELLO, or a question: sent before, or behind everything else */
    size_t first_at;  /* bytes of it that were sent */
    ls_str kept;      /* what happened, and is not in its log yet */
    size_t kept_at;   /* bytes of it that were sent */
    uint64_t n_acked; /* frames before the first one there */
    int64_t since_ns; /* since when something is not answered; 0: nothing is */
    ls_str in;        /* what came, and is no whole frame yet */
    ls_str later;     /* what came while an answer was waited for */
    uint64_t n_heard;
    bool waits;        /* for an answer */
    ls_str answer;     /* its frame; empty: it has not come */
    ls_str shared;     /* the end of messages */
    ls_str asked;      /* about which view all are asked; empty: none */
    uint64_t question; /* and its number */
    uint64_t n_busy;   /* frames when it was asked which nodes are busy; */
    ls_str busy;       /* the answer: those that are, */
    bool all_idle;     /* and that the others are idle */
    uint64_t n_said;   /* frames in all */
    bool over;         /* the job is */
    int wake_fd;       /* readable: something waits in `later` */
    int64_t started_ns;
    int64_t died_ns;        /* 0: it lives */
    int early_deaths;       /* deaths in a row, each soon and without a new frame in its log, */
    uint64_t acked_at_last; /* and how many it had then */
    ls_err_record failure;
};

/* --- the process ------------------------------------------------------------------------------ */

static void watch(ls_coordinator_process *o)
{
    bool writes = (o->ready && o->kept_at < o->kept.len) || o->first_at < o->first.len;
    struct epoll_event event = {.events = EPOLLIN | (writes ? (uint32_t)EPOLLOUT : 0)};

    if (o->fd >= 0 && writes != o->writes &&
        epoll_ctl(o->epoll_fd, EPOLL_CTL_MOD, o->fd, &event) == 0)
        o->writes = writes;
}

/* As much as goes; where it is gone, that is seen when it is read from. */
static void send_from(const ls_coordinator_process *o, const ls_str *bytes, size_t *at)
{
    while (o->fd >= 0 && *at < bytes->len) {
        ssize_t n = send(o->fd, bytes->p + *at, bytes->len - *at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return;
        *at += (size_t)n;
    }
}

/* A question comes behind everything that happened before. */
static void flush(ls_coordinator_process *o)
{
    if (o->first_at > 0)
        send_from(o, &o->first, &o->first_at);
    if (o->ready && (o->first_at == 0 || o->first_at == o->first.len))
        send_from(o, &o->kept, &o->kept_at);
    if (!o->ready || o->kept_at == o->kept.len)
        send_from(o, &o->first, &o->first_at);
    watch(o);
}

static ls_status spawn(ls_coordinator_process *o, int end)
{
    const char *const argv[] = {"ls-coordinator", NULL};
    ls_worker_env env;
    ls_status st;

    ls_worker_env_init(&env);
    ls_worker_env_set_number(&env, "LINESHAFT_FD_COORDINATOR", end);
    LS_TRY(st, ls_worker_env_status(&env), out);
    const ls_spawn plan = {.path = o->args.program,
                           .argv = argv,
                           .envp = env.list,
                           .out_fd = STDERR_FILENO,
                           .err_fd = STDERR_FILENO,
                           .keep = &end,
                           .n_keep = 1,
                           .net_fd = -1};
    o->pid = ls_spawn_start(&plan, NULL, NULL); /* one that is refused ends with 127 */
    if (o->pid < 0) {
        o->pid = 0;
        st = ls_fail_sys(LS_EIO, "cannot start a process for the coordinator");
    }
out:
    ls_worker_env_release(&env);
    return st;
}

static void greet(ls_coordinator_process *o)
{
    ls_str_clear(&o->first);
    ls_coordinator_log_put(&o->first, &(ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_HELLO,
                                                                  .number = o->n_heard,
                                                                  .why = o->file.path,
                                                                  .bytes = &o->args.rules,
                                                                  .len = sizeof o->args.rules});
    o->first_at = 0;
}

static ls_status start(ls_coordinator_process *o)
{
    struct epoll_event event = {.events = EPOLLIN};
    int pair[2] = {-1, -1};
    ls_status st;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return ls_fail_sys(LS_EIO, "cannot make a socket for the coordinator");
    o->fd = pair[0];
    o->writes = o->ready = false;
    o->since_ns = o->started_ns = ls_time_now_ns();
    if (epoll_ctl(o->epoll_fd, EPOLL_CTL_ADD, o->fd, &event) != 0) {
        st = ls_fail_sys(LS_EIO, "cannot watch the coordinator");
        goto out;
    }
    LS_TRY(st, spawn(o, pair[1]), out);
    greet(o);
    LS_TRY(st, ls_str_status(&o->first), out);
    flush(o);
out:
    close(pair[1]);
    return st;
}

/* How it ended; it has ended, or is about to. */
static void reap(ls_coordinator_process *o, char *how, size_t cap)
{
    int64_t until_ns = ls_time_now_ns() + END_MS * LS_NS_PER_MS;
    int status = 0;

    snprintf(how, cap, "is gone");
    if (o->fd >= 0) {
        shutdown(o->fd, SHUT_RDWR); /* also for a process that has inherited a copy */
        close(o->fd);
    }
    o->fd = -1;
    if (o->pid == 0)
        return;
    while (waitpid(o->pid, &status, WNOHANG) == 0) {
        if (ls_time_now_ns() > until_ns)
            kill(o->pid, SIGKILL);
        usleep(500);
    }
    if (WIFSIGNALED(status))
        snprintf(how, cap, "was killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(how, cap, "ended with exit code %d", WEXITSTATUS(status));
    o->pid = 0;
}

/* Start it again, unless that makes no sense. */
static void replace(ls_coordinator_process *o)
{
    char how[120];
    int pid = o->pid;
    int64_t now = ls_time_now_ns();
    bool worked = o->n_acked > o->acked_at_last || now - o->started_ns > WORKED_S * LS_NS_PER_S;

    reap(o, how, sizeof how);
    o->died_ns = o->died_ns ? o->died_ns : now;
    o->early_deaths = worked ? 1 : o->early_deaths + 1;
    o->acked_at_last = o->n_acked;
    ls_str_clear(&o->in); /* a frame that was not whole was not said */
    ls_log(LS_LOG_WARN, "the coordinator (pid %d) %s; it is started again, training goes on", pid,
           how);
    if (o->early_deaths < EARLY_DEATHS && start(o) == LS_OK)
        return;
    if (o->early_deaths >= EARLY_DEATHS) {
        ls_fail(LS_ENORETRY, "the coordinator of this job died %d times in a row: it %s",
                o->early_deaths, how);
        ls_err_hint("It cannot do its work here; look at its log in LINESHAFT_STATE, or "
                    "/var/tmp/lineshaft-UID, and at the memory of this machine.");
    }
    o->failure = *ls_err_last();
}

/* --- what it says ----------------------------------------------------------------------------- */

/* Frames up to the first number are in its log, up to the second taken. Where its log cannot be
 * written, its input stays here, which is as good until this process ends. */
static void forget(ls_coordinator_process *o, uint64_t logged, uint64_t taken)
{
    size_t at = 0;

    while (o->n_acked < logged && at < o->kept.len) {
        at += ls_coordinator_log_frame(o->kept.p + at, o->kept.len - at);
        o->n_acked++;
    }
    ls_coordinator_log_drop(&o->kept, at);
    o->kept_at = at < o->kept_at ? o->kept_at - at : 0;
    o->since_ns = taken < o->n_said ? ls_time_now_ns() : 0;
}

static void on_have(ls_coordinator_process *o, uint64_t number)
{
    int64_t took_ns = ls_time_now_ns() - o->died_ns;
    char what[160];

    forget(o, number, number);
    o->ready = true;
    o->kept_at = 0;
    o->first_at = o->first.len;
    if (o->died_ns == 0)
        return;
    snprintf(what, sizeof what,
             "the coordinator died, and was started again as pid %d after %.2f s", (int)o->pid,
             (double)took_ns / 1e9);
    o->died_ns = 0;
    o->args.act(o->args.context, &(ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_DIED,
                                                             .why = what,
                                                             .noticed_ns = took_ns});
}

/* Whether all accept the view that it asks about: asked until they do, or it asks something else. The
 * question: generation, which the next one must be above (8), then nodes (4 each). */
static void ask(ls_coordinator_process *o)
{
    uint64_t above;
    size_t n = (o->asked.len - sizeof above) / sizeof(int);
    int *nodes = ls_mem_array(n, sizeof *nodes);
    uint64_t generation = 0;

    memcpy(&above, o->asked.p, sizeof above);
    if (nodes) {
        memcpy(nodes, o->asked.p + sizeof above, n * sizeof *nodes);
        generation = o->args.rules.agree(o->args.context, nodes, (int)n, above);
    }
    ls_mem_free(nodes);
    if (generation == 0)
        return;
    ls_str_clear(&o->asked);
    ls_coordinator_process_send(o, &(ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_AGREED,
                                                               .number = o->question,
                                                               .second = generation});
}

/* The caller gets a message as one piece. */
static void tell(ls_coordinator_process *o, ls_coordinator_log_event event)
{
    ls_str bytes;

    ls_str_init(&bytes);
    ls_str_append_bytes(&bytes, event.bytes, event.len);
    if (event.shared)
        ls_str_append_bytes(&bytes, o->shared.p, o->shared.len);
    event.bytes = bytes.p;
    event.len = bytes.len;
    if (ls_str_status(&bytes) == LS_OK)
        o->args.act(o->args.context, &event);
    else
        ls_log(LS_LOG_ERROR, "a message to node %d is lost: %s", event.node, ls_err_last()->text);
    ls_str_release(&bytes);
}

static void keep(ls_str *to, const void *bytes, size_t len)
{
    ls_str_clear(to);
    ls_str_append_bytes(to, bytes, len);
}

/* Carry out a frame that it has sent. */
static void obey(ls_coordinator_process *o, const void *frame)
{
    ls_coordinator_log_event e;

    if (!ls_coordinator_log_get(frame, &e))
        return;
    switch (e.kind) {
    case LS_COORDINATOR_LOG_TELL:
        tell(o, e);
        break;
    case LS_COORDINATOR_LOG_SHARED:
        keep(&o->shared, e.bytes, e.len);
        break;
    case LS_COORDINATOR_LOG_ASK:
        keep(&o->asked, e.bytes, e.len);
        o->question = e.number;
        ask(o);
        break;
    case LS_COORDINATOR_LOG_OVER:
        o->over = true;
        break;
    default:
        o->args.act(o->args.context, &e);
    }
}

static void take_frame(ls_coordinator_process *o, const void *frame, size_t len)
{
    ls_coordinator_log_kind kind = ls_coordinator_log_kind_of(frame);
    ls_coordinator_log_event e;

    o->n_heard += kind >= LS_COORDINATOR_LOG_TELL && kind < LS_COORDINATOR_LOG_HELLO;
    if (kind == LS_COORDINATOR_LOG_ANSWER || kind == LS_COORDINATOR_LOG_JOINED)
        keep(&o->answer, frame, len);
    else if (kind == LS_COORDINATOR_LOG_HAVE && ls_coordinator_log_get(frame, &e))
        on_have(o, e.number);
    else if (kind == LS_COORDINATOR_LOG_ACK && ls_coordinator_log_get(frame, &e))
        forget(o, e.number, e.second);
    else if (o->waits)
        ls_str_append_bytes(&o->later, frame, len);
    else
        obey(o, frame);
}

/* Whole frames out of a buffer to which the calls back may add. */
static void take_frames(ls_coordinator_process *o, ls_str *bytes)
{
    ls_str taken = *bytes;
    size_t at = 0, n;

    ls_str_init(bytes);
    while ((n = ls_coordinator_log_frame(taken.p + at, taken.len - at)) > 0) {
        if (bytes == &o->later)
            obey(o, taken.p + at);
        else
            take_frame(o, taken.p + at, n);
        at += n;
    }
    if (at <
        taken.len) { /* in front of what has come meanwhile: nothing, for it is not read here */
        ls_coordinator_log_drop(&taken, at);
        ls_str_append_bytes(&taken, bytes->p, bytes->len);
        ls_str_release(bytes);
        *bytes = taken;
        return;
    }
    ls_str_release(&taken);
}

/* All that has come. False: it is gone. */
static bool receive(ls_coordinator_process *o)
{
    char bytes[READ_BYTES];

    while (o->fd >= 0) {
        ssize_t n = recv(o->fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n > 0)
            ls_str_append_bytes(&o->in, bytes, (size_t)n);
        if (n <= 0)
            return false;
    }
    return o->fd >= 0;
}

/* Read, and see that it lives; one that does not answer is helped to its end. */
static void attend(ls_coordinator_process *o)
{
    bool lives = receive(o);

    take_frames(o, &o->in);
    if (lives && o->since_ns && ls_time_now_ns() - o->since_ns > SLOW_S * LS_NS_PER_S) {
        ls_log(LS_LOG_WARN, "the coordinator (pid %d) has not answered for %d s: killed",
               (int)o->pid, SLOW_S);
        kill(o->pid, SIGKILL);
        o->since_ns = ls_time_now_ns();
    }
    if (!lives && o->failure.code == LS_OK)
        replace(o);
    flush(o);
}

/* --- in this process -------------------------------------------------------------------------- */

/* What follows may make something else happen: that comes in its turn. */
static void pump(ls_coordinator_process *o)
{
    if (o->pumps)
        return;
    o->pumps = true;
    while (o->kept.len > 0 || o->coordinator_log->out.len > 0) {
        size_t n = ls_coordinator_log_frame(o->kept.p, o->kept.len);
        if (n > 0 && ls_coordinator_log_take(o->coordinator_log, o->kept.p) != LS_OK)
            ls_log(LS_LOG_WARN, "%s", ls_err_last()->text);
        ls_coordinator_log_drop(&o->kept, n);
        ls_str out = o->coordinator_log->out;
        ls_str_init(&o->coordinator_log->out);
        for (size_t at = 0, len; (len = ls_coordinator_log_frame(out.p + at, out.len - at)) > 0;
             at += len)
            take_frame(o, out.p + at, len);
        ls_str_release(&out);
    }
    o->pumps = false;
}

void ls_coordinator_process_send(ls_coordinator_process *coordinator_process,
                                 const ls_coordinator_log_event *event)
{
    ls_coordinator_process *o = coordinator_process;
    ls_coordinator_log_event timed = *event;

    timed.now = ls_time_now_ns();
    ls_coordinator_log_put(&o->kept, &timed);
    if (o->kept.failed)
        ls_log(LS_LOG_ERROR, "no memory for what the coordinator must know");
    o->n_said++;
    if (o->since_ns == 0 && !o->coordinator_log)
        o->since_ns = timed.now;
    if (o->coordinator_log)
        pump(o);
    else
        flush(o);
}

/* Wait once for what it says; what follows from that must wait until nobody waits for an answer. */
static void wait_for_it(ls_coordinator_process *o)
{
    struct pollfd p = {.fd = o->fd, .events = POLLIN};

    poll(&p, 1, 100);
    o->waits = true;
    attend(o);
    o->waits = false;
    if (o->later.len > 0)
        (void)eventfd_write(o->wake_fd, 1);
    if (o->since_ns == 0)
        o->since_ns = ls_time_now_ns();
}

/* A question, which is asked again of the next process when one dies: its answer. */
static ls_coordinator_log_event question(ls_coordinator_process *o, ls_coordinator_log_event event)
{
    ls_coordinator_log_event answer = {.yes = false};
    ls_str frame;

    event.now = ls_time_now_ns();
    ls_str_init(&frame);
    ls_coordinator_log_put(&frame, &event);
    ls_str_clear(&o->answer);
    if (o->coordinator_log && !frame.failed)
        ls_coordinator_log_answer(o->coordinator_log, frame.p, &o->answer);
    for (pid_t asked = 0; o->answer.len == 0 && o->failure.code == LS_OK && !frame.failed;) {
        if (o->ready && o->pid != asked) {
            asked = o->pid;
            keep(&o->first, frame.p, frame.len);
            o->first_at = 0;
            flush(o);
        }
        wait_for_it(o);
    }
    o->since_ns = o->kept.len > 0 ? o->since_ns : 0;
    ls_str_release(&frame);
    if (o->answer.len > 0)
        (void)ls_coordinator_log_get(o->answer.p, &answer);
    return answer;
}

/* --- opening ---------------------------------------------------------------------------------- */

/* It must come as far as to have a log, or it is not relied upon. */
static ls_status start_first(ls_coordinator_process *o)
{
    char how[120];
    ls_status st;

    LS_TRY(st, ls_state_file_create(&o->file, ".wal"), out);
    LS_TRY(st, start(o), out);
    while (!o->ready) {
        struct pollfd p = {.fd = o->fd, .events = POLLIN};
        poll(&p, 1, 100);
        bool lives = receive(o);
        take_frames(o, &o->in);
        flush(o);
        if (!lives && !o->ready) {
            reap(o, how, sizeof how);
            return ls_fail(LS_EIO, "its process %s", how);
        }
        if (ls_time_now_ns() - o->started_ns > SLOW_S * LS_NS_PER_S) {
            st = ls_fail(LS_EDEADLINE, "its process does not answer");
            goto out;
        }
    }
out:
    if (st != LS_OK)
        reap(o, how, sizeof how);
    return st;
}

static void each_string(ls_coordinator_process *o, void (*call)(ls_str *s))
{
    ls_str *const strings[] = {&o->first,  &o->kept,   &o->in,    &o->later,
                               &o->answer, &o->shared, &o->asked, &o->busy};

    for (size_t i = 0; i < LS_COUNT(strings); i++)
        call(strings[i]);
}

ls_status ls_coordinator_process_open(ls_coordinator_process **coordinator_process_out,
                                      const ls_coordinator_process_args *args)
{
    ls_coordinator_process *o = ls_mem_alloc(sizeof *o);
    ls_status st = LS_OK;

    if (!o)
        return LS_ENOMEM;
    o->args = *args;
    o->fd = -1;
    each_string(o, ls_str_init);
    o->n_busy = UINT64_MAX;
    o->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    o->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (o->epoll_fd < 0 || o->wake_fd < 0 ||
        epoll_ctl(o->epoll_fd, EPOLL_CTL_ADD, o->wake_fd,
                  &(struct epoll_event){.events = EPOLLIN}) != 0) {
        st = ls_fail_sys(LS_EIO, "cannot watch the coordinator");
        goto out;
    }
    bool apart = args->program && start_first(o) == LS_OK;
    if (args->program && !apart)
        ls_log(LS_LOG_WARN, "the coordinator has no process of its own, and dies with this one: %s",
               ls_err_last()->text);
    if (!apart) {
        ls_err_clear();
        LS_TRY(st, ls_coordinator_log_open(&o->coordinator_log, &args->rules), out);
    }
    *coordinator_process_out = o;
out:
    if (st != LS_OK)
        ls_coordinator_process_close(o);
    return st;
}

void ls_coordinator_process_close(ls_coordinator_process *coordinator_process)
{
    ls_coordinator_process *o = coordinator_process;
    char how[120];

    if (!o)
        return;
    ls_err_record before = *ls_err_last();
    reap(o, how, sizeof how); /* the end of its socket is its order to end */
    ls_state_file_remove(&o->file);
    ls_coordinator_log_close(o->coordinator_log);
    if (o->epoll_fd >= 0)
        close(o->epoll_fd);
    if (o->wake_fd >= 0)
        close(o->wake_fd);
    each_string(o, ls_str_release);
    ls_mem_free(o);
    ls_err_adopt(&before);
}

int ls_coordinator_process_fd(const ls_coordinator_process *coordinator_process)
{
    return coordinator_process->epoll_fd;
}

ls_status ls_coordinator_process_attend(ls_coordinator_process *coordinator_process)
{
    ls_coordinator_process *o = coordinator_process;
    eventfd_t wakes;

    (void)eventfd_read(o->wake_fd, &wakes);
    if (o->coordinator_log) {
        ls_coordinator_process_send(o,
                                    &(ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_LOOK});
    } else {
        take_frames(o, &o->later);
        attend(o);
    }
    if (o->asked.len > 0)
        ask(o);
    return o->failure.code == LS_OK ? LS_OK : ls_err_adopt(&o->failure);
}

/* --- the calls of a coordinator that have an answer ------------------------------------------- */

ls_status ls_coordinator_process_joins(ls_coordinator_process *coordinator_process,
                                       const ls_coordinator_log_event *event)
{
    ls_coordinator_process *o = coordinator_process;
    ls_coordinator_log_event joined;

    ls_str_clear(&o->answer);
    ls_coordinator_process_send(o, event);
    while (o->answer.len == 0 && !o->coordinator_log && o->failure.code == LS_OK)
        wait_for_it(o);
    if (o->answer.len == 0 || !ls_coordinator_log_get(o->answer.p, &joined))
        return ls_err_adopt(&o->failure);
    if (joined.status != LS_OK) {
        ls_fail(joined.status, "%s", joined.why);
        ls_err_hint("%s", joined.hint);
    }
    return joined.status;
}

bool ls_coordinator_process_excludes(ls_coordinator_process *coordinator_process, const char *host,
                                     char *why, size_t cap)
{
    ls_coordinator_log_event answer =
        question(coordinator_process,
                 (ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_EXCLUDES, .host = host});

    if (answer.yes)
        snprintf(why, cap, "%s", answer.why);
    return answer.yes;
}

/* Busy nodes stay so while nothing happens: one question is for all nodes. */
bool ls_coordinator_process_is_idle(ls_coordinator_process *coordinator_process, int node)
{
    ls_coordinator_process *o = coordinator_process;

    if (!o->over || node < 0)
        return o->over;
    if (o->n_busy != o->n_said) {
        ls_coordinator_log_event answer =
            question(o, (ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_BUSY});
        keep(&o->busy, answer.bytes, answer.len);
        o->all_idle = answer.yes;
        o->n_busy = o->n_said;
    }
    ls_wire_codec in = {.at = (const uint8_t *)o->busy.p, .left = o->busy.len};
    bool found = false;
    while (in.left > 0 && !found)
        found = (int)ls_wire_codec_get(&in, 4) == node;
    return o->all_idle && !found;
}
