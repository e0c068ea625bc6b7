/* worker_logs.c -- pipes in, lines out.
 *
 * Each stream has a buffer of one piece. After a read all whole lines in it go, with their label,
 * into the text for standard output or error; what follows the last line end stays for the next
 * read. Both texts are written out before the next stream is read, so lines keep the order in which
 * they were read. Example, with a buffer of 8: "ab\ncdefghijk\n" arrives as
 *
 *     "ab\ncdefg"   ->  "[0] ab\n", and "cdefg" stays
 *     "cdefghij"    ->  full, without an end: "[0] cdefghij\n"; the line is now open
 *     "k\n"         ->  "[0]+ k\n"
 *
 * Writing waits for POLLOUT and then writes at most PIPE_BUF bytes, which a pipe that is ready
 * takes without blocking: so the thread can be told to give up on a reader that does not read, and
 * the descriptor, which we share with others, stays as it is. */
#include "cluster/node/worker_logs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"

enum { LABEL = 32, OUT = 0, ERR = 1, DROP_MS = 50 /* until told to drop is seen */ };

typedef struct stream {
    int fd, worker_fd; /* both ends of the pipe; -1: closed */
    char *bytes;       /* LS_WORKER_LOGS_PIECE, owned */
    size_t held;       /* of an unfinished line */
    bool open_line;    /* a piece of it was shown already */
    char *tail;        /* ring of the last LS_WORKER_LOGS_TAIL bytes, owned */
    uint64_t written;  /* bytes that ever went through it */
} stream;

typedef struct worker {
    char label[LABEL];
    stream streams[2]; /* OUT, ERR */
    int file;          /* -1: none */
} worker;

struct ls_worker_logs {
    int n;
    worker *workers; /* owned */
    int fds[2];      /* borrowed: OUT, ERR */
    char *folder;    /* owned; NULL: no files */
    ls_str text[2];  /* lines to be written */
    struct pollfd *polls;
    pthread_t thread;
    bool started;
    int wake_fd, done_fd;
    _Atomic bool finishing, dropping;
    ls_err_record error; /* the first failure; read after the thread has ended */
};

/* --- writing ---------------------------------------------------------------------------------- */

static void keep_error(ls_worker_logs *logs)
{
    if (logs->error.code == LS_OK)
        logs->error = *ls_err_last();
}

/* False: told to drop, or it cannot be written. */
static bool write_some(ls_worker_logs *logs, int fd, const char *bytes, size_t len)
{
    while (len > 0) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        if (atomic_load_explicit(&logs->dropping, memory_order_acquire))
            return false;
        if (poll(&p, 1, DROP_MS) <= 0)
            continue;
        ssize_t n = write(fd, bytes, len < PIPE_BUF ? len : PIPE_BUF);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n < 0) {
            ls_fail_sys(LS_EIO, "cannot write what the workers print");
            return false;
        }
        bytes += n;
        len -= (size_t)n;
    }
    return true;
}

static void flush_text(ls_worker_logs *logs)
{
    for (int i = 0; i < 2; i++) {
        ls_str *text = &logs->text[i];
        if (ls_str_status(text) != LS_OK)
            keep_error(logs);
        /* After a failure workers are still read, so that they do not hang. */
        if (text->len && logs->fds[i] >= 0 && !write_some(logs, logs->fds[i], text->p, text->len) &&
            !atomic_load_explicit(&logs->dropping, memory_order_acquire)) {
            keep_error(logs);
            logs->fds[i] = -1;
        }
        ls_str_clear(text);
    }
}

/* --- reading ---------------------------------------------------------------------------------- */

static void show(ls_worker_logs *logs, worker *w, int which, const char *line, size_t len,
                 bool whole)
{
    stream *s = &w->streams[which];
    ls_str *text = &logs->text[which];

    ls_str_printf(text, "[%s]%s ", w->label, s->open_line ? "+" : "");
    ls_str_append_bytes(text, line, len);
    ls_str_append_char(text, '\n');
    s->open_line = !whole;
}

/* Whole lines of the buffer; what is left moves to its start. Without a line end in a full buffer of
 * LS_WORKER_LOGS_PIECE bytes the piece is shown as it is: memory must not grow with what a worker
 * prints. */
static void cut_lines(ls_worker_logs *logs, worker *w, int which)
{
    stream *s = &w->streams[which];
    size_t from = 0;

    for (;;) {
        const char *end = memchr(s->bytes + from, '\n', s->held - from);
        if (!end)
            break;
        size_t len = (size_t)(end - s->bytes) - from;
        /* An end that came right after a full piece ends it, and is no line of its own. */
        if (len > 0 || !s->open_line)
            show(logs, w, which, s->bytes + from, len, true);
        s->open_line = false;
        from += len + 1;
    }
    s->held -= from;
    memmove(s->bytes, s->bytes + from, s->held);
    if (s->held == LS_WORKER_LOGS_PIECE) {
        show(logs, w, which, s->bytes, s->held, false);
        s->held = 0;
    }
}

static void remember(stream *s, const char *bytes, size_t len)
{
    size_t skip = len > LS_WORKER_LOGS_TAIL ? len - LS_WORKER_LOGS_TAIL : 0;

    for (size_t i = skip; i < len; i++)
        s->tail[(s->written + i) % LS_WORKER_LOGS_TAIL] = bytes[i];
    s->written += len;
}

static void save(ls_worker_logs *logs, worker *w, const char *bytes, size_t len)
{
    if (w->file < 0)
        return;
    char path[LABEL + 8];
    snprintf(path, sizeof path, "%s.log", w->label);
    if (ls_file_write_all(w->file, bytes, len, path) != LS_OK) {
        keep_error(logs);
        close(w->file);
        w->file = -1;
    }
}

static void close_end(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* One read. False: nothing came (now, or ever again: then the stream is closed). */
static bool read_stream(ls_worker_logs *logs, worker *w, int which)
{
    stream *s = &w->streams[which];
    ssize_t n;

    if (s->fd < 0)
        return false;
    do
        n = read(s->fd, s->bytes + s->held, LS_WORKER_LOGS_PIECE - s->held);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n <= 0) {
        close_end(&s->fd);
        if (s->held)
            show(logs, w, which, s->bytes, s->held, true);
        s->held = 0;
        flush_text(logs);
        return false;
    }
    remember(s, s->bytes + s->held, (size_t)n);
    save(logs, w, s->bytes + s->held, (size_t)n);
    s->held += (size_t)n;
    cut_lines(logs, w, which);
    flush_text(logs);
    return true;
}

/* All writers are gone: empty every pipe, also one that some stranger holds open. */
static void drain(ls_worker_logs *logs)
{
    for (int i = 0; i < logs->n; i++)
        for (int which = OUT; which <= ERR; which++) {
            worker *w = &logs->workers[i];
            while (!atomic_load_explicit(&logs->dropping, memory_order_acquire) &&
                   read_stream(logs, w, which))
                ;
            stream *s = &w->streams[which];
            if (s->held)
                show(logs, w, which, s->bytes, s->held, true);
            s->held = 0;
        }
    flush_text(logs);
}

static void read_ready(ls_worker_logs *logs)
{
    struct pollfd *p = logs->polls;
    int n = 2 * logs->n;

    for (int i = 0; i < n; i++)
        p[i] = (struct pollfd){.fd = logs->workers[i / 2].streams[i % 2].fd, .events = POLLIN};
    p[n] = (struct pollfd){.fd = logs->wake_fd, .events = POLLIN};
    if (poll(p, (nfds_t)n + 1, 1000) <= 0)
        return;
    for (int i = 0; i < n; i++)
        if (p[i].revents)
            read_stream(logs, &logs->workers[i / 2], i % 2);
}

static void *run(void *arg)
{
    ls_worker_logs *logs = arg;
    const uint64_t one = 1;

    while (!atomic_load_explicit(&logs->finishing, memory_order_acquire))
        read_ready(logs);
    drain(logs);
    (void)!write(logs->done_fd, &one, sizeof one); /* an eventfd at 0 takes a 1 */
    return NULL;
}

/* --- life ------------------------------------------------------------------------------------- */

static ls_status open_stream(stream *s)
{
    int ends[2];

    s->bytes = ls_mem_alloc(LS_WORKER_LOGS_PIECE);
    s->tail = ls_mem_alloc(LS_WORKER_LOGS_TAIL);
    if (!s->bytes || !s->tail)
        return LS_ENOMEM;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return ls_fail_sys(LS_EIO, "cannot make a pipe for a worker's output");
    s->fd = ends[0];
    s->worker_fd = ends[1];
    /* Our end only: the worker's is another open file, and stays as programs expect it. */
    fcntl(s->fd, F_SETFL, O_NONBLOCK);
    return LS_OK;
}

static ls_status open_file(ls_worker_logs *logs, worker *w, const char *stem)
{
    ls_status st = LS_OK;
    ls_str path;

    ls_str_init(&path);
    ls_str_printf(&path, "%s/%s%s.log", logs->folder, stem, w->label);
    LS_TRY(st, ls_str_status(&path), out);
    st = ls_file_open_append(path.p, 0666, &w->file);
out:
    ls_str_release(&path);
    return st;
}

static ls_status open_all(ls_worker_logs *logs, const ls_worker_logs_args *args)
{
    ls_status st = LS_OK;

    logs->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    logs->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (logs->wake_fd < 0 || logs->done_fd < 0)
        return ls_fail_sys(LS_EIO, "cannot make an event for the workers' output");
    if (args->folder)
        LS_TRY(st, ls_file_make_dirs(args->folder), out);
    for (int i = 0; i < logs->n; i++) {
        worker *w = &logs->workers[i];
        snprintf(w->label, sizeof w->label, "%s", args->labels[i]);
        LS_TRY(st, open_stream(&w->streams[OUT]), out);
        LS_TRY(st, open_stream(&w->streams[ERR]), out);
        if (args->folder)
            LS_TRY(st, open_file(logs, w, args->stem), out);
    }
out:
    return st;
}

ls_status ls_worker_logs_open(ls_worker_logs **logs_out, const ls_worker_logs_args *args)
{
    ls_status st = LS_ENOMEM;
    ls_worker_logs *logs = ls_mem_alloc(sizeof *logs);

    if (!logs)
        return LS_ENOMEM;
    logs->wake_fd = logs->done_fd = -1;
    logs->fds[OUT] = args->out_fd;
    logs->fds[ERR] = args->err_fd;
    ls_str_init(&logs->text[OUT]);
    ls_str_init(&logs->text[ERR]);
    logs->workers = ls_mem_array((size_t)args->workers, sizeof *logs->workers);
    logs->polls = ls_mem_array(2 * (size_t)args->workers + 1, sizeof *logs->polls);
    if (!logs->workers || !logs->polls)
        goto out;
    logs->n = args->workers;
    for (int i = 0; i < logs->n; i++) {
        worker *w = &logs->workers[i];
        w->file = w->streams[OUT].fd = w->streams[ERR].fd = -1;
        w->streams[OUT].worker_fd = w->streams[ERR].worker_fd = -1;
    }
    if (args->folder && !(logs->folder = ls_mem_strdup(args->folder)))
        goto out;
    LS_TRY(st, open_all(logs, args), out);
    *logs_out = logs;
    return LS_OK;
out:
    ls_worker_logs_free(logs);
    return st;
}

void ls_worker_logs_ends(const ls_worker_logs *logs, int i, int *out_fd_out, int *err_fd_out)
{
    *out_fd_out = logs->workers[i].streams[OUT].worker_fd;
    *err_fd_out = logs->workers[i].streams[ERR].worker_fd;
}

ls_status ls_worker_logs_begin(ls_worker_logs *logs)
{
    for (int i = 0; i < logs->n; i++) {
        close_end(&logs->workers[i].streams[OUT].worker_fd);
        close_end(&logs->workers[i].streams[ERR].worker_fd);
    }
    int error = ls_pool_start_apart(&logs->thread, run, logs);
    if (error != 0)
        return ls_pool_start_failed(error, "start the thread that reads the workers' output");
    logs->started = true;
    return LS_OK;
}

void ls_worker_logs_finish(ls_worker_logs *logs)
{
    const uint64_t one = 1;

    atomic_store_explicit(&logs->finishing, true, memory_order_release);
    (void)!write(logs->wake_fd, &one, sizeof one); /* refused only when it is awake already */
}

int ls_worker_logs_done_fd(const ls_worker_logs *logs)
{
    return logs->done_fd;
}

ls_status ls_worker_logs_end(ls_worker_logs *logs)
{
    if (logs->started) {
        struct pollfd done = {.fd = logs->done_fd, .events = POLLIN};
        if (poll(&done, 1, 0) <= 0)
            atomic_store_explicit(&logs->dropping, true, memory_order_release);
        ls_worker_logs_finish(logs);
        pthread_join(logs->thread, NULL);
        logs->started = false;
    }
    return logs->error.code == LS_OK ? LS_OK : ls_err_adopt(&logs->error);
}

static void tail_of(const stream *s, ls_str *out)
{
    uint64_t n = s->written < LS_WORKER_LOGS_TAIL ? s->written : LS_WORKER_LOGS_TAIL,
             from = s->written - n;
    bool in_line = from > 0; /* the first line may have lost its start */

    for (uint64_t i = from; i < s->written; i++) {
        char c = s->tail[i % LS_WORKER_LOGS_TAIL];
        if (!in_line)
            ls_str_append_char(out, c);
        if (c == '\n')
            in_line = false;
    }
    if (in_line) /* one line, longer than the ring */
        for (uint64_t i = from; i < s->written; i++)
            ls_str_append_char(out, s->tail[i % LS_WORKER_LOGS_TAIL]);
}

void ls_worker_logs_tail(const ls_worker_logs *logs, int i, ls_str *out)
{
    const worker *w = &logs->workers[i];

    tail_of(&w->streams[w->streams[ERR].written ? ERR : OUT], out);
}

void ls_worker_logs_free(ls_worker_logs *logs)
{
    if (!logs)
        return;
    ls_worker_logs_end(logs);
    for (int i = 0; i < logs->n; i++) {
        for (int which = OUT; which <= ERR; which++) {
            stream *s = &logs->workers[i].streams[which];
            close_end(&s->fd);
            close_end(&s->worker_fd);
            ls_mem_free(s->bytes);
            ls_mem_free(s->tail);
        }
        close_end(&logs->workers[i].file);
    }
    close_end(&logs->wake_fd);
    close_end(&logs->done_fd);
    ls_str_release(&logs->text[OUT]);
    ls_str_release(&logs->text[ERR]);
    ls_mem_free(logs->workers);
    ls_mem_free(logs->polls);
    ls_mem_free(logs->folder);
    ls_mem_free(logs);
}
