/* commit_token.h -- with heal.quorum: etcd, whether a checkpoint may be committed is asked there. */
#pragma once
#include "train/session/session.h"

LS_C_BEGIN

/* By the first rank, when its store is open and claimed: claim a generation in etcd, too, and ask
 * before each commit. Does nothing with heal.quorum: embedded. LS_EBUSY: another job has taken the
 * run over. */
ls_status ls_commit_token_open(ls_session *session);

/* As ls_ckpt_writer_wait(), but only as long as etcd answers a commit at once: LS_EDEADLINE then, too. */
ls_status ls_commit_token_wait(const ls_session *session, ls_ckpt_writer *writer,
                               int64_t deadline_ns, bool *done_out, ls_ckpt_saved *saved_out);

/* When the store is closed. */
void ls_commit_token_close(ls_session *session);

LS_C_END
