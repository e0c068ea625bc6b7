/* run_digest.h -- a run as this machine sees it, for comparison with other machines. */
#pragma once
#include "cluster/member/config_digest.h"
#include "config/run.h"

LS_C_BEGIN

/* What must be the same on all machines of a run: the program, the settings, the files. */
void ls_run_digest(const ls_run *run, ls_config_digest *config_digest_out);

LS_C_END
