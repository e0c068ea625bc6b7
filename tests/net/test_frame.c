/* test_frame.c -- control messages arrive whole, in order and unchanged, or the link is over. */
#include "harness.h"

#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"
#include "net/frame.h"
#include "net/sock.h"
#include "net/wire.h"

static void open_pair(ls_frame_link *a, ls_frame_link *b, uint32_t limit)
{
    ls_handshake up = {0}, down = {0};
    int fds[2];

    LS_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    memset(up.send_key, 1, LS_HANDSHAKE_KEY);
    memset(up.receive_key, 2, LS_HANDSHAKE_KEY);
    memset(down.send_key, 2, LS_HANDSHAKE_KEY);
    memset(down.receive_key, 1, LS_HANDSHAKE_KEY);
    ls_frame_init(a, fds[0], &up, limit);
    ls_frame_init(b, fds[1], &down, limit);
}

LS_TEST(frame_carries_messages_both_ways)
{
    ls_frame_link a, b;
    ls_frame frame;
    bool got;
    static uint8_t big[100000];

    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (uint8_t)(i * 7);
    open_pair(&a, &b, sizeof big);
    LS_CHECK_OK(ls_frame_receive(&b, &frame, &got));
    LS_CHECK(!got);
    for (int round = 0; round < 20; round++) {
        size_t len = round % 3 == 0 ? 0 : round % 3 == 1 ? 17 : sizeof big;
        LS_CHECK_OK(ls_frame_send(&a, (uint16_t)round, big, len));
        do {
            LS_CHECK_OK(ls_frame_flush(&a));
            LS_CHECK_OK(ls_frame_receive(&b, &frame, &got));
        } while (!got);
        LS_CHECK_EQ(frame.type, round);
        LS_CHECK_EQ(frame.bytes, len);
        LS_CHECK(memcmp(frame.payload, big, len) == 0);
        LS_CHECK_OK(ls_frame_send(&b, 9, "yes", 3));
        do /* it may say once that there is nothing, for what it read before */
            LS_CHECK_OK(ls_frame_receive(&a, &frame, &got));
        while (!got);
        LS_CHECK(frame.bytes == 3 && memcmp(frame.payload, "yes", 3) == 0);
    }
    LS_CHECK(!ls_frame_waiting(&a));
    LS_CHECK_FAILS(ls_frame_send(&a, 1, big, sizeof big + 1), LS_EUSAGE, "longer than 100000");
    ls_frame_release(&a);
    ls_status st = LS_OK;
    for (int i = 0; i < 2 && st == LS_OK; i++)
        st = ls_frame_receive(&b, &frame, &got);
    LS_CHECK_FAILS(st, LS_EIO, "closed");
    ls_frame_release(&b);
}

/* Several at once, and one of them cut in two: each is handed out once, and nothing is lost. */
LS_TEST(frame_keeps_what_comes_with_another)
{
    ls_frame_link a, b;
    ls_frame frame;
    uint8_t bytes[4000];
    size_t len = 0;
    int types = 0, next = 0;
    bool got;

    open_pair(&a, &b, 1000);
    b.ahead = true;
    for (int i = 0; i < 9; i++)
        LS_CHECK_OK(ls_frame_send(&a, (uint16_t)i, bytes, (size_t)i * 33));
    len = (size_t)read(b.fd, bytes, sizeof bytes);
    LS_CHECK_EQ(len, 9 * (LS_FRAME_HEADER + LS_FRAME_MAC) + 36 * 33);
    for (size_t at = 0, n; at < len; at += n) {
        n = at + 100 < len ? 100 : len - at; /* in pieces that end anywhere */
        LS_CHECK_EQ(write(a.fd, bytes + at, n), (int)n);
        do {
            LS_CHECK_OK(ls_frame_receive(&b, &frame, &got));
            if (got)
                LS_CHECK(frame.type == next && frame.bytes == (uint32_t)next * 33);
            next += got;
            types += got;
        } while (got);
    }
    LS_CHECK_EQ(types, 9);
    ls_frame_release(&a);
    ls_frame_release(&b);
}

LS_TEST(frame_finds_changed_repeated_and_absurd_messages)
{
    for (int at = 0; at < LS_FRAME_HEADER + 5 + LS_FRAME_MAC + 2; at++) {
        ls_frame_link a, b;
        ls_frame frame;
        bool got = false;
        uint8_t bytes[LS_FRAME_HEADER + 5 + LS_FRAME_MAC];
        ls_status st = LS_OK;

        open_pair(&a, &b, 64);
        LS_CHECK_OK(ls_frame_send(&a, 1, "12345", 5));
        LS_CHECK_EQ(read(b.fd, bytes, sizeof bytes), (int)sizeof bytes);
        if (at < (int)sizeof bytes)
            bytes[at] ^= 0x01;
        else if (at == (int)sizeof bytes)
            ls_wire_put32(bytes, UINT32_MAX);
        LS_CHECK_EQ(write(a.fd, bytes, sizeof bytes), (int)sizeof bytes);
        LS_CHECK_EQ(write(a.fd, bytes, sizeof bytes), (int)sizeof bytes); /* again */
        for (int i = 0; i < 3 && st == LS_OK; i++)
            st = ls_frame_receive(&b, &frame, &got);
        LS_CHECK_EQ(st, LS_EDATA);
        LS_CHECK(b.received == (at > (int)sizeof bytes)); /* the unchanged one passed once */
        LS_CHECK(b.in_cap <= 512);
        ls_frame_release(&a);
        ls_frame_release(&b);
    }
}

LS_TEST(frame_queue_is_bounded)
{
    ls_frame_link a, b;
    ls_status st = LS_OK;
    uint8_t *big = ls_mem_alloc(1 << 20);
    int sent = 0;

    LS_CHECK(big);
    open_pair(&a, &b, 1 << 20);
    while (st == LS_OK && sent < 50) {
        st = ls_frame_send(&a, 1, big, 1 << 20);
        sent++;
    }
    LS_CHECK_EQ(st, LS_EBUSY);
    LS_CHECK(sent < 10 && ls_frame_waiting(&a));
    ls_mem_free(big);
    ls_frame_release(&a);
    ls_frame_release(&b);
}
