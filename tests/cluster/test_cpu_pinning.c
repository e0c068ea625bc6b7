/* test_cpu_pinning.c -- cores divided, on machines that are made up. */
#include "harness.h"
#include "base/mem.h"
#include "cluster/node/cpu_pinning.h"

/* A machine of n cores with two CPUs each, all ours. */
static void machine(ls_cpus *cpus, int n)
{
    *cpus = (ls_cpus){.known = true, .cores = n, .mask_cores = n, .share = n, .ranks = 1};
    cpus->core = ls_mem_array((size_t)n, sizeof *cpus->core);
    LS_CHECK(cpus->core);
    for (int i = 0; i < n; i++) {
        ls_pool_mask_add(&cpus->core[i], i);
        ls_pool_mask_add(&cpus->core[i], i + n);
    }
}

LS_TEST(slices_are_equal_neighbours)
{
    for (int cores = 1; cores <= 13; cores++)
        for (int ranks = 1; ranks <= 15; ranks++) {
            ls_cpus cpus;
            ls_cpu_pinning s;
            int owner[64] = {0};
            machine(&cpus, cores);
            LS_CHECK_OK(ls_cpu_pinning_cut(&s, &cpus, ranks));
            LS_CHECK_EQ(s.threads, cores / ranks > 0 ? cores / ranks : 1);
            LS_CHECK_EQ(s.masks != NULL, cores >= ranks);
            for (int r = 0; s.masks && r < ranks; r++) {
                LS_CHECK_EQ(ls_pool_mask_count(&s.masks[r]), 2 * (cores / ranks));
                for (int cpu = 0; cpu < 2 * cores; cpu++)
                    owner[cpu] += ls_pool_mask_has(&s.masks[r], cpu);
            }
            for (int cpu = 0; cpu < 64; cpu++)
                LS_CHECK(owner[cpu] <= 1);
            ls_cpu_pinning_release(&s);
            ls_cpus_release(&cpus);
        }
}

LS_TEST(slices_stay_within_share_and_quota)
{
    ls_cpus cpus;
    ls_cpu_pinning s;

    machine(&cpus, 12);
    cpus.quota = 5; /* 12 cores, but time for 5 */
    LS_CHECK_OK(ls_cpu_pinning_cut(&s, &cpus, 2));
    LS_CHECK_EQ(s.threads, 2);
    LS_CHECK_EQ(ls_pool_mask_count(&s.masks[1]), 12);
    ls_cpu_pinning_release(&s);
    cpus.quota = 0;
    cpus.first = 6; /* the second of two agents here */
    cpus.share = 6;
    cpus.ranks = 2;
    LS_CHECK_OK(ls_cpu_pinning_cut(&s, &cpus, 3));
    LS_CHECK_EQ(s.threads, 2);
    LS_CHECK(ls_pool_mask_has(&s.masks[0], 6) && ls_pool_mask_has(&s.masks[2], 11));
    LS_CHECK(!ls_pool_mask_has(&s.masks[0], 5));
    ls_cpu_pinning_release(&s);
    cpus.first = -1; /* which ones is not known */
    LS_CHECK_OK(ls_cpu_pinning_cut(&s, &cpus, 3));
    LS_CHECK(!s.masks);
    LS_CHECK_EQ(s.threads, 2);
    ls_mem_fail_nth(1);
    cpus.first = 0;
    LS_CHECK_EQ(ls_cpu_pinning_cut(&s, &cpus, 2), LS_ENOMEM);
    ls_mem_fail_nth(0);
    ls_cpu_pinning_release(&s);
    ls_cpus_release(&cpus);
}

LS_TEST(slices_know_a_limit)
{
    char why[96];
    int most = ls_cpu_pinning_most(why, sizeof why);

    LS_CHECK(most >= 1 && most <= 4096);
    LS_CHECK(strncmp(why, "with ", 5) == 0 || strcmp(why, "on one node") == 0);
}
