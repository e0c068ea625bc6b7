/* test_products.c -- products of mesh axes (tp, pp, cp, ep, dp and ZeRO): losses, gradients of
 * every tensor, weights and moments beside those of one process; bytes of every axis by formula;
 * memory beside the ledger; arrays of the state to the first rank and back. */
#include <math.h>
#include "base/mem.h"
#include "comm/worlds.h"
#include "model/decode.h"
#include "model/pass_impl.h"
#include "model/tiny.h"
#include "layout/expert_zero.h"
#include "plan/ledger_bytes.h"
#include "train/steps.h"
#include "layout/pipeline_bytes.h"
#include "train/session/model_groups.h"
#include "train/replica/replica_impl.h"
#include "parallel/sum_bytes.h"
#include "model/pass_sent.h"

enum { VOCAB = 67, STEPS = 3, MOST_TOKENS = 16 * 32 };

typedef struct kind {
    const char *name, *world;
    int pp, dp, tp, zero;
    bool sp;
    ls_stage_plan_schedule schedule;
    int64_t chunks, layers, sequences, group;
    ls_family family;
    ls_recompute recompute;
    ls_precision precision;
    ls_reduce reduce;
    bool tied, pack;
    double dropout;
    int64_t width, leaf; /* 0: 24, 1 */
    int cp;              /* 0: 1 */
    bool gather;
    int ep;    /* 0: 1 */
    int shard; /* ranks of a group of replicas; 0: all */
    bool buddies;
    int64_t lora;
    const char *freeze[4]; /* up to the first NULL */
    bool all; /* every token goes to every expert, so that the number of rows sent is known */
} kind;

/* Odd on purpose: tokens and columns that no number of ranks divides; mesh.cp needs 2 cp chunks. */
static ls_run run_of(const kind *k)
{
    ls_run run = ls_tiny_run();

    run.model.layers = k->layers;
    run.model.width = k->width ? k->width : 24;
    run.model.context = k->cp > 1 ? 6 * k->cp : 7;
    run.model.heads = run.model.kv_heads = 4;
    run.model.head_size = 6;
    run.model.mlp = 41;
    run.model.tied = k->tied ? LS_TIED_YES : LS_TIED_NO;
    run.model.dropout = k->dropout;
    if (k->family != LS_FAMILY_GPT2) {
        run.model.family = k->family;
        run.model.bias = LS_BIAS_NONE;
        run.model.kv_heads = 2;
    }
    if (k->family == LS_FAMILY_MIXTRAL || k->family == LS_FAMILY_OLMOE) {
        run.model.experts = 4;
        run.model.experts_used = k->all ? 4 : 2;
        run.model.experts_norm = true;
        run.train.balance_loss = 0.01;
    }
    run.batch.sequences = k->sequences;
    run.batch.group = k->group;
    run.batch.leaf = ls_max_i64(1, k->leaf);
    run.train.clip = 0.3; /* below the norm, so that clipping is at work */
    run.train.recompute = k->recompute;
    run.train.recompute_blocks = k->recompute == LS_RECOMPUTE_FULL ? 2 : LS_RUN_AUTO;
    run.train.reduce = k->reduce;
    run.precision = k->precision;
    run.mesh.pp = k->pp;
    run.mesh.tp = k->tp;
    run.mesh.cp = k->cp > 1 ? k->cp : 1;
    run.mesh.keys = k->gather ? LS_KEYS_GATHER : LS_KEYS_RING;
    run.mesh.sp = k->sp;
    run.mesh.ep = k->ep;
    run.mesh.dp = k->dp;
    run.mesh.schedule = k->schedule;
    run.mesh.chunks = k->chunks;
    run.mesh.zero = k->zero;
    run.mesh.shard = "world";
    run.mesh.bucket = 1; /* as many buckets as there can be */
    run.lora.rank = k->lora;
    run.lora.alpha = 2 * (double)k->lora;
    run.train.freeze.items = (const char **)(uintptr_t)k->freeze; /* only read */
    while (run.train.freeze.count < (int)LS_COUNT(k->freeze) && k->freeze[run.train.freeze.count])
        run.train.freeze.count++;
    return run;
}

/* A process alone, or a rank. */
typedef struct rank {
    ls_run run;
    ls_mesh world, mesh, replicas; /* of all ranks; of the models; of the replicas */
    ls_model model, whole;
    ls_device *device;
    ls_comm *mp_group, *same_part, *beside[2],
        *mesh_slice; /* as in a session; without mesh.tp and mesh.ep same_part is that of
                                                * all ranks, and not owned */
    ls_comm *circle;
    ls_mp_group *tensor, *ep_group, *cp_group;
    ls_step_args args;
    ls_kernels kernels;
    ls_step *step;
    double losses[STEPS], norms[STEPS], validation;
    float *w, *m, *g; /* owned: of the whole model: weights, first moments at the end; the first
                       * step's gradient; on the first rank */
} rank;

/* The ranks first, first + by, ... of a communicator. */
static ls_comm *some_of(ls_comm *comm, int first, int by, int ranks)
{
    int list[LS_WORLD_RANKS];
    ls_comm *sub;

    for (int i = 0; i < ranks; i++)
        list[i] = first + i * by;
    LS_CHECK_OK(ls_comm_sub(comm, list, ranks, INT64_MAX, &sub));
    return sub;
}

static void open_cp(rank *r, ls_comm *comm)
{
    int list[LS_WORLD_RANKS], cp = ls_mesh_cp(&r->world);

    for (int i = 0; i < cp; i++)
        list[i] = ls_mesh_cp_peer(&r->world, r->world.rank, i);
    if (cp == 1)
        return;
    LS_CHECK_OK(ls_comm_sub(comm, list, cp, INT64_MAX, &r->circle));
    LS_CHECK_OK(ls_mp_group_open(&r->cp_group, r->circle, 1));
}

static void open_comms(rank *r, ls_comm *comm)
{
    int tp = ls_mesh_tp(&r->world), ep = ls_mesh_ep(&r->world), mp_group = tp * ep,
        me = r->world.rank;
    bool both = tp > 1 && ep > 1;

    r->same_part = comm;
    if (mp_group == 1)
        return;
    r->mp_group = some_of(comm, me / mp_group * mp_group, 1, mp_group);
    r->same_part =
        r->replicas.ranks > 1 ? some_of(comm, me % mp_group, mp_group, r->replicas.ranks) : NULL;
    r->mesh_slice = some_of(comm, me % tp, tp, r->mesh.ranks);
    if (both) {
        r->beside[0] = some_of(r->mp_group, me % mp_group / tp * tp, 1, tp);
        r->beside[1] = some_of(r->mp_group, me % tp, tp, ep);
    }
    if (tp > 1)
        LS_CHECK_OK(ls_mp_group_open(&r->tensor, both ? r->beside[0] : r->mp_group,
                                     r->model.split.kv_copies));
    if (ep > 1)
        LS_CHECK_OK(ls_mp_group_open(&r->ep_group, both ? r->beside[1] : r->mp_group, 1));
}

static void open_exchange(rank *r)
{
    if (r->same_part) {
        ls_dp_args dp = ls_memory_dp(&r->run, &r->model, &r->replicas);
        dp.comm = r->same_part;
        LS_CHECK_OK(ls_model_groups_open_dp(&r->args.dp, &r->run, dp));
    }
    if (r->ep_group) {
        ls_dp_args numbers = {.comm = r->mesh_slice, .mesh = r->mesh, .leaves = 1, .trained = 1};
        numbers.mesh.zero = numbers.mesh.cp = 0;
        LS_CHECK_OK(ls_dp_open(&r->args.batch_dp, &numbers));
    }
    r->args.tp_group = r->tensor;
    r->args.ep_group = r->ep_group;
    r->args.cp_group = r->cp_group;
    r->args.mp_group = r->mp_group;
}

static void open_rank(rank *r, const kind *k, ls_comm *comm)
{
    *r = (rank){.run = run_of(k), .world = {.ranks = 1}, .mesh = {.ranks = 1}};
    ls_model_split split = {.ranks = 1};

    LS_CHECK_OK(ls_device_open(&r->device, "cpu", 1));
    LS_CHECK_OK(ls_stream_create(&r->args.stream, r->device));
    r->kernels = ls_steps_kernels();
    r->args.kernels = &r->kernels;
    if (comm) {
        LS_CHECK_OK(ls_mesh_init(&r->world, &r->run, ls_comm_ranks(comm), ls_comm_rank(comm)));
        r->world.buddies = k->buddies;
        r->mesh = ls_mesh_slice(&r->world);
        r->replicas = ls_mesh_of_replicas(&r->world);
        r->replicas.bucket = 1;
        r->replicas.shard = k->shard;
        split = (ls_model_split){.rank = r->world.rank % k->tp,
                                 .ranks = k->tp,
                                 .ep_rank = r->world.rank / k->tp % ls_mesh_ep(&r->world),
                                 .ep_ranks = ls_mesh_ep(&r->world),
                                 .sequence = k->sp};
    }
    LS_CHECK_OK(ls_model_init_split(&r->model, &r->run, VOCAB, split));
    LS_CHECK_OK(ls_model_init(&r->whole, &r->run, VOCAB));
    r->args.run = &r->run;
    r->args.model = &r->model;
    r->args.pack = k->pack;
    ls_calls_plan(&r->run, &r->mesh, &r->args.calls);
    if (comm) {
        open_cp(r, comm);
        open_comms(r, comm);
        open_exchange(r);
    }
    LS_CHECK_OK(ls_step_open(&r->step, &r->args));
    ls_steps_start(r->step, &r->model);
}

static void close_rank(rank *r, ls_comm *comm)
{
    ls_step_close(r->step);
    if (comm)
        LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, INT64_MAX));
    ls_dp_close(r->args.dp);
    ls_dp_close(r->args.batch_dp);
    ls_mp_group_close(r->tensor);
    ls_mp_group_close(r->ep_group);
    ls_mp_group_close(r->cp_group);
    for (int i = 0; i < 2; i++)
        ls_comm_close(r->beside[i]);
    ls_comm_close(r->mesh_slice);
    if (r->same_part != comm)
        ls_comm_close(r->same_part);
    ls_comm_close(r->mp_group);
    ls_comm_close(r->circle);
    ls_model_release(&r->model);
    ls_model_release(&r->whole);
    ls_stream_free(r->args.stream);
    ls_device_close(r->device);
    ls_mem_free(r->w);
    ls_mem_free(r->m);
    ls_mem_free(r->g);
}

/* --- arrays of the whole model ----------------------------------------------------------------
 */

/* Elements of the weights, or of a moment, and where a parameter lies in it; -1: nowhere. */
static int64_t elements_of(const ls_model *model, bool moment)
{
    return moment ? model->trained : model->flat;
}

static int64_t place_of(const ls_param *p, bool moment)
{
    return moment ? p->trained : p->first;
}

static void collect(rank *r, const float *array, bool moment, float **whole_out)
{
    size_t n = (size_t)elements_of(&r->whole, moment);

    *whole_out = ls_mem_array(n, sizeof **whole_out);
    LS_CHECK(*whole_out);
    if (r->world.ranks > 1)
        LS_CHECK_OK(ls_step_collect(r->step, array, r->world.rank == 0 ? *whole_out : NULL));
    else
        memcpy(*whole_out, array, n * sizeof **whole_out);
}

/* The sum of gradients, as moments lie. */
static void collect_gradient(rank *r)
{
    float *own = ls_mem_array((size_t)r->model.flat, sizeof *own);

    LS_CHECK(own);
    for (int b = 0; b < r->step->parts.own.n; b++) {
        ls_mesh_part part = r->step->parts.own.at[b];
        if (part.count > 0)
            memcpy(own + part.packed, ls_step_own_gradient(r->step, part),
                   (size_t)part.count * sizeof *own);
    }
    collect(r, own, true, &r->g);
    ls_mem_free(own);
}

static void step(rank *r, int i)
{
    int64_t T = r->run.model.context;
    int64_t first =
        ls_calls_sequence(&r->args.calls, r->args.calls.first); /* of its mesh.cp group */
    int32_t tokens[MOST_TOKENS + 1];
    ls_step_result result;
    ls_step_clock clock;

    LS_CHECK(r->run.batch.sequences * T <= MOST_TOKENS);
    ls_tiny_tokens((uint32_t)i, MOST_TOKENS + 1, VOCAB, tokens);
    ls_step_clock_begin(&clock);
    LS_CHECK_OK(ls_step_run(
        r->step, &(ls_step_batch){.tokens = tokens + first * T, .targets = tokens + first * T + 1},
        i, 1e-3, &clock, &result));
    LS_CHECK(result.finite);
    r->losses[i] = result.loss;
    r->norms[i] = result.grad_norm;
}

static void steps(rank *r)
{
    for (int i = 0; i < STEPS; i++)
        step(r, i);
}

static void train(rank *r)
{
    for (int i = 0; i < STEPS; i++) {
        step(r, i);
        LS_CHECK_OK(ls_step_settle(r->step));
        if (i == 0)
            collect_gradient(r);
    }
    ls_step_arrays state = ls_step_state_arrays(r->step);
    collect(r, state.w, false, &r->w);
    collect(r, state.m, true, &r->m);
}

/* All have three windows; then the first mesh.cp group, or pipeline, has one more while others
 * serve. */
static void validate(rank *r)
{
    bool first = ls_mesh_pipeline(&r->mesh, r->mesh.rank) / ls_mesh_cp(&r->mesh) == 0;
    int32_t tokens[MOST_TOKENS + 1];
    double sums[4] = {0};

    ls_tiny_tokens(77, MOST_TOKENS + 1, VOCAB, tokens);
    const ls_step_batch windows = {.tokens = tokens, .targets = tokens + 1};
    LS_CHECK_OK(ls_step_loss(r->step, &windows, 3, sums));
    LS_CHECK(ls_step_has_losses(r->step) || sums[0] + sums[1] + sums[2] == 0);
    r->validation = sums[0] + sums[1] + sums[2];
    if (first)
        LS_CHECK_OK(ls_step_loss(r->step, &windows, 1, &sums[3]));
    else
        ls_step_idle(r->step);
    LS_CHECK_EQ(r->step->status, LS_OK);
    LS_CHECK(!first || fabs(sums[3] - sums[0]) <= 1e-4 * fabs(sums[0]));
    if (r->circle) /* each has a part of the losses of all windows */
        LS_CHECK_OK(ls_comm_run(r->circle,
                                &(ls_coll){.kind = LS_COLL_ALL_REDUCE,
                                           .type = LS_F64,
                                           .count = 1,
                                           .in = &r->validation,
                                           .out = &r->validation},
                                INT64_MAX));
}

/* --- beside one process ----------------------------------------------------------------------- */

static void check_near(const kind *k, const char *what, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * fabs(want)))
        ls_test_fail(__FILE__, __LINE__, "%s: %s is %.9g, expected %.9g", k->name, what, got, want);
}

/* How far tensors of gradients or moments are apart, beside their size. A key's bias moves all
 * scores of a query alike: its gradient is nothing but rounding, and Adam makes steps of it. */
static void check_tensors(const kind *k, const char *what, const ls_model *whole, const float *got,
                          const float *want, double tolerance)
{
    for (int i = 0; i < whole->n_params; i++) {
        const ls_param *p = &whole->params[i];
        double off = 0, size = 0;
        bool noise = strstr(p->name, "c_attn.bias") || strstr(p->name, "k_proj.bias");
        for (int64_t e = p->trained; e >= 0 && e < p->trained + p->count; e++) {
            double d = (double)got[e] - (double)want[e];
            off += d * d;
            size += (double)want[e] * (double)want[e];
        }
        double most = tolerance * sqrt(size) + (noise ? 1e-2 * tolerance : 1e-9);
        if (!(sqrt(off) <= most))
            ls_test_fail(__FILE__, __LINE__, "%s: %s of %s is off by %.3g of %.3g", k->name, what,
                         p->name, sqrt(off), sqrt(size));
    }
}

static void check_same(const rank *want, const rank *got, const kind *k)
{
    double tolerance = k->precision == LS_PRECISION_FP32 ? 1e-4 : 3e-2;

    for (int i = 0; i < STEPS; i++) {
        check_near(k, "a loss", got->losses[i], want->losses[i], tolerance);
        check_near(k, "a norm", got->norms[i], want->norms[i], 3 * tolerance);
    }
    if (ls_step_has_losses(got->step))
        check_near(k, "validation", got->validation, want->validation, tolerance);
    if (got->world.rank > 0)
        return;
    check_tensors(k, "the gradient", &got->whole, got->g, want->g, 3 * tolerance);
    check_tensors(k, "a moment", &got->whole, got->m, want->m, 30 * tolerance);
    for (int i = 0; i < got->whole.n_params; i++) { /* what is frozen stays as it began */
        const ls_param *p = &got->whole.params[i];
        size_t bytes = (size_t)p->count * sizeof *got->w;
        LS_CHECK(p->trained >= 0 || memcmp(got->w + p->first, want->w + p->first, bytes) == 0);
    }
}

/* --- bytes ------------------------------------------------------------------------------------ */

/* What a rank's own chunks send to its mesh.cp group, or else to its mesh.tp group, in a step. */
static int64_t call_bytes(const rank *r, bool cp_group)
{
    const ls_pipeline *x = r->step->pipeline;
    const ls_calls *calls = &r->step->now;
    int64_t sent = 0, T = ls_step_tokens(r->step);

    for (int64_t leaf = calls->first, n; leaf < calls->first + calls->own; leaf += n) {
        n = ls_calls_at(calls, leaf);
        for (int c = 0; c < (x ? x->plan.chunks : 1); c++) {
            ls_pass_args pass = ls_pass_describe(x ? x->passes[c] : r->step->pass);
            int64_t round = ls_pass_cp_sent(&pass, n * calls->leaf, T, true);
            sent += cp_group ? round : ls_pass_sent(&pass, n * calls->leaf, T, true) - round;
        }
    }
    return sent;
}

/* What a rank's sums send of these spans of gradients, in its own chunks. */
static int64_t sum_bytes(const rank *r, const ls_collectives_span *spans, int n, int ranks)
{
    const ls_pipeline *x = r->step->pipeline;
    int64_t sent = 0;

    for (int c = 0; c < (x ? x->plan.chunks : 1); c++) {
        ls_range own = x ? x->plan.chunk[c].own : (ls_range){0, r->model.trained};
        int from = 0, end = 0;
        while (from < n && spans[from].first < own.first)
            from++;
        for (end = from; end < n && spans[end].first < own.first + own.count;)
            end++;
        sent += mp_sum_bytes(spans + from, end - from, ranks);
    }
    return sent;
}

/* To its mesh.tp group, with what its sums send. */
static int64_t mp_bytes(const rank *r)
{
    return call_bytes(r, false) +
           sum_bytes(r, r->step->mp_group.spans, r->step->mp_group.n, r->model.split.ranks);
}

/* Tokens of a rank of the mesh of models in a step. */
static int64_t tokens_of(const rank *r, int of)
{
    ls_mesh mesh = r->mesh;
    ls_calls calls;

    mesh.rank = of;
    ls_calls_plan(&r->run, &mesh, &calls);
    return calls.own * calls.leaf * ls_calls_tokens(&calls, r->run.model.context);
}

/* To those with whom it divides experts, where every token goes to all experts: own rows that
 * leave and rows of others that come, each there and back, forward and backward; counts of each
 * round; sums of everything else, and with ZeRO its new weights. */
static int64_t expert_bytes(const rank *r)
{
    const ls_model_split *split = &r->model.split;
    const ls_pipeline *x = r->step->pipeline;
    int64_t n = split->ep_ranks, layers = 0, rows = tokens_of(r, r->mesh.rank) * (n - 1);
    int first = r->mesh.rank / r->mesh.ep * r->mesh.ep;

    for (int i = first; i < first + r->mesh.ep; i++)
        rows += i == r->mesh.rank ? 0 : tokens_of(r, i);
    for (int c = 0; c < (x ? x->plan.chunks : 1); c++) {
        ls_pass_args pass = ls_pass_describe(x ? x->passes[c] : r->step->pass);
        layers += ls_pass_end_block(&pass) - ls_pass_first_block(&pass);
    }
    int64_t moved = 2 * rows * split->experts * r->model.shape.C * ls_dtype_bytes(r->step->type);
    int64_t rounds = x ? ls_pipeline_micros(r->step) : r->step->ep_group.rounds;
    int64_t counts = rounds * (n - 1) * split->experts * (int64_t)sizeof(int32_t);
    return layers * (moved + counts) +
           (r->step->ep_group.parts.at ? 2 : 1) *
               sum_bytes(r, r->step->ep_group.spans, r->step->ep_group.n, (int)n);
}

/* Calls of the rank that has most, of all that share the batch. */
static int64_t most_calls(const rank *r)
{
    int64_t most = 1;

    for (int i = 0; i < r->mesh.ranks; i++) {
        ls_mesh mesh = r->mesh;
        ls_calls calls;
        mesh.rank = i;
        ls_calls_plan(&r->run, &mesh, &calls);
        most = ls_max_i64(most, calls.calls);
    }
    return most;
}

static void check_bytes(const rank *r)
{
    const ls_pipeline *x = r->step->pipeline;

    if (r->tensor)
        LS_CHECK_EQ(ls_mp_group_sent(r->tensor), STEPS * mp_bytes(r));
    if (r->ep_group && r->model.shape.K == r->model.shape.E)
        LS_CHECK_EQ(ls_mp_group_sent(r->ep_group), STEPS * expert_bytes(r));
    if (r->cp_group) {
        LS_CHECK_EQ(ls_mp_group_sent(r->cp_group), STEPS * call_bytes(r, true));
        LS_CHECK(r->step->now.own == 0 || ls_mp_group_sent(r->cp_group) > 0);
    }
    if (x)
        LS_CHECK_EQ(r->step->pipeline->sent_bytes,
                    STEPS * pipeline_sent_bytes(&x->plan, &r->model, &r->step->now, r->step->type));
    if (x && x->plan.zero >= 2) {
        LS_CHECK_EQ(ls_pipeline_micros(r->step), most_calls(r));
        LS_CHECK_EQ(r->step->pipeline->flow.sent_bytes,
                    STEPS * pipeline_across_bytes(&x->plan, &r->model, &r->run, &r->step->now,
                                                  r->step->type));
    }
}

/* Of the norm of a pipeline without mesh.tp: squares of all blocks, and those that a border
 * cuts. */
static int64_t norm_bytes(const rank *r)
{
    int64_t blocks = (r->model.trained + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;

    return r->mp_group ? 0 : 4 * (blocks + r->step->pipeline->edge_count * LS_NORM_BLOCK);
}

/* A node for each stage: what leaves it is what pipelines send, and some numbers. */
static void between_nodes(ls_world *w, ls_comm *comm)
{
    const int64_t numbers = STEPS * 8 * 1024; /* norm, losses, headers of messages */
    const kind *k = w->context;
    rank r;

    open_rank(&r, k, comm);
    int64_t before = ls_world_sent(comm);
    steps(&r);
    int64_t want = r.step->pipeline->sent_bytes + STEPS * norm_bytes(&r);
    int64_t got = ls_world_sent(comm) - before;
    LS_CHECK(want > 10 * numbers);
    if (got < want || got > want + numbers)
        ls_test_fail(__FILE__, __LINE__, "rank %d sent %lld bytes to the other node, expected %lld",
                     r.world.rank, (long long)got, (long long)want);
    close_rank(&r, comm);
}

LS_TEST_SECONDS(hybrid_sends_streams_alone_between_nodes, 120)
{
    kind k = {"pp 2 tp 2",  "2+2",        2,        1, 2, 0, true, LS_PP_1F1B, 1, 3, 24, 1,
              .tied = true, .width = 512, .leaf = 4};

    ls_world_run(k.world, &k, between_nodes);
    k.sp = false;
    ls_world_run(k.world, &k, between_nodes);
    k.name = "pp 2 cp 2";
    k.tp = 1;
    k.cp = 2;
    ls_world_run(k.world, &k, between_nodes);
}

/* Of a bucket of the weights, what this rank sends to its replicas to gather it. */
static int64_t gather_bytes(const rank *r, ls_zero_units_set buckets)
{
    int64_t sent = 0;

    for (int b = 0; b < ls_mesh_buckets(&r->replicas, r->model.trained); b++)
        if (buckets >> b & 1)
            sent += ls_mesh_bucket(&r->replicas, r->model.trained, b).each *
                    (r->replicas.ranks - 1) * ls_dtype_bytes(r->step->type);
    return sent;
}

/* With ZeRO 3, in a call: up through the units of the model, and down again. */
static int64_t fetch_bytes(const rank *r, ls_zero_units_set *there)
{
    int64_t top = r->model.shape.L + 1, sent = 0;

    for (int64_t i = 0, before = -1, unit; i < 2 * top; before = unit, i++) {
        unit = i <= top ? i : 2 * top - i;
        ls_zero_units_set soon = ls_zero_units_buckets(&r->model, &r->replicas, unit);
        soon |= ls_zero_units_buckets(&r->model, &r->replicas,
                                      ls_zero_units_next(&r->model, before, unit));
        sent += gather_bytes(r, soon & ~*there);
        *there = soon;
    }
    return sent;
}

/* What this rank sends to its replicas in a step, in fast mode: sums of all rounds, weights, and
 * what the mesh.tp group adds up. */
static int64_t replicas_bytes(const rank *r)
{
    int rounds = ls_dp_args_of(r->args.dp)->rounds, ranks = r->replicas.ranks;
    int64_t sent = rounds * ls_dp_own_elements(ls_dp_args_of(r->args.dp)) * (ranks - 1) * 4;
    ls_zero_units_set there = 0;

    for (int i = 0; i < rounds && r->replicas.zero == 3; i++)
        sent += fetch_bytes(r, &there);
    if (r->replicas.zero == 2)
        sent += gather_bytes(r, ~(ls_zero_units_set)0);
    for (int i = 0; i < r->step->mp_group.n; i++)
        sent += r->step->mp_group.spans[i].count * 4 * 2 * (ranks - 1) / ranks;
    return sent;
}

/* A mesh.tp or mesh.ep group on each node: what leaves it is what replicas exchange. */
static void between_replicas(ls_world *w, ls_comm *comm)
{
    const kind *k = w->context;
    rank r;

    open_rank(&r, k, comm);
    int64_t before = ls_world_sent(comm);
    steps(&r);
    LS_CHECK_OK(ls_step_settle(r.step));
    int64_t want = STEPS * replicas_bytes(&r);
    int64_t got = ls_world_sent(comm) - before;
    if (got < want || got > want + want / 50 + 8192)
        ls_test_fail(__FILE__, __LINE__,
                     "%s: rank %d sent %lld bytes to the other node, expected %lld", k->name,
                     r.world.rank, (long long)got, (long long)want);
    close_rank(&r, comm);
}

LS_TEST_SECONDS(hybrid_replicas_send_what_zero_says, 120)
{
    kind k = {"dp 2 tp 2 zero 2",
              "2+2",
              1,
              2,
              2,
              2,
              true,
              LS_PP_1F1B,
              1,
              3,
              5,
              1,
              .tied = true,
              .width = 144,
              .reduce = LS_REDUCE_FAST};

    ls_world_run(k.world, &k, between_replicas);
    k.name = "dp 2 tp 2 zero 3";
    k.zero = 3;
    ls_world_run(k.world, &k, between_replicas);
    k.name = "dp 4 ep 2 zero 3";
    k.dp = 4;
    k.tp = 1;
    k.sp = false;
    k.ep = 2;
    k.family = LS_FAMILY_MIXTRAL;
    ls_world_run(k.world, &k, between_replicas);
}

/* Bytes that a rank sends to sum gradients with those that have the same part, and to have the sums
 * or the new weights everywhere; at least, and with what pads the parts of ranks. Its leaves are
 * one node of the tree of sums: it has one root. In ordered mode both gradients of a tied embedding
 * are summed; in a pipeline the last stage sums the head's, in both modes. */
static int64_t summed_bytes(const rank *r, bool padded)
{
    const ls_pipeline *x = r->step->pipeline;
    int64_t n = x ? x->plan.pipelines : r->replicas.ranks, gathered = 0, summed = 0;
    ls_dp_args dp = ls_memory_dp(&r->run, &r->model, &r->replicas);

    if (n == 1 || (x && x->plan.zero >= 2)) /* then they are sums of every micro-batch */
        return 0;
    for (int c = 0; x && c < x->plan.chunks; c++) {
        int64_t own = x->plan.chunk[c].own.count;
        dp = ls_pipeline_memory_sum(&r->run, &r->replicas, own, x->plan.divides);
        gathered += padded ? ls_dp_elements(&dp) : own;
    }
    if (x)
        summed = gathered += ls_stage_plan_is_last(&x->plan) ? x->plan.tied.count : 0;
    else if (padded)
        summed = gathered = ls_dp_elements(&dp);
    else
        summed = (gathered = r->model.trained) + dp.tied_count;
    return (summed + gathered) * (n - 1) / n * (int64_t)sizeof(float);
}

/* Of the norm of a pipeline: sums over its stages, with ZeRO over all pipelines. */
static int64_t pipe_norm_bytes(const rank *r, bool most)
{
    const ls_stage_plan *plan = &r->step->pipeline->plan;
    int64_t n = plan->pp_ranks * (plan->divides ? plan->pipelines : 1);

    return norm_bytes(r) * (most ? 2 * n : 2 * (n - 1)) / n;
}

/* A node for each rank: what leaves it is what all axes send, and some numbers. */
static void on_the_wire(ls_world *w, ls_comm *comm)
{
    const int64_t numbers = STEPS * 48 * 1024; /* norm, losses, headers of messages */
    const kind *k = w->context;
    rank r;

    open_rank(&r, k, comm);
    int64_t before = ls_world_sent(comm);
    steps(&r);
    LS_CHECK_OK(ls_step_settle(r.step));
    int64_t got = ls_world_sent(comm) - before;
    check_bytes(&r);
    int64_t axes =
        (r.tensor ? ls_mp_group_sent(r.tensor) : 0) +
        (r.cp_group ? ls_mp_group_sent(r.cp_group) : 0) +
        (r.ep_group ? ls_mp_group_sent(r.ep_group) : 0) +
        (r.step->pipeline ? r.step->pipeline->sent_bytes + r.step->pipeline->flow.sent_bytes : 0);
    int64_t least = axes + STEPS * summed_bytes(&r, false);
    int64_t most = axes + STEPS * summed_bytes(&r, true);
    least += r.step->pipeline ? STEPS * pipe_norm_bytes(&r, false) : 0;
    most += (r.step->pipeline ? STEPS * pipe_norm_bytes(&r, true) : 0) + least / 100 + numbers;
    LS_CHECK(least > 5 * numbers);
    if (got < least - least / 50 || got > most) /* owners' parts are a little uneven */
        ls_test_fail(__FILE__, __LINE__,
                     "%s: rank %d sent %lld bytes in %d steps, expected %lld to %lld", k->name,
                     r.world.rank, (long long)got, STEPS, (long long)least, (long long)most);
    close_rank(&r, comm);
}

/* Products of two axes, with a node for each rank: whatever an axis sends goes over the wire. */
static const kind wire_kinds[] = {
    {"dp 4", "1+1+1+1", 1, 4, 1, 0, false, LS_PP_1F1B, 1, 2, 16, 1, .reduce = LS_REDUCE_FAST},
    {"dp 4 zero 1", "1+1+1+1", 1, 4, 1, 1, false, LS_PP_1F1B, 1, 2, 16, 1,
     .reduce = LS_REDUCE_FAST},
    {"dp 2 tp 2", "1+1+1+1", 1, 2, 2, 0, true, LS_PP_1F1B, 1, 2, 16, 1, .tied = true},
    {"dp 2 tp 2 zero 1, whole rows", "1+1+1+1", 1, 2, 2, 1, false, LS_PP_1F1B, 1, 2, 16, 1,
     .reduce = LS_REDUCE_FAST},
    {"dp 2 cp 2", "1+1+1+1", 1, 2, 1, 0, false, LS_PP_1F1B, 1, 2, 16, 1, .cp = 2,
     .reduce = LS_REDUCE_FAST},
    {"cp 2 tp 2 zero 1", "1+1+1+1", 1, 1, 2, 1, true, LS_PP_1F1B, 1, 2, 16, 1, .cp = 2},
    {"pp 2 dp 2", "1+1+1+1", 2, 2, 1, 0, false, LS_PP_1F1B, 1, 3, 16, 1, .tied = true},
    {"pp 2 dp 2 zero 1, interleaved, fast", "1+1+1+1", 2, 2, 1, 1, false, LS_PP_INTERLEAVED, 2, 4,
     16, 1, .tied = true, .reduce = LS_REDUCE_FAST},
    {"pp 2 cp 2, zero-bubble", "1+1+1+1", 2, 1, 1, 0, false, LS_PP_ZERO_BUBBLE, 1, 3, 16, 1,
     .tied = true, .cp = 2},
    {"pp 2 tp 2", "1+1+1+1", 2, 1, 2, 0, true, LS_PP_1F1B, 1, 3, 16, 1, .tied = true},
    {"dp 4 ep 2", "1+1+1+1", 1, 4, 1, 0, false, LS_PP_1F1B, 1, 2, 16, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .all = true},
    {"dp 4 ep 2 zero 1", "1+1+1+1", 1, 4, 1, 1, false, LS_PP_1F1B, 1, 2, 16, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .all = true},
    {"dp 2 ep 2 tp 2", "1+1+1+1", 1, 2, 2, 0, true, LS_PP_1F1B, 1, 2, 16, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .all = true},
    {"pp 2 dp 2 ep 2", "1+1+1+1", 2, 2, 1, 0, false, LS_PP_1F1B, 1, 3, 16, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .all = true},
    {"cp 2 ep 2 tp 2", "1+1+1+1", 1, 1, 2, 0, true, LS_PP_1F1B, 1, 2, 16, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .all = true, .cp = 2},
    {"pp 2 dp 4 ep 2 zero 2", "1+1+1+1+1+1+1+1", 2, 4, 1, 2, false, LS_PP_1F1B, 1, 3, 20, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .all = true, .tied = true},
    {"pp 2 dp 4 ep 2 zero 3, zero-bubble", "1+1+1+1+1+1+1+1", 2, 4, 1, 3, false, LS_PP_ZERO_BUBBLE,
     1, 3, 12, 1, .family = LS_FAMILY_MIXTRAL, .ep = 2, .all = true,
     .recompute = LS_RECOMPUTE_FULL},
};

LS_TEST_SECONDS(hybrid_sends_what_the_formulas_say, 180)
{
    for (size_t i = 0; i < LS_COUNT(wire_kinds); i += (size_t)ls_test_stride(3)) {
        kind k = wire_kinds[i];
        k.width = 256;
        k.leaf = 4;
        ls_world_run(k.world, &k, on_the_wire);
    }
}

/* --- an array there and back ------------------------------------------------------------------ */

/* Whatever the first rank has goes to the others, and comes back as it was. */
static void check_deal(rank *r, bool moment)
{
    ls_step_arrays state = ls_step_state_arrays(r->step);
    float *array = moment ? state.m : state.w;
    int64_t n = elements_of(&r->whole, moment);
    float *sent = ls_mem_array((size_t)n, sizeof *sent), *back = NULL;

    LS_CHECK(sent);
    for (int64_t i = 0; i < n; i++)
        sent[i] = (float)(i % 1000003);
    LS_CHECK_OK(ls_step_scatter(r->step, r->world.rank == 0 ? sent : NULL, array));
    collect(r, array, moment, &back);
    for (int i = 0; i < r->whole.n_params && r->world.rank == 0; i++) {
        int64_t at = place_of(&r->whole.params[i], moment);
        size_t bytes = (size_t)r->whole.params[i].count * sizeof *sent;
        LS_CHECK(at < 0 || memcmp(sent + at, back + at, bytes) == 0);
    }
    ls_mem_free(sent);
    ls_mem_free(back);
}

/* --- all of it -------------------------------------------------------------------------------- */

static const kind kinds[] = {
    {"pp 2 tp 2", "4", 2, 1, 2, 0, true, LS_PP_1F1B, 1, 5, 6, 1, .tied = true, .dropout = 0.1},
    {"pp 2 tp 2, whole rows, gpipe, llama", "4", 2, 1, 2, 0, false, LS_PP_GPIPE, 1, 4, 5, 1,
     .family = LS_FAMILY_LLAMA, .pack = true},
    {"pp 2 tp 2, interleaved, qwen3", "4", 2, 1, 2, 0, true, LS_PP_INTERLEAVED, 2, 5, 6, 1,
     .family = LS_FAMILY_QWEN3, .tied = true},
    {"pp 2 tp 2, experts", "4", 2, 1, 2, 0, true, LS_PP_1F1B, 1, 3, 4, 1,
     .family = LS_FAMILY_MIXTRAL},
    {"pp 2 tp 2, full recompute", "4", 2, 1, 2, 0, true, LS_PP_1F1B, 1, 4, 6, 1, .tied = true,
     .recompute = LS_RECOMPUTE_FULL},
    {"pp 2 tp 2, selective, whole rows", "4", 2, 1, 2, 0, false, LS_PP_1F1B, 1, 4, 6, 2,
     .tied = true, .recompute = LS_RECOMPUTE_SELECTIVE, .dropout = 0.1},
    {"pp 2 tp 2, fast", "4", 2, 1, 2, 0, true, LS_PP_1F1B, 1, 3, 6, 1, .tied = true,
     .reduce = LS_REDUCE_FAST},
    {"pp 2 tp 2, bf16", "4", 2, 1, 2, 0, true, LS_PP_1F1B, 1, 3, 4, 1, .tied = true,
     .precision = LS_PRECISION_BF16},
    {"dp 2 tp 2 zero 1", "4", 1, 2, 2, 1, true, LS_PP_1F1B, 1, 3, 5, 1, .tied = true,
     .dropout = 0.1, .width = 144},
    {"dp 2 tp 2 zero 1, fast, qwen3, whole rows", "4", 1, 2, 2, 1, false, LS_PP_1F1B, 1, 3, 5, 1,
     .family = LS_FAMILY_QWEN3, .reduce = LS_REDUCE_FAST, .width = 144},
    {"dp 2 tp 2 zero 1, bf16, full", "4", 1, 2, 2, 1, true, LS_PP_1F1B, 1, 3, 5, 1, .tied = true,
     .precision = LS_PRECISION_BF16, .recompute = LS_RECOMPUTE_FULL, .width = 144},
    {"pp 2 tp 4, shared heads", "8", 2, 1, 4, 0, true, LS_PP_1F1B, 1, 3, 5, 1,
     .family = LS_FAMILY_LLAMA, .tied = true},
    {"pp 2 dp 2 tp 2", "8", 2, 2, 2, 0, true, LS_PP_1F1B, 1, 4, 7, 1, .tied = true},
    {"pp 2 dp 2 tp 2 zero 1", "8", 2, 2, 2, 1, true, LS_PP_INTERLEAVED, 2, 5, 7, 1, .tied = true,
     .dropout = 0.1, .width = 144},
    {"pp 2 dp 2 tp 2 zero 2, zero-bubble", "8", 2, 2, 2, 2, true, LS_PP_ZERO_BUBBLE, 1, 4, 5, 1,
     .tied = true},
    {"pp 2 dp 2 tp 2 zero 3", "8", 2, 2, 2, 3, true, LS_PP_INTERLEAVED, 2, 5, 5, 1, .tied = true,
     .dropout = 0.1, .width = 144, .recompute = LS_RECOMPUTE_FULL},
    {"pp 4 tp 2, fast", "8", 4, 1, 2, 0, false, LS_PP_1F1B, 1, 5, 6, 1, .tied = true,
     .reduce = LS_REDUCE_FAST},
    {"dp 4 tp 2 zero 1, one idle", "8", 1, 4, 2, 1, true, LS_PP_1F1B, 1, 3, 3, 1, .tied = true,
     .width = 144},
    {"pp 2 tp 2 on two nodes", "2+2", 2, 1, 2, 0, true, LS_PP_1F1B, 1, 3, 4, 1, .tied = true},
    {"cp 2 tp 2", "4", 1, 1, 2, 0, true, LS_PP_1F1B, 1, 3, 5, 1, .tied = true, .dropout = 0.1,
     .cp = 2, .recompute = LS_RECOMPUTE_FULL},
    {"cp 2 tp 2, gathered, whole rows, fast, llama", "4", 1, 1, 2, 0, false, LS_PP_1F1B, 1, 2, 4, 2,
     .family = LS_FAMILY_LLAMA, .reduce = LS_REDUCE_FAST, .cp = 2, .gather = true},
    {"cp 2 tp 2 zero 1, bf16, qwen3", "4", 1, 1, 2, 1, true, LS_PP_1F1B, 1, 2, 4, 1,
     .family = LS_FAMILY_QWEN3, .precision = LS_PRECISION_BF16, .width = 144, .cp = 2},
    {"cp 2 tp 2, experts", "4", 1, 1, 2, 0, true, LS_PP_1F1B, 1, 2, 4, 1,
     .family = LS_FAMILY_MIXTRAL, .cp = 2},
    {"pp 2 cp 2", "4", 2, 1, 1, 0, false, LS_PP_1F1B, 1, 4, 5, 1, .tied = true, .dropout = 0.1,
     .cp = 2, .recompute = LS_RECOMPUTE_FULL},
    {"pp 2 cp 2 zero 1, gathered, interleaved, qwen3", "4", 2, 1, 1, 1, false, LS_PP_INTERLEAVED, 2,
     4, 6, 1, .family = LS_FAMILY_QWEN3, .width = 144, .cp = 2, .gather = true},
    {"pp 2 cp 2 zero 2, tied", "4", 2, 1, 1, 2, false, LS_PP_1F1B, 1, 3, 4, 1, .tied = true,
     .cp = 2},
    {"pp 2 cp 2 zero 3, fast, llama", "4", 2, 1, 1, 3, false, LS_PP_GPIPE, 1, 3, 4, 1,
     .family = LS_FAMILY_LLAMA, .reduce = LS_REDUCE_FAST, .cp = 2},
    {"pp 2 cp 2, zero-bubble, full, llama, fast", "4", 2, 1, 1, 0, false, LS_PP_ZERO_BUBBLE, 1, 4,
     4, 1, .family = LS_FAMILY_LLAMA, .tied = true, .reduce = LS_REDUCE_FAST, .cp = 2,
     .recompute = LS_RECOMPUTE_FULL},
    {"pp 2 cp 2, experts", "4", 2, 1, 1, 0, false, LS_PP_GPIPE, 1, 3, 4, 1,
     .family = LS_FAMILY_MIXTRAL, .cp = 2},
    {"pp 2 cp 2 tp 2", "8", 2, 1, 2, 0, true, LS_PP_1F1B, 1, 3, 4, 1, .tied = true, .dropout = 0.1,
     .cp = 2, .recompute = LS_RECOMPUTE_FULL},
    {"pp 2 cp 2 tp 2 zero 1, zero-bubble, experts, gathered", "8", 2, 1, 2, 1, true,
     LS_PP_ZERO_BUBBLE, 1, 3, 4, 1, .family = LS_FAMILY_MIXTRAL, .width = 144, .cp = 2,
     .gather = true},
    {"dp 2 cp 2 tp 2 zero 1, fast, uneven", "8", 1, 2, 2, 1, true, LS_PP_1F1B, 1, 2, 3, 1,
     .tied = true, .reduce = LS_REDUCE_FAST, .width = 144, .cp = 2},
    {"pp 2 dp 2 cp 2, uneven", "8", 2, 2, 1, 0, false, LS_PP_1F1B, 1, 3, 3, 1, .tied = true,
     .cp = 2},
    {"pp 2 cp 2 on two nodes", "2+2", 2, 1, 1, 0, false, LS_PP_1F1B, 1, 3, 4, 1, .tied = true,
     .cp = 2},
    {"cp 2 tp 2 on two nodes", "2+2", 1, 1, 2, 0, true, LS_PP_1F1B, 1, 2, 4, 1, .tied = true,
     .cp = 2},
    {"dp 2 cp 2 ep 2, uneven", "4", 1, 2, 1, 0, false, LS_PP_1F1B, 1, 3, 3, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .cp = 2},
    {"dp 2 cp 2 ep 4 zero 1, gathered, selective", "4", 1, 2, 1, 1, false, LS_PP_1F1B, 1, 3, 3, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 4, .cp = 2, .width = 144, .gather = true,
     .recompute = LS_RECOMPUTE_SELECTIVE},
    {"pp 2 cp 2 ep 2, full", "4", 2, 1, 1, 0, false, LS_PP_1F1B, 1, 3, 4, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .cp = 2, .tied = true, .recompute = LS_RECOMPUTE_FULL},
    {"dp 2 cp 2 ep 4 tp 2, bf16, uneven", "8", 1, 2, 2, 0, true, LS_PP_1F1B, 1, 3, 3, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 4, .cp = 2, .precision = LS_PRECISION_BF16},
    {"dp 4 cp 2 ep 4 zero 1, uneven", "8", 1, 4, 1, 1, false, LS_PP_1F1B, 1, 2, 3, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 4, .cp = 2, .width = 144, .dropout = 0.1},
    {"dp 4 ep 2 zero 1", "4", 1, 4, 1, 1, false, LS_PP_1F1B, 1, 3, 6, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .width = 144},
    {"dp 4 ep 2 zero 1, bf16, one idle", "4", 1, 4, 1, 1, false, LS_PP_1F1B, 1, 3, 3, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .width = 144, .precision = LS_PRECISION_BF16},
    {"dp 4 ep 4 zero 1", "4", 1, 4, 1, 1, false, LS_PP_1F1B, 1, 3, 6, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 4, .tied = true},
    {"dp 2 ep 2 tp 2 zero 1, bf16", "4", 1, 2, 2, 1, true, LS_PP_1F1B, 1, 3, 5, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .precision = LS_PRECISION_BF16},
    {"pp 2 dp 2 ep 2, uneven, full", "4", 2, 2, 1, 0, false, LS_PP_1F1B, 1, 3, 5, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .tied = true, .dropout = 0.1,
     .recompute = LS_RECOMPUTE_FULL},
    {"pp 2 dp 2 ep 2, zero-bubble, uneven", "4", 2, 2, 1, 0, false, LS_PP_ZERO_BUBBLE, 1, 3, 7, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2},
    {"pp 2 dp 2 ep 2, interleaved, one idle", "4", 2, 2, 1, 0, false, LS_PP_INTERLEAVED, 2, 5, 1, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .tied = true},
    {"dp 2 ep 2 tp 2, selective", "4", 1, 2, 2, 0, true, LS_PP_1F1B, 1, 3, 5, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .dropout = 0.1, .recompute = LS_RECOMPUTE_SELECTIVE},
    {"dp 2 ep 2 tp 2, whole rows, one idle", "4", 1, 2, 2, 0, false, LS_PP_1F1B, 1, 3, 1, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .tied = true},
    {"pp 2 dp 2 ep 2 tp 2", "8", 2, 2, 2, 0, true, LS_PP_1F1B, 1, 3, 5, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .tied = true},
    {"dp 4 ep 2 tp 2 zero 1", "8", 1, 4, 2, 1, true, LS_PP_1F1B, 1, 3, 6, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .width = 144},
    {"pp 2 dp 4 ep 2 zero 1", "8", 2, 4, 1, 1, false, LS_PP_1F1B, 1, 3, 7, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .tied = true, .width = 144},
    {"dp 2 ep 2 tp 4, shared heads", "8", 1, 2, 4, 0, true, LS_PP_1F1B, 1, 3, 3, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2},
    {"pp 2 dp 2 ep 2 on two nodes", "2+2", 2, 2, 1, 0, true, LS_PP_1F1B, 1, 3, 5, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2},
    {"dp 2 tp 2 zero 2", "4", 1, 2, 2, 2, true, LS_PP_1F1B, 1, 3, 5, 1, .tied = true,
     .dropout = 0.1, .width = 144},
    {"dp 2 tp 2 zero 3, bf16, full", "4", 1, 2, 2, 3, true, LS_PP_1F1B, 1, 3, 5, 1, .tied = true,
     .precision = LS_PRECISION_BF16, .recompute = LS_RECOMPUTE_FULL, .width = 144},
    {"dp 2 tp 2 zero 2, fast, qwen3, whole rows", "4", 1, 2, 2, 2, false, LS_PP_1F1B, 1, 3, 5, 1,
     .family = LS_FAMILY_QWEN3, .reduce = LS_REDUCE_FAST, .width = 144},
    {"dp 2 tp 2 zero 3, fast, experts, one idle", "4", 1, 2, 2, 3, false, LS_PP_1F1B, 1, 3, 1, 1,
     .family = LS_FAMILY_MIXTRAL, .reduce = LS_REDUCE_FAST, .width = 144},
    {"cp 2 tp 2 zero 3", "4", 1, 1, 2, 3, true, LS_PP_1F1B, 1, 2, 4, 1, .tied = true, .width = 144,
     .cp = 2},
    {"dp 4 tp 2 zero 3, one idle", "8", 1, 4, 2, 3, true, LS_PP_1F1B, 1, 3, 3, 1, .tied = true,
     .width = 144},
    {"dp 2 cp 2 tp 2 zero 2, fast, uneven", "8", 1, 2, 2, 2, true, LS_PP_1F1B, 1, 2, 3, 1,
     .tied = true, .reduce = LS_REDUCE_FAST, .width = 144, .cp = 2},
    {"dp 2 tp 4 zero 3, shared heads", "8", 1, 2, 4, 3, true, LS_PP_1F1B, 1, 3, 5, 1,
     .family = LS_FAMILY_LLAMA, .tied = true, .width = 144},
    {"dp 4 ep 2 zero 2", "4", 1, 4, 1, 2, false, LS_PP_1F1B, 1, 3, 6, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .width = 144},
    {"dp 4 ep 2 zero 3, bf16, one idle", "4", 1, 4, 1, 3, false, LS_PP_1F1B, 1, 3, 3, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .width = 144, .precision = LS_PRECISION_BF16},
    {"dp 4 ep 4 zero 3", "4", 1, 4, 1, 3, false, LS_PP_1F1B, 1, 3, 6, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 4, .tied = true},
    {"dp 2 cp 2 ep 2 zero 3, uneven, full", "4", 1, 2, 1, 3, false, LS_PP_1F1B, 1, 3, 3, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .cp = 2, .tied = true, .width = 144,
     .recompute = LS_RECOMPUTE_FULL},
    {"dp 4 ep 2 tp 2 zero 3", "8", 1, 4, 2, 3, true, LS_PP_1F1B, 1, 3, 6, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .width = 144},
    {"dp 4 tp 2 zero 3 in groups of 2", "8", 1, 4, 2, 3, true, LS_PP_1F1B, 1, 3, 5, 1, .tied = true,
     .width = 144, .shard = 2},
    {"dp 8 ep 2 zero 3 in groups of 2", "8", 1, 8, 1, 3, false, LS_PP_1F1B, 1, 3, 6, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .width = 144, .shard = 2},
    {"dp 8 ep 2 zero 1 in groups of 2", "8", 1, 8, 1, 1, false, LS_PP_1F1B, 1, 3, 6, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .width = 144, .shard = 2},
    {"dp 2 ep 2 tp 2 on two nodes", "2+2", 1, 2, 2, 0, true, LS_PP_1F1B, 1, 3, 3, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2},
    {"pp 2 dp 4 ep 2 zero 2", "8", 2, 4, 1, 2, false, LS_PP_1F1B, 1, 3, 6, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .tied = true, .width = 144},
    {"pp 2 dp 4 ep 2 zero 3, zero-bubble, full, uneven", "8", 2, 4, 1, 3, false, LS_PP_ZERO_BUBBLE,
     1, 4, 5, 1, .family = LS_FAMILY_MIXTRAL, .ep = 2, .dropout = 0.1,
     .recompute = LS_RECOMPUTE_FULL},
    {"pp 2 dp 4 ep 2 zero 3, interleaved, bf16, two idle", "8", 2, 4, 1, 3, false,
     LS_PP_INTERLEAVED, 2, 5, 2, 1, .family = LS_FAMILY_MIXTRAL, .ep = 2, .tied = true,
     .width = 144, .precision = LS_PRECISION_BF16},
    {"pp 2 dp 4 ep 2 zero 2, zero-bubble, one idle", "8", 2, 4, 1, 2, false, LS_PP_ZERO_BUBBLE, 1,
     3, 3, 1, .family = LS_FAMILY_MIXTRAL, .ep = 2, .tied = true},
    {"pp 2 dp 2 cp 2 ep 2 zero 3, gpipe, uneven", "8", 2, 2, 1, 3, false, LS_PP_GPIPE, 1, 3, 3, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .cp = 2, .tied = true,
     .recompute = LS_RECOMPUTE_SELECTIVE},
    {"pp 2 dp 2 ep 2 zero 3, none to divide with", "4", 2, 2, 1, 3, false, LS_PP_1F1B, 1, 3, 5, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .tied = true},
    {"pp 2 dp 4 ep 2 tp 2 zero 3", "8+8", 2, 4, 2, 3, true, LS_PP_1F1B, 1, 3, 6, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .tied = true, .width = 144},
};

static rank alone; /* the same in one process, made before the ranks */

static void beside_one(ls_world *w, ls_comm *comm)
{
    const kind *k = w->context;
    rank r;

    open_rank(&r, k, comm);
    train(&r);
    check_bytes(&r);
    validate(&r);
    check_same(&alone, &r, k);
    check_deal(&r, true);
    check_deal(&r, false);
    close_rank(&r, comm);
}

static void run_beside_one(kind k)
{
    open_rank(&alone, &k, NULL);
    train(&alone);
    validate(&alone);
    ls_world_run(k.world, &k, beside_one);
    close_rank(&alone, NULL);
}

static void run_worlds(const char *world)
{
    for (size_t i = 0; i < LS_COUNT(kinds); i += (size_t)ls_test_stride(2))
        if (strcmp(kinds[i].world, world) == 0)
            run_beside_one(kinds[i]);
}

LS_TEST_SECONDS(hybrid_of_four_ranks_agrees_with_one_process, 180)
{
    run_worlds("4");
}

LS_TEST_SECONDS(hybrid_of_eight_ranks_agrees_with_one_process, 240)
{
    run_worlds("8");
}

LS_TEST_SECONDS(hybrid_across_nodes_agrees_with_one_process, 180)
{
    run_worlds("2+2");
    run_worlds("8+8");
}

/* Adapters, and weights of which some stay as they are: what is trained lies elsewhere than the
 * weights do. */
static const kind tuned[] = {
    {"tp 2 lora", "2", 1, 1, 2, 0, true, LS_PP_1F1B, 1, 3, 4, 1, .dropout = 0.1, .lora = 3},
    {"dp 2 tp 2 lora, bf16", "4", 1, 2, 2, 0, false, LS_PP_1F1B, 1, 3, 5, 1,
     .family = LS_FAMILY_QWEN3, .precision = LS_PRECISION_BF16, .tied = true, .lora = 2},
    {"dp 2 ep 2 lora", "2", 1, 2, 1, 0, true, LS_PP_1F1B, 1, 3, 3, 1, .family = LS_FAMILY_MIXTRAL,
     .ep = 2, .lora = 2},
    {"dp 2 ep 2 tp 2 lora", "4", 1, 2, 2, 0, true, LS_PP_1F1B, 1, 2, 3, 1,
     .family = LS_FAMILY_OLMOE, .reduce = LS_REDUCE_FAST, .ep = 2, .lora = 2},
    {"cp 2 tp 2 lora", "4", 1, 1, 2, 0, true, LS_PP_1F1B, 1, 3, 3, 1, .family = LS_FAMILY_LLAMA,
     .recompute = LS_RECOMPUTE_FULL, .cp = 2, .lora = 2},
    {"dp 2 tp 2 frozen", "4", 1, 2, 2, 0, true, LS_PP_1F1B, 1, 3, 5, 1, .tied = true,
     .freeze = {"*.wte.*", "*.h.0.*", "*.c_attn.*", "*.ln_*"}},
    {"dp 2 ep 2 tp 2 frozen", "4", 1, 2, 2, 0, true, LS_PP_1F1B, 1, 3, 3, 1,
     .family = LS_FAMILY_OLMOE, .ep = 2,
     .freeze = {"*embed*", "*.q_proj.*", "*.experts.1.*", "*.0.*.experts.[23].*"}},
    {"dp 4 ep 2 frozen", "4", 1, 4, 1, 0, true, LS_PP_1F1B, 1, 3, 5, 1, .family = LS_FAMILY_MIXTRAL,
     .ep = 2, .freeze = {"*embed*", "*.layers.0.*", "*.w2.*"}},
    {"pp 2 lora", "2", 2, 1, 1, 0, false, LS_PP_1F1B, 1, 4, 5, 1, .tied = true, .dropout = 0.1,
     .lora = 3},
    {"pp 2 dp 2 lora, chunks, bf16", "4", 2, 2, 1, 0, false, LS_PP_INTERLEAVED, 2, 5, 5, 1,
     .family = LS_FAMILY_LLAMA, .precision = LS_PRECISION_BF16, .pack = true, .lora = 2},
    {"pp 2 tp 2 lora, zero-bubble", "4", 2, 1, 2, 0, true, LS_PP_ZERO_BUBBLE, 1, 4, 5, 1,
     .recompute = LS_RECOMPUTE_FULL, .tied = true, .lora = 2},
    {"pp 2 dp 2 ep 2 lora", "4", 2, 2, 1, 0, true, LS_PP_1F1B, 1, 3, 4, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2, .lora = 2},
    {"pp 2 dp 2 frozen below", "4", 2, 2, 1, 0, false, LS_PP_1F1B, 1, 4, 5, 1, .tied = true,
     .freeze = {"*.wte.*", "*.wpe.*", "*.h.[01].*", "*.h.2.ln*"}},
    {"pp 2 dp 2 frozen above, fast", "4", 2, 2, 1, 0, false, LS_PP_GPIPE, 1, 4, 1, 1,
     .family = LS_FAMILY_QWEN3, .reduce = LS_REDUCE_FAST,
     .freeze = {"*.[23].*", "model.norm.*", "lm_head.*"}},
    {"pp 2 tp 2 frozen", "4", 2, 1, 2, 0, true, LS_PP_1F1B, 1, 4, 4, 1, .tied = true,
     .freeze = {"*.c_fc.*", "*.h.3.*"}},
    {"pp 2 dp 2 ep 2 frozen", "4", 2, 2, 1, 0, true, LS_PP_ZERO_BUBBLE, 1, 3, 4, 1,
     .family = LS_FAMILY_MIXTRAL, .ep = 2,
     .freeze = {"*.experts.[01].*", "*.k_proj.*", "*.layers.0.s*"}},
};

LS_TEST_SECONDS(hybrid_of_what_is_trained_in_part_agrees_with_one_process, 180)
{
    for (size_t i = 0; i < LS_COUNT(tuned); i += (size_t)ls_test_stride(2))
        run_beside_one(tuned[i]);
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Bytes that pad what pipelines divide, at most: much of so small a model, and never touched. */
static int64_t padding_of(const rank *r)
{
    const ls_stage_plan *plan = &r->step->pipeline->plan;
    int64_t each =
        plan->pipelines > 1 ? plan->pipelines * LS_NORM_BLOCK * (int64_t)sizeof(float) : 0;

    return r->args.calls.buffers * (plan->chunks + 1) * each;
}

static void predict(const rank *r, ls_ledger *ledger)
{
    ls_memory_predict(&(ls_memory_args){.run = &r->run,
                                        .model = &r->model,
                                        .whole = &r->whole,
                                        .kernels = r->args.kernels,
                                        .mesh = &r->mesh,
                                        .world = &r->world,
                                        .sums = &r->replicas,
                                        .threads = 1,
                                        .pack = r->args.pack},
                      ledger);
}

/* The ledger of a rank: what the device, the windows and the group's memory hold, each to the byte
 * or, of windows, whose pages are taken when they are touched, within a tenth. */
static void counted(ls_world *w, ls_comm *comm)
{
    const kind *k = w->context;
    ls_ledger l;
    rank r;

    open_rank(&r, k, comm);
    predict(&r, &l);
    int64_t windows = ledger_bytes(&l, "weights") + ledger_bytes(&l, "bf16 weights") +
                      ledger_bytes(&l, "optimizer") + ledger_bytes(&l, "gradients");
    const ls_mp_group *collectives = r.tensor ? r.tensor : r.ep_group;
    int64_t reached = (collectives ? ls_mp_group_allocated(collectives) : 0) +
                      (r.cp_group ? ls_mp_group_allocated(r.cp_group) : 0);
    int64_t elsewhere = reached + ledger_bytes(&l, "exchange") +
                        ledger_bytes(&l, "tensor parallel") + ledger_bytes(&l, "expert parallel") +
                        ledger_bytes(&l, "context parallel") + ledger_bytes(&l, "threads") +
                        ledger_bytes(&l, "batch") + ledger_bytes(&l, "snapshot") +
                        ledger_bytes(&l, "whole weights") + ledger_bytes(&l, "saving") +
                        ledger_bytes(&l, "collecting") + ledger_bytes(&l, "gathered weights") +
                        ls_decode_bytes(&r.whole);
    LS_CHECK_EQ(ledger_bytes(&l, "context parallel") > 0, k->cp > 1);
    if (collectives)
        LS_CHECK_EQ(reached, ledger_bytes(&l, "activations"));
    if (!r.step->pipeline) /* gradients lie where others read them, the rest is the device's */
        windows = ledger_bytes(&l, "gradients");
    LS_CHECK_EQ(ls_device_used_bytes(r.device), ls_ledger_total(&l) - windows - elsewhere);
    train(&r);
    int64_t held =
        r.step->pipeline ? held_by(r.step->pipeline) + r.step->pipeline->flow.most : windows;
    int64_t least = r.step->pipeline ? windows * 9 / 10 - padding_of(&r) : windows;
    if (held > windows || held < least)
        ls_test_fail(__FILE__, __LINE__, "%s: rank %d holds %lld bytes, the ledger says %lld",
                     k->name, r.world.rank, (long long)held, (long long)windows);
    int64_t mesh_slice = ls_memory_slice(&r.model, &r.replicas) * (int64_t)sizeof(float);
    bool speaks = r.model.split.rank == 0 && r.model.split.ep_rank == 0;
    bool collects = collectives && r.replicas.rank == 0 && (mesh_slice > 0 || speaks);
    LS_CHECK_EQ(ledger_bytes(&l, "collecting") > 0, collects);
    LS_CHECK(!collects || ledger_bytes(&l, "collecting") >= mesh_slice);
    close_rank(&r, comm);
}

LS_TEST_SECONDS(hybrid_uses_the_bytes_that_the_ledger_predicts, 120)
{
    for (size_t i = 0; i < LS_COUNT(kinds); i += (size_t)ls_test_stride(2)) {
        kind k = kinds[i];
        bool cp_groups = k.cp > 1 && k.zero == 0;
        bool parts = k.pp > 1 && k.ep > 1 && k.zero > 1;
        if (parts || ((k.pp > 1 || cp_groups) && strcmp(k.world, "4") == 0))
            ls_world_run(k.world, &k, counted);
    }
    for (size_t i = 0; i < LS_COUNT(tuned); i += (size_t)ls_test_stride(2)) {
        kind k = tuned[i];
        if (k.pp > 1 && strcmp(k.world, "4") == 0)
            ls_world_run(k.world, &k, counted);
    }
}

/* What replicas divide: memory of the device to the byte; windows hold no more than the ledger
 * says. / */
static void counted_parts(ls_world *w, ls_comm *comm)
{
    const int64_t size = sizeof(float), slack = 4 * LS_WINDOW_PAGE;
    const kind *k = w->context;
    ls_ledger l;
    rank r;

    open_rank(&r, k, comm);
    ls_steps_watch(r.step);
    predict(&r, &l);
    const ls_dp_args *dp = ls_dp_args_of(r.args.dp);
    int64_t own = ls_round_up(ls_dp_sum_elements(dp) * size, 4096);
    int64_t window = ledger_bytes(&l, "gradients") - own;
    LS_CHECK(window > 0 && own < r.model.trained * size / 2 + LS_NORM_BLOCK * size);
    LS_CHECK_EQ(r.step->own, ls_expert_zero_divides(&r.run, &r.model, &r.replicas)
                                 ? ls_expert_zero_own(&r.model, &r.replicas)
                                 : ls_mesh_own(&r.replicas, r.model.trained, r.replicas.rank));
    LS_CHECK_EQ(ledger_bytes(&l, "optimizer"), 2 * ls_round_up(r.step->own * size, 4096));
    LS_CHECK_EQ(ledger_bytes(&l, "weights"),
                ls_round_up((k->zero == 3 ? ls_dp_own_elements(dp)
                                          : ls_memory_weight_elements(&r.model, dp)) *
                                size,
                            4096));
    LS_CHECK_EQ(ls_device_used_bytes(r.device),
                own + ledger_bytes(&l, "optimizer") + ledger_bytes(&l, "step") -
                    ls_decode_bytes(&r.whole) + ledger_bytes(&l, "activations") -
                    ls_mp_group_allocated(r.tensor ? r.tensor : r.ep_group));
    steps(&r);
    LS_CHECK(ls_steps_most_gradients() <= window + slack);
    LS_CHECK(ls_steps_most_weights() <= ledger_bytes(&l, "gathered weights") + slack);
    if (r.args.calls.own > 0) {
        LS_CHECK(ls_steps_most_gradients() > window / 3);
        LS_CHECK_EQ(ls_steps_most_weights() > 0, k->zero == 3);
    }
    ls_steps_watch(NULL);
    close_rank(&r, comm);
}

LS_TEST_SECONDS(hybrid_replicas_hold_what_the_ledger_predicts, 120)
{
    static const char *const names[] = {"dp 2 tp 2 zero 2", "dp 2 tp 2 zero 3, fast, experts",
                                        "dp 4 ep 2 zero 2"};

    for (size_t i = 0; i < LS_COUNT(kinds); i++)
        for (size_t n = 0; n < LS_COUNT(names); n++) {
            kind k = kinds[i];
            if (strncmp(k.name, names[n], strlen(names[n])) == 0)
                ls_world_run(k.world, &k, counted_parts);
        }
}

/* --- what is kept for another ------------------------------------------------------------------
 */

/* One moment of the rank whose copy lies here: its own, and the copy. */
static void check_kept(rank *r, int moment, const ls_mesh_part *parts, int n)
{
    const float *own = r->step->state_memory[moment];
    int64_t theirs = parts[n - 1].packed + parts[n - 1].count;
    float *want = ls_mem_array((size_t)ls_max_i64(1, theirs), sizeof *want);
    const ls_replica_pieces *held = &r->step->replica->held;
    ls_comm_request request;

    LS_CHECK(want);
    LS_CHECK_EQ(held->n, n);
    LS_CHECK_OK(
        ls_comm_start(r->same_part,
                      &(ls_coll){.kind = LS_COLL_SEND,
                                 .type = LS_F32,
                                 .count = r->step->own,
                                 .in = own,
                                 .peer = ls_replicas_holder(&r->replicas, r->replicas.rank)},
                      &request));
    LS_CHECK_OK(ls_comm_run(r->same_part,
                            &(ls_coll){.kind = LS_COLL_RECV,
                                       .type = LS_F32,
                                       .count = theirs,
                                       .out = want,
                                       .peer = ls_replicas_owner(&r->replicas, r->replicas.rank)},
                            INT64_MAX));
    LS_CHECK_OK(ls_comm_wait(r->same_part, request, INT64_MAX));
    for (int i = 0; i < n; i++) {
        LS_CHECK_EQ(held->at[i].count, parts[i].count);
        LS_CHECK(memcmp(want + parts[i].packed, own + held->at[i].packed,
                        (size_t)parts[i].count * sizeof *want) == 0);
    }
    ls_mem_free(want);
}

/* Elements that an equal updates. */
static int64_t updated_by(const ls_mesh_part *parts, int n)
{
    int64_t all = 0;

    for (int i = 0; i < n; i++)
        all += parts[i].count;
    return all;
}

static void keep_for_another(ls_world *w, ls_comm *comm)
{
    const kind *k = w->context;
    kind without = *k;
    ls_mesh_part parts[1024];
    ls_ledger l;
    rank r;

    without.buddies = false;
    open_rank(&r, &without, comm);
    int64_t used = ls_device_used_bytes(r.device);
    steps(&r);
    double loss = r.losses[STEPS - 1];
    close_rank(&r, comm);
    open_rank(&r, k, comm);
    predict(&r, &l);
    LS_CHECK_EQ(ls_device_used_bytes(r.device) - used, ledger_bytes(&l, "buddy"));
    LS_CHECK(ledger_bytes(&l, "buddy") > 0);
    LS_CHECK_OK(ls_replica_send_begin(r.step, 0));
    steps(&r);
    LS_CHECK_OK(ls_step_settle(r.step));
    LS_CHECK(fabs(r.losses[STEPS - 1] - loss) == 0);
    int me = r.replicas.rank, n = ls_replicas_pieces(&r.run, &r.model, &r.replicas, me, NULL);
    LS_CHECK(n <= (int)LS_COUNT(parts));
    (void)ls_replicas_pieces(&r.run, &r.model, &r.replicas, me, parts);
    LS_CHECK_EQ(ls_replica_send_bytes(r.step), (2 + STEPS) * updated_by(parts, n) * 4);
    int owner = ls_replicas_owner(&r.replicas, me);
    n = ls_replicas_pieces(&r.run, &r.model, &r.replicas, owner, parts);
    for (int moment = 1; moment <= 2; moment++)
        check_kept(&r, moment, parts, n);
    close_rank(&r, comm);
}

/* Nothing changes but what is kept: the moments of another one, as it has them. */
LS_TEST_SECONDS(hybrid_keeps_moments_for_another_rank, 120)
{
    static const kind rows[] = {
        {"dp 2 tp 2 zero 1", "4", 1, 2, 2, 1, true, LS_PP_1F1B, 1, 3, 5, 1, .tied = true,
         .dropout = 0.1, .width = 144, .buddies = true},
        {"dp 2 tp 2 zero 1, fast, bf16", "4", 1, 2, 2, 1, false, LS_PP_1F1B, 1, 3, 5, 1,
         .reduce = LS_REDUCE_FAST, .precision = LS_PRECISION_BF16, .width = 144, .buddies = true},
        {"dp 4 ep 2 zero 1", "4", 1, 4, 1, 1, true, LS_PP_1F1B, 1, 3, 6, 1,
         .family = LS_FAMILY_MIXTRAL, .ep = 2, .width = 144, .buddies = true},
        {"cp 2 tp 2 zero 1", "4", 1, 1, 2, 1, true, LS_PP_1F1B, 1, 3, 4, 1, .cp = 2, .width = 144,
         .buddies = true},
    };

    for (size_t i = 0; i < LS_COUNT(rows); i++) {
        kind k = rows[i];
        ls_world_run(k.world, &k, keep_for_another);
    }
}

/* --- places of ran----------------------------------------------------------------------------- */

LS_TEST(hybrid_mesh_says_what_cannot_be_grouped)
{
    const kind k = {.pp = 2, .dp = 2, .tp = 2, .chunks = 1, .layers = 4, .sequences = 4};
    ls_run run = run_of(&k);
    ls_mesh mesh, mp_groups;

    LS_CHECK_FAILS(ls_mesh_init(&mesh, &run, 4, 0), LS_EUSAGE,
                   "mesh.pp is 2, mesh.tp 2 and mesh.dp 2, but the run has 4 ranks: it needs 8");
    run.mesh.dp = LS_RUN_AUTO;
    LS_CHECK_FAILS(ls_mesh_init(&mesh, &run, 6, 0), LS_EUSAGE,
                   "mesh.pp is 2 and mesh.tp 2, but the run has 6 ranks");
    LS_CHECK(strstr(ls_err_last()->hint, "-n 4 or -n 8, or another mesh.pp or mesh.tp"));
    LS_CHECK_OK(ls_mesh_init(&mesh, &run, 8, 5));
    mp_groups = ls_mesh_slice(&mesh);
    LS_CHECK_EQ(mp_groups.ranks, 4);
    LS_CHECK_EQ(mp_groups.rank, 2);
    LS_CHECK_EQ(ls_mesh_pipelines(&mp_groups), 2);
    LS_CHECK_EQ(ls_mesh_pp_rank(&mp_groups, mp_groups.rank), 1);
    LS_CHECK_EQ(ls_mesh_pipeline(&mp_groups, mp_groups.rank), 0);
}

/* The ranks of one model cut the layers alike, also where their parts are of different size. */
LS_TEST(hybrid_stages_are_those_of_the_whole_model)
{
    const kind k = {.pp = 3, .dp = 1, .tp = 4, .chunks = 1, .layers = 7, .sequences = 4};
    ls_run run = run_of(&k);
    ls_stage want[3], got[3];
    ls_model model;

    LS_CHECK_OK(ls_model_init(&model, &run, VOCAB));
    LS_CHECK_OK(ls_stage_split_plan(&model, 3, 1, run.model.context, want));
    ls_model_release(&model);
    for (int r = 0; r < 4; r++) {
        LS_CHECK_OK(
            ls_model_init_split(&model, &run, VOCAB, (ls_model_split){.rank = r, .ranks = 4}));
        LS_CHECK_OK(ls_stage_split_plan(&model, 3, 1, run.model.context, got));
        for (int i = 0; i < 3; i++)
            LS_CHECK(got[i].unit == want[i].unit && got[i].units == want[i].units);
        ls_model_release(&model);
    }
}

/* --- what the ranks of one model agree on ----------------------------------------------------- */

static void agree(ls_world *w, ls_comm *comm)
{
    static const struct {
        ls_recompute level[2], want;
        int64_t blocks[2], want_blocks;
    } rows[] = {
        {{LS_RECOMPUTE_NONE, LS_RECOMPUTE_NONE}, LS_RECOMPUTE_NONE, {-1, -1}, LS_RUN_AUTO},
        {{LS_RECOMPUTE_NONE, LS_RECOMPUTE_SELECTIVE}, LS_RECOMPUTE_SELECTIVE, {-1, 2}, 2},
        {{LS_RECOMPUTE_FULL, LS_RECOMPUTE_SELECTIVE}, LS_RECOMPUTE_FULL, {1, 4}, 1},
    };
    ls_session s = {.groups.model_comm = comm, .model = {.shape = {.L = 4}}};

    (void)w;
    for (size_t i = 0; i < LS_COUNT(rows); i++) {
        int me = ls_comm_rank(comm);
        s.fitted.train.recompute = rows[i].level[me];
        s.fitted.train.recompute_blocks = rows[i].blocks[me] < 0 ? LS_RUN_AUTO : rows[i].blocks[me];
        LS_CHECK_OK(ls_model_groups_agree(&s));
        LS_CHECK_EQ(s.fitted.train.recompute, rows[i].want);
        LS_CHECK_EQ(s.fitted.train.recompute_blocks, rows[i].want_blocks);
    }
}

LS_TEST(hybrid_mp_recomputes_what_one_of_it_must)
{
    ls_world_run("2", NULL, agree);
}
