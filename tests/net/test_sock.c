/* test_sock.c -- addresses, listening at exactly one address, deadlines, nothing left open. */
#include "harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"
#include "net/sock_io.h"

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

static int64_t in_ms(int64_t ms)
{
    return ls_time_now_ns() + ms * LS_NS_PER_MS;
}

LS_TEST(sock_reads_addresses)
{
    ls_sock_address a, b;

    LS_CHECK_OK(ls_sock_resolve("10.0.0.1:40001", 0, &a));
    LS_CHECK_STR(a.text, "10.0.0.1:40001");
    LS_CHECK_EQ(a.storage.ss_family, AF_INET);
    LS_CHECK_OK(ls_sock_resolve("[::1]:65535", 0, &b));
    LS_CHECK_STR(b.text, "[::1]:65535");
    LS_CHECK_OK(ls_sock_resolve("localhost:7", ls_test_soon(), &a));
    LS_CHECK(strstr(a.text, ":7"));
}

LS_TEST(sock_refuses_what_is_no_address)
{
    static const char *const bad[] = {
        "",           ":",        ":80",      "host",         "host:",   "host:x",
        "host:65536", "host:-1",  "host:80 ", "[::1]",        "[::1]80", "::1:80",
        "[]:80",      "host:1e3", "[::1:80",  "host:0000080", "a:b:c",   "host: 80"};
    static char huge[400];
    ls_sock_address a;

    for (size_t i = 0; i < LS_COUNT(bad); i++)
        LS_CHECK_FAILS(ls_sock_resolve(bad[i], in_ms(100), &a), LS_EUSAGE, "is not an address");
    memset(huge, 'a', sizeof huge - 4);
    memcpy(huge + sizeof huge - 4, ":80", 4);
    LS_CHECK_FAILS(ls_sock_resolve(huge, in_ms(100), &a), LS_EUSAGE, "is not an address");
}

LS_TEST(sock_names_do_not_outlast_the_deadline)
{
    ls_sock_address a;
    int64_t began = ls_time_now_ns();
    ls_status st = ls_sock_resolve("no-such-host.invalid:80", in_ms(200), &a);

    LS_CHECK(st == LS_EIO || st == LS_EDEADLINE);
    LS_CHECK(strstr(ls_err_last()->text, "no-such-host.invalid"));
    LS_CHECK_WITHIN(began, 5000);
    ls_mem_fail_nth(1);
    LS_CHECK_EQ(ls_sock_resolve("no-such-host.invalid:80", in_ms(200), &a), LS_ENOMEM);
}

LS_TEST(sock_listens_at_one_address_only)
{
    ls_sock_address any, local, taken;
    int fd = -1, other = -1;

    LS_CHECK_OK(ls_sock_resolve("0.0.0.0:0", 0, &any));
    LS_CHECK_FAILS(ls_sock_listen(&any, &fd), LS_EUSAGE, "every interface");
    LS_CHECK_OK(ls_sock_resolve("[::]:0", 0, &any));
    LS_CHECK_FAILS(ls_sock_listen(&any, &fd), LS_EUSAGE, "every interface");
    LS_CHECK_OK(ls_sock_resolve("[::ffff:0.0.0.0]:0", 0, &any));
    LS_CHECK_FAILS(ls_sock_listen(&any, &fd), LS_EUSAGE, "every interface");
    LS_CHECK_OK(ls_sock_resolve("192.0.2.1:0", 0, &any)); /* an address for documents only */
    LS_CHECK_FAILS(ls_sock_listen(&any, &fd), LS_EIO, "cannot listen at 192.0.2.1:0");
    LS_CHECK_EQ(fd, -1);
    LS_CHECK_OK(ls_sock_listen(NULL, &fd));
    LS_CHECK_OK(ls_sock_local(fd, &local));
    LS_CHECK(strncmp(local.text, "127.0.0.1:", 10) == 0);
    LS_CHECK(strcmp(local.text, "127.0.0.1:0") != 0);
    LS_CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    LS_CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
    LS_CHECK_OK(ls_sock_resolve(local.text, 0, &taken));
    LS_CHECK_FAILS(ls_sock_listen(&taken, &other), LS_EIO, local.text);
    LS_CHECK(strstr(ls_err_last()->hint, "Another process listens there"));
    ls_sock_close(&fd);
}

LS_TEST(sock_connects_accepts_and_moves_bytes)
{
    ls_sock_options options = {.user_timeout_ns = LS_NS_PER_S, .keepalive_ns = LS_NS_PER_S};
    int before = open_fds();
    ls_sock_address local, peer;
    int fd = -1, a = -1, b = -1, value = 0;
    socklen_t len = sizeof value;
    char text[6] = "";

    LS_CHECK_OK(ls_sock_listen(NULL, &fd));
    LS_CHECK_OK(ls_sock_local(fd, &local));
    LS_CHECK_OK(ls_sock_accept(fd, 0, &b, &peer));
    LS_CHECK_EQ(b, -1);
    LS_CHECK_FAILS(ls_sock_accept(fd, in_ms(20), &b, &peer), LS_EDEADLINE, "nobody connected");
    LS_CHECK_OK(ls_sock_connect(&local, ls_test_soon(), &a));
    LS_CHECK_OK(ls_sock_accept(fd, ls_test_soon(), &b, &peer));
    LS_CHECK(fcntl(a, F_GETFD) & FD_CLOEXEC);
    LS_CHECK(fcntl(b, F_GETFD) & FD_CLOEXEC);
    LS_CHECK_OK(ls_sock_tune(a, &options));
    LS_CHECK_OK(ls_sock_tune(b, &options));
    LS_CHECK(getsockopt(a, SOL_TCP, TCP_USER_TIMEOUT, &value, &len) == 0 && value == 1000);
    LS_CHECK_OK(ls_sock_io_write(a, "hello", 5, ls_test_soon()));
    LS_CHECK_OK(ls_sock_io_read(b, text, 5, ls_test_soon()));
    LS_CHECK_STR(text, "hello");
    LS_CHECK_FAILS(ls_sock_io_read(b, text, 5, in_ms(20)), LS_EDEADLINE, "0 of 5 bytes");
    LS_CHECK(strncmp(peer.text, "127.0.0.1:", 10) == 0);
    char *much = ls_mem_alloc(8 << 20);
    LS_CHECK(much);
    LS_CHECK_FAILS(ls_sock_io_write(a, much, 8 << 20, in_ms(50)), LS_EDEADLINE, "in time");
    ls_mem_free(much);
    ls_sock_close(&a);
    ls_sock_close(&a);
    LS_CHECK_OK(ls_sock_wait(b, POLLIN, ls_test_soon()));
    ls_sock_close(&b);
    ls_sock_close(&fd);
    LS_CHECK_EQ(open_fds(), before);
}

LS_TEST(sock_connect_gives_up_at_the_deadline)
{
    ls_sock_address local;
    int fd = -1, a = -1;
    int64_t began = ls_time_now_ns();

    LS_CHECK_OK(ls_sock_listen(NULL, &fd));
    LS_CHECK_OK(ls_sock_local(fd, &local));
    ls_sock_close(&fd);
    LS_CHECK_FAILS(ls_sock_connect(&local, in_ms(100), &a), LS_EDEADLINE, local.text);
    LS_CHECK(strstr(ls_err_last()->text, "refused"));
    LS_CHECK(ls_time_now_ns() - began >= 100 * LS_NS_PER_MS);
    LS_CHECK_WITHIN(began, 5000);
}

LS_TEST(sock_a_connection_to_itself_is_refused)
{
    ls_sock_address own;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    LS_CHECK_OK(ls_sock_resolve("127.0.0.1:0", 0, &own));
    LS_CHECK(bind(fd, (struct sockaddr *)&own.storage, own.len) == 0);
    LS_CHECK_OK(ls_sock_local(fd, &own));
    /* What the kernel does by chance, done on purpose. */
    LS_CHECK(connect(fd, (struct sockaddr *)&own.storage, own.len) == 0 || errno == EINPROGRESS);
    LS_CHECK_OK(ls_sock_wait(fd, POLLOUT, ls_test_soon()));
    LS_CHECK_EQ(ls_sock_connect_result(fd), ECONNREFUSED);
    ls_sock_close(&fd);
}
