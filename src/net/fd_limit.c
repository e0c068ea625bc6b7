/* fd_limit.c -- the limit of open files.
 *
 * It is raised only when it has to be: the processes that this one starts inherit it, and some old
 * programs cannot live with descriptors above 1024. What this process has open is counted, because
 * a job's descriptors are few but not none. */
#include "net/fd_limit.h"

#include <dirent.h>
#include <sys/resource.h>

enum { SPARE = 64 }; /* for files, pipes and timers that come later */

static int count_open(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int n = 0;

    while (folder && readdir(folder))
        n++;
    if (folder)
        closedir(folder);
    return n;
}

ls_status ls_fd_limit_make(int more, const char *who)
{
    struct rlimit limit;
    rlim_t need = (rlim_t)(more + count_open() + SPARE);

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return ls_fail_sys(LS_EIO, "cannot read the limit of open files");
    if (limit.rlim_cur >= need)
        return LS_OK;
    struct rlimit higher = {.rlim_cur = need,
                            .rlim_max = limit.rlim_max > need ? limit.rlim_max : need};
    if (setrlimit(RLIMIT_NOFILE, &higher) == 0)
        return LS_OK;
    ls_fail(LS_EUSAGE, "%s need %llu open files, and this process may have %llu", who,
            (unsigned long long)need, (unsigned long long)limit.rlim_max);
    ls_err_hint("Raise the hard limit: \"ulimit -Hn %llu\" as root, nofile in "
                "/etc/security/limits.conf, or LimitNOFILE= of the service.",
                (unsigned long long)need);
    return LS_EUSAGE;
}
