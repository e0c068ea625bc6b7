/* expert_step.c -- the gradients of a step where ranks have experts each (mesh.ep).
 *
 *   4 ranks, mesh.ep: 2       ranks   0 1   2 3     tokens to experts and back, in every layer
 *                                     |_____|       gradients of the same experts: once in a step
 *                                       |_____|
 *                                     |_|_|_|       gradients of everything else
 *
 * Ranks that divide experts compute in rounds, one call of each of them, since calls meet in every
 * layer. Who has no call left in a round serves those of the others. Gradients are then summed with
 * the ranks that have the same experts; experts are complete with that, since all tokens of those
 * who divide them have reached them. Of everything else each of these has a part, which are summed
 * before the norm (model_groups.c). With ZeRO the ranks that have the same experts divide the sum of all
 * that they have; those who divide experts sum the same elements then, and no others, and divide
 * their update once more (layout/expert_zero.h). With ZeRO 2 and 3 every round is summed (step.c), so all
 * ranks have as many.
 *
 * With a pipeline (mesh.pp) a round is a micro-batch: lines that divide experts have as many, some
 * of which are empty (pipeline.c). With teams (mesh.tp) all of it is done by each place of them. */
#include "base/fault.h"
#include "base/mem.h"
#include "layout/expert_zero.h"
#include "train/step/step_impl.h"

enum { CARRY_S = 600 };

void ls_step_expert_split(ls_step *step, const ls_ordered_run *runs)
{
    ls_step *s = step;
    const ls_mesh *mesh = &ls_dp_about(s->args.batch_dp)->mesh;
    int64_t most = 1, first = mesh->rank / mesh->ep * mesh->ep;

    for (int64_t r = first; r < first + mesh->ep; r++)
        most = ls_max_i64(most, runs[r].count);
    s->ep_group.rounds = (most + s->now.group - 1) / s->now.group;
}

/* With ZeRO 1 and 2 new weights may still be on their way: a call asks for them as it goes, this
 * waits; with 3 it asks too, since all ranks fetch the same. */
void ls_step_expert_serve(ls_step *step, bool backward,
                          void (*complete)(void *context, int64_t from))
{
    bool shards = ls_step_shards(step);

    if (!shards && step->status == LS_OK && (step->status = ls_step_settle(step)) != LS_OK)
        step->why = *ls_err_last();
    const ls_pass_call call = {.w = ls_step_read(step),
                               .grad = step->grads[0],
                               .accumulate = true,
                               .leaves = 1,
                               .need = shards ? ls_step_need : NULL,
                               .complete = complete,
                               .context = step};

    ls_pass_serve(step->pass, &call, backward);
}

/* One call, or none, of this rank. */
static void one_round(ls_step *s, const ls_step_part *p, ls_step_state *host_state,
                      ls_step_clock *clock)
{
    ls_pass_call call = ls_step_call(s, p, 0);

    if (p->count > 0)
        ls_step_forward(s, p, &call, host_state);
    else
        ls_step_expert_serve(s, false, NULL);
    ls_step_lap(s, clock, LS_TIME_FORWARD);
    (void)ls_fault_at(LS_FAULT_AT_BACKWARD);
    if (p->count > 0)
        ls_pass_backward(s->pass, &call);
    else
        ls_step_expert_serve(s, true, NULL);
    ls_step_lap(s, clock, LS_TIME_BACKWARD);
}

ls_status ls_step_expert_gradients(ls_step *step, ls_step_state *host_state, ls_step_clock *clock)
{
    ls_step *s = step;
    float *buffers[1] = {s->grads[0]};
    ls_step_part p = {.count = 0};
    ls_status st = LS_OK;

    if (s->now.own == 0) /* experts add to it */
        s->args.kernels->fill(s->args.stream,
                              &(ls_fill){.x = buffers[0], .n = s->args.model->trained});
    for (int64_t round = 0; round < s->ep_group.rounds; round++) {
        LS_TRY(st, ls_comm_check(ls_step_group(s)), out);
        if (round >= s->now.calls || !ls_step_next(s, &p))
            p.count = 0;
        one_round(s, &p, host_state, clock);
        LS_TRY(st, ls_step_trouble(s), out);
    }
    LS_TRY(st, ls_fault_pass(LS_FAULT_AT_REDUCE), out);
    if (ls_step_host_stages(s)) {
        ls_step_host_stage_begin(s, s->args.model->trained);
        ls_step_host_stage_from(s, 0, 1);
        LS_TRY(st, ls_step_host_stage_sum(s, clock), out);
    } else if (s->args.dp) {
        LS_TRY(st, ls_dp_sum_from(s->args.dp, buffers, 0), out);
        LS_TRY(st, ls_dp_sum_end(s->args.dp, buffers), out);
    }
    ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
out:
    return st;
}

/* --- with ZeRO -------------------------------------------------------------------------------- */

static const ls_mesh alone = {.ranks = 1};

static const ls_mesh *replicas_of(const ls_step *s)
{
    return s->args.dp ? &ls_dp_about(s->args.dp)->mesh : &alone;
}

ls_status ls_step_open_expert(ls_step *step)
{
    ls_step *s = step;
    const ls_mesh *replicas = replicas_of(s);

    if (!s->args.ep_group || !ls_expert_zero_divides(s->args.run, s->args.model, replicas))
        return LS_OK;
    s->ep_group.n_parts = ls_expert_zero_parts(s->args.model, replicas, replicas->rank, NULL);
    s->ep_group.parts = ls_mem_array((size_t)s->ep_group.n_parts, sizeof *s->ep_group.parts);
    if (!s->ep_group.parts)
        return LS_ENOMEM;
    (void)ls_expert_zero_parts(s->args.model, replicas, replicas->rank, s->ep_group.parts);
    return LS_OK;
}

/* The parts of one equal, to their places on the first or from there. */
static ls_status carry_rank(ls_step *s, int rank, float *moments, float *mesh_slice, bool back)
{
    const ls_mesh *replicas = replicas_of(s);
    int n = ls_expert_zero_parts(s->args.model, replicas, rank, NULL),
        peer = replicas->rank == 0 ? rank : 0;
    ls_mesh_part *parts = ls_mem_array((size_t)n, sizeof *parts);
    bool sends = (replicas->rank == 0) == back;
    ls_status st = parts ? LS_OK : LS_ENOMEM;

    if (parts)
        (void)ls_expert_zero_parts(s->args.model, replicas, rank, parts);
    for (int i = 0; i < n && st == LS_OK; i++) {
        float *here = replicas->rank == rank ? moments + parts[i].packed : NULL;
        float *there = replicas->rank == 0 ? mesh_slice + parts[i].first : NULL;
        float *memory = here ? here : there;
        if (here && there)
            memcpy(back ? here : there, back ? there : here, (size_t)parts[i].count * sizeof *here);
        else if (parts[i].count > 0)
            st = ls_comm_run(ls_dp_about(s->args.dp)->comm,
                             &(ls_coll){.kind = sends ? LS_COLL_SEND : LS_COLL_RECV,
                                        .type = LS_F32,
                                        .count = parts[i].count,
                                        .in = memory,
                                        .out = memory,
                                        .peer = peer},
                             ls_time_now_ns() + CARRY_S * LS_NS_PER_S);
    }
    ls_mem_free(parts);
    return st;
}

/* ls_mp_group_keeper.copy, of an array of the host. */
static void copy_host(void *context, int64_t first, int64_t n, float *packed, bool back)
{
    float *x = (float *)context + first;

    memcpy(back ? x : packed, back ? packed : x, (size_t)n * sizeof *x);
}

/* Where equals are first, those that divide experts have all of the others' parts each, but of what
 * is no expert some elements only: they make it whole together. */
static ls_status carry_all(ls_step *s, float *moments, float *mesh_slice, bool back)
{
    const ls_model *model = s->args.model;
    const ls_mesh *replicas = replicas_of(s);
    ls_collectives_span *spans = ls_mem_array((size_t)model->n_params, sizeof *spans);
    ls_status st = spans ? LS_OK : LS_ENOMEM;

    if (mesh_slice && !back)
        memset(mesh_slice, 0, (size_t)model->flat * sizeof *mesh_slice);
    for (int r = 0; r < ls_mesh_ranks(replicas) && st == LS_OK; r++)
        if (replicas->rank == 0 || replicas->rank == r)
            st = carry_rank(s, r, moments, mesh_slice, back);
    if (st == LS_OK && replicas->rank == 0 && !back)
        st = ls_mp_group_sum_kept(s->args.ep_group,
                                  &(ls_mp_group_keeper){.copy = copy_host, .context = mesh_slice},
                                  spans, ls_model_common(model, 0, model->trained, spans), NULL);
    ls_mem_free(spans);
    return st;
}

/* On a device with a memory of its own moments pass through the host's. */
ls_status ls_step_expert_carry(ls_step *step, float *moments, float *mesh_slice, bool back)
{
    ls_step *s = step;
    ls_device *device = ls_stream_device(s->args.stream);
    int64_t bytes = s->own * (int64_t)sizeof *moments;
    void *memory = NULL;
    ls_status st;

    if (!s->discrete)
        return carry_all(s, moments, mesh_slice, back);
    LS_TRY(st, ls_device_host_alloc(device, bytes, "moments on their way", &memory), out);
    if (!back) {
        ls_stream_copy_out(s->args.stream, memory, moments, bytes);
        LS_TRY(st, ls_step_await(s), out);
    }
    LS_TRY(st, carry_all(s, memory, mesh_slice, back), out);
    if (back)
        st = ls_step_send(s, moments, memory, bytes);
out:
    ls_device_host_free(device, memory, bytes);
    return st;
}
