/* far.c -- the gradients of a step where ranks have experts each (mesh.ep).
 *
 *   4 ranks, mesh.ep: 2       team     0     1      tokens to experts and back, in every layer
 *                             ranks   0 1   2 3
 *                                     |_____|       gradients of the same experts: once in a step
 *                                       |_____|
 *                                     |_|_|_|       gradients of everything else
 *
 * A team computes in rounds, one call of each of its ranks, since calls meet in every layer. Who
 * has no call left in a round serves those of the others. Gradients are then summed with the ranks
 * that have the same experts; experts are complete with that, since all tokens of the team have
 * reached them. Of everything else each rank of the team has a part, which are summed before the
 * norm, as those of other teams are (team.c). */
#include "base/fault.h"
#include "train/step_impl.h"

void ls_step_far_split(ls_step *step, const ls_ordered_run *runs)
{
    ls_step *s = step;
    const ls_mesh *mesh = &ls_dp_about(s->args.all)->mesh;
    int64_t most = 1, first = mesh->rank / mesh->ep * mesh->ep;

    for (int64_t r = first; r < first + mesh->ep; r++)
        most = ls_max_i64(most, runs[r].count);
    s->far.rounds = (most + s->now.group - 1) / s->now.group;
}

void ls_step_far_serve(ls_step *step, bool backward)
{
    const ls_pass_call call = {
        .w = ls_step_read(step), .grad = step->grads[0], .accumulate = true, .leaves = 1};

    ls_pass_serve(step->pass, &call, backward);
}

/* One call, or none, of this rank. */
static void one_round(ls_step *s, const ls_step_part *p, ls_step_state *host_state, ls_clock *clock)
{
    ls_pass_call call = ls_step_call(s, p, 0);

    if (p->count > 0)
        ls_step_forward(s, p, &call, host_state);
    else
        ls_step_far_serve(s, false);
    ls_step_lap(s, clock, LS_PART_FORWARD);
    (void)ls_fault_at(LS_FAULT_AT_BACKWARD);
    if (p->count > 0)
        ls_pass_backward(s->pass, &call);
    else
        ls_step_far_serve(s, true);
    ls_step_lap(s, clock, LS_PART_BACKWARD);
}

ls_status ls_step_far_gradients(ls_step *step, ls_step_state *host_state, ls_clock *clock)
{
    ls_step *s = step;
    float *buffers[1] = {s->grads[0]};
    ls_step_part p = {.count = 0};
    ls_status st = LS_OK;

    if (s->now.own == 0) /* experts add to it */
        s->args.kernels->fill(s->args.stream,
                              &(ls_fill){.x = buffers[0], .n = s->args.model->trained});
    for (int64_t round = 0; round < s->far.rounds; round++) {
        LS_TRY(st, ls_comm_check(ls_tensor_comm(s->args.tensor)), out);
        if (round >= s->now.calls || !ls_step_next(s, &p))
            p.count = 0;
        one_round(s, &p, host_state, clock);
    }
    LS_TRY(st, ls_fault_pass(LS_FAULT_AT_REDUCE), out);
    if (s->args.dp) {
        LS_TRY(st, ls_dp_sum_from(s->args.dp, buffers, 0), out);
        LS_TRY(st, ls_dp_sum_end(s->args.dp, buffers), out);
    }
    ls_clock_lap(clock, LS_PART_EXCHANGE);
out:
    return st;
}
