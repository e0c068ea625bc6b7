/* test_param_server_session.c -- whole runs with servers: beside all-reduce, stopped and gone on with by the
 * same and by other ranks, and with ranks that may run ahead. */
#include "comm/node/ranks.h"
#include "comm/worlds.h"
#include "config/runfile.h"
#include "train/loop.h"

enum { STEPS = 8, MOST_SETS = 8 };

/* What a run is told, and tells; in memory that all its processes share. */
typedef struct job {
    const char *sets[MOST_SETS];
    int n_sets;
    double losses[STEPS + 1]; /* by step */
    char hash[40];
    int64_t first_step, pushes, ahead;
} job;

static void on_event(void *context, const ls_event *event)
{
    job *j = context;

    if (event->kind == LS_EVENT_START)
        j->first_step = event->start.first_step;
    if (event->kind == LS_EVENT_STEP)
        j->losses[event->step.step] = event->step.loss;
    if (event->kind == LS_EVENT_SUMMARY) {
        snprintf(j->hash, sizeof j->hash, "%s", event->summary.weights_hash);
        j->pushes = event->summary.pushes;
        j->ahead = event->summary.ahead;
    }
}

static void one_rank(ls_world *w, ls_comm *comm)
{
    static const char text[] =
        "model: {layers: 1, width: 32, heads: 2, context: 16, tied: false}\n"
        "data: {text: [builtin:stories], tokenizer: bytes, validation: 5%}\n"
        "batch: {sequences: 6, leaf: 1, group: 1}\n"
        "train: {steps: 8, warmup: 1, lr: 3e-3, schedule: constant, reduce: fast}\n"
        "checkpoint: {every: 3}\n"
        "eval: {every: 4, sequences: 2}\n"
        "sync: ps\n"
        "device: {threads: 1}\n";
    job *j = w->context;
    ls_run run;
    ls_session_args args = {
        .run = &run, .sink = on_event, .sink_context = j, .comm = comm, .local_ranks = 1};

    LS_CHECK_OK(ls_runfile_load(&run, &(ls_runfile_source){.text = text,
                                                           .len = sizeof text - 1,
                                                           .sets = j->sets,
                                                           .n_sets = j->n_sets,
                                                           .no_environment = true}));
    if (ls_comm_rank(comm) > 0)
        args.sink = NULL;
    LS_CHECK_OK(ls_loop_run(&args));
    ls_runfile_release(&run);
}

static job run_on(const char *shape, const char *const *sets)
{
    job *j = ls_ranks_shared(sizeof *j);

    for (; sets[j->n_sets]; j->n_sets++)
        j->sets[j->n_sets] = sets[j->n_sets];
    ls_world_run(shape, j, one_rank);
    return *j;
}

LS_TEST_SECONDS(param_server_runs_are_those_of_all_reduce, 120)
{
    static const char *const shapes[] = {"2+1", "2"};

    for (size_t i = 0; i < LS_COUNT(shapes); i += (size_t)ls_test_stride(2)) {
        job sum =
            run_on(shapes[i], (const char *const[]){"out=sum", "sync=allreduce", "name=sum", NULL});
        job all = run_on(shapes[i], (const char *const[]){"out=all", "ps.sparse=false", NULL});
        job one = run_on(shapes[i], (const char *const[]){"out=one", "ps.servers=1", NULL});
        for (int s = 1; s <= STEPS; s++) {
            LS_CHECK_NEAR(all.losses[s] / sum.losses[s], 1, 1e-4);
            LS_CHECK_NEAR(one.losses[s], all.losses[s], 0);
        }
        LS_CHECK_STR(one.hash, all.hash);
        LS_CHECK_EQ(one.pushes, STEPS);
        LS_CHECK_EQ(one.ahead, 0);
        LS_CHECK_EQ(system("rm -rf sum all one"), 0);
    }
}

/* Stopped and gone on with, the run is the one that did not stop, bit by bit; by others it goes on
 * at its step. */
LS_TEST_SECONDS(param_server_run_resumes_exactly, 120)
{
    job want = run_on("3", (const char *const[]){"out=straight", NULL});

    (void)run_on("3", (const char *const[]){"out=parts", "train.steps=5", NULL});
    job got = run_on("3", (const char *const[]){"out=parts", "ps.servers=2", NULL});
    LS_CHECK_EQ(got.first_step, 5);
    LS_CHECK_STR(got.hash, want.hash);
    for (int s = 6; s <= STEPS; s++)
        LS_CHECK_NEAR(got.losses[s], want.losses[s], 0);
    (void)run_on("3", (const char *const[]){"out=other", "train.steps=5", NULL});
    got = run_on("1+1", (const char *const[]){"out=other", NULL});
    LS_CHECK_EQ(got.first_step, 5);
    LS_CHECK_NEAR(got.losses[STEPS] / want.losses[STEPS], 1, 1e-4);
}

LS_TEST_SECONDS(param_server_ranks_run_ahead_as_ep_as_they_may, 120)
{
    job want = run_on("2", (const char *const[]){"out=sync", NULL});

    for (int k = 0; k < 2; k++) {
        char out[32];
        snprintf(out, sizeof out, "out=run%d", k);
        job got = run_on("2", (const char *const[]){out, k ? "ps.staleness=1" : "ps.staleness=-1",
                                                    "ps.meet=4", NULL});
        LS_CHECK(got.ahead >= 0 && got.ahead <= (k ? 1 : 4));
        LS_CHECK_NEAR(got.losses[STEPS] / want.losses[STEPS], 1, 0.1);
        LS_CHECK_EQ(got.pushes, STEPS);
    }
}
