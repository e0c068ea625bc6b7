/* sdc_replay.h -- a part of a step, made again by another rank.
 *
 * In ordered mode the gradient of a call has the same bits wherever it is made. Every heal.replay
 * steps one leaf is drawn, the same on all ranks. Who has it hashes the gradient of the call that
 * it is in, as it goes into the sum; another rank makes that call again, between backward and
 * update; all hear both hashes. Where they differ, more of them make it until it is clear who is
 * wrong: that rank leaves the job, as a corrupt one (sdc_compare.h), and the step is done again without
 * what it had made. Nothing was updated, so nobody goes back.
 *
 * A step that is not finite is looked at in the same way: each rank makes the leaves of the one
 * before it. Not finite again: it is the data or the mathematics. Finite: the hardware. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

ls_status ls_sdc_replay_open(ls_session *session); /* the step is open */
void ls_sdc_replay_close(ls_session *session);     /* before it is closed */

/* Before a step, when its slices are known. */
ls_status ls_sdc_replay_begin(ls_session *session);

/* After a step that was not finite, by all ranks. LS_OK: it is not finite elsewhere either, or that
 * cannot be tried here. LS_EPEER: it is, and is to be done again; LS_EFAIL: this rank is corrupt.
 */
ls_status ls_sdc_replay_nonfinite(ls_session *session);

LS_C_END
