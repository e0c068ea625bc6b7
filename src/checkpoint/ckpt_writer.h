/* ckpt_writer.h -- saves a checkpoint on a thread of its own while training goes on.
 *
 * The caller copies its tensors into snapshot buffers (quick), calls begin, and trains on; the
 * buffers belong to the writer until poll or wait reports the end. One save at a time. Or the
 * writer makes the copy itself, first of all (ls_ckpt_writer_run).
 *
 *   idle --begin--> running --(thread)--> finished --poll, wait--> idle
 *
 * All functions are called by one thread. */
#pragma once
#include "checkpoint/ckpt.h"

LS_C_BEGIN

typedef struct ls_ckpt_writer ls_ckpt_writer;

/* The store is borrowed until free. after: how to prune after each successful save of
 * ls_ckpt_writer_begin() (copied; NULL: not at all). */
ls_status ls_ckpt_writer_create(ls_ckpt_writer **writer_out, ls_ckpt_store *store,
                                const ls_ckpt_pruning *after);

/* Start a save. Rows, names and info are copied; tensors[i].bytes are borrowed until the end is
 * reported. When a save is still running, wait for it until deadline_ns (monotonic; 0: not at all),
 * then LS_EBUSY. A result that was not fetched is dropped when it was a success, and returned here
 * (without starting the new save) when it was a failure. */
ls_status ls_ckpt_writer_begin(ls_ckpt_writer *writer, const ls_ckpt_info *info,
                               const ls_ckpt_tensor *tensors, int n, int64_t deadline_ns);

/* The same for any work that ends in a save. copy runs first, on the writer's thread, and makes the
 * copy that the work reads: the caller goes on, and asks ls_ckpt_writer_copied() only before it
 * changes the state that is copied. Everything is borrowed until the end is reported. */
typedef struct ls_ckpt_job {
    int64_t step;                                               /* for messages */
    ls_status (*copy)(void *context);                           /* NULL: nothing to copy */
    ls_status (*work)(void *context, ls_ckpt_saved *saved_out); /* on a thread of less priority */
    void *context;
} ls_ckpt_job;
ls_status ls_ckpt_writer_run(ls_ckpt_writer *writer, const ls_ckpt_job *job, int64_t deadline_ns);

/* Wait until no copy is being made. LS_EDEADLINE: it still is. */
ls_status ls_ckpt_writer_copied(ls_ckpt_writer *writer, int64_t deadline_ns);

/* Whether the save has ended. *done_out is true once per save; then the status is the save's own,
 * with its error record, and saved_out (may be NULL) describes what was written. While running or
 * idle: LS_OK and false. */
ls_status ls_ckpt_writer_poll(ls_ckpt_writer *writer, bool *done_out, ls_ckpt_saved *saved_out);

/* Wait for the end of the save and report it like poll. Idle: LS_OK and *done_out false.
 * LS_EDEADLINE: still running. */
ls_status ls_ckpt_writer_wait(ls_ckpt_writer *writer, int64_t deadline_ns, bool *done_out,
                              ls_ckpt_saved *saved_out);

/* A save that is running is finished first, so wait with a deadline before. NULL is allowed. */
void ls_ckpt_writer_free(ls_ckpt_writer *writer);

LS_C_END
