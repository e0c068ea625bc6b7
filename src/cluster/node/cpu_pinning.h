/* cpu_pinning.h -- which cores each rank of this node gets, and how many threads that makes.
 *
 * Ranks work in lock step, so all get the same number of cores: the slowest one decides, and a core
 * that cannot be given to every rank is left to the agent and to others. Slices are neighbours (see
 * device/cpu/cpus.h), and never more than what affinity mask and CPU quota allow. With fewer cores
 * than ranks nobody is pinned, and each rank has one thread. */
#pragma once
#include "base/err.h"
#include "base/pool.h"
#include "device/cpu/cpus.h"

LS_C_BEGIN

typedef struct ls_cpu_pinning {
    int ranks;
    int threads;         /* for each rank, at least 1 */
    ls_pool_mask *masks; /* one per rank, owned; NULL: not pinned */
} ls_cpu_pinning;

/* Divide the cores of this process. LS_ENOMEM is the only failure. */
ls_status ls_cpu_pinning_init(ls_cpu_pinning *pinning, int ranks);
void ls_cpu_pinning_release(ls_cpu_pinning *pinning);

/* The same for a machine that was looked at before. */
ls_status ls_cpu_pinning_cut(ls_cpu_pinning *pinning, const ls_cpus *cpus, int ranks);

/* How many ranks may be started here; *why_out says what sets the limit, in words that follow "at
 * most N". */
int ls_cpu_pinning_most(char *why_out, size_t cap);

LS_C_END
