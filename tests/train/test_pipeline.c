/* test_pipeline.c -- pipelines: the bits of one process for any number of stages, pipelines and
 * chunks, every schedule and every ZeRO stage; what a rank holds against what the ledger predicts;
 * bytes sent along a pipeline and between pipelines, by formula. */
#include <math.h>
#include "base/mem.h"
#include "comm/worlds.h"
#include "model/decode.h"
#include "model/tiny.h"
#include "plan/ledger_bytes.h"
#include "train/steps.h"
#include "layout/pipeline_bytes.h"

enum { VOCAB = 67, STEPS = 3, MOST_TOKENS = 16 * 32 };

typedef struct kind {
    const char *name;
    int pp_ranks;
    ls_stage_plan_schedule schedule;
    int64_t chunks, layers, width, sequences, group;
    ls_family family;
    ls_recompute recompute;
    ls_precision precision;
    ls_reduce reduce;
    bool tied, wide_head; /* wide_head: the last stage is the head alone */
    bool pack;
    int zero;
} kind;

static ls_run run_of(const kind *k)
{
    ls_run run = ls_tiny_run();

    run.model.layers = k->layers;
    run.model.width = k->width;
    run.model.context = 8;
    run.model.heads = run.model.kv_heads = 2;
    run.model.head_size = k->width / 2;
    run.model.mlp = 2 * k->width;
    run.model.tied = k->tied ? LS_TIED_YES : LS_TIED_NO;
    run.model.dropout = 0.1;
    run.model.vocab = k->wide_head ? 2000 : LS_RUN_AUTO;
    if (k->family != LS_FAMILY_GPT2) {
        run.model.family = k->family;
        run.model.bias = LS_BIAS_NONE;
        run.model.kv_heads = 1;
    }
    if (k->family == LS_FAMILY_QWEN3_MOE) {
        run.model.experts = 4;
        run.model.experts_used = 2;
        run.train.balance_loss = 0.01;
    }
    run.batch.sequences = k->sequences;
    run.batch.group = k->group;
    run.train.clip = 0.3; /* below the norm, so that clipping is at work */
    run.train.recompute = k->recompute;
    run.train.recompute_blocks = k->recompute == LS_RECOMPUTE_FULL ? 2 : LS_RUN_AUTO;
    run.train.reduce = k->reduce;
    run.precision = k->precision;
    run.mesh.schedule = k->schedule;
    run.mesh.chunks = k->chunks;
    run.mesh.zero = k->zero;
    return run;
}

/* A process alone, or a rank. */
typedef struct rank {
    ls_run run;
    ls_mesh mesh;
    ls_model model;
    ls_device *device;
    ls_step_args args;
    ls_step *step;
    double losses[STEPS], norms[STEPS], validation;
    int64_t across; /* bytes to other pipelines, in the steps */
    float *w;       /* owned: all weights, where they are */
} rank;

static ls_optimizer optimizer;

static void open_rank(rank *r, const kind *k, ls_comm *comm)
{
    *r = (rank){.run = run_of(k)};
    r->run.train.optimizer = optimizer;
    r->mesh = (ls_mesh){.ranks = comm ? ls_comm_ranks(comm) : 1,
                        .rank = comm ? ls_comm_rank(comm) : 0,
                        .pp = comm ? k->pp_ranks : 0};
    LS_CHECK_OK(ls_device_open(&r->device, "cpu", 1));
    LS_CHECK_OK(ls_stream_create(&r->args.stream, r->device));
    LS_CHECK_OK(ls_kernel_pick("auto", &r->args.kernels));
    LS_CHECK_OK(ls_model_init(&r->model, &r->run, VOCAB));
    r->args.run = &r->run;
    r->args.model = &r->model;
    r->args.pack = k->pack;
    ls_calls_plan(&r->run, &r->mesh, &r->args.calls);
    if (comm) {
        ls_dp_args dp = ls_memory_dp(&r->run, &r->model, &r->mesh);
        dp.comm = comm;
        LS_CHECK_OK(ls_dp_open(&r->args.dp, &dp));
    }
    LS_CHECK_OK(ls_step_open(&r->step, &r->args));
    ls_steps_start(r->step, &r->model);
}

/* Of a process alone all but its numbers and weights. */
static void stop_rank(rank *r, ls_comm *comm)
{
    ls_step_close(r->step);
    if (comm)
        LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, INT64_MAX));
    ls_dp_close(r->args.dp);
    ls_stream_free(r->args.stream);
    ls_device_close(r->device);
}

static void close_rank(rank *r, ls_comm *comm)
{
    stop_rank(r, comm);
    ls_model_release(&r->model);
    ls_mem_free(r->w);
}

static void train(rank *r)
{
    int64_t T = r->run.model.context, first = r->args.calls.first * r->args.calls.leaf;
    int32_t tokens[MOST_TOKENS + 1];
    double sums[4] = {0};

    LS_CHECK(r->run.batch.sequences * T <= MOST_TOKENS);
    for (int i = 0; i < STEPS; i++) {
        ls_tiny_tokens((uint32_t)i, MOST_TOKENS + 1, VOCAB, tokens);
        ls_step_result result = ls_steps_run(r->step, i, tokens + first * T, 1e-2);
        r->losses[i] = result.loss;
        r->norms[i] = result.grad_norm;
    }
    r->across = r->step->pipeline ? r->step->pipeline->flow.sent_bytes : 0;
    LS_CHECK_OK(
        ls_step_loss(r->step, &(ls_step_batch){.tokens = tokens, .targets = tokens + 1}, 3, sums));
    LS_CHECK(ls_step_has_losses(r->step) || sums[0] + sums[1] + sums[2] == 0);
    r->validation = sums[0] + sums[1] + sums[2];
    r->w = ls_mem_array((size_t)r->model.flat, sizeof *r->w);
    LS_CHECK(r->w);
    if (r->step->pipeline)
        LS_CHECK_OK(ls_pipeline_collect(r->step, ls_step_state_arrays(r->step).w,
                                        r->mesh.rank == 0 ? r->w : NULL));
    else
        memcpy(r->w, ls_step_state_arrays(r->step).w, (size_t)r->model.flat * sizeof *r->w);
}

/* Equal bits, or in fast mode near numbers. */
static void check_same(const rank *want, const rank *got, const kind *k)
{
    bool exact = k->reduce == LS_REDUCE_ORDERED;

    for (int i = 0; i < STEPS; i++) {
        double off = fabs(got->losses[i] - want->losses[i]);
        if (exact ? off > 0 : off > 1e-4 * want->losses[i])
            ls_test_fail(__FILE__, __LINE__, "%s: loss of step %d is %.17g, expected %.17g",
                         k->name, i, got->losses[i], want->losses[i]);
        if (exact && (got->norms[i] < want->norms[i] || got->norms[i] > want->norms[i]))
            ls_test_fail(__FILE__, __LINE__, "%s: norm of step %d is %.17g, expected %.17g",
                         k->name, i, got->norms[i], want->norms[i]);
    }
    if (exact && ls_step_has_losses(got->step))
        LS_CHECK(!(got->validation < want->validation || got->validation > want->validation));
    for (int i = 0; i < want->model.n_params && got->mesh.rank == 0 && exact; i++) {
        const ls_param *p = &want->model.params[i];
        if (memcmp(got->w + p->first, want->w + p->first, (size_t)p->count * sizeof *got->w) != 0)
            ls_test_fail(__FILE__, __LINE__, "%s: \"%s\" differs", k->name, p->name);
    }
}

/* The copy of a tied embedding is the embedding. */
static void check_tied(const rank *r)
{
    const ls_pipeline *x = r->step->pipeline;
    ls_range tied = x->plan.tied;
    const float *w = ls_step_state_arrays(r->step).w;
    float *first = ls_mem_array((size_t)tied.count, sizeof *first);

    LS_CHECK(first);
    if (x->plan.pp_rank == 0)
        memcpy(first, w + tied.first, (size_t)tied.count * sizeof *first);
    LS_CHECK_OK(ls_comm_run(x->pipeline_comm,
                            &(ls_coll){.kind = LS_COLL_BROADCAST,
                                       .type = LS_F32,
                                       .count = tied.count,
                                       .in = first,
                                       .out = first},
                            INT64_MAX));
    if (ls_stage_plan_is_last(&x->plan))
        LS_CHECK(memcmp(first, w + tied.first, (size_t)tied.count * sizeof *first) == 0);
    ls_mem_free(first);
}

/* The bytes sent along a pipeline, and with ZeRO 2 and 3 to other pipelines, are those of the
 * formulas. */
static void check_bytes(const rank *r)
{
    const ls_pipeline *x = r->step->pipeline;

    if (x->plan.zero >= 2) {
        LS_CHECK(r->across > 0);
        LS_CHECK_EQ(r->across, STEPS * pipeline_across_bytes(&x->plan, &r->model, &r->run,
                                                             &r->step->now, r->step->type));
    }
    LS_CHECK_EQ(r->step->pipeline->sent_bytes,
                STEPS * pipeline_sent_bytes(&x->plan, &r->model, &r->step->now, r->step->type));
}

static const kind kinds[] = {
    /* 2 ranks */
    {"2 stages, 1f1b", 2, LS_PP_1F1B, 1, 5, 24, 6, 1, .tied = true},
    {"2 stages, gpipe", 2, LS_PP_GPIPE, 1, 5, 24, 6, 1, .tied = true, .pack = true},
    {"2 stages, interleaved", 2, LS_PP_INTERLEAVED, 2, 5, 24, 7, 1, .tied = true},
    {"2 stages, 3 chunks, llama", 2, LS_PP_INTERLEAVED, 3, 6, 24, 5, 1, .family = LS_FAMILY_LLAMA},
    {"2 stages, wide", 2, LS_PP_1F1B, 1, 3, 128, 4, 1, .tied = true},
    {"2 stages, full recompute", 2, LS_PP_1F1B, 1, 5, 24, 6, 1, .tied = true,
     .recompute = LS_RECOMPUTE_FULL},
    {"2 stages, selective, llama", 2, LS_PP_GPIPE, 1, 4, 24, 6, 1, .family = LS_FAMILY_LLAMA,
     .recompute = LS_RECOMPUTE_SELECTIVE},
    {"2 stages, groups of 2", 2, LS_PP_1F1B, 1, 4, 24, 7, 2, .tied = true},
    {"2 stages, bf16", 2, LS_PP_1F1B, 1, 4, 24, 5, 1, .tied = true, .precision = LS_PRECISION_BF16},
    {"2 stages, one micro-batch", 2, LS_PP_1F1B, 1, 4, 24, 1, 1, .tied = true},
    {"2 stages, a head by itself", 2, LS_PP_1F1B, 1, 2, 24, 3, 1, .wide_head = true},
    {"2 stages, experts", 2, LS_PP_1F1B, 1, 3, 24, 4, 1, .family = LS_FAMILY_QWEN3_MOE},
    {"2 stages, fast", 2, LS_PP_1F1B, 1, 4, 24, 6, 1, .tied = true, .reduce = LS_REDUCE_FAST},
    /* 3 */
    {"3 stages, 1f1b", 3, LS_PP_1F1B, 1, 5, 24, 7, 1, .tied = true},
    {"3 stages, gpipe, llama", 3, LS_PP_GPIPE, 1, 4, 24, 5, 1, .family = LS_FAMILY_LLAMA},
    {"3 stages, interleaved", 3, LS_PP_INTERLEAVED, 2, 7, 24, 8, 1, .tied = true},
    /* 4 */
    {"4 stages, 1f1b", 4, LS_PP_1F1B, 1, 5, 24, 6, 1, .tied = true},
    {"4 stages, interleaved, llama", 4, LS_PP_INTERLEAVED, 2, 9, 24, 9, 1,
     .family = LS_FAMILY_LLAMA, .recompute = LS_RECOMPUTE_FULL},
    {"2 stages, 2 pipelines", 2, LS_PP_1F1B, 1, 5, 24, 7, 1, .tied = true},
    {"2 stages, 2 pipelines, interleaved, wide", 2, LS_PP_INTERLEAVED, 2, 5, 128, 7, 1,
     .tied = true},
    {"2 stages, 2 pipelines, one idle", 2, LS_PP_GPIPE, 1, 3, 24, 1, 1, .tied = true},
    {"2 stages, 2 pipelines, zero 1", 2, LS_PP_1F1B, 1, 5, 24, 7, 1, .tied = true, .zero = 1},
    {"2 stages, 2 pipelines, zero 1, interleaved, wide", 2, LS_PP_INTERLEAVED, 2, 5, 128, 7, 1,
     .tied = true, .zero = 1, .precision = LS_PRECISION_BF16},
    {"2 stages, 2 pipelines, fast", 2, LS_PP_1F1B, 1, 4, 24, 6, 1, .tied = true,
     .reduce = LS_REDUCE_FAST},
    {"2 stages, 2 pipelines, fast, one idle", 2, LS_PP_1F1B, 1, 4, 24, 1, 1, .tied = true,
     .reduce = LS_REDUCE_FAST},
    /* 6 and 8 */
    {"3 stages, 2 pipelines, gpipe", 3, LS_PP_GPIPE, 1, 5, 24, 7, 1, .tied = true},
    {"3 stages, 2 pipelines, llama", 3, LS_PP_INTERLEAVED, 2, 6, 24, 6, 1,
     .family = LS_FAMILY_LLAMA},
    {"4 stages, 2 pipelines, zero 1", 4, LS_PP_1F1B, 1, 6, 24, 9, 1, .tied = true, .zero = 1},
    /* backward in halves: 2 */
    {"2 stages, zero-bubble", 2, LS_PP_ZERO_BUBBLE, 1, 5, 24, 6, 1, .tied = true, .pack = true},
    {"2 stages, zero-bubble, llama", 2, LS_PP_ZERO_BUBBLE, 1, 4, 24, 7, 1,
     .family = LS_FAMILY_LLAMA},
    {"2 stages, zero-bubble, full recompute", 2, LS_PP_ZERO_BUBBLE, 1, 5, 24, 6, 1, .tied = true,
     .recompute = LS_RECOMPUTE_FULL},
    {"2 stages, zero-bubble, selective, qwen3", 2, LS_PP_ZERO_BUBBLE, 1, 4, 24, 6, 1,
     .family = LS_FAMILY_QWEN3, .recompute = LS_RECOMPUTE_SELECTIVE},
    {"2 stages, zero-bubble, groups of 2", 2, LS_PP_ZERO_BUBBLE, 1, 4, 24, 7, 2, .tied = true},
    {"2 stages, zero-bubble, bf16", 2, LS_PP_ZERO_BUBBLE, 1, 4, 24, 5, 1, .tied = true,
     .precision = LS_PRECISION_BF16},
    {"2 stages, zero-bubble, one micro-batch, full recompute", 2, LS_PP_ZERO_BUBBLE, 1, 4, 24, 1, 1,
     .tied = true, .recompute = LS_RECOMPUTE_FULL},
    {"2 stages, zero-bubble, a head by itself", 2, LS_PP_ZERO_BUBBLE, 1, 2, 24, 3, 1,
     .wide_head = true},
    {"2 stages, zero-bubble, experts", 2, LS_PP_ZERO_BUBBLE, 1, 3, 24, 4, 1,
     .family = LS_FAMILY_QWEN3_MOE},
    {"2 stages, zero-bubble, fast", 2, LS_PP_ZERO_BUBBLE, 1, 4, 24, 6, 1, .tied = true,
     .reduce = LS_REDUCE_FAST},
    /* 3, 4 and 8 */
    {"3 stages, zero-bubble", 3, LS_PP_ZERO_BUBBLE, 1, 5, 24, 7, 1, .tied = true},
    {"4 stages, zero-bubble, llama", 4, LS_PP_ZERO_BUBBLE, 1, 5, 24, 9, 1,
     .family = LS_FAMILY_LLAMA},
    {"2 stages, 2 pipelines, zero-bubble, zero 1", 2, LS_PP_ZERO_BUBBLE, 1, 5, 24, 7, 1,
     .tied = true, .zero = 1},
    {"4 stages, 2 pipelines, zero-bubble", 4, LS_PP_ZERO_BUBBLE, 1, 6, 24, 9, 1, .tied = true},
    /* pipelines divide gradients, and weights: 4 ranks */
    {"zero 2", 2, LS_PP_1F1B, 1, 5, 24, 7, 1, .tied = true, .zero = 2},
    {"zero 2, gpipe, llama, one idle", 2, LS_PP_GPIPE, 1, 4, 24, 1, 1, .family = LS_FAMILY_LLAMA,
     .zero = 2},
    {"zero 2, interleaved, wide, bf16", 2, LS_PP_INTERLEAVED, 2, 5, 128, 7, 1, .tied = true,
     .zero = 2, .precision = LS_PRECISION_BF16, .pack = true},
    {"zero 2, zero-bubble, full recompute", 2, LS_PP_ZERO_BUBBLE, 1, 5, 24, 7, 1, .tied = true,
     .zero = 2, .recompute = LS_RECOMPUTE_FULL},
    {"zero 2, experts", 2, LS_PP_1F1B, 1, 3, 24, 5, 1, .family = LS_FAMILY_QWEN3_MOE, .zero = 2},
    {"zero 2, fast", 2, LS_PP_1F1B, 1, 4, 24, 5, 1, .tied = true, .zero = 2,
     .reduce = LS_REDUCE_FAST},
    {"zero 3", 2, LS_PP_1F1B, 1, 5, 24, 7, 1, .tied = true, .zero = 3},
    {"zero 3, gpipe, full recompute, qwen3, one idle", 2, LS_PP_GPIPE, 1, 4, 24, 1, 1,
     .family = LS_FAMILY_QWEN3, .zero = 3, .recompute = LS_RECOMPUTE_FULL},
    {"zero 3, interleaved, wide, bf16", 2, LS_PP_INTERLEAVED, 2, 5, 128, 7, 1, .tied = true,
     .zero = 3, .precision = LS_PRECISION_BF16},
    {"zero 3, zero-bubble", 2, LS_PP_ZERO_BUBBLE, 1, 5, 24, 7, 1, .tied = true, .zero = 3},
    {"zero 3, zero-bubble, selective, llama", 2, LS_PP_ZERO_BUBBLE, 1, 4, 24, 6, 1,
     .family = LS_FAMILY_LLAMA, .zero = 3, .recompute = LS_RECOMPUTE_SELECTIVE},
    {"zero 3, experts, a head by itself", 2, LS_PP_1F1B, 1, 2, 24, 3, 1, .wide_head = true,
     .family = LS_FAMILY_QWEN3_MOE, .zero = 3},
    {"zero 3, fast, interleaved", 2, LS_PP_INTERLEAVED, 2, 4, 24, 5, 1, .tied = true, .zero = 3,
     .reduce = LS_REDUCE_FAST},
    {"zero 3, fast, zero-bubble", 2, LS_PP_ZERO_BUBBLE, 1, 4, 24, 5, 1, .tied = true, .zero = 3,
     .reduce = LS_REDUCE_FAST},
    {"zero 3, many layers", 2, LS_PP_1F1B, 1, 124, 8, 2, 1, .tied = true, .zero = 3},
    /* 6 */
    {"3 pipelines, zero 2", 2, LS_PP_1F1B, 1, 4, 24, 7, 1, .tied = true, .zero = 2},
    {"3 stages, zero 3, interleaved", 3, LS_PP_INTERLEAVED, 2, 6, 24, 7, 1, .tied = true,
     .zero = 3},
    {"3 pipelines, zero 3, zero-bubble, full recompute", 2, LS_PP_ZERO_BUBBLE, 1, 4, 24, 8, 1,
     .tied = true, .zero = 3, .recompute = LS_RECOMPUTE_FULL},
};

/* The first of those that divide gradients, for memory and bytes. */
enum { PARTED = 42 };

static const struct {
    const char *world;
    int first, end; /* of the kinds */
} worlds[] = {{"2", 0, 13},
              {"3", 13, 16},
              {"4", 16, 25},
              {"6", 25, 27},
              {"8", 27, 28},
              {"2", 28, 38},
              {"3", 38, 39},
              {"4", 39, 41},
              {"8", 41, 42},
              {"4", PARTED, PARTED + 15},
              {"6", PARTED + 15, PARTED + 18}};

static rank alone[LS_COUNT(kinds)]; /* the same in one process */

static void all_kinds(ls_world *w, ls_comm *comm)
{
    const int *range = w->context;

    for (int i = range[0]; i < range[1]; i += ls_test_stride(2)) {
        rank r;
        open_rank(&r, &kinds[i], comm);
        train(&r);
        check_same(&alone[i], &r, &kinds[i]);
        check_bytes(&r);
        if (kinds[i].tied && kinds[i].zero < 3)
            check_tied(&r);
        close_rank(&r, comm);
    }
}

/* What one process computes is there before the ranks are. */
static void run_kinds(const char *world, int first, int end)
{
    int range[2] = {first, end};

    for (int i = first; i < end; i += ls_test_stride(2)) {
        open_rank(&alone[i], &kinds[i], NULL);
        train(&alone[i]);
        stop_rank(&alone[i], NULL);
    }
    ls_world_run(world, range, all_kinds);
    for (int i = first; i < end; i += ls_test_stride(2)) {
        ls_model_release(&alone[i].model);
        ls_mem_free(alone[i].w);
    }
}

static void run_world(int i)
{
    run_kinds(worlds[i].world, worlds[i].first, worlds[i].end);
}

LS_TEST_SECONDS(pipeline_of_two_pp_ranks_has_the_bits_of_one_process, 180)
{
    run_world(0);
}

LS_TEST_SECONDS(pipeline_of_three_pp_ranks_has_the_bits_of_one_process, 180)
{
    run_world(1);
}

LS_TEST_SECONDS(pipelines_of_four_ranks_have_the_bits_of_one_process, 180)
{
    run_world(2);
}

LS_TEST_SECONDS(pipelines_of_six_and_eight_ranks_have_the_bits_of_one_process, 240)
{
    run_world(3);
    run_world(4);
}

LS_TEST_SECONDS(pipelines_whose_backward_is_cut_have_the_bits_of_one_process, 240)
{
    for (int i = 5; i < 9; i++)
        run_world(i);
}

LS_TEST_SECONDS(pipelines_that_divide_gradients_and_weights_have_the_bits_of_one_process, 240)
{
    LS_CHECK_EQ(strcmp(kinds[PARTED].name, "zero 2"), 0);
    LS_CHECK_EQ(LS_COUNT(kinds), PARTED + 18);
    run_world(9);
}

LS_TEST_SECONDS(three_pipelines_that_divide_gradients_and_weights_have_the_bits_too, 240)
{
    run_world(10);
}

/* --- several nodes ---------------------------------------------------------------------------- */

LS_TEST_SECONDS(pipelines_across_nodes_have_the_bits_of_one_process, 180)
{
    run_kinds("2+2", 18, 19);
    run_kinds("2+2", PARTED + 6, PARTED + 7);
}

/* Each rank on a node of its own: what leaves it are streams, gradients and weights, as formulas
 * say, sums for the norm, which go round twice at most, and some numbers. */
static void sent_between_nodes(ls_world *w, ls_comm *comm)
{
    const kind *k = w->context;
    const int steps = ls_test_times(STEPS);
    rank r;

    open_rank(&r, k, comm);
    int64_t before = ls_world_sent(comm);
    int32_t tokens[MOST_TOKENS + 1];
    ls_tiny_tokens(1, MOST_TOKENS + 1, VOCAB, tokens);
    int64_t first = r.args.calls.first * r.args.calls.leaf;
    for (int i = 0; i < steps; i++)
        (void)ls_steps_run(r.step, i, tokens + first * r.run.model.context, 1e-2);
    const ls_pipeline *x = r.step->pipeline;
    int64_t blocks = (r.model.trained + LS_NORM_BLOCK - 1) / LS_NORM_BLOCK;
    int64_t norm = 8 * (blocks + x->edge_count * LS_NORM_BLOCK), numbers = 16 * 1024;
    int64_t least = r.step->pipeline->sent_bytes + r.step->pipeline->flow.sent_bytes;
    int64_t got = ls_world_sent(comm) - before;
    LS_CHECK(least > 2 * steps * norm);
    if (got < least || got > least + steps * (norm + numbers))
        ls_test_fail(__FILE__, __LINE__, "%s: rank %d sent %lld bytes, expected %lld to %lld",
                     k->name, r.mesh.rank, (long long)got, (long long)least,
                     (long long)(least + steps * (norm + numbers)));
    close_rank(&r, comm);
}

LS_TEST_SECONDS(pipelines_that_divide_send_the_bytes_of_the_formula, 180)
{
    kind k = {"zero 2", 2, LS_PP_1F1B, 1, 4, 256, 8, 1, .family = LS_FAMILY_LLAMA, .zero = 2};

    ls_world_run("1+1+1+1", &k, sent_between_nodes);
    k.name = "zero 3, fast";
    k.zero = 3;
    k.tied = true;
    k.reduce = LS_REDUCE_FAST;
    ls_world_run("1+1+1+1", &k, sent_between_nodes);
}

/* --- memory ----------------------------------------------------------------------------------- */

static int64_t in_windows(const ls_ledger *ledger)
{
    return ledger_bytes(ledger, "weights") + ledger_bytes(ledger, "bf16 weights") +
           ledger_bytes(ledger, "optimizer") + ledger_bytes(ledger, "gradients");
}

/* A rank that has trained, and its ledger. */
static void train_predicted(rank *r, const kind *k, ls_comm *comm, ls_ledger *ledger_out)
{
    open_rank(r, k, comm);
    train(r);
    ls_memory_predict(&(ls_memory_args){.run = &r->run,
                                        .model = &r->model,
                                        .kernels = r->args.kernels,
                                        .mesh = &r->mesh,
                                        .threads = 1,
                                        .pack = k->pack},
                      ledger_out);
}

static void counted(ls_world *w, ls_comm *comm)
{
    static const int which[] = {2, 4, 5, 8, 9, 28, 29, 31}; /* of the kinds */

    (void)w;
    for (size_t i = 0; i < LS_COUNT(which); i++) {
        const kind *k = &kinds[which[i]];
        ls_ledger ledger;
        rank r;
        train_predicted(&r, k, comm, &ledger);
        int64_t windows = in_windows(&ledger);
        int64_t rest = ls_ledger_total(&ledger) - windows - ledger_bytes(&ledger, "threads") -
                       ledger_bytes(&ledger, "batch") - ledger_bytes(&ledger, "snapshot") -
                       ledger_bytes(&ledger, "whole weights") - ledger_bytes(&ledger, "saving") -
                       ls_decode_bytes(&r.model);
        LS_CHECK_EQ(rest, ls_device_used_bytes(r.device));
        int64_t held = held_by(r.step->pipeline);
        if (held > windows || held < windows * 9 / 10)
            ls_test_fail(__FILE__, __LINE__, "%s: rank %d holds %lld bytes, the ledger says %lld",
                         k->name, r.mesh.rank, (long long)held, (long long)windows);
        close_rank(&r, comm);
    }
}

LS_TEST_SECONDS(pipeline_uses_the_bytes_that_the_ledger_predicts, 120)
{
    ls_world_run("2", NULL, counted);
}

LS_TEST_SECONDS(pipeline_with_one_moment_uses_what_the_ledger_predicts, 120)
{
    optimizer = LS_OPTIMIZER_LION;
    ls_world_run("2", NULL, counted);
}

/* What is there at rest, and what comes and goes at most in a step. */
static void counted_parts(ls_world *w, ls_comm *comm)
{
    static const int which[] = {0, 2, 3, 5, 6, 8, 9, 12}; /* behind PARTED */

    (void)w;
    for (size_t i = 0; i < LS_COUNT(which); i++) {
        const kind *k = &kinds[PARTED + which[i]];
        ls_ledger ledger;
        rank r;
        train_predicted(&r, k, comm, &ledger);
        const ls_pipeline *x = r.step->pipeline;
        int64_t flow = ls_pipeline_memory_flow_bytes(&x->plan, &r.model), rest = held_by(x);
        int64_t gathered = ledger_bytes(&ledger, "gathered weights");
        int64_t windows = in_windows(&ledger) - flow;
        const int64_t two = 2 * LS_WINDOW_PAGE;         /* at the ends */
        bool halves = k->schedule == LS_PP_ZERO_BUBBLE; /* the windows are not all full at once */
        if (rest > windows || rest < windows * 9 / 10)
            ls_test_fail(__FILE__, __LINE__, "%s: rank %d holds %lld bytes, the ledger says %lld",
                         k->name, r.mesh.rank, (long long)rest, (long long)windows);
        if (x->flow.most > flow || x->flow.most < flow * (halves ? 5 : 9) / 10 - two)
            ls_test_fail(__FILE__, __LINE__, "%s: rank %d has %lld of gradients, expected %lld",
                         k->name, r.mesh.rank, (long long)x->flow.most, (long long)flow);
        if (x->fetch.most > gathered || x->fetch.most < gathered * 9 / 10 - two)
            ls_test_fail(__FILE__, __LINE__, "%s: rank %d has %lld of weights, expected %lld",
                         k->name, r.mesh.rank, (long long)x->fetch.most, (long long)gathered);
        LS_CHECK_EQ(ls_window_held(&r.step->zero_gather.window), 0);
        close_rank(&r, comm);
    }
}

LS_TEST_SECONDS(pipelines_that_divide_hold_what_the_ledger_predicts, 120)
{
    ls_world_run("4", NULL, counted_parts);
}

/* Of a deep model each stage takes less than the one before; weights and moments by as much as
 * there are pipelines. */
LS_TEST(pipelines_that_divide_more_hold_less)
{
    static const char *const pipelines[] = {"weights", "optimizer", "gradients", "gathered weights",
                                            "exchange"};
    kind k = {"deep", 2, LS_PP_1F1B, 1, 40, 128, 16, 1, .reduce = LS_REDUCE_FAST};
    const ls_mesh mesh = {.ranks = 8, .rank = 3, .pp = 2};
    const ls_kernels *kernels;
    int64_t sums[4] = {0}, weights[4], moments[4];

    LS_CHECK_OK(ls_kernel_pick("auto", &kernels));
    for (k.zero = 0; k.zero < 4; k.zero++) {
        ls_run run = run_of(&k);
        ls_model model;
        ls_ledger ledger;
        LS_CHECK_OK(ls_model_init(&model, &run, VOCAB));
        ls_memory_predict(
            &(ls_memory_args){
                .run = &run, .model = &model, .kernels = kernels, .mesh = &mesh, .threads = 1},
            &ledger);
        for (size_t i = 0; i < LS_COUNT(pipelines); i++)
            sums[k.zero] += ledger_bytes(&ledger, pipelines[i]);
        weights[k.zero] = ledger_bytes(&ledger, "weights");
        moments[k.zero] = ledger_bytes(&ledger, "optimizer");
        ls_model_release(&model);
    }
    for (int zero = 1; zero < 4; zero++)
        LS_CHECK(sums[zero] < sums[zero - 1] * 9 / 10);
    LS_CHECK_EQ(weights[2], weights[0]);
    LS_CHECK(weights[3] < weights[0] * 27 / 100 && weights[3] >= weights[0] / 4);
    LS_CHECK(moments[2] < moments[0] * 27 / 100 && moments[3] == moments[2]);
}

/* --- refusals --------------------------------------------------------------------------------- */

LS_TEST(pipeline_says_which_stages_the_layers_allow)
{
    const kind k = {"few", 4, LS_PP_INTERLEAVED, 2, 6, 24, 4, 1, .tied = true};
    ls_run run = run_of(&k);
    ls_model model;
    ls_stage_plan pipe;

    run.mesh.pp = 4;
    LS_CHECK_OK(ls_model_init(&model, &run, VOCAB));
    LS_CHECK_EQ(ls_stage_plan_init(&pipe, &run, &model, &(ls_mesh){.ranks = 4, .pp = 4}, 4, false),
                LS_EUSAGE);
    LS_CHECK(strstr(ls_err_last()->text, "6 layers cannot be cut into 8 stages"));
    LS_CHECK(strstr(ls_err_last()->hint, "mesh.chunks: 1 works, with mesh.schedule: 1f1b"));
    run.mesh.chunks = 1;
    run.mesh.schedule = LS_PP_1F1B;
    run.mesh.pp = 8;
    LS_CHECK_EQ(ls_stage_plan_init(&pipe, &run, &model, &(ls_mesh){.ranks = 8, .pp = 8}, 4, false),
                LS_EUSAGE);
    LS_CHECK(strstr(ls_err_last()->hint, "mesh.pp: 6 works"));
    ls_model_release(&model);
}
