/* jobs.c -- see jobs.h. Processes are found by a variable in their environment, which nothing that
 * a test starts takes away. */
#include "cluster/jobs.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/time.h"
#include "harness.h"

static int scratch_file(void)
{
    char path[] = "/tmp/lineshaft-jobs.XXXXXX";
    int fd = mkostemp(path, O_CLOEXEC);

    LS_CHECK(fd >= 0);
    unlink(path);
    return fd;
}

static void take(int fd, ls_str *text)
{
    char block[65536];
    ssize_t n;

    ls_str_init(text);
    lseek(fd, 0, SEEK_SET);
    while ((n = read(fd, block, sizeof block)) > 0)
        ls_str_append_bytes(text, block, (size_t)n);
    close(fd);
}

void jobs_do(jobs_run *run, ls_agent_args args, const char *command)
{
    const char *words[] = {"/bin/sh", "-c", command, NULL};
    int out = scratch_file(), err = scratch_file();

    if (command)
        args.command = words;
    args.out_fd = out;
    args.err_fd = err;
    run->result = (ls_agent_result){.worker = -2};
    run->st = ls_agent_run(&args, &run->result);
    take(out, &run->out);
    take(err, &run->err);
}

void jobs_release(jobs_run *run)
{
    ls_str_release(&run->out);
    ls_str_release(&run->err);
}

void jobs_mark(void)
{
    char value[32];

    snprintf(value, sizeof value, "%d", (int)getpid());
    setenv("LS_TEST_JOBS", value, 1);
}

static bool is_marked(const char *pid, const char *mark)
{
    char path[300], *text = NULL, stat[512] = "";
    size_t cap = 0;
    bool found = false;

    snprintf(path, sizeof path, "/proc/%s/environ", pid);
    FILE *f = fopen(path, "re");
    while (f && !found && getdelim(&text, &cap, '\0', f) > 0)
        found = strcmp(text, mark) == 0;
    free(text);
    if (f)
        fclose(f);
    if (!found)
        return false;
    /* A zombie whose parent is about to reap it does no harm, but one that stays does. */
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    f = fopen(path, "re");
    if (f && !fgets(stat, sizeof stat, f))
        stat[0] = '\0';
    if (f)
        fclose(f);
    return *stat != '\0';
}

int jobs_marked(void)
{
    char mark[64], self[16];
    DIR *dir = opendir("/proc");
    struct dirent *entry;
    int n = 0;

    snprintf(mark, sizeof mark, "LS_TEST_JOBS=%s", getenv("LS_TEST_JOBS"));
    snprintf(self, sizeof self, "%d", (int)getpid());
    LS_CHECK(dir);
    while ((entry = readdir(dir)))
        n += isdigit((unsigned char)entry->d_name[0]) && strcmp(entry->d_name, self) != 0 &&
             is_marked(entry->d_name, mark);
    closedir(dir);
    return n;
}

void jobs_expect_none(const char *file, int line)
{
    int64_t deadline_ns = ls_time_now_ns() + 20 * LS_NS_PER_S;
    int n;

    while ((n = jobs_marked()) > 0) {
        if (ls_time_now_ns() > deadline_ns)
            ls_test_fail(file, line, "%d processes were left behind", n);
        usleep(2000);
    }
}

int jobs_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    LS_CHECK(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

void jobs_await(const char *path)
{
    int64_t deadline_ns = ls_test_soon();

    while (!ls_file_exists(path)) {
        LS_CHECK(ls_time_now_ns() < deadline_ns);
        usleep(1000);
    }
}

long jobs_number(const char *path)
{
    long n = -1;
    FILE *f = fopen(path, "re");

    LS_CHECK(f && fscanf(f, "%ld", &n) == 1);
    fclose(f);
    return n;
}
