/* session_open.c -- what a training process builds before its first step, in order.
 *
 *   settle      mesh, slice of the batch, tokenizer, model: settings that cannot work are refused
 *               before anything is made
 *   folder      the first rank locks it: a second run on the same folder is refused before it
 *               touches anything
 *   device      and with mesh: auto the mesh, which depends on it
 *   assemble    data, then memory: the ledger is predicted and refused before anything large is
 *               taken; step, exchanges; state (checkpoint, first weights, or the memory of ranks that
 *               went on); what watches it; loader; the events of the start
 *
 * When ranks are lost or come, ls_session_regroup() goes the same way with what is still there:
 * `assemble` is what a new run and a new view share. Each part has its file in train/session; this
 * file knows only their order. */
#include "train/session_open.h"

#include <math.h>
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "config/check.h"
#include "layout/stage_plan.h"
#include "optim/optim.h"
#include "train/replica/recover.h"
#include "train/replica/replica_send.h"
#include "train/replica/replica_store.h"
#include "train/report/profiling.h"
#include "train/report/recovery_events.h"
#include "train/report/reference.h"
#include "train/save/error_feedback.h"
#include "train/save/save.h"
#include "train/save/sharded_save.h"
#include "train/sdc/sdc_compare.h"
#include "train/sdc/sdc_replay.h"
#include "train/session/cp_group.h"
#include "train/session/mesh_agree.h"
#include "train/session/model_groups.h"
#include "train/session/session_impl.h"
#include "train/sync/sync_modes.h"

/* For -vv: where the time before the first step goes. */
static void note_time(const char *what)
{
    ls_log(LS_LOG_DEBUG, "%s: %.3f s after the start", what,
           (double)ls_time_since_start_ns() / 1e9);
}

/* --- settle ------------------------------------------------------------------------------------ */

/* Whether the layers can be cut into the stages of a pipeline. */
static ls_status check_stages(ls_session *s)
{
    ls_stage_plan plan;
    ls_status st = LS_OK;

    if (s->mesh.pp > 1) {
        st = ls_stage_plan_init(&plan, s->run, &s->model, ls_model_groups_mesh(s), 1, false);
        if (st == LS_OK)
            ls_stage_plan_release(&plan);
    }
    return st;
}

/* What needs neither files nor much memory, and can show that the settings cannot work. */
static ls_status settle(ls_session *s)
{
    ls_status st = LS_OK;

    LS_TRY(st, ls_session_open_mesh(s), out);
    LS_TRY(st, ls_batch_slice_open(s), out);
    if (!s->args.device)
        LS_TRY(st, ls_session_check_device(s), out);
    LS_TRY(st, ls_session_open_tokenizer(s), out);
    LS_TRY(st, ls_model_groups_models(s), out);
    st = check_stages(s);
out:
    return st;
}

/* --- mesh: auto -------------------------------------------------------------------------------- */

/* In a view that follows a loss: the mesh of the view before, if a rank knows it. */
static ls_status recall_mesh(ls_session *s)
{
    bool other = false;
    ls_status st = LS_OK;

    if (s->run->mesh.automatic && s->args.view.plan.generation > 1)
        st = ls_mesh_agree_recall(s, &other);
    if (st == LS_OK && other)
        ls_replica_drop(s);
    return st;
}

/* Now that ranks, device and tokenizer are known; what depends on the mesh is built again. */
static ls_status choose_mesh(ls_session *s)
{
    ls_status st = LS_OK;

    if (!s->run->mesh.automatic)
        return LS_OK;
    LS_TRY(st, recall_mesh(s), out);
    if (s->auto_mesh.choice.count == 0)
        LS_TRY(st, ls_mesh_agree_choose(s), out);
    ls_batch_slice_close(s);
    ls_mem_free(s->places);
    s->places = NULL;
    LS_TRY(st, ls_session_open_mesh(s), out);
    LS_TRY(st, ls_batch_slice_open(s), out);
    LS_TRY(st, ls_model_groups_models(s), out);
out:
    return st;
}

/* --- memory: groups, ledger, step -------------------------------------------------------------- */

/* Communicators of groups, sizes of buckets; and how much memory is free for this rank, what it has kept included.
 * Ranks that share a card, or a machine's memory, divide it. */
static ls_status open_groups(ls_session *s, const ls_device_info *info, int64_t kept,
                             int64_t *free_out)
{
    int64_t free_bytes = info->free_bytes + kept;
    ls_status st = LS_OK;

    if (s->mesh.ranks > 1) {
        LS_TRY(st, ls_session_agree_on_bf16(s), out);
        if (s->discrete)
            LS_TRY(st, ls_session_meet_cards(s, info), out);
        LS_TRY(st, ls_session_choose_collectives(s), out);
        free_bytes = s->discrete ? ls_session_share_of_card(s) + kept : free_bytes / s->mesh.local;
        LS_TRY(st, ls_model_groups_open(s), out);
        if (s->groups.replica_comm && s->mesh.pp < 2)
            s->groups.replicas.bucket = ls_replica_bucket(s, s->groups.replicas.bucket);
        LS_TRY(st, ls_cp_group_open(s), out);
        if (!s->mesh.independent && ls_mesh_mp(&s->mesh) == 1)
            s->mesh.bucket =
                ls_dp_bucket_blocks(s->args.comm, &s->mesh, s->model.trained, s->run->mesh.bucket);
    }
    *free_out = free_bytes + info->fixed_bytes; /* what a GPU holds is taken already */
out:
    return st;
}

/* The run that fits; refused when none does. */
static ls_status plan_memory(ls_session *s, ls_memory_args *memory, int64_t free_bytes)
{
    ls_status st;

    LS_TRY(st, ls_session_fit_run(s, memory, free_bytes), out);
    LS_TRY(st, ls_memory_choose_packs(memory, free_bytes), out);
    ls_memory_predict(memory, &s->ledger);
    LS_TRY(st, ls_memory_check(memory, &s->ledger, free_bytes), out);
out:
    return st;
}

/* What all ranks exchange in a step. Ranks that hold one model between them sum gradients among
 * replicas (model_groups.h); this exchange carries only the numbers that all ranks decide on. */
static ls_status open_dp(ls_session *s)
{
    ls_dp_args dp = ls_memory_dp(s->run, &s->model, &s->mesh);

    if (ls_mesh_mp(&s->mesh) > 1) {
        dp = (ls_dp_args){.mesh = s->mesh, .leaves = 1, .trained = 1};
        dp.mesh.zero = dp.mesh.cp = 0;
    } else {
        dp.by_device = ls_session_collectives(s) && ls_memory_by_device(s->run, &s->mesh, &dp);
    }
    dp.comm = s->args.comm;
    return ls_model_groups_open_dp(&s->dp, s->run, dp);
}

/* The exchanges of the step, and with which ranks. */
static ls_status open_exchanges(ls_session *s, ls_step_args *step)
{
    ls_status st = LS_OK;

    if (s->mesh.ranks > 1)
        LS_TRY(st, open_dp(s), out);
    LS_TRY(st, ls_model_groups_open_sums(s), out);
    step->dp = s->mesh.independent ? NULL : ls_mesh_mp(&s->mesh) > 1 ? s->groups.replica_dp : s->dp;
    step->batch_dp = s->mesh.ep < 2 ? NULL : s->groups.slice_dp ? s->groups.slice_dp : s->dp;
    step->tp_group = s->groups.tp;
    step->ep_group = s->groups.ep;
    step->mp_group = s->groups.model_comm;
    step->cp_group = s->groups.cp;
    step->rank = s->mesh.rank;
    step->heals = s->args.rejoin != NULL;
    step->pushes = s->mesh.servers > 0;
out:
    return st;
}

static ls_status open_packs(ls_session *s, const ls_memory_args *memory, ls_step_args *step)
{
    ls_packed_weights_args args;
    ls_status st = LS_OK;

    step->pack = memory->pack;
    if (!ls_memory_packs(memory, &args))
        return LS_OK;
    args.stream = s->stream;
    st = ls_packed_weights_open(&s->packs, &args);
    step->packs = s->packs;
    return st;
}

/* What writes the text samples. */
static ls_status open_samples(ls_session *s, const ls_memory_args *memory)
{
    ls_pass_args args;
    ls_status st = LS_OK;

    if (ls_memory_sample_pass(memory, &args)) {
        args.stream = s->stream;
        args.packs = ls_mesh_mp(&s->mesh) > 1 ? NULL : s->packs; /* those are of a part */
        LS_TRY(st, ls_pass_open(&s->samples.pass, &args), out);
    }
    LS_TRY(st,
           ls_decode_open(&s->samples.decode, ls_model_groups_whole(s),
                          s->samples.pass ? s->samples.pass : ls_step_pass(s->step), s->stream),
           out);
out:
    return st;
}

/* Predict, refuse what does not fit, then take the large memory. */
static ls_status open_step(ls_session *s)
{
    ls_device_info info = ls_device_describe(s->device);
    ls_step_args step = {.model = &s->model,
                         .kernels = s->kernels,
                         .stream = s->stream,
                         .side = s->gpu.side,
                         .offload_to = ls_session_offload_to(s)};
    int64_t kept = ls_replica_bytes(s), free_bytes; /* kept: of a state that is there */
    ls_status st;

    LS_TRY(st, ls_session_check_import(s), out);
    LS_TRY(st, open_groups(s, &info, kept, &free_bytes), out);
    ls_memory_args memory = ls_session_memory(s, &info, kept);
    LS_TRY(st, plan_memory(s, &memory, free_bytes), out);
    step.run = s->run;
    ls_calls_plan(s->run, ls_model_groups_mesh(s), &step.calls);
    LS_TRY(st, open_exchanges(s, &step), out);
    LS_TRY(st, open_packs(s, &memory, &step), out);
    step.collectives = ls_session_collectives(s);
    step.kept = ls_replica_reuse(s);
    LS_TRY(st, ls_step_open(&s->step, &step), out);
    ls_replica_reused(s);
    if (s->sync.mode->open)
        LS_TRY(st, s->sync.mode->open(s), out);
    LS_TRY(st, open_samples(s, &memory), out);
out:
    return st;
}

/* --- state: weights and moments ---------------------------------------------------------------- */

/* Of this run: the newest checkpoint, or the first weights. */
static ls_status load_state(ls_session *s)
{
    ls_status st = LS_OK;

    LS_TRY(st, ls_save_resume(s), out);
    if (s->dp)
        LS_TRY(st, ls_save_share(s), out);
    if (s->step_number > 0)
        LS_TRY(st, ls_error_feedback_share(s), out);
    else
        LS_TRY(st, ls_session_start_weights(s), out);
    LS_TRY(st, LS_SYNC_CALL(s, start, (s)), out);
    s->recovery.has_state = true;
out:
    return st;
}

/* The stores, then the state: from a checkpoint, or from the ranks that have it in memory. */
static ls_status open_state(ls_session *s)
{
    ls_status st = LS_OK;

    if (ls_session_is_first(s))
        LS_TRY(st, ls_save_reopen(s), out);
    LS_TRY(st, ls_sharded_save_open(s), out);
    LS_TRY(st, ls_recover_in_memory(s) ? ls_recover_restore_state(s) : load_state(s), out);
    LS_TRY(st, ls_step_weights_changed(s->step), out);
out:
    return st;
}

/* What guards the state: copies at peers, and checks for corruption. */
static ls_status open_guards(ls_session *s)
{
    ls_status st = LS_OK;

    LS_TRY(st, ls_replica_send_begin(s->step, s->step_number), out);
    ls_replica_begin(s);
    LS_TRY(st, ls_sdc_compare_open(s), out);
    LS_TRY(st, ls_sdc_replay_open(s), out);
out:
    return st;
}

/* --- the whole --------------------------------------------------------------------------------- */

/* What ranks build together, when a run begins and when its ranks are others. */
static ls_status assemble(ls_session *s)
{
    ls_status st;

    LS_TRY(st, ls_session_open_data(s), out);
    LS_TRY(st, ls_run_folder_find_writers(s), out);
    note_time("data opened");
    LS_TRY(st, open_step(s), out);
    note_time("memory taken");
    LS_TRY(st, open_state(s), out);
    LS_TRY(st, ls_reference_open(s), out);
    LS_TRY(st, open_guards(s), out);
    note_time("weights there");
    ls_loader_args loader = ls_session_loader_args(s);
    LS_TRY(st, ls_loader_open(&s->data.loader, &loader), out);
    if (ls_session_is_first(s) && s->folder.events_fd < 0) {
        LS_TRY(st, ls_session_keep_copies(s), out);
        LS_TRY(st, ls_run_folder_open_events(s), out);
    }
    ls_recovery_events_view(s);
    LS_TRY(st, ls_session_report(s), out);
    ls_run_folder_remember(s);
    LS_TRY(st, ls_fault_pass(LS_FAULT_AT_READY), out);
    ls_worker_channel_ready();
out:
    return st;
}

/* A session that has only its arguments. */
static void init(ls_session *s, const ls_session_args *args)
{
    *s = (ls_session){.args = *args,
                      .run = args->run,
                      .sync.mode = ls_sync_of(args->run),
                      .folder.lock_fd = -1,
                      .folder.events_fd = -1,
                      .save.newest_step = -1,
                      .save.saved_step = -1,
                      .save.writing_step = -1,
                      .recovery.source = "replica",
                      .progress.nonfinite_step = -1,
                      .progress.total_steps = ls_check_horizon(args->run),
                      .progress.loss = (double)NAN,
                      .progress.val_loss = (double)NAN,
                      .progress.best = {.step = -1, .judged = -1}};
    if (!args->rejoin)
        s->args.view.plan.base = -1;
    s->args.fresh = args->fresh && !args->view.begun;
    ls_str_init(&s->folder.config);
    ls_str_init(&s->folder.line);
    ls_str_init(&s->save.lineage);
    ls_str_init(&s->save.overridden);
    ls_loss_scaler_init(&s->scaler, s->run);
}

ls_status ls_session_open(ls_session *s, const ls_session_args *args)
{
    ls_status st = LS_OK;

    init(s, args);
    ls_err_doing("preparing run \"%s\"", s->run->name);
    LS_TRY(st, settle(s), out);
    if (ls_session_is_first(s))
        LS_TRY(st, ls_run_folder_open(s), out);
    note_time("settings read");
    LS_TRY(st, ls_session_open_device(s), out);
    note_time("device opened");
    LS_TRY(st, choose_mesh(s), out);
    LS_TRY(st, ls_profiling_open(s), out);
    LS_TRY(st, ls_replica_choose(s), out);
    LS_TRY(st, assemble(s), out);
out:
    ls_err_done();
    if (st != LS_OK && s->folder.made && s->folder.lock_fd >= 0)
        ls_run_folder_remove(s);
    if (st != LS_OK)
        ls_session_close(s);
    return st;
}

/* This rank was the first, and is not any more: a spare with a lower rank has come in. */
static ls_status leave_folder(ls_session *s)
{
    ls_status st = ls_save_leave(s);

    ls_run_folder_leave(s);
    return st;
}

/* Nothing of the state is in memory: the run goes on from its newest checkpoint. */
static void forget_progress(ls_session *s)
{
    ls_replica_drop(s);
    s->step_number = 0;
    s->save.saved_step = s->save.newest_step = s->progress.nonfinite_step = -1;
    s->progress.loss = s->progress.val_loss = (double)NAN;
    s->progress.best = (ls_session_best){.step = -1, .judged = -1};
}

ls_status ls_session_regroup(ls_session *s)
{
    ls_status st = LS_OK;

    s->args.fresh = false;
    s->args.local_ranks = s->args.view.local_ranks;
    ls_err_doing("going on with %d ranks", ls_comm_ranks(s->args.comm));
    LS_TRY(st, ls_save_wait(s), out); /* it reads the settings, which change now */
    LS_TRY(st, recall_mesh(s), out);
    LS_TRY(st, ls_session_open_mesh(s), out);
    if (!ls_session_is_first(s) && s->folder.lock_fd >= 0)
        LS_TRY(st, leave_folder(s), out);
    LS_TRY(st, ls_batch_slice_open(s), out);
    LS_TRY(st, ls_replica_choose(s), out);
    if (ls_mesh_mp(&s->mesh) > 1 || s->groups.whole.params) /* its part may be another one */
        LS_TRY(st, ls_model_groups_models(s), out);
    if (ls_session_is_first(s) && s->folder.lock_fd < 0)
        LS_TRY(st, ls_run_folder_open(s), out);
    if (!ls_recover_in_memory(s))
        forget_progress(s);
    LS_TRY(st, assemble(s), out);
out:
    ls_err_done();
    return st;
}

void ls_session_close(ls_session *s)
{
    ls_save_close(s);
    ls_recover_close_view(s);
    ls_sdc_compare_close(s);
    ls_replica_drop(s);
    ls_mesh_choice_release(&s->auto_mesh.choice);
    ls_model_release(&s->model);
    ls_model_release(&s->groups.whole);
    ls_corpus_close(s->data.corpus);
    ls_tokenizer_free(s->data.tokenizer);
    ls_reference_close(s);
    ls_profiling_close(s);
    ls_stream_free(s->gpu.side);
    ls_stream_free(s->stream);
    if (!s->args.device)
        ls_device_close(s->device);
    ls_run_folder_leave(s);
    ls_str_release(&s->folder.config);
    ls_str_release(&s->folder.line);
    ls_str_release(&s->save.lineage);
    ls_str_release(&s->save.overridden);
    *s = (ls_session){.folder.lock_fd = -1, .folder.events_fd = -1};
}
