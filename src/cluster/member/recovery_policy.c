/* recovery_policy.c -- decides after a death: restart, go on with fewer, take spares, or stop.
 *
 *     a worker ends     ls_recovery_policy_decide()      restart it, go on without it, or stop the job
 *     all others wait   ls_recovery_policy_next_view()   the ranks of the next view, spares among
 *                                                        them, and the step to go on from
 *
 * The base step of a view is the highest step that a survivor has in its state. A step gets into a
 * state only when the sum of all gradients was complete, so it is the step of the undisturbed run:
 * ranks that are behind copy it, and no rank rolls back. With ZeRO, pipelines, tensor or expert
 * parallelism no rank has a whole state: the base stays -1 here, and the ranks choose it
 * (train/replica/replica_store.c).
 *
 *     worker   0    1    2             worker 1 dies in step 12, after worker 0 has applied it
 *     has     12    -   11      ->     base 12, source worker 0; 1 (again) and 2 copy from it
 *
 * The job stops when a restart would fail the same way: after a mistake of the user (settings,
 * data, numbers that are not finite), after any error before training began, after the same error
 * twice without a new step, and after three views without a new step. */
#include "cluster/member/recovery_policy.h"

#include <signal.h>
#include <string.h>
#include "base/mem.h"
#include "cluster/member/view_impl.h"

/* Whether a restart would end the same way. */
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

/* In order: a final end stops the job; once a worker has finished, no worker is restarted; too few
 * workers stop the job; a worker with restarts left is restarted; any other is dropped. A joiner
 * that fails never stops the job. */
ls_view_verdict ls_recovery_policy_decide(ls_view *view, int worker, const ls_view_end *end)
{
    ls_view *v = view;
    bool joiner = v->member[worker].joiner;
    bool uncounted = joiner && v->member[worker].rank < 0; /* it was in no view */
    bool restart =
        !joiner && !end->asked && !end->gone && v->member[worker].restarts < v->rules.restarts;

    v->first_lost |= v->member[worker].rank == 0;
    v->member[worker].rank = -1;
    ls_view_enter(v, worker, LS_VIEW_OUT);
    if (is_final(v, end) && !joiner)
        return LS_VIEW_STOP;
    if (v->count[LS_VIEW_DONE] > 0) /* a worker finishes only after the last step */
        return end->error && !joiner ? LS_VIEW_STOP : LS_VIEW_DROP;
    if (!restart && (ls_view_alive(v) == 0 || (ls_view_is_short(v) && !end->asked)))
        return LS_VIEW_STOP;
    if (end->error && !joiner)
        note_error(v, end->error);
    v->restarted += restart;
    v->lost += !restart && !uncounted;
    if (!restart)
        return LS_VIEW_DROP;
    v->member[worker].restarts++;
    ls_view_enter(v, worker, LS_VIEW_AWAY);
    return LS_VIEW_RESTART;
}

/* LS_ENORETRY: the last views made no progress. */
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
        ls_err_hint("A restart would fail the same way: remove the cause first.");
        return LS_ENORETRY;
    }
    if (v->stepless < LS_VIEW_STEPLESS)
        return LS_OK;
    ls_fail(LS_ENORETRY, "gave up after %d recoveries without a new step: step %lld was never done",
            LS_VIEW_STEPLESS, (long long)(v->reached < 0 ? 1 : v->reached + 1));
    ls_err_hint("A restart would probably fail the same way: find the cause first.");
    return LS_ENORETRY;
}

/* The base step, the rank that gives its state, and whether others need it. */
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
        plan->met--; /* the lost first rank may not have finished its save or validation */
}

/* The highest step in the state of a waiting worker. */
static int64_t farthest(const ls_view *v)
{
    int64_t most = -1;

    for (int i = 0; i < v->workers; i++)
        if (v->member[i].state == LS_VIEW_WAITS && v->member[i].report.have > most)
            most = v->member[i].report.have;
    return most;
}

/* Choose up to `left` more of the waiting workers, in order: those whose state has `have` steps, or
 * any (-1). Returns how many are still missing. */
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
    int left = v->count[LS_VIEW_WAITS];

    ls_fail(LS_EFAIL, "%d rank%s left, but one replica of the model needs %d", left,
            left == 1 ? " is" : "s are", ls_view_unit(v));
    ls_err_hint("Start the run again: it goes on from its newest checkpoint, with any number of "
                "ranks that its mesh allows.");
    return LS_EFAIL;
}

/* Choose the workers of the next view: the largest multiple of `unit`; first the same number for
 * each part of the model, then those with the highest step, then by number. The first view takes
 * all: the ranks themselves judge their number. */
static ls_status pick(ls_view *v)
{
    int unit = ls_view_unit(v), left = v->count[LS_VIEW_WAITS];

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

ls_status ls_recovery_policy_next_view(ls_view *view, ls_view_plan *plan_out)
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
        plan_out->joined += in && v->member[i].joiner;
        if (in)
            ls_view_enter(v, i, LS_VIEW_IN);
    }
    find_base(v, plan_out);
    v->restarted = v->lost = 0;
    return LS_OK;
}
