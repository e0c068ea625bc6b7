/* view.c -- the rules of membership; the states of a worker are in view.h.
 *
 *   NEW, AWAY --ls_view_reports--> WAITS --ls_view_next--> IN --ls_view_leaves--> DONE
 *        ^                           ^                      |
 *        |                           +---ls_view_reports----+
 *        +--ls_view_loses, restart-- (WAITS, IN) --ls_view_loses, drop--> OUT
 *
 * Every arrow goes through enter(), which keeps the number of workers in each state.
 *
 * The base step of a view is the highest step that a survivor has in its state. A step gets into a
 * state only when the sum of all gradients was complete, so it is the step of the undisturbed run:
 * ranks that are behind copy it, and nobody rolls back.
 *
 *     worker   0    1    2             worker 1 dies in step 12, after worker 0 has applied it
 *     has     12    -   11      ->     base 12, source worker 0; 1 (again) and 2 copy from it
 *
 * Healing is given up when the same would happen again: after a mistake of the user (settings,
 * data, numbers that are not finite) and after any error before training began; after the same
 * error twice without a step in between; after three views without a step. */
#include "cluster/member/view.h"

#include <signal.h>
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

/* Every change of a state: the numbers of those in each are kept, because they are asked for after
 * every word of thousands of nodes. */
static void enter(ls_view *v, int worker, ls_view_state state)
{
    ls_view_member *m = &v->member[worker];

    v->waiting_guests += m->guest * ((state == LS_VIEW_WAITS) - (m->state == LS_VIEW_WAITS));
    v->count[m->state]--;
    v->count[state]++;
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
            .state = state, .rank = -1, .guest = true, .report = {.have = -1, .reached = -1}};
    return first;
}

void ls_view_remove(ls_view *view, int first, int workers)
{
    LS_BUG_IF(first < 0 || first + workers > view->workers, "workers %d and %d", first, workers);
    for (int i = first; i < first + workers; i++) {
        enter(view, i, LS_VIEW_OUT);
        view->count[LS_VIEW_OUT]--;
    }
    memmove(&view->member[first], &view->member[first + workers],
            (size_t)(view->workers - first - workers) * sizeof view->member[0]);
    view->workers -= workers;
}

/* Ranks are those of the newest view that somebody knows of. */
void ls_view_restores(ls_view *view, const ls_view_past *past)
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

void ls_view_stood(ls_view *view, int worker, int rank, bool out)
{
    view->member[worker].rank = rank;
    if (out)
        enter(view, worker, LS_VIEW_OUT);
    else if (rank == 0)
        view->first_lost = false;
}

void ls_view_reports(ls_view *view, int worker, const ls_view_report *report)
{
    enter(view, worker, LS_VIEW_WAITS);
    view->member[worker].report = *report;
    if (report->unit > 0)
        view->rules.unit = report->unit;
}

/* The first rank is ready when all are: it leads the collectives of the start. So from here on the job
 * has begun, and a spare's state is older than that of the ranks. */
void ls_view_readies(ls_view *view, int worker)
{
    if (view->member[worker].state != LS_VIEW_IN)
        return;
    view->member[worker].guest = false;
    if (view->member[worker].rank > 0)
        return;
    view->begun = true;
    /* Not when it was planned: it may have come to nothing. */
    view->first_lost = false;
    for (int i = 0; i < view->workers; i++) /* the others go on from what a spare has */
        if (view->member[i].state == LS_VIEW_WAITS && view->member[i].rank < 0)
            view->member[i].report.have = -1;
}

void ls_view_leaves(ls_view *view, int worker)
{
    enter(view, worker, LS_VIEW_DONE);
}

int ls_view_alive(const ls_view *view)
{
    return view->count[LS_VIEW_AWAY] + view->count[LS_VIEW_WAITS] + view->count[LS_VIEW_IN];
}

static int unit_of(const ls_view *v)
{
    return v->rules.unit > 1 ? v->rules.unit : 1;
}

/* Guests are met only if a model more results: with unit 2 and 4 ranks in the view one guest makes
 * 5 / 2 = 4 / 2, and waits for another one. */
bool ls_view_has_guests(const ls_view *view)
{
    int unit = unit_of(view), in = view->count[LS_VIEW_IN];

    return view->waiting_guests > 0 && view->count[LS_VIEW_NEW] == 0 &&
           (in + view->count[LS_VIEW_WAITS]) / unit > in / unit;
}

int ls_view_least(const ls_view *view)
{
    return view->rules.least > unit_of(view) ? view->rules.least : unit_of(view);
}

bool ls_view_is_short(const ls_view *view)
{
    return ls_view_alive(view) < ls_view_least(view);
}

/* An end after which the job would only end so again. */
static bool is_final(const ls_view *v, const ls_view_end *end)
{
    if (end->signal)
        return end->signal == SIGPIPE; /* nobody reads the results */
    if (!end->error)
        return false;
    switch (end->error->code) {
    case LS_EFAIL:
    case LS_EIO:
    case LS_ENOMEM:
    case LS_EDEADLINE:
        return !v->begun;
    default:
        return true;
    }
}

static void note_error(ls_view *v, const ls_err_record *error)
{
    const char *text = error->text;

    if (*text && strcmp(v->error, text) == 0)
        snprintf(v->again, sizeof v->again, "%s", text);
    snprintf(v->error, sizeof v->error, "%s", text);
}

/* In order: an end after which another start makes no sense stops the job; after somebody has ended
 * well, nobody is started again; too few are left; otherwise it is started again while it has starts
 * left, or dropped. A guest that fails is its own affair, whatever it says. */
ls_view_verdict ls_view_loses(ls_view *view, int worker, const ls_view_end *end)
{
    ls_view *v = view;
    bool guest = v->member[worker].guest;
    bool uncounted = guest && v->member[worker].rank < 0; /* nobody has counted on it */
    bool restart =
        !guest && !end->asked && !end->gone && v->member[worker].restarts < v->rules.restarts;

    v->first_lost |= v->member[worker].rank == 0;
    v->member[worker].rank = -1;
    enter(v, worker, LS_VIEW_OUT);
    if (is_final(v, end) && !guest)
        return LS_VIEW_STOP;
    if (v->count[LS_VIEW_DONE] > 0) /* nobody ends well before all have done their work */
        return end->error && !guest ? LS_VIEW_STOP : LS_VIEW_DROP;
    if (!restart && (ls_view_alive(v) == 0 || (ls_view_is_short(v) && !end->asked)))
        return LS_VIEW_STOP;
    if (end->error && !guest)
        note_error(v, end->error);
    v->restarted += restart;
    v->lost += !restart && !uncounted;
    if (!restart)
        return LS_VIEW_DROP;
    v->member[worker].restarts++;
    enter(v, worker, LS_VIEW_AWAY);
    return LS_VIEW_RESTART;
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
        return false; /* guests and spares, and the work is done */
    return waiting > 0 && waiting == ls_view_alive(view);
}

/* Whether the job comes nearer to its end. */
static ls_status check_progress(ls_view *v)
{
    int64_t reached = -1;

    for (int i = 0; i < v->workers; i++)
        if (v->member[i].state == LS_VIEW_WAITS && v->member[i].report.reached > reached)
            reached = v->member[i].report.reached;
    if (reached > v->reached) {
        v->stepless = 0;
        v->again[0] = '\0';
    } else if (v->generation > 0) {
        v->stepless++;
    }
    v->reached = reached > v->reached ? reached : v->reached;
    if (v->again[0]) {
        ls_fail(LS_ENORETRY, "the same error came twice after step %lld: %s",
                (long long)(v->reached < 0 ? 0 : v->reached), v->again);
        ls_err_hint("Another start would end so again: remove its cause first.");
        return LS_ENORETRY;
    }
    if (v->stepless < LS_VIEW_STEPLESS)
        return LS_OK;
    ls_fail(LS_ENORETRY, "gave up after %d recoveries without a new step: step %lld was never done",
            LS_VIEW_STEPLESS, (long long)(v->reached < 0 ? 1 : v->reached + 1));
    ls_err_hint("Another start would probably end so again: look for the cause first.");
    return LS_ENORETRY;
}

/* The state to go on with. */
static void find_base(const ls_view *v, ls_view_plan *plan)
{
    plan->base = plan->source = -1;
    for (int i = 0; i < v->workers; i++)
        if (v->member[i].rank >= 0 && v->member[i].report.have > plan->base) {
            plan->base = v->member[i].report.have;
            plan->source = v->member[i].rank;
        }
    plan->met = plan->base;
    for (int i = 0; i < v->workers; i++) {
        const ls_view_report *r = &v->member[i].report;
        if (v->member[i].rank < 0)
            continue;
        plan->spread |= r->have != plan->base;
        if (r->have >= 0 && r->met < plan->met)
            plan->met = r->met;
    }
    if (plan->first_new && plan->met == plan->base && plan->base > 0)
        plan->met--; /* what it did last may not have been finished */
}

/* The most steps in a state of a worker that waits. */
static int64_t farthest(const ls_view *v)
{
    int64_t most = -1;

    for (int i = 0; i < v->workers; i++)
        if (v->member[i].state == LS_VIEW_WAITS && v->member[i].report.have > most)
            most = v->member[i].report.have;
    return most;
}

/* More of them, in order, as many as are left: those that have a whole state of this many steps;
 * -1: anybody. Returns how many are left then. */
static int pick_more(ls_view *v, int left, int64_t have)
{
    for (int i = 0; i < v->workers && left > 0; i++) {
        bool more = v->member[i].state == LS_VIEW_WAITS && !v->member[i].chosen &&
                    (have < 0 || v->member[i].report.have == have);
        v->member[i].chosen |= more;
        left -= more;
    }
    return left;
}

static ls_status too_few(const ls_view *v)
{
    ls_fail(LS_EFAIL, "%d of the %d ranks that have a model or its sequences together are left",
            v->count[LS_VIEW_WAITS], unit_of(v));
    ls_err_hint("Start the run again: it goes on from its newest checkpoint, with any number of "
                "ranks that its mesh allows.");
    return LS_EFAIL;
}

/* Which of the workers that wait will be in the next view: as many as make whole models, the same
 * number of each part as far as there are, then those that have come farthest, then the others in
 * order. The first view has all, whose number the ranks judge by themselves. */
static ls_status pick(ls_view *v)
{
    int unit = unit_of(v), left = v->count[LS_VIEW_WAITS];

    if (v->generation > 0)
        left = left / unit * unit;
    if (left == 0)
        return too_few(v);
    int each = left / unit;
    int *of_part = ls_mem_array((size_t)v->workers + 1, sizeof *of_part);
    if (!of_part)
        return LS_ENOMEM;
    for (int i = 0; i < v->workers; i++) {
        ls_view_member *m = &v->member[i];
        int part = m->report.part;
        m->chosen = m->state == LS_VIEW_WAITS && unit > 1 && part > 0 && part <= v->workers &&
                    left > 0 && of_part[part] < each;
        left -= m->chosen;
        of_part[m->chosen ? part : 0]++;
    }
    left = pick_more(v, left, farthest(v));
    (void)pick_more(v, left, -1);
    ls_mem_free(of_part);
    return LS_OK;
}

ls_status ls_view_next(ls_view *view, ls_view_plan *plan_out)
{
    ls_view *v = view;
    ls_status st = check_progress(v);

    LS_BUG_IF(!ls_view_complete(v), "a view of some of the living workers");
    if (st == LS_OK)
        st = pick(v);
    if (st != LS_OK)
        return st;
    *plan_out = (ls_view_plan){.generation = ++v->generation,
                               .reached = v->reached,
                               .first_new = v->first_lost,
                               .restarted = v->restarted,
                               .lost = v->lost};
    for (int i = 0; i < v->workers; i++) {
        bool in = v->member[i].chosen;
        v->member[i].rank = in ? plan_out->ranks++ : -1;
        plan_out->joined += in && v->member[i].guest;
        if (in)
            enter(v, i, LS_VIEW_IN);
    }
    find_base(v, plan_out);
    v->restarted = v->lost = 0;
    return LS_OK;
}
