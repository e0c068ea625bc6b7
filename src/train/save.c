/* save.c -- weights and moments as checkpoint tensors.
 *
 * Three tensors per parameter: "param", "adam.m", "adam.v", each pointing into the flat buffers;
 * for a matrix that Muon updates two: "param", "muon.m". A
 * background save first copies the flat buffers to the snapshot, and the writer reads only that.
 * The copy is made while the next forward and backward run, by the writer's thread, or by the
 * device where it has a memory of its own; the update waits for it (ls_save_copied). Only what must
 * be collected from ranks, or belongs to replicas, is copied at once. Where the state as a whole is
 * in nobody's own memory (staged), all reading and writing goes through the snapshot: what is saved
 * is fetched first, from the device or from the ranks that have parts of it, and what is loaded is
 * sent after. Of several ranks each writes and reads its parts (parts.c); where some do not see the
 * folder, and of replicas, the first one does, and the functions that fetch and send are called by
 * all.
 *
 * The data cursor is the number of samples used, the one integer that the data order needs. */
#include "train/save_impl.h"
#include "train/sign.h"

#include <limits.h>
#include <math.h>
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "config/ramp.h"
#include "config/explain.h"
#include "config/runfile.h"
#include "plan/optim.h"
#include "train/debt.h"
#include "train/central.h"
#include "train/warrant.h"
#include "train/outer.h"
#include "train/session_impl.h"
#include "train/parts.h"
#include "train/team.h"

enum { KINDS = LS_SAVE_KINDS, WRITER_WAIT_S = LS_SAVE_WAIT_S };
static const char *const kinds[KINDS] = {"param", "adam.m", "adam.v"};

/* Where parameter i lies in a kind of state as a whole; -1: it has none. */
static int64_t place_of(const ls_session *s, int kind, int i)
{
    const ls_param *p = &ls_team_whole(s)->params[i];

    if (kind == 0)
        return p->first;
    if (kind == 1)
        return p->trained;
    if (ls_mesh_divides(&s->mesh)) /* collected from ranks, in the order of the gradients */
        return ls_optim_is_matrix(s->run, p) ? -1 : p->trained;
    return ls_optim_second(s->run, &s->model, i);
}

static ls_ckpt_tensor row_of(const ls_param *p, const char *kind, float *numbers)
{
    return (ls_ckpt_tensor){.name = p->name,
                            .kind = kind,
                            .group = p->group,
                            .type = LS_F32,
                            .ndim = p->ndim,
                            .shape = {p->shape[0], p->ndim > 1 ? p->shape[1] : 0},
                            .bytes = numbers};
}

int ls_save_rows(const ls_model *model, const char *kind, float *array, ls_ckpt_tensor *rows)
{
    int n = 0;

    for (int i = 0; i < model->n_params; i++)
        if (model->params[i].trained >= 0)
            rows[n++] = row_of(&model->params[i], kind, array + model->params[i].trained);
    return n;
}

/* Whether this kind of state lies in a file, here and in the snapshot. */
static bool on_disk(const ls_session *s, int kind)
{
    return s->offload == LS_OFFLOAD_DISK && kind > 0;
}

bool ls_save_row(const ls_session *s, int kind, int i, ls_ckpt_tensor *row_out, int64_t *place_out)
{
    const ls_param *p = &ls_team_whole(s)->params[i];
    bool muon = kind == 1 && ls_optim_is_matrix(s->run, p);

    *row_out = row_of(p, muon ? "muon.m" : kinds[kind], NULL);
    *place_out = place_of(s, kind, i);
    return *place_out >= 0;
}

/* One row per parameter, then the moments of those that are trained; returns how many. */
static int fill_rows(const ls_session *s, ls_ckpt_tensor *rows, void *const arrays[KINDS])
{
    int64_t first;
    int n = 0;

    for (int k = 0; k < KINDS; k++)
        for (int i = 0; i < ls_team_whole(s)->n_params; i++)
            if (ls_save_row(s, k, i, &rows[n], &first)) {
                if (arrays[k]) /* this rank has it as a whole */
                    rows[n].bytes = (float *)arrays[k] + first;
                rows[n++].spilled = on_disk(s, k);
            }
    return n;
}

/* What is saved, and loaded: of replicas the common weights, of servers their moments. */
void ls_save_live(const ls_session *s, void *arrays_out[KINDS])
{
    ls_step_arrays live = ls_step_state_arrays(s->step);

    arrays_out[0] = s->outer ? ls_outer_common(s) : live.w;
    arrays_out[1] = s->central ? ls_central_moments(s, 1) : live.m;
    arrays_out[2] = s->central ? ls_central_moments(s, 2) : live.v;
}

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

int64_t ls_save_elements(const ls_session *s, int kind)
{
    const ls_model *model = ls_team_whole(s);

    return kind == 0   ? model->flat
           : kind == 1 ? model->trained
                       : ls_memory_snapshot_seconds(s->run, model, &s->mesh);
}

/* Bytes of the weights, or of one moment; and of the snapshot's. */
static int64_t state_bytes(const ls_session *s, int kind)
{
    return ls_save_elements(s, kind) * (int64_t)sizeof(float);
}

static int64_t kept_bytes(const ls_session *s, int kind)
{
    return ls_memory_snapshot_bytes(s->run, ls_team_whole(s), &s->mesh, s->apart, kind);
}

/* The snapshot and the rows that point into it, unless they are there. Apart it is made for the
 * first save or load: to lock its pages takes a while, for which the first step should not wait. */
static ls_status open_snapshot(ls_session *s)
{
    static const char what[] = "checkpoint snapshot";
    ls_status st = LS_OK;

    for (int k = 0; k < KINDS; k++) {
        int64_t bytes = kept_bytes(s, k);
        if (s->snapshot[k] || bytes == 0)
            continue;
        if (s->apart)
            LS_TRY(st, ls_device_host_alloc(s->device, bytes, what, &s->snapshot[k]), out);
        else if (on_disk(s, k))
            LS_TRY(st, ls_spill_open(&s->spills[k], ls_session_offload_to(s), bytes, what), out);
        else
            LS_TRY(st, ls_device_alloc(s->device, bytes, what, &s->snapshot[k]), out);
        if (on_disk(s, k))
            s->snapshot[k] = s->spills[k].base;
    }
    (void)fill_rows(s, s->shadows, s->snapshot);
    if (s->staged)
        (void)fill_rows(s, s->tensors, s->snapshot);
out:
    return st;
}

static void close_snapshot(ls_session *s)
{
    for (int k = 0; k < KINDS; k++) {
        if (s->apart)
            ls_device_host_free(s->device, s->snapshot[k], kept_bytes(s, k));
        else if (on_disk(s, k))
            ls_spill_close(&s->spills[k]);
        else
            ls_device_free(s->device, s->snapshot[k]);
        s->snapshot[k] = NULL;
    }
}

bool ls_save_divided(const ls_session *s, int kind)
{
    return ls_mesh_divides(&s->mesh) && (kind > 0 || ls_mesh_parts_weights(&s->mesh));
}

/* Pages of moments on disk that were touched by others than a step. */
static void rest(ls_session *s)
{
    for (int k = 0; k < KINDS; k++)
        if (s->spills[k].base)
            ls_spill_drop(&s->spills[k], 0, s->spills[k].bytes);
    ls_step_rest(s->step);
}

/* A kind of the live state to the snapshot, or the other way round: both are in the host's memory
 * where it was offloaded. On disk a piece at a time. */
static void copy_on_host(ls_session *s, int kind, char *to, const char *from)
{
    const int64_t all = state_bytes(s, kind); /* in one piece the caches are spared */
    const int64_t piece = on_disk(s, kind) ? LS_MEMORY_CHUNK * (int64_t)sizeof(float) : all;

    for (int64_t at = 0; at < all; at += piece) {
        int64_t n = ls_min_i64(piece, all - at);
        memcpy(to + at, from + at, (size_t)n);
        if (on_disk(s, kind)) {
            ls_spill_give_back(to + at, n);
            ls_spill_give_back(from + at, n);
        }
    }
}

static bool on_host(const ls_session *s, int kind)
{
    return s->offload != LS_OFFLOAD_NONE && kind > 0;
}

/* On a device with a memory of its own: begin to copy the first n kinds out. */
static void copy_out(ls_session *s, ls_stream *stream, int n)
{
    void *arrays[KINDS];

    ls_save_live(s, arrays);
    for (int k = 0; k < n; k++)
        if (on_host(s, k))
            copy_on_host(s, k, s->snapshot[k], arrays[k]);
        else
            ls_stream_copy_out(stream, s->snapshot[k], arrays[k], state_bytes(s, k));
}

/* The first n kinds of the live state to the first rank's snapshot, which is there and nobody is
 * reading. By all ranks where they have parts of it. */
static ls_status take_snapshot(ls_session *s, int n)
{
    void *arrays[KINDS];
    ls_status st = LS_OK;

    ls_save_live(s, arrays);
    LS_TRY(st, ls_step_settle(s->step), out);
    LS_TRY(st, ls_stream_sync(s->stream, ls_time_now_ns() + WRITER_WAIT_S * LS_NS_PER_S), out);
    for (int k = 0; k < n; k++)
        if (ls_save_divided(s, k))
            LS_TRY(st,
                   s->mesh.replicas ? ls_dp_collect(s->dp, arrays[k], s->snapshot[k])
                                    : ls_step_collect(s->step, arrays[k], s->snapshot[k]),
                   out);
        else if (s->mesh.rank > 0)
            continue;
        else if (on_host(s, k))
            copy_on_host(s, k, s->snapshot[k], arrays[k]);
        else if (s->apart)
            ls_stream_copy_out(s->stream, s->snapshot[k], arrays[k], state_bytes(s, k));
        else
            ls_stream_copy(s->stream, s->snapshot[k], arrays[k], state_bytes(s, k));
    LS_TRY(st, ls_stream_sync(s->stream, ls_time_now_ns() + WRITER_WAIT_S * LS_NS_PER_S), out);
    rest(s);
out:
    return st;
}

/* The same on the writer's thread, of a state that lies in this process's memory. */
static ls_status copy_here(void *context)
{
    ls_session *s = context;
    void *arrays[KINDS];

    ls_save_live(s, arrays);
    for (int k = 0; k < KINDS; k++)
        copy_on_host(s, k, s->snapshot[k], arrays[k]);
    return ls_fault_pass(LS_FAULT_AT_SAVE_COPY);
}

/* Staged: what was loaded into the snapshot, to the device. Parts go to their ranks later. */
static ls_status send_loaded(ls_session *s)
{
    void *arrays[KINDS];

    ls_save_live(s, arrays);
    for (int k = 0; k < KINDS && s->staged; k++)
        if (!ls_save_divided(s, k) && on_host(s, k))
            copy_on_host(s, k, arrays[k], s->snapshot[k]);
        else if (!ls_save_divided(s, k))
            ls_stream_copy_in(s->stream, arrays[k], s->snapshot[k], state_bytes(s, k));
    return ls_stream_sync(s->stream, ls_time_now_ns() + 600 * LS_NS_PER_S);
}

/* Where a resumed run stands. */
typedef struct place {
    int64_t step, newest, saved;
    double loss, val_loss;
    ls_scaler scaler;
} place;

ls_status ls_save_share(ls_session *session)
{
    ls_session *s = session;
    void *arrays[KINDS];
    place p = {s->step_number, s->newest_step, s->saved_step, s->loss, s->val_loss, s->scaler};
    ls_status st;

    ls_save_live(s, arrays);
    LS_TRY(st, ls_dp_tell(s->dp, 0, &p, sizeof p), out);
    s->step_number = p.step;
    s->newest_step = p.newest;
    s->saved_step = p.saved;
    s->loss = p.loss;
    s->val_loss = p.val_loss;
    s->scaler = p.scaler;
    for (int k = 0; k < KINDS && p.step > 0 && !s->parts; k++) /* else each has read its own */
        if (ls_save_divided(s, k))
            LS_TRY(st,
                   s->mesh.replicas ? ls_dp_deal(s->dp, s->snapshot[k], arrays[k])
                                    : ls_step_deal(s->step, s->snapshot[k], arrays[k]),
                   out);
        else
            LS_TRY(st,
                   s->mesh.replicas ? ls_dp_tell(s->dp, 0, arrays[k], state_bytes(s, k))
                                    : ls_step_tell(s->step, 0, arrays[k], state_bytes(s, k)),
                   out);
    rest(s);
out:
    return st;
}

ls_status ls_save_open(ls_session *session)
{
    ls_session *s = session;
    void *arrays[KINDS];
    char dir[PATH_MAX];
    ls_status st = LS_OK;

    ls_save_live(s, arrays);
    snprintf(dir, sizeof dir, "%s/checkpoints", s->run->out);
    if (s->args.fresh)
        LS_TRY(st, put_aside(dir), out);
    int most = (KINDS + ls_debt_vectors(s)) * ls_team_whole(s)->n_params;
    s->tensors = ls_mem_array((size_t)most, sizeof *s->tensors);
    s->shadows = ls_mem_array((size_t)most, sizeof *s->shadows);
    if (!s->tensors || !s->shadows) {
        st = LS_ENOMEM;
        goto out;
    }
    s->n_tensors = fill_rows(s, s->tensors, arrays);
    LS_TRY(st, ls_debt_open(s), out);
    LS_TRY(st, ls_ckpt_open(&s->store, dir, true), out);
    LS_TRY(st, ls_sign_store(s->run, s->store), out);
    LS_TRY(st, ls_save_mirror(s, s->store), out);
    LS_TRY(st, ls_ckpt_claim(s->store, &s->generation), out);
    LS_TRY(st, ls_warrant_open(s), out);
    if (!s->apart)
        LS_TRY(st, open_snapshot(s), out);
    if (s->run->checkpoint.every == 0 || ls_mesh_saves_parts(&s->mesh))
        goto out;
    LS_TRY(st, ls_ckpt_writer_create(&s->writer, s->store, NULL), out);
    if (s->apart) {
        LS_TRY(st, ls_stream_create(&s->copies, s->device), out);
        LS_TRY(st, ls_event_create(&s->updated, s->device), out);
    }
out:
    return st;
}

void ls_save_close(ls_session *session)
{
    ls_session *s = session;

    ls_parts_close(s);
    ls_ckpt_writer_free(s->writer);
    ls_ckpt_close(s->store);
    ls_warrant_close(s);
    ls_event_free(s->updated);
    ls_stream_free(s->copies);
    close_snapshot(s);
    ls_debt_close(s);
    ls_mem_free(s->tensors);
    ls_mem_free(s->shadows);
}

/* The run that made the checkpoint must agree with this one on everything that decides the bits. */
static ls_status check_same_run(const ls_session *s, const ls_ckpt_info *info)
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
    int differ = ls_explain_diff(&before, s->run, &diff);
    if (differ < 0) {
        st = LS_ENOMEM;
    } else if (differ > 0) {
        st = ls_fail(LS_EUSAGE,
                     "the checkpoint in \"%s\" was made with other settings (then -> now):\n%.*s",
                     s->run->out, (int)diff.len - 1, diff.p); /* without the last line end */
        ls_err_hint("Restore them, choose another out: folder, or start anew with --fresh (earlier "
                    "checkpoints are put aside, not removed).");
    } else if (info->extra[0] && strncmp(info->extra, s->data_hash, strlen(s->data_hash)) != 0) {
        st = ls_fail(LS_EDATA,
                     "the checkpoint in \"%s\" was trained on other text: its files have changed",
                     s->run->out);
        ls_err_hint("Restore them, choose another out: folder, or start anew with --fresh (earlier "
                    "checkpoints are put aside, not removed).");
    }
    ls_str_release(&diff);
    ls_runfile_release(&before);
    return st;
}

/* The newest step that has a manifest at all, damaged or not; -1: none. */
static ls_status newest_step(const ls_ckpt_store *store, int64_t *step_out)
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
static ls_status check_newest(const ls_session *s, bool *found_out)
{
    ls_ckpt *newest = NULL;
    ls_str passed; /* damaged ones: told by the load */
    ls_status st = LS_OK;

    ls_str_init(&passed);
    LS_TRY(st, ls_ckpt_find(s->store, -1, &newest, &passed), out);
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

    if (s->parts)
        return ls_parts_load(s, info_out, found_out);
    if (s->staged)
        LS_TRY(st, open_snapshot(s), out);
    LS_TRY(st, ls_ckpt_load_newest(s->store, s->tensors, s->n_tensors, info_out, found_out), out);
    s->loaded = ls_ckpt_last_read(s->store);
    if (*found_out)
        st = send_loaded(s);
out:
    return st;
}

ls_status ls_save_resume(ls_session *session)
{
    ls_session *s = session;
    ls_ckpt_info info;
    bool first = s->mesh.rank == 0, found = false;
    ls_status st = LS_OK;

    if (!first && !s->parts)
        return LS_OK;
    ls_err_doing("looking for a checkpoint to resume from");
    if (first)
        LS_TRY(st, check_newest(s, &found), out);
    if (found || s->parts)
        LS_TRY(st, load(s, &info, &found), out);
    if (!found || !first)
        goto out;
    if (info.cursor != ls_ramp_samples(s->run, info.step)) {
        st = ls_fail(LS_EDATA, "the checkpoint of step %lld stands at sample %lld, expected %lld",
                     (long long)info.step, (long long)info.cursor,
                     (long long)ls_ramp_samples(s->run, info.step));
        goto out;
    }
    ls_sign_tell(s->run, &info);
    LS_TRY(st, ls_scaler_read(&s->scaler, info.extra), out);
    LS_TRY(st, ls_debt_load(s, info.step), out);
    LS_TRY(st, newest_step(s->store, &s->newest_step), out);
    s->step_number = info.step;
    s->saved_step = info.step;
    s->loss = info.loss;
    s->val_loss = info.val_loss;
out:
    ls_err_done();
    return st;
}

ls_ckpt_info ls_save_info(ls_session *s)
{
    char scaler[LS_SCALER_TEXT];

    ls_scaler_write(&s->scaler, scaler);
    snprintf(s->extra, sizeof s->extra, "%s%s", s->data_hash, scaler);
    return (ls_ckpt_info){.step = s->step_number,
                          .cursor = ls_ramp_samples(s->run, s->step_number),
                          .tokens = ls_ramp_samples(s->run, s->step_number) * s->model.shape.T,
                          .generation = s->generation,
                          .seed = (uint64_t)s->run->train.seed,
                          .loss = s->loss,
                          .val_loss = s->val_loss,
                          .run_name = s->run->name,
                          .mesh = s->mesh_text,
                          .config = s->config.p,
                          .extra = s->extra};
}

void ls_save_saved(ls_session *s, int64_t step, const ls_ckpt_saved *saved)
{
    s->saved_step = step;
    if (saved->bytes_written > 0 && saved->seconds > s->slowest_save_s)
        s->slowest_save_s = saved->seconds;
    ls_session_emit(s, &(ls_event){.kind = LS_EVENT_CHECKPOINT,
                                   .checkpoint = {.step = step,
                                                  .bytes_written = saved->bytes_written,
                                                  .bytes_reused = saved->bytes_reused,
                                                  .seconds = saved->seconds,
                                                  .waited_ms = (double)s->waited_ns / 1e6,
                                                  .path = saved->path}});
}

void ls_save_unsaved(ls_session *s, int64_t step)
{
    ls_log(LS_LOG_WARN, "the checkpoint of step %lld was not saved: %s; training goes on",
           (long long)step, ls_err_last()->text);
    ls_session_emit(s, &(ls_event){.kind = LS_EVENT_INCIDENT,
                                   .incident = {.step = step,
                                                .kind = "checkpoint",
                                                .action = "training goes on",
                                                .text = ls_err_last()->text}});
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
    LS_TRY(st, ls_sign_store(s->run, to), out);
    LS_TRY(st, ls_ckpt_find(s->store, step, &ckpt, NULL), out);
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
                             .like = session->store};
}

void ls_save_tidy(const ls_session *s, int64_t step)
{
    const ls_ckpt_pruning kept = ls_save_kept(s);

    if (s->run->checkpoint.mirror[0] && copy_to_mirror(s, step) != LS_OK)
        ls_log(LS_LOG_WARN, "step %lld has no copy in \"%s\": %s", (long long)step,
               s->run->checkpoint.mirror, ls_err_last()->text);
    /* The state is safe; failing to tidy up must not look like failing to save. */
    if (ls_ckpt_prune_by(s->store, &kept, NULL) != LS_OK)
        ls_log(LS_LOG_WARN, "cannot remove old checkpoints: %s", ls_err_last()->text);
}

/* A background save ended, well or badly. */
static void tell_ended(ls_session *s, ls_status st, const ls_ckpt_saved *saved)
{
    int64_t step = s->writing_step;

    s->writing_step = -1;
    if (st == LS_OK)
        ls_save_saved(s, step, saved);
    else
        ls_save_unsaved(s, step);
}

/* prompt: not for an answer of etcd that does not come at once. */
static ls_status await_save(ls_session *s, bool prompt)
{
    int64_t until_ns = ls_time_now_ns() + WRITER_WAIT_S * LS_NS_PER_S;
    ls_ckpt_saved saved;
    bool done = false;

    if (!s->writer || s->writing_step < 0)
        return LS_OK;
    if (ls_save_copied(s) != LS_OK)
        return LS_EDEADLINE;
    if (s->writing_step < 0)
        return LS_OK;
    if (LS_FAULT("train.writer_wait"))
        return ls_fail(LS_EDEADLINE, "the save of step %lld is still running",
                       (long long)s->writing_step);
    ls_status st = prompt ? ls_warrant_await(s, s->writer, until_ns, &done, &saved)
                          : ls_ckpt_writer_wait(s->writer, until_ns, &done, &saved);
    if (!done)
        return st;
    tell_ended(s, st, &saved);
    return LS_OK;
}

ls_status ls_save_await(ls_session *session)
{
    return await_save(session, false);
}

ls_status ls_save_leave(ls_session *session)
{
    ls_session *s = session;
    ls_status st = LS_OK;

    if (!s->store)
        return LS_OK;
    LS_TRY(st, ls_save_await(s), out);
    ls_save_close(s);
    s->writer = NULL;
    s->store = NULL;
    s->copies = NULL;
    s->updated = NULL;
    s->tensors = s->shadows = NULL;
    s->writing_step = -1;
out:
    return st;
}

ls_status ls_save_again(ls_session *session)
{
    ls_session *s = session;
    ls_status st = LS_OK;

    LS_TRY(st, ls_save_leave(s), out);
    LS_TRY(st, ls_save_open(s), out);
    if (s->args.view.plan.base >= 0) /* nothing will be loaded */
        LS_TRY(st, newest_step(s->store, &s->saved_step), out);
out:
    return st;
}

/* Whether the first rank saves now: where others have parts of the state they must know. */
static ls_status agree_to_save(ls_session *s, bool *saves)
{
    bool together = ls_mesh_divides(&s->mesh) || ls_debt_vectors(s) > 0;
    unsigned char word = *saves;
    ls_status st = together ? ls_dp_tell(s->dp, 0, &word, sizeof word) : LS_OK;

    *saves = word != 0 && (s->mesh.rank == 0 || together);
    return st;
}

/* Write what the snapshot has, or, where it must be filled first, copy it on the writer's thread.
 */
static ls_status save_copy(void *context, ls_ckpt_saved *saved_out)
{
    ls_session *s = context;
    ls_status st =
        ls_ckpt_save(s->store, &s->writing, s->shadows, s->n_tensors + s->n_debts, saved_out);

    if (st == LS_OK)
        ls_save_tidy(s, s->writing.step);
    return st;
}

static void start_writer(ls_session *s, bool copies)
{
    const ls_ckpt_job job = {.step = s->writing.step,
                             .copy = copies ? copy_here : NULL,
                             .work = save_copy,
                             .context = s};

    if (ls_ckpt_writer_run(s->writer, &job, 0) == LS_OK) {
        s->writing_step = s->writing.step;
    } else {
        s->writing_step = -1;
        ls_save_unsaved(s, s->writing.step);
    }
}

static ls_status await_copy(ls_session *s)
{
    int64_t until_ns = ls_time_now_ns() + WRITER_WAIT_S * LS_NS_PER_S;

    if (s->parts)
        return ls_parts_copied(s);
    if (s->copying) {
        s->copying = false;
        if (ls_stream_sync(s->copies, until_ns) == LS_OK) {
            start_writer(s, false);
        } else {
            s->writing_step = -1;
            ls_save_unsaved(s, s->writing.step);
        }
        return LS_OK;
    }
    return s->writer ? ls_ckpt_writer_copied(s->writer, until_ns) : LS_OK;
}

ls_status ls_save_copied(ls_session *session)
{
    int64_t begun_ns = ls_time_now_ns();
    ls_status st = await_copy(session);

    session->waited_ns += ls_time_now_ns() - begun_ns;
    return st;
}

/* The present state, whose snapshot is there and free: copied while the caller goes on, where
 * nobody else has a part in it. */
static ls_status begin_alone(ls_session *s)
{
    ls_status st = LS_OK;

    s->writing = ls_save_info(s);
    if (s->apart && s->mesh.ranks < 2) {
        ls_event_record(s->updated, s->stream);
        ls_stream_wait(s->copies, s->updated);
        copy_out(s, s->copies, KINDS);
        s->copying = true;
        s->writing_step = s->step_number;
    } else if (s->outer || s->staged) {
        st = take_snapshot(s, KINDS);
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

    ls_step_before_update(s->step, wait_for_copy, s);
    if (s->parts) {
        LS_TRY(st, ls_step_settle(s->step), out);
        return ls_parts_begin(s);
    }
    saves = first && await_save(s, true) == LS_OK && open_snapshot(s) == LS_OK;
    if (first && !saves)
        ls_save_unsaved(s, s->step_number);
    LS_TRY(st, agree_to_save(s, &saves), out);
    if (saves) {
        LS_TRY(st, ls_debt_collect(s), out);
        LS_TRY(st, begin_alone(s), out);
    }
out:
    return st;
}

ls_status ls_save_begin(ls_session *session)
{
    int64_t begun_ns = ls_time_now_ns();
    ls_status st = begin(session);

    session->waited_ns = ls_time_now_ns() - begun_ns;
    return st;
}

ls_status ls_save_poll(ls_session *session)
{
    ls_ckpt_saved saved;
    bool done = false;

    if (session->parts)
        return ls_parts_poll(session);
    if (!session->writer || session->writing_step < 0 || session->copying)
        return LS_OK;
    ls_status st = ls_ckpt_writer_poll(session->writer, &done, &saved);
    if (done)
        tell_ended(session, st, &saved);
    return LS_OK;
}

ls_status ls_save_final(ls_session *session)
{
    ls_session *s = session;
    ls_ckpt_info info;
    ls_ckpt_saved saved;
    ls_status st = LS_OK;

    bool first = s->mesh.rank == 0, saves = true;

    ls_err_doing("saving step %lld", (long long)s->step_number);
    if (s->parts) {
        LS_TRY(st, ls_step_settle(s->step), out);
        st = ls_parts_final(s);
        goto out;
    }
    if (first) {
        LS_TRY(st, ls_save_await(s), out);
        saves = s->saved_step != s->step_number;
        if (saves && s->staged)
            LS_TRY(st, open_snapshot(s), out);
    }
    LS_TRY(st, agree_to_save(s, &saves), out);
    if (saves && s->staged)
        LS_TRY(st, take_snapshot(s, KINDS), out);
    if (saves)
        LS_TRY(st, ls_debt_collect(s), out);
    if (!saves || !first)
        goto out;
    info = ls_save_info(s);
    s->waited_ns = 0; /* no step comes after it */
    LS_TRY(st, ls_ckpt_save(s->store, &info, s->tensors, s->n_tensors + s->n_debts, &saved), out);
    ls_save_saved(s, s->step_number, &saved);
    ls_save_tidy(s, s->step_number);
out:
    ls_err_done();
    return st;
}

/* The weights alone to the snapshot, once nobody writes from it; by all ranks where they have
 * parts. */
static ls_status take_weights(ls_session *s)
{
    ls_status st = LS_OK;

    if (s->mesh.rank == 0) {
        LS_TRY(st, ls_save_await(s), out);
        LS_TRY(st, open_snapshot(s), out);
    }
    st = take_snapshot(s, 1);
out:
    return st;
}

ls_status ls_save_whole_weights(ls_session *session, const void **weights_out)
{
    ls_session *s = session;
    ls_dtype type = ls_memory_type(s->run);
    ls_status st = LS_OK;

    if (!ls_save_divided(s, 0)) {
        *weights_out = ls_step_state_arrays(s->step).read;
        return ls_step_settle(s->step);
    }
    LS_TRY(st, take_weights(s), out);
    *weights_out = s->snapshot[0];
    if (type == LS_F32 || s->mesh.rank > 0)
        goto out;
    /* In the place of the moments, which the next save fetches anew. */
    s->kernels->cast(s->stream, &(ls_cast){.from_type = LS_F32,
                                           .to_type = type,
                                           .from = s->snapshot[0],
                                           .to = s->snapshot[1],
                                           .n = ls_team_whole(s)->flat,
                                           .rounding = ls_step_rounding(s->run, 0)});
    *weights_out = s->snapshot[1];
out:
    return st;
}

ls_status ls_save_weights_hash(ls_session *session, char hex_out[33])
{
    bool first = session->mesh.rank == 0;
    ls_status st = LS_OK;

    LS_TRY(st, ls_step_settle(session->step), out);
    if ((session->staged && first) || ls_save_divided(session, 0))
        LS_TRY(st, take_weights(session), out);
    if (first)
        st = ls_ckpt_weights_hash(session->tensors, ls_team_whole(session)->n_params, hex_out);
out:
    return st;
}
