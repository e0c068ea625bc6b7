/* choose.h -- mesh: auto in a session: the ranks agree on what is there, and take the mesh that
 * plan/choice.h finds. */
#pragma once
#include "train/session.h"

LS_C_BEGIN

/* Where the run leaves its mesh to us, and ranks, device and tokenizer are known: the run of the
 * best one into session->fitted, and session->choice. All ranks. LS_EUSAGE, LS_ENOMEM: there is
 * none. */
ls_status ls_choose_mesh(ls_session *session);

/* On the first rank: what was chosen, and what was not. */
void ls_choose_tell(ls_session *session);

LS_C_END
