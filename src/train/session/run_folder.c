/* run_folder.c -- see folder.h. A lock is taken from somebody by a new file under its name: the old
 * one, which has no name any more, may stay locked for ever. */
#include "train/session/run_folder.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>
#include "base/file.h"
#include "base/log.h"
#include "base/time.h"

enum { LOOK_MS = 20 };

void ls_run_folder_holder(const char *path, char holder_out[LS_HF_FOLDER_HOLDER])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, holder_out, LS_HF_FOLDER_HOLDER - 1);

    if (fd >= 0)
        close(fd);
    holder_out[n > 0 ? n : 0] = '\0';
    holder_out[strcspn(holder_out, "\n")] = '\0';
}

ls_status ls_run_folder_lock(const char *path, const char *former, int64_t patience_ns, int *fd_out)
{
    int64_t until_ns = ls_time_now_ns() + patience_ns;
    char holder[LS_HF_FOLDER_HOLDER];
    ls_status st;

    while ((st = ls_file_lock(path, fd_out)) == LS_EBUSY && ls_time_now_ns() < until_ns)
        nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * LS_NS_PER_MS}, NULL);
    if (st != LS_EBUSY || !*former)
        return st;
    ls_run_folder_holder(path, holder);
    if (strcmp(holder, former) != 0)
        return st;
    ls_log(LS_LOG_WARN, "\"%s\" is taken from %s, which is no part of this run any more", path,
           holder);
    if (unlink(path) != 0)
        return ls_fail_sys(LS_EIO, "cannot take \"%s\" from %s", path, holder);
    ls_err_clear();
    return ls_file_lock(path, fd_out);
}
