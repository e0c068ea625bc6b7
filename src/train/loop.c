/* loop.c -- a run from its first step to its last. Read this file to know how training goes.
 *
 *   ls_loop_run      views, until one of them ends the run: after a death the ranks that are left
 *                    meet again in a new view (train/replica/recover.h)
 *     run_view       open the session (session_open.c); train; save; summary
 *       train        repeat: one_step, meet, events; until a reason to stop
 *         one_step   batch (data/corpus) -> step (train/step) -> what ranks exchange (session/sync.h)
 *         meet       agree on requests to stop; compare for corruption; validation, text sample and
 *                    checkpoint, as far as they fall due
 *
 * Functions stand in this order, each below its caller.
 *
 * With sync: local and ps ranks do not meet after every step; what falls due then waits until they
 * do (`due`).
 *
 * A step counts only when its update is made, or dropped where train.nonfinite says so. A save
 * always describes steps that count, so a resumed run repeats nothing and leaves nothing out. A run
 * that is asked to stop gets no extra validation: that would take time, and its result could end
 * the resumed run where one that never stopped goes on. */
#include "train/loop.h"

#include <math.h>
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "comm/tune.h"
#include "config/ramp.h"
#include "optim/lr_schedule.h"
#include "parallel/blocking.h"
#include "train/replica/recover.h"
#include "train/report/eval.h"
#include "train/report/reference.h"
#include "train/report/profiling.h"
#include "train/report/recovery_events.h"
#include "train/report/summary.h"
#include "train/save/best_loss.h"
#include "train/save/preempt.h"
#include "train/save/save.h"
#include "train/sdc/sdc_compare.h"
#include "train/sdc/sdc_replay.h"
#include "train/session/model_groups.h"
#include "train/session/sync.h"
#include "train/session_open.h"

static const int64_t TRIALS_NS = 2 * LS_NS_PER_S;
enum {
    BATCH_WAIT_S = 600,
    TRIALS_WAIT_S = 600,
    LEAVE_WAIT_S = 86400, /* until the first rank has written and hashed the last checkpoint */
    FIRST_SAMPLE = 64
};

/* What ranks may see at different times, and settle together (agree). */
enum { ASKED_STOP, ASKED_TIME_OVER, ASKED_REGROUP, ASKED_MINUTES_OVER, ASKED_COUNT };

/* What the loop itself remembers. */
typedef struct loop {
    ls_session s;
    ls_step_clock clock;
    ls_summary summary;
    ls_eval eval;
    int64_t steps_in_view;        /* done since ranks were last lost: equal on all of them */
    int64_t met;                  /* the step after which ranks last did what falls due */
    int64_t emitted;              /* the last step whose event was written */
    double loss_scale;            /* of the last step; 0: there is none */
    int64_t skipped;              /* steps that were not finite, and are dropped */
    bool opened;                  /* the session is open, or was, and has to regroup */
    bool stop, time_over;         /* asked to stop; train.seconds are over: agreed by all ranks */
    bool minutes_over;            /* checkpoint.minutes since the last save: likewise */
    int64_t saved_ns;             /* when it was begun; before the first: when the view began */
    char unsaved[LS_PREEMPT_WHY]; /* why the last step is not saved; "": it is */
    const char *stopped_by;
} loop;

static ls_status run_view(loop *l, const ls_session_args *args);
static ls_status rejoin(loop *l, ls_session_args *args);
static ls_status train(loop *l);
static ls_status begin(loop *l);
static ls_status resume_view(loop *l);
static ls_status one_step(loop *l);
static ls_status after_update(loop *l, const ls_batch *batch);
static ls_status handle_nonfinite(loop *l);
static ls_status meet(loop *l);
static ls_status agree(loop *l);
static const char *reason_to_stop(const loop *l);
static ls_status compare(loop *l, bool ends);
static ls_status validate(loop *l);
static ls_status save(loop *l);
static void emit_step(loop *l);

ls_status ls_loop_run(const ls_session_args *args)
{
    ls_session_args now = *args;
    ls_status st = LS_OK;

    if (args->view.dismissed) /* it waited while others did the work */
        return LS_OK;
    loop *l = ls_mem_alloc(sizeof *l);
    if (!l)
        return LS_ENOMEM;
    ls_step_clock_begin(&l->clock);
    ls_summary_init(&l->summary);
    ls_eval_init(&l->eval);
    l->s = (ls_session){.folder.lock_fd = -1, .folder.events_fd = -1};
    while ((st = run_view(l, &now)) != LS_OK && now.rejoin && ls_recover_can(st)) {
        LS_TRY(st, rejoin(l, &now), out);
        if (now.view.dismissed)
            goto out;
    }
    LS_TRY(st, st, out);
    if (strcmp(l->stopped_by, "interrupt") == 0 && l->s.mesh.rank == 0) {
        st = *l->unsaved ? ls_fail(LS_EUNSAVED, "%s", l->unsaved)
                         : ls_fail(LS_EINTR, "step %lld is saved in \"%s\"",
                                   (long long)l->s.step_number, args->run->out);
        ls_err_hint(args->fresh ? "Run the same command without --fresh to go on from there."
                                : "Run the same command again to go on from there.");
    }
out:
    ls_summary_close(&l->summary);
    ls_session_close(&l->s);
    ls_eval_release(&l->eval);
    ls_mem_free(l);
    return st;
}

/* --- one view ---------------------------------------------------------------------------------- */

static ls_status open_view(loop *l, const ls_session_args *args)
{
    ls_status st = LS_OK;

    if (l->opened)
        LS_TRY(st, ls_session_regroup(&l->s), out);
    else
        LS_TRY(st, ls_session_open(&l->s, args), out);
    l->opened = true;
    st = ls_eval_open(&l->eval, &l->s);
out:
    return st;
}

/* Where ranks recover from deaths, none of them leaves before the last one is done. */
static ls_status leave_together(loop *l)
{
    if (!l->s.args.rejoin || l->s.mesh.ranks == 1)
        return LS_OK;
    return ls_blocking_barrier(l->s.args.comm, ls_time_now_ns() + LEAVE_WAIT_S * LS_NS_PER_S);
}

/* Whether another process would have nothing to do: not where this one's time was over. */
static bool is_finished(const loop *l)
{
    return !l->stop && strcmp(l->stopped_by, "seconds") != 0;
}

/* To the end of the run, or to the death that ends the view. */
static ls_status run_view(loop *l, const ls_session_args *args)
{
    ls_session *s = &l->s;
    ls_status st;

    LS_TRY(st, open_view(l, args), out);
    ls_summary_begin(&l->summary, s);
    LS_TRY(st, train(l), out);
    ls_summary_end(&l->summary);
    ls_profiling_finish(s);
    LS_TRY(st, LS_SYNC_CALL(s, finish, (s)), out);
    if (l->stop)
        LS_TRY(st, ls_preempt_save(s, l->unsaved), out);
    else
        LS_TRY(st, ls_save_final(s), out);
    LS_TRY(st, ls_summary_emit(&l->summary, s, l->stopped_by), out);
    if (s->mesh.rank == 0 && is_finished(l) && ls_preempt_done(s) != LS_OK)
        ls_log(LS_LOG_WARN, "the end of the run is not noted: %s", ls_err_last()->text);
    LS_TRY(st, LS_SYNC_CALL(s, leave, (s)), out);
    st = leave_together(l);
out:
    return st;
}

/* This rank has lost the others. A session that was never open has only its arguments. */
static ls_status rejoin(loop *l, ls_session_args *args)
{
    ls_status st;

    if (!l->opened)
        l->s = (ls_session){
            .args = *args, .folder.lock_fd = -1, .folder.events_fd = -1, .step_number = -1};
    st = ls_recover_rejoin(&l->s, l->met);
    args->comm = l->s.args.comm;
    args->view = l->s.args.view;
    return st;
}

/* --- steps ------------------------------------------------------------------------------------- */

static ls_status train(loop *l)
{
    ls_status st;

    l->steps_in_view = 0;
    l->saved_ns = ls_time_now_ns();
    LS_TRY(st, ls_recover_in_memory(&l->s) ? resume_view(l) : begin(l), out);
    while (!l->stopped_by) {
        ls_step_clock_begin(&l->clock);
        ls_profiling_begin(&l->s, &l->clock);
        LS_TRY(st, one_step(l), out);
        if (ls_sync_meets(&l->s))
            LS_TRY(st, meet(l), out);
        emit_step(l);
        ls_gpu_health_look(&l->summary.health, l->summary.nvml, &l->s);
        ls_profiling_end(&l->s, &l->clock);
    }
out:
    return st;
}

/* Before the first step of a process: whether there is anything to do. */
static ls_status begin(loop *l)
{
    ls_session *s = &l->s;
    ls_status st;

    l->met = l->emitted = s->step_number;
    LS_TRY(st, agree(l), out);
    l->stopped_by = reason_to_stop(l);
    if (l->stopped_by && strcmp(l->stopped_by, "interrupt") != 0) {
        l->stopped_by = "done"; /* before the first step: an earlier process had finished */
        return ls_eval_loss(&l->eval, s);
    }
    if (s->mesh.rank == 0)
        ls_preempt_undone(s);
    if (s->step_number == 0) /* what the model says untrained; short, as the first step waits */
        LS_TRY(st,
               ls_eval_sample(&l->eval, s, ls_min_i64(s->run->eval.sample_tokens, FIRST_SAMPLE)),
               out);
out:
    return st;
}

/* Before the first step of a view whose state is still in memory: do what its last step left undone. */
static ls_status resume_view(loop *l)
{
    ls_session *s = &l->s;
    const ls_view_plan *plan = &s->args.view.plan;
    ls_status st;

    l->met = plan->met;
    if (l->summary.steps == 0) /* the others trained before this process joined */
        l->summary.begun_ns -= (int64_t)(s->progress.seconds * 1e9);
    if (s->mesh.rank > 0)
        l->emitted = s->step_number;
    else if (plan->first_new)
        l->emitted = ls_run_folder_last_step(s);
    if (l->met < s->step_number) {
        LS_TRY(st, meet(l), out);
    } else {
        LS_TRY(st, agree(l), out);
        l->stopped_by = reason_to_stop(l);
    }
    if (l->emitted < s->step_number)
        emit_step(l);
out:
    return st;
}

/* For -vv: what this rank reads, by number of sample. */
static void note_samples(const ls_batch *batch)
{
    int64_t first = batch->slice.position + batch->slice.first;

    if (batch->B > 0)
        ls_log(LS_LOG_DEBUG, "step %lld reads samples %lld to %lld", (long long)batch->step + 1,
               (long long)first, (long long)(first + batch->B - 1));
}

/* This rank's part of the batch of the next step. */
static ls_status next_batch(loop *l, const ls_batch **batch_out)
{
    ls_session *s = &l->s;
    ls_status st;

    ls_fault_reach(s->step_number + 1, s->args.view.plan.generation);
    LS_TRY(st, ls_fault_pass(LS_FAULT_AT_LOAD), out);
    LS_TRY(st,
           ls_loader_next(s->data.loader, ls_time_now_ns() + BATCH_WAIT_S * LS_NS_PER_S, batch_out),
           out);
    if (s->args.comm)
        ls_comm_set_step(s->args.comm, s->step_number + 1); /* for reports of where a rank hangs */
    LS_BUG_IF((*batch_out)->step != s->step_number, "batch of step %lld in step %lld",
              (long long)(*batch_out)->step, (long long)s->step_number);
    note_samples(*batch_out);
    LS_TRY(st, ls_batch_slice_begin(s), out);
out:
    return st;
}

/* Overflows are part of training in fp16, most of all in its first steps. */
static void note_overflow(const ls_session *s)
{
    if (s->mesh.rank == 0)
        ls_log(LS_LOG_INFO,
               "a gradient of step %lld is too large for fp16: its update is skipped, and the loss "
               "scale %.0f from here on (%lld overflows so far)",
               (long long)s->step_number + 1, s->scaler.scale, (long long)s->scaler.overflows);
}

static ls_status one_step(loop *l)
{
    ls_session *s = &l->s;
    ls_step_result result;
    const ls_batch *batch;
    double lr = ls_lr_schedule_lr(s->run, s->step_number, s->progress.total_steps);
    ls_status st = LS_OK;

    LS_TRY(st, next_batch(l, &batch), out);
    LS_TRY(st, ls_sdc_replay_begin(s), out);
    ls_step_batch part = {.tokens = batch->tokens,
                          .targets = batch->targets,
                          .start = batch->start,
                          .restart = !s->progress.positions_run_on,
                          .counted = batch->counted,
                          .references = ls_reference_of_batch(s, batch)};
    LS_TRY(st, LS_SYNC_CALL(s, begin, (s, &part, &l->clock)), out);
    l->loss_scale = s->scaler.on ? s->scaler.scale : 0;
    ls_step_scale_loss(s->step, s->scaler.scale);
    LS_TRY(st, ls_step_run(s->step, &part, s->step_number, lr, &l->clock, &result), out);
    bool overflow = ls_loss_scaler_step(&s->scaler, isfinite(result.loss), result.finite);
    if (overflow)
        note_overflow(s);
    if (!result.finite && !overflow)
        LS_TRY(st, handle_nonfinite(l), out);
    LS_TRY(st, LS_SYNC_CALL(s, end, (s, &result, &l->clock)), out);
    if (result.finite)
        s->progress.loss = result.loss;
    s->progress.last = result;
    st = after_update(l, batch);
out:
    return st;
}

/* After two steps all exchanges of a step are known: measure which algorithms are fastest, where the
 * cost model cannot decide. In ordered mode no bit may depend on that. */
static ls_status tune_exchanges(const ls_session *s)
{
    ls_calls calls;

    ls_calls_plan(s->run, ls_model_groups_mesh(s), &calls);
    ls_status st = ls_step_settle(s->step); /* nothing else may be on its way */
    if (st != LS_OK)
        return st;
    return ls_tune_settle_used(s->args.comm, !calls.ordered, TRIALS_NS,
                               ls_time_now_ns() + TRIALS_WAIT_S * LS_NS_PER_S);
}

/* From here on the step counts. */
static ls_status after_update(loop *l, const ls_batch *batch)
{
    ls_session *s = &l->s;
    ls_status st = LS_OK;

    s->step_number++;
    l->steps_in_view++;
    ls_summary_count(&l->summary, batch->slice.sequences * batch->T);
    ls_batch_slice_note(s);
    if (l->steps_in_view == 2)
        ls_summary_note_foreign(&l->summary, s);
    if (l->steps_in_view == 2 && s->args.comm && !s->mesh.independent)
        LS_TRY(st, tune_exchanges(s), out);
    LS_TRY(st, LS_SYNC_CALL(s, exchange, (s, &s->progress.last, &l->clock)), out);
out:
    return st;
}

/* Stop, or drop the step and go on, as train.nonfinite says. */
static ls_status handle_nonfinite(loop *l)
{
    ls_session *s = &l->s;
    int64_t number = s->step_number + 1, skipped; /* as the step's own event will call it */
    ls_status st = ls_sdc_replay_nonfinite(s);

    if (st != LS_OK)
        return st;
    st = ls_step_find_nonfinite(s->step, s->step_number);
    if (s->run->train.nonfinite == LS_NONFINITE_STOP || st != LS_ENUMERIC)
        return st;
    ls_session_incident(s, number, "nonfinite", "update skipped", ls_err_last()->text);
    /* Once weights are broken every step is: warn of the 1st, 2nd, 4th, 8th ... of them. */
    skipped = ++l->skipped;
    if ((skipped & (skipped - 1)) == 0 && (s->mesh.rank == 0 || s->mesh.independent))
        ls_log(LS_LOG_WARN, "%s; its update is skipped (%lld so far)", ls_err_last()->text,
               (long long)skipped);
    ls_err_clear();
    return LS_OK;
}

/* --- between steps ----------------------------------------------------------------------------- */

/* Whether a multiple of `every` has come since the ranks last met. */
static bool due(const loop *l, int64_t every)
{
    return every > 0 && l->s.step_number / every > l->met / every;
}

static bool save_is_due(const loop *l)
{
    return l->minutes_over || due(l, l->s.run->checkpoint.every);
}

/* What ranks do together after a step. */
static ls_status meet(loop *l)
{
    ls_session *s = &l->s;
    ls_status st = LS_OK;

    LS_TRY(st, ls_fault_pass(LS_FAULT_AT_IDLE), out);
    LS_TRY(st, agree(l), out);
    bool last = reason_to_stop(l) != NULL && !l->stop;
    LS_TRY(st, compare(l, last || l->stop), out);
    if (due(l, s->run->eval.every) || last)
        LS_TRY(st, validate(l), out);
    if ((save_is_due(l) || ls_best_loss_is_now(s)) && !last && s->save.saved_step != s->step_number)
        LS_TRY(st, save(l), out);
    LS_TRY(st, ls_save_poll(s), out);
    l->met = s->step_number;
    LS_TRY(st, agree(l), out);
    l->stopped_by = reason_to_stop(l);
out:
    return st;
}

/* What ranks see at different times, settled for all of them. */
static ls_status agree(loop *l)
{
    ls_session *s = &l->s;
    double seconds = (double)(ls_time_now_ns() - l->summary.begun_ns) / 1e9;

    ls_recovery_events_note(s);
    double unsaved_s = (double)(ls_time_now_ns() - l->saved_ns) / 1e9;
    double minutes = s->run->checkpoint.minutes;
    double asked[ASKED_COUNT] = {
        [ASKED_STOP] = s->args.stop && *s->args.stop,
        [ASKED_TIME_OVER] =
            s->mesh.rank == 0 && s->run->train.seconds > 0 && seconds >= s->run->train.seconds,
        [ASKED_REGROUP] = ls_recover_regroups(s, l->steps_in_view),
        [ASKED_MINUTES_OVER] = s->mesh.rank == 0 && minutes > 0 && unsaved_s >= 60 * minutes,
    };
    ls_status st = s->dp ? ls_dp_sum_numbers(s->dp, LS_F64, asked, ASKED_COUNT) : LS_OK;

    l->stop = asked[ASKED_STOP] > 0;
    l->time_over = asked[ASKED_TIME_OVER] > 0;
    l->minutes_over = asked[ASKED_MINUTES_OVER] > 0;
    s->progress.seconds = seconds;
    if (st == LS_OK && asked[ASKED_REGROUP] > 0 && !l->stop)
        st = ls_fail(LS_EPEER, "new ranks wait to join"); /* this view ends: all meet in the next */
    return st;
}

/* Why training should end before the next step, or NULL. */
static const char *reason_to_stop(const loop *l)
{
    const ls_session *s = &l->s;
    const ls_run *run = s->run;

    if (l->stop)
        return "interrupt";
    if (s->progress.total_steps && s->step_number >= s->progress.total_steps)
        return run->train.epochs > 0 ? "epochs"
               : run->train.tokens && (!run->train.steps || s->step_number < run->train.steps)
                   ? "tokens"
                   : "steps";
    if (l->time_over)
        return "seconds";
    if (run->train.target_loss > 0 && s->progress.val_loss <= run->train.target_loss)
        return "target_loss";
    if (ls_best_loss_is_over(s))
        return "patience";
    return NULL;
}

/* What several ranks have must be the same: now and then, and before it is saved. */
static ls_status compare(loop *l, bool ends)
{
    const ls_run *run = l->s.run;
    bool may_save = save_is_due(l) || (ls_run_keeps_best(run) && due(l, run->eval.every));
    ls_status st;

    ls_sdc_compare_inject(&l->s);
    if (!l->s.sdc.compare || run->heal.compare == 0 ||
        (!ends && !due(l, run->heal.compare) && !may_save))
        return LS_OK;
    st = ls_sdc_compare_run(&l->s);
    ls_step_clock_lap(&l->clock, LS_TIME_CHECKPOINT);
    return st;
}

/* Validation loss and a text sample, of the weights that a checkpoint would have. */
static ls_status validate(loop *l)
{
    ls_session *s = &l->s;
    ls_status st = LS_OK;

    LS_TRY(st, LS_SYNC_CALL(s, show, (s, true)), out);
    LS_TRY(st, ls_eval_loss(&l->eval, s), out);
    LS_TRY(st, ls_eval_sample(&l->eval, s, s->run->eval.sample_tokens), out);
    LS_TRY(st, LS_SYNC_CALL(s, show, (s, false)), out);
    ls_step_clock_lap(&l->clock, LS_TIME_EVAL);
out:
    return st;
}

static ls_status save(loop *l)
{
    ls_session *s = &l->s;
    ls_status st = LS_OK;

    l->saved_ns = ls_time_now_ns();
    LS_TRY(st, LS_SYNC_CALL(s, save_begin, (s)), out);
    LS_TRY(st, ls_sync_save_end(s, ls_save_begin(s)), out);
    ls_step_clock_lap(&l->clock, LS_TIME_CHECKPOINT);
out:
    return st;
}

/* --- events ------------------------------------------------------------------------------------ */

/* Tokens of the first `steps` steps. */
static int64_t tokens_after(const ls_session *s, int64_t steps)
{
    return ls_ramp_samples(s->run, steps) * s->model.shape.T;
}

static void emit_step(loop *l)
{
    ls_session *s = &l->s;
    const ls_step_result *r = &s->progress.last;
    int64_t sequences = ls_ramp_sequences(s->run, s->step_number - 1);
    int64_t tokens = sequences * s->model.shape.T, seen = tokens_after(s, s->step_number);

    ls_step_clock_lap(&l->clock, LS_TIME_OTHER);
    double tokens_per_s = (double)tokens / ((double)ls_step_clock_wall_ns(&l->clock) / 1e9);
    ls_summary_note_speed(&l->summary, tokens_per_s);
    l->emitted = s->step_number;
    ls_session_emit(
        s, &(ls_event){.kind = LS_EVENT_STEP,
                       .step = {.step = s->step_number,
                                .total_steps = s->progress.total_steps,
                                .loss = r->loss,
                                .lr = r->lr,
                                .grad_norm = r->grad_norm,
                                .tokens_per_s = tokens_per_s,
                                .skipped = !r->finite,
                                .loss_scale = l->loss_scale,
                                .overflows = s->scaler.overflows,
                                .tokens = seen,
                                .sequences = sequences,
                                .step_tokens = tokens,
                                .tokens_left = tokens_after(s, s->progress.total_steps) - seen,
                                .epoch = (double)ls_ramp_samples(s->run, s->step_number) /
                                         (double)s->data.windows,
                                .preference = ls_event_preference_of(
                                    (ls_preference_kind)s->run->train.objective, r->numbers,
                                    (double)sequences),
                                .clock = &l->clock}});
}
