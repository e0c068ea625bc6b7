/* capture.c -- standard streams into files and back. */
#include "cli/capture.h"

#include <unistd.h>
#include <fcntl.h>
#include <sys/wait.h>
#include "harness.h"
#include "cli/dispatch.h"

static int redirect(int fd, int *saved)
{
    char path[] = "/tmp/lineshaft-capture.XXXXXX";
    int file = mkstemp(path);

    LS_CHECK(file >= 0);
    unlink(path);
    *saved = dup(fd);
    LS_CHECK(*saved >= 0 && dup2(file, fd) == fd);
    return file;
}

static void restore(int fd, int saved, int file, ls_str *text)
{
    char block[4096];
    ssize_t n;

    LS_CHECK(dup2(saved, fd) == fd);
    close(saved);
    lseek(file, 0, SEEK_SET);
    while ((n = read(file, block, sizeof block)) > 0)
        ls_str_append_bytes(text, block, (size_t)n);
    close(file);
}

void ls_capture_run(ls_capture *capture, const char *const *words)
{
    const char *argv[80] = {"lineshaft"};
    int argc = 1, saved_out, saved_err;

    ls_str_init(&capture->out);
    ls_str_init(&capture->err);
    while (words[argc - 1]) {
        LS_CHECK(argc + 1 < (int)LS_COUNT(argv));
        argv[argc] = words[argc - 1];
        argc++;
    }
    fflush(NULL);
    int out = redirect(STDOUT_FILENO, &saved_out), err = redirect(STDERR_FILENO, &saved_err);
    capture->code = ls_dispatch_main(argc, argv);
    fflush(NULL);
    restore(STDOUT_FILENO, saved_out, out, &capture->out);
    restore(STDERR_FILENO, saved_err, err, &capture->err);
}

void ls_capture_release(ls_capture *capture)
{
    ls_str_release(&capture->out);
    ls_str_release(&capture->err);
}

int ls_capture_shell(const char *command, ls_str *out)
{
    char line[1200], block[4096];
    size_t n;

    LS_CHECK((size_t)snprintf(line, sizeof line, "{ %s\n} 2>&1", command) < sizeof line);
    FILE *pipe = popen(line, "r");
    LS_CHECK(pipe != NULL);
    while ((n = fread(block, 1, sizeof block, pipe)) > 0)
        ls_str_append_bytes(out, block, n);
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
