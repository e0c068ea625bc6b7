/* vote_store.c -- promises in a journal. Each record is a whole promise, so compaction keeps the
 * last record alone.
 *
 *     term 1, voted h0, view 1 | term 1, voted h0, view 2 | term 2, voted h1, view 2     what counts
 *
 * The file is synced before a vote is sent: a node that says "I vote for h1 in term 2", loses its power
 * and comes back does not vote for h2 in term 2. */
#include "cluster/elect/vote_store.h"

#include <sys/random.h>
#include "base/log.h"
#include "base/mem.h"
#include "cluster/elect/journal.h"

enum { COMPACT_BYTES = 1 << 20 };

struct ls_vote_store {
    ls_journal *journal;
    ls_str bytes;
    bool failed; /* the last one could not be kept; said once */
};

/* A record that was written whole and cannot be read is of another version: not ours to guess. */
static ls_status take(void *context, const void *bytes, size_t len)
{
    return ls_quorum_decode(context, bytes, len);
}

static ls_status start_anew(ls_quorum_promise *promise)
{
    promise->term = promise->voted = 0;
    promise->view.generation = promise->view.made = 0;
    promise->view.held = false;
    promise->view.n = promise->view.n_base = 0;
    do
        if (getrandom(&promise->self, sizeof promise->self, 0) != (ssize_t)sizeof promise->self)
            return ls_fail_sys(LS_EIO, "cannot draw a number for this node");
    while (promise->self == 0);
    return LS_OK;
}

ls_status ls_vote_store_open(ls_vote_store **vote_store_out, const char *path,
                             ls_quorum_promise *promise_out)
{
    ls_vote_store *v = ls_mem_alloc(sizeof *v);
    ls_journal_found found;
    ls_status st;

    if (!v)
        return LS_ENOMEM;
    ls_str_init(&v->bytes);
    LS_TRY(st, ls_journal_open(&v->journal, path, take, promise_out, &found), out);
    if (found.why[0])
        ls_log(LS_LOG_WARN, "journal \"%s\": %s%s", path, found.why,
               found.damaged ? "; this node goes on as a new one" : "");
    if (found.records == 0 || found.damaged)
        LS_TRY(st, start_anew(promise_out), out);
    *vote_store_out = v;
out:
    if (st != LS_OK)
        ls_vote_store_close(v);
    return st;
}

void ls_vote_store_close(ls_vote_store *vote_store)
{
    if (!vote_store)
        return;
    ls_journal_close(vote_store->journal);
    ls_str_release(&vote_store->bytes);
    ls_mem_free(vote_store);
}

bool ls_vote_store_keep(void *vote_store, const ls_quorum_promise *promise)
{
    ls_vote_store *v = vote_store;

    ls_str_clear(&v->bytes);
    ls_quorum_encode(promise, &v->bytes);
    ls_status st = ls_str_status(&v->bytes);
    /* After a failure only a new file can be trusted (journal.h). */
    if (st == LS_OK && (v->failed || ls_journal_bytes(v->journal) > COMPACT_BYTES))
        st = ls_journal_compact(v->journal, v->bytes.p, v->bytes.len);
    else if (st == LS_OK)
        st = ls_journal_append(v->journal, v->bytes.p, v->bytes.len);
    if (st != LS_OK && !v->failed)
        ls_log(LS_LOG_WARN, "%s; this node has no say until it can write again",
               ls_err_last()->text);
    v->failed = st != LS_OK;
    return st == LS_OK;
}
