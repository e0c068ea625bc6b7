/* save.h -- a session's checkpoints: what is saved, when, by which rank; and how a run resumes. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* By the first rank: open it anew, because ranks, and so the live state, may be others than before. */
ls_status ls_save_reopen(ls_session *session);
/* Another rank is the first now. */
ls_status ls_save_leave(ls_session *session);
void ls_save_close(ls_session *session);

/* A row for each trained parameter, pointing into an array of their numbers; returns how many. */
int ls_save_rows(const ls_model *model, const char *kind, float *array, ls_ckpt_tensor *rows);

/* Load the newest checkpoint, if there is one; sets step_number on the first rank. By all ranks:
 * each reads its parts, or the first one reads for all. Refuses one that was made with settings
 * that cannot change (LS_EUSAGE, the differences in the message) or of other tokens (LS_EDATA). */
ls_status ls_save_resume(ls_session *session);

/* What the first rank has loaded, or only where the run stands, to the others: by all ranks. */
ls_status ls_save_share(ls_session *session);

/* The losses, the last result and the loss scale that a rank knows, to all. One rank: nothing. */
ls_status ls_save_share_progress(ls_session *session, int from);

/* Begin to save the present state in the background: it is copied while the next forward and
 * backward run, and must not be changed before ls_save_copied(). Waits for the save before it, and
 * leaves this one out when that does not end, or waits for etcd. A failed save does not stop
 * training: it is a warning and an incident. */
ls_status ls_save_begin(ls_session *session);

/* Wait for the copy that is being made of the state: before any change of it. */
ls_status ls_save_copied(ls_session *session);

/* Wait for the save that is being made in the background. LS_EDEADLINE: it is still running, and
 * reads the session. */
ls_status ls_save_wait(ls_session *session);

/* Report a background save that has ended. Cheap; once per step, by all ranks. */
ls_status ls_save_poll(ls_session *session);

/* Save the present state now, unless it is saved already, and wait for it. */
ls_status ls_save_final(ls_session *session);

/* The whole weights as a pass reads them, on the first rank, until the next save: the step's own,
 * or with zero 3 those in the snapshot, fetched now. By all ranks. */
ls_status ls_save_whole_weights(ls_session *session, const void **weights_out);

/* Which checkpoints of the run, and of stores that go with it, are kept. */
ls_ckpt_pruning ls_save_kept(const ls_session *session);

/* Hash of the weights, independent of their layout. By all ranks; set on the first. */
ls_status ls_save_weights_hash(ls_session *session, char hex_out[33]);

LS_C_END
