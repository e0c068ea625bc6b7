/* recovery_events.c -- what a run reports of ranks that were lost, and of a coordinator that was.
 *
 * The first rank alone writes events. When it is another process than before, it goes on where
 * events.jsonl ends: the last step there may be behind the state that the ranks have in memory.
 *
 *     events.jsonl ends with step 7, the ranks go on after step 8     the event of step 8 comes first
 *     ... with step 7, all load the checkpoint of step 5              "2 steps are done again" */
#include "train/report/recovery_events.h"

#include "base/log.h"
#include "train/replica/recover.h"
#include "train/sdc/sdc_compare.h"

void ls_recovery_events_note(ls_session *s)
{
    char text[LS_WORKER_CHANNEL_CAUSE];
    int64_t took_ns;

    if (!s->args.rejoin || !ls_worker_channel_note(text, sizeof text, &took_ns) || s->mesh.rank > 0)
        return;
    const ls_event_recovery recovery = {.generation = s->args.view.plan.generation,
                                        .ranks = s->args.view.plan.ranks,
                                        .source = "memory",
                                        .from = "log",
                                        .seconds = (double)took_ns / 1e9};
    ls_session_emit(s, &(ls_event){.kind = LS_EVENT_INCIDENT,
                                   .incident = {.step = s->step_number,
                                                .kind = "coordinator",
                                                .action = "training went on; no step was lost",
                                                .text = text,
                                                .recovery = &recovery}});
}

/* From a checkpoint: steps behind it that a rank has seen done, or that are in the events. */
static int64_t done_again(const ls_session *s)
{
    int64_t seen = ls_max_i64(s->args.view.plan.reached, ls_run_folder_last_step(s));

    return ls_max_i64(0, seen - s->step_number);
}

void ls_recovery_events_view(ls_session *s)
{
    const ls_worker_channel_view *view = &s->args.view;
    const ls_view_plan *plan = &view->plan;
    bool memory = ls_recover_in_memory(s);
    ls_event_recovery recovery = {.generation = plan->generation,
                                  .ranks = plan->ranks,
                                  .restarted = plan->restarted,
                                  .lost = plan->lost,
                                  .joined = plan->joined,
                                  .source = memory               ? "memory"
                                            : s->step_number > 0 ? "checkpoint"
                                                                 : "start",
                                  .from = memory               ? s->recovery.source
                                          : s->step_number > 0 ? "disk"
                                                               : "start",
                                  .redone = memory ? 0 : done_again(s),
                                  .detection_ms = (double)view->noticed_ns / 1e6,
                                  .seconds = (double)(ls_time_now_ns() - view->lost_ns) / 1e9};
    bool came = plan->joined > 0 && plan->restarted + plan->lost == 0;
    char action[160];
    size_t n;

    if (s->mesh.rank > 0 || view->lost_ns == 0)
        return;
    n = (size_t)snprintf(action, sizeof action, "%s%s; %d rank%s after step %lld, from %s%s",
                         plan->restarted ? "started again" : "went on without it",
                         plan->restarted && plan->lost ? ", went on without another" : "",
                         plan->ranks, plan->ranks == 1 ? " goes on" : "s go on",
                         (long long)s->step_number, memory ? "the memory of a " : "",
                         memory               ? s->recovery.source
                         : s->step_number > 0 ? "the last checkpoint"
                                              : "the start");
    if (came)
        n = (size_t)snprintf(action, sizeof action, "%d joined; %d rank%s after step %lld",
                             plan->joined, plan->ranks, plan->ranks == 1 ? " goes on" : "s go on",
                             (long long)s->step_number);
    else if (plan->restarted + plan->lost == 0)
        n = (size_t)snprintf(action, sizeof action, "%d ranks met again after step %lld",
                             plan->ranks, (long long)s->step_number);
    if (recovery.redone > 0)
        snprintf(action + n, sizeof action - n, "; %lld step%s done again",
                 (long long)recovery.redone, recovery.redone == 1 ? " is" : "s are");
    ls_log(came ? LS_LOG_INFO : LS_LOG_WARN, "%s: %s (%.2f s)", view->cause, action,
           recovery.seconds);
    ls_session_emit(
        s, &(ls_event){.kind = LS_EVENT_INCIDENT,
                       .incident = {.step = s->step_number,
                                    .kind = came                                 ? "joined"
                                            : ls_sdc_compare_caused(view->cause) ? "corrupt"
                                                                                 : "lost",
                                    .action = action,
                                    .text = view->cause,
                                    .recovery = &recovery}});
}
