/* session_impl.h -- what session.c, session_weights.c and session_tell.c share. */
#pragma once
#include "train/session.h"

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

/* The first weights: of the imported model, and fresh ones for what it lacks. No second copy of
 * them ever exists. */
ls_status ls_session_start_weights(ls_session *session);

/* That the run begins: who trains, what, from where; and warnings that belong there. Ranks meet. */
ls_status ls_session_tell(ls_session *session);

LS_C_END
