/* estate.c -- see estate.h.
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
 * What is older. A rank that was not needed for a while (a spare, cluster/view.h) has the state of
 * an earlier view. It serves when it is of the very step that is gone on with, and of the same
 * descent: since the ranks last read a checkpoint, because steps that are done again by others may
 * differ in fast mode. For the same reason a gradient serves only with those of its own view.
 *
 * A tied embedding, and with mesh.zero the weights that other lines update, are copies: they are
 * made anew from their owners' (ls_line_spread) and never taken from here. But for those of a ward
 * (train/trust.h): what a rank keeps for another one it keeps here too, with its gradient, and
 * makes its update. So with mesh.zero a part has two who can give it, the owner and its buddy. */
#include "train/estate.h"

#include <math.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "parallel/kin.h"
#include "plan/memory.h"
#include "train/line_impl.h"
#include "train/recover.h"
#include "train/session_impl.h"
#include "train/trust.h"

enum { ARRAYS = 3, PIECES = LS_PIPE_CHUNKS };
enum { WEIGHTS, MOMENTS, WARD, KINDS }; /* of pieces; the last: of everything that is a ward's */

/* What is told of an estate. */
typedef struct entry {
    int64_t part;        /* -1: there is none */
    int64_t ward;        /* another one that is kept here; -1: none */
    int64_t parts;       /* so many there were */
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
    int64_t met, pad;
} record;
_Static_assert(sizeof(record) % 16 == 0, "all-gathers cut at 16 bytes");

struct ls_estate {
    entry about;
    bool lent;                         /* the memory is the step's */
    bool windows;                      /* it is windows (line.h) */
    void *state[ARRAYS];               /* owned; NULL when lent */
    int64_t bytes;                     /* of each window */
    ls_pipe_range held[KINDS][PIECES]; /* elements of weights and so on: n pieces of each */
    int n;
    float *gradient;        /* owned: of the pieces of moments, one after the other, then of the
                             * ward's; NULL: none */
    bool whole;             /* as ls_step_spans() */
    ls_step_state numbers;  /* of the step that it is of, */
    ls_norm_result norm;    /* and of the gradient */
    uint64_t view, descent; /* of what the step has: see entry */
    record *records;        /* owned: of all ranks, and */
    int *sources;           /* owned: who gives each part */
};

bool ls_estate_serves(const ls_session *s)
{
    return s->run && s->args.rejoin && ls_kin_divides(s->run);
}

bool ls_estate_keeps(const ls_session *s)
{
    return ls_estate_serves(s) && s->step && s->step_there && !s->apart &&
           s->offload == LS_OFFLOAD_NONE && s->run->train.optimizer == LS_OPTIMIZER_ADAMW &&
           !ls_step_divides(s->step); /* teams do (mesh.tp, mesh.zero): nobody has their moments */
}

int ls_estate_part(const ls_session *s)
{
    return s->estate ? (int)s->estate->about.part : -1;
}

static struct ls_estate *estate_of(ls_session *s)
{
    if (!s->estate && (s->estate = ls_mem_alloc(sizeof *s->estate)))
        s->estate->about = (entry){.part = -1, .ward = -1};
    return s->estate;
}

/* What is kept, but not what is known of the state that a step has. */
static void let_go(ls_session *s)
{
    struct ls_estate *e = s->estate;

    for (int i = 0; i < ARRAYS; i++) {
        ls_window window = {.base = e->state[i], .bytes = e->bytes};
        if (e->windows)
            ls_window_close(&window);
        else
            ls_device_free(s->device, e->state[i]);
        e->state[i] = NULL;
    }
    ls_mem_free(e->gradient);
    e->gradient = NULL;
    e->lent = false;
    e->about = (entry){.part = -1, .ward = -1};
}

void ls_estate_drop(ls_session *session)
{
    struct ls_estate *e = session->estate;

    if (!e)
        return;
    let_go(session);
    ls_mem_free(e->records);
    ls_mem_free(e->sources);
    ls_mem_free(e);
    session->estate = NULL;
}

/* Pages of a window that are there, or all of an array. */
int64_t ls_estate_bytes(const ls_session *s)
{
    const struct ls_estate *e = s->estate;
    int64_t all = 0;

    for (int i = 0; i < ARRAYS && e && e->state[0]; i++) {
        const ls_window window = {.base = e->state[i], .bytes = e->bytes};
        for (int k = 0; k < e->n && !e->windows; k++)
            all += e->held[i > 0][k].count * (int64_t)sizeof(float);
        if (e->windows)
            all += ls_window_held(&window);
    }
    return all;
}

/* --- keeping ---------------------------------------------------------------------------------- */

/* What a step has, piece by piece, of a kind. */
static int pieces_of(const ls_step *step, int kind, ls_pipe_range out[PIECES])
{
    for (int b = 0; step->line && b < ls_step_buckets(step); b++) {
        ls_mesh_part own = ls_step_own(step, b);
        bool all = kind == WEIGHTS && !step->line->plan.divides;
        out[b] = all            ? step->line->plan.chunk[b].weights
                 : kind == WARD ? ls_trust_part(step, b)
                                : (ls_pipe_range){own.first, own.count};
    }
    if (step->line)
        return ls_step_buckets(step);
    out[0] =
        (ls_pipe_range){0, kind == WEIGHTS ? step->args.model->flat : step->args.model->trained};
    return 1;
}

/* The pieces that are updated, one after the other: the own ones, and a ward's. Returns how many.
 */
static int updated_of(const struct ls_estate *e, const ls_pipe_range *out[2 * PIECES])
{
    int n = 0;

    for (int kind = MOMENTS; kind <= (e->about.ward >= 0 ? WARD : MOMENTS); kind++)
        for (int k = 0; k < e->n; k++)
            out[n++] = &e->held[kind][k];
    return n;
}

/* The sum of gradients of these pieces, which goes with the step. */
static ls_status keep_gradient(struct ls_estate *e, const ls_step *step)
{
    const ls_pipe_range *pieces[2 * PIECES];
    int n = updated_of(e, pieces);
    int64_t all = 0;

    for (int k = 0; k < n; k++)
        all += pieces[k]->count;
    e->gradient = ls_mem_array((size_t)ls_max_i64(1, all), sizeof *e->gradient);
    if (!e->gradient)
        return ls_fail(LS_ENOMEM, "no memory for the gradient of a part of the model");
    float *to = e->gradient;
    for (int k = 0; k < n; k++) {
        ls_pipe_range r = *pieces[k];
        const float *from =
            step->line ? ls_line_gradient(step, r.first) : (const float *)step->grads[0] + r.first;
        memcpy(to, from, (size_t)r.count * sizeof *to);
        to += r.count;
    }
    return LS_OK;
}

/* A step counts of which this rank has heard, or hears now, and to whose end it did not come. */
static void count_step(ls_session *s, int64_t heard, const ls_step_result *result)
{
    if (heard != s->step_number + 1)
        return;
    (void)ls_scaler_step(&s->scaler, isfinite(result->loss), result->finite);
    s->loss = result->finite ? result->loss : s->loss;
    s->last = *result;
    s->step_number = heard;
}

/* The part of the line whose moments are here too; -1: there is none. */
static int64_t ward_of(const ls_session *s)
{
    const ls_step *step = s->step;

    if (!ls_trust_holds(step))
        return -1;
    int lines = step->line->plan.ward - step->line->plan.line;
    return ls_kin_part(&s->mesh, s->mesh.rank + lines * ls_mesh_tp(&s->mesh));
}

/* What the step has, as it stands. */
static ls_status describe(ls_session *s, struct ls_estate *e)
{
    const ls_step *step = s->step;
    int64_t done = step->vote.made ? step->vote.heard : ls_step_done(step);
    ls_status st = LS_OK;

    done = done < 0 ? s->step_number : done;
    e->about.ward = ward_of(s);
    for (int kind = 0; kind < (e->about.ward >= 0 ? KINDS : WARD); kind++)
        e->n = pieces_of(step, kind, e->held[kind]);
    e->whole = !ls_step_divides(step);
    e->windows = step->line != NULL;
    e->bytes = step->line ? step->line->state[0].bytes : 0;
    e->numbers = *step->state;
    e->norm = *step->norm;
    bool ready = !step->vote.made && step->vote.ready == done;
    if (ready)
        LS_TRY(st, keep_gradient(e, step), out);
    count_step(s, step->vote.heard, &step->vote.result);
    e->about = (entry){.part = ls_kin_part(&s->mesh, s->mesh.rank),
                       .ward = e->about.ward,
                       .parts = ls_kin_parts(&s->mesh),
                       .view = e->view,
                       .descent = e->descent,
                       .done = done,
                       .heard = ls_max_i64(done, step->vote.heard),
                       .ready = ready,
                       .last = s->last};
out:
    return st;
}

void ls_estate_keep(ls_session *session)
{
    ls_session *s = session;
    struct ls_estate *e = estate_of(s);
    ls_status st = LS_OK;

    if (!e || (e->about.part >= 0 && !e->lent) || !ls_estate_keeps(s))
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
    return e->part >= 0 && e->parts == best->parts && e->descent == best->descent &&
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
    struct ls_estate *e = s->estate;
    ls_adamw_span *spans = NULL;
    const float *gradient = e->gradient;
    float *w = e->state[0], *m = e->state[1], *v = e->state[2];
    const ls_pipe_range *pieces[2 * PIECES];
    int n_pieces = updated_of(e, pieces);
    ls_status st = LS_OK;

    if (e->about.done == best->heard)
        return LS_OK;
    spans = ls_mem_array((size_t)ls_memory_spans(&s->model), sizeof *spans);
    LS_TRY(st, spans ? LS_OK : LS_ENOMEM, out);
    for (int k = 0; k < n_pieces && best->last.finite; k++) {
        ls_pipe_range r = *pieces[k];
        ls_mesh_part own = {.first = r.first, .count = r.count, .packed = r.first};
        int64_t n = ls_step_spans(s->run, &s->model, own, false, e->whole, spans);
        if (n > 0)
            s->kernels->adamw(s->stream, &(ls_adamw){.w = w,
                                                     .m = m + r.first,
                                                     .v = v + r.first,
                                                     .grad = gradient,
                                                     .spans = spans,
                                                     .n_spans = n,
                                                     .copy_type = LS_F32,
                                                     .state = &e->numbers,
                                                     .result = &e->norm});
        LS_TRY(st, ls_stream_sync(s->stream, ls_time_now_ns() + LS_STEP_WAIT_S * LS_NS_PER_S), out);
        gradient += r.count;
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
    struct ls_estate *e = s->estate;
    entry best = find_best(e->records, ranks);

    if (best.part < 0 || best.parts != ls_kin_parts(&s->mesh))
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
        view->met--; /* what it did last may not have been finished (cluster/view.c) */
    for (int part = 0; part < best.parts; part++)
        if (e->records[e->sources[part]].about.part != part)
            s->repaired = "buddy";
    e->view = best.view;
    e->descent = best.descent;
    if (!serves(&e->about, &best)) {
        let_go(s);
        return LS_OK;
    }
    return catch_up(s, &best);
}

ls_status ls_estate_choose(ls_session *session)
{
    ls_session *s = session;
    ls_status st = LS_OK;

    if (!ls_estate_serves(s) || s->args.view.plan.generation < 2)
        return LS_OK;
    int ranks = ls_comm_ranks(s->args.comm), me = ls_comm_rank(s->args.comm);
    struct ls_estate *e = estate_of(s);
    LS_TRY(st, e ? LS_OK : LS_ENOMEM, out);
    ls_mem_free(e->records);
    e->records = ls_mem_array((size_t)ranks, sizeof *e->records);
    LS_TRY(st, e->records ? LS_OK : LS_ENOMEM, out);
    e->records[me] = (record){.about = e->about, .met = s->met};
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

static bool has_own(const ls_session *s)
{
    const struct ls_estate *e = s->estate;

    return e && e->about.part >= 0 && e->about.part == ls_kin_part(&s->mesh, s->mesh.rank);
}

void *const *ls_estate_lend(const ls_session *session)
{
    return ls_recover_in_memory(session) && has_own(session) ? session->estate->state : NULL;
}

void ls_estate_lent(ls_session *session)
{
    ls_session *s = session;
    struct ls_estate *e = s->estate;

    if (!ls_estate_lend(s))
        return;
    e->lent = true;
    memset(e->state, 0, sizeof e->state);
    s->step_number = e->about.done;
    s->step_there = true;
}

/* A part, all its pieces, from who has it to who needs it; by these two. ward: who gives it keeps
 * it for another. */
static ls_status carry(ls_session *s, int from, int to, bool ward)
{
    struct ls_estate *e = s->estate;
    bool sends = s->mesh.rank == from, kept = sends && !e->lent;
    ls_status st = LS_OK;

    for (int i = 0; i < ARRAYS; i++) {
        ls_pipe_range pieces[PIECES];
        int own = i > 0 ? MOMENTS : WEIGHTS, kind = sends && ward ? WARD : own;
        bool noted = kept || kind == WARD;
        int n = noted ? e->n : pieces_of(s->step, own, pieces);
        float *array = kept ? e->state[i] : s->step->state_memory[i];
        for (int k = 0; k < n; k++) {
            ls_pipe_range r = noted ? e->held[kind][k] : pieces[k];
            ls_coll coll = {.kind = sends ? LS_COLL_SEND : LS_COLL_RECV,
                            .type = LS_F32,
                            .count = r.count,
                            .in = array + r.first,
                            .out = array + r.first,
                            .peer = sends ? to : from};
            if (r.count > 0)
                LS_TRY(st,
                       ls_comm_run(s->args.comm, &coll,
                                   ls_time_now_ns() + LS_SESSION_MEET_S * LS_NS_PER_S),
                       out);
        }
    }
out:
    return st;
}

ls_status ls_estate_restore(ls_session *session)
{
    ls_session *s = session;
    struct ls_estate *e = s->estate;
    const ls_view_plan *plan = &s->args.view.plan;
    entry best = find_best(e->records, plan->ranks);
    ls_status st = LS_OK;

    for (int r = 0; r < plan->ranks; r++) {
        int part = ls_kin_part(&s->mesh, r), from = e->sources[part];
        if (e->records[r].about.part == part && serves(&e->records[r].about, &best))
            continue;
        bool ward = e->records[from].about.part != part;
        if (s->mesh.rank == r)
            ls_log(LS_LOG_INFO, "part %d of %d of the state comes from rank %d, a %s", part + 1,
                   (int)best.parts, from, ward ? "buddy" : "replica");
        if (s->mesh.rank == r || s->mesh.rank == from)
            LS_TRY(st, carry(s, from, r, ward), out);
    }
    if (s->step->line)
        st = ls_line_spread(s->step);
out:
    return st;
}

void ls_estate_begin(ls_session *session)
{
    ls_session *s = session;
    struct ls_estate *e = ls_estate_serves(s) ? estate_of(s) : NULL;

    if (!e)
        return;
    let_go(s); /* what is lent stays the step's */
    e->descent = ls_recover_in_memory(s) ? e->descent : s->args.view.plan.generation;
    e->view = s->args.view.plan.generation;
}
