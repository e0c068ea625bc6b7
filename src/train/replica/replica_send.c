/* replica_send.c -- see replica_send.h.
 *
 * Why gradients are sent and not the state: 4 bytes for each element of a part instead of 12, the
 * step is as safe as it can be when its losses are exchanged (with the state it is one step later),
 * and no rank needs a second version of what it has, because none goes back. It needs an update
 * that gives the same bits in both places: element by element, on CPUs. Of LAMB and Muon, which
 * exchange in the middle of an update, the last one is made again (replica_repeat.c). A GPU's
 * moments are not in reach of the host: there are no copies then, and a rank that dies leaves the
 * last checkpoint.
 *
 * Where a copy lies. Example, 3 ranks, rank 1 holds the copy of rank 0's part (A, B, C: parts):
 *
 *     whole model    rank 1   weights A B C | moments B | copy: weights A, moments A, gradient A
 *     model parts    rank 1   weights A B C | moments B, A behind them | gradient A B C
 *
 * With model parts the gradient of A arrives in this rank's own buffer, at its elements, which only
 * their owner has summed; nothing reads them any more. With a whole model the messages of a step
 * start before the norm is computed, all of them before any rank waits, so there is no circle. */
#include "train/replica/replica_impl.h"

#include "base/mem.h"
#include "plan/memory.h"
#include "train/step/pipeline_impl.h"

/* --- pieces ----------------------------------------------------------------------------------- */

ls_status ls_replica_pieces_open(ls_replica_pieces *p, const ls_run *run, const ls_model *model,
                                 bool packed, bool whole)
{
    int64_t n = 0;

    p->spans = ls_mem_array((size_t)ls_memory_spans(model), sizeof *p->spans);
    p->end_span = ls_mem_array((size_t)p->n, sizeof *p->end_span);
    if (!p->spans || !p->end_span)
        return LS_ENOMEM;
    for (int i = 0; i < p->n; i++)
        p->end_span[i] = n += ls_optim_spans(run, model, p->at[i], packed, whole, p->spans + n);
    return LS_OK;
}

void ls_replica_pieces_close(ls_replica_pieces *pieces)
{
    ls_mem_free(pieces->at);
    ls_mem_free(pieces->spans);
    ls_mem_free(pieces->end_span);
    *pieces = (ls_replica_pieces){.at = NULL};
}

int64_t ls_replica_elements(const ls_replica_pieces *p)
{
    return p->n > 0 ? p->at[p->n - 1].packed + p->at[p->n - 1].count : 0;
}

void ls_replica_update_piece(const ls_replica_update *update, int i, const float *gradient)
{
    const ls_replica_pieces *p = update->pieces;
    int64_t from = i == 0 ? 0 : p->end_span[i - 1], n = p->end_span[i] - from;

    if (n > 0)
        ls_optim_elements(
            update->run, update->kernels, update->stream,
            &(ls_optimizer_update){.w = update->w,
                                   .m = update->m + p->at[i].packed,
                                   .v = update->v ? update->v + p->at[i].packed : NULL,
                                   .grad = gradient,
                                   .spans = p->spans + from,
                                   .n_spans = n,
                                   .copy_type = LS_F32,
                                   .state = &update->numbers->state,
                                   .result = &update->numbers->norm});
}

/* --- opening ---------------------------------------------------------------------------------- */

/* What a rank of those that divide updates, as its own moments lie. */
static ls_status list(const ls_step *s, int rank, ls_replica_pieces *pieces)
{
    const ls_step_args *a = &s->args;
    const ls_mesh *mesh = s->pipeline ? NULL : &ls_dp_args_of(a->dp)->mesh;

    pieces->n = mesh ? ls_replicas_pieces(a->run, a->model, mesh, rank, NULL) : ls_pipeline_owns(s);
    pieces->at = ls_mem_array((size_t)pieces->n, sizeof *pieces->at);
    if (!pieces->at)
        return LS_ENOMEM;
    if (mesh)
        (void)ls_replicas_pieces(a->run, a->model, mesh, rank, pieces->at);
    for (int i = 0; i < pieces->n && !mesh; i++)
        pieces->at[i] = ls_pipeline_updated(s, rank, i);
    return LS_OK;
}

static ls_status open_array(const ls_step *s, int64_t elements, const char *what, float **out)
{
    void *memory;
    ls_status st = ls_device_alloc(
        ls_step_device(s), ls_round_up(elements * (int64_t)sizeof(float), 4096), what, &memory);

    if (st == LS_OK)
        *out = memory;
    return st;
}

/* Memory beside the step's: for the copy, and for an update that may be made again. */
static ls_status open_copies(const ls_step *s, struct ls_replica_send *r)
{
    static const char *const names[LS_REPLICA_ARRAYS] = {
        "weights of another rank", "first moments of another rank",
        "second moments of another rank", "gradients of another rank"};
    ls_status st = LS_OK;

    for (int k = 0; k < LS_REPLICA_ARRAYS && r->sends; k++)
        if (k != LS_REPLICA_V || ls_optim_keeps(s->args.run, LS_REPLICA_V))
            LS_TRY(st, open_array(s, ls_replica_elements(&r->held), names[k], &r->copy[k]), out);
    r->again.on = ls_replica_repeats(s->args.run);
    for (int k = 0; k < LS_REPLICA_ARRAYS && r->again.on; k++)
        LS_TRY(st,
               open_array(s, ls_replica_elements(&r->own), "own parts before an update",
                          &r->again.old[k]),
               out);
    if (!r->again.on || !r->sends)
        goto out;
    LS_TRY(
        st,
        open_array(s, ls_replica_elements(&r->held), "gradients of another rank", &r->again.next),
        out);
    st = ls_replica_repeat_open(&r->again.repeat, s->args.model,
                                &(ls_replica_update){.run = s->args.run,
                                                     .kernels = s->args.kernels,
                                                     .stream = s->args.stream,
                                                     .pieces = &r->held});
out:
    return st;
}

/* Which ranks divide, and how their copies lie. False: no copies. */
static bool describe(const ls_step *s, struct ls_replica_send *r)
{
    const ls_mesh *mesh = s->args.dp ? &ls_dp_args_of(s->args.dp)->mesh : NULL;
    const ls_stage_plan *plan = s->pipeline ? &s->pipeline->plan : NULL;
    const ls_model_split *split = &s->args.model->split;

    if (plan) {
        *r = (struct ls_replica_send){.comm = s->pipeline->stage_comm,
                                      .to = plan->copy_holder,
                                      .from = plan->copy_owner,
                                      .sends = true,
                                      .weights = plan->zero == 3};
        return plan->copy_owner >= 0;
    }
    if (!mesh || !mesh->buddies || mesh->zero == 0)
        return false;
    *r = (struct ls_replica_send){.comm = ls_dp_args_of(s->args.dp)->comm,
                                  .to = ls_replicas_holder(mesh, mesh->rank),
                                  .from = ls_replicas_owner(mesh, mesh->rank),
                                  .sends = ls_replicas_sends(mesh),
                                  .separate = split->ranks < 2 && split->ep_ranks < 2,
                                  .weights = mesh->zero == 3};
    return r->separate || ls_replicas_in_moments(s->args.model, mesh);
}

ls_status ls_replica_send_open(ls_step *s)
{
    struct ls_replica_send like, *r;
    ls_status st = LS_OK;

    if (!describe(s, &like))
        return LS_OK;
    r = s->replica = ls_mem_alloc(sizeof *r);
    if (!r)
        return LS_ENOMEM;
    *r = like;
    LS_TRY(st, list(s, ls_comm_rank(r->comm), &r->own), out);
    LS_TRY(st, list(s, r->from, &r->held), out);
    for (int i = 0; i < r->held.n && !r->separate && !s->pipeline; i++)
        r->held.at[i].packed += ls_replicas_place(s->own);
    LS_TRY(st,
           ls_replica_pieces_open(&r->held, s->args.run, s->args.model, r->separate,
                                  !ls_step_divides(s) && !s->ep_group.parts.at),
           out);
    if (r->separate)
        st = open_copies(s, r);
out:
    return st;
}

void ls_replica_send_close(ls_step *step)
{
    ls_device *device = ls_step_device(step);
    struct ls_replica_send *r = step->replica;

    if (!r)
        return;
    for (int k = 0; k < LS_REPLICA_ARRAYS; k++) {
        ls_device_free(device, r->copy[k]);
        ls_device_free(device, r->again.old[k]);
    }
    ls_device_free(device, r->again.next);
    ls_replica_repeat_close(&r->again.repeat);
    ls_replica_pieces_close(&r->own);
    ls_replica_pieces_close(&r->held);
    ls_mem_free(r);
    step->replica = NULL;
}

int64_t ls_replica_send_bytes(const ls_step *step)
{
    return step && step->replica ? step->replica->sent : 0;
}

/* --- messages --------------------------------------------------------------------------------- */

static bool weights_are_packed(const struct ls_replica_send *r)
{
    return r->separate && r->weights;
}

/* Where a piece of an array is sent from, or arrives. */
static float *place_of(const ls_step *s, int what, bool sends, ls_mesh_part piece)
{
    const struct ls_replica_send *r = s->replica;

    if (!sends && r->separate)
        return (what == LS_REPLICA_G && r->again.on ? r->again.next : r->copy[what]) + piece.packed;
    if (what == LS_REPLICA_G)
        return (float *)(uintptr_t)ls_step_own_gradient(s, piece);
    bool packed = what != LS_REPLICA_W || weights_are_packed(r);
    return (float *)s->state_memory[what] + (packed ? piece.packed : piece.first);
}

/* Messages of some pieces of an array, from piece `from` on, each way. */
static ls_status start_some(const ls_step *s, int what, int from)
{
    struct ls_replica_send *r = s->replica;
    ls_status st = LS_OK;

    for (int i = 0; i < 2 * LS_REPLICA_AT_A_TIME && st == LS_OK; i++) {
        bool sends = i % 2 == 0;
        int at = from + i / 2;
        const ls_replica_pieces *pieces = sends ? &r->own : &r->held;
        if (at >= pieces->n || pieces->at[at].count == 0)
            continue;
        float *memory = place_of(s, what, sends, pieces->at[at]);
        const ls_coll coll = {.kind = sends ? LS_COLL_SEND : LS_COLL_RECV,
                              .type = LS_F32,
                              .count = pieces->at[at].count,
                              .in = memory,
                              .out = memory,
                              .peer = sends ? r->to : r->from};
        st = ls_comm_start(r->comm, &coll, &r->requests[r->n_requests]);
        r->n_requests += st == LS_OK;
        r->sent += sends ? coll.count * (int64_t)sizeof(float) : 0;
    }
    return st;
}

/* Their end, even after a failure: then nothing is written here any more. */
static ls_status finish(struct ls_replica_send *r, ls_status st)
{
    for (int i = 0; i < r->n_requests; i++) {
        ls_status ended = ls_comm_wait(r->comm, r->requests[i], ls_pipeline_deadline());
        st = st == LS_OK ? ended : st;
    }
    r->n_requests = 0;
    return st;
}

/* All of an array. Own pieces are as many as the holder keeps, so both make as many rounds. */
static ls_status exchange(const ls_step *s, int what)
{
    struct ls_replica_send *r = s->replica;
    int most = r->own.n > r->held.n ? r->own.n : r->held.n;
    ls_status st = LS_OK;

    for (int from = 0; from < most && st == LS_OK; from += LS_REPLICA_AT_A_TIME)
        st = finish(r, start_some(s, what, from));
    return st;
}

/* --- the first copies ------------------------------------------------------------------------- */

/* With ZeRO 1 and 2 every rank has all weights. */
static void copy_weights(const ls_step *s)
{
    const struct ls_replica_send *r = s->replica;

    for (int i = 0; i < r->held.n; i++) {
        ls_mesh_part piece = r->held.at[i];
        memcpy(r->copy[LS_REPLICA_W] + piece.packed, (float *)s->state_memory[0] + piece.first,
               (size_t)piece.count * sizeof(float));
    }
}

/* The own part as it is now; with_gradient: and what it is updated with. */
static void note_own(const ls_step *s, bool with_gradient)
{
    const struct ls_replica_send *r = s->replica;

    for (int k = LS_REPLICA_W; k < (with_gradient ? LS_REPLICA_ARRAYS : LS_REPLICA_G); k++)
        for (int i = 0; i < r->own.n; i++) {
            ls_mesh_part piece = r->own.at[i];
            if (piece.count > 0)
                memcpy(r->again.old[k] + piece.packed, place_of(s, k, true, piece),
                       (size_t)piece.count * sizeof(float));
        }
}

ls_status ls_replica_send_begin(ls_step *step, int64_t done)
{
    struct ls_replica_send *r = step->replica;
    double nothing = 0;
    ls_status st = LS_OK;

    if (!r)
        return LS_OK;
    if (r->sends && r->weights)
        LS_TRY(st, exchange(step, LS_REPLICA_W), out);
    else if (r->sends && r->separate)
        copy_weights(step);
    for (int k = LS_REPLICA_M; k < ls_optim_kinds(step->args.run) && r->sends; k++)
        LS_TRY(st, exchange(step, k), out);
    if (r->again.on)
        note_own(step, false);
    r->again.pending = r->again.prepared = false;
    r->begun = true;
    if (!r->separate)
        goto out;
    if (done > 0)
        (void)ls_step_test_point("recover.copied", ls_comm_rank(r->comm), -1);
    LS_TRY(st, ls_dp_sum_numbers(step->args.dp, LS_F64, &nothing, 1), out);
    r->confirmed = true;
out:
    return st;
}

/* --- in a step -------------------------------------------------------------------------------- */

ls_status ls_replica_send_start(ls_step *step)
{
    struct ls_replica_send *r = step->replica;

    if (!r || !r->begun)
        return LS_OK;
    r->again.prepared = false;
    return r->separate && r->sends ? start_some(step, LS_REPLICA_G, 0) : LS_OK;
}

ls_status ls_replica_send_wait(ls_step *step)
{
    struct ls_replica_send *r = step->replica;

    if (!r || !r->begun)
        return LS_OK;
    return r->separate ? finish(r, LS_OK) : exchange(step, LS_REPLICA_G);
}

/* The copy catches up with the update before, of which all weights are here now. */
static ls_status prepare_copy(ls_step *s)
{
    struct ls_replica_send *r = s->replica;
    float *gradient = r->again.next;
    ls_status st = LS_OK;

    if (r->again.pending)
        st = ls_replica_repeat_moments(&r->again.repeat, r->copy, &r->again.numbers);
    copy_weights(s);
    r->again.next = r->copy[LS_REPLICA_G];
    r->copy[LS_REPLICA_G] = gradient;
    return st;
}

ls_status ls_replica_send_prepare(ls_step *step)
{
    struct ls_replica_send *r = step->replica;
    ls_status st = LS_OK;

    if (!r || !r->begun || !r->again.on)
        return LS_OK;
    if (r->sends)
        LS_TRY(st, prepare_copy(step), out);
    note_own(step, true);
    r->again.numbers = ls_replica_scalars_of(step);
    r->again.pending = r->again.prepared = true;
    (void)ls_step_test_point("recover.update", ls_comm_rank(r->comm), -1);
out:
    return st;
}

void ls_replica_send_update(ls_step *step)
{
    const struct ls_replica_send *r = step->replica;

    if (!r || !r->begun || !r->sends || r->again.on)
        return;
    const ls_replica_scalars numbers = ls_replica_scalars_of(step);
    const ls_replica_update update = {
        .run = step->args.run,
        .kernels = step->args.kernels,
        .stream = step->args.stream,
        .pieces = &r->held,
        .w = r->separate ? r->copy[LS_REPLICA_W] : step->state_memory[LS_REPLICA_W],
        .m = r->separate ? r->copy[LS_REPLICA_M] : step->state_memory[LS_REPLICA_M],
        .v = r->separate ? r->copy[LS_REPLICA_V] : step->state_memory[LS_REPLICA_V],
        .numbers = &numbers};
    for (int i = 0; i < r->held.n; i++)
        if (r->held.at[i].count > 0)
            ls_replica_update_piece(&update, i, place_of(step, LS_REPLICA_G, false, r->held.at[i]));
}
