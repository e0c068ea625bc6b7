/* state_file.h -- files that a process keeps on a disk of its machine for as long as it runs: the votes
 * of a node, the coordinator's log.
 *
 * They lie in LINESHAFT_STATE or /var/tmp/lineshaft-UID. Their names are random, so no other process
 * reads them, and those of a process that was killed are of no use: the next one removes them. */
#pragma once
#include <limits.h>
#include "base/err.h"

LS_C_BEGIN

typedef struct ls_state_file {
    char path[PATH_MAX]; /* "": none */
    int held_fd;         /* the lock that says that its process lives; -1: the disk has no locks */
} ls_state_file;

/* A new name in the folder, which is made, with this suffix. The file itself is left to the caller;
 * others may be put beside it whose names begin with this one. */
ls_status ls_state_file_create(ls_state_file *file, const char *suffix);

/* Remove it and what is beside it. Safe when nothing was created. */
void ls_state_file_remove(ls_state_file *file);

/* Remove the files of processes that are gone: nobody holds their lock. */
void ls_state_file_sweep(void);

LS_C_END
