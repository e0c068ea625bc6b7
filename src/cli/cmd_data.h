/* cmd_data.h -- the data command, and the part of it that needs a loaded run. */
#pragma once
#include "cli/command.h"
#include "config/run.h"

extern const ls_command ls_cmd_data;

/* Prove the data order of a run on standard output: the first steps of it, or with 0 until every
 * source has finished an epoch. Text is encoded into the run's folder, as training does. */
ls_status ls_cmd_data_check(const ls_run *run, int64_t steps, bool json);
