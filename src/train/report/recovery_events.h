/* recovery_events.h -- incidents of recoveries (session/event.h: "lost", "joined", "corrupt",
 * "coordinator"). */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* What the agent has noticed and the ranks have not. */
void ls_recovery_events_note(ls_session *session);

/* A view that follows a loss, or that others have joined. */
void ls_recovery_events_view(ls_session *session);

LS_C_END
