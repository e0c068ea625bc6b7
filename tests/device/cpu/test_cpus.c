/* test_cpus.c -- shares of machines that hwloc makes up, under masks, quotas and launchers.
 *
 * cpus.c is compiled a second time under other names, to call look() with a synthetic machine. */
#include "harness.h"

#define ls_cpus_init copy_of_ls_cpus_init
#define ls_cpus_release copy_of_ls_cpus_release
#define ls_cpus_pins copy_of_ls_cpus_pins
#define ls_cpus_crowded copy_of_ls_cpus_crowded
#define ls_cpus_explain copy_of_ls_cpus_explain
#define ls_cpus_here copy_of_ls_cpus_here
#define ls_cpus_between copy_of_ls_cpus_between
#define ls_cpus_distance_name copy_of_ls_cpus_distance_name
#include "device/cpu/cpus.c"

#include <sched.h>
#include "base/file.h"

/* 2 packages of 2 last-level caches of 4 cores of 2 hyperthreads: 16 cores, 32 CPUs. */
#define BIG "pack:2 l3:2 core:4 pu:2"
/* The same with a NUMA node in each package. */
#define TWO "pack:2 [numa] l3:2 core:4 pu:2"

static ls_pool_mask range(int first, int last)
{
    ls_pool_mask m = {{0}};

    for (int cpu = first; cpu <= last; cpu++)
        ls_pool_mask_add(&m, cpu);
    return m;
}

static void forget_launchers(void)
{
    static const char *const names[] = {"LOCAL_WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "MPI_LOCALNRANKS",
                                        "MPI_LOCALRANKID",
                                        "PMI_LOCAL_SIZE",
                                        "PMI_LOCAL_RANK",
                                        "SLURM_LOCALID",
                                        "SLURM_STEP_TASKS_PER_NODE",
                                        "SLURM_NODEID",
                                        "SLURM_NTASKS_PER_NODE",
                                        "SLURM_STEP_ID"};

    for (size_t i = 0; i < LS_COUNT(names); i++)
        unsetenv(names[i]);
}

/* Share, first core and threads on a machine, and whether as many threads as that are pinned. */
static void check(const char *machine, ls_pool_mask mask, int share, int first, int threads,
                  bool pinned)
{
    const char *why = NULL;
    ls_cpus c;

    LS_CHECK_OK(look(&c, ".", machine, &mask));
    LS_CHECK_EQ(c.share, share);
    LS_CHECK_EQ(c.first, first);
    LS_CHECK_EQ(c.threads, threads);
    LS_CHECK_EQ(ls_cpus_pins(&c, c.threads, false, &why) != NULL, pinned);
    LS_CHECK(why && *why);
    ls_cpus_release(&c);
}

LS_TEST(cpus_are_physical_cores)
{
    ls_pool_mask all = range(0, 31);
    const ls_pool_mask *pins;
    const char *why;
    ls_cpus c;

    forget_launchers();
    LS_CHECK_OK(look(&c, ".", BIG, &all));
    LS_CHECK(c.known && !c.bound);
    LS_CHECK_EQ(c.packages, 2);
    LS_CHECK_EQ(c.l3s, 4);
    LS_CHECK_EQ(c.cores, 16);
    LS_CHECK_EQ(c.cpus, 32);
    LS_CHECK_EQ(c.threads, 16);
    pins = ls_cpus_pins(&c, 16, true, &why);
    LS_CHECK(pins);
    for (int i = 0; i < 16; i++) { /* both hyperthreads: the kernel may dodge on the same core */
        LS_CHECK_EQ(ls_pool_mask_count(&pins[i]), 2);
        LS_CHECK(ls_pool_mask_has(&pins[i], 2 * i) && ls_pool_mask_has(&pins[i], 2 * i + 1));
    }
    LS_CHECK(!ls_cpus_pins(&c, 15, false, &why) && strstr(why, "left to others"));
    LS_CHECK(!ls_cpus_pins(&c, 17, true, &why) && strstr(why, "more threads than cores"));
    LS_CHECK(!ls_cpus_crowded(&c, 32) && ls_cpus_crowded(&c, 33));
    ls_cpus_release(&c);
}

LS_TEST(cpus_follow_the_affinity_mask)
{
    ls_pool_mask odd = {{0}}, elsewhere = range(100, 102);

    forget_launchers();
    check(BIG, range(0, 7), 4, 0, 4, true);
    check(TWO, range(0, 31), 16, 0, 16, true); /* several NUMA nodes */
    check(TWO, range(0, 15), 8, 0, 8, true);   /* one of them */
    check(TWO, range(8, 23), 8, 0, 8, true);   /* half of each */
    check(BIG, range(3, 3), 1, 0, 1, false);
    for (int cpu = 1; cpu < 32; cpu += 2)
        ls_pool_mask_add(&odd, cpu);
    check(TWO, odd, 16, 0, 16, true);      /* one hyperthread of each core */
    check(BIG, elsewhere, 3, 0, 3, false); /* the topology does not know them */
    check("core:1 pu:1", range(0, 0), 1, 0, 1, false);
    check("not a machine", range(0, 5), 6, 0, 6, false);
}

LS_TEST(cpus_of_ranks_are_slices_of_neighbours)
{
    static const char *const launchers[][2] = {
        {"LOCAL_WORLD_SIZE", "LOCAL_RANK"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
        {"MPI_LOCALNRANKS", "MPI_LOCALRANKID"},
        {"PMI_LOCAL_SIZE", "PMI_LOCAL_RANK"},
        {"SLURM_STEP_TASKS_PER_NODE", "SLURM_LOCALID"},
    };

    for (size_t i = 0; i < LS_COUNT(launchers); i++) {
        forget_launchers();
        setenv(launchers[i][0], "4", 1);
        check(BIG, range(0, 31), 4, -1, 4, false); /* which slice is not known */
        setenv(launchers[i][1], "2", 1);
        check(BIG, range(0, 31), 4, 8, 4, true);
        setenv(launchers[i][1], "4", 1); /* there is no such rank */
        check(BIG, range(0, 31), 4, -1, 4, false);
        setenv(launchers[i][1], "x", 1);
        check(BIG, range(0, 31), 4, -1, 4, false);
    }
    forget_launchers();
    setenv("LOCAL_WORLD_SIZE", "5", 1); /* 16 cores: 3, 3, 3, 3, 4 */
    setenv("LOCAL_RANK", "0", 1);
    check(BIG, range(0, 31), 3, 0, 3, true);
    setenv("LOCAL_RANK", "4", 1);
    check(BIG, range(0, 31), 4, 12, 4, true);
    setenv("LOCAL_WORLD_SIZE", "40", 1); /* more ranks than cores */
    check(BIG, range(0, 31), 1, -1, 1, false);
    setenv("LOCAL_WORLD_SIZE", "-3", 1);
    check(BIG, range(0, 31), 16, 0, 16, true);
    setenv("LOCAL_WORLD_SIZE", "99999999999999999999", 1);
    check(BIG, range(0, 31), 16, 0, 16, true);
}

/* Every core belongs to exactly one rank. */
LS_TEST(cpus_slices_cover_the_machine_once)
{
    char text[16];

    forget_launchers();
    for (int ranks = 1; ranks <= 16; ranks++) {
        int next = 0;
        snprintf(text, sizeof text, "%d", ranks);
        setenv("LOCAL_WORLD_SIZE", text, 1);
        for (int rank = 0; rank < ranks; rank++) {
            ls_pool_mask all = range(0, 31);
            ls_cpus c;
            snprintf(text, sizeof text, "%d", rank);
            setenv("LOCAL_RANK", text, 1);
            LS_CHECK_OK(look(&c, ".", BIG, &all));
            LS_CHECK_EQ(c.first, next);
            next += c.share;
            ls_cpus_release(&c);
        }
        LS_CHECK_EQ(next, 16);
    }
}

LS_TEST(cpus_that_the_launcher_bound_are_not_divided_again)
{
    forget_launchers();
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "4", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1", 1);
    check(BIG, range(8, 15), 4, 0, 4, true);   /* 4 masks of 4 cores fit: this one is ours */
    check(BIG, range(0, 15), 4, -1, 4, false); /* 4 masks of 8 cores: two ranks on each */
    check(BIG, range(0, 29), 3, -1, 3, false); /* 4 masks of 15 cores */
}

LS_TEST(cpus_of_slurm_steps_and_batch_scripts)
{
    ls_pool_mask all = range(0, 31);
    const char *why;
    ls_cpus c;

    forget_launchers();
    setenv("SLURM_LOCALID", "0", 1);
    setenv("SLURM_NTASKS_PER_NODE", "8", 1); /* a batch script: no step */
    check(BIG, all, 16, 0, 16, true);
    setenv("SLURM_STEP_ID", "0", 1);
    check(BIG, all, 2, 0, 2, true);
    setenv("SLURM_STEP_TASKS_PER_NODE", "4(x2),2", 1);
    setenv("SLURM_NODEID", "1", 1);
    check(BIG, all, 4, 0, 4, true);
    setenv("SLURM_NODEID", "2", 1);
    check(BIG, all, 8, 0, 8, true);
    setenv("LOCAL_WORLD_SIZE", "16", 1); /* torchrun inside srun: the inner one counts */
    setenv("LOCAL_RANK", "15", 1);
    LS_CHECK_OK(look(&c, ".", BIG, &all));
    LS_CHECK_EQ(c.first, 15);
    LS_CHECK_STR(c.ranks_from, "LOCAL_WORLD_SIZE");
    LS_CHECK_STR(c.rank_from, "LOCAL_RANK");
    LS_CHECK(ls_cpus_pins(&c, 1, false, &why));
    ls_cpus_release(&c);
}

LS_TEST(cpus_lists_of_slurm)
{
    LS_CHECK_EQ(slurm_tasks("4", 0), 4);
    LS_CHECK_EQ(slurm_tasks("4(x2),3", 1), 4);
    LS_CHECK_EQ(slurm_tasks("4(x2),3", 2), 3);
    LS_CHECK_EQ(slurm_tasks("4(x2),3", 3), -1);
    LS_CHECK_EQ(slurm_tasks("4(x2", 5), -1);
    LS_CHECK_EQ(slurm_tasks("4(y2),3", 1), -1);
    LS_CHECK_EQ(slurm_tasks("", 0), -1);
    LS_CHECK_EQ(slurm_tasks(NULL, 0), -1);
    LS_CHECK_EQ(slurm_tasks("99999999999999999999", 0), -1);
}

static void put(const char *path, const char *text)
{
    LS_CHECK_OK(ls_file_write_atomic(path, text, strlen(text)));
}

LS_TEST(cpus_are_no_more_than_the_least_quota)
{
    ls_pool_mask all = range(0, 31);
    ls_str text;
    ls_cpus c;

    forget_launchers();
    LS_CHECK_OK(ls_file_make_dirs("proc/self"));
    LS_CHECK_OK(ls_file_make_dirs("mnt/pod/box"));
    put("proc/self/cgroup", "0::/pod/box\n");
    put("proc/self/mountinfo", "36 25 0:31 / /mnt rw - cgroup2 cgroup2 rw\n");
    put("mnt/pod/box/cpu.max", "max 100000\n");
    check(TWO, all, 16, 0, 16, true);
    put("mnt/pod/cpu.max", "450000 100000\n");
    check(TWO, all, 16, 0, 4, false); /* 4.5: the next thread would wait half of the time */
    put("mnt/pod/box/cpu.max", "250000 100000\n");
    check(TWO, all, 16, 0, 2, false);
    LS_CHECK_OK(look(&c, ".", TWO, &all));
    LS_CHECK_STR(c.quota_folder, "./mnt/pod/box");
    LS_CHECK(ls_cpus_crowded(&c, 3) && !ls_cpus_crowded(&c, 2));
    ls_str_init(&text);
    ls_cpus_explain(&c, &text);
    LS_CHECK_STR(text.p, "2 of 16 cores; the CPU quota of ./mnt/pod/box is 2.50");
    ls_str_release(&text);
    ls_cpus_release(&c);
    put("mnt/pod/box/cpu.max", "50000 100000\n");
    check(TWO, all, 16, 0, 1, false);
    put("mnt/pod/box/cpu.max", "6400000 100000\n"); /* more than there are */
    put("mnt/pod/cpu.max", "x\n");
    check(TWO, all, 16, 0, 16, true);
    put("proc/self/cgroup", "2:cpu:/pod\n");
    put("proc/self/mountinfo", "36 25 0:31 / /mnt rw - cgroup cgroup rw,cpu\n");
    put("mnt/pod/cpu.cfs_quota_us", "300000\n");
    put("mnt/pod/cpu.cfs_period_us", "100000\n");
    check(TWO, all, 16, 0, 3, false);
    put("mnt/pod/cpu.cfs_quota_us", "-1\n");
    check(TWO, all, 16, 0, 16, true);
}

LS_TEST(cpus_look_survives_every_failing_allocation)
{
    ls_pool_mask all = range(0, 31);
    ls_cpus c;

    ls_mem_fail_nth(1);
    LS_CHECK_EQ(look(&c, ".", BIG, &all), LS_ENOMEM);
    ls_cpus_release(&c);
}

LS_TEST(cpus_of_this_machine_follow_its_mask)
{
    cpu_set_t one, all;
    int first = 0;
    ls_cpus c;

    forget_launchers();
    LS_CHECK_OK(ls_cpus_init(&c));
    LS_CHECK(c.threads >= 1 && c.threads <= c.mask_cpus);
    LS_CHECK_EQ(ls_test_cpu_threads(), c.threads);
    ls_cpus_release(&c);
    LS_CHECK(!getenv("HWLOC_PLUGINS_PATH")); /* nothing of ours stays in the environment */
    LS_CHECK_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    while (!CPU_ISSET(first, &all))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    LS_CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    LS_CHECK_EQ(ls_test_cpu_threads(), 1);
}

/* --- places ----------------------------------------------------------------------------------- */

static const char *share(const char *machine, ls_pool_mask a, ls_pool_mask b)
{
    ls_cpus_place x = place_in(machine, &a), y = place_in(machine, &b);

    LS_CHECK_EQ(ls_cpus_between(&x, &y), ls_cpus_between(&y, &x));
    return ls_cpus_distance_name(ls_cpus_between(&x, &y));
}

LS_TEST(cpus_know_what_two_ranks_share)
{
    /* CPUs 0 and 1 are a core, 0 to 7 a cache, 0 to 15 a package. */
    LS_CHECK_STR(share(TWO, range(0, 0), range(1, 1)), "core");
    LS_CHECK_STR(share(TWO, range(0, 1), range(2, 3)), "L3");
    LS_CHECK_STR(share(TWO, range(0, 3), range(4, 7)), "L3");
    LS_CHECK_STR(share(TWO, range(0, 1), range(8, 9)), "NUMA");
    LS_CHECK_STR(share(TWO, range(0, 7), range(8, 15)), "NUMA");
    LS_CHECK_STR(share(TWO, range(0, 1), range(16, 17)), "machine");
    LS_CHECK_STR(share(TWO, range(0, 31), range(16, 17)), "any");
    LS_CHECK_STR(share("pack:1 l3:2 [numa] core:2 pu:1", range(0, 0), range(3, 3)), "package");
    ls_cpus_place here = ls_cpus_here();
    LS_CHECK(here.package >= -1 && here.core >= -1);
}
