/* recover.h -- what a rank does when it has lost others.
 *
 *   a step fails because of a peer -> ls_recover_rejoin():
 *       weights and moments are kept (replica_store.h); all that was made for the old mesh is closed
 *       the rank reports the step that it has, and waits for a view (cluster/member/worker_channel.h)
 *       a new communicator
 *   ls_session_regroup(): mesh, exchange, step and loader for the new ranks
 *       ls_recover_restore_state(): a rank that is behind, or new, gets its state; where a part of it is
 *       nowhere, all ranks load the newest checkpoint
 *
 * Nothing here waits for ever: the agent gives a view to all ranks that are alive, or ends the job.
 */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* Whether this failure is that of another rank. */
static inline bool ls_recover_can(ls_status failure)
{
    return failure == LS_EPEER || failure == LS_EDEADLINE;
}

/* Close everything but the state, and meet the others again. Sets args.comm and args.view. met: the
 * step after which this rank last did what falls due. LS_EPEER: the job ends. */
ls_status ls_recover_rejoin(ls_session *session, int64_t met);

/* Close what was made for the ranks of a view: loader, step, groups. Device, folder, events and what was
 * kept of the state stay. Safe on a half-open session. */
void ls_recover_close_view(ls_session *session);

/* Whether this rank leaves its view because new ranks wait to join, and has done enough steps in it.
 * Not where the state could not be kept: it would cost the steps since the last checkpoint; the
 * others wait until ranks are lost. */
bool ls_recover_regroups(const ls_session *session, int64_t steps_in_view);

/* Whether the ranks of this view go on with a state that they have in memory. */
static inline bool ls_recover_in_memory(const ls_session *session)
{
    return session->args.view.plan.base >= 0;
}

/* The state of the view's base step, to the ranks that lack it. By all ranks. */
ls_status ls_recover_restore_state(ls_session *session);

LS_C_END
