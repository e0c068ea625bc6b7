/* pp_schedule_time.c -- a table of a pipeline, run by the clock.
 *
 * A rank computes in table order, and its port out sends in table order beside that. A message
 * starts when its content is made and both ports are free, keeps them for P(bytes) and is there
 * alpha later (comm/cost.h); receives wait in no order, as they do where they are posted early.
 * Messages are taken in the order in which they start, so the times follow from the table and the
 * costs alone. */
#include "layout/pp_schedule.h"

#include "base/mem.h"

typedef struct walker {
    const ls_pp_schedule *p;
    const ls_pp_schedule_costs *costs;
    ls_pp_schedule_times *times;
    int *work, *out;              /* [ranks]: where each stands in the table */
    double *free, *sends, *taken; /* [ranks]: from when on each has nothing to do */
    double *there[2];             /* [stages][micros]: when input and gradient are there; -1: not */
    double *made[2];              /* the same of what a stage makes of them */
} walker;

static int64_t cell(const walker *w, int stage, int micro)
{
    return (int64_t)stage * w->p->micros + micro;
}

static double cost_of(const walker *w, const ls_pp_schedule_op *op, int stage)
{
    const ls_pp_schedule_costs *c = w->costs;

    switch (op->what) {
    case LS_PP_SCHEDULE_FORWARD:
        return c->forward[stage];
    case LS_PP_SCHEDULE_BACKWARD:
        return c->backward[stage];
    case LS_PP_SCHEDULE_BACKWARD_INPUT:
        return c->backward[stage] - c->weight[stage];
    default:
        return c->weight[stage];
    }
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* When what an operation needs is there; -1: not known yet. */
static double needs(const walker *w, const ls_pp_schedule_op *op, int stage)
{
    bool back = op->what != LS_PP_SCHEDULE_FORWARD, end;

    if (op->what == LS_PP_SCHEDULE_BACKWARD_WEIGHT)
        return 0;
    end = back ? stage == ls_pp_schedule_stages(w->p) - 1 : stage == 0;
    if (end)
        return 0;
    if (w->p->ranks == 1)
        return w->made[back][cell(w, back ? stage + 1 : stage - 1, op->micro)];
    return w->there[back][cell(w, stage, op->micro)];
}

/* As far as a rank can get. */
static void compute(walker *w, int rank)
{
    const ls_pp_schedule *p = w->p;

    for (; w->work[rank] < p->first[rank + 1]; w->work[rank]++) {
        int i = w->work[rank];
        const ls_pp_schedule_op *op = &p->ops[i];
        int stage = op->chunk * p->ranks + rank;
        if (op->what >= LS_PP_SCHEDULE_SEND)
            continue;
        double from = needs(w, op, stage), takes = cost_of(w, op, stage);
        if (from < 0)
            break;
        w->times->start[i] = later(from, w->free[rank]);
        w->times->end[i] = w->free[rank] = w->times->start[i] + takes;
        w->times->busy[rank] += takes;
        if (op->what != LS_PP_SCHEDULE_BACKWARD_WEIGHT)
            w->made[op->what != LS_PP_SCHEDULE_FORWARD][cell(w, stage, op->micro)] = w->free[rank];
    }
}

/* The rank whose next message can start first, with everything computed that can be: nothing that
 * is not made yet could start before. -1: there is none. */
static int first_to_send(walker *w, double *start_out)
{
    const ls_pp_schedule *p = w->p;
    int best = -1;

    for (int r = 0; r < p->ranks; r++) {
        int i = w->out[r];
        while (i < p->first[r + 1] && p->ops[i].what != LS_PP_SCHEDULE_SEND)
            i++;
        w->out[r] = i;
        if (i == p->first[r + 1])
            continue;
        const ls_pp_schedule_op *op = &p->ops[i];
        double made = w->made[op->back][cell(w, op->chunk * p->ranks + r, op->micro)];
        double start = later(made, later(w->sends[r], w->taken[op->peer]));
        if (made >= 0 && (best < 0 || start < *start_out)) {
            best = r;
            *start_out = start;
        }
    }
    return best;
}

static void send(walker *w, int rank, double start)
{
    const ls_pp_schedule *p = w->p;
    const ls_cost_link *link = &w->costs->link;
    double port = link->message_ns + (double)w->costs->bytes * link->ns_per_byte;
    int i = w->out[rank]++;
    const ls_pp_schedule_op *op = &p->ops[i];
    int stage = op->chunk * p->ranks + rank;

    w->sends[rank] = w->taken[op->peer] = start + port;
    w->times->start[i] = start;
    w->times->end[i] = start + port + link->alpha_ns;
    w->there[op->back][cell(w, op->back ? stage - 1 : stage + 1, op->micro)] = w->times->end[i];
}

static void walk(walker *w)
{
    const ls_pp_schedule *p = w->p;
    double busy = 0, start;
    int rank;

    for (int r = 0; r < p->ranks; r++)
        compute(w, r);
    while ((rank = first_to_send(w, &start)) >= 0) {
        int to = p->ops[w->out[rank]].peer;
        send(w, rank, start);
        compute(w, to);
    }
    for (int r = 0; r < p->ranks; r++) {
        LS_BUG_IF(w->work[r] < p->first[r + 1], "rank %d of a pipeline that was proved waits", r);
        w->times->step = later(w->times->step, w->free[r]);
        busy += w->times->busy[r];
    }
    if (w->times->step > 0)
        w->times->bubble = 1 - busy / (w->times->step * p->ranks);
}

static ls_status take(walker *w, ls_pp_schedule_times *t)
{
    size_t n = (size_t)w->p->ranks, ops = (size_t)w->p->first[n];
    size_t cells = n * (size_t)w->p->chunks * (size_t)w->p->micros;

    t->start = ls_mem_array(ops, sizeof *t->start);
    t->end = ls_mem_array(ops, sizeof *t->end);
    t->busy = ls_mem_array(n, sizeof *t->busy);
    w->work = ls_mem_array(2 * n, sizeof *w->work);
    w->free = ls_mem_array(3 * n, sizeof *w->free);
    w->there[0] = ls_mem_array(4 * cells, sizeof *w->there[0]);
    if (!t->start || !t->end || !t->busy || !w->work || !w->free || !w->there[0])
        return LS_ENOMEM;
    w->out = w->work + n;
    w->sends = w->free + n;
    w->taken = w->sends + n;
    w->there[1] = w->there[0] + cells;
    w->made[0] = w->there[1] + cells;
    w->made[1] = w->made[0] + cells;
    for (size_t i = 0; i < 4 * cells; i++)
        w->there[0][i] = -1;
    for (size_t r = 0; r < n; r++)
        w->work[r] = w->out[r] = w->p->first[r];
    return LS_OK;
}

ls_status ls_pp_schedule_simulate(const ls_pp_schedule *pipeline, const ls_pp_schedule_costs *costs,
                                  ls_pp_schedule_times *times_out)
{
    ls_pp_schedule_times t = {.step = 0};
    walker w = {.p = pipeline, .costs = costs, .times = &t};
    ls_status st;

    LS_TRY(st, take(&w, &t), out);
    walk(&w);
    *times_out = t;
out:
    ls_mem_free(w.work);
    ls_mem_free(w.free);
    ls_mem_free(w.there[0]);
    if (st != LS_OK)
        ls_pp_schedule_times_release(&t);
    return st;
}

void ls_pp_schedule_times_release(ls_pp_schedule_times *times)
{
    ls_mem_free(times->start);
    ls_mem_free(times->end);
    ls_mem_free(times->busy);
    *times = (ls_pp_schedule_times){.step = 0};
}
