/* process_limits.h -- limits that a shell or a batch system has set on this process (ulimit).
 *
 * Left alone, three of them end a process without a word: of the stack (SIGSEGV), of the size of
 * files (SIGXFSZ) and of CPU time (SIGXCPU, or SIGKILL at once). Here they become errors. */
#pragma once
#include "base/err.h"

/* Take the limits in hand, before anything else runs. LS_ENOMEM: the stack may not be as large as the
 * program needs. Later
 *   - a write beyond the limit of file sizes is a failed write (EFBIG), of which base/err.h knows a hint;
 *   - a process whose CPU time is used up says so and ends as LS_EIO; a run that trains saves first
 *     (launch/stop_signals.h). Where there was no warning before the end, the last tenth of the time,
 *     at most a minute, is kept for that. */
ls_status ls_process_limits_begin(void);
