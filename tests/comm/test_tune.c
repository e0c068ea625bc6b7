/* test_tune.c -- numbers of links: all ranks agree whatever their clocks say, files come back, and
 * damaged ones hurt nobody. Ranks are processes with TCP between the "nodes" on loopback. */
#include "harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "comm/tune_impl.h"
#include "comm/node/ranks.h"
#include "comm/tune_file.h"
#include "net/sock.h"

enum { RANKS = 6 };

/* --- ranks on several nodes -------------------------------------------------------------------*/

typedef struct rank_args {
    ls_comm *comm;
    int rank, ranks;
    char (*seen)[RANKS][64]; /* shared by all ranks: seen[i][rank], for comparing */
} rank_args;

typedef void (*rank_body)(rank_args *r);

typedef struct job {
    int nodes, per_node;
    int64_t heap_bytes; /* of a rank, in the memory of its node */
    ls_comm_member members[RANKS];
    int listen[RANKS], segment[RANKS];
    void *seen;
} job;

static void play_rank(job *j, int rank, rank_body body)
{
    uint8_t secret[LS_COMM_SECRET_BYTES] = {9};
    rank_args r = {.rank = rank, .ranks = j->nodes * j->per_node, .seen = j->seen};

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    LS_CHECK_OK(ls_comm_open(&r.comm,
                             &(ls_comm_args){.rank = rank,
                                             .ranks = r.ranks,
                                             .generation = 3,
                                             .members = j->members,
                                             .segment_fd = j->segment[rank / j->per_node],
                                             .listen_fd = j->listen[rank],
                                             .secret = secret,
                                             .transport = "auto"},
                             ls_test_soon()));
    body(&r);
    LS_CHECK_OK(
        ls_comm_run(r.comm, &(ls_coll){.kind = LS_COLL_BARRIER, .type = LS_U8}, ls_test_soon()));
    ls_comm_close(r.comm);
    exit(0);
}

static void make_job(job *j)
{
    for (int r = 0; r < j->nodes * j->per_node; r++) {
        ls_sock_address at;
        j->segment[r] = -1;
        j->members[r].node = r / j->per_node;
        snprintf(j->members[r].host, sizeof j->members[r].host, "host%d", r / j->per_node);
        LS_CHECK_OK(ls_sock_listen(NULL, &j->listen[r]));
        LS_CHECK_OK(ls_sock_local(j->listen[r], &at));
        snprintf(j->members[r].address, sizeof j->members[r].address, "%.63s", at.text);
    }
    for (int i = 0; j->per_node > 1 && i < j->nodes; i++)
        LS_CHECK_OK(ls_shm_segment_create(&(ls_shm_segment_args){.generation = 3,
                                                                 .ranks = j->per_node,
                                                                 .heap_bytes = j->heap_bytes},
                                          &j->segment[i]));
    fflush(NULL);
}

static void run_job_with(int nodes, int per_node, int64_t heap_bytes, rank_body body)
{
    int n = nodes * per_node, pids[RANKS], failed = 0;
    job j = {.nodes = nodes,
             .per_node = per_node,
             .heap_bytes = heap_bytes,
             .seen = ls_ranks_shared(1 << 20)};

    make_job(&j);
    for (int r = 0; r < n; r++) {
        pids[r] = fork();
        LS_CHECK(pids[r] >= 0);
        if (pids[r] == 0)
            play_rank(&j, r, body);
    }
    for (int r = 0; r < n; r++) {
        int status;
        LS_CHECK_EQ(waitpid(pids[r], &status, 0), pids[r]);
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
        ls_sock_close(&j.listen[r]);
        if (j.segment[r] >= 0)
            close(j.segment[r]);
    }
    LS_CHECK_EQ(failed, 0);
}

static void run_job(int nodes, int per_node, rank_body body)
{
    run_job_with(nodes, per_node, 64 * LS_MIB, body);
}

static void meet(rank_args *r)
{
    LS_CHECK_OK(
        ls_comm_run(r->comm, &(ls_coll){.kind = LS_COLL_BARRIER, .type = LS_U8}, ls_test_soon()));
}

/* All ranks have the same text. */
static void check_same(rank_args *r, int row, const char *text)
{
    snprintf(r->seen[row][r->rank], sizeof r->seen[row][0], "%s", text);
    meet(r);
    for (int i = 0; i < r->ranks; i++)
        LS_CHECK_STR(r->seen[row][i], text);
    meet(r);
}

static void use_cache(const char *name)
{
    char here[256], path[300];

    LS_CHECK(getcwd(here, sizeof here));
    snprintf(path, sizeof path, "%s/%s", here, name);
    setenv("XDG_CACHE_HOME", path, 1);
    unsetenv("LINESHAFT_TUNE");
}

/* --- agreeing ---------------------------------------------------------------------------------*/

static ls_coll coll_of(ls_coll_kind kind, int64_t count, void *memory)
{
    return (ls_coll){
        .kind = kind, .type = LS_F32, .count = count, .in = memory, .out = (char *)memory};
}

static const int64_t counts[] = {1, 100, 3000, 20000, 50000};

/* Every rank believes something else; one of each number is the largest. */
static void agree_wildly(rank_args *r)
{
    static float values[50000];
    double wild = 1;

    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < (r->rank * 7 + round * 3) % r->ranks; i++)
            wild *= 37;
        ls_cost_link mine[2] = {{1000 * wild, 50 * wild, 0.01 * wild}, {10 * wild, wild, wild}};
        char text[64];
        LS_CHECK_OK(ls_tune_agree(r->comm, mine, ls_test_soon()));
        const ls_tune *t = ls_tune_of(r->comm);
        LS_CHECK(t->between.alpha_ns >= mine[0].alpha_ns);
        LS_CHECK(t->inside.ns_per_byte >= mine[1].ns_per_byte);
        snprintf(text, sizeof text, "%a %a", t->between.alpha_ns, t->inside.ns_per_byte);
        check_same(r, 0, text);
        for (size_t i = 0; i < LS_COUNT(counts); i++) {
            ls_coll coll = coll_of(LS_COLL_ALL_REDUCE, counts[i], values);
            check_same(r, 1, ls_comm_way(r->comm, &coll));
            for (int64_t k = 0; k < counts[i]; k++)
                values[k] = 1;
            LS_CHECK_OK(ls_comm_run(r->comm, &coll, ls_test_soon()));
            for (int64_t k = 0; k < counts[i]; k++)
                LS_CHECK_EQ(values[k], r->ranks);
        }
    }
}

LS_TEST_SECONDS(ranks_with_different_clocks_choose_alike, 60)
{
    use_cache("cache");
    run_job(3, 1, agree_wildly);
    run_job(2, 2, agree_wildly);
}

/* --- settling ---------------------------------------------------------------------------------*/

/* Each rank's clock is a liar of its own; rank 1 is so slow that only it counts: "direct" wins. */
static ls_status lie(void *context, ls_comm *comm, const ls_coll *coll, int64_t deadline_ns,
                     int64_t *ns_out)
{
    const rank_args *r = context;
    bool direct = strcmp(ls_comm_way(comm, coll), "direct") == 0;

    *ns_out = r->rank == 1 ? 1000000 + !direct * 1000 : 1000 * (r->rank + 1) + direct * 500;
    return ls_comm_run(comm, coll, deadline_ns);
}

static void settle_with_liars(rank_args *r)
{
    float values[16] = {1};
    ls_coll coll = coll_of(LS_COLL_ALL_REDUCE, 16, values);
    ls_tune_table table;

    LS_CHECK_EQ(ls_tune_of(r->comm)->source, LS_TUNE_MEASURED);
    LS_CHECK_EQ(ls_tune_of(r->comm)->picks, 0);
    LS_CHECK_OK(ls_tune_settle(r->comm, &coll, lie, r, ls_test_soon()));
    LS_CHECK_EQ(values[0], 1); /* the caller's buffers are not touched */
    LS_CHECK_EQ(ls_tune_of(r->comm)->picks, 1);
    check_same(r, 0, ls_comm_way(r->comm, &coll));
    LS_CHECK_STR(ls_comm_way(r->comm, &coll), "direct");
    ls_tune_explain(r->comm, &coll, &table);
    LS_CHECK_EQ(table.why, LS_TUNE_BY_MEASURE);
    /* It is settled: nobody is asked again. */
    LS_CHECK_OK(ls_tune_settle(r->comm, &coll, lie, r, ls_test_soon()));
    LS_CHECK_EQ(ls_tune_of(r->comm)->picks, 1);
}

/* The next job. The link may have changed by chance on a busy machine: then it is measured anew. */
static void remember(rank_args *r)
{
    float values[16] = {1};
    ls_coll coll = coll_of(LS_COLL_ALL_REDUCE, 16, values);
    const ls_tune *t = ls_tune_of(r->comm);
    ls_tune_table table;

    ls_tune_explain(r->comm, &coll, &table);
    check_same(r, 0, ls_tune_why_name(table.why));
    if (t->source == LS_TUNE_REMEMBERED) {
        LS_CHECK_EQ(table.why, LS_TUNE_BY_MEMORY);
        LS_CHECK_STR(ls_comm_way(r->comm, &coll), "direct");
        LS_CHECK_EQ(t->picks, 1);
    } else {
        LS_CHECK_EQ(t->source, LS_TUNE_MEASURED);
        LS_CHECK_EQ(t->picks, 0);
    }
}

LS_TEST_SECONDS(ranks_settle_what_the_slowest_one_says, 60)
{
    use_cache("cache");
    run_job(2, 1, settle_with_liars);
    run_job(2, 1, remember);
}

static ls_status twice(rank_args *r, const ls_coll *coll)
{
    ls_status st = ls_comm_run(r->comm, coll, ls_test_soon());

    return st == LS_OK ? ls_comm_run(r->comm, coll, ls_test_soon()) : st;
}

static void use_and_settle(rank_args *r, bool sums, int64_t budget_ns, int picks)
{
    float values[64] = {1};
    ls_coll often = coll_of(LS_COLL_ALL_REDUCE, 16, values);
    ls_coll once = coll_of(LS_COLL_ALL_REDUCE, 64, values);
    ls_tune_table table;

    LS_CHECK_OK(twice(r, &often));
    LS_CHECK_OK(ls_comm_run(r->comm, &once, ls_test_soon()));
    LS_CHECK_OK(ls_tune_settle_used(r->comm, sums, budget_ns, ls_test_soon()));
    LS_CHECK_EQ(ls_tune_of(r->comm)->picks, picks);
    ls_tune_explain(r->comm, &often, &table);
    LS_CHECK_EQ(table.why, picks ? LS_TUNE_BY_MEASURE : LS_TUNE_BY_MODEL);
    ls_tune_explain(r->comm, &once, &table);
    LS_CHECK_EQ(table.why, LS_TUNE_BY_MODEL);
    check_same(r, 0, ls_comm_way(r->comm, &often));
    /* Only once. */
    LS_CHECK_OK(twice(r, &once));
    LS_CHECK_OK(ls_tune_settle_used(r->comm, sums, budget_ns, ls_test_soon()));
    LS_CHECK_EQ(ls_tune_of(r->comm)->picks, picks);
}

static void settle_used(rank_args *r)
{
    use_and_settle(r, true, 10 * LS_NS_PER_S, 1);
}

static void settle_no_sums(rank_args *r)
{
    use_and_settle(r, false, 10 * LS_NS_PER_S, 0);
}

static void settle_without_time(rank_args *r)
{
    use_and_settle(r, true, 1, 0);
}

/* As a trainer does it: what was used twice is tried, within a limit of time, and kept for the next
 * job. */
LS_TEST_SECONDS(what_is_used_again_is_settled, 60)
{
    use_cache("cache_none");
    run_job(2, 1, settle_without_time);
    use_cache("cache_bits");
    run_job(2, 1, settle_no_sums);
    use_cache("cache_used");
    run_job(2, 1, settle_used);
}

/* --- explaining -------------------------------------------------------------------------------*/

static void compare_ways(rank_args *r)
{
    static float values[2 * RANKS * 50000];
    static const char *const forced[] = {NULL, "ring", "direct", "levels"};

    for (size_t f = 0; f < LS_COUNT(forced); f++)
        for (int kind = 0; kind < LS_COLL_KINDS; kind++)
            for (size_t i = 0; i < LS_COUNT(counts); i++) {
                ls_coll coll = coll_of((ls_coll_kind)kind, counts[i], values);
                ls_tune_table table;
                if (kind == LS_COLL_SEND || kind == LS_COLL_RECV)
                    continue;
                LS_CHECK_OK(ls_comm_force(r->comm, forced[f]));
                ls_tune_explain(r->comm, &coll, &table);
                LS_CHECK(table.chosen >= 0);
                LS_CHECK_STR(table.rows[table.chosen].way, ls_comm_way(r->comm, &coll));
                LS_CHECK(!table.rows[table.chosen].refuses);
                for (int k = 0; k < table.count; k++) {
                    LS_CHECK((table.rows[k].predicted_ns >= 0) == !table.rows[k].refuses);
                    LS_CHECK((table.rows[k].sent >= 0) == !table.rows[k].refuses);
                    LS_CHECK(table.rows[k].reason[0]);
                }
            }
    LS_CHECK_OK(ls_comm_force(r->comm, NULL));
}

LS_TEST_SECONDS(the_explained_way_is_the_one_taken, 60)
{
    use_cache("cache");
    run_job(1, 2, compare_ways); /* direct */
    run_job(3, 1, compare_ways); /* schedules */
    run_job(2, 2, compare_ways); /* levels */
}

/* --- measuring --------------------------------------------------------------------------------*/

static void have_numbers(rank_args *r)
{
    const ls_tune *t = ls_tune_of(r->comm);
    char text[64];

    LS_CHECK_EQ(t->source, LS_TUNE_MEASURED);
    LS_CHECK(t->has_between);
    /* Each node with each other one, both directions; the slowest neighbours stand for all. */
    int nodes = ls_comm_node(r->comm, r->ranks - 1) + 1;
    LS_CHECK_EQ(t->pairs, nodes * (nodes - 1));
    for (int i = 0; i < nodes; i++)
        for (int k = 0; k < nodes; k++) {
            const ls_cost_link *link = ls_tune_between(r->comm, i, k);
            LS_CHECK_EQ(link != NULL, i != k);
            if (link)
                LS_CHECK(link->ns_per_byte > 0 && link->alpha_ns > 0);
            if (k == (i + 1) % nodes)
                LS_CHECK(link->ns_per_byte <= t->between.ns_per_byte);
        }
    /* Loopback: no link is faster than 1000 Gbit/s, or so slow as 1 Mbit/s. */
    LS_CHECK(t->between.ns_per_byte >= 0.008 && t->between.ns_per_byte < 8000);
    LS_CHECK(t->between.alpha_ns > 0 && t->between.alpha_ns < 1e9);
    LS_CHECK(t->took_ns > 0);
    snprintf(text, sizeof text, "%a %a %a", t->between.alpha_ns, t->between.message_ns,
             t->inside.alpha_ns);
    check_same(r, 0, text);
    if (r->rank == 0)
        LS_CHECK(ls_file_exists(t->path));
}

static void have_memory(rank_args *r)
{
    const ls_cost_memory *m = &ls_tune_of(r->comm)->memory;
    char text[64];

    have_numbers(r);
    LS_CHECK(ls_tune_of(r->comm)->has_memory);
    LS_CHECK(m->meet_ns > 0 && m->meet_ns < 1e10);
    LS_CHECK(m->cached_ns_per_byte > 0 && m->ns_per_byte > 0 && m->ns_per_byte < 1e4);
    snprintf(text, sizeof text, "%a %a %d", m->meet_ns, m->ns_per_byte, m->crowded);
    check_same(r, 0, text);
}

/* The memory of the node does not hold the messages: others are taken. */
static void have_no_room(rank_args *r)
{
    void *memory;
    int n = 0;

    while (n < 10000 && ls_comm_alloc(r->comm, 64 << 10, "a test", &memory) == LS_OK)
        n++;
    LS_CHECK(n < 10000);
    r->comm->tune.has_memory = false;
    LS_CHECK_OK(ls_tune_measure(r->comm, ls_test_soon()));
    have_numbers(r);
    LS_CHECK(!ls_tune_of(r->comm)->has_memory); /* what is assumed stays */
}

LS_TEST_SECONDS(links_are_measured_when_nodes_meet, 60)
{
    use_cache("cache2");
    run_job(2, 1, have_numbers);
    run_job(3, 2, have_memory);
    use_cache("cache3");
    run_job_with(2, 2, 64 << 10, have_no_room);
}

/* --- pairs ------------------------------------------------------------------------------------*/

/* In a turn no node has two pairs to measure, each pair is measured once, and turns are few. */
LS_TEST(nodes_measure_in_turns)
{
    for (int n = 2; n <= 200; n++) {
        int distances = 0, pairs = 0;
        for (int d; (d = ls_tune_distance(n, distances)) > 0; distances++)
            for (int turn = 0; turn < 3; turn++) {
                bool busy[200] = {0};
                for (int i = 0; i < n; i++) {
                    int to = (i + d) % n;
                    if (ls_tune_turn(n, d, i) != turn)
                        continue;
                    LS_CHECK(to != i && !busy[i] && !busy[to]);
                    busy[i] = busy[to] = true;
                    pairs++;
                }
            }
        LS_CHECK_EQ(pairs, distances * n);
        LS_CHECK(distances >= 1 && distances <= 7);
        LS_CHECK(n > 8 || distances == n - 1);
        LS_CHECK(distances == 1 || pairs <= LS_TUNE_PAIRS);
    }
    LS_CHECK_EQ(ls_tune_distance(1, 0), 0);
}

static void set_pairs(ls_comm *c, int slow_from, int slow_to)
{
    ls_tune *t = &c->tune;

    t->pairs = 0;
    t->between = (ls_cost_link){25000, 3000, 8.5};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++) {
            ls_tune_pair *p = &t->pair[t->pairs];
            if (i == k)
                continue;
            *p = (ls_tune_pair){i, k, t->between};
            if (i == slow_from && k == slow_to)
                p->link.ns_per_byte *= 20;
            else
                p->link.ns_per_byte *= 1.3; /* noise */
            t->pairs++;
        }
    ls_tune_use(c);
    ls_tune_forget_plans(c);
}

/* The same numbers on all ranks, without a clock. */
static void choose_by_pairs(rank_args *r)
{
    static float values[1 << 17];
    ls_coll coll = coll_of(LS_COLL_ALL_GATHER, 1 << 17, values);
    ls_comm *c = r->comm, *sub = NULL;
    const int some[] = {0, 1, 3};
    ls_tune_table table;

    c->tune.picks = 0;
    set_pairs(c, -1, -1);
    LS_CHECK_NEAR(c->links.slowest.ns_per_byte, 8.5, 0);
    LS_CHECK_NEAR(c->links.around.ns_per_byte, 8.5, 0);
    /* A slow pair that is no neighbour: the ring goes around it. */
    set_pairs(c, 2, 0);
    LS_CHECK_NEAR(c->links.slowest.ns_per_byte, 170, 0);
    LS_CHECK_NEAR(c->links.around.ns_per_byte, 8.5, 0);
    LS_CHECK_STR(ls_comm_way(c, &coll), "ring");
    ls_tune_explain(c, &coll, &table);
    for (int i = 0; i < table.count; i++)
        if (i != table.chosen && !table.rows[i].refuses)
            LS_CHECK(table.rows[i].predicted_ns > 5 * table.rows[table.chosen].predicted_ns);
    LS_CHECK_OK(ls_comm_run(c, &coll, ls_test_soon()));
    /* Ranks without that pair do not pay for it. */
    if (r->rank != 2)
        LS_CHECK_OK(ls_comm_sub(c, some, 3, ls_test_soon(), &sub));
    else
        LS_CHECK_OK(ls_comm_sub(c, NULL, 0, ls_test_soon(), &sub));
    if (sub) {
        LS_CHECK_NEAR(sub->links.slowest.ns_per_byte, 8.5, 0);
        LS_CHECK_NEAR(sub->links.around.ns_per_byte, 8.5, 0);
        ls_comm_close(sub);
    }
    /* A slow neighbour: the ring waits for it. */
    set_pairs(c, 1, 2);
    LS_CHECK_NEAR(c->links.around.ns_per_byte, 170, 0);
    LS_CHECK_NEAR(c->links.slowest.ns_per_byte, 170, 0);
}

LS_TEST_SECONDS(a_slow_pair_counts_for_schedules_that_use_it, 60)
{
    use_cache("cache");
    run_job(4, 1, choose_by_pairs);
}

/* --- levels -----------------------------------------------------------------------------------*/

/* Where levels begin follows from the numbers, on all ranks alike; both ways sum right. */
static void begin_levels(rank_args *r)
{
    static float values[5000];
    ls_comm *c = r->comm;
    char text[64];

    for (int slow = 0; slow < 2; slow++) {
        ls_cost_link links[2] = {{25000, 3000, 8.5}, {400, 200, 0.1}};
        c->tune.pairs = 0;
        c->tune.memory = (ls_cost_memory){
            .meet_ns = slow ? 1e7 : 200, .cached_ns_per_byte = 0.1, .ns_per_byte = 0.1};
        c->tune.has_between = false;
        LS_CHECK_OK(ls_tune_agree(c, links, ls_test_soon()));
        snprintf(text, sizeof text, "%lld", (long long)c->links.levels_bytes);
        check_same(r, 0, text);
        LS_CHECK_EQ(c->links.levels_bytes == 256 << 10, slow);
        LS_CHECK(slow || c->links.levels_bytes <= 8192);
        ls_coll coll = coll_of(LS_COLL_ALL_REDUCE, 5000, values);
        LS_CHECK_EQ(strcmp(ls_comm_way(c, &coll), "levels") == 0, !slow);
        for (int forced = 0; forced < 2; forced++) {
            LS_CHECK_OK(ls_comm_force(c, forced ? "levels" : NULL));
            LS_CHECK(!forced || strcmp(ls_comm_way(c, &coll), "levels") == 0);
            for (int i = 0; i < 5000; i++)
                values[i] = 1;
            LS_CHECK_OK(ls_comm_run(c, &coll, ls_test_soon()));
            for (int i = 0; i < 5000; i++)
                LS_CHECK_EQ(values[i], r->ranks);
        }
        coll.count = 16 * r->ranks - 1; /* not every rank would have a part */
        LS_CHECK(strcmp(ls_comm_way(c, &coll), "levels") != 0);
        LS_CHECK_OK(ls_comm_force(c, NULL));
    }
}

LS_TEST_SECONDS(levels_begin_where_the_model_says, 60)
{
    use_cache("cache");
    run_job(2, 2, begin_levels);
    run_job(2, 3, begin_levels);
}

/* --- a rank that goes away while others measure -----------------------------------------------*/

typedef struct outcome {
    ls_status status;
    int64_t took_ns;
    char text[256];
} outcome;

/* The last rank meets the others and then does not measure: it is gone, or stands still. */
static void lose_rank(int signal_number, int64_t wait_ms)
{
    enum { N = 3 };
    uint8_t secret[LS_COMM_SECRET_BYTES] = {9};
    outcome *seen = ls_ranks_shared(N * sizeof *seen);
    int pids[N], status;
    job j = {.nodes = N, .per_node = 1};

    make_job(&j);
    for (int r = 0; r < N; r++) {
        ls_comm_args args = {.rank = r,
                             .ranks = N,
                             .generation = 3,
                             .members = j.members,
                             .segment_fd = -1,
                             .listen_fd = j.listen[r],
                             .secret = secret,
                             .transport = "auto"};
        ls_fabric *fabric;
        ls_comm *comm;
        pids[r] = fork();
        LS_CHECK(pids[r] >= 0);
        if (pids[r] > 0)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int i = 0; i < N; i++) /* a port is closed when its rank is gone */
            if (i != r)
                ls_sock_close(&j.listen[i]);
        int64_t begin = ls_time_now_ns();
        if (r == N - 1) {
            LS_CHECK_OK(ls_fabric_open(&fabric, &args, ls_test_soon()));
            raise(signal_number);
            _exit(1);
        }
        seen[r].status = ls_comm_open(&comm, &args, ls_ranks_in_ms(wait_ms));
        seen[r].took_ns = ls_time_now_ns() - begin;
        snprintf(seen[r].text, sizeof seen[r].text, "%.255s", ls_err_last()->text);
        _exit(0);
    }
    for (int r = 0; r < N; r++)
        ls_sock_close(&j.listen[r]);
    for (int r = 0; r < N - 1; r++)
        LS_CHECK_EQ(waitpid(pids[r], &status, 0), pids[r]);
    kill(pids[N - 1], SIGKILL);
    LS_CHECK_EQ(waitpid(pids[N - 1], &status, 0), pids[N - 1]);
    for (int r = 0; r < N - 1; r++) {
        LS_CHECK(seen[r].status == LS_EPEER || seen[r].status == LS_EDEADLINE);
        LS_CHECK(seen[r].took_ns < ls_test_ms(signal_number == SIGKILL ? 5000 : wait_ms + 5000));
        if (!strstr(seen[r].text, "rank 2") && !strstr(seen[r].text, "host2"))
            ls_test_fail(__FILE__, __LINE__, "rank %d says: %s", r, seen[r].text);
    }
}

LS_TEST_SECONDS(a_rank_killed_while_links_are_measured_is_named, 60)
{
    use_cache("cache");
    lose_rank(SIGKILL, 20000);
}

LS_TEST_SECONDS(a_rank_stopped_while_links_are_measured_is_named, 60)
{
    use_cache("cache");
    lose_rank(SIGSTOP, 3000);
}

static void measure_in_flight(rank_args *r)
{
    float values[16] = {1};
    ls_coll coll = coll_of(LS_COLL_ALL_REDUCE, 16, values);
    ls_comm_request request;

    /* Rank 0 waits for the others, which do not ask before it said so. */
    if (r->rank == 0) {
        LS_CHECK_OK(ls_comm_start(r->comm, &coll, &request));
        LS_CHECK_FAILS(ls_tune_measure(r->comm, ls_test_soon()), LS_EUSAGE,
                       "while 1 collectives are in flight");
        r->seen[0][0][0] = 1;
        LS_CHECK_OK(ls_comm_wait(r->comm, request, ls_test_soon()));
    } else {
        while (!((volatile char *)r->seen[0][0])[0])
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        LS_CHECK_OK(ls_comm_run(r->comm, &coll, ls_test_soon()));
    }
}

LS_TEST_SECONDS(links_are_not_measured_under_way, 60)
{
    use_cache("cache");
    run_job(2, 1, measure_in_flight);
}

static void have_nothing(rank_args *r)
{
    LS_CHECK(ls_tune_of(r->comm)->off);
    LS_CHECK_EQ(ls_tune_of(r->comm)->source, LS_TUNE_ASSUMED);
}

LS_TEST_SECONDS(tuning_can_be_switched_off, 60)
{
    use_cache("cache");
    setenv("LINESHAFT_TUNE", "off", 1);
    run_job(2, 1, have_nothing);
    LS_CHECK(!ls_file_exists("cache"));
}

static void have_no_file(rank_args *r)
{
    LS_CHECK_EQ(ls_tune_of(r->comm)->source, LS_TUNE_MEASURED);
    LS_CHECK_EQ(ls_log_count(LS_LOG_WARN), 0);
}

LS_TEST_SECONDS(a_home_that_cannot_be_written_hurts_nobody, 60)
{
    unsetenv("LINESHAFT_TUNE");
    setenv("XDG_CACHE_HOME", "/proc/1/nothing", 1);
    run_job(2, 1, have_no_file);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    run_job(2, 1, have_no_file);
}

/* --- files ------------------------------------------------------------------------------------*/

static void fill(ls_tune *t)
{
    ls_tune_init(t);
    t->has_between = true;
    t->between = (ls_cost_link){41000.125, 0.1, 8.6};
    t->has_memory = true;
    t->memory = (ls_cost_memory){
        .meet_ns = 180.5, .cached_ns_per_byte = 0.0625, .ns_per_byte = 0.11, .crowded = true};
    t->pairs = 2;
    t->pair[0] = (ls_tune_pair){0, 1, {40500, 2500, 8.6}};
    t->pair[1] = (ls_tune_pair){1, 0, {40600, 2500, 77.25}};
    t->picks = 2;
    t->pick[0] = (ls_tune_pick){LS_COLL_ALL_REDUCE, 4, 4, 65536, "ring", "halving", 5, 6, false};
    t->pick[1] = (ls_tune_pick){LS_COLL_BROADCAST, 4, 2, 12, "tree", "ring", 7, 8.5, false};
}

LS_TEST(tune_file_comes_back)
{
    ls_tune t, back;

    fill(&t);
    LS_CHECK_OK(ls_tune_file_write("deep/er/x.json", "here", &t));
    ls_tune_init(&back);
    LS_CHECK_OK(ls_tune_file_read("deep/er/x.json", "here", &back));
    LS_CHECK_EQ(back.source, LS_TUNE_REMEMBERED);
    LS_CHECK(back.has_between && !back.has_inside);
    LS_CHECK(memcmp(&back.between, &t.between, sizeof t.between) == 0);
    LS_CHECK(memcmp(&back.inside, &t.inside, sizeof t.inside) == 0);
    LS_CHECK(back.has_memory && back.memory.crowded);
    LS_CHECK_NEAR(back.memory.cached_ns_per_byte, 0.0625, 0);
    LS_CHECK_NEAR(back.memory.meet_ns, 180.5, 0);
    LS_CHECK_EQ(back.pairs, 2);
    LS_CHECK_EQ(back.picks, 2);
    for (int i = 0; i < 2; i++) {
        LS_CHECK(memcmp(&back.pair[i], &t.pair[i], sizeof t.pair[i]) == 0);
        LS_CHECK_STR(back.pick[i].way, t.pick[i].way);
        LS_CHECK_STR(back.pick[i].other, t.pick[i].other);
        LS_CHECK_EQ(back.pick[i].bytes, t.pick[i].bytes);
        LS_CHECK_EQ(back.pick[i].kind, t.pick[i].kind);
        LS_CHECK_EQ(back.pick[i].size, t.pick[i].size);
        LS_CHECK_NEAR(back.pick[i].other_ns, t.pick[i].other_ns, 0);
        LS_CHECK(back.pick[i].remembered);
    }
    LS_CHECK_FAILS(ls_tune_file_read("deep/er/x.json", "there", &back), LS_EDATA,
                   "of another topology");
    LS_CHECK_FAILS(ls_tune_file_read("deep/er/y.json", "here", &back), LS_EIO, "y.json");
}

static void put(const char *text, size_t len)
{
    LS_CHECK_OK(ls_file_write_atomic("x.json", text, len));
}

LS_TEST(damaged_tune_file_is_refused)
{
    static const struct {
        const char *from, *to, *says;
    } wrongs[] = {
        {"lineshaft-tune", "something-else", "not a file of link numbers"},
        {"41000.125", "-1", "no sensible numbers"},
        {"41000.125", "1e300", "no sensible numbers"},
        {"41000.125", "\"x\"", "no sensible numbers"},
        {"\"ring\"", "\"rung\"", "a pick makes no sense"},
        {"\"ring\"", "\"dissemination\"", "a pick makes no sense"},
        {"\"all_reduce\"", "\"all_seduce\"", "a pick makes no sense"},
        {"65536", "-65536", "a pick makes no sense"},
        {"\"picks\"", "\"packs\"", "no list of picks"},
        {"180.5", "-180.5", "the memory has no sensible numbers"},
        {"\"crowded\": true", "\"crowded\": 7", "the memory has no sensible numbers"},
        {"77.25", "\"fast\"", "a pair of nodes has no sensible numbers"},
        {"\"to\": 1", "\"to\": 99999", "a pair of nodes has no sensible numbers"},
        {"\"pairs\": [", "\"pairs\": 3, \"x\": [", "a pair of nodes has no sensible numbers"},
        {"{", "{{", "not JSON"},
    };
    ls_tune t, back;
    ls_str text, bad;

    fill(&t);
    ls_str_init(&text);
    ls_str_init(&bad);
    LS_CHECK_OK(ls_tune_file_write("x.json", "here", &t));
    LS_CHECK_OK(ls_file_read("x.json", 1 << 20, &text));
    ls_tune_init(&back);
    for (size_t len = 0; len + 2 < text.len; len++) {
        put(text.p, len);
        LS_CHECK_FAILS(ls_tune_file_read("x.json", "here", &back), LS_EDATA, "x.json");
    }
    for (size_t i = 0; i < LS_COUNT(wrongs); i++) {
        const char *at = strstr(text.p, wrongs[i].from);
        LS_CHECK(at);
        ls_str_clear(&bad);
        ls_str_append_bytes(&bad, text.p, (size_t)(at - text.p));
        ls_str_append(&bad, wrongs[i].to);
        ls_str_append(&bad, at + strlen(wrongs[i].from));
        put(bad.p, bad.len);
        LS_CHECK_FAILS(ls_tune_file_read("x.json", "here", &back), LS_EDATA, wrongs[i].says);
    }
    LS_CHECK_EQ(back.source, LS_TUNE_ASSUMED); /* outputs only on success */
    LS_CHECK_EQ(back.picks, 0);
    ls_str_release(&text);
    ls_str_release(&bad);
}

/* Hosts stand in the file in order of their names, whatever numbers they had in a job. */
static void number_pairs(rank_args *r)
{
    ls_tune t;

    ls_tune_init(&t);
    t.pairs = 3;
    t.pair[0] = (ls_tune_pair){0, 1, {1, 1, 1}};
    t.pair[1] = (ls_tune_pair){2, 0, {2, 2, 2}};
    t.pair[2] = (ls_tune_pair){2, 7, {3, 3, 3}}; /* there is no such node */
    for (int i = 0; i < 3; i++)
        snprintf(r->comm->fabric->members[i].host, sizeof r->comm->fabric->members[i].host, "%c",
                 "cab"[i]);
    LS_CHECK_OK(ls_tune_file_number(r->comm, &t, LS_TUNE_POSITIONS));
    LS_CHECK_EQ(t.pairs, 2);
    LS_CHECK(t.pair[0].from == 2 && t.pair[0].to == 0);
    LS_CHECK(t.pair[1].from == 1 && t.pair[1].to == 2);
    LS_CHECK_OK(ls_tune_file_number(r->comm, &t, LS_TUNE_NODES));
    LS_CHECK_EQ(t.pairs, 2);
    LS_CHECK(t.pair[0].from == 0 && t.pair[0].to == 1);
    LS_CHECK(t.pair[1].from == 2 && t.pair[1].to == 0);
    LS_CHECK_NEAR(t.pair[1].link.alpha_ns, 2, 0);
}

LS_TEST_SECONDS(pairs_are_kept_by_the_names_of_hosts, 60)
{
    use_cache("cache");
    run_job(3, 1, number_pairs);
}

static void warn_once(rank_args *r)
{
    LS_CHECK_EQ(ls_log_count(LS_LOG_WARN), r->rank == 0);
    LS_CHECK_EQ(ls_tune_of(r->comm)->source, LS_TUNE_MEASURED);
    meet(r);
    if (r->rank == 0) { /* and it is replaced */
        char topology[LS_TUNE_TOPOLOGY];
        ls_tune back;
        ls_tune_init(&back);
        LS_CHECK_OK(ls_tune_file_topology(r->comm, topology));
        LS_CHECK_OK(ls_tune_file_read(ls_tune_of(r->comm)->path, topology, &back));
    }
}

static void damage_it(rank_args *r)
{
    const char *path = ls_tune_of(r->comm)->path;

    if (r->rank == 0)
        LS_CHECK_OK(ls_file_write_atomic(path, "{\"format\":", 10));
}

LS_TEST_SECONDS(damaged_tune_file_is_ignored_with_a_warning, 60)
{
    use_cache("cache");
    run_job(2, 1, damage_it);
    run_job(2, 1, warn_once);
}

LS_TEST(tune_file_without_memory_fails_cleanly)
{
    ls_tune t, back;

    fill(&t);
    LS_CHECK_OK(ls_tune_file_write("x.json", "here", &t));
    for (int n = 1;; n++) {
        ls_tune_init(&back);
        ls_mem_fail_nth((uint64_t)n);
        bool wrote = ls_tune_file_write("y.json", "here", &t) == LS_OK;
        ls_mem_fail_nth((uint64_t)n);
        bool read = ls_tune_file_read("x.json", "here", &back) == LS_OK;
        ls_mem_fail_nth(0);
        LS_CHECK(read || back.source == LS_TUNE_ASSUMED);
        if (wrote && read && n > 3)
            break;
    }
}
