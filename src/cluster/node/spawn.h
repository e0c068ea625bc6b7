/* spawn.h -- one process to be started, and why it could not be.
 *
 * A spawn is a plan made beforehand: between fork and exec nothing is allocated and no lock is
 * taken, so that it may be carried out in a child of a program with threads. */
#pragma once
#include <sys/types.h>
#include "base/err.h"
#include "base/pool.h"

LS_C_BEGIN

typedef struct ls_spawn {
    const char *path;        /* the file to execute; borrowed, like everything here */
    const char *const *argv; /* its words, NULL-terminated */
    const char *const *envp; /* its environment, NULL-terminated */
    int out_fd, err_fd;      /* its standard output and error; its input is empty */
    const int *keep;         /* descriptors above 2 that it inherits; all others are closed */
    int n_keep;
    const ls_pool_mask *mask; /* the CPUs it may use; NULL: ours */
    uint64_t most_files;      /* soft limit of open files to give back to it; 0: ours */
    int net_fd;               /* network namespace that it lives in; -1: ours */
    const char *host;         /* host name, with a /sys of its own where allowed; NULL: ours */
} ls_spawn;

/* What went wrong on the way, sent by the child as one message. */
typedef enum ls_spawn_stage {
    LS_SPAWN_FORK,
    LS_SPAWN_STREAMS,
    LS_SPAWN_NET,
    LS_SPAWN_HOST,
    LS_SPAWN_FILES,
    LS_SPAWN_EXEC
} ls_spawn_stage;

/* Fork and execute; the child ends when this process does (PR_SET_PDEATHSIG), has a session of its
 * own, and no descriptor but those named. When it cannot get as far as its program, refuse() is
 * called (unless it is NULL) in the child with what failed and errno; it then exits with 127. Returns the process, or
 * -1 with errno. */
typedef void (*ls_spawn_refuse)(void *context, ls_spawn_stage stage, int error);
pid_t ls_spawn_start(const ls_spawn *spawn, ls_spawn_refuse refuse, void *context);

/* The sentence for it. */
ls_status ls_spawn_explain(const ls_spawn *spawn, ls_spawn_stage stage, int error);

/* The file that a command's name stands for, as the shell finds it: by its path when there is a
 * slash in it, else in PATH. LS_EUSAGE when there is none or it cannot be executed. */
ls_status ls_spawn_find(const char *name, char *path_out, size_t cap);

LS_C_END
