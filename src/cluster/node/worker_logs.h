/* worker_logs.h -- what workers print, line by line, each with its worker's label.
 *
 * A thread reads the workers' pipes and writes "[3] text" to the standard output or error that it
 * came from; whole lines only, so that nothing stands inside of another worker's line. Not a byte
 * is lost: a line without its end gets one when its writer is gone; a line longer than
 * LS_WORKER_LOGS_PIECE is shown in pieces, each but the first marked "[3]+"; when the reader of
 * our output is slow, the workers wait. In the log files the bytes stand as they were written.
 *
 * A thread of its own, because the agent must notice a dead rank within milliseconds, also while a
 * terminal or a log file's disk is stuck. */
#pragma once
#include "base/err.h"
#include "base/str.h"

LS_C_BEGIN

enum { LS_WORKER_LOGS_PIECE = 64 << 10, LS_WORKER_LOGS_TAIL = 2048 };

typedef struct ls_worker_logs ls_worker_logs;

typedef struct ls_worker_logs_args {
    int workers;
    int out_fd, err_fd;        /* where lines go; borrowed */
    const char *const *labels; /* one per worker, copied */
    const char *folder;        /* for a file "<stem><label>.log" each, appended to; NULL: none */
    const char *stem;
} ls_worker_logs_args;

/* Make the pipes and files. LS_EIO names what cannot be made. */
ls_status ls_worker_logs_open(ls_worker_logs **logs_out, const ls_worker_logs_args *args);

/* The descriptors that a worker writes to; they belong to logs and are closed by the next call. */
void ls_worker_logs_ends(const ls_worker_logs *logs, int worker, int *out_fd_out, int *err_fd_out);

/* Close our copies of the workers' ends and start the thread. After the workers were forked. */
ls_status ls_worker_logs_begin(ls_worker_logs *logs);

/* All writers are gone: read what is still there, write it, and raise done_fd. */
void ls_worker_logs_finish(ls_worker_logs *logs);
int ls_worker_logs_done_fd(const ls_worker_logs *logs); /* readable when everything is written */

/* Wait for the thread; what could not be written until now is dropped. LS_EIO when something could
 * not be written: a full disk. */
ls_status ls_worker_logs_end(ls_worker_logs *logs);

/* After the end: the last lines that a worker wrote to standard error (else to standard output),
 * LS_WORKER_LOGS_TAIL bytes at most, from the start of a line. */
void ls_worker_logs_tail(const ls_worker_logs *logs, int worker, ls_str *out);

void ls_worker_logs_free(ls_worker_logs *logs); /* NULL is allowed */

LS_C_END
