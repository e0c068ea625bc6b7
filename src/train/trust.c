/* trust.c -- see trust.h. */
#include "train/trust.h"

#include "base/mem.h"
#include "train/line_impl.h"

enum { GRADIENT, FIRST, SECOND }; /* moments by their numbers in the state */

static bool serves(const ls_step *s)
{
    return s->line && s->line->plan.ward >= 0;
}

bool ls_trust_holds(const ls_step *step)
{
    return serves(step) && step->line->trust.begun;
}

int64_t ls_trust_sent(const ls_step *step)
{
    return step && step->line ? step->line->trust.sent : 0;
}

static ls_pipe_range part_of(const ls_step *s, int line, int i)
{
    return ls_pipe_updated(&s->line->plan, s->line->plan.post, line, i, 0);
}

ls_pipe_range ls_trust_part(const ls_step *step, int i)
{
    return part_of(step, step->line->plan.ward, i);
}

/* Where element `first` of an array lies. */
static float *place_of(const ls_step *s, int what, int64_t first)
{
    return what == GRADIENT ? ls_line_gradient(s, first) : (float *)s->state_memory[what] + first;
}

/* One array: all messages on their way, then their end, also after a failure: then nobody writes
 * here any more. */
static ls_status exchange(ls_step *s, int what)
{
    ls_line *x = s->line;
    ls_comm_request requests[2 * LS_PIPE_CHUNKS];
    int n = 0;
    ls_status st = LS_OK;

    for (int i = 0; i < 2 * x->plan.chunks && st == LS_OK; i++) {
        bool sends = i % 2 == 0;
        ls_pipe_range r = part_of(s, sends ? x->plan.line : x->plan.ward, i / 2);
        float *at = place_of(s, what, r.first);
        const ls_coll coll = {.kind = sends ? LS_COLL_SEND : LS_COLL_RECV,
                              .type = LS_F32,
                              .count = r.count,
                              .in = at,
                              .out = at,
                              .peer = sends ? x->plan.buddy : x->plan.ward};
        if (r.count == 0)
            continue;
        st = ls_comm_start(x->across, &coll, &requests[n]);
        n += st == LS_OK;
        x->trust.sent += sends ? r.count * (int64_t)sizeof *at : 0;
    }
    for (int i = 0; i < n; i++) {
        ls_status ended = ls_comm_wait(x->across, requests[i], ls_line_deadline());
        st = st == LS_OK ? ended : st;
    }
    return st;
}

/* What the optimizer is told of the ward's part. */
static ls_status open_spans(ls_step *s)
{
    ls_line *x = s->line;
    int64_t n = 0;

    if (x->trust.spans)
        return LS_OK;
    x->trust.spans = ls_mem_array((size_t)ls_memory_spans(s->args.model), sizeof *x->trust.spans);
    if (!x->trust.spans)
        return LS_ENOMEM;
    for (int i = 0; i < x->plan.chunks; i++) {
        ls_pipe_range r = ls_trust_part(s, i);
        ls_mesh_part part = {.first = r.first, .count = r.count, .packed = r.first};
        n += ls_step_spans(s->args.run, s->args.model, part, false, !ls_step_divides(s),
                           x->trust.spans + n);
        x->trust.end_span[i] = n;
    }
    return LS_OK;
}

ls_status ls_trust_begin(ls_step *step)
{
    ls_step *s = step;
    ls_status st = LS_OK;

    if (!serves(s))
        return LS_OK;
    LS_TRY(st, open_spans(s), out);
    LS_TRY(st, exchange(s, FIRST), out);
    LS_TRY(st, exchange(s, SECOND), out);
    s->line->trust.begun = true;
out:
    return st;
}

ls_status ls_trust_exchange(ls_step *step)
{
    return ls_trust_holds(step) ? exchange(step, GRADIENT) : LS_OK;
}

void ls_trust_update(ls_step *step)
{
    ls_step *s = step;
    float *m = s->state_memory[FIRST], *v = s->state_memory[SECOND];

    for (int i = 0; ls_trust_holds(s) && i < s->line->plan.chunks; i++) {
        ls_pipe_range r = ls_trust_part(s, i);
        int64_t from = i == 0 ? 0 : s->line->trust.end_span[i - 1];
        int64_t n = s->line->trust.end_span[i] - from;
        if (n > 0)
            s->args.kernels->adamw(s->args.stream, &(ls_adamw){.w = s->state_memory[0],
                                                               .m = m + r.first,
                                                               .v = v + r.first,
                                                               .grad = ls_line_gradient(s, r.first),
                                                               .spans = s->line->trust.spans + from,
                                                               .n_spans = n,
                                                               .copy_type = LS_F32,
                                                               .state = s->state,
                                                               .result = s->norm});
    }
}
