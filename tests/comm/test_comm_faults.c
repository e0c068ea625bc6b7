/* test_comm_faults.c -- communicators whose ranks die, stop, disagree, run out of memory or do not
 * come: everybody is told why, soon, and again at every later call. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"
#include "comm/comm.h"
#include "comm/node/ranks.h"
#include "comm/worlds.h"

#define SOON ls_test_soon()

/* What ranks and the parent tell each other. */
typedef struct scene {
    atomic_int open, ready, ended, usage, failed, short_of_memory;
    int victim, way, kase;
    int64_t at_ns;                   /* when it happened */
    int64_t told_ns[LS_WORLD_RANKS]; /* when each was told */
} scene;

static void wait_until(const atomic_int *number, int is)
{
    int64_t until = SOON;

    while (atomic_load(number) < is && ls_time_now_ns() < until)
        usleep(200);
    LS_CHECK_EQ(atomic_load(number), is);
}

/* Nobody goes on, and fails, while others are opening. */
static ls_comm *open_world(ls_world *w, int rank)
{
    scene *s = w->context;
    ls_comm_args args = ls_world_args(w, rank);
    ls_comm *comm = NULL;

    LS_CHECK_OK(ls_comm_open(&comm, &args, SOON));
    atomic_fetch_add(&s->open, 1);
    wait_until(&s->open, w->ranks);
    return comm;
}

static ls_comm *twin_of(ls_comm *comm)
{
    int all[LS_WORLD_RANKS];
    ls_comm *twin = NULL;

    for (int i = 0; i < ls_comm_ranks(comm); i++)
        all[i] = i;
    LS_CHECK_OK(ls_comm_sub(comm, all, ls_comm_ranks(comm), SOON, &twin));
    return twin;
}

/* Everything fails at once, for the same reason. */
static void check_broken(ls_comm *comm, const ls_err_record *why)
{
    ls_coll barrier = {.kind = LS_COLL_BARRIER};
    int me = ls_comm_rank(comm);
    ls_comm_request request;
    ls_comm *part = NULL;
    int64_t start = ls_time_now_ns();

    LS_CHECK_FAILS(ls_comm_run(comm, &barrier, SOON), why->code, why->text);
    LS_CHECK_FAILS(ls_comm_start(comm, &barrier, &request), why->code, why->text);
    LS_CHECK_FAILS(ls_comm_sub(comm, &me, 1, SOON, &part), why->code, why->text);
    LS_CHECK(!part);
    LS_CHECK_WITHIN(start, 5000);
}

/* --- killed ----------------------------------------------------------------------------------- */

static ls_status work_once(ls_comm *comm, int way, int64_t deadline_ns)
{
    static float x[70001];
    ls_coll coll = {.count = way == 1 ? 70001 : 9, .in = x, .out = x};
    ls_comm_request request;

    if (way < 2)
        return ls_comm_run(comm, &coll, deadline_ns);
    ls_status st = ls_comm_start(comm, &coll, &request);
    return st == LS_OK ? ls_comm_wait(comm, request, deadline_ns) : st;
}

static void work_until_failure(ls_world *w, int rank)
{
    scene *s = w->context;
    ls_comm *comm = open_world(w, rank), *twin = twin_of(comm);
    ls_status st = LS_OK;
    char name[32];

    atomic_fetch_add(&s->ready, 1);
    while (st == LS_OK)
        st = work_once(comm, s->way, SOON);
    s->told_ns[rank] = ls_time_now_ns();
    ls_err_record why = *ls_err_last();
    snprintf(name, sizeof name, "rank %d", s->victim);
    LS_CHECK_FAILS(st, LS_EPEER, name);
    check_broken(comm, &why);
    check_broken(twin, &why);
    ls_comm_close(comm);
    check_broken(twin, &why);
    ls_comm_close(twin);
}

/* Until the last of the others was told, in ms. */
static int64_t kill_one(const char *shape, int victim, int way)
{
    scene *s = ls_ranks_shared(sizeof *s);
    int64_t worst = 0;
    ls_world w;

    s->victim = victim;
    s->way = way;
    ls_world_init(&w, shape, s);
    for (int r = 0; r < w.ranks; r++)
        ls_world_fork(&w, r, work_until_failure);
    ls_world_forked(&w);
    wait_until(&s->ready, w.ranks);
    usleep(20000);
    s->at_ns = ls_time_now_ns();
    LS_CHECK_EQ(kill(w.pids[victim], SIGKILL), 0);
    for (int r = 0; r < w.ranks; r++) {
        ls_world_join(&w, r, r == victim ? SIGKILL : 0);
        if (r != victim)
            worst = ls_max_i64(worst, s->told_ns[r] - s->at_ns);
    }
    ls_world_release(&w);
    return worst / LS_NS_PER_MS;
}

static void kill_some(const char *shape, int victim, int64_t limit_ms)
{
    for (int way = 0; way < 3; way++) {
        int64_t best = INT64_MAX;
        for (int k = 0; k < 5 && best >= limit_ms; k++) /* the machine may be busy elsewhere */
            best = ls_min_i64(best, kill_one(shape, victim, way));
        if (best * LS_NS_PER_MS >= ls_test_ms(limit_ms))
            ls_test_fail(__FILE__, __LINE__, "world %s, way %d: told after %lld ms", shape, way,
                         (long long)best);
    }
}

LS_TEST(comm_names_the_rank_killed_on_this_node)
{
    kill_some("2", 1, 100);
    kill_some("4", 0, 100);
}

LS_TEST_SECONDS(comm_names_the_rank_killed_on_another_node, 40)
{
    kill_some("1+1", 0, 1500);
    kill_some("1+1+1", 2, 1500);
    kill_some("2+2", 1, 1500);
    kill_some("1+2", 0, 1500);
}

/* --- stopped ---------------------------------------------------------------------------------- */

static void work_until_late(ls_world *w, int rank)
{
    scene *s = w->context;
    ls_comm *comm = open_world(w, rank);
    ls_status st = LS_OK;
    char name[32];

    atomic_fetch_add(&s->ready, 1);
    while (st == LS_OK) /* nobody else is late by so much */
        st = work_once(comm, s->way, ls_ranks_in_ms(2000 * ls_test_stride(2)));
    ls_err_record why = *ls_err_last();
    snprintf(name, sizeof name, "rank %d", s->victim);
    if (rank != s->victim) {
        LS_CHECK(st == LS_EDEADLINE || st == LS_EPEER); /* the first one, and those it told */
        LS_CHECK_FAILS(st, st, name);
        atomic_fetch_add(&s->usage, st == LS_EDEADLINE);
    }
    check_broken(comm, &why);
    ls_comm_close(comm);
}

static void stop_one(const char *shape, int victim, int way)
{
    scene *s = ls_ranks_shared(sizeof *s);
    ls_world w;

    s->victim = victim;
    s->way = way;
    ls_world_init(&w, shape, s);
    for (int r = 0; r < w.ranks; r++)
        ls_world_fork(&w, r, work_until_late);
    ls_world_forked(&w);
    wait_until(&s->ready, w.ranks);
    usleep(20000);
    LS_CHECK_EQ(kill(w.pids[victim], SIGSTOP), 0);
    for (int r = 0; r < w.ranks; r++)
        if (r != victim)
            ls_world_join(&w, r, 0);
    LS_CHECK(atomic_load(&s->usage) > 0);
    LS_CHECK_EQ(kill(w.pids[victim], SIGCONT), 0); /* it is told as well, and ends */
    ls_world_join(&w, victim, 0);
    ls_world_release(&w);
}

LS_TEST(comm_names_the_stopped_rank)
{
    static const struct {
        const char *shape;
        int victim, way;
    } rows[] = {{"3", 1, 0},   {"3", 2, 2},   {"1+1+1", 1, 1}, {"1+1+1", 0, 0},
                {"2+2", 2, 1}, {"2+2", 3, 0}, {"1+2", 2, 2}}; /* the fifth by levels */

    for (int i = 0; i < (int)LS_COUNT(rows); i += ls_test_stride(2))
        stop_one(rows[i].shape, rows[i].victim, rows[i].way);
}

/* --- given up --------------------------------------------------------------------------------- */

typedef struct key {
    ls_comm *comm;
    scene *scene;
    int ranks;
} key;

/* When all are about to wait. */
static void *abort_later(void *arg)
{
    const key *k = arg;

    wait_until(&k->scene->ready, k->ranks);
    usleep(30000);
    ls_comm_abort(k->comm, "somebody pressed a key");
    ls_comm_abort(k->comm, "another reason");
    return NULL;
}

static void wait_for_nothing(ls_world *w, int rank)
{
    scene *s = w->context;
    ls_comm *comm = open_world(w, rank), *twin = twin_of(comm);
    int64_t x = 0, start = ls_time_now_ns();
    pthread_t thread;
    ls_coll recv = {.kind = LS_COLL_RECV, .type = LS_I64, .count = 1, .out = &x};
    ls_comm_request request, second;
    key pressed = {s->way ? comm : twin, s, w->ranks};
    bool done;

    recv.peer = (rank + 1) % w->ranks;
    if (rank == 1)
        LS_CHECK_EQ(pthread_create(&thread, NULL, abort_later, &pressed), 0);
    ls_status st = s->way == 2 ? ls_comm_start(comm, &recv, &request) : LS_OK;
    if (st == LS_OK && s->way == 2)
        st = ls_comm_start(comm, &recv, &second);
    LS_CHECK_OK(st);
    atomic_fetch_add(&s->ready, 1);
    st = s->way == 2 ? ls_comm_wait(comm, request, SOON) : ls_comm_run(comm, &recv, SOON);
    ls_err_record why = *ls_err_last();
    LS_CHECK_FAILS(st, LS_EPEER, "stopped by rank 1: somebody pressed a key");
    LS_CHECK_WITHIN(start, 10000);
    if (rank == 1)
        pthread_join(thread, NULL);
    if (s->way == 2) { /* neither is done, both have failed */
        LS_CHECK_FAILS(ls_comm_wait(comm, second, SOON), LS_EPEER, why.text);
        LS_CHECK_FAILS(ls_comm_test(comm, request, &done), LS_EPEER, why.text);
    }
    check_broken(comm, &why);
    check_broken(twin, &why);
    ls_comm_close(comm);
    ls_comm_close(twin);
}

static void run_ranks(const char *shape, scene *s, ls_world_rank body)
{
    ls_world w;

    atomic_store(&s->open, 0);
    atomic_store(&s->ready, 0);
    ls_world_init(&w, shape, s);
    for (int r = 0; r < w.ranks; r++)
        ls_world_fork(&w, r, body);
    ls_world_forked(&w);
    for (int r = 0; r < w.ranks; r++)
        ls_world_join(&w, r, 0);
    ls_world_release(&w);
}

LS_TEST(comm_is_aborted_from_another_thread)
{
    static const char *const shapes[] = {"3", "1+1", "2+2", "1+2"};
    scene *s = ls_ranks_shared(sizeof *s);

    for (size_t i = 0; i < LS_COUNT(shapes); i++)
        for (s->way = 0; s->way < 3; s->way++)
            run_ranks(shapes[i], s, wait_for_nothing);
}

/* --- asked for different things --------------------------------------------------------------- */

static char memory[2][4 * 200000 * 8]; /* as much as the largest of them on four ranks */

static const ls_coll clashes[][2] = {
    {{.kind = LS_COLL_ALL_REDUCE, .count = 100}, {.kind = LS_COLL_BROADCAST, .count = 100}},
    {{.kind = LS_COLL_BARRIER}, {.kind = LS_COLL_ALL_GATHER, .count = 64}},
    {{.kind = LS_COLL_REDUCE_SCATTER, .count = 9}, {.kind = LS_COLL_ALL_REDUCE, .count = 9}},
    {{.count = 100}, {.count = 101}},
    {{.count = 1000}, {.count = 200000}},
    {{.count = 200000}, {.count = 1000}},
    {{.count = 100000}, {.count = 200000}},
    {{.count = 64}, {.count = 64, .type = LS_I32}},
    {{.count = 64}, {.count = 64, .op = LS_COLL_MAX}},
    {{.count = 50000}, {.count = 50000, .op = LS_COLL_MIN}},
    {{.kind = LS_COLL_BROADCAST, .count = 8}, {.kind = LS_COLL_BROADCAST, .count = 8, .peer = 1}},
    {{.kind = LS_COLL_GATHER, .count = 8}, {.kind = LS_COLL_GATHER, .count = 8, .peer = 1}},
    {{.kind = LS_COLL_ALL_TO_ALL, .count = 8}, {.kind = LS_COLL_ALL_TO_ALL, .count = 9}},
};

static void clash(ls_world *w, int rank)
{
    scene *s = w->context;
    ls_comm *comm = open_world(w, rank);
    bool last = rank == w->ranks - 1;
    ls_coll coll = clashes[s->kase][last];
    ls_comm_request request;
    int64_t start = ls_time_now_ns();
    ls_status st = LS_OK;

    coll.in = memory[0];
    coll.out = memory[1];
    /* A rank may be done, as the root of a broadcast is; the next call is not. */
    for (int i = 0; st == LS_OK && i < 2; i++) {
        st = s->way ? ls_comm_start(comm, &coll, &request) : ls_comm_run(comm, &coll, SOON);
        if (s->way && st == LS_OK)
            st = ls_comm_wait(comm, request, SOON);
        coll = (ls_coll){.kind = LS_COLL_BARRIER};
    }
    ls_err_record why = *ls_err_last();
    if (st != LS_EUSAGE && st != LS_EPEER)
        ls_test_fail(__FILE__, __LINE__, "case %d, rank %d: %d %s", s->kase, rank, (int)st,
                     st ? why.text : "");
    if (!strstr(why.text, "different things") && !strstr(why.text, "expects"))
        ls_test_fail(__FILE__, __LINE__, "case %d, rank %d: %s", s->kase, rank, why.text);
    LS_CHECK(strstr(why.text, "rank ") != NULL);
    LS_CHECK(strstr(strstr(why.text, "rank ") + 5, "rank ")); /* both are named */
    LS_CHECK_WITHIN(start, 10000);
    atomic_fetch_add(&s->usage, st == LS_EUSAGE);
    check_broken(comm, &why);
    ls_comm_close(comm);
}

LS_TEST_SECONDS(comm_names_two_that_ask_for_different_things, 40)
{
    static const char *const shapes[] = {"2", "3", "1+1", "1+1+1", "2+2", "1+2"};
    const int stride = ls_test_stride(3);
    scene *s = ls_ranks_shared(sizeof *s);

    for (size_t i = 0; i < LS_COUNT(shapes); i++)
        for (s->kase = (int)i % stride; s->kase < (int)LS_COUNT(clashes); s->kase += stride) {
            s->way = s->kase % 2;
            atomic_store(&s->usage, 0);
            run_ranks(shapes[i], s, clash);
            if (atomic_load(&s->usage) == 0)
                ls_test_fail(__FILE__, __LINE__, "world %s, case %d: nobody says usage", shapes[i],
                             s->kase);
        }
}

static void clash_of_messages(ls_world *w, int rank)
{
    scene *s = w->context;
    ls_comm *comm = open_world(w, rank);
    ls_coll coll = {.kind = rank ? LS_COLL_RECV : LS_COLL_SEND, .count = rank ? 70 : 71};
    ls_status st;

    coll.peer = 1 - rank;
    coll.in = coll.out = memory[0];
    st = ls_comm_run(comm, &coll, SOON);
    if (st == LS_OK) /* a small send is done when it is on its way */
        st = ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, SOON);
    ls_err_record why = *ls_err_last();
    LS_CHECK(st == LS_EUSAGE || st == LS_EPEER);
    atomic_fetch_add(&s->usage, st == LS_EUSAGE);
    check_broken(comm, &why);
    ls_comm_close(comm);
}

LS_TEST(comm_names_two_whose_messages_differ)
{
    scene *s = ls_ranks_shared(sizeof *s);

    run_ranks("2", s, clash_of_messages);
    LS_CHECK(atomic_load(&s->usage) > 0);
    atomic_store(&s->usage, 0);
    run_ranks("1+1", s, clash_of_messages);
    LS_CHECK(atomic_load(&s->usage) > 0);
}

static void different_lists(ls_world *w, int rank)
{
    static const int lists[3][3] = {{0, 1, 2}, {1, 0, 2}, {0, 1, 2}};
    scene *s = w->context;
    ls_comm *comm = open_world(w, rank), *part = NULL;
    ls_status st = ls_comm_sub(comm, lists[rank], 3, SOON, &part);

    ls_err_record why = *ls_err_last();
    LS_CHECK(st == LS_EUSAGE || st == LS_EPEER);
    LS_CHECK_FAILS(st, st, "mean different lists");
    atomic_fetch_add(&s->usage, st == LS_EUSAGE);
    check_broken(comm, &why);
    ls_comm_close(comm);
}

LS_TEST(comm_names_two_with_different_lists)
{
    scene *s = ls_ranks_shared(sizeof *s);

    run_ranks("3", s, different_lists);
    run_ranks("1+2", s, different_lists);
    LS_CHECK(atomic_load(&s->usage) >= 2);
}

/* --- in time ---------------------------------------------------------------------------------- */

static void too_late(ls_world *w, int rank)
{
    ls_comm *comm = open_world(w, rank);
    int64_t x = 3;
    ls_status st;

    if (rank == 0) {
        ls_coll recv = {.kind = LS_COLL_RECV, .type = LS_I64, .count = 1, .out = &x, .peer = 1};
        LS_CHECK_FAILS(ls_comm_run(comm, &recv, ls_time_now_ns() - 1), LS_EDEADLINE, "rank 1");
    } else {
        st = ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, SOON);
        LS_CHECK_FAILS(st, LS_EPEER, "rank 1");
    }
    ls_err_record why = *ls_err_last();
    check_broken(comm, &why);
    ls_comm_close(comm);
}

static void alone_is_never_late(ls_world *w, int rank)
{
    ls_comm *comm = open_world(w, rank);
    int64_t x = 3, y = 0;

    LS_CHECK_OK(ls_comm_run(comm, &(ls_coll){.type = LS_I64, .count = 1, .in = &x, .out = &y}, 0));
    LS_CHECK_EQ(y, 3);
    ls_comm_close(comm);
}

LS_TEST(comm_takes_a_deadline_in_the_past)
{
    scene *s = ls_ranks_shared(sizeof *s);

    run_ranks("2", s, too_late);
    run_ranks("1+1", s, too_late);
    run_ranks("2+2", s, too_late);
    run_ranks("1", s, alone_is_never_late);
}

/* --- closed too early ------------------------------------------------------------------------- */

static void close_in_flight(ls_world *w, int rank)
{
    scene *s = w->context;
    ls_comm *comm = open_world(w, rank), *twin = twin_of(comm);
    enum { LEN = 50000 };
    float *x = ls_mem_array(LEN, sizeof *x);
    ls_comm_request request;
    ls_status st = LS_OK;

    LS_CHECK(x);
    if (s->way)
        LS_CHECK_OK(ls_comm_force(comm, "ring"));
    atomic_fetch_add(&s->ready, 1);
    wait_until(&s->ready, w->ranks);
    if (rank == 0) { /* nobody else takes part in it */
        for (int i = 0; i < 3; i++)
            LS_CHECK_OK(ls_comm_start(comm, &(ls_coll){.count = LEN, .in = x, .out = x}, &request));
        ls_comm_close(comm);
        st = ls_comm_run(twin, &(ls_coll){.kind = LS_COLL_BARRIER}, SOON);
        comm = NULL;
    }
    while (st == LS_OK)
        st = ls_comm_run(twin, &(ls_coll){.kind = LS_COLL_BARRIER}, SOON);
    ls_mem_free(x);
    ls_err_record why = *ls_err_last();
    LS_CHECK_FAILS(st, LS_EPEER, "rank 0");
    check_broken(twin, &why);
    ls_comm_close(comm);
    ls_comm_close(twin);
}

LS_TEST(comm_closed_with_something_in_flight_is_a_failure)
{
    scene *s = ls_ranks_shared(sizeof *s);

    for (s->way = 0; s->way < 2; s->way++) {
        run_ranks("2", s, close_in_flight);
        run_ranks("1+1", s, close_in_flight);
        run_ranks("2+2", s, close_in_flight);
        run_ranks("1", s, alone_is_never_late);
    }
}

/* --- opening ---------------------------------------------------------------------------------- */

static void open_wrongly(ls_world *w, int rank)
{
    scene *s = w->context;
    ls_comm_args args = ls_world_args(w, rank);
    uint8_t other[LS_COMM_SECRET_BYTES] = {1};
    int64_t start = ls_time_now_ns();
    ls_comm *comm = NULL;

    if (rank == 1 && s->way == 0)
        args.generation++;
    if (rank == 1 && s->way == 1)
        args.secret = other;
    LS_CHECK(ls_comm_open(&comm, &args, ls_ranks_in_ms(700)) != LS_OK);
    LS_CHECK(!comm);
    LS_CHECK(ls_err_last()->text[0]);
    if (rank == 1 && s->way == 0 && w->nodes == 1)
        LS_CHECK_FAILS(ls_err_last()->code, ls_err_last()->code, "generation");
    LS_CHECK_WITHIN(start, 10000);
}

LS_TEST(comm_opens_only_with_its_own)
{
    scene *s = ls_ranks_shared(sizeof *s);

    run_ranks("2", s, open_wrongly);
    run_ranks("1+1", s, open_wrongly);
    s->way = 1;
    run_ranks("1+1", s, open_wrongly);
}

static void open_without_one(ls_world *w, int rank)
{
    scene *s = w->context;
    ls_comm_args args = ls_world_args(w, rank);
    int64_t start = ls_time_now_ns();
    ls_comm *comm = NULL;
    char name[32];

    snprintf(name, sizeof name, "rank %d", s->way); /* as it is called where nobody knows it */
    ls_status st = ls_comm_open(&comm, &args, ls_ranks_in_ms(1000));
    LS_CHECK(st == LS_EDEADLINE || st == LS_EPEER);
    LS_CHECK_FAILS(st, st, name);
    LS_CHECK_WITHIN(start, 10000);
}

LS_TEST(comm_names_the_missing_rank)
{
    static const char *const shapes[] = {"3", "1+1+1", "1+2"};
    scene *s = ls_ranks_shared(sizeof *s);

    for (size_t i = 0; i < LS_COUNT(shapes); i++) {
        ls_world w;
        ls_world_init(&w, shapes[i], s);
        s->way = i == 2 ? 1 : 2; /* a seat that was never taken has its number on the node only */
        for (int r = 0; r < 2; r++)
            ls_world_fork(&w, r, open_without_one);
        ls_world_forked(&w);
        for (int r = 0; r < 2; r++)
            ls_world_join(&w, r, 0);
        ls_world_release(&w);
    }
}

LS_TEST(comm_refuses_arguments_that_cannot_be_meant)
{
    ls_comm *comm = NULL;
    ls_world w;

    ls_world_init(&w, "1+2", NULL);
    ls_comm_args good = ls_world_args(&w, 1), bad = good;
    bad.ranks = 0;
    LS_CHECK_FAILS(ls_comm_open(&comm, &bad, SOON), LS_EUSAGE, "a job of 0 ranks");
    bad.ranks = LS_COMM_RANKS + 1;
    LS_CHECK_FAILS(ls_comm_open(&comm, &bad, SOON), LS_EUSAGE, "a job of 4097 ranks");
    bad = good;
    bad.rank = 3;
    LS_CHECK_FAILS(ls_comm_open(&comm, &bad, SOON), LS_EUSAGE, "rank 3 of 3");
    bad = good;
    bad.segment_fd = -1;
    LS_CHECK_FAILS(ls_comm_open(&comm, &bad, SOON), LS_EUSAGE, "without memory that they share");
    bad = ls_world_args(&w, 0);
    bad.secret = NULL;
    LS_CHECK_FAILS(ls_comm_open(&comm, &bad, SOON), LS_EUSAGE, "secret");
    bad = ls_world_args(&w, 0);
    bad.listen_fd = -1;
    LS_CHECK_FAILS(ls_comm_open(&comm, &bad, SOON), LS_EUSAGE, "address");
    LS_CHECK(!comm);
    ls_world_release(&w);
}

/* --- out of memory ---------------------------------------------------------------------------- */

/* Rank 1 runs out of it at its n-th call; the others are told. */
static void open_without_memory(ls_world *w, int rank)
{
    scene *s = w->context;
    ls_comm_args args = ls_world_args(w, rank);
    int64_t start = ls_time_now_ns();
    uint64_t before = ls_mem_calls();
    ls_comm *comm = NULL;

    if (rank == 1)
        ls_mem_fail_nth((uint64_t)s->kase);
    /* Short: before it has come there is no way to tell that it will not. */
    ls_status st = ls_comm_open(&comm, &args, ls_ranks_in_ms(250));
    if (rank == 1) {
        LS_CHECK(st != LS_EUSAGE && st != LS_EDATA);
        atomic_fetch_add(&s->short_of_memory, st == LS_ENOMEM);
        atomic_store(&s->ended, ls_mem_calls() - before < (uint64_t)s->kase);
        ls_mem_fail_nth(0);
    }
    LS_CHECK((comm != NULL) == (st == LS_OK));
    if (st == LS_OK)
        st = ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, SOON);
    atomic_fetch_add(&s->failed, st != LS_OK);
    LS_CHECK_WITHIN(start, 10000);
    ls_comm_close(comm);
}

static void use_without_memory(ls_world *w, int rank)
{
    scene *s = w->context;
    ls_comm *comm = open_world(w, rank), *part = NULL;
    int all[LS_WORLD_RANKS];
    uint64_t before = ls_mem_calls();
    ls_comm_request request;

    for (int i = 0; i < w->ranks; i++)
        all[i] = i;
    if (rank == 1)
        ls_mem_fail_nth((uint64_t)s->kase);
    ls_coll coll = {.count = 50000, .in = memory[0], .out = memory[1]};
    ls_status st = ls_comm_start(comm, &coll, &request);
    if (st == LS_OK)
        st = ls_comm_wait(comm, request, SOON);
    coll.count = 50;
    coll.kind = LS_COLL_ALL_GATHER;
    if (st == LS_OK)
        st = ls_comm_run(comm, &coll, SOON);
    if (st == LS_OK && ls_comm_sub(comm, all, w->ranks, SOON, &part) != LS_OK) {
        st = ls_err_last()->code;
        if (ls_comm_run(comm, &(ls_coll){.kind = LS_COLL_BARRIER}, 0) == LS_OK)
            st = LS_OK; /* before anything was said: nothing is broken */
    }
    if (rank == 1) {
        if (st != LS_OK && st != LS_ENOMEM && st != LS_EPEER && st != LS_EDEADLINE)
            ls_test_fail(__FILE__, __LINE__, "%d: %s", (int)st, ls_err_last()->text);
        atomic_store(&s->ended, ls_mem_calls() - before < (uint64_t)s->kase);
        atomic_fetch_add(&s->short_of_memory, st == LS_ENOMEM);
        ls_mem_fail_nth(0);
    }
    ls_comm_close(part);
    ls_comm_close(comm);
}

static void without_memory(const char *shape, ls_world_rank body, int step)
{
    scene *s = ls_ranks_shared(sizeof *s);

    for (s->kase = 1; !atomic_load(&s->ended); s->kase += step * ls_test_stride(3)) {
        atomic_store(&s->failed, 0);
        run_ranks(shape, s, body);
        LS_CHECK(s->kase < 3000);
        if (s->kase > 60) /* records of a kind, taken many at a time */
            s->kase += 30;
    }
    LS_CHECK(atomic_load(&s->short_of_memory) > 0);
}

LS_TEST_SECONDS(comm_opens_without_memory, 60)
{
    without_memory("2", open_without_memory, 1);
    without_memory("1+1", open_without_memory, 2);
    without_memory("1+2", open_without_memory, 3);
}

LS_TEST_SECONDS(comm_starts_without_memory, 60)
{
    without_memory("2", use_without_memory, 1);
    without_memory("1+1", use_without_memory, 1);
    without_memory("2+2", use_without_memory, 1);
}
