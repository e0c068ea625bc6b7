/* sharded_save.h -- checkpoints that all ranks write together.
 *
 * Each rank writes what only it has (ZeRO's parts, layers of a pipeline, a slice of tensors), and its
 * share of what others have too (layout/ckpt_ranges.h). The first rank commits when the reports
 * of all have come (checkpoint/ckpt.h). Every function here is called by all ranks, at the same
 * place of a run. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* For runs whose mesh says so (ls_mesh_saves_parts); else nothing happens. */
ls_status ls_sharded_save_open(ls_session *session);
void ls_sharded_save_close(ls_session *session);

/* The newest checkpoint that every rank can read its parts of, to the live state. On the first
 * rank: about it, strings borrowed until the store is closed. */
ls_status ls_sharded_save_load(ls_session *session, ls_ckpt_info *info_out, bool *found_out);

/* Begin a save in the background; the copy is made while the caller goes on. Is left out where the
 * one before has not ended. */
ls_status ls_sharded_save_begin(ls_session *session);

/* Before the state is changed: what is being copied has been. */
ls_status ls_sharded_save_copied(ls_session *session);

/* Report saves that have ended. Cheap, once per step. */
ls_status ls_sharded_save_poll(ls_session *session);

/* Whether this rank knows of a save that is under way. */
bool ls_sharded_save_busy(const ls_session *session);

/* Save the present state now, and wait for it. */
ls_status ls_sharded_save_final(ls_session *session);

LS_C_END
