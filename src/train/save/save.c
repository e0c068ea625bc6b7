/* save.c -- when a session saves, and which rank writes.
 *
 * A background save first copies the flat buffers to the snapshot, and the writer reads only that:
 *
 *     step s          forward  backward  update | save begins
 *     step s + 1      forward  backward         | update: waits until the copy is made
 *                     copy of the state ......
 *     steps after             hash, write objects, commit ............................ | event
 *
 * The writer's thread copies, or the device where it has memory of its own; the update waits for it
 * (ls_save_copied). Only what must be collected from ranks, or changes beside steps (sync: local), is
 * copied at once. Of several ranks each writes and reads its parts (sharded_save.c). Where some do
 * not see the folder, and with sync: local, the first rank writes all, and the functions that collect
 * and deal out are called by all ranks (save_snapshot.c). */
#include "train/save/save_impl.h"
#include "train/save/signing.h"

#include <limits.h>
#include "base/file.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "config/ramp.h"
#include "train/save/best_loss.h"
#include "train/save/error_feedback.h"
#include "train/save/sharded_save.h"
#include "train/session/session_impl.h"
#include "train/session/model_groups.h"
#include "train/session/sync.h"
#include "train/save/commit_token.h"

enum { KINDS = LS_SAVE_KINDS };

/* Earlier checkpoints are moved, not removed: nothing is lost by --fresh. */
static ls_status put_aside(const char *dir)
{
    char aside[PATH_MAX];

    if (!ls_file_exists(dir))
        return LS_OK;
    for (int i = 1; i < 10000; i++) {
        if ((size_t)snprintf(aside, sizeof aside, "%s.before-%d", dir, i) >= sizeof aside)
            return ls_fail(LS_EIO, "the path of \"%s\" is too long", dir);
        if (ls_file_exists(aside))
            continue;
        if (rename(dir, aside) != 0)
            return ls_fail_sys(LS_EIO, "cannot move \"%s\" to \"%s\"", dir, aside);
        ls_log(LS_LOG_INFO, "moved earlier checkpoints to \"%s\"", aside);
        return LS_OK;
    }
    return ls_fail(LS_EIO, "too many earlier checkpoints beside \"%s\"", dir);
}

/* Open the store and, where checkpoints are written during training, the writer and its snapshot.
 */
static ls_status open_save(ls_session *s)
{
    void *arrays[KINDS];
    char dir[PATH_MAX];
    ls_status st = LS_OK;

    ls_save_live(s, arrays);
    snprintf(dir, sizeof dir, "%s/checkpoints", s->run->out);
    if (s->args.fresh)
        LS_TRY(st, put_aside(dir), out);
    int most = (KINDS + ls_error_feedback_vectors(s)) * ls_model_groups_whole(s)->n_params;
    s->snapshot.live_rows = ls_mem_array((size_t)most, sizeof *s->snapshot.live_rows);
    s->snapshot.rows = ls_mem_array((size_t)most, sizeof *s->snapshot.rows);
    if (!s->snapshot.live_rows || !s->snapshot.rows) {
        st = LS_ENOMEM;
        goto out;
    }
    s->snapshot.n_rows = ls_save_fill_rows(s, s->snapshot.live_rows, arrays);
    LS_TRY(st, ls_error_feedback_open(s), out);
    LS_TRY(st, ls_ckpt_open(&s->save.store, dir, true), out);
    LS_TRY(st, ls_signing_store(s->run, s->save.store), out);
    LS_TRY(st, ls_save_mirror(s, s->save.store), out);
    LS_TRY(st, ls_ckpt_claim(s->save.store, &s->save.generation), out);
    LS_TRY(st, ls_commit_token_open(s), out);
    if (!s->discrete)
        LS_TRY(st, ls_save_open_snapshot(s), out);
    if (!ls_run_saves(s->run) || ls_mesh_saves_parts(&s->mesh))
        goto out;
    LS_TRY(st, ls_ckpt_writer_create(&s->save.writer, s->save.store, NULL), out);
    if (s->discrete) {
        LS_TRY(st, ls_stream_create(&s->snapshot.stream, s->device), out);
        LS_TRY(st, ls_event_create(&s->snapshot.updated, s->device), out);
    }
out:
    return st;
}

void ls_save_close(ls_session *s)
{
    ls_sharded_save_close(s);
    ls_ckpt_writer_free(s->save.writer);
    ls_ckpt_close(s->save.store);
    ls_commit_token_close(s);
    ls_event_free(s->snapshot.updated);
    ls_stream_free(s->snapshot.stream);
    ls_save_close_snapshot(s);
    ls_error_feedback_close(s);
    ls_mem_free(s->snapshot.live_rows);
    ls_mem_free(s->snapshot.rows);
}

bool ls_save_positions_restart(const ls_session *s)
{
    return s->model.shape.positions > 0 && ls_corpus_isolates(s->data.corpus) &&
           !s->progress.positions_run_on;
}

ls_ckpt_info ls_save_info(ls_session *s)
{
    char scaler[LS_LOSS_SCALER_TEXT], best[LS_BEST_LOSS_TEXT];

    ls_loss_scaler_write(&s->scaler, scaler);
    ls_best_loss_write(&s->progress.best, best);
    snprintf(s->save.extra, sizeof s->save.extra, "%s%s%s%s", s->data.hash,
             ls_save_positions_restart(s) ? LS_SAVE_POSITIONS : "", best, scaler);
    return (ls_ckpt_info){.step = s->step_number,
                          .cursor = ls_ramp_samples(s->run, s->step_number),
                          .tokens = ls_ramp_samples(s->run, s->step_number) * s->model.shape.T,
                          .generation = s->save.generation,
                          .seed = (uint64_t)s->run->train.seed,
                          .loss = s->progress.loss,
                          .val_loss = s->progress.val_loss,
                          .run_name = s->run->name,
                          .mesh = s->mesh_text,
                          .config = s->folder.config.p,
                          .extra = s->save.extra,
                          .lineage = s->save.lineage.p,
                          .best = ls_best_loss_is_now(s)};
}

void ls_save_saved(ls_session *s, int64_t step, const ls_ckpt_saved *saved)
{
    s->save.saved_step = step;
    if (saved->bytes_written > 0 && saved->seconds > s->save.slowest_s)
        s->save.slowest_s = saved->seconds;
    ls_session_emit(s, &(ls_event){.kind = LS_EVENT_CHECKPOINT,
                                   .checkpoint = {.step = step,
                                                  .bytes_written = saved->bytes_written,
                                                  .bytes_reused = saved->bytes_reused,
                                                  .seconds = saved->seconds,
                                                  .waited_ms = (double)s->save.waited_ns / 1e6,
                                                  .path = saved->path,
                                                  .writers = saved->writers,
                                                  .most_bytes = saved->most_bytes}});
}

void ls_save_unsaved(ls_session *s, int64_t step)
{
    ls_log(LS_LOG_WARN, "the checkpoint of step %lld was not saved: %s; training goes on",
           (long long)step, ls_err_last()->text);
    ls_session_incident(s, step, "checkpoint", "training goes on", ls_err_last()->text);
}

ls_status ls_save_mirror(const ls_session *s, ls_ckpt_store *store)
{
    return s->run->checkpoint.mirror[0] ? ls_ckpt_set_mirror(store, s->run->checkpoint.mirror)
                                        : LS_OK;
}

static ls_status copy_to_mirror(const ls_session *s, int64_t step)
{
    const ls_ckpt_pruning kept = ls_save_kept(s);
    ls_ckpt_store *to = NULL;
    ls_ckpt *ckpt = NULL;
    ls_ckpt_copied copied;
    ls_status st;

    LS_TRY(st, ls_ckpt_open(&to, s->run->checkpoint.mirror, true), out);
    LS_TRY(st, ls_signing_store(s->run, to), out);
    LS_TRY(st, ls_ckpt_find(s->save.store, step, &ckpt, NULL), out);
    LS_TRY(st, ls_ckpt_copy(ckpt, to, &copied), out);
    LS_TRY(st, ls_ckpt_prune_by(to, &kept, NULL), out);
out:
    ls_ckpt_free(ckpt);
    ls_ckpt_close(to);
    return st;
}

ls_ckpt_pruning ls_save_kept(const ls_session *session)
{
    return (ls_ckpt_pruning){.keep = session->run->checkpoint.keep,
                             .keep_every = session->run->checkpoint.keep_every,
                             .least = 2, /* the newest may turn out to be damaged */
                             .like = session->save.store};
}

void ls_save_tidy(const ls_session *s, int64_t step)
{
    const ls_ckpt_pruning kept = ls_save_kept(s);

    if (s->run->checkpoint.mirror[0] && copy_to_mirror(s, step) != LS_OK)
        ls_log(LS_LOG_WARN, "step %lld has no copy in \"%s\": %s", (long long)step,
               s->run->checkpoint.mirror, ls_err_last()->text);
    /* The state is safe; failing to tidy up must not look like failing to save. */
    if (ls_ckpt_prune_by(s->save.store, &kept, NULL) != LS_OK)
        ls_log(LS_LOG_WARN, "cannot remove old checkpoints: %s", ls_err_last()->text);
}

/* A background save ended, well or badly. */
static void report_ended(ls_session *s, ls_status st, const ls_ckpt_saved *saved)
{
    int64_t step = s->save.writing_step;

    s->save.writing_step = -1;
    if (st == LS_OK)
        ls_save_saved(s, step, saved);
    else
        ls_save_unsaved(s, step);
}

/* prompt: do not wait for an answer of etcd that does not come at once. */
static ls_status wait_save(ls_session *s, bool prompt)
{
    int64_t until_ns = ls_save_deadline();
    ls_ckpt_saved saved;
    bool done = false;

    if (!s->save.writer || s->save.writing_step < 0)
        return LS_OK;
    if (ls_save_copied(s) != LS_OK)
        return LS_EDEADLINE;
    if (s->save.writing_step < 0)
        return LS_OK;
    if (LS_FAULT("train.writer_wait"))
        return ls_fail(LS_EDEADLINE, "the save of step %lld is still running",
                       (long long)s->save.writing_step);
    ls_status st = prompt ? ls_commit_token_wait(s, s->save.writer, until_ns, &done, &saved)
                          : ls_ckpt_writer_wait(s->save.writer, until_ns, &done, &saved);
    if (!done)
        return st;
    report_ended(s, st, &saved);
    return LS_OK;
}

ls_status ls_save_wait(ls_session *session)
{
    return wait_save(session, false);
}

ls_status ls_save_leave(ls_session *s)
{
    ls_status st = LS_OK;

    if (!s->save.store)
        return LS_OK;
    LS_TRY(st, ls_save_wait(s), out);
    ls_save_close(s);
    s->save.writer = NULL;
    s->save.store = NULL;
    s->snapshot.stream = NULL;
    s->snapshot.updated = NULL;
    s->snapshot.live_rows = s->snapshot.rows = NULL;
    s->save.writing_step = -1;
out:
    return st;
}

ls_status ls_save_reopen(ls_session *s)
{
    ls_status st = LS_OK;

    LS_TRY(st, ls_save_leave(s), out);
    LS_TRY(st, open_save(s), out);
    if (s->args.view.plan.base >= 0) /* nothing will be loaded */
        LS_TRY(st, ls_save_recall(s), out);
out:
    return st;
}

/* Whether the first rank saves now: ranks that have parts of the state must know. */
static ls_status agree_to_save(ls_session *s, bool *saves)
{
    bool together = ls_mesh_divides(&s->mesh) || ls_error_feedback_vectors(s) > 0;
    unsigned char word = *saves;
    ls_status st = together ? ls_dp_broadcast(s->dp, 0, &word, sizeof word) : LS_OK;

    *saves = word != 0 && (s->mesh.rank == 0 || together);
    return st;
}

/* Write what the snapshot has, or, where it must be filled first, copy it on the writer's thread.
 */
static ls_status save_copy(void *context, ls_ckpt_saved *saved_out)
{
    ls_session *s = context;
    ls_status st = ls_ckpt_save(s->save.store, &s->save.writing, s->snapshot.rows,
                                s->snapshot.n_rows + s->feedback.n_rows, saved_out);

    if (st == LS_OK)
        ls_save_tidy(s, s->save.writing.step);
    return st;
}

static void start_writer(ls_session *s, bool copies)
{
    const ls_ckpt_job job = {.step = s->save.writing.step,
                             .copy = copies ? ls_save_copy_here : NULL,
                             .work = save_copy,
                             .context = s};

    if (ls_ckpt_writer_run(s->save.writer, &job, 0) == LS_OK) {
        s->save.writing_step = s->save.writing.step;
    } else {
        s->save.writing_step = -1;
        ls_save_unsaved(s, s->save.writing.step);
    }
}

static ls_status wait_copy(ls_session *s)
{
    int64_t until_ns = ls_save_deadline();

    if (s->save.sharded)
        return ls_sharded_save_copied(s);
    if (s->snapshot.copying) {
        s->snapshot.copying = false;
        if (ls_stream_sync(s->snapshot.stream, until_ns) == LS_OK) {
            start_writer(s, false);
        } else {
            s->save.writing_step = -1;
            ls_save_unsaved(s, s->save.writing.step);
        }
        return LS_OK;
    }
    return s->save.writer ? ls_ckpt_writer_copied(s->save.writer, until_ns) : LS_OK;
}

ls_status ls_save_copied(ls_session *session)
{
    int64_t begun_ns = ls_time_now_ns();
    ls_status st = wait_copy(session);

    session->save.waited_ns += ls_time_now_ns() - begun_ns;
    return st;
}

/* The present state, whose snapshot is there and free: copied while the caller goes on, where no other
 * rank has a part of it. */
static ls_status begin_alone(ls_session *s)
{
    ls_status st = LS_OK;

    s->save.writing = ls_save_info(s);
    if (s->discrete && s->mesh.ranks < 2) {
        ls_event_record(s->snapshot.updated, s->stream);
        ls_stream_wait(s->snapshot.stream, s->snapshot.updated);
        ls_save_copy_out(s, s->snapshot.stream, ls_optim_kinds(s->run));
        s->snapshot.copying = true;
        s->save.writing_step = s->step_number;
    } else if (s->sync.mode->copies_at_once || s->snapshot.staged) {
        st = ls_save_take_snapshot(s, ls_optim_kinds(s->run));
        if (st == LS_OK && s->mesh.rank == 0)
            start_writer(s, false);
    } else if (s->mesh.rank == 0) {
        start_writer(s, true);
    }
    return st;
}

static ls_status wait_for_copy(void *context)
{
    return ls_save_copied(context);
}

static ls_status begin(ls_session *s)
{
    bool first = s->mesh.rank == 0, saves;
    ls_status st = LS_OK;

    ls_step_set_hook(s->step, LS_STEP_UPDATES, wait_for_copy, s);
    if (s->save.sharded) {
        LS_TRY(st, ls_step_settle(s->step), out);
        return ls_sharded_save_begin(s);
    }
    saves = first && wait_save(s, true) == LS_OK && ls_save_open_snapshot(s) == LS_OK;
    if (first && !saves)
        ls_save_unsaved(s, s->step_number);
    LS_TRY(st, agree_to_save(s, &saves), out);
    if (saves) {
        LS_TRY(st, ls_error_feedback_collect(s), out);
        LS_TRY(st, begin_alone(s), out);
    }
out:
    return st;
}

ls_status ls_save_begin(ls_session *session)
{
    int64_t begun_ns = ls_time_now_ns();
    ls_status st = begin(session);

    session->save.waited_ns = ls_time_now_ns() - begun_ns;
    return st;
}

ls_status ls_save_poll(ls_session *session)
{
    ls_ckpt_saved saved;
    bool done = false;

    if (session->save.sharded)
        return ls_sharded_save_poll(session);
    if (!session->save.writer || session->save.writing_step < 0 || session->snapshot.copying)
        return LS_OK;
    ls_status st = ls_ckpt_writer_poll(session->save.writer, &done, &saved);
    if (done)
        report_ended(session, st, &saved);
    return LS_OK;
}

ls_status ls_save_final(ls_session *s)
{
    ls_ckpt_info info;
    ls_ckpt_saved saved;
    ls_status st = LS_OK;

    bool first = s->mesh.rank == 0, saves = true;

    ls_err_doing("saving step %lld", (long long)s->step_number);
    if (s->save.sharded) {
        LS_TRY(st, ls_step_settle(s->step), out);
        st = ls_sharded_save_final(s);
        goto out;
    }
    if (first) {
        LS_TRY(st, ls_save_wait(s), out);
        saves = s->save.saved_step != s->step_number;
        if (saves && s->snapshot.staged)
            LS_TRY(st, ls_save_open_snapshot(s), out);
    }
    LS_TRY(st, agree_to_save(s, &saves), out);
    if (saves && s->snapshot.staged)
        LS_TRY(st, ls_save_take_snapshot(s, ls_optim_kinds(s->run)), out);
    if (saves)
        LS_TRY(st, ls_error_feedback_collect(s), out);
    if (!saves || !first)
        goto out;
    info = ls_save_info(s);
    s->save.waited_ns = 0; /* no step comes after it */
    LS_TRY(st,
           ls_ckpt_save(s->save.store, &info, s->snapshot.live_rows,
                        s->snapshot.n_rows + s->feedback.n_rows, &saved),
           out);
    ls_save_saved(s, s->step_number, &saved);
    ls_save_tidy(s, s->step_number);
out:
    ls_err_done();
    return st;
}
