/* mesh_agree.h -- mesh: auto in a session: the ranks agree on what is there, and take the mesh that
 * plan/mesh_choice.h finds. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* Where the run leaves its mesh to us, and ranks, device and tokenizer are known: the run of the
 * best one into session->fitted, and session->choice. All ranks. LS_EUSAGE, LS_ENOMEM: there is
 * none. */
ls_status ls_mesh_agree_mesh(ls_session *session);

/* In a view that follows a loss, by all ranks and before anything else that they do together: the
 * mesh that one of them knows of into session->choice; empty: nobody does. other_out: this rank
 * knew of another one, and what it has is of no use. */
ls_status ls_mesh_agree_recall(ls_session *session, bool *other_out);

/* On the first rank that has made the choice: what was chosen, and what was not. */
void ls_mesh_agree_tell(ls_session *session);

LS_C_END
