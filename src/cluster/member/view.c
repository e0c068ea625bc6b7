/* view.c -- the workers of a job and their states, which are drawn in view.h. What happens after a
 * death, and which workers are in the next view, is decided in recovery_policy.c.
 *
 *   NEW, AWAY --ls_view_reports--> WAITS --ls_recovery_policy_next_view--> IN --ls_view_set_left--> DONE
 *        ^                           ^                                      |
 *        |                           +------------ls_view_reports-----------+
 *        +--ls_recovery_policy_decide: restart-- (WAITS, IN) --decide: drop--> OUT
 *
 * Every arrow goes through ls_view_enter(), which keeps the number of workers in each state. */
#include "cluster/member/view_impl.h"

#include <string.h>
#include "base/mem.h"

ls_status ls_view_init(ls_view *view, int workers, ls_view_rules rules)
{
    *view = (ls_view){.rules = rules, .reached = -1};
    ls_status st = ls_view_reserve(view, workers);
    if (st != LS_OK)
        return st;
    view->workers = view->count[LS_VIEW_AWAY] = workers;
    for (int i = 0; i < workers; i++)
        view->member[i] = (ls_view_member){.rank = -1};
    return LS_OK;
}

void ls_view_release(ls_view *view)
{
    ls_mem_free(view->member);
    view->member = NULL;
    view->workers = view->room = 0;
}

ls_status ls_view_reserve(ls_view *view, int workers)
{
    int room = view->room ? view->room : 8;

    LS_BUG_IF(workers < 0 || workers > LS_VIEW_WORKERS, "%d workers", workers);
    while (room < workers)
        room *= 2;
    if (room == view->room)
        return LS_OK;
    ls_view_member *member = ls_mem_resize(view->member, (size_t)room * sizeof *member);
    if (!member)
        return LS_ENOMEM;
    view->member = member;
    view->room = room;
    return LS_OK;
}

/* The numbers are kept, because they are asked for after every message of thousands of nodes. */
void ls_view_enter(ls_view *view, int worker, ls_view_state state)
{
    ls_view_member *m = &view->member[worker];

    view->waiting_joiners += m->joiner * ((state == LS_VIEW_WAITS) - (m->state == LS_VIEW_WAITS));
    view->count[m->state]--;
    view->count[state]++;
    m->state = state;
}

int ls_view_add(ls_view *view, int workers, bool needed)
{
    int first = view->workers;
    ls_view_state state = needed ? LS_VIEW_AWAY : LS_VIEW_NEW;

    LS_BUG_IF(workers < 1 || workers > view->room - first, "%d more workers", workers);
    view->workers += workers;
    view->count[state] += workers;
    for (int i = first; i < view->workers; i++)
        view->member[i] = (ls_view_member){
            .state = state, .rank = -1, .joiner = true, .report = {.have = -1, .reached = -1}};
    return first;
}

void ls_view_remove(ls_view *view, int first, int workers)
{
    LS_BUG_IF(first < 0 || first + workers > view->workers, "workers %d and %d", first, workers);
    for (int i = first; i < first + workers; i++) {
        ls_view_enter(view, i, LS_VIEW_OUT);
        view->count[LS_VIEW_OUT]--;
    }
    memmove(&view->member[first], &view->member[first + workers],
            (size_t)(view->workers - first - workers) * sizeof view->member[0]);
    view->workers -= workers;
}

/* Ranks are those of the newest view that somebody knows of. */
void ls_view_resume(ls_view *view, const ls_view_past *past)
{
    view->begun |= past->begun;
    view->reached = ls_max_i64(view->reached, past->reached);
    if (past->generation <= view->generation)
        return;
    view->generation = past->generation;
    view->first_lost = true; /* until it says that it stood there */
    for (int i = 0; i < view->workers; i++)
        view->member[i].rank = -1;
}

void ls_view_set_resumed(ls_view *view, int worker, int rank, bool out)
{
    view->member[worker].rank = rank;
    if (out)
        ls_view_enter(view, worker, LS_VIEW_OUT);
    else if (rank == 0)
        view->first_lost = false;
}

void ls_view_reports(ls_view *view, int worker, const ls_view_report *report)
{
    ls_view_enter(view, worker, LS_VIEW_WAITS);
    view->member[worker].report = *report;
    if (report->unit > 0)
        view->rules.unit = report->unit;
}

/* The first rank is ready when all are: it leads the collectives of the start. So from here on the job
 * has begun, and a spare's state is older than that of the ranks. */
void ls_view_set_ready(ls_view *view, int worker)
{
    if (view->member[worker].state != LS_VIEW_IN)
        return;
    view->member[worker].joiner = false;
    if (view->member[worker].rank > 0)
        return;
    view->begun = true;
    /* Not when it was planned: it may have come to nothing. */
    view->first_lost = false;
    for (int i = 0; i < view->workers; i++) /* the others go on from what a spare has */
        if (view->member[i].state == LS_VIEW_WAITS && view->member[i].rank < 0)
            view->member[i].report.have = -1;
}

void ls_view_set_left(ls_view *view, int worker)
{
    ls_view_enter(view, worker, LS_VIEW_DONE);
}

int ls_view_alive(const ls_view *view)
{
    return view->count[LS_VIEW_AWAY] + view->count[LS_VIEW_WAITS] + view->count[LS_VIEW_IN];
}

int ls_view_unit(const ls_view *view)
{
    return view->rules.unit > 1 ? view->rules.unit : 1;
}

/* Joiners are met only if a model more results: with unit 2 and 4 ranks in the view one joiner makes
 * 5 / 2 = 4 / 2, and waits for another one. */
bool ls_view_has_guests(const ls_view *view)
{
    int unit = ls_view_unit(view), in = view->count[LS_VIEW_IN];

    return view->waiting_joiners > 0 && view->count[LS_VIEW_NEW] == 0 &&
           (in + view->count[LS_VIEW_WAITS]) / unit > in / unit;
}

int ls_view_least(const ls_view *view)
{
    return view->rules.least > ls_view_unit(view) ? view->rules.least : ls_view_unit(view);
}

bool ls_view_is_short(const ls_view *view)
{
    return ls_view_alive(view) < ls_view_least(view);
}

/* Example: 4 workers; 0, 1 and 2 wait, 3 is AWAY: not yet, it will come. 3 is OUT: complete. All that
 * are left wait, but 3 is DONE and the others were no ranks: the work is done, and there is none. */
bool ls_view_complete(const ls_view *view)
{
    int waiting = view->count[LS_VIEW_WAITS], idle = 0;
    bool done = view->count[LS_VIEW_DONE] > 0;

    for (int i = 0; i < view->workers && done; i++)
        idle += view->member[i].state == LS_VIEW_WAITS && view->member[i].rank < 0;
    if (done && waiting == idle)
        return false; /* joiners and spares, and the work is done */
    return waiting > 0 && waiting == ls_view_alive(view);
}
