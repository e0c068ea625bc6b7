/* test_memory.c -- what a precision and a device with a memory of its own change in the ledger. */
#include "harness.h"
#include "model/tiny.h"
#include "plan/ledger_bytes.h"
#include "plan/memory.h"

static ls_ledger ledger_on(const ls_run *run, bool discrete, const ls_mesh *mesh)
{
    ls_memory_args args = {.run = run,
                           .mesh = mesh,
                           .threads = 2,
                           .discrete = discrete,
                           .program_bytes = 1000,
                           .loader_bytes = 2000,
                           .mapped_bytes = 3000,
                           .fixed_bytes = discrete ? 4000 : 0};
    ls_ledger ledger;
    ls_model model;

    LS_CHECK_OK(ls_kernel_pick("reference", &args.kernels));
    LS_CHECK_OK(ls_model_init(&model, run, 19));
    args.model = &model;
    ls_memory_predict(&args, &ledger);
    ls_model_release(&model);
    return ledger;
}

static ls_ledger ledger_of(const ls_run *run, bool discrete)
{
    return ledger_on(run, discrete, NULL);
}

LS_TEST(memory_of_bf16_is_a_copy_more_and_half_the_activations)
{
    ls_run run = ls_tiny_run();
    run.batch.sequences = run.batch.group = 8;
    ls_ledger wide = ledger_of(&run, false);
    run.precision = LS_PRECISION_BF16;
    ls_ledger narrow = ledger_of(&run, false);
    int64_t weights = ledger_bytes(&wide, "weights");

    LS_CHECK_EQ(ledger_bytes(&wide, "bf16 weights"), 0);
    LS_CHECK_EQ(ledger_bytes(&narrow, "bf16 weights"), ls_round_up(weights / 2, 4096));
    /* The weights, gradients and moments that are trained do not change. */
    static const char *const same[] = {"weights", "optimizer", "gradients", "step", "batch"};
    for (size_t i = 0; i < LS_COUNT(same); i++)
        LS_CHECK_EQ(ledger_bytes(&narrow, same[i]), ledger_bytes(&wide, same[i]));
    double share =
        (double)ledger_bytes(&narrow, "activations") / (double)ledger_bytes(&wide, "activations");
    LS_CHECK(share > 0.5 && share < 0.6); /* statistics stay fp32 */
}

LS_TEST(memory_of_the_host_does_not_count_against_a_gpu)
{
    static const char *const device[] = {"weights", "optimizer", "gradients", "activations",
                                         "step"};
    ls_run run = ls_tiny_run();
    ls_ledger here = ledger_of(&run, false), there = ledger_of(&run, true);
    int64_t total = 4000;

    for (size_t i = 0; i < LS_COUNT(device); i++) {
        LS_CHECK_EQ(ledger_bytes(&there, device[i]), ledger_bytes(&here, device[i]));
        total += ledger_bytes(&there, device[i]);
    }
    LS_CHECK_EQ(ls_ledger_total(&there), total);
    LS_CHECK_EQ(ls_ledger_host_total(&here), 0);
    /* All of a checkpoint passes through the host, however often one is written. */
    LS_CHECK_EQ(ledger_bytes(&here, "snapshot"), 0);
    LS_CHECK_EQ(ledger_bytes(&there, "snapshot"),
                ledger_bytes(&there, "weights") + ledger_bytes(&there, "optimizer"));
    LS_CHECK_EQ(ls_ledger_host_total(&there), ledger_bytes(&there, "snapshot") + 1000 + 3000 +
                                                  ledger_bytes(&there, "saving") +
                                                  ledger_bytes(&there, "batch"));
    LS_CHECK(ledger_bytes(&there, "batch") > 2000);
}

/* What each stage divides, by a model that is large beside a norm block. */
LS_TEST(memory_of_four_ranks_is_divided_stage_by_stage)
{
    ls_run run = ls_tiny_run();
    run.model.width = 256;
    run.model.heads = run.model.kv_heads = 8;
    run.model.head_size = 32;
    run.model.mlp = 1024;
    run.model.layers = 8;
    run.batch.sequences = run.batch.group = 8;
    ls_ledger of[4];
    for (int zero = 0; zero <= 3; zero++) {
        const ls_mesh mesh = {.ranks = 4, .rank = 1, .local = 4, .zero = zero, .bucket = 2};
        of[zero] = ledger_on(&run, false, &mesh);
    }
    double weights = (double)ledger_bytes(&of[0], "weights");
    double moments = (double)ledger_bytes(&of[0], "optimizer");
    double gradients = (double)ledger_bytes(&of[0], "gradients");

    LS_CHECK_NEAR(moments, 2 * weights, 0.02 * moments);
    for (int zero = 1; zero <= 3; zero++)
        LS_CHECK_NEAR(ledger_bytes(&of[zero], "optimizer"), moments / 4, 0.02 * moments);
    LS_CHECK_EQ(ledger_bytes(&of[1], "gradients"), gradients);
    LS_CHECK((double)ledger_bytes(&of[2], "gradients") < 0.7 * gradients);
    LS_CHECK_EQ(ledger_bytes(&of[3], "gradients"), ledger_bytes(&of[2], "gradients"));
    /* Zero 3 keeps a quarter of the states; of what it gathers two units at a time are there. */
    LS_CHECK_NEAR(ledger_bytes(&of[2], "weights"), weights, 0.03 * weights);
    LS_CHECK_NEAR(ledger_bytes(&of[3], "weights"), weights / 4, 0.02 * weights);
    LS_CHECK_EQ(ledger_bytes(&of[2], "gathered weights"), 0);
    LS_CHECK((double)ledger_bytes(&of[3], "gathered weights") < 0.5 * weights);
}

/* A rank that shares sequences has its piece of them, and keys and values on their way. */
LS_TEST(memory_of_a_cp_is_that_of_a_piece)
{
    const ls_mesh mesh = {.ranks = 4, .rank = 1, .local = 4, .cp = 4};
    ls_run run = ls_tiny_run();
    run.model.context = 1024;
    run.model.layers = 6;
    ls_ledger one = ledger_of(&run, false), cp_group = ledger_on(&run, false, &mesh);
    run.mesh.keys = LS_KEYS_GATHER;
    ls_ledger gather = ledger_on(&run, false, &mesh);
    double whole = (double)ledger_bytes(&one, "activations");
    double piece = (double)ledger_bytes(&cp_group, "activations");

    LS_CHECK(piece > 0.25 * whole && piece < 0.35 * whole);
    LS_CHECK(ledger_bytes(&gather, "activations") > ledger_bytes(&cp_group, "activations"));
    LS_CHECK_EQ(ledger_bytes(&cp_group, "weights"), ledger_bytes(&one, "weights"));
    LS_CHECK_EQ(ledger_bytes(&one, "context parallel"), 0);
    LS_CHECK(ledger_bytes(&cp_group, "context parallel") > 0);
    LS_CHECK(ledger_bytes(&cp_group, "step") < ledger_bytes(&one, "step"));
}

/* The ranks' copies of what they write of a checkpoint are the state once, whatever is divided. */
LS_TEST(memory_of_a_checkpoint_is_shared_by_its_writers)
{
    ls_run run = ls_tiny_run();
    ls_model model;

    run.checkpoint.every = 1;
    LS_CHECK_OK(ls_model_init(&model, &run, 19));
    int64_t state =
        3 * model.elements * (int64_t)sizeof(float); /* weights and two moments, all trained */
    for (int zero = 0; zero <= 3; zero++)
        for (int ranks = 2; ranks <= 5; ranks++) {
            ls_mesh mesh = {.ranks = ranks, .zero = zero};
            int64_t sum = 0;
            for (mesh.rank = 0; mesh.rank < ranks; mesh.rank++) {
                sum += ls_memory_parts_bytes(&run, &model, &mesh, &mesh);
                LS_CHECK_EQ(ls_memory_snapshot_bytes(&run, &model, &mesh, false, 0) > 0,
                            zero == 3 && mesh.rank == 0);
            }
            LS_CHECK_EQ(sum, state);
            /* a rank that does not see the folder leaves it to the first */
            mesh.rank = 0;
            mesh.blind = true;
            LS_CHECK_EQ(ls_memory_parts_bytes(&run, &model, &mesh, &mesh), 0);
            LS_CHECK(ls_memory_snapshot_bytes(&run, &model, &mesh, false, 2) > 0);
        }
    run.checkpoint.every = 0;
    LS_CHECK_EQ(ls_memory_parts_bytes(&run, &model, &(ls_mesh){.ranks = 2}, NULL), 0);
    ls_model_release(&model);
}
