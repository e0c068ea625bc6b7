/* test_replica_send.c -- copies that ranks hold of each other's parts: the bits of the owner, and the bytes and
 * memory that were predicted. */
#include "base/hash.h"
#include "comm/worlds.h"
#include "model/tiny.h"
#include "plan/memory.h"
#include "train/replica/replica_impl.h"

enum { VOCAB = 64, RANKS = 3, STEPS = 3 };

typedef struct rank {
    ls_run run;
    ls_mesh mesh;
    ls_model model;
    ls_device *device;
    ls_step_args args;
    ls_step *step;
} rank;

static int zero; /* stage of the world that runs */
static ls_optimizer optimizer;

static void open_rank(rank *r, ls_comm *comm)
{
    int merges[RANKS * RANKS * 8];

    *r = (rank){.run = ls_tiny_run()};
    r->run.model.width = 96;
    r->run.model.mlp = 384;
    r->run.model.head_size = 32;
    r->run.train.optimizer = optimizer;
    LS_CHECK_OK(ls_device_open(&r->device, "cpu", 1));
    LS_CHECK_OK(ls_stream_create(&r->args.stream, r->device));
    LS_CHECK_OK(ls_kernel_pick("auto", &r->args.kernels));
    LS_CHECK_OK(ls_model_init(&r->model, &r->run, VOCAB));
    r->mesh = (ls_mesh){.ranks = RANKS,
                        .rank = ls_comm_rank(comm),
                        .zero = zero,
                        .local = RANKS,
                        .bucket = 1,
                        .buddies = true};
    ls_dp_args dp = ls_memory_dp(&r->run, &r->model, &r->mesh);
    dp.comm = comm;
    if (dp.rounds > 0)
        ls_calls_feed(&r->run, &r->mesh, dp.rounds, merges);
    dp.merges = merges;
    LS_CHECK_OK(ls_dp_open(&r->args.dp, &dp));
    ls_calls_plan(&r->run, &r->mesh, &r->args.calls);
    r->args.run = &r->run;
    r->args.model = &r->model;
    LS_CHECK_OK(ls_step_open(&r->step, &r->args));
    int64_t with = ls_device_used_bytes(r->device);
    LS_CHECK(r->step->replica);
    ls_replica_send_close(r->step);
    LS_CHECK_EQ(with - ls_device_used_bytes(r->device),
                ls_memory_copy_bytes(&r->run, &r->model, &r->mesh) +
                    ls_memory_redo_bytes(&r->run, &r->model, &r->mesh));
    LS_CHECK_OK(ls_replica_send_open(r->step));
}

static void meet(ls_comm *comm)
{
    LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, INT64_MAX));
}

static void close_rank(rank *r, ls_comm *comm)
{
    ls_step_close(r->step);
    meet(comm);
    ls_dp_close(r->args.dp);
    ls_model_release(&r->model);
    ls_stream_free(r->args.stream);
    ls_device_close(r->device);
    meet(comm);
}

static void start_weights(rank *r)
{
    static float x[1 << 16];

    for (int i = 0; i < r->model.n_params; i++) {
        const ls_param *p = &r->model.params[i];
        LS_CHECK(p->count <= (int64_t)LS_COUNT(x));
        ls_model_start(p, 5, 0, p->count, x);
        ls_step_put(r->step, p->first, p->count, x);
    }
    LS_CHECK_OK(ls_step_weights_changed(r->step));
}

static void run_step(rank *r, int64_t number)
{
    int32_t tokens[6 * 13 + 1];
    int64_t n = r->args.calls.own * r->run.model.context;
    ls_step_result result;
    ls_step_clock clock;

    ls_tiny_tokens((uint32_t)r->mesh.rank + 1, n + 1, VOCAB, tokens);
    ls_step_clock_begin(&clock);
    LS_CHECK_OK(ls_step_run(r->step, &(ls_step_batch){.tokens = tokens, .targets = tokens + 1},
                            number, 1e-2, &clock, &result));
    LS_CHECK(result.finite);
}

static ls_hash hash_packed(const rank *r, float *const *arrays, int64_t n)
{
    ls_hash_stream stream;

    ls_hash_begin(&stream);
    for (int k = 0; k < ls_optim_kinds(&r->run); k++)
        ls_hash_add(&stream, arrays[k], (size_t)n * sizeof(float));
    return ls_hash_end(&stream);
}

/* Weights and moments of a rank's part, as it has them and as its holder does; where an update may
 * be made again, both from before it. */
static ls_hash hash_own(const rank *r)
{
    ls_step_arrays live = ls_step_state_arrays(r->step);
    const struct ls_replica_send *replica = r->step->replica;
    ls_hash_stream stream;

    if (replica->again.on)
        return hash_packed(r, replica->again.old,
                           ls_mesh_own(&r->mesh, r->model.trained, r->mesh.rank));

    ls_hash_begin(&stream);
    for (int k = 0; k < ls_optim_kinds(&r->run); k++)
        for (int b = 0; b < ls_dp_buckets(r->args.dp); b++) {
            ls_mesh_part p = ls_dp_own(r->args.dp, b);
            const float *x = k == 0 ? live.w + (zero == 3 ? p.packed : p.first)
                                    : (k == 1 ? live.m : live.v) + p.packed;
            ls_hash_add(&stream, x, (size_t)p.count * sizeof *x);
        }
    return ls_hash_end(&stream);
}

static ls_hash hash_copy(const rank *r)
{
    const struct ls_replica_send *replica = r->step->replica;

    return hash_packed(r, replica->copy, ls_mesh_own(&r->mesh, r->model.trained, replica->from));
}

static void compare(const rank *r, ls_comm *comm)
{
    ls_hash all[RANKS];
    int owner = r->step->replica->from;

    all[r->mesh.rank] = hash_own(r);
    LS_CHECK_OK(ls_comm_run(
        comm,
        &(ls_coll){
            .kind = LS_COLL_ALL_GATHER, .type = LS_U8, .count = sizeof all, .in = all, .out = all},
        INT64_MAX));
    LS_CHECK(ls_hash_equal(hash_copy(r), all[owner]));
    LS_CHECK(owner != r->mesh.rank);
}

static void keep_copies(ls_world *world, ls_comm *comm)
{
    rank r;

    (void)world;
    open_rank(&r, comm);
    start_weights(&r);
    LS_CHECK_OK(ls_replica_send_begin(r.step, 0));
    LS_CHECK(r.step->replica->confirmed && r.step->progress.received == 0 &&
             r.step->progress.ready < 0);
    compare(&r, comm);
    for (int64_t s = 0; s < STEPS; s++) {
        run_step(&r, s);
        LS_CHECK_EQ(r.step->done, s + 1);
        LS_CHECK_EQ(r.step->progress.received, s + 1);
        compare(&r, comm);
    }
    int64_t own = ls_mesh_own(&r.mesh, r.model.trained, r.mesh.rank) * (int64_t)sizeof(float);
    int64_t first = ls_optim_kinds(&r.run) - (zero < 3); /* arrays of the state */
    LS_CHECK_EQ(ls_replica_send_bytes(r.step), (first + STEPS) * own);
    close_rank(&r, comm);
}

LS_TEST(replica_has_the_bits_of_its_owner)
{
    for (zero = 1; zero <= 3; zero++)
        ls_world_run("3", NULL, keep_copies);
}

LS_TEST(replica_has_one_moment_where_the_owner_has)
{
    optimizer = LS_OPTIMIZER_LION;
    for (zero = 1; zero <= 3; zero++)
        ls_world_run("3", NULL, keep_copies);
}

LS_TEST(replica_follows_lamb_and_muon)
{
    zero = 1;
    for (optimizer = LS_OPTIMIZER_LAMB; optimizer <= LS_OPTIMIZER_MUON; optimizer++)
        ls_world_run("3", NULL, keep_copies);
}

LS_TEST(replica_on_another_node_gets_its_copies)
{
    zero = 1;
    ls_world_run("2+1", NULL, keep_copies);
}
