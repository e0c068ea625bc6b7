/* test_state_file.c -- files of a process that lives stay, those of one that was killed go. */
#include "harness.h"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/file.h"
#include "cluster/elect/state_file.h"

static void put(const char *path, const char *end)
{
    char name[PATH_MAX + 16];

    snprintf(name, sizeof name, "%s%s", path, end);
    LS_CHECK_OK(ls_file_write_atomic(name, "x", 1));
}

static int files(void)
{
    ls_str names;
    int n = 0;

    ls_str_init(&names);
    if (ls_file_glob("state/*", &names, &n) != LS_OK)
        n = 0;
    ls_str_release(&names);
    return n;
}

/* A process that has a file and two beside it, and waits. */
static pid_t start(void)
{
    int ready[2];
    char byte;

    LS_CHECK_EQ(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        ls_state_file file;
        if (ls_state_file_create(&file, ".wal") != LS_OK)
            _exit(1);
        put(file.path, "");
        put(file.path, ".lock");
        if (write(ready[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ready[1]);
    LS_CHECK_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

static void stop(pid_t pid)
{
    LS_CHECK_EQ(kill(pid, SIGKILL), 0);
    LS_CHECK_EQ(waitpid(pid, NULL, 0), pid);
}

LS_TEST(state_files_of_killed_processes_are_swept)
{
    setenv("LINESHAFT_STATE", "state", 1);
    pid_t first = start(), second = start();
    LS_CHECK_EQ(files(), 6);
    stop(first);
    ls_state_file_sweep();
    LS_CHECK_EQ(files(), 3); /* those of the second stay */
    pid_t third = start();
    LS_CHECK_EQ(files(), 6);
    stop(second);
    stop(third);
    ls_state_file_sweep();
    LS_CHECK_EQ(files(), 0);
}

LS_TEST(state_file_is_removed_with_what_is_beside_it)
{
    ls_state_file one, two, none = {.path = ""};

    setenv("LINESHAFT_STATE", "state", 1);
    LS_CHECK_OK(ls_state_file_create(&one, ".vote"));
    LS_CHECK_OK(ls_state_file_create(&two, ".wal"));
    put(one.path, "");
    put(one.path, ".lock");
    put(two.path, ".next.lock");
    ls_state_file_remove(&one);
    LS_CHECK(!*one.path);
    LS_CHECK_EQ(files(), 2);
    ls_state_file_remove(&two);
    ls_state_file_remove(&none);
    LS_CHECK_EQ(files(), 0);
}

LS_TEST(state_files_without_a_lock_are_kept_for_a_week)
{
    struct timespec old[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};

    setenv("LINESHAFT_STATE", "state", 1);
    LS_CHECK_EQ(mkdir("state", 0700), 0);
    put("state/5e1f.wal", "");
    put("state/5e1f.wal.lock", "");
    put("state/notes", "");
    ls_state_file_sweep();
    LS_CHECK_EQ(files(), 3);
    LS_CHECK_EQ(utimensat(AT_FDCWD, "state/5e1f.wal", old, 0), 0);
    LS_CHECK_EQ(utimensat(AT_FDCWD, "state/notes", old, 0), 0);
    ls_state_file_sweep();
    LS_CHECK_EQ(files(), 2);
    LS_CHECK(ls_file_exists("state/notes"));
}
