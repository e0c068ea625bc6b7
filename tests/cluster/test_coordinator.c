/* test_coordinator.c -- the coordinator's rules over nodes, played through without a process: what it
 * tells whom, and random lives of nodes and workers in any order. */
#include "harness.h"
#include <signal.h>
#include <string.h>
#include "base/mem.h"
#include "base/rng.h"
#include "base/time.h"
#include "cluster/member/coordinator.h"

enum { NODES = 64, WORKERS = 3 };

/* What a node has heard. */
typedef struct inbox {
    int views, revokes, regroups, called;
    bool expelled;
    ls_view_verdict verdict[WORKERS];
    int ranks, nodes, joined, source;
    int32_t rank[WORKERS];
    uint64_t generation;
    int64_t base, lost_ns, noticed_ns;
    char cause[LS_MEMBER_MESSAGE_TEXT], why[LS_MEMBER_MESSAGE_TEXT];
    ls_roster roster;
} inbox;

typedef struct cluster {
    ls_coordinator *p;
    inbox inboxes[NODES];
    bool stopped;
    int code;
    char why[640];
    int64_t now;
    uint32_t serial;
    int remembered;
} cluster;

static void hear(void *context, int node, const ls_member_message *word)
{
    inbox *e = &((cluster *)context)->inboxes[node];
    ls_str bytes;
    ls_member_message got;

    ls_str_init(&bytes);
    ls_member_message_encode(word, &bytes); /* as it would travel */
    LS_CHECK_OK(ls_member_message_decode(&got, bytes.p, bytes.len));
    LS_CHECK_OK(ls_member_message_unpack(&got, &e->roster));
    ls_str_release(&bytes);
    LS_CHECK_EQ(got.kind, word->kind);
    e->revokes += got.kind == LS_MEMBER_MESSAGE_REVOKE;
    e->regroups += got.kind == LS_MEMBER_MESSAGE_REGROUP;
    if (got.kind == LS_MEMBER_MESSAGE_VERDICT)
        e->verdict[got.worker] = got.verdict;
    if (got.kind == LS_MEMBER_MESSAGE_VIEW) {
        e->views++;
        LS_CHECK(got.view.plan.generation > e->generation);
        e->generation = got.view.plan.generation;
        e->ranks = got.members.ranks;
        e->nodes = got.members.nodes;
        e->joined = got.view.plan.joined;
        e->base = got.view.plan.base;
        e->source = got.view.plan.source;
        e->lost_ns = got.view.lost_ns;
        e->noticed_ns = got.view.noticed_ns;
        LS_CHECK_EQ(got.members.generation, e->generation);
        LS_CHECK_EQ(got.view.plan.ranks, e->ranks);
        memcpy(e->rank, got.rank, sizeof e->rank);
        memcpy(e->cause, got.view.cause, sizeof e->cause);
    }
    ls_member_message_release(&got);
}

static void call(void *context, int node)
{
    ((cluster *)context)->inboxes[node].called++;
}

static void expel(void *context, int node, const char *why)
{
    inbox *e = &((cluster *)context)->inboxes[node];

    e->expelled = true;
    snprintf(e->why, sizeof e->why, "%s", why);
}

static void stop(void *context, int node, int code, const ls_err_record *why)
{
    cluster *t = context;

    (void)node;
    LS_CHECK(!t->stopped);
    t->stopped = true;
    t->code = code;
    snprintf(t->why, sizeof t->why, "%s", why->text);
}

static void open_cluster(cluster *t, ls_coordinator_args how)
{
    *t = (cluster){.now = 1000 * LS_NS_PER_S};
    how.rules.least = how.rules.least ? how.rules.least : 1;
    how.tell = hear;
    how.call = call;
    how.expel = expel;
    how.stop = stop;
    how.context = t;
    LS_CHECK_OK(ls_coordinator_open(&t->p, &how));
}

static void close_cluster(cluster *t)
{
    ls_coordinator_close(t->p);
    for (int i = 0; i < NODES; i++)
        ls_roster_release(&t->inboxes[i].roster);
}

static void join(cluster *t, int node, int workers, bool begins)
{
    char host[16];

    snprintf(host, sizeof host, "h%d", node);
    LS_CHECK_OK(ls_coordinator_joins(t->p, node, host, "10.0.0.1", workers, begins));
    ls_coordinator_do_due(t->p, t->now);
}

static void report_as(cluster *t, int node, int worker, int64_t have,
                      const ls_config_digest *config_digest)
{
    ls_member_message w = {.kind = LS_MEMBER_MESSAGE_REPORT,
                           .worker = worker,
                           .why = "a connection ended",
                           .report = {.have = have,
                                      .reached = have,
                                      .met = have,
                                      .port = 4000 + node,
                                      .serial = ++t->serial}};

    if (config_digest)
        w.config_digest = *config_digest;
    ls_coordinator_handle_message(t->p, node, &w, t->now);
    ls_coordinator_do_due(t->p, t->now);
}

static void report(cluster *t, int node, int worker, int64_t have)
{
    report_as(t, node, worker, have, NULL);
}

static void say(cluster *t, int node, int worker, ls_member_message_kind kind)
{
    const ls_member_message w = {.kind = kind, .worker = worker};

    ls_coordinator_handle_message(t->p, node, &w, t->now);
    ls_coordinator_do_due(t->p, t->now);
}

static void crash(cluster *t, int node, int worker)
{
    const ls_member_message w = {.kind = LS_MEMBER_MESSAGE_ENDED,
                                 .worker = worker,
                                 .signal = SIGKILL,
                                 .code = 137,
                                 .why = "it was killed"};

    t->inboxes[node].verdict[worker] = LS_VIEW_LATER;
    ls_coordinator_handle_message(t->p, node, &w, t->now);
    ls_coordinator_do_due(t->p, t->now);
}

static void lose(cluster *t, int node)
{
    ls_coordinator_lose_node(t->p, node, "its connection ended", 2 * LS_NS_PER_S, t->now);
    ls_coordinator_do_due(t->p, t->now);
}

/* Nodes 0 .. n-1 with so many workers each, in their first view. */
static void begin(cluster *t, ls_coordinator_args how, int n, int workers)
{
    open_cluster(t, how);
    for (int i = 0; i < n; i++)
        join(t, i, workers, true);
    for (int i = n - 1; i >= 0; i--)
        for (int k = 0; k < workers; k++)
            report(t, i, k, -1);
    for (int i = 0; i < n; i++) {
        LS_CHECK_EQ(t->inboxes[i].views, 1);
        LS_CHECK_EQ(t->inboxes[i].ranks, n * workers);
        LS_CHECK_EQ(t->inboxes[i].nodes, n);
        for (int k = 0; k < workers; k++) {
            LS_CHECK_EQ(t->inboxes[i].rank[k], i * workers + k);
            say(t, i, k, LS_MEMBER_MESSAGE_READY);
        }
    }
}

/* It has waited in vain for a connection to this rank. */
static void miss(cluster *t, int node, int64_t have, int unreached)
{
    const ls_member_message w = {.kind = LS_MEMBER_MESSAGE_REPORT,
                                 .why = "1 rank did not connect in time",
                                 .report = {.have = have,
                                            .reached = have,
                                            .met = have,
                                            .port = 4000 + node,
                                            .serial = ++t->serial,
                                            .unreached = unreached + 1}};

    ls_coordinator_handle_message(t->p, node, &w, t->now);
    ls_coordinator_do_due(t->p, t->now);
}

LS_TEST(coordinator_parts_nodes_that_do_not_reach_each_other)
{
    cluster t;
    char why[200];

    begin(&t, (ls_coordinator_args){.rules = {.restarts = 1}, .cool_ns = 60 * LS_NS_PER_S}, 4, 1);
    miss(&t, 1, 5, 2); /* only one of the two says it: the other hears that the view is given up */
    report(&t, 0, 0, 5);
    report(&t, 3, 0, 5);
    LS_CHECK_EQ(t.inboxes[0].views, 1);
    report(&t, 2, 0, 5);
    LS_CHECK(t.inboxes[2].expelled && !t.inboxes[1].expelled);
    LS_CHECK_STR(t.inboxes[2].why, "h1 and h2 do not reach each other");
    LS_CHECK_EQ(t.inboxes[0].ranks, 3);
    LS_CHECK_EQ(t.inboxes[3].rank[0], 2);
    LS_CHECK_STR(t.inboxes[0].cause, "h1 and h2 do not reach each other");
    LS_CHECK(ls_coordinator_excludes(t.p, "h2", t.now, why, sizeof why));
    LS_CHECK(strstr(why, "did not reach each other"));
    LS_CHECK(!ls_coordinator_excludes(t.p, "h2", t.now + 61 * LS_NS_PER_S, why, sizeof why));
    /* Rank 2 is node 3 now. The coordinator's own node stays, whoever names it. */
    miss(&t, 3, 6, 0);
    report(&t, 1, 0, 6);
    report(&t, 0, 0, 6);
    LS_CHECK(t.inboxes[3].expelled && !t.inboxes[0].expelled);
    LS_CHECK_EQ(t.inboxes[0].ranks, 2);
    LS_CHECK(!t.stopped);
    close_cluster(&t);
}

/* A view in which two nodes did not find each other is a part of the same loss. */
LS_TEST(coordinator_counts_from_the_first_loss_until_ranks_train)
{
    cluster t;

    begin(&t, (ls_coordinator_args){.rules = {.restarts = 9}}, 4, 1);
    crash(&t, 1, 0);
    for (int i = 0; i < 4; i++)
        report(&t, i, 0, i == 1 ? -1 : 5);
    LS_CHECK_EQ(t.inboxes[0].views, 2);
    t.now += 60 * LS_NS_PER_S; /* nobody was ready */
    miss(&t, 1, 5, 2);
    for (int i = 0; i < 4; i++)
        if (i != 1)
            report(&t, i, 0, 5);
    LS_CHECK(t.inboxes[2].expelled);
    LS_CHECK_EQ(t.inboxes[0].lost_ns, 60 * LS_NS_PER_S);
    LS_CHECK_EQ(t.inboxes[0].noticed_ns, 60 * LS_NS_PER_S);
    say(&t, 0, 0, LS_MEMBER_MESSAGE_READY);
    t.now += 60 * LS_NS_PER_S; /* of training */
    crash(&t, 1, 0);
    for (int i = 0; i < 4; i++)
        if (i != 2)
            report(&t, i, 0, i == 1 ? -1 : 7);
    LS_CHECK_EQ(t.inboxes[0].views, 4);
    LS_CHECK_EQ(t.inboxes[0].lost_ns, 0);
    close_cluster(&t);
}

LS_TEST(coordinator_parts_the_node_that_most_do_not_reach)
{
    cluster t;

    begin(&t, (ls_coordinator_args){.rules = {.restarts = 1}}, 4, 1);
    miss(&t, 3, 5, 1);
    miss(&t, 2, 5, 1);
    miss(&t, 1, 5, 2);
    report(&t, 0, 0, 5);
    LS_CHECK(t.inboxes[1].expelled && !t.inboxes[2].expelled && !t.inboxes[3].expelled);
    LS_CHECK_EQ(t.inboxes[0].ranks, 3);
    /* One that is dead, or was started again, is missed by all; nobody goes for it. */
    crash(&t, 3, 0);
    miss(&t, 2, 6, 2);
    report(&t, 0, 0, 6);
    report(&t, 3, 0, -1);
    LS_CHECK_EQ(t.inboxes[0].ranks, 3);
    LS_CHECK(!t.inboxes[2].expelled && !t.inboxes[3].expelled);
    close_cluster(&t);
}

LS_TEST(coordinator_names_hosts_that_never_reached_each_other)
{
    cluster t;

    open_cluster(&t, (ls_coordinator_args){.rules = {.restarts = 1}});
    for (int i = 0; i < 3; i++)
        join(&t, i, 1, true);
    for (int i = 0; i < 3; i++)
        report(&t, i, 0, -1);
    LS_CHECK_EQ(t.inboxes[0].views, 1);
    report(&t, 0, 0, -1);
    miss(&t, 2, -1, 1);
    LS_CHECK(!t.stopped);
    report(&t, 1, 0, -1);
    LS_CHECK(t.stopped);
    LS_CHECK_EQ(t.code, ls_err_exit_code(LS_EDEADLINE));
    LS_CHECK_STR(t.why, "h1 and h2 do not reach each other");
    close_cluster(&t);
}

LS_TEST(coordinator_heals_a_worker_of_another_node)
{
    cluster t;

    begin(&t, (ls_coordinator_args){.rules = {.restarts = 1}}, 3, 2);
    crash(&t, 2, 1);
    LS_CHECK_EQ(t.inboxes[2].verdict[1], LS_VIEW_RESTART);
    for (int i = 0; i < 3; i++)
        LS_CHECK_EQ(t.inboxes[i].revokes, 1);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++)
            report(&t, i, k, i == 2 && k == 1 ? -1 : i == 1 ? 8 : 7);
    LS_CHECK_EQ(t.inboxes[0].generation, 2);
    LS_CHECK_EQ(t.inboxes[0].base, 8);
    LS_CHECK_EQ(t.inboxes[0].source, 2);
    LS_CHECK_STR(t.inboxes[0].cause, "it was killed");
    crash(&t, 2, 1); /* once more: without it */
    LS_CHECK_EQ(t.inboxes[2].verdict[1], LS_VIEW_DROP);
    for (int i = 0; i < 5; i++)
        report(&t, i / 2, i % 2, 9);
    LS_CHECK_EQ(t.inboxes[1].ranks, 5);
    LS_CHECK_EQ(t.inboxes[2].rank[1], -1);
    close_cluster(&t);
}

LS_TEST(coordinator_goes_on_without_a_node)
{
    cluster t;

    begin(&t, (ls_coordinator_args){.rules = {.restarts = 1}}, 3, 2);
    report(&t, 0, 0, 5); /* a worker whose connections end does not know why */
    LS_CHECK_EQ(t.inboxes[2].revokes, 1);
    lose(&t, 1);
    report(&t, 0, 1, 5);
    report(&t, 2, 0, 5);
    report(&t, 2, 1, 5);
    LS_CHECK_EQ(t.inboxes[0].ranks, 4);
    LS_CHECK_EQ(t.inboxes[0].nodes, 2);
    LS_CHECK_EQ(t.inboxes[2].rank[0], 2);
    LS_CHECK_STR(t.inboxes[0].cause, "its connection ended");
    report(&t, 1, 0, 5); /* it is nobody any more */
    crash(&t, 1, 0);
    LS_CHECK(!t.stopped);
    LS_CHECK_EQ(t.inboxes[0].views, 2);
    lose(&t, 2);
    report(&t, 0, 0, 6);
    report(&t, 0, 1, 6);
    LS_CHECK_EQ(t.inboxes[0].ranks, 2);
    LS_CHECK_EQ(t.inboxes[0].nodes, 1);
    close_cluster(&t);
}

static void stand(cluster *t, int node, int worker, int rank, bool out)
{
    const ls_member_message w = {.kind = LS_MEMBER_MESSAGE_RESUME,
                                 .worker = worker,
                                 .past = {.generation = 7, .begun = true, .reached = 20},
                                 .stood = rank,
                                 .out = out};

    ls_coordinator_handle_message(t->p, node, &w, t->now);
    ls_coordinator_do_due(t->p, t->now);
}

/* Nodes 0 to 2 of two workers each in generation 7; node 1 coordinates now, and node 0 is lost. */
static void take_over_after(cluster *t, ls_coordinator_args how, const ls_view_past *past)
{
    open_cluster(t, how);
    for (int i = 0; i < 3; i++) {
        join(t, i, 2, true);
        for (int k = 0; k < 5; k++) /* names of the one before */
            LS_CHECK_OK(ls_roster_add(&t->inboxes[i].roster, "former", "10.9.9.9"));
    }
    ls_coordinator_resume(t->p, past, "it is lost", LS_NS_PER_S, t->now);
    lose(t, 0);
    LS_CHECK_EQ(t->inboxes[1].revokes, 1);
    ls_coordinator_send_missed(t->p, 2); /* a node that came later hears it, too */
    LS_CHECK_EQ(t->inboxes[2].revokes, 2);
}

static void take_over(cluster *t, ls_coordinator_args how)
{
    take_over_after(t, how, &(ls_view_past){.generation = 7, .begun = true, .reached = 20});
}

LS_TEST(coordinator_takes_a_job_over)
{
    cluster t;

    take_over(&t, (ls_coordinator_args){.rules = {.restarts = 1}, .self = 1});
    stand(&t, 1, 0, 2, false);
    stand(&t, 1, 1, -1, true); /* was given up long ago */
    report(&t, 1, 0, 21);
    for (int k = 0; k < 2; k++) {
        LS_CHECK_EQ(t.inboxes[1].views, 0);
        stand(&t, 2, k, 3 + k, false);
        report(&t, 2, k, 20);
    }
    LS_CHECK_EQ(t.inboxes[1].generation, 8);
    LS_CHECK_EQ(t.inboxes[2].roster.nodes, 3); /* all names are told anew */
    LS_CHECK(strcmp(t.inboxes[2].roster.host, "former") != 0);
    LS_CHECK(t.inboxes[1].ranks == 3 && t.inboxes[1].nodes == 2 && t.inboxes[2].rank[0] == 1);
    LS_CHECK(t.inboxes[1].base == 21 && t.inboxes[1].source == 0);
    LS_CHECK_EQ(t.inboxes[1].rank[1], -1);
    LS_CHECK_STR(t.inboxes[1].cause, "it is lost");
    LS_CHECK_EQ(t.inboxes[1].noticed_ns, LS_NS_PER_S);
    LS_CHECK(ls_coordinator_view(t.p)->begun && !t.stopped);
    say(&t, 2, 0, LS_MEMBER_MESSAGE_READY);
    crash(&t, 2, 0);
    LS_CHECK_EQ(t.inboxes[2].verdict[0], LS_VIEW_RESTART);
    close_cluster(&t);
}

LS_TEST(coordinator_that_takes_over_knows_whether_the_first_rank_lives)
{
    for (int lives = 0; lives < 2; lives++) {
        cluster t;
        take_over(&t, (ls_coordinator_args){.self = 1});
        stand(&t, 2, 0, lives ? 0 : 4, false);
        LS_CHECK_EQ(ls_coordinator_view(t.p)->first_lost, !lives);
        close_cluster(&t);
    }
}

/* A spare beside ranks that hold one model between them has seen no view, and does not know that
 * there was one: the nodes that come back know. */
LS_TEST(coordinator_of_a_spare_takes_a_job_over)
{
    cluster t;

    take_over_after(&t, (ls_coordinator_args){.rules = {.restarts = 1, .unit = 2}, .self = 1},
                    &(ls_view_past){.reached = -1});
    LS_CHECK(!ls_coordinator_view(t.p)->begun);
    for (int k = 0; k < 2; k++)
        report(&t, 1, k, -1);
    for (int k = 0; k < 2; k++) {
        LS_CHECK_EQ(t.inboxes[1].views, 0);
        stand(&t, 2, k, k, false);
        report(&t, 2, k, 20);
    }
    LS_CHECK_EQ(t.inboxes[2].generation, 8);
    LS_CHECK(ls_coordinator_view(t.p)->begun && ls_coordinator_view(t.p)->reached == 20);
    LS_CHECK(t.inboxes[1].ranks == 4 && t.inboxes[1].base == 20 && t.inboxes[1].source == 2);
    close_cluster(&t);
}

LS_TEST(coordinator_that_takes_over_ends_with_too_few)
{
    cluster t;

    open_cluster(&t, (ls_coordinator_args){.min_nodes = 2, .self = 1});
    join(&t, 0, 1, true);
    join(&t, 1, 1, true);
    ls_coordinator_resume(t.p, &(ls_view_past){.generation = 3, .begun = true}, "it is lost", 0,
                          t.now);
    lose(&t, 0);
    LS_CHECK(t.stopped && strstr(t.why, "the run needs 1 on 2"));
    close_cluster(&t);
}

/* Generations of a quorum that is slow, and skips one. */
static uint64_t slow_agree(void *context, const int *nodes, int n, uint64_t above)
{
    cluster *t = context;

    LS_CHECK(n == t->code && nodes[0] == 0);
    return t->serial < 100 ? 0 : above + 2;
}

LS_TEST(coordinator_makes_no_view_that_others_do_not_accept)
{
    cluster t;

    open_cluster(&t, (ls_coordinator_args){.agree = slow_agree});
    t.code = 2; /* nodes in the view */
    join(&t, 0, 1, true);
    join(&t, 1, 1, true);
    report(&t, 0, 0, -1);
    report(&t, 1, 0, -1);
    LS_CHECK_EQ(t.inboxes[0].views, 0);
    t.serial = 100;
    ls_coordinator_do_due(t.p, t.now);
    LS_CHECK(t.inboxes[0].generation == 2 && t.inboxes[1].generation == 2);
    close_cluster(&t);
}

LS_TEST(coordinator_says_how_long_it_took_to_notice)
{
    cluster t;

    begin(&t, (ls_coordinator_args){.max_nodes = 0}, 2, 1);
    t.now += LS_NS_PER_S;
    lose(&t, 1); /* silent for 2 s by then */
    t.now += LS_NS_PER_S / 2;
    report(&t, 0, 0, 3);
    LS_CHECK_EQ(t.inboxes[0].noticed_ns, 2 * LS_NS_PER_S);
    LS_CHECK_EQ(t.inboxes[0].lost_ns, 2 * LS_NS_PER_S + LS_NS_PER_S / 2);
    close_cluster(&t);
}

LS_TEST(coordinator_stops_at_too_few)
{
    cluster t;

    begin(&t, (ls_coordinator_args){.rules = {.least = 3}}, 2, 2);
    lose(&t, 1);
    LS_CHECK(t.stopped);
    LS_CHECK(strstr(t.why, "its connection ended: 2 ranks on 1 nodes are left, the run needs 3"));
    close_cluster(&t);
    begin(&t, (ls_coordinator_args){.min_nodes = 2}, 2, 2);
    crash(&t, 1, 0);
    LS_CHECK(!t.stopped);
    lose(&t, 1);
    LS_CHECK(t.stopped);
    close_cluster(&t);
}

LS_TEST(coordinator_takes_newcomers_in_at_the_end_of_a_step)
{
    cluster t;

    begin(&t, (ls_coordinator_args){.grow_wait_ns = 60 * LS_NS_PER_S}, 2, 1);
    join(&t, 2, 2, false);
    LS_CHECK_EQ(t.inboxes[2].called, 1);
    report(&t, 2, 0, -1);
    t.now += 100 * LS_NS_PER_S;
    ls_coordinator_do_due(t.p, t.now);
    LS_CHECK_EQ(t.inboxes[0].regroups, 0); /* the other one is on its way */
    report(&t, 2, 1, -1);
    LS_CHECK_EQ(t.inboxes[0].regroups, 1);
    LS_CHECK_EQ(t.inboxes[1].regroups, 1);
    report(&t, 0, 0, 20);
    report(&t, 1, 0, 20);
    LS_CHECK_EQ(t.inboxes[1].revokes, 0); /* nobody was cut off */
    LS_CHECK_EQ(t.inboxes[2].views, 1);
    LS_CHECK_EQ(t.inboxes[2].joined, 2);
    LS_CHECK_EQ(t.inboxes[2].rank[0], 2); /* behind those who were there */
    LS_CHECK_EQ(t.inboxes[0].base, 20);
    LS_CHECK_STR(t.inboxes[0].cause, "joined: h2");
    join(&t, 3, 1, false); /* not so soon */
    report(&t, 3, 0, -1);
    LS_CHECK_EQ(t.inboxes[0].regroups, 1);
    t.now += 59 * LS_NS_PER_S;
    ls_coordinator_do_due(t.p, t.now);
    LS_CHECK_EQ(t.inboxes[0].regroups, 1);
    t.now += 2 * LS_NS_PER_S;
    ls_coordinator_do_due(t.p, t.now);
    LS_CHECK_EQ(t.inboxes[0].regroups, 2);
    close_cluster(&t);
}

LS_TEST(coordinator_takes_newcomers_in_when_others_are_lost)
{
    cluster t;

    begin(&t, (ls_coordinator_args){.grow_wait_ns = 60 * LS_NS_PER_S}, 2, 1);
    join(&t, 2, 1, false);
    report(&t, 2, 0, -1);
    lose(&t, 1);
    report(&t, 0, 0, 4);
    LS_CHECK_EQ(t.inboxes[0].ranks, 2);
    LS_CHECK_EQ(t.inboxes[2].rank[0], 1);
    LS_CHECK_EQ(t.inboxes[2].base, 4);
    close_cluster(&t);
}

LS_TEST(coordinator_survives_guests_that_fail)
{
    ls_member_message w = {
        .kind = LS_MEMBER_MESSAGE_ENDED, .code = 2, .error = true, .why = "rank 9: no such file"};
    cluster t;

    w.record = (ls_err_record){.code = LS_EUSAGE, .text = "no such file"};
    begin(&t, (ls_coordinator_args){.max_nodes = 0}, 2, 1);
    join(&t, 2, 1, false);
    t.inboxes[2].verdict[0] = LS_VIEW_LATER;
    ls_coordinator_handle_message(t.p, 2, &w, t.now);
    LS_CHECK_EQ(t.inboxes[2].verdict[0], LS_VIEW_DROP);
    join(&t, 3, 1, false);
    report(&t, 3, 0, -1);
    LS_CHECK_EQ(t.inboxes[0].regroups, 1); /* the one that failed is not waited for */
    lose(&t, 3);                           /* gone before they met */
    report(&t, 0, 0, 4);
    report(&t, 1, 0, 4);
    LS_CHECK_EQ(t.inboxes[0].ranks, 2);
    LS_CHECK(!t.stopped);
    ls_coordinator_handle_message(t.p, 0, &w, t.now); /* of a member it is the user's mistake */
    LS_CHECK(t.stopped);
    LS_CHECK_EQ(t.code, 2);
    close_cluster(&t);
}

LS_TEST(coordinator_keeps_spares)
{
    cluster t;

    begin(&t, (ls_coordinator_args){.max_nodes = 2}, 2, 1);
    join(&t, 2, 1, false);
    join(&t, 3, 1, false);
    LS_CHECK_EQ(t.inboxes[2].called, 0);
    lose(&t, 1);
    LS_CHECK_EQ(t.inboxes[2].called, 1);
    LS_CHECK_EQ(t.inboxes[3].called, 0);
    report(&t, 0, 0, 4); /* it is not waited for */
    LS_CHECK_EQ(t.inboxes[0].ranks, 1);
    report(&t, 2, 0, -1);
    say(&t, 0, 0, LS_MEMBER_MESSAGE_READY);
    LS_CHECK_EQ(t.inboxes[0].regroups, 1);
    report(&t, 0, 0, 6);
    LS_CHECK_EQ(t.inboxes[0].ranks, 2);
    close_cluster(&t);

    begin(&t, (ls_coordinator_args){.rules = {.least = 2}, .max_nodes = 2}, 2, 1);
    join(&t, 2, 1, false);
    lose(&t, 1);
    LS_CHECK(!t.stopped); /* the run needs it, and waits */
    report(&t, 0, 0, 4);
    LS_CHECK_EQ(t.inboxes[0].views, 1);
    report(&t, 2, 0, -1);
    LS_CHECK_EQ(t.inboxes[0].views, 2);
    LS_CHECK_EQ(t.inboxes[0].ranks, 2);
    close_cluster(&t);
}

LS_TEST(coordinator_sends_spares_home_when_the_work_is_done)
{
    cluster t;

    begin(&t, (ls_coordinator_args){.max_nodes = 2}, 2, 1);
    join(&t, 2, 1, false);
    LS_CHECK(!ls_coordinator_is_idle(t.p, 2));
    say(&t, 0, 0, LS_MEMBER_MESSAGE_LEFT);
    LS_CHECK(ls_coordinator_is_idle(t.p, 2));
    LS_CHECK(!ls_coordinator_is_idle(t.p, 1));
    lose(&t, 1); /* nobody minds */
    LS_CHECK(!t.stopped);
    LS_CHECK_EQ(t.inboxes[2].called, 0);
    close_cluster(&t);
}

/* A node whose work is done may go while others still end theirs: its places count, and nobody
 * speaks to it. */
LS_TEST(coordinator_sends_nothing_to_a_node_that_left_when_its_work_was_done)
{
    cluster t;

    begin(&t, (ls_coordinator_args){.rules = {.restarts = 1}}, 3, 2);
    say(&t, 1, 0, LS_MEMBER_MESSAGE_LEFT);
    lose(&t, 1); /* its other worker was not done */
    LS_CHECK_EQ(t.inboxes[0].revokes, 1);
    LS_CHECK_EQ(t.inboxes[1].revokes, 0);
    crash(&t, 1, 1);
    LS_CHECK_EQ(t.inboxes[1].verdict[1], LS_VIEW_LATER); /* no answer */
    crash(&t, 2, 0);
    LS_CHECK_EQ(t.inboxes[1].revokes, 0);
    close_cluster(&t);
}

LS_TEST(coordinator_excludes_a_host_that_crashes_again)
{
    char why[200];
    cluster t;

    begin(&t,
          (ls_coordinator_args){
              .rules = {.restarts = 5}, .quarantine = 2, .cool_ns = 100 * LS_NS_PER_S},
          3, 2);
    crash(&t, 1, 0);
    LS_CHECK_EQ(t.inboxes[1].verdict[0], LS_VIEW_RESTART);
    for (int i = 0; i < 6; i++)
        report(&t, i / 2, i % 2, i == 2 ? -1 : 3);
    LS_CHECK_EQ(t.inboxes[0].ranks, 6);
    crash(&t, 1, 1);
    LS_CHECK(t.inboxes[1].expelled);
    for (int i = 0; i < 6; i++)
        report(&t, i / 2, i % 2, 4);
    LS_CHECK_EQ(t.inboxes[0].ranks, 4);
    LS_CHECK_STR(t.inboxes[0].cause, "it was killed; in quarantine: h1");
    LS_CHECK(ls_coordinator_excludes(t.p, "h1", t.now, why, sizeof why));
    LS_CHECK(strstr(why, "h1 is in quarantine for 101 s more"));
    LS_CHECK(!ls_coordinator_excludes(t.p, "h2", t.now, why, sizeof why));
    LS_CHECK(!ls_coordinator_excludes(t.p, "h1", t.now + 100 * LS_NS_PER_S, why, sizeof why));
    crash(&t, 0, 0);
    for (int i = 0; i < 4; i++)
        report(&t, i / 2 * 2, i % 2, i == 0 ? -1 : 5);
    crash(&t, 0, 0); /* the first node stays */
    LS_CHECK(!t.inboxes[0].expelled);
    LS_CHECK(!t.stopped);
    close_cluster(&t);
}

static void remember(void *context)
{
    ((cluster *)context)->remembered++;
}

/* What the coordinator before had learned is on with its successor: a host that crashed once too
 * often stays out, a worker is not started again more often than it may be, and an error that comes
 * a second time ends the job. Times are told as ages, because clocks differ. */
LS_TEST(coordinator_hands_on_what_it_has_learned)
{
    const ls_coordinator_args how = {.rules = {.restarts = 1},
                                     .quarantine = 2,
                                     .cool_ns = 100 * LS_NS_PER_S,
                                     .remember = remember};
    ls_coordinator_args next = how;
    char why[200];
    ls_str memory;
    cluster t, u;

    ls_str_init(&memory);
    begin(&t, how, 4, 2);
    LS_CHECK_EQ(t.remembered, 0);
    crash(&t, 2, 1);
    crash(&t, 3, 0);
    crash(&t, 3, 1);
    LS_CHECK(t.inboxes[3].expelled);
    for (int i = 0; i < 6; i++)
        report(&t, i / 2, i % 2, i == 5 ? -1 : 3);
    LS_CHECK_EQ(t.inboxes[0].ranks, 6);
    LS_CHECK_EQ(t.remembered, 1); /* before the view that follows from it */
    ls_coordinator_remember(t.p, t.now, &memory);
    close_cluster(&t);

    next.self = 1;
    take_over(&u, next);
    int64_t later = u.now + 30 * LS_NS_PER_S;
    LS_CHECK_FAILS(ls_coordinator_recall(u.p, memory.p, memory.len - 1, later), LS_EDATA,
                   "damaged");
    LS_CHECK_OK(ls_coordinator_recall(u.p, memory.p, memory.len, later));
    LS_CHECK(ls_coordinator_excludes(u.p, "h3", later + 90 * LS_NS_PER_S, why, sizeof why));
    LS_CHECK(!ls_coordinator_excludes(u.p, "h3", later + 101 * LS_NS_PER_S, why, sizeof why));
    for (int k = 0; k < 2; k++) {
        stand(&u, 1, k, k, false);
        report(&u, 1, k, 20);
        stand(&u, 2, k, 2 + k, false);
        report(&u, 2, k, 20);
    }
    LS_CHECK_EQ(u.inboxes[1].ranks, 4);
    crash(&u, 2, 1); /* its second time, on a host that has crashed before */
    LS_CHECK(u.inboxes[2].expelled);
    LS_CHECK(ls_coordinator_excludes(u.p, "h2", u.now, why, sizeof why));
    ls_str_release(&memory);
    close_cluster(&u);
}

LS_TEST(coordinator_refuses_a_node_that_differs)
{
    ls_config_digest here = {.rows = 0}, there = {.rows = 0};
    cluster t;

    ls_config_digest_add(&here, "program", "1.0", 3);
    ls_config_digest_add(&here, "train", "lr: 1", 5);
    there = here;
    ls_config_digest_add(&there, "train", "lr: 2", 5);
    open_cluster(&t, (ls_coordinator_args){.max_nodes = 0});
    join(&t, 0, 1, true);
    join(&t, 1, 1, true);
    report_as(&t, 1, 0, -1, &here);
    report_as(&t, 0, 0, -1, &here);
    LS_CHECK_EQ(t.inboxes[1].views, 1);
    say(&t, 0, 0, LS_MEMBER_MESSAGE_READY);
    join(&t, 2, 1, false);
    report_as(&t, 2, 0, -1, &there);
    LS_CHECK(t.inboxes[2].expelled);
    LS_CHECK(strstr(t.inboxes[2].why, "h2 differs from the first node in: train ("));
    LS_CHECK(!strstr(t.inboxes[2].why, "program"));
    LS_CHECK(!t.stopped && t.inboxes[0].regroups == 0);
    close_cluster(&t);

    open_cluster(&t,
                 (ls_coordinator_args){.max_nodes = 0}); /* at the start nobody can do without it */
    join(&t, 0, 1, true);
    join(&t, 1, 1, true);
    report_as(&t, 1, 0, -1, &there);
    report_as(&t, 0, 0, -1, &here);
    LS_CHECK(t.stopped);
    LS_CHECK(strstr(t.why, "h1 differs from the first node in: train ("));
    close_cluster(&t);
}

/* --- any order -------------------------------------------------------------------------------- */

/* What a node of a random life is like. */
typedef struct life {
    int workers;
    bool here, called;
    enum { BEGINS, WAITS, IN, OVER } worker[WORKERS];
    int64_t have[WORKERS];
} life;

/* What the coordinator has told since the last look. */
static void live_on(cluster *t, life *lives, int n, int64_t *step)
{
    for (int i = 0; i < n; i++) {
        inbox *e = &t->inboxes[i];
        life *l = &lives[i];
        if (e->expelled)
            l->here = false;
        for (int k = 0; k < l->workers && l->here; k++) {
            if (l->worker[k] == OVER && e->verdict[k] == LS_VIEW_RESTART) {
                l->worker[k] = BEGINS;
                l->have[k] = -1;
            }
            e->verdict[k] = LS_VIEW_LATER;
            if (e->views > 0 && l->worker[k] == WAITS && e->rank[k] >= 0) {
                l->worker[k] = IN;
                LS_CHECK(e->base >= l->have[k]); /* nobody rolls back */
                if (e->base >= 0)
                    l->have[k] = e->base;
                *step = l->have[k] > *step ? l->have[k] : *step;
            }
        }
        e->views = 0;
    }
}

static void act(cluster *t, life *lives, int *n, ls_rng_block dice, int64_t *step)
{
    int i = (int)(dice.v[0] % (uint32_t)*n), k = (int)(dice.v[1] % WORKERS);
    life *l = &lives[i];
    uint32_t what = dice.v[2] % 40;

    t->now += (int64_t)(dice.v[3] % 1000) * LS_NS_PER_MS;
    if (what == 0 && *n < NODES) {
        lives[*n] = (life){.workers = 1 + k, .here = true};
        for (int w = 0; w < WORKERS; w++)
            lives[*n].have[w] = -1;
        join(t, *n, lives[*n].workers, false);
        (*n)++;
    } else if (what == 1 && l->here && i != 0) {
        l->here = false;
        lose(t, i);
    } else if (!l->here || k >= l->workers || (i != 0 && !l->called && t->inboxes[i].called == 0)) {
        return;
    } else if (what == 2 && l->worker[k] != OVER) {
        l->worker[k] = OVER;
        crash(t, i, k);
    } else if (what == 3 && l->worker[k] == IN) {
        l->have[k] = *step + 1; /* it has made a step that others may not have */
        say(t, i, k, LS_MEMBER_MESSAGE_READY);
    } else if (what > 4 &&
               (l->worker[k] == BEGINS ||
                (l->worker[k] == IN && t->inboxes[i].revokes + t->inboxes[i].regroups > 0))) {
        l->worker[k] = WAITS;
        report(t, i, k, l->have[k]);
    }
}

LS_TEST(coordinator_keeps_its_rules_in_any_order)
{
    for (uint64_t seed = 0; seed < (uint64_t)ls_test_times(200); seed++) {
        life lives[NODES] = {{.workers = 0}};
        int n = 1 + (int)(seed % 3);
        int64_t step = 0;
        cluster t;

        open_cluster(&t, (ls_coordinator_args){.rules = {.restarts = (int)(seed % 4)},
                                               .max_nodes = (int)(seed % 7),
                                               .quarantine = (int)(seed % 5),
                                               .cool_ns = LS_NS_PER_S,
                                               .grow_wait_ns = (int64_t)(seed % 2) * LS_NS_PER_S});
        for (int i = 0; i < n; i++) {
            lives[i] = (life){.workers = 2, .here = true, .called = true, .have = {-1, -1, -1}};
            join(&t, i, 2, true);
        }
        for (int round = 0; round < 1000 && !t.stopped; round++) {
            ls_rng_block dice =
                ls_rng_philox((ls_rng_key){{(uint32_t)seed, 2}}, (uint32_t)round, 0, 0, 0);
            act(&t, lives, &n, dice, &step);
            live_on(&t, lives, n, &step);
        }
        /* Every worker that waits is answered: after everybody alive has come, there is a view. */
        for (int i = 0; i < n && !t.stopped; i++)
            for (int k = 0; k < lives[i].workers && lives[i].here; k++)
                if ((lives[i].called || t.inboxes[i].called) && lives[i].worker[k] != OVER &&
                    !t.stopped) {
                    report(&t, i, k, lives[i].have[k]);
                    live_on(&t, lives, n, &step);
                }
        LS_CHECK(t.stopped || ls_coordinator_view(t.p)->generation > 0);
        close_cluster(&t);
    }
}

/* Names are told once, to each node what it lacks; numbers stay those of the first time. */
LS_TEST(coordinator_sends_names_once)
{
    cluster t;

    open_cluster(&t, (ls_coordinator_args){.max_nodes = 0});
    for (int i = 0; i < 3; i++)
        join(&t, i, 1, true);
    for (int i = 0; i < 3; i++)
        report(&t, i, 0, -1);
    LS_CHECK_EQ(t.inboxes[2].roster.nodes, 3);
    size_t told = t.inboxes[2].roster.bytes.len;
    say(&t, 0, 0, LS_MEMBER_MESSAGE_READY);
    lose(&t, 1);
    for (int i = 0; i < 3; i += 2)
        report(&t, i, 0, 1);
    LS_CHECK(t.inboxes[2].generation == 2 && t.inboxes[2].nodes == 2);
    LS_CHECK_EQ(t.inboxes[2].roster.bytes.len, told); /* nobody is new */
    say(&t, 0, 0, LS_MEMBER_MESSAGE_READY);
    join(&t, 3, 1, false);
    report(&t, 3, 0, -1);
    for (int i = 0; i < 3; i += 2)
        report(&t, i, 0, 2);
    LS_CHECK(t.inboxes[2].generation == 3 && t.inboxes[2].nodes == 3);
    LS_CHECK_EQ(t.inboxes[2].roster.nodes, 4); /* one more behind those that it had */
    LS_CHECK_EQ(t.inboxes[3].roster.nodes, 4);
    LS_CHECK_EQ(t.inboxes[3].roster.bytes.len, t.inboxes[2].roster.bytes.len);
    LS_CHECK_STR(t.inboxes[3].roster.host, "h3");
    close_cluster(&t);
}

LS_TEST(coordinator_opens_with_any_allocation_failing)
{
    ls_coordinator *p = NULL;

    ls_mem_fail_nth(1);
    LS_CHECK_EQ(ls_coordinator_open(&p, &(ls_coordinator_args){.max_nodes = 0}), LS_ENOMEM);
    ls_mem_fail_nth(0);
    LS_CHECK_OK(ls_coordinator_open(&p, &(ls_coordinator_args){.tell = hear}));
    ls_mem_fail_nth(1);
    LS_CHECK_EQ(ls_coordinator_joins(p, 0, "h", "10.0.0.1", 1, true), LS_ENOMEM);
    ls_mem_fail_nth(0);
    LS_CHECK_FAILS(ls_coordinator_joins(p, 0, "h", "10.0.0.1", 257, true), LS_EUSAGE,
                   "257 workers on \"h\" are too many");
    ls_coordinator_close(p);
}

LS_TEST(coordinator_takes_no_more_ranks_than_the_job_may_have)
{
    const ls_view_rules rules = {.most = 6};
    ls_coordinator *p = NULL;

    LS_CHECK_OK(ls_coordinator_open(&p, &(ls_coordinator_args){.rules = rules, .tell = hear}));
    LS_CHECK_OK(ls_coordinator_joins(p, 0, "a", "10.0.0.1", 4, true));
    LS_CHECK_FAILS(ls_coordinator_joins(p, 1, "b", "10.0.0.2", 3, true), LS_EUSAGE,
                   "3 workers on \"b\" are too many: 256 on a node, 6 in all, and there are 4");
    LS_CHECK_OK(ls_coordinator_joins(p, 1, "b", "10.0.0.2", 2, true));
    ls_coordinator_close(p);
}
