/* cpus.h -- which cores of this machine are ours, and how many threads that makes.
 *
 * Ours are the physical cores (hwloc) within this process's affinity mask, as much of them as the
 * CPU quota of its control groups pays for, and only our slice of them when a launcher has started
 * several ranks on this node and has not bound them itself. Slices are neighbours: cores stand in
 * the order of packages, NUMA nodes and last-level caches. One thread per core: hyperthreads share
 * the units that multiply. Sizes of memory are not asked of hwloc, which does not know containers.
 *
 * Everything found is kept, so that `lineshaft doctor` can say why. */
#pragma once
#include "base/pool.h"
#include "base/str.h"

LS_C_BEGIN

typedef struct ls_cpus {
    /* The machine, as far as the container shows it. */
    bool known; /* the topology could be read; otherwise each CPU counts as a core */
    int packages, nodes, l3s, cores, cpus; /* l3s: 0 where they are not known */
    /* This process. */
    int mask_cores, mask_cpus, mask_nodes; /* that its affinity mask allows or touches */
    bool bound;                            /* the mask has fewer CPUs than the machine */
    double quota;           /* CPUs' worth of time that the groups allow; 0: no limit */
    char quota_folder[256]; /* the group that sets it */
    int ranks, rank;        /* of one launch on this node; 1: alone. rank -1: not known */
    const char *ranks_from, *rank_from; /* the variables that say so; NULL: none */
    int sharing;                        /* ranks on the same mask; 1: it is ours alone */
    /* What follows from it. */
    int share;          /* cores for this process */
    int first;          /* the first of them in `core`; -1: which ones is not known */
    int threads;        /* what device.threads: auto means; at least 1 */
    ls_pool_mask *core; /* owned; mask_cores sets of CPUs that the mask allows, in order */
} ls_cpus;

/* Look. LS_ENOMEM is the only failure. */
ls_status ls_cpus_init(ls_cpus *cpus);
void ls_cpus_release(ls_cpus *cpus);

/* The sets of CPUs for a pool of this many threads, one each, or NULL when the pool should not be
 * pinned; *why_out says why, in words that follow "pinned" or "not pinned". Pinned is a pool that
 * takes every core of its share. With fewer threads, or under a quota, two processes would choose
 * the same cores while others are idle. always: wherever there are enough cores and we know which
 * ones are ours. */
const ls_pool_mask *ls_cpus_pins(const ls_cpus *cpus, int threads, bool always,
                                 const char **why_out);

/* Whether this many threads are more than there are CPUs, or CPU time, for. */
bool ls_cpus_crowded(const ls_cpus *cpus, int threads);

/* Where this process may run: numbers of the machine's parts; -1: in several, or not known. */
typedef struct ls_cpus_place {
    int package, node, l3, core;
} ls_cpus_place;

ls_cpus_place ls_cpus_here(void);

/* What two processes of one machine share, from near to far. */
typedef enum ls_cpus_distance {
    LS_CPUS_CORE,
    LS_CPUS_L3,
    LS_CPUS_NODE,
    LS_CPUS_PACKAGE,
    LS_CPUS_MACHINE,
    LS_CPUS_ANYWHERE, /* one of them may run in several packages */
} ls_cpus_distance;

ls_cpus_distance ls_cpus_between(const ls_cpus_place *a, const ls_cpus_place *b);
const char *ls_cpus_distance_name(ls_cpus_distance distance); /* "core", "L3", "NUMA", ... */

/* How cpus->threads came about: "2 cores", "4 of 64 cores: the CPU quota of ... is 4.0". */
void ls_cpus_explain(const ls_cpus *cpus, ls_str *out);

LS_C_END
