/* test_mp_group.c -- a model on several ranks against the same model on one: losses, gradients of
 * every tensor, memory, bytes on the wire. */
#include "base/mem.h"
#include "comm/worlds.h"
#include "kernel/kernel.h"
#include "model/pass.h"
#include "model/tiny.h"
#include "parallel/comm_world.h"
#include "parallel/mp_group.h"
#include "model/pass_sent.h"

enum { VOCAB = 29, T = 7, B = 3, M = B * T };

/* Odd on purpose: rows, tokens and columns that no number of ranks divides. */
static ls_run base_run(void)
{
    ls_run run = ls_tiny_run();

    run.model.context = T;
    run.model.heads = run.model.kv_heads = 8;
    run.model.head_size = 4;
    run.model.width = 24;
    run.model.mlp = 41;
    return run;
}

static void gpt2(ls_run *run)
{
    run->model.dropout = 0.1;
}

static void gpt2_lora(ls_run *run)
{
    run->lora.rank = 3;
    run->lora.alpha = 3;
}

static void llama(ls_run *run)
{
    run->model.family = LS_FAMILY_LLAMA;
    run->model.bias = LS_BIAS_NONE;
    run->model.kv_heads = 2;
}

static void llama_biased(ls_run *run)
{
    llama(run);
    run->model.bias = LS_BIAS_ALL;
    run->model.tied = LS_TIED_NO;
    run->model.dropout = 0.2;
}

static void llama_lora(ls_run *run)
{
    llama(run);
    run->lora.rank = 2;
    run->lora.alpha = 3;
}

static void qwen3(ls_run *run)
{
    llama(run);
    run->model.family = LS_FAMILY_QWEN3;
    run->model.head_size = 10; /* not width / heads */
}

static void mixtral(ls_run *run)
{
    llama(run);
    run->model.family = LS_FAMILY_MIXTRAL;
    run->model.experts = 4;
    run->model.experts_used = 2;
    run->model.experts_norm = true;
    run->train.balance_loss = 0.01;
    run->train.z_loss = 0.001;
}

/* Norms of q and k over the heads of all ranks. */
static void olmoe(ls_run *run)
{
    mixtral(run);
    run->model.family = LS_FAMILY_OLMOE;
    run->model.experts_norm = false;
    run->model.bias = LS_BIAS_ATTENTION;
}

/* The same norms, and those of the stream behind the layers. */
static void olmo2(ls_run *run)
{
    llama(run);
    run->model.family = LS_FAMILY_OLMO2;
}

static void olmo2_biased(ls_run *run)
{
    olmo2(run);
    run->model.bias = LS_BIAS_ATTENTION;
}

static void olmo2_lora(ls_run *run)
{
    olmo2(run);
    run->lora.rank = 2;
    run->lora.alpha = 3;
}

static void mixtral_lora(ls_run *run)
{
    mixtral(run);
    run->lora.rank = 3;
    run->lora.alpha = 2;
}

static void freeze(ls_run *run, const char **names, int n)
{
    run->train.freeze = (ls_run_list){.items = names, .count = n};
}

/* The lowest block, and parts of what lies side by side in the next. */
static void llama_frozen(ls_run *run)
{
    static const char *names[] = {"model.embed_tokens.weight", "model.layers.0.*",
                                  "*.k_proj.weight", "*.up_proj.weight", "*norm.weight"};

    llama(run);
    run->model.tied = LS_TIED_NO;
    freeze(run, names, (int)LS_COUNT(names));
}

/* One of two norms that one row makes the gradients of. */
static void qwen3_frozen(ls_run *run)
{
    static const char *names[] = {"model.layers.0.*.q_norm.weight", "*.layers.1.*.k_norm.weight"};

    qwen3(run);
    freeze(run, names, (int)LS_COUNT(names));
}

/* Norms over all heads, of which that of the keys is trained alone. */
static void olmoe_frozen(ls_run *run)
{
    static const char *names[] = {"*.q_norm.weight", "*.experts.1.*", "*.gate.weight",
                                  "*.q_proj.*"};

    olmoe(run);
    freeze(run, names, (int)LS_COUNT(names));
}

static void three(ls_run *run)
{
    qwen3(run);
    run->model.heads = 6;
    run->model.kv_heads = 3;
}

typedef struct variant {
    const char *name;
    void (*change)(ls_run *run);
    const char *worlds[4]; /* as many ranks hold one model between them */
} variant;

static const variant variants[] = {
    {"gpt2", gpt2, {"2", "4", "8", NULL}},         {"gpt2 lora", gpt2_lora, {"2", NULL}},
    {"llama", llama, {"2", "4", "1+1", NULL}},     {"llama biased", llama_biased, {"4", "8", NULL}},
    {"llama lora", llama_lora, {"4", NULL}},       {"qwen3", qwen3, {"2", "8", NULL}},
    {"qwen3 of three", three, {"3", "1+2", NULL}}, {"mixtral", mixtral, {"2", "4", NULL}},
    {"olmoe", olmoe, {"2", "4", "1+1", NULL}},     {"mixtral lora", mixtral_lora, {"2", NULL}},
    {"llama frozen", llama_frozen, {"2", NULL}},   {"olmoe frozen", olmoe_frozen, {"4", NULL}},
    {"qwen3 frozen", qwen3_frozen, {"2", NULL}},   {"olmo2", olmo2, {"2", "8", "1+1", NULL}},
    {"olmo2 lora", olmo2_lora, {"4", NULL}},       {"olmo2 biased", olmo2_biased, {"2", NULL}}};

/* Those of which every mode is tried: gpt2, llama and olmo2. */
static const int every_mode[] = {0, 2, 13};

/* What runs now; ranks are processes made after this was set. */
static struct {
    const variant *v;
    bool sequence;
    ls_dtype type;
    ls_recompute recompute;
    const char *kernels;
    int64_t leaves;
    int late;       /* backward is cut into halves */
    bool by_device; /* moves are collectives of device memory, */
    bool halves;    /* one half of a product while the other is made */
} now;

static void open_part(side *s, ls_model_split split, const ls_collectives *collectives,
                      ls_stream *stream)
{
    s->run = base_run();
    now.v->change(&s->run);
    int64_t taken = open_side(s, VOCAB, split, now.kernels,
                              (ls_pass_args){.type = now.type,
                                             .B = B,
                                             .T = T,
                                             .leaves = now.leaves,
                                             .recompute = now.recompute,
                                             .late = now.late,
                                             .collectives = collectives,
                                             .stream = stream});
    LS_CHECK_EQ(taken, collectives && !stream ? 0 : ls_pass_bytes(&s->args, 1));
    if (collectives)
        LS_CHECK_EQ(ls_mp_group_allocated(collectives->context),
                    stream ? 0 : ls_pass_bytes(&s->args, 1));
    ls_tiny_tokens(7, M, VOCAB, s->tokens);
    ls_tiny_tokens(8, M, VOCAB, s->targets);
    s->targets[5] = -1;
    s->state = (ls_step_state){.key = {3, 4}, .first_seq = 5, .grad_scale = 1.0f / M};
}

static void check_tensors(const side *one, const side *part, double tolerance)
{
    char who[64];

    snprintf(who, sizeof who, "%s: rank %d of %d%s", now.v->name, part->model.split.rank,
             part->model.split.ranks, now.sequence ? ", rows divided" : "");
    LS_CHECK_EQ(one->model.n_params, part->model.n_params);
    for (int i = 0; i < part->model.n_params; i++)
        check_gradient(one, part, &part->model.params[i], tolerance, who);
}

/* The part of this rank. */
static ls_model_split split_of(const ls_comm *comm)
{
    return (ls_model_split){
        .rank = ls_comm_rank(comm), .ranks = ls_comm_ranks(comm), .sequence = now.sequence};
}

static void near_one(ls_world *w, ls_comm *comm)
{
    double tolerance = now.type == LS_F32 ? 1e-4 : 5e-2;
    ls_model_split split = split_of(comm);
    const side *one = w->context;
    side *part = ls_mem_alloc(sizeof *part);
    ls_mp_group *tensor;

    LS_CHECK(part);
    int64_t kv = one->model.shape.Hkv;
    ls_stream *stream = now.by_device ? open_stream() : NULL;
    LS_CHECK_OK(ls_mp_group_open(&tensor, comm, kv < split.ranks ? split.ranks / (int)kv : 1));
    if (stream)
        move_by_device(tensor, stream, "tp", now.halves);
    open_part(part, split, ls_mp_group_collectives(tensor), stream);
    train_twice(part);
    LS_CHECK_EQ(ls_mp_group_sent(tensor), 2 * ls_pass_sent(&part->args, B, T, true));
    ls_collectives_span *spans = ls_mem_array((size_t)part->model.n_params, sizeof *spans);
    LS_CHECK(spans);
    LS_CHECK_OK(
        ls_mp_group_sum(tensor, part->grad, spans, ls_model_partials(&part->model, spans), NULL));
    for (int i = 0; i < M; i++)
        LS_CHECK_NEAR(part->losses[i], one->losses[i], tolerance * (double)one->losses[i] + 1e-9);
    LS_CHECK_OK(ls_stream_sync(part->stream, INT64_MAX));
    check_tensors(one, part, tolerance);
    ls_mem_free(spans);
    close_side(part);
    ls_mp_group_close(tensor);
    close_stream(stream);
    ls_mem_free(part);
}

/* On all ranks, with what one has, which is there before they are. */
static void compare(const char *world, void (*run)(const char *, void *, ls_world_body))
{
    static side one;

    open_part(&one, (ls_model_split){.ranks = 1}, NULL, NULL);
    train_twice(&one);
    LS_CHECK_EQ(ls_pass_sent(&one.args, B, T, true), 0);
    run(world, &one, near_one);
    close_side(&one);
}

static void logits_same_part(ls_world *w, ls_comm *comm);

static void reset(const variant *v)
{
    now.v = v;
    now.sequence = false;
    now.type = LS_F32;
    now.recompute = LS_RECOMPUTE_NONE;
    now.kernels = "auto";
    now.leaves = 1;
    now.late = 0;
    now.by_device = now.halves = false;
}

LS_TEST_SECONDS(tensor_ranks_agree_with_one, 120)
{
    for (size_t v = 0; v < LS_COUNT(variants); v++)
        for (int i = 0; variants[v].worlds[i]; i++)
            for (int sequence = 0; sequence < 2; sequence++) {
                reset(&variants[v]);
                now.sequence = sequence;
                compare(variants[v].worlds[i], ls_world_run);
            }
}

/* By collectives of device memory, also with products in halves; ranks that share heads, too. */
LS_TEST_SECONDS(tensor_ranks_by_device_collectives_agree_with_one, 120)
{
    for (size_t v = 0; v < LS_COUNT(variants); v++)
        for (int mode = 0; mode < 4; mode++) {
            reset(&variants[v]);
            now.sequence = mode % 2;
            now.by_device = true;
            now.halves = mode / 2;
            now.type = v == 0 && mode == 1 ? LS_BF16 : LS_F32;
            compare(variants[v].worlds[(size_t)mode / 2 % 2 && variants[v].worlds[1] ? 1 : 0],
                    ls_world_run);
        }
}

/* Leaves, what backward makes again, the types, and a backward in halves. */
LS_TEST_SECONDS(tensor_ranks_agree_with_one_in_every_mode, 120)
{
    static const ls_recompute levels[] = {LS_RECOMPUTE_SELECTIVE, LS_RECOMPUTE_FULL};

    for (size_t v = 0; v < LS_COUNT(every_mode); v++)
        for (int mode = 0; mode < 6; mode++)
            for (int sequence = 0; sequence < 2; sequence++) {
                reset(&variants[every_mode[v]]);
                now.sequence = sequence;
                if (mode < 2)
                    now.recompute = levels[mode];
                if (mode == 2)
                    now.leaves = B;
                if (mode == 3)
                    now.type = LS_BF16;
                if (mode == 4)
                    now.kernels = "reference";
                now.late = mode == 5;
                compare("2", ls_world_run);
            }
}

LS_TEST_SECONDS(tensor_ranks_with_experts_recompute_too, 60)
{
    for (int mode = 0; mode < 8; mode++) {
        reset(&variants[7 + mode / 4]); /* mixtral, olmoe */
        now.sequence = mode % 2;
        now.recompute = mode % 4 < 2 ? LS_RECOMPUTE_SELECTIVE : LS_RECOMPUTE_FULL;
        compare("2", ls_world_run);
    }
}

/* Without experts, of which a rounding in 16 bits could choose another. */
static void olmoe_dense(ls_run *run)
{
    olmoe(run);
    run->model.experts = 0;
}

static const variant dense_one = {"olmoe without experts", olmoe_dense, {NULL}};

/* Two numbers of each row travel: by each table, in each type, over leaves, without a gradient. */
LS_TEST_SECONDS(tensor_ranks_normalise_all_heads_together, 60)
{
    for (int mode = 0; mode < 4; mode++) {
        reset(mode == 1 ? &dense_one : &variants[8]);
        now.sequence = mode % 2;
        now.kernels = mode == 0 ? "reference" : "auto";
        now.type = mode == 1 ? LS_BF16 : LS_F32;
        now.leaves = mode == 2 ? B : 1;
        now.late = mode == 3;
        compare("2", ls_world_run);
    }
    reset(&variants[8]);
    ls_world_run("2", NULL, logits_same_part);
}

/* The same on threads, for the thread sanitizer. */
LS_TEST_SECONDS(tensor_ranks_are_threads_too, 60)
{
    reset(&variants[2]);
    for (int sequence = 0; sequence < 2; sequence++) {
        now.sequence = sequence;
        compare("2", ls_world_run_threads);
    }
}

/* --- loss and logits without gradients ------------------------------------------------------- */

static void logits_same_part(ls_world *w, ls_comm *comm)
{
    ls_model_split split = split_of(comm);
    side *one = ls_mem_alloc(sizeof *one), *part = ls_mem_alloc(sizeof *part);
    float want[VOCAB], got[VOCAB];
    ls_mp_group *tensor;

    (void)w;
    LS_CHECK(one && part);
    LS_CHECK_OK(ls_mp_group_open(&tensor, comm, 1));
    open_part(one, (ls_model_split){.ranks = 1}, NULL, NULL);
    open_part(part, split, ls_mp_group_collectives(tensor), NULL);
    ls_pass_call a = call_of(one), b = call_of(part);
    int64_t before = ls_mp_group_sent(tensor);
    ls_pass_loss(one->pass, &a);
    ls_pass_loss(part->pass, &b);
    LS_CHECK_EQ(ls_mp_group_sent(tensor) - before, ls_pass_sent(&part->args, B, T, false));
    for (int i = 0; i < M; i++)
        LS_CHECK_NEAR(part->losses[i], one->losses[i], 1e-4);
    for (int64_t row = 0; row < M; row += 10) {
        ls_pass_logits(one->pass, &a, row, want);
        ls_pass_logits(part->pass, &b, row, got);
        for (int v = 0; v < VOCAB; v++)
            LS_CHECK_NEAR(got[v], want[v], now.type == LS_F32 ? 1e-4 : 0.1);
    }
    LS_CHECK_OK(ls_stream_sync(part->stream, INT64_MAX));
    close_side(part);
    close_side(one);
    ls_mp_group_close(tensor);
    ls_mem_free(part);
    ls_mem_free(one);
}

LS_TEST_SECONDS(tensor_ranks_give_the_logits_of_one, 60)
{
    for (int sequence = 0; sequence < 2; sequence++) {
        reset(&variants[0]);
        now.sequence = sequence;
        ls_world_run("4", NULL, logits_same_part);
    }
}

/* --- sums of copies, bytes, failures ---------------------------------------------------------- */

static void sums(ls_world *w, ls_comm *comm)
{
    enum { N = 200000 }; /* more than is packed at a time */
    static const ls_collectives_span spans[] = {{0, 5, 4}, {7, 3, 2}, {10, 1, 4}, {12, N - 12, 2}};
    float *x = ls_mem_array(N, sizeof *x);
    int me = ls_comm_rank(comm), pair = me / 2 * 2;
    ls_mp_group *tensor;

    (void)w;
    LS_CHECK(x);
    for (int i = 0; i < N; i++)
        x[i] = (float)(me + i % 8);
    LS_CHECK_OK(ls_mp_group_open(&tensor, comm, 2));
    LS_CHECK_OK(ls_mp_group_sum(tensor, x, spans, (int)LS_COUNT(spans), NULL));
    for (int i = 0; i < N; i++) {
        bool all = i < 5 || i == 10, two = (i >= 7 && i < 10) || i >= 12;
        float want = all   ? (float)(6 + 4 * (i % 8))
                     : two ? (float)(2 * pair + 1 + 2 * (i % 8))
                           : (float)(me + i % 8);
        LS_CHECK_EQ(x[i], want);
    }
    ls_mp_group_close(tensor);
    ls_mem_free(x);
}

LS_TEST(tensor_adds_up_what_ranks_share)
{
    ls_world_run("4", NULL, sums);
    ls_world_run("2+2", NULL, sums);
}

/* What really leaves a node, along rings. */
static void traffic(ls_world *w, ls_comm *comm)
{
    ls_model_split split = split_of(comm);
    side *part = ls_mem_alloc(sizeof *part);
    int64_t before, after;
    ls_mp_group *tensor;

    (void)w;
    LS_CHECK(part);
    LS_CHECK_OK(ls_comm_force(comm, "ring"));
    LS_CHECK_OK(ls_mp_group_open(&tensor, comm, 1));
    open_part(part, split, ls_mp_group_collectives(tensor), NULL);
    before = ls_world_sent(comm);
    train_twice(part);
    after = ls_world_sent(comm);
    int64_t want = 2 * ls_pass_sent(&part->args, B, T, true), moves = 2 * 40;
    LS_CHECK(after - before >= want * 95 / 100); /* parts of a ring differ by a few elements */
    LS_CHECK(after - before <= want + moves * 1024);
    close_side(part);
    ls_mp_group_close(tensor);
    ls_mem_free(part);
}

static void wide(ls_run *run)
{
    run->model.width = 1024;
    run->model.mlp = 64;
}

static const variant wide_one = {"wide gpt2", wide, {NULL}};

LS_TEST_SECONDS(tensor_bytes_on_the_wire_are_those_of_the_formula, 60)
{
    for (int sequence = 0; sequence < 2; sequence++) {
        reset(&wide_one);
        now.sequence = sequence;
        ls_world_run("1+1", NULL, traffic);
        ls_world_run("1+1+1+1", NULL, traffic);
    }
}

/* A rank that goes away in the middle: the others' streams fail, with the reason. */
static void loses_one(ls_world *w, ls_comm *comm)
{
    ls_model_split split = split_of(comm);
    side *part = ls_mem_alloc(sizeof *part);
    ls_mp_group *tensor;

    (void)w;
    LS_CHECK(part);
    LS_CHECK_OK(ls_mp_group_open(&tensor, comm, 1));
    ls_stream *stream = now.by_device ? open_stream() : NULL;
    if (stream)
        move_by_device(tensor, stream, "tp", now.halves);
    open_part(part, split, ls_mp_group_collectives(tensor), stream);
    /* When rank 1 has passed it, all have opened. Another one may lose rank 1 in it already. */
    ls_status met = ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, ls_test_soon());
    if (split.rank == 1) {
        LS_CHECK_OK(met);
        ls_comm_abort(comm, "gone for a test");
    } else {
        ls_pass_call call = call_of(part);
        ls_pass_forward(part->pass, &call);
        ls_pass_backward(part->pass, &call);
        LS_CHECK_FAILS(ls_stream_sync(part->stream, INT64_MAX), LS_EPEER, "rank 1");
    }
    close_side(part);
    ls_mp_group_close(tensor);
    close_stream(stream);
    ls_mem_free(part);
}

LS_TEST(tensor_rank_that_is_lost_fails_the_stream_of_the_others)
{
    for (int mode = 0; mode < 4; mode++) {
        reset(&variants[0]);
        now.sequence = mode % 2;
        now.by_device = now.halves = mode / 2;
        ls_world_run("2", NULL, loses_one);
        ls_world_run("1+1", NULL, loses_one);
    }
}

/* --- what cannot be divided --------------------------------------------------------------------
 */

static void check_refused(void (*change)(ls_run *run), int ranks, const char *why)
{
    ls_run run = base_run();
    ls_model model;

    change(&run);
    LS_CHECK_FAILS(ls_model_init_split(&model, &run, VOCAB, (ls_model_split){.ranks = ranks}),
                   LS_EUSAGE, why);
}

static void narrow(ls_run *run)
{
    run->model.mlp = 3;
}

static void uneven_kv(ls_run *run)
{
    llama(run);
    run->model.heads = 12;
    run->model.kv_heads = 4;
}

static void wordless(ls_run *run)
{
    run->model.heads = run->model.kv_heads = 32;
}

LS_TEST(tensor_split_says_what_cannot_be_divided)
{
    check_refused(gpt2, 3, "8 heads, which cannot be divided evenly");
    check_refused(uneven_kv, 6, "4 key/value heads, which can be neither divided nor copied");
    check_refused(narrow, 4, "3 columns in its MLP");
    check_refused(wordless, 32, "29 tokens in its vocabulary");
}
