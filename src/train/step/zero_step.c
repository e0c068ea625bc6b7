/* zero_step.c -- ZeRO: the ranks that hold the same weights divide them, bucket by bucket, and each
 * updates its own part.
 *
 *     stage   gradient of a call     sums of gradients   moments    weights
 *     1       whole                  whole               own part   gathered after the update
 *     2       bucket by bucket       own part            own part   gathered after the update
 *     3       bucket by bucket       own part            own part   own part, gathered before use
 *
 *     one bucket d c b a of 2 ranks, stage 2           rank 0           rank 1
 *     backward of a call makes it                      d0 c0 b0 a0      d1 c1 b1 a1
 *     reduce-scatter, while backward goes on           d0+d1 c0+c1      b0+b1 a0+a1
 *     after the last call: norm of the own part, squares shared; update; gather of new weights
 *
 * With stage 1 gradients are summed once a step as without ZeRO (dense_step.c). With 2 and 3 they
 * are summed for every call, because no rank has room for a sum of its own calls: calls are rounds,
 * and a rank without a call left takes part in the exchanges of the others (empty_round). Weights
 * that come are in zero_gather.c. */
#include "train/step/step_impl.h"

#include "base/fault.h"

static bool fits(const ls_step_args *args)
{
    return args->dp && ls_dp_args_of(args->dp)->mesh.zero >= 2;
}

static bool fits_update(const ls_step_args *args)
{
    return args->dp && ls_dp_args_of(args->dp)->mesh.zero == 1;
}

int ls_step_zero_parts(const ls_step *s, ls_mesh_part *parts_out)
{
    int n = ls_dp_buckets(s->args.dp);

    for (int b = 0; b < n && parts_out; b++)
        parts_out[b] = ls_dp_own(s->args.dp, b);
    return n;
}

int ls_step_zero_weights(const ls_step *s, ls_mesh_part *parts_out)
{
    return ls_step_divides_weights(s) ? ls_step_zero_parts(s, parts_out)
                                      : ls_step_all(s->args.model->flat, parts_out);
}

/* --- gradients -------------------------------------------------------------------------------- */

void ls_step_zero_ready(ls_step *s, int64_t from)
{
    ls_step_hash_from(s, from);
    if (s->status == LS_OK)
        ls_step_record(s, s->exchange->ready(s, from));
}

ls_status ls_step_zero_gradients(ls_step *s, ls_step_state *host_state, ls_step_clock *clock)
{
    ls_step_leaves p = {.count = 0};
    ls_status st = LS_OK;

    for (int round = 0; round < s->mode->rounds(s); round++) {
        bool has = round < s->args.calls.calls && ls_step_next(s, &p);
        ls_pass_call call = ls_step_call(s, &p, 0);
        call.complete = ls_step_bucket_ready;
        s->exchange->round(s, round);
        if (has) {
            ls_step_forward(s, &p, &call, host_state);
            ls_step_lap(s, clock, LS_TIME_FORWARD);
            (void)ls_fault_at(LS_FAULT_AT_BACKWARD);
            ls_pass_backward(s->pass, &call);
            ls_step_lap(s, clock, LS_TIME_BACKWARD);
        } else {
            s->mode->empty_round(s, &call, clock);
        }
        LS_TRY(st, ls_step_recorded(s), out);
        LS_TRY(st, ls_fault_pass(LS_FAULT_AT_REDUCE), out);
        LS_TRY(st, s->exchange->end_round(s), out);
        ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
    }
    if (s->exchange->bring && !ls_step_has_mp_group(s)) /* else the ranks of one model add first */
        s->exchange->bring(s);
out:
    return st;
}

float *ls_step_zero_gradient(const ls_step *s, int64_t element)
{
    return s->own_grad + ls_step_packed(s, element);
}

int64_t ls_step_zero_rounds(const ls_step *s)
{
    return ls_dp_args_of(s->args.dp)->rounds;
}

static void empty_round(ls_step *s, const ls_pass_call *call, ls_step_clock *clock)
{
    (void)clock;
    ls_pass_walk(s->pass, call, true);
}

static void idle(ls_step *s)
{
    if (ls_step_divides_weights(s))
        ls_pass_walk(s->pass, &(ls_pass_call){.need = ls_step_need, .context = s}, false);
}

/* --- norm and update -------------------------------------------------------------------------- */

/* Each rank squares the blocks of its own part; zeros stand where the others have theirs, so the
 * sum over ranks changes no bit. */
static ls_status norm(ls_step *s, const ls_norm2 *whole)
{
    int64_t blocks = (whole->n + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;
    ls_norm2 own = *whole, join = *whole;
    ls_status st;

    own.part = LS_NORM_SQUARES;
    join.part = LS_NORM_JOIN;
    s->args.kernels->fill(s->args.stream, &(ls_fill){.x = whole->partials, .n = blocks});
    for (int b = 0; b < s->parts.own.n; b++) {
        ls_mesh_part part = s->parts.own.at[b];
        own.x = ls_step_own_gradient(s, part);
        own.partials = whole->partials + part.first / LS_NORM_BLOCK;
        own.n = part.count;
        if (part.count > 0)
            s->args.kernels->norm2(s->args.stream, &own);
    }
    st = ls_step_sum_in_group(s, whole->partials, blocks);
    if (st == LS_OK)
        s->args.kernels->norm2(s->args.stream, &join);
    return st;
}

ls_status ls_step_zero_spread(ls_step *s, ls_step_clock *clock)
{
    ls_status st;

    ls_step_clock_lap(clock, LS_TIME_OPTIMIZER);
    if (ls_step_divides_weights(s))
        return ls_step_forget(s);
    st = s->exchange->spread(s);
    ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
    return st;
}

ls_status ls_step_zero_complete(ls_step *s)
{
    return ls_step_gather(s, s->state_memory[0]);
}

const ls_step_mode ls_step_mode_zero_update = {.fits = fits_update,
                                               .parts = ls_step_zero_parts,
                                               .graphs = true,
                                               .gradients = ls_step_dense_gradients,
                                               .ready = ls_step_dense_ready,
                                               .norm = norm,
                                               .spread = ls_step_zero_spread,
                                               .complete = ls_step_zero_complete};

const ls_step_mode ls_step_mode_zero = {.fits = fits,
                                        .parts = ls_step_zero_parts,
                                        .weights = ls_step_zero_weights,
                                        .gradients = ls_step_zero_gradients,
                                        .ready = ls_step_zero_ready,
                                        .gradient = ls_step_zero_gradient,
                                        .norm = norm,
                                        .spread = ls_step_zero_spread,
                                        .rounds = ls_step_zero_rounds,
                                        .idle = idle,
                                        .empty_round = empty_round,
                                        .complete = ls_step_zero_complete};
