/* test_member_message.c -- words between agents as bytes: whole, cut anywhere, changed anywhere; signs of
 * life; and what must be alike. */
#include "harness.h"
#include <signal.h>
#include <string.h>
#include "base/file.h"
#include "base/time.h"
#include "cluster/member/heartbeat.h"
#include "cluster/member/member_message.h"

static void fill_view(ls_member_message *w, ls_roster *roster)
{
    const uint16_t ports[] = {4001, 4002};

    ls_roster_init(roster);
    LS_CHECK_OK(ls_roster_add(roster, "a", "10.0.0.1"));
    LS_CHECK_OK(ls_roster_add(roster, "gone", "10.0.0.9"));
    LS_CHECK_OK(ls_roster_add(roster, "b", "10.0.0.2"));

    *w = (ls_member_message){.kind = LS_MEMBER_MESSAGE_VIEW,
                             .view = {.plan = {.generation = 1ull << 40,
                                               .ranks = 3,
                                               .reached = 12,
                                               .base = -1,
                                               .source = -1,
                                               .met = 11,
                                               .first_new = true,
                                               .lost = 2,
                                               .joined = 1},
                                      .begun = true,
                                      .lost_ns = -1,
                                      .noticed_ns = 5},
                             .workers = 2,
                             .rank = {-1, 2},
                             .serial = {7, 1u << 31}};
    snprintf(w->view.cause, sizeof w->view.cause, "a line\nand a tab\t.");
    ls_members_init(&w->members);
    w->members.generation = 1ull << 40;
    LS_CHECK_OK(ls_members_add(&w->members, "a", "10.0.0.1", 2, ports));
    LS_CHECK_OK(ls_members_add(&w->members, "b", "10.0.0.2", 1, ports));
    w->members.node[1].entry = 2;
    w->roster = roster;
}

LS_TEST(member_message_carries_a_view)
{
    ls_roster roster, learned;
    ls_member_message w, got;
    ls_str bytes;

    ls_str_init(&bytes);
    ls_roster_init(&learned);
    fill_view(&w, &roster);
    ls_member_message_encode(&w, &bytes);
    LS_CHECK_OK(ls_member_message_decode(&got, bytes.p, bytes.len));
    LS_CHECK_OK(ls_member_message_unpack(&got, &learned));
    LS_CHECK(learned.nodes == 3 && got.members.node[1].entry == 2);
    LS_CHECK_STR(got.members.node[1].host, "b");
    LS_CHECK(got.members.ports[1] == 4002 && got.members.ports[2] == 4001);
    LS_CHECK_EQ(got.view.plan.generation, 1ull << 40);
    LS_CHECK(got.view.plan.base == -1 && got.view.plan.source == -1 && got.view.plan.met == 11);
    LS_CHECK(got.view.plan.first_new && !got.view.plan.spread && got.view.begun);
    LS_CHECK(got.view.plan.lost == 2 && got.view.plan.joined == 1 && got.view.lost_ns == -1);
    LS_CHECK(got.workers == 2 && got.rank[0] == -1 && got.rank[1] == 2);
    LS_CHECK(got.serial[1] == 1u << 31 && got.members.ranks == 3 && got.members.nodes == 2);
    LS_CHECK_STR(got.view.cause, "a line and a tab .");
    ls_member_message_release(&got);
    for (size_t n = 0; n < bytes.len; n++)
        LS_CHECK_EQ(ls_member_message_decode(&got, bytes.p, n), LS_EDATA);
    for (size_t at = 0; at < bytes.len; at++)
        for (int flip = 1; flip < 256; flip *= 2) {
            bytes.p[at] ^= (char)flip;
            if (ls_member_message_decode(&got, bytes.p, bytes.len) == LS_OK &&
                ls_member_message_unpack(&got, &learned) == LS_OK)
                LS_CHECK(got.members.ranks == 3 && got.members.nodes >= 1);
            ls_member_message_release(&got);
            bytes.p[at] ^= (char)flip;
        }
    ls_member_message_release(&w);
    ls_roster_release(&roster);
    ls_roster_release(&learned);
    ls_str_release(&bytes);
}

/* A node that has the names gets numbers only; one that has others than the coordinator thinks
 * says so. */
LS_TEST(member_message_names_only_nodes_that_are_new)
{
    ls_roster roster, learned;
    ls_member_message w, got;
    ls_str whole, rest;

    ls_str_init(&whole);
    ls_str_init(&rest);
    ls_roster_init(&learned);
    fill_view(&w, &roster);
    ls_member_message_encode(&w, &whole);
    w.known = roster.bytes.len;
    ls_member_message_encode(&w, &rest);
    LS_CHECK_EQ(rest.len + roster.bytes.len, whole.len);
    LS_CHECK_OK(ls_member_message_decode(&got, rest.p, rest.len));
    LS_CHECK_FAILS(ls_member_message_unpack(&got, &learned), LS_EDATA, "that nobody has named");
    ls_member_message_release(&got);
    LS_CHECK_OK(ls_roster_learn(&learned, 0, roster.bytes.p, roster.bytes.len));
    LS_CHECK_OK(ls_member_message_decode(&got, rest.p, rest.len));
    LS_CHECK_OK(ls_member_message_unpack(&got, &learned));
    LS_CHECK_OK(ls_member_message_unpack(&got, &learned)); /* once is enough */
    LS_CHECK_EQ(got.members.nodes, 2);
    ls_member_message_release(&got);
    LS_CHECK_OK(ls_roster_add(&roster, "c", "10.0.0.3"));
    ls_str_clear(&rest);
    ls_member_message_encode(&w, &rest);
    LS_CHECK_OK(ls_member_message_decode(&got, rest.p, rest.len));
    LS_CHECK_OK(ls_member_message_unpack(&got, &learned));
    LS_CHECK_STR(learned.host, "c");
    ls_member_message_release(&got);
    LS_CHECK_OK(
        ls_member_message_decode(&got, rest.p, rest.len)); /* the same again: it is known by now */
    LS_CHECK_FAILS(ls_member_message_unpack(&got, &learned), LS_EDATA, "names of nodes from byte");
    ls_member_message_release(&got);
    ls_member_message_release(&w);
    ls_roster_release(&roster);
    ls_roster_release(&learned);
    ls_str_release(&whole);
    ls_str_release(&rest);
}

LS_TEST(member_message_carries_how_a_worker_stood)
{
    const ls_member_message w = {.kind = LS_MEMBER_MESSAGE_RESUME,
                                 .worker = 3,
                                 .past = {.generation = 1ull << 40, .begun = true, .reached = -1},
                                 .stood = -1,
                                 .out = true};
    const ls_member_message last = {.kind = LS_MEMBER_MESSAGE_RESUME,
                                    .stood = LS_MEMBERS_RANKS - 1};
    ls_member_message got;
    ls_str bytes;

    ls_str_init(&bytes);
    ls_member_message_encode(&w, &bytes);
    LS_CHECK_OK(ls_member_message_decode(&got, bytes.p, bytes.len));
    LS_CHECK(got.kind == LS_MEMBER_MESSAGE_RESUME && got.worker == 3 && got.stood == -1 && got.out);
    LS_CHECK(got.past.generation == 1ull << 40 && got.past.begun && got.past.reached == -1);
    for (size_t n = 0; n < bytes.len; n++)
        LS_CHECK_EQ(ls_member_message_decode(&got, bytes.p, n), LS_EDATA);
    ls_str_clear(&bytes);
    ls_member_message_encode(&last, &bytes);
    LS_CHECK_OK(ls_member_message_decode(&got, bytes.p, bytes.len));
    LS_CHECK_EQ(got.stood, LS_MEMBERS_RANKS - 1);
    ls_str_release(&bytes);
}

LS_TEST(member_message_carries_an_end)
{
    ls_member_message w = {.kind = LS_MEMBER_MESSAGE_ENDED,
                           .worker = 3,
                           .code = 139,
                           .signal = SIGSEGV,
                           .asked = true};
    ls_member_message got;
    ls_str bytes;

    ls_str_init(&bytes);
    w.error = true;
    w.record = (ls_err_record){.code = LS_EIO, .text = "disk full", .hint = "Make room."};
    snprintf(w.why, sizeof w.why, "rank 3 crashed");
    ls_member_message_encode(&w, &bytes);
    LS_CHECK_OK(ls_member_message_decode(&got, bytes.p, bytes.len));
    LS_CHECK(got.worker == 3 && got.code == 139 && got.signal == SIGSEGV && got.asked && got.error);
    LS_CHECK_STR(got.record.text, "disk full");
    LS_CHECK_STR(got.why, "rank 3 crashed");
    ls_str_append_char(&bytes, 'x');
    LS_CHECK_FAILS(ls_member_message_decode(&got, bytes.p, bytes.len), LS_EDATA, "is damaged");
    LS_CHECK_FAILS(ls_member_message_decode(&got, "\0\0\0", 3), LS_EDATA, "is damaged");
    LS_CHECK_FAILS(ls_member_message_decode(&got, "\x09\0\0", 3), LS_EDATA, "is damaged");
    ls_str_release(&bytes);
}

LS_TEST(member_message_carries_a_report)
{
    ls_member_message w = {.kind = LS_MEMBER_MESSAGE_REPORT,
                           .worker = 1,
                           .report = {.have = -1,
                                      .reached = 5,
                                      .met = 4,
                                      .port = 65535,
                                      .serial = 9,
                                      .part = 2,
                                      .unit = 4096,
                                      .unreached = 7}},
                      got;
    ls_str bytes;

    ls_str_init(&bytes);
    ls_config_digest_add(&w.config_digest, "data", "x", 1);
    ls_member_message_encode(&w, &bytes);
    LS_CHECK_OK(ls_member_message_decode(&got, bytes.p, bytes.len));
    LS_CHECK(got.report.have == -1 && got.report.reached == 5 && got.report.met == 4);
    LS_CHECK(got.report.port == 65535 && got.report.serial == 9 && got.report.part == 2 &&
             got.report.unit == 4096);
    LS_CHECK_EQ(got.report.unreached, 7);
    LS_CHECK_EQ(got.config_digest.rows, 1);
    LS_CHECK_EQ(got.config_digest.row[0].hash, w.config_digest.row[0].hash);
    for (size_t n = 0; n < bytes.len; n++)
        LS_CHECK_EQ(ls_member_message_decode(&got, bytes.p, n), LS_EDATA);
    ls_str_release(&bytes);
}

LS_TEST(config_digest_names_what_differs)
{
    ls_config_digest a = {.rows = 0}, b;
    char why[200];

    ls_config_digest_add_program(&a);
    LS_CHECK_OK(ls_file_write_atomic("text.txt", "abc", 3));
    ls_config_digest_add_file(&a, "files", "text.txt");
    ls_config_digest_add_file(&a, "tokenizer", "is/not/there");
    b = a;
    LS_CHECK(ls_config_digest_same(&a, &b, why, sizeof why));
    LS_CHECK_STR(why, "");
    ls_config_digest_add(&b, "train", "lr", 2);
    LS_CHECK(!ls_config_digest_same(&a, &b, why, sizeof why));
    LS_CHECK_STR(why, "train (only there)");
    b = (ls_config_digest){.rows = 0};
    ls_config_digest_add_program(&b);
    LS_CHECK_OK(ls_file_write_atomic("text.txt", "abd", 3));
    ls_config_digest_add_file(&b, "files", "text.txt");
    ls_config_digest_add_file(&b, "tokenizer", "is/not/there");
    LS_CHECK(!ls_config_digest_same(&a, &b, why, sizeof why));
    LS_CHECK(strncmp(why, "files (", 7) == 0 && !strstr(why, "tokenizer"));
    LS_CHECK(!ls_config_digest_same(&a, &b, why, 9)); /* cut, not written beyond */
    LS_CHECK(strlen(why) == 8);
    for (int i = 0; i < 2 * LS_CONFIG_DIGEST_ROWS; i++) {
        char name[16];
        snprintf(name, sizeof name, "row %d", i);
        ls_config_digest_add(&b, name, "", 0);
    }
    LS_CHECK_EQ(b.rows, LS_CONFIG_DIGEST_ROWS);
}

LS_TEST(heartbeat_grows_with_how_late_signs_are)
{
    const int64_t every = 250 * LS_NS_PER_MS, dead = 3 * LS_NS_PER_S;
    int64_t now = LS_NS_PER_S;
    ls_heartbeat p = {.heard_ns = 0};

    LS_CHECK(!ls_heartbeat_is_dead(&p, dead, now)); /* it has not begun */
    for (int i = 0; i < 10; i++, now += every)
        ls_heartbeat_heard(&p, every, now);
    now -= every;
    LS_CHECK(!ls_heartbeat_is_dead(&p, dead, now + dead));
    LS_CHECK(ls_heartbeat_is_dead(&p, dead, now + dead + 1));
    now += 2 * LS_NS_PER_S; /* once very late */
    ls_heartbeat_heard(&p, every, now);
    LS_CHECK(!ls_heartbeat_is_dead(&p, dead, now + 2 * dead));
    LS_CHECK(ls_heartbeat_is_dead(&p, dead, now + 5 * dead));
    for (int i = 0; i < 200; i++) /* that is forgotten */
        ls_heartbeat_heard(&p, every, now += every);
    LS_CHECK(ls_heartbeat_is_dead(&p, dead, now + dead + 1));
    ls_heartbeat_forgive(&p, LS_NS_PER_S); /* the listener was away */
    LS_CHECK(!ls_heartbeat_is_dead(&p, dead, now + dead + 1));
    LS_CHECK_EQ(ls_heartbeat_silent(&p, now + 2 * LS_NS_PER_S), LS_NS_PER_S);
}
