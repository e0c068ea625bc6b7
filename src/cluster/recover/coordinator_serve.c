/* coordinator_serve.c -- the coordinator's process itself; see coordinator_process.h.
 *
 *   record of its log   'F'   frames that it was given
 *                       'S'   a piece of all that it knew, with which a long log begins anew
 *                       'E'   the last such piece
 *
 * A disk that fails does not stop it: it acknowledges nothing from then on, and the agent keeps
 * what it has sent. */
#include "cluster/recover/coordinator_process.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "base/time.h"
#include "cluster/elect/journal.h"

enum { PIECE = 512 << 10, LONG = 8 << 20, READ_BYTES = 64 << 10, WAIT_MS = 50 };

typedef struct server {
    int fd;
    ls_coordinator_log *coordinator_log;
    ls_journal *journal; /* NULL: it could not be written */
    char path[PATH_MAX];
    ls_str in, record, piece;
    uint64_t n_said;  /* frames that went out */
    uint64_t n_heard; /* of these, before this process */
    uint64_t n_logged;
    int64_t begun; /* bytes of the log when it began anew */
} server;

bool ls_coordinator_process_is_wanted(void)
{
    return getenv("LINESHAFT_FD_COORDINATOR") != NULL;
}

/* --- the socket ------------------------------------------------------------------------------- */

static bool send_all(const server *s, const ls_str *bytes)
{
    for (size_t at = 0; at < bytes->len;) {
        ssize_t n = send(s->fd, bytes->p + at, bytes->len - at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += (size_t)n;
    }
    return !bytes->failed;
}

static bool send_event(const server *s, ls_coordinator_log_event event)
{
    ls_str frame;

    ls_str_init(&frame);
    ls_coordinator_log_put(&frame, &event);
    bool sent = send_all(s, &frame);
    ls_str_release(&frame);
    return sent;
}

/* Some more bytes; false: the agent is gone. */
static bool receive(server *s, bool waits)
{
    char bytes[READ_BYTES];
    ssize_t n;

    do
        n = recv(s->fd, bytes, sizeof bytes, waits ? 0 : MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n > 0)
        ls_str_append_bytes(&s->in, bytes, (size_t)n);
    return n > 0 || (n < 0 && errno == EAGAIN);
}

/* What an earlier process had said is not said again. */
static void skip_heard(server *s)
{
    ls_str *out = &s->coordinator_log->out;
    size_t at = 0, n;

    while (s->n_said < s->n_heard &&
           (n = ls_coordinator_log_frame(out->p + at, out->len - at)) > 0) {
        at += n;
        s->n_said++;
    }
    ls_coordinator_log_drop(out, at);
}

static bool send_out(server *s)
{
    bool sent = send_all(s, &s->coordinator_log->out);

    s->n_said = s->coordinator_log->n_out;
    ls_str_clear(&s->coordinator_log->out);
    return sent;
}

/* --- the log ---------------------------------------------------------------------------------- */

/* A word that makes no sense changes nothing. */
static ls_status take_all(ls_coordinator_log *coordinator_log, const char *frames, size_t bytes,
                          bool says)
{
    ls_status st = LS_OK;

    for (size_t at = 0, n;
         (n = ls_coordinator_log_frame(frames + at, bytes - at)) > 0 && st == LS_OK; at += n) {
        st = ls_coordinator_log_take(coordinator_log, frames + at);
        if (st == LS_EDATA && says)
            ls_log(LS_LOG_WARN, "%s", ls_err_last()->text);
        st = st == LS_EDATA ? LS_OK : st;
    }
    return st;
}

static ls_status replay(void *context, const void *bytes, size_t len)
{
    server *s = context;
    const char *p = bytes;
    ls_status st = LS_OK;

    if (*p == 'F') {
        st = take_all(s->coordinator_log, p + 1, len - 1, false);
        skip_heard(s);
        return st;
    }
    ls_str_append_bytes(&s->piece, p + 1, len - 1);
    if (*p == 'E') {
        st = ls_coordinator_log_load(s->coordinator_log, s->piece.p, s->piece.len);
        s->n_said = s->coordinator_log->n_out; /* all of it had been said */
        ls_str_clear(&s->piece);
    }
    return st;
}

static ls_status write_pieces(server *s, ls_journal *journal)
{
    ls_status st = LS_OK;

    ls_str_clear(&s->piece);
    ls_coordinator_log_save(s->coordinator_log, &s->piece);
    for (size_t at = 0, n; at < s->piece.len && st == LS_OK; at += n) {
        n = s->piece.len - at < PIECE ? s->piece.len - at : PIECE;
        ls_str_clear(&s->record);
        ls_str_append_char(&s->record, at + n == s->piece.len ? 'E' : 'S');
        ls_str_append_bytes(&s->record, s->piece.p + at, n);
        st = ls_str_status(&s->record);
        if (st == LS_OK)
            st = ls_journal_append(journal, s->record.p, s->record.len);
    }
    return st == LS_OK ? ls_str_status(&s->piece) : st;
}

/* It goes on without one: what the agent has said stays with the agent. */
static void give_up_log(server *s)
{
    ls_log(LS_LOG_WARN, "the coordinator's log: %s; it goes on without one", ls_err_last()->text);
    ls_journal_close(s->journal);
    s->journal = NULL;
}

/* A new log in place of the old one, with what it knows. */
static void begin_anew(server *s)
{
    char next[PATH_MAX + 8];
    ls_journal *journal = NULL;
    ls_journal_found found;
    ls_status st;

    snprintf(next, sizeof next, "%s.next", s->path);
    unlink(next);
    LS_TRY(st, ls_journal_open(&journal, next, NULL, NULL, &found), out);
    LS_TRY(st, write_pieces(s, journal), out);
    if (rename(next, s->path) != 0) {
        st = ls_fail_sys(LS_EIO, "cannot rename \"%s\"", next);
        goto out;
    }
    ls_journal_close(s->journal);
    s->journal = NULL;
    LS_TRY(st, ls_journal_open(&s->journal, s->path, NULL, NULL, &found), out);
    s->begun = ls_journal_bytes(s->journal);
out:
    ls_journal_close(journal);
    ls_str_clear(&s->piece);
    if (st != LS_OK)
        give_up_log(s);
}

static void log_frames(server *s, size_t bytes)
{
    ls_status st;

    if (!s->journal)
        return;
    ls_str_clear(&s->record);
    ls_str_append_char(&s->record, 'F');
    ls_str_append_bytes(&s->record, s->in.p, bytes);
    LS_TRY(st, ls_str_status(&s->record), out);
    st = ls_journal_append(s->journal, s->record.p, s->record.len);
out:
    if (st != LS_OK)
        give_up_log(s);
}

/* --- its work --------------------------------------------------------------------------------- */

static bool answer(server *s, const void *frame)
{
    ls_str out;

    ls_str_init(&out);
    ls_coordinator_log_answer(s->coordinator_log, frame, &out);
    bool sent = send_all(s, &out);
    ls_str_release(&out);
    return sent;
}

/* Bytes of the whole frames in front that are no questions, as many as fit into a record. */
static size_t count_frames(const ls_str *in)
{
    size_t at = 0, n;

    while ((n = ls_coordinator_log_frame(in->p + at, in->len - at)) > 0 &&
           ls_coordinator_log_kind_of(in->p + at) < LS_COORDINATOR_LOG_EXCLUDES &&
           (at == 0 || at + n <= PIECE))
        at += n;
    return at;
}

/* First into the log, then it has happened. */
static bool take_frames(server *s, size_t bytes)
{
    (void)LS_FAULT("coordinator.heard");
    log_frames(s, bytes);
    (void)LS_FAULT("coordinator.logged");
    ls_status st = take_all(s->coordinator_log, s->in.p, bytes, true);
    ls_coordinator_log_drop(&s->in, bytes);
    if (s->journal)
        s->n_logged = s->coordinator_log->n_in;
    (void)LS_FAULT("coordinator.taken");
    bool sent = st == LS_OK &&
                send_event(s, (ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_ACK,
                                                         .number = s->n_logged,
                                                         .second = s->coordinator_log->n_in}) &&
                send_out(s);
    (void)LS_FAULT("coordinator.told");
    if (sent && s->journal && ls_journal_bytes(s->journal) > LONG + 2 * s->begun)
        begin_anew(s);
    return sent;
}

/* The clock is looked at only where it has a say, so that the log has it. */
static bool look(server *s)
{
    int64_t now = ls_time_now_ns();

    if (s->in.len > 0 || !s->journal || ls_coordinator_log_due_in(s->coordinator_log, now) != 0)
        return true;
    ls_coordinator_log_put(
        &s->in, &(ls_coordinator_log_event){.kind = LS_COORDINATOR_LOG_LOOK, .now = now});
    return take_frames(s, s->in.len);
}

static bool work(server *s)
{
    size_t n;

    do {
        n = count_frames(&s->in);
        if (n > 0 && !take_frames(s, n))
            return false;
        size_t len = n == 0 ? ls_coordinator_log_frame(s->in.p, s->in.len) : 0;
        if (len > 0 && !answer(s, s->in.p))
            return false;
        ls_coordinator_log_drop(&s->in, len);
        n += len;
    } while (n > 0);
    return look(s);
}

static int wait_ms(const server *s)
{
    int64_t due_ns =
        s->journal ? ls_coordinator_log_due_in(s->coordinator_log, ls_time_now_ns()) : -1;

    return due_ns < 0 ? -1 : (int)(ls_min_i64(due_ns, LS_NS_PER_S) / LS_NS_PER_MS) + WAIT_MS;
}

/* The first frame: what there is to do. */
static ls_status begin_work(server *s)
{
    ls_coordinator_args rules;
    ls_journal_found found;
    ls_coordinator_log_event hello;
    ls_status st;
    size_t n;

    while ((n = ls_coordinator_log_frame(s->in.p, s->in.len)) == 0)
        if (!receive(s, true))
            return ls_fail(LS_EPEER, "the agent is gone");
    LS_BUG_IF(!ls_coordinator_log_get(s->in.p, &hello) || hello.kind != LS_COORDINATOR_LOG_HELLO ||
                  hello.len != sizeof rules,
              "an agent of another program");
    s->n_heard = hello.number;
    memcpy(&rules, hello.bytes, sizeof rules);
    snprintf(s->path, sizeof s->path, "%s", hello.why);
    ls_coordinator_log_drop(&s->in, n);
    LS_TRY(st, ls_coordinator_log_open(&s->coordinator_log, &rules), out);
    LS_TRY(st, ls_journal_open(&s->journal, s->path, replay, s, &found), out);
    s->n_logged = s->coordinator_log->n_in;
    const ls_coordinator_log_event have = {.kind = LS_COORDINATOR_LOG_HAVE, .number = s->n_logged};
    if (!send_event(s, have) || !send_out(s))
        st = ls_fail(LS_EPEER, "the agent is gone");
out:
    return st;
}

/* Signals are the agent's business: a user that stops a job may signal all of its processes. */
static void ignore_signals(void)
{
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE};

    for (size_t i = 0; i < LS_COUNT(ignored); i++)
        signal(ignored[i], SIG_IGN);
}

int ls_coordinator_process_serve(void)
{
    const char *text = getenv("LINESHAFT_FD_COORDINATOR");
    server s = {.fd = text ? (int)strtol(text, NULL, 10) : -1};
    bool goes_on;

    prctl(PR_SET_NAME, "ls-coordinator");
    ignore_signals();
    ls_str_init(&s.in);
    ls_str_init(&s.record);
    ls_str_init(&s.piece);
    ls_status st = begin_work(&s);
    if (st != LS_OK && st != LS_EPEER)
        ls_log(LS_LOG_WARN, "the coordinator cannot begin: %s", ls_err_last()->text);
    for (goes_on = st == LS_OK; goes_on;) {
        struct pollfd p = {.fd = s.fd, .events = POLLIN};
        poll(&p, 1, wait_ms(&s));
        goes_on = receive(&s, false) && work(&s);
    }
    ls_journal_close(s.journal); /* the agent removes it */
    ls_coordinator_log_close(s.coordinator_log);
    ls_str_release(&s.in);
    ls_str_release(&s.record);
    ls_str_release(&s.piece);
    return ls_err_exit_code(st == LS_EPEER ? LS_OK : st);
}
