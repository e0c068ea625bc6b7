/* recover.c -- from the failure of a step to the first step of the next view.
 *
 * A death in short, rank 1 of 3, mesh.zero: 1 (the state: README.md of this room):
 *
 *     rank 0, 2   a collective fails: LS_EPEER                                  ls_loop_run
 *                 state kept; step, exchange, loader closed; report             ls_recover_rejoin
 *     agent       view 2: ranks 0, 1 (started again), 2                         cluster/member
 *     0, 1, 2     what is there, of which step? a step is opened                ls_session_regroup
 *                 loss, loss scale and state of the base step to all            ls_recover_spread
 *                 copies are confirmed, the incident is an event                ls_recover_tell
 *
 * The state is never in danger while the new view is built: it leaves the old step before that is
 * closed, and what was kept stays until all ranks have theirs. */
#include "train/replica/recover.h"

#include <limits.h>
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "layout/replicas.h"
#include "train/replica/replica_store.h"
#include "train/sdc/sdc_replay.h"
#include "train/sdc/sdc_compare.h"
#include "train/session/sync.h"
#include "train/save/sharded_save.h"
#include "train/save/save.h"
#include "train/session/cp_group.h"
#include "train/session/model_groups.h"

enum { REVIVE_S = 600 };

/* Everything that was made for the ranks of the view that ends; the state is kept. */
static void close_view(ls_session *s)
{
    if (s->stream) /* that of a tp group fails with it */
        ls_stream_revive(s->stream, ls_time_now_ns() + REVIVE_S * LS_NS_PER_S);
    ls_loader_close(s->data.loader);
    if (ls_save_copied(s) != LS_OK) /* what is saved in the background is read until then */
        ls_log(LS_LOG_WARN, "a save is not done with the state: %s", ls_err_last()->text);
    ls_sharded_save_close(s);
    ls_batch_slice_close(s);
    ls_decode_close(s->samples.decode);
    ls_pass_close(s->samples.pass);
    ls_sync_close(s);
    ls_replica_keep(s);
    ls_sdc_replay_close(s);
    ls_step_close(s->step);
    ls_packed_weights_close(s->packs);
    ls_dp_close(s->dp);
    ls_model_groups_close(s);
    ls_cp_group_close(s);
    ls_mem_free(s->places);
    s->data.loader = NULL;
    s->data.slice = (ls_batch_slice){.set = NULL};
    s->samples.decode = NULL;
    s->samples.pass = NULL;
    s->step = NULL;
    s->recovery.has_state = false;
    s->packs = NULL;
    s->dp = NULL;
    s->places = NULL;
    ls_mem_free(s->gpu.cards);
    s->gpu.cards = NULL;
}

bool ls_recover_regroups(const ls_session *session, int64_t steps_in_view)
{
    const ls_session *s = session;

    return s->args.rejoin && steps_in_view > 0 && steps_in_view >= s->run->heal.grow_steps &&
           ls_replica_could(s) && ls_heal_regroups(s->args.view.plan.generation);
}

void ls_recover_notes(ls_session *session)
{
    ls_session *s = session;
    char text[LS_HEAL_CAUSE];
    int64_t took_ns;

    if (!s->args.rejoin || !ls_heal_note(text, sizeof text, &took_ns) || s->mesh.rank > 0)
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

ls_status ls_recover_rejoin(ls_session *session, int64_t met)
{
    ls_session *s = session;
    ls_err_record why = *ls_err_last();

    s->progress.met = met;
    close_view(s);
    s->sdc.distrusted = false;
    ls_status st = ls_fault_pass(LS_FAULT_AT_REPORT);
    if (st != LS_OK)
        return st;
    ls_err_adopt(&why);
    s->recovery.source = "replica";
    const ls_view_report report = {.have = ls_replica_step(s),
                                   .reached = s->step_number,
                                   .met = met,
                                   .part = ls_replica_part(s) + 1,
                                   .unit = s->run ? ls_replicas_unit(s->run) : 0};
    return s->args.rejoin(s->args.rejoin_context, &report, &s->args.view, &s->args.comm);
}

/* What a rank knows of the run beside the state. */
typedef struct progress {
    double loss, val_loss, seconds;
    ls_step_result last;
    ls_loss_scaler scaler;
    int64_t nonfinite_step;
} progress;

ls_status ls_recover_spread(ls_session *session)
{
    ls_session *s = session;
    const ls_view_plan *plan = &s->args.view.plan;
    progress p = {.loss = s->progress.loss,
                  .val_loss = s->progress.val_loss,
                  .seconds = s->progress.seconds,
                  .last = s->progress.last,
                  .scaler = s->scaler,
                  .nonfinite_step = s->progress.nonfinite_step};
    ls_status st = LS_OK;

    ls_fault_reach(plan->base, plan->generation);
    LS_TRY(st, ls_fault_pass(LS_FAULT_AT_TRANSFER), out);
    s->recovery.has_state =
        s->recovery.has_state && (!plan->spread || s->step_number == plan->base);
    if (s->dp)
        LS_TRY(st, ls_dp_tell(s->dp, plan->source, &p, sizeof p), out);
    s->progress.loss = p.loss;
    s->progress.val_loss = p.val_loss;
    s->progress.seconds = p.seconds;
    s->progress.last = p.last;
    s->scaler = p.scaler;
    s->progress.nonfinite_step = p.nonfinite_step;
    LS_TRY(st, ls_replica_restore(s), out);
    s->step_number = plan->base;
    s->recovery.has_state = true;
out:
    return st;
}

int64_t ls_recover_last_told(const ls_session *session)
{
    static const char mark[] = "{\"event\":\"step\",\"step\":";
    enum { TAIL = 1 << 16 };
    char path[PATH_MAX], *text = ls_mem_alloc(TAIL + 1);
    int64_t step = 0;

    snprintf(path, sizeof path, "%s/events.jsonl", session->run->out);
    FILE *f = text ? fopen(path, "re") : NULL;
    if (f && fseek(f, 0, SEEK_END) == 0) {
        long bytes = ftell(f), from = bytes > TAIL ? bytes - TAIL : 0;
        if (fseek(f, from, SEEK_SET) == 0) {
            text[fread(text, 1, TAIL, f)] = '\0';
            for (const char *at = text; (at = strstr(at, mark)); at += sizeof mark - 1)
                step = strtoll(at + sizeof mark - 1, NULL, 10);
        }
    }
    if (f)
        fclose(f);
    ls_mem_free(text);
    return step;
}

/* From a checkpoint: steps behind it that a rank has seen done, or that are in the events. */
static int64_t done_again(const ls_session *s)
{
    int64_t seen = ls_max_i64(s->args.view.plan.reached, ls_recover_last_told(s));

    return ls_max_i64(0, seen - s->step_number);
}

void ls_recover_tell(ls_session *session)
{
    ls_session *s = session;
    const ls_heal_view *view = &s->args.view;
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
        n = (size_t)snprintf(action, sizeof action, "%d joined; %d ranks go on after step %lld",
                             plan->joined, plan->ranks, (long long)s->step_number);
    else if (plan->restarted + plan->lost == 0)
        n = (size_t)snprintf(action, sizeof action, "%d ranks met again after step %lld",
                             plan->ranks, (long long)s->step_number);
    if (recovery.redone > 0)
        snprintf(action + n, sizeof action - n, "; %lld steps are done again",
                 (long long)recovery.redone);
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
