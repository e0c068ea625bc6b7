/* process_stat.c -- one line of text: "7 (name) S 1 7 7 ...", fields separated by blanks.
 *
 * The name may hold any character, also blanks and brackets, so the fields are counted from the last
 * ')': state, parent, group, session, terminal (2), flags, page faults (4), user and system time. */
#include "cluster/member/process_stat.h"

#include <fcntl.h>
#include <unistd.h>

bool ls_process_stat_read(pid_t pid, ls_process_stat *stat_out)
{
    char path[40], text[512], state;
    long parent, session, user, system;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *end = strrchr(text, ')');
    if (!end || sscanf(end + 1, " %c %ld %*d %ld %*d %*d %*u %*u %*u %*u %*u %ld %ld", &state,
                       &parent, &session, &user, &system) != 5)
        return false;
    *stat_out = (ls_process_stat){state, (pid_t)parent, (pid_t)session, user + system};
    return true;
}
