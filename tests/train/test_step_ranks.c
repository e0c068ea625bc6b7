/* test_step_ranks.c -- a step of four ranks: what it holds beside what the ledger says, and when
 * the weights that others have updated arrive. */
#include <sys/stat.h>
#include "base/mem.h"
#include "comm/worlds.h"
#include "model/decode.h"
#include "model/tiny.h"
#include "plan/ledger_bytes.h"
#include "plan/memory.h"
#include "train/steps.h"

enum { VOCAB = 64, RANKS = 4, STEPS = 2 };

/* Some 50 norm blocks, so that parts are nearly equal. */
static ls_run wide_run(void)
{
    ls_run run = ls_tiny_run();

    run.model.layers = 4;
    run.model.width = 128;
    run.model.heads = run.model.kv_heads = 4;
    run.model.head_size = 32;
    run.model.mlp = 512;
    run.model.context = 8;
    run.batch.sequences = RANKS;
    return run;
}

/* What a rank has at hand. */
typedef struct rank {
    ls_run run;
    ls_mesh mesh;
    ls_model model;
    ls_device *device;
    ls_step_args args;
    ls_ledger ledger;
    ls_step *step;
    ls_kernels kernels;
} rank;

static ls_optimizer optimizer;

static void open_rank(rank *r, ls_comm *comm, int zero, int shard, bool ordered)
{
    int merges[RANKS * RANKS];

    *r = (rank){.run = wide_run()};
    r->run.train.optimizer = optimizer;
    r->run.train.reduce = ordered ? LS_REDUCE_ORDERED : LS_REDUCE_FAST;
    LS_CHECK_OK(ls_device_open(&r->device, "cpu", 1));
    LS_CHECK_OK(ls_stream_create(&r->args.stream, r->device));
    LS_CHECK_OK(ls_model_init(&r->model, &r->run, VOCAB));
    r->kernels = ls_steps_kernels();
    r->mesh = (ls_mesh){.ranks = RANKS,
                        .rank = ls_comm_rank(comm),
                        .zero = zero,
                        .shard = shard,
                        .local = RANKS,
                        .bucket = 1};
    ls_dp_args dp = ls_memory_dp(&r->run, &r->model, &r->mesh);
    dp.comm = comm;
    if (dp.ordered && dp.rounds > 0)
        ls_calls_feed(&r->run, &r->mesh, dp.rounds, merges);
    dp.merges = merges;
    LS_CHECK_OK(ls_dp_open(&r->args.dp, &dp));
    ls_calls_plan(&r->run, &r->mesh, &r->args.calls);
    r->args.run = &r->run;
    r->args.model = &r->model;
    r->args.kernels = &r->kernels;
    ls_memory_predict(&(ls_memory_args){.run = &r->run,
                                        .model = &r->model,
                                        .kernels = &r->kernels,
                                        .mesh = &r->mesh,
                                        .threads = 1},
                      &r->ledger);
    LS_CHECK_OK(ls_step_open(&r->step, &r->args));
    ls_steps_watch(r->step);
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

static void run_step(rank *r, int64_t number)
{
    int64_t T = r->run.model.context, n = r->args.calls.own * T;
    int32_t *tokens = ls_mem_array((size_t)n + 1, sizeof *tokens);

    LS_CHECK(tokens);
    ls_tiny_tokens((uint32_t)r->mesh.rank + 1, n + 1, VOCAB, tokens);
    ls_steps_run(r->step, number, tokens, 1e-2);
    ls_mem_free(tokens);
}

/* --- memory ----------------------------------------------------------------------------------- */

/* Bytes of the node's memory file that are there. */
static int64_t there(const ls_world *w)
{
    struct stat st;

    LS_CHECK_EQ(fstat(w->segment_fd[0], &st), 0);
    return (int64_t)st.st_blocks * 512;
}

static int64_t sum_of_all(ls_comm *comm, int64_t mine)
{
    int64_t sum = 0;

    LS_CHECK_OK(ls_comm_run(
        comm,
        &(ls_coll){
            .kind = LS_COLL_ALL_REDUCE, .type = LS_I64, .count = 1, .in = &mine, .out = &sum},
        INT64_MAX));
    return sum;
}

/* Each rank keeps its share of weights, moments and their gradients, a norm block more or less. */
static void check_share(const rank *r)
{
    int64_t size = sizeof(float), each = r->model.trained / ls_mesh_shard_ranks(&r->mesh);
    int64_t slack = LS_NORM_BLOCK * ls_mesh_shard_groups(&r->mesh);
    int64_t moments =
        ledger_bytes(&r->ledger, "optimizer") / ((ls_optim_kinds(&r->run) - 1) * size);
    int64_t weights = ledger_bytes(&r->ledger, "weights") / size;

    LS_CHECK(moments > each - 2 * slack && moments < each + slack);
    LS_CHECK(r->mesh.zero < 3 || (weights > each - 2 * slack && weights < each + slack));
    LS_CHECK_EQ(r->step->own, ls_mesh_own(&r->mesh, r->model.trained, r->mesh.rank));
}

/* What a window holds at most is at most what the ledger says, and not much less. */
static void check_window(int64_t held, int64_t predicted, int64_t least)
{
    LS_CHECK(held <= predicted + 4 * LS_WINDOW_PAGE);
    LS_CHECK(held >= least);
}

static void counted(ls_world *w, ls_comm *comm)
{
    static const struct {
        int zero, shard;
        bool ordered;
    } cases[] = {{1, 0, true},  {2, 0, true}, {3, 0, true}, {3, 0, false},
                 {2, 0, false}, {3, 2, true}, {3, 2, false}};

    for (int i = 0; i < 3; i++)
        meet(comm); /* what barriers need is there */
    for (size_t c = 0; c < LS_COUNT(cases); c++) {
        int64_t before = there(w), size = sizeof(float);
        rank r;
        meet(comm);
        open_rank(&r, comm, cases[c].zero, cases[c].shard, cases[c].ordered);
        meet(comm);
        int64_t taken = there(w) - before; /* of all ranks */
        ls_steps_start(r.step, &r.model);
        for (int i = 0; i < STEPS; i++)
            run_step(&r, i);
        check_share(&r);
        int64_t gathered = ledger_bytes(&r.ledger, "gathered weights"), window = 0;
        if (cases[c].zero == 3)
            check_window(ls_steps_most_weights(), gathered, gathered / 2);
        if (cases[c].zero >= 2) {
            window = ledger_bytes(&r.ledger, "gradients") -
                     ls_round_up(ls_dp_sum_elements(ls_dp_args_of(r.args.dp)) * size, 4096);
            check_window(ls_steps_most_gradients(), window, window / 8);
        }
        /* All else is taken when opening, in the device's memory or in what ranks share. */
        int64_t mine = ls_ledger_total(&r.ledger) - ledger_bytes(&r.ledger, "threads") -
                       ledger_bytes(&r.ledger, "batch") - ledger_bytes(&r.ledger, "saving") -
                       gathered - window - ls_decode_bytes(&r.model) -
                       ls_device_used_bytes(r.device);
        if (r.mesh.rank == 0) /* it has copies of the state too, which are not the step's */
            mine -= ledger_bytes(&r.ledger, "snapshot") + ledger_bytes(&r.ledger, "whole weights");
        int64_t sum = sum_of_all(comm, mine);
        if (cases[c].shard == 0)
            LS_CHECK_EQ(sum, taken);
        else /* communicators of groups, of replicas and of all keep some for themselves */
            LS_CHECK(taken >= sum && taken - sum < 5 * LS_MIB);
        close_rank(&r, comm);
    }
}

LS_TEST_SECONDS(step_of_four_ranks_uses_the_bytes_that_the_ledger_predicts, 180)
{
    ls_world_run("4", NULL, counted);
}

LS_TEST_SECONDS(step_of_four_ranks_with_one_moment_uses_what_the_ledger_predicts, 180)
{
    optimizer = LS_OPTIMIZER_LION;
    ls_world_run("4", NULL, counted);
}

/* --- weights on their way --------------------------------------------------------------------- */

static void late(ls_world *w, ls_comm *comm)
{
    (void)w;
    for (int zero = 1; zero <= 2; zero++) {
        rank r;
        open_rank(&r, comm, zero, 0, true);
        ls_steps_start(r.step, &r.model);
        run_step(&r, 0);
        /* The step has ended without waiting for the weights that others have updated. */
        ls_zero_units_set all = ((ls_zero_units_set)1 << ls_dp_buckets(r.args.dp)) - 1;
        LS_CHECK(ls_dp_buckets(r.args.dp) > 4 && r.step->zero_gather.coming == all);
        run_step(&r, 1); /* forward has read all of them; then they are on their way once more */
        LS_CHECK(r.step->zero_gather.coming == all);
        ls_step_need(r.step, 0);
        LS_CHECK_EQ(r.step->zero_gather.coming, all & ~ls_zero_units_buckets(&r.model, &r.mesh, 0));
        LS_CHECK_OK(ls_step_settle(r.step));
        LS_CHECK_EQ(r.step->zero_gather.coming, 0);
        /* And all ranks have the same. */
        double sum[2] = {0, 0};
        const float *x = ls_step_state_arrays(r.step).w;
        for (int64_t i = 0; i < r.model.flat; i++)
            sum[0] += (double)x[i] * (double)(i % 97 + 1);
        sum[1] = sum[0];
        LS_CHECK_OK(ls_dp_broadcast(r.args.dp, 0, sum, sizeof *sum));
        LS_CHECK(sum[0] == sum[1]);
        close_rank(&r, comm);
    }
}

LS_TEST_SECONDS(step_gathers_new_weights_while_the_next_one_computes, 180)
{
    ls_world_run("4", NULL, late);
    ls_world_run("2+2", NULL, late);
}
