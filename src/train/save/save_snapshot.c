/* save_snapshot.c -- the state of a session as tensors of a checkpoint, and the copy that is written.
 *
 * Three tensors for each parameter: "param", "adam.m", "adam.v", each pointing into the flat buffers;
 * where the optimizer keeps one moment two, as "param" and "muon.m" (ls_optim_kind_name()). A save in
 * the background reads a copy, the snapshot, so that training can go on:
 *
 *     CPU, one rank       state --copy by threads, beside the next forward and backward--> snapshot
 *     GPU, one rank       state --copy by the device, likewise--> snapshot in host memory
 *     first rank saves    parts of all ranks --collected at once--> snapshot of the first rank
 *
 * Where the whole state is in no rank's own memory (staged: a GPU, or ranks that have parts), loading
 * goes through the snapshot too, the other way round. Where each rank writes its parts
 * (sharded_save.c), only whole weights are collected so, for text samples and the hash of the run. */
#include "train/save/save_impl.h"

#include "base/fault.h"
#include "base/mem.h"
#include "optim/optim.h"
#include "layout/ckpt_ranges.h"
#include "train/session/sync.h"
#include "train/session/session_impl.h"
#include "train/session/model_groups.h"

enum { KINDS = LS_SAVE_KINDS, COPIERS = 4 };

static ls_ckpt_tensor row_of(const ls_param *p, const char *kind, float *numbers)
{
    return (ls_ckpt_tensor){.name = p->name,
                            .kind = kind,
                            .group = p->group,
                            .type = LS_F32,
                            .ndim = p->ndim,
                            .shape = {p->box.shape[0], p->ndim > 1 ? p->box.shape[1] : 0},
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

ls_ckpt_tensor ls_save_tensor(const ls_session *s, int kind, const ls_param *p)
{
    ls_ckpt_tensor row = row_of(p, ls_optim_kind_name(s->run, p, kind), NULL);

    row.frozen = p->trained < 0;
    return row;
}

int ls_save_fill_rows(const ls_session *s, ls_ckpt_tensor *rows, void *const arrays[KINDS])
{
    const ls_model *whole = ls_model_groups_whole(s);
    int n = 0;

    for (int k = 0; k < ls_optim_kinds(s->run); k++)
        for (int i = 0; i < whole->n_params; i++) {
            int64_t first = ls_ckpt_ranges_place(s->run, whole, &s->mesh, k, i);
            if (first < 0)
                continue;
            rows[n] = ls_save_tensor(s, k, &whole->params[i]);
            if (arrays[k]) /* this rank has it as a whole */
                rows[n].bytes = (float *)arrays[k] + first;
            rows[n++].spilled = on_disk(s, k);
        }
    return n;
}

/* What is saved, and loaded. */
void ls_save_live(const ls_session *s, void *arrays_out[KINDS])
{
    ls_step_arrays live = ls_step_state_arrays(s->step);

    arrays_out[0] = live.w;
    arrays_out[1] = live.m;
    arrays_out[2] = live.v;
    ls_sync_live(s, arrays_out);
}

int64_t ls_save_elements(const ls_session *s, int kind)
{
    return ls_ckpt_ranges_array(s->run, ls_model_groups_whole(s), &s->mesh, kind);
}

/* Bytes of the weights, or of one moment; and of the snapshot's. */
static int64_t state_bytes(const ls_session *s, int kind)
{
    return ls_save_elements(s, kind) * (int64_t)sizeof(float);
}

static int64_t kept_bytes(const ls_session *s, int kind)
{
    return ls_memory_snapshot_bytes(s->run, ls_model_groups_whole(s), &s->mesh, s->discrete, kind);
}

/* With a GPU it is made for the first save or load: to lock its pages takes a while, and the first
 * step should not wait for that. */
ls_status ls_save_open_snapshot(ls_session *s)
{
    static const char what[] = "checkpoint snapshot";
    ls_status st = LS_OK;

    for (int k = 0; k < KINDS; k++) {
        int64_t bytes = kept_bytes(s, k);
        if (s->snapshot.arrays[k] || bytes == 0)
            continue;
        if (s->discrete)
            LS_TRY(st, ls_device_host_alloc(s->device, bytes, what, &s->snapshot.arrays[k]), out);
        else if (on_disk(s, k))
            LS_TRY(st, ls_spill_open(&s->snapshot.spills[k], ls_session_offload_to(s), bytes, what),
                   out);
        else
            LS_TRY(st, ls_device_alloc(s->device, bytes, what, &s->snapshot.arrays[k]), out);
        if (on_disk(s, k))
            s->snapshot.arrays[k] = s->snapshot.spills[k].base;
    }
    (void)ls_save_fill_rows(s, s->snapshot.rows, s->snapshot.arrays);
    if (s->snapshot.staged)
        (void)ls_save_fill_rows(s, s->snapshot.live_rows, s->snapshot.arrays);
out:
    return st;
}

void ls_save_close_snapshot(ls_session *s)
{
    for (int k = 0; k < KINDS; k++) {
        if (s->discrete)
            ls_device_host_free(s->device, s->snapshot.arrays[k], kept_bytes(s, k));
        else if (on_disk(s, k))
            ls_spill_close(&s->snapshot.spills[k]);
        else
            ls_device_free(s->device, s->snapshot.arrays[k]);
        s->snapshot.arrays[k] = NULL;
    }
}

bool ls_save_divided(const ls_session *s, int kind)
{
    return ls_ckpt_ranges_divided(&s->mesh, kind);
}

/* Give back pages of moments on disk that something other than a step has touched. */
static void rest(ls_session *s)
{
    for (int k = 0; k < KINDS; k++)
        if (s->snapshot.spills[k].base)
            ls_spill_drop(&s->snapshot.spills[k], 0, s->snapshot.spills[k].bytes);
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

void ls_save_copy_out(ls_session *s, ls_stream *stream, int n)
{
    void *arrays[KINDS];

    ls_save_live(s, arrays);
    for (int k = 0; k < n; k++)
        if (on_host(s, k))
            copy_on_host(s, k, s->snapshot.arrays[k], arrays[k]);
        else
            ls_stream_copy_out(stream, s->snapshot.arrays[k], arrays[k], state_bytes(s, k));
}

ls_status ls_save_take_snapshot(ls_session *s, int n)
{
    void *arrays[KINDS];
    ls_status st = LS_OK;

    ls_save_live(s, arrays);
    LS_TRY(st, ls_step_settle(s->step), out);
    LS_TRY(st, ls_stream_sync(s->stream, ls_save_deadline()), out);
    for (int k = 0; k < n; k++)
        if (ls_save_divided(s, k))
            LS_TRY(st,
                   s->mesh.independent ? ls_dp_collect(s->dp, arrays[k], s->snapshot.arrays[k])
                                       : ls_step_collect(s->step, arrays[k], s->snapshot.arrays[k]),
                   out);
        else if (s->mesh.rank > 0)
            continue;
        else if (on_host(s, k))
            copy_on_host(s, k, s->snapshot.arrays[k], arrays[k]);
        else if (s->discrete)
            ls_stream_copy_out(s->stream, s->snapshot.arrays[k], arrays[k], state_bytes(s, k));
        else
            ls_stream_copy(s->stream, s->snapshot.arrays[k], arrays[k], state_bytes(s, k));
    LS_TRY(st, ls_stream_sync(s->stream, ls_save_deadline()), out);
    rest(s);
out:
    return st;
}

/* --- the copy beside the next step --- */

/* One of the threads that copy, each its share of every kind: a step is held up by as much on every
 * core that it uses, not by all of it on one. */
typedef struct copier {
    ls_session *session;
    pthread_t thread;
    int index, of;
    bool started;
} copier;

static void *copy_share(void *context)
{
    const copier *c = context;
    ls_session *s = c->session;
    void *arrays[KINDS];

    ls_save_live(s, arrays);
    for (int k = 0; k < ls_optim_kinds(s->run); k++) {
        int64_t first = state_bytes(s, k) / c->of * c->index;
        int64_t end =
            c->index + 1 < c->of ? state_bytes(s, k) / c->of * (c->index + 1) : state_bytes(s, k);
        if (!on_disk(s, k))
            memcpy((char *)s->snapshot.arrays[k] + first, (const char *)arrays[k] + first,
                   (size_t)(end - first));
        else if (c->index == 0)
            copy_on_host(s, k, s->snapshot.arrays[k], arrays[k]);
    }
    return NULL;
}

/* The same on the writer's thread and some beside it, of a state that lies in this process's
 * memory. */
ls_status ls_save_copy_here(void *context)
{
    ls_session *s = context;
    copier copiers[COPIERS];
    int n = (int)ls_min_i64(ls_pool_threads(ls_stream_pool(s->stream)), COPIERS);

    for (int i = n - 1; i >= 0; i--) {
        copiers[i] = (copier){.session = s, .index = i, .of = n};
        copiers[i].started =
            i > 0 && ls_pool_start_apart(&copiers[i].thread, copy_share, &copiers[i]) == 0;
        if (!copiers[i].started)
            copy_share(&copiers[i]);
    }
    for (int i = 1; i < n; i++)
        if (copiers[i].started)
            pthread_join(copiers[i].thread, NULL);
    return ls_fault_pass(LS_FAULT_AT_SAVE_COPY);
}

ls_status ls_save_send_loaded(ls_session *s)
{
    void *arrays[KINDS];

    ls_save_live(s, arrays);
    for (int k = 0; k < ls_optim_kinds(s->run) && s->snapshot.staged; k++)
        if (!ls_save_divided(s, k) && on_host(s, k))
            copy_on_host(s, k, arrays[k], s->snapshot.arrays[k]);
        else if (!ls_save_divided(s, k))
            ls_stream_copy_in(s->stream, arrays[k], s->snapshot.arrays[k], state_bytes(s, k));
    return ls_stream_sync(s->stream, ls_time_now_ns() + 600 * LS_NS_PER_S);
}

ls_status ls_save_scatter_snapshot(ls_session *s)
{
    void *arrays[KINDS];
    ls_status st = LS_OK;

    bool loaded = s->step_number > 0 && !s->save.sharded; /* else each has read its own */

    ls_save_live(s, arrays);
    int kinds = loaded ? ls_optim_kinds(s->run) : 0;
    for (int k = 0; k < kinds; k++)
        if (ls_save_divided(s, k))
            LS_TRY(st,
                   s->mesh.independent ? ls_dp_scatter(s->dp, s->snapshot.arrays[k], arrays[k])
                                       : ls_step_scatter(s->step, s->snapshot.arrays[k], arrays[k]),
                   out);
        else
            LS_TRY(st,
                   s->mesh.independent
                       ? ls_dp_broadcast(s->dp, 0, arrays[k], state_bytes(s, k))
                       : ls_step_broadcast(s->step, 0, arrays[k], state_bytes(s, k)),
                   out);
    rest(s);
out:
    return st;
}

/* The weights alone to the snapshot, once no save reads it; by all ranks where they have parts. */
static ls_status take_weights(ls_session *s)
{
    ls_status st = LS_OK;

    if (s->mesh.rank == 0) {
        LS_TRY(st, ls_save_wait(s), out);
        LS_TRY(st, ls_save_open_snapshot(s), out);
    }
    st = ls_save_take_snapshot(s, 1);
out:
    return st;
}

ls_status ls_save_whole_weights(ls_session *s, const void **weights_out)
{
    ls_dtype type = ls_run_compute_type(s->run);
    ls_status st = LS_OK;

    if (!ls_save_divided(s, 0)) {
        *weights_out = ls_step_state_arrays(s->step).read;
        return ls_step_settle(s->step);
    }
    LS_TRY(st, take_weights(s), out);
    *weights_out = s->snapshot.arrays[0];
    if (type == LS_F32 || s->mesh.rank > 0)
        goto out;
    /* In the place of the moments, which the next save fetches anew. */
    s->kernels->cast(s->stream, &(ls_cast){.from_type = LS_F32,
                                           .to_type = type,
                                           .from = s->snapshot.arrays[0],
                                           .to = s->snapshot.arrays[1],
                                           .n = ls_model_groups_whole(s)->flat,
                                           .rounding = ls_step_rounding(s->run, 0)});
    *weights_out = s->snapshot.arrays[1];
out:
    return st;
}

ls_status ls_save_weights_hash(ls_session *session, char hex_out[33])
{
    bool first = session->mesh.rank == 0;
    ls_status st = LS_OK;

    LS_TRY(st, ls_step_settle(session->step), out);
    if ((session->snapshot.staged && first) || ls_save_divided(session, 0))
        LS_TRY(st, take_weights(session), out);
    if (first)
        st = ls_ckpt_weights_hash(session->snapshot.live_rows,
                                  ls_model_groups_whole(session)->n_params, hex_out);
out:
    return st;
}
