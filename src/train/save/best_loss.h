/* best_loss.h -- the lowest validation loss of a run, and how long ago it was.
 *
 * For checkpoint.best and train.patience. Every rank judges the same validation loss after the same
 * step, so all come to the same answer. The record goes into each checkpoint (ls_ckpt_info.extra), and
 * a resumed run goes on counting where it was. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* After an evaluation, by all ranks: judge progress.val_loss. A second time after the same step (ranks
 * that meet again after a loss) changes nothing. */
void ls_best_loss_judge(ls_session *session);

/* Whether the weights of this moment are the best so far, and are kept for that. */
bool ls_best_loss_is_now(const ls_session *session);

/* Whether train.patience is over. */
bool ls_best_loss_is_over(const ls_session *session);

/* The record as text, "" where nothing is judged; and from such a text. LS_EDATA: it is none. */
enum { LS_BEST_LOSS_TEXT = 128 };
void ls_best_loss_write(const ls_session_best *best, char text_out[LS_BEST_LOSS_TEXT]);
ls_status ls_best_loss_read(ls_session_best *best, const char *text);

/* The checkpoint that is kept as the best one, by the first rank: its step and validation loss; step -1:
 * there is none. */
ls_status ls_best_loss_kept(const ls_session *session, int64_t *step_out, double *loss_out);

LS_C_END
