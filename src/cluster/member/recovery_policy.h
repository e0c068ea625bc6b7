/* recovery_policy.h -- decides what happens after a rank's death: it is restarted, the job goes on with
 * fewer ranks or with spares, or it stops. Pure rules over a view (view.h): no processes, sockets
 * or clocks. coordinator.h asks, on the coordinator's node; others carry the decisions out. */
#pragma once
#include "cluster/member/view.h"

LS_C_BEGIN

/* The process of a worker has ended: what follows for it and for the job. */
ls_view_verdict ls_recovery_policy_decide(ls_view *view, int worker, const ls_view_end *end);

/* Make the next view of the workers that wait. LS_ENORETRY: the job must not go on, and why:
 * three views without a new step, or an error that came twice at the same step. LS_EFAIL: too few
 * ranks are left for one model. LS_ENOMEM. */
ls_status ls_recovery_policy_next_view(ls_view *view, ls_view_plan *plan_out);

LS_C_END
