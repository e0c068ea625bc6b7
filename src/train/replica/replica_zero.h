/* replica_zero.h -- what ranks keep of a state that they had divided, when some of them are lost.
 *
 *   ls_replica_zero_keep()     a rank that has lost the others takes its own parts out of its step, and
 *                       those of its ward (replica_copy.h); the rest goes
 *   ls_replica_zero_choose()   in the next view: each tells what it has; all see whether every part is
 *                       still there, of which step, and who gives it. Otherwise the newest
 *                       checkpoint is loaded
 *   ls_replica_zero_restore()  who had not heard of the last step makes its update now; then the parts
 *                       move to those who own them in the new mesh, whatever its size
 *   ls_replica_zero_drop()     when the new copies are everywhere
 *
 * A rank that is lost while the others meet again is like any other: what was kept is there until
 * the new copies are, everywhere. So a rank may have two hoards: the one it came with, and one of
 * copies of which it does not know yet whether all have them. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* Whether this run's state is kept in this way. */
bool ls_replica_zero_serves(const ls_session *session);

/* Whether this rank could keep something now: ranks that come in may get it. */
bool ls_replica_zero_would(const ls_session *session);

/* Before the step is closed. */
void ls_replica_zero_keep(ls_session *session);

/* By all ranks, when the mesh is known and nothing is built yet: base step and source into the
 * session's view. Nothing happens in the first view. */
ls_status ls_replica_zero_choose(ls_session *session);

/* By all ranks, when the step is open: its weights and moments. updated: whether the last step was
 * an update, as who has seen it says. */
ls_status ls_replica_zero_restore(ls_session *session, bool updated);

void ls_replica_zero_drop(ls_session *session);

/* Bytes that it holds. */
int64_t ls_replica_zero_bytes(const ls_session *session);

LS_C_END
