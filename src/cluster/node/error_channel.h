/* error_channel.h -- the error record of a failing worker, handed to its agent.
 *
 * An exit code says that a rank failed; the record says what happened, to what, and what to do. An
 * agent gives all its workers one end of a socket and names it in LINESHAFT_CAUSE_FD; a worker that
 * ends with an error sends its record there, and the launcher shows the sentence of the first cause
 * instead of a number. What arrives is checked before it is believed: any program may run as a
 * worker. */
#pragma once
#include "base/err.h"

LS_C_BEGIN

typedef struct ls_error_channel {
    ls_err_record record;
    int rank;      /* as the worker knows itself */
    char host[64]; /* where it ran */
} ls_error_channel;

/* Both ends: [0] for the agent, never blocks; [1] for the workers, blocks for a second at most. */
ls_status ls_error_channel_pair(int fds_out[2]);

/* From a worker to its agent. False when there is no agent or it does not listen: then nobody but
 * the worker can show the record. */
bool ls_error_channel_send(const ls_err_record *record);

/* The next record at the agent's end; false when none is there. Garbage is dropped. */
bool ls_error_channel_receive(int fd, ls_error_channel *cause_out);

LS_C_END
