/* test_run_folder.c -- a lock that is let go of, kept, and taken from a process that stands still. */
#include "harness.h"
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/file.h"
#include "base/time.h"
#include "train/session/run_folder.h"

static const char path[] = "run.lock";

/* A process that has the lock, and does nothing more; what it wrote into it. */
static pid_t holder(char text_out[LS_RUN_FOLDER_HOLDER])
{
    int64_t until_ns = ls_test_soon();
    int fd;
    pid_t pid = fork();

    if (pid == 0) {
        if (ls_file_lock(path, &fd) != LS_OK)
            _exit(1);
        for (;;)
            pause();
    }
    LS_CHECK(pid > 0);
    do
        ls_run_folder_holder(path, text_out);
    while (!*text_out && ls_time_now_ns() < until_ns);
    LS_CHECK(strncmp(text_out, "pid ", 4) == 0);
    return pid;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

LS_TEST(folder_lock_is_waited_for)
{
    char text[LS_RUN_FOLDER_HOLDER];
    int fd = -1;
    pid_t pid = holder(text);

    LS_CHECK_FAILS(ls_run_folder_lock(path, "", 0, &fd), LS_EBUSY, text);
    LS_CHECK_FAILS(ls_run_folder_lock(path, "pid 1 on elsewhere", ls_test_ms(50), &fd), LS_EBUSY,
                   text);
    end(pid);
    LS_CHECK_OK(ls_run_folder_lock(path, "", 0, &fd));
    ls_file_unlock(fd);
}

LS_TEST(folder_lock_is_taken_from_a_run_that_stands_still)
{
    char text[LS_RUN_FOLDER_HOLDER], now[LS_RUN_FOLDER_HOLDER];
    int fd = -1, other = -1;
    pid_t pid = holder(text);

    kill(pid, SIGSTOP);
    LS_EXPECT_LOG(1);
    LS_CHECK_OK(ls_run_folder_lock(path, text, ls_test_ms(50), &fd));
    ls_run_folder_holder(path, now);
    LS_CHECK(strcmp(now, text) != 0);
    LS_CHECK_FAILS(ls_file_lock(path, &other), LS_EBUSY, now); /* it is a lock like any other */
    kill(pid, SIGCONT);
    LS_CHECK_FAILS(ls_run_folder_lock(path, "", 0, &other), LS_EBUSY, now);
    end(pid);
    ls_file_unlock(fd);
}

LS_TEST(folder_holder_of_no_lock_is_nobody)
{
    char text[LS_RUN_FOLDER_HOLDER] = "x";

    ls_run_folder_holder("no-such.lock", text);
    LS_CHECK_STR(text, "");
}
