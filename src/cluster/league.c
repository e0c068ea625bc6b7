/* league.c -- see league.h. Nothing is decided here. */
#include "cluster/league_impl.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/rendezvous_impl.h"

/* --- the coordinator speaks ------------------------------------------------------------------- */

/* To those who are here. */
static void hear_word(ls_league *l, const void *bytes, size_t len)
{
    ls_word word;

    if (ls_word_decode(&word, bytes, len) != LS_OK || ls_word_unpack(&word, &l->roster) != LS_OK)
        ls_log(LS_LOG_WARN, "%s", ls_err_last()->text);
    else if (l->heal)
        ls_heal_hear(l->heal, &word);
    ls_word_release(&word);
}

static void on_tell(void *context, int node, const void *bytes, size_t len)
{
    ls_league *l = context;

    if (node != l->self)
        ls_rendezvous_tell(l->rendezvous, node, bytes, len);
    else
        hear_word(l, bytes, len);
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

static void on_died(void *context, const char *what, int64_t took_ns)
{
    const ls_league *l = context;

    if (l->heal)
        ls_heal_tell(l->heal, what, took_ns);
}

/* --- the door --------------------------------------------------------------------------------- */

static bool on_join(void *context, int node, const ls_members_node *about, char *why, size_t cap)
{
    ls_league *l = context;
    int64_t now = ls_time_now_ns();

    if (ls_office_excludes(l->office, about->host, now, why, cap))
        return false;
    ls_status st = ls_succession_joins(l, node, about);
    if (st == LS_OK)
        st = ls_office_joins(l->office, node, about->host, about->ip, about->ranks, false, now);
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
    if (!l->office) {
        hear_word(l, bytes, len);
        return;
    }
    if (ls_word_decode(&word, bytes, len) == LS_OK)
        ls_office_takes(l->office, node, &word, ls_time_now_ns());
    else
        ls_log(LS_LOG_WARN, "node %d: %s", node, ls_err_last()->text);
    ls_word_release(&word);
}

static void on_lost(void *context, int node, const char *why, int64_t silent_ns)
{
    ls_league *l = context;

    ls_log(LS_LOG_INFO, "%s", why);
    ls_succession_loses(l, node);
    ls_office_loses(l->office, node, why, silent_ns, ls_time_now_ns());
}

static void on_look(void *context)
{
    ls_league *l = context;

    ls_succession_looks(l);
    if (l->office && !l->over && ls_office_attend(l->office) != LS_OK)
        ls_rendezvous_stop(l->rendezvous, ls_err_exit_code(LS_EBARREN), ls_err_last());
}

static bool on_idle(void *context, int node)
{
    return ls_office_is_idle(((ls_league *)context)->office, node);
}

/* --- both ------------------------------------------------------------------------------------- */

ls_status ls_league_open_office(ls_league *l, int self)
{
    const ls_league_args *a = &l->args;
    const ls_office_args args = {.rules = {.rules = a->rules,
                                           .min_nodes = a->min_nodes,
                                           .max_nodes = a->max_nodes,
                                           .grow_wait_ns = a->grow_wait_ns,
                                           .quarantine = a->quarantine,
                                           .cool_ns = a->cool_ns,
                                           .self = self,
                                           .agree = a->succession ? ls_succession_agrees : NULL},
                                 .program = a->program,
                                 .tell = on_tell,
                                 .call = on_call,
                                 .expel = on_expel,
                                 .stop = on_stop,
                                 .remember = ls_succession_remembers,
                                 .died = on_died,
                                 .context = l};

    l->self = self;
    return ls_office_open(&l->office, &args);
}

ls_status ls_league_watch_office(ls_league *l)
{
    return ls_rendezvous_watch(l->rendezvous, ls_office_fd(l->office), OF_SYNOD);
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
    ls_str_init(&l->memory);
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
        LS_TRY(st, ls_league_open_office(l, 0), out);
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
    ls_office_close(league->office);
    ls_roster_release(&league->roster);
    ls_str_release(&league->memory);
    ls_mem_free(league);
}

/* The coordinator's own node: the others have the list of the rendezvous. */
static ls_status join_all(ls_league *l)
{
    const ls_members *m = ls_rendezvous_members(l->rendezvous);
    ls_status st = LS_OK;

    for (int i = 0; i < m->nodes && st == LS_OK; i++) {
        const ls_members_node *n = &m->node[i];
        LS_TRY(st, ls_roster_add(&l->roster, n->host, n->ip), out);
        st = ls_office_joins(l->office, i, n->host, n->ip, n->ranks, true, ls_time_now_ns());
    }
    LS_TRY(st, st, out);
    ls_office_has_named(l->office);
    st = ls_league_watch_office(l);
out:
    return st;
}

ls_status ls_league_begin(ls_league *league)
{
    ls_status st = ls_succession_begin(league);

    if (st != LS_OK)
        return st;
    return league->office ? join_all(league)
                          : ls_rendezvous_learn(league->rendezvous, &league->roster);
}

void ls_league_say(void *league, const ls_word *word)
{
    ls_league *l = league;
    ls_str bytes;

    if (l->office) {
        ls_office_takes(l->office, l->self, word, ls_time_now_ns());
        return;
    }
    ls_str_init(&bytes);
    ls_word_encode(word, &bytes);
    if (ls_str_status(&bytes) == LS_OK)
        ls_rendezvous_tell(l->rendezvous, 0, bytes.p, bytes.len);
    else
        ls_log(LS_LOG_ERROR, "a word to the coordinator is lost: %s", ls_err_last()->text);
    ls_str_release(&bytes);
}

void ls_league_bind(ls_league *league, ls_heal *heal)
{
    league->heal = heal;
    if (heal && league->regent)
        ls_heal_entrust(heal, league->reign.tenure);
}
