/* step.c -- a step, call by call.
 *
 *   for each call (a group of leaves):   forward, backward -> gradient buffer, on a stack
 *                                        sums of the stack's top two (layout/calls.h)
 *   with other ranks: sum of all ranks' gradients (parallel/dp.h); what backward of the last call
 * has completed is on its way while it goes on tie: embedding part + head part of wte's gradient
 *   losses of all leaves, from all ranks
 *   norm2: tree over fixed blocks -> norm, clip factor, first bad block, all in device memory
 *   one wait: the host reads leaf losses and the norm, and drops the step when they are not finite
 *   adamw (or lamb, muon): reads the factor on the device
 *
 * In fast mode there is one gradient buffer and every call adds to it. With zero 2 and 3 the sum
 * with other ranks is made in every call, and each rank keeps that of its own parts (zero_gather.c:
 * weights).
 *
 * What goes to the device or comes from it passes through one block of host memory (page-locked for
 * a GPU), so that no copy waits. It is written again only after that wait: hence one place per call
 * for the numbers that differ between calls. Nobody waits for the update: the device makes it while
 * the host tells of the step, saves or begins the next one, and what follows is queued behind it.
 */
#include "train/step/step_impl.h"

#include <math.h>
#include "base/fault.h"
#include "base/mem.h"
#include "base/rng.h"
#include "plan/memory.h"
#include "optim/optim.h"
#include "train/replica/replica_copy.h"
#include "train/step/pipeline.h"
#include "train/replica/replica_pair.h"

ls_status ls_step_split(ls_step *step, const ls_ordered_run *runs, int64_t leaves)
{
    ls_step *s = step;
    int rank = ls_step_sharers(s) ? ls_dp_about(ls_step_sharers(s))->mesh.rank : 0;

    ls_calls_set(&s->args.calls, runs[rank], leaves, &s->now);
    if (ls_step_is_ep(s))
        ls_step_expert_split(s, runs);
    if (s->pipeline)
        return ls_pipeline_split(s, runs);
    return s->args.dp && !ls_step_is_ep(s) ? ls_dp_split(s->args.dp, runs, leaves) : LS_OK;
}

const double *ls_step_work_ns(const ls_step *step)
{
    return step->host_sums + step->now.leaves;
}

/* What this rank has of some sequences of T tokens: all of it, or two chunks of each. */
static void take_pieces(const ls_step *s, const int32_t *from, int64_t count, int32_t *to)
{
    int64_t T = s->args.model->shape.T, n = ls_step_tokens(s), size = sizeof *to;
    int cp = s->args.calls.cp, place = s->args.calls.place;

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
static void copy_windows(ls_step *s, const ls_step_batch *batch, int64_t first, int64_t count)
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

void ls_step_send_numbers(ls_step *s, int64_t call)
{
    ls_stream_copy_in(s->args.stream, s->state, &s->host_states[call], sizeof *s->host_states);
}

ls_step_state ls_step_numbers(const ls_step *s, int64_t number, double lr)
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

bool ls_step_next(const ls_step *s, ls_step_part *p)
{
    const ls_calls *calls = &s->now;

    p->number = p->count ? p->number + 1 : 0;
    p->first = p->count ? p->first + p->count : calls->first;
    p->count = p->number < calls->calls ? ls_calls_at(calls, p->first) : 0;
    return p->count > 0;
}

ls_pass_call ls_step_call(ls_step *s, const ls_step_part *p, int buffer)
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
                          .accumulate = !calls->ordered && !ls_step_parts(s) && p->number > 0,
                          .need = ls_step_divides(s) ? ls_step_need : NULL,
                          .context = s};
}

void ls_step_set_numbers(ls_step *s, const ls_step_part *p, ls_step_state *host_state)
{
    host_state->first_seq = (uint32_t)ls_calls_sequence(&s->now, p->first);
    s->host_states[p->number] = *host_state;
}

void ls_step_forward(ls_step *s, const ls_step_part *p, const ls_pass_call *call,
                     ls_step_state *host_state)
{
    ls_step_set_numbers(s, p, host_state);
    ls_step_send_numbers(s, p->number);
    ls_pass_forward(s->pass, call);
}

/* Time that this rank has computed in this step. */
static int64_t work_ns(const ls_step_clock *clock)
{
    return clock->parts_ns[LS_TIME_FORWARD] + clock->parts_ns[LS_TIME_BACKWARD];
}

/* For tests: a rank that needs twice as long for its work. LINESHAFT_FAULT=train.slow.1@1+ is rank
 * 1, always. before_ns: what it had worked before this call. */
static void slow_down(const ls_step *s, int64_t before_ns, ls_step_clock *clock)
{
#ifdef LS_FAULTS
    char point[32];
    int64_t ns = work_ns(clock) - before_ns;

    snprintf(point, sizeof point, "train.slow.%d", s->args.rank);
    if (!LS_FAULT(point))
        return;
    nanosleep(&(struct timespec){ns / LS_NS_PER_S, ns % LS_NS_PER_S}, NULL);
    ls_step_clock_lap(clock, LS_TIME_BACKWARD);
#else
    (void)s;
    (void)before_ns;
    (void)clock;
#endif
}

/* The stack's top sums of elements first .. end-1, after a call was put on it. */
static void merge(ls_step *s, int top, int merges, int64_t first, int64_t end)
{
    for (; merges > 0 && first < end; merges--, top--) {
        float *below = s->grads[top - 2], *above = s->grads[top - 1];
        s->args.kernels->add(s->args.stream, &(ls_add){.a = below + first,
                                                       .b = above + first,
                                                       .out = below + first,
                                                       .n = end - first});
    }
}

static void buffers_of(const ls_step *s, float *buffers[LS_ORDERED_ROOTS])
{
    for (int i = 0; i < s->now.buffers && (i == 0 || !ls_step_parts(s)); i++)
        buffers[i] = s->grads[i];
}

ls_status ls_step_trouble(const ls_step *s)
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

/* For tests: a bit of a gradient changes by itself (LINESHAFT_FAULT=train.flip.gradient.R.S: on
 * rank R in step S, counted from 1). */
static void flip_gradient(ls_step *s, int64_t from)
{
#ifdef LS_FAULTS
    char point[64];

    snprintf(point, sizeof point, "train.flip.gradient.%d.%lld", s->args.rank,
             (long long)s->done + 1);
    if (from == 0 && !s->discrete && LS_FAULT(point))
        ((unsigned char *)s->grads[s->last.top > 0 ? s->last.top - 1 : 0])[2] ^= 0x40;
#else
    (void)s;
    (void)from;
#endif
}

/* Backward of the last call has completed elements from here on: sum them over the calls, and send
 * the buckets that are complete on their way. */
static void exchange_from(void *context, int64_t from)
{
    ls_step *s = context;
    float *buffers[LS_ORDERED_ROOTS];

    ls_step_lap(s, s->clock, LS_TIME_BACKWARD);
    flip_gradient(s, from);
    ls_step_hash_from(s, from);
    merge(s, s->last.top, s->last.merges, from, s->last.from);
    s->last.from = from;
    ls_step_clock_lap(s->clock, LS_TIME_REDUCE);
    if (ls_step_host_stages(s) && !s->host_zero) {
        ls_step_host_stage_from(s, from, (int)ls_max_i64(1, s->last.top - s->last.merges));
        return;
    }
    if (s->status != LS_OK)
        return;
    buffers_of(s, buffers);
    s->status =
        s->host_zero ? ls_step_host_zero_from(s, from) : ls_dp_sum_from(s->args.dp, buffers, from);
    if (s->status != LS_OK)
        s->why = *ls_err_last();
    ls_step_clock_lap(s->clock, LS_TIME_EXCHANGE);
}

/* Whether other ranks were lost: what is computed from here on is for nothing. */
static bool lost_others(ls_step *s)
{
    if (s->args.dp)
        s->status = ls_comm_check(ls_dp_about(s->args.dp)->comm);
    if (s->status != LS_OK)
        s->why = *ls_err_last();
    return s->status != LS_OK;
}

/* All calls of this rank, their gradients summed as far as they are siblings: in grads[0], and
 * where the rank has a part of the leaves, its roots in the buffers that follow. With other ranks
 * the exchange begins in the last call. */
static void gradients(ls_step *s, ls_step_state *host_state, ls_step_clock *clock)
{
    const ls_calls *calls = &s->now;
    int64_t all = ls_pass_grad_elements(s->args.model, calls->ordered);
    ls_step_part p = {.count = 0};
    int top = 0;

    ls_step_host_stage_begin(s, all);
    if (ls_step_replay_launch(s, host_state, clock)) {
        ls_step_clock_lap(clock, LS_TIME_BACKWARD);
        return;
    }
    while (!lost_others(s) && ls_step_next(s, &p)) {
        ls_pass_call call = ls_step_call(s, &p, top);
        int64_t before_ns = work_ns(clock);
        bool last = s->args.dp && p.number == calls->calls - 1;
        int merges = calls->ordered ? ls_calls_merges(calls, p.first, p.count) : 0;
        ls_step_forward(s, &p, &call, host_state);
        ls_step_lap(s, clock, LS_TIME_FORWARD);
        (void)ls_fault_at(LS_FAULT_AT_BACKWARD);
        if (ls_step_hash_call(s, &p, top, all))
            call.complete = ls_step_hash_from;
        top += calls->ordered;
        if (last) {
            s->last.top = top;
            s->last.merges = merges;
            s->last.from = all;
            call.complete = exchange_from;
        }
        ls_pass_backward(s->pass, &call);
        ls_step_lap(s, clock, LS_TIME_BACKWARD);
        slow_down(s, before_ns, clock);
        if (!last)
            merge(s, top, merges, 0, all);
        top -= merges;
        ls_step_clock_lap(clock, LS_TIME_REDUCE);
    }
}

ls_status ls_step_add_residual(ls_step *step, const float *residual)
{
    ls_step *s = step;
    int64_t bytes = s->args.model->trained * (int64_t)sizeof *residual;
    ls_device *device = ls_stream_device(s->args.stream);
    ls_status st = ls_device_alloc(device, bytes, "debts of an earlier exchange", &s->residual);

    if (st != LS_OK)
        return st;
    ls_stream_copy_in(s->args.stream, s->residual, residual, bytes);
    return ls_step_await(s);
}

/* To the sum of gradients, as far as this rank updates it. */
static ls_status pay(ls_step *s)
{
    ls_status st;

    for (int b = 0; b < ls_step_buckets(s); b++) {
        ls_mesh_part own = ls_step_own(s, b);
        float *sum = (float *)s->grads[0] + own.first;
        if (own.count > 0)
            s->args.kernels->add(s->args.stream, &(ls_add){.a = sum,
                                                           .b = (float *)s->residual + own.first,
                                                           .out = sum,
                                                           .n = own.count});
    }
    st = ls_step_await(s);
    ls_device_free(ls_stream_device(s->args.stream), s->residual);
    s->residual = NULL;
    return st;
}

/* With those of the other ranks: the sum in grads[0], all of it, or the own parts where each rank
 * updates its own. */
static ls_status sum_with_others(ls_step *s, ls_step_clock *clock)
{
    const ls_calls *calls = &s->now;
    float *buffers[LS_ORDERED_ROOTS];
    ls_status st = LS_OK;

    LS_TRY(st, ls_fault_pass(LS_FAULT_AT_REDUCE), out);
    buffers_of(s, buffers);
    if (!s->args.dp) {
        if (calls->ordered)
            ls_pass_tie(s->pass, buffers[0]);
        goto out;
    }
    if (ls_step_host_stages(s)) {
        st = ls_step_host_stage_sum(s, clock);
        goto out;
    }
    LS_TRY(st, ls_step_trouble(s), out);
    if (calls->own == 0) { /* no call has begun it */
        if (!calls->ordered)
            s->args.kernels->fill(s->args.stream,
                                  &(ls_fill){.x = buffers[0], .n = s->args.model->trained});
        LS_TRY(st, ls_dp_sum_from(s->args.dp, buffers, 0), out);
    }
    LS_TRY(st, ls_dp_sum_end(s->args.dp, buffers), out);
out:
    if (s->residual && st == LS_OK)
        st = pay(s);
    ls_step_clock_lap(clock, s->args.dp ? LS_TIME_EXCHANGE : LS_TIME_REDUCE);
    return st;
}

/* A round without a call of this rank: it sums what others have, and its experts serve them. */
static void empty_round(ls_step *s, const ls_pass_call *call, ls_step_clock *clock)
{
    if (!ls_step_is_ep(s)) {
        ls_pass_walk(s->pass, call, true);
        return;
    }
    ls_step_expert_serve(s, false, NULL);
    ls_step_lap(s, clock, LS_TIME_FORWARD);
    ls_step_expert_serve(s, true, call->complete);
    ls_step_lap(s, clock, LS_TIME_BACKWARD);
}

/* Zero 2 and 3: the sum of the own parts, call by call. All ranks go through as many rounds, also
 * those that have fewer calls. */
static ls_status gradients_in_rounds(ls_step *s, ls_step_state *host_state, ls_step_clock *clock)
{
    const ls_calls *calls = &s->args.calls;
    float *buffers[1] = {s->grads[0]};
    ls_step_part p = {.count = 0};
    ls_status st = LS_OK;

    for (int round = 0; round < ls_dp_about(s->args.dp)->rounds; round++) {
        bool has = round < calls->calls && ls_step_next(s, &p);
        ls_pass_call call = ls_step_call(s, &p, 0);
        call.complete = exchange_from;
        s->last.merges = 0;
        if (s->host_zero)
            ls_step_host_zero_round(s, round);
        else
            ls_dp_round(s->args.dp, round, &s->grad_window, s->own_grad);
        if (has) {
            ls_step_forward(s, &p, &call, host_state);
            ls_step_lap(s, clock, LS_TIME_FORWARD);
            (void)ls_fault_at(LS_FAULT_AT_BACKWARD);
            ls_pass_backward(s->pass, &call);
            ls_step_lap(s, clock, LS_TIME_BACKWARD);
        } else {
            empty_round(s, &call, clock);
        }
        LS_TRY(st, ls_step_trouble(s), out);
        LS_TRY(st, ls_fault_pass(LS_FAULT_AT_REDUCE), out);
        LS_TRY(st, s->host_zero ? ls_step_host_zero_end(s) : ls_dp_sum_end(s->args.dp, buffers),
               out);
        ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
    }
    if (s->host_zero &&
        !ls_step_has_mp_group(s)) /* else what a team has parts of is added up first */
        ls_step_host_zero_bring(s);
out:
    return st;
}

/* The sum of all calls of all ranks. */
static ls_status all_gradients(ls_step *s, ls_step_state *host_state, ls_step_clock *clock)
{
    ls_status st;

    s->clock = clock;
    s->mp_group.waited_ns = moves_ns(s);
    if (s->pipeline) {
        st = ls_pipeline_gradients(s, host_state, clock);
    } else if (ls_step_parts(s)) {
        st = gradients_in_rounds(s, host_state, clock);
    } else if (ls_step_is_ep(s)) {
        st = ls_step_expert_gradients(s, host_state, clock);
    } else {
        bool recorded = ls_step_replay_begin(s, clock);
        gradients(s, host_state, clock);
        if (recorded && !ls_step_replay_end(s))
            gradients(s, host_state, clock);
        st = sum_with_others(s, clock);
    }
    s->clock = NULL;
    if (st == LS_OK && s->zero_gather.coming &&
        !ls_step_shards(s)) { /* it had no call that reads them */
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

/* Losses of the own leaves, and those of the others: host_sums, by number of leaf; behind them how
 * long each rank has worked. Others are heard before the update is made: who has made a step knows
 * its loss. */
static ls_status losses(ls_step *s, ls_step_clock *clock)
{
    const ls_calls *calls = &s->now;
    int64_t own = ls_step_has_losses(s) ? calls->own : 0;
    ls_dp *sharers = ls_step_sharers(s);
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
    LS_TRY(st, ls_step_await(s), out);
    if (s->discrete && !sharers)
        ls_step_clock_lap(clock,
                          LS_TIME_BACKWARD); /* of the device; ranks have waited for it before */
    if (!sharers)
        goto out;
    ls_step_clock_lap(clock, LS_TIME_OPTIMIZER);
    sums[calls->leaves + ls_dp_about(sharers)->mesh.rank] = (double)work_ns(clock);
    LS_TRY(st, ls_dp_numbers(sharers, LS_F64, sums, calls->leaves + calls->ranks), out);
    ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
out:
    return st;
}

/* The gradient and its norm are here. Who has heard all losses knows that of everybody: those of a
 * team tell each other first, because losses are told to ranks of the same place only. */
static ls_status vote(ls_step *s, int64_t number, ls_step_clock *clock)
{
    ls_status st = LS_OK;

    s->vote.ready = number;
    if (s->args.heals && ls_step_has_mp_group(s))
        LS_TRY(st, ls_step_group_vote(s), out);
    LS_TRY(st, losses(s, clock), out);
#ifdef LS_FAULTS
    /* For tests: this rank does not hear them (LINESHAFT_FAULT=train.deaf.RANK@STEP). */
    char point[32];
    snprintf(point, sizeof point, "train.deaf.%d", s->args.rank);
    if (LS_FAULT(point))
        st = ls_fail(LS_EPEER, "rank %d has not heard the losses", s->args.rank);
#endif
out:
    return st;
}

/* ls_step_between() */
static ls_status ask_between(ls_step *s, ls_step_clock *clock)
{
    ls_status (*check)(void *) = s->check;
    ls_status st = LS_OK;

    s->check = NULL;
    if (check) {
        st = check(s->check_context);
        ls_step_clock_lap(clock, LS_TIME_OTHER);
    }
    return st;
}

/* Who fails in the middle of it has no whole state. */
static ls_status update(ls_step *s, ls_step_clock *clock)
{
    int64_t number = s->done;
    ls_status st = LS_OK;

    if (s->wait) {
        ls_step_clock_lap(clock, LS_TIME_OPTIMIZER); /* the norm, so far */
        LS_TRY(st, s->wait(s->wait_context), out);
        s->wait = NULL;
        ls_step_clock_lap(clock, LS_TIME_CHECKPOINT);
    }
    s->done = LS_STEP_TORN;
    LS_TRY(st, ls_step_update(s, clock), out);
    LS_TRY(st, ls_step_fault(s, LS_FAULT_AT_UPDATE), out);
    s->done = number;
out:
    return st;
}

ls_status ls_step_run(ls_step *step, const ls_step_batch *batch, int64_t number, double lr,
                      ls_step_clock *clock, ls_step_result *result_out)
{
    const ls_calls *calls = &step->now;
    int64_t tokens = calls->sequences * ls_step_tokens(step);
    step->counted = batch->counted ? batch->counted : tokens;
    ls_step_state host_state = ls_step_numbers(step, number, lr);
    ls_status st = LS_OK;

    step->spoiled = LS_FAULT("train.nonfinite");
    if (step->spoiled || LS_FAULT("train.nonfinite.once"))
        host_state.grad_scale = NAN;
    copy_windows(step, batch, 0, calls->own * calls->leaf);
    if (calls->own == 0) { /* the update reads it */
        step->host_states[0] = host_state;
        ls_step_send_numbers(step, 0);
    }
    ls_step_clock_lap(clock, LS_TIME_DATA);
    step->done = number;
    step->vote.ready = -1;
    step->vote.made = false;
    LS_TRY(st, ls_fault_pass(LS_FAULT_AT_FORWARD), out);
    LS_TRY(st, all_gradients(step, &host_state, clock), out);
    LS_TRY(st, ask_between(step, clock), out);
    LS_TRY(st, ls_replica_copy_send(step->args.buddy, step, number), out);
    LS_TRY(st, ls_step_fault(step, LS_FAULT_AT_VOTE), out);
    LS_TRY(st, ls_step_norm(step), out);
    LS_TRY(st, ls_replica_copy_await(step->args.buddy), out);
    LS_TRY(st, ls_replica_pair_exchange(step), out);
    LS_TRY(st, vote(step, number, clock), out);
    ls_step_replay_judge(step);
    double sum = tree_sum(step->host_sums, calls->leaves);
    bool finite = step->host_norm->bad_block < 0 && isfinite(sum); /* the same on all ranks */
    const ls_step_result result = {.loss = sum / (double)step->counted,
                                   .grad_norm = (double)step->host_norm->norm,
                                   .lr = lr,
                                   .finite = finite};
    ls_replica_copy_vote(step->args.buddy, &result);
    step->vote.heard = number + 1;
    step->vote.result = result;
    if (finite)
        LS_TRY(st, update(step, clock), out);
    step->done = number + 1;
    if (clock->profile) /* which has all work of a step inside of it */
        LS_TRY(st, ls_step_await(step), out);
    ls_step_clock_lap(clock, LS_TIME_OPTIMIZER);
    *result_out = result;
out:
    return st;
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
        copy_windows(step, windows, done, B);
        if (step->pipeline)
            LS_TRY(st, ls_pipeline_forward(step, &call), out);
        else
            ls_pass_loss(step->pass, &call);
        LS_TRY(st, ls_step_trouble(step), out);
        if (!ls_step_has_losses(step)) {
            memset(sums_out + done, 0, (size_t)B * sizeof *sums_out);
            continue;
        }
        step->args.kernels->sum(
            step->args.stream,
            &(ls_sum){.x = step->losses, .out = step->sums, .n = B * T, .segments = B});
        ls_stream_copy_out(step->args.stream, step->host_sums, step->sums,
                           B * (int64_t)sizeof(double));
        LS_TRY(st, ls_step_await(step), out);
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

void ls_step_between(ls_step *step, ls_status (*check)(void *context), void *context)
{
    step->check = check;
    step->check_context = context;
}

void ls_step_before_update(ls_step *step, ls_status (*wait)(void *context), void *context)
{
    step->wait = wait;
    step->wait_context = context;
}

ls_pass *ls_step_pass(const ls_step *step)
{
    return step->pass;
}

/* n weights of the own copy from `place` on, the first of which has the number `number`. */
static void renew_copy(const ls_step *s, int64_t place, int64_t number, int64_t n)
{
    s->args.kernels->cast(s->args.stream,
                          &(ls_cast){.from_type = LS_F32,
                                     .to_type = s->type,
                                     .from = (float *)s->state_memory[0] + place,
                                     .to = (char *)s->copy + place * ls_dtype_bytes(s->type),
                                     .n = n,
                                     .rounding = ls_step_rounding(s->args.run, number)});
}

ls_status ls_step_weights_changed(ls_step *step)
{
    const ls_step *s = step;

    ls_packed_weights_changed(s->args.packs);
    if (s->pipeline)
        ls_pipeline_changed(step);
    else if (s->copy && !ls_step_shards(s))
        renew_copy(s, 0, 0, s->args.model->flat);
    for (int b = 0; s->copy && ls_step_shards(s) && b < ls_step_sums(s); b++) {
        ls_mesh_part own = ls_step_sum(s, b);
        renew_copy(s, own.packed, own.first, own.count);
    }
    return ls_step_forget(step);
}

bool ls_step_has_losses(const ls_step *step)
{
    return ls_pipeline_has_losses(step);
}
