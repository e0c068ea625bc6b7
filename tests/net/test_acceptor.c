/* test_acceptor.c -- a listening socket among strangers: refusals are counted, said, and cost
 * little. */
#include "harness.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "base/time.h"
#include "net/acceptor.h"

static const uint8_t secret[32] = "the secret of this job, 32 byte";

static int open_fds(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int n = 0;

    LS_CHECK(folder);
    while (readdir(folder))
        n++;
    closedir(folder);
    return n;
}

static void start(int *listen_fd, ls_acceptor **acceptor, ls_sock_address *at, int64_t handshake_ns)
{
    ls_acceptor_args args = {.secret = secret,
                             .self = {.purpose = LS_HANDSHAKE_DATA, .generation = 3, .from = 1},
                             .handshake_ns = handshake_ns};

    LS_CHECK_OK(ls_sock_listen(NULL, listen_fd));
    LS_CHECK_OK(ls_sock_local(*listen_fd, at));
    args.listen_fd = *listen_fd;
    LS_CHECK_OK(ls_acceptor_open(acceptor, &args));
}

static int call(const ls_sock_address *at)
{
    int fd = -1;

    LS_CHECK_OK(ls_sock_connect(at, ls_test_soon(), &fd));
    return fd;
}

/* A member's hello, stepped together with the acceptor. */
static bool enter(ls_acceptor *acceptor, const ls_sock_address *at, const uint8_t *key, int *in_out,
                  ls_handshake *hello_out)
{
    ls_handshake_args args = {
        .secret = key,
        .connects = true,
        .self = {.purpose = LS_HANDSHAKE_DATA, .generation = 3, .from = 0, .to = 1},
        .deadline_ns = ls_test_soon()};
    ls_sock_address peer;
    ls_handshake hello;
    int fd = call(at);
    bool done = false;
    ls_status st = LS_OK;

    *in_out = -1;
    LS_CHECK_OK(ls_handshake_begin(&hello, &args));
    while (st == LS_OK && *in_out < 0 && ls_time_now_ns() < args.deadline_ns) {
        if (!done)
            st = ls_handshake_step(&hello, fd, &done);
        LS_CHECK_OK(ls_acceptor_next(acceptor, in_out, hello_out, &peer));
    }
    ls_sock_close(&fd);
    for (int i = 0, more; i < 3; i++) /* let the acceptor see the end */
        LS_CHECK_OK(ls_acceptor_next(acceptor, *in_out < 0 ? in_out : &more, hello_out, &peer));
    return *in_out >= 0;
}

/* Serve the acceptor for this long, and longer when it has refused fewer than this by then. */
static void drain(ls_acceptor *acceptor, int64_t ms, uint64_t refused)
{
    int64_t until = ls_time_now_ns() + ms * LS_NS_PER_MS, limit = ls_test_soon();
    ls_sock_address peer;
    ls_handshake hello;
    int fd;

    while (ls_time_now_ns() < until ||
           (ls_acceptor_refused(acceptor) < refused && ls_time_now_ns() < limit)) {
        LS_CHECK_OK(ls_acceptor_next(acceptor, &fd, &hello, &peer));
        LS_CHECK_EQ(fd, -1);
        usleep(1000);
    }
}

LS_TEST(acceptor_takes_members_and_says_why_it_refuses_others)
{
    static const uint8_t wrong[32] = "another";
    int before = open_fds(), listen_fd = -1, in = -1;
    ls_sock_address at;
    ls_acceptor *acceptor;
    ls_handshake hello;

    LS_EXPECT_LOG(3);
    start(&listen_fd, &acceptor, &at, 0);
    LS_CHECK(enter(acceptor, &at, secret, &in, &hello));
    LS_CHECK_EQ(hello.peer.from, 0);
    ls_sock_close(&in);
    LS_CHECK_EQ(ls_acceptor_refused(acceptor), 0);
    LS_CHECK(!enter(acceptor, &at, wrong, &in, &hello));
    drain(acceptor, 20, 1);
    LS_CHECK_EQ(ls_acceptor_refused(acceptor), 1);
    int fd = call(&at); /* garbage */
    char noise[100] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    LS_CHECK_EQ(write(fd, noise, sizeof noise), (int)sizeof noise);
    drain(acceptor, 20, 2);
    LS_CHECK_EQ(ls_acceptor_refused(acceptor), 2);
    ls_sock_close(&fd);
    fd = call(&at); /* comes, says nothing, leaves */
    ls_sock_close(&fd);
    drain(acceptor, 20, 2);
    LS_CHECK_EQ(ls_acceptor_refused(acceptor), 2);
    LS_CHECK(enter(acceptor, &at, secret, &in, &hello));
    ls_sock_close(&in);
    ls_acceptor_close(acceptor);
    ls_sock_close(&listen_fd);
    start(&listen_fd, &acceptor, &at, 60 * LS_NS_PER_MS);
    fd = call(&at); /* a byte, and then nothing for longer than a hello may take */
    LS_CHECK_EQ(write(fd, "L", 1), 1);
    drain(acceptor, 150, 1);
    LS_CHECK_EQ(ls_acceptor_refused(acceptor), 1);
    ls_sock_close(&fd);
    ls_acceptor_close(acceptor);
    ls_sock_close(&listen_fd);
    LS_CHECK_EQ(open_fds(), before);
}

/* More strangers than places: a member still gets in, and neither memory nor log grows. */
LS_TEST(acceptor_stays_open_in_a_flood)
{
    enum { STRANGERS = 3 * LS_ACCEPTOR_CALLERS };
    static int fds[STRANGERS];
    int listen_fd = -1, in = -1;
    ls_sock_address at;
    ls_acceptor *acceptor;
    ls_handshake hello;

    start(&listen_fd, &acceptor, &at, 0);
    int64_t began = ls_time_now_ns();
    uint64_t calls = ls_mem_calls();
    for (int i = 0; i < STRANGERS; i++) {
        fds[i] = call(&at);
        LS_CHECK_EQ(write(fds[i], "L", 1), 1);
        if (i % 32 == 0)
            drain(acceptor, 1, 0);
    }
    drain(acceptor, 20, STRANGERS - LS_ACCEPTOR_CALLERS);
    LS_CHECK(enter(acceptor, &at, secret, &in, &hello));
    LS_CHECK_EQ(ls_mem_calls(), calls);
    LS_CHECK(ls_acceptor_refused(acceptor) >= STRANGERS - LS_ACCEPTOR_CALLERS);
    LS_CHECK((int64_t)ls_log_count(LS_LOG_WARN) <=
             LS_ACCEPTOR_LINES * (2 + (ls_time_now_ns() - began) / LS_NS_PER_S));
    LS_EXPECT_LOG((int)ls_log_count(LS_LOG_WARN));
    ls_sock_close(&in);
    for (int i = 0; i < STRANGERS; i++)
        ls_sock_close(&fds[i]);
    ls_acceptor_close(acceptor);
    ls_sock_close(&listen_fd);
}

/* Bytes at random, half of them behind a right beginning so that proofs are computed: nobody gets
 * in, nothing grows, and a member still does. LINESHAFT_HELLOS=1000000 for a million of them. */
LS_TEST_SECONDS(acceptor_refuses_random_hellos, 600)
{
    enum { AT_ONCE = 50, BYTES = 96 };
    const char *wish = getenv("LINESHAFT_HELLOS");
    long rounds = wish ? strtol(wish, NULL, 10) / AT_ONCE : ls_test_times(20);
    int before = open_fds(), listen_fd = -1, in = -1, fds[AT_ONCE];
    uint64_t state = 88172645463325252u, calls = 0;
    ls_sock_address at;
    ls_acceptor *acceptor;
    ls_handshake hello;

    start(&listen_fd, &acceptor, &at, 0);
    for (long round = 0; round < rounds; round++) {
        for (int i = 0; i < AT_ONCE; i++) {
            uint8_t bytes[BYTES];
            for (int k = 0; k < BYTES; k++) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                bytes[k] = (uint8_t)(state >> 40);
            }
            if (i % 2)
                memcpy(bytes, "Lsh1\001\000\001", 7); /* magic, version, role */
            fds[i] = call(&at);
            LS_CHECK_EQ(write(fds[i], bytes, BYTES), BYTES);
        }
        drain(acceptor, 0, (uint64_t)(round + 1) * AT_ONCE);
        for (int i = 0; i < AT_ONCE; i++)
            ls_sock_close(&fds[i]);
        LS_CHECK_EQ(ls_acceptor_refused(acceptor), (uint64_t)(round + 1) * AT_ONCE);
        if (round == 0)
            calls = ls_mem_calls();
    }
    LS_CHECK_EQ(ls_mem_calls(), calls);
    LS_CHECK(enter(acceptor, &at, secret, &in, &hello));
    LS_EXPECT_LOG((int)ls_log_count(LS_LOG_WARN));
    ls_sock_close(&in);
    ls_acceptor_close(acceptor);
    ls_sock_close(&listen_fd);
    LS_CHECK_EQ(open_fds(), before);
}

/* A byte now and then keeps no place: the time is that of the whole hello. */
LS_TEST(acceptor_does_not_wait_for_slow_callers)
{
    enum { SLOW = 40 };
    int listen_fd = -1, in = -1, fds[SLOW];
    int64_t until = ls_test_soon();
    ls_sock_address at, peer;
    ls_acceptor *acceptor;
    ls_handshake hello;

    start(&listen_fd, &acceptor, &at, ls_test_ms(150));
    for (int i = 0; i < SLOW; i++)
        fds[i] = call(&at);
    while (ls_acceptor_refused(acceptor) < SLOW && ls_time_now_ns() < until) {
        for (int i = 0; i < SLOW; i++)
            (void)!send(fds[i], "L", 1, MSG_NOSIGNAL);
        LS_CHECK_OK(ls_acceptor_next(acceptor, &in, &hello, &peer));
        LS_CHECK_EQ(in, -1);
        usleep((useconds_t)(ls_test_ms(150) / 20000)); /* a third of a hello when time is up */
    }
    LS_CHECK_EQ(ls_acceptor_refused(acceptor), SLOW);
    LS_CHECK(enter(acceptor, &at, secret, &in, &hello));
    LS_EXPECT_LOG((int)ls_log_count(LS_LOG_WARN));
    ls_sock_close(&in);
    for (int i = 0; i < SLOW; i++)
        ls_sock_close(&fds[i]);
    ls_acceptor_close(acceptor);
    ls_sock_close(&listen_fd);
}

/* Where a crowd is expected, nobody of it is sent away for the next. */
LS_TEST(acceptor_hears_a_crowd_at_a_time)
{
    enum { CALLERS = 3 * LS_ACCEPTOR_CALLERS };
    static int fds[CALLERS];
    int listen_fd = -1, in = -1;
    ls_sock_address at;
    ls_acceptor *acceptor;
    ls_handshake hello;

    LS_CHECK_OK(ls_sock_listen(NULL, &listen_fd));
    LS_CHECK_OK(ls_sock_local(listen_fd, &at));
    LS_CHECK_OK(ls_acceptor_open(
        &acceptor,
        &(ls_acceptor_args){.listen_fd = listen_fd,
                            .secret = secret,
                            .self = {.purpose = LS_HANDSHAKE_DATA, .generation = 3, .from = 1},
                            .handshake_ns = ls_test_ms(60000),
                            .callers = CALLERS + 1}));
    for (int i = 0; i < CALLERS; i++) { /* each has begun, and is slow */
        fds[i] = call(&at);
        LS_CHECK_EQ(write(fds[i], "L", 1), 1);
        if (i % 32 == 0)
            drain(acceptor, 1, 0);
    }
    LS_CHECK(enter(acceptor, &at, secret, &in, &hello));
    LS_CHECK_EQ(ls_acceptor_refused(acceptor), 0);
    ls_sock_close(&in);
    for (int i = 0; i < CALLERS; i++)
        ls_sock_close(&fds[i]);
    ls_acceptor_close(acceptor);
    ls_sock_close(&listen_fd);
}

LS_TEST(acceptor_opens_or_fails_whole)
{
    int listen_fd = -1;
    ls_acceptor *acceptor;
    ls_acceptor_args args = {.listen_fd = -1, .secret = secret};

    ls_mem_fail_nth(1);
    LS_CHECK_EQ(ls_acceptor_open(&acceptor, &args), LS_ENOMEM);
    LS_CHECK_FAILS(ls_acceptor_open(&acceptor, &args), LS_EIO, "cannot watch");
    LS_CHECK_OK(ls_sock_listen(NULL, &listen_fd));
    ls_sock_close(&listen_fd);
    ls_acceptor_close(NULL);
}
