/* cpus.c -- machine, mask, quota and launcher, in this order, each making the share smaller.
 *
 * Example: 2 packages of 16 cores, `mpirun -n 8` without binding. Rank 5 gets the cores 20 to 23,
 * all in the second package: 32 * 5 / 8 = 20. With `--bind-to socket` each rank has a mask of 16
 * cores; 8 masks of 16 cores do not fit on 32, so 4 ranks share each, and a rank takes 16 / 4
 * threads and leaves it to the kernel where they run.
 *
 * hwloc's plugins are not loaded: they would bring in OpenCL, X and XML to find devices that nobody
 * asks for (100 ms). Its cpuid reader is not used either: it binds itself to every CPU in turn. */
#include "device/cpu/cpus.h"

#include <hwloc.h>
#include <pthread.h>
#include "base/mem.h"
#include "device/cpu/cgroup.h"

/* --- quota ------------------------------------------------------------------------------------ */

/* Version 2: "max 100000" or "200000 100000" in one file; version 1: two files, -1 for no limit. */
static double quota_of(const char *folder, int version)
{
    double quota = -1, period = 0;
    char path[512], text[64] = "";

    if (version == 1) {
        quota = (double)ls_cgroup_number(folder, "cpu.cfs_quota_us", "");
        period = (double)ls_cgroup_number(folder, "cpu.cfs_period_us", "");
    } else {
        snprintf(path, sizeof path, "%s/cpu.max", folder);
        FILE *f = fopen(path, "re");
        if (f && (!fgets(text, sizeof text, f) || sscanf(text, "%lf %lf", &quota, &period) != 2))
            quota = -1;
        if (f)
            fclose(f);
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

static void take_quota(void *context, const char *folder, int version)
{
    ls_cpus *cpus = context;
    double quota = quota_of(folder, version);

    if (quota > 0 && (cpus->quota == 0 || quota < cpus->quota)) {
        cpus->quota = quota;
        snprintf(cpus->quota_folder, sizeof cpus->quota_folder, "%s", folder);
    }
}

/* --- launcher --------------------------------------------------------------------------------- */

/* A whole number of a variable; -1 when it is not set or is none. */
static int number_of(const char *variable)
{
    const char *text = getenv(variable);
    char *end;

    if (!text || *text < '0' || *text > '9')
        return -1;
    long n = strtol(text, &end, 10);
    return *end == '\0' && n <= 1 << 20 ? (int)n : -1;
}

/* "4(x2),3" lists the tasks of each node: 4, 4 and 3. -1: it does not. */
static int slurm_tasks(const char *text, int node)
{
    while (text && *text >= '0' && *text <= '9') {
        char *end;
        long tasks = strtol(text, &end, 10), nodes = 1;
        if (end[0] == '(' && end[1] == 'x') {
            nodes = strtol(end + 2, &end, 10);
            if (*end++ != ')')
                return -1;
        }
        if (node < nodes)
            return tasks <= 1 << 20 ? (int)tasks : -1;
        node -= (int)nodes;
        text = *end == ',' ? end + 1 : NULL;
    }
    return -1;
}

/* A batch script has SLURM_NTASKS_PER_NODE too, but is no task: only a step's variables count. */
static int slurm_ranks(const char **from_out)
{
    int node = number_of("SLURM_NODEID");
    int n = slurm_tasks(getenv("SLURM_STEP_TASKS_PER_NODE"), node < 0 ? 0 : node);

    *from_out = "SLURM_STEP_TASKS_PER_NODE";
    if (n < 1 && getenv("SLURM_STEP_ID")) {
        *from_out = "SLURM_NTASKS_PER_NODE";
        n = number_of(*from_out);
    }
    return n;
}

/* The launcher nearest to us counts: torchrun inside srun, mpirun inside a Slurm job. */
static void ask_launcher(ls_cpus *cpus)
{
    static const struct {
        const char *ranks, *rank;
    } launchers[] = {
        {"LOCAL_WORLD_SIZE", "LOCAL_RANK"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
        {"MPI_LOCALNRANKS", "MPI_LOCALRANKID"},
        {"PMI_LOCAL_SIZE", "PMI_LOCAL_RANK"},
        {NULL, "SLURM_LOCALID"},
    };

    cpus->ranks = 1;
    cpus->rank = 0;
    for (size_t i = 0; i < LS_COUNT(launchers); i++) {
        const char *from = launchers[i].ranks;
        int ranks = from ? number_of(from) : slurm_ranks(&from);
        if (ranks < 1)
            continue;
        int rank = number_of(launchers[i].rank);
        cpus->ranks = ranks;
        cpus->rank = rank >= 0 && rank < ranks ? rank : ranks == 1 ? 0 : -1;
        cpus->ranks_from = from;
        cpus->rank_from = cpus->rank >= 0 && rank >= 0 ? launchers[i].rank : NULL;
        return;
    }
}

/* --- machine ---------------------------------------------------------------------------------- */

/* Variables of hwloc are read when a topology is made; ours are gone again before anyone else
 * could see them. NULL when the machine cannot be read. */
static hwloc_topology_t read_machine(const char *synthetic)
{
    static const hwloc_obj_type_t wanted[] = {HWLOC_OBJ_PACKAGE, HWLOC_OBJ_L3CACHE, HWLOC_OBJ_CORE};
    static pthread_mutex_t lock =
        PTHREAD_MUTEX_INITIALIZER; /* other threads may read the environment */
    hwloc_topology_t machine = NULL;

    pthread_mutex_lock(&lock);
    bool ours = !getenv("HWLOC_PLUGINS_PATH");
    if (ours)
        setenv("HWLOC_PLUGINS_PATH", "/dev/null", 1);
    int rc = hwloc_topology_init(&machine);
    if (ours)
        unsetenv("HWLOC_PLUGINS_PATH");
    pthread_mutex_unlock(&lock);
    if (rc != 0)
        return NULL;
    hwloc_topology_set_components(machine, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
    hwloc_topology_set_all_types_filter(machine, HWLOC_TYPE_FILTER_KEEP_NONE);
    for (size_t i = 0; i < LS_COUNT(wanted); i++)
        hwloc_topology_set_type_filter(machine, wanted[i], HWLOC_TYPE_FILTER_KEEP_ALL);
    if ((synthetic && hwloc_topology_set_synthetic(machine, synthetic) != 0) ||
        hwloc_topology_load(machine) != 0) {
        hwloc_topology_destroy(machine);
        return NULL;
    }
    return machine;
}

/* Cores of the machine that the mask touches, each with the CPUs that it allows. */
static void find_cores(ls_cpus *cpus, hwloc_topology_t machine, const ls_pool_mask *mask)
{
    bool has_cores = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_CORE) > 0;
    hwloc_obj_type_t type = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    int cpu;

    cpus->packages = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_PACKAGE);
    cpus->nodes = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_NUMANODE);
    cpus->l3s = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_L3CACHE);
    cpus->cores = hwloc_get_nbobjs_by_type(machine, type);
    cpus->cpus = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_PU);
    for (int i = 0; i < cpus->cores; i++) {
        hwloc_obj_t core = hwloc_get_obj_by_type(machine, type, (unsigned)i);
        ls_pool_mask *to = &cpus->core[cpus->mask_cores];
        bool any = false;
        hwloc_bitmap_foreach_begin(cpu, core->cpuset)
        {
            if (!ls_pool_mask_has(mask, cpu))
                continue;
            ls_pool_mask_add(to, cpu);
            cpus->mask_cpus++;
            any = true;
        }
        hwloc_bitmap_foreach_end();
        cpus->mask_cores += any;
    }
    for (int i = 0; i < cpus->nodes; i++) {
        hwloc_obj_t node = hwloc_get_obj_by_type(machine, HWLOC_OBJ_NUMANODE, (unsigned)i);
        bool any = false;
        hwloc_bitmap_foreach_begin(cpu, node->cpuset)
        {
            any |= ls_pool_mask_has(mask, cpu);
        }
        hwloc_bitmap_foreach_end();
        cpus->mask_nodes += any;
    }
    cpus->known = has_cores && cpus->mask_cores > 0;
    cpus->bound = cpus->mask_cpus < cpus->cpus;
}

/* Without a topology every CPU of the mask is a core. */
static void assume_cores(ls_cpus *cpus, const ls_pool_mask *mask)
{
    cpus->mask_cores = 0;
    for (int cpu = 0; cpu < LS_POOL_CPUS; cpu++)
        if (ls_pool_mask_has(mask, cpu)) {
            cpus->core[cpus->mask_cores] = (ls_pool_mask){{0}};
            ls_pool_mask_add(&cpus->core[cpus->mask_cores++], cpu);
        }
    cpus->mask_cpus = cpus->cores = cpus->cpus = cpus->mask_cores;
    cpus->packages = cpus->nodes = cpus->l3s = 0;
    cpus->known = cpus->bound = false;
}

/* --- the share -------------------------------------------------------------------------------- */

static void divide(ls_cpus *cpus)
{
    int n = cpus->mask_cores, ranks = cpus->ranks;

    cpus->share = n;
    cpus->first = 0;
    cpus->sharing = 1;
    if (ranks > 1 && cpus->bound) { /* by the launcher, we suppose; masks may overlap */
        cpus->sharing = (int)(((int64_t)n * ranks + cpus->cores - 1) / cpus->cores);
        if (cpus->sharing > 1)
            cpus->first = -1;
        cpus->share = n / cpus->sharing;
    } else if (ranks > 1) {
        int64_t from = (int64_t)cpus->rank * n / ranks;
        cpus->sharing = ranks;
        cpus->share = n / ranks;
        cpus->first = -1;
        if (cpus->rank >= 0 && n >= ranks) {
            cpus->first = (int)from;
            cpus->share = (int)((int64_t)(cpus->rank + 1) * n / ranks - from);
        }
    }
    cpus->share = cpus->share < 1 ? 1 : cpus->share;
    cpus->threads = cpus->share;
    if (cpus->quota > 0 && cpus->quota / ranks < cpus->share)
        cpus->threads = cpus->quota / ranks < 1 ? 1 : (int)(cpus->quota / ranks);
}

static ls_status look(ls_cpus *cpus, const char *root, const char *synthetic,
                      const ls_pool_mask *mask)
{
    hwloc_topology_t machine = read_machine(synthetic);
    int n = machine ? hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_PU) : 0;
    int in_mask = ls_pool_mask_count(mask);

    *cpus = (ls_cpus){.first = 0};
    n = n < in_mask ? in_mask : n;
    cpus->core = ls_mem_array((size_t)n + 1, sizeof *cpus->core);
    if (cpus->core) {
        if (machine)
            find_cores(cpus, machine, mask);
        if (cpus->mask_cores == 0)
            assume_cores(cpus, mask);
        ls_cgroup_walk(root, "cpu", take_quota, cpus);
        ask_launcher(cpus);
        divide(cpus);
    }
    if (machine)
        hwloc_topology_destroy(machine);
    return cpus->core ? LS_OK : LS_ENOMEM;
}

ls_status ls_cpus_init(ls_cpus *cpus)
{
    ls_pool_mask mask;

    ls_pool_mask_get(&mask);
    return look(cpus, "", NULL, &mask);
}

void ls_cpus_release(ls_cpus *cpus)
{
    ls_mem_free(cpus->core);
    cpus->core = NULL;
}

/* --- places ----------------------------------------------------------------------------------- */

/* The one object of a type that the mask touches. */
static int only_one(hwloc_topology_t machine, hwloc_obj_type_t type, const ls_pool_mask *mask)
{
    int found = -1, cpu;

    for (int i = 0; i < hwloc_get_nbobjs_by_type(machine, type); i++) {
        hwloc_obj_t object = hwloc_get_obj_by_type(machine, type, (unsigned)i);
        bool any = false;
        hwloc_bitmap_foreach_begin(cpu, object->cpuset)
        {
            any |= ls_pool_mask_has(mask, cpu);
        }
        hwloc_bitmap_foreach_end();
        if (any && found >= 0)
            return -1;
        found = any ? i : found;
    }
    return found;
}

static ls_cpus_place place_in(const char *synthetic, const ls_pool_mask *mask)
{
    hwloc_topology_t machine = read_machine(synthetic);
    ls_cpus_place place = {-1, -1, -1, -1};

    if (machine) {
        place.package = only_one(machine, HWLOC_OBJ_PACKAGE, mask);
        place.node = only_one(machine, HWLOC_OBJ_NUMANODE, mask);
        place.l3 = only_one(machine, HWLOC_OBJ_L3CACHE, mask);
        place.core = only_one(machine, HWLOC_OBJ_CORE, mask);
        hwloc_topology_destroy(machine);
    }
    return place;
}

ls_cpus_place ls_cpus_here(void)
{
    ls_pool_mask mask;

    ls_pool_mask_get(&mask);
    return place_in(NULL, &mask);
}

ls_cpus_distance ls_cpus_between(const ls_cpus_place *a, const ls_cpus_place *b)
{
    if (a->core >= 0 && a->core == b->core)
        return LS_CPUS_CORE;
    if (a->l3 >= 0 && a->l3 == b->l3)
        return LS_CPUS_L3;
    if (a->node >= 0 && a->node == b->node)
        return LS_CPUS_NODE;
    if (a->package >= 0 && a->package == b->package)
        return LS_CPUS_PACKAGE;
    return a->package >= 0 && b->package >= 0 ? LS_CPUS_MACHINE : LS_CPUS_ANYWHERE;
}

const char *ls_cpus_distance_name(ls_cpus_distance distance)
{
    static const char *const names[] = {"core", "L3", "NUMA", "package", "machine", "any"};

    return names[distance];
}

/* --- answers ---------------------------------------------------------------------------------- */

bool ls_cpus_crowded(const ls_cpus *cpus, int threads)
{
    int64_t room = (int64_t)cpus->share * cpus->mask_cpus / cpus->mask_cores;

    return threads > room ||
           (cpus->quota > 0 && threads > 1 && threads > cpus->quota / cpus->ranks);
}

const ls_pool_mask *ls_cpus_pins(const ls_cpus *cpus, int threads, bool always,
                                 const char **why_out)
{
    const char *why = NULL;

    if (!cpus->known)
        why = "the cores of this machine are not known";
    else if (cpus->mask_cores == 1)
        why = "there is one core to run on";
    else if (cpus->first < 0)
        why = "which cores the other ranks take is not known";
    else if (threads > cpus->share)
        why = "there are more threads than cores";
    else if (!always && cpus->quota > 0 && cpus->quota / cpus->ranks < cpus->share)
        why = "a CPU quota does not say which cores are free";
    else if (!always && threads < cpus->share)
        why = "some cores are left to others, and the kernel knows which ones are free";
    *why_out = why ? why : "one thread to each core that it may use";
    return why ? NULL : cpus->core + cpus->first;
}

void ls_cpus_explain(const ls_cpus *cpus, ls_str *out)
{
    int n = cpus->mask_cores;

    ls_str_printf(out, "%d of %d core%s", cpus->threads, cpus->cores, cpus->cores == 1 ? "" : "s");
    if (!cpus->known)
        ls_str_append(out, " (each CPU counts as one: the topology cannot be read)");
    if (cpus->bound)
        ls_str_printf(out, "; the affinity mask allows %d of %d CPUs, on %d core%s",
                      cpus->mask_cpus, cpus->cpus, n, n == 1 ? "" : "s");
    if (cpus->ranks > 1 && cpus->sharing > 1)
        ls_str_printf(out, "; %d ranks share them (%s), %d core%s each", cpus->sharing,
                      cpus->ranks_from, cpus->share, cpus->share == 1 ? "" : "s");
    if (cpus->quota > 0)
        ls_str_printf(out, "; the CPU quota of %s is %.2f", cpus->quota_folder, cpus->quota);
}
