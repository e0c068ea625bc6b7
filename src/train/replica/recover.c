/* recover.c -- from the failure of a step to the first step of the next view.
 *
 * A death in short, rank 1 of 3, mesh.zero: 1 (the state: README.md of this room):
 *
 *     rank 0, 2   a collective fails: LS_EPEER                         one_step (train/loop.c)
 *                 state kept; step, exchange, loader closed; report    ls_recover_rejoin
 *     agent       view 2: ranks 0, 1 (started again), 2                recovery_policy.c
 *     0, 1, 2     ranks choose the base step; a new step opens         ls_session_regroup
 *                 loss, loss scale and state of the base step to all   ls_recover_restore_state
 *                 copies are confirmed                                 ls_replica_send_begin
 *                 the incident is an event                             ls_recovery_events_view
 *
 * The state always has an owner while the new view is built: it is taken out of the old step before
 * that closes, and what was kept is freed only when all ranks have their part. */
#include "train/replica/recover.h"

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "layout/replicas.h"
#include "train/replica/replica_store.h"
#include "train/sdc/sdc_replay.h"
#include "train/session/sync.h"
#include "train/save/sharded_save.h"
#include "train/save/save.h"
#include "train/session/cp_group.h"
#include "train/session/model_groups.h"

/* How long the device may take to end what was queued for the old view. */
enum { REVIVE_S = 600 };

ls_status ls_recover_rejoin(ls_session *s, int64_t met)
{
    ls_err_record why = *ls_err_last();

    s->progress.met = met;
    if (s->stream) /* the stream of a tp rank fails together with its group */
        ls_stream_revive(s->stream, ls_time_now_ns() + REVIVE_S * LS_NS_PER_S);
    if (ls_save_copied(s) != LS_OK) /* a save in the background may still read the state */
        ls_log(LS_LOG_WARN, "a save in the background has not finished copying the state: %s",
               ls_err_last()->text);
    ls_sharded_save_close(s);
    ls_replica_keep(s);
    ls_recover_close_view(s);
    s->sdc.distrusted = false;
    ls_status st = ls_fault_pass(LS_FAULT_AT_REPORT);
    if (st != LS_OK)
        return st;
    ls_err_adopt(&why); /* the report carries the error that ended the view */
    s->recovery.source = "replica";
    const ls_view_report report = {.have = ls_replica_step(s),
                                   .reached = s->step_number,
                                   .met = met,
                                   .part = ls_replica_part(s) + 1,
                                   .unit = s->run ? ls_replicas_unit(s->run) : 0};
    return s->args.rejoin(s->args.rejoin_context, &report, &s->args.view, &s->args.comm);
}

void ls_recover_close_view(ls_session *s)
{
    ls_loader_close(s->data.loader);
    ls_batch_slice_close(s);
    ls_decode_close(s->samples.decode);
    ls_pass_close(s->samples.pass);
    ls_sync_close(s);
    ls_sdc_replay_close(s);
    ls_step_close(s->step);
    ls_packed_weights_close(s->packs);
    ls_dp_close(s->dp);
    ls_model_groups_close(s);
    ls_cp_group_close(s);
    ls_mem_free(s->places);
    ls_mem_free(s->gpu.cards);
    s->data.loader = NULL;
    s->samples = (ls_session_samples){.pass = NULL};
    s->step = NULL;
    s->recovery.has_state = false;
    s->packs = NULL;
    s->dp = NULL;
    s->places = NULL;
    s->gpu.cards = NULL;
}

ls_status ls_recover_restore_state(ls_session *s)
{
    const ls_view_plan *plan = &s->args.view.plan;
    ls_status st = LS_OK;

    ls_fault_reach(plan->base, plan->generation);
    LS_TRY(st, ls_fault_pass(LS_FAULT_AT_TRANSFER), out);
    s->recovery.has_state =
        s->recovery.has_state && (!plan->spread || s->step_number == plan->base);
    LS_TRY(st, ls_save_share_progress(s, plan->source), out);
    LS_TRY(st, ls_replica_restore(s), out);
    s->step_number = plan->base;
    s->recovery.has_state = true;
out:
    return st;
}

bool ls_recover_regroups(const ls_session *s, int64_t steps_in_view)
{
    return s->args.rejoin && steps_in_view > 0 && steps_in_view >= s->run->heal.grow_steps &&
           ls_replica_can_keep(s) && ls_worker_channel_regroups(s->args.view.plan.generation);
}
