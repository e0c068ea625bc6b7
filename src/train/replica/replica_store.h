/* replica_store.h -- the state of training between two views: kept, chosen, given back.
 *
 *   ls_replica_keep()     a rank that has lost others takes what it has out of its step: its part,
 *                         the copy that it holds, and gradients whose update it has not made
 *   ls_replica_choose()   in the next view: ranks report what they have; all see the step that all
 *                         parts can be brought to, and which rank gives each. A rank behind makes its
 *                         update. Where a part is nowhere, all load the newest checkpoint
 *   ls_replica_reuse()    a rank that keeps its part goes on in the same memory
 *   ls_replica_restore()  the others get theirs; parts that are cut anew move to their new owners
 *   ls_replica_begin()    the new copies are confirmed: what was kept goes
 *
 * A rank that dies meanwhile is like any other: what was kept stays until ls_replica_begin(). */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* Whether this rank can keep its state now: then ranks that join get it from memory. */
bool ls_replica_can_keep(const ls_session *session);

/* Before the step is closed. */
void ls_replica_keep(ls_session *session);

/* For the report: the step that this rank has a whole state of, -1: none; and the number of its
 * slice's part, -1: none. */
int64_t ls_replica_step(const ls_session *session);
int ls_replica_part(const ls_session *session);

/* By all ranks, when the mesh is known and nothing is built of it: base step and source into the
 * session's view. Nothing happens in the first view, nor where every rank has a whole state: then
 * the coordinator has decided. */
ls_status ls_replica_choose(ls_session *session);

/* Norm blocks of a bucket where slices are cut along buckets: as the state that the view goes on
 * with was cut, else as proposed. */
int64_t ls_replica_bucket(const ls_session *session, int64_t proposed);

/* Weights and moments for a step that is about to be opened, NULL: none; and when it was. */
void *const *ls_replica_reuse(const ls_session *session);
void ls_replica_reused(ls_session *session);

/* By all ranks, when the step is open: its weights and moments. */
ls_status ls_replica_restore(ls_session *session);

void ls_replica_begin(ls_session *session);
void ls_replica_drop(ls_session *session);

/* Bytes that it holds. */
int64_t ls_replica_bytes(const ls_session *session);

LS_C_END
