/* command.c -- the list of commands. A command is a file cmd_<name>.c and one line here. */
#include "cli/cmds.h"

const ls_command *const ls_commands[] = {
    &ls_cmd_train,      &ls_cmd_generate, &ls_cmd_data, &ls_cmd_ckpt,    &ls_cmd_config,
    &ls_cmd_completion, &ls_cmd_man,      &ls_cmd_help, &ls_cmd_version, NULL,
};
