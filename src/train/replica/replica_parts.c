/* replica_parts.c -- see replica_parts.h.
 *
 * Which step? Who enters the exchange of losses has its gradient and the norm, and who has heard
 * all losses knows that everybody has entered. So when one survivor has heard of step 8, all others
 * have made its update or can; when none has, none has made it. Example, 2 posts and 2 lines; rank
 * 2 dies when rank 0 has made step 8 and ranks 1 and 3 have not heard of it:
 *
 *     rank 0   part 0   8 steps
 *     rank 1   part 0   7 steps, with the gradient of the 8th
 *     rank 3   part 1   7 steps, with the gradient of the 8th
 *
 * Base 8: ranks 1 and 3 make the update, and rank 3 gives part 1 to the new rank 2. Nobody goes
 * back, and nobody needs a second version of what it has.
 *
 * What is older. A rank that was not needed for a while (a spare, cluster/member/view.h) has the state of
 * an earlier view. It serves when it is of the very step that is gone on with, and of the same
 * descent: since the ranks last read a checkpoint, because steps that are done again by others may
 * differ in fast mode. For the same reason a gradient serves only with those of its own view.
 *
 * A tied embedding, and with mesh.zero the weights that others update, are copies: they are made
 * anew from their owners' (ls_step_complete) and never taken from here. But for those of a ward
 * (train/replica/replica_pair.h): what a rank keeps for another one it keeps here too, with its gradient, and
 * makes its update. So with mesh.zero a part has two who can give it, the owner and its buddy. Such
 * parts are cut along buckets, whose size may follow from measured links: who goes on with them
 * keeps their size. */
#include "train/replica/replica_parts.h"

#include <math.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "layout/replicas.h"
#include "optim/optim.h"
#include "plan/memory.h"
#include "layout/replica_moments.h"
#include "train/step/pipeline_impl.h"
#include "train/replica/recover.h"
#include "train/session/session_impl.h"
#include "train/replica/replica_pair.h"

enum { ARRAYS = 3 };
enum { WEIGHTS, MOMENTS, WARD, KINDS }; /* of pieces; the last: of everything that is a ward's */

/* What is told of an estate. */
typedef struct entry {
    int64_t part;        /* -1: there is none */
    int64_t ward;        /* another one that is kept here; -1: none */
    int64_t parts;       /* so many there were, */
    int64_t bucket;      /* cut along buckets of so many norm blocks; 0: not so */
    uint64_t view;       /* the generation in which it was trained last, */
    uint64_t descent;    /* and the first one since a checkpoint was read */
    int64_t done;        /* steps that are in it */
    int64_t heard;       /* steps of which all losses were heard: done, or one more */
    int64_t ready;       /* the gradient of one more than done is there */
    ls_step_result last; /* of the last step that was heard of */
} entry;

/* What a rank tells. */
typedef struct record {
    entry about;
    int64_t met;
} record;
_Static_assert(sizeof(record) % 16 == 0, "all-gathers cut at 16 bytes");

struct ls_replica_parts {
    entry about;
    bool lent;                 /* the memory is the step's */
    bool windows;              /* it is windows (pipeline.h) */
    void *state[ARRAYS];       /* owned; NULL when lent */
    int64_t bytes;             /* of each window */
    ls_mesh_part *held[KINDS]; /* owned: elements of weights and so on; packed: in the moments */
    int n[KINDS];              /* so many pieces of each */
    int64_t weights, moments;  /* elements of arrays that are no windows */
    float *gradient;           /* owned: of the pieces of moments, one after the other, then of the
                                * ward's; NULL: none */
    bool whole;                /* as ls_optim_spans() */
    ls_step_state numbers;     /* of the step that it is of, */
    ls_norm_result norm;       /* and of the gradient */
    uint64_t view, descent;    /* of what the step has: see entry */
    int64_t bucket;            /* of what is gone on with: see entry */
    record *records;           /* owned: of all ranks, and */
    int *sources;              /* owned: who gives each part */
};

bool ls_replica_parts_serves(const ls_session *s)
{
    return s->run && s->args.rejoin && ls_replicas_divides(s->run);
}

bool ls_replica_parts_keeps(const ls_session *s)
{
    return ls_replica_parts_serves(s) && s->step && s->recovery.has_state && !s->discrete &&
           ls_replicas_knows(s->run) && s->offload == LS_OFFLOAD_NONE &&
           ls_optimizer_is_elementwise(s->run->train.optimizer);
}

int ls_replica_parts_part(const ls_session *s)
{
    return s->recovery.parts ? (int)s->recovery.parts->about.part : -1;
}

static struct ls_replica_parts *estate_of(ls_session *s)
{
    if (!s->recovery.parts && (s->recovery.parts = ls_mem_alloc(sizeof *s->recovery.parts)))
        s->recovery.parts->about = (entry){.part = -1, .ward = -1};
    return s->recovery.parts;
}

/* What is kept, but not what is known of the state that a step has. */
static void let_go(ls_session *s)
{
    struct ls_replica_parts *e = s->recovery.parts;

    for (int i = 0; i < ARRAYS; i++) {
        ls_window window = {.base = e->state[i], .bytes = e->bytes};
        if (e->windows)
            ls_window_close(&window);
        else
            ls_device_free(s->device, e->state[i]);
        e->state[i] = NULL;
    }
    for (int kind = 0; kind < KINDS; kind++) {
        ls_mem_free(e->held[kind]);
        e->held[kind] = NULL;
        e->n[kind] = 0;
    }
    ls_mem_free(e->gradient);
    e->gradient = NULL;
    e->lent = false;
    e->about = (entry){.part = -1, .ward = -1};
}

void ls_replica_parts_drop(ls_session *session)
{
    struct ls_replica_parts *e = session->recovery.parts;

    if (!e)
        return;
    let_go(session);
    ls_mem_free(e->records);
    ls_mem_free(e->sources);
    ls_mem_free(e);
    session->recovery.parts = NULL;
}

int64_t ls_replica_parts_bytes(const ls_session *s)
{
    const struct ls_replica_parts *e = s->recovery.parts;
    int64_t all = 0;

    for (int i = 0; i < ls_optim_kinds(s->run) && e && e->state[0]; i++) {
        const ls_window window = {.base = e->state[i], .bytes = e->bytes};
        all += e->windows ? ls_window_held(&window) /* pages that are there */
                          : (i == 0 ? e->weights : e->moments) * (int64_t)sizeof(float);
    }
    return all;
}

/* --- keeping ---------------------------------------------------------------------------------- */

/* What a step has of a kind, piece by piece. */
static ls_status pieces_of(const ls_step *step, int kind, ls_mesh_part **pieces_out, int *n_out)
{
    const ls_model *model = step->args.model;
    const ls_pipeline *x = step->pipeline;
    const ls_mesh_part *ward = NULL;
    bool stages = x && kind == WEIGHTS && !x->plan.divides;
    bool whole = !x && !ls_step_divides(step) && !step->ep_group.parts;
    int n = kind == WARD ? ls_replica_pair_parts(step, &ward) : whole ? 1 : ls_step_buckets(step);
    ls_mesh_part *pieces = ls_mem_array((size_t)n, sizeof *pieces);

    if (!pieces)
        return LS_ENOMEM;
    for (int i = 0; i < n; i++)
        pieces[i] = kind == WARD ? ward[i]
                    : whole
                        ? (ls_mesh_part){.count = kind == WEIGHTS ? model->flat : model->trained}
                    : stages ? (ls_mesh_part){.first = x->plan.chunk[i].weights.first,
                                              .count = x->plan.chunk[i].weights.count}
                             : ls_step_own(step, i);
    *pieces_out = pieces;
    *n_out = n;
    return LS_OK;
}

/* Piece i of those that are updated, one after the other: the own ones, and a ward's. NULL: there
 * are no more. */
static const ls_mesh_part *updated_of(const struct ls_replica_parts *e, int i)
{
    if (i < e->n[MOMENTS])
        return &e->held[MOMENTS][i];
    i -= e->n[MOMENTS];
    return i < e->n[WARD] ? &e->held[WARD][i] : NULL;
}

/* The sum of gradients of these pieces, which goes with the step. */
static ls_status keep_gradient(struct ls_replica_parts *e, const ls_step *step)
{
    const ls_mesh_part *p;
    int64_t all = 0;

    for (int i = 0; (p = updated_of(e, i)); i++)
        all += p->count;
    e->gradient = ls_mem_array((size_t)ls_max_i64(1, all), sizeof *e->gradient);
    if (!e->gradient)
        return ls_fail(LS_ENOMEM, "no memory for the gradient of a part of the model");
    float *to = e->gradient;
    for (int i = 0; (p = updated_of(e, i)); i++) {
        if (p->count > 0)
            memcpy(to, ls_step_own_gradient(step, *p), (size_t)p->count * sizeof *to);
        to += p->count;
    }
    return LS_OK;
}

/* A step counts of which this rank has heard, or hears now, and to whose end it did not come. */
static void count_step(ls_session *s, int64_t heard, const ls_step_result *result)
{
    if (heard != s->step_number + 1)
        return;
    (void)ls_loss_scaler_step(&s->scaler, isfinite(result->loss), result->finite);
    s->progress.loss = result->finite ? result->loss : s->progress.loss;
    s->progress.last = *result;
    s->step_number = heard;
}

/* The part of the rank whose moments are here too; -1: there is none. */
static int64_t ward_of(const ls_session *s)
{
    if (!ls_replica_pair_holds(s->step))
        return -1;
    int distance = ls_replica_pair_distance(s->step) * ls_mesh_mp(&s->mesh);
    return ls_replicas_part(&s->mesh, s->mesh.rank + distance);
}

/* What the step has, as it stands. */
static ls_status describe(ls_session *s, struct ls_replica_parts *e)
{
    const ls_step *step = s->step;
    const ls_mesh *replicas = step->args.dp ? &ls_dp_about(step->args.dp)->mesh : NULL;
    int64_t done = step->vote.made ? step->vote.heard : ls_step_done(step);
    ls_status st = LS_OK;

    done = done < 0 ? s->step_number : done;
    e->about.ward = ward_of(s);
    for (int kind = 0; kind < (e->about.ward >= 0 ? KINDS : WARD); kind++)
        LS_TRY(st, pieces_of(step, kind, &e->held[kind], &e->n[kind]), out);
    e->whole = !ls_step_divides(step) && !step->ep_group.parts;
    e->windows = step->pipeline != NULL;
    e->bytes = step->pipeline ? step->pipeline->state[0].bytes : 0;
    e->weights = step->args.model->flat;
    e->moments = e->whole
                     ? step->args.model->trained
                     : ls_replica_moments_moments(s->run, step->args.model, replicas, step->own);
    e->numbers = *step->state;
    e->norm = *step->norm;
    bool ready = !step->vote.made && step->vote.ready == done;
    if (ready)
        LS_TRY(st, keep_gradient(e, step), out);
    count_step(s, step->vote.heard, &step->vote.result);
    e->about = (entry){.part = ls_replicas_part(&s->mesh, s->mesh.rank),
                       .ward = e->about.ward,
                       .parts = ls_replicas_parts(&s->mesh),
                       .bucket = ls_step_divides(step) ? replicas->bucket : 0,
                       .view = e->view,
                       .descent = e->descent,
                       .done = done,
                       .heard = ls_max_i64(done, step->vote.heard),
                       .ready = ready,
                       .last = s->progress.last};
out:
    return st;
}

void ls_replica_parts_keep(ls_session *session)
{
    ls_session *s = session;
    struct ls_replica_parts *e = estate_of(s);
    ls_status st = LS_OK;

    if (!e || (e->about.part >= 0 && !e->lent) || !ls_replica_parts_keeps(s))
        return; /* what was kept stays */
    if (!e->lent && !s->step->vote.made && ls_step_done(s->step) == LS_STEP_TORN)
        return;
    if (!e->lent)
        st = describe(s, e);
    if (st == LS_OK)
        st = ls_step_keep(s->step, e->state);
    if (st == LS_OK)
        e->lent = false;
    else
        let_go(s);
    if (st != LS_OK)
        ls_log(LS_LOG_WARN, "this rank cannot keep its state: %s", ls_err_last()->text);
}

/* --- who gives what --------------------------------------------------------------------------- */

static bool serves(const entry *e, const entry *best)
{
    return e->part >= 0 && e->parts == best->parts && e->bucket == best->bucket &&
           e->descent == best->descent &&
           (e->done == best->heard ||
            (e->done == best->heard - 1 && e->ready && e->view == best->view));
}

/* The entry that has come farthest; of all ranks alike. */
static entry find_best(const record *records, int ranks)
{
    entry best = {.part = -1, .ward = -1};

    for (int r = 0; r < ranks; r++) {
        const entry *e = &records[r].about;
        if (e->part < 0)
            continue;
        bool newer = e->descent > best.descent ||
                     (e->descent == best.descent &&
                      (e->heard > best.heard || (e->heard == best.heard && e->view > best.view)));
        if (best.part < 0 || newer)
            best = *e;
    }
    return best;
}

/* The source of each part: who has it rather than who keeps it for another. Returns how many have
 * one from the first on. */
static int find_sources(const record *records, int ranks, const entry *best, int *sources)
{
    for (int part = 0; part < best->parts; part++) {
        sources[part] = -1;
        for (int i = 2 * ranks - 1; i >= 0; i--) {
            const entry *e = &records[i % ranks].about;
            if ((i < ranks ? e->part : e->ward) == part && serves(e, best))
                sources[part] = i % ranks;
        }
        if (sources[part] < 0)
            return part;
    }
    return (int)best->parts;
}

/* The update that this rank had not heard of when it lost the others. */
static ls_status catch_up(ls_session *s, const entry *best)
{
    struct ls_replica_parts *e = s->recovery.parts;
    ls_adamw_span *spans = NULL;
    const float *gradient = e->gradient;
    float *w = e->state[0], *m = e->state[1], *v = e->state[2];
    const ls_mesh_part *own;
    ls_status st = LS_OK;

    if (e->about.done == best->heard)
        return LS_OK;
    spans = ls_mem_array((size_t)ls_memory_spans(&s->model), sizeof *spans);
    LS_TRY(st, spans ? LS_OK : LS_ENOMEM, out);
    for (int i = 0; best->last.finite && (own = updated_of(e, i)); i++) {
        int64_t n = ls_optim_spans(s->run, &s->model, *own, false, e->whole, spans);
        if (n > 0)
            ls_optim_elements(s->run, s->kernels, s->stream,
                              &(ls_adamw){.w = w,
                                          .m = m + own->packed,
                                          .v = v ? v + own->packed : NULL,
                                          .grad = gradient,
                                          .spans = spans,
                                          .n_spans = n,
                                          .copy_type = LS_F32,
                                          .state = &e->numbers,
                                          .result = &e->norm});
        LS_TRY(st, ls_stream_sync(s->stream, ls_time_now_ns() + LS_STEP_WAIT_S * LS_NS_PER_S), out);
        gradient += own->count;
    }
    count_step(s, best->heard, &best->last);
    e->about.done = e->about.heard = best->heard;
    e->about.ready = false;
    e->about.last = best->last;
    ls_mem_free(e->gradient);
    e->gradient = NULL;
out:
    ls_mem_free(spans);
    return st;
}

/* The view that the ranks make of it: all see the same records. */
static ls_status decide(ls_session *s, int ranks)
{
    ls_view_plan *view = &s->args.view.plan;
    struct ls_replica_parts *e = s->recovery.parts;
    entry best = find_best(e->records, ranks);

    if (best.part < 0 || best.parts != ls_replicas_parts(&s->mesh))
        return LS_OK;
    ls_mem_free(e->sources);
    e->sources = ls_mem_array((size_t)best.parts, sizeof *e->sources);
    if (!e->sources)
        return LS_ENOMEM;
    int there = find_sources(e->records, ranks, &best, e->sources);
    if (there < best.parts) {
        if (ls_comm_rank(s->args.comm) == 0)
            ls_log(LS_LOG_INFO, "nobody has part %d of %d of the state any more", there + 1,
                   (int)best.parts);
        return LS_OK;
    }
    view->base = view->met = best.heard;
    for (int r = ranks - 1; r >= 0; r--) {
        const record *it = &e->records[r];
        if (!serves(&it->about, &best))
            continue;
        view->source =
            it->about.heard == best.heard && it->about.view == best.view ? r : view->source;
        if (it->about.view == best.view)
            view->met = ls_min_i64(view->met, it->met);
    }
    view->spread = true;
    if (view->first_new && view->met == view->base && view->base > 0)
        view->met--; /* what it did last may not have been finished (cluster/member/view.c) */
    for (int part = 0; part < best.parts; part++)
        if (e->records[e->sources[part]].about.part != part)
            s->recovery.source = "buddy";
    e->view = best.view;
    e->descent = best.descent;
    e->bucket = best.bucket;
    if (!serves(&e->about, &best)) {
        let_go(s);
        return LS_OK;
    }
    return catch_up(s, &best);
}

ls_status ls_replica_parts_choose(ls_session *session)
{
    ls_session *s = session;
    ls_status st = LS_OK;

    if (!ls_replica_parts_serves(s) || s->args.view.plan.generation < 2)
        return LS_OK;
    int ranks = ls_comm_ranks(s->args.comm), me = ls_comm_rank(s->args.comm);
    struct ls_replica_parts *e = estate_of(s);
    LS_TRY(st, e ? LS_OK : LS_ENOMEM, out);
    ls_mem_free(e->records);
    e->records = ls_mem_array((size_t)ranks, sizeof *e->records);
    LS_TRY(st, e->records ? LS_OK : LS_ENOMEM, out);
    e->records[me] = (record){.about = e->about, .met = s->progress.met};
    LS_TRY(st,
           ls_comm_run(s->args.comm,
                       &(ls_coll){.kind = LS_COLL_ALL_GATHER,
                                  .type = LS_U8,
                                  .count = ranks * (int64_t)sizeof *e->records,
                                  .in = e->records,
                                  .out = e->records},
                       ls_time_now_ns() + LS_SESSION_MEET_S * LS_NS_PER_S),
           out);
    st = decide(s, ranks);
out:
    return st;
}

/* --- going on --------------------------------------------------------------------------------- */

int64_t ls_replica_parts_bucket(const ls_session *session, int64_t proposed)
{
    const struct ls_replica_parts *e = session->recovery.parts;

    return e && e->bucket > 0 && ls_recover_in_memory(session) ? e->bucket : proposed;
}

static bool has_own(const ls_session *s)
{
    const struct ls_replica_parts *e = s->recovery.parts;

    return e && e->about.part >= 0 && e->about.part == ls_replicas_part(&s->mesh, s->mesh.rank);
}

void *const *ls_replica_parts_lend(const ls_session *session)
{
    return ls_recover_in_memory(session) && has_own(session) ? session->recovery.parts->state
                                                             : NULL;
}

void ls_replica_parts_lent(ls_session *session)
{
    ls_session *s = session;
    struct ls_replica_parts *e = s->recovery.parts;

    if (!ls_replica_parts_lend(s))
        return;
    e->lent = true;
    memset(e->state, 0, sizeof e->state);
    s->step_number = e->about.done;
    s->recovery.has_state = true;
}

/* Pieces of an array between two ranks, one of which this is; moments: by their places there. */
static ls_status pass_pieces(ls_session *s, const ls_mesh_part *pieces, int n, bool moments,
                             ls_coll coll, float *array)
{
    ls_status st = LS_OK;

    for (int k = 0; k < n && st == LS_OK; k++) {
        coll.count = pieces[k].count;
        coll.in = coll.out = array + (moments ? pieces[k].packed : pieces[k].first);
        if (coll.count > 0)
            st = ls_comm_run(s->args.comm, &coll,
                             ls_time_now_ns() + LS_SESSION_MEET_S * LS_NS_PER_S);
    }
    return st;
}

/* A part, all its pieces, from who has it to who needs it; by these two. ward: who gives it keeps
 * it for another. */
static ls_status carry(ls_session *s, int from, int to, bool ward)
{
    struct ls_replica_parts *e = s->recovery.parts;
    bool sends = s->mesh.rank == from, kept = sends && !e->lent;
    const ls_coll coll = {
        .kind = sends ? LS_COLL_SEND : LS_COLL_RECV, .type = LS_F32, .peer = sends ? to : from};
    ls_status st = LS_OK;

    for (int i = 0; i < ls_optim_kinds(s->run) && st == LS_OK; i++) {
        ls_mesh_part *pieces = NULL;
        int kind = sends && ward ? WARD : i > 0 ? MOMENTS : WEIGHTS, n = 0;
        bool noted = kept || kind == WARD;
        float *array = kept ? e->state[i] : s->step->state_memory[i];
        if (!noted)
            st = pieces_of(s->step, kind, &pieces, &n);
        if (st == LS_OK)
            st = pass_pieces(s, noted ? e->held[kind] : pieces, noted ? e->n[kind] : n, i > 0, coll,
                             array);
        ls_mem_free(pieces);
    }
    return st;
}

ls_status ls_replica_parts_restore(ls_session *session)
{
    ls_session *s = session;
    struct ls_replica_parts *e = s->recovery.parts;
    const ls_view_plan *plan = &s->args.view.plan;
    entry best = find_best(e->records, plan->ranks);
    ls_status st = LS_OK;

    for (int r = 0; r < plan->ranks; r++) {
        int part = ls_replicas_part(&s->mesh, r), from = e->sources[part];
        if (e->records[r].about.part == part && serves(&e->records[r].about, &best))
            continue;
        bool ward = e->records[from].about.part != part;
        if (s->mesh.rank == r)
            ls_log(LS_LOG_INFO, "part %d of %d of the state comes from rank %d, a %s", part + 1,
                   (int)best.parts, from, ward ? "buddy" : "replica");
        if (s->mesh.rank == r || s->mesh.rank == from)
            LS_TRY(st, carry(s, from, r, ward), out);
    }
    st = ls_step_complete(s->step);
out:
    return st;
}

void ls_replica_parts_begin(ls_session *session)
{
    ls_session *s = session;
    struct ls_replica_parts *e = ls_replica_parts_serves(s) ? estate_of(s) : NULL;

    if (!e)
        return;
    let_go(s); /* what is lent stays the step's */
    e->descent = ls_recover_in_memory(s) ? e->descent : s->args.view.plan.generation;
    e->view = s->args.view.plan.generation;
}
