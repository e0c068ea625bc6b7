/* replica_restore.c -- each part of the state that a view goes on with, to the ranks that need it.
 *
 * ls_replica_choose() has named the sources, and a rank that was one step behind has made its
 * update. By how the state is divided (ls_replica_layout):
 *
 *   whole model   a rank that is behind, or new, gets all of it from the view's source: a broadcast
 *   model parts   a rank that lacks its part gets it from a replica of it, or from the holder of a copy
 *
 *                 rank 0   part 0          rank 0   part 0
 *                 rank 1   part 1   --->   rank 1   part 1
 *                 rank 2   part 0   dies   rank 2   part 0     from rank 0
 *
 *   ZeRO parts    the parts that ZeRO had cut move to their owners in the new mesh, of any size, each
 *                 element to each rank that owns it now (parallel/reshard.h); with LAMB and Muon they
 *                 are of before the last update, which all ranks then make together */
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "parallel/blocking.h"
#include "train/replica/replica_impl.h"
#include "train/session/session_impl.h"

/* --- the update that was not made --------------------------------------------------------------- */

/* Element by element, of the own part or of the copy. */
static ls_status update_part(ls_session *s, const ls_replica_holding *h, int p)
{
    const ls_replica_pieces *pieces = &h->pieces[p];
    float *const *parts = h->parts[p];
    bool packed = !h->arrays[0];
    const float *gradient = parts[LS_REPLICA_G];
    const ls_replica_update update = {.run = s->run,
                                      .kernels = s->kernels,
                                      .stream = s->stream,
                                      .pieces = pieces,
                                      .w = packed ? parts[LS_REPLICA_W] : h->arrays[LS_REPLICA_W],
                                      .m = packed ? parts[LS_REPLICA_M] : h->arrays[LS_REPLICA_M],
                                      .v = packed ? parts[LS_REPLICA_V] : h->arrays[LS_REPLICA_V],
                                      .numbers = &h->numbers};

    for (int i = 0; i < pieces->n; i++) {
        ls_replica_update_piece(&update, i,
                                packed ? parts[LS_REPLICA_G] + pieces->at[i].packed : gradient);
        gradient += pieces->at[i].count;
    }
    return ls_stream_sync(s->stream, ls_step_deadline());
}

static void replace(ls_session *s, float **old, float **new)
{
    ls_device_free(s->device, *old);
    *old = *new;
    *new = NULL;
}

/* LAMB and Muon: the copy's moments make the update that was pending; weights and gradient are
 * those of the next one. */
static ls_status advance_copy(ls_session *s, ls_replica_holding *h)
{
    float **parts = h->parts[LS_REPLICA_COPY], **later = h->later[LS_REPLICA_COPY];
    const ls_replica_pieces *pieces = &h->pieces[LS_REPLICA_COPY];
    ls_replica_repeat repeat;
    ls_status st = LS_OK;

    if (h->entry.pending) {
        const ls_replica_update update = {
            .run = s->run, .kernels = s->kernels, .stream = s->stream, .pieces = pieces};
        LS_TRY(st, ls_replica_repeat_open(&repeat, &s->model, &update), out);
        st = ls_replica_repeat_moments(&repeat, parts, &h->numbers);
        ls_replica_repeat_close(&repeat);
    }
    replace(s, &parts[LS_REPLICA_W], &later[LS_REPLICA_W]);
    replace(s, &parts[LS_REPLICA_G], &later[LS_REPLICA_G]);
out:
    return st;
}

/* LAMB and Muon: what is kept is of before the next update. */
static ls_status advance(ls_session *s, ls_replica_holding *h)
{
    ls_status st = LS_OK;

    if (h->entry.part[LS_REPLICA_COPY] >= 0)
        LS_TRY(st, advance_copy(s, h), out);
    for (int k = 0; k < LS_REPLICA_ARRAYS; k++)
        replace(s, &h->parts[LS_REPLICA_OWN][k], &h->later[LS_REPLICA_OWN][k]);
    h->numbers = h->later_numbers;
    h->entry.pending = true;
out:
    return st;
}

ls_status ls_replica_catch_up(ls_session *s, ls_replica_holding *h, const ls_replica_entry *best)
{
    bool updated = best->last.finite; /* else the step changed nothing */
    ls_status st = LS_OK;

    if (h->entry.done == best->received)
        return LS_OK;
    if (updated && h->repeats)
        LS_TRY(st, advance(s, h), out);
    for (int p = 0; p < LS_REPLICA_HELD && updated && !h->repeats; p++)
        if (h->entry.part[p] >= 0)
            LS_TRY(st, update_part(s, h, p), out);
    ls_replica_count_step(s, best->received, &best->last);
    h->entry.done = h->entry.received = best->received;
    h->entry.ready = false;
    h->entry.last = best->last;
out:
    return st;
}

/* --- whole model -------------------------------------------------------------------------------- */

static ls_status broadcast_model(ls_session *s)
{
    const ls_view_plan *plan = &s->args.view.plan;
    ls_step_arrays live = ls_step_state_arrays(s->step);
    void *const arrays[] = {live.w, live.m, live.v};
    const int64_t elements[] = {s->model.flat, s->model.trained,
                                ls_optim_seconds(s->run, &s->model)};
    ls_status st = LS_OK;

    for (int k = 0; k < ls_optim_kinds(s->run) && plan->spread && s->dp && st == LS_OK; k++)
        st = ls_step_broadcast(s->step, plan->source, arrays[k],
                               elements[k] * (int64_t)sizeof(float));
    return st;
}

/* --- model parts -------------------------------------------------------------------------------- */

/* A part, by the rank that has it and the one that needs it. copy: the first one holds a copy. What
 * it keeps in the memory of its step has the places of that step. */
static ls_status carry(ls_session *s, int from, int to, bool copy)
{
    const ls_replica_holding *h = &s->recovery.store->holdings[0];
    bool sends = s->mesh.rank == from, kept = sends && !h->reused;
    ls_status st = LS_OK;

    for (int k = 0; k < ls_optim_kinds(s->run) && st == LS_OK; k++) {
        ls_replica_pieces listed = {.at = NULL};
        const ls_replica_pieces *pieces = sends && copy ? &h->pieces[LS_REPLICA_COPY]
                                          : !kept       ? &listed
                                          : k > 0       ? &h->pieces[LS_REPLICA_OWN]
                                                        : &h->weights;
        if (pieces == &listed)
            st = ls_replica_list(s->step, k == 0, &listed);
        float *array = kept ? h->arrays[k] : s->step->state_memory[k];
        for (int i = 0; i < pieces->n && st == LS_OK; i++)
            st = ls_blocking_carry(s->args.comm, from, to,
                                   array + (k > 0 ? pieces->at[i].packed : pieces->at[i].first),
                                   pieces->at[i].count, ls_session_deadline());
        ls_replica_pieces_close(&listed);
    }
    return st;
}

/* Tied embeddings, and weights that other ranks update, are copies: they are made anew from their
 * owners' (ls_step_complete). */
static ls_status restore_parts(ls_session *s)
{
    const struct ls_replica_store *k = s->recovery.store;
    ls_status st = LS_OK;

    for (int r = 0; r < s->args.view.plan.ranks; r++) {
        int part = ls_replicas_part(&s->mesh, r), from = k->sources[part];
        const ls_replica_entry *has = &k->records[r].entry[0];
        if (has->part[LS_REPLICA_OWN] == part && ls_replica_serves(s, has, &k->plan))
            continue;
        bool copy = k->records[from].entry[0].part[LS_REPLICA_OWN] != part;
        if (s->mesh.rank == r)
            ls_log(LS_LOG_INFO, "part %d of %d of the state comes from rank %d, a %s", part + 1,
                   k->plan.cut.shard, from, copy ? "buddy" : "replica");
        if (s->mesh.rank == r || s->mesh.rank == from)
            LS_TRY(st, carry(s, from, r, copy), out);
    }
    st = ls_step_complete(s->step);
out:
    return st;
}

/* --- ZeRO parts --------------------------------------------------------------------------------- */

static ls_reshard_args reshard_of(const ls_session *s)
{
    return (ls_reshard_args){.comm = s->args.comm,
                             .from = s->recovery.store->plan.cut,
                             .to = &s->mesh,
                             .trained = s->model.trained,
                             .sources = s->recovery.store->sources};
}

/* held: of each array, by parts. */
static ls_status move_all(ls_session *s, const float *const **held)
{
    ls_step_arrays live = ls_step_state_arrays(s->step);
    float *const arrays[] = {live.w, live.m, live.v};
    const ls_reshard_args args = reshard_of(s);
    int64_t sent, all = 0;
    ls_status st = LS_OK;

    for (int k = 0; k < ls_optim_kinds(s->run); k++) {
        bool whole = k == LS_REPLICA_W && s->mesh.zero < 3;
        LS_TRY(st, ls_reshard_move(&args, held[k], whole, arrays[k], ls_session_deadline(), &sent),
               out);
        all += sent;
    }
    if (s->dp && s->mesh.zero < 3)
        LS_TRY(st, ls_dp_gather(s->dp, live.w), out);
    ls_log(LS_LOG_DEBUG, "this rank sent %lld bytes of weights and moments to others",
           (long long)all);
out:
    return st;
}

/* LAMB and Muon: whether what the ranks have is of before an update, the same on all of them. */
static bool is_pending(const ls_session *s)
{
    const ls_replica_entry *plan = &s->recovery.store->plan;

    return ls_replica_repeats(s->run) &&
           (plan->pending || (plan->done < plan->received && plan->last.finite));
}

/* That update: by all ranks, with the gradients of then. */
static ls_status make_again(ls_session *s, const float *const *gradients)
{
    const ls_replica_holding *h = s->recovery.store->chosen;
    const ls_reshard_args args = reshard_of(s);
    ls_replica_scalars numbers = {.norm = {.bad_block = -1}};
    int64_t sent;
    ls_step_clock clock;
    ls_status st = LS_OK;

    if (h)
        numbers = h->numbers;
    LS_TRY(st,
           ls_reshard_move(&args, gradients, true, s->step->grads[0], ls_session_deadline(), &sent),
           out);
    if (s->dp)
        LS_TRY(st, ls_dp_broadcast(s->dp, s->args.view.plan.source, &numbers, sizeof numbers), out);
    *s->step->state = numbers.state;
    *s->step->norm = numbers.norm;
    ls_step_clock_begin(&clock);
    LS_TRY(st, ls_step_update(s->step, &clock), out);
    s->step->progress.made = false; /* of no step that this one has run */
    st = ls_stream_sync(s->stream, ls_step_deadline());
out:
    return st;
}

static ls_status restore_zero_parts(ls_session *s)
{
    const struct ls_replica_store *store = s->recovery.store;
    const ls_replica_holding *h = store->chosen;
    int parts = store->plan.cut.shard;
    const float **held = ls_mem_array((size_t)(LS_REPLICA_ARRAYS * parts), sizeof *held);
    const float *const *arrays[] = {held, held + parts, held + 2 * (ptrdiff_t)parts};
    ls_status st = LS_OK;

    if (!held)
        return LS_ENOMEM;
    for (int p = 0; p < LS_REPLICA_HELD && h; p++)
        for (int k = 0; k < LS_REPLICA_ARRAYS && h->entry.part[p] >= 0; k++)
            held[k * parts + h->entry.part[p]] = h->parts[p][k];
    LS_TRY(st, move_all(s, arrays), out);
    if (is_pending(s))
        st = make_again(s, held + (ptrdiff_t)LS_REPLICA_G * parts);
    (void)ls_step_test_point("recover.moved", s->mesh.rank, -1);
out:
    ls_mem_free(held);
    return st;
}

ls_status ls_replica_restore(ls_session *session)
{
    const struct ls_replica_store *k = session->recovery.store;

    if (!k || k->plan.part[LS_REPLICA_OWN] < 0)
        return broadcast_model(session);
    return ls_replica_layout_of(session) == LS_REPLICA_MODEL_PARTS ? restore_parts(session)
                                                                   : restore_zero_parts(session);
}
