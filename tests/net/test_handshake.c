/* test_handshake.c -- who knows the secret gets in, everybody else is refused with a reason. */
#include "harness.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>
#include "base/time.h"
#include "net/handshake.h"
#include "net/sock.h"

static const uint8_t secret[32] = "the secret of this job, 32 byte";
static const uint8_t other_secret[32] = "the secret of another one, 32 b";

static void pair(int fds[2])
{
    LS_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
}

static ls_handshake_args args_of(bool connects)
{
    return (ls_handshake_args){.secret = secret,
                               .connects = connects,
                               .self = {.purpose = LS_HANDSHAKE_DATA,
                                        .generation = 7,
                                        .from = connects ? 1 : 2,
                                        .to = connects ? 2 : 0,
                                        .detail = connects ? 5 : 0},
                               .deadline_ns = ls_test_soon()};
}

/* Let both sides step until each is done or failed. */
static void meet(ls_handshake *a, ls_handshake *b, ls_status *a_out, ls_status *b_out, char *b_text)
{
    bool done[2] = {false, false};
    int fds[2];

    pair(fds);
    *a_out = *b_out = LS_OK;
    for (int i = 0; i < 20; i++) {
        if (!done[0] && *a_out == LS_OK) {
            *a_out = ls_handshake_step(a, fds[0], &done[0]);
            if (*a_out != LS_OK)
                ls_sock_close(&fds[0]);
        }
        if (!done[1] && *b_out == LS_OK) {
            *b_out = ls_handshake_step(b, fds[1], &done[1]);
            if (*b_out != LS_OK) {
                snprintf(b_text, 200, "%.199s", ls_err_last()->text);
                ls_sock_close(&fds[1]);
            }
        }
    }
    ls_sock_close(&fds[0]);
    ls_sock_close(&fds[1]);
}

LS_TEST(handshake_of_two_members_gives_equal_keys)
{
    ls_handshake_args up = args_of(true), down = args_of(false);
    ls_handshake a, b;
    ls_status sa, sb;
    uint8_t first[LS_HANDSHAKE_KEY];
    char text[200];

    LS_CHECK_OK(ls_handshake_begin(&a, &up));
    LS_CHECK_OK(ls_handshake_begin(&b, &down));
    meet(&a, &b, &sa, &sb, text);
    LS_CHECK_EQ(sa, LS_OK);
    LS_CHECK_EQ(sb, LS_OK);
    LS_CHECK(memcmp(a.send_key, b.receive_key, LS_HANDSHAKE_KEY) == 0);
    LS_CHECK(memcmp(b.send_key, a.receive_key, LS_HANDSHAKE_KEY) == 0);
    LS_CHECK(memcmp(a.send_key, a.receive_key, LS_HANDSHAKE_KEY) != 0);
    LS_CHECK_EQ(b.peer.from, 1);
    LS_CHECK_EQ(b.peer.to, 2);
    LS_CHECK_EQ(b.peer.detail, 5);
    LS_CHECK_EQ(a.peer.from, 2);
    LS_CHECK_EQ(a.peer.detail, 5);
    memcpy(first, a.send_key, sizeof first);
    LS_CHECK_OK(ls_handshake_begin(&a, &up));
    LS_CHECK_OK(ls_handshake_begin(&b, &down));
    meet(&a, &b, &sa, &sb, text);
    LS_CHECK(memcmp(first, a.send_key, sizeof first) != 0); /* new nonces, new keys */
    ls_handshake_release(&a);
    ls_handshake_release(&b);
    LS_CHECK_EQ(a.send_key[0] | a.send_key[31], 0);
}

LS_TEST(handshake_refuses_another_secret_generation_or_purpose)
{
    for (int what = 0; what < 4; what++) {
        static const char *const a_says[] = {"does not know the secret", "of generation 7",
                                             "another kind", "wrong direction"};
        static const char *const b_says[] = {"instead of proving", "of generation 8",
                                             "another kind", "wrong direction"};
        ls_handshake_args up = args_of(true), down = args_of(false);
        ls_handshake a, b;
        ls_status sa, sb;
        char text[200] = "";

        if (what == 0)
            up.secret = other_secret;
        else if (what == 1)
            up.self.generation = 8;
        else if (what == 2)
            up.self.purpose = LS_HANDSHAKE_CONTROL;
        LS_CHECK_OK(ls_handshake_begin(&a, &up));
        LS_CHECK_OK(ls_handshake_begin(&b, &down));
        if (what == 3) /* a hello that is sent back to its maker */
            a.called[6] = 2;
        meet(&a, &b, &sa, &sb, text);
        if (what != 3) {
            LS_CHECK_EQ(sa, LS_EDATA);
            LS_CHECK(!strstr(a_says[what], "\n"));
        }
        LS_CHECK(sb == LS_EDATA || sb == LS_EIO);
        if (!strstr(text, b_says[what]))
            ls_test_fail(__FILE__, __LINE__, "case %d said \"%s\"", what, text);
    }
}

/* Record everything that a member sends in a good hello, and send the same bytes again. */
LS_TEST(handshake_cannot_be_replayed)
{
    ls_handshake_args up = args_of(true), down = args_of(false);
    ls_handshake a, b;
    ls_status sa, sb;
    bool done;
    char text[200];
    int fds[2];

    LS_CHECK_OK(ls_handshake_begin(&a, &up));
    LS_CHECK_OK(ls_handshake_begin(&b, &down));
    meet(&a, &b, &sa, &sb, text);
    LS_CHECK_EQ(sb, LS_OK);
    pair(fds);
    LS_CHECK_OK(ls_handshake_begin(&b, &down));
    LS_CHECK_EQ(write(fds[0], a.called, sizeof a.called), (int)sizeof a.called);
    LS_CHECK_EQ(write(fds[0], a.proof, sizeof a.proof), (int)sizeof a.proof);
    LS_CHECK_FAILS(ls_handshake_step(&b, fds[1], &done), LS_EDATA, "does not know the secret");
    ls_sock_close(&fds[0]);
    ls_sock_close(&fds[1]);
}

LS_TEST(handshake_refuses_garbage_and_other_versions)
{
    uint8_t bytes[64];
    ls_handshake_args down = args_of(false), up = args_of(true);
    ls_handshake a, b;
    bool done;
    int fds[2];

    for (int what = 0; what < 3; what++) {
        pair(fds);
        LS_CHECK_OK(ls_handshake_begin(&a, &up));
        LS_CHECK_OK(ls_handshake_begin(&b, &down));
        memcpy(bytes, a.called, sizeof bytes);
        if (what == 0)
            memcpy(bytes, "GET / HTTP/1.1\r\n\r\n", 18);
        else if (what == 1)
            bytes[4] = 9;
        LS_CHECK_EQ(write(fds[0], bytes, what == 2 ? 63 : 64), what == 2 ? 63 : 64);
        if (what == 2) {
            LS_CHECK_OK(ls_handshake_step(&b, fds[1], &done));
            LS_CHECK(!done);
            ls_sock_close(&fds[0]);
            LS_CHECK_FAILS(ls_handshake_step(&b, fds[1], &done), LS_EIO, "63 of 64");
        } else {
            LS_CHECK_FAILS(ls_handshake_step(&b, fds[1], &done), LS_EDATA,
                           what == 0 ? "not a hello" : "version 9");
        }
        ls_sock_close(&fds[0]);
        ls_sock_close(&fds[1]);
    }
}

/* Any single changed bit of any of the 192 bytes is found by one side at least. */
LS_TEST(handshake_finds_every_changed_byte)
{
    for (int at = 0; at < 64 + 96 + 32; at++) {
        ls_handshake_args up = args_of(true), down = args_of(false);
        uint8_t bytes[96];
        ls_status sa = LS_OK, sb = LS_OK;
        bool da = false, db = false;
        ls_handshake a, b;
        int one[2], two[2];

        pair(one);
        pair(two);
        LS_CHECK_OK(ls_handshake_begin(&a, &up));
        LS_CHECK_OK(ls_handshake_begin(&b, &down));
        for (int part = 0; part < 3 && sa == LS_OK && sb == LS_OK; part++) {
            static const int first[] = {0, 64, 160}, len[] = {64, 96, 32};
            int *from = part == 1 ? two : one, *to = part == 1 ? one : two;
            if (part == 1)
                sb = ls_handshake_step(&b, two[1], &db);
            else
                sa = ls_handshake_step(&a, one[1], &da);
            if (sa != LS_OK || sb != LS_OK)
                break;
            LS_CHECK_EQ(read(from[0], bytes, (size_t)len[part]), len[part]);
            if (at >= first[part] && at < first[part] + len[part])
                bytes[at - first[part]] ^= 0x10;
            LS_CHECK_EQ(write(to[0], bytes, (size_t)len[part]), len[part]);
        }
        if (sb == LS_OK && sa == LS_OK)
            sb = ls_handshake_step(&b, two[1], &db);
        if (sa == LS_OK && sb == LS_OK)
            ls_test_fail(__FILE__, __LINE__, "byte %d was changed and nobody noticed", at);
        for (int i = 0; i < 2; i++) {
            ls_sock_close(&one[i]);
            ls_sock_close(&two[i]);
        }
    }
}

LS_TEST(handshake_ends_at_its_deadline)
{
    ls_handshake_args down = args_of(false);
    ls_handshake b;
    int fds[2];
    int64_t began = ls_time_now_ns();

    pair(fds);
    down.deadline_ns = began + 300 * LS_NS_PER_MS;
    LS_CHECK_OK(ls_handshake_begin(&b, &down));
    LS_CHECK_EQ(write(fds[0], "Lsh1", 4), 4);
    LS_CHECK_FAILS(ls_handshake_run(&b, fds[1]), LS_EDEADLINE, "4 of 64");
    LS_CHECK_WITHIN(began, 5000);
    ls_sock_close(&fds[0]);
    ls_sock_close(&fds[1]);
}
