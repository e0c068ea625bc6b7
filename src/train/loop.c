/* loop.c -- the one file to read to know how training goes.
 *
 *   open the session (train/session/session.c): folder, device, data, model, memory, resume
 *   repeat:  batch (data/loader) -> step (train/step) -> event
 *            every eval.every steps: validation loss, a text sample
 *            every checkpoint.every steps: a save in the background (train/save)
 *   until:   steps, tokens, seconds or target loss are reached, or somebody asks to stop
 *   save, summary
 *
 * With sync: local replicas train apart, and what follows a step waits until they meet
 * (train/session/local_sgd_session.h). With sync: ps a step begins with weights from servers and ends with a gradient
 * to them (train/session/param_server_session.h).
 *
 * When other ranks are lost, and somebody heals (train/replica/recover.h), this rank keeps its state, meets
 * those who are left, and goes on after the last step that one of them has.
 *
 * A step counts as done only when its update is made (or dropped, where train.nonfinite says so); a
 * save always describes done steps, so a resumed run repeats nothing and leaves nothing out. Who
 * asks to stop gets no extra validation: it would take its time, and its result could end the
 * resumed run where one that never stopped goes on. */
#include "train/loop.h"

#include <math.h>
#include <unistd.h>
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "comm/tune.h"
#include "config/ramp.h"
#include "device/nvml.h"
#include "kernel/peak.h"
#include "train/sdc/sdc_replay.h"
#include "train/report/gpu_health.h"
#include "train/replica/replica_copy.h"
#include "train/report/eval.h"
#include "train/replica/recover.h"
#include "train/session/param_server_session.h"
#include "train/session/local_sgd_session.h"
#include "train/save/preempt.h"
#include "train/save/save.h"
#include "optim/lr_schedule.h"
#include "train/session/model_groups.h"
#include "train/replica/replica_pair.h"
#include "train/sdc/sdc_compare.h"

static const int64_t TRIALS_NS = 2 * LS_NS_PER_S;
enum {
    BATCH_WAIT_S = 600,
    TRIALS_WAIT_S = 600,
    PART_S = 86400, /* the first rank saves and hashes */
    SPEEDS = 4096,
    WARM_STEPS = 10,
    FIRST_SAMPLE = 64
};

/* What the loop itself remembers. */
typedef struct loop {
    ls_session s;
    ls_step_clock clock;
    int64_t begun_ns;      /* when training began */
    int64_t steps_here;    /* done by this process */
    int64_t steps_in_view; /* and since ranks were last lost: equal on all of them */
    int64_t tokens_here;   /* in them */
    int64_t skipped;       /* of those, not finite */
    double loss_scale;     /* of the last step; 0: there is none */
    double first_step_s;   /* from the start of the process to the first finished step */
    double speeds[SPEEDS]; /* tokens/s of steps after the first ten, thinned out when full */
    int n_speeds, stride;
    ls_eval eval;
    int64_t met;            /* the step after which ranks last did what falls due */
    int64_t told;           /* the last step that was told */
    bool opened;            /* the session is open, or was, and has to regroup */
    int64_t sent, received; /* between machines, when training began */
    int64_t foreign;        /* memory of other ranks that counts as resident here, at most */
    bool stop, over; /* somebody asked to stop; train.seconds are over: agreed by all ranks */
    char unsaved[LS_PREEMPT_WHY]; /* why the last step is not saved; "": it is */
    const char *stopped_by;
    ls_nvml *nvml;         /* NULL: no GPU, or it tells nothing */
    ls_nvml_reading begun; /* when training began, */
    ls_nvml_reading ended; /* and when it ended */
    double trained_s;      /* between them */
    ls_gpu_health alarm;   /* what befell it so far */
} loop;

static bool stop_asked(const loop *l)
{
    return l->s.args.stop && *l->s.args.stop;
}

/* What the model says before it has learned anything; short, because the first step is waiting. */
static ls_status tell_first_sample(loop *l)
{
    return ls_eval_sample(&l->eval, &l->s, ls_min_i64(l->s.run->eval.sample_tokens, FIRST_SAMPLE));
}

/* Keep a bounded, evenly thinned record of speeds for the median. */
static void note_speed(loop *l, double tokens_per_s)
{
    int64_t n = l->steps_here - WARM_STEPS - 1;

    if (n < 0 || n % l->stride != 0)
        return;
    if (l->n_speeds == SPEEDS) {
        for (int i = 0; i < SPEEDS / 2; i++)
            l->speeds[i] = l->speeds[2 * i];
        l->n_speeds = SPEEDS / 2;
        l->stride *= 2;
        if (n % l->stride != 0)
            return;
    }
    l->speeds[l->n_speeds++] = tokens_per_s;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median_speed(loop *l)
{
    double seconds = (double)(ls_time_now_ns() - l->begun_ns) / 1e9;

    if (l->n_speeds == 0) /* a run of ten steps or fewer: all of them */
        return l->steps_here ? (double)l->tokens_here / seconds : 0;
    qsort(l->speeds, (size_t)l->n_speeds, sizeof *l->speeds, by_value);
    return l->speeds[l->n_speeds / 2];
}

/* Stop, or drop the step and go on, as train.nonfinite says. */
static ls_status handle_nonfinite(loop *l)
{
    ls_session *s = &l->s;
    int64_t number = s->step_number + 1; /* as the step's own event will call it */
    ls_status st = ls_sdc_replay_nonfinite(s);

    if (st != LS_OK)
        return st;
    st = ls_step_find_nonfinite(s->step, s->step_number);
    if (s->run->train.nonfinite == LS_NONFINITE_STOP || st != LS_ENUMERIC)
        return st;
    ls_session_emit(s, &(ls_event){.kind = LS_EVENT_INCIDENT,
                                   .incident = {.step = number,
                                                .kind = "nonfinite",
                                                .action = "update skipped",
                                                .text = ls_err_last()->text}});
    /* Once weights are broken every step is: tell the 1st, 2nd, 4th, 8th ... of them. */
    l->skipped++;
    if ((l->skipped & (l->skipped - 1)) == 0 && (s->mesh.rank == 0 || s->mesh.independent))
        ls_log(LS_LOG_WARN, "%s; its update is skipped (%lld so far)", ls_err_last()->text,
               (long long)l->skipped);
    ls_err_clear();
    return LS_OK;
}

/* Part of training in fp16, most of all in its first steps. */
static void tell_overflow(const ls_session *s)
{
    if (s->mesh.rank == 0)
        ls_log(LS_LOG_INFO,
               "a gradient of step %lld is too large for fp16: its update is skipped, and the loss "
               "scale %.0f from here on (%lld overflows so far)",
               (long long)s->step_number + 1, s->scaler.scale, (long long)s->scaler.overflows);
}

/* Behind two steps it is known what will be exchanged in all of them: find out how it goes fastest,
 * where the model cannot tell. In ordered mode no bit may depend on that. */
static ls_status settle_ways(const ls_session *s)
{
    ls_calls calls;

    ls_calls_plan(s->run, ls_model_groups_mesh(s), &calls);
    ls_status st = ls_step_settle(s->step); /* nothing else may be on its way */
    if (st != LS_OK)
        return st;
    return ls_tune_settle_used(s->args.comm, !calls.ordered, TRIALS_NS,
                               ls_time_now_ns() + TRIALS_WAIT_S * LS_NS_PER_S);
}

/* What of this process's resident memory is that of others: while they have it, so twice, when all
 * of it was used and when training ends. */
static void note_foreign(loop *l)
{
    const ls_session *s = &l->s;
    int64_t bytes = s->args.comm && !s->discrete ? ls_comm_foreign_bytes(s->args.comm) : 0;

    l->foreign = l->foreign == 0 ? bytes : ls_max_i64(l->foreign, bytes);
}

/* For -vv: what this rank reads, by number of sample. */
static void note_samples(const ls_batch *batch)
{
    int64_t first = batch->slice.position + batch->slice.first;

    if (batch->B > 0)
        ls_log(LS_LOG_DEBUG, "step %lld reads samples %lld to %lld", (long long)batch->step + 1,
               (long long)first, (long long)(first + batch->B - 1));
}

static ls_status one_step(loop *l)
{
    ls_session *s = &l->s;
    ls_step_result result;
    const ls_batch *batch;
    double lr = ls_lr_schedule_lr(s->run, s->step_number, s->progress.total_steps);
    ls_status st = LS_OK;

    ls_fault_reach(s->step_number + 1, s->args.view.plan.generation);
    LS_TRY(st, ls_fault_pass(LS_FAULT_AT_LOAD), out);
    LS_TRY(st,
           ls_loader_next(s->data.loader, ls_time_now_ns() + BATCH_WAIT_S * LS_NS_PER_S, &batch),
           out);
    if (s->args.comm)
        ls_comm_set_step(s->args.comm, s->step_number + 1); /* for who asks where this rank is */
    LS_BUG_IF(batch->step != s->step_number, "batch of step %lld in step %lld",
              (long long)batch->step, (long long)s->step_number);
    note_samples(batch);
    LS_TRY(st, ls_batch_slice_begin(s), out);
    LS_TRY(st, ls_sdc_replay_begin(s), out);
    ls_step_batch part = {.tokens = batch->tokens,
                          .targets = batch->targets,
                          .start = batch->start,
                          .counted = batch->counted};
    if (s->sync.local_sgd)
        part = ls_local_sgd_session_batch(s, &part);
    if (s->sync.param_server)
        LS_TRY(st, ls_param_server_session_begin(s, &part, &l->clock), out);
    l->loss_scale = s->scaler.on ? s->scaler.scale : 0;
    ls_step_scale_loss(s->step, s->scaler.scale);
    LS_TRY(st, ls_step_run(s->step, &part, s->step_number, lr, &l->clock, &result), out);
    bool overflow = ls_loss_scaler_step(&s->scaler, isfinite(result.loss), result.finite);
    if (overflow)
        tell_overflow(s);
    if (!result.finite && !overflow)
        LS_TRY(st, handle_nonfinite(l), out);
    if (s->sync.param_server)
        LS_TRY(st, ls_param_server_session_push(s, &result, &l->clock), out);
    if (result.finite)
        s->progress.loss = result.loss;
    s->progress.last = result;
    s->step_number++;
    l->steps_here++;
    l->steps_in_view++;
    l->tokens_here += batch->slice.sequences * batch->T;
    ls_batch_slice_note(s);
    if (l->steps_here == 1)
        l->first_step_s = (double)ls_time_since_start_ns() / 1e9;
    if (l->steps_in_view == 2)
        note_foreign(l);
    if (l->steps_in_view == 2 && s->args.comm && !s->mesh.independent)
        LS_TRY(st, settle_ways(s), out);
    if (s->sync.local_sgd)
        LS_TRY(st, ls_local_sgd_session_step(s, &s->progress.last, &l->clock), out);
    if (s->sync.param_server)
        LS_TRY(st, ls_param_server_session_meet(s, &s->progress.last, &l->clock), out);
out:
    return st;
}

/* Whether a multiple of `every` has come since the ranks last looked: in the step before, or, as
 * replicas, when they last met. */
static bool due(const loop *l, int64_t every)
{
    return every > 0 && l->s.step_number / every > l->met / every;
}

/* Of the weights that a checkpoint would have. */
static ls_status judge(loop *l)
{
    ls_session *s = &l->s;
    ls_status st = LS_OK;

    if (s->sync.local_sgd)
        ls_local_sgd_session_show(s, true);
    if (s->sync.param_server)
        LS_TRY(st, ls_param_server_session_gather(s), out);
    LS_TRY(st, ls_eval_loss(&l->eval, s), out);
    LS_TRY(st, ls_eval_sample(&l->eval, s, s->run->eval.sample_tokens), out);
    if (s->sync.local_sgd)
        ls_local_sgd_session_show(s, false);
    ls_step_clock_lap(&l->clock, LS_TIME_EVAL);
out:
    return st;
}

/* Validation, sample and save that fall on this step. */
static ls_status after_step(loop *l, bool last)
{
    ls_session *s = &l->s;
    ls_status st = LS_OK;

    if (due(l, s->run->eval.every) || last)
        LS_TRY(st, judge(l), out);
    if (due(l, s->run->checkpoint.every) && !last && s->save.saved_step != s->step_number) {
        if (s->sync.local_sgd)
            ls_local_sgd_session_save_begin(s);
        if (s->sync.param_server)
            LS_TRY(st, ls_param_server_session_hold(s), out);
        st = ls_save_begin(s);
        if (s->sync.param_server)
            st = ls_param_server_session_release(s, st);
        if (st != LS_OK)
            goto out;
        ls_step_clock_lap(&l->clock, LS_TIME_CHECKPOINT);
    }
    LS_TRY(st, ls_save_poll(s), out);
    l->met = s->step_number;
out:
    return st;
}

/* What ranks see at different times, settled for all of them. */
static ls_status agree(loop *l)
{
    ls_session *s = &l->s;
    double seconds = (double)(ls_time_now_ns() - l->begun_ns) / 1e9;

    ls_recover_notes(s);
    double asked[3] = {stop_asked(l),
                       s->mesh.rank == 0 && s->run->train.seconds > 0 &&
                           seconds >= s->run->train.seconds,
                       ls_recover_regroups(s, l->steps_in_view)};
    ls_status st = s->dp ? ls_dp_numbers(s->dp, LS_F64, asked, 3) : LS_OK;

    l->stop = asked[0] > 0;
    l->over = asked[1] > 0;
    s->progress.seconds = seconds;
    if (st == LS_OK && asked[2] > 0 && !l->stop)
        st = ls_fail(LS_EPEER, "others have come");
    return st;
}

/* Tokens of the first so many steps. */
static int64_t tokens_after(const ls_session *s, int64_t steps)
{
    return ls_ramp_samples(s->run, steps) * s->model.shape.T;
}

/* Why training should end before the next step, or NULL. */
static const char *reason_to_stop(const loop *l)
{
    const ls_session *s = &l->s;
    const ls_run *run = s->run;

    if (l->stop)
        return "interrupt";
    if (s->progress.total_steps && s->step_number >= s->progress.total_steps)
        return run->train.tokens && (!run->train.steps || s->step_number < run->train.steps)
                   ? "tokens"
                   : "steps";
    if (l->over)
        return "seconds";
    if (run->train.target_loss > 0 && s->progress.val_loss <= run->train.target_loss)
        return "target_loss";
    return NULL;
}

static void tell_step(loop *l)
{
    ls_session *s = &l->s;
    const ls_step_result *r = &s->progress.last;
    int64_t sequences = ls_ramp_sequences(s->run, s->step_number - 1);
    int64_t tokens = sequences * s->model.shape.T, seen = tokens_after(s, s->step_number);
    double tokens_per_s;

    ls_step_clock_lap(&l->clock, LS_TIME_OTHER);
    tokens_per_s = (double)tokens / ((double)ls_step_clock_wall_ns(&l->clock) / 1e9);
    note_speed(l, tokens_per_s);
    l->told = s->step_number;
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
                                .clock = &l->clock}});
}

/* What several ranks have must be the same: now and then, and before it is saved. */
static ls_status compare(loop *l, bool ends)
{
    const ls_run *run = l->s.run;
    ls_status st;

    ls_sdc_compare_suffer(&l->s);
    if (!l->s.sdc.compare || run->heal.compare == 0 ||
        (!ends && !due(l, run->heal.compare) && !due(l, run->checkpoint.every)))
        return LS_OK;
    st = ls_sdc_compare_compare(&l->s);
    ls_step_clock_lap(&l->clock, LS_TIME_CHECKPOINT);
    return st;
}

/* What ranks do together after a step. */
static ls_status meet(loop *l)
{
    ls_status st = LS_OK;

    LS_TRY(st, ls_fault_pass(LS_FAULT_AT_IDLE), out);
    LS_TRY(st, agree(l), out);
    bool last = reason_to_stop(l) != NULL && !l->stop;
    LS_TRY(st, compare(l, last || l->stop), out);
    LS_TRY(st, after_step(l, last), out);
    LS_TRY(st, agree(l), out);
    l->stopped_by = reason_to_stop(l);
out:
    return st;
}

/* Whether ranks do something together after the step that was done last. */
static bool they_meet(const ls_session *s)
{
    return s->sync.local_sgd      ? ls_local_sgd_session_meets(s)
           : s->sync.param_server ? ls_param_server_session_meets(s)
                                  : true;
}

/* Before the first step of a process: whether there is anything to do. */
static ls_status begin(loop *l)
{
    ls_status st;

    l->met = l->told = l->s.step_number;
    LS_TRY(st, agree(l), out);
    l->stopped_by = reason_to_stop(l);
    if (l->stopped_by && strcmp(l->stopped_by, "interrupt") != 0) {
        l->stopped_by = "done"; /* before the first step: an earlier process had finished */
        return ls_eval_loss(&l->eval, &l->s);
    }
    if (l->s.mesh.rank == 0)
        ls_preempt_undone(&l->s);
    if (l->s.step_number == 0)
        LS_TRY(st, tell_first_sample(l), out);
out:
    return st;
}

/* Before the first step of a view that goes on with a state that a rank has: what its last step
 * still owes. */
static ls_status go_on(loop *l)
{
    ls_session *s = &l->s;
    const ls_view_plan *plan = &s->args.view.plan;
    ls_status st;

    l->met = plan->met;
    if (l->steps_here == 0) /* the others have trained before this process came */
        l->begun_ns -= (int64_t)(s->progress.seconds * 1e9);
    if (s->mesh.rank > 0)
        l->told = s->step_number;
    else if (plan->first_new)
        l->told = ls_recover_last_told(s);
    if (l->met < s->step_number) {
        LS_TRY(st, meet(l), out);
    } else {
        LS_TRY(st, agree(l), out);
        l->stopped_by = reason_to_stop(l);
    }
    if (l->told < s->step_number)
        tell_step(l);
out:
    return st;
}

static ls_status train(loop *l)
{
    ls_status st;

    l->steps_in_view = 0;
    LS_TRY(st, ls_recover_in_memory(&l->s) ? go_on(l) : begin(l), out);
    while (!l->stopped_by) {
        ls_step_clock_begin(&l->clock);
        ls_profiling_begin(&l->s, &l->clock);
        LS_TRY(st, one_step(l), out);
        if (they_meet(&l->s))
            LS_TRY(st, meet(l), out);
        tell_step(l);
        ls_gpu_health_look(&l->alarm, l->nvml, &l->s);
        ls_profiling_end(&l->s, &l->clock);
    }
out:
    return st;
}

/* --- what the GPU used and suffered ----------------------------------------------------------- */

/* Of ranks that share a card the first one watches it. */
static bool watches_card(const ls_session *s)
{
    for (int r = 0; r < s->mesh.rank && s->gpu.cards; r++)
        if (ls_session_same_card(&s->gpu.cards[r], &s->gpu.cards[s->mesh.rank]))
            return false;
    return s->discrete;
}

/* Without NVML there is nothing to tell; `lineshaft doctor` says why. */
static void watch_begin(loop *l)
{
    char why[160];

    if (l->begun_ns > 0) /* in an earlier view */
        return;
    if (watches_card(&l->s))
        ls_nvml_open(&l->nvml, ls_device_describe(l->s.device).bus_id, why);
    l->begun_ns = ls_time_now_ns();
    if (l->s.args.comm)
        ls_comm_traffic(l->s.args.comm, &l->sent, &l->received);
    ls_nvml_read(l->nvml, &l->begun);
}

static void watch_end(loop *l)
{
    double errors;

    ls_nvml_read(l->nvml, &l->ended);
    l->trained_s = (double)(ls_time_now_ns() - l->begun_ns) / 1e9;
    errors = l->ended.uncorrected - l->begun.uncorrected;
    if (errors > 0)
        ls_log(LS_LOG_WARN,
               "the GPU's memory had %.0f errors that could not be corrected while this run "
               "trained: do not trust its weights",
               errors);
    if (l->ended.xids > 0)
        ls_log(LS_LOG_WARN,
               "the GPU reported %lld errors while this run trained, the last is XID "
               "%lld: see the kernel's log",
               (long long)l->ended.xids, (long long)l->ended.last_xid);
}

/* Of all ranks together; more of them than there are cores share these. What a GPU can do at most
 * is not measured here: its share of that is not known. */
static double peak_of_ranks(const ls_session *s)
{
    int here = s->args.local_ranks > 0 ? s->args.local_ranks : s->mesh.ranks;
    double crowd = (double)here * ls_device_describe(s->device).threads /
                   (double)sysconf(_SC_NPROCESSORS_ONLN);

    if (s->discrete)
        return 0;
    return ls_peak_flops(s->device, s->kernels->name) * s->mesh.ranks / (crowd > 1 ? crowd : 1);
}

/* Whether another process would have nothing to do: not where this one's time was over. */
static bool is_finished(const loop *l)
{
    return !l->stop && strcmp(l->stopped_by, "seconds") != 0;
}

/* The most memory that this rank used, as its ledger counts. Of others than the first only the log
 * tells (-v). */
static int64_t used_bytes(const loop *l)
{
    const ls_session *s = &l->s;
    int64_t planned = ls_ledger_total(&s->ledger);
    int64_t used = s->discrete
                       ? ls_device_peak_bytes(s->device) + ls_device_describe(s->device).fixed_bytes
                       : ls_ledger_peak_resident_bytes() - l->foreign;

    ls_log(LS_LOG_INFO, "rank %d used %lld bytes of memory at most, its ledger has %lld: %+.1f %%",
           s->mesh.rank, (long long)used, (long long)planned,
           100.0 * (double)(used - planned) / (double)planned);
    return used;
}

static ls_status summarise(loop *l)
{
    ls_session *s = &l->s;
    double energy = l->ended.energy_j - l->begun.energy_j;
    double tokens = (double)l->tokens_here;
    double seconds = (double)(ls_time_now_ns() - l->begun_ns) / 1e9;
    double speed = median_speed(l);
    int64_t sent = 0, received = 0, exchange_bytes, exchanges;
    char hash[33];
    ls_status st = LS_OK;

    note_foreign(l);
    LS_TRY(st, ls_save_weights_hash(s, hash), out);
    int64_t peak_bytes = used_bytes(l);
    if (s->mesh.rank > 0)
        return LS_OK;
    ls_event_balance balance = ls_batch_slice_about(s);
    if (s->args.comm)
        ls_comm_traffic(s->args.comm, &sent, &received);
    exchanges = ls_local_sgd_session_exchanges(s, &exchange_bytes);
    ls_param_server_session_counts param_server = ls_param_server_session_counted(s);
    double peak = peak_of_ranks(s);
    double mfu =
        peak > 0
            ? speed * ls_model_flops_per_token(ls_model_groups_whole(s), s->model.shape.T) / peak
            : 0;
    ls_session_emit(
        s, &(ls_event){.kind = LS_EVENT_SUMMARY,
                       .summary = {.steps = s->step_number,
                                   .steps_here = l->steps_here,
                                   .tokens = tokens_after(s, s->step_number),
                                   .seconds = seconds,
                                   .tokens_per_s = speed,
                                   .loss = s->progress.loss,
                                   .val_loss = s->progress.val_loss,
                                   .mfu = mfu,
                                   .peak_flops = peak,
                                   .peak_bytes = peak_bytes,
                                   .ledger_bytes = ls_ledger_total(&s->ledger),
                                   .start_to_first_step_s = l->first_step_s,
                                   .energy_j = l->steps_here ? energy : (double)NAN,
                                   .power_w = energy / l->trained_s,
                                   .joules_per_token = energy / tokens,
                                   .balance = balance.ranks > 1 && s->mesh.pp < 2 ? &balance : NULL,
                                   .sent_bytes = sent - l->sent,
                                   .received_bytes = received - l->received,
                                   .exchanges = exchanges,
                                   .exchange_bytes = exchange_bytes,
                                   .pushes = param_server.pushes,
                                   .push_bytes = param_server.bytes,
                                   .ahead = param_server.ahead,
                                   .buddy_bytes = ls_replica_copy_sent(s->recovery.copy) +
                                                  ls_replica_pair_sent(s->step),
                                   .weights_hash = hash,
                                   .stopped_by = l->stopped_by}});
    if (is_finished(l) && ls_preempt_done(s) != LS_OK)
        ls_log(LS_LOG_WARN, "the end of the run is not noted: %s", ls_err_last()->text);
out:
    return st;
}

static ls_status open_loop(loop *l, const ls_session_args *args)
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

/* Where ranks heal, nobody goes before the last of them is done. */
static ls_status part(loop *l)
{
    const ls_coll barrier = {.kind = LS_COLL_BARRIER};

    if (!l->s.args.rejoin || l->s.mesh.ranks == 1)
        return LS_OK;
    return ls_comm_run(l->s.args.comm, &barrier, ls_time_now_ns() + PART_S * LS_NS_PER_S);
}

/* One view, to the end of the run. */
static ls_status run_view(loop *l, const ls_session_args *args)
{
    ls_status st;

    LS_TRY(st, open_loop(l, args), out);
    watch_begin(l);
    LS_TRY(st, train(l), out);
    watch_end(l);
    ls_profiling_finish(&l->s);
    if (l->s.sync.local_sgd)
        LS_TRY(st, ls_local_sgd_session_save_final(&l->s), out);
    if (l->s.sync.param_server)
        LS_TRY(st, ls_param_server_session_gather(&l->s), out);
    if (l->stop)
        LS_TRY(st, ls_preempt_save(&l->s, l->unsaved), out);
    else
        LS_TRY(st, ls_save_final(&l->s), out);
    LS_TRY(st, summarise(l), out);
    if (l->s.sync.param_server)
        LS_TRY(st, ls_param_server_session_end(&l->s), out);
    st = part(l);
out:
    return st;
}

/* This rank has lost the others. A session that was never open has only its arguments. */
static ls_status rejoin(loop *l, ls_session_args *args)
{
    ls_status st;

    if (!l->opened)
        l->s = (ls_session){.args = *args,
                            .folder.lock_fd = -1,
                            .folder.events_fd = -1,
                            .step_number = -1,
                            .recovery.kept_step = -1};
    st = ls_recover_rejoin(&l->s, l->met);
    args->comm = l->s.args.comm;
    args->view = l->s.args.view;
    return st;
}

ls_status ls_loop_run(const ls_session_args *args)
{
    ls_session_args now = *args;
    ls_status st = LS_OK;

    if (args->view.dismissed) /* it waited while others did the work */
        return LS_OK;
    loop *l = ls_mem_alloc(sizeof *l);
    if (!l)
        return LS_ENOMEM;
    l->stride = 1;
    ls_step_clock_begin(&l->clock);
    ls_eval_init(&l->eval);
    l->s = (ls_session){.folder.lock_fd = -1, .folder.events_fd = -1, .recovery.kept_step = -1};
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
        ls_err_hint("Run the same command again to go on from there.");
    }
out:
    ls_nvml_close(l->nvml);
    ls_session_close(&l->s);
    ls_eval_release(&l->eval);
    ls_mem_free(l);
    return st;
}
