/* profiling.h -- some steps of a run, looked at closely (`lineshaft train --profile N`).
 *
 * After a warm-up of LS_PROFILING_WARM steps the next N are noted row by row (kernel/profile.h);
 * then trace.json, table.txt and table.json are written to RUN_FOLDER/profile and an event is
 * emitted. The warm-up is shorter where the run would end before N steps, and a run that ends
 * before leaves a profile of what there was. Training goes on as it would have, bit by bit; a
 * profile that cannot be written is a warning. With no profile asked for, these functions do
 * nothing. */
#pragma once
#include "base/err.h"
#include "train/step/step_clock.h"

LS_C_BEGIN

enum { LS_PROFILING_WARM = 2, LS_PROFILING_MOST = 1000 };

typedef struct ls_session ls_session;

/* Measures the peaks of the machine and puts the profile before the session's kernels. Called when
 * device and model are there and nothing large is. */
ls_status ls_profiling_open(ls_session *session);
void ls_profiling_close(ls_session *session);

/* Around each step, whose clock has just begun, or has had its last lap. */
void ls_profiling_begin(ls_session *session, ls_step_clock *clock);
void ls_profiling_end(ls_session *session, ls_step_clock *clock);

/* No step will follow. */
void ls_profiling_finish(ls_session *session);

LS_C_END
