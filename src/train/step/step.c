/* step.c -- one training step, from top to bottom: ls_step_run() first, its parts in order below it.
 *
 *   batch          this rank's sequences to the device
 *   gradients      forward and backward of all calls, summed over replicas: the mode's row
 *   hook           LS_STEP_SUMMED: nothing of the step is in the weights yet (ls_step_set_hook)
 *   copies         summed gradients leave for the ranks that hold copies (ls_replica_send_start)
 *   norm           with tp or ep groups first the sums of gradients that several ranks hold; then a
 *                  tree over fixed blocks -> norm, clip factor, first bad block, in device memory
 *   copies         have arrived (ls_replica_send_wait)
 *   losses         the host's one wait for the device; ranks exchange the losses of all leaves. A
 *                  step in which one of them or the norm is not finite ends here
 *   hook           LS_STEP_UPDATES: the first weight or moment is about to change
 *   update         the optimizer reads the clip factor on the device (step_update.c); then new
 *                  weights go to the ranks that read them: `spread` of the mode's row
 *
 * What differs between the ways to be parallel is in the rows of step_mode.h. Only groups of ranks
 * that hold one model between them (ls_step_has_mp_group) and ZeRO 3 (ls_step_divides_weights) are
 * asked for here.
 *
 * What goes to the device or comes from it passes through one block of host memory (page-locked for
 * a GPU), so that no copy waits. It is written again only after that one wait: hence one place per
 * call for the numbers that differ between calls. Nothing waits for the update: the device makes it
 * while the host reports the step, saves or begins the next one, and later work is queued behind
 * it. Calls of a step are in step_calls.c, what other rooms read of it in step_access.c. */
#include "train/step/step_impl.h"

#include <math.h>
#include "base/fault.h"
#include "base/mem.h"
#include "train/replica/replica_send.h"

static void copy_batch_in(ls_step *s, const ls_step_batch *batch, int64_t number,
                          ls_step_state *host_state);
static ls_status gradients(ls_step *s, ls_step_state *host_state, ls_step_clock *clock);
static ls_status norm_of_gradients(ls_step *s, ls_step_clock *clock);
static ls_status share_losses(ls_step *s, int64_t number, ls_step_clock *clock);
static ls_step_result make_result(ls_step *s, int64_t number, double lr);
static ls_status update(ls_step *s, ls_step_clock *clock);
static ls_status run_hook(ls_step *s, ls_step_point point, ls_step_clock *clock,
                          ls_step_time before, ls_step_time during);

ls_status ls_step_run(ls_step *s, const ls_step_batch *batch, int64_t number, double lr,
                      ls_step_clock *clock, ls_step_result *result_out)
{
    s->counted = batch->counted ? batch->counted : s->now.sequences * ls_step_tokens(s);
    ls_step_state host_state = ls_step_scalars(s, number, lr);
    ls_step_result result;
    double kl;
    ls_status st;

    LS_TRY(st, ls_step_kl(s, batch, &kl), out);
    host_state.kl = (float)kl;
    copy_batch_in(s, batch, number, &host_state);
    ls_step_clock_lap(clock, LS_TIME_DATA);
    LS_TRY(st, ls_fault_pass(LS_FAULT_AT_FORWARD), out);
    LS_TRY(st, gradients(s, &host_state, clock), out);
    LS_TRY(st, run_hook(s, LS_STEP_SUMMED, clock, LS_TIME_OTHER, LS_TIME_OTHER), out);
    LS_TRY(st, ls_replica_send_start(s), out);
    LS_TRY(st, ls_step_fault(s, LS_FAULT_AT_LOSSES), out);
    LS_TRY(st, norm_of_gradients(s, clock), out);
    LS_TRY(st, ls_replica_send_wait(s), out);
    LS_TRY(st, share_losses(s, number, clock), out);
    ls_step_graph_compare(s);
    result = make_result(s, number, lr);
    if (result.finite)
        LS_TRY(st, update(s, clock), out);
    s->done = number + 1;
    if (clock->profile) /* which charges all device work of a step to that step */
        LS_TRY(st, ls_step_sync(s), out);
    ls_step_clock_lap(clock, LS_TIME_OPTIMIZER);
    *result_out = result;
out:
    return st;
}

/* The batch to the device, no progress yet, and NaN where a fault plan asks for it. */
static void copy_batch_in(ls_step *s, const ls_step_batch *batch, int64_t number,
                          ls_step_state *host_state)
{
    const ls_calls *calls = &s->now;

    s->nan_injected = LS_FAULT("train.nonfinite");
    if (s->nan_injected || LS_FAULT("train.nonfinite.once"))
        host_state->grad_scale = NAN;
    ls_step_copy_sequences(s, batch, 0, calls->own * calls->leaf);
    if (calls->own == 0) { /* no call sends the scalars, and the update reads them */
        s->host_states[0] = *host_state;
        ls_step_send_scalars(s, 0);
    }
    s->done = number;
    s->progress.ready = -1;
    s->progress.made = false;
}

/* For messages about collectives of device memory. */
static void name_step(const ls_step *s)
{
    ls_mp_group_set_step(s->args.tp_group, s->done + 1);
    ls_mp_group_set_step(s->args.ep_group, s->done + 1);
    ls_mp_group_set_step(s->args.cp_group, s->done + 1);
}

/* Nanoseconds that passes have spent in collectives of tp, ep and cp groups. */
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

/* Gradients of all calls, summed over replicas. Those of tensors that the ranks of a tp or ep group
 * share are summed with the norm. */
static ls_status gradients(ls_step *s, ls_step_state *host_state, ls_step_clock *clock)
{
    ls_status st;

    s->clock = clock;
    name_step(s);
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

/* step->norm; in a tp or ep group also the sums of gradients that several ranks hold (group_step.c). */
static ls_status norm_of_gradients(ls_step *s, ls_step_clock *clock)
{
    const ls_norm2 norm = {.x = s->grads[0],
                           .partials = s->partials,
                           .result = s->norm,
                           .state = s->state,
                           .n = s->args.model->trained,
                           .scaled = true};

    return ls_step_has_mp_group(s) ? ls_step_group_norm(s, &norm, clock) : s->mode->norm(s, &norm);
}

/* host_sums holds the loss of every leaf of the batch, in leaf order (of pairs, all numbers of
 * ls_step_numbers() one after the other), followed by each rank's compute time. The exchange comes
 * before the update, so that a rank that has made a step knows its loss. */
static ls_status losses(ls_step *s, ls_step_clock *clock)
{
    const ls_calls *calls = &s->now;
    int64_t own = ls_step_has_losses(s) ? calls->own : 0;
    ls_dp *batch = ls_step_batch_dp(s);
    double *sums = s->host_sums;
    int64_t all = ls_step_numbers(s) * calls->leaves;
    ls_status st = LS_OK;

    if (own > 0 && !ls_step_has_pairs(s))
        s->args.kernels->sum(s->args.stream, &(ls_sum){.x = s->losses,
                                                       .out = s->sums,
                                                       .n = own * calls->leaf * ls_step_tokens(s),
                                                       .segments = own});
    memset(sums, 0, (size_t)(all + calls->ranks) * sizeof *sums);
    if (own > 0 && ls_step_has_pairs(s))
        ls_step_sum_numbers(s);
    else
        ls_stream_copy_out(s->args.stream, sums + calls->first, s->sums,
                           own * (int64_t)sizeof(double));
    ls_stream_copy_out(s->args.stream, s->host_norm, s->norm, sizeof *s->host_norm);
    if (s->discrete)
        ls_step_clock_lap(clock, LS_TIME_OPTIMIZER); /* only queued, as all before it */
    LS_TRY(st, ls_step_sync(s), out);
    if (s->discrete && (!batch || s->by_device))
        ls_step_clock_lap(
            clock,
            LS_TIME_BACKWARD); /* of the device; with exchanges through the host the ranks have waited for it already */
    if (!batch)
        goto out;
    ls_step_clock_lap(clock, LS_TIME_OPTIMIZER);
    sums[all + ls_dp_args_of(batch)->mesh.rank] = (double)ls_step_worked_ns(clock);
    LS_TRY(st, ls_dp_sum_numbers(batch, LS_F64, sums, all + calls->ranks), out);
    ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
out:
    return st;
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

double ls_step_tree_sum(double *values, int64_t n)
{
    for (int64_t width = 1; width < n; width *= 2)
        for (int64_t i = 0; i + width < n; i += 2 * width)
            values[i] += values[i + width];
    return values[0];
}

/* The result of the step, from the losses and the norm; equal on all ranks. */
static ls_step_result make_result(ls_step *s, int64_t number, double lr)
{
    double sum = ls_step_tree_sum(s->host_sums, s->now.leaves);
    ls_step_result result = {.loss = sum / (double)s->counted,
                             .grad_norm = (double)s->host_norm->norm,
                             .lr = lr,
                             .finite = s->host_norm->bad_block < 0 && isfinite(sum)};

    for (int k = 0; ls_step_has_pairs(s) && k < LS_PREFERENCE_NUMBERS; k++)
        result.numbers[k] =
            k == 0 ? sum : ls_step_tree_sum(s->host_sums + k * s->now.leaves, s->now.leaves);
    s->progress.received = number + 1;
    s->progress.result = result;
    return result;
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
