/* save_resume.c -- where a run goes on: its newest checkpoint, unless the run has changed.
 *
 * A checkpoint has the resolved run file, the hash of the tokens and the data cursor: the number of
 * samples used, the one integer that the data order needs. All three must agree with this run, or the
 * resumed run would not have the bits of one that never stopped. A batch of 8 sequences, step 400:
 *
 *     cursor of the checkpoint   3200 samples    8 x 400: the next step reads sample 3200
 *     run file says batch 16     6400 expected   refused: settings differ (and the cursor would)
 *     another tokenizer          other hash      refused: the run was trained on other text
 *
 * Settings are compared first: tensors of another shape would give a poorer message. */
#include "train/save/save_impl.h"

#include "base/log.h"
#include "base/mem.h"
#include "config/explain.h"
#include "config/ramp.h"
#include "config/runfile.h"
#include "train/save/best_loss.h"
#include "train/save/error_feedback.h"
#include "train/save/sharded_save.h"
#include "train/save/signing.h"

ls_status ls_save_share_progress(ls_session *s, int from)
{
    ls_status st = LS_OK;

    if (!s->dp)
        return LS_OK;
    LS_TRY(st, ls_dp_broadcast(s->dp, from, &s->progress, sizeof s->progress), out);
    LS_TRY(st, ls_dp_broadcast(s->dp, from, &s->scaler, sizeof s->scaler), out);
out:
    return st;
}

ls_status ls_save_share(ls_session *s)
{
    int64_t steps[3] = {s->step_number, s->save.newest_step, s->save.saved_step};
    ls_status st;

    LS_TRY(st, ls_save_share_progress(s, 0), out);
    LS_TRY(st, ls_dp_broadcast(s->dp, 0, steps, sizeof steps), out);
    s->step_number = steps[0];
    s->save.newest_step = steps[1];
    s->save.saved_step = steps[2];
    st = ls_save_scatter_snapshot(s);
out:
    return st;
}

/* What earlier attempts have noted, and what this one changes by --override. */
static ls_status note_lineage(ls_session *s, const ls_ckpt_info *info, const ls_run *before)
{
    ls_str *lineage = &s->save.lineage, *changed = &s->save.overridden;

    ls_str_clear(lineage);
    ls_str_clear(changed);
    ls_str_append(lineage, info->lineage);
    ls_explain_overridden(before, s->args.run, changed);
    if (changed->len)
        ls_str_printf(lineage, "%sstep %lld: %s", lineage->len ? "\n" : "", (long long)info->step,
                      changed->p);
    ls_status st = ls_str_status(changed);
    return st == LS_OK ? ls_str_status(lineage) : st;
}

/* The run that made the checkpoint must agree with this one on everything that decides the bits, but for
 * what the command line overrides. */
static ls_status check_same_run(ls_session *s, const ls_ckpt_info *info)
{
    ls_run before;
    ls_str diff;
    const ls_runfile_source source = {.text = info->config,
                                      .len = strlen(info->config),
                                      .text_name = "checkpoint",
                                      .no_environment = true,
                                      .no_files = true};
    ls_status st = ls_runfile_load(&before, &source);

    if (st != LS_OK)
        return st;
    ls_str_init(&diff);
    int differ = ls_explain_diff(&before, s->args.run, &diff);
    if (differ < 0) {
        st = LS_ENOMEM;
    } else if (differ > 0) {
        st = ls_fail(LS_EUSAGE,
                     "the checkpoint in \"%s\" was made with other settings (then -> now):\n%.*s",
                     s->run->out, (int)diff.len - 1, diff.p); /* without the last line end */
        ls_err_hint("Restore them, choose another out: folder, start anew with --fresh (earlier "
                    "checkpoints are put aside, not removed), or say on the command line what is "
                    "to change, as in --override train.lr=1e-5, where that can.");
    } else if (info->extra[0] && strncmp(info->extra, s->data.hash, strlen(s->data.hash)) != 0) {
        st = ls_fail(LS_EDATA,
                     "the checkpoint in \"%s\" was trained on other text: its files have changed",
                     s->run->out);
        ls_err_hint("Restore them, choose another out: folder, or start anew with --fresh (earlier "
                    "checkpoints are put aside, not removed).");
    } else {
        st = note_lineage(s, info, &before);
    }
    ls_str_release(&diff);
    ls_runfile_release(&before);
    return st;
}

ls_status ls_save_newest_step(const ls_ckpt_store *store, int64_t *step_out)
{
    int64_t *steps;
    int n;
    ls_status st = ls_ckpt_steps(store, &steps, &n);

    if (st != LS_OK)
        return st;
    *step_out = n ? steps[n - 1] : -1;
    ls_mem_free(steps);
    return LS_OK;
}

/* Settings first: tensors of another shape would give a poorer message. */
static ls_status check_newest(ls_session *s, bool *found_out)
{
    ls_ckpt *newest = NULL;
    ls_str passed; /* damaged ones: the load reports them */
    ls_status st = LS_OK;

    ls_str_init(&passed);
    LS_TRY(st, ls_ckpt_find(s->save.store, -1, &newest, &passed), out);
    *found_out = newest != NULL;
    if (newest)
        st = check_same_run(s, ls_ckpt_about(newest));
out:
    ls_str_release(&passed);
    ls_ckpt_free(newest);
    return st;
}

/* The newest checkpoint to where the state is, or, where the first rank loads for others, to its
 * snapshot. */
static ls_status load(ls_session *s, ls_ckpt_info *info_out, bool *found_out)
{
    ls_status st = LS_OK;

    if (s->save.sharded)
        return ls_sharded_save_load(s, info_out, found_out);
    if (s->snapshot.staged)
        LS_TRY(st, ls_save_open_snapshot(s), out);
    LS_TRY(st,
           ls_ckpt_load_newest(s->save.store, s->snapshot.live_rows, s->snapshot.n_rows, info_out,
                               found_out),
           out);
    s->loaded.read = ls_ckpt_last_read(s->save.store);
    s->loaded.most_bytes = s->loaded.read.bytes;
    if (*found_out)
        st = ls_save_send_loaded(s);
out:
    return st;
}

/* A run goes on as it began: older versions counted learned positions on through the window. */
static void take_positions(ls_session *s, const char *extra)
{
    if (!ls_save_positions_restart(s) || strstr(extra, LS_SAVE_POSITIONS))
        return;
    s->progress.positions_run_on = true;
    ls_log(
        LS_LOG_WARN,
        "an older version began this run: positions go on counting from the beginning of each "
        "window; those of a new run count from the beginning of each document, as generate does");
}

ls_status ls_save_recall(ls_session *s)
{
    bool found;
    ls_status st = check_newest(s, &found);

    return st == LS_OK ? ls_save_newest_step(s->save.store, &s->save.saved_step) : st;
}

ls_status ls_save_resume(ls_session *s)
{
    ls_ckpt_info info;
    bool first = s->mesh.rank == 0, found = false;
    ls_status st = LS_OK;

    if (!first && !s->save.sharded)
        return LS_OK;
    ls_err_doing("looking for a checkpoint to resume from");
    if (first)
        LS_TRY(st, check_newest(s, &found), out);
    if (found || s->save.sharded)
        LS_TRY(st, load(s, &info, &found), out);
    if (!found || !first)
        goto out;
    if (info.cursor != ls_ramp_samples(s->run, info.step)) {
        st = ls_fail(LS_EDATA, "the checkpoint of step %lld stands at sample %lld, expected %lld",
                     (long long)info.step, (long long)info.cursor,
                     (long long)ls_ramp_samples(s->run, info.step));
        goto out;
    }
    ls_signing_warn(s->run, &info);
    take_positions(s, info.extra);
    LS_TRY(st, ls_best_loss_read(&s->progress.best, info.extra), out);
    LS_TRY(st, ls_loss_scaler_read(&s->scaler, info.extra), out);
    LS_TRY(st, ls_error_feedback_load(s, info.step), out);
    LS_TRY(st, ls_save_newest_step(s->save.store, &s->save.newest_step), out);
    s->step_number = info.step;
    s->save.saved_step = info.step;
    s->progress.loss = info.loss;
    s->progress.val_loss = info.val_loss;
out:
    ls_err_done();
    return st;
}
