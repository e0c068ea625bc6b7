/* test_hang_report.c -- a collective over several nodes that is not done in time: the message names
 * the rank that did not come, its host, and what it is in, also when it sits on another node. */
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>
#include "base/time.h"
#include "comm/comm.h"
#include "comm/node/ranks.h"
#include "comm/worlds.h"

#define SOON ls_ranks_in_ms(20000)

typedef enum fault { NEVER, ELSEWHERE, STOPPED } fault;

typedef struct scene {
    atomic_int ready, stopped, told;
    int victim;
    fault fault;
    int64_t count; /* of the sum that is missed */
} scene;

static void wait_until(const atomic_int *number, int is)
{
    int64_t until = SOON;

    while (atomic_load(number) < is && ls_time_now_ns() < until)
        usleep(200);
    LS_CHECK(atomic_load(number) >= is);
}

static ls_status sum(ls_comm *comm, int64_t count, int64_t deadline_ns)
{
    static float x[70001];

    return ls_comm_run(comm, &(ls_coll){.count = count, .in = x, .out = x}, deadline_ns);
}

/* Three sums that all take part in, of 40 bytes in step 7; the fourth does not end. */
static void take_part(ls_world *w, int rank)
{
    scene *s = w->context;
    ls_comm_args args = ls_world_args(w, rank);
    ls_comm *comm = NULL;
    int64_t x;

    LS_CHECK_OK(ls_comm_open(&comm, &args, SOON));
    ls_comm_set_step(comm, 7);
    for (int i = 0; i < 3; i++)
        LS_CHECK_OK(sum(comm, 10, SOON));
    ls_comm_set_step(comm, 8);
    atomic_fetch_add(&s->ready, 1);
    wait_until(&s->ready, w->ranks);
    ls_status st = LS_OK;
    if (rank != s->victim) {
        wait_until(&s->stopped, 1);
        st = sum(comm, s->count, ls_ranks_in_ms(1200));
        LS_CHECK(st == LS_EDEADLINE || st == LS_EPEER); /* the first one, and those it told */
        char name[64];
        snprintf(name, sizeof name, "rank %d (", s->victim);
        LS_CHECK_FAILS(st, st, name);
        /* Whichever rank reports, on the victim's node or on another, says where it is. Only its
         * own node can say that of a rank that is stopped, and it is alone there. */
        if (s->fault == NEVER)
            LS_CHECK_FAILS(st, st, "it has not been in a collective for");
        if (s->fault == ELSEWHERE)
            LS_CHECK_FAILS(st, st, "it has been in recv ");
        if (s->fault == ELSEWHERE)
            LS_CHECK_FAILS(st, st, "(24 bytes of i64, step 8) for");
        else if (s->fault == NEVER || w->ranks > w->nodes)
            LS_CHECK_FAILS(st, st, "(40 bytes of f32, step 7)");
        if (s->fault == STOPPED && w->ranks > w->nodes)
            LS_CHECK_FAILS(st, st, "it is stopped by a signal");
        atomic_fetch_add(&s->told, 1);
    } else if (s->fault == ELSEWHERE) {
        int64_t three[3];
        atomic_store(&s->stopped, 1);
        x = (rank + 1) % w->ranks;
        st = ls_comm_run(
            comm,
            &(ls_coll){
                .kind = LS_COLL_RECV, .type = LS_I64, .count = 3, .peer = (int)x, .out = three},
            SOON);
        LS_CHECK(st != LS_OK);
    } else {
        if (s->fault == NEVER)
            atomic_store(&s->stopped, 1);
        wait_until(&s->told, w->ranks - 1);
    }
    ls_comm_close(comm);
}

static void miss(const char *shape, int victim, fault how, int64_t count)
{
    scene *s = ls_ranks_shared(sizeof *s);
    ls_world w;

    s->victim = victim;
    s->fault = how;
    s->count = count;
    ls_world_init(&w, shape, s);
    for (int r = 0; r < w.ranks; r++)
        ls_world_fork(&w, r, take_part);
    ls_world_forked(&w);
    if (how == STOPPED) {
        wait_until(&s->ready, w.ranks);
        LS_CHECK_EQ(kill(w.pids[victim], SIGSTOP), 0);
        atomic_store(&s->stopped, 1);
    }
    for (int r = 0; r < w.ranks; r++)
        if (r != victim)
            ls_world_join(&w, r, 0);
    if (how == STOPPED)
        LS_CHECK_EQ(kill(w.pids[victim], SIGCONT), 0);
    ls_world_join(&w, victim, 0);
    ls_world_release(&w);
}

LS_TEST_SECONDS(hang_report_names_a_missing_rank_of_another_node, 60)
{
    miss("1+1", 1, NEVER, 10);
    miss("1+1", 0, NEVER, 70001);
    miss("2+2", 3, NEVER, 10);
    miss("2+2", 0, NEVER, 70001); /* by levels */
}

LS_TEST_SECONDS(hang_report_names_a_rank_in_another_collective, 60)
{
    miss("1+1", 1, ELSEWHERE, 10);
    miss("2+2", 2, ELSEWHERE, 10);
    miss("2+2", 1, ELSEWHERE, 70001);
}

LS_TEST_SECONDS(hang_report_names_a_stopped_rank_and_where, 60)
{
    miss("1+1", 1, STOPPED, 10);
    miss("2+2", 3, STOPPED, 10);
    miss("2+2", 2, STOPPED, 70001);
}
