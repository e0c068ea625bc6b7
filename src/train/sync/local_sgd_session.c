/* local_sgd_session.c -- sync: local: when workers exchange weights, and what each saves by itself.
 *
 * Every worker trains by itself on its part of each batch. After each local.steps steps an exchange
 * begins (parallel/local_sgd.h); local.delay steps later it ends, and the workers meet: they have new
 * common weights, learn of requests to stop, and do what falls due: validation and samples (of the
 * common weights), checkpoints. With local.steps 50 and local.delay 3:
 *
 *   step     1 ... 50           51  52  53          54 ... 100         101 102 103
 *            by itself | begin    poll    end, meet  by itself | begin   poll    end, meet
 *
 * A worker keeps what it has learned in steps 51 to 53: it goes into the exchange after step 100.
 * With local.delay 0 begin, end and meeting follow step 50 at once, and all have the same weights. At
 * the last step of the run workers always meet, and all that each has learned goes in.
 *
 * A run's checkpoint holds the common weights and the first worker's moments. What else a worker has it
 * saves by itself, in checkpoints/replica-N, so that saving moves no bytes between ranks. */
#include "train/sync/sync_modes.h"

#include <limits.h>
#include <math.h>
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "train/save/save.h"
#include "train/save/signing.h"

enum { KINDS = 3, WRITER_WAIT_S = 600 };

typedef struct ls_local_sgd_session {
    ls_local_sgd *local;
    int64_t own;       /* sequences of the batch that are this worker's */
    int64_t counted;   /* targets of the last step */
    int64_t tokens;    /* targets learned from since the last exchange began */
    int64_t exchanges; /* begun by this process */
    /* What this worker saves by itself. */
    int kinds;
    const char *names[KINDS];
    float *arrays[KINDS];
    void *snapshot[KINDS];          /* owned, where the writer is */
    ls_ckpt_tensor *rows, *shadows; /* owned: of the arrays, of the snapshot */
    int n_rows;
    ls_ckpt_store *store; /* NULL until the first save */
    ls_ckpt_writer *writer;
    int64_t saved_step; /* -1: none */
} ls_local_sgd_session;

static bool delayed(const ls_session *s)
{
    return s->run->local.delay > 0;
}

/* --- opening, starting -------------------------------------------------------------------------
 */

/* The first worker's moments are in the run's checkpoint; the momentum is the same on all. */
static void list_kinds(ls_session *s)
{
    ls_local_sgd_session *o = s->sync.local_sgd;
    ls_step_arrays live = ls_step_state_arrays(s->step);

    if (s->mesh.rank == 0) {
        o->names[o->kinds] = "outer.m";
        o->arrays[o->kinds++] = ls_local_sgd_arrays_of(o->local).momentum;
    } else {
        o->names[o->kinds] = "adam.m";
        o->arrays[o->kinds++] = live.m;
        o->names[o->kinds] = "adam.v";
        o->arrays[o->kinds++] = live.v;
    }
    if (delayed(s)) {
        o->names[o->kinds] = "own";
        o->arrays[o->kinds++] = live.w;
    }
}

static ls_status open_rows(ls_session *s)
{
    ls_local_sgd_session *o = s->sync.local_sgd;
    size_t n = (size_t)(KINDS * s->model.n_params);
    int shadows = 0;
    ls_status st = LS_OK;

    list_kinds(s);
    LS_BUG_IF(o->kinds != ls_memory_replica_kinds(s->run, &s->mesh), "the ledger counts otherwise");
    o->rows = ls_mem_array(n, sizeof *o->rows);
    o->shadows = ls_mem_array(n, sizeof *o->shadows);
    LS_TRY(st, o->rows && o->shadows ? LS_OK : LS_ENOMEM, out);
    for (int k = 0; k < o->kinds; k++) {
        o->n_rows += ls_save_rows(&s->model, o->names[k], o->arrays[k], o->rows + o->n_rows);
        if (!ls_run_saves(s->run))
            continue;
        LS_TRY(st,
               ls_device_alloc(s->device, s->model.trained * (int64_t)sizeof(float),
                               "snapshot of a replica", &o->snapshot[k]),
               out);
        shadows += ls_save_rows(&s->model, o->names[k], o->snapshot[k], o->shadows + shadows);
    }
out:
    return st;
}

static ls_status open_mode(ls_session *s)
{
    ls_local_sgd_args args = ls_memory_local(s->run, &s->model, &s->mesh);
    ls_local_sgd_session *o = ls_mem_alloc(sizeof *o);
    ls_calls calls;
    ls_status st = LS_OK;

    if (!o)
        return LS_ENOMEM;
    s->sync.local_sgd = o;
    o->saved_step = -1;
    ls_calls_plan(s->run, &s->mesh, &calls);
    o->own = calls.sequences;
    args.comm = s->args.comm;
    args.pool = ls_stream_pool(s->stream);
    LS_TRY(st, ls_local_sgd_open(&o->local, &args), out);
    LS_TRY(st, open_rows(s), out);
out:
    return st;
}

static void close_mode(ls_session *session)
{
    ls_local_sgd_session *o = session->sync.local_sgd;

    if (!o)
        return;
    ls_ckpt_writer_free(o->writer);
    ls_ckpt_close(o->store);
    for (int k = 0; k < KINDS; k++)
        ls_device_free(session->device, o->snapshot[k]);
    ls_local_sgd_close(o->local);
    ls_mem_free(o->rows);
    ls_mem_free(o->shadows);
    ls_mem_free(o);
    session->sync.local_sgd = NULL;
}

static int64_t state_bytes(const ls_session *s)
{
    return s->model.trained * (int64_t)sizeof(float);
}

static void folder_of(const ls_session *s, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s/checkpoints/replica-%d", s->run->out, s->mesh.rank);
}

/* The state of this worker at the step that the run goes on from. Looked at as a whole before a
 * byte of it is used: it would lie over what stands in for it. */
static ls_status load_own(ls_session *s, const char *dir)
{
    ls_local_sgd_session *o = s->sync.local_sgd;
    ls_ckpt_store *store = NULL;
    ls_ckpt *found = NULL;
    int damaged = 0;
    ls_status st = LS_OK;

    LS_TRY(st, ls_ckpt_open(&store, dir, false), out);
    LS_TRY(st, ls_signing_store(s->run, store), out);
    LS_TRY(st, ls_ckpt_find(store, s->step_number, &found, NULL), out);
    LS_TRY(st, ls_ckpt_verify(found, NULL, NULL, &damaged), out);
    if (damaged) {
        st = ls_fail(LS_EDATA, "\"%s\" is damaged", ls_ckpt_path(found));
        goto out;
    }
    LS_TRY(st, ls_ckpt_load(found, o->rows, o->n_rows), out);
    o->tokens = ls_ckpt_about(found)->tokens;
    o->saved_step = s->step_number;
out:
    ls_ckpt_free(found);
    ls_ckpt_close(store);
    return st;
}

/* Without a state of its own a worker goes on with less; only memory that runs out ends the run.
 */
static ls_status resume(ls_session *s)
{
    char dir[PATH_MAX];
    bool first = s->mesh.rank == 0;
    ls_status st;

    folder_of(s, dir);
    st = ls_file_exists(dir) ? load_own(s, dir)
                             : ls_fail(LS_EUSAGE, "there is no folder \"%s\"", dir);
    if (st == LS_OK || st == LS_ENOMEM)
        return st;
    ls_log(LS_LOG_WARN, "replica %d has no state of its own at step %lld (%s): it goes on with %s",
           s->mesh.rank, (long long)s->step_number, ls_err_last()->text,
           first ? "no outer momentum" : "the moments of the first");
    ls_err_clear();
    return LS_OK;
}

static ls_status start(ls_session *s)
{
    ls_local_sgd *local = s->sync.local_sgd->local;
    float *w = ls_step_state_arrays(s->step).w, *common = ls_local_sgd_arrays_of(local).common;
    size_t bytes = (size_t)state_bytes(s);
    ls_status st = LS_OK;

    LS_BUG_IF(s->model.flat != s->model.trained, "some weights are frozen");
    if (s->step_number == 0) {
        memcpy(common, w, bytes);
        return LS_OK;
    }
    memcpy(w, common, bytes);
    st = resume(s);
    return st == LS_OK
               ? ls_dp_broadcast(s->dp, 0, ls_local_sgd_arrays_of(local).momentum, (int64_t)bytes)
               : st;
}

/* What is saved are the common weights. */
static void live(const ls_session *session, void *arrays[3])
{
    arrays[0] = ls_local_sgd_arrays_of(session->sync.local_sgd->local).common;
}

/* --- steps -------------------------------------------------------------------------------------
 */

/* The loss of a step is the mean over this worker's own targets. */
static ls_status begin(ls_session *session, ls_step_batch *batch, ls_step_clock *clock)
{
    ls_local_sgd_session *o = session->sync.local_sgd;

    (void)clock;
    o->counted = ls_corpus_counted(batch->targets, o->own * session->model.shape.T);
    batch->counted = o->counted;
    return LS_OK;
}

static bool is_last(const ls_session *s)
{
    return s->progress.total_steps && s->step_number >= s->progress.total_steps;
}

static bool meets(const ls_session *session)
{
    int64_t n = session->step_number, every = session->run->local.steps;

    return is_last(session) || (n >= every && n % every == session->run->local.delay);
}

static ls_status begin_exchange(ls_session *s)
{
    ls_local_sgd_session *o = s->sync.local_sgd;
    ls_status st = ls_local_sgd_begin(o->local, ls_step_state_arrays(s->step).w, (double)o->tokens);

    o->tokens = 0;
    o->exchanges++;
    return st;
}

static ls_status end_exchange(ls_session *s)
{
    ls_status st = ls_local_sgd_end(s->sync.local_sgd->local, ls_step_state_arrays(s->step).w);

    return st == LS_OK ? ls_step_weights_changed(s->step) : st;
}

static ls_status exchange_weights(ls_session *s)
{
    int64_t n = s->step_number, every = s->run->local.steps, delay = s->run->local.delay;
    ls_local_sgd *local = s->sync.local_sgd->local;
    ls_status st = LS_OK;

    LS_TRY(st, ls_local_sgd_poll(local), out);
    if (ls_local_sgd_begun(local) && (n % every == delay || is_last(s)))
        LS_TRY(st, end_exchange(s), out);
    if (n % every == 0 || is_last(s)) {
        LS_TRY(st, begin_exchange(s), out);
        if (delay == 0 || is_last(s))
            LS_TRY(st, end_exchange(s), out);
    }
out:
    return st;
}

static ls_status exchange(ls_session *s, ls_step_result *result, ls_step_clock *clock)
{
    ls_local_sgd_session *o = s->sync.local_sgd;
    double mean[2] = {result->finite ? result->loss * (double)o->counted : 0,
                      result->finite ? (double)o->counted : 0};
    ls_status st = LS_OK;

    if (result->finite)
        o->tokens += o->counted;
    LS_TRY(st, exchange_weights(s), out);
    if (meets(s)) {
        LS_TRY(st, ls_dp_sum_numbers(s->dp, LS_F64, mean, 2), out);
        if (mean[1] > 0)
            s->progress.loss = result->loss = mean[0] / mean[1];
    }
out:
    ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
    return st;
}

/* With local.delay the common weights are not those that this worker goes on with. */
static ls_status show(ls_session *session, bool shared)
{
    ls_local_sgd *local = session->sync.local_sgd->local;
    float *w = ls_step_state_arrays(session->step).w;
    size_t bytes = (size_t)state_bytes(session);

    if (!delayed(session))
        return LS_OK; /* they are the same */
    if (shared)
        memcpy(ls_local_sgd_arrays_of(local).spare, w, bytes);
    memcpy(w, shared ? ls_local_sgd_arrays_of(local).common : ls_local_sgd_arrays_of(local).spare,
           bytes);
    return ls_step_weights_changed(session->step);
}

static void count(const ls_session *session, ls_event_summary *summary)
{
    const ls_local_sgd_args args = ls_memory_local(session->run, &session->model, &session->mesh);

    summary->exchanges = session->sync.local_sgd->exchanges;
    summary->exchange_bytes = summary->exchanges * ls_local_sgd_sends(&args);
}

/* --- saving ------------------------------------------------------------------------------------
 */

static ls_status open_store(ls_session *s)
{
    ls_local_sgd_session *o = s->sync.local_sgd;
    ls_ckpt_pruning kept = ls_save_kept(s);
    char dir[PATH_MAX];
    ls_status st = LS_OK;

    kept.like = NULL; /* it may be opened anew */
    folder_of(s, dir);
    if (!o->store) {
        LS_TRY(st, ls_ckpt_open(&o->store, dir, true), out);
        LS_TRY(st, ls_signing_store(s->run, o->store), out);
    }
    if (!o->writer && ls_run_saves(s->run))
        LS_TRY(st, ls_ckpt_writer_create(&o->writer, o->store, &kept), out);
out:
    return st;
}

/* tokens: what the next exchange must know. */
static ls_ckpt_info info_now(const ls_session *s)
{
    return (ls_ckpt_info){.step = s->step_number,
                          .cursor = s->step_number * s->run->batch.sequences,
                          .tokens = s->sync.local_sgd->tokens,
                          .seed = (uint64_t)s->run->train.seed,
                          .loss = s->progress.loss,
                          .val_loss = s->progress.val_loss,
                          .run_name = s->run->name,
                          .mesh = s->mesh_text};
}

/* The save before has ended, and the snapshot is free. */
static ls_status wait_writer(ls_local_sgd_session *o)
{
    bool done;

    return o->writer ? ls_ckpt_writer_wait(
                           o->writer, ls_time_now_ns() + WRITER_WAIT_S * LS_NS_PER_S, &done, NULL)
                     : LS_OK;
}

/* A save that fails is a warning. */
static ls_status save_begin(ls_session *s)
{
    ls_local_sgd_session *o = s->sync.local_sgd;
    ls_ckpt_info info = info_now(s);
    ls_status st = LS_OK;

    LS_TRY(st, open_store(s), out);
    LS_TRY(st, wait_writer(o), out);
    for (int k = 0; k < o->kinds; k++)
        memcpy(o->snapshot[k], o->arrays[k], (size_t)state_bytes(s));
    LS_TRY(st, ls_ckpt_writer_begin(o->writer, &info, o->shadows, o->n_rows, 0), out);
    o->saved_step = s->step_number;
out:
    if (st != LS_OK)
        ls_log(LS_LOG_WARN,
               "the state of replica %d at step %lld was not saved: %s; training goes on",
               s->mesh.rank, (long long)s->step_number, ls_err_last()->text);
    return LS_OK;
}

static ls_status finish(ls_session *s)
{
    ls_local_sgd_session *o = s->sync.local_sgd;
    const ls_ckpt_pruning kept = ls_save_kept(s);
    ls_ckpt_info info = info_now(s);
    ls_status st = LS_OK;

    ls_err_doing("saving replica %d at step %lld", s->mesh.rank, (long long)s->step_number);
    LS_TRY(st, wait_writer(o), out);
    if (o->saved_step == s->step_number)
        goto out;
    LS_TRY(st, open_store(s), out);
    LS_TRY(st, ls_ckpt_save(o->store, &info, o->rows, o->n_rows, NULL), out);
    o->saved_step = s->step_number;
    if (ls_ckpt_prune_by(o->store, &kept, NULL) != LS_OK)
        ls_log(LS_LOG_WARN, "cannot remove old states of replica %d: %s", s->mesh.rank,
               ls_err_last()->text);
out:
    ls_err_done();
    return st;
}

const ls_sync_mode ls_sync_local_sgd = {.open = open_mode,
                                        .close = close_mode,
                                        .start = start,
                                        .begin = begin,
                                        .exchange = exchange,
                                        .meets = meets,
                                        .show = show,
                                        .save_begin = save_begin,
                                        .live = live,
                                        .copies_at_once = true,
                                        .finish = finish,
                                        .count = count};
