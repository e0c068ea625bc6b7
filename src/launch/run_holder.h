/* run_holder.h -- with heal.quorum: etcd, the process that the user started holds the run there. */
#pragma once
#include "base/err.h"
#include "config/run.h"

/* On the first machine, in the process that is not a rank: get the run
 * (cluster/elect/run_lease.h), and name the lease to the ranks through the environment. It is given back by
 * ls_run_holder_end(), or when the process exits before; run is borrowed until then. When another
 * job takes the run over, this process gets SIGTERM, which stops it as a user would. LS_EBUSY:
 * another job has it. Does nothing with heal.quorum: embedded. */
ls_status ls_run_holder_run(const ls_run *run, bool joins);
void ls_run_holder_end(void);

/* For other machines of the job: its run lease, and where etcd is; NULL: this process holds no
 * run. */
const char *ls_run_holder_lease(void);
const char *ls_run_holder_etcd(void);
