/* cp_group.h -- mesh.cp in a session: the ranks that share every sequence.
 *
 * They are data-parallel as all ranks with the same part of the model are: each has it, sums its
 * gradients with its replicas, and saves its part of a checkpoint. In addition they have a
 * communicator, through which attention gets the keys and values of the others
 * (model/pass_context.c): of the own heads with mesh.tp, of the own layers in a pipeline. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* The communicator of this rank's cp group, and what is exchanged there; nothing without mesh.cp. */
ls_status ls_cp_group_open(ls_session *session);
void ls_cp_group_close(ls_session *session);

LS_C_END
