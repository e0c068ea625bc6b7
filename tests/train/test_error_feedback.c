/* test_error_feedback.c -- runs whose ranks are on several nodes and compress what goes between them: how far
 * their losses are from those of a plain exchange, and what becomes of what they owe in
 * checkpoints.
 */
#include <math.h>
#include "base/mem.h"
#include "comm/worlds.h"
#include "config/runfile.h"
#include "train/save/error_feedback.h"
#include "train/loop.h"
#include "train/session_open.h"
#include "train/save/save.h"
#include "train/step/step_impl.h"

enum { MOST_STEPS = 64, MOST_SETS = 8 };

/* What a run is told, and tells; in memory of all its processes by way of a file. */
typedef struct job {
    const char *const *sets; /* NULL ends them */
    bool opens_only;
} job;

typedef struct told {
    double losses[MOST_STEPS + 1]; /* by step */
    char hash[40], compress[8];
    double
        residual[4]; /* sums of what is owed, and of its squares: in the checkpoint, in the run */
} told;

static void on_event(void *context, const ls_event *event)
{
    told *t = context;

    if (event->kind == LS_EVENT_START)
        snprintf(t->compress, sizeof t->compress, "%s", event->start.compress);
    if (event->kind == LS_EVENT_STEP)
        t->losses[event->step.step] = event->step.loss;
    if (event->kind == LS_EVENT_SUMMARY)
        snprintf(t->hash, sizeof t->hash, "%s", event->summary.weights_hash);
}

static void load(ls_run *run, const job *j)
{
    static const char text[] =
        "model: {layers: 2, width: 32, heads: 2, context: 16}\n"
        "data: {text: [text.txt], validation: 10%}\n"
        "batch: {sequences: 6, leaf: 1, group: 1}\n"
        "train: {steps: 50, warmup: 1, lr: 3e-3, schedule: constant, reduce: fast}\n"
        "checkpoint: {every: 0}\n"
        "eval: {every: 0, sequences: 2}\n"
        "exchange: {compress: none, topk: 0.01}\n"
        "mesh: {bucket: 65536}\n"
        "device: {threads: 1}\n";
    const char *sets[MOST_SETS] = {"out=run"};
    ls_runfile_source source = {
        .text = text, .len = sizeof text - 1, .sets = sets, .n_sets = 1, .no_environment = true};

    for (const char *const *more = j->sets; *more; more++)
        sets[source.n_sets++] = *more;
    LS_CHECK_OK(ls_runfile_load(run, &source));
}

/* The sum over vectors, element by element: its sum, and that of its squares. */
static void add_up(const float *vectors, int n, int64_t trained, double out[2])
{
    out[0] = out[1] = 0;
    for (int64_t i = 0; i < trained; i++) {
        double x = 0;
        for (int v = 0; v < n; v++)
            x += (double)vectors[v * trained + i];
        out[0] += x;
        out[1] += x * x;
    }
}

/* What the newest checkpoint says is owed. */
static void add_up_saved(const ls_session *s, double out[2])
{
    int64_t trained = s->model.trained;
    ls_ckpt_tensor *rows = ls_mem_array((size_t)s->model.n_params, sizeof *rows);
    float *all = ls_mem_array((size_t)(9 * trained), sizeof *all);
    ls_ckpt *ckpt;
    int n = 0;

    LS_CHECK(rows && all);
    LS_CHECK_OK(ls_ckpt_find(s->save.store, -1, &ckpt, NULL));
    for (int v = 0; v < 9; v++) {
        char kind[16];
        bool there = false;
        snprintf(kind, sizeof kind, v == 8 ? "owed.sum" : "owed.%d", v);
        for (int i = 0; i < ls_ckpt_count(ckpt); i++)
            there = there || strcmp(ls_ckpt_nth(ckpt, i).kind, kind) == 0;
        if (there)
            LS_CHECK_OK(
                ls_ckpt_load(ckpt, rows, ls_save_rows(&s->model, kind, all + n++ * trained, rows)));
    }
    LS_CHECK(n > 0);
    add_up(all, n, trained, out);
    ls_ckpt_free(ckpt);
    ls_mem_free(rows);
    ls_mem_free(all);
}

/* Open the run and look at what it owes. */
static void look(const ls_session_args *args, told *t)
{
    ls_session s;

    LS_CHECK_OK(ls_session_open(&s, args));
    LS_CHECK_OK(ls_error_feedback_collect(&s));
    if (s.mesh.rank == 0) {
        add_up_saved(&s, t->residual);
        if (s.feedback.vectors)
            add_up(s.feedback.vectors, ls_error_feedback_vectors(&s), s.model.trained,
                   t->residual + 2);
        else
            add_up(s.step->residual, 1, s.model.trained, t->residual + 2);
    } else if (!s.feedback.vectors && ls_error_feedback_vectors(&s) == 0) {
        LS_CHECK(s.step->residual != NULL); /* every rank adds it to what it updates */
    }
    ls_session_close(&s);
}

static void one_rank(const job *j, ls_comm *comm)
{
    ls_run run;
    told t = {.hash = ""};
    ls_session_args args = {
        .run = &run, .sink = on_event, .sink_context = &t, .comm = comm, .local_ranks = 1};

    load(&run, j);
    if (j->opens_only)
        look(&args, &t);
    else
        LS_CHECK_OK(ls_loop_run(&args));
    if (!comm || ls_comm_rank(comm) == 0) {
        FILE *f = fopen("told", "w");
        LS_CHECK(f && fwrite(&t, sizeof t, 1, f) == 1 && fclose(f) == 0);
    }
    ls_runfile_release(&run);
}

static void body(ls_world *w, ls_comm *comm)
{
    one_rank(w->context, comm);
}

/* A run on a world, or with shape "1" in this process. */
static told run_on(const char *shape, bool opens_only, const char *const *sets)
{
    job j = {.sets = sets, .opens_only = opens_only};
    told t;
    FILE *f;

    if (strcmp(shape, "1") == 0)
        one_rank(&j, NULL);
    else
        ls_world_run(shape, &j, body);
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

/* The stated bounds: docs/guide/parallel/data.md. */
LS_TEST_SECONDS(compressed_runs_stay_near_plain_ones, 120)
{
    static const struct {
        const char *compress, *topk;
        double within; /* of the loss of each of the last ten steps, relative */
    } kinds[] = {{"bf16", "0.01", 0.005}, {"int8", "0.01", 0.02}, {"topk", "0.2", 0.25}};
    told plain;

    write_text();
    plain = run_on("1+1", false, (const char *const[]){NULL});
    LS_CHECK(plain.losses[50] < 0.7 * plain.losses[1]); /* it learns */
    for (size_t k = 0; k < LS_COUNT(kinds); k += (size_t)ls_test_stride(2)) {
        char out[32], compress[40], topk[32];
        snprintf(out, sizeof out, "out=run%zu", k);
        snprintf(compress, sizeof compress, "exchange.compress=%s", kinds[k].compress);
        snprintf(topk, sizeof topk, "exchange.topk=%s", kinds[k].topk);
        told t = run_on("1+1", false, (const char *const[]){out, compress, topk, NULL});
        LS_CHECK_STR(t.compress, kinds[k].compress);
        for (int s = 41; s <= 50; s++)
            LS_CHECK_NEAR(t.losses[s] / plain.losses[s], 1, kinds[k].within);
        LS_CHECK(strcmp(t.hash, plain.hash) != 0);
    }
}

/* Stopped and gone on with, the run is the one that did not stop, bit by bit. */
LS_TEST_SECONDS(compressed_run_resumes_exactly, 120)
{
    static const struct {
        const char *shape, *compress, *zero;
    } cases[] = {{"1+1", "exchange.compress=int8", "mesh.zero=0"},
                 {"2+1", "exchange.compress=topk", "mesh.zero=0"},
                 {"1+2", "exchange.compress=bf16", "mesh.zero=1"}};

    write_text();
    for (size_t c = 0; c < LS_COUNT(cases); c += (size_t)ls_test_stride(3)) {
        const char *compress = cases[c].compress, *zero = cases[c].zero;
        char straight[32], parts[32];
        snprintf(straight, sizeof straight, "out=straight%zu", c);
        snprintf(parts, sizeof parts, "out=parts%zu", c);
        told want = run_on(cases[c].shape, false,
                           (const char *const[]){straight, compress, zero, "train.steps=12", NULL});
        (void)run_on(cases[c].shape, false,
                     (const char *const[]){parts, compress, zero, "train.steps=7",
                                           "checkpoint.every=3", NULL});
        told got = run_on(cases[c].shape, false,
                          (const char *const[]){parts, compress, zero, "train.steps=12", NULL});
        LS_CHECK_STR(got.hash, want.hash);
        for (int s = 8; s <= 12; s++)
            LS_CHECK_NEAR(got.losses[s], want.losses[s], 0);
    }
}

/* What was owed is owed by whoever goes on, in sum. */
LS_TEST_SECONDS(feedbacks_outlive_a_change_of_nodes, 120)
{
    static const struct {
        const char *shape, *compress, *zero;
    } later[] = {{"1+1", "exchange.compress=int8", "mesh.zero=1"},
                 {"1+1+1+1", "exchange.compress=topk", "mesh.zero=0"},
                 {"2+1", "exchange.compress=bf16", "mesh.zero=0"},
                 {"1+1+1", "exchange.compress=topk", "mesh.zero=0"},
                 {"2", "exchange.compress=int8", "mesh.zero=0"},
                 {"1+1", "exchange.compress=none", "mesh.zero=1"},
                 {"1", "exchange.compress=none", "mesh.zero=0"}};

    write_text();
    (void)run_on("1+1+1", false,
                 (const char *const[]){"exchange.compress=topk", "train.steps=5", NULL});
    for (size_t i = 0; i < LS_COUNT(later); i += (size_t)ls_test_stride(3)) {
        const char *const sets[] = {later[i].compress, later[i].zero, NULL};
        told t = run_on(later[i].shape, true, sets);
        LS_CHECK(t.residual[1] > 0);
        LS_CHECK_NEAR(t.residual[2], t.residual[0], 1e-5 * sqrt(t.residual[1]) + 1e-7);
        LS_CHECK_NEAR(t.residual[3], t.residual[1], 1e-5 * t.residual[1]);
    }
    told last = run_on("1", false, (const char *const[]){"train.steps=8", NULL});
    LS_CHECK(isfinite(last.losses[8]) && last.losses[8] > 0);
}
