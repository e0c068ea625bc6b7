/* cmd_chat.h -- chat data on the command line: seeing it, building a shard of it. */
#pragma once
#include "cli/command.h"

/* lineshaft data chat. */
extern const ls_command ls_cmd_chat;

/* lineshaft data build with --template. */
ls_status ls_cmd_chat_build(const ls_args *args, ls_str *out);
