/* save_impl.h -- what save.c and parts.c share. */
#pragma once
#include "train/save.h"

LS_C_BEGIN

enum { LS_SAVE_KINDS = 3, LS_SAVE_WAIT_S = 600 };

/* What is saved, and loaded: of replicas the common weights. */
void ls_save_live(const ls_session *session, void *arrays_out[LS_SAVE_KINDS]);

/* Whether ranks have parts of this kind of state; elements of it as a whole. */
bool ls_save_divided(const ls_session *session, int kind);
int64_t ls_save_elements(const ls_session *session, int kind);

/* The tensor of parameter i and where it lies in a kind of state as a whole, without bytes; false:
 * it has none. */
bool ls_save_row(const ls_session *session, int kind, int i, ls_ckpt_tensor *row_out,
                 int64_t *place_out);

/* A store learns of checkpoint.mirror. */
ls_status ls_save_mirror(const ls_session *session, ls_ckpt_store *store);

ls_ckpt_info ls_save_info(ls_session *session);

/* Tell that a save has ended, or came to nothing for the reason in this thread's record; after a
 * commit: copy it to the mirror, remove old ones. */
void ls_save_saved(ls_session *session, int64_t step, const ls_ckpt_saved *saved);
void ls_save_unsaved(ls_session *session, int64_t step);
void ls_save_tidy(const ls_session *session, int64_t step);

LS_C_END
