/* commit_token.c -- asks etcd before each commit, on the writer's thread.
 *
 *     writer thread     write objects | ask etcd ........ | write the manifest, or give the save up
 *     training          steps ...                          waits for the answer 200 ms at most
 *
 * A rank that was cut off from its job may still see the disk. By then another rank has taken over its
 * claim in etcd, so the answer is no, and its checkpoint never gets a manifest. The launcher holds the
 * lease of the run (cluster/elect/run_lease.h) and passes its name to this process. */
#include "train/save/commit_token.h"

#include <stdatomic.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/elect/run_lease.h"

enum {
    WAIT_S = 30,    /* for etcd to answer, before a save is given up */
    PROMPT_MS = 200 /* an answer that takes longer is not waited for by training */
};

struct ls_commit_token {
    ls_etcd *etcd;
    ls_run_lease_use use;
    char id[LS_RUN_LEASE_ID], run[LS_RUN_LEASE_RUN];
    _Atomic int64_t asked_ns; /* since when etcd is asked for a commit; 0: it is not */
};

static ls_status may_commit(void *context, const ls_ckpt_info *info)
{
    struct ls_commit_token *g = context;
    int64_t now_ns = ls_time_now_ns();
    ls_status st;

    atomic_store(&g->asked_ns, now_ns);
    st = ls_run_lease_commit(&g->use, info->step, now_ns + WAIT_S * LS_NS_PER_S);
    atomic_store(&g->asked_ns, 0);
    return st;
}

/* Whether a commit waits for an answer that does not come at once: training does not wait for that. */
static bool waits_long(const ls_session *session)
{
    struct ls_commit_token *g = session->save.commit_token;
    int64_t asked_ns = g ? atomic_load(&g->asked_ns) : 0;

    return asked_ns > 0 && ls_time_now_ns() - asked_ns > PROMPT_MS * LS_NS_PER_MS;
}

ls_status ls_commit_token_wait(const ls_session *session, ls_ckpt_writer *writer,
                               int64_t deadline_ns, bool *done_out, ls_ckpt_saved *saved_out)
{
    ls_status st = LS_OK;

    *done_out = false;
    while (!*done_out) {
        int64_t now_ns = ls_time_now_ns(), soon_ns = now_ns + PROMPT_MS * LS_NS_PER_MS;
        if (waits_long(session))
            return ls_fail(LS_EDEADLINE, "a save still waits for etcd");
        st = ls_ckpt_writer_wait(writer, ls_min_i64(soon_ns, deadline_ns), done_out, saved_out);
        if (!*done_out && (now_ns >= deadline_ns || st != LS_EDEADLINE))
            break;
    }
    return st;
}

/* "ID/RUN", as the launcher put it: on its machine, or on any other with the view. */
static ls_status read_run_lease(struct ls_commit_token *g, const char *passed)
{
    const char *text = *passed ? passed : getenv(LS_RUN_LEASE_VARIABLE);
    const char *slash = text ? strchr(text, '/') : NULL;

    if (!slash || slash - text >= LS_RUN_LEASE_ID || strlen(slash + 1) >= LS_RUN_LEASE_RUN) {
        ls_fail(LS_EUSAGE, "heal.quorum is etcd, but no launcher holds the run for this process");
        ls_err_hint("With heal.mode: off the first rank must be on the machine where \"lineshaft "
                    "train\" was started.");
        return LS_EUSAGE;
    }
    snprintf(g->id, sizeof g->id, "%.*s", (int)(slash - text), text);
    snprintf(g->run, sizeof g->run, "%s", slash + 1);
    return LS_OK;
}

ls_status ls_commit_token_open(ls_session *s)
{
    const ls_run_list *urls = &s->run->heal.etcd;
    ls_status st = LS_OK;

    if (s->run->heal.quorum != LS_HEAL_ETCD)
        return LS_OK;
    struct ls_commit_token *g = s->save.commit_token = ls_mem_alloc(sizeof *g);
    if (!g)
        return LS_ENOMEM;
    LS_TRY(st, read_run_lease(g, s->args.view.run_lease), out);
    LS_TRY(st, ls_etcd_open(&g->etcd, urls->items, urls->count), out);
    g->use = (ls_run_lease_use){.etcd = g->etcd, .run = g->run, .id = g->id};
    LS_TRY(st,
           ls_run_lease_claim(&g->use, s->save.generation, ls_time_now_ns() + WAIT_S * LS_NS_PER_S),
           out);
    s->save.generation =
        g->use.generation; /* above that of the folder, which is checked as before */
    ls_ckpt_set_token(s->save.store, may_commit, g);
    ls_log(LS_LOG_INFO, "etcd: generation %lld of run %s", (long long)s->save.generation, g->run);
out:
    if (st != LS_OK)
        ls_commit_token_close(s);
    return st;
}

void ls_commit_token_close(ls_session *session)
{
    if (!session->save.commit_token)
        return;
    ls_etcd_close(session->save.commit_token->etcd);
    ls_mem_free(session->save.commit_token);
    session->save.commit_token = NULL;
}
