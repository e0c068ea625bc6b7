/* reference.h -- what the model thought of each answer before training (train.objective: dpo, kto).
 *
 * The reference is the model that a run starts with: that of model.import, which with LoRA is the base
 * without its adapter. Its log-probabilities are computed once, before the first step, and written to
 * data/reference.bin in the run folder; later starts of the run read them there. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* By all ranks, when the weights are there. Nothing without pairs. LS_EDATA: a run that is resumed has
 * no file, or one of other data. */
ls_status ls_reference_open(ls_session *session);
void ls_reference_close(ls_session *session);

/* Of the sequences of this rank in a batch, valid until the next call; NULL without pairs. */
const ls_preference_reference *ls_reference_of_batch(ls_session *session, const ls_batch *batch);

LS_C_END
