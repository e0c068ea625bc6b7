/* session_open.h -- a session (train/session/session.h) from nothing to its first step, from one view
 * to the next, and down again. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* After a failure the session is closed. A run that could not be opened leaves no folder behind. */
ls_status ls_session_open(ls_session *session, const ls_session_args *args);
void ls_session_close(ls_session *session); /* a half-open session may be closed */

/* After ls_recover_rejoin(): build anew what depends on the ranks of the view. After a failure the
 * session is as it was after ls_recover_rejoin(). */
ls_status ls_session_regroup(ls_session *session);

LS_C_END
