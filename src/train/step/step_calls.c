/* step_calls.c -- the calls of a step: which leaves this rank computes, in which order, and what a
 * call reads. The rows of step_mode.h run them; validation runs forward passes only.
 *
 * Example: 8 leaves of a batch, 2 ranks, batch.group 2. Rank 1 has leaves 4 .. 7: its calls are
 *
 *     number 0   leaves 4 5   gradient to grads[0]
 *     number 1   leaves 6 7   gradient to the next buffer of the stack (dense_step.c)
 *
 * The numbers of each call (dropout key, first sequence, scale) have a place of their own in host
 * memory, because the device may not have copied those of the call before. */
#include "train/step/step_impl.h"

#include "base/rng.h"
#include "optim/optim.h"

ls_status ls_step_split(ls_step *s, const ls_ordered_run *runs, int64_t leaves)
{
    ls_dp *batch = ls_step_batch_dp(s);

    ls_calls_set(&s->args.calls, runs[batch ? ls_dp_args_of(batch)->mesh.rank : 0], leaves,
                 &s->now);
    if (s->mode->split)
        return s->mode->split(s, runs);
    return s->args.dp ? ls_dp_split(s->args.dp, runs, leaves) : LS_OK;
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

/* Nothing is queued that still reads the staging memory. */
void ls_step_copy_sequences(ls_step *s, const ls_step_batch *batch, int64_t first, int64_t count)
{
    int64_t whole = s->args.model->shape.T, T = ls_step_tokens(s), all = ls_step_held(s) * T;
    int64_t bytes = count * T * (int64_t)sizeof(int32_t);
    const int32_t *const from[3] = {batch->tokens, batch->targets, batch->start};
    int32_t *const to[3] = {s->tokens, s->targets, s->start};

    s->isolated = batch->start != NULL;
    s->restart = batch->restart;
    for (int i = 0; i < 3; i++) {
        if (!from[i])
            continue;
        take_pieces(s, from[i] + first * whole, count, s->host_tokens + i * all);
        ls_stream_copy_in(s->args.stream, to[i], s->host_tokens + i * all, bytes);
    }
    if (ls_step_has_pairs(s))
        ls_step_copy_references(s, batch->references ? batch->references + first : NULL, count);
}

ls_step_state ls_step_scalars(const ls_step *s, int64_t number, double lr)
{
    const ls_run *run = s->args.run;
    ls_rng_key key =
        ls_rng_derive((uint64_t)run->train.seed, 0x64726f70 /* "drop" */, (uint64_t)number);
    ls_step_state state = ls_optim_numbers(run, (double)(number + 1), 1, lr);

    state.key[0] = key.k[0];
    state.key[1] = key.k[1];
    /* The loss scale multiplies here; norm2 takes it out again (optim/loss_scaler.h). */
    state.grad_scale = (float)(s->loss_scale / (double)ls_max_i64(1, s->counted));
    state.loss_scale = (float)s->loss_scale;
    return state;
}

void ls_step_send_scalars(ls_step *s, int64_t call)
{
    ls_stream_copy_in(s->args.stream, s->state, &s->host_states[call], sizeof *s->host_states);
}

void ls_step_set_scalars(ls_step *s, const ls_step_leaves *p, ls_step_state *host_state)
{
    host_state->first_seq = (uint32_t)ls_calls_sequence(&s->now, p->first);
    s->host_states[p->number] = *host_state;
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
    int64_t T = ls_step_tokens(s), sequence = (p->first - calls->first) * calls->leaf;
    int64_t at = sequence * T;

    return (ls_pass_call){
        .w = ls_step_read(s),
        .tokens = s->tokens + at,
        .targets = s->targets + at,
        .start = s->isolated ? s->start + at : NULL,
        .restart = s->restart,
        .B = p->count * calls->leaf,
        .T = T,
        .dropout = true,
        .state = s->state,
        .losses = s->losses + at,
        .preference = ls_step_pass_preference(s, sequence, calls->own * calls->leaf),
        .grad = s->grads[buffer],
        .leaves = calls->ordered ? p->count : 1,
        .ordered = calls->ordered,
        .accumulate = !calls->ordered && !ls_step_divides_grads(s) && p->number > 0,
        .need = ls_step_divides(s) ? ls_step_need : NULL,
        .context = s};
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

const double *ls_step_work_ns(const ls_step *step)
{
    return step->host_sums + ls_step_numbers(step) * step->now.leaves;
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
    int64_t numbers = ls_step_numbers(step);
    bool pairs = ls_step_has_pairs(step);
    ls_status st = LS_OK;

    for (int64_t done = 0; done < sequences; done += most) {
        int64_t B = ls_min_i64(most, sequences - done);
        const ls_pass_call call = {.w = ls_step_read(step),
                                   .tokens = step->tokens,
                                   .targets = step->targets,
                                   .start = windows->start ? step->start : NULL,
                                   .restart = windows->restart,
                                   .B = B,
                                   .T = T,
                                   .leaves = 1,
                                   .state = step->state,
                                   .losses = step->losses,
                                   .preference = ls_step_pass_preference(step, 0, B),
                                   .need = ls_step_divides(step) ? ls_step_need : NULL,
                                   .context = step};
        ls_step_copy_sequences(step, windows, done, B);
        LS_TRY(st, ls_step_forward_only(step, &call), out);
        LS_TRY(st, ls_step_recorded(step), out);
        if (!ls_step_has_losses(step)) {
            if (step->discrete) /* the windows may still be on their way to the device */
                LS_TRY(st, ls_step_sync(step), out);
            for (int64_t k = 0; k < numbers; k++)
                memset(sums_out + k * sequences + done, 0, (size_t)B * sizeof *sums_out);
            continue;
        }
        const ls_sum sum = {.x = pairs ? step->preference.numbers : step->losses,
                            .out = pairs ? step->preference.sums : step->sums,
                            .n = pairs ? numbers * B : B * T,
                            .segments = numbers * B};
        step->args.kernels->sum(step->args.stream, &sum);
        ls_stream_copy_out(step->args.stream, step->host_sums, sum.out,
                           sum.segments * (int64_t)sizeof(double));
        LS_TRY(st, ls_step_sync(step), out);
        for (int64_t k = 0; k < numbers; k++)
            memcpy(sums_out + k * sequences + done, step->host_sums + k * B,
                   (size_t)B * sizeof *sums_out);
    }
out:
    return st;
}
