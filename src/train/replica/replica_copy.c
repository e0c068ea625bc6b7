/* replica_copy.c -- see replica_copy.h.
 *
 * Why gradients travel and not the state: 4 bytes for each element of a part instead of 12, the
 * step is as safe as it can be when it is voted (with the state it is one step later), and nobody
 * needs a second version of what it has, because nobody goes back. It needs an update that gives
 * the same bits in both places: AdamW, element by element, on CPUs. LAMB and Muon exchange norms
 * and matrices in the middle of an update: of these the last one is made again (replica_redo.h). A GPU's
 * moments are not in reach of the host; there are no buddies then, and a rank that dies leaves the
 * last checkpoint.
 *
 * All sends and receives of a step are started before anybody waits, so there is no circle. */
#include "train/replica/replica_copy_impl.h"

#include "base/mem.h"
#include "optim/optim.h"
#include "plan/memory.h"

enum { WAIT_S = 600 };

static int64_t deadline(void)
{
    return ls_time_now_ns() + WAIT_S * LS_NS_PER_S;
}

int64_t ls_replica_copy_elements(const ls_reshard_cut *cut, int64_t trained, int seat)
{
    ls_mesh_part last = ls_reshard_part(cut, trained, ls_reshard_buckets(cut, trained) - 1, seat);

    return last.packed + last.count;
}

ls_status ls_replica_copy_spans(const ls_run *run, const ls_model *model, const ls_reshard_cut *cut,
                                int seat, ls_adamw_span **spans_out,
                                int64_t first[LS_MESH_BUCKETS + 1])
{
    ls_adamw_span *spans = ls_mem_array((size_t)ls_memory_spans(model), sizeof *spans);
    int64_t n = 0;

    if (!spans)
        return LS_ENOMEM;
    for (int b = 0; b < ls_reshard_buckets(cut, model->trained); b++) {
        ls_mesh_part part = ls_reshard_part(cut, model->trained, b, seat);
        first[b] = n;
        n += ls_optim_spans(run, model, part, true, false, spans + n);
        first[b + 1] = n;
    }
    *spans_out = spans;
    return LS_OK;
}

void ls_replica_copy_make_update(const ls_replica_copy_move *m)
{
    float *v = m->arrays[LS_REPLICA_COPY_V];

    for (int b = 0; b < ls_reshard_buckets(m->cut, m->trained); b++) {
        ls_mesh_part part = ls_reshard_part(m->cut, m->trained, b, m->seat);
        int64_t n = m->first_span[b + 1] - m->first_span[b];
        if (n > 0)
            ls_optim_elements(m->run, m->kernels, m->stream,
                              &(ls_adamw){.w = m->arrays[LS_REPLICA_COPY_W],
                                          .m = m->arrays[LS_REPLICA_COPY_M] + part.packed,
                                          .v = v ? v + part.packed : NULL,
                                          .grad = m->arrays[LS_REPLICA_COPY_G] + part.packed,
                                          .spans = m->spans + m->first_span[b],
                                          .n_spans = n,
                                          .copy_type = LS_F32,
                                          .state = m->state,
                                          .result = m->norm});
    }
}

const float *ls_replica_copy_gradient(const ls_step *step, ls_mesh_part own)
{
    return ls_step_parts(step) ? step->own_grad + own.packed
                               : (const float *)step->grads[0] + own.first;
}

/* --- opening ---------------------------------------------------------------------------------- */

static ls_status open_copies(ls_replica_copy *b)
{
    static const char *const names[LS_REPLICA_COPY_ARRAYS] = {
        "weights of another rank", "first moments of another rank",
        "second moments of another rank", "gradients of another rank"};
    ls_reshard_cut cut = ls_reshard_cut_of(&b->mesh);
    int seat = ls_mesh_shard_rank(&b->mesh, b->ward);
    int64_t bytes = ls_memory_copy_bytes(b->args.run, b->args.model, &b->mesh) /
                    (1 + ls_optim_kinds(b->args.run));
    void *memory;
    ls_status st = LS_OK;

    for (int k = 0; k < LS_REPLICA_COPY_ARRAYS; k++) {
        if (k == LS_REPLICA_COPY_V && !ls_optim_keeps(b->args.run, 2))
            continue;
        LS_TRY(st, ls_device_alloc(b->args.device, bytes, names[k], &memory), out);
        b->copy[k] = memory;
    }
    st = ls_replica_copy_spans(b->args.run, b->args.model, &cut, seat, &b->spans, b->first_span);
out:
    return st;
}

static ls_status open_array(ls_replica_copy *b, int64_t elements, const char *what, float **out)
{
    void *memory;
    ls_status st = ls_device_alloc(
        b->args.device, ls_round_up(elements * (int64_t)sizeof(float), 4096), what, &memory);

    if (st == LS_OK)
        *out = memory;
    return st;
}

static ls_status open_redo(ls_replica_copy *b)
{
    ls_reshard_cut cut = ls_reshard_cut_of(&b->mesh);
    int64_t trained = b->args.model->trained, own = ls_mesh_own(&b->mesh, trained, b->mesh.rank);
    ls_status st = LS_OK;

    for (int k = 0; k < LS_REPLICA_COPY_ARRAYS; k++)
        LS_TRY(st, open_array(b, own, "own parts before an update", &b->redo.old[k]), out);
    if (!b->sends)
        goto out;
    LS_TRY(st,
           open_array(b, ls_mesh_own(&b->mesh, trained, b->ward), "gradients of another rank",
                      &b->redo.next),
           out);
    const ls_replica_redo_args args = {.run = b->args.run,
                                       .model = b->args.model,
                                       .kernels = b->args.kernels,
                                       .stream = b->args.stream,
                                       .cut = &cut,
                                       .seat = ls_mesh_shard_rank(&b->mesh, b->ward)};
    st = ls_replica_redo_open_work(&b->redo.work, &args);
out:
    return st;
}

ls_status ls_replica_copy_open(ls_replica_copy **buddy_out, const ls_replica_copy_args *args)
{
    ls_replica_copy *b = ls_mem_alloc(sizeof *b);
    ls_status st = LS_OK;

    if (!b)
        return LS_ENOMEM;
    b->args = *args;
    b->mesh = ls_dp_about(args->dp)->mesh;
    b->sends = ls_replica_peers_send(&b->mesh);
    b->done = b->voted = -1;
    if (b->sends) {
        b->to = ls_replica_peers_of(&b->mesh, b->mesh.rank);
        b->ward = ls_replica_peers_ward(&b->mesh, b->mesh.rank);
        st = open_copies(b);
    }
    b->redo.on = ls_replica_redo_serves(args->run);
    if (st == LS_OK && b->redo.on)
        st = open_redo(b);
    if (st == LS_OK)
        *buddy_out = b;
    else
        ls_replica_copy_close(b);
    return st;
}

void ls_replica_copy_close(ls_replica_copy *buddy)
{
    if (!buddy)
        return;
    for (int k = 0; k < LS_REPLICA_COPY_ARRAYS; k++) {
        ls_device_free(buddy->args.device, buddy->copy[k]);
        ls_device_free(buddy->args.device, buddy->redo.old[k]);
    }
    ls_device_free(buddy->args.device, buddy->redo.next);
    ls_replica_redo_close_work(&buddy->redo.work);
    ls_mem_free(buddy->spans);
    ls_mem_free(buddy);
}

int64_t ls_replica_copy_sent(const ls_replica_copy *buddy)
{
    return buddy ? buddy->sent : 0;
}

/* --- messages --------------------------------------------------------------------------------- */

static ls_status start(ls_replica_copy *b, ls_coll_kind kind, int peer, const float *in, float *out,
                       int64_t count)
{
    ls_comm *comm = ls_dp_about(b->args.dp)->comm;
    const ls_coll coll = {
        .kind = kind, .type = LS_F32, .count = count, .in = in, .out = out, .peer = peer};
    ls_status st = LS_OK;

    if (count > 0)
        st = ls_comm_start(comm, &coll, &b->requests[b->n_requests]);
    b->n_requests += count > 0 && st == LS_OK;
    return st;
}

static ls_status finish(ls_replica_copy *b)
{
    ls_comm *comm = ls_dp_about(b->args.dp)->comm;
    ls_status st = LS_OK;

    for (int i = 0; i < b->n_requests && st == LS_OK; i++)
        st = ls_comm_wait(comm, b->requests[i], deadline());
    b->n_requests = 0;
    return st;
}

static ls_mesh_part part_of(const ls_replica_copy *b, int bucket, int rank)
{
    return ls_mesh_part_of(&b->mesh, b->args.model->trained, bucket, rank);
}

/* One kind of the state, packed at its owner, to the buddy. */
static ls_status send_state(ls_replica_copy *b, const float *own, int kind)
{
    ls_status st = LS_OK;

    for (int i = 0; i < ls_dp_buckets(b->args.dp); i++) {
        ls_mesh_part mine = part_of(b, i, b->mesh.rank), other = part_of(b, i, b->ward);
        float *to = b->copy[kind] + other.packed;
        LS_TRY(st, start(b, LS_COLL_SEND, b->to, own + mine.packed, NULL, mine.count), out);
        LS_TRY(st, start(b, LS_COLL_RECV, b->ward, NULL, to, other.count), out);
        b->sent += mine.count * (int64_t)sizeof *own;
    }
    st = finish(b);
out:
    return st;
}

/* With zero 1 and 2 everybody has all weights. */
static void copy_weights(ls_replica_copy *b, const float *whole)
{
    for (int i = 0; i < ls_dp_buckets(b->args.dp); i++) {
        ls_mesh_part other = part_of(b, i, b->ward);
        memcpy(b->copy[LS_REPLICA_COPY_W] + other.packed, whole + other.first,
               (size_t)other.count * sizeof *whole);
    }
}

/* The own parts as they are now; with_gradient: and what they are updated with. */
static void keep_own(ls_replica_copy *b, const ls_step *step, bool with_gradient)
{
    ls_step_arrays live = ls_step_state_arrays(step);
    float **old = b->redo.old;

    for (int i = 0; i < ls_dp_buckets(b->args.dp); i++) {
        ls_mesh_part own = part_of(b, i, b->mesh.rank);
        size_t bytes = (size_t)own.count * sizeof(float);
        if (bytes == 0)
            continue;
        memcpy(old[LS_REPLICA_COPY_W] + own.packed, live.w + own.first, bytes);
        memcpy(old[LS_REPLICA_COPY_M] + own.packed, live.m + own.packed, bytes);
        memcpy(old[LS_REPLICA_COPY_V] + own.packed, live.v + own.packed, bytes);
        if (with_gradient)
            memcpy(old[LS_REPLICA_COPY_G] + own.packed, ls_replica_copy_gradient(step, own), bytes);
    }
}

ls_status ls_replica_copy_begin(ls_replica_copy *buddy, const ls_step *step, int64_t done)
{
    ls_replica_copy *b = buddy;
    ls_step_arrays live = ls_step_state_arrays(step);
    double nothing = 0;
    ls_status st = LS_OK;

    if (b->sends) {
        if (b->mesh.zero == 3)
            LS_TRY(st, send_state(b, live.w, LS_REPLICA_COPY_W), out);
        else
            copy_weights(b, live.w);
        LS_TRY(st, send_state(b, live.m, LS_REPLICA_COPY_M), out);
        if (ls_optim_keeps(b->args.run, 2))
            LS_TRY(st, send_state(b, live.v, LS_REPLICA_COPY_V), out);
    }
    if (b->redo.on)
        keep_own(b, step, false);
    b->redo.pending = false;
    b->done = b->voted = done;
    b->begun = true;
    if (done > 0)
        ls_replica_copy_point("copied", b->mesh.rank);
    LS_TRY(st, ls_dp_numbers(b->args.dp, LS_F64, &nothing, 1), out);
    b->confirmed = true;
out:
    return st;
}

/* --- in a step -------------------------------------------------------------------------------- */

ls_status ls_replica_copy_send(ls_replica_copy *buddy, const ls_step *step, int64_t number)
{
    ls_replica_copy *b = buddy;
    ls_status st = LS_OK;

    if (!b)
        return LS_OK;
    /* What was dropped, because it was not finite, counts as done: everybody has come this far. */
    b->number = number;
    b->done = b->voted = number;
    b->ready = false;
    for (int i = ls_dp_buckets(b->args.dp) - 1; i >= 0 && b->sends; i--) {
        ls_mesh_part mine = part_of(b, i, b->mesh.rank), other = part_of(b, i, b->ward);
        float *to = (b->redo.on ? b->redo.next : b->copy[LS_REPLICA_COPY_G]) + other.packed;
        LS_TRY(
            st,
            start(b, LS_COLL_SEND, b->to, ls_replica_copy_gradient(step, mine), NULL, mine.count),
            out);
        LS_TRY(st, start(b, LS_COLL_RECV, b->ward, NULL, to, other.count), out);
        b->sent += mine.count * (int64_t)sizeof *to;
    }
out:
    return st;
}

ls_status ls_replica_copy_await(ls_replica_copy *buddy)
{
    ls_status st;

    if (!buddy)
        return LS_OK;
    st = finish(buddy);
    buddy->ready = st == LS_OK;
    return st;
}

void ls_replica_copy_vote(ls_replica_copy *buddy, const ls_step_result *result)
{
    if (!buddy || !result->finite)
        return;
    buddy->voted = buddy->number + 1;
    buddy->result = *result;
}

/* The copies of the ward catch up with the update before, of which all weights are there now. */
static ls_status prepare_ward(ls_replica_copy *b, const ls_step *step)
{
    ls_reshard_cut cut = ls_reshard_cut_of(&b->mesh);
    float *gradient = b->redo.next;
    ls_status st = LS_OK;

    if (b->redo.pending)
        st = ls_replica_redo_moments(
            &(ls_replica_redo_move){.kernels = step->args.kernels,
                                    .stream = step->args.stream,
                                    .run = b->args.run,
                                    .cut = &cut,
                                    .trained = b->args.model->trained,
                                    .seat = ls_mesh_shard_rank(&b->mesh, b->ward),
                                    .arrays = b->copy,
                                    .state = &b->redo.numbers.state,
                                    .norm = &b->redo.numbers.norm},
            &b->redo.work);
    copy_weights(b, ls_step_state_arrays(step).w);
    b->redo.next = b->copy[LS_REPLICA_COPY_G];
    b->copy[LS_REPLICA_COPY_G] = gradient;
    return st;
}

ls_status ls_replica_copy_prepare(ls_replica_copy *buddy, const ls_step *step)
{
    ls_replica_copy *b = buddy;
    ls_status st = LS_OK;

    if (!b || !b->redo.on || !b->begun)
        return LS_OK;
    if (b->sends)
        LS_TRY(st, prepare_ward(b, step), out);
    keep_own(b, step, true);
    b->redo.numbers = (ls_replica_redo_numbers){.state = *step->state, .norm = *step->norm};
    b->redo.pending = true;
    b->done = b->number + 1;
    b->ready = false;
    ls_replica_copy_point("update", b->mesh.rank);
out:
    return st;
}

void ls_replica_copy_update(ls_replica_copy *buddy, ls_step *step)
{
    ls_replica_copy *b = buddy;

    if (!b || b->redo.on)
        return;
    if (b->sends) {
        ls_reshard_cut cut = ls_reshard_cut_of(&b->mesh);
        ls_replica_copy_make_update(
            &(ls_replica_copy_move){.run = b->args.run,
                                    .kernels = step->args.kernels,
                                    .stream = step->args.stream,
                                    .cut = &cut,
                                    .trained = b->args.model->trained,
                                    .seat = ls_mesh_shard_rank(&b->mesh, b->ward),
                                    .arrays = b->copy,
                                    .spans = b->spans,
                                    .first_span = b->first_span,
                                    .state = step->state,
                                    .norm = step->norm});
    }
    b->done = b->number + 1;
    b->ready = false;
}

void ls_replica_copy_point(const char *name, int rank)
{
#ifdef LS_FAULTS
    char point[64];

    snprintf(point, sizeof point, "train.recover.%s.%d", name, rank);
    (void)LS_FAULT(point);
#else
    (void)name;
    (void)rank;
#endif
}
