/* preempt.h -- the last save of a run that was asked to stop, and the record of one that is done.
 *
 * The stop may come with a time (args.stop_by): then the state is saved only if a save, as long as the
 * slowest of this process so far, ends before it; otherwise the checkpoint before is left as it is,
 * and the run says so. Without an earlier save it is tried: a process that is killed in the middle
 * of it leaves the checkpoint before whole, too. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* Save the present step if there is time. By all ranks. The text says why not, for LS_EUNSAVED;
 * "": it is saved. */
enum { LS_PREEMPT_WHY = 256 };
ls_status ls_preempt_save(ls_session *session, char why_out[LS_PREEMPT_WHY]);

/* The record of a run that has done all that its run file asks for: OUT/DONE, with its settings
 * and its summary. Written by the first rank, after the last save; removed when training begins. */
ls_status ls_preempt_done(const ls_session *session); /* right after the summary event */
void ls_preempt_undone(const ls_session *session);

/* Whether this run was finished by an earlier process: the record is there, of the same settings,
 * and the checkpoint of it is whole, every byte. summary_out gets the event as it was emitted then. */
ls_status ls_preempt_finished(const ls_run *run, bool *finished_out, ls_str *summary_out);

LS_C_END
