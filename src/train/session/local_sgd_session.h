/* local_sgd_session.h -- a run whose replicas agree now and then (sync: local, parallel/local_sgd.h).
 *
 * Every rank trains by itself on its part of each batch. After each local.steps steps an exchange
 * begins; local.delay steps later it ends, and then the replicas meet: they have new common
 * weights, hear who asks to stop, and do what falls due: validation and samples (of the common
 * weights), checkpoints. At the last step of the run they always meet, and whatever each has
 * learned alone goes into the common weights.
 *
 * A run's checkpoint holds the common weights and the first replica's moments. What else a replica
 * has is saved by itself, in checkpoints/replica-N: so saving moves no bytes between ranks. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

typedef struct ls_local_sgd_session ls_local_sgd_session;

/* Takes its memory; by all ranks. */
ls_status ls_local_sgd_session_open(ls_session *session);
void ls_local_sgd_session_close(ls_session *session);

/* Where the run begins, or goes on: the weights of the step (step 0), or the common ones, are
 * there. By all ranks. A replica that has no state of its own at this step begins with the first
 * one's moments and the common weights, and says so. */
ls_status ls_local_sgd_session_start(ls_session *session);

/* The common weights. */
float *ls_local_sgd_session_common(const ls_session *session);

/* A batch whose loss is the mean over this replica's own targets. */
ls_step_batch ls_local_sgd_session_batch(ls_session *session, const ls_step_batch *batch);

/* What follows a step that is done: part of an exchange, or nothing. Where the replicas meet, the
 * loss becomes the mean of all. */
ls_status ls_local_sgd_session_step(ls_session *session, ls_step_result *result,
                                    ls_step_clock *clock);

/* Whether they meet after the step that was done last. */
bool ls_local_sgd_session_meets(const ls_session *session);

/* Let the step's pass read the common weights (true), and this replica's again (false). */
void ls_local_sgd_session_show(ls_session *session, bool common);

/* Save what is this replica's: in the background, as ls_save_begin(); or now. */
void ls_local_sgd_session_save_begin(ls_session *session);
ls_status ls_local_sgd_session_save_final(ls_session *session);

/* Exchanges so far, and the bytes that this rank has sent in them to others. */
int64_t ls_local_sgd_session_exchanges(const ls_session *session, int64_t *bytes_out);

LS_C_END
