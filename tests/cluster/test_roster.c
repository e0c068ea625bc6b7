/* test_roster.c -- names of nodes as bytes: one after the other, learned in parts, damaged. */
#include "harness.h"
#include <string.h>
#include "base/mem.h"
#include "cluster/member/roster.h"

static void fill(ls_roster *roster, int from, int to)
{
    for (int i = from; i < to; i++) {
        char host[32], ip[32];
        snprintf(host, sizeof host, i % 3 ? "node%04d" : "other-%d", i);
        snprintf(ip, sizeof ip, i % 5 ? "10.0.%d.%d" : "fd00::%x:%x", i >> 8, i & 255);
        LS_CHECK_OK(ls_roster_add(roster, host, ip));
    }
}

static void check_same(const ls_roster *a, const ls_roster *b)
{
    LS_CHECK_EQ(a->nodes, b->nodes);
    LS_CHECK_EQ(a->bytes.len, b->bytes.len);
    LS_CHECK(memcmp(a->bytes.p, b->bytes.p, a->bytes.len) == 0);
    LS_CHECK_STR(a->host, b->host);
    LS_CHECK_STR(a->ip, b->ip);
}

LS_TEST(roster_gives_back_what_was_put_in)
{
    char longest[LS_MEMBERS_TEXT + 8];
    ls_roster roster;
    int n = 0;

    ls_roster_init(&roster);
    fill(&roster, 0, 500);
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    LS_CHECK_OK(ls_roster_add(&roster, longest, "10.0.0.1")); /* cut to what a list holds */
    LS_CHECK_OK(ls_roster_add(&roster, longest, "10.0.0.1")); /* the same again: four bytes */
    LS_CHECK_OK(ls_roster_add(&roster, "", "1"));
    LS_CHECK_EQ(roster.nodes, 503);
    ls_roster_walk walk = {.in = {.at = (const uint8_t *)roster.bytes.p, .left = roster.bytes.len}};
    while (ls_roster_next(&walk)) {
        char host[32], ip[32];
        int i = n++;
        snprintf(host, sizeof host, i % 3 ? "node%04d" : "other-%d", i);
        snprintf(ip, sizeof ip, i % 5 ? "10.0.%d.%d" : "fd00::%x:%x", i >> 8, i & 255);
        if (i < 500) {
            LS_CHECK_STR(walk.host, host);
            LS_CHECK_STR(walk.ip, ip);
        } else if (i < 502) {
            LS_CHECK_EQ(strlen(walk.host), LS_MEMBERS_TEXT - 1);
        }
    }
    LS_CHECK(!walk.in.bad);
    LS_CHECK_EQ(n, 503);
    LS_CHECK_STR(walk.host, "");
    ls_roster_release(&roster);
    LS_CHECK_EQ(roster.nodes, 0);
}

LS_TEST(roster_is_learned_in_parts)
{
    ls_roster whole, part;

    ls_roster_init(&whole);
    ls_roster_init(&part);
    for (int i = 0; i < 40; i += 4) {
        size_t known = whole.bytes.len;
        fill(&whole, i, i + 4);
        LS_CHECK_OK(ls_roster_learn(&part, known, whole.bytes.p + known, whole.bytes.len - known));
        check_same(&whole, &part);
    }
    LS_CHECK_FAILS(ls_roster_learn(&part, 5, "", 0), LS_EDATA, "from byte 5 on, of which");
    check_same(&whole, &part);
    LS_CHECK_EQ(ls_roster_learn(&part, part.bytes.len, "\0\1x\0\1y\0\1x\0", 10), LS_EDATA);
    check_same(&whole, &part);
    LS_CHECK_OK(ls_roster_learn(&part, 0, whole.bytes.p, whole.bytes.len)); /* all of it again */
    check_same(&whole, &part);
    LS_CHECK_OK(ls_roster_learn(&part, 0, "\0\1x\0\1y", 6));
    LS_CHECK_EQ(part.nodes, 1);
    LS_CHECK_STR(part.ip, "y");
    ls_roster_release(&whole);
    ls_roster_release(&part);
}

/* Cut anywhere and changed anywhere: refused, and as it was before; or another list of as many
 * bytes. */
LS_TEST(roster_sees_damage)
{
    ls_roster whole, got;

    ls_roster_init(&whole);
    fill(&whole, 0, 20);
    ls_roster_init(&got);
    for (size_t n = 1; n < whole.bytes.len; n++) {
        ls_status st = ls_roster_learn(&got, 0, whole.bytes.p, n);
        LS_CHECK(st == LS_EDATA || (st == LS_OK && got.nodes < 20));
    }
    LS_CHECK_OK(ls_roster_learn(&got, 0, whole.bytes.p, whole.bytes.len));
    for (size_t at = 0; at < whole.bytes.len; at++)
        for (int flip = 1; flip < 256; flip *= 2) {
            whole.bytes.p[at] ^= (char)flip;
            if (ls_roster_learn(&got, 0, whole.bytes.p, whole.bytes.len) == LS_OK) {
                LS_CHECK_EQ(got.bytes.len, whole.bytes.len);
                LS_CHECK(strlen(got.host) < LS_MEMBERS_TEXT && *got.ip);
            }
            whole.bytes.p[at] ^= (char)flip;
        }
    LS_CHECK_FAILS(ls_roster_learn(&got, 0, "\0\1\n\0\1y", 6), LS_EDATA, "are damaged");
    LS_CHECK_FAILS(ls_roster_learn(&got, 0, "\1\0\0\1y", 5), LS_EDATA, "are damaged");
    LS_CHECK_FAILS(ls_roster_learn(&got, 0, "\0\1x\0\0", 5), LS_EDATA, "are damaged");
    LS_CHECK_FAILS(ls_roster_learn(&got, 0, "\0\xffx", 3), LS_EDATA, "are damaged");
    ls_roster_release(&whole);
    ls_roster_release(&got);
}

LS_TEST(roster_lives_without_memory)
{
    ls_roster roster;

    ls_roster_init(&roster);
    ls_mem_fail_nth(1);
    LS_CHECK_EQ(ls_roster_learn(&roster, 0, "\0\1x\0\1y", 6), LS_ENOMEM);
    ls_mem_fail_nth(0);
    LS_CHECK_EQ(roster.nodes, 0);
    LS_CHECK_OK(ls_roster_learn(&roster, 0, "\0\1x\0\1y", 6));
    ls_roster_release(&roster);
    ls_mem_fail_nth(1);
    LS_CHECK_EQ(ls_roster_add(&roster, "a", "b"), LS_ENOMEM);
    ls_mem_fail_nth(0);
    ls_roster_release(&roster);
}
