/* meet.h -- tasks that srun, mpirun or torchrun started find each other.
 *
 * Each task becomes the agent of one "machine" of the job, with as many ranks as -n says (1). The
 * first one listens and leaves its address and a fresh secret in a file of its user's cache folder
 * under a name made of the launcher's job number; the others wait for it, and it goes away when all
 * have met. So the folder must be the same one on all machines, as home folders on clusters are;
 * where it is not, --listen, --join and --secret say the same. */
#pragma once
#include "cli/cmd_launch.h"
#include "cluster/places.h"

typedef struct ls_meet {
    bool hosts;        /* this task is the first one */
    bool written;      /* and its file is there */
    char path[4096];   /* of the file */
    char address[320]; /* to listen at, or to join */
    int secret_fd;     /* a file without a name; -1: none */
} ls_meet;

/* Whether another launcher than lineshaft started several of this process: its places. LS_EUSAGE
 * when its variables contradict each other. */
ls_status ls_meet_launched(bool *launched_out, ls_places *places_out);

/* How this task meets the others: sets listen or join, secret_fd and nodes. Who joins waits for the
 * file, nodes->wait_s at most. */
ls_status ls_meet_open(ls_meet *meet, const ls_places *places, ls_launch_nodes *nodes);

/* The first task listens at this address: tell the others. */
ls_status ls_meet_tell(ls_meet *meet, const char *address);

/* All have met, or nobody will: the file goes. Safe on a zeroed one and a second time. */
void ls_meet_close(ls_meet *meet);
