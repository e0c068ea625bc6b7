/* model_groups.h -- mesh.tp and mesh.ep in a session: the ranks that have one model together.
 *
 * Every rank is in two small worlds: those with whom it has a model, and those that have the same
 * part of it, with whom it sums gradients. With mesh.tp and mesh.ep at once the first has two small
 * worlds of its own. The session's own exchange (session->dp) stays that of all ranks: what they
 * decide together. model_groups.c also has what a step does then. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* The model of this rank, and the whole one where it has a part of it. Again after ranks were lost:
 * the place in a team may be another one. */
ls_status ls_model_groups_models(ls_session *session);

/* The model as it is saved, sampled and told of. */
const ls_model *ls_model_groups_whole(const ls_session *session);

/* The mesh that shares batches: of all ranks (also with mesh.ep), or of the teams of mesh.tp. */
const ls_mesh *ls_model_groups_mesh(const ls_session *session);

/* The ranks that have the same part of the model as this one, as a mesh of their own, and how they
 * meet: all ranks where each has the whole. NULL: it is alone with it. */
const ls_mesh *ls_model_groups_replicas(const ls_session *session);
ls_comm *ls_model_groups_replica_comm(const ls_session *session);

/* Whether what this rank says of its leaves counts: it is the first of its team, or alone. */
bool ls_model_groups_is_first(const ls_session *session);

/* What is recomputed was chosen by this rank's memory (session->fitted): the ranks of a team, which
 * meet in it, do what the one does that must recompute most. Nothing without mesh.tp. */
ls_status ls_model_groups_agree(ls_session *session);

/* Communicators of the two small worlds and what is exchanged there; nothing without teams. After
 * the model, before memory is planned; and the sums among teams, when it is. */
ls_status ls_model_groups_open(ls_session *session);
ls_status ls_model_groups_open_sums(ls_session *session);
void ls_model_groups_close(ls_session *session);

/* What ranks exchange in a step, as ls_memory_dp() says; with ZeRO 2 and 3 in ordered mode it needs
 * a table of all their calls. */
ls_status ls_model_groups_open_dp(ls_dp **dp_out, const ls_run *run, ls_dp_args args);

LS_C_END
