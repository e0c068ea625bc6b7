/* test_host_stage.c -- several ranks, each on a device whose memory neither the host nor another
 * rank can touch, as ranks on GPUs are: the bits of one process on the CPU, through saving and
 * resuming. / */
#include <math.h>
#include <signal.h>
#include "base/fault.h"
#include "comm/worlds.h"
#include "config/runfile.h"
#include "train/discrete_device.h"
#include "train/loop.h"

enum { MOST_STEPS = 16, MOST_SETS = 16 };

/* What a run gets, */
typedef struct job {
    const char *const *sets; /* NULL ends them */
    bool discrete;
    int cards;        /* that the machine has */
    const char *fail; /* a point of failure; NULL: none */
    ls_status status; /* expected */
    const char *text; /* and its message; NULL: none */
    int warnings;     /* of each rank */
} job;

/* and what it reports to the test, in a file. */
typedef struct told {
    double losses[MOST_STEPS + 1], norms[MOST_STEPS + 1], val_loss;
    char hash[40];
    int64_t launches[MOST_STEPS + 1]; /* of recorded graphs, until this step was told */
    int64_t first_step, peak_bytes, ledger_bytes, host_bytes;
    int64_t device_bytes;  /* for collectives of device memory: of gradients, */
    int64_t moves_bytes;   /* and of tensors inside of calls */
    char axes[24];         /* of the mesh, for which a way of exchange was chosen */
    int64_t message_bytes; /* of the host, for messages of a pipeline */
    int cards[LS_WORLD_RANKS], n_cards;
} told;

static void on_event(void *context, const ls_event *event)
{
    told *t = context;

    if (event->kind == LS_EVENT_RANK)
        t->cards[event->rank.rank] = event->rank.card;
    if (event->kind == LS_EVENT_START) {
        const ls_ledger *ledger = event->start.ledger;
        t->first_step = event->start.first_step;
        t->n_cards = event->start.cards;
        if (event->start.collectives)
            snprintf(t->axes, sizeof t->axes, "%s", event->start.collectives_axes);
        for (int i = 0; i < ledger->count; i++)
            if (strcmp(ledger->items[i].name, "exchange on the device") == 0)
                t->device_bytes = ledger->items[i].bytes;
            else if (strstr(ledger->items[i].name, " parallel") && !ledger->items[i].host)
                t->moves_bytes += ledger->items[i].bytes;
            else if (strcmp(ledger->items[i].name, "pipeline messages") == 0)
                t->message_bytes = ledger->items[i].bytes;
            else if (strcmp(ledger->items[i].name, "staging") == 0)
                t->host_bytes = ledger->items[i].host ? ledger->items[i].bytes : -1;
    }
    if (event->kind == LS_EVENT_STEP) {
        t->losses[event->step.step] = event->step.loss;
        t->norms[event->step.step] = event->step.grad_norm;
        t->launches[event->step.step] = ls_discrete_device_launches();
    }
    if (event->kind == LS_EVENT_EVAL)
        t->val_loss = event->eval.val_loss;
    if (event->kind == LS_EVENT_SUMMARY) {
        snprintf(t->hash, sizeof t->hash, "%s", event->summary.weights_hash);
        t->peak_bytes = event->summary.peak_bytes;
        t->ledger_bytes = event->summary.ledger_bytes;
    }
}

static void load(ls_run *run, const job *j)
{
    static const char text[] = "model: {layers: 2, width: 32, heads: 2, context: 16}\n"
                               "data: {text: [text.txt], validation: 10%}\n"
                               "batch: {sequences: 6, leaf: 1, group: 1}\n"
                               "train: {steps: 6, warmup: 1, lr: 3e-3, schedule: constant}\n"
                               "checkpoint: {every: 0}\n"
                               "eval: {every: 0, sequences: 3, sample: \"ab\", sample_tokens: 2}\n"
                               "mesh: {bucket: 65536}\n"
                               "device: {threads: 1}\n";
    const char *sets[MOST_SETS] = {"out=run"};
    ls_runfile_source source = {
        .text = text, .len = sizeof text - 1, .sets = sets, .n_sets = 1, .no_environment = true};

    for (const char *const *more = j->sets; *more; more++)
        sets[source.n_sets++] = *more;
    LS_CHECK_OK(ls_runfile_load(run, &source));
}

static void one_rank(const job *j, ls_comm *comm)
{
    ls_run run;
    told t = {.hash = ""};
    ls_session_args args = {.run = &run, .sink = on_event, .sink_context = &t, .comm = comm};
    int rank = comm ? ls_comm_rank(comm) : 0;

    load(&run, j);
    if (j->discrete) {
        const char *isa = run.device.isa == LS_ISA_REFERENCE ? "reference" : "auto";
        ls_discrete_device_is(j->cards ? rank % j->cards : 0, j->cards, false);
        ls_discrete_device_moves_beside_sums(
            j->fail && (run.mesh.tp > 1 || run.mesh.cp > 1 || run.mesh.ep > 1));
        args.device = ls_discrete_device_open(isa, 1, &args.kernels);
    }
    LS_EXPECT_LOG(j->warnings);
    if (j->fail)
        ls_fault_arm(j->fail);
    if (j->text)
        LS_CHECK_FAILS(ls_loop_run(&args), j->status, j->text);
    else
        LS_CHECK_OK(ls_loop_run(&args));
    if (j->discrete)
        ls_discrete_device_close(args.device);
    if (rank == 0) {
        FILE *f = fopen("told", "w");
        LS_CHECK(f && fwrite(&t, sizeof t, 1, f) == 1 && fclose(f) == 0);
    }
    ls_runfile_release(&run);
}

static void body(ls_world *w, ls_comm *comm)
{
    one_rank(w->context, comm);
}

/* A run on a world, or with shape "1" in a process of its own. */
static told run_on(const char *shape, const job *j)
{
    job copy = *j;
    told t;
    FILE *f;

    ls_world_run(shape, &copy, body);
    f = fopen("told", "r");
    LS_CHECK(f && fread(&t, sizeof t, 1, f) == 1 && fclose(f) == 0);
    return t;
}

static void write_text(void)
{
    FILE *f = fopen("text.txt", "w");

    LS_CHECK(f);
    for (int i = 0; i < 60; i++)
        fprintf(f, "%d bottles of beer on the wall, %d bottles of beer, take one down\n", i, i * 7);
    LS_CHECK_EQ(fclose(f), 0);
}

static void check_same(const told *got, const told *want, int first, int last)
{
    LS_CHECK_STR(got->hash, want->hash);
    LS_CHECK_NEAR(got->val_loss, want->val_loss, 0);
    for (int s = first; s <= last; s++) {
        LS_CHECK_NEAR(got->losses[s], want->losses[s], 0);
        LS_CHECK_NEAR(got->norms[s], want->norms[s], 0);
    }
}

/* Ordered: one process on the CPU and any number of ranks on such devices have the same bits, also
 * when saved by one kind of run and gone on with by the other. */
LS_TEST_SECONDS(host_stage_keeps_the_bits_of_one_process, 120)
{
    static const struct {
        const char *shape;
        const char *sets[5];
    } cases[] = {
        {"2", {"mesh.zero=0"}},
        {"3", {"mesh.zero=1", "batch.group=2"}},
        {"2", {"mesh.zero=1", "train.optimizer=lamb", "model.family=llama"}},
        {"2", {"mesh.zero=1", "train.optimizer=muon"}},
        {"4", {"mesh.zero=0", "train.optimizer=muon", "precision=bf16", "device.isa=reference"}},
        {"1+1", {"mesh.zero=1", "precision=bf16", "device.isa=reference"}},
        {"2", {"mesh.zero=0", "train.freeze=[\"*wte*\"]"}},
        {"4", {"mesh.zero=0", "batch.sequences=3"}}};

    write_text();
    for (size_t c = 0; c < LS_COUNT(cases); c += (size_t)ls_test_stride(2)) {
        char alone[32], ranks[32];
        const char *sets[8] = {alone, "checkpoint.every=2"};
        for (int k = 0; cases[c].sets[k]; k++)
            sets[k + 2] = cases[c].sets[k];
        snprintf(alone, sizeof alone, "out=alone%zu", c);
        snprintf(ranks, sizeof ranks, "out=ranks%zu", c);
        const char *plain[8];
        memcpy(plain, sets, sizeof plain);
        plain[2] = "mesh.zero=0"; /* alone there is nothing to divide */
        told want = run_on("1", &(job){.sets = plain});
        sets[0] = ranks;
        told got = run_on(cases[c].shape, &(job){.sets = sets, .discrete = true});
        check_same(&got, &want, 1, 6);
        LS_CHECK_EQ(got.peak_bytes, got.ledger_bytes); /* all there is was predicted */
        LS_CHECK(got.host_bytes > 0);
    }
}

/* Collectives of device memory, by the provider that every device has: gradients do not pass through
 * buffers of the host, and the bits are those of one process; saved and gone on with too. */
LS_TEST_SECONDS(device_exchange_keeps_the_bits_of_one_process, 120)
{
    static const struct {
        const char *shape;
        const char *sets[5];
    } cases[] = {{"2", {"mesh.zero=0"}},
                 {"3", {"mesh.zero=1", "batch.group=2"}},
                 {"2", {"mesh.zero=1", "train.optimizer=lamb", "model.family=llama"}},
                 {"2", {"mesh.zero=0", "train.optimizer=muon"}}, /* goes through the host */
                 {"4", {"mesh.zero=0", "precision=bf16", "device.isa=reference"}},
                 {"1+1", {"mesh.zero=1", "precision=bf16", "device.isa=reference"}},
                 {"4", {"mesh.zero=0", "batch.sequences=3"}},
                 {"4", {"mesh.zero=1", "mesh.shard=2"}}};

    write_text();
    for (size_t c = 0; c < LS_COUNT(cases); c += (size_t)ls_test_stride(2)) {
        char alone[32], ranks[32];
        const char *sets[8] = {alone, "checkpoint.every=2"};
        for (int k = 0; cases[c].sets[k]; k++)
            sets[k + 2] = cases[c].sets[k];
        snprintf(alone, sizeof alone, "out=alone%zu", c);
        snprintf(ranks, sizeof ranks, "out=ranks%zu", c);
        const char *plain[8];
        memcpy(plain, sets, sizeof plain);
        plain[2] = "mesh.zero=0"; /* alone there is nothing to divide */
        for (int k = 3; plain[k]; k++)
            plain[k] = strncmp(plain[k], "mesh.", 5) == 0 ? "mesh.zero=0" : plain[k];
        told want = run_on("1", &(job){.sets = plain});
        sets[0] = ranks;
        told got = run_on(cases[c].shape,
                          &(job){.sets = sets, .discrete = true, .fail = "train.collectives@1+"});
        check_same(&got, &want, 1, 6);
        LS_CHECK_EQ(got.peak_bytes, got.ledger_bytes); /* all there is was predicted */
        bool by_device = strcmp(cases[c].sets[1] ? cases[c].sets[1] : "", "train.optimizer=muon");
        LS_CHECK_EQ(got.device_bytes > 0, by_device);
    }
}

/* ZeRO 2 and 3 the same way: sums call by call, weights that come while others are read. Elements,
 * leaves and layers that do not divide, ranks without a call, a tied embedding, sequences in pieces. */
LS_TEST_SECONDS(device_exchange_divides_gradients_and_weights, 120)
{
    static const struct {
        const char *shape;
        const char *sets[6];
    } cases[] = {
        {"3", {"mesh.zero=3", "batch.group=2", "model.layers=5", "model.width=64"}},
        {"2", {"mesh.zero=2", "model.dropout=0.1"}},
        {"4", {"mesh.zero=3", "mesh.shard=2", "model.family=qwen3", "train.recompute=full"}},
        {"3", {"mesh.zero=2", "batch.sequences=7", "model.family=llama", "model.layers=3"}},
        {"1+1", {"mesh.zero=3", "precision=bf16", "device.isa=reference", "model.layers=3"}},
        {"4", {"mesh.zero=2", "mesh.shard=2", "model.family=llama", "batch.sequences=3"}},
        {"4",
         {"mesh.zero=3", "batch.sequences=3", "model.tied=false", "model.layers=6",
          "model.width=64"}},
        {"3", {"mesh.zero=3", "batch.sequences=14", "model.layers=7"}},
    };

    write_text();
    for (size_t c = 0; c < LS_COUNT(cases); c += (size_t)ls_test_stride(2)) {
        char out[32];
        const char *sets[12] = {out, "eval.sample=", "checkpoint.every=2"};
        const char *plain[12];
        memcpy(sets + 3, cases[c].sets, sizeof cases[c].sets);
        memcpy(plain, sets, sizeof plain);
        for (int k = 3; plain[k]; k++)
            plain[k] = strncmp(plain[k], "mesh.", 5) == 0 ? "mesh.zero=0" : plain[k];
        snprintf(out, sizeof out, "out=alone%zu", c);
        told want = run_on("1", &(job){.sets = plain});
        snprintf(out, sizeof out, "out=ranks%zu", c);
        told got = run_on(cases[c].shape,
                          &(job){.sets = sets, .discrete = true, .fail = "train.collectives@1+"});
        check_same(&got, &want, 1, 6);
        LS_CHECK_EQ(got.peak_bytes, got.ledger_bytes);
        LS_CHECK(got.device_bytes > 0);
    }
}

/* Saved by ranks with one division and gone on with by others with another one. */
LS_TEST_SECONDS(device_exchange_resumes_what_other_ranks_saved, 120)
{
    static const char *const alone[] = {"out=straight", "eval.sample=", NULL};
    static const char by_device[] = "train.collectives@1+";

    write_text();
    told want = run_on("1", &(job){.sets = alone});
    for (int z = 2; z <= 3; z++) {
        char out[32], zero[32];
        const char *first[] = {out, zero, "eval.sample=", "train.steps=2", NULL};
        const char *second[] = {out, zero, "eval.sample=", "train.steps=4", NULL};
        const char *third[] = {out, "eval.sample=", "mesh.zero=3", NULL};
        snprintf(out, sizeof out, "out=parts%d", z);
        snprintf(zero, sizeof zero, "mesh.zero=%d", z);
        (void)run_on("2", &(job){.sets = first, .discrete = true, .fail = by_device});
        told t = run_on("3", &(job){.sets = second, .discrete = true, .fail = by_device});
        LS_CHECK_EQ(t.first_step, 2);
        t = run_on("2", &(job){.sets = third, .discrete = true, .fail = by_device});
        LS_CHECK_EQ(t.first_step, 4);
        check_same(&t, &want, 5, 6);
    }
}

/* Fast: sums in the order of ranks, as the exchange of the host makes them. */
LS_TEST_SECONDS(device_exchange_is_that_of_the_host_in_fast_mode, 120)
{
    static const struct {
        const char *shape, *zero, *more;
    } cases[] = {{"2", "mesh.zero=0", "batch.group=1"},     {"3", "mesh.zero=1", "batch.group=1"},
                 {"4", "mesh.zero=0", "batch.sequences=3"}, {"3", "mesh.zero=2", "model.width=64"},
                 {"4", "mesh.zero=3", "batch.sequences=3"}, {"4", "mesh.zero=3", "mesh.shard=2"},
                 {"4", "mesh.zero=1", "mesh.shard=2"}};

    write_text();
    for (size_t c = 0; c < LS_COUNT(cases); c++) {
        char here[32], there[32];
        snprintf(here, sizeof here, "out=here%zu", c);
        snprintf(there, sizeof there, "out=there%zu", c);
        const char *sets[] = {here,          "train.reduce=fast",  cases[c].zero,
                              cases[c].more, "checkpoint.every=2", "eval.sample=",
                              NULL};
        told want = run_on(cases[c].shape, &(job){.sets = sets});
        sets[0] = there;
        told got = run_on(cases[c].shape,
                          &(job){.sets = sets, .discrete = true, .fail = "train.collectives@1+"});
        check_same(&got, &want, 1, 6);
    }
}

/* --- a rank that is killed -------------------------------------------------------------------- */

static void on_third_step(void *context, const ls_event *event)
{
    (void)context;
    if (event->kind == LS_EVENT_STEP && event->step.step == 3)
        raise(SIGKILL);
}

/* The first rank, which alone tells of steps, kills itself. */
static void lose_the_first(ls_world *world, int rank)
{
    const job *j = world->context;
    ls_comm_args comm_args = ls_world_args(world, rank);
    ls_comm *comm;
    ls_run run;

    LS_CHECK_OK(ls_comm_open(&comm, &comm_args, ls_test_soon()));
    load(&run, j);
    ls_session_args args = {.run = &run, .sink = rank == 0 ? on_third_step : NULL, .comm = comm};
    args.device = ls_discrete_device_open("auto", 1, &args.kernels);
    ls_fault_arm(j->fail);
    LS_CHECK_FAILS(ls_loop_run(&args), LS_EPEER, "rank 0");
    ls_discrete_device_close(args.device);
    ls_comm_close(comm);
    ls_runfile_release(&run);
}

/* The others end with its name, wherever they are: nobody waits for ever. */
LS_TEST_SECONDS(device_exchange_ends_when_a_rank_is_killed, 60)
{
    static const char *const meshes[] = {"mesh.zero=2", "mesh.zero=3", "mesh.pp=3"};

    write_text();
    for (size_t c = 0; c < LS_COUNT(meshes); c++) {
        const char *sets[] = {meshes[c], "model.layers=4", "train.steps=100", "eval.sample=", NULL};
        job j = {.sets = sets, .fail = "train.collectives@1+"};
        ls_world world;
        ls_world_init(&world, "3", &j);
        for (int r = 0; r < 3; r++)
            ls_world_fork(&world, r, lose_the_first);
        ls_world_forked(&world);
        for (int r = 0; r < 3; r++)
            ls_world_join(&world, r, r == 0 ? SIGKILL : 0);
        ls_world_release(&world);
    }
}

/* What they cannot carry yet is refused, or goes through the host. */
LS_TEST_SECONDS(device_exchange_is_refused_where_it_cannot_be, 60)
{
    static const struct {
        const char *world, *set, *and, *text;
    } cases[] = {
        {"2", "mesh.zero=3", NULL, "exchange.device cannot be nccl: rank 0 on"}, /* there is none */
        {"2", "mesh.tp=2", NULL, "exchange.device cannot be nccl: rank 0 on"},
        {"2", "mesh.pp=2", NULL, "exchange.device cannot be nccl: rank 0 on"},
        {"4", "mesh.tp=2", "mesh.zero=2",
         "exchange.device cannot be nccl: with mesh.zero 2 and 3 ranks"},
        {"4", "mesh.pp=2", "mesh.tp=2",
         "exchange.device cannot be nccl: several pipelines (mesh.pp"},
        {"2", "train.optimizer=muon", NULL,
         "exchange.device cannot be nccl: matrices that one rank"}};

    write_text();
    LS_CHECK_EQ(setenv("LINESHAFT_NCCL", "/nowhere/libnccl.so.2", 1), 0);
    for (size_t c = 0; c < LS_COUNT(cases); c++) {
        const char *sets[] = {"exchange.device=nccl", cases[c].set, cases[c].and, NULL};
        run_on(cases[c].world,
               &(job){.sets = sets, .discrete = true, .status = LS_EUSAGE, .text = cases[c].text});
    }
    const char *automatic[] = {"exchange.device=auto", "mesh.zero=2", NULL};
    LS_CHECK(run_on("2", &(job){.sets = automatic, .discrete = true}).device_bytes == 0);
    const char *divided[] = {"out=divided",  "exchange.device=auto", "mesh.tp=2",
                             "eval.sample=", "train.steps=1",        NULL};
    told t = run_on("4", &(job){.sets = divided, .discrete = true}); /* it is no GPU */
    LS_CHECK_STR(t.axes, "dp, tp");
    LS_CHECK_EQ(t.moves_bytes, 0);
}

/* What one process has, by ranks that divide more than moments. */
LS_TEST_SECONDS(host_stage_divides_gradients_and_weights, 120)
{
    static const struct {
        const char *shape;
        const char *sets[6];
    } cases[] = {
        {"2", {"mesh.zero=2", "model.dropout=0.1"}},
        {"3", {"mesh.zero=3", "batch.group=2", "model.layers=5", "model.width=64"}},
        {"4", {"mesh.zero=2", "mesh.shard=2", "model.family=llama", "batch.sequences=3"}},
        {"1+1", {"mesh.zero=3", "precision=bf16", "device.isa=reference", "model.layers=3"}},
        {"4", {"mesh.zero=3", "mesh.shard=2", "model.family=qwen3", "train.recompute=full"}},
        {"2",
         {"mesh.zero=2", "model.dropout=0.1", "model.tied=false", "model.layers=4",
          "model.width=64"}},
        {"4", {"mesh.zero=1", "mesh.shard=2"}},
        {"4",
         {"mesh.zero=3", "batch.sequences=3", "model.tied=false", "model.layers=6",
          "model.width=64"}},
    };

    write_text();
    for (size_t c = 0; c < LS_COUNT(cases); c += (size_t)ls_test_stride(2)) {
        char out[32];
        const char *sets[12] = {out, "eval.sample=", "checkpoint.every=2"};
        const char *plain[12];
        memcpy(sets + 3, cases[c].sets, sizeof cases[c].sets);
        memcpy(plain, sets, sizeof plain);
        plain[3] = "mesh.zero=0";
        for (int k = 4; plain[k]; k++)
            if (strncmp(plain[k], "mesh.", 5) == 0)
                plain[k] = "mesh.zero=0";
        snprintf(out, sizeof out, "out=alone%zu", c);
        told want = run_on("1", &(job){.sets = plain});
        snprintf(out, sizeof out, "out=ranks%zu", c);
        told got = run_on(cases[c].shape, &(job){.sets = sets, .discrete = true});
        check_same(&got, &want, 1, 6);
        LS_CHECK_EQ(got.peak_bytes, got.ledger_bytes);
        LS_CHECK(got.host_bytes > 0);
    }
}

LS_TEST_SECONDS(host_stage_resumes_what_other_ranks_saved, 120)
{
    static const char *const zeros[] = {"mesh.zero=0", "mesh.zero=1", "mesh.zero=2", "mesh.zero=3"};
    static const char *const alone[] = {"out=straight", "eval.sample=", NULL};

    write_text();
    told want = run_on("1", &(job){.sets = alone});
    for (int z = 0; z < (int)LS_COUNT(zeros); z++) {
        char out[32];
        snprintf(out, sizeof out, "out=parts%d", z);
        const char *first[] = {out, zeros[z], "eval.sample=", "train.steps=2", NULL};
        const char *second[] = {out, zeros[z], "eval.sample=", "train.steps=4", NULL};
        const char *third[] = {out, "eval.sample=", NULL};
        (void)run_on("2", &(job){.sets = first, .discrete = true});
        told t = run_on("3", &(job){.sets = second, .discrete = true});
        LS_CHECK_EQ(t.first_step, 2);
        t = run_on("1", &(job){.sets = third, .discrete = z == 1});
        LS_CHECK_EQ(t.first_step, 4);
        check_same(&t, &want, 5, 6);
    }
}

/* A checkpoint that the ranks of one model have written, each its part of the tensors, is gone on
 * with by ranks on such devices as by one process. */
LS_TEST_SECONDS(host_stage_resumes_what_mp_groups_saved, 120)
{
    static const struct {
        const char *world;
        const char *sets[4];
    } cases[] = {{"4", {"mesh.tp=2", "mesh.zero=1"}},
                 {"4", {"mesh.tp=2", "mesh.pp=2"}},
                 {"2", {"mesh.tp=2", "mesh.sp=false", "model.family=qwen3"}}};

    write_text();
    for (size_t c = 0; c < LS_COUNT(cases); c += (size_t)ls_test_stride(2)) {
        told t[3];
        for (int k = 0; k < 3; k++) { /* saved three times, with the same bits */
            char out[32];
            const char *sets[8] = {out, "train.steps=4", "checkpoint.every=2"};
            snprintf(out, sizeof out, "out=mesh%zu-%d", c, k);
            memcpy(sets + 3, cases[c].sets, sizeof cases[c].sets);
            (void)run_on(cases[c].world, &(job){.sets = sets});
            const char *more[] = {out, c == 2 ? "model.family=qwen3" : "model.family=gpt2",
                                  "mesh.zero=1", NULL};
            more[2] = k == 0 ? NULL : more[2];
            t[k] = run_on(k == 0   ? "1"
                          : k == 1 ? "2"
                                   : "3",
                          &(job){.sets = more, .discrete = k > 0});
            LS_CHECK_EQ(t[k].first_step, 4);
            check_same(&t[k], &t[0], 5, 6);
        }
    }
}

/* Fast mode promises no bits but those of the same ranks on the CPU; compressed between nodes
 * too. */
LS_TEST_SECONDS(host_stage_is_the_exchange_of_the_host_in_fast_mode, 120)
{
    static const struct {
        const char *shape, *zero, *more;
    } cases[] = {{"2", "mesh.zero=0", "exchange.compress=none"},
                 {"3", "mesh.zero=1", "exchange.compress=none"},
                 {"4", "mesh.zero=0", "batch.sequences=3"},
                 {"3", "mesh.zero=2", "model.width=64"},
                 {"4", "mesh.zero=3", "mesh.shard=2"},
                 {"1+1", "mesh.zero=1", "exchange.compress=int8"}};

    write_text();
    for (size_t c = 0; c < LS_COUNT(cases); c += (size_t)ls_test_stride(2)) {
        char here[32], there[32];
        snprintf(here, sizeof here, "out=here%zu", c);
        snprintf(there, sizeof there, "out=there%zu", c);
        const char *sets[] = {here,          "train.reduce=fast",  cases[c].zero,
                              cases[c].more, "checkpoint.every=2", "eval.sample=",
                              NULL};
        told want = run_on(cases[c].shape, &(job){.sets = sets});
        sets[0] = there;
        told got = run_on(cases[c].shape, &(job){.sets = sets, .discrete = true});
        check_same(&got, &want, 1, 6);
    }
}

/* Recorded once and replayed, with the same bits: alone and with others, where the calls of a step
 * change (a ramp), with dropout, whose numbers do, and where documents begin inside of a batch. */
LS_TEST_SECONDS(host_stage_replays_what_was_recorded, 120)
{
    static const struct {
        const char *shape;
        const char *sets[4];
        int segments; /* of a step; 0: it varies */
    } cases[] = {{"1", {"batch.group=2", "model.dropout=0.1"}, 1},
                 {"2", {"mesh.zero=1", "mesh.bucket=65536", "batch.group=2"}, 0},
                 {"3", {"mesh.zero=0", "batch.ramp=3", "batch.ramp_from=2"}, 0},
                 {"1", {"train.reduce=fast", "data.isolate=true"}, 1}};

    write_text();
    for (size_t c = 0; c < LS_COUNT(cases); c += (size_t)ls_test_stride(2)) {
        const char *graphs[] = {"device.graphs=off", "device.graphs=on", "device.graphs=auto"};
        told t[3];
        for (int g = 0; g < 3; g++) {
            char out[32];
            const char *sets[10] = {out, graphs[g], "device.kind=cuda"};
            snprintf(out, sizeof out, "out=run%zu-%d", c, g);
            for (int k = 0; k < 4; k++)
                sets[k + 3] = cases[c].sets[k];
            t[g] = run_on(cases[c].shape, &(job){.sets = sets, .discrete = true});
            check_same(&t[g], &t[0], 1, 6);
        }
        LS_CHECK_EQ(t[0].launches[6], 0);
        LS_CHECK_EQ(t[1].launches[1], 0); /* everything runs once before */
        LS_CHECK(t[1].launches[6] > t[1].launches[5] && t[2].launches[6] > 0);
        if (cases[c].segments)
            LS_CHECK_EQ(t[1].launches[6], 5 * cases[c].segments); /* when recorded, too */
    }
}

/* What cannot be recorded is queued, said once, with the same bits; also in the middle of a step,
 * when parts of it have left for the host's memory. */
LS_TEST_SECONDS(host_stage_queues_what_cannot_be_recorded, 120)
{
    const char *sets[] = {"out=plain", "device.graphs=off", "device.kind=cuda", NULL};

    write_text();
    told want = run_on("2", &(job){.sets = sets, .discrete = true});
    sets[1] = "device.graphs=on";
    for (int nth = 1; nth <= 2; nth++) {
        char out[32], fail[32];
        snprintf(out, sizeof out, "out=failed%d", nth);
        snprintf(fail, sizeof fail, "device.graph@%d", nth);
        sets[0] = out;
        told t = run_on("2", &(job){.sets = sets, .discrete = true, .fail = fail, .warnings = 1});
        check_same(&t, &want, 1, 6);
        LS_CHECK_EQ(t.launches[6], nth - 1);
    }
}

/* Each rank says which card it has; ranks beside each other take them in turn. */
LS_TEST(host_stage_reports_the_cards_of_ranks)
{
    const char *sets[] = {"train.steps=1", NULL};

    write_text();
    told t = run_on("3", &(job){.sets = sets, .discrete = true, .cards = 2});
    LS_CHECK(t.cards[0] == 0 && t.cards[1] == 1 && t.cards[2] == 0);
    LS_CHECK_EQ(t.n_cards, 2);
    const char *again[] = {"out=cpu", "train.steps=1", NULL};
    t = run_on("2", &(job){.sets = again});
    LS_CHECK_EQ(t.cards[1], -1);
    LS_CHECK_EQ(t.n_cards, 0);
}

/* A number that is none ends all ranks with one sentence, and no weight is changed. */
LS_TEST(host_stage_stops_at_what_is_not_finite)
{
    const char *sets[] = {"mesh.zero=1", NULL};

    write_text();
    (void)run_on("2", &(job){.sets = sets,
                             .discrete = true,
                             .fail = "train.nonfinite@3",
                             .status = LS_ENUMERIC,
                             .text = "gradient of"});
}

/* A mesh, and what a run is told beside it. */
typedef struct shape {
    const char *world;
    const char *sets[8];
} shape;

#define MIXTURE "model.family=mixtral", "model.experts=4"

/* Ranks that have parts of a model or of sequences: on such devices with the bits that the same
 * ranks have where they reach each other's memory. fail: a point of failure; NULL: none. */
static void check_parts_with(const shape *cases, size_t n, const char *fail)
{
    write_text();
    for (size_t c = 0; c < n; c += (size_t)ls_test_stride(3)) {
        char here[32], there[32];
        const char *sets[14] = {here, "checkpoint.every=2", "train.steps=3", "batch.sequences=4",
                                "model.heads=4"};
        memcpy(sets + 5, cases[c].sets, sizeof cases[c].sets);
        snprintf(here, sizeof here, "out=here%zu", c);
        snprintf(there, sizeof there, "out=there%zu", c);
        told want = run_on(cases[c].world, &(job){.sets = sets});
        sets[0] = there;
        told got = run_on(cases[c].world, &(job){.sets = sets, .discrete = true, .fail = fail});
        check_same(&got, &want, 1, 3);
        LS_CHECK_EQ(got.peak_bytes, got.ledger_bytes);
        LS_CHECK_EQ(got.moves_bytes > 0, fail != NULL);
    }
}

static void check_parts(const shape *cases, size_t n)
{
    check_parts_with(cases, n, NULL);
}

LS_TEST_SECONDS(host_stage_mp_groups_have_the_bits_of_the_host, 120)
{
    static const shape cases[] = {
        {"2", {"mesh.tp=2", "mesh.sp=false", "eval.sample=", "model.dropout=0.1"}},
        {"1+1", {"mesh.tp=2", "eval.sample=", "precision=bf16", "device.isa=reference"}},
        {"4", {"mesh.tp=2", "mesh.zero=1", "eval.sample=", "model.family=qwen3"}},
        {"4", {"mesh.tp=4", "eval.sample=", "model.family=llama", "model.kv_heads=2"}},
        {"2", {"mesh.tp=2", "eval.sample=", "train.reduce=fast", "train.recompute=full"}},
        {"4", {"mesh.tp=2", "mesh.zero=2", "eval.sample=", "model.family=llama", "model.width=64"}},
        {"4",
         {"mesh.tp=2", "mesh.zero=3", "eval.sample=", "precision=bf16", "device.isa=reference"}},
        {"2", {"mesh.tp=2", "eval.sample=", "train.freeze=[\"*.ln_1.*\", \"*.wte.*\"]"}},
    };

    check_parts(cases, LS_COUNT(cases));
}

LS_TEST_SECONDS(host_stage_cp_groups_have_the_bits_of_the_host, 120)
{
    static const shape cases[] = {
        {"2", {"mesh.cp=2", "mesh.keys=gather", "model.dropout=0.1", "data.isolate=true"}},
        {"1+1", {"mesh.cp=2", "precision=bf16", "device.isa=reference"}},
        {"4", {"mesh.cp=2", "mesh.tp=2", "eval.sample="}},
        {"3", {"mesh.cp=3", "mesh.zero=1", "model.family=llama", "model.context=12"}},
        {"4", {"mesh.cp=2", "mesh.zero=3", "eval.sample=", "model.layers=4", "train.reduce=fast"}},
    };

    check_parts(cases, LS_COUNT(cases));
}

LS_TEST_SECONDS(host_stage_pipelines_have_the_bits_of_the_host, 120)
{
    static const shape cases[] = {
        {"2", {"mesh.pp=2", "eval.sample=", "mesh.schedule=gpipe", "model.dropout=0.1"}},
        {"4", {"mesh.pp=2", "eval.sample=", "mesh.zero=1", "model.family=llama"}},
        {"2", {"mesh.pp=2", "eval.sample=", "mesh.schedule=zero-bubble"}},
        {"2",
         {"mesh.pp=2", "eval.sample=", "mesh.schedule=interleaved", "mesh.chunks=2",
          "model.layers=4"}},
        {"4", {"mesh.pp=2", "eval.sample=", "mesh.tp=2", "model.tied=false"}},
        {"1+1", {"mesh.pp=2", "eval.sample=", "precision=bf16", "device.isa=reference"}},
        {"4", {"mesh.pp=2", "eval.sample=", "mesh.cp=2", "train.reduce=fast", "batch.ramp=2"}},
        {"4",
         {"mesh.pp=2", "eval.sample=", "train.freeze=[\"*.wte.*\", \"*.wpe.*\", \"*.h.0.*\"]"}},
        {"2", {"mesh.pp=2", "eval.sample=", "train.freeze=[\"*.h.1.*\", \"*.ln_f.*\"]"}},
    };

    check_parts(cases, LS_COUNT(cases));
}

/* Messages of one pipeline by collectives of device memory, in every schedule: the same bits, and
 * fewer places in the host's memory; saved, and gone on with by one process. */
LS_TEST_SECONDS(device_pipelines_have_the_bits_of_the_host, 120)
{
    static const shape cases[] = {
        {"2", {"mesh.pp=2", "mesh.schedule=1f1b", "batch.group=2"}},
        {"3", {"mesh.pp=3", "mesh.schedule=gpipe", "model.dropout=0.1", "model.layers=3"}},
        {"2", {"mesh.pp=2", "mesh.schedule=zero-bubble", "model.family=llama"}},
        {"2",
         {"mesh.pp=2", "mesh.schedule=interleaved", "mesh.chunks=2", "model.layers=4",
          "batch.sequences=8"}},
        {"1+1", {"mesh.pp=2", "precision=bf16", "device.isa=reference", "model.tied=false"}},
        {"4", {"mesh.pp=4", "mesh.schedule=1f1b", "model.layers=5", "train.reduce=fast"}},
        {"2", {"mesh.pp=2", "train.freeze=[\"*.h.1.*\", \"*.ln_f.*\"]"}},
    };

    write_text();
    for (size_t c = 0; c < LS_COUNT(cases); c += (size_t)ls_test_stride(3)) {
        char out[32];
        const char *sets[14] = {out, "checkpoint.every=2", "train.steps=3", "eval.sample="};
        memcpy(sets + 4, cases[c].sets, sizeof cases[c].sets);
        snprintf(out, sizeof out, "out=host%zu", c);
        told want = run_on(cases[c].world, &(job){.sets = sets, .discrete = true});
        snprintf(out, sizeof out, "out=device%zu", c);
        told got = run_on(cases[c].world,
                          &(job){.sets = sets, .discrete = true, .fail = "train.collectives@1+"});
        check_same(&got, &want, 1, 3);
        LS_CHECK_EQ(got.peak_bytes, got.ledger_bytes);
        LS_CHECK(got.message_bytes < want.message_bytes);
        sets[2] = "train.steps=4";
        LS_CHECK_EQ(run_on(cases[c].world,
                           &(job){.sets = sets, .discrete = true, .fail = "train.collectives@1+"})
                        .first_step,
                    3);
    }
}

/* mesh.ep with mesh.pp, with mesh.cp, with mesh.tp. */
LS_TEST_SECONDS(host_stage_experts_have_the_bits_of_the_host, 120)
{
    static const shape cases[] = {
        {"2", {MIXTURE, "mesh.pp=2", "eval.sample=", "train.recompute=full"}},
        {"2", {MIXTURE, "mesh.cp=2", "batch.group=2"}},
        {"4", {MIXTURE, "mesh.pp=2", "mesh.zero=1", "eval.sample=", "mesh.schedule=zero-bubble"}},
        {"1+1", {MIXTURE, "mesh.cp=2", "precision=bf16", "device.isa=reference"}},
        {"4", {MIXTURE, "mesh.pp=2", "mesh.cp=2", "eval.sample=", "train.reduce=fast"}},
        {"2", {MIXTURE, "mesh.tp=2", "eval.sample=", "train.recompute=selective"}},
        {"4", {MIXTURE, "mesh.tp=2", "mesh.cp=2", "mesh.sp=false", "eval.sample="}},
        {"4",
         {MIXTURE, "mesh.tp=2", "mesh.pp=2", "eval.sample=", "train.freeze=[\"*experts.0*\"]"}},
    };

    check_parts(cases, LS_COUNT(cases));
}

/* Rows of tokens to experts of other ranks, and back; ranks without tokens serve. */
LS_TEST_SECONDS(host_stage_ep_experts_have_the_bits_of_the_host, 120)
{
    static const shape cases[] = {
        {"2", {MIXTURE, "mesh.ep=2", "eval.sample=", "train.recompute=full"}},
        {"4", {MIXTURE, "mesh.ep=2", "mesh.zero=1", "eval.sample=", "batch.sequences=3"}},
        {"1+1", {MIXTURE, "mesh.ep=2", "eval.sample=", "precision=bf16", "device.isa=reference"}},
        {"4", {MIXTURE, "mesh.ep=2", "mesh.tp=2", "eval.sample="}},
        {"4", {MIXTURE, "mesh.ep=4", "mesh.zero=1", "eval.sample=", "model.experts=8"}},
        {"4", {MIXTURE, "mesh.ep=2", "mesh.pp=2", "eval.sample=", "batch.sequences=3"}},
        {"4", {MIXTURE, "mesh.ep=2", "mesh.cp=2", "eval.sample="}},
        {"4", {MIXTURE, "mesh.ep=2", "mesh.zero=2", "eval.sample="}},
        {"4", {MIXTURE, "mesh.ep=2", "mesh.zero=3", "eval.sample=", "batch.sequences=3"}},
        {"4", {MIXTURE, "mesh.ep=4", "mesh.zero=3", "eval.sample=", "model.experts=8"}},
    };

    check_parts(cases, LS_COUNT(cases));
}

/* The same by collectives of device memory, by the provider that every device has. */
LS_TEST_SECONDS(device_moves_have_the_bits_of_the_host, 120)
{
    static const shape cases[] = {
        {"2", {"mesh.tp=2", "mesh.sp=false", "eval.sample=", "model.dropout=0.1"}},
        {"2", {"mesh.tp=2", "eval.sample=", "train.recompute=full"}},
        {"4", {"mesh.tp=4", "eval.sample=", "model.family=llama", "model.kv_heads=2"}},
        {"4", {"mesh.tp=2", "eval.sample=", "model.family=qwen3"}},
        {"4", {"mesh.tp=2", "mesh.zero=1", "eval.sample=", "model.family=qwen3"}},
        {"2", {"mesh.cp=2", "model.dropout=0.1", "data.isolate=true"}},
        {"3", {"mesh.cp=3", "mesh.keys=gather", "model.family=llama", "model.context=12"}},
        {"4", {"mesh.cp=2", "mesh.tp=2", "eval.sample="}},
    };

    check_parts_with(cases, LS_COUNT(cases), "train.collectives@1+");
}

LS_TEST_SECONDS(device_moves_of_experts_have_the_bits_of_the_host, 120)
{
    static const shape cases[] = {
        {"2", {MIXTURE, "mesh.ep=2", "eval.sample=", "train.recompute=full"}},
        {"4", {MIXTURE, "mesh.ep=2", "mesh.zero=1", "eval.sample=", "batch.sequences=3"}},
        {"4", {MIXTURE, "mesh.ep=2", "mesh.tp=2", "eval.sample="}},
        {"4", {MIXTURE, "mesh.ep=2", "mesh.cp=2", "eval.sample="}},
        {"2", {MIXTURE, "mesh.tp=2", "eval.sample=", "train.recompute=selective"}},
    };

    check_parts_with(cases, LS_COUNT(cases), "train.collectives@1+");
}

/* Saved by one mesh and gone on with by another, on such devices as where memory is reached. */
static void check_way(const char *name, const shape legs[3])
{
    told t[2][3];

    for (int discrete = 0; discrete < 2; discrete++)
        for (int i = 0; i < 3; i++) {
            char out[32], steps[32];
            const char *sets[14] = {out, steps, "eval.sample=", "batch.sequences=4"};
            snprintf(out, sizeof out, "out=%s%d", name, discrete);
            snprintf(steps, sizeof steps, "train.steps=%d", i + 1);
            memcpy(sets + 4, legs[i].sets, sizeof legs[i].sets);
            t[discrete][i] = run_on(legs[i].world, &(job){.sets = sets, .discrete = discrete == 1});
            LS_CHECK_EQ(t[discrete][i].first_step, i);
        }
    for (int i = 0; i < 3; i++)
        check_same(&t[1][i], &t[0][i], i + 1, i + 1);
}

LS_TEST_SECONDS(host_stage_meshes_go_on_with_what_others_saved, 120)
{
    static const shape dense[] = {
        {"2", {"mesh.tp=2"}}, {"4", {"mesh.pp=2", "mesh.zero=1"}}, {"2", {"mesh.cp=2"}}};
    static const shape mixture[] = {{"4", {MIXTURE, "mesh.ep=2", "mesh.zero=1"}},
                                    {"4", {MIXTURE, "mesh.ep=2", "mesh.pp=2"}},
                                    {"2", {MIXTURE, "mesh.ep=2", "mesh.zero=1"}}};

    write_text();
    check_way("dense", dense);
    check_way("mixture", mixture);
}

/* A number that is none ends all of them with one sentence. */
LS_TEST_SECONDS(host_stage_parts_stop_at_what_is_not_finite, 60)
{
    static const shape cases[] = {{"2", {"mesh.tp=2"}},
                                  {"2", {"mesh.pp=2"}},
                                  {"2", {"mesh.zero=3"}},
                                  {"2", {"mesh.ep=2", MIXTURE}}};

    write_text();
    for (size_t c = 0; c < LS_COUNT(cases); c++) {
        char out[32];
        const char *sets[12] = {out, "eval.sample="};
        memcpy(sets + 2, cases[c].sets, sizeof cases[c].sets);
        snprintf(out, sizeof out, "out=bad%zu", c);
        (void)run_on(cases[c].world, &(job){.sets = sets,
                                            .discrete = true,
                                            .fail = "train.nonfinite@3",
                                            .status = LS_ENUMERIC,
                                            .text = " of "});
    }
}
