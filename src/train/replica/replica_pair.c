/* replica_pair.c -- see replica_pair.h.
 *
 * A ward's gradient comes to its own elements of this rank's buffer, which nobody reads any more:
 * only the ward summed them, and it is done with that when it sends. */
#include "train/replica/replica_pair.h"

#include "base/mem.h"
#include "layout/replica_moments.h"
#include "optim/optim.h"
#include "train/step/pipeline_impl.h"

enum { WEIGHTS, FIRST, SECOND, GRADIENT }; /* the first three by their numbers in the state */
enum { AT_A_TIME = 32 };                   /* messages each way */

struct ls_replica_pair {
    ls_comm *comm;            /* borrowed: those who divide */
    int ward, buddy;          /* ranks of it */
    ls_mesh_part *own, *kept; /* owned: what this rank updates, and its ward */
    int n_own, n_kept;
    ls_adamw_span *spans; /* owned: of the ward's parts, */
    int64_t *end_span;    /* owned: one after the other */
    bool begun;           /* its moments are here */
    int64_t sent;         /* bytes, to the buddy */
};

bool ls_replica_pair_holds(const ls_step *step)
{
    return step->trust && step->trust->begun;
}

int ls_replica_pair_distance(const ls_step *step)
{
    return step->trust->ward - ls_comm_rank(step->trust->comm);
}

int ls_replica_pair_parts(const ls_step *step, const ls_mesh_part **parts_out)
{
    *parts_out = step->trust->kept;
    return step->trust->n_kept;
}

int64_t ls_replica_pair_sent(const ls_step *step)
{
    return step && step->trust ? step->trust->sent : 0;
}

/* --- opening ---------------------------------------------------------------------------------- */

/* What a rank of those who divide updates, as its own moments lie. */
static ls_status list(const ls_step *s, int rank, ls_mesh_part **parts_out, int *n_out)
{
    const ls_step_args *a = &s->args;
    const ls_mesh *replicas = &ls_dp_about(a->dp)->mesh;
    int n = s->pipeline ? ls_pipeline_owns(s)
                        : ls_replica_moments_parts(a->run, a->model, replicas, rank, NULL);
    ls_mesh_part *parts = ls_mem_array((size_t)n, sizeof *parts);

    if (!parts)
        return LS_ENOMEM;
    if (!s->pipeline)
        (void)ls_replica_moments_parts(a->run, a->model, replicas, rank, parts);
    for (int i = 0; i < n && s->pipeline; i++)
        parts[i] = ls_pipeline_updated(s, rank, i);
    *parts_out = parts;
    *n_out = n;
    return LS_OK;
}

/* What the optimizer is told of the ward's parts. */
static ls_status open_spans(const ls_step *s, struct ls_replica_pair *t)
{
    bool whole = !ls_step_divides(s) && !s->ep_group.parts;
    int64_t n = 0;

    t->spans = ls_mem_array((size_t)ls_memory_spans(s->args.model), sizeof *t->spans);
    t->end_span = ls_mem_array((size_t)t->n_kept, sizeof *t->end_span);
    if (!t->spans || !t->end_span)
        return LS_ENOMEM;
    for (int i = 0; i < t->n_kept; i++) {
        n += ls_optim_spans(s->args.run, s->args.model, t->kept[i], false, whole, t->spans + n);
        t->end_span[i] = n;
    }
    return LS_OK;
}

ls_status ls_replica_pair_open(ls_step *step)
{
    ls_step *s = step;
    const ls_mesh *mesh = s->args.dp ? &ls_dp_about(s->args.dp)->mesh : NULL;
    const ls_stage_plan *plan = s->pipeline ? &s->pipeline->plan : NULL;
    ls_status st = LS_OK;

    if (plan ? plan->ward < 0 : !ls_replica_moments_serves(s->args.model, mesh))
        return LS_OK;
    struct ls_replica_pair *t = s->trust = ls_mem_alloc(sizeof *t);
    if (!t)
        return LS_ENOMEM;
    t->comm = plan ? s->pipeline->stage_comm : ls_dp_about(s->args.dp)->comm;
    t->ward = plan ? plan->ward : ls_replica_moments_of(mesh, mesh->rank);
    t->buddy = plan ? plan->buddy : ls_replica_moments_buddy(mesh, mesh->rank);
    LS_TRY(st, list(s, ls_comm_rank(t->comm), &t->own, &t->n_own), out);
    LS_TRY(st, list(s, t->ward, &t->kept, &t->n_kept), out);
    for (int i = 0; i < t->n_kept && !plan; i++)
        t->kept[i].packed += ls_replica_moments_place(s->own);
    st = open_spans(s, t);
out:
    return st;
}

void ls_replica_pair_close(ls_step *step)
{
    struct ls_replica_pair *t = step->trust;

    if (!t)
        return;
    ls_mem_free(t->own);
    ls_mem_free(t->kept);
    ls_mem_free(t->spans);
    ls_mem_free(t->end_span);
    ls_mem_free(t);
    step->trust = NULL;
}

/* --- messages --------------------------------------------------------------------------------- */

/* Where an array has a part. */
static float *place_of(const ls_step *s, int what, ls_mesh_part part)
{
    if (what == GRADIENT)
        return (float *)(uintptr_t)ls_step_own_gradient(s, part);
    return (float *)s->state_memory[what] + part.packed;
}

/* A part on its way to the buddy, or from the ward. */
static ls_status start(const ls_step *s, int what, int i, bool sends, ls_comm_request *request)
{
    const struct ls_replica_pair *t = s->trust;
    ls_mesh_part part = sends ? t->own[i] : t->kept[i];
    float *at = place_of(s, what, part);
    const ls_coll coll = {.kind = sends ? LS_COLL_SEND : LS_COLL_RECV,
                          .type = LS_F32,
                          .count = part.count,
                          .in = at,
                          .out = at,
                          .peer = sends ? t->buddy : t->ward};

    return ls_comm_start(t->comm, &coll, request);
}

/* Some parts of an array: all messages on their way, then their end, also after a failure: then
 * nobody writes here any more. */
static ls_status exchange_some(ls_step *s, int what, int from)
{
    struct ls_replica_pair *t = s->trust;
    ls_comm_request requests[2 * AT_A_TIME];
    int n = 0;
    ls_status st = LS_OK;

    for (int i = 0; i < 2 * AT_A_TIME && st == LS_OK; i++) {
        bool sends = i % 2 == 0;
        int at = from + i / 2;
        const ls_mesh_part *parts = sends ? t->own : t->kept;
        if (at >= (sends ? t->n_own : t->n_kept) || parts[at].count == 0)
            continue;
        st = start(s, what, at, sends, &requests[n]);
        n += st == LS_OK;
        t->sent += sends ? parts[at].count * (int64_t)sizeof(float) : 0;
    }
    for (int i = 0; i < n; i++) {
        ls_status ended = ls_comm_wait(t->comm, requests[i], ls_pipeline_deadline());
        st = st == LS_OK ? ended : st;
    }
    return st;
}

/* All of it. A rank's own parts are as many as its buddy keeps, so both go through as many rounds.
 */
static ls_status exchange(ls_step *s, int what)
{
    int most = s->trust->n_own > s->trust->n_kept ? s->trust->n_own : s->trust->n_kept;
    ls_status st = LS_OK;

    for (int from = 0; from < most && st == LS_OK; from += AT_A_TIME)
        st = exchange_some(s, what, from);
    return st;
}

ls_status ls_replica_pair_begin(ls_step *step)
{
    ls_step *s = step;
    ls_status st = LS_OK;

    if (!s->trust)
        return LS_OK;
    if (s->pipeline && s->pipeline->plan.zero == 3)
        LS_TRY(st, exchange(s, WEIGHTS), out);
    for (int i = FIRST; i < ls_optim_kinds(s->args.run); i++)
        LS_TRY(st, exchange(s, i), out);
    s->trust->begun = true;
out:
    return st;
}

ls_status ls_replica_pair_exchange(ls_step *step)
{
    return ls_replica_pair_holds(step) ? exchange(step, GRADIENT) : LS_OK;
}

void ls_replica_pair_update(ls_step *step)
{
    ls_step *s = step;
    const ls_run *run = s->args.run;
    const struct ls_replica_pair *t = s->trust;

    for (int i = 0; ls_replica_pair_holds(s) && i < t->n_kept; i++) {
        int64_t from = i == 0 ? 0 : t->end_span[i - 1], n = t->end_span[i] - from;
        if (n > 0)
            ls_optim_elements(run, s->args.kernels, s->args.stream,
                              &(ls_adamw){.w = s->state_memory[0],
                                          .m = place_of(s, FIRST, t->kept[i]),
                                          .v = ls_optim_keeps(run, SECOND)
                                                   ? place_of(s, SECOND, t->kept[i])
                                                   : NULL,
                                          .grad = place_of(s, GRADIENT, t->kept[i]),
                                          .spans = t->spans + from,
                                          .n_spans = n,
                                          .copy_type = LS_F32,
                                          .state = s->state,
                                          .result = s->norm});
    }
}
