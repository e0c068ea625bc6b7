/* test_expert.c -- experts that are divided among ranks against the same model on one: losses,
 * gradients of every tensor, memory, bytes on the wire. */
#include <math.h>
#include "base/mem.h"
#include "comm/node/ranks.h"
#include "comm/worlds.h"
#include "kernel/kernel.h"
#include "model/pass_impl.h"
#include "model/tiny.h"
#include "parallel/side.h"
#include "parallel/tensor.h"

enum { VOCAB = 29, T = 7, MOST = 8, M = MOST * T };

static ls_run base_run(void)
{
    ls_run run = ls_tiny_run();

    run.model.context = T;
    run.model.bias = LS_BIAS_NONE;
    run.model.mlp = 17;
    run.model.experts = 4;
    run.model.experts_used = 2;
    run.model.experts_norm = true;
    run.train.balance_loss = 0.01;
    run.train.z_loss = 0.001;
    return run;
}

static void mixtral(ls_run *run)
{
    run->model.family = LS_FAMILY_MIXTRAL;
    run->model.kv_heads = 1;
    run->model.dropout = 0.1;
}

/* A token goes to more experts than some rank has. */
static void qwen3_moe(ls_run *run)
{
    run->model.family = LS_FAMILY_QWEN3_MOE;
    run->model.experts_used = 3;
    run->model.experts_norm = false;
    run->model.tied = LS_TIED_NO;
}

static void olmoe(ls_run *run)
{
    run->model.family = LS_FAMILY_OLMOE;
    run->model.experts = 8;
    run->model.experts_norm = false;
}

typedef struct variant {
    const char *name;
    void (*change)(ls_run *run);
    const char *world;
    int counts[4]; /* sequences of each rank, a call for each of them */
} variant;

static const variant variants[] = {{"mixtral", mixtral, "2", {2, 2}},
                                   {"mixtral, uneven", mixtral, "2", {3, 1}},
                                   {"mixtral, one idle", mixtral, "2", {0, 2}},
                                   {"mixtral on 4", mixtral, "4", {2, 1, 0, 3}},
                                   {"mixtral on nodes", mixtral, "1+1", {1, 2}},
                                   {"qwen3_moe", qwen3_moe, "2", {1, 2}},
                                   {"qwen3_moe on 4", qwen3_moe, "4", {1, 1, 1, 1}},
                                   {"olmoe", olmoe, "4", {1, 2, 1, 1}}};

/* What runs now; ranks are processes made after this was set. */
static struct {
    const variant *v;
    ls_dtype type;
    ls_recompute recompute;
} now;

static int sequences(void)
{
    int n = 0;

    for (size_t r = 0; r < LS_COUNT(now.v->counts); r++)
        n += now.v->counts[r];
    return n;
}

static void open_side(side *s, ls_split split, int64_t B, const ls_crew *crew)
{
    const ls_kernels *kernels;

    s->run = base_run();
    now.v->change(&s->run);
    LS_CHECK_OK(ls_device_open(&s->device, "cpu", 1));
    LS_CHECK_OK(ls_stream_create(&s->stream, s->device));
    LS_CHECK_OK(ls_kernel_pick("auto", &kernels));
    LS_CHECK_OK(ls_model_init_split(&s->model, &s->run, VOCAB, split));
    s->args = (ls_pass_args){.model = &s->model,
                             .kernels = kernels,
                             .stream = s->stream,
                             .type = now.type,
                             .B = B,
                             .T = T,
                             .leaves = 1,
                             .training = true,
                             .recompute = crew ? now.recompute
                                               : LS_RECOMPUTE_NONE, /* one: routes are read */
                             .recompute_blocks = s->model.shape.L,
                             .crew = crew};
    LS_CHECK_OK(ls_pass_open(&s->pass, &s->args));
    if (crew)
        LS_CHECK_EQ(ls_tensor_held_bytes(crew->context), ls_pass_bytes(&s->args, 1));
    start_side(s);
    ls_tiny_tokens(7, M, VOCAB, s->tokens);
    ls_tiny_tokens(8, M, VOCAB, s->targets);
    s->targets[5] = -1;
    s->state = (ls_step_state){.key = {3, 4}, .grad_scale = 1.0f / (float)(sequences() * T)};
}

/* A call of sequences first .. first+B-1; one that adds to the gradient, of none where B is 0. */
static void train(side *s, int64_t first, int64_t B, bool accumulate)
{
    ls_pass_call call = {.w = s->w_read,
                         .tokens = s->tokens + first * T,
                         .targets = s->targets + first * T,
                         .B = B,
                         .T = T,
                         .dropout = true,
                         .state = &s->state,
                         .losses = s->losses + first * T,
                         .grad = s->grad,
                         .leaves = 1,
                         .accumulate = accumulate};

    s->state.first_seq = (uint32_t)first;
    if (B > 0) {
        ls_pass_forward(s->pass, &call);
        ls_pass_backward(s->pass, &call);
    } else {
        ls_pass_serve(s->pass, &call, false);
        ls_pass_serve(s->pass, &call, true);
    }
}

/* Calls of the rank that has most of them, and where the sequences of a rank begin. */
static int rounds(void)
{
    int most = 0;

    for (size_t r = 0; r < LS_COUNT(now.v->counts); r++)
        most = now.v->counts[r] > most ? now.v->counts[r] : most;
    return most;
}

static int first_of(int rank)
{
    int first = 0;

    for (int r = 0; r < rank; r++)
        first += now.v->counts[r];
    return first;
}

static void train_part(side *s, int rank)
{
    int own = now.v->counts[rank];

    for (int i = 0; i < rounds(); i++)
        train(s, first_of(rank) + (i < own ? i : 0), i<own, i> 0 || own == 0);
    LS_CHECK_OK(ls_stream_sync(s->stream, INT64_MAX));
}

/* Rows that rank `rank` sends: those of its tokens to experts of others, those of others' tokens
 * back, each forward and backward; and the counts of each call. */
static int64_t bytes_sent(const side *one, const side *part, int rank)
{
    const ls_model_shape *s = &one->model.shape;
    const ls_split *split = &part->model.split;
    int64_t rows = 0, from = first_of(rank) * T, end = from + now.v->counts[rank] * T;

    for (int64_t l = 0; l < s->L; l++)
        for (int64_t i = 0; i < sequences() * T * s->K; i++) {
            bool own = i / s->K >= from && i / s->K < end;
            bool here = one->pass->blocks[l].experts.ids[i] / split->experts == rank;
            rows += own != here;
        }
    return 2 * rows * s->C * ls_dtype_bytes(now.type) +
           rounds() * s->L * (split->ranks - 1) * split->experts * (int64_t)sizeof(int32_t);
}

static void check_tensor(const side *one, const side *part, const ls_param *p, double tolerance)
{
    const ls_param *whole = ls_model_same(&one->model, p);
    double off = 0, size = 0;

    LS_CHECK_EQ(p->count, whole->count);
    for (int64_t k = 0; k < p->count; k++) {
        LS_CHECK_EQ(part->w[p->first + k], one->w[whole->first + k]);
        double want = (double)one->grad[whole->trained + k];
        double d = (double)part->grad[p->trained + k] - want;
        off += d * d;
        size += want * want;
    }
    if (!(sqrt(off) <= tolerance * sqrt(size) + 1e-9))
        ls_test_fail(__FILE__, __LINE__, "%s: rank %d of %d: %s is off by %.3g of %.3g",
                     now.v->name, part->model.split.rank, part->model.split.ranks, p->name,
                     sqrt(off), sqrt(size));
}

static ls_split split_of(const ls_comm *comm)
{
    return (ls_split){.rank = ls_comm_rank(comm), .ranks = ls_comm_ranks(comm), .by_experts = true};
}

static void near_one(ls_world *w, ls_comm *comm)
{
    double tolerance = now.type == LS_F32 ? 1e-4 : 5e-2;
    ls_split split = split_of(comm);
    side *one = ls_mem_alloc(sizeof *one), *part = ls_mem_alloc(sizeof *part);
    ls_tensor *tensor;

    (void)w;
    LS_CHECK(one && part);
    open_side(one, (ls_split){.ranks = 1}, sequences(), NULL);
    train(one, 0, sequences(), false);
    LS_CHECK_OK(ls_stream_sync(one->stream, INT64_MAX));
    LS_CHECK_OK(ls_tensor_open(&tensor, comm, 1));
    open_side(part, split, 1, ls_tensor_crew(tensor));
    train_part(part, split.rank);
    if (now.type == LS_F32) /* else a rounding may send a token elsewhere */
        LS_CHECK_EQ(ls_tensor_sent(tensor), bytes_sent(one, part, split.rank));
    ls_crew_span *spans = ls_mem_array((size_t)part->model.n_params, sizeof *spans);
    LS_CHECK(spans);
    LS_CHECK_OK(
        ls_tensor_sum(tensor, part->grad, spans, ls_model_partials(&part->model, spans), NULL));
    for (int i = first_of(split.rank) * T; i < first_of(split.rank + 1) * T; i++)
        LS_CHECK_NEAR(part->losses[i], one->losses[i], tolerance * (double)one->losses[i] + 1e-9);
    LS_CHECK_EQ(part->model.n_params,
                one->model.n_params -
                    3 * one->model.shape.L * (one->model.shape.E - part->model.split.experts));
    for (int i = 0; i < part->model.n_params && now.type == LS_F32; i++)
        check_tensor(one, part, &part->model.params[i], tolerance);
    ls_mem_free(spans);
    close_side(part);
    close_side(one);
    ls_tensor_close(tensor);
    ls_mem_free(part);
    ls_mem_free(one);
}

LS_TEST_SECONDS(expert_ranks_agree_with_one, 120)
{
    for (size_t v = 0; v < LS_COUNT(variants); v++) {
        now.v = &variants[v];
        now.type = LS_F32;
        ls_world_run(variants[v].world, NULL, near_one);
    }
}

/* Rows that came from other ranks are kept; their activations are made again, also by ranks that
 * have no call in a round. */
LS_TEST_SECONDS(expert_ranks_that_recompute_agree_with_one, 60)
{
    static const ls_recompute levels[] = {LS_RECOMPUTE_SELECTIVE, LS_RECOMPUTE_FULL};

    for (int i = 0; i < 4; i++) {
        now.v = &variants[i < 2 ? 2 : 6]; /* with an idle rank, and four */
        now.type = LS_F32;
        now.recompute = levels[i % 2];
        ls_world_run(now.v->world, NULL, near_one);
    }
    now.recompute = LS_RECOMPUTE_NONE;
}

LS_TEST_SECONDS(expert_ranks_agree_with_one_in_half_width, 60)
{
    now.v = &variants[1];
    now.type = LS_BF16;
    ls_world_run("2", NULL, near_one);
}

/* The same on threads, for the thread sanitizer. */
LS_TEST_SECONDS(expert_ranks_are_threads_too, 60)
{
    now.v = &variants[1];
    now.type = LS_F32;
    ls_world_run_threads("2", NULL, near_one);
}

/* What really leaves a node. */
static void traffic(ls_world *w, ls_comm *comm)
{
    ls_split split = split_of(comm);
    side *part = ls_mem_alloc(sizeof *part);
    int64_t before, after, received, counted;
    ls_coll meet = {.kind = LS_COLL_BARRIER};
    ls_tensor *tensor;

    (void)w;
    LS_CHECK(part);
    LS_CHECK_OK(ls_tensor_open(&tensor, comm, 1));
    open_side(part, split, 1, ls_tensor_crew(tensor));
    LS_CHECK_OK(ls_comm_run(comm, &meet, ls_ranks_in_ms(20000)));
    ls_comm_traffic(comm, &before, &received);
    counted = ls_tensor_sent(tensor);
    train_part(part, split.rank);
    LS_CHECK_OK(ls_comm_run(comm, &meet, ls_ranks_in_ms(20000)));
    ls_comm_traffic(comm, &after, &received);
    int64_t want = ls_tensor_sent(tensor) - counted, moves = rounds() * part->model.shape.L * 5;
    LS_CHECK(want > 0 && after - before >= want);
    LS_CHECK(after - before <= want + (moves + 1) * split.ranks * 512); /* headers */
    close_side(part);
    ls_tensor_close(tensor);
    ls_mem_free(part);
}

static void wide(ls_run *run)
{
    mixtral(run);
    run->model.width = 1024;
    run->model.head_size = 8;
}

static const variant wide_one = {"wide mixtral", wide, "1+1", {2, 1}};

LS_TEST_SECONDS(expert_bytes_on_the_wire_are_those_that_are_counted, 60)
{
    now.v = &wide_one;
    now.type = LS_F32;
    ls_world_run("1+1", NULL, traffic);
    ls_world_run("1+1+1+1", NULL, traffic);
}

/* A rank that goes away in the middle: the others' streams fail, with the reason. */
static void loses_one(ls_world *w, ls_comm *comm)
{
    ls_split split = split_of(comm);
    side *part = ls_mem_alloc(sizeof *part);
    ls_tensor *tensor;

    (void)w;
    LS_CHECK(part);
    LS_CHECK_OK(ls_tensor_open(&tensor, comm, 1));
    open_side(part, split, 1, ls_tensor_crew(tensor));
    if (split.rank == 1) {
        ls_comm_abort(comm, "gone for a test");
    } else {
        train(part, 0, 1, false);
        LS_CHECK_FAILS(ls_stream_sync(part->stream, INT64_MAX), LS_EPEER, "rank 1");
    }
    close_side(part);
    ls_tensor_close(tensor);
    ls_mem_free(part);
}

LS_TEST(expert_rank_that_is_lost_fails_the_stream_of_the_others)
{
    now.v = &variants[0];
    now.type = LS_F32;
    ls_world_run("2", NULL, loses_one);
    ls_world_run("1+1", NULL, loses_one);
}

LS_TEST(expert_split_says_what_cannot_be_divided)
{
    ls_run run = base_run();
    ls_model model;

    mixtral(&run);
    LS_CHECK_FAILS(
        ls_model_init_split(&model, &run, VOCAB, (ls_split){.ranks = 3, .by_experts = true}),
        LS_EUSAGE, "mesh.ep is 3, but the model has 4 experts, which cannot be divided evenly");
    olmoe(&run);
    LS_CHECK_FAILS(ls_model_init_split(&model, &run, VOCAB, (ls_split){.ranks = 3}), LS_EUSAGE,
                   "normalises the queries of all heads together");
}
