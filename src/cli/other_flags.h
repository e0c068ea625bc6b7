/* other_flags.h -- flags that other programs have. */
#pragma once
#include "cli/args.h"

/* Append to out what to write instead of --NAME VALUE, which the command does not have (value "": unknown); false:
 * nothing is known of it. A command with --set also answers with the key of the run file that is meant. */
bool ls_other_flags_suggest(const ls_command *command, const char *name, const char *value,
                            ls_str *out);

/* The same for a word that is no command. */
bool ls_other_flags_command(const char *word, ls_str *out);

/* The same for an argument too many, which is often half of a flag. */
bool ls_other_flags_argument(const ls_command *command, const char *word, ls_str *out);
