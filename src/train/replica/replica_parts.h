/* replica_parts.h -- what a rank of a line or a team (mesh.pp, mesh.tp, mesh.ep) keeps of its part when it
 * has lost the others, and how those who lack theirs come to it.
 *
 *   ls_replica_parts_keep()     a rank that has lost the others takes its part out of its step: weights
 * and moments, and where it does not know whether a step counts, its gradient ls_replica_parts_choose() in
 * the next view: each tells what it has; all see whether every part is there, of which step, and
 * who gives it (layout/replicas.h: a replica). Who had not heard of the last step makes its update.
 * Otherwise the newest checkpoint is loaded ls_replica_parts_lend()     who has the part that it will have
 * goes on with that memory ls_replica_parts_restore()  the others get theirs ls_replica_parts_begin()    all are
 * there: training begins
 *
 * A rank that is lost while the others meet again is like any other: what was kept is there until
 * training begins. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* Whether this run's state is kept in this way; and whether this rank has one to keep. */
bool ls_replica_parts_serves(const ls_session *session);
bool ls_replica_parts_keeps(const ls_session *session);

/* Before the step is closed. */
void ls_replica_parts_keep(ls_session *session);

/* The number of the part that is kept, for the report; -1: none. */
int ls_replica_parts_part(const ls_session *session);

/* By all ranks, when the mesh is known and nothing is built of it, not even the model: base step
 * and source into the session's view. Nothing happens in the first view. */
ls_status ls_replica_parts_choose(ls_session *session);

/* Norm blocks of a bucket where parts are cut along buckets: as what is gone on with was cut, else
 * as proposed. */
int64_t ls_replica_parts_bucket(const ls_session *session, int64_t proposed);

/* Weights and moments for a step that is about to be opened, NULL: none; and when it was. */
void *const *ls_replica_parts_lend(const ls_session *session);
void ls_replica_parts_lent(ls_session *session);

/* By all ranks, when the step is open: its weights and moments. */
ls_status ls_replica_parts_restore(ls_session *session);

void ls_replica_parts_begin(ls_session *session);
void ls_replica_parts_drop(ls_session *session);

/* Bytes that it holds. */
int64_t ls_replica_parts_bytes(const ls_session *session);

LS_C_END
