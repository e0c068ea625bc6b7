/* rows.h -- the commands, one per cmd_<name>.c; command.c lists them in the order of --help. */
#pragma once
#include "cli/command.h"

extern const ls_command ls_cmd_train;
extern const ls_command ls_cmd_generate;
extern const ls_command ls_cmd_data;
extern const ls_command ls_cmd_config;
extern const ls_command ls_cmd_ckpt;
extern const ls_command ls_cmd_bench;
