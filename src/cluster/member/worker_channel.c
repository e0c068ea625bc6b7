/* worker_channel.c -- the workers of a node: their messages, and how long they may take.
 *
 *   state of a place   leaves it
 *   AWAY               REPORT -> WAITS; ls_worker_channel_ended() -> AWAY or OUT
 *   WAITS              the coordinator's VIEW -> IN; ls_worker_channel_ended() -> AWAY or OUT
 *   IN                 REPORT -> WAITS; ls_worker_channel_ended() -> AWAY or OUT; ls_worker_channel_left() -> DONE
 *
 * The agent's loop calls in; nothing here waits. A view is revoked by breaking the memory that its
 * ranks share, which fails every call that they are in; they come back to ls_worker_channel_ask() by
 * themselves.
 *
 * Nothing is decided here but that a worker is too late. Messages to and from the coordinator may
 * cross each other: so a report has a number, and a view that answers an older report is not given
 * to the process that is there now. */
#include "cluster/member/worker_channel.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/member/coordinator.h"
#include "cluster/member/process_stat.h"

enum { MAGIC = 0x4c534832 };
enum { REPORT = 1, READY, VIEW, END, REGROUP, DISMISS, NOTE };
enum { START_S = 300 }; /* for a process to report for the first time */
enum { BUSY = 20 };

typedef struct worker_message { /* by a worker */
    uint32_t magic, kind;
    int32_t pid;
    ls_view_report report;
    char why[LS_WORKER_CHANNEL_CAUSE]; /* for which it has lost the others; "": it begins */
    ls_config_digest config_digest;
} worker_message;

typedef struct agent_message { /* by the agent */
    uint32_t magic, kind;
    int32_t pid;
    ls_worker_channel_view view;
} agent_message;

/* --- a worker's side -------------------------------------------------------------------------- */

/* Inherited under a number that the environment names (worker_env.h); a program that was started by hand
 * has none. */
static int own_end(void)
{
    const char *text = getenv("LINESHAFT_FD_HEAL");
    char *end;
    long fd = text ? strtol(text, &end, 10) : -1;

    return text && *text && !*end && fd > 2 && fd < 1 << 20 ? (int)fd : -1;
}

bool ls_worker_channel_has_agent(void)
{
    return own_end() >= 0;
}

static bool say(const worker_message *s)
{
    ssize_t n;

    do
        n = send(own_end(), s, sizeof *s, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof *s;
}

/* The note that the next ls_worker_channel_note() returns. One thread calls. */
static char noted[LS_WORKER_CHANNEL_CAUSE];
static int64_t noted_ns;

static bool take_note(const agent_message *t)
{
    if (t->magic != MAGIC || t->pid != getpid() || t->kind != NOTE)
        return false;
    snprintf(noted, sizeof noted, "%.*s", LS_WORKER_CHANNEL_CAUSE - 1, t->view.cause);
    noted_ns = t->view.noticed_ns;
    return true;
}

/* Notes lie in the same socket as views. Only a note in front, or what was meant for a dead process, is
 * taken out; a REGROUP stays for ls_worker_channel_regroups(). */
bool ls_worker_channel_note(char *text_out, size_t cap, int64_t *took_ns_out)
{
    int fd = own_end();
    agent_message t;

    while (!noted[0] && fd >= 0 &&
           recv(fd, &t, sizeof t, MSG_PEEK | MSG_DONTWAIT) == (ssize_t)sizeof t &&
           (take_note(&t) || t.pid != getpid()))
        (void)!recv(fd, &t, sizeof t, MSG_DONTWAIT);
    snprintf(text_out, cap, "%s", noted);
    *took_ns_out = noted_ns;
    noted[0] = '\0';
    return *text_out != '\0';
}

/* The next message; descriptors that did not come are -1. False: the agent is gone. */
static bool hear(agent_message *t, ls_worker_channel_fds *fds_out)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(ls_worker_channel_fds))];
    } control = {.bytes = ""};
    struct iovec body = {t, sizeof *t};
    struct msghdr m = {.msg_iov = &body,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof control.bytes};
    ssize_t n;

    *fds_out = (ls_worker_channel_fds){-1, -1};
    do
        n = recvmsg(own_end(), &m, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    const struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof *fds_out))
        memcpy(fds_out, CMSG_DATA(c), sizeof *fds_out);
    return n == (ssize_t)sizeof *t && t->magic == MAGIC;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* One REPORT, one answer. What comes before the answer is of the time before the report:
 *
 *     REPORT ->      REGROUP of the old view     dropped: the rank has come anyway
 *                    VIEW for pid 71 (dead)      its descriptors are closed
 *                    NOTE                        kept for ls_worker_channel_note()
 *                    VIEW for this pid           the answer */
ls_status ls_worker_channel_ask(const ls_view_report *report, const ls_config_digest *config_digest,
                                ls_worker_channel_view *view_out, ls_worker_channel_fds *fds_out)
{
    worker_message s = {.magic = MAGIC, .kind = REPORT, .pid = getpid(), .report = *report};
    ls_err_record lost = *ls_err_last();
    ls_worker_channel_fds fds;
    agent_message t;

    if (config_digest)
        s.config_digest = *config_digest;
    s.report.unreached = lost.unreached;
    snprintf(s.why, sizeof s.why, "%.*s", LS_WORKER_CHANNEL_CAUSE - 1,
             lost.code == LS_OK ? "" : lost.text);
    if (!say(&s))
        return ls_fail_sys(LS_EPEER, "the agent of this rank cannot be reached");
    while (hear(&t, &fds)) {
        bool mine = t.pid == getpid();
        if (mine && t.kind == VIEW && fds.segment >= 0) {
            *view_out = t.view;
            *fds_out = fds;
            ls_err_clear();
            return LS_OK;
        }
        close_fd(&fds.segment); /* for a process that was here before */
        close_fd(&fds.members);
        (void)take_note(&t);
        if (mine && t.kind == DISMISS) {
            *view_out = (ls_worker_channel_view){.dismissed = true};
            *fds_out = (ls_worker_channel_fds){-1, -1};
            ls_err_clear();
            return LS_OK;
        }
        if (mine && t.kind == END)
            return lost.code != LS_OK ? ls_err_adopt(&lost)
                                      : ls_fail(LS_EPEER, "the job is ending");
    }
    return ls_fail(LS_EPEER, "the agent of this rank is gone");
}

/* A message that is for nobody is taken out; one that ls_worker_channel_ask() needs stays. */
bool ls_worker_channel_regroups(uint64_t generation)
{
    int fd = own_end();
    agent_message t;

    while (fd >= 0 && recv(fd, &t, sizeof t, MSG_PEEK | MSG_DONTWAIT) == (ssize_t)sizeof t) {
        bool mine = t.magic == MAGIC && t.pid == getpid();
        if (mine && t.kind == REGROUP && t.view.plan.generation == generation)
            return true;
        if (mine && t.kind == END)
            return false;
        (void)take_note(&t);
        (void)!recv(fd, &t, sizeof t, MSG_DONTWAIT);
    }
    return false;
}

void ls_worker_channel_ready(void)
{
    const worker_message s = {.magic = MAGIC, .kind = READY, .pid = getpid()};

    if (ls_worker_channel_has_agent())
        (void)say(&s);
}

/* --- the agent's side ------------------------------------------------------------------------- */

typedef struct place { /* of a worker */
    int fd;            /* our end of its socket */
    pid_t pid;         /* 0: nobody */
    long ticks;        /* CPU time that it had used when last looked at */
    int64_t since_ns;  /* since when it is stopped or waited for; 0: it is not */
    bool stopped;      /* as it was when last looked at */
    char fault[80];    /* for which it was killed; "": it was not */
    ls_view_state state;
    uint32_t serial;         /* of its last report; raised when the process ends */
    ls_view_verdict verdict; /* on its end */
    bool asked, answered;    /* the coordinator was asked for it; and has answered */
    int rank;                /* in the last view; -1: none */
    ls_member_message last;  /* its last REPORT or ENDED */
    worker_message early;    /* a report of a process that we have not heard of yet; kind 0: none */
} place;

struct ls_worker_channel {
    ls_worker_channel_args args;
    ls_coordinator *coordinator; /* owned: of a job of one node; NULL: args.say reaches it */
    int fd;                      /* epoll of our ends */
    place *places;               /* owned: one for each worker, */
    int *ends;                   /* owned: and the other end of its socket; -1: closed */
    uint64_t generation;
    bool begun;      /* a view has trained */
    int64_t reached; /* as the last view knew it */
    int64_t lost_ns; /* when the view was given up; 0: it is whole */
    bool finished;
    char run_lease[LS_WORKER_CHANNEL_RUN_LEASE];
    bool stops; /* the job must end: why */
    ls_err_record why;
};

static void stop(ls_worker_channel *channel, const ls_err_record *why)
{
    if (!channel->stops)
        channel->why = *why;
    channel->stops = true;
}

/* To the coordinator: a call in a job of one node, a message otherwise. Its answers come back through
 * ls_worker_channel_hear(), in the first case before this returns. */
static void send_message(ls_worker_channel *h, const ls_member_message *message)
{
    int64_t now = ls_time_now_ns();

    if (!h->coordinator) {
        h->args.say(h->args.say_context, message);
        return;
    }
    ls_coordinator_handle_message(h->coordinator, 0, message, now);
    ls_coordinator_do_due(h->coordinator, now);
}

void ls_worker_channel_set_run_lease(ls_worker_channel *channel, const char *run_lease)
{
    snprintf(channel->run_lease, sizeof channel->run_lease, "%s", run_lease);
}

/* --- opening ---------------------------------------------------------------------------------- */

static void on_tell(void *context, int node, const ls_member_message *message)
{
    (void)node;
    ls_worker_channel_hear(context, message);
}

/* The failure of a worker is shown by its verdict. */
static void on_stop(void *context, int node, int code, const ls_err_record *why)
{
    (void)code;
    if (node < 0)
        stop(context, why);
}

/* The coordinator of a job that has this node only. No node comes or is sent away, so nobody waits
 * for call() or expel(), and nothing but a message makes anything due. */
static ls_status open_coordinator(ls_worker_channel *h)
{
    const ls_coordinator_args args = {
        .rules = h->args.rules, .tell = on_tell, .stop = on_stop, .context = h};
    char host[LS_MEMBERS_TEXT] = "localhost";
    ls_status st;

    gethostname(host, sizeof host - 1);
    LS_TRY(st, ls_coordinator_open(&h->coordinator, &args), out);
    st = ls_coordinator_joins(h->coordinator, 0, host, "127.0.0.1", h->args.workers, true);
out:
    return st;
}

/* The worker's end is made once and inherited by each process in this place, so a restart needs no new
 * socket, and what the old process had not read is read, and dropped, by the new one. */
static ls_status open_place(ls_worker_channel *h, int i)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return ls_fail_sys(LS_EIO, "cannot make a socket for the membership of workers");
    h->places[i].fd = pair[0];
    h->ends[i] = pair[1];
    if (epoll_ctl(h->fd, EPOLL_CTL_ADD, pair[0], &event) != 0)
        return ls_fail_sys(LS_EIO, "cannot watch the membership of workers");
    return LS_OK;
}

ls_status ls_worker_channel_open(ls_worker_channel **channel_out,
                                 const ls_worker_channel_args *args)
{
    size_t n = (size_t)args->workers;
    ls_worker_channel *h = ls_mem_alloc(sizeof *h);
    ls_status st = LS_OK;

    if (!h)
        return LS_ENOMEM;
    h->args = *args;
    h->places = ls_mem_array(n, sizeof *h->places);
    h->ends = ls_mem_array(n, sizeof *h->ends);
    for (size_t i = 0; i < n && h->places && h->ends; i++)
        h->places[i].fd = h->ends[i] = h->places[i].rank = -1;
    h->reached = -1;
    h->fd = epoll_create1(EPOLL_CLOEXEC);
    if (!h->places || !h->ends || h->fd < 0) {
        st = ls_fail(LS_ENOMEM, "no memory for the membership of %d workers", args->workers);
        goto out;
    }
    for (int i = 0; i < args->workers; i++)
        LS_TRY(st, open_place(h, i), out);
    if (!args->say)
        LS_TRY(st, open_coordinator(h), out);
    *channel_out = h;
out:
    if (st != LS_OK)
        ls_worker_channel_close(h);
    return st;
}

void ls_worker_channel_close(ls_worker_channel *channel)
{
    if (!channel)
        return;
    for (int i = 0; i < channel->args.workers && channel->places && channel->ends; i++) {
        close_fd(&channel->places[i].fd);
        close_fd(&channel->ends[i]);
    }
    close_fd(&channel->fd);
    ls_coordinator_close(channel->coordinator);
    ls_mem_free(channel->places);
    ls_mem_free(channel->ends);
    ls_mem_free(channel);
}

const int *ls_worker_channel_ends(const ls_worker_channel *channel)
{
    return channel->ends;
}

void ls_worker_channel_close_ends(ls_worker_channel *channel)
{
    for (int i = 0; i < channel->args.workers; i++)
        close_fd(&channel->ends[i]);
}

int ls_worker_channel_fd(const ls_worker_channel *channel)
{
    return channel->fd;
}

/* --- what the agent sees ---------------------------------------------------------------------- */

static void accept_said(ls_worker_channel *h, int worker, worker_message *s);

void ls_worker_channel_started(ls_worker_channel *channel, int worker, pid_t pid)
{
    place *p = &channel->places[worker];
    worker_message early = p->early;

    p->pid = pid;
    p->since_ns = 0;
    p->ticks = 0;
    p->fault[0] = '\0';
    p->early.kind = 0;
    if (early.kind != 0 && early.pid == pid)
        accept_said(channel, worker, &early);
}

static void tell(const place *p, const agent_message *t, const ls_worker_channel_fds *fds);

/* The work is done, and no worker here trains any longer: those that wait were not needed, or were
 * started for one that died when all had finished. */
static void dismiss_idle(const ls_worker_channel *h)
{
    const agent_message t = {.kind = DISMISS};
    bool done = false;

    for (int i = 0; i < h->args.workers; i++) {
        const place *p = &h->places[i];
        done |= p->state == LS_VIEW_DONE;
        if (p->state == LS_VIEW_IN || p->state == LS_VIEW_AWAY ||
            (p->state == LS_VIEW_WAITS && p->rank >= 0))
            return;
    }
    for (int i = 0; i < h->args.workers && done; i++)
        if (h->places[i].state == LS_VIEW_WAITS && h->places[i].pid > 0)
            tell(&h->places[i], &t, NULL);
}

void ls_worker_channel_left(ls_worker_channel *channel, int worker)
{
    const ls_member_message message = {.kind = LS_MEMBER_MESSAGE_LEFT, .worker = worker};

    channel->places[worker].pid = 0;
    channel->places[worker].state = LS_VIEW_DONE;
    send_message(channel, &message);
    dismiss_idle(channel);
}

/* The verdict on a worker is known. */
static ls_view_verdict settle(place *p)
{
    p->asked = p->answered = false;
    p->state = p->verdict == LS_VIEW_RESTART ? LS_VIEW_AWAY : LS_VIEW_OUT;
    return p->verdict;
}

ls_view_verdict ls_worker_channel_ended(ls_worker_channel *channel, int worker,
                                        const ls_view_end *end, const char *why)
{
    ls_worker_channel *h = channel;
    place *p = &h->places[worker];
    ls_member_message message = {.kind = LS_MEMBER_MESSAGE_ENDED,
                                 .worker = worker,
                                 .signal = end->signal,
                                 .code = end->signal ? 128 + end->signal : end->code,
                                 .asked = end->asked,
                                 .error = end->error != NULL};

    p->pid = 0;
    p->state = LS_VIEW_OUT;
    p->rank = -1;
    p->serial++;
    if (h->finished)
        return LS_VIEW_STOP;
    if (end->error)
        message.record = *end->error;
    snprintf(message.why, sizeof message.why, "%.300s%s%s", why, *p->fault ? ", because it " : "",
             p->fault);
    p->asked = true;
    p->last = message;
    send_message(h, &message);
    if (!p->answered)
        return LS_VIEW_LATER;
    ls_view_verdict verdict = settle(p);
    if (verdict != LS_VIEW_STOP)
        ls_log(LS_LOG_INFO, "%s; %s", why,
               verdict == LS_VIEW_RESTART ? "it is started again" : "the others go on without it");
    return verdict;
}

/* --- messages of workers ---------------------------------------------------------------------- */

static void accept_said(ls_worker_channel *h, int worker, worker_message *s)
{
    place *p = &h->places[worker];
    ls_member_message message = {.kind = LS_MEMBER_MESSAGE_READY, .worker = worker};

    s->why[sizeof s->why - 1] = '\0';
    if (s->kind == REPORT) {
        message.kind = LS_MEMBER_MESSAGE_REPORT;
        message.report = s->report;
        message.report.serial = ++p->serial;
        message.config_digest = s->config_digest;
        memcpy(message.why, s->why, sizeof message.why);
        p->state = LS_VIEW_WAITS;
        p->since_ns = 0;
        p->last = message;
    }
    h->begun |= s->kind == READY;
    if (s->kind == REPORT || s->kind == READY)
        send_message(h, &message);
    if (s->kind == REPORT)
        dismiss_idle(h);
}

/* A new process may be quicker than the news of its start: its report waits for that. */
static void take(ls_worker_channel *h, int worker)
{
    place *p = &h->places[worker];
    worker_message s;

    while (recv(p->fd, &s, sizeof s, MSG_DONTWAIT) == (ssize_t)sizeof s) {
        if (s.magic != MAGIC)
            continue;
        if (p->pid == 0 && s.kind == REPORT)
            p->early = s;
        else if (s.pid == p->pid) /* else of a process that is dead by now */
            accept_said(h, worker, &s);
    }
}

static void tell(const place *p, const agent_message *t, const ls_worker_channel_fds *fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof *fds)];
    } control = {.bytes = ""};
    agent_message copy = *t;
    struct iovec body = {&copy, sizeof copy};
    struct msghdr m = {.msg_iov = &body, .msg_iovlen = 1};

    copy.magic = MAGIC;
    copy.pid = (int32_t)p->pid;
    if (fds) {
        m.msg_control = control.bytes;
        m.msg_controllen = sizeof control.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof *fds);
        memcpy(CMSG_DATA(c), fds, sizeof *fds);
    }
    /* A worker that does not get it does not come, and is found to be late. */
    (void)sendmsg(p->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* --- messages of the coordinator -------------------------------------------------------------- */

/* Local ranks are counted here: with workers of ranks 4, -1 (a spare) and 5 this node has 2 local ranks,
 * 0 and 1. The memory that they share is made for exactly these. */
static ls_status give_view(ls_worker_channel *h, const ls_member_message *w)
{
    const ls_member_message_view *v = &w->view;
    agent_message t = {.kind = VIEW,
                       .view = {.plan = v->plan,
                                .begun = v->begun,
                                .lost_ns = v->lost_ns < 0 ? 0 : ls_time_now_ns() - v->lost_ns,
                                .noticed_ns = v->noticed_ns}};
    ls_worker_channel_fds fds = {-1, -1};
    ls_status st = LS_OK;

    memcpy(t.view.cause, v->cause, sizeof t.view.cause);
    memcpy(t.view.run_lease, h->run_lease, sizeof t.view.run_lease);
    for (int i = 0; i < w->workers; i++)
        t.view.local_ranks += w->rank[i] >= 0;
    LS_TRY(st, h->args.make(h->args.context, v->plan.generation, t.view.local_ranks, &fds.segment),
           out);
    LS_TRY(st, ls_members_to_fd(&w->members, &fds.members), out);
    h->generation = v->plan.generation;
    h->begun |= v->begun;
    h->reached = v->plan.reached;
    h->lost_ns = 0;
    for (int i = 0, local = 0; i < w->workers && i < h->args.workers; i++) {
        place *p = &h->places[i];
        p->rank = -1;
        if (w->rank[i] < 0) /* a spare */
            continue;
        p->since_ns = 0;
        t.view.rank = w->rank[i];
        t.view.local_rank = local++;
        if (p->state != LS_VIEW_WAITS || p->serial != w->serial[i])
            continue; /* it has died meanwhile: the coordinator is about to hear */
        p->state = LS_VIEW_IN;
        p->rank = w->rank[i];
        tell(p, &t, &fds);
    }
out:
    close_fd(&fds.members);
    return st;
}

static void give_up_view(ls_worker_channel *h, const char *why)
{
    if (h->generation == 0 || h->lost_ns != 0)
        return;
    h->lost_ns = ls_time_now_ns();
    for (int i = 0; i < h->args.workers; i++)
        h->places[i].since_ns = 0;
    h->args.revoke(h->args.context, why);
}

static void regroup(const ls_worker_channel *h)
{
    const agent_message t = {.kind = REGROUP, .view = {.plan = {.generation = h->generation}}};

    for (int i = 0; i < h->args.workers; i++)
        if (h->places[i].state == LS_VIEW_IN)
            tell(&h->places[i], &t, NULL);
}

/* The rank that writes events is the first of those here, if it is on this node at all. */
void ls_worker_channel_tell(ls_worker_channel *channel, const char *what, int64_t took_ns)
{
    const place *first = NULL;
    agent_message t = {.kind = NOTE, .view = {.noticed_ns = took_ns}};

    for (int i = 0; i < channel->args.workers; i++) {
        const place *p = &channel->places[i];
        bool there = p->pid > 0 && p->rank >= 0;
        if (there && (!first || p->rank < first->rank))
            first = p;
    }
    snprintf(t.view.cause, sizeof t.view.cause, "%s", what);
    if (first)
        tell(first, &t, NULL);
}

void ls_worker_channel_hear(ls_worker_channel *channel, const ls_member_message *message)
{
    ls_worker_channel *h = channel;

    if (h->finished)
        return;
    switch (message->kind) {
    case LS_MEMBER_MESSAGE_VIEW:
        if (message->view.plan.generation > h->generation && give_view(h, message) != LS_OK)
            stop(h, ls_err_last());
        break;
    case LS_MEMBER_MESSAGE_REVOKE:
        give_up_view(h, message->why);
        break;
    case LS_MEMBER_MESSAGE_REGROUP:
        regroup(h);
        break;
    case LS_MEMBER_MESSAGE_VERDICT:
        if (message->worker < h->args.workers && h->places[message->worker].asked) {
            h->places[message->worker].answered = true;
            h->places[message->worker].verdict = message->verdict;
        }
        break;
    default:
        break; /* from a node to its coordinator */
    }
}

/* In the order in which the messages were first sent: how each stood, then what has changed since. The
 * new coordinator takes a repeated REPORT or ENDED as if it were the first. */
void ls_worker_channel_restate(ls_worker_channel *channel)
{
    ls_worker_channel *h = channel;

    for (int i = 0; i < h->args.workers; i++) {
        place *p = &h->places[i];
        const ls_member_message resume = {.kind = LS_MEMBER_MESSAGE_RESUME,
                                          .worker = i,
                                          .past = ls_worker_channel_recall(h),
                                          .stood = p->rank,
                                          .out = p->state == LS_VIEW_OUT && !p->asked};
        const ls_member_message left = {.kind = LS_MEMBER_MESSAGE_LEFT, .worker = i};
        send_message(h, &resume);
        if (p->state == LS_VIEW_DONE)
            send_message(h, &left);
        else if (p->state == LS_VIEW_WAITS || (p->asked && !p->answered))
            send_message(h, &p->last);
    }
}

ls_view_past ls_worker_channel_recall(const ls_worker_channel *channel)
{
    return (ls_view_past){channel->generation, channel->begun, channel->reached};
}

/* --- time ------------------------------------------------------------------------------------- */

/* How long this worker may be as it is; 0: as long as it likes. One that still computes while the
 * others wait for it does not know yet that ranks are lost: it may do so for BUSY times the patience. */
static int64_t limit_of(const ls_worker_channel *h, place *p)
{
    int64_t patience = h->args.patience_ns;
    ls_process_stat stat;

    if (p->pid == 0 || (p->state != LS_VIEW_IN && p->state != LS_VIEW_AWAY) ||
        !ls_process_stat_read(p->pid, &stat))
        return 0;
    bool computes = stat.ticks > p->ticks;
    p->stopped = stat.state == 'T'; /* one that a debugger holds, 't', is not killed */
    p->ticks = stat.ticks;
    if (p->stopped)
        return patience;
    if (p->state == LS_VIEW_IN && h->lost_ns != 0)
        return computes && ls_time_now_ns() - h->lost_ns < BUSY * patience ? 0 : patience;
    return p->state == LS_VIEW_AWAY ? ls_max_i64(patience, START_S * LS_NS_PER_S) : 0;
}

/* The first worker that has been away for too long; -1: none. */
static int too_late(ls_worker_channel *h)
{
    int64_t now = ls_time_now_ns();

    for (int i = 0; i < h->args.workers; i++) {
        place *p = &h->places[i];
        int64_t limit = limit_of(h, p);
        if (limit == 0)
            p->since_ns = 0;
        else if (p->since_ns == 0)
            p->since_ns = now;
        else if (now - p->since_ns > limit)
            return i;
    }
    return -1;
}

/* It counts as dead from now on; its incident says why. */
static void mark_late(place *p, int worker)
{
    snprintf(p->fault, sizeof p->fault, "had %s for %lld s (heal.wait)",
             p->stopped                 ? "been stopped"
             : p->state == LS_VIEW_AWAY ? "not begun"
                                        : "not come to meet the others",
             (long long)((ls_time_now_ns() - p->since_ns) / LS_NS_PER_S));
    p->since_ns = 0;
    ls_log(LS_LOG_WARN, "the rank in place %d (pid %d) %s: it is killed", worker, (int)p->pid,
           p->fault);
}

/* One order at a time, the most urgent first: the end of the job, a verdict that has come, a worker
 * that is too late. */
static ls_worker_channel_order next_order(ls_worker_channel *h)
{
    if (h->stops) {
        ls_err_adopt(&h->why);
        return (ls_worker_channel_order){.task = LS_WORKER_CHANNEL_STOP};
    }
    for (int i = 0; i < h->args.workers; i++)
        if (h->places[i].answered)
            return (ls_worker_channel_order){
                .task = LS_WORKER_CHANNEL_VERDICT, .worker = i, .verdict = settle(&h->places[i])};
    int late = too_late(h);
    if (late < 0)
        return (ls_worker_channel_order){.task = LS_WORKER_CHANNEL_NOTHING};
    mark_late(&h->places[late], late);
    return (ls_worker_channel_order){.task = LS_WORKER_CHANNEL_KILL, .worker = late};
}

ls_worker_channel_order ls_worker_channel_attend(ls_worker_channel *channel)
{
    ls_worker_channel *h = channel;
    struct epoll_event events[64];
    int n;

    if (h->finished)
        return (ls_worker_channel_order){.task = LS_WORKER_CHANNEL_NOTHING};
    while ((n = epoll_wait(h->fd, events, LS_COUNT(events), 0)) > 0)
        for (int i = 0; i < n; i++) {
            int worker = (int)events[i].data.u32;
            take(h, worker);
            if (events[i].events & (EPOLLHUP | EPOLLERR)) /* the last holder of its end is gone */
                epoll_ctl(h->fd, EPOLL_CTL_DEL, h->places[worker].fd, NULL);
        }
    return next_order(h);
}

void ls_worker_channel_finish(ls_worker_channel *channel)
{
    ls_worker_channel *h = channel;
    const agent_message t = {.kind = END};

    h->finished = true;
    for (int i = 0; i < h->args.workers; i++)
        if (h->places[i].pid > 0)
            tell(&h->places[i], &t, NULL);
}
