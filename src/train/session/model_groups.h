/* model_groups.h -- mesh.tp and mesh.ep in a session: the ranks that hold one model between them.
 *
 * Every rank is in two small communicators: that of the ranks with which it holds a model, and that of
 * its replicas, with which it sums gradients. With mesh.tp and mesh.ep at once the first one has two
 * smaller ones inside. The session's own exchange (session->dp) stays that of all ranks: it carries
 * what they decide together. What a step does with these groups is in train/step/group_step.c. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* The model of this rank, and the whole one where it has a part of it. Again after ranks were lost:
 * the place in its group may be another one. */
ls_status ls_model_groups_models(ls_session *session);

/* The model as it is saved, sampled and reported. */
const ls_model *ls_model_groups_whole(const ls_session *session);

/* The mesh that shares batches: of all ranks (also with mesh.ep), or of the tp groups. */
const ls_mesh *ls_model_groups_mesh(const ls_session *session);

/* The ranks that have the same part of the model as this one, as a mesh of their own, and their
 * communicator: all ranks where each has the whole model. NULL: this rank is the only one. */
const ls_mesh *ls_model_groups_replicas(const ls_session *session);
ls_comm *ls_model_groups_replica_comm(const ls_session *session);

/* Whether this rank speaks for its leaves: it is the first of its tp group. */
bool ls_model_groups_is_first(const ls_session *session);

/* Each rank has chosen what it recomputes by its memory (session->fitted). Ranks of one model, and ranks
 * that share sequences, exchange tensors in what is recomputed: all recompute as much as the rank that
 * must recompute most. */
ls_status ls_model_groups_agree(ls_session *session);

/* Communicators, and what is exchanged there; nothing without mesh.tp and mesh.ep. After the model,
 * before memory is planned; and the sums among replicas, when it is. */
ls_status ls_model_groups_open(ls_session *session);
ls_status ls_model_groups_open_sums(ls_session *session);
void ls_model_groups_close(ls_session *session);

/* What ranks exchange in a step, as ls_memory_dp() says; with ZeRO 2 and 3 in ordered mode it needs
 * a table of all their calls. */
ls_status ls_model_groups_open_dp(ls_dp **dp_out, const ls_run *run, ls_dp_args args);

LS_C_END
