/* league.c -- see league.h. Nothing is decided here. */
#include "cluster/league_impl.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"

/* --- the coordinator speaks ------------------------------------------------------------------- */

/* The large part of a view is the same for all: it is made once. */
static void append_shared(ls_league *l, const ls_word *word, ls_str *bytes)
{
    if (word->kind != LS_WORD_VIEW)
        return;
    if (l->shared_of != word->view.plan.generation || l->shared.failed) {
        ls_str_clear(&l->shared);
        ls_word_encode_shared(word, &l->shared);
        l->shared_of = word->view.plan.generation;
    }
    ls_str_append_bytes(bytes, l->shared.p, l->shared.len);
    bytes->failed |= l->shared.failed;
}

static void send_word(ls_league *l, int node, const ls_word *word)
{
    ls_str bytes;

    ls_str_init(&bytes);
    ls_word_encode_own(word, &bytes);
    append_shared(l, word, &bytes);
    if (ls_str_status(&bytes) == LS_OK)
        ls_rendezvous_tell(l->rendezvous, node, bytes.p, bytes.len);
    else
        ls_log(LS_LOG_ERROR, "a word to node %d is lost: %s", node, ls_err_last()->text);
    ls_str_release(&bytes);
}

static void on_tell(void *context, int node, const ls_word *word)
{
    ls_league *l = context;

    if (node != l->self)
        send_word(l, node, word);
    else if (l->heal)
        ls_heal_hear(l->heal, word);
}

static void on_call(void *context, int node)
{
    ls_rendezvous_call(((ls_league *)context)->rendezvous, node);
}

static void on_expel(void *context, int node, const char *why)
{
    ls_league *l = context;

    ls_rendezvous_expel(l->rendezvous, node, why);
    ls_succession_loses(l, node);
}

/* The coordinator's own agent knows of its workers by their verdicts. */
static void on_stop(void *context, int node, int code, const ls_err_record *why)
{
    ls_league *l = context;

    if (node == l->self)
        ls_rendezvous_fail(l->rendezvous, code, why);
    else
        ls_rendezvous_stop(l->rendezvous, code, why);
}

/* --- the door --------------------------------------------------------------------------------- */

static bool on_join(void *context, int node, const ls_members_node *about, char *why, size_t cap)
{
    ls_league *l = context;
    int64_t now = ls_time_now_ns();

    if (ls_parish_excludes(l->parish, about->host, now, why, cap))
        return false;
    ls_status st = ls_succession_joins(l, node, about);
    if (st == LS_OK)
        st = ls_parish_joins(l->parish, node, about->host, about->ip, about->ranks, false, now);
    if (st == LS_OK)
        return true;
    snprintf(why, cap, "%.200s", ls_err_last()->text);
    ls_succession_loses(l, node);
    return false;
}

static void on_heard(void *context, int node, const uint8_t *bytes, size_t len)
{
    ls_league *l = context;
    ls_word word;

    if (ls_succession_hears(l, node, bytes, len))
        return;
    if (ls_word_decode(&word, bytes, len) != LS_OK ||
        (!l->parish && ls_word_unpack(&word, &l->roster) != LS_OK)) {
        ls_word_release(&word);
        ls_log(LS_LOG_WARN, "node %d: %s", node, ls_err_last()->text);
        return;
    }
    if (l->parish)
        ls_parish_takes(l->parish, node, &word, ls_time_now_ns());
    else if (l->heal)
        ls_heal_hear(l->heal, &word);
    ls_word_release(&word);
}

static void on_lost(void *context, int node, const char *why, int64_t silent_ns)
{
    ls_league *l = context;

    ls_log(LS_LOG_INFO, "%s", why);
    ls_succession_loses(l, node);
    ls_parish_loses(l->parish, node, why, silent_ns, ls_time_now_ns());
}

static void on_look(void *context)
{
    ls_league *l = context;

    ls_succession_looks(l);
    if (l->parish && !l->over)
        ls_parish_looks(l->parish, ls_time_now_ns());
}

static bool on_idle(void *context, int node)
{
    return ls_parish_is_idle(((ls_league *)context)->parish, node);
}

/* --- both ------------------------------------------------------------------------------------- */

ls_status ls_league_open_parish(ls_league *l, int self)
{
    const ls_league_args *a = &l->args;

    l->self = self;
    return ls_parish_open(&l->parish,
                          &(ls_parish_args){.rules = a->rules,
                                            .min_nodes = a->min_nodes,
                                            .max_nodes = a->max_nodes,
                                            .grow_wait_ns = a->grow_wait_ns,
                                            .quarantine = a->quarantine,
                                            .cool_ns = a->cool_ns,
                                            .self = self,
                                            .agree = a->succession ? ls_succession_agrees : NULL,
                                            .tell = on_tell,
                                            .call = on_call,
                                            .expel = on_expel,
                                            .stop = on_stop,
                                            .context = l});
}

ls_status ls_league_open(ls_league **league_out, const ls_league_args *args, bool hosts,
                         ls_rendezvous *rendezvous)
{
    ls_league *l = ls_mem_alloc(sizeof *l);
    ls_status st = LS_OK;

    if (!l)
        return LS_ENOMEM;
    l->args = *args;
    l->rendezvous = rendezvous;
    ls_roster_init(&l->roster);
    ls_str_init(&l->shared);
    l->door = (ls_rendezvous_door){.pulse_ns = args->pulse_ns,
                                   .suspect_ns = args->suspect_ns,
                                   .dead_ns = args->dead_ns,
                                   .joins = on_join,
                                   .heard = on_heard,
                                   .lost = on_lost,
                                   .looks = on_look,
                                   .idle = on_idle,
                                   .context = l};
    LS_TRY(st, ls_succession_open(l), out);
    if (hosts)
        LS_TRY(st, ls_league_open_parish(l, 0), out);
    LS_TRY(st, ls_rendezvous_attach(rendezvous, &l->door), out);
    *league_out = l;
out:
    if (st != LS_OK)
        ls_league_close(l);
    return st;
}

void ls_league_close(ls_league *league)
{
    if (!league)
        return;
    ls_succession_close(league);
    ls_parish_close(league->parish);
    ls_roster_release(&league->roster);
    ls_str_release(&league->shared);
    ls_mem_free(league);
}

ls_status ls_league_begin(ls_league *league)
{
    ls_status st = ls_succession_begin(league);

    if (st != LS_OK)
        return st;
    if (!league->parish)
        return ls_rendezvous_learn(league->rendezvous, &league->roster);
    const ls_members *m = ls_rendezvous_members(league->rendezvous);
    for (int i = 0; i < m->nodes && st == LS_OK; i++)
        st = ls_parish_joins(league->parish, i, m->node[i].host, m->node[i].ip, m->node[i].ranks,
                             true, ls_time_now_ns());
    if (st == LS_OK)
        ls_parish_has_named(league->parish);
    return st;
}

void ls_league_say(void *league, const ls_word *word)
{
    ls_league *l = league;

    if (l->parish) {
        ls_parish_takes(l->parish, l->self, word, ls_time_now_ns());
        ls_parish_looks(l->parish, ls_time_now_ns());
    } else {
        send_word(l, 0, word);
    }
}

void ls_league_bind(ls_league *league, ls_heal *heal)
{
    league->heal = heal;
}
