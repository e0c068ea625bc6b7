/* process_stat.h -- what the kernel says of a process in /proc/PID/stat. Nothing is allocated, so the
 * supervisor, which allocates nothing after its fork, may ask, too. */
#pragma once
#include <sys/types.h>
#include "base/base.h"

typedef struct ls_process_stat {
    char state; /* 'R' runs, 'S' sleeps, 'T' was stopped by a signal, 't' by a debugger ... */
    pid_t parent, session;
    long ticks; /* CPU time of all its threads, in clock ticks */
} ls_process_stat;

/* False: it is gone. */
bool ls_process_stat_read(pid_t pid, ls_process_stat *stat_out);
