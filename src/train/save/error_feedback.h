/* error_feedback.h -- residuals of a compressed exchange (parallel/compressed.h) in checkpoints.
 *
 * The first rank has a vector of all trained parameters for each node and one for the owners of
 * sums, saved as kinds "owed.0", "owed.1" ... and "owed.sum" of every parameter. The same nodes
 * take them up exactly. Other nodes divide their sum; a run that does not compress any more adds it
 * to its first gradient. So no mesh that resumes a checkpoint loses any of a gradient. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* How many vectors there are; 0: nothing is compressed. */
int ls_error_feedback_vectors(const ls_session *session);

/* On the first rank: memory, and rows behind those of the snapshot. */
ls_status ls_error_feedback_open(ls_session *session);
void ls_error_feedback_close(ls_session *session);

/* All residuals, to the first rank; by all ranks. Nothing where nothing is compressed. */
ls_status ls_error_feedback_collect(ls_session *session);

/* On the first rank: the residuals of the checkpoint of a step. */
ls_status ls_error_feedback_load(ls_session *session, int64_t step);

/* What was loaded, to the ranks that add it; by all ranks, once, before the first step. */
ls_status ls_error_feedback_share(ls_session *session);

LS_C_END
