/* cmd_data_files.h -- the files that the arguments of a command name, patterns in quotes among them. */
#pragma once
#include "cli/args.h"

typedef struct ls_cmd_data_files {
    ls_str text;        /* names, one behind the other; owned */
    const char **items; /* owned; into text */
    int count;
} ls_cmd_data_files;

/* In the order of the arguments, files of one pattern by name; "builtin:..." stays as it is. LS_EUSAGE: a name or a
 * pattern without a file. To be released even when this fails. */
ls_status ls_cmd_data_files_open(ls_cmd_data_files *files, const ls_args *args);
void ls_cmd_data_files_release(ls_cmd_data_files *files);
