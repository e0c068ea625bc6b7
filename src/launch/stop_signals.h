/* stop_signals.h -- a run is asked to stop, by a person or a scheduler: signals become a flag and a
 * clock.
 *
 *   SIGINT, SIGTERM, SIGUSR1   the first one: finish the step, save, end. A second one, half a
 *                              second later or more: end at once, as LS_EUNSAVED. A rank leaves
 *                              that to its agent, which kills it: a scheduler may signal both.
 *   SIGPIPE                    the reader of the run's output is gone: as the first of the above
 *   SIGALRM                    the grace time is over: end at once, as LS_EUNSAVED
 *
 * A process that ends at once leaves the checkpoint before as it was: a save only counts when its
 * manifest has its name. */
#pragma once
#include <signal.h>
#include "base/err.h"

typedef struct ls_stop_signals_args {
    bool rank;        /* an agent watches over this process */
    int64_t grace_s;  /* from the first signal to the end; 0: what Slurm says, or no limit */
    const char *note; /* written to standard error when a signal is heard; NULL: nothing */
} ls_stop_signals_args;

/* Take the signals, for the life of the process. */
void ls_stop_signals_begin(const ls_stop_signals_args *args);

/* Set when the run is to stop. */
extern volatile sig_atomic_t ls_stop_signals_asked;

/* What was asked for is saved: the end of the grace time does not matter any more. */
void ls_stop_signals_saved(void);

/* By when, by the monotonic clock; 0: there is no limit, or no stop was requested. */
int64_t ls_stop_signals_by_ns(void);
