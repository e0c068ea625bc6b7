/* test_rendezvous.c -- agents that meet: members, refusals, failures that travel, peers that die.
 */
#include "harness.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "cluster/jobs.h"
#include "cluster/member/members.h"
#include "cluster/member/wire_codec.h"
#include "cluster/join/rendezvous.h"
#include "net/sock_io.h"

static const uint8_t secret[32] = "0123456789abcdef0123456789abcde";
static const uint8_t another[32] = "0123456789abcdef0123456789abcdE";

static int64_t in_s(double seconds)
{
    return ls_time_now_ns() + (int64_t)(seconds * 1e9);
}

/* For what comes for sure. */
#define SOON_S ((double)ls_test_ms(30000) / 1e9)

/* --- members ---------------------------------------------------------------------------------- */

static void three_nodes(ls_members *m)
{
    const uint16_t ports[] = {1, 2, 65535};

    ls_members_init(m);
    m->generation = 77;
    m->master_port = 29500;
    LS_CHECK_OK(ls_members_add(m, "a", "10.0.0.1", 2, NULL));
    LS_CHECK_OK(ls_members_add(m, "b", "fd00::2", 3, ports));
    LS_CHECK_OK(ls_members_add(m, "c", "10.0.0.3", 1, NULL));
}

LS_TEST(members_are_numbered_through)
{
    static const int nodes[] = {0, 0, 1, 1, 1, 2};
    char text[80];
    ls_members m;

    three_nodes(&m);
    LS_CHECK(m.nodes == 3 && m.ranks == 6 && m.node[2].first_rank == 5);
    for (int r = 0; r < 6; r++)
        LS_CHECK_EQ(ls_members_node_of(&m, r), nodes[r]);
    ls_members_address(&m, 4, text, sizeof text);
    LS_CHECK_STR(text, "[fd00::2]:65535");
    ls_members_address(&m, 1, text, sizeof text);
    LS_CHECK_STR(text, "10.0.0.1:0");
    LS_CHECK_FAILS(ls_members_add(&m, "d", "x", 0, NULL), LS_EUSAGE, "0 ranks on \"d\" do not fit");
    LS_CHECK_FAILS(ls_members_add(&m, "d", "x", LS_MEMBERS_RANKS - 5, NULL), LS_EUSAGE,
                   "do not fit");
    LS_CHECK_OK(ls_members_add(&m, "d", "x", LS_MEMBERS_RANKS - 6, NULL));
    ls_members_release(&m);
}

LS_TEST(members_travel_and_damage_is_seen)
{
    ls_members m, got;
    ls_str bytes;
    int fd;

    three_nodes(&m);
    ls_str_init(&bytes);
    ls_members_encode(&m, &bytes);
    LS_CHECK_OK(ls_members_decode(&got, bytes.p, bytes.len));
    LS_CHECK(got.generation == 77 && got.nodes == 3 && got.ranks == 6 && got.master_port == 29500);
    LS_CHECK_STR(got.node[1].ip, "fd00::2");
    LS_CHECK(memcmp(got.ports, m.ports, 6 * sizeof *m.ports) == 0);
    ls_members_release(&got);
    for (size_t n = 0; n < bytes.len; n++) /* cut anywhere */
        LS_CHECK_EQ(ls_members_decode(&got, bytes.p, n), LS_EDATA);
    ls_str_append_char(&bytes, 'x');
    LS_CHECK_EQ(ls_members_decode(&got, bytes.p, bytes.len), LS_EDATA);
    bytes.len--;
    for (size_t at = 0; at < bytes.len; at++) /* any byte changed: refused or another list */
        for (int flip = 1; flip < 256; flip *= 2) {
            bytes.p[at] ^= (char)flip;
            if (ls_members_decode(&got, bytes.p, bytes.len) == LS_OK)
                LS_CHECK(got.nodes >= 1 && got.ranks >= got.nodes);
            ls_members_release(&got);
            bytes.p[at] ^= (char)flip;
        }
    LS_CHECK_OK(ls_members_to_fd(&m, &fd));
    LS_CHECK_EQ(write(fd, "x", 1), -1); /* sealed */
    for (int i = 0; i < 2; i++) {       /* several may read it */
        LS_CHECK_OK(ls_members_from_fd(&got, fd));
        LS_CHECK_EQ(got.ranks, 6);
        ls_members_release(&got);
    }
    close(fd);
    LS_CHECK_EQ(ls_members_from_fd(&got, fd), LS_EIO);
    for (uint64_t n = 1; n < 3; n++) { /* room for 8 nodes, for 8 ports */
        ls_mem_fail_nth(n);
        ls_status st = ls_members_decode(&got, bytes.p, bytes.len);
        ls_mem_fail_nth(0);
        LS_CHECK_EQ(st, LS_ENOMEM);
        ls_members_release(&got);
    }
    ls_str_release(&bytes);
    ls_members_release(&m);
}

LS_TEST(members_of_many_nodes_take_few_bytes)
{
    enum { NODES = 10000 };
    ls_members_outline outline;
    ls_members m, got;
    ls_str bytes;

    ls_members_init(&m);
    ls_str_init(&bytes);
    for (int i = 0; i < NODES; i++) {
        char host[32], ip[32];
        snprintf(host, sizeof host, "node%05d", i);
        snprintf(ip, sizeof ip, "10.%d.%d.%d", i >> 16, i >> 8 & 255, i & 255);
        LS_CHECK_OK(ls_members_add(&m, host, ip, i == 7 ? 3 : 8, NULL));
    }
    ls_members_encode(&m, &bytes);
    LS_CHECK_OK(ls_str_status(&bytes));
    LS_CHECK(bytes.len < 10 * NODES);
    LS_CHECK_OK(ls_members_check(bytes.p, bytes.len, 7, &outline));
    LS_CHECK(outline.nodes == NODES && outline.ranks == 8 * NODES - 5 && outline.here == 3);
    LS_CHECK_OK(ls_members_check(bytes.p, bytes.len, NODES, &outline));
    LS_CHECK_EQ(outline.here, 0); /* there is none of this number */
    LS_CHECK_OK(ls_members_decode(&got, bytes.p, bytes.len));
    for (int i = 0; i < NODES; i += 777) {
        LS_CHECK_STR(got.node[i].host, m.node[i].host);
        LS_CHECK_STR(got.node[i].ip, m.node[i].ip);
        LS_CHECK_EQ(got.node[i].first_rank, m.node[i].first_rank);
        LS_CHECK_EQ(ls_members_node_of(&got, got.node[i].first_rank), i);
    }
    ls_members_release(&got);
    ls_members_release(&m);
    ls_str_release(&bytes);
}

LS_TEST(codecs_do_not_read_beyond_their_end)
{
    const uint8_t bytes[] = {1, 2, 3, 0, 'a', '\n', 'b'};
    ls_wire_codec in = {.at = bytes, .left = sizeof bytes};
    char text[8];

    LS_CHECK_EQ(ls_wire_codec_get(&in, 2), 0x201);
    ls_wire_codec_get_text(&in, text, sizeof text); /* a line end is no text */
    LS_CHECK(in.bad && *text == '\0');
    LS_CHECK_EQ(ls_wire_codec_get(&in, 1), 0);
    in = (ls_wire_codec){.at = bytes, .left = 3};
    LS_CHECK_EQ(ls_wire_codec_get(&in, 4), 0);
    LS_CHECK(in.bad && !ls_wire_codec_done(&in));
}

LS_TEST(codecs_hold_counts)
{
    static const uint32_t counts[] = {0, 1, 127, 128, 300, 1u << 21, UINT32_MAX};
    ls_str bytes;

    ls_str_init(&bytes);
    for (size_t i = 0; i < LS_COUNT(counts); i++)
        ls_wire_codec_put_count(&bytes, counts[i]);
    LS_CHECK_EQ(bytes.len, 1 + 1 + 1 + 2 + 2 + 4 + 5);
    ls_wire_codec in = {.at = (const uint8_t *)bytes.p, .left = bytes.len};
    for (size_t i = 0; i < LS_COUNT(counts); i++)
        LS_CHECK_EQ(ls_wire_codec_get_count(&in), counts[i]);
    LS_CHECK(ls_wire_codec_done(&in));
    in = (ls_wire_codec){.at = (const uint8_t *)"\xff\xff\xff\xff\x7f", .left = 5}; /* too large */
    LS_CHECK(ls_wire_codec_get_count(&in) == 0 && in.bad);
    in = (ls_wire_codec){.at = (const uint8_t *)"\x80\x80\x80\x80\x80\x01",
                         .left = 6}; /* too long */
    LS_CHECK(ls_wire_codec_get_count(&in) == 0 && in.bad);
    ls_str_release(&bytes);
}

/* --- meeting ---------------------------------------------------------------------------------- */

/* What a joining process has to tell, in shared memory. */
typedef struct report {
    ls_status st;
    char text[640];
    int node, ranks, nodes, first, port, code;
    uint64_t generation;
    ls_status attended;
    char why[640];
    int64_t attended_ns;
} report;

static report *reports(int n)
{
    report *r = mmap(NULL, (size_t)n * sizeof *r, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    LS_CHECK(r != MAP_FAILED);
    return r;
}

static ls_status attend_for(ls_rendezvous *r, double seconds)
{
    int64_t deadline_ns = in_s(seconds);
    ls_status st = LS_OK;

    while (st == LS_OK && ls_time_now_ns() < deadline_ns) {
        (void)ls_sock_wait(ls_rendezvous_fd(r), 1 /* POLLIN */, in_s(0.05));
        st = ls_rendezvous_attend(r);
    }
    return st;
}

typedef struct part {
    ls_rendezvous_args args;
    double meet_s;
    double stay_s; /* attends for so long */
    int code;      /* ends with it */
    bool fails, dies, hangs_up;
    unsigned late_us; /* fails so much later */
    const char *fail_text;
} part;

static pid_t join_as(const part *p, report *out)
{
    pid_t pid = fork();

    LS_CHECK(pid >= 0);
    if (pid != 0)
        return pid;
    ls_rendezvous *r = NULL;
    ls_log_set_sink(NULL, NULL, LS_LOG_ERROR);
    out->st = ls_rendezvous_open(&r, &p->args, in_s(p->meet_s));
    if (out->st == LS_OK && !p->hangs_up)
        out->st = ls_rendezvous_meet(r, in_s(p->meet_s));
    snprintf(out->text, sizeof out->text, "%s", ls_err_last()->text);
    if (out->st == LS_OK && !p->hangs_up) {
        const ls_members *m = ls_rendezvous_members(r);
        out->node = ls_rendezvous_node(r);
        out->nodes = m->nodes;
        out->ranks = m->ranks;
        out->first = m->node[out->node].first_rank;
        out->port = m->ports[out->first];
        out->generation = m->generation;
        if (p->dies)
            kill(getpid(), SIGKILL);
        if (p->fails) {
            usleep(p->late_us);
            ls_fail(LS_EDATA, "%s", p->fail_text);
            ls_err_hint("Look.");
            ls_rendezvous_fail(r, p->code, ls_err_last());
        }
        out->attended = attend_for(r, p->stay_s);
        out->attended_ns = ls_time_now_ns();
        snprintf(out->why, sizeof out->why, "%s", ls_err_last()->text);
        LS_CHECK_OK(ls_rendezvous_end(r, p->code, &out->code));
    }
    ls_rendezvous_close(r);
    _exit(0);
}

static ls_rendezvous *host(int nodes, int ranks)
{
    ls_rendezvous *r = NULL;

    LS_CHECK_OK(ls_rendezvous_open(&r,
                                   &(ls_rendezvous_args){.hosts = true,
                                                         .address = "127.0.0.1:0",
                                                         .nodes = nodes,
                                                         .secret = secret,
                                                         .ranks = ranks,
                                                         .generation = 5,
                                                         .job = "j1",
                                                         .grace_ns = 10 * LS_NS_PER_S},
                                   ls_test_soon()));
    return r;
}

static part joiner(const ls_rendezvous *r, int ranks)
{
    return (part){.args = {.address = ls_rendezvous_address(r),
                           .secret = secret,
                           .ranks = ranks,
                           .job = "j1",
                           .grace_ns = 10 * LS_NS_PER_S},
                  .meet_s = SOON_S};
}

static void reap(pid_t pid)
{
    int status;

    LS_CHECK_EQ(waitpid(pid, &status, 0), pid);
    LS_CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
}

/* Be there until a process has ended; nodes are still missing. */
static void serve(ls_rendezvous *r, pid_t pid)
{
    int status;

    while (waitpid(pid, &status, WNOHANG) == 0)
        LS_CHECK_EQ(ls_rendezvous_meet(r, in_s(0.05)), LS_EDEADLINE);
    LS_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    LS_CHECK_EQ(ls_rendezvous_meet(r, in_s(0)), LS_EDEADLINE);
}

LS_TEST(rendezvous_gives_everybody_the_same_members)
{
    report *told = reports(2);
    const uint16_t ports[] = {4001, 4002};
    int files = jobs_files(), code = -1;
    ls_rendezvous *r = host(3, 4);
    part one = joiner(r, 2), two = joiner(r, 1);

    one.args.ports = ports;
    two.args.generation = 5; /* the right one */
    pid_t a = join_as(&one, &told[0]), b = join_as(&two, &told[1]);
    LS_CHECK_OK(ls_rendezvous_meet(r, ls_test_soon()));
    LS_CHECK_EQ(ls_rendezvous_node(r), 0);
    LS_CHECK_OK(ls_rendezvous_end(r, 0, &code));
    LS_CHECK_EQ(code, 0);
    reap(a);
    reap(b);
    const ls_members *m = ls_rendezvous_members(r);
    LS_CHECK(m->ranks == 7 && m->nodes == 3 && m->master_port > 0);
    for (int i = 0; i < 2; i++) {
        LS_CHECK_EQ(told[i].st, LS_OK);
        LS_CHECK(told[i].ranks == 7 && told[i].nodes == 3 && told[i].generation == 5);
        LS_CHECK_EQ(told[i].first, m->node[told[i].node].first_rank);
        LS_CHECK_EQ(told[i].code, 0);
    }
    LS_CHECK(told[0].node + told[1].node == 3 && told[0].node != told[1].node);
    LS_CHECK_EQ(told[0].port, 4001);
    ls_rendezvous_close(r);
    LS_CHECK_EQ(jobs_files(), files);
}

LS_TEST(rendezvous_of_one_node_is_there_at_once)
{
    ls_rendezvous *r = host(1, 3);
    int code;

    LS_CHECK_OK(ls_rendezvous_meet(r, ls_test_soon()));
    LS_CHECK_EQ(ls_rendezvous_members(r)->ranks, 3);
    LS_CHECK_OK(ls_rendezvous_end(r, 12, &code));
    LS_CHECK_EQ(code, 12);
    ls_rendezvous_close(r);
}

LS_TEST(rendezvous_refuses_strangers_and_others)
{
    report *told = reports(6);
    ls_rendezvous *r = host(2, 1);
    part wrong[5], right = joiner(r, 1);
    int code;

    for (int i = 0; i < 5; i++)
        wrong[i] = joiner(r, 1);
    wrong[0].args.secret = another;
    wrong[1].args.job = "j2";
    wrong[2].args.generation = 4;
    wrong[3].args.ranks = LS_MEMBERS_RANKS;
    LS_EXPECT_LOG(5);
    for (int i = 0; i < 4; i++) {
        /* One after the other, so that nobody finds the job complete. */
        serve(r, join_as(&wrong[i], &told[i]));
    }
    LS_CHECK_EQ(told[0].st, LS_EDATA); /* does not even get to know what it is */
    LS_CHECK_EQ(told[1].st, LS_EUSAGE);
    LS_CHECK(
        strstr(told[1].text, "refuses this node: it is of the job \"j2\", this one is \"j1\""));
    LS_CHECK(strstr(told[2].text, "it asks for generation 4, this is 5"));
    LS_CHECK(strstr(told[3].text, "its 131072 ranks do not fit"));
    pid_t good = join_as(&right, &told[5]);
    LS_CHECK_OK(ls_rendezvous_meet(r, ls_test_soon()));
    pid_t late = join_as(&wrong[4], &told[4]);
    while (waitpid(late, NULL, WNOHANG) == 0)
        LS_CHECK_OK(attend_for(r, 0.05));
    LS_CHECK(strstr(told[4].text, "the job has all of its nodes"));
    LS_CHECK_OK(ls_rendezvous_end(r, 0, &code));
    reap(good);
    LS_CHECK_EQ(told[5].st, LS_OK);
    LS_CHECK_EQ(code, 0);
    ls_rendezvous_close(r);
}

LS_TEST(rendezvous_names_the_missing_nodes)
{
    report *told = reports(1);
    ls_rendezvous *r = host(4, 1);
    part p = joiner(r, 1);

    p.meet_s = 1;
    serve(r, join_as(&p, told));
    LS_CHECK_FAILS(ls_rendezvous_meet(r, in_s(0.1)), LS_EDEADLINE,
                   "3 of 4 nodes did not join at 127.0.0.1:");
    ls_rendezvous_close(r);
    LS_CHECK_EQ(told->st, LS_EDEADLINE);
    ls_rendezvous *none = NULL;
    LS_CHECK_EQ(ls_rendezvous_open(
                    &none,
                    &(ls_rendezvous_args){.address = "127.0.0.1:1", .secret = secret, .ranks = 1},
                    in_s(0.3)),
                LS_EDEADLINE);
    LS_CHECK(!none);
}

LS_TEST(rendezvous_lets_another_take_an_empty_place)
{
    report *told = reports(3);
    ls_rendezvous *r = host(3, 1);
    part gone = joiner(r, 3), stays = joiner(r, 2);
    int code = -1;

    gone.hangs_up = true; /* joins and leaves before the others came */
    pid_t first = join_as(&gone, &told[0]);
    serve(r, first);
    LS_CHECK_EQ(told[0].st, LS_OK);
    pid_t a = join_as(&stays, &told[1]), b = join_as(&stays, &told[2]);
    LS_CHECK_OK(ls_rendezvous_meet(r, ls_test_soon()));
    LS_CHECK_EQ(ls_rendezvous_members(r)->ranks, 5);
    LS_CHECK_OK(ls_rendezvous_end(r, 0, &code));
    reap(a);
    reap(b);
    LS_CHECK(told[1].st == LS_OK && told[2].st == LS_OK && code == 0);
    ls_rendezvous_close(r);
}

LS_TEST(rendezvous_spreads_the_first_failure)
{
    report *told = reports(2);
    ls_rendezvous *r = host(3, 1);
    part fails = joiner(r, 1), waits = joiner(r, 1);
    int code;

    fails.fails = true;
    fails.fail_text = "rank 1 on x: bad\ndata"; /* a line end must not break the message */
    fails.code = 4;
    fails.stay_s = 0.1;
    waits.stay_s = SOON_S;
    waits.code = 9;
    pid_t a = join_as(&fails, &told[0]), b = join_as(&waits, &told[1]);
    LS_CHECK_OK(ls_rendezvous_meet(r, ls_test_soon()));
    int64_t began = ls_time_now_ns();
    LS_CHECK_FAILS(attend_for(r, SOON_S), LS_EPEER, "rank 1 on x: bad data");
    LS_CHECK_STR(ls_err_last()->hint, "Look.");
    LS_CHECK_WITHIN(began, 10000);
    LS_CHECK_OK(ls_rendezvous_attend(r)); /* said once */
    LS_CHECK_OK(ls_rendezvous_end(r, 9, &code));
    LS_CHECK_EQ(code, 4);
    reap(a);
    reap(b);
    LS_CHECK_EQ(told[0].attended, LS_OK);
    LS_CHECK_EQ(told[1].attended, LS_EPEER);
    LS_CHECK_STR(told[1].why, "rank 1 on x: bad data");
    LS_CHECK(told[0].code == 4 && told[1].code == 4); /* one code on all nodes */
    ls_rendezvous_close(r);
}

/* The first node has ended because of a peer before that peer said why. */
LS_TEST(rendezvous_waits_for_the_reason_of_a_failure)
{
    report *told = reports(1);
    ls_rendezvous *r = host(2, 1);
    part fails = joiner(r, 1);
    int code;

    fails.fails = true;
    fails.fail_text = "rank 1 on x: bad data";
    fails.code = 4;
    fails.late_us = 300000;
    pid_t a = join_as(&fails, &told[0]);
    LS_CHECK_OK(ls_rendezvous_meet(r, ls_test_soon()));
    LS_CHECK_OK(ls_rendezvous_end(r, ls_err_exit_code(LS_EPEER), &code));
    LS_CHECK_EQ(code, 4);
    reap(a);
    LS_CHECK_EQ(told[0].code, 4);
    ls_rendezvous_close(r);
}

/* A third node has ended because of a peer long before that peer's own node said why: what is shown
 * everywhere is the reason, not who suffered first. */
LS_TEST(rendezvous_does_not_blame_a_node_that_only_suffered)
{
    report *told = reports(2);
    ls_rendezvous *r = host(3, 1);
    part suffers = joiner(r, 1), fails = joiner(r, 1);
    int code;

    suffers.code = ls_err_exit_code(LS_EPEER);
    fails.fails = true;
    fails.fail_text = "rank 2 on x: bad data";
    fails.code = 4;
    fails.late_us = 1800000; /* longer than the other waits before it says that it has ended */
    pid_t a = join_as(&suffers, &told[0]), b = join_as(&fails, &told[1]);
    LS_CHECK_OK(ls_rendezvous_meet(r, ls_test_soon()));
    LS_CHECK_FAILS(attend_for(r, SOON_S), LS_EPEER, "rank 2 on x: bad data");
    LS_CHECK_OK(ls_rendezvous_end(r, ls_err_exit_code(LS_EPEER), &code));
    reap(a);
    reap(b);
    LS_CHECK_EQ(code, 4);
    LS_CHECK(told[0].code == 4 && told[1].code == 4);
    ls_rendezvous_close(r);
}

/* Where no reason comes at all, the job does not wait for ever. */
LS_TEST(rendezvous_ends_without_a_reason)
{
    report *told = reports(2);
    ls_rendezvous *r = host(3, 1);
    part suffers = joiner(r, 1), runs = joiner(r, 1);
    int code, peer = ls_err_exit_code(LS_EPEER);

    suffers.code = peer;
    runs.stay_s = SOON_S; /* until it is told to stop */
    pid_t a = join_as(&suffers, &told[0]), b = join_as(&runs, &told[1]);
    LS_CHECK_OK(ls_rendezvous_meet(r, ls_test_soon()));
    LS_CHECK_FAILS(attend_for(r, SOON_S), LS_EPEER, "ended with exit code");
    LS_CHECK_OK(ls_rendezvous_end(r, 0, &code));
    reap(a);
    reap(b);
    LS_CHECK_EQ(code, peer);
    LS_CHECK_EQ(told[1].attended, LS_EPEER);
    LS_CHECK(told[0].code == peer && told[1].code == peer);
    ls_rendezvous_close(r);
}

LS_TEST(rendezvous_notices_a_node_that_dies)
{
    report *told = reports(2);
    ls_rendezvous *r = host(3, 1);
    part dies = joiner(r, 1), waits = joiner(r, 1);
    int code;

    dies.dies = true;
    waits.stay_s = SOON_S;
    waits.code = 9;
    pid_t a = join_as(&dies, &told[0]), b = join_as(&waits, &told[1]);
    LS_CHECK_OK(ls_rendezvous_meet(r, ls_test_soon()));
    int64_t began = ls_time_now_ns();
    LS_CHECK_FAILS(attend_for(r, SOON_S), LS_EPEER, "went away");
    LS_CHECK_WITHIN(began, 10000);
    LS_CHECK_OK(ls_rendezvous_end(r, 0, &code));
    LS_CHECK_EQ(code, 9);
    reap(a);
    reap(b);
    LS_CHECK_EQ(told[1].attended, LS_EPEER);
    LS_CHECK(strstr(told[1].why, "went away"));
    ls_rendezvous_close(r);
}

LS_TEST(rendezvous_is_over_when_the_first_node_dies)
{
    report *told = reports(1);
    int to_us[2];
    char address[80] = "";

    LS_CHECK(pipe(to_us) == 0);
    pid_t first = fork();
    LS_CHECK(first >= 0);
    if (first == 0) {
        ls_rendezvous *r = host(2, 1);
        const char *text = ls_rendezvous_address(r);
        LS_CHECK(write(to_us[1], text, strlen(text)) > 0);
        LS_CHECK_OK(ls_rendezvous_meet(r, ls_test_soon()));
        attend_for(r, 0.2);
        kill(getpid(), SIGKILL);
    }
    LS_CHECK(read(to_us[0], address, sizeof address - 1) > 0);
    part p = {.args = {.address = address, .secret = secret, .ranks = 1, .job = "j1"},
              .meet_s = SOON_S,
              .stay_s = SOON_S,
              .code = 0};
    reap(join_as(&p, told));
    reap(first);
    LS_CHECK_EQ(told->attended, LS_EPEER);
    LS_CHECK(strstr(told->why, "the first node (127.0.0.1:"));
    LS_CHECK_EQ(told->code, 9);
}

LS_TEST(rendezvous_passes_a_request_to_stop_on)
{
    report *told = reports(1);
    ls_rendezvous *r = host(2, 1);
    part waits = joiner(r, 1);
    int code;

    waits.stay_s = SOON_S;
    waits.code = 130;
    pid_t a = join_as(&waits, told);
    LS_CHECK_OK(ls_rendezvous_meet(r, ls_test_soon()));
    ls_fail(LS_EINTR, "stopped on request");
    ls_rendezvous_fail(r, 130, ls_err_last());
    LS_CHECK_OK(ls_rendezvous_end(r, 130, &code));
    reap(a);
    LS_CHECK_EQ(told->attended, LS_EINTR);
    LS_CHECK(told->code == 130 && code == 130);
    ls_rendezvous_close(r);
}

LS_TEST(rendezvous_is_not_disturbed_by_garbage)
{
    report *told = reports(1);
    ls_rendezvous *r = host(2, 1);
    part p = joiner(r, 1);
    ls_sock_address to;
    char junk[300];
    int code, fds[20];

    LS_EXPECT_LOG(10); /* the ten that said something */
    LS_CHECK_OK(ls_sock_resolve(ls_rendezvous_address(r), ls_test_soon(), &to));
    memset(junk, 'G', sizeof junk);
    for (int i = 0; i < 20; i++) {
        LS_CHECK_OK(ls_sock_connect(&to, ls_test_soon(), &fds[i]));
        if (i % 2)
            LS_CHECK_OK(ls_sock_io_write(fds[i], junk, sizeof junk, ls_test_soon()));
    }
    pid_t a = join_as(&p, told);
    LS_CHECK_OK(ls_rendezvous_meet(r, ls_test_soon()));
    for (int i = 0; i < 20; i++)
        ls_sock_close(&fds[i]);
    LS_CHECK_OK(ls_rendezvous_end(r, 0, &code));
    reap(a);
    LS_CHECK_EQ(told->st, LS_OK);
    ls_rendezvous_close(r);
}

LS_TEST(rendezvous_refuses_absurd_arguments)
{
    ls_rendezvous *r = NULL;
    ls_rendezvous_args a = {
        .hosts = true, .address = "127.0.0.1:0", .nodes = 0, .secret = secret, .ranks = 1};

    LS_CHECK_FAILS(ls_rendezvous_open(&r, &a, in_s(1)), LS_EUSAGE, "1 to 16384 nodes, not 0");
    a.nodes = 2;
    a.ranks = 0;
    LS_CHECK_FAILS(ls_rendezvous_open(&r, &a, in_s(1)), LS_EUSAGE, "1 to 131072 ranks, not 0");
    a.ranks = 1;
    a.address = "0.0.0.0:7000"; /* never the wildcard */
    LS_CHECK_EQ(ls_rendezvous_open(&r, &a, in_s(1)), LS_EUSAGE);
    a.address = "nonsense";
    LS_CHECK_EQ(ls_rendezvous_open(&r, &a, in_s(1)), LS_EUSAGE);
    LS_CHECK(!r);
    int files = jobs_files();
    a.address = "127.0.0.1:0";
    for (uint64_t n = 1; n < 30; n++) {
        ls_mem_fail_nth(n);
        ls_status st = ls_rendezvous_open(&r, &a, in_s(1));
        ls_mem_fail_nth(0);
        if (st == LS_OK)
            ls_rendezvous_close(r);
        LS_CHECK_EQ(jobs_files(), files);
        if (st == LS_OK)
            return;
        LS_CHECK_EQ(st, LS_ENOMEM);
    }
    LS_CHECK(!"never enough memory");
}
