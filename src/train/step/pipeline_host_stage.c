/* pipeline_host_stage.c -- a pipeline on a device with a memory of its own.
 *
 * The state lies in windows of the device (device.h), of which the parts of the own layers have
 * memory. What goes to other ranks passes through host memory (parallel/staging.h):
 *
 *   stream       F0 | copy of its output | F1 | copy ...            | B0 ...
 *   host         queues F0, its copy, F1; waits for the copy, begins the send; queues F1's copy ...
 *   other ranks                              F0's output ...
 *
 * A send begins after the next piece of work was queued, so that the device has work while the host
 * waits for the copy. Messages from one rank to another keep their order: sends wait in one list,
 * and a function that waits for anything begins them first.
 *
 * A place is received into when the copy that last read it is done, as its mark shows. */
#include "train/step/pipeline_impl.h"

#include "base/log.h"
#include "base/mem.h"

enum { PIECE_BYTES = LS_STAGE_PLAN_PIECE };

/* --- windows ---------------------------------------------------------------------------------- */

ls_status ls_pipeline_open_window(const ls_step *step, ls_window *window, int64_t bytes,
                                  const char *what)
{
    void *base;
    ls_status st;

    if (!step->discrete)
        return ls_window_open(window, bytes, what);
    st = ls_device_window_open(ls_step_device(step), bytes, what, &base);
    if (st == LS_OK)
        *window = (ls_window){.base = base, .bytes = bytes};
    return st;
}

ls_status ls_pipeline_back_window(const ls_step *step, const ls_window *window, ls_range range,
                                  int64_t size, const char *what)
{
    return step->discrete ? ls_device_window_back(ls_step_device(step), window->base,
                                                  range.first * size, range.count * size, what)
                          : LS_OK;
}

void ls_pipeline_close_window(const ls_step *step, ls_window *window)
{
    if (!step->discrete) {
        ls_window_close(window);
        return;
    }
    ls_device_window_close(ls_step_device(step), window->base);
    *window = (ls_window){.base = NULL};
}

/* --- opening ---------------------------------------------------------------------------------- */

static ls_status open_sum(ls_step *s, int i)
{
    ls_pipeline *x = s->pipeline;
    const ls_dp_args *dp = ls_dp_args_of(x->sums[i]);
    ls_status st = LS_OK;

    for (int b = 0; b < s->args.calls.buffers && st == LS_OK; b++) {
        ls_staging_memory *memory = &x->host_stage.memory[i][b];
        st = ls_staging_alloc(memory, dp->comm, ls_step_device(s),
                              ls_dp_elements(dp) * (int64_t)sizeof(float), "gradients on their way",
                              false);
        x->host_stage.sums[i][b] = memory->at;
    }
    return st;
}

ls_status ls_pipeline_open_host_stage(ls_step *s)
{
    ls_pipeline *x = s->pipeline;
    int places = x->plan.streams + x->plan.gradients;
    ls_status st = LS_OK;

    if (!s->discrete)
        return LS_OK;
    for (int c = 0; c < x->plan.chunks; c++) {
        x->host_stage.first_slot[c] = places;
        places += x->plan.chunk[c].slots;
    }
    if (!x->device.comm)
        LS_TRY(st,
               ls_staging_open(&x->host_stage.messages, x->pipeline_comm, s->args.stream, places,
                               x->gradient_bytes, "streams on their way"),
               out);
    LS_TRY(st,
           ls_staging_open(&x->host_stage.pieces, x->pipeline_comm, s->args.stream, 1, PIECE_BYTES,
                           "a part of the model on its way"),
           out);
    for (int i = 0; i <= LS_STAGE_PLAN_CHUNKS; i++)
        if (x->sums[i])
            LS_TRY(st, open_sum(s, i), out);
out:
    return st;
}

void ls_pipeline_close_host_stage(ls_step *step)
{
    ls_pipeline *x = step->pipeline;

    for (int i = 0; i <= LS_STAGE_PLAN_CHUNKS; i++)
        for (int b = 0; b < LS_ORDERED_ROOTS && x->sums[i]; b++)
            ls_staging_free(&x->host_stage.memory[i][b], ls_dp_args_of(x->sums[i])->comm,
                            ls_step_device(step));
    ls_staging_close(x->host_stage.messages);
    ls_staging_close(x->host_stage.pieces);
}

/* --- messages --------------------------------------------------------------------------------- */

ls_status ls_pipeline_run(const ls_step *step, ls_comm *comm, const ls_coll *coll)
{
    const ls_pipeline *x = step->pipeline;

    if (x->device.comm && ls_comm_ranks(comm) == x->plan.pp_ranks)
        return ls_pipeline_device_run(step, coll);
    return x->host_stage.pieces
               ? ls_staging_run(x->host_stage.pieces, comm, coll, ls_pipeline_deadline())
               : ls_comm_run(comm, coll, ls_pipeline_deadline());
}

ls_status ls_pipeline_room(ls_pipeline *pipeline, int place, void **memory_out)
{
    ls_status st = ls_staging_wait(pipeline->host_stage.messages, place, ls_pipeline_deadline());

    if (st == LS_OK)
        *memory_out = ls_staging_at(pipeline->host_stage.messages, place);
    return st;
}

void ls_pipeline_arrived(ls_pipeline *pipeline, int place, void *to, int64_t bytes)
{
    ls_staging_give(pipeline->host_stage.messages, place, 0, to, bytes);
    ls_staging_mark(pipeline->host_stage.messages, place);
}

void ls_pipeline_send_later(ls_pipeline *x, const ls_coll *coll, int place, int send)
{
    int i = x->host_stage.n_waiting++;

    ls_staging_take(x->host_stage.messages, place, 0, coll->in,
                    coll->count * ls_dtype_bytes(coll->type));
    ls_staging_mark(x->host_stage.messages, place);
    x->host_stage.waiting[i].coll = *coll;
    x->host_stage.waiting[i].coll.in = ls_staging_at(x->host_stage.messages, place);
    x->host_stage.waiting[i].place = place;
    x->host_stage.waiting[i].send = send;
}

ls_status ls_pipeline_begin_sends(ls_pipeline *x)
{
    int n = x->host_stage.n_waiting;
    ls_status st = LS_OK;

    x->host_stage.n_waiting = 0; /* even of those that fail */
    for (int i = 0; i < n; i++) {
        LS_TRY(st,
               ls_staging_wait(x->host_stage.messages, x->host_stage.waiting[i].place,
                               ls_pipeline_deadline()),
               out);
        LS_TRY(st,
               ls_comm_start(x->pipeline_comm, &x->host_stage.waiting[i].coll,
                             &x->sends[x->host_stage.waiting[i].send].request),
               out);
    }
out:
    return st;
}

/* --- sums over pipelines ---------------------------------------------------------------------- */

/* The elements of sum i: of a chunk, or of the head's gradient of a tied embedding. */
static ls_range summed(const ls_pipeline *x, int i)
{
    return i < x->plan.chunks ? x->plan.chunk[i].own : (ls_range){0, x->plan.tied.count};
}

static float *gradient_of(const ls_pipeline *x, int i, int buffer)
{
    return (i < x->plan.chunks ? ls_pipeline_grad(x, i, buffer) : ls_pipeline_head(x, buffer)) +
           summed(x, i).first;
}

void ls_pipeline_take_sum(ls_step *step, int i)
{
    const ls_pipeline *x = step->pipeline;
    int roots = step->now.ordered ? x->top[ls_min_i64(i, x->plan.chunks - 1)] : 1;

    for (int b = 0; b < roots; b++)
        ls_stream_copy_out(step->args.stream, x->host_stage.sums[i][b], gradient_of(x, i, b),
                           summed(x, i).count * (int64_t)sizeof(float));
}

ls_status ls_pipeline_bring_sum(ls_step *step, int i)
{
    const ls_pipeline *x = step->pipeline;
    ls_range all = summed(x, i), own = all;
    ls_status st;

    LS_TRY(st, ls_dp_sum_end(x->sums[i], x->host_stage.sums[i]), out);
    if (i < x->plan.chunks)
        own = ls_stage_plan_updated(&x->plan, x->plan.pp_rank, x->plan.pipeline, i, 0);
    ls_stream_copy_in(step->args.stream, gradient_of(x, i, 0) + own.first - all.first,
                      x->host_stage.sums[i][0] + own.first - all.first,
                      own.count * (int64_t)sizeof(float));
out:
    return st;
}
