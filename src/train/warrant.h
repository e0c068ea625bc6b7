/* warrant.h -- with heal.quorum: etcd, whether a checkpoint may be committed is asked there. */
#pragma once
#include "train/session.h"

LS_C_BEGIN

/* By the first rank, when its store is open and claimed: claim a generation in etcd, too, and ask
 * before each commit. Does nothing with heal.quorum: embedded. LS_EBUSY: another job has taken the
 * run over. */
ls_status ls_warrant_open(ls_session *session);

/* When the store is closed. */
void ls_warrant_close(ls_session *session);

LS_C_END
