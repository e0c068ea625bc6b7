/* cmd_chat.h -- chat data on the command line: seeing it, building a shard of it. */
#pragma once
#include "cli/cmd_data_files.h"
#include "cli/command.h"

/* lineshaft data chat. */
extern const ls_command ls_cmd_chat;

/* lineshaft data build with --template, of these files. */
ls_status ls_cmd_chat_build(const ls_args *args, const ls_cmd_data_files *files, ls_str *out);
