/* sdc_replay.c -- a call is computed again, and its hash compared.
 *
 * The rank that computes a call again has memory of its own for it: tokens, losses and a gradient;
 * what the step keeps for its update is left alone. Gradients are hashed from the last element to
 * the first, in the pieces in which backward completes them, which are the same on all ranks.
 *
 * Which rank is wrong, when the hashes of owner (o) and helper (h) differ? The owner computes the
 * call once more (o'), and then a third rank, if there is one (t):
 *
 *     o' == h              the owner, at that time
 *     o' is neither        the owner
 *     o' == o, t == h      the owner; t == o: the helper; t is neither: not known
 *     o' == o, no third    the helper computes it once more: the helper, if that differs from h
 *     not known            the run ends, and names both
 *
 * Example, 3 ranks: leaf 5 is rank 1's. Rank 1 hashes 7a, the helper, rank 2, 31, rank 1 again 7a,
 * rank 0 7a. Rank 2 is corrupt. */
#include "train/sdc/sdc_replay.h"

#include <math.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "config/ramp.h"
#include "train/step/step_impl.h"
#include "train/sdc/sdc_compare.h"

/* Leaves first .. first+count-1, which a rank has in one call. */
typedef struct leaf_run {
    int owner;
    int64_t first, count;
} leaf_run;

struct ls_sdc_replay {
    ls_sample_order order;
    bool isolate;
    int64_t *most;   /* owned: leaves that each rank has room for in a call */
    int64_t tokens;  /* of the largest call here */
    int32_t *window; /* owned, device: tokens, targets, starts; behind them losses */
    float *grad;     /* owned, device */
    leaf_run drawn;
    int helper;
};

/* --- making a call ---------------------------------------------------------------------------- */

/* A gradient that is hashed while it is computed. */
typedef struct hashed_gradient {
    const float *grad;
    int64_t end; /* elements from here on are hashed */
    ls_hash hash;
} hashed_gradient;

static void hash_from(void *context, int64_t from)
{
    hashed_gradient *n = context;

    ls_step_add_piece(&n->hash, n->grad + from, n->end - from);
    n->end = from;
}

static ls_status open_memory(ls_session *s, struct ls_sdc_replay *a)
{
    ls_calls calls;
    void *memory;
    ls_status st;

    ls_calls_plan(s->run, &s->mesh, &calls);
    a->tokens = calls.most * calls.leaf * s->model.shape.T;
    LS_TRY(st,
           ls_device_alloc(s->device, a->tokens * 4 * (int64_t)sizeof(int32_t),
                           "sequences of another rank", &memory),
           out);
    a->window = memory;
    LS_TRY(st,
           ls_device_alloc(s->device,
                           ls_pass_grad_elements(&s->model, true) * (int64_t)sizeof(float),
                           "a gradient that is made again", &memory),
           out);
    a->grad = memory;
out:
    return st;
}

static void close_memory(ls_session *s)
{
    ls_device_free(s->device, s->sdc.replay->window);
    ls_device_free(s->device, s->sdc.replay->grad);
    s->sdc.replay->window = NULL;
    s->sdc.replay->grad = NULL;
}

/* The sequences of some leaves of the step that runs. */
static ls_status read_windows(const ls_session *s, const leaf_run *which)
{
    const struct ls_sdc_replay *a = s->sdc.replay;
    int64_t T = s->model.shape.T, leaf = s->run->batch.leaf;
    int64_t position = ls_ramp_samples(s->run, s->step_number) + which->first * leaf;
    ls_status st = LS_OK;

    for (int64_t b = 0; b < which->count * leaf && st == LS_OK; b++) {
        ls_sample sample = ls_sample_order_at(&a->order, position + b);
        int32_t *at = a->window + b * T;
        st = ls_corpus_window(s->data.corpus, sample.source, sample.first, T, at, at + a->tokens,
                              a->isolate ? at + 2 * a->tokens : NULL);
    }
    return st;
}

/* The gradient and the losses of a call, from the weights of before the update. */
static ls_status compute(ls_session *s, const leaf_run *which, ls_hash *hash_out)
{
    struct ls_sdc_replay *a = s->sdc.replay;
    ls_step *step = s->step;
    ls_step_state before = *step->state;
    int64_t all = ls_pass_grad_elements(&s->model, true);
    hashed_gradient n = {.grad = a->grad, .end = all};
    const ls_pass_call call = {.w = ls_step_read(step),
                               .tokens = a->window,
                               .targets = a->window + a->tokens,
                               .start = a->isolate ? a->window + 2 * a->tokens : NULL,
                               .restart = !s->progress.positions_run_on,
                               .B = which->count * s->run->batch.leaf,
                               .T = s->model.shape.T,
                               .dropout = true,
                               .state = step->state,
                               .losses = (float *)(void *)(a->window + 3 * a->tokens),
                               .grad = a->grad,
                               .leaves = which->count,
                               .ordered = true,
                               .complete = hash_from,
                               .context = &n};
    ls_status st = read_windows(s, which);

    if (st != LS_OK)
        return st;
    *step->state = ls_step_scalars(step, s->step_number, 0);
    step->state->first_seq = (uint32_t)(which->first * s->run->batch.leaf);
    ls_pass_forward(step->pass, &call);
    ls_pass_backward(step->pass, &call);
    *step->state = before;
    *hash_out = n.hash;
    return LS_OK;
}

/* --- opening ---------------------------------------------------------------------------------- */

/* Whether calls have the same bits on all ranks, and are in reach. */
static bool can(const ls_session *s)
{
    return s->mesh.ranks > 1 && !s->mesh.independent && ls_mesh_whole(&s->mesh) &&
           ls_mesh_cp(&s->mesh) == 1 && s->mesh.zero < 2 && !s->discrete &&
           s->run->train.reduce == LS_REDUCE_ORDERED && s->run->train.objective == LS_OBJECTIVE_LM;
}

ls_status ls_sdc_replay_open(ls_session *s)
{
    struct ls_sdc_replay *a;
    ls_status st;

    if (!can(s))
        return LS_OK;
    a = s->sdc.replay = ls_mem_alloc(sizeof *a);
    if (!a)
        return LS_ENOMEM;
    a->isolate = s->run->data.isolate || ls_corpus_isolates(s->data.corpus);
    a->most = ls_mem_array((size_t)s->mesh.ranks, sizeof *a->most);
    if (!a->most)
        return LS_ENOMEM;
    for (int r = 0; r < s->mesh.ranks; r++) {
        ls_mesh other = s->mesh;
        ls_calls calls;
        other.rank = r;
        ls_calls_plan(s->run, &other, &calls);
        a->most[r] = calls.most;
    }
    LS_TRY(
        st,
        ls_corpus_order(s->data.corpus, (uint64_t)s->run->train.seed, s->model.shape.T, &a->order),
        out);
    if (s->run->heal.replay > 0)
        st = open_memory(s, a);
out:
    return st;
}

void ls_sdc_replay_close(ls_session *s)
{
    if (!s->sdc.replay)
        return;
    close_memory(s);
    ls_mem_free(s->sdc.replay->most);
    ls_mem_free(s->sdc.replay);
    s->sdc.replay = NULL;
}

/* --- a leaf now and then ---------------------------------------------------------------------- */

/* The next rank behind `after`, other than `but`, with room for a call of this many leaves; -1: none. */
static int next_able(const ls_session *s, int after, int64_t count, int but)
{
    for (int k = 1; k < s->mesh.ranks; k++) {
        int r = (after + k) % s->mesh.ranks;
        if (r != but && s->sdc.replay->most[r] >= count)
            return r;
    }
    return -1;
}

/* The call of a rank that a leaf is in. */
static leaf_run call_of(const ls_session *s, int rank, int64_t leaf)
{
    ls_ordered_run run = s->data.slice.set[rank];
    ls_calls calls = s->step->now;
    leaf_run which = {.owner = rank, .first = run.first};

    calls.first = run.first;
    calls.own = run.count;
    while (which.count = ls_calls_at(&calls, which.first), leaf >= which.first + which.count)
        which.first += which.count;
    return which;
}

static int owner_of(const ls_session *s, int64_t leaf)
{
    int r = 0;

    while (leaf >= s->data.slice.set[r].first + s->data.slice.set[r].count)
        r++;
    return r;
}

/* One rank computes it; all receive its hash. */
static ls_status compute_and_share(ls_session *s, int rank, ls_hash *hash_out)
{
    ls_status st = LS_OK;

    if (s->mesh.rank == rank)
        LS_TRY(st, compute(s, &s->sdc.replay->drawn, hash_out), out);
    st = ls_dp_broadcast(s->dp, rank, hash_out, sizeof *hash_out);
out:
    return st;
}

/* Which rank is wrong; -1: not known. */
static ls_status find_wrong(ls_session *s, ls_hash owners, ls_hash helpers, int *wrong_out)
{
    const struct ls_sdc_replay *a = s->sdc.replay;
    int third = next_able(s, a->helper, a->drawn.count, a->drawn.owner);
    ls_hash again, other;
    ls_status st;

    LS_TRY(st, compute_and_share(s, a->drawn.owner, &again), out);
    *wrong_out = a->drawn.owner;
    if (!ls_hash_equal(again, owners))
        goto out;
    LS_TRY(st, compute_and_share(s, third >= 0 ? third : a->helper, &other), out);
    if (third < 0)
        *wrong_out = ls_hash_equal(other, helpers) ? -1 : a->helper;
    else if (!ls_hash_equal(other, helpers))
        *wrong_out = ls_hash_equal(other, owners) ? a->helper : -1;
out:
    return st;
}

/* ls_step_set_hook(LS_STEP_SUMMED), on all ranks. */
static ls_status check(void *context)
{
    ls_session *s = context;
    const struct ls_sdc_replay *a = s->sdc.replay;
    long long first = (long long)a->drawn.first + 1, step = (long long)s->step_number + 1;
    ls_hash owners = s->step->hasher.hash, helpers = {.hi = 0};
    char why[200];
    int wrong;
    ls_status st;

    LS_TRY(st, ls_dp_broadcast(s->dp, a->drawn.owner, &owners, sizeof owners), out);
    LS_TRY(st, compute_and_share(s, a->helper, &helpers), out);
    ls_log(LS_LOG_DEBUG, "step %lld: leaf %lld of rank %d is made again by rank %d", step, first,
           a->drawn.owner, a->helper);
    if (ls_hash_equal(owners, helpers))
        goto out;
    LS_TRY(st, find_wrong(s, owners, helpers, &wrong), out);
    if (wrong >= 0) {
        snprintf(why, sizeof why,
                 "the gradient that it makes of leaf %lld in step %lld is not what others make",
                 first, step);
        return ls_sdc_compare_accuse(s, wrong, why);
    }
    st = ls_fail(LS_EFAIL,
                 "ranks %d and %d make different gradients of leaf %lld in step %lld, and no "
                 "other rank can decide which is right",
                 a->drawn.owner, a->helper, first, step);
    ls_err_hint("The memory or processor of one of them is faulty; with a third rank a check "
                "can find out which.");
out:
    return st;
}

ls_status ls_sdc_replay_begin(ls_session *s)
{
    struct ls_sdc_replay *a = s->sdc.replay;
    int64_t every = s->run->heal.replay, number = s->step_number;

    if (!a || every == 0 || (number + 1) % every != 0)
        return LS_OK;
    ls_rng_key key = ls_rng_derive((uint64_t)s->run->train.seed, 0x616761696e, (uint64_t)number);
    int64_t leaf =
        (int64_t)(ls_rng_philox(key, 0, 0, 0, 0).v[0] % (uint64_t)s->data.slice.set_leaves);
    a->drawn = call_of(s, owner_of(s, leaf), leaf);
    a->helper = next_able(s, a->drawn.owner, a->drawn.count, -1);
    if (a->helper < 0) /* no other rank has room for the call */
        return LS_OK;
    if (a->drawn.owner == s->mesh.rank)
        ls_step_hash_leaf(s->step, a->drawn.first);
    ls_step_set_hook(s->step, LS_STEP_SUMMED, check, s);
    return LS_OK;
}

/* --- steps that are not finite ---------------------------------------------------------------- */

static bool all_finite(const float *x, int64_t n)
{
    bool all = true;

    for (int64_t i = 0; i < n; i++)
        all = all && isfinite(x[i]);
    return all;
}

/* Whether all leaves of a rank give finite numbers here. */
static ls_status try_rank(ls_session *s, int rank, bool *finite_out)
{
    const struct ls_sdc_replay *a = s->sdc.replay;
    ls_ordered_run run = s->data.slice.set[rank];
    bool all = !s->step->nan_injected;
    ls_status st = LS_OK;
    ls_hash hash;

    for (int64_t leaf = run.first; leaf < run.first + run.count && all;) {
        leaf_run which = call_of(s, rank, leaf);
        which.first = leaf; /* no larger than there is room for: the sum does not matter */
        which.count = ls_min_i64(which.count, a->most[s->mesh.rank]);
        which.count = ls_min_i64(which.count, run.first + run.count - leaf);
        LS_TRY(st, compute(s, &which, &hash), out);
        int64_t tokens = which.count * s->run->batch.leaf * s->model.shape.T;
        all = all_finite((const float *)(const void *)(a->window + 3 * a->tokens), tokens) &&
              all_finite(a->grad, ls_pass_grad_elements(&s->model, true));
        leaf += which.count;
    }
    *finite_out = all;
out:
    return st;
}

/* The first rank whose own losses were not finite; -1: none. flags: [ranks], zeros. */
static ls_status first_bad(ls_session *s, double *flags, int *rank_out)
{
    const ls_step *step = s->step;
    ls_status st;

    for (int64_t i = 0; i < step->now.own; i++)
        flags[s->mesh.rank] += !isfinite(step->sums[i]);
    st = ls_dp_sum_numbers(s->dp, LS_F64, flags, s->mesh.ranks);
    *rank_out = -1;
    for (int r = s->mesh.ranks - 1; r >= 0; r--)
        *rank_out = flags[r] > 0 ? r : *rank_out;
    return st;
}

static ls_status try_elsewhere(ls_session *s, double *flags)
{
    int other = (s->mesh.rank + s->mesh.ranks - 1) % s->mesh.ranks, wrong;
    double nan_injected;
    bool fine = true;
    ls_status st;

    LS_TRY(st, try_rank(s, other, &fine), out);
    nan_injected = !fine;
    LS_TRY(st, ls_dp_sum_numbers(s->dp, LS_F64, &nan_injected, 1), out);
    if (nan_injected > 0)
        goto out; /* the same elsewhere */
    LS_TRY(st, first_bad(s, flags, &wrong), out);
    s->step->done = s->step->progress.received =
        s->step_number; /* nothing was updated, nor counts */
    s->step->progress.ready = -1;
    if (wrong >= 0)
        return ls_sdc_compare_accuse(s, wrong,
                                     "a loss of its is not finite, but is where others make "
                                     "the same leaves");
    st = ls_fail(LS_EPEER,
                 "step %lld is not finite, but is when other ranks make the same leaves: faulty "
                 "hardware, of which rank is unknown",
                 (long long)s->step_number + 1);
out:
    return st;
}

ls_status ls_sdc_replay_nonfinite(ls_session *s)
{
    bool lent = s->sdc.replay && !s->sdc.replay->grad;
    double *flags = NULL;
    ls_status st = LS_OK;

    if (!s->sdc.replay || !s->args.rejoin || s->progress.nonfinite_step == s->step_number)
        return LS_OK;
    flags = ls_mem_array((size_t)s->mesh.ranks, sizeof *flags);
    if (!flags)
        return LS_ENOMEM;
    if (lent)
        LS_TRY(st, open_memory(s, s->sdc.replay), out);
    LS_TRY(st, ls_sdc_compare_run(s), out);
    st = try_elsewhere(s, flags);
    if (st != LS_OK)
        s->progress.nonfinite_step = s->step_number;
out:
    if (lent)
        close_memory(s);
    ls_mem_free(flags);
    return st;
}
