/* recover.h -- what a rank does when it has lost the others.
 *
 *   training fails because of a peer -> ls_recover_rejoin():
 *       everything that was made for the old mesh goes; weights and moments stay (shed)
 *       the rank reports which step they are of, and waits for a view (cluster/member/heal.h)
 *       a new communicator
 *   ls_session_regroup(): mesh, exchange, step and loader for the new ranks
 *       ls_recover_spread(): who is behind, or new, gets the state of the view's source; where
 *       nobody has a whole state, the newest checkpoint is loaded by all
 *       ls_recover_tell(): an incident
 *
 * Nothing here waits without an end: the agent gives a view to all who are alive, or ends the job.
 */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* Whether this failure is that of another rank. */
static inline bool ls_recover_can(ls_status failure)
{
    return failure == LS_EPEER || failure == LS_EDEADLINE;
}

/* Let go of everything but the state, and meet the others again. Sets args.comm and args.view.
 * met: the step after which this rank last did what falls due. LS_EPEER: the job ends. */
ls_status ls_recover_rejoin(ls_session *session, int64_t met);

/* Whether this rank was asked to meet the others anew, because somebody has come, and has done
 * enough steps in this view for that. Not where nobody has a whole state: it would cost the steps
 * since the last checkpoint; who has come waits until ranks are lost. */
/* Tell as incidents what the agent says happened without the ranks' notice. */
void ls_recover_notes(ls_session *session);

bool ls_recover_regroups(const ls_session *session, int64_t steps_in_view);

/* Whether the ranks of this view go on with a state that one of them has. */
static inline bool ls_recover_in_memory(const ls_session *session)
{
    return session->args.view.plan.base >= 0;
}

/* The state of the view's base step, to all ranks. By all ranks. */
ls_status ls_recover_spread(ls_session *session);

/* The incident, in a view that follows a loss. */
void ls_recover_tell(ls_session *session);

/* The last step of which events.jsonl tells; 0: none. For a first rank that was not so before. */
int64_t ls_recover_last_told(const ls_session *session);

LS_C_END
