/* fuzz_handshake.c -- any bytes as the first bytes of a connection.
 *
 * The first byte chooses: raw bytes at an accepting side, raw bytes at a connecting side, or a
 * member whose hello holds the bytes, with right magic and proofs, so that what lies behind the
 * proof is reached. Only the last may pass, and only with the right generation and purpose. */
#include <stdlib.h>
#include "base/time.h"
#include "net/handshake.h"
#include "net/sock.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t secret[32] = "a secret of 32 bytes for fuzzing";

static void begin(ls_handshake *hello, bool connects)
{
    ls_handshake_args args = {
        .secret = secret,
        .connects = connects,
        .self = {.purpose = LS_HANDSHAKE_DATA, .generation = 7, .from = 1, .to = 2},
        .deadline_ns = ls_time_now_ns() + 60 * LS_NS_PER_S};

    if (ls_handshake_begin(hello, &args) != LS_OK)
        abort();
}

static void raw(int fds[2], bool connects, const uint8_t *data, size_t size)
{
    ls_handshake hello;
    bool done = false;

    begin(&hello, connects);
    if (connects)
        (void)ls_handshake_step(&hello, fds[1], &done);
    (void)!send(fds[0], data, size, MSG_NOSIGNAL);
    (void)ls_handshake_step(&hello, fds[1], &done);
    ls_sock_close(&fds[0]);
    ls_status st = ls_handshake_step(&hello, fds[1], &done);
    if (done || st == LS_OK)
        abort(); /* nobody passes without the secret */
    ls_handshake_release(&hello);
}

static void member(int fds[2], const uint8_t *data, size_t size)
{
    ls_handshake a, b;
    bool done[2] = {false, false};
    ls_status st[2] = {LS_OK, LS_OK};

    begin(&a, true);
    begin(&b, false);
    memcpy(a.called + 6, data, size < 58 ? size : 58);
    for (int i = 0; i < 4; i++) {
        if (st[0] == LS_OK && !done[0])
            st[0] = ls_handshake_step(&a, fds[0], &done[0]);
        if (st[1] == LS_OK && !done[1])
            st[1] = ls_handshake_step(&b, fds[1], &done[1]);
    }
    bool right = a.called[6] == 1 && a.called[7] == LS_HANDSHAKE_DATA && a.called[8] == 7;
    for (int i = 9; i < 16; i++)
        right = right && a.called[i] == 0;
    if (done[1] != right)
        abort();
    ls_handshake_release(&a);
    ls_handshake_release(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fds[2];

    if (size == 0 || size > 4096 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0)
        return 0;
    if (data[0] % 3 < 2)
        raw(fds, data[0] % 3 == 1, data + 1, size - 1);
    else
        member(fds, data + 1, size - 1);
    ls_sock_close(&fds[0]);
    ls_sock_close(&fds[1]);
    return 0;
}
