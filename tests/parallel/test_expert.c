/* test_expert.c -- experts that are divided among ranks, or among tp groups, against the same model on
 * one: losses, gradients of every tensor, memory, bytes on the wire. */
#include "base/mem.h"
#include "comm/node/ranks.h"
#include "comm/worlds.h"
#include "kernel/kernel.h"
#include "model/pass_impl.h"
#include "model/tiny.h"
#include "parallel/comm_world.h"
#include "parallel/mp_group.h"
#include "parallel/sum_bytes.h"
#include "model/pass_sent.h"

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

static void mixtral_mp_groups(ls_run *run) /* which share the one key/value head */
{
    mixtral(run);
    run->model.heads = 4;
}

static void qwen3_moe_mp_groups(ls_run *run)
{
    qwen3_moe(run);
    run->model.heads = run->model.kv_heads = 4;
}

static void olmoe_mp_groups(ls_run *run)
{
    olmoe(run);
    run->model.heads = run->model.kv_heads = 4;
}

static void mixtral_lora(ls_run *run)
{
    mixtral(run);
    run->lora.rank = 2;
    run->lora.alpha = 3;
}

static void freeze(ls_run *run, const char **names, int n)
{
    run->train.freeze = (ls_run_list){.items = names, .count = n};
}

/* Of the lowest block an expert is trained, of one rank: a gradient goes there on all of them. */
static void one_expert(ls_run *run)
{
    static const char *names[] = {"model.embed_tokens.weight",    "model.layers.0.self*",
                                  "model.layers.0.*norm*",        "model.layers.0.*gate.weight",
                                  "model.layers.0.*ts.0.*",       "model.layers.0.*ts.1.*",
                                  "model.layers.0.*ts.3.w[12].*", "model.layers.1.*ts.2.w1*"};

    mixtral(run);
    run->model.tied = LS_TIED_NO;
    freeze(run, names, (int)LS_COUNT(names));
}

/* Nobody goes down to the lowest block, nor serves there. */
static void upper_blocks(ls_run *run)
{
    static const char *names[] = {"model.embed_tokens.weight", "model.layers.0.*"};

    mixtral_mp_groups(run);
    run->model.tied = LS_TIED_NO;
    freeze(run, names, (int)LS_COUNT(names));
}

typedef struct variant {
    const char *name;
    void (*change)(ls_run *run);
    const char *world;
    int counts[4]; /* sequences of each rank or tp group, a call for each of them */
    int tp;        /* ranks of a tp group; 0: 1 */
    bool sp;
} variant;

static const variant variants[] = {
    {"mixtral", mixtral, "2", .counts = {2, 2}},
    {"mixtral, uneven", mixtral, "2", .counts = {3, 1}},
    {"mixtral, one idle", mixtral, "2", .counts = {0, 2}},
    {"mixtral on 4", mixtral, "4", .counts = {2, 1, 0, 3}},
    {"mixtral on nodes", mixtral, "1+1", .counts = {1, 2}},
    {"qwen3_moe", qwen3_moe, "2", .counts = {1, 2}},
    {"qwen3_moe on 4", qwen3_moe, "4", .counts = {1, 1, 1, 1}},
    {"olmoe", olmoe, "4", .counts = {1, 2, 1, 1}},
    {"mixtral, tp groups", mixtral_mp_groups, "4", .counts = {2, 1}, .tp = 2, .sp = true},
    {"qwen3_moe, tp groups", qwen3_moe_mp_groups, "4", .counts = {0, 2}, .tp = 2},
    {"olmoe, tp groups", olmoe_mp_groups, "4", .counts = {1, 2}, .tp = 2, .sp = true},
    {"mixtral lora", mixtral_lora, "2", .counts = {0, 2}},
    {"one expert", one_expert, "2", .counts = {2, 1}},
    {"upper blocks", upper_blocks, "4", .counts = {0, 2}, .tp = 2}};

/* What runs now; ranks are processes made after this was set. */
static struct {
    const variant *v;
    ls_dtype type;
    ls_recompute recompute;
    bool by_device; /* moves are collectives of device memory */
} now;

/* The groups of a rank: its tp group, and the ranks with other experts. */
typedef struct small_worlds {
    ls_comm *comms[2]; /* owned, where there are tp groups */
    ls_mp_group *tensor, *ep_group;
    ls_stream *stream; /* owned, where moves are by device; else NULL */
} small_worlds;

static int sequences(void)
{
    int n = 0;

    for (size_t r = 0; r < LS_COUNT(now.v->counts); r++)
        n += now.v->counts[r];
    return n;
}

static void open_part(side *s, ls_model_split split, int64_t B, const small_worlds *worlds)
{
    const ls_collectives *collectives =
        worlds && worlds->tensor ? ls_mp_group_collectives(worlds->tensor) : NULL;
    const ls_collectives *ep_group = worlds ? ls_mp_group_collectives(worlds->ep_group) : NULL;

    s->run = base_run();
    now.v->change(&s->run);
    open_side(s, VOCAB, split, "auto",
              (ls_pass_args){.type = now.type,
                             .B = B,
                             .T = T,
                             .leaves = 1,
                             .recompute = ep_group ? now.recompute
                                                   : LS_RECOMPUTE_NONE, /* one: routes are read */
                             .collectives = collectives,
                             .ep_group = ep_group,
                             .stream = worlds ? worlds->stream : NULL});
    if (ep_group && !worlds->stream)
        LS_CHECK_EQ(ls_mp_group_allocated((collectives ? collectives : ep_group)->context),
                    ls_pass_bytes(&s->args, 1));
    ls_tiny_tokens(7, M, VOCAB, s->tokens);
    ls_tiny_tokens(8, M, VOCAB, s->targets);
    s->targets[5] = -1;
    s->state = (ls_step_state){.key = {3, 4}, .grad_scale = 1.0f / (float)(sequences() * T)};
}

/* A call of sequences first .. first+B-1; one that adds to the gradient, of none where B is 0. */
static void train(side *s, int64_t first, int64_t B, bool accumulate)
{
    ls_pass_call call = call_of(s);

    call.tokens += first * T;
    call.targets += first * T;
    call.losses += first * T;
    call.B = B;
    call.accumulate = accumulate;
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
    const ls_model_split *split = &part->model.split;
    int64_t rows = 0, from = first_of(rank) * T, end = from + now.v->counts[rank] * T;

    for (int64_t l = 0; l < s->L; l++)
        for (int64_t i = 0; i < sequences() * T * s->K; i++) {
            bool own = i / s->K >= from && i / s->K < end;
            bool here = one->pass->blocks[l].experts.ids[i] / split->experts == rank;
            rows += own != here ? 1 + (l >= ls_pass_lowest(&part->args)) : 0;
        }
    return rows * s->C * ls_dtype_bytes(now.type) +
           rounds() * s->L * (split->ep_ranks - 1) * split->experts * (int64_t)sizeof(int32_t);
}

static void check_tensor(const side *one, const side *part, const ls_param *p, double tolerance)
{
    char who[64];

    snprintf(who, sizeof who, "%s: rank %d of %d, place %d", now.v->name, part->model.split.ep_rank,
             part->model.split.ep_ranks, part->model.split.rank);
    check_gradient(one, part, p, tolerance, who);
}

static ls_model_split split_of(const ls_comm *comm)
{
    int tp = now.v->tp ? now.v->tp : 1;

    return (ls_model_split){.rank = ls_comm_rank(comm) % tp,
                            .ranks = tp,
                            .ep_rank = ls_comm_rank(comm) / tp,
                            .ep_ranks = ls_comm_ranks(comm) / tp,
                            .sequence = now.v->sp};
}

static void open_worlds(small_worlds *x, ls_comm *comm)
{
    ls_model_split split = split_of(comm);
    int list[LS_WORLD_RANKS];

    *x = (small_worlds){.tensor = NULL};
    if (split.ranks > 1) {
        for (int i = 0; i < split.ranks; i++)
            list[i] = split.ep_rank * split.ranks + i;
        LS_CHECK_OK(ls_comm_sub(comm, list, split.ranks, INT64_MAX, &x->comms[0]));
        for (int i = 0; i < split.ep_ranks; i++)
            list[i] = i * split.ranks + split.rank;
        LS_CHECK_OK(ls_comm_sub(comm, list, split.ep_ranks, INT64_MAX, &x->comms[1]));
        ls_run run = base_run();
        now.v->change(&run);
        LS_CHECK_OK(ls_mp_group_open(&x->tensor, x->comms[0],
                                     run.model.kv_heads < split.ranks ? split.ranks : 1));
    }
    LS_CHECK_OK(ls_mp_group_open(&x->ep_group, x->comms[1] ? x->comms[1] : comm, 1));
    if (!now.by_device)
        return;
    x->stream = open_stream();
    if (x->tensor)
        move_by_device(x->tensor, x->stream, "tp", true);
    move_by_device(x->ep_group, x->stream, "ep", true);
}

static void close_worlds(small_worlds *x)
{
    ls_mp_group_close(x->tensor);
    ls_mp_group_close(x->ep_group);
    ls_comm_close(x->comms[0]);
    ls_comm_close(x->comms[1]);
    close_stream(x->stream);
}

/* What several ranks have a part of, with the bytes that it takes. */
static void sum_gradients(const small_worlds *x, side *part)
{
    const ls_model *m = &part->model;
    ls_collectives_span *spans = ls_mem_array((size_t)m->n_params, sizeof *spans);
    int n = ls_model_common(m, 0, m->trained, spans);
    int64_t before = ls_mp_group_sent(x->ep_group);

    LS_CHECK(spans);
    LS_CHECK_OK(ls_mp_group_sum(x->ep_group, part->grad, spans, n, NULL));
    LS_CHECK_EQ(ls_mp_group_sent(x->ep_group) - before, mp_sum_bytes(spans, n, m->split.ep_ranks));
    n = ls_model_partials(m, spans);
    LS_CHECK(x->tensor || n == 0);
    if (x->tensor)
        LS_CHECK_OK(ls_mp_group_sum(x->tensor, part->grad, spans, n, NULL));
    ls_mem_free(spans);
}

static void near_one(ls_world *w, ls_comm *comm)
{
    double tolerance = now.type == LS_F32 ? 1e-4 : 5e-2;
    ls_model_split split = split_of(comm);
    const side *one = w->context;
    side *part = ls_mem_alloc(sizeof *part);
    int own = now.v->counts[split.ep_rank];
    small_worlds worlds;

    LS_CHECK(part);
    open_worlds(&worlds, comm);
    open_part(part, split, 1, &worlds);
    train_part(part, split.ep_rank);
    if (now.type == LS_F32) /* else a rounding may send a token elsewhere */
        LS_CHECK_EQ(ls_mp_group_sent(worlds.ep_group), bytes_sent(one, part, split.ep_rank));
    if (worlds.tensor)
        LS_CHECK_EQ(ls_mp_group_sent(worlds.tensor), own * ls_pass_sent(&part->args, 1, T, true));
    sum_gradients(&worlds, part);
    for (int i = first_of(split.ep_rank) * T; i < first_of(split.ep_rank + 1) * T; i++)
        LS_CHECK_NEAR(part->losses[i], one->losses[i], tolerance * (double)one->losses[i] + 1e-9);
    LS_CHECK_EQ(part->model.n_params,
                one->model.n_params -
                    3 * one->model.shape.L * (one->model.shape.E - part->model.split.experts));
    for (int i = 0; i < part->model.n_params && now.type == LS_F32; i++)
        check_tensor(one, part, &part->model.params[i], tolerance);
    close_side(part);
    close_worlds(&worlds);
    ls_mem_free(part);
}

/* On all ranks, with what one has, which is there before they are. */
static void compare(const char *world, void (*run)(const char *, void *, ls_world_body))
{
    static side one;

    open_part(&one, (ls_model_split){.ranks = 1}, sequences(), NULL);
    train(&one, 0, sequences(), false);
    LS_CHECK_OK(ls_stream_sync(one.stream, INT64_MAX));
    run(world, &one, near_one);
    close_side(&one);
}

LS_TEST_SECONDS(expert_ranks_agree_with_one, 120)
{
    for (size_t v = 0; v < LS_COUNT(variants); v++) {
        now.v = &variants[v];
        now.type = LS_F32;
        compare(variants[v].world, ls_world_run);
    }
}

/* By collectives of device memory. */
LS_TEST_SECONDS(expert_ranks_by_device_collectives_agree_with_one, 120)
{
    now.by_device = true;
    for (size_t v = 0; v < LS_COUNT(variants); v++) {
        now.v = &variants[v];
        now.type = v == 1 ? LS_BF16 : LS_F32;
        compare(variants[v].world, ls_world_run);
    }
    now.by_device = false;
}

/* Rows that came from other ranks are kept; their activations are made again, also by ranks that
 * have no call in a round. */
LS_TEST_SECONDS(expert_ranks_that_recompute_agree_with_one, 60)
{
    static const ls_recompute levels[] = {LS_RECOMPUTE_SELECTIVE, LS_RECOMPUTE_FULL};
    static const int which[] = {2, 6, 8}; /* with an idle rank, four, and tp groups */

    for (int i = 0; i < 6; i++) {
        now.v = &variants[which[i / 2]];
        now.type = LS_F32;
        now.recompute = levels[i % 2];
        compare(now.v->world, ls_world_run);
    }
    now.recompute = LS_RECOMPUTE_NONE;
}

LS_TEST_SECONDS(expert_ranks_agree_with_one_in_half_width, 60)
{
    now.v = &variants[1];
    now.type = LS_BF16;
    compare("2", ls_world_run);
}

/* The same on threads, for the thread sanitizer. */
LS_TEST_SECONDS(expert_ranks_are_threads_too, 60)
{
    now.v = &variants[1];
    now.type = LS_F32;
    compare("2", ls_world_run_threads);
}

/* What really leaves a node. */
static void traffic(ls_world *w, ls_comm *comm)
{
    ls_model_split split = split_of(comm);
    side *part = ls_mem_alloc(sizeof *part);
    int64_t before, after, received, counted;
    ls_coll meet = {.kind = LS_COLL_BARRIER};
    small_worlds worlds;

    (void)w;
    LS_CHECK(part);
    open_worlds(&worlds, comm);
    open_part(part, split, 1, &worlds);
    LS_CHECK_OK(ls_comm_run(comm, &meet, ls_ranks_in_ms(20000)));
    ls_comm_traffic(comm, &before, &received);
    counted = ls_mp_group_sent(worlds.ep_group);
    train_part(part, split.ep_rank);
    LS_CHECK_OK(ls_comm_run(comm, &meet, ls_ranks_in_ms(20000)));
    ls_comm_traffic(comm, &after, &received);
    int64_t want = ls_mp_group_sent(worlds.ep_group) - counted,
            moves = rounds() * part->model.shape.L * 5;
    LS_CHECK(want > 0 && after - before >= want);
    LS_CHECK(after - before <= want + (moves + 1) * split.ep_ranks * 512); /* headers */
    close_side(part);
    close_worlds(&worlds);
    ls_mem_free(part);
}

static void wide(ls_run *run)
{
    mixtral(run);
    run->model.width = 1024;
    run->model.head_size = 8;
}

static const variant wide_one = {"wide mixtral", wide, "1+1", .counts = {2, 1}};

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
    ls_model_split split = split_of(comm);
    side *part = ls_mem_alloc(sizeof *part);
    small_worlds worlds;

    (void)w;
    LS_CHECK(part);
    open_worlds(&worlds, comm);
    open_part(part, split, 1, &worlds);
    if (split.ep_rank == 1) {
        ls_comm_abort(comm, "gone for a test");
    } else {
        train(part, 0, 1, false);
        LS_CHECK_FAILS(ls_stream_sync(part->stream, INT64_MAX), LS_EPEER, "rank 1");
    }
    close_side(part);
    close_worlds(&worlds);
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
    LS_CHECK_FAILS(ls_model_init_split(&model, &run, VOCAB, (ls_model_split){.ep_ranks = 3}),
                   LS_EUSAGE,
                   "mesh.ep is 3, but the model has 4 experts, which cannot be divided evenly");
    const char *names[] = {"*.experts.[01].*", "*.nobody.*", "*self*", "*norm*", "*gate.weight"};
    freeze(&run, names, 2);
    LS_CHECK_FAILS(ls_model_init_split(&model, &run, VOCAB, (ls_model_split){.ep_ranks = 2}),
                   LS_EUSAGE, "no parameter is called \"*.nobody.*\"");
    names[1] = "*embed*";
    freeze(&run, names, (int)LS_COUNT(names));
    LS_CHECK_FAILS(ls_model_init_split(&model, &run, VOCAB, (ls_model_split){.ep_ranks = 2}),
                   LS_EUSAGE, "nothing to train that has experts 0 to 1");
    names[0] = "*.experts.3.*"; /* another rank's */
    freeze(&run, names, 1);
    LS_CHECK_OK(ls_model_init_split(&model, &run, VOCAB, (ls_model_split){.ep_ranks = 2}));
    LS_CHECK_EQ(model.flat, model.trained);
    ls_model_release(&model);
}
