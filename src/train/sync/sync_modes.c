/* sync_modes.c -- the table of ways to combine what ranks learn.
 *
 *     sync:        weights                      what ranks exchange                    file
 *     allreduce    the same on all ranks        gradients, in every step               train/step
 *     local        one set a rank, and common   differences, every local.steps steps   local_sgd_session.c
 *     ps           at the servers               pulls and pushes, in every step        param_server_session.c */
#include "train/sync/sync_modes.h"

/* One rank, or gradients that the step itself sums. */
static const ls_sync_mode allreduce = {.copies_at_once = false};

const ls_sync_mode *ls_sync_of(const ls_run *run)
{
    static const ls_sync_mode *const modes[] = {[LS_SYNC_ALLREDUCE] = &allreduce,
                                                [LS_SYNC_LOCAL] = &ls_sync_local_sgd,
                                                [LS_SYNC_PS] = &ls_sync_param_server};

    return modes[run->sync];
}
