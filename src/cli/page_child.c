/* page_child.c -- see page_child.h.
 *
 * It is forked twice, so that it is a child of init: an agent of several ranks reaps and kills its own
 * children and would count it among them. */
#include "cli/page_child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/time.h"
#include "launch/task_rendezvous.h"

enum { WAIT_S = 3 };

bool ls_page_child_wanted(const ls_args *args)
{
    if (ls_args_has(args, "no-page"))
        return false;
    if (ls_args_has(args, "page"))
        return true;
    /* A host of a lab, and a task of a launcher, are no place where a browser is. */
    if (getenv("LINESHAFT_LAB_NODE") || ls_task_rendezvous_is_task())
        return false;
    return !ls_args_has(args, "json") && !ls_args_has(args, "quiet") && isatty(STDIN_FILENO) &&
           isatty(STDOUT_FILENO) && isatty(STDERR_FILENO);
}

/* Between fork and exec: only what a signal handler may call. */
static _Noreturn void be_page(const char *const *words, int in, int out)
{
    int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
    char **argv = (char **)(uintptr_t)words;

    if (dup2(in, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0 && nothing >= 0 &&
        dup2(nothing, STDERR_FILENO) >= 0)
        execv("/proc/self/exe", argv);
    _exit(127);
}

static void start(const char *const *words, int in, int out)
{
    pid_t middle = fork();

    if (middle == 0) {
        if (setsid() < 0 || fork() != 0)
            _exit(0);
        be_page(words, in, out);
    }
    while (middle > 0 && waitpid(middle, NULL, 0) < 0 && errno == EINTR) {
    }
}

/* The first line, without its end; "" when none comes in time. */
static void read_line(int fd, char *line_out, size_t size)
{
    int64_t deadline_ns = ls_time_now_ns() + WAIT_S * LS_NS_PER_S;
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    size_t len = 0;

    *line_out = '\0';
    while (len + 1 < size && !memchr(line_out, '\n', len)) {
        int64_t left_ms = (deadline_ns - ls_time_now_ns()) / LS_NS_PER_MS;
        if (left_ms <= 0 || poll(&wait, 1, (int)left_ms) <= 0)
            break;
        ssize_t n = read(fd, line_out + len, size - 1 - len);
        if (n <= 0)
            break;
        len += (size_t)n;
    }
    char *end = memchr(line_out, '\n', len);
    if (end)
        *end = '\0';
    else
        *line_out = '\0';
}

void ls_page_child_start(const char *folder, char *url_out, size_t size)
{
    const char *const words[] = {"lineshaft", "page", "--until-eof", "--", folder, NULL};
    int alive[2] = {-1, -1}, says[2] = {-1, -1};

    *url_out = '\0';
    if (pipe2(alive, O_CLOEXEC) == 0 && pipe2(says, O_CLOEXEC) == 0) {
        start(words, alive[0], says[1]);
        close(says[1]);
        says[1] = -1;
        read_line(says[0], url_out, size);
    }
    /* alive[1] stays open for the life of this process. */
    for (int i = 0; i < 2; i++)
        if (says[i] >= 0)
            close(says[i]);
    if (alive[0] >= 0)
        close(alive[0]);
    if (!*url_out && alive[1] >= 0)
        close(alive[1]);
}
