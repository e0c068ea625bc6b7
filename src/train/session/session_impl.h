/* session_impl.h -- what session.c, session_device.c, session_weights.c and session_report.c share.
 */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* How long ranks wait for each other. */
enum { LS_SESSION_MEET_S = 600 };

/* The folder for what does not lie in memory. */
static inline const char *ls_session_offload_to(const ls_session *s)
{
    return s->run->device.offload_to ? s->run->device.offload_to : s->run->out;
}

/* Whether this rank has the run folder. */
static inline bool ls_session_is_first(const ls_session *s)
{
    return s->mesh.rank == 0;
}

/* Whether the device that is asked for is there; and open it, its kernels and streams. */
ls_status ls_session_check_device(ls_session *session);
ls_status ls_session_open_device(ls_session *session);

/* Each rank tells which card it uses and how much of it is free, before anybody takes of it; and
 * what that leaves for each. */
ls_status ls_session_meet_cards(ls_session *session, const ls_device_info *info);
int64_t ls_session_share_of_card(const ls_session *session);

/* The first weights: of the imported model, and fresh ones for what it lacks. No second copy of
 * them ever exists. */
ls_status ls_session_start_weights(ls_session *session);

/* That the run begins: who trains, what, from where; and warnings that belong there. Ranks meet. */
ls_status ls_session_tell(ls_session *session);

LS_C_END
