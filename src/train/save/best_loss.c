/* best_loss.c -- judges validation losses for checkpoint.best and train.patience.
 *
 *     after step     100    200    300    400    500      train.patience: 3
 *     validation     2.31   2.12   2.14   2.12   2.20
 *     best           100    200    200    200    200      a loss that is as low is not better
 *     since            0      0      1      2      3      over: the run ends after step 500
 *
 * The record names the best loss, not its checkpoint: a save may fail. Which checkpoint is the best one is
 * in the manifests (ls_ckpt_info.best), so it can be found without the run. */
#include "train/save/best_loss.h"

#include <math.h>

static bool is_judged(const ls_run *run)
{
    return ls_run_keeps_best(run) || run->train.patience > 0;
}

void ls_best_loss_judge(ls_session *s)
{
    ls_session_best *b = &s->progress.best;
    double loss = s->progress.val_loss;

    if (!is_judged(s->run) || b->judged == s->step_number)
        return;
    b->judged = s->step_number;
    if (b->step < 0 ? !isnan(loss) : loss < b->loss) {
        b->step = s->step_number;
        b->loss = loss;
        b->since = 0;
    } else {
        b->since++;
    }
}

bool ls_best_loss_is_now(const ls_session *s)
{
    return ls_run_keeps_best(s->run) && s->progress.best.step == s->step_number;
}

bool ls_best_loss_is_over(const ls_session *s)
{
    return s->run->train.patience > 0 && s->progress.best.since >= s->run->train.patience;
}

void ls_best_loss_write(const ls_session_best *b, char text_out[LS_BEST_LOSS_TEXT])
{
    text_out[0] = '\0';
    if (b->judged >= 0)
        snprintf(text_out, LS_BEST_LOSS_TEXT,
                 " best_step=%lld best_loss=%.17g since=%lld judged=%lld", (long long)b->step,
                 b->loss, (long long)b->since, (long long)b->judged);
}

ls_status ls_best_loss_read(ls_session_best *best, const char *text)
{
    const char *at = strstr(text, " best_step=");
    long long step, since, judged;
    double loss;

    if (!at)
        return LS_OK;
    if (sscanf(at, " best_step=%lld best_loss=%lf since=%lld judged=%lld", &step, &loss, &since,
               &judged) != 4 ||
        step < -1 || since < 0 || judged < step)
        return ls_fail(LS_EDATA, "the checkpoint's best validation loss cannot be read: \"%s\"",
                       at + 1);
    *best = (ls_session_best){.step = step, .loss = loss, .since = since, .judged = judged};
    return LS_OK;
}

ls_status ls_best_loss_kept(const ls_session *s, int64_t *step_out, double *loss_out)
{
    ls_ckpt *ckpt = NULL;

    *step_out = -1;
    if (!is_judged(s->run))
        return LS_OK;
    ls_status st = ls_ckpt_find(s->save.store, LS_CKPT_BEST, &ckpt, NULL);
    if (st == LS_OK) {
        *step_out = ls_ckpt_about(ckpt)->step;
        *loss_out = ls_ckpt_about(ckpt)->val_loss;
    }
    ls_ckpt_free(ckpt);
    if (st == LS_ENOMEM)
        return st;
    ls_err_clear(); /* none is marked, or none can be read: the summary names none */
    return LS_OK;
}
