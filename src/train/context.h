/* context.h -- mesh.cp in a session: the ranks that share every sequence.
 *
 * They are data parallel as all ranks are: each has the whole model, sums its gradients with
 * everybody, and saves its part of a checkpoint. What they have beside that is a communicator of
 * their own, through which attention gets the keys and values of the others (model/pass_ring.c). */
#pragma once
#include "train/session.h"

LS_C_BEGIN

/* The communicator of this rank's ring, and what is exchanged there; nothing without mesh.cp. */
ls_status ls_context_open(ls_session *session);
void ls_context_close(ls_session *session);

/* What is recomputed decides what they exchange: the most that any rank needs, for all. */
ls_status ls_context_agree(ls_session *session, ls_run *run);

/* "dp=2 cp=2 zero=1" */
void ls_context_name(const ls_mesh *mesh, char *text, size_t size);

LS_C_END
