/* cmds.h -- the row of each command; it is defined in cmd_<name>.c and listed in command.c. */
#pragma once
#include "cli/command.h"

extern const ls_command ls_cmd_train;
extern const ls_command ls_cmd_generate;
extern const ls_command ls_cmd_import;
extern const ls_command ls_cmd_export;
extern const ls_command ls_cmd_merge;
extern const ls_command ls_cmd_quantize;
extern const ls_command ls_cmd_eval;
extern const ls_command ls_cmd_data;
extern const ls_command ls_cmd_ckpt;
extern const ls_command ls_cmd_ckpt_show; /* cmd_ckpt_show.c; listed in cmd_ckpt.c */
extern const ls_command ls_cmd_runs;
extern const ls_command ls_cmd_plot;
extern const ls_command ls_cmd_page;
extern const ls_command ls_cmd_bench;
extern const ls_command ls_cmd_lab;
extern const ls_command ls_cmd_drill;
extern const ls_command ls_cmd_launch;
extern const ls_command ls_cmd_agent;
extern const ls_command ls_cmd_plan;
extern const ls_command ls_cmd_doctor;
extern const ls_command ls_cmd_config;
extern const ls_command ls_cmd_completion;
extern const ls_command ls_cmd_man;
extern const ls_command ls_cmd_help;
extern const ls_command ls_cmd_version;
