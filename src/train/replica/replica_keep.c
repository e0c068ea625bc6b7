/* replica_keep.c -- what a rank takes out of its step when it has lost other ranks.
 *
 * Memory moves where it can: the state needs no second place, and it is there even when the next
 * view fails while it is built. What lies in memory that ranks share is copied out of it. By layout
 * (ls_replica_layout):
 *
 *   whole model   weights and moments, as the step has them
 *   model parts   the same, with the copy that lies among the moments; gradients of both
 *   ZeRO parts    own part: weights copied, moments moved; the copy, whose memory is its own: moved;
 *                 gradients. LAMB, Muon: all of that from before the last update
 *
 * Gradients are kept only where this rank does not know whether the step counts: it has sent its
 * losses and has not received those of all ranks.
 *
 * Such a rank may have two holdings. Example: a rank dies in view 2 while its copies are made. A rank that
 * has its copy cannot know whether all have: others may have let go of what they kept in view 1.
 * So it keeps both states, and the ranks of view 3 choose (replica_store.c). */
#include "train/replica/replica_store.h"

#include <math.h>
#include "base/log.h"
#include "base/mem.h"
#include "train/replica/recover.h"
#include "train/replica/replica_impl.h"
#include "train/step/pipeline_impl.h"

/* Whether the step is between two states: an update was begun, and cannot be ended or repeated. */
static bool is_partial(const ls_step *step)
{
    bool made = step->progress.made || (step->replica && step->replica->again.prepared);

    return !made && step->done == LS_STEP_PARTIAL;
}

static bool can_keep_model(const ls_session *s)
{
    return s->step && !ls_mesh_divides(&s->mesh) && !s->mesh.independent && s->recovery.has_state &&
           s->run->device.offload == LS_OFFLOAD_NONE;
}

static bool can_keep_parts(const ls_session *s)
{
    return s->step && s->recovery.has_state && !s->discrete && ls_replicas_knows(s->run) &&
           s->offload == LS_OFFLOAD_NONE && ls_optimizer_is_elementwise(s->run->train.optimizer);
}

/* With copies, or as one rank that has all of it. */
static bool can_keep_zero_parts(const ls_session *s)
{
    if (!s->step)
        return false;
    if (s->step->replica)
        return s->step->replica->begun;
    return s->recovery.has_state && !s->dp && !s->discrete &&
           ls_optimizer_of(s->run->train.optimizer)->reach != LS_REACH_MATRIX &&
           s->offload == LS_OFFLOAD_NONE && s->step->done != LS_STEP_PARTIAL;
}

bool ls_replica_can_keep(const ls_session *session)
{
    switch (ls_replica_layout_of(session)) {
    case LS_REPLICA_MODEL_PARTS:
        return can_keep_parts(session) && session->mesh.zero == 0;
    case LS_REPLICA_ZERO_PARTS:
        return can_keep_zero_parts(session);
    default:
        return can_keep_model(session);
    }
}

/* An array of the step, piece by piece, to memory of its own: packed, or one behind the other. */
static ls_status copy_pieces(const ls_session *s, const ls_replica_pieces *pieces, int what,
                             bool packed, float **out)
{
    const ls_step *step = s->step;
    int64_t elements = 0;
    void *memory;
    ls_status st;

    for (int i = 0; i < pieces->n; i++)
        elements += pieces->at[i].count;
    elements = packed ? ls_replica_elements(pieces) : elements;
    LS_TRY(st,
           ls_device_alloc(s->device, ls_max_i64(1, elements) * (int64_t)sizeof(float),
                           "parts of a state that is kept", &memory),
           out);
    float *to = *out = memory;
    for (int i = 0; i < pieces->n; i++) {
        ls_mesh_part piece = pieces->at[i];
        if (piece.count == 0)
            continue;
        const float *from = what == LS_REPLICA_G
                                ? ls_step_own_gradient(step, piece)
                                : (const float *)step->state_memory[what] +
                                      (ls_step_divides_weights(step) ? piece.packed : piece.first);
        memcpy(packed ? *out + piece.packed : to, from, (size_t)piece.count * sizeof *from);
        to += piece.count;
    }
out:
    return st;
}

static void take_moments(ls_step *step, float *parts[LS_REPLICA_ARRAYS])
{
    for (int k = LS_REPLICA_M; k <= LS_REPLICA_V; k++) {
        parts[k] = step->state_memory[k];
        step->state_memory[k] = NULL;
    }
}

/* Own parts: moments are moved, what lies in memory that ranks share is copied. And the copy. */
static ls_status keep_now(ls_session *s, ls_replica_holding *h)
{
    struct ls_replica_send *r = s->step->replica;
    float **own = h->parts[LS_REPLICA_OWN];
    const ls_replica_pieces *pieces = &h->pieces[LS_REPLICA_OWN];
    ls_status st = LS_OK;

    h->numbers = ls_replica_scalars_of(s->step);
    LS_TRY(st, copy_pieces(s, pieces, LS_REPLICA_W, true, &own[LS_REPLICA_W]), out);
    if (h->entry.ready)
        LS_TRY(st, copy_pieces(s, pieces, LS_REPLICA_G, true, &own[LS_REPLICA_G]), out);
    take_moments(s->step, own);
    if (r) {
        memcpy(h->parts[LS_REPLICA_COPY], r->copy, sizeof r->copy);
        memset(r->copy, 0, sizeof r->copy);
    }
out:
    return st;
}

/* LAMB and Muon: both parts before the last update; and, where the gradient of the next one has
 * come, what they are then. */
static ls_status keep_before(ls_session *s, ls_replica_holding *h)
{
    struct ls_replica_send *r = s->step->replica;
    ls_step *step = s->step;
    ls_status st = LS_OK;

    h->repeats = true;
    h->numbers = r->again.numbers;
    memcpy(h->parts[LS_REPLICA_OWN], r->again.old, sizeof r->again.old);
    memset(r->again.old, 0, sizeof r->again.old);
    memcpy(h->parts[LS_REPLICA_COPY], r->copy, sizeof r->copy);
    memset(r->copy, 0, sizeof r->copy);
    if (!h->entry.ready)
        goto out;
    h->later_numbers = ls_replica_scalars_of(step);
    for (int p = LS_REPLICA_OWN; p < (r->sends ? LS_REPLICA_HELD : LS_REPLICA_COPY); p++)
        LS_TRY(st, copy_pieces(s, &h->pieces[p], LS_REPLICA_W, true, &h->later[p][LS_REPLICA_W]),
               out);
    LS_TRY(st,
           copy_pieces(s, &h->pieces[LS_REPLICA_OWN], LS_REPLICA_G, true,
                       &h->later[LS_REPLICA_OWN][LS_REPLICA_G]),
           out);
    take_moments(step, h->later[LS_REPLICA_OWN]);
    h->later[LS_REPLICA_COPY][LS_REPLICA_G] = r->again.next;
    r->again.next = NULL;
out:
    return st;
}

/* A step counts whose losses this rank has received, now or before, and which it had not ended. */
void ls_replica_count_step(ls_session *s, int64_t received, const ls_step_result *result)
{
    if (received != s->step_number + 1)
        return;
    (void)ls_loss_scaler_step(&s->scaler, isfinite(result->loss), result->finite);
    s->progress.loss = result->finite ? result->loss : s->progress.loss;
    s->progress.last = *result;
    s->step_number = received;
}

/* How far the step has come. */
static void note_progress(const ls_session *s, ls_replica_entry *about)
{
    const ls_step *step = s->step;
    bool made = step->progress.made || (step->replica && step->replica->again.prepared);
    int64_t done = made ? step->progress.received : step->done;

    about->done = done < 0 ? s->step_number : done;
    about->received = ls_max_i64(about->done, step->progress.received);
    about->ready = !made && step->progress.ready == about->done;
    about->pending = step->replica && step->replica->again.pending;
}

ls_status ls_replica_list(const ls_step *step, bool weights, ls_replica_pieces *pieces)
{
    const ls_model *model = step->args.model;
    const ls_pipeline *x = step->pipeline;
    bool one = !x && !ls_step_divides(step) && !step->ep_group.parts.at;
    bool stages = x && weights && !x->plan.divides;

    pieces->n = one ? 1 : step->parts.own.n;
    pieces->at = ls_mem_array((size_t)pieces->n, sizeof *pieces->at);
    for (int i = 0; i < pieces->n && pieces->at; i++)
        pieces->at[i] = one      ? (ls_mesh_part){.count = weights ? model->flat : model->trained}
                        : stages ? (ls_mesh_part){.first = x->plan.chunk[i].weights.first,
                                                  .count = x->plan.chunk[i].weights.count}
                                 : step->parts.own.at[i];
    return pieces->at ? LS_OK : LS_ENOMEM;
}

/* The pieces that the step updates, and those of the copy. */
static ls_status take_pieces(ls_session *s, ls_replica_holding *h, bool packed)
{
    ls_replica_pieces *own = &h->pieces[LS_REPLICA_OWN];
    struct ls_replica_send *r = s->step->replica;
    bool whole = !packed && !ls_step_divides(s->step) && !s->step->ep_group.parts.at;
    ls_status st = LS_OK;

    LS_TRY(st, ls_replica_list(s->step, false, own), out);
    LS_TRY(st, ls_replica_pieces_open(own, s->run, &s->model, packed, whole), out);
    if (r && r->begun && r->sends) {
        h->pieces[LS_REPLICA_COPY] = r->held;
        r->held = (ls_replica_pieces){.at = NULL};
    }
out:
    return st;
}

/* Parts of a whole model. */
static ls_status keep_zero_parts(ls_session *s, ls_replica_holding *h)
{
    const struct ls_replica_send *r = s->step->replica;
    uint64_t view = s->args.view.plan.generation;
    int seat = ls_mesh_shard_rank(&s->mesh, s->mesh.rank);
    ls_status st = LS_OK;

    h->entry = (ls_replica_entry){
        .view = view,
        .origin = ls_recover_in_memory(s) ? s->recovery.store->origin : view,
        .cut = ls_reshard_cut_of(&s->mesh),
        .part = {seat, r && r->sends ? ls_mesh_shard_rank(&s->mesh, r->from) : -1}};
    note_progress(s, &h->entry);
    LS_TRY(st, take_pieces(s, h, true), out);
    LS_TRY(st, r && r->again.on ? keep_before(s, h) : keep_now(s, h), out);
    ls_replica_count_step(s, s->step->progress.received, &s->step->progress.result);
    h->entry.last = s->progress.last;
out:
    return st;
}

/* The part of the rank whose copy lies in this step's arrays; -1: none. */
static int64_t copied_part(const ls_session *s)
{
    const struct ls_replica_send *r = s->step->replica;

    if (!r || !r->begun)
        return -1;
    int distance = (r->from - ls_comm_rank(r->comm)) * ls_mesh_mp(&s->mesh);
    return ls_replicas_part(&s->mesh, s->mesh.rank + distance);
}

/* A slice of the model as it stands, but for the arrays. */
static ls_status describe_slice(ls_session *s, ls_replica_holding *h)
{
    const ls_step *step = s->step;
    const ls_mesh *replicas = step->args.dp ? &ls_dp_args_of(step->args.dp)->mesh : NULL;
    bool divided = ls_step_divides(step);
    int64_t size = sizeof(float), moments = step->args.model->trained;
    ls_status st = LS_OK;

    if (divided || step->ep_group.parts.at)
        moments = ls_replicas_moments(s->run, step->args.model, replicas, step->own);
    h->windows = step->pipeline != NULL;
    for (int k = 0; k < ls_optim_kinds(s->run); k++)
        h->bytes[k] = h->windows ? step->pipeline->state[0].bytes
                                 : (k == 0 ? step->args.model->flat : moments) * size;
    h->entry = (ls_replica_entry){
        .view = s->recovery.store->view,
        .origin = s->recovery.store->origin,
        .cut = {.shard = ls_replicas_parts(&s->mesh), .bucket = divided ? replicas->bucket : 0},
        .part = {ls_replicas_part(&s->mesh, s->mesh.rank), copied_part(s)}};
    note_progress(s, &h->entry);
    h->numbers = ls_replica_scalars_of(step);
    LS_TRY(st, ls_replica_list(step, true, &h->weights), out);
    LS_TRY(st, take_pieces(s, h, false), out);
    for (int p = 0; p < LS_REPLICA_HELD && h->entry.ready; p++)
        LS_TRY(st, copy_pieces(s, &h->pieces[p], LS_REPLICA_G, false, &h->parts[p][LS_REPLICA_G]),
               out);
    ls_replica_count_step(s, step->progress.received, &step->progress.result);
    h->entry.last = s->progress.last;
out:
    return st;
}

/* A whole state, but for the arrays. */
static void describe_model(const ls_session *s, ls_replica_holding *h)
{
    const int64_t size = sizeof(float), seconds = ls_optim_seconds(s->run, &s->model);
    int64_t done = s->step->done;

    h->entry = (ls_replica_entry){.part = {0, -1}, .done = done < 0 ? s->step_number : done};
    h->bytes[0] = s->model.flat * size;
    h->bytes[1] = s->model.trained * size;
    h->bytes[2] = seconds * size;
}

/* The arrays of the step, as they are. What was kept before stays, unless it is the step's. */
static ls_status keep_arrays(ls_session *s, ls_replica_holding *h, bool model_parts)
{
    bool partial = model_parts ? is_partial(s->step) : s->step->done == LS_STEP_PARTIAL;
    ls_status st = LS_OK;

    if (!h->reused && (partial || ls_replica_is_there(&h->entry)))
        return LS_OK;
    if (!h->reused && model_parts)
        LS_TRY(st, describe_slice(s, h), out);
    else if (!model_parts)
        describe_model(s, h);
    st = ls_step_keep(s->step, h->arrays);
    h->reused = false;
out:
    if (st != LS_OK)
        ls_replica_holding_close(s, h);
    return st;
}

/* The first holding is free, and what this rank came with is in the second, unless the copies of
 * this view are confirmed. */
static void make_room(ls_session *s, struct ls_replica_store *k)
{
    const struct ls_replica_send *r = s->step->replica;
    ls_replica_holding *first = &k->holdings[0], *second = &k->holdings[1];

    if (!r || r->confirmed) {
        ls_replica_holding_close(s, first);
        ls_replica_holding_close(s, second);
    } else if (ls_replica_is_there(&first->entry)) {
        bool newer = k->chosen != second;
        ls_replica_holding_close(s, newer ? second : first);
        if (newer) {
            *second = *first;
            *first = (ls_replica_holding){.entry = ls_replica_nothing};
        }
    }
    k->chosen = NULL;
}

void ls_replica_keep(ls_session *s)
{
    struct ls_replica_store *k = s->recovery.store;
    ls_replica_layout layout = ls_replica_layout_of(s);
    ls_status st = LS_OK;

    if (k && layout == LS_REPLICA_WHOLE_MODEL && ls_replica_is_there(&k->holdings[0].entry))
        return;
    if (s->sdc.distrusted)
        ls_replica_drop(s);
    if (s->sdc.distrusted || !s->step)
        return;
    k = ls_replica_store_of(s);
    if (!k) {
        st = LS_ENOMEM;
    } else if (layout == LS_REPLICA_ZERO_PARTS && can_keep_zero_parts(s) && !is_partial(s->step)) {
        make_room(s, k);
        st = keep_zero_parts(s, &k->holdings[0]);
        if (st != LS_OK)
            ls_replica_holding_close(s, &k->holdings[0]);
    } else if ((layout == LS_REPLICA_MODEL_PARTS && can_keep_parts(s)) ||
               (layout == LS_REPLICA_WHOLE_MODEL && can_keep_model(s))) {
        st = keep_arrays(s, &k->holdings[0], layout == LS_REPLICA_MODEL_PARTS);
    }
    if (st != LS_OK)
        ls_log(LS_LOG_WARN, "this rank cannot keep its state: %s", ls_err_last()->text);
}
