/* test_election.c -- agents that lose their coordinator: elections over real sockets, with promises on
 * disk, all in one process; and endpoints as bytes. */
#include "harness.h"
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "base/file.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/elect/election.h"

static const uint8_t secret[32] = "0123456789abcdef0123456789abcde";

enum { MOST = 5 };

typedef struct cluster {
    ls_election *election[MOST]; /* NULL: it is dead */
    ls_election_endpoint endpoint[MOST];
    bool orphan[MOST]; /* it has seen the coordinator's end */
    int n;
} cluster;

static void open_quick_cluster(cluster *t, int n, int64_t beat_ns)
{
    setenv("LINESHAFT_STATE", "promises", 1);
    *t = (cluster){.n = n};
    for (int i = 0; i < n; i++) {
        LS_CHECK_OK(
            ls_election_open(&t->election[i], &(ls_election_args){.ip = "127.0.0.1",
                                                                  .secret = secret,
                                                                  .beat_ns = beat_ns,
                                                                  .suspect_ns = 5 * beat_ns,
                                                                  .dead_ns = 25 * beat_ns}));
        t->endpoint[i] = (ls_election_endpoint){.id = ls_election_id(t->election[i]),
                                                .node = i,
                                                .workers = 1,
                                                .port = ls_election_port(t->election[i]),
                                                .host = "here",
                                                .ip = "127.0.0.1"};
    }
    for (int i = 0; i < n; i++)
        LS_CHECK_OK(ls_election_learn(t->election[i], t->endpoint, n));
}

static void open_cluster(cluster *t, int n)
{
    open_quick_cluster(t, n, ls_test_ms(40));
}

static void close_cluster(cluster *t)
{
    for (int i = 0; i < t->n; i++)
        ls_election_close(t->election[i]);
}

static void attend(cluster *t)
{
    poll(NULL, 0, 2);
    for (int i = 0; i < t->n; i++)
        if (t->election[i])
            ls_election_attend(t->election[i], !t->orphan[i], ls_time_now_ns());
}

/* The generation on which these nodes agree, when node `who` coordinates. */
static uint64_t agree(cluster *t, int who, const int *nodes, int n, uint64_t above)
{
    int64_t until_ns = ls_test_soon();
    uint64_t ids[MOST], generation = 0;

    for (int i = 0; i < n; i++)
        ids[i] = t->endpoint[nodes[i]].id;
    if (!ls_election_founded(t->election[who]))
        ls_election_found(t->election[who], ids, n, ls_time_now_ns());
    while (!(generation = ls_election_agree(t->election[who], ids, n, above, ls_time_now_ns()))) {
        LS_CHECK(ls_time_now_ns() < until_ns);
        attend(t);
    }
    return generation;
}

static void kill_node(cluster *t, int who)
{
    ls_election_close(t->election[who]);
    t->election[who] = NULL;
    for (int i = 0; i < t->n; i++)
        if (t->election[i]) {
            t->orphan[i] = true;
            ls_election_suspect(t->election[i], ls_time_now_ns());
        }
}

/* The node that the others take for their coordinator. */
static int elect(cluster *t)
{
    int64_t until_ns = ls_test_soon();

    for (;;) {
        LS_CHECK(ls_time_now_ns() < until_ns);
        attend(t);
        uint64_t leader = 0, term;
        int of_one_mind = 0, alive = 0, who = -1;
        for (int i = 0; i < t->n; i++) {
            uint64_t said = t->election[i] ? ls_election_leader(t->election[i], &term) : 0;
            leader = leader ? leader : said;
            alive += t->election[i] != NULL;
            of_one_mind += said != 0 && said == leader;
            if (t->election[i] && said == t->endpoint[i].id)
                who = i;
        }
        if (who >= 0 && of_one_mind == alive) {
            memset(t->orphan, 0, sizeof t->orphan);
            return who;
        }
    }
}

LS_TEST(election_elects_a_successor_and_goes_on_in_one_line)
{
    const int all[] = {0, 1, 2};
    cluster t;

    open_cluster(&t, 3);
    LS_CHECK(!ls_election_may_elect(t.election[1])); /* it has no part in anything yet */
    LS_CHECK_EQ(agree(&t, 0, all, 3, 0), 1);
    LS_CHECK_EQ(agree(&t, 0, all, 3, 1), 2); /* the same nodes, another view */
    while (!ls_election_may_elect(t.election[1]) || !ls_election_may_elect(t.election[2]))
        attend(&t);
    kill_node(&t, 0);
    int first = elect(&t), second = 3 - first;
    LS_CHECK(first == 1 || first == 2);
    const int left[] = {first, second};
    uint64_t next = agree(&t, first, left, 2, ls_election_view(t.election[first])->generation);
    LS_CHECK_EQ(next, 3);
    while (ls_election_view(t.election[second])->generation != next)
        attend(&t);
    LS_CHECK(ls_election_may_elect(t.election[first]) &&
             !ls_election_may_elect(t.election[second]));
    close_cluster(&t);
}

LS_TEST(election_of_a_minority_agrees_on_nothing)
{
    const int all[] = {0, 1, 2, 3, 4}, some[] = {0, 1};
    cluster t;

    open_cluster(&t, 5);
    LS_CHECK_EQ(agree(&t, 0, all, 5, 0), 1);
    for (int i = 2; i < 5; i++) {
        ls_election_close(t.election[i]);
        t.election[i] = NULL;
    }
    const uint64_t ids[] = {t.endpoint[some[0]].id, t.endpoint[some[1]].id};
    int64_t until_ns = ls_time_now_ns() + ls_test_ms(400);
    while (ls_time_now_ns() < until_ns) {
        attend(&t);
        LS_CHECK_EQ(ls_election_agree(t.election[0], ids, 2, 1, ls_time_now_ns()), 0);
    }
    close_cluster(&t);
}

/* It finds out by itself, without a word of the others: a node that listens to it later must not
 * take it for the coordinator. */
LS_TEST(election_coordinator_of_a_minority_calls_itself_so_no_more)
{
    const int all[] = {0, 1, 2, 3, 4};
    int64_t until_ns = ls_test_soon();
    uint64_t term, before;
    cluster t;

    open_quick_cluster(&t, 5, ls_test_ms(10));
    LS_CHECK_EQ(agree(&t, 0, all, 5, 0), 1);
    LS_CHECK_EQ(ls_election_leader(t.election[0], &before), t.endpoint[0].id);
    for (int i = 2; i < 5; i++) {
        ls_election_close(t.election[i]);
        t.election[i] = NULL;
    }
    while (ls_election_leader(t.election[0], &term) == t.endpoint[0].id) {
        LS_CHECK(ls_time_now_ns() < until_ns);
        attend(&t);
    }
    int64_t stays_ns = ls_time_now_ns() + ls_test_ms(300); /* and nobody elects it anew */
    while (ls_time_now_ns() < stays_ns) {
        attend(&t);
        LS_CHECK(ls_election_leader(t.election[0], &term) != t.endpoint[0].id);
        LS_CHECK(ls_election_leader(t.election[1], &term) != t.endpoint[1].id);
    }
    LS_CHECK_EQ(term, before); /* a node that asks in vain raises nothing */
    LS_CHECK_EQ(ls_election_agree(t.election[0], &t.endpoint[0].id, 1, 1, ls_time_now_ns()), 0);
    close_cluster(&t);
}

LS_TEST(election_survives_one_loss_after_the_other)
{
    const int all[] = {0, 1, 2, 3, 4};
    uint64_t generation;
    cluster t;

    open_cluster(&t, 5);
    generation = agree(&t, 0, all, 5, 0);
    for (int alive = 4, lost = 0; alive >= 2; alive--) {
        int left[MOST], n = 0;
        kill_node(&t, lost);
        lost = elect(&t);
        left[n++] = lost;
        for (int i = 0; i < t.n; i++)
            if (t.election[i] && i != lost)
                left[n++] = i;
        LS_CHECK_EQ(n, alive);
        uint64_t next = agree(&t, lost, left, n, generation);
        LS_CHECK(next > generation);
        generation = next;
        for (int i = 0; i < n; i++)
            while (ls_election_view(t.election[left[i]])->generation != next)
                attend(&t);
    }
    close_cluster(&t);
}

LS_TEST(election_leaves_no_promises_behind)
{
    cluster t;
    int files = 0;

    open_cluster(&t, 2);
    close_cluster(&t);
    DIR *dir = opendir("promises");
    LS_CHECK(dir);
    for (const struct dirent *e; (e = readdir(dir));)
        files += e->d_name[0] != '.';
    closedir(dir);
    LS_CHECK_EQ(files, 0);
}

LS_TEST(election_removes_what_killed_agents_have_left)
{
    const struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    cluster t;

    LS_CHECK_EQ(mkdir("promises", 0700), 0);
    for (int i = 0; i < 3; i++) {
        char path[64];
        snprintf(path, sizeof path, "promises/%d%s", i, i == 2 ? ".other" : ".vote");
        LS_CHECK_OK(ls_file_write_atomic(path, "x", 1));
        if (i != 1)
            LS_CHECK_EQ(utimensat(AT_FDCWD, path, long_ago, 0), 0);
    }
    open_cluster(&t, 1);
    LS_CHECK(!ls_file_exists("promises/0.vote"));
    LS_CHECK(ls_file_exists("promises/1.vote") && ls_file_exists("promises/2.other"));
    close_cluster(&t);
}

LS_TEST(election_says_where_promises_cannot_be_kept)
{
    ls_election *s;

    setenv("LINESHAFT_STATE", "/proc/nowhere", 1);
    LS_CHECK_FAILS(ls_election_open(&s, &(ls_election_args){.ip = "127.0.0.1",
                                                            .secret = secret,
                                                            .beat_ns = LS_NS_PER_S,
                                                            .suspect_ns = LS_NS_PER_S,
                                                            .dead_ns = LS_NS_PER_S}),
                   LS_EIO, "/proc/nowhere");
    LS_CHECK(strstr(ls_err_last()->hint, "LINESHAFT_STATE"));
}

LS_TEST(election_seats_travel)
{
    const ls_election_endpoint endpoints[] = {
        {.id = 1ull << 63, .node = 70000, .workers = 8, .host = "a", .ip = "10.0.0.1", .port = 1},
        {.id = 2,
         .node = 1,
         .workers = 1,
         .host = "b",
         .ip = "fd00::1",
         .port = 65535,
         .join_port = 7}};
    ls_election_endpoint *got = NULL;
    ls_str bytes;
    int n;

    ls_str_init(&bytes);
    ls_election_encode(endpoints, 2, &bytes);
    LS_CHECK_OK(ls_election_decode(bytes.p, bytes.len, &got, &n));
    LS_CHECK_EQ(n, 2);
    LS_CHECK(got[0].id == 1ull << 63 && got[0].node == 70000 && got[0].workers == 8);
    LS_CHECK(got[1].port == 65535 && got[1].join_port == 7);
    LS_CHECK_STR(got[1].ip, "fd00::1");
    ls_mem_free(got);
    for (size_t cut = 0; cut < bytes.len; cut++)
        LS_CHECK_EQ(ls_election_decode(bytes.p, cut, &got, &n), LS_EDATA);
    ls_str_release(&bytes);
}
