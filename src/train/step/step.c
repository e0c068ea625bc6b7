/* step.c -- one training step, from top to bottom (ls_step_run).
 *
 *   batch          this rank's sequences to the device
 *   gradients      forward and backward of all calls, summed over ranks: the mode's row
 *   hook           LS_STEP_SUMMED: nothing of the step is in the weights yet (ls_step_set_hook)
 *   copies         summed gradients leave for the ranks that hold copies (ls_replica_send_start)
 *   norm           tree over fixed blocks -> norm, clip factor, first bad block, in device memory
 *   copies         have arrived (ls_replica_send_wait)
 *   losses         one wait: the host reads the losses of all ranks and the norm; a step in which
 *                  one of them is not finite ends here
 *   hook           LS_STEP_UPDATES: the first weight or moment is about to change
 *   update         the optimizer reads the clip factor on the device
 *   spread         new weights to the ranks that read them: the mode's row
 *
 * What differs between the ways to be parallel is in the rows of step_mode.h; nothing here asks
 * which one it is.
 *
 * What goes to the device or comes from it passes through one block of host memory (page-locked for
 * a GPU), so that no copy waits. It is written again only after that one wait: hence one place per
 * call for the numbers that differ between calls. Nothing waits for the update: the device makes it
 * while the host reports the step, saves or begins the next one, and later work is queued behind
 * it. */
#include "train/step/step_impl.h"

#include <math.h>
#include "base/fault.h"
#include "base/mem.h"
#include "base/rng.h"
#include "plan/memory.h"
#include "optim/optim.h"
#include "train/replica/replica_send.h"

ls_status ls_step_split(ls_step *s, const ls_ordered_run *runs, int64_t leaves)
{
    ls_dp *batch = ls_step_batch_dp(s);

    ls_calls_set(&s->args.calls, runs[batch ? ls_dp_args_of(batch)->mesh.rank : 0], leaves,
                 &s->now);
    if (s->mode->split)
        return s->mode->split(s, runs);
    return s->args.dp ? ls_dp_split(s->args.dp, runs, leaves) : LS_OK;
}

const double *ls_step_work_ns(const ls_step *step)
{
    return step->host_sums + step->now.leaves;
}

/* The tokens of this rank in `count` sequences of T tokens: all, or with mesh.cp two chunks of
 * each. */
static void take_pieces(const ls_step *s, const int32_t *from, int64_t count, int32_t *to)
{
    int64_t T = s->args.model->shape.T, n = ls_step_tokens(s), size = sizeof *to;
    int cp = s->args.calls.cp, place = s->args.calls.cp_rank;

    if (n == T) {
        memcpy(to, from, (size_t)(count * T * size));
        return;
    }
    for (int64_t i = 0; i < 2 * count; i++, to += n / 2) {
        int64_t chunk = i % 2 == 0 ? place : 2 * cp - 1 - place;
        memcpy(to, from + i / 2 * T + chunk * (n / 2), (size_t)(n / 2 * size));
    }
}

/* Sequences first .. first+count-1 of a batch to the beginning of the device's buffers. Nothing is
 * queued that still reads the staging memory. */
static void copy_sequences(ls_step *s, const ls_step_batch *batch, int64_t first, int64_t count)
{
    int64_t whole = s->args.model->shape.T, T = ls_step_tokens(s), all = ls_step_held(s) * T;
    int64_t bytes = count * T * (int64_t)sizeof(int32_t);
    const int32_t *const from[3] = {batch->tokens, batch->targets, batch->start};
    int32_t *const to[3] = {s->tokens, s->targets, s->start};

    s->isolated = batch->start != NULL;
    for (int i = 0; i < 3; i++) {
        if (!from[i])
            continue;
        take_pieces(s, from[i] + first * whole, count, s->host_tokens + i * all);
        ls_stream_copy_in(s->args.stream, to[i], s->host_tokens + i * all, bytes);
    }
}

void ls_step_send_scalars(ls_step *s, int64_t call)
{
    ls_stream_copy_in(s->args.stream, s->state, &s->host_states[call], sizeof *s->host_states);
}

ls_step_state ls_step_scalars(const ls_step *s, int64_t number, double lr)
{
    const ls_run *run = s->args.run;
    ls_rng_key key = ls_rng_derive((uint64_t)run->train.seed, 0x64726f70, (uint64_t)number);
    ls_step_state state = ls_optim_numbers(run, (double)(number + 1), 1, lr);

    state.key[0] = key.k[0];
    state.key[1] = key.k[1];
    state.grad_scale = (float)(s->loss_scale / (double)ls_max_i64(1, s->counted));
    state.loss_scale = (float)s->loss_scale;
    return state;
}

const float *ls_step_gradient(const ls_step *step)
{
    return step->grads[0];
}

bool ls_step_next(const ls_step *s, ls_step_leaves *p)
{
    const ls_calls *calls = &s->now;

    p->number = p->count ? p->number + 1 : 0;
    p->first = p->count ? p->first + p->count : calls->first;
    p->count = p->number < calls->calls ? ls_calls_at(calls, p->first) : 0;
    return p->count > 0;
}

ls_pass_call ls_step_call(ls_step *s, const ls_step_leaves *p, int buffer)
{
    const ls_calls *calls = &s->now;
    int64_t T = ls_step_tokens(s);
    int64_t at = (p->first - calls->first) * calls->leaf * T;

    return (ls_pass_call){.w = ls_step_read(s),
                          .tokens = s->tokens + at,
                          .targets = s->targets + at,
                          .start = s->isolated ? s->start + at : NULL,
                          .B = p->count * calls->leaf,
                          .T = T,
                          .dropout = true,
                          .state = s->state,
                          .losses = s->losses + at,
                          .grad = s->grads[buffer],
                          .leaves = calls->ordered ? p->count : 1,
                          .ordered = calls->ordered,
                          .accumulate =
                              !calls->ordered && !ls_step_divides_grads(s) && p->number > 0,
                          .need = ls_step_divides(s) ? ls_step_need : NULL,
                          .context = s};
}

void ls_step_set_scalars(ls_step *s, const ls_step_leaves *p, ls_step_state *host_state)
{
    host_state->first_seq = (uint32_t)ls_calls_sequence(&s->now, p->first);
    s->host_states[p->number] = *host_state;
}

void ls_step_forward(ls_step *s, const ls_step_leaves *p, const ls_pass_call *call,
                     ls_step_state *host_state)
{
    ls_step_set_scalars(s, p, host_state);
    ls_step_send_scalars(s, p->number);
    ls_pass_forward(s->pass, call);
}

int64_t ls_step_worked_ns(const ls_step_clock *clock)
{
    return clock->parts_ns[LS_TIME_FORWARD] + clock->parts_ns[LS_TIME_BACKWARD];
}

void ls_step_record(ls_step *s, ls_status status)
{
    if (s->status != LS_OK || status == LS_OK)
        return;
    s->status = status;
    s->why = *ls_err_last();
}

ls_status ls_step_recorded(const ls_step *s)
{
    return s->status == LS_OK ? LS_OK : ls_err_adopt(&s->why);
}

/* Time that was spent in moves of tensors inside of passes. */
static int64_t moves_ns(const ls_step *s)
{
    const ls_mp_group *const all[] = {s->args.tp_group, s->args.ep_group, s->args.cp_group};
    int64_t ns = 0;

    for (size_t i = 0; i < LS_COUNT(all); i++)
        ns += all[i] ? ls_mp_group_waited_ns(all[i]) : 0;
    return ns;
}

void ls_step_lap(ls_step *s, ls_step_clock *clock, ls_step_time part)
{
    int64_t waited_ns = moves_ns(s);

    ls_step_clock_lap(clock, part);
    clock->parts_ns[part] -= waited_ns - s->mp_group.waited_ns;
    clock->parts_ns[LS_TIME_EXCHANGE] += waited_ns - s->mp_group.waited_ns;
    s->mp_group.waited_ns = waited_ns;
}

void ls_step_bucket_ready(void *context, int64_t from)
{
    ls_step *s = context;

    ls_step_lap(s, s->clock, LS_TIME_BACKWARD);
    s->mode->ready(s, from);
    ls_step_clock_lap(s->clock, LS_TIME_EXCHANGE);
}

/* The sum of all calls of all ranks. */
static ls_status gradients(ls_step *s, ls_step_state *host_state, ls_step_clock *clock)
{
    ls_status st;

    s->clock = clock;
    s->mp_group.waited_ns = moves_ns(s);
    st = s->mode->gradients(s, host_state, clock);
    s->clock = NULL;
    if (st == LS_OK && s->zero_gather.coming &&
        !ls_step_divides_weights(s)) { /* no call has read them */
        st = ls_step_settle(s);
        ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
    }
    return st;
}

/* Sum of n values along the perfect binary tree over their numbers; values are overwritten. */
static double tree_sum(double *values, int64_t n)
{
    for (int64_t width = 1; width < n; width *= 2)
        for (int64_t i = 0; i + width < n; i += 2 * width)
            values[i] += values[i + width];
    return values[0];
}

/* host_sums holds the loss of every leaf of the batch, in leaf order, followed by each rank's compute
 * time. The exchange comes before the update, so that a rank that has made a step knows its loss. */
static ls_status losses(ls_step *s, ls_step_clock *clock)
{
    const ls_calls *calls = &s->now;
    int64_t own = ls_step_has_losses(s) ? calls->own : 0;
    ls_dp *batch = ls_step_batch_dp(s);
    double *sums = s->host_sums;
    ls_status st = LS_OK;

    if (own > 0)
        s->args.kernels->sum(s->args.stream, &(ls_sum){.x = s->losses,
                                                       .out = s->sums,
                                                       .n = own * calls->leaf * ls_step_tokens(s),
                                                       .segments = own});
    memset(sums, 0, (size_t)(calls->leaves + calls->ranks) * sizeof *sums);
    ls_stream_copy_out(s->args.stream, sums + calls->first, s->sums, own * (int64_t)sizeof(double));
    ls_stream_copy_out(s->args.stream, s->host_norm, s->norm, sizeof *s->host_norm);
    if (s->discrete)
        ls_step_clock_lap(clock, LS_TIME_OPTIMIZER); /* queued, as all before it */
    LS_TRY(st, ls_step_sync(s), out);
    if (s->discrete && (!batch || s->device_exchange))
        ls_step_clock_lap(clock,
                          LS_TIME_BACKWARD); /* of the device; ranks have waited for it before */
    if (!batch)
        goto out;
    ls_step_clock_lap(clock, LS_TIME_OPTIMIZER);
    sums[calls->leaves + ls_dp_args_of(batch)->mesh.rank] = (double)ls_step_worked_ns(clock);
    LS_TRY(st, ls_dp_sum_numbers(batch, LS_F64, sums, calls->leaves + calls->ranks), out);
    ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
out:
    return st;
}

/* To step->norm. */
static ls_status norm_of_gradients(ls_step *s)
{
    const ls_norm2 norm = {.x = s->grads[0],
                           .partials = s->partials,
                           .result = s->norm,
                           .state = s->state,
                           .n = s->args.model->trained,
                           .scaled = true};

    return ls_step_has_mp_group(s) ? ls_step_group_norm(s, &norm) : s->mode->norm(s, &norm);
}

/* The gradient and its norm are here. Receiving all losses proves that every rank has reached this
 * point. Losses are exchanged only among ranks with the same slice of the model, so a barrier of the ranks
 * of one model comes first. */
static ls_status share_losses(ls_step *s, int64_t number, ls_step_clock *clock)
{
    ls_status st = LS_OK;

    s->progress.ready = number;
    if (s->args.heals && ls_step_has_mp_group(s))
        LS_TRY(st, ls_step_group_barrier(s), out);
    LS_TRY(st, losses(s, clock), out);
    /* For tests: this rank does not receive them (LINESHAFT_FAULT=train.no_losses.RANK@STEP). */
    if (ls_step_test_point("no_losses", s->args.rank, -1))
        st = ls_fail(LS_EPEER, "rank %d has not received the losses", s->args.rank);
out:
    return st;
}

void ls_step_set_hook(ls_step *step, ls_step_point point, ls_status (*hook)(void *context),
                      void *context)
{
    step->hooks[point] = (ls_step_hook){.run = hook, .context = context};
}

/* `before`: the clock part charged up to now; `during`: the part charged for the hook. */
static ls_status run_hook(ls_step *s, ls_step_point point, ls_step_clock *clock,
                          ls_step_time before, ls_step_time during)
{
    ls_step_hook hook = s->hooks[point];
    ls_status st = LS_OK;

    s->hooks[point] = (ls_step_hook){.run = NULL};
    if (hook.run) {
        ls_step_clock_lap(clock, before);
        st = hook.run(hook.context);
        ls_step_clock_lap(clock, during);
    }
    return st;
}

/* A rank that fails in the middle of an update has no consistent state. */
static ls_status update(ls_step *s, ls_step_clock *clock)
{
    int64_t number = s->done;
    ls_status st;

    LS_TRY(st, run_hook(s, LS_STEP_UPDATES, clock, LS_TIME_OPTIMIZER, LS_TIME_CHECKPOINT), out);
    s->done = LS_STEP_PARTIAL;
    LS_TRY(st, ls_step_update(s, clock), out);
    LS_TRY(st, ls_step_fault(s, LS_FAULT_AT_UPDATE), out);
    s->done = number;
out:
    return st;
}

/* The batch of the step, to the device. */
static void begin(ls_step *s, const ls_step_batch *batch, int64_t number, ls_step_state *host_state)
{
    const ls_calls *calls = &s->now;

    s->spoiled = LS_FAULT("train.nonfinite");
    if (s->spoiled || LS_FAULT("train.nonfinite.once"))
        host_state->grad_scale = NAN;
    copy_sequences(s, batch, 0, calls->own * calls->leaf);
    if (calls->own == 0) { /* no call sends the scalars, and the update reads them */
        s->host_states[0] = *host_state;
        ls_step_send_scalars(s, 0);
    }
    s->done = number;
    s->progress.ready = -1;
    s->progress.made = false;
}

/* What the losses and the norm say: the same on all ranks. */
static ls_step_result judge(ls_step *s, int64_t number, double lr)
{
    double sum = tree_sum(s->host_sums, s->now.leaves);
    const ls_step_result result = {.loss = sum / (double)s->counted,
                                   .grad_norm = (double)s->host_norm->norm,
                                   .lr = lr,
                                   .finite = s->host_norm->bad_block < 0 && isfinite(sum)};

    s->progress.received = number + 1;
    s->progress.result = result;
    return result;
}

ls_status ls_step_run(ls_step *s, const ls_step_batch *batch, int64_t number, double lr,
                      ls_step_clock *clock, ls_step_result *result_out)
{
    s->counted = batch->counted ? batch->counted : s->now.sequences * ls_step_tokens(s);
    ls_step_state host_state = ls_step_scalars(s, number, lr);
    ls_step_result result;
    ls_status st;

    begin(s, batch, number, &host_state);
    ls_step_clock_lap(clock, LS_TIME_DATA);
    LS_TRY(st, ls_fault_pass(LS_FAULT_AT_FORWARD), out);
    LS_TRY(st, gradients(s, &host_state, clock), out);
    LS_TRY(st, run_hook(s, LS_STEP_SUMMED, clock, LS_TIME_OTHER, LS_TIME_OTHER), out);
    LS_TRY(st, ls_replica_send_start(s), out);
    LS_TRY(st, ls_step_fault(s, LS_FAULT_AT_VOTE), out);
    LS_TRY(st, norm_of_gradients(s), out);
    LS_TRY(st, ls_replica_send_wait(s), out);
    LS_TRY(st, share_losses(s, number, clock), out);
    ls_step_graph_compare(s);
    result = judge(s, number, lr);
    if (result.finite)
        LS_TRY(st, update(s, clock), out);
    s->done = number + 1;
    if (clock->profile) /* it shows all work of a step inside of the step */
        LS_TRY(st, ls_step_sync(s), out);
    ls_step_clock_lap(clock, LS_TIME_OPTIMIZER);
    *result_out = result;
out:
    return st;
}

ls_status ls_step_forward_only(ls_step *s, const ls_pass_call *call)
{
    if (s->mode->forward)
        return s->mode->forward(s, call);
    if (call->made)
        ls_pass_forward(s->pass, call);
    else
        ls_pass_loss(s->pass, call);
    return LS_OK;
}

ls_status ls_step_loss(ls_step *step, const ls_step_batch *windows, int64_t sequences,
                       double *sums_out)
{
    const ls_calls *calls = &step->args.calls;
    int64_t T = ls_step_tokens(step), most = calls->most * calls->leaf;
    ls_status st = LS_OK;

    for (int64_t done = 0; done < sequences; done += most) {
        int64_t B = ls_min_i64(most, sequences - done);
        const ls_pass_call call = {.w = ls_step_read(step),
                                   .tokens = step->tokens,
                                   .targets = step->targets,
                                   .start = step->isolated ? step->start : NULL,
                                   .B = B,
                                   .T = T,
                                   .leaves = 1,
                                   .state = step->state,
                                   .losses = step->losses,
                                   .need = ls_step_divides(step) ? ls_step_need : NULL,
                                   .context = step};
        copy_sequences(step, windows, done, B);
        LS_TRY(st, ls_step_forward_only(step, &call), out);
        LS_TRY(st, ls_step_recorded(step), out);
        if (!ls_step_has_losses(step)) {
            memset(sums_out + done, 0, (size_t)B * sizeof *sums_out);
            continue;
        }
        step->args.kernels->sum(
            step->args.stream,
            &(ls_sum){.x = step->losses, .out = step->sums, .n = B * T, .segments = B});
        ls_stream_copy_out(step->args.stream, step->host_sums, step->sums,
                           B * (int64_t)sizeof(double));
        LS_TRY(st, ls_step_sync(step), out);
        memcpy(sums_out + done, step->host_sums, (size_t)B * sizeof *sums_out);
    }
out:
    return st;
}

void ls_step_scale_loss(ls_step *step, double scale)
{
    step->loss_scale = scale;
}

ls_step_arrays ls_step_state_arrays(const ls_step *step)
{
    return (ls_step_arrays){.w = step->state_memory[0],
                            .m = step->state_memory[1],
                            .v = step->state_memory[2],
                            .read = step->copy ? step->copy : step->state_memory[0]};
}

ls_pass *ls_step_pass(const ls_step *step)
{
    return step->pass;
}

void ls_step_renew_copy(ls_step *s, ls_mesh_part part)
{
    if (s->copy)
        s->args.kernels->cast(
            s->args.stream,
            &(ls_cast){.from_type = LS_F32,
                       .to_type = s->type,
                       .from = (float *)s->state_memory[0] + part.packed,
                       .to = (char *)s->copy + part.packed * ls_dtype_bytes(s->type),
                       .n = part.count,
                       .rounding = ls_step_rounding(s->args.run, part.first)});
}

/* --- what the rows do ------------------------------------------------------------------------- */

ls_status ls_step_weights_changed(ls_step *s)
{
    ls_packed_weights_changed(s->args.packs);
    if (s->mode->changed)
        s->mode->changed(s);
    for (int i = 0; i < s->parts.weights.n; i++)
        ls_step_renew_copy(s, s->parts.weights.at[i]);
    return ls_step_forget(s);
}

void ls_step_idle(ls_step *s)
{
    if (s->mode->idle)
        s->mode->idle(s);
}

void ls_step_put(ls_step *s, int64_t first, int64_t count, const float *values)
{
    ls_optim_piece own;

    for (int i = 0; i < s->parts.weights.n; i++)
        if (ls_optim_find_piece(&s->parts.weights.at[i], 1, first, first + count, &own))
            ls_stream_copy_in(s->args.stream, (float *)s->state_memory[0] + own.packed,
                              values + own.first - first, own.count * (int64_t)sizeof *values);
}

ls_status ls_step_complete(ls_step *s)
{
    return s->mode->complete ? s->mode->complete(s) : LS_OK;
}

ls_status ls_step_keep(ls_step *s, void *kept_out[3])
{
    return s->mode->keep ? s->mode->keep(s, kept_out) : ls_step_keep_state(s, kept_out);
}

ls_status ls_step_slice_collect(ls_step *s, const float *part, float *whole)
{
    return s->mode->collect       ? s->mode->collect(s, part, whole)
           : s->exchange->collect ? s->exchange->collect(s, part, whole)
                                  : ls_dp_collect(s->args.dp, part, whole);
}

ls_status ls_step_slice_scatter(ls_step *s, const float *whole, float *part)
{
    return s->mode->scatter       ? s->mode->scatter(s, whole, part)
           : s->exchange->scatter ? s->exchange->scatter(s, whole, part)
                                  : ls_dp_scatter(s->args.dp, whole, part);
}

ls_status ls_step_collect(ls_step *s, const float *part, float *whole)
{
    return ls_step_has_mp_group(s) ? ls_step_group_collect(s, part, whole)
                                   : ls_step_slice_collect(s, part, whole);
}

ls_status ls_step_scatter(ls_step *s, const float *whole, float *part)
{
    return ls_step_has_mp_group(s) ? ls_step_group_scatter(s, whole, part)
                                   : ls_step_slice_scatter(s, whole, part);
}

ls_status ls_step_sum_in_group(ls_step *s, float *numbers, int64_t n)
{
    return s->exchange->sum_in_group ? s->exchange->sum_in_group(s, numbers, n)
                                     : ls_dp_sum_in_group(s->args.dp, numbers, n);
}

ls_status ls_step_gather(ls_step *s, float *whole)
{
    return s->exchange->gather ? s->exchange->gather(s, whole) : ls_dp_gather(s->args.dp, whole);
}

ls_status ls_step_broadcast(ls_step *s, int from, void *memory, int64_t bytes)
{
    return s->exchange->broadcast ? s->exchange->broadcast(s, from, memory, bytes)
                                  : ls_dp_broadcast(s->args.dp, from, memory, bytes);
}

bool ls_step_has_losses(const ls_step *step)
{
    return step->has_losses;
}
