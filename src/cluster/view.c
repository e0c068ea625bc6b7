/* view.c -- the rules of membership.
 *
 * Base step: the highest that a survivor has in its state. A step is in a state only when the sum
 * of all gradients was complete, so it is the step of the undisturbed run, and those who are behind
 * take it over; nobody rolls back.
 *
 * When does healing make no sense? When the same would happen again: the user's mistakes (settings,
 * data, numbers that are not finite) and everything that goes wrong with a record before training
 * began; the same error twice without a step in between; three views without a step. */
#include "cluster/view.h"

#include <signal.h>
#include <string.h>

void ls_view_init(ls_view *view, int workers, ls_view_rules rules)
{
    LS_BUG_IF(workers < 1 || workers > LS_VIEW_WORKERS, "%d workers", workers);
    *view = (ls_view){.rules = rules, .workers = workers, .reached = -1};
    for (int i = 0; i < workers; i++)
        view->member[i].rank = -1;
}

int ls_view_add(ls_view *view, int workers, bool needed)
{
    int first = view->workers;

    LS_BUG_IF(workers < 1 || workers > LS_VIEW_WORKERS - first, "%d more workers", workers);
    view->workers += workers;
    for (int i = first; i < view->workers; i++) {
        view->member[i].state = needed ? LS_VIEW_AWAY : LS_VIEW_NEW;
        view->member[i].restarts = 0;
        view->member[i].rank = -1;
        view->member[i].guest = true;
        view->member[i].report = (ls_view_report){.have = -1, .reached = -1};
    }
    return first;
}

void ls_view_remove(ls_view *view, int first, int workers)
{
    LS_BUG_IF(first < 0 || first + workers > view->workers, "workers %d and %d", first, workers);
    memmove(&view->member[first], &view->member[first + workers],
            (size_t)(view->workers - first - workers) * sizeof view->member[0]);
    view->workers -= workers;
}

void ls_view_reports(ls_view *view, int worker, const ls_view_report *report)
{
    view->member[worker].state = LS_VIEW_WAITS;
    view->member[worker].report = *report;
}

void ls_view_readies(ls_view *view, int worker)
{
    if (view->member[worker].state != LS_VIEW_IN)
        return;
    view->member[worker].guest = false;
    if (view->member[worker].rank == 0)
        view->begun = true;
}

void ls_view_leaves(ls_view *view, int worker)
{
    view->member[worker].state = LS_VIEW_DONE;
}

static int count(const ls_view *v, ls_view_state state)
{
    int n = 0;

    for (int i = 0; i < v->workers; i++)
        n += v->member[i].state == state;
    return n;
}

int ls_view_alive(const ls_view *view)
{
    return count(view, LS_VIEW_AWAY) + count(view, LS_VIEW_WAITS) + count(view, LS_VIEW_IN);
}

static int unit_of(const ls_view *v)
{
    return v->rules.unit > 1 ? v->rules.unit : 1;
}

static int waiting_guests(const ls_view *v)
{
    int n = 0;

    for (int i = 0; i < v->workers; i++)
        n += v->member[i].state == LS_VIEW_WAITS && v->member[i].guest;
    return n;
}

bool ls_view_has_guests(const ls_view *view)
{
    int unit = unit_of(view), in = count(view, LS_VIEW_IN);

    return waiting_guests(view) > 0 && count(view, LS_VIEW_NEW) == 0 &&
           (in + count(view, LS_VIEW_WAITS)) / unit > in / unit;
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
static bool hopeless(const ls_view *v, const ls_view_end *end)
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

ls_view_verdict ls_view_loses(ls_view *view, int worker, const ls_view_end *end)
{
    ls_view *v = view;
    bool guest = v->member[worker].guest;
    bool stranger = guest && v->member[worker].rank < 0; /* nobody has counted on it */
    bool restart =
        !guest && !end->asked && !end->gone && v->member[worker].restarts < v->rules.restarts;

    v->first_lost |= v->member[worker].rank == 0;
    v->member[worker].rank = -1;
    v->member[worker].state = LS_VIEW_OUT;
    if (hopeless(v, end) && !guest)
        return LS_VIEW_STOP;
    if (count(v, LS_VIEW_DONE) > 0) /* nobody ends well before all have done their work */
        return end->error && !guest ? LS_VIEW_STOP : LS_VIEW_DROP;
    if (!restart && (ls_view_alive(v) == 0 || (ls_view_is_short(v) && !end->asked)))
        return LS_VIEW_STOP;
    if (end->error && !guest)
        note_error(v, end->error);
    v->restarted += restart;
    v->lost += !restart && !stranger;
    if (!restart)
        return LS_VIEW_DROP;
    v->member[worker].restarts++;
    v->member[worker].state = LS_VIEW_AWAY;
    return LS_VIEW_RESTART;
}

bool ls_view_complete(const ls_view *view)
{
    int waiting = count(view, LS_VIEW_WAITS), idle = 0;

    for (int i = 0; i < view->workers; i++)
        idle += view->member[i].state == LS_VIEW_WAITS && view->member[i].rank < 0;
    if (waiting == idle && count(view, LS_VIEW_DONE) > 0)
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
        v->barren = 0;
        v->again[0] = '\0';
    } else if (v->generation > 0) {
        v->barren++;
    }
    v->reached = reached > v->reached ? reached : v->reached;
    if (v->again[0]) {
        ls_fail(LS_EBARREN, "the same error came twice after step %lld: %s",
                (long long)(v->reached < 0 ? 0 : v->reached), v->again);
        ls_err_hint("Another start would end so again: remove its cause first.");
        return LS_EBARREN;
    }
    if (v->barren < LS_VIEW_BARREN)
        return LS_OK;
    ls_fail(LS_EBARREN, "gave up after %d recoveries without a new step: step %lld was never done",
            LS_VIEW_BARREN, (long long)(v->reached < 0 ? 1 : v->reached + 1));
    ls_err_hint("Another start would probably end so again: look for the cause first.");
    return LS_EBARREN;
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

/* Who of those that wait will be in the next view: as many as make whole models, of each part alike
 * as far as they have it, then the others in order. The first view has all, whose number the ranks
 * judge by themselves. */
static void pick(const ls_view *v, bool in[LS_VIEW_WORKERS])
{
    int unit = unit_of(v), left = count(v, LS_VIEW_WAITS);
    int of_part[LS_VIEW_WORKERS + 1] = {0};

    if (v->generation > 0)
        left = left / unit * unit;
    int each = left / unit;
    for (int i = 0; i < v->workers; i++) {
        int part = v->member[i].report.part;
        in[i] = v->member[i].state == LS_VIEW_WAITS && unit > 1 && part > 0 &&
                part <= LS_VIEW_WORKERS && left > 0 && of_part[part] < each;
        left -= in[i];
        of_part[in[i] ? part : 0]++;
    }
    for (int i = 0; i < v->workers && left > 0; i++) {
        bool more = v->member[i].state == LS_VIEW_WAITS && !in[i];
        in[i] |= more;
        left -= more;
    }
}

ls_status ls_view_next(ls_view *view, ls_view_plan *plan_out)
{
    ls_view *v = view;
    bool chosen[LS_VIEW_WORKERS];
    ls_status st = check_progress(v);

    LS_BUG_IF(!ls_view_complete(v), "a view of some of those who are alive");
    if (st != LS_OK)
        return st;
    pick(v, chosen);
    *plan_out = (ls_view_plan){.generation = ++v->generation,
                               .reached = v->reached,
                               .first_new = v->first_lost,
                               .restarted = v->restarted,
                               .lost = v->lost};
    for (int i = 0; i < v->workers; i++) {
        bool in = chosen[i];
        v->member[i].rank = in ? plan_out->ranks++ : -1;
        plan_out->joined += in && v->member[i].guest;
        if (in)
            v->member[i].state = LS_VIEW_IN;
    }
    find_base(v, plan_out);
    v->first_lost = false;
    v->restarted = v->lost = 0;
    return LS_OK;
}
