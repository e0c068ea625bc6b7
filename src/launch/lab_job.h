/* lab_job.h -- one command on every host of a lab (cluster/node/lab.h). */
#pragma once
#include "cluster/node/agent.h"
#include "cluster/node/lab.h"

LS_C_BEGIN

/* Run the command of agent once on each of the n hosts. A host finds its number and the addresses
 * of all in LINESHAFT_LAB_NODE, _NODES, _ADDRESS and _ADDRESSES, and inherits a secret that they
 * have in common. Sets what of agent says where workers run. */
ls_status ls_lab_job_run(const ls_lab *lab, int n, ls_agent_args *agent,
                         ls_agent_result *result_out);

LS_C_END
