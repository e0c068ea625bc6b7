/* new_folder.h -- a folder that appears with all its files, or not at all. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

/* A folder in the making beside its final place. */
typedef struct ls_new_folder {
    char path[4096];  /* where to write */
    char final[4096]; /* where it will be */
    int fd;           /* the folder, locked while we live; meaningless unless locked */
    bool locked;
} ls_new_folder;

/* What a process that was killed left behind for the same final place is removed first.
 * LS_EUSAGE: the final place exists and is not an empty folder. */
ls_status ls_new_folder_begin(ls_new_folder *folder, const char *final);
/* Give it its name. */
ls_status ls_new_folder_commit(ls_new_folder *folder);
/* Give its name to one file in it instead, which is durable, and remove the rest. The name must be
 * free. */
ls_status ls_new_folder_commit_file(ls_new_folder *folder, const char *name);
/* Remove what was written. Safe after commit and on one that never began. */
void ls_new_folder_drop(ls_new_folder *folder);

/* Whether path is a folder without anything in it. */
bool ls_new_folder_is_empty(const char *path);
/* Remove a folder with all that is in it; links are not followed. */
void ls_new_folder_remove(const char *path);

LS_C_END
