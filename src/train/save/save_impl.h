/* save_impl.h -- what the files of this room share. */
#pragma once
#include "base/time.h"
#include "optim/optim.h"
#include "train/save/save.h"

LS_C_BEGIN

enum { LS_SAVE_KINDS = 3, LS_SAVE_WAIT_S = 600 };
static inline int64_t ls_save_deadline(void)
{
    return ls_time_now_ns() + LS_SAVE_WAIT_S * LS_NS_PER_S;
}

/* The arrays that are saved, and loaded: with sync: local the common weights. */
void ls_save_live(const ls_session *session, void *arrays_out[LS_SAVE_KINDS]);

/* Whether ranks have parts of this kind of state; elements of it as a whole. */
bool ls_save_divided(const ls_session *session, int kind);
int64_t ls_save_elements(const ls_session *session, int kind);

/* The tensor that a kind of a parameter is in checkpoints, or, with mesh.tp and mesh.ep, that it is a
 * part of; without bytes. */
ls_ckpt_tensor ls_save_tensor(const ls_session *session, int kind, const ls_param *p);

/* One row per parameter, then the moments of those that are trained, pointing into arrays as a
 * whole where these are given; returns how many. */
int ls_save_fill_rows(const ls_session *session, ls_ckpt_tensor *rows,
                      void *const arrays[LS_SAVE_KINDS]);

/* The snapshot and the rows that point into it, unless they are there. */
ls_status ls_save_open_snapshot(ls_session *session);
void ls_save_close_snapshot(ls_session *session);

/* The first n kinds of the live state to the first rank's snapshot, which is there and which no save
 * reads; by all ranks where they have parts of it. Or only begin to, out of a GPU's memory; or, on any
 * thread (context: the session), all kinds of a state that lies in this process's memory. */
ls_status ls_save_take_snapshot(ls_session *session, int n);
void ls_save_copy_out(ls_session *session, ls_stream *stream, int n);
ls_status ls_save_copy_here(void *context);

/* Staged: what was loaded into the snapshot, to the device; and, by all ranks, to the ranks that have
 * parts of it, or copies. */
ls_status ls_save_send_loaded(ls_session *session);
ls_status ls_save_scatter_snapshot(ls_session *session);

/* The newest step that has a manifest at all, damaged or not; -1: none. */
ls_status ls_save_newest_step(const ls_ckpt_store *store, int64_t *step_out);

/* By a first rank that loads nothing, because ranks have the state in memory: what the newest checkpoint
 * says of the run. */
ls_status ls_save_recall(ls_session *session);

/* A store learns of checkpoint.mirror. */
ls_status ls_save_mirror(const ls_session *session, ls_ckpt_store *store);

/* What manifests say of a run whose learned positions count from the beginning of each document; and
 * whether this run is one. */
#define LS_SAVE_POSITIONS " positions=document"
bool ls_save_positions_restart(const ls_session *session);

ls_ckpt_info ls_save_info(ls_session *session);

/* Report that a save has ended, or came to nothing for the reason in this thread's record; after a
 * commit: copy it to the mirror, remove old ones. */
void ls_save_saved(ls_session *session, int64_t step, const ls_ckpt_saved *saved);
void ls_save_unsaved(ls_session *session, int64_t step);
void ls_save_tidy(const ls_session *session, int64_t step);

LS_C_END
