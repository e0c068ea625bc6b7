/* cmd_runs.h -- what the files of `lineshaft runs` share. */
#pragma once
#include "base/json.h"
#include "cli/command.h"
#include "observe/run_summary.h"

/* Each in the file of its name. */
extern const ls_command ls_cmd_runs_show, ls_cmd_runs_diff, ls_cmd_runs_export;

/* Open the store of the run folder args->rest[which]. */
ls_status ls_cmd_runs_open(const ls_args *args, int which, ls_run_store **store_out);

/* The keys of a summary, inside an open object. */
void ls_cmd_runs_put(ls_json *json, const ls_run_summary *run);

/* "120 of 500 steps", or "120 steps" where the run has no limit. */
const char *ls_cmd_runs_steps(const ls_run_summary *run, char out[48]);

/* A number with four digits behind the point, "-" for NaN. */
const char *ls_cmd_runs_number(double value, char out[24]);

/* Local date and time, "-" where it is not known. */
const char *ls_cmd_runs_time(int64_t time_ms, char out[32]);
