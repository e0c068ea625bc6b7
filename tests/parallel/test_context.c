/* test_context.c -- ranks that share sequences against one that has them whole: losses, gradients
 * of every tensor, memory, bytes on the wire. */
#include "base/mem.h"
#include "comm/node/ranks.h"
#include "comm/worlds.h"
#include "kernel/kernel.h"
#include "model/pass.h"
#include "model/tiny.h"
#include "parallel/comm_world.h"
#include "parallel/mp_group.h"
#include "model/pass_sent.h"

enum { VOCAB = 29, MOST_T = 48, B = 3 };

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
    run->model.heads = 4;
    run->model.kv_heads = 2;
    run->model.head_size = 6;
}

static void llama_dropout(ls_run *run)
{
    llama(run);
    run->model.bias = LS_BIAS_ALL;
    run->model.tied = LS_TIED_NO;
    run->model.dropout = 0.2;
}

static void qwen3(ls_run *run)
{
    llama(run);
    run->model.family = LS_FAMILY_QWEN3;
    run->model.head_size = 10; /* not width / heads */
}

static void window(ls_run *run)
{
    llama(run);
    run->model.family = LS_FAMILY_MISTRAL;
    run->model.window = 9;
}

static void olmo2(ls_run *run)
{
    llama(run);
    run->model.family = LS_FAMILY_OLMO2;
}

typedef struct variant {
    const char *name;
    void (*change)(ls_run *run);
    const char *worlds[4]; /* as many ranks share a sequence */
} variant;

static const variant variants[] = {
    {"gpt2", gpt2, {"2", "3", "4", NULL}}, {"llama", llama, {"2", "8", "1+1", NULL}},
    {"qwen3", qwen3, {"2", "1+2", NULL}},  {"llama with dropout", llama_dropout, {"4", NULL}},
    {"gpt2 lora", gpt2_lora, {"2", NULL}}, {"window", window, {"4", NULL}},
    {"olmo2", olmo2, {"2", "1+2", NULL}}};

/* What runs now; ranks are processes made after this was set. */
static struct {
    const variant *v;
    bool gather, documents;
    bool by_device; /* moves are collectives of device memory */
    ls_dtype type;
    ls_recompute recompute;
    const char *kernels;
    int64_t leaves;
} now;

/* The position of token t of a rank's piece. */
static int64_t position(const ls_pass_cp *cp_group, int64_t T, int64_t t)
{
    int64_t chunk = T / 2;

    if (cp_group->ranks < 2)
        return t;
    return t < chunk ? cp_group->rank * chunk + t
                     : (2 * cp_group->ranks - 1 - cp_group->rank) * chunk + t - chunk;
}

static void take_batch(side *s)
{
    int64_t whole = s->run.model.context;
    int32_t *all = ls_mem_array((size_t)(3 * B * whole), sizeof *all);
    int32_t *targets = all + B * whole, *start = targets + B * whole;

    LS_CHECK(all);
    ls_tiny_tokens(7, B * whole, VOCAB, all);
    ls_tiny_tokens(8, B * whole, VOCAB, targets);
    targets[5] = targets[whole + 1] = -1;
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < whole; t++)
            start[b * whole + t] = t < 7 + b           ? 0
                                   : t < whole / 2 + 3 ? (int32_t)(7 + b)
                                                       : (int32_t)(whole / 2 + 3);
    for (int64_t i = 0; i < B * s->T; i++) {
        int64_t at = i / s->T * whole + position(&s->args.cp_group, s->T, i % s->T);
        s->tokens[i] = all[at];
        s->targets[i] = targets[at];
        s->start[i] = start[at];
    }
    ls_mem_free(all);
}

static void open_piece(side *s, int64_t context, ls_pass_cp cp_group, ls_stream *stream)
{
    int64_t T = context / (cp_group.ranks > 1 ? cp_group.ranks : 1);

    s->run = ls_tiny_run();
    now.v->change(&s->run);
    s->run.model.context = context;
    LS_CHECK(T <= MOST_T);
    int64_t taken = open_side(s, VOCAB, (ls_model_split){.ranks = 1}, now.kernels,
                              (ls_pass_args){.type = now.type,
                                             .B = B,
                                             .T = T,
                                             .leaves = now.leaves,
                                             .recompute = now.recompute,
                                             .cp_group = cp_group,
                                             .stream = stream});
    int64_t held = cp_group.collectives ? ls_mp_group_allocated(cp_group.collectives->context) : 0;
    LS_CHECK_EQ(taken + held, ls_pass_bytes(&s->args, 1));
    LS_CHECK_EQ(held > 0, cp_group.collectives && !stream);
    take_batch(s);
    s->documents = now.documents;
    s->state =
        (ls_step_state){.key = {3, 4}, .first_seq = 5, .grad_scale = 1.0f / (float)(B * context)};
}

static void check_tensor(const side *one, const side *part, int i, double tolerance)
{
    char who[64];

    snprintf(who, sizeof who, "%s: rank %d of %d%s", now.v->name, part->args.cp_group.rank,
             part->args.cp_group.ranks, now.gather ? ", gathered" : "");
    check_gradient(one, part, &part->model.params[i], tolerance, who);
}

static ls_pass_cp cp_of(const ls_comm *comm, const ls_mp_group *tensor)
{
    return (ls_pass_cp){.rank = ls_comm_rank(comm),
                        .ranks = ls_comm_ranks(comm),
                        .gather = now.gather,
                        .collectives = ls_mp_group_collectives(tensor)};
}

static void check_losses(const side *one, const side *part, double tolerance)
{
    for (int64_t i = 0; i < B * part->T; i++) {
        int64_t at = i / part->T * one->T + position(&part->args.cp_group, part->T, i % part->T);
        LS_CHECK_NEAR(part->losses[i], one->losses[at], tolerance * (double)one->losses[at] + 1e-9);
    }
}

static void near_one(ls_world *w, ls_comm *comm)
{
    double tolerance = now.type == LS_F32 ? 1e-4 : 5e-2;
    const side *one = w->context;
    side *part = ls_mem_alloc(sizeof *part);
    ls_mp_group *tensor;

    LS_CHECK(part);
    LS_CHECK_OK(ls_mp_group_open(&tensor, comm, 1));
    ls_stream *stream = now.by_device ? open_stream() : NULL;
    if (stream)
        move_by_device(tensor, stream, "cp", true);
    open_piece(part, one->T, cp_of(comm, tensor), stream);
    train_twice(part);
    if (part->model.flat == part->model.trained)
        LS_CHECK_EQ(ls_mp_group_sent(tensor), 2 * ls_pass_sent(&part->args, B, part->T, true));
    ls_coll sum = {.kind = LS_COLL_ALL_REDUCE,
                   .op = LS_COLL_SUM,
                   .type = LS_F32,
                   .count = part->model.trained,
                   .in = part->grad,
                   .out = part->grad};
    LS_CHECK_OK(ls_comm_run(comm, &sum, ls_ranks_in_ms(20000)));
    check_losses(one, part, tolerance);
    for (int i = 0; i < part->model.n_params; i++)
        check_tensor(one, part, i, tolerance);
    close_side(part);
    ls_mp_group_close(tensor);
    close_stream(stream);
    ls_mem_free(part);
}

/* On all ranks, with what one has, which is there before they are. */
static void compare(const char *world, void (*run)(const char *, void *, ls_world_body))
{
    static side one;
    int64_t ranks = 0;

    for (const char *p = world; *p; p++)
        ranks += *p == '+' ? 0 : *p - '0';
    /* 10 tokens a rank: chunks that no tile and no block of four begins with */
    open_piece(&one, ls_min_i64(MOST_T, 10 * ranks), (ls_pass_cp){.ranks = 1}, NULL);
    train_twice(&one);
    run(world, &one, near_one);
    close_side(&one);
}

static void reset(const variant *v)
{
    now.v = v;
    now.gather = now.documents = now.by_device = false;
    now.type = LS_F32;
    now.recompute = LS_RECOMPUTE_NONE;
    now.kernels = "auto";
    now.leaves = 1;
}

LS_TEST_SECONDS(context_ranks_agree_with_one, 120)
{
    for (size_t v = 0; v < LS_COUNT(variants); v++)
        for (int i = 0; variants[v].worlds[i]; i++)
            for (int gather = 0; gather < 2; gather += ls_test_stride(2)) {
                reset(&variants[v]);
                now.gather = gather;
                compare(variants[v].worlds[i], ls_world_run);
            }
}

/* By collectives of device memory. */
LS_TEST_SECONDS(context_ranks_by_device_collectives_agree_with_one, 120)
{
    for (size_t v = 0; v < LS_COUNT(variants); v++)
        for (int gather = 0; gather < 2; gather++) {
            reset(&variants[v]);
            now.gather = gather;
            now.by_device = true;
            now.type = v == 1 ? LS_BF16 : LS_F32;
            compare(variants[v].worlds[gather && variants[v].worlds[1]], ls_world_run);
        }
}

/* Leaves, what backward makes again, documents and the types. */
LS_TEST_SECONDS(context_ranks_agree_with_one_in_every_mode, 120)
{
    static const ls_recompute levels[] = {LS_RECOMPUTE_SELECTIVE, LS_RECOMPUTE_FULL};

    for (int v = 0; v < 3; v++) /* gpt2, llama, qwen3 */
        for (int mode = 0; mode < 6; mode++) {
            reset(&variants[v]);
            now.gather = (v + mode) % 2;
            if (mode < 2)
                now.recompute = levels[mode];
            if (mode == 2)
                now.leaves = B;
            if (mode == 3)
                now.type = LS_BF16;
            if (mode == 4)
                now.kernels = "reference";
            now.documents = mode == 2 || mode == 5;
            compare("2", ls_world_run);
        }
}

/* The same on threads, for the thread sanitizer. */
LS_TEST_SECONDS(context_ranks_are_threads_too, 60)
{
    reset(&variants[1]);
    for (int gather = 0; gather < 2; gather++) {
        now.gather = gather;
        compare("1+1+1", ls_world_run_threads);
    }
}

/* --- bytes ------------------------------------------------------------------------------------ */

/* What really leaves a node. */
static void traffic(ls_world *w, ls_comm *comm)
{
    int64_t n = ls_comm_ranks(comm), context = 12 * n, before, after;
    side *part = ls_mem_alloc(sizeof *part);
    ls_mp_group *tensor;

    (void)w;
    LS_CHECK(part);
    LS_CHECK_OK(ls_comm_force(comm, "ring"));
    LS_CHECK_OK(ls_mp_group_open(&tensor, comm, 1));
    open_piece(part, context, cp_of(comm, tensor), NULL);
    before = ls_world_sent(comm);
    train_twice(part);
    after = ls_world_sent(comm);
    /* (n - 1) x layers x (keys and values twice, their gradients once), in two calls */
    int64_t kv = B * part->T * 2 * part->model.shape.Hkv * part->model.shape.D;
    int64_t want = 2 * (n - 1) * part->model.shape.L * (2 * kv + kv) * 4;
    LS_CHECK_EQ(kv % 16, 0);
    LS_CHECK_EQ(2 * ls_pass_sent(&part->args, B, part->T, true), want);
    LS_CHECK_EQ(ls_mp_group_sent(tensor), want);
    LS_CHECK(after - before >= want);
    LS_CHECK(after - before <= want + 2 * 40 * n * 1024);
    close_side(part);
    ls_mp_group_close(tensor);
    ls_mem_free(part);
}

static void wide(ls_run *run)
{
    llama(run);
    run->model.head_size = 256;
    run->model.kv_heads = 4;
}

static const variant wide_one = {"wide llama", wide, {NULL}};

LS_TEST_SECONDS(context_bytes_on_the_wire_are_those_of_the_formula, 60)
{
    for (int gather = 0; gather < 2; gather++) {
        reset(&wide_one);
        now.gather = gather;
        ls_world_run("1+1", NULL, traffic);
        ls_world_run("1+1+1+1", NULL, traffic);
    }
}

/* A rank that goes away between forward and backward: the others' streams fail, with the reason. */
static void loses_one(ls_world *w, ls_comm *comm)
{
    side *part = ls_mem_alloc(sizeof *part);
    ls_mp_group *tensor;

    (void)w;
    LS_CHECK(part);
    LS_CHECK_OK(ls_mp_group_open(&tensor, comm, 1));
    ls_stream *stream = now.by_device ? open_stream() : NULL;
    if (stream)
        move_by_device(tensor, stream, "cp", true);
    open_piece(part, 30, cp_of(comm, tensor), stream);
    ls_pass_call call = call_of(part);
    ls_pass_forward(part->pass, &call); /* now all have come */
    if (ls_comm_rank(comm) == 1) {
        ls_comm_abort(comm, "gone for a test");
    } else {
        ls_pass_backward(part->pass, &call);
        LS_CHECK_FAILS(ls_stream_sync(part->stream, INT64_MAX), LS_EPEER, "rank 1");
    }
    close_side(part);
    ls_mp_group_close(tensor);
    close_stream(stream);
    ls_mem_free(part);
}

LS_TEST(context_rank_that_is_lost_fails_the_others)
{
    for (int mode = 0; mode < 4; mode++) {
        reset(&variants[1]);
        now.gather = mode % 2;
        now.by_device = mode / 2;
        ls_world_run("3", NULL, loses_one);
    }
}
