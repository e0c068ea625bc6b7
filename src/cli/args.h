/* args.h -- from argv to a command, its flags and its arguments.
 *
 * Flags may stand anywhere: --flag value, --flag=value, -f value, -fvalue, switches together as
 * -vq; "--" ends them. The global flags are understood by every command. Nothing is accepted that
 * the table does not list, and asking for a flag that the table does not list is a bug. */
#pragma once
#include "cli/command.h"

/* Flags of every command; ends with a row whose name is NULL. */
extern const ls_flag ls_args_globals[];

/* Parse argv[1..argc-1] against commands (NULL-terminated). args->command stays NULL when none was
 * named; with --help or --version the number of arguments is not checked.
 * LS_EUSAGE: something the table does not list. */
ls_status ls_args_parse(ls_args *args, const ls_command *const *commands, int argc,
                        const char *const *argv);

/* "lineshaft config check"; the command may be NULL. */
void ls_args_full_name(const ls_command *command, ls_str *out);

/* The sub-command or command of a name in a NULL-terminated list; NULL when there is none. */
const ls_command *ls_args_find_command(const ls_command *const *list, const char *name);

/* The error for a name that is not in the list, with the nearest one as its hint. */
ls_status ls_args_unknown_command(const ls_command *const *list, const ls_command *group,
                                  const char *name);

/* How often a flag was given. */
int ls_args_count(const ls_args *args, const char *name);
