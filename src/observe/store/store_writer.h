/* store_writer.h -- the one process that fills the store of a run: where its file lies, and who
 * fills it.
 *
 * The file is run.db of the run folder where that is a local disk. On a network file system it is in
 * the cache folder of the user on this machine, and a backup of it becomes run.db of the run folder. */
#pragma once
#include "observe/store/store_db.h"

LS_C_BEGIN

typedef struct ls_store_writer {
    ls_store_db db;
    char folder[PATH_MAX];
    char backup[PATH_MAX]; /* "": the file is in the run folder itself */
} ls_store_writer;

/* Open the store of a run folder for this process, which holds the lock of the folder. A file that is
 * damaged is put aside (run.db.damaged) and made again from events.jsonl. elsewhere: a folder for the
 * file, for tests; NULL: as above. */
ls_status ls_store_writer_open(ls_store_writer *writer, const char *folder, const char *elsewhere);

/* Note that this process lives, and commit. */
ls_status ls_store_writer_commit(ls_store_writer *writer);

/* Where the file lies elsewhere: replace run.db of the run folder by a copy. */
ls_status ls_store_writer_backup(ls_store_writer *writer);

void ls_store_writer_close(ls_store_writer *writer);

/* Whether files of the folder lie on a disk of this machine, and not on a network file system. */
bool ls_store_writer_is_local(const char *folder);

/* When a process of this machine was started, in the kernel's ticks; 0: there is none. */
int64_t ls_store_writer_start_of(int pid);

LS_C_END
