/* time.c -- the age of this process, from the kernel's own record of its start. */
#include "base/time.h"

#include <unistd.h>

int64_t ls_time_since_start_ns(void)
{
    static const int64_t fallback = 0;
    unsigned long long ticks = 0;
    char line[1024];
    struct timespec boot;
    FILE *f = fopen("/proc/self/stat", "re");

    if (!f)
        return fallback;
    const char *got = fgets(line, sizeof line, f);
    fclose(f);
    /* Field 22 counts from after the command name, which may itself hold blanks and brackets. */
    const char *p = got ? strrchr(line, ')') : NULL;
    if (!p || sscanf(p + 1,
                     " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d "
                     "%llu",
                     &ticks) != 1)
        return fallback;
    clock_gettime(CLOCK_BOOTTIME, &boot);
    int64_t now = (int64_t)boot.tv_sec * LS_NS_PER_S + boot.tv_nsec;
    return now - (int64_t)ticks * (LS_NS_PER_S / sysconf(_SC_CLK_TCK));
}
