/* cp_group.h -- mesh.cp in a session: the ranks that share every sequence.
 *
 * They are data parallel as all ranks with the same part of the model are: each has it, sums its
 * gradients with everybody who has it, and saves its part of a checkpoint. What they have beside
 * that is a communicator of their own, through which attention gets the keys and values of the
 * others (model/pass_context.c): of the own heads where a team divides them (mesh.tp), of the own
 * layers in a pipeline (mesh.pp). */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* The communicator of this rank's ring, and what is exchanged there; nothing without mesh.cp. */
ls_status ls_cp_group_open(ls_session *session);
void ls_cp_group_close(ls_session *session);

/* What is recomputed decides what they exchange: the most that any rank needs, for all. */
ls_status ls_cp_group_agree(ls_session *session, ls_run *run);

LS_C_END
