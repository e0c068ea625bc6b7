/* loop.h -- training from the first step to the last. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* Train the run to its end. LS_EINTR when it was asked to stop: the step was finished and saved.
 * The last event is a summary, unless the run failed. */
ls_status ls_loop_run(const ls_session_args *args);

LS_C_END
