/* mesh_agree.h -- mesh: auto in a session: the ranks agree on the facts, and take the mesh that
 * plan/mesh_choice.h finds. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* With mesh: auto, when ranks, device and tokenizer are known: choose the best mesh and write its run
 * into session->fitted and session->auto_mesh. All ranks. LS_EUSAGE, LS_ENOMEM: there is none. */
ls_status ls_mesh_agree_choose(ls_session *session);

/* In a view that follows a loss, by all ranks and before any other exchange: the mesh that one of them
 * knows, into session->auto_mesh; empty: no rank does. other_out: this rank knew another one, and what
 * it has in memory is of no use. */
ls_status ls_mesh_agree_recall(ls_session *session, bool *other_out);

/* On the first rank that has made the choice: what was chosen, and what was not. */
void ls_mesh_agree_report(ls_session *session);

LS_C_END
