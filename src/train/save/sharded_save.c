/* sharded_save.c -- every rank writes its part of a checkpoint; the first rank commits.
 *
 * The way of a save, on every rank:
 *
 *   IDLE --begin--> WRITING   the writer's thread copies this rank's parts while the next forward
 *                             and backward run, hashes them and writes their objects
 *   WRITING --poll--> IDLE    in every step each rank says how far it is; when all have ended, the
 *                             reports go to the first rank, whose thread commits: COMMITTING there
 *   COMMITTING --poll--> IDLE first rank only: an event reports the checkpoint
 *
 * Ranges. 2 ranks, ZeRO 1: the weights w are the same on both, each writes half of them; the moments
 * m of bucket 0 and 1 are divided, and each writes its own:
 *
 *     w   0 0 0 0 0 0 0 0 1 1 1 1 1 1 1 1
 *     m   0 0 0 0 1 1 1 1 0 0 0 0 1 1 1 1
 *
 * In a pipeline each rank writes a part of its layers, with mesh.tp of its slice of the tensors; what
 * several ranks have they share (layout/ckpt_ranges.h). A range is cut at the borders of tensors and
 * rows, and becomes boxes of whole tensors (tensor_boxes.h). What the ranks of a mesh slice have in
 * common a second rank hashes too, another one in each save: corruption that would go to disk shows
 * as two different hashes, and nothing is committed. */
#include "train/save/sharded_save_impl.h"

#include <limits.h>
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "layout/ckpt_ranges.h"
#include "train/save/tensor_boxes.h"
#include "train/save/error_feedback.h"
#include "train/save/signing.h"
#include "train/session/model_groups.h"
#include "train/save/commit_token.h"

_Static_assert((int)LS_CKPT_RANGES_LARGE == (int)LS_CKPT_DIRECT &&
                   (int)LS_CKPT_RANGES_BUFFERS == (int)LS_CKPT_BUFFERS &&
                   (int)LS_CKPT_RANGES_READ_BACK == (int)LS_CKPT_READ_BACK,
               "the ledger has the buffers of a save");

/* --- which parts --------------------------------------------------------------------------------
 */

/* Residuals have been collected on the first rank, in memory of their own. */
static int add_feedbacks(const ls_session *s, ls_ckpt_part *parts)
{
    for (int i = 0; i < s->feedback.n_rows; i++) {
        const ls_ckpt_tensor *t = &s->snapshot.rows[s->snapshot.n_rows + i];
        parts[i] = (ls_ckpt_part){.of = *t};
        memcpy(parts[i].shape, t->shape, sizeof t->shape);
    }
    return s->feedback.n_rows;
}

static ls_status list_parts(ls_session *s)
{
    struct ls_sharded_save *p = s->save.sharded;
    ls_status st;

    LS_TRY(st, ls_tensor_boxes_read(s, &p->wants, &p->n_wants), out);
    LS_TRY(st, ls_tensor_boxes_written(s, s->feedback.n_rows, &p->live, &p->n), out);
    p->copies = ls_mem_array((size_t)(p->n + s->feedback.n_rows), sizeof *p->copies);
    LS_TRY(st, p->copies ? LS_OK : LS_ENOMEM, out);
    if (p->memory)
        ls_tensor_boxes_pack(p->live, p->n, p->memory, p->copies);
    (void)add_feedbacks(s, p->copies + p->n);
    p->n += add_feedbacks(s, p->live + p->n);
out:
    return st;
}

ls_status ls_sharded_save_open(ls_session *s)
{
    int64_t bytes = ls_memory_parts_bytes(s->run, &s->model, &s->mesh, ls_model_groups_replicas(s));
    char dir[PATH_MAX];
    ls_status st = LS_OK;

    if (!ls_mesh_saves_parts(&s->mesh))
        return LS_OK;
    struct ls_sharded_save *p = s->save.sharded = ls_mem_alloc(sizeof *p);
    if (!p)
        return LS_ENOMEM;
    ls_str_init(&p->report);
    ls_str_init(&p->seen);
    /* The first rank has made the folder; no other rank looks for it before. */
    LS_TRY(st, ls_dp_broadcast(s->dp, 0, &(char){0}, 1), out);
    snprintf(dir, sizeof dir, "%s/checkpoints", s->run->out);
    p->store = s->save.store;
    if (s->mesh.rank > 0) {
        LS_TRY(st, ls_ckpt_open(&p->store, dir, false), out);
        LS_TRY(st, ls_signing_store(s->run, p->store), out);
    }
    LS_TRY(st, ls_save_mirror(s, p->store), out);
    if (bytes > 0)
        LS_TRY(st, ls_device_alloc(s->device, bytes, "checkpoint snapshot", &p->memory), out);
    if (bytes > 0 || ls_run_saves(s->run)) /* a rank without parts says so in every save */
        LS_TRY(st, ls_ckpt_writer_create(&p->writer, p->store, NULL), out);
    LS_TRY(st, list_parts(s), out);
out:
    return st;
}

void ls_sharded_save_close(ls_session *s)
{
    struct ls_sharded_save *p = s->save.sharded;

    if (!p)
        return;
    ls_ckpt_writer_free(p->writer);
    if (s->mesh.rank > 0)
        ls_ckpt_close(p->store);
    if (p->memory)
        ls_device_free(s->device, p->memory);
    ls_str_release(&p->report);
    ls_str_release(&p->seen);
    ls_mem_free(p->live);
    ls_mem_free(p->copies);
    ls_mem_free(p->wants);
    ls_mem_free(p->shard_replicas);
    ls_mem_free(p->texts);
    ls_mem_free(p->reports);
    ls_mem_free(p);
    s->save.sharded = NULL;
}

/* --- saving -------------------------------------------------------------------------------------
 */

static ls_ckpt_writing writing(const ls_session *s)
{
    return (ls_ckpt_writing){.step = s->save.sharded->info.step,
                             .writers = s->mesh.ranks,
                             .manifest_bytes = (int64_t)s->folder.config.len + 4096};
}

/* What is hashed of the live state: another rank's share of what all have, and the weights. */
static ls_status look(ls_session *s)
{
    struct ls_sharded_save *p = s->save.sharded;
    const ls_ckpt_writing how = writing(s);
    ls_status st = LS_OK;

    if (p->n_shard_replicas && ls_step_test_point("flip", s->mesh.rank, -1))
        *(unsigned char *)p->shard_replicas[0].of.bytes ^= 1;
    if (p->n_shard_replicas)
        LS_TRY(st,
               ls_ckpt_write_parts(NULL, &how, p->shard_replicas, p->n_shard_replicas, &p->seen),
               out);
    if (s->mesh.rank == 0 && !ls_save_divided(s, 0))
        st = ls_ckpt_weights_hash(s->snapshot.live_rows, s->model.n_params, p->info.weights_hash);
out:
    return st;
}

/* What needs the live state: done before the next update. */
static ls_status copy(void *context)
{
    ls_session *s = context;
    struct ls_sharded_save *p = s->save.sharded;

    ls_tensor_boxes_copy(p->live, p->copies, p->n - s->feedback.n_rows);
    ls_status st = ls_fault_pass(LS_FAULT_AT_SAVE_COPY);
    return st == LS_OK ? look(s) : st;
}

static ls_status write_parts(ls_session *s, const ls_ckpt_part *parts)
{
    struct ls_sharded_save *p = s->save.sharded;
    const ls_ckpt_writing how = writing(s);

    if (ls_step_test_point("part", s->mesh.rank, -1))
        return ls_fail(LS_EIO, "cannot write a part of step %lld", (long long)p->info.step);
    return ls_ckpt_write_parts(p->store, &how, parts, p->n, &p->report);
}

static ls_status write_copies(void *context, ls_ckpt_saved *saved_out)
{
    ls_session *s = context;

    *saved_out = (ls_ckpt_saved){.seconds = 0}; /* reported with the commit */
    return write_parts(s, s->save.sharded->copies);
}

static ls_status commit(void *context, ls_ckpt_saved *saved_out)
{
    ls_session *s = context;
    struct ls_sharded_save *p = s->save.sharded;
    int64_t begun_ns = ls_time_now_ns();
    ls_status st = ls_ckpt_commit(s->save.store, &p->info, p->reports, p->n_reports,
                                  begun_ns + LS_SHARDED_SAVE_SEEN_S * LS_NS_PER_S, saved_out);

    if (st == LS_OK) {
        saved_out->seconds = (double)(ls_time_now_ns() - p->begun_ns) / 1e9;
        ls_save_tidy(s, p->info.step);
    }
    return st;
}

/* The own part has ended, or could not begin: why, for the other ranks. */
static void note_end(struct ls_sharded_save *p, ls_status st)
{
    p->failed = st != LS_OK;
    if (p->failed)
        p->why = *ls_err_last();
}

/* The own part is under way; one that could not begin has failed already. All ranks stay in the same
 * phase, so that all poll the same number of times. */
static void own_begun(struct ls_sharded_save *p, ls_status st)
{
    note_end(p, st);
    p->phase = LS_SHARDED_SAVE_WRITING;
}

static ls_status prepare(ls_session *s)
{
    struct ls_sharded_save *p = s->save.sharded;

    p->info = ls_save_info(s);
    p->begun_ns = ls_time_now_ns();
    ls_str_clear(&p->report);
    ls_str_clear(&p->seen);
    ls_mem_free(p->shard_replicas);
    return ls_tensor_boxes_replicas(s, p->saves++, &p->shard_replicas, &p->n_shard_replicas);
}

/* How a rank's part stands: 0 is under way, 1 written, 2 failed. */
static int own_state(ls_session *s, bool wait)
{
    struct ls_sharded_save *p = s->save.sharded;
    int64_t until_ns = wait ? ls_save_deadline() : 0;
    bool done = false;
    ls_status st;

    if (p->failed)
        return 2;
    if (!p->running) /* else the report is the writer's */
        return 1;
    st = wait ? ls_ckpt_writer_wait(p->writer, until_ns, &done, NULL)
              : ls_ckpt_writer_poll(p->writer, &done, NULL);
    if (!done)
        return 0;
    p->running = false;
    note_end(p, st);
    return p->failed ? 2 : 1;
}

/* The reports of all, to the first rank. numbers: for each rank its state and two lengths: of the report
 * on what it wrote, and of the report on what it only hashed.
 *
 *     rank 0   wrote a, hashed b         texts   [w0 a][s0 b][w1 b][s1 a]
 *     rank 1   wrote b, hashed a         commit  a: w0 = s1? b: w1 = s0? then the manifest */
static ls_status gather_reports(ls_session *s, const double *numbers)
{
    struct ls_sharded_save *p = s->save.sharded;
    int ranks = s->mesh.ranks;
    bool first = s->mesh.rank == 0;
    int64_t *counts = ls_mem_array((size_t)ranks, sizeof *counts), all = 0;
    ls_str own;
    ls_status st = LS_OK;

    ls_str_init(&own);
    ls_str_append_bytes(&own, p->report.p, p->report.len);
    ls_str_append_bytes(&own, p->seen.p, p->seen.len);
    LS_TRY(st, counts ? ls_str_status(&own) : LS_ENOMEM, out);
    for (int r = 0; r < ranks; r++) {
        counts[r] = (int64_t)numbers[ranks + r] + (int64_t)numbers[2 * ranks + r];
        all += counts[r];
    }
    if (first) {
        ls_mem_free(p->texts);
        ls_mem_free(p->reports);
        p->texts = ls_mem_alloc((size_t)all + 1);
        p->reports = ls_mem_array(2 * (size_t)ranks, sizeof *p->reports);
        LS_TRY(st, p->texts && p->reports ? LS_OK : LS_ENOMEM, out);
    }
    LS_TRY(st,
           ls_comm_run(s->args.comm,
                       &(ls_coll){.kind = LS_COLL_GATHER,
                                  .type = LS_U8,
                                  .count = (int64_t)own.len,
                                  .in = own.p,
                                  .out = first ? p->texts : NULL,
                                  .out_counts = counts},
                       ls_save_deadline()),
           out);
    const char *at = p->texts;
    p->n_reports = 0;
    for (int r = 0; r < ranks && first; at += counts[r++])
        p->reports[p->n_reports++] =
            (ls_ckpt_report){.text = at, .len = (size_t)numbers[ranks + r], .writer = r};
    at = p->texts;
    for (int r = 0; r < ranks && first; at += counts[r++])
        if (numbers[2 * ranks + r] > 0)
            p->reports[p->n_reports++] = (ls_ckpt_report){.text = at + (size_t)numbers[ranks + r],
                                                          .len = (size_t)numbers[2 * ranks + r],
                                                          .writer = r,
                                                          .seen_only = true};
out:
    ls_mem_free(counts);
    ls_str_release(&own);
    return st;
}

/* Whether all parts are written; then their reports are with the first rank. Or one of them failed: then
 * every rank's record says why. By all ranks, once a step: one sum of a few numbers. */
static ls_status join(ls_session *s, bool wait, bool *all_out, bool *failed_out)
{
    struct ls_sharded_save *p = s->save.sharded;
    int ranks = s->mesh.ranks, me = s->mesh.rank, state = own_state(s, wait);
    double *numbers = ls_mem_array(3 * (size_t)ranks, sizeof *numbers);
    ls_status st = LS_OK;

    *all_out = *failed_out = false;
    if (!numbers)
        return LS_ENOMEM;
    numbers[me] = state;
    if (state == 1) {
        numbers[ranks + me] = (double)p->report.len;
        numbers[2 * ranks + me] = (double)p->seen.len;
    }
    LS_TRY(st, ls_dp_sum_numbers(s->dp, LS_F64, numbers, 3 * ranks), out);
    int bad = ls_sharded_save_find(numbers, ranks, 2);
    if (ls_sharded_save_find(numbers, ranks, 0) >= 0)
        goto out;
    *all_out = bad < 0;
    *failed_out = bad >= 0;
    if (bad < 0) {
        st = gather_reports(s, numbers);
        goto out;
    }
    if (bad == me)
        (void)ls_err_adopt(&p->why);
    st = ls_sharded_save_share_reason(s, bad, LS_EIO);
    if (st == LS_EIO)
        st = LS_OK; /* reported, and in this thread's record */
out:
    ls_mem_free(numbers);
    return st;
}

/* How long a save is waited for: not at all; no longer than training may wait (commit_token.h); to its
 * end. */
typedef enum patience { GLANCE, PROMPT, PATIENT } patience;

/* First rank: the end of a commit in the background. */
static void poll_commit(ls_session *s, patience how)
{
    struct ls_sharded_save *p = s->save.sharded;
    int64_t until_ns = ls_save_deadline();
    ls_ckpt_saved saved;
    bool done = false;
    ls_status st = how == GLANCE   ? ls_ckpt_writer_poll(p->writer, &done, &saved)
                   : how == PROMPT ? ls_commit_token_wait(s, p->writer, until_ns, &done, &saved)
                                   : ls_ckpt_writer_wait(p->writer, until_ns, &done, &saved);

    if (!done)
        return;
    p->phase = LS_SHARDED_SAVE_IDLE;
    if (st == LS_OK)
        ls_save_saved(s, p->info.step, &saved);
    else
        ls_save_unsaved(s, p->info.step);
}

static ls_status poll_save(ls_session *s, patience how)
{
    struct ls_sharded_save *p = s->save.sharded;
    bool all = false, failed = false, first = s->mesh.rank == 0;
    ls_status st = LS_OK;

    if (p->phase == LS_SHARDED_SAVE_WRITING) {
        LS_TRY(st, join(s, how != GLANCE, &all, &failed), out);
        if (all || failed)
            p->phase = LS_SHARDED_SAVE_IDLE;
        if (failed && first)
            ls_save_unsaved(s, p->info.step);
        if (all && first) {
            const ls_ckpt_job job = {.step = p->info.step, .work = commit, .context = s};
            p->phase = LS_SHARDED_SAVE_COMMITTING;
            if (ls_ckpt_writer_run(p->writer, &job, 0) != LS_OK) {
                p->phase = LS_SHARDED_SAVE_IDLE;
                ls_save_unsaved(s, p->info.step);
            }
        }
    }
    if (p->phase == LS_SHARDED_SAVE_COMMITTING)
        poll_commit(s, how);
out:
    return st;
}

ls_status ls_sharded_save_poll(ls_session *session)
{
    return poll_save(session, GLANCE);
}

bool ls_sharded_save_busy(const ls_session *session)
{
    return session->save.sharded->phase != LS_SHARDED_SAVE_IDLE;
}

/* No rank has a save under way. */
static ls_status all_idle(ls_session *s, bool *idle_out)
{
    double busy = s->save.sharded->phase != LS_SHARDED_SAVE_IDLE || LS_FAULT("train.writer_wait");
    ls_status st = ls_dp_sum_numbers(s->dp, LS_F64, &busy, 1);

    *idle_out = busy == 0;
    return st;
}

/* While no rank writes: what a save that was interrupted left may be what is missing now. */
static void make_room(ls_session *s)
{
    int64_t bytes = 0;

    for (int k = 0; k < LS_SAVE_KINDS; k++)
        bytes += ls_save_elements(s, k) * (int64_t)sizeof(float);
    if (ls_ckpt_make_room(s->save.store, bytes) != LS_OK)
        ls_log(LS_LOG_WARN, "cannot remove leftovers: %s", ls_err_last()->text);
}

ls_status ls_sharded_save_begin(ls_session *s)
{
    struct ls_sharded_save *p = s->save.sharded;
    bool idle = false;
    ls_status st = LS_OK;

    LS_TRY(st, poll_save(s, PROMPT), out);
    if (s->mesh.rank == 0 && p->phase == LS_SHARDED_SAVE_IDLE)
        make_room(s);
    LS_TRY(st, all_idle(s, &idle), out);
    if (!idle) {
        if (s->mesh.rank == 0) {
            (void)ls_fail(LS_EDEADLINE, "the save of step %lld is still running",
                          (long long)p->info.step);
            ls_save_unsaved(s, s->step_number);
        }
        goto out;
    }
    LS_TRY(st, ls_error_feedback_collect(s), out);
    const ls_ckpt_job job = {
        .step = s->step_number, .copy = copy, .work = write_copies, .context = s};
    ls_status own = prepare(s);
    if (own == LS_OK)
        own = ls_ckpt_writer_run(p->writer, &job, 0);
    p->running = own == LS_OK;
    own_begun(p, own);
out:
    return st;
}

ls_status ls_sharded_save_copied(ls_session *session)
{
    const struct ls_sharded_save *p = session->save.sharded;

    return p->writer ? ls_ckpt_writer_copied(p->writer, ls_save_deadline()) : LS_OK;
}

/* As in the background, but of the live state and on this thread. */
static ls_status save_now(ls_session *s)
{
    ls_status st = LS_OK;

    LS_TRY(st, prepare(s), out);
    LS_TRY(st, look(s), out);
    LS_TRY(st, write_parts(s, s->save.sharded->live), out);
out:
    return st;
}

ls_status ls_sharded_save_final(ls_session *s)
{
    struct ls_sharded_save *p = s->save.sharded;
    bool all, failed, idle = false;
    unsigned char saves;
    ls_ckpt_saved saved;
    ls_status st = LS_OK;

    LS_TRY(st, poll_save(s, PATIENT), out);
    LS_TRY(st, all_idle(s, &idle), out);
    if (!idle) {
        st = ls_fail(LS_EDEADLINE, "the save of step %lld is still running",
                     (long long)p->info.step);
        goto out;
    }
    saves = s->save.saved_step != s->step_number;
    LS_TRY(st, ls_dp_broadcast(s->dp, 0, &saves, 1), out);
    if (!saves)
        goto out;
    LS_TRY(st, ls_error_feedback_collect(s), out);
    s->save.waited_ns = 0; /* no step comes after it */
    p->running = false;
    own_begun(p, save_now(s));
    p->phase = LS_SHARDED_SAVE_IDLE;
    LS_TRY(st, join(s, true, &all, &failed), out);
    if (failed) {
        st = ls_err_last()->code;
        goto out;
    }
    if (s->mesh.rank == 0) {
        LS_TRY(st, commit(s, &saved), out);
        ls_save_saved(s, s->step_number, &saved);
    }
    /* No rank ends before the commit: a launcher must not see a rank leave a run that is unsaved. */
    LS_TRY(st, ls_dp_broadcast(s->dp, 0, &saves, 1), out);
out:
    return st;
}
