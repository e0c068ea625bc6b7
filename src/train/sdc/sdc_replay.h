/* sdc_replay.h -- a rank computes what another one has computed, to find a faulty processor.
 *
 * In ordered mode the gradient of a call has the same bits wherever it is computed. Every
 * heal.replay steps one leaf is drawn, the same on all ranks. Its owner hashes the gradient of the
 * call with that leaf, as it goes into the sum; another rank, the helper, computes that call again,
 * between backward and update; all ranks receive both hashes. Where they differ, more ranks compute
 * it until it is clear which one is wrong: that rank leaves the job as a corrupt one
 * (sdc_compare.h), and the step is done again without it. Nothing was updated, so no rank goes back.
 *
 * A step that is not finite is examined in the same way: each rank computes the leaves of the rank
 * before it. Not finite again: it is the data or the mathematics. Finite: the hardware. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

ls_status ls_sdc_replay_open(ls_session *session); /* the step is open */
void ls_sdc_replay_close(ls_session *session);     /* before it is closed */

/* Before a step, when its slices are known. */
ls_status ls_sdc_replay_begin(ls_session *session);

/* After a step that was not finite, by all ranks. LS_OK: it is not finite on other ranks either, or
 * that cannot be tried here. LS_EPEER: it is finite there, and is done again; LS_EFAIL: this rank is
 * corrupt. */
ls_status ls_sdc_replay_nonfinite(ls_session *session);

LS_C_END
