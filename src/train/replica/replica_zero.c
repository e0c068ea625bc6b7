/* replica_zero.c -- see replica_zero.h.
 *
 * Which hoards serve. All entries of one generation belong together: the same mesh, and copies that
 * were everywhere when the first step of it was made. Its base is the highest step that one of them
 * saw voted. A part serves when it is of that step, or of the one before with the gradient that
 * makes it so. Example, 3 ranks, each with its own part and its ward's; rank 1 dies when rank 0 has
 * heard the vote of step 8 and rank 2 has not:
 *
 *     rank 0   voted 8   parts 0 and 2, 8 steps
 *     rank 2   voted 7   parts 2 and 1, 7 steps, with the gradient of the 8th
 *
 * Base 8: rank 0 gives part 0, rank 2 gives parts 1 and 2 when it has made the update. */
#include "train/replica/replica_zero.h"

#include <math.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "train/replica/replica_copy_impl.h"
#include "train/session/session_impl.h"

enum {
    HOARDS = 2,
    OWN = 0,
    WARD = 1,
    HELD = 2,
    ARRAYS = LS_REPLICA_COPY_ARRAYS,
    STATE = LS_REPLICA_COPY_G
};

/* What is told of a hoard. */
typedef struct entry {
    uint64_t generation; /* of the view that it was made in; 0: there is none */
    ls_reshard_cut cut;
    int64_t voted, done;
    int32_t seats[HELD]; /* own, the ward's; -1: none */
    int64_t ready;
    int64_t pending; /* `done` counts an update that is to be made again (replica_redo.h) */
} entry;

typedef struct hoard {
    entry about;
    float *parts[HELD][ARRAYS];      /* owned */
    ls_step_state state;             /* ready: of the step that comes, */
    ls_norm_result norm;             /* and of its gradient; pending: of the update that was */
    bool redoes;                     /* what follows serves: ready, the parts one update later, */
    float *later[HELD][ARRAYS];      /* owned; the ward's: weights and gradient */
    ls_replica_redo_numbers numbers; /* and of that update */
} hoard;

/* What a rank tells. */
typedef struct record {
    entry hoards[HOARDS];
    int64_t met, pad;
} record;
_Static_assert(sizeof(record) % 16 == 0, "all-gathers cut at 16 bytes");

struct ls_replica_zero {
    hoard hoards[HOARDS]; /* the newer one first */
    hoard *chosen;        /* that is gone on with; NULL: this rank has none of it */
    entry plan;           /* of those that are gone on with: cut, and voted: the base step */
    int *sources;         /* owned: [seats of its cut] */
};

bool ls_replica_zero_serves(const ls_session *s)
{
    return s->run && s->run->mesh.zero > 0 && s->run->sync == LS_SYNC_ALLREDUCE &&
           s->run->mesh.pp < 2 && s->run->mesh.tp < 2 && s->run->mesh.ep < 2;
}

static void drop_one(ls_session *s, hoard *h)
{
    for (int p = 0; p < HELD; p++)
        for (int k = 0; k < ARRAYS; k++) {
            ls_device_free(s->device, h->parts[p][k]);
            ls_device_free(s->device, h->later[p][k]);
        }
    *h = (hoard){.about = {.generation = 0}};
}

void ls_replica_zero_drop(ls_session *session)
{
    ls_session *s = session;

    if (!s->recovery.zero)
        return;
    for (int i = 0; i < HOARDS; i++)
        drop_one(s, &s->recovery.zero->hoards[i]);
    ls_mem_free(s->recovery.zero->sources);
    ls_mem_free(s->recovery.zero);
    s->recovery.zero = NULL;
}

int64_t ls_replica_zero_bytes(const ls_session *s)
{
    int64_t n = 0;

    for (int i = 0; i < HOARDS && s->recovery.zero; i++) {
        const hoard *h = &s->recovery.zero->hoards[i];
        for (int p = 0; p < HELD; p++)
            for (int k = 0; k < ARRAYS; k++)
                n += (!!h->parts[p][k] + !!h->later[p][k]) *
                     ls_replica_copy_elements(&h->about.cut, s->model.trained, h->about.seats[p]);
    }
    return n * (int64_t)sizeof(float);
}

/* --- keeping ---------------------------------------------------------------------------------- */

/* What a step has of an array of the own parts, at their elements or packed, to memory of its own.
 */
static ls_status copy_parts(const ls_session *s, const ls_reshard_cut *cut, int seat,
                            const float *from, bool packed, float **out)
{
    int64_t elements = ls_replica_copy_elements(cut, s->model.trained, seat);
    void *memory;
    ls_status st = ls_device_alloc(s->device, elements * (int64_t)sizeof(float),
                                   "parts of a state that is kept", &memory);

    if (st != LS_OK)
        return st;
    *out = memory;
    for (int b = 0; b < ls_reshard_buckets(cut, s->model.trained); b++) {
        ls_mesh_part part = ls_reshard_part(cut, s->model.trained, b, seat);
        if (part.count > 0)
            memcpy(*out + part.packed, from + (packed ? part.packed : part.first),
                   (size_t)part.count * sizeof(float));
    }
    return LS_OK;
}

/* The own parts: moments are moved, what lies in memory that ranks share is copied. */
static ls_status keep_own(ls_session *s, hoard *h)
{
    ls_step *step = s->step;
    int seat = h->about.seats[OWN];
    float **parts = h->parts[OWN];
    ls_status st;

    LS_TRY(st,
           copy_parts(s, &h->about.cut, seat, step->state_memory[0], ls_step_shards(step),
                      &parts[LS_REPLICA_COPY_W]),
           out);
    if (h->about.ready)
        LS_TRY(st,
               copy_parts(s, &h->about.cut, seat,
                          ls_step_parts(step) ? step->own_grad : step->grads[0],
                          ls_step_parts(step), &parts[LS_REPLICA_COPY_G]),
               out);
    for (int k = LS_REPLICA_COPY_M; k <= LS_REPLICA_COPY_V; k++) {
        parts[k] = step->state_memory[k];
        step->state_memory[k] = NULL;
    }
out:
    return st;
}

/* The own parts and the ward's before the last update; and, where the gradient of the next one has
 * come, what they are then. */
static ls_status keep_redo(ls_session *s, hoard *h)
{
    ls_replica_copy *b = s->recovery.copy;
    ls_step *step = s->step;
    ls_status st = LS_OK;

    h->redoes = true;
    h->about.pending = b->redo.pending;
    h->state = b->redo.numbers.state;
    h->norm = b->redo.numbers.norm;
    memcpy(h->parts[OWN], b->redo.old, sizeof b->redo.old);
    memset(b->redo.old, 0, sizeof b->redo.old);
    memcpy(h->parts[WARD], b->copy, sizeof b->copy);
    memset(b->copy, 0, sizeof b->copy);
    if (!h->about.ready)
        return LS_OK;
    h->numbers = (ls_replica_redo_numbers){.state = *step->state, .norm = *step->norm};
    for (int p = OWN; p < (b->sends ? HELD : WARD); p++)
        LS_TRY(st,
               copy_parts(s, &h->about.cut, h->about.seats[p], step->state_memory[0], false,
                          &h->later[p][LS_REPLICA_COPY_W]),
               out);
    LS_TRY(st,
           copy_parts(s, &h->about.cut, h->about.seats[OWN], step->grads[0], false,
                      &h->later[OWN][LS_REPLICA_COPY_G]),
           out);
    for (int k = LS_REPLICA_COPY_M; k <= LS_REPLICA_COPY_V; k++) {
        h->later[OWN][k] = step->state_memory[k];
        step->state_memory[k] = NULL;
    }
    h->later[WARD][LS_REPLICA_COPY_G] = b->redo.next;
    b->redo.next = NULL;
out:
    return st;
}

/* The last step was voted, but this rank did not come to its end: it counts as done. */
static void count_step(ls_session *s, const ls_replica_copy *b)
{
    if (b->voted != s->step_number + 1)
        return;
    (void)ls_loss_scaler_step(&s->scaler, isfinite(b->result.loss), b->result.finite);
    s->progress.loss = b->result.loss;
    s->progress.last = b->result;
    s->step_number = b->voted;
}

static ls_status keep_divided(ls_session *s, hoard *h)
{
    ls_replica_copy *b = s->recovery.copy;
    ls_status st;

    h->about = (entry){.generation = s->args.view.plan.generation,
                       .cut = ls_reshard_cut_of(&s->mesh),
                       .voted = b->voted,
                       .done = b->done,
                       .seats = {ls_mesh_shard_rank(&s->mesh, s->mesh.rank),
                                 b->sends ? ls_mesh_shard_rank(&s->mesh, b->ward) : -1},
                       .ready = b->ready};
    h->state = *s->step->state;
    h->norm = *s->step->norm;
    LS_TRY(st, b->redo.on ? keep_redo(s, h) : keep_own(s, h), out);
    if (!b->redo.on) {
        memcpy(h->parts[WARD], b->copy, sizeof b->copy);
        memset(b->copy, 0, sizeof b->copy);
    }
    count_step(s, b);
out:
    return st;
}

/* One rank had all of it. */
static ls_status keep_whole(ls_session *s, hoard *h)
{
    int64_t done = ls_step_done(s->step);

    done = done < 0 ? s->step_number : done;
    h->about = (entry){.generation = s->args.view.plan.generation,
                       .cut = ls_reshard_cut_of(&s->mesh),
                       .voted = done,
                       .done = done,
                       .seats = {0, -1}};
    return keep_own(s, h);
}

static bool is_divided(const ls_session *s)
{
    return s->recovery.copy && s->recovery.copy->begun;
}

static bool is_whole(const ls_session *s)
{
    return s->step && s->recovery.has_state && !s->dp && !s->discrete &&
           ls_optimizer_of(s->run->train.optimizer)->reach != LS_REACH_MATRIX &&
           s->offload == LS_OFFLOAD_NONE && ls_step_done(s->step) != LS_STEP_TORN;
}

bool ls_replica_zero_would(const ls_session *session)
{
    return ls_replica_zero_serves(session) && session->step &&
           (is_divided(session) || is_whole(session));
}

void ls_replica_zero_keep(ls_session *session)
{
    ls_session *s = session;
    bool divided = is_divided(s), sure = divided && s->recovery.copy->confirmed,
         whole = is_whole(s);
    ls_status st = LS_OK;

    if (!s->step || (!divided && !whole))
        return; /* what was kept before stays */
    if (sure || whole)
        ls_replica_zero_drop(s);
    if (!s->recovery.zero)
        s->recovery.zero = ls_mem_alloc(sizeof *s->recovery.zero);
    if (!s->recovery.zero) {
        st = LS_ENOMEM;
        goto out;
    }
    struct ls_replica_zero *all = s->recovery.zero;
    if (all->hoards[0].about.generation) { /* what it came with is not superseded yet */
        hoard *used = all->chosen ? all->chosen : &all->hoards[0], *other;
        other = used == &all->hoards[0] ? &all->hoards[1] : &all->hoards[0];
        drop_one(s, other);
        all->hoards[1] = *used;
        if (used == &all->hoards[0])
            *used = (hoard){.about = {.generation = 0}};
    }
    all->chosen = NULL;
    st = divided ? keep_divided(s, &all->hoards[0]) : keep_whole(s, &all->hoards[0]);
    if (st != LS_OK)
        drop_one(s, &all->hoards[0]);
out:
    if (st != LS_OK)
        ls_log(LS_LOG_WARN, "this rank cannot keep its state: %s", ls_err_last()->text);
}

/* --- who gives what --------------------------------------------------------------------------- */

static bool serves(const entry *e, int64_t base)
{
    return e->done == base || (e->done == base - 1 && e->ready);
}

static const entry *entry_of(const record *records, int rank, uint64_t generation)
{
    for (int i = 0; i < HOARDS; i++)
        if (records[rank].hoards[i].generation == generation)
            return &records[rank].hoards[i];
    return NULL;
}

/* The source of each seat, if all have one: an owner rather than its buddy. */
static bool find_sources(const record *records, int ranks, const entry *plan, int64_t trained,
                         int *sources)
{
    for (int seat = 0; seat < ls_reshard_seats(&plan->cut); seat++) {
        bool empty = ls_replica_copy_elements(&plan->cut, trained, seat) == 0;
        sources[seat] = empty ? 0 : -1;
        for (int held = WARD; held >= OWN; held--)
            for (int r = ranks - 1; r >= 0; r--) {
                const entry *e = entry_of(records, r, plan->generation);
                if (e && e->seats[held] == seat && serves(e, plan->voted))
                    sources[seat] = r;
            }
        if (sources[seat] < 0)
            return false;
    }
    return true;
}

/* The entries of a generation in one: how they cut, and the highest step that was voted. */
static entry sum_up(const record *records, int ranks, uint64_t generation)
{
    entry plan = {.generation = 0};

    for (int r = 0; r < ranks; r++) {
        const entry *e = entry_of(records, r, generation);
        if (e && (!plan.generation || e->voted > plan.voted))
            plan = *e;
    }
    return plan;
}

/* The view that the ranks make of it: all see the same records. */
static ls_status decide(ls_session *s, const record *records, int ranks)
{
    ls_view_plan *view = &s->args.view.plan;
    struct ls_replica_zero *all = s->recovery.zero;
    ls_status st = LS_OK;
    int *sources = NULL;

    for (int i = 0; i < ranks * HOARDS; i++) {
        uint64_t generation = records[i / HOARDS].hoards[i % HOARDS].generation;
        entry plan = sum_up(records, ranks, generation);
        if (generation == 0 || plan.voted < view->base ||
            (plan.voted == view->base && generation <= all->plan.generation))
            continue;
        ls_mem_free(sources);
        sources = ls_mem_array((size_t)ls_reshard_seats(&plan.cut), sizeof *sources);
        if (!sources)
            return LS_ENOMEM;
        if (!find_sources(records, ranks, &plan, s->model.trained, sources))
            continue;
        ls_mem_free(all->sources);
        all->sources = sources;
        sources = NULL;
        all->plan = plan;
        view->base = plan.voted;
    }
    ls_mem_free(sources);
    all->chosen = NULL;
    for (int i = 0; i < HOARDS && view->base >= 0; i++)
        if (all->hoards[i].about.generation == all->plan.generation)
            all->chosen = &all->hoards[i];
    view->met = view->base;
    for (int seat = 0; view->base >= 0 && seat < ls_reshard_seats(&all->plan.cut); seat++) {
        const entry *e = entry_of(records, all->sources[seat], all->plan.generation);
        if (e && e->seats[WARD] == seat &&
            ls_replica_copy_elements(&all->plan.cut, s->model.trained, seat) > 0)
            s->recovery.source = "buddy";
    }
    for (int r = ranks - 1; r >= 0 && view->base >= 0; r--) {
        const entry *e = entry_of(records, r, all->plan.generation);
        if (!e)
            continue;
        view->source = e->voted == view->base ? r : view->source;
        view->met = ls_min_i64(view->met, records[r].met);
    }
    view->spread = view->base >= 0;
    if (view->first_new && view->met == view->base && view->base > 0)
        view->met--; /* what it did last may not have been finished (cluster/member/view.c) */
    return st;
}

ls_status ls_replica_zero_choose(ls_session *session)
{
    ls_session *s = session;
    record *records;
    ls_status st = LS_OK;

    if (!ls_replica_zero_serves(s) || s->args.view.plan.generation < 2 ||
        s->args.view.plan.base >= 0)
        return LS_OK;
    if (ls_optimizer_of(s->run->train.optimizer)->reach == LS_REACH_MATRIX &&
        ls_mesh_ranks(&s->mesh) == 1)
        return LS_OK; /* one rank has second moments in another order: from the checkpoint */
    int ranks = ls_comm_ranks(s->args.comm), me = ls_comm_rank(s->args.comm);
    if (!s->recovery.zero)
        s->recovery.zero = ls_mem_alloc(sizeof *s->recovery.zero);
    records = ls_mem_array((size_t)ranks, sizeof *records);
    if (!s->recovery.zero || !records) {
        st = LS_ENOMEM;
        goto out;
    }
    ls_mem_free(s->recovery.zero->sources);
    s->recovery.zero->sources = NULL;
    s->recovery.zero->plan = (entry){.generation = 0};
    for (int i = 0; i < HOARDS; i++)
        records[me].hoards[i] = s->recovery.zero->hoards[i].about;
    records[me].met = s->progress.met;
    LS_TRY(st,
           ls_comm_run(s->args.comm,
                       &(ls_coll){.kind = LS_COLL_ALL_GATHER,
                                  .type = LS_U8,
                                  .count = ranks * (int64_t)sizeof *records,
                                  .in = records,
                                  .out = records},
                       ls_time_now_ns() + LS_SESSION_MEET_S * LS_NS_PER_S),
           out);
    ls_replica_copy_point("told", me);
    st = decide(s, records, ranks);
out:
    ls_mem_free(records);
    return st;
}

/* --- going on --------------------------------------------------------------------------------- */

/* The ward's moments make the update that was pending; weights and gradient are those of the next.
 */
static ls_status advance_ward(ls_session *s, hoard *h)
{
    int seat = h->about.seats[WARD];
    ls_replica_redo_work work;
    ls_status st = LS_OK;

    if (h->about.pending) {
        const ls_replica_redo_args args = {.run = s->run,
                                           .model = &s->model,
                                           .kernels = s->kernels,
                                           .stream = s->stream,
                                           .cut = &h->about.cut,
                                           .seat = seat};
        LS_TRY(st, ls_replica_redo_open_work(&work, &args), out);
        st = ls_replica_redo_moments(&(ls_replica_redo_move){.kernels = s->kernels,
                                                             .stream = s->stream,
                                                             .run = s->run,
                                                             .cut = &h->about.cut,
                                                             .trained = s->model.trained,
                                                             .seat = seat,
                                                             .arrays = h->parts[WARD],
                                                             .state = &h->state,
                                                             .norm = &h->norm},
                                     &work);
        ls_replica_redo_close_work(&work);
    }
    for (int k = LS_REPLICA_COPY_W; k <= LS_REPLICA_COPY_G;
         k += LS_REPLICA_COPY_G - LS_REPLICA_COPY_W) {
        ls_device_free(s->device, h->parts[WARD][k]);
        h->parts[WARD][k] = h->later[WARD][k];
        h->later[WARD][k] = NULL;
    }
out:
    return st;
}

/* The same where updates are made again: one further, unless that one was dropped. */
static ls_status advance(ls_session *s, hoard *h, bool updated)
{
    ls_status st = LS_OK;

    h->about.done = h->about.voted = s->recovery.zero->plan.voted;
    h->about.ready = false;
    if (!updated)
        return LS_OK;
    if (h->about.seats[WARD] >= 0)
        LS_TRY(st, advance_ward(s, h), out);
    for (int k = 0; k < ARRAYS; k++) {
        ls_device_free(s->device, h->parts[OWN][k]);
        h->parts[OWN][k] = h->later[OWN][k];
        h->later[OWN][k] = NULL;
    }
    h->state = h->numbers.state;
    h->norm = h->numbers.norm;
    h->about.pending = true;
out:
    return st;
}

/* The update that this rank had not heard of when it lost the others. */
static ls_status catch_up(ls_session *s, hoard *h, bool updated)
{
    ls_status st = LS_OK;

    if (h->about.done == s->recovery.zero->plan.voted)
        return LS_OK;
    if (h->redoes)
        return advance(s, h, updated);
    for (int p = 0; p < HELD && updated; p++) {
        int64_t first[LS_MESH_BUCKETS + 1];
        ls_adamw_span *spans = NULL;
        if (h->about.seats[p] < 0)
            continue;
        LS_TRY(st,
               ls_replica_copy_spans(s->run, &s->model, &h->about.cut, h->about.seats[p], &spans,
                                     first),
               out);
        ls_replica_copy_make_update(&(ls_replica_copy_move){.run = s->run,
                                                            .kernels = s->kernels,
                                                            .stream = s->stream,
                                                            .cut = &h->about.cut,
                                                            .trained = s->model.trained,
                                                            .seat = h->about.seats[p],
                                                            .arrays = h->parts[p],
                                                            .spans = spans,
                                                            .first_span = first,
                                                            .state = &h->state,
                                                            .norm = &h->norm});
        st = ls_stream_sync(s->stream, ls_time_now_ns() + LS_STEP_WAIT_S * LS_NS_PER_S);
        ls_mem_free(spans);
        LS_TRY(st, st, out);
    }
    h->about.done = h->about.voted = s->recovery.zero->plan.voted;
    h->about.ready = false;
out:
    return st;
}

static ls_status move_all(ls_session *s, const float *const **held)
{
    ls_step_arrays live = ls_step_state_arrays(s->step);
    float *const arrays[STATE] = {live.w, live.m, live.v};
    const ls_reshard_args args = {.comm = s->args.comm,
                                  .from = s->recovery.zero->plan.cut,
                                  .to = &s->mesh,
                                  .trained = s->model.trained,
                                  .sources = s->recovery.zero->sources};
    int64_t sent, all = 0;
    ls_status st = LS_OK;

    for (int k = 0; k < ls_optim_kinds(s->run); k++) {
        bool whole = k == LS_REPLICA_COPY_W && s->mesh.zero < 3;
        LS_TRY(st,
               ls_reshard_move(&args, held[k], whole, arrays[k],
                               ls_time_now_ns() + LS_SESSION_MEET_S * LS_NS_PER_S, &sent),
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

/* The update that the states came from before of: by all ranks, with the gradients of then. */
static ls_status make_again(ls_session *s, const float *const *gradients)
{
    const hoard *h = s->recovery.zero->chosen;
    const ls_reshard_args args = {.comm = s->args.comm,
                                  .from = s->recovery.zero->plan.cut,
                                  .to = &s->mesh,
                                  .trained = s->model.trained,
                                  .sources = s->recovery.zero->sources};
    ls_replica_redo_numbers numbers = {.norm = {.bad_block = -1}};
    int64_t sent;
    ls_step_clock clock;
    ls_status st = LS_OK;

    if (h)
        numbers = (ls_replica_redo_numbers){.state = h->state, .norm = h->norm};
    LS_TRY(st,
           ls_reshard_move(&args, gradients, true, s->step->grads[0],
                           ls_time_now_ns() + LS_SESSION_MEET_S * LS_NS_PER_S, &sent),
           out);
    if (s->dp)
        LS_TRY(st, ls_dp_tell(s->dp, s->args.view.plan.source, &numbers, sizeof numbers), out);
    *s->step->state = numbers.state;
    *s->step->norm = numbers.norm;
    ls_step_clock_begin(&clock);
    LS_TRY(st, ls_step_update(s->step, &clock), out);
    st = ls_stream_sync(s->stream, ls_time_now_ns() + LS_STEP_WAIT_S * LS_NS_PER_S);
out:
    return st;
}

/* Whether the parts that are gone on with are from before an update: the same on all ranks. */
static bool is_pending(const ls_session *s)
{
    const entry *plan = &s->recovery.zero->plan;

    return ls_replica_redo_serves(s->run) && (plan->done < plan->voted || plan->pending);
}

ls_status ls_replica_zero_restore(ls_session *session, bool updated)
{
    ls_session *s = session;
    struct ls_replica_zero *all = s->recovery.zero;
    int seats = ls_reshard_seats(&all->plan.cut);
    const float **held = ls_mem_array((size_t)(ARRAYS * seats), sizeof *held);
    const float *const *kinds[STATE] = {held, held + seats, held + 2 * (ptrdiff_t)seats};
    ls_status st = LS_OK;

    if (!held)
        return LS_ENOMEM;
    if (all->chosen)
        LS_TRY(st, catch_up(s, all->chosen, updated), out);
    for (int p = 0; p < HELD && all->chosen; p++)
        for (int k = 0; k < ARRAYS && all->chosen->about.seats[p] >= 0; k++)
            held[k * seats + all->chosen->about.seats[p]] = all->chosen->parts[p][k];
    LS_TRY(st, move_all(s, kinds), out);
    if (is_pending(s))
        st = make_again(s, held + (ptrdiff_t)LS_REPLICA_COPY_G * seats);
    ls_replica_copy_point("moved", s->mesh.rank);
out:
    ls_mem_free(held);
    return st;
}
