/* cpu_pinning.c -- cores divided by ranks, rounded down.
 *
 * Example: 6 cores, 4 ranks: one core each (0, 1, 2, 3), two are left over. 6 cores under a quota
 * of 4 CPUs, 2 ranks: cores 0-2 and 3-5, 2 threads each, because a quota says how much time there
 * is and not which cores are free. */
#include "cluster/node/cpu_pinning.h"

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/mem.h"
#include "device/cpu/cgroup.h"

enum {
    RANKS_PER_CPU = 32,  /* more would only wait for each other */
    FEW = 64,            /* always allowed, for tests and examples on small machines */
    RANK_KIB = 16 << 10, /* what a rank takes before it has any data */
    RANK_FILES = 6,      /* descriptors of the agent for each rank while it starts */
    OWN_FILES = 64,      /* and for itself */
    MOST_RANKS = 4096    /* on one node, in any case */
};

static int least(double a, int b)
{
    return a < b ? (int)a : b;
}

ls_status ls_cpu_pinning_cut(ls_cpu_pinning *pinning, const ls_cpus *cpus, int ranks)
{
    int each = cpus->share / ranks;
    double paid = cpus->quota > 0 ? cpus->quota / cpus->ranks / ranks : each;

    *pinning = (ls_cpu_pinning){.ranks = ranks, .threads = least(paid, each)};
    if (pinning->threads < 1)
        pinning->threads = 1;
    if (each < 1 || cpus->first < 0 || !cpus->known)
        return LS_OK;
    pinning->masks = ls_mem_array((size_t)ranks, sizeof *pinning->masks);
    if (!pinning->masks)
        return LS_ENOMEM;
    for (int r = 0; r < ranks; r++)
        for (int i = 0; i < each; i++) {
            const ls_pool_mask *core = &cpus->core[cpus->first + r * each + i];
            for (size_t w = 0; w < LS_COUNT(core->bits); w++)
                pinning->masks[r].bits[w] |= core->bits[w];
        }
    return LS_OK;
}

ls_status ls_cpu_pinning_init(ls_cpu_pinning *pinning, int ranks)
{
    ls_cpus cpus;
    ls_status st = ls_cpus_init(&cpus);

    *pinning = (ls_cpu_pinning){.ranks = ranks, .threads = 1};
    if (st == LS_OK)
        st = ls_cpu_pinning_cut(pinning, &cpus, ranks);
    ls_cpus_release(&cpus);
    return st;
}

void ls_cpu_pinning_release(ls_cpu_pinning *pinning)
{
    ls_mem_free(pinning->masks);
    pinning->masks = NULL;
}

/* --- limits ----------------------------------------------------------------------------------- */

/* Processes of this user, as far as /proc shows them. */
static int64_t own_processes(void)
{
    DIR *dir = opendir("/proc");
    int64_t n = 0;
    struct dirent *entry;
    struct stat info;

    while (dir && (entry = readdir(dir)))
        n += isdigit((unsigned char)entry->d_name[0]) &&
             fstatat(dirfd(dir), entry->d_name, &info, 0) == 0 && info.st_uid == getuid();
    if (dir)
        closedir(dir);
    return n;
}

typedef struct limit {
    int64_t most;
    char *why;
    size_t cap;
} limit;

static void lower(limit *l, int64_t most, const char *fmt, ...) LS_PRINTF(3, 4);
static void lower(limit *l, int64_t most, const char *fmt, ...)
{
    va_list ap;

    most = most < 0 ? 0 : most;
    if (most >= l->most)
        return;
    l->most = most;
    va_start(ap, fmt);
    vsnprintf(l->why, l->cap, fmt, ap);
    va_end(ap);
}

/* The lowest of several limits, with its reason. Example: 1000 files allowed: (1000 - 64) / 6 = 156 ranks,
 * "at most 156 with 1000 open files allowed (ulimit -Hn)". */
int ls_cpu_pinning_most(char *why_out, size_t cap)
{
    limit l = {.most = MOST_RANKS, .why = why_out, .cap = cap};
    int64_t kib = ls_cgroup_number("/proc", "meminfo", "MemAvailable");
    struct rlimit r;
    ls_pool_mask mask;

    snprintf(why_out, cap, "on one node");
    ls_pool_mask_get(&mask);
    int64_t cpus = ls_pool_mask_count(&mask);
    lower(&l, ls_max_i64(FEW, RANKS_PER_CPU * cpus), "with %" PRId64 " CPUs", cpus);
    if (kib > 0)
        lower(&l, kib / RANK_KIB, "with %" PRId64 " MiB of memory free", kib >> 10);
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_max != RLIM_INFINITY)
        lower(&l, ((int64_t)r.rlim_max - OWN_FILES) / RANK_FILES,
              "with %" PRId64 " open files allowed (ulimit -Hn)", (int64_t)r.rlim_max);
    if (getuid() != 0 && getrlimit(RLIMIT_NPROC, &r) == 0 && r.rlim_cur != RLIM_INFINITY)
        lower(&l, (int64_t)r.rlim_cur - own_processes() - 2,
              "with %" PRId64 " processes allowed (ulimit -u)", (int64_t)r.rlim_cur);
    return (int)l.most;
}
