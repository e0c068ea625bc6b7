/* vote_store.h -- a node's promise (quorum.h) on disk, in a journal.
 *
 * A node keeps its number for as long as it keeps its journal. Without one, or with one that was
 * damaged, it draws a new number: the old one may have voted, and must not vote again. */
#pragma once
#include "cluster/elect/quorum.h"

LS_C_BEGIN

typedef struct ls_vote_store ls_vote_store;

/* Open PATH. promise_out: what was kept last; else an empty promise with a new number (generation
 * 0). Says in the log what was torn or damaged. LS_EBUSY: another process has it. LS_EIO: it cannot
 * be read or written. */
ls_status ls_vote_store_open(ls_vote_store **vote_store_out, const char *path,
                             ls_quorum_promise *promise_out);
void ls_vote_store_close(ls_vote_store *vote_store); /* NULL is allowed */

/* ls_quorum_hooks.keep, with the stored vote as its context: true when it is on the disk. Of
 * failures the first is logged. */
bool ls_vote_store_keep(void *vote_store, const ls_quorum_promise *promise);

LS_C_END
