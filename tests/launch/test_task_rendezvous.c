/* test_task_rendezvous.c -- the number of a rank on its machine, with a launcher around the job and without. */
#include "harness.h"
#include "launch/task_rendezvous.h"

static void widened(int local_rank, int local_ranks, int want_rank, int want_ranks)
{
    ls_task_rendezvous_widen(&local_rank, &local_ranks);
    LS_CHECK_EQ(local_rank, want_rank);
    LS_CHECK_EQ(local_ranks, want_ranks);
}

LS_TEST(task_rendezvous_counts_the_ranks_of_a_machine_once)
{
    /* What the agent of `train -n 4` sets for its rank 3: the names of torchrun too, and no task. */
    const char *const names[] = {
        "LINESHAFT_RANK",  "RANK",       "LINESHAFT_LOCAL_RANK",  "LOCAL_RANK",
        "LINESHAFT_WORLD", "WORLD_SIZE", "LINESHAFT_LOCAL_WORLD", "LOCAL_WORLD_SIZE"};
    for (int i = 0; i < 8; i++)
        setenv(names[i], i < 4 ? "3" : "4", 1);
    widened(3, 4, 3, 4);
    setenv("LINESHAFT_LOCAL_TASK", "0", 1);
    setenv("LINESHAFT_LOCAL_TASKS", "1", 1);
    widened(3, 4, 3, 4);

    /* The second of three tasks on this machine, with four ranks each. */
    setenv("LINESHAFT_LOCAL_TASK", "1", 1);
    setenv("LINESHAFT_LOCAL_TASKS", "3", 1);
    widened(3, 4, 7, 12);
    setenv("LINESHAFT_LOCAL_TASK", "3", 1); /* none of them */
    widened(3, 4, 3, 4);
    setenv("LINESHAFT_LOCAL_TASK", "x", 1);
    widened(3, 4, 3, 4);
}
