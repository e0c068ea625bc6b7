/* param_server_session.c -- sync: ps: weights from servers, gradients to them, and the servers' update.
 *
 * Every rank computes the gradient of its part of each batch; the first ps.servers of them also serve,
 * each with a thread that keeps a part of the weights and moments (parallel/param_server.h).
 *
 *   step s:  begin   weights that the step needs, from the servers
 *            (train/step/step.c: forward, backward, norm of the own gradient)
 *            end     the gradient, to the servers
 *
 * With ps.staleness 0 a step is one update with the sum of all gradients, and loss and norm are those
 * of all. Otherwise a push is an update by itself, which counts as its share of the step, and loss and
 * norm are the first rank's own; ranks meet after each ps.meet steps, and at the end. What is validated
 * and saved are the servers' weights, which are gathered when all pushes have come.
 *
 * Two threads of a rank meet here: the one that trains calls everything but update(), which the
 * server's thread calls; they share only the session's constants. The first one reads and writes
 * moments only while no rank pushes: when a run starts, where ranks have met, and while it holds
 * updates back.
 *
 * An update by a share of a step (an asynchronous push) is one with lr times the share and each
 * beta to the power of it, for the mean gradient of that push: as many of them as make a whole step
 * move as far, and forget as much, as one step does. Two pushes of shares 3/4 and 1/4: lr * 3/4 and
 * lr * 1/4, beta1^(3/4) and beta1^(1/4): their product is beta1. Clipping goes by the norm of that
 * mean, which the worker knows. With staleness 0 the norm is of the sum, so servers add their squares. */
#include "train/sync/sync_modes.h"

#include <math.h>
#include "base/mem.h"
#include "optim/lr_schedule.h"
#include "optim/optim.h"

typedef struct ls_param_server_session {
    ls_param_server *ps;
    ls_mesh_part own;  /* of the weights; 0 elements: this rank does not serve */
    ls_device *device; /* of the server's thread: one thread */
    ls_stream *stream;
    float *moments[2]; /* owned, as all of these */
    ls_optimizer_span *spans;
    int64_t n_spans;
    float *partials;   /* squares of all norm blocks */
    double steps;      /* that the own part has learned from */
    int64_t sequences; /* of the batch that are this rank's */
    double share;      /* of the last batch's targets */
    int64_t whole;     /* after this step all weights were here; -1: never */
} ls_param_server_session;

static bool together(const ls_session *s)
{
    return s->run->ps.staleness == 0;
}

/* --- the server's thread -----------------------------------------------------------------------
 */

/* The norm of the sum of all gradients, of which each server has a part. */
static ls_status find_norm(const ls_session *s, const ls_param_server_update *u,
                           const ls_step_state *state, ls_norm_result *norm_out)
{
    ls_param_server_session *c = s->sync.param_server;
    int64_t n = s->model.trained, blocks = (n + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;
    ls_norm2 part = {.x = u->grad,
                     .partials = c->partials + c->own.first / LS_NORM_BLOCK,
                     .n = c->own.count,
                     .state = state,
                     .result = norm_out,
                     .part = LS_NORM_SQUARES};
    ls_status st;

    memset(c->partials, 0, (size_t)blocks * sizeof *c->partials);
    if (part.n > 0)
        s->kernels->norm2(c->stream, &part);
    st = ls_param_server_numbers(c->ps, LS_F32, c->partials, blocks);
    part.partials = c->partials;
    part.n = n;
    part.part = LS_NORM_JOIN;
    if (st == LS_OK)
        s->kernels->norm2(c->stream, &part);
    return st;
}

static ls_status update(void *context, const ls_param_server_update *u,
                        ls_param_server_result *result_out)
{
    const ls_session *s = context;
    ls_param_server_session *c = s->sync.param_server;
    double lr = ls_lr_schedule_lr(s->run, u->step, s->progress.total_steps);
    ls_norm_result norm = {.factor = (float)u->scale, .bad_block = -1};
    ls_step_state state;
    ls_status st = LS_OK;

    /* Where all make a step together its number is the count of steps, even after a resume. */
    c->steps = u->worker < 0 ? (double)(u->step + 1) : c->steps + u->share;
    state = ls_optim_numbers(s->run, c->steps, u->share, lr);
    if (u->worker < 0)
        LS_TRY(st, find_norm(s, u, &state, &norm), out);
    if (c->n_spans > 0)
        ls_optim_elements(s->run, s->kernels, c->stream,
                          &(ls_optimizer_update){.w = u->w,
                                                 .m = c->moments[0],
                                                 .v = c->moments[1],
                                                 .grad = u->grad,
                                                 .spans = c->spans,
                                                 .n_spans = c->n_spans,
                                                 .state = &state,
                                                 .result = &norm});
    result_out->norm = (double)norm.norm;
    result_out->finite = norm.bad_block < 0;
out:
    return st;
}

/* --- opening, starting -------------------------------------------------------------------------
 */

static ls_status open_server(ls_session *s)
{
    ls_param_server_session *c = s->sync.param_server;
    int64_t blocks = (s->model.trained + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;
    ls_status st = LS_OK;

    LS_TRY(st,
           ls_device_open_with(&c->device,
                               &(ls_device_args){.kind = "cpu", .threads = 1, .unpinned = true}),
           out);
    LS_TRY(st, ls_stream_create(&c->stream, c->device), out);
    c->spans = ls_mem_array((size_t)ls_memory_spans(&s->model), sizeof *c->spans);
    c->partials = ls_mem_array((size_t)blocks, sizeof *c->partials);
    if (!c->spans || !c->partials) {
        st = ls_fail(LS_ENOMEM, "no memory for the tables of a parameter server");
        goto out;
    }
    c->n_spans = ls_optim_spans(s->run, &s->model, c->own, true, false, c->spans);
out:
    return st;
}

static ls_status open_mode(ls_session *s)
{
    ls_param_server_args args = ls_memory_ps(s->run, &s->model, &s->mesh);
    ls_param_server_session *c = ls_mem_alloc(sizeof *c);
    void *memory;
    ls_calls calls;
    ls_status st = LS_OK;

    if (!c)
        return LS_ENOMEM;
    s->sync.param_server = c;
    ls_calls_plan(s->run, &s->mesh, &calls);
    *c = (ls_param_server_session){.own =
                                       ls_mesh_part_of(&s->mesh, s->model.trained, 0, s->mesh.rank),
                                   .sequences = calls.sequences,
                                   .whole = -1};
    for (int k = 0; k < ls_optim_kinds(s->run) - 1; k++) {
        LS_TRY(st,
               ls_device_alloc(s->device, ls_max_i64(1, c->own.count) * (int64_t)sizeof(float),
                               "moments of a server", &memory),
               out);
        c->moments[k] = memory;
    }
    args.comm = s->args.comm;
    args.update = update;
    args.context = s;
    if (s->mesh.rank < s->mesh.servers)
        LS_TRY(st, open_server(s), out);
    LS_TRY(st, ls_param_server_open(&c->ps, &args), out);
out:
    return st;
}

static void close_mode(ls_session *session)
{
    ls_param_server_session *c = session->sync.param_server;

    if (!c)
        return;
    ls_param_server_close(c->ps);
    ls_stream_free(c->stream);
    ls_device_close(c->device);
    for (int k = 0; k < 2; k++)
        ls_device_free(session->device, c->moments[k]);
    ls_mem_free(c->spans);
    ls_mem_free(c->partials);
    ls_mem_free(c);
    session->sync.param_server = NULL;
}

/* What is saved are the moments that servers have. */
static void live(const ls_session *session, void *arrays[3])
{
    arrays[1] = session->sync.param_server->moments[0];
    arrays[2] = session->sync.param_server->moments[1];
}

static ls_status start(ls_session *s)
{
    ls_param_server_session *c = s->sync.param_server;
    const float *w = ls_step_state_arrays(s->step).w;

    LS_BUG_IF(s->model.flat != s->model.trained, "some weights are frozen");
    if (c->own.count > 0)
        memcpy(ls_param_server_own(c->ps), w + c->own.first, (size_t)c->own.count * sizeof *w);
    c->steps = (double)s->step_number;
    c->whole = s->step_number;
    return ls_param_server_start(c->ps, s->step_number);
}

/* --- steps -------------------------------------------------------------------------------------
 */

static ls_status begin(ls_session *s, ls_step_batch *batch, ls_step_clock *clock)
{
    ls_param_server_session *c = s->sync.param_server;
    int64_t tokens = c->sequences * s->model.shape.T;
    ls_status st = LS_OK;

    c->share =
        (double)ls_corpus_counted(batch->targets, tokens) / (double)ls_max_i64(1, batch->counted);
    ls_param_server_touch(c->ps, batch->tokens, tokens);
    ls_step_clock_lap(clock, LS_TIME_DATA);
    if (c->whole == s->step_number) /* nothing has changed since */
        goto out;
    LS_TRY(st, ls_param_server_pull(c->ps, s->step_number, false, ls_step_state_arrays(s->step).w),
           out);
    st = ls_step_weights_changed(s->step);
out:
    ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
    return st;
}

/* What all ranks have brought, as one process would report it. */
static ls_status take_result(const ls_session *s, const ls_param_server_result *all,
                             ls_step_result *result)
{
    result->loss = all->loss;
    result->grad_norm = all->norm;
    result->finite = all->finite;
    if (all->finite || all->blamed || s->run->train.nonfinite != LS_NONFINITE_STOP)
        return LS_OK;
    ls_fail(LS_ENUMERIC, "the sum of all ranks' gradients of step %lld is too large for its norm",
            (long long)s->step_number + 1);
    ls_err_hint("Training diverged: lower train.lr or lengthen train.warmup; train.nonfinite: skip "
                "drops such "
                "steps.");
    return LS_ENUMERIC;
}

static ls_status end(ls_session *s, ls_step_result *result, ls_step_clock *clock)
{
    ls_param_server_session *c = s->sync.param_server;
    double clip = s->run->train.clip;
    ls_param_server_push push = {.step = s->step_number,
                                 .grad = ls_step_gradient(s->step),
                                 .loss = result->loss,
                                 .share = c->share,
                                 .bad = !result->finite};
    ls_param_server_result all;
    ls_status st = LS_OK;

    /* The gradient is a part of the batch's mean; here it becomes the mean of its own targets. A
     * rank without any has nothing to push, and no loss: NaN. */
    if (!together(s)) {
        result->grad_norm /= c->share;
        result->loss /= c->share;
        push.scale =
            (clip > 0 && result->grad_norm > clip ? clip / result->grad_norm : 1) / c->share;
        push.bad |= c->share <= 0;
    }
    LS_TRY(st, ls_param_server_push_step(c->ps, &push, &all), out);
    if (together(s))
        st = take_result(s, &all, result);
out:
    ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
    return st;
}

static bool meets(const ls_session *s)
{
    return together(s) || s->step_number % s->run->ps.meet == 0 ||
           (s->progress.total_steps && s->step_number >= s->progress.total_steps);
}

/* All weights, once every rank has pushed the steps that were done; by all ranks. */
static ls_status gather(ls_session *s)
{
    ls_param_server_session *c = s->sync.param_server;
    ls_status st = LS_OK;

    if (c->whole == s->step_number)
        goto out;
    LS_TRY(st, ls_param_server_pull(c->ps, s->step_number, true, ls_step_state_arrays(s->step).w),
           out);
    LS_TRY(st, ls_step_weights_changed(s->step), out);
    c->whole = s->step_number;
out:
    return st;
}

static ls_status exchange(ls_session *s, ls_step_result *result, ls_step_clock *clock)
{
    double share = result->finite ? s->sync.param_server->share : 0;
    double mean[2] = {share > 0 ? result->loss * share : 0, share};
    ls_status st = LS_OK;

    if (together(s) || !meets(s))
        return LS_OK;
    /* All pushes have come: the next exchange must not wait for a rank that is far behind. */
    LS_TRY(st, gather(s), out);
    LS_TRY(st, ls_dp_sum_numbers(s->dp, LS_F64, mean, 2), out);
    if (mean[1] > 0)
        s->progress.loss = result->loss = mean[0] / mean[1];
out:
    ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
    return st;
}

static ls_status save_begin(ls_session *session)
{
    ls_status st = gather(session);

    if (st == LS_OK)
        ls_param_server_hold(session->sync.param_server->ps);
    return st;
}

static ls_status save_end(ls_session *session, ls_status result)
{
    ls_param_server_release(session->sync.param_server->ps);
    /* No rank pushes before the moments of all servers were read. */
    return result != LS_OK ? result : ls_dp_sum_numbers(session->dp, LS_F64, &(double){0}, 1);
}

static ls_status leave(ls_session *session)
{
    return ls_param_server_end(session->sync.param_server->ps);
}

static void count(const ls_session *session, ls_event_summary *summary)
{
    ls_param_server_counts n = ls_param_server_counted(session->sync.param_server->ps);

    summary->pushes = n.pushes;
    summary->push_bytes = n.push_bytes + n.pull_bytes + n.answer_bytes;
    summary->ahead = n.ahead;
}

/* Validation reads all weights; afterwards they are what the next step pulls anyway. */
static ls_status show(ls_session *session, bool shared)
{
    return shared ? gather(session) : LS_OK;
}

const ls_sync_mode ls_sync_param_server = {.open = open_mode,
                                           .close = close_mode,
                                           .start = start,
                                           .begin = begin,
                                           .end = end,
                                           .exchange = exchange,
                                           .meets = meets,
                                           .show = show,
                                           .save_begin = save_begin,
                                           .save_end = save_end,
                                           .live = live,
                                           .finish = gather,
                                           .leave = leave,
                                           .count = count};
