/* test_param_server.c -- servers: the weights that the formula gives, with rows of a table and without; who
 * may run ahead of whom, and how far; the bytes that are taken and sent; workers that die, stop or
 * push what is not finite. */
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include "base/mem.h"
#include "base/time.h"
#include "comm/node/ranks.h"
#include "comm/worlds.h"
#include "kernel/kernel.h"
#include "parallel/param_server.h"

/* A table in the middle of the weights, whose rows lie across the borders of parts. */
enum { COUNT = 4 * LS_NORM_BLOCK + 77, FIRST = 100, ROWS = 113, WIDTH = 501, STEPS = 3 };

/* What the update of the tests sees; one for each process. */
typedef struct seen {
    ls_param_server *ps;
    int64_t n;     /* elements of the part */
    double shares; /* of all updates */
    double servers;
} seen;

/* w -= grad * scale. */
static ls_status descend(void *context, const ls_param_server_update *u,
                         ls_param_server_result *result_out)
{
    seen *s = context;
    double one = 1;

    s->shares += u->share;
    for (int64_t i = 0; i < s->n; i++)
        u->w[i] -= (float)u->scale * u->grad[i];
    result_out->norm = 42;
    result_out->finite = true;
    if (u->worker >= 0)
        return LS_OK;
    ls_status st = ls_param_server_numbers(s->ps, LS_F64, &one, 1);
    s->servers = one;
    return st;
}

static ls_param_server_args args_of(const ls_comm *comm, int servers, int64_t staleness, bool table)
{
    ls_param_server_args args = {
        .mesh = {.ranks = ls_comm_ranks(comm), .rank = ls_comm_rank(comm), .servers = servers},
        .count = COUNT,
        .staleness = staleness,
        .wait_s = 600,
        .update = descend};

    if (table) {
        args.table.first = FIRST;
        args.table.rows = ROWS;
        args.table.width = WIDTH;
    }
    return args;
}

static float start_of(int64_t i)
{
    return (float)(i % 13) * 0.01F;
}

static ls_param_server *open_ps(ls_comm *comm, ls_param_server_args args, seen *s)
{
    ls_mesh_part own = ls_mesh_part_of(&args.mesh, args.count, 0, args.mesh.rank);

    *s = (seen){.n = own.count};
    args.comm = comm;
    args.context = s;
    LS_CHECK_OK(ls_param_server_open(&s->ps, &args));
    for (int64_t i = 0; i < own.count; i++)
        ls_param_server_own(s->ps)[i] = start_of(own.first + i);
    LS_CHECK_OK(ls_param_server_start(s->ps, 0));
    return s->ps;
}

static void meet(ls_comm *comm)
{
    LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, ls_test_soon()));
}

static void close_ps(ls_param_server *ps)
{
    LS_CHECK_OK(ls_param_server_end(ps));
    ls_param_server_close(ps);
}

/* Whether a worker's batch has a row. */
static bool has(int rank, int64_t step, int64_t id)
{
    return (id * 31 + rank * 7 + step * 3) % 5 == 0;
}

/* Gradients are multiples of 1/1024, so that sums have no rounding and no order. */
static float grad_of(int rank, int64_t step, int64_t i)
{
    int64_t row = (i - FIRST) / WIDTH;

    if (i >= FIRST && row < ROWS && !has(rank, step, row))
        return 0;
    return (float)((i * 7919 + rank * 104729 + step * 31) % 2001 - 1000) / 1024;
}

static void make_batch(ls_param_server *ps, int rank, int64_t step, float *grad)
{
    int32_t ids[2 * ROWS];
    int64_t n = 0;

    for (int32_t id = ROWS - 1; id >= 0; id--) /* in any order, and more than once */
        if (has(rank, step, id))
            ids[n] = ids[n + 1] = id, n += 2;
    ls_param_server_touch(ps, ids, n);
    for (int64_t i = 0; i < COUNT; i++)
        grad[i] = grad_of(rank, step, i);
}

/* The weights before a step of all workers. */
static double want_of(int ranks, int64_t step, int64_t i)
{
    double w = (double)start_of(i);

    for (int64_t s = 0; s < step; s++)
        for (int r = 0; r < ranks; r++)
            w -= (double)grad_of(r, s, i);
    return w;
}

/* Rows that this worker does not use are not pulled: it has them as they were. */
static void check_pulled(int ranks, int rank, int64_t step, const float *w, bool table)
{
    for (int64_t i = 0; i < COUNT; i++) {
        int64_t row = (i - FIRST) / WIDTH, then = step;
        if (table && i >= FIRST && row < ROWS)
            while (then > 0 && !has(rank, then, row))
                then--;
        LS_CHECK_NEAR(w[i], want_of(ranks, then, i), 1e-5);
    }
}

static void learn(ls_comm *comm, int servers, bool table, float *w_out)
{
    int n = ls_comm_ranks(comm), me = ls_comm_rank(comm);
    float *grad = ls_mem_array(COUNT, sizeof *grad);
    ls_param_server_result result;
    seen s;
    ls_param_server *ps = open_ps(comm, args_of(comm, servers, 0, table), &s);

    LS_CHECK(grad);
    for (int64_t i = 0; i < COUNT; i++)
        w_out[i] = start_of(i);
    for (int64_t step = 0; step < STEPS; step++) {
        make_batch(ps, me, step, grad);
        LS_CHECK_OK(ls_param_server_pull(ps, step, false, w_out));
        check_pulled(n, me, step, w_out, table);
        LS_CHECK_OK(ls_param_server_push_step(
            ps,
            &(ls_param_server_push){
                .step = step, .grad = grad, .loss = me + 1, .share = 1.0 / n, .scale = 9},
            &result));
        LS_CHECK_NEAR(result.loss, n * (n + 1) / 2.0, 1e-9);
        LS_CHECK(result.finite && !result.blamed);
        LS_CHECK_NEAR(result.norm, 42, 0);
    }
    LS_CHECK_OK(ls_param_server_pull(ps, STEPS, true, w_out));
    check_pulled(n, me, STEPS, w_out, false);
    LS_CHECK_EQ(ls_param_server_counted(ps).ahead, 0);
    close_ps(ps);
    if (me < servers) {
        LS_CHECK_NEAR(s.servers, servers, 0);
        LS_CHECK_NEAR(s.shares, STEPS, 0);
    }
    ls_mem_free(grad);
    meet(comm);
}

static void learning(ls_world *w, ls_comm *comm)
{
    float *dense = ls_mem_array(COUNT, sizeof *dense), *sparse = ls_mem_array(COUNT, sizeof *dense);
    int ranks = ls_comm_ranks(comm);

    (void)w;
    LS_CHECK(dense && sparse);
    for (int servers = 1; servers <= ranks; servers += servers < 2 ? 1
                                                       : ranks - 2 ? ranks - 2
                                                                   : 1) {
        learn(comm, servers, false, dense);
        learn(comm, servers, true, sparse);
        LS_CHECK_EQ(memcmp(dense, sparse, COUNT * sizeof *dense), 0);
    }
    ls_mem_free(dense);
    ls_mem_free(sparse);
}

LS_TEST_SECONDS(ps_workers_together_follow_the_formula, 120)
{
    static const char *const shapes[] = {"2", "1+1", "4", "2+1", "3"};

    for (size_t i = 0; i < LS_COUNT(shapes); i += (size_t)ls_test_stride(2))
        ls_world_run(shapes[i], NULL, learning);
}

/* On nodes of their own: to the thread sanitizer two views of one shared-memory segment are two memories. */
LS_TEST_SECONDS(ps_threads_of_a_server_and_a_worker_share_nothing_by_chance, 60)
{
    ls_world_run_threads("1+1", NULL, learning);
}

/* --- staleness ---------------------------------------------------------------------------------
 */

enum { FAR = 9 };

typedef struct race {
    int64_t staleness;
    _Atomic int64_t fast; /* steps that the first worker has pushed */
} race;

static void push_one(ls_param_server *ps, int64_t step, float *grad, float *w)
{
    ls_param_server_result untouched = {.loss = 7};

    ls_param_server_touch(ps, NULL, 0);
    LS_CHECK_OK(ls_param_server_pull(ps, step, false, w));
    LS_CHECK_OK(ls_param_server_push_step(
        ps, &(ls_param_server_push){.step = step, .grad = grad, .share = 0.5, .scale = 2},
        &untouched));
    LS_CHECK_NEAR(untouched.loss, 7, 0); /* nobody waits for a result */
}

/* The first worker runs; the other one begins when it can get no further. */
static void racing(ls_world *w, ls_comm *comm)
{
    race *x = w->context;
    int me = ls_comm_rank(comm);
    int64_t bound = x->staleness, most = bound < 0 ? FAR : bound + 1;
    float *grad = ls_mem_array(COUNT, sizeof *grad), *got = ls_mem_array(COUNT, sizeof *got);
    seen s;
    ls_param_server *ps = open_ps(comm, args_of(comm, 2, bound, true), &s);

    LS_CHECK(grad && got);
    for (int64_t i = 0; i < COUNT; i++)
        grad[i] = (me + 1) / 64.0F;
    while (me == 1 && atomic_load(&x->fast) < most)
        usleep(1000);
    if (me == 1)
        usleep(30000); /* for a step that must not be made to be made */
    for (int64_t step = 0; step < FAR; step++) {
        push_one(ps, step, grad, got);
        if (me == 0)
            atomic_store(&x->fast, step + 1);
        else if (bound >= 0)
            LS_CHECK(atomic_load(&x->fast) <= step + 1 + bound + 1);
    }
    LS_CHECK_OK(ls_param_server_pull(ps, FAR, true, got));
    for (int64_t i = 0; i < COUNT; i++) /* all pushes have come, each by its scale */
        LS_CHECK_NEAR(got[i],
                      (double)start_of(i) -
                          (i < FIRST || i >= FIRST + ROWS * WIDTH) * FAR * 2 * (1 + 2) / 64.0,
                      1e-4);
    /* Servers have seen it as far ahead as it may be, and never further. */
    LS_CHECK_EQ(ls_param_server_counted(ps).ahead, bound < 0 ? FAR - 1 : bound);
    LS_CHECK_NEAR(s.shares, FAR, 1e-9); /* asked after pull_all: both servers have made all */
    close_ps(ps);
    ls_mem_free(grad);
    ls_mem_free(got);
    meet(comm);
}

LS_TEST_SECONDS(ps_nobody_runs_further_ahead_than_it_may, 60)
{
    static const int64_t bounds[] = {1, 3, -1};

    for (size_t i = 0; i < LS_COUNT(bounds); i++)
        for (int ep_group = 0; ep_group < 2; ep_group++) {
            race *x = ls_ranks_shared(sizeof *x);
            x->staleness = bounds[i];
            ls_world_run(ep_group ? "1+1" : "2", x, racing);
        }
}

/* --- what is not finite ------------------------------------------------------------------------
 */

static void spoiling(ls_world *w, ls_comm *comm)
{
    int me = ls_comm_rank(comm);
    float *grad = ls_mem_array(COUNT, sizeof *grad), *got = ls_mem_array(COUNT, sizeof *got);
    ls_param_server_result result = {.finite = true};
    seen s;

    (void)w;
    LS_CHECK(grad && got);
    for (int64_t i = 0; i < COUNT; i++)
        grad[i] = 1;
    for (int64_t staleness = 0; staleness < 2; staleness++) {
        ls_param_server *ps = open_ps(comm, args_of(comm, 2, staleness, false), &s);
        LS_CHECK_OK(ls_param_server_push_step(
            ps, &(ls_param_server_push){.grad = grad, .share = 0.5, .scale = 1, .bad = me == 1},
            &result));
        LS_CHECK_OK(ls_param_server_pull(ps, 1, true, got));
        for (int64_t i = 0; i < COUNT; i++) /* alone, the good one counts */
            LS_CHECK_NEAR(got[i], (double)start_of(i) - (double)staleness, 1e-6);
        if (staleness == 0)
            LS_CHECK(!result.finite && result.blamed);
        close_ps(ps);
        meet(comm);
    }
    ls_mem_free(grad);
    ls_mem_free(got);
}

LS_TEST(ps_what_is_not_finite_changes_nothing)
{
    ls_world_run("2", NULL, spoiling);
}

/* --- bytes -------------------------------------------------------------------------------------
 */

static int64_t there(const ls_world *w)
{
    struct stat st;

    LS_CHECK_EQ(fstat(w->segment_fd[0], &st), 0);
    return (int64_t)st.st_blocks * 512;
}

/* Its communicators need something too: as much as those of a tiny one. */
static int64_t taken(ls_world *w, ls_comm *comm, const ls_param_server_args *args)
{
    int64_t before = there(w), bytes;
    seen s;

    meet(comm);
    ls_param_server *ps = open_ps(comm, *args, &s);
    meet(comm);
    bytes = there(w) - before;
    meet(comm);
    close_ps(ps);
    meet(comm);
    return bytes;
}

/* Of all ranks, which differ. */
static int64_t said(const ls_param_server_args *args)
{
    ls_param_server_args a = *args;
    int64_t bytes = 0;

    for (a.mesh.rank = 0; a.mesh.rank < a.mesh.ranks; a.mesh.rank++)
        bytes += ls_param_server_bytes(&a);
    return bytes;
}

static void counted(ls_world *w, ls_comm *comm)
{
    for (int i = 0; i < 3; i++)
        meet(comm);
    for (int servers = 1; servers <= 2; servers++)
        for (int table = 0; table < 2; table++) {
            ls_param_server_args large = args_of(comm, servers, 0, table), small = large;
            small.count = 1;
            small.table.rows = 0;
            taken(w, comm, &small);
            int64_t more = taken(w, comm, &large) - taken(w, comm, &small);
            LS_CHECK_EQ(more, said(&large) - said(&small));
        }
}

LS_TEST(ps_takes_the_bytes_that_it_says)
{
    ls_world_run("3", NULL, counted);
}

static int64_t sent_by(ls_comm *comm)
{
    int64_t sent, received;

    ls_comm_traffic(comm, &sent, &received);
    return sent;
}

/* Elements of a part outside the table; those in rows of it that a worker has; how many rows. */
static void count_part(ls_mesh_part part, int rank, int64_t dense_rows[3])
{
    int64_t last = -1;

    dense_rows[0] = dense_rows[1] = dense_rows[2] = 0;
    for (int64_t i = part.first; i < part.first + part.count; i++) {
        int64_t row = i < FIRST ? ROWS : (i - FIRST) / WIDTH;
        if (row >= ROWS) {
            dense_rows[0]++;
        } else if (has(rank, 0, row)) {
            dense_rows[1]++;
            dense_rows[2] += row != last;
            last = row;
        }
    }
}

/* Two ranks, both serve: what each sends in a step, by the formula. */
static void traffic(ls_world *w, ls_comm *comm)
{
    int me = ls_comm_rank(comm), other = 1 - me;
    ls_param_server_args args = args_of(comm, 2, 0, true);
    float *grad = ls_mem_array(COUNT, sizeof *grad), *got = ls_mem_array(COUNT, sizeof *got);
    int64_t his[3], mine[3], before;
    ls_param_server_result result;
    seen s;
    ls_param_server *ps = open_ps(comm, args, &s);

    (void)w;
    LS_CHECK(grad && got);
    make_batch(ps, me, 0, grad);
    before = sent_by(comm);
    meet(comm); /* this rank's server may be asked from here on, and has answered behind the next */
    LS_CHECK_OK(ls_param_server_pull(ps, 0, false, got));
    LS_CHECK_OK(ls_param_server_push_step(
        ps, &(ls_param_server_push){.grad = grad, .share = 0.5, .scale = 1}, &result));
    meet(comm);
    int64_t sent = sent_by(comm) - before;
    ls_param_server_counts c = ls_param_server_counted(ps);
    count_part(ls_mesh_part_of(&args.mesh, COUNT, 0, other), me, his);
    count_part(ls_mesh_part_of(&args.mesh, COUNT, 0, me), other, mine);
    LS_CHECK_EQ(c.pulls, 1);
    LS_CHECK_EQ(c.pushes, 1);
    LS_CHECK_EQ(c.pull_bytes, 64 + 4 * his[2]);
    LS_CHECK_EQ(c.push_bytes, 64 + 4 * (his[0] + his[1] + his[2]));
    LS_CHECK_EQ(c.answer_bytes, 24 + 4 * (mine[0] + mine[1]));
    LS_CHECK(4 * mine[1] < ROWS * WIDTH); /* a quarter of the table would be much */
    int64_t want = c.pull_bytes + c.push_bytes + c.answer_bytes;
    LS_CHECK(sent >= want);
    LS_CHECK_NEAR(sent, want, (double)want * 0.02 + 8192);
    close_ps(ps);
    ls_mem_free(grad);
    ls_mem_free(got);
    meet(comm);
}

LS_TEST(ps_sends_the_bytes_of_the_formula)
{
    ls_world_run("1+1", NULL, traffic);
}

/* --- workers that do not come ------------------------------------------------------------------
 */

typedef struct scene {
    _Atomic int ready;
    int victim;
    int64_t staleness, wait_s;
    bool lives;
} scene;

static void work_until_failure(ls_world *w, int rank)
{
    scene *x = w->context;
    ls_comm_args open = ls_world_args(w, rank);
    float *grad = ls_mem_array(COUNT, sizeof *grad), *got = ls_mem_array(COUNT, sizeof *got);
    ls_param_server_result result;
    ls_comm *comm;
    ls_status st = LS_OK;
    char name[32];
    seen s;

    LS_CHECK(grad && got);
    LS_CHECK_OK(ls_comm_open(&comm, &open, ls_test_soon()));
    ls_param_server_args args = args_of(comm, 2, x->staleness, false);
    args.wait_s = x->wait_s;
    ls_param_server *ps = open_ps(comm, args, &s);
    atomic_fetch_add(&x->ready, 1);
    /* The victim is killed in the middle of it, or lives on and does not push. */
    while (rank == x->victim && x->lives && st == LS_OK) {
        usleep(5000);
        st = ls_comm_check(comm);
    }
    for (int64_t step = 0; st == LS_OK; step++) {
        st = ls_param_server_pull(ps, step, false, got);
        if (st == LS_OK)
            st = ls_param_server_push_step(
                ps, &(ls_param_server_push){.step = step, .grad = grad, .share = 0.5, .scale = 1},
                &result);
    }
    snprintf(name, sizeof name, "rank %d", x->victim);
    if (!strstr(ls_err_last()->text, name) || (st != LS_EPEER && st != LS_EDEADLINE))
        ls_test_fail(__FILE__, __LINE__, "%d: %s", st, ls_err_last()->text);
    if (x->lives)
        LS_CHECK(strstr(ls_err_last()->text, "has not pushed step 1"));
    ls_param_server_close(ps);
    ls_comm_close(comm);
    ls_mem_free(grad);
    ls_mem_free(got);
}

static void lose_one(const char *shape, int victim, bool lives, int64_t staleness)
{
    scene *x = ls_ranks_shared(sizeof *x);
    ls_world w;

    *x = (scene){
        .victim = victim, .staleness = staleness, .wait_s = lives ? 1 : 600, .lives = lives};
    ls_world_init(&w, shape, x);
    for (int r = 0; r < w.ranks; r++)
        ls_world_fork(&w, r, work_until_failure);
    ls_world_forked(&w);
    while (!lives && atomic_load(&x->ready) < w.ranks)
        usleep(1000);
    usleep(20000);
    if (!lives)
        LS_CHECK_EQ(kill(w.pids[victim], SIGKILL), 0);
    for (int r = 0; r < w.ranks; r++)
        ls_world_join(&w, r, r == victim && !lives ? SIGKILL : 0);
    ls_world_release(&w);
}

LS_TEST_SECONDS(ps_names_a_worker_that_was_killed, 60)
{
    lose_one("3", 1, false, 0);  /* a server */
    lose_one("3", 2, false, 0);  /* a rank that does not serve */
    lose_one("2", 0, false, -1); /* nobody waits for its steps */
    lose_one("1+1", 1, false, 2);
}

LS_TEST_SECONDS(ps_names_a_worker_that_does_not_push, 60)
{
    lose_one("3", 2, true, 0);
    lose_one("2", 0, true, 2);
    lose_one("1+1", 1, true, 0);
}
