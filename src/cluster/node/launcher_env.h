/* launcher_env.h -- the rank and the world of this process, from the variables of its launcher.
 *
 * Understood are lineshaft's own agent, torchrun, Open MPI, MPICH and others with PMI, PMIx, and
 * Slurm. The launcher nearest to this process counts, so ours come first and Slurm, inside of whose
 * jobs all others run, last. A process without a launcher is alone: rank 0 of 1.
 *
 * Slurm's variables also exist where there is no task of a step: in a batch script and in the shell
 * of an allocation. There a process is alone, whatever SLURM_NTASKS says. */
#pragma once
#include "base/err.h"
#include "base/str.h"

LS_C_BEGIN

typedef struct ls_launcher_env {
    const char *launcher; /* "none", "lineshaft", "torchrun", "openmpi", "pmi", "pmix", "slurm" */
    int rank, world;
    int local_rank, local_world; /* on this node; -1: not set */
    int node, nodes;             /* -1: not set */
    uint64_t generation;         /* of lineshaft's agent; else 0 */
    char master_addr[256];       /* a host that all can reach, "" when not set */
    int master_port;             /* 0: not set */
    const char *rank_from;       /* the variable that held the rank; NULL: none */
} ls_launcher_env;

/* LS_EUSAGE when the variables contradict each other or hold no numbers; both are named. */
ls_status ls_launcher_env_find(ls_launcher_env *env_out);

/* Of the tasks that another launcher started on this machine: which one the agent of this rank is, and
 * how many they are. The agent writes both down (LINESHAFT_LOCAL_TASK, _TASKS), because the variables
 * that it gives to its ranks have torchrun's names. 0 of 1 where no launcher started tasks. */
void ls_launcher_env_task(int *task_out, int *tasks_out);

/* The names in one of Slurm's lists, "h[1-3,07],gpu2" as "h1 h2 h3 h07 gpu2" with a '\0' behind
 * each; *count_out is their number. LS_EDATA for a list that is none, or of more than 65536 names.
 */
ls_status ls_launcher_env_hosts(const char *list, ls_str *names_out, int *count_out);

LS_C_END
