/* task_rendezvous.h -- tasks that srun, mpirun or torchrun started find each other.
 *
 * Each task becomes the agent of one "machine" of the job, with as many ranks as -n says (1). The
 * first one listens and leaves its address and a fresh secret in a file of its user's cache folder
 * under a name made of the launcher's job number; the others wait for it, and it goes away when all
 * have met. So the folder must be the same one on all machines, as home folders on clusters are;
 * where it is not, --listen, --join and --secret say the same. */
#pragma once
#include "cluster/node/launcher_env.h"
#include "launch/launch_nodes.h"

typedef struct ls_task_rendezvous {
    bool hosts;        /* this task is the first one */
    bool written;      /* and its file is there */
    char path[4096];   /* of the file */
    char address[320]; /* to listen at, or to join */
    int secret_fd;     /* a file without a name; -1: none */
} ls_task_rendezvous;

/* Whether another launcher than lineshaft started several of this process, and where this one
 * stands among them. LS_EUSAGE when its variables contradict each other. */
ls_status ls_task_rendezvous_launched(bool *launched_out, ls_launcher_env *env_out);

/* Whether this process is such a task, and so the agent of its own ranks; not so a rank of ours.
 * Variables that contradict each other are taken for none, with a warning. */
bool ls_task_rendezvous_is_task(void);

/* In a rank that such a task started: turn its number among the ranks of the task, and how many
 * these are, into those among all ranks of the machine. Two tasks of 4 ranks: rank 1 of the second
 * task is 5 of 8. Changes nothing where no launcher started tasks. */
void ls_task_rendezvous_widen(int *local_rank, int *local_ranks);

/* How this task meets the others: sets listen or join, secret_fd and nodes. A task that joins
 * waits for the file, nodes->wait_s at most. */
ls_status ls_task_rendezvous_open(ls_task_rendezvous *meet, const ls_launcher_env *env,
                                  ls_launch_nodes *nodes);

/* The first task listens at this address: tell the others. */
ls_status ls_task_rendezvous_tell(ls_task_rendezvous *meet, const char *address);

/* All have met, or will not: the file goes. Safe on a zeroed one and a second time. */
void ls_task_rendezvous_close(ls_task_rendezvous *meet);
