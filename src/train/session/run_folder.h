/* run_folder.h -- which process writes the run folder: one at a time, by its lock.
 *
 * The first rank of a view has it. When that is another process than in the view before, the one
 * before is dead, lets go of it, or ends soon because it was cut off. Or it stands still with its
 * whole machine, and never lets go. Then the lock is taken from it: this view exists because more
 * than half of the machines agreed to go on without it, and what it may still write when it wakes
 * up is refused by its generation (checkpoint/ckpt.h). But only from the process that had the
 * folder in the view before: another job keeps what it has. */
#pragma once
#include <stdint.h>
#include "base/err.h"

LS_C_BEGIN

typedef struct ls_session ls_session;

enum { LS_RUN_FOLDER_HOLDER = 160 };

/* The process that has the lock, as it wrote itself; "": none, or that cannot be read. */
void ls_run_folder_holder(const char *path, char holder_out[LS_RUN_FOLDER_HOLDER]);

/* Take the lock. LS_EBUSY: another process has it, and kept it for the patience, and is not
 * `former` ("": none). */
ls_status ls_run_folder_lock(const char *path, const char *former, int64_t patience_ns,
                             int *fd_out);

/* The first rank makes the folder, locks it and writes down the resolved run file. LS_EBUSY: another
 * run uses it. */
ls_status ls_run_folder_open(ls_session *session);

/* The last step in events.jsonl; 0: none. For a first rank that was another one before. */
int64_t ls_run_folder_last_step(const ls_session *session);

/* Open events.jsonl, at its end. A run that begins at step 0 begins a new file: that of an earlier
 * attempt, whose steps are lost, becomes events.before-1.jsonl, and the log names it. */
ls_status ls_run_folder_open_events(ls_session *session);

/* Another rank is the first now: close events and let go of the lock. */
void ls_run_folder_leave(ls_session *session);

/* Note which process has the lock, for the view after this one. */
void ls_run_folder_remember(ls_session *session);

/* Remove a folder that this process made and never used; what has content stays. */
void ls_run_folder_remove(const ls_session *session);

/* Whether each rank writes its own part of checkpoints, or the first one writes all: by all ranks. */
ls_status ls_run_folder_find_writers(ls_session *session);

LS_C_END
