/* expert_step.c -- ranks that hold different experts (mesh.ep).
 *
 *     4 ranks, mesh.ep: 2      ranks   0   1   2   3
 *     experts of a layer               a   b   a   b
 *
 *     in every layer          tokens   0 <-> 1 2 <-> 3     to the rank with their expert, and back
 *     once a step             experts  0 <-----> 2         sum of a's gradients; of b's: 1 and 3
 *                             others   all four            sum of the gradients of all else
 *
 * Ranks that divide experts exchange tokens in every layer, so they compute in rounds, one call
 * each. A rank that has no call left in a round serves the tokens of the others with its experts.
 *
 * The exchange then sums gradients over the ranks that hold the same experts (replicas). Experts
 * are complete with that, since all tokens of this group of ranks have reached them. Of everything
 * else each rank of the group still has a share; these are added before the norm (group_step.c).
 *
 * With ZeRO replicas divide the sum. The ranks that divide experts sum the same elements then, and
 * divide the update of what is no expert once more (layout/expert_zero.h). With ZeRO 2 and 3 every
 * round is summed (zero_step.c).
 *
 * With a pipeline (mesh.pp) a round is a micro-batch, and some are empty (pipeline.c). With mesh.tp
 * each tensor-parallel rank does all of this with the ranks of its own place. */
#include "base/fault.h"
#include "base/mem.h"
#include "layout/expert_zero.h"
#include "parallel/blocking.h"
#include "train/step/step_impl.h"

enum { CARRY_S = 600 };

ls_status ls_step_expert_split(ls_step *s, const ls_ordered_run *runs)
{
    const ls_mesh *mesh = &ls_dp_args_of(s->args.batch_dp)->mesh;
    int64_t most = 1, first = mesh->rank / mesh->ep * mesh->ep;

    for (int64_t r = first; r < first + mesh->ep; r++)
        most = ls_max_i64(most, runs[r].count);
    s->ep_group.rounds = (most + s->now.group - 1) / s->now.group;
    return LS_OK;
}

/* With ZeRO 1 and 2 new weights may still be on their way: a call asks for them unit by unit, this
 * waits for all; with 3 it asks too, since all ranks fetch the same. ready: its gradients are
 * waited for, as those of a call. */
static void serve_experts(ls_step *s, bool backward, bool ready)
{
    bool shards = ls_step_divides_weights(s);

    if (!shards && s->status == LS_OK)
        ls_step_record(s, ls_step_settle(s));
    const ls_pass_call call = {.w = ls_step_read(s),
                               .grad = s->grads[0],
                               .accumulate = true,
                               .leaves = 1,
                               .need = shards ? ls_step_need : NULL,
                               .complete = ready ? ls_step_bucket_ready : NULL,
                               .context = s};

    ls_pass_serve(s->pass, &call, backward);
}

static void idle(ls_step *s)
{
    serve_experts(s, false, false);
}

static void empty_round(ls_step *s, const ls_pass_call *call, ls_step_clock *clock)
{
    serve_experts(s, false, false);
    ls_step_lap(s, clock, LS_TIME_FORWARD);
    serve_experts(s, true, call->complete != NULL);
    ls_step_lap(s, clock, LS_TIME_BACKWARD);
}

static int64_t rounds(const ls_step *s)
{
    return s->ep_group.rounds;
}

/* One call of this rank. */
static void one_round(ls_step *s, const ls_step_leaves *p, ls_step_state *host_state,
                      ls_step_clock *clock)
{
    ls_pass_call call = ls_step_call(s, p, 0);

    ls_step_forward(s, p, &call, host_state);
    ls_step_lap(s, clock, LS_TIME_FORWARD);
    (void)ls_fault_at(LS_FAULT_AT_BACKWARD);
    ls_pass_backward(s->pass, &call);
    ls_step_lap(s, clock, LS_TIME_BACKWARD);
}

/* Gradients of all rounds, which are exchanged at the end: experts get some in every round. */
static ls_status gradients(ls_step *s, ls_step_state *host_state, ls_step_clock *clock)
{
    const ls_step_exchange *exchange = s->exchange;
    ls_step_leaves p = {.count = 0};
    ls_status st = LS_OK;

    if (s->now.own == 0) /* experts add to it */
        s->args.kernels->fill(s->args.stream,
                              &(ls_fill){.x = s->grads[0], .n = s->args.model->trained});
    for (int64_t round = 0; round < s->ep_group.rounds; round++) {
        LS_TRY(st, ls_comm_check(ls_step_group(s)), out);
        if (round < s->now.calls && ls_step_next(s, &p))
            one_round(s, &p, host_state, clock);
        else
            empty_round(s, &(ls_pass_call){.complete = NULL}, clock);
        LS_TRY(st, ls_step_recorded(s), out);
    }
    LS_TRY(st, ls_fault_pass(LS_FAULT_AT_REDUCE), out);
    s->last.begun = true;
    if (exchange->begin)
        exchange->begin(s, s->args.model->trained);
    if (exchange->ready)
        LS_TRY(st, exchange->ready(s, 0), out);
    LS_TRY(st, exchange->sum(s, clock), out);
    ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
out:
    return st;
}

/* --- with ZeRO -------------------------------------------------------------------------------- */

static const ls_mesh alone = {.ranks = 1};

static const ls_mesh *replicas_of(const ls_step *s)
{
    return s->args.dp ? &ls_dp_args_of(s->args.dp)->mesh : &alone;
}

static ls_status plan(ls_step *s)
{
    const ls_mesh *replicas = replicas_of(s);

    if (!ls_expert_zero_divides(s->args.run, s->args.model, replicas))
        return LS_OK;
    ls_step_list *own = &s->ep_group.parts;
    own->n = ls_expert_zero_parts(s->args.model, replicas, replicas->rank, NULL);
    own->at = ls_mem_array((size_t)own->n, sizeof *own->at);
    if (!own->at)
        return LS_ENOMEM;
    (void)ls_expert_zero_parts(s->args.model, replicas, replicas->rank, own->at);
    return LS_OK;
}

/* The parts of one replica, to their places on the first one or from there. */
static ls_status carry_rank(ls_step *s, int rank, float *moments, float *mesh_slice, bool back)
{
    const ls_mesh *replicas = replicas_of(s);
    int n = ls_expert_zero_parts(s->args.model, replicas, rank, NULL);
    ls_mesh_part *parts = ls_mem_array((size_t)n, sizeof *parts);
    ls_status st = parts ? LS_OK : LS_ENOMEM;

    if (parts)
        (void)ls_expert_zero_parts(s->args.model, replicas, rank, parts);
    for (int i = 0; i < n && st == LS_OK; i++) {
        float *here = replicas->rank == rank ? moments + parts[i].packed : NULL;
        float *there = replicas->rank == 0 ? mesh_slice + parts[i].first : NULL;
        if (here && there)
            memcpy(back ? here : there, back ? there : here, (size_t)parts[i].count * sizeof *here);
        else
            st = ls_blocking_carry(ls_dp_args_of(s->args.dp)->comm, back ? 0 : rank,
                                   back ? rank : 0, here ? here : there, parts[i].count,
                                   ls_time_now_ns() + CARRY_S * LS_NS_PER_S);
    }
    ls_mem_free(parts);
    return st;
}

/* ls_mp_group_storage.copy, of an array of the host. */
static void copy_host(void *context, int64_t first, int64_t n, float *packed, bool back)
{
    float *x = (float *)context + first;

    memcpy(back ? x : packed, back ? packed : x, (size_t)n * sizeof *x);
}

/* The first of the replicas gets the parts of the others: whole experts, but of everything else
 * the elements that this rank and its replicas update. The ranks that divide experts add up the
 * rest. */
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
                                  &(ls_mp_group_storage){.copy = copy_host, .context = mesh_slice},
                                  spans, ls_model_common(model, 0, model->trained, spans), NULL);
    ls_mem_free(spans);
    return st;
}

/* On a device with a memory of its own moments pass through host memory. */
ls_status ls_step_expert_carry(ls_step *s, float *moments, float *mesh_slice, bool back)
{
    ls_device *device = ls_step_device(s);
    int64_t bytes = s->own * (int64_t)sizeof *moments;
    void *memory = NULL;
    ls_status st;

    if (!s->discrete)
        return carry_all(s, moments, mesh_slice, back);
    LS_TRY(st, ls_device_host_alloc(device, bytes, "moments on their way", &memory), out);
    if (!back) {
        ls_stream_copy_out(s->args.stream, memory, moments, bytes);
        LS_TRY(st, ls_step_sync(s), out);
    }
    LS_TRY(st, carry_all(s, memory, mesh_slice, back), out);
    if (back)
        st = ls_step_send(s, moments, memory, bytes);
out:
    ls_device_host_free(device, memory, bytes);
    return st;
}

static int parts(const ls_step *s, ls_mesh_part *parts_out)
{
    return ls_step_divides(s) ? ls_step_zero_parts(s, parts_out)
                              : ls_step_all(s->args.model->trained, parts_out);
}

/* First what this rank has updated to the ranks that divide experts with it, then, with ZeRO, the
 * parts of all replicas. */
static ls_status spread(ls_step *s, ls_step_clock *clock)
{
    ls_status st = LS_OK;

    if (s->ep_group.parts.at) {
        ls_step_clock_lap(clock, LS_TIME_OPTIMIZER);
        LS_TRY(st, ls_step_expert_spread(s), out);
        ls_step_clock_lap(clock, LS_TIME_EXCHANGE);
    }
    if (ls_step_divides(s))
        st = ls_step_zero_spread(s, clock);
out:
    return st;
}

static ls_status complete(ls_step *s)
{
    ls_status st = LS_OK;

    if (s->ep_group.parts.at)
        LS_TRY(st, ls_step_expert_spread(s), out);
    if (ls_step_divides(s))
        st = ls_step_zero_complete(s);
out:
    return st;
}

static bool fits(const ls_step_args *args)
{
    return args->batch_dp != NULL;
}

static bool fits_zero(const ls_step_args *args)
{
    return args->batch_dp && args->dp && ls_dp_args_of(args->dp)->mesh.zero >= 2;
}

/* The norm is that of group_step.c, since the ranks that divide experts share a model. */
const ls_step_mode ls_step_mode_expert = {.fits = fits,
                                          .plan = plan,
                                          .parts = parts,
                                          .weights = ls_step_zero_weights,
                                          .split = ls_step_expert_split,
                                          .gradients = gradients,
                                          .spread = spread,
                                          .rounds = rounds,
                                          .idle = idle,
                                          .complete = complete};

const ls_step_mode ls_step_mode_expert_zero = {.fits = fits_zero,
                                               .plan = plan,
                                               .parts = parts,
                                               .weights = ls_step_zero_weights,
                                               .split = ls_step_expert_split,
                                               .gradients = ls_step_zero_gradients,
                                               .ready = ls_step_zero_ready,
                                               .gradient = ls_step_zero_gradient,
                                               .spread = spread,
                                               .rounds = ls_step_zero_rounds,
                                               .idle = idle,
                                               .empty_round = empty_round,
                                               .complete = complete};
