/* coordinator_process.c -- the coordinator's process as its agent sees it; coordinator_serve.c is
 * the other side.
 *
 *   state of the process   leaves it
 *   none                   start() -> greeted
 *   greeted                on_have() -> ready
 *   ready                  the end of its socket, or killed as too slow: replace() -> none, start()
 *
 * What the kernel still has of a dead process's messages is read: only a frame that is not whole
 * was not sent. */
#include "cluster/recover/coordinator_process.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/recover/coordinator_log.h"
#include "cluster/node/worker_env.h"
#include "cluster/node/spawn.h"
#include "cluster/elect/vote_store.h"

enum { SLOW_S = 20, END_MS = 2000, WORKED_S = 5, EARLY_DEATHS = 10, BITE = 64 << 10 };

struct ls_coordinator_process {
    ls_coordinator_process_args args;
    ls_coordinator_log *coordinator_log; /* owned; NULL: it is a process of its own */
    bool pumps;
    char path[PATH_MAX];
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
    bool waits, answered; /* for an answer */
    ls_str answer;
    ls_str shared;   /* the end of messages */
    ls_str asked;    /* about which view all are asked; empty: none */
    uint64_t n_busy; /* frames when it was asked which nodes are busy; */
    ls_str busy;     /* the answer */
    uint64_t n_said; /* frames in all */
    bool over;       /* the job is */
    int kick_fd;     /* readable: something waits in `later` */
    int64_t started_ns;
    int64_t died_ns;        /* 0: it lives */
    int early_deaths;       /* deaths in a row, each soon and without a new frame in its log, */
    uint64_t acked_at_last; /* and how many it had then */
    ls_err_record hopeless;
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

static void refuse(void *context, ls_spawn_stage stage, int error)
{
    (void)context; /* it ends with 127 */
    (void)stage;
    (void)error;
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
    o->pid = ls_spawn_start(&plan, refuse, NULL);
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
    size_t at = ls_coordinator_log_begin(&o->first, LS_COORDINATOR_LOG_HELLO);
    ls_wire_codec_put(&o->first, o->n_heard, 8);
    ls_coordinator_log_put_bytes(&o->first, &o->args.rules, sizeof o->args.rules);
    ls_coordinator_log_put_bytes(&o->first, o->path, strlen(o->path));
    ls_coordinator_log_end(&o->first, at);
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
        shutdown(o->fd, SHUT_RDWR); /* whoever else has a copy of it */
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
    o->hopeless = *ls_err_last();
}

/* --- what it says ----------------------------------------------------------------------------- */

static void drop_front(ls_str *bytes, size_t n)
{
    memmove(bytes->p, bytes->p + n, bytes->len - n);
    bytes->len -= n;
    if (bytes->cap > 0)
        bytes->p[bytes->len] = '\0';
}

/* Frames up to the first number are in its log, up to the second taken. Where its log cannot be
 * written, what it was told stays here, which is as good until this process ends. */
static void forget(ls_coordinator_process *o, uint64_t logged, uint64_t taken)
{
    size_t at = 0;

    while (o->n_acked < logged && at < o->kept.len) {
        at += ls_coordinator_log_frame(o->kept.p + at, o->kept.len - at);
        o->n_acked++;
    }
    drop_front(&o->kept, at);
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
    if (o->args.died)
        o->args.died(o->args.context, what, took_ns);
}

static void send_frame(ls_coordinator_process *o, ls_str *frame);

static void begin(ls_str *out, ls_coordinator_log_kind kind, int64_t now)
{
    ls_str_init(out);
    ls_coordinator_log_begin(out, kind);
    ls_wire_codec_put(out, (uint64_t)now, 8);
}

/* Whether all accept the view that it asks about: asked until they do, or it asks something else.
 */
static void ask(ls_coordinator_process *o)
{
    ls_wire_codec in = {.at = (const uint8_t *)o->asked.p, .left = o->asked.len};
    uint64_t number = ls_wire_codec_get(&in, 8), above = ls_wire_codec_get(&in, 8), generation = 0;
    int n = (int)ls_wire_codec_get(&in, 4);
    int *nodes = in.bad ? NULL : ls_mem_array((size_t)n + 1, sizeof *nodes);
    ls_str frame;

    for (int i = 0; i < n && nodes; i++)
        nodes[i] = (int)ls_wire_codec_get(&in, 4);
    if (nodes)
        generation = o->args.rules.agree(o->args.context, nodes, n, above);
    ls_mem_free(nodes);
    if (generation == 0)
        return;
    ls_str_clear(&o->asked);
    begin(&frame, LS_COORDINATOR_LOG_AGREED, ls_time_now_ns());
    ls_wire_codec_put(&frame, number, 8);
    ls_wire_codec_put(&frame, generation, 8);
    send_frame(o, &frame);
}

static void tell(ls_coordinator_process *o, ls_wire_codec *in)
{
    int node = (int)ls_wire_codec_get(in, 4);
    bool shared = ls_wire_codec_get(in, 1) != 0;
    ls_str bytes;

    ls_str_init(&bytes);
    ls_str_append_bytes(&bytes, in->at, in->left);
    if (shared)
        ls_str_append_bytes(&bytes, o->shared.p, o->shared.len);
    if (ls_str_status(&bytes) == LS_OK)
        o->args.tell(o->args.context, node, bytes.p, bytes.len);
    else
        ls_log(LS_LOG_ERROR, "a message to node %d is lost: %s", node, ls_err_last()->text);
    ls_str_release(&bytes);
}

static void stop(ls_coordinator_process *o, ls_wire_codec *in)
{
    int node = (int)ls_wire_codec_get(in, 4) - 1, code = (int)ls_wire_codec_get(in, 2);
    ls_err_record why;

    ls_coordinator_log_get_record(in, &why);
    o->args.stop(o->args.context, node, code, &why);
}

/* What follows from something that it was told. */
static void obey(ls_coordinator_process *o, const void *frame)
{
    ls_wire_codec in = ls_coordinator_log_body(frame);
    char why[LS_MESSAGES_TEXT];
    int node;

    switch (ls_coordinator_log_kind_of(frame)) {
    case LS_COORDINATOR_LOG_TELL:
        tell(o, &in);
        break;
    case LS_COORDINATOR_LOG_SHARED:
        ls_str_clear(&o->shared);
        ls_str_append_bytes(&o->shared, in.at, in.left);
        break;
    case LS_COORDINATOR_LOG_CALL:
        o->args.call(o->args.context, (int)ls_wire_codec_get(&in, 4));
        break;
    case LS_COORDINATOR_LOG_EXPEL:
        node = (int)ls_wire_codec_get(&in, 4);
        ls_coordinator_log_get_text(&in, why, sizeof why);
        o->args.expel(o->args.context, node, why);
        break;
    case LS_COORDINATOR_LOG_STOP:
        stop(o, &in);
        break;
    case LS_COORDINATOR_LOG_ASK:
        ls_str_clear(&o->asked);
        ls_str_append_bytes(&o->asked, in.at, in.left);
        ask(o);
        break;
    case LS_COORDINATOR_LOG_OVER:
        o->over = true;
        break;
    case LS_COORDINATOR_LOG_REMEMBER:
        if (o->args.remember)
            o->args.remember(o->args.context, in.at, in.left);
        break;
    default:
        break;
    }
}

static void keep_answer(ls_coordinator_process *o, const void *frame)
{
    ls_wire_codec in = ls_coordinator_log_body(frame);

    ls_str_clear(&o->answer);
    ls_str_append_bytes(&o->answer, in.at, in.left);
    o->answered = true;
}

static void on_ack(ls_coordinator_process *o, ls_wire_codec *in)
{
    uint64_t logged = ls_wire_codec_get(in, 8);

    forget(o, logged, ls_wire_codec_get(in, 8));
}

static void take_frame(ls_coordinator_process *o, const void *frame, size_t len)
{
    ls_coordinator_log_kind kind = ls_coordinator_log_kind_of(frame);
    ls_wire_codec in = ls_coordinator_log_body(frame);

    o->n_heard += kind >= LS_COORDINATOR_LOG_TELL && kind < LS_COORDINATOR_LOG_HELLO;
    if (kind == LS_COORDINATOR_LOG_HAVE)
        on_have(o, ls_wire_codec_get(&in, 8));
    else if (kind == LS_COORDINATOR_LOG_ACK)
        on_ack(o, &in);
    else if (kind == LS_COORDINATOR_LOG_ANSWER || kind == LS_COORDINATOR_LOG_JOINED)
        keep_answer(o, frame);
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
        drop_front(&taken, at);
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
    char bytes[BITE];

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
    if (!lives && o->hopeless.code == LS_OK)
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
        drop_front(&o->kept, n);
        ls_str out = o->coordinator_log->out;
        ls_str_init(&o->coordinator_log->out);
        for (size_t at = 0, len; (len = ls_coordinator_log_frame(out.p + at, out.len - at)) > 0;
             at += len)
            take_frame(o, out.p + at, len);
        ls_str_release(&out);
    }
    o->pumps = false;
}

static void send_frame(ls_coordinator_process *o, ls_str *frame)
{
    ls_coordinator_log_end(frame, 0);
    ls_str_append_bytes(&o->kept, frame->p, frame->len);
    if (frame->failed || o->kept.failed)
        ls_log(LS_LOG_ERROR, "no memory for what the coordinator must know");
    ls_str_release(frame);
    o->n_said++;
    if (o->since_ns == 0 && !o->coordinator_log)
        o->since_ns = ls_time_now_ns();
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
        (void)eventfd_write(o->kick_fd, 1);
    if (o->since_ns == 0)
        o->since_ns = ls_time_now_ns();
}

/* A question, which is asked again of the next process when one dies: its answer. */
static ls_wire_codec question(ls_coordinator_process *o, ls_str *frame)
{
    ls_coordinator_log_end(frame, 0);
    o->answered = false;
    ls_str_clear(&o->answer);
    if (o->coordinator_log)
        o->answered = ls_coordinator_log_answer(o->coordinator_log, frame->p, &o->answer) == LS_OK;
    for (pid_t asked = 0; !o->answered && o->hopeless.code == LS_OK && !frame->failed;) {
        if (o->ready && o->pid != asked) {
            asked = o->pid;
            ls_str_clear(&o->first);
            ls_str_append_bytes(&o->first, frame->p, frame->len);
            o->first_at = 0;
            flush(o);
        }
        wait_for_it(o);
    }
    o->since_ns = o->kept.len > 0 ? o->since_ns : 0;
    ls_str_release(frame);
    return (ls_wire_codec){.at = (const uint8_t *)o->answer.p, .left = o->answer.len};
}

/* --- opening ---------------------------------------------------------------------------------- */

static ls_status name_log(ls_coordinator_process *o)
{
    char folder[PATH_MAX / 2];
    uint64_t name = 0;
    ls_status st;

    LS_TRY(st, ls_vote_store_folder(folder, sizeof folder), out);
    if (getrandom(&name, sizeof name, 0) != (ssize_t)sizeof name)
        st = ls_fail_sys(LS_EIO, "cannot draw a name for the coordinator's log");
    snprintf(o->path, sizeof o->path, "%s/%016llx.wal", folder, (unsigned long long)name);
out:
    return st;
}

/* It must come as far as to have a log, or it is not relied upon. */
static ls_status start_first(ls_coordinator_process *o)
{
    char how[120];
    ls_status st;

    LS_TRY(st, name_log(o), out);
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

ls_status ls_coordinator_process_open(ls_coordinator_process **coordinator_process_out,
                                      const ls_coordinator_process_args *args)
{
    ls_coordinator_process *o = ls_mem_alloc(sizeof *o);
    ls_status st = LS_OK;

    if (!o)
        return LS_ENOMEM;
    o->args = *args;
    o->fd = -1;
    ls_str *const strings[] = {&o->first,  &o->kept,   &o->in,    &o->later,
                               &o->answer, &o->shared, &o->asked, &o->busy};
    for (size_t i = 0; i < LS_COUNT(strings); i++)
        ls_str_init(strings[i]);
    o->n_busy = UINT64_MAX;
    o->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    o->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (o->epoll_fd < 0 || o->kick_fd < 0 ||
        epoll_ctl(o->epoll_fd, EPOLL_CTL_ADD, o->kick_fd,
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

static void remove_log(const ls_coordinator_process *o)
{
    static const char *const ends[] = {"", ".lock", ".new", ".next", ".next.lock", ".next.new"};
    char path[PATH_MAX + 16];

    for (size_t i = 0; i < LS_COUNT(ends) && *o->path; i++) {
        snprintf(path, sizeof path, "%s%s", o->path, ends[i]);
        unlink(path);
    }
}

void ls_coordinator_process_close(ls_coordinator_process *coordinator_process)
{
    ls_coordinator_process *o = coordinator_process;
    char how[120];

    if (!o)
        return;
    ls_err_record before = *ls_err_last();
    reap(o, how, sizeof how); /* the end of its socket is its order to end */
    remove_log(o);
    ls_coordinator_log_close(o->coordinator_log);
    if (o->epoll_fd >= 0)
        close(o->epoll_fd);
    if (o->kick_fd >= 0)
        close(o->kick_fd);
    ls_str *const strings[] = {&o->first,  &o->kept,   &o->in,    &o->later,
                               &o->answer, &o->shared, &o->asked, &o->busy};
    for (size_t i = 0; i < LS_COUNT(strings); i++)
        ls_str_release(strings[i]);
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
    eventfd_t kicks;
    ls_str frame;

    (void)eventfd_read(o->kick_fd, &kicks);
    if (o->coordinator_log) {
        begin(&frame, LS_COORDINATOR_LOG_LOOK, ls_time_now_ns());
        send_frame(o, &frame);
    } else {
        take_frames(o, &o->later);
        attend(o);
    }
    if (o->asked.len > 0)
        ask(o);
    return o->hopeless.code == LS_OK ? LS_OK : ls_err_adopt(&o->hopeless);
}

/* --- the calls of a coordinator --------------------------------------------------------------- */

ls_status ls_coordinator_process_joins(ls_coordinator_process *coordinator_process, int node,
                                       const char *host, const char *ip, int workers, bool begins,
                                       int64_t now)
{
    ls_coordinator_process *o = coordinator_process;
    ls_err_record record;
    ls_str frame;

    begin(&frame, LS_COORDINATOR_LOG_JOINS, now);
    ls_wire_codec_put(&frame, (uint64_t)node, 4);
    ls_wire_codec_put(&frame, (uint64_t)workers, 4);
    ls_wire_codec_put(&frame, begins, 1);
    ls_coordinator_log_put_bytes(&frame, host, strlen(host));
    ls_coordinator_log_put_bytes(&frame, ip, strlen(ip));
    o->answered = false;
    send_frame(o, &frame);
    while (!o->answered && !o->coordinator_log && o->hopeless.code == LS_OK)
        wait_for_it(o);
    if (!o->answered)
        return ls_err_adopt(&o->hopeless);
    ls_wire_codec in = {.at = (const uint8_t *)o->answer.p, .left = o->answer.len};
    ls_coordinator_log_get_record(&in, &record);
    return record.code == LS_OK ? LS_OK : ls_err_adopt(&record);
}

void ls_coordinator_process_has_named(ls_coordinator_process *coordinator_process)
{
    ls_str frame;

    begin(&frame, LS_COORDINATOR_LOG_NAMED, ls_time_now_ns());
    send_frame(coordinator_process, &frame);
}

bool ls_coordinator_process_excludes(ls_coordinator_process *coordinator_process, const char *host,
                                     int64_t now, char *why, size_t cap)
{
    ls_str frame;

    begin(&frame, LS_COORDINATOR_LOG_EXCLUDES, now);
    ls_coordinator_log_put_bytes(&frame, host, strlen(host));
    ls_wire_codec in = question(coordinator_process, &frame);
    bool excluded = ls_wire_codec_get(&in, 1) != 0;
    if (excluded)
        ls_coordinator_log_get_text(&in, why, cap);
    return excluded;
}

void ls_coordinator_process_takes(ls_coordinator_process *coordinator_process, int node,
                                  const void *bytes, size_t len, int64_t now)
{
    ls_str frame;

    begin(&frame, LS_COORDINATOR_LOG_TAKES, now);
    ls_wire_codec_put(&frame, (uint64_t)node, 4);
    ls_str_append_bytes(&frame, bytes, len);
    send_frame(coordinator_process, &frame);
}

void ls_coordinator_process_loses(ls_coordinator_process *coordinator_process, int node,
                                  const char *why, int64_t noticed_ns, int64_t now)
{
    ls_str frame;

    begin(&frame, LS_COORDINATOR_LOG_LOSES, now);
    ls_wire_codec_put(&frame, (uint64_t)node, 4);
    ls_wire_codec_put(&frame, (uint64_t)noticed_ns, 8);
    ls_coordinator_log_put_bytes(&frame, why, strlen(why));
    send_frame(coordinator_process, &frame);
}

void ls_coordinator_process_restores(ls_coordinator_process *coordinator_process,
                                     const ls_view_past *past, const char *why, int64_t noticed_ns,
                                     int64_t now)
{
    ls_str frame;

    begin(&frame, LS_COORDINATOR_LOG_RESTORES, now);
    ls_wire_codec_put(&frame, past->generation, 8);
    ls_wire_codec_put(&frame, past->begun, 1);
    ls_wire_codec_put(&frame, (uint64_t)past->reached, 8);
    ls_wire_codec_put(&frame, (uint64_t)noticed_ns, 8);
    ls_coordinator_log_put_bytes(&frame, why, strlen(why));
    send_frame(coordinator_process, &frame);
}

void ls_coordinator_process_recalls(ls_coordinator_process *coordinator_process, const void *bytes,
                                    size_t len, int64_t now)
{
    ls_str frame;

    begin(&frame, LS_COORDINATOR_LOG_RECALLS, now);
    ls_str_append_bytes(&frame, bytes, len);
    send_frame(coordinator_process, &frame);
}

void ls_coordinator_process_returns(ls_coordinator_process *coordinator_process, int node)
{
    ls_str frame;

    begin(&frame, LS_COORDINATOR_LOG_RETURNS, ls_time_now_ns());
    ls_wire_codec_put(&frame, (uint64_t)node, 4);
    send_frame(coordinator_process, &frame);
}

/* Busy nodes stay so while nothing happens: one question is for all nodes. */
bool ls_coordinator_process_is_idle(ls_coordinator_process *coordinator_process, int node)
{
    ls_coordinator_process *o = coordinator_process;
    ls_str frame;

    if (!o->over || node < 0)
        return o->over;
    if (o->n_busy != o->n_said) {
        begin(&frame, LS_COORDINATOR_LOG_BUSY, ls_time_now_ns());
        ls_wire_codec in = question(o, &frame);
        ls_str_clear(&o->busy);
        ls_str_append_bytes(&o->busy, in.at, in.left);
        o->n_busy = o->n_said;
    }
    ls_wire_codec in = {.at = (const uint8_t *)o->busy.p, .left = o->busy.len};
    bool over = ls_wire_codec_get(&in, 1) != 0, found = false;
    while (in.left > 0 && !found)
        found = (int)ls_wire_codec_get(&in, 4) == node;
    return over && !found;
}
