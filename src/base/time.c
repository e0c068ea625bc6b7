/* time.c -- the age of this process, from the kernel's own record of its start; spans in words. */
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

const char *ls_time_text(double ns, char out[LS_TIME_TEXT])
{
    /* Up to this many of the smaller unit: 100 s say more than 1.7 min, 999.6 ms are a second. */
    static const struct {
        const char *name;
        double ns, most;
    } units[] = {{"ns", 1, 999.5},     {"us", 1e3, 999.5},    {"ms", 1e6, 999.5},
                 {"s", 1e9, 119.95},   {"min", 60e9, 119.95}, {"h", 3600e9, 47.95},
                 {"days", 86400e9, -1}};
    size_t i = 0;

    if (!(ns >= 1)) {
        snprintf(out, LS_TIME_TEXT, "0");
        return out;
    }
    while (units[i].most > 0 && ns / units[i].ns >= units[i].most)
        i++;
    double x = ns / units[i].ns;
    snprintf(out, LS_TIME_TEXT, "%.*f %s", x < 9.995 ? 2 : x < 99.95 ? 1 : 0, x, units[i].name);
    return out;
}
