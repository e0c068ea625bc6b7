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
#include "cluster/recover/coordinator_log.h"
#include "cluster/elect/journal.h"

enum { PIECE = 512 << 10, LONG = 8 << 20, BITE = 64 << 10, WAIT_MS = 50 };

typedef struct desk {
    int fd;
    ls_coordinator_log *coordinator_log;
    ls_journal *journal; /* NULL: it could not be written */
    char path[PATH_MAX];
    ls_str in, record, piece;
    uint64_t n_said;  /* frames that went out */
    uint64_t n_heard; /* of these, before this process */
    uint64_t n_logged;
    int64_t begun; /* bytes of the log when it began anew */
} desk;

bool ls_coordinator_process_is_wanted(void)
{
    return getenv("LINESHAFT_FD_COORDINATOR") != NULL;
}

/* --- the socket ------------------------------------------------------------------------------- */

static bool send_all(const desk *d, const ls_str *bytes)
{
    for (size_t at = 0; at < bytes->len;) {
        ssize_t n = send(d->fd, bytes->p + at, bytes->len - at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += (size_t)n;
    }
    return !bytes->failed;
}

static bool send_numbers(const desk *d, ls_coordinator_log_kind kind, uint64_t first,
                         uint64_t second)
{
    ls_str frame;

    ls_str_init(&frame);
    size_t at = ls_coordinator_log_begin(&frame, kind);
    ls_wire_codec_put(&frame, first, 8);
    ls_wire_codec_put(&frame, second, 8);
    ls_coordinator_log_end(&frame, at);
    bool sent = send_all(d, &frame);
    ls_str_release(&frame);
    return sent;
}

/* Some more bytes; false: the agent is gone. */
static bool receive(desk *d, bool waits)
{
    char bytes[BITE];
    ssize_t n;

    do
        n = recv(d->fd, bytes, sizeof bytes, waits ? 0 : MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n > 0)
        ls_str_append_bytes(&d->in, bytes, (size_t)n);
    return n > 0 || (n < 0 && errno == EAGAIN);
}

static void drop_front(ls_str *bytes, size_t n)
{
    memmove(bytes->p, bytes->p + n, bytes->len - n);
    bytes->len -= n;
}

/* What an earlier process had said is not said again. */
static void skip_heard(desk *d)
{
    ls_str *out = &d->coordinator_log->out;
    size_t at = 0, n;

    while (d->n_said < d->n_heard &&
           (n = ls_coordinator_log_frame(out->p + at, out->len - at)) > 0) {
        at += n;
        d->n_said++;
    }
    drop_front(out, at);
}

static bool send_out(desk *d)
{
    bool sent = send_all(d, &d->coordinator_log->out);

    d->n_said = d->coordinator_log->n_out;
    ls_str_clear(&d->coordinator_log->out);
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
    desk *d = context;
    const char *p = bytes;
    ls_status st = LS_OK;

    if (*p == 'F') {
        st = take_all(d->coordinator_log, p + 1, len - 1, false);
        skip_heard(d);
        return st;
    }
    ls_str_append_bytes(&d->piece, p + 1, len - 1);
    if (*p == 'E') {
        st = ls_coordinator_log_load(d->coordinator_log, d->piece.p, d->piece.len);
        d->n_said = d->coordinator_log->n_out; /* all of it had been said */
        ls_str_clear(&d->piece);
    }
    return st;
}

static ls_status accept_any(void *context, const void *bytes, size_t len)
{
    (void)context;
    (void)bytes;
    (void)len;
    return LS_OK;
}

static ls_status write_pieces(desk *d, ls_journal *journal)
{
    ls_status st = LS_OK;

    ls_str_clear(&d->piece);
    ls_coordinator_log_save(d->coordinator_log, &d->piece);
    for (size_t at = 0, n; at < d->piece.len && st == LS_OK; at += n) {
        n = d->piece.len - at < PIECE ? d->piece.len - at : PIECE;
        ls_str_clear(&d->record);
        ls_str_append_char(&d->record, at + n == d->piece.len ? 'E' : 'S');
        ls_str_append_bytes(&d->record, d->piece.p + at, n);
        st = ls_str_status(&d->record);
        if (st == LS_OK)
            st = ls_journal_append(journal, d->record.p, d->record.len);
    }
    return st == LS_OK ? ls_str_status(&d->piece) : st;
}

/* It goes on without one: what the agent has said stays with the agent. */
static void give_up_log(desk *d)
{
    ls_log(LS_LOG_WARN, "the coordinator's log: %s; it goes on without one", ls_err_last()->text);
    ls_journal_close(d->journal);
    d->journal = NULL;
}

/* A new log in place of the old one, with what it knows. */
static void begin_anew(desk *d)
{
    char next[PATH_MAX + 8];
    ls_journal *journal = NULL;
    ls_journal_found found;
    ls_status st;

    snprintf(next, sizeof next, "%s.next", d->path);
    unlink(next);
    LS_TRY(st, ls_journal_open(&journal, next, accept_any, NULL, &found), out);
    LS_TRY(st, write_pieces(d, journal), out);
    if (rename(next, d->path) != 0) {
        st = ls_fail_sys(LS_EIO, "cannot rename \"%s\"", next);
        goto out;
    }
    ls_journal_close(d->journal);
    d->journal = NULL;
    LS_TRY(st, ls_journal_open(&d->journal, d->path, accept_any, NULL, &found), out);
    d->begun = ls_journal_bytes(d->journal);
out:
    ls_journal_close(journal);
    ls_str_clear(&d->piece);
    if (st != LS_OK)
        give_up_log(d);
}

static void log_frames(desk *d, size_t bytes)
{
    ls_status st;

    if (!d->journal)
        return;
    ls_str_clear(&d->record);
    ls_str_append_char(&d->record, 'F');
    ls_str_append_bytes(&d->record, d->in.p, bytes);
    LS_TRY(st, ls_str_status(&d->record), out);
    st = ls_journal_append(d->journal, d->record.p, d->record.len);
out:
    if (st != LS_OK)
        give_up_log(d);
}

/* --- its work --------------------------------------------------------------------------------- */

static bool answer(desk *d, const void *frame)
{
    ls_str out;

    ls_str_init(&out);
    size_t at = ls_coordinator_log_begin(&out, LS_COORDINATOR_LOG_ANSWER);
    (void)ls_coordinator_log_answer(d->coordinator_log, frame, &out);
    ls_coordinator_log_end(&out, at);
    bool sent = send_all(d, &out);
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
static bool take_frames(desk *d, size_t bytes)
{
    (void)LS_FAULT("coordinator.heard");
    log_frames(d, bytes);
    (void)LS_FAULT("coordinator.logged");
    ls_status st = take_all(d->coordinator_log, d->in.p, bytes, true);
    drop_front(&d->in, bytes);
    if (d->journal)
        d->n_logged = d->coordinator_log->n_in;
    (void)LS_FAULT("coordinator.taken");
    bool sent = st == LS_OK &&
                send_numbers(d, LS_COORDINATOR_LOG_ACK, d->n_logged, d->coordinator_log->n_in) &&
                send_out(d);
    (void)LS_FAULT("coordinator.told");
    if (sent && d->journal && ls_journal_bytes(d->journal) > LONG + 2 * d->begun)
        begin_anew(d);
    return sent;
}

/* The clock is looked at only where it has a say, so that the log has it. */
static bool look(desk *d)
{
    int64_t now = ls_time_now_ns();

    if (d->in.len > 0 || !d->journal || ls_coordinator_log_due_in(d->coordinator_log, now) != 0)
        return true;
    size_t at = ls_coordinator_log_begin(&d->in, LS_COORDINATOR_LOG_LOOK);
    ls_wire_codec_put(&d->in, (uint64_t)now, 8);
    ls_coordinator_log_end(&d->in, at);
    return take_frames(d, d->in.len);
}

static bool work(desk *d)
{
    size_t n;

    do {
        n = count_frames(&d->in);
        if (n > 0 && !take_frames(d, n))
            return false;
        size_t len = n == 0 ? ls_coordinator_log_frame(d->in.p, d->in.len) : 0;
        if (len > 0 && !answer(d, d->in.p))
            return false;
        drop_front(&d->in, len);
        n += len;
    } while (n > 0);
    return look(d);
}

static int wait_ms(const desk *d)
{
    int64_t due_ns =
        d->journal ? ls_coordinator_log_due_in(d->coordinator_log, ls_time_now_ns()) : -1;

    return due_ns < 0 ? -1 : (int)(ls_min_i64(due_ns, LS_NS_PER_S) / LS_NS_PER_MS) + WAIT_MS;
}

/* The first frame: what there is to do. */
static ls_status begin_work(desk *d)
{
    ls_coordinator_args rules;
    ls_journal_found found;
    size_t n, len;
    ls_status st;

    while ((n = ls_coordinator_log_frame(d->in.p, d->in.len)) == 0)
        if (!receive(d, true))
            return ls_fail(LS_EPEER, "the agent is gone");
    ls_wire_codec in = ls_coordinator_log_body(d->in.p);
    d->n_heard = ls_wire_codec_get(&in, 8);
    const void *bytes = ls_coordinator_log_get_bytes(&in, &len);
    LS_BUG_IF(ls_coordinator_log_kind_of(d->in.p) != LS_COORDINATOR_LOG_HELLO ||
                  len != sizeof rules,
              "an agent of another program");
    memcpy(&rules, bytes, sizeof rules);
    ls_coordinator_log_get_text(&in, d->path, sizeof d->path);
    drop_front(&d->in, n);
    LS_TRY(st, ls_coordinator_log_open(&d->coordinator_log, &rules), out);
    LS_TRY(st, ls_journal_open(&d->journal, d->path, replay, d, &found), out);
    d->n_logged = d->coordinator_log->n_in;
    if (!send_numbers(d, LS_COORDINATOR_LOG_HAVE, d->n_logged, 0) || !send_out(d))
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
    desk d = {.fd = text ? (int)strtol(text, NULL, 10) : -1};
    bool goes_on;

    prctl(PR_SET_NAME, "ls-coordinator");
    ignore_signals();
    ls_str_init(&d.in);
    ls_str_init(&d.record);
    ls_str_init(&d.piece);
    ls_status st = begin_work(&d);
    if (st != LS_OK && st != LS_EPEER)
        ls_log(LS_LOG_WARN, "the coordinator cannot begin: %s", ls_err_last()->text);
    for (goes_on = st == LS_OK; goes_on;) {
        struct pollfd p = {.fd = d.fd, .events = POLLIN};
        poll(&p, 1, wait_ms(&d));
        goes_on = receive(&d, false) && work(&d);
    }
    ls_journal_close(d.journal); /* the agent removes it */
    ls_coordinator_log_close(d.coordinator_log);
    ls_str_release(&d.in);
    ls_str_release(&d.record);
    ls_str_release(&d.piece);
    return ls_err_exit_code(st == LS_EPEER ? LS_OK : st);
}
