/* sync_modes.h -- the rows of train/session/sync.h. */
#pragma once
#include "train/session/sync.h"

LS_C_BEGIN

extern const ls_sync_mode ls_sync_local_sgd;    /* local_sgd_session.c */
extern const ls_sync_mode ls_sync_param_server; /* param_server_session.c */

/* The row of a run's `sync:`. */
const ls_sync_mode *ls_sync_of(const ls_run *run);

LS_C_END
