/* test_error_channel.c -- records over the socket, and garbage instead of them. */
#include "harness.h"
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/time.h"
#include "cluster/node/error_channel.h"
#include "cluster/jobs.h"

static void announce(int fd, const char *rank)
{
    char text[16];

    snprintf(text, sizeof text, "%d", fd);
    setenv("LINESHAFT_CAUSE_FD", text, 1);
    if (rank)
        setenv("LINESHAFT_RANK", rank, 1);
}

/* Only the leader of a session is a worker; a test is not. */
static int send_as_worker(void)
{
    int status;
    pid_t pid = fork();

    LS_CHECK(pid >= 0);
    if (pid == 0) {
        setsid();
        _exit(ls_error_channel_send(ls_err_last()) ? 0 : 1);
    }
    LS_CHECK_EQ(waitpid(pid, &status, 0), pid);
    return WEXITSTATUS(status);
}

LS_TEST(cause_travels_whole)
{
    int fds[2];
    ls_error_channel cause;

    LS_CHECK_OK(ls_error_channel_pair(fds));
    LS_CHECK(!ls_error_channel_receive(fds[0], &cause));
    announce(fds[1], "41");
    ls_err_doing("one");
    ls_err_doing("two");
    ls_fail(LS_ENUMERIC, "the loss is %s", "NaN");
    ls_err_hint("Use less.");
    LS_CHECK_EQ(send_as_worker(), 0);
    LS_CHECK(ls_error_channel_receive(fds[0], &cause));
    LS_CHECK_EQ(cause.rank, 41);
    LS_CHECK_EQ(cause.record.code, LS_ENUMERIC);
    LS_CHECK_STR(cause.record.text, "the loss is NaN");
    LS_CHECK_STR(cause.record.hint, "Use less.");
    LS_CHECK_STR(cause.record.doing, "one, two");
    LS_CHECK(cause.host[0] && cause.record.file);
    LS_CHECK(!ls_error_channel_receive(fds[0], &cause));
    LS_CHECK(!ls_error_channel_send(ls_err_last())); /* not a worker itself */
    close(fds[0]);
    LS_CHECK_EQ(send_as_worker(), 1); /* nobody listens: no signal, no hang */
    close(fds[1]);
    ls_err_done();
    ls_err_done();
}

LS_TEST(cause_needs_a_socket)
{
    static const char *const wrong[] = {"", "x", "-1", "2", "999999", "12x", " 5"};

    ls_fail(LS_EIO, "no");
    unsetenv("LINESHAFT_CAUSE_FD");
    LS_CHECK_EQ(send_as_worker(), 1);
    for (size_t i = 0; i < LS_COUNT(wrong); i++) {
        setenv("LINESHAFT_CAUSE_FD", wrong[i], 1);
        LS_CHECK_EQ(send_as_worker(), 1);
    }
}

LS_TEST(cause_drops_garbage)
{
    int fds[2];
    ls_error_channel cause;
    static char bytes[4096];

    LS_CHECK_OK(ls_error_channel_pair(fds));
    announce(fds[1], "3");
    ls_fail(LS_EIO, "a real one");
    LS_CHECK_EQ(send_as_worker(), 0);
    ssize_t size = recv(fds[0], bytes, sizeof bytes, 0);
    LS_CHECK(size > 1000);
    static char bad[4096];
    for (int kind = 0; kind < 8; kind++) {
        memcpy(bad, bytes, sizeof bad);
        size_t len = (size_t)size;
        switch (kind) {
        case 0:
            len = 1;
            break;
        case 1:
            len--;
            break;
        case 2:
            len++;
            break;
        case 3:
            bad[0] ^= 1; /* magic */
            break;
        case 4:
            bad[8] = 0; /* no failure */
            break;
        case 5:
            bad[11] = 1; /* no such class */
            break;
        case 6:
            bad[8 + sizeof cause.record + 3] = (char)0x80; /* rank below 0 */
            break;
        default:
            memset(bad + 12, 'x', sizeof cause.record.text); /* a text without an end */
        }
        LS_CHECK_EQ(send(fds[1], bad, len, 0), len);
    }
    LS_CHECK_EQ(send(fds[1], bytes, (size_t)size, 0), size);
    LS_CHECK(ls_error_channel_receive(fds[0], &cause));
    LS_CHECK_STR(cause.record.text, "a real one");
    LS_CHECK(!ls_error_channel_receive(fds[0], &cause));
    close(fds[0]);
    close(fds[1]);
}

/* A worker that floods the channel does not hang, and neither does its agent. */
LS_TEST(cause_that_nobody_reads_does_not_hang)
{
    int fds[2];
    int64_t began = ls_time_now_ns();

    LS_CHECK_OK(ls_error_channel_pair(fds));
    announce(fds[1], "0");
    ls_fail(LS_EIO, "again");
    for (int i = 0; i < 1000; i++)
        if (send_as_worker() != 0) {
            LS_CHECK(ls_time_now_ns() - began < 10 * LS_NS_PER_S);
            return;
        }
    LS_CHECK(!"a socket without a bottom");
}
