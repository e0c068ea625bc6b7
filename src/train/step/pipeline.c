/* pipeline.c -- a step of a pipeline (mesh.pp): this stage rank's column of the schedule, operation
 * by operation (layout/pp_schedule.h).
 *
 *   RECV      begins at its place in the table, or earlier when a buffer is free; the operation
 *             that needs the data waits for it
 *   FORWARD   of a micro-batch through a chunk of layers, into a slot of the chunk's activations
 *   SEND      begins at its place, and is waited for when its buffer is needed again
 *   BACKWARD  makes the gradient of the input in the buffer in which that of the output came; the
 *             gradients of weights are summed along the tree over leaves (pipeline_sum.c)
 *   INPUT     the first half of a backward (pass.h), after which that gradient can leave
 *   WEIGHT    the second half; activations and the input are kept until then
 *
 * 2 stage ranks, one pipeline, 1F1B, 3 micro-batches. < and > begin a receive and a send, [ ]
 * waits:
 *
 *   rank 0   F0 >  F1 >         [B0] B0  F2 >  [B1] B1  [B2] B2
 *   rank 1     <  [F0] F0 B0 >  [F1] F1 B1 >  [F2] F2 B2 >
 *
 *   F0 > carries the output of rank 0's layers for micro-batch 0; B0 > carries its gradient back.
 *
 * Order. The messages from one rank to another have one order, in which both ends begin them: that
 * of the table. The proof that a table is free of deadlock assumes that a send blocks at its place
 * until it is received. Here sends block later or never, and receives begin earlier or, beyond
 * LS_PIPELINE_POSTED, when they are needed. Micro-batches go backward in ascending order in every
 * chunk, so that its stack of gradients is that of a process alone (layout/calls.h), and so are the
 * bits.
 *
 * After the last backward of a chunk its sum over pipelines begins, the last chunk first. With ZeRO
 * 2 and 3 gradients are summed in every backward, and with ZeRO 3 weights come in every operation
 * (pipeline_zero.c). On a device with a memory of its own messages pass through host memory
 * (pipeline_host_stage.c), or go from device to device (pipeline_device.c). */
#include "train/step/pipeline_impl.h"

#include "base/fault.h"

static ls_pipeline_item *item_of(const ls_pipeline *x, const ls_pp_schedule_op *op)
{
    return &x->items[op->chunk * x->most + op->micro];
}

static int stage_of(const ls_pipeline *x, int chunk)
{
    return chunk * x->plan.pp_ranks + x->plan.pp_rank;
}

static char *stream_at(const ls_pipeline *x, int i)
{
    return x->streams + i * x->stream_bytes;
}

static char *gradient_at(const ls_pipeline *x, int i)
{
    return x->gradients + i * x->gradient_bytes;
}

/* Elements of a micro-batch's stream, or of its gradient. */
static int64_t count_of(const ls_step *s, int micro, bool back)
{
    const ls_model *model = s->args.model;
    int64_t tokens = s->pipeline->parts[micro].count * s->now.leaf * ls_step_tokens(s);
    int64_t stream = ls_pass_stream(model, tokens);

    return back ? stream * ls_pass_border(s->args.model) : stream;
}

/* --- messages --------------------------------------------------------------------------------- */

static ls_status wait_send(const ls_step *s, uint64_t number)
{
    ls_pipeline *x = s->pipeline;
    int at = (int)(number % LS_PIPELINE_SENDS);
    ls_status st;

    if (number == 0 || x->sends[at].number != number)
        return LS_OK;
    x->sends[at].number = 0;
    if (x->device.comm) {
        ls_pipeline_device_sent(s, at);
        return LS_OK;
    }
    st = ls_pipeline_begin_sends(x);
    return st != LS_OK
               ? st
               : ls_comm_wait(x->pipeline_comm, x->sends[at].request, ls_pipeline_deadline());
}

/* place: where it passes through host memory, if it does. */
static ls_status start_send(ls_step *s, const ls_pp_schedule_op *op, const void *from, int place,
                            uint64_t *number_out)
{
    ls_pipeline *x = s->pipeline;
    uint64_t number = ++x->sends_begun;
    int at = (int)(number % LS_PIPELINE_SENDS);
    const ls_coll coll = {.kind = LS_COLL_SEND,
                          .type = s->type,
                          .count = count_of(s, op->micro, op->back),
                          .in = from,
                          .peer = op->peer};
    ls_status st;

    LS_TRY(st, wait_send(s, x->sends[at].number), out);
    if (x->device.comm)
        LS_TRY(st, ls_pipeline_device_send(s, &coll, at), out);
    else if (x->host_stage.messages)
        ls_pipeline_send_later(x, &coll, place, at);
    else
        LS_TRY(st, ls_comm_start(x->pipeline_comm, &coll, &x->sends[at].request), out);
    x->sends[at].number = number;
    x->sent_bytes += coll.count * ls_dtype_bytes(coll.type);
    *number_out = number;
out:
    return st;
}

/* A free buffer for a stream; -1: none. */
static int free_stream(const ls_pipeline *x)
{
    for (int i = 0; i < x->plan.streams; i++)
        if (!x->stream_used[i])
            return i;
    return -1;
}

/* Likewise for a gradient; wait: also one that has to be sent first. */
static ls_status free_gradient(const ls_step *s, bool wait, int *buffer_out)
{
    ls_pipeline *x = s->pipeline;
    int first = -1;
    ls_status st;

    *buffer_out = -1;
    for (int i = 0; i < x->plan.gradients; i++) {
        const ls_pipeline_buffer *b = &x->gradient[i];
        if (!b->used) {
            *buffer_out = i;
            return LS_OK;
        }
        if (b->sent > 0 && (first < 0 || b->sent < x->gradient[first].sent))
            first = i;
    }
    if (first < 0)
        return LS_OK;
    if (!wait && x->host_stage.n_waiting > 0)
        return LS_OK; /* it may not have been begun */
    if (!wait) {      /* has the oldest gone by now? */
        int at = (int)(x->gradient[first].sent % LS_PIPELINE_SENDS);
        bool done = x->sends[at].number != x->gradient[first].sent;
        if (!done)
            LS_TRY(st, ls_comm_test(x->pipeline_comm, x->sends[at].request, &done), out);
        if (!done)
            return LS_OK;
        if (x->sends[at].number == x->gradient[first].sent)
            x->sends[at].number = 0; /* it is not waited for again */
    }
    LS_TRY(st, wait_send(s, x->gradient[first].sent), out);
    x->gradient[first] = (ls_pipeline_buffer){.used = false};
    *buffer_out = first;
out:
    return st;
}

/* Where a stream or a gradient is computed with. */
static void *buffer_at(const ls_pipeline *x, int buffer, bool back)
{
    return back ? gradient_at(x, buffer) : stream_at(x, buffer);
}

static int place_at(const ls_pipeline *x, int buffer, bool back)
{
    return back ? ls_pipeline_gradient_place(x, buffer) : buffer;
}

/* Begin a receive; must: its place in the table has come. */
static ls_status begin_receive(ls_step *s, const ls_pp_schedule_op *op, bool must, bool *posted_out)
{
    ls_pipeline *x = s->pipeline;
    ls_pipeline_item *item = item_of(x, op);
    void *memory;
    ls_coll coll = {.kind = LS_COLL_RECV,
                    .type = s->type,
                    .count = count_of(s, op->micro, op->back),
                    .peer = op->peer};
    int buffer = -1;
    ls_status st = LS_OK;

    *posted_out = false;
    if (op->back)
        LS_TRY(st, free_gradient(s, must, &buffer), out);
    else
        buffer = free_stream(x);
    LS_BUG_IF(must && buffer < 0, "no buffer for the %s of micro-batch %d",
              op->back ? "gradient" : "stream", op->micro);
    if (buffer < 0)
        goto out;
    if (op->back) {
        item->gradient = buffer;
        x->gradient[buffer] = (ls_pipeline_buffer){.used = true};
    } else {
        item->stream = buffer;
        x->stream_used[buffer] = true;
    }
    memory = buffer_at(x, buffer, op->back);
    if (x->host_stage.messages)
        LS_TRY(st, ls_pipeline_room(x, place_at(x, buffer, op->back), &memory), out);
    coll.out = memory;
    LS_TRY(st,
           x->device.comm ? ls_pipeline_device_receive(s, &coll, place_at(x, buffer, op->back))
                          : ls_comm_start(x->pipeline_comm, &coll, &item->in[op->back]),
           out);
    x->posted++;
    *posted_out = true;
out:
    return st;
}

/* The receives up to operation `until`, then some of those that follow while there is room. */
static ls_status begin_receives(ls_step *s, int until)
{
    ls_pipeline *x = s->pipeline;
    int end = x->plan.table.first[x->plan.pp_rank + 1];
    bool posted = true;
    ls_status st = LS_OK;

    for (; x->next_recv < end && posted && st == LS_OK; x->next_recv += posted) {
        const ls_pp_schedule_op *op = &x->plan.table.ops[x->next_recv];
        bool must = x->next_recv <= until;
        if (op->what != LS_PP_SCHEDULE_RECV)
            continue;
        /* In the last stage backward takes buffers for gradients too: those of the table
         * suffice. */
        if (!must && (x->device.comm || x->posted >= LS_PIPELINE_EARLY ||
                      (op->back && ls_stage_plan_is_last(&x->plan))))
            break;
        st = begin_receive(s, op, must, &posted);
    }
    return st;
}

/* The place of the receive of a micro-batch's stream or gradient, not before `from`. */
static int receive_of(const ls_pipeline *x, int from, const ls_pp_schedule_op *op, bool back)
{
    const ls_pp_schedule_op *ops = x->plan.table.ops;

    while (ops[from].what != LS_PP_SCHEDULE_RECV || ops[from].micro != op->micro ||
           ops[from].chunk != op->chunk || ops[from].back != back)
        from--;
    return from;
}

/* Wait for the input of operation i. */
static ls_status wait_input(ls_step *s, int i, bool back, ls_step_clock *clock)
{
    ls_pipeline *x = s->pipeline;
    const ls_pp_schedule_op *op = &x->plan.table.ops[i];
    const ls_pipeline_item *item = item_of(x, op);
    ls_status st;

    LS_TRY(st, begin_receives(s, receive_of(x, i, op, back)), out);
    LS_TRY(st, ls_pipeline_begin_sends(x), out); /* the rank that sends may wait for them */
    int buffer = back ? item->gradient : item->stream;
    if (x->device.comm)
        ls_pipeline_device_arrived(s, place_at(x, buffer, back));
    else
        LS_TRY(st, ls_comm_wait(x->pipeline_comm, item->in[back], ls_pipeline_deadline()), out);
    x->posted--;
    if (x->host_stage.messages)
        ls_pipeline_arrived(x, place_at(x, buffer, back), buffer_at(x, buffer, back),
                            count_of(s, op->micro, back) * ls_dtype_bytes(s->type));
out:
    ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
    return st;
}

/* --- work ------------------------------------------------------------------------------------- */

/* Whether this pipeline has no sequences in a micro-batch, in which others that divide experts, or
 * gradients, with it have some. It is sent and received as others are, with nothing in it. */
static bool is_empty(const ls_pipeline *x, const ls_pp_schedule_op *op)
{
    return x->parts[op->micro].count == 0;
}

/* The call of a micro-batch in a chunk; its gradient goes on top of the chunk's stack. */
static ls_pass_call call_of(ls_step *s, const ls_pp_schedule_op *op)
{
    ls_pipeline *x = s->pipeline;
    const ls_pipeline_item *item = item_of(x, op);
    bool late = op->what == LS_PP_SCHEDULE_BACKWARD_WEIGHT;
    int buffer = !s->now.ordered ? 0 : late ? x->late_top[op->chunk] : x->top[op->chunk];
    ls_pass_call call = ls_step_call(s, &x->parts[op->micro], 0);

    s->pass = x->passes[op->chunk];
    if (x->plan.zero == 3 && (!late || ls_pipeline_reads_late(s)))
        call.need = ls_pipeline_need;
    call.grad = ls_pipeline_grad(x, op->chunk, buffer);
    call.ordered = true; /* the ends of a tied embedding are not on one rank */
    call.tied = ls_pipeline_head(x, buffer);
    call.slot = item->slot;
    call.late = item->late;
    call.in = stage_of(x, op->chunk) > 0 ? stream_at(x, item->stream) : NULL;
    call.accumulate |= is_empty(x, op);
    if (ls_pipeline_is_parted(x)) {
        call.grad = (float *)(void *)x->flow.windows[item->late].base;
        call.tied = (float *)(void *)x->flow.head.base;
        call.accumulate = false;
        call.complete = late ? NULL : ls_step_bucket_ready;
    }
    return call;
}

/* The first of these that is free, from now on used: the table has as many as it takes. */
static int free_of(bool *used)
{
    int i = 0;

    while (used[i])
        i++;
    used[i] = true;
    return i;
}

/* An operation with an empty micro-batch: this rank's experts serve the other pipelines, in forward
 * and in the first half of backward, or it takes part in their exchanges. */
static void serve(ls_step *s, const ls_pp_schedule_op *op, const ls_pass_call *call)
{
    if (ls_step_is_ep(s) && op->what != LS_PP_SCHEDULE_BACKWARD_WEIGHT)
        ls_pass_serve(s->pass, call, op->what != LS_PP_SCHEDULE_FORWARD);
    else
        ls_pipeline_walk(s, op->chunk, op->what);
}

static ls_status forward(ls_step *s, int i, ls_step_state *host_state, ls_step_clock *clock)
{
    ls_pipeline *x = s->pipeline;
    const ls_pp_schedule_op *op = &x->plan.table.ops[i];
    ls_pipeline_item *item = item_of(x, op);
    ls_status st = LS_OK;

    if (stage_of(x, op->chunk) > 0)
        LS_TRY(st, wait_input(s, i, false, clock), out);
    LS_TRY(st, begin_receives(s, -1), out); /* they come while this rank computes */
    item->slot = free_of(x->slots + op->chunk * x->most);
    ls_pass_call call = call_of(s, op);
    ls_pipeline_fetch_begin(s, op->chunk, op->what);
    if (is_empty(x, op))
        serve(s, op, &call);
    else
        ls_step_forward(s, &x->parts[op->micro], &call, host_state);
    ls_step_lap(s, clock, LS_TIME_FORWARD);
    LS_TRY(st, ls_pipeline_fetch_end(s), out);
    (void)ls_fault_at(LS_FAULT_AT_BACKWARD);
out:
    return st;
}

/* All gradients of a micro-batch are made. */
static ls_status finish(ls_step *s, const ls_pp_schedule_op *op)
{
    ls_pipeline *x = s->pipeline;
    const ls_pipeline_item *item = item_of(x, op);

    x->slots[op->chunk * x->most + item->slot] = false;
    if (stage_of(x, op->chunk) > 0)
        x->stream_used[item->stream] = false;
    return --x->left[op->chunk] == 0 ? ls_pipeline_start_sums(s) : LS_OK;
}

static ls_status backward(ls_step *s, int i, ls_step_clock *clock)
{
    ls_pipeline *x = s->pipeline;
    const ls_pp_schedule_op *op = &x->plan.table.ops[i];
    ls_pipeline_item *item = item_of(x, op);
    bool half = op->what == LS_PP_SCHEDULE_BACKWARD_INPUT;
    ls_status st = LS_OK;

    if (ls_pipeline_is_last_stage(x, op->chunk)) {
        LS_TRY(st, free_gradient(s, true, &item->gradient), out);
        x->gradient[item->gradient] = (ls_pipeline_buffer){.used = true};
    } else {
        LS_TRY(st, wait_input(s, i, true, clock), out);
        LS_TRY(st, wait_send(s, item->sent), out);
    }
    LS_TRY(st, begin_receives(s, -1), out);
    if (half)
        item->late = free_of(x->late + op->chunk * x->most);
    ls_pass_call call = call_of(s, op);
    call.dstream = gradient_at(x, item->gradient);
    LS_TRY(st, ls_pipeline_give_begin(s, op, item->late), out);
    ls_pipeline_fetch_begin(s, op->chunk, op->what);
    if (!is_empty(x, op))
        ls_step_send_scalars(s, x->parts[op->micro].number);
    if (is_empty(x, op))
        serve(s, op, &call);
    else if (half)
        ls_pass_backward_first(s->pass, &call);
    else
        ls_pass_backward(s->pass, &call);
    ls_step_lap(s, clock, LS_TIME_BACKWARD);
    LS_TRY(st, ls_pipeline_fetch_end(s), out);
    ls_pipeline_merge(s, op);
    ls_step_clock_lap(clock, LS_TIME_REDUCE);
    if (stage_of(x, op->chunk) == 0)
        x->gradient[item->gradient] = (ls_pipeline_buffer){.used = false};
    if (!half)
        st = finish(s, op);
out:
    return st;
}

/* The second half of a backward: no rank waits for it, and it waits for none. */
static ls_status backward_second(ls_step *s, int i, ls_step_clock *clock)
{
    ls_pipeline *x = s->pipeline;
    const ls_pp_schedule_op *op = &x->plan.table.ops[i];
    ls_pass_call call = call_of(s, op);
    ls_status st;

    LS_TRY(st, begin_receives(s, -1), out);
    LS_TRY(st, ls_pipeline_give_begin(s, op, call.late), out);
    ls_pipeline_fetch_begin(s, op->chunk, op->what);
    if (is_empty(x, op)) {
        serve(s, op, &call);
    } else {
        ls_step_send_scalars(s, x->parts[op->micro].number);
        ls_pass_backward_second(s->pass, &call);
    }
    if (ls_pipeline_is_parted(x))
        ls_step_bucket_ready(s, 0);
    ls_step_lap(s, clock, LS_TIME_BACKWARD);
    LS_TRY(st, ls_pipeline_fetch_end(s), out);
    ls_pipeline_merge(s, op);
    ls_step_clock_lap(clock, LS_TIME_REDUCE);
    x->late[op->chunk * x->most + call.late] = false;
    st = finish(s, op);
out:
    return st;
}

static ls_status send(ls_step *s, const ls_pp_schedule_op *op)
{
    ls_pipeline *x = s->pipeline;
    ls_pipeline_item *item = item_of(x, op);

    if (op->back)
        return start_send(s, op, gradient_at(x, item->gradient),
                          ls_pipeline_gradient_place(x, item->gradient),
                          &x->gradient[item->gradient].sent);
    const void *in = stage_of(x, op->chunk) > 0 ? stream_at(x, item->stream) : NULL;
    return start_send(s, op, ls_pass_out(x->passes[op->chunk], item->slot, in),
                      ls_pipeline_slot_place(x, op->chunk, item->slot), &item->sent);
}

static ls_status operate(ls_step *s, int i, ls_step_state *host_state, ls_step_clock *clock)
{
    ls_pipeline *x = s->pipeline;
    const ls_pp_schedule_op *op = &x->plan.table.ops[i];

    switch (op->what) {
    case LS_PP_SCHEDULE_FORWARD:
        return forward(s, i, host_state, clock);
    case LS_PP_SCHEDULE_BACKWARD:
    case LS_PP_SCHEDULE_BACKWARD_INPUT:
        return backward(s, i, clock);
    case LS_PP_SCHEDULE_BACKWARD_WEIGHT:
        return backward_second(s, i, clock);
    case LS_PP_SCHEDULE_SEND:
        return send(s, op);
    case LS_PP_SCHEDULE_RECV:
        return x->device.comm || x->posted < LS_PIPELINE_POSTED ? begin_receives(s, i) : LS_OK;
    }
    return LS_OK;
}

/* The micro-batches of a step, none of which is on its way. */
static void begin_step(ls_step *s)
{
    ls_pipeline *x = s->pipeline;
    ls_step_leaves p = {.count = 0};

    for (int micro = 0; micro < ls_pipeline_micros(s); micro++) {
        LS_BUG_IF(micro >= x->most, "%d micro-batches where %lld were planned", micro + 1,
                  (long long)x->most);
        bool own = micro < s->now.calls && ls_step_next(s, &p);
        x->parts[micro] = own ? p : (ls_step_leaves){.number = micro, .first = s->now.first};
        for (int c = 0; c < x->plan.chunks; c++)
            x->items[c * x->most + micro] = (ls_pipeline_item){.slot = -1, .stream = -1};
    }
    for (int c = 0; c < x->plan.chunks; c++) {
        x->top[c] = x->late_top[c] = 0;
        x->left[c] = (int)ls_pipeline_micros(s);
    }
    x->next_recv = x->plan.table.first[x->plan.pp_rank];
    x->next_sum = x->plan.chunks - 1;
    x->host_stage.n_waiting = 0;
}

/* A pipeline without leaves: zeros in place of gradients, to which its experts may add. */
static void clear_gradients(ls_step *s)
{
    ls_pipeline *x = s->pipeline;

    if (ls_pipeline_is_parted(x)) /* the windows are zeros already */
        return;
    for (int c = 0; c < x->plan.chunks && !s->now.ordered; c++)
        s->args.kernels->fill(
            s->args.stream, &(ls_fill){.x = ls_pipeline_grad(x, c, 0) + x->plan.chunk[c].own.first,
                                       .n = x->plan.chunk[c].own.count});
    if (!s->now.ordered && ls_pipeline_is_tied(x) && ls_stage_plan_is_last(&x->plan))
        s->args.kernels->fill(s->args.stream,
                              &(ls_fill){.x = ls_pipeline_head(x, 0), .n = x->plan.tied.count});
}

static ls_status gradients(ls_step *s, ls_step_state *host_state, ls_step_clock *clock)
{
    ls_pipeline *x = s->pipeline;
    const ls_pp_schedule *table = &x->plan.table;
    int end = ls_pipeline_micros(s) > 0 ? table->first[x->plan.pp_rank + 1] : 0;
    ls_status st = LS_OK;

    begin_step(s);
    if (x->device.comm)
        ls_device_comm_set_step(x->device.comm, s->done + 1);
    if (s->now.calls == 0)
        clear_gradients(s);
    if (ls_pipeline_micros(s) == 0)
        LS_TRY(st, ls_pipeline_start_sums(s), out);
    for (int i = table->first[x->plan.pp_rank]; i < end; i++) {
        ls_pp_schedule_what what = table->ops[i].what;
        LS_TRY(st, operate(s, i, host_state, clock), out);
        if (what != LS_PP_SCHEDULE_SEND && what != LS_PP_SCHEDULE_RECV)
            LS_TRY(st, ls_pipeline_begin_sends(x), out);
    }
    for (int i = 0; i < LS_PIPELINE_SENDS; i++)
        LS_TRY(st, wait_send(s, x->sends[i].number), out);
    for (int i = 0; i < x->plan.gradients; i++)
        x->gradient[i] = (ls_pipeline_buffer){.used = false};
    LS_TRY(st, ls_pipeline_end_sums(s), out);
out:
    ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
    return st;
}

/* --- without gradients ------------------------------------------------------------------------ */

/* The stream from the stage before, or to the stage behind. */
static ls_status move(ls_step *s, const ls_pass_call *call, ls_coll_kind kind, void *stream)
{
    const ls_pipeline *x = s->pipeline;
    int pp_ranks = x->plan.pp_ranks, by = kind == LS_COLL_SEND ? 1 : pp_ranks - 1;

    return ls_pipeline_run(s, x->pipeline_comm,
                           &(ls_coll){.kind = kind,
                                      .type = s->type,
                                      .count = ls_pass_stream(s->args.model, call->B * call->T),
                                      .in = stream,
                                      .out = stream,
                                      .peer = (x->plan.pp_rank + by) % pp_ranks});
}

static ls_status forward_all(ls_step *s, const ls_pass_call *call)
{
    ls_pipeline *x = s->pipeline;
    ls_status st = LS_OK;

    for (int c = 0; c < x->plan.chunks; c++) {
        ls_pass_call part = *call;
        s->pass = x->passes[c];
        s->search.looked = 0; /* of this chunk */
        part.slot = 0;
        if (stage_of(x, c) > 0) {
            part.in = x->streams;
            LS_TRY(st, move(s, call, LS_COLL_RECV, x->streams), out);
        }
        part.need = x->plan.zero == 3 ? ls_pipeline_need : NULL;
        ls_pipeline_fetch_begin(s, c, LS_PP_SCHEDULE_FORWARD);
        if (call->made)
            ls_pass_forward(s->pass, &part);
        else
            ls_pass_loss(s->pass, &part);
        LS_TRY(st, ls_pipeline_fetch_end(s), out);
        if (!ls_pipeline_is_last_stage(x, c))
            LS_TRY(st,
                   move(s, call, LS_COLL_SEND, (void *)(uintptr_t)ls_pass_out(s->pass, 0, part.in)),
                   out);
    }
out:
    return st;
}

static void idle(ls_step *step)
{
    const ls_pass_call call = {.w = ls_step_read(step),
                               .leaves = 1,
                               .need = step->pipeline->plan.zero == 3 ? ls_pipeline_need : NULL,
                               .context = step};

    for (int c = 0; c < step->pipeline->plan.chunks; c++) {
        ls_pipeline_fetch_begin(step, c, LS_PP_SCHEDULE_FORWARD);
        if (ls_step_is_ep(step))
            ls_pass_serve(step->pipeline->passes[c], &call, false);
        else
            ls_pipeline_walk(step, c, LS_PP_SCHEDULE_FORWARD);
        (void)ls_pipeline_fetch_end(step); /* ls_step_recorded() returns its error later */
    }
}

static ls_status spread(ls_step *s, ls_step_clock *clock)
{
    ls_status st;

    ls_step_clock_lap(clock, LS_TIME_OPTIMIZER);
    st = ls_pipeline_spread_weights(s);
    ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
    return st;
}

static bool fits(const ls_step_args *args)
{
    return args->dp && ls_mesh_pp(&ls_dp_args_of(args->dp)->mesh) > 1;
}

const ls_step_mode ls_step_mode_pipeline = {.fits = fits,
                                            .exchange = &ls_step_exchange_pipeline,
                                            .plan = ls_pipeline_plan_step,
                                            .parts = ls_pipeline_parts,
                                            .weights = ls_pipeline_weights,
                                            .memory = ls_pipeline_memory,
                                            .split = ls_pipeline_split,
                                            .gradients = gradients,
                                            .ready = ls_pipeline_ready,
                                            .gradient = ls_pipeline_gradient,
                                            .norm = ls_pipeline_norm,
                                            .spread = spread,
                                            .rounds = ls_pipeline_micros,
                                            .forward = forward_all,
                                            .idle = idle,
                                            .changed = ls_pipeline_weights_changed,
                                            .complete = ls_pipeline_spread_weights,
                                            .collect = ls_pipeline_collect,
                                            .scatter = ls_pipeline_scatter,
                                            .keep = ls_pipeline_keep};
